//! Files and directories: what is written is read back, errors are what the system says.

use std::io::ErrorKind;

use bytes::Bytes;
use ringlog_io::{AlignedBuffer, OpenOptions, Priority, WriteSync};

use crate::network::pattern;
use crate::{Case, Env, case};

pub const CASES: &[Case] = &[
    case!(buffered_write_and_read_back),
    case!(reads_end_with_the_file),
    case!(direct_write_and_read_back),
    case!(direct_writes_must_be_aligned),
    case!(many_writes_at_once),
    case!(many_reads_in_a_row),
    case!(open_options),
    case!(lengths),
    case!(directories),
    case!(rename_replaces),
    case!(replace_and_read_file),
    case!(locks_exclude),
    case!(an_open_file_outlives_its_name),
    case!(missing_things),
];

async fn buffered_write_and_read_back(env: Env) {
    let path = env.directory.join("file");
    let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE).await.expect("open");
    assert!(!file.is_direct());
    let pieces: Vec<Bytes> = (0..200).map(|index| pattern(index * 3, index)).collect();
    let content = pieces.concat();
    env.io.write_at(&file, 5, pieces).await.expect("write");
    env.io.write_at(&file, 0, vec![Bytes::from_static(b"head!")]).await.expect("write");
    env.io.sync_data(&file).await.expect("sync");
    env.io.start_write_out(&file, 0, 4096).await.expect("write out");
    let read = env.io.read_at(&file, 0, 5 + content.len()).await.expect("read");
    assert_eq!(&read[..5], b"head!");
    assert!(read[5..] == content[..]);
    let middle = env.io.read_at(&file, 1_005, 4_000).await.expect("read");
    assert!(middle == content[1_000..5_000]);
    let uncached = env.io.read_at_uncached(&file, 1_005, 4_000).await.expect("read");
    assert!(uncached == middle);
}

async fn reads_end_with_the_file(env: Env) {
    let file = env.io.open(&env.directory.join("file"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
    assert!(env.io.read_at(&file, 0, 10).await.expect("read").is_empty());
    env.io.write_at(&file, 0, vec![Bytes::from_static(b"0123456789")]).await.expect("write");
    assert_eq!(env.io.read_at(&file, 4, 100).await.expect("read"), b"456789"[..]);
    assert_eq!(env.io.read_at(&file, 4, 2).await.expect("read"), b"45"[..]);
    assert!(env.io.read_at(&file, 10, 1).await.expect("read").is_empty());
    assert!(env.io.read_at(&file, 1_000, 1).await.expect("read").is_empty());
    assert!(env.io.read_at(&file, 0, 0).await.expect("read").is_empty());
}

async fn direct_write_and_read_back(env: Env) {
    for directory in [env.directory.clone(), env.directory.join("below")] {
        env.io.create_directories(&directory).await.expect("directory");
        let path = directory.join("journal");
        let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_direct()).await.expect("open");
        let mut buffer = AlignedBuffer::with_capacity(12_288);
        buffer.extend_from_slice(&pattern(9_000, 4));
        buffer.pad_to_alignment();
        assert_eq!(buffer.len(), 12_288);
        for sync in [WriteSync::Data, WriteSync::None] {
            let (result, back) = env.io.write_direct(&file, 4_096, buffer, sync).await;
            result.expect("write");
            buffer = back;
            assert_eq!(buffer.len(), 12_288);
        }
        let (result, _) = env.io.write_direct(&file, 0, AlignedBuffer::new(), WriteSync::Data).await;
        result.expect("nothing to write");
        assert_eq!(env.io.file_length(&file).await.expect("length"), 16_384);
        let plain = env.io.open(&path, OpenOptions::READ).await.expect("open");
        for reader in [&plain, &file] {
            let read = env.io.read_at(reader, 4_096, 9_000).await.expect("read");
            assert!(read == pattern(9_000, 4));
            let read = env.io.read_at(reader, 5_000, 10).await.expect("read");
            assert!(read == pattern(9_000, 4)[904..914]);
            let read = env.io.read_at(reader, 16_380, 100).await.expect("read");
            assert_eq!(read.len(), 4);
        }
    }
}

async fn direct_writes_must_be_aligned(env: Env) {
    let path = env.directory.join("journal");
    let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_direct()).await.expect("open");
    let mut buffer = AlignedBuffer::new();
    buffer.extend_from_slice(b"short");
    let (result, mut buffer) = env.io.write_direct(&file, 0, buffer, WriteSync::Data).await;
    assert_eq!(result.expect_err("not a multiple").kind(), ErrorKind::InvalidInput);
    assert_eq!(buffer.as_slice(), b"short");
    buffer.pad_to_alignment();
    let (result, _) = env.io.write_direct(&file, 512, buffer, WriteSync::Data).await;
    assert_eq!(result.expect_err("not a multiple").kind(), ErrorKind::InvalidInput);
    assert_eq!(env.io.file_length(&file).await.expect("length"), 0);
}

/// More than the workers' shared queue holds.
async fn many_writes_at_once(env: Env) {
    let file = env.io.open(&env.directory.join("file"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
    let mut tasks = Vec::new();
    for index in 0..600_usize {
        let (io, file) = (env.io.clone(), file.clone());
        tasks.push(env.io.spawn(Priority::Foreground, async move {
            io.write_at(&file, index as u64 * 100, vec![pattern(100, index)]).await.expect("write");
        }));
    }
    for task in tasks {
        task.await;
    }
    let all = env.io.read_at(&file, 0, 60_000).await.expect("read");
    for index in 0..600 {
        assert!(all[index * 100..(index + 1) * 100] == pattern(100, index));
    }
}

/// More than a counter of 16 bits holds: a scheduler that keeps something for each turn shows here.
async fn many_reads_in_a_row(env: Env) {
    let file = env.io.open(&env.directory.join("file"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
    env.io.write_at(&file, 0, vec![pattern(4_096, 3)]).await.expect("write");
    let rounds = if env.io.driver_name() == "sim" { 1_000 } else { 70_000 };
    let content = pattern(4_096, 3);
    for round in 0..rounds {
        let position = round % 4_000;
        let read = env.io.read_at(&file, position, 4).await.expect("read");
        assert!(read == content[position as usize..position as usize + 4], "round {round}");
    }
}

async fn open_options(env: Env) {
    let path = env.directory.join("file");
    let missing = env.io.open(&path, OpenOptions { write: true, ..OpenOptions::default() }).await;
    assert_eq!(missing.expect_err("missing").kind(), ErrorKind::NotFound);
    let fresh = OpenOptions { write: true, create_new: true, ..OpenOptions::default() };
    let file = env.io.open(&path, fresh).await.expect("create");
    env.io.write_at(&file, 0, vec![Bytes::from_static(b"content")]).await.expect("write");
    assert!(env.io.read_at(&file, 0, 1).await.is_err(), "opened for writing only");
    let again = env.io.open(&path, fresh).await;
    assert_eq!(again.expect_err("exists").kind(), ErrorKind::AlreadyExists);
    let reader = env.io.open(&path, OpenOptions::READ).await.expect("open");
    assert!(
        env.io.write_at(&reader, 0, vec![Bytes::from_static(b"x")]).await.is_err(),
        "opened for reading only"
    );
    assert_eq!(env.io.read_at(&reader, 0, 10).await.expect("read"), b"content"[..]);
    let emptied = env.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_truncate()).await.expect("open");
    assert_eq!(env.io.file_length(&emptied).await.expect("length"), 0);
}

async fn lengths(env: Env) {
    let file = env.io.open(&env.directory.join("file"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
    env.io.write_at(&file, 0, vec![pattern(10_000, 1)]).await.expect("write");
    env.io.truncate(&file, 4_000).await.expect("truncate");
    assert_eq!(env.io.file_length(&file).await.expect("length"), 4_000);
    env.io.truncate(&file, 5_000).await.expect("truncate");
    let read = env.io.read_at(&file, 3_990, 100).await.expect("read");
    assert_eq!(read[..10], pattern(10_000, 1)[3_990..4_000]);
    assert_eq!(read[10..], [0; 90]);
    env.io.allocate(&file, 0, 100_000, true).await.expect("allocate");
    assert_eq!(env.io.file_length(&file).await.expect("length"), 5_000);
    env.io.allocate(&file, 0, 100_000, false).await.expect("allocate");
    assert_eq!(env.io.file_length(&file).await.expect("length"), 100_000);
    env.io.sync_all(&file).await.expect("sync");
    let space = env.io.file_system_space(&env.directory).await.expect("space");
    assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes, "{space:?}");
    let whole = env.io.open(&env.directory, OpenOptions::READ).await.expect("a directory opens for reading");
    env.io.sync_file_system(&whole).await.expect("sync");
    assert!(env.io.open(&env.directory, OpenOptions { write: true, ..OpenOptions::READ }).await.is_err());
}

async fn directories(env: Env) {
    let io = &env.io;
    let deep = env.directory.join("a/b/c");
    io.create_directories(&deep).await.expect("create");
    io.create_directories(&deep).await.expect("again");
    for name in ["z", "m", "a"] {
        io.open(&deep.join(name), OpenOptions::READ_WRITE_CREATE).await.expect("open");
    }
    io.create_directories(&deep.join("k")).await.expect("create");
    io.sync_directory(&deep).await.expect("sync");
    let entries = io.list_directory(&deep).await.expect("list");
    let names: Vec<(&str, bool)> =
        entries.iter().map(|entry| (entry.name.as_str(), entry.is_directory)).collect();
    assert_eq!(names, [("a", false), ("k", true), ("m", false), ("z", false)]);
    io.remove_file(&deep.join("m")).await.expect("remove");
    assert!(!io.path_exists(&deep.join("m")).await.expect("exists"));
    assert!(io.path_exists(&deep).await.expect("exists"));
    io.remove_directory_all(&env.directory.join("a")).await.expect("remove");
    assert!(!io.path_exists(&deep).await.expect("exists"));
    assert!(!io.path_exists(&env.directory.join("a")).await.expect("exists"));
}

async fn rename_replaces(env: Env) {
    let (from, to) = (env.directory.join("from"), env.directory.join("to"));
    for (path, content) in [(&from, "new"), (&to, "old")] {
        let file = env.io.open(path, OpenOptions::READ_WRITE_CREATE).await.expect("open");
        env.io.write_at(&file, 0, vec![Bytes::from_static(content.as_bytes())]).await.expect("write");
    }
    env.io.rename(&from, &to).await.expect("rename");
    assert_eq!(env.io.read_file(&to).await.expect("read"), b"new");
    assert!(!env.io.path_exists(&from).await.expect("exists"));
    // A directory moves with what is in it.
    env.io.create_directories(&env.directory.join("d/inner")).await.expect("create");
    env.io.rename(&to, &env.directory.join("d/inner/file")).await.expect("rename");
    env.io.rename(&env.directory.join("d"), &env.directory.join("e")).await.expect("rename");
    assert_eq!(env.io.read_file(&env.directory.join("e/inner/file")).await.expect("read"), b"new");
}

async fn replace_and_read_file(env: Env) {
    let path = env.directory.join("manifest");
    for content in [&b"first"[..], b"", b"third and longer"] {
        env.io.replace_file(&path, content.to_vec()).await.expect("replace");
        assert_eq!(env.io.read_file(&path).await.expect("read"), content);
    }
    let entries = env.io.list_directory(&env.directory).await.expect("list");
    assert_eq!(entries.len(), 1, "nothing is left beside it: {entries:?}");
}

async fn locks_exclude(env: Env) {
    let path = env.directory.join("lock");
    let lock = env.io.lock_file(&path).await.expect("free");
    let held = env.io.lock_file(&path).await.expect_err("held");
    assert_eq!(held.kind(), ErrorKind::WouldBlock);
    env.io.write_at(lock.file(), 0, vec![Bytes::from_static(b"owner")]).await.expect("write");
    drop(lock);
    let lock = env.io.lock_file(&path).await.expect("free again");
    assert_eq!(env.io.read_at(lock.file(), 0, 10).await.expect("read"), b"owner"[..]);
}

async fn an_open_file_outlives_its_name(env: Env) {
    let path = env.directory.join("file");
    let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE).await.expect("open");
    env.io.write_at(&file, 0, vec![Bytes::from_static(b"content")]).await.expect("write");
    env.io.remove_file(&path).await.expect("remove");
    assert!(!env.io.path_exists(&path).await.expect("exists"));
    assert_eq!(env.io.read_at(&file, 0, 10).await.expect("read"), b"content"[..]);
    let other = env.io.open(&path, OpenOptions::READ_WRITE_CREATE).await.expect("open");
    assert_eq!(env.io.file_length(&other).await.expect("length"), 0);
}

async fn missing_things(env: Env) {
    let io = &env.io;
    let missing = env.directory.join("missing");
    let kinds = [
        io.open(&missing, OpenOptions::READ).await.expect_err("missing").kind(),
        io.remove_file(&missing).await.expect_err("missing").kind(),
        io.remove_directory_all(&missing).await.expect_err("missing").kind(),
        io.rename(&missing, &env.directory.join("x")).await.expect_err("missing").kind(),
        io.list_directory(&missing).await.expect_err("missing").kind(),
        io.read_file(&missing).await.expect_err("missing").kind(),
        io.sync_directory(&missing).await.expect_err("missing").kind(),
        io.open(&missing.join("below"), OpenOptions::READ_WRITE_CREATE).await.expect_err("missing").kind(),
        io.lock_file(&missing.join("below")).await.expect_err("missing").kind(),
    ];
    assert_eq!(kinds, [ErrorKind::NotFound; 9]);
}
