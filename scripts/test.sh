#!/usr/bin/env bash
# Every test of the project, in three tiers. Installs what it needs by package name; prints what each stage took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--quick | --full] [--no-install]

  --quick   gates, Rust tests, the tools of the binary, compaction, smoke runs of real clients and their groups (under 15 minutes on
            two cores from an empty target directory, tools already installed)
  (none)    gates, Rust tests, the planted bug, the Java oracle, fuzz targets; and at the same time, on the binary that those tests were
            built with: its tools, torture, storage figures that need no clock, a pairwise matrix of real clients and of their groups,
            bad input, answers to administration and about groups beside Kafka's, compaction
                                                         (at most 25 minutes on two cores, tools already installed)
  --full    quick, the long models of groups, a first run from a clean clone, the planted bugs, the Java oracle, fuzz targets, the full
            matrix on both drivers, bad input on both, the Kafka peer as control; writes docs/evidence/skeleton/ and
            docs/evidence/groups/clients.json

What each stage says is kept under test-logs/ in the target directory; the log of one that fails is named at the end.
TEXT
}

TARGET="${CARGO_TARGET_DIR:-target}"
LOGS="$TARGET/test-logs"
# One line a stage that ended, and a line for each that failed: files, because rows of stages run at the same time.
ENDED="$LOGS/ended.txt" FAILED="$LOGS/failed.txt"
ROW=""
ROW_PIDS=()

# stage NAME COMMAND...: runs it, notes the time. After a failure no other stage begins, and the run ends when the table is printed.
stage() {
  local name="$1" begin=$SECONDS log code=0; shift
  [ ! -s "$FAILED" ] || exit 1
  log="$LOGS/${name//[^a-z0-9]/-}.log"
  echo "== $name"
  if [ -z "$ROW" ]; then
    "$@" 2>&1 | tee "$log" || code=1
  else
    "$@" >"$log" 2>&1 || code=1
  fi
  if [ "$code" = 0 ]; then
    printf '%6d s  ok      %s\n' "$((SECONDS - begin))" "$name" >> "$ENDED"
    [ -z "$ROW" ] || echo "== $name: ok after $((SECONDS - begin)) s"
    return
  fi
  printf '%6d s  FAILED  %s\n' "$((SECONDS - begin))" "$name" >> "$ENDED"
  echo "failed: $name; its log is $log" >> "$FAILED"
  if [ -n "$ROW" ]; then
    echo "== $name: FAILED after $((SECONDS - begin)) s; the end of its log:"
    tail -n 40 "$log"
    exit 1
  fi
  finish
  exit 1
}

# beside FUNCTION...: each a row of stages, all rows at the same time. A row says of a stage that it begins and how it ended; the rest
# is in the logs. When one fails, the others end with the stage they are at.
beside() {
  local row pid code=0
  # A process group of its own for each: what is interrupted ends whole.
  set -m
  for row in "$@"; do
    (ROW="$row"; "$row") &
    ROW_PIDS+=("$!")
  done
  set +m
  for pid in "${ROW_PIDS[@]}"; do wait "$pid" || code=1; done
  ROW_PIDS=()
  [ "$code" = 0 ] && [ ! -s "$FAILED" ] && return
  [ -s "$FAILED" ] || echo "failed: a row of stages ended too early" >> "$FAILED"
  finish
  exit 1
}

interrupted() {
  local pid
  for pid in ${ROW_PIDS[@]+"${ROW_PIDS[@]}"}; do kill -TERM -- "-$pid" 2>/dev/null || true; done
  exit 130
}

finish() {
  local failures
  failures="$(grep -c ' FAILED ' "$ENDED" || true)"
  echo
  cat "$ENDED"
  echo "$((SECONDS)) s in all"
  echo "stages: $(($(wc -l < "$ENDED") - failures)) passed, $failures failed"
  cat "$FAILED"
}

matrix() { python3 scripts/clients/matrix.py "$@"; }
client_groups() { python3 scripts/clients/group_matrix.py "$@"; }
bad_inputs() { python3 scripts/bad_inputs.py "$@"; }
admin_answers() { python3 scripts/admin_answers.py "$@"; }
compaction_check() { python3 scripts/compaction_check.py "$@"; }
group_answers() { python3 scripts/group_answers.py "$@"; }

# Examples are compiled by clippy.
rust_tests() {
  cargo test --locked --quiet --workspace --lib --bins --tests && cargo test --locked --quiet --workspace --doc
}

# The binary `ringlog` as the Rust tests drive it: when their turn comes it is there, and nobody compiles it twice.
build_binary() { cargo test --locked --quiet --workspace --no-run --test command_line; }

quick() {
  stage "gates" scripts/check.sh
  stage "build of the binary" build_binary
  beside tested_quickly served_quickly
}

tested_quickly() { stage "rust tests" rust_tests; }

served_quickly() {
  local binary="$TARGET/debug/ringlog"
  stage "bench, cat, topic" scripts/bench-smoke.sh --own "$binary"
  stage "compaction, short" compaction_check --ringlog "$binary" --short
  stage "clients, smoke" matrix --ringlog "$binary" --level smoke --io-driver epoll --io-driver io_uring
  stage "clients in groups, smoke" client_groups --ringlog "$binary" --level smoke
}

build_ci() { stage "build, profile ci" cargo build --locked --quiet --profile ci --bin ringlog; }

# Each target of each crate for ten seconds, two at a time, from an empty corpus; findings stay under <crate>/fuzz/artifacts/.
# What both crates need is compiled once. Without lines in its stacks: `cargo fuzz run` of a finding compiles them.
fuzz() {
  local crate build host code=0
  build="$(realpath -m -- "$TARGET")/fuzz"
  host="$(rustc -vV | sed -n 's/^host: //p')"
  CORPUS="$(mktemp -d)"
  for crate in protocol shard; do
    (cd "$crate" && RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_DEBUG=none PATH="${XDG_CACHE_HOME:-$HOME/.cache}/ringlog/tools/bin:$PATH" \
      cargo fuzz build --target-dir "$build") || return 1
  done
  export CORPUS FUZZERS="$build/$host/release"
  export -f fuzz_one
  for crate in protocol shard; do
    for target in "$crate"/fuzz/fuzz_targets/*.rs; do printf '%s %s\0' "$crate" "$(basename "$target" .rs)"; done
  done | xargs -0 -P 2 -I '{}' bash -c 'fuzz_one {}' || code=1
  rm -rf -- "$CORPUS"
  return "$code"
}

fuzz_one() {
  local crate="$1" target="$2" code=0 log="$CORPUS/$2.log"
  mkdir -p "$CORPUS/$target" "$crate/fuzz/artifacts/$target"
  ASAN_OPTIONS=detect_odr_violation=0 "$FUZZERS/$target" "-artifact_prefix=$crate/fuzz/artifacts/$target/" -max_total_time=10 \
    -max_len=4096 -malloc_limit_mb=256 -print_final_stats=1 "$CORPUS/$target" >"$log" 2>&1 || code=1
  echo "fuzz: $crate, $target"
  tail -n "$([ "$code" = 0 ] && echo 12 || echo 60)" "$log"
  return "$code"
}

# seen ARGUMENTS...: a `cargo test` that must have run something: with a filter that fits no test it passes too.
seen() { cargo test --locked --quiet "$@" | tee >(cat >&2) | grep -c 'test result: ok. [1-9]' >/dev/null; }

# The planted bug (acknowledge before the journal write completes) must be seen.
planted() {
  seen --workspace --features ringlog-shard/planted-early-ack --test storage_faults \
    an_acknowledgement_before_the_journal_write_is_caught
}

# The same for what else could be forgotten: with each bug planted, the tests that must see it do.
planted_in_storage() {
  local bug
  for bug in replay-shortens recycle-before-synced-to believe-second-fsync; do
    seen -p ringlog-shard --features "planted-$bug" --test storage_bypass \
      power_cuts_lose_nothing_acknowledged_with_bypass || return 1
  done
  for bug in skip-directory-sync forget-producer-state close-dirty-descriptor; do
    seen -p ringlog-shard --features "planted-$bug" --test storage_checkpoints || return 1
  done
}

planted_in_simulation() {
  seen -p ringlog-broker --features planted-early-ack --test simulation \
    an_acknowledgement_before_the_journal_write_is_caught_within_ten_seeds \
    && seen -p ringlog-shard --features planted-commit-early --test replicas
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
    scripts/torture.sh $fault "$@" || code=$?
    [ "$code" = 0 ] || [ "$code" = 77 ] || return 1
    code=0
  done
}

# What the clock has no part in: memory of idle partitions, and as root, where an XFS can be mounted, bytes written.
storage_figures() {
  local rows=idle
  [ "$(id -u)" != 0 ] || ! command -v mkfs.xfs >/dev/null || ! unshare --mount true 2>/dev/null || rows=idle,amplification
  scripts/measure.py storage --short --only "$rows" "$@"
}

# Two rows: one keeps the cores busy, the other waits for clients, virtual machines and disks. The binary is the unoptimised one
# of the tests: the load of torture is paced, and clients are slower than it.
plain() {
  stage "gates" scripts/check.sh
  stage "build of the binary" build_binary
  beside tested served
}

tested() {
  # What is served has deadlines.
  renice -n "$(($(nice) + 5))" "$BASHPID" >/dev/null
  stage "rust tests" rust_tests
  stage "planted bug" planted
  stage "java oracle, short" scripts/java-oracle.sh
  stage "fuzz" fuzz
}

served() {
  local binary="$TARGET/debug/ringlog"
  stage "bench, cat, topic" scripts/bench-smoke.sh --own "$binary"
  stage "torture, short" torture --ringlog "$binary"
  stage "storage figures, short" storage_figures --ringlog "$binary"
  stage "clients, pairwise" matrix --ringlog "$binary" --level pairwise
  stage "clients in groups, pairwise" client_groups --ringlog "$binary" --level pairwise
  stage "bad input" bad_inputs --ringlog "$binary"
  stage "answers to administration, beside Kafka's" admin_answers --ringlog "$binary"
  stage "answers about groups, beside Kafka's" group_answers --ringlog "$binary"
  stage "compaction" compaction_check --ringlog "$binary"
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
  : > "$ENDED" && : > "$FAILED"
  trap interrupted INT TERM
  [ "$install" = no ] || stage "tools" scripts/install-tools.sh
  "$tier"
  finish
}

main "$@"
