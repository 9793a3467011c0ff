//! Bytes that a peer sent: batches, whole, sound and where they claim to be, or nothing at all. Obeys nobody.

use bytes::Bytes;
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::{BatchError, BatchHeader, check_crc};
use ringlog_raft::message::{Append, EpochStart};

use crate::storage::StampedBatch;

/// A batch of another replica that checks.
#[derive(Debug, Clone)]
pub(crate) struct VerifiedBatch {
    pub(crate) header: BatchHeader,
    pub(crate) bytes: Bytes,
    /// Of the message whose buffer the bytes keep.
    buffer_bytes: u32,
}

impl VerifiedBatch {
    /// For the log.
    pub(crate) fn into_stamped(self) -> StampedBatch {
        let VerifiedBatch { header, bytes, buffer_bytes } = self;
        StampedBatch { header, bytes, buffer_bytes }
    }
}

/// Why records of a peer are dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnverifiedRecords {
    #[error("at byte {position}: {error}")]
    Batch { position: usize, error: BatchError },
    #[error("a batch begins at offset {found}, expected {expected}")]
    Offset { found: Offset, expected: Offset },
    #[error("the records end at offset {found}, the message says {stated}")]
    End { found: Offset, stated: Offset },
    #[error("the batch at offset {offset} is of epoch {found}, the message says {stated:?}")]
    Epoch { offset: Offset, found: LeaderEpoch, stated: Option<LeaderEpoch> },
    #[error("the batch at offset {offset} takes no offset, or more than there are")]
    Length { offset: Offset },
    #[error("a batch of {bytes} bytes is larger than this node's journal takes, {bytes_max}")]
    TooLarge { bytes: usize, bytes_max: usize },
}

/// The batches of a run that begins at `base`, each checked. Their epochs never fall.
///
/// # Errors
/// See [`UnverifiedRecords`]: nothing of the run is to be used.
pub(crate) fn verify_run(
    records: &Bytes,
    base: Offset,
    bytes_max: usize,
) -> Result<Vec<VerifiedBatch>, UnverifiedRecords> {
    let buffer_bytes = u32::try_from(records.len()).unwrap_or(u32::MAX);
    let mut batches: Vec<VerifiedBatch> = Vec::new();
    let (mut position, mut expected) = (0, base);
    while position < records.len() {
        let of_batch = |error| UnverifiedRecords::Batch { position, error };
        let rest = records.get(position..).unwrap_or_default();
        let header = BatchHeader::parse(rest).map_err(of_batch)?;
        check_crc(&header, rest).map_err(of_batch)?;
        let bytes = header.total_bytes();
        if bytes > bytes_max {
            return Err(UnverifiedRecords::TooLarge { bytes, bytes_max });
        }
        let offset = header.base_offset;
        if offset != expected {
            return Err(UnverifiedRecords::Offset { found: offset, expected });
        }
        let end =
            offset.0.checked_add(i64::from(header.last_offset_delta)).and_then(|last| last.checked_add(1));
        let Some(end) = end.filter(|end| *end > offset.0) else {
            return Err(UnverifiedRecords::Length { offset });
        };
        let before = batches.last().map(|batch| batch.header.leader_epoch);
        if header.leader_epoch.0 < 0 || before.is_some_and(|before| before > header.leader_epoch) {
            return Err(UnverifiedRecords::Epoch { offset, found: header.leader_epoch, stated: before });
        }
        let bytes_of_batch = records.slice(position..position + bytes);
        batches.push(VerifiedBatch { header, bytes: bytes_of_batch, buffer_bytes });
        (position, expected) = (position + bytes, Offset(end));
    }
    Ok(batches)
}

/// The records of an append: exactly those that its header names, of the epochs that it names.
///
/// # Errors
/// As [`verify_run`].
pub(crate) fn verify_append(
    append: &Append,
    records: &Bytes,
    bytes_max: usize,
) -> Result<Vec<VerifiedBatch>, UnverifiedRecords> {
    let batches = verify_run(records, append.base, bytes_max)?;
    let found = batches.last().map_or(append.base, |last| last.header.next_offset());
    if found != append.end {
        return Err(UnverifiedRecords::End { found, stated: append.end });
    }
    let epochs = append.epochs.as_slice();
    for batch in &batches {
        let (offset, found) = (batch.header.base_offset, batch.header.leader_epoch);
        let stated = epoch_at(epochs, offset);
        // An epoch that begins within a batch would be of no batch.
        let begins_within =
            epochs.iter().any(|epoch| epoch.start > offset && epoch.start < batch.header.next_offset());
        if stated != Some(found) || begins_within {
            return Err(UnverifiedRecords::Epoch { offset, found, stated });
        }
    }
    Ok(batches)
}

/// The epoch of the record at `offset`.
pub(crate) fn epoch_at(epochs: &[EpochStart], offset: Offset) -> Option<LeaderEpoch> {
    let after = epochs.partition_point(|epoch| epoch.start <= offset);
    after.checked_sub(1).and_then(|place| epochs.get(place)).map(|epoch| epoch.epoch)
}

/// Where each epoch of these batches begins.
pub(crate) fn note_epochs(epochs: &mut Vec<EpochStart>, header: &BatchHeader) {
    if epochs.last().is_none_or(|last| last.epoch < header.leader_epoch) {
        epochs.push(EpochStart { epoch: header.leader_epoch, start: header.base_offset });
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
    use ringlog_raft::ids::Round;
    use ringlog_raft::message::AppendEpochs;

    use super::*;

    const BYTES_MAX: usize = 1 << 20;

    fn batch(base: i64, records: i64, epoch: i32) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        for _ in 0..records {
            let record = NewRecord { timestamp: 1, key: None, value: Some(b"value"), headers: &[] };
            builder.append(&record).expect("a small record");
        }
        let (base_offset, leader_epoch) = (Offset(base), LeaderEpoch(epoch));
        let options = BatchOptions { base_offset, leader_epoch, ..BatchOptions::default() };
        builder.finish(&options).expect("a small batch")
    }

    fn append(base: i64, end: i64, epochs: &[(i32, i64)]) -> Append {
        let mut named = AppendEpochs::default();
        for &(epoch, start) in epochs {
            assert!(named.push(EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) }));
        }
        Append {
            election_end: Offset(0),
            previous_epoch: None,
            base: Offset(base),
            end: Offset(end),
            epochs: named,
            configurations: Vec::new(),
            high_watermark: Offset(0),
            log_start: Offset(0),
            round: Round(1),
        }
    }

    fn check(append: &Append, batches: &[Vec<u8>]) -> Result<usize, UnverifiedRecords> {
        verify_append(append, &Bytes::from(batches.concat()), BYTES_MAX).map(|batches| batches.len())
    }

    #[test]
    fn exactly_the_records_that_a_message_names_are_taken() {
        let batches = [batch(5, 3, 1), batch(8, 2, 1), batch(10, 1, 4)];
        let whole = append(5, 11, &[(1, 5), (4, 10)]);
        assert_eq!(check(&whole, &batches), Ok(3));
        assert_eq!(check(&append(5, 5, &[]), &[]), Ok(0), "a question carries none");
        let stated = Offset(12);
        let end = Err(UnverifiedRecords::End { found: Offset(11), stated });
        assert_eq!(check(&append(5, 12, &[(1, 5), (4, 10)]), &batches), end);
        let gap = Err(UnverifiedRecords::Offset { found: Offset(10), expected: Offset(8) });
        assert_eq!(check(&whole, &[batch(5, 3, 1), batch(10, 1, 4)]), gap);
        let below = Err(UnverifiedRecords::Offset { found: Offset(5), expected: Offset(4) });
        assert_eq!(check(&append(4, 11, &[(1, 4), (4, 10)]), &batches), below);
    }

    #[test]
    fn epochs_are_those_of_the_message_and_never_fall() {
        let epoch = |offset, found, stated: Option<i32>| {
            let stated = stated.map(LeaderEpoch);
            Err(UnverifiedRecords::Epoch { offset: Offset(offset), found: LeaderEpoch(found), stated })
        };
        let batches = [batch(5, 3, 1), batch(8, 2, 2)];
        assert_eq!(check(&append(5, 10, &[(1, 5)]), &batches), epoch(8, 2, Some(1)));
        assert_eq!(check(&append(5, 10, &[(1, 5), (2, 7)]), &batches), epoch(5, 1, Some(1)));
        assert_eq!(check(&append(5, 10, &[]), &batches), epoch(5, 1, None));
        assert_eq!(check(&append(5, 10, &[(2, 5)]), &[batch(5, 3, 2), batch(8, 2, 1)]), epoch(8, 1, Some(2)));
    }

    #[test]
    fn no_bit_of_a_batch_may_be_another_one() {
        let (message, sound) = (append(5, 8, &[(1, 5)]), batch(5, 3, 1));
        for place in 0..sound.len() * 8 {
            let mut damaged = sound.clone();
            damaged[place / 8] ^= 1 << (place % 8);
            assert!(check(&message, &[damaged]).is_err(), "bit {place}");
        }
        for length in 0..sound.len() {
            assert!(check(&message, &[sound[..length].to_vec()]).is_err(), "{length} bytes");
        }
        let large = verify_append(&message, &Bytes::from(sound.clone()), sound.len() - 1).map(|_| ());
        let too_large = UnverifiedRecords::TooLarge { bytes: sound.len(), bytes_max: sound.len() - 1 };
        assert_eq!(large, Err(too_large));
    }
}
