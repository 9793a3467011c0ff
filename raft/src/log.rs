//! What a group knows of its log: bounds, and where each epoch begins. Owns no records and decides nothing.

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use crate::message::{AppendEpochs, EpochStart};

/// Positions of one log.
///
/// Two logs that hold the same epoch at an offset hold the same record there and before it, so that the epochs alone tell where
/// two logs part.
///
/// Invariants: `start <= durable_end <= end`; epochs and their starts increase, each start is
/// below `end`. The first pair may begin below `start`: it tells the epoch of the record just before the log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) start: Offset,
    /// Exclusive.
    pub(crate) end: Offset,
    /// Everything below is on disk.
    pub(crate) durable_end: Offset,
    epochs: Vec<EpochStart>,
}

/// An epoch and where it ends in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EpochEnd {
    pub(crate) epoch: LeaderEpoch,
    pub(crate) end: Offset,
}

/// Below every epoch: where a log has none to name.
pub(crate) const NO_EPOCH: LeaderEpoch = LeaderEpoch(-1);

impl Log {
    pub(crate) fn new(start: Offset, end: Offset, epochs: Vec<EpochStart>) -> Log {
        Log { start, end, durable_end: end, epochs }
    }

    pub(crate) fn epochs(&self) -> &[EpochStart] {
        &self.epochs
    }

    /// True where the epoch of every record of the log is known.
    pub(crate) fn knows_its_epochs(&self) -> bool {
        let increase = |pair: &[EpochStart]| pair[0].epoch < pair[1].epoch && pair[0].start < pair[1].start;
        self.epochs.windows(2).all(increase)
            && self.epochs.last().is_none_or(|last| last.start < self.end)
            && (self.start == self.end || self.epochs.first().is_some_and(|first| first.start <= self.start))
    }

    pub(crate) fn last_epoch(&self) -> LeaderEpoch {
        self.epochs.last().map_or(NO_EPOCH, |last| last.epoch)
    }

    /// Epoch of the record at `offset`, or of the one just before the log's start where that is remembered.
    pub(crate) fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        if offset >= self.end {
            return None;
        }
        let place = self.epochs.partition_point(|epoch| epoch.start <= offset).checked_sub(1)?;
        self.epochs.get(place).map(|found| found.epoch)
    }

    /// Epoch of the record just before `base`.
    pub(crate) fn epoch_before(&self, base: Offset) -> Option<LeaderEpoch> {
        self.epoch_at(Offset(base.0 - 1))
    }

    /// The largest epoch here that is not above `epoch`, and where it ends (KIP-101).
    pub(crate) fn largest_not_above(&self, epoch: LeaderEpoch) -> EpochEnd {
        let place = self.epochs.partition_point(|start| start.epoch <= epoch);
        let end = self.epochs.get(place).map_or(self.end, |next| next.start);
        match place.checked_sub(1).and_then(|place| self.epochs.get(place)) {
            Some(found) => EpochEnd { epoch: found.epoch, end },
            None => EpochEnd { epoch: NO_EPOCH, end: self.start },
        }
    }

    /// The first offset in `base..end` where this log holds another epoch than the message, or else where the shorter ends.
    pub(crate) fn first_difference(&self, base: Offset, end: Offset, message: &AppendEpochs) -> Offset {
        let limit = end.min(self.end);
        let mut offset = base.max(self.start);
        for (place, theirs) in message.as_slice().iter().enumerate() {
            let their_end = message.as_slice().get(place + 1).map_or(end, |next| next.start).min(limit);
            while offset < their_end {
                if self.epoch_at(offset) != Some(theirs.epoch) {
                    return offset;
                }
                let next = self.epochs.partition_point(|epoch| epoch.start <= offset);
                offset = self.epochs.get(next).map_or(their_end, |next| next.start.min(their_end));
            }
        }
        limit
    }

    /// Records up to `end`, all of one epoch.
    pub(crate) fn extend(&mut self, epoch: LeaderEpoch, end: Offset) {
        debug_assert!(epoch >= self.last_epoch(), "{epoch:?} follows {:?}", self.last_epoch());
        if self.last_epoch() != epoch {
            // One at a time: a term is rare, and a log of few terms should stay small.
            self.epochs.reserve_exact(1);
            self.epochs.push(EpochStart { epoch, start: self.end });
        }
        self.end = end;
    }

    /// The records of a message that lie beyond this log's end.
    pub(crate) fn extend_with(&mut self, message: &AppendEpochs, end: Offset) {
        for (place, theirs) in message.as_slice().iter().enumerate() {
            let their_end = message.as_slice().get(place + 1).map_or(end, |next| next.start);
            if their_end > self.end {
                self.extend(theirs.epoch, their_end);
            }
        }
    }

    /// Drops everything at and beyond `to`.
    pub(crate) fn truncate(&mut self, to: Offset) {
        self.end = to;
        self.durable_end = self.durable_end.min(to);
        while self.epochs.last().is_some_and(|last| last.start >= to) {
            self.epochs.pop();
        }
    }

    /// Drops everything below `start`, and all epochs but the one of the record before it.
    pub(crate) fn retire(&mut self, start: Offset) {
        self.start = start;
        self.durable_end = self.durable_end.max(start);
        let gone = self.epochs.iter().skip(1).take_while(|epoch| epoch.start < start).count();
        self.epochs.drain(..gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(epochs: &[(i32, i64)], start: i64, end: i64) -> Log {
        let epochs = epochs.iter().map(|&(epoch, start)| at(epoch, start)).collect();
        Log::new(Offset(start), Offset(end), epochs)
    }

    fn at(epoch: i32, start: i64) -> EpochStart {
        EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) }
    }

    fn message(epochs: &[(i32, i64)]) -> AppendEpochs {
        let mut message = AppendEpochs::default();
        epochs.iter().for_each(|&(epoch, start)| assert!(message.push(at(epoch, start))));
        message
    }

    #[test]
    fn the_first_difference_is_found_by_epochs_alone() {
        let own = log(&[(1, 0), (3, 5), (4, 8)], 0, 12);
        let check = |base, end, epochs: &[(i32, i64)], expected| {
            let found = own.first_difference(Offset(base), Offset(end), &message(epochs));
            assert_eq!(found, Offset(expected), "{base}..{end} {epochs:?}");
        };
        check(0, 12, &[(1, 0), (3, 5), (4, 8)], 12);
        check(0, 20, &[(1, 0), (3, 5), (4, 8)], 12);
        check(2, 4, &[(1, 2)], 4);
        check(2, 9, &[(1, 2)], 5);
        check(0, 9, &[(1, 0), (2, 4)], 4);
        check(0, 9, &[(1, 0), (2, 6)], 5);
        check(6, 12, &[(3, 6), (5, 8)], 8);
        check(12, 15, &[(5, 12)], 12);
        check(3, 3, &[], 3);
    }

    #[test]
    fn epochs_follow_truncation_and_retirement() {
        let mut own = log(&[(1, 0), (3, 5), (4, 8)], 0, 12);
        assert_eq!(own.largest_not_above(LeaderEpoch(2)), EpochEnd { epoch: LeaderEpoch(1), end: Offset(5) });
        assert_eq!(
            own.largest_not_above(LeaderEpoch(9)),
            EpochEnd { epoch: LeaderEpoch(4), end: Offset(12) }
        );
        assert_eq!(own.largest_not_above(LeaderEpoch(0)), EpochEnd { epoch: NO_EPOCH, end: Offset(0) });
        own.retire(Offset(6));
        assert_eq!(own.epochs(), [at(3, 5), at(4, 8)]);
        own.retire(Offset(8));
        assert_eq!(own.epoch_before(Offset(8)), Some(LeaderEpoch(3)), "remembered over the retirement");
        own.truncate(Offset(8));
        assert_eq!((own.end, own.epochs()), (Offset(8), [at(3, 5)].as_slice()));
        own.extend_with(&message(&[(3, 6), (7, 9)]), Offset(11));
        assert_eq!(own.epochs(), [at(3, 5), at(7, 9)]);
        assert!(own.knows_its_epochs());
    }
}
