//! Every message at every version: written back as read, cut at every byte, with bytes changed, with lying counts.

mod common;

use common::{Case, Random, cases, models};
use ringlog_protocol::wire::{DecodeError, Reader};

/// Random messages a case.
const SAMPLES: u64 = 40;

/// Runs `check` on random messages of every API, version and direction, and names the one that fails.
fn for_each_sample(samples: u64, check: impl Fn(&Case<'_>, &common::Sample, &mut Random)) {
    let models = models();
    for case in cases(&models) {
        for seed in 0..samples {
            let mut random = Random(seed);
            let sample = case.sample(&mut random);
            let name = format!("{} version {} seed {seed}", case.name(), case.version);
            let run = || check(&case, &sample, &mut random);
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                eprintln!("failed: {name}: {:02x?}", sample.bytes);
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn every_message_is_written_back_as_it_was_read() {
    for_each_sample(SAMPLES, |case, sample, _| {
        let mut reader = Reader::new(&sample.bytes);
        let message = case.decode(&mut reader).expect("valid");
        assert_eq!(reader.finish(), Ok(()));
        assert_eq!(case.encode(&message).expect("it was read at this version"), sample.bytes);
    });
}

#[test]
fn a_message_cut_anywhere_is_refused() {
    for_each_sample(SAMPLES / 4, |case, sample, _| {
        for length in 0..sample.bytes.len() {
            let cut = &sample.bytes[..length];
            let result = case.decode(&mut Reader::new(cut));
            assert!(result.is_err(), "cut to {length} of {} bytes: {result:?}", sample.bytes.len());
        }
    });
}

#[test]
fn bytes_behind_a_message_are_left_to_the_caller() {
    for_each_sample(2, |case, sample, _| {
        let mut bytes = sample.bytes.clone();
        bytes.extend([0xff; 1_000]);
        let mut reader = Reader::new(&bytes);
        let message = case.decode(&mut reader).expect("valid");
        let offset = sample.bytes.len();
        assert_eq!(reader.finish(), Err(DecodeError::TrailingBytes { offset, left: 1_000 }));
        assert_eq!(case.encode(&message).expect("it was read at this version"), sample.bytes);
    });
}

/// Whatever is accepted can be written, and is then read as the same value.
fn check_any_bytes(case: &Case<'_>, bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    if let Ok(message) = case.decode(&mut reader) {
        let written = case.encode(&message).expect("what was read can be written");
        let mut again = Reader::new(&written);
        assert_eq!(case.decode(&mut again).as_ref(), Ok(&message));
        assert_eq!(again.finish(), Ok(()));
    }
}

#[test]
fn changed_bytes_are_an_error_or_a_value() {
    for_each_sample(SAMPLES, |case, sample, random| {
        for _ in 0..8 {
            let mut bytes = sample.bytes.clone();
            for _ in 0..=random.below(3) {
                if bytes.is_empty() {
                    break;
                }
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes[at] = random.next() as u8,
                    1 => bytes[at] ^= 1 << random.below(8),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, [0, 0x7f, 0x80, 0xff][random.below(4)]),
                }
            }
            check_any_bytes(case, &bytes);
        }
    });
}

#[test]
fn random_bytes_are_an_error_or_a_value() {
    for_each_sample(SAMPLES, |case, _, random| {
        let length = random.below(120);
        // Small numbers make plausible counts and lengths, so that decoders get further than the first field.
        let bytes: Vec<u8> = (0..length)
            .map(|_| if random.below(4) == 0 { random.next() as u8 } else { random.below(4) as u8 })
            .collect();
        check_any_bytes(case, &bytes);
    });
}

#[test]
fn lying_counts_are_refused() {
    // 2^31-1, 10^6, -2, -2^31; and as varints of count + 1: 10^6, 2^32-1, 2^32, 2^63.
    let fixed: [&[u8]; 4] =
        [&[0x7f, 0xff, 0xff, 0xff], &[0, 0x0f, 0x42, 0x40], &[0xff, 0xff, 0xff, 0xfe], &[0x80, 0, 0, 0]];
    let compact: [&[u8]; 4] = [
        &[0xc1, 0x84, 0x3d],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0x80, 0x80, 0x80, 0x80, 0x10],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
    ];
    for_each_sample(SAMPLES / 4, |case, sample, _| {
        for count in &sample.counts {
            for lie in if count.is_compact { compact } else { fixed } {
                let mut bytes = sample.bytes.clone();
                bytes.splice(count.at..count.at + count.length, lie.iter().copied());
                let error = case.decode(&mut Reader::new(&bytes)).expect_err("nothing backs the count");
                let is_named = matches!(
                    error,
                    DecodeError::TooManyElements { .. }
                        | DecodeError::NegativeLength { .. }
                        | DecodeError::VarintTooLong { .. }
                );
                assert!(is_named, "{error}");
            }
        }
    });
}

#[test]
fn unknown_tagged_fields_are_skipped() {
    let models = models();
    let is_flexible = |case: &Case<'_>| case.model.flexible_versions().contains(case.version);
    for case in cases(&models).into_iter().filter(is_flexible) {
        for seed in 0..SAMPLES {
            let known = case.sample(&mut Random(seed));
            let more = Case { has_unknown_tags: true, ..case }.sample(&mut Random(seed));
            assert!(more.bytes.len() > known.bytes.len());
            let mut reader = Reader::new(&more.bytes);
            let message = case.decode(&mut reader).expect("unknown tags are not an error");
            assert_eq!(reader.finish(), Ok(()), "{} {} seed {seed}", case.name(), case.version);
            assert_eq!(case.encode(&message).expect("it was read at this version"), known.bytes);
        }
    }
}

#[test]
fn the_table_of_apis_and_the_schema_agree_on_what_is_flexible() {
    let models = models();
    let mut count = 0;
    for case in cases(&models) {
        let Some(api) = case.api() else { continue };
        let is_flexible = case.model.flexible_versions().contains(case.version);
        assert_eq!(api.api().is_flexible(case.version), is_flexible, "{} {}", case.name(), case.version);
        assert_eq!(api.name(), case.model.name);
        count += 1;
    }
    assert!(count > 200, "{count} messages of APIs");
}

#[test]
fn versions_that_do_not_exist_are_refused() {
    let models = models();
    for case in cases(&models) {
        for version in [-1, case.model.versions.max + 1, i16::MAX] {
            let unknown = Case { version, ..case };
            let result = unknown.decode(&mut Reader::new(&[0; 64]));
            assert!(matches!(result, Err(DecodeError::UnsupportedVersion { .. })), "{result:?}");
        }
    }
}
