#!/usr/bin/env python3
"""Real clients against a broker: what client A wrote, client B reads, byte by byte.

  matrix.py --bootstrap HOST:PORT --level smoke            any broker that runs already
  matrix.py --kafka --level full                           Apache Kafka, started through scripts/kafka-peer.sh
  matrix.py --ringlog target/ci/ringlog --level pairwise   our broker in a temporary folder, with restarts

Against our broker each run also does: kill -9 and a restart with another shard count, a clean stop and a restart, each with
everything read back; a text file through `ringlog cat` and kcat; get-offsets, producer-perf-test and DumpLogSegments of the
Kafka tools. Levels: smoke (a minute, two clients), pairwise (every pair of factors, chosen by the commit hash), full.
"""
import argparse
import datetime
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import brokers
import scenario
import wire

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "tools"))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "ringlog", "clients")
VENV_PYTHON = os.path.join(CACHE, "venv", "bin", "python")
NODE_MODULES = os.path.join(CACHE, "js", "node_modules")

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# (acks, idempotent): idempotence is defined for acks=all only.
ACKS = [("all", True), ("all", False), ("1", False), ("0", False)]
# Client -> the scenario profile it can produce.
CLIENTS = {
    "kcat": "kcat", "confluent-kafka": "full", "kafka-python": "keyed", "aiokafka": "keyed", "franz-go": "full", "sarama": "full", "kafka-go": "full",
    "kafkajs": "keyed", "java": "full", "tools": "console",
}
# kafkajs has gzip by itself and snappy from a package of its own; what it takes for the others is compiled C.
CODECS_OF = {"kafkajs": ["none", "gzip", "snappy"]}
NOT_IDEMPOTENT = {"kafka-go"}
# A further client is crossed with the yardsticks and itself: all with all would take twice the time and tell little more.
FURTHER = {"aiokafka", "sarama", "kafka-go", "kafkajs"}
YARDSTICKS = {"confluent-kafka", "franz-go", "java"}
# kafkajs reads in a group of its own; nobody else would join it.
SETTINGS = {"group.initial.rebalance.delay.ms": 0}
SHARDS = [1, 2]
DRIVERS = ["io_uring", "epoll"]
PARTITIONS = 4


def command_of(client):
    """The command that runs a client; the rest of its command line is the same for all."""
    java = os.path.join(CACHE, "java")
    return {
        "kcat": [sys.executable, os.path.join(HERE, "kcat", "kcat_client.py")],
        "tools": [sys.executable, os.path.join(HERE, "tools", "tools_client.py")],
        "confluent-kafka": [VENV_PYTHON, os.path.join(HERE, "python", "confluent_client.py")],
        "kafka-python": [VENV_PYTHON, os.path.join(HERE, "python", "kafka_python_client.py")],
        "aiokafka": [VENV_PYTHON, os.path.join(HERE, "python", "aiokafka_client.py")],
        **{name: [os.path.join(CACHE, "go-clients"), name] for name in ("franz-go", "sarama", "kafka-go")},
        "kafkajs": ["node", os.path.join(HERE, "js", "client.js")],
        "java": ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
                 f"{java}/java-client.jar:{java}/libraries/*", "ringlog.clients.JavaClient"],
    }[client]


def writes(client, codec, idempotent):
    return codec in CODECS_OF.get(client, CODECS) and not (idempotent and client in NOT_IDEMPOTENT)


def reads(client, codec):
    return codec in CODECS_OF.get(client, CODECS)


def allowed(writer, reader, codec, acks):
    both = {writer, reader}
    crossed = writer == reader or not both & FURTHER or bool(both & YARDSTICKS)
    return crossed and writes(writer, codec, acks[1]) and reads(reader, codec)


class Results:
    """Every check of the run: rows {phase, producer, consumer, codec, acks, ...} with ok and detail."""

    def __init__(self):
        self.rows, self.versions = [], {}

    def add(self, ok, detail, **row):
        self.rows.append({"ok": ok, "detail": detail, **row})
        if not ok:
            name = " ".join(str(value) for value in row.values() if value not in (None, ""))
            print(f"FAILED {name}: {detail}", flush=True)

    def check(self, function, **row):
        """Runs a check that raises on failure."""
        begin = time.monotonic()
        try:
            detail = function()
            self.add(True, detail or "", seconds=round(time.monotonic() - begin, 2), **row)
        except Exception as error:  # noqa: BLE001 - any failure is this check's result
            self.add(False, f"{type(error).__name__}: {error}", seconds=round(time.monotonic() - begin, 2), **row)


def run_batch(client, jobs, folder, timeout):
    """Runs jobs in one process of a client; yields (job, result). A process that dies fails the jobs it did not report."""
    path = os.path.join(folder, f"jobs-{client}.jsonl")
    with open(path, "w", encoding="utf-8") as out:
        for job in jobs:
            out.write(json.dumps(job) + "\n")
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", NODE_PATH=NODE_MODULES)
    try:
        done = subprocess.run(
            [*command_of(client), "batch", "--jobs", path], capture_output=True, timeout=timeout, env=environment,
            stdin=subprocess.DEVNULL)
        output, trouble = done.stdout, done.stderr[-300:].decode(errors="replace")
    except subprocess.TimeoutExpired as error:
        output, trouble = error.stdout or b"", f"no end within {timeout} s"
    except OSError as error:
        output, trouble = b"", f"{error} (run scripts/install-tools.sh)"
    reported = {}
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("{"):
            result = json.loads(line)
            reported[result["id"]] = result
    for job in jobs:
        yield job, reported.get(job["id"], {"ok": False, "detail": f"not run: {trouble}", "client": client})


class Cell:
    """One topic: who wrote it, how, and where the records are."""

    def __init__(self, number, producer, codec, acks, idempotent, consumers):
        self.producer, self.codec, self.acks, self.idempotent = producer, codec, acks, idempotent
        self.consumers = consumers
        self.topic = f"m{number}-{producer}-{codec}-{acks}{'-idempotent' if idempotent else ''}"
        # The console producer picks the partition itself.
        self.partitions = 1 if producer == "tools" else PARTITIONS
        self.partition = number % self.partitions
        self.produced = False

    def row(self):
        return {"producer": self.producer, "codec": self.codec, "acks": self.acks, "idempotent": self.idempotent}


def write_specifications(folder, seed, records):
    paths = {}
    for profile in scenario.PROFILES:
        paths[profile] = os.path.join(folder, f"{profile}.jsonl")
        scenario.write(paths[profile], seed, records, profile, int(time.time() * 1000) - 3_600_000)
    return paths


def produce(results, cells, address, paths, folder, context):
    wire.create_and_wait(address, {cell.topic: cell.partitions for cell in cells})
    for client in CLIENTS:
        mine = {cell.topic: cell for cell in cells if cell.producer == client}
        jobs = [{
            "id": cell.topic, "action": "produce", "bootstrap": address, "topic": cell.topic, "partition": cell.partition,
            "spec": paths[CLIENTS[client]], "codec": cell.codec, "acks": cell.acks, "idempotent": cell.idempotent,
        } for cell in mine.values()]
        if not jobs:
            continue
        for job, result in run_batch(client, jobs, folder, 60 + 30 * len(jobs)):
            cell = mine[job["topic"]]
            cell.produced = result["ok"]
            results.versions[client] = result["client"]
            results.add(result["ok"], result["detail"], phase="produce", seconds=result.get("seconds"), **cell.row(), **context)


def consume(results, cells, address, paths, folder, context, phase, consumers_of):
    """Every produced cell is read by consumers_of(cell)."""
    for client in CLIENTS:
        mine = {cell.topic: cell for cell in cells if cell.produced and client in consumers_of(cell)}
        jobs = [{
            "id": cell.topic, "action": "consume", "bootstrap": address, "topic": cell.topic, "partition": cell.partition,
            "expect": paths[CLIENTS[cell.producer]], "from": "beginning",
        } for cell in mine.values()]
        if not jobs:
            continue
        for job, result in run_batch(client, jobs, folder, 60 + 20 * len(jobs)):
            results.versions[client] = result["client"]
            results.add(
                result["ok"], result["detail"], phase=phase, consumer=client, seconds=result.get("seconds"),
                **mine[job["topic"]].row(), **context)


def factors():
    """Every allowed cell of the full product: (producer, consumer, codec, (acks, idempotent), shards, driver)."""
    product = itertools.product(CLIENTS, CLIENTS, CODECS, ACKS, SHARDS, DRIVERS)
    return [cell for cell in product if allowed(*cell[:4])]


def pairwise(seed):
    """A small set of cells in which every pair of factor values occurs; which cells, the seed decides."""
    rng = random.Random(f"pairwise {seed}")
    pool = factors()
    rng.shuffle(pool)

    def pairs(cell):
        return {(i, str(cell[i]), j, str(cell[j])) for i, j in itertools.combinations(range(len(cell)), 2)}

    missing = set().union(*map(pairs, pool))
    chosen = []
    while missing:
        best = max(rng.sample(pool, 200), key=lambda cell: len(pairs(cell) & missing))
        if not pairs(best) & missing:
            best = max(pool, key=lambda cell: len(pairs(cell) & missing))
        missing -= pairs(best)
        chosen.append(best)
    return chosen


def cells_of(rows):
    """Cells from (producer, consumer, codec, acks) rows: one topic per producer setting, with all its consumers."""
    grouped = {}
    for producer, consumer, codec, (acks, idempotent) in rows:
        grouped.setdefault((producer, codec, acks, idempotent), set()).add(consumer)
    return [Cell(number, *key, sorted(consumers)) for number, (key, consumers) in enumerate(grouped.items())]


def plan(level, seed, shards, drivers):
    """[(shards, driver, cells)]: one broker life each."""
    if level == "pairwise":
        chosen = pairwise(seed)
        lives = []
        for count, driver in itertools.product(SHARDS, DRIVERS):
            rows = [cell[:4] for cell in chosen if cell[4] == count and cell[5] == driver]
            if count in shards and driver in drivers:
                lives.append((count, driver, cells_of(rows)))
        return lives
    if level == "smoke":
        rows = [(a, b, codec, acks) for a, b in itertools.product(["kcat", "confluent-kafka"], repeat=2)
                for codec, acks in (("none", ("all", True)), ("zstd", ("1", False)))]
    else:
        rows = []
        for a, b, codec, acks in itertools.product(CLIENTS, CLIENTS, CODECS, ACKS):
            # A JVM start per cell: the console consumer reads each producer's idempotent cells only.
            if allowed(a, b, codec, acks) and (b != "tools" or acks == ("all", a not in NOT_IDEMPOTENT)):
                rows.append((a, b, codec, acks))
    return [(count, driver, cells_of(rows)) for count, driver in itertools.product(shards, drivers)]


def tools_checks(results, cells, broker, context, level):
    """The remaining tools of the jars: producer-perf-test and get-offsets over everything written."""
    import tools_client

    def performance():
        wire.create_and_wait(broker.address, {"performance": 2})
        text = tools_client.tool(
            "ProducerPerformance", "--bootstrap-server", broker.address, "--topic", "performance", "--num-records", "20000",
            "--record-size", "200", "--throughput", "-1").decode()
        last = text.strip().splitlines()[-1]
        if not last.startswith("20000 records sent"):
            raise AssertionError(f"closing line {last!r}")
        text = tools_client.tool("GetOffsetShell", "--bootstrap-server", broker.address, "--topic", "performance").decode()
        total = sum(int(line.rsplit(":", 1)[1]) for line in text.split())
        if total != 20000:
            raise AssertionError(f"get-offsets counts {total} of 20000 records: {text!r}")
        return last

    def get_offsets():
        asked = [cell for cell in cells if cell.produced]
        for when in ("-1", "-2"):
            text = tools_client.tool(
                "GetOffsetShell", "--bootstrap-server", broker.address, "--topic-partitions",
                ",".join(f"{cell.topic}:{cell.partition}" for cell in asked), "--time", when).decode()
            got = {line.rsplit(":", 1)[0]: int(line.rsplit(":", 1)[1]) for line in text.split()}
            for cell in asked:
                want = 0 if when == "-2" else broker.records
                if got.get(f"{cell.topic}:{cell.partition}") != want:
                    raise AssertionError(f"{cell.topic}: expected {want}, got {got.get(f'{cell.topic}:{cell.partition}')}")
        return f"{len(asked)} partitions"

    results.check(performance, phase="producer-perf-test", producer="tools", **context)
    results.check(get_offsets, phase="get-offsets", consumer="tools", **context)


def write_report(path, report):
    """Writes the evidence: one line a row, and of a row that passed only what it was."""
    rows = [row if not row["ok"] else {key: value for key, value in row.items() if key not in ("detail", "seconds")}
            for row in report["rows"]]
    head = json.dumps({key: value for key, value in report.items() if key != "rows"}, indent=1, ensure_ascii=False)
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    with open(path, "w", encoding="utf-8") as out:
        out.write(f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n')


def dump_segments(results, cells, broker, paths, context):
    """DumpLogSegments reads the files of a stopped broker: batches valid, offsets complete."""
    import tools_client

    def dump(cell, expected):
        files = broker.segment_files(cell.topic, cell.partition)
        if not files:
            raise AssertionError(f"no segment of {cell.topic}-{cell.partition} under {broker.data}")
        text = tools_client.tool("DumpLogSegments", "--deep-iteration", "--files", ",".join(files)).decode(errors="replace")
        batches = [line for line in text.splitlines() if "baseOffset:" in line]
        invalid = [line for line in batches if "isvalid: true" not in line.lower()]
        count = sum(int(line.split("count: ", 1)[1].split()[0]) for line in batches)
        if invalid or count != expected:
            raise AssertionError(f"{count} of {expected} records in {len(batches)} batches, invalid: {invalid[:1]}")
        return f"{count} records in {len(batches)} batches"

    chosen = {}
    for cell in cells:
        if cell.produced:
            chosen.setdefault(cell.codec, cell)
    for codec, cell in sorted(chosen.items()):
        results.check(lambda cell=cell: dump(cell, broker.records), phase="dump-log-segments", consumer="tools", codec=codec,
                      producer=cell.producer, **context)


def text_file(results, broker, folder, context):
    """A real text through `ringlog cat` and kcat, both ways, has the same sha256 at the end."""
    source = os.path.join(ROOT, "LICENSE")

    def lines_digest(data):
        return hashlib.sha256(data).hexdigest()

    with open(source, "rb") as file:
        # Empty lines are no records for kcat.
        wanted = b"".join(line for line in file.read().splitlines(keepends=True) if line.strip())
    path = os.path.join(folder, "text")
    with open(path, "wb") as out:
        out.write(wanted)

    def run(command, data=None):
        done = subprocess.run(command, input=data, capture_output=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-300:].decode(errors='replace')}")
        return done.stdout

    def cat_to_kcat():
        wire.create_and_wait(broker.address, {"text-cat": 1})
        run(broker.cat_produce("text-cat"), wanted)
        got = run(["kcat", "-C", "-b", broker.address, "-t", "text-cat", "-p", "0", "-o", "beginning", "-e", "-q"])
        if lines_digest(got) != lines_digest(wanted):
            raise AssertionError(f"sha256 differs: {len(got)} bytes of {len(wanted)}")
        return lines_digest(got)

    def kcat_to_cat():
        wire.create_and_wait(broker.address, {"text-kcat": 1})
        run(["kcat", "-P", "-b", broker.address, "-t", "text-kcat", "-p", "0", "-l", path])
        got = run(broker.cat_consume("text-kcat"))
        if lines_digest(got) != lines_digest(wanted):
            raise AssertionError(f"sha256 differs: {len(got)} bytes of {len(wanted)}")
        return lines_digest(got)

    results.check(cat_to_kcat, phase="text file", producer="ringlog cat", consumer="kcat", **context)
    results.check(kcat_to_cat, phase="text file", producer="kcat", consumer="ringlog cat", **context)


def quick_readers(cells, level):
    """{topic: [client]}: one quick reader per topic is enough after a restart; which one, the topic's number decides."""
    quick = ["kcat", "confluent-kafka"]
    if level != "smoke":
        quick += ["franz-go", "java", "aiokafka", "sarama", "kafka-go", "kafkajs"]
    chosen = {}
    for number, cell in enumerate(cells):
        able = [client for client in quick if reads(client, cell.codec)]
        chosen[cell.topic] = [able[number % len(able)]]
    return chosen


def one_life(results, broker, cells, paths, folder, context, level):
    """Starts a broker, runs its cells, and the restarts where the broker is ours."""
    broker.start()
    try:
        produce(results, cells, broker.address, paths, folder, context)
        consume(results, cells, broker.address, paths, folder, context, "consume", lambda cell: cell.consumers)
        if level != "smoke":
            tools_checks(results, cells, broker, context, level)
        if broker.can_cat:
            text_file(results, broker, folder, context)
        if broker.can_restart:
            reader = quick_readers(cells, level)
            other = 3 if context["shards"] == 2 else 2
            broker.kill()
            broker.start(shards=other)
            consume(results, cells, broker.address, paths, folder, context, f"kill -9, restart on {other} shards",
                    lambda cell: reader[cell.topic])
            results.check(broker.stop, phase="clean stop", **context)
            broker.start(shards=context["shards"])
            consume(results, cells, broker.address, paths, folder, context, "clean restart", lambda cell: reader[cell.topic])
        if broker.data:
            broker.topic_ids(cell.topic for cell in cells)
            if broker.can_restart:
                results.check(broker.stop, phase="clean stop", **context)
            dump_segments(results, cells, broker, paths, context)
    finally:
        broker.close()


def table(results):
    """Rows for a person: per client what it wrote and read."""
    lines = [f"{'client':<44} {'wrote':>9} {'read':>9} {'after restart':>14}"]
    for client in CLIENTS:
        name = results.versions.get(client, client)
        wrote = [row["ok"] for row in results.rows if row["phase"] == "produce" and row.get("producer") == client]
        read = [row["ok"] for row in results.rows if row["phase"] == "consume" and row.get("consumer") == client]
        again = [row["ok"] for row in results.rows if "restart" in row["phase"] and row.get("consumer") == client]
        cells = [f"{sum(group)}/{len(group)}" if group else "-" for group in (wrote, read, again)]
        lines.append(f"{name:<44} {cells[0]:>9} {cells[1]:>9} {cells[2]:>14}")
    for phase in ("producer-perf-test", "get-offsets", "dump-log-segments", "text file", "clean stop"):
        rows = [row["ok"] for row in results.rows if row["phase"] == phase]
        if rows:
            lines.append(f"{phase:<44} {sum(rows)}/{len(rows)}")
    return "\n".join(lines)


def settings(chosen):
    """Configuration of a broker as words of its command line."""
    return [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]


def commit_hash():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine():
    """The machine in words, without its name."""
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {model}, {memory_gib:.0f} GiB, Linux {os.uname().release}"


def finish(results, args, figure, command, begin, text):
    """Writes the evidence where it was asked for, prints the table, and gives the exit code."""
    passed = sum(row["ok"] for row in results.rows)
    failed = len(results.rows) - passed
    if args.json:
        write_report(args.json, {
            "figure": figure, "command": command,
            "broker": "ringlog" if args.ringlog else ("Apache Kafka" if args.kafka else "external"), "commit": commit_hash(),
            "machine": machine(), "date": datetime.date.today().isoformat(), "level": args.level,
            "seconds": round(time.monotonic() - begin, 1), "values": {"passed": passed, "failed": failed},
            "bound": {"value": "failed", "op": "==", "limit": 0}, "versions": results.versions, "rows": results.rows,
        })
    print(text)
    print(f"{time.monotonic() - begin:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already")
    which.add_argument("--ringlog", metavar="BINARY", help="the ringlog binary; started in a temporary folder")
    which.add_argument("--kafka", action="store_true", help="Apache Kafka through scripts/kafka-peer.sh")
    parser.add_argument("--level", choices=["smoke", "pairwise", "full"], default="smoke")
    parser.add_argument("--shards", type=int, action="append", help="shard counts (default: 1 and 2; smoke: 2)")
    parser.add_argument("--io-driver", choices=DRIVERS, action="append", help="drivers (default: both; smoke: epoll)")
    parser.add_argument("--seed", help="what the choice of pairwise cells follows (default: the commit hash)")
    parser.add_argument("--records", type=int, default=120, help="records in each topic")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    args = parser.parse_args()

    seed = args.seed or commit_hash()
    ours = bool(args.ringlog)
    shards = args.shards or ([2] if args.level == "smoke" else SHARDS)
    drivers = args.io_driver or (["epoll"] if args.level == "smoke" else DRIVERS)
    lives = plan(args.level, seed, shards, drivers)
    if not ours:
        # Shards and driver mean nothing to another broker: all chosen cells in one life.
        rows = sorted({(cell.producer, consumer, cell.codec, (cell.acks, cell.idempotent))
                       for _, _, cells in lives for cell in cells for consumer in cell.consumers}, key=str)
        lives = [(None, None, cells_of(rows))]
    results = Results()
    folder = tempfile.mkdtemp(prefix="ringlog-matrix-")
    begin = time.monotonic()
    try:
        paths = write_specifications(folder, seed, args.records)
        for count, driver, cells in lives:
            context = {} if count is None else {"shards": count, "driver": driver}
            print(f"== {len(cells)} topics {' '.join(f'{k} {v}' for k, v in context.items())}", flush=True)
            if ours:
                data = os.path.join(folder, f"data-{count}-{driver}")
                broker = brokers.Ringlog(args.ringlog, data, shards=count, driver=driver, extra=settings(SETTINGS))
            elif args.kafka:
                broker = brokers.Kafka(os.path.join(ROOT, "scripts", "kafka-peer.sh"), options=settings(SETTINGS))
            else:
                broker = brokers.External(args.bootstrap)
            broker.records = args.records
            results.check(lambda: one_life(results, broker, cells, paths, folder, context, args.level), phase="broker", **context)
    finally:
        if args.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    command = f"scripts/clients/matrix.py --level {args.level}"
    if ours:
        command += f" --ringlog {os.path.basename(args.ringlog)}"
    return finish(results, args, "clients", command, begin, table(results))


if __name__ == "__main__":
    # An orderly end on SIGTERM, so that no broker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
