//! How many bytes each partition of a fetch may return. Pure.
//!
//! Kafka's rules (KIP-74): partitions are served in request order; the answer stays within `max_bytes`, each partition
//! within its own `partition_max_bytes`; only the first partition that has anything returns at least one whole batch
//! even above the bounds, so that a consumer behind a large batch makes progress.

/// A partition of the request, in request order, with what its owner says it could return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub partition_bytes_max: u32,
    pub available_bytes: u64,
}

/// What a partition may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grant {
    pub bytes_max: u32,
    /// Return one whole batch even if it is larger than `bytes_max`.
    pub at_least_one: bool,
}

/// Shares `bytes_max` among the partitions in order.
pub fn share(bytes_max: u32, wanted: &[Wanted]) -> Vec<Grant> {
    let mut left = bytes_max;
    let mut first = true;
    wanted
        .iter()
        .map(|partition| {
            if partition.available_bytes == 0 {
                return Grant::default();
            }
            let available = u32::try_from(partition.available_bytes).unwrap_or(u32::MAX);
            let grant = Grant { bytes_max: left.min(partition.partition_bytes_max), at_least_one: first };
            first = false;
            left -= grant.bytes_max.min(available);
            grant
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes_max: u32, wanted: &[(u32, u64)], expected: &[(u32, bool)]) {
        let wanted: Vec<Wanted> = wanted
            .iter()
            .map(|&(partition_bytes_max, available_bytes)| Wanted { partition_bytes_max, available_bytes })
            .collect();
        let granted: Vec<(u32, bool)> =
            share(bytes_max, &wanted).iter().map(|grant| (grant.bytes_max, grant.at_least_one)).collect();
        assert_eq!(granted, expected);
    }

    #[test]
    fn the_first_with_data_may_exceed_and_nobody_else() {
        check(10, &[(100, 0), (100, 50), (100, 50)], &[(0, false), (10, true), (0, false)]);
    }

    #[test]
    fn request_order_decides_who_goes_short() {
        check(100, &[(60, 1000), (60, 1000), (60, 1000)], &[(60, true), (40, false), (0, false)]);
    }

    #[test]
    fn what_a_partition_does_not_use_goes_to_the_next() {
        check(100, &[(80, 10), (80, 1000), (80, 5)], &[(80, true), (80, false), (10, false)]);
    }

    #[test]
    fn a_bound_of_zero_still_makes_progress() {
        check(0, &[(0, 10), (10, 10)], &[(0, true), (0, false)]);
        check(100, &[(0, 10), (10, 10)], &[(0, true), (10, false)]);
    }
}
