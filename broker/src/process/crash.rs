//! Owns what happens at a panic: the flight record is written and the process aborts, in every build. A shard that goes
//! on after a broken invariant could acknowledge what is not durable.

use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use super::escape::escaped;
use super::timestamp::Timestamp;
use crate::observe::flight::{self, FlightEvent};
use crate::observe::snapshot::SnapshotSlot;

/// Where a record goes and what it draws on.
struct CrashContext {
    /// `None` = ephemeral: standard error only.
    directory: Option<PathBuf>,
    slots: Vec<SnapshotSlot>,
    version: String,
}

static CONTEXT: OnceLock<CrashContext> = OnceLock::new();

/// From now on a panic on any thread writes the record and aborts.
pub fn install(directory: Option<PathBuf>, slots: Vec<SnapshotSlot>, version: String) {
    if CONTEXT.set(CrashContext { directory, slots, version }).is_ok() {
        std::panic::set_hook(Box::new(on_panic));
    }
}

fn on_panic(info: &PanicHookInfo<'_>) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    let message = info.payload_as_str().unwrap_or("a panic without text");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let summary = format!("ringlog: panic at {place}: {}", escaped(message));
    // The log's thread may be the one that failed: write directly.
    let _ = writeln!(std::io::stderr(), "{summary}");
    if let Some(context) = CONTEXT.get() {
        let text = record(context, now, &summary, &flight::events_of_this_thread());
        let said = match &context.directory {
            Some(directory) => match write_record(directory, now, &text) {
                Ok(path) => format!("ringlog: flight record in {}", path.display()),
                Err(error) => {
                    format!("ringlog: no flight record in {}: {error}\n{text}", directory.display())
                }
            },
            None => text,
        };
        let _ = writeln!(std::io::stderr(), "{said}");
    }
    super::logging::flush();
    std::process::abort();
}

fn write_record(directory: &Path, now: Timestamp, text: &str) -> std::io::Result<PathBuf> {
    let path = directory.join(format!("flight-{}-{}.txt", now.compact(), std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(path)
}

fn record(context: &CrashContext, now: Timestamp, summary: &str, own: &[(u32, Vec<FlightEvent>)]) -> String {
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let backtrace = std::backtrace::Backtrace::force_capture();
    let mut text = format!("{summary}\nversion {}\ntime {now}\nthread {thread}\n\n", context.version);
    write!(text, "{backtrace}\n\n").expect("a String takes every write");
    for (shard, events) in own {
        append_events(&mut text, *shard, "up to the panic", events);
    }
    for slot in &context.slots {
        match slot.try_read() {
            Some(snapshot) if own.iter().any(|(shard, _)| *shard == snapshot.shard) => {}
            Some(snapshot) => append_events(&mut text, snapshot.shard, "as last published", &snapshot.flight),
            None => text.push_str("a shard's record was being written\n"),
        }
    }
    text
}

fn append_events(text: &mut String, shard: u32, until: &str, events: &[FlightEvent]) {
    writeln!(text, "shard {shard}, {} events {until}, monotonic seconds:", events.len())
        .expect("a String takes every write");
    for event in events {
        writeln!(text, "{event}").expect("a String takes every write");
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::observe::flight::{FlightKind, FlightRecorder};
    use crate::observe::snapshot::{self, ShardSnapshot};

    /// Names the directory, and makes this test the child that dies.
    const CHILD: &str = "CRASH_TEST_DIRECTORY";

    fn die(directory: PathBuf) {
        let (publisher, slot) = snapshot::slot(1);
        let (_, own_slot) = snapshot::slot(0);
        let event = FlightEvent { at_ns: 1, kind: FlightKind::MeshFull, numbers: [7, 0] };
        publisher.publish(ShardSnapshot { shard: 1, flight: vec![event], ..ShardSnapshot::default() });
        let recorder = FlightRecorder::new(0);
        recorder.record(2, FlightKind::JournalPoisoned, [42, 5]);
        install(Some(directory), vec![own_slot, slot], "ringlog test".to_owned());
        panic!("broken\ninvariant");
    }

    #[test]
    fn a_panic_leaves_a_record_and_aborts() {
        if let Some(directory) = std::env::var_os(CHILD) {
            die(PathBuf::from(directory));
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let output = Command::new(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", "process::crash::tests::a_panic_leaves_a_record_and_aborts", "--nocapture"])
            .env(CHILD, directory.path())
            .output()
            .expect("this test can be started again");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6), "{output:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("broken\\ninvariant") && stderr.contains("flight record in"), "{stderr}");
        let files: Vec<_> = std::fs::read_dir(directory.path()).expect("it exists").flatten().collect();
        assert_eq!(files.len(), 1);
        let name = files[0].file_name().to_string_lossy().into_owned();
        assert!(name.starts_with("flight-2") && name.ends_with(".txt"), "{name}");
        let text = std::fs::read_to_string(files[0].path()).expect("it is text");
        assert!(text.contains("shard 0, 1 events up to the panic"), "{text}");
        assert!(text.contains("0.000000 journal poisoned frame=42 errno=5"), "{text}");
        assert!(text.contains("shard 1, 1 events as last published"), "{text}");
        assert!(text.contains("mesh full core=7"), "{text}");
    }
}
