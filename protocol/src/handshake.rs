//! The rules of `ApiVersions` that break real clients when missed (KIP-511, KIP-584, KIP-1242).
//!
//! It builds the parts of the response that follow from the API table, and checks the request. Which features exist and at
//! which levels is not known here.

use crate::api;
use crate::api::ApiKey;
use crate::error_code::ErrorCode;
use crate::messages::api_versions::{
    ApiVersion, ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey,
};

/// The first version whose clients take features with a lowest level of 0 (KAFKA-17011).
const LEVEL_ZERO_SINCE: i16 = 4;

/// A feature and the levels this broker can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature<'a> {
    pub name: &'a str,
    pub level_min: i16,
    pub level_max: i16,
}

/// The answer to a version that is not known: to be written in **version 0**, with only `ApiVersions` itself in the list. A
/// client picks its next attempt from that one entry.
#[must_use]
pub fn unsupported_version_response() -> ApiVersionsResponse<'static> {
    let mut api_keys = advertised_keys();
    api_keys.retain(|entry| entry.api_key == ApiKey::ApiVersions.key());
    ApiVersionsResponse { error_code: ErrorCode::UnsupportedVersion.code(), api_keys, ..Default::default() }
}

/// What is served, as the table says: never more, or clients rely on what is not there.
#[must_use]
pub fn advertised_keys() -> Vec<ApiVersion> {
    api::served()
        .map(|(api, served)| ApiVersion {
            api_key: api.key.key(),
            min_version: served.advertised.min,
            max_version: served.advertised.max,
        })
        .collect()
}

/// The features to list to a client that asked at `version`: up to 3 those with a lowest level of 0 are left out, because
/// such clients refuse the whole response (KAFKA-17011).
#[must_use]
pub fn supported_features<'a>(
    features: impl IntoIterator<Item = Feature<'a>>,
    version: i16,
) -> Vec<SupportedFeatureKey<'a>> {
    features
        .into_iter()
        .filter(|feature| version >= LEVEL_ZERO_SINCE || feature.level_min > 0)
        .map(|feature| SupportedFeatureKey {
            name: feature.name,
            min_version: feature.level_min,
            max_version: feature.level_max,
        })
        .collect()
}

/// Checks what the client says of itself. Whether the cluster and node it means are this one is checked by whoever knows
/// them (`REBOOTSTRAP_REQUIRED` if not).
///
/// # Errors
/// [`ErrorCode::InvalidRequest`]: from version 3 for a bad software name or version, from 5 for a cluster id without a node id
/// or the other way round.
pub fn check_request(request: &ApiVersionsRequest<'_>, version: i16) -> Result<(), ErrorCode> {
    if version >= 5 && request.cluster_id.is_some() != (request.node_id != -1) {
        return Err(ErrorCode::InvalidRequest);
    }
    let is_named = is_valid_software_name(request.client_software_name)
        && is_valid_software_name(request.client_software_version);
    if version >= 3 && !is_named {
        return Err(ErrorCode::InvalidRequest);
    }
    Ok(())
}

/// Whether a client's software name or version is one: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`.
#[must_use]
pub fn is_valid_software_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && bytes.iter().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ResponseHeader;
    use crate::wire::{Reader, Writer};

    #[test]
    fn an_unknown_version_is_answered_in_version_0_with_error_35_and_only_key_18() {
        let mut writer = Writer::new();
        ResponseHeader { correlation_id: 7 }.encode(&mut writer, ApiKey::ApiVersions, 32_000);
        unsupported_version_response().encode(&mut writer, 0).expect("version 0 carries it");
        // Correlation id; error 35; one entry: key 18, versions 0 to 5. No throttle time, no tags.
        let expected = [0, 0, 0, 7, 0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 5];
        assert_eq!(writer.into_bytes().as_ref(), expected);
    }

    #[test]
    fn the_response_header_has_no_tags_even_before_a_flexible_body() {
        let mut writer = Writer::new();
        ResponseHeader { correlation_id: 7 }.encode(&mut writer, ApiKey::ApiVersions, 4);
        ApiVersionsResponse::default().encode(&mut writer, 4).expect("defaults fit");
        // Correlation id, then at once the error code; a compact empty list; throttle time; no tags.
        assert_eq!(writer.into_bytes().as_ref(), [0, 0, 0, 7, 0, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn produce_is_advertised_from_version_0() {
        let produce =
            advertised_keys().into_iter().find(|entry| entry.api_key == 0).expect("Produce is served");
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
    }

    #[test]
    fn init_producer_id_6_is_unstable_and_not_advertised() {
        let entry = advertised_keys()
            .into_iter()
            .find(|entry| entry.api_key == 22)
            .expect("InitProducerId is served");
        assert_eq!(entry.max_version, 5);
    }

    #[test]
    fn features_with_lowest_level_0_are_hidden_from_versions_up_to_3() {
        let kraft = Feature { name: "kraft.version", level_min: 0, level_max: 1 };
        let metadata = Feature { name: "metadata.version", level_min: 7, level_max: 33 };
        for (version, expected) in
            [(3, vec!["metadata.version"]), (4, vec!["kraft.version", "metadata.version"])]
        {
            let listed: Vec<_> =
                supported_features([kraft, metadata], version).iter().map(|feature| feature.name).collect();
            assert_eq!(listed, expected, "version {version}");
            // The list survives the wire: it travels in a tagged field.
            let response = ApiVersionsResponse {
                supported_features: supported_features([kraft, metadata], version),
                ..Default::default()
            };
            let mut writer = Writer::new();
            response.encode(&mut writer, version).expect("features are carried since 3");
            let bytes = writer.into_bytes();
            assert_eq!(ApiVersionsResponse::decode(&mut Reader::new(&bytes), version), Ok(response));
        }
    }

    #[test]
    fn software_names_follow_the_pattern() {
        for name in ["a", "Z", "0", "apache-kafka-java", "4.4.0", "a.-.b", "librdkafka"] {
            assert!(is_valid_software_name(name), "{name}");
        }
        for name in ["", "-a", "a-", ".a", "a.", "a b", "a_b", "é", "a\n", "a\0b", "-"] {
            assert!(!is_valid_software_name(name), "{name:?}");
        }
    }

    #[test]
    fn bad_requests_are_refused_from_the_version_that_has_the_field() {
        let named = ApiVersionsRequest {
            client_software_name: "kcat",
            client_software_version: "1.7",
            ..Default::default()
        };
        let unnamed = ApiVersionsRequest::default();
        let cluster_only = ApiVersionsRequest { cluster_id: Some("c"), ..named };
        let node_only = ApiVersionsRequest { node_id: 1, ..named };
        let both = ApiVersionsRequest { cluster_id: Some("c"), node_id: 1, ..named };
        let refused = Err(ErrorCode::InvalidRequest);
        for (request, version, expected) in [
            (unnamed, 2, Ok(())),
            (unnamed, 3, refused),
            (named, 3, Ok(())),
            (named, 5, Ok(())),
            (cluster_only, 4, Ok(())),
            (cluster_only, 5, refused),
            (node_only, 5, refused),
            (both, 5, Ok(())),
        ] {
            assert_eq!(check_request(&request, version), expected, "{request:?} at {version}");
        }
    }
}
