//! What is run: the sound protocol at several bounds, and one run for each planted mistake.

use crate::explore::{Outcome, Search, explore};
use crate::hunt::{Hunt, hunt};
use crate::properties::Checked;
use crate::protocol::{Action, Mistake, Protocol, Rule};
use crate::stages::stage;

/// Calls a method of a [`Run`] for the model of its size.
macro_rules! sized {
    ($run:expr, $method:ident, ($($argument:expr),*)) => {
        match ($run.replicas, $run.protocol.max_term) {
            (3, 2) => $run.$method::<3, 3>($($argument),*),
            (3, 3) => $run.$method::<3, 4>($($argument),*),
            (3, 4) => $run.$method::<3, 5>($($argument),*),
            (3, 5) => $run.$method::<3, 6>($($argument),*),
            (4, 2) => $run.$method::<4, 3>($($argument),*),
            (4, 3) => $run.$method::<4, 4>($($argument),*),
            (5, 2) => $run.$method::<5, 3>($($argument),*),
            (5, 3) => $run.$method::<5, 4>($($argument),*),
            (replicas, terms) => panic!("no model of {replicas} replicas and {terms} terms is compiled in"),
        }
    };
}

/// One bounded space of states to visit.
#[derive(Clone, Debug)]
pub struct Run {
    /// `rule-replicas x terms x records x changes`, or the mistake.
    pub name: String,
    pub replicas: usize,
    pub protocol: Protocol,
    /// Steps taken before the search begins.
    pub stage: Vec<Action>,
    /// Check what lies inside too: without it only what a client could notice counts.
    pub inner: bool,
    /// Check that every majority can recover from every state.
    pub recovery: bool,
    pub search: Search,
    /// Found within a second even by a build that is not optimised: part of the short form.
    pub cheap: bool,
}

impl Run {
    /// Visits at most `states_max` states. `fold` makes one of all states that differ by the names of replicas only; a trace
    /// reads better without.
    ///
    /// # Panics
    /// When no model of so many replicas and terms is compiled in.
    pub fn explore(&self, states_max: u64, fold: bool) -> Outcome {
        sized!(self, explore_sized, (states_max, fold))
    }

    /// Walks at random for at most `steps_max` steps.
    ///
    /// # Panics
    /// As [`Run::explore`].
    pub fn hunt(&self, seed: u64, steps_max: u64) -> Hunt {
        sized!(self, hunt_sized, (seed, steps_max))
    }

    fn explore_sized<const N: usize, const T: usize>(&self, states_max: u64, fold: bool) -> Outcome {
        explore(&self.checked::<N, T>(fold), self.search, states_max)
    }

    fn hunt_sized<const N: usize, const T: usize>(&self, seed: u64, steps_max: u64) -> Hunt {
        hunt(&self.checked::<N, T>(false), seed, steps_max)
    }

    fn checked<const N: usize, const T: usize>(&self, fold: bool) -> Checked<N, T> {
        let Run { protocol, stage, inner, recovery, .. } = self.clone();
        Checked { protocol, stage, inner, recovery, symmetry: fold }
    }
}

fn protocol(rule: Rule, max_term: u8, max_proposals: u8) -> Protocol {
    Protocol {
        rule,
        mistake: None,
        voters: 0b111,
        max_term,
        max_proposals,
        max_changes: 0,
        eager: true,
        split: false,
    }
}

fn sound(name: &str, replicas: usize, protocol: Protocol) -> Run {
    Run {
        name: name.to_owned(),
        replicas,
        protocol,
        stage: Vec::new(),
        inner: true,
        recovery: true,
        search: Search::DepthFirst,
        cheap: false,
    }
}

/// Runs that must find nothing.
pub fn sound_runs() -> Vec<Run> {
    let log_term = |terms, proposals| protocol(Rule::LogTerm, terms, proposals);
    let no_op = |terms, proposals| protocol(Rule::NoOp, terms, proposals);
    vec![
        sound("log-term-3x3x3", 3, log_term(3, 3)),
        sound("log-term-3x4x2", 3, log_term(4, 2)),
        sound("log-term-3x4x3", 3, log_term(4, 3)),
        sound("log-term-3x5x2", 3, log_term(5, 2)),
        sound("log-term-3x2x2-lazy", 3, Protocol { eager: false, split: true, ..log_term(2, 2) }),
        sound("log-term-3x3x1-lazy", 3, Protocol { eager: false, split: true, ..log_term(3, 1) }),
        sound("log-term-3x3x3-split", 3, Protocol { split: true, ..log_term(3, 3) }),
        sound("log-term-5x3x1", 5, Protocol { voters: 0b11111, ..log_term(3, 1) }),
        sound("log-term-5x2x2", 5, Protocol { voters: 0b11111, ..log_term(2, 2) }),
        sound("log-term-5x3x2", 5, Protocol { voters: 0b11111, ..log_term(3, 2) }),
        sound("no-op-3x3x3", 3, no_op(3, 3)),
        sound("no-op-3x4x2", 3, no_op(4, 2)),
        sound("members-1-of-3x3x1x2", 3, Protocol { voters: 0b1, max_changes: 2, ..log_term(3, 1) }),
        sound("members-1-of-3x2x2x2", 3, Protocol { voters: 0b1, max_changes: 2, ..log_term(2, 2) }),
        sound("members-2-of-3x3x1x2", 3, Protocol { voters: 0b11, max_changes: 2, ..log_term(3, 1) }),
        sound("members-3-of-3x3x1x2", 3, Protocol { max_changes: 2, ..log_term(3, 1) }),
        sound("members-3-of-4x2x1x2", 4, Protocol { max_changes: 2, ..log_term(2, 1) }),
        sound("members-3-of-4x3x0x2", 4, Protocol { max_changes: 2, ..log_term(3, 0) }),
        sound("members-3-of-4x3x1x1", 4, Protocol { max_changes: 1, ..log_term(3, 1) }),
        sound("members-4-of-5x2x1x2", 5, Protocol { voters: 0b1111, max_changes: 2, ..log_term(2, 1) }),
    ]
}

fn without_recovery(name: &str, protocol: Protocol) -> Run {
    Run { recovery: false, ..sound(name, 3, protocol) }
}

/// Small spaces of every kind, visited whole within seconds.
pub fn short_runs() -> Vec<Run> {
    let log_term = |terms, proposals| protocol(Rule::LogTerm, terms, proposals);
    vec![
        sound("log-term-3x2x2", 3, log_term(2, 2)),
        sound("log-term-3x3x1", 3, log_term(3, 1)),
        without_recovery("log-term-3x2x1-lazy", Protocol { eager: false, split: true, ..log_term(2, 1) }),
        without_recovery("members-1-of-3x2x1x2", Protocol { voters: 0b1, max_changes: 2, ..log_term(2, 1) }),
    ]
}

/// One run for each planted mistake: each must break a promise that a client could notice.
pub fn mistake_runs() -> Vec<Run> {
    use Mistake::*;
    let log_term = |terms, proposals| protocol(Rule::LogTerm, terms, proposals);
    let lazy = |terms, proposals| Protocol { eager: false, ..log_term(terms, proposals) };
    let members = |terms, proposals, changes| Protocol { max_changes: changes, ..log_term(terms, proposals) };
    let planted = [
        (CountWithoutLogTerm, 3, log_term(4, 3)),
        (LogTermOnFirstContact, 3, log_term(4, 3)),
        (SuffixKept, 3, log_term(3, 2)),
        (CompareLastEpoch, 3, log_term(4, 2)),
        (CompareLengthOnly, 3, log_term(4, 3)),
        (LogTermAtCandidacy, 3, log_term(3, 2)),
        (LeaderCountsMemory, 3, log_term(3, 2)),
        (VoteBeforeDurable, 3, lazy(2, 1)),
        (AckBeforeDurable, 3, lazy(2, 1)),
        (LogTermBeforeLog, 3, lazy(3, 1)),
        (LogBeforeTerm, 4, Protocol { voters: 0b1101, split: true, ..lazy(3, 3) }),
        (TruncateToMessageEnd, 3, log_term(3, 1)),
        (StaleAppendTruncates, 3, log_term(3, 2)),
        (NoPrevCheck, 3, log_term(3, 3)),
        (WipedKeepsIdentity, 3, log_term(2, 1)),
        (LeaderResumes, 3, log_term(2, 2)),
        (ExposeBeforeReconciled, 3, log_term(3, 2)),
        (CommitOldTermByCount, 3, protocol(Rule::NoOp, 4, 2)),
        (ChangeWithoutBarrier, 5, Protocol { voters: 0b1111, ..members(3, 1, 2) }),
        (ConfigAdoptedEarly, 4, Protocol { voters: 0b11, ..members(2, 1, 2) }),
        (ConfigLeftBehind, 3, members(2, 1, 1)),
        (OnlyVotersCampaign, 3, Protocol { voters: 0b1, ..members(3, 2, 2) }),
        (VersionNotCompared, 4, members(3, 1, 2)),
        (EndBeforeVersion, 3, members(3, 2, 2)),
        (VersionComparedApart, 4, members(3, 2, 2)),
    ];
    let cheap = [
        SuffixKept,
        LogTermAtCandidacy,
        LeaderCountsMemory,
        VoteBeforeDurable,
        AckBeforeDurable,
        StaleAppendTruncates,
        NoPrevCheck,
        WipedKeepsIdentity,
        LeaderResumes,
        ConfigAdoptedEarly,
        OnlyVotersCampaign,
        ConfigLeftBehind,
        TruncateToMessageEnd,
        LogTermBeforeLog,
        LogBeforeTerm,
        EndBeforeVersion,
    ];
    planted
        .into_iter()
        .map(|(mistake, replicas, protocol)| Run {
            name: format!("{mistake:?}"),
            replicas,
            protocol: Protocol { mistake: Some(mistake), ..protocol },
            stage: stage(mistake),
            inner: false,
            recovery: matches!(mistake, OnlyVotersCampaign | VersionComparedApart),
            search: Search::BreadthFirst,
            cheap: cheap.contains(&mistake),
        })
        .collect()
}
