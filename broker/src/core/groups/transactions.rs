//! Offsets that were committed within transactions, while a log of groups is read: they count from the marker that commits them on, and
//! not at all where it is missing or aborts. Owns what waits for a marker, and what of it was overtaken meanwhile; replays nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use ringlog_protocol::ids::{Offset, ProducerId};

use crate::group::KeyedRecord;

/// Transactions that did not end yet, each with the newest record of each key.
///
/// Invariant: no record is here of whose key a newer one counts.
#[derive(Default)]
pub(super) struct OpenTransactions {
    open: BTreeMap<ProducerId, BTreeMap<Bytes, Held>>,
    bytes: usize,
}

struct Held {
    offset: Offset,
    record: KeyedRecord,
}

impl OpenTransactions {
    /// How many did not end.
    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    /// Memory of what they hold, estimated.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps a record until its transaction ends.
    pub(super) fn hold(&mut self, producer: ProducerId, offset: Offset, record: KeyedRecord) {
        self.bytes += record.bytes();
        let (key, held) = (record.key.clone(), Held { offset, record });
        if let Some(older) = self.open.entry(producer).or_default().insert(key, held) {
            self.bytes -= older.record.bytes();
        }
    }

    /// A record counts from now on: older ones of its key count no more, whenever their transactions end.
    pub(super) fn overtake(&mut self, key: &[u8], offset: Offset) {
        for held in self.open.values_mut() {
            if held.get(key).is_some_and(|held| held.offset < offset)
                && let Some(older) = held.remove(key)
            {
                self.bytes -= older.record.bytes();
            }
        }
    }

    /// A transaction ends: what it held that nothing overtook, with its offsets.
    pub(super) fn end(&mut self, producer: ProducerId) -> Vec<(Offset, KeyedRecord)> {
        let held = self.open.remove(&producer).unwrap_or_default().into_values();
        let held: Vec<_> = held.map(|held| (held.offset, held.record)).collect();
        self.bytes -= held.iter().map(|(_, record)| record.bytes()).sum::<usize>();
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ProducerId = ProducerId(1);
    const TWO: ProducerId = ProducerId(2);

    fn hold(
        open: &mut OpenTransactions,
        producer: ProducerId,
        offset: i64,
        key: &'static str,
        value: &'static str,
    ) {
        let record = KeyedRecord { key: key.into(), value: Some(value.into()) };
        open.hold(producer, Offset(offset), record);
    }

    fn ended(open: &mut OpenTransactions, producer: ProducerId) -> Vec<(i64, String)> {
        let text = |value: Option<Bytes>| String::from_utf8_lossy(&value.unwrap_or_default()).into_owned();
        open.end(producer).into_iter().map(|(offset, record)| (offset.0, text(record.value))).collect()
    }

    #[test]
    fn what_a_transaction_said_last_counts_once() {
        let mut open = OpenTransactions::default();
        hold(&mut open, ONE, 1, "a", "first");
        hold(&mut open, ONE, 2, "a", "last");
        hold(&mut open, TWO, 3, "a", "of another");
        assert_eq!(ended(&mut open, ONE), [(2, "last".to_owned())]);
        assert_eq!(ended(&mut open, ONE), []);
        assert_eq!(ended(&mut open, TWO), [(3, "of another".to_owned())]);
        assert_eq!((open.count(), open.bytes()), (0, 0));
    }

    #[test]
    fn what_counts_is_not_taken_back_by_an_older_record_whose_transaction_ends_later() {
        let mut open = OpenTransactions::default();
        hold(&mut open, ONE, 5, "a", "older");
        hold(&mut open, ONE, 6, "b", "alone");
        hold(&mut open, TWO, 9, "a", "newer");
        open.overtake(b"a", Offset(7));
        assert_eq!(ended(&mut open, TWO), [(9, "newer".to_owned())]);
        assert_eq!(ended(&mut open, ONE), [(6, "alone".to_owned())]);
        assert_eq!(open.bytes(), 0);
    }
}
