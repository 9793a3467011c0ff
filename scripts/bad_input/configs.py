"""Requests about configs, epochs, the quorum and sizes: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, OffsetForLeaderEpoch, DescribeQuorum,
DescribeLogDirs."""
import struct

import wire

from bad_input.context import case, INT32_MAX, Others, TOPIC, Unexpected

OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS, ALTER_CONFIGS, DESCRIBE_LOG_DIRS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_QUORUM = 23, 32, 33, 35, 44, 55
RESOURCES_MAX = 10_000


def changes(steps, kind=2, name=TOPIC):
    """IncrementalAlterConfigs v0. Steps: (key, operation, value)."""
    items = [wire.string(key) + struct.pack(">b", operation) + wire.string(value) for key, operation, value in steps]
    return wire.array([struct.pack(">b", kind) + wire.string(name) + wire.array(items)]) + b"\0"


def altered(peer, body):
    """Errors of the resources."""
    reader = peer.call(INCREMENTAL_ALTER_CONFIGS, 0, body)
    reader.take(">i")
    return [error for error, _, _, _ in reader.array(
        lambda: (reader.take(">h"), reader.string(), reader.take(">b"), reader.string()))]


@case("60 bodies that promise more than they hold")
def short_bodies(context):
    for api, version in [(OFFSET_FOR_LEADER_EPOCH, 3), (DESCRIBE_CONFIGS, 1), (DESCRIBE_CONFIGS, 4), (ALTER_CONFIGS, 0),
                         (ALTER_CONFIGS, 2), (INCREMENTAL_ALTER_CONFIGS, 0), (INCREMENTAL_ALTER_CONFIGS, 1), (DESCRIBE_QUORUM, 2), (DESCRIBE_LOG_DIRS, 5)]:
        for body in (b"", struct.pack(">i", INT32_MAX), b"\0" + b"\xff" * 5, b"\0" + b"\xff\xff\xff\xff\x0f" * 3, b"\xff" * 64):
            if not context.is_kafka:
                context.closes(wire.request(api, version, body), f"API {api} version {version}, body {body!r}")


@case("61 bad changes of configs", kafka="takes unknown configs of brokers, and fails an unknown operation with -1")
def bad_changes(context):
    cases = {
        "unknown key": ([("no.such.key", 0, "1")], 40), "bad value": ([("retention.ms", 0, "soon")], 40),
        "a value of 30,000 digits": ([("retention.ms", 0, "9" * 30_000)], 40), "null": ([("retention.ms", 0, None)], 42),
        "control characters": ([("reten\0tion\n.ms", 0, "\x1b[2J")], 40), "unknown operation": ([("retention.ms", 77, "1")], 42),
        "one key a thousand times": ([("retention.ms", 0, "1")] * 1000, 42),
        "a list of 10,000 items": ([("cleanup.policy", 2, ",".join(["x"] * 10_000))], 40),
    }
    with context.connect() as peer:
        for what, (steps, expected) in cases.items():
            errors = altered(peer, changes(steps))
            if errors != [expected]:
                raise Unexpected(f"{what}: {errors}, expected {expected}")
        for kind, name, expected in [(2, "", 42), (2, "no-such-topic", 3), (2, "a b", 17), (4, "x", 42), (4, str(INT32_MAX), 42), (99, "x", 42)]:
            errors = altered(peer, changes([("retention.ms", 0, "1")], kind, name))
            if errors != [expected]:
                raise Unexpected(f"resource {kind} {name!r}: {errors}, expected {expected}")


@case("62 more resources than a request may name", memory_mib=96, kafka="answers them all")
def many_resources(context):
    count = RESOURCES_MAX + 1
    asked = struct.pack(">b", 2) + wire.string(TOPIC) + struct.pack(">i", -1)
    body = wire.array([asked] * count) + b"\1"
    with context.connect(20.0) as peer:
        peer.send(wire.request(DESCRIBE_CONFIGS, 1, body))
        answer = peer.receive_frame()
        if len(answer) > 2 * len(body) + 4096:
            raise Unexpected(f"DescribeConfigs of {len(body)} bytes is answered with {len(answer)}")
        step = struct.pack(">b", 2) + wire.string(TOPIC) + wire.array([])
        errors = altered(peer, wire.array([step] * count) + b"\0")
        if set(errors) != {42} or len(errors) != count:
            raise Unexpected(f"{len(errors)} answers, errors {set(errors)}")


@case("63 epochs that nobody had")
def bad_epochs(context):
    for current, epoch, allowed in [(INT32_MAX, 0, {75}), (-1, INT32_MAX, {0}), (-(2**31), -(2**31), {0})]:
        body = struct.pack(">i", -1) + wire.array([wire.string(TOPIC) + wire.array([struct.pack(">iii", 1, current, epoch)])])
        with context.connect() as peer:
            reader = peer.call(OFFSET_FOR_LEADER_EPOCH, 3, body)
            reader.take(">ii")
            reader.string()
            _, error, _, _, end = reader.take(">ihiiq")
            if error not in allowed:
                raise Unexpected(f"current {current}, epoch {epoch}: error {error}, end {end}, expected one of {allowed}")


def sized(peer, topics):
    """DescribeLogDirs v1 of topics as bytes: names and partitions of the answer."""
    reader = peer.call(DESCRIBE_LOG_DIRS, 1, topics)
    reader.take(">i")
    found = []
    reader.array(lambda: (reader.take(">h"), reader.string(), reader.array(lambda: (found.append(reader.string()), found.extend(
        reader.array(lambda: reader.take(">iqqb")[0]))))))
    return found


@case("75 sizes of partitions asked for over and over", memory_mib=96, kafka="closes the connection, or does not answer in time")
def sizes_again(context):
    over_and_over = wire.string(TOPIC) + struct.pack(">i", 2_500_000) + bytes(10_000_000)
    with Others(context.address), context.connect(20.0) as peer:
        for what, topics in [
            ("one partition", wire.array([over_and_over])),
            ("one topic", wire.array([wire.string(TOPIC) + wire.array([struct.pack(">i", 0)])] * 200_000)),
            ("partitions that are not there", wire.array([wire.string(TOPIC) + wire.array(
                [struct.pack(">i", index) for index in (0, -1, INT32_MAX, -(2**31), 999_999)])] + [wire.string("bad/name") + wire.array([])])),
        ]:
            found = sized(peer, topics)
            if found != [TOPIC, 0]:
                raise Unexpected(f"{what}: {found[:10]}, {len(found)} in all")
