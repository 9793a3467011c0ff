//! DeleteTopics by name or id, decided as Kafka's `ControllerApis` does.

use std::collections::BTreeSet;

use ringlog_flat::metadata::{Record, RemoveTopicRecord};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX;
use ringlog_shard::state_machine::Outcome;

use super::machine::MetadataMachine;
use super::request::{ControllerReply, DeleteTopics, DeletedTopic, Refusal, TopicReference};

impl MetadataMachine {
    pub(super) fn delete_topics(&self, request: DeleteTopics) -> Outcome<ControllerReply> {
        let mut given = BTreeSet::new();
        let duplicates: BTreeSet<&TopicReference> =
            request.topics.iter().filter(|reference| !given.insert(*reference)).collect();
        let mut removed = BTreeSet::new();
        let mut told = BTreeSet::new();
        let mut records = Vec::new();
        let mut bytes = 0;
        let mut results = Vec::with_capacity(request.topics.len());
        for reference in &request.topics {
            if duplicates.contains(reference) && !told.insert(reference) {
                continue;
            }
            let found = self.find_deletable(reference, duplicates.contains(reference));
            let result = found.and_then(|(name, id)| {
                let record = Record::RemoveTopic(RemoveTopicRecord { id: id.0 }).encode();
                if removed.contains(&id) {
                    // Once by name and once by id.
                    return Err(Refusal::new(ErrorCode::InvalidRequest, "Duplicate topic id."));
                }
                if bytes + record.len() > MACHINE_PROPOSAL_BYTES_MAX {
                    let text = "This request deletes more topics than fit one change: split it in several.";
                    return Err(Refusal::new(ErrorCode::InvalidRequest, text));
                }
                bytes += record.len();
                removed.insert(id);
                records.push(record);
                Ok(DeletedTopic { name: Some(name), id, error: ErrorCode::None, message: None })
            });
            results.push(result.unwrap_or_else(|Refusal { error, message }| DeletedTopic {
                name: reference.name.clone(),
                id: reference.id,
                error,
                message: Some(message),
            }));
        }
        Outcome { records, reply: ControllerReply::TopicsDeleted(results) }
    }

    fn find_deletable(
        &self,
        reference: &TopicReference,
        duplicate: bool,
    ) -> Result<(String, TopicId), Refusal> {
        let refuse = |error, text: &str| Err(Refusal::new(error, text));
        if !self.settings.base.topics.deletion_enabled {
            return refuse(
                ErrorCode::TopicDeletionDisabled,
                "Topic deletion is disabled (delete.topic.enable=false).",
            );
        }
        let found = match (&reference.name, reference.id) {
            (None, TopicId::ZERO) => {
                return refuse(ErrorCode::InvalidRequest, "Neither topic name nor id were specified.");
            }
            (Some(_), id) if !id.is_zero() => {
                return refuse(
                    ErrorCode::InvalidRequest,
                    "You may not specify both topic name and topic id.",
                );
            }
            (Some(_), _) if duplicate => return refuse(ErrorCode::InvalidRequest, "Duplicate topic name."),
            (None, _) if duplicate => return refuse(ErrorCode::InvalidRequest, "Duplicate topic id."),
            (Some(name), _) => self.image.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition),
            (None, id) => self.image.lookup_id(id),
        };
        match found {
            Ok(topic) => Ok((topic.name.to_string(), topic.id)),
            Err(error @ ErrorCode::UnknownTopicId) => {
                refuse(error, "This server does not host this topic ID.")
            }
            Err(error) => refuse(error, "This server does not host this topic-partition."),
        }
    }
}
