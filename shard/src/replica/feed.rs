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
