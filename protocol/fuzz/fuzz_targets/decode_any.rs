//! Any bytes as any message: the first three pick message and version, the rest is the message.
//!
//! It must be an error or a value; a value can be written, and what was written is read as the same value. Memory is held
//! by the fuzzer's own limit (see the README).
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::frame::RequestHeader;
use ringlog_protocol::group::{consumer_protocol, record};
use ringlog_protocol::messages::{DEFINED, Request, Response};
use ringlog_protocol::wire::{Reader, Writer};

fuzz_target!(|input: &[u8]| {
    let Some((&[message, form, version], bytes)) = input.split_first_chunk::<3>() else { return };
    let (api, versions) = DEFINED[usize::from(message) % DEFINED.len()];
    let span = versions.max - versions.min + 1;
    let version_of_api = versions.min + i16::from(version) % span;
    match form % 6 {
        0 => check_request(api, version_of_api, bytes),
        1 => check_response(api, version_of_api, bytes),
        2 => drop(RequestHeader::decode(&mut Reader::new(bytes))),
        3 => check_key(bytes),
        4 => check_value(i16::from(message % 18), bytes),
        _ => check_consumer_protocol(bytes),
    }
});

fn check_request(api: ApiKey, version: i16, bytes: &[u8]) {
    let Ok(message) = Request::decode(api, &mut Reader::new(bytes), version) else { return };
    let mut writer = Writer::new();
    message.encode(&mut writer, version).expect("what was read can be written");
    let written = writer.into_bytes();
    // Rewriting drops unknown tags, so it can be far shorter; the budget for arrays must not fall with it.
    let mut reader = Reader::with_memory_budget(&written, usize::MAX);
    assert_eq!(Request::decode(api, &mut reader, version).as_ref(), Ok(&message));
    assert_eq!(reader.finish(), Ok(()));
}

fn check_response(api: ApiKey, version: i16, bytes: &[u8]) {
    let Ok(message) = Response::decode(api, &mut Reader::new(bytes), version) else { return };
    let mut writer = Writer::new();
    message.encode(&mut writer, version).expect("what was read can be written");
    let written = writer.into_bytes();
    let mut reader = Reader::with_memory_budget(&written, usize::MAX);
    assert_eq!(Response::decode(api, &mut reader, version).as_ref(), Ok(&message));
    assert_eq!(reader.finish(), Ok(()));
}

fn check_key(bytes: &[u8]) {
    let Ok(Some(key)) = record::decode_key(bytes) else { return };
    let written = record::encode_key(&key).expect("what was read can be written");
    assert_eq!(record::decode_key(&written), Ok(Some(key)));
}

fn check_value(record_type: i16, bytes: &[u8]) {
    let Ok(Some(value)) = record::decode_value(record_type, bytes) else { return };
    // At the version it was read in: that which is written by itself may lack a field, or room for a long text.
    let version = Reader::new(bytes).i16("version").expect("it was read");
    let written = record::encode_value_at(&value, version).expect("what was read can be written");
    let mut reader = Reader::with_memory_budget(&written, usize::MAX);
    let version = reader.i16("version").expect("it was written");
    let again = ringlog_protocol::group::generated::Value::decode(record_type, &mut reader, version);
    assert_eq!(again, Ok(Some(value)));
}

fn check_consumer_protocol(bytes: &[u8]) {
    let topics = consumer_protocol::subscribed_topics(bytes);
    if let Ok(subscription) = consumer_protocol::decode_subscription(bytes) {
        assert_eq!(topics.as_ref(), Ok(&subscription.topics));
        let written =
            consumer_protocol::encode_subscription(&subscription, 3).expect("what was read can be written");
        assert_eq!(consumer_protocol::decode_subscription(&written), Ok(subscription));
    }
    if let Ok(assignment) = consumer_protocol::decode_assignment(bytes) {
        let written =
            consumer_protocol::encode_assignment(&assignment, 3).expect("what was read can be written");
        assert_eq!(consumer_protocol::decode_assignment(&written), Ok(assignment));
    }
}
