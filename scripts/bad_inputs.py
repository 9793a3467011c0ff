#!/usr/bin/env python3
"""Bad input on the Kafka port: each case sends something that no client should, and states what must come back.

After each case a fresh client must be served within a second, and with --pid the broker's peak memory must stay within
the case's bound. Standard library only; runs against any broker:

  bad_inputs.py --bootstrap HOST:PORT [--pid PID]
  bad_inputs.py --ringlog BINARY                      our broker, started in a temporary folder
  bad_inputs.py --kafka                               Apache Kafka, whose known differences are listed and not counted
"""
import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "clients"))
import brokers  # noqa: E402
import wire  # noqa: E402

from bad_input.context import CASES, RUINS_KAFKA, SERVED_WITHIN_SECONDS, TOPIC, Context, Unexpected, fresh_client  # noqa: E402
from bad_input import frames, topics, batches, compression, reads, floods, configs, groups  # noqa: E402, F401 - they register their cases


def memory_kib(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(name + ":"):
                return int(line.split()[1])
    return 0


def prepare(address):
    """The topic, with records in partition 1 that every fresh client reads."""
    wire.create_and_wait(address, {TOPIC: 3})
    deadline = time.monotonic() + 20
    with wire.Connection(address) as peer:
        while True:
            error, _ = peer.produce(TOPIC, 1, wire.batch([wire.record(b"k", bytes(100_000))]))
            if error == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"cannot produce: error {error}")
            time.sleep(0.2)


def reset_peak(pid):
    try:
        with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as out:
            out.write("5")
        return True
    except OSError:
        return False


def run_case(context, pid, row, function, memory_mib):
    """Returns None or what went wrong."""
    measured = pid is not None and reset_peak(pid)
    before = memory_kib(pid, "VmRSS") if measured else 0
    try:
        function(context)
    except Unexpected as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the broker's behaviour broke the case
        return f"{type(error).__name__}: {error}"
    try:
        took = fresh_client(context.address)
        if took > SERVED_WITHIN_SECONDS:
            return f"afterwards a fresh client waited {took:.1f} s"
    except Exception as error:  # noqa: BLE001 - the same
        return f"afterwards a fresh client failed: {type(error).__name__}: {error}"
    if measured:
        grown = (memory_kib(pid, "VmHWM") - before) / 1024
        if grown > memory_mib:
            return f"peak memory grew by {grown:.0f} MiB, bound {memory_mib} MiB"
    return None


def run_all(address, pid, chosen, is_kafka):
    prepare(address)
    context = Context(address, is_kafka)
    passed = failed = differs = 0
    for row, function, memory_mib, kafka in CASES:
        name = f"{row} ({function.__name__})"
        if chosen and not any(word in name for word in chosen):
            continue
        if is_kafka and kafka is RUINS_KAFKA:
            differs += 1
            print(f"not run           {name} [known: {kafka}]", flush=True)
            continue
        begin = time.monotonic()
        trouble = run_case(context, None if is_kafka else pid, row, function, memory_mib)
        took = time.monotonic() - begin
        if trouble is None:
            passed += 1
            print(f"ok      {took:6.2f} s  {name}", flush=True)
        elif is_kafka and kafka:
            differs += 1
            print(f"differs {took:6.2f} s  {name}: {trouble} [known: {kafka}]", flush=True)
        else:
            failed += 1
            print(f"FAILED  {took:6.2f} s  {name}: {trouble}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {differs} skipped" if differs else ""))
    return 0 if failed == 0 and passed else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--bootstrap", metavar="HOST:PORT")
    which.add_argument("--ringlog", metavar="BINARY")
    which.add_argument("--kafka", action="store_true")
    parser.add_argument("--pid", type=int, help="the broker's process, to bound its memory (Linux)")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--io-driver", default="auto")
    parser.add_argument("--only", action="append", help="cases whose name contains this; may be repeated")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        for row, function, memory_mib, _ in CASES:
            print(f"{row} ({function.__name__}), at most {memory_mib} MiB")
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard) if hard > 0 else 8192, hard))
    folder = tempfile.mkdtemp(prefix="ringlog-bad-inputs-")
    if args.ringlog:
        broker = brokers.Ringlog(args.ringlog, os.path.join(folder, "data"), shards=args.shards, driver=args.io_driver)
    elif args.kafka:
        broker = brokers.Kafka(os.path.join(HERE, "kafka-peer.sh"))
    else:
        broker = brokers.External(args.bootstrap)
    try:
        broker.start()
        code = run_all(broker.address, args.pid or broker.pid, args.only, args.kafka)
        if args.ringlog and broker.process.poll() is not None:
            print(f"FAILED: the broker ended with {broker.process.returncode}: {broker.log_tail()}")
            code = 1
        return code
    finally:
        broker.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # An orderly end on SIGTERM, so that no broker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
