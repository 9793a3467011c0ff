#!/usr/bin/env python3
"""Makes the figures of docs/evidence/.

  measure.py skeleton [--only start|journal|produce|echo] [--seconds S] [--out DIR]
  measure.py storage [--only ROW,...] [--short] [--ringlog BINARY] [--out DIR]
  measure.py raft [--only produce] [--out DIR]
  measure.py groups [--only machine|commits|static|cooperative] [--ringlog BINARY] [--out DIR]

skeleton: start, journal, produce beside Apache Kafka, the executor beside tokio. The part `echo` is the whole runtime
benchmark, with glommio: echo, cached file reads, messages between cores.
storage: the rows of scripts/measure/storage.py and restart.py. Needs root: some rows mount an XFS on a loop device, one
drops the page cache. `restart` takes 20 GiB of disk while it runs. --short tries each row in seconds on little data; its
figures go to a folder that is removed, unless --out names one, and only what the clock has no part in is compared with a
bound, a loose one.
groups: the machine of groups alone; offset commits and rebalances beside Apache Kafka, by confluent-kafka of the clients' tools (scripts/install-tools.sh).
raft: instructions of a produced batch, counted by callgrind, against the commit before groups had other members.

Run it on a quiet machine of two or more cores. It builds the release binaries, pins broker and generator apart (core 0 and
core 1), starts Kafka through scripts/kafka-peer.sh, and prefers ratios within one run over absolute times. Every figure is
one JSON file in the form that scripts/evidence.sh checks; a missed bound needs `miss_explained`, which is kept from the
file that is replaced.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "measure"))
import device  # noqa: E402
import groups  # noqa: E402
import raft  # noqa: E402
import restart  # noqa: E402
import storage  # noqa: E402
from common import BROKER_CPU, ROOT, Binary, Broker, bench, output_of, percentile_ms, run, target, write  # noqa: E402

ROUNDS = 5
# What DESIGN section 6 offers: (name, arguments of the bench, bound of the ratio, which CPU figure).
ROWS = [
    ("produce-64k", ["--record-size", "1024", "--records-per-batch", "63", "--rate", "60000/s", "--partitions", "8"],
     0.5, "cpu_seconds_per_gigabyte"),
    ("produce-small", ["--record-size", "100", "--records-per-batch", "10", "--rate", "20000/s", "--partitions", "100",
                       "--producers", "4"],
     1 / 3, "cpu_seconds_per_million_records"),
]
MEASURE_SECONDS, WARMUP_SECONDS, KAFKA_WARMUP_SECONDS = 10, 3, 30
# Many short runs: neighbours in time are compared, and a single run of this machine is off by a tenth and more.
RUNTIME_SECONDS, RUNTIME_ROUNDS = 0.7, 13


def measure_start(out):
    starts = []
    for _ in range(10):
        with Broker() as broker:
            starts.append(broker.start_ms)
    with Broker() as broker:
        time.sleep(2)
        before, idle_seconds = broker.cpu_seconds(), 20
        time.sleep(idle_seconds)
        idle_percent = 100 * (broker.cpu_seconds() - before) / idle_seconds
        resident_mib = broker.resident_mib()
    write(out, "start", "an empty broker, no settings: start to serving, memory, idle CPU of one core",
          "scripts/measure.py skeleton --only start",
          [{"value": "start_ms", "op": "<", "limit": 100}, {"value": "resident_mib", "op": "<", "limit": 64},
           {"value": "idle_percent", "op": "<", "limit": 1}],
          values={"start_ms": round(statistics.median(starts), 1), "resident_mib": round(resident_mib, 1),
                  "idle_percent": round(idle_percent, 3)})


def measure_journal(out):
    ratios, last = [], None
    for _ in range(ROUNDS):
        last = json.loads(output_of([target() / "release/examples/journal_commit", ROOT, "3000"]))
        ratios.append(last["p50_ratio"])
    values = {key: last[key] for key in ("journal_p50_us", "journal_p99_us", "bare_p50_us", "bare_p99_us")}
    write(out, "journal", "journal commit p50 against a bare O_DIRECT + RWF_DSYNC write of 4 KiB, in turn",
          "scripts/measure.py skeleton --only journal", {"value": "p50_ratio", "op": "<=", "limit": 1.3},
          values={"p50_ratio": round(statistics.median(ratios), 3), **values})


def figures(report, cpu_figure):
    return {"cpu": report["broker"]["process"][cpu_figure], "p50_ms": percentile_ms(report, "p50"),
            "p99_ms": percentile_ms(report, "p99"), "records_per_second": report["produced"]["throughput"]["records_per_second"]}


def compare(row, kafka, kafka_pid):
    """Alternates the brokers; the medians of each one's figures and of their ratios."""
    name, arguments, _, cpu_figure = row
    ours, theirs = [], []
    for _ in range(ROUNDS):
        with Broker("--shards", "1", cpu=BROKER_CPU) as broker:
            report = bench(broker.address, broker.process.pid, arguments, MEASURE_SECONDS, WARMUP_SECONDS)
            ours.append(figures(report, cpu_figure))
        report = bench(kafka, kafka_pid, arguments, MEASURE_SECONDS, WARMUP_SECONDS)
        theirs.append(figures(report, cpu_figure))
        print(f"{name}: ours {ours[-1]}, Kafka {theirs[-1]}", file=sys.stderr)
    median = lambda rows, key: statistics.median(row[key] for row in rows)
    ratio = lambda key: statistics.median(a[key] / b[key] for a, b in zip(ours, theirs))
    return {
        "cpu_ratio": round(ratio("cpu"), 3), "p50_ratio": round(ratio("p50_ms"), 3), "p99_ratio": round(ratio("p99_ms"), 3),
        f"ours_{cpu_figure}": round(median(ours, "cpu"), 3), f"kafka_{cpu_figure}": round(median(theirs, "cpu"), 3),
        "ours_p99_ms": round(median(ours, "p99_ms"), 3), "kafka_p99_ms": round(median(theirs, "p99_ms"), 3),
        "ours_records_per_second": round(median(ours, "records_per_second")),
        "kafka_records_per_second": round(median(theirs, "records_per_second")),
    }


def measure_produce(out):
    peer = [ROOT / "scripts/kafka-peer.sh"]
    name = ["--name", f"measure-{os.getpid()}"]
    kafka = output_of([*peer, "start", *name, "--cpus", BROKER_CPU]).strip()
    try:
        status = output_of([*peer, "status", *name])
        kafka_pid = int(status.split(" pid ")[1].split()[0])
        for row in ROWS:
            # The compiler of the JVM needs this load for a while before it is at its best.
            bench(kafka, kafka_pid, row[1], KAFKA_WARMUP_SECONDS, WARMUP_SECONDS)
            values = compare(row, kafka, kafka_pid)
            write(out, row[0], f"broker CPU beside Apache Kafka 4.4, one core each, the same load ({' '.join(row[1])}), "
                  f"acks=all; ours is synced before the answer, Kafka's is not; medians of {ROUNDS} alternated pairs",
                  "scripts/measure.py skeleton --only produce",
                  {"value": "cpu_ratio", "op": "<=", "limit": round(row[2], 3)}, values=values)
    finally:
        run([*peer, "stop", *name], stdout=subprocess.DEVNULL)


def measure_echo(out, seconds=RUNTIME_SECONDS):
    lines = output_of([target() / "release/examples/runtime_bench", "--seconds", str(seconds),
                       "--rounds", str(RUNTIME_ROUNDS)], timeout=1200)
    (out / "runtime-bench.jsonl").write_text(lines)
    medians = [row for row in map(json.loads, lines.splitlines()) if "median_of" in row]
    command = "scripts/measure.py skeleton --only echo"
    ratios = lambda prefix, key, suffix="": {f"{row['case']}_{row['runtime']}{suffix}": row[key] for row in medians
                                             if row["case"].startswith(prefix) and row["runtime"] != "tokio"}
    cpu = lambda prefix: {f"{row['case']}_{row['runtime']}_cpu_ns": row["server_cpu_ns_per_operation"]
                          for row in medians if row["case"].startswith(prefix)}
    write(out, "echo", "CPU of an echo server on 64 connections (and on one) against tokio's current-thread runtime",
          command,
          [{"value": "echo_64B_x64_io_uring", "op": "<=", "limit": 0.92},
           {"value": "echo_64KiB_x64_io_uring", "op": "<=", "limit": 1.05}],
          values=ratios("echo", "cpu_to_tokio")
          | ratios("echo_64B_x64", "cpu_to_tokio_quartiles", "_quartiles"))
    write(out, "echo-file-read", "rate of 4 KiB reads out of the page cache, one at a time, against tokio's blocking "
          "pool, and CPU of the runtime's own thread a read (tokio's pool works on other threads); for information, "
          "DESIGN section 6 sets no bound", command, None,
          values=ratios("file_read", "rate_to_tokio", "_rate") | cpu("file_read"))
    write(out, "echo-cross-core", "rate of numbers sent to another core and back, parked, spinning, and with 256 under "
          "way, against wakers of tokio, and CPU of the asking thread a number; for information, DESIGN section 6 sets "
          "no bound", command, None,
          values=ratios("cross_core", "rate_to_tokio", "_rate") | cpu("cross_core"))


PARTS = {"start": measure_start, "journal": measure_journal, "echo": measure_echo, "produce": measure_produce}
STORAGE_ROWS = storage.ROWS | restart.ROWS


def build(parts):
    if {"start", "produce"} & set(parts):
        build_release("--bin", "ringlog")
    if "journal" in parts:
        build_release("-p", "ringlog-shard", "--example", "journal_commit")
    if "echo" in parts:
        build_release("-p", "ringlog-io", "--features", "glommio", "--example", "runtime_bench")


def build_release(*arguments):
    run(["cargo", "build", "--release", "--locked", "--quiet", *arguments])


def measure_skeleton(arguments):
    out = arguments.out or ROOT / "docs/evidence/skeleton"
    out.mkdir(parents=True, exist_ok=True)
    parts = arguments.only or list(PARTS)
    build(parts)
    measures = PARTS | {"echo": lambda out: measure_echo(out, arguments.seconds)}
    for part in parts:
        measures[part](out)


def measure_storage(arguments):
    rows = arguments.only or list(STORAGE_ROWS)
    if {"amplification", "flushes"} & set(rows):
        device.enter_namespace()
    if arguments.ringlog:
        Binary.path = arguments.ringlog.absolute()
    else:
        build_release("--bin", "ringlog")
    if "checkpoint" in rows:
        build_release("-p", "ringlog-shard", "--example", "commit_beside_checkpoint")
    with tempfile.TemporaryDirectory() as tried:
        out = arguments.out or (pathlib.Path(tried) if arguments.short else ROOT / "docs/evidence/storage")
        out.mkdir(parents=True, exist_ok=True)
        for row in rows:
            STORAGE_ROWS[row](out, arguments.short)
        if arguments.short:
            check_short(out)


def measure_groups(arguments):
    rows = arguments.only or list(groups.ROWS)
    if "machine" in rows:
        build_release("-p", "ringlog-broker", "--example", "group_machine")
    if arguments.ringlog:
        Binary.path = arguments.ringlog.absolute()
    elif set(rows) - {"machine"}:
        build_release("--bin", "ringlog")
    out = arguments.out or ROOT / "docs/evidence/groups"
    out.mkdir(parents=True, exist_ok=True)
    for name in rows:
        groups.ROWS[name](out)


def check_short(out):
    """What the clock has no part in holds in a short run too, with some room."""
    missed = 0
    for file, bounds in storage.SHORT_BOUNDS.items():
        path = out / f"{file}.json"
        values = json.loads(path.read_text())["values"] if path.exists() else {}
        for name in bounds.keys() & values.keys():
            if values[name] > bounds[name]:
                print(f"FAILED {file}: {name} is {values[name]}, at most {bounds[name]}", file=sys.stderr)
                missed += 1
    if missed:
        raise SystemExit(1)


def names(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("issue", choices=["skeleton", "storage", "raft", "groups"])
    parser.add_argument("--only", type=names, action="extend", help="rows, separated by commas; may be repeated")
    parser.add_argument("--seconds", type=float, default=RUNTIME_SECONDS, help="of one run of the runtime benchmark")
    parser.add_argument("--short", action="store_true", help="storage: try each row in seconds")
    parser.add_argument("--ringlog", type=pathlib.Path, help="storage, groups: this binary, instead of building one")
    parser.add_argument("--out", type=pathlib.Path, help="default: docs/evidence/<issue>")
    arguments = parser.parse_args()
    known = {"skeleton": PARTS, "storage": STORAGE_ROWS, "raft": raft.ROWS, "groups": groups.ROWS}[arguments.issue]
    unknown = set(arguments.only or []) - set(known)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: {arguments.issue} has {', '.join(known)}")
    if arguments.issue == "skeleton":
        measure_skeleton(arguments)
    elif arguments.issue == "raft":
        out = arguments.out or ROOT / "docs/evidence/raft"
        out.mkdir(parents=True, exist_ok=True)
        for name in arguments.only or raft.ROWS:
            raft.ROWS[name](out)
    elif arguments.issue == "groups":
        measure_groups(arguments)
    else:
        measure_storage(arguments)


if __name__ == "__main__":
    main()
