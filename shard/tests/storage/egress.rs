//! Consumers that do not read: what their replies keep of the tail is bounded while a producer goes on, and what they
//! read in the end is what was asked for.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use bytes::Bytes;
use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, ListenOptions, Priority, Socket, Task};
use ringlog_protocol::ids::Offset;
use ringlog_shard::egress::{Egress, EgressMode, Outgoing, Outlet};
use ringlog_shard::limits::EGRESS_CONNECTION_PINNED_DIVISOR;
use ringlog_shard::storage::{CoreStorage, LogId, LogPiece, LogSettings, StorageSettings};

const SEGMENTS_OF_8M: LogSettings =
    LogSettings { segment_bytes: 8 << 20, index_interval_bytes: 4096, ..LogSettings::KEEP_ALL };
const BATCH_BYTES: usize = 10_000;
const PINNED_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Copy)]
struct Plan {
    mode: EgressMode,
    consumers: usize,
    /// Of records in each reply: more than the sockets between two ends take.
    reply_bytes: usize,
}

/// One consumer: its end of the connection, what it should read, and the reply on its way.
struct Consumer {
    socket: Rc<Socket>,
    expected: Vec<u8>,
    sending: Task<std::io::Result<()>>,
}

async fn read_plan(
    io: &Io,
    storage: &CoreStorage,
    id: LogId,
    from: Offset,
    bytes_max: usize,
) -> Vec<LogPiece> {
    let end = storage.log(id).durable_end();
    let plan = storage.plan_read(id, from, end, bytes_max as u32, true).expect("in range");
    plan.run(io).await.expect("read").pieces
}

async fn bytes_of(io: &Io, piece: &LogPiece) -> Vec<u8> {
    match piece {
        LogPiece::Memory(piece) => piece.bytes().to_vec(),
        LogPiece::File { file, position, length } => {
            io.read_at(file, *position, *length as usize).await.expect("file read").to_vec()
        }
    }
}

fn outgoing(piece: LogPiece) -> Outgoing {
    match piece {
        LogPiece::Memory(piece) => Outgoing::Tail(piece),
        LogPiece::File { file, position, length } => Outgoing::File { file, position, length },
    }
}

async fn start_reply(io: &Io, address: SocketAddr, egress: &Rc<Egress>, pieces: Vec<LogPiece>) -> Consumer {
    let listener = io.listen(address, &ListenOptions::default()).expect("listen");
    let connecting = io.spawn(Priority::Foreground, {
        let (io, address) = (io.clone(), listener.local_address());
        async move { io.connect(address).await.expect("connect") }
    });
    let (ours, _) = io.accept(&listener).await.expect("accept");
    let socket = Rc::new(connecting.await);
    let (head, end) = (Bytes::from_static(b"head of the reply"), Bytes::from_static(b"end"));
    let mut expected = head.to_vec();
    for piece in &pieces {
        expected.extend(bytes_of(io, piece).await);
    }
    expected.extend_from_slice(&end);
    let mut reply = vec![Outgoing::Memory(head)];
    reply.extend(pieces.into_iter().map(outgoing));
    reply.push(Outgoing::Memory(end));
    let sending = io.spawn(Priority::Foreground, {
        let (io, egress) = (io.clone(), Rc::clone(egress));
        async move { egress.send(&io, &ours, &Outlet::default(), reply).await }
    });
    Consumer { socket, expected, sending }
}

async fn receive(io: &Io, socket: &Socket, length: usize) -> Vec<u8> {
    let mut received = Vec::with_capacity(length);
    while received.len() < length {
        let bytes = io.recv_some(socket).await.expect("receive");
        assert!(!bytes.is_empty(), "closed after {} of {length} bytes", received.len());
        received.extend_from_slice(&bytes);
    }
    received
}

async fn consumers_that_do_not_read(io: Io, path: PathBuf, address: SocketAddr, plan: Plan) {
    let settings = StorageSettings { tail_bytes_max: 16 << 20, ..SMALL };
    let directory = open_directory(&io, &path).await;
    let storage = start(&io, &directory, 1, settings).await.pop().expect("one core");
    let model = Rc::new(RefCell::new(Model::default()));
    let mut core = Core::open(storage, model, SEGMENTS_OF_8M).await;
    let key = partition(1, 0);
    core.create([key], SEGMENTS_OF_8M);
    let id = core.logs[&key];
    let egress = Rc::new(Egress::new(plan.mode, PINNED_BYTES_MAX));
    let mut consumers = Vec::new();
    let mut pinned_at_most = 0;
    for salt in 0..plan.consumers {
        let from = core.storage.log(id).log_end();
        for _ in 0..plan.reply_bytes / BATCH_BYTES {
            core.append(key, 1, BATCH_BYTES, salt as u64).await;
            // The tail holds what is not flushed for its own sake; what is flushed only replies may hold, and only so much.
            let unflushed = core.storage.stats().dirty_bytes;
            let bound = PINNED_BYTES_MAX + unflushed + SLACK_BYTES;
            assert!(egress.pinned_bytes() <= bound, "{} bytes pinned of {bound}", egress.pinned_bytes());
        }
        core.settle(&io).await;
        let pieces = read_plan(&io, &core.storage, id, from, plan.reply_bytes).await;
        assert!(pieces.iter().any(|piece| matches!(piece, LogPiece::Memory(_))), "this reads the tail");
        consumers.push(start_reply(&io, address, &egress, pieces).await);
        io.sleep(Duration::from_millis(100)).await;
        pinned_at_most = pinned_at_most.max(egress.pinned_bytes());
        io.sleep(Duration::from_millis(1_000)).await;
    }
    assert!(pinned_at_most > 0, "somebody held something");
    assert!(consumers.iter().all(|consumer| !consumer.sending.is_finished()), "nobody reads");
    core.storage.checkpoint().await.expect("checkpoint");
    io.sleep(Duration::from_millis(2_200)).await;
    assert_eq!(egress.pinned_bytes(), 0, "all of it lies in files now");
    assert_eq!(egress.counters().demotions.get(), plan.consumers as u64);
    for (number, consumer) in consumers.into_iter().enumerate() {
        let received = receive(&io, &consumer.socket, consumer.expected.len()).await;
        assert!(received == consumer.expected, "consumer {number} reads something else");
        consumer.sending.await.expect("sent");
    }
    assert_eq!(egress.pinned_bytes(), 0);
}

/// What became flushed within the second since egress last looked.
const SLACK_BYTES: u64 = 3 << 20;

/// A reader that keeps up is served from memory, whatever its neighbours do.
async fn a_fast_consumer_is_served_from_memory(io: Io, path: PathBuf, address: SocketAddr) {
    let directory = open_directory(&io, &path).await;
    let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
    let mut core = Core::open(storage, Rc::default(), SEGMENTS_OF_8M).await;
    let key = partition(1, 0);
    core.create([key], SEGMENTS_OF_8M);
    let id = core.logs[&key];
    let share = (PINNED_BYTES_MAX / EGRESS_CONNECTION_PINNED_DIVISOR) as usize;
    for salt in 0..share / 2 / BATCH_BYTES {
        core.append(key, 1, BATCH_BYTES, salt as u64).await;
    }
    core.settle(&io).await;
    core.storage.checkpoint().await.expect("checkpoint");
    let egress = Rc::new(Egress::new(EgressMode::Auto, PINNED_BYTES_MAX));
    let pieces = read_plan(&io, &core.storage, id, Offset(0), share).await;
    let consumer = start_reply(&io, address, &egress, pieces).await;
    let received = receive(&io, &consumer.socket, consumer.expected.len()).await;
    assert!(received == consumer.expected);
    consumer.sending.await.expect("sent");
    let counters = egress.counters();
    assert_eq!(counters.memory_bytes.get(), received.len() as u64);
    assert_eq!((counters.demotions.get(), egress.pinned_bytes()), (0, 0));
}

fn in_world<F: Future<Output = ()> + 'static>(seed: u64, case: impl FnOnce(Io, PathBuf, SocketAddr) -> F) {
    let world = World::new(seed);
    let host = world.host("one");
    let io = host.executor();
    let case = case(io.clone(), PathBuf::from("/data"), SocketAddr::new(host.address(), 0));
    let task = io.spawn(Priority::Foreground, case);
    let outcome = world.run_until(|| task.is_finished(), Duration::from_secs(600));
    assert_eq!(outcome, Outcome::Done, "seed {seed}");
}

#[test]
fn consumers_that_do_not_read_hold_no_more_than_the_bound_in_the_simulation() {
    for (seed, mode) in [(1, EgressMode::Auto), (2, EgressMode::Send), (3, EgressMode::SendFile)] {
        let plan = Plan { mode, consumers: 8, reply_bytes: 2 << 20 };
        in_world(seed, |io, path, address| consumers_that_do_not_read(io, path, address, plan));
    }
}

#[test]
fn consumers_that_do_not_read_hold_no_more_than_the_bound() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let address = "127.0.0.1:0".parse().expect("an address");
        // Loopback sockets take a few megabytes before they block.
        let plan = Plan { mode: EgressMode::Auto, consumers: 2, reply_bytes: 14 << 20 };
        consumers_that_do_not_read(io, folder.path().to_owned(), address, plan).await;
    });
}

#[test]
fn a_fast_consumer_is_served_from_memory_in_the_simulation() {
    in_world(4, a_fast_consumer_is_served_from_memory);
}
