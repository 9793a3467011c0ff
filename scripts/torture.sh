#!/usr/bin/env bash
# Faults of real kernels against a broker under load, and the history checker over what clients saw.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/torture.sh FAULT [--cycles N] [--seed S] [--ringlog BINARY] [--json FILE] [more]

faults:
  kill9        kill -9, start again
  reshard      kill -9 or SIGTERM, start again with another number of shards
  powercut     XFS is shut down without a flush, kill -9, mount again, start again
  disk-full    the file system is filled: produce refused, fetch served, resumed within 10 s of space
  write-error  the device takes no new blocks: what was acknowledged is there after the repair
  read-error   a part of the device gives EIO: its partitions refuse, the others are served
  bitflip      a bit of a segment is changed while unmounted: its partition refuses from there, the others are served
  stall        the file system is frozen for up to 3 s: nobody dies, nothing is lost
  memory       the memory limit is squeezed around the broker: a start afterwards loses nothing

Runs as root in mount, network and process namespaces of its own; everything it makes goes with them. Exits 77 with a
reason where that is not possible, 0 when every cycle held, 1 otherwise. `--help` behind a fault lists all options.
TEXT
}

skip() { echo "torture: skipped: $1"; exit 77; }

case "${1:-}" in
  "" ) usage >&2; exit 2 ;;
  -h | --help) usage; exit 0 ;;
esac
case " $* " in *" --help "* | *" -h "*) exec python3 scripts/torture/main.py "$@" ;; esac
[ "$(uname -s)" = Linux ] || skip "not Linux"
[ "$(id -u)" = 0 ] || skip "needs root for mounts and namespaces"
for tool in unshare mkfs.xfs xfs_io fsfreeze losetup ip; do
  command -v "$tool" >/dev/null || skip "$tool is missing (Debian: xfsprogs, util-linux, iproute2)"
done
isolated=(unshare --mount --net --pid --fork --kill-child --mount-proc)
"${isolated[@]}" true 2>/dev/null || skip "the kernel refuses namespaces"

# On the disk: for faults that need a real one. Backing files that need none lie on a tmpfs that goes with its namespace.
work="$(mktemp -d "${TMPDIR:-/var/tmp}/ringlog-torture.XXXXXX")"
child=""
finish() {
  local group
  if [ -n "$child" ] && kill -0 "$child" 2>/dev/null; then
    # The first process of the namespace cleans up by itself; with it everything in there ends.
    kill -TERM $(ps -o pid= --ppid "$child") 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  for group in /sys/fs/cgroup/memory/"${work##*/}"*; do [ ! -d "$group" ] || rmdir "$group" 2>/dev/null || true; done
  rm -rf -- "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
"${isolated[@]}" python3 scripts/torture/main.py "$@" --work "$work" </dev/null &
child=$!
code=0
wait "$child" || code=$?
child=""
exit "$code"
