//! OffsetFetch between wire and machine, version by version.

use bytes::Bytes;
use ringlog_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics, OffsetFetchResponse,
};

use super::*;
use crate::handlers::tests::{image_of, round_trip};

fn one_group(topics: Option<&[(&'static str, &[i32])]>) -> OffsetFetchRequest<'static> {
    let topics = topics.map(|topics| {
        let topics = topics.iter().map(|(name, partitions)| OffsetFetchRequestTopic {
            name,
            partition_indexes: partitions.to_vec().into(),
        });
        topics.collect()
    });
    OffsetFetchRequest { group_id: "g", topics, ..OffsetFetchRequest::default() }
}

fn group(
    group_id: &'static str,
    topics: Option<Vec<(&'static str, TopicId, Vec<i32>)>>,
) -> OffsetFetchRequestGroup<'static> {
    let topics = topics.map(|topics| {
        let topics = topics.into_iter().map(|(name, topic_id, partitions)| OffsetFetchRequestTopics {
            name,
            topic_id,
            partition_indexes: partitions.into(),
        });
        topics.collect()
    });
    OffsetFetchRequestGroup { group_id, topics, ..OffsetFetchRequestGroup::default() }
}

/// What a machine has: of each partition asked for its number as offset, or all of topic `a`.
fn fetched(wanted: &Wanted<'_>) -> Vec<FetchedTopic> {
    let offset = |index| FetchedOffset {
        index,
        offset: i64::from(index) + 100,
        leader_epoch: 3,
        metadata: "note".into(),
    };
    match query(wanted).topics {
        None => vec![
            FetchedTopic { name: "a".into(), id: TopicId::ZERO, partitions: vec![offset(0)] },
            FetchedTopic { name: "gone".into(), id: TopicId::ZERO, partitions: vec![offset(1)] },
        ],
        Some(topics) => topics
            .into_iter()
            .map(|topic| FetchedTopic {
                name: topic.name,
                id: topic.id,
                partitions: topic.partitions.into_iter().map(offset).collect(),
            })
            .collect(),
    }
}

fn answer(
    image: &MetadataImage,
    asked: &OffsetFetchRequest<'_>,
    version: i16,
    error: Option<ErrorCode>,
) -> Bytes {
    let wanted = wanted(image, asked, version);
    let found: Vec<Found<'_>> = wanted
        .iter()
        .map(|wanted| found_in(wanted, error.map_or_else(|| Ok(fetched(wanted)), Err), image, version))
        .collect();
    let response = respond::response(&found, version);
    round_trip(|writer| response.encode(writer, version)).0
}

fn read(bytes: &[u8], version: i16) -> OffsetFetchResponse<'_> {
    OffsetFetchResponse::decode(&mut ringlog_protocol::wire::Reader::new(bytes), version)
        .expect("it is whole")
}

#[test]
fn offsets_of_one_group_arrive_before_version_8() {
    let (image, ids) = image_of(&[("a", 2)]);
    let asked = one_group(Some(&[("a", &[1, 0]), ("gone", &[5])]));
    let queried = query(&wanted(&image, &asked, 5)[0]).topics.expect("topics are named");
    assert_eq!((queried[0].id, queried[1].id), (ids[0], TopicId::ZERO));
    for version in 1..=7 {
        let bytes = answer(&image, &asked, version, None);
        let answer = read(&bytes, version);
        assert_eq!((answer.error_code, answer.topics.len()), (0, 2));
        let offset = &answer.topics[0].partitions[0];
        let told = (offset.partition_index, offset.committed_offset, offset.metadata, offset.error_code);
        assert_eq!(told, (1, 101, Some("note"), 0));
        assert_eq!(offset.committed_leader_epoch, if version >= 5 { 3 } else { -1 });
        assert_eq!(answer.topics[1].name, "gone");
    }
}

#[test]
fn no_topics_named_means_all_of_them() {
    let (image, ids) = image_of(&[("a", 1)]);
    for version in 2..=7 {
        let bytes = answer(&image, &one_group(None), version, None);
        let names: Vec<_> = read(&bytes, version).topics.iter().map(|topic| topic.name).collect();
        assert_eq!(names, ["a", "gone"]);
    }
    for version in 8..=10 {
        let asked = OffsetFetchRequest { groups: vec![group("g", None)], ..OffsetFetchRequest::default() };
        let bytes = answer(&image, &asked, version, None);
        let topics: Vec<_> =
            read(&bytes, version).groups[0].topics.iter().map(|topic| (topic.name, topic.topic_id)).collect();
        // A topic without an id cannot be told.
        let by_name = vec![("a", TopicId::ZERO), ("gone", TopicId::ZERO)];
        assert_eq!(topics, if version < 10 { by_name } else { vec![("", ids[0])] });
    }
    let empty = one_group(Some(&[]));
    assert_eq!(read(&answer(&image, &empty, 3, None), 3).topics.len(), 0);
}

#[test]
fn version_10_names_topics_by_id_and_refuses_those_unknown() {
    let (image, ids) = image_of(&[("a", 1)]);
    let unknown = TopicId([7; 16]);
    let topics = vec![("", unknown, vec![0, 1]), ("", ids[0], vec![0])];
    let asked =
        OffsetFetchRequest { groups: vec![group("g", Some(topics))], ..OffsetFetchRequest::default() };
    let bytes = answer(&image, &asked, 10, None);
    let answer = read(&bytes, 10);
    let told: Vec<_> = answer.groups[0]
        .topics
        .iter()
        .map(|topic| {
            let offsets = topic.partitions.iter().map(|offset| (offset.committed_offset, offset.error_code));
            (topic.topic_id, offsets.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(told, [(unknown, vec![(-1, 100), (-1, 100)]), (ids[0], vec![(100, 0)])]);
}

#[test]
fn an_error_of_the_group_stands_where_the_version_has_a_place_for_it() {
    let (image, _) = image_of(&[("a", 1)]);
    let error = Some(ErrorCode::NotCoordinator);
    let asked = one_group(Some(&[("a", &[0])]));
    let bytes = answer(&image, &asked, 1, error);
    let told = read(&bytes, 1);
    let offset = &told.topics[0].partitions[0];
    assert_eq!((offset.committed_offset, offset.error_code, offset.metadata), (-1, 16, Some("")));
    for version in 2..=7 {
        let bytes = answer(&image, &asked, version, error);
        let told = read(&bytes, version);
        assert_eq!((told.error_code, told.topics.len()), (16, 0));
    }
    for version in 8..=10 {
        let groups = vec![group("g", None), group("h", Some(vec![("a", TopicId::ZERO, vec![0])]))];
        let asked = OffsetFetchRequest { groups, ..OffsetFetchRequest::default() };
        let bytes = answer(&image, &asked, version, error);
        let told: Vec<_> = read(&bytes, version)
            .groups
            .iter()
            .map(|group| (group.group_id, group.error_code, group.topics.len()))
            .collect();
        assert_eq!(told, [("g", 16, 0), ("h", 16, 0)]);
    }
}

#[test]
fn each_group_is_asked_for_once_and_only_so_many_offsets() {
    let many = vec![0; OFFSETS_PER_REQUEST_MAX];
    let groups = vec![
        group("g", Some(vec![("a", TopicId::ZERO, many)])),
        group("g", None),
        group("h", None),
        group("i", Some(vec![("a", TopicId::ZERO, vec![0])])),
    ];
    let asked = OffsetFetchRequest { groups, ..OffsetFetchRequest::default() };
    let (image, _) = image_of(&[("a", 1)]);
    let wanted = wanted(&image, &asked, 8);
    assert_eq!(allowed(&wanted, &[false, true, false, false]), [true, false, true, false]);
}

#[test]
fn an_answer_that_grows_too_large_leaves_out_whole_groups_and_says_so() {
    let (image, _) = image_of(&[("a", 1)]);
    let asked = one_group(Some(&[("a", &[0, 0, 0])]));
    let wanted = wanted(&image, &asked, 7);
    let found = || found_in(&wanted[0], Ok(fetched(&wanted[0])), &image, 7);
    let bytes = 3 * (OFFSET_BYTES + "note".len());
    let mut room_bytes = bytes + 1;
    assert_eq!(fit(found(), &mut room_bytes).error, ErrorCode::None);
    assert_eq!(room_bytes, 1);
    let refused = fit(found(), &mut room_bytes);
    assert_eq!((refused.error, refused.topics.len(), room_bytes), (ErrorCode::InvalidRequest, 0, 1));
}

#[test]
fn a_member_of_a_consumer_group_says_who_it_is_from_version_9_on() {
    let (image, _) = image_of(&[]);
    let asked = OffsetFetchRequestGroup { member_id: Some("m"), member_epoch: 7, ..group("g", None) };
    let asked = OffsetFetchRequest { groups: vec![asked], ..OffsetFetchRequest::default() };
    let said = query(&wanted(&image, &asked, 9)[0]);
    assert_eq!((said.member.as_deref(), said.member_epoch), (Some("m"), 7));
    let nobody = query(&wanted(&image, &one_group(None), 7)[0]);
    assert_eq!((nobody.member, nobody.member_epoch), (None, -1));
}
