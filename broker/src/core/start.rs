//! How a core comes up and goes down.
//!
//! Up: join the mesh, take over what recovery found, and wait for the first metadata image. The controller's core makes
//! that image; when every core has it, the acceptor's core opens the listeners. Down: stop reading, let what is in
//! flight finish, flush, and only then leave the mesh.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ringlog_io::{Io, ListenOptions, Listener, Priority};
use ringlog_raft::ids::ReplicaId;
use ringlog_shard::budget::Budget;
use ringlog_shard::egress::{Egress, EgressMode};
use ringlog_shard::limits::{
    DRAIN_MS_MAX, EGRESS_PINNED_MEMORY_DIVISOR, LISTEN_BACKLOG, RECEIVE_BUFFER_SOCKET_BYTES,
    RECEIVE_MEMORY_DIVISOR,
};
use ringlog_shard::mesh::{Mesh, Seat};
use ringlog_shard::storage::{CoreStorage, Damage, ShardRecovery, StorageError, StorageSettings};
use ringlog_shard::store::Store;
use ringlog_shard::waiters::{Watch, Watchers};

use super::groups::{Groups, lag, upkeep};
use super::messages::{CoreReply, CoreRequest};
use super::session_parts::SessionParts;
use super::watches::{ForeignWatches, HomeWatches};
use super::{Core, controller_host, publish, serve};
use crate::config::BrokerConfig;
use crate::config::dynamic::RuntimeSettings;
use crate::config::typed;
use crate::controller::request::InitializeCluster;
use crate::controller::{
    ControllerReply, ControllerRequest, ControllerSettings, MetadataImage, MetadataMachine, features,
};
use crate::coordinator::RunnerError;
use crate::handlers::fetch::session::cache::SessionCache;
use crate::observe::ShardObserver;
use crate::observe::snapshot::SnapshotPublisher;
use crate::process::stop::{Readiness, StopSignal};
use crate::server::acceptor::Acceptor;
use crate::server::connections::Connections;

/// What one core needs to start; made on the main thread and sent to the core's own.
pub struct CoreSeat {
    pub seat: Seat<CoreRequest, CoreReply>,
    pub core_count: u32,
    pub config: Arc<BrokerConfig>,
    pub me: ReplicaId,
    pub storage: StorageSeat,
    pub storage_settings: StorageSettings,
    pub memory_bytes: u64,
    pub publisher: SnapshotPublisher,
    pub readiness: Readiness,
    /// The cluster's id, for a cluster that is made now; a later start finds it in the metadata.
    pub cluster_id: Arc<str>,
    /// Of the acceptor's core only.
    pub front: Option<Front>,
}

/// Files or memory.
pub enum StorageSeat {
    Durable(Box<ShardRecovery>),
    Ephemeral,
}

/// The acceptor core's line to the process around the cores.
pub struct Front {
    pub listen: Vec<SocketAddr>,
    pub stop: StopSignal,
    pub ready: mpsc::Sender<Result<Serving, StartError>>,
}

/// The node serves.
#[derive(Debug)]
pub struct Serving {
    pub addresses: Vec<SocketAddr>,
    pub cluster_id: Arc<str>,
    pub driver: &'static str,
    pub features: String,
}

/// Why the node does not serve.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("storage of this core: {0}")]
    Storage(#[from] StorageError),
    #[error("controller: {0}")]
    Controller(#[from] RunnerError),
    #[error(
        "the metadata log: {damage}. It says which topics there are; nothing was renamed or removed. Put that folder's files \
         back from a backup and remove `DAMAGED` and the `.sum` files in it, or start on a copy of the whole data directory"
    )]
    MetadataDamaged { damage: Damage },
    #[error(transparent)]
    OtherCluster(#[from] crate::controller::request::ClusterMismatch),
}

/// Runs one core until the node stops.
///
/// # Errors
/// [`StartError`]: this core did not come up.
pub async fn run(io: Io, mut seat: CoreSeat) -> Result<(), StartError> {
    let front = seat.front.take();
    let cluster_id = Arc::clone(&seat.cluster_id);
    let core = build(io, seat).await?;
    core.io.spawn(Priority::Background, publish::run(Rc::clone(&core))).detach();
    let (store, period) = (core.store.clone(), Duration::from_millis(core.config.limits.retention_check_ms));
    core.io.spawn(Priority::Background, async move { store.keep_retention(period).await }).detach();
    let store = core.store.clone();
    core.io.spawn(Priority::Background, async move { store.keep_compacting().await }).detach();
    let (storage, rate) = (core.store.storage().clone(), core.config.limits.scrub_bytes_per_second);
    core.io.spawn(Priority::Background, async move { storage.keep_scrubbing(rate).await }).detach();
    core.io.spawn(Priority::Foreground, Groups::keep_time(Rc::clone(&core))).detach();
    core.io.spawn(Priority::Background, upkeep::keep_expiring(Rc::clone(&core))).detach();
    core.io.spawn(Priority::Background, lag::keep_looking(Rc::clone(&core))).detach();
    if core.id == core.controller_core() {
        start_controller(&core, cluster_id).await?;
    }
    if let Some(front) = front {
        serve_front(&core, front).await?;
    }
    core.ended.wait().await;
    Ok(())
}

pub(super) async fn build(io: Io, seat: CoreSeat) -> Result<Rc<Core>, StartError> {
    let mesh = Mesh::join(seat.seat, &io);
    let storage = match seat.storage {
        StorageSeat::Durable(recovered) => {
            CoreStorage::start(io.clone(), *recovered, seat.storage_settings).await?
        }
        StorageSeat::Ephemeral => CoreStorage::start_ephemeral(io.clone(), seat.storage_settings),
    };
    let recovered =
        storage.take_recovered().into_iter().map(|partition| (partition.key, partition)).collect();
    let expiration_ms = i64::try_from(seat.config.limits.producer_id_expiration_ms).unwrap_or(i64::MAX);
    let store = Store::new(io.clone(), storage, seat.me, expiration_ms);
    let mode = match seat.config.runtime.egress {
        typed::Egress::Auto => EgressMode::Auto,
        typed::Egress::Send => EgressMode::Send,
        typed::Egress::Sendfile => EgressMode::SendFile,
    };
    let egress = Egress::new(mode, seat.memory_bytes / EGRESS_PINNED_MEMORY_DIVISOR);
    let observer = ShardObserver::new(mesh.core().0, seat.publisher, io.monotonic_now().as_nanos());
    let fetch_sessions = seat.config.limits.fetch_sessions_max.div_ceil(seat.core_count) as usize;
    let groups = Groups::new(&seat.config.groups, io.hasher());
    let core = Rc::new(Core {
        id: mesh.core(),
        core_count: seat.core_count,
        mesh,
        store,
        egress,
        config: seat.config,
        me: seat.me,
        memory_bytes: seat.memory_bytes,
        observer,
        image: RefCell::new(Arc::new(MetadataImage::default())),
        has_image: Cell::new(false),
        recovered: RefCell::new(recovered),
        connections: Connections::default(),
        violation_lines: RefCell::default(),
        group_lines: RefCell::default(),
        readiness: seat.readiness,
        controller: RefCell::new(None),
        controller_ready: super::Flag::default(),
        producer_ids: controller_host::ProducerIds::default(),
        produce_backlog: serve::ProduceBacklog::default(),
        receiving: Budget::new(seat.memory_bytes / RECEIVE_MEMORY_DIVISOR),
        scratch: RefCell::default(),
        fetches_waiting: Cell::new(0),
        fetch_sessions: RefCell::new(SessionCache::new(fetch_sessions)),
        session_parts: SessionParts::default(),
        home_watches: HomeWatches::default(),
        foreign_watches: ForeignWatches::new(),
        acceptors: RefCell::default(),
        sweeper: RefCell::default(),
        groups,
        draining: Cell::new(false),
        drain_watchers: Watchers::default(),
        ended: super::Flag::default(),
        io,
    });
    let served = Rc::downgrade(&core);
    core.mesh.serve(move |query| {
        if let Some(core) = served.upgrade() {
            serve::serve(&core, query);
        }
    });
    Ok(core)
}

async fn start_controller(core: &Rc<Core>, cluster_id: Arc<str>) -> Result<(), StartError> {
    let settings = ControllerSettings {
        node_id: core.config.node_id,
        base: RuntimeSettings::of(&core.config),
        request_bytes_max: core.config.limits.request_bytes_max,
        settings: core.config.settings.clone(),
        features: features::BUILT,
    };
    let controller = controller_host::start(core, MetadataMachine::new(settings)).await?;
    *core.controller.borrow_mut() = Some(controller.clone());
    let initialize = InitializeCluster {
        cluster_id: cluster_id.to_string(),
        node: controller_host::node_record(&core.config, core.me),
    };
    match controller.run(ControllerRequest::InitializeCluster(initialize)).await? {
        ControllerReply::ClusterInitialized(initialized) => initialized?,
        _ => unreachable!("a cluster is initialized by an initialized cluster"),
    }
    tell_of_higher_levels(&core.image());
    core.controller_ready.set();
    Ok(())
}

/// A newer build raises no level by itself: whoever runs it is told that he can.
fn tell_of_higher_levels(image: &MetadataImage) {
    for feature in features::BUILT {
        let level = image.features().level(feature.name);
        if level < feature.highest {
            tracing::info!(
                feature = feature.name,
                level,
                highest = feature.highest,
                "a feature can run at a higher level: ringlog cluster features upgrade"
            );
        }
    }
}

/// Opens the listeners once the node can serve, and stops the node when the process says so.
async fn serve_front(core: &Rc<Core>, front: Front) -> Result<(), StartError> {
    let Front { listen, stop, ready } = front;
    core.mesh.call(core.controller_core(), CoreRequest::ControllerReady).await;
    let (listeners, addresses) = match open_listeners(core, &listen) {
        Ok(opened) => opened,
        Err(error) => {
            // The receiver is the process; it ends when it hears this.
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    for listener in listeners {
        let acceptor = Acceptor::new(Rc::clone(core), listener);
        core.acceptors.borrow_mut().push(core.io.spawn(Priority::Foreground, acceptor.run()));
    }
    let image = core.image();
    let cluster_id = image.cluster_id().cloned().unwrap_or_default();
    let features = core.io.features().to_string();
    let _ = ready.send(Ok(Serving { addresses, cluster_id, driver: core.io.driver_name(), features }));
    let (stopped, notifier) = (stop.clone(), core.io.notifier());
    let asked = super::Flag::default();
    let polled = asked.clone();
    core.io.on_poll(move || stopped.is_stopping() && polled.set());
    stop.on_stop(move || notifier.notify());
    asked.wait().await;
    stop_node(core).await;
    Ok(())
}

fn open_listeners(
    core: &Core,
    addresses: &[SocketAddr],
) -> Result<(Vec<Listener>, Vec<SocketAddr>), StartError> {
    // The probe: a port that another process shares by SO_REUSEPORT would get half of the clients.
    let options = ListenOptions {
        probe_plain_bind: true,
        backlog: LISTEN_BACKLOG,
        receive_buffer_bytes: Some(RECEIVE_BUFFER_SOCKET_BYTES),
        ..ListenOptions::default()
    };
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let opened = core.io.listen(*address, &options);
        listeners.push(opened.map_err(|source| StartError::Listen { address: *address, source })?);
    }
    let bound = listeners.iter().map(Listener::local_address).collect();
    Ok((listeners, bound))
}

/// Brings the whole node down, in three steps that all cores take together.
async fn stop_node(core: &Rc<Core>) {
    core.acceptors.borrow_mut().clear();
    for step in [|| CoreRequest::Drain, || CoreRequest::Flush, || CoreRequest::End] {
        let mut calls = Vec::new();
        for target in core.mesh.cores() {
            calls.push(core.mesh.send(target, step()).await);
        }
        for call in calls {
            call.await;
        }
    }
}

/// Stops reading and lets what is in flight finish.
pub async fn drain(core: &Rc<Core>) {
    core.draining.set(true);
    core.drain_watchers.attention();
    let deadline = core.io.monotonic_now() + Duration::from_millis(DRAIN_MS_MAX);
    // First, so that members hear where to go instead of an end of their connection.
    upkeep::drain(core, deadline).await;
    core.connections.stop_reading();
    while core.connections.count() > 0 && core.io.monotonic_now() < deadline {
        core.io.sleep(Duration::from_millis(5)).await;
    }
    let left = core.connections.count();
    if left > 0 {
        tracing::warn!(connections = left, waited_ms = DRAIN_MS_MAX, "connections cut off while draining");
        core.connections.abort_all();
    }
}

/// Writes what is only in the journal to segments, so that the next start replays nothing.
pub async fn flush(core: &Rc<Core>) {
    match core.store.storage().checkpoint().await {
        Ok(report) => tracing::debug!(?report, "flushed"),
        Err(error) => tracing::error!(%error, "flush failed; the journal keeps what is missing"),
    }
}

impl Core {
    /// Ends when the core begins to drain.
    pub(crate) fn when_draining(&self) -> Watch {
        let mut watch = Watch::new(u64::MAX);
        watch.on(&self.drain_watchers);
        watch
    }

    /// Starts looking after idle connections, if nobody does.
    pub(crate) fn watch_over_connections(self: &Rc<Self>) {
        let mut sweeper = self.sweeper.borrow_mut();
        if sweeper.as_ref().is_none_or(|task| task.is_finished()) {
            let core = Rc::clone(self);
            *sweeper = Some(self.io.spawn(Priority::Background, async move {
                while let Some(period) =
                    core.connections.sweep(&core.io, core.config.limits.connection_idle_ms_max)
                {
                    core.io.sleep(period).await;
                }
            }));
        }
    }
}
