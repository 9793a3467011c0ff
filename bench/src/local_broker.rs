//! The temporary broker of a run without an address: started on a folder in the current directory, ended and removed
//! whatever happens to the run.
//!
//! The folder lies in the current directory on purpose: it is that file system which is measured.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::client::address::{BrokerAddress, parse_bootstrap};
use crate::error::BenchError;
use crate::interrupt::Interrupt;

/// How long the broker may take to serve.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a drain may take before the process is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// The name of the broker's binary.
const BINARY: &str = "ringlog";

/// A running broker of our own. Dropping it ends the process and removes its folder.
pub struct LocalBroker {
    child: Child,
    directory: PathBuf,
    address: BrokerAddress,
    /// The end of its log, shown when it fails.
    last_words: Arc<Mutex<VecDeque<String>>>,
}

/// Lines of the broker's log that are kept.
const LAST_WORDS_MAX: usize = 40;

impl LocalBroker {
    /// Starts `ringlog broker` on a free port and waits until it serves.
    ///
    /// # Errors
    /// No binary, no folder, a broker that ends or stays silent; its last words are printed.
    pub fn start(
        cpuset: Option<&str>,
        more_args: &[String],
        interrupt: &Interrupt,
    ) -> Result<LocalBroker, BenchError> {
        let binary = find_binary()?;
        let directory = make_directory(
            &env::current_dir().map_err(|source| BenchError::local("current directory", source))?,
        )?;
        let mut command = Command::new(&binary);
        command
            .arg("broker")
            .arg("--data-dir")
            .arg(&directory)
            .args(["--listen", "127.0.0.1:0", "--admin", "none", "--ready-fd", "1"])
            .args(cpuset.iter().flat_map(|list| ["--cpuset", list]))
            .args(more_args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Interrupting the run must not reach the broker first: it is ended here, after the run.
            .process_group(0);
        let spawned = command.spawn().map_err(|source| {
            let removed = fs::remove_dir_all(&directory);
            let left = if removed.is_err() { " (its folder is left behind)" } else { "" };
            BenchError::local(format!("cannot start {}{left}", binary.display()), source)
        });
        let mut child = spawned?;
        let stdout = child.stdout.take();
        let last_words = Arc::default();
        if let Some(stderr) = child.stderr.take() {
            keep_last_words(stderr, Arc::clone(&last_words));
        }
        let unknown = BrokerAddress {
            host: String::new(),
            port: 0,
            origin: crate::client::address::AddressOrigin::Bootstrap,
        };
        let mut broker = LocalBroker { child, directory, address: unknown, last_words };
        broker.address = broker.wait_until_ready(stdout, interrupt)?;
        Ok(broker)
    }

    /// Where it listens.
    pub fn address(&self) -> &BrokerAddress {
        &self.address
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(
        &mut self,
        stdout: Option<ChildStdout>,
        interrupt: &Interrupt,
    ) -> Result<BrokerAddress, BenchError> {
        let stdout = stdout.ok_or_else(|| broker_error("it has no standard output"))?;
        let (sender, receiver) = mpsc::channel();
        // The thread ends with the broker, which holds the other end of the pipe.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let started = Instant::now();
        loop {
            match receiver.recv_timeout(POLL) {
                Ok(line) => {
                    if let Some(address) = address_of_ready_line(&line) {
                        return parse_bootstrap(&address)?
                            .into_iter()
                            .next()
                            .ok_or_else(|| broker_error("no address"));
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = self
                        .child
                        .wait()
                        .map_err(|source| BenchError::local("the temporary broker", source))?;
                    return Err(broker_error(&format!("it ended with {status}; its last words are below")));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if interrupt.is_raised() {
                return Err(BenchError::Interrupted);
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(broker_error(&format!("it was not ready within {} s", START_TIMEOUT.as_secs())));
            }
        }
    }

    fn end_process(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            // It ended before it was told to: what it said last is what the user needs.
            for line in self.last_words.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                eprintln!("broker: {line}");
            }
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid
            && matches!(self.child.try_wait(), Ok(None))
        {
            // A failure means that it ended meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for LocalBroker {
    fn drop(&mut self) {
        self.end_process();
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("ringlog bench: cannot remove {}: {error}", self.directory.display());
        }
    }
}

/// Reads the broker's log so that it never blocks on a full pipe, and keeps the end of it. The thread ends with the broker.
fn keep_last_words(stderr: ChildStderr, last_words: Arc<Mutex<VecDeque<String>>>) {
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = last_words.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == LAST_WORDS_MAX {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    });
}

fn broker_error(reason: &str) -> BenchError {
    BenchError::Broker { reason: reason.to_owned() }
}

/// This program if it is `ringlog`, else the `ringlog` beside it.
fn find_binary() -> Result<PathBuf, BenchError> {
    let own = env::current_exe().map_err(|source| BenchError::local("the path of this program", source))?;
    if own.file_name().is_some_and(|name| name == BINARY) {
        return Ok(own);
    }
    let sibling = own.with_file_name(BINARY);
    if sibling.is_file() {
        return Ok(sibling);
    }
    let reason = format!("there is no {}; name a broker with --bootstrap-server", sibling.display());
    Err(BenchError::Broker { reason })
}

fn make_directory(parent: &Path) -> Result<PathBuf, BenchError> {
    let process = std::process::id();
    for attempt in 0..1_000 {
        let path = parent.join(format!("ringlog-bench-{process}-{attempt}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(BenchError::local(format!("cannot create {}", path.display()), source));
            }
        }
    }
    Err(broker_error("no free folder name in the current directory"))
}

/// The bound address of the first listener in the broker's ready line.
fn address_of_ready_line(line: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    value.get("listeners")?.as_array()?.first()?.get("bound")?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines_yield_the_kafka_address() {
        let line =
            r#"{"version":"0.1.0","listeners":[{"bound":"127.0.0.1:4242","advertised":null}],"admin":null}"#;
        assert_eq!(address_of_ready_line(line).as_deref(), Some("127.0.0.1:4242"));
        assert_eq!(address_of_ready_line("starting"), None);
        assert_eq!(address_of_ready_line("{}"), None);
    }

    #[test]
    fn folders_are_fresh_each_time() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let first = make_directory(parent.path()).expect("created");
        let second = make_directory(parent.path()).expect("created");
        assert_ne!(first, second);
        assert!(first.is_dir() && second.is_dir());
    }

    #[test]
    fn a_broker_that_ends_at_once_is_an_error_and_leaves_nothing() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let directory = make_directory(parent.path()).expect("created");
        let mut child =
            Command::new("true").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("true exists");
        let stdout = child.stdout.take();
        let address = parse_bootstrap("x").expect("valid").remove(0);
        let mut broker =
            LocalBroker { child, directory: directory.clone(), address, last_words: Arc::default() };
        let result = broker.wait_until_ready(stdout, &Interrupt::default());
        assert!(matches!(result, Err(BenchError::Broker { .. })), "{result:?}");
        drop(broker);
        assert!(!directory.exists());
    }
}
