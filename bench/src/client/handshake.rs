//! ApiVersions: the first exchange on every connection (KIP-35, KIP-511).
//!
//! A broker that does not know our version answers in version 0 with error 35 and, at least, its range for
//! ApiVersions; then we ask again in a version that it knows.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ringlog_protocol::api::{ApiKey, VersionRange};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use ringlog_protocol::wire::Reader;

use super::connection::Connection;
use super::error::ClientError;

/// The version asked for first. Version 5 would let the broker check a cluster id that we do not know yet.
const FIRST_VERSION: i16 = 4;

/// Learns which versions the broker serves and keeps them in `connection`.
///
/// # Errors
/// A failed request, an unreadable answer, or error codes other than UNSUPPORTED_VERSION.
pub async fn negotiate(connection: &Connection) -> Result<(), ClientError> {
    let mut version = FIRST_VERSION;
    // At most three rounds: ours, theirs, and version 0 for a broker whose range is of no use.
    for _ in 0..3 {
        let body = ask(connection, version).await?;
        match read_answer(connection, version, &body)? {
            Answer::Versions(versions) => {
                connection.set_versions(versions);
                return Ok(());
            }
            Answer::AskAgain(next) if next < version => version = next,
            Answer::AskAgain(_) if version > 0 => version = 0,
            Answer::AskAgain(_) => break,
        }
    }
    Err(refused(connection, ErrorCode::UnsupportedVersion.code()))
}

enum Answer {
    Versions(BTreeMap<i16, VersionRange>),
    AskAgain(i16),
}

async fn ask(connection: &Connection, version: i16) -> Result<Bytes, ClientError> {
    let request = ApiVersionsRequest {
        client_software_name: if version >= 3 { "ringlog" } else { "" },
        client_software_version: if version >= 3 { env!("CARGO_PKG_VERSION") } else { "" },
        ..ApiVersionsRequest::default()
    };
    connection
        .call(ApiKey::ApiVersions, version, Duration::ZERO, |writer, version| request.encode(writer, version))
        .await
}

fn read_answer(connection: &Connection, version: i16, body: &Bytes) -> Result<Answer, ClientError> {
    let code = body.first_chunk::<2>().map(|bytes| i16::from_be_bytes(*bytes));
    let is_unsupported = code == Some(ErrorCode::UnsupportedVersion.code());
    let answered_version = if is_unsupported { 0 } else { version };
    let response =
        ApiVersionsResponse::decode(&mut Reader::new(body), answered_version).map_err(|source| {
            ClientError::Decode {
                address: connection.address().to_string(),
                api: ApiKey::ApiVersions.name(),
                version: answered_version,
                source,
            }
        })?;
    let versions: BTreeMap<i16, VersionRange> = response
        .api_keys
        .iter()
        .map(|api| (api.api_key, VersionRange { min: api.min_version, max: api.max_version }))
        .collect();
    if is_unsupported {
        let theirs = versions.get(&ApiKey::ApiVersions.key()).map_or(0, |range| range.max);
        return Ok(Answer::AskAgain(theirs.clamp(0, FIRST_VERSION)));
    }
    if response.error_code != 0 {
        return Err(refused(connection, response.error_code));
    }
    Ok(Answer::Versions(versions))
}

fn refused(connection: &Connection, code: i16) -> ClientError {
    ClientError::Refused {
        address: connection.address().to_string(),
        api: ApiKey::ApiVersions.name(),
        subject: "this client".to_owned(),
        code,
        message: None,
    }
}
