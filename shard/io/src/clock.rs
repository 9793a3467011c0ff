//! Points in time. Owns the type of a monotonic reading; reads no clock itself, so that every reading comes from a driver.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A reading of the driver's monotonic clock, in nanoseconds since an origin that means nothing outside this process.
///
/// It never goes back, and it is unrelated to the wall clock: the two jump apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The end of time: a deadline that never comes.
    pub const MAX: Self = Self(u64::MAX);

    /// The time from `earlier` to here, zero when `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Nanoseconds since the clock's origin.
    pub fn as_nanos(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Monotonic {
    type Output = Self;

    /// Saturates at [`Monotonic::MAX`], which is 584 years away.
    fn add(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Sub<Duration> for Monotonic {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(nanoseconds))
    }
}

impl fmt::Display for Monotonic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// The kernel's monotonic clock. Only the real drivers call it.
pub(crate) fn kernel_monotonic() -> Monotonic {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    Monotonic(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// The kernel's wall clock in milliseconds since the Unix epoch. Only the real drivers call it.
pub(crate) fn kernel_wall_ms() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Monotonic(5) + Duration::from_nanos(7), Monotonic(12));
        assert_eq!(Monotonic::MAX + Duration::from_secs(1), Monotonic::MAX);
        assert_eq!(Monotonic(5) + Duration::MAX, Monotonic::MAX);
        assert_eq!(Monotonic(5).saturating_since(Monotonic(9)), Duration::ZERO);
        assert_eq!(Monotonic(9).saturating_since(Monotonic(5)), Duration::from_nanos(4));
    }

    #[test]
    fn the_kernel_clock_moves_forward() {
        let first = kernel_monotonic();
        assert!(first > Monotonic(0));
        assert!(kernel_monotonic() >= first);
        assert!(kernel_wall_ms() > 1_600_000_000_000);
    }
}
