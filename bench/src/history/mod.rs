//! Whether the history of a run obeys the rules of a log: what clients sent, what they were answered, what they read.
//!
//! Pure: operations in, a verdict out. No clock, network or files; [`read`] takes any `BufRead`. The analysis follows
//! `jepsen.tests.kafka` (key = topic partition, unique values), without groups and transactions.
//!
//! Memory: about 200 bytes for each record sent or read, whatever the number of operations, plus 64 bytes for each gap
//! in what one consumer read; [`CheckOptions::values_max`] bounds the values, [`read::LINE_BYTES_MAX`] one line.
//!
//! Reading order: [`SCHEMA`], [`operation`] (what a line says), [`read`] (lines), [`check`] (one pass over the
//! operations), [`key_log`] and [`consumer`] (what the pass gathers), [`judge`] (the rules), [`verdict`].

pub mod check;
pub mod consumer;
pub mod judge;
pub mod key_log;
pub mod operation;
pub mod read;
pub mod verdict;

pub use check::{CheckOptions, Checker};
pub use operation::Operation;
pub use verdict::{Rule, Verdict};

/// The format of a history, for people: what `verify --schema` prints.
pub const SCHEMA: &str = r#"A history is one JSON object a line, one line an operation, written when the operation ends. Several files are parts of
one history: the lines of one process must be in one file, in order; the order of files does not matter. A key is a
partition; `topic` may be left out everywhere where there is one topic only. Values are integers 0 to 2^63-1, each sent
once in the whole history, so that a record names its writer.

Every line:
  op          send, poll, assign, subscribe, crash, delete, damaged or final
  process     integer: the client. Not needed by delete and damaged
  start, end  when the operation began and ended, nanoseconds of one clock; both or none (then lag, pauses and real-time
              order are not judged)
  outcome     ok    it happened, and the answer says so
              fail  it surely did not happen: refused with an error that rules it out, or never sent
              info  unknown: no answer in time, connection lost behind the sending, any error that leaves it open
              Of send, poll and delete; send needs it, for the others ok is the default.

send       one batch, which is visible whole or not at all
  partition, values [v, ...]   one record a value, in order
  offset      of the first record, if the answer named it
  acks        "all", "1" or "0". acks=0 promises nothing; acks=1 is held to its word only with --acks-1-durable
  idempotent  default false
  retried     default false: sent again although the first sending may have had effect. Without idempotence it may then
              be there twice
  final       default false: sent when everything was healed; an outcome other than ok is `stuck`
poll       what one consumer read; records of polls that failed count as read
  polled      [{"partition": 0, "records": [[offset, value], ...], "next": position behind it (optional)}, ...]
              value null = bytes that no client sent
  rebalanced  default false: the assignment changed within the poll, so jumps are no error
assign     replaces the consumer's partitions: positions [{"partition": 0, "offset": where it begins, or null}, ...]
subscribe  partitions come and go from here on: jumps between two polls are no error
crash      the client of the process was dropped and opened anew
delete     partition, offset: the log starts there now; lower offsets are not required any more
damaged    partition, offset: the medium was damaged on purpose; from there on nothing is required
final      everything is healed, and this process now reads each partition to its end:
           positions [{"partition": 0, "offset": end of the log}, ...]. Without it, unseen and stuck are not judged

Rules (exit code 1 if one is broken):
  inconsistent-offsets   one offset, two values
  duplicate              one value at two offsets, unless idempotence is off and it was retried
  lost-write             an acknowledged value at an offset that a consumer passed, read by nobody
  unseen                 an acknowledged value that the final read, complete, did not see
  vanished               a value that somebody read is not in the final read, complete, behind the first record of that
  aborted-read           a value whose send failed was read
  torn-batch             a part of a batch was read, the rest is not beside it
  unknown-value          a value that nobody sent to this partition, or altered bytes
  int-poll-skip, int-nonmonotonic-poll   within one poll, records are left out or go back
  poll-skip, nonmonotonic-poll           the same between two polls of one consumer
  nonmonotonic-send      acknowledged sends of one producer stand in another order than sent (with idempotence, or when
                         the first was answered before the second began)
  stuck                  after `final`: the end is not reached, no progress for 10 s, or a final send failed"#;
