//! Taking a new metadata image on one core: opening what it brings, forgetting what it no longer holds.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::limits::COMPACTION_MEMORY_DIVISOR;
use ringlog_shard::placement::core_of;
use ringlog_shard::storage::{LogSettings, Retention};
use ringlog_shard::store::Opening;
use ringlog_shard::store::compact::CompactorSettings;

use super::Core;
use super::groups::upkeep;
use crate::controller::{METADATA_PARTITION, MetadataImage, TopicImage};
use crate::topic_config::TopicConfig;

/// Makes `image` this core's own. Returns when every partition that it gives this core leads, so that whoever waits for
/// a topic to exist can write to it at once.
pub async fn apply(core: &Rc<Core>, image: Arc<MetadataImage>) {
    let previous = core.image();
    let first = !core.has_image.replace(true);
    if !first && image.next_offset() <= previous.next_offset() {
        return;
    }
    core.store.set_compactor(compactor(core, &image));
    let openings: Vec<Opening> = image
        .topics()
        .filter(|topic| {
            let was = previous.topic_by_id(topic.id);
            was.is_none_or(|was| was.partition_count < topic.partition_count)
        })
        .flat_map(|topic| own_partitions(core, topic))
        .collect();
    for topic in image.topics() {
        let was = previous.topic_by_id(topic.id).map(|topic| log_settings(&topic.config));
        let settings = log_settings(&topic.config);
        if was.is_some_and(|was| was != settings) {
            // A partition that could not be opened has nothing to set.
            own_keys(core, topic).for_each(|key| drop(core.store.set_log_settings(key, settings)));
        }
    }
    for topic in previous.topics().filter(|topic| image.topic_by_id(topic.id).is_none()) {
        own_keys(core, topic).for_each(|key| core.store.delete(key));
    }
    core.store.open(openings).await;
    // Published after the partitions lead: a request that finds the topic finds its partitions.
    *core.image.borrow_mut() = Arc::clone(&image);
    upkeep::follow(core, &previous, &image);
    if first {
        put_strays_aside(core).await;
    }
}

pub(super) fn own_keys(core: &Core, topic: &TopicImage) -> impl Iterator<Item = TopicPartition> + use<> {
    let (me, core_count) = (core.id.0, core.core_count);
    topic.partitions().filter(move |key| core_of(*key, core_count) == me)
}

fn log_settings(config: &TopicConfig) -> LogSettings {
    LogSettings {
        segment_bytes: config.segment_bytes,
        index_interval_bytes: config.index_interval_bytes,
        segment_ms: config.segment_ms,
        segment_jitter_ms: config.segment_jitter_ms,
        retention: Retention { age_ms_max: config.retention_ms, bytes_max: config.retention_bytes },
        compaction: config.compaction,
    }
}

/// This core's share of what the whole broker may use.
fn compactor(core: &Core, image: &MetadataImage) -> CompactorSettings {
    let cleaner = image.runtime().map_or(core.config.cleaner, |runtime| runtime.cleaner);
    let core_count = u64::from(core.core_count);
    let map_bytes = (cleaner.map_bytes / core_count).min(core.memory_bytes / COMPACTION_MEMORY_DIVISOR);
    CompactorSettings {
        is_enabled: cleaner.is_enabled,
        map_bytes: usize::try_from(map_bytes).unwrap_or(usize::MAX),
        bytes_per_second: cleaner.bytes_per_second.div_ceil(core_count),
        backoff: Duration::from_millis(cleaner.backoff_ms),
    }
}

fn own_partitions(core: &Core, topic: &TopicImage) -> Vec<Opening> {
    let settings = log_settings(&topic.config);
    own_keys(core, topic)
        .filter(|key| !core.store.holds(*key))
        .map(|key| Opening { key, recovered: core.take_recovered(key), settings })
        .collect()
}

/// What was found on disk and belongs to no topic: kept under another name, never deleted.
async fn put_strays_aside(core: &Rc<Core>) {
    let strays = core.recovered.take();
    for (key, recovered) in strays {
        if key == METADATA_PARTITION {
            continue;
        }
        let (topic_id, partition) = (key.topic, key.partition.0);
        match core.store.storage().set_aside(recovered).await {
            Ok(Some(path)) => {
                let path = path.display();
                tracing::warn!(%topic_id, partition, %path, "partition without a topic put aside");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%topic_id, partition, %error, "partition without a topic stays where it is");
            }
        }
    }
}
