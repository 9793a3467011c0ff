//! A topic that is kept short: retention takes its oldest segments, and a client deletes records by hand.

use std::collections::BTreeMap;

use ringlog_bench::client::ClientError;
use ringlog_bench::client::admin::{NewTopic, OffsetQuery};
use ringlog_bench::client::fetcher::FetchConfig;
use ringlog_bench::client::producer::Acks;

use super::clients::{self, Hands, ProducerPlan, SharedHistory, Topic};

/// Its name.
pub const TOPIC: &str = "kept-short";

/// What keeps it short: the smallest segments, and a little more than one of them or ten minutes. Clocks that jump make
/// records that old.
const CONFIGS: [&[(&str, &str)]; 2] = [
    &[("segment.bytes", "1048576"), ("retention.bytes", "1048576")],
    &[("segment.bytes", "1048576"), ("retention.ms", "600000")],
];

/// The topic of one seed.
#[derive(Clone)]
pub struct ShortTopic {
    pub topic: Topic,
    config: usize,
}

impl ShortTopic {
    pub fn new(history: &SharedHistory, chosen: u64) -> ShortTopic {
        let partition_count = 1 + (chosen / 2 % 2) as u32;
        let topic = Topic::new(TOPIC, partition_count, history);
        ShortTopic { topic, config: (chosen % CONFIGS.len() as u64) as usize }
    }

    pub async fn create(&self, hands: &Hands) -> Result<(), ClientError> {
        let topic = NewTopic {
            name: &self.topic.name,
            partitions: self.topic.partition_count(),
            replication_factor: 1,
            configs: CONFIGS[self.config].to_vec(),
        };
        hands.client.create_topic(&topic).await
    }

    /// Batches so large that segments fill within a run.
    pub fn producer_plan(&self) -> ProducerPlan {
        ProducerPlan {
            acks: Acks::All,
            is_idempotent: true,
            records_per_batch_max: 3,
            padding_bytes_max: 60_000,
            pause_ms_max: 60,
        }
    }
}

/// Deletes records below random offsets until told to stop, and asks where the log starts.
pub async fn trim(hands: Hands, topic: Topic, pause_ms_max: u64) -> Result<(), ClientError> {
    while !hands.stop.get() {
        hands.pause_ms(pause_ms_max).await;
        let result = match hands.below(3) {
            0 => delete_some(&hands, &topic).await,
            _ => starts(&hands, &topic).await.map(|_| ()),
        };
        if let Err(error) = result
            && !error.is_retriable()
        {
            return Err(error);
        }
    }
    Ok(())
}

async fn delete_some(hands: &Hands, topic: &Topic) -> Result<(), ClientError> {
    let partition = hands.below(topic.partition_count() as u64) as i32;
    let log = topic.log(partition);
    let acked_end = hands.history.borrow().acked_end(log);
    let before = hands.below(acked_end as u64 + 1) as i64;
    // Until its answer is there the deletion may or may not have happened.
    hands.history.borrow_mut().delete(log, before);
    let request = BTreeMap::from([(partition, before)]);
    let starts = hands.done_other(hands.client.delete_records(&topic.name, &request).await)?;
    let start = starts.get(&partition).copied().unwrap_or(-1);
    hands.history.borrow_mut().told_start(log, before, start);
    Ok(())
}

/// Where the logs of a topic start, which is nowhere before a deletion that was confirmed earlier.
async fn starts(hands: &Hands, topic: &Topic) -> Result<BTreeMap<i32, i64>, ClientError> {
    let partitions: Vec<i32> = topic.partitions().collect();
    let told: Vec<i64> = topic.logs.clone().map(|log| hands.history.borrow().told_start_max(log)).collect();
    let starts =
        hands.done_other(hands.client.offsets(&topic.name, &partitions, OffsetQuery::Earliest).await)?;
    for ((partition, start), told) in starts.iter().zip(told) {
        hands.history.borrow_mut().told_start(topic.log(*partition), told, *start);
    }
    Ok(starts)
}

/// The last word on the topic: what is left of it. Retention does not tell what it took.
pub async fn read_rest(hands: Hands, topic: Topic) -> Result<(), ClientError> {
    let ends = clients::ends(&hands, &topic).await?;
    let starts = starts(&hands, &topic).await?;
    for (partition, start) in &starts {
        hands.history.borrow_mut().delete(topic.log(*partition), *start);
    }
    let (reader, number) = clients::reader_from(&hands, &topic, starts, FetchConfig::default());
    let now_ns = hands.io.monotonic_now().as_nanos();
    hands.history.borrow_mut().set_last(number, &topic.places(&ends), now_ns);
    reader.set_ends(ends);
    reader.run().await
}
