//! The replies of one connection, in request order. Owns the queue between the task that reads requests and the
//! task that writes answers; knows nothing of what they say.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::egress::Outgoing;

use crate::handlers::RequestInfo;

/// One answer, ready to leave.
pub struct Reply {
    pub pieces: Vec<Outgoing>,
    pub info: RequestInfo,
    /// The first error in the answer.
    pub error: ErrorCode,
}

/// How a request ended.
pub enum Answer {
    Reply(Reply),
    /// Nothing to say (acks=0).
    Silence,
    /// The connection must be closed: the peer broke the protocol, or asked for no answer and must learn of an error.
    Close,
}

/// An answer that is there or will come.
pub enum Pending {
    Ready(Answer),
    Later(Pin<Box<dyn Future<Output = Answer>>>),
}

/// Clones share the queue; one reads requests and pushes, one writes answers and pops. Lives on one core.
#[derive(Clone)]
pub struct Replies {
    inner: Rc<Inner>,
}

struct Inner {
    queue: RefCell<VecDeque<Pending>>,
    /// Answers popped but not yet sent.
    in_hand: Cell<u32>,
    /// Nothing more will be pushed.
    ended: Cell<bool>,
    /// Nothing more will be sent: the socket failed.
    broken: Cell<bool>,
    depth_max: usize,
    writer: Cell<Option<Waker>>,
    reader: Cell<Option<Waker>>,
}

impl Replies {
    /// At most `depth_max` requests of one connection are in flight; then it is not read.
    pub fn new(depth_max: usize) -> Replies {
        Replies {
            inner: Rc::new(Inner {
                queue: RefCell::default(),
                in_hand: Cell::new(0),
                ended: Cell::new(false),
                broken: Cell::new(false),
                depth_max,
                writer: Cell::new(None),
                reader: Cell::new(None),
            }),
        }
    }

    /// Queues an answer behind all earlier ones; waits while the queue is full. False once the socket failed.
    pub async fn push(&self, pending: Pending) -> bool {
        self.wait(|inner| inner.queue.borrow().len() < inner.depth_max).await;
        if self.inner.broken.get() {
            return false;
        }
        self.inner.queue.borrow_mut().push_back(pending);
        wake(&self.inner.writer);
        true
    }

    /// Waits until every earlier answer was sent. False once the socket failed.
    ///
    /// Kafka takes one request of a connection at a time; only produce requests may overlap here, so whatever else
    /// comes sees the effects of all before it.
    pub async fn drained(&self) -> bool {
        self.wait(|inner| inner.queue.borrow().is_empty() && inner.in_hand.get() == 0).await;
        !self.inner.broken.get()
    }

    async fn wait(&self, ready: impl Fn(&Inner) -> bool) {
        poll_fn(|context| {
            if self.inner.broken.get() || ready(&self.inner) {
                return Poll::Ready(());
            }
            self.inner.reader.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// No request follows; the writer ends once all is sent.
    pub fn end(&self) {
        self.inner.ended.set(true);
        wake(&self.inner.writer);
    }

    /// The socket failed: drops what is queued and lets the reader go on to its end.
    pub fn break_off(&self) {
        self.inner.broken.set(true);
        let dropped = std::mem::take(&mut *self.inner.queue.borrow_mut());
        wake(&self.inner.reader);
        drop(dropped);
    }

    /// The answers that are ready now, in order, at least one; empty at the end. Call [`Replies::sent`] when they left.
    ///
    /// Answers that one journal write completed together leave in one send.
    pub async fn next_ready(&self, count_max: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        poll_fn(|context| {
            // The waker first: a future polled below may finish the moment after.
            self.inner.writer.set(Some(context.waker().clone()));
            while answers.len() < count_max {
                let Some(mut pending) = self.inner.queue.borrow_mut().pop_front() else { break };
                match poll_pending(&mut pending, context) {
                    Poll::Ready(answer) => answers.push(answer),
                    Poll::Pending => {
                        self.inner.queue.borrow_mut().push_front(pending);
                        break;
                    }
                }
            }
            let ended =
                self.inner.broken.get() || self.inner.ended.get() && self.inner.queue.borrow().is_empty();
            if !answers.is_empty() || ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.inner.in_hand.set(answers.len() as u32);
        if !answers.is_empty() {
            wake(&self.inner.reader);
        }
        answers
    }

    pub fn sent(&self) {
        self.inner.in_hand.set(0);
        wake(&self.inner.reader);
    }
}

fn poll_pending(pending: &mut Pending, context: &mut Context<'_>) -> Poll<Answer> {
    match pending {
        Pending::Ready(answer) => Poll::Ready(std::mem::replace(answer, Answer::Silence)),
        Pending::Later(future) => future.as_mut().poll(context),
    }
}

fn wake(cell: &Cell<Option<Waker>>) {
    if let Some(waker) = cell.take() {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(name: &'static [u8]) -> Answer {
        let pieces = vec![Outgoing::Memory(bytes::Bytes::from_static(name))];
        Answer::Reply(Reply { pieces, info: RequestInfo::for_tests(), error: ErrorCode::None })
    }

    fn names(answers: &[Answer]) -> Vec<Vec<u8>> {
        answers
            .iter()
            .map(|answer| match answer {
                Answer::Reply(reply) => match &reply.pieces[0] {
                    Outgoing::Memory(bytes) => bytes.to_vec(),
                    Outgoing::Tail(_) | Outgoing::File { .. } | Outgoing::Segment { .. } => {
                        panic!("no log here")
                    }
                },
                Answer::Silence => b"silence".to_vec(),
                Answer::Close => b"close".to_vec(),
            })
            .collect()
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_slow_first_answer_holds_the_second_back() {
        let replies = Replies::new(8);
        let gate = Rc::new(Cell::new(false));
        let opened = Rc::clone(&gate);
        let slow = poll_fn(move |_| if opened.get() { Poll::Ready(reply(b"first")) } else { Poll::Pending });
        assert_eq!(poll(Box::pin(replies.push(Pending::Later(Box::pin(slow)))).as_mut()), Poll::Ready(true));
        assert_eq!(
            poll(Box::pin(replies.push(Pending::Ready(reply(b"second")))).as_mut()),
            Poll::Ready(true)
        );
        let mut next = Box::pin(replies.next_ready(8));
        assert!(poll(next.as_mut()).is_pending());
        gate.set(true);
        let Poll::Ready(answers) = poll(next.as_mut()) else { panic!("both are ready") };
        assert_eq!(names(&answers), [b"first".to_vec(), b"second".to_vec()]);
    }

    #[test]
    fn drained_waits_for_what_was_popped_but_not_sent() {
        let replies = Replies::new(8);
        assert_eq!(poll(Box::pin(replies.push(Pending::Ready(reply(b"one")))).as_mut()), Poll::Ready(true));
        let Poll::Ready(answers) = poll(Box::pin(replies.next_ready(8)).as_mut()) else { panic!("ready") };
        assert_eq!(answers.len(), 1);
        let mut drained = Box::pin(replies.drained());
        assert!(poll(drained.as_mut()).is_pending());
        replies.sent();
        assert_eq!(poll(drained.as_mut()), Poll::Ready(true));
    }

    #[test]
    fn a_full_queue_stops_the_reader() {
        let replies = Replies::new(1);
        assert_eq!(poll(Box::pin(replies.push(Pending::Ready(reply(b"one")))).as_mut()), Poll::Ready(true));
        let mut second = Box::pin(replies.push(Pending::Ready(reply(b"two"))));
        assert!(poll(second.as_mut()).is_pending());
        let Poll::Ready(_) = poll(Box::pin(replies.next_ready(1)).as_mut()) else { panic!("ready") };
        assert_eq!(poll(second.as_mut()), Poll::Ready(true));
    }

    #[test]
    fn the_writer_ends_after_the_last_answer_and_the_reader_after_a_broken_socket() {
        let replies = Replies::new(1);
        replies.end();
        let Poll::Ready(answers) = poll(Box::pin(replies.next_ready(8)).as_mut()) else { panic!("ended") };
        assert!(answers.is_empty());
        replies.break_off();
        assert_eq!(
            poll(Box::pin(replies.push(Pending::Ready(Answer::Silence))).as_mut()),
            Poll::Ready(false)
        );
        assert_eq!(poll(Box::pin(replies.drained()).as_mut()), Poll::Ready(false));
    }
}
