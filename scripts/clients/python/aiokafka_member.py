#!/usr/bin/env python3
"""aiokafka as a member of a group. Command line: see ../member.py."""
import asyncio
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import member  # noqa: E402
import aiokafka  # noqa: E402
from aiokafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: E402


class Member(aiokafka.ConsumerRebalanceListener):
    def __init__(self, options):
        self.topic, self.pending = options.topic, {}
        self.consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap, group_id=options.group, group_instance_id=options.instance, auto_offset_reset="earliest",
            enable_auto_commit=False, partition_assignment_strategy=(RangePartitionAssignor,), session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.session_ms // 6, fetch_max_wait_ms=100,
        )
        self.consumer.subscribe([options.topic], listener=self)

    async def commit(self, only=None):
        offsets = {tp: offset for tp, offset in self.pending.items() if only is None or tp in only}
        if not offsets:
            return
        try:
            await self.consumer.commit(offsets)
        except aiokafka.errors.KafkaError as error:
            member.emit("trouble", detail=f"commit: {error!r}")
            return
        for partition in offsets:
            self.pending.pop(partition, None)

    async def on_partitions_revoked(self, revoked):
        await self.commit(revoked)
        for partition in revoked:
            self.pending.pop(partition, None)
        member.emit("revoked", partitions=[tp.partition for tp in revoked])

    async def on_partitions_assigned(self, assigned):
        member.emit("owned", partitions=[tp.partition for tp in assigned])

    async def run(self, stop):
        await self.consumer.start()
        while not stop.is_set():
            try:
                polled = await self.consumer.getmany(timeout_ms=100)
            except aiokafka.errors.KafkaError as error:
                member.emit("trouble", detail=f"poll: {error!r}")
                await asyncio.sleep(0.1)
                continue
            for partition, messages in polled.items():
                for message in messages:
                    member.read(message.partition, message.offset, message.value)
                    self.pending[partition] = message.offset + 1
            await self.commit()
        await self.consumer.stop()


async def run(options, stop):
    await Member(options).run(stop)


def main():
    options = member.options()
    member.emit("client", name=f"aiokafka {aiokafka.__version__}")
    asyncio.run(run(options, member.until_stdin_ends()))


if __name__ == "__main__":
    main()
