#!/usr/bin/env python3
"""Checks the figures of docs/evidence/NAME/*.json, and that promises in the documents name tests that exist.

A figure is one JSON object:
  figure, command, machine   text: what was measured, by which command, on what machine
  commit, date               the commit that was measured (an ancestor of HEAD), YYYY-MM-DD
  value                      a number, or `values`: an object of numbers and lists
  bound                      null, or {"op": "<=", "limit": 1.3} with "value": NAME where `values` holds several;
                             a list of such objects where a figure has several bounds
  miss_explained             by how much and why, when a bound does not hold
The figures that an issue asks for are in WANTED: each must be there and state its bounds, none weaker.
A promise in README.md, ARCHITECTURE.md or docs/ is a list item or paragraph with `Promise:`; it names its test as
(test: PATH::FUNCTION), or (test: PATH) for a script. Every such name, anywhere in them, must exist. So must each name in
backticks in the last column of a table whose header ends with `Held by`; every row of it is a promise and names one.
"""
import argparse
import datetime
import json
import operator
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPERATORS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}
AT_MOST, AT_LEAST, EXACTLY = "<=", ">=", "=="
TORTURE_CYCLES = {"kill9": 2000, "powercut": 2000, "reshard": 200, "disk-full": 100, "write-error": 100, "read-error": 100,
                  "bitflip": 100, "stall": 100, "memory": 100}
RESTARTS = [f"{caches}_{shards}" for caches in ("warm", "dropped")
            for shards in ("1_shard", "2_shards", "1_to_2_shards", "2_to_1_shards")]
# Issue -> file -> (value, operator, limit) of each bound that it must state.
WANTED = {
    "storage": {
        **{fault: [("cycles", AT_LEAST, cycles), *((name, EXACTLY, 0) for name in ("failures", "anomalies", "failed_starts"))]
           for fault, cycles in TORTURE_CYCLES.items()},
        "restart": [("data_gib", AT_LEAST, 19.8), *((f"{case}_seconds_max", AT_MOST, 5) for case in RESTARTS)],
        "commit-beside-checkpoint": [("100_logs_p999_ratio", AT_MOST, 2), ("2000_logs_p999_ratio", AT_MOST, 2)],
        "write-amplification": [
            *((f"1k_off_{where}", AT_MOST, 2.2) for where in ("process", "device")),
            *((f"{size}_on_{where}", AT_MOST, 1.1) for size in ("64k", "1m") for where in ("process", "device"))],
        "partitions": [("cpu_ratio", AT_MOST, 1.25), ("many_descriptors_of_4096", AT_MOST, 2092)],
        "idle-partitions": [("empty_bytes", AT_MOST, 4096), ("with_data_bytes", AT_MOST, 4096)],
        "crash-seeds": [("crash_seeds", AT_LEAST, 100_000), ("failures", EXACTLY, 0)],
        "simulation": [("failures", EXACTLY, 0), ("seeds", AT_LEAST, 310), ("operations_per_cpu_second", AT_LEAST, 50_000)],
        "flushes": [],
        "bypass": [],
    },
    "raft": {
        "model": [("sound_runs_broken", EXACTLY, 0), ("sound_runs_incomplete", EXACTLY, 0), ("mistakes_found", EXACTLY, 25)],
        "simulation": [("seeds", AT_LEAST, 100_000), ("failures", EXACTLY, 0)],
        "replicas": [("seeds", AT_LEAST, 1_000), ("failures", EXACTLY, 0)],
        "memory": [*((name, AT_MOST, 1024) for name in ("follower_bytes", "group_of_one_bytes", "leader_of_three_bytes")),
                   ("steady_state_allocations", EXACTLY, 0)],
        "produce": [("ratio_1_records", AT_MOST, 1.03), ("ratio_10_records", AT_MOST, 1.03)],
    },
    "groups": {
        "machine": [("groups", AT_LEAST, 10_000), ("members", AT_LEAST, 100_000), ("heartbeat_us_max", AT_MOST, 5),
                    ("assignment_ms_max", AT_MOST, 50), ("idle_group_bytes", AT_MOST, 4096)],
        "commits": [("cpu_ratio", AT_MOST, 0.5)],
        "static": [("ours_moved_partitions", EXACTLY, 0)],
        "cooperative": [("ours_largest_gap_ms", AT_MOST, 1000)],
        "clients": [("failed", EXACTLY, 0)],
    },
}
TEST_NAME = re.compile(r"\(test: `?([^`)]+)`?\)")


def wanted_problems(name, files):
    """Figures that the issue asks for and that are not there, and bounds that they leave out or weaken."""
    problems = []
    for figure, bounds in WANTED.get(name, {}).items():
        path = next((path for path in files if path.stem == figure), None)
        if path is None:
            problems.append(f"docs/evidence/{name}/{figure}.json is missing")
            continue
        try:
            stated = json.loads(path.read_text(encoding="utf-8")).get("bound") or []
        except (ValueError, AttributeError):
            continue  # figure_problems says so
        for value, op, limit in bounds:
            # A tighter bound of the same kind is as good.
            held = any(bound.get("value") == value and bound.get("op") == op and OPERATORS[op](bound.get("limit"), limit)
                       for bound in (stated if isinstance(stated, list) else [stated]))
            if not held:
                problems.append(f"docs/evidence/{name}/{figure}.json does not state {value} {op} {limit}")
    return problems


def is_ancestor(commit):
    command = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(command, capture_output=True).returncode == 0


def bound_problems(figure, lines):
    """Problems of the bounds; what holds or is explained goes to `lines`."""
    bounds = figure["bound"]
    if bounds is None:
        lines.append("no bound")
        return []
    problems = []
    for bound in bounds if isinstance(bounds, list) else [bounds]:
        name = bound.get("value")
        value = figure["values"].get(name) if name is not None else figure.get("value")
        if bound.get("op") not in OPERATORS or not isinstance(bound.get("limit"), (int, float)):
            problems.append(f"bound {bound} needs op {sorted(OPERATORS)} and a limit")
        elif not isinstance(value, (int, float)):
            problems.append(f"bound {bound} has no number to compare: {value!r}")
        elif OPERATORS[bound["op"]](value, bound["limit"]):
            lines.append(f"{name or 'value'} {value} {bound['op']} {bound['limit']}")
        elif str(figure.get("miss_explained") or "").strip():
            lines.append(f"MISSED, explained: {name or 'value'} {value}, bound {bound['op']} {bound['limit']}")
        else:
            problems.append(f"{name or 'value'} {value} is not {bound['op']} {bound['limit']}, and miss_explained is empty")
    return problems


def figure_problems(path, lines):
    try:
        figure = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return [f"not JSON: {error}"]
    if not isinstance(figure, dict):
        return ["not an object"]
    problems = [f"{name} is missing or empty" for name in ("figure", "command", "commit", "machine", "date")
                if not str(figure.get(name) or "").strip()]
    if "value" not in figure and not isinstance(figure.get("values"), dict):
        problems.append("value or values is missing")
    if "bound" not in figure:
        problems.append("bound is missing (null says that there is none)")
    if problems:
        return problems
    if not re.fullmatch(r"[0-9a-f]{7,40}", figure["commit"]) or not is_ancestor(figure["commit"]):
        problems.append(f"commit {figure['commit']} is no ancestor of HEAD")
    try:
        datetime.date.fromisoformat(figure["date"])
    except ValueError:
        problems.append(f"date {figure['date']!r} is not YYYY-MM-DD")
    return problems + bound_problems(figure, lines)


def test_exists(name):
    path, _, function = name.partition("::")
    file = ROOT / path.strip()
    if not file.is_file():
        return False
    function = re.escape(function.split("::")[-1].strip())
    # A helper of the same name holds nothing: in Rust the attribute stands before it, perhaps with others between.
    attributed = r"#\[test\]\s*(?:#\[[^\n]*\]\s*|//[^\n]*\n\s*)*fn"
    pattern = rf"(?:{attributed if file.suffix == '.rs' else 'def'})\s+{function}\b"
    return not function or re.search(pattern, file.read_text(encoding="utf-8", errors="replace")) is not None


def blocks(text):
    """(line number, text) of every list item and paragraph, its lines joined."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("- ") or not found:
            found.append((number, line))
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def held_rows(text):
    """(line number, names of tests) of every row of the tables whose last column is headed `Held by`."""
    rows, is_inside = [], False
    for number, line in enumerate(text.splitlines(), 1):
        last = line.strip().strip("|").split("|")[-1].strip() if line.startswith("|") else None
        if last is None or last == "Held by":
            is_inside = last is not None
        elif is_inside and set(last) - set("-: "):
            rows.append((number, re.findall(r"`([^`]+)`", last)))
    return rows


def promise_problems():
    documents = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
    problems, count = [], 0
    for document in documents:
        if not document.exists():
            problems.append(f"{document.name} is missing")
            continue
        for number, names in held_rows(document.read_text(encoding="utf-8")):
            where = f"{document.relative_to(ROOT)}:{number}"
            count += 1
            if not names:
                problems.append(f"{where}: a promise that nothing holds")
            problems += [f"{where}: there is no test {name}" for name in names if not test_exists(name)]
        for number, block in blocks(document.read_text(encoding="utf-8")):
            where = f"{document.relative_to(ROOT)}:{number}"
            names = TEST_NAME.findall(block)
            if "Promise:" in block:
                count += 1
                if not names:
                    problems.append(f"{where}: a promise without (test: ...)")
            problems += [f"{where}: there is no test {name}" for name in names if not test_exists(name)]
    return problems, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="folder below docs/evidence/")
    args = parser.parse_args()
    folder = ROOT / "docs" / "evidence" / args.name
    files = sorted(folder.glob("*.json"))
    passed = failed = 0
    if not files:
        print(f"FAILED docs/evidence/{args.name}: no figure")
        failed += 1
    for path in files:
        lines = []
        problems = figure_problems(path, lines)
        for problem in problems:
            print(f"FAILED {path.relative_to(ROOT)}: {problem}")
        if not problems:
            print(f"ok     {path.relative_to(ROOT)}: {'; '.join(lines)}")
        passed, failed = passed + (not problems), failed + bool(problems)
    problems = wanted_problems(args.name, files)
    for problem in problems:
        print(f"FAILED {problem}")
    failed += len(problems)
    problems, count = promise_problems()
    for problem in problems:
        print(f"FAILED {problem}")
    if not problems:
        print(f"ok     {count} promises name tests that exist")
    passed, failed = passed + (not problems), failed + bool(problems)
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
