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
