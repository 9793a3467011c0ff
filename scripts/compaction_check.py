#!/usr/bin/env python3
"""Compaction on a real kernel: a compacted topic is filled, waited for, and read by kcat and `ringlog cat`, before and after kill -9; then
DumpLogSegments of Kafka's jars reads its files.

  compaction_check.py --ringlog BINARY [--short]    exit 1 where something is not as promised; --short leaves the jars out

Standard library only, and kcat; Kafka's tools come from kafka-peer.sh. What is promised: docs/explanation/compaction.md.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))
import brokers  # noqa: E402
import wire  # noqa: E402

TOPIC, KEYS, RECORDS, VALUE_BYTES = "compaction-check", 50, 6000, 1000
# Segments of 1 MiB, the smallest: so many of the newest records may lie in the one that takes records.
OPEN_RECORDS_MAX = (1 << 20) // VALUE_BYTES
WAIT_SECONDS = 30.0
TOMBSTONES = {key for key in range(KEYS) if key % 10 == 3}
BATCH = re.compile(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+)")


class Failed(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failed(text)


def key_of(number):
    return (number * 7 + number // 11) % KEYS


def is_tombstone(number):
    """The last record of some keys says that they are gone."""
    return number >= RECORDS - 2 * KEYS and key_of(number) in TOMBSTONES


def fill(address):
    """One record a batch in some, many in others: the number of a record is its offset."""
    with wire.Connection(address, timeout=30.0) as peer:
        number = 0
        while number < RECORDS:
            count = min(1 + number % 37, RECORDS - number)
            records = []
            for delta in range(count):
                own = number + delta
                value = None if is_tombstone(own) else f"{own} ".encode().ljust(VALUE_BYTES, b".")
                records.append(wire.record(f"key-{key_of(own)}".encode(), value, offset_delta=delta))
            error, base = peer.produce(TOPIC, 0, wire.batch(records))
            expect((error, base) == (0, number), f"produce of record {number}: error {error}, offset {base}")
            number += count


def read_kcat(address):
    done = subprocess.run(
        ["kcat", "-C", "-b", address, "-t", TOPIC, "-p", "0", "-o", "beginning", "-e", "-q", "-f", "%o %k %S %s\n"],
        capture_output=True, timeout=60, check=True)
    return lines(done.stdout)


def read_own(binary, address):
    done = subprocess.run(
        [binary, "cat", TOPIC, "-C", "-e", "-p", "0", "-b", address, "-f", "%o %k %S %s\\n"], capture_output=True, timeout=60, check=True)
    return lines(done.stdout)


def lines(output):
    """[(offset, key, number or None of a tombstone)]"""
    found = []
    for line in output.decode().splitlines():
        offset, key, length, *value = line.split(" ")
        found.append((int(offset), int(key.removeprefix("key-")), None if int(length) < 0 else int(value[0])))
    return found


def judge(found, who):
    offsets = [offset for offset, _, _ in found]
    expect(offsets == sorted(set(offsets)), f"{who}: offsets do not rise")
    for offset, key, number in found:
        expect(key == key_of(offset), f"{who}: offset {offset} has key {key}")
        expect(number == (None if is_tombstone(offset) else offset), f"{who}: offset {offset} has record {number}")
    newest = {key_of(number): number for number in range(RECORDS)}
    read = {key: offset for offset, key, _ in found}
    expect(read == newest, f"{who}: the newest of each key: {sorted(set(newest.items()) ^ set(read.items()))[:4]}")


def wait_until_compacted(address):
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = read_kcat(address)
        # All but the segment that takes records, and what of each key is left.
        if len(found) <= OPEN_RECORDS_MAX + KEYS:
            return found
        expect(time.monotonic() < deadline, f"{len(found)} of {RECORDS} records are left after {WAIT_SECONDS:.0f} s")
        time.sleep(0.2)


def dump(files):
    """DumpLogSegments finds each batch valid and no offset missing."""
    tool = os.path.join(HERE, "kafka-peer.sh")
    done = subprocess.run(
        [tool, "tool", "DumpLogSegments", "--deep-iteration", "--files", ",".join(files)], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"DumpLogSegments: {done.stderr[-400:]}")
    batches = [line for line in done.stdout.splitlines() if line.startswith("baseOffset:")]
    invalid = [line for line in batches if "isvalid: true" not in line.lower()]
    expect(not invalid, f"DumpLogSegments: {invalid[:1]}")
    expect("mismatches" not in done.stdout, f"DumpLogSegments: {done.stdout[-400:]}")
    following, records = 0, 0
    for line in batches:
        first, last, count = (int(number) for number in BATCH.match(line).groups())
        expect(first == following, f"DumpLogSegments: a batch at {first}, expected at {following}")
        following, records = last + 1, records + count
    expect(following == RECORDS, f"DumpLogSegments: the log ends at {following}")
    return records, len(batches)


def refuses_records_without_key(address):
    with wire.Connection(address) as peer:
        error, text = peer.produce_text(TOPIC, 0, wire.batch([wire.record(None, b"value")]))
        expect(error == 87 and text, f"a record without key: error {error}, {text}")


def check(binary, folder, is_short):
    settings = ["--set", "log.cleaner.backoff.ms=200"]
    broker = brokers.Ringlog(binary, os.path.join(folder, "data"), shards=2, extra=settings)
    try:
        broker.start()
        configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
        with wire.Connection(broker.address) as peer:
            made = peer.create_topics([(TOPIC, 1, 1, [], configs)])
            expect(made[TOPIC][0] == 0, f"create: {made}")
        broker.topic_ids([TOPIC])
        fill(broker.address)
        refuses_records_without_key(broker.address)
        found = wait_until_compacted(broker.address)
        print(f"ok: {len(found)} of {RECORDS} records of {KEYS} keys are left", flush=True)
        judge(found, "kcat")
        judge(read_own(broker.binary, broker.address), "ringlog cat")
        broker.kill()
        broker.start()
        judge(read_kcat(broker.address), "kcat, after kill -9")
        judge(read_own(broker.binary, broker.address), "ringlog cat, after kill -9")
        print("ok: kcat and ringlog cat read the newest of each key, before and after kill -9", flush=True)
        broker.stop()
        if is_short:
            return
        files = broker.segment_files(TOPIC, 0)
        records, batches = dump(files)
        print(f"ok: DumpLogSegments reads {records} records in {batches} batches of {len(files)} segments", flush=True)
    finally:
        broker.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ringlog", metavar="BINARY", required=True)
    parser.add_argument("--short", action="store_true", help="without Kafka's jars")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ringlog-compaction-check-")
    try:
        check(args.ringlog, folder, args.short)
    except (Failed, subprocess.SubprocessError, wire.Closed) as error:
        print(f"FAILED: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
