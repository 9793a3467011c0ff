//! The records of one log, in memory or on a disk.

use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_raft::message::{AppendEpochs, EpochStart};

/// A record: who wrote it, and what no other record holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    pub epoch: i32,
    pub value: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Records {
    start: i64,
    items: Vec<Record>,
}

impl Records {
    pub fn of(start: i64, items: Vec<Record>) -> Records {
        Records { start, items }
    }

    pub fn start(&self) -> i64 {
        self.start
    }

    pub fn end(&self) -> i64 {
        self.start + self.items.len() as i64
    }

    pub fn get(&self, offset: i64) -> Option<Record> {
        self.items.get(usize::try_from(offset - self.start).ok()?).copied()
    }

    pub fn slice(&self, from: i64, to: i64) -> Option<&[Record]> {
        let place = |offset: i64| usize::try_from(offset - self.start).ok();
        self.items.get(place(from)?..place(to)?)
    }

    pub fn truncate(&mut self, to: i64) {
        self.items.truncate(usize::try_from(to - self.start).expect("a log is not cut below its start"));
    }

    pub fn extend(&mut self, records: &[Record]) {
        self.items.extend_from_slice(records);
    }

    pub fn retire(&mut self, start: i64) {
        if start > self.start {
            let gone = ((start - self.start) as usize).min(self.items.len());
            self.items.drain(..gone);
            self.start = start;
        }
    }

    pub fn epochs(&self) -> Vec<EpochStart> {
        let mut epochs: Vec<EpochStart> = Vec::new();
        for (place, record) in self.items.iter().enumerate() {
            if epochs.last().is_none_or(|last| last.epoch.0 != record.epoch) {
                let start = Offset(self.start + place as i64);
                epochs.push(EpochStart { epoch: LeaderEpoch(record.epoch), start });
            }
        }
        epochs
    }
}

/// The header's epochs of `records`, which begin at `base`, and how many of them fit.
pub fn header_epochs(base: i64, records: &[Record]) -> (AppendEpochs, usize) {
    let mut epochs = AppendEpochs::default();
    let mut last = None;
    for (place, record) in records.iter().enumerate() {
        if last != Some(record.epoch) {
            let start = EpochStart { epoch: LeaderEpoch(record.epoch), start: Offset(base + place as i64) };
            if !epochs.push(start) {
                return (epochs, place);
            }
            last = Some(record.epoch);
        }
    }
    (epochs, records.len())
}
