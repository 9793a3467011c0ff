//! What lies in the partitions' folders when a start looks. Reads; changes nothing but what a compaction left half done.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ringlog_io::{DirectoryEntry, Io, OpenOptions};
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::run::RecoveryError;
use crate::storage::compaction::CompactionMark;
use crate::storage::compaction::mark::COMPACTION_MARK;
use crate::storage::compaction::swap::{Swap, is_unfinished};
use crate::storage::folder::{
    DAMAGE_MARKER, REWRITE_SUFFIX, parse_partition_name, parse_segment_name, parse_topic_name, topic_folder,
};
use crate::storage::recovered::SegmentInfo;

/// Files of a partition's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Folder {
    pub(super) exists: bool,
    pub(super) segments: Vec<SegmentInfo>,
    /// Text of its damage marker.
    pub(super) marker: Option<String>,
    /// Segments that were being written anew. Until such a file takes its segment's name the segment, the journal or both
    /// hold all of it that was acknowledged.
    pub(super) unfinished_rewrites: Vec<PathBuf>,
    /// Segments that count although their place is not taken yet. `segments` is as if it were.
    pub(super) swaps: Vec<Found>,
    pub(super) compaction: Option<CompactionMark>,
}

/// A new segment and the old ones that are still there.
#[derive(Clone, Debug)]
pub(super) struct Found {
    swap: Swap,
    bytes: u64,
    old: Vec<Offset>,
}

pub(super) async fn list_partitions(
    io: &Io,
    data: &Path,
) -> Result<BTreeMap<TopicPartition, Folder>, RecoveryError> {
    let mut folders = BTreeMap::new();
    for topic_name in list_folders(io, data).await? {
        let Some(topic) = parse_topic_name(&topic_name).filter(|topic| !topic.is_zero()) else { continue };
        let topic_path = topic_folder(data, topic);
        for name in list_folders(io, &topic_path).await? {
            let Some(partition) = parse_partition_name(&name) else { continue };
            let key = TopicPartition { topic, partition };
            let folder = read_folder(io, &topic_path.join(&name), key).await?;
            folders.insert(key, folder);
        }
    }
    Ok(folders)
}

async fn list(io: &Io, path: &Path) -> Result<Vec<DirectoryEntry>, RecoveryError> {
    io.list_directory(path).await.map_err(|source| RecoveryError::Io { path: path.to_owned(), source })
}

pub(super) async fn list_folders(io: &Io, path: &Path) -> Result<Vec<String>, RecoveryError> {
    let entries = list(io, path).await?;
    Ok(entries.into_iter().filter(|entry| entry.is_directory).map(|entry| entry.name).collect())
}

pub(super) async fn read_folder(io: &Io, path: &Path, key: TopicPartition) -> Result<Folder, RecoveryError> {
    let mut folder = Folder { exists: true, ..Folder::default() };
    for DirectoryEntry { name, is_directory } in list(io, path).await? {
        if is_directory {
            continue;
        }
        let file_path = path.join(&name);
        let failed = |source| RecoveryError::Io { path: file_path.clone(), source };
        if name == DAMAGE_MARKER {
            let text = io.read_file(&file_path).await.map_err(failed)?;
            folder.marker = Some(String::from_utf8_lossy(&text).trim_end().to_owned());
        } else if let Some(base) = parse_segment_name(&name) {
            let file = io.open(&file_path, OpenOptions::READ).await.map_err(failed)?;
            let bytes = io.file_length(&file).await.map_err(failed)?;
            folder.segments.push(SegmentInfo { base, bytes });
        } else if name.strip_suffix(REWRITE_SUFFIX).and_then(parse_segment_name).is_some()
            || is_unfinished(&name)
        {
            folder.unfinished_rewrites.push(file_path);
        } else if let Some(swap) = Swap::parse(&name) {
            let file = io.open(&file_path, OpenOptions::READ).await.map_err(failed)?;
            let bytes = io.file_length(&file).await.map_err(failed)?;
            folder.swaps.push(Found { swap, bytes, old: Vec::new() });
        } else if name == COMPACTION_MARK {
            let text = io.read_file(&file_path).await.map_err(failed)?;
            match CompactionMark::decode(key, &text) {
                Ok(mark) => folder.compaction = Some(mark),
                Err(reason) => {
                    let path = file_path.display();
                    tracing::warn!(%path, reason, "what was compacted is not known; the log is compacted from its start");
                }
            }
        }
    }
    folder.segments.sort_by_key(|segment| segment.base);
    folder.take_swaps();
    Ok(folder)
}

impl Folder {
    /// Lists the segments as they are once each new one has its place: the plan is made for those.
    fn take_swaps(&mut self) {
        self.swaps.sort_by_key(|found| found.swap);
        for found in &mut self.swaps {
            let swap = found.swap;
            let (old, mut left): (Vec<SegmentInfo>, Vec<SegmentInfo>) =
                self.segments.drain(..).partition(|segment| swap.replaces(segment.base));
            found.old = old.into_iter().map(|segment| segment.base).collect();
            left.push(SegmentInfo { base: swap.base, bytes: found.bytes });
            left.sort_by_key(|segment| segment.base);
            self.segments = left;
        }
    }

    /// Gives each new segment its place. Before anything else is changed: the plan knows no other files.
    pub(super) async fn finish_swaps(&self, io: &Io, path: &Path) -> io::Result<()> {
        for Found { swap, old, .. } in &self.swaps {
            ringlog_io::reached!("recovery.swap_finished");
            // The first one's sidecar may be there although its segment is gone.
            let old: Vec<Offset> = std::iter::once(swap.base).chain(old.iter().copied()).collect();
            swap.finish(io, path, &old).await?;
        }
        Ok(())
    }
}
