//! Leadership transfer: waits until the successor holds everything, then asks it to campaign (Raft thesis, section 3.10).

use crate::effect::{Effect, Refusal, Request};
use crate::group::{Group, refuse};
use crate::ids::{Moment, ReplicaId, Token};
use crate::message::Body;

/// A handover under way. Until it ends no proposal is taken, so that the successor can catch up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    pub(crate) to: ReplicaId,
    pub(crate) token: Token,
    /// The successor was asked to campaign.
    pub(crate) sent: bool,
    began: Moment,
}

impl crate::leader::Leadership {
    /// The successor that was asked to campaign.
    pub(crate) fn handed_over_to(&self) -> Option<ReplicaId> {
        self.transfer.as_deref().filter(|transfer| transfer.sent).map(|transfer| transfer.to)
    }
}

impl Group {
    pub(crate) fn transfer_leadership(
        &mut self,
        to: Option<ReplicaId>,
        token: Token,
        effects: &mut Vec<Effect>,
    ) {
        let request = Request::TransferLeadership { token };
        if let Some(reason) = self.refusal() {
            return refuse(request, reason, effects);
        }
        let able = |to: &ReplicaId| *to != self.me && self.hard_state.configuration.is_voter(*to);
        let successor = match to {
            Some(to) => Some(to).filter(able),
            None => self.successor(),
        };
        let began = self.clock.now();
        let Some(leading) = &mut self.leading else { return };
        let Some(to) = successor else {
            return refuse(request, Refusal::NoSuccessor, effects);
        };
        if leading.transfer.is_some() {
            return refuse(request, Refusal::ChangeInFlight, effects);
        }
        leading.transfer = Some(Box::new(Transfer { to, token, sent: false, began }));
        self.wake();
        self.hand_over_when_ready(effects);
    }

    pub(crate) fn hand_over_when_ready(&mut self, effects: &mut Vec<Effect>) {
        let log_end = self.log.end;
        let Some(leading) = &mut self.leading else { return };
        let Some(Transfer { to, sent: false, .. }) = leading.transfer.as_deref().copied() else { return };
        if leading.progress_of(to).is_none_or(|progress| progress.matched != Some(log_end)) {
            return;
        }
        if let Some(transfer) = &mut leading.transfer {
            transfer.sent = true;
        }
        effects.push(self.send(to, Body::CampaignNow));
    }

    /// An election timeout is enough for a successor that is alive: go on leading otherwise.
    pub(crate) fn give_up_transfer(&mut self, effects: &mut Vec<Effect>) {
        let timeout = self.settings.election_timeout;
        let Some(leading) = &mut self.leading else { return };
        let Some(Transfer { token, began, .. }) = leading.transfer.as_deref().copied() else { return };
        if self.clock.since(began) >= timeout {
            leading.transfer = None;
            refuse(Request::TransferLeadership { token }, Refusal::NoSuccessor, effects);
        }
    }

    pub(crate) fn handing_over_to(&self) -> Option<ReplicaId> {
        Some(self.leading.as_ref()?.transfer.as_ref()?.to)
    }

    /// The most complete other voter that is alive.
    pub(crate) fn successor(&self) -> Option<ReplicaId> {
        let leading = self.leading.as_ref()?;
        let able = leading.progress.iter().filter(|progress| {
            self.hard_state.configuration.is_voter(progress.replica)
                && progress.matched.is_some()
                && self.clock.since(progress.contact) < self.settings.election_timeout
        });
        able.max_by_key(|progress| (progress.matched, progress.version)).map(|progress| progress.replica)
    }

    /// Asks the best successor to campaign, for a leader that cannot go on.
    pub(crate) fn name_successor(&mut self, effects: &mut Vec<Effect>) {
        if let Some(to) = self.successor() {
            effects.push(self.send(to, Body::CampaignNow));
        }
    }

    /// A replica that led this term and can write no more asks the voters in turn to take over: quiesced ones do not notice.
    pub(crate) fn urge_successor(&mut self, effects: &mut Vec<Effect>) {
        let led = self.role == (crate::group::Role::Follower { leader: None })
            && self.durable.log_term == self.hard_state.term
            && self.durable.vote == Some(self.me);
        let voters = self.hard_state.configuration.voters.len() as u64;
        let place = usize::try_from(self.clock.random_below(voters)).unwrap_or(0);
        match self.hard_state.configuration.voters.get(place).copied() {
            Some(to) if led && to != self.me => effects.push(self.send(to, Body::CampaignNow)),
            _ => {}
        }
    }
}
