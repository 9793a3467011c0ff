//! Owns the bounds of admin connections: how many there are and how long one may say nothing. They draw on the same
//! descriptors as Kafka clients, so they must not be able to use them up.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};

/// Scrapers, a browser and some scripts; one more is closed at once.
const CONNECTIONS_MAX: usize = 64;
/// Above the scrape interval of most installations, so that Prometheus keeps its connection.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// After an accept that failed, usually for want of descriptors: spinning would not make any.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts admin connections within the bounds.
pub(super) struct BoundedListener {
    listener: TcpListener,
    open: Arc<AtomicUsize>,
    idle_max: Duration,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> BoundedListener {
        BoundedListener { listener, open: Arc::default(), idle_max: IDLE_MAX }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = BoundedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) if self.open.load(Ordering::Relaxed) < CONNECTIONS_MAX => {
                    self.open.fetch_add(1, Ordering::Relaxed);
                    let idle = Box::pin(tokio::time::sleep(self.idle_max));
                    let (open, idle_max) = (Arc::clone(&self.open), self.idle_max);
                    return (BoundedStream { stream, idle, idle_max, open }, peer);
                }
                Ok((stream, _)) => drop(stream),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One admin connection, counted while it lives.
pub(super) struct BoundedStream {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    idle_max: Duration,
    open: Arc<AtomicUsize>,
}

impl Drop for BoundedStream {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let deadline = Instant::now() + self.idle_max;
            self.idle.as_mut().reset(deadline);
            return Poll::Ready(read);
        }
        ready!(self.idle.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Runs `client` against a server that answers every request, with connections idle for at most `idle_max`.
    fn check<F: Future<Output = ()>>(idle_max: Duration, client: impl FnOnce(SocketAddr) -> F) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
            let address = listener.local_addr().expect("it is bound");
            let listener = BoundedListener { idle_max, ..BoundedListener::new(listener) };
            let router = axum::Router::new().route("/", axum::routing::get(|| async { "ok" }));
            tokio::spawn(async move { axum::serve(listener, router).await });
            client(address).await;
        });
    }

    #[test]
    fn one_connection_too_many_is_closed_and_room_comes_back() {
        check(IDLE_MAX, |address| async move {
            let mut held = Vec::new();
            for _ in 0..CONNECTIONS_MAX {
                let mut stream = TcpStream::connect(address).await.expect("it listens");
                stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("it reads");
                assert_ne!(stream.read(&mut [0; 512]).await.expect("it answers"), 0);
                held.push(stream);
            }
            let mut surplus = TcpStream::connect(address).await.expect("the kernel takes it");
            assert_eq!(surplus.read(&mut [0; 1]).await.unwrap_or(0), 0);
            held.clear();
            loop {
                let mut stream = TcpStream::connect(address).await.expect("it listens");
                let written = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
                if written.is_ok() && stream.read(&mut [0; 512]).await.unwrap_or(0) > 0 {
                    return;
                }
            }
        });
    }

    #[test]
    fn a_silent_connection_is_closed() {
        check(Duration::from_millis(20), |address| async move {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(b"GET / HT").await.expect("it reads");
            assert_eq!(stream.read(&mut [0; 512]).await.unwrap_or(0), 0);
        });
    }
}
