//! The history file: each operation is written whole, at once, so that another process may watch it grow.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::history::Operation;

/// Writes operations. An error is kept and ends the run; nothing is written behind it.
pub struct Recorder {
    file: RefCell<Box<dyn Write>>,
    failure: RefCell<Option<io::Error>>,
    lines: Cell<u64>,
}

impl Recorder {
    /// A new file, in place of one that exists.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(path: &Path) -> io::Result<Recorder> {
        Ok(Recorder::new(Box::new(File::create(path)?)))
    }

    /// Writes to `file`.
    pub fn new(file: Box<dyn Write>) -> Recorder {
        Recorder { file: RefCell::new(file), failure: RefCell::new(None), lines: Cell::new(0) }
    }

    /// One line.
    pub fn write(&self, operation: &Operation) {
        if self.has_failed() {
            return;
        }
        let line = format!("{}\n", operation.to_json());
        match self.file.borrow_mut().write_all(line.as_bytes()) {
            Ok(()) => self.lines.set(self.lines.get() + 1),
            Err(error) => *self.failure.borrow_mut() = Some(error),
        }
    }

    /// Whether a line could not be written.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Lines written.
    pub fn lines(&self) -> u64 {
        self.lines.get()
    }

    /// Everything is handed to the kernel.
    ///
    /// # Errors
    /// The first line that could not be written, or the flush.
    pub fn finish(&self) -> io::Result<()> {
        match self.failure.borrow_mut().take() {
            Some(error) => Err(error),
            None => self.file.borrow_mut().flush(),
        }
    }
}
