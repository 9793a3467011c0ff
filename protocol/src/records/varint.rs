//! Zig-zag variable-length integers and a bounds-checked cursor: the primitives inside a record.
//!
//! Unlike the Java client, a varint whose bits do not fit its type is refused instead of cut, because client libraries
//! cut it differently and would read different records.

use super::error::RecordFault;

/// The most bytes of a 32-bit varint.
pub(super) const VARINT_BYTES_MAX: usize = 5;
/// The most bytes of a 64-bit varint.
pub(super) const VARLONG_BYTES_MAX: usize = 10;

/// Reads forward through bytes of a peer; never past their end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// The number of bytes not yet read.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// What is not yet read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `bytes` bytes; `field` names them in the error.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], RecordFault> {
        match self.rest.split_at_checked(bytes) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(RecordFault::Truncated {
                field,
                needed_bytes: bytes as u64,
                left_bytes: self.rest.len() as u64,
            }),
        }
    }

    /// A signed 32-bit zig-zag varint.
    #[inline]
    pub(super) fn varint(&mut self, field: &'static str) -> Result<i32, RecordFault> {
        if let Some(value) = self.short_form() {
            return Ok(unzigzag(value) as i32);
        }
        match self.long_form(VARINT_BYTES_MAX).and_then(|value| u32::try_from(value).ok()) {
            Some(value) => Ok(unzigzag(u64::from(value)) as i32),
            None => Err(self.fault(field, VARINT_BYTES_MAX)),
        }
    }

    /// A signed 64-bit zig-zag varint.
    #[inline]
    pub(super) fn varlong(&mut self, field: &'static str) -> Result<i64, RecordFault> {
        if let Some(value) = self.short_form() {
            return Ok(unzigzag(value));
        }
        self.long_form(VARLONG_BYTES_MAX).map(unzigzag).ok_or_else(|| self.fault(field, VARLONG_BYTES_MAX))
    }

    /// One byte or two: nearly all fields of nearly all records.
    #[inline]
    fn short_form(&mut self) -> Option<u64> {
        match self.rest {
            [first, tail @ ..] if *first < 0x80 => {
                self.rest = tail;
                Some(u64::from(*first))
            }
            [first, second, tail @ ..] if *second < 0x80 => {
                self.rest = tail;
                Some(u64::from(*first & 0x7f) | u64::from(*second) << 7)
            }
            _ => None,
        }
    }

    /// Moves only if there is a varint of at most `bytes_max` bytes and 64 bits.
    fn long_form(&mut self, bytes_max: usize) -> Option<u64> {
        let mut value = 0u64;
        for (index, byte) in self.rest.iter().take(bytes_max).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if index == VARLONG_BYTES_MAX - 1 && bits > 1 {
                return None;
            }
            value |= bits << (7 * index);
            if *byte < 0x80 {
                self.rest = self.rest.get(index + 1..).unwrap_or_default();
                return Some(value);
            }
        }
        None
    }

    /// Why [`Cursor::long_form`] found nothing, or nothing that fits. Apart, so that the error's size burdens no read that succeeds.
    #[cold]
    fn fault(&self, field: &'static str, bytes_max: usize) -> RecordFault {
        let left_bytes = self.rest.len() as u64;
        if self.rest.len() < bytes_max && self.rest.iter().all(|byte| *byte >= 0x80) {
            return RecordFault::Truncated { field, needed_bytes: left_bytes + 1, left_bytes };
        }
        RecordFault::Varint { field, bytes_max: bytes_max as u32 }
    }
}

#[inline]
fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[inline]
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Bytes that `value` takes as a zig-zag varint: 1..=10, and at most 5 where it fits 32 bits.
#[inline]
pub(super) fn varint_bytes(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// A few varints and bytes put together on the stack, so that a record's fields reach the buffer in one copy.
#[derive(Debug)]
pub(super) struct SmallBuffer {
    bytes: [u8; 48],
    length: usize,
}

impl SmallBuffer {
    pub(super) fn new() -> SmallBuffer {
        SmallBuffer { bytes: [0; 48], length: 0 }
    }

    /// Adds one byte.
    ///
    /// # Panics
    /// Beyond 48 bytes: callers put at most four varints and one byte (41).
    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    /// Adds a zig-zag varint of at most 10 bytes.
    #[inline]
    pub(super) fn varint(&mut self, value: i64) {
        let mut rest = zigzag(value);
        while rest >= 0x80 {
            self.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.push(rest as u8);
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(value: i64) -> Vec<u8> {
        let mut buffer = SmallBuffer::new();
        buffer.varint(value);
        buffer.as_slice().to_vec()
    }

    #[test]
    fn known_encodings() {
        // From Kafka's ByteUtilsTest.
        for (value, bytes) in [
            (0, &[0u8][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 1]),
            (8191, &[0xfe, 0x7f]),
            (i64::from(i32::MAX), &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (i64::from(i32::MIN), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            (i64::MAX, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        ] {
            assert_eq!(encode(value), bytes, "{value}");
            assert_eq!(Cursor::new(bytes).varlong("x"), Ok(value));
            assert_eq!(varint_bytes(value), bytes.len());
        }
    }

    #[test]
    fn endless_and_oversized_are_refused() {
        let mut endless = Cursor::new(&[0xff; 64]);
        assert_eq!(endless.varint("x"), Err(RecordFault::Varint { field: "x", bytes_max: 5 }));
        assert_eq!(endless.varlong("x"), Err(RecordFault::Varint { field: "x", bytes_max: 10 }));
        // The 33rd and the 65th bit.
        assert!(Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0x1f]).varint("x").is_err());
        assert!(
            Cursor::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 3]).varlong("x").is_err()
        );
        assert!(matches!(
            Cursor::new(&[0x80, 0x80]).varint("x"),
            Err(RecordFault::Truncated { needed_bytes: 3, left_bytes: 2, .. })
        ));
    }

    proptest! {
        #[test]
        fn round_trip_64(value in any::<i64>()) {
            let bytes = encode(value);
            prop_assert_eq!(bytes.len(), varint_bytes(value));
            let mut cursor = Cursor::new(&bytes);
            prop_assert_eq!(cursor.varlong("x"), Ok(value));
            prop_assert_eq!(cursor.left(), 0);
        }

        #[test]
        fn round_trip_32(value in any::<i32>()) {
            let bytes = encode(i64::from(value));
            prop_assert!(bytes.len() <= VARINT_BYTES_MAX);
            prop_assert_eq!(Cursor::new(&bytes).varint("x"), Ok(value));
            for cut in 0..bytes.len() {
                prop_assert!(Cursor::new(&bytes[..cut]).varint("x").is_err());
            }
        }
    }
}
