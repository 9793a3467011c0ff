"""The part of admin_answers.py that asks where partitions lie and how large they are (DescribeLogDirs), in every version. Names of
directories and sizes of file systems are each broker's own; a partition's size is told as whether it has one. Standard library only."""
import os
import time

import group_wire
import wire
from partition_answers import wait_for_offsets_topic

DESCRIBE_LOG_DIRS = 35
FILLED, EMPTY, OFFSETS, METADATA = "log-dir-answers", "log-dir-answers-2", "__consumer_offsets", "__cluster_metadata"

group_wire.APIS[DESCRIBE_LOG_DIRS] = (2, 5, [("topics", [("topic", "s", ""), ("partitions", ["i"], "")], "")], [
    ("throttle", "i", ""), ("error", "h", "3+"), ("results", [
        ("error", "h", ""), ("path", "s", ""), ("topics", [("name", "s", ""), ("partitions", [
            ("index", "i", ""), ("size", "q", ""), ("lag", "q", ""), ("is_future", "?", "")], "")], ""),
        ("total", "q", "4+"), ("usable", "q", "4+"), ("is_cordoned", "?", "5+")], "")])


def cases(address, settles=0.0):
    """Yields (name, answer). A broker may need `settles` seconds until it holds what was created."""
    wire.create_and_wait(address, {FILLED: 3, EMPTY: 1})
    with group_wire.Peer(address) as peer:
        wait_for_offsets_topic(peer)
        time.sleep(settles)
        batch = wire.batch([wire.record(b"key", b"value")])
        for partition in (0, 0, 2):
            assert peer.produce(FILLED, partition, batch)[0] == 0, partition

        def told(*topics, version=5):
            """Topics: (name, partitions). Kafka answers in an order of its own."""
            answer = peer.ask(DESCRIBE_LOG_DIRS, version, topics=[{"topic": name, "partitions": indexes} for name, indexes in topics])
            return shown(answer)

        def everything(version):
            answer = peer.ask(DESCRIBE_LOG_DIRS, version, topics=None)
            for result in answer["results"]:
                result["topics"] = [topic for topic in result["topics"] if topic["name"] in (FILLED, EMPTY, OFFSETS, METADATA)]
            return shown(answer)

        def shown(answer):
            return [answer.get("error"), [
                (result["error"], os.path.isabs(result["path"]),
                 result.get("is_cordoned"), "total" in result and 0 < result["usable"] <= result["total"],
                 sorted((topic["name"], sorted(
                     (part["index"], part["size"] > 0, part["lag"], part["is_future"]) for part in topic["partitions"]))
                     for topic in result["topics"])) for result in answer["results"]]]

        for version in range(1, 6):
            yield f"log dirs {version}: everything", everything(version)
            yield f"log dirs {version}: nothing", told(version=version)
            yield f"log dirs {version}: some", told((FILLED, [2, 0]), (EMPTY, [0]), version=version)
        for name, topics in [
            ("a topic without partitions", [(FILLED, [])]), ("a partition twice", [(FILLED, [0, 0])]),
            ("a topic twice", [(FILLED, [0]), (FILLED, [1, 0])]), ("an unknown topic", [("no-such-topic", [0])]),
            ("unknown partitions", [(FILLED, [3, -1, 2 ** 31 - 1, -2 ** 31])]), ("one known of two", [("no-such-topic", [0]), (EMPTY, [0, 1])]),
            ("a bad name", [("a b", [0])]), ("no name", [("", [0])]), ("groups", [(OFFSETS, [0, 49, 50])]), ("the metadata log", [(METADATA, [0])]),
        ]:
            yield f"log dirs: {name}", told(*topics)
        sizes = [[part["size"] for part in topic["partitions"]] for topic in peer.ask(
            DESCRIBE_LOG_DIRS, 5, topics=[{"topic": FILLED, "partitions": [0]}])["results"][0]["topics"]]
        yield "log dirs: bytes of two batches", sizes == [[2 * len(batch)]]
        try:
            with group_wire.Peer(address) as old:
                yield "log dirs 0", old.ask(DESCRIBE_LOG_DIRS, 0, topics=None)
        except wire.Closed:
            yield "log dirs 0", "closed"
