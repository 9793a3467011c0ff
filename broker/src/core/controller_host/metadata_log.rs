//! The metadata partition as a machine's log, with its snapshots beside its segments. Decides nothing.

use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::batch::{BatchHeader, batches};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::Records;
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::state_machine::{LoggedRecord, MachineSnapshot};
use ringlog_shard::storage::{LogPiece, MachineSnapshotsError};
use ringlog_shard::store::View;
use ringlog_shard::waiters::CommitGather;

use crate::controller::METADATA_PARTITION;
use crate::coordinator::{MachineLog, MachineLogError};
use crate::core::Core;

/// Bytes of committed records read in one step of a replay.
const REPLAY_BYTES: u32 = 1 << 20;

/// The open metadata partition of this core.
pub(super) struct MetadataLog {
    core: Rc<Core>,
    /// A snapshot's file failed otherwise than for want of space. A kernel tells of a failed sync once, and the next one
    /// of the same folder succeeds all the same: the log keeps its start until the node is started again.
    is_without_snapshots: Cell<bool>,
}

fn unavailable(reason: &dyn std::fmt::Display) -> MachineLogError {
    MachineLogError::Unavailable { reason: reason.to_string() }
}

fn unreadable(reason: &dyn std::fmt::Display) -> MachineLogError {
    MachineLogError::Unreadable { reason: reason.to_string() }
}

impl MachineLog for MetadataLog {
    async fn append(&self, entries: Vec<Vec<u8>>) -> Result<Offset, MachineLogError> {
        let mut builder = BatchBuilder::new();
        let now_ms = self.core.io.wall_now_ms();
        let count = entries.len() as i64;
        for entry in &entries {
            let record = NewRecord { timestamp: now_ms, key: None, value: Some(entry), headers: &[] };
            builder.append(&record).map_err(|error| unavailable(&error))?;
        }
        let batch = builder.finish(&BatchOptions::default()).map_err(|error| unavailable(&error))?;
        let header = BatchHeader::parse(&batch).map_err(|error| unavailable(&error))?;
        let buffer_bytes = batch.len() as u32;
        let incoming = IncomingBatch { header, bytes: BytesMut::from(Bytes::from(batch)), buffer_bytes };
        let gather = CommitGather::new();
        self.core.store.room_with_reserve().await;
        let appended = self
            .core
            .store
            .append(METADATA_PARTITION, incoming, Some(gather.ticket(0)))
            .map_err(|error| unavailable(&error))?;
        if gather.finish().await.is_empty() {
            Ok(Offset(appended.base_offset.0 + count - 1))
        } else {
            Err(unavailable(&"the write was not committed"))
        }
    }

    async fn read(&self, from: Offset) -> Result<Vec<LoggedRecord>, MachineLogError> {
        let View { log_start, high_watermark, .. } = self.view()?;
        if from < log_start {
            return Err(unreadable(&format!("it begins at offset {log_start}, {from} is asked for")));
        }
        if from >= high_watermark {
            return Ok(Vec::new());
        }
        let plan = self
            .core
            .store
            .plan_read(METADATA_PARTITION, from, REPLAY_BYTES, true)
            .map_err(|error| unreadable(&error))?;
        let read = plan.run(&self.core.io).await.map_err(|error| unreadable(&error))?;
        let mut logged = Vec::new();
        for piece in read.pieces {
            let bytes = self.bytes_of(piece).await.map_err(|error| unreadable(&error))?;
            logged_records(&bytes, from, &mut logged).map_err(|reason| unreadable(&reason))?;
        }
        Ok(logged)
    }

    async fn save_snapshot(&self, snapshot: MachineSnapshot) -> Result<(), MachineLogError> {
        let (store, offset) = (&self.core.store, snapshot.offset);
        // Without files nothing is restored: the log is only let go.
        let files = store.storage().machine_snapshots(METADATA_PARTITION);
        if let Some(files) = &files {
            if self.is_without_snapshots.get() {
                return Err(unavailable(&"an earlier snapshot failed; none is taken until the next start"));
            }
            files.save(&snapshot).await.map_err(|error| {
                self.is_without_snapshots.set(!may_be_tried_again(&error));
                unavailable(&error)
            })?;
        }
        let moved =
            store.delete_records(METADATA_PARTITION, Some(offset)).map_err(|error| unavailable(&error))?;
        store.start_durable(moved).await.map_err(|error| unavailable(&error))?;
        // From here on no start can ask for an older one.
        if let Some(files) = &files
            && let Err(error) = files.remove_below(offset).await
        {
            tracing::warn!(%error, "an old snapshot of the metadata stays");
        }
        Ok(())
    }

    async fn load_snapshot(&self) -> Result<Option<MachineSnapshot>, MachineLogError> {
        let View { log_start, high_watermark, .. } = self.view()?;
        let Some(files) = self.core.store.storage().machine_snapshots(METADATA_PARTITION) else {
            return Ok(None);
        };
        // Of a group of one all that is in the log is committed.
        files.newest_within(log_start..=high_watermark).await.map_err(|error| match error {
            MachineSnapshotsError::NoneCovers { .. } => {
                MachineLogError::StateLost { reason: error.to_string() }
            }
            other => unreadable(&other),
        })
    }
}

impl MetadataLog {
    pub(super) fn new(core: Rc<Core>) -> MetadataLog {
        MetadataLog { core, is_without_snapshots: Cell::new(false) }
    }

    fn view(&self) -> Result<View, MachineLogError> {
        self.core.store.view(METADATA_PARTITION).map_err(|error| unreadable(&error))
    }

    async fn bytes_of(&self, piece: LogPiece) -> std::io::Result<Bytes> {
        match piece {
            LogPiece::Memory(piece) => Ok(piece.into_bytes()),
            LogPiece::File { file, position, length } => {
                self.core.io.read_at(&file, position, length as usize).await
            }
        }
    }
}

/// Whether a later success can be believed.
fn may_be_tried_again(error: &MachineSnapshotsError) -> bool {
    match error {
        MachineSnapshotsError::Io { source, .. } => {
            matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
        }
        MachineSnapshotsError::TooLarge { .. } | MachineSnapshotsError::NoneCovers { .. } => true,
    }
}

/// The records of whole batches from offset `from` on.
fn logged_records(bytes: &[u8], from: Offset, logged: &mut Vec<LoggedRecord>) -> Result<(), String> {
    for batch in batches(bytes) {
        let batch = batch.map_err(|error| error.to_string())?;
        // Written uncompressed by `append`, so the body is the records.
        for record in Records::new(&batch.header, batch.body()) {
            let record = record.map_err(|error| error.to_string())?;
            if record.offset >= from {
                let bytes = record.value.unwrap_or_default().to_vec();
                logged.push(LoggedRecord { offset: record.offset, bytes });
            }
        }
    }
    Ok(())
}
