//! Tests of the layers and of every refusal's text.

use std::path::PathBuf;

use proptest::prelude::*;

use super::load::Sources;
use super::typed::{Account, Advertised, StorageMode};
use super::value::{Address, Memory};
use super::*;
use crate::group::assign::Assignor;
use crate::group::{ConsumerSettings, Migration};
use crate::process::exit::Exit;

fn account() -> Account {
    Account { home: Some(PathBuf::from("/home/user")), ..Account::default() }
}

fn file(text: &str) -> Sources {
    Sources { file: Some((PathBuf::from("/etc/r.properties"), text.to_owned())), ..Sources::default() }
}

fn with_variable(name: &str, value: &str) -> Sources {
    Sources { variables: vec![(name.to_owned(), value.to_owned())], ..Sources::default() }
}

fn refused(sources: &Sources, expected: &str) -> Exit {
    let errors = load(sources, &account()).expect_err(expected);
    assert_eq!(errors.to_string(), expected);
    errors.exit()
}

#[test]
fn an_empty_machine_needs_no_settings() {
    let config = load(&Sources::default(), &account()).expect("defaults are legal");
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(config.listeners[0].bind, Address { host: "127.0.0.1".to_owned(), port: 9092 });
    assert_eq!(config.listeners[0].advertised, Advertised::Auto);
    let data = PathBuf::from("/home/user/.local/share/ringlog");
    let journal_directory = data.join("journal");
    assert_eq!(config.storage.durability, StorageMode::Durable { data_directory: data, journal_directory });
    assert_eq!(config.topics.message_bytes_max, 1_048_588);
    assert_eq!(config.limits.connections_max, i32::MAX as u32);
    let snapshot_after_bytes = ringlog_shard::limits::MACHINE_SNAPSHOT_AFTER_BYTES;
    assert_eq!(config.limits.metadata_snapshot_after_bytes, snapshot_after_bytes);
    assert_eq!(config.runtime.memory, Memory::Auto);
    assert!(config.settings.iter().all(|setting| setting.origin == Origin::Default));
    let shown = config.settings.iter().find(|setting| setting.key == "log.dirs").expect("every key is shown");
    assert_eq!(shown.value, "/home/user/.local/share/ringlog");
}

#[test]
fn default_data_directory_by_account() {
    let check = |account: Account, expected: Option<&str>| {
        assert_eq!(account.default_data_directory(), expected.map(PathBuf::from));
    };
    let state = Some(PathBuf::from("/run/state"));
    check(Account { is_root: true, ..account() }, Some("/var/lib/ringlog"));
    check(Account { is_root: true, state_directory: state, ..account() }, Some("/run/state"));
    check(Account { data_home: Some(PathBuf::from("/x")), ..account() }, Some("/x/ringlog"));
    check(Account::default(), None);
    let errors = load(&Sources::default(), &Account::default()).expect_err("there is nowhere to put data");
    assert!(errors.to_string().contains("--data-dir"), "{errors}");
    assert_eq!(errors.exit(), Exit::Config);
    let ephemeral = Sources { sets: vec!["ringlog.ephemeral=true".to_owned()], ..Sources::default() };
    assert!(load(&ephemeral, &Account::default()).is_ok());
}

#[test]
fn precedence_flag_set_variable_file_default() {
    let mut sources = file("num.partitions=2\n");
    let partitions = |sources: &Sources| {
        let config = load(sources, &account()).expect("legal");
        let shown = config.settings.iter().find(|s| s.key == "num.partitions").expect("every key is shown");
        assert_eq!(shown.value, config.topics.partition_count.to_string());
        (config.topics.partition_count, shown.origin.to_string())
    };
    assert_eq!(partitions(&Sources::default()), (1, "default".to_owned()));
    assert_eq!(partitions(&sources), (2, "/etc/r.properties:1".to_owned()));
    sources.variables.push(("RINGLOG_NUM_PARTITIONS".to_owned(), "3".to_owned()));
    assert_eq!(partitions(&sources), (3, "env RINGLOG_NUM_PARTITIONS".to_owned()));
    sources.sets = vec!["num.partitions=9".to_owned(), "num.partitions = 4".to_owned()];
    assert_eq!(partitions(&sources), (4, "flag --set".to_owned()));
    sources.flags.push(("--partitions", "num.partitions", "5".to_owned()));
    assert_eq!(partitions(&sources), (5, "flag --partitions".to_owned()));
}

#[test]
fn the_last_line_of_a_key_wins_with_a_warning_and_aliases_lose() {
    let config = load(&file("num.partitions=2\nnum.partitions=3"), &account()).expect("legal");
    assert_eq!(config.topics.partition_count, 3);
    assert_eq!(
        config.warnings,
        vec!["num.partitions is set twice: /etc/r.properties:1 loses against /etc/r.properties:2"]
    );
    let directory = |text: &str| match load(&file(text), &account()).expect("legal").storage.durability {
        StorageMode::Durable { data_directory, .. } => data_directory,
        StorageMode::Ephemeral => PathBuf::new(),
    };
    assert_eq!(directory("log.dir=/a"), PathBuf::from("/a"));
    assert_eq!(directory("log.dirs=/b\nlog.dir=/a"), PathBuf::from("/b"));
    assert_eq!(directory("log.dir=/a\nlog.dirs=/b"), PathBuf::from("/b"));
}

#[test]
fn our_keys_have_variables_with_and_without_their_prefix() {
    for name in ["RINGLOG_SHARDS", "RINGLOG_RINGLOG_SHARDS"] {
        let config = load(&with_variable(name, "3"), &account()).expect("legal");
        assert_eq!(config.runtime.shards, Some(3), "{name}");
    }
    assert!(load(&with_variable("RINGLOG_CONFIG", "/read/by/the/caller"), &account()).is_ok());
    assert!(load(&with_variable("OTHER_LOG_DIRS", "x"), &account()).is_ok());
}

#[test]
fn refusals_of_unknown_keys() {
    let exit = refused(
        &file("\nlog.dris=/x"),
        "unknown key `log.dris` (/etc/r.properties:2): did you mean `log.dirs`?",
    );
    assert_eq!(exit, Exit::Config);
    let set = Sources { sets: vec!["zookeeper.connect=x".to_owned()], ..Sources::default() };
    let expected = "unknown key `zookeeper.connect` (flag --set): `ringlog config reference` lists every key";
    assert_eq!(refused(&set, expected), Exit::Config);
    refused(
        &with_variable("RINGLOG_SHARD", "1"),
        "unknown key `shard` (env RINGLOG_SHARD): did you mean `ringlog.shards`?",
    );
}

#[test]
fn refusals_of_values() {
    refused(
        &file("log.segment.bytes=12"),
        "`log.segment.bytes` = `12` (/etc/r.properties:1): below the smallest value; allowed: 1048576 to 2147483647 \
         bytes; correct the line, or override it with --set log.segment.bytes=...",
    );
    refused(
        &with_variable("RINGLOG_EGRESS", "splice"),
        "`ringlog.egress` = `splice` (env RINGLOG_EGRESS): not one of the choices; allowed: auto, send, sendfile; \
         correct or unset RINGLOG_EGRESS",
    );
    let flag = Sources { flags: vec![("--listen", "listeners", "\x1b[2J".to_owned())], ..Sources::default() };
    let exit = refused(
        &flag,
        "`listeners` = `\\x1b[2J` (flag --listen): no port; allowed: PLAINTEXT://HOST:PORT; correct --listen",
    );
    assert_eq!(exit, Exit::Usage);
    refused(
        &file("listeners=SASL_SSL://:9092"),
        "`listeners` = `SASL_SSL://:9092` (/etc/r.properties:1): SASL_SSL is not built yet: only PLAINTEXT is served; \
         allowed: PLAINTEXT://HOST:PORT; correct the line, or override it with --set listeners=...",
    );
    let set = Sources { sets: vec!["nonsense".to_owned()], ..Sources::default() };
    assert_eq!(refused(&set, "`nonsense` (flag --set): not of the form key=value"), Exit::Usage);
    refused(&file("a=\\uZZ"), "/etc/r.properties: line 1: `\\u` must be followed by four hexadecimal digits");
}

#[test]
fn refusals_of_what_is_not_built() {
    refused(
        &file("log.index.size.max.bytes=4096"),
        "`log.index.size.max.bytes` = `4096` (/etc/r.properties:1): only the default `10485760` is accepted: the offset \
         index is in memory and bounded by its segment; remove the setting",
    );
    // The default itself is accepted, in any spelling.
    assert!(load(&file("log.index.size.max.bytes = 10485760\nlog.cleaner.enable=TRUE"), &account()).is_ok());
}

#[test]
fn the_finest_retention_that_is_set_holds() {
    let topics = |text: &str| load(&file(text), &account()).expect("valid").topics;
    let retention = |text: &str| topics(text).retention_ms;
    assert_eq!(retention(""), 604_800_000);
    assert_eq!(retention("log.retention.hours=24"), 86_400_000);
    assert_eq!(retention("log.retention.hours=24\nlog.retention.minutes=30"), 1_800_000);
    assert_eq!(retention("log.retention.hours=24\nlog.retention.minutes=30\nlog.retention.ms=5"), 5);
    assert_eq!(retention("log.retention.minutes=-1"), -1);
    assert_eq!(retention("log.retention.hours=-1"), -1);
    assert_eq!(retention("log.retention.hours=2147483647"), 2_147_483_647 * 3_600_000);
    assert_eq!(topics("log.retention.bytes=1GiB").retention_bytes, 1 << 30);
    assert_eq!((topics("").segment_ms, topics("").segment_jitter_ms), (604_800_000, 0));
    assert_eq!(topics("log.roll.hours=1\nlog.roll.jitter.hours=2").segment_jitter_ms, 7_200_000);
    assert_eq!(topics("log.roll.hours=1\nlog.roll.ms=7").segment_ms, 7);
    refused(
        &file("log.retention.ms=-2"),
        "`log.retention.ms` = `-2` (/etc/r.properties:1): below the smallest value; allowed: empty, or -1 or more; correct \
         the line, or override it with --set log.retention.ms=...",
    );
    assert!(load(&file("log.roll.ms=0"), &account()).is_err());
}

#[test]
fn refusals_of_combinations() {
    let exit = refused(
        &file("message.max.bytes=200MiB"),
        "`message.max.bytes` = `200MiB` (/etc/r.properties:1): larger than `socket.request.max.bytes` = 104857600, so \
         no such batch could arrive; raise that or lower this",
    );
    assert_eq!(exit, Exit::Config);
}

#[test]
fn all_mistakes_come_together() {
    let errors =
        load(&file("x=1\nnum.partitions=0\nlog.dirs=/a,/b"), &account()).expect_err("three mistakes");
    assert_eq!(errors.0.len(), 3, "{errors}");
    assert_eq!(errors.to_string().lines().count(), 3);
}

#[test]
fn keys_of_consumer_groups_keep_within_their_bounds() {
    let names = |text: &str| -> Vec<String> {
        match load(&file(text), &account()) {
            Ok(_) => Vec::new(),
            Err(errors) => errors.0.iter().map(ToString::to_string).collect(),
        }
    };
    assert_eq!(
        names("group.consumer.session.timeout.ms=30000"),
        ["`group.consumer.session.timeout.ms` = `30000` (/etc/r.properties:1): smaller than \
             `group.consumer.min.session.timeout.ms` = 45000; change that too"]
    );
    assert_eq!(names("group.consumer.heartbeat.interval.ms=16000").len(), 1);
    assert_eq!(
        names("group.consumer.max.heartbeat.interval.ms=60000\ngroup.consumer.heartbeat.interval.ms=45000")
            .len(),
        1
    );
    let legal = "group.consumer.min.session.timeout.ms=6000\ngroup.consumer.session.timeout.ms=6000\n\
        group.consumer.assignors=range\ngroup.consumer.migration.policy=upgrade\n";
    assert_eq!(names(legal), [""; 0]);
    let consumer = load(&file(legal), &account()).expect("legal").groups.consumer;
    assert_eq!((consumer.session_timeout_ms, consumer.assignors), (6_000, &[Assignor::Range][..]));
    assert_eq!(consumer.migration, Migration::Upgrade);
    let consumer = load(&file(""), &account()).expect("legal").groups.consumer;
    let kafkas = ConsumerSettings { members_max: i32::MAX as usize, ..ConsumerSettings::default() };
    assert_eq!(consumer, kafkas, "the defaults of the table are those of groups");
}

#[test]
fn integer_keys_fit_their_types_at_both_ends() {
    for key in keys::ALL {
        let (keys::Kind::Integer { minimum, maximum }
        | keys::Kind::Bytes { minimum, maximum }
        | keys::Kind::Milliseconds { minimum, maximum }) = key.kind
        else {
            continue;
        };
        if key.effect != keys::Effect::Built {
            continue;
        }
        for number in [minimum, maximum] {
            let sources = file(&format!("socket.request.max.bytes=2147483647\n{}={number}", key.name));
            let config = load(&sources, &account());
            if let Ok(config) = config {
                check_casts(&config);
            } else if key.name != "socket.request.max.bytes" && !key.name.starts_with("group.consumer.") {
                panic!("{} = {number}: {config:?}", key.name);
            }
        }
    }
}

/// A cast that lost bits would show as a value outside of the table's range.
fn check_casts(config: &BrokerConfig) {
    let topics = &config.topics;
    assert!(config.node_id.0 >= 0);
    assert!(topics.partition_count >= 1 && topics.replication_factor >= 1 && topics.min_insync_replicas >= 1);
    assert!(
        topics.message_bytes_max >= 0 && topics.segment_bytes >= 1 << 20 && topics.index_interval_bytes >= 0
    );
    assert!(topics.timestamp_before_ms_max >= 0 && topics.timestamp_after_ms_max >= 0);
    assert!(i32::try_from(config.limits.fetch_bytes_max).is_ok());
    assert!(i32::try_from(config.limits.request_bytes_max).is_ok());
    assert!(i64::try_from(config.limits.connection_idle_ms_max).is_ok());
}

#[test]
fn the_reference_page_is_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/configuration.md");
    let committed = std::fs::read_to_string(path).expect("docs/reference/configuration.md is committed");
    assert!(
        committed == reference::markdown(),
        "run: ringlog config reference > docs/reference/configuration.md"
    );
}

proptest! {
    #[test]
    fn any_text_is_answered(text in any::<String>(), value in any::<String>(), index in 0..keys::ALL.len()) {
        let _ = load(&file(&text), &account());
        let set = format!("{}={value}", keys::ALL[index].name);
        if let Err(errors) = load(&Sources { sets: vec![set], ..Sources::default() }, &account()) {
            prop_assert!(errors.to_string().lines().all(|line| !line.chars().any(char::is_control)));
        }
    }
}
