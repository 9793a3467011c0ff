"""The figures of docs/evidence/groups/: the machine alone, and beside Apache Kafka 4.4 offset commits and rebalances."""
import json
import os
import statistics
import subprocess

from common import BROKER_CPU, GENERATOR_CPU, ROOT, Broker, instructions, output_of, run, target, write

PYTHON = os.path.expanduser(os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/ringlog/clients/venv/bin/python")
ROUNDS, REBALANCE_ROUNDS = 5, 3
COMMITS_PER_SECOND, COMMIT_SECONDS, WARMUP_SECONDS = 2_000, 10, 20
STATIC_MEMBERS, COOPERATIVE_MEMBERS = 40, 20
LARGEST_GAP_MS = 1_000
# Far fewer than what is timed: callgrind takes fifty times as long, and instructions hardly depend on how many there are.
COUNTED_GROUPS = 500


class Kafka:
    """A Kafka of this measurement, on the core of the broker under measurement."""

    def __enter__(self):
        self.peer, self.name = [ROOT / "scripts/kafka-peer.sh"], ["--name", f"measure-{os.getpid()}"]
        self.address = output_of([*self.peer, "start", *self.name, "--cpus", BROKER_CPU]).strip()
        self.pid = int(output_of([*self.peer, "status", *self.name]).split(" pid ")[1].split()[0])
        return self

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_):
        run([*self.peer, "stop", *self.name], stdout=subprocess.DEVNULL)


def members(what, broker, *arguments):
    """Runs consumers against a broker; what they found, with the broker's CPU while commits were under way."""
    command = ["taskset", "-c", GENERATOR_CPU, PYTHON, ROOT / "scripts/measure/group_members.py", what, broker.address, *arguments]
    child = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if what == "commits":
        child.stdout.readline()
        before = broker.cpu_seconds()
        child.stdin.write("\n")
        child.stdin.flush()
    answer = child.communicate(timeout=600)[0]
    if child.returncode or not answer:
        raise SystemExit(f"{what} against {broker.address} ended with {child.returncode}")
    found = json.loads(answer)
    if what == "commits":
        if found["failed"] or found["unanswered"]:
            raise SystemExit(f"commits against {broker.address}: {found}")
        found["cpu_us"] = (broker.cpu_seconds() - before) * 1e6 / found["commits"]
    print(f"{what} {broker.address}: {found}", flush=True)
    return found


def both(what, arguments, rounds_count, warmup=None):
    """Ours and Kafka's in turn."""
    rounds = []
    with Kafka() as kafka:
        if warmup:
            members(what, kafka, *warmup)
        for _ in range(rounds_count):
            with Broker("--shards", "1", "--set", "group.initial.rebalance.delay.ms=3000", cpu=BROKER_CPU) as broker:
                ours = members(what, broker, *arguments)
            rounds.append((ours, members(what, kafka, *arguments)))
    return rounds


def commits(out):
    arguments = ["--rate", COMMITS_PER_SECOND, "--seconds", COMMIT_SECONDS]
    rounds = both("commits", arguments, ROUNDS, warmup=["--rate", COMMITS_PER_SECOND, "--seconds", WARMUP_SECONDS])
    values = {"cpu_ratio": round(statistics.median(ours["cpu_us"] / kafka["cpu_us"] for ours, kafka in rounds), 3)}
    for name, side in (("ours", 0), ("kafka", 1)):
        values[f"{name}_cpu_us"] = round(statistics.median(row[side]["cpu_us"] for row in rounds), 2)
        values[f"{name}_per_second"] = statistics.median(row[side]["per_second"] for row in rounds)
    write(out, "commits", f"broker CPU of an offset commit beside Apache Kafka 4.4, one core each, 20 groups, {COMMITS_PER_SECOND:,} a second "
          f"by librdkafka; ours is synced before the answer, Kafka's is not; medians of {ROUNDS} alternated pairs",
          "scripts/measure.py groups --only commits", {"value": "cpu_ratio", "op": "<=", "limit": 0.5}, values=values)


def rebalance(out, what, count, figure, bounds):
    rounds = both(what, ["--members", count], REBALANCE_ROUNDS)
    values = {f"{name}_{key}": max(row[side][key] for row in rounds)
              for name, side in (("ours", 0), ("kafka", 1)) for key in rounds[0][0]}
    write(out, what, f"{figure}; confluent-kafka, a record to each partition each 100 ms, the largest gap that a partition which stays had; "
          f"the worst of {REBALANCE_ROUNDS} runs of each broker", f"scripts/measure.py groups --only {what}", bounds, values=values)


def static(out):
    rebalance(out, "static", STATIC_MEMBERS, f"a rolling restart of {STATIC_MEMBERS} static members, beside Apache Kafka 4.4",
              [{"value": "ours_moved_partitions", "op": "==", "limit": 0}, {"value": "ours_largest_gap_ms", "op": "<=", "limit": LARGEST_GAP_MS}])


def cooperative(out):
    rebalance(out, "cooperative", COOPERATIVE_MEMBERS, f"one member more in a cooperative group of {COOPERATIVE_MEMBERS}, beside Apache Kafka 4.4",
              [{"value": "ours_largest_gap_ms", "op": "<=", "limit": LARGEST_GAP_MS}])


def counted(binary):
    """Instructions of a join, a heartbeat and a leave."""
    values = {}
    for name, function, counts in (("join", "joins", "members"), ("heartbeat", "lives", "heartbeats"), ("leave", "leaves", "members")):
        count, printed = instructions([binary, COUNTED_GROUPS], f"--toggle-collect=*group_machine::{function}*")
        values[f"{name}_instructions"] = round(count / json.loads(printed)[counts])
    return values


def machine(out):
    binary = target() / "release/examples/group_machine"
    figures = json.loads(output_of([binary], timeout=600))
    assignments = figures["assignment_of_1000_members_and_10000_partitions"]
    values = {
        "groups": figures["groups"], "members": figures["members"],
        "heartbeat_us": [round(value, 2) for value in figures["heartbeat_us"]],
        "heartbeat_us_max": round(max(figures["heartbeat_us"]), 2),
        "join_us": round(figures["join_us"], 1), "leave_us": round(figures["leave_us"], 1), **counted(binary),
        "assignment_ms_max": round(max(value for case in assignments.values() for value in case.values()), 2),
        "idle_group_bytes": figures["counted_bytes_per_idle_group"],
        "member_bytes": figures["counted_bytes_per_member"], "member_resident_bytes": figures["resident_bytes_per_member"],
        **{f"{case.replace(' ', '_')}_ms": [round(value, 2) for value in both.values()] for case, both in assignments.items()},
    }
    write(out, "machine", "the machine of groups alone, without log and network: processor time of its thread for a heartbeat of KIP-848 "
          "(the worst of five rounds over all members), for the assignment of a group of 1,000 members and 10,000 partitions (first, and after "
          "one went), the memory that it counts for a group that all members left, and instructions of a join, a heartbeat and a leave, counted by "
          f"callgrind in a run of {COUNTED_GROUPS} groups",
          "scripts/measure.py groups --only machine",
          [{"value": "groups", "op": ">=", "limit": 10_000}, {"value": "members", "op": ">=", "limit": 100_000},
           {"value": "heartbeat_us_max", "op": "<=", "limit": 5}, {"value": "assignment_ms_max", "op": "<=", "limit": 50},
           {"value": "idle_group_bytes", "op": "<=", "limit": 4096}], values=values)


ROWS = {"machine": machine, "commits": commits, "static": static, "cooperative": cooperative}
