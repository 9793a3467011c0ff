//! Rules of idempotence, one test each, and random streams of batches, retries and gaps against a plain model.

use proptest::prelude::*;
use ringlog_protocol::ids::LeaderEpoch;
use ringlog_protocol::records::attributes::Attributes;

use super::*;

const DAY_MS: i64 = 86_400_000;
const NOW: i64 = 1_700_000_000_000;

fn header(id: i64, epoch: i16, first: i32, count: i32) -> BatchHeader {
    BatchHeader {
        base_offset: Offset(0),
        batch_length: 49 + count,
        leader_epoch: LeaderEpoch(1),
        magic: 2,
        crc: 0,
        attributes: Attributes(0),
        last_offset_delta: count - 1,
        base_timestamp: 0,
        max_timestamp: 777,
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(first),
        record_count: count,
    }
}

/// A partition: its producers and its log of headers.
struct Partition {
    states: ProducerStates,
    log: Vec<BatchHeader>,
    end: i64,
}

impl Partition {
    fn new() -> Partition {
        Partition { states: ProducerStates::new(DAY_MS), log: Vec::new(), end: 0 }
    }

    fn append(&mut self, mut header: BatchHeader, now_ms: i64) {
        header.base_offset = Offset(self.end);
        self.end += i64::from(header.last_offset_delta) + 1;
        self.states.apply(&header, now_ms);
        self.states.validate();
        self.log.push(header);
    }

    fn sends(&mut self, id: i64, epoch: i16, first: i32, count: i32) -> Verdict {
        let header = header(id, epoch, first, count);
        let verdict = self.states.check(&header, NOW);
        if verdict == Verdict::Append {
            self.append(header, NOW);
        }
        verdict
    }
}

fn duplicate(base_offset: i64, end: i64) -> Verdict {
    Verdict::Duplicate { base_offset: Offset(base_offset), end: Offset(end), timestamp_ms: 777 }
}

fn out_of_order(found: i32, expected: i32) -> Verdict {
    Verdict::OutOfOrder { found: Sequence(found), expected: Sequence(expected) }
}

#[test]
fn each_refusal_has_the_code_that_clients_act_on() {
    let (sequence, epoch) = (Sequence(1), ProducerEpoch(1));
    let code = |verdict: Verdict| verdict.error_code().code();
    assert_eq!(code(duplicate(0, 1)), 0);
    assert_eq!(code(Verdict::DuplicateForgotten { first: sequence, oldest_known: sequence }), 46);
    assert_eq!(code(out_of_order(1, 2)), 45);
    assert_eq!(code(Verdict::NewEpochNotAtZero { epoch, found: sequence }), 45);
    assert_eq!(code(Verdict::StaleEpoch { found: epoch, current: epoch }), 47);
}

#[test]
fn batches_without_a_producer_are_always_appended_and_leave_no_state() {
    let mut partition = Partition::new();
    assert_eq!(partition.sends(-1, -1, -1, 3), Verdict::Append);
    assert_eq!(partition.sends(-1, -1, -1, 3), Verdict::Append);
    assert!(partition.states.is_empty());
}

#[test]
fn a_batch_that_follows_is_appended_and_a_gap_is_out_of_order() {
    let mut partition = Partition::new();
    assert_eq!(partition.sends(7, 0, 0, 10), Verdict::Append);
    assert_eq!(partition.sends(7, 0, 10, 5), Verdict::Append);
    assert_eq!(partition.sends(7, 0, 16, 1), out_of_order(16, 15));
    assert_eq!(partition.sends(7, 0, 15, 1), Verdict::Append);
    assert_eq!(partition.sends(8, 0, 0, 1), Verdict::Append, "producers do not touch each other");
}

#[test]
fn the_last_five_batches_are_duplicates_with_their_original_offsets() {
    let mut partition = Partition::new();
    for batch in 0..7 {
        assert_eq!(partition.sends(7, 0, batch * 10, 10), Verdict::Append);
    }
    for batch in 2..7 {
        let base = i64::from(batch) * 10;
        assert_eq!(partition.sends(7, 0, batch * 10, 10), duplicate(base, base + 10), "batch {batch}");
    }
}

#[test]
fn an_older_duplicate_is_named_as_such_and_a_batch_cut_differently_is_out_of_order() {
    let mut partition = Partition::new();
    for batch in 0..7 {
        partition.sends(7, 0, batch * 10, 10);
    }
    let forgotten =
        |first| Verdict::DuplicateForgotten { first: Sequence(first), oldest_known: Sequence(20) };
    assert_eq!(partition.sends(7, 0, 0, 10), forgotten(0));
    assert_eq!(partition.sends(7, 0, 10, 10), forgotten(10));
    assert_eq!(partition.sends(7, 0, 10, 11), out_of_order(10, 70), "half forgotten, half remembered");
    assert_eq!(partition.sends(7, 0, 20, 9), out_of_order(20, 70));
    assert_eq!(partition.sends(7, 0, 60, 20), out_of_order(60, 70), "half new");
}

#[test]
fn a_sequence_before_the_first_one_seen_is_never_called_a_duplicate() {
    let mut partition = Partition::new();
    assert_eq!(partition.sends(7, 0, 100, 10), Verdict::Append, "no state: any sequence is taken");
    // Batch 90..100 may be a request that was overtaken: answering 46 would make the client drop it.
    assert_eq!(partition.sends(7, 0, 90, 10), out_of_order(90, 110));
}

#[test]
fn an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero() {
    let mut partition = Partition::new();
    partition.sends(7, 3, 0, 10);
    let stale = Verdict::StaleEpoch { found: ProducerEpoch(2), current: ProducerEpoch(3) };
    assert_eq!(partition.sends(7, 2, 10, 1), stale);
    assert_eq!(partition.sends(7, 2, 0, 10), stale);
    let not_at_zero = Verdict::NewEpochNotAtZero { epoch: ProducerEpoch(4), found: Sequence(10) };
    assert_eq!(partition.sends(7, 4, 10, 1), not_at_zero);
    assert_eq!(
        partition.sends(7, 4, 0, 10),
        Verdict::Append,
        "the same sequences in a new epoch are new records"
    );
    assert_eq!(partition.sends(7, 4, 0, 10), duplicate(10, 20));
    assert_eq!(
        partition.sends(7, 3, 10, 1),
        Verdict::StaleEpoch { found: ProducerEpoch(3), current: ProducerEpoch(4) }
    );
}

#[test]
fn sequences_wrap_to_zero_after_the_largest() {
    let mut partition = Partition::new();
    assert_eq!(partition.sends(7, 0, i32::MAX - 4, 5), Verdict::Append);
    assert_eq!(partition.sends(7, 0, 0, 5), Verdict::Append);
    assert_eq!(partition.sends(7, 0, i32::MAX - 4, 5), duplicate(0, 5));

    let mut partition = Partition::new();
    assert_eq!(partition.sends(7, 0, i32::MAX - 1, 10), Verdict::Append, "a batch may wrap within");
    assert_eq!(partition.sends(7, 0, 8, 1), Verdict::Append);
    assert_eq!(partition.sends(7, 0, i32::MAX - 1, 10), duplicate(0, 10));
}

#[test]
fn a_producer_that_was_silent_for_the_expiration_is_unknown_again() {
    let mut partition = Partition::new();
    partition.append(header(7, 0, 0, 10), NOW);
    partition.append(header(8, 0, 0, 10), NOW + 1);
    let states = &mut partition.states;
    assert_eq!(states.check(&header(7, 0, 99, 1), NOW + DAY_MS - 1), out_of_order(99, 10));
    assert_eq!(states.check(&header(7, 0, 99, 1), NOW + DAY_MS), Verdict::Append, "before the sweep too");
    assert_eq!(states.expire(NOW + DAY_MS), 1);
    states.validate();
    assert_eq!(states.len(), 1);
    assert_eq!(states.check(&header(8, 0, 99, 1), NOW + DAY_MS), out_of_order(99, 10));
}

#[test]
fn beyond_the_bound_the_producer_that_appended_longest_ago_is_forgotten() {
    let mut states = ProducerStates::with_bound(DAY_MS, 3);
    for id in [1, 2, 3] {
        states.apply(&header(id, 0, 0, 1), NOW);
    }
    states.apply(&BatchHeader { base_offset: Offset(3), ..header(1, 0, 1, 1) }, NOW);
    states.apply(&header(4, 0, 0, 1), NOW);
    states.validate();
    assert_eq!(states.len(), 3);
    assert_eq!(states.check(&header(2, 0, 50, 1), NOW), Verdict::Append, "2 was the oldest");
    assert_eq!(states.check(&header(1, 0, 50, 1), NOW), out_of_order(50, 2), "1 was used again");
}

#[test]
fn a_transaction_marker_moves_the_epoch_and_no_sequence() {
    let mut partition = Partition::new();
    partition.sends(7, 0, 0, 10);
    let marker = BatchHeader {
        attributes: Attributes(Attributes::CONTROL | Attributes::TRANSACTIONAL),
        ..header(7, 1, -1, 1)
    };
    partition.append(marker, NOW);
    assert_eq!(
        partition.sends(7, 0, 10, 1),
        Verdict::StaleEpoch { found: ProducerEpoch(0), current: ProducerEpoch(1) }
    );
    assert_eq!(partition.sends(7, 1, 5, 1), out_of_order(5, 0));
    assert_eq!(partition.sends(7, 1, 0, 1), Verdict::Append);
    let same_epoch = BatchHeader { attributes: Attributes(Attributes::CONTROL), ..header(7, 1, -1, 1) };
    partition.append(same_epoch, NOW);
    assert_eq!(partition.sends(7, 1, 1, 1), Verdict::Append, "a marker of the same epoch interrupts nothing");
}

#[test]
fn other_versions_and_impossible_snapshots_are_refused() {
    let mut partition = Partition::new();
    partition.sends(7, 0, 0, 10);
    let mut good = Vec::new();
    partition.states.encode(&mut good);
    let with = |place: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[place] = byte;
        ProducerStates::decode(&bytes, DAY_MS, 10).err()
    };
    assert_eq!(with(0, 2), Some(SnapshotError::UnknownVersion { version: 2 }));
    assert_eq!(
        with(4, 0xff),
        Some(SnapshotError::Truncated { bytes: good.len() }),
        "a count beyond the bytes"
    );
    assert!(matches!(with(12, 0x80), Some(SnapshotError::Impossible { producer, .. }) if producer < 0));
    assert!(matches!(with(27, 9), Some(SnapshotError::Impossible { producer: 7, .. })));
    let extra = [good.as_slice(), &[0]].concat();
    assert_eq!(ProducerStates::decode(&extra, DAY_MS, 10), Err(SnapshotError::Trailing { extra: 1 }));
}

/// One producer's step in a random stream.
#[derive(Clone, Debug)]
enum Step {
    Next {
        id: i64,
        count: i32,
    },
    /// Sends the batch again that was sent `back` batches ago.
    Retry {
        id: i64,
        back: usize,
    },
    Skip {
        id: i64,
        by: i32,
    },
    NewEpoch {
        id: i64,
    },
    Zombie {
        id: i64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..4i64;
    prop_oneof![
        6 => (id.clone(), 1..20i32).prop_map(|(id, count)| Step::Next { id, count }),
        4 => (id.clone(), 0..12usize).prop_map(|(id, back)| Step::Retry { id, back }),
        1 => (id.clone(), 1..1000i32).prop_map(|(id, by)| Step::Skip { id, by }),
        1 => id.clone().prop_map(|id| Step::NewEpoch { id }),
        1 => id.prop_map(|id| Step::Zombie { id }),
    ]
}

/// A correct producer: its epoch, its next sequence and what it sent in this epoch, with the offset each landed at.
#[derive(Clone, Debug)]
struct Client {
    epoch: i16,
    next: i32,
    sent: Vec<(i32, i32, i64)>,
}

proptest! {
    /// Each batch of a correct producer lands once; a retry is told where it landed or that it did; snapshots and a replay of the
    /// log give the same verdicts as the live state.
    #[test]
    fn every_batch_lands_exactly_once_however_often_it_is_sent(
        first in prop_oneof![Just(0), Just(i32::MAX - 50)],
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut partition = Partition::new();
        let mut clients = vec![Client { epoch: 0, next: first, sent: Vec::new() }; 4];
        for step in steps {
            match step {
                Step::Next { id, count } => {
                    let (client, end) = (&mut clients[id as usize], partition.end);
                    prop_assert_eq!(partition.sends(id, client.epoch, client.next, count), Verdict::Append);
                    client.sent.push((client.next, count, end));
                    client.next = client.next.wrapping_add(count) & i32::MAX;
                }
                Step::Retry { id, back } => {
                    let client = &clients[id as usize];
                    let Some(&(first, count, base)) = client.sent.iter().rev().nth(back) else { continue };
                    let verdict = partition.sends(id, client.epoch, first, count);
                    if back < BATCHES_PER_PRODUCER {
                        prop_assert_eq!(verdict, duplicate(base, base + i64::from(count)));
                    } else {
                        prop_assert!(matches!(verdict, Verdict::DuplicateForgotten { .. }), "{:?}", verdict);
                    }
                }
                Step::Skip { id, by } => {
                    let client = &clients[id as usize];
                    if client.sent.is_empty() { continue }
                    let skipped = client.next.wrapping_add(by) & i32::MAX;
                    prop_assert_eq!(partition.sends(id, client.epoch, skipped, 1), out_of_order(skipped, client.next));
                }
                Step::NewEpoch { id } => {
                    let client = &mut clients[id as usize];
                    if client.sent.is_empty() { continue }
                    *client = Client { epoch: client.epoch + 1, next: 0, sent: Vec::new() };
                    prop_assert_eq!(partition.sends(id, client.epoch, 0, 1), Verdict::Append);
                    client.sent.push((0, 1, partition.end - 1));
                    client.next = 1;
                }
                Step::Zombie { id } => {
                    let client = &clients[id as usize];
                    if client.epoch == 0 || client.sent.is_empty() { continue }
                    let verdict = partition.sends(id, client.epoch - 1, client.next, 1);
                    prop_assert!(matches!(verdict, Verdict::StaleEpoch { .. }), "{:?}", verdict);
                }
            }
        }
        let mut bytes = Vec::new();
        partition.states.encode(&mut bytes);
        let restored = ProducerStates::decode(&bytes, DAY_MS, PRODUCERS_PER_PARTITION_MAX).expect("own bytes");
        restored.validate();
        let mut replayed = ProducerStates::new(DAY_MS);
        partition.log.iter().for_each(|header| replayed.apply(header, NOW));
        prop_assert_eq!(&replayed, &partition.states);
        let mut again = Vec::new();
        restored.encode(&mut again);
        prop_assert_eq!(&again, &bytes);
        for length in 0..bytes.len() {
            prop_assert!(ProducerStates::decode(&bytes[..length], DAY_MS, 9).is_err(), "{} bytes", length);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(states) = ProducerStates::decode(&bytes, DAY_MS, 5) {
            states.validate();
        }
    }
}
