#!/usr/bin/env bash
# Runs one Apache Kafka node (broker and controller in one process) as peer and yardstick, from Maven artifacts.
# It resolves the jars once into a cache, keeps data in a temporary folder and ends only the process that it started.
set -euo pipefail

KAFKA_VERSION="${KAFKA_VERSION:-4.4.0}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/ringlog/kafka-$KAFKA_VERSION"
STATE_ROOT="${RINGLOG_PEER_STATE:-${TMPDIR:-/tmp}/ringlog-kafka-peer-$(id -u)}"

usage() {
  cat <<'TEXT'
usage: scripts/kafka-peer.sh COMMAND [OPTIONS]

  start       start Kafka unless it runs; prints its address HOST:PORT alone on standard output
  stop        end the Kafka that `start` started, and delete its data unless --data-dir was given
  status      print address, process and data folder; exit 0 when it serves, 3 when not
  install     resolve the jars into the cache, make the archive of their classes, and stop there
  classpath   print the class path
  tool CLASS ARGS...
              run the main class CLASS of the jars (org.apache.kafka.tools.* may be named without the package)
  run-class   the same as tool

options of start, stop and status:
  --name NAME        several peers side by side (default: default)
options of start:
  --port N           client port (default: a free one)      --controller-port N (default: a free one)
  --data-dir DIR     keep data there (default: a temporary folder, deleted by stop)
  --heap SIZE        fixed Java heap (default: 1g)
  --cpus LIST        pin the process to these cores, as taskset -c
  --set KEY=VALUE    another line of its server.properties; may be repeated
  --wait SECONDS     how long it may take to serve (default: 90)

environment: KAFKA_VERSION, XDG_CACHE_HOME, RINGLOG_PEER_STATE (pid and address files), KAFKA_TOOL_HEAP (default 512m)
TEXT
}

fail() { echo "kafka-peer: $*" >&2; exit 1; }

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Prints the class path; resolves it when it is missing, made from another pom.xml, or names a jar that is gone.
classpath() {
  local file="$CACHE/classpath" stamp
  stamp="$(cksum < "$HERE/kafka/pom.xml")"
  if [ -s "$file" ] && [ "$(cat "$CACHE/stamp" 2>/dev/null)" = "$stamp" ]; then
    local missing=0 jar
    while IFS= read -r jar; do [ -e "$jar" ] || missing=1; done < <(tr ':' '\n' < "$file")
    if [ "$missing" = 0 ]; then cat "$file"; return; fi
  fi
  command -v mvn >/dev/null || fail "mvn is missing: install the Debian packages maven and openjdk-17-jdk-headless"
  echo "kafka-peer: resolving Apache Kafka $KAFKA_VERSION into $CACHE" >&2
  mkdir -p "$CACHE"
  # The jars are copied, so that the cache folder alone is enough to run offline.
  mvn -q -B -f "$HERE/kafka/pom.xml" -Dkafka.version="$KAFKA_VERSION" -DoutputDirectory="$CACHE/jars" \
    -Dmdep.overWriteSnapshots=true dependency:copy-dependencies </dev/null >&2
  find "$CACHE/jars" -name '*.jar' | LC_ALL=C sort | tr '\n' ':' | sed 's/:$//' > "$file.new"
  [ -s "$file.new" ] || fail "Maven resolved no jar"
  mv "$file.new" "$file"
  printf '%s\n' "$stamp" > "$CACHE/stamp"
  cat "$file"
}

# Java maps this file instead of loading and checking the classes: a tool starts in half the time. It fits only the jars and
# the Java that made it; without it all works, only slower.
ARCHIVE="$CACHE/classes.jsa"
archive_stamp() { cat "$CACHE/classpath" "$(dirname "$(readlink -f "$(command -v java)")")/../release" 2>/dev/null | cksum; }
archive_fits() { [ -s "$ARCHIVE" ] && [ "$(cat "$ARCHIVE.stamp" 2>/dev/null)" = "$(archive_stamp)" ]; }

# The options of Java for it, one a line: what Java has to say of a file that does not fit belongs to the error output.
archive_options() {
  ! archive_fits || printf '%s\n' "-XX:SharedArchiveFile=$ARCHIVE" -Xlog:disable -Xlog:all=warning:stderr
}

# Which classes there are to map, a broker and its tools tell while they work.
make_archive() {
  ! archive_fits || return 0
  echo "kafka-peer: making $ARCHIVE" >&2
  local lists class_path
  class_path="$(classpath)"
  lists="$(mktemp -d)"
  rm -f "$ARCHIVE.stamp"
  (
    export RINGLOG_PEER_STATE="$lists" JAVA_TOOL_OPTIONS="-XX:DumpLoadedClassList=$lists/%p.classes"
    address="$("$HERE/kafka-peer.sh" start)" || exit 1
    ask() { local class="$1"; shift; "$HERE/kafka-peer.sh" tool "$class" --bootstrap-server "$address" "$@"; }
    ask ConfigCommand --describe --entity-type brokers --entity-name 1
    ask MetadataQuorumCommand describe --status
    ask FeatureCommand describe
    echo "a record" | ask ConsoleProducer --topic archive --compression-codec zstd
    ask ProducerPerformance --topic archive --num-records 1000 --record-size 100 --throughput -1
    ask consumer.ConsoleConsumer --topic archive --partition 0 --offset earliest --max-messages 1
    ask consumer.group.ConsumerGroupCommand --list
    ask GetOffsetShell --topic archive
    "$HERE/kafka-peer.sh" tool DumpLogSegments --files "$(cat "$lists/default/data")/logs/archive-0/00000000000000000000.log"
    "$HERE/kafka-peer.sh" stop
  ) >"$lists/log" 2>&1 </dev/null || { tail -n 5 "$lists/log" >&2; fail "no peer to make the archive with"; }
  cat "$lists"/*.classes | grep -v '^#' | LC_ALL=C sort -u > "$lists/all"
  java -Xshare:dump "-XX:SharedClassListFile=$lists/all" "-XX:SharedArchiveFile=$ARCHIVE" -cp "$class_path" >"$lists/log" 2>&1 \
    || { tail -n 5 "$lists/log" >&2; fail "making $ARCHIVE failed"; }
  archive_stamp > "$ARCHIVE.stamp"
  rm -rf -- "$lists"
}

# One line `starttime` of a process: with the pid it names a process for good, also after the pid is used again.
process_identity() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# True when the process that `start` recorded still runs.
is_running() {
  [ -s "$STATE/pid" ] && [ "$(process_identity "$(cat "$STATE/pid")")" = "$(cat "$STATE/identity")" ]
}

# True when HOST:PORT answers Metadata v1 with one broker, so that clients can use it.
is_serving() {
  python3 - "$1" <<'PY'
import socket, struct, sys
host, port = sys.argv[1].rsplit(":", 1)
try:
    with socket.create_connection((host, int(port)), 2) as peer:
        peer.settimeout(5)
        body = struct.pack(">hhih", 3, 1, 7, 4) + b"peer" + struct.pack(">i", 0)
        peer.sendall(struct.pack(">i", len(body)) + body)
        answer = b""
        while len(answer) < 12:
            piece = peer.recv(4096)
            if not piece:
                sys.exit(1)
            answer += piece
        _, correlation, brokers = struct.unpack(">iii", answer[:12])
        sys.exit(0 if correlation == 7 and brokers >= 1 else 1)
except OSError:
    sys.exit(1)
PY
}

write_properties() {
  cat > "$1" <<TEXT
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$CONTROLLER_PORT
advertised.listeners=PLAINTEXT://127.0.0.1:$PORT,CONTROLLER://127.0.0.1:$CONTROLLER_PORT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:$CONTROLLER_PORT
log.dirs=$2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
TEXT
  local line
  for line in ${EXTRA[@]+"${EXTRA[@]}"}; do printf '%s\n' "$line" >> "$1"; done
}

start() {
  if is_running; then
    if is_serving "$(cat "$STATE/address")"; then cat "$STATE/address"; return; fi
    fail "the process $(cat "$STATE/pid") runs but does not serve; see $STATE/log, or stop it first"
  fi
  local class_path; class_path="$(classpath)"
  mkdir -p "$STATE"
  rm -f "$STATE/temporary"
  if [ -z "$DATA_DIR" ]; then
    DATA_DIR="$(mktemp -d "${TMPDIR:-/tmp}/ringlog-kafka-data.XXXXXX")"
    printf '%s\n' "$DATA_DIR" > "$STATE/temporary"
  fi
  mkdir -p "$DATA_DIR"
  [ -n "$PORT" ] || PORT="$(free_port)"
  [ -n "$CONTROLLER_PORT" ] || CONTROLLER_PORT="$(free_port)"
  write_properties "$STATE/server.properties" "$DATA_DIR/logs"
  local java=(java "-Dlog4j2.configurationFile=$HERE/kafka/log4j2.properties") archived
  mapfile -t archived < <(archive_options)
  java+=(${archived[@]+"${archived[@]}"})
  if [ ! -e "$DATA_DIR/logs/meta.properties" ]; then
    local id
    # As Kafka's StorageTool makes it, without a Java of its own: base64url, and no dash in front.
    id="$(python3 -c 'import base64, os; print(base64.urlsafe_b64encode(b"R" + os.urandom(15)).decode()[:22])')"
    "${java[@]}" -Xmx256m -cp "$class_path" kafka.tools.StorageTool format --standalone -t "$id" \
      -c "$STATE/server.properties" > "$STATE/log" 2>&1 || { cat "$STATE/log" >&2; fail "formatting $DATA_DIR failed"; }
  fi
  # The flags of Kafka's own kafka-run-class script, with a heap of fixed size.
  java+=("-Xms$HEAP" "-Xmx$HEAP" -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35
    -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true)
  [ -z "$CPUS" ] || java=(taskset -c "$CPUS" "${java[@]}")
  setsid nohup "${java[@]}" -cp "$class_path" kafka.Kafka "$STATE/server.properties" \
    </dev/null >> "$STATE/log" 2>&1 9>&- &
  local pid=$!
  printf '%s\n' "$pid" > "$STATE/pid"
  process_identity "$pid" > "$STATE/identity"
  printf '127.0.0.1:%s\n' "$PORT" > "$STATE/address"
  printf '%s\n' "$DATA_DIR" > "$STATE/data"
  local deadline=$((SECONDS + WAIT))
  until is_serving "127.0.0.1:$PORT"; do
    if ! is_running; then tail -n 30 "$STATE/log" >&2; fail "Kafka ended before it served"; fi
    if [ "$SECONDS" -ge "$deadline" ]; then tail -n 30 "$STATE/log" >&2; stop; fail "no answer within $WAIT s"; fi
    sleep 0.2
  done
  cat "$STATE/address"
}

stop() {
  if is_running; then
    local pid; pid="$(cat "$STATE/pid")"
    kill -TERM "$pid" 2>/dev/null || true
    local round
    for round in $(seq 1 300); do is_running || break; sleep 0.1; done
    if is_running; then
      echo "kafka-peer: $pid did not end within 30 s, killing it" >&2
      kill -KILL "$pid" 2>/dev/null || true
      for round in $(seq 1 50); do is_running || break; sleep 0.1; done
    fi
  fi
  if [ -s "$STATE/temporary" ]; then
    local folder; folder="$(cat "$STATE/temporary")"
    case "$folder" in */ringlog-kafka-data.*) rm -rf -- "$folder" ;; esac
  fi
  rm -f "$STATE/pid" "$STATE/identity" "$STATE/address" "$STATE/data" "$STATE/temporary"
  # A name made up by a script leaves nothing; the last log of the default peer stays to be read.
  case "$NAME" in scripts-*) rm -rf -- "$STATE" ;; esac
}

status() {
  if is_running && is_serving "$(cat "$STATE/address")"; then
    echo "serving $(cat "$STATE/address") pid $(cat "$STATE/pid") data $(cat "$STATE/data") log $STATE/log"
    return 0
  fi
  if is_running; then echo "started, not serving: pid $(cat "$STATE/pid") log $STATE/log"; else echo "not running"; fi
  return 3
}

tool() {
  [ $# -ge 1 ] || fail "tool needs a class name"
  local class="$1"; shift
  case "$class" in
    kafka.* | org.*) ;;
    *) class="org.apache.kafka.tools.$class" ;;
  esac
  local class_path archived
  class_path="$(classpath)"
  mapfile -t archived < <(archive_options)
  exec java ${archived[@]+"${archived[@]}"} "-Xmx${KAFKA_TOOL_HEAP:-512m}" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
    "-Dlog4j2.configurationFile=$HERE/kafka/log4j2.properties" -cp "$class_path" "$class" "$@"
}

main() {
  local command="${1:-help}"
  [ $# -eq 0 ] || shift
  NAME=default PORT="" CONTROLLER_PORT="" DATA_DIR="" HEAP=1g CPUS="" WAIT=90 EXTRA=()
  case "$command" in
    tool | run-class) tool "$@" ;;
    help | -h | --help) usage; return 0 ;;
  esac
  while [ $# -gt 0 ]; do
    case "$1" in
      -h | --help) usage; return 0 ;;
      --name | --port | --controller-port | --data-dir | --heap | --cpus | --set | --wait)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case "$1" in
          --name) NAME="$2" ;;
          --port) PORT="$2" ;;
          --controller-port) CONTROLLER_PORT="$2" ;;
          --data-dir) mkdir -p "$2"; DATA_DIR="$(cd "$2" && pwd)" ;;
          --heap) HEAP="$2" ;;
          --cpus) CPUS="$2" ;;
          --set) EXTRA+=("$2") ;;
          --wait) WAIT="$2" ;;
        esac
        shift 2 ;;
      *) fail "unknown option $1 (see --help)" ;;
    esac
  done
  STATE="$STATE_ROOT/$NAME"
  case "$command" in
    start) start ;;
    stop) stop ;;
    status) status ;;
    install) make_archive ;;
    classpath) classpath ;;
    *) usage >&2; exit 2 ;;
  esac
}

main "$@"
