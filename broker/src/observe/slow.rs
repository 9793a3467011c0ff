//! Owns the memory of the slowest requests of one shard: where each spent its time, and whose it was. Bounded and
//! allocated once.

use std::net::SocketAddr;

use super::stage::{STAGES, Stage, StageClock, StageTimes};

/// Kept for the present and for the last window each.
pub const SLOWEST_MAX: usize = 32;
/// Bytes of a client id that are kept.
const CLIENT_ID_BYTES: usize = 48;
/// A window this long, in nanoseconds, is long enough to be looked at by a person and short enough that yesterday's
/// worst minute does not hide today's.
const WINDOW_NS: u64 = 60_000_000_000;

/// One request worth explaining. `Copy`, so that keeping one never allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowRequest {
    /// Kafka's name of the API.
    pub api: &'static str,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: ClientId,
    pub peer: SocketAddr,
    /// Monotonic time of its last byte.
    pub started_ns: u64,
    pub total_ns: u64,
    pub times: StageTimes,
}

/// The first bytes of a client id, kept in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClientId {
    bytes: [u8; CLIENT_ID_BYTES],
    length: u8,
}

impl ClientId {
    /// Cuts at a character so that the rest stays text.
    pub fn new(text: &str) -> ClientId {
        let mut length = text.len().min(CLIENT_ID_BYTES);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut bytes = [0; CLIENT_ID_BYTES];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        ClientId { bytes, length: length as u8 }
    }

    /// As the client sent it: escape it before printing.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl std::fmt::Debug for ClientId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.as_str())
    }
}

impl SlowRequest {
    /// What the request is ranked by: its time without the wait that the client asked for.
    pub fn busy_ns(&self) -> u64 {
        self.total_ns.saturating_sub(self.times.get(Stage::Wait))
    }

    /// The stage that took most of it.
    pub fn worst_stage(&self) -> Stage {
        let busy = STAGES.into_iter().filter(|stage| *stage != Stage::Wait);
        busy.max_by_key(|stage| self.times.get(*stage)).unwrap_or(Stage::Parse)
    }
}

/// The slowest requests of the present and of the last minute.
#[derive(Debug, Clone)]
pub struct SlowRequests {
    current: Vec<SlowRequest>,
    previous: Vec<SlowRequest>,
    window_started_ns: u64,
    /// Below this a request is no candidate; 0 until the window is full.
    threshold_ns: u64,
}

impl SlowRequests {
    pub fn new(now_ns: u64) -> SlowRequests {
        SlowRequests {
            current: Vec::with_capacity(SLOWEST_MAX),
            previous: Vec::with_capacity(SLOWEST_MAX),
            window_started_ns: now_ns,
            threshold_ns: 0,
        }
    }

    /// Whether a request of so much time would be kept: one comparison, so the caller builds a [`SlowRequest`] only
    /// when this is true.
    pub fn is_candidate(&self, clock: &StageClock) -> bool {
        clock.total_ns().saturating_sub(clock.times().get(Stage::Wait)) > self.threshold_ns
    }

    /// Keeps the request if it is among the slowest.
    pub fn offer(&mut self, request: SlowRequest) {
        if self.current.len() < SLOWEST_MAX {
            self.current.push(request);
        } else if let Some(fastest) = self.current.iter_mut().min_by_key(|kept| kept.busy_ns())
            && fastest.busy_ns() < request.busy_ns()
        {
            *fastest = request;
        }
        if self.current.len() == SLOWEST_MAX {
            self.threshold_ns = self.current.iter().map(SlowRequest::busy_ns).min().unwrap_or(0);
        }
    }

    /// Turns the window when it is over; called by the timer that publishes.
    pub fn turn(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.window_started_ns) < WINDOW_NS {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        self.window_started_ns = now_ns;
        self.threshold_ns = 0;
    }

    /// Both windows, slowest first, at most [`SLOWEST_MAX`].
    pub fn slowest(&self) -> Vec<SlowRequest> {
        let mut all: Vec<SlowRequest> = self.current.iter().chain(&self.previous).copied().collect();
        all.sort_by_key(|request| std::cmp::Reverse(request.busy_ns()));
        all.truncate(SLOWEST_MAX);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(busy_ns: u64, wait_ns: u64) -> (StageClock, SlowRequest) {
        let mut clock = StageClock::start(0);
        clock.mark(Stage::Journal, busy_ns);
        clock.mark(Stage::Wait, busy_ns + wait_ns);
        let request = SlowRequest {
            api: "Produce",
            version: 13,
            correlation_id: 1,
            client_id: ClientId::new("client"),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            started_ns: 0,
            total_ns: clock.total_ns(),
            times: *clock.times(),
        };
        (clock, request)
    }

    #[test]
    fn the_slowest_are_kept_whatever_the_order() {
        let mut slow = SlowRequests::new(0);
        for busy_ns in (1..=200).rev().chain(1..=200) {
            let (clock, request) = request(busy_ns, 0);
            if slow.is_candidate(&clock) {
                slow.offer(request);
            }
        }
        let kept: Vec<u64> = slow.slowest().iter().map(SlowRequest::busy_ns).collect();
        let expected: Vec<u64> = (185..=200).rev().flat_map(|busy_ns| [busy_ns, busy_ns]).collect();
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_long_poll_is_not_slow() {
        let mut slow = SlowRequests::new(0);
        for _ in 0..SLOWEST_MAX {
            slow.offer(request(100, 0).1);
        }
        assert!(!slow.is_candidate(&request(99, 1_000_000).0));
        assert!(slow.is_candidate(&request(101, 0).0));
    }

    #[test]
    fn windows_turn() {
        let mut slow = SlowRequests::new(0);
        slow.offer(request(7, 0).1);
        slow.turn(WINDOW_NS - 1);
        slow.turn(WINDOW_NS);
        assert_eq!(slow.slowest().len(), 1);
        slow.offer(request(3, 0).1);
        assert_eq!(slow.slowest().iter().map(SlowRequest::busy_ns).collect::<Vec<_>>(), vec![7, 3]);
        slow.turn(2 * WINDOW_NS);
        slow.turn(3 * WINDOW_NS);
        assert_eq!(slow.slowest(), vec![]);
    }

    #[test]
    fn client_ids_are_cut_at_a_character() {
        assert_eq!(ClientId::new("abc").as_str(), "abc");
        let long = "é".repeat(40);
        assert_eq!(ClientId::new(&long).as_str(), "é".repeat(24));
        let odd = format!("a{long}");
        assert_eq!(ClientId::new(&odd).as_str(), format!("a{}", "é".repeat(23)));
    }
}
