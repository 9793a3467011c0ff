#!/usr/bin/env python3
"""kcat as a member of a group: turns what it prints into events. Command line: see ../member.py. It commits by itself."""
import os
import re
import signal
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, HERE)
import member  # noqa: E402
from kcat_client import version  # noqa: E402

REBALANCED = re.compile(r"rebalanced \(memberid [^)]*\): (assigned|revoked): (.*)")


def tell_rebalances(process):
    for line in process.stderr:
        found = REBALANCED.search(line)
        if found:
            member.emit(found[1], partitions=[int(number) for number in re.findall(r"\[(\d+)\]", found[2])])
        else:
            member.emit("trouble", detail=line.strip())


def main():
    options = member.options()
    member.emit("client", name=version())
    stop = member.until_stdin_ends()
    settings = {
        "partition.assignment.strategy": options.protocol, "session.timeout.ms": options.session_ms,
        "heartbeat.interval.ms": options.session_ms // 6, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100,
        "fetch.wait.max.ms": 100,
    }
    if options.instance:
        settings["group.instance.id"] = options.instance
    command = ["kcat", "-b", options.bootstrap, "-G", options.group, "-E", "-u", "-f", "%p %o %s\\n"]
    for name, value in settings.items():
        command += ["-X", f"{name}={value}"]
    process = subprocess.Popen([*command, options.topic], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    readers = [threading.Thread(target=tell_rebalances, args=(process,), daemon=True)]

    def end():
        stop.wait()
        process.send_signal(signal.SIGINT)

    threading.Thread(target=end, daemon=True).start()
    for reader in readers:
        reader.start()
    for line in process.stdout:
        partition, offset, value = line.rstrip("\n").split(" ", 2)
        member.read(int(partition), int(offset), value.encode())
    code = process.wait()
    for reader in readers:
        reader.join(5)
    sys.exit(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
