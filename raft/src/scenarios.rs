//! Scenarios that read as prose, and random sequences, over the public surface of a group.

use std::sync::Arc;

use proptest::prelude::*;
use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset};

use crate::configuration::{Change, Configuration};
use crate::effect::{AppendRange, AppendSource, Effect, Persist, Refusal, Request, StepDownReason};
use crate::event::Event;
use crate::group::{Group, RestoreError, Restored, Role};
use crate::hard_state::HardState;
use crate::ids::{DirectoryId, Moment, ReplicaId, Round, Term, Ticket, Token};
use crate::message::{Append, AppendEpochs, AppendOutcome, AppendReply, Body, Claim, Message, SnapshotOffer};

const ME: ReplicaId = ReplicaId { node: NodeId(1), directory: DirectoryId([1; 16]) };
const STRANGER: ReplicaId = ReplicaId { node: NodeId(2), directory: DirectoryId([2; 16]) };

/// A replica, its log's end as a disk would know it, and everything it was told to do.
struct Replica {
    group: Group,
    effects: Vec<Effect>,
    /// What reached the disk: the newest hard state and the log end, applied when a ticket is reported.
    disk: Disk,
    unwritten: Vec<Persist>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Disk {
    hard_state: HardState,
    log_start: Offset,
    log_end: Offset,
}

impl Replica {
    fn new() -> Replica {
        Replica::on(Disk { hard_state: HardState::alone(ME), log_start: Offset(0), log_end: Offset(0) })
    }

    fn on(disk: Disk) -> Replica {
        let Disk { hard_state, log_start, log_end } = disk.clone();
        let group =
            Group::restore(Restored { me: ME, hard_state, log_start, log_end }).expect("a group of one");
        Replica { group, effects: Vec::new(), disk, unwritten: Vec::new() }
    }

    /// Started, elected, and everything durable.
    fn leading() -> Replica {
        let mut replica = Replica::new();
        replica.happens(Event::Start);
        replica.writes_everything();
        replica.effects.clear();
        replica
    }

    fn happens(&mut self, event: Event) -> Vec<Effect> {
        let first = self.effects.len();
        self.group.step(event, &mut self.effects);
        let new = self.effects[first..].to_vec();
        self.unwritten.extend(new.iter().filter_map(|effect| match effect {
            Effect::Persist(persist) => Some(persist.clone()),
            _ => None,
        }));
        new
    }

    fn proposes(&mut self, records: i64) -> Vec<Effect> {
        self.happens(Event::Proposal { end: Offset(self.group.log_end().0 + records) })
    }

    /// The disk completes the `count` oldest writes, and the last of them is reported.
    fn writes(&mut self, count: usize) -> Vec<Effect> {
        let mut ticket = None;
        for persist in self.unwritten.drain(..count) {
            if let Some(append) = persist.append {
                assert_eq!(append.base, self.disk.log_end, "an append continues the log");
                self.disk.log_end = append.end;
            }
            if let Some(hard_state) = persist.hard_state {
                self.disk.hard_state = hard_state;
            }
            ticket = Some(persist.ticket);
        }
        ticket.map_or_else(Vec::new, |ticket| self.happens(Event::Persisted { ticket }))
    }

    fn writes_everything(&mut self) {
        while !self.unwritten.is_empty() {
            self.writes(self.unwritten.len());
        }
    }

    /// Only what is on disk survives.
    fn crashes_and_restarts(self) -> Replica {
        Replica::on(Disk { log_start: self.group.log_start(), ..self.disk })
    }
}

fn commit(high_watermark: i64) -> Effect {
    Effect::Commit { high_watermark: Offset(high_watermark) }
}

#[test]
fn a_lone_replica_votes_for_itself_wins_once_the_vote_is_durable_and_settles_once_the_log_term_is() {
    let mut replica = Replica::new();
    assert_eq!(replica.group.role(), Role::Follower { leader: None });

    let effects = replica.happens(Event::Start);
    let candidacy = HardState { term: Term(1), vote: Some(ME), ..HardState::alone(ME) };
    let persist =
        Persist { ticket: Ticket(1), truncate_to: None, append: None, hard_state: Some(candidacy.clone()) };
    assert_eq!(
        effects,
        [Effect::Persist(persist)],
        "the candidacy is made durable, and nothing else happens"
    );
    assert_eq!(replica.group.role(), Role::Candidate);

    let effects = replica.writes(1);
    let won = HardState { log_term: Term(1), ..candidacy };
    let persist = Persist { ticket: Ticket(2), truncate_to: None, append: None, hard_state: Some(won) };
    let leads = Effect::BecameLeader { term: Term(1), election_end: Offset(0) };
    assert_eq!(
        effects,
        [Effect::Persist(persist), leads],
        "the log term is set at the win, not at the candidacy"
    );
    assert!(!replica.group.is_settled(), "the log term is not durable yet");

    assert_eq!(
        replica.writes(1),
        [commit(0)],
        "the first watermark of a term is told although it did not move"
    );
    assert!(replica.group.is_settled());
    assert_eq!(replica.group.leader_epoch(), LeaderEpoch(1));
}

#[test]
fn a_record_is_committed_when_it_is_durable_and_not_before() {
    let mut replica = Replica::leading();
    let effects = replica.proposes(3);
    let range = AppendRange {
        base: Offset(0),
        end: Offset(3),
        source: AppendSource::Proposal { epoch: LeaderEpoch(1) },
    };
    let persist = Persist { ticket: Ticket(3), truncate_to: None, append: Some(range), hard_state: None };
    assert_eq!(effects, [Effect::Persist(persist)]);
    assert_eq!(replica.group.high_watermark(), Offset(0));
    assert_eq!(replica.group.log_end(), Offset(3));
    assert_eq!(replica.writes(1), [commit(3)]);
}

#[test]
fn one_report_commits_everything_written_up_to_it_and_nothing_beyond() {
    let mut replica = Replica::leading();
    (1..=4).for_each(|records| drop(replica.proposes(records)));
    assert_eq!(replica.writes(3), [commit(6)]);
    assert_eq!(replica.group.durable_end(), Offset(6));
    assert_eq!(
        replica.happens(Event::Persisted { ticket: Ticket(4) }),
        [],
        "a repeated report changes nothing"
    );
    assert_eq!(replica.writes(1), [commit(10)]);
}

#[test]
fn records_proposed_before_the_log_term_is_durable_wait_for_it() {
    let mut replica = Replica::new();
    replica.happens(Event::Start);
    replica.writes(1);
    replica.proposes(5);
    assert_eq!(replica.writes(1), [commit(0)], "log term durable, records not");
    assert_eq!(replica.writes(1), [commit(5)]);
}

#[test]
fn a_restarted_leader_takes_the_next_term_and_exposes_its_log_only_by_the_rule() {
    let mut replica = Replica::leading();
    replica.proposes(7);
    replica.writes_everything();
    replica.proposes(2);
    let mut replica = replica.crashes_and_restarts();
    assert_eq!(replica.group.role(), Role::Follower { leader: None }, "it does not go on leading");
    assert_eq!(replica.group.log_end(), Offset(7), "what was not durable is gone");
    assert_eq!(replica.group.high_watermark(), Offset(0));

    replica.happens(Event::Start);
    assert_eq!(replica.group.term(), Term(2));
    replica.writes(1);
    assert_eq!(replica.group.high_watermark(), Offset(0), "won, but the log term is not durable");
    assert_eq!(replica.writes(1), [commit(7)], "records of term 1 commit without an entry of term 2");
}

#[test]
fn a_crash_between_candidacy_and_win_costs_a_term_and_nothing_else() {
    let mut replica = Replica::new();
    replica.happens(Event::Start);
    replica.writes(1);
    let mut replica = replica.crashes_and_restarts();
    assert_eq!(replica.group.hard_state().log_term, Term(0));
    replica.happens(Event::Start);
    replica.writes_everything();
    assert_eq!(replica.group.hard_state().log_term, Term(2));
    assert!(replica.group.is_settled());
}

#[test]
fn whoever_does_not_lead_refuses_proposals_and_says_who_does() {
    let mut replica = Replica::new();
    let request = Request::Proposal { end: Offset(1) };
    let refused = Effect::Refused { request, reason: Refusal::NotLeader { leader: None } };
    assert_eq!(replica.proposes(1), std::slice::from_ref(&refused));
    replica.happens(Event::Start);
    assert_eq!(replica.proposes(1), [refused], "a candidate does not lead yet");
    assert_eq!(replica.group.log_end(), Offset(0));
}

#[test]
fn a_leader_that_cannot_persist_steps_down_for_good_and_believes_no_later_report() {
    let mut replica = Replica::leading();
    replica.proposes(3);
    let failed = Event::PersistFailed { ticket: Ticket(3) };
    let stepped_down = Effect::SteppedDown { term: Term(1), reason: StepDownReason::PersistFailed };
    assert_eq!(replica.happens(failed.clone()), [stepped_down]);
    assert_eq!(replica.happens(failed), [], "told once");
    assert_eq!(
        replica.happens(Event::Persisted { ticket: Ticket(3) }),
        [],
        "a retried write is not believed"
    );
    assert_eq!(replica.group.high_watermark(), Offset(0));
    assert_eq!(replica.group.ignored().late_reports, 2);
    let request = Request::Proposal { end: Offset(4) };
    assert_eq!(replica.proposes(1), [Effect::Refused { request, reason: Refusal::PersistFailed }]);
}

#[test]
fn a_candidate_that_cannot_persist_never_leads() {
    let mut replica = Replica::new();
    replica.happens(Event::Start);
    let stepped_down = Effect::SteppedDown { term: Term(1), reason: StepDownReason::PersistFailed };
    assert_eq!(replica.happens(Event::PersistFailed { ticket: Ticket(1) }), [stepped_down]);
    assert!(!replica.group.is_leader());
}

#[test]
fn a_strangers_message_is_counted_and_never_obeyed() {
    let claim = Claim { log_term: Term(900), configuration_version: 9, log_end: Offset(900) };
    let append = Append {
        election_end: Offset(0),
        previous_epoch: None,
        base: Offset(0),
        end: Offset(0),
        epochs: AppendEpochs::default(),
        configurations: vec![Arc::new(Configuration::alone(STRANGER))],
        high_watermark: Offset(900),
        log_start: Offset(900),
        round: Round(1),
    };
    let reply = AppendReply {
        outcome: AppendOutcome::Matched,
        log_term: Term(1),
        durable_end: Offset(900),
        configuration_version: 1,
        round: Round(1),
    };
    let offer = SnapshotOffer {
        log_start: Offset(900),
        log_end: Offset(901),
        first_epoch: None,
        last_epoch: None,
        configuration: Arc::new(Configuration::alone(STRANGER)),
    };
    let bodies = [
        Body::PreVoteRequest { claim },
        Body::PreVoteReply { granted: true },
        Body::VoteRequest { claim, handover: true },
        Body::VoteReply { granted: true },
        Body::Append(append),
        Body::AppendReply(reply),
        Body::Heartbeat { high_watermark: Offset(900), round: Round(1) },
        Body::HeartbeatReply { round: Round(1) },
        Body::CampaignNow,
        Body::SnapshotOffer(offer),
        Body::SnapshotReply { installed: true, log_end: Offset(900) },
    ];
    let mut replica = Replica::leading();
    replica.proposes(1);
    let (role, state) = (replica.group.role(), replica.group.hard_state().clone());
    let mut count = 0;
    for body in bodies {
        for from in [STRANGER, ME] {
            let message = Message { from, to: ME, term: Term(900), body: body.clone() };
            assert_eq!(replica.happens(Event::Message(message)), []);
            count += 1;
            assert_eq!(replica.group.ignored().strangers, count);
        }
    }
    assert_eq!((replica.group.role(), replica.group.hard_state()), (role, &state));
    assert_eq!(replica.group.high_watermark(), Offset(0));
}

#[test]
fn a_barrier_passes_at_once_in_a_settled_group_of_one() {
    let mut replica = Replica::new();
    let (token, request) = (Token(5), Request::ReadBarrier { token: Token(5) });
    let barrier = Event::ReadBarrier { token };
    let refused = |reason| [Effect::Refused { request, reason }];
    assert_eq!(replica.happens(barrier.clone()), refused(Refusal::NotLeader { leader: None }));
    replica.happens(Event::Start);
    replica.writes(1);
    assert_eq!(replica.happens(barrier.clone()), refused(Refusal::NotSettled));
    replica.proposes(4);
    replica.writes_everything();
    assert_eq!(replica.happens(barrier), [Effect::Barrier { token, high_watermark: Offset(4) }]);
}

#[test]
fn membership_and_leadership_changes_are_refused_by_name() {
    let mut replica = Replica::leading();
    let token = Token(1);
    let change = Event::ChangeConfiguration { change: Change::AddLearner(STRANGER), token };
    let request = Request::ChangeConfiguration { token };
    assert_eq!(replica.happens(change), [Effect::Refused { request, reason: Refusal::AloneOnly }]);
    let transfer = Event::TransferLeadership { to: Some(STRANGER), token };
    let request = Request::TransferLeadership { token };
    assert_eq!(replica.happens(transfer), [Effect::Refused { request, reason: Refusal::NoSuccessor }]);
    assert!(replica.group.is_settled());
}

#[test]
fn retention_moves_the_log_start_up_to_the_watermark_only() {
    let mut replica = Replica::leading();
    replica.proposes(4);
    replica.writes_everything();
    replica.happens(Event::LogStartMoved { log_start: Offset(4) });
    assert_eq!(replica.group.log_start(), Offset(4));
    let beyond = std::panic::catch_unwind(move || {
        replica.group.step(Event::LogStartMoved { log_start: Offset(5) }, &mut Vec::new());
    });
    assert!(beyond.is_err(), "records that are not committed cannot be retired");
}

#[test]
fn the_last_term_is_never_passed() {
    let hard_state = HardState { term: Term::MAX, ..HardState::alone(ME) };
    let mut replica = Replica::on(Disk { hard_state, log_start: Offset(0), log_end: Offset(0) });
    assert_eq!(replica.happens(Event::Start), []);
    assert_eq!(replica.group.role(), Role::Follower { leader: None });
    assert_eq!(replica.group.term(), Term::MAX);
}

#[test]
fn what_cannot_be_run_is_refused_at_restore() {
    let restore = |hard_state: HardState, log_start: i64, log_end: i64| {
        let (log_start, log_end) = (Offset(log_start), Offset(log_end));
        Group::restore(Restored { me: ME, hard_state, log_start, log_end }).err()
    };
    let alone = HardState::alone(ME);
    assert_eq!(restore(alone.clone(), 3, 7), None);
    let bounds = RestoreError::LogBounds { log_start: Offset(3), log_end: Offset(2) };
    assert_eq!(restore(alone.clone(), 3, 2), Some(bounds));
    let moved = HardState { directory: STRANGER.directory, ..alone.clone() };
    let other = RestoreError::OtherDirectory { written: STRANGER.directory, present: ME.directory };
    assert_eq!(restore(moved, 0, 0), Some(other));
    let two = Configuration { voters: vec![ME, STRANGER], ..Configuration::alone(ME) };
    let two = HardState { configuration: Arc::new(two), ..alone };
    assert_eq!(restore(two, 0, 0), Some(RestoreError::NotAlone { members: 2, me: ME }));
}

#[test]
fn a_steady_stream_of_proposals_reuses_its_buffers() {
    let mut replica = Replica::leading();
    let mut effects = Vec::with_capacity(4);
    let buffer = effects.as_ptr();
    for end in 1..10_000 {
        effects.clear();
        replica.group.step(Event::Proposal { end: Offset(end) }, &mut effects);
        let Some(Effect::Persist(Persist { ticket, .. })) = effects.first() else { panic!("{effects:?}") };
        let ticket = *ticket;
        replica.group.step(Event::Persisted { ticket }, &mut effects);
        assert_eq!(effects.last(), Some(&commit(end)));
    }
    assert_eq!(effects.as_ptr(), buffer, "the buffer never grew");
}

/// What may happen to a replica, in any order.
#[derive(Clone, Debug)]
enum Step {
    Start,
    Propose { records: i64 },
    Write { count: usize },
    Fail,
    Crash,
    Retire { share: u8 },
    Stranger { term: u32 },
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::Start),
        8 => (1..50i64).prop_map(|records| Step::Propose { records }),
        8 => (0..5usize).prop_map(|count| Step::Write { count }),
        1 => Just(Step::Fail),
        2 => Just(Step::Crash),
        1 => any::<u8>().prop_map(|share| Step::Retire { share }),
        1 => any::<u32>().prop_map(|term| Step::Stranger { term }),
        1 => Just(Step::Tick),
    ]
}

proptest! {
    /// Whatever happens: committed records are on disk, nothing committed is lost by a crash, terms and watermarks never go back,
    /// and no term is led twice.
    #[test]
    fn committed_records_survive_any_sequence(steps in proptest::collection::vec(step(), 1..200)) {
        let mut replica = Replica::new();
        let (mut started, mut committed, mut led) = (false, Offset(0), Term::ZERO);
        for step in steps {
            let effects = match step {
                Step::Start if started => continue,
                Step::Start => { started = true; replica.happens(Event::Start) }
                Step::Propose { records } => replica.proposes(records),
                Step::Write { count } => { let count = count.min(replica.unwritten.len()); replica.writes(count) }
                Step::Fail => {
                    replica.unwritten.clear();
                    replica.happens(Event::PersistFailed { ticket: Ticket(1) })
                }
                Step::Crash => { replica = replica.crashes_and_restarts(); started = false; continue }
                Step::Retire { share } => {
                    let (start, end) = (replica.group.log_start().0, replica.group.high_watermark().0);
                    let log_start = Offset(start + (end - start) * i64::from(share) / 255);
                    replica.happens(Event::LogStartMoved { log_start })
                }
                Step::Stranger { term } => {
                    let body = Body::CampaignNow;
                    replica.happens(Event::Message(Message { from: STRANGER, to: ME, term: Term(term), body }))
                }
                Step::Tick => replica.happens(Event::Tick { now: Moment(1) }),
            };
            for effect in effects {
                match effect {
                    Effect::Commit { high_watermark } => {
                        prop_assert!(high_watermark <= replica.disk.log_end, "committed but not on disk");
                        prop_assert!(high_watermark >= committed, "{:?} was committed, now {:?}", committed, high_watermark);
                        prop_assert_eq!(replica.disk.hard_state.log_term, replica.group.term());
                        committed = high_watermark;
                    }
                    Effect::BecameLeader { term, .. } => {
                        prop_assert!(term > led, "term {} was led before", term);
                        prop_assert_eq!(replica.disk.hard_state.vote, Some(ME), "led before its vote was durable");
                        led = term;
                    }
                    _ => {}
                }
            }
            prop_assert!(replica.disk.log_end >= committed);
            replica.group.validate();
        }
    }
}
