//! Changes of names that no sync of their directory has made durable, in order. Knows no bytes.
//!
//! A journalling file system makes such changes durable in the order in which they were made, each as a whole, and after a
//! power cut has done so up to some point that nobody was told of.

use super::disk::InodeId;

/// What a name in a directory stands for from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameChange {
    pub(super) directory: InodeId,
    pub(super) name: String,
    /// `None` = the name is gone.
    pub(super) inode: Option<InodeId>,
}

/// See the module.
#[derive(Default)]
pub(super) struct NameLog {
    /// Each a whole: a rename is two.
    changes: Vec<Vec<NameChange>>,
}

impl NameLog {
    pub(super) fn note(&mut self, change: Vec<NameChange>) {
        self.changes.push(change);
    }

    /// Forgets changes in directories that were synced, or are gone.
    pub(super) fn forget(&mut self, is_settled: impl Fn(InodeId) -> bool) {
        for change in &mut self.changes {
            change.retain(|part| !is_settled(part.directory));
        }
        self.changes.retain(|change| !change.is_empty());
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// The first so many changes; the others never were.
    pub(super) fn take_first(&mut self, count: usize) -> Vec<Vec<NameChange>> {
        let mut changes = std::mem::take(&mut self.changes);
        changes.truncate(count);
        changes
    }
}
