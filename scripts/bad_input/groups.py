"""Requests about groups: coordinators, members, offsets, and those who come in crowds or go while they wait."""
import os
import struct
import time

import group_wire
import wire
from group_wire import (
    APIS, CONSUMER_DESCRIBE, CONSUMER_HEARTBEAT, DELETE_GROUPS, DESCRIBE_GROUPS, FIND_COORDINATOR, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, LIST_GROUPS, OFFSET_COMMIT,
    OFFSET_DELETE, OFFSET_FETCH, SYNC_GROUP,
)

from bad_input.context import case, INT32_MAX, INT64_MAX, INT64_MIN, MIB, Others, TOPIC, Unexpected

GROUPS_MAX, OFFSETS_MAX = 10_000, 200_000
ODD_NAMES = ["", "a b", "\0", "\x1b[2J", "..", "../../etc", "ü" * 100, "n" * 16_384, "n" * 32_000]
# Retriable: the broker has no room for more, or the group's partition is not read yet.
LOADING, NO_ROOM, NOT_COORDINATOR = NOT_READY = 14, 15, 16


def peer_of(context, group="bad-inputs"):
    """A connection, once the group has a coordinator."""
    peer = group_wire.Peer(context.address, timeout=20.0)
    deadline = time.monotonic() + 20
    while peer.ask(FIND_COORDINATOR, 2, key=group)["error"] or peer.ask(HEARTBEAT, 0, group=group)["error"] in (LOADING, NO_ROOM, NOT_COORDINATOR):
        if time.monotonic() > deadline:
            raise Unexpected(f"no coordinator for {group!r}")
        time.sleep(0.05)
    return peer


def expect(error, allowed, what):
    if error not in allowed:
        raise Unexpected(f"{what}: error {error}, expected one of {sorted(allowed)}")


def join(group, member="", metadata=b"x", **more):
    return {
        "group": group, "member": member, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}], **more,
    }


@case("64 bodies of group requests that promise more than they hold")
def short_bodies(context):
    for api, (flexible_since, newest, _, _) in APIS.items():
        # Old and new encoding.
        oldest = {OFFSET_COMMIT: 2, OFFSET_FETCH: 1}.get(api, 0)
        for version in {oldest, newest}:
            flexible = version >= flexible_since
            bodies = [b"\xff" * 64, b"\xff\xff\xff\xff\x0f" * 3] if flexible else [b"\x7f\xff" * 8, struct.pack(">i", INT32_MAX) * 4]
            for body in ([] if api == LIST_GROUPS and not flexible else [b""]) + ([] if api == LIST_GROUPS and not flexible else bodies):
                header = b"\0" if flexible else b""
                if not context.is_kafka:
                    context.closes(wire.request(api, version, header + body), f"API {api} version {version}, body {body!r}")


@case("65 odd names of groups and members", kafka="takes longer names than we do")
def odd_names(context):
    with peer_of(context) as peer:
        for name in ODD_NAMES:
            expect(peer.ask(HEARTBEAT, 3, group=name, generation=INT32_MAX, member=name, instance=name)["error"], {24, 25, 82}, f"heartbeat of {name[:20]!r}")
            expect(peer.ask(SYNC_GROUP, 3, group=name, generation=-1, member=name, instance=name)["error"], {24, 25}, f"sync of {name[:20]!r}")
            expect(peer.ask(LEAVE_GROUP, 2, group=name, member=name)["error"], {24, 25}, f"leave of {name[:20]!r}")
            expect(peer.ask(JOIN_GROUP, 5, **join(name, member=name or "nobody", instance=name))["error"], {24, 25, 42}, f"join of {name[:20]!r}")
            expect(peer.ask(JOIN_GROUP, 5, **join("odd", instance=name, protocol_type="p" * 20_000))["error"], {42}, f"join of a long type as {name[:20]!r}")
            peer.ask(DESCRIBE_GROUPS, 4, groups=[name])
            peer.ask(LIST_GROUPS, 5, states=[name], types=[name])
            peer.ask(DELETE_GROUPS, 1, groups=[name])
            peer.ask(OFFSET_DELETE, 0, group=name, topics=[{"name": name, "partitions": [{"index": -1}]}])
            peer.ask(OFFSET_FETCH, 5, group=name, topics=[{"name": name, "partitions": [INT32_MAX, -1]}])


@case("66 joins that ask for too much", kafka="takes members of any size")
def bad_joins(context):
    with peer_of(context) as peer:
        for session in (0, -1, 1, INT32_MAX, -(2**31)):
            expect(peer.ask(JOIN_GROUP, 4, **join("sessions", session_timeout_ms=session))["error"], {26}, f"session timeout {session}")
        expect(peer.ask(JOIN_GROUP, 4, **join("large", metadata=bytes(MIB + 1)))["error"], {42}, "more than 1 MiB of metadata")
        many = [{"name": f"p{number}", "metadata": b""} for number in range(200_000)]
        expect(peer.ask(JOIN_GROUP, 4, **join("many", protocols=many))["error"], {42}, "200,000 protocols")
        expect(peer.ask(JOIN_GROUP, 4, **join("none", protocols=[]))["error"], {23}, "no protocols")
        twice = [{"name": "range", "metadata": b"x"}] * 10_000
        expect(peer.ask(JOIN_GROUP, 4, **join("twice", protocols=twice))["error"], {79}, "one protocol 10,000 times")
        for rebalance in (INT32_MAX, -(2**31)):
            expect(peer.ask(JOIN_GROUP, 4, **join("patient", rebalance_timeout_ms=rebalance))["error"], {79}, f"rebalance timeout {rebalance}")


@case("67 300 abandoned groups")
def abandoned(context):
    with Others(context.address), peer_of(context) as peer:
        for number in range(300):
            named = peer.ask(JOIN_GROUP, 4, **join(f"abandoned-{number}", metadata=os.urandom(512)))
            expect(named["error"], {79}, f"group {number}")
            # Nobody is there when the answer comes.
            with group_wire.Peer(context.address) as gone:
                gone.post(JOIN_GROUP, 4, **join(f"abandoned-{number}", member=named["member"], metadata=os.urandom(512)))


@case("68 a crowd of members in one group", memory_mib=64)
def crowd(context):
    with Others(context.address), peer_of(context, "crowd") as peer:
        for number in range(3000):
            # Given a name, and never seen again.
            expect(peer.ask(JOIN_GROUP, 4, **join("crowd", metadata=bytes(100)))["error"], {79, 81}, f"member {number}")


@case("69 members that go while they wait")
def gone_while_waiting(context):
    with Others(context.address), peer_of(context, "waiting") as peer:
        for number in range(50):
            gone = group_wire.Peer(context.address)
            gone.post(JOIN_GROUP, 3, **join("waiting", session_timeout_ms=6_000))
            # Half of them say goodbye, half are just gone.
            if number % 2:
                gone.socket.setsockopt(wire.socket.SOL_SOCKET, wire.socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
        expect(peer.ask(DESCRIBE_GROUPS, 0, groups=["waiting"])["groups"][0]["error"], {0}, "describe")


@case("70 bad commits of offsets", memory_mib=160, kafka="takes offsets in any number and of any value")
def bad_commits(context):
    def commit(version, partitions, **more):
        topics = [{"name": TOPIC, "partitions": partitions}]
        answer = peer.ask(OFFSET_COMMIT, version, **{"group": "commits", "generation": -1, "topics": topics, **more})
        return {partition["error"] for topic in answer["topics"] for partition in topic["partitions"]}

    with peer_of(context, "commits") as peer:
        for what, partitions, allowed in [
            ("no such partition", [{"index": index, "offset": 1} for index in (-1, 3, INT32_MAX, -(2**31))], {3}),
            ("offsets out of all bounds", [{"index": 0, "offset": offset} for offset in (INT64_MAX, -1, INT64_MIN)], {0}),
            ("long metadata", [{"index": 0, "offset": 1, "metadata": "m" * 30_000}], {12}),
            ("control characters", [{"index": 0, "offset": 1, "metadata": "\0\x1b[2J\n"}], {0}),
            ("more offsets than one request may bring", [{"index": 0, "offset": 1}] * (OFFSETS_MAX + 1), {28}),
        ]:
            found = commit(5, partitions)
            if found != allowed:
                raise Unexpected(f"{what}: errors {found}, expected {allowed}")
        for kept in (0, 1, INT64_MAX, INT64_MIN):
            if commit(2, [{"index": 0, "offset": 1}], retention_ms=kept) != {0}:
                raise Unexpected(f"retention of {kept} ms is refused")
        if commit(8, [{"index": 0, "offset": 1}], group="g" * 32_000) != {24}:
            raise Unexpected("a group's name of 32,000 bytes is taken")
        if commit(8, [{"index": 0, "offset": 1}], group="unknown", generation=INT32_MAX) != {22}:
            raise Unexpected("a generation of an unknown group is taken")


@case("71 more names than one request may bring", memory_mib=96, kafka="answers them all")
def many_names(context):
    with peer_of(context, "large"):
        pass
    names = [""] * (GROUPS_MAX + 1)
    for what, frame in {
        "FindCoordinator": group_wire.frame(FIND_COORDINATOR, 4, {"keys": names}),
        "DescribeGroups": group_wire.frame(DESCRIBE_GROUPS, 5, {"groups": names}),
        "DeleteGroups": group_wire.frame(DELETE_GROUPS, 2, {"groups": names}),
        "ConsumerGroupDescribe": group_wire.frame(CONSUMER_DESCRIBE, 1, {"groups": names}),
        "OffsetFetch": group_wire.frame(OFFSET_FETCH, 8, {"groups": [{"group": "", "topics": None}] * (GROUPS_MAX + 1)}),
    }.items():
        context.closes(frame, f"{what} of {GROUPS_MAX + 1} groups")


@case("72 one large answer asked for again and again", memory_mib=160, kafka="answers as often as it is asked")
def asked_again(context):
    with peer_of(context, "again") as peer:
        topics = [{"name": TOPIC, "partitions": [{"index": 0, "offset": 1, "metadata": "m" * 4096}]}]
        peer.ask(OFFSET_COMMIT, 5, group="again", generation=-1, topics=topics)
        groups = [{"group": "again", "topics": None}] * 10_000
        for what, values in {
            "one group": (8, {"groups": groups}),
            "one partition": (5, {"group": "again", "topics": [{"name": TOPIC, "partitions": [0] * 100_000}]}),
        }.items():
            version, fields = values
            peer.post(OFFSET_FETCH, version, **fields)
            answer = peer.receive_frame()
            if len(answer) > 2 * MIB:
                raise Unexpected(f"{what}: an answer of {len(answer)} bytes")
        named = peer.ask(JOIN_GROUP, 4, **join("again-members", metadata=bytes(500_000)))
        peer.ask(JOIN_GROUP, 4, **join("again-members", member=named["member"], metadata=bytes(500_000)))
        peer.post(DESCRIBE_GROUPS, 4, groups=["again-members"] * 1000)
        answer = peer.receive_frame()
        if len(answer) > 2 * MIB:
            raise Unexpected(f"DescribeGroups of one group: an answer of {len(answer)} bytes")


def consumer(group, member="m", **more):
    return {"group": group, "member": member, "epoch": 0, "rebalance_timeout_ms": 30_000, "names": [TOPIC], "owned": [], **more}


@case("73 members of consumer groups that ask for too much", memory_mib=96, kafka="takes longer names and any number of topics")
def bad_consumers(context):
    with peer_of(context, "consumers") as peer:
        def beat(**fields):
            return peer.ask(CONSUMER_HEARTBEAT, 1, **fields)["error"]

        for name in ODD_NAMES:
            for field in ("group", "member", "instance", "rack", "assignor"):
                allowed = {42, 112} if field == "assignor" or not name else {0, 24, 42, *NOT_READY}
                expect(beat(**{**consumer("odd"), "epoch": 0, field: name}), allowed, f"{field} {name[:20]!r}")
                expect(beat(**{**consumer("odd"), "epoch": INT32_MAX, field: name}), {24, 25, 42, 69, 110, 112, *NOT_READY}, f"{field} {name[:20]!r} in a late epoch")
        for epoch in (-3, -(2**31)):
            expect(beat(**consumer("consumers", epoch=epoch)), {42}, f"epoch {epoch}")
        many = [f"topic-{number}" for number in range(200_000)]
        expect(beat(**consumer("consumers", names=many)), {42}, "200,000 topics")
        expect(beat(**consumer("consumers", names=["t" * 30_000])), {0}, "a topic's name of 30,000 bytes")
        for text in ("(" * 30_000, "((a{1000}){1000}){1000}", "(a*)*" * 5_000, "a" * 30_000, "\\p{L}" * 5_000, "[" * 1000, "(?=a)", "\0\x1b[2J"):
            expect(beat(**consumer("consumers", names=None, regex=text)), {0, 42, 128}, f"expression {text[:20]!r}")
        part = {"id": os.urandom(16), "partitions": list(range(100_000))}
        expect(beat(**consumer("consumers", "nobody", epoch=1, owned=[part] * 2)), {25, 69}, "200,000 partitions of an unknown member")
        joined = peer.ask(CONSUMER_HEARTBEAT, 1, **consumer("owners"))
        expect(joined["error"], {0}, "join")
        negative = {"id": bytes(16), "partitions": [-1, INT32_MAX, -(2**31), 0, 0]}
        expect(beat(**consumer("owners", epoch=joined["epoch"], owned=[part, negative, negative])), {0}, "partitions that nobody gave")
        expect(beat(**consumer("owners", epoch=joined["epoch"], owned=[])), {0}, "a heartbeat after it")


@case("74 members of consumer groups that are never seen again", memory_mib=64)
def gone_consumers(context):
    with Others(context.address), peer_of(context, "gone") as peer:
        for number in range(200):
            gone = group_wire.Peer(context.address)
            gone.post(CONSUMER_HEARTBEAT, 1, **consumer("gone" if number % 2 else f"gone-{number}", f"member-{number}", names=[TOPIC] * 20))
            # Half of them say goodbye, half are just gone, while the assignment is computed.
            if number % 4 < 2:
                gone.socket.setsockopt(wire.socket.SOL_SOCKET, wire.socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
        expect(peer.ask(CONSUMER_DESCRIBE, 1, groups=["gone"])["groups"][0]["error"], {0, 69}, "describe")
