//! A broker in this process that misbehaves on demand, for the client's tests. One partition, kept in memory.
//!
//! It checks idempotent sequences as Kafka does, so that a client which retries out of order is caught.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringlog_io::{Io, ListenOptions, Priority, Socket, Task};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame::{RequestHeader, ResponseHeader};
use ringlog_protocol::ids::{Offset, TopicId};
use ringlog_protocol::messages::api_versions::{ApiVersion, ApiVersionsResponse};
use ringlog_protocol::messages::create_topics::{CreatableTopicResult, CreateTopicsResponse};
use ringlog_protocol::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsResponse, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use ringlog_protocol::messages::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use ringlog_protocol::messages::init_producer_id::InitProducerIdResponse;
use ringlog_protocol::messages::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use ringlog_protocol::messages::metadata::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use ringlog_protocol::messages::produce::{
    PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse,
};
use ringlog_protocol::records::batch::{BatchHeader, seal, set_base_offset};
use ringlog_protocol::wire::{EncodeError, Piece, Reader, Records, Writer};

use super::fake_groups;

pub const TOPIC: &str = "fake";
const TOPIC_ID: TopicId = TopicId([7; 16]);
pub const NODE_ID: i32 = 1;
/// Bytes of the partition, as the fake says.
pub const SIZE: i64 = 4711;

/// What goes wrong, once for each entry, in order of requests of the API it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Close the connection instead of answering; the request is not carried out.
    Close,
    /// Carry the request out, then close without an answer.
    CloseAfter,
    /// Answer with another correlation id.
    WrongCorrelation,
    /// Never answer this nor anything else on the connection.
    Silence,
    /// Announce a frame of this length.
    FrameLength(i32),
    /// Produce, DescribeLogDirs: refuse with this code and do nothing.
    Refuse(ErrorCode),
    /// Fetch: tell beside the records of an error of another partition.
    RefuseAnother(ErrorCode),
    /// Bytes that are no response of the API.
    Garbage,
    /// Carry the request out, then keep this connection waiting.
    Stall(Duration),
    /// Produce: acknowledge and append nothing.
    Lose,
    /// Produce: append twice.
    Repeat,
    /// Produce: acknowledge, and append behind the next batch.
    Postpone,
    /// Produce: flip a bit of the first record's payload, and make the batch whole again.
    Alter,
    /// Nothing wrong.
    None,
}

/// How the broker is set up.
pub struct FakeConfig {
    /// Highest version it serves of every API.
    pub version_max: fn(ApiKey) -> i16,
    /// ApiVersions above this are answered with error 35 in version 0.
    pub api_versions_max: i16,
    /// What Metadata says about where it listens; `None` = the truth.
    pub advertised: Option<(String, u16)>,
    /// The API that goes wrong, and how.
    pub mischief: (ApiKey, Vec<Mischief>),
    /// Answers take this long.
    pub delay: Duration,
}

impl Default for FakeConfig {
    fn default() -> FakeConfig {
        FakeConfig {
            version_max: |api| api.api().served.map_or(0, |served| served.versions.max),
            api_versions_max: 4,
            advertised: None,
            mischief: (ApiKey::Produce, Vec::new()),
            delay: Duration::ZERO,
        }
    }
}

/// The running broker. Dropping it ends its tasks.
pub struct FakeBroker {
    state: Rc<State>,
    _acceptor: Task<()>,
}

struct State {
    io: Io,
    config: FakeConfig,
    address: SocketAddr,
    mischief: RefCell<VecDeque<Mischief>>,
    log: RefCell<Vec<Vec<u8>>>,
    end_offset: Cell<i64>,
    next_sequence: Cell<i32>,
    connections: Cell<u32>,
    postponed: RefCell<Option<Vec<u8>>>,
}

impl FakeBroker {
    pub fn start(io: &Io, config: FakeConfig) -> FakeBroker {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = io.listen(any, &ListenOptions::default()).expect("loopback is there");
        let state = Rc::new(State {
            io: io.clone(),
            address: listener.local_address(),
            mischief: RefCell::new(config.mischief.1.clone().into()),
            config,
            log: RefCell::default(),
            end_offset: Cell::new(0),
            next_sequence: Cell::new(0),
            connections: Cell::new(0),
            postponed: RefCell::default(),
        });
        let accepting = state.clone();
        let acceptor = io.spawn(Priority::Foreground, async move {
            while let Ok((socket, _)) = accepting.io.accept(&listener).await {
                accepting.connections.set(accepting.connections.get() + 1);
                accepting.io.spawn(Priority::Foreground, serve(accepting.clone(), Rc::new(socket))).detach();
            }
        });
        FakeBroker { state, _acceptor: acceptor }
    }

    pub fn address(&self) -> SocketAddr {
        self.state.address
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u32 {
        self.state.connections.get()
    }

    /// Base sequences of the batches in the log, in log order.
    pub fn sequences(&self) -> Vec<i32> {
        let log = self.state.log.borrow();
        log.iter().map(|batch| BatchHeader::parse(batch).expect("kept whole").base_sequence.0).collect()
    }
}

async fn serve(state: Rc<State>, socket: Rc<Socket>) {
    let mut buffer = BytesMut::new();
    loop {
        while let Some(frame) = take_frame(&mut buffer) {
            state.io.sleep(state.config.delay).await;
            if !answer(&state, &socket, &frame).await {
                socket.shutdown();
                return;
            }
        }
        buffer.reserve(65_536);
        let (result, filled) = state.io.recv_into(&socket, buffer, 65_536).await;
        buffer = filled;
        if !matches!(result, Ok(bytes) if bytes > 0) {
            return;
        }
    }
}

fn take_frame(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = i32::from_be_bytes(*buffer.first_chunk::<4>()?);
    let whole = 4 + usize::try_from(length).expect("our client sends no negative length");
    (buffer.len() >= whole).then(|| buffer.split_to(whole).freeze().slice(4..))
}

/// False ends the connection.
async fn answer(state: &State, socket: &Socket, frame: &Bytes) -> bool {
    let mut reader = Reader::new(frame);
    let header = RequestHeader::decode(&mut reader).expect("our client's headers can be read");
    let mischief = match header.api == state.config.mischief.0 {
        true => state.mischief.borrow_mut().pop_front().unwrap_or(Mischief::None),
        false => Mischief::None,
    };
    let mut correlation_id = header.correlation_id;
    match &mischief {
        Mischief::Close => return false,
        Mischief::Silence => {
            // A hung broker: the connection stays open and nothing on it is answered any more.
            state.io.sleep(Duration::from_secs(3_600)).await;
            return false;
        }
        Mischief::Stall(time) => state.io.sleep(*time).await,
        Mischief::WrongCorrelation => correlation_id += 1,
        Mischief::FrameLength(length) => {
            let bytes = Bytes::copy_from_slice(&length.to_be_bytes());
            return state.io.send(socket, vec![bytes]).await.is_ok();
        }
        _ => {}
    }
    let mut writer = Writer::frame(256);
    ResponseHeader { correlation_id }.encode(&mut writer, header.api, header.api_version);
    let wants_answer = match mischief {
        Mischief::Garbage => {
            writer.raw(&[0xff; 3]);
            Ok(true)
        }
        _ => body(state, &header, &mut reader, &mischief, &mut writer),
    };
    if mischief == Mischief::CloseAfter {
        return false;
    }
    if !wants_answer.expect("the fake's answers fit their versions") {
        return true;
    }
    let pieces = writer.finish_frame().expect("small").into_iter().filter_map(|piece| match piece {
        Piece::Bytes(bytes) => Some(bytes),
        Piece::File(_) => None,
    });
    state.io.send(socket, pieces.collect()).await.is_ok()
}

/// Carries the request out and writes the answer's body. False = the request wants none.
fn body(
    state: &State,
    header: &RequestHeader<'_>,
    reader: &mut Reader<'_>,
    mischief: &Mischief,
    writer: &mut Writer,
) -> Result<bool, EncodeError> {
    let version = header.api_version;
    match header.api {
        ApiKey::ApiVersions => api_versions(state, version, writer)?,
        ApiKey::Metadata => metadata(state, version, writer)?,
        ApiKey::InitProducerId => {
            InitProducerIdResponse { producer_id: 77, ..InitProducerIdResponse::default() }
                .encode(writer, version)?;
        }
        ApiKey::Produce => return produce(state, version, reader, mischief, writer),
        ApiKey::CreateTopics => create_topics(version, writer)?,
        ApiKey::DescribeLogDirs => log_dirs(mischief, version, writer)?,
        ApiKey::Fetch => fetch(state, version, reader, mischief, writer)?,
        ApiKey::ListOffsets => list_offsets(state, version, reader, writer)?,
        other => match fake_groups::body(state.address, header, writer) {
            Some(written) => written?,
            None => panic!("the fake does not serve {other}"),
        },
    }
    Ok(true)
}

fn api_versions(state: &State, version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let entry = |api: ApiKey| {
        let max_version = match api {
            ApiKey::ApiVersions => state.config.api_versions_max,
            api => (state.config.version_max)(api),
        };
        ApiVersion { api_key: api.key(), min_version: 0, max_version }
    };
    let is_known = version <= state.config.api_versions_max;
    let served = ringlog_protocol::api::served().map(|(api, _)| entry(api.key));
    let response = ApiVersionsResponse {
        error_code: if is_known { 0 } else { ErrorCode::UnsupportedVersion.code() },
        api_keys: if is_known { served.collect() } else { vec![entry(ApiKey::ApiVersions)] },
        ..ApiVersionsResponse::default()
    };
    response.encode(writer, if is_known { version } else { 0 })
}

fn metadata(state: &State, version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let own = (state.address.ip().to_string(), state.address.port());
    let (host, port) = state.config.advertised.as_ref().unwrap_or(&own);
    let broker = MetadataResponseBroker {
        node_id: NODE_ID,
        host,
        port: i32::from(*port),
        ..MetadataResponseBroker::default()
    };
    let partition = MetadataResponsePartition {
        leader_id: NODE_ID,
        replica_nodes: vec![NODE_ID].into(),
        isr_nodes: vec![NODE_ID].into(),
        ..MetadataResponsePartition::default()
    };
    let topic = MetadataResponseTopic {
        name: Some(TOPIC),
        topic_id: TOPIC_ID,
        partitions: vec![partition],
        ..MetadataResponseTopic::default()
    };
    let response =
        MetadataResponse { brokers: vec![broker], topics: vec![topic], ..MetadataResponse::default() };
    response.encode(writer, version)
}

/// Two directories: the partition is in one and moves to the other.
fn log_dirs(mischief: &Mischief, version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    if let Mischief::Refuse(code) = mischief {
        let refused =
            DescribeLogDirsResponse { error_code: code.code(), ..DescribeLogDirsResponse::default() };
        return refused.encode(writer, version);
    }
    let results = [(false, SIZE), (true, SIZE / 2)].map(|(is_future_key, partition_size)| {
        let partition =
            DescribeLogDirsPartition { partition_size, is_future_key, ..DescribeLogDirsPartition::default() };
        let topic = DescribeLogDirsTopic { name: TOPIC, partitions: vec![partition] };
        DescribeLogDirsResult { topics: vec![topic], ..DescribeLogDirsResult::default() }
    });
    DescribeLogDirsResponse { results: results.into(), ..DescribeLogDirsResponse::default() }
        .encode(writer, version)
}

fn produce(
    state: &State,
    version: i16,
    reader: &mut Reader<'_>,
    mischief: &Mischief,
    writer: &mut Writer,
) -> Result<bool, EncodeError> {
    let request = ProduceRequest::decode(reader, version).expect("our client's requests can be read");
    let topic = request.topic_data.first().expect("a topic");
    assert!(
        if version >= 13 { topic.topic_id == TOPIC_ID } else { topic.name == TOPIC },
        "named as v{version} does"
    );
    let batch = topic.partition_data.first().and_then(|partition| partition.records).expect("a batch");
    let (error_code, base_offset) = match mischief {
        Mischief::Refuse(code) => (code.code(), -1),
        mischief => append_badly(state, mischief, batch),
    };
    let partition =
        PartitionProduceResponse { error_code, base_offset, ..PartitionProduceResponse::default() };
    let topic =
        TopicProduceResponse { name: TOPIC, topic_id: TOPIC_ID, partition_responses: vec![partition] };
    ProduceResponse { responses: vec![topic], ..ProduceResponse::default() }.encode(writer, version)?;
    Ok(request.acks != 0)
}

/// The planted bugs of a broker that loses, repeats, reorders or alters what it acknowledged.
fn append_badly(state: &State, mischief: &Mischief, batch: &[u8]) -> (i16, i64) {
    match mischief {
        Mischief::Lose => return (0, state.end_offset.get()),
        Mischief::Postpone => {
            *state.postponed.borrow_mut() = Some(batch.to_vec());
            return (0, state.end_offset.get());
        }
        Mischief::Repeat => {
            append(state, batch);
        }
        Mischief::Alter => {
            let mut altered = batch.to_vec();
            let last_payload_byte = altered.len() - 2;
            altered[last_payload_byte] ^= 1;
            seal(&mut altered);
            return append(state, &altered);
        }
        _ => {}
    }
    let appended = append(state, batch);
    if let Some(postponed) = state.postponed.take() {
        append(state, &postponed);
    }
    appended
}

/// Error code and base offset, with Kafka's rules for one idempotent producer.
fn append(state: &State, batch: &[u8]) -> (i16, i64) {
    let header = BatchHeader::parse(batch).expect("our client's batches can be read");
    if header.base_sequence.0 >= 0 {
        let expected = state.next_sequence.get();
        if header.base_sequence.0 < expected {
            let log = state.log.borrow();
            let mut kept = log.iter().map(|kept| BatchHeader::parse(kept).expect("kept whole"));
            let first = kept.find(|kept| kept.base_sequence == header.base_sequence);
            return first
                .map_or((ErrorCode::OutOfOrderSequenceNumber.code(), -1), |kept| (0, kept.base_offset.0));
        }
        if header.base_sequence.0 > expected {
            return (ErrorCode::OutOfOrderSequenceNumber.code(), -1);
        }
        state.next_sequence.set(expected + header.record_count);
    }
    let base_offset = state.end_offset.get();
    let mut kept = batch.to_vec();
    set_base_offset(&mut kept, Offset(base_offset));
    state.log.borrow_mut().push(kept);
    state.end_offset.set(base_offset + i64::from(header.record_count));
    (0, base_offset)
}

/// The one topic there is cannot be made again.
fn create_topics(version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let error_code = ErrorCode::TopicAlreadyExists.code();
    let topic = CreatableTopicResult { name: TOPIC, error_code, ..CreatableTopicResult::default() };
    CreateTopicsResponse { topics: vec![topic], ..CreateTopicsResponse::default() }.encode(writer, version)
}

fn fetch(
    state: &State,
    version: i16,
    reader: &mut Reader<'_>,
    mischief: &Mischief,
    writer: &mut Writer,
) -> Result<(), EncodeError> {
    let request = FetchRequest::decode(reader, version).expect("our client's requests can be read");
    let topic = request.topics.first().expect("a topic");
    assert!(
        if version >= 13 { topic.topic_id == TOPIC_ID } else { topic.topic == TOPIC },
        "named as v{version} does"
    );
    let from = topic.partitions.first().expect("a partition").fetch_offset;
    let log = state.log.borrow();
    let is_wanted = |batch: &&Vec<u8>| BatchHeader::parse(batch).expect("kept whole").next_offset().0 > from;
    // At most two batches an answer, so that readers need several.
    let records: Vec<u8> = log.iter().filter(is_wanted).take(2).flatten().copied().collect();
    let out_of_range = from < 0 || from > state.end_offset.get();
    let partition = PartitionData {
        error_code: if out_of_range { ErrorCode::OffsetOutOfRange.code() } else { 0 },
        high_watermark: state.end_offset.get(),
        log_start_offset: 0,
        records: Records::Borrowed(&records),
        ..PartitionData::default()
    };
    let mut partitions = vec![partition];
    if let Mischief::RefuseAnother(code) = mischief {
        partitions.push(PartitionData {
            partition_index: 1,
            error_code: code.code(),
            ..PartitionData::default()
        });
    }
    let topic = FetchableTopicResponse { topic: TOPIC, topic_id: TOPIC_ID, partitions };
    FetchResponse { responses: vec![topic], ..FetchResponse::default() }.encode(writer, version)
}

fn list_offsets(
    state: &State,
    version: i16,
    reader: &mut Reader<'_>,
    writer: &mut Writer,
) -> Result<(), EncodeError> {
    let request = ListOffsetsRequest::decode(reader, version).expect("our client's requests can be read");
    let partition = request.topics.first().and_then(|topic| topic.partitions.first()).expect("a partition");
    let offset = if partition.timestamp == -2 { 0 } else { state.end_offset.get() };
    let partition = ListOffsetsPartitionResponse { offset, ..ListOffsetsPartitionResponse::default() };
    let topic = ListOffsetsTopicResponse { name: TOPIC, partitions: vec![partition] };
    ListOffsetsResponse { topics: vec![topic], ..ListOffsetsResponse::default() }.encode(writer, version)
}
