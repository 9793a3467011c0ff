//! Carries recovery out: read, replay, sync, write the new generation, switch the manifest, remove the old one.
//!
//! Until the switch the old generation is untouched, so a crash anywhere starts over from the same entries and ends with
//! the same bytes. Runs on one executor before the cores serve.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::{File, Io, OpenOptions, Priority, Task};
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::generation::write_core;
use super::partition_folder::{Folder, list_folders, list_partitions, read_folder};
use super::plan::{PartitionPlan, PlannedWrite, SegmentPlan, plan_compacted};
use crate::journal::JournalError;
use crate::journal::entry::Reference;
use crate::journal::format::{MANIFEST_NAME, Manifest, ManifestError, generation_name};
use crate::journal::frame::FrameOrigin;
use crate::journal::read_again::read_again;
use crate::journal::reader::{FileScan, FoundEntry, judge_core, scan_file};
use crate::limits::{CHECKPOINT_WRITE_BYTES_MAX, RECOVERY_PARTITIONS_AT_ONCE};
use crate::storage::durable_folder::make_folder;
use crate::storage::folder::{DAMAGE_MARKER, partition_folder, segment_name, sidecar_path};
use crate::storage::recorder::{CheckpointPlace, read_checkpoints, remove_old_checkpoints};
use crate::storage::recovered::{
    CoveredEnd, NodeRecovery, RecoveredPartition, RecoveryReport, ShardRecovery,
};
use crate::storage::settings::StorageSettings;
use crate::storage::side_by_side::side_by_side;
use crate::storage::space::NodeSpace;
use crate::storage::{Damage, DataDirectory};

/// Why a node cannot start from its directory.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error("{}: {source}; restore the file from a copy", path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("{} is missing although {} holds partitions: without it nobody knows what was acknowledged; restore the journal's folder", path.display(), data.display())]
    ManifestMissing { path: PathBuf, data: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("stopped at {step:?}: {source}")]
    Stopped { step: RecoveryStep, source: io::Error },
}

/// Steps between which a test may stop a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Journals are read, nothing is changed.
    Planned,
    /// One partition's segments are as the plan wants them, synced.
    PartitionReplayed,
    /// The new generation's files are synced, the manifest names the old one.
    GenerationWritten,
    /// The manifest names the new generation, the old files are still there.
    ManifestSwitched,
}

/// Called after each step; an error stops the recovery there, as a crash would.
pub type RecoveryHook<'a> = &'a dyn Fn(RecoveryStep) -> io::Result<()>;

/// Brings a data directory to the state that every acknowledged entry asks for and divides it among `core_count` cores.
///
/// # Errors
/// See [`RecoveryError`]. Damage of one partition is no error: it is in the report and in the partition.
pub async fn recover(
    io: &Io,
    directory: &DataDirectory,
    core_count: u32,
    core_of: &dyn Fn(TopicPartition) -> u32,
    settings: &StorageSettings,
) -> Result<NodeRecovery, RecoveryError> {
    recover_with(io, directory, core_count, core_of, settings, &|_| Ok(())).await
}

/// [`recover`] that tells each step to a hook.
///
/// # Errors
/// As [`recover`], and [`RecoveryError::Stopped`] where the hook failed.
pub async fn recover_with(
    io: &Io,
    directory: &DataDirectory,
    core_count: u32,
    core_of: &dyn Fn(TopicPartition) -> u32,
    settings: &StorageSettings,
    hook: RecoveryHook<'_>,
) -> Result<NodeRecovery, RecoveryError> {
    assert!(core_count > 0, "a node has at least one core");
    settings.journal.validate()?;
    let journal = directory.journal().to_owned();
    let data = directory.data();
    make_folder(io, &journal).await.map_err(|source| RecoveryError::Io { path: journal.clone(), source })?;
    let folders = list_partitions(io, &data).await?;
    let old = read_manifest(io, &journal, &data, !folders.is_empty()).await?;
    let mut report = RecoveryReport::default();
    let read = match &old {
        Some(manifest) => read_generation(io, &journal, manifest, &mut report).await?,
        None => Vec::new(),
    };
    let frames_are_missing = !report.corruption.is_empty();
    let work = plan_all(read, folders, frames_are_missing);
    step(hook, RecoveryStep::Planned)?;
    let mut partitions = replay_all(io, &data, work, &mut report, hook).await?;
    partitions.sort_by_key(|partition| partition.key);
    report.partitions = partitions.len() as u64;
    let checkpoints = directory.checkpoints();
    if let Some(manifest) = &old {
        hand_out_checkpoints(io, &checkpoints, manifest.generation, &mut partitions, &mut report).await;
    }

    let manifest = Manifest {
        core_count,
        generation: old.map_or(1, |manifest| manifest.generation + 1),
        salt: io.random_u64(),
    };
    // Under a name that nobody reads, so it need not wait for what it names.
    let path = journal.join(MANIFEST_NAME);
    let fresh = {
        let (io, path, content) = (io.clone(), path.clone(), manifest.encode());
        async move { io.write_beside(&path, content).await }
    };
    let fresh = io.spawn(Priority::Foreground, fresh);
    let mut shards = write_generation(io, &journal, &data, &manifest, partitions, core_of, settings).await?;
    write_checkpoints(io, &checkpoints, &mut shards).await;
    let failed = |source| RecoveryError::Io { path: path.clone(), source };
    let fresh = fresh.await.map_err(failed)?;
    step(hook, RecoveryStep::GenerationWritten)?;
    io.rename(&fresh, &path).await.map_err(failed)?;
    io.sync_directory(&journal).await.map_err(failed)?;
    step(hook, RecoveryStep::ManifestSwitched)?;
    // Damage keeps its evidence: somebody may bring back by hand what recovery would not guess.
    let keep = old.filter(|_| !report.corruption.is_empty()).map(|manifest| manifest.generation);
    remove_old_generations(io, &journal, manifest.generation, keep).await?;
    if let Err(error) = remove_old_checkpoints(io, &checkpoints, manifest.generation).await {
        // Never read again: its name states another generation.
        tracing::warn!(path = %checkpoints.display(), %error, "an old checkpoint stays");
    }
    Ok(NodeRecovery { shards, report })
}

fn step(hook: RecoveryHook<'_>, step: RecoveryStep) -> Result<(), RecoveryError> {
    hook(step).map_err(|source| RecoveryError::Stopped { step, source })
}

/// Gives each partition what the old generation's checkpoints knew of it. Without them it is scanned.
async fn hand_out_checkpoints(
    io: &Io,
    folder: &Path,
    generation: u64,
    partitions: &mut [RecoveredPartition],
    report: &mut RecoveryReport,
) {
    let (mut found, read_bytes) = match read_checkpoints(io, folder, generation).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(path = %folder.display(), %error, "checkpoints cannot be read; all partitions are scanned");
            return;
        }
    };
    report.checkpoint_bytes = read_bytes;
    for partition in partitions.iter_mut().filter(|partition| partition.damage.is_none()) {
        partition.checkpoint = found.remove(&partition.key);
        report.checkpointed += u64::from(partition.checkpoint.is_some());
    }
}

/// Begins each core's checkpoint file with what is known, so that the old ones may go.
async fn write_checkpoints(io: &Io, folder: &Path, shards: &mut [ShardRecovery]) {
    for shard in shards {
        let FrameOrigin { generation, core, .. } = shard.journal.origin;
        let known = shard.partitions.iter().filter_map(|partition| partition.checkpoint.as_deref());
        match CheckpointPlace::create(io, folder, core, generation, known).await {
            Ok(place) => shard.checkpoint = place,
            Err(error) => {
                tracing::warn!(path = %folder.display(), %error, "a checkpoint cannot be written; it is begun anew later");
                shard.checkpoint = CheckpointPlace::empty(folder, core, generation);
            }
        }
    }
}

async fn read_manifest(
    io: &Io,
    journal: &Path,
    data: &Path,
    has_data: bool,
) -> Result<Option<Manifest>, RecoveryError> {
    let path = journal.join(MANIFEST_NAME);
    match io.read_file(&path).await {
        Ok(bytes) => {
            Manifest::decode(&bytes).map(Some).map_err(|source| RecoveryError::Manifest { path, source })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_data => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(RecoveryError::ManifestMissing { path, data: data.to_owned() })
        }
        Err(source) => Err(RecoveryError::Io { path, source }),
    }
}

/// The core that a journal file's name states.
fn parse_core(name: &str) -> Option<u32> {
    let (core, number) = name.strip_prefix("core-")?.strip_suffix(".journal")?.split_once('-')?;
    let _: u32 = number.parse().ok()?;
    core.parse().ok()
}

async fn read_generation(
    io: &Io,
    journal: &Path,
    manifest: &Manifest,
    report: &mut RecoveryReport,
) -> Result<Vec<FoundEntry>, RecoveryError> {
    let folder = journal.join(generation_name(manifest.generation));
    let failed = |path: &Path, source| RecoveryError::Io { path: path.to_owned(), source };
    let names = io.list_directory(&folder).await.map_err(|source| failed(&folder, source))?;
    let mut cores: BTreeMap<u32, Vec<FileScan>> = BTreeMap::new();
    for entry in names {
        let Some(core) = parse_core(&entry.name) else { continue };
        let path = folder.join(&entry.name);
        let scan = scan_file(io, &path, core, manifest).await.map_err(|source| failed(&path, source))?;
        cores.entry(core).or_default().push(scan);
    }
    report.generation = manifest.generation;
    let mut entries = Vec::new();
    for files in cores.into_values() {
        let scan = judge_core(files);
        for corruption in scan.corruption {
            tracing::error!(%corruption, "journal frames are missing; partitions that they concern are reported each");
            report.corruption.push(corruption);
        }
        for run in scan.runs {
            report.frames += run.frame_count;
            report.entries += run.entries.len() as u64;
            entries.extend(run.entries);
        }
    }
    Ok(entries)
}

/// One partition's share of the work.
struct Work {
    key: TopicPartition,
    plan: PartitionPlan,
    folder: Folder,
}

fn plan_all(
    entries: Vec<FoundEntry>,
    folders: BTreeMap<TopicPartition, Folder>,
    frames_are_missing: bool,
) -> VecDeque<Work> {
    let mut by_key: BTreeMap<TopicPartition, Vec<FoundEntry>> = BTreeMap::new();
    for key in folders.keys() {
        by_key.insert(*key, Vec::new());
    }
    for entry in entries {
        by_key.entry(entry.key).or_default().push(entry);
    }
    let plan_one = |(key, entries)| {
        let folder = folders.get(&key).cloned().unwrap_or_default();
        let through = folder.compaction.map_or(0, |mark| mark.sequence);
        Work { key, plan: plan_compacted(entries, &folder.segments, frames_are_missing, through), folder }
    };
    by_key.into_iter().map(plan_one).collect()
}

/// What the replaying tasks share.
struct Replaying {
    io: Io,
    data: PathBuf,
    work: RefCell<VecDeque<Work>>,
    done: RefCell<Vec<Replayed>>,
}

struct Replayed {
    key: TopicPartition,
    result: Result<Option<RecoveredPartition>, RecoveryError>,
    restored_bytes: u64,
    verified_bytes: u64,
}

async fn replay_all(
    io: &Io,
    data: &Path,
    work: VecDeque<Work>,
    report: &mut RecoveryReport,
    hook: RecoveryHook<'_>,
) -> Result<Vec<RecoveredPartition>, RecoveryError> {
    let mut partitions = Vec::new();
    let shared = Rc::new(Replaying {
        io: io.clone(),
        data: data.to_owned(),
        work: RefCell::new(work),
        done: RefCell::default(),
    });
    let spawn = |_| {
        let shared = Rc::clone(&shared);
        io.spawn(Priority::Foreground, async move { replay_next(&shared).await })
    };
    // A wave ends before its steps are told, so that the hook sees finished partitions only.
    loop {
        let wave: Vec<Task<()>> = (0..RECOVERY_PARTITIONS_AT_ONCE).map(spawn).collect();
        for task in wave {
            task.await;
        }
        let done = shared.done.take();
        if done.is_empty() {
            return Ok(partitions);
        }
        for replayed in done {
            report.restored_bytes += replayed.restored_bytes;
            report.verified_bytes += replayed.verified_bytes;
            match replayed.result? {
                Some(partition) => {
                    if let Some(damage) = &partition.damage {
                        tracing::error!(topic_id = %replayed.key.topic, partition = replayed.key.partition.0, %damage, "partition is damaged");
                        report.corruption.push(damage.to_string());
                    }
                    partitions.push(partition);
                }
                None => report.deleted += 1,
            }
            step(hook, RecoveryStep::PartitionReplayed)?;
        }
    }
}

async fn replay_next(shared: &Replaying) {
    let next = shared.work.borrow_mut().pop_front();
    let Some(work) = next else { return };
    let key = work.key;
    let mut replay = PartitionReplay {
        io: &shared.io,
        folder: partition_folder(&shared.data, key),
        has_folder: work.folder.exists,
        restored_bytes: 0,
        verified_bytes: 0,
    };
    let result = replay.run(work).await;
    let PartitionReplay { restored_bytes, verified_bytes, .. } = replay;
    shared.done.borrow_mut().push(Replayed { key, result, restored_bytes, verified_bytes });
}

/// One partition's replay.
struct PartitionReplay<'a> {
    io: &'a Io,
    folder: PathBuf,
    has_folder: bool,
    restored_bytes: u64,
    verified_bytes: u64,
}

impl PartitionReplay<'_> {
    async fn run(&mut self, work: Work) -> Result<Option<RecoveredPartition>, RecoveryError> {
        let Work { key, mut plan, folder } = work;
        let failed = |path: &Path, source| RecoveryError::Io { path: path.to_owned(), source };
        if plan.remove_folder && self.has_folder {
            self.remove_folder().await.map_err(|source| failed(&self.folder, source))?;
        }
        if plan.is_gone {
            return Ok(None);
        }
        let mut damage = folder.marker.as_ref().filter(|_| !plan.remove_folder).map(|text| Damage {
            path: self.folder.join(DAMAGE_MARKER),
            position: 0,
            detail: text.clone(),
        });
        let had_marker = damage.is_some();
        if !plan.remove_folder {
            folder
                .finish_swaps(self.io, &self.folder)
                .await
                .map_err(|source| failed(&self.folder, source))?;
            self.remove_rewrites(&folder.unfinished_rewrites).await;
        }
        // All of them before anything is changed: a cut that comes first by place may be found wrong by a later segment.
        let bad = self.bad_references(&plan).await;
        if had_marker || !bad.is_empty() {
            plan.cut_nothing();
        }
        damage = damage.or_else(|| bad.values().next().cloned());
        let sound = self.sound_tail(&plan).await.map_err(|source| failed(&self.folder, source))?;
        plan.keep_tail(sound);
        for (base, segment) in &plan.segments {
            let path = self.folder.join(segment_name(*base));
            let bound = bad.get(base).map_or(u64::MAX, |damage| damage.position);
            match self.replay_segment(&path, segment, bound).await {
                Ok(()) => {}
                // Without space nothing can be brought back; the journal keeps it, and the next start tries again.
                Err(source) if source.kind() == io::ErrorKind::StorageFull => {
                    return Err(failed(&path, source));
                }
                Err(source) => {
                    let detail = format!("replay failed: {source}");
                    damage = damage.or(Some(Damage { path, position: 0, detail }));
                }
            }
        }
        damage = damage.or(plan.damage.as_ref().map(|found| Damage {
            path: self.folder.join(segment_name(found.segment_base)),
            position: u64::from(found.position),
            detail: found.detail.clone(),
        }));
        if !plan.segments.is_empty() {
            self.sync_names().await.map_err(|source| failed(&self.folder, source))?;
        }
        let covered = self.covered(&plan, sound).await.map_err(|source| failed(&self.folder, source))?;
        if let Some(damage) = damage.as_ref().filter(|_| !had_marker) {
            self.mark_damaged(damage).await.map_err(|source| failed(&self.folder, source))?;
        }
        let is_there = self.has_folder;
        let now = if is_there { read_folder(self.io, &self.folder, key).await? } else { Folder::default() };
        Ok(Some(recovered(key, plan, now, covered, damage)))
    }

    async fn remove_folder(&mut self) -> io::Result<()> {
        self.io.remove_directory_all(&self.folder).await?;
        self.has_folder = false;
        match self.folder.parent() {
            Some(topic) => self.io.sync_directory(topic).await,
            None => Ok(()),
        }
    }

    async fn remove_rewrites(&self, paths: &[PathBuf]) {
        for path in paths {
            match self.io.remove_file(path).await {
                Ok(()) => {
                    tracing::info!(path = %path.display(), "removed a segment that was being written anew")
                }
                // It takes space and nothing else.
                Err(error) => tracing::warn!(path = %path.display(), %error, "an unfinished segment stays"),
            }
        }
    }

    async fn make_folder(&mut self) -> io::Result<()> {
        if !self.has_folder {
            self.io.create_directories(&self.folder).await?;
            self.has_folder = true;
        }
        Ok(())
    }

    async fn sync_names(&self) -> io::Result<()> {
        if !self.has_folder {
            return Ok(());
        }
        self.io.sync_directory(&self.folder).await?;
        let topic = self.folder.parent();
        for parent in [topic, topic.and_then(Path::parent)].into_iter().flatten() {
            self.io.sync_directory(parent).await?;
        }
        Ok(())
    }

    async fn mark_damaged(&mut self, damage: &Damage) -> io::Result<()> {
        self.make_folder().await?;
        self.io.replace_file(&self.folder.join(DAMAGE_MARKER), format!("{damage}\n").into_bytes()).await?;
        self.sync_names().await
    }

    /// The first bytes of each segment that a reference names and that do not check.
    async fn bad_references(&self, plan: &PartitionPlan) -> BTreeMap<Offset, Damage> {
        let mut bad = BTreeMap::new();
        for (base, segment) in plan.segments.iter().filter(|(_, segment)| !segment.references.is_empty()) {
            let path = self.folder.join(segment_name(*base));
            let damage = |reference: &Reference, detail: String| {
                let position = u64::from(reference.position);
                Some(Damage { path: path.clone(), position, detail })
            };
            let opened = self.io.open(&path, OpenOptions::READ).await;
            let mut found = None;
            for reference in &segment.references {
                found = match &opened {
                    Ok(file) => match self.sound_bytes(file, reference).await {
                        Ok(Some(_)) => None,
                        Ok(None) => damage(
                            reference,
                            format!("{} bytes that a journal entry names do not check", reference.length),
                        ),
                        Err(error) => damage(reference, format!("cannot be read: {error}")),
                    },
                    Err(error) => damage(reference, format!("cannot be opened: {error}")),
                };
                if found.is_some() {
                    break;
                }
            }
            bad.extend(found.map(|damage| (*base, damage)));
        }
        bad
    }

    /// Brings one segment to what the plan says. At and behind `bound`, where it is damaged, nothing is touched.
    async fn replay_segment(&mut self, path: &Path, plan: &SegmentPlan, bound: u64) -> io::Result<()> {
        if plan.remove {
            // Its sidecar too: a later segment may get the same name.
            self.remove_if_there(&sidecar_path(path)).await?;
            return self.remove_if_there(path).await;
        }
        if !plan.writes.is_empty() {
            self.make_folder().await?;
        }
        let options = OpenOptions {
            read: true,
            write: true,
            create: !plan.writes.is_empty(),
            ..OpenOptions::default()
        };
        let file = match self.io.open(path, options).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if plan.exact_length.is_some() {
            // Its sums and its footer are those of what was cut off.
            self.remove_if_there(&sidecar_path(path)).await?;
        }
        let sound = plan.writes.partition_point(|write| u64::from(write.position) < bound);
        let writes = plan.writes.get(..sound).unwrap_or_default();
        for run in contiguous_runs(writes) {
            self.write_run(&file, run).await?;
        }
        if cfg!(feature = "planted-replay-shortens")
            && let Some(last) = writes.last()
        {
            self.io.truncate(&file, u64::from(last.end())).await?;
        }
        if let Some(length) = plan.exact_length
            && self.io.file_length(&file).await? > u64::from(length)
        {
            self.io.truncate(&file, u64::from(length)).await?;
        }
        // Also when every byte was in place: it may be in the page cache only.
        self.io.sync_all(&file).await
    }

    async fn remove_if_there(&self, path: &Path) -> io::Result<()> {
        match self.io.remove_file(path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// The bytes that a reference names, if they check.
    async fn sound_bytes(&self, file: &File, reference: &Reference) -> io::Result<Option<Bytes>> {
        let bytes =
            read_again(self.io, file, u64::from(reference.position), reference.length as usize).await?;
        let is_sound = bytes.len() == reference.length as usize && crc32fast::hash(&bytes) == reference.crc;
        Ok(is_sound.then_some(bytes))
    }

    async fn write_run(&mut self, file: &File, run: &[PlannedWrite]) -> io::Result<()> {
        let Some(first) = run.first() else { return Ok(()) };
        let position = u64::from(first.position);
        let length: usize = run.iter().map(|write| write.bytes.len()).sum();
        // The journal has these bytes: where they cannot be read they are written anew like any others.
        let present = self.io.read_at(file, position, length).await.unwrap_or_default();
        if is_equal(&present, run) {
            self.verified_bytes += length as u64;
        } else {
            self.restored_bytes += length as u64;
        }
        // Also what is equal: it was read from the page cache, and after a failed sync that holds, as clean, what the device
        // does not. Written again it is synced for good; the journal keeps it until then.
        self.io.write_at(file, position, run.iter().map(|write| write.bytes.clone()).collect()).await
    }

    /// How many of the last references name bytes that are there, up to the first whose are not.
    async fn sound_tail(&self, plan: &PartitionPlan) -> io::Result<usize> {
        for (count, reference) in plan.last_references.iter().enumerate() {
            let path = self.folder.join(segment_name(reference.segment_base));
            match self.io.open(&path, OpenOptions::READ).await {
                Ok(file) if self.sound_bytes(&file, reference).await?.is_some() => {}
                Ok(_) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        Ok(plan.last_references.len())
    }

    /// The end of what was acknowledged; of the last references the first `sound` count.
    async fn covered(&self, plan: &PartitionPlan, sound: usize) -> io::Result<Option<CoveredEnd>> {
        for reference in plan.last_references.iter().take(sound) {
            let path = self.folder.join(segment_name(reference.segment_base));
            let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
            let file = self.io.open(&path, options).await?;
            let Some(bytes) = self.sound_bytes(&file, reference).await? else {
                return Err(io::Error::other("bytes that were there are not any more"));
            };
            // Nobody knows whether the sync before the crash went well: see `write_run`.
            self.io.write_at(&file, u64::from(reference.position), vec![bytes]).await?;
            self.io.sync_all(&file).await?;
        }
        if sound > 0 {
            self.sync_names().await?;
        }
        Ok(plan.covered_with(sound))
    }
}

/// Runs of writes that touch, each of a bounded length: one read and at most one write for all of them.
fn contiguous_runs(writes: &[PlannedWrite]) -> impl Iterator<Item = &[PlannedWrite]> {
    let mut run_bytes = 0;
    writes.chunk_by(move |before, after| {
        run_bytes += before.bytes.len();
        let goes_on =
            before.end() == after.position && run_bytes + after.bytes.len() <= CHECKPOINT_WRITE_BYTES_MAX;
        if !goes_on {
            run_bytes = 0;
        }
        goes_on
    })
}

fn is_equal(present: &Bytes, run: &[PlannedWrite]) -> bool {
    let mut rest = &present[..];
    run.iter().all(|write| match rest.strip_prefix(&write.bytes[..]) {
        Some(after) => {
            rest = after;
            true
        }
        None => false,
    })
}

fn recovered(
    key: TopicPartition,
    plan: PartitionPlan,
    folder: Folder,
    covered: Option<CoveredEnd>,
    damage: Option<Damage>,
) -> RecoveredPartition {
    let (hard_state_sequence, hard_state) =
        plan.hard_state.map_or((0, None), |(sequence, state)| (sequence, Some(state)));
    RecoveredPartition {
        key,
        hard_state,
        hard_state_sequence,
        log_start: plan.log_start,
        log_start_sequence: plan.log_start_sequence,
        next_sequence: plan.next_sequence,
        segments: folder.segments,
        covered,
        checkpoint: None,
        compaction: folder.compaction,
        damage,
    }
}

async fn write_generation(
    io: &Io,
    journal: &Path,
    data: &Path,
    manifest: &Manifest,
    partitions: Vec<RecoveredPartition>,
    core_of: &dyn Fn(TopicPartition) -> u32,
    settings: &StorageSettings,
) -> Result<Vec<ShardRecovery>, RecoveryError> {
    let mut by_core: Vec<Vec<RecoveredPartition>> = (0..manifest.core_count).map(|_| Vec::new()).collect();
    for partition in partitions {
        let core = core_of(partition.key) as usize;
        assert!(core < by_core.len(), "{} is placed on core {core} of {}", partition.key, by_core.len());
        by_core[core].push(partition);
    }
    let directory = journal.join(generation_name(manifest.generation));
    let failed = |source| RecoveryError::Io { path: directory.clone(), source };
    // Left by a start that did not end: the manifest never named it.
    if io.path_exists(&directory).await.map_err(failed)? {
        io.remove_directory_all(&directory).await.map_err(failed)?;
    }
    io.create_directories(&directory).await.map_err(failed)?;
    let its_name = {
        let (io, journal) = (io.clone(), journal.to_owned());
        async move { io.sync_directory(&journal).await }
    };
    let its_name = io.spawn(Priority::Foreground, its_name);
    let space = NodeSpace::new(manifest.core_count);
    let failures = Arc::default();
    let cores = (0..).zip(by_core).map(|(core, mut partitions)| {
        let origin = FrameOrigin { generation: manifest.generation, salt: manifest.salt, core };
        let (io, directory, data, settings) =
            (io.clone(), directory.clone(), data.to_owned(), settings.journal);
        let (space, failures) = (Arc::clone(&space), Arc::clone(&failures));
        async move {
            let (journal, journal_files) =
                write_core(&io, &directory, origin, &mut partitions, &settings).await?;
            let checkpoint = CheckpointPlace::default();
            let shard =
                ShardRecovery { core, partitions, data, journal, journal_files, checkpoint, space, failures };
            Ok::<ShardRecovery, RecoveryError>(shard)
        }
    });
    let shards = side_by_side(io, cores).await?;
    its_name.await.map_err(failed)?;
    io.sync_directory(&directory).await.map_err(failed)?;
    Ok(shards)
}

async fn remove_old_generations(
    io: &Io,
    journal: &Path,
    current: u64,
    keep: Option<u64>,
) -> Result<(), RecoveryError> {
    let current_name = generation_name(current);
    let mut has_changed = false;
    for name in list_folders(io, journal).await? {
        let is_generation =
            name.len() == current_name.len() && name.bytes().all(|byte| byte.is_ascii_digit());
        if !is_generation || name == current_name {
            continue;
        }
        has_changed = true;
        let path = journal.join(&name);
        let failed = |source| RecoveryError::Io { path: path.clone(), source };
        if keep.is_some_and(|generation| generation_name(generation) == name) {
            let kept = journal.join(format!("damaged-{name}"));
            tracing::error!(path = %kept.display(), "kept the journal of a damaged start");
            io.rename(&path, &kept).await.map_err(failed)?;
        } else {
            io.remove_directory_all(&path).await.map_err(failed)?;
        }
    }
    if !has_changed {
        return Ok(());
    }
    io.sync_directory(journal).await.map_err(|source| RecoveryError::Io { path: journal.to_owned(), source })
}

#[cfg(test)]
mod replay_tests;
