#!/usr/bin/env bash
# Plays many crash seeds of the storage of one node; exits with 1 if one breaks a rule, and says how to play it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/crash-seeds.sh --seeds N [--from S] [--jobs N] [--twice-every N] [--keep-going] [--evidence FILE]

Builds the player in profile simulate and runs it. Progress goes to standard error, the summary to standard output as JSON;
with --evidence also into FILE, in the form that scripts/evidence.sh checks.
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

cargo build --locked --quiet --profile simulate -p ringlog-shard --example crash_seeds >&2
# A world's memory is given back and asked for again with every seed.
export MIMALLOC_PURGE_DELAY="${MIMALLOC_PURGE_DELAY:--1}"
player="${CARGO_TARGET_DIR:-target}/simulate/examples/crash_seeds"
if [ -z "$evidence" ]; then
  exec "$player" "${arguments[@]}"
fi
commit=$(git rev-parse HEAD)
status=0
summary=$("$player" "${arguments[@]}") || status=$?
printf '%s\n' "$summary"
SUMMARY="$summary" python3 - "$evidence" "$commit" "scripts/crash-seeds.sh ${arguments[*]}" <<'PYTHON'
import datetime, json, os, platform, sys

path, commit, command = sys.argv[1:]
values = json.loads(os.environ["SUMMARY"])
values["power_cuts_while_starting"] = values.pop("starts_cut_short")
values.pop("failed")
cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown CPU")
figure = {
    "figure": "crash seeds: power cuts at any change of the simulated disk, subsets of unsynced sectors, torn ones too, "
              "cuts while starting, other core counts",
    "command": command,
    "commit": commit,
    "date": datetime.date.today().isoformat(),
    "machine": f"{cpu}, {os.cpu_count()} cores, Linux {platform.release()}",
    "values": values,
    "bound": [
        {"value": "failures", "op": "==", "limit": 0},
        {"value": "crash_seeds", "op": ">=", "limit": 100000},
    ],
}
with open(path, "w", encoding="utf-8") as file:
    json.dump(figure, file, indent=2)
    file.write("\n")
PYTHON
exit "$status"
