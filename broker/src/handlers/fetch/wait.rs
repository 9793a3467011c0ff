//! Asking the owners of a fetch's partitions, and waiting for more. The only part of a fetch that talks to other cores.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ringlog_io::Monotonic;
use ringlog_protocol::ids::LeaderEpoch;
use ringlog_shard::mesh::CoreId;
use ringlog_shard::waiters::Watch;

use crate::core::Core;
use crate::core::epochs::ReaderEpochs;
use crate::core::messages::{CoreReply, CoreRequest, PartitionState, PositionPart, ReadPart, ReadResult};
use crate::core::serve;
use crate::core::watches::HomeWatch;
use crate::handlers::spread::{self, ForCore};
use crate::server::Connection;

/// What a fetch waits for.
pub(super) struct Needed {
    pub(super) bytes_min: u64,
    /// Nothing is waited for.
    pub(super) at_once: bool,
    pub(super) deadline: Monotonic,
}

/// What the partitions can return once together they can return enough, one of them has an error, the deadline passed,
/// or the peer hung up.
pub(super) async fn until_enough(
    core: &Rc<Core>,
    connection: &Connection,
    positions: &[PositionPart],
    needed: Needed,
) -> Vec<PartitionState> {
    let Needed { bytes_min, deadline, .. } = needed;
    let groups = spread::by_core(positions, |part| core.owner_of(part.key));
    loop {
        let states = look(core, &groups).await;
        let available: u64 = states.iter().map(|state| state.available_bytes).sum();
        let failed = states.iter().any(PartitionState::is_final);
        if failed || available >= bytes_min || is_over(core, connection, &needed) {
            return states;
        }
        wait_for_more(core, connection, &groups, &states, bytes_min - available, deadline).await;
    }
}

/// Whether nothing is waited for, or no longer.
pub(super) fn is_over(core: &Core, connection: &Connection, needed: &Needed) -> bool {
    needed.at_once
        || core.io.monotonic_now() >= needed.deadline
        || core.is_draining()
        || connection.hang_up().is_some()
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

/// Waits until something came, until `deadline`, or until the peer hung up. On this core alone exactly `bytes_missing` are waited for; over several
/// cores any news is, and the sum is formed anew.
async fn wait_for_more(
    core: &Rc<Core>,
    connection: &Connection,
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
            // Compared at its own position already; at another one it would not hold.
            epochs: ReaderEpochs { last_fetched: LeaderEpoch::NONE, ..part.epochs },
        };
        let parts = group.parts.iter().zip(&group.places).map(seen).collect();
        core.mesh.call(group.core, CoreRequest::Watch { watch, parts }).await;
    }
    let others: Vec<CoreId> =
        groups.iter().map(|group| group.core).filter(|other| *other != core.id).collect();
    sleep(core, connection, here, there, &others, deadline).await;
}

/// Until something is `here` or `there`, until `deadline`, or until the peer hung up. The watch on the other cores ends with it.
pub(super) async fn sleep(
    core: &Rc<Core>,
    connection: &Connection,
    here: impl Future<Output = ()>,
    there: Option<HomeWatch>,
    others: &[CoreId],
    deadline: Monotonic,
) {
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
            || time_up.as_mut().poll(context).is_ready()
            || connection.poll_hung_up(&core.io, context).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    core.fetches_waiting.set(core.fetches_waiting.get() - 1);
    if let Some(watch) = &there {
        core.home_watches().close(watch.id);
        for other in others {
            drop(core.mesh.send(*other, CoreRequest::CancelWatch { watch: watch.id }).await);
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
