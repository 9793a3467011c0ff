//! Silence: when a group has nothing to say, it says nothing. Decides only whether it may be left alone.
//!
//! A caller may stop ticking a quiescent group while it hears the nodes concerned: for a follower its leader's, for a leader those of
//! all members. While one of them is silent it ticks the group. When one comes back it says so once ([`Group::doubt`]), since
//! the replica there may be another one by now; the group then stays awake until it heard the other side.

use crate::group::{Group, Role};
use crate::ids::Round;
use crate::progress::{Flow, Reading};

impl Group {
    /// True while ticks would change nothing, where [`Settings::quiesce`](crate::Settings::quiesce) is on: a leader whose every
    /// member holds everything, is known to know it, and answered a round that began afterwards; a follower that holds everything
    /// its leader has and committed. Either gave back what it kept for writes, which a tick does that finds none since the beat
    /// before.
    pub fn is_quiescent(&self) -> bool {
        if !self.settings.quiesce
            || !self.persists.holds_no_buffers()
            || self.persists.failed
            || self.owed_vote.is_some()
        {
            return false;
        }
        let reconciled = self.durable.log_term == self.hard_state.term;
        let complete = self.high_watermark == self.log.end && self.log.durable_end == self.log.end;
        match self.role {
            Role::Candidate | Role::Follower { leader: None } => false,
            Role::Follower { leader: Some(_) } => reconciled && complete && self.following().owes_nothing(),
            Role::Leader { .. } => self.settled && complete && self.has_nothing_to_say(),
        }
    }

    /// The node of the leader, or of a member, was started anew: a quiet group is awake from here on, until a follower heard its
    /// leader, or a leader its members. Safe at any time.
    pub fn doubt(&mut self) {
        if !self.is_leader() {
            self.following_mut().doubted = true;
        }
        self.wake();
    }

    fn has_nothing_to_say(&self) -> bool {
        let Some(leading) = &self.leading else { return false };
        let configuration = &self.hard_state.configuration;
        let idle = leading.barriers.is_empty() && leading.transfer.is_none() && leading.change.is_none();
        let content = leading.progress.iter().all(|progress| {
            let is_voter = configuration.is_voter(progress.replica);
            progress.flow == Flow::Streaming
                && progress.reading == Reading::Idle
                && progress.holds_no_buffers()
                && progress.matched == Some(self.log.end)
                && progress.version >= configuration.version
                && progress.confirmed >= leading.busy_until
                && (is_voter || progress.stays_learner || !self.settings.promote_learners)
        });
        idle && content && self.is_voter()
    }

    /// Something changed: the group stays awake until every member answered a round that begins after this.
    pub(crate) fn wake(&mut self) {
        if let Some(leading) = &mut self.leading {
            leading.busy_until = Round(leading.round.0 + 1);
        }
    }
}
