//! Linearizable reads: a leader answers only after a majority confirmed a round that began after the question (Raft thesis,
//! section 6.4). No lease, no clock.

use crate::effect::{Effect, Refusal, Request};
use crate::group::{Group, refuse};
use crate::ids::{Round, Token};
use crate::message::Body;
use crate::quorum::{majority, reached_by};

/// A question that waits for its round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Barrier {
    pub(crate) token: Token,
    /// `None`: no round began since it was asked. While one is on its way the next waits, so that a stream of questions shares
    /// rounds instead of sending one each.
    round: Option<Round>,
}

impl Barrier {
    pub(crate) fn join(&mut self, round: Round) {
        self.round.get_or_insert(round);
    }
}

impl Group {
    pub(crate) fn read_barrier(&mut self, token: Token, effects: &mut Vec<Effect>) {
        let request = Request::ReadBarrier { token };
        if let Some(reason) = self.refusal() {
            return refuse(request, reason, effects);
        }
        if !self.settled {
            return refuse(request, Refusal::NotSettled, effects);
        }
        if self.is_only_voter() {
            // The present leader is the only one there can be: a settled term confirms itself.
            return effects.push(Effect::Barrier { token, high_watermark: self.high_watermark });
        }
        let Some(leading) = &mut self.leading else { return };
        leading.barriers.push_back(Barrier { token, round: None });
        self.begin_barrier_round(effects);
        self.wake();
    }

    fn begin_barrier_round(&mut self, effects: &mut Vec<Effect>) {
        let Some(leading) = &mut self.leading else { return };
        let on_its_way = leading.barriers.iter().any(|barrier| barrier.round.is_some());
        if leading.barriers.is_empty() || on_its_way {
            return;
        }
        let round = leading.begin_round();
        leading.barriers.iter_mut().for_each(|barrier| barrier.join(round));
        let body = Body::Heartbeat { high_watermark: self.high_watermark, round };
        self.tell_members(&body, effects);
    }

    /// Passes every barrier whose round a majority answered.
    pub(crate) fn confirm_barriers(&mut self, effects: &mut Vec<Effect>) {
        let Some(leading) = &self.leading else { return };
        if leading.barriers.is_empty() {
            return;
        }
        let voters = &self.hard_state.configuration.voters;
        let confirmed = voters.iter().map(|voter| {
            if *voter == self.me {
                Some(leading.round)
            } else {
                leading.progress_of(*voter).map(|progress| progress.confirmed)
            }
        });
        let Some(confirmed) = reached_by(majority(voters.len()), confirmed) else { return };
        let high_watermark = self.high_watermark;
        let Some(leading) = &mut self.leading else { return };
        while let Some(barrier) = leading.barriers.front().copied() {
            if barrier.round.is_none_or(|round| round > confirmed) {
                break;
            }
            leading.barriers.pop_front();
            effects.push(Effect::Barrier { token: barrier.token, high_watermark });
        }
        self.begin_barrier_round(effects);
    }
}
