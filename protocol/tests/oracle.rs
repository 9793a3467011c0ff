//! The `kafka-protocol` crate as oracle: what we write it reads and writes back unchanged, at every version it knows.
//!
//! It is fed only bytes made here: it allocates what an array's count asks for.

mod common;

use bytes::{Bytes, BytesMut};
use common::{Case, Random, cases, models};
use kafka_protocol::messages::{
    ApiKey, ConsumerProtocolAssignment, ConsumerProtocolSubscription, RequestKind, ResponseKind,
};
use kafka_protocol::protocol::{Decodable, Encodable, Message as _};
use ringlog_codegen::model::{Direction, Kind};
use ringlog_protocol::wire::Reader;

/// Random messages a case.
const SAMPLES: u64 = 40;

/// Whether the oracle has the message at this version. It stops at Kafka 4.1 and has no record of `__consumer_offsets`.
fn is_known_to_oracle(case: &Case<'_>) -> bool {
    let theirs = match (case.model.kind, case.name().as_str()) {
        (Kind::Api { key }, _) => {
            ApiKey::try_from(key).expect("the oracle knows these keys").valid_versions()
        }
        (_, "ConsumerProtocolSubscription") => ConsumerProtocolSubscription::VERSIONS,
        (_, "ConsumerProtocolAssignment") => ConsumerProtocolAssignment::VERSIONS,
        _ => return false,
    };
    // Its table names version 10 and its responses have it, its requests stop at 9.
    if matches!(case.name().as_str(), "OffsetCommitRequest" | "OffsetFetchRequest") && case.version == 10 {
        return false;
    }
    theirs.min <= case.version && case.version <= theirs.max
}

fn through<T: Decodable + Encodable>(input: &mut Bytes, output: &mut BytesMut, version: i16) {
    let message = T::decode(input, version).expect("the oracle reads it");
    message.encode(output, version).expect("the oracle writes it");
}

fn through_oracle(case: &Case<'_>, bytes: &[u8]) -> Vec<u8> {
    let key = || {
        let key = case.api().expect("an API").key();
        ApiKey::try_from(key).expect("the oracle knows these keys")
    };
    let mut input = Bytes::copy_from_slice(bytes);
    let mut output = BytesMut::new();
    match case.direction {
        Direction::Request => {
            let message = RequestKind::decode(key(), &mut input, case.version).expect("the oracle reads it");
            message.encode(&mut output, case.version).expect("the oracle writes it");
        }
        Direction::Response => {
            let message = ResponseKind::decode(key(), &mut input, case.version).expect("the oracle reads it");
            message.encode(&mut output, case.version).expect("the oracle writes it");
        }
        Direction::Stored if case.name() == "ConsumerProtocolSubscription" => {
            through::<ConsumerProtocolSubscription>(&mut input, &mut output, case.version);
        }
        Direction::Stored => through::<ConsumerProtocolAssignment>(&mut input, &mut output, case.version),
    }
    assert!(input.is_empty(), "the oracle leaves {} bytes", input.len());
    output.to_vec()
}

#[test]
fn the_oracle_reads_what_we_write_and_writes_the_same() {
    let models = models();
    for case in cases(&models).into_iter().filter(is_known_to_oracle) {
        for seed in 0..SAMPLES {
            let sample = case.sample(&mut Random(seed));
            let message = case.decode(&mut Reader::new(&sample.bytes)).expect("valid");
            let written = case.encode(&message).expect("it was read at this version");
            let theirs = through_oracle(&case, &written);
            let name = format!("{} version {} seed {seed}", case.name(), case.version);
            assert_eq!(theirs, written, "{name}");
            assert_eq!(case.decode(&mut Reader::new(&theirs)).as_ref(), Ok(&message), "{name}");
        }
    }
}

#[test]
fn what_the_oracle_lacks_is_this_and_no_more() {
    let models = models();
    let lacking: Vec<_> = cases(&models)
        .iter()
        .filter(|case| !is_known_to_oracle(case))
        .filter(|case| case.direction != Direction::Response)
        .map(|case| format!("{} {}", case.name(), case.version))
        .collect();
    // Produce 0-2 died with Kafka 4.0; the rest is newer than the oracle, or is stored and not sent. The Java oracle
    // (`scripts/java-oracle.sh`) covers all but Produce 0-2.
    let expected = [
        "ProduceRequest 0",
        "ProduceRequest 1",
        "ProduceRequest 2",
        "ListOffsetsRequest 11",
        "OffsetCommitRequest 10",
        "OffsetFetchRequest 10",
        "ApiVersionsRequest 5",
        "DescribeLogDirsRequest 5",
        "DeleteGroupsRequest 3",
    ];
    let (records, sent): (Vec<_>, Vec<_>) =
        lacking.iter().partition(|name| name.contains("Key ") || name.contains("Value "));
    assert_eq!(sent, expected.iter().collect::<Vec<_>>());
    // Ten keys; values of one version but OffsetCommit and GroupMetadata of five each.
    assert_eq!(records.len(), 10 + 8 + 2 * 5);
}
