"""Topic names, CreateTopics, Metadata."""
import time

import wire

from bad_input.context import case, fresh_client, INT32_MAX, SERVED_WITHIN_SECONDS, Unexpected


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
