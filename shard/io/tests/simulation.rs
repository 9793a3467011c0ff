//! What only the simulation can show: one seed gives one run, crashes lose what was not synced, clocks jump.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::sim::{Outcome, UnsyncedData, World};
use ringlog_io::{AlignedBuffer, Io, ListenOptions, OpenOptions, Priority, WriteSync};

/// A server that stores what clients send and echoes it, on two hosts with two executors each.
fn busy_world(seed: u64) -> (u64, u64, Vec<u64>) {
    let world = World::new(seed);
    let (server, clients) = (world.host("server"), world.host("clients"));
    let address = SocketAddr::new(server.address(), 9092);
    let io = server.executor();
    let other = server.executor();
    let peer = other.notifier();
    io.spawn(Priority::Foreground, serve(io.clone(), address, peer)).detach();
    let finished = Rc::new(Cell::new(0));
    let times = Rc::new(RefCell::new(Vec::new()));
    for client in 0..5_u64 {
        let io = clients.executor();
        let (finished, times) = (finished.clone(), times.clone());
        io.spawn(Priority::Foreground, {
            let io = io.clone();
            async move {
                let socket = loop {
                    match io.connect(address).await {
                        Ok(socket) => break socket,
                        Err(_) => io.sleep(Duration::from_millis(1)).await,
                    }
                };
                for round in 0..20_usize {
                    let length = 1 + (io.random_u64() % 5_000) as usize;
                    io.send(&socket, vec![Bytes::from(vec![round as u8; length])]).await.expect("send");
                    let mut left = length;
                    while left > 0 {
                        left -= io.recv_some(&socket).await.expect("receive").len();
                    }
                    times.borrow_mut().push(io.monotonic_now().0 ^ client);
                }
                finished.set(finished.get() + 1);
            }
        })
        .detach();
    }
    let outcome = world.run_until(|| finished.get() == 5, Duration::from_secs(60));
    assert_eq!(outcome, Outcome::Done, "seed {seed}");
    (world.trace_hash(), world.event_count(), times.take())
}

async fn serve(io: Io, address: SocketAddr, peer: ringlog_io::Notifier) {
    io.create_directories(Path::new("/data")).await.expect("directory");
    let listener = io.listen(address, &ListenOptions::default()).expect("listen");
    for number in 0.. {
        let (socket, _) = io.accept(&listener).await.expect("accept");
        let (io, peer) = (io.clone(), peer.clone());
        io.clone()
            .spawn(Priority::Foreground, async move {
                let path = format!("/data/{number}");
                let file = io.open(Path::new(&path), OpenOptions::READ_WRITE_CREATE).await.expect("open");
                let mut position = 0;
                loop {
                    let bytes = io.recv_some(&socket).await.expect("receive");
                    if bytes.is_empty() {
                        return;
                    }
                    let length = bytes.len() as u64;
                    io.write_at(&file, position, vec![bytes]).await.expect("write");
                    io.sync_data(&file).await.expect("sync");
                    peer.notify();
                    io.send_file(&socket, &file, position, length).await.expect("send");
                    position += length;
                }
            })
            .detach();
    }
}

#[test]
fn one_seed_gives_one_run() {
    for seed in [1, 2, 3] {
        let first = busy_world(seed);
        assert_eq!(first, busy_world(seed), "seed {seed} gave two runs");
        assert!(first.1 > 1_000, "{} events", first.1);
        assert_ne!(first.0, busy_world(seed + 100).0, "two seeds gave one run");
    }
}

fn run<T: 'static>(world: &World, io: &Io, work: impl Future<Output = T> + 'static) -> T {
    let slot = Rc::new(RefCell::new(None));
    let result = slot.clone();
    io.spawn(Priority::Foreground, async move {
        let value = work.await;
        *result.borrow_mut() = Some(value);
    })
    .detach();
    assert_eq!(world.run_until(|| slot.borrow().is_some(), Duration::from_secs(60)), Outcome::Done);
    slot.take().expect("the condition holds")
}

#[test]
fn a_crash_keeps_what_was_synced() {
    let mut outcomes = Vec::new();
    for seed in 0..32 {
        let world = World::new(seed);
        let host = world.host("one");
        let io = host.executor();
        run(&world, &io, {
            let io = io.clone();
            async move {
                io.create_directories(Path::new("/data")).await.expect("directory");
                io.sync_directory(Path::new("/")).await.expect("sync");
                io.replace_file(Path::new("/data/manifest"), b"first".to_vec()).await.expect("replace");
                let path = Path::new("/data/journal");
                let file = io.open(path, OpenOptions::READ_WRITE_CREATE.with_direct()).await.expect("open");
                io.sync_directory(Path::new("/data")).await.expect("sync");
                let mut buffer = AlignedBuffer::new();
                buffer.resize(4_096, 7);
                let (result, _) = io.write_direct(&file, 0, buffer, WriteSync::Data).await;
                result.expect("write");
                io.write_at(&file, 4_096, vec![Bytes::from(vec![8; 4_096])]).await.expect("write");
                io.open(Path::new("/data/unsynced"), OpenOptions::READ_WRITE_CREATE).await.expect("open");
            }
        });
        let unsynced = host.crash();
        outcomes.push(unsynced);
        let io = host.executor();
        let (manifest, journal, unsynced_name) = run(&world, &io, {
            let io = io.clone();
            async move {
                (
                    io.read_file(Path::new("/data/manifest")).await.expect("read"),
                    io.read_file(Path::new("/data/journal")).await.expect("read"),
                    io.path_exists(Path::new("/data/unsynced")).await.expect("exists"),
                )
            }
        });
        assert_eq!(manifest, b"first");
        let (synced, rest) = journal.split_at(4_096);
        assert_eq!(synced, [7; 4_096]);
        let is_as_told = match unsynced {
            UnsyncedData::Kept => rest == [8; 4_096] && !unsynced_name,
            UnsyncedData::Lost => rest.is_empty() && !unsynced_name,
            UnsyncedData::RandomSubset { torn } => {
                let is_whole = |byte| rest.iter().all(|found| *found == byte);
                let are_pieces = rest.chunks(512).all(|piece| piece == [8; 512] || piece == [0; 512]);
                matches!(rest.len(), 0 | 4_096) && are_pieces && (torn || is_whole(8) || is_whole(0))
            }
        };
        assert!(is_as_told, "seed {seed}: {} bytes after {unsynced:?}", journal.len());
    }
    for torn in [false, true] {
        assert!(outcomes.contains(&UnsyncedData::RandomSubset { torn }));
    }
    assert!(outcomes.contains(&UnsyncedData::Kept) && outcomes.contains(&UnsyncedData::Lost));
}

#[test]
fn a_crash_resets_the_peers_and_ends_the_tasks() {
    let world = World::new(5);
    let (server, client) = (world.host("server"), world.host("client"));
    let address = SocketAddr::new(server.address(), 9092);
    let io = server.executor();
    let alive = Rc::new(());
    let accepted = Rc::new(Cell::new(false));
    io.spawn(Priority::Foreground, {
        let (io, alive, accepted) = (io.clone(), alive.clone(), accepted.clone());
        async move {
            let listener = io.listen(address, &ListenOptions::default()).expect("listen");
            let (socket, _) = io.accept(&listener).await.expect("accept");
            accepted.set(true);
            let _never = io.recv_some(&socket).await;
            drop(alive);
        }
    })
    .detach();
    world.run_for(Duration::from_millis(1));
    let client_io = client.executor();
    let socket = run(&world, &client_io, {
        let io = client_io.clone();
        async move { io.connect(address).await.expect("connect") }
    });
    world.run_until(|| accepted.get(), Duration::from_secs(1));
    drop(io);
    server.crash();
    assert_eq!(Rc::strong_count(&alive), 1, "the task was dropped");
    let error = run(&world, &client_io, {
        let io = client_io.clone();
        async move {
            let received = io.recv_some(&socket).await;
            assert!(io.connect(address).await.is_err(), "nobody listens any more");
            received
        }
    });
    assert_eq!(error.expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn clocks_are_virtual_and_jump_apart() {
    let world = World::new(1);
    let (first, second) = (world.host("first"), world.host("second"));
    let (io, other) = (first.executor(), second.executor());
    let (wall, monotonic) = (io.wall_now_ms(), io.monotonic_now());
    assert_eq!(wall, other.wall_now_ms());
    first.jump_wall_clock(-5_000);
    run(&world, &io, io.sleep(Duration::from_secs(10)));
    let passed = io.monotonic_now().saturating_since(monotonic);
    assert!(passed >= Duration::from_secs(10) && passed < Duration::from_secs(11), "{passed:?}");
    assert!((5_000..5_100).contains(&(io.wall_now_ms() - wall)));
    assert!((10_000..10_100).contains(&(other.wall_now_ms() - wall)));
}

#[test]
fn a_world_without_events_is_stuck() {
    let world = World::new(1);
    let io = world.host("one").executor();
    io.spawn(Priority::Foreground, std::future::pending::<()>()).detach();
    assert_eq!(world.run_for(Duration::from_secs(1)), Outcome::Stuck);
    io.spawn(Priority::Foreground, io.sleep(Duration::from_secs(5))).detach();
    let before = world.now();
    assert_eq!(world.run_for(Duration::from_secs(1)), Outcome::TimedOut);
    assert_eq!(world.now(), before + Duration::from_secs(1), "time stops exactly at the limit");
}

#[test]
fn a_task_that_never_waits_does_not_stop_the_clock() {
    let world = World::new(1);
    let io = world.host("one").executor();
    io.spawn(Priority::Foreground, {
        let io = io.clone();
        async move {
            loop {
                io.yield_now().await;
            }
        }
    })
    .detach();
    run(&world, &io, io.sleep(Duration::from_millis(3)));
}

#[test]
fn a_disk_that_stalls_or_is_slow_takes_its_time_and_loses_nothing() {
    let world = World::new(3);
    let host = world.host("one");
    let io = host.executor();
    let file = run(&world, &io, {
        let io = io.clone();
        async move { io.open(Path::new("/file"), OpenOptions::READ_WRITE_CREATE).await.expect("open") }
    });
    let write = |position: u64| {
        let (begun, writer, file) = (world.now(), io.clone(), file.clone());
        run(&world, &io, async move {
            writer.write_at(&file, position, vec![Bytes::from_static(b"bytes")]).await.expect("written");
        });
        world.now().saturating_since(begun)
    };
    assert!(write(0) < Duration::from_secs(1));
    host.disk().stall(Duration::from_secs(5));
    assert!(write(5) >= Duration::from_secs(5));
    assert!(write(10) < Duration::from_secs(1), "it is over");
    host.disk().slow_down(2, Duration::from_secs(2));
    let slow = (0..40).filter(|number| write(15 + 5 * number) >= Duration::from_secs(2)).count();
    assert!((5..36).contains(&slow), "{slow} of 40");
    host.disk().heal();
    assert!((0..10).all(|number| write(5 * number) < Duration::from_secs(1)));
    let content = run(&world, &io, {
        let io = io.clone();
        async move { io.read_file(Path::new("/file")).await.expect("read") }
    });
    assert_eq!(content, b"bytes".repeat(43));
    assert!(host.disk().changes() >= 43);
}
