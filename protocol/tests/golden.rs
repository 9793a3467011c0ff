//! What Apache Kafka 4.4's own classes wrote: defaults, and messages carried from one version to another.
//!
//! It covers the versions that the `kafka-protocol` crate lacks, and what no oracle in Rust shows: which values a version drops
//! and which it refuses.

mod common;

use common::{Case, Message, cases, models};
use ringlog_codegen::model::Direction;
use ringlog_protocol::messages::{
    Request, Response, api_versions, create_topics, delete_records, delete_topics, fetch, init_producer_id,
    list_offsets, metadata, produce,
};
use ringlog_protocol::wire::{EncodeError, Reader};

const DEFAULTS: &str = include_str!("golden/kafka-4.4-defaults.txt");
const REWRITTEN: &str = include_str!("golden/kafka-4.4-rewritten.txt");

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect())
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal"))
        .collect()
}

fn find<'m>(cases: &[Case<'m>], name: &str, direction: &str, version: &str) -> Case<'m> {
    let direction = if direction == "Request" { Direction::Request } else { Direction::Response };
    let version: i16 = version.parse().expect("a number");
    let is_it =
        |case: &&Case<'_>| case.model.name == name && case.direction == direction && case.version == version;
    *cases.iter().find(is_it).expect("Kafka's versions are defined")
}

fn default_message(case: &Case<'_>) -> Message<'static> {
    let request = Message::Request;
    let response = Message::Response;
    match (case.model.name.as_str(), case.direction == Direction::Request) {
        ("ApiVersions", true) => request(Request::ApiVersions(api_versions::ApiVersionsRequest::default())),
        ("ApiVersions", false) => {
            response(Response::ApiVersions(api_versions::ApiVersionsResponse::default()))
        }
        ("CreateTopics", true) => {
            request(Request::CreateTopics(create_topics::CreateTopicsRequest::default()))
        }
        ("CreateTopics", false) => {
            response(Response::CreateTopics(create_topics::CreateTopicsResponse::default()))
        }
        ("DeleteRecords", true) => {
            request(Request::DeleteRecords(delete_records::DeleteRecordsRequest::default()))
        }
        ("DeleteRecords", false) => {
            response(Response::DeleteRecords(delete_records::DeleteRecordsResponse::default()))
        }
        ("DeleteTopics", true) => {
            request(Request::DeleteTopics(delete_topics::DeleteTopicsRequest::default()))
        }
        ("DeleteTopics", false) => {
            response(Response::DeleteTopics(delete_topics::DeleteTopicsResponse::default()))
        }
        ("Fetch", true) => request(Request::Fetch(fetch::FetchRequest::default())),
        ("Fetch", false) => response(Response::Fetch(fetch::FetchResponse::default())),
        ("InitProducerId", true) => {
            request(Request::InitProducerId(init_producer_id::InitProducerIdRequest::default()))
        }
        ("InitProducerId", false) => {
            response(Response::InitProducerId(init_producer_id::InitProducerIdResponse::default()))
        }
        ("ListOffsets", true) => request(Request::ListOffsets(list_offsets::ListOffsetsRequest::default())),
        ("ListOffsets", false) => {
            response(Response::ListOffsets(list_offsets::ListOffsetsResponse::default()))
        }
        ("Metadata", true) => request(Request::Metadata(metadata::MetadataRequest::default())),
        ("Metadata", false) => response(Response::Metadata(metadata::MetadataResponse::default())),
        ("Produce", true) => request(Request::Produce(produce::ProduceRequest::default())),
        ("Produce", false) => response(Response::Produce(produce::ProduceResponse::default())),
        (name, _) => panic!("{name} has golden lines and no default here"),
    }
}

#[test]
fn defaults_are_written_as_kafka_writes_them() {
    let models = models();
    let cases = cases(&models);
    let mut count = 0;
    for line in lines(DEFAULTS) {
        let [name, direction, version, expected] = line[..] else { panic!("{line:?}") };
        let case = find(&cases, name, direction, version);
        let message = default_message(&case);
        let written = case.encode(&message).expect("defaults fit every version");
        assert_eq!(written, bytes(expected), "{name} {direction} {version}");
        let mut reader = Reader::new(&written);
        assert_eq!(case.decode(&mut reader), Ok(message), "{name} {direction} {version}");
        assert_eq!(reader.finish(), Ok(()));
        count += 1;
    }
    // Every case but Produce 0-2, which Kafka 4.4 lacks.
    assert_eq!(count, cases.len() - 6);
}

#[test]
fn values_that_a_version_lacks_are_dropped_or_refused_as_kafka_does() {
    let models = models();
    let cases = cases(&models);
    let (mut written, mut refused) = (0, 0);
    for line in lines(REWRITTEN) {
        let [name, direction, read_at, read, written_at, expected] = line[..] else { panic!("{line:?}") };
        let name_of_case = format!("{name} {direction} {read_at} written at {written_at}");
        let read = bytes(read);
        let message =
            find(&cases, name, direction, read_at).decode(&mut Reader::new(&read)).expect("Kafka wrote it");
        let result = find(&cases, name, direction, written_at).encode(&message);
        if expected == "refused" {
            let is_named =
                matches!(result, Err(EncodeError::NotInVersion { .. } | EncodeError::NullNotAllowed { .. }));
            assert!(is_named, "{name_of_case}: {result:?}");
            refused += 1;
        } else {
            assert_eq!(result, Ok(bytes(expected)), "{name_of_case}");
            written += 1;
        }
    }
    assert!(written > 50 && refused > 20, "{written} written, {refused} refused");
}
