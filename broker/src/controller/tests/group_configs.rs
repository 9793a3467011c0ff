//! Configs of groups: which levels of the format have them, what may be set, and that log and snapshot hold them.

use ringlog_shard::limits::{GROUP_TEXT_BYTES_MAX, GROUPS_WITH_CONFIGS_MAX};

use super::super::features::FORMAT;
use super::alter_configs::{APPEND, DELETE, each, owned, pairs, replace, set, step};
use super::*;
use crate::group::GroupOverrides;

const GROUP: i8 = 32;
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";
const SESSION: &str = "consumer.session.timeout.ms";

fn configs(cluster: &Cluster, group: &str) -> Vec<(String, String)> {
    pairs(cluster.machine.image().group_configs(group))
}

fn in_force(cluster: &Cluster, group: &str) -> Option<GroupOverrides> {
    cluster.machine.image().group_overrides().get(group).copied()
}

#[test]
fn a_group_works_by_what_was_set_until_it_is_deleted() {
    let mut cluster = Cluster::at_level(3);
    let steps = vec![set(HEARTBEAT, " 7000 "), set(SESSION, "50000")];
    assert_eq!(cluster.alter(each(GROUP, "readers", steps)), (0, String::new()));
    assert_eq!(configs(&cluster, "readers"), owned(&[(HEARTBEAT, "7000"), (SESSION, "50000")]));
    let both = GroupOverrides {
        heartbeat_interval_ms: Some(7_000),
        session_timeout_ms: Some(50_000),
        assignment_interval_ms: None,
    };
    assert_eq!(in_force(&cluster, "readers"), Some(both));
    assert_eq!(in_force(&cluster, "others"), None);
    let assignment = [("consumer.assignment.interval.ms", Some("2000"))];
    assert_eq!(cluster.alter(replace(GROUP, "others", &assignment)).0, 0);
    cluster.check_snapshots();
    assert_eq!(cluster.alter(each(GROUP, "readers", vec![step(SESSION, DELETE, None)])).0, 0);
    let one = GroupOverrides { session_timeout_ms: None, ..both };
    assert_eq!(in_force(&cluster, "readers"), Some(one));
    let length = cluster.log.len();
    for same in [set(HEARTBEAT, "7000"), step(SESSION, DELETE, None), step("no.such", DELETE, None)] {
        assert_eq!(cluster.alter(each(GROUP, "readers", vec![same])).0, 0);
    }
    assert_eq!(cluster.log.len(), length, "what changes nothing needs no record");
    assert_eq!(cluster.alter(replace(GROUP, "readers", &[])).0, 0);
    assert_eq!((configs(&cluster, "readers"), in_force(&cluster, "readers")), (vec![], None));
    assert_eq!(cluster.replayed().image, cluster.machine.image);
    cluster.check_snapshots();
}

#[test]
fn an_older_format_refuses_them_and_says_what_to_do() {
    for level in [1, 2] {
        let mut cluster = Cluster::at_level(level);
        for resource in [
            each(GROUP, "readers", vec![set(HEARTBEAT, "7000")]),
            each(GROUP, "readers", vec![step(HEARTBEAT, DELETE, None)]),
            replace(GROUP, "readers", &[]),
        ] {
            let (code, text) = cluster.alter(resource);
            assert_eq!(code, ErrorCode::UnsupportedVersion.code(), "{text}");
            assert!(text.contains(&format!("the cluster runs {level}")), "{text}");
            assert!(text.contains("`ringlog cluster features upgrade`"), "{text}");
        }
        let updates = vec![FeatureUpdate { feature: FORMAT.to_owned(), level: 3, kind: 1 }];
        let request = UpdateFeatures { updates, validate_only: false };
        let raised = cluster.ask(ControllerRequest::UpdateFeatures(request));
        assert_eq!(raised, ControllerReply::FeaturesUpdated(Ok(())));
        assert_eq!(cluster.alter(each(GROUP, "readers", vec![set(HEARTBEAT, "7000")])).0, 0);
        assert_eq!(cluster.replayed().image, cluster.machine.image);
        cluster.check_snapshots();
    }
}

#[test]
fn what_a_group_cannot_have_is_refused_whole() {
    let mut cluster = Cluster::at_level(3);
    let long = "g".repeat(GROUP_TEXT_BYTES_MAX + 1);
    for (resource, code, part) in [
        (each(GROUP, "", vec![set(HEARTBEAT, "7000")]), 42, "A group has a name"),
        (each(GROUP, &long, vec![set(HEARTBEAT, "7000")]), 42, "bytes long and may be"),
        (each(GROUP, "g", vec![set(HEARTBEAT, "7000"), set("x.y", "1")]), 40, "unknown group config 'x.y'"),
        (each(GROUP, "g", vec![set("share.session.timeout.ms", "45000")]), 40, "share groups are not built"),
        (each(GROUP, "g", vec![set(HEARTBEAT, "4999")]), 40, "takes 5000 to 15000, not 4999"),
        (each(GROUP, "g", vec![set(SESSION, "60001")]), 40, "takes 45000 to 60000, not 60001"),
        (replace(GROUP, "g", &[(HEARTBEAT, Some("soon"))]), 40, "whole number of 32 bits"),
        (replace(GROUP, "g", &[(HEARTBEAT, None)]), 42, "is given no value"),
        (each(GROUP, "g", vec![step(HEARTBEAT, APPEND, Some("7000"))]), 40, "APPEND needs one"),
    ] {
        let (found, text) = cluster.alter(resource.clone());
        assert_eq!(found, code, "{resource:?}: {text}");
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let dry = vec![each(GROUP, "g", vec![set(HEARTBEAT, "7000")])];
    assert_eq!(cluster.alters(dry, true), [Ok(())]);
    assert_eq!(cluster.log.len(), 1, "nothing was written");
}

#[test]
fn so_many_groups_have_configs_and_no_more() {
    let mut cluster = Cluster::at_level(3);
    let stored = |index: usize| {
        let configs = owned(&[(HEARTBEAT, "7000")]);
        Record::GroupConfigs(GroupConfigsRecord { group: format!("g{index}"), configs }).encode()
    };
    for index in 0..GROUPS_WITH_CONFIGS_MAX - 1 {
        cluster.machine.replay(Offset(index as i64 + 1), &stored(index)).expect("a record");
    }
    let one = |name: &str| each(GROUP, name, vec![set(HEARTBEAT, "8000")]);
    let told = cluster.alters(vec![one("new"), one("newer"), one("g0")], true);
    assert_eq!([told[0].is_ok(), told[1].is_ok(), told[2].is_ok()], [true, false, true]);
    assert!(told[1].as_ref().is_err_and(|refusal| refusal.message.contains("as many as may")), "{told:?}");
}
