//! Measures one core's journal commit against a bare synced write of the same size, one after the other in turn, so
//! that both see the same device at the same time. Prints one JSON object.
//!
//! `cargo run --release -p ringlog-shard --example journal_commit [DIRECTORY] [ROUNDS]`

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};

use ringlog_io::{AlignedBuffer, Executor, ExecutorConfig, File, Io, OpenOptions, WriteSync};
use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_shard::journal::recovery;
use ringlog_shard::storage::{
    CoreStorage, DataDirectory, Identity, LogId, LogSettings, StampedBatch, StorageSettings,
};

/// What a small produce request comes to, with its frame: one page.
const WRITE_BYTES: usize = 4096;
const VALUE_BYTES: usize = 3600;
const BARE_FILE_BYTES: u64 = 4 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let base = PathBuf::from(arguments.next().unwrap_or_else(|| ".".to_owned()));
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(5_000);
    let directory = base.join(format!("journal-commit-{}", std::process::id()));
    let executor = Executor::new(ExecutorConfig::default()).expect("an executor can be made here");
    let io = executor.io();
    let measured = executor.run(measure(io, directory.clone(), rounds));
    std::fs::remove_dir_all(&directory).expect("the directory made here can be removed");
    let (journal, bare) = measured;
    println!(
        "{{\"rounds\": {rounds}, \"journal_p50_us\": {:.1}, \"journal_p99_us\": {:.1}, \"bare_p50_us\": {:.1}, \
         \"bare_p99_us\": {:.1}, \"p50_ratio\": {:.3}}}",
        quantile_us(&journal, 0.5),
        quantile_us(&journal, 0.99),
        quantile_us(&bare, 0.5),
        quantile_us(&bare, 0.99),
        quantile_us(&journal, 0.5) / quantile_us(&bare, 0.5),
    );
}

/// Nanoseconds of each round: (journal commit, bare write).
async fn measure(io: Io, directory: PathBuf, rounds: usize) -> (Vec<u64>, Vec<u64>) {
    let (storage, log) = open(&io, &directory).await;
    let durable = Rc::new(Durability::default());
    let heard = Rc::clone(&durable);
    storage.set_durable_listener(move |reports| {
        if let Some(last) = reports.last() {
            heard.reached(last.sequence);
        }
    });
    let bare_file = pre_written(&io, &directory.join("bare")).await;
    let mut buffer = AlignedBuffer::with_capacity(WRITE_BYTES);
    buffer.resize(WRITE_BYTES, 0);
    let (mut journal, mut bare) = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    let mut next = Offset(0);
    for round in 0..rounds {
        storage.room().await;
        let batch = batch_at(next);
        next = batch.header.next_offset();
        let begin = io.monotonic_now();
        let sequence = storage.append(log, batch).expect("the journal takes it");
        durable.wait_for(sequence).await;
        journal.push(io.monotonic_now().saturating_since(begin).as_nanos() as u64);
        let position = (round as u64 * WRITE_BYTES as u64) % BARE_FILE_BYTES;
        let begin = io.monotonic_now();
        let result;
        (result, buffer) = io.write_direct(&bare_file, position, buffer, WriteSync::Data).await;
        result.expect("the device takes it");
        bare.push(io.monotonic_now().saturating_since(begin).as_nanos() as u64);
    }
    (journal, bare)
}

async fn open(io: &Io, directory: &Path) -> (CoreStorage, LogId) {
    let settings = StorageSettings::SERVER;
    let identity = Identity { cluster_id: None, node_id: NodeId(1) };
    let opened = DataDirectory::open(io, directory, None, &identity).await.expect("the directory is new");
    let recovered = recovery::recover(io, &opened, 1, &|_| 0, &settings).await.expect("nothing to recover");
    let shard = recovered.shards.into_iter().next().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, settings).await.expect("the journal can be made");
    let key = TopicPartition { topic: TopicId([7; 16]), partition: PartitionIndex(0) };
    let log = storage.create_log(key, LogSettings::default());
    (storage, log)
}

/// Like the journal's files: every byte written once, so that a write changes no metadata.
async fn pre_written(io: &Io, path: &Path) -> File {
    let file = io.open(path, OpenOptions::READ_WRITE_CREATE).await.expect("a file can be made");
    let zeros = bytes::Bytes::from(vec![0; BARE_FILE_BYTES as usize]);
    io.write_at(&file, 0, vec![zeros]).await.expect("zeros can be written");
    io.sync_all(&file).await.expect("zeros can be synced");
    io.open(path, OpenOptions::READ_WRITE_CREATE.with_direct()).await.expect("a file can be opened twice")
}

fn batch_at(base: Offset) -> StampedBatch {
    let mut builder = BatchBuilder::new();
    let value = [0x5a; VALUE_BYTES];
    builder.append(&NewRecord { value: Some(&value), ..NewRecord::default() }).expect("one record fits");
    let options = BatchOptions { base_offset: base, leader_epoch: LeaderEpoch(1), ..BatchOptions::default() };
    let bytes = builder.finish(&options).expect("one record is a batch");
    let header = BatchHeader::parse(&bytes).expect("just built");
    StampedBatch { header, buffer_bytes: bytes.len() as u32, bytes: bytes.into() }
}

/// Up to which sequence the journal is durable, and who waits for more.
#[derive(Default)]
struct Durability {
    sequence: RefCell<u64>,
    waiting: RefCell<Option<Waker>>,
}

impl Durability {
    fn reached(&self, sequence: u64) {
        *self.sequence.borrow_mut() = sequence;
        if let Some(waker) = self.waiting.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn wait_for(&self, sequence: u64) {
        std::future::poll_fn(|context| {
            if *self.sequence.borrow() >= sequence {
                return Poll::Ready(());
            }
            *self.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

fn quantile_us(samples: &[u64], quantile: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let at = ((sorted.len() - 1) as f64 * quantile) as usize;
    sorted.get(at).map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1e3)
}
