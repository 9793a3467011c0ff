//! The disk of a simulated host: names that last only after their directory was synced, open files and their locks. What
//! a file holds is in `sectors`. Knows no time and no executor.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Component, Path};

use super::sectors::Sectors;
use crate::options::{DirectoryEntry, OpenOptions, SpaceInfo};

/// What a crash leaves of bytes that were written but not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsyncedData {
    /// The disk had written all of it.
    Kept,
    /// None of it reached the disk.
    Lost,
}

/// A file or directory, however many names it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InodeId(u64);

enum Inode {
    File(FileData),
    Directory(DirectoryData),
}

#[derive(Default)]
struct FileData {
    sectors: Sectors,
    /// Open file that holds the lock.
    lock: Option<u64>,
}

#[derive(Default)]
struct DirectoryData {
    cached: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct OpenFile {
    inode: InodeId,
    read: bool,
    write: bool,
    /// Written to, and its file not synced since.
    is_unsynced: bool,
    /// Failed syncs of any file that this handle was told of.
    syncs_failed_told: u64,
}

/// All files of one host.
pub(crate) struct Disk {
    inodes: BTreeMap<InodeId, Inode>,
    open: BTreeMap<u64, OpenFile>,
    next_inode: u64,
    /// Whether an open file has no name: it goes when it is closed.
    has_unnamed: bool,
    /// What all files together may hold, in bytes.
    capacity_bytes: u64,
    /// One of so many syncs fails; 0 = none.
    sync_fails_one_of: u64,
    syncs_failed: u64,
    /// Descriptors closed with unsynced writes: a kernel drops the error of those.
    closed_unsynced: u64,
}

/// Capacity of a disk that nobody gave one: never reached.
const CAPACITY_BYTES: u64 = 1 << 40;

const ROOT: InodeId = InodeId(0);

impl Disk {
    pub(crate) fn new() -> Self {
        let inodes = BTreeMap::from([(ROOT, Inode::Directory(DirectoryData::default()))]);
        Self {
            inodes,
            open: BTreeMap::new(),
            next_inode: 1,
            has_unnamed: false,
            closed_unsynced: 0,
            capacity_bytes: CAPACITY_BYTES,
            sync_fails_one_of: 0,
            syncs_failed: 0,
        }
    }

    fn create(&mut self, inode: Inode) -> InodeId {
        let id = InodeId(self.next_inode);
        self.next_inode += 1;
        self.inodes.insert(id, inode);
        id
    }

    fn directory(&self, id: InodeId) -> io::Result<&DirectoryData> {
        match self.inodes.get(&id) {
            Some(Inode::Directory(directory)) => Ok(directory),
            Some(Inode::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn directory_mut(&mut self, id: InodeId) -> io::Result<&mut DirectoryData> {
        match self.inodes.get_mut(&id) {
            Some(Inode::Directory(directory)) => Ok(directory),
            Some(Inode::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<InodeId> {
        let mut current = ROOT;
        for name in names(path)? {
            current = *self.directory(current)?.cached.get(&name).ok_or(ErrorKind::NotFound)?;
        }
        Ok(current)
    }

    /// The directory that holds the path's last name, and that name.
    fn parent(&self, path: &Path) -> io::Result<(InodeId, String)> {
        let mut names = names(path)?;
        let last = names.pop().ok_or(ErrorKind::InvalidInput)?;
        let mut current = ROOT;
        for name in names {
            current = *self.directory(current)?.cached.get(&name).ok_or(ErrorKind::NotFound)?;
        }
        self.directory(current)?;
        Ok((current, last))
    }

    /// Opens a file under the id that the caller chose for its handle.
    pub(crate) fn open(&mut self, handle: u64, path: &Path, options: OpenOptions) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let present = self.directory(parent)?.cached.get(&name).copied();
        let inode = match present {
            Some(_) if options.create_new => return Err(ErrorKind::AlreadyExists.into()),
            Some(inode) => inode,
            None if options.create || options.create_new => {
                let inode = self.create(Inode::File(FileData::default()));
                self.directory_mut(parent)?.cached.insert(name, inode);
                inode
            }
            None => return Err(ErrorKind::NotFound.into()),
        };
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) if options.truncate => file.sectors.set_length(0),
            Some(Inode::File(_)) => {}
            // As open(2): a directory opens for reading only; it stands for its file system.
            _ if options.write => return Err(ErrorKind::IsADirectory.into()),
            _ => {}
        }
        let OpenOptions { read, write, .. } = options;
        let syncs_failed_told = self.syncs_failed;
        self.open.insert(handle, OpenFile { inode, read, write, is_unsynced: false, syncs_failed_told });
        Ok(())
    }

    /// Locks what the handle has open.
    pub(crate) fn lock(&mut self, handle: u64) -> io::Result<()> {
        let file = self.file_mut(handle)?;
        match file.lock {
            Some(holder) if holder != handle => Err(ErrorKind::WouldBlock.into()),
            _ => {
                file.lock = Some(handle);
                Ok(())
            }
        }
    }

    pub(crate) fn close(&mut self, handle: u64) {
        let Some(open) = self.open.remove(&handle) else { return };
        self.closed_unsynced += u64::from(open.is_unsynced);
        if let Some(Inode::File(file)) = self.inodes.get_mut(&open.inode)
            && file.lock == Some(handle)
        {
            file.lock = None;
        }
        if self.has_unnamed {
            self.free_unreachable();
        }
    }

    fn opened(&self, handle: u64) -> io::Result<OpenFile> {
        self.open.get(&handle).copied().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    fn file(&self, handle: u64) -> io::Result<&FileData> {
        let open = self.opened(handle)?;
        match self.inodes.get(&open.inode) {
            Some(Inode::File(file)) => Ok(file),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn file_mut(&mut self, handle: u64) -> io::Result<&mut FileData> {
        let open = self.opened(handle)?;
        match self.inodes.get_mut(&open.inode) {
            Some(Inode::File(file)) => Ok(file),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    pub(crate) fn read(&self, handle: u64, position: u64, length: usize) -> io::Result<Vec<u8>> {
        if !self.opened(handle)?.read {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        Ok(self.file(handle)?.sectors.read(position, length))
    }

    pub(crate) fn write(&mut self, handle: u64, position: u64, bytes: &[u8]) -> io::Result<()> {
        let (sectors, range) = self.writable(handle, position, bytes)?;
        sectors.write(range, bytes);
        if let Some(open) = self.open.get_mut(&handle) {
            open.is_unsynced = true;
        }
        Ok(())
    }

    /// Writes bytes and makes those sectors durable, and the length, as a write with O_DSYNC does.
    pub(crate) fn write_durable(&mut self, handle: u64, position: u64, bytes: &[u8]) -> io::Result<()> {
        let (sectors, range) = self.writable(handle, position, bytes)?;
        sectors.write_durable(range, bytes);
        Ok(())
    }

    /// What a write changes, and where.
    fn writable(
        &mut self,
        handle: u64,
        position: u64,
        bytes: &[u8],
    ) -> io::Result<(&mut Sectors, Range<usize>)> {
        if !self.opened(handle)?.write {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let start = usize::try_from(position).map_err(|_| ErrorKind::FileTooLarge)?;
        let end = start.checked_add(bytes.len()).ok_or(ErrorKind::FileTooLarge)?;
        Ok((&mut self.file_mut(handle)?.sectors, start..end))
    }

    /// Makes the cached content of a file durable.
    pub(crate) fn sync_file(&mut self, handle: u64) -> io::Result<()> {
        self.file_mut(handle)?.sectors.sync();
        let inode = self.opened(handle)?.inode;
        self.open.values_mut().filter(|open| open.inode == inode).for_each(|open| open.is_unsynced = false);
        Ok(())
    }

    pub(crate) fn closed_unsynced(&self) -> u64 {
        self.closed_unsynced
    }

    /// Asks for failed writes. It makes nothing durable, although syncfs(2) does: whoever rested on that would rest on
    /// luck, and a sync that was forgotten would not be found.
    pub(crate) fn sync_file_system(&mut self, handle: u64) -> io::Result<()> {
        let failed = self.syncs_failed;
        let open = self.open.get_mut(&handle).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        if std::mem::replace(&mut open.syncs_failed_told, failed) < failed {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// Lets a sync of the file fail: see [`Sectors::fail_sync`].
    pub(crate) fn fail_sync(&mut self, handle: u64) -> io::Result<()> {
        self.file_mut(handle)?.sectors.fail_sync();
        self.syncs_failed += 1;
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    /// Lets one of so many syncs of files fail from now on; 0 = none.
    pub(crate) fn set_failing_syncs(&mut self, one_of: u64) {
        self.sync_fails_one_of = one_of;
    }

    pub(crate) fn sync_fails_one_of(&self) -> u64 {
        self.sync_fails_one_of
    }

    pub(crate) fn set_capacity(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
    }

    /// Its size and what is left of it.
    pub(crate) fn space(&self) -> SpaceInfo {
        let used: u64 = self.inodes.values().map(Inode::bytes).sum();
        SpaceInfo { free_bytes: self.capacity_bytes.saturating_sub(used), total_bytes: self.capacity_bytes }
    }

    pub(crate) fn length(&self, handle: u64) -> io::Result<u64> {
        Ok(self.file(handle)?.sectors.length() as u64)
    }

    pub(crate) fn truncate(&mut self, handle: u64, length: u64) -> io::Result<()> {
        if !self.opened(handle)?.write {
            return Err(ErrorKind::InvalidInput.into());
        }
        let length = usize::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?;
        self.file_mut(handle)?.sectors.set_length(length);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, handle: u64, end: u64, keep_size: bool) -> io::Result<()> {
        if !keep_size && end > self.length(handle)? {
            self.truncate(handle, end)?;
        }
        Ok(())
    }

    pub(crate) fn create_directories(&mut self, path: &Path) -> io::Result<()> {
        let mut current = ROOT;
        for name in names(path)? {
            let present = self.directory(current)?.cached.get(&name).copied();
            current = match present {
                Some(inode) => inode,
                None => {
                    let inode = self.create(Inode::Directory(DirectoryData::default()));
                    self.directory_mut(current)?.cached.insert(name, inode);
                    inode
                }
            };
        }
        self.directory(current).map(|_| ())
    }

    pub(crate) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let inode = *self.directory(parent)?.cached.get(&name).ok_or(ErrorKind::NotFound)?;
        if matches!(self.inodes.get(&inode), Some(Inode::Directory(_))) {
            return Err(ErrorKind::IsADirectory.into());
        }
        self.directory_mut(parent)?.cached.remove(&name);
        self.free_unreachable();
        Ok(())
    }

    pub(crate) fn remove_directory_all(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let inode = *self.directory(parent)?.cached.get(&name).ok_or(ErrorKind::NotFound)?;
        self.directory(inode)?;
        self.directory_mut(parent)?.cached.remove(&name);
        self.free_unreachable();
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (source, source_name) = self.parent(from)?;
        let (target, target_name) = self.parent(to)?;
        let inode = *self.directory(source)?.cached.get(&source_name).ok_or(ErrorKind::NotFound)?;
        let replaced = self.directory(target)?.cached.get(&target_name).copied();
        if let Some(Inode::Directory(directory)) = replaced.and_then(|id| self.inodes.get(&id))
            && !directory.cached.is_empty()
        {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        self.directory_mut(source)?.cached.remove(&source_name);
        self.directory_mut(target)?.cached.insert(target_name, inode);
        self.free_unreachable();
        Ok(())
    }

    /// Makes the names in a directory durable, and those only.
    pub(crate) fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        let directory = self.directory_mut(inode)?;
        let removed = directory.durable.iter().any(|(name, inode)| directory.cached.get(name) != Some(inode));
        directory.durable.clone_from(&directory.cached);
        if removed {
            self.free_unreachable();
        }
        Ok(())
    }

    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        let directory = self.directory(self.find(path)?)?;
        let entries = directory.cached.iter().map(|(name, inode)| DirectoryEntry {
            name: name.clone(),
            is_directory: matches!(self.inodes.get(inode), Some(Inode::Directory(_))),
        });
        Ok(entries.collect())
    }

    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    /// Power is cut: nothing is open any more, and only durable names and bytes are left.
    pub(crate) fn crash(&mut self, unsynced: UnsyncedData) {
        self.open.clear();
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::File(file) => {
                    file.lock = None;
                    match unsynced {
                        UnsyncedData::Kept => file.sectors.keep(),
                        UnsyncedData::Lost => file.sectors.revert(),
                    }
                }
                Inode::Directory(directory) => directory.cached = directory.durable.clone(),
            }
        }
        self.free_unreachable();
    }

    /// Frees what no name (cached or durable) and no open file reaches.
    fn free_unreachable(&mut self) {
        let mut named = BTreeSet::new();
        let mut pending = vec![ROOT];
        while let Some(id) = pending.pop() {
            if !named.insert(id) {
                continue;
            }
            if let Some(Inode::Directory(directory)) = self.inodes.get(&id) {
                pending.extend(directory.cached.values().chain(directory.durable.values()));
            }
        }
        let unnamed: BTreeSet<InodeId> =
            self.open.values().map(|open| open.inode).filter(|id| !named.contains(id)).collect();
        self.has_unnamed = !unnamed.is_empty();
        self.inodes.retain(|id, _| named.contains(id) || unnamed.contains(id));
    }
}

impl Inode {
    fn bytes(&self) -> u64 {
        match self {
            Inode::File(file) => file.sectors.length() as u64,
            Inode::Directory(_) => 0,
        }
    }
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                names.push(name.to_str().ok_or(ErrorKind::InvalidFilename)?.to_owned())
            }
            Component::ParentDir => {
                names.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_with(path: &str, content: &[u8]) -> Disk {
        let mut disk = Disk::new();
        disk.open(1, Path::new(path), OpenOptions::READ_WRITE_CREATE).expect("open");
        disk.write(1, 0, content).expect("write");
        disk
    }

    fn content_after_crash(disk: &mut Disk, path: &str, unsynced: UnsyncedData) -> Option<Vec<u8>> {
        disk.crash(unsynced);
        disk.open(9, Path::new(path), OpenOptions::READ).ok()?;
        Some(disk.read(9, 0, 1 << 20).expect("read"))
    }

    #[test]
    fn a_name_lasts_only_after_its_directory_was_synced() {
        let mut disk = disk_with("/file", b"content");
        disk.sync_file(1).expect("sync");
        assert_eq!(content_after_crash(&mut disk, "/file", UnsyncedData::Kept), None);

        let mut disk = disk_with("/file", b"content");
        disk.sync_file(1).expect("sync");
        disk.sync_directory(Path::new("/")).expect("sync");
        assert_eq!(
            content_after_crash(&mut disk, "/file", UnsyncedData::Lost).as_deref(),
            Some(&b"content"[..])
        );
    }

    #[test]
    fn unsynced_bytes_are_kept_or_lost_as_a_whole() {
        for (unsynced, expected) in
            [(UnsyncedData::Kept, vec![2; 10_000]), (UnsyncedData::Lost, vec![1; 9_000])]
        {
            let mut disk = disk_with("/file", &[1; 9_000]);
            disk.sync_directory(Path::new("/")).expect("sync");
            disk.sync_file(1).expect("sync");
            disk.write(1, 0, &[2; 10_000]).expect("write");
            assert_eq!(disk.read(1, 0, 20_000).expect("read"), [2; 10_000]);
            assert_eq!(content_after_crash(&mut disk, "/file", unsynced), Some(expected));
        }
    }

    #[test]
    fn lengths_revert_with_the_bytes() {
        let mut disk = disk_with("/file", &[1; 9_000]);
        disk.sync_directory(Path::new("/")).expect("sync");
        disk.sync_file(1).expect("sync");
        disk.truncate(1, 100).expect("truncate");
        disk.truncate(1, 5_000).expect("truncate");
        let mut expected = vec![1; 100];
        expected.resize(5_000, 0);
        assert_eq!(disk.read(1, 0, 20_000).expect("read"), expected);
        assert_eq!(content_after_crash(&mut disk, "/file", UnsyncedData::Lost), Some(vec![1; 9_000]));
    }

    #[test]
    fn a_durable_write_syncs_its_own_sectors_only() {
        let mut disk = disk_with("/file", &[1; 12_288]);
        disk.sync_directory(Path::new("/")).expect("sync");
        disk.sync_file(1).expect("sync");
        disk.write(1, 0, &[2; 4_096]).expect("write");
        disk.write_durable(1, 4_096, &[3; 4_096]).expect("write");
        disk.write_durable(1, 12_288, &[4; 4_096]).expect("write");
        let expected = [[1; 4_096], [3; 4_096], [1; 4_096], [4; 4_096]].concat();
        assert_eq!(content_after_crash(&mut disk, "/file", UnsyncedData::Lost), Some(expected));
    }

    #[test]
    fn an_unsynced_removal_or_rename_is_undone() {
        let mut disk = disk_with("/file", b"content");
        disk.sync_file(1).expect("sync");
        disk.sync_directory(Path::new("/")).expect("sync");
        disk.close(1);
        disk.rename(Path::new("/file"), Path::new("/other")).expect("rename");
        assert!(!disk.exists(Path::new("/file")));
        disk.remove_file(Path::new("/other")).expect("remove");
        assert_eq!(
            content_after_crash(&mut disk, "/file", UnsyncedData::Lost).as_deref(),
            Some(&b"content"[..])
        );
        assert!(!disk.exists(Path::new("/other")));
    }

    #[test]
    fn what_nothing_reaches_is_freed() {
        let mut disk = disk_with("/file", b"content");
        disk.remove_file(Path::new("/file")).expect("remove");
        assert_eq!(disk.inodes.len(), 2, "the open file lives");
        assert_eq!(disk.read(1, 0, 10).expect("read"), b"content");
        disk.close(1);
        assert_eq!(disk.inodes.len(), 1, "the root alone");
    }
}
