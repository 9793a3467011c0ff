"""Many connections, many promises, many answers that nobody reads."""
import struct
import threading
import time

import wire

from bad_input.context import case, fresh_client, MIB, RUINS_KAFKA, SERVED_WITHIN_SECONDS, TOPIC, Unexpected


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


@case("49 topics from everywhere at once", memory_mib=96)
def topics_at_once(context):
    """More changes of the metadata than a core may have open towards another: each is answered, done or to be tried again."""
    # Kafka would be busy with a thousand topics for longer than the cases after this one wait.
    count, peers, errors = 50 if context.is_kafka else 1100, [], {}
    try:
        for number in range(count):
            peer = context.connect(30.0)
            peers.append(peer)
            peer.send(wire.request(wire.CREATE_TOPICS, 2, wire.create_topics_body([(f"flood-{number}", 1, 1, [], {})])))
        for number, peer in enumerate(peers):
            reader = wire.Reader(peer.receive_frame())
            reader.take(">ii")
            (name, error, text), = reader.array(lambda: (reader.string(), reader.take(">h"), reader.string()))
            if name != f"flood-{number}" or error not in (0, 14):
                raise Unexpected(f"{name}: error {error}, {text}")
            errors[error] = errors.get(error, 0) + 1
        if not errors.get(0):
            raise Unexpected(f"no topic was created: {errors}")
        with context.connect(30.0) as peer:
            peer.call(wire.DELETE_TOPICS, 1, wire.array([wire.string(f"flood-{number}") for number in range(count)])
                      + struct.pack(">i", 30_000))
    finally:
        for peer in peers:
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
