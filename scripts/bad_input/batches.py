"""Record batches whose fields lie, and Produce requests around them."""

import wire

from bad_input.context import case, CLOSED_WITHIN_SECONDS, INT32_MAX, MIB, one, TOPIC, Unexpected


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
