//! A real node on a simulated host: recovery of its disk, then one core an executor. Holds no client.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ringlog_broker::config::load::Sources;
use ringlog_broker::config::typed::Account;
use ringlog_broker::config::{self, BrokerConfig};
use ringlog_broker::core::start::{self, CoreSeat, Front, StorageSeat};
use ringlog_broker::group::Rebalance;
use ringlog_broker::http::metrics::{self, ProcessFigures};
use ringlog_broker::observe::snapshot::{self, ShardSnapshot, SnapshotSlot};
use ringlog_broker::process::stop::{Readiness, StopSignal};
use ringlog_io::sim::{Host, Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{NodeId, TopicId};
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::journal::JournalSettings;
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::mesh;
use ringlog_shard::placement::core_of;
use ringlog_shard::storage::{DataDirectory, Identity, NodeRecovery, StorageSettings};

pub const PORT: u16 = 9092;
const NODE: NodeId = NodeId(1);
const DATA: &str = "/var/lib/ringlog";
const CORE_MEMORY_BYTES: u64 = 64 << 20;

/// The smallest journal that works, so that its files fill and are used again within a run.
const STORAGE: StorageSettings = StorageSettings {
    journal: JournalSettings { file_bytes: 2 << 20, file_count_start: 2, file_count_max: 3 },
    tail_bytes_max: 4 << 20,
    // So few that they are closed and opened again.
    segment_files_max: 6,
    ..StorageSettings::DEV
};

/// How a node is built; each start of one host may differ.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub core_count: u32,
    /// Requests open from one core to another.
    pub mesh_credits: u32,
    /// Batches of at least so many bytes bypass the journal; 0 = none.
    pub bypass_bytes: usize,
}

impl Shape {
    fn storage(self) -> StorageSettings {
        StorageSettings { bypass_bytes: self.bypass_bytes, ..STORAGE }
    }
}

/// A node that serves. It ends with a crash of its host or by [`Node::stop`].
pub struct Node {
    stop: StopSignal,
    running: Rc<Cell<u32>>,
    failure: Rc<RefCell<Option<String>>>,
    /// What each core shows, in order.
    shown: Vec<SnapshotSlot>,
    lag_groups_max: usize,
    lag_topics_max: usize,
    _directory: DataDirectory,
}

/// Why a node does not serve.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error("it does not serve in time")]
    TimedOut,
    #[error("{0}")]
    Failed(String),
}

/// Starts a node and lets the world run until it serves, for `limit` of virtual time at most.
pub fn boot(world: &World, host: &Host, shape: Shape, limit: Duration) -> Result<Node, BootError> {
    let deadline = world.now() + limit;
    let address = SocketAddr::new(host.address(), PORT);
    let io = host.executor();
    let (directory, recovered) =
        run(world, &io, limit, recover_disk(io.clone(), shape)).ok_or(BootError::TimedOut)??;
    let id: TopicId = directory.directory_id().parse().expect("this node wrote it");
    let me = ReplicaId { node: NODE, directory: DirectoryId(id.0) };
    let (config, stop) = (Arc::new(configuration(address)), StopSignal::default());
    let (ready, serving) = mpsc::channel();
    let mut front = Some(Front { listen: vec![address], stop: stop.clone(), ready });
    let running = Rc::new(Cell::new(shape.core_count));
    let failure = Rc::new(RefCell::new(None));
    let mut shown = Vec::new();
    let seats = mesh::seats(shape.core_count, shape.mesh_credits);
    for ((index, seat), recovered) in (0..).zip(seats).zip(recovered.shards) {
        let (publisher, slot) = snapshot::slot(index);
        shown.push(slot);
        let seat = CoreSeat {
            seat,
            core_count: shape.core_count,
            config: Arc::clone(&config),
            me,
            storage: StorageSeat::Durable(Box::new(recovered)),
            storage_settings: shape.storage(),
            memory_bytes: CORE_MEMORY_BYTES,
            publisher,
            readiness: Readiness::default(),
            cluster_id: directory.cluster_id().into(),
            front: front.take(),
        };
        start_core(host, seat, Rc::clone(&running), Rc::clone(&failure));
    }
    let (lag_groups_max, lag_topics_max) = (config.groups.lag_groups_max, config.groups.lag_topics_max);
    let node = Node { stop, running, failure, shown, lag_groups_max, lag_topics_max, _directory: directory };
    let heard = RefCell::new(None);
    let is_decided = || {
        *heard.borrow_mut() = serving.try_recv().ok();
        heard.borrow().is_some() || node.failure().is_some()
    };
    match world.run_until(is_decided, deadline.saturating_since(world.now())) {
        Outcome::Done => {}
        Outcome::TimedOut => return Err(BootError::TimedOut),
        Outcome::Stuck => return Err(BootError::Failed("nothing happens any more".to_owned())),
    }
    match (heard.take(), node.failure()) {
        (_, Some(reason)) => Err(BootError::Failed(reason)),
        (Some(Err(error)), None) => Err(BootError::Failed(error.to_string())),
        _ => Ok(node),
    }
}

async fn recover_disk(io: Io, shape: Shape) -> Result<(DataDirectory, NodeRecovery), BootError> {
    let failed = |error: &dyn std::fmt::Display| BootError::Failed(error.to_string());
    let identity = Identity { cluster_id: None, node_id: NODE };
    let directory =
        DataDirectory::open(&io, Path::new(DATA), None, &identity).await.map_err(|error| failed(&error))?;
    let core_count = shape.core_count;
    let recovered = recover(&io, &directory, core_count, &|key| core_of(key, core_count), &shape.storage())
        .await
        .map_err(|error| failed(&error))?;
    if !recovered.report.corruption.is_empty() {
        return Err(BootError::Failed(format!("damage: {:?}", recovered.report.corruption)));
    }
    Ok((directory, recovered))
}

fn configuration(address: SocketAddr) -> BrokerConfig {
    let sets = vec![
        format!("listeners=PLAINTEXT://{address}"),
        format!("node.id={}", NODE.0),
        format!("log.dirs={DATA}"),
        // The smallest one, so that segments are closed within a run.
        "log.segment.bytes=1048576".to_owned(),
        // Clocks that jump make segments that old.
        "log.roll.ms=600000".to_owned(),
        "log.retention.check.interval.ms=200".to_owned(),
        // Groups write little: what they wrote is compacted within a run too.
        "offsets.topic.segment.bytes=1048576".to_owned(),
        "log.cleaner.min.cleanable.ratio=0.1".to_owned(),
        "log.cleaner.backoff.ms=200".to_owned(),
        // Members of tests do not wait for more of them.
        "group.initial.rebalance.delay.ms=200".to_owned(),
        // As short as those of the classic protocol.
        "group.consumer.min.session.timeout.ms=10000".to_owned(),
        "group.consumer.session.timeout.ms=10000".to_owned(),
        // A snapshot of the metadata after nearly every change.
        "metadata.log.max.record.bytes.between.snapshots=1".to_owned(),
    ];
    let config = config::load(&Sources { sets, ..Sources::default() }, &Account::default());
    config.unwrap_or_else(|errors| panic!("the settings are legal: {errors:?}"))
}

fn start_core(host: &Host, seat: CoreSeat, running: Rc<Cell<u32>>, failure: Rc<RefCell<Option<String>>>) {
    let io = host.executor();
    let core = start::run(io.clone(), seat);
    io.spawn(Priority::Foreground, async move {
        if let Err(error) = core.await {
            failure.borrow_mut().get_or_insert(error.to_string());
        }
        running.set(running.get() - 1);
    })
    .detach();
}

impl Node {
    /// Why a core ended, if one failed.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// The sum of a figure over all cores, as published last: at most a second of virtual time ago.
    pub fn sum(&self, figure: impl Fn(&ShardSnapshot) -> u64) -> u64 {
        self.shown.iter().map(|slot| figure(&slot.read())).sum()
    }

    /// The last rebalances of a group, the newest first.
    #[allow(dead_code, reason = "some test binaries have no groups")]
    pub fn timeline(&self, group: &str) -> Vec<Arc<Rebalance>> {
        self.shown.iter().flat_map(|slot| slot.read().timelines.of(group)).collect()
    }

    /// `/metrics`, of what each core published last.
    #[allow(dead_code, reason = "most test binaries look at figures instead")]
    pub fn scrape(&self) -> String {
        let process = ProcessFigures {
            version: "0",
            is_ready: true,
            started_seconds: 0.0,
            cpu_seconds: 0.0,
            resident_bytes: 0,
            lag_groups_max: self.lag_groups_max,
            lag_topics_max: self.lag_topics_max,
        };
        metrics::encode(process, self.shown.iter().map(SnapshotSlot::read).collect()).0
    }

    /// Brings the node down as SIGTERM does. False if it did not end in time.
    pub fn stop(&self, world: &World, limit: Duration) -> bool {
        self.stop.stop();
        world.run_until(|| self.running.get() == 0, limit) == Outcome::Done
    }
}

/// Lets the world run until `work` has ended on `io`; `None` when it did not within `limit` of virtual time.
pub fn run<T: 'static>(
    world: &World,
    io: &Io,
    limit: Duration,
    work: impl Future<Output = T> + 'static,
) -> Option<T> {
    let slot = Rc::new(RefCell::new(None));
    let result = Rc::clone(&slot);
    let task = io.spawn(Priority::Foreground, async move {
        let value = work.await;
        *result.borrow_mut() = Some(value);
    });
    world.run_until(|| slot.borrow().is_some(), limit);
    drop(task);
    slot.take()
}
