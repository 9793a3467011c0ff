#!/usr/bin/env python3
"""The command-line tools of Apache Kafka as a client of the matrix: console producer and console consumer.

Command line: see ../common.py. The console producer chooses the partition itself, so its topics have one.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import common  # noqa: E402
import scenario  # noqa: E402

PEER = os.path.join(HERE, "..", "..", "kafka-peer.sh")
VERSION = os.environ.get("KAFKA_VERSION", "4.4.0")


def tool(name, *arguments, data=None, timeout=90):
    """Runs one tool of the jars; returns its standard output as bytes, raises Mismatch when it fails."""
    done = subprocess.run([PEER, "tool", name, *arguments], input=data, capture_output=True, timeout=timeout)
    if done.returncode != 0 or b"Exception" in done.stderr or b"ERROR" in done.stderr:
        raise common.Mismatch(f"{name}: exit {done.returncode}: {done.stderr[-400:].decode(errors='replace')}")
    return done.stdout


def produce(job):
    records = common.load_spec(job["spec"])
    properties = {
        "acks": job["acks"], "enable.idempotence": str(bool(job["idempotent"])).lower(), "linger.ms": "20",
        "max.in.flight.requests.per.connection": "5" if job["idempotent"] else "1",
    }
    arguments = ["--bootstrap-server", job["bootstrap"], "--topic", job["topic"], "--compression-codec", job["codec"]]
    for name, value in properties.items():
        arguments += ["--command-property", f"{name}={value}"]
    for name, value in {
        "parse.key": "true", "parse.headers": "true", "null.marker": scenario.NULL_MARKER,
        "key.separator": "\t", "headers.delimiter": "\t", "headers.separator": ",", "headers.key.separator": ":",
    }.items():
        arguments += ["--reader-property", f"{name}={value}"]
    marker = scenario.NULL_MARKER.encode()
    lines = []
    for record in records:
        headers = b",".join(name.encode() + b":" + (marker if data is None else data) for name, data in record.headers)
        key = marker if record.key is None else record.key
        value = marker if record.value is None else record.value
        lines.append(headers + b"\t" + key + b"\t" + value + b"\n")
    tool("ConsoleProducer", *arguments, data=b"".join(lines))
    return f"{len(records)} records"


def _formatted(records, first, read):
    """The console consumer's output for these records; null as the marker. Timestamps may be taken from `read`."""
    marker, pieces, position = scenario.NULL_MARKER.encode(), [], 0
    for index, record in enumerate(records):
        timestamp = record.timestamp
        if timestamp is None:
            digits = read[position:position + 40].partition(b"\t")[0].removeprefix(b"CreateTime:")
            timestamp = int(digits) if digits.isdigit() else -1
        headers = b",".join(name.encode() + b":" + (marker if data is None else data) for name, data in record.headers)
        piece = b"\t".join([
            b"CreateTime:%d" % timestamp, b"Offset:%d" % (first + index), headers or b"NO_HEADERS",
            marker if record.key is None else record.key, marker if record.value is None else record.value,
        ]) + b"\n"
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def consume(job):
    expected = common.load_spec(job["expect"])
    first = common.start_offset(job)
    arguments = [
        "--bootstrap-server", job["bootstrap"], "--topic", job["topic"], "--partition", str(job["partition"]),
        "--offset", "earliest" if first == 0 else str(first), "--max-messages", str(len(expected)),
        "--timeout-ms", str(int(common.CONSUME_DEADLINE_SECONDS * 1000)),
    ]
    for name in ("print.timestamp", "print.offset", "print.headers", "print.key", "print.value"):
        arguments += ["--formatter-property", f"{name}=true"]
    arguments += ["--formatter-property", f"null.literal={scenario.NULL_MARKER}"]
    read = tool("consumer.ConsoleConsumer", *arguments)
    common.compare_stream(_formatted(expected, first, read), read, "the console consumer's output")
    return f"{len(expected)} records"


if __name__ == "__main__":
    common.main(f"Kafka tools {VERSION}", produce, consume)
