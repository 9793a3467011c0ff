//! When a segment is closed by time, as Kafka's `LogSegment.shouldRoll` does. Plain functions; `Log::place` obeys them.

use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader};

use super::core_storage::{CoreStorage, Inner, StorageError};
use super::log::{Log, LogId};
use super::settings::LogSettings;

/// What a segment remembers of clocks, ours and its records'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTimes {
    /// Largest timestamp of its first batch, milliseconds; `None` where it is not known or negative.
    pub(crate) first_ms: Option<i64>,
    /// Our clock when it was begun, or when it was opened at a start.
    pub(crate) created_ms: i64,
    /// Our clock at its last append, or when it was opened at a start: none of its records is younger.
    pub(crate) written_ms: i64,
    /// It is closed so much earlier than `segment.ms` says, so that segments of one age do not all close at once.
    pub(crate) jitter_ms: i64,
    /// It takes no more batches.
    pub(crate) is_closed: bool,
}

impl SegmentTimes {
    /// How long the segment has filled when a batch with this timestamp comes: by its records' own times where they have
    /// some, else by our clock.
    fn filled_for_ms(&self, newest_ms: i64, now_ms: i64) -> i64 {
        match self.first_ms {
            Some(first) => newest_ms.saturating_sub(first),
            None => now_ms.saturating_sub(self.created_ms),
        }
    }
}

impl Log {
    /// Closes the last segment if a batch with this largest timestamp would come too late for it.
    pub(crate) fn roll_if_due(&mut self, newest_ms: i64, now_ms: i64) {
        let segment_ms = self.settings.segment_ms;
        let Some(segment) = self.segments.back_mut().filter(|segment| segment.bytes > 0) else { return };
        let limit_ms = segment_ms.saturating_sub(segment.times.jitter_ms);
        if segment.times.filled_for_ms(newest_ms, now_ms) > limit_ms {
            ringlog_io::reached!("roll.by_time");
            segment.times.is_closed = true;
        }
    }

    /// What the last segment takes before it is closed: bytes, and milliseconds at most if batches with the times of their arrival come.
    pub(super) fn room_in_last(&self, now_ms: i64) -> (u32, i64) {
        let Some(segment) = self.segments.back().filter(|segment| !segment.times.is_closed) else {
            return (0, 0);
        };
        let limit_ms = self.settings.segment_ms.saturating_sub(segment.times.jitter_ms);
        let left_ms = limit_ms.saturating_sub(segment.times.filled_for_ms(now_ms, now_ms)).max(0);
        (self.settings.segment_bytes.saturating_sub(segment.bytes), left_ms)
    }

    /// Notes the batch that was just pushed. `random` is asked once a segment.
    pub(crate) fn note_written(&mut self, now_ms: i64, random: impl FnOnce() -> u64) {
        let settings = self.settings;
        let Some(segment) = self.segments.back_mut() else { return };
        segment.times.written_ms = now_ms;
        let is_first = self.tail.back().is_some_and(|batch| batch.position == 0);
        if is_first {
            segment.times.created_ms = now_ms;
            // Kafka's `LogConfig.randomSegmentJitter`.
            let jitter_max = settings.segment_jitter_ms.min(settings.segment_ms);
            if let Ok(span) = u64::try_from(jitter_max)
                && span > 0
            {
                segment.times.jitter_ms = i64::try_from(random() % span).unwrap_or(0);
            }
        }
    }

    /// Notes when the log was opened: nothing says how old its files are, so they count as written now.
    pub(crate) fn note_opened(&mut self, now_ms: i64) {
        for segment in &mut self.segments {
            segment.times.created_ms = now_ms;
            segment.times.written_ms = now_ms;
        }
    }
}

impl CoreStorage {
    /// Lets the log work by other settings from its next append and the next look of retention on. What is in its
    /// segments already stays as it is.
    ///
    /// # Errors
    /// [`StorageError::UnknownLog`].
    pub fn set_log_settings(&self, id: LogId, settings: LogSettings) -> Result<(), StorageError> {
        let mut core = self.inner().core.borrow_mut();
        core.log_mut(id).ok_or(StorageError::UnknownLog)?.settings = settings;
        Ok(())
    }
}

/// Reads when the last segment of an opened log began to fill, if its first batch was not read before. Without it our
/// clock counts from the start on.
pub(super) async fn load_first_time(inner: &Inner, log: &mut Log) {
    let Some(segment) = log.segments.back_mut().filter(|segment| segment.synced_bytes > 0) else { return };
    if segment.times.first_ms.is_some() {
        return;
    }
    let Ok(file) = segment.handle.open(&inner.io).await else { return };
    let Ok(head) = inner.io.read_at(&file, 0, BATCH_HEADER_BYTES).await else { return };
    let header = BatchHeader::parse_prefix(&head).ok().filter(|header| header.base_offset == segment.base);
    segment.times.first_ms = header.map(|header| header.max_timestamp).filter(|first| *first >= 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_times_count_before_our_clock() {
        let times = SegmentTimes { first_ms: Some(1_000), created_ms: 50_000, ..SegmentTimes::default() };
        assert_eq!(times.filled_for_ms(1_700, 99_000), 700);
        assert_eq!(times.filled_for_ms(400, 99_000), -600, "older records close nothing");
        let without = SegmentTimes { created_ms: 50_000, ..SegmentTimes::default() };
        assert_eq!(without.filled_for_ms(-1, 99_000), 49_000);
    }
}
