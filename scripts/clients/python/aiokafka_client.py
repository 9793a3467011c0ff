#!/usr/bin/env python3
"""The aiokafka client of the matrix. Command line: see ../common.py."""
import asyncio
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import common  # noqa: E402
import aiokafka  # noqa: E402


async def write(job, records):
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=job["bootstrap"],
        compression_type=None if job["codec"] == "none" else job["codec"],
        acks="all" if job["acks"] == "all" else int(job["acks"]),
        enable_idempotence=job["idempotent"],
        max_request_size=1_048_576,
        linger_ms=20,
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                job["topic"], value=record.value, key=record.key, headers=record.headers, partition=job["partition"],
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        done = await asyncio.wait_for(asyncio.gather(*sent), 40)
        if job["acks"] == "0":
            await asyncio.sleep(common.SETTLE_SECONDS)
    finally:
        await producer.stop()
    # With acks=0 there is nothing to tell, and no offset.
    return [] if job["acks"] == "0" else [told.offset for told in done]


def produce(job):
    records = common.load_spec(job["spec"])
    offsets = asyncio.run(write(job, records))
    if offsets and offsets != list(range(offsets[0], offsets[0] + len(records))):
        raise common.Mismatch(f"offsets are not one run: {offsets[:5]} ... {offsets[-3:]}")
    return f"{len(records)} records"


async def read(job, expected, first):
    partition = aiokafka.TopicPartition(job["topic"], job["partition"])
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=job["bootstrap"], group_id=None, enable_auto_commit=False, auto_offset_reset="none", check_crcs=True,
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    try:
        consumer.assign([partition])
        consumer.seek(partition, first)
        index, deadline = 0, asyncio.get_running_loop().time() + common.CONSUME_DEADLINE_SECONDS
        while index < len(expected):
            if asyncio.get_running_loop().time() > deadline:
                raise common.Mismatch(f"{index} of {len(expected)} records within {common.CONSUME_DEADLINE_SECONDS:.0f} s")
            for message in (await consumer.getmany(timeout_ms=500)).get(partition, []):
                if index >= len(expected):
                    raise common.Mismatch(f"one record more than the {len(expected)} expected, at offset {message.offset}")
                got = common.Record(message.key, message.value, list(message.headers), message.timestamp, message.offset)
                common.compare_record(index, expected[index], got, first + index)
                index += 1
        low = (await consumer.beginning_offsets([partition]))[partition]
        high = (await consumer.end_offsets([partition]))[partition]
        if (low, high) != (0, first + len(expected)):
            raise common.Mismatch(f"watermarks {low}..{high}, expected 0..{first + len(expected)}")
    finally:
        await consumer.stop()


def consume(job):
    expected = common.load_spec(job["expect"])
    asyncio.run(read(job, expected, common.start_offset(job)))
    return f"{len(expected)} records"


if __name__ == "__main__":
    common.main(f"aiokafka {aiokafka.__version__}", produce, consume)
