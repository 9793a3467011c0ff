//! The machine of groups alone, without log and network: 10,000 consumer groups of 10 members join, live and leave. Says how much
//! processor time a join and a heartbeat take, what groups weigh, and how long a large group's assignment takes. Build it with
//! `--release`; the figures are of one thread.
//!
//! With a number as its argument it drives so many groups, times nothing and says how many joins, heartbeats and leaves there were: for
//! callgrind, which knows no clock of its own. There `--toggle-collect='*::joins*'`, `'*::lives*'` or `'*::leaves*'` counts the
//! instructions of one kind alone.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use ringlog_broker::group::assign::{ASSIGNORS, AssignmentInput, Candidate, TopicShape};
use ringlog_broker::group::consumer::{ConsumerHeartbeatRequest, LEAVES, TopicFacts, Topics};
use ringlog_broker::group::{
    Answer, Event, GroupMachine, GroupSettings, MemberId, Reply, Step, Surroundings, Token,
};
use ringlog_protocol::ids::{TopicId, TopicPartition};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GROUPS: usize = 10_000;
const MEMBERS_PER_GROUP: usize = 10;
const PARTITIONS: i32 = 20;
const ROUNDS: usize = 5;
/// Bytes of a page, as this machine counts memory.
const PAGE_BYTES: usize = 4096;

/// A log that commits at once, and a host that computes at once.
struct Host {
    machine: GroupMachine,
    now_ms: i64,
    tokens: u64,
    answers: Vec<Answer>,
    is_timed: bool,
}

impl Host {
    fn drive(&mut self, event: Event) {
        let around = Surroundings { now_ms: self.now_ms, ..Surroundings::default() };
        let Step { appends, answers, computations, .. } = self.machine.handle(event, around);
        self.answers.extend(answers);
        for append in appends {
            for record in &append.records {
                self.machine.replay(&record.key, record.value.as_deref()).expect("own record");
            }
            self.drive(Event::Committed(append.ticket));
        }
        for computation in computations {
            self.drive(Event::Computed(computation.run()));
        }
    }

    fn send(&mut self, request: ConsumerHeartbeatRequest) {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.drive(Event::ConsumerHeartbeat(token, request));
    }
}

/// Processor time of this thread.
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}

fn member_name(group: usize, member: usize) -> MemberId {
    format!("{group:08}-0000-4000-8000-{member:012}").into()
}

/// A client of its group, as the protocol has it.
#[derive(Clone, Default)]
struct Member {
    epoch: i32,
    /// What it was told to have and has not said yet that it has.
    told: Option<Vec<TopicPartition>>,
}

/// What a member says next, in this epoch.
fn request(place: usize, epoch: i32, owned: Option<Vec<TopicPartition>>) -> ConsumerHeartbeatRequest {
    let (group, member) = (place / MEMBERS_PER_GROUP, place % MEMBERS_PER_GROUP);
    ConsumerHeartbeatRequest {
        version: 1,
        group: format!("group-{group}").into(),
        member: member_name(group, member),
        epoch,
        rebalance_timeout_ms: if epoch == 0 { 300_000 } else { -1 },
        names: (epoch == 0).then(|| vec!["orders".into()]),
        owned: if epoch == 0 { Some(Vec::new()) } else { owned },
        client_id: "consumer-1".into(),
        client_host: "/127.0.0.1".into(),
        ..ConsumerHeartbeatRequest::default()
    }
}

/// What each member does in a round. Functions of their own, so that a profiler can tell them apart; each names itself, or the compiler
/// would make one of them.
type Act = fn(&mut Host, ConsumerHeartbeatRequest);

#[inline(never)]
fn joins(host: &mut Host, request: ConsumerHeartbeatRequest) {
    black_box("joins");
    host.send(request);
}

/// Comes to its part.
#[inline(never)]
fn settles(host: &mut Host, request: ConsumerHeartbeatRequest) {
    black_box("settles");
    host.send(request);
}

/// Says that it is there, and nothing new.
#[inline(never)]
fn lives(host: &mut Host, request: ConsumerHeartbeatRequest) {
    black_box("lives");
    host.send(request);
}

#[inline(never)]
fn leaves(host: &mut Host, request: ConsumerHeartbeatRequest) {
    black_box("leaves");
    host.send(request);
}

/// All members of all groups; what one took, in microseconds.
fn each(host: &mut Host, members: &mut [Member], act: Act, epoch_of: impl Fn(i32) -> i32) -> f64 {
    let mut spent = Duration::ZERO;
    for (place, member) in members.iter_mut().enumerate() {
        // The request as it is: making it is the handler's.
        let request = request(place, epoch_of(member.epoch), member.told.take());
        // The next assignment may follow at once.
        host.now_ms += 1_001;
        let begin = host.is_timed.then(processor);
        act(host, request);
        spent += begin.map_or(Duration::ZERO, |begin| processor() - begin);
        for Answer { reply, .. } in host.answers.drain(..) {
            let Reply::ConsumerHeartbeat(reply) = reply else { continue };
            member.epoch = reply.epoch;
            member.told = reply.assignment;
        }
    }
    spent.as_secs_f64() * 1e6 / members.len() as f64
}

/// Milliseconds of processor time for 1,000 members and 10,000 partitions of 100 topics.
fn assignments() -> serde_json::Value {
    let id = |number: u8| TopicId([number; 16]);
    let topics = (1..=100).map(|number| TopicShape { id: id(number), partition_count: 100, racks: None });
    let topics: Vec<TopicShape> = topics.collect();
    let mut figures = serde_json::Map::new();
    for assignor in ASSIGNORS {
        for alike in [true, false] {
            let members = (0..1_000_u32).map(|index| {
                let skipped = if alike { 0 } else { index as usize % 50 };
                let wants: Arc<[TopicId]> = topics.iter().skip(skipped).map(|topic| topic.id).collect();
                Candidate {
                    id: format!("{index:04}").into(),
                    instance: None,
                    rack: None,
                    wants,
                    had: [].into(),
                }
            });
            let fresh = AssignmentInput { assignor, members: members.collect(), topics: topics.clone() };
            let begin = processor();
            let given = fresh.assign();
            let first_ms = (processor() - begin).as_secs_f64() * 1e3;
            // One goes, and all others stay.
            let mut rest = fresh.clone();
            rest.members.iter_mut().zip(given.members).for_each(|(member, (_, had))| member.had = had);
            rest.members.remove(500);
            let begin = processor();
            let _given = rest.assign();
            let next_ms = (processor() - begin).as_secs_f64() * 1e3;
            let name =
                format!("{} {}", assignor.name(), if alike { "same topics" } else { "different topics" });
            figures.insert(name, json!({ "first_ms": first_ms, "one_goes_ms": next_ms }));
        }
    }
    figures.into()
}

fn main() {
    let counted: Option<usize> =
        std::env::args().nth(1).map(|count| count.parse().expect("a number of groups"));
    let groups = counted.unwrap_or(GROUPS);
    let mut host = Host {
        machine: GroupMachine::new(GroupSettings::default()),
        now_ms: 1_000_000,
        tokens: 0,
        answers: Vec::new(),
        is_timed: counted.is_none(),
    };
    let facts = Arc::new(TopicFacts::new("orders".into(), TopicId([1; 16]), PARTITIONS, None));
    host.drive(Event::MetadataChanged(Arc::new(Topics::new(1, [facts]))));
    host.drive(Event::Loaded);
    let mut members = vec![Member::default(); groups * MEMBERS_PER_GROUP];
    let empty_bytes = resident_bytes();
    let join_us = each(&mut host, &mut members, joins, |epoch| epoch);
    // Until everyone has come to its part.
    while members.iter().any(|member| member.told.is_some()) {
        each(&mut host, &mut members, settles, |epoch| epoch);
    }
    let rounds = 0..ROUNDS;
    let heartbeats_us: Vec<f64> =
        rounds.map(|_| each(&mut host, &mut members, lives, |epoch| epoch)).collect();
    let full_bytes = resident_bytes();
    let full = host.machine.usage();
    let leave_us = each(&mut host, &mut members, leaves, |_| LEAVES);
    let idle = host.machine.usage();
    let counts = json!({ "groups": groups, "members": members.len(), "heartbeats": members.len() * ROUNDS });
    if counted.is_some() {
        println!("{counts:#}");
        return;
    }
    let figures = json!({
        "groups": groups,
        "members": members.len(),
        "join_us": join_us,
        "heartbeat_us": heartbeats_us,
        "leave_us": leave_us,
        "resident_bytes_per_member": (full_bytes - empty_bytes) / members.len(),
        "counted_bytes_per_member": full.bytes / members.len(),
        "counted_bytes_per_idle_group": idle.bytes / idle.groups.max(1),
        "assignment_of_1000_members_and_10000_partitions": assignments(),
    });
    println!("{figures:#}");
}
