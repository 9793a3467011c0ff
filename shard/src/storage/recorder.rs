//! The checkpoint file of a core as it is written: records are appended, and the file is written anew once half of it counts
//! no more. A failure costs a longer start and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::{File, Io, OpenOptions};
use ringlog_protocol::ids::TopicPartition;

use super::checkpoint_file::{
    CheckpointFile, PartitionCheckpoint, checkpoint_name, decode_record, encode_header,
    parse_checkpoint_name, record_body,
};
use crate::journal::Signal;
use crate::limits::{
    CHECKPOINT_FILE_BYTES_MAX, CHECKPOINT_FILE_SLACK_BYTES, CHECKPOINT_RECORDS_QUEUED_BYTES,
};

/// Where a record lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordPlace {
    position: u64,
    bytes: u64,
}

/// A core's checkpoint file as recovery leaves it.
#[derive(Clone, Debug, Default)]
pub struct CheckpointPlace {
    path: PathBuf,
    core: u32,
    generation: u64,
    /// Length of the file; 0 = there is none.
    file_bytes: u64,
    records: BTreeMap<TopicPartition, RecordPlace>,
}

impl CheckpointPlace {
    /// No file yet.
    pub(crate) fn empty(folder: &Path, core: u32, generation: u64) -> CheckpointPlace {
        let path = folder.join(checkpoint_name(core, generation));
        CheckpointPlace { path, core, generation, ..CheckpointPlace::default() }
    }

    /// Writes the first file of a generation, with what is known of the core's partitions.
    ///
    /// # Errors
    /// It cannot be written; then there is none.
    pub(crate) async fn create<'a>(
        io: &Io,
        folder: &Path,
        core: u32,
        generation: u64,
        partitions: impl Iterator<Item = &'a PartitionCheckpoint>,
    ) -> io::Result<CheckpointPlace> {
        let mut place = CheckpointPlace::empty(folder, core, generation);
        let mut bytes = encode_header(core, generation);
        for partition in partitions {
            let position = bytes.len() as u64;
            partition.encode(generation, &mut bytes);
            let record = RecordPlace { position, bytes: bytes.len() as u64 - position };
            place.records.insert(partition.key, record);
        }
        if !place.records.is_empty() {
            io.create_directories(folder).await?;
            place.file_bytes = bytes.len() as u64;
            io.replace_file(&place.path, bytes).await?;
        }
        Ok(place)
    }
}

/// Reads what the cores of a generation knew of their partitions; also the number of bytes read. What does not check is
/// said and left out.
pub(crate) async fn read_checkpoints(
    io: &Io,
    folder: &Path,
    generation: u64,
) -> io::Result<(BTreeMap<TopicPartition, Arc<PartitionCheckpoint>>, u64)> {
    let mut found: BTreeMap<TopicPartition, Arc<PartitionCheckpoint>> = BTreeMap::new();
    let mut read_bytes = 0;
    if !io.path_exists(folder).await? {
        return Ok((found, 0));
    }
    for entry in io.list_directory(folder).await? {
        let Some((core, _)) = parse_checkpoint_name(&entry.name).filter(|(_, of)| *of == generation) else {
            continue;
        };
        let path = folder.join(&entry.name);
        let bytes = match read_bounded(io, &path).await {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a checkpoint cannot be read; its partitions are scanned");
                continue;
            }
        };
        read_bytes += bytes.len() as u64;
        match CheckpointFile::decode(&bytes) {
            Ok(file) if (file.core, file.generation) == (core, generation) => {
                if let Some(position) = file.stopped_at {
                    tracing::info!(path = %path.display(), position, "a checkpoint ends early, as after a crash");
                }
                for (key, partition) in file.partitions {
                    let is_newer = found.get(&key).is_none_or(|known| known.sequence <= partition.sequence);
                    if is_newer {
                        found.insert(key, Arc::new(partition));
                    }
                }
            }
            Ok(_) => {
                tracing::warn!(path = %path.display(), "a checkpoint belongs to another core; its partitions are scanned");
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a checkpoint does not check; its partitions are scanned");
            }
        }
    }
    Ok((found, read_bytes))
}

async fn read_bounded(io: &Io, path: &Path) -> io::Result<Bytes> {
    let file = io.open(path, OpenOptions::READ).await?;
    let length = io.file_length(&file).await?.min(2 * CHECKPOINT_FILE_BYTES_MAX);
    io.read_at(&file, 0, usize::try_from(length).unwrap_or(0)).await
}

/// Removes the files of other generations.
pub(crate) async fn remove_old_checkpoints(io: &Io, folder: &Path, generation: u64) -> io::Result<()> {
    if !io.path_exists(folder).await? {
        return Ok(());
    }
    for entry in io.list_directory(folder).await? {
        if !entry.is_directory && parse_checkpoint_name(&entry.name).is_none_or(|(_, of)| of != generation) {
            io.remove_file(&folder.join(&entry.name)).await?;
        }
    }
    Ok(())
}

/// Writes one core's checkpoint file.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Writes come one after the other.
    turn: Signal,
    is_writing: Cell<bool>,
    place: RefCell<CheckpointPlace>,
    queued: RefCell<Vec<(TopicPartition, Vec<u8>)>>,
    queued_bytes: Cell<usize>,
    file: RefCell<Option<File>>,
    /// Something failed: what the file holds is read and checked before anything is appended.
    must_rewrite: Cell<bool>,
    skipped: Cell<u64>,
    written_bytes: Cell<u64>,
}

struct WriteTurn<'a> {
    recorder: &'a Recorder,
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        self.recorder.is_writing.set(false);
        self.recorder.turn.notify();
    }
}

impl Recorder {
    pub(super) fn new(place: CheckpointPlace) -> Recorder {
        Recorder {
            turn: Signal::default(),
            is_writing: Cell::new(false),
            place: RefCell::new(place),
            queued: RefCell::default(),
            queued_bytes: Cell::new(0),
            file: RefCell::default(),
            must_rewrite: Cell::new(false),
            skipped: Cell::new(0),
            written_bytes: Cell::new(0),
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.place.borrow().generation
    }

    /// Whether records are kept at all.
    pub(super) fn is_kept(&self) -> bool {
        !self.place.borrow().path.as_os_str().is_empty()
    }

    /// Whether one more may be queued now.
    pub(super) fn has_room(&self) -> bool {
        self.is_kept() && self.queued_bytes.get() < CHECKPOINT_RECORDS_QUEUED_BYTES
    }

    /// Bytes of the partition's record that counts; 0 = none.
    pub(super) fn record_bytes(&self, key: TopicPartition) -> u64 {
        self.place.borrow().records.get(&key).map_or(0, |record| record.bytes)
    }

    /// Records that did not fit into the file's bound.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.get()
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes.get()
    }

    /// The last write failed.
    pub(super) fn has_failed(&self) -> bool {
        self.must_rewrite.get()
    }

    /// Queues a record for the next write.
    pub(super) fn queue(&self, key: TopicPartition, record: Vec<u8>) {
        self.queued_bytes.set(self.queued_bytes.get() + record.len());
        self.queued.borrow_mut().push((key, record));
    }

    /// The partition's newest record, queued or in the file; none if there is none, or it cannot be read or does not check.
    pub(super) async fn newest(&self, io: &Io, key: TopicPartition) -> Option<PartitionCheckpoint> {
        let _turn = self.take_turn().await;
        let generation = self.generation();
        let queued = {
            let queued = self.queued.borrow();
            queued.iter().rev().find(|(of, _)| *of == key).map(|(_, record)| Bytes::copy_from_slice(record))
        };
        let bytes = match queued {
            Some(record) => record,
            None => {
                let (path, place) = {
                    let place = self.place.borrow();
                    (place.path.clone(), *place.records.get(&key)?)
                };
                let file = io.open(&path, OpenOptions::READ).await.ok()?;
                io.read_at(&file, place.position, usize::try_from(place.bytes).ok()?).await.ok()?
            }
        };
        let (record, _) = decode_record(&bytes, 0, generation)?;
        (record.key == key).then_some(record)
    }

    async fn take_turn(&self) -> WriteTurn<'_> {
        self.turn.until(|| (!self.is_writing.replace(true)).then_some(())).await;
        WriteTurn { recorder: self }
    }

    /// Writes and syncs what is queued. `holds` says which partitions are still of this core.
    pub(super) async fn write(&self, io: &Io, holds: impl Fn(TopicPartition) -> bool) {
        let _turn = self.take_turn().await;
        let queued = self.queued.take();
        self.queued_bytes.set(0);
        if queued.is_empty() {
            return;
        }
        if let Err(error) = self.try_write(io, queued, holds).await {
            let path = self.place.borrow().path.clone();
            tracing::warn!(path = %path.display(), %error, "a checkpoint was not written; a start would scan more");
            self.must_rewrite.set(true);
            self.file.replace(None);
        }
    }

    async fn try_write(
        &self,
        io: &Io,
        queued: Vec<(TopicPartition, Vec<u8>)>,
        holds: impl Fn(TopicPartition) -> bool,
    ) -> io::Result<()> {
        let new_bytes: u64 = queued.iter().map(|(_, record)| record.len() as u64).sum();
        let (file_bytes, live_bytes, path) = {
            let mut place = self.place.borrow_mut();
            place.records.retain(|key, _| holds(*key));
            let live: u64 = place.records.values().map(|record| record.bytes).sum();
            (place.file_bytes, live, place.path.clone())
        };
        let after = file_bytes + new_bytes;
        let is_long = after > 2 * (live_bytes + new_bytes) + CHECKPOINT_FILE_SLACK_BYTES;
        if file_bytes == 0 || is_long || after > CHECKPOINT_FILE_BYTES_MAX || self.must_rewrite.get() {
            return self.rewrite(io, &path, queued).await;
        }
        let mut bytes = Vec::with_capacity(usize::try_from(new_bytes).unwrap_or(0));
        let mut records = Vec::with_capacity(queued.len());
        for (key, record) in queued {
            let position = file_bytes + bytes.len() as u64;
            records.push((key, RecordPlace { position, bytes: record.len() as u64 }));
            bytes.extend_from_slice(&record);
        }
        let open = self.file.borrow().clone();
        let file = match open {
            Some(file) => file,
            None => {
                let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
                let file = io.open(&path, options).await?;
                self.file.replace(Some(file.clone()));
                file
            }
        };
        io.write_at(&file, file_bytes, vec![Bytes::from(bytes)]).await?;
        io.sync_data(&file).await?;
        self.written_bytes.set(self.written_bytes.get() + new_bytes);
        let mut place = self.place.borrow_mut();
        place.file_bytes = after;
        place.records.extend(records);
        Ok(())
    }

    /// Writes a new file of the records that count and the queued ones, as far as the bound goes.
    async fn rewrite(&self, io: &Io, path: &Path, queued: Vec<(TopicPartition, Vec<u8>)>) -> io::Result<()> {
        let has_old = self.place.borrow().file_bytes > 0;
        // What cannot be read any more is made again as its partitions go on.
        let old = if has_old { read_bounded(io, path).await.unwrap_or_default() } else { Bytes::new() };
        let (core, generation, known) = {
            let place = self.place.borrow();
            (place.core, place.generation, place.records.clone())
        };
        let queued: BTreeMap<TopicPartition, Vec<u8>> = queued.into_iter().collect();
        let mut bytes = encode_header(core, generation);
        let mut records = BTreeMap::new();
        let mut put = |key: TopicPartition, record: &[u8]| {
            let position = bytes.len() as u64;
            if position + record.len() as u64 > CHECKPOINT_FILE_BYTES_MAX / 2 {
                self.skipped.set(self.skipped.get() + 1);
                return;
            }
            bytes.extend_from_slice(record);
            records.insert(key, RecordPlace { position, bytes: record.len() as u64 });
        };
        for (key, record) in &queued {
            put(*key, record);
        }
        for (key, place) in known.iter().filter(|(key, _)| !queued.contains_key(key)) {
            let at = usize::try_from(place.position).unwrap_or(usize::MAX);
            let body = record_body(&old, at, generation);
            if let Some(record) = body.and_then(|body| old.get(at..body.end)) {
                put(*key, record);
            }
        }
        if let Some(folder) = path.parent() {
            io.create_directories(folder).await?;
        }
        let file_bytes = bytes.len() as u64;
        io.replace_file(path, bytes).await?;
        self.file.replace(None);
        self.must_rewrite.set(false);
        self.written_bytes.set(self.written_bytes.get() + file_bytes);
        let mut place = self.place.borrow_mut();
        (place.file_bytes, place.records) = (file_bytes, records);
        Ok(())
    }
}
