//! Copies of a log for a follower that is too far behind to be fed by appends. Decides when; the caller copies.

use ringlog_protocol::ids::Offset;

use crate::effect::Effect;
use crate::group::{Group, Role};
use crate::ids::{ReplicaId, Round, Term};
use crate::log::Log;
use crate::message::{Body, EpochStart, SnapshotOffer};
use crate::progress::{Flow, Reading, UNVERIFIED};

/// A copy under way: the log does not change until it ends.
#[derive(Clone, Debug)]
pub(crate) struct Copying {
    from: ReplicaId,
    term: Term,
    log_end: Offset,
}

/// A copy that ended in this term: an offer repeated on the way is not taken again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copied {
    log_end: Offset,
}

impl Group {
    /// Offers everything that is committed: that part of the log changes no more while it is copied.
    pub(crate) fn offer_copy(&mut self, place: usize, effects: &mut Vec<Effect>) {
        let offer = SnapshotOffer {
            log_start: self.log.start,
            log_end: self.high_watermark,
            first_epoch: self.log.epoch_at(self.log.start),
            last_epoch: self.log.epoch_before(self.high_watermark),
            configuration: self.hard_state.configuration.clone(),
        };
        let now = self.clock.now();
        let Some(progress) = self.progress_mut(place) else { return };
        let next = progress.next;
        progress.begin_anew(next, Flow::Copying { since: now });
        let to = progress.replica;
        effects.push(self.send(to, Body::SnapshotOffer(offer)));
    }

    pub(crate) fn snapshot_offer(
        &mut self,
        from: ReplicaId,
        offer: SnapshotOffer,
        effects: &mut Vec<Effect>,
    ) {
        let bounds = 0 <= offer.log_start.0 && offer.log_start <= offer.log_end;
        if !bounds || offer.configuration.validate().is_err() {
            self.ignored_mut().malformed += 1;
            return;
        }
        // The leader offers again; a write on its way would land in the new log.
        if self.following().copying.is_some() || !self.persists.pending.is_empty() {
            return;
        }
        let reconciled = self.hard_state.log_term == self.hard_state.term;
        let copied = self.following().copied.is_some_and(|copied| copied.log_end >= offer.log_end);
        // The leader knew an older state of this log, or the offer was long on its way. What is acknowledged here, perhaps unheard
        // yet, must not go; and probing from the end of this log cannot lead below the leader's start.
        if copied || self.reaches_into(&offer) || reconciled && self.log.end >= offer.log_end {
            let installed = Body::SnapshotReply { installed: true, log_end: self.log.end };
            effects.push(self.send(from, installed));
            return;
        }
        let (term, log_end) = (self.hard_state.term, offer.log_end);
        self.following_mut().copying = Some(Box::new(Copying { from, term, log_end }));
        effects.push(Effect::FetchSnapshot { from, offer });
    }

    /// Whether this log holds all below the leader's start, and the record there: committed ones are the same everywhere, and two
    /// records with one epoch at one offset have equal logs before them.
    fn reaches_into(&self, offer: &SnapshotOffer) -> bool {
        let first = self.log.epoch_at(offer.log_start);
        self.high_watermark >= offer.log_start || first.is_some() && first == offer.first_epoch
    }

    /// The copy replaced the log, its records are durable. The log term stays: this log is a part of that leader's now, not yet all of
    /// it, and the next appends reconcile it.
    pub(crate) fn snapshot_installed(
        &mut self,
        offer: &SnapshotOffer,
        epochs: Vec<EpochStart>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(copying) = self.following_mut().copying.take() else {
            self.ignored_mut().late_reports += 1;
            return;
        };
        let SnapshotOffer { log_start, log_end, .. } = *offer;
        assert!(log_end == copying.log_end, "a copy up to {:?} ends at {log_end:?}", copying.log_end);
        assert!(log_start <= log_end, "a copy of {log_start:?}..{log_end:?}");
        self.log = Log::new(log_start, log_end, epochs);
        assert!(
            self.log.knows_its_epochs(),
            "a copy knows the epochs of its records: {:?}",
            self.log.epochs()
        );
        for pending in &mut self.persists.pending {
            pending.log_end = log_end;
        }
        if log_start > self.high_watermark {
            // What lies below a leader's log start was committed.
            self.high_watermark = log_start;
            effects.push(Effect::Commit { high_watermark: log_start });
        }
        if copying.term == self.hard_state.term {
            self.following_mut().copied = Some(Copied { log_end });
        }
        self.answer_offer(&copying, true, effects);
    }

    pub(crate) fn snapshot_failed(&mut self, from: ReplicaId, effects: &mut Vec<Effect>) {
        match self.following_mut().copying.take() {
            Some(copying) if copying.from == from => self.answer_offer(&copying, false, effects),
            other => {
                self.following_mut().copying = other;
                self.ignored_mut().late_reports += 1;
            }
        }
    }

    fn answer_offer(&self, copying: &Copying, installed: bool, effects: &mut Vec<Effect>) {
        let still_led = self.role == (Role::Follower { leader: Some(copying.from) });
        if copying.term == self.hard_state.term && still_led {
            let reply = Body::SnapshotReply { installed, log_end: self.log.end };
            effects.push(self.send(copying.from, reply));
        }
    }

    pub(crate) fn snapshot_reply(
        &mut self,
        from: ReplicaId,
        installed: bool,
        log_end: Offset,
        effects: &mut Vec<Effect>,
    ) {
        let own_end = self.log.end;
        let Some(place) = self.place_in_progress(from) else { return };
        self.hear(from, Round(0));
        let Some(progress) = self.progress_mut(place) else { return };
        if !matches!(progress.flow, Flow::Copying { .. }) {
            return;
        }
        if progress.reading == Reading::Wanted {
            progress.reading = Reading::Discarded;
        }
        if installed {
            let next = log_end.min(own_end).max(progress.matched.unwrap_or(Offset(0)));
            progress.begin_anew(next, UNVERIFIED);
            self.feed(place, effects);
        } else {
            progress.begin_anew(progress.next, UNVERIFIED);
            progress.pause();
        }
    }
}
