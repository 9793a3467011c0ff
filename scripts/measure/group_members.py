#!/usr/bin/env python3
"""Consumers of a group by confluent-kafka, many in one process, for scripts/measure/groups.py. Prints one JSON object.

  group_members.py static BOOTSTRAP --members N        restarts each static member in turn: what moves, and who waits for how long
  group_members.py cooperative BOOTSTRAP --members N   adds one member: the same
  group_members.py commits BOOTSTRAP --rate R --seconds S   commits offsets of many groups at one rate

A record goes to every partition each PERIOD_MS. A gap is the time between two records of a partition as its consumer sees them; only
partitions whose owner stays the same are counted.
"""
import argparse
import json
import threading
import time
import uuid

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PERIOD_MS = 100
SETTLED_SECONDS, PATIENCE_SECONDS = 3, 120
GROUPS = 20
NOT_YET = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


class Board:
    """Who owns what, and when each partition last had a record; shared by all members."""

    def __init__(self, partitions):
        self.lock = threading.Lock()
        self.owners, self.moves, self.changed = {}, [], time.monotonic()
        self.last, self.gaps, self.partitions = {}, {}, partitions

    def own(self, member, partitions):
        with self.lock:
            self.changed = time.monotonic()
            for partition in partitions:
                before = self.owners.get(partition)
                if before not in (None, member):
                    self.moves.append(partition)
                self.owners[partition] = member

    def disown(self, member, partitions):
        with self.lock:
            self.changed = time.monotonic()
            # Remembered, so that a partition that comes back to the same member counts as kept.
            for partition in partitions:
                if self.owners.get(partition) == member:
                    self.owners[partition] = member

    def saw(self, partition):
        now = time.monotonic()
        with self.lock:
            last = self.last.get(partition)
            if last is not None:
                self.gaps[partition] = max(self.gaps.get(partition, 0), now - last)
            self.last[partition] = now

    def begin(self):
        with self.lock:
            self.moves, self.gaps = [], {}

    def forget(self, partitions):
        """Their consumer was stopped by us: the gap is ours."""
        with self.lock:
            for partition in partitions:
                self.last.pop(partition, None)

    def of(self, member):
        with self.lock:
            return [partition for partition, owner in self.owners.items() if owner == member]

    def settle(self, members):
        """Every partition has an owner, every member something, and nothing changed for a while."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            with self.lock:
                complete = len(self.owners) == self.partitions and len(set(self.owners.values())) == members
                if complete and time.monotonic() - self.changed > SETTLED_SECONDS:
                    return
            time.sleep(0.1)
        raise SystemExit(f"the group did not settle: {len(self.owners)} partitions have owners")


class Member:
    def __init__(self, board, settings, topic, name):
        self.board, self.name, self.stopping = board, name, threading.Event()
        self.joined = threading.Event()
        self.consumer = Consumer(settings)
        self.thread = threading.Thread(target=self.work, args=(topic,), daemon=True)
        self.thread.start()

    def work(self, topic):
        numbers = lambda partitions: [partition.partition for partition in partitions]

        def assigned(_, partitions):
            self.board.own(self.name, numbers(partitions))
            self.joined.set()

        def revoked(_, partitions):
            self.board.disown(self.name, numbers(partitions))

        self.consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not self.stopping.is_set():
            message = self.consumer.poll(0.2)
            if message is not None and not message.error():
                self.board.saw(message.partition())
        self.consumer.close()

    def stop(self):
        self.stopping.set()
        self.thread.join(PATIENCE_SECONDS)


class Feeder(threading.Thread):
    """A record to each partition, each period."""

    def __init__(self, bootstrap, topic, partitions):
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.topic, self.partitions, self.stopping = topic, partitions, threading.Event()

    def run(self):
        due = time.monotonic()
        while not self.stopping.is_set():
            for partition in range(self.partitions):
                self.producer.produce(self.topic, b"x", partition=partition)
            self.producer.poll(0)
            due += PERIOD_MS / 1e3
            time.sleep(max(0, due - time.monotonic()))
        self.producer.flush(10)


def new_topic(bootstrap, partitions):
    topic = f"group-{uuid.uuid4().hex[:8]}"
    # Held: its requests end with it.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)
    return topic


def settings_of(arguments, group, **more):
    settings = {"bootstrap.servers": arguments.bootstrap, "group.id": group, "auto.offset.reset": "latest",
                "session.timeout.ms": 30000, "heartbeat.interval.ms": 1000, "topic.metadata.refresh.interval.ms": 5000}
    return settings | {key.replace("_", "."): value for key, value in more.items()}


def group_of(arguments, partitions_each, **settings):
    """A group that has settled, fed with records."""
    partitions = arguments.members * partitions_each
    topic = new_topic(arguments.bootstrap, partitions)
    board, group = Board(partitions), f"group-{uuid.uuid4().hex[:8]}"
    feeder = Feeder(arguments.bootstrap, topic, partitions)

    def member(number, static=False):
        own = {"group_instance_id": f"member-{number}"} if static else {}
        return Member(board, settings_of(arguments, group, **settings, **own), topic, f"member-{number}")

    return board, feeder, member


def static(arguments):
    board, feeder, member = group_of(arguments, 2, partition_assignment_strategy="range")
    members = [member(number, static=True) for number in range(arguments.members)]
    board.settle(arguments.members)
    feeder.start()
    time.sleep(5)
    board.begin()
    began = time.monotonic()
    for number in range(arguments.members):
        own = board.of(members[number].name)
        members[number].stop()
        board.forget(own)
        members[number] = member(number, static=True)
        if not members[number].joined.wait(PATIENCE_SECONDS):
            raise SystemExit(f"member {number} got nothing after its restart")
        board.forget(own)
    seconds = time.monotonic() - began
    time.sleep(3)
    return finish(board, feeder, members) | {"restart_seconds": round(seconds, 1)}


def cooperative(arguments):
    board, feeder, member = group_of(arguments, 3, partition_assignment_strategy="cooperative-sticky")
    members = [member(number) for number in range(arguments.members)]
    board.settle(arguments.members)
    feeder.start()
    time.sleep(5)
    board.begin()
    began = time.monotonic()
    members.append(member(arguments.members))
    board.settle(arguments.members + 1)
    return finish(board, feeder, members) | {"settled_seconds": round(time.monotonic() - began - SETTLED_SECONDS, 1)}


def finish(board, feeder, members):
    with board.lock:
        moved = set(board.moves)
        gaps = [gap for partition, gap in board.gaps.items() if partition not in moved]
    feeder.stopping.set()
    feeder.join()
    for member in members:
        member.stopping.set()
    for member in members:
        member.thread.join(PATIENCE_SECONDS)
    return {"moved_partitions": len(moved), "kept_partitions": len(gaps), "largest_gap_ms": round(max(gaps) * 1e3)}


def first_commit(consumer, topic):
    """Kafka makes the topic of offsets only now, and says meanwhile that it is no coordinator."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        except KafkaException as error:
            if time.monotonic() > end or error.args[0].code() not in NOT_YET:
                raise
            time.sleep(0.2)


def commits(arguments):
    topic = new_topic(arguments.bootstrap, 1)
    answered, failed = [0], [0]

    def told(error, _):
        answered[0] += 1
        failed[0] += error is not None

    consumers = [Consumer(settings_of(arguments, f"commits-{uuid.uuid4().hex[:8]}") | {"on_commit": told}) for _ in range(GROUPS)]
    for consumer in consumers:
        # Finds the coordinator, so that nothing waits for it below.
        first_commit(consumer, topic)
    answered[0], failed[0] = GROUPS, 0
    print("ready", flush=True)
    input()
    began, sent = time.monotonic(), 0
    while time.monotonic() - began < arguments.seconds:
        due = int((time.monotonic() - began) * arguments.rate)
        while sent < due:
            consumers[sent % GROUPS].commit(offsets=[TopicPartition(topic, 0, sent)], asynchronous=True)
            sent += 1
        for consumer in consumers:
            consumer.poll(0)
        time.sleep(0.002)
    seconds, end = time.monotonic() - began, time.monotonic() + 10
    while answered[0] < sent + GROUPS and time.monotonic() < end:
        for consumer in consumers:
            consumer.poll(0.01)
    for consumer in consumers:
        consumer.close()
    return {"commits": sent, "unanswered": sent + GROUPS - answered[0], "failed": failed[0], "per_second": round(sent / seconds, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["static", "cooperative", "commits"])
    parser.add_argument("bootstrap")
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    print(json.dumps({"static": static, "cooperative": cooperative, "commits": commits}[arguments.what](arguments)))


if __name__ == "__main__":
    main()
