//! What a leader with followers tells those who wait for it, on three simulated hosts with links that a test cuts: why a commit did
//! not come, and where the log ends while a new leader does not know yet what is committed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{SMALL, core_of, open_directory, partition};
use bytes::{Bytes, BytesMut};
use ringlog_io::sim::{Host, HostDisk, Outcome, Place, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{NodeId, Offset, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_raft::Settings;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_raft::message::{Body, Message};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::partition::{AppendError, IncomingBatch};
use ringlog_shard::replica::{Durability, PeerMessage, Replication};
use ringlog_shard::storage::{CoreStorage, LogSettings};
use ringlog_shard::store::{Opening, Store, ViewError};
use ringlog_shard::waiters::{CommitFailure, CommitGather};

const NODES: usize = 3;
/// The node that asks for votes first.
const FIRST: usize = 0;
const STEP: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);
const PRODUCER_EXPIRATION_MS: i64 = 3_600_000;

fn key() -> TopicPartition {
    partition(7, 0)
}

fn replica(place: usize) -> ReplicaId {
    ReplicaId { node: NodeId(place as i32), directory: DirectoryId([place as u8 + 1; 16]) }
}

fn settings(place: usize, copies_min: usize) -> Settings {
    Settings {
        election_timeout: Duration::from_millis(300),
        heartbeat_interval: Duration::from_millis(50),
        priority: if place == FIRST { 0 } else { 20 },
        copies_min,
        lag_time_max: Duration::from_secs(1),
        ..Settings::default()
    }
}

struct Packet {
    message: PeerMessage,
    records: Bytes,
}

/// The hosts' links.
#[derive(Default)]
struct Links {
    inboxes: RefCell<[VecDeque<Packet>; NODES]>,
    /// Nobody hears these, and they hear nobody.
    is_cut: [Cell<bool>; NODES],
    /// Appends get lost, all else arrives.
    loses_appends: Cell<bool>,
}

impl Links {
    fn cut(&self, places: impl IntoIterator<Item = usize>, is_cut: bool) {
        places.into_iter().for_each(|place| self.is_cut[place].set(is_cut));
    }

    fn post(&self, from: usize, message: PeerMessage, records: &[Bytes]) {
        let to = message.to().node.0 as usize;
        let is_append = matches!(&message, PeerMessage::Raft(Message { body: Body::Append(_), .. }));
        if self.is_cut[from].get() || self.is_cut[to].get() || is_append && self.loses_appends.get() {
            return;
        }
        self.inboxes.borrow_mut()[to].push_back(Packet { message, records: Bytes::from(records.concat()) });
    }
}

async fn open(io: Io, links: Rc<Links>, place: usize, copies_min: usize) -> Store {
    let directory = open_directory(&io, Path::new("/data")).await;
    let recovery = recover(&io, &directory, 1, &core_of(1), &SMALL).await;
    let shard = recovery.expect("recovery").shards.pop().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, SMALL).await.expect("start");
    let store = Store::new(io.clone(), storage, replica(place), PRODUCER_EXPIRATION_MS);
    let outbox = Rc::clone(&links);
    store.set_outbox(move |outgoing| outbox.post(place, outgoing.message, &outgoing.records));
    let voters = (0..NODES).map(replica).collect();
    let configuration = Configuration { version: 1, position: Offset(0), voters, learners: Vec::new() };
    let opening = Opening { key: key(), recovered: None, settings: LogSettings::KEEP_ALL };
    let replication = Replication { configuration, settings: settings(place, copies_min).into() };
    store.open_replicated(vec![(opening, replication)]).await;
    store
}

async fn take_part(io: Io, links: Rc<Links>, place: usize, store: Store) {
    loop {
        let arrived = std::mem::take(&mut links.inboxes.borrow_mut()[place]);
        arrived.into_iter().for_each(|packet| store.receive(key(), packet.message, packet.records));
        store.tick(io.monotonic_now());
        io.sleep(STEP).await;
    }
}

/// Three replicas of one partition.
struct Cluster {
    io: Io,
    links: Rc<Links>,
    stores: Vec<Store>,
    /// Of the first node.
    disk: HostDisk,
}

impl Cluster {
    async fn until(&self, what: &str, is_so: impl Fn(&Cluster) -> bool) {
        let until = self.io.monotonic_now() + PATIENCE;
        while !is_so(self) {
            assert!(self.io.monotonic_now() < until, "it never came: {what}");
            self.io.sleep(STEP).await;
        }
    }

    fn leader(&self) -> &Store {
        &self.stores[FIRST]
    }

    async fn until_settled(&self) {
        self.until("the first node leads and knows what is committed", |cluster| {
            cluster.leader().replica_status(key()).is_ok_and(|status| status.is_settled)
                && append_one(cluster, Durability::Leader).is_ok()
        })
        .await;
    }

    fn high_watermark(&self) -> i64 {
        self.leader().view(key()).map_or(-1, |view| view.high_watermark.0)
    }
}

/// Appends one record at the first node.
fn append_one(cluster: &Cluster, durability: Durability) -> Result<CommitGather, AppendError> {
    let mut builder = BatchBuilder::new();
    let record = NewRecord { timestamp: 1, key: None, value: Some(b"value"), headers: &[] };
    builder.append(&record).expect("a small record");
    let bytes = builder.finish(&BatchOptions::default()).expect("it has a record");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
    let gather = CommitGather::new();
    cluster.leader().append_for(key(), batch, Some(gather.ticket(0)), durability)?;
    Ok(gather)
}

/// Runs `play` once the first node leads, has one record committed and everybody in sync.
fn simulate<F: Future<Output = ()> + 'static>(copies_min: usize, play: impl FnOnce(Cluster) -> F + 'static) {
    let world = World::new(11);
    let hosts: Vec<Host> = (0..NODES).map(|place| world.host(&format!("node-{place}"))).collect();
    let links = Rc::new(Links::default());
    let stores: Rc<RefCell<Vec<Option<Store>>>> = Rc::new(RefCell::new(vec![None; NODES]));
    for (place, host) in hosts.iter().enumerate() {
        let (io, links, stores) = (host.executor(), Rc::clone(&links), Rc::clone(&stores));
        let life = async move |io: Io| {
            let store = open(io.clone(), Rc::clone(&links), place, copies_min).await;
            stores.borrow_mut()[place] = Some(store.clone());
            take_part(io, links, place, store).await;
        };
        io.clone().spawn(Priority::Foreground, life(io)).detach();
    }
    let is_done = Rc::new(Cell::new(false));
    let (io, disk, done) = (hosts[FIRST].executor(), hosts[FIRST].disk(), Rc::clone(&is_done));
    let test = async move |io: Io| {
        while stores.borrow().iter().any(Option::is_none) {
            io.sleep(STEP).await;
        }
        let stores = stores.borrow().iter().flatten().cloned().collect();
        let cluster = Cluster { io, links, stores, disk };
        cluster.until_settled().await;
        cluster.until("the first record is committed", |cluster| cluster.high_watermark() == 1).await;
        cluster
            .until("all are in sync", |cluster| {
                let status = cluster.leader().replica_status(key()).expect("open");
                status.members.len() == NODES && status.members.iter().all(|member| member.is_in_sync)
            })
            .await;
        play(cluster).await;
        done.set(true);
    };
    io.clone().spawn(Priority::Foreground, test(io)).detach();
    let outcome = world.run_until(|| is_done.get(), PATIENCE * 4);
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
}

#[test]
fn a_producer_learns_that_the_leader_leads_no_more() {
    simulate(1, |cluster| async move {
        cluster.links.cut(0..NODES, true);
        let waiting = append_one(&cluster, Durability::Quorum).expect("it leads on");
        assert_eq!(waiting.finish().await, [(0, CommitFailure::NotLeader)]);
        assert!(matches!(append_one(&cluster, Durability::Quorum), Err(AppendError::NotLeader)));
    });
}

#[test]
fn a_producer_learns_that_too_few_are_in_sync_after_and_before_its_append() {
    simulate(NODES, |cluster| async move {
        cluster.links.cut([2], true);
        let waiting = append_one(&cluster, Durability::Quorum).expect("nobody is missed yet");
        let failure = CommitFailure::NotEnoughReplicas { in_sync: 2, required: 3 };
        assert_eq!(waiting.finish().await, [(0, failure)]);
        let refused = append_one(&cluster, Durability::Quorum).err();
        assert_eq!(refused, Some(AppendError::NotEnoughReplicas { in_sync: 2, required: 3 }));
        assert_eq!(cluster.high_watermark(), 1, "two of three are too few");
        cluster.links.cut([2], false);
        cluster.until("it is committed late", |cluster| cluster.high_watermark() == 2).await;
    });
}

#[test]
fn a_leader_that_is_not_settled_says_up_to_where_others_may_have_read() {
    simulate(1, |cluster| async move {
        cluster.links.cut(0..NODES, true);
        let waiting = append_one(&cluster, Durability::Quorum).expect("it leads on");
        assert_eq!(waiting.finish().await, [(0, CommitFailure::NotLeader)]);
        cluster.links.loses_appends.set(true);
        cluster.links.cut(0..NODES, false);
        cluster.until("it leads again", |cluster| cluster.leader().view(key()).is_ok()).await;
        let view = cluster.leader().view(key()).expect("it leads");
        assert_eq!((view.high_watermark, view.unsettled_end), (Offset(1), Some(Offset(2))));
        cluster.links.loses_appends.set(false);
        cluster.until("it is committed", |cluster| cluster.high_watermark() == 2).await;
        let view = cluster.leader().view(key()).expect("it leads");
        assert_eq!(view.unsettled_end, None);
    });
}

#[test]
fn a_producer_learns_that_the_leader_s_log_failed_and_not_only_that_it_stepped_down() {
    for durability in [Durability::Leader, Durability::Quorum] {
        simulate(1, move |cluster| async move {
            cluster.disk.fail_writes(Place::in_files("journal"));
            let waiting = append_one(&cluster, durability).expect("nobody knows yet");
            assert_eq!(waiting.finish().await, [(0, CommitFailure::Poisoned)]);
            let refused = append_one(&cluster, durability).err();
            assert!(matches!(refused, Some(AppendError::Poisoned { .. })), "{refused:?}");
            let view = cluster.leader().view(key());
            assert_eq!(view, Err(ViewError::NotLeader), "others have what is committed, and more");
        });
    }
}
