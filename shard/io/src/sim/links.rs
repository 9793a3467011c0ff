//! What is wrong between two hosts: directions that carry nothing, slow ones, and connections that are about to break.
//! Decides when a packet arrives; knows nothing of what is in it.
//!
//! A severed direction loses nothing: TCP sends again what got lost, so packets wait and arrive, in order, once the link
//! is whole. What a peer may notice meanwhile is silence.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::state::{Event, Latency, WorldState};
use super::{Host, World};
use crate::clock::Monotonic;

/// One direction between two hosts.
#[derive(Default)]
struct Link {
    is_severed: bool,
    slow: Option<Slowness>,
    /// Until then a slow link is busy with what it took already, in nanoseconds.
    busy_until: u64,
    /// What waits for the link to be whole, in order, with the time before which it does not arrive.
    parked: VecDeque<(u64, Event)>,
    /// Nothing new arrives before this: what was parked comes first.
    clear_at: u64,
}

/// How slow a link is.
#[derive(Clone, Copy)]
struct Slowness {
    latency: Latency,
    bytes_per_second: u64,
}

/// By source and target. Without faults there is none, and nothing is looked up.
#[derive(Default)]
pub(crate) struct Links {
    links: BTreeMap<(usize, usize), Link>,
}

impl Links {
    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        self.links.entry((from, to)).or_default()
    }
}

impl WorldState {
    /// Lets something happen at the far end of a link, `earliest` at the soonest; answers when, as far as is known.
    pub(crate) fn travel(
        &mut self,
        from: usize,
        to: usize,
        earliest: u64,
        bytes: usize,
        event: Event,
    ) -> u64 {
        let (now, random) = (self.now, &mut self.random);
        let mut time = earliest;
        if let Some(link) = self.links.links.get_mut(&(from, to)) {
            if let Some(slow) = link.slow {
                crate::reached!("sim.link_slow");
                let busy =
                    u128::from(bytes as u64) * 1_000_000_000 / u128::from(slow.bytes_per_second.max(1));
                link.busy_until = link.busy_until.max(now) + u64::try_from(busy).unwrap_or(u64::MAX / 4);
                let latency = slow.latency.0 + random.below(slow.latency.1 - slow.latency.0);
                time = time.max(link.busy_until + latency);
            }
            if link.is_severed {
                crate::reached!("sim.packet_parked");
                link.parked.push_back((time, event));
                return time;
            }
            time = time.max(link.clear_at);
            // A slow link keeps the order of everything that it carries.
            if link.slow.is_some() {
                link.clear_at = time;
            }
        }
        self.schedule(time, event);
        time
    }

    fn mend(&mut self, from: usize, to: usize) -> u64 {
        let link = self.links.link(from, to);
        link.is_severed = false;
        link.slow = None;
        let parked = std::mem::take(&mut link.parked);
        let mut time = self.now.max(self.links.link(from, to).clear_at);
        for (earliest, event) in parked {
            time = time.max(earliest).max(self.now + self.network_latency(from, Some(to)));
            self.schedule(time, event);
        }
        self.links.link(from, to).clear_at = time;
        time
    }
}

impl World {
    /// Lets nothing through from one host to the other until [`World::mend`]; the other direction is as it was.
    pub fn sever(&self, from: &Host, to: &Host) {
        let mut state = self.inner.state.borrow_mut();
        state.trace.word(0x5e7e_0000 | (from.index << 8 | to.index) as u64);
        state.links.link(from.index, to.index).is_severed = true;
    }

    /// Makes one direction slow until [`World::mend`]: every packet takes up to `latency_max` more, one after the other at
    /// so many bytes a second.
    pub fn slow_down(&self, from: &Host, to: &Host, latency_max: Duration, bytes_per_second: u64) {
        let latency_max = u64::try_from(latency_max.as_nanos()).unwrap_or(u64::MAX / 4).max(2);
        let slow = Slowness { latency: Latency(latency_max / 2, latency_max), bytes_per_second };
        self.inner.state.borrow_mut().links.link(from.index, to.index).slow = Some(slow);
    }

    /// Makes both directions between two hosts whole and fast. What waited arrives; what a slow link had taken arrives
    /// when it would have, and all that follows behind it: from the time that is returned on nothing of it is left.
    pub fn mend(&self, one: &Host, other: &Host) -> Monotonic {
        let mut state = self.inner.state.borrow_mut();
        let there = state.mend(one.index, other.index);
        Monotonic(there.max(state.mend(other.index, one.index)))
    }

    /// Breaks one of so many connections between two hosts: a reset at both ends, behind at most `bytes_max` more bytes
    /// of a direction that the seed chooses, so mostly in the middle of a frame. Answers how many will break.
    pub fn break_connections(&self, one: &Host, other: &Host, one_of: u64, bytes_max: u64) -> usize {
        let mut state = self.inner.state.borrow_mut();
        let WorldState { network, random, .. } = &mut *state;
        let mut broken = 0;
        let ends: Vec<(u64, u64)> = network.connections_between(one.index, other.index).collect();
        for (first, second) in ends {
            if random.below(one_of.max(1)) != 0 {
                continue;
            }
            let chosen = if random.below(2) == 0 { first } else { second };
            let after = random.below(bytes_max.saturating_add(1));
            if let Some(endpoint) = network.endpoints.get_mut(chosen) {
                endpoint.break_after(usize::try_from(after).unwrap_or(usize::MAX));
                broken += 1;
            }
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::net::SocketAddr;
    use std::rc::Rc;

    use bytes::Bytes;

    use super::super::Outcome;
    use super::*;
    use crate::{ListenOptions, Priority};

    const LONG: Duration = Duration::from_secs(30);
    const BYTES: usize = 40_000;

    fn pattern() -> Vec<u8> {
        (0..BYTES).map(|index| (index % 251) as u8).collect()
    }

    /// What the reading host has got so far, and how its connection ended.
    #[derive(Default)]
    struct Got {
        bytes: RefCell<Vec<u8>>,
        is_over: Cell<bool>,
        is_reset: Cell<bool>,
    }

    /// One host connects to the other and writes the pattern in pieces, a millisecond apart.
    struct Pair {
        world: World,
        writer: Host,
        reader: Host,
        got: Rc<Got>,
    }

    impl Pair {
        fn new(seed: u64) -> Pair {
            let world = World::new(seed);
            let (writer, reader) = (world.host("writer"), world.host("reader"));
            let got = Rc::new(Got::default());
            let (io, shared) = (reader.executor(), Rc::clone(&got));
            let address = SocketAddr::new(reader.address(), 7);
            let listener = io.listen(address, &ListenOptions::default()).expect("a free port");
            let own = io.clone();
            let reading = async move {
                let (socket, _) = own.accept(&listener).await.expect("somebody comes");
                loop {
                    match own.recv_some(&socket).await {
                        Ok(bytes) if bytes.is_empty() => break,
                        Ok(bytes) => shared.bytes.borrow_mut().extend_from_slice(&bytes),
                        Err(_) => {
                            shared.is_reset.set(true);
                            break;
                        }
                    }
                }
                shared.is_over.set(true);
            };
            io.spawn(Priority::Foreground, reading).detach();
            let io = writer.executor();
            let own = io.clone();
            let writing = async move {
                let socket = own.connect(address).await.expect("it listens");
                for piece in pattern().chunks(1_000) {
                    if own.send(&socket, vec![Bytes::copy_from_slice(piece)]).await.is_err() {
                        break;
                    }
                    own.sleep(Duration::from_millis(1)).await;
                }
            };
            io.spawn(Priority::Foreground, writing).detach();
            Pair { world, writer, reader, got }
        }

        fn count(&self) -> usize {
            self.got.bytes.borrow().len()
        }

        fn finish(&self) {
            assert_eq!(self.world.run_until(|| self.got.is_over.get(), LONG), Outcome::Done);
        }
    }

    #[test]
    fn what_a_severed_direction_holds_back_arrives_in_order_once_it_is_whole() {
        for seed in 0..20 {
            let pair = Pair::new(seed);
            assert_eq!(pair.world.run_until(|| pair.count() > 3_000, LONG), Outcome::Done);
            pair.world.sever(&pair.writer, &pair.reader);
            // What is on its way arrives.
            pair.world.run_for(Duration::from_millis(2));
            let before = pair.count();
            pair.world.run_for(Duration::from_secs(5));
            assert_eq!(pair.count(), before, "seed {seed}");
            pair.world.mend(&pair.reader, &pair.writer);
            pair.finish();
            assert_eq!(*pair.got.bytes.borrow(), pattern(), "seed {seed}");
        }
    }

    #[test]
    fn the_other_direction_of_a_severed_one_is_as_it_was() {
        let pair = Pair::new(1);
        assert_eq!(pair.world.run_until(|| pair.count() > 3_000, LONG), Outcome::Done);
        pair.world.sever(&pair.reader, &pair.writer);
        pair.finish();
        assert_eq!(*pair.got.bytes.borrow(), pattern());
    }

    #[test]
    fn nobody_connects_over_a_severed_link_until_it_is_whole() {
        let pair = Pair::new(2);
        pair.world.sever(&pair.writer, &pair.reader);
        pair.world.run_for(Duration::from_secs(3));
        assert_eq!(pair.count(), 0);
        pair.world.mend(&pair.writer, &pair.reader);
        pair.finish();
        assert_eq!(*pair.got.bytes.borrow(), pattern());
    }

    #[test]
    fn a_slow_link_carries_so_many_bytes_a_second_in_order() {
        let pair = Pair::new(3);
        pair.world.slow_down(&pair.writer, &pair.reader, Duration::from_millis(50), 10_000);
        let begun = pair.world.now();
        pair.finish();
        assert_eq!(*pair.got.bytes.borrow(), pattern());
        let took = pair.world.now().saturating_since(begun);
        assert!((4_000..4_500).contains(&took.as_millis()), "{took:?}");
    }

    #[test]
    fn a_connection_breaks_behind_bytes_of_a_piece() {
        let mut within = 0;
        for seed in 0..20 {
            let pair = Pair::new(seed);
            assert_eq!(pair.world.run_until(|| pair.count() > 3_000, LONG), Outcome::Done);
            let broken = pair.world.break_connections(&pair.writer, &pair.reader, 1, 20_000);
            assert_eq!(broken, 1, "seed {seed}");
            pair.finish();
            let got = pair.got.bytes.borrow();
            assert!(pattern().starts_with(&got), "seed {seed}");
            // The direction that carries nothing never breaks.
            assert_eq!(pair.got.is_reset.get(), got.len() < BYTES, "seed {seed}");
            within += u32::from(!got.len().is_multiple_of(1_000));
        }
        assert!(within >= 4, "{within} of 20 broke within a piece");
    }
}
