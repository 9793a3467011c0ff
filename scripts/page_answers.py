"""The part of admin_answers.py that asks for topics in pages (DescribeTopicPartitions). Standard library only."""
import time

import group_wire
import wire

DESCRIBE_TOPIC_PARTITIONS = 75
SMALL = {"page-a": 3, "page-b": 2, "page-c": 4}
# More than one page, also for tools that take the most a broker gives.
LARGE = {f"page-answers-{number}": 300 for number in range(7)}
BEHIND_ALL = "zzz"

CURSOR = ("?", [("topic", "s", ""), ("partition", "i", "")])
group_wire.APIS[DESCRIBE_TOPIC_PARTITIONS] = (0, 0, [("topics", [("name", "s", "")], ""), ("limit", "i", ""), ("cursor", CURSOR, "")], [
    ("throttle", "i", ""),
    ("topics", [
        ("error", "h", ""), ("name", "s", ""), ("id", "u", ""), ("internal", "?", ""),
        ("partitions", [
            ("error", "h", ""), ("index", "i", ""), ("leader", "i", ""), ("epoch", "i", ""), ("replicas", ["i"], ""), ("isr", ["i"], ""),
            ("eligible", ["i"], ""), ("last_eligible", ["i"], ""), ("offline", ["i"], "")], ""),
        ("operations", "i", "")], ""),
    ("next", CURSOR, "")])


def cases(address, settles=0.0):
    """Yields (name, answer). A broker may need `settles` seconds until it says what was answered."""
    wire.create_and_wait(address, SMALL)
    with group_wire.Peer(address) as peer:
        def ask(*topics, limit=2000, cursor=None):
            """Ids are made by each broker, and a first term is 1 here, and 0 there."""
            cursor = cursor and dict(zip(("topic", "partition"), cursor))
            told = peer.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": name} for name in topics], limit=limit, cursor=cursor)
            for topic in told["topics"]:
                topic["id"] = any(topic["id"])
                for partition in topic["partitions"]:
                    partition["epoch"] = partition["epoch"] >= 0
            return told["topics"], told["next"]

        behind = ("page-a", 0)
        yield "pages: of names", ask("page-b", "page-a", "page-b")
        yield "pages: of names that are not there", ask("page-a", "nobody", "a b", "x" * 250, "__consumer_offsets", "__cluster_metadata")
        yield "pages, named: no name", ask("page-a", "")
        for limit in (0, -1, -2 ** 31, 1, 2, 3, 4, 5, 9, 2 ** 31 - 1):
            yield f"pages: of names, at most {limit}", ask("page-a", "page-b", "page-bb", limit=limit)
            yield f"pages: from {behind}, at most {limit}", ask(limit=limit, cursor=behind)
        for cursor in [
            ("page-a", 2), ("page-a", 3), ("page-a", 100), ("page-a", -1), ("page-a", -2 ** 31), ("page-aa", 0), ("page-aa", 7),
            ("page-b", 1), ("page-c", 3), (BEHIND_ALL, 0),
        ]:
            for limit in (2, 2000):
                yield f"pages: from {cursor}, at most {limit}", ask(limit=limit, cursor=cursor)
        for cursor in [
            ("page-a", 0), ("page-a", 1), ("page-aa", 3), ("page-b", 1), ("nobody", 4), ("page-c", 0), ("page-b", -1), ("", 0),
        ]:
            yield f"pages: of names, from {cursor}", ask("page-b", "nobody", "page-a", "page-aa", cursor=cursor)
        yield "pages, at once: from the last partition there may be", ask(cursor=("page-a", 2 ** 31 - 1))
        wire.create_and_wait(address, LARGE, timeout=60.0)
        time.sleep(settles)
        for limit in (7, 299, 300, 301, 1999, 2000, 2001, 10_000):
            yield f"pages: all, at most {limit}", walk(ask, limit)


def walk(ask, limit):
    """The length of each page and where it ended, from the first of ours to the last."""
    cursor, pages = (min(LARGE), 0), []
    while cursor is not None:
        topics, cursor = ask(*LARGE, limit=limit, cursor=cursor)
        pages.append([(topic["name"], [part["index"] for part in topic["partitions"]]) for topic in topics])
        cursor = cursor and (cursor["topic"], cursor["partition"])
    parts = [(name, part) for page in pages for name, listed in page for part in listed]
    assert parts == [(name, part) for name in sorted(LARGE) for part in range(LARGE[name])], "each once, in order"
    return [sum(len(listed) for _, listed in page) for page in pages]
