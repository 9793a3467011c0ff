#!/usr/bin/env python3
"""Writes README.md's tables from docs/evidence/: of clients, from the results of the last full matrices
(skeleton/clients.json, groups/clients.json), and of figures, each with its bound and whether it holds.

With --check nothing is written: exit 1 when a table is not what the results say.
"""
import json
import operator
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
RESULTS = EVIDENCE / "skeleton" / "clients.json"
GROUP_RESULTS = EVIDENCE / "groups" / "clients.json"
OPERATORS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}
# (what, file below docs/evidence/, the value in it, unit)
FIGURES = [
    ("Start of an empty broker", "skeleton/start", "start_ms", "ms"),
    ("Memory of an empty broker", "skeleton/start", "resident_mib", "MiB"),
    ("Start after kill -9, 20 GiB in 1,000 partitions, caches dropped, the longest", "storage/restart",
     "dropped_2_shards_seconds_max", "s"),
    ("The same, with another number of shards", "storage/restart", "dropped_1_to_2_shards_seconds_max", "s"),
    ("Journal commit against a bare synced write, p50", "skeleton/journal", "p50_ratio", "x"),
    ("Commit beside a checkpoint against one without, p99.9, 100 logs", "storage/commit-beside-checkpoint",
     "100_logs_p999_ratio", "x"),
    ("The same, 2,000 logs", "storage/commit-beside-checkpoint", "2000_logs_p999_ratio", "x"),
    ("Bytes written for each byte appended, 1 KiB batches", "storage/write-amplification", "1k_off_device", "x"),
    ("The same, 64 KiB batches, bypass on", "storage/write-amplification", "64k_on_device", "x"),
    ("The same, 960 KiB batches, bypass on", "storage/write-amplification", "1m_on_device", "x"),
    ("10,000 partitions against 10: CPU for each record", "storage/partitions", "cpu_ratio", "x"),
    ("Memory of an idle partition, empty", "storage/idle-partitions", "empty_bytes", "bytes"),
    ("Memory of an idle partition with data", "storage/idle-partitions", "with_data_bytes", "bytes"),
    ("Broker CPU beside Apache Kafka, 64 KiB batches", "skeleton/produce-64k", "cpu_ratio", "x"),
    ("Broker CPU beside Apache Kafka, 10 records of 100 B a batch", "skeleton/produce-small", "cpu_ratio", "x"),
    ("Broker CPU beside Apache Kafka, an offset commit", "groups/commits", "cpu_ratio", "x"),
    ("A heartbeat of KIP-848 in the machine of groups, 100,000 members", "groups/machine", "heartbeat_us_max", "us"),
    ("Assignment of 1,000 members and 10,000 partitions", "groups/machine", "assignment_ms_max", "ms"),
    ("Memory of an idle group", "groups/machine", "idle_group_bytes", "bytes"),
    ("Partitions moved by a rolling restart of 40 static members", "groups/static", "ours_moved_partitions", "partitions"),
    ("Largest gap of the unaffected while one joins 20 cooperative members", "groups/cooperative", "ours_largest_gap_ms", "ms"),
]


def share(rows):
    if not rows:
        return "not run"
    good = sum(row["ok"] for row in rows)
    return f"{good} of {len(rows)}"


def told(report, path):
    return f"Level {report['level']}, commit {report['commit'][:10]}, {report['date']}: [{path}]({path})."


def table(report, groups):
    rows, group_rows = report["rows"], groups["rows"]
    lines = ["| client | wrote | read back, byte by byte | after kill -9 and other shards | in groups |", "|---|---|---|---|---|"]
    for client, version in sorted({**report["versions"], **groups["versions"]}.items()):
        wrote = [row for row in rows if row["phase"] == "produce" and row.get("producer") == client]
        read = [row for row in rows if row["phase"] == "consume" and row.get("consumer") == client]
        again = [row for row in rows if row["phase"].startswith("kill") and row.get("consumer") == client]
        joined = [row for row in group_rows if client in row.get("clients", ())]
        lines.append(f"| {version} | {share(wrote)} | {share(read)} | {share(again)} | {share(joined)} |")
    scenarios = sorted({row["scenario"] for row in group_rows if row.get("clients") and row["clients"] != ["tools"]})
    protocols = sorted({row["protocol"] for row in group_rows if row.get("protocol")})
    lines.append("")
    lines.append("Written and read: a cell is a topic: writer, codec, acks and idempotence, on 1 and 2 shards and both drivers. "
                 + told(report, "docs/evidence/skeleton/clients.json"))
    lines.append("")
    lines.append(f"In groups: a cell is one of {len(scenarios)} scenarios in a protocol that the client has ({', '.join(protocols)}), alone or with another "
                 "client in the same group. " + told(groups, "docs/evidence/groups/clients.json"))
    return "\n".join(lines)


def clients():
    if not RESULTS.exists() or not GROUP_RESULTS.exists():
        return "No full run is recorded yet: `scripts/test.sh --full` writes one."
    return table(*(json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, GROUP_RESULTS)))


def figures():
    lines = ["| what | measured | bound | |", "|---|---|---|---|"]
    for what, file, name, unit in FIGURES:
        path = EVIDENCE / f"{file}.json"
        if not path.exists():
            lines.append(f"| {what} | not yet | | |")
            continue
        figure = json.loads(path.read_text(encoding="utf-8"))
        bounds = figure["bound"] if isinstance(figure["bound"], list) else [figure["bound"]]
        bound = next(bound for bound in bounds if bound.get("value") == name)
        value = figure["values"][name]
        verdict = "holds" if OPERATORS[bound["op"]](value, bound["limit"]) else "missed"
        lines.append(f"| {what} | {value:,} {unit} | {bound['op']} {bound['limit']:,} | "
                     f"[{verdict}](docs/evidence/{file}.json) |")
    return "\n".join(lines)


TABLES = {"clients": clients, "figures": figures}


def main():
    readme = ROOT / "README.md"
    text = wanted = readme.read_text(encoding="utf-8")
    for name, body in TABLES.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, mark, rest = wanted.partition(begin)
        _, end_mark, after = rest.partition(end)
        if not mark or not end_mark:
            print(f"README.md has no {begin} ... {end}", file=sys.stderr)
            return 2
        wanted = f"{before}{begin}\n{body()}\n{end}{after}"
    if "--check" in sys.argv[1:]:
        if wanted != text:
            print("README.md's tables are not what the results say: scripts/readme-table.py", file=sys.stderr)
            return 1
        return 0
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
