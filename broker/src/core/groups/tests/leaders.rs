//! Another leader, the same one again, and too few replicas: who waited is told, nothing is invented, and the log is what counts.

use super::*;

#[test]
fn one_that_leads_no_more_sends_everybody_away_and_reads_the_log_when_it_leads_again() {
    simulate(1, 1, |scene| async move {
        assert_eq!(scene.commit(0, 5).await, ErrorCode::None);
        let (member, generation) = scene.join().await;
        assert_eq!(error_of(&scene.call(sync(&member, generation)).await), ErrorCode::None);
        let joining = scene.begin(GroupCall::Join(join("", 2)));
        scene.pass(Duration::from_secs(1)).await;
        assert_eq!(error_so_far(&joining), None, "it waits for the other member");
        scene.links.cut([FIRST]);
        let committing = scene.begin(commit_of(&member, generation, 0, 6));
        scene.until("it leads no more", |scene| scene.core.store.view(key()).is_err()).await;
        scene.pass(5 * STEP).await;
        assert_eq!(error_so_far(&joining), Some(ErrorCode::NotCoordinator), "though nobody asked anything");
        assert_eq!(error_so_far(&committing), Some(ErrorCode::NotCoordinator));
        assert_eq!(scene.core.groups().usage.get(), Usage::default(), "nothing is left of the groups");
        assert_eq!(scene.offsets().await, Err(ErrorCode::NotCoordinator));

        scene.until("another leads", |scene| scene.leader().is_some_and(|place| place != FIRST)).await;
        let leader = scene.stores[scene.leader().expect("it leads")].clone();
        write(&leader, offset_record(1, Some(77)), BatchOptions::default()).await;
        scene.links.mend();
        scene.until_in_sync().await;
        assert_eq!(scene.heartbeat(&member, generation).await, ErrorCode::NotCoordinator);
        scene.lead(FIRST).await;
        scene
            .until("it serves, though nobody asked", |scene| scene.core.groups().usage.get().groups > 0)
            .await;
        let expected = BTreeMap::from([(0, 5), (1, 77)]);
        assert_eq!(scene.offsets().await, Ok(expected), "and not what no other replica had");
        assert_eq!(scene.state().await, (GroupState::Stable, 1));
        scene.pass(Duration::from_millis(SESSION_MS as u64 - 500)).await;
        assert_eq!(scene.heartbeat(&member, generation).await, ErrorCode::None, "it had a whole session");
        scene.pass(Duration::from_millis(SESSION_MS as u64 + 500)).await;
        assert_eq!(scene.state().await, (GroupState::Empty, 0));
    });
}

#[test]
fn assignments_of_one_that_leads_no_more_are_nobody_s() {
    simulate(2, 1, |scene| async move {
        let (member, generation) = scene.join().await;
        scene.links.cut([FIRST]);
        let syncing = scene.call(sync(&member, generation)).await;
        assert_eq!(error_of(&syncing), ErrorCode::NotCoordinator);
        scene.until("another leads", |scene| scene.leader().is_some_and(|place| place != FIRST)).await;
        scene.links.mend();
        scene.until_in_sync().await;
        scene.lead(FIRST).await;
        scene.until_served().await;
        assert_eq!(scene.heartbeat(&member, generation).await, ErrorCode::UnknownMemberId);
        let (member, generation) = scene.join().await;
        assert_eq!(error_of(&scene.call(sync(&member, generation)).await), ErrorCode::None);
    });
}

#[test]
fn a_consumer_that_joins_meanwhile_is_sent_away_and_may_come_again() {
    simulate(3, 1, |scene| async move {
        assert_eq!(error_of(&scene.call(consumer("one", 0)).await), ErrorCode::None);
        scene.links.cut([FIRST]);
        // The next assignment is a second away, and what it rests on is not in the log.
        let joining = scene.begin(consumer("two", 0));
        scene.until("it leads no more", |scene| scene.core.store.view(key()).is_err()).await;
        scene.pass(Duration::from_secs(2)).await;
        assert_eq!(error_so_far(&joining), Some(ErrorCode::NotCoordinator));
        scene.links.mend();
        scene.until_in_sync().await;
        scene.lead(FIRST).await;
        scene.until_served().await;
        assert_eq!(error_of(&scene.call(consumer("two", 1)).await), ErrorCode::UnknownMemberId);
        assert_eq!(error_of(&scene.call(consumer("one", 1)).await), ErrorCode::None, "it is in the log");
        assert_eq!(error_of(&scene.call(consumer("two", 0)).await), ErrorCode::None);
    });
}

#[test]
fn what_too_few_replicas_hold_is_refused_and_shown_once_it_is_committed() {
    simulate(4, NODES, |scene| async move {
        assert_eq!(scene.commit(0, 1).await, ErrorCode::None);
        scene.links.cut([2]);
        assert_eq!(scene.commit(0, 2).await, ErrorCode::CoordinatorNotAvailable, "after its append");
        assert_eq!(scene.commit(1, 3).await, ErrorCode::CoordinatorNotAvailable, "before its append");
        assert_eq!(scene.offsets().await, Ok(BTreeMap::from([(0, 1)])));
        scene.links.mend();
        scene.until_in_sync().await;
        assert_eq!(scene.commit(2, 4).await, ErrorCode::None);
        assert_eq!(scene.offsets().await, Ok(BTreeMap::from([(0, 2), (2, 4)])));
    });
}

#[test]
fn a_rebalance_whose_assignments_too_few_replicas_hold_begins_again() {
    simulate(5, NODES, |scene| async move {
        let (member, generation) = scene.join().await;
        scene.links.cut([2]);
        let syncing = scene.call(sync(&member, generation)).await;
        assert_eq!(error_of(&syncing), ErrorCode::CoordinatorNotAvailable);
        assert_eq!(scene.heartbeat(&member, generation).await, ErrorCode::RebalanceInProgress);
        scene.links.mend();
        scene.until_in_sync().await;
        let answer = scene.call(GroupCall::Join(join(&member, 1))).await;
        let GroupAnswer::Reply(Reply::Join(reply)) = answer else { panic!("it joins: {answer:?}") };
        assert_eq!((reply.error, reply.generation), (ErrorCode::None, generation + 1));
        assert_eq!(error_of(&scene.call(sync(&member, reply.generation)).await), ErrorCode::None);
        assert_eq!(scene.state().await, (GroupState::Stable, 1));
    });
}

/// Others lead and this one again, with commits under way all the time; nobody is cut off for long.
#[test]
fn no_acknowledged_commit_is_lost_by_changes_of_the_leader() {
    for seed in 10..14 {
        simulate(seed, 1, |scene| async move {
            let acknowledged = Rc::new(Cell::new(0));
            let (committer, acked) = (scene.clone(), Rc::clone(&acknowledged));
            let committing = scene.io.spawn(Priority::Foreground, async move {
                for offset in 1.. {
                    match committer.commit(0, offset).await {
                        ErrorCode::None => acked.set(offset),
                        ErrorCode::NotCoordinator
                        | ErrorCode::CoordinatorLoadInProgress
                        | ErrorCode::CoordinatorNotAvailable => {}
                        other => panic!("commit {offset} is told {other}"),
                    }
                    committer.pass(STEP).await;
                }
            });
            let mut before = 0;
            for round in 0..12 {
                scene.until("commits are taken", |_| acknowledged.get() > before).await;
                if round % 3 == 0 {
                    scene.links.cut([FIRST]);
                    scene.pass(Duration::from_millis(scene.io.random_u64() % 900)).await;
                    scene.links.mend();
                } else {
                    scene.lead(1 + round % 2).await;
                }
                scene.lead(FIRST).await;
                scene.until_served().await;
                let acked = acknowledged.get();
                let found = scene.offsets().await.map(|offsets| offsets.get(&0).copied().unwrap_or(0));
                if let Ok(found) = found {
                    assert!(found >= acked, "{found} after {acked} was acknowledged");
                }
                before = acknowledged.get();
            }
            drop(committing);
        });
    }
}
