//! Asking the owners of a fetch's partitions, and waiting for more. The only part of a fetch that talks to other cores.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ringlog_io::Monotonic;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::waiters::Watch;

use crate::core::Core;
use crate::core::messages::{CoreReply, CoreRequest, PartitionState, PositionPart, ReadPart, ReadResult};
use crate::core::serve;
use crate::handlers::spread::{self, ForCore};

/// What the partitions can return once together they can return `bytes_min`, one of them has an error, or `deadline`
/// passed. With `at_once` nothing is waited for.
pub(super) async fn until_enough(
    core: &Rc<Core>,
    positions: &[PositionPart],
    bytes_min: u64,
    at_once: bool,
    deadline: Monotonic,
) -> Vec<PartitionState> {
    let groups = spread::by_core(positions, |part| core.owner_of(part.key));
    loop {
        let states = look(core, &groups).await;
        let available: u64 = states.iter().map(|state| state.available_bytes).sum();
        let failed = states.iter().any(|state| state.error != ErrorCode::None);
        if at_once
            || failed
            || available >= bytes_min
            || core.io.monotonic_now() >= deadline
            || core.is_draining()
        {
            return states;
        }
        wait_for_more(core, &groups, &states, bytes_min - available, deadline).await;
    }
}

async fn look(core: &Rc<Core>, groups: &[ForCore<PositionPart>]) -> Vec<PartitionState> {
    spread::ask(
        core,
        groups,
        async |parts: &[PositionPart]| serve::available(core, parts),
        CoreRequest::Available,
        |reply| match reply {
            CoreReply::Available(states) => states,
            _ => unreachable!("available is answered by available"),
        },
    )
    .await
}

/// Waits until something came or `deadline`. On this core alone exactly `bytes_missing` are waited for; over several
/// cores any news is, and the sum is formed anew.
async fn wait_for_more(
    core: &Rc<Core>,
    groups: &[ForCore<PositionPart>],
    states: &[PartitionState],
    bytes_missing: u64,
    deadline: Monotonic,
) {
    let only_here = groups.iter().all(|group| group.core == core.id);
    let mut here = Watch::new(if only_here { bytes_missing } else { 1 });
    for group in groups.iter().filter(|group| group.core == core.id) {
        for part in &group.parts {
            if let Ok(watchers) = core.store.watchers(part.key) {
                here.on(&watchers);
            }
        }
        // What came while the other cores were asked fired no watch: none was there yet.
        let now = serve::available(core, &group.parts);
        if group.places.iter().zip(&now).any(|(place, now)| states[*place] != *now) {
            return;
        }
    }
    let mut there = None;
    for group in groups.iter().filter(|group| group.core != core.id) {
        let watch = there.get_or_insert_with(|| core.home_watches().open(core.id)).id;
        // Seen up to what the last look said: the owner fires at once if there is more by now.
        let seen = |(part, place): (&PositionPart, &usize)| PositionPart {
            key: part.key,
            from: if states[*place].available_bytes > 0 { states[*place].high_watermark } else { part.from },
        };
        let parts = group.parts.iter().zip(&group.places).map(seen).collect();
        core.mesh.call(group.core, CoreRequest::Watch { watch, parts }).await;
    }
    core.fetches_waiting.set(core.fetches_waiting.get() + 1);
    let mut fired = pin!(async {
        match &there {
            None => std::future::pending().await,
            Some(watch) => watch.fired().await,
        }
    });
    let mut here = pin!(here);
    let mut drained = pin!(core.when_draining());
    let mut time_up = pin!(core.io.sleep_until(deadline));
    poll_fn(|context| {
        let ready = here.as_mut().poll(context).is_ready()
            || fired.as_mut().poll(context).is_ready()
            || drained.as_mut().poll(context).is_ready()
            || time_up.as_mut().poll(context).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    core.fetches_waiting.set(core.fetches_waiting.get() - 1);
    if let Some(watch) = &there {
        core.home_watches().close(watch.id);
        for group in groups.iter().filter(|group| group.core != core.id) {
            drop(core.mesh.send(group.core, CoreRequest::CancelWatch { watch: watch.id }).await);
        }
    }
}

/// Reads each partition within its grant, all cores side by side.
pub(super) async fn collect(core: &Rc<Core>, reads: Vec<ReadPart>) -> Vec<ReadResult> {
    let groups = spread::by_core(&reads, |part| core.owner_of(part.key));
    spread::ask(
        core,
        &groups,
        async |parts: &[ReadPart]| serve::read(core, parts).await,
        CoreRequest::Read,
        |reply| match reply {
            CoreReply::Read(results) => results,
            _ => unreachable!("a read is answered by a read"),
        },
    )
    .await
}
