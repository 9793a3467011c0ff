//! Calls that wait for their answer: those of this core's own connections, and those that this core's machines owe an answer to,
//! wherever they came from. Holds no credit of the mesh for any of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringlog_io::Priority;
use ringlog_shard::limits::GROUP_CALLS_WAITING_MAX;
use ringlog_shard::mesh::CoreId;

use super::{GroupAnswer, GroupRequest};
use crate::core::Core;
use crate::core::messages::CoreRequest;
use crate::group::Token;

/// Names a call on the core of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupCallId {
    pub(super) home: CoreId,
    pub(super) number: u64,
}

/// Calls of this core's own connections.
#[derive(Default)]
pub(super) struct HomeCalls {
    next: Cell<u64>,
    open: RefCell<BTreeMap<u64, Slot>>,
}

#[derive(Default)]
struct Slot {
    answer: Option<GroupAnswer>,
    waker: Option<Waker>,
}

/// One of them, until its answer is taken. Dropped before, the answer is dropped when it comes.
pub(super) struct HomeCall {
    core: Rc<Core>,
    pub(super) id: GroupCallId,
}

impl HomeCall {
    /// `None`: as many wait as may.
    pub(super) fn open(core: &Rc<Core>) -> Option<HomeCall> {
        let calls = &core.groups().home_calls;
        let mut open = calls.open.borrow_mut();
        if open.len() >= GROUP_CALLS_WAITING_MAX {
            return None;
        }
        let number = calls.next.get();
        calls.next.set(number + 1);
        open.insert(number, Slot::default());
        Some(HomeCall { core: Rc::clone(core), id: GroupCallId { home: core.id, number } })
    }
}

impl HomeCalls {
    /// The answer came. A call that was dropped meanwhile wants none.
    pub(super) fn answered(&self, number: u64, answer: GroupAnswer) {
        let mut open = self.open.borrow_mut();
        let Some(slot) = open.get_mut(&number) else {
            ringlog_io::reached!("groups.answer_unwanted");
            return;
        };
        slot.answer = Some(answer);
        let waker = slot.waker.take();
        drop(open);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.borrow().len()
    }
}

impl Future for HomeCall {
    type Output = GroupAnswer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<GroupAnswer> {
        let mut open = self.core.groups().home_calls.open.borrow_mut();
        let slot = open.get_mut(&self.id.number).expect("a call is open until it is dropped");
        match slot.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for HomeCall {
    fn drop(&mut self) {
        self.core.groups().home_calls.open.borrow_mut().remove(&self.id.number);
    }
}

/// Answers that this core's machines owe.
#[derive(Default)]
pub(super) struct OwedAnswers {
    next: Cell<u64>,
    owed: RefCell<BTreeMap<Token, Asker>>,
}

/// Who gets an answer.
enum Asker {
    /// The call is being looked at right now: the answer goes back with it, if it comes at once.
    Present(Option<GroupAnswer>),
    Home(GroupCallId),
}

impl OwedAnswers {
    /// `None`: as many are owed as may be.
    pub(super) fn begin(&self) -> Option<Token> {
        let mut owed = self.owed.borrow_mut();
        if owed.len() >= GROUP_CALLS_WAITING_MAX {
            return None;
        }
        let token = Token(self.next.get());
        self.next.set(token.0 + 1);
        owed.insert(token, Asker::Present(None));
        Some(token)
    }

    /// The look is over: the answer if there is one, which else goes to `home` when it comes.
    pub(super) fn leave(&self, token: Token, home: GroupCallId) -> Option<GroupAnswer> {
        let mut owed = self.owed.borrow_mut();
        match owed.remove(&token) {
            Some(Asker::Present(Some(answer))) => Some(answer),
            Some(Asker::Present(None)) => {
                owed.insert(token, Asker::Home(home));
                None
            }
            Some(Asker::Home(_)) | None => unreachable!("a call is looked at once"),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.owed.borrow().len()
    }
}

/// Brings a machine's answer to whoever asked.
pub(super) fn deliver(core: &Rc<Core>, token: Token, answer: GroupAnswer) {
    let mut owed = core.groups().owed.owed.borrow_mut();
    let call = match owed.get_mut(&token) {
        Some(Asker::Present(slot)) => {
            *slot = Some(answer);
            return;
        }
        Some(Asker::Home(call)) => *call,
        // Machines answer each token once.
        None => return,
    };
    owed.remove(&token);
    drop(owed);
    if call.home == core.id {
        core.groups().home_calls.answered(call.number, answer);
        return;
    }
    let answered = GroupRequest::Answered { number: call.number, answer: Box::new(answer) };
    let message = CoreRequest::Groups(answered);
    if let Err(message) = core.mesh.try_send(call.home, message) {
        let core = Rc::clone(core);
        core.io
            .clone()
            .spawn(Priority::Foreground, async move {
                core.mesh.call(call.home, message).await;
            })
            .detach();
    }
}
