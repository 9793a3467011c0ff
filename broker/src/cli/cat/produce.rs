//! `ringlog cat -P`: lines of a file or of standard input become records.
//!
//! Input is read on a worker thread, so that a slow pipe never blocks the connections. Batches leave when they are full
//! and whenever the input pauses.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::rc::Rc;

use bytes::Bytes;
use ringlog_bench::client::partitioner::partition_of_key;
use ringlog_bench::client::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use ringlog_bench::client::{Client, ClientError};
use ringlog_io::Io;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::reader::Header;

use super::CatError;
use super::lines::{LineSplitter, split_key};

/// Bytes read from the input at once.
const CHUNK_BYTES: usize = 256 << 10;
/// A batch leaves once it holds this much: below the broker's default limit of 1 MiB, compressed or not.
const BATCH_BYTES: usize = 512 << 10;
/// The longest record; a wrong delimiter must not read the whole input into memory.
const LINE_BYTES_MAX: usize = 64 << 20;

/// What to produce.
#[derive(Debug, Clone)]
pub struct ProduceJob {
    pub topic: String,
    /// `None` = standard input.
    pub file: Option<PathBuf>,
    pub delimiter: Vec<u8>,
    pub key_delimiter: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub compression: Compression,
    pub acks: Acks,
    /// `None` = by key, or in turn.
    pub partition: Option<i32>,
    /// Empty keys and values are sent as null.
    pub empty_is_null: bool,
}

/// What was produced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Produced {
    pub records: u64,
    pub bytes: u64,
}

#[derive(Default)]
struct Progress {
    produced: Produced,
    failure: Option<ClientError>,
}

struct BatchTag {
    records: u64,
    bytes: u64,
}

struct LineProducer<'a> {
    job: &'a ProduceJob,
    io: Io,
    topic: Rc<str>,
    partition_count: i32,
    producer: Producer<BatchTag>,
    progress: Rc<RefCell<Progress>>,
    builders: BTreeMap<i32, BatchBuilder>,
    /// Where records without a key go until their batch is full.
    sticky: i32,
}

/// Reads the input to its end and produces every record.
///
/// # Errors
/// The input, the first batch that the broker did not take, or the connection.
pub async fn produce(io: &Io, client: &Client, job: &ProduceJob) -> Result<Produced, CatError> {
    let mut input = open_input(job)?;
    let topic = client.topic(&job.topic).await?;
    if let Some(partition) = job.partition.filter(|partition| !topic.partitions.contains_key(partition)) {
        return Err(CatError::NoPartition {
            topic: job.topic.clone(),
            partition,
            count: topic.partitions.len(),
        });
    }
    let partition_count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
    let mut lines = LineProducer::start(io, client, job, partition_count).await?;
    let mut splitter = LineSplitter::new(job.delimiter.clone(), LINE_BYTES_MAX);
    loop {
        let (read, returned) = read_chunk(io, input).await;
        let chunk = read.map_err(|source| CatError::Input { source })?;
        input = returned;
        let mut records = Vec::new();
        splitter.feed(&chunk, |line| records.push(line.to_vec()))?;
        for line in &records {
            lines.append(line).await?;
        }
        if chunk.is_empty() {
            break;
        }
        if chunk.len() < CHUNK_BYTES {
            lines.send_all().await?;
        }
    }
    if let Some(line) = splitter.finish() {
        lines.append(&line).await?;
    }
    lines.finish().await
}

fn open_input(job: &ProduceJob) -> Result<Box<dyn Read + Send>, CatError> {
    match &job.file {
        None => Ok(Box::new(io::stdin())),
        Some(path) => {
            let file = File::open(path).map_err(|source| CatError::Open { path: path.clone(), source })?;
            Ok(Box::new(file))
        }
    }
}

type Input = Box<dyn Read + Send>;

async fn read_chunk(io: &Io, mut input: Input) -> (io::Result<Vec<u8>>, Input) {
    io.compute(move || {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match input.read(&mut chunk) {
                Ok(bytes) => {
                    chunk.truncate(bytes);
                    return (Ok(chunk), input);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), input),
            }
        }
    })
    .await
}

impl<'a> LineProducer<'a> {
    async fn start(
        io: &Io,
        client: &Client,
        job: &'a ProduceJob,
        partition_count: i32,
    ) -> Result<LineProducer<'a>, CatError> {
        let progress = Rc::new(RefCell::new(Progress::default()));
        let config = ProducerConfig {
            acks: job.acks,
            is_idempotent: job.acks == Acks::All,
            ..ProducerConfig::default()
        };
        let seen = progress.clone();
        let producer =
            Producer::start(client, config, move |tag: BatchTag, result: Result<Delivered, ClientError>| {
                let mut progress = seen.borrow_mut();
                match result {
                    Ok(_) => {
                        progress.produced.records += tag.records;
                        progress.produced.bytes += tag.bytes;
                    }
                    Err(error) => {
                        progress.failure.get_or_insert(error);
                    }
                }
            })
            .await?;
        let first =
            i32::try_from(io.random_u64() % u64::from(partition_count.max(1).unsigned_abs())).unwrap_or(0);
        Ok(LineProducer {
            job,
            io: io.clone(),
            topic: job.topic.as_str().into(),
            partition_count,
            producer,
            progress,
            builders: BTreeMap::new(),
            sticky: first,
        })
    }

    async fn append(&mut self, line: &[u8]) -> Result<(), CatError> {
        let (key, value) = match &self.job.key_delimiter {
            Some(delimiter) => split_key(line, delimiter),
            None => (None, line),
        };
        let non_empty = |bytes: &&[u8]| !(self.job.empty_is_null && bytes.is_empty());
        let (key, value) = (key.filter(non_empty), Some(value).filter(non_empty));
        let headers: Vec<Header<'_>> = self
            .job
            .headers
            .iter()
            .map(|(key, value)| Header { key: key.as_bytes(), value: Some(value) })
            .collect();
        let record = NewRecord { timestamp: self.io.wall_now_ms(), key, value, headers: &headers };
        let partition = match (self.job.partition, key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_of_key(key, self.partition_count),
            (None, None) => self.sticky,
        };
        let builder = self.builders.entry(partition).or_default();
        if !builder.is_empty() && builder.uncompressed_bytes() + builder.bytes_of(&record) > BATCH_BYTES {
            self.send(partition).await?;
        }
        self.builders.entry(partition).or_default().append(&record)?;
        Ok(())
    }

    async fn send(&mut self, partition: i32) -> Result<(), CatError> {
        self.producer.room(&self.topic, partition).await;
        if let Some(failure) = self.progress.borrow_mut().failure.take() {
            return Err(failure.into());
        }
        let Some(builder) = self.builders.get_mut(&partition).filter(|builder| !builder.is_empty()) else {
            return Ok(());
        };
        let records = builder.record_count();
        let tag = BatchTag { records: u64::from(records), bytes: builder.uncompressed_bytes() as u64 };
        let producer = self.producer.stamp(&self.topic, partition, records);
        let options = BatchOptions { compression: self.job.compression, producer, ..BatchOptions::default() };
        let bytes = Bytes::from(builder.finish(&options)?);
        self.producer.send(vec![OutBatch { topic: self.topic.clone(), partition, bytes, tag }]);
        if partition == self.sticky {
            self.sticky = (self.sticky + 1).checked_rem(self.partition_count).unwrap_or(0);
        }
        Ok(())
    }

    async fn send_all(&mut self) -> Result<(), CatError> {
        let partitions: Vec<i32> = self.builders.keys().copied().collect();
        for partition in partitions {
            self.send(partition).await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Produced, CatError> {
        self.send_all().await?;
        self.producer.flush().await;
        let progress = self.progress.borrow();
        match &progress.failure {
            Some(error) => Err(error.clone().into()),
            None => Ok(progress.produced),
        }
    }
}
