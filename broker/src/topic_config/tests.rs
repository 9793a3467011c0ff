//! Rules of topic configs, one test each.

use std::sync::Arc;

use proptest::prelude::*;

use super::report::{effective, synonyms};
use super::*;
use crate::config::Origin;
use crate::config::layers::{ConfigSource, Layers};
use crate::config::typed::EffectiveSetting;

pub(crate) fn defaults() -> TopicDefaults {
    TopicDefaults {
        auto_create: true,
        deletion_enabled: true,
        partition_count: 1,
        replication_factor: 1,
        min_insync_replicas: 1,
        message_bytes_max: 1_048_588,
        compression_type: "producer",
        segment_bytes: 1 << 30,
        index_interval_bytes: 4096,
        timestamp_type: DefaultTimestampType::CreateTime,
        timestamp_before_ms_max: i64::MAX,
        timestamp_after_ms_max: 3_600_000,
        retention_ms: 604_800_000,
        retention_bytes: -1,
        segment_ms: 604_800_000,
        segment_jitter_ms: 0,
        cleanup: CleanupPolicy { delete: true, compact: false },
        delete_retention_ms: 86_400_000,
        min_compaction_lag_ms: 0,
        max_compaction_lag_ms: i64::MAX,
        min_cleanable_millionths: WHOLE / 2,
    }
}

fn overrides(pairs: &[(&str, &str)]) -> Overrides {
    pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
}

fn refusal(key: &str, value: &str) -> String {
    check(key, Some(value)).expect_err("it is refused").to_string()
}

#[test]
fn the_table_holds_kafkas_36_keys_sorted_and_each_default_is_legal() {
    let names: Vec<&str> = keys().iter().map(|key| key.name).collect();
    assert!(names.is_sorted());
    assert_eq!(names.iter().filter(|name| !name.starts_with("ringlog.")).count(), 36);
    for key in keys() {
        assert!(key.kind.normalize(key.default).is_some(), "{} = {}", key.name, key.default);
    }
}

#[test]
fn what_is_built_is_accepted_within_its_range_and_refused_beyond_it() {
    for (key, good, bad) in [
        ("max.message.bytes", "0", "-1"),
        ("max.message.bytes", "2147483647", "2147483648"),
        ("segment.bytes", "1048576", "1048575"),
        ("index.interval.bytes", "0", "-1"),
        ("message.timestamp.type", "LogAppendTime", "logappendtime"),
        ("message.timestamp.before.max.ms", "9223372036854775807", "9223372036854775808"),
        ("message.timestamp.after.max.ms", " 12 ", "1.5"),
        ("min.insync.replicas", "1", "0"),
        ("retention.ms", "-1", "-2"),
        ("retention.bytes", "0", "-2"),
        ("segment.ms", "1", "0"),
        ("segment.jitter.ms", "0", "-1"),
        ("compression.type", "producer", "brotli"),
        ("cleanup.policy", " compact, delete", "compact;delete"),
        ("cleanup.policy", "", "none"),
        ("min.cleanable.dirty.ratio", "0.1", "1.1"),
        ("min.compaction.lag.ms", "0", "-1"),
        ("max.compaction.lag.ms", "1", "0"),
        ("delete.retention.ms", "0", "-1"),
    ] {
        assert_eq!(check(key, Some(good)), Ok(()), "{key}={good}");
        assert!(matches!(check(key, Some(bad)), Err(TopicConfigError::Invalid { .. })), "{key}={bad}");
    }
}

#[test]
fn what_is_not_built_is_accepted_at_its_default_only() {
    for key in keys() {
        let at_default = check(key.name, Some(key.default));
        match key.effect {
            Effect::Built | Effect::Met(_) | Effect::DefaultOnly(_) => {
                assert_eq!(at_default, Ok(()), "{}", key.name)
            }
            Effect::Refused(_) => assert!(at_default.is_err(), "{}", key.name),
        }
    }
    for (key, value) in [
        ("local.retention.ms", "1"),
        ("compression.type", "gzip"),
        ("min.insync.replicas", "2"),
        ("remote.storage.enable", "true"),
        ("leader.replication.throttled.replicas", "*"),
    ] {
        assert!(matches!(check(key, Some(value)), Err(TopicConfigError::NotBuilt { .. })), "{key}={value}");
    }
}

#[test]
fn what_is_met_anyway_is_accepted_at_any_legal_value() {
    for (key, legal, illegal) in [
        ("file.delete.delay.ms", "10000", "-1"),
        ("flush.messages", "1", "0"),
        ("flush.ms", "1000", "-1"),
        ("preallocate", "true", "yes"),
        ("segment.index.bytes", "4096", "3"),
    ] {
        assert_eq!(check(key, Some(legal)), Ok(()), "{key}={legal}");
        assert!(
            matches!(check(key, Some(illegal)), Err(TopicConfigError::Invalid { .. })),
            "{key}={illegal}"
        );
    }
}

#[test]
fn the_same_value_in_another_spelling_is_still_the_default() {
    for (key, value) in
        [("remote.storage.enable", "FALSE"), ("retention.ms", "+604800000"), ("min.insync.replicas", "+1")]
    {
        assert_eq!(check(key, Some(value)), Ok(()), "{key}={value}");
    }
}

#[test]
fn durability_is_refused_until_it_is_built() {
    for value in ["relaxed", "strict"] {
        assert!(
            matches!(check("ringlog.durability", Some(value)), Err(TopicConfigError::Refused { .. })),
            "{value}"
        );
    }
}

#[test]
fn a_refusal_names_key_value_range_and_what_to_do() {
    assert_eq!(
        refusal("segment.bytes", "14"),
        "value '14' of topic config 'segment.bytes' is refused: it takes a whole number from 1048576 to 2147483647; \
         correct it, or leave it out to use the default"
    );
    assert_eq!(
        refusal("remote.storage.enable", "true"),
        "value 'true' of topic config 'remote.storage.enable' is refused: tiered storage is not built yet; set it to 'false', \
         or leave it out"
    );
    let null = check("segment.bytes", None).expect_err("null is no value").to_string();
    assert!(null.starts_with("topic config 'segment.bytes' has no value"), "{null}");
}

#[test]
fn an_unknown_key_is_refused_with_the_key_that_was_probably_meant() {
    assert_eq!(
        refusal("retention.mss", "1"),
        "unknown topic config 'retention.mss'; did you mean 'retention.ms'?"
    );
    assert_eq!(
        refusal("message.max.bytes", "1"),
        "unknown topic config 'message.max.bytes'; did you mean 'max.message.bytes'?"
    );
    assert_eq!(
        refusal("log.segment.bytes", "1"),
        "unknown topic config 'log.segment.bytes'; did you mean 'segment.bytes'?"
    );
    let far = refusal("zzz", "1");
    assert!(!far.contains("did you mean"), "{far}");
}

#[test]
fn a_long_or_unprintable_text_is_cut_and_cleaned_before_it_is_repeated() {
    let text = refusal("segment.bytes", &"9".repeat(1_000_000));
    assert!(text.len() < 400, "{} bytes", text.len());
    assert!(refusal("bad\nkey", "1").contains("'bad?key'"));
    let long = refusal(&"k".repeat(1_000_000), "1");
    assert!(long.len() < 400, "{} bytes", long.len());
}

#[test]
fn overrides_win_over_the_brokers_defaults() {
    let defaults = TopicDefaults { message_bytes_max: 5000, ..defaults() };
    let resolved = TopicConfig::resolve(&defaults, &Overrides::new());
    assert_eq!(resolved.message_bytes_max, 5000);
    assert_eq!(resolved.timestamp_type, TimestampType::CreateTime);
    let given = [
        ("max.message.bytes", " 77 "),
        ("message.timestamp.type", "LogAppendTime"),
        ("segment.bytes", "1048576"),
        ("message.timestamp.after.max.ms", "5"),
    ];
    let resolved = TopicConfig::resolve(&defaults, &overrides(&given));
    assert_eq!(resolved.message_bytes_max, 77);
    assert_eq!(resolved.timestamp_type, TimestampType::LogAppendTime);
    assert_eq!(resolved.segment_bytes, 1_048_576);
    assert_eq!(resolved.timestamp_after_ms_max, 5);
    assert_eq!(resolved.timestamp_before_ms_max, i64::MAX);
}

#[test]
fn retention_holds_where_the_policy_deletes() {
    let resolve = |pairs: &[(&str, &str)]| TopicConfig::resolve(&defaults(), &overrides(pairs));
    let limits = |pairs: &[(&str, &str)]| (resolve(pairs).retention_ms, resolve(pairs).retention_bytes);
    assert_eq!(limits(&[]), (Some(604_800_000), None));
    assert_eq!(limits(&[("retention.ms", "-1"), ("retention.bytes", "0")]), (None, Some(0)));
    for policy in ["compact", "", " compact "] {
        assert_eq!(
            limits(&[("cleanup.policy", policy), ("retention.bytes", "5")]),
            (None, None),
            "{policy:?}"
        );
        assert!(!resolve(&[("cleanup.policy", policy)]).cleanup.delete, "{policy:?}");
    }
    assert_eq!(limits(&[("cleanup.policy", "compact, delete")]), (Some(604_800_000), None));
    assert!(resolve(&[("cleanup.policy", "compact, delete")]).cleanup.compact);
    // Only another build can have stored it: nothing of the topic may go by age.
    assert_eq!(limits(&[("cleanup.policy", "archive")]), (None, None));
}

#[test]
fn compaction_is_set_where_the_policy_compacts_and_follows_the_broker() {
    let compacting = CleanupPolicy { delete: false, compact: true };
    let defaults = TopicDefaults { cleanup: compacting, delete_retention_ms: 5, ..defaults() };
    let resolve = |pairs: &[(&str, &str)]| TopicConfig::resolve(&defaults, &overrides(pairs));
    assert_eq!(resolve(&[("cleanup.policy", "delete")]).compaction, None);
    let plain = resolve(&[]).compaction.expect("the broker's policy compacts");
    assert_eq!((plain.min_dirty_millionths, plain.delete_retention_ms), (WHOLE / 2, 5));
    let given = [
        ("min.cleanable.dirty.ratio", " 0.01"),
        ("delete.retention.ms", "0"),
        ("min.compaction.lag.ms", "7"),
        ("max.compaction.lag.ms", "700"),
        ("segment.ms", "900"),
    ];
    let config = resolve(&given);
    let expected = CompactionSettings {
        min_dirty_millionths: 10_000,
        min_lag_ms: 7,
        max_lag_ms: 700,
        delete_retention_ms: 0,
    };
    assert_eq!((config.compaction, config.segment_ms), (Some(expected), 700));
    let all = [&given[..], &[("cleanup.policy", "delete")]].concat();
    assert_eq!(resolve(&all).segment_ms, 900, "nothing has to be compacted");
}

#[test]
fn a_policy_is_told_as_it_is_given() {
    for list in ["", "compact", "delete", "compact,delete"] {
        assert_eq!(CleanupPolicy::of(list).list(), list);
    }
}

#[test]
fn an_override_that_only_another_build_accepts_is_passed_over() {
    let stored = overrides(&[("segment.bytes", "14"), ("min.insync.replicas", "3"), ("new.key", "1")]);
    assert_eq!(
        TopicConfig::resolve(&defaults(), &stored),
        TopicConfig::resolve(&defaults(), &Overrides::new())
    );
}

#[test]
fn each_effective_config_tells_where_it_comes_from() {
    let defaults =
        TopicDefaults { index_interval_bytes: 100, retention_ms: 7, message_bytes_max: 9, ..defaults() };
    let setting = |key, value: &str| EffectiveSetting { key, value: value.to_owned(), origin: Origin::Set };
    let settings = [setting("log.index.interval.bytes", "100")];
    let (node, cluster) = (overrides(&[("log.retention.ms", "7")]), overrides(&[("message.max.bytes", "9")]));
    let layers = Layers { node: &node, cluster: &cluster, settings: &settings };
    let own = overrides(&[("segment.bytes", " 1048576"), ("file.delete.delay.ms", "10000")]);
    let all = effective(&defaults, &layers, &own);
    let of = |name: &str| {
        let config = all.iter().find(|config| config.name == name).expect("every key is reported");
        (config.value.as_str(), config.source)
    };
    assert_eq!(all.len(), 36);
    assert_eq!(of("segment.bytes"), ("1048576", ConfigSource::Topic));
    assert_eq!(of("file.delete.delay.ms"), ("10000", ConfigSource::Topic), "without effect, and shown");
    assert_eq!(of("retention.ms"), ("7", ConfigSource::Node));
    assert_eq!(of("max.message.bytes"), ("9", ConfigSource::Cluster));
    assert_eq!(of("index.interval.bytes"), ("100", ConfigSource::Static));
    assert_eq!(of("cleanup.policy"), ("delete", ConfigSource::Default));
    assert_eq!(ConfigSource::Default as i8, 5);
}

/// As Kafka 4.4 reports them of a fresh broker.
#[test]
fn what_else_a_value_could_be_is_told_the_strongest_first() {
    let none = Overrides::new();
    let layers = Layers { node: &none, cluster: &none, settings: &[] };
    let check = |name: &str, set: &[(&str, &str)], expected: &[(&str, &str)]| {
        let found = synonyms(find(name).expect("a key"), &layers, &overrides(set));
        let found: Vec<_> = found.iter().map(|found| (found.name, found.value.as_str())).collect();
        assert_eq!(found, expected, "{name}");
    };
    check("max.message.bytes", &[], &[("message.max.bytes", "1048588")]);
    let lists = [("cleanup.policy", "delete,compact"), ("log.cleanup.policy", "delete")];
    check("cleanup.policy", &[("cleanup.policy", " delete , compact,delete")], &lists);
    let both = [("max.message.bytes", "5"), ("message.max.bytes", "1048588")];
    check("max.message.bytes", &[("max.message.bytes", "5")], &both);
    check("retention.ms", &[], &[]);
    check("segment.jitter.ms", &[], &[]);
    check("flush.ms", &[], &[]);
    check("remote.storage.enable", &[], &[]);
    check("compression.zstd.level", &[], &[("compression.zstd.level", "3")]);
}

#[test]
fn every_key_says_what_it_is_for() {
    assert!(keys().iter().all(|key| key.doc.ends_with('.')));
}

proptest! {
    #[test]
    fn any_text_is_judged_without_panic_and_what_is_accepted_resolves(key in ".*", value in ".*", at in 0..37usize) {
        let _ = check(&key, Some(&value));
        let name = keys()[at].name;
        if check(name, Some(&value)).is_ok() {
            TopicConfig::resolve(&defaults(), &overrides(&[(name, &value)]));
        }
    }

    #[test]
    fn any_size_that_is_accepted_is_the_size_in_force(bytes in any::<i64>()) {
        let text = bytes.to_string();
        if check("segment.bytes", Some(&text)).is_ok() {
            let resolved = TopicConfig::resolve(&defaults(), &overrides(&[("segment.bytes", &text)]));
            prop_assert_eq!(i64::from(resolved.segment_bytes), bytes);
        }
    }
}
