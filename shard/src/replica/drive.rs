//! The way between the group and its peers: messages in, effects out, records read for followers. Decides nothing.

use bytes::Bytes;
use ringlog_protocol::ids::Offset;
use ringlog_raft::effect::{Effect, Replicate, Request};
use ringlog_raft::event::Event;
use ringlog_raft::ids::{Moment, ReplicaId};
use ringlog_raft::message::{Append, Body, Message};

use super::feed::{fill, memory_bytes};
use super::verify::verify_append;
use super::{Answer, CopyAnswer, CopyOutcome, CopyRequest, Outgoing, PeerMessage, Work};
use crate::limits::{JOURNAL_BACKLOG_BYTES_REFUSED, REPLICA_COPY_PIECE_BYTES_MAX};
use crate::partition::{Carrier, Partition};
use crate::storage::{ReadError, ReadPlan};

impl Partition {
    pub(crate) fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) {
        self.group.step(Event::Tick { now }, effects);
        self.carry_out(effects, carrier);
        self.fail_commits_out_of_reach();
    }

    /// A message arrived, and with it `records`.
    pub(crate) fn receive(
        &mut self,
        message: PeerMessage,
        records: Bytes,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        match message {
            PeerMessage::Raft(message) => self.receive_raft(message, &records, effects, carrier),
            PeerMessage::CopyRequest(request) => self.serve_copy(request, carrier),
            PeerMessage::CopyAnswer(answer) => self.take_copied(answer, records, carrier),
        }
    }

    fn receive_raft(
        &mut self,
        mut message: Message,
        records: &Bytes,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        if self.replica.is_none() {
            // A group of one hears nobody; it counts who speaks.
            return self.group.step(Event::Message(message), effects);
        }
        let mut leader_start = None;
        if let Body::Append(append) = &mut message.body {
            leader_start = Some((message.from, append.log_start));
            if !self.take_records(append, records, carrier) {
                return;
            }
        }
        self.group.step(Event::Message(message), effects);
        self.carry_out(effects, carrier);
        if let Some(replica) = self.replica_mut() {
            replica.incoming.clear();
        }
        if let Some((leader, log_start)) = leader_start {
            self.follow_log_start(leader, log_start, effects, carrier);
        }
        if cfg!(feature = "planted-commit-early") {
            // Tells the leader that the journal holds what it was only handed.
            self.durable(u64::MAX, effects, carrier);
        }
    }

    /// Looks at the records of an append before anybody obeys it. False: they do not check, and the message is nobody's.
    fn take_records(&mut self, append: &mut Append, records: &Bytes, carrier: &mut Carrier<'_>) -> bool {
        let batches = match verify_append(append, records, carrier.storage.batch_bytes_max()) {
            Ok(batches) => batches,
            Err(error) => {
                ringlog_io::reached!("replica.unverified");
                carrier.todo.stats.records_unverified += 1;
                tracing::warn!(topic_id = %self.key.topic, partition = self.key.partition.0, %error, "records of a leader do not check");
                return false;
            }
        };
        let is_full = carrier.storage.backlog_bytes() + records.len() > JOURNAL_BACKLOG_BYTES_REFUSED
            || batches
                .first()
                .is_some_and(|first| carrier.storage.check_append(self.log, first.bytes.len()).is_err());
        if is_full {
            // As if the records were lost on the way; the rest of what the leader says still counts.
            carrier.todo.stats.appends_without_room += 1;
            append.end = append.base;
            append.epochs = Default::default();
        } else if let Some(replica) = self.replica_mut() {
            replica.incoming = batches.into();
        }
        true
    }

    /// What lies below the leader's start was committed and let go: it goes here too, as far as this replica knows it committed.
    fn follow_log_start(
        &mut self,
        leader: ReplicaId,
        log_start: Offset,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        let offset = log_start.min(self.group.high_watermark());
        let is_led = self.group.leader() == Some(leader);
        let is_idle =
            self.replica().is_some_and(|replica| replica.writes.is_empty() && replica.copying.is_none());
        if is_led && is_idle && offset > self.group.log_start() && offset <= self.stored_end(carrier) {
            ringlog_io::reached!("replica.log_start_followed");
            self.move_log_start(offset, effects, carrier);
        }
    }

    /// Where the stored log ends. It lies behind what the group decided while persists wait.
    pub(crate) fn stored_end(&self, carrier: &Carrier<'_>) -> Offset {
        carrier.storage.log(self.log).log_end()
    }

    /// Effects that only concern others, and answers.
    pub(crate) fn carry_out_beyond(&mut self, effect: Effect, carrier: &mut Carrier<'_>) {
        match effect {
            Effect::Send(message) => {
                let outgoing = Outgoing { key: self.key, message: message.into(), records: Vec::new() };
                carrier.todo.outgoing.push(outgoing);
            }
            Effect::Replicate(replicate) => {
                if let Some(replica) = self.replica_mut() {
                    replica.reads.push_back(replicate);
                }
            }
            Effect::FetchSnapshot { from, offer } => self.begin_copy(from, offer, carrier),
            Effect::Changed { token, configuration } => {
                carrier.todo.answers.push(Answer::Changed { token, configuration });
            }
            Effect::Barrier { token, high_watermark } => {
                carrier.todo.answers.push(Answer::Barrier { token, high_watermark });
            }
            Effect::Refused { request, reason } => match request {
                Request::Proposal { .. } => unreachable!("a partition proposes only where it leads"),
                Request::ChangeConfiguration { token }
                | Request::TransferLeadership { token }
                | Request::ReadBarrier { token } => {
                    carrier.todo.answers.push(Answer::Refused { token, reason });
                }
            },
            Effect::SteppedDown { .. }
            | Effect::Persist(_)
            | Effect::BecameLeader { .. }
            | Effect::Commit { .. } => {
                unreachable!("carried out by every partition")
            }
        }
    }

    /// Reads for the next follower that the group wants fed. False: for none.
    pub(crate) fn read_next(&mut self, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) -> bool {
        let log = self.log;
        let Some(replica) = self.replica_mut() else { return false };
        let Some(replicate) = replica.reads.pop_front() else { return false };
        let (base, end, bytes_max) = (replicate.header.base, replicate.header.end, replicate.bytes_max);
        let is_settled = replica.writes.is_empty();
        let plan = carrier.storage.plan_read(log, base, end, bytes_max, true).ok().filter(|_| is_settled);
        match plan.map(ReadPlan::into_ready) {
            Some(Ok(read)) => self.replicate(replicate, memory_bytes(read), effects, carrier),
            Some(Err(plan)) => {
                ringlog_io::reached!("replica.fed_from_file");
                carrier.todo.work.push(Work::Read { log, replicate, plan });
            }
            None => self.replicate(replicate, None, effects, carrier),
        }
        true
    }

    /// Sends what was read, and says so to the group. Effects that follow are carried out by whoever called.
    fn replicate(
        &mut self,
        replicate: Replicate,
        records: Option<Vec<Bytes>>,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        let Replicate { to, term, header, .. } = replicate;
        if !self.group.is_leader() || self.group.term() != term {
            // Nobody waits for it: a new term begins with new questions.
            return;
        }
        let filled = records.and_then(|records| fill(header, records, self.group.epochs()));
        let Some(filled) = filled else {
            carrier.todo.stats.reads_failed += 1;
            return self.group.step(Event::ReplicateFailed { to }, effects);
        };
        let (end, bytes) = (filled.header.end, filled.bytes);
        let message = Message { from: self.group.me(), to, term, body: Body::Append(filled.header) };
        let outgoing = Outgoing { key: self.key, message: message.into(), records: filled.records };
        carrier.todo.outgoing.push(outgoing);
        carrier.todo.stats.bytes_replicated += u64::from(bytes);
        self.group.step(Event::Replicated { to, end, bytes }, effects);
    }

    /// A read from files is over.
    pub(crate) fn read_done(
        &mut self,
        replicate: Replicate,
        records: Option<Vec<Bytes>>,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        self.replicate(replicate, records, effects, carrier);
        self.carry_out(effects, carrier);
    }

    /// Reads for a replica that copies this log. Any member may be asked: what is committed is the same everywhere.
    fn serve_copy(&mut self, request: CopyRequest, carrier: &mut Carrier<'_>) {
        let group = &self.group;
        let CopyRequest { from, to, position, log_end, bytes_max, .. } = request;
        if to != group.me() || !group.configuration().is_member(from) || self.replica.is_none() {
            carrier.todo.stats.strangers += 1;
            return;
        }
        let is_settled =
            self.replica().is_some_and(|replica| replica.writes.is_empty() && replica.copying.is_none());
        let (start, committed) = (group.log_start(), group.high_watermark());
        // Whoever is asked led the term of the offer or a later one. If it leads now it holds all that was offered, though after a
        // start it may not know so; and it may never learn it while the one that asks does not become a part of its quorum.
        let is_whole = group.is_leader() && self.stored_end(carrier) >= log_end;
        if !is_settled || committed < log_end && !is_whole || position > log_end || position.0 < 0 {
            return self.answer_copy(request, CopyOutcome::Refused, Vec::new(), carrier);
        }
        if position < start {
            return self.answer_copy(request, CopyOutcome::Moved { log_start: start }, Vec::new(), carrier);
        }
        let stored_end = self.stored_end(carrier);
        if position == stored_end {
            let outcome = CopyOutcome::Records { base: position, next: position };
            return self.answer_copy(request, outcome, Vec::new(), carrier);
        }
        // Where the copy is empty, only the beginning of the batch is asked for.
        let limit = if position < log_end { log_end } else { stored_end };
        let bytes_max = bytes_max.min(REPLICA_COPY_PIECE_BYTES_MAX);
        let plan = carrier.storage.plan_read(self.log, position, limit, bytes_max, true);
        match plan.map(ReadPlan::into_ready) {
            Ok(Ok(read)) => self.copy_read(request, memory_bytes(read), carrier),
            Ok(Err(plan)) => carrier.todo.work.push(Work::Serve { log: self.log, request, plan }),
            Err(ReadError::OutOfRange { log_start, .. }) if position < log_start => {
                self.answer_copy(request, CopyOutcome::Moved { log_start }, Vec::new(), carrier);
            }
            Err(_) => self.answer_copy(request, CopyOutcome::Refused, Vec::new(), carrier),
        }
    }

    /// Answers with what was read.
    pub(crate) fn copy_read(
        &mut self,
        request: CopyRequest,
        records: Option<Vec<Bytes>>,
        carrier: &mut Carrier<'_>,
    ) {
        let bounds = records.as_deref().and_then(super::copy::bounds);
        match (records, bounds) {
            (Some(records), Some((base, next))) if base <= request.position => {
                let is_empty = request.position >= request.log_end;
                let next = if is_empty { base } else { next };
                let records = if is_empty { Vec::new() } else { records };
                self.answer_copy(request, CopyOutcome::Records { base, next }, records, carrier);
            }
            _ => self.answer_copy(request, CopyOutcome::Refused, Vec::new(), carrier),
        }
    }

    fn answer_copy(
        &self,
        request: CopyRequest,
        outcome: CopyOutcome,
        records: Vec<Bytes>,
        carrier: &mut Carrier<'_>,
    ) {
        let CopyRequest { from, to, number, .. } = request;
        let answer = CopyAnswer { from: to, to: from, number, outcome };
        carrier.todo.outgoing.push(Outgoing {
            key: self.key,
            message: PeerMessage::CopyAnswer(answer),
            records,
        });
    }
}
