"""kafka-consumer-groups of Kafka's own tools, and `ringlog group`, on groups of real clients: each says what the other changed."""
import json
import os
import subprocess
import sys

import group_life

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools"))
import tools_client  # noqa: E402

TOOL = "consumer.group.ConsumerGroupCommand"
CLIENT = "Kafka tools " + tools_client.VERSION


def tool(address, *arguments):
    """The lines of the tool's answer, as words."""
    text = tools_client.tool(TOOL, "--bootstrap-server", address, *arguments).decode()
    return [line.split() for line in text.splitlines() if line.strip()]


def offsets(lines, column):
    """{partition: number} from a table of the tool whose third column is the partition."""
    return {int(words[2]): int(words[column]) for words in lines if len(words) > column and words[2].isdigit()}


def ringlog(binary, address, *arguments):
    """The answer of `ringlog group`, from JSON."""
    done = subprocess.run([binary, "group", "-b", address, "-o", "json", *arguments], capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise AssertionError(f"ringlog group {' '.join(arguments)}: exit {done.returncode}: {done.stderr[-300:].decode(errors='replace')}")
    return json.loads(done.stdout)


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got}, expected {wanted}")


def report(group):
    """`ringlog group describe` of a group, and its rows by partition, which must be those of its topic."""
    told = ringlog(group.binary, group.address, "describe", group.name)[0]
    rows = {row["partition"]: row for row in told["partitions"]}
    if rows:
        expect("partitions described", (len(told["partitions"]), sorted(rows)), (group_life.PARTITIONS, list(range(group_life.PARTITIONS))))
        expect("topics described", {row["topic"] for row in rows.values()}, {group.topic})
    return told, rows


def left_behind(group, lag):
    """`ringlog group describe` of a group that nobody is in, `lag` records behind in each partition."""
    if not group.binary:
        return
    group.wait("`ringlog group describe` says Empty", lambda: report(group)[0]["state"] == "Empty")
    told, rows = report(group)
    expect("members described", told["members"], [])
    expect("owners described", {row["member"] for row in rows.values()}, {None})
    expect("committed", [row["committed_offset"] for _, row in sorted(rows.items())], [end - lag for end in group.ends])
    expect("lag", {row["lag_records"] for row in rows.values()}, {lag})
    expect("lag in all", told["total"]["lag_records"], lag * group_life.PARTITIONS)
    if not all(isinstance(row["lag_ms"], int) for row in rows.values()):
        raise AssertionError(f"a lag without its time: {told['partitions']}")


def shared(group, members, instances=(None, None)):
    """`ringlog group describe` of a group whose members have read all: who they are and what each owns, by their own word."""
    if not group.binary:
        return
    group.wait("`ringlog group describe` says Stable", lambda: report(group)[0]["state"] == "Stable")
    told, rows = report(group)
    owned = {row["member"]: set() for row in told["members"]}
    expect("members described", len(owned), len(members))
    expect("instances described", {row["instance"] for row in told["members"]}, set(instances))
    for partition, row in rows.items():
        owned[row["member"]].add(partition)
    expect("partitions of members", {row["member"]: row["partitions"] for row in told["members"]}, {name: len(parts) for name, parts in owned.items()})
    if not any(member.client in group_life.SILENT for member in members):
        expect("assignment", sorted(map(sorted, owned.values())), sorted(sorted(member.owned) for member in members))
    expect("committed", [row["committed_offset"] for _, row in sorted(rows.items())], group.ends)
    expect("lag", [row["lag_records"] for row in rows.values()] + [told["total"]["lag_records"]], [0] * (group_life.PARTITIONS + 1))


def listed(binary, address, protocols):
    """`ringlog group list` while members are there; {name: protocol}, of a group in conversion any."""
    kinds = {item["group"]: (item["state"], item["type"]) for item in ringlog(binary, address, "list")}
    for name, protocol in protocols.items():
        state, kind = kinds.get(name, (None, None))
        if state is None or state in ("Empty", "Dead") or ("+" not in protocol and kind != ("consumer" if protocol == "consumer" else "classic")):
            raise AssertionError(f"`ringlog group list` says of {name}: {state}, {kind}")
    return f"{len(kinds)} groups"


def living(address, names, group):
    """List and describe while a member is there."""
    listed = {words[0] for words in tool(address, "--list")}
    if not set(names) <= listed:
        raise AssertionError(f"--list lacks {sorted(set(names) - listed)}")
    lines = tool(address, "--describe", "--group", group.name)
    expect("current offsets", offsets(lines, 3), dict(enumerate(group.ends)))
    expect("lag", offsets(lines, 5), dict.fromkeys(range(group_life.PARTITIONS), 0))
    members = {words[6] for words in lines if len(words) > 6 and words[2].isdigit()}
    if len(members) != 1 or members == {"-"}:
        raise AssertionError(f"one member has all partitions, the tool says {sorted(members)}")
    state = tool(address, "--describe", "--group", group.name, "--state")
    expect("members in --state", state[-1][-1], "1")
    return f"{len(listed)} groups"


def left(address, group, binary):
    """Offsets of a group without members, moved by one tool and read by the other, and its end."""
    partitions, topic = range(group_life.PARTITIONS), ("--topic", group.topic, "--execute")
    moved = tool(address, "--reset-offsets", "--group", group.name, "--to-earliest", *topic)
    expect("--reset-offsets --to-earliest", offsets(moved, 3), dict.fromkeys(partitions, 0))
    expect("committed then", group.committed(), [0] * group_life.PARTITIONS)
    moved = tool(address, "--reset-offsets", "--group", group.name, "--shift-by", "7", *topic)
    expect("--reset-offsets --shift-by 7", offsets(moved, 3), dict.fromkeys(partitions, 7))
    if binary:
        ringlog(binary, address, "seek", group.name, "-t", group.topic, "--to", "+2", "--yes")
        lines = tool(address, "--describe", "--group", group.name)
        expect("what the tool shows after `ringlog group seek`", offsets(lines, 3), dict.fromkeys(partitions, 9))
        names = [item["group"] for item in ringlog(binary, address, "list")]
        if group.name not in names:
            raise AssertionError(f"`ringlog group list` lacks {group.name}: {names}")
    tool(address, "--delete", "--group", group.name)
    names = {words[0] for words in tool(address, "--list") if words}
    if group.name in names:
        raise AssertionError(f"{group.name} is still listed after --delete")
    return f"{group.name} moved and deleted"


def check(results, scenario, function):
    results.versions["tools"] = CLIENT
    results.check(function, clients=["tools"], protocol=None, scenario=scenario)
