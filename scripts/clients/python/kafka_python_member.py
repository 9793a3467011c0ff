#!/usr/bin/env python3
"""kafka-python as a member of a group. Command line: see ../member.py."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import member  # noqa: E402
import kafka  # noqa: E402
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor  # noqa: E402
from kafka.coordinator.assignors.range import RangePartitionAssignor  # noqa: E402

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


class Member(kafka.ConsumerRebalanceListener):
    def __init__(self, options):
        self.topic, self.pending = options.topic, {}
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=options.bootstrap, group_id=options.group, group_instance_id=options.instance, auto_offset_reset="earliest",
            enable_auto_commit=False, partition_assignment_strategy=[ASSIGNORS[options.protocol]], session_timeout_ms=options.session_ms,
            heartbeat_interval_ms=options.session_ms // 6, fetch_max_wait_ms=100, reconnect_backoff_max_ms=1000,
        )
        # A leader that does not know the topic's partitions yet assigns nothing, and joins again at once: the topic is asked for first.
        self.consumer.partitions_for_topic(options.topic)
        self.consumer.subscribe([options.topic], listener=self)

    def commit(self, only=None):
        offsets = {tp: kafka.OffsetAndMetadata(offset, "", -1) for tp, offset in self.pending.items() if only is None or tp in only}
        if not offsets:
            return
        try:
            self.consumer.commit(offsets)
        except kafka.errors.KafkaError as error:
            member.emit("trouble", detail=f"commit: {error!r}")
            return
        for partition in offsets:
            self.pending.pop(partition, None)

    def on_partitions_assigned(self, assigned):
        member.emit("assigned", partitions=[tp.partition for tp in assigned])

    def on_partitions_revoked(self, revoked):
        self.commit(revoked)
        self.on_partitions_lost(revoked)

    def on_partitions_lost(self, lost):
        for partition in lost:
            self.pending.pop(partition, None)
        member.emit("revoked", partitions=[tp.partition for tp in lost])

    def run(self, stop):
        while not stop.is_set():
            try:
                # A shorter wait gives a join up on a busy machine, and the member may then stay without heartbeats.
                polled = self.consumer.poll(timeout_ms=1000)
            except kafka.errors.KafkaError as error:
                member.emit("trouble", detail=f"poll: {error!r}")
                if isinstance(error, kafka.errors.FencedInstanceIdError):
                    raise
                continue
            for partition, messages in polled.items():
                for message in messages:
                    member.read(message.partition, message.offset, message.value)
                    self.pending[partition] = message.offset + 1
            self.commit()
        self.consumer.close()


def main():
    options = member.options()
    member.emit("client", name=f"kafka-python {kafka.__version__}")
    stop = member.until_stdin_ends()
    Member(options).run(stop)


if __name__ == "__main__":
    main()
