//! A snapshot of a replicated machine as bytes, and the name of its file, `<offset, 20 digits>-v1.snapshot`. Pure.
//!
//! Version 1, little-endian, stable: magic `RINGLMSN`, version u16 = 1, reserved u16, number of records u32, topic id (16 bytes)
//! and partition i32 of the machine's log, offset i64, then each record as length u32 and bytes, and last the CRC-32 of all
//! that stands before it. The records are those of the machine's log.
//!
//! The checksum is looked at before anything that it covers but magic and version, so what a damaged file says is not believed.

use ringlog_protocol::ids::{Offset, TopicPartition};

use crate::journal::format::Cursor;
use crate::state_machine::MachineSnapshot;

/// The version that this build writes, and the only one that it reads.
pub const MACHINE_SNAPSHOT_VERSION: u16 = 1;

const MAGIC: &[u8; 8] = b"RINGLMSN";
const CHECKSUM_BYTES: usize = 4;
const LENGTH_BYTES: usize = 4;
const OFFSET_DIGITS: usize = 20;
const SUFFIX: &str = ".snapshot";

/// Why bytes are no snapshot of a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineSnapshotError {
    #[error("it does not begin with its magic")]
    Magic,
    #[error("it has version {found}, this build reads {MACHINE_SNAPSHOT_VERSION}")]
    Version { found: u64 },
    #[error("stated checksum {stated:08x} is not the computed {computed:08x}")]
    Checksum { stated: u32, computed: u32 },
    #[error("it ends in the middle of a field")]
    Short,
    #[error("it is of partition {} of topic id {}", found.partition.0, found.topic)]
    OtherPartition { found: TopicPartition },
    #[error("it is of offset {found}")]
    OtherOffset { found: Offset },
    #[error("{bytes} bytes follow its last record")]
    Trailing { bytes: usize },
}

/// Name of the file.
#[must_use]
pub fn machine_snapshot_name(offset: Offset) -> String {
    format!("{:020}-v{MACHINE_SNAPSHOT_VERSION}{SUFFIX}", offset.0)
}

/// Offset and version that a file's name states, if it is one; also of versions that this build does not read.
#[must_use]
pub fn parse_machine_snapshot_name(name: &str) -> Option<(Offset, u64)> {
    let (digits, version_digits) = name.strip_suffix(SUFFIX)?.split_once("-v")?;
    if digits.len() != OFFSET_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let offset = digits.parse().ok().map(Offset)?;
    let version: u64 = version_digits.parse().ok()?;
    // One spelling only.
    (version.to_string() == version_digits).then_some((offset, version))
}

/// The file's bytes.
///
/// # Panics
/// When there are 2^32 records, or one is as long: a record is at most one proposal, and a file that large is refused.
#[must_use]
pub fn encode_machine_snapshot(key: TopicPartition, snapshot: &MachineSnapshot) -> Vec<u8> {
    let count = u32::try_from(snapshot.records.len()).expect("fewer records than 2^32 are in memory");
    let body: usize = snapshot.records.iter().map(|record| LENGTH_BYTES + record.len()).sum();
    let mut out = Vec::with_capacity(64 + body);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&MACHINE_SNAPSHOT_VERSION.to_le_bytes());
    out.extend_from_slice(&0_u16.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&key.topic.0);
    out.extend_from_slice(&key.partition.0.to_le_bytes());
    out.extend_from_slice(&snapshot.offset.0.to_le_bytes());
    for record in &snapshot.records {
        let length = u32::try_from(record.len()).expect("a record is at most one proposal");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(record);
    }
    let checksum = crc32fast::hash(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Reads what [`encode_machine_snapshot`] wrote for this partition and offset. Takes no more memory than a small multiple of the
/// bytes, whatever they say.
///
/// # Errors
/// [`MachineSnapshotError`]: nothing of it can be used.
pub fn decode_machine_snapshot(
    key: TopicPartition,
    offset: Offset,
    bytes: &[u8],
) -> Result<MachineSnapshot, MachineSnapshotError> {
    use MachineSnapshotError::{Checksum, Magic, OtherOffset, OtherPartition, Short, Trailing, Version};
    if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(Magic);
    }
    let (covered, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Short)?;
    let mut cursor = Cursor::new(covered.get(MAGIC.len()..).ok_or(Short)?);
    // The version is judged first: a newer build may have changed all that follows it.
    let version = cursor.u16().ok_or(Short)?;
    if version != MACHINE_SNAPSHOT_VERSION {
        return Err(Version { found: u64::from(version) });
    }
    let (stated, computed) = (u32::from_le_bytes(*checksum), crc32fast::hash(covered));
    if stated != computed {
        return Err(Checksum { stated, computed });
    }
    let _reserved = cursor.u16().ok_or(Short)?;
    let count = cursor.u32().ok_or(Short)?;
    let found = cursor.key().ok_or(Short)?;
    if found != key {
        return Err(OtherPartition { found });
    }
    let found = Offset(cursor.i64().ok_or(Short)?);
    if found != offset {
        return Err(OtherOffset { found });
    }
    // Each record takes at least its length, so the bytes that are there bound how many there can be.
    let mut records = Vec::new();
    for _ in 0..count {
        let length = cursor.u32().ok_or(Short)?;
        let record = usize::try_from(length).ok().and_then(|length| cursor.take(length)).ok_or(Short)?;
        records.push(record.to_vec());
    }
    let bytes = cursor.remaining();
    if bytes > 0 { Err(Trailing { bytes }) } else { Ok(MachineSnapshot { offset, records }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    const KEY: TopicPartition = TopicPartition { topic: TopicId([7; 16]), partition: PartitionIndex(3) };

    fn sample() -> MachineSnapshot {
        MachineSnapshot { offset: Offset(170), records: vec![b"one".to_vec(), Vec::new(), b"three".to_vec()] }
    }

    /// The bytes with the right checksum behind them.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<MachineSnapshot, MachineSnapshotError> {
        decode_machine_snapshot(KEY, Offset(170), bytes)
    }

    #[test]
    fn golden_bytes() {
        let hex: String =
            encode_machine_snapshot(KEY, &sample()).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "52494e474c4d534e",
            "0100",
            "0000",
            "03000000",
            "07070707070707070707070707070707",
            "03000000",
            "aa00000000000000",
            "030000006f6e65",
            "00000000",
            "050000007468726565",
            "2de1848f",
        ];
        assert_eq!(hex, expected.concat());
        assert_eq!(decode(&encode_machine_snapshot(KEY, &sample())), Ok(sample()));
    }

    #[test]
    fn names_come_back_and_others_do_not() {
        assert_eq!(machine_snapshot_name(Offset(170)), "00000000000000000170-v1.snapshot");
        for offset in [0, 1, i64::MAX] {
            let name = machine_snapshot_name(Offset(offset));
            assert_eq!(parse_machine_snapshot_name(&name), Some((Offset(offset), 1)));
        }
        let newer = parse_machine_snapshot_name("00000000000000000170-v22.snapshot");
        assert_eq!(newer, Some((Offset(170), 22)), "seen, so that it can be named");
        for name in [
            "",
            "-v1.snapshot",
            "170-v1.snapshot",
            "0000000000000000017x-v1.snapshot",
            "00000000000000000170-v01.snapshot",
            "00000000000000000170-v+1.snapshot",
            "00000000000000000170-v1.snapshot.new",
            "00000000000000000170.log",
            "99999999999999999999-v1.snapshot",
        ] {
            assert_eq!(parse_machine_snapshot_name(name), None, "{name}");
        }
    }

    #[test]
    fn cut_or_changed_anywhere_it_is_refused() {
        let bytes = encode_machine_snapshot(KEY, &sample());
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            for flip in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                assert!(decode(&changed).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn another_partition_offset_version_or_length_is_named() {
        let bytes = encode_machine_snapshot(KEY, &sample());
        let other = TopicPartition { partition: PartitionIndex(4), ..KEY };
        let refused = decode_machine_snapshot(other, Offset(170), &bytes);
        assert_eq!(refused, Err(MachineSnapshotError::OtherPartition { found: KEY }));
        let refused = decode_machine_snapshot(KEY, Offset(171), &bytes);
        assert_eq!(refused, Err(MachineSnapshotError::OtherOffset { found: Offset(170) }));
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert_eq!(decode(&newer), Err(MachineSnapshotError::Version { found: 2 }));
        let body = &bytes[..bytes.len() - CHECKSUM_BYTES];
        let longer = sealed([body, &[0]].concat());
        assert_eq!(decode(&longer), Err(MachineSnapshotError::Trailing { bytes: 1 }));
        assert_eq!(decode(&sealed(body[..body.len() - 1].to_vec())), Err(MachineSnapshotError::Short));
        let mut many = body.to_vec();
        many[12..16].fill(0xff);
        assert_eq!(decode(&sealed(many)), Err(MachineSnapshotError::Short), "four billion records");
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_as_what_would_be_written(body in any::<Vec<u8>>(), behind_header in any::<bool>()) {
            let bytes = if behind_header {
                let header = &encode_machine_snapshot(KEY, &sample())[..44];
                sealed([header, &body].concat())
            } else {
                sealed(body)
            };
            if let Ok(read) = decode(&bytes) {
                prop_assert_eq!(encode_machine_snapshot(KEY, &read), bytes);
            }
        }

        #[test]
        fn what_is_written_is_read(records in proptest::collection::vec(any::<Vec<u8>>(), 0..20)) {
            let snapshot = MachineSnapshot { offset: Offset(170), records };
            prop_assert_eq!(decode(&encode_machine_snapshot(KEY, &snapshot)), Ok(snapshot));
        }
    }
}
