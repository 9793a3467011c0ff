//! Reads of a start, which ask again. Nothing is decided here about bytes that stay unreadable.
//!
//! While a core serves, an error ends one answer and the next reader asks anew. A start decides once: what it could not read is marked
//! as damaged and refused from then on, so one error that passes must not be enough.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{File, Io};

use crate::limits::{RECOVERY_READ_ATTEMPTS, RECOVERY_READ_PAUSE_MS};

/// As [`Io::read_at`], tried [`RECOVERY_READ_ATTEMPTS`] times.
///
/// # Errors
/// That of the last try.
pub(super) async fn read_again(io: &Io, file: &File, position: u64, length: usize) -> io::Result<Bytes> {
    for attempt in 1..RECOVERY_READ_ATTEMPTS {
        match io.read_at(file, position, length).await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => {
                ringlog_io::reached!("recovery.read_again");
                tracing::warn!(position, length, attempt, %error, "a start cannot read a file; it tries again");
                io.sleep(Duration::from_millis(RECOVERY_READ_PAUSE_MS)).await;
            }
        }
    }
    io.read_at(file, position, length).await
}
