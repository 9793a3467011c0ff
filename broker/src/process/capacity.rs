//! Owns the capacity model: how many connections and partitions this process can carry, and by which limit. Pure: the
//! measured costs of an idle connection and partition stand here, and the banner prints the result.

/// Memory of one idle connection, the target of the design; measured by the skeleton's evidence.
const CONNECTION_BYTES: u64 = 8 << 10;
/// Memory of one idle partition.
const PARTITION_BYTES: u64 = 4 << 10;
/// Shares of a shard's memory that idle connections and idle partitions may take, in percent; the rest works.
const CONNECTION_SHARE: u64 = 20;
const PARTITION_SHARE: u64 = 20;
/// Descriptors kept for journals, rings, event descriptors, the admin server and the log.
const DESCRIPTORS_RESERVED: u64 = 64;
const DESCRIPTORS_RESERVED_PER_SHARD: u64 = 24;
/// Of the descriptors left, the share for connections in percent; the others hold segment files.
const CONNECTION_DESCRIPTOR_SHARE: u64 = 50;

/// Segment files of a shard below which reads would open and close files all the time.
const SEGMENT_FILES_MIN: u64 = 16;

/// What the model starts from.
#[derive(Debug, Clone, Copy)]
pub struct CapacityInputs {
    pub shard_count: u32,
    pub memory_bytes: u64,
    pub open_files_max: u64,
    /// `max.connections`.
    pub connections_configured: u64,
    /// Of one shard: all its files.
    pub journal_bytes_per_shard: u64,
}

/// What the process can carry, over all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The effective bound on client connections: enforced.
    pub connections_max: u64,
    pub connections_bound: Bound,
    /// Partitions for which memory and descriptors are there: a forecast, not enforced. Each counts one open segment.
    pub partitions_planned: u64,
    pub partitions_bound: Bound,
    /// Segment files that each shard keeps open: enforced.
    pub segment_files_per_shard: u64,
    /// Disk that the journals of all shards take when they have grown to their size.
    pub journal_bytes: u64,
}

/// Which limit decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    Setting,
    OpenFiles,
    Memory,
}

impl Bound {
    /// What to change, for the banner.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Setting => "max.connections",
            Bound::OpenFiles => "open files",
            Bound::Memory => "memory",
        }
    }
}

impl Capacity {
    pub fn of(inputs: &CapacityInputs) -> Capacity {
        let reserved = DESCRIPTORS_RESERVED + DESCRIPTORS_RESERVED_PER_SHARD * u64::from(inputs.shard_count);
        let descriptors = inputs.open_files_max.saturating_sub(reserved);
        let for_connections = percent(descriptors, CONNECTION_DESCRIPTOR_SHARE);
        let candidates = [
            (inputs.connections_configured, Bound::Setting),
            (for_connections, Bound::OpenFiles),
            (percent(inputs.memory_bytes, CONNECTION_SHARE) / CONNECTION_BYTES, Bound::Memory),
        ];
        let (connections, connections_bound) =
            candidates.into_iter().min_by_key(|(count, _)| *count).unwrap_or((1, Bound::Setting));
        let for_segments = descriptors.saturating_sub(for_connections);
        let in_memory = percent(inputs.memory_bytes, PARTITION_SHARE) / PARTITION_BYTES;
        let (partitions, partitions_bound) = if for_segments < in_memory {
            (for_segments, Bound::OpenFiles)
        } else {
            (in_memory, Bound::Memory)
        };
        Capacity {
            // A broker that takes no connection at all would be no broker.
            connections_max: connections.max(1),
            connections_bound,
            partitions_planned: partitions,
            partitions_bound,
            segment_files_per_shard: (for_segments / u64::from(inputs.shard_count.max(1)))
                .max(SEGMENT_FILES_MIN),
            journal_bytes: inputs.journal_bytes_per_shard.saturating_mul(u64::from(inputs.shard_count)),
        }
    }
}

fn percent(number: u64, share: u64) -> u64 {
    (number / 100).saturating_mul(share).saturating_add(number % 100 * share / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(memory_bytes: u64, open_files_max: u64, connections_configured: u64) -> Capacity {
        Capacity::of(&CapacityInputs {
            shard_count: 2,
            memory_bytes,
            open_files_max,
            connections_configured,
            journal_bytes_per_shard: 16,
        })
    }

    #[test]
    fn the_tightest_limit_decides_and_is_named() {
        let found = capacity(1 << 30, 1024, 1 << 31);
        assert_eq!((found.connections_max, found.connections_bound), (456, Bound::OpenFiles));
        assert_eq!((found.partitions_planned, found.partitions_bound), (456, Bound::OpenFiles));
        assert_eq!(found.journal_bytes, 32);
        assert_eq!(found.segment_files_per_shard, 228);
        let found = capacity(64 << 20, 1 << 20, 1 << 31);
        assert_eq!((found.connections_max, found.connections_bound), (1638, Bound::Memory));
        assert_eq!((found.partitions_planned, found.partitions_bound), (3276, Bound::Memory));
        let found = capacity(1 << 30, 1 << 20, 10);
        assert_eq!((found.connections_max, found.connections_bound), (10, Bound::Setting));
    }

    #[test]
    fn there_is_always_room_for_one() {
        let found = capacity(0, 0, 0);
        assert_eq!((found.connections_max, found.partitions_planned), (1, 0));
        assert_eq!(found.segment_files_per_shard, SEGMENT_FILES_MIN);
        assert_eq!(capacity(u64::MAX, u64::MAX, u64::MAX).connections_bound, Bound::Memory);
    }
}
