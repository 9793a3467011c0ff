//! What a producer is told when a log does not take its batch: Kafka's code and a text with the values. Plain functions;
//! they decide nothing about the append itself.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::Offset;
use ringlog_shard::journal::PoisonReason;
use ringlog_shard::partition::AppendError;
use ringlog_shard::waiters::CommitFailure;

use super::messages::ProducedPart;

/// A batch that was not appended.
pub fn of_append(error: &AppendError) -> ProducedPart {
    ProducedPart::refused(append_error_code(error), error.to_string())
}

/// A batch that was appended and is not known to be committed; `poison` is why this core writes no more, if that is the case.
pub fn of_commit(base_offset: Offset, failure: CommitFailure, poison: Option<&PoisonReason>) -> ProducedPart {
    match failure {
        CommitFailure::Gone | CommitFailure::Poisoned => of_failed_log(base_offset, poison),
        CommitFailure::NotLeader => {
            let text = format!(
                "the batch at offset {base_offset} was not committed before this replica stopped leading the partition; the \
                 next leader may have it or not: refresh the metadata and send it again"
            );
            ProducedPart::refused(ErrorCode::NotLeaderOrFollower, text)
        }
        CommitFailure::NotEnoughReplicas { in_sync, required } => {
            let text = format!(
                "the batch at offset {base_offset} is in the log and not committed: {in_sync} replicas are in sync, \
                 min.insync.replicas asks for {required}; send it again later"
            );
            ProducedPart::refused(ErrorCode::NotEnoughReplicasAfterAppend, text)
        }
    }
}

fn of_failed_log(base_offset: Offset, poison: Option<&PoisonReason>) -> ProducedPart {
    let text = match poison {
        Some(reason) => {
            format!(
                "the batch at offset {base_offset} was not committed, and the log takes no writes until the broker is \
                 restarted: {reason}"
            )
        }
        None => format!(
            "the batch at offset {base_offset} was not committed: its log failed or was deleted meanwhile; refresh the \
             metadata"
        ),
    };
    ProducedPart::refused(ErrorCode::KafkaStorageError, text)
}

/// Our errors to Kafka's codes: the one map for appends.
pub fn append_error_code(error: &AppendError) -> ErrorCode {
    match error {
        AppendError::UnknownPartition => ErrorCode::UnknownTopicOrPartition,
        AppendError::NotLeader => ErrorCode::NotLeaderOrFollower,
        AppendError::Poisoned { .. } => ErrorCode::KafkaStorageError,
        // Retriable: producers send again until there is space or their own time is up.
        AppendError::NoSpace(_) => ErrorCode::KafkaStorageError,
        // Retriable, and clients back off on it without refreshing metadata.
        AppendError::Backlogged { .. } => ErrorCode::RequestTimedOut,
        AppendError::TooLarge { .. } => ErrorCode::MessageTooLarge,
        AppendError::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
        AppendError::Producer { verdict, .. } => verdict.error_code(),
        AppendError::OffsetsExhausted { .. } => ErrorCode::InvalidRecord,
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::{ProducerEpoch, ProducerId, Sequence};
    use ringlog_shard::producer_state::Verdict;

    use super::*;
    use crate::core::messages::AppendRefusal;

    /// The refusal says `error`, and each of `parts` stands in its text.
    fn check(part: ProducedPart, error: ErrorCode, parts: &[&str]) {
        let ProducedPart::Refused(refusal) = part else { panic!("a refusal is refused") };
        let AppendRefusal { error: told, text } = *refusal;
        assert_eq!(told, error, "{text}");
        for part in parts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    fn check_append(error: AppendError, code: ErrorCode, parts: &[&str]) {
        check(of_append(&error), code, parts);
    }

    #[test]
    fn what_the_log_lacks_is_named_with_value_limit_and_key() {
        let backlogged = AppendError::Backlogged { backlog_bytes: 33_554_433, backlog_bytes_max: 33_554_432 };
        let parts = ["33554433 bytes", "33554432 may", "ringlog.journal.dir"];
        check_append(backlogged, ErrorCode::RequestTimedOut, &parts);
        let too_large = AppendError::TooLarge { bytes: 9_000_000, bytes_max: 8_388_000 };
        let parts = ["9000000 bytes", "the 8388000", "ringlog.journal.file.bytes"];
        check_append(too_large, ErrorCode::MessageTooLarge, &parts);
        let exhausted = AppendError::OffsetsExhausted { end: Offset(i64::MAX - 1), count: 2 };
        let parts = ["9223372036854775806", "2 more offsets", "9223372036854775807", "another partition"];
        check_append(exhausted, ErrorCode::InvalidRecord, &parts);
    }

    #[test]
    fn where_the_partition_is_not_is_named() {
        check_append(
            AppendError::UnknownPartition,
            ErrorCode::UnknownTopicOrPartition,
            &["deleted", "refresh the metadata"],
        );
        check_append(AppendError::NotLeader, ErrorCode::NotLeaderOrFollower, &["does not lead"]);
    }

    #[test]
    fn a_failed_write_is_named_with_the_device_s_own_words() {
        let no_space = "No space left on device (os error 28)";
        let reason = PoisonReason::JournalWrite { error: no_space.to_owned() };
        let poisoned = AppendError::Poisoned { reason: reason.to_string() };
        check_append(poisoned, ErrorCode::KafkaStorageError, &["until the broker is restarted", no_space]);
        let lost = of_commit(Offset(7), CommitFailure::Poisoned, Some(&reason));
        check(lost, ErrorCode::KafkaStorageError, &["offset 7", "not committed", no_space]);
        let deleted = of_commit(Offset(7), CommitFailure::Gone, None);
        check(deleted, ErrorCode::KafkaStorageError, &["offset 7", "not committed", "deleted"]);
    }

    #[test]
    fn a_log_that_failed_alone_is_a_storage_error() {
        let lost = of_commit(Offset(7), CommitFailure::Poisoned, None);
        check(lost, ErrorCode::KafkaStorageError, &["offset 7", "not committed", "its log failed"]);
    }

    #[test]
    fn a_leader_that_steps_down_sends_the_producer_to_the_next_one() {
        let lost = of_commit(Offset(7), CommitFailure::NotLeader, None);
        let parts = ["offset 7", "stopped leading", "may have it or not", "refresh the metadata"];
        check(lost, ErrorCode::NotLeaderOrFollower, &parts);
    }

    #[test]
    fn too_few_replicas_are_another_error_before_an_append_than_after_it() {
        let before = AppendError::NotEnoughReplicas { in_sync: 1, required: 2 };
        check_append(before, ErrorCode::NotEnoughReplicas, &["1 replicas", "asks for 2"]);
        let after = CommitFailure::NotEnoughReplicas { in_sync: 1, required: 2 };
        let parts = ["offset 7", "in the log", "1 replicas", "min.insync.replicas", "asks for 2"];
        check(of_commit(Offset(7), after, None), ErrorCode::NotEnoughReplicasAfterAppend, &parts);
    }

    #[test]
    fn sequences_and_epochs_are_named_with_what_was_expected() {
        let check = |verdict: Verdict, code: ErrorCode, parts: &[&str]| {
            let parts: Vec<&str> = parts.iter().copied().chain(["producer 4711"]).collect();
            check_append(AppendError::Producer { producer: ProducerId(4711), verdict }, code, &parts);
        };
        check(
            Verdict::OutOfOrder { found: Sequence(7), expected: Sequence(1) },
            ErrorCode::OutOfOrderSequenceNumber,
            &["sequence 7", "expected 1"],
        );
        check(
            Verdict::NewEpochNotAtZero { epoch: ProducerEpoch(2), found: Sequence(5) },
            ErrorCode::OutOfOrderSequenceNumber,
            &["epoch 2", "sequence 5", "expected 0"],
        );
        check(
            Verdict::StaleEpoch { found: ProducerEpoch(3), current: ProducerEpoch(9) },
            ErrorCode::InvalidProducerEpoch,
            &["epoch 3", "last seen, 9"],
        );
        check(
            Verdict::DuplicateForgotten { first: Sequence(2), oldest_known: Sequence(30) },
            ErrorCode::DuplicateSequenceNumber,
            &["sequence 2", "from 30 on", "last 5", "max.in.flight.requests.per.connection"],
        );
    }
}
