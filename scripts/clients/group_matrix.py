#!/usr/bin/env python3
"""Real clients in consumer groups: each message read once, whoever joins, leaves or dies, and after the broker's kill -9.

  group_matrix.py --bootstrap HOST:PORT --level smoke       any broker that runs already; nothing is killed
  group_matrix.py --kafka --level full                      Apache Kafka, started through scripts/kafka-peer.sh
  group_matrix.py --ringlog target/ci/ringlog --level full  our broker in a temporary folder

Each client in each protocol that it has lives through: one member reads and commits, the next goes on where it stood; a second one
shares the partitions, leaves, and another is killed; the broker is killed and starts with another number of shards. Members of the
cooperative protocol keep what need not move; static members come back without a rebalance. Two clients share a group as well, and
Kafka's own kafka-consumer-groups looks at all of it, and `ringlog group` where the broker is ours. Levels: smoke (three clients, half
a minute), pairwise (all clients), full.
"""
import argparse
import concurrent.futures
import hashlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time

import brokers
import group_life
import group_tool
import matrix

HERE, CACHE, ROOT = matrix.HERE, matrix.CACHE, matrix.ROOT
# Of groups of the consumer protocol the broker says how often they send heartbeats.
CONSUMER_SETTINGS = {
    "group.consumer.min.session.timeout.ms": 1000, "group.consumer.session.timeout.ms": group_life.SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 100, "group.consumer.heartbeat.interval.ms": group_life.SESSION_MS // 6,
}
# Client -> its protocols, and whether it has static members.
CLIENTS = {
    "java": (["range", "cooperative-sticky", "consumer"], True),
    "confluent-kafka": (["range", "cooperative-sticky", "consumer"], True),
    "kcat": (["range"], True),
    "franz-go": (["range", "cooperative-sticky", "consumer"], True),
    "sarama": (["range", "cooperative-sticky"], True),
    "kafka-go": (["range"], False),
    "kafka-python": (["range", "cooperative-sticky"], True),
    "aiokafka": (["range"], True),
    "kafkajs": (["RoundRobinAssigner"], False),
}
MIXED = [
    (["java", "confluent-kafka"], "range"), (["franz-go", "sarama"], "range"), (["kafka-python", "kafka-go"], "range"), (["kcat", "aiokafka"], "range"),
    (["java", "franz-go"], "cooperative-sticky"), (["confluent-kafka", "sarama"], "cooperative-sticky"), (["java", "confluent-kafka"], "consumer"),
    # Members of both kinds: the group is converted while it is empty, and while they share it.
    (["java", "confluent-kafka"], "range+consumer"), (["confluent-kafka", "java"], "consumer+range"), (["franz-go"], "range+consumer"),
]
# Static members that end, or tell, when another one takes their name; the others go on in silence, on Apache Kafka as well.
FENCED = {"java", "confluent-kafka", "kcat", "franz-go", "sarama"}
SMOKE = ["kcat", "confluent-kafka", "kafka-python"]
AT_ONCE = 6


def commands():
    """The command of each client's member."""
    java, go = os.path.join(CACHE, "java"), os.path.join(CACHE, "group-members")
    script = {"confluent-kafka": "confluent", "kafka-python": "kafka_python", "aiokafka": "aiokafka"}
    return {
        "java": ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{java}/java-client.jar:{java}/libraries/*",
                 "ringlog.clients.GroupMember"],
        "kcat": [sys.executable, os.path.join(HERE, "kcat", "kcat_member.py")],
        "kafkajs": ["node", os.path.join(HERE, "js", "member.js")],
        **{client: [go, client] for client in ("franz-go", "sarama", "kafka-go")},
        **{client: [matrix.VENV_PYTHON, os.path.join(HERE, "python", f"{name}_member.py")] for client, name in script.items()},
    }


class Life:
    """One group through its scenarios; each is a row of the results. After one that fails the others of the life are not run."""

    def __init__(self, results, lock, clients, protocol, static, address, folder, binary):
        self.results, self.lock, self.clients, self.protocol, self.static = results, lock, clients, protocol, static
        self.failed = False
        name = "-".join([*clients, protocol, *(["static"] if static else [])]).lower().replace("+", "-")
        self.group = group_life.Group(address, folder, name, protocol, commands(), binary)
        self.member = None

    def join(self, number, instance=None):
        """A member of the first client and protocol, or of the second."""
        protocols = self.protocol.split("+")
        return self.group.join(self.clients[number % len(self.clients)], protocols[number % len(protocols)], instance)

    def step(self, scenario, function):
        row = {"clients": self.clients, "protocol": self.protocol, "scenario": scenario}
        begin = time.monotonic()
        ok, detail = False, "not run: an earlier scenario of this group failed"
        if not self.failed:
            try:
                ok, detail = True, function()
            except Exception as error:  # noqa: BLE001 - any failure is this scenario's result
                detail = f"{type(error).__name__}: {error}"
                self.failed = True
        with self.lock:
            for member in self.group.members:
                self.results.versions[member.client] = member.name
            seconds = round(time.monotonic() - begin, 2)
            self.results.add(ok, detail, seconds=seconds, **row)
            if ok:
                print(f"{seconds:6.1f} s  {' and '.join(self.clients)}, {self.protocol}: {scenario}", flush=True)

    def before_restart(self, brief):
        self.step("a second run goes on where the first stood", self.resume)
        self.step("two members share the partitions", self.share)
        self.step("one leaves, the other takes over", self.leave)
        if not brief:
            self.step("one is killed, the other takes over", self.killed)
        if self.protocol == "cooperative-sticky":
            self.step("kept partitions were never revoked", self.kept)

    def static_members(self):
        self.step("a static member comes back without a rebalance", self.come_back)
        if self.clients[0] in FENCED:
            self.step("a second one of the same name fences the first", self.fence)

    def resume(self):
        group = self.group
        group.produce(40)
        first = self.join(0)
        group.wait_read(first)
        first.stop()
        group.check_reads()
        group.produce(10)
        group_tool.left_behind(group, 10)
        self.member = self.join(1)
        group.wait_read(self.member)
        return group.check_reads()

    def share(self):
        group, first = self.group, self.member
        second = self.join(0)
        with group.traffic():
            group.wait_shared(first, second)
        self.second = second
        group.produce(20)
        group.wait_read(first, second)
        if not second.reads:
            raise AssertionError("the second member read nothing")
        group_tool.shared(group, (first, second))
        return group.check_reads()

    def leave(self):
        group = self.group
        with group.traffic():
            self.second.stop()
            group.wait_shared(self.member)
        group.wait_read(self.member)
        return group.check_reads()

    def killed(self):
        group, first = self.group, self.member
        third = self.join(0)
        group.wait_shared(first, third)
        with group.traffic():
            with group.crash():
                third.kill()
                group.wait_shared(first)
        group.wait_read(first)
        return group.check_reads()

    def kept(self):
        """The first member, alone, lost to each newcomer what that one got, and nothing else."""
        first, joins = self.member, 1 if len(self.group.members) < 4 else 2
        most = joins * group_life.PARTITIONS // 2
        if len(first.revoked) > most:
            raise AssertionError(f"revoked {first.revoked}, though {joins} members came for half of {group_life.PARTITIONS} partitions each")
        for newcomer in self.group.members[2:]:
            got = {partition for partition, _, _ in newcomer.reads}
            if not got <= set(first.revoked):
                raise AssertionError(f"{newcomer.label} read {sorted(got)}, the first member gave {first.revoked}")
        return f"revoked {first.revoked}"

    def after_restart(self, committed):
        self.step("goes on after the broker's kill -9 and restart", lambda: self.restart(committed))

    def restart(self, committed):
        group = self.group
        group.crashes.append((committed, list(group.ends)))
        group.produce(20)
        group.wait_read(self.member)
        self.member.stop()
        group.check_reads()
        group.produce(5)
        last = self.join(1)
        group.wait_read(last)
        last.stop()
        return group.check_reads()

    def come_back(self):
        group = self.group
        group.produce(10)
        first, second = self.join(0, "one"), self.join(1, "two")
        group.wait_shared(first, second)
        group.wait_read(first, second)
        before, revoked = first.owned, len(second.revoked)
        owned_before = sorted(map(sorted, group.described()[1].values()))
        first.stop()
        self.member = self.join(0, "one")
        group.produce(10)
        group.wait_read(self.member, second)
        group.wait_shared(self.member, second)
        if sorted(map(sorted, group.described()[1].values())) != owned_before or (self.member.owned is not None and self.member.owned != before):
            raise AssertionError(f"partitions moved: {before} became {self.member.owned}")
        if len(second.revoked) != revoked:
            raise AssertionError(f"the other member gave {second.revoked[revoked:]} back")
        group_tool.shared(group, (self.member, second), ("one", "two"))
        return group.check_reads()

    def fence(self):
        group, old = self.group, self.member
        self.member = self.join(0, "one")
        group.wait("the older member is fenced", lambda: old.process.poll() is not None or any("fence" in text.lower() for text in old.trouble))
        old.kill()
        group.produce(10)
        group.wait_read(self.member)
        return f"{sum(group.ends)} records"


def plan(level, seed, without):
    """[(clients, protocol, static)]"""
    single = [([client], protocol, False) for client, (protocols, _) in CLIENTS.items() for protocol in protocols if not set(without) & set(protocol.split("+"))]
    static = [([client], protocols[0], True) for client, (protocols, has) in CLIENTS.items() if has]
    mixed = [(clients, protocol, False) for clients, protocol in MIXED if not set(without) & set(protocol.split("+"))]
    if level == "full":
        return single + static + mixed
    if level == "smoke":
        return [([client], "range", False) for client in SMOKE]
    # Each client once; of the other kinds one each, which, the seed decides.
    first = [([client], protocols[0], False) for client, (protocols, _) in CLIENTS.items()]
    rest = [[life for life in single if life[1] == protocol] for protocol in ("cooperative-sticky", "consumer")] + [static, mixed]
    number = int(hashlib.sha256(seed.encode()).hexdigest(), 16)
    return first + [lives[number % len(lives)] for lives in rest if lives]


def settings(lives):
    return matrix.settings(matrix.SETTINGS | (CONSUMER_SETTINGS if any("consumer" in protocol for _, protocol, _ in lives) else {}))


class KafkaThatFalls(brokers.Kafka):
    """Apache Kafka with a data folder and a port of its own, so that it can be killed and comes back."""

    can_restart = True

    def __init__(self, script, folder, extra):
        super().__init__(script, options=["--data-dir", os.path.join(folder, "kafka"), *extra])

    def start(self, shards=None):
        super().start()
        if "--port" not in self.options:
            self.options += ["--port", self.address.rsplit(":", 1)[1]]

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{self.pid}"):
            time.sleep(0.05)


def brief_end(lives):
    for life in lives:
        if not life.failed:
            life.step("the last member leaves", lambda life=life: life.member.stop())


def run_lives(results, broker, lives, folder, level, binary):
    lock, brief = threading.Lock(), level == "smoke"
    broker.start()
    groups = []
    try:
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            groups = [Life(results, lock, *life, broker.address, folder, binary) for life in lives]
            alive = [life for life in groups if not life.static]
            work = [pool.submit(life.before_restart, brief) for life in alive]
            work += [pool.submit(life.static_members) for life in groups if life.static]
            for done in work:
                done.result()
            sound = [life.group for life in alive if not life.failed and "consumer" not in life.protocol]
            if binary:
                protocols = {life.group.name: life.protocol for life in alive if not life.failed}
                results.check(lambda: group_tool.listed(binary, broker.address, protocols), clients=[], scenario="ringlog group list")
            if sound and not brief:
                names = [life.group.name for life in alive if not life.failed]
                group_tool.check(results, "kafka-consumer-groups lists and describes", lambda: group_tool.living(broker.address, names, sound[0]))
            if not broker.can_restart:
                brief_end(alive)
            else:
                committed = {life: life.group.committed() for life in alive}
                broker.kill()
                broker.start(shards=3 if getattr(broker, "shards", 2) == 2 else 2)
                for done in [pool.submit(life.after_restart, committed[life]) for life in alive]:
                    done.result()
            if sound and not brief:
                group_tool.check(results, "kafka-consumer-groups moves and deletes", lambda: group_tool.left(broker.address, sound[0], binary))
    finally:
        for life in groups:
            life.group.close()
        broker.close()


def table(results):
    lines = [f"{'client':<44} {'in groups':>9}"]
    for client, version in sorted(results.versions.items()):
        rows = [row["ok"] for row in results.rows if client in row.get("clients", ())]
        lines.append(f"{version:<44} {f'{sum(rows)}/{len(rows)}':>9}")
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already")
    which.add_argument("--ringlog", metavar="BINARY", help="the ringlog binary; started in a temporary folder")
    which.add_argument("--kafka", action="store_true", help="Apache Kafka through scripts/kafka-peer.sh")
    parser.add_argument("--level", choices=["smoke", "pairwise", "full"], default="smoke")
    parser.add_argument("--client", action="append", help="only groups of these clients; may be repeated")
    parser.add_argument("--protocol", action="append", help="only groups of these protocols; may be repeated")
    parser.add_argument("--without", action="append", default=[], metavar="PROTOCOL", help="no groups of this protocol")
    parser.add_argument("--io-driver", choices=matrix.DRIVERS, default="epoll")
    parser.add_argument("--seed", help="what the choice of pairwise groups follows (default: the commit hash)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder, with what each member told")
    return parser.parse_args()


def main():
    args = arguments()
    args.protocol = set(args.protocol or ())
    lives = plan(args.level, args.seed or matrix.commit_hash(), args.without)
    lives = [life for life in lives if (not args.client or set(life[0]) <= set(args.client)) and (not args.protocol or args.protocol & set(life[1].split("+")))]
    results, folder, begin = matrix.Results(), tempfile.mkdtemp(prefix="ringlog-groups-"), time.monotonic()
    try:
        if args.ringlog:
            broker = brokers.Ringlog(args.ringlog, os.path.join(folder, "data"), shards=2, driver=args.io_driver, extra=settings(lives))
        elif args.kafka:
            broker = KafkaThatFalls(os.path.join(ROOT, "scripts", "kafka-peer.sh"), folder, settings(lives))
        else:
            broker = brokers.External(args.bootstrap)
        print(f"== {len(lives)} groups", flush=True)
        results.check(lambda: run_lives(results, broker, lives, folder, args.level, args.ringlog), scenario="broker")
    finally:
        if args.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    command = f"scripts/clients/group_matrix.py --level {args.level}"
    return matrix.finish(results, args, "clients in groups", command, begin, table(results))


if __name__ == "__main__":
    # An orderly end on SIGTERM, so that no broker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
