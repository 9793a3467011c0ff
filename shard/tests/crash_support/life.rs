//! One life of a node's storage: it starts, what it finds is judged, then it works. Decides nothing about crashes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::{CoreStorage, LogId, LogSettings, StorageError, StorageSettings, TruncateError};

use super::ledger::{Coverage, Found, Ledger};
use super::script::STEPS;
use crate::storage_support::{SMALL, batch, core_of, open_directory, partition, read_all, start_cores};

/// Batches of 3,000 bytes and more go past the journal.
const BYPASSING: StorageSettings = StorageSettings { bypass_bytes: 3000, ..SMALL };
const SMALL_SEGMENTS: LogSettings =
    LogSettings { segment_bytes: 16 * 1024, index_interval_bytes: 1024, ..LogSettings::KEEP_ALL };
/// What fills a file of the journal.
const BURST_BATCHES: u64 = 40;
const BURST_BATCH_BYTES: usize = 60_000;

type Names = Rc<RefCell<BTreeMap<LogId, TopicPartition>>>;

/// A node that serves.
pub struct Node {
    io: Io,
    cores: Vec<CoreStorage>,
    names: Vec<Names>,
    logs: BTreeMap<TopicPartition, LogId>,
    ledger: Rc<RefCell<Ledger>>,
    salt: u64,
}

impl Node {
    /// Starts the node of this disk and judges what it finds.
    pub async fn open(io: Io, cores: u32, ledger: Rc<RefCell<Ledger>>) -> Node {
        let directory = open_directory(&io, Path::new("/data")).await;
        let settings = if io.random_u64().is_multiple_of(2) { SMALL } else { BYPASSING };
        let recovery = recover(&io, &directory, cores, &core_of(cores), &settings).await.expect("recovery");
        assert_eq!(recovery.report.corruption, Vec::<String>::new());
        let restored_bytes = recovery.report.restored_bytes;
        let mut node = Node {
            cores: start_cores(&io, recovery, settings).await,
            names: (0..cores).map(|_| Names::default()).collect(),
            logs: BTreeMap::new(),
            salt: io.random_u64() % 1_000_000,
            ledger,
            io,
        };
        let mut found = BTreeMap::new();
        for core in 0..node.cores.len() {
            node.open_logs(core, &mut found).await;
        }
        {
            let mut ledger = node.ledger.borrow_mut();
            ledger.judge(found);
            ledger.coverage.restored_bytes += restored_bytes;
        }
        node
    }

    async fn open_logs(&mut self, core: usize, all: &mut BTreeMap<TopicPartition, Found>) {
        let storage = self.cores[core].clone();
        for recovered in storage.take_recovered() {
            let key = recovered.key;
            let sequence = recovered.hard_state_sequence;
            let hard_state = recovered.hard_state.clone().map(|state| (sequence, state));
            assert!(hard_state.is_none() || sequence < recovered.next_sequence);
            let id = storage.open_log(recovered, SMALL_SEGMENTS, &mut |_| {}).await.expect("open");
            let bytes = read_all(&self.io, &storage, id, 1 << 20).await;
            let log = storage.log(id);
            assert!(log.damage().is_none(), "{key}: {:?}", log.damage());
            assert!(log.poison().is_none(), "{key}: {:?}", log.poison());
            let found = Found { start: log.log_start(), end: log.log_end(), bytes, hard_state };
            assert!(all.insert(key, found).is_none(), "{key} on two cores");
            self.logs.insert(key, id);
            self.names[core].borrow_mut().insert(id, key);
        }
        let (names, ledger) = (Rc::clone(&self.names[core]), Rc::clone(&self.ledger));
        storage.set_durable_listener(move |reports| {
            let (names, mut ledger) = (names.borrow(), ledger.borrow_mut());
            for report in reports {
                if let Some(key) = names.get(&report.log) {
                    ledger.tell(*key, report.sequence, report.end_offset);
                }
            }
        });
    }

    /// Does a little of everything.
    pub async fn work(&mut self) {
        for _ in 0..STEPS {
            let key = self.choose();
            let (storage, id) = self.log_of(key);
            assert_eq!(storage.poison(), None, "no failure goes unseen");
            if storage.log(id).poison().is_some() {
                // Its rewrite failed too: it takes nothing more in this life.
                self.pause(300).await;
                continue;
            }
            let choice = self.below(200);
            self.say(key, &storage, id, choice);
            match choice {
                0 if self.below(3) == 0 => self.burst(key, &storage, id).await,
                1..=12 => drop(storage.checkpoint().await.expect("checkpoint")),
                13..=20 => self.checkpoint_beside(&storage),
                21..=30 => self.settle(&storage, id).await,
                31..=46 => self.pause(4_000).await,
                47..=62 => self.persist(key, &storage, id),
                63..=72 => self.move_start(key, &storage, id).await,
                73..=77 => self.delete(key, &storage, id).await,
                choice @ 78..=110 => {
                    self.append(key, &storage, id, 1, 2_000 + (choice * 80) as usize).await;
                }
                111..=118 => self.truncate(key, &storage, id).await,
                119 | 120 => self.begin_anew(key, &storage, id).await,
                choice => {
                    let records = 1 + (choice % 4) as u32;
                    self.append(key, &storage, id, records, (choice * 3) as usize).await;
                }
            }
            if self.below(3) == 0 {
                self.pause(400).await;
            }
            self.note_coverage();
        }
    }

    /// What is about to be done, for whoever looks into a seed: with `RINGLOG_TRACE` set.
    fn say(&self, key: TopicPartition, storage: &CoreStorage, id: LogId, choice: u64) {
        if std::env::var_os("RINGLOG_TRACE").is_none() {
            return;
        }
        let log = storage.log(id);
        eprintln!(
            "{:?} {key} choice {choice}: {} to {}, durable to {}, synced to {}",
            self.io.monotonic_now(),
            log.log_start(),
            log.log_end(),
            log.durable_end(),
            log.synced_end()
        );
    }

    fn note_coverage(&self) {
        let mut coverage = Coverage::default();
        for storage in &self.cores {
            let stats = storage.stats();
            coverage.add(&Coverage {
                checkpoints: stats.checkpoints,
                carried_entries: stats.carried_entries,
                bypass_bytes: stats.bypass_bytes,
                segments_removed: stats.segments_removed,
                segments_rewritten: stats.segments_rewritten,
                logs_poisoned: stats.logs_poisoned,
                ..Coverage::default()
            });
        }
        self.ledger.borrow_mut().coverage_of_life = coverage;
    }

    fn below(&self, bound: u64) -> u64 {
        self.io.random_u64() % bound
    }

    async fn pause(&self, bound_us: u64) {
        self.io.sleep(Duration::from_micros(self.below(bound_us))).await;
    }

    /// A log that is there, or one of a few that may be. A topic id is never used twice, so there are enough of them.
    fn choose(&mut self) -> TopicPartition {
        let present = self.logs.len() as u64;
        if present >= 2 && self.below(6) > 0 {
            let nth = self.below(present) as usize;
            return *self.logs.keys().nth(nth).expect("below the count");
        }
        loop {
            let key = partition(1 + self.below(40) as u8, self.below(2) as i32);
            if self.logs.contains_key(&key) || self.ledger.borrow().is_unused(key) {
                return key;
            }
        }
    }

    fn log_of(&mut self, key: TopicPartition) -> (CoreStorage, LogId) {
        let core = core_of(self.cores.len() as u32)(key) as usize;
        let storage = self.cores[core].clone();
        let id = *self.logs.entry(key).or_insert_with(|| storage.create_log(key, SMALL_SEGMENTS));
        self.names[core].borrow_mut().insert(id, key);
        (storage, id)
    }

    async fn append(
        &mut self,
        key: TopicPartition,
        storage: &CoreStorage,
        id: LogId,
        records: u32,
        value_bytes: usize,
    ) {
        storage.room().await;
        self.salt += 1;
        let base = storage.log(id).log_end();
        let batch = batch(base, records, value_bytes, self.salt);
        let (end, bytes) = (batch.header.next_offset(), batch.bytes.clone());
        match storage.append(id, batch) {
            Ok(sequence) => self.ledger.borrow_mut().note_append(key, sequence, end, bytes),
            Err(StorageError::Poisoned(_)) => assert!(storage.log(id).poison().is_some()),
            Err(error) => panic!("{key}: {error}"),
        }
    }

    async fn burst(&mut self, key: TopicPartition, storage: &CoreStorage, id: LogId) {
        for _ in 0..BURST_BATCHES {
            self.append(key, storage, id, 1, BURST_BATCH_BYTES).await;
        }
    }

    fn checkpoint_beside(&self, storage: &CoreStorage) {
        let storage = storage.clone();
        let task = async move { drop(storage.checkpoint().await) };
        self.io.spawn(Priority::Background, task).detach();
    }

    async fn settle(&self, storage: &CoreStorage, id: LogId) {
        let is_settled = || {
            let log = storage.log(id);
            log.durable_end() == log.log_end() || log.poison().is_some()
        };
        while !is_settled() {
            self.io.sleep(Duration::from_micros(200)).await;
        }
    }

    fn persist(&mut self, key: TopicPartition, storage: &CoreStorage, id: LogId) {
        self.salt += 1;
        let state = Bytes::from(format!("vote {}", self.salt));
        let sequence = storage.persist_hard_states(vec![(id, state.clone())])[0];
        self.ledger.borrow_mut().note_state(key, sequence, state);
    }

    async fn move_start(&self, key: TopicPartition, storage: &CoreStorage, id: LogId) {
        let start = {
            let log = storage.log(id);
            // A log that begins anew is durable from its start on only with that entry.
            let span = (log.durable_end().0 - log.log_start().0).max(0) as u64;
            let share = if self.below(3) == 0 { span } else { self.below(span + 1) };
            Offset(log.log_start().0 + share as i64)
        };
        let sequence = storage.advance_log_start(id, start).expect("open");
        self.ledger.borrow_mut().note_start(key, sequence, start);
        if self.below(2) == 0 {
            match storage.log_start_durable(id, start).await {
                Ok(()) => {}
                Err(StorageError::Poisoned(_)) => assert!(storage.log(id).poison().is_some()),
                Err(error) => panic!("{key}: {error}"),
            }
        }
    }

    async fn truncate(&self, key: TopicPartition, storage: &CoreStorage, id: LogId) {
        let (start, to) = {
            let log = storage.log(id);
            let span = (log.log_end().0 - log.log_start().0) as u64;
            (log.log_start(), Offset(log.log_start().0 + self.below(span + 1) as i64))
        };
        let end = self.ledger.borrow_mut().note_truncation(key, to, start);
        let sequence = match storage.truncate(id, to).await {
            Ok(truncated) => {
                assert_eq!(truncated.end, end, "{key} was truncated to {to}");
                truncated.sequence
            }
            Err(TruncateError::Storage(StorageError::Poisoned(_))) => None,
            Err(error) => panic!("{key}: {error}"),
        };
        self.ledger.borrow_mut().note_truncated(key, sequence);
    }

    async fn begin_anew(&self, key: TopicPartition, storage: &CoreStorage, id: LogId) {
        let start = Offset(storage.log(id).log_end().0 + self.below(50) as i64);
        self.ledger.borrow_mut().note_beginning(key, start);
        let sequence = match storage.begin_anew(id, start).await {
            Ok(sequence) => Some(sequence),
            Err(TruncateError::Storage(StorageError::Poisoned(_))) => None,
            Err(error) => panic!("{key}: {error}"),
        };
        let log = storage.log(id);
        assert!(sequence.is_none() || (log.log_start(), log.log_end()) == (start, start), "{key}");
        self.ledger.borrow_mut().note_truncated(key, sequence);
    }

    async fn delete(&mut self, key: TopicPartition, storage: &CoreStorage, id: LogId) {
        self.ledger.borrow_mut().note_deletion(key);
        self.logs.remove(&key);
        storage.delete_log(id);
        if self.below(3) == 0 {
            return;
        }
        while storage.stats().deletes_pending > 0 {
            assert_eq!(storage.poison(), None, "no failure goes unseen");
            self.io.sleep(Duration::from_micros(200)).await;
        }
        self.ledger.borrow_mut().tell_deletion(key);
    }
}
