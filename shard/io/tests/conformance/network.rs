//! Sockets: what is sent arrives, in order, whole, and ends where it should.

use std::future::Future;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringlog_io::{HangUp, Io, ListenOptions, Listener, OpenOptions, Priority, Socket};

use crate::{Case, Env, case};

pub const CASES: &[Case] = &[
    case!(small_echo),
    case!(large_echo),
    case!(vectored_sends_keep_their_order),
    case!(half_close),
    case!(a_shut_down_socket_ends_for_both),
    case!(a_hang_up_is_told_before_unread_bytes_are_read),
    case!(a_reset_is_told_as_broken),
    case!(a_dropped_wait_for_a_hang_up_frees_its_socket),
    case!(many_sockets),
    case!(recv_into_grows_by_what_arrives),
    case!(send_file_small),
    case!(send_file_large_to_a_slow_reader),
    case!(send_file_past_the_end),
    case!(try_send_blocks_when_full_and_writable_wakes),
    case!(connection_refused),
    case!(addresses_agree),
    case!(a_taken_port_is_refused),
];

/// Bytes that repeat only every 63,001 positions, and differ by seed, so that a shifted or swapped piece shows.
pub fn pattern(length: usize, seed: usize) -> Bytes {
    let period = 251 * 251;
    let block: Vec<u8> =
        (0..length.min(period)).map(|index| ((index * 31 + seed + index / 251) % 251) as u8).collect();
    let mut bytes = block.repeat(length.div_ceil(period));
    bytes.truncate(length);
    Bytes::from(bytes)
}

pub async fn pair(env: &Env) -> (Socket, Socket) {
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    pair_at(&env.io, &listener).await
}

pub async fn pair_at(io: &Io, listener: &Listener) -> (Socket, Socket) {
    let address = listener.local_address();
    let connecting = io.spawn(Priority::Foreground, {
        let io = io.clone();
        async move { io.connect(address).await.expect("connect") }
    });
    let (server, _) = io.accept(listener).await.expect("accept");
    (connecting.await, server)
}

/// Receives exactly `length` bytes.
pub async fn receive(io: &Io, socket: &Socket, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        let bytes = io.recv_some(socket).await.expect("receive");
        assert!(!bytes.is_empty(), "closed after {} of {length} bytes", all.len());
        assert!(bytes.len() <= ringlog_io::RECEIVE_SOME_BYTES_MAX);
        all.extend_from_slice(&bytes);
    }
    assert_eq!(all.len(), length);
    all
}

async fn echo(io: Io, socket: Socket) {
    loop {
        let bytes = io.recv_some(&socket).await.expect("receive");
        if bytes.is_empty() {
            return;
        }
        io.send(&socket, vec![bytes]).await.expect("send");
    }
}

async fn small_echo(env: Env) {
    let (client, server) = pair(&env).await;
    let echoing = env.io.spawn(Priority::Foreground, echo(env.io.clone(), server));
    for round in 0..200 {
        let message = pattern(1 + round % 70, round);
        env.io.send(&client, vec![message.clone()]).await.expect("send");
        assert_eq!(receive(&env.io, &client, message.len()).await, message);
    }
    drop(client);
    echoing.await;
}

async fn large_echo(env: Env) {
    let (client, server) = pair(&env).await;
    let echoing = env.io.spawn(Priority::Foreground, echo(env.io.clone(), server));
    let message = pattern(3 * 1024 * 1024 + 17, 5);
    let client = std::rc::Rc::new(client);
    let sending = env.io.spawn(Priority::Foreground, {
        let (io, client, message) = (env.io.clone(), client.clone(), message.clone());
        async move { io.send(&client, vec![message]).await.expect("send") }
    });
    assert!(receive(&env.io, &client, message.len()).await == message);
    sending.await;
    drop(client);
    echoing.await;
}

async fn vectored_sends_keep_their_order(env: Env) {
    let (client, server) = pair(&env).await;
    // More pieces than one call takes, empty ones and large ones among them.
    let pieces: Vec<Bytes> =
        (0..1500).map(|index| pattern(if index % 400 == 0 { 90_000 } else { index % 7 }, index)).collect();
    let expected = pieces.concat();
    let reading = env.io.spawn(Priority::Foreground, {
        let io = env.io.clone();
        let length = expected.len();
        async move { receive(&io, &server, length).await }
    });
    env.io.send(&client, pieces).await.expect("send");
    env.io.send(&client, vec![]).await.expect("nothing to send");
    env.io.send(&client, vec![Bytes::new(), Bytes::new()]).await.expect("nothing to send");
    assert!(reading.await == expected);
}

async fn half_close(env: Env) {
    let (client, server) = pair(&env).await;
    env.io.send(&client, vec![Bytes::from_static(b"question")]).await.expect("send");
    client.shutdown_write();
    assert_eq!(receive(&env.io, &server, 8).await, b"question");
    assert!(env.io.recv_some(&server).await.expect("end").is_empty());
    assert!(env.io.recv_some(&server).await.expect("still the end").is_empty());
    env.io.send(&server, vec![Bytes::from_static(b"answer")]).await.expect("send");
    drop(server);
    assert_eq!(receive(&env.io, &client, 6).await, b"answer");
    assert!(env.io.recv_some(&client).await.expect("end").is_empty());
}

async fn a_shut_down_socket_ends_for_both(env: Env) {
    let (client, server) = pair(&env).await;
    let client = std::rc::Rc::new(client);
    let waiting = env.io.spawn(Priority::Foreground, {
        let (io, client) = (env.io.clone(), client.clone());
        async move { io.recv_some(&client).await }
    });
    env.io.sleep(Duration::from_millis(5)).await;
    client.shutdown();
    assert!(waiting.await.map(|bytes| bytes.is_empty()).unwrap_or(true), "nothing was sent");
    assert!(env.io.recv_some(&server).await.map(|bytes| bytes.is_empty()).unwrap_or(true));
    assert!(env.io.send(&client, vec![Bytes::from_static(b"x")]).await.is_err());
}

async fn a_hang_up_is_told_before_unread_bytes_are_read(env: Env) {
    let (client, server) = pair(&env).await;
    let waiting = env.io.hung_up(&server);
    env.io.send(&client, vec![pattern(5_000, 1)]).await.expect("send");
    let mut limit = std::pin::pin!(env.io.sleep(Duration::from_millis(20)));
    let mut waiting = std::pin::pin!(waiting);
    std::future::poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending(), "bytes alone are no end");
        limit.as_mut().poll(context)
    })
    .await;
    client.shutdown_write();
    assert_eq!(waiting.await.expect("poll"), HangUp::Finished);
    assert_eq!(env.io.hung_up(&server).await.expect("poll"), HangUp::Finished, "it stays so");
    assert_eq!(receive(&env.io, &server, 5_000).await, pattern(5_000, 1), "nothing was taken");
    env.io.send(&server, vec![pattern(100, 2)]).await.expect("the other direction is open");
    assert_eq!(receive(&env.io, &client, 100).await, pattern(100, 2));
}

async fn a_reset_is_told_as_broken(env: Env) {
    let (client, server) = pair(&env).await;
    env.io.send(&server, vec![pattern(100, 1)]).await.expect("send");
    // Closing with unread bytes resets the connection.
    env.io.sleep(Duration::from_millis(20)).await;
    let waiting = env.io.hung_up(&server);
    drop(client);
    assert_eq!(waiting.await.expect("poll"), HangUp::Broken);
}

async fn a_dropped_wait_for_a_hang_up_frees_its_socket(env: Env) {
    let (client, server) = pair(&env).await;
    drop(env.io.hung_up(&server));
    drop(server);
    assert!(env.io.recv_some(&client).await.map(|bytes| bytes.is_empty()).unwrap_or(true));
}

async fn many_sockets(env: Env) {
    const COUNT: usize = 150;
    let options = ListenOptions::default();
    let listener = env.io.listen(env.address, &options).expect("listen");
    let address = listener.local_address();
    let serving = env.io.spawn(Priority::Foreground, {
        let io = env.io.clone();
        async move {
            let mut tasks = Vec::new();
            for _ in 0..COUNT {
                let (socket, _) = io.accept(&listener).await.expect("accept");
                tasks.push(io.spawn(Priority::Foreground, echo(io.clone(), socket)));
            }
            for task in tasks {
                task.await;
            }
        }
    });
    let mut clients = Vec::new();
    for index in 0..COUNT {
        let io = env.io.clone();
        clients.push(env.io.spawn(Priority::Foreground, async move {
            let socket = io.connect(address).await.expect("connect");
            for round in 0..20 {
                let message = pattern(100 + index, index * 100 + round);
                io.send(&socket, vec![message.clone()]).await.expect("send");
                assert_eq!(receive(&io, &socket, message.len()).await, message);
            }
        }));
    }
    for client in clients {
        client.await;
    }
    serving.await;
}

async fn recv_into_grows_by_what_arrives(env: Env) {
    let (client, server) = pair(&env).await;
    let message = pattern(700_000, 3);
    let sending = env.io.spawn(Priority::Foreground, {
        let (io, message) = (env.io.clone(), message.clone());
        async move {
            io.send(&client, vec![message]).await.expect("send");
        }
    });
    let mut buffer = BytesMut::from(&b"head"[..]);
    let mut step = 1;
    while buffer.len() < 4 + message.len() {
        let before = buffer.len();
        let wanted = step.min(4 + message.len() - before);
        let (result, back) = env.io.recv_into(&server, buffer, wanted).await;
        buffer = back;
        let count = result.expect("receive");
        assert!(count > 0 && count <= wanted, "{count} of {wanted}");
        assert_eq!(buffer.len(), before + count);
        step = (step * 3).min(65_536);
    }
    assert_eq!(&buffer[..4], b"head");
    assert!(buffer[4..] == message[..]);
    sending.await;
    let (result, buffer) = env.io.recv_into(&server, buffer, 10).await;
    assert_eq!(result.expect("end"), 0);
    assert_eq!(buffer.len(), 4 + message.len());
}

async fn file_with(env: &Env, content: Bytes) -> ringlog_io::File {
    let path = env.directory.join("sent");
    let file = env.io.open(&path, OpenOptions::READ_WRITE_CREATE).await.expect("open");
    env.io.write_at(&file, 0, vec![content]).await.expect("write");
    file
}

async fn send_file_small(env: Env) {
    let (client, server) = pair(&env).await;
    let content = pattern(10_000, 9);
    let file = file_with(&env, content.clone()).await;
    env.io.send(&client, vec![Bytes::from_static(b"head")]).await.expect("send");
    env.io.send_file(&client, &file, 100, 5_000).await.expect("send file");
    env.io.send_file(&client, &file, 0, 0).await.expect("nothing");
    env.io.send(&client, vec![Bytes::from_static(b"tail")]).await.expect("send");
    let expected = [b"head", &content[100..5_100], b"tail"].concat();
    assert_eq!(receive(&env.io, &server, expected.len()).await, expected);
}

async fn send_file_large_to_a_slow_reader(env: Env) {
    let (client, server) = pair(&env).await;
    let content = pattern(6 * 1024 * 1024 + 4_321, 11);
    let file = file_with(&env, content.clone()).await;
    let length = content.len();
    let sending = env.io.spawn(Priority::Foreground, {
        let io = env.io.clone();
        async move {
            io.send_file(&client, &file, 0, length as u64).await.expect("send file");
            io.send(&client, vec![Bytes::from_static(b"tail")]).await.expect("send");
        }
    });
    env.io.sleep(Duration::from_millis(30)).await;
    let mut received = Vec::new();
    while received.len() < length + 4 {
        let bytes = env.io.recv_some(&server).await.expect("receive");
        assert!(!bytes.is_empty());
        received.extend_from_slice(&bytes);
        if received.len() % 5 == 0 {
            env.io.sleep(Duration::from_micros(300)).await;
        }
    }
    assert!(received[..length] == content[..]);
    assert_eq!(&received[length..], b"tail");
    sending.await;
}

async fn send_file_past_the_end(env: Env) {
    let (client, _server) = pair(&env).await;
    let file = file_with(&env, pattern(100, 1)).await;
    let error = env.io.send_file(&client, &file, 50, 51).await.expect_err("the file ends");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

async fn try_send_blocks_when_full_and_writable_wakes(env: Env) {
    let (client, server) = pair(&env).await;
    let piece = pattern(64 * 1024, 2);
    let mut sent = 0;
    loop {
        match env.io.try_send(&client, &[piece.clone(), piece.clone()]) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                // In a simulation bytes leave the socket only as time passes.
                break;
            }
        }
        assert!(sent < 64 * 1024 * 1024, "a socket takes so much only if it never fills");
    }
    let reading = env.io.spawn(Priority::Foreground, {
        let io = env.io.clone();
        async move {
            receive(&io, &server, sent).await;
            server
        }
    });
    env.io.writable(&client).await.expect("writable");
    let server = reading.await;
    assert!(env.io.try_send(&client, &[Bytes::from_static(b"more")]).is_ok());
    assert_eq!(receive(&env.io, &server, 4).await, b"more");
}

async fn connection_refused(env: Env) {
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    let address = listener.local_address();
    drop(listener);
    env.io.sleep(Duration::from_millis(5)).await;
    let error = env.io.connect(address).await.expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

async fn addresses_agree(env: Env) {
    let listener = env.io.listen(env.address, &ListenOptions::default()).expect("listen");
    assert_ne!(listener.local_address().port(), 0);
    let (client, server) = pair_at(&env.io, &listener).await;
    assert_eq!(client.peer_address().expect("peer"), listener.local_address());
    assert_eq!(server.local_address().expect("local"), listener.local_address());
    assert_eq!(client.local_address().expect("local"), server.peer_address().expect("peer"));
}

async fn a_taken_port_is_refused(env: Env) {
    let shared = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let first = env.io.listen(env.address, &shared).expect("listen");
    let address = first.local_address();
    let plain = env.io.listen(address, &ListenOptions::default()).expect_err("taken");
    assert_eq!(plain.kind(), ErrorKind::AddrInUse);
    let probing = ListenOptions { probe_plain_bind: true, ..shared.clone() };
    let probed = env.io.listen(address, &probing).expect_err("taken");
    assert_eq!(probed.kind(), ErrorKind::AddrInUse);
    drop(env.io.listen(address, &shared).expect("shared on purpose"));
}
