//! `ringlog cat -C`: records become bytes on standard output.
//!
//! Output is flushed after each answer of the broker. A reader that goes away (`| head`) ends the run quietly.

use std::collections::BTreeMap;
use std::io::{self, Stdout, Write};

use ringlog_bench::client::admin::OffsetQuery;
use ringlog_bench::client::reader::{Reader, ReaderOptions, RecordSink};
use ringlog_bench::client::{Client, ClientError};
use ringlog_io::Monotonic;
use ringlog_protocol::records::reader::Record;

use super::CatError;
use super::format::{Format, Place, write_json};

/// Output is handed to the kernel once it holds this much.
const OUTPUT_BYTES: usize = 256 << 10;

/// Where to begin in each partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    Beginning,
    End,
    /// This offset.
    Offset(i64),
    /// So many records before the end.
    Tail(i64),
    /// The first record at or after this time, milliseconds since the Unix epoch.
    Time(i64),
}

impl std::str::FromStr for StartAt {
    type Err = String;

    fn from_str(text: &str) -> Result<StartAt, String> {
        let number = |digits: &str| digits.parse::<i64>().ok().filter(|number| *number >= 0);
        let parsed = match text {
            "beginning" | "earliest" => Some(StartAt::Beginning),
            "end" | "latest" => Some(StartAt::End),
            _ => match (text.strip_prefix('-'), text.strip_prefix('@')) {
                (Some(count), _) => number(count).map(StartAt::Tail),
                (_, Some(time)) => number(time).map(StartAt::Time),
                _ => number(text).map(StartAt::Offset),
            },
        };
        parsed.ok_or_else(|| {
            format!("'{text}' is not a position; use beginning, end, an offset, -N (the last N) or @MS (Unix milliseconds)")
        })
    }
}

/// How records are printed.
#[derive(Debug, Clone)]
pub enum Printer {
    Json,
    Format(Format),
}

/// What to consume.
#[derive(Debug, Clone)]
pub struct ConsumeJob {
    pub topic: String,
    /// `None` = all.
    pub partition: Option<i32>,
    pub start: StartAt,
    /// `None` = without end.
    pub count: Option<u64>,
    pub exit_at_end: bool,
    pub printer: Printer,
}

struct PrintSink {
    topic: String,
    printer: Printer,
    out: Stdout,
    buffer: Vec<u8>,
    left: Option<u64>,
    printed: u64,
    failure: Option<io::Error>,
}

impl PrintSink {
    fn write_out(&mut self) -> bool {
        let written = self.out.lock().write_all(&self.buffer).and_then(|()| self.out.lock().flush());
        self.buffer.clear();
        match written {
            Ok(()) => true,
            Err(error) => {
                self.failure.get_or_insert(error);
                false
            }
        }
    }
}

impl RecordSink for PrintSink {
    fn record(&mut self, partition: i32, record: &Record<'_>, _arrived_at: Monotonic) -> bool {
        let place = Place { topic: &self.topic, partition };
        match &self.printer {
            Printer::Json => write_json(place, record, &mut self.buffer),
            Printer::Format(format) => format.write(place, record, &mut self.buffer),
        }
        self.printed += 1;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.write_out();
                return false;
            }
        }
        self.buffer.len() < OUTPUT_BYTES || self.write_out()
    }

    fn next_fetch_at(&mut self) -> Option<Monotonic> {
        self.write_out();
        None
    }
}

/// Prints records until the end, the count, or for ever. Returns how many.
///
/// # Errors
/// The connection, the broker's refusals, or the output. A closed output pipe is not an error.
pub async fn consume(client: &Client, job: &ConsumeJob) -> Result<u64, CatError> {
    let topic = client.topic(&job.topic).await?;
    let partitions: Vec<i32> = match job.partition {
        Some(partition) if !topic.partitions.contains_key(&partition) => {
            let count = topic.partitions.len();
            return Err(CatError::NoPartition { topic: job.topic.clone(), partition, count });
        }
        Some(partition) => vec![partition],
        None => topic.partitions.keys().copied().collect(),
    };
    let positions = start_positions(client, &job.topic, &partitions, job.start).await?;
    let ends = match job.exit_at_end {
        true => Some(client.offsets(&job.topic, &partitions, OffsetQuery::Latest).await?),
        false => None,
    };
    if job.count == Some(0) {
        return Ok(0);
    }
    let sink = PrintSink {
        topic: job.topic.clone(),
        printer: job.printer.clone(),
        out: io::stdout(),
        buffer: Vec::with_capacity(OUTPUT_BYTES),
        left: job.count,
        printed: 0,
        failure: None,
    };
    let reader = Reader::new(client, &job.topic, positions, ReaderOptions::default(), sink);
    if let Some(ends) = ends {
        reader.set_ends(ends);
    }
    let result = reader.run().await;
    let (printed, failure) = reader.with_sink(|sink| {
        sink.write_out();
        (sink.printed, sink.failure.take())
    });
    match failure {
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(printed),
        Some(source) => return Err(CatError::Output { source }),
        None => {}
    }
    result?;
    Ok(printed)
}

async fn start_positions(
    client: &Client,
    topic: &str,
    partitions: &[i32],
    start: StartAt,
) -> Result<BTreeMap<i32, i64>, ClientError> {
    match start {
        StartAt::Beginning => client.offsets(topic, partitions, OffsetQuery::Earliest).await,
        StartAt::End => client.offsets(topic, partitions, OffsetQuery::Latest).await,
        StartAt::Offset(offset) => Ok(partitions.iter().map(|partition| (*partition, offset)).collect()),
        StartAt::Tail(count) => {
            let earliest = client.offsets(topic, partitions, OffsetQuery::Earliest).await?;
            let mut positions = client.offsets(topic, partitions, OffsetQuery::Latest).await?;
            for (partition, position) in &mut positions {
                let first = earliest.get(partition).copied().unwrap_or(0);
                *position = position.saturating_sub(count).max(first);
            }
            Ok(positions)
        }
        StartAt::Time(milliseconds) => {
            let latest = client.offsets(topic, partitions, OffsetQuery::Latest).await?;
            let mut positions =
                client.offsets(topic, partitions, OffsetQuery::AtOrAfter(milliseconds)).await?;
            for (partition, position) in &mut positions {
                // -1: nothing is that young yet, so begin with what comes next.
                if *position < 0 {
                    *position = latest.get(partition).copied().unwrap_or(0);
                }
            }
            Ok(positions)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_and_nonsense_is_explained() {
        for (text, expected) in [
            ("beginning", StartAt::Beginning),
            ("earliest", StartAt::Beginning),
            ("end", StartAt::End),
            ("0", StartAt::Offset(0)),
            ("77", StartAt::Offset(77)),
            ("-5", StartAt::Tail(5)),
            ("@1700000000000", StartAt::Time(1_700_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in ["", "-", "@", "middle", "1.5", "--3"] {
            assert!(bad.parse::<StartAt>().is_err_and(|text| text.contains("beginning")), "{bad}");
        }
    }
}
