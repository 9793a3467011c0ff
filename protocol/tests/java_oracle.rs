//! Apache Kafka's own classes as oracle: every message at every version, both ways, and what else is read as Kafka reads it.
//!
//! `tests/java/Oracle.java` answers; `scripts/java-oracle.sh` finds Kafka's jars and runs these tests, which are ignored without
//! them. More samples, and every version written at every other, with `RINGLOG_JAVA_SAMPLES` over [`SAMPLES_SHORT`].

#![allow(
    clippy::disallowed_methods,
    reason = "the oracle is another process, asked and answered through files"
)]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Case, Random, cases, models};
use ringlog_codegen::model::{Direction, Kind};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::generated::consumer_protocol_subscription::ConsumerProtocolSubscription;
use ringlog_protocol::group::generated::group_metadata::GroupMetadataValue;
use ringlog_protocol::group::generated::offset_commit::{OffsetCommitKey, OffsetCommitValue};
use ringlog_protocol::group::generated::{Key, Value};
use ringlog_protocol::group::{consumer_protocol, record};
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::wire::{DecodeError, EncodeError, Reader};

const WHY_IGNORED: &str = "RINGLOG_JAVA_CLASSPATH is not set: run scripts/java-oracle.sh";

/// Random messages a case when nothing else is asked for.
const SAMPLES_SHORT: u64 = 6;

fn samples() -> u64 {
    let asked = std::env::var("RINGLOG_JAVA_SAMPLES").ok();
    asked.map_or(SAMPLES_SHORT, |text| text.parse().expect("RINGLOG_JAVA_SAMPLES is a number"))
}

fn is_long() -> bool {
    samples() > SAMPLES_SHORT
}

/// Kafka's answer to each question, in order.
fn ask(name: &str, questions: &[String]) -> Vec<String> {
    assert!(!questions.is_empty(), "nothing is asked");
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("java-oracle-{name}.txt"));
    std::fs::write(&file, questions.join("\n") + "\n").expect("the target folder can be written");
    let classpath = std::env::var("RINGLOG_JAVA_CLASSPATH").expect(WHY_IGNORED);
    let output = Command::new("java")
        .args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", &classpath, "Oracle"])
        .arg(&file)
        .output()
        .expect("java can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let answers: Vec<_> =
        String::from_utf8(output.stdout).expect("ASCII").lines().map(str::to_owned).collect();
    assert_eq!(answers.len(), questions.len(), "{errors}");
    std::fs::remove_file(&file).expect("it was written");
    answers
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim_start_matches('-').as_bytes().chunks(2);
    digits
        .map(|pair| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()))
        .map(|byte| byte.unwrap_or_else(|| panic!("not bytes: {text}")))
        .collect()
}

/// What Kafka has: it no longer knows Produce 0-2, which are defined here to be refused by name.
fn cases_of_kafka(models: &[ringlog_codegen::model::Api]) -> Vec<Case<'_>> {
    let mut cases = cases(models);
    cases.retain(|case| case.model.name != "Produce" || case.version >= 3);
    cases
}

/// Asks one question a case and seed; `check` judges the answer.
fn for_each<T>(
    name: &str,
    seeds: std::ops::Range<u64>,
    question: impl Fn(&Case<'_>, u64) -> Vec<(String, T)>,
    check: impl Fn(&Case<'_>, &str, &T, &str),
) {
    let models = models();
    let mut asked = Vec::new();
    for case in cases_of_kafka(&models) {
        for seed in seeds.clone() {
            asked.extend(question(&case, seed).into_iter().map(|(question, about)| (case, question, about)));
        }
    }
    let questions: Vec<_> = asked.iter().map(|(_, question, _)| question.clone()).collect();
    for ((case, question, about), answer) in asked.iter().zip(ask(name, &questions)) {
        check(case, question, about, &answer);
    }
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn keys_and_versions_are_those_that_kafka_serves() {
    let models = models();
    let last = |case: &&Case<'_>| case.version == case.model.versions.max;
    let cases: Vec<_> = cases(&models).iter().filter(last).copied().collect();
    let questions: Vec<_> = cases.iter().map(|case| format!("versions {}", case.name())).collect();
    for (case, answer) in cases.iter().zip(ask("versions", &questions)) {
        let key = match case.model.kind {
            Kind::Api { key } => key,
            Kind::RecordKey { record_type } | Kind::RecordValue { record_type } => record_type,
            Kind::Data => -1,
        };
        let range = case.model.versions;
        let expected = match case.name().as_str() {
            "ProduceRequest" | "ProduceResponse" => format!("{key} 3 {}", range.max),
            // Of responses all versions are named, that of unstable requests too.
            "InitProducerIdResponse" => format!("{key} {} 6", range.min),
            _ => format!("{key} {} {}", range.min, range.max),
        };
        assert_eq!(answer, expected, "{}", case.name());
    }
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn names_headers_and_errors_are_those_of_kafka() {
    let models = models();
    let (mut questions, mut expected) = (Vec::new(), Vec::new());
    for case in cases(&models).iter().filter(|case| case.direction == Direction::Request) {
        let (api, version) = (case.api().expect("it is a request").api(), case.version);
        let headers = (api.request_header_version(version), api.response_header_version(version));
        questions.push(format!("headers {} {version}", api.key.key()));
        expected.push(format!("{} {} {}", api.name, headers.0, headers.1));
    }
    for error in ErrorCode::ALL {
        let retry = if error.is_retriable() { "Retriable" } else { "Final" };
        questions.push(format!("error {}", error.code()));
        expected.push(format!("{} {retry}", error.name()));
    }
    for ((question, expected), answer) in questions.iter().zip(expected).zip(ask("names", &questions)) {
        assert_eq!(answer, expected, "{question}");
    }
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn what_is_written_here_kafka_reads_and_writes_the_same() {
    let question = |case: &Case<'_>, seed| {
        let sample = case.sample(&mut Random(seed));
        let message = case.decode(&mut Reader::new(&sample.bytes)).expect("valid");
        let written = hex(&case.encode(&message).expect("it was read at this version"));
        vec![(format!("rewrite {} {1} {written} {1}", case.name(), case.version), written)]
    };
    for_each("rewrite", 0..samples(), question, |_, question, written, answer| {
        assert_eq!(answer, written, "{question}");
    });
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn what_kafka_makes_is_read_here_and_written_the_same() {
    let question =
        |case: &Case<'_>, seed| vec![(format!("make {} {} {seed}", case.name(), case.version), ())];
    for_each("make", 0..samples(), question, |case, question, (), answer| {
        let bytes = unhex(answer);
        let mut reader = Reader::new(&bytes);
        let message =
            case.decode(&mut reader).unwrap_or_else(|error| panic!("{question}: {error}: {answer}"));
        assert_eq!(reader.finish(), Ok(()), "{question}");
        assert_eq!(hex(&case.encode(&message).expect("it was read at this version")), *answer, "{question}");
    });
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn another_version_drops_and_refuses_what_kafkas_does() {
    let question = |case: &Case<'_>, seed| {
        let mut random = Random(seed);
        let sample = case.sample(&mut random);
        let range = case.model.versions;
        let lowest = if case.model.name == "Produce" { 3 } else { range.min };
        let one = lowest + i16::try_from(random.below((range.max - lowest + 1) as usize)).expect("a version");
        let targets = if is_long() { lowest..=range.max } else { one..=one };
        targets
            .map(|to| {
                let bytes = hex(&sample.bytes);
                (format!("rewrite {} {} {bytes} {to}", case.name(), case.version), (sample.bytes.clone(), to))
            })
            .collect()
    };
    for_each("version", 0..samples(), question, |case, question, (bytes, to), answer| {
        let message = case.decode(&mut Reader::new(bytes)).expect("valid");
        let ours = match (Case { version: *to, ..*case }).encode(&message) {
            Ok(written) => hex(&written),
            Err(EncodeError::NotInVersion { .. } | EncodeError::NullNotAllowed { .. }) => {
                "refused".to_owned()
            }
            Err(error) => panic!("{question}: {error}"),
        };
        assert_eq!(answer, ours, "{question}");
    });
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn what_is_cut_short_kafka_does_not_read_either() {
    let seeds = if is_long() { 4 } else { 1 };
    let cuts_max = if is_long() { 64 } else { 16 };
    let question = |case: &Case<'_>, seed| {
        let mut random = Random(seed);
        let bytes = case.sample(&mut random).bytes;
        let step = 1 + bytes.len() / cuts_max;
        (random.below(step)..bytes.len())
            .step_by(step)
            .map(|length| {
                let cut = hex(&bytes[..length]);
                let result = case.decode(&mut Reader::new(&bytes[..length]));
                assert!(result.is_err(), "{} {} cut to {length}", case.name(), case.version);
                (format!("rewrite {} {1} {cut} {1}", case.name(), case.version), ())
            })
            .collect()
    };
    for_each("cut", 0..seeds, question, |_, question, (), answer| assert_eq!(answer, "unread", "{question}"));
}

/// Whether the error is of what is refused here on purpose and read by Kafka: it takes every negative length as null, drops the
/// excess bits of a varint, replaces what is no text, and trusts the sizes, the order and the number of tagged fields.
fn is_stricter_here(error: DecodeError) -> bool {
    // As a compact length, what is over 31 bits is negative too.
    let is_negative = |length: u64| length > u64::from(i32::MAX.cast_unsigned());
    match error {
        DecodeError::Truncated { needed, .. } => is_negative(needed),
        DecodeError::TooManyElements { count, .. } => is_negative(count),
        DecodeError::NegativeLength { .. }
        | DecodeError::VarintTooLong { .. }
        | DecodeError::InvalidUtf8 { .. }
        | DecodeError::TagOrder { .. }
        | DecodeError::TagTooLarge { .. }
        | DecodeError::TooManyTags { .. }
        | DecodeError::TagNotConsumed { .. } => true,
        _ => false,
    }
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn changed_bytes_that_are_read_here_mean_the_same_to_kafka() {
    let question = |case: &Case<'_>, seed: u64| {
        let mut random = Random(seed ^ 0x5eed);
        let mut bytes = case.sample(&mut random).bytes;
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
        vec![(format!("strip {} {} {}", case.name(), case.version, hex(&bytes)), bytes)]
    };
    for_each("changed", 0..samples(), question, |case, question, bytes, answer| {
        let result = case.decode(&mut Reader::new(bytes));
        match result {
            Ok(message) => {
                let written = hex(&case.encode(&message).expect("what was read can be written"));
                assert_eq!(answer, written, "{question}");
            }
            // Within a tagged field Kafka may read on into what comes behind it.
            Err(_)
                if case
                    .model
                    .structs
                    .iter()
                    .flat_map(|item| &item.fields)
                    .any(|field| field.tag.is_some()) => {}
            Err(error) if is_stricter_here(error) => {}
            Err(error) => assert_eq!(answer, "unread", "{question}: {error}"),
        }
    });
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn the_golden_lines_are_what_kafka_writes() {
    let words = |text: &'static str| {
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect::<Vec<_>>())
    };
    let of = |bytes: &str| if bytes.is_empty() { "-".to_owned() } else { bytes.to_owned() };
    let (mut questions, mut expected) = (Vec::new(), Vec::new());
    for line in words(include_str!("golden/kafka-4.4-defaults.txt")) {
        let [name, version, bytes] = line[..] else { panic!("{line:?}") };
        questions.push(format!("default {name} {version}"));
        expected.push(of(bytes));
    }
    for line in words(include_str!("golden/kafka-4.4-rewritten.txt")) {
        let [name, read_at, read, written_at, bytes] = line[..] else { panic!("{line:?}") };
        questions.push(format!("rewrite {name} {read_at} {} {written_at}", of(read)));
        expected.push(of(bytes));
    }
    for ((question, expected), answer) in questions.iter().zip(expected).zip(ask("golden", &questions)) {
        assert_eq!(answer, expected, "{question}");
    }
}

/// A version in front: those that exist, later ones, and negative ones.
const PREFIXES: [i16; 8] = [0, 1, 2, 3, 4, i16::MAX, -1, i16::MIN];

/// The bytes as they are, with more behind them, and cut.
fn variants(bytes: &[u8], random: &mut Random) -> Vec<Vec<u8>> {
    let cut = random.below(bytes.len() + 1);
    vec![bytes.to_vec(), [bytes, b"more behind"].concat(), bytes[..cut].to_vec()]
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn the_consumer_protocol_is_read_as_kafka_reads_it() {
    let models = models();
    let (mut questions, mut ours) = (Vec::new(), Vec::new());
    for case in cases(&models).iter().filter(|case| case.model.kind == Kind::Data) {
        for (seed, prefix) in (0..samples()).flat_map(|seed| PREFIXES.map(|prefix| (seed, prefix))) {
            let mut random = Random(seed);
            let sample = [&prefix.to_be_bytes(), &case.sample(&mut random).bytes[..]].concat();
            for bytes in variants(&sample, &mut random) {
                let is_subscription = case.name() == "ConsumerProtocolSubscription";
                let written = if is_subscription {
                    questions.push(format!("topics {}", hex(&bytes)));
                    ours.push(match consumer_protocol::subscribed_topics(&bytes) {
                        Ok(topics) => {
                            let named = ConsumerProtocolSubscription { topics, ..Default::default() };
                            consumer_protocol::encode_subscription(&named, 0).map(|bytes| hex(&bytes[2..]))
                        }
                        Err(_) => Ok("unread".to_owned()),
                    });
                    consumer_protocol::decode_subscription(&bytes)
                        .map(|subscription| consumer_protocol::encode_subscription(&subscription, 3))
                } else {
                    consumer_protocol::decode_assignment(&bytes)
                        .map(|assignment| consumer_protocol::encode_assignment(&assignment, 3))
                };
                let word = if is_subscription { "subscription" } else { "assignment" };
                questions.push(format!("{word} {}", hex(&bytes)));
                ours.push(
                    written.map_or(Ok("unread".to_owned()), |bytes| bytes.map(|bytes| hex(&bytes[2..]))),
                );
            }
        }
    }
    for ((question, ours), answer) in questions.iter().zip(ours).zip(ask("protocol", &questions)) {
        assert_eq!(Ok(answer), ours, "{question}");
    }
}

/// What is made of a record here, in the oracle's words.
fn record_here(key: &[u8], value: Option<&[u8]>) -> String {
    match record::Record::decode(key, value) {
        Err(_) => "unread".to_owned(),
        Ok(None) => "unknown".to_owned(),
        Ok(Some(record)) => {
            let key = hex(&record::encode_key(&record.key).expect("it was read"));
            let Some((value, bytes)) = record.value.as_ref().zip(value) else { return format!("{key} null") };
            let version = Reader::new(bytes).i16("version").expect("it was read");
            format!("{key} {}", hex(&record::encode_value_at(value, version).expect("it was read")))
        }
    }
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn records_of_consumer_offsets_are_read_as_kafka_reads_them() {
    let models = models();
    let cases = cases(&models);
    let (mut questions, mut ours) = (Vec::new(), Vec::new());
    let values = cases.iter().filter(|case| matches!(case.model.kind, Kind::RecordValue { .. }));
    for (case, seed) in values.flat_map(|case| (0..samples()).map(move |seed| (case, seed))) {
        let Kind::RecordValue { record_type } = case.model.kind else { unreachable!("filtered") };
        let is_key = |other: &&Case<'_>| other.model.kind == Kind::RecordKey { record_type };
        let key_case = cases.iter().find(is_key).expect("a value has a key");
        let mut random = Random(seed);
        let key = [&record_type.to_be_bytes(), &key_case.sample(&mut random).bytes[..]].concat();
        let body = case.sample(&mut random).bytes;
        let value = [&case.version.to_be_bytes(), &body[..]].concat();
        let other = [&PREFIXES[random.below(PREFIXES.len())].to_be_bytes(), &body[..]].concat();
        let mut pairs: Vec<_> =
            variants(&key, &mut random).into_iter().map(|key| (key, Some(value.clone()))).collect();
        pairs.extend(variants(&value, &mut random).into_iter().map(|value| (key.clone(), Some(value))));
        pairs.push((key.clone(), None));
        pairs.push((key, Some(other)));
        for (key, value) in pairs {
            questions.push(format!(
                "record {} {}",
                hex(&key),
                value.as_deref().map_or("null".to_owned(), hex)
            ));
            ours.push(record_here(&key, value.as_deref()));
        }
    }
    // 9 is nobody's, 24 and -1 are beyond Kafka's; those of share and streams groups Kafka reads and we do not.
    for record_type in [9_i16, 24, -1, i16::MAX] {
        questions.push(format!("record {} -", hex(&record_type.to_be_bytes())));
        ours.push(record_here(&record_type.to_be_bytes(), Some(b"")));
    }
    for ((question, ours), answer) in questions.iter().zip(ours).zip(ask("record", &questions)) {
        assert_eq!(answer, ours, "{question}");
    }
}

#[test]
#[ignore = "needs Java and Kafka's jars: scripts/java-oracle.sh"]
fn records_are_written_in_the_version_that_kafka_writes() {
    let questions = ["offset 0", "offset 1", "group-version"].map(str::to_owned);
    let key = Key::OffsetCommit(OffsetCommitKey { group: "g", topic: "orders", partition: 7 });
    let stays = OffsetCommitValue {
        offset: 42,
        leader_epoch: 3,
        metadata: "m",
        commit_timestamp: 1_000,
        topic_id: TopicId([9; 16]),
        ..Default::default()
    };
    let written = |offset| {
        let value = Value::OffsetCommit(offset);
        let (key, value) = (record::encode_key(&key), record::encode_value(&value));
        format!("{} {}", hex(&key.expect("short")), hex(&value.expect("short")))
    };
    let expires = OffsetCommitValue { expire_timestamp: 5_000, ..stays };
    let group = record::written_version(&Value::GroupMetadata(GroupMetadataValue::default()));
    let expected = [written(stays), written(expires), group.to_string()];
    assert_eq!(ask("written", &questions), expected);
}
