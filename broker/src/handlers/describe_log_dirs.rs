//! DescribeLogDirs (API 35, KIP-113): the data directory, the room on its file system, and how many bytes each partition in it
//! holds. Asks each core that owns partitions once.
//!
//! As Kafka 4.4: what is not there is left out, whatever its name; each partition stands once, however often it is asked for; the
//! metadata log is never listed. The size is that of the record batches, with those that only the journal holds yet: indexes,
//! checksums and the journal itself are not in it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};
use ringlog_protocol::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
    DescribeLogDirsTopic,
};

use super::reply::reply;
use super::{Request, RequestError, spread};
use crate::config::typed::StorageMode;
use crate::controller::{MetadataImage, TopicImage};
use crate::core::Core;
use crate::core::log_sizes::log_sizes;
use crate::core::messages::{CoreReply, CoreRequest};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// In place of a path where nothing is stored in files: clients take an answer without any directory for a refusal.
const IN_MEMORY: &str = "memory";
/// Of a file system that nobody knows.
const UNKNOWN_BYTES: i64 = -1;
/// Of a partition in the answer.
const PARTITION_BYTES: usize = 22;

/// A topic, and which of its partitions are asked for.
struct Wanted {
    topic: Arc<TopicImage>,
    partitions: Vec<i32>,
}

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DescribeLogDirsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let wanted = wanted(&core.image(), &asked);
    let keys: Vec<TopicPartition> = wanted.iter().flat_map(Wanted::keys).collect();
    let groups = spread::by_core(&keys, |key| core.owner_of(*key));
    let sizes = spread::ask(
        core,
        &groups,
        async |keys: &[TopicPartition]| log_sizes(core, keys).await,
        CoreRequest::LogSizes,
        |reply| match reply {
            CoreReply::LogSizes(sizes) => sizes,
            _ => unreachable!("sizes are answered by sizes"),
        },
    )
    .await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let (log_dir, (total_bytes, usable_bytes)) = (directory(core), space(core));
    let result = DescribeLogDirsResult {
        log_dir: &log_dir,
        topics: told(&wanted, sizes),
        total_bytes,
        usable_bytes,
        ..DescribeLogDirsResult::default()
    };
    let response = DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() };
    let capacity_bytes = 256 + keys.len() * PARTITION_BYTES;
    Ok(reply(info, ErrorCode::None, capacity_bytes, |writer, version| response.encode(writer, version)))
}

/// What is asked for and there, each partition once, by name and number.
fn wanted(image: &MetadataImage, asked: &DescribeLogDirsRequest<'_>) -> Vec<Wanted> {
    let Some(topics) = &asked.topics else {
        let all = image.topics().map(|topic| Wanted {
            topic: Arc::clone(topic),
            partitions: (0..topic.partition_count).collect(),
        });
        return all.collect();
    };
    // A mark for each partition there is: however long the request is, this is not longer.
    let mut marks: BTreeMap<&str, (&Arc<TopicImage>, Vec<bool>)> = BTreeMap::new();
    for asked in topics {
        let Some(topic) = image.topic(asked.topic) else { continue };
        let none = || (topic, vec![false; usize::try_from(topic.partition_count).unwrap_or(0)]);
        let (_, marks) = marks.entry(asked.topic).or_insert_with(none);
        for index in asked.partitions.iter() {
            let mark = usize::try_from(index).ok().and_then(|index| marks.get_mut(index));
            mark.into_iter().for_each(|mark| *mark = true);
        }
    }
    let marked = |(topic, marks): (&Arc<TopicImage>, Vec<bool>)| Wanted {
        topic: Arc::clone(topic),
        partitions: (0..topic.partition_count)
            .zip(marks)
            .filter_map(|(index, is_marked)| is_marked.then_some(index))
            .collect(),
    };
    marks.into_values().map(marked).collect()
}

impl Wanted {
    fn keys(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        let topic = self.topic.id;
        self.partitions.iter().map(move |index| TopicPartition { topic, partition: PartitionIndex(*index) })
    }
}

/// `sizes` are those of all partitions in order. One that its core does not hold, or not yet, is left out, and so is a topic without any.
fn told(wanted: &[Wanted], sizes: Vec<Option<u64>>) -> Vec<DescribeLogDirsTopic<'_>> {
    let mut sizes = sizes.into_iter();
    let mut topics = Vec::with_capacity(wanted.len());
    for Wanted { topic, partitions } in wanted {
        let sized = partitions.iter().zip(sizes.by_ref());
        let there = sized.filter_map(|(index, size)| {
            Some(DescribeLogDirsPartition {
                partition_index: *index,
                partition_size: on_the_wire(size?),
                ..DescribeLogDirsPartition::default()
            })
        });
        let partitions: Vec<_> = there.collect();
        if !partitions.is_empty() {
            topics.push(DescribeLogDirsTopic { name: &topic.name, partitions });
        }
    }
    topics
}

/// The data directory as an absolute path.
fn directory(core: &Core) -> String {
    match &core.config.storage.durability {
        StorageMode::Durable { data_directory, .. } => {
            // Only an empty path or a working directory that is gone has no absolute form.
            let absolute = std::path::absolute(data_directory);
            absolute.as_ref().unwrap_or(data_directory).display().to_string()
        }
        StorageMode::Ephemeral => IN_MEMORY.to_owned(),
    }
}

/// Bytes of the file system and of what is free on it, as this core saw it last: at most a second ago.
fn space(core: &Core) -> (i64, i64) {
    let figures = core.store.storage().space();
    if figures.total_bytes == 0 {
        return (UNKNOWN_BYTES, UNKNOWN_BYTES);
    }
    (on_the_wire(figures.total_bytes), on_the_wire(figures.free_bytes))
}

fn on_the_wire(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::messages::describe_log_dirs::DescribableLogDirTopic;

    use super::super::tests::image_of;
    use super::*;

    fn asked<'a>(topics: &[(&'a str, Vec<i32>)]) -> DescribeLogDirsRequest<'a> {
        let topics = topics.iter().map(|(topic, partitions)| DescribableLogDirTopic {
            topic,
            partitions: partitions.clone().into(),
        });
        DescribeLogDirsRequest { topics: Some(topics.collect()) }
    }

    fn names(wanted: &[Wanted]) -> Vec<(&str, &[i32])> {
        wanted.iter().map(|wanted| (&*wanted.topic.name, wanted.partitions.as_slice())).collect()
    }

    #[test]
    fn null_is_all_and_an_empty_list_is_nothing() {
        let (image, ids) = image_of(&[("users", 1), ("orders", 2)]);
        let all = wanted(&image, &DescribeLogDirsRequest { topics: None });
        assert_eq!(names(&all), [("orders", [0, 1].as_slice()), ("users", &[0])]);
        let keys: Vec<_> =
            all.iter().flat_map(Wanted::keys).map(|key| (key.topic, key.partition.0)).collect();
        assert_eq!(keys, [(ids[1], 0), (ids[1], 1), (ids[0], 0)]);
        assert!(wanted(&image, &asked(&[])).is_empty());
    }

    #[test]
    fn what_is_not_there_is_left_out_and_the_rest_stands_once() {
        let (image, _) = image_of(&[("users", 1), ("orders", 4)]);
        let found = wanted(
            &image,
            &asked(&[
                ("users", vec![0, 0]),
                ("nobody", vec![0]),
                ("a b", vec![0]),
                ("orders", vec![3, -1, 4, i32::MAX, i32::MIN, 1]),
                ("", vec![0]),
                ("orders", vec![3, 2]),
            ]),
        );
        assert_eq!(names(&found), [("orders", [1, 2, 3].as_slice()), ("users", &[0])]);
    }

    #[test]
    fn partitions_without_a_size_and_topics_without_partitions_are_not_told() {
        let (image, _) = image_of(&[("a", 2), ("b", 2), ("c", 1)]);
        let found = wanted(&image, &asked(&[("a", vec![0, 1]), ("b", vec![0, 1]), ("c", vec![])]));
        let topics = told(&found, vec![Some(7), Some(u64::MAX), None, None]);
        let told: Vec<_> = topics
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(|partition| (topic.name, *partition)))
            .map(|(name, partition)| (name, partition.partition_index, partition.partition_size))
            .collect();
        assert_eq!((topics.len(), told), (1, vec![("a", 0, 7), ("a", 1, i64::MAX)]));
        assert!(topics[0].partitions.iter().all(|partition| partition.offset_lag == 0));
    }
}
