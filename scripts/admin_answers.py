#!/usr/bin/env python3
"""Requests that read and change configs and levels of features, list what has configs, describe the quorum and topics in pages, ask for
epochs, for more partitions and for sizes, and give topics no time: our answers beside those of Apache Kafka. Codes and values are compared, texts
never. Then the tools of Kafka's jars do the same against ours.

  admin_answers.py --ringlog BINARY            both brokers are started fresh; exit 1 where they differ beyond what is listed here
  admin_answers.py --bootstrap HOST:PORT       only prints what a fresh broker of node id 1 answers, one line a case

Standard library only; Kafka and its tools come from kafka-peer.sh.
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))
import brokers  # noqa: E402
import group_wire  # noqa: E402
import wire  # noqa: E402
from wire import Reader, array, string  # noqa: E402

import feature_answers  # noqa: E402
import log_dir_answers  # noqa: E402
import page_answers  # noqa: E402
import partition_answers  # noqa: E402
import timeout_answers  # noqa: E402

DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_QUORUM = 32, 33, 44, 23, 55
LIST_CONFIG_RESOURCES = 74
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NAME = "admin-answers"
# Kafka answers before its broker works by the new value; ours answers after.
KAFKA_SETTLES_SECONDS = 0.3

# Where we differ on purpose: the beginning of the case's name, and why.
KNOWN = {
    "describe, empty list of keys": "Kafka has max.decompressed.message.bytes, and its min.insync.replicas comes from a setting of "
                                    "all brokers that a new cluster has",
    "bad operation": "Kafka fails with UNKNOWN_SERVER_ERROR",
    "describe all brokers": "a new cluster of Kafka has min.insync.replicas set for all brokers",
    "all brokers: nothing else described": "the same",
    "all brokers: replace by nothing": "the same, and Kafka refuses to remove it",
    "all brokers: deleted, described": "the same",
    "broker: validate only, described": "the same",
    "broker: deleted, described": "follows from the one before",
    "broker: unknown key": "Kafka stores what nobody reads; nothing is ignored in silence here",
    "broker: topic's key": "the same",
    "logger: ": "loggers are no resource here",
    "metrics: ": "client metrics are no resource here",
    "group, not built: ": "share and streams groups are not built, and assignments are always computed beside the coordinator",
    "partitions, at once: ": "the bound here is the topic's, with INVALID_PARTITIONS as in CreateTopics; Kafka's is the request's",
    "partitions, internal: ": "Kafka takes it, and from its next start on looks for groups and their offsets elsewhere",
    "pages, named: no name": "Kafka fails with UNKNOWN_SERVER_ERROR",
    "pages, at once: ": "Kafka counts beyond 32 bits, and the next cursor is negative",
    "epochs, negative": "Kafka finds an end for an epoch below -1",
    "epochs": "a first term is 1 here, and 0 there",
}
# Keys that Kafka changes at run time and we do not: fixed at start, or not built.
FIXED_HERE = [
    "max.connections", "producer.id.expiration.ms", "min.insync.replicas", "num.io.threads", "compression.type",
    "unclean.leader.election.enable", "background.threads", "log.cleaner.threads",
    "log.cleaner.io.buffer.size", "log.cleaner.io.buffer.load.factor",
]


def is_known(name):
    if any(name == f"{who}: {key}{what}" for who in ("broker", "all brokers") for key in FIXED_HERE
           for what in ("", ", described", ", deleted")):
        return True
    return any(name == known or (known.endswith(": ") and name.startswith(known)) for known in KNOWN) or any(
        name.startswith(known) for known in ("broker: unknown key",))


def describe(peer, resources, version=3, synonyms=True, documentation=False):
    """[(error, text, type, name, {key: (value, read only, source, sensitive, [synonym], type)})]"""
    body = array([
        struct.pack(">b", kind) + string(name)
        + (struct.pack(">i", -1) if keys is None else array([string(key) for key in keys])) for kind, name, keys in resources])
    body += struct.pack(">b", synonyms)
    if version >= 3:
        body += struct.pack(">b", documentation)
    reader = peer.call(DESCRIBE_CONFIGS, version, body)
    reader.take(">i")

    def config():
        name, value = reader.string(), reader.string()
        read_only, source, sensitive = reader.take(">bbb")
        listed = reader.array(lambda: (reader.string(), reader.string(), reader.take(">b")))
        kind = None
        if version >= 3:
            kind = reader.take(">b")
            reader.string()
        return name, (value, bool(read_only), source, bool(sensitive), listed, kind)

    return reader.array(lambda: (
        reader.take(">h"), reader.string(), reader.take(">b"), reader.string(), dict(reader.array(config))))


def incremental(peer, resources, validate_only=False):
    """Resources: (type, name, [(key, operation, value)]). [(error, text, type, name)]"""
    body = array([
        struct.pack(">b", kind) + string(name)
        + array([string(key) + struct.pack(">b", operation) + string(value) for key, operation, value in changes])
        for kind, name, changes in resources]) + struct.pack(">b", validate_only)
    reader = peer.call(INCREMENTAL_ALTER_CONFIGS, 0, body)
    reader.take(">i")
    return reader.array(lambda: (reader.take(">h"), reader.string(), reader.take(">b"), reader.string()))


def replace(peer, resources, validate_only=False):
    """Resources: (type, name, [(key, value)])."""
    body = array([
        struct.pack(">b", kind) + string(name) + array([string(key) + string(value) for key, value in configs])
        for kind, name, configs in resources]) + struct.pack(">b", validate_only)
    reader = peer.call(ALTER_CONFIGS, 1, body)
    reader.take(">i")
    return reader.array(lambda: (reader.take(">h"), reader.string(), reader.take(">b"), reader.string()))


def epochs(peer, topic, partitions):
    """Partitions: (index, current epoch, epoch). [(error, index, epoch, end offset)]"""
    body = struct.pack(">i", -1) + array([string(topic) + array([struct.pack(">iii", *part) for part in partitions])])
    reader = peer.call(OFFSET_FOR_LEADER_EPOCH, 3, body)
    reader.take(">i")
    found = []
    reader.array(lambda: (reader.string(), found.extend(reader.array(lambda: reader.take(">hiiq")))))
    return found


def compact(text):
    return wire.uvarint(len(text) + 1) + text.encode()


# A group whose configs were all deleted before: Kafka goes on listing it.
WITHOUT_CONFIGS = "nobody"

group_wire.APIS[LIST_CONFIG_RESOURCES] = (0, 1, [("types", ["b"], "1+")], [
    ("throttle", "i", ""), ("error", "h", ""), ("resources", [("name", "s", ""), ("type", "b", "1+")], "")])


def resource_cases(address, settles=0.0):
    """Yields (name, answer): what has configs. Kafka lists in an order of its own."""
    time.sleep(settles)
    with group_wire.Peer(address) as peer:
        for version, types in [
            (0, []), (1, []), (1, [TOPIC]), (1, [BROKER]), (1, [BROKER_LOGGER]), (1, [CLIENT_METRICS]), (1, [GROUP]), (1, [GROUP, TOPIC]),
            (1, [TOPIC, TOPIC]), (1, [0]), (1, [1]), (1, [3]), (1, [-1]), (1, [64]), (1, [TOPIC, 99]),
        ]:
            told = peer.ask(LIST_CONFIG_RESOURCES, version, types=types)
            found = sorted((resource.get("type", CLIENT_METRICS), resource["name"]) for resource in told["resources"]
                           if resource["name"] != WITHOUT_CONFIGS)
            yield f"resources {version}: of types {types}", [told["error"], found]


def groups_with_configs(address):
    with group_wire.Peer(address) as peer:
        names = [resource["name"] for resource in peer.ask(LIST_CONFIG_RESOURCES, 1, types=[GROUP])["resources"]]
    return sorted(name for name in names if name != WITHOUT_CONFIGS)


def quorum(peer, topic="__cluster_metadata", partition=0):
    """Version 1, flexible: (error, partition error, leader, epoch > 0, high watermark > 0, voters, observers)."""
    body = b"\x02" + compact(topic) + b"\x02" + struct.pack(">i", partition) + b"\0" * 3
    peer.correlation += 1
    header = struct.pack(">hhi", DESCRIBE_QUORUM, 1, peer.correlation) + string("ringlog-script") + b"\0"
    peer.send(wire.frame(header + body))
    reader = Reader(peer.receive_frame())
    reader.at = 5
    error = reader.take(">h")

    def length():
        value = shift = 0
        while True:
            byte = reader.take(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - 1

    if length() < 1:
        return [error]
    size = length()
    reader.at += size
    length()
    index, partition_error, leader, epoch, high = reader.take(">ihiiq")
    voters = []
    for _ in range(max(0, length())):
        node, end, fetched, caught_up = reader.take(">iqqq")
        reader.take(">B")
        voters.append((node, end >= high, fetched > 0, caught_up > 0))
    observers = max(0, length())
    return [error, index, partition_error, leader, epoch >= 0, high > 0, voters, observers]


def one(results, with_text=False):
    error, text, _, _ = results[0][:4]
    return (error, text) if with_text else error


def cases(address, texts=False, settles=0.0):
    """Yields (name, answer)."""
    with wire.Connection(address) as peer:
        changed_at = -settles

        def settled(answer, validate_only):
            nonlocal changed_at
            if not (answer[0] if texts else answer) and not validate_only:
                changed_at = time.monotonic()
            return answer

        def settle():
            time.sleep(max(0.0, changed_at + settles - time.monotonic()))

        def change(*changes, kind=TOPIC, name=NAME, validate_only=False):
            return settled(one(incremental(peer, [(kind, name, list(changes))], validate_only), texts), validate_only)

        def swap(*configs, kind=TOPIC, name=NAME, validate_only=False):
            return settled(one(replace(peer, [(kind, name, list(configs))], validate_only), texts), validate_only)

        def show(*keys, kind=TOPIC, name=NAME):
            settle()
            error, text, _, _, configs = describe(peer, [(kind, name, list(keys))])[0]
            return [(error, text) if texts else error, configs]

        yield from feature_answers.cases(peer, texts)
        wire.create_and_wait(address, {NAME: 2})
        yield "describe topic", show("retention.ms", "max.message.bytes", "segment.bytes", "cleanup.policy")
        yield "describe topic, unknown key asked", show("no.such.key")
        yield "describe, empty list of keys", show()
        yield "describe unknown topic", show("retention.ms", name="no-such-topic")
        yield "describe bad topic name", show("retention.ms", name="a b")
        yield "describe topic without a name", show("retention.ms", name="")
        yield "set", change(("retention.ms", SET, "3600000"))
        yield "set, described", show("retention.ms")
        yield "set with spaces", change(("retention.ms", SET, " 3600001 "))
        yield "set with spaces, described", show("retention.ms")
        yield "validate only", change(("retention.ms", SET, "5"), validate_only=True)
        yield "validate only, described", show("retention.ms")
        yield "unknown key", change(("no.such.key", SET, "1"))
        yield "bad value", change(("retention.ms", SET, "soon"))
        yield "value out of range", change(("segment.ms", SET, "0"))
        yield "null value", change(("retention.ms", SET, None))
        yield "one bad of two", change(("segment.ms", SET, "60000"), ("retention.ms", SET, "soon"))
        yield "one bad of two, described", show("segment.ms")
        yield "key twice", change(("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        yield "append to a number", change(("retention.ms", APPEND, "1"))
        yield "subtract from a number", change(("retention.ms", SUBTRACT, "1"))
        yield "bad operation", change(("retention.ms", 9, "1"))
        yield "no change", change()
        yield "append to a list", change(("cleanup.policy", APPEND, "delete"))
        yield "append to a list, described", show("cleanup.policy")
        yield "subtract from a list", change(("cleanup.policy", SUBTRACT, "compact"))
        yield "subtract, described", show("cleanup.policy")
        yield "delete a list", change(("cleanup.policy", DELETE, None))
        yield from compaction_cases(peer, change, show)
        yield "delete", change(("retention.ms", DELETE, None))
        yield "delete, described", show("retention.ms")
        yield "delete what is not set", change(("retention.ms", DELETE, None))
        yield "delete unknown key", change(("no.such.key", DELETE, None))
        yield "unknown topic", change(("retention.ms", SET, "1"), name="no-such-topic")
        yield "bad topic name", change(("retention.ms", SET, "1"), name="a b")
        yield "topic without a name", change(("retention.ms", SET, "1"), name="")
        yield "resource twice", [result[0] for result in incremental(peer, [
            (TOPIC, NAME, [("retention.ms", SET, "1")]), (TOPIC, NAME, [("segment.ms", SET, "60000")])])]
        yield "replace", swap(("retention.ms", "7200000"), ("max.message.bytes", "2000000"))
        yield "replace, described", show("retention.ms", "max.message.bytes")
        yield "replace by one", swap(("retention.ms", "7200001"))
        yield "replace by one, described", show("retention.ms", "max.message.bytes")
        yield "replace, null value", swap(("retention.ms", None))
        yield "replace, unknown key", swap(("no.such.key", "1"))
        yield "replace, bad value", swap(("retention.ms", "-7"))
        yield "replace, unknown topic", swap(("retention.ms", "1"), name="no-such-topic")
        yield "replace, key twice", swap(("retention.ms", "8"), ("retention.ms", "9"))
        yield "replace, key twice, described", show("retention.ms")
        yield "replace by nothing", swap()
        yield "replace by nothing, described", show("retention.ms")

        broker = {"kind": BROKER, "name": "1"}
        default = {"kind": BROKER, "name": ""}
        yield "describe broker", show("message.max.bytes", "log.retention.ms", "log.segment.bytes", **broker)
        yield "describe all brokers", show("message.max.bytes", **default)
        yield "describe another broker", show("message.max.bytes", kind=BROKER, name="7")
        yield "describe no broker", show("message.max.bytes", kind=BROKER, name="x")
        yield "broker: set", change(("message.max.bytes", SET, "3000000"), **broker)
        yield "broker: set, described", show("message.max.bytes", **broker)
        yield "broker: set, topic described", show("max.message.bytes")
        yield "all brokers: set", change(("message.max.bytes", SET, "2500000"), **default)
        yield "all brokers: set, described", show("message.max.bytes", **default)
        yield "broker: both set, described", show("message.max.bytes", **broker)
        yield "broker: both set, topic described", show("max.message.bytes")
        yield "all brokers: nothing else described", sorted(describe(peer, [(BROKER, "", None)])[0][4])
        yield "broker: delete", change(("message.max.bytes", DELETE, None), **broker)
        yield "broker: deleted, described", show("message.max.bytes", **broker)
        yield "all brokers: replace by nothing", swap(**default)
        yield "all brokers: deleted, described", show("message.max.bytes", **broker)
        yield "broker: read-only key", change(("node.id", SET, "9"), **broker)
        yield "broker: read-only key, as is", change(("node.id", SET, "1"), **broker)
        yield "broker: another read-only key", change(("auto.create.topics.enable", SET, "false"), **broker)
        yield "all brokers: read-only key", change(("delete.topic.enable", SET, "false"), **default)
        yield "broker: read-only key deleted", change(("num.partitions", DELETE, None), **broker)
        yield "broker: unknown key", change(("no.such.key", SET, "1"), **broker)
        yield "broker: unknown key, described", show("no.such.key", **broker)
        yield "broker: unknown key, deleted", change(("no.such.key", DELETE, None), **broker)
        yield "broker: bad value", change(("message.max.bytes", SET, "many"), **broker)
        yield "broker: topic's key", change(("max.message.bytes", SET, "1"), **broker)
        yield "broker: another broker", change(("message.max.bytes", SET, "1"), kind=BROKER, name="7")
        yield "broker: no broker", change(("message.max.bytes", SET, "1"), kind=BROKER, name="x")
        yield "broker: per broker only key for all", change(("listeners", SET, "PLAINTEXT://:1"), **default)
        yield "broker: validate only", change(("message.max.bytes", SET, "3000000"), validate_only=True, **broker)
        yield "broker: validate only, described", show("message.max.bytes", **broker)
        for key, value in [
            ("log.retention.ms", "100000"), ("log.retention.bytes", "100000000"), ("log.roll.ms", "60000"),
            ("log.roll.jitter.ms", "10"), ("log.segment.bytes", "2000000"), ("log.index.interval.bytes", "8192"),
            ("log.message.timestamp.type", "LogAppendTime"), ("log.message.timestamp.before.max.ms", "100000"),
            ("log.message.timestamp.after.max.ms", "100000"), ("max.connections", "100"), ("max.connections.per.ip", "100"),
            ("producer.id.expiration.ms", "100000"), ("log.retention.check.interval.ms", "1000"), ("fetch.max.bytes", "100000"),
            ("connections.max.idle.ms", "100000"), ("log.retention.hours", "10"), ("min.insync.replicas", "1"),
            ("num.io.threads", "8"), ("compression.type", "producer"), ("log.cleanup.policy", "delete"),
            ("unclean.leader.election.enable", "false"), ("background.threads", "10"), ("log.cleaner.threads", "1"),
            ("log.cleaner.backoff.ms", "1000"), ("log.cleaner.dedupe.buffer.size", "100000000"),
            ("log.cleaner.io.max.bytes.per.second", "1000000.0"), ("log.cleaner.min.cleanable.ratio", "0.4"),
            ("log.cleaner.delete.retention.ms", "1000"), ("log.cleaner.min.compaction.lag.ms", "1"),
            ("log.cleaner.max.compaction.lag.ms", "100000000"), ("log.cleaner.enable", "false"),
            ("log.cleaner.io.buffer.size", "1048576"), ("log.cleaner.io.buffer.load.factor", "0.8"),
        ]:
            yield f"broker: {key}", change((key, SET, value), **broker)
            yield f"broker: {key}, described", show(key, **broker)
            yield f"all brokers: {key}", change((key, SET, value), **default)
            yield f"broker: {key}, deleted", change((key, DELETE, None), **broker)
            yield f"all brokers: {key}, deleted", change((key, DELETE, None), **default)
        yield "logger: describe", describe(peer, [(BROKER_LOGGER, "1", [])])[0][0]
        yield "logger: describe of all", describe(peer, [(BROKER_LOGGER, "", [])])[0][0]
        yield "logger: change", change(("no.such.logger", SET, "WARN"), kind=BROKER_LOGGER, name="1")
        yield "logger: replace", swap(("kafka", "WARN"), kind=BROKER_LOGGER, name="1")
        yield "metrics: describe", show(kind=CLIENT_METRICS, name="nobody")
        yield "metrics: change", change(("no.such", SET, "1"), kind=CLIENT_METRICS, name="nobody")
        yield from group_cases(change, swap, show)
        yield "group: set for a list", change(("consumer.heartbeat.interval.ms", SET, "7000"), kind=GROUP, name="listed")
        yield from resource_cases(address, settles)
        yield "group: no more in a list", change(("consumer.heartbeat.interval.ms", DELETE, None), kind=GROUP, name="listed")
        time.sleep(settles)
        yield "resources: no group is left", groups_with_configs(address)
        for kind in (0, 1, 3, 64, -5):
            yield f"describe resource of type {kind}", describe_or_error(address, kind, NAME)
            yield f"change resource of type {kind}", change_or_error(address, kind, NAME)

        yield "epochs", epochs(peer, NAME, [(0, -1, 0), (0, -1, 5), (0, -1, -1), (7, -1, 0)])
        yield "epochs of an unknown topic", epochs(peer, "no-such-topic", [(0, -1, 0)])
        for part in range(3):
            assert peer.produce(NAME, 1, wire.batch([wire.record(b"k", b"v")]))[0] == 0, part
        yield "epochs, negative", epochs(peer, NAME, [(1, -1, -2)])
        # The epoch in which the records were written: a first term is 1 here, and 0 there.
        own = next(epoch for epoch in range(10) if epochs(peer, NAME, [(1, -1, epoch)])[0][3] == 3)
        found = epochs(peer, NAME, [(1, -1, own), (1, own, own), (1, 1000, own), (1, -1, 1000)])
        yield "epochs with records", [(error, index, epoch - own if epoch >= 0 else epoch, end)
                                      for error, index, epoch, end in found]
        yield "quorum", quorum(peer)
        yield "quorum of another partition", quorum(peer, partition=1)
        yield "quorum of another topic", quorum(peer, topic=NAME)
    yield from partition_answers.cases(address, texts, settles)
    yield from log_dir_answers.cases(address, settles)
    yield from page_answers.cases(address, settles)
    yield from timeout_answers.cases(address, settles)


def compaction_cases(peer, change, show):
    """A topic becomes a compacted one, and what it takes then; at the end it is as before."""
    key, other = wire.record(b"k", b"v"), wire.record(b"k", None, offset_delta=1)
    without = [wire.record(None, b"v", offset_delta=delta) for delta in range(2)]
    yield "compaction: record without key before", produce_errors(peer, [without[0]])
    for number, policy in enumerate(["compact", "compact,delete", "delete, compact", "", "compress", "compact,compact", "delete"]):
        yield f"compaction: policy {number}", change(("cleanup.policy", SET, policy))
        yield f"compaction: policy {number}, described", show("cleanup.policy", "retention.ms")
    yield "compaction: append", change(("cleanup.policy", APPEND, "compact"))
    yield "compaction: appended, described", show("cleanup.policy")
    yield "compaction: subtract", change(("cleanup.policy", SUBTRACT, "delete"))
    yield "compaction: subtracted, described", show("cleanup.policy")
    yield "compaction: records with keys", produce_errors(peer, [key, other])
    yield "compaction: record without key", produce_errors(peer, [without[0]])
    yield "compaction: two without keys", produce_errors(peer, without)
    yield "compaction: second of two without key", produce_errors(peer, [key, without[1]])
    yield "compaction: empty key", produce_errors(peer, [wire.record(b"", b"v")])
    for name, good, bad in [
        ("min.cleanable.dirty.ratio", "0.25", "1.5"), ("min.compaction.lag.ms", "7", "-1"), ("max.compaction.lag.ms", "70", "0"),
        ("delete.retention.ms", "0", "-1"),
    ]:
        yield f"compaction: {name}", change((name, SET, good))
        yield f"compaction: {name}, described", show(name)
        yield f"compaction: bad {name}", change((name, SET, bad))
    yield "compaction: least lag above the largest", change(("min.compaction.lag.ms", SET, "71"))
    yield "compaction: largest lag below the least", change(("max.compaction.lag.ms", SET, "6"))
    names = ["cleanup.policy", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms", "delete.retention.ms"]
    yield "compaction: all deleted", change(*((name, DELETE, None) for name in names))
    yield "compaction: all deleted, described", show(*names)


def produce_errors(peer, records):
    """Produce v8: (error, [index of each record at fault, whether it has a text], whether there is a text)."""
    reader = peer.call(wire.PRODUCE, 8, wire.produce_body(NAME, 0, wire.batch(records)))
    reader.take(">i")
    reader.string()
    reader.take(">i")
    _, error, _, _, _ = reader.take(">ihqqq")
    faults = reader.array(lambda: (reader.take(">i"), bool(reader.string())))
    return error, faults, bool(reader.string())


def describe_or_error(address, kind, name):
    try:
        with wire.Connection(address) as peer:
            return describe(peer, [(kind, name, [])])[0][0]
    except wire.Closed:
        return "closed"


def change_or_error(address, kind, name):
    try:
        with wire.Connection(address) as peer:
            return incremental(peer, [(kind, name, [("retention.ms", SET, "1")])])[0][0]
    except wire.Closed:
        return "closed"


def tool(address, name, *arguments):
    """Output of a tool of the jars, whatever its exit code."""
    script = os.path.join(HERE, "kafka-peer.sh")
    done = subprocess.run(
        [script, "tool", name, "--bootstrap-server", address, *arguments], capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def group_cases(change, swap, show):
    group = {"kind": GROUP, "name": "nobody"}
    session, heartbeat, assignment = (
        "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms")
    shown = (session, heartbeat, assignment)
    yield "group: describe", show(*shown, **group)
    yield "group: describe without a name", show(session, kind=GROUP, name="")
    yield "group: unknown key asked", show("no.such", **group)
    yield "group: set", change((heartbeat, SET, " 7000 "), (session, SET, "50000"), **group)
    yield "group: set, described", show(*shown, **group)
    for name, key, value in [
        ("unknown key", "no.such", "1"), ("no number", heartbeat, "soon"), ("empty", heartbeat, ""), ("too short", heartbeat, "4999"),
        ("too long", heartbeat, "15001"), ("session too short", session, "44999"), ("session too long", session, "60001"),
        ("assignment too long", assignment, "15001"), ("assignment below 0", assignment, "-1"), ("at a bound", heartbeat, "15000"),
        ("assignment", assignment, "0"),
    ]:
        yield f"group: {name}", change((key, SET, value), **group)
    yield "group: append", change((heartbeat, APPEND, "1"), **group)
    yield "group: null value", change((heartbeat, SET, None), **group)
    yield "group: without a name", change((heartbeat, SET, "7000"), kind=GROUP, name="")
    yield "group: one bad of two", change((heartbeat, SET, "8000"), (session, SET, "1"), **group)
    yield "group: validate only", change((heartbeat, SET, "8000"), validate_only=True, **group)
    yield "group: changed, described", show(*shown, **group)
    yield "group: delete", change((heartbeat, DELETE, None), ("no.such", DELETE, None), **group)
    yield "group: delete, described", show(*shown, **group)
    yield "group: replace", swap((assignment, "2000"), **group)
    yield "group: replace, described", show(*shown, **group)
    yield "group: replace by nothing", swap(**group)
    yield "group: replace by nothing, described", show(*shown, **group)
    yield "group, not built: share", change(("share.heartbeat.interval.ms", SET, "6000"), **group)
    yield "group, not built: offload", change(("consumer.assignor.offload.enable", SET, "false"), **group)


def tool_cases(address):
    """Yields (name, what is wrong or None): kafka-configs.sh and kafka-metadata-quorum.sh do their work against ours."""
    topic = ["--entity-type", "topics", "--entity-name", NAME]
    broker = ["--entity-type", "brokers", "--entity-name", "1"]
    group = ["--entity-type", "groups", "--entity-name", "readers"]
    for name, wanted, command in [
        ("configs: set", "Completed updating config", ["ConfigCommand", "--alter", *topic, "--add-config", "retention.ms=60000,segment.ms=7"]),
        ("configs: describe", "retention.ms=60000", ["ConfigCommand", "--describe", *topic]),
        ("configs: describe all", "DEFAULT_CONFIG:message.max.bytes=1048588", ["ConfigCommand", "--describe", "--all", *topic]),
        ("configs: bad value", "'soon'", ["ConfigCommand", "--alter", *topic, "--add-config", "retention.ms=soon"]),
        ("configs: delete", "Completed updating config", ["ConfigCommand", "--alter", *topic, "--delete-config", "retention.ms,segment.ms"]),
        ("configs: set of a broker", "Completed updating config", ["ConfigCommand", "--alter", *broker, "--add-config", "log.retention.ms=60000"]),
        ("configs: describe of a broker", "log.retention.ms=60000", ["ConfigCommand", "--describe", *broker]),
        ("configs: read-only of a broker", "cannot change while the broker runs", [
            "ConfigCommand", "--alter", *broker, "--add-config", "node.id=3"]),
        ("configs: set of a group", "Completed updating config", [
            "ConfigCommand", "--alter", *group, "--add-config", "consumer.heartbeat.interval.ms=7000"]),
        ("configs: describe of a group", "consumer.heartbeat.interval.ms=7000", ["ConfigCommand", "--describe", *group]),
        ("configs: describe of all groups", "Dynamic configs for group readers are:", ["ConfigCommand", "--describe", "--entity-type", "groups"]),
        ("metrics: list", "", ["ClientMetricsCommand", "--list"]),
        ("configs: delete of a group", "Completed updating config", [
            "ConfigCommand", "--alter", *group, "--delete-config", "consumer.heartbeat.interval.ms"]),
        ("partitions: more", "", ["TopicCommand", "--alter", "--topic", NAME, "--partitions", "5"]),
        ("partitions: described", "PartitionCount: 5", ["TopicCommand", "--describe", "--topic", NAME]),
        ("partitions: fewer", "never fewer again", ["TopicCommand", "--alter", "--topic", NAME, "--partitions", "4"]),
        ("log dirs: of a topic", f'"partition":"{NAME}-4"', ["LogDirsCommand", "--describe", "--topic-list", NAME]),
        ("log dirs: everything", '"error":null', ["LogDirsCommand", "--describe"]),
        ("topics: described in pages", "Topic: page-answers-6\tPartition: 299", ["TopicCommand", "--describe"]),
        ("topics: one described", "PartitionCount: 300", ["TopicCommand", "--describe", "--topic", "page-answers-3"]),
        ("quorum: status", "LeaderEpoch:            1", ["MetadataQuorumCommand", "describe", "--status"]),
        ("quorum: replication", "Leader", ["MetadataQuorumCommand", "describe", "--replication"]),
        ("features: describe", f"Feature: {feature_answers.FORMATS[1]}", ["FeatureCommand", "describe"]),
        ("features: upgrade", "was upgraded to 4", ["FeatureCommand", "upgrade", "--feature", f"{feature_answers.FORMATS[1]}=4"]),
        ("features: downgrade", "it would lose metadata", [
            "FeatureCommand", "downgrade", "--feature", f"{feature_answers.FORMATS[1]}=1"]),
    ]:
        said = tool(address, *command)
        yield name, None if wanted in said else f"{wanted!r} is not in {said[-600:]!r}"


def compare(binary):
    folder = tempfile.mkdtemp(prefix="ringlog-admin-answers-")
    ours = brokers.Ringlog(binary, os.path.join(folder, "data"), shards=2)
    theirs = brokers.Kafka(os.path.join(HERE, "kafka-peer.sh"))
    same = differ = failed = 0
    try:
        ours.start()
        theirs.start()
        for (name, our), (_, their) in zip(cases(ours.address), cases(theirs.address, settles=KAFKA_SETTLES_SECONDS), strict=True):
            if our == their:
                same += 1
            elif is_known(name):
                differ += 1
            else:
                failed += 1
                print(f"FAILED  {name}\n  ours   {json.dumps(our)}\n  Kafka  {json.dumps(their)}", flush=True)
        for name, trouble in tool_cases(ours.address):
            same += trouble is None
            failed += trouble is not None
            if trouble:
                print(f"FAILED  {name}: {trouble}", flush=True)
    finally:
        ours.close()
        theirs.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{same} as Kafka, {differ} known to differ, {failed} failed")
    return 0 if failed == 0 and same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--ringlog", metavar="BINARY")
    which.add_argument("--bootstrap", metavar="HOST:PORT")
    parser.add_argument("--texts", action="store_true", help="error texts too")
    args = parser.parse_args()
    if args.ringlog:
        return compare(args.ringlog)
    for name, answer in cases(args.bootstrap, args.texts):
        print(f"{name}: {json.dumps(answer)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
