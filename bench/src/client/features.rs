//! Levels of features over [`Client`]: what a broker can run, what its cluster runs, and changing that.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use ringlog_protocol::messages::update_features::{
    FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use ringlog_protocol::wire::Reader;

use super::admin::{milliseconds, refused_if, unreadable};
use super::cluster::Client;
use super::error::ClientError;

/// How long the broker may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// From here on a broker names features that can be off too; the next would let it check a cluster id that is not known here.
const API_VERSIONS_VERSION_MAX: i16 = 4;

/// What a cluster runs and may run, as one broker reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// By name. A broker may run what it no longer says to support.
    pub features: BTreeMap<String, FeatureState>,
    /// Rises with each change of levels, in some brokers with other changes too; `None` where the broker knows none.
    pub epoch: Option<i64>,
}

/// One feature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureState {
    /// What the cluster runs; 0 = off.
    pub level: i16,
    /// Lowest and highest that the broker can run; `None` where it does not say.
    pub supported: Option<(i16, i16)>,
}

/// Which way a level may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Upwards.
    Up,
    /// Downwards where nothing is lost.
    Down,
    /// Downwards, whatever is lost.
    DownWithLoss,
}

impl Client {
    /// What any one broker reports.
    ///
    /// # Errors
    /// Failed requests. A broker from before features has none.
    pub async fn features(&self) -> Result<Features, ClientError> {
        let connection = self.any_connection().await?;
        let version = connection.version(ApiKey::ApiVersions)?.min(API_VERSIONS_VERSION_MAX);
        let request = ApiVersionsRequest {
            client_software_name: if version >= 3 { "ringlog" } else { "" },
            client_software_version: if version >= 3 { env!("CARGO_PKG_VERSION") } else { "" },
            ..ApiVersionsRequest::default()
        };
        let body = connection
            .call(ApiKey::ApiVersions, version, TIMEOUT, |writer, version| request.encode(writer, version))
            .await?;
        let response = ApiVersionsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::ApiVersions, version, source))?;
        refused_if(&connection, ApiKey::ApiVersions, "this client", response.error_code, None)?;
        Ok(Features::from(&response))
    }

    /// Gives features these levels: all of them or none. With `validate_only` the broker judges and changes nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn update_features(
        &self,
        levels: &[(&str, i16)],
        direction: Direction,
        validate_only: bool,
    ) -> Result<(), ClientError> {
        let connection = self.any_connection().await?;
        let api = ApiKey::UpdateFeatures;
        let version = connection.version(api)?;
        let (upgrade_type, allow_downgrade) = match direction {
            Direction::Up => (1, false),
            Direction::Down => (2, true),
            Direction::DownWithLoss => (3, true),
        };
        let updates = levels.iter().map(|&(feature, max_version_level)| FeatureUpdateKey {
            feature,
            max_version_level,
            // Each version has one of the two, and refuses the other.
            allow_downgrade: version == 0 && allow_downgrade,
            upgrade_type: if version == 0 { 1 } else { upgrade_type },
        });
        let request = UpdateFeaturesRequest {
            timeout_ms: milliseconds(TIMEOUT),
            feature_updates: updates.collect(),
            validate_only,
        };
        let body =
            connection.call(api, version, TIMEOUT, |writer, version| request.encode(writer, version)).await?;
        let response = UpdateFeaturesResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, api, version, source))?;
        let (code, message) = (response.error_code, response.error_message);
        refused_if(&connection, api, "features of the cluster", code, message)?;
        response.results.iter().try_for_each(|result| {
            let subject = format!("feature '{}'", result.feature);
            refused_if(&connection, api, subject, result.error_code, result.error_message)
        })
    }
}

impl From<&ApiVersionsResponse<'_>> for Features {
    fn from(response: &ApiVersionsResponse<'_>) -> Features {
        let epoch = Some(response.finalized_features_epoch).filter(|epoch| *epoch >= 0);
        let mut features: BTreeMap<String, FeatureState> = BTreeMap::new();
        for feature in &response.supported_features {
            let supported = Some((feature.min_version, feature.max_version));
            features.insert(feature.name.to_owned(), FeatureState { level: 0, supported });
        }
        // Without an epoch they are not valid.
        for feature in response.finalized_features.iter().filter(|_| epoch.is_some()) {
            features.entry(feature.name.to_owned()).or_default().level = feature.max_version_level;
        }
        Features { features, epoch }
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::messages::api_versions::{FinalizedFeatureKey, SupportedFeatureKey};

    use super::*;

    #[test]
    fn what_is_supported_and_what_runs_come_together_by_name() {
        let supported =
            |name, min_version, max_version| SupportedFeatureKey { name, min_version, max_version };
        let runs =
            |name, level| FinalizedFeatureKey { name, max_version_level: level, min_version_level: level };
        let mut response = ApiVersionsResponse {
            supported_features: vec![supported("a", 0, 2), supported("b", 1, 3)],
            finalized_features: vec![runs("b", 2), runs("gone", 7)],
            finalized_features_epoch: 40,
            ..ApiVersionsResponse::default()
        };
        let found = Features::from(&response);
        assert_eq!(found.epoch, Some(40));
        let expected = [
            ("a", FeatureState { level: 0, supported: Some((0, 2)) }),
            ("b", FeatureState { level: 2, supported: Some((1, 3)) }),
            ("gone", FeatureState { level: 7, supported: None }),
        ];
        assert!(found.features.iter().map(|(name, state)| (name.as_str(), *state)).eq(expected));
        response.finalized_features_epoch = -1;
        let found = Features::from(&response);
        assert_eq!((found.epoch, found.features["b"].level, found.features.len()), (None, 0, 2));
    }
}
