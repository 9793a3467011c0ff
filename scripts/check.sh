#!/usr/bin/env bash
# The gates that need no running broker: format, lints, documentation, generated code, dependencies, tidy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/ringlog"

usage() {
  cat <<'TEXT'
usage: scripts/check.sh [GATE...]

gates (default: all, cheapest first): fmt tidy shell deny codegen clippy doc
TEXT
}

gate_fmt() { cargo fmt --all --check; }

gate_deny() {
  local deny="$CACHE/tools/bin/cargo-deny"
  [ -x "$deny" ] || deny="$(command -v cargo-deny)" || { echo "cargo-deny is missing: scripts/install-tools.sh gates" >&2; return 1; }
  cargo fetch --locked --quiet || return 1
  "$deny" --offline --locked --log-level error check bans licenses sources
}

# Scripts at least parse, and the Python ones compile.
gate_shell() {
  local file
  for file in scripts/*.sh .ci/run; do bash -n "$file" || return 1; done
  python3 - scripts <<'PY'
import pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    compile(path.read_text(encoding="utf-8"), str(path), "exec")
PY
}

gate_clippy() { cargo clippy --locked --quiet --workspace --all-targets -- -D warnings; }
gate_doc() { RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --workspace --no-deps --document-private-items; }
# Of the whole workspace, as `cargo test` builds it, so that nothing is compiled twice.
gate_codegen() { cargo test --locked --quiet --workspace --test committed; }

# `cargo test` runs tidy too; by itself it needs the standard library only, and two seconds.
gate_tidy() {
  local folder; folder="$(mktemp -d)"
  CARGO_MANIFEST_DIR="$PWD/broker" rustc --edition 2024 --test broker/tests/tidy.rs -o "$folder/tidy" \
    && RUST_BACKTRACE=0 "$folder/tidy" --quiet
  local code=$?
  rm -rf -- "$folder"
  return "$code"
}

main() {
  case "${1:-}" in -h | --help) usage; return 0 ;; esac
  local gates=("$@") gate begin
  [ $# -gt 0 ] || gates=(fmt tidy shell deny codegen clippy doc)
  for gate in "${gates[@]}"; do
    declare -F "gate_$gate" >/dev/null || { usage >&2; return 2; }
    begin=$SECONDS
    if ! "gate_$gate"; then echo "check: $gate FAILED" >&2; return 1; fi
    echo "check: $gate ok ($((SECONDS - begin)) s)"
  done
}

main "$@"
