"""Frames, headers, versions: what stands before any request is understood."""
import random
import struct
import time

import wire

from bad_input.context import case, INT32_MAX, MIB, TOPIC, Unexpected


@case("1 frame size")
def frame_sizes(context):
    for size in (-1, 0, -(2**31), INT32_MAX, 100 * MIB + 1, 1 << 30):
        context.closes(struct.pack(">i", size) + b"\0" * 16, f"size {size}")


@case("2 short frames")
def short_frames(context):
    for length in range(1, 8):
        context.closes(wire.frame(b"\0" * length), f"frame of {length} bytes")
    context.closes(b"\0\0", "half a size", finish=True)
    context.closes(struct.pack(">i", 1000) + b"\0\x12\0\0", "cut body", finish=True)


@case("3 other protocols")
def other_protocols(context):
    random_bytes = b"\x7f" + random.Random(3).randbytes(4095)
    for what, data in {
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        "SSH": b"SSH-2.0-OpenSSH_9.0\r\n", "zeros": bytes(4096), "0xff": b"\xff" * 4096, "noise": random_bytes,
    }.items():
        context.closes(data, what)


@case("4 slow and joined requests")
def slow_and_joined(context):
    with context.connect() as peer:
        for byte in wire.request(wire.API_VERSIONS, 0, b"", 7):
            peer.send(bytes([byte]))
            time.sleep(0.002)
        if struct.unpack_from(">i", peer.receive_frame())[0] != 7:
            raise Unexpected("byte by byte: wrong correlation id")
        peer.send(b"".join(wire.request(wire.API_VERSIONS, 0, b"", number) for number in (8, 9)))
        got = [struct.unpack_from(">i", peer.receive_frame())[0] for _ in range(2)]
        if got != [8, 9]:
            raise Unexpected(f"two in one segment: answered {got}")


def valid_requests():
    good = wire.batch([wire.record(b"k", b"v")])
    return [
        (wire.API_VERSIONS, 0, b""), (wire.METADATA, 1, wire.array([wire.string(TOPIC)])),
        (wire.PRODUCE, 7, wire.produce_body(TOPIC, 2, good)), (wire.FETCH, 4, wire.fetch_body([(TOPIC, 0, 0, 4096)])),
        (wire.LIST_OFFSETS, 1, wire.list_offsets_body(TOPIC, 0, -1)),
        (wire.CREATE_TOPICS, 2, wire.create_topics_body([("mutated", 1, 1, [], {})])[:-1] + b"\1"),
        (wire.INIT_PRODUCER_ID, 0, wire.string(None) + struct.pack(">i", 1000)),
    ]


@case("6 mutated requests")
def mutated(context):
    rng = random.Random(6)
    for round_number in range(200):
        api, version, body = rng.choice(valid_requests())
        data = bytearray(wire.request(api, version, body))
        # The size stays true, so that the broker looks inside. Bytes behind the correlation id change.
        for _ in range(rng.randrange(1, 6)):
            if len(data) > 13:
                data[rng.randrange(12, len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        context.closes_or_answers(bytes(data), f"mutation {round_number} of api {api}")


@case("7 unknown api or version")
def unknown_api(context):
    for api in (9999, -1, 32767):
        context.closes(wire.request(api, 0, b""), f"api {api}")
    for api, version in ((wire.METADATA, 32000), (wire.PRODUCE, -1), (wire.FETCH, 32000), (wire.FETCH, -1), (wire.PRODUCE, 1)):
        context.closes(wire.request(api, version, bytes(32)), f"api {api} version {version}")


@case("8 ApiVersions from the future")
def future_api_versions(context):
    with context.connect() as peer:
        body = b"\0" + b"\x08ringlog\x021" + b"\0"
        header = struct.pack(">hhi", wire.API_VERSIONS, 32000, 5) + wire.string("future")
        peer.send(wire.frame(header + body))
        reader = wire.Reader(peer.receive_frame())
        correlation, error = reader.take(">ih")
        ranges = reader.array(lambda: reader.take(">hhh"))
        if (correlation, error) != (5, 35) or [key for key, _, _ in ranges] != [wire.API_VERSIONS]:
            raise Unexpected(f"correlation {correlation}, error {error}, list {ranges}")
        if reader.at != len(reader.data):
            raise Unexpected(f"{len(reader.data) - reader.at} bytes behind a version 0 body")
        peer.api_versions()


@case("9 client id")
def client_ids(context):
    for what, raw in {
        "length -2": struct.pack(">h", -2), "length 32767": struct.pack(">h", 32767), "null": struct.pack(">h", -1),
        "bad UTF-8": wire.string(b"\xff\xfe\x80"), "newline": wire.string(b"a\nlevel=error fake\x1b[31m\0"),
    }.items():
        context.closes_or_answers(wire.frame(struct.pack(">hhi", wire.API_VERSIONS, 0, 1) + raw), what)


@case("11 bytes behind the body")
def trailing_bytes(context):
    for api, version, body in valid_requests():
        context.closes_or_answers(wire.request(api, version, body + b"x" * 1000), f"api {api}")


@case("12 internal APIs")
def internal_apis(context):
    before = context.end()
    for api in (4, 5, 6, 7, 27, 52, 53, 54, 55, 56, 58, 59, 62, 63, 67, 70, 73, 82):
        for body in (b"", bytes(64)):
            context.closes_or_answers(wire.request(api, 0, body), f"api {api}")
    if context.end() != before:
        raise Unexpected("an internal request moved the log end")


@case("13 array counts that lie", memory_mib=16)
def array_counts(context):
    for count in (INT32_MAX, 1_000_000, -2):
        number = struct.pack(">i", count)
        for api, version, body in (
            (wire.METADATA, 1, number), (wire.PRODUCE, 7, wire.string(None) + struct.pack(">hi", -1, 1000) + number),
            (wire.FETCH, 4, struct.pack(">iiiib", -1, 0, 0, 1000, 0) + number),
            (wire.LIST_OFFSETS, 1, struct.pack(">i", -1) + number), (wire.CREATE_TOPICS, 2, number),
            (20, 1, number), (wire.METADATA, 1, struct.pack(">i", 1) + struct.pack(">h", 32767)),
            (wire.PRODUCE, 7, wire.string(None) + struct.pack(">hii", -1, 1000, 1) + wire.string(TOPIC) + number),
        ):
            data = wire.request(api, version, body)
            if count < 0:
                context.closes_or_answers(data, f"api {api} count {count}")
            else:
                context.closes(data, f"api {api} count {count}")
    for count in (2**32, 2**63):
        number = wire.uvarint(count)
        for api, version, body in (
            (wire.METADATA, 12, number), (wire.PRODUCE, 9, b"\0" + struct.pack(">hi", -1, 1000) + number),
            (wire.FETCH, 12, struct.pack(">iiiibii", -1, 0, 0, 1000, 0, 0, -1) + number), (wire.CREATE_TOPICS, 5, number),
        ):
            header = struct.pack(">hhi", api, version, 1) + wire.string("x") + b"\0"
            context.closes(wire.frame(header + body), f"api {api} compact count {count}")


@case("13 tagged fields that lie", memory_mib=16)
def tagged_fields(context):
    for tags in (wire.uvarint(2**31), wire.uvarint(1) + wire.uvarint(0) + wire.uvarint(2**31), b"\xff" * 20):
        header = struct.pack(">hhi", wire.METADATA, 12, 1) + wire.string("x") + tags
        context.closes(wire.frame(header), f"tags {tags[:8]!r}")


@case("15 requests of strangers")
def strangers(context):
    for api, version, body in (
        (12, 0, wire.string("g") + struct.pack(">i", 1) + wire.string("m")),
        (26, 0, wire.string("t") + struct.pack(">qhb", 1, 0, 1)), (11, 0, wire.string("") + struct.pack(">i", -1) + wire.string("")),
        (17, 1, wire.string("PLAIN")), (36, 0, struct.pack(">i", INT32_MAX)), (21, 0, struct.pack(">i", INT32_MAX)),
    ):
        context.closes_or_answers(wire.request(api, version, body), f"api {api}")
