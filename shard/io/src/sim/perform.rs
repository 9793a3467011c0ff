//! File operations and jobs of a simulation: what each does to the disk of its host.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::handles::SimulatedFile;
use super::host_disk::Syncs;
use super::state::WorldState;
use super::trace::Trace;
use crate::file::{File, FileKind};
use crate::operation::{FileOperation, Operation, Returned};
use crate::options::{OpenOptions, WriteSync};

type Outcome = (io::Result<u64>, Returned);

impl WorldState {
    /// Lets a file operation or a job take effect.
    pub(crate) fn perform(&mut self, host: usize, operation: Operation) -> Outcome {
        self.hosts[host].disk_changes += u64::from(changes_disk(&operation));
        count_sync(&mut self.hosts[host].disk_syncs, &operation);
        match operation {
            Operation::ReadAt { file, position, length, uncached: _ } => {
                self.read(host, &file, position, length)
            }
            Operation::WriteDirect { file, position, buffer, sync } => {
                let result = self.write(host, &file, position, buffer.as_slice(), sync);
                (result, Returned::Aligned(buffer))
            }
            Operation::Compute { job } => (Ok(0), Returned::Job(job())),
            Operation::File(operation) => self.perform_on_file(host, operation),
            _ => unreachable!("sockets are not performed"),
        }
    }

    fn perform_on_file(&mut self, host: usize, operation: FileOperation) -> Outcome {
        let disk = &mut self.hosts[host].disk;
        match operation {
            FileOperation::Open { path, options } => self.open(host, &path, options, false),
            FileOperation::Lock { path } => self.open(host, &path, OpenOptions::READ_WRITE_CREATE, true),
            FileOperation::Write { file, position, pieces } => {
                (self.write(host, &file, position, &pieces.concat(), WriteSync::None), Returned::None)
            }
            FileOperation::WriteAligned { file, position, buffer, sync } => {
                let result = self.write(host, &file, position, buffer.as_slice(), sync);
                (result, Returned::Aligned(buffer))
            }
            FileOperation::Read { file, position, length } => self.read(host, &file, position, length),
            FileOperation::SyncData { file } | FileOperation::SyncAll { file } => {
                let one_of = disk.sync_fails_one_of();
                // Nothing is drawn while none fails, so that other runs stay as they are.
                let fails = one_of > 0 && self.random.below(one_of) == 0;
                let disk = &mut self.hosts[host].disk;
                let handle = handle(&file);
                done(if fails { disk.fail_sync(handle) } else { disk.sync_file(handle) })
            }
            FileOperation::StartWriteOut { file, .. } => done(disk.length(handle(&file)).map(|_| ())),
            FileOperation::Truncate { file, length } => done(disk.truncate(handle(&file), length)),
            FileOperation::Allocate { file, position, length, keep_size } => {
                done(disk.allocate(handle(&file), position.saturating_add(length), keep_size))
            }
            FileOperation::Length { file } => (disk.length(handle(&file)), Returned::None),
            FileOperation::CreateDirectories { path } => done(disk.create_directories(&path)),
            FileOperation::RemoveFile { path } => done(disk.remove_file(&path)),
            FileOperation::RemoveDirectoryAll { path } => done(disk.remove_directory_all(&path)),
            FileOperation::Rename { from, to } => done(disk.rename(&from, &to)),
            FileOperation::SyncDirectory { path } => done(disk.sync_directory(&path)),
            FileOperation::ListDirectory { path } => match disk.list(&path) {
                Ok(entries) => (Ok(0), Returned::Entries(entries)),
                Err(error) => (Err(error), Returned::None),
            },
            FileOperation::PathExists { path } => (Ok(u64::from(disk.exists(&path))), Returned::None),
            FileOperation::FileSystemSpace { .. } => (Ok(0), Returned::Space(disk.space())),
            FileOperation::SyncFileSystem { file } => done(disk.sync_file_system(handle(&file))),
        }
    }

    fn open(&mut self, host: usize, path: &std::path::Path, options: OpenOptions, lock: bool) -> Outcome {
        let id = self.next_id();
        let disk = &mut self.hosts[host].disk;
        if !lock && disk.fails_open(path) {
            return (Err(io::Error::from_raw_os_error(libc::EMFILE)), Returned::None);
        }
        let mut opened = disk.open(id, path, options);
        if lock && opened.is_ok() {
            opened = disk.lock(id);
        }
        match opened {
            Ok(()) => {
                let file = SimulatedFile { id, ledger: Arc::clone(&self.ledger) };
                (Ok(0), Returned::File(File::simulated(file, options.direct)))
            }
            Err(error) => {
                disk.close(id);
                (Err(error), Returned::None)
            }
        }
    }

    fn read(&mut self, host: usize, file: &File, position: u64, length: usize) -> Outcome {
        match self.hosts[host].disk.read(handle(file), position, length) {
            Ok(bytes) => (Ok(bytes.len() as u64), Returned::Bytes(Bytes::from(bytes))),
            Err(error) => (Err(error), Returned::None),
        }
    }

    fn write(
        &mut self,
        host: usize,
        file: &File,
        position: u64,
        bytes: &[u8],
        sync: WriteSync,
    ) -> io::Result<u64> {
        let disk = &mut self.hosts[host].disk;
        disk.write(handle(file), position, bytes, sync == WriteSync::Data)?;
        Ok(bytes.len() as u64)
    }
}

/// Whether it changes what a disk holds, or what of it lasts.
fn changes_disk(operation: &Operation) -> bool {
    use FileOperation as Op;
    match operation {
        Operation::WriteDirect { .. } => true,
        Operation::File(
            Op::Read { .. }
            | Op::Length { .. }
            | Op::ListDirectory { .. }
            | Op::PathExists { .. }
            | Op::FileSystemSpace { .. }
            | Op::StartWriteOut { .. }
            | Op::SyncFileSystem { .. },
        ) => false,
        Operation::File(Op::Open { options, .. }) => options.create || options.create_new || options.truncate,
        Operation::File(_) => true,
        _ => false,
    }
}

fn count_sync(syncs: &mut Syncs, operation: &Operation) {
    use FileOperation as Op;
    match operation {
        Operation::WriteDirect { sync: WriteSync::Data, .. }
        | Operation::File(Op::WriteAligned { sync: WriteSync::Data, .. }) => syncs.writes += 1,
        Operation::File(Op::SyncData { .. } | Op::SyncAll { .. }) => syncs.files += 1,
        Operation::File(Op::SyncDirectory { .. }) => syncs.directories += 1,
        Operation::File(Op::SyncFileSystem { .. }) => syncs.file_systems += 1,
        _ => {}
    }
}

/// The file, position and bytes of a write that has begun.
pub(crate) fn written(operation: &Operation) -> Option<(u64, u64, Vec<u8>)> {
    match operation {
        Operation::WriteDirect { file, position, buffer, .. }
        | Operation::File(FileOperation::WriteAligned { file, position, buffer, .. }) => {
            Some((handle(file), *position, buffer.as_slice().to_vec()))
        }
        Operation::File(FileOperation::Write { file, position, pieces }) => {
            Some((handle(file), *position, pieces.concat()))
        }
        _ => None,
    }
}

fn done(result: io::Result<()>) -> Outcome {
    (result.map(|()| 0), Returned::None)
}

pub(crate) fn handle(file: &File) -> u64 {
    match file.kind() {
        FileKind::Simulated(file) => file.id,
        FileKind::Descriptor(_) => unreachable!("a kernel file in a world"),
    }
}

/// Mixes what an operation is about to do into the fingerprint of the run.
pub(crate) fn record(trace: &mut Trace, operation: &Operation) {
    match operation {
        Operation::ReadAt { file, position, length, .. } => {
            trace.word(handle(file));
            trace.word(*position);
            trace.word(*length as u64);
        }
        Operation::WriteDirect { file, position, buffer, .. } => {
            trace.word(handle(file));
            trace.word(*position);
            trace.bytes(buffer.as_slice());
        }
        Operation::File(operation) => record_file(trace, operation),
        Operation::Compute { .. } => trace.word(1),
        _ => {}
    }
}

fn record_file(trace: &mut Trace, operation: &FileOperation) {
    use FileOperation as Op;
    let mut path = |kind: u64, path: &std::path::Path| {
        trace.word(kind);
        trace.bytes(path.as_os_str().as_encoded_bytes());
    };
    match operation {
        Op::Open { path: name, .. } => path(1, name),
        Op::Lock { path: name } => path(2, name),
        Op::CreateDirectories { path: name } => path(3, name),
        Op::RemoveFile { path: name } => path(4, name),
        Op::RemoveDirectoryAll { path: name } => path(5, name),
        Op::Rename { from, to } => {
            path(6, from);
            path(6, to);
        }
        Op::SyncDirectory { path: name } => path(7, name),
        Op::ListDirectory { path: name } => path(8, name),
        Op::PathExists { path: name } => path(9, name),
        Op::FileSystemSpace { path: name } => path(10, name),
        Op::Write { file, position, pieces } => {
            trace.word(handle(file));
            trace.word(*position);
            pieces.iter().for_each(|piece| trace.bytes(piece));
        }
        Op::WriteAligned { file, position, buffer, .. } => {
            trace.word(handle(file));
            trace.word(*position);
            trace.bytes(buffer.as_slice());
        }
        Op::SyncData { file } | Op::SyncAll { file } | Op::Length { file } | Op::SyncFileSystem { file } => {
            trace.word(handle(file) | 1 << 40)
        }
        Op::Truncate { file, length: number }
        | Op::Read { file, position: number, .. }
        | Op::StartWriteOut { file, position: number, .. }
        | Op::Allocate { file, position: number, .. } => {
            trace.word(handle(file) | 2 << 40);
            trace.word(*number);
        }
    }
}
