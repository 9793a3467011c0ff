//! Owns what one core holds to record its work. Methods take `&self`, so that a core can share it between its tasks; no
//! borrow outlives a call, so none is held over an await.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;

use super::flight::{FlightKind, FlightRecorder};
use super::metrics::ShardMetrics;
use super::slow::{ClientId, SlowRequest, SlowRequests};
use super::snapshot::{
    GroupFigures, IoFigures, ShardGauges, ShardSnapshot, SnapshotPublisher, StorageFigures,
};
use super::stage::StageClock;
use super::timelines::Timelines;
use crate::group::lag::LagReport;

/// A request from which this much time or more is the broker's own also enters the flight record.
const FLIGHT_SLOW_NS: u64 = 100_000_000;

/// The memory of one core; never leaves its thread.
#[derive(Debug)]
pub struct ShardObserver {
    shard: u32,
    metrics: RefCell<ShardMetrics>,
    slow: RefCell<SlowRequests>,
    flight: FlightRecorder,
    publisher: SnapshotPublisher,
}

/// One answered request, once its answer was handed to the kernel.
#[derive(Debug, Clone, Copy)]
pub struct FinishedRequest {
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: ClientId,
    pub peer: SocketAddr,
    /// Marked for the last time.
    pub clock: StageClock,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// The first error of the answer; further ones go to [`ShardMetrics::count_error`].
    pub error: ErrorCode,
}

/// What a core adds to its own record when it publishes.
#[derive(Debug, Clone)]
pub struct Published {
    /// Monotonic nanoseconds.
    pub now_ns: u64,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
    pub gauges: ShardGauges,
    pub io: IoFigures,
    pub storage: StorageFigures,
    pub groups: GroupFigures,
    pub timelines: Timelines,
    pub lags: Option<Arc<LagReport>>,
    pub ailments: Vec<String>,
}

impl ShardObserver {
    /// On the shard's own thread: the panic hook finds the flight record by thread.
    pub fn new(shard: u32, publisher: SnapshotPublisher, now_ns: u64) -> ShardObserver {
        ShardObserver {
            shard,
            metrics: RefCell::new(ShardMetrics::default()),
            slow: RefCell::new(SlowRequests::new(now_ns)),
            flight: FlightRecorder::new(shard),
            publisher,
        }
    }

    /// Adds to any counters: `observer.count(|metrics| metrics.connections_accepted += 1)`.
    pub fn count(&self, add: impl FnOnce(&mut ShardMetrics)) {
        add(&mut self.metrics.borrow_mut());
    }

    pub fn received(&self, bytes: u64) {
        self.metrics.borrow_mut().received_bytes += bytes;
    }

    /// Counts the request and keeps it if it is among the slowest.
    pub fn finish(&self, request: &FinishedRequest) {
        self.metrics.borrow_mut().finish_request(request);
        let mut slow = self.slow.borrow_mut();
        if !slow.is_candidate(&request.clock) {
            return;
        }
        let kept = SlowRequest {
            api: request.api.name(),
            version: request.version,
            correlation_id: request.correlation_id,
            client_id: request.client_id,
            peer: request.peer,
            started_ns: request.clock.started_ns(),
            total_ns: request.clock.total_ns(),
            times: *request.clock.times(),
        };
        slow.offer(kept);
        if kept.busy_ns() >= FLIGHT_SLOW_NS {
            let at_ns = kept.started_ns.saturating_add(kept.total_ns);
            let micros = i64::try_from(kept.busy_ns() / 1000).unwrap_or(i64::MAX);
            self.flight.record(at_ns, FlightKind::RequestSlow, [i64::from(request.api.key()), micros]);
        }
    }

    /// Adds an event to the flight record; see [`FlightKind`] for what the numbers mean.
    pub fn event(&self, now_ns: u64, kind: FlightKind, numbers: [i64; 2]) {
        self.flight.record(now_ns, kind, numbers);
    }

    /// Shows all of it to the side thread; called by a timer every `metrics_interval_ms`. Allocates and copies some
    /// tens of kilobytes, hence not on the way of a request.
    pub fn publish(&self, published: Published) {
        let mut slow = self.slow.borrow_mut();
        slow.turn(published.now_ns);
        self.publisher.publish(ShardSnapshot {
            shard: self.shard,
            published_at_ms: published.now_ms,
            published_at_ns: published.now_ns,
            metrics: self.metrics.borrow().clone(),
            gauges: published.gauges,
            io: published.io,
            storage: published.storage,
            groups: published.groups,
            timelines: published.timelines,
            lags: published.lags,
            ailments: published.ailments,
            slow: slow.slowest(),
            flight: self.flight.events(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::snapshot;
    use crate::observe::stage::Stage;

    #[test]
    fn what_was_recorded_is_published() {
        let (publisher, slot) = snapshot::slot(1);
        let observer = ShardObserver::new(1, publisher, 0);
        observer.received(7);
        observer.count(|metrics| metrics.connections_accepted += 1);
        let mut clock = StageClock::start(10);
        clock.mark(Stage::Journal, 10 + FLIGHT_SLOW_NS);
        observer.finish(&FinishedRequest {
            api: ApiKey::Produce,
            version: 9,
            correlation_id: 4,
            client_id: ClientId::new("c"),
            peer: SocketAddr::from(([127, 0, 0, 1], 9)),
            clock,
            received_bytes: 1,
            sent_bytes: 2,
            error: ErrorCode::None,
        });
        assert_eq!(slot.read().metrics.received_bytes, 0);
        let gauges = ShardGauges { connections: 1, ..ShardGauges::default() };
        let (io, storage) = (IoFigures::default(), StorageFigures::default());
        let groups = GroupFigures::default();
        let ailments = vec!["ill".to_owned()];
        observer.publish(Published {
            now_ns: 20,
            now_ms: 30,
            gauges,
            io,
            storage,
            groups,
            timelines: Timelines::default(),
            lags: None,
            ailments,
        });
        let shown = slot.read();
        assert_eq!((shown.metrics.received_bytes, shown.metrics.connections_accepted), (7, 1));
        assert_eq!((shown.gauges.connections, shown.published_at_ms), (1, 30));
        assert_eq!(shown.ailments, ["ill"]);
        assert_eq!(shown.slow.len(), 1);
        assert_eq!((shown.slow[0].client_id.as_str(), shown.slow[0].worst_stage()), ("c", Stage::Journal));
        assert_eq!(shown.flight[0].kind, FlightKind::RequestSlow);
    }
}
