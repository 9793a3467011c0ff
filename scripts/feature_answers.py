"""The part of admin_answers.py that asks for feature levels and changes them: ApiVersions 4 and UpdateFeatures, by hand. Standard
library only.

Features have other names on the two brokers, so cases speak of one feature that each has, by its level: on Kafka of its metadata's
format, on ours of ours.
"""
import struct

import wire
from wire import Reader, string

API_VERSIONS, UPDATE_FEATURES = 18, 57
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
FORMATS = ("metadata.version", "ringlog.metadata.version")


def compact(text):
    return wire.uvarint(len(text.encode()) + 1) + text.encode()


def read_uvarint(reader):
    value = shift = 0
    while True:
        byte = reader.take(">B")
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value


def read_compact(reader):
    length = read_uvarint(reader) - 1
    if length < 0:
        return None
    reader.at += length
    return reader.data[reader.at - length:reader.at].decode()


def call_flexible(peer, api, version, body, response_header=1):
    """One request with headers that have tags; a Reader behind the response's header."""
    peer.correlation += 1
    header = struct.pack(">hhi", api, version, peer.correlation) + string("ringlog-script") + b"\0"
    peer.send(wire.frame(header + body))
    reader = Reader(peer.receive_frame())
    reader.at = 4 + response_header
    return reader


def features(peer, version=4):
    """What ApiVersions says: ({name: (lowest, highest)}, epoch, {name: (lowest, highest)})."""
    reader = call_flexible(peer, API_VERSIONS, version, compact("script") + compact("1") + b"\0", response_header=0)
    assert reader.take(">h") == 0
    for _ in range(read_uvarint(reader) - 1):
        reader.take(">hhhB")
    reader.take(">i")
    supported, epoch, finalized = {}, -1, {}
    for _ in range(read_uvarint(reader)):
        tag, size = read_uvarint(reader), read_uvarint(reader)
        if tag == 0:
            for _ in range(read_uvarint(reader) - 1):
                name = read_compact(reader)
                lowest, highest, _ = reader.take(">hhB")
                supported[name] = (lowest, highest)
        elif tag == 1:
            epoch = reader.take(">q")
        elif tag == 2:
            for _ in range(read_uvarint(reader) - 1):
                name = read_compact(reader)
                highest, lowest, _ = reader.take(">hhB")
                finalized[name] = (lowest, highest)
        else:
            reader.at += size
    return supported, epoch, finalized


def update(peer, updates, version=1, validate_only=False):
    """Updates: (name, level, upgrade type; in version 0 whether to allow a downgrade). (error, text, [(name, error, text)])"""
    body = struct.pack(">i", 30_000) + wire.uvarint(len(updates) + 1)
    for name, level, kind in updates:
        body += compact(name) + struct.pack(">hbB", level, kind, 0)
    if version >= 1:
        body += struct.pack(">b", validate_only)
    reader = call_flexible(peer, UPDATE_FEATURES, version, body + b"\0")
    reader.take(">i")
    error, text = reader.take(">h"), read_compact(reader)
    results = []
    if version <= 1:
        for _ in range(read_uvarint(reader) - 1):
            name = read_compact(reader)
            code, said = reader.take(">h"), read_compact(reader)
            reader.take(">B")
            results.append((name, code, said))
    return error, text, results


def cases(peer, texts=False):
    """Yields (name, answer)."""
    supported, epoch, finalized = features(peer)
    own = next(name for name in FORMATS if name in supported)
    lowest, highest = supported[own]
    level = finalized[own][1]

    def say(updates, **how):
        error, text, results = update(peer, [(own if name is None else name, *rest) for name, *rest in updates], **how)
        results = [(name.replace(own, "OWN"), code, *([said] if texts else [])) for name, code, said in results]
        return [error, text if texts else text is None, results]

    def now():
        _, later, levels = features(peer)
        return [later >= epoch, levels[own][1] - level, levels == finalized]

    yield "features: a new cluster has the newest format", [level == highest, lowest >= 1, finalized[own][0] == level]
    yield "features: their epoch is known", epoch >= 0
    yield "features: none without a level is finalized", all(levels[1] > 0 for levels in finalized.values())
    yield "features: up to version 3 none with a lowest level of 0", all(levels[0] > 0 for levels in features(peer, 3)[0].values())
    yield "features: up to version 3 the same are finalized", features(peer, 3)[2] == finalized
    for version in (0, 1, 2):
        yield f"update {version}: nothing", say([], version=version)
        yield f"update {version}: the level it has", say([(None, level, UPGRADE if version else 0)], version=version)
        yield f"update {version}: above what is supported", say([(None, highest + 1, UPGRADE if version else 0)], version=version)
        yield f"update {version}: down without leave", say([(None, level - 1, UPGRADE if version else 0)], version=version)
        yield f"update {version}: unknown feature", say([("no.such.feature", 1, UPGRADE if version else 0)], version=version)
    yield "update 0: down with leave", say([(None, level - 1, 1)], version=0)
    for version in (1, 2):
        yield f"update {version}: below 0", say([(None, -1, SAFE_DOWNGRADE)], version=version)
        yield f"update {version}: to 0", say([(None, 0, UNSAFE_DOWNGRADE)], version=version)
        yield f"update {version}: down safely to the lowest", say([(None, lowest, SAFE_DOWNGRADE)], version=version)
        yield f"update {version}: down unsafely to the lowest", say([(None, lowest, UNSAFE_DOWNGRADE)], version=version)
        yield f"update {version}: down to the level it has", say([(None, level, SAFE_DOWNGRADE)], version=version)
        yield f"update {version}: unknown kind", say([(None, level, 9)], version=version)
        yield f"update {version}: kind 0", say([(None, level, 0)], version=version)
        yield f"update {version}: kind below 0", say([(None, level, -1)], version=version)
        yield f"update {version}: unknown feature to 0", say([("no.such.feature", 0, UPGRADE)], version=version)
        yield f"update {version}: unknown feature down", say([("no.such.feature", 0, UNSAFE_DOWNGRADE)], version=version)
        yield f"update {version}: feature without a name", say([("", 1, UPGRADE)], version=version)
        yield f"update {version}: only looked at", say([(None, level, UPGRADE)], version=version, validate_only=True)
        yield f"update {version}: only looked at, bad", say([(None, highest + 1, UPGRADE)], version=version, validate_only=True)
        yield f"update {version}: one bad of two", say([(None, level, UPGRADE), ("no.such.feature", 1, UPGRADE)], version=version)
        yield f"update {version}: twice", say([(None, highest + 1, UPGRADE), (None, level, UPGRADE)], version=version)
        yield f"update {version}: then", now()
