//! Counts how often rare branches were entered, so that a run of many seeds can say what it never tried.
//!
//! `ringlog_io::reached!("journal.recycle")` marks a branch. Without the cargo feature `reached`, which only simulations
//! switch on, a mark is no code at all. Counters belong to the thread, as a simulated world does: they follow from its
//! seed.

use std::collections::BTreeMap;

#[cfg(feature = "reached")]
thread_local! {
    static COUNTERS: std::cell::RefCell<BTreeMap<&'static str, u64>> = const { std::cell::RefCell::new(BTreeMap::new()) };
}

/// Marks a rare branch by a name of its own, `area.what`: a literal, because it is looked for in the sources.
#[macro_export]
macro_rules! reached {
    ($name:literal) => {
        $crate::reached::note($name)
    };
}

/// Counts; use the macro.
#[cfg(feature = "reached")]
pub fn note(name: &'static str) {
    COUNTERS.with_borrow_mut(|counters| *counters.entry(name).or_default() += 1);
}

/// Counts; use the macro.
#[cfg(not(feature = "reached"))]
#[inline(always)]
pub fn note(_name: &'static str) {}

/// What this thread has reached since the last call, and how often. Empty without the feature.
#[must_use]
pub fn take() -> BTreeMap<&'static str, u64> {
    #[cfg(feature = "reached")]
    return COUNTERS.take();
    #[cfg(not(feature = "reached"))]
    BTreeMap::new()
}

#[cfg(all(test, feature = "reached"))]
mod tests {
    #[test]
    fn marks_are_counted_until_they_are_taken() {
        let _ = super::take();
        for _ in 0..2 {
            super::note("test.twice");
        }
        super::note("test.once");
        assert_eq!(super::take().into_iter().collect::<Vec<_>>(), [("test.once", 1), ("test.twice", 2)]);
        assert!(super::take().is_empty());
    }
}
