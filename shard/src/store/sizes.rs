//! How many bytes partitions hold: what whoever looks for disk space asks. Changes nothing.

use ringlog_protocol::ids::TopicPartition;

use super::Store;

impl Store {
    /// Bytes of the partition's record batches, each counted once: those in segments, and those that only the journal holds
    /// yet. Of a partition that could not be opened, the length of its segment files. `None`: this core does not hold it.
    pub fn stored_bytes(&self, key: TopicPartition) -> Option<u64> {
        let table = self.inner.table.borrow();
        match table.get(key) {
            Ok(partition) => Some(self.inner.storage.log(partition.log).stored_bytes()),
            Err(_) => table.offline.get(&key).map(|offline| offline.stored_bytes),
        }
    }
}
