//! The protocol as a transition system, and what must hold in every state of it.

use crate::explore::{Expectation, Model, Property};
use crate::log::{Log, NO_OP};
use crate::protocol::{Action, Mistake, Protocol, Rule, majority};
use crate::state::{Config, Fault, NOBODY, Role, State};

/// `N` replicas; terms 1 to `T - 1` are explored, term `T` is kept for the recovery check.
#[derive(Clone)]
pub struct Checked<const N: usize, const T: usize> {
    pub protocol: Protocol,
    /// Steps taken before the search begins.
    pub stage: Vec<Action>,
    /// Also check what lies inside (log matching and so on). Off, only what a client could notice counts.
    pub inner: bool,
    /// Also check that every majority can recover from every state.
    pub recovery: bool,
    /// Fold states that differ by the replicas' names only. Off for readable traces.
    pub symmetry: bool,
}

impl<const N: usize, const T: usize> Model for Checked<N, T> {
    type State = State<N, T>;
    type Action = Action;

    fn start(&self) -> Self::State {
        assert!(usize::from(self.protocol.max_term) < T, "a term is kept for the recovery check");
        // The stage names replicas, so nothing is folded on the way.
        let unfolded = Checked { symmetry: false, ..self.clone() };
        let mut actions = Vec::new();
        self.stage.iter().fold(State::new(self.protocol.voters), |state, step| {
            actions.clear();
            unfolded.actions(&state, &mut actions);
            assert!(actions.contains(step), "{step:?} cannot happen in {state:?}");
            unfolded.next(&state, *step)
        })
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Action>) {
        if state.faults != 0 {
            return;
        }
        let protocol = &self.protocol;
        for replica in 0..N {
            self.leading(state, replica, actions);
            let me = &state.replicas[replica];
            if me.role != Role::Leader
                && protocol.may_campaign(&me.mem, replica)
                && me.mem.term < protocol.max_term
            {
                actions.push(Action::TimeOut { replica });
            }
            if protocol.can_win(state, replica) {
                actions.push(Action::Win { replica });
            }
            if me.mem != me.disk {
                actions.push(Action::Persist { replica });
                if protocol.can_persist_log_only(state, replica) {
                    actions.push(Action::PersistLogOnly { replica });
                }
                if protocol.mistake == Some(Mistake::LogTermBeforeLog) && me.mem.log != me.disk.log {
                    actions.push(Action::PersistLogTermOnly { replica });
                }
            }
            if me.mem != me.disk || me.role != Role::Follower {
                actions.push(Action::Crash { replica });
            }
            if protocol.mistake == Some(Mistake::WipedKeepsIdentity) && state.wipes == 0 {
                actions.push(Action::Wipe { replica });
            }
            for term in me.mem.term.max(1)..=protocol.max_term {
                self.deliveries(state, replica, term, actions);
            }
        }
    }

    fn next(&self, last: &Self::State, action: Action) -> Self::State {
        let protocol = &self.protocol;
        let mut state = last.clone();
        match action {
            Action::TimeOut { replica } => {
                protocol.time_out(&mut state, replica, last.replicas[replica].mem.term + 1);
                self.settle(&mut state, replica);
            }
            Action::VoteRequest { replica, term, candidate } => {
                protocol.vote_request(&mut state, replica, term, candidate);
                self.settle(&mut state, replica);
            }
            Action::Append { replica, term, prev, end, configs } => {
                protocol.append(&mut state, replica, term, prev, end, configs);
                self.settle(&mut state, replica);
            }
            Action::Win { replica } => protocol.win(&mut state, replica),
            Action::Propose { replica } => protocol.propose(&mut state, replica),
            Action::Change { replica, voters } => protocol.change(&mut state, replica, voters),
            Action::Persist { replica } => protocol.persist(&mut state, replica),
            Action::PersistLogOnly { replica } => protocol.persist_log_only(&mut state, replica),
            Action::PersistLogTermOnly { replica } => protocol.persist_log_term_only(&mut state, replica),
            Action::Crash { replica } => protocol.crash(&mut state, replica),
            Action::Wipe { replica } => protocol.wipe(&mut state, replica),
        }
        if !self.inner {
            // Nobody asks for it, and a fault ends the way on which a client would notice what it leads to.
            state.forgive(Fault::CommittedTruncated);
        }
        if self.protocol.mistake.is_none() {
            state.forget();
        }
        if self.symmetry { state.canonical() } else { state }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties: Vec<Property<Self>> = vec![
            always::<Self>("one leader a term", |_, s| !s.has(Fault::ElectionSafety)),
            always::<Self>("a leader holds what was committed before its term", |_, s| {
                !s.has(Fault::LeaderCompleteness)
            }),
            always::<Self>("what is committed never changes", |_, s| !s.has(Fault::StateMachineSafety)),
            always::<Self>("only what is committed is shown", |_, s| !s.has(Fault::ExposedUncommitted)),
            always::<Self>("leaders only append", |_, s| !s.has(Fault::Rewritten)),
            sometimes::<Self>("something commits", |_, s| !s.committed.is_empty()),
            sometimes::<Self>("an older term's record commits", |_, s| {
                s.committed_in.items().zip(s.committed.items()).any(|(term, item)| item & !NO_OP < term)
            }),
        ];
        if self.protocol.max_proposals == 0 {
            properties.retain(|property| property.expectation == Expectation::Always);
        }
        if self.inner {
            properties.extend([
                always::<Self>("what is committed is never truncated", |_, s| {
                    !s.has(Fault::CommittedTruncated)
                }),
                always::<Self>("an equal record has an equal past", |_, s| log_matching(s)),
                always::<Self>("terms and epochs are in order", |m, s| in_order(&m.protocol, s)),
                always::<Self>("no two configurations rule at once", |_, s| one_configuration_rules(s)),
            ]);
            if self.protocol.max_changes == 0 {
                properties
                    .push(always::<Self>("a majority of disks holds what is committed", |_, s| durable(s)));
            } else {
                properties.push(sometimes::<Self>("every change is made", |m, s| {
                    s.changes == m.protocol.max_changes
                }));
            }
            if self.protocol.rule == Rule::LogTerm {
                properties
                    .push(always::<Self>("no consumer is told of a truncation that was none", |_, s| {
                        consumers_go_on(s)
                    }));
            }
        }
        if self.recovery {
            properties.push(always::<Self>("every majority recovers", |m, s| m.recovers(s)));
        }
        properties
    }
}

impl<const N: usize, const T: usize> Checked<N, T> {
    fn leading(&self, state: &State<N, T>, replica: usize, actions: &mut Vec<Action>) {
        let (protocol, me) = (&self.protocol, &state.replicas[replica]);
        if me.role != Role::Leader {
            return;
        }
        if state.proposals < protocol.max_proposals {
            actions.push(Action::Propose { replica });
        }
        if state.changes < protocol.max_changes && protocol.can_change(state, replica) {
            let others = (0..N).map(|other| me.mem.config.voters ^ 1 << other).filter(|voters| *voters != 0);
            actions.extend(others.map(|voters| Action::Change { replica, voters }));
        }
    }

    /// Followers and candidates may make each step durable at once; a leader's memory runs ahead.
    fn settle(&self, state: &mut State<N, T>, replica: usize) {
        if self.protocol.eager {
            self.protocol.persist(state, replica);
        } else {
            self.protocol.emit(state, replica);
        }
    }

    fn deliveries(&self, state: &State<N, T>, replica: usize, term: u8, actions: &mut Vec<Action>) {
        let me = &state.replicas[replica];
        let messages = state.term(term);
        for candidate in 0..N {
            let news = term > me.mem.term || me.mem.vote == NOBODY;
            if candidate != replica && news && messages.requests[candidate].is_some() {
                actions.push(Action::VoteRequest { replica, term, candidate });
            }
        }
        let lead = &messages.lead;
        if lead.id == NOBODY || usize::from(lead.id) == replica {
            return;
        }
        for configs in 1..=lead.config_count {
            // A message sent before a change cannot hold records from after it.
            let sent_by = match lead.configs.get(usize::from(configs)) {
                Some(next)
                    if configs < lead.config_count
                        && self.protocol.mistake != Some(Mistake::ConfigLeftBehind) =>
                {
                    next.position
                }
                _ => lead.log.len(),
            };
            let length = me.mem.log.len();
            let bare = |prev, end| Action::Append { replica, term, prev, end, configs };
            if self.protocol.reconciled(&me.mem, term) {
                // Nothing but the log end and the configuration can change.
                let news = if configs > 1 { length } else { length + 1 };
                actions.extend((news..=sent_by).map(|end| bare(length, end)));
                continue;
            }
            let mut refused = term == me.mem.term && me.role == Role::Follower;
            for prev in 0..=sent_by.min(length) {
                if self.protocol.fits(&me.mem.log, &lead.log, prev) {
                    actions.extend((prev..=sent_by).map(|end| bare(prev, end)));
                } else if !refused {
                    // Whatever is refused, only its term is noticed: one such message stands for all.
                    refused = true;
                    actions.push(bare(prev, prev));
                }
            }
        }
    }

    /// All crash and come back; then each set that holds a majority of every configuration in sight must
    /// hold one replica that can be elected by it, bring the others up to date and commit all it has.
    fn recovers(&self, state: &State<N, T>) -> bool {
        state.faults != 0
            || (1..1u8 << N).all(|alive| {
                let rules = |r: usize| majority(alive, state.replicas[r].disk.config.voters);
                !(0..N).all(rules)
                    || (0..N).any(|leader| alive >> leader & 1 == 1 && self.leads(state, alive, leader))
            })
    }

    fn leads(&self, state: &State<N, T>, alive: u8, leader: usize) -> bool {
        let protocol = &self.protocol;
        let term = T as u8;
        let mut state = state.clone();
        for replica in 0..N {
            protocol.crash(&mut state, replica);
        }
        if !protocol.may_campaign(&state.replicas[leader].mem, leader) {
            return false;
        }
        let others = || (0..N).filter(move |&r| r != leader && alive >> r & 1 == 1);
        protocol.time_out(&mut state, leader, term);
        protocol.persist(&mut state, leader);
        for replica in others() {
            protocol.vote_request(&mut state, replica, term, leader);
            protocol.persist(&mut state, replica);
        }
        if !protocol.can_win(&state, leader) {
            return false;
        }
        protocol.win(&mut state, leader);
        protocol.persist(&mut state, leader);
        let end = state.term(term).lead.log.len();
        for replica in others() {
            let length = state.replicas[replica].mem.log.len().min(end);
            let found =
                (0..=length).rev().any(|prev| protocol.append(&mut state, replica, term, prev, end, 1));
            if !found {
                return false;
            }
            protocol.persist(&mut state, replica);
        }
        state.faults == 0 && state.term(term).lead.commit == end
    }
}

fn always<M: Model>(name: &'static str, holds: fn(&M, &M::State) -> bool) -> Property<M> {
    Property { name, expectation: Expectation::Always, holds }
}

fn sometimes<M: Model>(name: &'static str, holds: fn(&M, &M::State) -> bool) -> Property<M> {
    Property { name, expectation: Expectation::Sometimes, holds }
}

fn log_matching<const N: usize, const T: usize>(state: &State<N, T>) -> bool {
    let disks = state.replicas.iter().map(|replica| replica.disk.log);
    let memories = state.replicas.iter().map(|replica| replica.mem.log);
    let leaders = state.terms.iter().map(|term| term.lead.log);
    let mut logs: Vec<Log> = disks.chain(memories).chain(leaders).filter(|log| log.len() > 1).collect();
    logs.sort_unstable();
    logs.dedup();
    logs.iter().enumerate().all(|(n, log)| logs[n + 1..].iter().all(|other| log.matches(*other)))
}

fn in_order<const N: usize, const T: usize>(protocol: &Protocol, state: &State<N, T>) -> bool {
    state.replicas.iter().flat_map(|replica| [&replica.disk, &replica.mem]).all(|hard| {
        let epochs = hard.log.items().map(|item| item & !NO_OP);
        let log_term = protocol.rule == Rule::NoOp || hard.log_term <= hard.term;
        log_term && epochs.is_sorted() && hard.log.last_epoch() <= hard.term
    })
}

/// Two majorities, each of a configuration of its own, would be two groups that decide apart.
fn one_configuration_rules<const N: usize, const T: usize>(state: &State<N, T>) -> bool {
    let rules = |config: Config| {
        let holds = |r: &usize| state.replicas[*r].disk.config == config;
        majority((0..N).filter(holds).fold(0, |set, r| set | 1 << r), config.voters)
    };
    let mut ruling = state.replicas.iter().map(|replica| replica.disk.config).filter(|config| rules(*config));
    let first = ruling.next();
    ruling.all(|config| Some(config) == first)
}

fn durable<const N: usize, const T: usize>(state: &State<N, T>) -> bool {
    let length = state.committed.len();
    let holds = |r: &usize| state.replicas[*r].disk.log.common(state.committed) == length;
    majority((0..N).filter(holds).fold(0, |set, r| set | 1 << r), (1 << N) - 1)
}

/// A consumer at a committed position asks a newer leader where the position's epoch ends
/// (OffsetForLeaderEpoch). An answer below the position would make it believe that data was lost.
fn consumers_go_on<const N: usize, const T: usize>(state: &State<N, T>) -> bool {
    state.replicas.iter().filter(|replica| replica.role == Role::Leader).all(|leader| {
        let term = leader.mem.term;
        let log = leader.mem.log;
        let start = state.term(term).lead.start;
        (0..state.committed.len()).filter(|&place| state.committed_in.item(place) < term).all(|place| {
            (state.committed.item(place)..=term).all(|epoch| end_offset_for(log, term, start, epoch) > place)
        })
    })
}

/// The answer: the start of the first epoch above the one asked for, the leader's own (maybe still
/// empty) epoch included, else the log end.
fn end_offset_for(log: Log, term: u8, start: u8, epoch: u8) -> u8 {
    if epoch >= term {
        return log.len();
    }
    (0..log.len()).find(|&place| log.item(place) > epoch).unwrap_or(start)
}
