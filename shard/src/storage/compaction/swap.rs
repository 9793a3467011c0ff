//! The moment at which a new segment takes the place of the old ones, so that a crash anywhere leaves the old ones or the new one.
//!
//! Names, with `base` the first old segment's base offset and `end` the offset at which the next segment that stays begins:
//!
//! 1. `<base>.log.clean` is being written. A start removes it.
//! 2. Whole and synced, it is renamed to `<base>-<end>.swap`, and the folder is synced. From here on the new one counts: a start that
//!    finds such a name does the rest.
//! 3. The other old segments, and the sidecars of all of them, are removed, and the folder is synced: no sidecar of old bytes may
//!    ever stand beside the new ones, and no old segment behind them.
//! 4. It is renamed to `<base>.log`, which replaces the first old one, and the folder is synced.
//!
//! Each step of 3 and 4 may be done again. Readers that hold an old segment keep its file open and read on what they came for.

use std::io;
use std::path::{Path, PathBuf};

use ringlog_io::Io;
use ringlog_protocol::ids::Offset;

use crate::storage::folder::{segment_name, sidecar_path};

const CLEAN_SUFFIX: &str = ".clean";
const SWAP_SUFFIX: &str = ".swap";

/// A new segment and what it takes the place of: all segments whose base offset is `base` or above and below `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Swap {
    pub(crate) base: Offset,
    pub(crate) end: Offset,
}

impl Swap {
    /// The new segment's name once it counts.
    pub(crate) fn name(self) -> String {
        format!("{:020}-{:020}{SWAP_SUFFIX}", self.base.0, self.end.0)
    }

    /// What a name states, if it is one of these.
    pub(crate) fn parse(name: &str) -> Option<Swap> {
        let (base, end) = name.strip_suffix(SWAP_SUFFIX)?.split_once('-')?;
        let is_number = |text: &str| text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(base) || !is_number(end) {
            return None;
        }
        let swap = Swap { base: Offset(base.parse().ok()?), end: Offset(end.parse().ok()?) };
        (swap.base < swap.end).then_some(swap)
    }

    /// Whether the segment with this base offset is one that goes.
    pub(crate) fn replaces(self, base: Offset) -> bool {
        (self.base..self.end).contains(&base)
    }

    /// Makes the new segment count.
    ///
    /// # Errors
    /// What the file system answers. The outer one: nothing has changed. The inner one: it may count or not.
    pub(crate) async fn commit(self, io: &Io, folder: &Path) -> io::Result<io::Result<()>> {
        io.rename(&clean_path(folder, self.base), &folder.join(self.name())).await?;
        Ok(io.sync_directory(folder).await)
    }

    /// Does the rest; `old` are the base offsets of the segments that it replaces. May be done again.
    ///
    /// # Errors
    /// What the file system answers: some of it is done.
    pub(crate) async fn finish(self, io: &Io, folder: &Path, old: &[Offset]) -> io::Result<()> {
        for base in old {
            let path = folder.join(segment_name(*base));
            remove_if_there(io, &sidecar_path(&path)).await?;
            if *base != self.base {
                remove_if_there(io, &path).await?;
            }
        }
        io.sync_directory(folder).await?;
        io.rename(&folder.join(self.name()), &folder.join(segment_name(self.base))).await?;
        io.sync_directory(folder).await
    }
}

/// A new segment's name while it is written.
pub(crate) fn clean_path(folder: &Path, base: Offset) -> PathBuf {
    folder.join(format!("{}{CLEAN_SUFFIX}", segment_name(base)))
}

/// Whether a file of this name is a new segment that was never finished.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(CLEAN_SUFFIX).and_then(crate::storage::folder::parse_segment_name).is_some()
}

async fn remove_if_there(io: &Io, path: &Path) -> io::Result<()> {
    match io.remove_file(path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_do_not() {
        let swap = Swap { base: Offset(170), end: Offset(9000) };
        assert_eq!(swap.name(), "00000000000000000170-00000000000000009000.swap");
        assert_eq!(Swap::parse(&swap.name()), Some(swap));
        let strange = [
            "",
            ".swap",
            "170-9000.swap",
            "00000000000000000170.log",
            "00000000000000009000-00000000000000000170.swap",
            "00000000000000000170-00000000000000000170.swap",
            "00000000000000000170-99999999999999999999.swap",
        ];
        for name in strange {
            assert_eq!(Swap::parse(name), None, "{name}");
        }
        assert!(is_unfinished("00000000000000000170.log.clean"));
        assert!(!is_unfinished("00000000000000000170.log") && !is_unfinished("x.log.clean"));
        assert!(swap.replaces(Offset(170)) && swap.replaces(Offset(8999)));
        assert!(!swap.replaces(Offset(169)) && !swap.replaces(Offset(9000)));
    }
}
