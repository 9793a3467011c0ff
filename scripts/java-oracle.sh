#!/usr/bin/env bash
# Holds the codec against Apache Kafka's own classes: protocol/tests/java_oracle.rs asks, protocol/tests/java/Oracle.java answers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: scripts/java-oracle.sh [--samples N]

Every message at every version that protocol/schema defines: random bytes made here and made by Kafka, read and written by the
other side; versions that drop and refuse; bytes cut short and changed; the records of __consumer_offsets; the embedded consumer
protocol. Needs Java 17; the jars are those of scripts/kafka-peer.sh.

  --samples N   random messages a case (default: 6); over 6 also every version written at every other, and more cuts
TEXT
}

main() {
  local samples=6
  while [ $# -gt 0 ]; do
    case "$1" in
      --samples) samples="${2:?a number}"; shift ;;
      -h | --help) usage; return 0 ;;
      *) usage >&2; return 2 ;;
    esac
    shift
  done
  command -v javac >/dev/null || { echo "java-oracle: javac is missing: install the Debian package openjdk-17-jdk-headless" >&2; return 1; }
  local jars classes
  jars="$(scripts/kafka-peer.sh classpath)"
  classes="$(realpath -m -- "${CARGO_TARGET_DIR:-target}")/java-oracle"
  mkdir -p "$classes"
  javac -proc:none -d "$classes" -cp "$jars" protocol/tests/java/Oracle.java
  export RINGLOG_JAVA_CLASSPATH="$classes:$jars" RINGLOG_JAVA_SAMPLES="$samples"
  # Of the whole workspace, so that the dependencies are those of all tests. One Java at a time: each takes a core and half a GiB at most.
  cargo test --locked --quiet --workspace --test java_oracle -- --ignored --test-threads=1
}

main "$@"
