//! The disk of a simulated host: names that last only after their directory was synced, open files and their locks. What
//! a file holds is in `sectors`. Knows no time and no executor.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Component, Path};

use super::faults::{FaultKind, Faults, Place, WriteFault};
use super::name_log::{NameChange, NameLog};
use super::sectors::{PIECE_BYTES, SECTOR_BYTES, Sectors};
use crate::options::{DirectoryEntry, OpenOptions, SpaceInfo};
use crate::random::Random;

/// What a crash leaves of bytes that were written but not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsyncedData {
    /// The disk had written all of it.
    Kept,
    /// None of it reached the disk.
    Lost,
    /// The disk had written some: each sector of 4 KiB or not, drawn from the world's seed, writes that had begun included;
    /// and the first so many of the unsynced changes of names, each as a whole.
    RandomSubset {
        /// Of a sector some pieces of 512 bytes alone may be there.
        torn: bool,
    },
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
    /// Bytes that it takes at least: what was allocated for it.
    allocated: u64,
    /// Under which it was last opened, or to which it was renamed.
    path: String,
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
    /// `None` while nothing goes wrong.
    faults: Option<Box<Faults>>,
    unsynced_names: NameLog,
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
            faults: None,
            unsynced_names: NameLog::default(),
        }
    }

    pub(super) fn add_fault(&mut self, kind: FaultKind, place: Place, random: Random) {
        self.faults.get_or_insert_with(|| Box::new(Faults::new(random))).add(kind, place);
    }

    pub(super) fn heal(&mut self) {
        self.faults = None;
        self.sync_fails_one_of = 0;
    }

    /// Gives a name in a directory another meaning, until a sync of the directory not for ever.
    fn set_names(&mut self, changes: Vec<NameChange>) -> io::Result<()> {
        for NameChange { directory, name, inode } in &changes {
            let cached = &mut self.directory_mut(*directory)?.cached;
            match inode {
                Some(inode) => cached.insert(name.clone(), *inode),
                None => cached.remove(name),
            };
        }
        self.unsynced_names.note(changes);
        Ok(())
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

    /// Whether no descriptor is left for this file.
    pub(crate) fn fails_open(&mut self, path: &Path) -> bool {
        self.faults.as_mut().is_some_and(|faults| faults.fails_open(&path.to_string_lossy()))
    }

    /// Opens a file under the id that the caller chose for its handle.
    pub(crate) fn open(&mut self, handle: u64, path: &Path, options: OpenOptions) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let present = self.directory(parent)?.cached.get(&name).copied();
        let inode = match present {
            Some(_) if options.create_new => return Err(ErrorKind::AlreadyExists.into()),
            Some(inode) => inode,
            None if options.create || options.create_new => {
                self.check_room_for_name()?;
                let inode = self.create(Inode::File(FileData::default()));
                self.set_names(vec![NameChange { directory: parent, name, inode: Some(inode) }])?;
                inode
            }
            None => return Err(ErrorKind::NotFound.into()),
        };
        match self.inodes.get_mut(&inode) {
            Some(Inode::File(file)) => {
                path.to_string_lossy().as_ref().clone_into(&mut file.path);
                if options.truncate {
                    file.sectors.set_length(0);
                    file.allocated = 0;
                }
            }
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

    pub(crate) fn read(&mut self, handle: u64, position: u64, length: usize) -> io::Result<Vec<u8>> {
        if !self.opened(handle)?.read {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if let Some(mut faults) = self.faults.take() {
            let bytes = position..position.saturating_add(length as u64);
            let fails = self.file(handle).is_ok_and(|file| faults.fails_read(&file.path, &bytes));
            self.faults = Some(faults);
            if fails {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
        let position = usize::try_from(position).unwrap_or(usize::MAX);
        Ok(self.file(handle)?.sectors.read(position, length))
    }

    /// Writes bytes; `durable` makes those sectors durable, and the length, as a write with O_DSYNC does.
    pub(crate) fn write(
        &mut self,
        handle: u64,
        position: u64,
        bytes: &[u8],
        durable: bool,
    ) -> io::Result<()> {
        if self.faults.is_some()
            && let Some(result) = self.write_with_fault(handle, position, bytes, durable)
        {
            return result;
        }
        let fitting = self.fitting(handle, position, bytes)?;
        self.put(handle, position, fitting, durable)?;
        if fitting.len() < bytes.len() {
            return Err(no_space());
        }
        Ok(())
    }

    fn put(&mut self, handle: u64, position: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        let (sectors, range) = self.writable(handle, position, bytes)?;
        if durable {
            sectors.write_durable(range, bytes);
        } else {
            sectors.write(range, bytes);
            if let Some(open) = self.open.get_mut(&handle) {
                open.is_unsynced = true;
            }
        }
        Ok(())
    }

    /// What a write that goes wrong does; `None` = this one does not.
    fn write_with_fault(
        &mut self,
        handle: u64,
        position: u64,
        bytes: &[u8],
        durable: bool,
    ) -> Option<io::Result<()>> {
        let mut faults = self.faults.take()?;
        let done = self.fail_write(&mut faults, handle, position, bytes, durable);
        self.faults = Some(faults);
        done
    }

    fn fail_write(
        &mut self,
        faults: &mut Faults,
        handle: u64,
        position: u64,
        bytes: &[u8],
        durable: bool,
    ) -> Option<io::Result<()>> {
        let range = position..position.saturating_add(bytes.len() as u64);
        let WriteFault { kind, onto } = faults.on_write(&self.file(handle).ok()?.path, &range)?;
        match kind {
            FaultKind::ReadError | FaultKind::OpenError => None,
            FaultKind::WriteError => {
                let pieces = faults.below((bytes.len() / PIECE_BYTES) as u64 + 1) as usize;
                let written = bytes.get(..pieces * PIECE_BYTES).unwrap_or(&[]);
                let error = io::Error::from_raw_os_error(libc::EIO);
                Some(self.put(handle, position, written, false).and(Err(error)))
            }
            FaultKind::LostWrite => {
                let target = self.writable(handle, position, bytes);
                Some(target.map(|(sectors, range)| sectors.write_lost(range, bytes)))
            }
            FaultKind::StaleRead => {
                let target = self.writable(handle, position, bytes);
                Some(target.map(|(sectors, range)| sectors.lengthen(range.end, durable)))
            }
            FaultKind::MisdirectedWrite => {
                let place = self.wrong_place(faults, handle, position, onto.as_deref())?;
                let target = self.writable(handle, position, bytes);
                let done = target.map(|(sectors, range)| sectors.lengthen(range.end, durable));
                if done.is_ok()
                    && let Some(Inode::File(file)) = self.inodes.get_mut(&place.0)
                {
                    let start = place.1 * SECTOR_BYTES + position as usize % SECTOR_BYTES;
                    let range = start..start + bytes.len();
                    match durable {
                        true => file.sectors.write_durable(range, bytes),
                        false => file.sectors.write(range, bytes),
                    }
                }
                Some(done)
            }
        }
    }

    /// A sector of some file that is not the one meant.
    fn wrong_place(
        &self,
        faults: &mut Faults,
        handle: u64,
        position: u64,
        onto: Option<&str>,
    ) -> Option<(InodeId, usize)> {
        let own = self.opened(handle).ok()?.inode;
        let is_meant = |id: InodeId, file: &FileData| match onto {
            Some(part) => id != own && file.path.contains(part),
            None => id == own,
        };
        let own_sector = position as usize / SECTOR_BYTES;
        let mut places = Vec::new();
        for (id, inode) in &self.inodes {
            if let Inode::File(file) = inode
                && is_meant(*id, file)
            {
                let sectors = 0..file.sectors.length().div_ceil(SECTOR_BYTES);
                let others = sectors.filter(|sector| *id != own || *sector != own_sector);
                places.extend(others.map(|sector| (*id, sector)));
            }
        }
        places.get(faults.below(places.len() as u64) as usize).copied()
    }

    fn is_limited(&self) -> bool {
        self.capacity_bytes < CAPACITY_BYTES
    }

    /// As many of the bytes as there is room for.
    fn fitting<'a>(&self, handle: u64, position: u64, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        if !self.is_limited() {
            return Ok(bytes);
        }
        let fits =
            self.file(handle)?.bytes().saturating_add(self.space().free_bytes).saturating_sub(position);
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        Ok(bytes.get(..fits).unwrap_or(bytes))
    }

    fn check_room_for_name(&self) -> io::Result<()> {
        let is_full = self.is_limited() && self.space().free_bytes < SECTOR_BYTES as u64;
        if is_full { Err(no_space()) } else { Ok(()) }
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
        let file = self.file_mut(handle)?;
        if length < file.sectors.length() {
            file.allocated = length as u64;
        }
        file.sectors.set_length(length);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, handle: u64, end: u64, keep_size: bool) -> io::Result<()> {
        let present = self.file(handle)?.bytes();
        if self.is_limited() && end > present && end - present > self.space().free_bytes {
            return Err(no_space());
        }
        let file = self.file_mut(handle)?;
        file.allocated = file.allocated.max(end);
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
                    self.check_room_for_name()?;
                    let inode = self.create(Inode::Directory(DirectoryData::default()));
                    self.set_names(vec![NameChange { directory: current, name, inode: Some(inode) }])?;
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
        self.set_names(vec![NameChange { directory: parent, name, inode: None }])?;
        self.free_unreachable();
        Ok(())
    }

    pub(crate) fn remove_directory_all(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let inode = *self.directory(parent)?.cached.get(&name).ok_or(ErrorKind::NotFound)?;
        self.directory(inode)?;
        self.set_names(vec![NameChange { directory: parent, name, inode: None }])?;
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
        if let Some(Inode::File(file)) = self.inodes.get_mut(&inode) {
            to.to_string_lossy().as_ref().clone_into(&mut file.path);
        }
        self.set_names(vec![
            NameChange { directory: source, name: source_name, inode: None },
            NameChange { directory: target, name: target_name, inode: Some(inode) },
        ])?;
        self.free_unreachable();
        Ok(())
    }

    /// Makes the names in a directory durable, and those only.
    pub(crate) fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.find(path)?;
        let directory = self.directory_mut(inode)?;
        let removed = directory.durable.iter().any(|(name, inode)| directory.cached.get(name) != Some(inode));
        directory.durable.clone_from(&directory.cached);
        let inodes = &self.inodes;
        self.unsynced_names.forget(|directory| directory == inode || !inodes.contains_key(&directory));
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

    /// Power is cut: nothing is open any more, and only durable names and bytes are left, and what `unsynced` says.
    pub(crate) fn crash(&mut self, unsynced: UnsyncedData, random: &mut Random) {
        self.open.clear();
        let kept_names = match unsynced {
            UnsyncedData::Kept | UnsyncedData::Lost => 0,
            UnsyncedData::RandomSubset { .. } => random.below(self.unsynced_names.len() as u64 + 1),
        };
        for change in self.unsynced_names.take_first(kept_names as usize) {
            self.make_durable(change);
        }
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::File(file) => {
                    file.lock = None;
                    match unsynced {
                        UnsyncedData::Kept => file.sectors.keep(),
                        UnsyncedData::Lost => file.sectors.revert(),
                        UnsyncedData::RandomSubset { torn } => file.sectors.keep_some(random, torn),
                    }
                }
                Inode::Directory(directory) => directory.cached = directory.durable.clone(),
            }
        }
        self.free_unreachable();
    }

    /// Unless what it names is gone meanwhile: then it is as if it had never been.
    fn make_durable(&mut self, change: Vec<NameChange>) {
        let is_there = |inode: &InodeId| self.inodes.contains_key(inode);
        if !change.iter().all(|part| is_there(&part.directory) && part.inode.iter().all(is_there)) {
            return;
        }
        crate::reached::note("sim_disk.unsynced_name_kept");
        for NameChange { directory, name, inode } in change {
            if let Some(Inode::Directory(directory)) = self.inodes.get_mut(&directory) {
                match inode {
                    Some(inode) => directory.durable.insert(name, inode),
                    None => directory.durable.remove(&name),
                };
            }
        }
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
            Inode::File(file) => file.bytes(),
            Inode::Directory(_) => 0,
        }
    }
}

impl FileData {
    /// What it takes of the disk.
    fn bytes(&self) -> u64 {
        self.allocated.max(self.sectors.length() as u64)
    }
}

fn no_space() -> io::Error {
    crate::reached::note("sim_disk.no_space");
    io::Error::from_raw_os_error(libc::ENOSPC)
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
#[path = "disk_tests.rs"]
mod tests;
