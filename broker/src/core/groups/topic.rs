//! The topic in which groups are kept: making it, and which of its partitions holds a group.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;

use crate::controller::request::{CreateTopics, CreatedTopic, NewTopic};
use crate::controller::{ControllerReply, ControllerRequest, OFFSETS_TOPIC_NAME};
use crate::core::Core;

/// The partition of `__consumer_offsets` that holds the group; `None` while the topic does not exist.
pub fn partition_of(core: &Core, group: &str) -> Option<i32> {
    let image = core.image();
    Some(partition_among(group, image.topic(OFFSETS_TOPIC_NAME)?.partition_count))
}

/// As Kafka's `Utils.abs(group.hashCode()) % count`.
fn partition_among(group: &str, count: i32) -> i32 {
    let hash =
        group.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The one number without a positive counterpart is 0 to Kafka.
    hash.checked_abs().unwrap_or(0) % count
}

/// Makes `__consumer_offsets` where it does not exist yet. Returns once it leads on every core.
///
/// # Errors
/// The controller could not make it durable, or refused it: `COORDINATOR_NOT_AVAILABLE`, which clients retry.
pub async fn ensure_offsets_topic(core: &Rc<Core>) -> Result<(), ErrorCode> {
    if core.image().topic(OFFSETS_TOPIC_NAME).is_some() {
        return Ok(());
    }
    let request = CreateTopics { topics: vec![new_topic(core)], validate_only: false };
    let created = match core.ask_controller(ControllerRequest::CreateTopics(request)).await {
        Ok(ControllerReply::TopicsCreated(created)) => created,
        Ok(_) => unreachable!("topics are created by created topics"),
        Err(error) => {
            tracing::warn!(topic = OFFSETS_TOPIC_NAME, %error, "topic not created");
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
    };
    match created.into_iter().next() {
        // Another core was faster.
        Some(CreatedTopic { error: ErrorCode::None | ErrorCode::TopicAlreadyExists, .. }) => Ok(()),
        refused => {
            let reason = refused.and_then(|refused| refused.message).unwrap_or_default();
            tracing::warn!(topic = OFFSETS_TOPIC_NAME, reason, "topic not created");
            Err(ErrorCode::CoordinatorNotAvailable)
        }
    }
}

/// As it is to be made.
pub(crate) fn new_topic(core: &Core) -> NewTopic {
    let config = &core.config.groups;
    let configs = [
        ("cleanup.policy", "compact".to_owned()),
        ("compression.type", "producer".to_owned()),
        ("segment.bytes", config.topic_segment_bytes.to_string()),
    ];
    NewTopic {
        name: OFFSETS_TOPIC_NAME.to_owned(),
        partition_count: config.topic_partitions,
        replication_factor: 1,
        assignments: Vec::new(),
        configs: configs.into_iter().map(|(key, value)| (key.to_owned(), Some(value))).collect(),
        random: core.random_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_lies_where_kafka_puts_it() {
        // `Utils.abs(group.hashCode) % 50`, by hand: "" is 0, "a" 97, "ab" 97 * 31 + 98 = 3105.
        for (group, partition) in [("", 0), ("a", 47), ("ab", 5)] {
            assert_eq!(partition_among(group, 50), partition, "{group:?}");
        }
        // Java's String.hashCode of this text is Integer.MIN_VALUE.
        assert_eq!(partition_among("polygenelubricants", 50), 0);
        // Two units above the first plane: 0xD83D * 31 + 0xDE00.
        assert_eq!(partition_among("\u{1F600}", 50), (0xD83D * 31 + 0xDE00) % 50);
    }
}
