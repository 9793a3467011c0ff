//! Requests to a group that are answered later, by token: changes of membership, handovers, read barriers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use ringlog_protocol::ids::Offset;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::{Refusal, StepDownReason};
use ringlog_raft::ids::{ReplicaId, Token};

use crate::storage::LogId;
use crate::store::ViewError;

/// Why a request to a group was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// This replica stopped leading, or the partition went away, before it was answered. It may have been carried out.
    #[error("this replica leads no more; whether the request was carried out is not known")]
    Unknown,
}

/// This replica leads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// As asked.
    To(ReplicaId),
    /// By another way: somebody had a higher term, for example.
    Otherwise,
}

/// What a group answered.
pub(crate) enum Answer {
    Changed {
        token: Token,
        configuration: Arc<Configuration>,
    },
    Barrier {
        token: Token,
        high_watermark: Offset,
    },
    Refused {
        token: Token,
        reason: Refusal,
    },
    /// Of this log's group: whoever waits for a handover has it, or another one.
    SteppedDown {
        log: LogId,
        reason: StepDownReason,
    },
    /// Nobody of this log is answered any more.
    Gone {
        log: LogId,
    },
}

/// What is told to whoever asked.
#[derive(Clone)]
pub(crate) enum Reply {
    Changed(Arc<Configuration>),
    Barrier(Offset),
    Handover(Handover),
    Failed(RequestError),
}

struct Open {
    log: LogId,
    is_handover: bool,
    reply: Option<Reply>,
    waker: Option<Waker>,
}

/// Requests of one core that wait for their answers.
#[derive(Clone, Default)]
pub(crate) struct Requests {
    open: Rc<RefCell<Table>>,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: BTreeMap<Token, Open>,
}

/// Forgets the request when nobody waits any more.
pub(crate) struct Waiting {
    requests: Requests,
    token: Token,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.requests.open.borrow_mut().open.remove(&self.token);
    }
}

impl Requests {
    pub(crate) fn begin(&self, log: LogId, is_handover: bool) -> (Token, Waiting) {
        let mut table = self.open.borrow_mut();
        table.last += 1;
        let token = Token(table.last);
        table.open.insert(token, Open { log, is_handover, reply: None, waker: None });
        (token, Waiting { requests: self.clone(), token })
    }

    pub(crate) fn answer(&self, answer: Answer) {
        match answer {
            Answer::Changed { token, configuration } => self.reply(token, Reply::Changed(configuration)),
            Answer::Barrier { token, high_watermark } => self.reply(token, Reply::Barrier(high_watermark)),
            Answer::Refused { token, reason } => self.reply(token, Reply::Failed(reason.into())),
            Answer::SteppedDown { log, reason } => {
                let handover = match reason {
                    StepDownReason::Transferred { to } => Handover::To(to),
                    _ => Handover::Otherwise,
                };
                self.reply_all(log, true, &Reply::Handover(handover));
            }
            Answer::Gone { log } => self.reply_all(log, false, &Reply::Failed(RequestError::Unknown)),
        }
    }

    fn reply(&self, token: Token, reply: Reply) {
        if let Some(open) = self.open.borrow_mut().open.get_mut(&token) {
            open.take(reply);
        }
    }

    fn reply_all(&self, log: LogId, handovers_only: bool, reply: &Reply) {
        let mut table = self.open.borrow_mut();
        let of_log = table.open.values_mut().filter(|open| open.log == log);
        of_log.filter(|open| open.is_handover || !handovers_only).for_each(|open| open.take(reply.clone()));
    }
}

impl Open {
    /// The first answer counts.
    fn take(&mut self, reply: Reply) {
        self.reply.get_or_insert(reply);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Waiting {
    pub(crate) async fn reply(self) -> Reply {
        poll_fn(|context| {
            let mut table = self.requests.open.borrow_mut();
            let Some(open) = table.open.get_mut(&self.token) else {
                return Poll::Ready(Reply::Failed(RequestError::Unknown));
            };
            match open.reply.take() {
                Some(reply) => Poll::Ready(reply),
                None => {
                    open.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}
