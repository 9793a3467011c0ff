//! Owns the counters of one shard, as plain cells that only its core writes. Integrating code adds to the public fields;
//! requests go through [`ShardMetrics::finish_request`], which keeps counters and histograms in step.

use ringlog_protocol::api;
use ringlog_protocol::error_code::ErrorCode;

use super::histogram::Log2Histogram;
use super::observer::FinishedRequest;
use super::stage::STAGES;

/// Kafka's API keys reach 92 in 4.4; a key beyond the table counts as unknown.
const API_KEYS: usize = 128;
/// Error codes reach 136 in 4.4; the cell of code -1 is the first.
const ERROR_CELLS: usize = 138;
/// In the index: this key has no cells of its own.
const UNKNOWN: u8 = u8::MAX;

/// All counters of one shard. They only grow; gauges are in [`super::snapshot::ShardGauges`].
#[derive(Debug, Clone)]
pub struct ShardMetrics {
    /// By API key: the place in `apis`, or `UNKNOWN`.
    index: [u8; API_KEYS],
    apis: Vec<ApiMetrics>,
    errors: [u64; ERROR_CELLS],
    pub connections_accepted: u64,
    pub connections_closed: u64,
    /// Refused because a limit on connections was reached.
    pub connections_refused: u64,
    /// Closed because of what the peer sent: no Kafka frame, too large, malformed.
    pub connections_violated: u64,
    /// Moved here from the core that accepted them.
    pub connections_adopted: u64,
    pub received_bytes: u64,
    pub sent: EgressMetrics,
    pub page_cache: PageCacheMetrics,
    pub produce: ProduceMetrics,
    pub fetch: FetchMetrics,
    pub mesh: MeshMetrics,
    /// Log lines that the rate limit kept back.
    pub log_lines_suppressed: u64,
}

/// What is counted for one API.
#[derive(Debug, Clone)]
pub struct ApiMetrics {
    /// Kafka's name.
    pub name: &'static str,
    pub requests: u64,
    /// Answers with an error code at the top level or in any partition.
    pub requests_failed: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// From the last byte received to the answer handed to the kernel.
    pub total: Log2Histogram,
    /// In the order of [`STAGES`]; a stage that took no time is not counted.
    pub stages: [Log2Histogram; STAGES.len()],
}

/// Bytes that left, by the route they took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EgressMetrics {
    /// Gathered from memory by `sendmsg`: heads of answers and the tail of logs.
    pub memory_bytes: u64,
    /// Read from a file, then sent from memory.
    pub read_bytes: u64,
    /// From the page cache by `sendfile`.
    pub sendfile_bytes: u64,
    /// `sendfile` calls that took longer than the planner allows.
    pub sendfile_stalls: u64,
    /// Replies whose rest was switched from memory to segment files: too slow, or more than their share.
    pub demotions: u64,
}

/// What `cachestat` said of the pieces that were about to be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageCacheMetrics {
    pub hit_bytes: u64,
    pub miss_bytes: u64,
    /// Pieces sent without asking: the kernel has no `cachestat`, or it is switched off.
    pub unknown_bytes: u64,
}

/// What producers sent, once accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProduceMetrics {
    pub batches: u64,
    pub records: u64,
    pub bytes: u64,
    /// Batches answered from the sequence state without appending again.
    pub duplicates: u64,
}

/// What consumers got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FetchMetrics {
    pub bytes: u64,
    /// Partitions that had bytes to give.
    pub partitions: u64,
    /// Answers without a byte of records, after waiting.
    pub empty: u64,
}

/// Messages between cores, as the sending and the receiving side count them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeshMetrics {
    pub sent: u64,
    pub received: u64,
    /// Times a connection stopped reading because the target core had no room.
    pub out_of_credits: u64,
}

impl Default for ShardMetrics {
    /// Cells for every API that the table of the protocol serves.
    fn default() -> Self {
        let mut index = [UNKNOWN; API_KEYS];
        let mut apis = Vec::new();
        for (api, _) in api::served() {
            if let Some(cell) = usize::try_from(api.key.key()).ok().and_then(|key| index.get_mut(key)) {
                *cell = apis.len() as u8;
                apis.push(ApiMetrics::new(api.name));
            }
        }
        ShardMetrics {
            index,
            apis,
            errors: [0; ERROR_CELLS],
            connections_accepted: 0,
            connections_closed: 0,
            connections_refused: 0,
            connections_violated: 0,
            connections_adopted: 0,
            received_bytes: 0,
            sent: EgressMetrics::default(),
            page_cache: PageCacheMetrics::default(),
            produce: ProduceMetrics::default(),
            fetch: FetchMetrics::default(),
            mesh: MeshMetrics::default(),
            log_lines_suppressed: 0,
        }
    }
}

impl ProduceMetrics {
    /// Counts one accepted batch.
    pub fn add(&mut self, duplicate: bool, records: i32, bytes: usize) {
        if duplicate {
            self.duplicates += 1;
            return;
        }
        self.batches += 1;
        self.records += u64::try_from(records).unwrap_or(0);
        self.bytes += bytes as u64;
    }
}

impl FetchMetrics {
    /// Counts one answer, by the bytes that each of its partitions gives.
    pub fn add(&mut self, partitions: impl Iterator<Item = u64>) {
        let before = self.bytes;
        for bytes in partitions.filter(|bytes| *bytes > 0) {
            self.bytes += bytes;
            self.partitions += 1;
        }
        self.empty += u64::from(self.bytes == before);
    }
}

impl ApiMetrics {
    fn new(name: &'static str) -> ApiMetrics {
        ApiMetrics {
            name,
            requests: 0,
            requests_failed: 0,
            received_bytes: 0,
            sent_bytes: 0,
            total: Log2Histogram::default(),
            stages: [Log2Histogram::default(); STAGES.len()],
        }
    }

    /// Adds another shard's cells of the same API.
    pub fn merge(&mut self, other: &ApiMetrics) {
        self.requests += other.requests;
        self.requests_failed += other.requests_failed;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.total.merge(&other.total);
        for (own, others) in self.stages.iter_mut().zip(&other.stages) {
            own.merge(others);
        }
    }
}

impl ShardMetrics {
    /// Counts one answered request.
    pub fn finish_request(&mut self, request: &FinishedRequest) {
        self.count_error(request.error);
        let place = usize::try_from(request.api.key()).ok().and_then(|key| self.index.get(key)).copied();
        let Some(cells) = place.and_then(|place| self.apis.get_mut(usize::from(place))) else {
            return;
        };
        cells.requests += 1;
        cells.requests_failed += u64::from(request.error.code() != 0);
        cells.received_bytes += request.received_bytes;
        cells.sent_bytes += request.sent_bytes;
        cells.total.record(request.clock.total_ns());
        for (histogram, stage) in cells.stages.iter_mut().zip(STAGES) {
            let elapsed_ns = request.clock.times().get(stage);
            if elapsed_ns > 0 {
                histogram.record(elapsed_ns);
            }
        }
    }

    /// Counts an error code that an answer carries, one for each partition that has it. Code 0 is not counted.
    pub fn count_error(&mut self, error: ErrorCode) {
        let cell = usize::try_from(i32::from(error.code()) + 1).ok();
        if let Some(cell) = cell.filter(|_| error.code() != 0).and_then(|cell| self.errors.get_mut(cell)) {
            *cell += 1;
        }
    }

    /// In the order of the API table.
    pub fn apis(&self) -> &[ApiMetrics] {
        &self.apis
    }

    /// (Kafka's name, code, count) of every error that was answered.
    pub fn errors(&self) -> impl Iterator<Item = (ErrorCode, u64)> + '_ {
        self.errors.iter().enumerate().filter(|(_, count)| **count > 0).filter_map(|(cell, count)| {
            let code = i16::try_from(cell).ok()? - 1;
            Some((ErrorCode::from_i16(code)?, *count))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ringlog_protocol::api::ApiKey;

    use super::*;
    use crate::observe::slow::ClientId;
    use crate::observe::stage::{Stage, StageClock};

    #[test]
    fn a_finished_request_fills_its_cells() {
        let mut metrics = ShardMetrics::default();
        let mut clock = StageClock::start(0);
        clock.mark(Stage::Parse, 2_000);
        clock.mark(Stage::Journal, 102_000);
        let request = FinishedRequest {
            api: ApiKey::Produce,
            version: 13,
            correlation_id: 1,
            client_id: ClientId::new("client"),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            clock,
            received_bytes: 10,
            sent_bytes: 20,
            error: ErrorCode::NotEnoughReplicas,
        };
        metrics.finish_request(&request);
        metrics.finish_request(&FinishedRequest { error: ErrorCode::None, ..request });
        let cells = metrics.apis().iter().find(|cells| cells.name == "Produce").expect("Produce is served");
        assert_eq!((cells.requests, cells.requests_failed), (2, 1));
        assert_eq!((cells.received_bytes, cells.sent_bytes), (20, 40));
        assert_eq!(cells.total.sum_ns(), 204_000);
        assert_eq!(cells.stages[Stage::Journal as usize].count(), 2);
        assert_eq!(cells.stages[Stage::Wait as usize].count(), 0);
        assert_eq!(metrics.errors().collect::<Vec<_>>(), vec![(ErrorCode::NotEnoughReplicas, 1)]);
    }

    #[test]
    fn every_error_code_and_served_api_has_a_cell() {
        for code in ErrorCode::ALL {
            let mut metrics = ShardMetrics::default();
            metrics.count_error(*code);
            let expected: Vec<_> = if code.code() == 0 { vec![] } else { vec![(*code, 1)] };
            assert_eq!(metrics.errors().collect::<Vec<_>>(), expected);
        }
        assert_eq!(ShardMetrics::default().apis().len(), api::served().count());
    }
}
