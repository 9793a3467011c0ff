//! What the unit tests of handlers share: a response as its reader gets it, and an image with topics.

use bytes::Bytes;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::wire::{EncodeError, Reader, Writer};

use crate::controller::MetadataImage;

/// The bytes of an encoded body.
pub(super) struct Body(pub(super) Bytes);

impl Body {
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(&self.0)
    }
}

pub(super) fn round_trip(encode: impl FnOnce(&mut Writer) -> Result<(), EncodeError>) -> Body {
    let mut writer = Writer::new();
    encode(&mut writer).expect("the version carries it");
    Body(writer.into_bytes())
}

/// An image with these topics and partition counts, and the topics' ids.
pub(super) fn image_of(topics: &[(&str, i32)]) -> (MetadataImage, Vec<TopicId>) {
    let image = MetadataImage::with_topics_for_tests(topics);
    let id = |(name, _): &(&str, i32)| image.topic(name).map(|topic| topic.id).expect("it was made");
    let ids = topics.iter().map(id).collect();
    (image, ids)
}
