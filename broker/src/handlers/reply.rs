//! From an encoded response to the pieces that leave. Owns the frame around a response body.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame::ResponseHeader;
use ringlog_protocol::wire::{EncodeError, Piece, Writer};
use ringlog_shard::egress::Outgoing;

use super::RequestInfo;
use crate::server::replies::{Answer, Reply};

/// Encodes an answer of about `capacity_bytes` (without records) at the request's own version.
pub(super) fn reply(
    info: RequestInfo,
    error: ErrorCode,
    capacity_bytes: usize,
    encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
) -> Answer {
    reply_with_sources(info, error, capacity_bytes, Vec::new(), encode)
}

/// Like [`reply`], with what the file ranges in the response point to: each is sent whole, once, where its range stands.
pub(super) fn reply_with_sources(
    info: RequestInfo,
    error: ErrorCode,
    capacity_bytes: usize,
    sources: Vec<Option<Outgoing>>,
    encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
) -> Answer {
    let version = info.version;
    reply_at(info, version, error, capacity_bytes, sources, encode)
}

/// Like [`reply_with_sources`], at a version that is not the request's: an ApiVersions version from the future.
pub(super) fn reply_at(
    info: RequestInfo,
    version: i16,
    error: ErrorCode,
    capacity_bytes: usize,
    mut sources: Vec<Option<Outgoing>>,
    encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
) -> Answer {
    let mut writer = Writer::frame(capacity_bytes);
    ResponseHeader { correlation_id: info.correlation_id }.encode(&mut writer, info.api, version);
    let encoded = encode(&mut writer, version).and_then(|()| writer.finish_frame());
    match encoded {
        Ok(pieces) => {
            let pieces = pieces.into_iter().map(|piece| outgoing(piece, &mut sources)).collect();
            Answer::Reply(Reply { pieces, info, error })
        }
        Err(encode_error) => {
            // Ours, not the peer's: the response holds what its version cannot carry.
            tracing::error!(api = %info.api, version, error = %encode_error, "response cannot be encoded");
            Answer::Close
        }
    }
}

fn outgoing(piece: Piece, sources: &mut [Option<Outgoing>]) -> Outgoing {
    match piece {
        Piece::Bytes(bytes) => Outgoing::Memory(bytes),
        Piece::File(range) => {
            let source = sources.get_mut(range.source as usize).and_then(Option::take);
            source.expect("the handler made both ranges and sources")
        }
    }
}
