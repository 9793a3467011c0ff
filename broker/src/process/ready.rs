//! Owns the ready line: one line of JSON for whoever started the process, written once it serves. Scripts wait for it
//! instead of polling a port.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;

use serde::Serialize;

use super::plan::ServingListener;

/// What the line says. Fields are only ever added.
#[derive(Debug, Serialize)]
pub struct ReadyLine<'a> {
    pub version: &'a str,
    pub pid: u32,
    pub node_id: i32,
    pub cluster_id: &'a str,
    pub listeners: &'a [ServingListener],
    /// `None` when the admin server is off.
    pub admin: Option<SocketAddr>,
    pub shards: usize,
    pub driver: &'a str,
    /// `None` = ephemeral.
    pub data_directory: Option<String>,
}

/// The inherited descriptor of `--ready-fd`.
#[derive(Debug)]
pub struct ReadyPipe(File);

impl ReadyPipe {
    /// Opens it again by its number, which needs no trust that the number is ours to close. Works for pipes, files and
    /// terminals; a socket cannot be opened so.
    ///
    /// # Errors
    /// When there is no such descriptor, or it is not writable.
    pub fn open(descriptor: u32) -> io::Result<ReadyPipe> {
        let path = format!("/proc/self/fd/{descriptor}");
        OpenOptions::new().append(true).open(path).map(ReadyPipe)
    }

    /// Writes the line and closes.
    ///
    /// # Errors
    /// Of the write, such as a pipe that nobody reads.
    pub fn announce(mut self, line: &ReadyLine<'_>) -> io::Result<()> {
        let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
        text.push('\n');
        self.0.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn the_line_arrives_on_the_descriptor() {
        let (mut reader, writer) = io::pipe().expect("a pipe can be made");
        let pipe = ReadyPipe::open(u32::try_from(writer.as_raw_fd()).expect("descriptors are positive"));
        let pipe = pipe.expect("the descriptor is open");
        drop(writer);
        let bound = SocketAddr::from(([127, 0, 0, 1], 19092));
        let listeners = [ServingListener { bound, advertised: None }];
        let line = ReadyLine {
            version: "0.1.0",
            pid: 7,
            node_id: 1,
            cluster_id: "c",
            listeners: &listeners,
            admin: None,
            shards: 2,
            driver: "epoll",
            data_directory: None,
        };
        pipe.announce(&line).expect("the pipe takes it");
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("the writer is closed");
        assert_eq!(
            text,
            "{\"version\":\"0.1.0\",\"pid\":7,\"node_id\":1,\"cluster_id\":\"c\",\"listeners\":[{\"bound\":\
             \"127.0.0.1:19092\",\"advertised\":null}],\"admin\":null,\"shards\":2,\"driver\":\"epoll\",\
             \"data_directory\":null}\n"
        );
    }

    #[test]
    fn a_descriptor_that_is_not_there_is_an_error() {
        assert!(ReadyPipe::open(u32::MAX).is_err());
    }
}
