"""Compressed batches: noise, cut streams, declared sizes, bombs."""
import random
import struct
import threading
import zlib

import wire

from bad_input.context import case, INT32_MAX, MIB, Others, TOPIC


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
