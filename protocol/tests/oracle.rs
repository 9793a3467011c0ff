//! The `kafka-protocol` crate as oracle: what we write it reads and writes back unchanged, at every version it knows.
//!
//! It is fed only bytes made here: it allocates what an array's count asks for.

mod common;

use bytes::{Bytes, BytesMut};
use common::{Case, Random, cases, models};
use kafka_protocol::messages::{ApiKey, RequestKind, ResponseKind};
use ringlog_codegen::model::Direction;
use ringlog_protocol::wire::Reader;

/// Random messages a case.
const SAMPLES: u64 = 40;

/// The versions that Kafka 4.4 has and the oracle lacks; `tests/golden` covers them.
fn is_known_to_oracle(case: &Case<'_>) -> bool {
    let theirs = ApiKey::try_from(case.api.key()).expect("the oracle knows these keys").valid_versions();
    theirs.min <= case.version && case.version <= theirs.max
}

fn through_oracle(case: &Case<'_>, bytes: &[u8]) -> Vec<u8> {
    let key = ApiKey::try_from(case.api.key()).expect("the oracle knows these keys");
    let mut input = Bytes::copy_from_slice(bytes);
    let mut output = BytesMut::new();
    match case.direction {
        Direction::Request => {
            let message = RequestKind::decode(key, &mut input, case.version).expect("the oracle reads it");
            message.encode(&mut output, case.version).expect("the oracle writes it");
        }
        Direction::Response => {
            let message = ResponseKind::decode(key, &mut input, case.version).expect("the oracle reads it");
            message.encode(&mut output, case.version).expect("the oracle writes it");
        }
    }
    assert!(input.is_empty(), "the oracle leaves {} bytes", input.len());
    output.to_vec()
}

#[test]
fn the_oracle_reads_what_we_write_and_writes_the_same() {
    let models = models();
    let mut known = 0;
    for case in cases(&models).into_iter().filter(is_known_to_oracle) {
        known += 1;
        for seed in 0..SAMPLES {
            let sample = case.sample(&mut Random(seed));
            let message = case.decode(&mut Reader::new(&sample.bytes)).expect("valid");
            let written = case.encode(&message).expect("it was read at this version");
            let theirs = through_oracle(&case, &written);
            let name = format!("{} {:?} version {} seed {seed}", case.api, case.direction, case.version);
            assert_eq!(theirs, written, "{name}");
            assert_eq!(case.decode(&mut Reader::new(&theirs)).as_ref(), Ok(&message), "{name}");
        }
    }
    // All but ApiVersions 5, ListOffsets 11 and Produce 0-2.
    assert_eq!(known, cases(&models).len() - 2 * 5);
}
