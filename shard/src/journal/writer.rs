//! The journal of one core: takes entries, keeps exactly one write in flight, says what is durable in order.
//!
//! Owns the files through [`super::ring`] and the frames through [`super::queue`]. It never decides what may be
//! recycled: whoever knows the segments calls [`Journal::release_after`].
//!
//! Group commit needs no timer: whatever arrives while a frame is written is the next frame.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use ringlog_io::{AlignedBuffer, File, Io, OpenOptions, Priority, Task, WriteSync};

use super::entry::{DATA_ENTRY_OVERHEAD_BYTES, Entry};
use super::format::{FRAME_ALIGNMENT_BYTES, file_name};
use super::frame::{FRAME_HEADER_BYTES, FrameOrigin};
use super::queue::{Frame, FrameQueue, FrameTicket, Note};
use super::ring::{FileRing, FileSerial, JournalFileInfo, Slot};
use super::signal::Signal;
use super::stats::JournalStats;
use crate::limits::{
    JOURNAL_BACKLOG_BYTES_MAX, JOURNAL_CREATE_RETRY_MS, JOURNAL_FILE_BYTES_LIMIT, JOURNAL_FILE_BYTES_MIN,
    JOURNAL_FRAME_BODY_BYTES_MAX, JOURNAL_ZERO_PIECE_BYTES,
};

/// How large one core's journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// Pre-written length of each file; a multiple of 4096, at least [`JOURNAL_FILE_BYTES_MIN`].
    pub file_bytes: u64,
    /// Files made at start; at least 2.
    pub file_count_start: usize,
    /// Files that the journal grows to when all others are full.
    pub file_count_max: usize,
}

impl JournalSettings {
    /// 8 MiB at first, for a laptop.
    pub const DEV: JournalSettings =
        JournalSettings { file_bytes: 4 * 1024 * 1024, file_count_start: 2, file_count_max: 8 };
    /// 4 x 64 MiB a core.
    pub const SERVER: JournalSettings =
        JournalSettings { file_bytes: 64 * 1024 * 1024, file_count_start: 4, file_count_max: 4 };

    /// Largest run of batches that one entry can hold, in bytes: it must fit into one file.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        let overhead = FRAME_ALIGNMENT_BYTES + (FRAME_HEADER_BYTES + DATA_ENTRY_OVERHEAD_BYTES) as u64;
        usize::try_from(self.file_bytes.saturating_sub(overhead)).unwrap_or(usize::MAX)
    }

    fn frame_body_bytes_max(&self) -> usize {
        JOURNAL_FRAME_BODY_BYTES_MAX.min(usize::try_from(self.file_bytes / 4).unwrap_or(usize::MAX))
    }

    /// Whether the numbers can work.
    ///
    /// # Errors
    /// [`JournalError::Settings`] names the one that cannot.
    pub fn validate(&self) -> Result<(), JournalError> {
        let refuse = |reason| Err(JournalError::Settings { reason });
        if self.file_bytes < JOURNAL_FILE_BYTES_MIN {
            return refuse("journal files are smaller than 2 MiB");
        }
        if self.file_bytes > JOURNAL_FILE_BYTES_LIMIT {
            return refuse("journal files are larger than 1 GiB");
        }
        if !self.file_bytes.is_multiple_of(FRAME_ALIGNMENT_BYTES) {
            return refuse("journal file length is no multiple of 4096");
        }
        if self.file_count_start < 2 || self.file_count_max < self.file_count_start {
            return refuse("a journal needs two files, and its maximum is at least what it starts with");
        }
        Ok(())
    }
}

/// Where a core's journal lives and how its frames name themselves.
#[derive(Clone, Debug)]
pub struct JournalPlace {
    /// Folder of the generation.
    pub directory: PathBuf,
    pub origin: FrameOrigin,
    /// Sequence of the next frame.
    pub next_frame: u64,
}

/// How near a journal is to having no file to write into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPressure {
    /// Files that take no more frames and wait for a checkpoint.
    pub files_filled: usize,
    pub files_free: usize,
    /// Whether one more file may be made.
    pub may_grow: bool,
}

impl JournalPressure {
    /// Whether the next frame that does not fit has nowhere to go.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.files_free == 0 && !self.may_grow
    }
}

/// Why a journal could not start.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot make or open journal file {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("journal settings: {reason}")]
    Settings { reason: &'static str },
}

/// Why a core, or one of its logs, takes no more writes. A restart, which reads back from the device, is the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoisonReason {
    /// After a failed write nothing says what the device holds (Rebello et al., ATC 2020), so nothing is retried.
    #[error("a journal write failed: {error}")]
    JournalWrite { error: String },
    #[error("segment {} could not be made durable, nor could a new copy of it: {error}", path.display())]
    SegmentWrite { path: PathBuf, error: String },
    /// Heard from the file system as a whole; the file whose write it was did not tell.
    #[error("a write to the file system of the segments failed unseen: {error}")]
    FileSystem { error: String },
    #[error("the log is damaged: {detail}")]
    Damaged { detail: String },
}

/// Hears what became of frames. Called on the journal's core, in frame order, while the journal is not borrowed.
pub trait JournalObserver {
    /// The notes' entries are durable, in this file.
    fn frame_durable(&self, serial: FileSerial, notes: &[Note]);
    /// A file takes no more frames.
    fn file_filled(&self);
    /// A new file could not be made; tried again while it is needed.
    fn file_failed(&self);
    /// Nothing more will be durable.
    fn poisoned(&self, reason: &PoisonReason);
}

struct State {
    queue: FrameQueue,
    ring: FileRing,
    next_frame: u64,
    completed: u64,
    /// From this frame on the files up to the serial do not count.
    release: Option<(FrameTicket, FileSerial)>,
    /// What the frame in flight says of that in its floor.
    stated: Option<FileSerial>,
    poison: Option<PoisonReason>,
    stats: JournalStats,
}

struct Shared {
    io: Io,
    /// None = memory only.
    place: Option<JournalPlace>,
    settings: JournalSettings,
    state: RefCell<State>,
    observer: RefCell<Option<Weak<dyn JournalObserver>>>,
    /// Entries came.
    work: Signal,
    /// A frame ended, a file was freed or made, or the journal is poisoned.
    progress: Signal,
    urgent: Cell<bool>,
    /// A file is being made.
    growing: Cell<bool>,
    /// The last try to make a file failed.
    cannot_grow: Cell<bool>,
    /// Hold `Rc`s of this in turn: cleared when the journal is dropped.
    tasks: RefCell<Vec<Task<()>>>,
}

/// One core's journal. Dropping it stops the writer; what was not durable is lost, as in a crash.
pub struct Journal {
    shared: Rc<Shared>,
}

impl Drop for Journal {
    fn drop(&mut self) {
        let tasks = self.shared.tasks.take();
        drop(tasks);
    }
}

impl Journal {
    /// Opens the files that recovery left, starts the writer and makes the other files in the background.
    ///
    /// # Errors
    /// [`JournalError`]; nothing was written.
    pub async fn start(
        io: Io,
        place: JournalPlace,
        files: Vec<JournalFileInfo>,
        settings: JournalSettings,
    ) -> Result<Journal, JournalError> {
        settings.validate()?;
        let mut ring = FileRing::new();
        for info in files {
            let options = OpenOptions { read: true, write: true, direct: true, ..OpenOptions::default() };
            let file = io
                .open(&info.path, options)
                .await
                .map_err(|source| JournalError::File { path: info.path.clone(), source })?;
            ring.adopt(file, info);
        }
        let missing = settings.file_count_start.saturating_sub(ring.whole_count(settings.file_bytes));
        let journal = Journal::new(io, Some(place), settings, ring);
        let shared = journal.shared.clone();
        let growth = journal.shared.io.spawn(Priority::Background, async move {
            for _ in 0..missing {
                grow(&shared).await;
            }
        });
        journal.shared.keep(growth);
        Ok(journal)
    }

    /// A journal without files: entries count as durable on the next turn of the loop, and are gone with the process.
    #[must_use]
    pub fn start_ephemeral(io: Io, settings: JournalSettings) -> Journal {
        Journal::new(io, None, settings, FileRing::new())
    }

    fn new(io: Io, place: Option<JournalPlace>, settings: JournalSettings, ring: FileRing) -> Journal {
        let next_frame = place.as_ref().map_or(1, |place| place.next_frame);
        let state = State {
            queue: FrameQueue::new(place.is_none(), settings.frame_body_bytes_max()),
            ring,
            next_frame,
            completed: 0,
            release: None,
            stated: None,
            poison: None,
            stats: JournalStats::default(),
        };
        let shared = Rc::new(Shared {
            io: io.clone(),
            place,
            settings,
            state: RefCell::new(state),
            observer: RefCell::new(None),
            work: Signal::default(),
            progress: Signal::default(),
            urgent: Cell::new(false),
            growing: Cell::new(false),
            cannot_grow: Cell::new(false),
            tasks: RefCell::default(),
        });
        let writer = io.spawn(Priority::Foreground, write_frames(shared.clone()));
        shared.keep(writer);
        Journal { shared }
    }

    /// Sets who hears of frames; before the first entry.
    pub fn set_observer(&self, observer: Weak<dyn JournalObserver>) {
        *self.shared.observer.borrow_mut() = Some(observer);
    }

    /// Copies an entry into the frame that fills. Never waits; the caller looks at [`Journal::is_full`] first, and only
    /// entries that free space may pass it.
    pub fn push(&self, entry: &Entry<'_>, note: Note) {
        let shared = &self.shared;
        let mut state = shared.state.borrow_mut();
        if state.poison.is_some() {
            return;
        }
        let was_empty = state.queue.push(entry, note, || shared.io.monotonic_now());
        drop(state);
        if was_empty {
            shared.work.notify();
        }
    }

    /// Stands for all entries pushed so far.
    #[must_use]
    pub fn ticket(&self) -> FrameTicket {
        self.shared.state.borrow().queue.ticket()
    }

    /// Waits until all entries that `ticket` stands for are durable.
    ///
    /// # Errors
    /// The journal is poisoned: they will never be, as far as anyone may believe.
    pub async fn durable(&self, ticket: FrameTicket) -> Result<(), PoisonReason> {
        let shared = &self.shared;
        shared
            .progress
            .until(|| {
                let state = shared.state.borrow();
                match &state.poison {
                    _ if state.completed >= ticket.0 => Some(Ok(())),
                    Some(reason) => Some(Err(reason.clone())),
                    None => None,
                }
            })
            .await
    }

    /// Waits until [`Journal::is_full`] is false, or the journal is poisoned.
    pub async fn room(&self) {
        let full = || (self.is_full() && self.poison().is_none()).then_some(());
        self.shared.progress.until(|| if full().is_some() { None } else { Some(()) }).await;
    }

    /// Bytes of entries that wait for a write.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.shared.state.borrow().queue.backlog_bytes()
    }

    /// Whether appends must wait.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.backlog_bytes() >= JOURNAL_BACKLOG_BYTES_MAX
    }

    /// Why nothing is written any more, if so.
    #[must_use]
    pub fn poison(&self) -> Option<PoisonReason> {
        self.shared.state.borrow().poison.clone()
    }

    /// Whether nothing is written any more.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.shared.state.borrow().poison.is_some()
    }

    /// The newest file that takes no more frames and is not about to be released. All its frames are durable.
    #[must_use]
    pub fn filled_through(&self) -> Option<FileSerial> {
        let state = self.shared.state.borrow();
        let newest = state.ring.filled_through()?;
        let is_leaving = state.release.is_some_and(|(_, serial)| newest <= serial);
        (!is_leaving).then_some(newest)
    }

    /// The oldest file that takes no more frames and is not about to be released. All its frames are durable.
    #[must_use]
    pub fn oldest_filled(&self) -> Option<FileSerial> {
        let state = self.shared.state.borrow();
        state.ring.oldest_filled(state.release.map(|(_, serial)| serial))
    }

    /// How near the journal is to having no file to write into.
    #[must_use]
    pub fn pressure(&self) -> JournalPressure {
        let state = self.shared.state.borrow();
        JournalPressure {
            files_filled: state.ring.filled_count(state.release.map(|(_, serial)| serial)),
            files_free: state.ring.free_count(),
            may_grow: state.ring.count() < self.shared.settings.file_count_max,
        }
    }

    /// Says that with the frame of `ticket` every entry in files up to `serial` is covered or copied. Those files are
    /// overwritten only after a frame that states so is durable: before it a start would miss them.
    pub fn release_after(&self, ticket: FrameTicket, serial: FileSerial) {
        self.shared.state.borrow_mut().release = Some((ticket, serial));
        self.shared.progress.notify();
    }

    /// While set, a write that finds no free file makes one beyond the maximum: it carries what frees the others.
    pub fn set_urgent(&self, urgent: bool) {
        self.shared.urgent.set(urgent);
        self.shared.progress.notify();
    }

    /// Writes nothing any more, for a reason outside of the journal.
    pub(crate) fn poison_for(&self, reason: PoisonReason) {
        self.shared.poison(reason);
    }

    /// Counters since start.
    #[must_use]
    pub fn stats(&self) -> JournalStats {
        let state = self.shared.state.borrow();
        JournalStats {
            backlog_bytes: state.queue.backlog_bytes() as u64,
            files: state.ring.count() as u64,
            files_free: state.ring.free_count() as u64,
            direct: self.shared.place.is_some() && state.ring.all_direct(),
            poisoned: state.poison.is_some(),
            ..state.stats.clone()
        }
    }
}

impl Shared {
    fn keep(&self, task: Task<()>) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    fn observer(&self) -> Option<Rc<dyn JournalObserver>> {
        self.observer.borrow().as_ref().and_then(Weak::upgrade)
    }

    /// Frees the files that the frame which just became durable does without.
    fn release_stated(&self) {
        let JournalSettings { file_bytes, file_count_max, .. } = self.settings;
        let unwanted = {
            let mut state = self.state.borrow_mut();
            let Some(serial) = state.stated.take() else { return };
            if state.release.is_some_and(|(_, asked)| asked == serial) {
                state.release = None;
            }
            state.ring.release_through(serial, file_count_max, file_bytes)
        };
        for file in unwanted {
            let io = self.io.clone();
            self.keep(self.io.spawn(Priority::Background, async move {
                // A file that stays is never read again: the next start removes its generation.
                if let Err(error) = io.remove_file(&file.path).await {
                    tracing::warn!(path = %file.path.display(), %error, "a journal file that is not wanted any more stays");
                }
            }));
        }
    }

    /// Whether a file may be made now: there may be more, or one must be, and none is being made already.
    fn may_grow(&self) -> bool {
        let state = self.state.borrow();
        // A release that waits for its frame must not wait for the file that it would free.
        let is_needed = self.urgent.get() || state.release.is_some();
        (is_needed || state.ring.count() < self.settings.file_count_max) && !self.growing.get()
    }

    fn poison(&self, reason: PoisonReason) {
        {
            let mut state = self.state.borrow_mut();
            if state.poison.is_some() {
                return;
            }
            state.poison = Some(reason.clone());
            state.queue.clear();
        }
        ringlog_io::reached!("poison.core");
        tracing::error!(%reason, "this core takes no more writes until a restart");
        if let Some(observer) = self.observer() {
            observer.poisoned(&reason);
        }
        self.progress.notify();
    }
}

/// The writer: one frame after the other until the journal is dropped or a write fails.
async fn write_frames(shared: Rc<Shared>) {
    loop {
        let frame = shared.work.until(|| shared.state.borrow_mut().queue.take()).await;
        let written = match &shared.place {
            None => {
                // Not in the caller's own turn: whoever appends never hears of it before its append returned.
                shared.io.yield_now().await;
                finish(&shared, frame, FileSerial(0), None);
                Ok(())
            }
            Some(place) => write_frame(&shared, place, frame).await,
        };
        if let Err(error) = written {
            shared.poison(PoisonReason::JournalWrite { error: error.to_string() });
            return;
        }
    }
}

async fn write_frame(shared: &Rc<Shared>, place: &JournalPlace, mut frame: Frame) -> io::Result<()> {
    let builder = frame.builder.take().expect("a journal with files builds its frames in buffers");
    let slot = find_slot(shared, builder.frame_bytes()).await;
    let (sequence, floor) = {
        let mut state = shared.state.borrow_mut();
        let sequence = state.next_frame;
        state.next_frame += 1;
        // A frame that was taken before the release was asked for has a floor without it: the next one states it.
        let number = FrameTicket(state.queue.taken());
        let released = state.release.filter(|(ticket, _)| number >= *ticket).map(|(_, serial)| serial);
        state.stated = released;
        (sequence, state.ring.note_frame(sequence, released))
    };
    let buffer = builder.seal(place.origin, sequence, floor);
    let written_bytes = buffer.len() as u64;
    let started = shared.io.monotonic_now();
    if cfg!(feature = "planted-early-ack") {
        announce(shared, &frame, slot.serial);
    }
    let (result, buffer) = shared.io.write_direct(&slot.file, slot.position, buffer, WriteSync::Data).await;
    result?;
    let ended = shared.io.monotonic_now();
    {
        let stats = &mut shared.state.borrow_mut().stats;
        stats.written_bytes += written_bytes;
        stats.queue_latency.record(started.saturating_since(frame.started_at));
        stats.write_latency.record(ended.saturating_since(started));
    }
    finish(shared, frame, slot.serial, Some(buffer));
    Ok(())
}

fn announce(shared: &Shared, frame: &Frame, serial: FileSerial) {
    if let Some(observer) = shared.observer() {
        observer.frame_durable(serial, &frame.notes);
    }
}

fn finish(shared: &Shared, frame: Frame, serial: FileSerial, buffer: Option<AlignedBuffer>) {
    {
        let mut state = shared.state.borrow_mut();
        state.completed += 1;
        state.stats.frames += 1;
        state.stats.entries += frame.notes.len() as u64;
        state.stats.entry_bytes += frame.entry_bytes as u64;
    }
    if !cfg!(feature = "planted-early-ack") || shared.place.is_none() {
        announce(shared, &frame, serial);
    }
    shared.state.borrow_mut().queue.give_back(buffer, frame.notes);
    shared.release_stated();
    shared.progress.notify();
}

/// Room for a frame: in the current file, else in a free one, else it waits or makes one.
async fn find_slot(shared: &Rc<Shared>, bytes: u64) -> Slot {
    let mut waited = false;
    loop {
        if let Some(slot) = shared.state.borrow_mut().ring.place(bytes) {
            return slot;
        }
        let retired = shared.state.borrow_mut().ring.retire_current();
        if cfg!(feature = "planted-recycle-before-synced-to") {
            let ring = &mut shared.state.borrow_mut().ring;
            if let Some(serial) = ring.filled_through() {
                ring.release_through(serial, usize::MAX, 0);
            }
        }
        if retired && let Some(observer) = shared.observer() {
            observer.file_filled();
        }
        if shared.state.borrow_mut().ring.start_free() {
            grow_ahead(shared);
            continue;
        }
        if !waited {
            waited = true;
            shared.state.borrow_mut().stats.file_waits += 1;
        }
        if shared.may_grow() {
            grow(shared).await;
        } else {
            let may_go_on = || shared.may_grow() || shared.state.borrow().ring.free_count() > 0;
            shared.progress.until(|| may_go_on().then_some(())).await;
        }
    }
}

/// With the last free file begun the next one is made in the background, as far as the maximum allows.
fn grow_ahead(shared: &Rc<Shared>) {
    let wants_more = {
        let ring = &shared.state.borrow().ring;
        ring.free_count() == 0 && ring.count() < shared.settings.file_count_max
    };
    if wants_more && !shared.growing.get() {
        let growing = Rc::clone(shared);
        shared.keep(shared.io.spawn(Priority::Background, async move { grow(&growing).await }));
    }
}

/// Makes one more free file; a failure is logged, waited out and left to the caller's next try.
async fn grow(shared: &Shared) {
    let Some(place) = &shared.place else { return };
    if shared.growing.replace(true) {
        return;
    }
    let number = shared.state.borrow_mut().ring.take_number();
    let path = place.directory.join(file_name(place.origin.core, number));
    match create_durable_file(&shared.io, &path, shared.settings.file_bytes).await {
        Ok(file) => {
            if shared.cannot_grow.replace(false) {
                tracing::info!(path = %path.display(), "journal files can be made again");
            }
            shared.state.borrow_mut().ring.add_free(file, path, shared.settings.file_bytes);
        }
        Err(error) => {
            if !shared.cannot_grow.replace(true) {
                tracing::warn!(path = %path.display(), %error, "cannot make a journal file; tried again while it is needed");
            }
            if let Some(observer) = shared.observer() {
                observer.file_failed();
            }
            // What there is of it would take the space that it lacked. Nothing refers to it, so it may also stay.
            let _ = shared.io.remove_file(&path).await;
            shared.io.sleep(Duration::from_millis(JOURNAL_CREATE_RETRY_MS)).await;
        }
    }
    shared.growing.set(false);
    shared.progress.notify();
}

/// [`create_file`] and its name.
async fn create_durable_file(io: &Io, path: &Path, bytes: u64) -> io::Result<File> {
    let file = create_file(io, path, bytes).await?;
    if let Some(parent) = path.parent() {
        io.sync_directory(parent).await?;
    }
    Ok(file)
}

/// Makes a file of `bytes` zeroes, written and synced: later writes into it change no metadata, which is what makes
/// them a third as long as writes into fallocated space. Its name lasts once the caller has synced the folder.
pub(super) async fn create_file(io: &Io, path: &Path, bytes: u64) -> io::Result<File> {
    let options =
        OpenOptions { read: true, write: true, create_new: true, direct: true, ..OpenOptions::default() };
    let file = io.open(path, options).await?;
    let mut zeroes = AlignedBuffer::new();
    let mut position = 0;
    while position < bytes {
        let piece = usize::try_from(bytes - position).unwrap_or(usize::MAX).min(JOURNAL_ZERO_PIECE_BYTES);
        zeroes.resize(piece, 0);
        let (result, buffer) = io.write_direct(&file, position, zeroes, WriteSync::None).await;
        result?;
        zeroes = buffer;
        position += piece as u64;
    }
    io.sync_all(&file).await?;
    Ok(file)
}
