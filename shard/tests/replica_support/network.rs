//! Messages between nodes, in memory: they get lost, come twice, late, in another order, or not at all where a direction is cut.
//! Knows nothing of what is in them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use ringlog_io::Io;
use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::replica::{Outgoing, PeerMessage};
use ringlog_shard::store::Store;

/// What a node does for a client.
pub type Job = Box<dyn FnOnce(Store, Io) -> Pin<Box<dyn Future<Output = ()>>>>;

/// What reaches a node.
#[allow(clippy::large_enum_variant, reason = "most packets are the large one")]
pub enum Packet {
    Peer { key: TopicPartition, message: PeerMessage, records: Bytes },
    Job(Job),
}

/// What the network does to messages; each number is per mille of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    pub loss: u64,
    pub duplication: u64,
    /// So many take ten times as long.
    pub late: u64,
    pub delay_us_max: u64,
    /// So many messages with records have a bit turned.
    pub damage: u64,
}

#[derive(Default)]
pub struct Network {
    pub weather: Cell<Weather>,
    /// `cuts[from][to]`: nothing arrives.
    pub cuts: RefCell<Vec<Vec<bool>>>,
    inboxes: Vec<Inbox>,
    sent: Cell<u64>,
    pub delivered: Cell<u64>,
    pub damaged: Cell<u64>,
}

/// By the time at which it arrives, then by when it was sent.
#[derive(Default)]
struct Inbox {
    due: RefCell<BTreeMap<(u64, u64), Packet>>,
    is_open: Cell<bool>,
}

impl Network {
    pub fn new(nodes: usize) -> Network {
        Network {
            cuts: RefCell::new(vec![vec![false; nodes]; nodes]),
            inboxes: (0..nodes).map(|_| Inbox::default()).collect(),
            ..Network::default()
        }
    }

    /// The node is there, or not: what is on its way to it is lost.
    pub fn set_open(&self, place: usize, is_open: bool) {
        self.inboxes[place].is_open.set(is_open);
        let lost = std::mem::take(&mut *self.inboxes[place].due.borrow_mut());
        drop(lost);
    }

    pub fn is_open(&self, place: usize) -> bool {
        self.inboxes[place].is_open.get()
    }

    /// One node sends to another one.
    pub fn post(&self, io: &Io, from: usize, outgoing: &Outgoing) {
        let to = outgoing.message.to().node.0 as usize;
        let weather = self.weather.get();
        let chance = |per_mille: u64| io.random_u64() % 1000 < per_mille;
        let copies = 1 + u64::from(chance(weather.duplication));
        for _ in 0..copies {
            let slow = if chance(weather.late) { 10 } else { 1 };
            let delay_us = 50 + slow * (io.random_u64() % weather.delay_us_max.max(1));
            if chance(weather.loss) || self.cuts.borrow()[from][to] || !self.inboxes[to].is_open.get() {
                continue;
            }
            let mut records = outgoing.records.concat();
            if !records.is_empty() && chance(weather.damage) {
                let place = (io.random_u64() % records.len() as u64) as usize;
                records[place] ^= 1 << (io.random_u64() % 8);
                self.damaged.set(self.damaged.get() + 1);
            }
            let (key, message) = (outgoing.key, outgoing.message.clone());
            let packet = Packet::Peer { key, message, records: Bytes::from(records) };
            self.put(to, io.monotonic_now().0 + delay_us * 1000, packet);
        }
    }

    /// A client asks a node.
    pub fn ask(&self, io: &Io, to: usize, job: Job) {
        if self.inboxes[to].is_open.get() {
            let delay_us = 20 + io.random_u64() % 200;
            self.put(to, io.monotonic_now().0 + delay_us * 1000, Packet::Job(job));
        }
    }

    fn put(&self, to: usize, at_ns: u64, packet: Packet) {
        self.sent.set(self.sent.get() + 1);
        self.inboxes[to].due.borrow_mut().insert((at_ns, self.sent.get()), packet);
    }

    /// What arrived by now.
    pub fn take(&self, place: usize, now_ns: u64) -> Option<Packet> {
        let mut due = self.inboxes[place].due.borrow_mut();
        let first = due.first_entry().filter(|first| first.key().0 <= now_ns)?;
        self.delivered.set(self.delivered.get() + 1);
        Some(first.remove())
    }

    /// When the next packet arrives.
    pub fn next_ns(&self, place: usize) -> Option<u64> {
        self.inboxes[place].due.borrow().first_key_value().map(|(key, _)| key.0)
    }

    pub fn heal(&self) {
        self.cuts.borrow_mut().iter_mut().flatten().for_each(|cut| *cut = false);
        let delay_us_max = 500;
        self.weather.set(Weather { delay_us_max, ..Weather::default() });
    }
}

/// An answer on its way to a client.
pub type Slot<T> = Rc<RefCell<Option<T>>>;
