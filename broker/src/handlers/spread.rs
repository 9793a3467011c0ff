//! One question about many partitions, asked once of each core that owns some of them.

use std::rc::Rc;

use ringlog_shard::mesh::CoreId;

use crate::core::Core;
use crate::core::messages::{CoreReply, CoreRequest};

/// Parts that go to one core, with their places in the request.
pub(super) struct ForCore<T> {
    pub core: CoreId,
    pub parts: Vec<T>,
    pub places: Vec<usize>,
}

/// Groups parts by owner, in request order within each group.
pub(super) fn by_core<T: Copy>(parts: &[T], owner: impl Fn(&T) -> CoreId) -> Vec<ForCore<T>> {
    let mut groups: Vec<ForCore<T>> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        let owner = owner(part);
        let at = groups.iter().position(|group| group.core == owner).unwrap_or_else(|| {
            groups.push(ForCore { core: owner, parts: Vec::new(), places: Vec::new() });
            groups.len() - 1
        });
        groups[at].parts.push(*part);
        groups[at].places.push(place);
    }
    groups
}

/// Asks each group's core, all side by side, and puts the answers in request order. This core's own part is `here`.
pub(super) async fn ask<T: Copy, R>(
    core: &Rc<Core>,
    groups: &[ForCore<T>],
    here: impl AsyncFn(&[T]) -> Vec<R>,
    request: impl Fn(Vec<T>) -> CoreRequest,
    answer: impl Fn(CoreReply) -> Vec<R>,
) -> Vec<R> {
    let count = groups.iter().map(|group| group.parts.len()).sum();
    let mut results: Vec<Option<R>> = (0..count).map(|_| None).collect();
    let mut calls = Vec::new();
    for group in groups.iter().filter(|group| group.core != core.id) {
        calls.push((group, core.mesh.send(group.core, request(group.parts.clone())).await));
    }
    for group in groups.iter().filter(|group| group.core == core.id) {
        let found = here(&group.parts).await;
        group.places.iter().zip(found).for_each(|(place, result)| results[*place] = Some(result));
    }
    for (group, call) in calls {
        let found = answer(call.await);
        group.places.iter().zip(found).for_each(|(place, result)| results[*place] = Some(result));
    }
    results
        .into_iter()
        .map(|result| result.expect("each part belongs to one group and is answered"))
        .collect()
}
