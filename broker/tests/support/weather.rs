//! What goes wrong around a node while clients work, short of losing its power: the network between it and its clients,
//! the clocks of both, its disk. Each seed has kinds that never come, and some seeds have none at all, so that one fault
//! does not always hide behind another.

use std::time::Duration;

use ringlog_io::Monotonic;
use ringlog_io::sim::{Host, Place, World};

/// A bad spell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spell {
    /// Nothing passes between node and clients.
    Severed,
    /// The node is heard and hears nothing.
    Deaf,
    /// The node hears and is not heard.
    Mute,
    /// The link takes long and carries little.
    SlowLink,
    /// Connections break in the middle of frames.
    Resets,
    /// The wall clock of the node jumps.
    NodeClock,
    /// The wall clock of the clients jumps.
    ClientClock,
    /// The disk does nothing for a while.
    DiskStall,
    /// Some operations of the disk take long.
    SlowDisk,
    /// Some syncs fail, and the next one of the same file tells of success.
    FailedSyncs,
    /// Writes of segments fail.
    SegmentWrites,
    /// Writes of the journal fail.
    JournalWrites,
    /// What is written to files that can be made anew from others is gone after a power cut.
    LostCopies,
    /// Reads fail.
    Reads,
    /// The disk is full, and has room again later.
    FullDisk,
}

impl Spell {
    pub const ALL: [Spell; 15] = [
        Spell::Severed,
        Spell::Deaf,
        Spell::Mute,
        Spell::SlowLink,
        Spell::Resets,
        Spell::NodeClock,
        Spell::ClientClock,
        Spell::DiskStall,
        Spell::SlowDisk,
        Spell::FailedSyncs,
        Spell::SegmentWrites,
        Spell::JournalWrites,
        Spell::LostCopies,
        Spell::Reads,
        Spell::FullDisk,
    ];

    /// Whether the node may say meanwhile that its storage fails.
    pub fn is_of_disk(self) -> bool {
        self.may_poison()
            || matches!(self, Spell::DiskStall | Spell::SlowDisk | Spell::Reads | Spell::FullDisk)
    }

    /// Whether the node may refuse what it otherwise serves until it is started again.
    pub fn may_poison(self) -> bool {
        matches!(self, Spell::FailedSyncs | Spell::SegmentWrites | Spell::JournalWrites)
    }
}

/// The spells of one seed.
#[derive(Clone, Debug)]
pub struct Weather {
    kinds: Vec<Spell>,
    /// By how much each wall clock is wrong, in milliseconds: the node's, the clients'.
    clocks_ms: [i64; 2],
}

/// Clocks are wrong by less than this; the broker refuses records that are from more than an hour ahead.
const CLOCK_ERROR_MS_MAX: i64 = 25 * 60_000;

impl Weather {
    /// Each kind comes in every second seed; a quarter of the seeds has none.
    pub fn new(world: &World) -> Weather {
        let (chosen, is_fair) = (world.random_u64(), world.random_u64().is_multiple_of(4));
        let kinds = Spell::ALL.iter().enumerate().filter(|(number, _)| !is_fair && chosen >> number & 1 == 1);
        Weather { kinds: kinds.map(|(_, spell)| *spell).collect(), clocks_ms: [0; 2] }
    }

    /// Fair weather for ever.
    pub fn fair() -> Weather {
        Weather { kinds: Vec::new(), clocks_ms: [0; 2] }
    }

    /// What comes next, if anything.
    pub fn draw(&self, world: &World) -> Option<Spell> {
        let count = self.kinds.len() as u64;
        if count == 0 || world.random_u64().is_multiple_of(3) {
            return None;
        }
        self.kinds.get((world.random_u64() % count) as usize).copied()
    }

    /// Begins a spell, of which [`end`] is the end.
    pub fn begin(&mut self, spell: Spell, world: &World, node: &Host, clients: &Host) {
        let disk = node.disk();
        let below = |bound: u64| world.random_u64() % bound;
        match spell {
            Spell::Severed => {
                world.sever(clients, node);
                world.sever(node, clients);
            }
            Spell::Deaf => world.sever(clients, node),
            Spell::Mute => world.sever(node, clients),
            Spell::SlowLink => {
                for (from, to) in [(clients, node), (node, clients)] {
                    let latency_max = Duration::from_micros(100 + below(30_000));
                    world.slow_down(from, to, latency_max, 4_000 << below(10));
                }
            }
            Spell::Resets => {
                world.break_connections(clients, node, 1 + below(3), 1 << below(14));
            }
            Spell::NodeClock => self.set_clock(0, node, world),
            Spell::ClientClock => self.set_clock(1, clients, world),
            Spell::DiskStall => disk.stall(Duration::from_millis(1 + below(3_000))),
            Spell::SlowDisk => disk.slow_down(1 + below(50), Duration::from_millis(1 + below(200))),
            Spell::FailedSyncs => disk.fail_syncs(1 + below(20)),
            Spell::SegmentWrites => {
                disk.fail_writes(Place::in_files(".log").one_of(1 + below(4)).times(1 + below(3)))
            }
            Spell::JournalWrites => disk.fail_writes(Place::in_files("/journal/").one_of(20).times(1)),
            Spell::LostCopies => {
                let copies = [".sum", "/checkpoints/"][below(2) as usize];
                disk.lose_writes(Place::in_files(copies).one_of(1 + below(2)));
            }
            Spell::Reads => disk.fail_reads(Place::in_files(".log").one_of(1 + below(8))),
            Spell::FullDisk => {
                let used = disk.used_bytes();
                // The reserve is a twentieth of the disk.
                disk.set_capacity_bytes(used + used / 18 + below(1 << 19));
            }
        }
    }

    fn set_clock(&mut self, which: usize, host: &Host, world: &World) {
        let span = 2 * CLOCK_ERROR_MS_MAX as u64;
        let target = (world.random_u64() % span) as i64 - CLOCK_ERROR_MS_MAX;
        host.jump_wall_clock(target - self.clocks_ms[which]);
        self.clocks_ms[which] = target;
    }
}

/// Ends a spell; answers from when on nothing of it is on its way any more. A clock stays as it is, and so does what the
/// node made of a fault.
pub fn end(spell: Spell, world: &World, node: &Host, clients: &Host) -> Monotonic {
    match spell {
        Spell::Severed | Spell::Deaf | Spell::Mute | Spell::SlowLink => return world.mend(clients, node),
        Spell::Resets | Spell::NodeClock | Spell::ClientClock => {}
        Spell::FullDisk => node.disk().set_capacity_bytes(CAPACITY_BYTES),
        _ => node.disk().heal(),
    }
    world.now()
}

/// More than a run ever writes.
const CAPACITY_BYTES: u64 = 1 << 40;
