//! Owns the reference page of the keys, made from the table so that it cannot differ from the program.

use std::fmt::Write;

use super::environment;
use super::keys::{self, Effect, Key, Kind, Update};
use crate::topic_config;

/// The page `docs/reference/configuration.md`.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    page.push_str("## Keys\n\n| Key | Default | Allowed | When it takes effect |\n|---|---|---|---|\n");
    for key in keys::ALL.iter().filter(|key| is_built(key)) {
        row(&mut page, key);
    }
    page.push_str(NOT_BUILT_HEAD);
    for key in keys::ALL.iter() {
        if let Effect::NotBuilt(reason) = key.effect {
            let default = if key.default.is_empty() { "(empty)" } else { key.default };
            writeln!(page, "| `{}` | {} | {reason}. |", key.name, cell(default))
                .expect("a String takes every write");
        }
    }
    topic_keys(&mut page);
    page
}

fn topic_keys(page: &mut String) {
    page.push_str(TOPIC_HEAD);
    for key in topic_config::keys() {
        let default = if key.default.is_empty() { "(empty)" } else { key.default };
        let server = key.server.map(|server| format!("`{server}`")).unwrap_or_default();
        let allowed = match key.effect {
            topic_config::Effect::Built => cell(&key.kind.allowed()),
            topic_config::Effect::Met(why) => {
                format!("{}, and none changes anything: {}", cell(&key.kind.allowed()), cell(why))
            }
            topic_config::Effect::DefaultOnly(why) => format!("its default only: {}", cell(why)),
            topic_config::Effect::Refused(why) => format!("nothing: {}", cell(why)),
        };
        let doc = cell(key.doc);
        writeln!(page, "| `{}`<br>{doc} | {} | {server} | {allowed} |", key.name, cell(default))
            .expect("a String takes every write");
    }
}

/// What `ringlog config explain KEY` prints.
pub fn explain(key: &Key) -> String {
    let mut text = format!("{}\n  {}\n", key.name, key.doc);
    if matches!(key.kind, Kind::Alias(_)) {
        return text;
    }
    let mut line = |label: &str, value: &str| {
        writeln!(text, "  {label:<10} {value}").expect("a String takes every write");
    };
    line("default", if key.default.is_empty() { "(empty)" } else { key.default });
    line("allowed", &key.kind.allowed());
    line("variable", &environment::variable_of(key.name));
    line("takes", update_sentence(key.update));
    if let Effect::NotBuilt(reason) = key.effect {
        line("note", &format!("only the default is accepted: {reason}"));
    }
    text
}

fn is_built(key: &Key) -> bool {
    key.effect == Effect::Built
}

fn row(page: &mut String, key: &Key) {
    let default = if key.default.is_empty() { "(empty)" } else { key.default };
    let default = if matches!(key.kind, Kind::Alias(_)) { "" } else { default };
    writeln!(
        page,
        "| `{}`<br>`{}`<br>{} | {} | {} | {} |",
        key.name,
        environment::variable_of(key.name),
        cell(key.doc),
        cell(default),
        cell(&key.kind.allowed()),
        update_sentence(key.update)
    )
    .expect("a String takes every write");
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn update_sentence(update: Update) -> &'static str {
    match update {
        Update::Runtime => "at the next start; at once when altered as a config of the broker",
        Update::Restart => "at the next start",
        Update::Formatted => "fixed when the data directory is first written",
    }
}

const HEAD: &str = "# Configuration

Made by `ringlog config reference`; a test compares. Every setting has a default: `ringlog broker` starts on an empty
machine without any.

A value is looked for in this order, and the first one found holds: flag, `--set key=value`, environment variable,
file (`--config FILE` or `RINGLOG_CONFIG`), default. `GET /config` on the admin address and `ringlog config show` print each value with
where it came from.

The file is in the syntax of Kafka's `server.properties`. The variable of a key is `RINGLOG_` and the key in upper
case, `.` written `_`, `_` written `__` and `-` written `___`; the `ringlog.` of a key of ours is left out. Byte
values take a suffix: `KiB`, `MiB`, `GiB` (powers of 1024), `KB`, `MB`, `GB` (powers of 1000).

An unknown key refuses the start (exit code 78) and names the key most like it. All mistakes are reported together.

Keys that say so change while the broker runs: as configs of the broker (`kafka-configs.sh --alter --entity-type brokers`, any client's
IncrementalAlterConfigs), for one node or, with an empty name, for all. What was set so is kept in the metadata and wins over the broker's
own configuration, this node's before that of all; DescribeConfigs shows it, while `GET /config` shows what the broker was started with.

";

const TOPIC_HEAD: &str = "
## Configs of topics

Set at creation or later, by any client's IncrementalAlterConfigs, `kafka-configs.sh`, or `ringlog topic alter`; in force on every
partition when the answer leaves. Where a topic has none of its own the broker's key holds. Anything else is refused with error 40.

| Config | Default | Key of the broker | Allowed |
|---|---|---|---|
";

const NOT_BUILT_HEAD: &str = "
## Keys of Kafka that are accepted at their default only

Nothing is ignored in silence: any other value of these refuses the start, with the reason.

| Key | Default | Why no other value |
|---|---|---|
";
