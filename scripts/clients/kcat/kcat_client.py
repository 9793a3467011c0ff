#!/usr/bin/env python3
"""The kcat client of the matrix: builds command lines for the Debian package kcat. Command line: see ../common.py."""
import itertools
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import common  # noqa: E402
import scenario  # noqa: E402
import wire  # noqa: E402

# Offset, timestamp, lengths (-1 = null) and headers on one line, then key and value as they are.
CONSUME_FORMAT = "%o %T %K %S %h\\n%k%s\\n"

ACKS_ZERO_ATTEMPTS = 5


def version():
    text = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True).stdout
    word = text.split("Version ", 1)[1].split()
    return f"kcat {word[0]} (librdkafka {text.split('librdkafka ', 1)[1].split()[0]})"


def _run_key(record):
    """Records that one kcat command can send: the same headers, and either no null or no empty part."""
    has_empty = record.key == b"" or record.value == b""
    return tuple(record.headers), has_empty


def _end(job):
    with wire.Connection(job["bootstrap"]) as peer:
        error, _, offset = peer.list_offset(job["topic"], job["partition"], -1)
    if error:
        raise common.Mismatch(f"ListOffsets answered error {error}")
    return offset


def _arrived(job, before):
    """With acks=0 kcat exits once it has written; an exit with an answer unread resets the connection, and what the kernel had
    not sent yet is gone, on Apache Kafka as well. Waits until something of the run is there; what is there is compared later."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if _end(job) > before:
            return True
        time.sleep(0.05)
    return False


def produce(job):
    records = common.load_spec(job["spec"])
    for (headers, has_empty), run in itertools.groupby(records, _run_key):
        command = [
            "kcat", "-P", "-b", job["bootstrap"], "-t", job["topic"], "-p", str(job["partition"]),
            "-D", scenario.KCAT_RECORD_SEPARATOR.decode(), "-K", scenario.KCAT_KEY_SEPARATOR.decode(),
            "-z", job["codec"], "-X", f"acks={job['acks']}", "-X", "message.max.bytes=1048576",
            "-X", f"enable.idempotence={'true' if job['idempotent'] else 'false'}",
            "-X", f"max.in.flight={5 if job['idempotent'] else 1}", "-X", "linger.ms=20",
            "-X", "message.timeout.ms=30000",
        ]
        # -Z sends empty parts as null.
        command += [] if has_empty else ["-Z"]
        for name, data in headers:
            command += ["-H", name if data is None else f"{name}={data.decode()}"]
        data = b"".join(
            (b"" if record.key is None else record.key + scenario.KCAT_KEY_SEPARATOR)
            + (record.value or b"") + scenario.KCAT_RECORD_SEPARATOR
            for record in run
        )
        for _ in range(1 if job["acks"] != "0" else ACKS_ZERO_ATTEMPTS):
            before = _end(job) if job["acks"] == "0" else None
            done = subprocess.run(command, input=data, capture_output=True, timeout=60)
            if before is None or _arrived(job, before):
                break
        else:
            raise common.Mismatch(f"acks=0: sent {ACKS_ZERO_ATTEMPTS} times, nothing arrived")
        if done.returncode != 0 or b"Delivery failed" in done.stderr:
            raise common.Mismatch(f"exit {done.returncode}: {done.stderr[-300:].decode(errors='replace')}")
    return f"{len(records)} records"


def _header_text(headers):
    # kcat prints a header value up to its first zero byte.
    return b",".join(
        name.encode() + b"=" + (b"NULL" if data is None else data.partition(b"\0")[0]) for name, data in headers)


def consume(job):
    expected = common.load_spec(job["expect"])
    first = common.start_offset(job)
    command = [
        "kcat", "-C", "-b", job["bootstrap"], "-t", job["topic"], "-p", str(job["partition"]),
        "-o", job["from"] if job.get("from", "beginning") != "beginning" else "beginning", "-e", "-q",
        "-f", CONSUME_FORMAT, "-X", "check.crcs=true", "-X", "fetch.wait.max.ms=50",
    ]
    done = subprocess.run(command, capture_output=True, timeout=common.CONSUME_DEADLINE_SECONDS + 15)
    if done.returncode != 0:
        raise common.Mismatch(f"exit {done.returncode}: {done.stderr[-300:].decode(errors='replace')}")
    want, position, read = [], 0, done.stdout
    for index, record in enumerate(expected):
        timestamp = record.timestamp
        if timestamp is None:
            # Chosen by the producer: take it from what was read, so that everything else is compared.
            fields = read[position:position + 64].split(b" ", 2)
            timestamp = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else -1
        line = b"%d %d %d %d " % (
            first + index, timestamp, -1 if record.key is None else len(record.key),
            -1 if record.value is None else len(record.value),
        )
        piece = line + _header_text(record.headers) + b"\n" + (record.key or b"") + (record.value or b"") + b"\n"
        want.append(piece)
        position += len(piece)
    common.compare_stream(b"".join(want), read, "kcat's output")
    return f"{len(expected)} records"


if __name__ == "__main__":
    common.main(version(), produce, consume)
