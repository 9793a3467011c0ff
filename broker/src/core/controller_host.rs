//! The controller's place among the cores: the metadata partition as its log, and every core as its reader.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringlog_flat::metadata::NodeRecord;
use ringlog_io::Priority;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::ProducerId;
use ringlog_raft::ids::ReplicaId;
use ringlog_shard::storage::LogSettings;
use ringlog_shard::store::Opening;

use super::Core;
use super::delete_records::within;
use super::messages::{CoreReply, CoreRequest};
use super::start::StartError;
use crate::config::BrokerConfig;
use crate::config::typed::Advertised;
use crate::controller::{
    Controller, ControllerReply, ControllerRequest, METADATA_PARTITION, MetadataImage, MetadataMachine,
};
use crate::coordinator::{Coordinator, Publish, RunnerError};

mod metadata_log;

use self::metadata_log::MetadataLog;

/// Opens the metadata partition, replays it, and brings its image to every core.
///
/// # Errors
/// The partition is damaged, cannot be read, holds what this build cannot replay, or begins behind every sound snapshot: the node must not serve. No core has
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
    let log = MetadataLog::new(Rc::clone(core));
    let readers = AllCores { core: Rc::clone(core) };
    let snapshot_after_bytes = core.config.limits.metadata_snapshot_after_bytes;
    Ok(Coordinator::start(&core.io, machine, log, readers, snapshot_after_bytes).await?)
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

    /// The same, for at most `time`: `None` afterwards, and the work goes on.
    pub async fn ask_controller_within(
        self: &Rc<Self>,
        time: Duration,
        request: ControllerRequest,
    ) -> Option<Result<ControllerReply, RunnerError>> {
        // A task of its own: this core may still wait for room in the mesh, and the request must not be lost there.
        let core = Rc::clone(self);
        let asked = async move { core.ask_controller(request).await };
        let mut asked = self.io.spawn(Priority::Foreground, asked);
        let reply = within(&self.io, time, &mut asked).await;
        if reply.is_none() {
            asked.detach();
        }
        reply
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
