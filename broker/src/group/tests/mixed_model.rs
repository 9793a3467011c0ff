//! Random members of both protocols in one group, which changes its kind whenever the last of one protocol goes or the first of the other
//! comes; members are upgraded and taken back, leave, crash and fall silent; answers are lost, the log is slow and fails, the coordinator
//! restarts. Whatever happens: no two members own one partition in an epoch that the coordinator takes commits of; epochs and
//! generations in the log only grow; and left alone, the group comes to rest with everything owned, whatever its members speak.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::{
    decode_assignment, decode_subscription, encode_assignment, encode_subscription,
};
use ringlog_protocol::group::generated::consumer_protocol_assignment::{
    ConsumerProtocolAssignment, TopicPartition as AssignedTopic,
};
use ringlog_protocol::group::generated::consumer_protocol_subscription::{
    ConsumerProtocolSubscription, TopicPartition as OwnedTopic,
};
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};

use super::model::{Random, play, play_many};
use super::support::{Desk, GROUP, request, topic_id, topics};
use crate::group::consumer::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest, MemberState};
use crate::group::*;

const TOPIC: &str = "orders";
const PROTOCOL: &str = "range";

/// Which protocols new members speak, for a while.
#[derive(Clone, Copy)]
enum Fashion {
    Classic,
    Both,
    Consumer,
}

/// Where a member stands, as it sees itself.
#[derive(Clone)]
enum Step {
    /// Of the classic protocol.
    MustJoin,
    Joins(Token),
    /// Told its generation, and, as the leader, who else is in it.
    MustSync(Vec<JoinedMember>),
    Syncs(Token),
    Works {
        beats: Option<Token>,
    },
    /// Of the consumer protocol.
    Beats(Beat),
}

#[derive(Clone, Default)]
struct Beat {
    waits: Option<Token>,
    /// What it was told to have and may not have come to yet.
    told: Option<BTreeSet<i32>>,
    /// It does not know whether its last request was heard.
    unsure: bool,
}

#[derive(Clone)]
struct Client {
    instance: Option<Arc<str>>,
    name: MemberId,
    /// Or generation; 0: it is to join.
    epoch: i32,
    owned: BTreeSet<i32>,
    step: Step,
    silent: bool,
}

struct World {
    desk: Desk,
    random: Random,
    clients: Vec<Client>,
    names: usize,
    fashion: Fashion,
    /// Members of the classic protocol keep what they have while they join.
    cooperative: bool,
    partitions: i32,
    version: i64,
    logged: usize,
    reader: GroupMachine,
    newest_logged: i32,
    was_classic: bool,
    /// Answers are lost, and members join again of themselves.
    troubled: bool,
    reached: BTreeMap<&'static str, usize>,
}

fn at(partition: i32) -> TopicPartition {
    TopicPartition { topic: topic_id(TOPIC), partition: PartitionIndex(partition) }
}

fn subscription(owned: &BTreeSet<i32>) -> Bytes {
    let owned = OwnedTopic { topic: TOPIC, partitions: owned.iter().copied().collect::<Vec<_>>().into() };
    let subscription = ConsumerProtocolSubscription {
        topics: vec![TOPIC],
        owned_partitions: vec![owned],
        ..Default::default()
    };
    encode_subscription(&subscription, 3).expect("short")
}

fn assignment(partitions: &BTreeSet<i32>) -> Bytes {
    let topic =
        AssignedTopic { topic: TOPIC, partitions: partitions.iter().copied().collect::<Vec<_>>().into() };
    let assignment = ConsumerProtocolAssignment { assigned_partitions: vec![topic], user_data: None };
    encode_assignment(&assignment, 3).expect("short")
}

fn assigned(bytes: &[u8]) -> BTreeSet<i32> {
    if bytes.is_empty() {
        return BTreeSet::new();
    }
    let assignment = decode_assignment(bytes).expect("readable");
    assignment
        .assigned_partitions
        .iter()
        .flat_map(|topic| topic.partitions.iter().collect::<Vec<_>>())
        .collect()
}

/// What a leader assigns: each member keeps what it claims, up to its part, and what nobody claims goes to those that have less. What is
/// more than a member's part is nobody's until it has given it up.
fn assign(members: &[JoinedMember], partitions: i32) -> Vec<(MemberId, Bytes)> {
    let claims: Vec<BTreeSet<i32>> = members
        .iter()
        .map(|member| {
            let said = decode_subscription(&member.metadata).expect("readable");
            said.owned_partitions
                .iter()
                .flat_map(|owned| owned.partitions.iter().collect::<Vec<_>>())
                .collect()
        })
        .collect();
    let part = |index: usize| {
        let count = members.len();
        partitions as usize / count + usize::from(index < partitions as usize % count)
    };
    let mut free: BTreeSet<i32> =
        (0..partitions).filter(|at| !claims.iter().any(|own| own.contains(at))).collect();
    let given = members.iter().zip(&claims).enumerate().map(|(index, (member, claims))| {
        let mut given: BTreeSet<i32> = claims.iter().copied().take(part(index)).collect();
        while given.len() < part(index)
            && let Some(next) = free.pop_first()
        {
            given.insert(next);
        }
        (Arc::clone(&member.member), assignment(&given))
    });
    given.collect()
}

impl World {
    fn new(seed: u64) -> World {
        let mut desk = Desk::new();
        desk.slow_log = true;
        desk.slow_computing = true;
        let mut world = World {
            desk,
            random: Random(seed),
            clients: Vec::new(),
            names: 0,
            fashion: [Fashion::Classic, Fashion::Both, Fashion::Consumer][seed as usize % 3],
            cooperative: seed.is_multiple_of(2),
            partitions: 4,
            version: 1,
            logged: 0,
            reader: GroupMachine::new(GroupSettings::default()),
            newest_logged: 0,
            was_classic: true,
            troubled: true,
            reached: BTreeMap::new(),
        };
        for index in 0..5 {
            let instance = (index < 2).then(|| Arc::from(format!("static-{index}")));
            let client = world.born(instance);
            world.clients.push(client);
        }
        world
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// A process begins.
    fn born(&mut self, instance: Option<Arc<str>>) -> Client {
        let speaks_classic = match self.fashion {
            Fashion::Classic => true,
            Fashion::Both => self.random.one_in(2),
            Fashion::Consumer => false,
        };
        self.names += 1;
        let name = if speaks_classic { String::new() } else { format!("member-{}", self.names) };
        let step = if speaks_classic { Step::MustJoin } else { Step::Beats(Beat::default()) };
        Client { instance, name: name.into(), epoch: 0, owned: BTreeSet::new(), step, silent: false }
    }

    /// A new life of a client, of the protocol that is in fashion.
    fn begin(&mut self, index: usize) {
        let instance = self.clients[index].instance.clone();
        self.clients[index] = self.born(instance);
    }

    fn act(&mut self) {
        let index = self.random.below(self.clients.len());
        match self.random.below(100) {
            0..50 => self.send(index),
            50..56 => self.settle(index),
            56..76 if !self.desk.under_way.is_empty() => self.desk.commit_one(),
            76 if !self.desk.under_way.is_empty() => {
                self.reach("an append failed");
                // It may have said that the group is empty.
                self.newest_logged = 0;
                self.desk.fail_one();
            }
            77..82 if !self.desk.computing.is_empty() => self.desk.compute_one(),
            82..91 => {
                let ms = self.random.below(1_500) as i64;
                self.desk.pass(ms);
            }
            91 => self.leave(index),
            92..94 => {
                self.reach("a member crashed");
                self.begin(index);
            }
            94 if self.random.one_in(2) => self.clients[index].silent ^= true,
            95 if self.random.one_in(3) => self.grow(),
            96 if self.random.one_in(2) => {
                self.fashion = [Fashion::Classic, Fashion::Both, Fashion::Consumer][self.random.below(3)];
            }
            97 if self.random.one_in(4) => self.restart(),
            98 => drop(self.desk.event(Event::Expire)),
            _ => {}
        }
        (0..self.clients.len()).for_each(|index| self.hear(index));
        self.look();
    }

    /// What must hold, and what came to be.
    fn look(&mut self) {
        self.check_owners();
        self.check_log();
        let is_classic = self.desk.machine.live.contains_key(GROUP);
        if is_classic != self.was_classic {
            self.was_classic = is_classic;
            self.reach(if is_classic { "the group turned classic" } else { "the group was upgraded" });
        }
        if let Some(group) = self.desk.machine.consumers.get(GROUP)
            && group.index.classic > 0
            && group.index.classic < group.index.members
        {
            self.reach("both protocols in one group");
        }
    }

    fn grow(&mut self) {
        if self.partitions < 9 {
            self.partitions += 1;
            self.version += 1;
            self.desk.event(Event::MetadataChanged(topics(self.version, &[(TOPIC, self.partitions)])));
        }
    }

    fn restart(&mut self) {
        self.reach("the coordinator restarted");
        // What was under way may have been committed, up to a point.
        while !self.desk.under_way.is_empty() && !self.random.one_in(2) {
            self.desk.land_one();
        }
        self.desk.restart();
        for client in &mut self.clients {
            match &mut client.step {
                Step::Joins(_) | Step::Syncs(_) => client.step = Step::MustJoin,
                Step::Works { beats } => *beats = None,
                Step::Beats(beat) => {
                    beat.unsure |= beat.waits.take().is_some();
                }
                Step::MustJoin | Step::MustSync(_) => {}
            }
        }
    }

    /// What a client does next of itself.
    fn send(&mut self, index: usize) {
        let client = self.clients[index].clone();
        if client.silent {
            return;
        }
        match client.step {
            Step::Joins(_) | Step::Syncs(_) | Step::Works { beats: Some(_) } => {}
            Step::MustJoin => self.join(index),
            Step::MustSync(members) => self.sync(index, &members),
            // Now and then it wants to be assigned anew, as one that saw new partitions does.
            Step::Works { .. } if self.troubled && self.random.one_in(12) => self.join(index),
            Step::Works { .. } => {
                let request = HeartbeatRequest {
                    group: GROUP.into(),
                    generation: client.epoch,
                    member: client.name,
                    instance: client.instance,
                };
                let token = self.desk.ask(|token| Event::Heartbeat(token, request));
                self.clients[index].step = Step::Works { beats: Some(token) };
            }
            Step::Beats(beat) => self.beat(index, beat),
        }
    }

    fn join(&mut self, index: usize) {
        let version = if self.random.one_in(2) { 9 } else { 3 };
        let client = &mut self.clients[index];
        if !self.cooperative {
            client.owned.clear();
        }
        let protocols = vec![Protocol { name: PROTOCOL.into(), metadata: subscription(&client.owned) }];
        let request = JoinRequest {
            version,
            member: Arc::clone(&client.name),
            instance: client.instance.clone(),
            protocols,
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 20_000,
            ..request("client")
        };
        client.step = Step::Joins(self.desk.join(request));
    }

    fn sync(&mut self, index: usize, members: &[JoinedMember]) {
        let assignments = if members.is_empty() { Vec::new() } else { assign(members, self.partitions) };
        let client = &mut self.clients[index];
        let request = SyncRequest {
            group: GROUP.into(),
            generation: client.epoch,
            member: Arc::clone(&client.name),
            instance: client.instance.clone(),
            assignments,
            ..SyncRequest::default()
        };
        client.step = Step::Syncs(self.desk.ask(|token| Event::Sync(token, request)));
    }

    fn beat(&mut self, index: usize, beat: Beat) {
        let client = &self.clients[index];
        let request = ConsumerHeartbeatRequest {
            version: 1,
            group: GROUP.into(),
            member: Arc::clone(&client.name),
            epoch: client.epoch,
            instance: client.instance.clone(),
            rebalance_timeout_ms: 20_000,
            names: Some(vec![TOPIC.into()]),
            owned: Some(client.owned.iter().map(|partition| at(*partition)).collect()),
            ..ConsumerHeartbeatRequest::default()
        };
        let waits = Some(self.desk.ask(|token| Event::ConsumerHeartbeat(token, request)));
        self.clients[index].step = Step::Beats(Beat { waits, unsure: false, ..beat });
    }

    /// One of the consumer protocol gives up what it was told to, and takes what it was given, unless a heartbeat is on its way.
    fn settle(&mut self, index: usize) {
        let Client { owned, step: Step::Beats(beat), .. } = &mut self.clients[index] else { return };
        let Some(told) = &beat.told else { return };
        if beat.waits.is_some() || beat.unsure {
            owned.retain(|partition| told.contains(partition));
        } else if let Some(told) = beat.told.take() {
            *owned = told;
        }
    }

    /// It stops using what it has before it says so.
    fn leave(&mut self, index: usize) {
        let client = self.clients[index].clone();
        if client.silent || client.name.is_empty() || client.epoch == 0 {
            return;
        }
        self.reach("a member left");
        let Client { instance, name, step, .. } = client;
        if matches!(step, Step::Beats(_)) {
            let epoch = if instance.is_some() && self.random.one_in(2) { -2 } else { -1 };
            let request = ConsumerHeartbeatRequest {
                version: 1,
                group: GROUP.into(),
                member: name,
                epoch,
                instance,
                rebalance_timeout_ms: -1,
                ..ConsumerHeartbeatRequest::default()
            };
            self.desk.ask(|token| Event::ConsumerHeartbeat(token, request));
        } else if instance.is_none() {
            let leaver = Leaver { member: name, instance, reason: None };
            let request = LeaveRequest { group: GROUP.into(), members: vec![leaver] };
            self.desk.ask(|token| Event::Leave(token, request));
        }
        self.begin(index);
    }

    fn hear(&mut self, index: usize) {
        let token = match self.clients[index].step {
            Step::Joins(token) | Step::Syncs(token) | Step::Works { beats: Some(token) } => token,
            Step::Beats(Beat { waits: Some(token), .. }) => token,
            _ => return,
        };
        let Some(reply) = self.desk.answer(token).cloned() else { return };
        let is_lost = self.troubled && self.random.one_in(10);
        if is_lost {
            self.reach("an answer was lost");
        }
        match (&mut self.clients[index].step, reply) {
            (Step::Beats(beat), _) if is_lost => (beat.waits, beat.unsure) = (None, true),
            (step, _) if is_lost => *step = Step::MustJoin,
            (_, Reply::Join(reply)) => self.hear_join(index, reply),
            (_, Reply::Sync(reply)) => self.hear_sync(index, &reply),
            (_, Reply::Heartbeat(error)) => self.hear_error(index, error),
            (_, Reply::ConsumerHeartbeat(reply)) => self.hear_beat(index, reply),
            (_, other) => panic!("{other:?}"),
        }
    }

    fn hear_join(&mut self, index: usize, reply: JoinReply) {
        let client = &mut self.clients[index];
        if reply.error != ErrorCode::None {
            client.step = Step::MustJoin;
            if reply.error == ErrorCode::MemberIdRequired {
                client.name = reply.member;
                return;
            }
            return self.hear_error(index, reply.error);
        }
        let leads = reply.leader == reply.member && !reply.skip_assignment;
        client.name = reply.member;
        client.epoch = reply.generation;
        client.step = Step::MustSync(if leads { reply.members } else { Vec::new() });
        self.reach("a member joined");
    }

    fn hear_sync(&mut self, index: usize, reply: &SyncReply) {
        let client = &mut self.clients[index];
        if reply.error != ErrorCode::None {
            client.step = Step::MustJoin;
            return self.hear_error(index, reply.error);
        }
        let new = assigned(&reply.assignment);
        // One that gives something up joins again to say so.
        let gives_up = client.owned.iter().any(|partition| !new.contains(partition));
        client.owned = new;
        client.step = if gives_up { Step::MustJoin } else { Step::Works { beats: None } };
        self.reach("a member was told its part");
    }

    /// One of the classic protocol is told how it stands.
    fn hear_error(&mut self, index: usize, error: ErrorCode) {
        let client = &mut self.clients[index];
        match error {
            ErrorCode::None => client.step = Step::Works { beats: None },
            ErrorCode::RebalanceInProgress | ErrorCode::CoordinatorNotAvailable => {
                client.step = Step::MustJoin;
            }
            ErrorCode::IllegalGeneration => {
                client.owned.clear();
                client.step = Step::MustJoin;
            }
            ErrorCode::UnknownMemberId => {
                client.owned.clear();
                (client.name, client.epoch, client.step) = ("".into(), 0, Step::MustJoin);
            }
            ErrorCode::FencedInstanceId => self.begin(index),
            other => panic!("a member of the classic protocol is told {other}"),
        }
    }

    fn hear_beat(&mut self, index: usize, reply: ConsumerHeartbeatReply) {
        let client = &mut self.clients[index];
        let Step::Beats(beat) = &mut client.step else { return };
        beat.waits = None;
        match reply.error {
            ErrorCode::None => {
                assert!(reply.epoch >= client.epoch.max(1), "epoch {} after {}", reply.epoch, client.epoch);
                client.epoch = reply.epoch;
                if let Some(assignment) = reply.assignment {
                    beat.told = Some(assignment.iter().map(|at| at.partition.0).collect());
                    self.reach("a member was told its part");
                }
            }
            ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId | ErrorCode::GroupIdNotFound => {
                (client.epoch, beat.told) = (0, None);
                client.owned.clear();
            }
            ErrorCode::FencedInstanceId => self.begin(index),
            ErrorCode::UnreleasedInstanceId => {}
            ErrorCode::CoordinatorNotAvailable => beat.unsure = true,
            other => panic!("a heartbeat is told {other}: {:?}", reply.message),
        }
    }

    /// Whether the coordinator takes commits of this member as it sees itself.
    fn is_in(&self, client: &Client) -> bool {
        let machine = &self.desk.machine;
        if let Some(group) = machine.consumers.get(GROUP) {
            let known = group.state.members.get(&client.name).map(MemberState::standing);
            let speaks_classic = !matches!(client.step, Step::Beats(_));
            return known.is_some_and(|known| {
                known.epoch == client.epoch || (!speaks_classic && known.previous_epoch == client.epoch)
            });
        }
        let group = machine.live.get(GROUP);
        group.is_some_and(|group| group.generation == client.epoch && group.members.contains(&client.name))
    }

    fn check_owners(&self) {
        let mut owners = BTreeMap::new();
        for client in self.clients.iter().filter(|client| self.is_in(client)) {
            for partition in &client.owned {
                if let Some(other) = owners.insert(*partition, &client.name) {
                    panic!("{other} and {} both own {partition} in epoch {}", client.name, client.epoch);
                }
            }
        }
    }

    /// Generations and epochs in the log only grow, until the group is empty: its next members may count from the beginning.
    fn check_log(&mut self) {
        let news = self.desk.log[self.logged..].to_vec();
        self.logged = self.desk.log.len();
        for record in news {
            self.reader.replay(&record.key, record.value.as_deref()).expect("own record");
            let durable = self.reader.durable();
            let known = match record.key.get(..2) {
                Some([0, 2]) => {
                    durable.groups().get(GROUP).map(|group| (group.generation, group.members.is_empty()))
                }
                Some([0, 3]) => {
                    let group = durable.consumers().get(GROUP).filter(|group| group.epoch.is_some());
                    group.map(|group| (group.group_epoch(), group.joined().next().is_none()))
                }
                _ => None,
            };
            let Some((number, is_empty)) = known else { continue };
            assert!(number >= self.newest_logged, "{number} after {}", self.newest_logged);
            self.newest_logged = if is_empty { 0 } else { number };
        }
    }

    fn owned(&self) -> BTreeSet<i32> {
        self.clients.iter().flat_map(|client| client.owned.iter().copied()).collect()
    }

    fn describe(&self) -> String {
        let clients = self.clients.iter().map(|client| (&client.name, client.epoch, &client.owned));
        let machine = &self.desk.machine;
        format!(
            "{:?}: {:?} {:?}",
            clients.collect::<Vec<_>>(),
            machine.describe(GROUP),
            machine.describe_consumers(GROUP)
        )
    }

    /// Left alone, the group comes to rest.
    fn end(&mut self) {
        self.desk.slow_log = false;
        self.desk.slow_computing = false;
        self.troubled = false;
        self.desk.commit_all();
        while !self.desk.computing.is_empty() {
            self.desk.compute_one();
        }
        self.clients.iter_mut().for_each(|client| client.silent = false);
        let mut rounds_at_rest = 0;
        for _ in 0..1_000 {
            let is_whole = self.clients.iter().all(|client| self.is_in(client))
                && self.owned().len() == self.partitions as usize;
            rounds_at_rest = if is_whole { rounds_at_rest + 1 } else { 0 };
            if rounds_at_rest > 30 {
                break;
            }
            for index in 0..self.clients.len() {
                self.send(index);
                self.desk.pass(200);
                (0..self.clients.len()).for_each(|index| self.hear(index));
                self.settle(index);
                self.look();
            }
        }
        assert!(rounds_at_rest > 30, "{}", self.describe());
        // Everyone goes, and nobody is left without an answer.
        self.desk.pass(1_000_000);
        assert_eq!(self.desk.unanswered(), []);
        assert!(self.desk.timers.is_empty(), "{:?}", self.desk.timers);
        self.desk.machine.check_settled();
        let members = self.desk.machine.consumers.get(GROUP).map_or(0, |group| group.index.members);
        assert_eq!(members + self.desk.machine.live.get(GROUP).map_or(0, |group| group.members.len()), 0);
    }
}

/// What came to be in so many steps of a seed.
fn live(seed: u64, steps: usize) -> BTreeMap<&'static str, usize> {
    let mut world = World::new(seed);
    (0..steps).for_each(|_| world.act());
    world.end();
    world.reached
}

#[test]
fn members_of_both_protocols_never_share_a_partition_and_come_to_rest() {
    let reached = play(0..30, |seed| live(seed, 600));
    for what in [
        "a member joined",
        "a member was told its part",
        "a member left",
        "a member crashed",
        "an answer was lost",
        "an append failed",
        "the coordinator restarted",
        "the group was upgraded",
        "the group turned classic",
        "both protocols in one group",
    ] {
        assert!(reached.get(what).is_some_and(|count| *count > 5), "{what}: {reached:?}");
    }
}

#[test]
#[ignore = "takes minutes; RINGLOG_SEED=7 plays that seed alone"]
fn many_members_of_both_protocols_never_share_a_partition() {
    play_many(|seed| live(seed, 800));
}
