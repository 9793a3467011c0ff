//! Read plans: what they name is there.

use std::cell::RefCell;
use std::rc::Rc;

use crate::storage_support::*;
use ringlog_protocol::ids::Offset;
use ringlog_shard::storage::LogPiece;

/// The index knows batches that are in memory only; a plan for the file in front of them must end with the file.
#[test]
fn a_plan_of_a_file_ends_where_its_synced_bytes_end() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let key = partition(1, 0);
        let mut file_bytes = 0;
        for start_number in 0..2 {
            let directory = open_directory(&io, folder.path()).await;
            let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
            let mut core = Core::open(storage, Rc::clone(&model), SEGMENTS_OF_64K).await;
            core.create([key], SEGMENTS_OF_64K);
            for salt in 0..5 {
                core.append(key, 1, 5_000, salt).await;
            }
            core.settle(&io).await;
            let id = core.logs[&key];
            if start_number == 0 {
                core.storage.checkpoint().await.expect("checkpoint");
                file_bytes = core.storage.log(id).size_bytes();
                continue;
            }
            // The first five are in the file only, the others in memory only.
            let plan = core.storage.plan_read(id, Offset(0), Offset(10), 1 << 20, true).expect("in range");
            let read = plan.run(&io).await.expect("read");
            let [LogPiece::File { file, position, length }] = &read.pieces[..] else {
                panic!("one piece of the file: {read:?}")
            };
            let bytes = io.read_at(file, *position, *length as usize).await.expect("file read");
            assert_eq!((bytes.len(), read.next_offset), (*length as usize, Offset(5)));
            assert_eq!(u64::from(*length), file_bytes);
        }
    });
}
