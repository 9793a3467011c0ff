"""What all figures share: the broker under measurement, the load, what the kernel counted, and the file of a figure."""
import datetime
import http.client
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BROKER_CPU, GENERATOR_CPU = "0", "1"
# ringlog.metrics.interval.ms: its default, and what rows with few partitions can afford.
METRICS_MS, METRICS_MS_FAST = 1000, 100


def run(command, **options):
    return subprocess.run([str(part) for part in command], check=True, text=True, cwd=ROOT, **options)


def output_of(command, **options):
    return run(command, stdout=subprocess.PIPE, **options).stdout


def instructions(command, *options):
    """Of one whole run by callgrind, or of what its options let it collect; with what the run printed."""
    with tempfile.TemporaryDirectory() as folder:
        callgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", *options]
        done = subprocess.run([str(part) for part in [*callgrind, *command]], check=True, capture_output=True, text=True)
    return int(re.search(r"Collected : (\d+)", done.stderr)[1]), done.stdout


def target():
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


class Binary:
    """The broker's and the load's; None = what this measurement built."""
    path = None


def ringlog():
    return Binary.path or target() / "release/ringlog"


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}"


def write(out, name, figure, command, bound, value=None, values=None, commit=None):
    """Writes the figure's file, of the commit that was built. What a person wrote into the file that it replaces stays: why
    a bound was missed."""
    path = out / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    document = {
        "figure": figure,
        "command": command,
        "machine": machine(),
        "commit": commit or output_of(["git", "rev-parse", "HEAD"]).strip(),
        "date": datetime.date.today().isoformat(),
    }
    if value is not None:
        document["value"] = value
    if values is not None:
        document["values"] = values
    document["bound"] = bound
    for kept in ("miss_explained", "note"):
        if before.get(kept):
            document[kept] = before[kept]
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{name}: {json.dumps(values if values is not None else value)}")


def at_most(limit, *names):
    return [{"value": name, "op": "<=", "limit": limit} for name in names]


def medians(rows):
    """The median of each figure over several runs."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def rounded(values, digits=3):
    return {name: round(value, digits) if isinstance(value, float) else value for name, value in values.items()}


class Broker:
    """Our broker on a data directory: a temporary one in the current file system, or one that stays."""

    def __init__(self, *arguments, cpu=None, directory=None, files_max=None, metrics_ms=METRICS_MS):
        self.temporary, self.metrics_ms = None, metrics_ms
        if directory is None:
            self.temporary = tempfile.TemporaryDirectory(prefix="ringlog-measure-", dir=ROOT)
            directory = self.temporary.name
        reader, writer = os.pipe()
        command = [ringlog(), "broker", "--data-dir", directory, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
                   "--ready-fd", str(writer), *arguments]
        if metrics_ms != METRICS_MS:
            command += ["--set", f"ringlog.metrics.interval.ms={metrics_ms}"]
        if cpu is not None:
            command = ["taskset", "-c", cpu, *command]
        if files_max is not None:
            command = ["prlimit", f"--nofile={files_max}:{files_max}", *command]
        begin = time.monotonic()
        self.process = subprocess.Popen([str(part) for part in command], pass_fds=[writer], stderr=subprocess.DEVNULL)
        os.close(writer)
        with os.fdopen(reader) as ready:
            line = ready.readline()
        if not line:
            raise SystemExit(f"the broker did not start: exit {self.process.wait()}")
        self.start_ms = (time.monotonic() - begin) * 1e3
        self.ready = json.loads(line)
        self.address, self.admin = self.ready["listeners"][0]["bound"], self.ready["admin"]

    def get(self, path):
        """(status, body) of an admin path."""
        connection = http.client.HTTPConnection(self.admin, timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metrics(self):
        """Name -> sum over all shards and labels, of what was counted until now: it waits for that to be published."""
        time.sleep(2.5 * self.metrics_ms / 1e3)
        sums = {}
        for line in self.get("/metrics")[1].splitlines():
            found = re.match(r"([a-z_]+)(?:\{[^}]*\})? ([0-9.e+]+)$", line)
            if found and not found[1].endswith("_bucket"):
                sums[found[1]] = sums.get(found[1], 0) + float(found[2])
        return sums

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024

    def resident_mib(self):
        return self.resident_bytes() / (1 << 20)

    def io(self):
        """What the kernel counted: `rchar` asked for by system calls, `read_bytes` and `write_bytes` of devices."""
        lines = pathlib.Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return {name: int(number) for name, number in (line.split(": ") for line in lines)}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        """Drains and checkpoints."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.stop()
        finally:
            if self.temporary is not None:
                self.temporary.cleanup()


def bench_command(address, workload, arguments, seconds, warmup):
    command = ["taskset", "-c", GENERATOR_CPU, ringlog(), "bench", workload, "-b", address, "--duration", f"{seconds}s",
               "--warmup", f"{warmup}s", "-o", "json", *arguments]
    return [str(part) for part in command]


def bench(address, pid, arguments, seconds, warmup, workload="produce"):
    command = bench_command(address, workload, ["--broker-pid", str(pid), *arguments], seconds, warmup)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        raise SystemExit(f"the load against {address} ended with {done.returncode}: {done.stderr[-400:]}")
    report = json.loads(done.stdout)
    if report["verdict"] != "passed":
        raise SystemExit(f"the run against {address} is {report['verdict']}: {report['failures']}")
    return report


def percentile_ms(report, name):
    found = next(row for row in report["produced"]["acknowledged"]["percentiles"] if row["name"] == name)
    return found["nanoseconds"] / 1e6
