//! DeleteTopics by name or id, decided as Kafka's `ControllerApis` does.

use std::collections::BTreeSet;

use ringlog_flat::metadata::{Record, RemoveTopicRecord};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX;
use ringlog_shard::state_machine::Outcome;

use super::machine::MetadataMachine;
use super::names::{no_topic, twice};
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
                    let text = format!("The request names topic '{name}' by its name and by its id.");
                    return Err(Refusal::new(ErrorCode::InvalidRequest, text));
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
                "Topics are not deleted here: delete.topic.enable is false.",
            );
        }
        let found = match (&reference.name, reference.id) {
            (None, TopicId::ZERO) => {
                return refuse(
                    ErrorCode::InvalidRequest,
                    "The request names a topic neither by name nor by id.",
                );
            }
            (Some(_), id) if !id.is_zero() => {
                return refuse(
                    ErrorCode::InvalidRequest,
                    "The request gives name and id of one topic: give one of them.",
                );
            }
            (Some(name), _) if duplicate => return refuse(ErrorCode::InvalidRequest, &twice(name)),
            (None, id) if duplicate => {
                return refuse(ErrorCode::InvalidRequest, &format!("The request names topic id {id} twice."));
            }
            (Some(name), _) => self.image.topic(name).ok_or(ErrorCode::UnknownTopicOrPartition),
            (None, id) => self.image.lookup_id(id),
        };
        match found {
            Ok(topic) => Ok((topic.name.to_string(), topic.id)),
            Err(error @ ErrorCode::UnknownTopicId) => {
                refuse(error, &format!("There is no topic of id {}.", reference.id))
            }
            Err(error) => refuse(error, &no_topic(reference.name.as_deref().unwrap_or_default())),
        }
    }
}
