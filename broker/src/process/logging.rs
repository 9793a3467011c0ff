//! Owns log lines: their two forms, and the thread that writes them, so that a slow reader of standard error never stops
//! a shard. A stranger's text leaves here escaped.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::escape::escaped;
use super::timestamp::Timestamp;
use crate::config::typed::{LogFormat, ObservationConfig};

/// Lines that wait for standard error; further ones are counted and dropped.
const LINES_WAITING_MAX: usize = 1024;
/// How long the end of the process waits for standard error.
const FLUSH_WAIT: Duration = Duration::from_millis(500);

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Style {
    json: bool,
    color: bool,
    /// journald reads `<6>` at the start of a line as its priority.
    priority: bool,
}

enum Message {
    Line(String),
    Flush(SyncSender<()>),
}

struct Sink {
    sender: SyncSender<Message>,
    dropped: AtomicU64,
}

static SINK: OnceLock<Sink> = OnceLock::new();

/// Starts the log of this process; a second call changes nothing. True when lines are for humans.
pub fn init(config: &ObservationConfig) -> bool {
    let terminal = std::io::stderr().is_terminal();
    let style = Style {
        json: match config.log_format {
            LogFormat::Auto => !terminal,
            LogFormat::Human => false,
            LogFormat::Json => true,
        },
        color: terminal && std::env::var_os("NO_COLOR").is_none(),
        priority: !terminal && std::env::var_os("JOURNAL_STREAM").is_some(),
    };
    let (sender, receiver) = sync_channel(LINES_WAITING_MAX);
    if SINK.set(Sink { sender, dropped: AtomicU64::new(0) }).is_ok() {
        let writer = std::thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&receiver));
        if let Err(error) = writer {
            eprintln!("ringlog: no thread for the log, so nothing is logged: {error}");
        }
        let filter: Targets = config.log_filter.parse().expect("config::value parsed the filter before");
        // Another subscriber can only be one that a test installed first.
        let _ = tracing_subscriber::registry().with(LineLayer { style }.with_filter(filter)).try_init();
    }
    !style.json
}

/// Waits until all lines are written, but not long.
pub fn flush() {
    let Some(sink) = SINK.get() else {
        return;
    };
    let (done, wait) = sync_channel(1);
    if sink.sender.try_send(Message::Flush(done)).is_ok() {
        let _ = wait.recv_timeout(FLUSH_WAIT);
    }
}

fn send(line: String) {
    let Some(sink) = SINK.get() else {
        return;
    };
    if let Err(TrySendError::Full(_)) = sink.sender.try_send(Message::Line(line)) {
        sink.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn write_lines(receiver: &Receiver<Message>) {
    for message in receiver.iter() {
        match message {
            Message::Line(line) => {
                // Nobody reads standard error: there is no other place to say so.
                let _ = std::io::stderr().lock().write_all(line.as_bytes());
            }
            Message::Flush(done) => {
                let _ = done.send(());
            }
        }
        let dropped = SINK.get().map_or(0, |sink| sink.dropped.swap(0, Ordering::Relaxed));
        if dropped > 0 {
            tracing::warn!(dropped, "log lines were lost: standard error was read too slowly");
        }
    }
}

struct LineLayer {
    style: Style,
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut fields = Fields::default();
        // Each shard's thread is named `core-N`, so no call site need say where it runs.
        if let Some(shard) = std::thread::current().name().and_then(|name| name.strip_prefix("core-")) {
            let shard = shard.parse::<u64>().map_or_else(|_| Value::from(shard), Value::from);
            fields.fields.push(("shard", shard));
        }
        event.record(&mut fields);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Timestamp::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
        send(line(self.style, now, *event.metadata().level(), event.metadata().target(), fields));
    }
}

/// The fields of one event, as they come.
#[derive(Default)]
struct Fields {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // `%value` and the message arrive here too, as the `Debug` of their `Display`.
        self.push(field, Value::from(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::from(value));
    }
}

impl Fields {
    fn push(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            // Zero lines kept back is the normal case and says nothing.
            ("suppressed", value) if value == 0u64 => {}
            (name, value) => self.fields.push((name, value)),
        }
    }
}

fn line(style: Style, now: Timestamp, level: Level, target: &str, fields: Fields) -> String {
    let mut line = String::new();
    if style.priority {
        line.push_str(match level {
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        });
    }
    if style.json {
        let mut object = Map::new();
        object.insert("time".to_owned(), Value::from(now.to_string()));
        object.insert("level".to_owned(), Value::from(level.as_str()));
        object.insert("target".to_owned(), Value::from(target));
        object.insert("message".to_owned(), Value::from(fields.message));
        for (name, value) in fields.fields {
            object.insert(name.to_owned(), value);
        }
        // JSON escapes C0 controls; the others would still reach a terminal that shows the log.
        write!(line, "{}", Value::Object(object)).expect("a String takes every write");
        line = escape_beyond_json(line);
    } else {
        human(&mut line, style.color, now, level, &fields).expect("a String takes every write");
    }
    line.push('\n');
    line
}

/// Writes the characters that JSON leaves raw but a terminal obeys as JSON escapes.
fn escape_beyond_json(line: String) -> String {
    let is_raw = |c: char| {
        c == '\u{7f}' || (!c.is_ascii() && escaped(c.encode_utf8(&mut [0; 4])).to_string().starts_with('\\'))
    };
    if !line.contains(is_raw) {
        return line;
    }
    let mut out = String::with_capacity(line.len() + 16);
    for character in line.chars() {
        if is_raw(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}").expect("a String takes every write");
            }
        } else {
            out.push(character);
        }
    }
    out
}

fn human(line: &mut String, color: bool, now: Timestamp, level: Level, fields: &Fields) -> std::fmt::Result {
    let (start, end) = match level {
        Level::ERROR if color => ("\x1b[31m", "\x1b[0m"),
        Level::WARN if color => ("\x1b[33m", "\x1b[0m"),
        _ => ("", ""),
    };
    write!(line, "{now} {start}{:<5}{end} {}", level.as_str(), escaped(&fields.message))?;
    for (name, value) in &fields.fields {
        match value {
            Value::String(text) if text.is_empty() || text.contains([' ', '=', '"']) => {
                write!(line, " {name}=\"{}\"", escaped(text).to_string().replace('"', "\\\""))?;
            }
            Value::String(text) => write!(line, " {name}={}", escaped(text))?,
            other => write!(line, " {name}={other}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUMAN: Style = Style { json: false, color: false, priority: false };
    const JSON: Style = Style { json: true, color: false, priority: false };

    fn fields(message: &str, fields: &[(&'static str, Value)]) -> Fields {
        Fields { message: message.to_owned(), fields: fields.to_vec() }
    }

    fn render(style: Style, level: Level, fields: Fields) -> String {
        line(style, Timestamp::from_unix_ms(0), level, "ringlog_broker::x", fields)
    }

    #[test]
    fn human_lines() {
        let shown = render(
            HUMAN,
            Level::INFO,
            fields("topic created", &[("shard", Value::from(1u64)), ("topic", Value::from("a b"))]),
        );
        assert_eq!(shown, "1970-01-01T00:00:00.000Z INFO  topic created shard=1 topic=\"a b\"\n");
        let color = Style { color: true, ..HUMAN };
        let shown = render(color, Level::WARN, fields("m", &[]));
        assert_eq!(shown, "1970-01-01T00:00:00.000Z \x1b[33mWARN \x1b[0m m\n");
    }

    #[test]
    fn json_lines() {
        let shown =
            render(JSON, Level::ERROR, fields("m", &[("n", Value::from(-1i64)), ("s", Value::from("a\"b"))]));
        let object: Value = serde_json::from_str(&shown).expect("it is JSON");
        assert_eq!(
            object,
            serde_json::json!({
                "time": "1970-01-01T00:00:00.000Z", "level": "ERROR", "target": "ringlog_broker::x", "message": "m",
                "n": -1, "s": "a\"b"
            })
        );
        let journald = Style { priority: true, ..JSON };
        assert!(render(journald, Level::ERROR, fields("m", &[])).starts_with("<3>{"));
    }

    #[test]
    fn a_strangers_text_stays_one_harmless_line() {
        let nasty = "x\nERROR forged \x1b[2J \u{9b}31m \u{202e} \u{7f} \"quoted\"";
        for style in [HUMAN, JSON] {
            let shown = render(style, Level::INFO, fields(nasty, &[("client_id", Value::from(nasty))]));
            assert_eq!(shown.matches('\n').count(), 1, "{shown:?}");
            let body = shown.trim_end_matches('\n');
            assert!(!body.chars().any(|c| c.is_control() || c == '\u{202e}'), "{shown:?}");
        }
        let shown = render(JSON, Level::INFO, fields(nasty, &[]));
        let object: Value = serde_json::from_str(&shown).expect("it is still JSON");
        assert_eq!(object["message"], Value::from(nasty));
    }

    #[test]
    fn events_reach_the_fields() {
        struct Collect(SyncSender<String>);
        impl<S: Subscriber> Layer<S> for Collect {
            fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
                let mut fields = Fields::default();
                event.record(&mut fields);
                let shown = render(HUMAN, *event.metadata().level(), fields);
                self.0.send(shown).expect("the test holds the receiver");
            }
        }
        let (sender, receiver) = sync_channel(4);
        let subscriber = tracing_subscriber::registry().with(Collect(sender));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(suppressed = 0u64, client_id = %"a\nb", count = 3, ok = true, "bad {}", "input");
            tracing::warn!(suppressed = 7u64, "again");
        });
        let lines: Vec<String> = receiver.try_iter().collect();
        assert_eq!(
            lines,
            vec![
                "1970-01-01T00:00:00.000Z WARN  bad input client_id=a\\nb count=3 ok=true\n",
                "1970-01-01T00:00:00.000Z WARN  again suppressed=7\n",
            ]
        );
    }
}
