//! Pages of topics and partitions, without a node.

use proptest::prelude::*;

use super::super::tests::image_of;
use super::*;

/// Topics with the indexes listed, and where the next page begins.
type Listed = (Vec<(String, Vec<i32>)>, Option<(String, i32)>);

fn request<'a>(
    topics: &[&'a str],
    limit: i32,
    cursor: Option<(&'a str, i32)>,
) -> DescribeTopicPartitionsRequest<'a> {
    DescribeTopicPartitionsRequest {
        topics: topics.iter().map(|name| TopicRequest { name }).collect(),
        response_partition_limit: limit,
        cursor: cursor.map(|(topic_name, partition_index)| Cursor { topic_name, partition_index }),
    }
}

fn list(
    image: &MetadataImage,
    topics: &[&str],
    limit: i32,
    cursor: Option<(&str, i32)>,
    partitions_max: i32,
) -> Option<Listed> {
    let page = page(image, &request(topics, limit, cursor), partitions_max)?;
    let listed = page
        .topics
        .iter()
        .map(|(topic, partitions)| (topic.name().to_string(), partitions.clone().collect()));
    Some((listed.collect(), page.next.map(|(name, index)| (name.to_string(), index))))
}

fn listed(topics: &[(&str, &[i32])], next: Option<(&str, i32)>) -> Option<Listed> {
    let topics = topics.iter().map(|(name, indexes)| ((*name).to_owned(), indexes.to_vec()));
    Some((topics.collect(), next.map(|(name, index)| (name.to_owned(), index))))
}

#[test]
fn a_page_ends_with_its_partitions_and_says_where_the_next_begins() {
    let (image, _) = image_of(&[("a1", 3), ("b2", 2)]);
    let all = |limit, cursor| list(&image, &[], limit, cursor, 2000);
    let everything: &[(&str, &[i32])] = &[("a1", &[0, 1, 2]), ("b2", &[0, 1])];
    for limit in [5, 6, i32::MAX] {
        assert_eq!(all(limit, None), listed(everything, None));
    }
    for limit in [1, 0, -1, i32::MIN] {
        assert_eq!(all(limit, None), listed(&[("a1", &[0])], Some(("a1", 1))), "at least one");
    }
    assert_eq!(all(3, None), listed(&[("a1", &[0, 1, 2])], Some(("b2", 0))));
    assert_eq!(all(4, None), listed(&[("a1", &[0, 1, 2]), ("b2", &[0])], Some(("b2", 1))));
    assert_eq!(all(9, Some(("b2", 1))), listed(&[("b2", &[1])], None));
    assert_eq!(
        list(&image, &[], i32::MAX, None, 1),
        listed(&[("a1", &[0])], Some(("a1", 1))),
        "the broker's bound"
    );
}

#[test]
fn a_cursor_may_name_what_is_not_there() {
    let (image, _) = image_of(&[("a1", 3), ("b2", 2)]);
    let all = |cursor| list(&image, &[], 2000, Some(cursor), 2000);
    for behind in ["a1a", "a9", "b"] {
        assert_eq!(all((behind, 7)), listed(&[("b2", &[0, 1])], None), "a topic that is gone: {behind}");
    }
    for index in [3, 4, i32::MAX] {
        assert_eq!(all(("a1", index)), listed(&[("a1", &[]), ("b2", &[0, 1])], None), "{index}");
    }
    assert_eq!(all(("zz", 0)), listed(&[], None));
    assert_eq!(all(("", 5)), listed(&[("a1", &[0, 1, 2]), ("b2", &[0, 1])], None));
    assert_eq!(all(("a1", -1)), None, "nobody was ever told that");
}

#[test]
fn named_topics_come_once_sorted_and_with_their_errors() {
    let (image, ids) = image_of(&[("a1", 3), ("b2", 2), (OFFSETS_TOPIC_NAME, 1)]);
    let some = ["b2", "aa", "a1", "b2"];
    let named = |limit, cursor| list(&image, &some, limit, cursor, 2000);
    assert_eq!(named(9, None), listed(&[("a1", &[0, 1, 2]), ("aa", &[]), ("b2", &[0, 1])], None));
    assert_eq!(
        named(3, None),
        listed(&[("a1", &[0, 1, 2])], Some(("aa", 0))),
        "an unknown topic begins a page"
    );
    assert_eq!(named(9, Some(("aa", 7))), listed(&[("aa", &[]), ("b2", &[0, 1])], None));
    assert_eq!(named(9, Some(("c3", 0))), None, "it is not among those asked for");

    let asked = request(&["a b", "", "aa", "b2", OFFSETS_TOPIC_NAME], 9, None);
    let page = page(&image, &asked, 2000).expect("there is no cursor");
    let mut epochs = [Some(LeaderEpoch(4)), Some(LeaderEpoch(5)), None].into_iter();
    let response = page.response(1, &mut epochs);
    let told = response.topics.iter().map(|topic| (topic.name, topic.error_code, topic.is_internal));
    let expected = [
        ("", 17, false),
        (OFFSETS_TOPIC_NAME, 0, true),
        ("a b", 17, false),
        ("aa", 3, false),
        ("b2", 0, false),
    ];
    assert!(told.eq(expected.map(|(name, error, internal)| (Some(name), error, internal))), "{response:?}");
    let of_b2 = &response.topics[4];
    assert_eq!((of_b2.topic_id, of_b2.topic_authorized_operations), (ids[1], 3576));
    let states: Vec<_> =
        of_b2.partitions.iter().map(|partition| (partition.leader_id, partition.leader_epoch)).collect();
    assert_eq!(states, [(1, 5), (-1, -1)], "the last has no leader");
    assert_eq!(of_b2.partitions[1].offline_replicas.iter().collect::<Vec<_>>(), [1]);
    assert_eq!(of_b2.partitions[0].eligible_leader_replicas.as_ref().map(|replicas| replicas.len()), Some(0));
}

#[test]
fn each_topic_asked_for_is_told_that_the_cursor_is_none() {
    let asked = request(&["b2", "a1", "b2"], 9, Some(("a1", -1)));
    let response = refusal(&asked.topics);
    let told =
        response.topics.iter().map(|topic| (topic.name, topic.error_code, topic.topic_authorized_operations));
    assert!(told.eq(["b2", "a1", "b2"].map(|name| (Some(name), 42, i32::MIN))));
    assert!(response.next_cursor.is_none());
}

proptest! {
    #[test]
    fn all_pages_together_are_all_partitions_each_once_in_order(
        topics in prop::collection::btree_map("[a-c]{1,3}", 1..9_i32, 0..7),
        asked in prop::option::of(prop::collection::vec("[a-c]{1,3}", 1..9)),
        limits in prop::collection::vec(-2..12_i32, 1..5),
        partitions_max in 1..12_i32,
    ) {
        let of_image: Vec<_> = topics.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let (image, _) = image_of(&of_image);
        let names: Vec<&str> = asked.iter().flatten().map(String::as_str).collect();
        let is_wanted = |name: &str| asked.is_none() || names.contains(&name);
        let expected: Vec<(String, i32)> = topics
            .iter()
            .filter(|(name, _)| is_wanted(name))
            .flat_map(|(name, count)| (0..*count).map(|index| (name.clone(), index)))
            .collect();
        let mut found = Vec::new();
        let mut missing = Vec::new();
        let mut cursor: Option<(String, i32)> = None;
        for limit in limits.iter().cycle() {
            let from = cursor.as_ref().map(|(name, index)| (name.as_str(), *index));
            let (page, next) = list(&image, &names, *limit, from, partitions_max).expect("it was told so");
            let count: usize = page.iter().map(|(_, indexes)| indexes.len()).sum();
            prop_assert!(count as i32 <= (*limit).min(partitions_max).max(1), "{page:?}");
            prop_assert!(next.is_none() || count > 0, "each page goes on");
            for (name, indexes) in page {
                if indexes.is_empty() {
                    missing.push(name);
                } else {
                    found.extend(indexes.into_iter().map(|index| (name.clone(), index)));
                }
            }
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        prop_assert_eq!(found, expected);
        let unknown: BTreeSet<&str> = names.iter().copied().filter(|name| !topics.contains_key(*name)).collect();
        prop_assert!(missing.iter().map(String::as_str).eq(unknown), "each unknown name is told once");
    }
}
