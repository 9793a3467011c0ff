//! What can go wrong between this client and a broker, in words that name address, API, cause and remedy.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::wire::{DecodeError, EncodeError};

/// Why a connection can no longer be used. Everything in flight on it gets the same fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionFault {
    /// The broker closed it.
    #[error("the broker closed the connection")]
    Closed,
    /// The kernel reported an error.
    #[error("{reason}")]
    Io { reason: String },
    /// A response announced an impossible size.
    #[error("the response announces {bytes} bytes, allowed are 4..={bytes_max}")]
    FrameSize { bytes: i64, bytes_max: usize },
    /// The responses are out of step with the requests.
    #[error("the response has correlation id {got}, expected {expected}")]
    Correlation { expected: i32, got: i32 },
    /// A response arrived that nobody asked for.
    #[error("a response with correlation id {got} arrived though no request was waiting")]
    Unrequested { got: i32 },
    /// The response header cannot be read.
    #[error("the response header cannot be read: {reason}")]
    Header { reason: String },
    /// No answer in time.
    #[error("no answer within {milliseconds} ms")]
    TimedOut { milliseconds: u64 },
    /// We closed it.
    #[error("the connection was closed by this client")]
    Shutdown,
}

/// Errors of the client. Texts name the broker address and the API wherever there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A bootstrap address cannot be read.
    #[error("'{text}' is not a broker address: {reason}")]
    BadAddress { text: String, reason: &'static str },
    /// The host name has no address.
    #[error("cannot resolve {address}: {reason}; {hint}")]
    Resolve { address: String, reason: String, hint: String },
    /// No TCP connection.
    #[error("cannot connect to {address}: {reason}; {hint}")]
    Connect { address: String, reason: String, hint: String },
    /// None of the bootstrap addresses works.
    #[error("no broker can be reached; tried {attempts}")]
    NoBroker { attempts: String },
    /// The connection failed while a request was in flight, or no answer came.
    #[error("{api} to {address} failed: {fault}{hint}")]
    Request { address: String, api: &'static str, fault: ConnectionFault, hint: &'static str },
    /// Our own request cannot be written.
    #[error("{api} v{version} to {address} cannot be encoded: {source}")]
    Encode { address: String, api: &'static str, version: i16, source: EncodeError },
    /// The broker's response cannot be read.
    #[error("the answer of {address} to {api} v{version} cannot be read: {source}")]
    Decode { address: String, api: &'static str, version: i16, source: DecodeError },
    /// The answer lacks what was asked for.
    #[error("the answer of {address} to {api} is incomplete: it says nothing of {subject}")]
    Missing { address: String, api: &'static str, subject: String },
    /// No common version.
    #[error(
        "{address} does not serve {api} in a version this client knows (ours {ours_min}-{ours_max}, theirs {theirs})"
    )]
    Unsupported { address: String, api: &'static str, ours_min: i16, ours_max: i16, theirs: String },
    /// The broker answered with an error code.
    #[error("{api} for {subject} was refused by {address}: {}", code_text(*code, message.as_deref()))]
    Refused { address: String, api: &'static str, subject: String, code: i16, message: Option<String> },
    /// The partition has no leader, or the topic no such partition.
    #[error("{subject} has no leader: {reason}")]
    NoLeader { subject: String, reason: String },
    /// Too many requests wait on one connection.
    #[error("{address} has {in_flight} requests unanswered, no more are sent")]
    TooManyInFlight { address: String, in_flight: usize },
    /// An idempotent producer whose earlier batch was lost cannot go on without a gap in its sequence.
    #[error("not sent, because an earlier batch of this idempotent producer failed: {first}")]
    Poisoned { first: String },
    /// Record batches of the broker cannot be read.
    #[error("the records of {subject} cannot be read at offset {offset}: {reason}")]
    Records { subject: String, offset: i64, reason: String },
}

/// `NAME (code): what the broker said, or what the code means`.
pub fn code_text(code: i16, message: Option<&str>) -> String {
    let (name, meaning) = match ErrorCode::from_i16(code) {
        Some(known) => (known.name(), known.message()),
        None => ("unknown error code", "this client does not know the code"),
    };
    match message {
        Some(message) if !message.is_empty() => format!("{name} ({code}): {message}"),
        _ => format!("{name} ({code}): {meaning}"),
    }
}

impl ClientError {
    /// Whether trying again, perhaps with fresh metadata or a new connection, can help.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Refused { code, .. } => {
                ErrorCode::from_i16(*code).is_some_and(ErrorCode::is_retriable)
            }
            ClientError::Request { fault, .. } => !matches!(
                fault,
                ConnectionFault::FrameSize { .. }
                    | ConnectionFault::Correlation { .. }
                    | ConnectionFault::Shutdown
            ),
            ClientError::Connect { .. } | ClientError::NoLeader { .. } | ClientError::NoBroker { .. } => true,
            ClientError::Resolve { .. } => true,
            ClientError::BadAddress { .. }
            | ClientError::Encode { .. }
            | ClientError::Decode { .. }
            | ClientError::Missing { .. }
            | ClientError::Unsupported { .. }
            | ClientError::TooManyInFlight { .. }
            | ClientError::Poisoned { .. }
            | ClientError::Records { .. } => false,
        }
    }

    /// The broker's error code, if it answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Refused { code, .. } => ErrorCode::from_i16(*code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_show_name_number_and_the_brokers_own_words() {
        let error = ClientError::Refused {
            address: "127.0.0.1:9092".to_owned(),
            api: "CreateTopics",
            subject: "topic 'a b'".to_owned(),
            code: 17,
            message: Some("The topic name ' ' holds what none may".to_owned()),
        };
        let text = error.to_string();
        for part in [
            "CreateTopics",
            "topic 'a b'",
            "127.0.0.1:9092",
            "INVALID_TOPIC_EXCEPTION",
            "17",
            "The topic name ' '",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!error.is_retriable());
        assert!(code_text(9_999, None).contains("9999"));
    }

    #[test]
    fn codes_that_pass_by_themselves_are_retriable() {
        for (code, retriable) in
            [(3, true), (5, true), (6, true), (7, true), (100, true), (2, true), (10, false), (29, false)]
        {
            let error = ClientError::Refused {
                address: String::new(),
                api: "Produce",
                subject: String::new(),
                code,
                message: None,
            };
            assert_eq!(error.is_retriable(), retriable, "{code}");
        }
    }
}
