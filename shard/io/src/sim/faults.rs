//! Which operations of a simulated disk go wrong, and how. Holds no bytes: `disk` does to them what is said here.

use std::ops::Range;

use crate::random::Random;

/// Where and how often a fault of a disk hits.
///
/// Files are meant by a part of the path under which they were last opened or to which they were renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    path_part: String,
    bytes: Range<u64>,
    one_of: u64,
    times: u64,
    onto: Option<String>,
}

impl Place {
    /// All bytes of every file whose path contains `path_part`, each time. An empty part means every file.
    #[must_use]
    pub fn in_files(path_part: &str) -> Self {
        Self { path_part: path_part.to_owned(), bytes: 0..u64::MAX, one_of: 1, times: u64::MAX, onto: None }
    }

    /// Only operations that touch these bytes of the file.
    #[must_use]
    pub fn bytes(self, bytes: Range<u64>) -> Self {
        Self { bytes, ..self }
    }

    /// Only one of so many such operations, drawn from the world's seed.
    #[must_use]
    pub fn one_of(self, one_of: u64) -> Self {
        Self { one_of, ..self }
    }

    /// Only so often.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times, ..self }
    }

    /// For misdirected writes: into a file whose path contains this, in place of the file that was meant.
    #[must_use]
    pub fn onto(self, path_part: &str) -> Self {
        Self { onto: Some(path_part.to_owned()), ..self }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    ReadError,
    WriteError,
    /// Reads back as written until the power goes, and is gone then, synced or not.
    LostWrite,
    /// Never happens; reads answer what was there before.
    StaleRead,
    MisdirectedWrite,
    /// No descriptor is left.
    OpenError,
}

impl FaultKind {
    /// Counts a hit. Not by the macro: its names are branches of the product that every soak must reach.
    fn note(self) {
        crate::reached::note(match self {
            FaultKind::ReadError => "sim_disk.read_error",
            FaultKind::WriteError => "sim_disk.write_error",
            FaultKind::LostWrite => "sim_disk.lost_write",
            FaultKind::StaleRead => "sim_disk.stale_read",
            FaultKind::MisdirectedWrite => "sim_disk.misdirected_write",
            FaultKind::OpenError => "sim_disk.open_error",
        });
    }
}

struct Rule {
    kind: FaultKind,
    place: Place,
}

/// The faults of one disk. A disk without any has none of these.
pub(super) struct Faults {
    rules: Vec<Rule>,
    random: Random,
}

/// A write that goes wrong.
pub(super) struct WriteFault {
    pub(super) kind: FaultKind,
    /// Part of the path of the file that gets the bytes; `None` = the same file.
    pub(super) onto: Option<String>,
}

impl Faults {
    pub(super) fn new(random: Random) -> Self {
        Self { rules: Vec::new(), random }
    }

    pub(super) fn add(&mut self, kind: FaultKind, place: Place) {
        self.rules.push(Rule { kind, place });
    }

    /// A number from the generator of these faults.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    pub(super) fn fails_read(&mut self, path: &str, bytes: &Range<u64>) -> bool {
        self.hit(|kind| kind == FaultKind::ReadError, path, bytes).is_some()
    }

    pub(super) fn fails_open(&mut self, path: &str) -> bool {
        self.hit(|kind| kind == FaultKind::OpenError, path, &(0..u64::MAX)).is_some()
    }

    pub(super) fn on_write(&mut self, path: &str, bytes: &Range<u64>) -> Option<WriteFault> {
        let is_of_write = |kind| !matches!(kind, FaultKind::ReadError | FaultKind::OpenError);
        self.hit(is_of_write, path, bytes)
    }

    fn hit(
        &mut self,
        is_meant: impl Fn(FaultKind) -> bool,
        path: &str,
        bytes: &Range<u64>,
    ) -> Option<WriteFault> {
        for Rule { kind, place } in &mut self.rules {
            let overlaps = bytes.start < place.bytes.end && place.bytes.start < bytes.end;
            if !is_meant(*kind) || place.times == 0 || !overlaps || !path.contains(&place.path_part) {
                continue;
            }
            if place.one_of > 1 && self.random.below(place.one_of) != 0 {
                continue;
            }
            place.times -= 1;
            kind.note();
            return Some(WriteFault { kind: *kind, onto: place.onto.clone() });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_its_place_only_and_so_often_as_it_was_told() {
        let mut faults = Faults::new(Random::from_seed(1));
        faults.add(FaultKind::ReadError, Place::in_files(".log").bytes(100..200).times(2));
        assert!(!faults.fails_read("/data/a.sum", &(0..1000)));
        assert!(!faults.fails_read("/data/a.log", &(0..100)));
        assert!(!faults.fails_read("/data/a.log", &(200..300)));
        assert!(faults.on_write("/data/a.log", &(0..1000)).is_none());
        let hits: Vec<bool> = (0..3).map(|_| faults.fails_read("/data/a.log", &(0..101))).collect();
        assert_eq!(hits, [true, true, false]);
    }

    #[test]
    fn opens_fail_by_path_and_writes_do_not() {
        let mut faults = Faults::new(Random::from_seed(1));
        faults.add(FaultKind::OpenError, Place::in_files(".log").times(1));
        assert!(faults.on_write("/data/a.log", &(0..1)).is_none() && !faults.fails_open("/data/a.sum"));
        assert!(faults.fails_open("/data/a.log") && !faults.fails_open("/data/a.log"));
    }

    #[test]
    fn one_of_so_many_is_drawn() {
        let mut faults = Faults::new(Random::from_seed(1));
        faults.add(FaultKind::WriteError, Place::in_files("").one_of(4));
        let hits = (0..4_000).filter(|_| faults.on_write("/any", &(0..1)).is_some()).count();
        assert!((800..1_200).contains(&hits), "{hits} of 4,000");
    }
}
