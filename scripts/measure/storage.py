"""The figures of docs/evidence/storage/ that a running broker and the kernel's counters give.

Each row is a function of (out, short): short is a try of seconds on little data, whose figures mean nothing."""
import json
import statistics
import sys
import tempfile
import time

from common import (
    BROKER_CPU, METRICS_MS_FAST, ROOT, Broker, at_most, bench, medians, output_of, percentile_ms, ringlog, rounded, run,
    target, write)
from device import Device

# (name, arguments of the load): appends of 1 KiB, 64 KiB and nearly 1 MiB.
APPENDS = [
    ("1k", ["--record-size", "950", "--records-per-batch", "1", "--rate", "8000/s", "--partitions", "100",
            "--producers", "4"]),
    ("64k", ["--record-size", "1024", "--records-per-batch", "63", "--rate", "60000/s", "--partitions", "8"]),
    ("1m", ["--record-size", "64KiB", "--records-per-batch", "15", "--rate", "40MB/s", "--partitions", "4"]),
]
BYPASS = {"off": "0", "on": "49152"}
DEVICE_MIB = 8192
FLUSH_RATES = ["100kB/s", "1MB/s", "10MB/s", "40MB/s"]
MANY, FEW = 10_000, 10
# The descriptors of the second look at many partitions: fewer than there are segments.
FILES_MAX = 4096
# Of the descriptors behind those the process needs itself, half are for connections (capacity.rs).
DESCRIPTORS_RESERVED, DESCRIPTORS_RESERVED_PER_SHARD = 64, 24


def command(row):
    return f"scripts/measure.py storage --only {row}"


def say(row, text):
    print(f"{row}: {text}", file=sys.stderr, flush=True)


def counted(broker, device=None):
    """Bytes that left for the device, as the process and the device see it, and what of the appended is still to go."""
    metrics = broker.metrics()
    at_device, flushes = device.counted() if device else (0, 0)
    return {
        "process": broker.io()["write_bytes"], "device": at_device, "flushes": flushes,
        "unflushed": metrics["ringlog_journal_unflushed_bytes"], "appended": metrics["ringlog_appended_bytes_total"],
        "frames": metrics["ringlog_journal_frames_total"],
    }


def between(before, after):
    """Written bytes and flushes for each byte and megabyte appended. What lies in the journal alone is written once more
    later: it counts as written, or a short run would look too good."""
    grown = {name: after[name] - before[name] for name in after}
    appended, megabytes = grown["appended"], grown["appended"] / 1e6
    return {
        "process": (grown["process"] + grown["unflushed"]) / appended,
        "device": (grown["device"] + grown["unflushed"]) / appended,
        "flushes_per_mb": grown["flushes"] / megabytes, "frames_per_mb": grown["frames"] / megabytes,
        "appended_mb": megabytes,
    }


def loaded(broker, arguments, seconds, device=None, warmup=2):
    """The report of a load, and what was counted while it ran. The topic stays: deleting it would forget what it owes."""
    topic = ["--topic", "measured"]
    # The journal takes its full size now, the folders and segments are made.
    bench(broker.address, broker.process.pid, [*arguments, *topic], warmup, 0)
    before = counted(broker, device)
    report = bench(broker.address, broker.process.pid, [*arguments, *topic], seconds, 0)
    return report, between(before, counted(broker, device))


def amplification(out, short):
    """Bytes written for each byte appended, small and large appends, with and without bypass."""
    rounds, seconds, values = (1, 1, {}) if short else (3, 8, {})
    for append, arguments in APPENDS:
        found = {state: [] for state in BYPASS}
        for state in list(BYPASS) * rounds:
            with Device(DEVICE_MIB) as device:
                with Broker("--shards", "1", "--set", f"ringlog.bypass.bytes={BYPASS[state]}",
                            directory=device.data_directory("data"), cpu=BROKER_CPU, metrics_ms=METRICS_MS_FAST) as broker:
                    found[state].append(loaded(broker, arguments, seconds, device)[1])
            say("amplification", f"{append}, bypass {state}: {rounded(found[state][-1])}")
        for state, rows in found.items():
            middle = medians(rows)
            values |= {f"{append}_{state}_{name}": middle[name] for name in ("process", "device")}
            values[f"{append}_{state}_appended_mb"] = round(middle["appended_mb"])
    write(out, "write-amplification", "bytes written for each byte of record batches appended, acks=all, one shard, appends "
          "of 1 KiB, 64 KiB and 960 KiB, bypass on (49152) and off (the default): by the process (write_bytes of "
          "/proc/PID/io) and by an XFS on a loop device of its own (/proc/diskstats, after a sync), what lies in the "
          f"journal alone counted as written again; medians of {rounds} alternated runs of {seconds} s",
          command("amplification"),
          at_most(2.2, "1k_off_process", "1k_off_device") + at_most(1.1, *(
              f"{append}_on_{where}" for append in ("64k", "1m") for where in ("process", "device"))),
          values=rounded(values))


def bypass(out, short):
    """Decision 4: what bypass costs and gains in time."""
    rounds, seconds, values = (1, 1, {}) if short else (3, 6, {})
    for append, arguments in APPENDS[1:]:
        found = {state: [] for state in BYPASS}
        for state in list(BYPASS) * rounds:
            with Broker("--shards", "1", "--set", f"ringlog.bypass.bytes={BYPASS[state]}", cpu=BROKER_CPU,
                        metrics_ms=METRICS_MS_FAST) as broker:
                report, written = loaded(broker, arguments, seconds)
            if not report["produced"]["throughput"]["records"]:
                raise SystemExit(f"nothing was acknowledged in {seconds} s: this machine is not free")
            found[state].append({
                "written": written["process"], "p50_ms": percentile_ms(report, "p50"), "p99_ms": percentile_ms(report, "p99"),
                "cpu_seconds_per_gb": report["broker"]["process"]["cpu_seconds_per_gigabyte"],
            })
            say("bypass", f"{append}, {state}: {rounded(found[state][-1])}")
        for name in found["on"][0]:
            values[f"{append}_{name}_ratio"] = statistics.median(
                on[name] / off[name] for on, off in zip(found["on"], found["off"]))
        values |= {f"{append}_{state}_{name}": value for state, rows in found.items() for name, value in medians(rows).items()}
    write(out, "bypass", "bypass on (49152) against off (0) at batches of 64 KiB (8 partitions, 61 MB/s) and 960 KiB (4 "
          "partitions, 40 MB/s), acks=all, one shard on one core, the file system of the sources: ratios on to off, and "
          f"the medians of both, of {rounds} alternated runs of {seconds} s; for information, decision 4 rests on it",
          command("bypass"), None, values=rounded(values))


def flushes(out, short):
    """Flushes of the device for each megabyte appended, by rate."""
    rounds, seconds, values = (1, 1, {}) if short else (3, 6, {})
    found = {rate: [] for rate in FLUSH_RATES}
    for rate in FLUSH_RATES * rounds:
        arguments = ["--record-size", "1024", "--batch-size", "16KiB", "--rate", rate, "--partitions", "100",
                     "--producers", "4"]
        with Device(DEVICE_MIB) as device:
            with Broker("--shards", "1", directory=device.data_directory("data"), cpu=BROKER_CPU,
                        metrics_ms=METRICS_MS_FAST) as broker:
                report, written = loaded(broker, arguments, seconds, device)
        if not report["produced"]["throughput"]["bytes"]:
            raise SystemExit(f"nothing was acknowledged in {seconds} s: this machine is not free")
        batches = report["produced"]["batches"] / (report["produced"]["throughput"]["bytes"] / 1e6)
        found[rate].append(written | {"batches_per_mb": batches})
        say("flushes", f"{rate}: {rounded(found[rate][-1])}")
    for rate, rows in found.items():
        middle = medians(rows)
        name = rate.removesuffix("/s").lower()
        values |= {f"{name}_{figure}": middle[figure] for figure in ("flushes_per_mb", "frames_per_mb", "batches_per_mb")}
    write(out, "flushes", "flushes of the device for each megabyte of record batches appended, by offered rate: records of 1 "
          "KiB in batches of at most 16 KiB or 5 ms, 100 partitions, 4 producers, one shard; an XFS on a loop device of its "
          "own (/proc/diskstats), beside it the journal's frames and the batches acknowledged for each megabyte; medians "
          f"of {rounds} alternated runs of {seconds} s; for information, no bound is set", command("flushes"), None,
          values=rounded(values))


def checkpoint(out, short):
    """How long a commit takes beside a checkpoint, against one without."""
    rounds, values, bound = (1 if short else 3), {}, []
    example = target() / "release/examples/commit_beside_checkpoint"
    names = ("idle_p50_us", "idle_p99_us", "idle_p999_us", "beside_p50_us", "beside_p99_us", "beside_p999_us",
             "beside_share_of_time", "beside_file_waits", "p999_ratio")
    # (logs, MiB of a journal file, seconds): the second fills in eight seconds.
    for logs, file_mib, seconds in [(100, 8, 8), (2000, 64, 20)]:
        rows = []
        for _ in range(rounds):
            row = json.loads(output_of([example, ROOT, str(2 if short else seconds), str(logs), str(file_mib)]))
            say("checkpoint", json.dumps(row))
            rows.append({name: row[name] for name in names})
        values |= {f"{logs}_logs_{name}": value for name, value in medians(rows).items()}
        bound += at_most(2, f"{logs}_logs_p999_ratio")
    write(out, "commit-beside-checkpoint", "from the moment an append is due to its durable end in the journal, while a "
          "checkpoint is under way against while none is: 2,000 appends of 4 KiB a second, open loop, over 100 logs of one "
          "core with journal files of 8 MiB and over 2,000 with files of 64 MiB (beside), and with files so large that none fills "
          f"(idle); medians of {rounds} alternated pairs of 8 and 20 s, the ratio of each pair its own", command("checkpoint"),
          bound, values=rounded(values))


def start_of(directory, *arguments):
    """Milliseconds from the process to its first answer."""
    with Broker("--shards", "1", *arguments, directory=directory, cpu=BROKER_CPU) as broker:
        return broker.start_ms


def files_budget(files_max, shards=1):
    left = files_max - DESCRIPTORS_RESERVED - DESCRIPTORS_RESERVED_PER_SHARD * shards
    return left - left // 2


def partitions(out, short):
    """The same batches over many partitions and over few."""
    rounds, seconds, warmup, many = (1, 1, 1, 1000) if short else (3, 20, 20, MANY)
    server = ["--profile", "server", "--memory", "4GiB", "--no-pin"]
    found = {count: [] for count in (FEW, many)}
    for count in list(found) * rounds:
        # A journal file fills in nine seconds: in the warm-up each partition gets its folder, and two checkpoints are measured.
        load = ["--record-size", "100", "--records-per-batch", "10", "--rate", "60000/s", "--partitions", str(count),
                "--producers", "4", "--topic", "measured"]
        with tempfile.TemporaryDirectory(prefix="ringlog-measure-", dir=ROOT) as directory:
            with Broker("--shards", "1", *server, directory=directory, cpu=BROKER_CPU) as broker:
                report = bench(broker.address, broker.process.pid, load, seconds, warmup)
                row = {
                    "cpu": report["broker"]["process"]["cpu_seconds_per_million_records"],
                    "p50_ms": percentile_ms(report, "p50"), "p99_ms": percentile_ms(report, "p99"),
                    "files_open": broker.metrics()["ringlog_segment_files_open"], "descriptors": broker.descriptors(),
                    "resident_mib": broker.resident_mib(),
                }
                broker.kill()
            row["start_after_kill_ms"] = start_of(directory, *server)
            row["start_after_stop_ms"] = start_of(directory, *server)
            if count == many:
                row["descriptors_of_4096"] = descriptors_read(directory, many)
        found[count].append(row)
        say("partitions", f"{count}: {rounded(row)}")
    ratio = lambda name: statistics.median(a[name] / b[name] for a, b in zip(found[many], found[FEW]))
    values = {f"{name}_ratio": ratio(name) for name in ("cpu", "p50_ms", "p99_ms")}
    values |= {f"few_{name}": value for name, value in medians(found[FEW]).items()}
    values |= {f"many_{name}": value for name, value in medians(found[many]).items()}
    write(out, "partitions", f"{many} partitions against {FEW}, the same load (100 B x 10 a batch, 60,000 records/s, 4 "
          "producers, acks=all), one shard on one core, --profile server, --memory 4GiB: broker CPU for each million records, "
          "latency, files open, resident memory, start after kill -9 and after a stop; and the descriptors of a process that "
          f"may have {FILES_MAX} after all {many} were read; medians of {rounds} alternated runs of {seconds} s after "
          f"{warmup} s", command("partitions"),
          at_most(1.25, "cpu_ratio") + at_most(FILES_MAX - files_budget(FILES_MAX), "many_descriptors_of_4096"),
          values=rounded(values))


def descriptors_read(directory, count):
    """Descriptors of a process that may have few, after each partition was written and read."""
    with Broker("--shards", "1", directory=directory, files_max=FILES_MAX, cpu=BROKER_CPU) as broker:
        load = ["--record-size", "100", "--records-per-batch", "1", "--rate", "5000/s", "--partitions", str(count),
                "--topic", "measured"]
        bench(broker.address, broker.process.pid, load, max(1, count // 5000), 0)
        return broker.descriptors()


def settled_resident_bytes(broker):
    """Memory once nothing is under way any more."""
    time.sleep(2)
    return broker.resident_bytes()


def idle(out, short):
    """Memory of partitions that do nothing."""
    rounds, many, rows = (1 if short else 3), MANY, []
    for _ in range(rounds):
        with Broker("--shards", "1", cpu=BROKER_CPU) as broker:
            create = lambda name, count: run([ringlog(), "topic", "-b", broker.address, "create", name, "-p", str(count)],
                                             capture_output=True)
            create("one", 1)
            before = settled_resident_bytes(broker)
            create("many", many)
            row = {"empty_bytes": (settled_resident_bytes(broker) - before) / many}
        resident = {}
        for count in (1, many):
            with tempfile.TemporaryDirectory(prefix="ringlog-measure-", dir=ROOT) as directory:
                load = ["--record-size", "100", "--records-per-batch", "10", "--partitions", str(count), "--rate", "20000/s",
                        "--topic", "measured"]
                with Broker("--shards", "1", directory=directory, cpu=BROKER_CPU) as broker:
                    bench(broker.address, broker.process.pid, load, many // 1000, 0)
                    row[f"running_resident_mib_of_{count}"] = settled_resident_bytes(broker) / (1 << 20)
                with Broker("--shards", "1", directory=directory, cpu=BROKER_CPU) as broker:
                    resident[count] = settled_resident_bytes(broker)
                    row[f"resident_mib_of_{count}"] = resident[count] / (1 << 20)
        row["with_data_bytes"] = (resident[many] - resident[1]) / (many - 1)
        rows.append(row)
        say("idle", rounded(row))
    write(out, "idle-partitions", f"resident memory of an idle partition: {many} partitions against 1, one shard, dev profile. "
          "Empty: after a topic of that many was created. With data: a start on a directory in which each partition holds "
          f"batches of 10 records. Medians of {rounds} runs", command("idle"),
          at_most(4096, "empty_bytes", "with_data_bytes"), values=rounded(medians(rows)))


# What needs no quiet machine, with room for a short run beside other work, where the journal makes files of more than its number and a
# batch that finds its segment busy is journalled after all: file -> (value, at most).
SHORT_BOUNDS = {
    "write-amplification": {"1k_off_process": 4, "64k_off_process": 4, "64k_on_process": 2, "1m_on_process": 1.2},
    "idle-partitions": {"empty_bytes": 8192, "with_data_bytes": 8192},
}
ROWS = {"amplification": amplification, "bypass": bypass, "flushes": flushes, "checkpoint": checkpoint,
        "partitions": partitions, "idle": idle}
