//! Levels of features of a whole broker, on the wire and from the command line: a new cluster's, and those of a data directory that was
//! written before there were levels. `tests/golden/metadata-format-1.zst` is such a directory, of format 1 of the metadata, left behind
//! by kill -9: zstd over, for each file, length of the name u32, name, length u64, bytes; little-endian.

use std::fs;
use std::path::Path;

use process::Broker;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use ringlog_protocol::messages::consumer_group_heartbeat::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
};
use ringlog_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use ringlog_protocol::messages::update_features::{
    FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use ringlog_protocol::wire::Reader;
use serde_json::{Value, json};

mod process;

const FORMAT: &str = "ringlog.metadata.version";
const OLD_DIRECTORY: &[u8] = include_bytes!("golden/metadata-format-1.zst");

/// With a snapshot after nearly every change: levels must be in it.
fn start(directory: &Path) -> Broker {
    Broker::start(directory, &["--set", "metadata.log.max.record.bytes.between.snapshots=1"])
}

impl Broker {
    fn features(&self) -> Value {
        self.json(&["cluster", "features", "-o", "json"])
    }

    /// Of the format.
    fn level(&self) -> Value {
        let told = self.features();
        let features = told["features"].as_array().expect("a list");
        features.iter().find(|feature| feature["name"] == FORMAT).expect("it is always there")["level"]
            .clone()
    }

    /// What a consumer of KIP-848 that joins is told.
    fn join_as_consumer(&self) -> ErrorCode {
        let request = ConsumerGroupHeartbeatRequest {
            group_id: "g",
            member_id: "m",
            rebalance_timeout_ms: 1_000,
            subscribed_topic_names: Some(vec!["orders"]),
            topic_partitions: Some(Vec::new()),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let body =
            self.call(ApiKey::ConsumerGroupHeartbeat, 1, |writer, version| request.encode(writer, version));
        let told = ConsumerGroupHeartbeatResponse::decode(&mut Reader::new(&body), 1).expect("an answer");
        ErrorCode::from_i16(told.error_code).expect("a known code")
    }

    /// Error number and text of setting a config of a group.
    fn set_of_group(&self, value: &str) -> (i16, String) {
        let config = AlterableConfig {
            name: "consumer.heartbeat.interval.ms",
            config_operation: 0,
            value: Some(value),
        };
        let resource = AlterConfigsResource { resource_type: 32, resource_name: "g", configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let api = ApiKey::IncrementalAlterConfigs;
        let body = self.call(api, 1, |writer, version| request.encode(writer, version));
        let told = IncrementalAlterConfigsResponse::decode(&mut Reader::new(&body), 1).expect("an answer");
        let told = &told.responses[0];
        (told.error_code, told.error_message.unwrap_or_default().to_owned())
    }

    /// Error number, whether there is a text, and the features with a result.
    fn update(&self, update: FeatureUpdateKey<'_>, version: i16) -> (i16, bool, Vec<String>) {
        let request =
            UpdateFeaturesRequest { feature_updates: vec![update], ..UpdateFeaturesRequest::default() };
        let body =
            self.call(ApiKey::UpdateFeatures, version, |writer, version| request.encode(writer, version));
        let told = UpdateFeaturesResponse::decode(&mut Reader::new(&body), version).expect("an answer");
        assert!(told.results.iter().all(|result| result.error_code == 0 && result.error_message.is_none()));
        let names = told.results.iter().map(|result| result.feature.to_owned());
        (told.error_code, told.error_message.is_some(), names.collect())
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn a_new_cluster_reports_what_is_built_and_runs_the_newest_levels() {
    let directory = directory();
    let broker = start(directory.path());
    let mut epochs = Vec::new();
    for version in 0..=5 {
        let named = ApiVersionsRequest {
            client_software_name: if version >= 3 { "test" } else { "" },
            client_software_version: if version >= 3 { "1" } else { "" },
            ..ApiVersionsRequest::default()
        };
        let body = broker.call(ApiKey::ApiVersions, version, |writer, version| named.encode(writer, version));
        let told = ApiVersionsResponse::decode(&mut Reader::new(&body), version).expect("an answer");
        assert_eq!(told.error_code, 0);
        let supported: Vec<_> =
            told.supported_features.iter().map(|f| (f.name, f.min_version, f.max_version)).collect();
        let runs: Vec<_> = told
            .finalized_features
            .iter()
            .map(|f| (f.name, f.min_version_level, f.max_version_level))
            .collect();
        if version < 3 {
            assert_eq!((supported, runs, told.finalized_features_epoch), (vec![], vec![], -1));
        } else {
            // Before version 4 clients do not understand features that can be off.
            let built = [("group.version", 0, 1), (FORMAT, 1, 4)];
            let built = if version < 4 { &built[1..] } else { &built };
            assert_eq!((supported, runs), (built.to_vec(), vec![("group.version", 1, 1), (FORMAT, 4, 4)]));
            epochs.push(told.finalized_features_epoch);
        }
    }
    assert!(epochs[0] >= 0 && epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
    let table = String::from_utf8(broker.run(&["cluster", "features"]).stdout).expect("text");
    let words: Vec<&str> = table.split_whitespace().collect();
    assert_eq!(words, ["FEATURE", "LEVEL", "SUPPORTED", "group.version", "1", "0-1", FORMAT, "4", "1-4"]);
    let nothing = broker.json(&["cluster", "features", "upgrade", "-o", "json"]);
    assert_eq!(nothing, json!({ "dry_run": false, "features": [] }));
    assert_eq!(broker.features()["epoch"], json!(epochs[0]), "nothing was written");
}

#[test]
fn updates_are_answered_in_every_version_and_refused_with_the_reason() {
    let directory = directory();
    let broker = start(directory.path());
    for version in 0..=2 {
        let update = |feature, max_version_level| FeatureUpdateKey {
            feature,
            max_version_level,
            allow_downgrade: false,
            upgrade_type: 1,
        };
        let results = if version < 2 { vec![FORMAT.to_owned()] } else { vec![] };
        assert_eq!(broker.update(update(FORMAT, 4), version), (0, false, results));
        assert_eq!(broker.update(update(FORMAT, 5), version), (95, true, vec![]));
        assert_eq!(broker.update(update("group.version.of.nobody", 1), version), (95, true, vec![]));
        let down = FeatureUpdateKey { allow_downgrade: version == 0, ..update(FORMAT, 1) };
        assert_eq!(broker.update(down, version), (95, true, vec![]));
    }
    for (arguments, text) in [
        (vec!["upgrade", "no.such=1"], "broker 1 has no such feature"),
        (vec!["upgrade", "ringlog.metadata.version=9"], "runs levels 1 to 4"),
        (vec!["downgrade", "ringlog.metadata.version=1"], "it would lose metadata"),
        (
            vec!["downgrade", "ringlog.metadata.version=1", "--allow-loss"],
            "downgrades that lose metadata are not built",
        ),
    ] {
        let said = broker.refuses(&[["cluster", "features"].as_slice(), &arguments].concat());
        assert!(said.contains(text) && said.contains("INVALID_UPDATE_VERSION"), "{said}");
    }
    assert_eq!(broker.level(), json!(4));
}

fn unpack_old(folder: &Path) {
    let bytes = zstd::decode_all(OLD_DIRECTORY).expect("packed whole");
    let mut rest = &bytes[..];
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    while let Some(length) = take(4) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        let name = std::str::from_utf8(take(length as usize).expect("a name")).expect("text");
        let length = u64::from_le_bytes(take(8).expect("a length").try_into().expect("eight bytes"));
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("writable");
        fs::write(path, take(usize::try_from(length).expect("small")).expect("its bytes")).expect("writable");
    }
}

/// Topics, the altered config, and the records of both partitions.
fn check_old_contents(broker: &Broker) {
    let topics = broker.json(&["topic", "list", "-o", "json"]);
    let name_and_id = (&topics[0]["name"], &topics[0]["id"], topics.as_array().map(Vec::len));
    assert_eq!(name_and_id, (&json!("orders"), &json!("AKMxS6vYQLqtBA1fDwW70g"), Some(1)));
    let described = broker.json(&["topic", "describe", "orders", "-o", "json"]);
    let configs = described[0]["configs"].as_array().expect("a list");
    let limit = configs.iter().find(|config| config["key"] == "max.message.bytes").expect("it is set");
    assert_eq!((&limit["value"], &limit["source"]), (&json!("2000"), &json!("topic")));
    for (partition, records) in [("0", "record 1\nrecord 2\nrecord 3\n"), ("1", "a\nb\n")] {
        let read = broker.run(&["cat", "orders", "-C", "-p", partition, "-e"]);
        assert_eq!(String::from_utf8_lossy(&read.stdout), records);
    }
}

#[test]
fn a_directory_of_the_first_format_opens_keeps_its_level_and_is_raised_when_asked() {
    let directory = directory();
    unpack_old(directory.path());
    let broker = start(directory.path());
    check_old_contents(&broker);
    assert_eq!(broker.level(), json!(1));
    assert_eq!(broker.join_as_consumer(), ErrorCode::UnsupportedVersion);
    let (code, text) = broker.set_of_group("7000");
    assert_eq!(code, ErrorCode::UnsupportedVersion.code());
    assert!(text.contains("`ringlog cluster features upgrade`"), "{text}");
    let raised = json!([
        { "name": "group.version", "from": 0, "to": 1 },
        { "name": FORMAT, "from": 1, "to": 4 },
    ]);
    let upgrade = ["cluster", "features", "upgrade", "-o", "json"];
    let dry = broker.json(&[upgrade.as_slice(), &["--dry-run"]].concat());
    assert_eq!(dry, json!({ "dry_run": true, "features": raised }));
    assert_eq!(broker.level(), json!(1));
    broker.kill();
    let broker = start(directory.path());
    assert_eq!(broker.level(), json!(1), "a start raises nothing");
    let before = broker.features()["epoch"].as_i64();
    let done = broker.json(&upgrade);
    assert_eq!(done, json!({ "dry_run": false, "features": raised }));
    assert_eq!(broker.level(), json!(4));
    // Nobody asked for the group's coordinator yet.
    assert_eq!(broker.join_as_consumer(), ErrorCode::NotCoordinator);
    assert!(broker.features()["epoch"].as_i64() > before);
    assert_eq!(broker.set_of_group("7000"), (0, String::new()));
    // Enough behind it that the start is from a snapshot which holds the level.
    for name in ["a", "b", "c", "d"] {
        broker.json(&["topic", "create", name, "-o", "json"]);
        broker.json(&["topic", "delete", name, "-y", "-o", "json"]);
    }
    broker.kill();
    let broker = start(directory.path());
    assert_eq!(broker.level(), json!(4));
    check_old_contents(&broker);
}
