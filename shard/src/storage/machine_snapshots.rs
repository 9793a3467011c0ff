//! The snapshots of one replicated machine on disk, beside its partition's segments: written, found at a start, removed.
//!
//! Never moves the log's start: whoever took the snapshot does, once [`MachineSnapshots::save`] has ended, and removes older ones
//! once that start is durable. So at any moment the log and one of the files make the whole state: before the start is
//! durable the older file with a longer log, afterwards the newer one.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use ringlog_io::{Io, OpenOptions};
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::core_storage::CoreStorage;
use super::folder::{partition_folder, topic_folder};
use super::machine_snapshot_file::{
    MACHINE_SNAPSHOT_VERSION, MachineSnapshotError, decode_machine_snapshot, encode_machine_snapshot,
    machine_snapshot_name, parse_machine_snapshot_name,
};
use crate::limits::MACHINE_SNAPSHOT_FILE_BYTES_MAX;
use crate::state_machine::MachineSnapshot;

/// Behind the name of a snapshot that speaks of records which the log does not have.
const AHEAD_SUFFIX: &str = ".ahead";

/// Behind a name while its file is written.
const NEW_SUFFIX: &str = ".new";

/// Where the snapshots of one machine lie.
#[derive(Clone, Debug)]
pub struct MachineSnapshots {
    io: Io,
    /// Folder of the topics' folders.
    data: PathBuf,
    key: TopicPartition,
}

/// Why a snapshot is not written or not found.
#[derive(Debug, thiserror::Error)]
pub enum MachineSnapshotsError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "a snapshot of {bytes} bytes is larger than the {MACHINE_SNAPSHOT_FILE_BYTES_MAX} that a start reads"
    )]
    TooLarge { bytes: u64 },
    /// What the log held once cannot be made again.
    #[error(
        "the log in {} begins at offset {log_start}, and no snapshot there holds what came before: {refused}",
        folder.display()
    )]
    NoneCovers { folder: PathBuf, log_start: Offset, refused: String },
}

/// Why one file was passed over.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it ends at an offset below the log's start")]
    BelowStart,
    #[error("it speaks of records up to its offset, and the log ends at {log_end}")]
    Ahead { log_end: Offset },
    #[error("it has {bytes} bytes, at most {MACHINE_SNAPSHOT_FILE_BYTES_MAX} are read")]
    TooLarge { bytes: u64 },
    #[error(transparent)]
    Content(#[from] MachineSnapshotError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl CoreStorage {
    /// The snapshots of the machine that lives by this partition; `None` where nothing is stored in files.
    #[must_use]
    pub fn machine_snapshots(&self, key: TopicPartition) -> Option<MachineSnapshots> {
        let inner = self.inner();
        let (io, data) = (inner.io.clone(), inner.data.clone());
        (!inner.is_ephemeral).then_some(MachineSnapshots { io, data, key })
    }
}

impl MachineSnapshots {
    /// Writes a snapshot beside those that are there. Once this has ended it survives a power cut.
    ///
    /// # Errors
    /// It is too large, or a step failed: then it may be there or not, and the older ones still count.
    pub async fn save(&self, snapshot: &MachineSnapshot) -> Result<(), MachineSnapshotsError> {
        let bytes = encode_machine_snapshot(self.key, snapshot);
        let length = bytes.len() as u64;
        if length > MACHINE_SNAPSHOT_FILE_BYTES_MAX {
            return Err(MachineSnapshotsError::TooLarge { bytes: length });
        }
        let folder = self.folder();
        let path = folder.join(machine_snapshot_name(snapshot.offset));
        self.write(&folder, &path, bytes).await.map_err(failed(&path))?;
        ringlog_io::reached!("machine_snapshot.saved");
        Ok(())
    }

    async fn write(&self, folder: &Path, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
        // It is made with the first flush of the partition otherwise, which may still be to come or on its way: so the names above
        // are synced in any case.
        self.io.create_directories(folder).await?;
        self.io.replace_file(path, bytes).await?;
        self.io.sync_directory(&topic_folder(&self.data, self.key.topic)).await?;
        self.io.sync_directory(&self.data).await
    }

    /// The newest snapshot that checks and whose offset lies within the log. What is passed over is logged, and one beyond the log's
    /// end gets another name: the log may grow past it by other records. `None` if there is none and the log begins at 0.
    ///
    /// # Errors
    /// [`MachineSnapshotsError::NoneCovers`]: there is none and the log begins later. Or the folder cannot be read.
    pub async fn newest_within(
        &self,
        log: RangeInclusive<Offset>,
    ) -> Result<Option<MachineSnapshot>, MachineSnapshotsError> {
        let mut refused = Vec::new();
        for (offset, version, name) in self.list().await?.into_iter().rev() {
            let path = self.folder().join(&name);
            let refusal = match self.read(&path, offset, version, &log).await {
                Ok(snapshot) => {
                    ringlog_io::reached!("machine_snapshot.restored");
                    return Ok(Some(snapshot));
                }
                Err(refusal) => refusal,
            };
            if let Refusal::Ahead { .. } = refusal {
                self.set_aside(&path).await.map_err(failed(&path))?;
            }
            if !matches!(refusal, Refusal::BelowStart) {
                tracing::warn!(path = %path.display(), reason = %refusal, "a snapshot of a machine is not used");
            }
            refused.push(format!("{}: {refusal}", path.display()));
        }
        if log.start().0 == 0 {
            return Ok(None);
        }
        if refused.is_empty() {
            refused.push("there is none".to_owned());
        }
        Err(MachineSnapshotsError::NoneCovers {
            folder: self.folder(),
            log_start: *log.start(),
            refused: refused.join("; "),
        })
    }

    async fn read(
        &self,
        path: &Path,
        offset: Offset,
        version: u64,
        log: &RangeInclusive<Offset>,
    ) -> Result<MachineSnapshot, Refusal> {
        if offset > *log.end() {
            return Err(Refusal::Ahead { log_end: *log.end() });
        }
        if offset < *log.start() {
            return Err(Refusal::BelowStart);
        }
        if version != u64::from(MACHINE_SNAPSHOT_VERSION) {
            return Err(MachineSnapshotError::Version { found: version }.into());
        }
        let file = self.io.open(path, OpenOptions::READ).await?;
        let bytes = self.io.file_length(&file).await?;
        let length = usize::try_from(bytes).ok().filter(|_| bytes <= MACHINE_SNAPSHOT_FILE_BYTES_MAX);
        let Some(length) = length else { return Err(Refusal::TooLarge { bytes }) };
        let content = self.io.read_at(&file, 0, length).await?;
        Ok(decode_machine_snapshot(self.key, offset, &content)?)
    }

    async fn set_aside(&self, path: &Path) -> io::Result<()> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(AHEAD_SUFFIX);
        self.io.rename(path, Path::new(&aside)).await?;
        self.io.sync_directory(&self.folder()).await
    }

    /// Removes the snapshots below an offset, and halves of them. Only for a start of the log that is durable; nothing rests on it.
    ///
    /// # Errors
    /// Of the first file that stays.
    pub async fn remove_below(&self, offset: Offset) -> Result<(), MachineSnapshotsError> {
        let folder = self.folder();
        for name in self.names().await? {
            let whole = name.strip_suffix(NEW_SUFFIX).unwrap_or(&name);
            if parse_machine_snapshot_name(whole).is_some_and(|(found, _)| found < offset) {
                let path = folder.join(&name);
                self.io.remove_file(&path).await.map_err(failed(&path))?;
            }
        }
        Ok(())
    }

    /// Offset, version and name of each, ascending.
    async fn list(&self) -> Result<Vec<(Offset, u64, String)>, MachineSnapshotsError> {
        let parsed = |name: String| {
            parse_machine_snapshot_name(&name).map(|(offset, version)| (offset, version, name))
        };
        let mut found: Vec<_> = self.names().await?.into_iter().filter_map(parsed).collect();
        found.sort_unstable();
        Ok(found)
    }

    async fn names(&self) -> Result<Vec<String>, MachineSnapshotsError> {
        let folder = self.folder();
        match self.io.list_directory(&folder).await {
            Ok(entries) => {
                let files = entries.into_iter().filter(|entry| !entry.is_directory);
                Ok(files.map(|entry| entry.name).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(failed(&folder)(source)),
        }
    }

    fn folder(&self) -> PathBuf {
        partition_folder(&self.data, self.key)
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> MachineSnapshotsError + use<> {
    let path = path.to_owned();
    move |source| MachineSnapshotsError::Io { path, source }
}

#[cfg(test)]
mod tests;
