//! How many bytes the logs of a core's partitions hold, as DescribeLogDirs tells it.

use std::rc::Rc;

use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::limits::LOG_SIZES_PARTITIONS_AT_ONCE;

use super::Core;
use super::messages::{CoreReply, CoreResponder};
use super::serve::answer;

/// Answers another core.
pub(super) fn serve(core: &Rc<Core>, keys: Vec<TopicPartition>, responder: CoreResponder) {
    answer(core, responder, async move |core| CoreReply::LogSizes(log_sizes(core, &keys).await));
}

/// Of each, in order; `None` where this core does not hold the partition. Others run between slices of a long list.
pub async fn log_sizes(core: &Rc<Core>, keys: &[TopicPartition]) -> Vec<Option<u64>> {
    let mut sizes = Vec::with_capacity(keys.len());
    for slice in keys.chunks(LOG_SIZES_PARTITIONS_AT_ONCE) {
        if !sizes.is_empty() {
            core.io.yield_now().await;
        }
        sizes.extend(slice.iter().map(|key| core.store.stored_bytes(*key)));
    }
    sizes
}
