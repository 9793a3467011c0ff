//! Configs of groups (GROUP resources) of a whole node on the simulation, over one core and several: in force with the answer, over a power cut,
//! until they are deleted.

use std::collections::BTreeSet;
use std::time::Duration;

use ringlog_io::sim::UnsyncedData;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
};
use ringlog_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use ringlog_protocol::wire::Reader;

use crate::support::clients;
use crate::support::consumer::{At, Consumer};
use crate::support::group_scene::{GROUPS, PARTITION_COUNT, Scene};
use crate::support::member::MemberError;

const GROUP: i8 = 32;
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";
const WAIT: Duration = Duration::from_secs(30);
/// Of the broker.
const DEFAULT_MS: i32 = 5_000;

/// What a member keeps while its node is away.
type Kept = (i32, BTreeSet<At>);

fn consumer(scene: &Scene, group: &str) -> Consumer {
    let (io, host, group) = (scene.io.clone(), scene.broker.address(), group.to_owned());
    scene.run(async move { Consumer::connect(&io, host, &group, "one").await.expect("it serves") })
}

/// A member that comes back, or joins where it kept nothing, and the interval that it is told.
fn told_interval(scene: &Scene, group: &str, kept: Option<Kept>) -> (i32, Kept) {
    let mut member = consumer(scene, group);
    scene.run(async move {
        match kept {
            Some((epoch, owned)) => (member.epoch, member.owned) = (epoch, owned),
            None => member.own(PARTITION_COUNT as usize).await.expect("it joins"),
        }
        let told = loop {
            match member.beat(|_| ()).await {
                Err(MemberError::Refused(ErrorCode::CoordinatorLoadInProgress)) => {}
                told => break told.expect("it is a member"),
            }
        };
        (told.heartbeat_interval_ms, (member.epoch, member.owned))
    })
}

/// Error numbers of setting, or with `None` deleting, the interval of these groups in one request.
fn alter(scene: &Scene, groups: &'static [&'static str], value: Option<&'static str>) -> Vec<i16> {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let connection = clients::connect(&io, host).await.expect("it serves").any_connection().await;
        let operation = i8::from(value.is_none());
        let resources = groups.iter().map(|group| AlterConfigsResource {
            resource_type: GROUP,
            resource_name: group,
            configs: vec![AlterableConfig { name: HEARTBEAT, config_operation: operation, value }],
        });
        let request = IncrementalAlterConfigsRequest { resources: resources.collect(), validate_only: false };
        let encode = |writer: &mut _, version| request.encode(writer, version);
        let api = ApiKey::IncrementalAlterConfigs;
        let body = connection.expect("it serves").call(api, 1, WAIT, encode).await.expect("an answer");
        let response =
            IncrementalAlterConfigsResponse::decode(&mut Reader::new(&body), 1).expect("an answer");
        response.responses.iter().map(|told| told.error_code).collect()
    })
}

/// Each config of a group: name, value, source, and the names of its synonyms.
fn described(scene: &Scene, group: &'static str) -> Vec<(String, String, i8, Vec<String>)> {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let connection = clients::connect(&io, host).await.expect("it serves").any_connection().await;
        let resource =
            DescribeConfigsResource { resource_type: GROUP, resource_name: group, configuration_keys: None };
        let request = DescribeConfigsRequest {
            resources: vec![resource],
            include_synonyms: true,
            include_documentation: true,
        };
        let encode = |writer: &mut _, version| request.encode(writer, version);
        let api = ApiKey::DescribeConfigs;
        let body = connection.expect("it serves").call(api, 4, WAIT, encode).await.expect("an answer");
        let response = DescribeConfigsResponse::decode(&mut Reader::new(&body), 4).expect("an answer");
        let result = &response.results[0];
        assert_eq!((result.error_code, result.resource_type, result.resource_name), (0, GROUP, group));
        let configs = result.configs.iter().map(|config| {
            assert!(config.documentation.is_some_and(|text| text.ends_with('.')) && !config.read_only);
            let synonyms = config.synonyms.iter().map(|synonym| synonym.name.to_owned());
            let value = config.value.unwrap_or_default().to_owned();
            (config.name.to_owned(), value, config.config_source, synonyms.collect())
        });
        configs.collect()
    })
}

#[test]
fn what_is_set_for_groups_holds_at_once_and_over_a_power_cut_until_it_is_deleted() {
    for (seed, core_count) in [(0, 1), (1, 3)] {
        let scene = Scene::new(seed, core_count);
        // One group is set before it has a member, and one not at all.
        let (early, other) = (&GROUPS[..1], GROUPS[5]);
        assert_eq!(alter(&scene, early, Some("7000")), [0]);
        let mut kept = Vec::new();
        for group in GROUPS {
            let (interval, member) = told_interval(&scene, group, None);
            assert_eq!(interval, if group == early[0] { 7_000 } else { DEFAULT_MS }, "{group}");
            kept.push(member);
        }
        assert_eq!(alter(&scene, &GROUPS[..5], Some("9000")), [0; 5]);
        let expected = |group: &str| if group == other { DEFAULT_MS } else { 9_000 };
        for (group, kept) in GROUPS.iter().zip(&kept) {
            assert_eq!(told_interval(&scene, group, Some(kept.clone())).0, expected(group), "{group}");
        }
        assert_eq!(alter(&scene, &GROUPS[..1], Some("4999")), [ErrorCode::InvalidConfig.code()]);
        let scene = scene.cut_power(UnsyncedData::Lost);
        for (group, kept) in GROUPS.iter().zip(&kept) {
            assert_eq!(told_interval(&scene, group, Some(kept.clone())).0, expected(group), "{group}");
        }
        assert_eq!(alter(&scene, &GROUPS, None), [0; 6]);
        for (group, kept) in GROUPS.iter().zip(kept) {
            assert_eq!(told_interval(&scene, group, Some(kept)).0, DEFAULT_MS, "{group}");
        }
        scene.stop();
    }
}

#[test]
fn a_group_is_described_with_its_own_values_before_the_brokers() {
    let scene = Scene::new(2, 2);
    let names = |configs: &[(String, String, i8, Vec<String>)]| {
        configs.iter().map(|(name, ..)| name.clone()).collect::<Vec<_>>()
    };
    let before = described(&scene, "nobody");
    let all = ["consumer.assignment.interval.ms", HEARTBEAT, "consumer.session.timeout.ms"];
    assert_eq!(names(&before), all);
    let broker = "group.consumer.heartbeat.interval.ms".to_owned();
    assert_eq!(before[1], (HEARTBEAT.to_owned(), "5000".to_owned(), 5, vec![broker.clone()]));
    // Set in the node's own configuration.
    assert_eq!((before[2].1.as_str(), before[2].2), ("10000", 4));
    assert_eq!(alter(&scene, &["nobody"], Some(" 8000 ")), [0]);
    let after = described(&scene, "nobody");
    assert_eq!(after[1], (HEARTBEAT.to_owned(), "8000".to_owned(), 8, vec![HEARTBEAT.to_owned(), broker]));
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    scene.stop();
}
