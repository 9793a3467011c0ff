//! Owns the flight record: the last events of a shard, kept in memory and written to a file only when the process dies.
//! An event is four numbers, so that recording one costs a store and formats nothing.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// Events kept for each shard; a power of two.
pub const EVENTS_MAX: usize = 512;

/// What happened. The two numbers of an event mean what each kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlightKind {
    /// The shard serves.
    ShardStarted,
    /// Draining began.
    DrainStarted,
    /// Draining is over.
    DrainEnded,
    /// [connections open]
    ConnectionOpened,
    /// [connections open]
    ConnectionClosed,
    /// The peer broke the protocol: [bytes received]
    ConnectionViolated,
    /// A limit refused something: [what was asked, limit]
    LimitReached,
    /// [API key, error code]
    RequestFailed,
    /// [API key, microseconds]
    RequestSlow,
    /// [frame sequence, microseconds]
    JournalSlow,
    /// The journal of this core failed: [frame sequence, errno]
    JournalPoisoned,
    /// [logs flushed, bytes]
    CheckpointEnded,
    /// A segment or index operation failed: [errno, log]
    StorageFailed,
    /// [partitions now, version of the image]
    MetadataChanged,
    /// [partition, term]
    LeaderElected,
    /// Out of credits towards a core: [core]
    MeshFull,
}

impl FlightKind {
    /// Name, and what its numbers are.
    fn describe(self) -> (&'static str, [&'static str; 2]) {
        match self {
            FlightKind::ShardStarted => ("shard started", ["", ""]),
            FlightKind::DrainStarted => ("drain started", ["", ""]),
            FlightKind::DrainEnded => ("drain ended", ["", ""]),
            FlightKind::ConnectionOpened => ("connection opened", ["open", ""]),
            FlightKind::ConnectionClosed => ("connection closed", ["open", ""]),
            FlightKind::ConnectionViolated => ("connection violated the protocol", ["received_bytes", ""]),
            FlightKind::LimitReached => ("limit reached", ["asked", "limit"]),
            FlightKind::RequestFailed => ("request failed", ["api", "error"]),
            FlightKind::RequestSlow => ("request slow", ["api", "us"]),
            FlightKind::JournalSlow => ("journal slow", ["frame", "us"]),
            FlightKind::JournalPoisoned => ("journal poisoned", ["frame", "errno"]),
            FlightKind::CheckpointEnded => ("checkpoint ended", ["logs", "bytes"]),
            FlightKind::StorageFailed => ("storage failed", ["errno", "log"]),
            FlightKind::MetadataChanged => ("metadata changed", ["partitions", "version"]),
            FlightKind::LeaderElected => ("leader elected", ["partition", "term"]),
            FlightKind::MeshFull => ("mesh full", ["core", ""]),
        }
    }
}

/// One event of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlightEvent {
    /// Monotonic nanoseconds.
    pub at_ns: u64,
    pub kind: FlightKind,
    pub numbers: [i64; 2],
}

impl std::fmt::Display for FlightEvent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, labels) = self.kind.describe();
        let (seconds, micros) = (self.at_ns / 1_000_000_000, self.at_ns / 1_000 % 1_000_000);
        write!(formatter, "{seconds:>10}.{micros:06} {name}")?;
        for (label, number) in labels.iter().zip(self.numbers).filter(|(label, _)| !label.is_empty()) {
            write!(formatter, " {label}={number}")?;
        }
        Ok(())
    }
}

/// The last events of one shard. Clones share the ring; all of them live on the shard's thread.
#[derive(Debug, Clone)]
pub struct FlightRecorder(Rc<Ring>);

#[derive(Debug)]
struct Ring {
    shard: u32,
    events: Box<[Cell<Option<FlightEvent>>]>,
    next: Cell<usize>,
}

thread_local! {
    /// The rings of this thread, so that a panic hook, which runs on the thread that failed, finds them without a lock.
    /// One in the broker; several where a simulation runs all shards on one thread.
    static RINGS: RefCell<Vec<Weak<Ring>>> = const { RefCell::new(Vec::new()) };
}

impl FlightRecorder {
    /// Makes the ring of a shard, on the shard's thread.
    pub fn new(shard: u32) -> FlightRecorder {
        let events = std::iter::repeat_with(|| Cell::new(None)).take(EVENTS_MAX).collect();
        let ring = Rc::new(Ring { shard, events, next: Cell::new(0) });
        RINGS.with_borrow_mut(|rings| {
            rings.retain(|ring| ring.strong_count() > 0);
            rings.push(Rc::downgrade(&ring));
        });
        FlightRecorder(ring)
    }

    pub fn record(&self, at_ns: u64, kind: FlightKind, numbers: [i64; 2]) {
        let place = self.0.next.get();
        self.0.next.set((place + 1) % EVENTS_MAX);
        self.0.events[place].set(Some(FlightEvent { at_ns, kind, numbers }));
    }

    /// Oldest first.
    pub fn events(&self) -> Vec<FlightEvent> {
        self.0.events()
    }
}

impl Ring {
    fn events(&self) -> Vec<FlightEvent> {
        let (newer, older) = self.events.split_at(self.next.get());
        older.iter().chain(newer).filter_map(Cell::get).collect()
    }
}

/// The events of every shard that runs on this thread: (shard, oldest first). For the panic hook.
pub fn events_of_this_thread() -> Vec<(u32, Vec<FlightEvent>)> {
    let collect = |rings: &RefCell<Vec<Weak<Ring>>>| {
        let rings = rings.try_borrow().ok()?;
        Some(rings.iter().filter_map(Weak::upgrade).map(|ring| (ring.shard, ring.events())).collect())
    };
    // A thread that is being torn down, or a panic inside `new`, has no record to give.
    RINGS.try_with(collect).ok().flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order() {
        let recorder = FlightRecorder::new(3);
        assert_eq!(recorder.events(), vec![]);
        for at_ns in 0..EVENTS_MAX as u64 + 10 {
            recorder.record(at_ns, FlightKind::ConnectionOpened, [at_ns as i64, 0]);
        }
        let events = recorder.events();
        assert_eq!(events.len(), EVENTS_MAX);
        let times: Vec<u64> = events.iter().map(|event| event.at_ns).collect();
        assert_eq!(times, (10..EVENTS_MAX as u64 + 10).collect::<Vec<_>>());
        let found = events_of_this_thread();
        assert!(found.contains(&(3, events)));
        drop(recorder);
        assert!(!events_of_this_thread().iter().any(|(shard, _)| *shard == 3));
    }

    #[test]
    fn an_event_prints_its_numbers_by_name() {
        let event = FlightEvent { at_ns: 12_000_345_678, kind: FlightKind::RequestFailed, numbers: [0, 19] };
        assert_eq!(event.to_string(), "        12.000345 request failed api=0 error=19");
        let event = FlightEvent { at_ns: 0, kind: FlightKind::DrainStarted, numbers: [0, 0] };
        assert_eq!(event.to_string(), "         0.000000 drain started");
    }
}
