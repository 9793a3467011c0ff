//! Making a machine's state from its partition's log: in steps, so that the core's other work goes on. A log that cannot be read
//! whole is not served: offsets would go back without anybody noticing.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_protocol::ids::{Offset, ProducerId, TopicPartition};
use ringlog_protocol::records::batch::{BatchError, BatchView, batches, check_crc};
use ringlog_protocol::records::reader::{self, Record, read_batch};
use ringlog_shard::limits::{
    GROUP_BYTES_PER_CORE_MAX, GROUP_LOAD_BATCH_BYTES_MAX, GROUP_LOAD_RECORDS_AT_ONCE, GROUP_LOAD_RETRY_MS,
    GROUP_LOAD_STEP_BYTES,
};
use ringlog_shard::storage::{LogPiece, ReadError};
use ringlog_shard::store::{View, ViewError};

use super::host::{Host, Service};
use super::transactions::OpenTransactions;
use super::upkeep;
use crate::core::Core;
use crate::group::{Event, GroupReplayError, KeyedRecord};

/// Why a machine's state cannot be made.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error("acknowledged records at offset {from} are lost or damaged")]
    CutShort { from: Offset },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot read the log: {0}")]
    Io(#[from] std::io::Error),
    #[error("batch at offset {offset}: {reason}")]
    Batch { offset: Offset, reason: String },
    #[error("the log goes on at offset {next} where {expected} was read for")]
    Gap { next: Offset, expected: Offset },
    #[error("record at offset {offset}: {source}")]
    Replay { offset: Offset, source: GroupReplayError },
    #[error("transactions that did not end hold more than {GROUP_BYTES_PER_CORE_MAX} bytes")]
    Transactions,
}

impl LoadError {
    /// The device, or who leads, may be another soon.
    fn may_pass(&self) -> bool {
        matches!(self, LoadError::Read(ReadError::Io { .. }) | LoadError::Io(_))
    }
}

/// Whether there is nothing to read.
pub(super) fn is_empty(core: &Core, key: TopicPartition) -> bool {
    core.store.view(key).is_ok_and(|view| {
        view.log_start == view.high_watermark && view.unsettled_end.is_none() && !view.is_cut_short
    })
}

/// Serves from what was replayed.
pub(super) fn serve(core: &Rc<Core>, host: &Rc<Host>) {
    let Ok(view) = core.store.view(host.key) else {
        host.set_service(Service::Elsewhere);
        return;
    };
    host.set_service(Service::Serving(view.leader_epoch));
    let topics = Arc::clone(&core.groups().topics.borrow());
    host.drive(core, Event::MetadataChanged(topics));
    host.drive(core, Event::Loaded);
    upkeep::forget_missing_topics(core, host, None);
}

/// Reads the log until it is read or cannot be.
pub(super) async fn run(core: Rc<Core>, host: Rc<Host>) {
    let started = core.io.monotonic_now();
    loop {
        let error = match Load::new(&core, &host).run().await {
            Ok(records) => {
                let elapsed = core.io.monotonic_now().saturating_since(started);
                core.groups().counts.add_load(elapsed);
                let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
                tracing::debug!(partition = host.partition(), records, milliseconds, "groups loaded");
                serve(&core, &host);
                return;
            }
            Err(LoadError::View(ViewError::NotLeader)) => {
                host.set_service(Service::Elsewhere);
                return;
            }
            Err(error) => error,
        };
        core.groups().counts.add_failed_load();
        tracing::error!(partition = host.partition(), %error, "the groups of a partition are not available");
        ringlog_io::reached!("groups.load_failed");
        host.break_off(&core);
        if !error.may_pass() {
            return;
        }
        core.io.sleep(Duration::from_millis(GROUP_LOAD_RETRY_MS)).await;
        host.start_anew(&core);
    }
}

/// One pass over the log.
struct Load<'a> {
    core: &'a Core,
    host: &'a Host,
    /// Those whose end was not read yet.
    transactions: OpenTransactions,
    scratch: Vec<u8>,
    records: u64,
    since_yield: usize,
}

impl<'a> Load<'a> {
    fn new(core: &'a Core, host: &'a Host) -> Load<'a> {
        Load {
            core,
            host,
            transactions: OpenTransactions::default(),
            scratch: Vec::new(),
            records: 0,
            since_yield: 0,
        }
    }

    /// Records replayed.
    async fn run(mut self) -> Result<u64, LoadError> {
        let mut from = self.view()?.log_start;
        loop {
            let View { high_watermark, unsettled_end, .. } = self.view()?;
            if from >= high_watermark && unsettled_end.is_none() {
                break;
            }
            if from >= high_watermark {
                // Earlier leaders may have committed more than is known to be committed yet.
                self.core.io.sleep(Duration::from_millis(20)).await;
                continue;
            }
            from = self.step(from).await?;
        }
        if self.transactions.count() > 0 {
            let (partition, count) = (self.host.partition(), self.transactions.count());
            tracing::warn!(partition, count, "offsets of transactions that did not end are not served");
        }
        Ok(self.records)
    }

    fn view(&self) -> Result<View, LoadError> {
        let view = self.core.store.view(self.host.key)?;
        if view.is_cut_short {
            return Err(LoadError::CutShort { from: view.high_watermark });
        }
        Ok(view)
    }

    /// Reads some and replays it; the offset behind it.
    async fn step(&mut self, from: Offset) -> Result<Offset, LoadError> {
        let plan = self.core.store.plan_read(self.host.key, from, GROUP_LOAD_STEP_BYTES, true)?;
        let read = plan.run(&self.core.io).await?;
        let mut next = from;
        for piece in read.pieces {
            let bytes = self.bytes_of(piece).await?;
            for batch in batches(&bytes) {
                let batch = batch.map_err(|error| bad_batch(next, &error))?;
                next = batch.header.next_offset();
                self.batch(from, &batch)?;
                if self.since_yield >= GROUP_LOAD_RECORDS_AT_ONCE {
                    self.since_yield = 0;
                    self.host.count_usage(self.core);
                    self.core.io.yield_now().await;
                }
            }
        }
        if next <= from || next != read.next_offset {
            return Err(LoadError::Gap { next, expected: read.next_offset });
        }
        self.host.count_usage(self.core);
        Ok(next)
    }

    async fn bytes_of(&self, piece: LogPiece) -> Result<Bytes, LoadError> {
        match piece {
            LogPiece::Memory(piece) => Ok(piece.into_bytes()),
            LogPiece::File { file, position, length } => {
                Ok(self.core.io.read_at(&file, position, length as usize).await?)
            }
        }
    }

    fn batch(&mut self, from: Offset, batch: &BatchView<'_>) -> Result<(), LoadError> {
        let BatchView { header, bytes, .. } = batch;
        let base = header.base_offset;
        check_crc(header, bytes).map_err(|error| bad_batch(base, &error))?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let (_, records) = read_batch(bytes, GROUP_LOAD_BATCH_BYTES_MAX, &mut scratch)
            .map_err(|error| LoadError::Batch { offset: base, reason: error.to_string() })?;
        for record in records {
            let record = record.map_err(|error: reader::ReadError| LoadError::Batch {
                offset: base,
                reason: error.to_string(),
            })?;
            if record.offset < from {
                continue;
            }
            self.since_yield += 1;
            if header.attributes.is_control() {
                self.end_transaction(header.producer_id, &record)?;
            } else if header.attributes.is_transactional() {
                self.hold(header.producer_id, &record)?;
            } else {
                self.replay(record.offset, record.key, record.value)?;
            }
        }
        self.scratch = scratch;
        Ok(())
    }

    fn replay(&mut self, offset: Offset, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), LoadError> {
        self.records += 1;
        // Of no group: nothing that writes groups leaves the key out.
        let Some(key) = key else { return Ok(()) };
        self.transactions.overtake(key, offset);
        self.host.replay(key, value).map_err(|source| LoadError::Replay { offset, source })
    }

    fn hold(&mut self, producer: ProducerId, record: &Record<'_>) -> Result<(), LoadError> {
        let Some(key) = record.key.map(Bytes::copy_from_slice) else { return Ok(()) };
        let value = record.value.map(Bytes::copy_from_slice);
        self.transactions.hold(producer, record.offset, KeyedRecord { key, value });
        if self.transactions.bytes() > GROUP_BYTES_PER_CORE_MAX {
            return Err(LoadError::Transactions);
        }
        Ok(())
    }

    /// A marker: the key's second number says how the transaction ended.
    fn end_transaction(&mut self, producer: ProducerId, marker: &Record<'_>) -> Result<(), LoadError> {
        let kind =
            marker.key.and_then(|key| key.get(2..4)).map(|kind| i16::from_be_bytes([kind[0], kind[1]]));
        let is_committed = match kind {
            Some(0) => false,
            Some(1) => true,
            // Other control records end no transaction.
            _ => return Ok(()),
        };
        let held = self.transactions.end(producer);
        for (offset, KeyedRecord { key, value }) in held.into_iter().filter(|_| is_committed) {
            self.replay(offset, Some(&key), value.as_deref())?;
        }
        Ok(())
    }
}

fn bad_batch(offset: Offset, error: &BatchError) -> LoadError {
    LoadError::Batch { offset, reason: error.to_string() }
}
