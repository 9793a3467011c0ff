#!/usr/bin/env python3
"""Makes the figures of docs/evidence/skeleton/: start, journal, produce beside Apache Kafka, the executor beside tokio.

  measure.py skeleton [--only start|journal|produce|echo] [--seconds S] [--out DIR]

The part `echo` is the whole runtime benchmark, with glommio: echo, cached file reads, messages between cores.

Run it on a quiet machine of two or more cores. It builds the release binaries, pins broker and generator apart (core 0 and
core 1), starts Kafka through scripts/kafka-peer.sh, and prefers ratios within one run over absolute times. Every figure is
one JSON file in the form that scripts/evidence.sh checks; a missed bound needs `miss_explained`, which is kept from the
file that is replaced.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BROKER_CPU, GENERATOR_CPU = "0", "1"
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


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True, cwd=ROOT, **options)


def output_of(command, **options):
    return run(command, stdout=subprocess.PIPE, **options).stdout


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def write(out, name, figure, command, bound, value=None, values=None):
    path = out / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    document = {
        "figure": figure,
        "command": command,
        "machine": machine(),
        "commit": output_of(["git", "rev-parse", "HEAD"]).strip(),
        "date": datetime.date.today().isoformat(),
    }
    if value is not None:
        document["value"] = value
    if values is not None:
        document["values"] = values
    document["bound"] = bound
    if before.get("miss_explained"):
        document["miss_explained"] = before["miss_explained"]
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{name}: {json.dumps(values if values is not None else value)}")


class Broker:
    """Our broker on a temporary data directory in the current file system."""

    def __init__(self, *arguments, cpu=None):
        self.directory = tempfile.TemporaryDirectory(prefix="ringlog-measure-", dir=ROOT)
        reader, writer = os.pipe()
        command = [target() / "release/ringlog", "broker", "--data-dir", self.directory.name, "--listen", "127.0.0.1:0",
                   "--admin", "127.0.0.1:0", "--ready-fd", str(writer), *arguments]
        if cpu is not None:
            command = ["taskset", "-c", cpu, *command]
        begin = time.monotonic()
        self.process = subprocess.Popen([str(part) for part in command], pass_fds=[writer], stderr=subprocess.DEVNULL)
        os.close(writer)
        with os.fdopen(reader) as ready:
            line = ready.readline()
        self.start_ms = (time.monotonic() - begin) * 1e3
        if not line:
            raise SystemExit(f"the broker did not start: exit {self.process.wait()}")
        self.address = json.loads(line)["listeners"][0]["bound"]

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.directory.cleanup()


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


def bench(address, pid, arguments, seconds, warmup):
    command = ["taskset", "-c", GENERATOR_CPU, target() / "release/ringlog", "bench", "produce", "-b", address,
               "--broker-pid", str(pid), "--duration", f"{seconds}s", "--warmup", f"{warmup}s", "-o", "json", *arguments]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    report = json.loads(done.stdout)
    if report["verdict"] != "passed":
        raise SystemExit(f"the run against {address} is {report['verdict']}: {report['failures']}")
    return report


def percentile_ms(report, name):
    found = next(row for row in report["produced"]["acknowledged"]["percentiles"] if row["name"] == name)
    return found["nanoseconds"] / 1e6


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


def build(parts):
    if {"start", "produce"} & set(parts):
        run(["cargo", "build", "--release", "--locked", "--quiet", "--bin", "ringlog"])
    if "journal" in parts:
        run(["cargo", "build", "--release", "--locked", "--quiet", "-p", "ringlog-shard", "--example", "journal_commit"])
    if "echo" in parts:
        run(["cargo", "build", "--release", "--locked", "--quiet", "-p", "ringlog-io", "--features", "glommio",
             "--example", "runtime_bench"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("issue", choices=["skeleton"])
    parser.add_argument("--only", action="append", choices=sorted(PARTS))
    parser.add_argument("--seconds", type=float, default=RUNTIME_SECONDS, help="of one run of the runtime benchmark")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/evidence/skeleton")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = arguments.only or list(PARTS)
    build(parts)
    measures = PARTS | {"echo": lambda out: measure_echo(out, arguments.seconds)}
    for part in parts:
        measures[part](arguments.out)


if __name__ == "__main__":
    main()
