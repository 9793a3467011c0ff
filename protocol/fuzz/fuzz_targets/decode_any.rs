//! Any bytes as any message: the first three pick API, direction and version, the rest is the message.
//!
//! It must be an error or a value; a value can be written, and what was written is read as the same value. Memory is held
//! by the fuzzer's own limit (see the README).
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringlog_protocol::api::{self, ApiKey};
use ringlog_protocol::frame::RequestHeader;
use ringlog_protocol::messages::{Request, Response};
use ringlog_protocol::wire::{Reader, Writer};

fuzz_target!(|input: &[u8]| {
    let Some((&[api, direction, version], bytes)) = input.split_first_chunk::<3>() else { return };
    let served: Vec<_> = api::served().collect();
    let (api, served) = served[usize::from(api) % served.len()];
    let span = served.advertised.max - served.advertised.min + 1;
    let version = served.advertised.min + i16::from(version) % span;
    match direction % 3 {
        0 => check_request(api.key, version, bytes),
        1 => check_response(api.key, version, bytes),
        _ => drop(RequestHeader::decode(&mut Reader::new(bytes))),
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
