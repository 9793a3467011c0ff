//! Room on the file system of the segments: who may still append, before anything is acknowledged.
//!
//! Owns one rule: free bytes less what is journalled and not yet in a segment stay at or above a reserve. What was
//! acknowledged then always finds its place in a segment, and deletes, metadata and recovery find the reserve. It never
//! frees anything; produce resumes by itself within a look, which is a second.
//!
//! Each core looks for itself. Between two looks it may take its share of the room, so all cores together stay above the
//! reserve but for what they took since the other's look; the reserve is there for that.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use ringlog_io::{Io, SpaceInfo};

use super::core_storage::{CoreStorage, Inner};
use super::log::LogId;
use crate::journal::Signal;
use crate::limits::{
    SPACE_LEVEL_HYSTERESIS_DIVISOR, SPACE_LOOK_MS, SPACE_RESERVE_BYTES_MAX, SPACE_RESERVE_DIVISOR,
    SPACE_THROTTLE_DIVISOR, SPACE_THROTTLE_FACTOR, SPACE_WARN_FACTOR,
};

/// What an operator asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceSettings {
    /// `ringlog.disk.reserve.bytes`: bytes that stay free. `None` = the smaller of 1 GiB and a twentieth of the file
    /// system.
    pub reserve_bytes: Option<u64>,
    /// `ringlog.disk.warn.bytes`: below this a line is logged and health says so. `None` = four times the reserve.
    pub warn_bytes: Option<u64>,
}

/// How short space is. Ordered: worse is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceLevel {
    #[default]
    Ample,
    /// Said, nothing else.
    Warn,
    /// Appends are slowed down, the more the nearer the reserve is.
    Throttle,
    /// Appends are refused.
    Refuse,
}

impl SpaceLevel {
    /// As metrics show it: 0 ample to 3 refuse.
    #[must_use]
    pub fn number(self) -> u64 {
        self as u64
    }
}

impl fmt::Display for SpaceLevel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            SpaceLevel::Ample => "ample",
            SpaceLevel::Warn => "low",
            SpaceLevel::Throttle => "so low that producers are slowed down",
            SpaceLevel::Refuse => "so low that producers are refused",
        })
    }
}

/// Space as one core saw it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFigures {
    pub level: SpaceLevel,
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Journalled, and in no segment yet: of all cores.
    pub unflushed_bytes: u64,
    pub reserve_bytes: u64,
    /// The file system refused a segment write although it says that it has room.
    pub is_write_refused: bool,
}

/// An append that the reserve does not allow. The text reaches its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SpaceShortage {
    /// Of the batch.
    pub bytes: usize,
    pub figures: SpaceFigures,
}

impl fmt::Display for SpaceShortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SpaceFigures { free_bytes, unflushed_bytes, reserve_bytes, is_write_refused, .. } = self.figures;
        if is_write_refused {
            return write!(
                formatter,
                "the file system of the data directory refuses writes for lack of space or quota ({free_bytes} bytes \
                 are free): free some; producing resumes by itself"
            );
        }
        write!(
            formatter,
            "no room for a batch of {} bytes: {free_bytes} bytes are free in the data directory, {unflushed_bytes} of them \
             promised to records in the journal, and ringlog.disk.reserve.bytes = {reserve_bytes} must stay free; free \
             space, delete a topic or lower the reserve; producing resumes by itself",
            self.bytes
        )
    }
}

/// What the cores of one node tell each other of their unflushed bytes. Shared by all of them: each writes its own cell,
/// in its own cache line.
#[derive(Debug)]
pub struct NodeSpace {
    unflushed: Box<[Cell64]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell64(AtomicU64);

impl NodeSpace {
    /// For so many cores.
    #[must_use]
    pub fn new(core_count: u32) -> Arc<NodeSpace> {
        Arc::new(NodeSpace { unflushed: (0..core_count).map(|_| Cell64::default()).collect() })
    }

    fn unflushed_bytes(&self) -> u64 {
        self.unflushed.iter().map(|cell| cell.0.load(Ordering::Relaxed)).fold(0, u64::saturating_add)
    }

    fn set(&self, core: u32, bytes: u64) {
        if let Some(cell) = self.unflushed.get(core as usize) {
            cell.0.store(bytes, Ordering::Relaxed);
        }
    }

    fn core_count(&self) -> u64 {
        self.unflushed.len().max(1) as u64
    }
}

/// What a look at the file system allows one core until its next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    level: SpaceLevel,
    reserve_bytes: u64,
    /// May be taken in all.
    share_bytes: u64,
    /// May be taken before appends wait.
    pace_bytes: u64,
}

/// Decides what a core may take. `before` is its level until now: a better one needs a little more than its bound, so that
/// a disk at a bound does not change its mind every second.
fn grant(
    settings: SpaceSettings,
    space: SpaceInfo,
    unflushed_bytes: u64,
    core_count: u64,
    before: SpaceLevel,
) -> Grant {
    let automatic = (space.total_bytes / SPACE_RESERVE_DIVISOR).min(SPACE_RESERVE_BYTES_MAX);
    let reserve_bytes = settings.reserve_bytes.unwrap_or(automatic);
    let available = space.free_bytes.saturating_sub(unflushed_bytes);
    let warn = settings.warn_bytes.unwrap_or(reserve_bytes.saturating_mul(SPACE_WARN_FACTOR));
    let throttle = reserve_bytes.saturating_mul(SPACE_THROTTLE_FACTOR);
    let bounds = [
        (SpaceLevel::Refuse, reserve_bytes),
        (SpaceLevel::Throttle, throttle),
        (SpaceLevel::Warn, warn.max(throttle)),
    ];
    let is_below = |(level, bound): &(SpaceLevel, u64)| {
        let more = if before >= *level { bound / SPACE_LEVEL_HYSTERESIS_DIVISOR } else { 0 };
        available <= bound.saturating_add(more)
    };
    let level = bounds.into_iter().find(is_below).map_or(SpaceLevel::Ample, |(level, _)| level);
    let share_bytes = match level {
        SpaceLevel::Refuse => 0,
        _ => (available - reserve_bytes) / core_count,
    };
    let pace_bytes =
        if level == SpaceLevel::Throttle { share_bytes / SPACE_THROTTLE_DIVISOR } else { share_bytes };
    Grant { level, reserve_bytes, share_bytes, pace_bytes }
}

/// One core's view of the room that is left. Lives on that core.
#[derive(Debug)]
pub(crate) struct SpaceGate {
    settings: SpaceSettings,
    /// `None` when nothing is stored in files.
    place: Option<Place>,
    figures: Cell<SpaceFigures>,
    /// Bytes that may still be taken until the next look.
    share_bytes: Cell<u64>,
    /// Of them, those that need not wait for the next look.
    pace_bytes: Cell<u64>,
    /// Below this share a look comes early, and below half of it appends wait for that look.
    early_bytes: Cell<u64>,
    is_look_wanted: Cell<bool>,
    watcher: RefCell<Option<Waker>>,
    looked: Signal,
}

#[derive(Debug)]
struct Place {
    data: PathBuf,
    node: Arc<NodeSpace>,
    core: u32,
}

impl SpaceGate {
    pub(crate) fn new(settings: SpaceSettings, data: PathBuf, node: Arc<NodeSpace>, core: u32) -> SpaceGate {
        SpaceGate::with(settings, Some(Place { data, node, core }))
    }

    /// Memory only: never short.
    pub(crate) fn unlimited() -> SpaceGate {
        SpaceGate::with(SpaceSettings::default(), None)
    }

    fn with(settings: SpaceSettings, place: Option<Place>) -> SpaceGate {
        SpaceGate {
            settings,
            place,
            figures: Cell::default(),
            share_bytes: Cell::new(u64::MAX),
            pace_bytes: Cell::new(u64::MAX),
            early_bytes: Cell::new(0),
            is_look_wanted: Cell::new(false),
            watcher: RefCell::new(None),
            looked: Signal::default(),
        }
    }

    /// Looks at the file system. `unflushed_bytes` are this core's own.
    pub(crate) async fn look(&self, io: &Io, unflushed_bytes: u64) {
        let Some(place) = &self.place else { return };
        place.node.set(place.core, unflushed_bytes);
        self.is_look_wanted.set(false);
        match io.file_system_space(&place.data).await {
            Ok(space) => self.take_look(place, space, unflushed_bytes),
            // What is known stays; the next look comes soon.
            Err(error) => {
                tracing::warn!(path = %place.data.display(), %error, "cannot see how much space is free");
            }
        }
        self.looked.notify();
    }

    fn take_look(&self, place: &Place, space: SpaceInfo, own_unflushed_bytes: u64) {
        let before = self.figures.get();
        // Nothing is left to write, so nothing can be refused: a log may have gone with its records.
        let is_write_refused = before.is_write_refused && own_unflushed_bytes > 0;
        let unflushed_bytes = place.node.unflushed_bytes();
        let core_count = place.node.core_count();
        let grant = grant(self.settings, space, unflushed_bytes, core_count, before.level);
        let level = if is_write_refused { SpaceLevel::Refuse } else { grant.level };
        let figures = SpaceFigures {
            level,
            free_bytes: space.free_bytes,
            total_bytes: space.total_bytes,
            unflushed_bytes,
            reserve_bytes: grant.reserve_bytes,
            is_write_refused,
        };
        self.figures.set(figures);
        self.share_bytes.set(grant.share_bytes);
        self.pace_bytes.set(grant.pace_bytes);
        // While slowed down the pace is by the second.
        self.early_bytes.set(if level < SpaceLevel::Throttle { grant.share_bytes / 2 } else { 0 });
        self.is_look_wanted.set(false);
        if level != before.level {
            self.tell(before.level);
        }
    }

    fn tell(&self, before: SpaceLevel) {
        let SpaceFigures { level, free_bytes, unflushed_bytes, reserve_bytes, is_write_refused, .. } =
            self.figures.get();
        let core = self.place.as_ref().map_or(0, |place| place.core);
        match (before, level) {
            (_, SpaceLevel::Refuse) => ringlog_io::reached!("space.refused"),
            (SpaceLevel::Refuse, _) => ringlog_io::reached!("space.resumed"),
            (_, SpaceLevel::Throttle) => ringlog_io::reached!("space.throttled"),
            _ => {}
        }
        if level > before {
            tracing::warn!(
                core,
                free_bytes,
                unflushed_bytes,
                reserve_bytes,
                is_write_refused,
                "disk space is {level}"
            );
        } else {
            tracing::info!(core, free_bytes, unflushed_bytes, reserve_bytes, "disk space is {level} again");
        }
    }

    /// Whether a batch may be appended now.
    ///
    /// # Errors
    /// [`SpaceShortage`] while it may not.
    pub(crate) fn admit(&self, bytes: usize) -> Result<(), SpaceShortage> {
        let figures = self.figures.get();
        if figures.level == SpaceLevel::Refuse || bytes as u64 > self.share_bytes.get() {
            return Err(SpaceShortage { bytes, figures });
        }
        Ok(())
    }

    /// A batch was appended, also one that may use the reserve.
    pub(crate) fn note_append(&self, bytes: usize, unflushed_bytes: usize) {
        self.share_bytes.set(self.share_bytes.get().saturating_sub(bytes as u64));
        self.pace_bytes.set(self.pace_bytes.get().saturating_sub(bytes as u64));
        if self.share_bytes.get() < self.early_bytes.get() && !self.is_look_wanted.replace(true) {
            let watcher = self.watcher.take();
            watcher.into_iter().for_each(Waker::wake);
        }
        if let Some(place) = &self.place {
            place.node.set(place.core, unflushed_bytes as u64);
        }
    }

    /// A segment could not be written for lack of space, whatever the file system says that it has.
    pub(crate) fn note_write_refused(&self) {
        let before = self.figures.get();
        self.figures.set(SpaceFigures { level: SpaceLevel::Refuse, is_write_refused: true, ..before });
        if before.level != SpaceLevel::Refuse {
            self.tell(before.level);
        }
    }

    /// A segment was written. The level stays until the next look.
    pub(crate) fn note_written(&self) {
        let figures = self.figures.get();
        if figures.is_write_refused {
            self.figures.set(SpaceFigures { is_write_refused: false, ..figures });
        }
    }

    /// Whether nothing should be taken that is not needed now.
    pub(crate) fn is_short(&self) -> bool {
        self.figures.get().level > SpaceLevel::Ample
    }

    /// Whether a segment waits to be written until there is space.
    pub(crate) fn is_write_refused(&self) -> bool {
        self.figures.get().is_write_refused
    }

    /// Whether appends must wait for the next look. When they are refused they need not wait to hear it.
    pub(crate) fn must_wait(&self) -> bool {
        let is_used_up = self.pace_bytes.get() == 0 || self.share_bytes.get() < self.early_bytes.get() / 2;
        is_used_up && self.figures.get().level != SpaceLevel::Refuse
    }

    /// Waits until a look is due.
    pub(crate) async fn due(&self, io: &Io) {
        let mut sleep = pin!(io.sleep(Duration::from_millis(SPACE_LOOK_MS)));
        poll_fn(|context| {
            if self.is_look_wanted.get() {
                return Poll::Ready(());
            }
            *self.watcher.borrow_mut() = Some(context.waker().clone());
            sleep.as_mut().poll(context)
        })
        .await;
    }

    /// Waits until [`SpaceGate::must_wait`] is false.
    pub(crate) async fn turn(&self) {
        self.looked.until(|| (!self.must_wait()).then_some(())).await;
    }

    pub(crate) fn figures(&self) -> SpaceFigures {
        self.figures.get()
    }
}

impl CoreStorage {
    /// As [`CoreStorage::room`] for a log that uses the reserve: waits for the journal and memory, not for disk space.
    pub async fn room_with_reserve(&self) {
        let inner = self.inner();
        inner.journal.room().await;
        inner.turn.until(|| (!inner.is_out_of_memory() || inner.journal.is_poisoned()).then_some(())).await;
    }

    /// Lets the log's appends use the reserve of disk space: metadata must change for space to be freed.
    pub fn let_use_reserve(&self, id: LogId) {
        if let Some(log) = self.inner().core.borrow_mut().log_mut(id) {
            log.uses_reserve = true;
        }
    }

    /// Free space as this core saw it last.
    #[must_use]
    pub fn space(&self) -> SpaceFigures {
        self.inner().space.figures()
    }
}

/// Looks at the free space for as long as the storage lives.
pub(super) async fn watch(inner: Rc<Inner>) {
    loop {
        inner.space.due(&inner.io).await;
        let unflushed_bytes = inner.core.borrow().tail.dirty_bytes() as u64;
        inner.space.look(&inner.io, unflushed_bytes).await;
        if inner.space.is_write_refused() {
            inner.work.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SETTINGS: SpaceSettings = SpaceSettings { reserve_bytes: Some(100 * MIB), warn_bytes: None };

    fn space(free_mib: u64) -> SpaceInfo {
        SpaceInfo { free_bytes: free_mib * MIB, total_bytes: 10_000 * MIB }
    }

    #[test]
    fn levels_follow_what_is_free_less_what_is_promised() {
        let check = |free: u64, unflushed: u64, before: SpaceLevel, expected: SpaceLevel| {
            let granted = grant(SETTINGS, space(free), unflushed * MIB, 2, before);
            assert_eq!(granted.level, expected, "{free} MiB free, {unflushed} promised, {before:?} before");
        };
        use SpaceLevel::{Ample, Refuse, Throttle, Warn};
        check(1000, 0, Ample, Ample);
        check(400, 0, Ample, Warn);
        check(1000, 650, Ample, Warn);
        check(200, 0, Ample, Throttle);
        check(1000, 850, Warn, Throttle);
        check(100, 0, Ample, Refuse);
        check(101, 1, Ample, Refuse);
        check(50, 100, Ample, Refuse);
        // Back only with a sixteenth more than the bound.
        check(105, 0, Refuse, Refuse);
        check(107, 0, Refuse, Throttle);
        check(210, 0, Throttle, Throttle);
        check(214, 0, Throttle, Warn);
        check(424, 0, Warn, Warn);
        check(426, 0, Warn, Ample);
    }

    #[test]
    fn a_core_may_take_its_share_and_near_the_reserve_less_at_a_time() {
        let granted = grant(SETTINGS, space(900), 0, 4, SpaceLevel::Ample);
        assert_eq!((granted.share_bytes, granted.pace_bytes), (200 * MIB, 200 * MIB));
        let granted = grant(SETTINGS, space(180), 0, 4, SpaceLevel::Ample);
        assert_eq!((granted.share_bytes, granted.pace_bytes), (20 * MIB, 20 * MIB / SPACE_THROTTLE_DIVISOR));
        let granted = grant(SETTINGS, space(90), 0, 4, SpaceLevel::Ample);
        assert_eq!((granted.share_bytes, granted.pace_bytes), (0, 0));
    }

    #[test]
    fn the_automatic_reserve_is_a_part_of_the_file_system_up_to_a_bound() {
        let reserve = |total_bytes: u64| {
            let space = SpaceInfo { free_bytes: total_bytes, total_bytes };
            grant(SpaceSettings::default(), space, 0, 1, SpaceLevel::Ample).reserve_bytes
        };
        assert_eq!(reserve(200 * MIB), 10 * MIB);
        assert_eq!(reserve(1 << 50), SPACE_RESERVE_BYTES_MAX);
    }

    fn gate(node: &Arc<NodeSpace>) -> SpaceGate {
        SpaceGate::new(SETTINGS, PathBuf::from("/data"), Arc::clone(node), 0)
    }

    fn look(gate: &SpaceGate, free_mib: u64, unflushed_bytes: u64) {
        let place = gate.place.as_ref().expect("made with one");
        place.node.set(place.core, unflushed_bytes);
        gate.take_look(place, space(free_mib), unflushed_bytes);
    }

    #[test]
    fn a_share_is_used_up_until_the_next_look() {
        let node = NodeSpace::new(1);
        let gate = gate(&node);
        look(&gate, 110, 0);
        assert_eq!(gate.figures().level, SpaceLevel::Throttle);
        assert!(!gate.must_wait());
        gate.note_append(5 * MIB as usize, 5 * MIB as usize);
        assert!(gate.must_wait(), "the pace is used up, the share is not");
        assert_eq!(gate.admit(4 * MIB as usize), Ok(()));
        let shortage = gate.admit(6 * MIB as usize).expect_err("more than the share");
        let text = shortage.to_string();
        for part in ["6291456 bytes", "ringlog.disk.reserve.bytes = 104857600", "resumes by itself"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        look(&gate, 104, 5 * MIB);
        assert_eq!(gate.figures().level, SpaceLevel::Refuse, "what was taken is promised");
        assert!(!gate.must_wait(), "a refusal is told at once");
        look(&gate, 1000, 5 * MIB);
        assert_eq!((gate.figures().level, gate.admit(100)), (SpaceLevel::Ample, Ok(())));
    }

    #[test]
    fn a_share_that_goes_fast_is_looked_after_early() {
        let node = NodeSpace::new(1);
        let gate = gate(&node);
        look(&gate, 1100, 0);
        gate.note_append(499 * MIB as usize, 0);
        assert!(!gate.is_look_wanted.get());
        gate.note_append(2 * MIB as usize, 0);
        assert!(gate.is_look_wanted.get() && !gate.must_wait(), "asked for, nobody waits yet");
        gate.note_append(300 * MIB as usize, 0);
        assert!(gate.must_wait(), "the look comes before the share ends");
        look(&gate, 1100, 801 * MIB);
        assert!(!gate.must_wait() && !gate.is_look_wanted.get());
    }

    #[test]
    fn unflushed_bytes_of_other_cores_count() {
        let node = NodeSpace::new(2);
        let gate = gate(&node);
        node.set(1, 950 * MIB);
        look(&gate, 1000, 0);
        assert_eq!(gate.figures().level, SpaceLevel::Refuse);
    }

    #[test]
    fn a_refused_write_refuses_appends_until_one_goes_through() {
        let node = NodeSpace::new(1);
        let gate = gate(&node);
        look(&gate, 1000, 10);
        gate.note_write_refused();
        assert!(gate.admit(1).expect_err("refused").to_string().contains("refuses writes"));
        look(&gate, 1000, 10);
        assert!(gate.admit(1).is_err(), "free bytes prove nothing");
        gate.note_written();
        look(&gate, 1000, 10);
        assert_eq!(gate.admit(1), Ok(()));
        gate.note_write_refused();
        look(&gate, 1000, 0);
        assert_eq!(gate.admit(1), Ok(()), "nothing is left that could be refused");
    }
}
