//! One connection: a task that reads requests in order and one that writes replies in order.
//!
//! Produce requests overlap: each is appended in arrival order, and its reply waits for its commit while the next is
//! read. Everything else waits until all earlier replies left, as on a Kafka broker, so that a request sees the effects
//! of those before it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use ringlog_io::{HangUp, Io, Monotonic, Priority, Socket};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::budget::Share;
use ringlog_shard::egress::{Outgoing, Outlet};
use ringlog_shard::limits::{PIPELINED_REQUESTS_MAX, REPLIES_PER_SEND_MAX};

use super::acceptor::ACCEPTOR_CORE;
use super::frame_reader::{FrameReader, NextReceive};
use super::replies::{Answer, Replies};
use crate::core::Core;
use crate::core::messages::CoreRequest;
use crate::handlers;
use crate::handlers::RequestInfo;
use crate::observe::flight::FlightKind;
use crate::observe::{FinishedRequest, Stage, StageClock};

/// What is known of a connection while it is open. Lives on its home core.
pub struct Connection {
    pub peer: SocketAddr,
    /// The address that the client reached: what `advertised.listeners=auto` answers with.
    pub local: SocketAddr,
    socket: Socket,
    /// Name and version that the client gave in ApiVersions (KIP-511), checked for printable characters.
    pub software: RefCell<Option<(String, String)>>,
    last_active: Cell<Monotonic>,
    frame_started: Cell<Option<Monotonic>>,
    /// A request is being served or a reply is not yet sent.
    busy: Cell<bool>,
    stopped: Cell<bool>,
    hang_up: RefCell<HangUpWatch>,
    outlet: Outlet,
}

/// What is known of the peer's end.
enum HangUpWatch {
    /// Nobody had a reason to ask: a connection without long polls costs no operation.
    Unasked,
    /// Stays armed from one wait to the next.
    Armed(Pin<Box<dyn Future<Output = io::Result<HangUp>>>>),
    Told(HangUp),
}

impl Connection {
    /// Ready once the peer sends no more, which every request that waits for something else than the peer polls beside
    /// it: the connection is not read meanwhile.
    ///
    /// A closed connection and one of which the peer closed its own direction look alike from here, and Kafka answers
    /// the latter: it does not read a channel while it serves a request of it, so it sees the end only after the answers
    /// to all that came before. So do we, but nobody waits longer for a peer that is probably gone: at
    /// [`HangUp::Finished`] a request answers with what there is, at [`HangUp::Broken`] it is dropped.
    pub fn poll_hung_up(&self, io: &Io, context: &mut Context<'_>) -> Poll<HangUp> {
        let mut watch = self.hang_up.borrow_mut();
        loop {
            match &mut *watch {
                HangUpWatch::Unasked => *watch = HangUpWatch::Armed(Box::pin(io.hung_up(&self.socket))),
                HangUpWatch::Armed(end) => match end.as_mut().poll(context) {
                    Poll::Pending => return Poll::Pending,
                    // A socket that cannot even be asked reaches nobody.
                    Poll::Ready(told) => {
                        ringlog_io::reached!("server.hung_up");
                        *watch = HangUpWatch::Told(told.unwrap_or(HangUp::Broken));
                    }
                },
                HangUpWatch::Told(told) => return Poll::Ready(*told),
            }
        }
    }

    /// What [`Connection::poll_hung_up`] has found so far.
    pub fn hang_up(&self) -> Option<HangUp> {
        match &*self.hang_up.borrow() {
            HangUpWatch::Told(told) => Some(*told),
            _ => None,
        }
    }

    pub fn last_active(&self) -> Monotonic {
        self.last_active.get()
    }

    /// Since when a request has been arriving.
    pub fn frame_started(&self) -> Option<Monotonic> {
        self.frame_started.get()
    }

    /// Since when the peer has not taken what is sent to it.
    pub fn blocked_since(&self) -> Option<Monotonic> {
        self.outlet.blocked_since()
    }

    pub fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// Ends the connection in both directions; its tasks notice.
    pub fn abort(&self) {
        self.socket.shutdown();
    }

    /// Takes no further request; replies in flight still leave.
    pub fn stop_reading(&self) {
        self.stopped.set(true);
        self.socket.shutdown_read();
    }
}

/// Serves `socket` until it closes.
pub async fn serve(core: Rc<Core>, socket: Socket) {
    let (Ok(peer), Ok(local)) = (socket.peer_address(), socket.local_address()) else {
        // Gone before we looked.
        return;
    };
    let connection = Rc::new(Connection {
        peer,
        local,
        socket,
        software: RefCell::new(None),
        last_active: Cell::new(core.io.monotonic_now()),
        frame_started: Cell::new(None),
        busy: Cell::new(false),
        stopped: Cell::new(false),
        hang_up: RefCell::new(HangUpWatch::Unasked),
        outlet: Outlet::default(),
    });
    let number = core.connections.insert(&connection);
    core.watch_over_connections();
    note(&core, FlightKind::ConnectionOpened);
    let replies = Replies::new(PIPELINED_REQUESTS_MAX);
    let writer = core.io.spawn(
        Priority::Foreground,
        write_replies(Rc::clone(&core), Rc::clone(&connection), replies.clone()),
    );
    if let Err(closing) = read_requests(&core, &connection, &replies).await {
        if matches!(closing, Closing::Frame(_) | Closing::Request(_)) {
            note(&core, FlightKind::ConnectionViolated);
        }
        log_closing(&core, &connection, &closing);
    }
    replies.end();
    writer.await;
    connection.abort();
    core.connections.remove(number);
    note(&core, FlightKind::ConnectionClosed);
    let closed = CoreRequest::ConnectionClosed { peer: peer.ip() };
    core.mesh.call(ACCEPTOR_CORE, closed).await;
}

fn note(core: &Core, kind: FlightKind) {
    let open = core.connections.count() as i64;
    core.observer.event(core.io.monotonic_now().as_nanos(), kind, [open, 0]);
    core.observer.count(|metrics| match kind {
        FlightKind::ConnectionOpened => metrics.connections_accepted += 1,
        FlightKind::ConnectionClosed => metrics.connections_closed += 1,
        _ => metrics.connections_violated += 1,
    });
}

/// Why a connection ended otherwise than by the peer closing it between requests.
#[derive(Debug, thiserror::Error)]
enum Closing {
    #[error("receive: {0}")]
    Receive(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] ringlog_protocol::frame::FrameError),
    #[error("{0}")]
    Request(#[from] handlers::RequestError),
    #[error("closed by the peer inside a request")]
    InsideFrame,
}

async fn read_requests(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    replies: &Replies,
) -> Result<(), Closing> {
    let mut reader = FrameReader::new(core.config.limits.request_bytes_max);
    let mut held = core.receiving.share();
    loop {
        while let Some(frame) = reader.next_frame()? {
            connection.frame_started.set(None);
            connection.busy.set(true);
            let clock = StageClock::start(core.io.monotonic_now().as_nanos());
            if !dispatch(core, connection, replies, frame, clock).await? {
                return Ok(());
            }
            // Its bytes are in a log's tail by now, or gone.
            held.release();
        }
        if connection.stopped.get() || !receive(core, connection, &mut reader, &mut held).await? {
            return if reader.is_between_frames() || connection.stopped.get() {
                Ok(())
            } else {
                Err(Closing::InsideFrame)
            };
        }
        connection.last_active.set(core.io.monotonic_now());
        if !reader.is_between_frames() && connection.frame_started.get().is_none() {
            connection.frame_started.set(Some(connection.last_active.get()));
        }
    }
}

/// Receives once; false at the end of the stream.
async fn receive(
    core: &Rc<Core>,
    connection: &Connection,
    reader: &mut FrameReader,
    held: &mut Share,
) -> io::Result<bool> {
    match reader.next_receive() {
        NextReceive::Some => {
            let arrived = core.io.recv_some(&connection.socket).await?;
            core.observer.received(arrived.len() as u64);
            let more = !arrived.is_empty();
            reader.push(arrived);
            Ok(more)
        }
        NextReceive::Into { bytes } => {
            held.grow_to(reader.next_capacity(bytes) as u64).await;
            let (buffer, bytes_max) = reader.take_buffer(bytes);
            let (received, buffer) = core.io.recv_into(&connection.socket, buffer, bytes_max).await;
            reader.return_buffer(buffer);
            let received = received?;
            core.observer.received(received as u64);
            Ok(received > 0)
        }
    }
}

/// Starts one request. False when its reply can no longer be sent.
async fn dispatch(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    replies: &Replies,
    frame: BytesMut,
    clock: StageClock,
) -> Result<bool, Closing> {
    let request = handlers::Request::open(frame, clock)?;
    if !request.may_overlap() && !replies.drained().await {
        return Ok(false);
    }
    let pending = handlers::handle(core, connection, request).await?;
    Ok(replies.push(pending).await)
}

async fn write_replies(core: Rc<Core>, connection: Rc<Connection>, replies: Replies) {
    loop {
        let answers = replies.next_ready(REPLIES_PER_SEND_MAX).await;
        if answers.is_empty() {
            return;
        }
        let mut pieces = Vec::new();
        let mut finished = Vec::new();
        let mut close = false;
        for answer in answers {
            match answer {
                Answer::Reply(reply) if !close => {
                    let sent_bytes = reply.pieces.iter().map(Outgoing::len).sum();
                    finished.push((reply.info, reply.error, sent_bytes));
                    pieces.extend(reply.pieces);
                }
                Answer::Reply(_) | Answer::Silence => {}
                Answer::Close => close = true,
            }
        }
        let sent = if pieces.is_empty() {
            Ok(())
        } else {
            core.egress.send(&core.io, &connection.socket, &connection.outlet, pieces).await
        };
        let now = core.io.monotonic_now();
        for (info, error, sent_bytes) in finished {
            record_finished(&core, &connection, info, error, sent_bytes, now);
        }
        connection.last_active.set(now);
        connection.busy.set(false);
        replies.sent();
        if close || sent.is_err() {
            if let Err(error) = sent {
                tracing::debug!(peer = %connection.peer, %error, "send failed");
            }
            replies.break_off();
            connection.abort();
            return;
        }
    }
}

fn record_finished(
    core: &Core,
    connection: &Connection,
    mut info: RequestInfo,
    error: ErrorCode,
    sent_bytes: u64,
    now: Monotonic,
) {
    info.clock.mark(Stage::Send, now.as_nanos());
    core.observer.finish(&FinishedRequest {
        api: info.api,
        version: info.version,
        correlation_id: info.correlation_id,
        client_id: info.client_id,
        peer: connection.peer,
        clock: info.clock,
        received_bytes: info.received_bytes,
        sent_bytes,
        error,
    });
}

fn log_closing(core: &Core, connection: &Connection, closing: &Closing) {
    match closing {
        // A peer that went away is daily business; one that speaks nonsense is worth a line.
        Closing::Receive(error) => tracing::debug!(peer = %connection.peer, %error, "connection lost"),
        Closing::InsideFrame => {
            tracing::debug!(peer = %connection.peer, "connection closed inside a request")
        }
        Closing::Frame(_) | Closing::Request(_) => {
            let admitted = core.violation_lines.borrow_mut().admit(core.io.monotonic_now().as_nanos());
            if let Some(suppressed) = admitted {
                let (peer, reason) = (connection.peer, closing);
                tracing::warn!(%peer, %reason, suppressed, "connection closed: not a request that can be served");
            }
        }
    }
}
