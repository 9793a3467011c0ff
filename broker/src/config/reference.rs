//! Owns the reference page of the keys, made from the table so that it cannot differ from the program.

use std::fmt::Write;

use super::environment;
use super::keys::{self, Effect, Key, Kind, Update};

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
    page
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

";

const NOT_BUILT_HEAD: &str = "
## Keys of Kafka that are accepted at their default only

Nothing is ignored in silence: any other value of these refuses the start, with the reason.

| Key | Default | Why no other value |
|---|---|---|
";
