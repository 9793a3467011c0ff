//! What a session remembers, shows and tells owners. No broker, no client.

use ringlog_protocol::messages::fetch::{FetchTopic, ForgottenTopic};

use super::*;

const NAME: &str = "orders";
const OTHER_NAME: &str = "payments";

fn fetch<'a>(wanted: &[(&'a str, i32, i64)], forgotten: &[(&'a str, i32)]) -> FetchRequest<'a> {
    let topics = wanted.iter().map(|&(topic, partition, fetch_offset)| FetchTopic {
        topic,
        partitions: vec![FetchPartition {
            partition,
            fetch_offset,
            partition_max_bytes: 1_000,
            ..FetchPartition::default()
        }],
        ..FetchTopic::default()
    });
    let forgotten = forgotten.iter().map(|&(topic, partition)| ForgottenTopic {
        topic,
        partitions: vec![partition].into(),
        ..ForgottenTopic::default()
    });
    FetchRequest {
        topics: topics.collect(),
        forgotten_topics_data: forgotten.collect(),
        ..FetchRequest::default()
    }
}

fn session(core_count: u32) -> FetchSession {
    FetchSession::new(FetchSessionId(5), false, core_count)
}

fn showing(high_watermark: i64, log_start: i64) -> PartitionState {
    PartitionState {
        error: ErrorCode::None,
        log_start: Offset(log_start),
        high_watermark: Offset(high_watermark),
        leader_epoch: LeaderEpoch(0),
        available_bytes: 0,
        diverging: None,
    }
}

/// How many slots each core is told to watch, and to forget.
fn told(session: &mut FetchSession) -> (usize, usize) {
    let all: Vec<SlotChange> = session.questions().into_iter().flat_map(|(_, changes)| changes).collect();
    let kept = all.iter().filter(|change| change.position.is_some()).count();
    (kept, all.len() - kept)
}

#[test]
fn owners_are_told_what_changed_and_nothing_twice() {
    let image = MetadataImage::with_topics_for_tests(&[(NAME, 40)]);
    let mut session = session(4);
    let wanted: Vec<_> = (0..40).map(|index| (NAME, index, 7)).collect();
    session.update(&image, &fetch(&wanted, &[]));
    session.check();
    assert_eq!(told(&mut session), (40, 0));
    assert_eq!(told(&mut session), (0, 0), "owners are asked all the same");
    assert!(session.questions().len() > 1, "over several cores");
    session.update(&image, &fetch(&[(NAME, 3, 9)], &[(NAME, 4), (NAME, 5)]));
    session.check();
    assert_eq!(told(&mut session), (1, 2));
    assert_eq!(session.len(), 38);
}

#[test]
fn ends_that_moved_records_and_errors_are_shown_and_nothing_else() {
    let image = MetadataImage::with_topics_for_tests(&[(NAME, 1)]);
    let mut session = session(1);
    session.update(&image, &fetch(&[(NAME, 0, 0)], &[]));
    assert!(session.shows(0, &showing(10, 0), 0), "never shown before");
    assert!(!session.shows(0, &showing(10, 0), 0));
    assert!(session.shows(0, &showing(11, 0), 0));
    assert!(session.shows(0, &showing(11, 4), 0));
    assert!(session.shows(0, &showing(11, 4), 100));
    let failed = PartitionState { error: ErrorCode::OffsetOutOfRange, ..showing(11, 4) };
    assert!(session.shows(0, &failed, 0));
    assert!(session.shows(0, &failed, 0), "an error is told each time");
    assert!(session.shows(0, &showing(11, 4), 0), "the end of an error is told");
    assert!(!session.shows(0, &showing(11, 4), 0));
}

#[test]
fn who_returned_records_goes_to_the_end() {
    let image = MetadataImage::with_topics_for_tests(&[(NAME, 3)]);
    let mut session = session(1);
    session.update(&image, &fetch(&[(NAME, 0, 0), (NAME, 1, 0), (NAME, 2, 0)], &[]));
    let order = |session: &FetchSession| -> Vec<i32> {
        session.in_order(0..3).iter().map(|(_, entry)| entry.index).collect()
    };
    assert_eq!(order(&session), [0, 1, 2]);
    session.shows(0, &showing(1, 0), 50);
    session.shows(1, &showing(1, 0), 0);
    assert_eq!(order(&session), [1, 2, 0]);
    session.update(&image, &fetch(&[(NAME, 1, 5)], &[]));
    assert_eq!(order(&session), [1, 2, 0], "an update keeps the place");
    session.check();
}

#[test]
fn a_topic_that_comes_or_goes_is_noticed_with_the_next_image() {
    let mut session = session(2);
    let without = MetadataImage::with_topics_for_tests(&[(NAME, 2)]);
    session.update(&without, &fetch(&[(NAME, 0, 0), (OTHER_NAME, 0, 0), (NAME, 2, 0)], &[]));
    session.check();
    assert_eq!(session.unresolved().count(), 2, "an unknown topic and an unknown partition");
    assert_eq!(told(&mut session), (1, 0));
    let with = MetadataImage::with_topics_for_tests(&[(NAME, 3), (OTHER_NAME, 1)]);
    session.update(&with, &fetch(&[], &[]));
    session.check();
    assert_eq!(session.unresolved().count(), 0);
    let none = MetadataImage::with_topics_for_tests(&[("a", 1), ("b", 1), ("c", 1)]);
    told(&mut session);
    session.update(&none, &fetch(&[], &[]));
    session.check();
    assert_eq!((session.unresolved().count(), told(&mut session)), (3, (0, 3)));
}

#[test]
fn the_epoch_after_the_last_is_one() {
    let mut session = session(1);
    assert_eq!(session.begin(1, false), Ok(()));
    session.epoch = i32::MAX;
    assert_eq!(session.begin(i32::MAX, false), Ok(()));
    assert_eq!(session.begin(1, false), Ok(()));
    assert_eq!(session.begin(1, false), Err(ErrorCode::InvalidFetchSessionEpoch));
}

#[test]
fn a_name_tells_its_core() {
    for core_count in [1, 2, 3, 7, 64] {
        for core in 0..core_count {
            for number in [0, 1, 77, i32::MAX as u32 - 1, i32::MAX as u32, u32::MAX] {
                let id = FetchSessionId::of_core(CoreId(core), core_count, number);
                assert!(id.0 >= 0);
                if id != FetchSessionId::NONE {
                    assert_eq!(id.home(core_count), Some(CoreId(core)), "{id:?} of {core_count}");
                }
            }
        }
    }
    assert_eq!(FetchSessionId(-3).home(4), None);
}
