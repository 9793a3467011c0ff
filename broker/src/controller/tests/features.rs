//! Levels of features: of new clusters and old ones, how UpdateFeatures is judged, and that log and snapshot hold them.

use super::super::features::{BUILT, FORMAT, Feature, upgrade_type::*};
use super::*;

const ID: &str = "5L6g3nShT-eMCtK--X86sw";

/// A later build's features: one that can be off, one that a new cluster has off, one without which there is no running.
const TABLE: &[Feature] = &[
    Feature { name: "group.version", lowest: 0, highest: 1, new_cluster: 1 },
    Feature { name: FORMAT, lowest: 1, highest: 2, new_cluster: 2 },
    Feature { name: "share.version", lowest: 0, highest: 3, new_cluster: 0 },
    Feature { name: "wire.version", lowest: 2, highest: 3, new_cluster: 2 },
];

fn empty(features: &'static [Feature]) -> Cluster {
    let settings = ControllerSettings { features, ..settings(crate::topic_config::tests::defaults()) };
    Cluster { machine: MetadataMachine::new(settings), log: Vec::new(), random: 0 }
}

fn node() -> NodeRecord {
    NodeRecord { id: ME, directory: [1; 16], host: "h".to_owned(), port: 9092, rack: None }
}

fn starts(cluster: &mut Cluster) {
    let initialize = InitializeCluster { cluster_id: ID.to_owned(), node: node() };
    let done = cluster.ask(ControllerRequest::InitializeCluster(initialize));
    assert_eq!(done, ControllerReply::ClusterInitialized(Ok(())));
}

/// As the first builds made one: the format's level in the cluster's record, no other level anywhere.
fn old(features: &'static [Feature]) -> Cluster {
    let mut cluster = empty(features);
    let named = Record::Cluster(ClusterRecord { id: ID.to_owned(), metadata_version: 1 });
    for record in [named, Record::Node(node())] {
        let record = record.encode();
        cluster.machine.replay(Offset(cluster.log.len() as i64), &record).expect("it is read for ever");
        cluster.log.push(record);
    }
    cluster
}

fn levels(cluster: &Cluster) -> Vec<(&'static str, i16)> {
    cluster.machine.image().features().iter().collect()
}

fn update(cluster: &mut Cluster, updates: &[(&str, i16, i8)], validate_only: bool) -> Result<(), String> {
    let updates = updates.iter().map(|&(feature, level, kind)| FeatureUpdate {
        feature: feature.to_owned(),
        level,
        kind,
    });
    let request = UpdateFeatures { updates: updates.collect(), validate_only };
    let before = (cluster.log.len(), levels(cluster));
    let reply = cluster.ask(ControllerRequest::UpdateFeatures(request));
    let ControllerReply::FeaturesUpdated(updated) = reply else { panic!("{reply:?}") };
    if validate_only || updated.is_err() {
        assert_eq!((cluster.log.len(), levels(cluster)), before, "nothing happened");
    }
    updated.map_err(|refusal| {
        assert_eq!(refusal.error, ErrorCode::InvalidUpdateVersion);
        let beginning = "No level was changed, since one of the changes cannot be: ";
        refusal.message.strip_prefix(beginning).expect("why nothing happened").to_owned()
    })
}

fn refused(cluster: &mut Cluster, updates: &[(&str, i16, i8)], reason: &str) {
    let dry = update(cluster, updates, true);
    assert_eq!(dry, update(cluster, updates, false), "a dry run says the same");
    let text = dry.expect_err("it is refused");
    assert!(text.contains(reason), "{text}");
}

#[test]
fn the_table_of_this_build_is_in_order_and_consistent() {
    for table in [BUILT, TABLE] {
        assert!(table.is_sorted_by(|a, b| a.name < b.name), "sorted, each once");
        for feature in table {
            assert!(0 <= feature.lowest && feature.lowest <= feature.highest, "{feature:?}");
            assert!(feature.runs(feature.new_cluster), "{feature:?}");
        }
        let format = table.iter().find(|feature| feature.name == FORMAT).expect("it is always there");
        assert!(format.lowest >= 1 && format.new_cluster >= 2, "new clusters can hold levels: {format:?}");
    }
}

#[test]
fn a_new_cluster_begins_with_the_levels_of_the_table() {
    let mut cluster = empty(TABLE);
    assert_eq!(levels(&cluster), []);
    starts(&mut cluster);
    assert_eq!(levels(&cluster), [("group.version", 1), (FORMAT, 2), ("wire.version", 2)]);
    let length = cluster.log.len();
    starts(&mut cluster);
    assert_eq!(cluster.log.len(), length, "a later start changes none");
    assert_eq!(cluster.replayed().image, cluster.machine.image);
    cluster.check_snapshots();
}

#[test]
fn an_old_cluster_keeps_its_format_and_has_all_else_off_until_it_is_updated() {
    let mut cluster = old(TABLE);
    starts(&mut cluster);
    assert_eq!(
        cluster.log.len(),
        2,
        "a start of a newer build writes nothing that the older one cannot read"
    );
    assert_eq!(levels(&cluster), [(FORMAT, 1)]);
    let depends = format!("group.version at level 1: it takes {FORMAT} 2, and that is 1.");
    refused(&mut cluster, &[("group.version", 1, UPGRADE)], &depends);
    let both = [("group.version", 1, UPGRADE), (FORMAT, 2, UPGRADE)];
    assert_eq!(update(&mut cluster, &both, true), Ok(()));
    assert_eq!(update(&mut cluster, &both, false), Ok(()));
    assert_eq!(levels(&cluster), [("group.version", 1), (FORMAT, 2)]);
    assert_eq!(cluster.replayed().image, cluster.machine.image);
    cluster.check_snapshots();
}

#[test]
fn a_level_goes_up_by_an_upgrade_and_down_by_a_downgrade_only() {
    let mut cluster = empty(TABLE);
    starts(&mut cluster);
    refused(
        &mut cluster,
        &[("group.version", 0, UPGRADE)],
        "the cluster runs level 1, and the request does not say that it means a downgrade.",
    );
    for kind in [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE] {
        refused(&mut cluster, &[("share.version", 1, kind)], "so this is no downgrade.");
        assert_eq!(update(&mut cluster, &[("group.version", 0, kind)], false), Ok(()));
        assert_eq!(levels(&cluster), [(FORMAT, 2), ("wire.version", 2)]);
        cluster.check_snapshots();
        assert_eq!(update(&mut cluster, &[("group.version", 1, UPGRADE)], false), Ok(()));
    }
    assert_eq!(update(&mut cluster, &[("share.version", 3, UPGRADE)], false), Ok(()));
    assert_eq!(update(&mut cluster, &[("share.version", 1, SAFE_DOWNGRADE)], false), Ok(()));
    assert_eq!(cluster.machine.image().features().level("share.version"), 1);
    let length = cluster.log.len();
    for kind in [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE] {
        assert_eq!(update(&mut cluster, &[("share.version", 1, kind), (FORMAT, 2, kind)], false), Ok(()));
    }
    assert_eq!(update(&mut cluster, &[], false), Ok(()));
    assert_eq!(cluster.log.len(), length, "the level it has needs no record");
    assert_eq!(cluster.replayed().image, cluster.machine.image);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let mut cluster = empty(TABLE);
    starts(&mut cluster);
    for (updates, reason) in [
        ([("group.version", 1, 0)], "group.version at level 1: 0 is no type of upgrade; 1, 2 and 3 are."),
        ([("group.version", 1, 4)], "4 is no type of upgrade"),
        ([("group.version", -1, SAFE_DOWNGRADE)], "a level is 0 or more."),
        ([("group.version", 2, UPGRADE)], "group.version at level 2: broker 1 runs levels 0 to 1."),
        ([("wire.version", 0, UNSAFE_DOWNGRADE)], "broker 1 runs levels 2 to 3."),
        ([("no.such", 1, UPGRADE)], "broker 1 has no such feature."),
        ([("no.such", 0, UNSAFE_DOWNGRADE)], "no.such at level 0: there is no such feature."),
        ([(FORMAT, 3, UPGRADE)], "broker 1 runs levels 1 to 2."),
        ([(FORMAT, 1, SAFE_DOWNGRADE)], "cannot go from level 2 to 1: it would lose metadata"),
        ([(FORMAT, 1, UNSAFE_DOWNGRADE)], "downgrades that lose metadata are not built."),
    ] {
        refused(&mut cluster, &updates, reason);
        let with_a_good_one = [("share.version", 3, UPGRADE), updates[0]];
        refused(&mut cluster, &with_a_good_one, reason);
    }
    let long = "x".repeat(10_000);
    assert!(update(&mut cluster, &[(&long, 1, UPGRADE)], false).is_err_and(|text| text.len() < 1_000));
    let twice = [("share.version", 9, UPGRADE), ("share.version", 2, UPGRADE)];
    assert_eq!(update(&mut cluster, &twice, false), Ok(()), "the last counts");
    assert_eq!(cluster.machine.image().features().level("share.version"), 2);
}

#[test]
fn a_build_does_not_start_on_levels_that_it_cannot_run() {
    for (records, name) in [
        (vec![Record::Cluster(ClusterRecord { id: ID.to_owned(), metadata_version: 3 })], FORMAT),
        (vec![Record::Cluster(ClusterRecord { id: ID.to_owned(), metadata_version: 0 })], FORMAT),
        (vec![super::super::features::level_record("share.version", 4)], "share.version"),
        (vec![super::super::features::level_record("share.version", -1)], "share.version"),
        (vec![super::super::features::level_record("of.a.newer.build", 1)], "of.a.newer.build"),
    ] {
        let mut cluster = empty(TABLE);
        let replayed =
            records.iter().try_for_each(|record| cluster.machine.replay(Offset(0), &record.encode()));
        assert!(
            matches!(&replayed, Err(ReplayError::Feature { name: found, .. }) if found == name),
            "{replayed:?}"
        );
    }
}
