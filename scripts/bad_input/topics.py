"""Topic names, CreateTopics, Metadata, DescribeTopicPartitions."""
import struct
import time

import wire

from bad_input.context import case, fresh_client, INT32_MAX, SERVED_WITHIN_SECONDS, TOPIC, Unexpected

DESCRIBE_TOPIC_PARTITIONS = 75


BAD_NAMES = [b"", b".", b"..", b"a/b", b"a\0b", b"x" * 250, "größe".encode(), b"a b", b"../../etc/passwd"]


@case("17 topic names")
def topic_names(context):
    with context.connect() as peer:
        for name in BAD_NAMES:
            reader = peer.call(wire.METADATA, 4, wire.array([wire.string(name)]) + b"\1")
            reader.take(">i")
            reader.array(lambda reader=reader: (reader.take(">i"), reader.string(), reader.take(">i"), reader.string()))
            reader.string()
            _, count, error = reader.take(">iih")
            if (count, error) != (1, 17):
                raise Unexpected(f"Metadata {name!r}: {count} topics, error {error}, expected 17")
        answers = peer.create_topics([(name, 1, 1, [], {}) for name in BAD_NAMES])
        wrong = {name: answer for name, answer in answers.items() if answer[0] != 17}
        if wrong or len(answers) != len(BAD_NAMES):
            raise Unexpected(f"CreateTopics: {wrong or len(answers)}")
        if any(name.encode() in BAD_NAMES for name in peer.metadata(None)):
            raise Unexpected("a topic with a bad name was created")


@case("18 CreateTopics")
def create_topics(context):
    wanted = {
        "partitions-0": ((0, 1, [], {}), {37}), "partitions--5": ((-5, 1, [], {}), {37}),
        "partitions-10M": ((10_000_000, 1, [], {}), {37, 44, 89}), "partitions-max": ((INT32_MAX, 1, [], {}), {37, 44, 89}),
        "factor-0": ((1, 0, [], {}), {38}), "factor-32767": ((1, 32767, [], {}), {38}), "factor--2": ((1, -2, [], {}), {38}),
        "assignment": ((-1, -1, [(0, [99])], {}), {39}), "assignment-gap": ((-1, -1, [(5, [1])], {}), {39}),
        "assignment-twice": ((-1, -1, [(0, [1, 1])], {}), {39}),
        "config-unknown": ((1, 1, [], {"no.such.key": "1"}), {40}), "config-bad": ((1, 1, [], {"retention.ms": "soon"}), {40}),
        "config-range": ((1, 1, [], {"segment.bytes": "-1"}), {40}),
    }
    for name, (settings, allowed) in wanted.items():
        begin = time.monotonic()
        with context.connect() as peer:
            error, _ = peer.create_topics([(name, *settings)])[name]
        if error not in allowed:
            raise Unexpected(f"{name}: error {error}, expected one of {sorted(allowed)}")
        if time.monotonic() - begin > 2:
            raise Unexpected(f"{name}: took {time.monotonic() - begin:.1f} s")
    with context.connect() as peer:
        made = set(peer.metadata(None)) & set(wanted)
        if made:
            raise Unexpected(f"created all the same: {made}")


@case("20 Metadata for 50,000 unknown names", memory_mib=64)
def many_names(context):
    body = wire.array([wire.string(f"unknown-{number}") for number in range(50_000)]) + b"\0"
    with context.connect(20.0) as peer:
        peer.send(wire.request(wire.METADATA, 4, body))
        took = fresh_client(context.address)
        try:
            peer.receive_frame()
        except wire.Closed:
            pass
    if took > SERVED_WITHIN_SECONDS:
        raise Unexpected(f"another client waited {took:.1f} s")


def pages(names=(), limit=2000, cursor=b"\xff"):
    """DescribeTopicPartitions v0; the cursor as it is on the wire."""
    compact = [wire.uvarint(len(name) + 1) + name + b"\0" for name in names]
    return wire.uvarint(len(compact) + 1) + b"".join(compact) + struct.pack(">i", limit) + cursor + b"\0"


def cursor(name, partition):
    return b"\1" + wire.uvarint(len(name) + 1) + name + struct.pack(">i", partition) + b"\0"


@case("75 DescribeTopicPartitions: bodies that promise more than they hold")
def short_pages(context):
    whole = pages([TOPIC.encode()], cursor=cursor(b"x", 0))
    bodies = [b"", b"\xff" * 64, b"\xff\xff\xff\xff\x0f" * 3, b"\0", pages(cursor=b"\1"), pages(cursor=b"\1\0" + b"\0" * 6),
              *(whole[:length] for length in range(1, len(whole)))]
    for body in bodies:
        if not context.is_kafka:
            context.closes(wire.request(DESCRIBE_TOPIC_PARTITIONS, 0, b"\0" + body), f"body {body!r}")


@case("76 DescribeTopicPartitions: cursors that lead nowhere, and 50,000 unknown names", memory_mib=64)
def pages_from_nowhere(context):
    unknown = [f"unknown-{number}".encode() for number in range(50_000)]
    for what, body in [
        ("a partition below 0", pages(cursor=cursor(TOPIC.encode(), -1))),
        ("the last partition there may be", pages(cursor=cursor(TOPIC.encode(), INT32_MAX), limit=INT32_MAX)),
        ("a topic that was not asked for", pages([TOPIC.encode()], cursor=cursor(b"y", 3))),
        ("a bad name", pages(cursor=cursor(b"a\0b/" * 1000, 1), limit=-INT32_MAX)),
        ("names that are none", pages(BAD_NAMES, limit=0)), ("unknown names", pages(unknown)), ("unknown names, a cursor", pages(unknown, cursor=cursor(unknown[7], 9))),
    ]:
        with context.connect(20.0) as peer:
            begin = time.monotonic()
            peer.send(wire.request(DESCRIBE_TOPIC_PARTITIONS, 0, b"\0" + body))
            if len(peer.receive_frame()) < 8:
                raise Unexpected(f"{what}: an answer without a body")
            if time.monotonic() - begin > 2:
                raise Unexpected(f"{what}: took {time.monotonic() - begin:.1f} s")
