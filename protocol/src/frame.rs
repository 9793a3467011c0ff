//! Frames and their headers: the four-byte length, the request's header, the response's header.
//!
//! It decides which header version goes with which API and version, and which versions are answered at all. It reads no
//! sockets and no bodies.

use crate::api::{Api, ApiKey};
use crate::wire::{DecodeError, EncodeError, Reader, Writer};

/// Bytes of the length prefix.
pub const LENGTH_BYTES: usize = 4;

/// Why a length prefix is refused: close the connection before reading on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("frame length {length} is negative")]
    Negative { length: i32 },
    #[error("frame is empty")]
    Empty,
    #[error("frame of {length} bytes is over the limit of {length_max}")]
    TooLarge { length: u32, length_max: u32 },
}

/// The length of the frame that begins with `prefix`, without the prefix itself; `None` until four bytes are there.
///
/// # Errors
/// [`FrameError`] for a length below 1 or over `length_max` bytes.
#[inline]
pub fn frame_length(prefix: &[u8], length_max: u32) -> Result<Option<u32>, FrameError> {
    let Some(bytes) = prefix.first_chunk::<LENGTH_BYTES>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*bytes);
    let Ok(length) = u32::try_from(length) else {
        return Err(FrameError::Negative { length });
    };
    match length {
        0 => Err(FrameError::Empty),
        length if length > length_max => Err(FrameError::TooLarge { length, length_max }),
        length => Ok(Some(length)),
    }
}

/// What is to be done with a request of this API and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Decode the body at the header's version and execute it.
    Serve,
    /// Answer `UNSUPPORTED_VERSION`: `ApiVersions` of an unknown version in version 0 without looking at the body (KIP-511),
    /// Produce 0-2 in their own version (see [`crate::api::Served::advertised`]).
    UnsupportedVersion,
}

/// Why a request's header is refused. All of them close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("request header: {0}")]
    Decode(#[from] DecodeError),
    #[error("api key {key} is unknown")]
    UnknownApi { key: i16 },
    #[error("api {api} is not served")]
    NotServed { api: ApiKey },
    #[error("api {api} is not served at version {version}")]
    UnsupportedVersion { api: ApiKey, version: i16 },
}

/// A request's header, versions 1 and 2 (version 0 belonged to an API that is gone).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader<'a> {
    pub api: ApiKey,
    /// As the client wrote it; may be unknown where `answer` is not [`Answer::Serve`].
    pub api_version: i16,
    pub correlation_id: i32,
    /// What the client calls itself: its own words, unchecked beyond being UTF-8. Escape it before logging.
    pub client_id: Option<&'a str>,
    pub answer: Answer,
}

impl<'a> RequestHeader<'a> {
    /// Reads a header; the reader is then at the body.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(reader: &mut Reader<'a>) -> Result<Self, HeaderError> {
        let key = reader.i16("RequestHeader.request_api_key")?;
        let api_version = reader.i16("RequestHeader.request_api_version")?;
        let correlation_id = reader.i32("RequestHeader.correlation_id")?;
        let api = ApiKey::from_i16(key).ok_or(HeaderError::UnknownApi { key })?;
        let answer = answer_to(api.api(), api_version)?;
        if api == ApiKey::ApiVersions && answer == Answer::UnsupportedVersion {
            // A later version may bring a later header, so nothing past the correlation id can be relied on.
            let client_id = reader.nullable_string("RequestHeader.client_id").unwrap_or(None);
            return Ok(Self { api, api_version, correlation_id, client_id, answer });
        }
        // The client id keeps its two-byte length in every header version.
        let client_id = reader.nullable_string("RequestHeader.client_id")?;
        if api.api().request_header_version(api_version) >= 2 {
            reader.skip_tags("RequestHeader")?;
        }
        Ok(Self { api, api_version, correlation_id, client_id, answer })
    }

    /// The version the response's body is to be written in: the request's, or 0 for `ApiVersions` of an unknown version.
    #[must_use]
    pub fn response_version(&self) -> i16 {
        match self.answer {
            Answer::UnsupportedVersion if self.api == ApiKey::ApiVersions => 0,
            _ => self.api_version,
        }
    }

    /// Writes a header, for clients. `answer` is not part of it.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] for a client id over 32,767 bytes.
    pub fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.i16(self.api.key());
        writer.i16(self.api_version);
        writer.i32(self.correlation_id);
        writer.nullable_string("RequestHeader.client_id", self.client_id)?;
        if self.api.api().request_header_version(self.api_version) >= 2 {
            writer.u8(0);
        }
        Ok(())
    }
}

fn answer_to(api: &Api, version: i16) -> Result<Answer, HeaderError> {
    let served = api.served.ok_or(HeaderError::NotServed { api: api.key })?;
    if served.versions.contains(version) {
        return Ok(Answer::Serve);
    }
    // Kafka answers any version of ApiVersions it does not know, negative ones too.
    if api.key == ApiKey::ApiVersions || served.advertised.contains(version) {
        return Ok(Answer::UnsupportedVersion);
    }
    Err(HeaderError::UnsupportedVersion { api: api.key, version })
}

/// A response's header, versions 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The one of the request that is answered.
    pub correlation_id: i32,
}

impl ResponseHeader {
    /// Reads the header of a response to a request of `api` at `api_version`, for clients.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(reader: &mut Reader<'_>, api: ApiKey, api_version: i16) -> Result<Self, DecodeError> {
        let correlation_id = reader.i32("ResponseHeader.correlation_id")?;
        if api.api().response_header_version(api_version) >= 1 {
            reader.skip_tags("ResponseHeader")?;
        }
        Ok(Self { correlation_id })
    }

    /// Writes the header of a response to a request of `api` at `api_version`.
    pub fn encode(self, writer: &mut Writer, api: ApiKey, api_version: i16) {
        writer.i32(self.correlation_id);
        if api.api().response_header_version(api_version) >= 1 {
            writer.u8(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH_MAX: u32 = 100 * 1024 * 1024;

    #[track_caller]
    fn check_length(length: i32, expected: Result<Option<u32>, FrameError>) {
        assert_eq!(frame_length(&length.to_be_bytes(), LENGTH_MAX), expected);
    }

    #[test]
    fn bad_lengths_are_refused_by_name() {
        check_length(-1, Err(FrameError::Negative { length: -1 }));
        check_length(i32::MIN, Err(FrameError::Negative { length: i32::MIN }));
        check_length(0, Err(FrameError::Empty));
        check_length(1, Ok(Some(1)));
        check_length(100 * 1024 * 1024, Ok(Some(LENGTH_MAX)));
        let length_max = LENGTH_MAX;
        check_length(100 * 1024 * 1024 + 1, Err(FrameError::TooLarge { length: LENGTH_MAX + 1, length_max }));
        check_length(i32::MAX, Err(FrameError::TooLarge { length: i32::MAX as u32, length_max }));
        for cut in 0..4 {
            assert_eq!(frame_length(&[0, 0, 0, 1][..cut], LENGTH_MAX), Ok(None));
        }
        // What strangers send first: "GET " and a TLS client hello.
        assert!(frame_length(b"GET ", LENGTH_MAX).is_err());
        assert!(frame_length(&[0x16, 0x03, 0x01, 0x02], LENGTH_MAX).is_err());
    }

    fn header_bytes(api_key: i16, api_version: i16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(api_key.to_be_bytes());
        bytes.extend(api_version.to_be_bytes());
        bytes.extend(7i32.to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn headers_go_by_api_and_version() {
        for (version, rest) in
            [(8, &[0, 1, b'c'][..]), (9, &[0, 1, b'c', 0][..]), (9, &[0, 1, b'c', 1, 3, 1, 0][..])]
        {
            let bytes = header_bytes(0, version, rest);
            let mut reader = Reader::new(&bytes);
            let header = RequestHeader::decode(&mut reader).expect("valid");
            assert_eq!(
                (header.api, header.api_version, header.correlation_id),
                (ApiKey::Produce, version, 7)
            );
            assert_eq!((header.client_id, header.answer), (Some("c"), Answer::Serve));
            assert_eq!(reader.left(), 0);
        }
    }

    #[test]
    fn headers_round_trip() {
        for (api, served) in crate::api::served() {
            for api_version in served.advertised.min..=served.advertised.max {
                let answer = if served.versions.contains(api_version) {
                    Answer::Serve
                } else {
                    Answer::UnsupportedVersion
                };
                let header =
                    RequestHeader { api: api.key, api_version, correlation_id: -5, client_id: None, answer };
                let mut writer = Writer::new();
                header.encode(&mut writer).expect("short");
                let bytes = writer.into_bytes();
                let mut reader = Reader::new(&bytes);
                assert_eq!(RequestHeader::decode(&mut reader), Ok(header));
                assert_eq!(reader.finish(), Ok(()));

                let mut writer = Writer::new();
                let header = ResponseHeader { correlation_id: i32::MIN };
                header.encode(&mut writer, api.key, api_version);
                let bytes = writer.into_bytes();
                let mut reader = Reader::new(&bytes);
                assert_eq!(ResponseHeader::decode(&mut reader, api.key, api_version), Ok(header));
                assert_eq!(reader.finish(), Ok(()));
            }
        }
    }

    #[test]
    fn unknown_keys_and_versions_are_refused_by_name() {
        for key in [9_999, -1, i16::MAX, 95] {
            let bytes = header_bytes(key, 0, &[0xff, 0xff]);
            assert_eq!(RequestHeader::decode(&mut Reader::new(&bytes)), Err(HeaderError::UnknownApi { key }));
        }
        for (key, api) in [(4, ApiKey::LeaderAndIsr), (52, ApiKey::Vote), (58, ApiKey::Envelope)] {
            let bytes = header_bytes(key, 0, &[0xff, 0xff]);
            assert_eq!(RequestHeader::decode(&mut Reader::new(&bytes)), Err(HeaderError::NotServed { api }));
        }
        for version in [-1, 14, 32_000] {
            let bytes = header_bytes(3, version, &[0xff, 0xff]);
            let api = ApiKey::Metadata;
            assert_eq!(
                RequestHeader::decode(&mut Reader::new(&bytes)),
                Err(HeaderError::UnsupportedVersion { api, version })
            );
        }
    }

    #[test]
    fn api_versions_of_an_unknown_version_is_answered_whatever_follows() {
        for version in [-1, 6, 32_000] {
            for rest in [&[][..], &[0xff], &[0x7f, 0xff, 0], &[0, 2, b'c', b'c', 9, 9, 9]] {
                let bytes = header_bytes(18, version, rest);
                let header = RequestHeader::decode(&mut Reader::new(&bytes)).expect("answered");
                assert_eq!((header.answer, header.correlation_id), (Answer::UnsupportedVersion, 7));
                assert_eq!(header.response_version(), 0);
            }
        }
    }

    #[test]
    fn produce_0_to_2_is_answered_and_not_served() {
        for version in 0..=2 {
            let bytes = header_bytes(0, version, &[0xff, 0xff]);
            let header = RequestHeader::decode(&mut Reader::new(&bytes)).expect("answered");
            assert_eq!((header.answer, header.response_version()), (Answer::UnsupportedVersion, version));
        }
    }

    #[test]
    fn lies_about_the_client_id_are_refused() {
        for rest in [&[0xff, 0xfe][..], &[0x7f, 0xff, 0], &[0, 2, 0xc3, 0x28], &[0], &[]] {
            let bytes = header_bytes(3, 0, rest);
            assert!(
                matches!(RequestHeader::decode(&mut Reader::new(&bytes)), Err(HeaderError::Decode(_))),
                "{rest:?}"
            );
        }
    }
}
