//! The only door between cores: bounded requests with a reserved reply each.
//!
//! Owns the rings between every pair of cores and the credits that keep them from filling. Never knows what a
//! message means, and never blocks: a core without credit towards a target waits in its own queue.
//!
//! Deadlock is designed out. A request takes one credit of its (source, target) pair and so reserves one place in
//! the target's request ring and one in the reply ring back. Replies therefore always have room and never wait. The
//! credit is free again once the answer has arrived, whether or not its caller has looked: callers that ask several
//! cores before they await the first answer hold nothing that another caller waits for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use ringlog_io::{Io, Notifier};
use rtrb::{Consumer, Producer, RingBuffer};
use slab::Slab;

/// A core's place in the mesh: 0 to core count - 1. Not an operating system's CPU number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u32);

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}", self.0)
    }
}

struct Envelope<M> {
    slot: u32,
    message: M,
}

/// What one core needs to join the mesh. Made before the threads start, sent to its thread, then [`Mesh::join`]ed.
pub struct Seat<Q, R> {
    core: CoreId,
    /// By peer core: requests to it, replies to it, requests from it, replies from it. `None` at our own place.
    links: Vec<Option<Link<Q, R>>>,
    notifiers: Arc<[OnceLock<Notifier>]>,
    credits: u32,
}

struct Link<Q, R> {
    requests_out: Producer<Envelope<Q>>,
    replies_out: Producer<Envelope<R>>,
    requests_in: Consumer<Envelope<Q>>,
    replies_in: Consumer<Envelope<R>>,
}

/// One core's end of the mesh. Lives on that core only; clones share it.
pub struct Mesh<Q, R> {
    inner: Rc<Inner<Q, R>>,
}

impl<Q, R> Clone for Mesh<Q, R> {
    fn clone(&self) -> Self {
        Mesh { inner: Rc::clone(&self.inner) }
    }
}

struct Inner<Q, R> {
    core: CoreId,
    core_count: u32,
    credits: u32,
    peers: RefCell<Vec<Peer<Q, R>>>,
    notifiers: Arc<[OnceLock<Notifier>]>,
    handler: RefCell<Option<Rc<Handler<Q, R>>>>,
    sent: std::cell::Cell<u64>,
    received: std::cell::Cell<u64>,
    out_of_credits: std::cell::Cell<u64>,
}

type Handler<Q, R> = dyn Fn(Query<Q, R>);

struct Peer<Q, R> {
    /// `None` for our own core: its requests are handed over directly.
    link: Option<Link<Q, R>>,
    /// Requests whose answer has not arrived. Invariant: `open <= credits` and `open <= calls.len()`.
    open: u32,
    /// Also answers that were not taken yet: at most one for each caller.
    calls: Slab<CallState<R>>,
    waiting_for_credit: VecDeque<Waker>,
}

enum CallState<R> {
    Waiting(Option<Waker>),
    Done(R),
    /// The caller went away; the reply is dropped when it comes.
    Abandoned,
}

/// A request as the owner core sees it: the message and the duty to answer.
pub struct Query<Q, R> {
    pub from: CoreId,
    pub message: Q,
    pub responder: Responder<Q, R>,
}

/// The duty to answer one request. Dropping it unanswered (a core that shuts down) leaves the caller waiting.
pub struct Responder<Q, R> {
    mesh: Rc<Inner<Q, R>>,
    to: CoreId,
    slot: u32,
}

/// The seats of `core_count` cores, in order; `credits` requests may be open from each core to each other.
///
/// Memory: about `core_count^2 * credits * (size of Q + size of R)` bytes.
pub fn seats<Q: Send, R: Send>(core_count: u32, credits: u32) -> Vec<Seat<Q, R>> {
    assert!(core_count > 0, "a mesh needs at least one core");
    assert!(credits > 0, "a mesh needs at least one credit");
    let notifiers: Arc<[OnceLock<Notifier>]> = (0..core_count).map(|_| OnceLock::new()).collect();
    // Row by row: a core links to those before it, who keep their ends, so each row ends in order of the peers.
    let mut rows: Vec<Vec<Option<Link<Q, R>>>> = Vec::with_capacity(core_count as usize);
    for _ in 0..core_count {
        let mut own = Vec::with_capacity(core_count as usize);
        for earlier in &mut rows {
            let (left, right) = link_pair(credits as usize);
            earlier.push(Some(left));
            own.push(Some(right));
        }
        own.push(None);
        rows.push(own);
    }
    rows.into_iter()
        .enumerate()
        .map(|(core, links)| Seat {
            core: CoreId(core as u32),
            links,
            notifiers: Arc::clone(&notifiers),
            credits,
        })
        .collect()
}

fn link_pair<Q, R>(credits: usize) -> (Link<Q, R>, Link<Q, R>) {
    let (left_requests_out, right_requests_in) = RingBuffer::new(credits);
    let (left_replies_out, right_replies_in) = RingBuffer::new(credits);
    let (right_requests_out, left_requests_in) = RingBuffer::new(credits);
    let (right_replies_out, left_replies_in) = RingBuffer::new(credits);
    let left = Link {
        requests_out: left_requests_out,
        replies_out: left_replies_out,
        requests_in: left_requests_in,
        replies_in: left_replies_in,
    };
    let right = Link {
        requests_out: right_requests_out,
        replies_out: right_replies_out,
        requests_in: right_requests_in,
        replies_in: right_replies_in,
    };
    (left, right)
}

impl<Q, R> Seat<Q, R> {
    pub fn core(&self) -> CoreId {
        self.core
    }
}

impl<Q: 'static, R: 'static> Mesh<Q, R> {
    /// Takes this core's place. Requests that arrive before [`Mesh::serve`] wait in their rings.
    pub fn join(seat: Seat<Q, R>, io: &Io) -> Mesh<Q, R> {
        let peers: Vec<Peer<Q, R>> = seat
            .links
            .into_iter()
            .map(|link| Peer { link, open: 0, calls: Slab::new(), waiting_for_credit: VecDeque::new() })
            .collect();
        let inner = Rc::new(Inner {
            core: seat.core,
            core_count: peers.len() as u32,
            credits: seat.credits,
            peers: RefCell::new(peers),
            notifiers: seat.notifiers,
            handler: RefCell::new(None),
            sent: std::cell::Cell::new(0),
            received: std::cell::Cell::new(0),
            out_of_credits: std::cell::Cell::new(0),
        });
        let first = inner.notifiers[inner.core.0 as usize].set(io.notifier()).is_ok();
        assert!(first, "{} joined its mesh twice", inner.core);
        let polled = Rc::clone(&inner);
        io.on_poll(move || Inner::drain(&polled));
        Mesh { inner }
    }

    /// Hands every request from now on to `handler`, on this core, in arrival order per source.
    pub fn serve(&self, handler: impl Fn(Query<Q, R>) + 'static) {
        *self.inner.handler.borrow_mut() = Some(Rc::new(handler));
    }

    pub fn core(&self) -> CoreId {
        self.inner.core
    }

    pub fn cores(&self) -> impl Iterator<Item = CoreId> + use<Q, R> {
        (0..self.inner.core_count).map(CoreId)
    }

    /// Messages (requests and replies) this core sent to others since it joined.
    pub fn sent_count(&self) -> u64 {
        self.inner.sent.get()
    }

    /// Messages (requests and replies) of others this core took since it joined.
    pub fn received_count(&self) -> u64 {
        self.inner.received.get()
    }

    /// Times a sender on this core had to wait for a credit.
    pub fn out_of_credits_count(&self) -> u64 {
        self.inner.out_of_credits.get()
    }

    /// Sends `message` to `target` and waits for its answer; waits for a credit first when there is none.
    ///
    /// Calls to one target leave in the order in which they get their credits, which callers that wait for one may get in
    /// any order: who must keep an order awaits [`Mesh::send`] of each before the next.
    pub async fn call(&self, target: CoreId, message: Q) -> R {
        self.send(target, message).await.await
    }

    /// Sends `message` and returns once it is on its way; the returned future is its answer.
    pub async fn send(&self, target: CoreId, message: Q) -> Call<Q, R> {
        let mut message = Some(message);
        std::future::poll_fn(|context| {
            let taken = message.take().expect("polled after completion");
            match self.try_send(target, taken) {
                Ok(call) => Poll::Ready(call),
                Err(returned) => {
                    message = Some(returned);
                    let mut peers = self.inner.peers.borrow_mut();
                    peers[target.0 as usize].waiting_for_credit.push_back(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Sends `message` if a credit towards `target` is free, and hands it back if not.
    pub fn try_send(&self, target: CoreId, message: Q) -> Result<Call<Q, R>, Q> {
        let inner = &self.inner;
        let slot = {
            let mut peers = inner.peers.borrow_mut();
            let peer = &mut peers[target.0 as usize];
            if peer.open >= inner.credits {
                ringlog_io::reached!("mesh.out_of_credits");
                inner.out_of_credits.set(inner.out_of_credits.get() + 1);
                return Err(message);
            }
            peer.open += 1;
            let slot = peer.calls.insert(CallState::Waiting(None)) as u32;
            if let Some(link) = &mut peer.link {
                let pushed = link.requests_out.push(Envelope { slot, message });
                assert!(pushed.is_ok(), "a credit was free, so the request ring of {target} has room");
                drop(peers);
                inner.notify(target);
                return Ok(Call { mesh: Rc::clone(inner), target, slot });
            }
            slot
        };
        inner.deliver(target, slot, message);
        Ok(Call { mesh: Rc::clone(inner), target, slot })
    }
}

impl<Q: 'static, R: 'static> Inner<Q, R> {
    fn notify(&self, target: CoreId) {
        self.sent.set(self.sent.get() + 1);
        // A core that has not joined yet drains its rings when it does.
        if let Some(notifier) = self.notifiers[target.0 as usize].get() {
            notifier.notify();
        }
    }

    fn deliver(self: &Rc<Self>, from: CoreId, slot: u32, message: Q) {
        let handler = self.handler.borrow().clone().expect("a request came before this core serves its mesh");
        let responder = Responder { mesh: Rc::clone(self), to: from, slot };
        handler(Query { from, message, responder });
    }

    /// Takes everything that arrived. Bounded by the credits: a ring holds no more.
    fn drain(self: &Rc<Self>) -> bool {
        let mut found = false;
        for source in (0..self.core_count).map(CoreId) {
            if source == self.core {
                continue;
            }
            while let Some(envelope) = self.next_reply(source) {
                found = true;
                self.received.set(self.received.get() + 1);
                self.complete(source, envelope.slot, envelope.message);
            }
            if self.handler.borrow().is_none() {
                continue;
            }
            for _ in 0..self.credits {
                let Some(envelope) = self.next_request(source) else { break };
                found = true;
                self.received.set(self.received.get() + 1);
                self.deliver(source, envelope.slot, envelope.message);
            }
        }
        found
    }

    fn next_reply(&self, source: CoreId) -> Option<Envelope<R>> {
        self.peers.borrow_mut()[source.0 as usize].link.as_mut()?.replies_in.pop().ok()
    }

    fn next_request(&self, source: CoreId) -> Option<Envelope<Q>> {
        self.peers.borrow_mut()[source.0 as usize].link.as_mut()?.requests_in.pop().ok()
    }

    fn complete(&self, target: CoreId, slot: u32, reply: R) {
        let mut peers = self.peers.borrow_mut();
        let peer = &mut peers[target.0 as usize];
        let state = peer.calls.get_mut(slot as usize).expect("a reply names an open call");
        let mut unwanted = None;
        let mut caller = None;
        match std::mem::replace(state, CallState::Abandoned) {
            CallState::Waiting(waker) => {
                *state = CallState::Done(reply);
                caller = waker;
            }
            CallState::Abandoned => {
                peer.calls.remove(slot as usize);
                unwanted = Some(reply);
            }
            CallState::Done(_) => unreachable!("a call is answered once"),
        }
        let next = peer.give_credit_back();
        drop(peers);
        // Dropped outside the borrow: what a reply holds may call back into the mesh.
        drop(unwanted);
        caller.into_iter().chain(next).for_each(Waker::wake);
    }
}

impl<Q, R> Peer<Q, R> {
    /// An answer came. Names everyone who waits for a credit, longest first. All of them, since the one in front may be
    /// gone by the time it is woken; those who come too late queue again.
    fn give_credit_back(&mut self) -> VecDeque<Waker> {
        self.open -= 1;
        std::mem::take(&mut self.waiting_for_credit)
    }
}

impl<Q: 'static, R: 'static> Responder<Q, R> {
    /// Answers. Never waits: the request reserved the place of its reply.
    pub fn respond(self, reply: R) {
        if self.to == self.mesh.core {
            self.mesh.complete(self.to, self.slot, reply);
            return;
        }
        {
            let mut peers = self.mesh.peers.borrow_mut();
            let link = peers[self.to.0 as usize].link.as_mut().expect("another core has a link");
            let pushed = link.replies_out.push(Envelope { slot: self.slot, message: reply });
            assert!(pushed.is_ok(), "the request reserved the place of its reply");
        }
        self.mesh.notify(self.to);
    }
}

/// The way in for the side thread (signals, admin): a bounded queue into one core.
#[derive(Debug)]
pub struct Outside<M> {
    queue: std::sync::mpsc::SyncSender<M>,
    notifier: Arc<OnceLock<Notifier>>,
}

impl<M> Clone for Outside<M> {
    fn clone(&self) -> Self {
        Outside { queue: self.queue.clone(), notifier: Arc::clone(&self.notifier) }
    }
}

/// The core's end of an [`Outside`].
#[derive(Debug)]
pub struct OutsideInbox<M> {
    queue: std::sync::mpsc::Receiver<M>,
    notifier: Arc<OnceLock<Notifier>>,
}

/// A queue of at most `depth` messages into one core.
pub fn outside<M: Send>(depth: usize) -> (Outside<M>, OutsideInbox<M>) {
    let (sender, receiver) = std::sync::mpsc::sync_channel(depth);
    let notifier = Arc::new(OnceLock::new());
    (Outside { queue: sender, notifier: Arc::clone(&notifier) }, OutsideInbox { queue: receiver, notifier })
}

impl<M> Outside<M> {
    /// Sends `message`; hands it back if the queue is full or the core has ended.
    pub fn send(&self, message: M) -> Result<(), M> {
        self.queue.try_send(message).map_err(|error| match error {
            std::sync::mpsc::TrySendError::Full(message)
            | std::sync::mpsc::TrySendError::Disconnected(message) => message,
        })?;
        if let Some(notifier) = self.notifier.get() {
            notifier.notify();
        }
        Ok(())
    }
}

impl<M: 'static> OutsideInbox<M> {
    /// Hands every message to `handler` on this core, those sent before too.
    pub fn serve(self, io: &Io, mut handler: impl FnMut(M) + 'static) {
        let OutsideInbox { queue, notifier } = self;
        let first = notifier.set(io.notifier()).is_ok();
        assert!(first, "an inbox is served once");
        io.on_poll(move || {
            let mut found = false;
            while let Ok(message) = queue.try_recv() {
                found = true;
                handler(message);
            }
            found
        });
    }
}

/// The answer to come. Dropping it gives the answer up.
pub struct Call<Q: 'static, R: 'static> {
    mesh: Rc<Inner<Q, R>>,
    target: CoreId,
    slot: u32,
}

impl<Q, R> Future for Call<Q, R> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let mut peers = self.mesh.peers.borrow_mut();
        let peer = &mut peers[self.target.0 as usize];
        let state = peer.calls.get_mut(self.slot as usize).expect("polled after completion");
        match std::mem::replace(state, CallState::Abandoned) {
            CallState::Done(reply) => {
                peer.calls.remove(self.slot as usize);
                drop(peers);
                // The slot may be another call's by now: Drop must not touch it.
                self.get_mut().slot = u32::MAX;
                Poll::Ready(reply)
            }
            CallState::Waiting(_) => {
                *state = CallState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            CallState::Abandoned => unreachable!("only Drop abandons a call"),
        }
    }
}

impl<Q, R> Drop for Call<Q, R> {
    fn drop(&mut self) {
        if self.slot == u32::MAX {
            return;
        }
        let mut peers = self.mesh.peers.borrow_mut();
        let peer = &mut peers[self.target.0 as usize];
        let Some(state) = peer.calls.get_mut(self.slot as usize) else { return };
        match std::mem::replace(state, CallState::Abandoned) {
            CallState::Waiting(_) | CallState::Abandoned => {}
            done @ CallState::Done(_) => {
                peer.calls.remove(self.slot as usize);
                drop(peers);
                drop(done);
            }
        }
    }
}
