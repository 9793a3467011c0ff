//! How fast a checkpoint goes: its work is spread over the time in which the next journal file is expected to fill, and goes
//! at full speed once files run out. Owns the bound on bytes written and not yet synced. Decides, writes nothing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use ringlog_io::Monotonic;

use super::core_storage::Inner;
use crate::journal::{JournalPressure, Signal};
use crate::limits::{
    CHECKPOINT_LOG_COST_BYTES, CHECKPOINT_PACE_STEP_MS, CHECKPOINT_SPREAD_MS_MAX,
    CHECKPOINT_UNSYNCED_BYTES_MAX, LAG_SAMPLE_MS, LAG_SAMPLES_MAX,
};

/// When each part of a checkpoint's work is due. A value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    started_at: Monotonic,
    /// Time for all of it while one full file waits; none = full speed.
    span: Duration,
    /// Bytes, and [`CHECKPOINT_LOG_COST_BYTES`] for each log.
    work: u64,
}

impl Schedule {
    /// Full speed.
    pub(super) fn at_once(now: Monotonic) -> Schedule {
        Schedule { started_at: now, span: Duration::ZERO, work: 0 }
    }

    /// Spreads `work` over three quarters of the time that the last file took to fill: the rest is slack.
    pub(super) fn spread(now: Monotonic, fill_time: Duration, work: u64) -> Schedule {
        let span = fill_time.mul_f64(0.75).min(Duration::from_millis(CHECKPOINT_SPREAD_MS_MAX));
        Schedule { started_at: now, span, work }
    }

    /// How long the part that follows the first `done` waits. Each further full file halves the time for all, and without
    /// a free file, or room for one more, nothing waits.
    pub(super) fn wait(&self, now: Monotonic, done: u64, pressure: JournalPressure) -> Duration {
        if self.span.is_zero() || self.work == 0 || pressure.is_out() {
            return Duration::ZERO;
        }
        let late = u32::try_from(pressure.files_filled.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        let span = self.span / (1 << late);
        let due_after = span.mul_f64(done.min(self.work) as f64 / self.work as f64);
        due_after.saturating_sub(now.saturating_since(self.started_at))
    }
}

/// One checkpoint's progress along its schedule, shared by its workers.
pub(super) struct Pacer {
    schedule: Schedule,
    done: Cell<u64>,
}

impl Pacer {
    pub(super) fn new(schedule: Schedule) -> Pacer {
        Pacer { schedule, done: Cell::new(0) }
    }

    /// Waits until the next `bytes` are due and counts them.
    pub(super) async fn turn(&self, inner: &Inner, bytes: u64) {
        let done = self.done.get();
        self.done.set(done + bytes);
        loop {
            let wait = self.schedule.wait(inner.io.monotonic_now(), done, inner.journal.pressure());
            if wait.is_zero() || inner.must_hurry() {
                return;
            }
            // In steps: the journal may fill faster meanwhile.
            inner.io.sleep(wait.min(Duration::from_millis(CHECKPOINT_PACE_STEP_MS))).await;
        }
    }

    /// A log is done: its sync was work too.
    pub(super) fn log_done(&self) {
        self.done.set(self.done.get() + CHECKPOINT_LOG_COST_BYTES);
    }
}

impl Inner {
    /// Whether something waits for the checkpoint to end: a caller, appends for memory, records or a deleted folder for
    /// their turn.
    fn must_hurry(&self) -> bool {
        let core = self.core.borrow();
        self.flush.hurrying.get() > 0
            || self.wants_checkpoint(&core)
            || self.wants_records(&core)
            || core.has_folder_to_remove()
    }
}

/// What a core's flushes share. Lives as long as the core's storage.
pub(super) struct FlushControl {
    /// Reserved by writes that are not yet synced.
    unsynced_bytes: Cell<u64>,
    room: Signal,
    /// When a journal file filled last, and how long the last two took.
    filled_at: Cell<Monotonic>,
    fill_times: Cell<[Option<Duration>; 2]>,
    /// How many wait for a checkpoint to end.
    hurrying: Cell<u32>,
    /// The file system cannot reserve space; found out once.
    cannot_allocate: Cell<bool>,
    /// Batches with lower stamps came before this time; oldest first.
    samples: RefCell<VecDeque<(u64, Monotonic)>>,
}

impl FlushControl {
    pub(super) fn new(now: Monotonic) -> FlushControl {
        FlushControl {
            unsynced_bytes: Cell::new(0),
            room: Signal::default(),
            filled_at: Cell::new(now),
            fill_times: Cell::default(),
            hurrying: Cell::new(0),
            cannot_allocate: Cell::new(false),
            samples: RefCell::default(),
        }
    }

    /// A journal file takes no more frames.
    pub(super) fn note_file_filled(&self, now: Monotonic) {
        let [last, _] = self.fill_times.get();
        self.fill_times.set([Some(now.saturating_since(self.filled_at.replace(now))), last]);
    }

    /// How fast the next file is expected to fill: as the faster of the last two.
    pub(super) fn fill_time(&self) -> Duration {
        self.fill_times.get().into_iter().flatten().min().unwrap_or(Duration::ZERO)
    }

    /// While it lives nothing waits for its pace.
    pub(super) fn hurry(&self) -> Hurry<'_> {
        self.hurrying.set(self.hurrying.get() + 1);
        Hurry { control: self }
    }

    /// Waits until `bytes` more may be written without a sync. More than the bound is let through alone.
    pub(super) async fn reserve(&self, bytes: u64) -> Unsynced<'_> {
        self.room
            .until(|| {
                let unsynced = self.unsynced_bytes.get();
                (unsynced == 0 || unsynced + bytes <= CHECKPOINT_UNSYNCED_BYTES_MAX).then_some(())
            })
            .await;
        self.unsynced_bytes.set(self.unsynced_bytes.get() + bytes);
        Unsynced { control: self, bytes }
    }

    pub(super) fn unsynced_bytes(&self) -> u64 {
        self.unsynced_bytes.get()
    }

    pub(super) fn can_allocate(&self) -> bool {
        !self.cannot_allocate.get()
    }

    pub(super) fn note_cannot_allocate(&self) {
        self.cannot_allocate.set(true);
    }

    /// Every batch with a stamp up to `newest` has come. Called once a frame.
    pub(super) fn sample(&self, newest: u64, now: Monotonic) {
        let mut samples = self.samples.borrow_mut();
        let is_new = samples.back().is_none_or(|(stamp, time)| {
            newest > *stamp && now.saturating_since(*time) >= Duration::from_millis(LAG_SAMPLE_MS)
        });
        if !is_new {
            return;
        }
        if samples.len() == LAG_SAMPLES_MAX {
            // Coarser over longer: what is old is told to twice the step.
            let mut keep = false;
            samples.retain(|_| {
                keep = !keep;
                keep
            });
        }
        samples.push_back((newest, now));
    }

    /// How long the batch of this stamp, the oldest unflushed one, has waited.
    pub(super) fn age(&self, oldest: Option<u64>, now: Monotonic) -> Duration {
        let mut samples = self.samples.borrow_mut();
        let Some(oldest) = oldest else {
            samples.clear();
            return Duration::ZERO;
        };
        while samples.len() > 1 && samples.front().is_some_and(|(stamp, _)| *stamp < oldest) {
            samples.pop_front();
        }
        samples
            .front()
            .filter(|(stamp, _)| *stamp >= oldest)
            .map_or(Duration::ZERO, |(_, time)| now.saturating_since(*time))
    }
}

/// Somebody waits for a checkpoint to end.
pub(super) struct Hurry<'a> {
    control: &'a FlushControl,
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.control.hurrying.set(self.control.hurrying.get() - 1);
    }
}

/// Bytes that are written, or about to be, and not yet synced.
pub(super) struct Unsynced<'a> {
    control: &'a FlushControl,
    bytes: u64,
}

impl Drop for Unsynced<'_> {
    fn drop(&mut self) {
        self.control.unsynced_bytes.set(self.control.unsynced_bytes.get() - self.bytes);
        self.control.room.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic(milliseconds * 1_000_000)
    }

    const EASY: JournalPressure = JournalPressure { files_filled: 1, files_free: 2, may_grow: false };

    #[test]
    fn work_is_spread_over_the_time_that_a_file_takes() {
        let schedule = Schedule::spread(at(100), Duration::from_millis(4000), 1000);
        let wait = |now, done, pressure| schedule.wait(at(now), done, pressure).as_millis();
        assert_eq!((wait(100, 0, EASY), wait(100, 500, EASY), wait(100, 1000, EASY)), (0, 1500, 3000));
        assert_eq!((wait(1600, 500, EASY), wait(9000, 1000, EASY)), (0, 0), "late work waits no more");
        let late = JournalPressure { files_filled: 2, ..EASY };
        assert_eq!(wait(100, 500, late), 750);
        let out = JournalPressure { files_free: 0, ..EASY };
        assert_eq!(wait(100, 500, out), 0, "without a free file nothing waits");
        let growing = JournalPressure { may_grow: true, ..out };
        assert_eq!(wait(100, 500, growing), 1500);
    }

    #[test]
    fn a_slow_journal_does_not_delay_for_ever() {
        let schedule = Schedule::spread(at(0), Duration::from_secs(86_400), 1000);
        assert_eq!(schedule.wait(at(0), 1000, EASY), Duration::from_millis(CHECKPOINT_SPREAD_MS_MAX));
        assert_eq!(Schedule::at_once(at(0)).wait(at(0), 5, EASY), Duration::ZERO);
    }

    #[test]
    fn the_faster_of_two_fills_counts() {
        let control = FlushControl::new(at(0));
        assert_eq!(control.fill_time(), Duration::ZERO);
        for (now, expected) in [(100, 100), (5_000, 100), (9_000, 4_000), (9_010, 10)] {
            control.note_file_filled(at(now));
            assert_eq!(control.fill_time(), Duration::from_millis(expected));
        }
    }

    #[test]
    fn the_age_of_the_oldest_batch_is_known_near_enough() {
        let control = FlushControl::new(at(0));
        for step in 0..10_000_u64 {
            control.sample(step * 10, at(step * LAG_SAMPLE_MS));
        }
        assert!(control.samples.borrow().len() <= LAG_SAMPLES_MAX);
        let now = at(10_000 * LAG_SAMPLE_MS);
        let age = control.age(Some(50_000), now).as_millis() as u64;
        let exact = 5_000 * LAG_SAMPLE_MS;
        assert!(age <= exact && age + exact / 2 >= exact, "{age} of {exact}");
        assert_eq!(control.age(None, now), Duration::ZERO);
    }
}
