//! The data directory's identity: lock, `FORMAT`, `meta.properties`. Refuses what is not ours before it changes anything,
//! the journal's folder included.
//!
//! Layout: `lock`, `FORMAT`, `meta.properties`, `data/` (segments), `checkpoints/`, `journal/` (or elsewhere, by
//! configuration).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ringlog_io::{FileLock, Io, Priority};
use ringlog_protocol::ids::{NodeId, TopicId};

use super::checked_text::{check_text, with_checksum};
use super::durable_folder::{create_folder, make_folder, sync_above};
use super::journal_folder;

/// Version of the directory as a whole: what files there are and what each is for. The files carry their own.
pub const DIRECTORY_FORMAT_VERSION: u32 = 1;

const LOCK_NAME: &str = "lock";
const FORMAT_NAME: &str = "FORMAT";
const META_NAME: &str = "meta.properties";
const DATA_NAME: &str = "data";
const JOURNAL_NAME: &str = "journal";
const CHECKPOINTS_NAME: &str = "checkpoints";
const FORMAT_FIRST_LINE: &str = "ringlog data directory";
/// `mkfs` puts it at the root of a file system; it is nobody's data.
pub(super) const LOST_AND_FOUND: &str = "lost+found";

/// What the configuration says of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `None`: whatever the directory says, and a random one for a new directory.
    pub cluster_id: Option<String>,
    pub node_id: NodeId,
}

/// Why a data directory is refused. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum DataDirectoryError {
    #[error("data directory {} is in use by a running broker (its file {LOCK_NAME} is locked): stop that broker or choose another --data-dir", path.display())]
    Locked { path: PathBuf },
    #[error("data directory {} has format version {found}, this build reads {DIRECTORY_FORMAT_VERSION}: start a build that knows it, or choose another --data-dir", path.display())]
    NewerFormat { path: PathBuf, found: u32 },
    #[error("{} is not empty and holds no file {FORMAT_NAME} (found {found:?}): it is not a data directory of this broker; choose an empty or another --data-dir", path.display())]
    Foreign { path: PathBuf, found: String },
    #[error("data directory {} belongs to cluster id {found}, not {expected}: choose another --data-dir", path.display())]
    OtherCluster { path: PathBuf, found: String, expected: String },
    #[error("data directory {} belongs to node.id {found}, the configuration says {expected}: set node.id={found} or choose another --data-dir", path.display())]
    OtherNode { path: PathBuf, found: i32, expected: i32 },
    #[error("journal {} is in use by a running broker (its file lock is locked): stop that broker, or set ringlog.journal.dir to another folder", path.display())]
    JournalLocked { path: PathBuf },
    #[error("journal {} belongs to directory.id {found}, not to {expected}: set ringlog.journal.dir to this directory's own journal, or to an empty folder for a new directory", path.display())]
    OtherJournal { path: PathBuf, found: String, expected: String },
    #[error("journal {} is not empty and holds no file owner (found {found:?}): set ringlog.journal.dir to an empty folder, or to a whole copy of this directory's journal", path.display())]
    ForeignJournal { path: PathBuf, found: String },
    #[error("{} is not as it was written ({detail}): restore it from a copy", path.display())]
    Unreadable { path: PathBuf, detail: String },
    #[error("{} is not a directory: choose another --data-dir", path.display())]
    NotADirectory { path: PathBuf },
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A locked data directory that is ours. The lock goes when this is dropped.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    journal: PathBuf,
    cluster_id: String,
    node_id: NodeId,
    directory_id: String,
    is_new: bool,
    _lock: FileLock,
    /// Of a journal elsewhere.
    _journal_lock: Option<FileLock>,
}

struct Meta {
    cluster_id: String,
    node_id: i32,
    directory_id: String,
}

impl Meta {
    fn content(&self) -> Vec<u8> {
        let Meta { cluster_id, node_id, directory_id } = self;
        let text = format!(
            "#\nversion=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={directory_id}\n"
        );
        with_checksum(text)
    }
}

impl DataDirectory {
    /// Locks and checks a directory, or makes it when it is missing or empty. `journal` names a folder on another
    /// device; by default the journal is inside.
    ///
    /// # Errors
    /// See [`DataDirectoryError`].
    pub async fn open(
        io: &Io,
        path: &Path,
        journal: Option<&Path>,
        identity: &Identity,
    ) -> Result<DataDirectory, DataDirectoryError> {
        let failed = |source| DataDirectoryError::Io { path: path.to_owned(), source };
        let mut made = create_folder(io, path).await.map_err(failed)?;
        // A configuration may spell the default out; the directory's own lock holds that one.
        let journal = journal.filter(|journal| **journal != path.join(JOURNAL_NAME));
        let place = Place { io, path, journal, identity };
        // Once before anything is touched, and again once nobody else can.
        place.judge().await?;
        let lock = match io.lock_file(&path.join(LOCK_NAME)).await {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(DataDirectoryError::Locked { path: path.to_owned() });
            }
            Err(error) => return Err(failed(error)),
        };
        let journal_lock = match journal {
            Some(journal) => {
                let (lock, made_too) = journal_folder::lock(io, journal).await?;
                made.extend(made_too);
                Some(lock)
            }
            None => None,
        };
        let found = place.judge().await?;
        let is_new = found.meta.is_none();
        let meta = found.meta.unwrap_or_else(|| new_meta(io, identity));
        if is_new || !found.has_owner {
            place.establish(&meta, is_new, made).await?;
        }
        make_folder(io, &path.join(DATA_NAME)).await.map_err(failed)?;
        let journal = place.journal();
        Ok(DataDirectory {
            path: path.to_owned(),
            journal,
            cluster_id: meta.cluster_id,
            node_id: identity.node_id,
            directory_id: meta.directory_id,
            is_new,
            _lock: lock,
            _journal_lock: journal_lock,
        })
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the topics' folders.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.path.join(DATA_NAME)
    }

    /// Folder of the cores' checkpoint files; made when there is one.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS_NAME)
    }

    /// Folder of the journal.
    #[must_use]
    pub fn journal(&self) -> &Path {
        &self.journal
    }

    /// The cluster this directory belongs to.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The node this directory belongs to.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// Random, given when the directory was made: a directory that lost its data is another one (KIP-858).
    #[must_use]
    pub fn directory_id(&self) -> &str {
        &self.directory_id
    }

    /// Whether this start made it.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }
}

/// What is to be opened.
struct Place<'a> {
    io: &'a Io,
    path: &'a Path,
    journal: Option<&'a Path>,
    identity: &'a Identity,
}

/// What is there already.
struct Found {
    /// Without a file `FORMAT` there is none.
    meta: Option<Meta>,
    /// Whether the journal says that it is this directory's.
    has_owner: bool,
}

impl Place<'_> {
    fn journal(&self) -> PathBuf {
        self.journal.map_or_else(|| self.path.join(JOURNAL_NAME), Path::to_owned)
    }

    /// Whether all of it is ours. Changes nothing.
    async fn judge(&self) -> Result<Found, DataDirectoryError> {
        let Place { io, path, identity, .. } = *self;
        let names = list(io, path).await?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if has(FORMAT_NAME) {
            check_format(io, path).await?;
        } else {
            refuse_foreign(path, &names, self.journal)?;
        }
        let meta = if has(META_NAME) { Some(read_meta(io, path).await?) } else { None };
        if let Some(meta) = &meta {
            check_identity(path, meta, identity)?;
        }
        let directory_id = meta.as_ref().map(|meta| meta.directory_id.as_str());
        let has_owner =
            journal_folder::judge(io, &self.journal(), self.journal.is_none(), directory_id).await?;
        Ok(Found { meta, has_owner })
    }

    /// Writes whose directory and journal this is. Each step is durable before the next one begins:
    ///
    /// 1. The names above, and `FORMAT`: with it whatever a crash leaves is recognised as ours.
    /// 2. `meta.properties`, `data/` and `journal/`.
    /// 3. The journal's `owner`, which names what stands in `meta.properties`. Where a start finds it all the rest is
    ///    durable, also after a kill that left names which nobody had synced.
    async fn establish(
        &self,
        meta: &Meta,
        is_new: bool,
        made: Vec<PathBuf>,
    ) -> Result<(), DataDirectoryError> {
        let Place { io, path, .. } = *self;
        let journal = self.journal();
        let failed = |source| DataDirectoryError::Io { path: path.to_owned(), source };
        let failed_journal = |source| DataDirectoryError::Io { path: journal.clone(), source };
        let above = {
            let (io, path, elsewhere) = (io.clone(), path.to_owned(), self.journal.map(Path::to_owned));
            async move {
                let paths: Vec<&Path> = elsewhere.iter().map(PathBuf::as_path).chain([&*path]).collect();
                sync_above(&io, &paths, &made).await
            }
        };
        let above = io.spawn(Priority::Foreground, above);
        if is_new {
            let format = format!("{FORMAT_FIRST_LINE}\nversion={DIRECTORY_FORMAT_VERSION}\n");
            io.replace_file(&path.join(FORMAT_NAME), with_checksum(format)).await.map_err(failed)?;
        }
        above.await.map_err(failed)?;
        io.create_directories(&path.join(DATA_NAME)).await.map_err(failed)?;
        io.create_directories(&journal).await.map_err(failed_journal)?;
        let owner = journal.join(journal_folder::OWNER_NAME);
        let fresh_owner = {
            let (io, owner) = (io.clone(), owner.clone());
            let content = journal_folder::owner_content(&meta.directory_id);
            async move { io.write_beside(&owner, content).await }
        };
        let fresh_owner = io.spawn(Priority::Foreground, fresh_owner);
        if is_new {
            let file = path.join(META_NAME);
            let fresh = io.write_beside(&file, meta.content()).await.map_err(failed)?;
            io.rename(&fresh, &file).await.map_err(failed)?;
        }
        io.sync_directory(path).await.map_err(failed)?;
        let fresh_owner = fresh_owner.await.map_err(failed_journal)?;
        io.rename(&fresh_owner, &owner).await.map_err(failed_journal)?;
        io.sync_directory(&journal).await.map_err(failed_journal)
    }
}

pub(super) async fn list(io: &Io, path: &Path) -> Result<Vec<String>, DataDirectoryError> {
    match io.list_directory(path).await {
        Ok(entries) => Ok(entries.into_iter().map(|entry| entry.name).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(DataDirectoryError::NotADirectory { path: path.to_owned() })
        }
        Err(source) => Err(DataDirectoryError::Io { path: path.to_owned(), source }),
    }
}

/// Without `FORMAT` a directory is ours only if nothing is in it but what a first start leaves before it writes that file:
/// a journal under a name of its own too, which is judged by itself.
fn refuse_foreign(path: &Path, names: &[String], journal: Option<&Path>) -> Result<(), DataDirectoryError> {
    let is_journal = |name: &String| journal.is_some_and(|journal| *journal == path.join(name));
    let is_ours = |name: &String| {
        name == LOCK_NAME || name == LOST_AND_FOUND || name.starts_with(FORMAT_NAME) || is_journal(name)
    };
    match names.iter().find(|name| !is_ours(name)) {
        None => Ok(()),
        Some(found) => Err(DataDirectoryError::Foreign { path: path.to_owned(), found: found.clone() }),
    }
}

pub(super) async fn read_text(io: &Io, path: &Path) -> Result<String, DataDirectoryError> {
    let bytes = io
        .read_file(path)
        .await
        .map_err(|source| DataDirectoryError::Io { path: path.to_owned(), source })?;
    String::from_utf8(bytes).map_err(|_| DataDirectoryError::Unreadable {
        path: path.to_owned(),
        detail: "it is not text".to_owned(),
    })
}

async fn check_format(io: &Io, path: &Path) -> Result<(), DataDirectoryError> {
    let file = path.join(FORMAT_NAME);
    let text = read_text(io, &file).await?;
    let unreadable =
        |detail: &str| DataDirectoryError::Unreadable { path: file.clone(), detail: detail.to_owned() };
    let mut lines = text.lines();
    if lines.next() != Some(FORMAT_FIRST_LINE) {
        return Err(unreadable("its first line is another"));
    }
    let version =
        lines.find_map(|line| line.strip_prefix("version=")).and_then(|version| version.parse::<u32>().ok());
    match version {
        None | Some(0) => Err(unreadable("it states no version")),
        Some(found) if found > DIRECTORY_FORMAT_VERSION => {
            Err(DataDirectoryError::NewerFormat { path: path.to_owned(), found })
        }
        // A newer one may be checked by other rules.
        Some(_) => check_text(&text).map(|_| ()).map_err(|detail| unreadable(&detail)),
    }
}

async fn read_meta(io: &Io, path: &Path) -> Result<Meta, DataDirectoryError> {
    let file = path.join(META_NAME);
    let text = read_text(io, &file).await?;
    let unreadable = |detail: String| DataDirectoryError::Unreadable { path: file.clone(), detail };
    let body = check_text(&text).map_err(unreadable)?;
    let properties: BTreeMap<&str, &str> =
        body.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect();
    let get = |key: &str| {
        let value = properties.get(key).copied().filter(|value| !value.is_empty());
        value.ok_or_else(|| unreadable(format!("{key} is missing")))
    };
    let version = get("version")?;
    if version != "1" {
        return Err(unreadable(format!("version is {version}, not 1")));
    }
    let node_id = get("node.id")?;
    Ok(Meta {
        cluster_id: get("cluster.id")?.to_owned(),
        node_id: node_id.parse().map_err(|_| unreadable(format!("node.id {node_id} is no number")))?,
        directory_id: get("directory.id")?.to_owned(),
    })
}

fn new_meta(io: &Io, identity: &Identity) -> Meta {
    Meta {
        cluster_id: identity.cluster_id.clone().unwrap_or_else(|| random_id(io)),
        node_id: identity.node_id.0,
        directory_id: random_id(io),
    }
}

/// A random id in Kafka's spelling, which never begins with a dash: command lines would take it for an option.
fn random_id(io: &Io) -> String {
    loop {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&io.random_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&io.random_u64().to_le_bytes());
        let id = TopicId(bytes).to_string();
        if !id.starts_with('-') {
            return id;
        }
    }
}

fn check_identity(path: &Path, meta: &Meta, identity: &Identity) -> Result<(), DataDirectoryError> {
    if let Some(expected) = &identity.cluster_id
        && *expected != meta.cluster_id
    {
        let (found, expected) = (meta.cluster_id.clone(), expected.clone());
        return Err(DataDirectoryError::OtherCluster { path: path.to_owned(), found, expected });
    }
    if meta.node_id != identity.node_id.0 {
        let (found, expected) = (meta.node_id, identity.node_id.0);
        return Err(DataDirectoryError::OtherNode { path: path.to_owned(), found, expected });
    }
    Ok(())
}
