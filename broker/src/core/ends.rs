//! What a reader is told of positions at and behind the high watermark, where the log ends somewhere else than it shows. Plain
//! decisions over what the partition shows now.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::Offset;
use ringlog_shard::store::View;

/// Versions of ListOffsets from here on know OFFSET_NOT_AVAILABLE.
const OFFSET_NOT_AVAILABLE_SINCE: i16 = 5;

/// Why the end of the log is not told, nor that nothing lies before it.
pub fn end_error(view: &View) -> Option<ErrorCode> {
    if view.is_cut_short {
        // An end that is too low tells consumers that they have read everything, and those that start there would later read what
        // others call old; an error makes them ask again and shows in their logs.
        Some(ErrorCode::KafkaStorageError)
    } else if view.unsettled_end.is_some() {
        // For the same reason: the leader before this one may have shown a higher end (KIP-207).
        Some(ErrorCode::OffsetNotAvailable)
    } else {
        None
    }
}

/// What a fetch from `from` is told beside bytes. Nothing is wrong with a position that an earlier leader may have shown, though there
/// is nothing to read from it yet: Kafka answers it the same way, for at OFFSET_OUT_OF_RANGE consumers skip records or start over.
pub fn position_error(view: &View, from: Offset) -> ErrorCode {
    if view.is_cut_short && from >= view.high_watermark {
        // Those records were acknowledged: for them the same holds.
        return ErrorCode::KafkaStorageError;
    }
    let end = view.unsettled_end.unwrap_or(view.high_watermark);
    if from >= view.log_start && from <= end { ErrorCode::None } else { ErrorCode::OffsetOutOfRange }
}

/// What a client that speaks this version of ListOffsets is told in place of `error`.
pub fn list_offsets_error(version: i16, error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::OffsetNotAvailable if version < OFFSET_NOT_AVAILABLE_SINCE => {
            ErrorCode::LeaderNotAvailable
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::LeaderEpoch;

    use super::*;

    const SETTLED: View = View {
        log_start: Offset(10),
        high_watermark: Offset(20),
        leader_epoch: LeaderEpoch(3),
        is_cut_short: false,
        unsettled_end: None,
    };
    const UNSETTLED: View = View { unsettled_end: Some(Offset(25)), ..SETTLED };
    const CUT_SHORT: View = View { is_cut_short: true, ..SETTLED };

    #[test]
    fn only_a_leader_that_knows_its_end_tells_it() {
        assert_eq!(end_error(&SETTLED), None);
        assert_eq!(end_error(&UNSETTLED), Some(ErrorCode::OffsetNotAvailable));
        assert_eq!(end_error(&CUT_SHORT), Some(ErrorCode::KafkaStorageError));
    }

    #[test]
    fn an_old_client_is_told_of_an_unknown_end_in_its_own_words() {
        let told = |version| list_offsets_error(version, ErrorCode::OffsetNotAvailable);
        assert_eq!((told(1), told(4)), (ErrorCode::LeaderNotAvailable, ErrorCode::LeaderNotAvailable));
        assert_eq!((told(5), told(11)), (ErrorCode::OffsetNotAvailable, ErrorCode::OffsetNotAvailable));
        assert_eq!(list_offsets_error(1, ErrorCode::KafkaStorageError), ErrorCode::KafkaStorageError);
    }

    #[test]
    fn a_position_that_an_earlier_leader_may_have_shown_is_in_range() {
        let check = |view, from, error| assert_eq!(position_error(&view, Offset(from)), error, "{from}");
        for view in [SETTLED, UNSETTLED, CUT_SHORT] {
            check(view, 9, ErrorCode::OffsetOutOfRange);
            check(view, 10, ErrorCode::None);
            check(view, 19, ErrorCode::None);
        }
        check(SETTLED, 20, ErrorCode::None);
        check(SETTLED, 21, ErrorCode::OffsetOutOfRange);
        check(UNSETTLED, 21, ErrorCode::None);
        check(UNSETTLED, 25, ErrorCode::None);
        check(UNSETTLED, 26, ErrorCode::OffsetOutOfRange);
        check(CUT_SHORT, 20, ErrorCode::KafkaStorageError);
        check(CUT_SHORT, 21, ErrorCode::KafkaStorageError);
    }
}
