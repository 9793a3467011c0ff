//! Records for a follower: whole batches as they lie in the log, and a header that says what they are. Chooses no offsets.

use bytes::Bytes;
use ringlog_io::Io;
use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_raft::message::{Append, AppendEpochs, EpochStart};

use super::verify::epoch_at;
use crate::storage::{LogPiece, LogRead};

/// The bytes of a read, also of those pieces that lie in files; `None` where they cannot be read.
pub(crate) async fn piece_bytes(io: &Io, read: LogRead) -> Option<Vec<Bytes>> {
    let mut records = Vec::with_capacity(read.pieces.len());
    for piece in read.pieces {
        let bytes = match piece {
            LogPiece::Memory(piece) => piece.bytes().clone(),
            LogPiece::File { file, position, length } => {
                let bytes = io.read_at(&file, position, length as usize).await.ok()?;
                (bytes.len() == length as usize).then_some(bytes)?
            }
        };
        records.push(bytes);
    }
    Some(records)
}

/// The same where all of it is in memory.
pub(super) fn memory_bytes(read: LogRead) -> Option<Vec<Bytes>> {
    let bytes = |piece| match piece {
        LogPiece::Memory(piece) => Some(crate::storage::TailPiece::bytes(&piece).clone()),
        LogPiece::File { .. } => None,
    };
    read.pieces.into_iter().map(bytes).collect()
}

/// What a header names of some records.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) header: Append,
    pub(super) records: Vec<Bytes>,
    pub(super) bytes: u32,
}

/// Puts the real base, end and epochs into `header`, and cuts the records where no more epochs fit. The first batch may begin
/// below the base asked for: a follower's position need not be the beginning of a batch. `epochs` are those of the log.
/// `None`: these are not the batches asked for.
pub(super) fn fill(mut header: Append, records: Vec<Bytes>, epochs: &[EpochStart]) -> Option<Filled> {
    let (asked, limit) = (header.base, header.end);
    let mut named = AppendEpochs::default();
    let mut kept = Vec::with_capacity(records.len());
    let mut end: Option<Offset> = None;
    let mut is_full = false;
    for run in records {
        let mut position = 0;
        while position < run.len() && !is_full {
            let batch = BatchHeader::parse(run.get(position..)?).ok()?;
            let expected = end.unwrap_or(batch.base_offset);
            if batch.base_offset != expected || batch.next_offset() <= batch.base_offset {
                return None;
            }
            match named.as_slice().last().map(|last| last.epoch) {
                Some(last) if last == batch.leader_epoch => {}
                Some(last) if last > batch.leader_epoch => return None,
                _ => {
                    let start = EpochStart { epoch: batch.leader_epoch, start: batch.base_offset };
                    is_full = !named.push(start);
                }
            }
            if !is_full {
                if end.is_none() {
                    header.base = batch.base_offset;
                }
                end = Some(batch.next_offset());
                position += batch.total_bytes();
            }
        }
        if position > 0 {
            kept.push(run.slice(..position));
        }
        if is_full {
            break;
        }
    }
    let end = end?;
    if header.base > asked || end <= asked || end > limit {
        return None;
    }
    if header.base < asked {
        header.previous_epoch = epoch_at(epochs, Offset(header.base.0 - 1));
    }
    header.end = end;
    header.epochs = named;
    let bytes = kept.iter().map(Bytes::len).sum::<usize>();
    Some(Filled { header, records: kept, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) })
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::LeaderEpoch;
    use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
    use ringlog_raft::ids::Round;
    use ringlog_raft::message::APPEND_EPOCHS_MAX;

    use super::*;

    fn batch(base: i64, records: i64, epoch: i32) -> Bytes {
        let mut builder = BatchBuilder::new();
        for _ in 0..records {
            let record = NewRecord { timestamp: 1, key: None, value: Some(b"value"), headers: &[] };
            builder.append(&record).expect("a small record");
        }
        let (base_offset, leader_epoch) = (Offset(base), LeaderEpoch(epoch));
        let options = BatchOptions { base_offset, leader_epoch, ..BatchOptions::default() };
        Bytes::from(builder.finish(&options).expect("a small batch"))
    }

    fn header(base: i64, end: i64) -> Append {
        Append {
            election_end: Offset(0),
            previous_epoch: Some(LeaderEpoch(9)),
            base: Offset(base),
            end: Offset(end),
            epochs: AppendEpochs::default(),
            configurations: Vec::new(),
            high_watermark: Offset(0),
            log_start: Offset(0),
            round: Round(1),
        }
    }

    #[test]
    fn a_message_ends_where_no_more_epochs_fit() {
        let count = APPEND_EPOCHS_MAX as i64 + 2;
        let batches: Vec<Bytes> = (0..count).map(|at| batch(10 + at, 1, at as i32)).collect();
        let run = Bytes::from(batches.concat());
        for records in [batches, vec![run]] {
            let filled = fill(header(10, 100), records, &[]).expect("batches from 10 on");
            assert_eq!(filled.header.end, Offset(10 + APPEND_EPOCHS_MAX as i64));
            assert_eq!(filled.header.epochs.as_slice().len(), APPEND_EPOCHS_MAX);
            let bytes = filled.records.concat();
            assert_eq!(bytes.len(), filled.bytes as usize);
            let checked = super::super::verify::verify_append(&filled.header, &Bytes::from(bytes), 1 << 20);
            assert_eq!(checked.map(|batches| batches.len()), Ok(APPEND_EPOCHS_MAX));
        }
    }

    #[test]
    fn a_position_within_a_batch_is_answered_from_its_beginning() {
        let epochs = [(2, 0), (3, 6)]
            .map(|(epoch, start)| EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) });
        let filled = fill(header(8, 20), vec![batch(6, 4, 3), batch(10, 2, 3)], &epochs).expect("batches");
        assert_eq!((filled.header.base, filled.header.end), (Offset(6), Offset(12)));
        assert_eq!(filled.header.previous_epoch, Some(LeaderEpoch(2)));
    }

    #[test]
    fn what_was_not_asked_for_is_not_sent() {
        assert!(fill(header(8, 20), vec![batch(9, 4, 3)], &[]).is_none(), "it begins behind the position");
        assert!(fill(header(8, 20), vec![batch(6, 2, 3)], &[]).is_none(), "it ends before it");
        assert!(fill(header(8, 11), vec![batch(8, 4, 3)], &[]).is_none(), "it goes beyond what is sendable");
        assert!(fill(header(8, 20), vec![batch(8, 1, 3), batch(10, 1, 3)], &[]).is_none(), "it has a gap");
        assert!(fill(header(8, 20), vec![batch(8, 1, 3), batch(9, 1, 2)], &[]).is_none(), "epochs fall");
        assert!(fill(header(8, 20), Vec::new(), &[]).is_none());
    }
}
