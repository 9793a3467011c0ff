//! The hunter: random walks from the start, each property asked of every state on the way. It proves nothing, and finds what needs many
//! steps long before a search that visits every state on the way there.

use std::mem::discriminant;

use crate::explore::{Expectation, Model, fingerprint};

/// Steps of one walk: more than any mistake needs; walks end by themselves where nothing more can happen.
const WALK_STEPS_MAX: u32 = 400;

/// What the walks met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hunt {
    /// Taken in all walks, of states that may have been met before.
    pub steps: u64,
    pub walks: u64,
    /// The first property that did not hold, if any.
    pub broken: Option<&'static str>,
    /// One line a step from the start to the broken property.
    pub trace: Vec<String>,
}

/// Walks until a property that must always hold does not, or for `steps_max` steps. One seed is one hunt.
pub fn hunt<M: Model>(model: &M, seed: u64, steps_max: u64) -> Hunt {
    let mut properties = model.properties();
    properties.retain(|property| property.expectation == Expectation::Always);
    let start = model.start();
    let mut random = seed;
    let (mut steps, mut walks) = (0, 0);
    let (mut actions, mut taken) = (Vec::new(), Vec::new());
    while steps < steps_max {
        walks += 1;
        let mut state = start.clone();
        taken.clear();
        let habit = mixed(&mut random);
        for _ in 0..WALK_STEPS_MAX {
            actions.clear();
            model.actions(&state, &mut actions);
            let Some(action) = choose(&actions, habit, mixed(&mut random)) else { break };
            taken.push(action);
            state = model.next(&state, action);
            steps += 1;
            if let Some(broken) = properties.iter().find(|property| !(property.holds)(model, &state)) {
                return Hunt { steps, walks, broken: Some(broken.name), trace: trace(model, &taken) };
            }
        }
    }
    Hunt { steps, walks, broken: None, trace: Vec::new() }
}

/// One of the actions. Each walk has habits of its own: it prefers some kinds of action to others by up to a hundredfold, since what
/// breaks a rule is often one thing done again and again while another is left undone (swarm testing).
fn choose<A: Copy>(actions: &[A], habit: u64, random: u64) -> Option<A> {
    let weight = |action: &A| 1_u64 << ((habit ^ fingerprint(&discriminant(action))).count_ones() % 8);
    let sum = actions.iter().map(weight).sum::<u64>();
    let mut left = random.checked_rem(sum)?;
    actions.iter().copied().find(|action| {
        let weight = weight(action);
        let is_it = left < weight;
        left = left.saturating_sub(weight);
        is_it
    })
}

fn trace<M: Model>(model: &M, taken: &[M::Action]) -> Vec<String> {
    let mut state = model.start();
    let mut lines = vec![format!("start: {state:?}")];
    for action in taken {
        state = model.next(&state, *action);
        lines.push(format!("{action:?}: {state:?}"));
    }
    lines
}

/// splitmix64.
fn mixed(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
