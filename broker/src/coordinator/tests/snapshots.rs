//! When a snapshot is taken, and what a start makes of it and of the log behind it. Which file counts is `ringlog-shard`'s to test.

use super::*;

/// Bytes of one record of the adder.
const RECORD_BYTES: u64 = 8;

impl MemoryLog {
    fn snapshot_offsets(&self) -> Vec<i64> {
        self.snapshots.borrow().iter().map(|snapshot| snapshot.offset.0).collect()
    }
}

#[test]
fn a_snapshot_and_what_came_behind_it_make_the_live_machine() {
    let log = MemoryLog::open();
    let mut machine = Machine::start_with(&log, 3 * RECORD_BYTES).expect("an empty log");
    for number in 1..=10 {
        assert_eq!(machine.ask(number), Some(Ok(Ok((1..=number).sum()))));
    }
    assert_eq!(log.snapshot_offsets(), [4, 8], "with the first byte beyond the limit");
    assert_eq!(log.start.get(), 8);
    // Nobody can read what the snapshot replaced.
    log.records.borrow_mut()[..8].iter_mut().for_each(Vec::clear);
    let mut again = Machine::start_with(&log, 3 * RECORD_BYTES).expect("its own log");
    assert_eq!(again.coordinator.image(), 55);
    assert_eq!(again.ask(1), Some(Ok(Ok(56))));
    assert_eq!(log.snapshot_offsets(), [4, 8], "two records came before the start, one behind it");
    again.ask(1);
    assert_eq!(log.snapshot_offsets(), [4, 8, 12]);
}

#[test]
fn the_reply_leaves_before_the_snapshot_is_taken_and_the_next_request_waits_for_it() {
    let log = MemoryLog::open();
    let mut machine = Machine::start_with(&log, 0).expect("an empty log");
    log.story.take();
    log.holding.set(true);
    assert_eq!(machine.ask(1), Some(Ok(Ok(1))));
    assert_eq!(machine.ask(2), None);
    assert_eq!(log.story.take(), ["append 1", "committed", "published 1"]);
    log.holding.set(false);
    machine.turn();
    assert_eq!(log.story.take(), ["snapshot 1", "append 1", "committed", "published 3"]);
    assert_eq!(machine.ask(-1), Some(Ok(Err("negative"))));
    assert_eq!(log.story.take(), Vec::<String>::new());
}

#[test]
fn a_large_state_waits_until_as_much_came_again() {
    let log = MemoryLog::open();
    let mut machine = Machine::start_with(&log, 1).expect("an empty log");
    (1..=6).for_each(|number| drop(machine.ask(number)));
    assert_eq!(log.snapshot_offsets(), [1, 3, 5], "each holds 8 bytes, and more than that must come");
}

#[test]
fn a_start_with_a_long_log_takes_one_before_the_first_request() {
    let log = MemoryLog::open();
    let mut machine = Machine::start(&log).expect("an empty log");
    (1..=6).for_each(|number| drop(machine.ask(number)));
    let mut machine = Machine::start_with(&log, RECORD_BYTES).expect("its own log");
    assert_eq!(log.snapshot_offsets(), Vec::<i64>::new(), "readers have an image first");
    machine.turn();
    assert_eq!(log.snapshot_offsets(), [6]);
}

#[test]
fn a_crash_between_the_snapshot_and_the_logs_new_start_loses_nothing() {
    let log = MemoryLog::open();
    let mut machine = Machine::start_with(&log, 2 * RECORD_BYTES).expect("an empty log");
    log.failing.set(Failing::NoStart);
    (1..=4).for_each(|number| drop(machine.ask(number)));
    assert_eq!((log.snapshot_offsets(), log.start.get()), (vec![3], 0));
    let again = Machine::start(&log).expect("the snapshot lies within the log");
    assert_eq!(again.coordinator.image(), 10);
    log.snapshots.borrow_mut().clear();
    let again = Machine::start(&log).expect("the log is whole");
    assert_eq!(again.coordinator.image(), 10);
}

#[test]
fn a_snapshot_that_fails_stops_no_request_and_is_tried_again_later() {
    let log = MemoryLog::open();
    let mut machine = Machine::start_with(&log, 2 * RECORD_BYTES).expect("an empty log");
    log.failing.set(Failing::NoSnapshot);
    assert_eq!((1..=4).map(|_| machine.ask(1)).last(), Some(Some(Ok(Ok(4)))));
    log.failing.set(Failing::Nothing);
    machine.ask(1);
    assert_eq!(log.snapshot_offsets(), Vec::<i64>::new(), "not with each request");
    machine.ask(1);
    assert_eq!(log.snapshot_offsets(), [6]);
}

#[test]
fn an_open_outcome_behind_a_snapshot_is_read_from_the_log() {
    let log = MemoryLog::open();
    let mut machine = Machine::start(&log).expect("an empty log");
    (1..=3).for_each(|number| drop(machine.ask(number)));
    let mut machine = Machine::start_with(&log, 3 * RECORD_BYTES).expect("its own log");
    machine.ask(4);
    assert_eq!(log.snapshot_offsets(), [4]);
    log.failing.set(Failing::CommittedAnyway);
    assert!(matches!(machine.ask(5), Some(Err(RunnerError::Log(_)))));
    log.failing.set(Failing::Nothing);
    assert_eq!(machine.ask(6), Some(Ok(Ok(21))));
    let again = Machine::start(&log).expect("its own log");
    assert_eq!(again.coordinator.image(), 21);
}

#[test]
fn a_start_is_refused_where_nothing_holds_what_came_before_the_log() {
    let log = MemoryLog::open();
    let mut machine = Machine::start_with(&log, 0).expect("an empty log");
    (1..=4).for_each(|number| drop(machine.ask(number)));
    let snapshots = log.snapshots.take();
    let lost = RunnerError::Log(MachineLogError::StateLost { reason: "damaged".to_owned() });
    assert_eq!(Machine::start(&log).err(), Some(lost));
    let newest = snapshots.last().expect("there are some").offset;
    log.snapshots.borrow_mut().push(MachineSnapshot { offset: newest, records: vec![vec![1, 2, 3]] });
    let foreign = RunnerError::Snapshot { offset: newest, reason: "no number".to_owned() };
    assert_eq!(Machine::start(&log).err(), Some(foreign));
    log.snapshots.borrow_mut().push(MachineSnapshot { offset: newest, records: Vec::new() });
    let empty = RunnerError::Snapshot { offset: newest, reason: "it holds nothing".to_owned() };
    assert_eq!(Machine::start(&log).err(), Some(empty));
}
