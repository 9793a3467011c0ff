//! The groups of one core while their partition changes its leader or cannot commit: the core of a broker on a simulated host, beside two
//! replicas of the partition that are nothing but stores. Links are a test's to cut.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringlog_io::sim::{Host, Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::generated::offset_commit::{OffsetCommitKey, OffsetCommitValue};
use ringlog_protocol::group::generated::{Key, Value};
use ringlog_protocol::group::record::{encode_key, encode_value};
use ringlog_protocol::ids::{
    NodeId, Offset, PartitionIndex, ProducerEpoch, ProducerId, Sequence, TopicId, TopicPartition,
};
use ringlog_protocol::records::attributes::Attributes;
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_raft::Settings;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::mesh;
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::replica::{PeerMessage, Replication};
use ringlog_shard::storage::{CoreStorage, LogSettings, StorageSettings};
use ringlog_shard::store::{Opening, Store};
use ringlog_shard::waiters::CommitGather;

use super::{GroupAnswer, GroupCall, Groups, ask};
use crate::config::load::Sources;
use crate::config::typed::Account;
use crate::config::{self, BrokerConfig};
use crate::controller::{MetadataImage, OFFSETS_TOPIC_NAME};
use crate::core::start::{self, CoreSeat, StorageSeat};
use crate::core::{Core, images};
use crate::group::consumer::ConsumerHeartbeatRequest;
use crate::group::*;
use crate::observe::snapshot;
use crate::process::stop::Readiness;

mod leaders;
mod transactions;

const NODES: usize = 3;
/// The node with the core; it asks for votes first.
const FIRST: usize = 0;
const STEP: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(120);
const SESSION_MS: i32 = 10_000;
const GROUP: &str = "g";
const TOPIC: &str = "orders";

/// Of the one partition of groups that there is.
fn key() -> TopicPartition {
    TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(0) }
}

fn replica(place: usize) -> ReplicaId {
    ReplicaId { node: NodeId(place as i32), directory: DirectoryId([place as u8 + 1; 16]) }
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
}

impl Links {
    fn cut(&self, places: impl IntoIterator<Item = usize>) {
        places.into_iter().for_each(|place| self.is_cut[place].set(true));
    }

    fn mend(&self) {
        self.is_cut.iter().for_each(|is_cut| is_cut.set(false));
    }

    fn post(&self, from: usize, message: PeerMessage, records: &[Bytes]) {
        let to = message.to().node.0 as usize;
        if !self.is_cut[from].get() && !self.is_cut[to].get() {
            let records = Bytes::from(records.concat());
            self.inboxes.borrow_mut()[to].push_back(Packet { message, records });
        }
    }
}

fn configuration() -> BrokerConfig {
    let sets = ["ringlog.ephemeral=true", "group.initial.rebalance.delay.ms=0"];
    let sets = sets.map(str::to_owned).to_vec();
    config::load(&Sources { sets, ..Sources::default() }, &Account::default())
        .expect("the settings are legal")
}

/// A core that has no image yet.
async fn build(io: &Io) -> Rc<Core> {
    let seat = CoreSeat {
        seat: mesh::seats(1, 64).pop().expect("a seat"),
        core_count: 1,
        config: Arc::new(configuration()),
        me: replica(FIRST),
        storage: StorageSeat::Ephemeral,
        storage_settings: StorageSettings::DEV,
        memory_bytes: 64 << 20,
        publisher: snapshot::slot(0).0,
        readiness: Readiness::default(),
        cluster_id: "test".into(),
        front: None,
    };
    let core = start::build(io.clone(), seat).await.expect("it comes up");
    io.spawn(Priority::Foreground, Groups::keep_time(Rc::clone(&core))).detach();
    core
}

fn image() -> Arc<MetadataImage> {
    Arc::new(MetadataImage::with_topics_for_tests(&[(OFFSETS_TOPIC_NAME, 1), (TOPIC, 8)]))
}

/// Opens the partition of groups as one of three replicas.
async fn take_part(io: Io, links: Rc<Links>, place: usize, store: &Store, copies_min: usize) {
    let outbox = Rc::clone(&links);
    store.set_outbox(move |outgoing| outbox.post(place, outgoing.message, &outgoing.records));
    let voters = (0..NODES).map(replica).collect();
    let configuration = Configuration { version: 1, position: Offset(0), voters, learners: Vec::new() };
    let settings = Settings {
        election_timeout: Duration::from_millis(300),
        heartbeat_interval: Duration::from_millis(50),
        priority: if place == FIRST { 0 } else { 20 },
        copies_min,
        lag_time_max: Duration::from_secs(1),
        ..Settings::default()
    };
    let opening = Opening { key: key(), recovered: None, settings: LogSettings::KEEP_ALL };
    store.open_replicated(vec![(opening, Replication { configuration, settings: settings.into() })]).await;
    let (store, clock) = (store.clone(), io.clone());
    let run = async move {
        loop {
            let arrived = std::mem::take(&mut links.inboxes.borrow_mut()[place]);
            arrived.into_iter().for_each(|packet| store.receive(key(), packet.message, packet.records));
            store.tick(clock.monotonic_now());
            clock.sleep(STEP).await;
        }
    };
    io.spawn(Priority::Foreground, run).detach();
}

/// An answer that is on its way.
type Awaited = Rc<RefCell<Option<GroupAnswer>>>;

/// A core and the two others, all in sync.
#[derive(Clone)]
struct Scene {
    io: Io,
    core: Rc<Core>,
    links: Rc<Links>,
    /// By place.
    stores: Vec<Store>,
}

impl Scene {
    async fn until(&self, what: &str, is_so: impl Fn(&Scene) -> bool) {
        let until = self.io.monotonic_now() + PATIENCE;
        while !is_so(self) {
            assert!(self.io.monotonic_now() < until, "it never came: {what}");
            self.io.sleep(STEP).await;
        }
    }

    async fn pass(&self, duration: Duration) {
        self.io.sleep(duration).await;
    }

    async fn until_in_sync(&self) {
        self.until("all are in sync", |scene| {
            let leader = scene.leader().and_then(|place| scene.stores[place].replica_status(key()).ok());
            leader.is_some_and(|status| {
                status.is_settled && status.members.iter().filter(|member| member.is_in_sync).count() == NODES
            })
        })
        .await;
    }

    /// Whoever says that it leads, the last one where there are two.
    fn leader(&self) -> Option<usize> {
        let epoch_of = |place: &usize| self.stores[*place].view(key()).ok().map(|view| view.leader_epoch);
        (0..NODES).filter(|place| epoch_of(place).is_some()).max_by_key(epoch_of)
    }

    /// Lets this one lead.
    async fn lead(&self, place: usize) {
        while self.leader() != Some(place) {
            if let Some(leader) = self.leader() {
                // Tried again where it is refused, as to one that is behind.
                let _outcome = self.stores[leader].transfer_leadership(key(), Some(replica(place))).await;
            }
            self.pass(Duration::from_millis(20)).await;
        }
    }

    /// Asks without waiting.
    fn begin(&self, call: GroupCall) -> Awaited {
        let (core, awaited) = (Rc::clone(&self.core), Awaited::default());
        let answered = Rc::clone(&awaited);
        let asking = async move {
            let answer = ask(&core, 0, call).await;
            *answered.borrow_mut() = Some(answer);
        };
        self.io.spawn(Priority::Foreground, asking).detach();
        awaited
    }

    async fn call(&self, call: GroupCall) -> GroupAnswer {
        ask(&self.core, 0, call).await
    }

    /// Commits an offset of nobody in particular.
    async fn commit(&self, partition: i32, offset: i64) -> ErrorCode {
        error_of(&self.call(commit(partition, offset)).await)
    }

    /// What the group has, by partition.
    async fn offsets(&self) -> Result<BTreeMap<i32, i64>, ErrorCode> {
        let query = OffsetQuery { group: GROUP.into(), member: None, member_epoch: -1, topics: None };
        match self.call(GroupCall::FetchOffsets(vec![query])).await {
            GroupAnswer::Offsets(mut found) => {
                let partitions = found.remove(0).1?.into_iter().flat_map(|topic| topic.partitions);
                Ok(partitions.map(|one| (one.index, one.offset)).collect())
            }
            GroupAnswer::Refused(error) => Err(error),
            other => panic!("offsets are answered by offsets: {other:?}"),
        }
    }

    async fn until_served(&self) {
        let until = self.io.monotonic_now() + PATIENCE;
        while self.offsets().await.is_err() {
            assert!(self.io.monotonic_now() < until, "it never serves");
            self.pass(STEP).await;
        }
    }

    async fn state(&self) -> (GroupState, usize) {
        match self.call(GroupCall::Describe(vec![GROUP.into()])).await {
            GroupAnswer::Described(mut found) => {
                let group = found.remove(0).1.expect("it is known");
                (group.state, group.members.len())
            }
            other => panic!("groups are described by described groups: {other:?}"),
        }
    }

    /// A member of the classic protocol, alone, with its assignment still to be brought.
    async fn join(&self) -> (MemberId, i32) {
        match self.call(GroupCall::Join(join("", 1))).await {
            GroupAnswer::Reply(Reply::Join(reply)) if reply.error == ErrorCode::None => {
                (reply.member, reply.generation)
            }
            other => panic!("it may join: {other:?}"),
        }
    }

    async fn heartbeat(&self, member: &MemberId, generation: i32) -> ErrorCode {
        let request =
            HeartbeatRequest { group: GROUP.into(), generation, member: Arc::clone(member), instance: None };
        error_of(&self.call(GroupCall::Heartbeat(request)).await)
    }
}

fn join(member: &str, random: u8) -> JoinRequest {
    JoinRequest {
        // Makes nobody ask twice.
        version: 3,
        group: GROUP.into(),
        member: member.into(),
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        protocol_type: "consumer".into(),
        protocols: vec![Protocol { name: "range".into(), metadata: Bytes::from_static(b"\0\0\0\0\0\0") }],
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: 60_000,
        random: [random; 16],
        ..JoinRequest::default()
    }
}

fn sync(member: &MemberId, generation: i32) -> GroupCall {
    GroupCall::Sync(SyncRequest {
        group: GROUP.into(),
        generation,
        member: Arc::clone(member),
        assignments: vec![(Arc::clone(member), Bytes::from_static(b"part"))],
        ..SyncRequest::default()
    })
}

fn consumer(member: &str, epoch: i32) -> GroupCall {
    GroupCall::ConsumerHeartbeat(ConsumerHeartbeatRequest {
        version: 1,
        group: GROUP.into(),
        member: member.into(),
        epoch,
        rebalance_timeout_ms: if epoch == 0 { 60_000 } else { -1 },
        names: (epoch == 0).then(|| vec![TOPIC.into()]),
        owned: (epoch == 0).then(Vec::new),
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        ..ConsumerHeartbeatRequest::default()
    })
}

fn commit(partition: i32, offset: i64) -> GroupCall {
    commit_of(&"".into(), -1, partition, offset)
}

fn commit_of(member: &MemberId, generation: i32, partition: i32, offset: i64) -> GroupCall {
    let partition = CommitPartition { index: partition, offset, leader_epoch: -1, metadata: None };
    GroupCall::CommitOffsets(CommitRequest {
        version: 9,
        group: GROUP.into(),
        generation,
        member: Arc::clone(member),
        topics: vec![CommitTopic { name: TOPIC.into(), id: TopicId([2; 16]), partitions: vec![partition] }],
        ..CommitRequest::default()
    })
}

/// The one error of an answer.
fn error_of(answer: &GroupAnswer) -> ErrorCode {
    match answer {
        GroupAnswer::Refused(error) | GroupAnswer::Reply(Reply::Heartbeat(error)) => *error,
        GroupAnswer::Reply(Reply::Join(reply)) => reply.error,
        GroupAnswer::Reply(Reply::Sync(reply)) => reply.error,
        GroupAnswer::Reply(Reply::ConsumerHeartbeat(reply)) => reply.error,
        GroupAnswer::Reply(Reply::CommitOffsets(reply)) => reply.topics[0].partitions[0].1,
        other => panic!("an answer of another kind: {other:?}"),
    }
}

/// What came of a call that was begun, if anything did.
fn error_so_far(awaited: &Awaited) -> Option<ErrorCode> {
    awaited.borrow().as_ref().map(error_of)
}

/// As Kafka writes an offset; `None`: it is no more.
fn offset_record(partition: i32, offset: Option<i64>) -> (Bytes, Option<Bytes>) {
    let key = Key::OffsetCommit(OffsetCommitKey { group: GROUP, topic: TOPIC, partition });
    let value = offset.map(|offset| {
        Value::OffsetCommit(OffsetCommitValue {
            offset,
            leader_epoch: -1,
            metadata: "",
            commit_timestamp: 1,
            expire_timestamp: -1,
            topic_id: TopicId([2; 16]),
        })
    });
    (encode_key(&key).expect("short"), value.map(|value| encode_value(&value).expect("short")))
}

/// Appends a record where the partition is led, whatever that makes of it.
async fn write(store: &Store, (key_bytes, value): (Bytes, Option<Bytes>), options: BatchOptions) {
    let mut builder = BatchBuilder::new();
    let record = NewRecord { timestamp: 1, key: Some(&key_bytes), value: value.as_deref(), headers: &[] };
    builder.append(&record).expect("a small record");
    let bytes = builder.finish(&options).expect("it has a record");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = u32::try_from(bytes.len()).expect("small");
    let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
    let gather = CommitGather::new();
    store.append(key(), batch, Some(gather.ticket(0))).expect("it leads");
    assert_eq!(gather.finish().await, [], "committed");
}

/// Runs `play` in a world of its own.
fn in_world<F: Future<Output = ()> + 'static>(seed: u64, play: impl FnOnce(Io, Vec<Io>) -> F) {
    let world = World::new(seed);
    let hosts: Vec<Host> = (0..NODES).map(|place| world.host(&format!("node-{place}"))).collect();
    let is_done = Rc::new(Cell::new(false));
    let ios: Vec<Io> = hosts.iter().map(Host::executor).collect();
    let (io, done) = (ios[FIRST].clone(), Rc::clone(&is_done));
    let playing = play(io.clone(), ios);
    let task = async move {
        playing.await;
        done.set(true);
    };
    io.spawn(Priority::Foreground, task).detach();
    let outcome = world.run_until(|| is_done.get(), PATIENCE * 10);
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
}

/// Runs `play` once the first node leads, and serves groups, and everybody is in sync.
fn simulate<F: Future<Output = ()> + 'static>(
    seed: u64,
    copies_min: usize,
    play: impl FnOnce(Scene) -> F + 'static,
) {
    in_world(seed, move |io, ios| async move {
        let links = Rc::new(Links::default());
        let core = build(&io).await;
        let mut stores = vec![core.store.clone()];
        for (place, io) in ios.iter().cloned().enumerate().skip(FIRST + 1) {
            let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
            stores.push(Store::new(io, storage, replica(place), 3_600_000));
        }
        for (place, store) in stores.iter().enumerate() {
            take_part(ios[place].clone(), Rc::clone(&links), place, store, copies_min).await;
        }
        let scene = Scene { io, core, links, stores };
        images::apply(&scene.core, image()).await;
        scene.until_in_sync().await;
        scene.lead(FIRST).await;
        scene.until_served().await;
        play(scene).await;
    });
}
