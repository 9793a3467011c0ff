//! Log compaction: of the records with one key the newest stays. Whole closed segments are written anew without the others and take
//! the place of the old ones.
//!
//! Reading order: `key_map` (the newest offset of each key), `filter` (which records of a batch stay), `choice` (which log, and how
//! far), `mark` (what is remembered), `swap` (names, and what a crash leaves): decisions. Then `run` (one compaction of one log)
//! with `pieces`, and `replace` (the segments in memory).

pub mod choice;
pub mod filter;
pub mod key_map;
pub mod mark;
mod pieces;
mod replace;
mod run;
pub(crate) mod swap;

pub use choice::{CompactionSettings, DirtyFacts, Prospect};
pub use mark::CompactionMark;
pub use run::{CompactionError, CompactionOrder, CompactionReport};
