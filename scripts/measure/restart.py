"""How long a start takes after kill -9, on much data in many partitions."""
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from common import ROOT, Broker, at_most, bench, bench_command, rounded, write

GIB = 20
PARTITIONS = 1000
# (name, shards before, shards after, caches dropped before the start)
CASES = [
    ("warm_1_shard", 1, 1, False), ("dropped_1_shard", 1, 1, True),
    ("warm_2_shards", 2, 2, False), ("dropped_2_shards", 2, 2, True),
    ("warm_1_to_2_shards", 1, 2, False), ("dropped_1_to_2_shards", 1, 2, True),
    ("warm_2_to_1_shards", 2, 1, False), ("dropped_2_to_1_shards", 2, 1, True),
]


def fill(directory, gib, partitions):
    """Large batches by the real client; bypass writes them once."""
    with Broker("--shards", "2", "--set", "ringlog.bypass.bytes=262144", directory=directory) as broker:
        load = ["--topic", "data", "--partitions", str(partitions), "--preload", f"{gib}GiB", "--record-size", "64KiB",
                "--batch-size", "1MiB"]
        bench(broker.address, broker.process.pid, load, 1, 0, workload="consume")
        broker.process.terminate()
        broker.process.wait(120)


def killed_under_load(directory, shards, partitions, seconds):
    """Small batches to every partition, then kill -9: the journal holds what no segment does."""
    with Broker("--shards", str(shards), directory=directory) as broker:
        load = ["--topic", "data", "--partitions", str(partitions), "--rate", "20000/s", "--record-size", "1024",
                "--records-per-batch", "4", "--producers", "2"]
        command = bench_command(broker.address, "produce", load, 600, 0)
        client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        if client.poll() is not None:
            raise SystemExit(f"the load of the restart ended by itself: {client.returncode}")
        unflushed = broker.metrics()["ringlog_journal_unflushed_bytes"]
        broker.kill()
        client.kill()
        client.wait()
    return unflushed


def drop_caches():
    subprocess.run(["sync"], check=True)
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def started(directory, shards):
    """Milliseconds from the process to `/readyz`, and what was read until then."""
    begin = time.monotonic()
    with Broker("--shards", str(shards), directory=directory) as broker:
        status, body = broker.get("/readyz")
        ready_ms = (time.monotonic() - begin) * 1e3
        if status != 200:
            raise SystemExit(f"/readyz says {status} {body!r} after the ready line")
        read = broker.io()
        broker.kill()
    return {"ms": ready_ms, "read_bytes": read["read_bytes"], "rchar": read["rchar"]}


def restart(out, short):
    """kill -9 under load, then a start."""
    gib, partitions, rounds, seconds = (1, 100, 1, 1) if short else (GIB, PARTITIONS, 3, 4)
    values, found = {}, {name: [] for name, *_ in CASES}
    with tempfile.TemporaryDirectory(prefix="ringlog-measure-", dir=ROOT) as directory:
        begin = time.monotonic()
        fill(directory, gib, partitions)
        print(f"restart: {gib} GiB in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        data = pathlib.Path(directory) / "data"
        segment_bytes = sum(path.stat().st_size for path in data.rglob("*.log"))
        for _ in range(rounds):
            for name, before, after, is_dropped in CASES:
                unflushed = killed_under_load(directory, before, partitions, seconds)
                if is_dropped:
                    drop_caches()
                row = started(directory, after) | {"unflushed_bytes": unflushed}
                found[name].append(row)
                print(f"restart: {name}: {rounded(row)}", file=sys.stderr, flush=True)
    for name, rows in found.items():
        values[f"{name}_seconds_max"] = max(row["ms"] for row in rows) / 1e3
        values[f"{name}_seconds"] = statistics.median(row["ms"] for row in rows) / 1e3
        for counted in ("read_bytes", "unflushed_bytes"):
            values[f"{name}_{counted}"] = round(statistics.median(row[counted] for row in rows))
    values["data_gib"] = segment_bytes / (1 << 30)
    write(out, "restart", f"a start after kill -9 under load with {gib} GiB in {partitions} partitions: from the process to "
          "/readyz, caches warm and dropped, on 1 and 2 shards and after a change of their number; read_bytes of "
          "/proc/PID/io until then, and what only the journal held shortly before the kill; medians and the longest of "
          f"{rounds} starts each", "scripts/measure.py storage --only restart",
          at_most(5, *(f"{name}_seconds_max" for name, *_ in CASES))
          + [{"value": "data_gib", "op": ">=", "limit": gib * 0.99}], values=rounded(values))


ROWS = {"restart": restart}
