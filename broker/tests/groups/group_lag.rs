//! The lag of consumer groups in `/metrics` of a whole node on the simulation, over one core and several: it is there, it moves, it is
//! bounded, and what is deleted has none.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_bench::client::Client;
use ringlog_bench::client::producer::{Delivered, OutBatch, Producer, ProducerConfig};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};

use crate::support::clients;
use crate::support::clients::TOPIC;
use crate::support::consumer::Consumer;
use crate::support::group_scene::{GROUPS, PARTITION_COUNT, Scene};

/// A look comes every ten seconds, and what it saw is published within one.
const NEXT_LOOK: Duration = Duration::from_secs(12);
const DAY_SECONDS: f64 = 86_400.0;

/// Whoever works in a scene.
fn client(scene: &Scene) -> Client {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move { clients::connect(&io, host).await.expect("it serves") })
}

/// So many records to each partition, in one batch each.
fn produce(scene: &Scene, records: usize) {
    produce_to(scene, TOPIC, PARTITION_COUNT, records, 3);
}

fn produce_to(scene: &Scene, topic: &str, partitions: i32, records: usize, value_bytes: usize) {
    let (client, topic): (Client, Rc<str>) = (client(scene), topic.into());
    let timestamp = scene.io.wall_now_ms();
    scene.run(async move {
        let told = |(): (), result: Result<Delivered, _>| assert!(result.is_ok(), "{:?}", result.err());
        let producer = Producer::start(&client, ProducerConfig::default(), told).await.expect("it serves");
        let value = vec![b'v'; value_bytes];
        for partition in 0..partitions {
            let mut builder = BatchBuilder::new();
            for _ in 0..records {
                let record = NewRecord { timestamp, key: Some(b"any"), value: Some(&value), headers: &[] };
                builder.append(&record).expect("small records fit");
            }
            let options = BatchOptions {
                producer: producer.stamp(&topic, partition, records as u32),
                ..BatchOptions::default()
            };
            let bytes = Bytes::from(builder.finish(&options).expect("it has records"));
            producer.room(&topic, partition).await;
            producer.send(vec![OutBatch { topic: Rc::clone(&topic), partition, bytes, tag: () }]);
        }
        producer.flush().await;
    });
}

/// The same offset of all partitions, as nobody.
fn commit(scene: &Scene, group: &str, offset: i64) {
    commit_to(scene, group, TOPIC, PARTITION_COUNT, offset);
}

fn commit_to(scene: &Scene, group: &str, topic: &str, partitions: i32, offset: i64) {
    let (client, group) = (client(scene), group.to_owned());
    let offsets = (0..partitions).map(|partition| ((topic.to_owned(), partition), offset)).collect();
    scene.run(async move { client.commit_group_offsets(&group, &offsets).await.expect("it may") });
}

/// What each group shows in this family.
fn by_group(text: &str, family: &str) -> BTreeMap<String, f64> {
    let prefix = format!("{family}{{group=\"");
    let lines = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once("\"} "));
    lines.map(|(group, value)| (group.to_owned(), value.parse().expect("a number"))).collect()
}

/// What each topic of each group shows in this family; none twice.
fn by_topic(text: &str, family: &str) -> BTreeMap<(String, String), f64> {
    let prefix = format!("{family}{{group=\"");
    let mut shown = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(&prefix)) {
        let (names, value) = line.split_once("\"} ").expect("labels and a value");
        let (group, topic) = names.split_once("\",topic=\"").expect("two labels");
        let earlier = shown.insert((group.to_owned(), topic.to_owned()), value.parse().expect("a number"));
        assert_eq!(earlier, None, "{line}");
    }
    shown
}

fn single(text: &str, family: &str) -> Option<f64> {
    let prefix = format!("{family} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&prefix))?;
    Some(value.parse().expect("a number"))
}

fn after_the_next_look(scene: &Scene) -> String {
    scene.pass(NEXT_LOOK);
    scene.node.scrape()
}

#[test]
fn lag_is_shown_moves_and_goes_with_its_group_over_all_cores() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        produce(&scene, 10);
        for (group, offset) in GROUPS.iter().zip(0..) {
            commit(&scene, group, offset);
        }
        let text = after_the_next_look(&scene);
        let lags = by_group(&text, "ringlog_group_lag_records");
        let expected = GROUPS
            .iter()
            .zip(0..)
            .map(|(group, offset)| ((*group).to_owned(), f64::from(PARTITION_COUNT * (10 - offset))));
        assert_eq!(lags, expected.collect(), "{core_count} cores");
        assert_eq!(single(&text, "ringlog_groups_lagging"), Some(6.0));
        assert_eq!(single(&text, "ringlog_groups_lag_records"), Some(lags.values().sum()));
        assert_eq!(single(&text, "ringlog_groups_lag_records_max"), Some(lags["g0"]));
        let waited = by_group(&text, "ringlog_group_lag_seconds");
        let left = by_group(&text, "ringlog_group_lag_retention_seconds");
        for group in GROUPS {
            assert!((0.0..25.0).contains(&waited[group]), "{waited:?}");
            let retention = waited[group] + left[group];
            assert!((retention - 7.0 * DAY_SECONDS).abs() < 0.01, "the default: {retention}");
        }

        // One goes on, one has all, the others stand; more comes.
        commit(&scene, "g0", 9);
        commit(&scene, "g1", 20);
        produce(&scene, 10);
        let text = after_the_next_look(&scene);
        let lags = by_group(&text, "ringlog_group_lag_records");
        let partitions = f64::from(PARTITION_COUNT);
        assert_eq!((lags["g0"], lags["g1"], lags["g5"]), (11.0 * partitions, 0.0, 15.0 * partitions));
        let later = by_group(&text, "ringlog_group_lag_seconds");
        assert_eq!(later["g1"], 0.0);
        assert!(later["g5"] > waited["g5"] + 8.0, "the same record waits on: {waited:?}, {later:?}");
        let left = by_group(&text, "ringlog_group_lag_retention_seconds");
        assert!(!left.contains_key("g1") && left.contains_key("g5"), "nothing of it can be taken");
        let catch_up = by_group(&text, "ringlog_group_lag_catch_up_seconds");
        assert_eq!((catch_up["g1"], catch_up["g5"]), (0.0, f64::INFINITY));
        let consumed = by_group(&text, "ringlog_group_lag_consumed_per_second");
        let produced = by_group(&text, "ringlog_group_lag_produced_per_second");
        assert!((consumed["g0"] / produced["g0"] - 0.9).abs() < 0.01, "{consumed:?} {produced:?}");

        let client = client(&scene);
        scene.run(async move { client.delete_group("g2").await.expect("it may") });
        let text = after_the_next_look(&scene);
        let groups: Vec<String> = by_group(&text, "ringlog_group_lag_records").into_keys().collect();
        assert_eq!(groups, ["g0", "g1", "g3", "g4", "g5"]);
        scene.stop();
    }
}

#[test]
fn a_lag_goes_with_its_topic_and_knows_what_retention_took() {
    let scene = Scene::new(11, 2);
    produce(&scene, 10);
    let written_before = scene.io.wall_now_ms();
    scene.pass(Duration::from_secs(60));
    produce(&scene, 10);
    commit(&scene, "g0", 4);
    let deleting = client(&scene);
    scene.run(async move {
        let before = BTreeMap::from([(0, 10), (1, 7)]);
        deleting.delete_records(TOPIC, &before).await.expect("it may");
    });
    let text = after_the_next_look(&scene);
    let partitions = f64::from(PARTITION_COUNT);
    assert_eq!(by_group(&text, "ringlog_group_lag_records")["g0"], 16.0 * partitions);
    assert_eq!(by_group(&text, "ringlog_group_lag_lost_records")["g0"], 9.0);
    let waited = by_group(&text, "ringlog_group_lag_seconds")["g0"];
    let most = (scene.io.wall_now_ms() - written_before) as f64 / 1e3;
    assert!((60.0..=most + 1.0).contains(&waited), "{waited} of {most}");
    let deleting = client(&scene);
    scene.run(async move { deleting.delete_topic(TOPIC).await.expect("it may") });
    let text = after_the_next_look(&scene);
    assert!(by_group(&text, "ringlog_group_lag_records").is_empty(), "{text}");
    for family in ["ringlog_groups_lagging", "ringlog_groups_lag_records", "ringlog_groups_lag_shown"] {
        assert_eq!(single(&text, family), Some(0.0), "{family}");
    }
    scene.stop();
}

#[test]
fn retention_by_size_is_foreseen_while_the_log_grows_and_comes() {
    const VALUE_BYTES: usize = 700_000;
    const RETENTION_BYTES: f64 = 3e6;
    let scene = Scene::new(14, 2);
    let sized = [("retention.ms", "-1"), ("retention.bytes", "3000000"), ("segment.bytes", "1048576")];
    let compacted = [("cleanup.policy", "compact"), ("retention.ms", "1"), ("retention.bytes", "1")];
    scene.create_with("sized", 1, &sized);
    scene.create_with("kept", 1, &compacted);
    // Each batch closes the segment before it.
    let more = |batches: u32| {
        for _ in 0..batches {
            ["sized", "kept"].iter().for_each(|topic| produce_to(&scene, topic, 1, 1, VALUE_BYTES));
        }
    };
    more(1);
    commit_to(&scene, "g0", "sized", 1, 0);
    commit_to(&scene, "g1", "kept", 1, 0);
    let family = "ringlog_group_lag_retention_seconds";
    let text = after_the_next_look(&scene);
    assert_eq!(
        by_group(&text, "ringlog_group_lag_records"),
        [("g0".to_owned(), 1.0), ("g1".to_owned(), 1.0)].into()
    );
    assert_eq!(by_group(&text, family), BTreeMap::new(), "the pace is not known yet");

    let foreseen = |text: &str, following_batches: usize| {
        let left = by_group(text, family);
        let pace = by_group(text, "ringlog_group_lag_produced_per_second")["g0"];
        let missing_bytes = RETENTION_BYTES - (following_batches * VALUE_BYTES) as f64;
        let expected = missing_bytes / (pace * VALUE_BYTES as f64);
        assert!((left["g0"] / expected - 1.0).abs() < 0.01, "{left:?} and not {expected}");
        assert!(!left.contains_key("g1"), "by compaction nothing goes");
    };
    more(1);
    foreseen(&after_the_next_look(&scene), 1);

    // Nothing comes for so long that the trend is nought.
    scene.pass(Duration::from_secs(120));
    let text = after_the_next_look(&scene);
    assert_eq!(by_group(&text, "ringlog_group_lag_produced_per_second")["g0"], 0.0);
    assert_eq!(by_group(&text, family), BTreeMap::new(), "a log that does not grow");

    more(3);
    foreseen(&after_the_next_look(&scene), 4);
    more(1);
    let text = after_the_next_look(&scene);
    let lost = by_group(&text, "ringlog_group_lag_lost_records");
    assert_eq!((lost["g0"], lost["g1"]), (1.0, 0.0));
    scene.stop();
}

#[test]
fn a_groups_lag_is_that_of_its_topics_over_all_cores() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(20 + core_count), core_count);
        scene.create("tea", 3);
        scene.pass(Duration::from_secs(30));
        produce_to(&scene, "tea", 3, 5, 3);
        scene.pass(Duration::from_secs(30));
        produce(&scene, 10);
        commit(&scene, "g0", 4);
        commit_to(&scene, "g0", "tea", 3, 0);
        commit(&scene, "g1", 10);
        let text = after_the_next_look(&scene);
        let place = |group: &str, topic: &str| (group.to_owned(), topic.to_owned());
        let lags = by_topic(&text, "ringlog_group_topic_lag_records");
        let expected =
            [(place("g0", TOPIC), 48.0), (place("g0", "tea"), 15.0), (place("g1", TOPIC), 0.0)].into();
        assert_eq!(lags, expected, "{core_count} cores");
        assert_eq!(by_group(&text, "ringlog_group_lag_records")["g0"], 63.0);
        let waited = by_topic(&text, "ringlog_group_topic_lag_seconds");
        let oldest = by_group(&text, "ringlog_group_lag_seconds")["g0"];
        assert_eq!((waited[&place("g0", "tea")], waited[&place("g1", TOPIC)]), (oldest, 0.0));
        assert!(waited[&place("g0", TOPIC)] < oldest - 29.0, "{waited:?}");
        let left = by_topic(&text, "ringlog_group_topic_lag_retention_seconds");
        let first = by_group(&text, "ringlog_group_lag_retention_seconds")["g0"];
        assert_eq!((left.len(), left[&place("g0", "tea")]), (2, first));

        let deleting = client(&scene);
        scene.run(async move { deleting.delete_topic("tea").await.expect("it may") });
        let text = after_the_next_look(&scene);
        let lags = by_topic(&text, "ringlog_group_topic_lag_records");
        assert_eq!(lags, [(place("g0", TOPIC), 48.0), (place("g1", TOPIC), 0.0)].into());
        scene.stop();
    }
}

#[test]
fn of_many_topics_those_that_lag_most_are_shown_and_the_others_counted() {
    const NAMES: [&str; 20] = [
        "t00", "t01", "t02", "t03", "t04", "t05", "t06", "t07", "t08", "t09", "t10", "t11", "t12", "t13",
        "t14", "t15", "t16", "t17", "t18", "t19",
    ];
    let scene = Scene::new(15, 3);
    for (topic, number) in NAMES.iter().zip(0..) {
        scene.create(topic, 1);
        produce_to(&scene, topic, 1, 20, 3);
        commit_to(&scene, "wide", topic, 1, number);
    }
    let text = after_the_next_look(&scene);
    let lags = by_topic(&text, "ringlog_group_topic_lag_records");
    let expected = NAMES
        .iter()
        .zip(0..)
        .map(|(topic, number)| (("wide".to_owned(), (*topic).to_owned()), f64::from(20 - number)));
    assert_eq!(lags, expected.take(16).collect());
    assert_eq!(single(&text, "ringlog_groups_lag_topics_shown"), Some(16.0));
    assert_eq!(single(&text, "ringlog_groups_lag_topics_left_out"), Some(4.0));
    // Of five other groups all topics lag alike: 16 of each are wanted, 64 are shown of all.
    for (group, topic) in GROUPS[..5].iter().flat_map(|group| NAMES.map(|topic| (group, topic))) {
        commit_to(&scene, group, topic, 1, 0);
    }
    let text = after_the_next_look(&scene);
    let lags = by_topic(&text, "ringlog_group_topic_lag_records");
    let expected = GROUPS[..4]
        .iter()
        .flat_map(|group| NAMES[..16].iter().map(|topic| (((*group).to_owned(), (*topic).to_owned()), 20.0)));
    assert_eq!(lags, expected.collect());
    assert_eq!(single(&text, "ringlog_groups_lag_topics_left_out"), Some(6.0 * 20.0 - 64.0));
    scene.stop();
}

#[test]
fn of_many_groups_those_that_lag_most_are_shown_and_all_are_in_the_sums() {
    let scene = Scene::new(12, 3);
    produce(&scene, 50);
    for number in 0..50 {
        commit(&scene, &format!("many-{number:02}"), number);
    }
    let text = after_the_next_look(&scene);
    let lags = by_group(&text, "ringlog_group_lag_records");
    let expected: Vec<String> = (0..32).map(|number| format!("many-{number:02}")).collect();
    assert_eq!(lags.into_keys().collect::<Vec<_>>(), expected);
    assert_eq!(single(&text, "ringlog_groups_lag_left_out"), Some(18.0));
    let all = PARTITION_COUNT * (1..=50).sum::<i32>();
    assert_eq!(single(&text, "ringlog_groups_lag_records"), Some(f64::from(all)));
    // Every group has a record that waits in each partition: they take turns, and all are known before long.
    scene.pass(NEXT_LOOK * 3);
    let waited = by_group(&scene.node.scrape(), "ringlog_group_lag_seconds");
    assert_eq!(waited.len(), 32, "{waited:?}");
    scene.stop();
}

#[test]
fn members_of_both_protocols_are_counted() {
    let scene = Scene::new(13, 2);
    produce(&scene, 10);
    commit(&scene, "g2", 3);
    let mut classic = scene.member("g0");
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let mut consumer = Consumer::connect(&io, host, "g1", "one").await.expect("it serves");
        classic.own().await.expect("it joins");
        consumer.own(PARTITION_COUNT as usize).await.expect("it joins");
        classic.commit(TOPIC, 3, 1).await.expect("it may");
        consumer.commit(TOPIC, 3, 2).await.expect("it may");
        for _ in 0..NEXT_LOOK.as_secs() {
            classic.heartbeat().await.expect("it is a member");
            consumer.beat(|_| ()).await.expect("it is a member");
            io.sleep(Duration::from_secs(1)).await;
        }
    });
    let text = scene.node.scrape();
    let members = by_group(&text, "ringlog_group_lag_members");
    assert_eq!(members, [("g0", 1.0), ("g1", 1.0), ("g2", 0.0)].map(|(g, n)| (g.to_owned(), n)).into());
    let lags = by_group(&text, "ringlog_group_lag_records");
    assert_eq!((lags["g0"], lags["g1"]), (9.0, 8.0));
    scene.stop();
}
