//! Owns what each admin path answers. All of them only read.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::metrics::{self, ProcessFigures};
use super::timeline;
use crate::cli::version::VERSION;
use crate::config::BrokerConfig;
use crate::observe::slow::SlowRequest;
use crate::observe::snapshot::{ShardSnapshot, SnapshotSlot};
use crate::observe::stage::STAGES;
use crate::process::escape::escaped;
use crate::process::stop::{Phase, Readiness};

/// A shard that serves and has shown nothing for so long, beyond two intervals, is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(10);

const INDEX: &str = "\
ringlog admin
  /metrics   counters and histograms for Prometheus
  /healthz   200 while every shard is alive; says what is degraded
  /readyz    200 while requests are served, otherwise why not
  /slow      the slowest requests of the last minutes, by stage
  /config    every setting and where it comes from
  /flight    the last events of every shard
  /groups/<group>/timeline   the last rebalances of a consumer group: who made them, why, what moved
";

/// What the answers are made from.
#[derive(Debug)]
pub struct AdminState {
    pub config: Arc<BrokerConfig>,
    pub slots: Vec<SnapshotSlot>,
    pub readiness: Readiness,
    /// When the process started.
    pub started: SystemTime,
}

pub fn router(state: Arc<AdminState>) -> Router {
    Router::new()
        .route("/", get(|| async { INDEX }))
        .route("/metrics", get(get_metrics))
        .route("/healthz", get(get_health))
        .route("/readyz", get(get_ready))
        .route("/slow", get(get_slow))
        .route("/config", get(get_config))
        .route("/flight", get(get_flight))
        .route("/groups/{group}/timeline", get(get_timeline))
        .with_state(state)
}

impl AdminState {
    fn snapshots(&self) -> Vec<Arc<ShardSnapshot>> {
        self.slots.iter().map(SnapshotSlot::read).collect()
    }
}

async fn get_metrics(State(state): State<Arc<AdminState>>) -> Response {
    let process = ProcessFigures {
        version: VERSION,
        is_ready: state.readiness.phase() == Phase::Serving,
        started_seconds: state.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        cpu_seconds: cpu_seconds(),
        resident_bytes: resident_bytes().unwrap_or(0),
        lag_groups_max: state.config.groups.lag_groups_max,
        lag_topics_max: state.config.groups.lag_topics_max,
    };
    let (text, content_type) = metrics::encode(process, state.snapshots());
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(u64::try_from(rustix::param::page_size()).ok()?)
}

async fn get_health(State(state): State<Arc<AdminState>>) -> (StatusCode, String) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let allowed = SILENCE_MAX + 2 * Duration::from_millis(state.config.observation.metrics_interval_ms);
    match silent_shard(&state.snapshots(), now, allowed) {
        Some((shard, silence)) if state.readiness.phase() == Phase::Serving => {
            let text = format!(
                "shard {shard} has shown nothing for {} s: it is stuck or starved\n",
                silence.as_secs()
            );
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
        _ => (StatusCode::OK, health_text(&state.snapshots())),
    }
}

/// `ok`, or a line for each ailment. Still 200: a restart would not give a full disk space, and reads go on.
fn health_text(shards: &[Arc<ShardSnapshot>]) -> String {
    let mut text = String::new();
    for shard in shards {
        for ailment in &shard.ailments {
            text.push_str(&format!("degraded: shard {}: {ailment}\n", shard.shard));
        }
    }
    if text.is_empty() { "ok\n".to_owned() } else { text }
}

/// A shard that published once and then fell silent. A wall clock that jumps forward can blame one for an interval.
fn silent_shard(shards: &[Arc<ShardSnapshot>], now: Duration, allowed: Duration) -> Option<(u32, Duration)> {
    let silence = |shard: &Arc<ShardSnapshot>| {
        let at = Duration::from_millis(u64::try_from(shard.published_at_ms).unwrap_or(0));
        Some((shard.shard, now.saturating_sub(at)))
            .filter(|(_, silence)| shard.published_at_ms > 0 && *silence > allowed)
    };
    shards.iter().filter_map(silence).max_by_key(|(_, silence)| *silence)
}

async fn get_ready(State(state): State<Arc<AdminState>>) -> (StatusCode, String) {
    let phase = state.readiness.phase();
    let status = if phase == Phase::Serving { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, format!("{phase}\n"))
}

async fn get_slow(State(state): State<Arc<AdminState>>) -> Response {
    let mut requests: Vec<(u32, SlowRequest)> = Vec::new();
    for snapshot in state.snapshots() {
        requests.extend(snapshot.slow.iter().map(|request| (snapshot.shard, *request)));
    }
    requests.sort_by_key(|(_, request)| std::cmp::Reverse(request.busy_ns()));
    let shown: Vec<Value> = requests.iter().map(|(shard, request)| slow_json(*shard, request)).collect();
    axum::Json(json!({ "requests": shown })).into_response()
}

fn slow_json(shard: u32, request: &SlowRequest) -> Value {
    let micros = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let stages: serde_json::Map<String, Value> = STAGES
        .iter()
        .map(|stage| (format!("{}_us", stage.name()), Value::from(micros(request.times.get(*stage)))))
        .collect();
    json!({
        "shard": shard,
        "api": request.api,
        "version": request.version,
        "correlation_id": request.correlation_id,
        "client_id": escaped(request.client_id.as_str()).to_string(),
        "peer": request.peer.to_string(),
        "busy_us": micros(request.busy_ns()),
        "total_us": micros(request.total_ns),
        "worst_stage": request.worst_stage().name(),
        "stages": stages,
    })
}

async fn get_config(State(state): State<Arc<AdminState>>) -> Response {
    axum::Json(&state.config.settings).into_response()
}

async fn get_timeline(State(state): State<Arc<AdminState>>, Path(group): Path<String>) -> Response {
    axum::Json(timeline::of_group(&group, &state.snapshots())).into_response()
}

async fn get_flight(State(state): State<Arc<AdminState>>) -> String {
    let mut text = String::new();
    for snapshot in state.snapshots() {
        text.push_str(&format!("shard {}, monotonic seconds:\n", snapshot.shard));
        for event in &snapshot.flight {
            text.push_str(&format!("{event}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_names_every_ailment() {
        let shard = |shard, ailments: &[&str]| {
            let ailments = ailments.iter().map(|ailment| (*ailment).to_owned()).collect();
            Arc::new(ShardSnapshot { shard, ailments, ..ShardSnapshot::default() })
        };
        assert_eq!(health_text(&[shard(0, &[]), shard(1, &[])]), "ok\n");
        let text = health_text(&[shard(0, &["a", "b"]), shard(1, &["c"])]);
        assert_eq!(text, "degraded: shard 0: a\ndegraded: shard 0: b\ndegraded: shard 1: c\n");
    }

    #[test]
    fn a_shard_that_fell_silent_is_found() {
        let shard = |shard, published_at_ms| {
            Arc::new(ShardSnapshot { shard, published_at_ms, ..ShardSnapshot::default() })
        };
        let (now, allowed) = (Duration::from_secs(100), Duration::from_secs(12));
        assert_eq!(silent_shard(&[shard(0, 99_000), shard(1, 0)], now, allowed), None);
        let found = silent_shard(&[shard(0, 99_000), shard(1, 80_000), shard(2, 70_000)], now, allowed);
        assert_eq!(found, Some((2, Duration::from_secs(30))));
        assert_eq!(silent_shard(&[shard(0, 200_000)], now, allowed), None);
    }
}
