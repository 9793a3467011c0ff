//! OffsetDelete (API 47): offsets that nobody subscribes to any more are forgotten.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteResponse, OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};

use super::group_calls::{ask, note};
use super::reply::reply;
use super::{Request, RequestError, topics};
use crate::controller::MetadataImage;
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::{self, OffsetDeleteReply, Reply};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// By topic and partition, in the order of the request: why an offset cannot be forgotten.
type Refused = Vec<Vec<Option<ErrorCode>>>;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = OffsetDeleteRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let refused = check(&core.image(), &asked);
    let call = GroupCall::DeleteOffsets(event(&asked, &refused));
    let forgotten = match ask(core, asked.group_id, call).await {
        Ok(Reply::DeleteOffsets(forgotten)) => forgotten,
        Ok(_) => unreachable!("a delete is answered by a delete"),
        Err(error) => OffsetDeleteReply { error, topics: Vec::new() },
    };
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    note(core, &info, asked.group_id, forgotten.error, None);
    let response = response(&asked, &refused, &forgotten);
    Ok(reply(info, forgotten.error, 128, |writer, version| response.encode(writer, version)))
}

fn check(image: &MetadataImage, asked: &OffsetDeleteRequest<'_>) -> Refused {
    let of_topic = |topic: &ringlog_protocol::messages::offset_delete::OffsetDeleteRequestTopic<'_>| {
        let found = topics::by_name(image, topic.name);
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        indexes.map(|index| topics::partition(&found, index).err().map(topics::not_found)).collect()
    };
    asked.topics.iter().map(of_topic).collect()
}

/// The machine is asked even where nothing is left to forget: that the group is none is what the caller hears then.
fn event(asked: &OffsetDeleteRequest<'_>, refused: &Refused) -> group::OffsetDeleteRequest {
    let topics = asked.topics.iter().zip(refused).filter(|(_, refused)| refused.contains(&None));
    let topics = topics.map(|(topic, refused)| {
        let partitions = topic.partitions.iter().zip(refused).filter(|(_, refused)| refused.is_none());
        (Arc::from(topic.name), partitions.map(|(partition, _)| partition.partition_index).collect())
    });
    group::OffsetDeleteRequest { group: Arc::from(asked.group_id), topics: topics.collect() }
}

fn response<'a>(
    asked: &OffsetDeleteRequest<'a>,
    refused: &Refused,
    forgotten: &OffsetDeleteReply,
) -> OffsetDeleteResponse<'a> {
    if forgotten.error != ErrorCode::None {
        return OffsetDeleteResponse {
            error_code: forgotten.error.code(),
            ..OffsetDeleteResponse::default()
        };
    }
    let mut found = forgotten.topics.iter();
    let topics = asked.topics.iter().zip(refused).map(|(topic, refused)| {
        let found = if refused.contains(&None) { found.next() } else { None };
        let mut found = found.into_iter().flat_map(|topic| &topic.partitions);
        let partitions = topic.partitions.iter().zip(refused).map(|(partition, refused)| {
            let error = refused.unwrap_or_else(|| found.next().map_or(ErrorCode::None, |(_, error)| *error));
            OffsetDeleteResponsePartition {
                partition_index: partition.partition_index,
                error_code: error.code(),
            }
        });
        OffsetDeleteResponseTopic { name: topic.name, partitions: partitions.collect() }
    });
    OffsetDeleteResponse { topics: topics.collect(), ..OffsetDeleteResponse::default() }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::messages::offset_delete::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};

    use super::*;
    use crate::group::ForgottenOffsets;
    use crate::handlers::tests::{image_of, round_trip};

    fn topic(name: &'static str, partitions: &[i32]) -> OffsetDeleteRequestTopic<'static> {
        let partitions =
            partitions.iter().map(|index| OffsetDeleteRequestPartition { partition_index: *index });
        OffsetDeleteRequestTopic { name, partitions: partitions.collect() }
    }

    #[test]
    fn what_does_not_exist_is_told_in_its_place() {
        let (image, _) = image_of(&[("a", 2)]);
        let asked =
            OffsetDeleteRequest { group_id: "g", topics: vec![topic("gone", &[0]), topic("a", &[5, 1, 0])] };
        let refused = check(&image, &asked);
        let event = event(&asked, &refused);
        assert_eq!(event.topics, [("a".into(), vec![1, 0])]);
        let of_a = vec![(1, ErrorCode::GroupSubscribedToTopic), (0, ErrorCode::None)];
        let topics = vec![ForgottenOffsets { topic: "a".into(), partitions: of_a }];
        let answer = response(&asked, &refused, &OffsetDeleteReply { error: ErrorCode::None, topics });
        let frame = round_trip(|writer| answer.encode(writer, 0));
        let read = OffsetDeleteResponse::decode(&mut frame.reader(), 0).expect("it is whole");
        let codes = |topic: &OffsetDeleteResponseTopic<'_>| -> Vec<(i32, i16)> {
            topic
                .partitions
                .iter()
                .map(|partition| (partition.partition_index, partition.error_code))
                .collect()
        };
        assert_eq!(
            read.topics.iter().map(codes).collect::<Vec<_>>(),
            [vec![(0, 3)], vec![(5, 3), (1, 86), (0, 0)]]
        );
    }

    #[test]
    fn an_error_of_the_group_names_no_topic() {
        let (image, _) = image_of(&[("a", 1)]);
        let asked = OffsetDeleteRequest { group_id: "g", topics: vec![topic("a", &[0])] };
        let refused = check(&image, &asked);
        let forgotten = OffsetDeleteReply { error: ErrorCode::GroupIdNotFound, topics: Vec::new() };
        let answer = response(&asked, &refused, &forgotten);
        assert_eq!((answer.error_code, answer.topics.len()), (69, 0));
    }
}
