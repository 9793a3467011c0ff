#!/usr/bin/env bash
# Plays many seeds of a simulation; exits with 1 if one breaks a rule, and says how to play it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/simulate.sh [broker | storage | replicas] --seeds N [--from S] [--jobs N] [--twice-every N] [--keep-going]
                           [--evidence FILE]

  broker    the whole broker with its clients (the default): power cuts, restarts, faults of disk, network and clocks.
            From 300 seeds on, a registered branch that no seed reached is a failure too. Also --scale test|soak, -o json
  storage   the storage of one node: power cuts at any change of its disk
  replicas  partitions with three replicas on three hosts

Builds the player in profile simulate and runs it. Progress goes to standard error, the summary to standard output; with
--evidence as JSON, and also into FILE in the form that scripts/evidence.sh checks.
TEXT
}

what=broker
case "${1:-}" in
  "") usage >&2; exit 2 ;;
  -h | --help) usage; exit 0 ;;
  -*) ;;
  broker | storage | replicas) what="$1"; shift ;;
  *) echo "simulate.sh: '$1' is none of broker, storage, replicas" >&2; exit 2 ;;
esac
case "$what" in
  broker) package=ringlog-broker example=simulate ;;
  storage) package=ringlog-shard example=crash_seeds ;;
  replicas) package=ringlog-shard example=replicas ;;
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
cargo build --locked --quiet --profile simulate -p "$package" --example "$example" >&2
# A world's memory is given back and asked for again with every seed: a third of the time would go into fresh pages.
export MIMALLOC_PURGE_DELAY="${MIMALLOC_PURGE_DELAY:--1}"
player="${CARGO_TARGET_DIR:-target}/simulate/examples/$example"
if [ -z "$evidence" ]; then
  exec "$player" "${arguments[@]}"
fi
command="scripts/simulate.sh $what ${arguments[*]}"
[ "$what" != broker ] || arguments+=(-o json)
status=0
summary=$("$player" "${arguments[@]}") || status=$?
printf '%s\n' "$summary"
SUMMARY="$summary" python3 scripts/measure/simulated.py "$what" "$evidence" "$commit" "$command"
exit "$status"
