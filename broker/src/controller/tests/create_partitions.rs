//! More partitions of a topic: what is refused and why, which levels of the format have it, and that log and snapshot hold it.

use super::super::features::FORMAT;
use super::*;

fn assigned(name: &str, partition_count: i32, nodes: &[&[i32]]) -> MorePartitions {
    let assignments = nodes.iter().map(|nodes| nodes.to_vec()).collect();
    MorePartitions { assignments: Some(assignments), ..more(name, partition_count) }
}

fn count(cluster: &Cluster, name: &str) -> Option<i32> {
    cluster.machine.image().topic(name).map(|topic| topic.partition_count)
}

#[test]
fn a_topic_gets_more_partitions_and_keeps_all_else() {
    let mut cluster = Cluster::at_level(4);
    let configs = vec![("max.message.bytes".to_owned(), Some("99".to_owned()))];
    let id = cluster.creates(vec![NewTopic { configs, ..new_topic("a") }, new_topic("b")])[0].id;
    let before = Arc::clone(cluster.machine.image().topic("a").expect("created"));
    assert_eq!(cluster.grow(more("a", 4)), (0, String::new()));
    assert_eq!(cluster.grow(assigned("a", 6, &[&[ME], &[ME]])), (0, String::new()));
    let image = cluster.machine.image();
    let topic = image.topic_by_id(id).expect("it is still there");
    assert_eq!(**topic, TopicImage { partition_count: 6, ..TopicImage::clone(&before) });
    assert_eq!((image.partition_count(), count(&cluster, "b")), (9, Some(3)));
    assert_eq!(cluster.replayed().image, cluster.machine.image);
    cluster.check_snapshots();
    cluster.delete(vec![by_name("a")]);
    assert_eq!(cluster.machine.image().partition_count(), 3);
    cluster.check_snapshots();
}

#[test]
fn what_cannot_grow_is_refused_with_kafkas_errors_and_stays_as_it_is() {
    let mut cluster = Cluster::at_level(4);
    cluster.creates(vec![new_topic("a"), new_topic(OFFSETS_TOPIC_NAME)]);
    let length = cluster.log.len();
    let too_many = PARTITIONS_PER_TOPIC_MAX + 1;
    for (topic, code, part) in [
        (more("nope", 4), 3, "There is no topic"),
        (more("", 4), 3, "There is no topic"),
        (more("a b", 4), 3, "There is no topic"),
        (more(METADATA_TOPIC_NAME, 4), 3, "There is no topic"),
        (more("a", 3), 37, "has 3 partitions already."),
        (more("a", 2), 37, "has 3 partitions and never fewer again, so 2 cannot be."),
        (more("a", 0), 37, "so 0 cannot be."),
        (more("a", i32::MIN), 37, "cannot be."),
        (more("a", too_many), 37, "at most 10000 partitions"),
        (more("a", i32::MAX), 37, "at most 10000 partitions"),
        (more(OFFSETS_TOPIC_NAME, 4), 17, "keeps its 3 partitions"),
        (assigned("a", 5, &[&[ME]]), 39, "2 partitions come to the topic, and the request says of 1"),
        (assigned("a", 4, &[]), 39, "says of 0"),
        (assigned("a", 4, &[&[ME], &[ME]]), 39, "says of 2"),
        (assigned("a", 4, &[&[]]), 39, "partition 3 on no broker"),
        (assigned("a", 4, &[&[7]]), 39, "on broker 7"),
        (assigned("a", 5, &[&[ME], &[7]]), 39, "on broker 7"),
        (assigned("a", 4, &[&[ME, ME]]), 39, "partition 3 on 2 brokers"),
    ] {
        let (found, text) = cluster.grow(topic.clone());
        assert_eq!(found, code, "{topic:?}: {text}");
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert_eq!((cluster.log.len(), count(&cluster, "a")), (length, Some(3)), "nothing was written");
}

#[test]
fn topics_of_one_request_are_judged_each_and_those_named_twice_not_at_all() {
    let mut cluster = Cluster::at_level(4);
    cluster.creates(vec![new_topic("a"), new_topic("b"), new_topic("c")]);
    let asked = || vec![more("a", 4), more("nope", 4), more("b", 5), more("a", 6), more("c", 9)];
    let told = |results: Vec<GrownTopic>| {
        let code = |result: Result<(), Refusal>| result.map_or_else(|refusal| refusal.error.code(), |()| 0);
        results.into_iter().map(|topic| (topic.name, code(topic.result))).collect::<Vec<_>>()
    };
    let expected = [("a", 42), ("nope", 3), ("b", 0), ("c", 0)].map(|(name, code)| (name.to_owned(), code));
    let length = cluster.log.len();
    assert_eq!(told(cluster.grows(asked(), true)), expected);
    assert_eq!(cluster.log.len(), length, "it was only looked at");
    assert_eq!(told(cluster.grows(asked(), false)), expected);
    let counts = ["a", "b", "c"].map(|name| count(&cluster, name));
    assert_eq!(counts, [Some(3), Some(5), Some(9)]);
    assert_eq!(cluster.grows(Vec::new(), false), []);
}

#[test]
fn the_partitions_of_one_request_count_together_against_the_clusters_bound() {
    let mut cluster = Cluster::at_level(4);
    let large = |name: String| NewTopic { partition_count: PARTITIONS_PER_TOPIC_MAX, ..new_topic(&name) };
    let full = PARTITIONS_MAX / u64::from(PARTITIONS_PER_TOPIC_MAX.unsigned_abs());
    cluster.creates((1..full).map(|number| large(format!("large{number}"))).collect());
    cluster.creates(vec![new_topic("a"), new_topic("b")]);
    let half = PARTITIONS_PER_TOPIC_MAX / 2;
    let results = cluster.grows(vec![more("a", half), more("b", half + 1), more("b2", 1)], true);
    assert!(results[0].result.is_ok());
    let refusal = results[1].result.as_ref().expect_err("one too many");
    assert!(refusal.error == ErrorCode::InvalidPartitions, "{refusal:?}");
    assert!(refusal.message.contains("takes 100000 at most, so 4998 more do not fit"), "{refusal:?}");
    assert_eq!(cluster.grow(more("a", half)).0, 0);
    assert_eq!(cluster.grow(more("b", half)).0, 0);
    assert_eq!(cluster.machine.image().partition_count(), PARTITIONS_MAX);
}

#[test]
fn an_older_format_refuses_it_and_says_what_to_do() {
    for level in [1, 2, 3] {
        let mut cluster = Cluster::at_level(level);
        cluster.create(new_topic("a"));
        let (code, text) = cluster.grow(more("a", 4));
        assert_eq!(code, ErrorCode::UnsupportedVersion.code(), "{text}");
        assert!(text.contains(&format!("the cluster runs {level}")), "{text}");
        assert!(text.contains("`ringlog cluster features upgrade`"), "{text}");
        let updates = vec![FeatureUpdate { feature: FORMAT.to_owned(), level: 4, kind: 1 }];
        let request = UpdateFeatures { updates, validate_only: false };
        let raised = cluster.ask(ControllerRequest::UpdateFeatures(request));
        assert_eq!(raised, ControllerReply::FeaturesUpdated(Ok(())));
        assert_eq!(cluster.grow(more("a", 4)).0, 0);
        cluster.check_snapshots();
    }
}

#[test]
fn a_record_that_makes_no_topic_larger_is_refused() {
    let mut cluster = Cluster::at_level(4);
    let id = cluster.creates(vec![new_topic("a")])[0].id;
    for (id, partitions) in [([9; 16], 4), (id.0, 3), (id.0, 2), (id.0, -1)] {
        let record = Record::TopicPartitions(TopicPartitionsRecord { id, partitions }).encode();
        let refused = cluster.machine.replay(Offset(9), &record);
        assert_eq!(refused, Err(ReplayError::Partitions { id: TopicId(id), partitions }));
    }
}
