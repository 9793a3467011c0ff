"""A broker, the clients whose history is kept, and the judgement: one round of torture."""
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "clients"))
import brokers  # noqa: E402
import wire  # noqa: E402

ADDRESS = "127.0.0.1:9092"
TOPIC, PROBE = "history", "probe"
CLOSED = "closed"
PARTITIONS = 4
# Errors that Kafka's clients try again: what a broker may answer while it cannot write.
RETRIABLE = {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 56, 74, 75, 89, 100}


class Failure(Exception):
    """What was promised did not hold."""


class Broker(brokers.Ringlog):
    """Ours, with a log beside the data and, where asked, a memory limit."""

    def __init__(self, binary, data, log_path, shards, driver, group=None, memory="256MiB"):
        super().__init__(binary, data, shards=shards, driver=driver)
        self.memory = memory
        self.log_path, self.address, self.group = log_path, ADDRESS, group
        self.starts_ms = []

    def start(self, shards=None):
        begin = time.monotonic()
        if self.group:
            os.makedirs(self.group, exist_ok=True)
            self.prefix = ("sh", "-c", f'echo 0 > {self.group}/cgroup.procs && exec "$@"', "sh")
        try:
            super().start(shards)
        except RuntimeError as error:
            raise Failure(f"the broker did not start: {error}") from error
        self.starts_ms.append((time.monotonic() - begin) * 1000)

    def is_alive(self):
        return self.process is not None and self.process.poll() is None


class History:
    """The clients, and the file that they write."""

    def __init__(self, binary, path, seed, rate, patience, partitions=PARTITIONS):
        self.path, self.patience = path, patience
        self.at, self.rest = 0, b""
        self.acknowledged = 0
        command = [
            binary, "bench", "history", "-b", ADDRESS, "--out", path, "--topic", TOPIC, "--partitions", str(partitions),
            "--duration", "24h", "--seed", str(seed), "--rate", str(rate), "--patience", f"{patience}s",
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        ready, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.kill()
            raise Failure(f"the clients did not start: {self.process.stderr.read()[-500:].decode()}")
        self.topic_id = json.loads(line)["topic_id"]

    def poll(self):
        """Counts what was acknowledged since the last call."""
        with open(self.path, "rb") as file:
            file.seek(self.at)
            data = self.rest + file.read()
            self.at = file.tell()
        lines = data.split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            if line.startswith(b'{"op":"send"') and b'"outcome":"ok"' in line and b'"acks":"0"' not in line:
                self.acknowledged += 1

    def await_progress(self, sends, seconds=15.0):
        """At least so many more sends are acknowledged."""
        self.poll()
        wanted, deadline = self.acknowledged + sends, time.monotonic() + seconds
        while self.acknowledged < wanted:
            if time.monotonic() > deadline:
                raise Failure(f"only {sends - (wanted - self.acknowledged)} sends acknowledged within {seconds:.0f} s")
            if self.process.poll() is not None:
                raise Failure(f"the clients ended: {self.process.stderr.read()[:2000].decode()}")
            time.sleep(0.01)
            self.poll()

    def finish(self, seconds=600):
        """Ends the load; returns what the clients say of the final read."""
        self.process.send_signal(signal.SIGTERM)
        try:
            out, error = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"the final read did not end within {seconds} s") from None
        lines = out.decode().splitlines()
        if not lines:
            raise Failure(f"the clients ended with {self.process.returncode}: {error[:2000].decode()}")
        return json.loads(lines[-1])

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class World:
    """One round: a new file system, a new broker, new clients; many cycles; one judgement."""

    def __init__(self, args, stage, random, seed, group=None):
        self.args, self.stage, self.random, self.seed = args, stage, random, seed
        self.stage.format()
        # Outside of the file system under torture.
        self.log_path = os.path.join(stage.folder, "broker.log")
        self.history_path = os.path.join(stage.folder, "history.jsonl")
        for path in (self.log_path, self.history_path):
            if os.path.exists(path):
                os.unlink(path)
        self.data = os.path.join(stage.mount_point, "data")
        memory = "128MiB" if group else "256MiB"
        self.broker = Broker(args.ringlog, self.data, self.log_path, args.shards, args.io_driver, group, memory)
        self.history = None
        self.verdict, self.final = None, None

    def begin(self):
        self.broker.start()
        wire.create_and_wait(ADDRESS, {PROBE: 1})
        self.history = History(self.args.clients, self.history_path, self.seed, self.args.rate, self.args.patience)

    def load(self, sends, seconds):
        """Lets the clients get on, then a random moment more."""
        self.history.await_progress(sends)
        time.sleep(self.random.random() * seconds)

    def restart(self, shards=None):
        self.broker.kill()
        self.broker.start(shards)

    def judge(self, more=()):
        """The checker's verdict; `more` are lines that it has to know besides the clients' own."""
        command = [self.args.clients, "bench", "verify", "--acks-1-durable", "-o", "json", self.history_path]
        if more:
            path = os.path.join(self.stage.folder, "more.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in more)
            command.append(path)
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode not in (0, 1):
            raise Failure(f"the history cannot be judged: {done.stderr[-500:]}")
        self.verdict = json.loads(done.stdout)
        return self.verdict

    def finish(self):
        """Ends the load; the history must be clean and read to its end."""
        self.final = self.history.finish()
        verdict = self.judge()
        if not verdict["is_clean"]:
            raise Failure(f"the history is not clean: {summary(verdict)}; the clients say {self.final}")
        if self.final["unread"] or not verdict["has_final_read"]:
            raise Failure(f"not everything was read to its end: {self.final}")
        if not self.broker.is_alive():
            raise Failure("the broker ended by itself")

    def produce(self, seconds=5.0):
        """The error of one send to the probe topic; None = no answer in time, or no connection."""
        try:
            with wire.Connection(ADDRESS, seconds) as peer:
                return peer.produce(PROBE, 0, wire.batch([wire.record(b"k", bytes(200))]))[0]
        except (OSError, wire.Closed):
            return None

    def read_all(self, partition):
        """(error, position) of reading a partition of the history from its start with a client of our own. The error is
        a code, 0 at the end of the log, or CLOSED: an answer that failed behind its header can only end so."""
        try:
            with wire.Connection(ADDRESS) as peer:
                error, _, position = peer.list_offset(TOPIC, partition, -2)
                while not error:
                    (_, _, error, high, records), = peer.fetch([(TOPIC, partition, position, 1 << 20)])
                    following = next_offset(records, position)
                    if error or position >= high:
                        break
                    if following == position:
                        raise Failure(f"partition {partition}: no record at {position} though {high} is the end")
                    position = following
                return error, position
        except wire.Closed:
            return CLOSED, -1

    def fetch_error(self, partition, offset):
        """What a fetch at `offset` answers: a code or CLOSED."""
        try:
            with wire.Connection(ADDRESS) as peer:
                (_, _, error, _, _), = peer.fetch([(TOPIC, partition, offset, 1 << 20)])
                return error
        except wire.Closed:
            return CLOSED

    def segments(self, partition):
        folder = os.path.join(self.data, "data", self.history.topic_id, str(partition))
        names = sorted(name for name in os.listdir(folder) if name.endswith(".log")) if os.path.isdir(folder) else []
        return [os.path.join(folder, name) for name in names]

    def keep(self, folder):
        """Copies what is needed to look into a failure."""
        os.makedirs(folder, exist_ok=True)
        for path in (self.log_path, self.history_path):
            if os.path.exists(path):
                shutil.copy(path, folder)
        if self.stage.is_mounted and not self.stage.is_frozen and os.path.isdir(self.data):
            shutil.copytree(self.data, os.path.join(folder, "data"), dirs_exist_ok=True, ignore_dangling_symlinks=True)
        if self.verdict:
            with open(os.path.join(folder, "verdict.json"), "w", encoding="utf-8") as file:
                json.dump(self.verdict, file, indent=2)

    def close(self):
        if self.history:
            self.history.kill()
        if self.stage.is_frozen:
            self.stage.thaw()
        self.broker.kill()


def next_offset(records, position):
    """Behind the last whole batch."""
    at = 0
    while at + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            break
        position = max(position, base + struct.unpack_from(">i", records, at + 23)[0] + 1)
        at += 12 + length
    return position


def summary(verdict):
    return "; ".join(
        f"{anomaly['rule']} x {anomaly['count']}, first: {anomaly['examples'][0]}" for anomaly in verdict["anomalies"])
