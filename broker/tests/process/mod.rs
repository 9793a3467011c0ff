//! The broker as its users meet it: the binary as a process of its own, asked by its commands, over HTTP and on the wire. It ends with
//! the test.
#![allow(dead_code, reason = "each user needs its own part")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::frame::{Answer, RequestHeader, ResponseHeader};
use ringlog_protocol::wire::{EncodeError, Reader, Writer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A port that the kernel chooses.
pub const FREE: &str = "127.0.0.1:0";
/// Longer than anything takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The binary, with nothing of the environment that would configure it.
pub fn ringlog(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringlog"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGLOG_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Of a broker that listens there.
pub fn command(listen: &str, arguments: &[&str]) -> Command {
    let mut command = ringlog(&["broker", "--listen", listen, "--admin", FREE, "--ready-fd", "1"]);
    command.args(arguments);
    command
}

/// What a broker that does not start says: exit code and standard error.
pub fn refused(listen: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(listen, arguments).output().expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A temporary path.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// A broker that serves.
pub struct Broker {
    child: Child,
    /// What it says on standard error: a file, which it never waits for.
    said: File,
    /// Its ready line.
    pub ready: Value,
}

impl Broker {
    /// Two shards over `directory`.
    pub fn start(directory: &Path, arguments: &[&str]) -> Broker {
        let own = ["--shards", "2", "--memory", "128MiB", "--data-dir", text(directory)];
        Broker::serve(&[own.as_slice(), arguments].concat())
    }

    /// On free ports.
    pub fn serve(arguments: &[&str]) -> Broker {
        Broker::spawn(command(FREE, arguments))
    }

    /// Waits until it serves.
    pub fn spawn(mut command: Command) -> Broker {
        let mut said = tempfile::tempfile().expect("a temporary file can be made");
        let stderr = said.try_clone().expect("a second descriptor");
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        match serde_json::from_str(&line) {
            Ok(ready) => Broker { child, said, ready },
            Err(error) => panic!("no ready line ({error}): {}", whole(&mut said)),
        }
    }

    pub fn address(&self) -> &str {
        self.ready["listeners"][0]["bound"].as_str().expect("an address")
    }

    /// A command of the binary against this broker.
    pub fn run(&self, arguments: &[&str]) -> Output {
        ringlog(arguments).args(["-b", self.address()]).output().expect("the binary runs")
    }

    /// What a command prints, which succeeds.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// What a command says on standard error, after failing with 1.
    pub fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Sends lines to a partition; whether they were taken.
    pub fn send(&self, topic: &str, partition: i32, lines: &[String]) -> bool {
        let partition = partition.to_string();
        let mut child = ringlog(&["cat", topic, "-P", "-p", &partition, "-b", self.address()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut input = child.stdin.take().expect("piped");
        lines.iter().for_each(|line| writeln!(input, "{line}").expect("it reads"));
        drop(input);
        child.wait().expect("it ends").success()
    }

    /// The admin server's whole answer.
    pub fn get(&self, path: &str) -> String {
        let address = self.ready["admin"].as_str().expect("an address");
        let mut stream = TcpStream::connect(address).expect("the admin server listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }

    /// Returns once `path` says `expected`; cores publish on a timer.
    pub fn await_text(&self, path: &str, expected: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.get(path);
            if text.contains(expected) {
                return;
            }
            assert!(Instant::now() < deadline, "{path} never says {expected}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// One request on a connection of its own; the body of the answer.
    pub fn call(
        &self,
        api: ApiKey,
        version: i16,
        body: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
    ) -> Vec<u8> {
        Peer::connect(self).call(api, version, body)
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Sends `signal`; exit code and standard error.
    pub fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        let code = self.child.wait().expect("it ends").code();
        (code, whole(&mut self.said))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It has ended already where the test ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn whole(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("text");
    text
}

/// One blocking connection.
pub struct Peer {
    socket: TcpStream,
    asked: i32,
}

impl Peer {
    pub fn connect(broker: &Broker) -> Peer {
        let socket = TcpStream::connect(broker.address()).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
        Peer { socket, asked: 0 }
    }

    /// Sends a request; the body of the answer.
    pub fn call(
        &mut self,
        api: ApiKey,
        version: i16,
        body: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
    ) -> Vec<u8> {
        self.asked += 1;
        let header = RequestHeader {
            api,
            api_version: version,
            correlation_id: self.asked,
            client_id: Some("test"),
            answer: Answer::Serve,
        };
        let mut writer = Writer::new();
        header.encode(&mut writer).expect("a short client id");
        body(&mut writer, version).expect("the message fits its version");
        let frame = writer.into_bytes();
        self.socket.write_all(&(frame.len() as u32).to_be_bytes()).expect("it reads");
        self.socket.write_all(&frame).expect("it reads");
        let mut length = [0; 4];
        self.socket.read_exact(&mut length).expect("it answers");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut answer).expect("it answers");
        let mut reader = Reader::new(&answer);
        let header = ResponseHeader::decode(&mut reader, api, version).expect("a header");
        assert_eq!(header.correlation_id, self.asked);
        let body_at = reader.offset();
        answer.split_off(body_at)
    }
}
