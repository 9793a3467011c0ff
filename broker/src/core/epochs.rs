//! Leader epochs as clients ask for them: whom they believe to lead, where an epoch ended, and whether what they read last is still part
//! of the log (KIP-101, KIP-320, KIP-595). Plain decisions over this core's store.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_shard::storage::EpochEnd;
use ringlog_shard::store::View;

use super::Core;
use super::serve::view_error_code;

/// What a reader says of epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderEpochs {
    /// The epoch that it believes the leader has; -1 if it says none.
    pub believed: LeaderEpoch,
    /// The epoch of the record before its position; -1 if it says none.
    pub last_fetched: LeaderEpoch,
}

impl ReaderEpochs {
    pub const NONE: ReaderEpochs =
        ReaderEpochs { believed: LeaderEpoch::NONE, last_fetched: LeaderEpoch::NONE };
}

/// A partition and an epoch whose end is sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochPart {
    pub key: TopicPartition,
    pub believed: LeaderEpoch,
    pub epoch: LeaderEpoch,
}

/// The epoch found and its end; -1 for both where there is none, or with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochResult {
    pub error: ErrorCode,
    pub epoch: LeaderEpoch,
    pub end_offset: Offset,
}

impl EpochResult {
    pub fn nothing(error: ErrorCode) -> EpochResult {
        EpochResult { error, epoch: LeaderEpoch::NONE, end_offset: Offset(-1) }
    }
}

/// A client's belief about the leader's epoch against the truth (KIP-320).
pub fn epoch_error(believed: LeaderEpoch, current: LeaderEpoch) -> Option<ErrorCode> {
    if believed.0 < 0 || current.0 < 0 || believed == current {
        return None;
    }
    Some(if believed < current { ErrorCode::FencedLeaderEpoch } else { ErrorCode::UnknownLeaderEpoch })
}

/// Finds the ends of epochs.
pub fn epoch_ends(core: &Core, parts: &[EpochPart]) -> Vec<EpochResult> {
    parts.iter().map(|part| epoch_end(core, part)).collect()
}

fn epoch_end(core: &Core, part: &EpochPart) -> EpochResult {
    let view = match core.store.view(part.key) {
        Ok(view) => view,
        Err(error) => return EpochResult::nothing(view_error_code(&error)),
    };
    if let Some(error) = epoch_error(part.believed, view.leader_epoch) {
        return EpochResult::nothing(error);
    }
    // Where the log ends is not known, so neither is where its last epoch does.
    if view.is_cut_short {
        return EpochResult::nothing(ErrorCode::KafkaStorageError);
    }
    match end_of(core, part.key, &view, part.epoch) {
        None => EpochResult::nothing(ErrorCode::None),
        Some(EpochEnd { epoch, end_offset }) => EpochResult { error: ErrorCode::None, epoch, end_offset },
    }
}

/// The epoch, or the newest one before it that has records, and where those end. The leader's own epoch ends where the log does, with
/// records or without. `None` for an epoch above the leader's, or a negative one.
fn end_of(core: &Core, key: TopicPartition, view: &View, epoch: LeaderEpoch) -> Option<EpochEnd> {
    if epoch.0 < 0 || view.leader_epoch.0 < 0 || epoch > view.leader_epoch {
        return None;
    }
    let (found, log_end) =
        core.store.with_log(key, |log| (log.epoch_end_offset(epoch), log.log_end())).ok()?;
    match found {
        Some(found) if epoch != view.leader_epoch => Some(found),
        _ => Some(EpochEnd { epoch, end_offset: log_end }),
    }
}

/// How a reader's position relates to the log.
pub enum Position {
    /// It read what the log holds, as far as it says.
    Agrees,
    /// What it read last is not in the log: it must cut its own to this end of an epoch and ask again.
    Diverges(EpochEnd),
    Error(ErrorCode),
}

/// Compares what a reader says of epochs with the log. `from` is its position.
pub fn compare(
    core: &Core,
    key: TopicPartition,
    view: &View,
    epochs: ReaderEpochs,
    from: Offset,
) -> Position {
    if let Some(error) = epoch_error(epochs.believed, view.leader_epoch) {
        return Position::Error(error);
    }
    // Without a leader or with an unknown end nothing can be compared, and nobody may be told to cut or to start over.
    if epochs.last_fetched.0 < 0 || view.leader_epoch.0 < 0 || view.is_cut_short {
        return Position::Agrees;
    }
    match end_of(core, key, view, epochs.last_fetched) {
        None => Position::Error(ErrorCode::OffsetOutOfRange),
        Some(end) if end.epoch < epochs.last_fetched || end.end_offset < from => Position::Diverges(end),
        Some(_) => Position::Agrees,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_belief_is_older_newer_or_right() {
        let check = |believed, current, error| {
            assert_eq!(
                epoch_error(LeaderEpoch(believed), LeaderEpoch(current)),
                error,
                "{believed} {current}"
            );
        };
        check(3, 3, None);
        check(-1, 3, None);
        check(2, -1, None);
        check(2, 3, Some(ErrorCode::FencedLeaderEpoch));
        check(4, 3, Some(ErrorCode::UnknownLeaderEpoch));
    }
}
