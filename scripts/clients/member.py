"""What the members of consumer groups share, in Python: the command line, the events and the end.

Every member, in whatever language, has the same command line:
  --bootstrap HOST:PORT --topic T --group G --protocol range|cooperative-sticky|consumer --session-ms N [--instance ID]
joins the group, commits what it has read after each poll and before it gives a partition back, and prints one JSON object a line:
  {"event": "client", "name"}                  first: the client and its version
  {"event": "assigned", "partitions"}          given to it, beside what it has
  {"event": "revoked", "partitions"}           taken from it
  {"event": "owned", "partitions"}             all it has now (clients that tell no difference)
  {"event": "read", "partition", "offset", "value"}
  {"event": "trouble", "detail"}               a failed commit or poll; the member goes on
It leaves the group and ends with 0 when its standard input ends.
"""
import argparse
import json
import sys
import threading

_lock = threading.Lock()


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bootstrap", "topic", "group", "protocol"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--session-ms", type=int, required=True)
    parser.add_argument("--instance")
    return parser.parse_args()


def emit(event, **fields):
    with _lock:
        print(json.dumps({"event": event, **fields}), flush=True)


def read(message_partition, offset, value):
    emit("read", partition=message_partition, offset=offset, value=(value or b"").decode())


def until_stdin_ends():
    """An event that is set once standard input has ended."""
    stop = threading.Event()

    def wait():
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop
