//! Reading a generation's journal files back: which frames still count, and where one is missing.
//!
//! Owns the difference between a crash's tail and damage. Exactly one write is in flight on a core, so a frame that does
//! not check is a tail only while no later frame of its core is there. It never decides what an entry means.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ringlog_io::{File, Io, OpenOptions};
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_protocol::records::batch::batches;

use super::entry::{Entry, EntryBody, OffsetRange, Reference, SyncedTo};
use super::format::{FRAME_ALIGNMENT_BYTES, Manifest};
use super::frame::{FRAME_HEADER_BYTES, FrameHeader, decode_body};
use super::read_again::read_again;
use crate::limits::{JOURNAL_GAP_SCAN_BYTES_MAX, JOURNAL_READ_PIECE_BYTES};

/// An entry that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    pub key: TopicPartition,
    pub sequence: u64,
    pub carried: bool,
    pub body: FoundBody,
}

/// See [`EntryBody`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundBody {
    Data { segment_base: Offset, position: u32, range: OffsetRange, bytes: Bytes },
    Reference(Reference),
    Truncate { end_offset: Offset, segment_base: Offset, position: u32 },
    LogStart { offset: Offset },
    Delete,
    HardState { state: Bytes },
    SyncedTo(SyncedTo),
    Begin { start: Offset },
}

/// Frames that follow one another in a file.
#[derive(Clone, Debug)]
pub struct FrameRun {
    pub core: u32,
    pub path: PathBuf,
    /// Where the first one begins.
    pub position: u64,
    /// Where the last one ends.
    pub end: u64,
    /// What is at `end` instead of a next frame.
    pub end_detail: String,
    pub first_sequence: u64,
    pub last_sequence: u64,
    /// What its last frame states as the oldest that counts.
    pub floor: u64,
    pub entries: Vec<FoundEntry>,
    pub frame_count: u64,
}

/// What one file holds: the run at its start, and runs behind places that do not check.
#[derive(Clone, Debug, Default)]
pub struct FileScan {
    pub first: Option<FrameRun>,
    /// Maybe left from an earlier use of the file: [`judge_core`] decides.
    pub later: Vec<FrameRun>,
}

/// What a core's files hold together.
#[derive(Clone, Debug, Default)]
pub struct CoreScan {
    /// In order of their frames.
    pub runs: Vec<FrameRun>,
    /// Where frames are missing although later ones are there.
    pub corruption: Vec<String>,
}

struct Window<'a> {
    io: &'a Io,
    file: &'a File,
    length: u64,
    start: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// `length` bytes at `position`; `None` when the file ends before.
    async fn slice(&mut self, position: u64, length: usize) -> io::Result<Option<Bytes>> {
        let Some(end) = position.checked_add(length as u64).filter(|end| *end <= self.length) else {
            return Ok(None);
        };
        let window_end = self.start + self.bytes.len() as u64;
        if position < self.start || end > window_end {
            let left = usize::try_from(self.length - position).unwrap_or(usize::MAX);
            let wanted = length.max(JOURNAL_READ_PIECE_BYTES).min(left);
            self.bytes = read_again(self.io, self.file, position, wanted).await?;
            self.start = position;
        }
        let from = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        Ok(self.bytes.get(from..from.saturating_add(length)).map(|slice| self.bytes.slice_ref(slice)))
    }

    /// The frame at `position`, or why there is none.
    async fn frame(
        &mut self,
        position: u64,
        manifest: &Manifest,
    ) -> io::Result<Result<(FrameHeader, Vec<FoundEntry>), String>> {
        let Some(head) = self.slice(position, FRAME_HEADER_BYTES).await? else {
            return Ok(Err("end of file".into()));
        };
        let header = match FrameHeader::decode(&head) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if (header.origin.generation, header.origin.salt) != (manifest.generation, manifest.salt) {
            return Ok(Err("a frame of another generation".into()));
        }
        let body_bytes = usize::try_from(header.body_bytes).unwrap_or(usize::MAX);
        let Some(body) = self.slice(position + FRAME_HEADER_BYTES as u64, body_bytes).await? else {
            return Ok(Err(format!("a frame that states {body_bytes} bytes, more than the file has")));
        };
        let decoded = match decode_body(&header, &body) {
            Ok(decoded) => decoded,
            Err(error) => {
                ringlog_io::reached!("recovery.torn_frame");
                return Ok(Err(error.to_string()));
            }
        };
        let mut entries = Vec::with_capacity(decoded.len());
        for (entry, _) in decoded {
            match own_entry(&entry, &body) {
                Ok(entry) => entries.push(entry),
                Err(detail) => return Ok(Err(detail)),
            }
        }
        Ok(Ok((header, entries)))
    }
}

fn own_entry(entry: &Entry<'_>, body: &Bytes) -> Result<FoundEntry, String> {
    let found = match entry.body {
        EntryBody::Data { segment_base, position, batches } => {
            let range = offset_range(batches)?;
            FoundBody::Data { segment_base, position, range, bytes: body.slice_ref(batches) }
        }
        EntryBody::Reference(reference) => FoundBody::Reference(reference),
        EntryBody::Truncate { end_offset, segment_base, position } => {
            FoundBody::Truncate { end_offset, segment_base, position }
        }
        EntryBody::LogStart { offset } => FoundBody::LogStart { offset },
        EntryBody::Delete => FoundBody::Delete,
        // Small and long-lived: a copy lets the frame's memory go.
        EntryBody::HardState { state } => FoundBody::HardState { state: Bytes::copy_from_slice(state) },
        EntryBody::SyncedTo(synced) => FoundBody::SyncedTo(synced),
        EntryBody::Begin { start } => FoundBody::Begin { start },
    };
    Ok(FoundEntry { key: entry.key, sequence: entry.sequence, carried: entry.carried, body: found })
}

/// First and last offset of whole batches.
fn offset_range(bytes: &[u8]) -> Result<OffsetRange, String> {
    let mut range: Option<OffsetRange> = None;
    let mut walk = batches(bytes);
    for batch in walk.by_ref() {
        let header = batch.map_err(|error| error.to_string())?.header;
        let base = range.map_or(header.base_offset, |range| range.base);
        range = Some(OffsetRange { base, end: header.next_offset(), epoch: header.leader_epoch });
    }
    match (range, walk.partial()) {
        (Some(range), None) => Ok(range),
        (None, _) => Err("a data entry without a batch".to_owned()),
        (Some(_), Some(partial)) => {
            Err(format!("a data entry whose batch at {} is cut off", partial.position))
        }
    }
}

/// Reads a journal file.
///
/// # Errors
/// Only when the file cannot be read; whatever its bytes are is a result.
pub async fn scan_file(io: &Io, path: &Path, core: u32, manifest: &Manifest) -> io::Result<FileScan> {
    let file = io.open(path, OpenOptions::READ).await?;
    let length = io.file_length(&file).await?;
    let mut window = Window { io, file: &file, length, start: 0, bytes: Bytes::new() };
    let mut scan =
        FileScan { first: read_run(&mut window, path, core, 0, manifest).await?, later: Vec::new() };
    loop {
        let previous = scan.later.last().or(scan.first.as_ref());
        let (from, after) = previous.map_or((0, 0), |run| (run.end, run.last_sequence));
        let until = from.saturating_add(JOURNAL_GAP_SCAN_BYTES_MAX).min(length);
        let Some(position) = find_frame(&mut window, from, until, after, manifest).await? else {
            return Ok(scan);
        };
        match read_run(&mut window, path, core, position, manifest).await? {
            Some(run) => scan.later.push(run),
            None => return Ok(scan),
        }
    }
}

async fn read_run(
    window: &mut Window<'_>,
    path: &Path,
    core: u32,
    position: u64,
    manifest: &Manifest,
) -> io::Result<Option<FrameRun>> {
    let mut run: Option<FrameRun> = None;
    let mut end = position;
    loop {
        let frame = window.frame(end, manifest).await?;
        let detail = match frame {
            Ok((header, entries))
                if run
                    .as_ref()
                    .is_none_or(|run| run.last_sequence.checked_add(1) == Some(header.sequence)) =>
            {
                let run = run.get_or_insert_with(|| FrameRun {
                    core,
                    path: path.to_owned(),
                    position,
                    end,
                    end_detail: String::new(),
                    first_sequence: header.sequence,
                    last_sequence: header.sequence,
                    floor: header.floor,
                    entries: Vec::new(),
                    frame_count: 0,
                });
                run.last_sequence = header.sequence;
                run.floor = header.floor;
                run.entries.extend(entries);
                run.frame_count += 1;
                end += header.frame_bytes();
                run.end = end;
                continue;
            }
            Ok((header, _)) => format!("frame {}", header.sequence),
            Err(detail) => detail,
        };
        if let Some(run) = &mut run {
            run.end_detail = detail;
        }
        return Ok(run);
    }
}

/// The first frame that checks from `from` on and is later than `after`.
async fn find_frame(
    window: &mut Window<'_>,
    from: u64,
    until: u64,
    after: u64,
    manifest: &Manifest,
) -> io::Result<Option<u64>> {
    let mut position = from;
    while position < until {
        let Some(head) = window.slice(position, FRAME_HEADER_BYTES).await? else { return Ok(None) };
        let is_later = FrameHeader::decode(&head).is_ok_and(|header| header.sequence > after);
        if is_later && window.frame(position, manifest).await?.is_ok() {
            return Ok(Some(position));
        }
        position += FRAME_ALIGNMENT_BYTES;
    }
    Ok(None)
}

/// Puts the runs of one core's files in order, drops what earlier uses of a file left, and names every gap.
#[must_use]
pub fn judge_core(files: Vec<FileScan>) -> CoreScan {
    let newest_at_start =
        files.iter().filter_map(|file| file.first.as_ref()).map(|run| run.last_sequence).max();
    let newest_at_start = newest_at_start.unwrap_or(0);
    let mut runs = Vec::new();
    for file in files {
        // Behind a run of its own file only later frames were looked for; without one, anything the file held before.
        let floor = if file.first.is_some() { 0 } else { newest_at_start };
        runs.extend(file.first);
        runs.extend(file.later.into_iter().filter(|run| run.first_sequence > floor));
    }
    runs.sort_by_key(|run| run.first_sequence);
    let floor = runs.last().map_or(0, |run| run.floor);
    // All that these hold is covered, or stands again in later frames; others of their age are overwritten by now.
    runs.retain(|run| run.last_sequence >= floor);
    let mut scan = CoreScan::default();
    let mut expected = floor;
    let mut before: Option<&FrameRun> = None;
    for run in &runs {
        if run.first_sequence > expected {
            let (path, position, detail) = match before {
                Some(before) => (&before.path, before.end, before.end_detail.as_str()),
                None => (&run.path, 0, "no frame"),
            };
            scan.corruption.push(format!(
                "{} at position {position}: frames {expected} to {} are missing ({detail}), later ones are there",
                path.display(),
                run.first_sequence - 1,
            ));
        }
        expected = run.last_sequence.saturating_add(1);
        before = Some(run);
    }
    scan.runs = runs;
    scan
}

/// Epoch of a place that no entry tells.
pub(crate) const UNKNOWN_EPOCH: LeaderEpoch = LeaderEpoch::NONE;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file: &str, position: u64, first_sequence: u64, last_sequence: u64) -> FrameRun {
        FrameRun {
            core: 0,
            path: PathBuf::from(file),
            position,
            end: position + 4096 * (last_sequence - first_sequence + 1),
            end_detail: "no frame header".to_owned(),
            first_sequence,
            last_sequence,
            floor: 1,
            entries: Vec::new(),
            frame_count: last_sequence - first_sequence + 1,
        }
    }

    fn check(files: Vec<FileScan>, expected_runs: &[(u64, u64)], expected_corruption: usize) {
        let scan = judge_core(files);
        let runs: Vec<_> = scan.runs.iter().map(|run| (run.first_sequence, run.last_sequence)).collect();
        assert_eq!(runs, expected_runs);
        assert_eq!(scan.corruption.len(), expected_corruption, "{:?}", scan.corruption);
    }

    fn file(first: Option<FrameRun>, later: Vec<FrameRun>) -> FileScan {
        FileScan { first, later }
    }

    fn floored(floor: u64, run: FrameRun) -> FrameRun {
        FrameRun { floor, ..run }
    }

    #[test]
    fn free_files_below_the_floor_do_not_count() {
        let files =
            vec![file(Some(run("a", 0, 1, 5)), vec![]), file(Some(floored(17, run("c", 0, 17, 20))), vec![])];
        check(files, &[(17, 20)], 0);
    }

    #[test]
    fn files_in_any_order_make_one_run_of_frames() {
        let files = vec![
            file(Some(run("b", 0, 21, 30)), vec![]),
            file(Some(floored(11, run("c", 0, 31, 35))), vec![]),
            file(Some(run("a", 0, 11, 20)), vec![]),
        ];
        check(files, &[(11, 20), (21, 30), (31, 35)], 0);
    }

    #[test]
    fn what_an_earlier_use_left_behind_a_torn_first_frame_is_ignored() {
        let files = vec![
            file(None, vec![run("a", 8192, 3, 10)]),
            file(Some(floored(11, run("b", 0, 11, 20))), vec![]),
        ];
        check(files, &[(11, 20)], 0);
    }

    #[test]
    fn a_bad_frame_before_a_later_one_is_corruption() {
        check(vec![file(Some(run("a", 0, 1, 4)), vec![run("a", 5 * 4096, 6, 9)])], &[(1, 4), (6, 9)], 1);
    }

    #[test]
    fn a_bad_first_frame_before_a_later_one_is_corruption() {
        let files = vec![
            file(None, vec![floored(11, run("a", 4096, 22, 25))]),
            file(Some(run("b", 0, 11, 20)), vec![]),
        ];
        check(files, &[(11, 20), (22, 25)], 1);
        check(vec![file(None, vec![run("a", 4096, 2, 5)])], &[(2, 5)], 1);
    }

    #[test]
    fn a_frame_after_which_none_can_come_is_a_frame() {
        let last = floored(u64::MAX, run("a", 0, u64::MAX, u64::MAX));
        check(vec![file(Some(last), vec![])], &[(u64::MAX, u64::MAX)], 0);
    }

    #[test]
    fn a_bad_last_frame_of_a_file_shows_by_the_next_file() {
        let files = vec![file(Some(run("a", 0, 1, 4)), vec![]), file(Some(run("b", 0, 6, 9)), vec![])];
        let scan = judge_core(files);
        assert_eq!(scan.corruption.len(), 1);
        assert!(
            scan.corruption[0].starts_with("a at position 16384: frames 5 to 5"),
            "{}",
            scan.corruption[0]
        );
    }
}
