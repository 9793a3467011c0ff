//! Owns the text of `/metrics`: Prometheus text format 0.0.4 from what the shards published. The number of series is
//! bounded whatever the numbers of shards, topics and clients, since a scrape must stay cheap.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use ringlog_protocol::api::ApiKey;

use super::families::{ALWAYS, FAMILIES, Family, Type, Unit};
use super::lags;
use crate::observe::histogram::Log2Histogram;
use crate::observe::metrics::ApiMetrics;
use crate::observe::snapshot::ShardSnapshot;
use crate::observe::stage::STAGES;

/// Above so many shards only the loop's time is shown for each; all else is added up under `shard="all"`.
const SHARDS_SHOWN_MAX: usize = 16;
/// APIs whose stages are told apart. Those of all others, which come rarely, are added up under `api="other"`: an API with stages of
/// its own has over a hundred series.
const STAGES_SHOWN_OF: [ApiKey; 3] = [ApiKey::Produce, ApiKey::Fetch, ApiKey::Metadata];
/// The most series that one scrape may hold by default; a test computes the worst case.
pub const SERIES_MAX: usize = 5_000;
/// The same with every limit that can be set at its largest.
pub const SERIES_MAX_AS_SET: usize = 6_000;

/// What the process knows beside the shards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessFigures {
    pub version: &'static str,
    pub is_ready: bool,
    /// Seconds since the Unix epoch.
    pub started_seconds: f64,
    /// Of all threads.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    /// Groups whose lag is shown by name, at most.
    pub lag_groups_max: usize,
    /// Topics of those groups whose lag is shown, of all groups together.
    pub lag_topics_max: usize,
}

/// The text of one scrape, and its content type.
pub fn encode(process: ProcessFigures, shards: Vec<Arc<ShardSnapshot>>) -> (String, &'static str) {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { process, shards }));
    let mut text = String::with_capacity(64 << 10);
    prometheus_text::encode(&mut text, &registry).expect("a String takes every write");
    (text, prometheus_text::CONTENT_TYPE)
}

#[derive(Debug)]
struct Scrape {
    process: ProcessFigures,
    shards: Vec<Arc<ShardSnapshot>>,
}

pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];
pub(super) type Encoded = Result<(), std::fmt::Error>;

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Encoded {
        self.encode_process(&mut encoder)?;
        let groups = self.groups();
        let each: Vec<Group<'_>> = self.shards.iter().map(|shard| Group::one(shard)).collect();
        for family in ALWAYS {
            encode_family(&mut encoder, family, &each)?;
        }
        for family in FAMILIES {
            encode_family(&mut encoder, family, &groups)?;
        }
        let mut commit = encoder.encode_descriptor(
            "ringlog_journal_commit_seconds",
            "From an append to its journal frame durable",
            None,
            MetricType::Histogram,
        )?;
        for group in &groups {
            let mut histogram = Log2Histogram::default();
            group.shards.iter().for_each(|shard| histogram.merge(&shard.storage.commit_latency));
            encode_histogram(&mut commit, &[("shard", &group.label)], &histogram)?;
        }
        lags::encode(&mut encoder, &self.shards, self.process.lag_groups_max, self.process.lag_topics_max)?;
        self.encode_apis(&mut encoder)?;
        self.encode_errors(&mut encoder)
    }
}

/// Shards that are shown as one.
struct Group<'a> {
    label: String,
    shards: Vec<&'a ShardSnapshot>,
}

impl<'a> Group<'a> {
    fn one(shard: &'a ShardSnapshot) -> Group<'a> {
        Group { label: shard.shard.to_string(), shards: vec![shard] }
    }
}

impl Scrape {
    fn groups(&self) -> Vec<Group<'_>> {
        if self.shards.len() <= SHARDS_SHOWN_MAX {
            return self.shards.iter().map(|shard| Group::one(shard)).collect();
        }
        vec![Group { label: "all".to_owned(), shards: self.shards.iter().map(Arc::as_ref).collect() }]
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut build = encoder.encode_descriptor(
            "ringlog_build_info",
            "The running version",
            None,
            MetricType::Gauge,
        )?;
        let labels: Labels<'_> = &[("version", self.process.version)];
        build.encode_family(&labels)?.encode_gauge(&1u64)?;
        let mut gauge = |name: &str, help: &str, value: f64| {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
        };
        gauge("ringlog_ready", "1 while requests are served", f64::from(u8::from(self.process.is_ready)))?;
        gauge(
            "ringlog_start_time_seconds",
            "Start of the process since the Unix epoch",
            self.process.started_seconds,
        )?;
        gauge(
            "ringlog_resident_memory_bytes",
            "Resident memory of the process",
            self.process.resident_bytes as f64,
        )?;
        gauge("ringlog_shards", "Shards, each one thread", self.shards.len() as f64)?;
        let mut cpu = encoder.encode_descriptor(
            "ringlog_cpu_seconds",
            "CPU time of all threads",
            None,
            MetricType::Counter,
        )?;
        cpu.encode_counter::<NoLabelSet, _, f64>(&self.process.cpu_seconds, None)
    }

    /// Requests by API over all shards: which core served one says little, and the product would not be bounded.
    fn encode_apis(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let apis = self.apis();
        type Cell = fn(&ApiMetrics) -> u64;
        let counters: [(&str, &str, Cell); 4] = [
            ("ringlog_requests", "Requests answered", |api| api.requests),
            ("ringlog_requests_failed", "Requests answered with an error anywhere", |api| {
                api.requests_failed
            }),
            ("ringlog_request_bytes", "Bytes of requests", |api| api.received_bytes),
            ("ringlog_response_bytes", "Bytes of answers", |api| api.sent_bytes),
        ];
        for (name, help, cell) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for api in &apis {
                counter(&mut family, &[("api", api.name)], cell(api))?;
            }
        }
        let help = "From the last byte received to the answer handed to the kernel";
        let mut total =
            encoder.encode_descriptor("ringlog_request_seconds", help, None, MetricType::Histogram)?;
        for api in &apis {
            encode_histogram(&mut total, &[("api", api.name)], &api.total)?;
        }
        let help = "Where requests spent their time; a stage that took none is not counted";
        let mut stages =
            encoder.encode_descriptor("ringlog_request_stage_seconds", help, None, MetricType::Histogram)?;
        let (shown, others): (Vec<ApiMetrics>, Vec<ApiMetrics>) =
            apis.into_iter().partition(|api| STAGES_SHOWN_OF.iter().any(|shown| shown.name() == api.name));
        let other = others.into_iter().reduce(|mut sum, api| {
            sum.merge(&api);
            sum
        });
        let other = other.map(|sum| ApiMetrics { name: "other", ..sum });
        for api in shown.iter().chain(&other) {
            for (stage, histogram) in STAGES.iter().zip(&api.stages) {
                encode_histogram(&mut stages, &[("api", api.name), ("stage", stage.name())], histogram)?;
            }
        }
        Ok(())
    }

    /// APIs that were asked for at all.
    fn apis(&self) -> Vec<ApiMetrics> {
        let mut shards = self.shards.iter();
        let mut apis: Vec<ApiMetrics> =
            shards.next().map(|shard| shard.metrics.apis().to_vec()).unwrap_or_default();
        for shard in shards {
            for (own, others) in apis.iter_mut().zip(shard.metrics.apis()) {
                own.merge(others);
            }
        }
        apis.retain(|api| api.requests > 0);
        apis
    }

    fn encode_errors(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut errors = std::collections::BTreeMap::new();
        for (code, count) in self.shards.iter().flat_map(|shard| shard.metrics.errors()) {
            errors.entry(code.code()).or_insert((code.name(), 0)).1 += count;
        }
        let help = "Error codes answered, by Kafka's name";
        let mut family = encoder.encode_descriptor("ringlog_errors", help, None, MetricType::Counter)?;
        for (code, (name, count)) in errors {
            counter(&mut family, &[("code", &code.to_string()), ("name", name)], count)?;
        }
        Ok(())
    }
}

fn encode_family(encoder: &mut DescriptorEncoder<'_>, family: &Family, groups: &[Group<'_>]) -> Encoded {
    let kind = match family.kind {
        Type::Counter => MetricType::Counter,
        Type::Gauge => MetricType::Gauge,
    };
    let mut encoder = encoder.encode_descriptor(family.name, family.help, None, kind)?;
    for group in groups {
        for (value, read) in family.cells {
            let sum: u64 = group.shards.iter().map(|shard| read(shard)).fold(0, u64::saturating_add);
            let shard = ("shard", group.label.as_str());
            let both = [shard, (family.label, *value)];
            let labels: Labels<'_> = if family.label.is_empty() { &both[..1] } else { &both };
            let mut series = encoder.encode_family(&labels)?;
            // Whole numbers stay whole: a float loses the last bytes of a counter after 8 PiB.
            match (family.kind, family.unit) {
                (Type::Counter, Unit::One) => series.encode_counter::<NoLabelSet, _, f64>(&sum, None)?,
                (Type::Counter, Unit::Nanoseconds) => {
                    series.encode_counter::<NoLabelSet, _, f64>(&seconds(sum), None)?;
                }
                (Type::Gauge, Unit::One) => series.encode_gauge(&sum)?,
                (Type::Gauge, Unit::Nanoseconds) => series.encode_gauge(&seconds(sum))?,
            }
        }
    }
    Ok(())
}

fn counter(encoder: &mut MetricEncoder<'_>, labels: Labels<'_>, number: u64) -> Encoded {
    encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&number, None)
}

/// Empty histograms are left out: they would be most of the text.
fn encode_histogram(
    encoder: &mut MetricEncoder<'_>,
    labels: Labels<'_>,
    histogram: &Log2Histogram,
) -> Encoded {
    let count = histogram.count();
    if count == 0 {
        return Ok(());
    }
    let bound = |bound: Option<u64>| bound.map_or(f64::MAX, seconds);
    let buckets: Vec<(f64, u64)> = histogram.buckets().map(|(upper, count)| (bound(upper), count)).collect();
    encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
        seconds(histogram.sum_ns()),
        count,
        &buckets,
        None,
    )
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ringlog_protocol::api;
    use ringlog_protocol::error_code::ErrorCode;
    use ringlog_shard::limits::{GROUP_LAG_TOPICS_SHOWN_MAX, GROUP_LAGS_SHOWN_MAX};

    use super::*;
    use crate::config;
    use crate::config::load::Sources;
    use crate::config::typed::Account;
    use crate::observe::FinishedRequest;
    use crate::observe::slow::ClientId;
    use crate::observe::stage::StageClock;

    const PROCESS: ProcessFigures = ProcessFigures {
        version: "0.1.0",
        is_ready: true,
        started_seconds: 1.5,
        cpu_seconds: 2.25,
        resident_bytes: 4096,
        lag_groups_max: GROUP_LAGS_SHOWN_MAX,
        lag_topics_max: GROUP_LAG_TOPICS_SHOWN_MAX,
    };

    /// A shard on which everything that can be counted was.
    fn busy_shard(shard: u32) -> Arc<ShardSnapshot> {
        let mut snapshot = ShardSnapshot { shard, ..ShardSnapshot::default() };
        let mut clock = StageClock::start(0);
        for (index, stage) in STAGES.iter().enumerate() {
            clock.mark(*stage, (index as u64 + 1) * 3_000);
        }
        for (api, _) in api::served() {
            snapshot.metrics.finish_request(&FinishedRequest {
                api: api.key,
                version: 0,
                correlation_id: 0,
                client_id: ClientId::new("c"),
                peer: SocketAddr::from(([127, 0, 0, 1], 1)),
                clock,
                received_bytes: 10,
                sent_bytes: 20,
                error: ErrorCode::None,
            });
        }
        for code in ErrorCode::ALL {
            snapshot.metrics.count_error(*code);
        }
        snapshot.metrics.sent.sendfile_bytes = 77;
        snapshot.io.busy_ns = 1_500_000_000;
        snapshot.storage.commit_latency.record(200_000);
        snapshot.lags = Some(Arc::new(lags::tests::busy_report(shard)));
        Arc::new(snapshot)
    }

    fn scrape(shards: u32) -> String {
        scrape_by(PROCESS, shards)
    }

    fn scrape_by(process: ProcessFigures, shards: u32) -> String {
        encode(process, (0..shards).map(busy_shard).collect()).0
    }

    /// By default.
    fn as_not_set() -> ProcessFigures {
        let account = Account { is_root: true, ..Account::default() };
        let config = config::load(&Sources::default(), &account).expect("defaults are legal");
        let (lag_groups_max, lag_topics_max) = (config.groups.lag_groups_max, config.groups.lag_topics_max);
        ProcessFigures { lag_groups_max, lag_topics_max, ..PROCESS }
    }

    fn series(text: &str) -> usize {
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count()
    }

    #[test]
    fn lines_have_the_shape_that_dashboards_expect() {
        let text = scrape(2);
        for expected in [
            "# TYPE ringlog_build_info gauge\nringlog_build_info{version=\"0.1.0\"} 1\n",
            "ringlog_ready 1.0\n",
            "# TYPE ringlog_cpu_seconds_total counter\nringlog_cpu_seconds_total 2.25\n",
            "ringlog_shard_time_seconds_total{shard=\"1\",state=\"busy\"} 1.5\n",
            "ringlog_sent_bytes_total{shard=\"0\",route=\"sendfile\"} 77\n",
            "ringlog_requests_total{api=\"Produce\"} 2\n",
            "ringlog_request_seconds_count{api=\"Produce\"} 2\n",
            "ringlog_request_stage_seconds_bucket{api=\"Fetch\",stage=\"wait\",le=\"1.024e-06\"} 0\n",
            "ringlog_request_stage_seconds_bucket{api=\"Fetch\",stage=\"wait\",le=\"4.096e-06\"} 2\n",
            "ringlog_request_stage_seconds_bucket{api=\"Fetch\",stage=\"wait\",le=\"+Inf\"} 2\n",
            "ringlog_errors_total{code=\"3\",name=\"UNKNOWN_TOPIC_OR_PARTITION\"} 2\n",
            "ringlog_journal_commit_seconds_count{shard=\"0\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn stages_of_apis_that_come_rarely_are_added_up() {
        let text = scrape(1);
        let count = |api: &str| {
            let line = format!("ringlog_request_stage_seconds_count{{api=\"{api}\",stage=\"journal\"}} ");
            text.lines().find_map(|found| found.strip_prefix(&line)).map(str::to_owned)
        };
        let others = api::served().count() - STAGES_SHOWN_OF.len();
        assert_eq!(count("other"), Some(others.to_string()));
        assert_eq!(count("Produce").as_deref(), Some("1"));
        assert_eq!(count("CreateTopics"), None);
        assert!(text.contains("ringlog_request_seconds_count{api=\"CreateTopics\"} 1\n"), "{text}");
    }

    #[test]
    fn names_follow_the_conventions() {
        let text = scrape(1);
        for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
            let mut words = line.split(' ').skip(2);
            let (name, kind) = (words.next().expect("a name"), words.next().expect("a type"));
            assert!(name.starts_with("ringlog_"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(!name.contains("_ms") && !name.contains("_us") && !name.contains("_ns_"), "{line}");
        }
    }

    #[test]
    fn the_number_of_series_is_bounded_and_small_at_first() {
        for shards in [1, 4, SHARDS_SHOWN_MAX as u32, SHARDS_SHOWN_MAX as u32 + 1, 256] {
            for (process, most) in [(as_not_set(), SERIES_MAX), (PROCESS, SERIES_MAX_AS_SET)] {
                let count = series(&scrape_by(process, shards));
                assert!(count <= most, "{shards} shards: {count}");
            }
        }
        let idle = encode(PROCESS, vec![Arc::new(ShardSnapshot::default())]).0;
        assert!(series(&idle) < 128, "{}", series(&idle));
        assert_eq!(series(&encode(PROCESS, vec![]).0), 6);
    }

    #[test]
    fn many_shards_are_added_up() {
        let text = scrape(40);
        assert!(text.contains("ringlog_sent_bytes_total{shard=\"all\",route=\"sendfile\"} 3080\n"));
        assert!(text.contains("ringlog_shard_time_seconds_total{shard=\"39\",state=\"busy\"} 1.5\n"));
    }
}
