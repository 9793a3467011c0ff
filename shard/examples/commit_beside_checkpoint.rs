//! Measures how long appends take to be durable while a checkpoint is under way, and while none is: the same offered rate
//! on the same number of logs, open loop, each append counted from the moment at which it was meant to happen. Without
//! checkpoints the journal's files are so large that none fills; with them small, so that one is always being freed.
//! Prints one JSON object.
//!
//! `cargo run --release -p ringlog-shard --example commit_beside_checkpoint [DIRECTORY] [SECONDS] [LOGS] [FILE MIB]`

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{Executor, ExecutorConfig, Io, Monotonic};
use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_shard::journal::{JournalSettings, recovery};
use ringlog_shard::storage::{
    CoreStorage, DataDirectory, Durable, Identity, LogId, LogSettings, StampedBatch, StorageSettings,
};

const VALUE_BYTES: usize = 3600;
const APPENDS_PER_SECOND: u64 = 2000;
/// Of the journal: with files that never fill one would do, and it takes two.
const IDLE_FILES: usize = 2;
const BUSY_FILES: usize = 4;
/// How often it is looked whether a checkpoint is under way.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the journal must have had its full size: what that stirred up settles.
const SETTLE: Duration = Duration::from_secs(1);
/// The warm-up waits for the journal to reach its size; a device that takes longer for that is none to measure on.
const WARM_UP_MAX: Duration = Duration::from_secs(120);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let base = PathBuf::from(arguments.next().unwrap_or_else(|| ".".to_owned()));
    let mut number = |default: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (seconds, logs, file_mib) = (number(10), number(100), number(8));
    let directory = base.join(format!("commit-beside-checkpoint-{}", std::process::id()));
    // No file fills while it is measured, although each append may take two pages and the warm-up takes time too.
    let idle_bytes = (2 * (seconds + 5) * APPENDS_PER_SECOND * 4096).clamp(64 << 20, 1 << 30) & !4095;
    let idle_journal =
        JournalSettings { file_bytes: idle_bytes, file_count_start: IDLE_FILES, file_count_max: IDLE_FILES };
    let busy_journal = JournalSettings {
        file_bytes: file_mib << 20,
        file_count_start: BUSY_FILES,
        file_count_max: BUSY_FILES,
    };
    let idle = measure(&directory.join("idle"), idle_journal, logs, seconds);
    let busy = measure(&directory.join("busy"), busy_journal, logs, seconds);
    std::fs::remove_dir_all(&directory).expect("the directory made here can be removed");
    let (idle_us, busy_us) = (sorted(&idle.quiet), sorted(&busy.beside));
    println!(
        "{{\"logs\": {logs}, \"idle_samples\": {}, \"beside_samples\": {}, \"idle_checkpoints\": {}, \
         \"beside_checkpoints\": {}, \"beside_file_waits\": {}, \"beside_share_of_time\": {:.3}, {}, {}, \"p999_ratio\": {:.3}}}",
        idle_us.len(),
        busy_us.len(),
        idle.checkpoints,
        busy.checkpoints,
        busy.file_waits,
        busy_us.len() as f64 / (busy.quiet.len() + busy.beside.len()).max(1) as f64,
        figures("idle", &idle_us),
        figures("beside", &busy_us),
        quantile_us(&busy_us, 0.999) / quantile_us(&idle_us, 0.999),
    );
}

/// Nanoseconds of each append, by whether a checkpoint was under way when it was due.
#[derive(Default)]
struct Samples {
    quiet: Vec<u64>,
    beside: Vec<u64>,
    checkpoints: u64,
    /// Times that a write waited for a journal file.
    file_waits: u64,
}

/// An append that is not durable yet.
struct Pending {
    sequence: u64,
    due: Monotonic,
    is_beside: bool,
}

/// What the listener and the load share.
#[derive(Default)]
struct Meter {
    pending: RefCell<BTreeMap<LogId, VecDeque<Pending>>>,
    samples: RefCell<Samples>,
    is_measuring: Cell<bool>,
}

impl Meter {
    fn durable(&self, reports: &[Durable], now: Monotonic) {
        let mut pending = self.pending.borrow_mut();
        for report in reports {
            let Some(waiting) = pending.get_mut(&report.log) else { continue };
            while waiting.front().is_some_and(|first| first.sequence <= report.sequence) {
                let Some(first) = waiting.pop_front() else { break };
                if self.is_measuring.get() {
                    let mut samples = self.samples.borrow_mut();
                    let kind = if first.is_beside { &mut samples.beside } else { &mut samples.quiet };
                    kind.push(now.saturating_since(first.due).as_nanos() as u64);
                }
            }
        }
    }
}

fn measure(directory: &Path, journal: JournalSettings, logs: u64, seconds: u64) -> Samples {
    let executor = Executor::new(ExecutorConfig::default()).expect("an executor can be made here");
    let io = executor.io();
    let directory = directory.to_owned();
    executor.run(async move {
        let (storage, ids) = open(&io, &directory, journal, logs).await;
        let meter = Rc::new(Meter::default());
        let (heard, clock) = (Rc::clone(&meter), io.clone());
        storage.set_durable_listener(move |reports| heard.durable(reports, clock.monotonic_now()));
        let mut load = Load::new(io.clone(), storage.clone(), ids, Rc::clone(&meter));
        load.warm_up(journal.file_count_start as u64).await;
        let before = storage.stats();
        meter.is_measuring.set(true);
        load.run(Duration::from_secs(seconds)).await;
        meter.is_measuring.set(false);
        let mut samples = meter.samples.take();
        let after = storage.stats();
        samples.checkpoints = after.checkpoints - before.checkpoints;
        samples.file_waits = after.journal.file_waits - before.journal.file_waits;
        samples
    })
}

struct Load {
    io: Io,
    storage: CoreStorage,
    logs: Vec<(LogId, Offset)>,
    period: Duration,
    meter: Rc<Meter>,
    appended: u64,
    looked_at: Monotonic,
    is_beside: bool,
}

impl Load {
    fn new(io: Io, storage: CoreStorage, logs: Vec<LogId>, meter: Rc<Meter>) -> Load {
        let looked_at = io.monotonic_now();
        let logs = logs.into_iter().map(|log| (log, Offset(0))).collect();
        let period = Duration::from_nanos(1_000_000_000 / APPENDS_PER_SECOND);
        Load { io, storage, logs, period, meter, appended: 0, looked_at, is_beside: false }
    }

    /// Until the journal has its full size, the short file with which it began was freed, and the device is calm again.
    async fn warm_up(&mut self, files: u64) {
        let deadline = self.io.monotonic_now() + WARM_UP_MAX;
        let mut ready_since = None;
        loop {
            self.run(SETTLE / 10).await;
            let (stats, now) = (self.storage.stats(), self.io.monotonic_now());
            let is_ready = stats.checkpoints >= 1 && stats.journal.files >= files;
            ready_since = ready_since.filter(|_| is_ready).or(is_ready.then_some(now));
            if ready_since.is_some_and(|since| now.saturating_since(since) >= SETTLE) {
                return;
            }
            assert!(now < deadline, "the journal has no {files} files of its size: {stats:?}");
        }
    }

    async fn run(&mut self, time: Duration) {
        let begin = self.io.monotonic_now();
        let mut due = begin;
        while due.saturating_since(begin) < time {
            self.io.sleep_until(due).await;
            self.look();
            self.storage.room().await;
            self.append(due);
            due = due + self.period;
        }
    }

    /// A file that takes no more frames is being freed: one fills, the others are free or full.
    fn look(&mut self) {
        let now = self.io.monotonic_now();
        if now.saturating_since(self.looked_at) >= LOOK_EVERY {
            self.looked_at = now;
            let journal = self.storage.stats().journal;
            self.is_beside = journal.files - journal.files_free > 1;
        }
    }

    fn append(&mut self, due: Monotonic) {
        let index = (self.appended % self.logs.len() as u64) as usize;
        self.appended += 1;
        let (log, next) = self.logs[index];
        let batch = batch_at(next);
        self.logs[index].1 = batch.header.next_offset();
        let sequence = self.storage.append(log, batch).expect("the journal takes it");
        let pending = Pending { sequence, due, is_beside: self.is_beside };
        self.meter.pending.borrow_mut().entry(log).or_default().push_back(pending);
    }
}

async fn open(io: &Io, directory: &Path, journal: JournalSettings, logs: u64) -> (CoreStorage, Vec<LogId>) {
    let settings = StorageSettings { journal, ..StorageSettings::SERVER };
    let identity = Identity { cluster_id: None, node_id: NodeId(1) };
    let opened = DataDirectory::open(io, directory, None, &identity).await.expect("the directory is new");
    let recovered = recovery::recover(io, &opened, 1, &|_| 0, &settings).await.expect("nothing to recover");
    let shard = recovered.shards.into_iter().next().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, settings).await.expect("the journal can be made");
    let key = |index| TopicPartition { topic: TopicId([7; 16]), partition: PartitionIndex(index) };
    let ids = (0..logs as i32).map(|index| storage.create_log(key(index), LogSettings::default())).collect();
    (storage, ids)
}

fn batch_at(base: Offset) -> StampedBatch {
    let mut builder = BatchBuilder::new();
    let value = [0x5a; VALUE_BYTES];
    builder.append(&NewRecord { value: Some(&value), ..NewRecord::default() }).expect("one record fits");
    let options = BatchOptions { base_offset: base, leader_epoch: LeaderEpoch(1), ..BatchOptions::default() };
    let bytes: Bytes = builder.finish(&options).expect("one record is a batch").into();
    let header = BatchHeader::parse(&bytes).expect("just built");
    StampedBatch { header, buffer_bytes: bytes.len() as u32, bytes }
}

fn sorted(samples: &[u64]) -> Vec<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted
}

fn quantile_us(sorted: &[u64], quantile: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * quantile) as usize;
    sorted.get(at).map_or(0.0, |nanoseconds| *nanoseconds as f64 / 1e3)
}

fn figures(name: &str, sorted: &[u64]) -> String {
    let [p50, p99, p999, max] = [0.5, 0.99, 0.999, 1.0].map(|quantile| quantile_us(sorted, quantile));
    format!(
        "\"{name}_p50_us\": {p50:.1}, \"{name}_p99_us\": {p99:.1}, \"{name}_p999_us\": {p999:.1}, \"{name}_max_us\": {max:.1}"
    )
}
