//! Segments behind damage that a start found: they are served, the damaged place is refused by name, and nobody is told of
//! another end of the log.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::storage_support::*;
use ringlog_io::Io;
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_shard::storage::{CoreStorage, LogId, LogPiece, ReadError};

fn segment_file(path: &Path, key: TopicPartition, base: Offset) -> PathBuf {
    let folder = path.join("data").join(key.topic.to_string()).join(key.partition.0.to_string());
    folder.join(format!("{:020}.log", base.0))
}

async fn open(io: &Io, path: &Path) -> Core {
    let directory = open_directory(io, path).await;
    let storage = start(io, &directory, 1, SMALL).await.pop().expect("one core");
    Core::open(storage, Rc::new(RefCell::new(Model::default())), SEGMENTS_OF_64K).await
}

/// Reads on from `from` for as long as there is something.
async fn read_on(
    io: &Io,
    storage: &CoreStorage,
    id: LogId,
    mut from: Offset,
) -> (Vec<u8>, Offset, Option<ReadError>) {
    let mut all = Vec::new();
    loop {
        let limit = storage.log(id).log_end();
        let read = match storage.plan_read(id, from, limit, 30_000, true) {
            Ok(plan) => plan.run(io).await,
            Err(error) => Err(error),
        };
        let read = match read {
            Ok(read) if read.next_offset > from => read,
            Ok(_) => return (all, from, None),
            Err(error) => return (all, from, Some(error)),
        };
        for piece in read.pieces {
            match piece {
                LogPiece::Memory(piece) => all.extend_from_slice(piece.bytes()),
                LogPiece::File { file, position, length } => {
                    all.extend_from_slice(
                        &io.read_at(&file, position, length as usize).await.expect("sound"),
                    );
                }
            }
        }
        from = read.next_offset;
    }
}

#[test]
fn segments_behind_a_damaged_one_are_served_and_the_damage_is_refused_by_name() {
    for keeps_sidecars in [true, false] {
        on_driver(|io| async move {
            let folder = tempfile::tempdir().expect("temp");
            let key = partition(1, 0);
            let (bases, whole, log_end) = {
                let mut core = open(&io, folder.path()).await;
                core.create([key], SEGMENTS_OF_64K);
                for salt in 0..150 {
                    core.append(key, 10, 200, salt).await;
                }
                core.settle(&io).await;
                core.storage.checkpoint().await.expect("checkpoint");
                let id = core.logs[&key];
                let whole = read_all(&io, &core.storage, id, 100_000).await;
                let log = core.storage.log(id);
                let ends: Vec<Offset> = log.segment_facts().iter().map(|facts| facts.end).collect();
                (ends, whole, log.log_end())
            };
            assert!(bases.len() >= 4, "{} segments", bases.len());
            let (second, third) = (bases[0], bases[1]);
            let damaged = segment_file(folder.path(), key, second);
            let mut bytes = std::fs::read(&damaged).expect("there");
            let in_the_middle = bytes.len() / 2;
            bytes[in_the_middle] ^= 1;
            std::fs::write(&damaged, bytes).expect("writable");
            std::fs::remove_dir_all(folder.path().join("checkpoints")).expect("there");
            if !keeps_sidecars {
                for base in [Offset(0), second, third] {
                    let sidecar = segment_file(folder.path(), key, base).with_extension("sum");
                    std::fs::remove_file(sidecar).expect("there");
                }
            }
            for _ in 0..2 {
                let core = open(&io, folder.path()).await;
                let (id, storage) = (core.logs[&key], &core.storage);
                let end = storage.log(id).log_end();
                assert!(end > second && end < third, "the log ends before the damage");
                let damage = storage.log(id).damage().expect("found").to_string();
                assert!(damage.contains(&format!("served again from offset {third}")), "{damage}");
                let (before, stopped, error) = read_on(&io, storage, id, Offset(0)).await;
                assert!(whole.starts_with(&before) && stopped == end);
                let refused = error.expect("the damage is no end");
                assert!(
                    matches!(refused, ReadError::InDamage { next_sound: Some(next), .. } if next == third),
                    "{refused:?}"
                );
                assert!(refused.to_string().ends_with(&format!("from offset {third} on")), "{refused}");
                assert!(storage.log(id).served_behind(Offset(third.0 - 1)).is_none());
                let served = storage.log(id).served_behind(third).expect("sound");
                assert_eq!(served.acknowledged_end, log_end);
                let (mut behind, mut from) = (Vec::new(), third);
                while from < log_end {
                    let (bytes, next, _) = read_on(&io, storage, id, from).await;
                    assert!(next > from, "offset {from} is served");
                    behind.extend_from_slice(&bytes);
                    from = next;
                }
                assert!(whole.ends_with(&behind) && !behind.is_empty());
                assert!(matches!(
                    storage.plan_read(id, log_end, log_end, 1, true),
                    Err(ReadError::InDamage { next_sound: None, .. })
                ));
                let refused = storage.append(id, batch(end, 1, 10, 1));
                assert!(refused.is_err(), "nobody writes there");
            }
        });
    }
}
