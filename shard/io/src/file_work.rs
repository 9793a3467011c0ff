//! File operations on the kernel, run where blocking is allowed: on a worker thread. Decides nothing about scheduling.

use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use rustix::fs::{FallocateFlags, FlockOperation};

use crate::aligned::{ALIGNMENT_BYTES, AlignedBuffer};
use crate::file::File;
use crate::network::{PIECES_PER_CALL_MAX, advance_pieces};
use crate::operation::{FileOperation, Returned};
use crate::options::{DirectoryEntry, OpenOptions, SpaceInfo, WriteSync};

/// Runs one operation to its end.
pub(crate) fn execute(operation: FileOperation) -> (io::Result<u64>, Returned) {
    match operation {
        FileOperation::Open { path, options } => returning(open(&path, options), Returned::File),
        FileOperation::Write { file, position, pieces } => plain(write_pieces(&file, position, pieces)),
        FileOperation::WriteAligned { file, position, buffer, sync } => {
            let result = write_aligned(&file, position, &buffer, sync);
            (result, Returned::Aligned(buffer))
        }
        FileOperation::Read { file, position, length } => {
            returning(read(&file, position, length), Returned::Bytes)
        }
        FileOperation::SyncData { file } => done(file.std().sync_data()),
        FileOperation::SyncAll { file } => done(file.std().sync_all()),
        FileOperation::StartWriteOut { file, position, length } => {
            done(start_write_out(&file, position, length))
        }
        FileOperation::Truncate { file, length } => done(file.std().set_len(length)),
        FileOperation::Allocate { file, position, length, keep_size } => {
            let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
            done(rustix::fs::fallocate(file.fd(), flags, position, length).map_err(io::Error::from))
        }
        FileOperation::Length { file } => plain(file.std().metadata().map(|metadata| metadata.len())),
        FileOperation::CreateDirectories { path } => done(fs::create_dir_all(path)),
        FileOperation::RemoveFile { path } => done(fs::remove_file(path)),
        FileOperation::RemoveDirectoryAll { path } => done(fs::remove_dir_all(path)),
        FileOperation::Rename { from, to } => done(fs::rename(from, to)),
        FileOperation::SyncDirectory { path } => {
            done(fs::File::open(path).and_then(|directory| directory.sync_all()))
        }
        FileOperation::ListDirectory { path } => returning(list(&path), Returned::Entries),
        FileOperation::PathExists { path } => plain(fs::exists(path).map(u64::from)),
        FileOperation::Lock { path } => returning(lock(&path), Returned::File),
        FileOperation::FileSystemSpace { path } => returning(file_system_space(&path), Returned::Space),
        FileOperation::SyncFileSystem { file } => {
            done(rustix::fs::syncfs(file.fd()).map_err(io::Error::from))
        }
    }
}

fn done(result: io::Result<()>) -> (io::Result<u64>, Returned) {
    (result.map(|()| 0), Returned::None)
}

fn plain(result: io::Result<u64>) -> (io::Result<u64>, Returned) {
    (result, Returned::None)
}

fn returning<T>(result: io::Result<T>, wrap: impl FnOnce(T) -> Returned) -> (io::Result<u64>, Returned) {
    match result {
        Ok(value) => (Ok(0), wrap(value)),
        Err(error) => (Err(error), Returned::None),
    }
}

fn open(path: &Path, options: OpenOptions) -> io::Result<File> {
    let mut plain = fs::OpenOptions::new();
    plain.read(options.read).write(options.write).create(options.create).create_new(options.create_new);
    plain.truncate(options.truncate);
    if !options.direct {
        return Ok(File::descriptor(plain.open(path)?, false));
    }
    match plain.clone().custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => Ok(File::descriptor(file, true)),
        // File systems without O_DIRECT answer EINVAL, some of them after the file was created: take it as it is.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            if options.create_new {
                plain.create_new(false).create(true);
            }
            Ok(File::descriptor(plain.open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

fn write_pieces(file: &File, mut position: u64, mut pieces: Vec<Bytes>) -> io::Result<u64> {
    let mut total = 0;
    pieces.retain(|piece| !piece.is_empty());
    while !pieces.is_empty() {
        let slices: Vec<IoSlice<'_>> =
            pieces.iter().take(PIECES_PER_CALL_MAX).map(|piece| IoSlice::new(piece)).collect();
        let written = match rustix::io::pwritev(file.fd(), &slices, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        position += written as u64;
        total += written as u64;
        advance_pieces(&mut pieces, written);
    }
    Ok(total)
}

fn write_aligned(file: &File, position: u64, buffer: &AlignedBuffer, sync: WriteSync) -> io::Result<u64> {
    file.std().write_all_at(buffer.as_slice(), position)?;
    if sync == WriteSync::Data {
        file.std().sync_data()?;
    }
    Ok(buffer.len() as u64)
}

/// Reads until `length` bytes or the end of the file. A direct file is read by whole blocks around the range.
pub(crate) fn read(file: &File, position: u64, length: usize) -> io::Result<Bytes> {
    if file.is_direct() {
        let window = DirectWindow::around(position, length);
        let mut buffer = AlignedBuffer::with_capacity(window.length);
        buffer.resize(window.length, 0);
        let filled = read_full(file, buffer.as_mut_slice(), window.position)?;
        buffer.truncate(filled);
        return Ok(window.cut(buffer, length));
    }
    let mut buffer = BytesMut::zeroed(length);
    let filled = read_full(file, &mut buffer, position)?;
    buffer.truncate(filled);
    Ok(buffer.freeze())
}

fn read_full(file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.std().read_at(rest, position + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // A direct read that ends inside a block has reached the end of the file; going on would be misaligned.
        if file.is_direct() && !filled.is_multiple_of(ALIGNMENT_BYTES) {
            break;
        }
    }
    Ok(filled)
}

/// The aligned range around a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectWindow {
    pub(crate) position: u64,
    pub(crate) length: usize,
    skip: usize,
}

impl DirectWindow {
    pub(crate) fn around(position: u64, length: usize) -> Self {
        let skip = (position % ALIGNMENT_BYTES as u64) as usize;
        Self {
            position: position - skip as u64,
            length: (skip + length).next_multiple_of(ALIGNMENT_BYTES),
            skip,
        }
    }

    /// The wanted bytes out of what the window read.
    pub(crate) fn cut(self, buffer: AlignedBuffer, length: usize) -> Bytes {
        let end = buffer.len().min(self.skip + length);
        let bytes = Bytes::from_owner(buffer);
        bytes.slice(self.skip.min(end)..end)
    }
}

fn start_write_out(file: &File, position: u64, length: u64) -> io::Result<()> {
    let offset = |value: u64| i64::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: takes numbers only.
    let code = unsafe { libc::sync_file_range(file.raw_fd(), offset(position)?, offset(length)?, flags) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn list(path: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let is_directory = entry.file_type()?.is_dir();
        entries.push(DirectoryEntry { name: entry.file_name().to_string_lossy().into_owned(), is_directory });
    }
    entries.sort();
    Ok(entries)
}

fn lock(path: &Path) -> io::Result<File> {
    let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(File::descriptor(file, false))
}

fn file_system_space(path: &Path) -> io::Result<SpaceInfo> {
    let space = rustix::fs::statvfs(path)?;
    Ok(SpaceInfo {
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_window_covers_its_range() {
        let window = DirectWindow::around(5000, 10);
        assert_eq!(window, DirectWindow { position: 4096, length: 4096, skip: 904 });
        let mut buffer = AlignedBuffer::new();
        buffer.extend_from_slice(&(0..4096_u32).map(|index| (index % 251) as u8).collect::<Vec<_>>());
        let expected: Vec<u8> = (904..914_u32).map(|index| (index % 251) as u8).collect();
        assert_eq!(window.cut(buffer, 10), expected);
    }

    #[test]
    fn a_direct_window_past_the_end_is_empty() {
        let window = DirectWindow::around(5000, 10);
        let mut buffer = AlignedBuffer::new();
        buffer.extend_from_slice(&[1; 100]);
        assert!(window.cut(buffer, 10).is_empty());
    }
}
