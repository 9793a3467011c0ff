#!/usr/bin/env python3
"""confluent-kafka (librdkafka) as a member of a group. Command line: see ../member.py."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import member  # noqa: E402
import confluent_kafka as ck  # noqa: E402


def configuration(options):
    settings = {
        "bootstrap.servers": options.bootstrap, "group.id": options.group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "fetch.wait.max.ms": 100, "error_cb": lambda error: member.emit("trouble", detail=str(error)),
    }
    if options.protocol == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings |= {
            "partition.assignment.strategy": options.protocol, "session.timeout.ms": options.session_ms,
            "heartbeat.interval.ms": options.session_ms // 6,
        }
    if options.instance:
        settings["group.instance.id"] = options.instance
    return settings


def main():
    options = member.options()
    member.emit("client", name=f"confluent-kafka {ck.__version__} (librdkafka {ck.libversion()[0]})")
    stop = member.until_stdin_ends()
    consumer = ck.Consumer(configuration(options))
    pending = {}

    def commit(only=None):
        offsets = [ck.TopicPartition(options.topic, p, offset) for p, offset in pending.items() if only is None or p in only]
        if not offsets:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except ck.KafkaException as error:
            member.emit("trouble", detail=f"commit: {error}")
            return
        for offset in offsets:
            pending.pop(offset.partition, None)

    def assigned(_, partitions):
        member.emit("assigned", partitions=[p.partition for p in partitions])

    def revoked(_, partitions):
        gone = [p.partition for p in partitions]
        commit(gone)
        lost(_, partitions)

    def lost(_, partitions):
        gone = [p.partition for p in partitions]
        for partition in gone:
            pending.pop(partition, None)
        member.emit("revoked", partitions=gone)

    consumer.subscribe([options.topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    while not stop.is_set():
        for message in consumer.consume(num_messages=50, timeout=0.1):
            if message.error() is not None:
                member.emit("trouble", detail=str(message.error()))
                continue
            member.read(message.partition(), message.offset(), message.value())
            pending[message.partition()] = message.offset() + 1
        commit()
    consumer.close()


if __name__ == "__main__":
    main()
