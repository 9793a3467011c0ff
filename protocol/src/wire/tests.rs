//! The primitives at their edges: both directions, and what a hostile peer writes.

use bytes::Bytes;

use super::*;

fn read<'a, T>(
    bytes: &'a [u8],
    f: impl FnOnce(&mut Reader<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    f(&mut Reader::new(bytes))
}

#[test]
fn unsigned_varints_at_their_edges() {
    for value in [0, 1, 127, 128, 16_383, 16_384, u32::MAX - 1, u32::MAX] {
        let mut writer = Writer::new();
        writer.unsigned_varint(value);
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.unsigned_varint("x"), Ok(value));
        assert_eq!(reader.finish(), Ok(()));
    }
    let too_long = Err(DecodeError::VarintTooLong { field: "x", offset: 0 });
    assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x10], |r| r.unsigned_varint("x")), too_long, "2^32 and more");
    assert_eq!(read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00], |r| r.unsigned_varint("x")), too_long, "endless");
    assert!(matches!(read(&[0x80, 0x80], |r| r.unsigned_varint("x")), Err(DecodeError::Truncated { .. })));
    assert!(matches!(read(&[], |r| r.unsigned_varint("x")), Err(DecodeError::Truncated { .. })));
}

#[test]
fn zigzag_varints_at_their_edges() {
    for value in [0, -1, 1, -64, 64, i64::from(i32::MIN), i64::from(i32::MAX), i64::MIN, i64::MAX] {
        let mut bytes = Vec::new();
        write_varlong(&mut bytes, value);
        assert_eq!(read(&bytes, |r| r.varlong("x")), Ok(value));
        if let Ok(short) = i32::try_from(value) {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, short);
            assert_eq!(read(&bytes, |r| r.varint("x")), Ok(short));
        }
    }
    let mut bytes = vec![0xff; 9];
    bytes.push(0x02);
    let too_long = Err(DecodeError::VarintTooLong { field: "x", offset: 0 });
    assert_eq!(read(&bytes, |r| r.varlong("x")), too_long, "bit 64");
}

#[test]
fn lengths_of_strings_and_bytes_are_checked() {
    assert_eq!(read(&[0xff, 0xff], |r| r.nullable_string("x")), Ok(None));
    assert_eq!(
        read(&[0xff, 0xff], |r| r.string("x")),
        Err(DecodeError::NullNotAllowed { field: "x", offset: 2 })
    );
    assert_eq!(
        read(&[0xff, 0xfe], |r| r.nullable_string("x")),
        Err(DecodeError::NegativeLength { field: "x", offset: 2, length: -2 })
    );
    assert_eq!(
        read(&[0x7f, 0xff, b'a'], |r| r.string("x")),
        Err(DecodeError::Truncated { field: "x", offset: 2, needed: 32_767, left: 1 })
    );
    assert_eq!(
        read(&[0, 1, 0xff], |r| r.string("x")),
        Err(DecodeError::InvalidUtf8 { field: "x", offset: 2 })
    );
    assert_eq!(read(&[0], |r| r.compact_nullable_bytes("x")), Ok(None));
    assert_eq!(read(&[1], |r| r.compact_string("x")), Ok(""));
    assert_eq!(
        read(&[0x80, 0, 0, 0], |r| r.nullable_bytes("x")),
        Err(DecodeError::NegativeLength { field: "x", offset: 4, length: i64::from(i32::MIN) })
    );
}

#[test]
fn vectors_are_bounded_by_bytes_left_and_by_memory() {
    let bytes = [0; 10];
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.vector::<i32>("x", 2, 4).map(|v| v.capacity()), Ok(2));
    assert_eq!(
        reader.vector::<i32>("x", 3, 4),
        Err(DecodeError::TooManyElements { field: "x", offset: 0, count: 3, count_max: 2 })
    );
    let mut reader = Reader::with_memory_budget(&bytes, 100);
    assert!(reader.vector::<[u64; 4]>("x", 3, 1).is_ok());
    assert_eq!(
        reader.vector::<[u64; 4]>("x", 1, 1),
        Err(DecodeError::MemoryBudget { field: "x", offset: 0, bytes: 32, left: 4 })
    );
}

#[test]
fn unknown_tags_are_skipped_and_bad_sections_refused() {
    assert_eq!(read(&[2, 0, 1, 9, 5, 0], |r| r.skip_tags("x").and_then(|()| r.finish())), Ok(()));
    assert_eq!(
        read(&[2, 5, 0, 5, 0], |r| r.skip_tags("x")),
        Err(DecodeError::TagOrder { field: "x", offset: 3, tag: 5, previous: 5 })
    );
    assert_eq!(
        read(&[2, 5, 0, 4, 0], |r| r.skip_tags("x")),
        Err(DecodeError::TagOrder { field: "x", offset: 3, tag: 4, previous: 5 })
    );
    assert_eq!(
        read(&[65], |r| r.skip_tags("x")),
        Err(DecodeError::TooManyTags { field: "x", offset: 0, count: 65, count_max: TAG_COUNT_MAX })
    );
    let mut huge = vec![1, 0, 0x81, 0x80, 0x08];
    huge.resize(200_000, 0);
    let size = TAG_BYTES_MAX + 1;
    assert_eq!(
        read(&huge, |r| r.skip_tags("x")),
        Err(DecodeError::TagTooLarge { field: "x", offset: 1, tag: 0, size, size_max: TAG_BYTES_MAX })
    );
    assert!(matches!(read(&[1, 0, 3, 0, 0], |r| r.skip_tags("x")), Err(DecodeError::Truncated { .. })));
}

#[test]
fn a_known_tag_cannot_read_past_its_own_bytes() {
    let bytes = [4, 0, 0, 0, 9, 9, 9];
    let mut reader = Reader::new(&bytes);
    let size = reader.unsigned_varint("x").map(|size| size as usize).expect("one byte");
    let scope = reader.enter_tag("x", size).expect("the bytes are there");
    assert_eq!(reader.i16("x"), Ok(0));
    assert_eq!(reader.i64("x"), Err(DecodeError::Truncated { field: "x", offset: 3, needed: 8, left: 2 }));
    assert_eq!(reader.i16("x"), Ok(9));
    reader.leave_tag("x", scope).expect("all read");
    assert_eq!((reader.offset(), reader.left()), (5, 2));
    let scope = reader.enter_tag("x", 2).expect("the bytes are there");
    assert_eq!(reader.u8("x"), Ok(9));
    assert_eq!(
        reader.leave_tag("x", scope),
        Err(DecodeError::TagNotConsumed { field: "x", offset: 6, left: 1 })
    );
}

#[test]
fn a_frame_keeps_pieces_in_order_and_shares_them() {
    let shared = Bytes::from(vec![7u8; 1_000]);
    let range = FileRange { source: 3, position: 4_096, length: 500 };
    let mut writer = Writer::frame(0);
    writer.i32(42);
    writer.shared(&shared);
    writer.file(range);
    writer.file(FileRange { length: 0, ..range });
    writer.shared(&Bytes::from_static(b"few"));
    assert_eq!(writer.length(), 4 + 4 + 1_000 + 500 + 3);
    let pieces = writer.finish_frame().expect("short");
    let [Piece::Bytes(head), Piece::Bytes(middle), Piece::File(file), Piece::Bytes(tail)] = pieces.as_slice()
    else {
        panic!("{pieces:?}");
    };
    assert_eq!(head.as_ref(), [0, 0, 0x05, 0xe3, 0, 0, 0, 42]);
    assert_eq!(middle.as_ptr(), shared.as_ptr(), "no copy");
    assert_eq!(*file, range);
    assert_eq!(tail.as_ref(), b"few");
}

#[test]
fn sizes_of_tagged_fields_grow_when_needed() {
    for length in [0usize, 1, 127, 128, 16_383, 16_384, 70_000] {
        let mut writer = Writer::new();
        writer.unsigned_varint(1);
        let mark = writer.begin_tag(9);
        writer.raw(&vec![5; length]);
        writer.end_tag("x", mark).expect("short");
        writer.u8(77);
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        let mut tags = reader.tags("x").expect("count");
        assert_eq!(reader.next_tag("x", &mut tags), Ok(Some((9, length))));
        assert!(reader.take("x", length).expect("content").iter().all(|byte| *byte == 5));
        assert_eq!(reader.next_tag("x", &mut tags), Ok(None));
        assert_eq!(reader.u8("x"), Ok(77));
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    let long = "a".repeat(32_768);
    assert_eq!(
        Writer::new().string("x", &long),
        Err(EncodeError::TooLong { field: "x", length: 32_768, length_max: 32_767 })
    );
    assert_eq!(Writer::new().compact_string("x", &long), Ok(()));
}
