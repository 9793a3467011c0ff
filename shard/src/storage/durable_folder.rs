//! Making folders whose names survive a power cut. Does that and nothing else.

use std::io;
use std::path::Path;

use ringlog_io::Io;

/// Makes a folder with every missing parent, and syncs the folder of each name that was made: a new name lasts only
/// once its own folder was synced.
///
/// # Errors
/// Of the first step that failed; what was made stays.
pub(crate) async fn make_folder(io: &Io, path: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        if ancestor.as_os_str().is_empty() || io.path_exists(ancestor).await? {
            break;
        }
        missing.push(ancestor);
    }
    if missing.is_empty() {
        return Ok(());
    }
    io.create_directories(path).await?;
    for made in missing.into_iter().rev() {
        let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
        io.sync_directory(parent.unwrap_or(Path::new("."))).await?;
    }
    Ok(())
}
