//! What a simulated disk keeps, loses and gets wrong.

use super::*;

fn disk_with(path: &str, content: &[u8]) -> Disk {
    let mut disk = Disk::new();
    disk.open(1, Path::new(path), OpenOptions::READ_WRITE_CREATE).expect("open");
    disk.write(1, 0, content, false).expect("write");
    disk
}

fn content_after_crash(disk: &mut Disk, path: &str, unsynced: UnsyncedData) -> Option<Vec<u8>> {
    disk.crash(unsynced, &mut Random::from_seed(1));
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
    assert_eq!(content_after_crash(&mut disk, "/file", UnsyncedData::Lost).as_deref(), Some(&b"content"[..]));
}

#[test]
fn unsynced_bytes_are_kept_or_lost_as_a_whole() {
    for (unsynced, expected) in [(UnsyncedData::Kept, vec![2; 10_000]), (UnsyncedData::Lost, vec![1; 9_000])]
    {
        let mut disk = disk_with("/file", &[1; 9_000]);
        disk.sync_directory(Path::new("/")).expect("sync");
        disk.sync_file(1).expect("sync");
        disk.write(1, 0, &[2; 10_000], false).expect("write");
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
    disk.write(1, 0, &[2; 4_096], false).expect("write");
    disk.write(1, 4_096, &[3; 4_096], true).expect("write");
    disk.write(1, 12_288, &[4; 4_096], true).expect("write");
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
    assert_eq!(content_after_crash(&mut disk, "/file", UnsyncedData::Lost).as_deref(), Some(&b"content"[..]));
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

const SECTOR: u64 = SECTOR_BYTES as u64;

fn synced_disk(files: &[(&str, u8, usize)]) -> Disk {
    let mut disk = Disk::new();
    for (number, (path, byte, length)) in (1..).zip(files) {
        disk.open(number, Path::new(path), OpenOptions::READ_WRITE_CREATE).expect("open");
        disk.write(number, 0, &vec![*byte; *length], true).expect("write");
    }
    disk.sync_directory(Path::new("/")).expect("sync");
    disk
}

fn error_number(result: io::Result<impl Sized>) -> Option<i32> {
    result.err().expect("an error").raw_os_error()
}

#[test]
fn a_power_cut_keeps_the_first_changes_of_names_each_as_a_whole() {
    let mut seen = BTreeSet::new();
    for seed in 0..50 {
        let mut disk = synced_disk(&[("/old", 1, 10)]);
        disk.create_directories(Path::new("/folder")).expect("created");
        disk.rename(Path::new("/old"), Path::new("/folder/new")).expect("renamed");
        disk.open(2, Path::new("/last"), OpenOptions::READ_WRITE_CREATE).expect("open");
        disk.crash(UnsyncedData::RandomSubset { torn: true }, &mut Random::from_seed(seed));
        seen.insert(["/folder", "/old", "/folder/new", "/last"].map(|path| disk.exists(Path::new(path))));
        assert_eq!(disk.unsynced_names.len(), 0);
    }
    let prefixes = [
        [false, true, false, false],
        [true, true, false, false],
        [true, false, true, false],
        [true, false, true, true],
    ];
    assert_eq!(seen, BTreeSet::from(prefixes));
}

#[test]
fn synced_names_are_not_at_stake() {
    for seed in 0..20 {
        let mut disk = synced_disk(&[("/a", 1, 10)]);
        disk.remove_file(Path::new("/a")).expect("removed");
        disk.open(2, Path::new("/b"), OpenOptions::READ_WRITE_CREATE).expect("open");
        disk.remove_file(Path::new("/b")).expect("removed");
        disk.sync_directory(Path::new("/")).expect("sync");
        disk.crash(UnsyncedData::RandomSubset { torn: false }, &mut Random::from_seed(seed));
        assert!(!disk.exists(Path::new("/a")) && !disk.exists(Path::new("/b")));
    }
}

#[test]
fn reads_and_writes_fail_where_they_are_told_to() {
    let mut disk = synced_disk(&[("/log", 1, 8192), ("/sum", 2, 8192)]);
    disk.add_fault(FaultKind::ReadError, Place::in_files("log").bytes(4096..4097), Random::from_seed(1));
    disk.add_fault(FaultKind::WriteError, Place::in_files("sum").times(1), Random::from_seed(1));
    assert_eq!(disk.read(1, 0, 4096).expect("read").len(), 4096);
    assert_eq!(error_number(disk.read(1, 4000, 200)), Some(libc::EIO));
    assert_eq!(disk.read(2, 4000, 200).expect("read"), [2; 200]);
    assert_eq!(error_number(disk.write(2, 0, &[3; 8192], true)), Some(libc::EIO));
    let bytes = disk.read(2, 0, 8192).expect("read");
    let written = bytes.iter().take_while(|byte| **byte == 3).count();
    assert!(written.is_multiple_of(512) && bytes[written..].iter().all(|byte| *byte == 2), "{written}");
    disk.write(2, 0, &[3; 8192], true).expect("once only");
    disk.heal();
    assert_eq!(disk.read(1, 4000, 200).expect("healed"), [1; 200]);
}

#[test]
fn lost_and_stale_writes_are_told_to_be_done() {
    let mut disk = synced_disk(&[("/lost", 1, 4096), ("/stale", 1, 4096)]);
    disk.add_fault(FaultKind::LostWrite, Place::in_files("lost"), Random::from_seed(1));
    disk.add_fault(FaultKind::StaleRead, Place::in_files("stale"), Random::from_seed(1));
    for handle in [1, 2] {
        disk.write(handle, 0, &[2; 4096], true).expect("told so");
        disk.sync_file(handle).expect("told so");
    }
    assert_eq!(disk.read(1, 0, 4096).expect("read"), [2; 4096]);
    assert_eq!(disk.read(2, 0, 4096).expect("read"), [1; 4096]);
    assert_eq!(content_after_crash(&mut disk, "/lost", UnsyncedData::Kept), Some(vec![1; 4096]));
}

#[test]
fn misdirected_bytes_lie_in_another_sector_or_file() {
    let mut disk = synced_disk(&[("/log", 1, 8192), ("/other", 2, 4096)]);
    disk.add_fault(FaultKind::MisdirectedWrite, Place::in_files("log").times(1), Random::from_seed(1));
    disk.write(1, 0, &[3; 4096], true).expect("told so");
    assert_eq!(disk.read(1, 0, 9000).expect("read"), [[1; 4096], [3; 4096]].concat());
    let onto = Place::in_files("log").onto("other");
    disk.add_fault(FaultKind::MisdirectedWrite, onto, Random::from_seed(1));
    disk.write(1, 100, &[4; 10], false).expect("told so");
    assert_eq!(disk.read(1, 100, 10).expect("read"), [1; 10]);
    assert_eq!(disk.read(2, 100, 10).expect("read"), [4; 10]);
}

#[test]
fn a_full_disk_takes_what_fits_and_no_new_name() {
    let mut disk = synced_disk(&[("/a", 1, 8192)]);
    disk.set_capacity(4 * SECTOR);
    disk.allocate(1, 3 * SECTOR, true).expect("fits");
    assert_eq!((disk.length(1).expect("open"), disk.space().free_bytes), (2 * SECTOR, SECTOR));
    assert_eq!(error_number(disk.allocate(1, 5 * SECTOR, true)), Some(libc::ENOSPC));
    assert_eq!(error_number(disk.write(1, 3 * SECTOR, &[2; 9000], false)), Some(libc::ENOSPC));
    assert_eq!(disk.length(1).expect("open"), 4 * SECTOR, "what fitted is there");
    disk.write(1, 0, &[3; 8192], true).expect("what is there already may change");
    let new = disk.open(2, Path::new("/b"), OpenOptions::READ_WRITE_CREATE);
    assert_eq!(error_number(new), Some(libc::ENOSPC));
    assert_eq!(error_number(disk.create_directories(Path::new("/c"))), Some(libc::ENOSPC));
    disk.truncate(1, SECTOR).expect("shorter");
    disk.open(2, Path::new("/b"), OpenOptions::READ_WRITE_CREATE).expect("there is room again");
}
