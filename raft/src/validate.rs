//! The invariants of a group, all of them, in one place. Checks and changes nothing.

use crate::group::{Group, Role};

impl Group {
    /// Checks the invariants named on the type.
    ///
    /// # Panics
    /// When one does not hold, with the values: going on could lose or change a committed record.
    pub fn validate(&self) {
        self.validate_terms();
        self.validate_log();
        self.validate_role();
        let (in_flight, last) = (self.persists.pending.len() as u64, self.persists.last);
        assert!(in_flight <= last.0, "{in_flight} writes are pending, the last is {last:?}");
        let mut ends = self.persists.pending.iter().map(|pending| pending.log_end);
        assert!(
            ends.all(|end| end <= self.log.end),
            "a pending write reaches beyond log end {:?}",
            self.log.end
        );
    }

    fn validate_terms(&self) {
        let (term, log_term, durable) = (self.hard_state.term, self.hard_state.log_term, &self.durable);
        assert!(log_term <= term, "log term {log_term} above term {term}");
        assert!(durable.term <= term, "durable term {} above term {term}", durable.term);
        assert!(
            durable.log_term <= durable.term,
            "durable log term {} above durable term {}",
            durable.log_term,
            durable.term
        );
        assert!(
            durable.log_term <= log_term,
            "durable log term {} above log term {log_term}",
            durable.log_term
        );
        // While another leader's records replace this log, a configuration of the branch that goes may lie beyond its end.
        let position = self.hard_state.configuration.position;
        let reconciled = log_term == term && self.hard_state.configuration.version > 0;
        assert!(
            !reconciled || position <= self.log.end,
            "configuration made at {position:?} above log end {:?}",
            self.log.end
        );
    }

    fn validate_log(&self) {
        let log = &self.log;
        assert!(log.start.0 >= 0, "log start {:?} is negative", log.start);
        assert!(
            log.start <= self.high_watermark,
            "log start {:?} above watermark {:?}",
            log.start,
            self.high_watermark
        );
        // A leader's followers may hold on disk what its own disk does not hold yet (Raft thesis, section 10.2.1).
        assert!(
            self.high_watermark <= log.end,
            "watermark {:?} above log end {:?}",
            self.high_watermark,
            log.end
        );
        if self.is_only_voter() && self.is_leader() {
            assert!(
                self.high_watermark <= log.durable_end,
                "watermark {:?} above durable end {:?}",
                self.high_watermark,
                log.durable_end
            );
        }
        assert!(
            log.start <= log.durable_end,
            "log start {:?} above durable end {:?}",
            log.start,
            log.durable_end
        );
        assert!(log.durable_end <= log.end, "durable end {:?} above log end {:?}", log.durable_end, log.end);
        assert!(
            log.last_epoch() <= self.hard_state.term.leader_epoch(),
            "epoch {:?} above term {}",
            log.last_epoch(),
            self.hard_state.term
        );
        assert!(self.alone || log.knows_its_epochs(), "epochs {:?} do not cover the log", log.epochs());
    }

    fn validate_role(&self) {
        let (term, log_term, durable) = (self.hard_state.term, self.hard_state.log_term, &self.durable);
        match self.role {
            Role::Follower { leader } => assert_ne!(leader, Some(self.me), "a follower follows itself"),
            Role::Candidate => {
                assert_eq!(self.hard_state.vote, Some(self.me), "a candidate votes for itself");
                assert!(log_term < term, "log term {log_term} was set before the win of term {term}");
            }
            Role::Leader { election_end } => {
                assert_eq!(log_term, term, "a leader's log term {log_term} is its term {term}");
                assert_eq!(durable.term, term, "a leader's term {term} is durable");
                assert_eq!(durable.vote, Some(self.me), "a leader's own vote is durable");
                assert!(
                    election_end <= self.log.end,
                    "election end {election_end:?} above log end {:?}",
                    self.log.end
                );
                assert!(!self.persists.failed, "a leader can persist");
                self.validate_leadership();
            }
        }
        assert_eq!(self.leading.is_some(), self.is_leader(), "only a leader has a leader's state");
        if self.settled {
            assert!(self.is_leader(), "only a leader's term is settled");
            let counted = !self.is_only_voter() || durable.log_term == term;
            assert!(counted, "a settled term {term} has a durable log term");
        }
    }

    fn validate_leadership(&self) {
        let Some(leading) = &self.leading else { return };
        leading.progress.iter().for_each(|progress| progress.validate(self.log.end));
        let configuration = &self.hard_state.configuration;
        let members = configuration.voters.iter().chain(&configuration.learners);
        let others = members.filter(|member| **member != self.me).count();
        assert_eq!(leading.progress.len(), others, "a leader follows every other member");
        assert_eq!(
            leading.configurations.last(),
            Some(configuration),
            "the newest configuration is in force"
        );
        assert!(leading.configurations.is_sorted_by_key(|kept| kept.version), "configurations out of order");
    }
}
