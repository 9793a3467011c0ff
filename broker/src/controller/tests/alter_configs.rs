//! What altering configs comes to: each rule once, and that all of a resource's change happens or nothing.

use super::*;
use crate::config::layers::{ConfigSource, Overrides};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SET: i8 = 0;
pub(super) const DELETE: i8 = 1;
pub(super) const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(super) fn step(key: &str, operation: i8, value: Option<&str>) -> ConfigStep {
    ConfigStep { key: key.to_owned(), operation, value: value.map(str::to_owned) }
}

pub(super) fn set(key: &str, value: &str) -> ConfigStep {
    step(key, SET, Some(value))
}

pub(super) fn each(kind: i8, name: &str, steps: Vec<ConfigStep>) -> AlteredResource {
    AlteredResource { kind, name: name.to_owned(), change: ConfigChange::Each(steps) }
}

pub(super) fn replace(kind: i8, name: &str, configs: &[(&str, Option<&str>)]) -> AlteredResource {
    let configs = configs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
    AlteredResource { kind, name: name.to_owned(), change: ConfigChange::Replace(configs.collect()) }
}

impl Cluster {
    fn with_orders() -> Cluster {
        let mut cluster = Cluster::new();
        assert_eq!(cluster.create(new_topic("orders")).0, 0);
        cluster
    }

    pub(super) fn alters(
        &mut self,
        resources: Vec<AlteredResource>,
        validate_only: bool,
    ) -> Vec<Result<(), Refusal>> {
        match self.ask(ControllerRequest::AlterConfigs(AlterConfigs { resources, validate_only })) {
            ControllerReply::ConfigsAltered(results) => results,
            other => panic!("{other:?}"),
        }
    }

    /// Error number and text of the one resource. What is refused changes nothing.
    pub(super) fn alter(&mut self, resource: AlteredResource) -> (i16, String) {
        let before = self.machine.image();
        match self.alters(vec![resource], false).remove(0) {
            Ok(()) => (0, String::new()),
            Err(Refusal { error, message }) => {
                assert_eq!(self.machine.image(), before, "a refused change changes nothing");
                (error.code(), message)
            }
        }
    }

    fn topic_step(&mut self, steps: Vec<ConfigStep>) -> (i16, String) {
        self.alter(each(TOPIC, "orders", steps))
    }

    fn overrides(&self) -> Vec<(String, String)> {
        let image = self.machine.image();
        pairs(&image.topic("orders").expect("it exists").overrides)
    }

    fn config(&self) -> TopicConfig {
        self.machine.image().topic("orders").expect("it exists").config.clone()
    }
}

pub(super) fn pairs(overrides: &Overrides) -> Vec<(String, String)> {
    overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

pub(super) fn owned(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_topic_works_by_what_was_set_until_it_is_deleted() {
    let mut cluster = Cluster::with_orders();
    let unset = cluster.config();
    let steps = vec![set("retention.ms", " 5 "), set("message.timestamp.type", "LogAppendTime")];
    assert_eq!(cluster.topic_step(steps).0, 0);
    assert_eq!(
        cluster.overrides(),
        owned(&[("message.timestamp.type", "LogAppendTime"), ("retention.ms", "5")])
    );
    assert_eq!(cluster.config().retention_ms, Some(5));
    assert_ne!(cluster.config().timestamp_type, unset.timestamp_type);
    assert_eq!(cluster.topic_step(vec![step("message.timestamp.type", DELETE, None)]).0, 0);
    assert_eq!(cluster.overrides(), owned(&[("retention.ms", "5")]), "the other stays");
    // Kafka takes these too: there is nothing to delete.
    for key in ["segment.ms", "no.such.key"] {
        assert_eq!(cluster.topic_step(vec![step(key, DELETE, None)]).0, 0);
    }
    assert_eq!(cluster.topic_step(vec![step("retention.ms", DELETE, Some("ignored"))]).0, 0);
    assert_eq!(cluster.config(), unset);
}

#[test]
fn replacing_sets_these_and_no_others() {
    let mut cluster = Cluster::with_orders();
    cluster.topic_step(vec![set("retention.ms", "5"), set("segment.ms", "6")]);
    let configs = [("retention.ms", Some("7")), ("max.message.bytes", Some("8"))];
    assert_eq!(cluster.alter(replace(TOPIC, "orders", &configs)).0, 0);
    assert_eq!(cluster.overrides(), owned(&[("max.message.bytes", "8"), ("retention.ms", "7")]));
    assert_eq!(cluster.alter(replace(TOPIC, "orders", &[])).0, 0);
    assert!(cluster.overrides().is_empty());
}

#[test]
fn one_bad_config_refuses_its_resource_and_no_other() {
    let mut cluster = Cluster::with_orders();
    cluster.create(new_topic("clicks"));
    let bad = vec![set("segment.ms", "6"), set("retention.ms", "soon")];
    let good = vec![set("segment.ms", "7")];
    let results = cluster.alters(vec![each(TOPIC, "orders", bad), each(TOPIC, "clicks", good)], false);
    let refusal = results[0].as_ref().expect_err("it is bad");
    assert_eq!(refusal.error.code(), 40);
    assert_eq!(
        refusal.message,
        "value 'soon' of topic config 'retention.ms' is refused: it takes a whole number, -1 or more; correct it, or leave \
         it out to use the default"
    );
    assert_eq!(results[1], Ok(()));
    assert!(cluster.overrides().is_empty());
    assert_eq!(cluster.machine.image().topic("clicks").map(|topic| topic.config.segment_ms), Some(7));
}

#[test]
fn what_only_validates_is_judged_and_changes_nothing() {
    let mut cluster = Cluster::with_orders();
    let before = cluster.machine.image();
    let good = each(TOPIC, "orders", vec![set("retention.ms", "5")]);
    assert_eq!(cluster.alters(vec![good], true), vec![Ok(())]);
    let bad = each(TOPIC, "orders", vec![set("retention.ms", "soon")]);
    assert!(cluster.alters(vec![bad], true)[0].is_err());
    assert_eq!(cluster.machine.image(), before);
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let mut cluster = Cluster::with_orders();
    cluster.topic_step(vec![set("retention.ms", "5")]);
    let written = cluster.log.len();
    cluster.topic_step(vec![set("retention.ms", "5")]);
    cluster.topic_step(Vec::new());
    cluster.topic_step(vec![step("segment.ms", DELETE, None)]);
    assert_eq!(cluster.log.len(), written);
}

/// The numbers are those of Kafka 4.4.
#[test]
fn bad_requests_are_refused_with_kafkas_numbers() {
    let mut cluster = Cluster::with_orders();
    for (resource, code, part) in [
        (each(TOPIC, "nobody", vec![set("retention.ms", "1")]), 3, "no topic 'nobody'"),
        (each(TOPIC, "a b", vec![set("retention.ms", "1")]), 17, "The topic name 'a b'"),
        (each(TOPIC, "", vec![set("retention.ms", "1")]), 42, "A topic has a name"),
        (each(TOPIC, "orders", vec![step("retention.ms", SET, None)]), 42, "is given no value"),
        (each(TOPIC, "orders", vec![step("retention.ms", APPEND, None)]), 42, "is given no value"),
        (each(TOPIC, "orders", vec![set("segment.ms", "1"), set("segment.ms", "2")]), 42, "twice"),
        (each(TOPIC, "orders", vec![set("no.such.key", "1")]), 40, "unknown topic config 'no.such.key'"),
        (each(TOPIC, "orders", vec![set("cleanup.policy", "compress")]), 40, "any of compact, delete"),
        (
            each(TOPIC, "orders", vec![step("segment.ms", APPEND, Some("1"))]),
            40,
            "Config 'segment.ms' is no list, and APPEND needs one.",
        ),
        (each(TOPIC, "orders", vec![step("segment.ms", SUBTRACT, Some("1"))]), 40, "SUBTRACT needs one"),
        (each(TOPIC, "orders", vec![step("no.such.key", APPEND, Some("1"))]), 40, "unknown topic config"),
        (each(TOPIC, "orders", vec![step("segment.ms", 9, Some("1"))]), 42, "9 is no operation"),
        (replace(TOPIC, "orders", &[("retention.ms", None)]), 42, "is given no value"),
        (replace(TOPIC, "orders", &[("retention.ms", Some("1")); 2]), 42, "twice"),
        (each(BROKER, "7", vec![set("message.max.bytes", "1")]), 42, "no broker 7; broker 1 is"),
        (each(BROKER, "x", vec![set("message.max.bytes", "1")]), 42, "'x' is none"),
        (each(BROKER, "1", vec![set("message.max.bytes", "many")]), 42, "'many'"),
        (
            each(BROKER, "1", vec![set("node.id", "9")]),
            42,
            "broker config 'node.id' cannot change while the broker runs",
        ),
        (each(BROKER, "", vec![set("delete.topic.enable", "false")]), 42, "while the broker runs"),
        (each(BROKER, "1", vec![set("no.such.key", "1")]), 40, "unknown broker config"),
        (each(BROKER, "1", vec![step("message.max.bytes", APPEND, Some("1"))]), 40, "APPEND needs one"),
        (each(8, "1", vec![set("kafka", "WARN")]), 42, "BROKER_LOGGER"),
        (each(16, "x", Vec::new()), 42, "CLIENT_METRICS"),
        (each(1, "x", Vec::new()), 42, "no resource type 1"),
        (each(-3, "x", Vec::new()), 42, "no resource type -3"),
    ] {
        let (found, text) = cluster.alter(resource.clone());
        assert_eq!(found, code, "{resource:?}: {text}");
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let twice = vec![each(TOPIC, "orders", Vec::new()), each(TOPIC, "orders", vec![set("segment.ms", "1")])];
    assert!(cluster.alters(twice, false).iter().all(Result::is_err));
    assert!(cluster.overrides().is_empty());
}

#[test]
fn a_list_begins_as_its_default_and_takes_each_item_once() {
    let mut cluster = Cluster::with_orders();
    let policy = |cluster: &Cluster| cluster.overrides().first().map(|(_, value)| value.clone());
    assert_eq!(cluster.topic_step(vec![step("cleanup.policy", APPEND, Some("delete, delete"))]).0, 0);
    assert_eq!(policy(&cluster).as_deref(), Some("delete"));
    assert_eq!(cluster.topic_step(vec![step("cleanup.policy", SUBTRACT, Some("compact"))]).0, 0);
    assert_eq!(policy(&cluster).as_deref(), Some("delete"));
    for (operation, value, left) in [(APPEND, "compact", "delete,compact"), (SUBTRACT, "delete", "compact")] {
        assert_eq!(cluster.topic_step(vec![step("cleanup.policy", operation, Some(value))]).0, 0);
        assert_eq!(policy(&cluster).as_deref(), Some(left));
    }
}

/// Kafka's words.
#[test]
fn a_lag_beyond_its_end_is_40_whoever_sets_which() {
    let mut cluster = Cluster::new();
    let text =
        "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (8)".to_owned();
    let lag = |name: &str, value: &str| (format!("{name}.compaction.lag.ms"), Some(value.to_owned()));
    let both = vec![lag("min", "9"), lag("max", "8")];
    assert_eq!(cluster.create(NewTopic { configs: both, ..new_topic("orders") }), (40, text.clone()));
    let min = vec![lag("min", "9"), ("cleanup.policy".to_owned(), Some("compact".to_owned()))];
    assert_eq!(cluster.create(NewTopic { configs: min, ..new_topic("orders") }).0, 0);
    let of_broker = cluster.alter(each(4, "", vec![set("log.cleaner.max.compaction.lag.ms", "8")]));
    assert_eq!(of_broker.0, 0);
    let altered = cluster.alter(each(TOPIC, "orders", vec![set("segment.bytes", "1048576")]));
    assert_eq!(altered, (40, text));
    let image = cluster.machine.image();
    let config = image.topic("orders").map(|topic| topic.config.clone()).expect("it was made");
    assert_eq!(config.segment_ms, 8, "a segment is closed when its records must be compacted");
    assert_eq!(config.compaction.map(|found| (found.min_lag_ms, found.max_lag_ms)), Some((9, 8)));
}

#[test]
fn topics_without_a_value_of_their_own_follow_the_broker() {
    let mut cluster = Cluster::with_orders();
    cluster.create(NewTopic {
        configs: vec![("max.message.bytes".to_owned(), Some("77".to_owned()))],
        ..new_topic("small")
    });
    let sizes = |cluster: &Cluster| {
        let image = cluster.machine.image();
        let size = |name: &str| image.topic(name).map_or(0, |topic| topic.config.message_bytes_max);
        (size("orders"), size("small"))
    };
    assert_eq!(cluster.alter(each(BROKER, "", vec![set("message.max.bytes", "500")])).0, 0);
    assert_eq!(sizes(&cluster), (500, 77));
    assert_eq!(cluster.alter(each(BROKER, "1", vec![set("message.max.bytes", "600")])).0, 0);
    assert_eq!(sizes(&cluster), (600, 77), "this node's own wins");
    let created = cluster.creates(vec![new_topic("later")]).remove(0);
    let told = created.configs.iter().find(|config| config.name == "max.message.bytes").expect("every key");
    assert_eq!((told.value.as_str(), told.source), ("600", ConfigSource::Node));
    assert_eq!(cluster.alter(replace(BROKER, "1", &[])).0, 0);
    assert_eq!(sizes(&cluster), (500, 77));
    assert_eq!(cluster.alter(each(BROKER, "", vec![step("message.max.bytes", DELETE, None)])).0, 0);
    assert_eq!(sizes(&cluster), (1_048_588, 77));
    let image = cluster.machine.image();
    assert!(image.cluster_configs().is_empty() && image.node_configs(NodeId(ME)).is_empty());
}

#[test]
fn settings_of_another_node_are_kept_and_change_nothing_here() {
    let mut cluster = Cluster::with_orders();
    let configs = owned(&[("message.max.bytes", "5")]);
    let record = Record::NodeConfigs(NodeConfigsRecord { node: Some(9), configs: configs.clone() }).encode();
    cluster.machine.replay(Offset(cluster.log.len() as i64), &record).expect("a record");
    let image = cluster.machine.image();
    assert_eq!(pairs(image.node_configs(NodeId(9))), configs);
    assert_eq!(image.topic("orders").map(|topic| topic.config.message_bytes_max), Some(1_048_588));
}

#[test]
fn configs_of_a_topic_that_is_not_there_are_no_record_of_this_log() {
    let mut cluster = Cluster::new();
    let record = Record::TopicConfigs(TopicConfigsRecord { id: [3; 16], configs: Vec::new() }).encode();
    let error = cluster.machine.replay(Offset(0), &record).expect_err("there is no such topic");
    assert!(matches!(error, ReplayError::ConfigsOfUnknownTopic { .. }), "{error}");
}

#[test]
fn more_resources_than_one_request_may_name_are_refused_with_one_text() {
    let mut cluster = Cluster::with_orders();
    let count = ringlog_shard::limits::CONFIG_RESOURCES_PER_REQUEST_MAX + 1;
    let results = cluster.alters(vec![each(TOPIC, "orders", vec![set("retention.ms", "1")]); count], false);
    assert_eq!(results.len(), count);
    let texts: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert_eq!(texts.len(), count);
    assert!(texts[0].message.contains("split it in several") && texts[1].message.is_empty());
}
