//! How much has to be appended before retention by size lets a record go: for those who tell readers how long they have. Looks and changes
//! nothing; what goes is decided by [`super::retired_segments`].

use ringlog_protocol::ids::Offset;

use crate::limits::RECORD_BYTES_SAMPLE_BYTES;
use crate::storage::log::Log;

/// What comes before retention by size may take the segment of a record. Batches are whole, so it may be a batch more or less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BytesAhead {
    /// Until the segment is full and another one begins; 0 where it takes no more.
    pub closing_bytes: u64,
    /// It is closed by time with the first batch that comes so much later, in milliseconds, if it is not full by then.
    pub closing_ms: i64,
    /// What has to be appended behind the segment once it is closed.
    pub following_bytes: u64,
    /// What a record of those that came last takes, in bytes: batches are compressed, so it is no whole number.
    pub record_bytes: f64,
}

/// Bytes into a segment until it is closed, and then behind it, before it may go. `behind_bytes`: of the segments behind it; `None` where it
/// is the last one, which takes `room_bytes` more.
fn appended_before(behind_bytes: Option<u64>, room_bytes: u64, bytes_max: u64) -> (u64, u64) {
    match behind_bytes {
        // All may go, the one that fills too.
        _ if bytes_max == 0 => (0, 0),
        Some(behind_bytes) => (0, bytes_max.saturating_sub(behind_bytes)),
        None => (room_bytes, bytes_max),
    }
}

impl Log {
    /// What comes before retention by size may take the record at `from`, or at the start of the log where that is higher; `None` where
    /// it never does: there is no limit, no such record yet, or something is wrong with the log, so that it keeps all.
    #[must_use]
    pub fn bytes_ahead(&self, from: Offset, now_ms: i64) -> Option<BytesAhead> {
        let bytes_max = self.settings.retention.bytes_max?;
        if from >= self.log_end() || self.damage().is_some() || self.poison().is_some() {
            return None;
        }
        let index = self.segment_index(from.max(self.log_start()))?;
        let behind_bytes = self
            .segments
            .iter()
            .skip(index + 1)
            .map(|segment| u64::from(segment.bytes))
            .reduce(|sum, bytes| sum + bytes);
        let (room_bytes, room_ms) = self.room_in_last(now_ms);
        let (closing_bytes, following_bytes) =
            appended_before(behind_bytes, u64::from(room_bytes), bytes_max);
        Some(BytesAhead {
            closing_bytes,
            closing_ms: room_ms,
            following_bytes,
            record_bytes: self.record_bytes(),
        })
    }

    /// What a record of those that came last takes, in bytes; 0 where there is none.
    fn record_bytes(&self) -> f64 {
        let (mut bytes, mut base) = (0, self.log_end());
        for segment in self.segments.iter().rev() {
            bytes += u64::from(segment.bytes);
            base = segment.base;
            if bytes >= RECORD_BYTES_SAMPLE_BYTES {
                break;
            }
        }
        bytes as f64 / self.log_end().0.saturating_sub(base.0).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Retention, SegmentFacts, retired_segments};
    use super::*;

    #[test]
    fn what_lies_behind_counts_and_the_one_that_fills_has_to_be_full_first() {
        assert_eq!(appended_before(Some(60), 7, 100), (0, 40));
        assert_eq!(appended_before(Some(100), 7, 100), (0, 0), "it may go any moment");
        assert_eq!(appended_before(Some(101), 7, 100), (0, 0));
        assert_eq!(appended_before(None, 7, 100), (7, 100));
        assert_eq!(appended_before(None, 0, 100), (0, 100), "closed by time");
        assert_eq!((appended_before(None, 7, 0), appended_before(Some(0), 7, 0)), ((0, 0), (0, 0)));
    }

    /// How many of these segments go, if a further one of `appended` bytes comes behind them.
    fn retired(segments: &[u64], appended: Option<u64>, bytes_max: u64) -> usize {
        let facts = |(index, bytes): (usize, &u64)| SegmentFacts {
            end: Offset(index as i64 + 1),
            bytes: *bytes,
            newest_ms: None,
            written_ms: 0,
        };
        let all: Vec<u64> = segments.iter().copied().chain(appended).collect();
        let facts: Vec<SegmentFacts> = all.iter().enumerate().map(facts).collect();
        retired_segments(
            &facts,
            Retention { age_ms_max: None, bytes_max: Some(bytes_max) },
            Offset(i64::MAX),
            0,
        )
    }

    proptest! {
        #[test]
        fn with_so_many_bytes_more_retention_takes_the_segment_and_with_one_less_it_does_not(
            mut sizes in proptest::collection::vec(1_u64..1000, 1..12), chosen in any::<prop::sample::Index>(),
            room in 0_u64..1000, bytes_max in 0_u64..6000
        ) {
            let index = chosen.index(sizes.len());
            let behind = sizes[index + 1..].iter().copied().reduce(|sum, bytes| sum + bytes);
            let (closing, following) = appended_before(behind, room, bytes_max);
            *sizes.last_mut().expect("one at least") += closing;
            let appended = |bytes: u64| (bytes > 0).then_some(bytes);
            prop_assert!(retired(&sizes, appended(following), bytes_max) > index);
            if following > 0 {
                prop_assert!(retired(&sizes, appended(following - 1), bytes_max) <= index);
            }
        }
    }
}
