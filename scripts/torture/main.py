#!/usr/bin/env python3
"""Cycles of a fault against a broker under load. Called by scripts/torture.sh, which gives it namespaces of its own."""
import argparse
import datetime
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import faults  # noqa: E402
from stage import Stage, call  # noqa: E402
from world import Failure, World, summary  # noqa: E402

ROOT = HERE.parent.parent


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/torture.sh", description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("fault", choices=sorted(faults.FAULTS))
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each further round has the next")
    parser.add_argument("--round", type=int, default=None, help="cycles of one round, after which the history is judged")
    parser.add_argument("--ringlog", default=str(ROOT / "target" / "ci" / "ringlog"), help="the binary")
    parser.add_argument("--clients", default=None, help="another binary for the clients and the checker")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--io-driver", default="auto")
    parser.add_argument("--rate", type=int, default=400, help="batches a second of all producers")
    parser.add_argument("--patience", type=int, default=10, help="seconds that the final read may stand still")
    parser.add_argument("--json", default=None, help="where the figure goes, in the form of docs/evidence")
    parser.add_argument("--keep", default="torture-failures", help="folder for the data of failed rounds")
    parser.add_argument("--keep-going", action="store_true", help="go on with the next round after a failure")
    parser.add_argument("--work", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cycles < 1 or args.seed < 0 or (args.round is not None and args.round < 1):
        parser.error("--cycles and --round are at least 1, --seed at least 0")
    if args.work is None:
        parser.error("run scripts/torture.sh: this part expects namespaces of its own")
    args.ringlog = os.path.abspath(args.ringlog)
    args.clients = os.path.abspath(args.clients) if args.clients else args.ringlog
    for binary in (args.ringlog, args.clients):
        if not os.access(binary, os.X_OK):
            parser.error(f"{binary} is no binary; build it (cargo build --profile ci) or name one with --ringlog")
    return args


class Tally:
    """What the figure says."""

    def __init__(self):
        self.cycles, self.cycle_ms, self.start_ms = 0, [], []
        self.acknowledged = self.anomalies = self.failed_starts = self.failures = self.values = 0
        self.first_failure = None

    def add_round(self, world):
        self.start_ms += world.broker.starts_ms
        if world.history:
            self.acknowledged += world.history.acknowledged
        if world.verdict:
            self.anomalies += sum(anomaly["count"] for anomaly in world.verdict["anomalies"])
            self.values += world.verdict["counts"]["values_acknowledged"]

    def values_of_figure(self, args, seconds):
        return {
            "cycles": self.cycles, "failures": self.failures, "anomalies": self.anomalies,
            "failed_starts": self.failed_starts, "acknowledged_sends": self.acknowledged,
            "acknowledged_records_judged": self.values, "seed": args.seed, "seconds": round(seconds, 1),
            "cycle_ms_p50": percentile(self.cycle_ms, 50), "cycle_ms_max": percentile(self.cycle_ms, 100),
            "start_ms_p50": percentile(self.start_ms, 50), "start_ms_max": percentile(self.start_ms, 100),
        }


def percentile(values, percent):
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1) if ordered else 0.0


def run_round(args, stage, tally, seed, cycles, keep):
    """True if everything held."""
    function = faults.FAULTS[args.fault][0]
    group = None
    if args.fault == "memory":
        group = f"/sys/fs/cgroup/memory/{os.path.basename(args.work)}"
    world = World(args, stage, random.Random(seed), seed, group)
    cycle = 0
    try:
        world.begin()
        for cycle in range(1, cycles + 1):
            begin = time.monotonic()
            function(world)
            tally.cycles += 1
            tally.cycle_ms.append((time.monotonic() - begin) * 1000)
            if cycle % 10 == 0 or cycle == cycles:
                print(f"{args.fault}: seed {seed}, cycle {cycle} of {cycles}, {percentile(tally.cycle_ms, 50):.0f} ms a "
                      f"cycle, {world.history.acknowledged} sends acknowledged", flush=True)
        if args.fault not in faults.ENDS_ROUND:
            world.finish()
        return True
    except Exception as error:  # noqa: BLE001 - whatever went wrong, the round failed and its data is kept
        if not isinstance(error, Failure):
            traceback.print_exc()
        tally.failures += 1
        tally.failed_starts += "did not start" in str(error)
        tally.first_failure = tally.first_failure or f"seed {seed}: {error}"
        print(f"FAILED {args.fault}, seed {seed}, cycle {cycle}: {error}", flush=True)
        folder = os.path.join(keep, f"{args.fault}-{seed}")
        try:
            if world.history and world.verdict is None and not world.judge()["is_clean"]:
                print(f"  the history until then: {summary(world.verdict)}", flush=True)
            world.broker.kill()
            world.keep(folder)
        except (OSError, shutil.Error, Failure) as problem:
            print(f"torture: not all was kept: {problem}", flush=True)
        print(f"  kept: {folder}\n  again: scripts/torture.sh {args.fault} --seed {seed} --cycles {cycles} --round {cycles} "
              f"--shards {args.shards} --io-driver {args.io_driver} --rate {args.rate} --ringlog {args.ringlog}", flush=True)
        return False
    finally:
        world.close()
        tally.add_round(world)


def write_figure(args, tally, seconds):
    commit = call("git", "-C", str(ROOT), "rev-parse", "HEAD", check=False)
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    figure = {
        "figure": f"torture: {args.fault} under load, the history of all clients judged",
        "command": f"scripts/torture.sh {args.fault} --cycles {args.cycles} --seed {args.seed} --shards {args.shards} "
                   f"--io-driver {args.io_driver} --rate {args.rate}",
        "commit": commit, "date": datetime.date.today().isoformat(),
        "machine": f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}",
        "values": tally.values_of_figure(args, seconds),
        "bound": [{"value": name, "op": "==", "limit": 0} for name in ("failures", "anomalies", "failed_starts")]
        + [{"value": "cycles", "op": ">=", "limit": args.cycles}],
    }
    if tally.first_failure:
        figure["first_failure"] = tally.first_failure
    with open(args.json, "w", encoding="utf-8") as file:
        json.dump(figure, file, indent=2)
        file.write("\n")


def main():
    args = arguments()
    # An orderly end also on SIGTERM, so that mounts and groups are undone; the namespace is the safety net.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    call("mount", "--make-rprivate", "/")
    call("ip", "link", "set", "lo", "up")
    keep = os.path.abspath(args.keep)
    _, round_cycles, device_mib, backing_mib = faults.FAULTS[args.fault]
    round_cycles = args.round or round_cycles
    stage, tally, begin = Stage(args.work, device_mib, backing_mib), Tally(), time.monotonic()
    left, seed, held = args.cycles, args.seed, True
    try:
        while left > 0 and (held or args.keep_going):
            cycles = min(left, round_cycles)
            held = run_round(args, stage, tally, seed, cycles, keep) and held
            left, seed = left - cycles, seed + 1
    finally:
        stage.close()
    seconds = time.monotonic() - begin
    if args.json:
        write_figure(args, tally, seconds)
    values = tally.values_of_figure(args, seconds)
    print(f"{args.fault}: {values['cycles']} cycles in {seconds:.1f} s ({values['cycle_ms_p50']:.0f} ms each, start "
          f"{values['start_ms_p50']:.0f} ms), {values['acknowledged_records_judged']} records judged, "
          f"{values['anomalies']} anomalies, {values['failed_starts']} failed starts, {values['failures']} failures", flush=True)
    return 0 if tally.failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
