//! One line of a history as a value, and its JSON form in both directions. It judges shapes only, never meaning.

use serde::{Deserialize, Serialize};

/// The largest value a record may carry; above it is room for marks of our own.
pub const VALUE_MAX: u64 = i64::MAX as u64;

/// A topic partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Empty where the history has one topic only.
    pub topic: String,
    /// The partition.
    pub partition: i32,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.topic.is_empty() {
            write!(f, "partition {}", self.partition)
        } else {
            write!(f, "{}-{}", self.topic, self.partition)
        }
    }
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It happened.
    Ok,
    /// It surely did not happen.
    Fail,
    /// Nobody knows.
    Info,
}

/// What the sender asked to be promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcksLevel {
    /// Nothing.
    #[serde(rename = "0")]
    None,
    /// The leader's word.
    #[serde(rename = "1")]
    Leader,
    /// The commit quorum's word.
    #[serde(rename = "all")]
    All,
}

/// When an operation ran, nanoseconds of the history's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Invocation.
    pub start: u64,
    /// Completion, not before `start`.
    pub end: u64,
}

/// One batch sent to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The client.
    pub process: u64,
    /// Where to.
    pub key: Key,
    /// One record each, not empty.
    pub values: Vec<u64>,
    /// Of the first record.
    pub offset: Option<i64>,
    /// The promise asked for.
    pub acks: AcksLevel,
    /// Whether the broker drops repeats.
    pub is_idempotent: bool,
    /// Whether it was sent again though the first sending may have had effect.
    pub is_retried: bool,
    /// Whether it was sent after everything was healed.
    pub is_final: bool,
    /// What became of it.
    pub outcome: Outcome,
    /// When.
    pub span: Option<Span>,
}

/// What a poll returned of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Polled {
    /// The partition.
    pub key: Key,
    /// Offset and value; `None` = bytes that no client sent.
    pub records: Vec<(i64, Option<u64>)>,
    /// The consumer's position afterwards.
    pub next: Option<i64>,
}

/// One poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poll {
    /// The client.
    pub process: u64,
    /// What it returned.
    pub polled: Vec<Polled>,
    /// Whether the assignment changed within.
    pub is_rebalanced: bool,
    /// When.
    pub span: Option<Span>,
}

/// A place in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The partition.
    pub key: Key,
    /// `None` = unknown.
    pub offset: Option<i64>,
}

/// See [`super::SCHEMA`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A batch was sent.
    Send(Send),
    /// A consumer read.
    Poll(Poll),
    /// A consumer took partitions by hand.
    Assign { process: u64, positions: Vec<Position> },
    /// A consumer joined a group.
    Subscribe { process: u64 },
    /// A client was replaced.
    Crash { process: u64 },
    /// The log start moved.
    Delete { key: Key, log_start: i64, outcome: Outcome },
    /// The medium was damaged from here on.
    Damaged { key: Key, from: i64 },
    /// Everything is healed; `process` reads up to these ends.
    Final { process: u64, ends: Vec<Position>, span: Option<Span> },
}

/// Why a line is not an operation.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// Not JSON, or fields of wrong type or name.
    #[error("{source}")]
    Json {
        #[from]
        source: serde_json::Error,
    },
    /// A field is missing.
    #[error("\"{operation}\" needs \"{field}\"")]
    Missing { operation: &'static str, field: &'static str },
    /// A field has a value that makes no sense.
    #[error("\"{field}\": {reason}")]
    Value { field: &'static str, reason: String },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Send,
    Poll,
    Assign,
    Subscribe,
    Crash,
    Delete,
    Damaged,
    Final,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Send => "send",
            Kind::Poll => "poll",
            Kind::Assign => "assign",
            Kind::Subscribe => "subscribe",
            Kind::Crash => "crash",
            Kind::Delete => "delete",
            Kind::Damaged => "damaged",
            Kind::Final => "final",
        }
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// All fields of all operations: one flat object reads several times faster than a tagged enum, and its errors name
/// the field.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    op: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<u64>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offset: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acks: Option<AcksLevel>,
    #[serde(default, skip_serializing_if = "is_false")]
    idempotent: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    retried: bool,
    #[serde(default, rename = "final", skip_serializing_if = "is_false")]
    is_final: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    polled: Option<Vec<PolledLine>>,
    #[serde(default, skip_serializing_if = "is_false")]
    rebalanced: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    positions: Option<Vec<PositionLine>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolledLine {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    topic: String,
    partition: i32,
    records: Vec<(i64, Option<u64>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PositionLine {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    topic: String,
    partition: i32,
    offset: Option<i64>,
}

impl Line {
    fn new(op: Kind) -> Line {
        Line {
            op,
            process: None,
            outcome: None,
            start: None,
            end: None,
            topic: String::new(),
            partition: None,
            offset: None,
            values: Vec::new(),
            acks: None,
            idempotent: false,
            retried: false,
            is_final: false,
            polled: None,
            rebalanced: false,
            positions: None,
        }
    }

    fn missing(&self, field: &'static str) -> OperationError {
        OperationError::Missing { operation: self.op.name(), field }
    }

    fn process(&self) -> Result<u64, OperationError> {
        self.process.ok_or_else(|| self.missing("process"))
    }

    fn key(&self) -> Result<Key, OperationError> {
        let partition = self.partition.ok_or_else(|| self.missing("partition"))?;
        key_of(self.topic.clone(), partition)
    }

    fn offset(&self) -> Result<i64, OperationError> {
        checked_offset(self.offset)?.ok_or_else(|| self.missing("offset"))
    }

    fn span(&self) -> Result<Option<Span>, OperationError> {
        match (self.start, self.end) {
            (None, None) => Ok(None),
            (Some(start), Some(end)) if start <= end => Ok(Some(Span { start, end })),
            (Some(start), Some(end)) => Err(value("end", format!("{end} is before the start {start}"))),
            _ => Err(value("start", "start and end go together".to_owned())),
        }
    }

    fn positions(&mut self) -> Result<Vec<Position>, OperationError> {
        let lines = self.positions.take().ok_or_else(|| self.missing("positions"))?;
        lines
            .into_iter()
            .map(|line| {
                let offset = checked_offset(line.offset)?;
                Ok(Position { key: key_of(line.topic, line.partition)?, offset })
            })
            .collect()
    }

    fn send(self) -> Result<Operation, OperationError> {
        if self.values.is_empty() {
            return Err(self.missing("values"));
        }
        for found in &self.values {
            checked_value(*found)?;
        }
        Ok(Operation::Send(Send {
            process: self.process()?,
            key: self.key()?,
            offset: checked_offset(self.offset)?,
            acks: self.acks.ok_or_else(|| self.missing("acks"))?,
            is_idempotent: self.idempotent,
            is_retried: self.retried,
            is_final: self.is_final,
            outcome: self.outcome.ok_or_else(|| self.missing("outcome"))?,
            span: self.span()?,
            values: self.values,
        }))
    }

    fn poll(mut self) -> Result<Operation, OperationError> {
        let lines = self.polled.take().ok_or_else(|| self.missing("polled"))?;
        let mut polled = Vec::with_capacity(lines.len());
        for line in lines {
            for (offset, found) in &line.records {
                checked_offset(Some(*offset))?;
                found.map(checked_value).transpose()?;
            }
            let next = checked_offset(line.next)?;
            polled.push(Polled { key: key_of(line.topic, line.partition)?, records: line.records, next });
        }
        let (process, span) = (self.process()?, self.span()?);
        Ok(Operation::Poll(Poll { process, polled, is_rebalanced: self.rebalanced, span }))
    }
}

fn value(field: &'static str, reason: String) -> OperationError {
    OperationError::Value { field, reason }
}

fn key_of(topic: String, partition: i32) -> Result<Key, OperationError> {
    if partition < 0 {
        return Err(value("partition", format!("{partition} is below 0")));
    }
    Ok(Key { topic, partition })
}

fn checked_offset(offset: Option<i64>) -> Result<Option<i64>, OperationError> {
    match offset {
        Some(offset) if offset < 0 => Err(value("offset", format!("{offset} is below 0"))),
        // The offset behind a record must be a number too.
        Some(i64::MAX) => Err(value("offset", "it is not below 2^63-1".to_owned())),
        offset => Ok(offset),
    }
}

fn checked_value(found: u64) -> Result<u64, OperationError> {
    if found > VALUE_MAX {
        return Err(value("values", format!("{found} is above 2^63-1")));
    }
    Ok(found)
}

fn position_line(position: &Position) -> PositionLine {
    PositionLine {
        topic: position.key.topic.clone(),
        partition: position.key.partition,
        offset: position.offset,
    }
}

impl Operation {
    /// Reads one line.
    ///
    /// # Errors
    /// What is wrong with it; unknown fields are refused, so that a typo is not a field left out.
    pub fn from_json(line: &[u8]) -> Result<Operation, OperationError> {
        let mut line: Line = serde_json::from_slice(line)?;
        match line.op {
            Kind::Send => line.send(),
            Kind::Poll => line.poll(),
            Kind::Assign => Ok(Operation::Assign { positions: line.positions()?, process: line.process()? }),
            Kind::Subscribe => Ok(Operation::Subscribe { process: line.process()? }),
            Kind::Crash => Ok(Operation::Crash { process: line.process()? }),
            Kind::Delete => Ok(Operation::Delete {
                key: line.key()?,
                log_start: line.offset()?,
                outcome: line.outcome.unwrap_or(Outcome::Ok),
            }),
            Kind::Damaged => Ok(Operation::Damaged { key: line.key()?, from: line.offset()? }),
            Kind::Final => {
                let ends = line.positions()?;
                if ends.iter().any(|end| end.offset.is_none()) {
                    return Err(value("positions", "the end of a partition is null".to_owned()));
                }
                Ok(Operation::Final { ends, process: line.process()?, span: line.span()? })
            }
        }
    }

    /// The line, without its line feed.
    pub fn to_json(&self) -> String {
        let mut line;
        match self {
            Operation::Send(send) => line = send_line(send),
            Operation::Poll(poll) => {
                line = Line::new(Kind::Poll);
                line.process = Some(poll.process);
                line.rebalanced = poll.is_rebalanced;
                line.set_span(poll.span);
                line.polled = Some(poll.polled.iter().map(polled_line).collect());
            }
            Operation::Assign { process, positions } => {
                line = Line::new(Kind::Assign);
                line.process = Some(*process);
                line.positions = Some(positions.iter().map(position_line).collect());
            }
            Operation::Subscribe { process } => {
                line = Line::new(Kind::Subscribe);
                line.process = Some(*process);
            }
            Operation::Crash { process } => {
                line = Line::new(Kind::Crash);
                line.process = Some(*process);
            }
            Operation::Delete { key, log_start, outcome } => {
                line = Line::new(Kind::Delete);
                line.set_place(key, *log_start);
                line.outcome = Some(*outcome);
            }
            Operation::Damaged { key, from } => {
                line = Line::new(Kind::Damaged);
                line.set_place(key, *from);
            }
            Operation::Final { process, ends, span } => {
                line = Line::new(Kind::Final);
                line.process = Some(*process);
                line.set_span(*span);
                line.positions = Some(ends.iter().map(position_line).collect());
            }
        }
        serde_json::to_string(&line).expect("a line is strings and numbers, which JSON has")
    }
}

impl Line {
    fn set_span(&mut self, span: Option<Span>) {
        self.start = span.map(|span| span.start);
        self.end = span.map(|span| span.end);
    }

    fn set_place(&mut self, key: &Key, offset: i64) {
        self.topic.clone_from(&key.topic);
        self.partition = Some(key.partition);
        self.offset = Some(offset);
    }
}

fn send_line(send: &Send) -> Line {
    let mut line = Line::new(Kind::Send);
    line.process = Some(send.process);
    line.outcome = Some(send.outcome);
    line.topic.clone_from(&send.key.topic);
    line.partition = Some(send.key.partition);
    line.offset = send.offset;
    line.values.clone_from(&send.values);
    line.acks = Some(send.acks);
    line.idempotent = send.is_idempotent;
    line.retried = send.is_retried;
    line.is_final = send.is_final;
    line.set_span(send.span);
    line
}

fn polled_line(polled: &Polled) -> PolledLine {
    PolledLine {
        topic: polled.key.topic.clone(),
        partition: polled.key.partition,
        records: polled.records.clone(),
        next: polled.next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let lines = [
            r#"{"op":"send","process":3,"outcome":"info","start":1,"end":2,"topic":"t","partition":1,"values":[7,8],"acks":"all","idempotent":true,"retried":true,"final":true}"#,
            r#"{"op":"send","process":3,"outcome":"ok","partition":0,"offset":4,"values":[9],"acks":"0"}"#,
            r#"{"op":"poll","process":1,"polled":[{"partition":0,"records":[[4,9],[5,null]],"next":6}],"rebalanced":true}"#,
            r#"{"op":"assign","process":1,"positions":[{"partition":0,"offset":null}]}"#,
            r#"{"op":"subscribe","process":1}"#,
            r#"{"op":"crash","process":1}"#,
            r#"{"op":"delete","outcome":"info","partition":2,"offset":10}"#,
            r#"{"op":"damaged","partition":2,"offset":10}"#,
            r#"{"op":"final","process":9,"positions":[{"topic":"t","partition":0,"offset":12}]}"#,
        ];
        for line in lines {
            let operation = Operation::from_json(line.as_bytes()).expect(line);
            assert_eq!(operation.to_json(), line);
        }
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for (line, word) in [
            ("", "EOF"),
            ("[]", "invalid"),
            (r#"{"op":"sned"}"#, "sned"),
            (r#"{"op":"crash"}"#, "process"),
            (r#"{"op":"crash","process":-1}"#, "-1"),
            (r#"{"op":"send","process":1,"partition":0,"acks":"all","outcome":"ok"}"#, "values"),
            (r#"{"op":"send","process":1,"partition":0,"values":[1],"outcome":"ok"}"#, "acks"),
            (r#"{"op":"send","process":1,"partition":0,"values":[1],"acks":"all"}"#, "outcome"),
            (
                r#"{"op":"send","process":1,"partition":-1,"values":[1],"acks":"1","outcome":"ok"}"#,
                "partition",
            ),
            (
                r#"{"op":"send","process":1,"partition":0,"values":[9223372036854775808],"acks":"1","outcome":"ok"}"#,
                "2^63",
            ),
            (r#"{"op":"send","process":1,"partition":0,"values":[1],"acks":"2","outcome":"ok"}"#, "2"),
            (r#"{"op":"poll","process":1,"polled":[{"partition":0,"records":[[-1,1]]}]}"#, "offset"),
            (r#"{"op":"poll","process":1,"polled":[],"start":5}"#, "together"),
            (r#"{"op":"poll","process":1,"polled":[],"start":5,"end":4}"#, "before"),
            (r#"{"op":"final","process":1,"positions":[{"partition":0,"offset":null}]}"#, "null"),
            (r#"{"op":"crash","process":1,"proces":1}"#, "proces"),
        ] {
            let error = Operation::from_json(line.as_bytes()).expect_err(line).to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
