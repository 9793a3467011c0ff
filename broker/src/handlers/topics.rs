//! Looking topics up in the metadata image, with the error a client gets when there is none.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;

use crate::controller::{MetadataImage, TopicImage};

/// What a request's topic is.
#[derive(Debug, Clone)]
pub(super) enum TopicLookup {
    Found(Arc<TopicImage>),
    Missing { name: Arc<str>, id: TopicId, error: ErrorCode },
}

impl TopicLookup {
    pub(super) fn name(&self) -> Arc<str> {
        match self {
            TopicLookup::Found(topic) => Arc::clone(&topic.name),
            TopicLookup::Missing { name, .. } => Arc::clone(name),
        }
    }

    pub(super) fn id(&self) -> TopicId {
        match self {
            TopicLookup::Found(topic) => topic.id,
            TopicLookup::Missing { id, .. } => *id,
        }
    }
}

pub(super) fn by_name(image: &MetadataImage, name: &str) -> TopicLookup {
    match image.lookup(name) {
        Ok(topic) => TopicLookup::Found(Arc::clone(topic)),
        Err(error) => TopicLookup::Missing { name: name.into(), id: TopicId::ZERO, error },
    }
}

pub(super) fn by_id(image: &MetadataImage, id: TopicId) -> TopicLookup {
    match image.lookup_id(id) {
        Ok(topic) => TopicLookup::Found(Arc::clone(topic)),
        Err(error) => TopicLookup::Missing { name: "".into(), id, error },
    }
}

/// The topic, if it has a partition of this index.
pub(super) fn partition(lookup: &TopicLookup, index: i32) -> Result<&TopicImage, ErrorCode> {
    match lookup {
        TopicLookup::Missing { error, .. } => Err(*error),
        TopicLookup::Found(topic) if (0..topic.partition_count).contains(&index) => Ok(topic),
        TopicLookup::Found(_) => Err(ErrorCode::UnknownTopicOrPartition),
    }
}

/// The code where Kafka looks a name up and finds nothing, whatever the name: not `INVALID_TOPIC_EXCEPTION`.
pub(super) fn not_found(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::InvalidTopicException => ErrorCode::UnknownTopicOrPartition,
        error => error,
    }
}
