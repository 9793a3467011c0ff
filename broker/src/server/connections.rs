//! The connections of one core, and on the acceptor's core the counts of all. Owns limits and idle times; reads and
//! writes nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::Io;
use ringlog_shard::limits::REQUEST_RECEIVE_MS_MAX;
use ringlog_shard::mesh::CoreId;

use super::Connection;

/// Open connections of this core.
#[derive(Default)]
pub struct Connections {
    next_number: Cell<u64>,
    open: RefCell<BTreeMap<u64, Rc<Connection>>>,
    /// On the acceptor's core: what it gave away.
    spread: RefCell<Spread>,
}

/// What the acceptor knows of all cores.
#[derive(Default)]
struct Spread {
    by_core: Vec<u32>,
    by_address: BTreeMap<IpAddr, u32>,
}

/// Why a connection is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TurnedAway {
    #[error("{open} connections are open, max.connections allows {limit}")]
    Total { open: u32, limit: u32 },
    #[error("{open} connections from {address} are open, max.connections.per.ip allows {limit}")]
    Address { address: IpAddr, open: u32, limit: u32 },
}

impl Connections {
    /// Remembers a connection for as long as it is served.
    pub fn insert(&self, connection: &Rc<Connection>) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        self.open.borrow_mut().insert(number, Rc::clone(connection));
        number
    }

    pub fn remove(&self, number: u64) {
        self.open.borrow_mut().remove(&number);
    }

    pub fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Connections with a request in flight.
    pub fn busy_count(&self) -> usize {
        self.open.borrow().values().filter(|connection| connection.is_busy()).count()
    }

    /// Ends every connection at once.
    pub fn abort_all(&self) {
        self.open.borrow().values().for_each(|connection| connection.abort());
    }

    /// Ends every connection's reading: replies in flight still leave.
    pub fn stop_reading(&self) {
        for connection in self.open.borrow().values() {
            connection.stop_reading();
        }
    }

    /// Picks the core with the fewest connections for a newcomer, the lowest number first.
    ///
    /// # Errors
    /// [`TurnedAway`] at a limit.
    pub fn place(
        &self,
        address: IpAddr,
        core_count: u32,
        total_max: u32,
        per_address_max: u32,
    ) -> Result<CoreId, TurnedAway> {
        let mut spread = self.spread.borrow_mut();
        spread.by_core.resize(core_count as usize, 0);
        let open: u32 = spread.by_core.iter().sum();
        if open >= total_max {
            return Err(TurnedAway::Total { open, limit: total_max });
        }
        let from_here = spread.by_address.get(&address).copied().unwrap_or(0);
        if from_here >= per_address_max {
            return Err(TurnedAway::Address { address, open: from_here, limit: per_address_max });
        }
        *spread.by_address.entry(address).or_insert(0) += 1;
        let (core, count) = spread
            .by_core
            .iter_mut()
            .enumerate()
            .min_by_key(|(core, count)| (**count, *core))
            .expect("a node has at least one core");
        *count += 1;
        Ok(CoreId(core as u32))
    }

    /// A connection given to `core` is closed.
    pub fn closed_elsewhere(&self, core: CoreId, address: IpAddr) {
        let mut spread = self.spread.borrow_mut();
        if let Some(count) = spread.by_core.get_mut(core.0 as usize) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = spread.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                spread.by_address.remove(&address);
            }
        }
    }

    /// Shuts down who was silent for `idle_ms_max`, took nothing of a reply for as long, or takes too long over one
    /// request. Returns when to look again;
    /// `None` while nobody is connected, so that an idle broker sets no timer.
    pub fn sweep(&self, io: &Io, idle_ms_max: u64) -> Option<Duration> {
        let now = io.monotonic_now();
        let open = self.open.borrow();
        for connection in open.values() {
            let silent = now.saturating_since(connection.last_active());
            let idle = silent >= Duration::from_millis(idle_ms_max) && !connection.is_busy();
            let stalled = connection.frame_started().is_some_and(|started| {
                now.saturating_since(started) >= Duration::from_millis(REQUEST_RECEIVE_MS_MAX)
            });
            let blocked = connection
                .blocked_since()
                .is_some_and(|since| now.saturating_since(since) >= Duration::from_millis(idle_ms_max));
            if idle || stalled || blocked {
                let reason = match (stalled, blocked) {
                    (true, _) => "request not received in time",
                    (_, true) => "reply not taken in time",
                    _ => "idle",
                };
                tracing::debug!(peer = %connection.peer, reason, "connection closed");
                connection.abort();
            }
        }
        let period = Duration::from_millis(idle_ms_max.min(REQUEST_RECEIVE_MS_MAX) / 4)
            .max(Duration::from_millis(250));
        (!open.is_empty()).then_some(period)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

    #[test]
    fn newcomers_go_to_the_least_loaded_core() {
        let connections = Connections::default();
        let place = |address| connections.place(address, 2, 100, 100);
        assert_eq!(place(HERE), Ok(CoreId(0)));
        assert_eq!(place(HERE), Ok(CoreId(1)));
        assert_eq!(place(HERE), Ok(CoreId(0)));
        connections.closed_elsewhere(CoreId(0), HERE);
        connections.closed_elsewhere(CoreId(0), HERE);
        assert_eq!(place(HERE), Ok(CoreId(0)));
        assert_eq!(place(HERE), Ok(CoreId(0)));
    }

    #[test]
    fn limits_name_what_is_open_and_end_with_the_connections() {
        let connections = Connections::default();
        assert!(connections.place(HERE, 1, 3, 2).is_ok());
        assert!(connections.place(HERE, 1, 3, 2).is_ok());
        assert_eq!(
            connections.place(HERE, 1, 3, 2),
            Err(TurnedAway::Address { address: HERE, open: 2, limit: 2 })
        );
        assert!(connections.place(THERE, 1, 3, 2).is_ok());
        assert_eq!(connections.place(THERE, 1, 3, 2), Err(TurnedAway::Total { open: 3, limit: 3 }));
        connections.closed_elsewhere(CoreId(0), HERE);
        assert!(connections.place(HERE, 1, 3, 2).is_ok());
    }
}
