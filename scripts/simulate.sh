#!/usr/bin/env bash
# Plays many seeds of the simulated broker; exits with 1 if one breaks a rule, and says how to play it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/simulate.sh --seeds N [--from S] [--jobs N] [--scale test|soak] [--twice-every N] [--keep-going] [-o json]

Builds the soak in profile simulate and runs it. Progress goes to standard error, the summary to standard output.
From 300 seeds on, a registered branch that no seed reached is a failure too.
TEXT
}

case "${1:-}" in
  "") usage >&2; exit 2 ;;
  -h | --help) usage; exit 0 ;;
esac
cargo build --locked --quiet --profile simulate -p ringlog-broker --example simulate >&2
# A world's memory is given back and asked for again with every seed: a third of the time would go into fresh pages.
export MIMALLOC_PURGE_DELAY="${MIMALLOC_PURGE_DELAY:--1}"
exec "${CARGO_TARGET_DIR:-target}/simulate/examples/simulate" "$@"
