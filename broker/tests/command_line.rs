//! The built binary as a shell sees it: exit codes, and texts on the right stream. Needs no running broker.

use std::net::TcpListener;
use std::process::{Command, Output};

fn ringlog(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringlog"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGLOG_")) {
        command.env_remove(name);
    }
    command.args(arguments).envs(variables.iter().copied()).output().expect("the binary runs")
}

/// Checks exit code and that standard error holds `expected`.
fn check(arguments: &[&str], code: i32, expected: &str) {
    let output = ringlog(arguments, &[]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
}

fn standard_output(arguments: &[&str]) -> String {
    let output = ringlog(arguments, &[]);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("it is text")
}

#[test]
fn wrong_usage_is_2() {
    check(&[], 2, "Usage: ringlog");
    check(&["brokr"], 2, "'broker'");
    check(&["broker", "--shard", "2"], 2, "'--shards'");
    check(&["broker", "--listen", "nowhere"], 2, "`listeners` = `nowhere` (flag --listen): no port");
    check(
        &["broker", "--shards", "0"],
        2,
        "`ringlog.shards` = `0` (flag --shards): below the smallest value; allowed: auto, or 1 to 256",
    );
    check(&["broker", "--set", "nonsense"], 2, "not of the form key=value");
    check(&["config", "explain", "log.dris"], 2, "did you mean `log.dirs`?");
    let ready = ["broker", "--ephemeral", "--admin", "none", "--ready-fd", "999", "--log-format", "human"];
    check(&ready, 2, "--ready-fd 999");
}

#[test]
fn wrong_configuration_is_78() {
    check(
        &["broker", "--set", "log.dris=/x"],
        78,
        "unknown key `log.dris` (flag --set): did you mean `log.dirs`?",
    );
    check(
        &["broker", "--config", "/nonexistent/file"],
        78,
        "cannot read the configuration file /nonexistent/file (flag --config)",
    );
    let unresolved = ["broker", "--ephemeral", "--listen", "no-such-host.invalid:1", "--log-format", "human"];
    check(&unresolved, 78, "cannot listen on no-such-host.invalid:1 (`listeners`, flag --listen)");
    let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    std::fs::write(
        file.path(),
        "# ours\nnum.partitions=0\nmax.connection.creation.rate=1\nzookeeper.connect=x\n",
    )
    .expect("it can be written");
    let path = file.path().to_str().expect("the path is text");
    let output = ringlog(&["broker", "--config", path], &[("RINGLOG_SHARDS", "many")]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert_eq!(stderr.lines().count(), 4, "{stderr}");
    for expected in [&format!("{path}:2"), &format!("{path}:3"), &format!("{path}:4"), "env RINGLOG_SHARDS"] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn an_address_in_use_is_75() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("it is bound").to_string();
    let arguments =
        ["broker", "--ephemeral", "--listen", "127.0.0.1:0", "--admin", &address, "--log-format", "human"];
    check(
        &arguments,
        75,
        &format!("cannot listen on {address} (`ringlog.admin.listen`, flag --admin): the address is in use"),
    );
}

#[test]
fn versions() {
    let short = standard_output(&["--version"]);
    assert_eq!(short, format!("ringlog {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(standard_output(&["version"]), short);
    assert_eq!(standard_output(&["-V"]), short);
    let long = standard_output(&["--version", "-v"]);
    for expected in ["rustc     rustc 1.", "target    ", "features  ", "kernel    6.1", "git       "] {
        assert!(long.contains(expected), "{expected}: {long}");
    }
    assert_eq!(standard_output(&["version", "--verbose"]), long);
}

#[test]
fn the_configuration_explains_itself() {
    let committed = include_str!("../../docs/reference/configuration.md");
    assert!(standard_output(&["config", "reference"]) == committed);
    let explained = standard_output(&["config", "explain", "message.max.bytes"]);
    assert!(explained.contains("RINGLOG_MESSAGE_MAX_BYTES") && explained.contains("1048588"), "{explained}");
    let shown = standard_output(&["config", "show", "--data-dir", "/d", "--set", "num.partitions=7"]);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("num.partitions ").ends_with("= 7  (flag --set)"), "{shown}");
    assert!(line("log.dirs ").ends_with("= /d  (flag --data-dir)"), "{shown}");
    assert!(line("listeners ").ends_with("= PLAINTEXT://127.0.0.1:9092  (default)"), "{shown}");
}
