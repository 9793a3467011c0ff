"""What the Python clients and wrappers of the matrix share: the specification file, the comparison, the command line.

Every client of the matrix, in whatever language, has the same command line:
  produce --bootstrap HOST:PORT --topic T --partition N --spec FILE --codec C --acks 0|1|all --idempotent true|false
  consume --bootstrap HOST:PORT --topic T --partition N --expect FILE --from beginning|OFFSET
  batch --jobs FILE      (one JSON object a line: the options above by name, "action" and "id")
and prints one JSON object a job: {"id", "ok", "detail", "seconds", "client"}. Exit 0 when all are ok, 1 otherwise.
"""
import argparse
import base64
import json
import sys
import time
import traceback

CONSUME_DEADLINE_SECONDS = 15.0
# With acks=0 nothing says that the bytes have left; a connection closed at once may lose them.
SETTLE_SECONDS = 0.3


class Record:
    """One record: key and value are bytes or None, headers a list of (name, bytes or None), timestamp ms or None."""

    __slots__ = ("key", "value", "headers", "timestamp", "offset")

    def __init__(self, key, value, headers, timestamp, offset=None):
        self.key, self.value, self.headers, self.timestamp, self.offset = key, value, headers, timestamp, offset


class Mismatch(Exception):
    """What was read is not what was written."""


def decode(text):
    return None if text is None else base64.b64decode(text)


def load_spec(path):
    records = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            item = json.loads(line)
            headers = [(name, decode(data)) for name, data in item["headers"]]
            records.append(Record(decode(item["key"]), decode(item["value"]), headers, item["timestamp"]))
    return records


def show(data):
    """Bytes for a person: the length and the start."""
    if data is None:
        return "null"
    if isinstance(data, bytes):
        return f"{len(data)} bytes {data[:24]!r}{'...' if len(data) > 24 else ''}"
    return repr(data)


def show_bytes_difference(expected, got):
    if isinstance(expected, bytes) and isinstance(got, bytes):
        at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
        return f" (first difference at byte {at}: {expected[at:at + 8]!r} / {got[at:at + 8]!r})"
    return ""


def compare_record(index, expected, got, expected_offset):
    """Raises Mismatch that names the first field which differs."""
    pairs = [
        ("offset", expected_offset, got.offset),
        ("key", expected.key, got.key),
        ("value", expected.value, got.value),
        ("header names", [name for name, _ in expected.headers], [name for name, _ in got.headers]),
    ]
    pairs += [(f"header {name!r}", want, have) for (name, want), (_, have) in zip(expected.headers, got.headers)]
    if expected.timestamp is not None:
        pairs.append(("timestamp", expected.timestamp, got.timestamp))
    for field, want, have in pairs:
        if want != have:
            detail = show_bytes_difference(want, have)
            raise Mismatch(f"record {index}: {field}: expected {show(want)}, read {show(have)}{detail}")


def compare_stream(expected, got, what):
    """Compares two runs of bytes; raises Mismatch with the position."""
    if expected != got:
        at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
        raise Mismatch(
            f"{what}: {len(expected)} bytes expected, {len(got)} read, first difference at byte {at}: "
            f"{expected[max(0, at - 16):at + 32]!r} / {got[max(0, at - 16):at + 32]!r}"
        )


def start_offset(job):
    return 0 if job.get("from", "beginning") == "beginning" else int(job["from"])


def _run_job(job, client, produce, consume):
    begin = time.monotonic()
    try:
        detail = (produce if job["action"] == "produce" else consume)(job)
        result = {"id": job.get("id", ""), "ok": True, "detail": detail or ""}
    except Mismatch as error:
        result = {"id": job.get("id", ""), "ok": False, "detail": str(error)}
    except Exception as error:  # noqa: BLE001 - a client failure of any kind is this job's result
        trace = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({trace.filename.rsplit('/', 1)[-1]}:{trace.lineno})"
        result = {"id": job.get("id", ""), "ok": False, "detail": detail}
    result["seconds"] = round(time.monotonic() - begin, 3)
    result["client"] = client
    print(json.dumps(result), flush=True)
    return result["ok"]


def main(client, produce, consume, arguments=None):
    """Runs one command line. `produce` and `consume` take a job and return a short text; they raise on failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("produce", "consume"):
        action = actions.add_parser(name)
        action.add_argument("--bootstrap", required=True)
        action.add_argument("--topic", required=True)
        action.add_argument("--partition", type=int, default=0)
        if name == "produce":
            action.add_argument("--spec", required=True)
            action.add_argument("--codec", choices=["none", "gzip", "snappy", "lz4", "zstd"], default="none")
            action.add_argument("--acks", choices=["0", "1", "all"], default="all")
            action.add_argument("--idempotent", choices=["true", "false"], default="false")
        else:
            action.add_argument("--expect", required=True)
            action.add_argument("--from", default="beginning")
    actions.add_parser("batch").add_argument("--jobs", required=True)
    args = parser.parse_args(arguments)
    if args.action == "batch":
        with open(args.jobs, encoding="utf-8") as lines:
            jobs = [json.loads(line) for line in lines]
    else:
        job = vars(args)
        if "idempotent" in job:
            job["idempotent"] = job["idempotent"] == "true"
        jobs = [job]
    results = [_run_job(job, client, produce, consume) for job in jobs]
    sys.exit(0 if all(results) else 1)
