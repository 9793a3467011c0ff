//! When the power goes in each life of a node, and what the disk then keeps. Values only, all drawn from a number.

use ringlog_io::sim::UnsyncedData;

/// Where a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// After so many changes of the disk in this life, see `HostDisk::changes`; earlier if its work is done.
    pub changes: u64,
    /// And so many events more: an answer may be on its way or have arrived.
    pub events: u64,
}

/// One life: a start, work, a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub cores: u32,
    pub cut: Cut,
    pub unsynced: UnsyncedData,
    /// Numbers that the world draws before the cut: another subset of what was unsynced.
    pub subset: u64,
    /// One of so many syncs fails once the node serves; 0 = none.
    pub failing_syncs: u64,
}

/// The whole life of a disk, up to the last cut. Then it is opened twice more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub seed: u64,
    pub lives: Vec<Life>,
    /// Cores of the last two starts.
    pub cores_last: [u32; 2],
}

/// Steps of work in one life.
pub const STEPS: u64 = 60;
/// Changes of the disk within which nearly every start, and nearly every life, is over.
const CHANGES_OF_START: u64 = 40;
const CHANGES_OF_LIFE: u64 = 250;

impl Script {
    /// The script of a crash seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut choices = Choices(seed ^ 0x6372_6173_6865_7321);
        let count = 1 + choices.below(3);
        let lives = (0..count).map(|_| Life::draw(&mut choices)).collect();
        Self { seed, lives, cores_last: [1, 1].map(|first| first + choices.below(3) as u32) }
    }
}

impl Life {
    fn draw(choices: &mut Choices) -> Self {
        let bound = if choices.below(3) == 0 { CHANGES_OF_START } else { CHANGES_OF_LIFE };
        let changes = choices.below(bound);
        let events = if choices.below(2) == 0 { 0 } else { choices.below(12) };
        let unsynced = match choices.below(6) {
            0 => UnsyncedData::Kept,
            1 => UnsyncedData::Lost,
            2 => UnsyncedData::RandomSubset { torn: false },
            _ => UnsyncedData::RandomSubset { torn: true },
        };
        let cores = 1 + choices.below(3) as u32;
        let failing_syncs = if choices.below(8) == 0 { 4 + choices.below(20) } else { 0 };
        Self { cores, cut: Cut { changes, events }, unsynced, subset: 0, failing_syncs }
    }
}

/// Numbers that follow from a seed (splitmix64).
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }
}
