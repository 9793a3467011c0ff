//! Echo: each connection sends a message and waits until all of it is back.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringlog_io::{DriverKind, Executor, ExecutorConfig, Io, ListenOptions, Priority, Socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::measure::{Measurement, Window, pin};
use crate::{Runtime, Setting};

#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub bytes: usize,
    pub connections: usize,
}

/// Before the window opens: connections are up, buffers are warm.
const WARM_UP: Duration = Duration::from_millis(200);

/// A message up to this size comes out of one receive; larger ones are received into their own buffer.
const SMALL_BYTES: usize = 16 * 1024;

pub fn run(runtime: Runtime, setting: Setting, load: Load) -> Measurement {
    let (address_out, address_in) = mpsc::channel();
    let server = serve(runtime, setting, load, address_out);
    let address = address_in.recv().expect("the server listens");
    let config = ExecutorConfig {
        driver: DriverKind::Auto,
        pin: Some(setting.client_cpu),
        ..ExecutorConfig::default()
    };
    let measured = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let executor = Executor::new(config).expect("a client executor");
            let io = executor.io();
            executor.run(load_server(io, address, load, setting.duration, &server))
        });
        client.join().expect("the client does not panic")
    });
    server.join().expect("the server does not panic");
    measured
}

async fn load_server<T>(
    io: Io,
    address: SocketAddr,
    load: Load,
    duration: Duration,
    server: &JoinHandle<T>,
) -> Measurement {
    let count = Rc::new(Cell::new(0_u64));
    let stop = Rc::new(Cell::new(false));
    let message = Bytes::from(vec![0x5A; load.bytes]);
    let mut clients = Vec::new();
    for _ in 0..load.connections {
        let (io, message, count, stop) = (io.clone(), message.clone(), count.clone(), stop.clone());
        let socket = io.connect(address).await.expect("connect");
        clients.push(io.clone().spawn(Priority::Foreground, async move {
            let mut buffer = BytesMut::new();
            while !stop.get() {
                io.send(&socket, vec![message.clone()]).await.expect("send");
                let mut left = message.len();
                while left > 0 {
                    buffer.clear();
                    let (received, back) = io.recv_into(&socket, buffer, left).await;
                    buffer = back;
                    let received = received.expect("receive");
                    assert!(received > 0, "the server closed");
                    left -= received;
                }
                count.set(count.get() + 1);
            }
        }));
    }
    io.sleep(WARM_UP).await;
    let before = count.get();
    let window = Window::over(server);
    io.sleep(duration).await;
    let measured = window.end(count.get() - before);
    stop.set(true);
    for client in clients {
        client.await;
    }
    measured
}

fn serve(
    runtime: Runtime,
    setting: Setting,
    load: Load,
    address_out: mpsc::Sender<SocketAddr>,
) -> JoinHandle<()> {
    std::thread::spawn(move || match runtime.config(setting.server_cpu, 0) {
        Some(config) => {
            let executor = Executor::new(config).expect("a server executor");
            let io = executor.io();
            executor.run(serve_ringlog(io, load, address_out));
        }
        None => {
            pin(setting.server_cpu);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
            runtime.block_on(serve_tokio(load, address_out));
        }
    })
}

async fn serve_ringlog(io: Io, load: Load, address_out: mpsc::Sender<SocketAddr>) {
    let local = "127.0.0.1:0".parse().expect("an address");
    let listener = io.listen(local, &ListenOptions::default()).expect("listen");
    address_out.send(listener.local_address()).expect("the client waits");
    let mut tasks = Vec::new();
    for _ in 0..load.connections {
        let (socket, _) = io.accept(&listener).await.expect("accept");
        let io = io.clone();
        tasks.push(io.clone().spawn(Priority::Foreground, async move {
            if load.bytes <= SMALL_BYTES {
                echo_small(&io, &socket).await;
            } else {
                echo_large(&io, &socket, load.bytes).await;
            }
        }));
    }
    for task in tasks {
        task.await;
    }
}

async fn echo_small(io: &Io, socket: &Socket) {
    loop {
        let bytes = io.recv_some(socket).await.expect("receive");
        if bytes.is_empty() {
            return;
        }
        io.send(socket, vec![bytes]).await.expect("send");
    }
}

async fn echo_large(io: &Io, socket: &Socket, max_bytes: usize) {
    let mut buffer = BytesMut::new();
    loop {
        let (received, back) = io.recv_into(socket, buffer, max_bytes).await;
        buffer = back;
        if received.expect("receive") == 0 {
            return;
        }
        // The memory comes back once the piece is sent.
        let piece = buffer.split().freeze();
        io.send(socket, vec![piece]).await.expect("send");
    }
}

async fn serve_tokio(load: Load, address_out: mpsc::Sender<SocketAddr>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    address_out.send(listener.local_addr().expect("bound")).expect("the client waits");
    let mut tasks = Vec::new();
    for _ in 0..load.connections {
        let (mut socket, _) = listener.accept().await.expect("accept");
        socket.set_nodelay(true).expect("nodelay");
        tasks.push(tokio::spawn(async move {
            let mut buffer = vec![0; load.bytes.max(SMALL_BYTES)];
            loop {
                let received = socket.read(&mut buffer).await.expect("receive");
                if received == 0 {
                    return;
                }
                socket.write_all(&buffer[..received]).await.expect("send");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
}
