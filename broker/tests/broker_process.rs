//! A whole broker as its operator sees it: ready line, admin paths, exit codes. What it says to Kafka clients is tested
//! elsewhere.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use process::{Broker, FREE, command, text};
use rustix::process::Signal;
use serde_json::Value;

mod process;
#[path = "support/requests.rs"]
mod requests;

const OF_TWO_SHARDS: [&str; 6] = ["--shards", "2", "--memory", "128MiB", "--log-format", "json"];

fn start(arguments: &[&str]) -> Broker {
    Broker::serve(&[OF_TWO_SHARDS.as_slice(), arguments].concat())
}

/// What a broker that does not start says: exit code and standard error.
fn refused(listen: &str, arguments: &[&str]) -> (Option<i32>, String) {
    process::refused(listen, &[OF_TWO_SHARDS.as_slice(), arguments].concat())
}

#[test]
fn it_serves_shows_itself_and_drains() {
    for driver in ["auto", "epoll"] {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let data = directory.path().join("data");
        let broker = start(&["--data-dir", text(&data), "--io-driver", driver]);
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
    let broker = start(&["--data-dir", text(&data)]);
    let (code, stderr) = refused(FREE, &["--data-dir", text(&data)]);
    assert_eq!(code, Some(75), "{stderr}");
    assert!(stderr.contains("in use"), "{stderr}");
    let listener = broker.address().to_owned();
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

impl Broker {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).expect("it listens")
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
        let broker = start(&[&["--ephemeral", "--io-driver", driver][..], &settings].concat());
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
    let mut command = command(FREE, &[OF_TWO_SHARDS.as_slice(), &["--ephemeral"]].concat());
    command.env("HOME", home.path()).env("XDG_DATA_HOME", home.path()).current_dir(home.path());
    let broker = Broker::spawn(command);
    assert_eq!(broker.ready["data_directory"], Value::Null);
    let (code, stderr) = broker.end(Signal::TERM);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(std::fs::read_dir(home.path()).expect("it exists").count(), 0);
}
