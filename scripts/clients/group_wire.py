"""Requests of consumer groups by hand, in every version: tables of fields and the little code that reads them. Written apart
from the Rust codec, so that one cannot hide an error of the other. Standard library only.

A field is (name, type, versions): types are b i8, h i16, i i32, q i64, ? bool, s string or null, B bytes or null, u uuid, and a list
of fields for an array of structures, or a type in a list for an array of values; ('?', fields) is one structure or null, ('=', fields) one
structure. Versions are "3+", "0-2" or "" for all."""
import base64
import struct

import wire

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = range(8, 15)
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 42, 47
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69

_THROTTLE = ("throttle", "i")


def _offsets(named):
    return [named, ("partitions", [("index", "i", ""), ("offset", "q", ""), ("epoch", "i", "5+"), ("metadata", "s", ""), ("error", "h", "")], "")]


def _assigned(named):
    return [("topics", [("id", "u", ""), *named, ("partitions", ["i"], "")], "")]


# API: (first flexible version, newest version, fields of the request, fields of the response).
APIS = {
    FIND_COORDINATOR: (3, 6, [("key", "s", "0-3"), ("key_type", "b", "1+"), ("keys", ["s"], "4+")], [
        (*_THROTTLE, "1+"), ("error", "h", "0-3"), ("message", "s", "1-3"), ("node", "i", "0-3"), ("host", "s", "0-3"), ("port", "i", "0-3"),
        ("coordinators", [("key", "s", ""), ("node", "i", ""), ("host", "s", ""), ("port", "i", ""), ("error", "h", ""), ("message", "s", "")], "4+")]),
    JOIN_GROUP: (6, 9, [
        ("group", "s", ""), ("session_timeout_ms", "i", ""), ("rebalance_timeout_ms", "i", "1+"), ("member", "s", ""), ("instance", "s", "5+"),
        ("protocol_type", "s", ""), ("protocols", [("name", "s", ""), ("metadata", "B", "")], ""), ("reason", "s", "8+")], [
        (*_THROTTLE, "2+"), ("error", "h", ""), ("generation", "i", ""), ("protocol_type", "s", "7+"), ("protocol", "s", ""), ("leader", "s", ""),
        ("skip_assignment", "?", "9+"), ("member", "s", ""),
        ("members", [("member", "s", ""), ("instance", "s", "5+"), ("metadata", "B", "")], "")]),
    SYNC_GROUP: (4, 5, [
        ("group", "s", ""), ("generation", "i", ""), ("member", "s", ""), ("instance", "s", "3+"), ("protocol_type", "s", "5+"), ("protocol", "s", "5+"),
        ("assignments", [("member", "s", ""), ("assignment", "B", "")], "")], [
        (*_THROTTLE, "1+"), ("error", "h", ""), ("protocol_type", "s", "5+"), ("protocol", "s", "5+"), ("assignment", "B", "")]),
    HEARTBEAT: (4, 4, [("group", "s", ""), ("generation", "i", ""), ("member", "s", ""), ("instance", "s", "3+")], [
        (*_THROTTLE, "1+"), ("error", "h", "")]),
    LEAVE_GROUP: (4, 5, [
        ("group", "s", ""), ("member", "s", "0-2"), ("members", [("member", "s", ""), ("instance", "s", ""), ("reason", "s", "5+")], "3+")], [
        (*_THROTTLE, "1+"), ("error", "h", ""), ("members", [("member", "s", ""), ("instance", "s", ""), ("error", "h", "")], "3+")]),
    OFFSET_COMMIT: (8, 10, [
        ("group", "s", ""), ("generation", "i", ""), ("member", "s", ""), ("instance", "s", "7+"), ("retention_ms", "q", "2-4"),
        ("topics", [("name", "s", "2-9"), ("id", "u", "10+"), ("partitions", [
            ("index", "i", ""), ("offset", "q", ""), ("epoch", "i", "6+"), ("metadata", "s", "")], "")], "")], [
        (*_THROTTLE, "3+"), ("topics", [("name", "s", "2-9"), ("id", "u", "10+"), ("partitions", [("index", "i", ""), ("error", "h", "")], "")], "")]),
    OFFSET_FETCH: (6, 10, [
        ("group", "s", "1-7"), ("topics", [("name", "s", ""), ("partitions", ["i"], "")], "1-7"),
        ("groups", [("group", "s", ""), ("member", "s", "9+"), ("member_epoch", "i", "9+"), ("topics", [
            ("name", "s", "8-9"), ("id", "u", "10+"), ("partitions", ["i"], "")], "")], "8+"), ("require_stable", "?", "7+")], [
        (*_THROTTLE, "3+"), ("topics", _offsets(("name", "s", "")), "1-7"), ("error", "h", "2-7"),
        ("groups", [("group", "s", ""), ("topics", [("name", "s", "8-9"), ("id", "u", "10+"), *_offsets(("", "", "-"))[1:]], ""), ("error", "h", "")], "8+")]),
    DESCRIBE_GROUPS: (5, 6, [("groups", ["s"], ""), ("operations", "?", "3+")], [
        (*_THROTTLE, "1+"), ("groups", [
            ("error", "h", ""), ("message", "s", "6+"), ("group", "s", ""), ("state", "s", ""), ("protocol_type", "s", ""), ("protocol", "s", ""),
            ("members", [("member", "s", ""), ("instance", "s", "4+"), ("client", "s", ""), ("host", "s", ""), ("metadata", "B", ""), ("assignment", "B", "")], ""),
            ("operations", "i", "3+")], "")]),
    LIST_GROUPS: (3, 5, [("states", ["s"], "4+"), ("types", ["s"], "5+")], [
        (*_THROTTLE, "1+"), ("error", "h", ""), ("groups", [("group", "s", ""), ("protocol_type", "s", ""), ("state", "s", "4+"), ("type", "s", "5+")], "")]),
    DELETE_GROUPS: (2, 2, [("groups", ["s"], "")], [(*_THROTTLE, ""), ("results", [("group", "s", ""), ("error", "h", "")], "")]),
    OFFSET_DELETE: (99, 0, [("group", "s", ""), ("topics", [("name", "s", ""), ("partitions", [("index", "i", "")], "")], "")], [
        ("error", "h", ""), (*_THROTTLE, ""), ("topics", [("name", "s", ""), ("partitions", [("index", "i", ""), ("error", "h", "")], "")], "")]),
}

APIS[CONSUMER_HEARTBEAT] = (0, 1, [
    ("group", "s", ""), ("member", "s", ""), ("epoch", "i", ""), ("instance", "s", ""), ("rack", "s", ""), ("rebalance_timeout_ms", "i", ""),
    ("names", ["s"], ""), ("regex", "s", "1+"), ("assignor", "s", ""), ("owned", [("id", "u", ""), ("partitions", ["i"], "")], "")], [
    (*_THROTTLE, ""), ("error", "h", ""), ("message", "s", ""), ("member", "s", ""), ("epoch", "i", ""), ("interval_ms", "i", ""),
    ("assignment", ("?", _assigned([])), "")])
APIS[CONSUMER_DESCRIBE] = (0, 1, [("groups", ["s"], ""), ("operations", "?", "")], [
    (*_THROTTLE, ""), ("groups", [
        ("error", "h", ""), ("message", "s", ""), ("group", "s", ""), ("state", "s", ""), ("epoch", "i", ""), ("assignment_epoch", "i", ""),
        ("assignor", "s", ""),
        ("members", [
            ("member", "s", ""), ("instance", "s", ""), ("rack", "s", ""), ("epoch", "i", ""), ("client", "s", ""), ("host", "s", ""),
            ("names", ["s"], ""), ("regex", "s", ""), ("assignment", ("=", _assigned([("name", "s", "")])), ""),
            ("target", ("=", _assigned([("name", "s", "")])), ""), ("type", "b", "1+")], ""),
        ("operations", "i", "")], "")])

# What a field is where a request does not say.
DEFAULTS = {"b": 0, "h": 0, "i": 0, "q": 0, "?": False, "s": "", "B": b"", "u": bytes(16)}
NAMED_DEFAULTS = {"rebalance_timeout_ms": -1, "epoch": -1, "retention_ms": -1, "member_epoch": -1, "instance": None, "reason": None,
                  "rack": None, "names": None, "regex": None, "assignor": None, "owned": None}


def _has(versions, version):
    if not versions:
        return True
    low, _, high = versions.replace("+", "-32767").partition("-")
    return bool(low) and int(low) <= version <= int(high)


class _Writer:
    def __init__(self, version, flexible):
        self.version, self.flexible, self.out = version, flexible, bytearray()

    def length(self, count, form):
        """Of an array or text; -1 is null."""
        self.out += wire.uvarint(count + 1) if self.flexible else struct.pack(form, count)

    def value(self, kind, value):
        if kind == "s":
            data = None if value is None else value if isinstance(value, bytes) else value.encode()
            self.length(-1 if data is None else len(data), ">h")
            self.out += data or b""
        elif kind == "B":
            self.length(-1 if value is None else len(value), ">i")
            self.out += value or b""
        elif kind == "u":
            self.out += value
        else:
            self.out += struct.pack(">" + kind, value)

    def field(self, kind, value):
        if isinstance(kind, tuple):
            form, fields = kind
            if form == "?":
                self.out += struct.pack(">b", -1 if value is None else 1)
            if value is not None:
                self.fields(fields, value)
            return
        if not isinstance(kind, list):
            self.value(kind, value)
            return
        self.length(-1 if value is None else len(value), ">i")
        for item in value or ():
            if isinstance(kind[0], str):
                self.value(kind[0], item)
            else:
                self.fields(kind, item)

    def fields(self, fields, values):
        unknown = set(values) - {name for name, _, _ in fields}
        assert not unknown, unknown
        for name, kind, versions in fields:
            if _has(versions, self.version):
                default = NAMED_DEFAULTS.get(name, [] if isinstance(kind, list) else DEFAULTS.get(kind) if isinstance(kind, str) else None)
                self.field(kind, values.get(name, default))
        if self.flexible:
            self.out += b"\0"


class _Reader(wire.Reader):
    def __init__(self, data, version, flexible):
        super().__init__(data)
        self.version, self.flexible = version, flexible

    def uvarint(self):
        value = shift = 0
        while True:
            byte = self.take(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def length(self, form):
        return self.uvarint() - 1 if self.flexible else self.take(form)

    def raw(self, length):
        assert self.at + length <= len(self.data), "the response ends early"
        self.at += length
        return self.data[self.at - length:self.at]

    def value(self, kind):
        if kind == "s":
            length = self.length(">h")
            return None if length < 0 else self.raw(length).decode()
        if kind == "B":
            length = self.length(">i")
            return None if length < 0 else self.raw(length)
        if kind == "u":
            return self.raw(16)
        return self.take(">" + kind)

    def field(self, kind):
        if isinstance(kind, tuple):
            form, fields = kind
            return None if form == "?" and self.take(">b") < 0 else self.fields(fields)
        if not isinstance(kind, list):
            return self.value(kind)
        count = self.length(">i")
        if count < 0:
            return None
        return [self.value(kind[0]) if isinstance(kind[0], str) else self.fields(kind) for _ in range(count)]

    def tags(self):
        for _ in range(self.uvarint()):
            self.uvarint()
            self.raw(self.uvarint())

    def fields(self, fields):
        found = {name: self.field(kind) for name, kind, versions in fields if _has(versions, self.version)}
        if self.flexible:
            self.tags()
        return found


def body(api, version, values):
    """The body of a request."""
    flexible_since, _, fields, _ = APIS[api]
    writer = _Writer(version, version >= flexible_since)
    writer.fields(fields, values)
    return bytes(writer.out)


def frame(api, version, values, correlation=1, client="ringlog-script"):
    """A whole request."""
    header = struct.pack(">hhi", api, version, correlation) + wire.string(client)
    if version >= APIS[api][0]:
        header += b"\0"
    return wire.frame(header + body(api, version, values))


class Peer(wire.Connection):
    """A connection that speaks of groups."""

    def post(self, api, version, **values):
        """Sends a request; `take` reads its answer."""
        self.correlation += 1
        self.send(frame(api, version, values, self.correlation))
        return api, version

    def take(self, posted):
        """The answer, without its throttle time."""
        api, version = posted
        flexible_since, _, _, fields = APIS[api]
        answer = self.receive_frame()
        reader = _Reader(answer, version, version >= flexible_since)
        got = reader.take(">i")
        assert got == self.correlation, f"correlation id {got}, expected {self.correlation}"
        if reader.flexible:
            reader.tags()
        found = reader.fields(fields)
        assert reader.at == len(answer), f"{len(answer) - reader.at} bytes behind the answer"
        found.pop("throttle", None)
        return found

    def ask(self, api, version, **values):
        return self.take(self.post(api, version, **values))


def topic_id(address, topic):
    """16 bytes, from Metadata v12."""
    import brokers  # noqa: PLC0415 - needs this folder only where ids are asked for
    with wire.Connection(address) as peer:
        text = brokers._topic_id(peer, topic)
    return base64.urlsafe_b64decode(text + "==")


def subscription(*topics, version=1, owned=()):
    """A ConsumerProtocolSubscription: version, topics, user data, owned partitions."""
    out = struct.pack(">h", version) + wire.array([wire.string(topic) for topic in topics]) + struct.pack(">i", -1)
    if version >= 1:
        out += wire.array([wire.string(topic) + wire.array([struct.pack(">i", part) for part in parts]) for topic, parts in owned])
    return out
