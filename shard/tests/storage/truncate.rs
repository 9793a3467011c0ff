//! Truncation: whatever the moment of a crash, a start finds the log as it was after some change that came no earlier than
//! the last acknowledged one: cut where it was cut, with what was appended since, and nothing that was cut off comes back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{
    SEGMENTS_OF_64K, SMALL, core_of, on_driver, open_directory, partition, read_all,
};
use bytes::Bytes;
use ringlog_io::sim::{Host, Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_protocol::records::batch::{BatchHeader, batches};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::log::EpochStart;
use ringlog_shard::storage::{
    CoreStorage, Durable, EpochEnd, LogId, LogVisitor, StampedBatch, StorageSettings, TruncateError,
};

const SETTINGS: [StorageSettings; 2] = [SMALL, StorageSettings { bypass_bytes: 3000, ..SMALL }];

fn epoch_batch(base: Offset, epoch: i32, records: u32, value_bytes: usize, timestamp: i64) -> StampedBatch {
    let mut builder = BatchBuilder::new();
    for record in 0..records {
        let mut value = format!("{epoch}/{}/{record}/", base.0).into_bytes();
        value.resize(value_bytes.max(value.len()), b'.');
        let record = NewRecord { timestamp, key: None, value: Some(&value), headers: &[] };
        builder.append(&record).expect("a small record");
    }
    let leader_epoch = LeaderEpoch(epoch);
    let options = BatchOptions { base_offset: base, leader_epoch, ..BatchOptions::default() };
    let bytes = Bytes::from(builder.finish(&options).expect("a small batch"));
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    StampedBatch { header, bytes, buffer_bytes }
}

fn header_of(bytes: &Bytes) -> BatchHeader {
    BatchHeader::parse(bytes).expect("a batch of ours")
}

/// One log after one change.
#[derive(Clone, Debug, Default)]
struct State {
    sequence: u64,
    batches: Vec<Bytes>,
    end: Offset,
}

/// What one partition was through since it was last found whole.
#[derive(Debug)]
struct History {
    states: Vec<State>,
    acknowledged: u64,
    /// Asked for, and so at most found.
    log_start: Offset,
    epoch: i32,
}

impl History {
    fn newest(&self) -> &State {
        self.states.last().expect("never empty")
    }

    fn push(&mut self, sequence: u64, batches: Vec<Bytes>, end: Offset) {
        self.states.push(State { sequence, batches, end });
    }
}

impl Default for History {
    fn default() -> Self {
        History { states: vec![State::default()], acknowledged: 0, log_start: Offset(0), epoch: 1 }
    }
}

type Histories = Rc<RefCell<BTreeMap<TopicPartition, History>>>;

struct Node {
    storage: CoreStorage,
    logs: BTreeMap<TopicPartition, LogId>,
    histories: Histories,
}

/// What the lives of all seeds reached.
#[derive(Default)]
struct Reached {
    truncations: Cell<u64>,
    mid_batch: Cell<u64>,
    replays: Cell<u64>,
    lives: Cell<u64>,
}

fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

/// Takes a checkpoint's word or wants to see all.
struct Visitor {
    spares: bool,
}

impl LogVisitor for Visitor {
    fn restore(&mut self, _producers: Option<&[u8]>) -> bool {
        self.spares
    }

    fn batch(&mut self, _header: &BatchHeader) {}
}

impl Node {
    async fn open(io: &Io, histories: &Histories, settings: StorageSettings) -> Node {
        let directory = open_directory(io, Path::new("/data")).await;
        let recovery = recover(io, &directory, 1, &core_of(1), &settings).await.expect("recovery");
        assert_eq!(recovery.report.corruption, Vec::<String>::new());
        let shard = recovery.shards.into_iter().next().expect("one core");
        let storage = CoreStorage::start(io.clone(), shard, settings).await.expect("start");
        let mut logs = BTreeMap::new();
        for recovered in storage.take_recovered() {
            let key = recovered.key;
            let mut visitor = Visitor { spares: io.random_u64().is_multiple_of(2) };
            let opened = storage.open_log_from(recovered, SEGMENTS_OF_64K, &mut visitor).await;
            logs.insert(key, opened.expect("open"));
        }
        let node = Node { storage, logs, histories: Rc::clone(histories) };
        node.check_all(io).await;
        node.listen();
        node
    }

    fn create(&mut self, key: TopicPartition) {
        if !self.logs.contains_key(&key) {
            self.logs.insert(key, self.storage.create_log(key, SEGMENTS_OF_64K));
            self.histories.borrow_mut().entry(key).or_default();
            self.listen();
        }
    }

    fn listen(&self) {
        let names: BTreeMap<LogId, TopicPartition> = self.logs.iter().map(|(key, id)| (*id, *key)).collect();
        let histories = Rc::clone(&self.histories);
        self.storage.set_durable_listener(move |reports: &[Durable]| {
            for report in reports {
                let mut histories = histories.borrow_mut();
                let history = names.get(&report.log).and_then(|key| histories.get_mut(key));
                let history = history.expect("a log of ours");
                assert!(report.sequence > history.acknowledged, "in order");
                history.acknowledged = report.sequence;
            }
        });
    }

    async fn append(&self, key: TopicPartition, records: u32, value_bytes: usize, timestamp: i64) {
        self.storage.room().await;
        let id = self.logs[&key];
        let base = self.storage.log(id).log_end();
        let mut histories = self.histories.borrow_mut();
        let history = histories.get_mut(&key).expect("created");
        let batch = epoch_batch(base, history.epoch, records, value_bytes, timestamp);
        let (mut batches, end) = (history.newest().batches.clone(), batch.header.next_offset());
        batches.push(batch.bytes.clone());
        let sequence = self.storage.append(id, batch).expect("append");
        history.push(sequence, batches, end);
    }

    /// Truncates and compares with what should be left; a new leader's epoch begins.
    async fn truncate(&self, key: TopicPartition, to: Offset) -> bool {
        let id = self.logs[&key];
        let truncated = self.storage.truncate(id, to).await.expect("truncate");
        let mut histories = self.histories.borrow_mut();
        let history = histories.get_mut(&key).expect("created");
        history.epoch += 1;
        let Some(sequence) = truncated.sequence else {
            assert!(to >= history.newest().end);
            return false;
        };
        let mut batches = history.newest().batches.clone();
        while batches.last().is_some_and(|batch| header_of(batch).next_offset() > to) {
            batches.pop();
        }
        let boundary = batches.last().map_or(Offset(0), |batch| header_of(batch).next_offset());
        let end = boundary.max(self.storage.log(id).log_start());
        assert_eq!(truncated.end, end, "{key} to {to}");
        history.push(sequence, batches, end);
        boundary < to
    }

    async fn check_all(&self, io: &Io) {
        // Of which nothing was durable there is no trace.
        self.histories.borrow_mut().retain(|key, history| {
            assert!(self.logs.contains_key(key) || history.acknowledged == 0, "{key} is gone");
            self.logs.contains_key(key)
        });
        for (key, id) in &self.logs {
            let (log_start, log_end, damage) = {
                let log = self.storage.log(*id);
                (log.log_start(), log.log_end(), log.damage().cloned())
            };
            assert_eq!(damage, None, "{key}");
            let found = read_all(io, &self.storage, *id, 100_000).await;
            let state = self.found_state(*key, (log_start, log_end), &found);
            self.check_derived(io, *id, &state, log_start).await;
            // Sequences go on behind those found; what was under way counts no more.
            let mut histories = self.histories.borrow_mut();
            let history = histories.get_mut(key).expect("just looked at");
            *history = History {
                states: vec![State { sequence: 0, ..state }],
                acknowledged: 0,
                log_start,
                epoch: history.epoch + 1,
            };
        }
    }

    /// The state of the log that was found.
    fn found_state(&self, key: TopicPartition, found_range: (Offset, Offset), found: &[u8]) -> State {
        let (log_start, log_end) = found_range;
        let mut histories = self.histories.borrow_mut();
        let history = histories.entry(key).or_default();
        assert!(log_start <= history.log_start, "{key}: starts at {log_start}");
        let visible = |state: &State| -> Vec<u8> {
            let is_left = |batch: &&Bytes| header_of(batch).next_offset() > log_start;
            let left: Vec<Bytes> = state.batches.iter().filter(is_left).cloned().collect();
            left.concat()
        };
        let is_it = |state: &&State| {
            state.sequence >= history.acknowledged
                && state.end.max(log_start) == log_end
                && visible(state) == found
        };
        let state = history.states.iter().rev().find(is_it).cloned();
        state.unwrap_or_else(|| {
            let ends: Vec<_> = history.states.iter().map(|state| (state.sequence, state.end)).collect();
            panic!(
                "{key}: found {log_start} to {log_end}, {} bytes; acknowledged {}, states {ends:?}",
                found.len(),
                history.acknowledged
            )
        })
    }

    /// Epochs, the largest timestamp and the search for it are those of the batches that are left.
    async fn check_derived(&self, io: &Io, id: LogId, state: &State, log_start: Offset) {
        let headers: Vec<BatchHeader> = state.batches.iter().map(header_of).collect();
        let mut epochs: Vec<EpochStart> = Vec::new();
        for header in &headers {
            if epochs.last().is_none_or(|last| last.epoch < header.leader_epoch) {
                epochs.push(EpochStart { epoch: header.leader_epoch, start: header.base_offset });
            }
        }
        let in_start = epochs.partition_point(|epoch| epoch.start <= log_start).saturating_sub(1);
        epochs.drain(..in_start);
        if let Some(first) = epochs.first_mut().filter(|first| first.start < log_start) {
            first.start = log_start;
        }
        if headers.last().is_some_and(|last| last.next_offset() > log_start) {
            assert_eq!(self.storage.log(id).epochs(), epochs);
        }
        let newest = headers.iter().map(|header| header.max_timestamp).max();
        if log_start == Offset(0) {
            assert_eq!(self.storage.log(id).max_timestamp(), newest);
            let plan = self.storage.plan_newest(id, state.end).expect("open");
            let hit = plan.run(io).await.expect("sound");
            assert_eq!(hit.map(|hit| hit.timestamp), newest);
            let first = headers.iter().find(|header| Some(header.max_timestamp) == newest);
            assert_eq!(hit.map(|hit| hit.offset), first.map(|header| header.base_offset));
        }
    }
}

async fn live(io: Io, histories: Histories, settings: StorageSettings, reached: Rc<Reached>) {
    let mut node = Node::open(&io, &histories, settings).await;
    bump(&reached.lives);
    loop {
        let key = partition(1, (io.random_u64() % 2) as i32);
        node.create(key);
        let id = node.logs[&key];
        let (log_start, log_end, durable_end) = {
            let log = node.storage.log(id);
            (log.log_start(), log.log_end(), log.durable_end())
        };
        match io.random_u64() % 60 {
            0 | 1 => {
                node.storage.checkpoint().await.expect("checkpoint");
            }
            2..=6 => {
                let span = (log_end.0 - log_start.0) as u64;
                let back = io.random_u64() % (1 + span.min([5, 60, 100_000][(io.random_u64() % 3) as usize]));
                reached.truncations.set(reached.truncations.get() + 1);
                if node.truncate(key, Offset(log_end.0 - back as i64)).await {
                    bump(&reached.mid_batch);
                }
            }
            7 if durable_end > log_start => {
                let span = (durable_end.0 - log_start.0) as u64;
                let start = Offset(log_start.0 + (io.random_u64() % (1 + span / 3)) as i64);
                let sequence = node.storage.advance_log_start(id, start).expect("open");
                let mut histories = node.histories.borrow_mut();
                let history = histories.get_mut(&key).expect("created");
                history.log_start = start;
                let newest = history.newest().clone();
                history.states.push(State { sequence, ..newest });
            }
            8 => {
                // What is in memory must be what a reader sees, at any moment.
                let found = read_all(&io, &node.storage, id, 20_000).await;
                let histories = node.histories.borrow();
                let state = histories[&key].newest();
                let is_left = |batch: &&Bytes| header_of(batch).next_offset() > log_start;
                let left: Vec<Bytes> = state.batches.iter().filter(is_left).cloned().collect();
                let bases = |bytes: &[u8]| -> Vec<(i64, i32)> {
                    let all = batches(bytes).map(|batch| batch.expect("whole").header);
                    all.map(|header| (header.base_offset.0, header.leader_epoch.0)).collect()
                };
                assert_eq!(bases(&found), bases(&left.concat()), "{key}");
                assert!(found == left.concat());
            }
            choice => {
                let timestamp = 1_700_000_000_000 + (io.random_u64() % 5000) as i64;
                node.append(key, 1 + (choice % 4) as u32, (choice * choice) as usize, timestamp).await;
            }
        }
        if io.random_u64().is_multiple_of(4) {
            io.sleep(Duration::from_micros(io.random_u64() % 300)).await;
        }
    }
}

fn check_at_end(world: &World, host: &Host, histories: &Histories, settings: StorageSettings, what: &str) {
    let io = host.executor();
    let done = Rc::new(Cell::new(false));
    let last = {
        let (io, histories, done) = (io.clone(), Rc::clone(histories), Rc::clone(&done));
        async move {
            drop(Node::open(&io, &histories, settings).await);
            done.set(true);
        }
    };
    io.spawn(Priority::Foreground, last).detach();
    assert_eq!(world.run_until(|| done.get(), Duration::from_secs(600)), Outcome::Done, "{what}");
}

#[test]
fn power_cuts_around_truncations_leave_the_log_as_it_was_after_some_change() {
    let seeds = std::env::var("RINGLOG_SEEDS").map_or(30, |count| count.parse().expect("a number"));
    let reached = Rc::new(Reached::default());
    for seed in 0..seeds {
        let world = World::new(seed);
        let host = world.host("node");
        let histories = Histories::default();
        for life in 0..5 {
            let settings = SETTINGS[((seed + life) % 2) as usize];
            let io = host.executor();
            let task = live(io.clone(), Rc::clone(&histories), settings, Rc::clone(&reached));
            io.spawn(Priority::Foreground, task).detach();
            world.run_for(Duration::from_micros(world.random_u64() % 200_000));
            host.crash();
        }
        check_at_end(&world, &host, &histories, SETTINGS[0], &format!("seed {seed}"));
    }
    let (truncations, lives) = (reached.truncations.get(), reached.lives.get());
    assert!(truncations > 10 * seeds && lives > seeds, "{truncations} truncations, {lives} lives");
    assert!(reached.mid_batch.get() > seeds, "{} within a batch", reached.mid_batch.get());
}

/// One script, over three segments: synced, cut in the first one, appended, synced. `events` after the cut began the power
/// goes. Returns whether the script had ended.
fn crash_after(events: u64, unsynced: UnsyncedData, settings: StorageSettings, reached: &Reached) -> bool {
    let world = World::new(7);
    let host = world.host("node");
    let histories = Histories::default();
    let (has_begun, has_ended) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let io = host.executor();
    let script = {
        let (io, histories) = (io.clone(), Rc::clone(&histories));
        let (has_begun, has_ended) = (Rc::clone(&has_begun), Rc::clone(&has_ended));
        async move {
            let key = partition(1, 0);
            let mut node = Node::open(&io, &histories, settings).await;
            node.create(key);
            for number in 0..36 {
                node.append(key, 2, 2000, 1_700_000_000_000 + number % 7).await;
            }
            node.storage.checkpoint().await.expect("checkpoint");
            let id = node.logs[&key];
            assert!(node.storage.log(id).segment_count() >= 3);
            has_begun.set(true);
            node.truncate(key, Offset(21)).await;
            assert_eq!(node.storage.log(id).segment_count(), 1);
            for number in 0..20 {
                node.append(key, 2, 2000, 1_700_000_000_000 + number % 7).await;
            }
            node.storage.checkpoint().await.expect("checkpoint");
            has_ended.set(true);
            std::future::pending::<()>().await;
        }
    };
    io.spawn(Priority::Foreground, script).detach();
    assert_eq!(world.run_until(|| has_begun.get(), Duration::from_secs(60)), Outcome::Done);
    let at = world.event_count() + events;
    world.run_until(|| world.event_count() >= at || has_ended.get(), Duration::from_secs(60));
    host.crash_with(unsynced);
    let is_between = {
        let histories = histories.borrow();
        let history = &histories[&partition(1, 0)];
        let cut = history.states.iter().find(|state| state.end == Offset(20) && state.batches.len() == 10);
        history.states.len() > 37 && cut.is_some_and(|cut| history.acknowledged >= cut.sequence)
    };
    if is_between && !has_ended.get() {
        bump(&reached.replays);
    }
    check_at_end(&world, &host, &histories, settings, &format!("{events} events, {unsynced:?}"));
    has_ended.get()
}

#[test]
fn a_power_cut_after_every_step_of_a_truncation_leaves_it_done_or_not_begun() {
    for settings in SETTINGS {
        let reached = Reached::default();
        for unsynced in [UnsyncedData::Lost, UnsyncedData::Kept] {
            let mut events = 0;
            while !crash_after(events, unsynced, settings, &reached) {
                // Densely at first, where the entry, the cut and the first writes lie.
                events += if events < 120 { 1 } else { 1 + events / 40 };
            }
            assert!(events > 20, "the script has steps to stop at");
        }
        assert!(reached.replays.get() > 10, "{} cuts between entry and files", reached.replays.get());
    }
}

#[test]
fn epochs_end_where_the_next_one_begins() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        let ends = |epoch| storage.log(id).epoch_end_offset(LeaderEpoch(epoch));
        assert_eq!(ends(0), None, "no epoch is known");
        for (epoch, records) in [(2, 5), (2, 5), (5, 10), (7, 1)] {
            let base = storage.log(id).log_end();
            storage.append(id, epoch_batch(base, epoch, records, 10, 1)).expect("append");
        }
        let end =
            |epoch, end_offset| Some(EpochEnd { epoch: LeaderEpoch(epoch), end_offset: Offset(end_offset) });
        assert_eq!(ends(-1), None);
        assert_eq!(ends(1), end(1, 0), "older than all: ends where the first begins");
        assert_eq!(ends(2), end(2, 10));
        assert_eq!(ends(4), end(2, 10), "the newest one before it");
        assert_eq!(ends(5), end(5, 20));
        assert_eq!(ends(7), end(7, 21));
        assert_eq!(ends(9), end(7, 21));
        storage.truncate(id, Offset(15)).await.expect("truncate");
        assert_eq!(storage.log(id).log_end(), Offset(10), "to the boundary below");
        assert_eq!(ends(7), end(2, 10));
    });
}

#[test]
fn a_truncation_below_the_start_is_refused_and_one_to_the_start_empties_the_log() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        for _ in 0..4 {
            let base = storage.log(id).log_end();
            storage.append(id, epoch_batch(base, 1, 10, 10, 1)).expect("append");
        }
        storage.advance_log_start(id, Offset(15)).expect("open");
        let refused = storage.truncate(id, Offset(14)).await;
        assert!(matches!(
            refused,
            Err(TruncateError::BelowLogStart { to: Offset(14), log_start: Offset(15) })
        ));
        assert_eq!(
            refused.expect_err("below the start").to_string(),
            "cannot truncate to offset 14: the log starts at 15"
        );
        let nothing = storage.truncate(id, Offset(40)).await.expect("nothing to do");
        assert_eq!((nothing.end, nothing.sequence), (Offset(40), None));
        let emptied = storage.truncate(id, Offset(17)).await.expect("truncate");
        assert_eq!(emptied.end, Offset(15), "no offset below the start comes back");
        assert_eq!(storage.log(id).segment_count(), 0);
        assert_eq!(storage.stats().dirty_bytes, 0);
        storage.append(id, epoch_batch(Offset(15), 2, 3, 10, 1)).expect("append");
        assert_eq!(storage.log(id).log_end(), Offset(18));
    });
}

#[test]
fn a_reader_with_a_plan_gets_nothing_of_what_was_cut_off() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = crate::storage_support::start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        for number in 0..200 {
            storage.room().await;
            let base = storage.log(id).log_end();
            storage.append(id, epoch_batch(base, 1, 1, 2000, number)).expect("append");
        }
        storage.checkpoint().await.expect("checkpoint");
        // Only what is not in memory is read from files.
        drop(storage);
        let storage = crate::storage_support::start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let recovered = storage.take_recovered().pop().expect("one partition");
        let id = storage.open_log(recovered, SEGMENTS_OF_64K, &mut |_| {}).await.expect("open");
        let plan = |from, limit| storage.plan_read(id, Offset(from), Offset(limit), 1 << 20, true);
        let (above, across, removed) = (
            plan(10, 200).expect("in range"),
            plan(2, 8).expect("in range"),
            plan(150, 200).expect("in range"),
        );
        storage.truncate(id, Offset(8)).await.expect("truncate");
        assert_eq!(above.run(&io).await.expect("no damage").bytes, 0);
        assert_eq!(removed.run(&io).await.expect("no damage").bytes, 0);
        assert_eq!(across.run(&io).await.expect("kept").next_offset, Offset(8), "what is left is served");
        assert_eq!(storage.damaged(), Vec::new());
        assert!(plan(9, 200).is_err(), "out of range from now on");
        storage.checkpoint().await.expect("checkpoint");
        let sizes: Vec<usize> = crate::storage_support::segments(folder.path())
            .iter()
            .filter(|(name, _)| name.ends_with(".log"))
            .map(|(_, bytes)| bytes.len())
            .collect();
        let kept: usize = (0..8).map(|base| epoch_batch(Offset(base), 1, 1, 2000, base).bytes.len()).sum();
        assert_eq!(sizes, [kept], "the files are cut");
    });
}
