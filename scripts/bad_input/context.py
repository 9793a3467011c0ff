"""What the cases of bad_inputs.py share: how a case is registered, how the broker is asked, how others are served."""
import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))
import wire  # noqa: E402

SERVED_WITHIN_SECONDS = 1.0
CLOSED_WITHIN_SECONDS = 3.0
INT32_MAX, INT64_MAX, INT64_MIN = 2**31 - 1, 2**63 - 1, -(2**63)
MIB = 1 << 20
TOPIC = "bad-inputs"
CASES = []
# Kafka allocates what a frame promises and runs out of heap: not run against it.
RUINS_KAFKA = "allocates what a frame promises; its heap is gone after this case"


class Unexpected(Exception):
    """The broker did something else than required."""


# Kafka answers what its decoders throw with this; we must not.
UNKNOWN_SERVER_ERROR = -1


def case(row, memory_mib=48, kafka=None):
    """Registers a case. `row` names its kind, `memory_mib` bounds growth of peak memory, `kafka` says how Kafka differs."""
    def register(function):
        CASES.append((row, function, memory_mib, kafka))
        return function
    return register


class Context:
    """What the cases share: the address and the ways to ask."""

    def __init__(self, address, is_kafka=False):
        self.address, self.is_kafka = address, is_kafka

    def connect(self, timeout=10.0):
        return wire.Connection(self.address, timeout)

    def closes(self, data, what, finish=False):
        """The broker must close the connection, without an answer first."""
        with self.connect(CLOSED_WITHIN_SECONDS) as peer:
            try:
                peer.send(data)
                if finish:
                    peer.socket.shutdown(socket.SHUT_WR)
                answer = peer.socket.recv(64)
            except (wire.Closed, ConnectionError):
                return
            except TimeoutError:
                raise Unexpected(f"{what}: connection still open after {CLOSED_WITHIN_SECONDS:.0f} s") from None
            if answer:
                raise Unexpected(f"{what}: answered {answer!r} where a close is required")

    def closes_or_answers(self, data, what, timeout=10.0):
        """Either is fine, silence is not. Returns the answer's payload, or None after a close."""
        with self.connect(timeout) as peer:
            try:
                peer.send(data)
                peer.socket.shutdown(socket.SHUT_WR)
                return peer.receive_frame()
            except (wire.Closed, ConnectionError):
                return None
            except TimeoutError:
                raise Unexpected(f"{what}: neither close nor answer within {timeout:.0f} s") from None

    def end(self):
        with self.connect() as peer:
            return peer.list_offset(TOPIC, 0, -1)[2]

    def produce_gets(self, records, allowed, what, acks=-1, partition=0, close=False, timeout=30.0, transactional_id=None):
        """Produce must be answered with one of the allowed errors (0 only if listed), and the log end moves only with 0."""
        before = self.end()
        error = None
        with self.connect(timeout) as peer:
            try:
                error, base = peer.produce(TOPIC, partition, records, acks=acks, transactional_id=transactional_id)
            except wire.Closed:
                if not close:
                    raise Unexpected(f"{what}: connection closed, expected one of {sorted(allowed)}") from None
            except TimeoutError:
                raise Unexpected(f"{what}: no answer within {timeout:.0f} s") from None
        if error is not None and error not in allowed and not (self.is_kafka and error == UNKNOWN_SERVER_ERROR):
            raise Unexpected(f"{what}: error {error}, expected one of {sorted(allowed)}")
        after = self.end()
        if error == 0:
            if base != before or after <= before:
                raise Unexpected(f"{what}: accepted at {base}, log end {before} -> {after}")
        elif after != before:
            raise Unexpected(f"{what}: refused, but the log end moved {before} -> {after}")


def fresh_client(address):
    """Seconds until a new client has its versions, its metadata and a record."""
    begin = time.monotonic()
    with wire.Connection(address, 10.0) as peer:
        peer.api_versions()
        if peer.metadata([TOPIC])[TOPIC][0] != 0:
            raise Unexpected("a fresh client gets no metadata")
        _, _, error, _, records = peer.fetch([(TOPIC, 1, 0, 1 << 16)], max_wait_ms=0)[0]
        if error or not records:
            raise Unexpected(f"a fresh client gets no record: error {error}")
    return time.monotonic() - begin


def one(**lies):
    return wire.batch([wire.record(b"key", b"value")], **lies)


class Others:
    """A client that asks all the time; `worst` is its longest wait in seconds."""

    def __init__(self, address):
        self.address, self.worst, self.failure, self.stop = address, 0.0, None, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self.stop.is_set():
            try:
                self.worst = max(self.worst, fresh_client(self.address))
            except Exception as error:  # noqa: BLE001 - reported by the case
                self.failure = error
                return
            time.sleep(0.02)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.stop.set()
        self.thread.join()
        if failure[0] is None:
            if self.failure:
                raise Unexpected(f"another client failed: {self.failure}")
            if self.worst > SERVED_WITHIN_SECONDS:
                raise Unexpected(f"another client waited {self.worst:.1f} s")
