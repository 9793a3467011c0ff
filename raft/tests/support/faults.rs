//! What may go wrong in a run. Each seed draws its own mixture, with whole kinds switched off: faults that hide one another meet
//! alone too (swarm testing).

use super::random::Random;

/// Virtual times are milliseconds.
#[derive(Clone, Debug)]
pub struct Faults {
    pub voters: usize,
    /// Nodes that begin outside the group and may be taken in.
    pub spares: usize,
    pub copies_min: usize,
    pub quiesce: bool,
    /// Per mille of messages.
    pub loss: u64,
    pub duplication: u64,
    pub delay_ms_max: u64,
    /// Per mille of messages that take ten times as long.
    pub late: u64,
    pub write_ms_max: u64,
    /// Per mille, at each step of the chaos.
    pub crash: u64,
    pub lost_disk: u64,
    pub stall: u64,
    pub write_failure: u64,
    pub cut: u64,
    pub heal: u64,
    pub membership: u64,
    pub transfer: u64,
    pub retire: u64,
    pub pause: u64,
    /// Per mille of reads and copies.
    pub read_failure: u64,
    /// Most per mille by which a clock runs fast or slow.
    pub drift: u64,
    pub proposals: u64,
    pub barriers: u64,
    pub safety_ms: u64,
}

impl Faults {
    pub fn draw(random: &mut Random) -> Faults {
        let voters = random.pick(&[1, 3, 3, 3, 5, 5, 7]).expect("a list that is not empty");
        let mut some = |most: u64| if random.chance(600) { 1 + random.below(most) } else { 0 };
        let mut faults = Faults {
            voters,
            spares: 0,
            copies_min: 1,
            quiesce: false,
            loss: some(250),
            duplication: some(250),
            delay_ms_max: 1 + some(40),
            late: some(60),
            write_ms_max: 1 + some(20),
            crash: some(60),
            lost_disk: some(300),
            stall: some(30),
            write_failure: some(15),
            cut: some(60),
            heal: 100,
            membership: some(120),
            transfer: some(60),
            retire: some(150),
            pause: some(40),
            read_failure: some(150),
            drift: some(200),
            proposals: 300,
            barriers: some(200),
            safety_ms: 0,
        };
        faults.spares = random.below(3) as usize;
        faults.copies_min = 1 + random.below(3) as usize;
        faults.quiesce = random.chance(500);
        faults.proposals = random.between(20, 900);
        faults.safety_ms = random.between(800, 3500);
        faults
    }

    /// From here on nothing goes wrong any more.
    pub fn end(&mut self) {
        *self = Faults {
            loss: 0,
            duplication: 0,
            delay_ms_max: 5,
            late: 0,
            write_ms_max: 3,
            crash: 0,
            lost_disk: 0,
            stall: 0,
            write_failure: 0,
            cut: 0,
            membership: 0,
            transfer: 0,
            retire: 0,
            pause: 0,
            read_failure: 0,
            proposals: 0,
            barriers: 0,
            ..self.clone()
        };
    }
}
