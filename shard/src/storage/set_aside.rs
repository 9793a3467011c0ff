//! Putting a partition aside that no metadata claims: its files stay under another name, and the journal forgets it.
//!
//! Owns that order: the new name is durable before the journal says that the partition is gone, for a start removes the folder
//! of a partition that was deleted.

use std::path::PathBuf;

use super::core_storage::{CoreStorage, Inner, StorageError};
use super::folder::{STRAY_SUFFIX, partition_folder};
use super::log::{Log, LogId};
use super::recovered::RecoveredPartition;
use super::settings::LogSettings;

impl CoreStorage {
    /// Renames the folder of a recovered partition that no metadata claims, so that its bytes stay and its name is free, and
    /// returns once the journal holds durably that the partition is gone: no later start finds it. Returns the new path, if
    /// there was a folder.
    ///
    /// # Errors
    /// [`StorageError::Io`]: the partition is as before. [`StorageError::Poisoned`]: the folder was renamed, and the next
    /// start finds the partition again, without its files.
    pub async fn set_aside(&self, recovered: RecoveredPartition) -> Result<Option<PathBuf>, StorageError> {
        let inner = self.inner();
        let folder = partition_folder(&inner.data, recovered.key);
        let mut moved = None;
        if inner
            .io
            .path_exists(&folder)
            .await
            .map_err(|source| StorageError::Io { path: folder.clone(), source })?
        {
            let mut stray = folder.clone().into_os_string();
            stray.push(STRAY_SUFFIX);
            let stray = inner.free_name(PathBuf::from(stray)).await;
            let failed = |source| StorageError::Io { path: folder.clone(), source };
            inner.io.rename(&folder, &stray).await.map_err(failed)?;
            inner.sync_parent(&folder).await.map_err(failed)?;
            moved = Some(stray);
        }
        self.journal_delete(&recovered);
        inner.journal.durable(inner.journal.ticket()).await?;
        Ok(moved)
    }

    /// Journals that a recovered partition is gone.
    fn journal_delete(&self, recovered: &RecoveredPartition) {
        let inner = self.inner();
        let key = recovered.key;
        let folder = partition_folder(&inner.data, key);
        let mut log = Log::new(LogId { slot: 0, version: 0 }, key, folder, LogSettings::default());
        let id = {
            let mut core = inner.core.borrow_mut();
            // Its entries may have been carried along meanwhile, with new sequences.
            let carried = core.unopened.remove(&key).map(|unopened| unopened.partition.next_sequence);
            log.next_sequence = recovered.next_sequence.max(carried.unwrap_or(0));
            core.insert(log)
        };
        self.delete_log(id);
    }
}

impl Inner {
    /// `wanted`, or with a number behind it if that is taken.
    async fn free_name(&self, wanted: PathBuf) -> PathBuf {
        let mut path = wanted.clone();
        let mut number = 1_u64;
        while self.io.path_exists(&path).await.unwrap_or(false) {
            let mut numbered = wanted.clone().into_os_string();
            numbered.push(format!("-{number}"));
            path = PathBuf::from(numbered);
            number += 1;
        }
        path
    }
}
