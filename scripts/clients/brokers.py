"""The brokers that the scripts drive: ours from a binary, Apache Kafka through kafka-peer.sh, or one that runs already."""
import base64
import glob
import json
import os
import select
import signal
import struct
import subprocess
import time

import wire

START_SECONDS = 30.0
STOP_SECONDS = 30.0


class External:
    """A broker that somebody else runs."""

    can_restart = can_cat = False
    data = None
    pid = None

    def __init__(self, address):
        self.address = address
        self.records = 0

    def start(self, shards=None):
        with wire.Connection(self.address) as peer:
            peer.api_versions()

    def close(self):
        pass


class Kafka(External):
    """Apache Kafka under a name of its own, so that a peer that runs already is left alone."""

    def __init__(self, script, name=None, options=()):
        super().__init__(None)
        self.script, self.name, self.options = script, name or f"scripts-{os.getpid()}", options

    def _call(self, command, *options):
        done = subprocess.run([self.script, command, "--name", self.name, *options], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"kafka-peer.sh {command}: {done.stderr[-500:]}")
        return done.stdout.strip()

    def start(self, shards=None):
        self.address = self._call("start", *self.options)
        words = self._call("status").split()
        self.pid, self.data = int(words[words.index("pid") + 1]), words[words.index("data") + 1]

    def topic_ids(self, topics):
        pass

    def segment_files(self, topic, partition):
        return sorted(glob.glob(os.path.join(self.data, "logs", f"{topic}-{partition}", "*.log")))

    def close(self):
        self._call("stop")


class Ringlog(External):
    """Our broker in a data folder of the caller's. The ready descriptor tells when it serves and on which ports."""

    can_restart = can_cat = True
    # Words in front of the command line, of a program that becomes the broker.
    prefix = ()
    memory = "512MiB"

    def __init__(self, binary, data, shards=1, driver="auto", extra=()):
        super().__init__(None)
        self.binary, self.data, self.shards, self.driver = os.path.abspath(binary), data, shards, driver
        self.extra, self.process, self.ids = list(extra), None, {}
        self.log_path = data + ".log"

    def start(self, shards=None):
        """Starts and waits until it serves. The port is kept over restarts, as a service's would be."""
        listen = self.address or "127.0.0.1:0"
        reader, writer = os.pipe()
        command = [
            *self.prefix, self.binary, "broker", "--data-dir", self.data, "--listen", listen, "--admin", "127.0.0.1:0",
            "--shards", str(shards or self.shards), "--no-pin", "--io-driver", self.driver, "--memory", self.memory,
            "--ready-fd", str(writer), *self.extra,
        ]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[writer])
        os.close(writer)
        self.pid = self.process.pid
        try:
            line = self._ready_line(reader)
        finally:
            os.close(reader)
        self.address = json.loads(line)["listeners"][0]["bound"]

    def _ready_line(self, reader):
        line, deadline = b"", time.monotonic() + START_SECONDS
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(reader, 4096) if ready else b""
            if not piece:
                self.kill()
                raise RuntimeError(f"the broker did not become ready: {self.log_tail()}")
            line += piece
        return line.decode()

    def log_tail(self):
        with open(self.log_path, "rb") as log:
            return log.read()[-1500:].decode(errors="replace")

    def kill(self):
        """kill -9."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self):
        """SIGTERM; raises unless it ends with 0 in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"no end within {STOP_SECONDS:.0f} s after SIGTERM: {self.log_tail()}") from None
        if code != 0:
            raise RuntimeError(f"exit {code} after SIGTERM: {self.log_tail()}")

    def close(self):
        self.kill()

    def cat_produce(self, topic):
        return [self.binary, "cat", "-b", self.address, "-t", topic, "-P", "-q"]

    def cat_consume(self, topic):
        return [self.binary, "cat", "-b", self.address, "-t", topic, "-C", "-e", "-q"]

    def topic_ids(self, topics):
        """Asks Metadata v12 for the ids, which name the folders."""
        with wire.Connection(self.address) as peer:
            for topic in topics:
                self.ids[topic] = _topic_id(peer, topic)

    def segment_files(self, topic, partition):
        """data/<topic id>/<partition>/<20 digits>.log below the data folder."""
        pattern = os.path.join(self.data, "data", self.ids[topic], str(partition), "[0-9]" * 20 + ".log")
        return sorted(path for path in glob.glob(pattern) if os.path.getsize(path))


def _topic_id(peer, topic):
    """Metadata v12, flexible: the topic's id as it names a folder (unpadded base64url)."""
    name = topic.encode()
    body = wire.uvarint(2) + bytes(16) + wire.uvarint(len(name) + 1) + name + b"\0" + b"\0\0" + b"\0"
    peer.correlation += 1
    header = struct.pack(">hhi", wire.METADATA, 12, peer.correlation) + wire.string("ringlog-script") + b"\0"
    peer.send(wire.frame(header + body))
    answer = peer.receive_frame()
    # Behind the name, compact, stands the id; the name is unique enough to find it.
    at = answer.index(wire.uvarint(len(name) + 1) + name)
    at += 1 + len(name)
    return base64.urlsafe_b64encode(answer[at:at + 16]).decode().rstrip("=")
