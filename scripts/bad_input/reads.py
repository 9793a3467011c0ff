"""Fetch, ListOffsets, InitProducerId and the sequences of a producer."""
import struct
import time

import wire

from bad_input.context import case, INT32_MAX, INT64_MAX, INT64_MIN, one, TOPIC, Unexpected


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


@case("47 DeleteRecords")
def delete_records(context):
    with context.connect() as peer:
        start, end = peer.list_offset(TOPIC, 0, -2)[2], peer.list_offset(TOPIC, 0, -1)[2]
        for before in (INT64_MAX, -2, INT64_MIN, end + 1):
            error, low_watermark = peer.delete_records(TOPIC, 0, before)
            if (error, low_watermark) != (1, -1):
                raise Unexpected(f"before {before}: error {error}, low watermark {low_watermark}, expected 1, -1")
        for topic, partition in ((TOPIC, -1), (TOPIC, 999_999), ("no-such-topic", 0), ("bad/name", 0), ("", 0)):
            error, _ = peer.delete_records(topic, partition, 0)
            if error != 3:
                raise Unexpected(f"{topic!r}-{partition}: error {error}, expected 3")
        for timeout_ms in (-1, 0, INT32_MAX):
            answer = peer.delete_records(TOPIC, 0, 0, timeout_ms)
            if answer != (0, start):
                raise Unexpected(f"below the start, timeout {timeout_ms}: {answer}, expected 0, {start}")
        if (peer.list_offset(TOPIC, 0, -2)[2], peer.list_offset(TOPIC, 0, -1)[2]) != (start, end):
            raise Unexpected("a refused deletion moved the log's ends")
        # One that is given no time is done all the same, and said to be.
        wire.create_and_wait(context.address, {"deleted-at-once": 1})
        error, _ = peer.produce("deleted-at-once", 0, wire.batch([wire.record(b"k", b"v", offset_delta=index) for index in range(3)]))
        answer = peer.delete_records("deleted-at-once", 0, 2, 0)
        if (error, answer) != (0, (0, 2)):
            raise Unexpected(f"deletion without time: {answer} after a write with error {error}, expected 0, 2")


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


@case("32 sequences, the text", kafka="the values in the text are asked of ours only")
def sequence_texts(context):
    # Every partition from several connections at once: the text is the same whichever core owns the partition.
    peers = [context.connect() for _ in range(4)]
    try:
        for peer in peers:
            _, producer, epoch = new_producer(peer)
            for partition in (0, 1, 2):
                for sequence, code, words in ((0, 0, ()), (4711, 45, ("4711", "expected 1", str(producer)))):
                    batch = one(producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
                    error, text = peer.produce_text(TOPIC, partition, batch)
                    if error != code or (code == 0) != (text is None) or not all(word in (text or "") for word in words):
                        raise Unexpected(f"partition {partition}, sequence {sequence}: error {error}, text {text!r}")
    finally:
        for peer in peers:
            peer.close()
