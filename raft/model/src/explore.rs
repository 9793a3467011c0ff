//! The checker: visits every reachable state once and asks each property of it. Knows nothing of consensus.

#![allow(
    clippy::disallowed_types,
    reason = "members are asked for, never iterated: the order reaches nothing"
)]

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What is asked of a state.
pub struct Property<M: Model + ?Sized> {
    pub name: &'static str,
    pub expectation: Expectation,
    pub holds: fn(&M, &M::State) -> bool,
}

/// How often a property must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expectation {
    /// In every state.
    Always,
    /// In at least one: a run in which it never does proves little.
    Sometimes,
}

/// A transition system with finitely many states.
pub trait Model {
    type State: Clone + Hash + Debug;
    type Action: Copy + Debug;

    fn start(&self) -> Self::State;
    /// Appends everything that can happen in `state`.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    fn next(&self, state: &Self::State, action: Self::Action) -> Self::State;
    fn properties(&self) -> Vec<Property<Self>>;
}

/// In which order states are visited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// Keeps few states in memory.
    DepthFirst,
    /// Finds a shortest way to a broken property, and remembers how it came there.
    BreadthFirst,
}

/// What was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Distinct states visited.
    pub states: u64,
    /// Longest way that was taken to a state.
    pub depth: u32,
    /// The whole space within the bounds was visited.
    pub complete: bool,
    /// The first property that did not hold, if any.
    pub broken: Option<&'static str>,
    /// One line a step from the start to the broken property. Empty where none broke or the search was depth first.
    pub trace: Vec<String>,
    /// Properties that should hold somewhere and did nowhere.
    pub never: Vec<&'static str>,
}

/// Visits the states of `model`, at most `states_max` of them.
///
/// A state is remembered by 64 bits of hash: two states with one hash are taken for one. With 10^8 states one pair is
/// overlooked with a probability of 3 in 10,000.
pub fn explore<M: Model>(model: &M, search: Search, states_max: u64) -> Outcome {
    Explorer::new(model, search).run(states_max)
}

struct Explorer<'a, M: Model> {
    model: &'a M,
    search: Search,
    always: Vec<Property<M>>,
    sometimes: Vec<Property<M>>,
    seen: HashSet<u64, BuildHasherDefault<Already>>,
    /// Breadth first only: from which state each was reached.
    parents: HashMap<u64, u64, BuildHasherDefault<Already>>,
    waiting: VecDeque<(M::State, u32)>,
    depth: u32,
    broken: Option<(&'static str, u64)>,
}

impl<'a, M: Model> Explorer<'a, M> {
    fn new(model: &'a M, search: Search) -> Self {
        let (always, sometimes) =
            model.properties().into_iter().partition(|property| property.expectation == Expectation::Always);
        let (seen, parents) = (HashSet::default(), HashMap::default());
        let mut explorer = Explorer {
            model,
            search,
            always,
            sometimes,
            seen,
            parents,
            waiting: VecDeque::new(),
            depth: 0,
            broken: None,
        };
        explorer.visit(model.start(), 0, None);
        explorer
    }

    fn run(mut self, states_max: u64) -> Outcome {
        let mut actions = Vec::new();
        while self.broken.is_none() && (self.seen.len() as u64) < states_max {
            let next = match self.search {
                Search::DepthFirst => self.waiting.pop_back(),
                Search::BreadthFirst => self.waiting.pop_front(),
            };
            let Some((state, depth)) = next else { break };
            actions.clear();
            self.model.actions(&state, &mut actions);
            let from = fingerprint(&state);
            for action in &actions {
                self.visit(self.model.next(&state, *action), depth + 1, Some(from));
            }
        }
        let trace = match self.broken {
            Some((_, last)) if self.search == Search::BreadthFirst => self.trace(last),
            _ => Vec::new(),
        };
        Outcome {
            states: self.seen.len() as u64,
            depth: self.depth,
            complete: self.broken.is_none() && self.waiting.is_empty(),
            broken: self.broken.map(|(name, _)| name),
            trace,
            never: self.sometimes.iter().map(|property| property.name).collect(),
        }
    }

    fn visit(&mut self, state: M::State, depth: u32, from: Option<u64>) {
        let print = fingerprint(&state);
        if !self.seen.insert(print) {
            return;
        }
        if let (Search::BreadthFirst, Some(from)) = (self.search, from) {
            self.parents.insert(print, from);
        }
        self.depth = self.depth.max(depth);
        let model = self.model;
        self.sometimes.retain(|property| !(property.holds)(model, &state));
        if let Some(broken) = self.always.iter().find(|property| !(property.holds)(model, &state)) {
            self.broken.get_or_insert((broken.name, print));
        }
        self.waiting.push_back((state, depth));
    }

    /// Walks again from the start along the fingerprints that lead to `last`.
    fn trace(&self, last: u64) -> Vec<String> {
        let mut prints = vec![last];
        while let Some(parent) = prints.last().and_then(|print| self.parents.get(print)) {
            prints.push(*parent);
        }
        let mut state = self.model.start();
        let mut lines = vec![format!("start: {state:?}")];
        let mut actions = Vec::new();
        for print in prints.iter().rev().skip(1) {
            actions.clear();
            self.model.actions(&state, &mut actions);
            let step =
                actions.iter().find(|action| fingerprint(&self.model.next(&state, **action)) == *print);
            let action = *step.expect("each state on the way was reached by an action of the one before");
            state = self.model.next(&state, action);
            lines.push(format!("{action:?}: {state:?}"));
        }
        lines
    }
}

/// Fixed seeds: one model, one order, one count.
pub(crate) fn fingerprint<S: Hash>(state: &S) -> u64 {
    ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(state)
}

/// The keys are hashes already.
#[derive(Default)]
struct Already(u64);

impl Hasher for Already {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }

    fn write_u64(&mut self, print: u64) {
        self.0 = print;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that may add 1 or double, up to 20.
    struct Counter;

    impl Model for Counter {
        type State = u32;
        type Action = u32;

        fn start(&self) -> u32 {
            1
        }

        fn actions(&self, state: &u32, actions: &mut Vec<u32>) {
            actions.extend([state + 1, state * 2].into_iter().filter(|next| *next <= 20));
        }

        fn next(&self, _: &u32, action: u32) -> u32 {
            action
        }

        fn properties(&self) -> Vec<Property<Self>> {
            use Expectation::{Always, Sometimes};
            vec![
                Property { name: "below 17", expectation: Always, holds: |_, state| *state < 17 },
                Property { name: "reaches 5", expectation: Sometimes, holds: |_, state| *state == 5 },
                Property { name: "reaches 99", expectation: Sometimes, holds: |_, state| *state == 99 },
            ]
        }
    }

    #[test]
    fn a_shortest_way_to_the_broken_property_is_told() {
        let outcome = explore(&Counter, Search::BreadthFirst, u64::MAX);
        assert_eq!(outcome.broken, Some("below 17"));
        let way = ["start: 1", "2: 2", "4: 4", "5: 5", "10: 10", "20: 20"];
        assert_eq!(outcome.trace, way);
        assert_eq!(outcome.never, ["reaches 99"]);
        assert!(!outcome.complete);
    }

    #[test]
    fn both_orders_see_the_same_and_the_bound_is_kept() {
        let deep = explore(&Counter, Search::DepthFirst, u64::MAX);
        assert_eq!(deep.broken, Some("below 17"));
        assert!(deep.trace.is_empty());
        assert!(explore(&Counter, Search::DepthFirst, 3).states <= 4);
    }
}
