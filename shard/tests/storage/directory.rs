//! The data directory: what is not ours is refused, by name, and not touched; what is ours keeps its identity.

use std::fs;
use std::path::Path;

use crate::storage_support::*;
use ringlog_io::Io;
use ringlog_protocol::ids::NodeId;
use ringlog_shard::storage::{DataDirectory, DataDirectoryError, Identity};

fn identity(cluster_id: Option<&str>, node_id: i32) -> Identity {
    Identity { cluster_id: cluster_id.map(str::to_owned), node_id: NodeId(node_id) }
}

async fn refused(io: &Io, path: &Path, identity: &Identity) -> DataDirectoryError {
    let before = snapshot(path);
    let error = DataDirectory::open(io, path, None, identity).await.expect_err("refused");
    assert_eq!(snapshot(path), before, "{error}");
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    error
}

#[test]
fn a_new_directory_keeps_its_identity() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("missing").join("deep");
        let made = DataDirectory::open(&io, &path, None, &identity(None, 7)).await.expect("made");
        assert!(made.is_new() && made.cluster_id().len() == 22);
        let (cluster_id, directory_id) = (made.cluster_id().to_owned(), made.directory_id().to_owned());
        drop(made);
        let again =
            DataDirectory::open(&io, &path, None, &identity(Some(&cluster_id), 7)).await.expect("ours");
        assert_eq!((again.cluster_id(), again.directory_id()), (cluster_id.as_str(), directory_id.as_str()));
        assert!(!again.is_new());
    });
}

#[test]
fn a_journal_inside_the_directory_may_be_spelled_out() {
    on_driver(|io| async move {
        for name in ["journal", "write-ahead"] {
            let folder = tempfile::tempdir().expect("temp");
            let (path, journal) = (folder.path(), folder.path().join(name));
            for is_new in [true, false] {
                let opened = DataDirectory::open(&io, path, Some(&journal), &identity(None, 1)).await;
                let opened = opened.expect("ours");
                assert_eq!((opened.journal(), opened.is_new()), (journal.as_path(), is_new));
            }
        }
    });
}

#[test]
fn a_directory_that_a_running_broker_holds_is_refused() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let held = open_directory(&io, folder.path()).await;
        let error = refused(&io, folder.path(), &identity(None, 1)).await;
        assert!(matches!(error, DataDirectoryError::Locked { .. }), "{error}");
        drop(held);
        drop(open_directory(&io, folder.path()).await);
    });
}

#[test]
fn foreign_folders_are_refused() {
    on_driver(|io| async move {
        for name in ["holiday.jpg", "meta.properties", "__cluster_metadata-0", "data"] {
            let folder = tempfile::tempdir().expect("temp");
            fs::write(folder.path().join(name), b"not ours").expect("written");
            let error = refused(&io, folder.path(), &identity(None, 1)).await;
            assert!(matches!(&error, DataDirectoryError::Foreign { found, .. } if found == name), "{error}");
        }
        let folder = tempfile::tempdir().expect("temp");
        let file = folder.path().join("file");
        fs::write(&file, b"x").expect("written");
        let error = DataDirectory::open(&io, &file, None, &identity(None, 1)).await.expect_err("refused");
        assert!(matches!(error, DataDirectoryError::NotADirectory { .. }), "{error}");
    });
}

#[test]
fn other_identities_and_newer_formats_are_refused() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let cluster_id = open_directory(&io, folder.path()).await.cluster_id().to_owned();
        let error = refused(&io, folder.path(), &identity(Some("another"), 1)).await;
        assert!(
            matches!(&error, DataDirectoryError::OtherCluster { found, .. } if *found == cluster_id),
            "{error}"
        );
        let error = refused(&io, folder.path(), &identity(None, 2)).await;
        assert!(matches!(&error, DataDirectoryError::OtherNode { found: 1, expected: 2, .. }), "{error}");
        let format = folder.path().join("FORMAT");
        let text = fs::read_to_string(&format).expect("readable");
        fs::write(&format, text.replace("version=1", "version=2")).expect("written");
        let error = refused(&io, folder.path(), &identity(None, 1)).await;
        assert!(matches!(&error, DataDirectoryError::NewerFormat { found: 2, .. }), "{error}");
        for garbage in
            ["", "ringlog data directory\n", "ringlog data directory\nversion=x\n", "kafka\nversion=1\n"]
        {
            fs::write(&format, garbage).expect("written");
            let error = refused(&io, folder.path(), &identity(None, 1)).await;
            assert!(matches!(&error, DataDirectoryError::Unreadable { .. }), "{error}");
        }
        fs::write(&format, text).expect("written");
        fs::write(folder.path().join("meta.properties"), "version=1\ncluster.id=x\n").expect("written");
        let error = refused(&io, folder.path(), &identity(None, 1)).await;
        assert!(matches!(&error, DataDirectoryError::Unreadable { .. }), "{error}");
    });
}

#[test]
fn a_first_start_that_did_not_end_is_taken_up_again() {
    on_driver(|io| async move {
        for left in [&["lock"][..], &["lock", "FORMAT.new"], &["lost+found"]] {
            let folder = tempfile::tempdir().expect("temp");
            for name in left {
                fs::write(folder.path().join(name), b"").expect("written");
            }
            assert!(open_directory(&io, folder.path()).await.is_new());
        }
    });
}

#[test]
fn a_changed_or_shortened_identity_is_refused() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        drop(open_directory(&io, folder.path()).await);
        for name in ["FORMAT", "meta.properties", "journal/owner"] {
            let path = folder.path().join(name);
            let text = fs::read(&path).expect("there");
            for at in [0, text.len() / 2, text.len() - 2] {
                let mut changed = text.clone();
                changed[at] ^= 1;
                for bytes in [&changed[..], &text[..at]] {
                    fs::write(&path, bytes).expect("written");
                    let error = refused(&io, folder.path(), &identity(None, 1)).await;
                    assert!(
                        matches!(
                            &error,
                            DataDirectoryError::Unreadable { .. } | DataDirectoryError::NewerFormat { .. }
                        ),
                        "{name}: {error}"
                    );
                }
            }
            fs::write(&path, text).expect("written");
        }
        drop(open_directory(&io, folder.path()).await);
    });
}

async fn refused_with_journal(io: &Io, path: &Path, journal: &Path) -> DataDirectoryError {
    let before = (snapshot(path), snapshot(journal));
    let opened = DataDirectory::open(io, path, Some(journal), &identity(None, 1)).await;
    let error = opened.expect_err("refused");
    assert_eq!((snapshot(path), snapshot(journal)), before, "{error}");
    assert!(error.to_string().contains(&journal.display().to_string()), "{error}");
    error
}

#[test]
fn a_journal_elsewhere_is_locked_and_belongs_to_one_directory() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        let journal = folder.path().join("journal");
        let open = async |path: &Path| {
            DataDirectory::open(&io, path, Some(&journal), &identity(None, 1)).await.expect("ours")
        };
        let held = open(&first).await;
        fs::create_dir_all(&second).expect("writable");
        assert!(matches!(
            refused_with_journal(&io, &second, &journal).await,
            DataDirectoryError::OtherJournal { .. }
        ));
        assert_eq!(snapshot(&second).len(), 0, "not even a lock");
        let id = held.directory_id().to_owned();
        drop(held);
        let error = refused_with_journal(&io, &second, &journal).await;
        assert!(matches!(&error, DataDirectoryError::OtherJournal { found, .. } if *found == id), "{error}");
        drop(open(&first).await);
        // A directory that was copied with its identity: one of the two at a time.
        let held = open(&first).await;
        for name in ["FORMAT", "meta.properties"] {
            fs::copy(first.join(name), second.join(name)).expect("copied");
        }
        fs::write(second.join("lock"), b"").expect("written");
        let error = refused_with_journal(&io, &second, &journal).await;
        assert!(matches!(error, DataDirectoryError::JournalLocked { .. }), "{error}");
        drop(held);
        let foreign = folder.path().join("foreign");
        fs::create_dir(&foreign).expect("writable");
        fs::write(foreign.join("CURRENT"), b"whose?").expect("written");
        let error = refused_with_journal(&io, &first, &foreign).await;
        assert!(
            matches!(&error, DataDirectoryError::ForeignJournal { found, .. } if found == "CURRENT"),
            "{error}"
        );
    });
}
