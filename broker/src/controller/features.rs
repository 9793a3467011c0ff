//! Levels of features: which this build can run, which the cluster runs, and how UpdateFeatures is decided, as Kafka 4.4's
//! `FeatureControlManager` does. Pure.
//!
//! A level changes what may be written or said, so it is the cluster's and not a build's: a newer build changes nothing by being
//! started, and an older one can be started again until somebody raises a level. A cluster that is made now begins with
//! [`Feature::new_cluster`]; one that is older runs what its log says, and what its log does not name at 0.

use std::collections::BTreeMap;

use ringlog_flat::metadata::{FeatureLevelRecord, Record};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::state_machine::Outcome;

use super::machine::MetadataMachine;
use super::request::{ControllerReply, FeatureUpdate, Refusal, UpdateFeatures};
use crate::topic_config::quoted;

/// The format of the metadata log. Not `metadata.version`: the levels of that number Kafka's own records, which are not written here,
/// and tools would read 3.9 or 4.1 into them.
pub const FORMAT: &str = "ringlog.metadata.version";

/// From 1 on there are consumer groups of KIP-848: their records are in `__consumer_offsets`, which older builds do not read.
pub const GROUP_VERSION: &str = "group.version";

/// From this level of [`FORMAT`] on the log may hold levels of features.
const FORMAT_WITH_LEVELS: i16 = 2;

/// From this level of [`FORMAT`] on the log may hold configs of groups.
pub(super) const FORMAT_WITH_GROUP_CONFIGS: i16 = 3;

/// From this level of [`FORMAT`] on the log may hold that a topic got more partitions.
pub(super) const FORMAT_WITH_MORE_PARTITIONS: i16 = 4;

/// A feature and the levels that a build can run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    pub name: &'static str,
    /// 0 = it can be off.
    pub lowest: i16,
    pub highest: i16,
    /// Of a cluster that is made by this build.
    pub new_cluster: i16,
}

/// What this build can run, and thereby reports: one line for each feature, by rising name.
pub const BUILT: &[Feature] = &[
    Feature { name: GROUP_VERSION, lowest: 0, highest: 1, new_cluster: 1 },
    Feature { name: FORMAT, lowest: 1, highest: 4, new_cluster: 4 },
];

/// The level of each feature that is not off.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeatureLevels(BTreeMap<&'static str, i16>);

/// Kafka's `FeatureUpdate.UpgradeType`.
pub mod upgrade_type {
    pub const UPGRADE: i8 = 1;
    pub const SAFE_DOWNGRADE: i8 = 2;
    pub const UNSAFE_DOWNGRADE: i8 = 3;
}

impl Feature {
    /// True for a level that this build can run.
    pub fn runs(&self, level: i16) -> bool {
        (self.lowest..=self.highest).contains(&level)
    }
}

impl FeatureLevels {
    /// 0 where it is off.
    pub fn level(&self, feature: &str) -> i16 {
        self.0.get(feature).copied().unwrap_or(0)
    }

    /// Name and level of each that is not off, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'static str, i16)> {
        self.0.iter().map(|(name, level)| (*name, *level))
    }

    pub(super) fn set(&mut self, feature: &Feature, level: i16) {
        match level {
            0 => drop(self.0.remove(feature.name)),
            _ => drop(self.0.insert(feature.name, level)),
        }
    }
}

/// The records that give a new cluster its levels, but for the format's, which comes with its name.
pub(super) fn records_of_new_cluster(features: &'static [Feature]) -> impl Iterator<Item = Record> {
    let others = features.iter().filter(|feature| feature.name != FORMAT && feature.new_cluster > 0);
    others.map(|feature| level_record(feature.name, feature.new_cluster))
}

/// The record of one level.
pub(super) fn level_record(feature: &str, level: i16) -> Record {
    Record::FeatureLevel(FeatureLevelRecord { name: feature.to_owned(), level })
}

impl MetadataMachine {
    /// All updates are made or none.
    pub(super) fn update_features(&self, request: UpdateFeatures) -> Outcome<ControllerReply> {
        let UpdateFeatures { updates, validate_only } = request;
        // Of several for one feature the last counts, as in Kafka.
        let last: BTreeMap<&str, &FeatureUpdate> =
            updates.iter().map(|update| (update.feature.as_str(), update)).collect();
        let mut records = Vec::new();
        for update in last.values() {
            match self.update_feature(update, &last) {
                Ok(feature) if self.image.features.level(feature.name) == update.level => {}
                Ok(feature) => records.push(level_record(feature.name, update.level).encode()),
                Err(reason) => {
                    let text = format!("No level was changed, since one of the changes cannot be: {reason}");
                    let refusal = Refusal::new(ErrorCode::InvalidUpdateVersion, text);
                    return Outcome::reply(ControllerReply::FeaturesUpdated(Err(refusal)));
                }
            }
        }
        if validate_only {
            records.clear();
        }
        Outcome { records, reply: ControllerReply::FeaturesUpdated(Ok(())) }
    }

    /// The feature, if it may get the level; otherwise why not. Checks are in Kafka's order.
    fn update_feature(
        &self,
        update: &FeatureUpdate,
        all: &BTreeMap<&str, &FeatureUpdate>,
    ) -> Result<Feature, String> {
        use upgrade_type::{SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE};
        let FeatureUpdate { feature: name, level, kind } = update;
        let invalid = |why: &str| format!("{} at level {level}: {why}", quoted(name));
        if !matches!(*kind, UPGRADE | SAFE_DOWNGRADE | UNSAFE_DOWNGRADE) {
            return Err(invalid(&format!("{kind} is no type of upgrade; 1, 2 and 3 are.")));
        }
        if *level < 0 {
            return Err(invalid("a level is 0 or more."));
        }
        let me = self.settings.node_id;
        let feature = match self.settings.features.iter().find(|feature| feature.name == name) {
            Some(feature) if feature.runs(*level) => feature,
            Some(Feature { lowest, highest, .. }) => {
                let why = format!("broker {me} runs levels {lowest} to {highest}.");
                return Err(invalid(&why));
            }
            None if *level == 0 => return Err(invalid("there is no such feature.")),
            None => return Err(invalid(&format!("broker {me} has no such feature."))),
        };
        let current = self.image.features.level(name);
        if *level < current && *kind == UPGRADE {
            return Err(invalid(&format!(
                "the cluster runs level {current}, and the request does not say that it means a downgrade."
            )));
        }
        if *level > current && *kind != UPGRADE {
            return Err(invalid(&format!("the cluster runs level {current}, so this is no downgrade.")));
        }
        if name == FORMAT && *level < current {
            // The record that would say so is one that the lower format does not have.
            let why = match *kind {
                UNSAFE_DOWNGRADE => "downgrades that lose metadata are not built.",
                _ => "it would lose metadata that the lower level does not have.",
            };
            return Err(format!("{FORMAT} cannot go from level {current} to {level}: {why}"));
        }
        let format = all.get(FORMAT).map_or(self.image.features.level(FORMAT), |update| update.level);
        if name != FORMAT && format < FORMAT_WITH_LEVELS {
            return Err(invalid(&format!("it takes {FORMAT} {FORMAT_WITH_LEVELS}, and that is {format}.")));
        }
        Ok(*feature)
    }
}
