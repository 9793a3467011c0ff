//! Showing a log's batch headers once more: whoever makes a state of them, from a checkpoint record or from nothing, gets the
//! state of exactly the log, whatever was appended, cut off, flushed, evicted and recorded before.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{SEGMENTS_OF_64K, SMALL, batch, open_directory, partition};
use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_shard::storage::{CoreStorage, LogId, LogVisitor, ReadError, StorageSettings};

/// What is made of batches: their number, the end of the last one, and a sum in which order counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fold {
    count: u64,
    end: Offset,
    sum: u64,
}

impl Fold {
    fn add(&mut self, header: &BatchHeader) {
        self.count += 1;
        self.end = header.next_offset();
        let batch = u64::from(header.crc) ^ (header.base_offset.0 as u64) << 32;
        self.sum = self.sum.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ batch;
    }

    fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.count, self.end.0 as u64, self.sum] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Fold {
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Fold { count: words[0], end: Offset(words[1] as i64), sum: words[2] }
    }
}

/// Takes a record's word or not.
#[derive(Default)]
struct Visitor {
    takes_records: bool,
    fold: Fold,
    offered: u64,
    shown: u64,
}

impl LogVisitor for Visitor {
    fn restore(&mut self, producers: Option<&[u8]>) -> bool {
        self.offered += 1;
        if self.takes_records {
            self.fold = Fold::decode(producers.expect("there is a source"));
        }
        self.takes_records
    }

    fn batch(&mut self, header: &BatchHeader) {
        assert!(header.base_offset >= self.fold.end, "in order, each once");
        self.shown += 1;
        self.fold.add(header);
    }
}

#[derive(Default)]
struct Reached {
    taken: Cell<u64>,
    refused: Cell<u64>,
    whole: Cell<u64>,
    spared: Cell<u64>,
}

fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

struct Log {
    io: Io,
    storage: CoreStorage,
    id: LogId,
    /// All batches of the log.
    headers: Vec<BatchHeader>,
    /// What the caller keeps of them, as a partition keeps its producers.
    kept: Rc<RefCell<Fold>>,
}

impl Log {
    async fn open(io: Io, settings: StorageSettings, headers: Vec<BatchHeader>) -> Log {
        let directory = open_directory(&io, Path::new("/data")).await;
        let storage =
            crate::storage_support::start(&io, &directory, 1, settings).await.pop().expect("one core");
        let mut visitor = Visitor { takes_records: true, ..Visitor::default() };
        let id = match storage.take_recovered().pop() {
            Some(found) => storage.open_log_from(found, SEGMENTS_OF_64K, &mut visitor).await.expect("open"),
            None => storage.create_log(partition(1, 0), SEGMENTS_OF_64K),
        };
        let kept = Rc::new(RefCell::new(visitor.fold));
        let source = Rc::clone(&kept);
        // While a log was cut and this is not made anew yet, it is of another offset than the log's end.
        storage.set_snapshot_source(move |_, out| {
            source.borrow().encode(out);
            Some(source.borrow().end)
        });
        Log { io, storage, id, headers, kept }
    }

    fn expected(&self) -> Fold {
        let mut fold = Fold::default();
        self.headers.iter().for_each(|header| fold.add(header));
        fold
    }

    async fn append(&mut self, records: u32, value_bytes: usize, salt: u64) {
        self.storage.room().await;
        let batch = batch(self.storage.log(self.id).log_end(), records, value_bytes, salt);
        let header = batch.header;
        self.storage.append(self.id, batch).expect("append");
        self.headers.push(header);
        self.kept.borrow_mut().add(&header);
    }

    /// Makes the state anew.
    async fn visit(&self, takes_records: bool, reached: &Reached) {
        let mut visitor = Visitor { takes_records, ..Visitor::default() };
        self.storage.visit_headers(self.id, &mut visitor).await.expect("sound");
        assert_eq!(visitor.fold, self.expected());
        *self.kept.borrow_mut() = visitor.fold;
        bump(match (visitor.offered, takes_records) {
            (0, _) => &reached.whole,
            (_, true) => &reached.taken,
            (_, false) => &reached.refused,
        });
        if visitor.shown < visitor.fold.count {
            bump(&reached.spared);
        }
    }

    async fn step(&mut self, choice: u64, reached: &Reached) {
        let random = self.io.random_u64();
        match choice {
            0 => drop(self.storage.checkpoint().await.expect("checkpoint")),
            1 | 2 => self.visit(random.is_multiple_of(3), reached).await,
            3 | 4 => {
                let (start, end) =
                    (self.storage.log(self.id).log_start(), self.storage.log(self.id).log_end());
                let back =
                    random % (1 + (end.0 - start.0) as u64).min([4, 30, 10_000][(random % 3) as usize]);
                let to = self.storage.truncate(self.id, Offset(end.0 - back as i64)).await.expect("cut").end;
                self.headers.retain(|header| header.base_offset < to);
                self.visit(true, reached).await;
            }
            5 if random.is_multiple_of(3) => {
                let end = self.storage.log(self.id).log_end();
                let start = Offset(end.0 + [0, (random % 90) as i64][(random % 2) as usize]);
                self.storage.begin_anew(self.id, start).await.expect("begun");
                self.headers.clear();
                self.visit(true, reached).await;
            }
            choice => {
                self.append(1 + (choice % 3) as u32, (choice * choice * 3) as usize, random % 99_991).await;
            }
        }
        if random.is_multiple_of(5) {
            self.io.sleep(Duration::from_micros(random % 900)).await;
        }
    }
}

fn simulate(seed: u64, reached: &Rc<Reached>) {
    let world = World::new(seed);
    let host = world.host("node");
    let headers = Rc::new(RefCell::new(Vec::new()));
    // Little memory: clean batches are evicted, and read from files.
    let settings = StorageSettings {
        tail_bytes_max: 2 * 1024 * 1024,
        bypass_bytes: if seed.is_multiple_of(2) { 0 } else { 3000 },
        ..SMALL
    };
    for _ in 0..3 {
        let io = host.executor();
        let done = Rc::new(Cell::new(false));
        let task = {
            let (io, done, headers, reached) =
                (io.clone(), Rc::clone(&done), Rc::clone(&headers), Rc::clone(reached));
            async move {
                let mut log = Log::open(io.clone(), settings, headers.take()).await;
                assert_eq!(*log.kept.borrow(), log.expected(), "a start finds the same");
                for _ in 0..120 {
                    let choice = io.random_u64() % 40;
                    log.step(choice, &reached).await;
                }
                log.storage.checkpoint().await.expect("checkpoint");
                // Batches on their way past the journal are made durable by their own writes, not by a checkpoint.
                while log.storage.log(log.id).durable_end() < log.storage.log(log.id).log_end() {
                    io.sleep(Duration::from_micros(100)).await;
                }
                log.visit(true, &reached).await;
                *headers.borrow_mut() = std::mem::take(&mut log.headers);
                done.set(true);
                std::future::pending::<()>().await;
            }
        };
        io.spawn(Priority::Foreground, task).detach();
        assert_eq!(world.run_until(|| done.get(), Duration::from_secs(600)), Outcome::Done, "seed {seed}");
        host.crash();
    }
}

#[test]
fn a_state_made_anew_is_that_of_the_log_after_any_cut_flush_and_start() {
    let seeds = std::env::var("RINGLOG_SEEDS").map_or(25, |count| count.parse().expect("a number"));
    let reached = Rc::new(Reached::default());
    for seed in 0..seeds {
        simulate(seed, &reached);
    }
    let counts = [&reached.taken, &reached.refused, &reached.whole, &reached.spared].map(Cell::get);
    assert!(counts.iter().all(|count| *count > seeds / 2), "{counts:?}");
}

#[test]
fn a_log_that_is_gone_is_said_to_be() {
    crate::storage_support::on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        storage.append(id, batch(Offset(0), 3, 10, 1)).expect("append");
        let mut visitor = Visitor::default();
        storage.visit_headers(id, &mut visitor).await.expect("in memory");
        assert_eq!((visitor.offered, visitor.fold.end), (0, Offset(3)));
        storage.delete_log(id);
        let gone = storage.visit_headers(id, &mut visitor).await;
        assert!(matches!(gone, Err(ReadError::UnknownLog)));
    });
}
