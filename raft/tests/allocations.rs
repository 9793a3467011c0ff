//! What a group allocates: nothing in the steady state, and next to nothing when idle.

#![allow(unsafe_code, reason = "a counting allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use instant::{Cluster, alone, writes};
use ringlog_protocol::ids::Offset;
use ringlog_raft::{Event, Group};

#[path = "support/instant.rs"]
mod instant;

/// Counts what the current thread asks for.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System` unchanged; the counters are plain cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        HELD_BYTES.set(HELD_BYTES.get() + layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.set(HELD_BYTES.get() - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_steady_stream_of_records_and_heartbeats_allocates_nothing() {
    let mut cluster = Cluster::new();
    let rounds = |cluster: &mut Cluster, count: usize| {
        for round in 0..count {
            cluster.proposes();
            if round % 8 == 0 {
                cluster.ticks();
            }
        }
    };
    rounds(&mut cluster, 200);
    let leader = cluster.leader();
    let (before, committed) = (COUNT.get(), cluster.groups[leader].high_watermark());
    rounds(&mut cluster, 2_000);
    assert_eq!(COUNT.get() - before, 0, "allocations in 2,000 proposals to three replicas");
    assert_eq!(cluster.groups[leader].high_watermark().0 - committed.0, 20_000);
    assert_eq!(cluster.leader(), leader);
}

#[test]
fn an_idle_replica_takes_at_most_a_kibibyte_a_leader_of_three_too() {
    let mut cluster = Cluster::new();
    for _ in 0..20 {
        cluster.proposes();
        cluster.ticks();
    }
    (0..10).for_each(|_| cluster.ticks());
    assert!(cluster.groups.iter().all(Group::is_quiescent));
    let follower = cluster.groups.swap_remove((cluster.leader() + 1) % 3);
    let leader = cluster.groups.swap_remove(cluster.leader());
    let mut alone = alone();
    for end in 1..=20 {
        let mut effects = Vec::with_capacity(8);
        alone.step(Event::Proposal { end: Offset(end) }, &mut effects);
        writes(&mut alone, &mut effects);
    }
    for (what, group) in [("follower", follower), ("group of one", alone), ("leader of three", leader)] {
        let before = HELD_BYTES.get();
        drop(group);
        let bytes = size_of::<Group>() as isize + before - HELD_BYTES.get();
        println!("an idle {what} takes {bytes} bytes, {} of them inline", size_of::<Group>());
        assert!(bytes <= 1024, "an idle {what} takes {bytes} bytes");
    }
}
