//! Making folders whose names survive a power cut. Does that and nothing else.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use ringlog_io::Io;

use super::side_by_side::side_by_side;

/// Makes a folder with every missing parent, and syncs the folder of each name that was made: a new name lasts only
/// once its own folder was synced.
///
/// # Errors
/// Of the first step that failed; what was made stays.
pub(crate) async fn make_folder(io: &Io, path: &Path) -> io::Result<()> {
    let parents = create_folder(io, path).await?;
    let syncs = parents.into_iter().map(|parent| {
        let io = io.clone();
        async move { io.sync_directory(&parent).await }
    });
    side_by_side(io, syncs).await.map(drop)
}

/// Makes a folder with every missing parent. Answers the folders that are to be synced before the new names last.
///
/// # Errors
/// Of the first step that failed; what was made stays.
pub(crate) async fn create_folder(io: &Io, path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut parents = Vec::new();
    for ancestor in path.ancestors() {
        if ancestor.as_os_str().is_empty() || io.path_exists(ancestor).await? {
            break;
        }
        parents.extend(ancestor.parent().map(or_current));
    }
    if !parents.is_empty() {
        io.create_directories(path).await?;
    }
    Ok(parents)
}

/// What stands above a relative path has no name.
fn or_current(folder: &Path) -> PathBuf {
    if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() }
}

/// Syncs all folders above these, whoever made them: a start that was killed may have, and nobody knows whether it came to
/// sync them. Those of `made`, in which this process made a name, must be synced; others may be such as cannot be.
///
/// # Errors
/// Of a folder of `made`, or an error that says more than that a folder is not to be synced by us.
pub(crate) async fn sync_above(io: &Io, paths: &[&Path], made: &[PathBuf]) -> io::Result<()> {
    let mut above: BTreeSet<PathBuf> = made.iter().cloned().collect();
    for path in paths {
        above.extend(path.ancestors().skip(1).map(or_current));
    }
    let syncs = above.into_iter().map(|folder| {
        let (io, must) = (io.clone(), made.contains(&folder));
        async move {
            match io.sync_directory(&folder).await {
                Err(error) if !must && is_out_of_reach(&error) => Ok(()),
                result => result,
            }
        }
    });
    side_by_side(io, syncs).await.map(drop)
}

/// Whether a folder that somebody else made is one that this process may not read, or whose file system syncs nothing.
fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
            | io::ErrorKind::ReadOnlyFilesystem
    )
}
