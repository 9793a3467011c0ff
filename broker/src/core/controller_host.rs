//! The controller's place among the cores: the metadata partition as its log, and every core as its reader.

use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ringlog_flat::metadata::NodeRecord;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{Offset, ProducerId};
use ringlog_protocol::records::batch::{BatchHeader, batches};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::Records;
use ringlog_raft::ids::ReplicaId;
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::state_machine::LoggedRecord;
use ringlog_shard::storage::{LogPiece, LogSettings};
use ringlog_shard::store::Opening;
use ringlog_shard::waiters::CommitGather;

use super::Core;
use super::messages::{CoreReply, CoreRequest};
use super::start::StartError;
use crate::config::BrokerConfig;
use crate::config::typed::Advertised;
use crate::controller::{
    Controller, ControllerReply, ControllerRequest, METADATA_PARTITION, MetadataImage, MetadataMachine,
};
use crate::coordinator::{Coordinator, MachineLog, MachineLogError, Publish, RunnerError};

/// Bytes of committed records read in one step of a replay.
const REPLAY_BYTES: u32 = 1 << 20;

/// Opens the metadata partition, replays it, and brings its image to every core.
///
/// # Errors
/// The partition is damaged, cannot be read, or holds what this build cannot replay: the node must not serve. No core has
/// an image then, so no partition was set aside.
pub async fn start(core: &Rc<Core>, machine: MetadataMachine) -> Result<Controller, StartError> {
    let recovered = core.take_recovered(METADATA_PARTITION);
    core.store
        .open(vec![Opening { key: METADATA_PARTITION, recovered, settings: LogSettings::default() }])
        .await;
    // What lies behind the damage is not known: topics that are there would look as if they had never been.
    let damage = core.store.with_log(METADATA_PARTITION, |log| log.damage().cloned());
    if let Ok(Some(damage)) = damage {
        return Err(StartError::MetadataDamaged { damage });
    }
    // Space is freed by deleting topics, which is a change of metadata.
    core.store.let_use_reserve(METADATA_PARTITION);
    let log = MetadataLog { core: Rc::clone(core) };
    let readers = AllCores { core: Rc::clone(core) };
    Ok(Coordinator::start(&core.io, machine, log, readers).await?)
}

/// This node as the metadata records it.
pub fn node_record(config: &BrokerConfig, me: ReplicaId) -> NodeRecord {
    let (host, port) = match config.listeners.first().map(|listener| (&listener.advertised, &listener.bind)) {
        Some((Advertised::Fixed(address), _)) | Some((Advertised::Auto, address)) => {
            (address.host.clone(), address.port)
        }
        None => (String::new(), 0),
    };
    NodeRecord { id: me.node.0, directory: me.directory.0, host, port, rack: config.rack.clone() }
}

/// The metadata partition as a machine's log.
struct MetadataLog {
    core: Rc<Core>,
}

impl MachineLog for MetadataLog {
    async fn append(&self, entries: Vec<Vec<u8>>) -> Result<Offset, MachineLogError> {
        let unavailable = |reason: String| MachineLogError::Unavailable { reason };
        let mut builder = BatchBuilder::new();
        let now_ms = self.core.io.wall_now_ms();
        let count = entries.len() as i64;
        for entry in &entries {
            let record = NewRecord { timestamp: now_ms, key: None, value: Some(entry), headers: &[] };
            builder.append(&record).map_err(|error| unavailable(error.to_string()))?;
        }
        let batch =
            builder.finish(&BatchOptions::default()).map_err(|error| unavailable(error.to_string()))?;
        let header = BatchHeader::parse(&batch).map_err(|error| unavailable(error.to_string()))?;
        let buffer_bytes = batch.len() as u32;
        let incoming = IncomingBatch { header, bytes: BytesMut::from(Bytes::from(batch)), buffer_bytes };
        let gather = CommitGather::new();
        self.core.store.room_with_reserve().await;
        let appended = self
            .core
            .store
            .append(METADATA_PARTITION, incoming, Some(gather.ticket(0)))
            .map_err(|error| unavailable(error.to_string()))?;
        if gather.finish().await.is_empty() {
            Ok(Offset(appended.base_offset.0 + count - 1))
        } else {
            Err(unavailable("the write was not committed".to_owned()))
        }
    }

    async fn read(&self, from: Offset) -> Result<Vec<LoggedRecord>, MachineLogError> {
        let unreadable = |reason: String| MachineLogError::Unreadable { reason };
        let view = self.core.store.view(METADATA_PARTITION).map_err(|error| unreadable(error.to_string()))?;
        let from = from.max(view.log_start);
        if from >= view.high_watermark {
            return Ok(Vec::new());
        }
        let plan = self
            .core
            .store
            .plan_read(METADATA_PARTITION, from, REPLAY_BYTES, true)
            .map_err(|error| unreadable(error.to_string()))?;
        let read = plan.run(&self.core.io).await.map_err(|error| unreadable(error.to_string()))?;
        let mut logged = Vec::new();
        for piece in read.pieces {
            let bytes = self.bytes_of(piece).await.map_err(|error| unreadable(error.to_string()))?;
            logged_records(&bytes, from, &mut logged).map_err(unreadable)?;
        }
        Ok(logged)
    }
}

impl MetadataLog {
    async fn bytes_of(&self, piece: LogPiece) -> std::io::Result<Bytes> {
        match piece {
            LogPiece::Memory(piece) => Ok(piece.into_bytes()),
            LogPiece::File { file, position, length } => {
                self.core.io.read_at(&file, position, length as usize).await
            }
        }
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

/// Every core of this node as a reader of the controller's image.
struct AllCores {
    core: Rc<Core>,
}

impl Publish<Arc<MetadataImage>> for AllCores {
    async fn published(&self, image: Arc<MetadataImage>) {
        let mut applied = Vec::new();
        for core in self.core.mesh.cores() {
            applied.push(self.core.mesh.send(core, CoreRequest::ApplyImage(Arc::clone(&image))).await);
        }
        for reply in applied {
            reply.await;
        }
    }
}

/// Why there is no producer id.
#[derive(Debug, thiserror::Error)]
pub enum ProducerIdError {
    #[error(transparent)]
    Runner(#[from] RunnerError),
    #[error("the controller gave no block of ids: {}", .0.name())]
    Refused(ErrorCode),
}

impl ProducerIdError {
    pub fn error_code(&self) -> ErrorCode {
        match self {
            ProducerIdError::Runner(error) => error.error_code(),
            ProducerIdError::Refused(error) => *error,
        }
    }
}

/// Producer ids of this core, out of blocks that the controller made durable.
#[derive(Debug, Default)]
pub struct ProducerIds {
    next: std::cell::Cell<i64>,
    end: std::cell::Cell<i64>,
}

impl Core {
    /// Asks the controller, wherever it runs.
    pub async fn ask_controller(&self, request: ControllerRequest) -> Result<ControllerReply, RunnerError> {
        match self.mesh.call(self.controller_core(), CoreRequest::Controller(request)).await {
            CoreReply::Controller(reply) => reply,
            _ => unreachable!("a controller request is answered by a controller reply"),
        }
    }

    /// An id that no producer ever had.
    ///
    /// # Errors
    /// The controller could not make a new block durable.
    pub async fn next_producer_id(&self) -> Result<ProducerId, ProducerIdError> {
        loop {
            let ids = &self.producer_ids;
            let next = ids.next.get();
            if next < ids.end.get() {
                ids.next.set(next + 1);
                return Ok(ProducerId(next));
            }
            let request = ControllerRequest::AllocateProducerIds { node: self.config.node_id };
            let ControllerReply::ProducerIds(block) = self.ask_controller(request).await? else {
                unreachable!("a block is asked for and answered")
            };
            let block = block.map_err(ProducerIdError::Refused)?;
            // Another connection may have asked meanwhile: its rest of a block is dropped, ids are plentiful.
            ids.next.set(block.first.0);
            ids.end.set(block.first.0 + block.count);
        }
    }
}
