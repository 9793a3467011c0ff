//! From lines to a [`Checker`], with bounds. It opens no files.

use std::io::{BufRead, Read};

use super::check::{Checker, Place};
use super::operation::{Operation, OperationError};

/// The longest line that is read, bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// Why a history cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Read { file: String, source: std::io::Error },
    /// A line is not an operation.
    #[error("{file}:{line}: {source}")]
    Line { file: String, line: u64, source: OperationError },
    /// A line is too long.
    #[error("{file}:{line}: the line is longer than {LINE_BYTES_MAX} bytes")]
    LongLine { file: String, line: u64 },
    /// A value is sent twice, so records do not name their writer.
    #[error("{file}:{line}: value {value} was sent before, on line {earlier}; each value may be sent once")]
    Repeated { file: String, line: u64, value: u64, earlier: u64 },
    /// More values than the bound.
    #[error(
        "{file}:{line}: more than {values_max} values; --values-max raises the bound (about 200 bytes each)"
    )]
    TooMany { file: String, line: u64, values_max: u64 },
}

/// Feeds every line of `input`, which is called `file` in messages, to `checker`. Blank lines are passed over.
///
/// # Errors
/// The first line that cannot be taken.
pub fn feed(checker: &mut Checker, file: &str, input: impl BufRead) -> Result<(), HistoryError> {
    let file_number = checker.add_file(file);
    let mut input = input;
    let mut bytes = Vec::new();
    let mut line = 0u64;
    loop {
        bytes.clear();
        line += 1;
        let read = input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes);
        let count = read.map_err(|source| HistoryError::Read { file: file.to_owned(), source })?;
        if count == 0 {
            return Ok(());
        }
        if count as u64 > LINE_BYTES_MAX {
            return Err(HistoryError::LongLine { file: file.to_owned(), line });
        }
        if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let operation = Operation::from_json(&bytes).map_err(|source| HistoryError::Line {
            file: file.to_owned(),
            line,
            source,
        })?;
        checker.apply(&operation, Place { file: file_number, line })?;
    }
}
