//! The bytes of one simulated file: sectors with a cached and a durable value. Knows no names and no open files.
//!
//! Sectors are shared between the two values until one is written, and a sector of zeros takes no memory: a pre-written
//! journal and a crash cost a pointer a sector, not its bytes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use crate::random::Random;

/// Bytes that become durable together.
pub(super) const SECTOR_BYTES: usize = 4096;

/// Bytes of which the medium writes all or none, whatever happens.
pub(super) const PIECE_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

const ZEROS: Sector = [0; SECTOR_BYTES];

/// One value of a whole file. Invariants: as many sectors as the length needs, zeros behind the length.
#[derive(Default)]
struct Contents {
    length: usize,
    /// `None` = zeros.
    sectors: Vec<Option<Rc<Sector>>>,
}

impl Contents {
    fn set_length(&mut self, length: usize) {
        let shorter = length < self.length;
        self.length = length;
        self.sectors.resize(length.div_ceil(SECTOR_BYTES), None);
        if shorter {
            self.clear_behind_length();
        }
    }

    fn clear_behind_length(&mut self) {
        let used = self.length % SECTOR_BYTES;
        if used > 0
            && let Some(Some(last)) = self.sectors.last_mut()
            && let Some(behind) = Rc::make_mut(last).get_mut(used..)
        {
            behind.fill(0);
        }
    }

    /// The file is long enough already.
    fn write(&mut self, position: usize, mut bytes: &[u8]) {
        let (mut sector, mut start) = (position / SECTOR_BYTES, position % SECTOR_BYTES);
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(SECTOR_BYTES - start));
            if let Some(slot) = self.sectors.get_mut(sector) {
                write_sector(slot, start, part);
            }
            (sector, start, bytes) = (sector + 1, 0, rest);
        }
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len());
        let (mut sector, mut start) = (range.start / SECTOR_BYTES, range.start % SECTOR_BYTES);
        while bytes.len() < range.len() {
            let end = (start + range.len() - bytes.len()).min(SECTOR_BYTES);
            let present = self.sectors.get(sector).and_then(Option::as_deref).unwrap_or(&ZEROS);
            bytes.extend_from_slice(present.get(start..end).unwrap_or(&[]));
            (sector, start) = (sector + 1, 0);
        }
        bytes
    }

    /// Takes over some pieces of one sector of the other value, as far as it lies within the length.
    fn take_pieces(&mut self, other: &Contents, sector: usize, pieces: u64) {
        if let (Some(target), Some(source)) = (self.sectors.get_mut(sector), other.sectors.get(sector)) {
            tear(target, source.as_deref(), pieces);
        }
        if sector + 1 == self.sectors.len() {
            self.clear_behind_length();
        }
    }

    /// Takes over one sector of the other value, as far as it lies within the length. One beyond the end stays out.
    fn take(&mut self, other: &Contents, sector: usize) {
        if let (Some(target), Some(source)) = (self.sectors.get_mut(sector), other.sectors.get(sector)) {
            target.clone_from(source);
        }
        if other.length > self.length && sector + 1 == self.sectors.len() {
            self.clear_behind_length();
        }
    }
}

/// Some pieces of the one sector, the rest of the other, as the bits say.
fn tear(slot: &mut Option<Rc<Sector>>, other: Option<&Sector>, pieces: u64) {
    let other = other.unwrap_or(&ZEROS);
    let target = Rc::make_mut(slot.get_or_insert_with(|| Rc::new(ZEROS)));
    let both = target.chunks_mut(PIECE_BYTES).zip(other.chunks(PIECE_BYTES));
    for (piece, (target, source)) in both.enumerate() {
        if pieces >> piece & 1 == 1 {
            target.copy_from_slice(source);
        }
    }
}

fn write_sector(slot: &mut Option<Rc<Sector>>, start: usize, part: &[u8]) {
    // A whole sector replaces what was there, without a copy of it.
    if let Ok(whole) = <&Sector>::try_from(part) {
        *slot = (*whole != ZEROS).then(|| Rc::new(*whole));
        return;
    }
    let present = slot.get_or_insert_with(|| Rc::new(ZEROS));
    if let Some(target) = Rc::make_mut(present).get_mut(start..start + part.len()) {
        target.copy_from_slice(part);
    }
}

/// Invariant: outside `dirty` and `lost`, `cached` and `durable` agree wherever both have a byte.
#[derive(Default)]
pub(super) struct Sectors {
    cached: Contents,
    durable: Contents,
    /// Sectors whose cached value is not durable.
    dirty: BTreeSet<usize>,
    /// Sectors that pass for durable and are not: a sync of them failed. Disjoint from `dirty`.
    lost: BTreeSet<usize>,
}

impl Sectors {
    pub(super) fn length(&self) -> usize {
        self.cached.length
    }

    /// Fewer bytes only at the end of the file.
    pub(super) fn read(&self, position: usize, length: usize) -> Vec<u8> {
        let start = position.min(self.cached.length);
        let end = start.saturating_add(length).min(self.cached.length);
        self.cached.read(start..end)
    }

    pub(super) fn set_length(&mut self, length: usize) {
        let before = self.cached.length;
        self.cached.set_length(length);
        // The sector in which a length begins or ends differs from the durable one.
        let (shorter, longer) = (before.min(length), before.max(length));
        self.soil(shorter..longer);
    }

    fn soil(&mut self, range: Range<usize>) {
        for sector in touched(range) {
            self.dirty.insert(sector);
            self.lost.remove(&sector);
        }
    }

    /// A sync that fails as a kernel's does (Rebello et al., ATC 2020): what it was to make durable passes for clean, reads
    /// back as written, and is gone after a crash. The next sync has nothing to do and succeeds.
    pub(super) fn fail_sync(&mut self) {
        self.lost.append(&mut self.dirty);
    }

    /// Writes into the cache. `range` is where the bytes go.
    pub(super) fn write(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.put(range.clone(), bytes);
        self.soil(range);
    }

    /// Writes bytes and makes their sectors durable, and the length.
    pub(super) fn write_durable(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.put(range.clone(), bytes);
        if self.durable.length < range.end {
            self.durable.set_length(self.cached.length);
        }
        for sector in touched(range) {
            self.durable.take(&self.cached, sector);
            self.dirty.remove(&sector);
            self.lost.remove(&sector);
        }
    }

    /// Writes bytes that read back as written, pass for durable, and are gone after a crash.
    pub(super) fn write_lost(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.put(range.clone(), bytes);
        for sector in touched(range) {
            self.dirty.remove(&sector);
            self.lost.insert(sector);
        }
    }

    /// Makes the file at least so long, and that durable, without a byte.
    pub(super) fn lengthen(&mut self, length: usize, durable: bool) {
        if length > self.cached.length {
            self.set_length(length);
        }
        if durable && length > self.durable.length {
            self.durable.set_length(length);
        }
    }

    fn put(&mut self, range: Range<usize>, bytes: &[u8]) {
        if !bytes.is_empty() && range.end > self.cached.length {
            self.set_length(range.end);
        }
        self.cached.write(range.start, bytes);
    }

    /// Makes the cached value durable.
    pub(super) fn sync(&mut self) {
        self.durable.set_length(self.cached.length);
        for sector in std::mem::take(&mut self.dirty) {
            self.durable.take(&self.cached, sector);
        }
    }

    /// Forgets what is not durable.
    pub(super) fn revert(&mut self) {
        self.cached.set_length(self.durable.length);
        for sector in std::mem::take(&mut self.dirty) {
            self.cached.take(&self.durable, sector);
        }
        for sector in std::mem::take(&mut self.lost) {
            self.cached.take(&self.durable, sector);
        }
    }

    /// What a crash leaves of which the disk had written some: of each unsynced sector all or nothing, with `torn` perhaps
    /// some pieces; the length is the old one, the new one, or one between at a sector's end.
    pub(super) fn keep_some(&mut self, random: &mut Random, torn: bool) {
        if !self.dirty.is_empty() || self.cached.length != self.durable.length {
            let length = self.draw_length(random);
            self.durable.set_length(length);
        }
        for sector in std::mem::take(&mut self.dirty) {
            match random.below(if torn { 3 } else { 2 }) {
                0 => self.durable.take(&self.cached, sector),
                1 => crate::reached::note("sim_disk.sector_lost"),
                _ => {
                    crate::reached::note("sim_disk.sector_torn");
                    self.durable.take_pieces(&self.cached, sector, random.next_u64());
                }
            }
            // What the cache holds there is forgotten either way.
            self.lost.insert(sector);
        }
        self.revert();
    }

    fn draw_length(&self, random: &mut Random) -> usize {
        let (old, new) = (self.durable.length, self.cached.length);
        match random.below(4) {
            0 => old,
            1 if new > old => {
                let sectors = (old / SECTOR_BYTES + 1..new.div_ceil(SECTOR_BYTES)).len() as u64;
                let grown = (old / SECTOR_BYTES + 1 + random.below(sectors) as usize) * SECTOR_BYTES;
                grown.min(new)
            }
            _ => new,
        }
    }

    /// What a crash leaves that keeps everything which the disk was still to write.
    pub(super) fn keep(&mut self) {
        self.sync();
        self.revert();
    }
}

/// The sectors of which a range of bytes has some.
fn touched(range: Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same file as two plain byte strings.
    #[derive(Default)]
    struct Model {
        cached: Vec<u8>,
        durable: Vec<u8>,
        dirty: BTreeSet<usize>,
    }

    impl Model {
        fn set_length(&mut self, length: usize) {
            let before = self.cached.len();
            self.cached.resize(length, 0);
            self.dirty.extend(touched(before.min(length)..before.max(length)));
        }

        fn write(&mut self, range: Range<usize>, bytes: &[u8]) {
            if !bytes.is_empty() && range.end > self.cached.len() {
                self.set_length(range.end);
            }
            self.cached[range.clone()].copy_from_slice(bytes);
            self.dirty.extend(touched(range));
        }

        fn write_durable(&mut self, range: Range<usize>, bytes: &[u8]) {
            self.write(range.clone(), bytes);
            if self.durable.len() < range.end {
                self.durable.resize(self.cached.len(), 0);
            }
            let sectors: Vec<usize> = touched(range).collect();
            copy(&self.cached, &mut self.durable, sectors.iter());
            self.dirty.retain(|sector| !sectors.contains(sector));
        }

        fn sync(&mut self) {
            self.durable.resize(self.cached.len(), 0);
            copy(&self.cached, &mut self.durable, self.dirty.iter());
            self.dirty.clear();
        }

        fn revert(&mut self) {
            self.cached.resize(self.durable.len(), 0);
            copy(&self.durable, &mut self.cached, self.dirty.iter());
            self.dirty.clear();
        }
    }

    fn copy<'a>(source: &[u8], target: &mut [u8], sectors: impl Iterator<Item = &'a usize>) {
        for sector in sectors {
            let start = sector * SECTOR_BYTES;
            // One that the source does not have stays; what the source lacks of one that it has is zeros.
            let end = if start < source.len() { (start + SECTOR_BYTES).min(target.len()) } else { start };
            for (index, byte) in target.iter_mut().enumerate().take(end).skip(start) {
                *byte = source.get(index).copied().unwrap_or(0);
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Length(usize),
        Write { position: usize, length: usize, byte: u8, durable: bool },
        Sync,
        Revert,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Near the borders of sectors, where mistakes live.
        let place = (0..5_usize, -2..3_isize)
            .prop_map(|(sector, shift)| (sector * SECTOR_BYTES).saturating_add_signed(shift));
        prop_oneof![
            place.clone().prop_map(Step::Length),
            (place.clone(), place, 0..3_u8, any::<bool>()).prop_map(|(position, length, byte, durable)| {
                Step::Write { position, length, byte, durable }
            }),
            Just(Step::Sync),
            Just(Step::Revert),
        ]
    }

    #[test]
    fn a_crash_keeps_some_sectors_and_pieces_of_others_and_nothing_else() {
        let (mut whole, mut torn, mut lengths) = (BTreeSet::new(), 0, BTreeSet::new());
        for seed in 0..200 {
            let mut file = Sectors::default();
            file.write_durable(0..4 * SECTOR_BYTES, &[1; 4 * SECTOR_BYTES]);
            file.write(SECTOR_BYTES..6 * SECTOR_BYTES, &[2; 5 * SECTOR_BYTES]);
            file.keep_some(&mut Random::from_seed(seed), seed % 2 == 1);
            let bytes = file.read(0, usize::MAX);
            assert_eq!(bytes, file.durable.read(0..file.durable.length), "nothing is unsynced any more");
            assert_eq!(bytes[..SECTOR_BYTES], [1; SECTOR_BYTES], "what was synced stays");
            lengths.insert(bytes.len());
            let mut kept = 0;
            for (number, sector) in bytes.chunks(SECTOR_BYTES).enumerate().skip(1) {
                let old = if number < 4 { 1 } else { 0 };
                let new_pieces = sector.chunks(PIECE_BYTES).filter(|piece| piece == &[2; PIECE_BYTES]);
                let old_pieces = sector.chunks(PIECE_BYTES).filter(|piece| piece == &[old; PIECE_BYTES]);
                let (new_count, old_count) = (new_pieces.count(), old_pieces.count());
                assert_eq!(new_count + old_count, sector.len() / PIECE_BYTES, "seed {seed}, sector {number}");
                kept |= usize::from(old_count == 0) << number;
                torn += usize::from(new_count > 0 && old_count > 0);
                assert!(seed % 2 == 1 || new_count == 0 || old_count == 0, "seed {seed} tears nothing");
            }
            whole.insert(kept);
        }
        assert!(whole.len() > 20 && torn > 50, "{} subsets, {torn} torn sectors", whole.len());
        assert_eq!(Vec::from_iter(lengths), [4, 5, 6].map(|sectors| sectors * SECTOR_BYTES));
    }

    #[test]
    fn a_lost_write_is_seen_until_the_crash() {
        let mut file = Sectors::default();
        file.write_durable(0..8192, &[1; 8192]);
        file.write_lost(100..5000, &[2; 4900]);
        file.sync();
        assert_eq!(file.read(100, 4900), [2; 4900]);
        file.keep();
        assert_eq!(file.read(0, 8192), [1; 8192]);
        file.write_lost(0..10, &[3; 10]);
        file.write_durable(0..4096, &[4; 4096]);
        file.revert();
        assert_eq!(file.read(0, 4096), [4; 4096], "the next write there lasts");
    }

    proptest! {
        #[test]
        fn a_file_is_what_two_plain_byte_strings_are(steps in proptest::collection::vec(step(), 1..40)) {
            let (mut file, mut model) = (Sectors::default(), Model::default());
            for step in steps {
                match step {
                    Step::Length(length) => {
                        file.set_length(length);
                        model.set_length(length);
                    }
                    Step::Write { position, length, byte, durable } => {
                        // What grows a file begins within it or not; both are legal.
                        if length == 0 {
                            continue;
                        }
                        let bytes = vec![byte; length];
                        let range = position..position + length;
                        if durable {
                            file.write_durable(range.clone(), &bytes);
                            model.write_durable(range, &bytes);
                        } else {
                            file.write(range.clone(), &bytes);
                            model.write(range, &bytes);
                        }
                    }
                    Step::Sync => {
                        file.sync();
                        model.sync();
                    }
                    Step::Revert => {
                        file.revert();
                        model.revert();
                    }
                }
                prop_assert_eq!(file.length(), model.cached.len());
                prop_assert_eq!(file.read(0, usize::MAX), &model.cached[..]);
                prop_assert_eq!(file.durable.read(0..file.durable.length), &model.durable[..]);
                prop_assert_eq!(&file.dirty, &model.dirty);
            }
        }
    }
}
