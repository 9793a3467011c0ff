#!/usr/bin/env python3
"""Requests of consumer groups of both protocols: our answers beside those of Apache Kafka, in every version. Codes and values are compared;
of texts only whether there is one.

  group_answers.py --ringlog BINARY            both brokers are started fresh; exit 1 where they differ beyond what is listed here
  group_answers.py --bootstrap HOST:PORT       only prints what a fresh broker answers, one line a case

Standard library only; Kafka comes from kafka-peer.sh. The brokers must have group.initial.rebalance.delay.ms=0.
"""
import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))
import brokers  # noqa: E402
import consumer_answers  # noqa: E402
import group_wire  # noqa: E402
import wire  # noqa: E402
from group_wire import (  # noqa: E402
    DELETE_GROUPS, DESCRIBE_GROUPS, FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, LIST_GROUPS, OFFSET_COMMIT, OFFSET_DELETE,
    OFFSET_FETCH, SYNC_GROUP, subscription,
)

TOPIC, OTHER = "group-answers", "group-answers-2"
SETTINGS = ["--set", "group.initial.rebalance.delay.ms=0"]
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
READY_SECONDS = 30.0
MEMBER = re.compile(r"^(.*)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$|^(.*)-[A-Za-z0-9_-]{22}$")

# Where we differ on purpose: the beginning of the case's name, and why.
KNOWN = {
    "coordinator of a transaction": "transactions are not built",
    "coordinator of a share group": "share groups are not built",
    "describe no consumers": "an assignment to nobody is not counted",
    "describe without the static consumer": "an assignment to nobody is not counted",
}


def is_known(name):
    return any(name.startswith(known) for known in KNOWN)


class Session:
    """What one run against one broker knows: its members' names, its topics' ids."""

    def __init__(self, address):
        self.address = address
        self.port = int(address.rsplit(":", 1)[1])
        self.labels = {}
        self.peers = []

    def peer(self):
        self.peers.append(group_wire.Peer(self.address, timeout=30.0))
        return self.peers[-1]

    def close(self):
        for peer in self.peers:
            peer.close()

    def call(self, member, label):
        """Names a member for good."""
        self.labels[member] = label
        return member

    def tidy(self, value, name=None):
        """An answer without what differs from run to run."""
        if isinstance(value, dict):
            return {key: self.tidy(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tidy(item, name) for item in value]
        if isinstance(value, bytes):
            return self.labels.get(value, value.hex())
        if name == "message":
            return "text" if value else value
        if name in ("host", "port") and value in ("127.0.0.1", "localhost", self.port):
            return "own"
        if isinstance(value, str):
            made = MEMBER.match(value)
            return self.labels.get(value) or (f"new member of {made[1] or made[3]}" if made else value)
        return value

    def ask(self, peer, api, version, **values):
        try:
            return self.tidy(peer.ask(api, version, **values))
        except wire.Closed:
            return "closed"


def sorted_groups(answer):
    """Kafka makes an empty group of one whose first join it refuses; ours makes none for what anybody may name."""
    answer["groups"] = sorted((group for group in answer["groups"] if group["group"] != "refused"), key=lambda group: group["group"])
    return answer


def by_partition(answer):
    """Kafka puts what it refuses first."""
    for group in answer.get("groups") or [answer]:
        group["topics"].sort(key=lambda topic: (topic.get("name") or "", topic.get("id") or ""))
        for topic in group["topics"]:
            topic["partitions"].sort(key=lambda partition: partition["index"])
    return answer


def wait_until_ready(session, peer, groups):
    """Until each group's partition of the offsets topic is led and read."""
    deadline = time.monotonic() + READY_SECONDS
    for group in groups:
        while True:
            error = peer.ask(FIND_COORDINATOR, 0, key=group)["error"]
            if not error:
                error = peer.ask(OFFSET_FETCH, 5, group=group, topics=[])["error"]
            if error not in (LOADING, NOT_AVAILABLE, NOT_COORDINATOR):
                break
            assert time.monotonic() < deadline, f"error {error} for {group} after {READY_SECONDS:.0f} s"
            time.sleep(0.05)


def before_the_topic(session, peer):
    """Nobody asked for a coordinator yet."""
    ask = session.ask
    yield "early heartbeat", ask(peer, HEARTBEAT, 4, group="g", generation=1, member="m")
    yield "early join", ask(peer, JOIN_GROUP, 5, **join_fields("g"))
    yield "early sync", ask(peer, SYNC_GROUP, 5, group="g", generation=1, member="m", protocol_type="consumer", protocol="range")
    yield "early leave", ask(peer, LEAVE_GROUP, 3, group="g", members=[{"member": "m"}])
    yield "early commit", ask(peer, OFFSET_COMMIT, 8, **commit_fields("g"))
    for version in (1, 7):
        yield f"early fetch of offsets, version {version}", ask(peer, OFFSET_FETCH, version, group="g", topics=[{"name": TOPIC, "partitions": [0]}])
    yield "early fetch of offsets, version 8", ask(peer, OFFSET_FETCH, 8, groups=[{"group": "g", "topics": None}])
    yield "early describe", ask(peer, DESCRIBE_GROUPS, 6, groups=["g"])
    yield "early list", ask(peer, LIST_GROUPS, 5)
    yield "early delete", ask(peer, DELETE_GROUPS, 2, groups=["g"])
    yield "early offset delete", ask(peer, OFFSET_DELETE, 0, group="g", topics=[{"name": TOPIC, "partitions": [{"index": 0}]}])


def coordinators(session, peer):
    ask = session.ask
    for version in range(7):
        fields = {"keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        yield f"coordinator, version {version}", ask(peer, FIND_COORDINATOR, version, **fields)
    yield "coordinator of no name", ask(peer, FIND_COORDINATOR, 3, key="")
    yield "coordinators of odd names", ask(peer, FIND_COORDINATOR, 4, keys=["", "g", "g", "ü"])
    yield "coordinators of nothing", ask(peer, FIND_COORDINATOR, 4, keys=[])
    yield "coordinator of a transaction, version 3", ask(peer, FIND_COORDINATOR, 3, key="t", key_type=1)
    yield "coordinator of a transaction, version 4", ask(peer, FIND_COORDINATOR, 4, keys=["t"], key_type=1)
    yield "coordinator of a share group, version 6", ask(peer, FIND_COORDINATOR, 6, keys=["s:AAAAAAAAAAAAAAAAAAAAAQ:0"], key_type=2)
    for version in (3, 5):
        fields = {"keys": ["s"]} if version >= 4 else {"key": "s"}
        yield f"coordinator of a share group before its version, {version}", ask(peer, FIND_COORDINATOR, version, key_type=2, **fields)
    with_own = session.peer()
    yield "coordinator of an unknown type", ask(with_own, FIND_COORDINATOR, 3, key="s", key_type=9)
    yield "coordinators of an unknown type", ask(session.peer(), FIND_COORDINATOR, 4, keys=["s"], key_type=9)


def join_fields(group, member="", protocols=(("range", subscription(TOPIC)),), **more):
    fields = {
        "group": group, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000, "member": member, "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
    }
    return {**fields, **more}


def commit_fields(group, member="", generation=-1, partitions=((0, 5, "note"),), topic=TOPIC, **more):
    partitions = [{"index": index, "offset": offset, "metadata": metadata} for index, offset, metadata in partitions]
    return {"group": group, "member": member, "generation": generation, "topics": [{"name": topic, "partitions": partitions}], **more}


def refused_joins(session, peer):
    ask = session.ask
    for version in (0, 4, 6, 7, 9):
        for name, fields in {
            "no group": join_fields(""),
            "a short session": join_fields("refused", session_timeout_ms=1),
            "a long session": join_fields("refused", session_timeout_ms=2_000_000_000),
            "no protocols": join_fields("refused", protocols=()),
            "no protocol type": join_fields("refused", protocol_type=""),
            "an unknown member": join_fields("refused", member="nobody"),
        }.items():
            yield f"join with {name}, version {version}", ask(peer, JOIN_GROUP, version, **fields)


def joined(session, peer, group, label, version=5, **more):
    """Joins as a new member would; (member, answer)."""
    answer = peer.ask(JOIN_GROUP, version, **join_fields(group, **more))
    if answer["error"] == 79:
        answer = peer.ask(JOIN_GROUP, version, **join_fields(group, **{**more, "member": answer["member"]}))
    return session.call(answer["member"], label), answer


def single_members(session, peer):
    """One member, through all versions."""
    ask = session.ask
    for version in range(10):
        group = f"single-{version}"
        first = peer.ask(JOIN_GROUP, version, **join_fields(group))
        yield f"first join, version {version}", session.tidy(first)
        member = session.call(first["member"], "A")
        if first["error"]:
            yield f"second join, version {version}", ask(peer, JOIN_GROUP, version, **join_fields(group, member))
        sync_version = min(version, 5)
        named = {"protocol_type": "consumer", "protocol": "range"} if sync_version >= 5 else {}
        assigned = [{"member": member, "assignment": b"for A"}]
        yield f"sync, version {sync_version}", ask(
            peer, SYNC_GROUP, sync_version, group=group, generation=1, member=member, assignments=assigned, **named)
        yield f"sync again, version {sync_version}", ask(peer, SYNC_GROUP, sync_version, group=group, generation=1, member=member, **named)
        beat = min(version, 4)
        yield f"heartbeat, version {beat}", ask(peer, HEARTBEAT, beat, group=group, generation=1, member=member)
        describe = min(version, 6)
        asked = {"operations": True} if describe >= 3 else {}
        yield f"describe, version {describe}", ask(peer, DESCRIBE_GROUPS, describe, groups=[group], **asked)
        leave = min(version, 5)
        leaver = {"members": [{"member": member}]} if leave >= 3 else {"member": member}
        yield f"leave, version {leave}", ask(peer, LEAVE_GROUP, leave, group=group, **leaver)
        yield f"leave again, version {leave}", ask(peer, LEAVE_GROUP, leave, group=group, **leaver)
        yield f"describe what is left, version {describe}", ask(peer, DESCRIBE_GROUPS, describe, groups=[group])


def wrong_members(session, peer):
    """A stable group, and those who have no part in it."""
    ask, group = session.ask, "wrong"
    member, first = joined(session, peer, group, "A")
    generation = first["generation"]
    yield "heartbeat before the sync", ask(peer, HEARTBEAT, 4, group=group, generation=generation, member=member)
    yield "commit before the sync", ask(peer, OFFSET_COMMIT, 8, **commit_fields(group, member, generation))
    named = {"protocol_type": "consumer", "protocol": "range"}
    for name, fields in {
        "of no group": {"group": ""},
        "of an unknown group": {"group": "unknown"},
        "of an unknown member": {"member": "nobody"},
        "of another generation": {"generation": generation + 1},
        "of another protocol": {"protocol": "roundrobin"},
        "of another protocol type": {"protocol_type": "connect"},
        "without a protocol": {"protocol": None},
        "without a protocol type": {"protocol_type": None},
        "of an unknown instance": {"instance": "i"},
    }.items():
        yield f"sync {name}", ask(peer, SYNC_GROUP, 5, **{"group": group, "generation": generation, "member": member, **named, **fields})
    yield "sync of the leader", ask(
        peer, SYNC_GROUP, 5, group=group, generation=generation, member=member, assignments=[{"member": "nobody", "assignment": b"x"}], **named)
    for name, fields in {
        "": {},
        " of no group": {"group": ""},
        " of an unknown group": {"group": "unknown"},
        " of an unknown member": {"member": "nobody"},
        " of no member": {"member": ""},
        " of another generation": {"generation": generation + 1},
        " of an unknown instance": {"instance": "i"},
    }.items():
        beat = {"group": group, "generation": generation, "member": member, **fields}
        yield f"heartbeat{name}", ask(peer, HEARTBEAT, 4, **beat)
        for version in (2, 8, 9):
            commit = {**commit_fields(group), **beat}
            if version < 7:
                commit.pop("instance", None)
            yield f"commit{name}, version {version}", ask(peer, OFFSET_COMMIT, version, **commit)
    yield "commit of no member to a group with members", ask(peer, OFFSET_COMMIT, 8, **commit_fields(group))
    yield "join with another protocol type", ask(peer, JOIN_GROUP, 5, **join_fields(group, protocol_type="connect"))
    yield "join with another protocol", ask(peer, JOIN_GROUP, 5, **join_fields(group, protocols=[("sticky", b"")]))
    yield "join of an unknown member", ask(peer, JOIN_GROUP, 5, **join_fields(group, "nobody"))
    yield "join of an unknown member with an instance", ask(peer, JOIN_GROUP, 5, **join_fields(group, "nobody", instance="i"))
    yield "delete of a group with members", ask(peer, DELETE_GROUPS, 2, groups=[group])
    yield "offset delete of a subscribed topic", ask(
        peer, OFFSET_DELETE, 0, group=group, topics=[{"name": TOPIC, "partitions": [{"index": 0}]}, {"name": OTHER, "partitions": [{"index": 0}]}])
    for version in range(6):
        leaver = {"members": [{"member": "nobody"}, {"member": "", "instance": "i"}]} if version >= 3 else {"member": "nobody"}
        yield f"leave of nobody, version {version}", ask(peer, LEAVE_GROUP, version, group=group, **leaver)
        yield f"leave of no group, version {version}", ask(peer, LEAVE_GROUP, version, group="", **leaver)
        yield f"leave of an unknown group, version {version}", ask(peer, LEAVE_GROUP, version, group="unknown", **leaver)
    yield "leave of no members", ask(peer, LEAVE_GROUP, 5, group=group, members=[])
    yield "leave of one known and one unknown", ask(peer, LEAVE_GROUP, 5, group=group, members=[
        {"member": member, "reason": "done"}, {"member": "nobody"}, {"member": member}])
    yield "heartbeat of one who left", ask(peer, HEARTBEAT, 4, group=group, generation=generation, member=member)


def rebalances(session, peer):
    """Two members: the first hears of the second, both join, the leader assigns."""
    ask, group, second = session.ask, "two", session.peer()
    # Both prefer the same: which of two with equal votes wins is chance in Kafka.
    protocols = [("sticky", subscription(TOPIC, OTHER)), ("range", subscription(TOPIC))]
    one, first = joined(session, peer, group, "A", protocols=protocols)
    named = {"protocol_type": "consumer", "protocol": "sticky"}
    peer.ask(SYNC_GROUP, 5, group=group, generation=first["generation"], member=one, **named)
    required = second.ask(JOIN_GROUP, 9, **join_fields(group, protocols=protocols))
    two = session.call(required["member"], "B")
    yield "join beside another", session.tidy(required)
    yield "heartbeat while a new member only has a name", ask(peer, HEARTBEAT, 4, group=group, generation=1, member=one)
    waiting = second.post(JOIN_GROUP, 9, **join_fields(group, two, protocols=protocols))
    deadline = time.monotonic() + 10
    while (beat := peer.ask(HEARTBEAT, 4, group=group, generation=1, member=one))["error"] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    yield "heartbeat while others join", session.tidy(beat)
    described = ask(peer, DESCRIBE_GROUPS, 6, groups=[group])
    described["groups"][0]["members"].sort(key=lambda member: member["member"])
    yield "describe while others join", described
    yield "sync while others join", ask(peer, SYNC_GROUP, 5, group=group, generation=1, member=one, **named)
    yield "commit while others join", ask(peer, OFFSET_COMMIT, 8, **commit_fields(group, one, 1))
    yield "list while others join", sorted_groups(ask(peer, LIST_GROUPS, 5, states=["PreparingRebalance"]))
    mine = peer.ask(JOIN_GROUP, 9, **join_fields(group, one, protocols=protocols))
    theirs = second.take(waiting)
    mine["members"].sort(key=lambda member: session.labels[member["member"]])
    yield "both joined, the leader", session.tidy(mine)
    yield "both joined, the other", session.tidy(theirs)
    yield "describe while the leader assigns", ask(peer, DESCRIBE_GROUPS, 6, groups=[group])["groups"][0]["state"]
    named["protocol"] = mine["protocol"]
    waiting = second.post(SYNC_GROUP, 5, group=group, generation=2, member=two, **named)
    assigned = [{"member": one, "assignment": b"for A"}, {"member": two, "assignment": b"for B"}]
    yield "sync of the leader of two", ask(peer, SYNC_GROUP, 5, group=group, generation=2, member=one, assignments=assigned, **named)
    yield "sync of the other", session.tidy(second.take(waiting))
    described = ask(peer, DESCRIBE_GROUPS, 6, groups=[group], operations=True)
    described["groups"][0]["members"].sort(key=lambda member: member["member"])
    yield "describe two", described
    yield "join again of one who is in, as it was", session.tidy(second.ask(JOIN_GROUP, 9, **join_fields(group, two, protocols=protocols)))
    for name, asked in {"by state": {"states": ["stable"]}, "by two states": {"states": ["Empty", "Stable"]}, "by an unknown state": {"states": ["Odd"]},
                        "by type": {"types": ["classic"]}, "by type in capitals": {"types": ["CLASSIC"]}, "by another type": {"types": ["consumer"]},
                        "by an unknown type": {"types": ["odd"]}, "by state and type": {"states": ["Stable"], "types": ["classic", "share"]}}.items():
        yield f"list {name}", sorted_groups(ask(peer, LIST_GROUPS, 5, **asked))
    for version in range(6):
        yield f"list, version {version}", sorted_groups(ask(peer, LIST_GROUPS, version))
    yield "leave of both", ask(peer, LEAVE_GROUP, 5, group=group, members=[{"member": one}, {"member": two}])
    yield "describe once both left", ask(peer, DESCRIBE_GROUPS, 6, groups=[group])


def static_members(session, peer):
    ask, group = session.ask, "static"
    old, first = joined(session, peer, group, "old", version=9, instance="i")
    yield "join with an instance", session.tidy(first)
    named = {"protocol_type": "consumer", "protocol": "range"}
    assigned = [{"member": old, "assignment": b"for i"}]
    yield "sync with an instance", ask(peer, SYNC_GROUP, 5, group=group, generation=1, member=old, instance="i", assignments=assigned, **named)
    again = peer.ask(JOIN_GROUP, 9, **join_fields(group, instance="i"))
    new = session.call(again["member"], "new")
    yield "join of the instance after a restart", session.tidy(again)
    yield "sync of the instance after a restart", ask(peer, SYNC_GROUP, 5, group=group, generation=1, member=new, instance="i", **named)
    yield "fenced heartbeat", ask(peer, HEARTBEAT, 4, group=group, generation=1, member=old, instance="i")
    yield "heartbeat of the fenced without the instance", ask(peer, HEARTBEAT, 4, group=group, generation=1, member=old)
    yield "fenced sync", ask(peer, SYNC_GROUP, 5, group=group, generation=1, member=old, instance="i", **named)
    yield "fenced commit", ask(peer, OFFSET_COMMIT, 8, **commit_fields(group, old, 1, instance="i"))
    yield "fenced join", ask(peer, JOIN_GROUP, 9, **join_fields(group, old, instance="i"))
    yield "fenced leave", ask(peer, LEAVE_GROUP, 5, group=group, members=[{"member": old, "instance": "i"}])
    yield "heartbeat of the new", ask(peer, HEARTBEAT, 4, group=group, generation=1, member=new, instance="i")
    yield "commit of the new", ask(peer, OFFSET_COMMIT, 8, **commit_fields(group, new, 1, instance="i"))
    yield "leave by an operator", ask(peer, LEAVE_GROUP, 5, group=group, members=[{"member": "", "instance": "i"}, {"member": "", "instance": "i"}])
    connect = "connect"
    member, _ = joined(session, peer, connect, "worker", protocol_type="connect", protocols=[("default", b"opaque")])
    yield "describe a group of another type", ask(peer, DESCRIBE_GROUPS, 5, groups=[connect])
    yield "offset delete in a group of another type", ask(
        peer, OFFSET_DELETE, 0, group=connect, topics=[{"name": TOPIC, "partitions": [{"index": 0}]}])
    peer.ask(LEAVE_GROUP, 5, group=connect, members=[{"member": member}])


def offsets(session, peer):
    ask = session.ask
    ids = {topic: group_wire.topic_id(session.address, topic) for topic in (TOPIC, OTHER)}
    for topic, topic_id in ids.items():
        session.labels[topic_id] = topic
    no_such = bytes([7]) * 16

    def named(version, topics):
        """Topics by name or by id, whatever the version has."""
        by_id = {"gone": no_such, **ids}
        return [{"id": by_id[name], **rest} if version >= 10 else {"name": name, **rest} for name, rest in topics]

    for version in range(2, 11):
        group = f"offsets-{version}"
        parts = [(0, 5, "note"), (1, 0, ""), (1, 7, None), (9, 1, "x"), (-1, 1, "x")]
        topics = named(version, [
            (TOPIC, {"partitions": [{"index": index, "offset": offset, "metadata": text} for index, offset, text in parts]}),
            ("gone", {"partitions": [{"index": 0, "offset": 1}]}), (OTHER, {"partitions": [{"index": 0, "offset": 2, "metadata": "m" * 4096}]})])
        yield f"commit, version {version}", by_partition(ask(peer, OFFSET_COMMIT, version, group=group, generation=-1, topics=topics))
        epoch = {"epoch": 3} if version >= 6 else {}
        topics = named(version, [(OTHER, {"partitions": [{"index": 0, "offset": 3, "metadata": "m" * 4097, **epoch}, {"index": 1, "offset": 4, **epoch}]})])
        yield f"commit of long metadata, version {version}", by_partition(ask(peer, OFFSET_COMMIT, version, group=group, generation=-1, topics=topics))
        yield f"commit of nothing, version {version}", ask(peer, OFFSET_COMMIT, version, group=group, generation=-1, topics=[])
        topics = named(version, [("gone", {"partitions": [{"index": 0, "offset": 1}]})])
        yield f"commit of nothing that exists to no group, version {version}", ask(peer, OFFSET_COMMIT, version, group="", generation=-1, topics=topics)
        topics = named(version, [(TOPIC, {"partitions": [{"index": 0, "offset": 1}]})])
        yield f"commit to no group, version {version}", ask(peer, OFFSET_COMMIT, version, group="", generation=-1, topics=topics)
        yield f"commit of a generation of an unknown group, version {version}", ask(
            peer, OFFSET_COMMIT, version, group="unknown", generation=1, member="m", topics=topics)
        yield f"commit of a negative offset, version {version}", ask(
            peer, OFFSET_COMMIT, version, group="negative", generation=-1, topics=named(version, [(TOPIC, {"partitions": [{"index": 0, "offset": -1}]})]))
    yield "commit kept for a while, version 4", ask(
        peer, OFFSET_COMMIT, 4, group="kept", generation=-1, retention_ms=60_000, topics=[{"name": TOPIC, "partitions": [{"index": 0, "offset": 1}]}])

    group = "offsets-6"
    for version in range(1, 11):
        wanted = named(version, [(TOPIC, {"partitions": [1, 0, 9]}), ("gone", {"partitions": [0]}), (OTHER, {"partitions": [0, 1]})])
        for name, of, topics in [("offsets", group, wanted), ("no offsets", group, []), ("all offsets", group, None),
                                 ("offsets of an unknown group", "unknown", wanted), ("all offsets of an unknown group", "unknown", None),
                                 ("offsets of no group", "", wanted), ("all offsets of no group", "", None)]:
            if topics is None and version < 2:
                continue
            if version < 8:
                asked = {"group": of, "topics": topics}
            else:
                asked = {"groups": [{"group": of, "topics": topics}]}
            yield f"fetch {name}, version {version}", by_partition(ask(peer, OFFSET_FETCH, version, **asked))
    several = [{"group": "offsets-6", "topics": None}, {"group": "unknown", "topics": None}, {"group": "", "topics": None}, {"group": "offsets-10", "topics": None}]
    for version in (8, 9, 10):
        yield f"fetch of several groups, version {version}", by_partition(ask(peer, OFFSET_FETCH, version, groups=several, require_stable=True))
    yield "fetch of no groups", ask(peer, OFFSET_FETCH, 8, groups=[])
    yield "fetch by a member, of a classic group", by_partition(
        ask(peer, OFFSET_FETCH, 9, groups=[{"group": group, "member": "m", "member_epoch": 5, "topics": None}]))

    def forget(*topics, of=group):
        topics = [{"name": name, "partitions": [{"index": index} for index in indexes]} for name, indexes in topics]
        return by_partition(ask(peer, OFFSET_DELETE, 0, group=of, topics=topics))

    yield "offset delete", forget((TOPIC, [0, 9]), ("gone", [0]), (OTHER, [5]))
    yield "offset delete again", forget((TOPIC, [0]))
    yield "offset delete of nothing", forget()
    yield "offset delete of nothing that exists", forget(("gone", [0]))
    yield "offset delete in an unknown group", forget((TOPIC, [0]), of="unknown")
    yield "offset delete of nothing that exists in an unknown group", forget(("gone", [0]), of="unknown")
    yield "offset delete in no group", forget((TOPIC, [0]), of="")
    yield "fetch what is left", by_partition(ask(peer, OFFSET_FETCH, 7, group=group, topics=None))
    for version in range(7):
        groups = [group, "unknown", "", "offsets-2"]
        yield f"describe groups without members, version {version}", sorted_groups(ask(peer, DESCRIBE_GROUPS, version, groups=groups))
    yield "describe nothing", ask(peer, DESCRIBE_GROUPS, 6, groups=[])
    for version in range(3):
        answer = ask(peer, DELETE_GROUPS, version, groups=["unknown", "", f"offsets-{version + 2}", "unknown"])
        answer["results"].sort(key=lambda result: result["group"])
        yield f"delete, version {version}", answer
    yield "delete nothing", ask(peer, DELETE_GROUPS, 2, groups=[])
    yield "fetch of a deleted group", ask(peer, OFFSET_FETCH, 7, group="offsets-2", topics=None)
    yield "describe a deleted group", ask(peer, DESCRIBE_GROUPS, 6, groups=["offsets-2"])


def cases(address):
    """Yields (name, answer)."""
    session = Session(address)
    peer = session.peer()
    try:
        wire.create_and_wait(address, {TOPIC: 2, OTHER: 2})
        yield from before_the_topic(session, peer)
        fixed = ["g", "h", "", "unknown", "refused", "wrong", "two", "static", "connect", "kept", "negative"]
        wait_until_ready(session, peer, fixed + consumer_answers.GROUPS + [f"{kind}-{version}" for kind in ("single", "offsets") for version in range(11)])
        yield from coordinators(session, peer)
        yield from refused_joins(session, peer)
        yield from single_members(session, peer)
        yield from wrong_members(session, peer)
        yield from rebalances(session, peer)
        yield from static_members(session, peer)
        yield from offsets(session, peer)
        yield from consumer_answers.cases(session, peer, TOPIC, OTHER)
    finally:
        session.close()


def compare(binary):
    folder = tempfile.mkdtemp(prefix="ringlog-group-answers-")
    ours = brokers.Ringlog(binary, os.path.join(folder, "data"), shards=2, extra=SETTINGS)
    theirs = brokers.Kafka(os.path.join(HERE, "kafka-peer.sh"), options=SETTINGS)
    same = differ = failed = 0
    try:
        ours.start()
        theirs.start()
        for (name, our), (_, their) in zip(cases(ours.address), cases(theirs.address), strict=True):
            if our == their:
                same += 1
            elif is_known(name):
                differ += 1
            else:
                failed += 1
                print(f"FAILED  {name}\n  ours   {json.dumps(our)}\n  Kafka  {json.dumps(their)}", flush=True)
    finally:
        ours.close()
        theirs.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{same} as Kafka, {differ} known to differ, {failed} failed")
    return 0 if failed == 0 and same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--ringlog", metavar="BINARY")
    which.add_argument("--bootstrap", metavar="HOST:PORT")
    args = parser.parse_args()
    if args.ringlog:
        return compare(args.ringlog)
    for name, answer in cases(args.bootstrap):
        print(f"{name}: {json.dumps(answer)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
