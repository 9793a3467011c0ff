//! Assignors: everything is shared out, evenly, and as little as possible moves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};

use super::*;

fn id(number: u8) -> TopicId {
    TopicId([number; 16])
}

fn at(topic: u8, partition: i32) -> TopicPartition {
    TopicPartition { topic: id(topic), partition: PartitionIndex(partition) }
}

fn topic(number: u8, partition_count: i32) -> TopicShape {
    TopicShape { id: id(number), partition_count, racks: None }
}

fn member(name: &str, wants: &[u8], had: &[TopicPartition]) -> Candidate {
    Candidate {
        id: name.into(),
        instance: None,
        rack: None,
        wants: wants.iter().map(|topic| id(*topic)).collect(),
        had: had.into(),
    }
}

fn input(assignor: Assignor, members: Vec<Candidate>, topics: Vec<TopicShape>) -> AssignmentInput {
    AssignmentInput { assignor, members, topics }
}

/// What each member gets, as pairs of topic and partition.
fn shared_out(input: &AssignmentInput) -> Vec<Vec<(u8, i32)>> {
    let pairs =
        |partitions: &[TopicPartition]| partitions.iter().map(|at| (at.topic.0[0], at.partition.0)).collect();
    input.assign().members.iter().map(|(_, partitions)| pairs(partitions)).collect()
}

/// The members as they are once they have what they were given.
fn settled(input: &AssignmentInput) -> Vec<Candidate> {
    let given = input.assign().members;
    let members = input.members.iter().zip(given);
    members.map(|(member, (_, had))| Candidate { had, ..member.clone() }).collect()
}

fn moved(input: &AssignmentInput) -> usize {
    let before: BTreeMap<_, _> = input
        .members
        .iter()
        .flat_map(|member| member.had.iter().map(|at| (*at, Arc::clone(&member.id))))
        .collect();
    let after = input.assign().members;
    let after = after.iter().flat_map(|(member, given)| given.iter().map(move |at| (at, member)));
    after.filter(|(at, member)| before.get(at).is_some_and(|before| before != *member)).count()
}

#[test]
fn range_gives_runs_in_the_order_of_names_and_the_first_get_more() {
    let members = vec![member("a", &[1, 2], &[]), member("b", &[1, 2], &[]), member("c", &[1, 2], &[])];
    let input = input(Assignor::Range, members, vec![topic(1, 4), topic(2, 2)]);
    let expected: [Vec<(u8, i32)>; 3] = [vec![(1, 0), (1, 1), (2, 0)], vec![(1, 2), (2, 1)], vec![(1, 3)]];
    assert_eq!(shared_out(&input), expected);
}

#[test]
fn range_gives_each_topic_to_those_who_want_it() {
    let members = vec![member("a", &[1], &[]), member("b", &[1, 2], &[]), member("c", &[2], &[])];
    let input = input(Assignor::Range, members, vec![topic(1, 2), topic(2, 3)]);
    assert_eq!(shared_out(&input), [vec![(1, 0)], vec![(1, 1), (2, 0), (2, 1)], vec![(2, 2)]]);
}

#[test]
fn range_puts_static_members_first_so_that_new_names_change_nothing() {
    let named =
        |name: &str, instance: &str| Candidate { instance: Some(instance.into()), ..member(name, &[1], &[]) };
    let before = input(Assignor::Range, vec![named("a", "two"), named("b", "one")], vec![topic(1, 2)]);
    assert_eq!(shared_out(&before), [vec![(1, 1)], vec![(1, 0)]]);
    let after = input(Assignor::Range, vec![named("b", "one"), named("z", "two")], vec![topic(1, 2)]);
    assert_eq!(shared_out(&after), [vec![(1, 0)], vec![(1, 1)]]);
}

#[test]
fn uniform_gives_everyone_as_many() {
    let members = vec![member("a", &[1, 2], &[]), member("b", &[1, 2], &[]), member("c", &[1, 2], &[])];
    let input = input(Assignor::Uniform, members, vec![topic(1, 3), topic(2, 4)]);
    assert_eq!(
        shared_out(&input),
        [vec![(1, 0), (2, 0), (2, 3)], vec![(1, 1), (2, 1)], vec![(1, 2), (2, 2)]]
    );
}

#[test]
fn uniform_moves_only_what_a_new_member_needs() {
    let two =
        input(Assignor::Uniform, vec![member("a", &[1], &[]), member("b", &[1], &[])], vec![topic(1, 9)]);
    let mut members = settled(&two);
    members.insert(0, member("0", &[1], &[]));
    let three = input(Assignor::Uniform, members, vec![topic(1, 9)]);
    assert_eq!(moved(&three), 3);
    assert_eq!(shared_out(&three).iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3]);
    // Nothing moves when nothing changed, and the rest is shared when one goes.
    let again = input(Assignor::Uniform, settled(&three), vec![topic(1, 9)]);
    assert_eq!(moved(&again), 0);
    let mut members = settled(&again);
    members.remove(1);
    assert_eq!(moved(&input(Assignor::Uniform, members, vec![topic(1, 9)])), 0);
}

#[test]
fn uniform_evens_out_members_that_want_different_topics() {
    let members = vec![member("a", &[1, 2], &[]), member("b", &[2], &[]), member("c", &[2, 3], &[])];
    let input = input(Assignor::Uniform, members, vec![topic(1, 2), topic(2, 6), topic(3, 1)]);
    let counts: Vec<usize> = shared_out(&input).iter().map(Vec::len).collect();
    assert_eq!(counts, [3, 3, 3]);
}

#[test]
fn partitions_that_are_no_more_and_topics_that_are_not_wanted_any_more_are_given_up() {
    let had = [at(1, 0), at(1, 7), at(2, 0), at(9, 0)];
    for wants in [&[1][..], &[1, 3][..]] {
        let members = vec![member("a", wants, &had), member("b", &[1, 8], &[])];
        let input = input(Assignor::Uniform, members, vec![topic(1, 2), topic(2, 1)]);
        assert_eq!(shared_out(&input), [vec![(1, 0)], vec![(1, 1)]]);
    }
}

#[test]
fn members_get_partitions_of_their_rack_where_racks_are_known() {
    let near = |name: &str, rack: &str, wants: &[u8]| Candidate {
        rack: Some(rack.into()),
        ..member(name, wants, &[])
    };
    let racks: Arc<[Vec<Arc<str>>]> =
        ["x", "y", "x", "y"].iter().map(|rack| vec![Arc::from(*rack)]).collect();
    let shape = TopicShape { racks: Some(racks), ..topic(1, 4) };
    for other in [&[1][..], &[1, 2][..]] {
        let members = vec![near("a", "y", &[1]), near("b", "x", other)];
        let input = input(Assignor::Uniform, members, vec![shape.clone()]);
        assert_eq!(shared_out(&input), [vec![(1, 1), (1, 3)], vec![(1, 0), (1, 2)]]);
    }
}

#[test]
fn nobody_and_nothing_are_shared_out_too() {
    for assignor in ASSIGNORS {
        assert_eq!(shared_out(&input(assignor, vec![], vec![topic(1, 2)])), [[]; 0]);
        assert_eq!(shared_out(&input(assignor, vec![member("a", &[1], &[])], vec![])), [[]]);
        assert_eq!(Assignor::of_name(assignor.name()), Some(assignor));
    }
    assert_eq!(Assignor::of_name("Range"), None);
}

/// Random groups: members want some of five topics and had some partitions, perhaps the same ones.
fn groups() -> impl Strategy<Value = AssignmentInput> {
    let topics = proptest::collection::vec(1..9_i32, 0..5);
    let members = proptest::collection::vec(
        (
            proptest::collection::btree_set(0..6_u8, 0..6),
            proptest::collection::vec((0..6_u8, 0..9_i32), 0..8),
        ),
        0..7,
    );
    (any::<bool>(), any::<bool>(), topics, members).prop_map(|(ranged, alike, counts, members)| {
        let topics = (0_u8..).zip(counts).map(|(number, count)| topic(number, count));
        let first: Vec<u8> =
            members.first().map(|(wants, _)| wants.iter().copied().collect()).unwrap_or_default();
        let members = members.into_iter().enumerate().map(|(index, (wants, had))| {
            let wants: Vec<u8> = if alike { first.clone() } else { wants.into_iter().collect() };
            let had: BTreeSet<_> = had.into_iter().map(|(topic, partition)| at(topic, partition)).collect();
            member(&format!("{index}"), &wants, &had.into_iter().collect::<Vec<_>>())
        });
        let assignor = if ranged { Assignor::Range } else { Assignor::Uniform };
        input(assignor, members.collect(), topics.collect())
    })
}

proptest! {
    #[test]
    fn what_is_wanted_is_given_to_exactly_one_who_wants_it(input in groups()) {
        let assignment = input.assign();
        let mut owners = BTreeMap::new();
        for ((id, given), member) in assignment.members.iter().zip(&input.members) {
            prop_assert_eq!(id, &member.id);
            prop_assert!(given.is_sorted());
            for at in given.iter() {
                prop_assert!(member.wants.contains(&at.topic));
                prop_assert!(owners.insert(*at, id).is_none());
            }
        }
        for topic in &input.topics {
            let wanted = input.members.iter().any(|member| member.wants.contains(&topic.id));
            let count = owners.keys().filter(|at| at.topic == topic.id).count();
            prop_assert_eq!(count, if wanted { partitions_of(topic) } else { 0 });
        }
    }

    #[test]
    fn nobody_could_be_given_one_from_somebody_who_has_two_more(input in groups()) {
        prop_assume!(input.assignor == Assignor::Uniform);
        let given = input.assign().members;
        for (_, rich) in &given {
            for (poor, member) in given.iter().map(|(_, given)| given).zip(&input.members) {
                let could = rich.iter().any(|at| member.wants.contains(&at.topic));
                prop_assert!(!could || rich.len() <= poor.len() + 1, "{:?}", given);
            }
        }
    }

    #[test]
    fn what_is_settled_stays(input in groups()) {
        let again = AssignmentInput { members: settled(&input), ..input.clone() };
        prop_assert_eq!(again.assign(), input.assign());
    }
}

/// Not a measurement: a debug build on a busy machine. The figure is taken by `examples/group_machine`.
#[test]
fn a_large_group_is_shared_out_in_no_time() {
    let topics: Vec<TopicShape> = (0..100).map(|number| topic(number, 100)).collect();
    let wants: Vec<u8> = (0..100).collect();
    for assignor in ASSIGNORS {
        for alike in [true, false] {
            let members = (0..1_000_usize).map(|index| {
                let from = if alike { 0 } else { index % 50 };
                member(&format!("{index:04}"), &wants[from..], &[])
            });
            let input = input(assignor, members.collect(), topics.clone());
            let begin = Instant::now();
            let total: usize = input.assign().members.iter().map(|(_, given)| given.len()).sum();
            assert_eq!(total, 10_000);
            assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        }
    }
}
