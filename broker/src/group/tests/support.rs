//! A caller in a few lines: keeps the log, the timers and the clock, and remembers every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::encode_subscription;
use ringlog_protocol::group::generated::consumer_protocol_subscription::ConsumerProtocolSubscription;
use ringlog_protocol::ids::TopicId;

use crate::group::consumer::{Computation, TopicFacts, Topics};
use crate::group::*;

pub const GROUP: &str = "orders";

/// Names of topics and how many partitions each has.
pub const TOPICS: [(&str, i32); 2] = [("orders", 4), ("users", 2)];

/// The id of a topic: that of the same name at another time is the same.
pub fn topic_id(name: &str) -> TopicId {
    let mut id = [1; 16];
    id.iter_mut().zip(name.bytes()).for_each(|(id, byte)| *id = byte);
    TopicId(id)
}

/// The topics of the cluster.
pub fn topics(version: i64, counts: &[(&str, i32)]) -> Arc<Topics> {
    let facts = counts
        .iter()
        .map(|(name, count)| Arc::new(TopicFacts::new((*name).into(), topic_id(name), *count, None)));
    Arc::new(Topics::new(version, facts))
}

/// The machine with its log and its clock.
pub struct Desk {
    pub machine: GroupMachine,
    /// Another one that only reads the log.
    replica: GroupMachine,
    settings: GroupSettings,
    pub now_ms: i64,
    pub elsewhere: Usage,
    /// All that is committed.
    pub log: Vec<KeyedRecord>,
    /// Appended and not committed, in order.
    pub under_way: Vec<Append>,
    /// Whether appends stay under way until they are told to end.
    pub slow_log: bool,
    /// Asked for and not carried out, in order.
    pub computing: Vec<Computation>,
    /// Whether computations wait until they are told to end.
    pub slow_computing: bool,
    pub timers: BTreeMap<Timer, (Serial, i64)>,
    /// All that ended.
    pub rebalances: Vec<(GroupId, Rebalance)>,
    /// Those of which all members came to what they were to have.
    pub settled: Vec<(GroupId, Settled)>,
    answers: BTreeMap<Token, Reply>,
    asked: BTreeSet<Token>,
    tokens: u64,
}

impl Desk {
    /// A machine that serves an empty partition; groups begin at once.
    pub fn new() -> Desk {
        Desk::with(GroupSettings { initial_rebalance_delay_ms: 0, ..GroupSettings::default() })
    }

    pub fn with(settings: GroupSettings) -> Desk {
        let mut desk = Desk {
            machine: GroupMachine::new(settings),
            replica: GroupMachine::new(settings),
            settings,
            now_ms: 1_000_000,
            elsewhere: Usage::default(),
            log: Vec::new(),
            under_way: Vec::new(),
            slow_log: false,
            computing: Vec::new(),
            slow_computing: false,
            timers: BTreeMap::new(),
            rebalances: Vec::new(),
            settled: Vec::new(),
            answers: BTreeMap::new(),
            asked: BTreeSet::new(),
            tokens: 0,
        };
        desk.event(Event::MetadataChanged(topics(1, &TOPICS)));
        desk.event(Event::Loaded);
        desk
    }

    pub fn event(&mut self, event: Event) -> bool {
        let around = Surroundings { now_ms: self.now_ms, elsewhere: self.elsewhere };
        let step = self.machine.handle(event, around);
        self.machine.check();
        for Answer { token, reply } in step.answers {
            assert!(self.asked.contains(&token), "{token:?} was not asked");
            assert!(self.answers.insert(token, reply).is_none(), "{token:?} is answered twice");
        }
        for change in step.timers {
            match change {
                TimerChange::Arm { timer, serial, after_ms } => {
                    let after_ms = i64::try_from(after_ms).expect("short");
                    self.timers.insert(timer, (serial, self.now_ms + after_ms));
                }
                TimerChange::Cancel(timer) => drop(self.timers.remove(&timer)),
                TimerChange::CancelAll => self.timers.clear(),
            }
        }
        self.under_way.extend(step.appends);
        self.computing.extend(step.computations);
        self.rebalances.extend(step.rebalances);
        self.settled.extend(step.settled);
        if !self.slow_log {
            self.commit_all();
        }
        while !self.slow_computing && !self.computing.is_empty() {
            self.compute_one();
        }
        self.compare();
        step.unfinished
    }

    /// Ends the oldest append well.
    pub fn commit_one(&mut self) {
        let append = self.under_way.remove(0);
        for record in append.records {
            self.machine.replay(&record.key, record.value.as_deref()).expect("own record");
            self.write(record);
        }
        self.event(Event::Committed(append.ticket));
    }

    /// The oldest append comes into the log, and the machine is not told.
    pub fn land_one(&mut self) {
        let append = self.under_way.remove(0);
        append.records.into_iter().for_each(|record| self.write(record));
    }

    /// Carries the oldest computation out.
    pub fn compute_one(&mut self) {
        let computed = self.computing.remove(0).run();
        self.event(Event::Computed(computed));
    }

    /// Into the log, whether the machine hears of it or not.
    pub fn write(&mut self, record: KeyedRecord) {
        self.replica.replay(&record.key, record.value.as_deref()).expect("own record");
        self.log.push(record);
    }

    pub fn commit_all(&mut self) {
        while !self.under_way.is_empty() {
            self.commit_one();
        }
    }

    /// Ends the oldest append badly.
    pub fn fail_one(&mut self) {
        let append = self.under_way.remove(0);
        self.event(Event::Failed(append.ticket, ErrorCode::CoordinatorNotAvailable));
    }

    /// Lets time pass; timers run out in their order.
    pub fn pass(&mut self, ms: i64) {
        let end_ms = self.now_ms + ms;
        while let Some((timer, (serial, at_ms))) = self.next_timer(end_ms) {
            self.now_ms = at_ms.max(self.now_ms);
            self.timers.remove(&timer);
            self.event(Event::Fired(timer, serial));
        }
        self.now_ms = end_ms;
    }

    fn next_timer(&self, until_ms: i64) -> Option<(Timer, (Serial, i64))> {
        let due = self.timers.iter().filter(|(_, (_, at_ms))| *at_ms <= until_ms);
        due.min_by_key(|(_, (serial, at_ms))| (*at_ms, *serial)).map(|(timer, armed)| (timer.clone(), *armed))
    }

    /// The machine is gone with all that was not committed; another one reads the log.
    pub fn restart(&mut self) {
        let topics = Arc::clone(&self.machine.topics);
        self.machine = self.replayed();
        self.under_way.clear();
        self.computing.clear();
        self.timers.clear();
        // Whoever waited has lost its connection.
        self.asked = self.answers.keys().copied().collect();
        self.event(Event::MetadataChanged(topics));
        self.event(Event::Loaded);
    }

    pub fn replayed(&self) -> GroupMachine {
        let mut machine = GroupMachine::new(self.settings);
        for record in &self.log {
            machine.replay(&record.key, record.value.as_deref()).expect("own record");
        }
        machine
    }

    /// What is durable is what the log says.
    fn compare(&self) {
        assert_eq!(self.machine.durable(), self.replica.durable());
        if self.under_way.is_empty() {
            self.machine.check_settled();
        }
    }

    pub fn ask(&mut self, event: impl FnOnce(Token) -> Event) -> Token {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.asked.insert(token);
        self.event(event(token));
        token
    }

    pub fn answer(&self, token: Token) -> Option<&Reply> {
        self.answers.get(&token)
    }

    /// Requests that nobody answered.
    pub fn unanswered(&self) -> Vec<Token> {
        self.asked.iter().filter(|token| !self.answers.contains_key(token)).copied().collect()
    }

    #[track_caller]
    pub fn is_waiting(&self, token: Token) {
        assert_eq!(self.answer(token), None);
    }

    #[track_caller]
    pub fn joined(&self, token: Token) -> JoinReply {
        match self.answer(token) {
            Some(Reply::Join(reply)) => reply.clone(),
            other => panic!("{token:?} has no answer to a join, but {other:?}"),
        }
    }

    #[track_caller]
    pub fn synced(&self, token: Token) -> SyncReply {
        match self.answer(token) {
            Some(Reply::Sync(reply)) => reply.clone(),
            other => panic!("{token:?} has no answer to a sync, but {other:?}"),
        }
    }

    pub fn state(&self) -> GroupState {
        self.machine.describe(GROUP).expect("known").state
    }

    pub fn join(&mut self, mut request: JoinRequest) -> Token {
        // No two clients are given the same bytes.
        request.random[8..].copy_from_slice(&(self.tokens + 1).to_be_bytes());
        self.ask(|token| Event::Join(token, request))
    }

    pub fn heartbeat(&mut self, member: &MemberId, generation: i32) -> ErrorCode {
        self.heartbeat_of(member, generation, None)
    }

    pub fn heartbeat_of(&mut self, member: &MemberId, generation: i32, instance: Option<&str>) -> ErrorCode {
        let request = HeartbeatRequest {
            group: GROUP.into(),
            generation,
            member: Arc::clone(member),
            instance: instance.map(Arc::from),
        };
        let token = self.ask(|token| Event::Heartbeat(token, request));
        match self.answer(token) {
            Some(Reply::Heartbeat(error)) => *error,
            other => panic!("no answer to a heartbeat, but {other:?}"),
        }
    }

    pub fn sync(&mut self, member: &MemberId, generation: i32, assignments: &[(&MemberId, &str)]) -> Token {
        let assignments = assignments
            .iter()
            .map(|(member, text)| (Arc::clone(member), Bytes::copy_from_slice(text.as_bytes())));
        let request = SyncRequest {
            group: GROUP.into(),
            generation,
            member: Arc::clone(member),
            assignments: assignments.collect(),
            ..SyncRequest::default()
        };
        self.ask(|token| Event::Sync(token, request))
    }

    pub fn leave(&mut self, members: &[&MemberId]) -> LeaveReply {
        let leavers = members.iter().map(|member| Leaver { member: Arc::clone(member), ..Leaver::default() });
        let token = self.ask(|token| {
            Event::Leave(token, LeaveRequest { group: GROUP.into(), members: leavers.collect() })
        });
        match self.answer(token) {
            Some(Reply::Leave(reply)) => reply.clone(),
            other => panic!("no answer to a leave, but {other:?}"),
        }
    }

    /// A commit of one offset of partition 0; what it is told.
    pub fn commit(&mut self, request: CommitRequest) -> ErrorCode {
        let token = self.ask(|token| Event::CommitOffsets(token, request));
        self.committed(token)
    }

    #[track_caller]
    pub fn committed(&self, token: Token) -> ErrorCode {
        match self.answer(token) {
            Some(Reply::CommitOffsets(reply)) => reply.topics[0].partitions[0].1,
            other => panic!("no answer to a commit, but {other:?}"),
        }
    }

    pub fn offset(&self, topic: &str) -> i64 {
        self.offset_of(GROUP, topic)
    }

    pub fn offset_of(&self, group: &str, topic: &str) -> i64 {
        let asked = OffsetQueryTopic { name: topic.into(), id: Default::default(), partitions: vec![0] };
        let query = OffsetQuery::of_nobody(group.into(), Some(vec![asked]));
        self.machine.fetch_offsets(&query).expect("named")[0].partitions[0].offset
    }

    /// The first member joins, in two steps, and waits for nobody: its name.
    pub fn first_member(&mut self, name: &str) -> MemberId {
        let id = self.named(name);
        let joined = self.join(JoinRequest { member: Arc::clone(&id), ..request(name) });
        self.pass(0);
        assert_eq!(self.joined(joined).error, ErrorCode::None);
        id
    }

    /// A member is given its name: the first of its two steps.
    pub fn named(&mut self, name: &str) -> MemberId {
        let token = self.join(request(name));
        let reply = self.joined(token);
        assert_eq!(reply.error, ErrorCode::MemberIdRequired);
        reply.member
    }

    /// A stable group of one member of generation 1.
    pub fn group_of_one(&mut self) -> MemberId {
        let one = self.first_member("one");
        let synced = self.sync(&one, 1, &[(&one, "all")]);
        assert_eq!(self.synced(synced).assignment, "all");
        one
    }

    /// A stable group of two members of generation 2, led by the first.
    pub fn group_of_two(&mut self) -> (MemberId, MemberId) {
        let one = self.group_of_one();
        let two = self.named("two");
        let joins = self.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
        let again = self.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
        assert_eq!((self.joined(joins).generation, self.joined(again).generation), (2, 2));
        self.sync(&two, 2, &[]);
        self.sync(&one, 2, &[(&one, "left"), (&two, "right")]);
        assert_eq!(self.state(), GroupState::Stable);
        (one, two)
    }

    /// A stable group of two static members of generation 1, led by `left`.
    pub fn static_pair(&mut self) -> (MemberId, MemberId) {
        let first = self.join(static_request("left"));
        let second = self.join(static_request("right"));
        self.pass(0);
        let (left, right) = (self.joined(first), self.joined(second));
        assert_eq!((left.generation, right.generation), (1, 1));
        assert_eq!(left.leader, left.member);
        self.sync(&right.member, 1, &[]);
        self.sync(&left.member, 1, &[(&left.member, "left"), (&right.member, "right")]);
        assert_eq!(self.state(), GroupState::Stable);
        (left.member, right.member)
    }
}

/// Metadata of a consumer that wants these topics.
pub fn wants(topics: &[&str]) -> Bytes {
    let subscription = ConsumerProtocolSubscription { topics: topics.to_vec(), ..Default::default() };
    encode_subscription(&subscription, 3).expect("short")
}

pub fn protocol(name: &str) -> Protocol {
    Protocol { name: name.into(), metadata: wants(&["orders"]) }
}

/// A first join of a dynamic member.
pub fn request(name: &str) -> JoinRequest {
    let mut random = [7; 16];
    random.iter_mut().zip(name.bytes()).for_each(|(random, byte)| *random = byte);
    JoinRequest {
        version: 9,
        group: GROUP.into(),
        client_id: name.into(),
        client_host: "/127.0.0.1".into(),
        protocol_type: "consumer".into(),
        protocols: vec![protocol("range")],
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        random,
        ..JoinRequest::default()
    }
}

/// A first join of a static member.
pub fn static_request(instance: &str) -> JoinRequest {
    JoinRequest { instance: Some(instance.into()), ..request(instance) }
}

/// A commit of partition 0 of a topic by nobody in particular.
pub fn commit_of(topic: &str, offset: i64) -> CommitRequest {
    let partition = CommitPartition { index: 0, offset, leader_epoch: 3, metadata: Some("note".into()) };
    CommitRequest {
        version: 9,
        group: GROUP.into(),
        generation: -1,
        topics: vec![CommitTopic { name: topic.into(), id: Default::default(), partitions: vec![partition] }],
        ..CommitRequest::default()
    }
}
