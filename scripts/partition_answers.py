"""The part of admin_answers.py that asks for more partitions (CreatePartitions), in every version. Standard library only."""
import time

import group_wire
import wire

CREATE_PARTITIONS = 37
GROWN, OTHER = "partition-answers", "partition-answers-2"

group_wire.APIS[CREATE_PARTITIONS] = (2, 3, [
    ("topics", [("name", "s", ""), ("count", "i", ""), ("assignments", [("brokers", ["i"], "")], "")], ""), ("timeout_ms", "i", ""),
    ("validate_only", "?", "")],
    [("throttle", "i", ""), ("results", [("name", "s", ""), ("error", "h", ""), ("message", "s", "")], "")])


def cases(address, texts=False, settles=0.0):
    """Yields (name, answer). A broker may need `settles` seconds until it says what was answered."""
    wire.create_and_wait(address, {GROWN: 2, OTHER: 1})
    with group_wire.Peer(address) as peer:
        def grow(*topics, version=3, timeout_ms=10_000, validate_only=False):
            """Topics: (name, count, brokers of each new partition or None). Kafka answers in an order of its own."""
            asked = [{"name": name, "count": count, "assignments": None if brokers is None else [{"brokers": each} for each in brokers]}
                     for name, count, brokers in topics]
            told = peer.ask(CREATE_PARTITIONS, version, topics=asked, timeout_ms=timeout_ms, validate_only=validate_only)["results"]
            return sorted((result["name"], result["error"], *([result["message"]] if texts else [])) for result in told)

        def counts():
            time.sleep(settles)
            return [len(peer.metadata([name])[name][1]) for name in (GROWN, OTHER)]

        for name in ("no-such-topic", "a b", "", "__cluster_metadata"):
            yield f"partitions: of {name!r}", grow((name, 3, None))
        for count in (2, 1, 0, -1, -2 ** 31):
            yield f"partitions: {count} of 2", grow((GROWN, count, None))
        for name, brokers in [
            ("too few", [[1]]), ("none", []), ("too many", [[1], [1], [1]]), ("no broker", [[], [1]]), ("unknown broker", [[1], [7]]),
            ("a broker twice", [[1, 1], [1]]), ("two brokers", [[1], [1, 2]]), ("broker below 0", [[-1], [1]]),
        ]:
            yield f"partitions, assigned: {name}", grow((GROWN, 4, brokers))
        yield "partitions: nothing asked", grow()
        yield "partitions: twice", grow((GROWN, 3, None), (GROWN, 4, None))
        yield "partitions: twice, and one of those bad", grow((GROWN, 1, None), (GROWN, 4, None))
        yield "partitions: only looked at", grow((GROWN, 3, None), validate_only=True)
        yield "partitions: only looked at, bad", grow((GROWN, 2, None), validate_only=True)
        for timeout_ms in (0, -1):
            yield f"partitions: in {timeout_ms} ms", grow((GROWN, 3, None), timeout_ms=timeout_ms)
        yield "partitions: as they were", counts()
        for version in range(4):
            yield f"partitions {version}: one more", grow((GROWN, 3 + version, None), version=version)
            yield f"partitions {version}: no more", grow((GROWN, 3 + version, None), version=version)
        yield "partitions: assigned", grow((GROWN, 8, [[1], [1]]))
        yield "partitions: one good of two", grow(("no-such-topic", 2, None), (OTHER, 2, None))
        yield "partitions: two good of three", grow((GROWN, 10, None), (OTHER, 4, None), ("no-such-topic", 2, None))
        yield "partitions: as they are now", counts()
        yield "partitions: a record goes to the last", produce(peer, 9)
        yield "partitions: a record behind the last", peer.produce(GROWN, 10, wire.batch([wire.record(b"k", b"v")]))[0]
        yield "partitions, at once: more than may be", grow((GROWN, 1_000_000, None))
        yield "partitions, at once: all there are", grow((GROWN, 2 ** 31 - 1, None))
        wait_for_offsets_topic(peer)
        yield "partitions, internal: more", grow(("__consumer_offsets", 51, None), validate_only=True)
        yield "partitions: fewer of groups", grow(("__consumer_offsets", 49, None))


def produce(peer, partition):
    """Kafka answers before its broker leads what is new."""
    for _ in range(100):
        error = peer.produce(GROWN, partition, wire.batch([wire.record(b"k", b"v")]))[0]
        if error not in (3, 5, 6):
            break
        time.sleep(0.1)
    return error


def wait_for_offsets_topic(peer):
    """Somebody asks for a coordinator, until there is one."""
    for _ in range(100):
        if peer.ask(group_wire.FIND_COORDINATOR, 3, key="g", key_type=0)["error"] == 0:
            return
        time.sleep(0.1)
    raise AssertionError("no coordinator in 10 s")
