"""The part of admin_answers.py that gives CreateTopics and DeleteTopics no time. Standard library only."""
import time

import group_wire
import wire

DELETE_TOPICS = 20
MADE, KEPT = "timeout-made", "timeout-kept"

group_wire.APIS[DELETE_TOPICS] = (4, 5, [("names", ["s"], ""), ("timeout_ms", "i", "")], [
    ("throttle", "i", ""), ("results", [("name", "s", ""), ("error", "h", ""), ("message", "s", "5+")], "")])


def cases(address, settles=0.0):
    """Yields (name, answer). A broker may need `settles` seconds until it says what was answered."""
    wire.create_and_wait(address, {KEPT: 2})
    with group_wire.Peer(address) as peer:
        def create(name, partitions, timeout_ms):
            reader = peer.call(wire.CREATE_TOPICS, 2, wire.create_topics_body([(name, partitions, 1, [], {})], timeout_ms))
            reader.take(">i")
            return [(told, error) for told, error, _ in reader.array(lambda: (reader.string(), reader.take(">h"), reader.string()))]

        def delete(name, timeout_ms, version=5):
            told = peer.ask(DELETE_TOPICS, version, names=[name], timeout_ms=timeout_ms)["results"]
            return [(result["name"], result["error"]) for result in told]

        def counts():
            time.sleep(settles)
            # Whoever asks for one by name may make it.
            known = peer.metadata(None)
            return [len(known[name][1]) if name in known else 0 for name in (MADE, KEPT)]

        for timeout_ms in (0, -1, -2 ** 31):
            yield f"in {timeout_ms} ms: create", create(MADE, 1, timeout_ms)
            yield f"in {timeout_ms} ms: create what is there", create(KEPT, 1, timeout_ms)
            yield f"in {timeout_ms} ms: create what may not be", create("a b", 0, timeout_ms)
            yield f"in {timeout_ms} ms: delete", delete(KEPT, timeout_ms)
            yield f"in {timeout_ms} ms: delete what is not there", delete("no-such-topic", timeout_ms)
        yield "in no time: as they were", counts()
        yield "in time: create", create(MADE, 1, 10_000)
        for version in (1, 5):
            name = (MADE, KEPT)[version > 1]
            yield f"in time: delete {version}", delete(name, 10_000, version)
        yield "in time: as they are now", counts()
