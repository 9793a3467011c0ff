//! Scenarios of elections, replication, membership and silence that read as prose: groups, a network and disks that do only what
//! the script says.

mod support;

use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_raft::configuration::Change;
use ringlog_raft::effect::{Refusal, StepDownReason};
use ringlog_raft::ids::{Term, Token};
use ringlog_raft::message::{AppendOutcome, Body, SnapshotOffer};
use ringlog_raft::{Effect, Event};
use support::script::{ELECTION_MS, Stage, append, replica};

#[test]
fn three_voters_elect_one_and_commit_what_two_disks_hold() {
    let mut stage = Stage::led_by_one();
    assert!(stage.group(1).is_settled());
    stage.holds_writes(3);
    stage.proposes(1, 4);
    assert_eq!(stage.high_watermark(1), 0, "one disk is no majority");
    stage.settles();
    assert_eq!(stage.high_watermark(1), 4);
    stage.waits(40);
    assert_eq!(stage.high_watermark(2), 4, "followers learn it with the next heartbeat");
    assert_eq!(stage.high_watermark(3), 0, "and show only what their own disk holds");
    stage.releases_writes(3);
    assert_eq!(stage.high_watermark(3), 4);
}

#[test]
fn the_log_term_outweighs_a_longer_log_and_a_newer_configuration() {
    let disks: [(u32, u64, &[i32]); 3] = [(2, 1, &[1, 2]), (1, 7, &[1, 1, 1, 1]), (1, 1, &[1])];
    for (asks, wins) in [(1, true), (2, false), (3, false)] {
        let mut stage = Stage::of_disks(2, &disks);
        stage.loses_patience(asks);
        stage.settles();
        let won = stage.group(asks).is_leader();
        // The third one grants what the second asks, but the second has only those two against the first.
        assert_eq!(won, wins || asks == 2, "node {asks}");
    }
}

#[test]
fn between_equal_log_terms_the_newer_configuration_outweighs_the_longer_log() {
    let mut stage = Stage::of_disks(1, &[(1, 2, &[1]), (1, 1, &[1, 1, 1])]);
    stage.loses_patience(2);
    stage.settles();
    assert!(!stage.group(2).is_leader(), "the first one refuses");
    stage.campaigns(1);
    assert_eq!(stage.actor(2).log, [1], "and its log becomes everybody's");
}

#[test]
fn a_diverged_follower_is_cut_at_the_first_record_that_differs() {
    let leader: &[i32] = &[1, 1, 1, 3, 3];
    let mut stage = Stage::of_disks(3, &[(3, 1, leader), (3, 1, leader), (2, 1, &[1, 1, 1, 1, 2, 2, 2])]);
    stage.campaigns(1);
    stage.settles();
    assert_eq!(stage.actor(3).log, leader);
    assert_eq!(stage.actor(3).disk_log, leader);
    assert_eq!(stage.group(3).hard_state().log_term, Term(4));
    let probes =
        stage.sent.iter().filter(|sent| sent.to == replica(3) && matches!(sent.body, Body::Append(_)));
    assert!(probes.count() <= 4, "whole epochs are skipped");
}

/// Found by the simulation: such a group could elect and never commit.
#[test]
fn a_winner_takes_a_configuration_made_beyond_its_log_as_the_first_of_its_term() {
    let mut stage = Stage::of_disks(2, &[(1, 3, &[1, 1]), (1, 1, &[1]), (1, 1, &[])]);
    // It was made under a leader whose later records were cut again for another one, that did not last.
    stage.made_at(1, 7);
    stage.campaigns(1);
    stage.settles();
    assert!(stage.group(1).is_settled());
    assert_eq!(stage.high_watermark(1), 2);
    for node in 1..=3 {
        let configuration = stage.group(node).configuration();
        assert_eq!((configuration.version, configuration.position), (3, Offset(2)), "node {node}");
    }
}

#[test]
fn an_equal_record_beyond_a_short_message_is_not_cut_while_reconciling() {
    let mut stage = Stage::of_disks(3, &[(1, 1, &[]), (1, 1, &[]), (1, 1, &[1, 1, 1, 1])]);
    let part = stage.says(1, 3, 4, Body::Append(append(4, None, 0, &[1, 1], &[1, 2, 3])));
    stage.delivers(part, &[1, 1]);
    assert_eq!(stage.actor(3).log, [1; 4], "it may be committed");
    let reply = stage.sent.last().expect("an answer");
    assert!(
        matches!(reply.body, Body::AppendReply(reply) if reply.log_term == Term(1)),
        "and is not counted"
    );
}

#[test]
fn a_late_short_append_cuts_nothing() {
    let mut stage = Stage::led_by_one();
    stage.proposes(1, 6);
    stage.settles();
    let late = stage.says(1, 2, 1, Body::Append(append(0, None, 0, &[1, 1], &[1, 2, 3])));
    stage.delivers(late, &[1, 1]);
    assert_eq!(stage.actor(2).log, [1; 6]);
}

#[test]
fn what_was_lost_on_the_way_is_sent_again() {
    let mut stage = Stage::led_by_one();
    stage.proposes(1, 3);
    stage.network.clear();
    stage.waits(100);
    assert_eq!(stage.high_watermark(1), 3);
    assert!(stage.actors.iter().all(|actor| actor.log == [1; 3]));
}

#[test]
fn the_bytes_on_their_way_to_a_silent_follower_are_bounded() {
    let mut stage = Stage::led_by_one();
    stage.settings.in_flight_bytes_max = 300;
    let settings = stage.settings;
    stage.actor_mut(1).group.configure(settings.into());
    stage.cuts_off(3);
    let before = stage.sent.len();
    for _ in 0..50 {
        stage.proposes(1, 1);
        stage.settles();
    }
    let to_three = stage.sent.iter().skip(before).filter(|message| message.to == replica(3)).count();
    assert_eq!(to_three, 3, "three messages of 100 bytes fill the window");
    assert_eq!(stage.high_watermark(1), 50, "and the others go on");
    stage.heals();
    stage.waits(200);
    assert_eq!(stage.actor(3).log, [1; 50]);
}

#[test]
fn a_follower_that_is_cut_off_disturbs_nobody_when_it_returns() {
    let mut stage = Stage::led_by_one();
    stage.cuts_off(3);
    stage.waits(20 * ELECTION_MS);
    assert_eq!(stage.group(3).term(), Term(1), "it asked, and took no term");
    stage.heals();
    stage.waits(3 * ELECTION_MS);
    assert_eq!((stage.leader(), stage.group(1).term()), (Some(1), Term(1)));
    assert_eq!(stage.actor(3).leader(), Some(1));
}

#[test]
fn a_leader_that_hears_no_majority_steps_down_and_the_others_elect() {
    let mut stage = Stage::led_by_one();
    stage.cuts_off(1);
    stage.waits(5 * ELECTION_MS);
    let stepped_down = Effect::SteppedDown { term: Term(1), reason: StepDownReason::QuorumLost };
    assert!(stage.actor(1).told.contains(&stepped_down));
    let leader = stage.leader().expect("two of three elect");
    assert!(leader == 2 || leader == 3);
}

#[test]
fn a_replica_that_took_a_term_in_vain_is_led_again() {
    let mut stage = Stage::led_by_one();
    // It campaigned without asking first, as if it had been handed the lead, and nobody heard it.
    let now = stage.says(1, 3, 1, Body::CampaignNow);
    stage.happens(3, Event::Message(now));
    stage.network.clear();
    assert_eq!(stage.group(3).term(), Term(2));
    stage.waits(6 * ELECTION_MS);
    let leader = stage.leader().expect("one leads");
    assert!(stage.actors.iter().all(|actor| actor.leader() == Some(leader)), "everybody follows one");
    assert!(stage.group(leader).term() > Term(2));
}

#[test]
fn a_preferred_replica_asks_first() {
    for preferred in 1..=3 {
        let mut stage = Stage::of(&[1, 2, 3], 3);
        for node in 1..=3 {
            let priority = if node == preferred { 0 } else { 20 };
            let settings = ringlog_raft::Settings { priority, ..stage.settings };
            stage.actor_mut(node).group.configure(settings.into());
        }
        // The timers that run were started before the priorities were known.
        stage.now_ms += 1_000;
        stage.waits(6 * ELECTION_MS);
        assert_eq!(stage.leader(), Some(preferred));
    }
}

#[test]
fn a_record_waits_for_as_many_copies_as_the_topic_asks_for() {
    let mut stage = Stage::led_by_one();
    stage.settings.copies_min = 3;
    let settings = stage.settings;
    stage.actor_mut(1).group.configure(settings.into());
    stage.cuts_off(3);
    stage.proposes(1, 2);
    stage.settles();
    assert_eq!(stage.high_watermark(1), 0, "a majority holds them, and all three are asked for");
    stage.heals();
    stage.waits(100);
    assert_eq!(stage.high_watermark(1), 2);
}

#[test]
fn a_learner_is_fed_not_counted_and_promoted_when_it_has_caught_up() {
    let mut stage = Stage::of(&[1], 2);
    stage.waits(20);
    assert_eq!(stage.leader(), Some(1), "a group of one elects itself");
    stage.proposes(1, 20);
    stage.changes(1, Change::AddLearner(replica(2)), 1);
    assert_eq!(stage.group(1).configuration().learners, [replica(2)]);
    assert_eq!(stage.high_watermark(1), 20, "the learner is not asked");
    stage.changes(1, Change::Promote(replica(2)), 2);
    let behind = |told: &Effect| matches!(told, Effect::Refused { reason: Refusal::LearnerBehind, .. });
    assert!(stage.actor(1).told.iter().any(behind));
    stage.settles();
    stage.waits(100);
    assert_eq!(stage.group(1).configuration().voters, [replica(1), replica(2)]);
    assert_eq!(stage.group(2).configuration(), stage.group(1).configuration());
    assert_eq!(stage.actor(2).disk_log, [1; 20]);
}

#[test]
fn a_leader_that_removes_itself_leads_until_the_others_hold_it_and_then_makes_way() {
    let mut stage = Stage::led_by_one();
    stage.changes(1, Change::Remove(replica(1)), 1);
    assert!(stage.group(1).is_leader(), "it still has to spread the word");
    stage.settles();
    stage.waits(50);
    let stepped_down = Effect::SteppedDown { term: Term(1), reason: StepDownReason::Removed };
    assert!(stage.actor(1).told.contains(&stepped_down));
    let leader = stage.leader().expect("the successor was asked");
    stage.proposes(leader, 1);
    stage.waits(50);
    assert_eq!(stage.high_watermark(leader), 1);
    stage.waits(20 * ELECTION_MS);
    assert_eq!(stage.leader(), Some(leader), "the removed one asks in vain");
}

#[test]
fn a_member_that_is_down_can_be_removed_although_nothing_commits_without_it() {
    let mut stage = Stage::led_by_one();
    stage.settings.copies_min = 3;
    stage.actors.iter_mut().for_each(|actor| actor.group.configure(stage.settings.into()));
    stage.cuts_off(3);
    stage.crashes(1);
    stage.waits(6 * ELECTION_MS);
    let leader = stage.leader().expect("two of three elect");
    assert!(!stage.group(leader).is_settled());
    stage.changes(leader, Change::Remove(replica(3)), 1);
    stage.waits(50);
    assert!(stage.group(leader).is_settled(), "two of two are enough");
}

#[test]
fn leadership_is_handed_over_without_an_election_timeout_and_takes_no_proposals_meanwhile() {
    let mut stage = Stage::led_by_one();
    stage.holds_writes(2);
    stage.proposes(1, 3);
    stage.settles();
    stage.happens(1, Event::TransferLeadership { to: Some(replica(2)), token: Token(1) });
    assert!(stage.group(1).is_handing_over());
    stage.proposes(1, 1);
    let elsewhere = Refusal::NotLeader { leader: Some(replica(2)) };
    assert!(
        stage
            .actor(1)
            .told
            .iter()
            .any(|told| matches!(told, Effect::Refused { reason, .. } if *reason == elsewhere))
    );
    let began_ms = stage.now_ms;
    stage.releases_writes(2);
    stage.settles();
    assert_eq!((stage.leader(), stage.now_ms), (Some(2), began_ms));
    let reason = StepDownReason::Transferred { to: replica(2) };
    assert!(stage.actor(1).told.contains(&Effect::SteppedDown { term: Term(1), reason }));
}

#[test]
fn a_transfer_to_a_dead_replica_is_given_up_and_the_leader_goes_on() {
    let mut stage = Stage::led_by_one();
    stage.cuts_off(2);
    stage.proposes(1, 1);
    stage.happens(1, Event::TransferLeadership { to: Some(replica(2)), token: Token(1) });
    stage.waits(2 * ELECTION_MS);
    assert!(!stage.group(1).is_handing_over());
    stage.proposes(1, 1);
    stage.waits(20);
    assert_eq!(stage.high_watermark(1), 2);
}

#[test]
fn a_follower_below_the_log_start_is_offered_a_copy() {
    let mut stage = Stage::led_by_one();
    stage.cuts_off(3);
    stage.proposes(1, 8);
    stage.settles();
    stage.waits(2 * ELECTION_MS);
    stage.happens(1, Event::LogStartMoved { log_start: Offset(6) });
    stage.heals();
    stage.waits(3 * ELECTION_MS);
    let fetch = stage.actor(3).told.iter().find_map(|told| match told {
        Effect::FetchSnapshot { from, offer } => Some((from.node.0, offer.log_start.0, offer.log_end.0)),
        _ => None,
    });
    assert_eq!(fetch, Some((1, 6, 8)));
}

/// Found by the simulation of partitions: such a follower threw away what it had acknowledged, and had to begin below its own start.
#[test]
fn a_follower_that_holds_the_leaders_first_record_takes_no_copy() {
    for (first_epoch, takes) in [(1, false), (4, true)] {
        let mut stage = Stage::of_disks(5, &[(5, 1, &[]), (5, 1, &[]), (4, 1, &[1, 1, 1, 4])]);
        let configuration = stage.group(1).configuration().clone().into();
        let (log_start, log_end) = (Offset(2), Offset(4));
        let (first_epoch, last_epoch) = (Some(LeaderEpoch(first_epoch)), None);
        let offer = SnapshotOffer { log_start, log_end, first_epoch, last_epoch, configuration };
        let offered = stage.says(1, 3, 5, Body::SnapshotOffer(offer));
        stage.delivers(offered, &[]);
        let told = &stage.actor(3).told;
        assert_eq!(told.iter().any(|told| matches!(told, Effect::FetchSnapshot { .. })), takes);
        let installed = Body::SnapshotReply { installed: true, log_end: Offset(4) };
        assert_eq!(stage.sent.iter().any(|sent| sent.body == installed), !takes, "it is fed from its end");
    }
}

#[test]
fn an_idle_group_falls_silent_and_wakes_with_the_next_record() {
    let mut stage = Stage::led_by_one();
    stage.configures(ringlog_raft::Settings { quiesce: true, ..stage.settings });
    stage.proposes(1, 2);
    stage.settles();
    assert!(!stage.group(1).is_quiescent(), "the followers do not know the watermark yet");
    stage.waits(60);
    assert!((1..=3).all(|node| stage.group(node).is_quiescent()));
    let sent = stage.sent.len();
    for _ in 0..20 {
        stage.now_ms += 10;
        stage.ticks(1);
    }
    assert_eq!(
        stage.sent.len(),
        sent,
        "a quiet leader sends nothing, and does not step down for hearing nothing"
    );
    assert!(stage.group(1).is_leader());
    stage.proposes(1, 1);
    assert!(!stage.group(1).is_quiescent());
    stage.settles();
    assert_eq!(stage.high_watermark(1), 3);
}

#[test]
fn a_quiet_group_that_is_doubted_stays_awake_until_it_heard_the_other_side() {
    let mut stage = Stage::led_by_one();
    stage.configures(ringlog_raft::Settings { quiesce: true, ..stage.settings });
    stage.waits(60);
    // The leader's node came back: whether the leader did, only a message of it tells.
    stage.actor_mut(2).group.doubt();
    assert!(!stage.group(2).is_quiescent());
    let before = stage.sent.len();
    stage.loses_patience(2);
    let asks = |sent: &ringlog_raft::message::Message| matches!(sent.body, Body::PreVoteRequest { .. });
    assert!(stage.sent.iter().skip(before).any(|sent| sent.from == replica(2) && asks(sent)));
    stage.settles();
    assert!(!stage.group(1).is_quiescent(), "and the leader is awake as well");
    stage.waits(60);
    assert_eq!(stage.group(1).term(), Term(1));
    assert!((1..=3).all(|node| stage.group(node).is_quiescent()));
}

#[test]
fn a_restarted_follower_wakes_a_quiet_leader() {
    let mut stage = Stage::led_by_one();
    stage.configures(ringlog_raft::Settings { quiesce: true, ..stage.settings });
    stage.waits(60);
    assert!(stage.group(1).is_quiescent());
    stage.crashes(3);
    stage.loses_patience(3);
    stage.settles();
    assert!(!stage.group(1).is_quiescent());
    stage.waits(60);
    assert_eq!((stage.leader(), stage.actor(3).leader()), (Some(1), Some(1)));
}

#[test]
fn a_follower_names_where_its_epoch_ends() {
    let mut stage = Stage::of_disks(5, &[(5, 1, &[]), (5, 1, &[]), (4, 1, &[1, 1, 2, 2, 2])]);
    let probe = stage.says(1, 3, 6, Body::Append(append(9, Some(4), 5, &[], &[1, 2, 3])));
    stage.delivers(probe, &[]);
    let Some(Body::AppendReply(reply)) = stage.sent.last().map(|message| message.body.clone()) else {
        panic!("an answer")
    };
    assert_eq!(reply.outcome, AppendOutcome::Diverged { epoch: LeaderEpoch(2), epoch_end: Offset(5) });
    assert_eq!(stage.group(3).end_of_epoch(LeaderEpoch(1)), Some((LeaderEpoch(1), Offset(2))));
}

#[test]
fn messages_that_no_sound_replica_sends_are_counted_and_not_obeyed() {
    let mut stage = Stage::led_by_one();
    stage.proposes(1, 3);
    stage.settles();
    let second = stage.says(
        3,
        2,
        1,
        Body::Heartbeat { high_watermark: Offset(0), round: ringlog_raft::ids::Round(1) },
    );
    stage.happens(2, Event::Message(second));
    assert_eq!(stage.group(2).ignored().contradictions, 1, "a second leader of one term");
    let mut wrong = append(0, None, 0, &[1], &[1, 2, 3]);
    wrong.end = Offset(7);
    wrong.base = Offset(-1);
    let wrong = stage.says(1, 2, 1, Body::Append(wrong));
    stage.happens(2, Event::Message(wrong));
    assert_eq!(stage.group(2).ignored().malformed, 1);
    let mut lost = stage.says(1, 2, 9, Body::CampaignNow);
    lost.to.directory.0[0] = 99;
    stage.happens(2, Event::Message(lost));
    assert_eq!(stage.group(2).ignored().strangers, 1, "meant for a disk that is gone");
    assert_eq!((stage.actor(2).leader(), stage.actor(2).log.len()), (Some(1), 3));
}
