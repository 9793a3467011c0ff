"""The part of group_answers.py that speaks KIP-848: members that come wrongly and rightly, what they are told step by step, and what the
APIs of the classic protocol say of their groups. Epochs are compared by what they are to each other: how many are counted for one change is
nobody's business. Standard library only."""
import time

from group_wire import (
    CONSUMER_DESCRIBE, CONSUMER_HEARTBEAT, DELETE_GROUPS, DESCRIBE_GROUPS, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, LIST_GROUPS, OFFSET_COMMIT,
    OFFSET_DELETE, OFFSET_FETCH, SYNC_GROUP, subscription,
)

# An assignment follows another so much later.
BETWEEN_SECONDS = 1.2
SETTLE_SECONDS = 20.0


class Member:
    """One that does what it is told."""

    def __init__(self, session, peer, group, name, **wishes):
        self.session, self.peer, self.group, self.name, self.wishes = session, peer, group, name, wishes
        self.epoch, self.owned = 0, []

    def beat(self, **more):
        """The whole of what a member can say."""
        fields = {"group": self.group, "member": self.name, "epoch": self.epoch, "rebalance_timeout_ms": 60_000, "owned": self.owned, **self.wishes}
        return self.peer.ask(CONSUMER_HEARTBEAT, 1, **{**fields, **more})

    def ask(self, **more):
        """As `beat`, without what differs from run to run."""
        return self.tidy(self.beat(**more))

    def tidy(self, answer):
        if answer["epoch"] > 0:
            answer = {**answer, "epoch": "as before" if answer["epoch"] == self.epoch else "later" if answer["epoch"] > self.epoch else "earlier"}
        return self.session.tidy(answer)

    def follow(self):
        """Does what it is told."""
        answer = self.beat()
        assert answer["error"] == 0, answer
        told = self.tidy(answer)
        self.epoch = answer["epoch"]
        if answer["assignment"] is not None:
            self.owned = answer["assignment"]["topics"]
        return told


def described(session, peer, group, version=1, **more):
    """What an operator sees, in an order."""
    answer = session.ask(peer, CONSUMER_DESCRIBE, version, groups=[group], **more)
    for found in answer["groups"]:
        found["members"].sort(key=lambda member: member["member"])
        epoch = found["epoch"]
        for told in [*found["members"], found]:
            told["epoch"] = "the group's" if told["epoch"] == epoch > 0 else told["epoch"]
        found["assignment_epoch"] = "the group's" if found["assignment_epoch"] == epoch > 0 else found["assignment_epoch"]
        for member in found["members"]:
            member["names"].sort()
            for which in ("assignment", "target"):
                member[which]["topics"].sort(key=lambda topic: topic["name"])
    return answer


def count(assignment):
    return sum(len(topic["partitions"]) for topic in assignment["topics"])


def counted(found):
    """How many partitions each has: which ones depends on the topics' ids, so on chance."""
    for member in found["groups"][0]["members"]:
        member["assignment"], member["target"] = count(member["assignment"]), count(member["target"])
    return found


def settle(session, peer, *members):
    """Until the group is stable, and what it looks like then."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        time.sleep(0.1)
        for member in members:
            member.follow()
        found = peer.ask(CONSUMER_DESCRIBE, 1, groups=[members[0].group])["groups"][0]
        if found["state"] == "Stable" and all(member["epoch"] == found["epoch"] for member in found["members"]):
            return described(session, peer, members[0].group)
        assert time.monotonic() < deadline, found


def wrong(session, peer, topic):
    """Requests that no member may send."""
    join = {"group": "consumers-wrong", "member": "m", "epoch": 0, "rebalance_timeout_ms": 60_000, "names": [topic], "owned": []}
    part = [{"id": bytes([1]) * 16, "partitions": [0]}]
    for name, fields in {
        "of no group": {"group": ""},
        "without a rebalance timeout": {"rebalance_timeout_ms": -1},
        "with partitions": {"owned": part},
        "without a word on partitions": {"owned": None},
        "without wishes": {"names": None},
        "with an empty instance": {"instance": ""},
        "with an empty rack": {"rack": ""},
        "with an unknown assignor": {"assignor": "odd"},
        "in an impossible epoch": {"epoch": -3},
        "that goes for a while without an instance": {"epoch": -2},
        "that goes and never was": {"epoch": -1},
        "that goes for a while and never was": {"epoch": -2, "instance": "i"},
        "of an unknown group": {"epoch": 1},
    }.items():
        for version in (0, 1):
            yield f"member {name}, version {version}", session.ask(peer, CONSUMER_HEARTBEAT, version, **{**join, **fields})
    yield "member without a name, version 1", session.ask(peer, CONSUMER_HEARTBEAT, 1, **{**join, "member": ""})
    for text in ("(", "[a", "(?=a)", "\\p{Odd}"):
        yield f"member with the expression {text}", session.ask(peer, CONSUMER_HEARTBEAT, 1, **{**join, "names": None, "regex": text})
    yield "describe after wrong members", session.ask(peer, CONSUMER_DESCRIBE, 1, groups=["consumers-wrong"])
    for version in (0, 1):
        yield f"describe consumers of no name, version {version}", session.ask(peer, CONSUMER_DESCRIBE, version, groups=[""])
        yield f"describe consumers of a classic group, version {version}", session.ask(peer, CONSUMER_DESCRIBE, version, groups=["single-1"], operations=True)


def one_member(session, peer, topic):
    """A member, what it may, and what others are told of its group."""
    ask, group = session.ask, "consumers-one"
    named = peer.ask(CONSUMER_HEARTBEAT, 0, group="consumers-named", member="", epoch=0, rebalance_timeout_ms=1_000, names=[topic], owned=[])
    session.call(named["member"], "named")
    yield "member that is given a name", session.tidy({**named, "epoch": named["epoch"] > 0})
    member = Member(session, peer, group, "A", names=[topic, "later"])
    yield "first join of a consumer", member.follow()
    yield "same heartbeat again", member.ask()
    yield "heartbeat of few words", member.tidy(peer.ask(CONSUMER_HEARTBEAT, 1, group=group, member="A", epoch=member.epoch))
    yield "heartbeat of an unknown member", ask(peer, CONSUMER_HEARTBEAT, 1, group=group, member="B", epoch=1)
    yield "heartbeat of a later epoch", member.ask(epoch=member.epoch + 1)
    yield "heartbeat with an unknown instance", member.ask(instance="i")
    yield "describe one consumer, version 0", described(session, peer, group, 0)
    yield "describe one consumer", described(session, peer, group, operations=True)
    yield "list of consumer groups", sorted(found["group"] for found in peer.ask(LIST_GROUPS, 5, types=["consumer"], states=["stable"])["groups"])
    partitions = [{"index": 0, "offset": 5, "metadata": "note"}]
    for name, fields in {"": {}, " of an unknown member": {"member": "B"}, " of a later epoch": {"generation": member.epoch + 1},
                         " of no member": {"member": "", "generation": -1}}.items():
        for version in (2, 8, 9):
            asked = {"group": group, "member": "A", "generation": member.epoch, "topics": [{"name": topic, "partitions": partitions}], **fields}
            yield f"commit of a consumer{name}, version {version}", ask(peer, OFFSET_COMMIT, version, **asked)
    for name, fields in {"": {}, " of an unknown member": {"member": "B"}, " in a later epoch": {"member_epoch": 9}, " of nobody": {"member": None, "member_epoch": -1}}.items():
        asked = {"group": group, "member": "A", "member_epoch": member.epoch, "topics": None, **fields}
        yield f"fetch of offsets by a consumer{name}", ask(peer, OFFSET_FETCH, 9, groups=[asked])
    yield "fetch of a consumer's offsets, version 7", ask(peer, OFFSET_FETCH, 7, group=group, topics=None)
    yield "heartbeat of the classic protocol", ask(peer, HEARTBEAT, 4, group=group, generation=member.epoch, member="A")
    yield "sync of the classic protocol", ask(peer, SYNC_GROUP, 5, group=group, generation=member.epoch, member="A", protocol_type="consumer", protocol="range")
    yield "leave of the classic protocol", ask(peer, LEAVE_GROUP, 5, group=group, members=[{"member": "B"}])
    yield "join of another protocol type", ask(
        peer, JOIN_GROUP, 5, group=group, session_timeout_ms=30_000, rebalance_timeout_ms=60_000, member="", protocol_type="connect",
        protocols=[{"name": "default", "metadata": b"opaque"}])
    for version in (5, 6):
        yield f"describe consumers as classic, version {version}", ask(peer, DESCRIBE_GROUPS, version, groups=[group])
    yield "delete of a group with consumers", ask(peer, DELETE_GROUPS, 2, groups=[group])
    yield "offset delete of a topic that a consumer wants", ask(peer, OFFSET_DELETE, 0, group=group, topics=[{"name": topic, "partitions": [{"index": 0}]}])
    yield "leave of a consumer", member.ask(epoch=-1)
    yield "leave of a consumer again", member.ask(epoch=-1)
    yield "describe no consumers", described(session, peer, group)
    yield "commit to a group without consumers", ask(
        peer, OFFSET_COMMIT, 8, group=group, generation=-1, topics=[{"name": topic, "partitions": partitions}])
    yield "delete of a group without consumers", ask(peer, DELETE_GROUPS, 2, groups=[group])
    yield "describe a deleted group of consumers", described(session, peer, group)


def two_members(session, peer, topic, other):
    """What each is told while the second comes and the first goes."""
    group, second = "consumers-two", session.peer()
    one, two = (Member(session, by, group, name, names=[topic, other]) for by, name in ((peer, "A"), (second, "B")))
    one.follow()
    yield "one of two alone", settle(session, peer, one)
    time.sleep(BETWEEN_SECONDS)
    two.follow()
    yield "two consumers", counted(settle(session, peer, one, two))
    answer = one.ask(epoch=one.epoch - 1)
    yield "heartbeat of the epoch before", {**answer, "assignment": count(answer["assignment"])}
    time.sleep(BETWEEN_SECONDS)
    two.wishes = {"names": [other], "assignor": "range"}
    yield "one of two wants less", settle(session, peer, one, two)
    time.sleep(BETWEEN_SECONDS)
    two.wishes = {"names": [], "regex": ".*answers$", "assignor": "range"}
    yield "one of two has an expression", settle(session, peer, one, two)
    time.sleep(BETWEEN_SECONDS)
    one.beat(epoch=-1, owned=None)
    yield "one of two is left", settle(session, peer, two)
    yield "the first after it left", one.ask()


def static_members(session, peer, topic):
    group, second = "consumers-static", session.peer()
    old, new = (Member(session, by, group, name, names=[topic], instance="i") for by, name in ((peer, "old"), (second, "new")))
    old.follow()
    yield "static consumer", settle(session, peer, old)
    yield "static consumer that is there twice", new.ask()
    yield "static consumer that goes for a while", old.ask(epoch=-2, owned=None)
    yield "describe one that is away", described(session, peer, group)
    time.sleep(BETWEEN_SECONDS)
    new.follow()
    yield "static consumer that came back", settle(session, peer, new)
    yield "heartbeat of the one before it", old.ask(epoch=new.epoch)
    yield "leave of the one before it", old.ask(epoch=-1)
    yield "leave of the static consumer", new.ask(epoch=-1)
    yield "describe without the static consumer", described(session, peer, group)


def converted(session, peer, topic):
    """A classic group becomes one of consumers, and a classic member is in it."""
    ask, group, second = session.ask, "consumers-converted", session.peer()
    join = {
        "group": group, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 60_000, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription(topic)}],
    }
    named = peer.ask(JOIN_GROUP, 9, **join, member="")
    old = session.call(named["member"], "classic")
    first = peer.ask(JOIN_GROUP, 9, **join, member=old)
    # A ConsumerProtocolAssignment of no partitions.
    parts = [{"member": old, "assignment": bytes(2) + bytes(4) + b"\xff" * 4}]
    peer.ask(SYNC_GROUP, 5, group=group, generation=first["generation"], member=old, protocol_type="consumer", protocol="range", assignments=parts)
    member = Member(session, second, group, "new", names=[topic])
    member.follow()
    found = described(session, peer, group)
    for told in found["groups"][0]["members"]:
        told["epoch"] = told["target"] = told["assignment"] = None
    yield "classic group that became one of consumers", {**found["groups"][0], "state": None}
    yield "classic heartbeat in a group of consumers", ask(peer, HEARTBEAT, 4, group=group, generation=first["generation"], member=old)
    yield "describe a group that is classic no more", ask(peer, DESCRIBE_GROUPS, 6, groups=[group])
    yield "last consumer that leaves a classic member", member.ask(epoch=-1, owned=None)
    yield "describe consumers that are classic again", described(session, peer, group)
    yield "state of a group that is classic again", ask(peer, DESCRIBE_GROUPS, 6, groups=[group])["groups"][0]["state"]
    peer.ask(LEAVE_GROUP, 5, group=group, members=[{"member": old}])


GROUPS = [f"consumers-{name}" for name in ("wrong", "named", "one", "two", "static", "converted")]


def cases(session, peer, topic, other):
    """Yields (name, answer). Both topics are labelled."""
    yield from wrong(session, peer, topic)
    yield from one_member(session, peer, topic)
    yield from two_members(session, peer, topic, other)
    yield from static_members(session, peer, topic)
    yield from converted(session, peer, topic)
