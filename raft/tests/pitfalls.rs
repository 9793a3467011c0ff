//! Mistakes that other implementations made, one test each. Numbers are those of the list of Raft pitfalls in
//! `docs/explanation/replication.md`. Numbers 8, 10 and 11 concern logs and producers, not consensus.

mod support;

use ringlog_protocol::ids::Offset;
use ringlog_raft::configuration::Change;
use ringlog_raft::effect::{Refusal, Request, StepDownReason};
use ringlog_raft::ids::{Round, Term, Ticket, Token};
use ringlog_raft::message::{AppendOutcome, Body, Claim};
use ringlog_raft::{Effect, Event};
use support::script::{Stage, append, configuration, replica};

fn refused(stage: &Stage, node: i32, wanted: Refusal) -> bool {
    stage
        .actor(node)
        .told
        .iter()
        .any(|told| matches!(told, Effect::Refused { reason, .. } if *reason == wanted))
}

fn claim(log_term: u32, version: u64, log_end: i64) -> Claim {
    Claim { log_term: Term(log_term), configuration_version: version, log_end: Offset(log_end) }
}

#[test]
fn pitfall_1_a_second_change_waits_until_a_majority_holds_the_first() {
    let mut stage = Stage::of(&[1, 2, 3], 5);
    stage.settings.promote_learners = false;
    stage.actors.iter_mut().for_each(|actor| actor.group.configure(stage.settings.into()));
    stage.campaigns(1);
    stage.settles();
    stage.changes(1, Change::AddLearner(replica(4)), 1);
    stage.settles();
    stage.changes(1, Change::AddLearner(replica(5)), 2);
    stage.settles();
    stage.waits(200);

    stage.changes(1, Change::Promote(replica(4)), 3);
    stage.changes(1, Change::Promote(replica(5)), 4);
    assert!(refused(&stage, 1, Refusal::ChangeInFlight), "the first promotion is held by the leader alone");
    assert_eq!(stage.group(1).configuration().voters.len(), 4);
    stage.settles();
    stage.changes(1, Change::Promote(replica(5)), 5);
    assert_eq!(
        stage.group(1).configuration().voters.len(),
        5,
        "held by three of four, the next one may come"
    );
}

#[test]
fn pitfall_1_a_new_leader_changes_nothing_before_a_majority_holds_its_configuration_in_its_term() {
    let mut stage = Stage::of(&[1, 2, 3], 4);
    stage.campaigns(1);
    stage.actors.iter_mut().for_each(|actor| actor.told.clear());
    let mut fresh = Stage::of(&[1, 2, 3], 4);
    fresh.loses_patience(1);
    // Its pre-vote and its votes arrive, its first appends do not.
    for _ in 0..4 {
        let waiting = std::mem::take(&mut fresh.network);
        waiting.into_iter().for_each(|(message, records)| fresh.delivers(message, &records));
        if fresh.group(1).is_leader() {
            break;
        }
    }
    assert!(fresh.group(1).is_leader());
    fresh.changes(1, Change::AddLearner(replica(4)), 1);
    assert!(refused(&fresh, 1, Refusal::ChangeInFlight));
}

#[test]
fn pitfall_2_a_configuration_is_in_force_when_it_is_made_and_the_next_leader_carries_it_on() {
    let mut stage = Stage::of(&[1, 2, 3], 4);
    stage.campaigns(1);
    stage.settles();
    stage.changes(1, Change::AddLearner(replica(4)), 1);
    assert_eq!(stage.group(1).configuration().version, 2, "in force at once");
    stage.settles();
    stage.crashes(1);
    stage.cuts_off(1);
    stage.waits(600);
    let leader = stage.leader().expect("two of three elect another");
    assert!(leader == 2 || leader == 3);
    assert!(stage.group(leader).configuration().is_member(replica(4)), "nobody has to finish the change");
}

#[test]
fn pitfall_3_elected_is_not_caught_up() {
    let mut stage = Stage::of_disks(3, &[(3, 1, &[1, 1, 3]), (3, 1, &[1, 1, 3]), (3, 1, &[1])]);
    stage.cuts_off(3);
    stage.loses_patience(1);
    for _ in 0..4 {
        let waiting = std::mem::take(&mut stage.network);
        waiting.into_iter().for_each(|(message, records)| stage.delivers(message, &records));
        if stage.group(1).is_leader() {
            break;
        }
    }
    assert!(stage.group(1).is_leader());
    assert!(!stage.group(1).is_settled(), "it does not know what is committed");
    assert_eq!(stage.high_watermark(1), 0);
    stage.happens(1, Event::ReadBarrier { token: Token(1) });
    assert!(refused(&stage, 1, Refusal::NotSettled));
    stage.settles();
    assert!(stage.group(1).is_settled());
    assert_eq!(
        stage.high_watermark(1),
        3,
        "all records of older terms are committed, without one of this term"
    );
}

#[test]
fn pitfall_4_a_read_waits_for_a_round_that_began_after_it() {
    let mut stage = Stage::led_by_one();
    stage.proposes(1, 3);
    stage.settles();
    stage.cuts_off(1);
    stage.happens(1, Event::ReadBarrier { token: Token(1) });
    stage.settles();
    let passed =
        |stage: &Stage| stage.actor(1).told.iter().any(|told| matches!(told, Effect::Barrier { .. }));
    assert!(!passed(&stage));
    // An answer to an older round proves nothing.
    let old = stage.says(2, 1, 1, Body::HeartbeatReply { round: Round(0) });
    stage.happens(1, Event::Message(old));
    assert!(!passed(&stage));
    stage.heals();
    stage.waits(40);
    let told = &stage.actor(1).told;
    assert!(told.contains(&Effect::Barrier { token: Token(1), high_watermark: Offset(3) }), "{told:?}");
}

#[test]
fn pitfall_4_a_deposed_leader_answers_no_read() {
    let mut stage = Stage::led_by_one();
    stage.cuts_off(1);
    stage.happens(1, Event::ReadBarrier { token: Token(7) });
    stage.waits(400);
    let request = Request::ReadBarrier { token: Token(7) };
    let refusal = Effect::Refused { request, reason: Refusal::NotLeader { leader: None } };
    assert!(stage.actor(1).told.contains(&refusal));
    assert!(!stage.actor(1).told.iter().any(|told| matches!(told, Effect::Barrier { .. })));
}

#[test]
fn pitfall_5_a_pre_vote_changes_no_state_of_the_voter() {
    let mut stage = Stage::of(&[1, 2, 3], 3);
    let before = stage.group(2).hard_state().clone();
    // However often somebody asks, the voter's own patience runs on.
    for _ in 0..30 {
        stage.now_ms += 10;
        let ask = stage.says(3, 2, 1, Body::PreVoteRequest { claim: claim(0, 1, 0) });
        stage.happens(2, Event::Message(ask));
        stage.ticks(2);
    }
    assert_eq!(stage.group(2).hard_state(), &before);
    let asked = |message: &&ringlog_raft::message::Message| {
        message.from == replica(2) && matches!(message.body, Body::PreVoteRequest { .. })
    };
    assert!(stage.sent.iter().any(|message| asked(&message)), "it asked for votes itself");
}

#[test]
fn pitfall_6_a_lagging_follower_keeps_listening_and_a_busy_one_tells_its_term() {
    let mut stage = Stage::of(&[1, 2, 3], 3);
    // A leader whose every append is refused is alive all the same.
    for _ in 0..40 {
        stage.now_ms += 10;
        let far = append(90, Some(1), 90, &[], &[1, 2, 3]);
        let far = stage.says(1, 3, 1, Body::Append(far));
        stage.happens(3, Event::Message(far));
        stage.ticks(3);
    }
    assert_eq!(stage.actor(3).leader(), Some(1));
    assert!(!stage.sent.iter().any(|message| matches!(message.body, Body::PreVoteRequest { .. })));
    // And one of an older term learns of the newer one.
    let old = stage.says(2, 3, 0, Body::Append(append(0, None, 0, &[], &[1, 2, 3])));
    stage.happens(3, Event::Message(old));
    let answer = stage.sent.last().expect("an answer");
    assert_eq!((answer.to, answer.term), (replica(2), Term(1)));
    assert!(matches!(answer.body, Body::AppendReply(reply) if reply.outcome == AppendOutcome::Busy));
}

#[test]
fn pitfall_7_a_pre_vote_won_in_an_older_term_starts_no_election() {
    let mut stage = Stage::of(&[1, 2, 3], 3);
    stage.loses_patience(1);
    stage.network.clear();
    // Before the answers arrive, somebody else took the term.
    let newer = stage.says(2, 1, 5, Body::VoteRequest { claim: claim(0, 1, 0), handover: false });
    stage.happens(1, Event::Message(newer));
    for voter in [2, 3] {
        let granted = stage.says(voter, 1, 0, Body::PreVoteReply { granted: true });
        stage.happens(1, Event::Message(granted));
    }
    assert!(!stage.actor(1).is_candidate());
    assert_eq!(stage.group(1).term(), Term(5));
}

#[test]
fn pitfall_9_a_change_of_leader_takes_no_offset() {
    let mut stage = Stage::led_by_one();
    stage.proposes(1, 4);
    stage.settles();
    for _ in 0..3 {
        let leader = stage.leader().expect("one leads");
        stage.happens(leader, Event::TransferLeadership { to: None, token: Token(1) });
        stage.settles();
        assert_ne!(stage.leader(), Some(leader));
    }
    assert!(stage.actors.iter().all(|actor| actor.log == [1; 4]), "only what was proposed is in the logs");
    assert_eq!(stage.group(stage.leader().expect("one leads")).log_end(), Offset(4));
}

#[test]
fn pitfall_12_nobody_campaigns_before_its_log_is_open() {
    let mut stage = Stage::of(&[1, 2, 3], 3);
    stage.crashes(1);
    let fresh = Stage::of_disks(0, &[(0, 1, &[])]);
    let mut group = fresh.group(1).clone();
    // A group that was not started takes no messages and loses no patience.
    let restored = ringlog_raft::group::Restored {
        me: replica(2),
        hard_state: ringlog_raft::HardState::joining(replica(2), configuration(&[1, 2, 3])),
        log_start: Offset(0),
        log_end: Offset(0),
    };
    let settings = ringlog_raft::Settings::default();
    let replicated =
        ringlog_raft::group::Replicated { epochs: Vec::new(), settings: settings.into(), seed: 1 };
    group.clone_from(&ringlog_raft::Group::restore_replicated(restored, replicated).expect("sound"));
    let mut effects = Vec::new();
    for second in 0..100 {
        group.step(Event::Tick { now: ringlog_raft::ids::Moment(second * 1_000_000_000) }, &mut effects);
    }
    let ask = stage.says(1, 2, 0, Body::CampaignNow);
    group.step(Event::Message(ask), &mut effects);
    assert_eq!(effects, []);
}

#[test]
fn pitfall_13_heartbeats_wait_for_no_disk() {
    let mut stage = Stage::led_by_one();
    stage.actor_mut(2).writes_held = true;
    stage.actor_mut(3).writes_held = true;
    stage.proposes(1, 2);
    stage.waits(600);
    assert_eq!(stage.leader(), Some(1), "followers with slow disks still answer");
    assert_eq!(stage.group(1).term(), Term(1));
    assert_eq!(stage.high_watermark(1), 0, "but nothing is committed");
    stage.releases_writes(2);
    stage.waits(60);
    assert_eq!(stage.high_watermark(1), 2);
}

#[test]
fn pitfall_13_a_leader_that_cannot_write_makes_way() {
    let mut stage = Stage::led_by_one();
    stage.happens(1, Event::PersistFailed { ticket: Ticket(9) });
    stage.settles();
    let leader = stage.leader().expect("the successor was asked at once");
    assert_ne!(leader, 1);
    let stepped_down = Effect::SteppedDown { term: Term(1), reason: StepDownReason::PersistFailed };
    assert!(stage.actor(1).told.contains(&stepped_down));
}

#[test]
fn pitfall_14_the_log_term_travels_with_the_records_that_it_speaks_of() {
    let mut stage = Stage::of_disks(1, &[(1, 1, &[1, 1]), (1, 1, &[1, 1]), (1, 1, &[])]);
    stage.holds_writes(3);
    let whole = append(2, None, 0, &[1, 1], &[1, 2, 3]);
    let message = stage.says(1, 3, 2, Body::Append(whole));
    stage.delivers(message, &[1, 1]);
    let written: Vec<_> = stage.actor(3).unwritten.iter().map(|(persist, _)| persist.clone()).collect();
    let [term, log] = written.as_slice() else { panic!("{written:?}") };
    assert!(term.append.is_none() && term.hard_state.as_ref().is_some_and(|state| state.term == Term(2)));
    assert!(log.append.is_some(), "the records, in one frame with");
    assert!(log.hard_state.as_ref().is_some_and(|state| state.log_term == Term(2)), "the log term");
    assert!(stage.network.is_empty(), "nothing is acknowledged before it is durable");
    stage.releases_writes(3);
    assert_eq!(stage.network.len(), 1);
}

#[test]
fn pitfall_15_a_follower_truncates_before_it_raises_its_watermark() {
    let mut stage = Stage::of_disks(2, &[(2, 1, &[1, 1, 2]), (2, 1, &[1, 1, 2]), (1, 1, &[1, 1, 1, 1])]);
    let mut news = append(3, Some(1), 1, &[1], &[1, 2, 3]);
    news.high_watermark = Offset(3);
    let message = stage.says(1, 3, 3, Body::Append(news.clone()));
    stage.delivers(message, &[1]);
    assert_eq!(stage.high_watermark(3), 0, "not reconciled yet: its third record is another one");
    let mut news = append(3, Some(1), 2, &[2], &[1, 2, 3]);
    news.high_watermark = Offset(3);
    let mut effects = Vec::new();
    let message = stage.says(1, 3, 3, Body::Append(news));
    stage.actor_mut(3).group.step(Event::Message(message), &mut effects);
    let [Effect::Persist(persist), Effect::Commit { high_watermark }] = effects.as_slice() else {
        panic!("truncate first, watermark after: {effects:?}")
    };
    assert_eq!(persist.truncate_to, Some(Offset(2)), "cut at the first record that differs");
    assert_eq!(*high_watermark, Offset(2), "and shown only as far as its disk holds the leader's log");
}

/// Found by the simulation, and planted in the model: a leader that came back with a newer configuration and a shorter log won over those
/// that had committed more.
#[test]
fn records_beyond_a_configuration_leave_with_it_or_not_at_all() {
    let mut stage = Stage::of(&[1, 2, 3], 4);
    stage.campaigns(1);
    stage.settles();
    stage.holds_writes(1);
    stage.changes(1, Change::AddLearner(replica(4)), 1);
    stage.proposes(1, 5);
    stage.waits(60);
    assert_eq!(stage.actor(2).log.len(), 0, "the configuration is not on the leader's disk yet");
    stage.releases_writes(1);
    stage.waits(60);
    for node in [2, 3] {
        assert_eq!(stage.actor(node).log.len(), 5);
        assert_eq!(stage.group(node).configuration().version, stage.group(1).configuration().version);
    }
}
