#!/usr/bin/env python3
"""The kafka-python client of the matrix. Command line: see ../common.py."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import common  # noqa: E402
import kafka  # noqa: E402
from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: E402


def produce(job):
    producer = KafkaProducer(
        bootstrap_servers=job["bootstrap"],
        compression_type=None if job["codec"] == "none" else job["codec"],
        acks="all" if job["acks"] == "all" else int(job["acks"]),
        enable_idempotence=job["idempotent"],
        max_in_flight_requests_per_connection=5 if job["idempotent"] else 1,
        max_request_size=1_048_576,
        linger_ms=20,
        batch_size=64 * 1024,
    )
    try:
        records = common.load_spec(job["spec"])
        futures = [
            producer.send(
                job["topic"], value=record.value, key=record.key, headers=record.headers, partition=job["partition"],
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        producer.flush(timeout=40)
        offsets = [future.get(timeout=10).offset for future in futures]
        if job["acks"] == "0":
            time.sleep(common.SETTLE_SECONDS)
    finally:
        producer.close(timeout=10)
    if job["acks"] != "0" and offsets != list(range(offsets[0], offsets[0] + len(records))):
        raise common.Mismatch(f"offsets are not one run: {offsets[:5]} ... {offsets[-3:]}")
    return f"{len(records)} records"


def consume(job):
    expected = common.load_spec(job["expect"])
    first = common.start_offset(job)
    partition = TopicPartition(job["topic"], job["partition"])
    consumer = KafkaConsumer(
        bootstrap_servers=job["bootstrap"], group_id=None, enable_auto_commit=False, auto_offset_reset="none",
        check_crcs=True, fetch_max_wait_ms=50,
    )
    try:
        consumer.assign([partition])
        consumer.seek(partition, first)
        index, deadline = 0, time.monotonic() + common.CONSUME_DEADLINE_SECONDS
        while index < len(expected):
            if time.monotonic() > deadline:
                raise common.Mismatch(f"{index} of {len(expected)} records within {common.CONSUME_DEADLINE_SECONDS:.0f} s")
            for message in consumer.poll(timeout_ms=500).get(partition, []):
                if index >= len(expected):
                    raise common.Mismatch(f"one record more than the {len(expected)} expected, at offset {message.offset}")
                got = common.Record(message.key, message.value, list(message.headers), message.timestamp, message.offset)
                common.compare_record(index, expected[index], got, first + index)
                index += 1
        low, high = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        if (low, high) != (0, first + len(expected)):
            raise common.Mismatch(f"watermarks {low}..{high}, expected 0..{first + len(expected)}")
    finally:
        consumer.close()
    return f"{len(expected)} records"


if __name__ == "__main__":
    common.main(f"kafka-python {kafka.__version__}", produce, consume)
