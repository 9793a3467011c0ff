//! Random members of a consumer group: they join, work, leave for a while or for ever, crash and fall silent; answers are lost, requests
//! come twice and late; clocks jump, topics grow, the log is slow and fails, computations take long, the coordinator restarts. Whatever
//! happens: no two members own one partition, as they themselves believe; epochs only grow; nobody is given what it does not want; what
//! is durable is what the log says; and left alone, the group comes to rest with everything owned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicPartition;

use super::model::{Random, play, play_many};
use super::support::{Desk, GROUP, topic_id, topics};
use crate::group::consumer::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest, MemberState};
use crate::group::*;

/// What members may want: names, and an expression.
const WISHES: [(&[&str], &str); 5] =
    [(&["orders"], ""), (&["orders", "users"], ""), (&["users"], ""), (&[], "o.*"), (&["users"], "[eo].*")];

/// Copies of requests of one member that are on their way: few, so that each comes often.
const COPIES_MAX: usize = 5;

/// A member, as it sees itself.
#[derive(Clone, Default)]
struct Client {
    instance: Option<Arc<str>>,
    name: MemberId,
    /// 0: it is to join.
    epoch: i32,
    wishes: usize,
    owned: BTreeSet<TopicPartition>,
    /// What it was told to have and may not have come to yet.
    told: Option<BTreeSet<TopicPartition>>,
    waits: Option<Token>,
    /// It does not know whether its last request was heard: it says all.
    says_all: bool,
    /// Copies of requests that are still on their way. Those of the epoch that the member is in are lost when it sends a request after it
    /// heard of a later one; those of earlier epochs may come at any time.
    copies: Vec<ConsumerHeartbeatRequest>,
    heard_since_copy: bool,
    /// A copy came with other wishes than the member has now: it says all before it is sure to be understood.
    misunderstood: bool,
    /// It is away: nothing is sent until it comes back.
    silent: bool,
}

impl Client {
    /// Before it takes what it was told to have, what it said in this epoch when it had less is not on its way any more. To a coordinator
    /// that asks for one of those partitions back it would read as the answer, and nothing in the protocol (KIP-848) tells the two apart.
    fn forget_copies(&mut self) {
        let Some(told) = &self.told else { return };
        let says_less = |owned: &Vec<TopicPartition>| told.iter().any(|at| !owned.contains(at));
        let epoch = self.epoch;
        self.copies.retain(|copy| copy.epoch != epoch || !copy.owned.as_ref().is_some_and(says_less));
    }
}

struct World {
    desk: Desk,
    random: Random,
    clients: Vec<Client>,
    names: usize,
    counts: BTreeMap<&'static str, i32>,
    version: i64,
    logged: usize,
    newest_logged: (i32, i32),
    reached: BTreeMap<&'static str, usize>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut desk = Desk::new();
        desk.slow_log = true;
        desk.slow_computing = true;
        let instance = |index: usize| (index < 2).then(|| Arc::from(format!("static-{index}")));
        let clients = (0..5).map(|index| Client { instance: instance(index), ..Client::default() });
        let mut world = World {
            desk,
            random: Random(seed),
            clients: clients.collect(),
            names: 0,
            counts: [("orders", 4), ("users", 2)].into(),
            version: 1,
            logged: 0,
            newest_logged: (0, 0),
            reached: BTreeMap::new(),
        };
        (0..world.clients.len()).for_each(|index| world.begin(index));
        world
    }

    fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// A new life of a client, under a new name.
    fn begin(&mut self, index: usize) {
        self.names += 1;
        let wishes = self.random.below(WISHES.len());
        let instance = self.clients[index].instance.clone();
        let name = format!("member-{}", self.names).into();
        self.clients[index] = Client { instance, name, wishes, ..Client::default() };
    }

    fn act(&mut self) {
        let index = self.random.below(self.clients.len());
        match self.random.below(100) {
            0..36 => self.send(index),
            36..44 => self.send_copy(index),
            44..52 => self.settle(index),
            52..74 if !self.desk.under_way.is_empty() => self.desk.commit_one(),
            74 if !self.desk.under_way.is_empty() => {
                self.reach("an append failed");
                self.desk.fail_one();
            }
            75..82 if !self.desk.computing.is_empty() => self.desk.compute_one(),
            82..92 => {
                let ms = self.random.below(1_500) as i64;
                self.desk.pass(ms);
            }
            92 => self.leave(index),
            93 if self.random.one_in(2) => self.crash(index),
            94 if self.random.one_in(2) => self.clients[index].silent ^= true,
            95 if self.random.one_in(2) => self.change_topics(),
            96 if self.random.one_in(2) => {
                self.clients[index].wishes = self.random.below(WISHES.len());
                self.clients[index].says_all = true;
            }
            97 if self.random.one_in(4) => self.restart(),
            98 if self.random.one_in(3) => self.desk.now_ms += [-30_000, 50_000][self.random.below(2)],
            99 => drop(self.desk.event(Event::Expire)),
            _ => {}
        }
        (0..self.clients.len()).for_each(|index| self.hear(index));
        self.check_owners();
        self.check_log();
    }

    fn change_topics(&mut self) {
        self.version += 1;
        let name = ["orders", "users", "extra"][self.random.below(3)];
        let count = self.counts.get(name).copied().unwrap_or(0) + 1;
        if name == "extra" && count > 2 {
            self.counts.remove(name);
        } else if count < 8 {
            self.counts.insert(name, count);
        }
        let counts: Vec<(&str, i32)> = self.counts.iter().map(|(name, count)| (*name, *count)).collect();
        self.desk.event(Event::MetadataChanged(topics(self.version, &counts)));
    }

    fn restart(&mut self) {
        self.reach("the coordinator restarted");
        // What was under way may have been committed, up to a point.
        while !self.desk.under_way.is_empty() && !self.random.one_in(2) {
            self.desk.land_one();
        }
        self.desk.restart();
        for client in self.clients.iter_mut().filter(|client| client.waits.is_some()) {
            (client.waits, client.says_all) = (None, true);
        }
    }

    /// Its next heartbeat, whether it heard of the last one or not.
    fn send(&mut self, index: usize) {
        let says_all = self.random.one_in(6);
        let client = &mut self.clients[index];
        if client.silent {
            return;
        }
        if client.heard_since_copy {
            client.copies.retain(|copy| copy.epoch != client.epoch);
            client.heard_since_copy = false;
        }
        let all = client.epoch == 0 || client.says_all || client.waits.is_some() || says_all;
        client.misunderstood &= !all;
        let (names, regex) = WISHES[client.wishes];
        let request = ConsumerHeartbeatRequest {
            version: 1,
            group: GROUP.into(),
            member: Arc::clone(&client.name),
            epoch: client.epoch,
            instance: client.instance.clone(),
            rebalance_timeout_ms: if all { 20_000 } else { -1 },
            names: all.then(|| names.iter().map(|name| Arc::from(*name)).collect()),
            regex: all.then(|| regex.into()),
            owned: Some(client.owned.iter().copied().collect()).filter(|_| all || client.told.is_none()),
            ..ConsumerHeartbeatRequest::default()
        };
        client.says_all = false;
        client.copies.push(request.clone());
        if client.copies.len() > COPIES_MAX {
            client.copies.remove(0);
        }
        client.waits = Some(self.desk.ask(|token| Event::ConsumerHeartbeat(token, request)));
    }

    fn send_copy(&mut self, index: usize) {
        let count = self.clients[index].copies.len();
        if count > 0 {
            let request = self.clients[index].copies.remove(self.random.below(count));
            self.reach("a request came twice");
            self.clients[index].misunderstood |= request.names.is_some();
            self.desk.ask(|token| Event::ConsumerHeartbeat(token, request));
        }
    }

    /// It gives up what it was told to, and takes what it was given. What it said that it has holds until it hears an answer: it takes
    /// nothing while a heartbeat is on its way that says that it has less, or that it does not know the fate of.
    fn settle(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let Some(told) = &client.told else { return };
        if client.waits.is_some() || client.says_all {
            client.owned.retain(|at| told.contains(at));
        } else if let Some(told) = client.told.take() {
            client.owned = told;
        }
    }

    fn goodbye(&mut self, index: usize, epoch: i32) {
        let client = &self.clients[index];
        let request = ConsumerHeartbeatRequest {
            version: 1,
            group: GROUP.into(),
            member: Arc::clone(&client.name),
            epoch,
            instance: client.instance.clone(),
            rebalance_timeout_ms: -1,
            ..ConsumerHeartbeatRequest::default()
        };
        self.desk.ask(|token| Event::ConsumerHeartbeat(token, request));
    }

    fn leave(&mut self, index: usize) {
        if self.clients[index].epoch == 0 || self.clients[index].silent {
            return;
        }
        self.reach("a member left");
        let for_a_while = self.clients[index].instance.is_some() && self.random.one_in(2);
        // It stops using what it has before it says so.
        self.clients[index].owned.clear();
        self.goodbye(index, if for_a_while { -2 } else { -1 });
        self.begin(index);
    }

    fn crash(&mut self, index: usize) {
        self.reach("a member crashed");
        self.begin(index);
    }

    fn hear(&mut self, index: usize) {
        let Some(token) = self.clients[index].waits else { return };
        let Some(Reply::ConsumerHeartbeat(reply)) = self.desk.answer(token).cloned() else { return };
        self.clients[index].waits = None;
        if self.random.one_in(8) {
            self.reach("an answer was lost");
            self.clients[index].says_all = true;
            return;
        }
        self.clients[index].heard_since_copy = true;
        match reply.error {
            ErrorCode::None => self.hear_standing(index, reply),
            ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId | ErrorCode::GroupIdNotFound => {
                self.reach("a member began anew");
                let client = &mut self.clients[index];
                (client.epoch, client.told) = (0, None);
                client.owned.clear();
            }
            ErrorCode::FencedInstanceId => {
                self.reach("an instance was fenced");
                self.begin(index);
            }
            ErrorCode::UnreleasedInstanceId => self.reach("an instance was not free"),
            ErrorCode::CoordinatorNotAvailable => self.clients[index].says_all = true,
            other => panic!("a heartbeat is told {other}: {:?}", reply.message),
        }
    }

    fn hear_standing(&mut self, index: usize, reply: ConsumerHeartbeatReply) {
        let client = &mut self.clients[index];
        assert!(reply.epoch >= client.epoch.max(1), "epoch {} after {}", reply.epoch, client.epoch);
        client.epoch = reply.epoch;
        if let Some(assignment) = reply.assignment {
            self.hear_assignment(index, assignment);
        }
        self.clients[index].forget_copies();
    }

    fn hear_assignment(&mut self, index: usize, assignment: Vec<TopicPartition>) {
        let client = &mut self.clients[index];
        let (names, regex) = WISHES[client.wishes];
        if regex.is_empty() && !client.says_all && !client.misunderstood {
            // What is gone goes with the next assignment.
            let others = self.counts.keys().filter(|name| !names.contains(name));
            let unwanted: BTreeSet<_> = others.map(|name| topic_id(name)).collect();
            assert!(!assignment.iter().any(|at| unwanted.contains(&at.topic)), "{names:?}: {assignment:?}");
        }
        client.told = Some(assignment.into_iter().collect());
        self.reach("a member was told its part");
    }

    /// What members of the group believe to own. One whose epoch is none that the group knows it in was put out and does not know it yet:
    /// nobody takes its commits, and its next heartbeat tells it.
    fn check_owners(&mut self) {
        let Some(group) = self.desk.machine.consumers.get(GROUP) else { return };
        let is_in = |client: &&Client| {
            let known = group.state.members.get(&client.name).map(MemberState::standing);
            known.is_some_and(|known| [known.epoch, known.previous_epoch].contains(&client.epoch))
        };
        let mut owners = BTreeMap::new();
        for client in self.clients.iter().filter(is_in) {
            for at in &client.owned {
                if let Some(other) = owners.insert(*at, &client.name) {
                    panic!("{other} and {} both own {at:?}: {:?}", client.name, group.state);
                }
            }
        }
    }

    /// Epochs in the log only grow, until the group is deleted.
    fn check_log(&mut self) {
        let news = self.desk.log[self.logged..].to_vec();
        self.logged = self.desk.log.len();
        let mut reader = GroupMachine::new(GroupSettings::default());
        for record in news {
            reader.replay(&record.key, record.value.as_deref()).expect("own record");
            let group = reader.durable().consumers().get(GROUP);
            if record.key.starts_with(&[0, 3]) {
                let epoch = group.and_then(|group| group.epoch).map_or(0, |epoch| epoch.epoch);
                assert!(record.value.is_none() || epoch >= self.newest_logged.0, "{epoch}");
                self.newest_logged.0 = epoch;
            } else if record.key.starts_with(&[0, 6]) {
                let epoch = group.and_then(|group| group.assignment).map_or(0, |assignment| assignment.epoch);
                assert!(record.value.is_none() || epoch >= self.newest_logged.1, "{epoch}");
                self.newest_logged.1 = epoch;
            }
        }
    }

    /// Left alone, the group comes to rest, and everything that is wanted is owned.
    fn end(&mut self) {
        self.desk.slow_log = false;
        self.desk.slow_computing = false;
        self.desk.commit_all();
        for client in &mut self.clients {
            (client.silent, client.says_all) = (false, true);
        }
        // A clock that was set back makes those who crashed stay for longer.
        let mut rounds_at_rest = 0;
        for _ in 0..1_000 {
            // Those who crashed are out of it, too.
            let is_whole = self
                .desk
                .machine
                .describe_consumers(GROUP)
                .is_ok_and(|group| group.state == "Stable" && group.members.len() == self.clients.len());
            let rests = is_whole && self.clients.iter().all(|client| client.epoch > 0);
            rounds_at_rest = if rests { rounds_at_rest + 1 } else { 0 };
            // Answers are still lost: everyone hears of its part within some rounds.
            if rounds_at_rest > 30 {
                break;
            }
            for index in 0..self.clients.len() {
                self.send(index);
                self.desk.pass(200);
                self.hear(index);
                self.settle(index);
                self.clients[index].copies.clear();
            }
            self.check_owners();
        }
        let group = self.desk.machine.describe_consumers(GROUP).expect("known");
        assert_eq!(group.state, "Stable", "{group:?}");
        let owned: BTreeSet<_> =
            self.clients.iter().flat_map(|client| client.owned.iter().copied()).collect();
        let wanted = |topic: &str| {
            self.clients.iter().any(|client| {
                let (names, regex) = WISHES[client.wishes];
                names.contains(&topic) || matches!((regex, &topic[..1]), ("o.*", "o") | ("[eo].*", "e" | "o"))
            })
        };
        let all: i32 = self.counts.iter().filter(|(topic, _)| wanted(topic)).map(|(_, count)| *count).sum();
        assert_eq!(owned.len(), all.unsigned_abs() as usize, "{owned:?} of {:?}: {group:?}", self.counts);
        // Everyone goes, and nobody is left without an answer.
        self.desk.pass(100_000);
        assert_eq!(self.desk.unanswered(), []);
        assert!(self.desk.timers.is_empty(), "{:?}", self.desk.timers);
        assert_eq!(self.desk.machine.describe_consumers(GROUP).expect("known").state, "Empty");
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
fn random_consumers_never_share_a_partition_and_come_to_rest() {
    let reached = play(0..40, |seed| live(seed, 600));
    for what in [
        "a member was told its part",
        "a member left",
        "a member crashed",
        "a member began anew",
        "a request came twice",
        "an answer was lost",
        "an instance was not free",
        "an append failed",
        "the coordinator restarted",
    ] {
        assert!(reached.get(what).is_some_and(|count| *count > 5), "{what}: {reached:?}");
    }
}

#[test]
#[ignore = "takes minutes; RINGLOG_SEED=7 plays that seed alone"]
fn many_random_consumers_never_share_a_partition() {
    play_many(|seed| live(seed, 800));
}
