#!/usr/bin/env bash
# Every test of the project, in three tiers. Installs what it needs by package name; prints what each stage took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--quick | --full] [--no-install]

  --quick   gates, Rust tests, the tools of the binary, compaction, smoke runs of real clients and their groups (under 8 minutes on two
            cores)
  (none)    quick, the planted bug, the Java oracle, fuzz targets, torture, storage figures that need no clock, a pairwise matrix of real
            clients and of their groups, bad input, answers to administration beside Kafka's
                                                         (at most 25 minutes, tools already installed)
  --full    the long models of groups, a first run from a clean clone, the full matrix on both drivers, bad input on both, the Kafka peer as
            control; writes docs/evidence/skeleton/ and docs/evidence/groups/clients.json

What each stage says is kept under test-logs/ in the target directory; the log of one that fails is named at the end.
TEXT
}

STAGES=() FAILED="" FAILED_LOG=""
TARGET="${CARGO_TARGET_DIR:-target}"
LOGS="$TARGET/test-logs"

# stage NAME COMMAND...: runs it, notes the time; the first failure ends the run after the table is printed.
stage() {
  local name="$1" begin=$SECONDS log; shift
  log="$LOGS/$(printf '%02d' "$((${#STAGES[@]} + 1))")-${name//[^a-z0-9]/-}.log"
  echo "== $name"
  if "$@" 2>&1 | tee "$log"; then
    STAGES+=("$(printf '%6d s  ok      %s' "$((SECONDS - begin))" "$name")")
  else
    STAGES+=("$(printf '%6d s  FAILED  %s' "$((SECONDS - begin))" "$name")")
    FAILED="$name" FAILED_LOG="$log"
    finish
    exit 1
  fi
}

finish() {
  local count=${#STAGES[@]} failures=0
  [ -z "$FAILED" ] || failures=1
  echo
  printf '%s\n' "${STAGES[@]}"
  echo "$((SECONDS)) s in all"
  echo "stages: $((count - failures)) passed, $failures failed"
  [ -z "$FAILED" ] || echo "failed: $FAILED; its log is $FAILED_LOG"
}

matrix() { python3 scripts/clients/matrix.py "$@"; }
client_groups() { python3 scripts/clients/group_matrix.py "$@"; }
bad_inputs() { python3 scripts/bad_inputs.py "$@"; }
admin_answers() { python3 scripts/admin_answers.py "$@"; }
compaction_check() { python3 scripts/compaction_check.py "$@"; }
group_answers() { python3 scripts/group_answers.py "$@"; }

quick() {
  stage "gates" scripts/check.sh
  stage "rust tests" cargo test --locked --quiet --workspace
  # The binary that the command-line tests were built with: no second compilation.
  stage "bench, cat, topic" scripts/bench-smoke.sh --own "$TARGET/debug/ringlog"
  stage "compaction, short" compaction_check --ringlog "$TARGET/debug/ringlog" --short
  stage "clients, smoke" matrix --ringlog "$TARGET/debug/ringlog" --level smoke --io-driver epoll --io-driver io_uring
  stage "clients in groups, smoke" client_groups --ringlog "$TARGET/debug/ringlog" --level smoke
}

build_ci() { stage "build, profile ci" cargo build --locked --quiet --profile ci --bin ringlog; }

# Each target of each crate for ten seconds, from an empty corpus; findings stay under <crate>/fuzz/artifacts/. What both
# crates need is compiled once.
fuzz() {
  local crate target corpus build
  corpus="$(mktemp -d)"
  build="$(realpath -m -- "$TARGET")/fuzz"
  for crate in protocol shard; do
    for target in $(cd "$crate/fuzz/fuzz_targets" && ls | sed 's/\.rs$//'); do
      mkdir -p "$corpus/$target"
      echo "fuzz: $crate, $target"
      (cd "$crate" && RUSTC_BOOTSTRAP=1 PATH="${XDG_CACHE_HOME:-$HOME/.cache}/ringlog/tools/bin:$PATH" \
        cargo fuzz run --target-dir "$build" "$target" "$corpus/$target" -- \
        -max_total_time=10 -max_len=4096 -malloc_limit_mb=256 -print_final_stats=1 2>&1 | tail -n 12) || return 1
    done
  done
  rm -rf -- "$corpus"
}

# The planted bug (acknowledge before the journal write completes) must be seen.
planted() {
  cargo test --locked --quiet -p ringlog-shard --features planted-early-ack --test storage_faults \
    an_acknowledgement_before_the_journal_write_is_caught
}

# The same for what else could be forgotten: with each bug planted, the tests that must see it do.
planted_in_storage() {
  local bug
  for bug in replay-shortens recycle-before-synced-to believe-second-fsync; do
    cargo test --locked --quiet -p ringlog-shard --features "planted-$bug" --test storage_bypass \
      power_cuts_lose_nothing_acknowledged_with_bypass || return 1
  done
  for bug in skip-directory-sync forget-producer-state close-dirty-descriptor; do
    cargo test --locked --quiet -p ringlog-shard --features "planted-$bug" --test storage_checkpoints || return 1
  done
}

planted_in_simulation() {
  cargo test --locked --quiet -p ringlog-broker --features planted-early-ack --test simulation \
    an_acknowledgement_before_the_journal_write_is_caught_within_ten_seeds \
    && cargo test --locked --quiet -p ringlog-shard --features planted-commit-early --test replicas
}

# The second scheduler of the same ring: it builds, and kcat is served on it.
glommio() {
  cargo build --locked --quiet --profile ci --bin ringlog --features glommio --target-dir "$TARGET/glommio" \
    && matrix --ringlog "$TARGET/glommio/ci/ringlog" --level smoke --io-driver io_uring
}

# Faults of real kernels, as root; elsewhere each says why it is skipped.
torture() {
  local fault code=0
  for fault in "kill9 --cycles 20" "powercut --cycles 10" "reshard --cycles 3" "stall --cycles 2" "memory --cycles 2" \
    "write-error --cycles 2" "read-error --cycles 2" "disk-full --cycles 2" "bitflip --cycles 1"; do
    # shellcheck disable=SC2086 - the words are ours
    scripts/torture.sh $fault --ringlog "$TARGET/ci/ringlog" || code=$?
    [ "$code" = 0 ] || [ "$code" = 77 ] || return 1
    code=0
  done
}

# What the clock has no part in: memory of idle partitions, and as root, where an XFS can be mounted, bytes written.
storage_figures() {
  local rows=idle
  [ "$(id -u)" != 0 ] || ! command -v mkfs.xfs >/dev/null || ! unshare --mount true 2>/dev/null || rows=idle,amplification
  scripts/measure.py storage --short --ringlog "$TARGET/ci/ringlog" --only "$rows"
}

plain() {
  quick
  stage "planted bug" planted
  stage "java oracle, short" scripts/java-oracle.sh
  stage "fuzz" fuzz
  build_ci
  stage "torture, short" torture
  stage "storage figures, short" storage_figures
  stage "clients, pairwise" matrix --ringlog "$TARGET/ci/ringlog" --level pairwise
  stage "clients in groups, pairwise" client_groups --ringlog "$TARGET/ci/ringlog" --level pairwise
  stage "bad input" bad_inputs --ringlog "$TARGET/ci/ringlog"
  stage "answers to administration, beside Kafka's" admin_answers --ringlog "$TARGET/ci/ringlog"
  stage "answers about groups, beside Kafka's" group_answers --ringlog "$TARGET/ci/ringlog"
  stage "compaction" compaction_check --ringlog "$TARGET/ci/ringlog"
}

# Thousands of seeds of what the Rust tests play some dozens of: the models of both kinds of groups.
long_models() { cargo test --locked --quiet -p ringlog-broker --lib group::tests -- --ignored; }

full() {
  quick
  stage "models of groups, long" long_models
  stage "first run from a clean clone" scripts/first-run.sh
  stage "planted bug" planted
  stage "planted bug, simulated" planted_in_simulation
  stage "planted bugs in storage" planted_in_storage
  stage "java oracle, long" scripts/java-oracle.sh --samples 60
  stage "fuzz" fuzz
  build_ci
  local evidence=docs/evidence/skeleton
  mkdir -p "$evidence"
  stage "glommio" glommio
  stage "clients, full" matrix --ringlog "$TARGET/ci/ringlog" --level full --json "$evidence/clients.json"
  mkdir -p docs/evidence/groups
  stage "clients in groups, full" client_groups --ringlog "$TARGET/ci/ringlog" --level full --json docs/evidence/groups/clients.json
  stage "client table" python3 scripts/readme-table.py
  stage "answers to administration, beside Kafka's" admin_answers --ringlog "$TARGET/ci/ringlog"
  stage "answers about groups, beside Kafka's" group_answers --ringlog "$TARGET/ci/ringlog"
  stage "compaction" compaction_check --ringlog "$TARGET/ci/ringlog"
  stage "bad input, io_uring" bad_inputs --ringlog "$TARGET/ci/ringlog" --io-driver io_uring
  stage "bad input, epoll" bad_inputs --ringlog "$TARGET/ci/ringlog" --io-driver epoll
  stage "clients against Kafka" matrix --kafka --level pairwise
  stage "clients in groups against Kafka" client_groups --kafka --level pairwise
  stage "bad input against Kafka" bad_inputs --kafka
}

main() {
  local tier=plain install=yes
  while [ $# -gt 0 ]; do
    case "$1" in
      --quick) tier=quick ;;
      --full) tier=full ;;
      --no-install) install=no ;;
      -h | --help) usage; return 0 ;;
      *) usage >&2; return 2 ;;
    esac
    shift
  done
  exec </dev/null
  mkdir -p "$LOGS" && rm -f -- "$LOGS"/*.log
  [ "$install" = no ] || stage "tools" scripts/install-tools.sh
  "$tier"
  finish
}

main "$@"
