"""One consumer group from its first member to its last: members as processes, what they tell, and what the broker says from outside.

A member is a client's program with the command line of member.py. What it reads is counted here; who owns what and what is committed
is asked of the broker, by hand-written requests."""
import contextlib
import json
import os
import signal
import subprocess
import threading
import time

import group_wire
import wire

PARTITIONS = 4
# No check is about time: these end a run that has got stuck.
STEP_SECONDS = 90.0
END_SECONDS = 30.0
SESSION_MS = 6000
# A static member must come back within its session, on a busy machine too.
STATIC_SESSION_MS = 60_000
# A broker that has just started: no topic, no leader, not the leader.
NOT_YET = (3, 5, 6)
# Clients that give a partition back without a commit of what they have just read, or commit what they do not print, on Apache Kafka as
# well: their groups change when everything is read.
AT_REST = {"kcat", "kafka-go"}
# Clients that do not tell what they are assigned.
SILENT = {"kafka-go"}
NODE_MODULES = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "ringlog", "clients", "js", "node_modules")


class Member:
    """A process. `owned` is None for a client that does not tell; `reads` are (partition, offset, value) in order."""

    def __init__(self, group, client, command, label, protocol, instance=None):
        self.group, self.client, self.label = group, client, label
        self.owned, self.reads, self.revoked, self.trouble, self.name = None, [], [], [], client
        words = [*command, "--bootstrap", group.address, "--topic", group.topic, "--group", group.name, "--protocol", protocol,
                 "--session-ms", str(STATIC_SESSION_MS if instance else SESSION_MS)]
        words += ["--instance", instance] if instance else []
        self.log = open(os.path.join(group.folder, f"{group.name}-{label}.log"), "wb")
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True, env=group.environment)
        self.reader = threading.Thread(target=self._follow, daemon=True)
        self.reader.start()

    def _follow(self):
        for line in self.process.stdout:
            self.log.write(line)
            self.log.flush()
            try:
                event = json.loads(line)
            except ValueError:
                continue
            with self.group.changed:
                self._take(event)
                self.group.changed.notify_all()

    def _take(self, event):
        kind, partitions = event["event"], set(event.get("partitions", ()))
        if kind == "client":
            self.name = event["name"]
        elif kind == "assigned":
            self.owned = (self.owned or set()) | partitions
        elif kind == "revoked":
            self.owned = (self.owned or set()) - partitions
            self.revoked += sorted(partitions)
        elif kind == "owned":
            self.revoked += sorted((self.owned or set()) - partitions)
            self.owned = partitions
        elif kind == "read":
            self.reads.append((event["partition"], event["offset"], event["value"]))
        elif kind == "trouble":
            self.trouble.append(event["detail"])

    def stop(self):
        """Leaves the group; raises unless the program ends with 0."""
        self.process.stdin.close()
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.label} did not end within {END_SECONDS:.0f} s: {self.last_trouble()}") from None
        self.reader.join(5)
        if code != 0:
            raise AssertionError(f"{self.label} ended with {code}: {self.last_trouble()}")

    def kill(self):
        """kill -9, with what it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.reader.join(5)

    def last_trouble(self):
        return "; ".join(self.trouble[-3:]) or "no trouble told"


def _assignment(data):
    """Partitions in a ConsumerProtocolAssignment."""
    if not data:
        return set()
    reader = wire.Reader(data)
    reader.take(">h")
    topics = reader.array(lambda: (reader.string(), reader.array(lambda: reader.take(">i"))))
    return {partition for _, partitions in topics for partition in partitions}


class Group:
    """A group and its topic. Records are produced here, so what must be read is known."""

    def __init__(self, address, folder, name, protocol, commands, binary=None):
        self.address, self.folder, self.name, self.topic, self.protocol, self.commands = address, folder, name, f"t-{name}", protocol, commands
        self.binary = binary
        self.changed, self.members, self.ends, self.crashes = threading.Condition(), [], [0] * PARTITIONS, []
        self.environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", NODE_PATH=NODE_MODULES)
        wire.create_and_wait(address, {self.topic: PARTITIONS})

    def close(self):
        for member in self.members:
            member.kill()
            member.log.close()

    def join(self, client, protocol, instance=None):
        label = f"{len(self.members)}-{client}"
        self.members.append(Member(self, client, self.commands[client], label, protocol, instance))
        return self.members[-1]

    def produce(self, count):
        """`count` records more in each partition; the value names the record."""
        deadline = time.monotonic() + END_SECONDS
        with wire.Connection(self.address) as peer:
            for partition in range(PARTITIONS):
                for at in range(0, count, 5):
                    size = min(5, count - at)
                    first = self.ends[partition]
                    values = [f"{self.topic}/{partition}/{first + index}".encode() for index in range(size)]
                    records = [wire.record(b"k", value, offset_delta=index) for index, value in enumerate(values)]
                    error, base = peer.produce(self.topic, partition, wire.batch(records))
                    while error in NOT_YET and time.monotonic() < deadline:
                        time.sleep(0.05)
                        error, base = peer.produce(self.topic, partition, wire.batch(records))
                    if error or base != first:
                        raise AssertionError(f"produce to {self.topic}-{partition}: error {error}, base offset {base}, expected {first}")
                    self.ends[partition] += size

    def wait(self, what, done, members=None):
        """Until done() holds; it is tried on every event and a few times a second."""
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            with self.changed:
                if done():
                    return
                self.changed.wait(0.2)
            for member in members or ():
                if member.process.poll() is not None:
                    raise AssertionError(f"{what}: {member.label} ended with {member.process.returncode}: {member.last_trouble()}")
            if time.monotonic() > deadline:
                troubles = {member.label: (sorted(member.owned or ()), len(member.reads), member.trouble[-2:]) for member in self.members[-3:]}
                raise AssertionError(f"{what}: not within {STEP_SECONDS:.0f} s; {self.outside_text()}; members {troubles}")

    def wait_read(self, *members):
        """Until everything is read by somebody and committed; `members` must live meanwhile."""
        wanted = {(partition, end - 1) for partition, end in enumerate(self.ends) if end}
        everyone = self.members
        self.wait("all records are read", lambda: wanted <= {read[:2] for member in everyone for read in member.reads}, members)
        self.wait("all is committed", lambda: self.committed() == self.ends, members)

    # What the broker says.

    def committed(self):
        """The committed offset of each partition, 0 where there is none."""
        try:
            with group_wire.Peer(self.address) as peer:
                answer = peer.ask(group_wire.OFFSET_FETCH, 5, group=self.name, topics=[{"name": self.topic, "partitions": list(range(PARTITIONS))}])
        except (OSError, wire.Closed):
            return None
        if answer["error"]:
            return None
        offsets = {part["index"]: part["offset"] for topic in answer["topics"] for part in topic["partitions"]}
        return [max(0, offsets[partition]) for partition in range(PARTITIONS)]

    def described(self):
        """(state, {member id: partitions}) of a classic group."""
        try:
            with group_wire.Peer(self.address) as peer:
                group = peer.ask(group_wire.DESCRIBE_GROUPS, 4, groups=[self.name])["groups"][0]
        except (OSError, wire.Closed):
            return "unreachable", {}
        return group["state"], {member["member"]: _assignment(member["assignment"]) for member in group["members"]}

    def outside_text(self):
        state, members = self.described() if "consumer" not in self.protocol else ("not asked", {})
        return f"group is {state} with {[sorted(parts) for parts in members.values()]}, committed {self.committed()} of {self.ends}"

    def shared_by(self, members):
        """True when the group is stable and exactly these members have each partition once, by the broker's word and by theirs."""
        told = [member.owned for member in members if member.client not in SILENT]
        if None in told:
            return False
        if "consumer" not in self.protocol:
            state, described = self.described()
            if state != "Stable" or len(described) != len(members):
                return False
            if any(owned not in described.values() for owned in told):
                return False
            told = list(described.values())
        flat = sorted(partition for owned in told for partition in owned)
        return flat == list(range(PARTITIONS)) and all(told)

    def wait_shared(self, *members):
        self.wait(f"{len(members)} members share {PARTITIONS} partitions", lambda: self.shared_by(members), members)

    @contextlib.contextmanager
    def traffic(self):
        """Records go on arriving while the group changes, where the clients can stand it."""
        if AT_REST & {member.client for member in self.members}:
            yield
            return
        done, failures = threading.Event(), []

        def run():
            try:
                while not done.wait(0.05):
                    self.produce(1)
            except Exception as error:  # noqa: BLE001 - told to the caller below
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if failures:
            raise failures[0]

    # What must hold of the reads.

    @contextlib.contextmanager
    def crash(self):
        """Inside somebody is killed: what was not committed then may be read again."""
        yield
        committed = None
        while committed is None:
            committed = self.committed()
        self.crashes.append((committed, self.ends))

    def may_repeat(self, partition, offset):
        return any(committed[partition] <= offset < ends[partition] for committed, ends in self.crashes)

    def check_reads(self):
        """Every record was read, with its own value, and none twice but what a crash had left uncommitted."""
        count = {}
        for member in self.members:
            for partition, offset, value in member.reads:
                if value != f"{self.topic}/{partition}/{offset}":
                    raise AssertionError(f"{member.label} read {value!r} at offset {offset} of partition {partition}")
                count[partition, offset] = count.get((partition, offset), 0) + 1
        missing = [(p, offset) for p, end in enumerate(self.ends) for offset in range(end) if (p, offset) not in count]
        if missing:
            raise AssertionError(f"{len(missing)} records were read by nobody, first {missing[0]}")
        twice = sorted(at for at, times in count.items() if times > 1 and not self.may_repeat(*at))
        if twice:
            raise AssertionError(f"{len(twice)} records were read twice though they were committed, first {twice[0]}, last {twice[-1]}")
        return f"{sum(self.ends)} records"


