#!/usr/bin/env python3
"""Writes README.md's table of clients from the results of the last full matrix, docs/evidence/skeleton/clients.json.

With --check nothing is written: exit 1 when the table is not what the results say.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "evidence" / "skeleton" / "clients.json"
BEGIN, END = "<!-- clients: begin -->", "<!-- clients: end -->"


def share(rows):
    if not rows:
        return "not run"
    good = sum(row["ok"] for row in rows)
    return f"{good} of {len(rows)}"


def table(report):
    rows = report["rows"]
    lines = ["| client | wrote | read back, byte by byte | after kill -9 and other shards |", "|---|---|---|---|"]
    for client, version in sorted(report["versions"].items()):
        wrote = [row for row in rows if row["phase"] == "produce" and row.get("producer") == client]
        read = [row for row in rows if row["phase"] == "consume" and row.get("consumer") == client]
        again = [row for row in rows if row["phase"].startswith("kill") and row.get("consumer") == client]
        lines.append(f"| {version} | {share(wrote)} | {share(read)} | {share(again)} |")
    lines.append("")
    lines.append(
        f"A cell is a topic: writer, codec, acks and idempotence, on 1 and 2 shards and both drivers. Level {report['level']}, "
        f"commit {report['commit'][:10]}, {report['date']}: [docs/evidence/skeleton/clients.json](docs/evidence/skeleton/clients.json).")
    return "\n".join(lines)


def main():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        print(f"README.md has no {BEGIN} ... {END}", file=sys.stderr)
        return 2
    if RESULTS.exists():
        body = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    else:
        body = "No full run is recorded yet: `scripts/test.sh --full` writes one."
    wanted = f"{before}{BEGIN}\n{body}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if wanted != text:
            print("README.md's client table is not what the results say: scripts/readme-table.py", file=sys.stderr)
            return 1
        return 0
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
