#!/usr/bin/env python3
"""Bad input on the Kafka port: each case sends something that no client should, and states what must come back.

After each case a fresh client must be served within a second, and with --pid the broker's peak memory must stay within
the case's bound. Standard library only; runs against any broker:

  bad_inputs.py --bootstrap HOST:PORT [--pid PID]
  bad_inputs.py --ringlog BINARY                      our broker, started in a temporary folder
  bad_inputs.py --kafka                               Apache Kafka, whose known differences are listed and not counted
"""
import argparse
import os
import random
import resource
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "clients"))
import brokers  # noqa: E402
import wire  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SERVED_WITHIN_SECONDS = 1.0
CLOSED_WITHIN_SECONDS = 3.0
INT32_MAX, INT64_MAX, INT64_MIN = 2**31 - 1, 2**63 - 1, -(2**63)
MIB = 1 << 20
TOPIC = "bad-inputs"
CASES = []
# Kafka allocates what a frame promises and runs out of heap: not run against it.
RUINS_KAFKA = "allocates what a frame promises; its heap is gone after this case"


class Unexpected(Exception):
    """The broker did something else than required."""


# Kafka answers what its decoders throw with this; we must not.
UNKNOWN_SERVER_ERROR = -1


def case(row, memory_mib=48, kafka=None):
    """Registers a case. `row` names its kind, `memory_mib` bounds growth of peak memory, `kafka` says how Kafka differs."""
    def register(function):
        CASES.append((row, function, memory_mib, kafka))
        return function
    return register


class Context:
    """What the cases share: the address and the ways to ask."""

    def __init__(self, address, is_kafka=False):
        self.address, self.is_kafka = address, is_kafka

    def connect(self, timeout=10.0):
        return wire.Connection(self.address, timeout)

    def closes(self, data, what, finish=False):
        """The broker must close the connection, without an answer first."""
        with self.connect(CLOSED_WITHIN_SECONDS) as peer:
            try:
                peer.send(data)
                if finish:
                    peer.socket.shutdown(socket.SHUT_WR)
                answer = peer.socket.recv(64)
            except (wire.Closed, ConnectionError):
                return
            except TimeoutError:
                raise Unexpected(f"{what}: connection still open after {CLOSED_WITHIN_SECONDS:.0f} s") from None
            if answer:
                raise Unexpected(f"{what}: answered {answer!r} where a close is required")

    def closes_or_answers(self, data, what, timeout=10.0):
        """Either is fine, silence is not. Returns the answer's payload, or None after a close."""
        with self.connect(timeout) as peer:
            try:
                peer.send(data)
                peer.socket.shutdown(socket.SHUT_WR)
                return peer.receive_frame()
            except (wire.Closed, ConnectionError):
                return None
            except TimeoutError:
                raise Unexpected(f"{what}: neither close nor answer within {timeout:.0f} s") from None

    def end(self):
        with self.connect() as peer:
            return peer.list_offset(TOPIC, 0, -1)[2]

    def produce_gets(self, records, allowed, what, acks=-1, partition=0, close=False, timeout=30.0, transactional_id=None):
        """Produce must be answered with one of the allowed errors (0 only if listed), and the log end moves only with 0."""
        before = self.end()
        error = None
        with self.connect(timeout) as peer:
            try:
                error, base = peer.produce(TOPIC, partition, records, acks=acks, transactional_id=transactional_id)
            except wire.Closed:
                if not close:
                    raise Unexpected(f"{what}: connection closed, expected one of {sorted(allowed)}") from None
            except TimeoutError:
                raise Unexpected(f"{what}: no answer within {timeout:.0f} s") from None
        if error is not None and error not in allowed and not (self.is_kafka and error == UNKNOWN_SERVER_ERROR):
            raise Unexpected(f"{what}: error {error}, expected one of {sorted(allowed)}")
        after = self.end()
        if error == 0:
            if base != before or after <= before:
                raise Unexpected(f"{what}: accepted at {base}, log end {before} -> {after}")
        elif after != before:
            raise Unexpected(f"{what}: refused, but the log end moved {before} -> {after}")


def fresh_client(address):
    """Seconds until a new client has its versions, its metadata and a record."""
    begin = time.monotonic()
    with wire.Connection(address, 10.0) as peer:
        peer.api_versions()
        if peer.metadata([TOPIC])[TOPIC][0] != 0:
            raise Unexpected("a fresh client gets no metadata")
        _, _, error, _, records = peer.fetch([(TOPIC, 1, 0, 1 << 16)], max_wait_ms=0)[0]
        if error or not records:
            raise Unexpected(f"a fresh client gets no record: error {error}")
    return time.monotonic() - begin


def memory_kib(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1])
    return 0


# ---- frames and headers -------------------------------------------------------------------------------------------

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


# ---- topics -------------------------------------------------------------------------------------------------------

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


# ---- record batches -----------------------------------------------------------------------------------------------

def one(**lies):
    return wire.batch([wire.record(b"key", b"value")], **lies)


@case("21 CRC")
def crc(context):
    good = bytearray(one())
    good[-3] ^= 0x10
    context.produce_gets(one(crc_flip=1), {2}, "wrong CRC")
    context.produce_gets(bytes(good), {2}, "bit flipped")


@case("22 batch length")
def batch_length(context):
    true_length = len(one()) - 12
    for length in (-1, 0, 10, 48, INT32_MAX, true_length - 1, true_length + 1, -(2**31)):
        context.produce_gets(one(length=length), {2, 87}, f"batch length {length} of {true_length}")
    for cut in (1, 11, 12, 16, 17, 30, 60, len(one()) - 1):
        context.produce_gets(one()[:cut], {2, 87}, f"cut at {cut}")


@case("23 magic")
def magic(context):
    for number in (0, 1, 3, 127, -1):
        context.produce_gets(one(magic=number), {2, 43, 87}, f"magic {number}")


@case("24 record count")
def record_count(context):
    for count in (INT32_MAX, -1, 0, 2, -(2**31)):
        for last_delta in (count - 1 if count > -(2**31) else 0, 0):
            context.produce_gets(one(count=count, last_delta=max(-(2**31), last_delta)), {2, 87}, f"count {count}")
    two = [wire.record(b"a", b"1"), wire.record(b"b", b"2", offset_delta=1)]
    context.produce_gets(wire.batch(two, count=1), {2, 87}, "two records, count 1")
    context.produce_gets(wire.batch([wire.record(b"a", b"1") + b"junk"]), {2, 87}, "junk behind the records")
    context.produce_gets(wire.batch([], count=0, last_delta=-1), {2, 87}, "empty batch")
    context.produce_gets(b"", {2, 87}, "empty record set")
    if not context.is_kafka:  # Kafka 4.4 never answers a null record set.
        context.produce_gets(None, {2, 87}, "null record set")
    context.produce_gets(one() + one(), {2, 87}, "two batches")
    if not context.is_kafka:  # Kafka looks at the deltas of compressed batches only.
        context.produce_gets(wire.batch([two[1], two[0]]), {2, 87}, "offset deltas out of order")


@case("25 record lengths")
def record_lengths(context):
    body = b"\0\0\0" + wire.varint(1) + b"k" + wire.varint(1) + b"v" + b"\0"
    for what, raw in {
        "0": wire.varint(0) + body, "-1": wire.varint(-1) + body, "huge": wire.varint(INT32_MAX) + body,
        "endless varint": b"\xff" * 20 + body, "one short": wire.varint(len(body) - 1) + body,
        "one long": wire.varint(len(body) + 1) + body,
        "key length huge": wire.varint(len(body) + 4) + b"\0\0\0" + wire.varint(INT32_MAX) + b"kv\0",
        "key length -2": wire.varint(6) + b"\0\0\0" + wire.varint(-2) + wire.varint(0) + b"\0",
        "value length -2": wire.varint(6) + b"\0\0\0" + wire.varint(-1) + wire.varint(-2) + b"\0",
    }.items():
        # Kafka takes any negative length of a key or value for null.
        allowed = {0, 2, 87} if what.endswith("-2") else {2, 87}
        context.produce_gets(wire.batch([raw]), allowed, f"record length {what}")


@case("27 record headers")
def record_headers(context):
    start = b"\0\0\0" + wire.varint(-1) + wire.varint(1) + b"v"
    for what, tail in {
        "count -1": wire.varint(-1), "count max": wire.varint(INT32_MAX), "null key": wire.varint(1) + wire.varint(-1) + wire.varint(0),
        "key length huge": wire.varint(1) + wire.varint(INT32_MAX), "value length -2": wire.varint(1) + wire.varint(1) + b"h" + wire.varint(-2),
    }.items():
        body = start + tail
        # Kafka takes any negative length of a header value for null.
        allowed = {0, 2, 87} if what == "value length -2" else {2, 87}
        context.produce_gets(wire.batch([wire.varint(len(body)) + body]), allowed, f"headers: {what}")


@case("28 last offset delta")
def last_offset_delta(context):
    for delta in (INT32_MAX, -1, 1, 5, -(2**31)):
        context.produce_gets(one(last_delta=delta), {2, 87}, f"last offset delta {delta}")


@case("30 base offset of the client")
def base_offset(context):
    context.produce_gets(one(base_offset=2**40), {0, 87}, "base offset 2^40")
    context.produce_gets(one(base_offset=-5), {0, 87}, "base offset -5")


@case("31 attributes")
def attributes(context):
    for codec in (5, 6, 7):
        context.produce_gets(one(attributes=codec), {2, 76, 87}, f"codec {codec}")
    context.produce_gets(one(attributes=0x20), {87}, "control bit")
    context.produce_gets(one(attributes=0x30, producer_id=1, producer_epoch=0, base_sequence=0), {48, 53, 87}, "control and transactional bits")
    context.produce_gets(one(attributes=0x10), {48, 53, 87}, "transactional bit without a producer id")
    context.produce_gets(
        one(attributes=0x10, producer_id=77, producer_epoch=0, base_sequence=0), {47, 48, 49, 53, 59, 87, 120},
        "transactional bit without a transaction")


@case("32 producer fields", kafka="a producer id below -1 counts as none and is accepted")
def producer_fields(context):
    context.produce_gets(one(producer_id=-2, producer_epoch=0, base_sequence=0), {48, 49, 59, 87}, "producer id -2")
    context.produce_gets(one(producer_id=5, producer_epoch=0, base_sequence=-1), {45, 87}, "sequence -1")
    context.produce_gets(one(producer_id=5, producer_epoch=-1, base_sequence=0), {47, 48, 87}, "epoch -1")


@case("34 acks and partition")
def acks_and_partition(context):
    for acks in (2, -2, 32767):
        context.produce_gets(one(), {21}, f"acks {acks}", acks=acks)
    for partition in (-1, 999_999, INT32_MAX):
        context.produce_gets(one(), {3}, f"partition {partition}", partition=partition)


@case("34 acks=0 and an error")
def acks_zero_error(context):
    before = context.end()
    with context.connect(CLOSED_WITHIN_SECONDS) as peer:
        peer.produce(TOPIC, 0, one(crc_flip=1), acks=0)
        try:
            if peer.socket.recv(1):
                raise Unexpected("acks=0 was answered")
        except TimeoutError:
            raise Unexpected("acks=0 with a bad batch: connection still open") from None
        except ConnectionError:
            pass
    if context.end() != before:
        raise Unexpected("a bad batch moved the log end")


@case("35 batch of 5 MiB")
def large_batch(context):
    context.produce_gets(wire.batch([wire.record(b"k", bytes(5 * MIB))]), {10}, "5 MiB batch")


# ---- compression --------------------------------------------------------------------------------------------------

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def gzip(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def xerial(block):
    """The framing of snappy in Kafka."""
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


def snappy_bomb(size):
    """One snappy block that repeats a byte: copies of 64 bytes in three bytes each."""
    return wire.uvarint(size) + b"\0a" + b"\xfe\x01\x00" * ((size - 1) // 64)


def lz4_frame(blocks, descriptor=b"\x60\x40", checksum=b"\x82"):
    return b"\x04\x22\x4d\x18" + descriptor + checksum + b"".join(struct.pack("<I", len(block)) + block for block in blocks) + bytes(4)


def lz4_bomb(blocks):
    """Blocks of 64 KiB, each one literal and one long match."""
    length = 65535 - 1 - 4 - 15 - 5
    block = b"\x1fa\x01\x00" + b"\xff" * (length // 255) + bytes([length % 255]) + b"\x50aaaaa"
    return lz4_frame([block] * blocks)


def zstd_bomb(mib):
    """A frame of run-length blocks of 128 KiB, each four bytes."""
    header = b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x58"
    block = struct.pack("<I", (131072 << 3) | (1 << 1))[:3] + b"a"
    last = struct.pack("<I", (131072 << 3) | (1 << 1) | 1)[:3] + b"a"
    return header + block * (mib * 8 - 1) + last


def compressed(codec, payload, count=1):
    return wire.batch([], codec=codec, payload=payload, count=count)


@case("37 noise for each codec")
def noise(context):
    rng = random.Random(37)
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        for what, payload in {"noise": rng.randbytes(500), "nothing": b"", "one byte": b"\0", "zeros": bytes(100)}.items():
            context.produce_gets(compressed(codec, payload), {2, 87}, f"codec {codec}: {what}")


@case("38 gzip")
def gzip_cut(context):
    good = gzip(wire.record(b"key", b"value" * 100))
    context.produce_gets(compressed(GZIP, good[:-9]), {2, 87}, "gzip cut")
    context.produce_gets(compressed(GZIP, good[:-8] + b"\0\0\0\0" + good[-4:]), {2, 87}, "gzip trailer CRC", )


@case("40 lz4 and snappy sizes", memory_mib=32)
def declared_sizes(context):
    size = b"\x68\x40" + struct.pack("<Q", 2**62)
    context.produce_gets(compressed(LZ4, lz4_frame([b"\x10a"], size, b"\x00")), {2, 87}, "lz4 content size 2^62")
    context.produce_gets(
        compressed(LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + struct.pack("<I", 0x7FFFFFFF) + bytes(64)), {2, 87}, "lz4 block of 2 GiB")
    context.produce_gets(compressed(SNAPPY, wire.uvarint(2**32 - 1) + b"\0a"), {2, 87}, "snappy length 2^32")
    context.produce_gets(compressed(SNAPPY, b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, INT32_MAX)), {2, 87}, "snappy chunk 2 GiB")
    context.produce_gets(compressed(SNAPPY, b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, -1)), {2, 87}, "snappy chunk -1")


def bombs():
    return {
        "gzip to 300 MiB": compressed(GZIP, gzip(bytes(300 * MIB))), "snappy to 18 MiB": compressed(SNAPPY, xerial(snappy_bomb(18 * MIB))),
        "lz4 to 200 MiB": compressed(LZ4, lz4_bomb(200 * 16)), "zstd to 1 GiB": compressed(ZSTD, zstd_bomb(1024)),
    }


class Others:
    """A client that asks all the time; `worst` is its longest wait in seconds."""

    def __init__(self, address):
        self.address, self.worst, self.failure, self.stop = address, 0.0, None, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.is_set():
            try:
                self.worst = max(self.worst, fresh_client(self.address))
            except Exception as error:  # noqa: BLE001 - reported by the case
                self.failure = error
                return
            time.sleep(0.02)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.stop.set()
        self.thread.join()
        if failure[0] is None:
            if self.failure:
                raise Unexpected(f"another client failed: {self.failure}")
            if self.worst > SERVED_WITHIN_SECONDS:
                raise Unexpected(f"another client waited {self.worst:.1f} s")


@case("42 decompression bombs", memory_mib=384, kafka="decompresses on the request thread; others may wait")
def decompression_bombs(context):
    for what, data in bombs().items():
        with Others(context.address):
            context.produce_gets(data, {2, 10, 87, 76}, what, close=True, timeout=60.0)


@case("43 many records, many bombs", memory_mib=384, kafka="decompresses on the request thread; others may wait")
def many_records(context):
    record = wire.record(None, None)
    with Others(context.address):
        context.produce_gets(compressed(GZIP, gzip(record * 3_000_000), 3_000_000), {2, 10, 87}, "3,000,000 records", close=True, timeout=60.0)
    data = bombs()["zstd to 1 GiB"]
    with Others(context.address):
        threads = [threading.Thread(target=lambda: context.closes_or_answers(
            wire.request(wire.PRODUCE, 7, wire.produce_body(TOPIC, 0, data)), "zstd bomb", 60.0)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# ---- reads --------------------------------------------------------------------------------------------------------

@case("45 Fetch")
def fetches(context):
    with context.connect() as peer:
        for offset in (-1, INT64_MIN, INT64_MAX, 2**40):
            _, _, error, _, _ = peer.fetch([(TOPIC, 0, offset, 4096)])[0]
            if error != 1:
                raise Unexpected(f"offset {offset}: error {error}, expected 1")
        for topic, partition in ((TOPIC, -1), (TOPIC, 999_999), ("no-such-topic", 0)):
            _, _, error, _, _ = peer.fetch([(topic, partition, 0, 4096)])[0]
            if error != 3:
                raise Unexpected(f"{topic}-{partition}: error {error}, expected 3")
        for limit in (-1, 0, INT32_MAX):
            peer.fetch([(TOPIC, 1, 0, limit)], max_bytes=limit, max_wait_ms=0)
            peer.fetch([(TOPIC, 1, 0, 4096)], min_bytes=limit, max_wait_ms=50)
        peer.fetch([(TOPIC, 1, 0, 4096)], max_wait_ms=-1)
    with context.connect(20.0) as peer:
        try:
            peer.call(wire.FETCH, 4, wire.fetch_body([(TOPIC, 1, 0, 1024)] * 20_000, max_bytes=1 << 20))
        except wire.Closed:
            pass


@case("45 ListOffsets")
def list_offsets(context):
    with context.connect() as peer:
        for topic, partition in ((TOPIC, -1), (TOPIC, 999_999), ("no-such-topic", 0)):
            error = peer.list_offset(topic, partition, -1)[0]
            if error != 3:
                raise Unexpected(f"{topic}-{partition}: error {error}, expected 3")
        for timestamp in (INT64_MAX, 0):
            error = peer.list_offset(TOPIC, 0, timestamp)[0]
            if error != 0:
                raise Unexpected(f"timestamp {timestamp}: error {error}")
        for timestamp in (-100, INT64_MIN):
            peer.list_offset(TOPIC, 0, timestamp)


def new_producer(peer, timeout_ms=1000):
    """(error, producer id, epoch) of a fresh idempotent producer; waits while the coordinator loads."""
    for _ in range(100):
        _, error, producer, epoch = peer.call(
            wire.INIT_PRODUCER_ID, 0, wire.string(None) + struct.pack(">i", timeout_ms)).take(">ihqh")
        if error != 14:
            break
        time.sleep(0.1)
    return error, producer, epoch


@case("46 InitProducerId")
def init_producer_id(context):
    with context.connect() as peer:
        seen = set()
        for timeout in (0, -1, INT32_MAX):
            error, producer, epoch = new_producer(peer, timeout)
            if error or producer < 0 or epoch != 0 or producer in seen:
                raise Unexpected(f"timeout {timeout}: error {error}, producer {producer}, epoch {epoch}")
            seen.add(producer)
        reader = peer.call(wire.INIT_PRODUCER_ID, 0, wire.string("") + struct.pack(">i", 1000))
        _, error, _, _ = reader.take(">ihqh")
        if error == 0:
            raise Unexpected("an empty transactional id was accepted")
        for timeout in (0, -1, INT32_MAX):
            reader = peer.call(wire.INIT_PRODUCER_ID, 0, wire.string("t") + struct.pack(">i", timeout))
            _, error, _, _ = reader.take(">ihqh")
            if error == 0:
                raise Unexpected(f"transaction timeout {timeout} was accepted")


@case("32 sequences of one producer")
def sequences(context):
    with context.connect() as peer:
        _, producer, epoch = new_producer(peer)

    def send(sequence, epoch=epoch):
        return one(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    context.produce_gets(send(0), {0}, "sequence 0")
    with context.connect() as peer:
        end = context.end()
        error, base = peer.produce(TOPIC, 0, send(0))
        if (error, base) != (0, end - 1) or context.end() != end:
            raise Unexpected(f"repeat of sequence 0: error {error}, offset {base}, log end {end} -> {context.end()}")
    context.produce_gets(send(7), {45}, "gap in sequences")
    context.produce_gets(send(1), {0}, "sequence 1")
    context.produce_gets(send(0, epoch=1), {0}, "sequence 0 of a newer epoch")
    context.produce_gets(send(2), {47}, "older epoch")
    context.produce_gets(send(5, epoch=2), {45}, "new epoch that starts at 5")


# ---- floods -------------------------------------------------------------------------------------------------------

@case("49 idle and slow connections", memory_mib=64)
def idle_connections(context):
    held = []
    try:
        for _ in range(500):
            held.append(context.connect())
        for number in range(200):
            peer = context.connect()
            peer.send(wire.request(wire.API_VERSIONS, 0, b"")[: 1 + number % 12])
            held.append(peer)
        if fresh_client(context.address) > SERVED_WITHIN_SECONDS:
            raise Unexpected("a fresh client waited beside 700 idle connections")
    finally:
        for peer in held:
            peer.close()


@case("49 promises of memory", memory_mib=20 * 4 + 64, kafka=RUINS_KAFKA)
def promised_memory(context):
    held = []
    try:
        for _ in range(50):
            peer = context.connect()
            peer.send(struct.pack(">i", 64 * MIB) + struct.pack(">hhi", wire.PRODUCE, 7, 1) + wire.string("promise"))
            held.append(peer)
        for _ in range(20):
            peer = context.connect()
            peer.socket.settimeout(2.0)
            try:
                peer.send(struct.pack(">i", 64 * MIB) + struct.pack(">hhi", wire.PRODUCE, 7, 1) + bytes(4 * MIB))
            except (wire.Closed, TimeoutError):
                pass  # The broker may stop reading, or close.
            held.append(peer)
        if fresh_client(context.address) > SERVED_WITHIN_SECONDS:
            raise Unexpected("a fresh client waited beside promised requests")
    finally:
        for peer in held:
            peer.close()


@case("49 connection flood", memory_mib=96)
def connection_flood(context):
    begin = time.monotonic()
    for _ in range(3000):
        with context.connect() as peer:
            pass
        if time.monotonic() - begin > 20:
            break
    del peer


@case("51 pipelined requests", memory_mib=64)
def pipelined(context):
    with context.connect(20.0) as peer:
        sender = threading.Thread(target=lambda: peer.send(
            b"".join(wire.request(wire.API_VERSIONS, 0, b"", number) for number in range(1000))))
        sender.start()
        for number in range(1000):
            got = struct.unpack_from(">i", peer.receive_frame())[0]
            if got != number:
                raise Unexpected(f"answer {number} has correlation id {got}")
        sender.join()


@case("51 answers never read", memory_mib=96)
def never_read(context):
    held = []
    try:
        peer = context.connect(2.0)
        held.append(peer)
        many = b"".join(wire.request(wire.METADATA, 1, struct.pack(">i", -1), number) for number in range(5000))
        try:
            peer.send(many)
        except (wire.Closed, TimeoutError):
            pass  # Back-pressure, which is the point.
        for _ in range(40):
            peer = context.connect(2.0)
            peer.send(wire.request(wire.FETCH, 4, wire.fetch_body([(TOPIC, 1, 0, 50 * MIB)], max_bytes=50 * MIB)))
            held.append(peer)
        if fresh_client(context.address) > SERVED_WITHIN_SECONDS:
            raise Unexpected("a fresh client waited beside readers that do not read")
    finally:
        for peer in held:
            peer.close()


# ---- the run ------------------------------------------------------------------------------------------------------

def prepare(address):
    """The topic, with records in partition 1 that every fresh client reads."""
    wire.create_and_wait(address, {TOPIC: 3})
    deadline = time.monotonic() + 20
    with wire.Connection(address) as peer:
        while True:
            error, _ = peer.produce(TOPIC, 1, wire.batch([wire.record(b"k", bytes(100_000))]))
            if error == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"cannot produce: error {error}")
            time.sleep(0.2)


def reset_peak(pid):
    try:
        with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as out:
            out.write("5")
        return True
    except OSError:
        return False


def run_case(context, pid, row, function, memory_mib):
    """Returns None or what went wrong."""
    measured = pid is not None and reset_peak(pid)
    before = memory_kib(pid, "VmRSS") if measured else 0
    try:
        function(context)
    except Unexpected as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the broker's behaviour broke the case
        return f"{type(error).__name__}: {error}"
    try:
        took = fresh_client(context.address)
        if took > SERVED_WITHIN_SECONDS:
            return f"afterwards a fresh client waited {took:.1f} s"
    except Exception as error:  # noqa: BLE001 - the same
        return f"afterwards a fresh client failed: {type(error).__name__}: {error}"
    if measured:
        grown = (memory_kib(pid, "VmHWM") - before) / 1024
        if grown > memory_mib:
            return f"peak memory grew by {grown:.0f} MiB, bound {memory_mib} MiB"
    return None


def run_all(address, pid, chosen, is_kafka):
    prepare(address)
    context = Context(address, is_kafka)
    passed = failed = differs = 0
    for row, function, memory_mib, kafka in CASES:
        name = f"{row} ({function.__name__})"
        if chosen and not any(word in name for word in chosen):
            continue
        if is_kafka and kafka is RUINS_KAFKA:
            differs += 1
            print(f"not run           {name} [known: {kafka}]", flush=True)
            continue
        begin = time.monotonic()
        trouble = run_case(context, None if is_kafka else pid, row, function, memory_mib)
        took = time.monotonic() - begin
        if trouble is None:
            passed += 1
            print(f"ok      {took:6.2f} s  {name}", flush=True)
        elif is_kafka and kafka:
            differs += 1
            print(f"differs {took:6.2f} s  {name}: {trouble} [known: {kafka}]", flush=True)
        else:
            failed += 1
            print(f"FAILED  {took:6.2f} s  {name}: {trouble}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {differs} skipped" if differs else ""))
    return 0 if failed == 0 and passed else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--bootstrap", metavar="HOST:PORT")
    which.add_argument("--ringlog", metavar="BINARY")
    which.add_argument("--kafka", action="store_true")
    parser.add_argument("--pid", type=int, help="the broker's process, to bound its memory (Linux)")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--io-driver", default="auto")
    parser.add_argument("--only", action="append", help="cases whose name contains this; may be repeated")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        for row, function, memory_mib, _ in CASES:
            print(f"{row} ({function.__name__}), at most {memory_mib} MiB")
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard) if hard > 0 else 8192, hard))
    folder = tempfile.mkdtemp(prefix="ringlog-bad-inputs-")
    if args.ringlog:
        broker = brokers.Ringlog(args.ringlog, os.path.join(folder, "data"), shards=args.shards, driver=args.io_driver)
    elif args.kafka:
        broker = brokers.Kafka(os.path.join(HERE, "kafka-peer.sh"))
    else:
        broker = brokers.External(args.bootstrap)
    try:
        broker.start()
        code = run_all(broker.address, args.pid or broker.pid, args.only, args.kafka)
        if args.ringlog and broker.process.poll() is not None:
            print(f"FAILED: the broker ended with {broker.process.returncode}: {broker.log_tail()}")
            code = 1
        return code
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
