//! The folder of the journal: whose it is. Beside the frames lies a file `owner` that names the data directory; on another
//! device it also has a lock of its own, since two data directories may name one folder.
//!
//! Refuses another's journal before anything is changed: replayed into the wrong directory it would be lost, and begun anew
//! in the wrong folder it would take acknowledged records with it.

use std::io;
use std::path::{Path, PathBuf};

use ringlog_io::{FileLock, Io};

use super::checked_text::{check_text, with_checksum};
use super::data_directory::{DataDirectoryError, LOST_AND_FOUND, list, read_text};
use super::durable_folder::create_folder;

pub(super) const OWNER_NAME: &str = "owner";
const LOCK_NAME: &str = "lock";
const FIRST_LINE: &str = "ringlog journal";

/// Whether `folder` says that it holds this directory's journal; refuses what must not. Changes nothing. A folder of the data directory itself has no
/// other owner, so there a missing `owner` is only one that was not written yet.
pub(super) async fn judge(
    io: &Io,
    folder: &Path,
    is_inside: bool,
    directory_id: Option<&str>,
) -> Result<bool, DataDirectoryError> {
    let failed = |source| DataDirectoryError::Io { path: folder.to_owned(), source };
    if !io.path_exists(folder).await.map_err(failed)? {
        return Ok(false);
    }
    let names = list(io, folder).await?;
    let path = folder.join(OWNER_NAME);
    if names.iter().any(|name| name == OWNER_NAME) {
        let found = owner(&path, &read_text(io, &path).await?)?;
        return match directory_id {
            Some(expected) if expected == found => Ok(true),
            expected => Err(DataDirectoryError::OtherJournal {
                path: folder.to_owned(),
                found,
                expected: expected.unwrap_or("a new one").to_owned(),
            }),
        };
    }
    let is_ours = |name: &String| name == LOCK_NAME || name == LOST_AND_FOUND || name.starts_with(OWNER_NAME);
    match names.iter().find(|name| !is_ours(name)).filter(|_| !is_inside) {
        None => Ok(false),
        Some(found) => {
            Err(DataDirectoryError::ForeignJournal { path: folder.to_owned(), found: found.clone() })
        }
    }
}

/// The directory id that an `owner` file names.
fn owner(path: &Path, text: &str) -> Result<String, DataDirectoryError> {
    let unreadable = |detail: String| DataDirectoryError::Unreadable { path: path.to_owned(), detail };
    let body = check_text(text).map_err(unreadable)?;
    let mut lines = body.lines();
    if (lines.next(), lines.next()) != (Some(FIRST_LINE), Some("version=1")) {
        return Err(unreadable("its first lines are others".to_owned()));
    }
    let id = lines.find_map(|line| line.strip_prefix("directory.id="));
    id.map(str::to_owned).ok_or_else(|| unreadable("directory.id is missing".to_owned()))
}

/// Locks a folder outside the data directory; made when it is missing. Answers also the folders that are to be synced
/// before its name lasts.
pub(super) async fn lock(io: &Io, folder: &Path) -> Result<(FileLock, Vec<PathBuf>), DataDirectoryError> {
    let failed = |source| DataDirectoryError::Io { path: folder.to_owned(), source };
    let made = create_folder(io, folder).await.map_err(failed)?;
    match io.lock_file(&folder.join(LOCK_NAME)).await {
        Ok(lock) => Ok((lock, made)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(DataDirectoryError::JournalLocked { path: folder.to_owned() })
        }
        Err(error) => Err(failed(error)),
    }
}

/// What the file says that names the journal's owner.
pub(super) fn owner_content(directory_id: &str) -> Vec<u8> {
    with_checksum(format!("{FIRST_LINE}\nversion=1\ndirectory.id={directory_id}\n"))
}
