//! Reads of 4 KiB out of a file in the page cache, one at a time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ringlog_io::{Executor, Io, OpenOptions};

use crate::measure::{Measurement, Window, pin};
use crate::{Runtime, Setting};

const READ_BYTES: usize = 4096;
const FILE_BYTES: usize = 16 << 20;
/// Reads between two looks at the clock.
const BATCH: u64 = 64;

pub fn run(runtime: Runtime, setting: Setting) -> Measurement {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("cached");
    std::fs::write(&path, vec![7; FILE_BYTES]).expect("write");
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let server = std::thread::spawn({
        let (stop, count) = (stop.clone(), count.clone());
        move || match runtime.config(setting.server_cpu, 0) {
            Some(config) => {
                let executor = Executor::new(config).expect("an executor");
                let io = executor.io();
                executor.run(read_ringlog(io, &path, &stop, &count));
            }
            None => {
                pin(setting.server_cpu);
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a tokio runtime");
                runtime.block_on(read_tokio(&path, &stop, &count));
            }
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    let before = count.load(Ordering::Relaxed);
    let window = Window::over(&server);
    std::thread::sleep(setting.duration);
    let measured = window.end(count.load(Ordering::Relaxed) - before);
    stop.store(true, Ordering::Relaxed);
    server.join().expect("no panic");
    measured
}

/// Positions in a fixed scattered order.
fn position(number: u64) -> u64 {
    let blocks = (FILE_BYTES / READ_BYTES) as u64;
    (number.wrapping_mul(0x9e37_79b9) % blocks) * READ_BYTES as u64
}

async fn read_ringlog(io: Io, path: &Path, stop: &AtomicBool, count: &AtomicU64) {
    let file = io.open(path, OpenOptions::READ).await.expect("open");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let bytes = io.read_at(&file, position(number), READ_BYTES).await.expect("read");
            assert_eq!(bytes.len(), READ_BYTES);
            number += 1;
        }
        count.store(number, Ordering::Relaxed);
    }
}

/// As tokio reads files: on a thread of its blocking pool. Its CPU there is not counted, only the runtime's own.
async fn read_tokio(path: &Path, stop: &AtomicBool, count: &AtomicU64) {
    let file = Arc::new(File::open(path).expect("open"));
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            let file = file.clone();
            let read = tokio::task::spawn_blocking(move || {
                let mut buffer = vec![0; READ_BYTES];
                file.read_exact_at(&mut buffer, position(number)).map(|()| buffer)
            });
            assert_eq!(read.await.expect("no panic").expect("read").len(), READ_BYTES);
            number += 1;
        }
        count.store(number, Ordering::Relaxed);
    }
}
