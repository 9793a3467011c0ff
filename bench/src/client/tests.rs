//! The client against a broker that misbehaves: every fault ends in a clear error or in a correct retry.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{Io, Monotonic};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::Record;

use super::address::parse_bootstrap;
use super::admin::OffsetQuery;
use super::error::ConnectionFault;
use super::fake_broker::{FakeBroker, FakeConfig, Mischief, SIZE, TOPIC};
use super::fake_groups::{GROUP, OFFSET};
use super::log_dirs::LogSizes;
use super::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use super::reader::{Reader, ReaderOptions, RecordSink};
use super::{Client, ClientConfig, ClientError};
use crate::runtime::block_on;

type Outcome = (u32, Result<Delivered, ClientError>);
type Outcomes = Rc<RefCell<Vec<Outcome>>>;

fn run<F: Future>(main: impl FnOnce(Io) -> F) -> F::Output {
    block_on(main).expect("an executor can be set up")
}

fn client_config(broker: &FakeBroker) -> ClientConfig {
    let mut config = ClientConfig::new(parse_bootstrap(&broker.address().to_string()).expect("valid"));
    config.connection.request_timeout = Duration::from_millis(300);
    config.connection.connect_timeout = Duration::from_secs(2);
    config.metadata_timeout = Duration::from_secs(2);
    config
}

/// Connects and asks for the topic, with one thing going wrong.
fn first_contact(config: FakeConfig) -> Result<(), ClientError> {
    run(|io| async move {
        let broker = FakeBroker::start(&io, config);
        let client = Client::connect(&io, client_config(&broker)).await?;
        client.topic(TOPIC).await?;
        client.offsets(TOPIC, &[0], OffsetQuery::Latest).await?;
        Ok(())
    })
}

fn with_mischief(api: ApiKey, mischief: Vec<Mischief>) -> FakeConfig {
    FakeConfig { mischief: (api, mischief), ..FakeConfig::default() }
}

#[test]
fn every_served_version_is_spoken() {
    for version_max in [
        (|api| api.api().served.map_or(0, |served| served.versions.max)) as fn(ApiKey) -> i16,
        |api| api.api().served.map_or(0, |served| served.versions.min.max(1)),
        |api| if matches!(api, ApiKey::Produce | ApiKey::Fetch) { 12 } else { 4 },
    ] {
        first_contact(FakeConfig { version_max, ..FakeConfig::default() }).expect("the versions overlap");
    }
}

#[test]
fn groups_are_asked_for_in_the_versions_of_old_and_new_brokers() {
    for version_max in [
        (|api| api.api().served.map_or(0, |served| served.versions.max)) as fn(ApiKey) -> i16,
        // The first versions of each: of one group, one key, and without states. The first OffsetFetch cannot ask for all.
        |api| match api {
            ApiKey::FindCoordinator | ApiKey::ListGroups | ApiKey::DescribeGroups | ApiKey::DeleteGroups => 0,
            ApiKey::OffsetFetch => 2,
            api => api.api().served.map_or(0, |served| served.versions.max),
        },
        // Those before several groups and keys a request.
        |api| match api {
            ApiKey::FindCoordinator => 3,
            api => api.api().served.map_or(0, |served| served.versions.max.min(7)),
        },
    ] {
        run(|io| async move {
            let broker = FakeBroker::start(&io, FakeConfig { version_max, ..FakeConfig::default() });
            let client = Client::connect(&io, client_config(&broker)).await.expect("the versions overlap");
            let listed = client.groups().await.expect("a list");
            assert_eq!((listed.len(), listed[0].id.as_str()), (1, GROUP));
            let described = client.describe_group(GROUP).await.expect("a classic group");
            assert_eq!((described.state.as_str(), described.kind), ("Stable", "classic"));
            assert_eq!(described.members[0].assignment, [(TOPIC.to_owned(), 0)]);
            let offsets = client.group_offsets(GROUP).await.expect("an offset");
            assert_eq!(offsets[&(TOPIC.to_owned(), 0)].offset, OFFSET);
            client.delete_group(GROUP).await.expect("it may");
        });
    }
}

/// What leaders tell of sizes.
fn log_sizes(config: FakeConfig) -> Result<LogSizes, ClientError> {
    run(|io| async move {
        let broker = FakeBroker::start(&io, config);
        let client = Client::connect(&io, client_config(&broker)).await?;
        let topic = client.topic(TOPIC).await?;
        client.log_sizes(&[&*topic]).await
    })
}

#[test]
fn sizes_are_those_of_replicas_that_do_not_move_in_every_version() {
    let told = LogSizes::from([((TOPIC.to_owned(), 0), SIZE as u64)]);
    for version_max in [
        (|api| if api == ApiKey::DescribeLogDirs { 1 } else { 4 }) as fn(ApiKey) -> i16,
        |api| if api == ApiKey::DescribeLogDirs { 3 } else { 4 },
        |api| api.api().served.map_or(0, |served| served.versions.max),
    ] {
        assert_eq!(log_sizes(FakeConfig { version_max, ..FakeConfig::default() }), Ok(told.clone()));
    }
}

#[test]
fn who_tells_no_sizes_is_no_failure() {
    let nothing = Ok(LogSizes::new());
    // From before the first version there is.
    let version_max = |api| if api == ApiKey::DescribeLogDirs { 0 } else { 4 };
    assert_eq!(log_sizes(FakeConfig { version_max, ..FakeConfig::default() }), nothing);
    for mischief in [Mischief::Refuse(ErrorCode::ClusterAuthorizationFailed), Mischief::Close] {
        assert_eq!(log_sizes(with_mischief(ApiKey::DescribeLogDirs, vec![mischief])), nothing);
    }
    let refused = Mischief::Refuse(ErrorCode::InvalidRequest);
    let error = log_sizes(with_mischief(ApiKey::DescribeLogDirs, vec![refused])).expect_err("not that");
    assert_eq!(error.code(), Some(ErrorCode::InvalidRequest));
}

#[test]
fn an_old_broker_is_asked_again_in_its_version() {
    for api_versions_max in [0, 2, 3] {
        first_contact(FakeConfig { api_versions_max, ..FakeConfig::default() }).expect("negotiated down");
    }
}

#[test]
fn no_common_version_is_named() {
    let version_max = |api| if api == ApiKey::ListOffsets { 0 } else { 9 };
    let error = first_contact(FakeConfig { version_max, ..FakeConfig::default() }).expect_err("no overlap");
    assert!(matches!(&error, ClientError::Unsupported { api: "ListOffsets", .. }), "{error}");
    assert!(error.to_string().contains("theirs 0-0"), "{error}");
}

#[test]
fn faults_of_the_first_contact_name_address_api_and_remedy() {
    let cases = [
        (Mischief::Close, "the broker closed the connection", "TLS"),
        (Mischief::FrameLength(0x1503_0100), "bytes, allowed are", "TLS"),
        (Mischief::FrameLength(-1), "announces -1 bytes", ""),
        (Mischief::WrongCorrelation, "correlation id", ""),
        (Mischief::Silence, "no answer within 300 ms", ""),
        (Mischief::Garbage, "cannot be read", ""),
    ];
    for (mischief, cause, remedy) in cases {
        let error =
            first_contact(with_mischief(ApiKey::ApiVersions, vec![mischief.clone()])).expect_err("it fails");
        let text = error.to_string();
        for part in ["ApiVersions", "127.0.0.1:", cause, remedy] {
            assert!(text.contains(part), "{mischief:?}: '{part}' is not in '{text}'");
        }
    }
}

#[test]
fn an_unreachable_advertised_address_is_named_with_the_setting() {
    // Port 1 on loopback: nobody listens there.
    let config = FakeConfig { advertised: Some(("127.0.0.1".to_owned(), 1)), ..FakeConfig::default() };
    let text = run(|io| async move {
        let broker = FakeBroker::start(&io, config);
        let mut settings = client_config(&broker);
        settings.metadata_timeout = Duration::from_millis(100);
        let client = Client::connect(&io, settings).await.expect("bootstrap works");
        let error =
            client.offsets(TOPIC, &[0], OffsetQuery::Latest).await.expect_err("the leader is out of reach");
        error.to_string()
    });
    for part in ["127.0.0.1:1", "advertised.listeners", "broker 1"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn all_bootstrap_addresses_are_tried_and_reported() {
    run(|io| async move {
        let broker = FakeBroker::start(&io, FakeConfig::default());
        let both = format!("127.0.0.1:1,{}", broker.address());
        let config = ClientConfig::new(parse_bootstrap(&both).expect("valid"));
        Client::connect(&io, config).await.expect("the second address works");
        let dead = ClientConfig::new(parse_bootstrap("127.0.0.1:1,127.0.0.1:2").expect("valid"));
        let error = Client::connect(&io, dead).await.map(|_| ()).expect_err("nobody listens there");
        let text = error.to_string();
        assert!(text.contains("127.0.0.1:1") && text.contains("127.0.0.1:2"), "{text}");
    });
}

/// Sends `count` batches of two records through a producer and returns outcomes and the log's base sequences.
fn produce(config: FakeConfig, settings: ProducerConfig, count: u32) -> (Vec<Outcome>, Vec<i32>) {
    run(|io| async move {
        let broker = FakeBroker::start(&io, config);
        let client = Client::connect(&io, client_config(&broker)).await.expect("bootstrap works");
        let outcomes: Outcomes = Rc::default();
        let seen = outcomes.clone();
        let producer =
            Producer::start(&client, settings, move |tag, result| seen.borrow_mut().push((tag, result)));
        let producer = producer.await.expect("a producer id");
        let topic: Rc<str> = TOPIC.into();
        for tag in 0..count {
            producer.room(&topic, 0).await;
            let bytes = batch(producer.stamp(&topic, 0, 2));
            producer.send(vec![OutBatch { topic: topic.clone(), partition: 0, bytes, tag }]);
        }
        producer.flush().await;
        let outcomes = outcomes.borrow().clone();
        (outcomes, broker.sequences())
    })
}

fn batch(producer: Option<ringlog_protocol::records::validate::BatchProducer>) -> Bytes {
    let mut builder = BatchBuilder::new();
    for value in [b"one", b"two"] {
        let record = NewRecord { timestamp: 1, value: Some(value), ..NewRecord::default() };
        builder.append(&record).expect("small records fit");
    }
    Bytes::from(builder.finish(&BatchOptions { producer, ..BatchOptions::default() }).expect("two records"))
}

fn settings(is_idempotent: bool, acks: Acks) -> ProducerConfig {
    ProducerConfig {
        acks,
        is_idempotent,
        request_timeout: Duration::from_millis(100),
        delivery_timeout: Duration::from_secs(3),
        retry_pause: Duration::from_millis(10),
        ..ProducerConfig::default()
    }
}

fn offsets(outcomes: &[Outcome]) -> BTreeMap<u32, i64> {
    let delivered =
        outcomes.iter().map(|(tag, result)| (*tag, result.as_ref().expect("delivered").base_offset));
    delivered.collect()
}

#[test]
fn batches_arrive_once_and_in_order_whatever_happens_to_the_second_request() {
    for mischief in [
        Mischief::None,
        Mischief::Close,
        Mischief::CloseAfter,
        Mischief::Silence,
        Mischief::Refuse(ErrorCode::NotLeaderOrFollower),
        Mischief::Refuse(ErrorCode::UnknownTopicId),
        Mischief::Refuse(ErrorCode::NotEnoughReplicasAfterAppend),
    ] {
        let config = with_mischief(ApiKey::Produce, vec![Mischief::None, mischief.clone()]);
        let (outcomes, sequences) = produce(config, settings(true, Acks::All), 12);
        let expected: BTreeMap<u32, i64> = (0..12).map(|tag| (tag, i64::from(tag) * 2)).collect();
        assert_eq!(offsets(&outcomes), expected, "{mischief:?}");
        assert_eq!(sequences, (0..12).map(|tag| tag * 2).collect::<Vec<i32>>(), "{mischief:?}");
    }
}

#[test]
fn without_idempotence_an_unknown_outcome_is_reported_and_never_repeated() {
    let config = with_mischief(ApiKey::Produce, vec![Mischief::None, Mischief::CloseAfter]);
    let one_at_a_time = ProducerConfig { in_flight_max: 1, ..settings(false, Acks::Leader) };
    let (outcomes, sequences) = produce(config, one_at_a_time, 4);
    let failed: Vec<u32> =
        outcomes.iter().filter(|(_, result)| result.is_err()).map(|(tag, _)| *tag).collect();
    assert_eq!(failed, [1]);
    // It was appended, once.
    assert_eq!(sequences.len(), 4);
    let refused = with_mischief(ApiKey::Produce, vec![Mischief::Refuse(ErrorCode::NotLeaderOrFollower)]);
    let (outcomes, sequences) = produce(refused, settings(false, Acks::Leader), 1);
    assert!(outcomes.iter().all(|(_, result)| result.is_ok()), "surely absent, so sent again");
    assert_eq!(sequences.len(), 1);
}

#[test]
fn a_final_refusal_stops_an_idempotent_producer() {
    let config =
        with_mischief(ApiKey::Produce, vec![Mischief::None, Mischief::Refuse(ErrorCode::MessageTooLarge)]);
    let one_at_a_time = ProducerConfig { in_flight_max: 1, ..settings(true, Acks::All) };
    let (outcomes, sequences) = produce(config, one_at_a_time, 4);
    let errors: Vec<String> =
        outcomes.iter().filter_map(|(_, result)| result.as_ref().err().map(ToString::to_string)).collect();
    assert_eq!(errors.len(), 3);
    assert!(errors[0].contains("MESSAGE_TOO_LARGE") && errors[0].contains("127.0.0.1"), "{}", errors[0]);
    assert!(
        errors[1].contains("an earlier batch") && errors[1].contains("MESSAGE_TOO_LARGE"),
        "{}",
        errors[1]
    );
    assert_eq!(sequences, [0]);
}

#[test]
fn acks_0_is_done_when_the_bytes_are_handed_over() {
    let (outcomes, _) = produce(FakeConfig::default(), settings(false, Acks::None), 5);
    assert_eq!(outcomes.len(), 5);
    assert!(
        outcomes.iter().all(|(_, result)| result.as_ref().is_ok_and(|delivered| delivered.base_offset == -1))
    );
}

#[test]
fn a_batch_that_nobody_answers_is_given_up_in_time() {
    let config = with_mischief(ApiKey::Produce, vec![Mischief::Silence; 100]);
    let impatient =
        ProducerConfig { delivery_timeout: Duration::from_millis(500), ..settings(true, Acks::All) };
    let (outcomes, sequences) = produce(config, impatient, 1);
    let error = outcomes[0].1.as_ref().expect_err("never answered");
    assert!(matches!(error, ClientError::Request { fault: ConnectionFault::TimedOut { .. }, .. }), "{error}");
    assert!(sequences.is_empty());
}

#[derive(Default)]
struct Collect {
    values: Vec<(i64, Vec<u8>)>,
    stop_after: Option<usize>,
}

impl RecordSink for Collect {
    fn record(&mut self, _partition: i32, record: &Record<'_>, _arrived_at: Monotonic) -> bool {
        self.values.push((record.offset.0, record.value.unwrap_or_default().to_vec()));
        self.stop_after != Some(self.values.len())
    }
}

/// Produces `batches` of two records, then reads from `from`.
fn read(config: FakeConfig, batches: u32, from: i64, sink: Collect) -> (Result<(), ClientError>, Vec<i64>) {
    run(|io| async move {
        let broker = FakeBroker::start(&io, config);
        let client = Client::connect(&io, client_config(&broker)).await.expect("bootstrap works");
        let producer = Producer::start(&client, settings(true, Acks::All), |(), result| {
            result.expect("delivered");
        });
        let producer = producer.await.expect("a producer id");
        let topic: Rc<str> = TOPIC.into();
        for _ in 0..batches {
            producer.room(&topic, 0).await;
            let bytes = batch(producer.stamp(&topic, 0, 2));
            producer.send(vec![OutBatch { topic: topic.clone(), partition: 0, bytes, tag: () }]);
        }
        producer.flush().await;
        let ends = client.offsets(TOPIC, &[0], OffsetQuery::Latest).await.expect("the fake's end");
        let reader = Reader::new(&client, TOPIC, BTreeMap::from([(0, from)]), ReaderOptions::default(), sink);
        reader.set_ends(ends);
        let result = reader.run().await;
        (result, reader.with_sink(|sink| sink.values.iter().map(|(offset, _)| *offset).collect()))
    })
}

#[test]
fn readers_see_each_record_once_in_order_across_faults() {
    let refuse_another = Mischief::RefuseAnother(ErrorCode::KafkaStorageError);
    for mischief in [Mischief::None, Mischief::Close, Mischief::Silence, refuse_another] {
        for version_max in [18, 12, 4] {
            let config = FakeConfig {
                version_max: match version_max {
                    18 => |api| api.api().served.map_or(0, |served| served.versions.max),
                    12 => |api| if matches!(api, ApiKey::Produce | ApiKey::Fetch) { 12 } else { 4 },
                    _ => |_| 4,
                },
                ..with_mischief(ApiKey::Fetch, vec![Mischief::None, mischief.clone()])
            };
            let (result, offsets) = read(config, 9, 3, Collect::default());
            result.expect("faults pass");
            assert_eq!(offsets, (3..18).collect::<Vec<i64>>(), "{mischief:?} v{version_max}");
        }
    }
}

#[test]
fn a_reader_stops_where_its_sink_says() {
    let sink = Collect { stop_after: Some(3), ..Collect::default() };
    let (result, offsets) = read(FakeConfig::default(), 9, 0, sink);
    result.expect("nothing went wrong");
    assert_eq!(offsets, [0, 1, 2]);
}

#[test]
fn an_offset_outside_the_log_is_explained() {
    let (result, _) = read(FakeConfig::default(), 2, -5, Collect::default());
    let text = result.expect_err("there is no offset -5").to_string();
    for part in ["OFFSET_OUT_OF_RANGE", "offset -5", "ends at 4", "partition 0"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_request_on_a_closed_connection_is_an_error() {
    let result = run(|io| async move {
        let broker = FakeBroker::start(&io, FakeConfig::default());
        let client = Client::connect(&io, client_config(&broker)).await?;
        let connection = client.any_connection().await?;
        connection.close(ConnectionFault::Closed);
        connection.call(ApiKey::Metadata, 1, Duration::ZERO, |_, _| Ok(())).await
    });
    assert!(
        matches!(&result, Err(ClientError::Request { fault: ConnectionFault::Closed, .. })),
        "{result:?}"
    );
}

#[test]
fn callers_of_one_lane_share_one_connection() {
    run(|io| async move {
        let broker =
            FakeBroker::start(&io, FakeConfig { delay: Duration::from_millis(5), ..FakeConfig::default() });
        let client = Client::connect(&io, client_config(&broker)).await.expect("bootstrap works");
        client.topic(TOPIC).await.expect("it exists");
        let asking: Vec<_> = (0..10)
            .map(|_| {
                let client = client.clone();
                io.spawn(ringlog_io::Priority::Foreground, async move {
                    client.offsets(TOPIC, &[0], OffsetQuery::Latest).await.map(|offsets| offsets[&0])
                })
            })
            .collect();
        for task in asking {
            assert_eq!(task.await, Ok(0));
        }
        // One for bootstrap, one for the leader.
        assert_eq!(broker.connections(), 2);
    });
}
