#!/usr/bin/env bash
# Brings a fresh Debian machine what the gates and the client matrix need, by package name; quick when all is there.
# Everything that is no Debian package lands in the cache folder, so that removing that folder undoes it.
set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/ringlog"
CARGO_DENY_VERSION=0.20.2
CARGO_FUZZ_VERSION=0.13.2

usage() {
  cat <<'TEXT'
usage: scripts/install-tools.sh [GROUP...]

groups (default: all):
  gates      rustfmt, clippy, cargo-deny and cargo-fuzz (compiled once: about three minutes on two cores)
  clients    kcat, Python, Go, Java and Node clients, compiled into the cache
  kafka      Apache Kafka as a peer (scripts/kafka-peer.sh install)
  profile    valgrind
  torture    xfsprogs, for scripts/torture.sh
  list       print the tools with their versions; install nothing
TEXT
}

note() { echo "install-tools: $*" >&2; }

# need COMMAND PACKAGE: installs the Debian package when the command is missing.
APT_UPDATED=""
need() {
  command -v "$1" >/dev/null 2>&1 && return
  command -v apt-get >/dev/null 2>&1 || { note "$1 is missing and there is no apt-get; install it by hand"; return 1; }
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo=sudo
  if [ -z "$APT_UPDATED" ]; then
    note "apt-get update"
    $sudo apt-get update -qq </dev/null
    APT_UPDATED=1
  fi
  note "apt-get install $2"
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$2" </dev/null >/dev/null
}

# fresh NAME FILES...: true when the stamp of NAME equals the content of FILES; `made` writes the stamp.
stamp_of() { cat "$@" | cksum; }
fresh() { local name="$1"; shift; [ "$(cat "$CACHE/stamps/$name" 2>/dev/null)" = "$(stamp_of "$@")" ]; }
made() { local name="$1"; shift; mkdir -p "$CACHE/stamps"; stamp_of "$@" > "$CACHE/stamps/$name"; }

# cargo_tool NAME VERSION: compiled into the cache once. Unoptimised: that halves the time, and both are quick enough.
cargo_tool() {
  local name="$1" version="$2" target
  [ "$("$CACHE/tools/bin/$name" --version 2>/dev/null)" != "$name $version" ] || return 0
  note "cargo install $name $version"
  target="$(mktemp -d)"
  CARGO_TARGET_DIR="$target" cargo install --quiet --locked --debug --root "$CACHE/tools" --version "$version" "$name" </dev/null
  rm -rf -- "$target"
}

install_gates() {
  command -v cargo >/dev/null || { note "cargo is missing: install Rust by rustup"; return 1; }
  if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    note "rustup component add rustfmt clippy"
    rustup component add rustfmt clippy
  fi
  need cc gcc
  cargo_tool cargo-deny "$CARGO_DENY_VERSION"
  need c++ g++
  cargo_tool cargo-fuzz "$CARGO_FUZZ_VERSION"
}

install_python() {
  need python3 python3
  local list="$ROOT/scripts/clients/python/requirements.txt" venv="$CACHE/clients/venv"
  fresh python "$list" && [ -x "$venv/bin/python" ] && return
  note "Python clients into $venv"
  python3 -c 'import ensurepip, venv' 2>/dev/null || need no-such-command python3-venv
  rm -rf -- "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$list" </dev/null
  made python "$list"
}

install_go() {
  need go golang-go
  local source="$ROOT/scripts/clients/go" sources
  sources=("$source"/go.mod "$source"/go.sum "$source"/*.go "$source"/groups/*.go)
  fresh go "${sources[@]}" && [ -x "$CACHE/clients/go-clients" ] && [ -x "$CACHE/clients/group-members" ] && return
  note "Go clients"
  (cd "$source" && go build -trimpath -o "$CACHE/clients/go-clients" . && go build -trimpath -o "$CACHE/clients/group-members" ./groups) </dev/null
  made go "${sources[@]}"
}

install_java() {
  need java openjdk-17-jdk-headless
  need mvn maven
  local source="$ROOT/scripts/clients/java" sources
  sources=("$source/pom.xml" "$source"/src/main/java/ringlog/clients/*.java)
  fresh java "${sources[@]}" && [ -e "$CACHE/clients/java/java-client.jar" ] && return
  note "Java clients"
  mvn -q -B -f "$source/pom.xml" -Dclient.build="$CACHE/clients/java" -DskipTests package </dev/null >&2
  made java "${sources[@]}"
}

install_node() {
  need node nodejs
  need npm npm
  local source="$ROOT/scripts/clients/js" modules="$CACHE/clients/js"
  fresh node "$source"/package*.json && [ -d "$modules/node_modules/kafkajs-snappy" ] && return
  note "Node clients into $modules"
  mkdir -p "$modules"
  cp "$source"/package*.json "$modules"
  npm ci --prefix "$modules" --silent --no-audit --no-fund --ignore-scripts </dev/null
  made node "$source"/package*.json
}

install_clients() {
  need kcat kcat
  mkdir -p "$CACHE/clients"
  install_python
  install_go
  install_java
  install_node
}

install_kafka() {
  need java openjdk-17-jdk-headless
  need mvn maven
  need taskset util-linux
  "$ROOT/scripts/kafka-peer.sh" install
}

install_profile() { need valgrind valgrind; }

# Without it scripts/torture.sh says that it is skipped.
install_torture() { need mkfs.xfs xfsprogs || note "no xfsprogs: scripts/torture.sh will be skipped"; }

list() {
  local line
  for line in "cargo --version" "rustc --version" "$CACHE/tools/bin/cargo-deny --version" "kcat -V" "go version" \
    "java -version" "mvn -v" "python3 --version" "node --version" "valgrind --version"; do
    # shellcheck disable=SC2086 # the words of the line are the command
    printf '%-16s %s\n' "$(basename "${line%% *}")" "$($line 2>&1 | grep -m1 -iE 'version|[0-9]+\.[0-9]+' || echo missing)"
  done
}

main() {
  local groups=("$@") group begin
  [ $# -gt 0 ] || groups=(gates clients kafka profile torture)
  for group in "${groups[@]}"; do
    case "$group" in
      -h | --help) usage; return 0 ;;
      list) list; continue ;;
      gates | clients | kafka | profile | torture) ;;
      *) usage >&2; return 2 ;;
    esac
    begin=$SECONDS
    "install_$group"
    note "$group ready ($((SECONDS - begin)) s)"
  done
}

main "$@"
