#!/usr/bin/env bash
# Drives `ringlog bench`, `ringlog cat` and `ringlog topic` against one running Kafka broker, ours or Apache's, and
# checks what they say. Not a measurement: rates are small and runs short. It makes topics of its own and deletes them.
#
# usage: scripts/bench-smoke.sh HOST:PORT [RINGLOG_BINARY]      e.g. with the address that scripts/kafka-peer.sh prints
#        scripts/bench-smoke.sh --own [RINGLOG_BINARY]          with a broker of its own, on a free port, ended after
set -euo pipefail

case "${1:-}" in
  -h | --help) sed -n '2,6p' "$0" | cut -c3-; exit 0 ;;
  "" | -?*) [ "${1:-}" = --own ] || { sed -n '2,6p' "$0" | cut -c3- >&2; exit 2; } ;;
esac
BROKER="$1"
RINGLOG="${2:-${CARGO_TARGET_DIR:-target}/debug/ringlog}"
[ -x "$RINGLOG" ] || { echo "bench-smoke: no binary at $RINGLOG; build it with: cargo build -p ringlog-broker" >&2; exit 2; }
WORK="$(mktemp -d)"
TOPIC="bench-smoke-$$"
PID=""
cleanup() {
  if [ -n "$PID" ]; then
    kill -KILL "$PID" 2>/dev/null || true
    wait "$PID" 2>/dev/null || true
  else
    "$RINGLOG" topic delete "$TOPIC" --yes -b "$BROKER" >/dev/null 2>&1 || true
  fi
  rm -rf -- "$WORK"
}
trap cleanup EXIT
trap 'exit 143' TERM INT

fail() { echo "bench-smoke: FAILED: $*" >&2; [ -z "$PID" ] || tail -n 20 "$WORK/broker.log" >&2; exit 1; }
ok() { echo "ok: $*"; }

# A broker of our own; its ready line names the port that it got.
start_own() {
  mkfifo "$WORK/ready"
  "$RINGLOG" broker --data-dir "$WORK/data" --listen 127.0.0.1:0 --admin none --shards 2 --no-pin --memory 256MiB \
    --ready-fd 3 3>"$WORK/ready" </dev/null >"$WORK/broker.log" 2>&1 &
  PID=$!
  local line=""
  read -r -t 30 line <"$WORK/ready" || fail "the broker did not become ready"
  BROKER="$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["listeners"][0]["bound"])' "$line")"
}

# It ends by itself when asked.
stop_own() {
  local code=0
  kill -TERM "$PID"
  wait "$PID" || code=$?
  [ "$code" = 0 ] || fail "the broker ended with $code after SIGTERM"
  PID=""
}

[ "$BROKER" != --own ] || start_own

# Expects success of the bench with these arguments, and a clean verification in its report.
bench() {
  "$RINGLOG" bench "$@" -b "$BROKER" -d 300ms --warmup 100ms --report "$WORK/report.json" >"$WORK/table" 2>"$WORK/log" \
    || { cat "$WORK/log" "$WORK/table" >&2; fail "bench $*"; }
  python3 - "$WORK/report.json" <<'PY' || fail "report of bench $*"
import json, sys
report = json.load(open(sys.argv[1]))
checked = report["verification"]
assert report["schema_version"] == 1 and report["verdict"] == "passed", report["failures"]
assert checked["received"] == checked["expected"] > 0, checked
assert not any(checked[name] for name in ("lost", "duplicated", "reordered", "corrupt", "offset_regressions")), checked
PY
  ok "bench $*"
}

# A client looks for a missing topic for ten seconds before it gives up: this one does so beside the rest.
"$RINGLOG" topic create "$TOPIC-gone" -p 1 -b "$BROKER" >/dev/null || fail "topic create"
"$RINGLOG" topic delete "$TOPIC-gone" --yes -b "$BROKER" >/dev/null || fail "topic delete"
"$RINGLOG" cat "$TOPIC-gone" -C -e -b "$BROKER" >/dev/null 2>"$WORK/gone.log" &
GONE=$!

bench produce --rate 2k/s
bench produce --rate 2k/s --record-size 100 --records-per-batch 10 --partitions 20 --acks 1 --producers 2
bench produce --rate 1k/s --acks 0
bench produce --closed 2 -z zstd --payload ratio:0.3
bench e2e --rate 1k/s -z lz4 --threads 2 --producers 2 --consumers 2 --connections 2 --batches-per-request 2
bench e2e --rate 1k/s -z gzip --io-driver epoll --linger 0
bench e2e --rate 1MB/s -z snappy --idempotent false
bench consume --preload 2MB --consumers 2
bench consume --preload 1MB --rate 1k/s

"$RINGLOG" topic create "$TOPIC" -p 1 -b "$BROKER" >/dev/null || fail "topic create"
"$RINGLOG" topic create "$TOPIC" -b "$BROKER" >/dev/null 2>"$WORK/log" && fail "a topic was created twice"
grep -q TOPIC_ALREADY_EXISTS "$WORK/log" || fail "the refusal does not name its code"
"$RINGLOG" topic create "$TOPIC" --if-not-exists -b "$BROKER" >/dev/null || fail "topic create --if-not-exists"
"$RINGLOG" topic list -o json -b "$BROKER" | grep -q "\"$TOPIC\"" || fail "topic list"
ok "topic create, list"

python3 - "$WORK/text" "$WORK/binary" <<'PY'
import random, sys
random.seed(7)
with open(sys.argv[1], "w") as text:
    for number in range(20000):
        text.write(f"{number} " + "x" * random.randrange(200) + "\n")
with open(sys.argv[2], "wb") as binary:
    for number in range(2000):
        binary.write(f"key{number % 50}:".encode() + random.randbytes(300).replace(b"\x00", b"\x01") + b"\x00")
PY
for codec in none gzip snappy lz4 zstd; do
  "$RINGLOG" topic delete "$TOPIC" --yes -b "$BROKER" >/dev/null
  "$RINGLOG" topic create "$TOPIC" -p 1 -b "$BROKER" >/dev/null
  "$RINGLOG" cat "$TOPIC" -P "$WORK/text" -z "$codec" -q -b "$BROKER" || fail "cat -P -z $codec"
  "$RINGLOG" cat "$TOPIC" -C -e -q -b "$BROKER" >"$WORK/back" || fail "cat -C -e"
  cmp "$WORK/text" "$WORK/back" || fail "text through cat with $codec"
done
ok "cat: a text comes back byte by byte with every codec"

"$RINGLOG" topic delete "$TOPIC" --yes -b "$BROKER" >/dev/null
"$RINGLOG" topic create "$TOPIC" -p 3 -b "$BROKER" >/dev/null
"$RINGLOG" cat "$TOPIC" -P -K : -D '\0' -q -b "$BROKER" <"$WORK/binary" || fail "cat -P -K -D"
"$RINGLOG" cat "$TOPIC" -C -e -K : -D '\0' -q -b "$BROKER" >"$WORK/back" || fail "cat -C -K -D"
python3 - "$WORK/binary" "$WORK/back" <<'PY' || fail "binary keyed records through cat"
import sys
sent, back = (open(path, "rb").read().split(b"\0")[:-1] for path in sys.argv[1:])
assert sorted(sent) == sorted(back) and len(sent) == 2000
by_key = lambda records: {key: [r for r in records if r.split(b":", 1)[0] == key] for key in {r.split(b":", 1)[0] for r in records}}
assert by_key(sent) == by_key(back), "order within a key"
PY
ok "cat: binary keyed records keep their bytes and their order within a key"

"$RINGLOG" topic describe "$TOPIC" -b "$BROKER" | awk 'NR > 2 { sum += $NF } END { exit sum != 2000 }' || fail "topic describe"
[ "$("$RINGLOG" cat "$TOPIC" -C -e --offset -1 -o json -q -b "$BROKER" | wc -l)" = 3 ] || fail "cat --offset -1"
[ "$("$RINGLOG" cat "$TOPIC" -C -c 5 -f '%p:%o\n' -q -b "$BROKER" | wc -l)" = 5 ] || fail "cat -c -f"
"$RINGLOG" topic delete "$TOPIC" -b "$BROKER" </dev/null 2>/dev/null && fail "deleted without being asked"
"$RINGLOG" topic delete "$TOPIC" --yes -b "$BROKER" >/dev/null || fail "topic delete"
ok "topic describe, delete; cat positions and formats"
wait "$GONE" && fail "a deleted topic was read"
grep -q "does not exist" "$WORK/gone.log" || fail "the text for a missing topic"
ok "a deleted topic is not read, and the text says so"

if [ -n "$PID" ]; then
  stop_own
  ok "the broker ended with 0 after SIGTERM"
fi
