#!/usr/bin/env python3
"""The confluent-kafka (librdkafka) client of the matrix. Command line: see ../common.py."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import common  # noqa: E402
import confluent_kafka as ck  # noqa: E402


def _quiet(error):
    """librdkafka reports brokers that come and go here; what matters fails the job by itself."""
    if error.fatal():
        print(f"confluent-kafka: {error}", file=sys.stderr)


def produce(job):
    producer = ck.Producer({
        "bootstrap.servers": job["bootstrap"],
        "compression.type": job["codec"],
        "acks": job["acks"],
        "enable.idempotence": job["idempotent"],
        # One connection at a time keeps order without idempotence.
        "max.in.flight.requests.per.connection": 5 if job["idempotent"] else 1,
        "message.max.bytes": 1_048_576,
        "linger.ms": 20,
        "message.timeout.ms": 30_000,
        "error_cb": _quiet,
    })
    failures, delivered = [], []

    def on_delivery(error, message):
        if error is not None:
            failures.append(str(error))
        else:
            delivered.append(message.offset())

    records = common.load_spec(job["spec"])
    for record in records:
        extra = {} if record.timestamp is None else {"timestamp": record.timestamp}
        producer.produce(
            job["topic"], value=record.value, key=record.key, partition=job["partition"],
            headers=record.headers, on_delivery=on_delivery, **extra,
        )
        producer.poll(0)
    left = producer.flush(40)
    if failures or left or len(delivered) != len(records):
        raise common.Mismatch(f"{len(delivered)} of {len(records)} delivered, {left} left, first failure: {failures[:1]}")
    if job["acks"] != "0" and delivered != list(range(delivered[0], delivered[0] + len(records))):
        raise common.Mismatch(f"offsets are not one run: {delivered[:5]} ... {delivered[-3:]}")
    if job["acks"] == "0":
        time.sleep(common.SETTLE_SECONDS)
    return f"{len(records)} records"


def consume(job):
    expected = common.load_spec(job["expect"])
    first = common.start_offset(job)
    consumer = ck.Consumer({
        "bootstrap.servers": job["bootstrap"],
        "group.id": "ringlog-matrix-unused",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "error_cb": _quiet,
    })
    try:
        consumer.assign([ck.TopicPartition(job["topic"], job["partition"], first)])
        index, deadline = 0, time.monotonic() + common.CONSUME_DEADLINE_SECONDS
        while True:
            message = consumer.poll(0.1)
            if time.monotonic() > deadline:
                raise common.Mismatch(f"{index} of {len(expected)} records within {common.CONSUME_DEADLINE_SECONDS:.0f} s")
            if message is None:
                continue
            if message.error() is not None:
                if message.error().code() == ck.KafkaError._PARTITION_EOF:
                    if index >= len(expected):
                        break
                    continue
                raise ck.KafkaException(message.error())
            if index >= len(expected):
                raise common.Mismatch(f"one record more than the {len(expected)} expected, at offset {message.offset()}")
            got = common.Record(
                message.key(), message.value(), message.headers() or [], message.timestamp()[1], message.offset())
            common.compare_record(index, expected[index], got, first + index)
            index += 1
        low, high = consumer.get_watermark_offsets(ck.TopicPartition(job["topic"], job["partition"]), timeout=10)
        if (low, high) != (0, first + len(expected)):
            raise common.Mismatch(f"watermarks {low}..{high}, expected 0..{first + len(expected)}")
    finally:
        consumer.close()
    return f"{len(expected)} records"


if __name__ == "__main__":
    common.main(f"confluent-kafka {ck.__version__} (librdkafka {ck.libversion()[0]})", produce, consume)
