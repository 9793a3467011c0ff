//! Walks the records of fetched batches: decompresses under a bound, skips control batches and what lies before the
//! position. It keeps nothing between calls but the caller's scratch buffer.

use bytes::Bytes;
use ringlog_protocol::records::batch::batches;
use ringlog_protocol::records::reader::{Record, read_batch};

use super::error::ClientError;

/// The most bytes one batch may decompress to.
pub const DECOMPRESSED_BYTES_MAX: usize = 256 << 20;

/// Calls `visit` for each record at or after `from`, in order, until it answers `false`. Returns the offset after the
/// last whole batch, or after the record at which `visit` stopped. The subject is written out only in an error.
///
/// # Errors
/// [`ClientError::Records`] for bytes that are not sound batches.
pub fn visit_records(
    subject: impl std::fmt::Display,
    records: &Bytes,
    from: i64,
    scratch: &mut Vec<u8>,
    mut visit: impl FnMut(&Record<'_>) -> bool,
) -> Result<i64, ClientError> {
    let mut next = from;
    let unreadable =
        |offset: i64, reason: String| ClientError::Records { subject: subject.to_string(), offset, reason };
    for view in batches(records) {
        let view = view.map_err(|error| unreadable(next, error.to_string()))?;
        let header = view.header;
        if header.next_offset().0 <= from {
            continue;
        }
        if !header.attributes.is_control() {
            let (_, batch_records) = read_batch(view.bytes, DECOMPRESSED_BYTES_MAX, scratch)
                .map_err(|error| unreadable(header.base_offset.0, error.to_string()))?;
            for record in batch_records {
                let record = record.map_err(|error| unreadable(header.base_offset.0, error.to_string()))?;
                if record.offset.0 >= from && !visit(&record) {
                    return Ok(record.offset.0 + 1);
                }
            }
        }
        next = next.max(header.next_offset().0);
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::Offset;
    use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
    use ringlog_protocol::records::compression::Compression;

    use super::*;

    fn run(first: i64, values: &[&str], compression: Compression) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        for value in values {
            let record = NewRecord { timestamp: 1, value: Some(value.as_bytes()), ..NewRecord::default() };
            builder.append(&record).expect("small records fit");
        }
        let options = BatchOptions { compression, base_offset: Offset(first), ..BatchOptions::default() };
        let mut out = Vec::new();
        builder.finish_into(&options, &mut out).expect("the batch has records");
        out
    }

    fn read(records: &Bytes, from: i64, count_max: usize) -> (Vec<String>, i64) {
        let mut seen = Vec::new();
        let next = visit_records("t", records, from, &mut Vec::new(), |record| {
            seen.push(String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned());
            seen.len() < count_max
        });
        (seen, next.expect("the batches are sound"))
    }

    #[test]
    fn records_before_the_position_are_skipped_and_a_partial_batch_waits() {
        let mut bytes = run(10, &["a", "b", "c"], Compression::Zstd);
        bytes.extend(run(13, &["d"], Compression::None));
        let whole = bytes.len();
        bytes.extend_from_slice(&run(14, &["e"], Compression::None)[..30]);
        let records = Bytes::from(bytes);
        assert_eq!(read(&records, 11, 99), (vec!["b".into(), "c".into(), "d".into()], 14));
        assert_eq!(read(&records, 14, 99), (vec![], 14));
        assert_eq!(read(&records.slice(..whole), 10, 2), (vec!["a".into(), "b".into()], 12));
    }

    #[test]
    fn damaged_batches_are_an_error_that_names_the_place() {
        let mut bytes = run(7, &["a", "b"], Compression::None);
        bytes.truncate(bytes.len() - 1);
        let length = (bytes.len() - 12) as u32;
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let result = visit_records("partition 3", &Bytes::from(bytes), 0, &mut Vec::new(), |_| true);
        assert!(matches!(&result, Err(ClientError::Records { offset: 7, .. })), "{result:?}");
    }
}
