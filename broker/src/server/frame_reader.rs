//! Cuts the bytes of one connection into request frames. Pure: it is told what arrived and says what to receive
//! next; it never trusts a promised length with memory.

use bytes::{Bytes, BytesMut};
use ringlog_protocol::frame::{self, FrameError, LENGTH_BYTES};
use ringlog_shard::limits::{RECEIVE_BUFFER_BYTES_FIRST, RECEIVE_BUFFER_EARNED_BYTES_MAX};

/// What the connection should do next to make progress.
#[derive(Debug, PartialEq, Eq)]
pub enum NextReceive {
    /// Between frames or inside a small one: take whatever arrives, pin no buffer.
    Some,
    /// Inside a large frame: receive up to `bytes` straight into the frame's own buffer.
    Into { bytes: usize },
}

/// The receive side of one connection.
///
/// Invariants: `buffer` starts at a frame's length prefix; `buffer.capacity() <= 2 * arrived + 1 MiB`, so a promise alone
/// costs little and what is never sent is never touched.
#[derive(Debug)]
pub struct FrameReader {
    buffer: BytesMut,
    frame_bytes_max: u32,
    /// The largest frame this peer really sent, at most 1 MiB: its next buffer comes in one piece of that size.
    completed_bytes_max: usize,
}

impl FrameReader {
    pub fn new(frame_bytes_max: u32) -> FrameReader {
        FrameReader { buffer: BytesMut::new(), frame_bytes_max, completed_bytes_max: 0 }
    }

    /// Takes what a small receive brought.
    pub fn push(&mut self, arrived: Bytes) {
        if self.buffer.is_empty() {
            match arrived.try_into_mut() {
                Ok(owned) => self.buffer = owned,
                Err(shared) => self.buffer.extend_from_slice(&shared),
            }
            return;
        }
        self.buffer.extend_from_slice(&arrived);
    }

    /// The next whole frame without its length prefix.
    ///
    /// # Errors
    /// A length that is negative, zero or over `socket.request.max.bytes`: the connection must be closed.
    pub fn next_frame(&mut self) -> Result<Option<BytesMut>, FrameError> {
        let Some(total) = self.total_bytes()? else { return Ok(None) };
        if self.buffer.len() < total {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(total);
        if self.buffer.is_empty() {
            // Gives the allocation to the frame alone, so that freeing the frame frees it.
            self.buffer = BytesMut::new();
        }
        self.completed_bytes_max = self.completed_bytes_max.max(total.min(RECEIVE_BUFFER_EARNED_BYTES_MAX));
        let _prefix = frame.split_to(LENGTH_BYTES);
        Ok(Some(frame))
    }

    /// How to receive on, after [`FrameReader::next_frame`] said `None`.
    pub fn next_receive(&self) -> NextReceive {
        let Ok(Some(total)) = self.total_bytes() else { return NextReceive::Some };
        let missing = total.saturating_sub(self.buffer.len());
        if missing <= ringlog_io::RECEIVE_SOME_BYTES_MAX {
            NextReceive::Some
        } else {
            NextReceive::Into { bytes: missing }
        }
    }

    /// What the buffer's capacity will be once [`FrameReader::take_buffer`] made room for `bytes` more.
    pub fn next_capacity(&self, bytes: usize) -> usize {
        let arrived = self.buffer.len();
        if self.buffer.capacity() > arrived {
            return self.buffer.capacity();
        }
        let earned = self.completed_bytes_max.saturating_sub(arrived);
        arrived + bytes.min(RECEIVE_BUFFER_BYTES_FIRST.max(arrived).max(earned))
    }

    /// Lends the buffer for a large receive of at most `bytes`, with room made by what arrived.
    pub fn take_buffer(&mut self, bytes: usize) -> (BytesMut, usize) {
        let arrived = self.buffer.len();
        self.buffer.reserve(self.next_capacity(bytes) - arrived);
        let room = self.buffer.capacity() - arrived;
        (std::mem::take(&mut self.buffer), bytes.min(room))
    }

    pub fn return_buffer(&mut self, buffer: BytesMut) {
        self.buffer = buffer;
    }

    /// Whether nothing of a further frame has arrived.
    pub fn is_between_frames(&self) -> bool {
        self.buffer.is_empty()
    }

    fn total_bytes(&self) -> Result<Option<usize>, FrameError> {
        let length = frame::frame_length(&self.buffer, self.frame_bytes_max)?;
        Ok(length.map(|length| LENGTH_BYTES + length as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn two_frames_in_one_segment_come_out_in_order() {
        let mut reader = FrameReader::new(1 << 20);
        reader.push(Bytes::from([frame(b"first"), frame(b"second")].concat()));
        assert_eq!(reader.next_frame().expect("valid").as_deref(), Some(&b"first"[..]));
        assert_eq!(reader.next_frame().expect("valid").as_deref(), Some(&b"second"[..]));
        assert_eq!(reader.next_frame(), Ok(None));
    }

    #[test]
    fn byte_by_byte_is_a_frame_in_the_end() {
        let mut reader = FrameReader::new(1 << 20);
        let bytes = frame(b"slow");
        for byte in &bytes[..bytes.len() - 1] {
            reader.push(Bytes::copy_from_slice(&[*byte]));
            assert_eq!(reader.next_frame(), Ok(None));
        }
        reader.push(Bytes::copy_from_slice(&bytes[bytes.len() - 1..]));
        assert_eq!(reader.next_frame().expect("valid").as_deref(), Some(&b"slow"[..]));
    }

    #[test]
    fn a_promise_of_64_mib_holds_64_kib_until_bytes_arrive() {
        let mut reader = FrameReader::new(100 << 20);
        reader.push(Bytes::from((64_u32 << 20).to_be_bytes().to_vec()));
        assert_eq!(reader.next_frame(), Ok(None));
        let NextReceive::Into { bytes } = reader.next_receive() else { panic!("a large frame") };
        let (buffer, take) = reader.take_buffer(bytes);
        assert!(take <= 2 * RECEIVE_BUFFER_BYTES_FIRST, "{take}");
        assert!(buffer.capacity() <= 2 * RECEIVE_BUFFER_BYTES_FIRST, "{}", buffer.capacity());
    }

    #[test]
    fn bad_lengths_are_refused() {
        for length in [-1_i32, 0, i32::MIN, i32::MAX, (1 << 20) + 1] {
            let mut reader = FrameReader::new(1 << 20);
            reader.push(Bytes::from(length.to_be_bytes().to_vec()));
            assert!(reader.next_frame().is_err(), "length {length}");
        }
    }

    #[test]
    fn a_large_frame_received_into_its_buffer_is_whole() {
        let body: Vec<u8> = (0..3_000_000_u32).map(|i| i as u8).collect();
        let bytes = frame(&body);
        let mut reader = FrameReader::new(100 << 20);
        reader.push(Bytes::copy_from_slice(&bytes[..1000]));
        let mut sent = 1000;
        loop {
            if let Some(whole) = reader.next_frame().expect("valid") {
                assert_eq!(whole, body[..]);
                break;
            }
            match reader.next_receive() {
                NextReceive::Some => {
                    let end = bytes.len().min(sent + 1000);
                    reader.push(Bytes::copy_from_slice(&bytes[sent..end]));
                    sent = end;
                }
                NextReceive::Into { bytes: missing } => {
                    let (mut buffer, take) = reader.take_buffer(missing);
                    assert!(take > 0, "a receive without room never ends");
                    buffer.extend_from_slice(&bytes[sent..sent + take]);
                    sent += take;
                    reader.return_buffer(buffer);
                }
            }
        }
    }
}
