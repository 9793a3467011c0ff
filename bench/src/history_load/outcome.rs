//! Which error of a send leaves what open. Taking "unknown" for "failed" would accuse a broker of aborted reads, taking it
//! for "ok" of losses; so whatever is not certain is unknown.

use ringlog_protocol::error_code::ErrorCode;

use crate::client::ClientError;
use crate::history::operation::Outcome;

/// Refusals that a broker gives before it appends anything.
fn is_refused_unappended(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::CorruptMessage
            | ErrorCode::UnknownTopicOrPartition
            | ErrorCode::UnknownTopicId
            | ErrorCode::LeaderNotAvailable
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::NotEnoughReplicas
            | ErrorCode::MessageTooLarge
            | ErrorCode::RecordListTooLarge
            | ErrorCode::InvalidTopicException
            | ErrorCode::InvalidRequiredAcks
            | ErrorCode::InvalidTimestamp
            | ErrorCode::InvalidRecord
            | ErrorCode::UnsupportedVersion
            | ErrorCode::UnsupportedCompressionType
            | ErrorCode::PolicyViolation
    )
}

/// What became of a send that ended with `error`. `may_have_been_sent_before`: earlier attempts of the same batch, whose
/// effect is unknown, may have reached the broker (an idempotent producer repeats those).
pub fn outcome_of(error: &ClientError, may_have_been_sent_before: bool) -> Outcome {
    if may_have_been_sent_before {
        return Outcome::Info;
    }
    let is_certain = match error {
        ClientError::Refused { .. } => error.code().is_some_and(is_refused_unappended),
        // Not a byte of it was sent.
        ClientError::Resolve { .. }
        | ClientError::Connect { .. }
        | ClientError::NoBroker { .. }
        | ClientError::NoLeader { .. }
        | ClientError::Encode { .. }
        | ClientError::Unsupported { .. }
        | ClientError::BadAddress { .. }
        | ClientError::TooManyInFlight { .. } => true,
        ClientError::Request { .. }
        | ClientError::Decode { .. }
        | ClientError::Missing { .. }
        | ClientError::Poisoned { .. }
        | ClientError::Records { .. } => false,
    };
    if is_certain { Outcome::Fail } else { Outcome::Info }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::error::ConnectionFault;

    fn refused(code: ErrorCode) -> ClientError {
        ClientError::Refused {
            address: String::new(),
            api: "Produce",
            subject: String::new(),
            code: code.code(),
            message: None,
        }
    }

    #[test]
    fn only_what_is_certain_fails() {
        let lost = |fault| ClientError::Request { address: String::new(), api: "Produce", fault, hint: "" };
        for (error, expected) in [
            (refused(ErrorCode::CorruptMessage), Outcome::Fail),
            (refused(ErrorCode::NotEnoughReplicas), Outcome::Fail),
            (refused(ErrorCode::NotEnoughReplicasAfterAppend), Outcome::Info),
            (refused(ErrorCode::RequestTimedOut), Outcome::Info),
            (refused(ErrorCode::KafkaStorageError), Outcome::Info),
            (refused(ErrorCode::UnknownServerError), Outcome::Info),
            (refused(ErrorCode::OutOfOrderSequenceNumber), Outcome::Info),
            (lost(ConnectionFault::Closed), Outcome::Info),
            (lost(ConnectionFault::TimedOut { milliseconds: 1 }), Outcome::Info),
            (ClientError::NoBroker { attempts: String::new() }, Outcome::Fail),
            (ClientError::Poisoned { first: String::new() }, Outcome::Info),
        ] {
            assert_eq!(outcome_of(&error, false), expected, "{error}");
            assert_eq!(outcome_of(&error, true), Outcome::Info, "{error}");
        }
    }
}
