#!/usr/bin/env bash
# Plays many seeds of the simulated broker; exits with 1 if one breaks a rule, and says how to play it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/simulate.sh --seeds N [--from S] [--jobs N] [--scale test|soak] [--twice-every N] [--keep-going]
                           [-o json | --evidence FILE]

Builds the soak in profile simulate and runs it. Progress goes to standard error, the summary to standard output; with
--evidence as JSON, and also into FILE in the form that scripts/evidence.sh checks.
From 300 seeds on, a registered branch that no seed reached is a failure too.
TEXT
}

case "${1:-}" in
  "") usage >&2; exit 2 ;;
  -h | --help) usage; exit 0 ;;
esac

evidence=""
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --evidence) evidence="${2:?--evidence needs a file}"; shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done

commit=$(git rev-parse HEAD)
cargo build --locked --quiet --profile simulate -p ringlog-broker --example simulate >&2
# A world's memory is given back and asked for again with every seed: a third of the time would go into fresh pages.
export MIMALLOC_PURGE_DELAY="${MIMALLOC_PURGE_DELAY:--1}"
player="${CARGO_TARGET_DIR:-target}/simulate/examples/simulate"
if [ -z "$evidence" ]; then
  exec "$player" "${arguments[@]}"
fi
status=0
summary=$("$player" "${arguments[@]}" -o json) || status=$?
printf '%s\n' "$summary"
SUMMARY="$summary" PYTHONPATH=scripts/measure python3 - "$evidence" "$commit" "scripts/simulate.sh ${arguments[*]}" <<'PYTHON'
import json, os, pathlib, sys

from common import rounded, write

path, commit, command = sys.argv[1:]
path = pathlib.Path(path)
values = rounded(json.loads(os.environ["SUMMARY"]))
for empty in ("failed", "unreached"):
    if not values[empty]:
        values.pop(empty)
write(
    path.parent, path.stem,
    "the simulated broker with its clients: power cuts, restarts, another number of cores, faults of disk, network and "
    "clocks; histories checked. An operation is one batch acknowledged, one fetch answered or one other call that "
    "succeeded; CPU is all of the process: clients, network, disk, checker, starts and ends",
    command,
    [{"value": "failures", "op": "==", "limit": 0},
     {"value": "seeds", "op": ">=", "limit": 310},
     {"value": "operations_per_cpu_second", "op": ">=", "limit": 50_000}],
    values=values, commit=commit)
PYTHON
exit "$status"
