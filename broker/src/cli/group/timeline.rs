//! The rebalances of a group, as `ringlog group describe` shows them: who made them, why, what moved. Reads them from a broker's admin
//! server, since Kafka's protocol has no place for them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::durations::duration_text;
use super::{new_table, plural, rendered};
use crate::process::escape::escaped;

/// The broker answers from memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// Far more than ten rebalances take.
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;
const OK: &str = "200";

/// As the admin server writes them; see `broker/src/http/timeline.rs`.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Timeline {
    /// The newest first.
    pub rebalances: Vec<Rebalance>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Rebalance {
    began_ms: i64,
    ended_ms: i64,
    settled_ms: Option<i64>,
    generation: i32,
    members_before: usize,
    members: usize,
    causes: Vec<Cause>,
    causes_left_out: usize,
    partitions: Option<Partitions>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Cause {
    cause: String,
    member: String,
    instance: Option<String>,
    client_id: String,
    client_host: String,
    reason: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Partitions {
    kept: u32,
    moved: u32,
    taken: u32,
    released: u32,
    shown: Vec<Move>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Move {
    topic: String,
    partition: i32,
    from: Option<String>,
    to: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TimelineError {
    #[error("cannot ask the admin server at {address} for rebalances: {source}")]
    Io { address: String, source: io::Error },
    #[error("the admin server at {address} says '{status}' when asked for rebalances: is it one of Ringlog?")]
    Refused { address: String, status: String },
    #[error("the admin server at {address} answers what is no timeline: {source}")]
    Unreadable { address: String, source: serde_json::Error },
}

/// Asks a broker's admin server, HOST:PORT.
///
/// # Errors
/// See [`TimelineError`].
pub(super) fn ask(address: &str, group: &str) -> Result<Timeline, TimelineError> {
    let failed = |source| TimelineError::Io { address: address.to_owned(), source };
    let answer = get(address, &format!("/groups/{}/timeline", path_segment(group))).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or("");
    if status.split(' ').nth(1) != Some(OK) {
        return Err(TimelineError::Refused {
            address: address.to_owned(),
            status: escaped(status).to_string(),
        });
    }
    serde_json::from_str(body)
        .map_err(|source| TimelineError::Unreadable { address: address.to_owned(), source })
}

/// HTTP 1.0: the answer ends with the connection.
fn get(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Percent-encoded, but for what no path gives a meaning.
fn path_segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => segment.push(char::from(byte)),
            _ => segment.push_str(&format!("%{byte:02X}")),
        }
    }
    segment
}

/// A table, and below it what each of the newest was about.
pub(super) fn text(timeline: &Timeline, now_ms: i64) -> String {
    if timeline.rebalances.is_empty() {
        return "\nrebalances: none that the broker remembers\n".to_owned();
    }
    let mut table = new_table(&[
        "REBALANCED",
        "TOOK",
        "SETTLED",
        "EPOCH",
        "MEMBERS",
        "KEPT",
        "MOVED",
        "TAKEN",
        "RELEASED",
        "WHY",
    ]);
    super::align_right(&mut table, &[1, 2, 3, 5, 6, 7, 8]);
    for rebalance in &timeline.rebalances {
        let count = |count: fn(&Partitions) -> u32| {
            rebalance.partitions.as_ref().map_or("-".to_owned(), |partitions| count(partitions).to_string())
        };
        let since_it_began = |at_ms: i64| duration_text((at_ms - rebalance.began_ms).max(0));
        table.add_row([
            format!("{} ago", duration_text((now_ms - rebalance.ended_ms).max(0))),
            since_it_began(rebalance.ended_ms),
            rebalance.settled_ms.map_or("-".to_owned(), since_it_began),
            rebalance.generation.to_string(),
            format!("{} -> {}", rebalance.members_before, rebalance.members),
            count(|partitions| partitions.kept),
            count(|partitions| partitions.moved),
            count(|partitions| partitions.taken),
            count(|partitions| partitions.released),
            rebalance.why(),
        ]);
    }
    let mut text = format!("\n{}", rendered(&mut table));
    if let Some(newest) = timeline.rebalances.first() {
        newest.causes.iter().skip(1).for_each(|cause| text.push_str(&format!("  {}\n", cause.sentence())));
        let moves = newest.partitions.iter().flat_map(|partitions| &partitions.shown);
        moves.for_each(|one| text.push_str(&format!("  {}\n", one.sentence())));
    }
    text
}

impl Rebalance {
    fn why(&self) -> String {
        let first = self.causes.first().map_or_else(|| "-".to_owned(), Cause::sentence);
        match (self.causes.len() + self.causes_left_out).saturating_sub(1) {
            0 => first,
            more => format!("{first}; and {more} other{}", plural(more)),
        }
    }
}

impl Cause {
    fn sentence(&self) -> String {
        let mut text = self.cause.replace('_', " ");
        let name = self.instance.as_ref().unwrap_or(&self.member);
        if !name.is_empty() {
            text.push_str(&format!(": {} of {}", escaped(name), escaped(&self.client_host)));
        }
        if let Some(reason) = &self.reason {
            text.push_str(&format!(", because: {}", escaped(reason)));
        }
        text
    }
}

impl Move {
    fn sentence(&self) -> String {
        let owner = |owner: &Option<String>| {
            owner.as_ref().map_or("nobody".to_owned(), |owner| escaped(owner).to_string())
        };
        format!("{}:{} from {} to {}", self.topic, self.partition, owner(&self.from), owner(&self.to))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    const BODY: &str = r#"{"group":"a/b","rebalances":[{"began_ms":1000,"ended_ms":4000,"settled_ms":9000,"generation":7,"members_before":2,
        "members":1,"causes":[{"cause":"session_expired","member":"consumer-1","instance":null,"client_id":"c",
        "client_host":"/10.0.0.1","reason":null},{"cause":"left","member":"consumer-2","instance":null,
        "client_id":"c","client_host":"/10.0.0.2","reason":"closed\u001b[2J"}],"causes_left_out":3,
        "partitions":{"kept":5,"moved":1,"taken":0,"released":0,"shown":[{"topic":"orders","partition":3,
        "from":"consumer-1","to":"consumer-3"}]}}]}"#;

    /// The request line that came, and what was read of `answer`.
    fn served(answer: String) -> (String, Result<Timeline, TimelineError>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let (mut first, mut line) = (String::new(), String::new());
            reader.read_line(&mut first).expect("a request");
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).expect("a request");
            }
            stream.write_all(answer.as_bytes()).expect("it reads");
            first
        });
        let told = ask(&address, "a/b");
        (server.join().expect("it ends"), told)
    }

    #[test]
    fn a_timeline_is_asked_for_by_name_and_read() {
        let (request, told) = served(format!("HTTP/1.0 200 OK\r\ncontent-type: x\r\n\r\n{BODY}"));
        assert_eq!(request, "GET /groups/a%2Fb/timeline HTTP/1.0\r\n");
        let text = text(&told.expect("a timeline"), 64_000);
        let row: Vec<&str> = text.lines().nth(2).expect("a row").split_whitespace().collect();
        assert_eq!(row[..12], ["1m", "ago", "3s", "8s", "7", "2", "->", "1", "5", "1", "0", "0"], "{text}");
        assert!(text.contains("session expired: consumer-1 of /10.0.0.1; and 4 others\n"), "{text}");
        assert!(text.contains("  left: consumer-2 of /10.0.0.2, because: closed\\x1b[2J\n"), "{text}");
        assert!(text.contains("  orders:3 from consumer-1 to consumer-3\n"), "{text}");
    }

    #[test]
    fn another_server_is_told_from_one_of_ringlog() {
        let (_, told) = served("HTTP/1.1 404 Not Found\r\n\r\n".to_owned());
        assert!(matches!(told, Err(TimelineError::Refused { status, .. }) if status.contains("404")));
        let (_, told) = served("HTTP/1.1 200 OK\r\n\r\nhello".to_owned());
        assert!(matches!(told, Err(TimelineError::Unreadable { .. })));
        assert!(matches!(ask("127.0.0.1:1", "g"), Err(TimelineError::Io { .. })));
    }

    #[test]
    fn a_group_that_never_rebalanced_says_so() {
        assert_eq!(
            text(&Timeline { rebalances: Vec::new() }, 0),
            "\nrebalances: none that the broker remembers\n"
        );
    }
}
