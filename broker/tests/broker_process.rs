//! A whole broker as its operator sees it: ready line, admin paths, exit codes. What it says to Kafka clients is tested
//! elsewhere.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[path = "support/requests.rs"]
mod requests;

const FREE: &str = "127.0.0.1:0";

fn command(listen: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringlog"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGLOG_")) {
        command.env_remove(name);
    }
    let common = ["broker", "--listen", listen, "--admin", FREE, "--shards", "2", "--memory", "128MiB"];
    command.args(common).args(["--log-format", "json", "--ready-fd", "1"]).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A broker that serves, and its ready line.
struct Broker {
    child: Child,
    ready: Value,
}

impl Broker {
    fn start(arguments: &[&str]) -> Broker {
        let mut child = command(FREE, arguments).spawn().expect("the binary runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it is text");
        match serde_json::from_str(&line) {
            Ok(ready) => Broker { child, ready },
            Err(error) => {
                let output = child.wait_with_output().expect("it ended");
                panic!("no ready line ({error}): {}", String::from_utf8_lossy(&output.stderr))
            }
        }
    }

    fn get(&self, path: &str) -> String {
        let address = self.ready["admin"].as_str().expect("an address");
        let mut stream = TcpStream::connect(address).expect("the admin server listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }

    /// Sends `signal`; yields the exit code and standard error.
    fn end(self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        let output = self.child.wait_with_output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// What a broker that does not start says: exit code and standard error.
fn refused(listen: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(listen, arguments).output().expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

#[test]
fn it_serves_shows_itself_and_drains() {
    for driver in ["auto", "epoll"] {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let data = directory.path().join("data");
        let broker = Broker::start(&["--data-dir", text(&data), "--io-driver", driver]);
        assert_eq!(broker.ready["shards"], 2);
        assert_eq!(broker.ready["data_directory"], text(&data));
        assert!(broker.get("/readyz").ends_with("serving\n"));
        assert!(broker.get("/metrics").contains("ringlog_ready 1.0\n"));
        let (code, stderr) = broker.end(Signal::TERM);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.contains("draining") && stderr.contains("stopped"), "{stderr}");
    }
}

#[test]
fn what_is_in_use_is_75_and_untouched() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let data = directory.path().join("data");
    let broker = Broker::start(&["--data-dir", text(&data)]);
    let (code, stderr) = refused(FREE, &["--data-dir", text(&data)]);
    assert_eq!(code, Some(75), "{stderr}");
    assert!(stderr.contains("in use"), "{stderr}");
    let listener = broker.ready["listeners"][0]["bound"].as_str().expect("an address").to_owned();
    let (code, stderr) = refused(&listener, &["--ephemeral"]);
    assert_eq!(code, Some(75), "{stderr}");
    assert!(
        stderr.contains(&format!("cannot listen on {listener} (`listeners`, flag --listen)")),
        "{stderr}"
    );
    assert_eq!(broker.end(Signal::INT).0, Some(0));
}

#[test]
fn a_folder_that_is_not_ours_is_78_and_untouched() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::write(directory.path().join("diary.txt"), "dear diary").expect("it can be written");
    let (code, stderr) = refused(FREE, &["--data-dir", text(directory.path())]);
    assert_eq!(code, Some(78), "{stderr}");
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).expect("it exists").flatten().map(|e| e.file_name()).collect();
    assert_eq!(names, ["diary.txt"]);
}

#[test]
fn a_batch_that_no_journal_file_takes_is_refused_at_start() {
    let (code, stderr) = refused(FREE, &["--ephemeral", "--set", "message.max.bytes=50000000"]);
    assert_eq!(code, Some(78), "{stderr}");
    for part in ["message.max.bytes", "50000000", "ringlog.journal.file.bytes"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

impl Broker {
    fn connect(&self) -> TcpStream {
        let address = self.ready["listeners"][0]["bound"].as_str().expect("an address");
        TcpStream::connect(address).expect("it listens")
    }

    /// The sum of a family's samples over all shards.
    fn figure(&self, family: &str) -> u64 {
        let text = self.get("/metrics");
        let samples = text.lines().filter(|line| line.starts_with(family));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
    }

    /// Waits for a figure that is published on a timer.
    fn await_figure(&self, family: &str, expected: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.figure(family) != expected {
            assert!(Instant::now() < deadline, "{family} is {}, not {expected}", self.figure(family));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads one answer.
fn answer(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut body = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut body).expect("a whole answer");
    body
}

#[test]
fn who_goes_away_in_a_long_poll_takes_no_place() {
    for driver in ["auto", "epoll"] {
        let settings = ["--set", "max.connections=50", "--set", "ringlog.metrics.interval.ms=50"];
        let broker = Broker::start(&[&["--ephemeral", "--io-driver", driver][..], &settings].concat());
        let mut first = broker.connect();
        first.write_all(&requests::create_topic(1, "orders", 4)).expect("it reads");
        answer(&mut first);
        for round in 0..4 {
            let mut polls: Vec<TcpStream> = (0..40).map(|_| broker.connect()).collect();
            for poll in &mut polls {
                poll.write_all(&requests::long_poll(1, "orders", 4)).expect("it reads");
            }
            broker.await_figure("ringlog_fetches_waiting{", 40);
            if round % 2 == 0 {
                // It still reads: what it asked for is answered, without the ten minutes.
                let mut reads = polls.pop().expect("there are some");
                reads.shutdown(Shutdown::Write).expect("it is open");
                assert!(answer(&mut reads).len() > 50);
                assert_eq!(reads.read(&mut [0]).expect("an orderly end"), 0);
            }
            drop(polls);
            broker.await_figure("ringlog_fetches_waiting{", 0);
            broker.await_figure("ringlog_fetch_watches{", 0);
            broker.await_figure("ringlog_connections{", 1);
        }
        drop(first);
        assert_eq!(broker.end(Signal::TERM).0, Some(0));
    }
}

#[test]
fn ephemeral_writes_nothing() {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = command(FREE, &["--ephemeral"]);
    command.env("HOME", home.path()).env("XDG_DATA_HOME", home.path()).current_dir(home.path());
    let mut child = command.spawn().expect("the binary runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it is text");
    let ready: Value = serde_json::from_str(&line).expect("a ready line");
    assert_eq!(ready["data_directory"], Value::Null);
    let (code, stderr) = Broker { child, ready }.end(Signal::TERM);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(std::fs::read_dir(home.path()).expect("it exists").count(), 0);
}
