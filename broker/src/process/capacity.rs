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
/// Of the descriptors left, the share for connections; the others hold segment files, one for each partition that is
/// being read or written.
const CONNECTION_DESCRIPTOR_SHARE: u64 = 50;

/// What the model starts from.
#[derive(Debug, Clone, Copy)]
pub struct CapacityInputs {
    pub shard_count: u32,
    pub memory_bytes: u64,
    pub open_files_max: u64,
    /// `max.connections`.
    pub connections_configured: u64,
}

/// What the process can carry, over all shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The effective bound on client connections: enforced.
    pub connections_max: u64,
    pub connections_bound: Bound,
    /// Open segment files that the shards may keep between them: enforced by storage.
    pub segment_files_max: u64,
    /// Partitions for which memory is planned: a forecast, not enforced.
    pub partitions_planned: u64,
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
        Capacity {
            // A broker that takes no connection at all would be no broker.
            connections_max: connections.max(1),
            connections_bound,
            segment_files_max: descriptors.saturating_sub(for_connections).max(1),
            partitions_planned: percent(inputs.memory_bytes, PARTITION_SHARE) / PARTITION_BYTES,
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
        Capacity::of(&CapacityInputs { shard_count: 2, memory_bytes, open_files_max, connections_configured })
    }

    #[test]
    fn the_tightest_limit_decides_and_is_named() {
        let found = capacity(1 << 30, 1024, 1 << 31);
        assert_eq!((found.connections_max, found.connections_bound), (456, Bound::OpenFiles));
        assert_eq!(found.segment_files_max, 456);
        let found = capacity(64 << 20, 1 << 20, 1 << 31);
        assert_eq!((found.connections_max, found.connections_bound), (1638, Bound::Memory));
        assert_eq!(found.partitions_planned, 3276);
        let found = capacity(1 << 30, 1 << 20, 10);
        assert_eq!((found.connections_max, found.connections_bound), (10, Bound::Setting));
    }

    #[test]
    fn there_is_always_room_for_one() {
        let found = capacity(0, 0, 0);
        assert_eq!((found.connections_max, found.segment_files_max), (1, 1));
        assert_eq!(capacity(u64::MAX, u64::MAX, u64::MAX).connections_bound, Bound::Memory);
    }
}
