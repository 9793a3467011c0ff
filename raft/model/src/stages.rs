//! Where a search begins: an ordinary course of events, after which a planted mistake can do harm within a few steps.
//!
//! A search from the very beginning visits every other course of the same length too, so that what needs thirty steps is out of its
//! reach. A stage takes the steps that are beside the point. It holds no mistake: the sound rule goes the same way
//! (`no_stage_holds_a_mistake` below).

use crate::protocol::{Action, Mistake};

/// The steps that lead to the stage of a mistake; none for one that is found from the beginning.
pub fn stage(mistake: Mistake) -> Vec<Action> {
    match mistake {
        Mistake::TruncateToMessageEnd => committed_by_two(),
        Mistake::LogTermBeforeLog => committed_before_two_terms(),
        Mistake::LogBeforeTerm => two_histories(),
        Mistake::EndBeforeVersion => shrunk_to_one(),
        _ => Vec::new(),
    }
}

fn time_out(replica: usize) -> Action {
    Action::TimeOut { replica }
}

fn vote(replica: usize, term: u8, candidate: usize) -> Action {
    Action::VoteRequest { replica, term, candidate }
}

fn win(replica: usize) -> Action {
    Action::Win { replica }
}

fn persist(replica: usize) -> Action {
    Action::Persist { replica }
}

fn propose(replica: usize) -> Action {
    Action::Propose { replica }
}

fn append(replica: usize, term: u8, prev: u8, end: u8, configs: u8) -> Action {
    Action::Append { replica, term, prev, end, configs }
}

/// Replica 2 followed the leader 0 while its log was empty; then 0 and 1 committed a record.
fn committed_by_two() -> Vec<Action> {
    vec![
        time_out(0),
        vote(1, 1, 0),
        win(0),
        persist(0),
        append(2, 1, 0, 0, 1),
        propose(0),
        append(1, 1, 0, 1, 1),
        persist(0),
    ]
}

/// Replicas 0 and 1 committed a record in term 1, and 0 leads term 2. Replica 2 heard of neither term.
fn committed_before_two_terms() -> Vec<Action> {
    vec![
        time_out(0),
        persist(0),
        vote(1, 1, 0),
        persist(1),
        win(0),
        propose(0),
        append(1, 1, 0, 1, 1),
        persist(1),
        persist(0),
        Action::Crash { replica: 0 },
        time_out(0),
        persist(0),
        vote(1, 2, 0),
        persist(1),
        win(0),
    ]
}

/// Replica 1 is fed by voters 0, 2 and 3 and has no vote, and its empty log is that of term 1. Replica 0 wrote two records in term 1, which 2
/// and 3 did not see: 2 led term 2 and wrote another one in their place. None of them was committed until 0 led term 3 and
/// made the log of 3 equal to its own.
fn two_histories() -> Vec<Action> {
    vec![
        time_out(0),
        persist(0),
        vote(3, 1, 0),
        persist(3),
        win(0),
        append(1, 1, 0, 0, 1),
        persist(1),
        propose(0),
        propose(0),
        persist(0),
        // Term 2.
        time_out(2),
        time_out(2),
        persist(2),
        vote(3, 2, 2),
        persist(3),
        win(2),
        propose(2),
        // Term 3.
        Action::Crash { replica: 0 },
        time_out(0),
        time_out(0),
        persist(0),
        vote(3, 3, 0),
        persist(3),
        win(0),
        persist(0),
        append(3, 3, 0, 2, 1),
        persist(3),
    ]
}

/// The leader 0 of three took 2 out, then 1, and committed two records by itself. The log of 1 knows the first change and no record,
/// that of 2 neither.
fn shrunk_to_one() -> Vec<Action> {
    vec![
        time_out(0),
        vote(1, 1, 0),
        win(0),
        persist(0),
        append(1, 1, 0, 0, 1),
        append(2, 1, 0, 0, 1),
        Action::Change { replica: 0, voters: 0b011 },
        persist(0),
        append(1, 1, 0, 0, 2),
        Action::Change { replica: 0, voters: 0b001 },
        persist(0),
        propose(0),
        propose(0),
        persist(0),
    ]
}

#[cfg(test)]
mod tests {
    use crate::explore::Model;
    use crate::log::Log;
    use crate::properties::Checked;
    use crate::protocol::Protocol;
    use crate::runs::mistake_runs;

    fn begin<const N: usize, const T: usize>(protocol: Protocol, stage: Vec<super::Action>) -> Log {
        let checked = Checked::<N, T> { protocol, stage, inner: false, recovery: true, symmetry: false };
        let state = checked.start();
        for property in checked.properties() {
            let holds = (property.holds)(&checked, &state);
            assert!(
                holds || property.expectation == crate::explore::Expectation::Sometimes,
                "{}",
                property.name
            );
        }
        state.committed
    }

    #[test]
    fn no_stage_holds_a_mistake() {
        let runs = mistake_runs();
        let staged: Vec<_> = runs.iter().filter(|run| !run.stage.is_empty()).collect();
        assert_eq!(staged.len(), 4);
        for run in staged {
            let sound = Protocol { mistake: None, ..run.protocol.clone() };
            // A step that cannot be taken is a panic.
            let committed = match run.replicas {
                3 => begin::<3, 4>(sound, run.stage.clone()),
                _ => begin::<4, 4>(sound, run.stage.clone()),
            };
            assert!(!committed.is_empty(), "{}: nothing could be lost", run.name);
        }
    }
}
