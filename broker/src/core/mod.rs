//! One core of the broker: what it holds, and the parts that act on it. Everything here lives on one core's thread.
//!
//! Reading order: [`messages`] (what cores say to each other), [`serve`] (what a core does when asked), [`start`] (how a
//! core comes up and goes down), [`images`] (how it takes new metadata), [`controller_host`] (the controller's place),
//! [`watches`], [`session_parts`], [`groups`] (consumer groups), [`epochs`], [`quorum`], [`refusals`] (what a producer is told), [`publish`] (what it shows).

pub mod controller_host;
pub mod delete_records;
pub mod ends;
pub mod epochs;
pub mod groups;
pub mod images;
pub mod log_sizes;
pub mod messages;
pub mod publish;
pub mod quorum;
pub mod refusals;
pub mod serve;
pub mod session_parts;
pub mod start;
pub mod watches;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use ringlog_io::{Io, Task};
use ringlog_protocol::ids::TopicPartition;
use ringlog_raft::ids::ReplicaId;
use ringlog_shard::budget::Budget;
use ringlog_shard::egress::Egress;
use ringlog_shard::mesh::CoreId;
use ringlog_shard::placement::core_of;
use ringlog_shard::storage::RecoveredPartition;
use ringlog_shard::store::Store;
use ringlog_shard::waiters::Watchers;

use crate::config::BrokerConfig;
use crate::controller::{Controller, METADATA_PARTITION, MetadataImage};
use crate::handlers::fetch::session::cache::SessionCache;
use crate::observe::ShardObserver;
use crate::process::rate_limit::LineLimit;
use crate::process::stop::Readiness;
use crate::server::connections::Connections;
use controller_host::ProducerIds;
use groups::Groups;
use messages::CoreMesh;
use serve::ProduceBacklog;
use session_parts::SessionParts;
use watches::{ForeignWatches, HomeWatches};

/// Everything one core owns. Shared within the core as an `Rc`; no other core ever sees it.
pub struct Core {
    pub id: CoreId,
    pub core_count: u32,
    pub io: Io,
    pub mesh: CoreMesh,
    pub store: Store,
    pub egress: Egress,
    pub config: Arc<BrokerConfig>,
    /// This node, as its groups name it.
    pub me: ReplicaId,
    /// What this core may allocate.
    pub memory_bytes: u64,
    pub observer: ShardObserver,
    /// The metadata this core works with: replaced whole, never changed.
    image: RefCell<Arc<MetadataImage>>,
    /// False until the controller's first image came: what was recovered is claimed by it or put aside.
    has_image: Cell<bool>,
    /// What recovery found for this core and no image has claimed yet. Empty after the first image.
    recovered: RefCell<BTreeMap<TopicPartition, RecoveredPartition>>,
    pub connections: Connections,
    /// Of lines about peers that break the protocol: one that does so in a loop must not fill the log.
    pub violation_lines: RefCell<LineLimit>,
    /// Of lines about requests of groups that were refused for reasons their responses have no field for.
    pub group_lines: RefCell<LineLimit>,
    readiness: Readiness,
    /// On the controller's core only.
    controller: RefCell<Option<Controller>>,
    controller_ready: Flag,
    producer_ids: ProducerIds,
    produce_backlog: ProduceBacklog,
    /// Memory of requests that are arriving or not yet dispatched.
    pub receiving: Budget,
    /// Decompressed records of the batch being checked.
    pub scratch: RefCell<Vec<u8>>,
    /// Fetches that wait for bytes.
    pub fetches_waiting: Cell<u64>,
    /// Fetch sessions of this core's clients.
    pub(crate) fetch_sessions: RefCell<SessionCache>,
    /// What sessions want of this core's partitions.
    pub(crate) session_parts: SessionParts,
    home_watches: HomeWatches,
    foreign_watches: ForeignWatches<Task<()>>,
    /// On the acceptor's core only. Dropping one stops it.
    acceptors: RefCell<Vec<Task<()>>>,
    sweeper: RefCell<Option<Task<()>>>,
    groups: Groups,
    draining: Cell<bool>,
    drain_watchers: Watchers,
    ended: Flag,
}

impl Core {
    pub fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(&self.image.borrow())
    }

    pub fn owner_of(&self, partition: TopicPartition) -> CoreId {
        CoreId(core_of(partition, self.core_count))
    }

    /// The core that runs the controller: the owner of the metadata partition.
    pub fn controller_core(&self) -> CoreId {
        self.owner_of(METADATA_PARTITION)
    }

    /// Random bytes for a topic's id.
    pub fn random_bytes(&self) -> [u8; 16] {
        let (high, low) = (self.io.random_u64(), self.io.random_u64());
        ((u128::from(high) << 64) | u128::from(low)).to_be_bytes()
    }

    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    pub fn home_watches(&self) -> &HomeWatches {
        &self.home_watches
    }

    fn take_recovered(&self, key: TopicPartition) -> Option<RecoveredPartition> {
        self.recovered.borrow_mut().remove(&key)
    }
}

/// Something that happens once; any number of tasks of this core may wait for it. Clones share it.
#[derive(Clone, Default)]
pub struct Flag {
    inner: Rc<FlagState>,
}

#[derive(Default)]
struct FlagState {
    set: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Flag {
    /// It happened. True for the first call.
    pub fn set(&self) -> bool {
        let first = !self.inner.set.replace(true);
        self.inner.waiting.take().into_iter().for_each(Waker::wake);
        first
    }

    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.inner.set.get() {
                return Poll::Ready(());
            }
            self.inner.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
