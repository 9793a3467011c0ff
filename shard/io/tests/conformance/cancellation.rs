//! Dropped futures: the operation ends by itself, its buffers stay valid, the executor goes on.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringlog_io::{AlignedBuffer, ListenOptions, OpenOptions, Priority, WriteSync};

use crate::network::{pair, pattern, receive};
use crate::{Case, Env, case};

pub const CASES: &[Case] = &[
    case!(dropped_receives_free_their_socket),
    case!(dropped_receives_keep_buffers_safe),
    case!(dropped_accepts_leave_the_listener_usable),
    case!(dropped_sends_run_to_their_end),
    case!(dropped_file_operations_run_to_their_end),
    case!(operations_in_flight_at_the_end),
];

/// Polls once, so that the operation is submitted, and drops.
fn start_and_drop(future: impl Future) {
    let mut context = Context::from_waker(Waker::noop());
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut context).is_pending(), "done at once: nothing in flight to drop");
}

async fn dropped_receives_free_their_socket(env: Env) {
    let (client, server) = pair(&env).await;
    start_and_drop(env.io.recv_some(&server));
    // The receive in flight holds the socket until it is given up; then the peer sees the end.
    drop(server);
    assert!(env.io.recv_some(&client).await.map(|bytes| bytes.is_empty()).unwrap_or(true));
}

async fn dropped_receives_keep_buffers_safe(env: Env) {
    for round in 0..50 {
        let (client, server) = pair(&env).await;
        start_and_drop(env.io.recv_into(&server, BytesMut::new(), 4_096));
        start_and_drop(env.io.recv_some(&server));
        if round % 2 == 0 {
            env.io.yield_now().await;
        }
        env.io.send(&client, vec![pattern(3_000, round)]).await.expect("send");
        // Memory that the dropped receive had must not be written once it is ours again.
        let reused: Vec<Vec<u8>> = (0..8).map(|_| vec![0xAA; 4_096]).collect();
        env.io.sleep(Duration::from_micros(200)).await;
        assert!(reused.iter().flatten().all(|byte| *byte == 0xAA));
        client.shutdown();
    }
}

async fn dropped_accepts_leave_the_listener_usable(env: Env) {
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    for _ in 0..5 {
        start_and_drop(env.io.accept(&listener));
    }
    env.io.sleep(Duration::from_millis(2)).await;
    let (client, server) = crate::network::pair_at(&env.io, &listener).await;
    env.io.send(&client, vec![Bytes::from_static(b"hello")]).await.expect("send");
    assert_eq!(receive(&env.io, &server, 5).await, b"hello");
}

async fn dropped_sends_run_to_their_end(env: Env) {
    let (client, server) = pair(&env).await;
    let first = pattern(5 * 1024 * 1024, 1);
    start_and_drop(env.io.send(&client, vec![first.clone(), Bytes::from_static(b"middle")]));
    let reading = env.io.spawn(Priority::Foreground, {
        let io = env.io.clone();
        let length = first.len() + 6 + 3;
        async move { receive(&io, &server, length).await }
    });
    env.io.send(&client, vec![Bytes::from_static(b"end")]).await.expect("send");
    let received = reading.await;
    assert!(received[..first.len()] == first[..]);
    assert_eq!(&received[first.len()..], b"middleend");
}

async fn dropped_file_operations_run_to_their_end(env: Env) {
    let path = env.directory.join("file");
    let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_direct()).await.expect("open");
    for round in 0..20_u64 {
        let mut buffer = AlignedBuffer::new();
        buffer.resize(8_192, u8::try_from(round).expect("small"));
        start_and_drop(env.io.write_direct(&file, round * 8_192, buffer, WriteSync::Data));
    }
    let plain = env.io.open(&path, OpenOptions::READ).await.expect("open");
    // Each dropped write ends by itself; nothing tells when, so look until it has.
    for round in 0..20_u64 {
        loop {
            let read = env.io.read_at(&plain, round * 8_192, 8_192).await.expect("read");
            if read.len() == 8_192 && read.iter().all(|byte| u64::from(*byte) == round) {
                break;
            }
            env.io.sleep(Duration::from_millis(1)).await;
        }
    }
    drop(env.io.read_at(&plain, 0, 100_000));
    start_and_drop(env.io.compute(|| 1));
    start_and_drop(env.io.open(&path, OpenOptions::READ));
    start_and_drop(env.io.sync_all(&plain));
    env.io.sleep(Duration::from_millis(2)).await;
}

/// The executor ends right after this case, with all of these in flight.
async fn operations_in_flight_at_the_end(env: Env) {
    let (client, server) = pair(&env).await;
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    let server = Rc::new(server);
    let io = env.io.clone();
    env.io
        .spawn(Priority::Foreground, {
            let (io, server) = (io.clone(), server.clone());
            async move {
                let _never = io.recv_into(&server, BytesMut::new(), 1_000_000).await;
            }
        })
        .detach();
    env.io
        .spawn(Priority::Background, {
            let io = io.clone();
            async move {
                let _never = io.accept(&listener).await;
            }
        })
        .detach();
    env.io
        .spawn(Priority::Foreground, async move {
            // Nobody reads it.
            let _never = io.send(&client, vec![Bytes::from(vec![1; 40 * 1024 * 1024])]).await;
        })
        .detach();
    env.io.sleep(Duration::from_millis(5)).await;
}
