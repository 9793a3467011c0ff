#!/usr/bin/env bash
# A newcomer's first minutes from a clean clone, with the very commands of README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/first-run.sh [--timeout SECONDS]

Clones HEAD into a temporary folder, runs there the command by which README.md starts a broker, waits until it serves,
sends a line through `cat` and reads it back, ends the broker with SIGTERM and expects exit code 0; then looks whether
README.md's second command is there. Ports and the data directory are set by RINGLOG_* variables, so that nothing of the
machine's own is touched; builds in CARGO_TARGET_DIR if that is set, else in the clone.

  --timeout SECONDS   for the build and the start together (default 1800)
TEXT
}

TIMEOUT=1800 PID="" WORK=""

fail() {
  echo "first-run: FAILED: $*" >&2
  if [ -f "$WORK/broker.log" ]; then
    tail -n 20 "$WORK/broker.log" >&2
    local kept; kept="$(mktemp --suffix=.first-run.log)"
    cp "$WORK/broker.log" "$kept"
    echo "first-run: the whole log is $kept" >&2
  fi
  exit 1
}

cleanup() {
  if [ -n "$PID" ]; then
    kill -KILL "$PID" 2>/dev/null || true
    wait "$PID" 2>/dev/null || true
  fi
  [ -z "$WORK" ] || rm -rf -- "$WORK"
}

# The lines of README's first block of commands, without their comments.
readme_commands() {
  awk '/^```sh$/ { inside = 1; next } /^```$/ { if (inside) exit } inside { sub(/ +#.*/, ""); print }' "$1/README.md"
}

# Waits until the log names the address; prints it, or why there is none.
serving_address() {
  local deadline=$((SECONDS + TIMEOUT)) address=""
  while [ -z "$address" ]; do
    kill -0 "$PID" 2>/dev/null || { echo "it ended before it served"; return 1; }
    [ "$SECONDS" -lt "$deadline" ] || { echo "it does not serve after $TIMEOUT s"; return 1; }
    sleep 0.2
    address="$(sed -n 's/^ *listening *\([^ ,]*\),.*/\1/p' "$WORK/broker.log")"
  done
  echo "$address"
}

first_run() {
  local clone="$WORK/clone" commands start tests address code=0
  git clone --quiet --depth 1 "file://$PWD" "$clone"
  mapfile -t commands < <(readme_commands "$clone")
  [ "${#commands[@]}" = 2 ] || fail "README.md's first block has ${#commands[@]} commands, expected 2"
  read -ra start <<<"${commands[0]}"
  read -ra tests <<<"${commands[1]}"
  [ "${start[-1]}" = broker ] || fail "README.md's first command does not end with \"broker\": ${commands[0]}"
  export RINGLOG_LISTENERS=PLAINTEXT://127.0.0.1:0 RINGLOG_ADMIN_LISTEN=127.0.0.1:0 RINGLOG_LOG_DIRS="$WORK/data"
  export RINGLOG_LOG_FORMAT=human
  echo "+ ${commands[0]}"
  (cd "$clone" && exec "${start[@]}" </dev/null >"$WORK/broker.log" 2>&1) &
  PID=$!
  address="$(serving_address)" || fail "$address: ${commands[0]}"
  echo "serves on $address after $SECONDS s"
  local cat=("${start[@]:0:${#start[@]}-1}" cat)
  (cd "$clone" && echo "hello, log" | "${cat[@]}" first-run -P -q -b "$address") 2>"$WORK/cat.log" \
    || { cat "$WORK/cat.log" >&2; fail "a line was not taken"; }
  (cd "$clone" && "${cat[@]}" first-run -C -e -q -b "$address") >"$WORK/back" 2>"$WORK/cat.log" \
    || { cat "$WORK/cat.log" >&2; fail "nothing could be read"; }
  [ "$(cat "$WORK/back")" = "hello, log" ] || fail "read back: $(head -c 200 "$WORK/back")"
  kill -TERM "$PID"
  wait "$PID" || code=$?
  PID=""
  [ "$code" = 0 ] || fail "exit $code after SIGTERM"
  echo "+ ${commands[1]} --help"
  (cd "$clone" && "${tests[@]}" --help >/dev/null) || fail "README.md's second command does not run: ${commands[1]}"
  echo "first run: ok, a line came back from a broker built and started as README.md says ($SECONDS s)"
}

main() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --timeout) [ $# -ge 2 ] || { usage >&2; return 2; }; TIMEOUT="$2"; shift ;;
      -h | --help) usage; return 0 ;;
      *) usage >&2; return 2 ;;
    esac
    shift
  done
  [ -z "${CARGO_TARGET_DIR:-}" ] || { CARGO_TARGET_DIR="$(realpath -m "$CARGO_TARGET_DIR")"; export CARGO_TARGET_DIR; }
  trap cleanup EXIT
  trap 'exit 143' TERM INT
  WORK="$(mktemp -d)"
  first_run
}

main "$@"
