//! The core's commit journal: a few pre-written files that take every change of a core's partitions in one stream.
//!
//! Owns what makes an acknowledgement true. It knows partitions only by key and entries only by kind: it never reads a
//! record, and it never touches a segment except in `recovery`, which redoes its entries.
//!
//! Reading order: `format` (constants, manifest), `entry`, `frame` (layouts), `queue` (what waits for the next
//! write), `ring` (the files), `writer` (the one write in flight), `reader`, `read_again`, `recovery`.

pub mod entry;
pub mod format;
pub mod frame;
mod queue;
mod read_again;
pub mod reader;
pub mod recovery;
mod ring;
mod signal;
mod stats;
mod writer;

pub use queue::{FrameTicket, Note, NoteKind};
pub use ring::{FileSerial, JournalFileInfo};
pub(crate) use signal::Signal;
pub use stats::{JournalStats, LatencyHistogram};
pub use writer::{
    Journal, JournalError, JournalObserver, JournalPlace, JournalPressure, JournalSettings, PoisonReason,
};
