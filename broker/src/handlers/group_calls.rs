//! What handlers of groups share: asking the machines that hold groups, waiting beside a client that may go away, and lines
//! about what a response has no field for.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use ringlog_io::{HangUp, Priority};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame::RequestHeader;
use ringlog_protocol::wire::Reader;
use ringlog_shard::limits::GROUPS_PER_REQUEST_MAX;

use super::{Request, RequestInfo};
use crate::controller::features::GROUP_VERSION;
use crate::core::Core;
use crate::core::groups::{self, GroupAnswer, GroupCall, partition_of};
use crate::group::Reply;
use crate::server::Connection;
use crate::server::replies::Answer;

/// Codes of Kafka's AclOperation as bits: without ACLs everybody may do everything that a group knows.
/// READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
pub(super) const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// Whether the cluster runs consumer groups of KIP-848.
///
/// # Errors
/// `UNSUPPORTED_VERSION`, as Kafka answers where its `group.version` is 0.
pub(super) fn check_consumer_groups(core: &Core) -> Result<(), ErrorCode> {
    match core.image().features().level(GROUP_VERSION) {
        0 => Err(ErrorCode::UnsupportedVersion),
        _ => Ok(()),
    }
}

/// Asks the machine that holds `group`.
///
/// # Errors
/// What all parts of the response say: no machine looked at the call. `NOT_COORDINATOR` before the first group of this node: the
/// client looks for its coordinator, and that makes the place where groups are kept.
pub(super) async fn ask(core: &Rc<Core>, group: &str, call: GroupCall) -> Result<Reply, ErrorCode> {
    let partition = partition_of(core, group).ok_or(ErrorCode::NotCoordinator)?;
    match groups::ask(core, partition, call).await {
        GroupAnswer::Reply(reply) => Ok(reply),
        GroupAnswer::Refused(error) => Err(error),
        GroupAnswer::Offsets(_) | GroupAnswer::Described(_) | GroupAnswer::ConsumersDescribed(_) => {
            unreachable!("a request is answered by a reply")
        }
    }
}

/// Asks the machines of all `groups`, side by side. `call` makes the call for those at the places that it is given, which lie in
/// one partition; `answers` takes its answer apart, in that order. Answers stand in the order of `groups`.
pub(super) async fn ask_each<R: 'static>(
    core: &Rc<Core>,
    groups: &[&str],
    call: impl Fn(&[usize]) -> GroupCall,
    answers: impl Fn(GroupAnswer) -> Vec<R>,
) -> Vec<Result<R, ErrorCode>> {
    let mut results: Vec<Option<Result<R, ErrorCode>>> = groups.iter().map(|_| None).collect();
    let mut calls = Vec::new();
    for (partition, places) in by_partition(groups, |group| partition_of(core, group)) {
        match partition {
            None => {
                places.into_iter().for_each(|place| results[place] = Some(Err(ErrorCode::NotCoordinator)))
            }
            Some(partition) => {
                let (core, call) = (Rc::clone(core), call(&places));
                let io = core.io.clone();
                let ask = async move { groups::ask(&core, partition, call).await };
                calls.push((places, io.spawn(Priority::Foreground, ask)));
            }
        }
    }
    for (places, answer) in calls {
        match answer.await {
            GroupAnswer::Refused(error) => {
                places.into_iter().for_each(|place| results[place] = Some(Err(error)));
            }
            answer => {
                let found = answers(answer);
                places.into_iter().zip(found).for_each(|(place, result)| results[place] = Some(Ok(result)));
            }
        }
    }
    results.into_iter().map(|result| result.expect("each group is asked for once and answered")).collect()
}

/// Places of groups by the partition that holds them.
fn by_partition(
    groups: &[&str],
    partition_of: impl Fn(&str) -> Option<i32>,
) -> BTreeMap<Option<i32>, Vec<usize>> {
    let mut places: BTreeMap<Option<i32>, Vec<usize>> = BTreeMap::new();
    for (place, group) in groups.iter().enumerate() {
        places.entry(partition_of(group)).or_default().push(place);
    }
    places
}

/// Which names stand in a list before: each group is answered once, whatever a request repeats.
pub(super) fn repeated(groups: &[&str]) -> Vec<bool> {
    let mut seen = std::collections::BTreeSet::new();
    groups.iter().map(|group| !seen.insert(*group)).collect()
}

/// What comes of `answer`, or the end of the connection that waits for it. The rest of the answer is then dropped.
pub(super) async fn unless_hung_up<T>(
    core: &Core,
    connection: &Connection,
    answer: impl Future<Output = T>,
) -> Result<T, HangUp> {
    let mut answer = pin!(answer);
    poll_fn(|context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Ok(answer));
        }
        connection.poll_hung_up(&core.io, context).map(Err)
    })
    .await
}

/// What the client calls itself, whole.
pub(super) fn client_id(request: &Request) -> &str {
    let header = RequestHeader::decode(&mut Reader::new(&request.frame));
    header.ok().and_then(|header| header.client_id).unwrap_or_default()
}

/// A request that names more groups than one may: nobody gets gigabytes of answers for megabytes of empty names.
pub(super) fn too_many(
    core: &Core,
    connection: &Connection,
    info: &RequestInfo,
    count: usize,
) -> Option<Answer> {
    if count <= GROUPS_PER_REQUEST_MAX {
        return None;
    }
    if let Some(suppressed) = core.violation_lines.borrow_mut().admit(core.io.monotonic_now().as_nanos()) {
        let (peer, api) = (connection.peer, info.api);
        tracing::warn!(%peer, %api, count, limit = GROUPS_PER_REQUEST_MAX, suppressed, "connection closed: too many groups in one request");
    }
    Some(Answer::Close)
}

/// Writes down what the response has no field for, if there is anything.
pub(super) fn note(core: &Core, info: &RequestInfo, group: &str, error: ErrorCode, message: Option<&str>) {
    let Some(reason) = message else {
        if error != ErrorCode::None {
            tracing::debug!(api = %info.api, group, client_id = ?info.client_id, %error, "group request refused");
        }
        return;
    };
    if let Some(suppressed) = core.group_lines.borrow_mut().admit(core.io.monotonic_now().as_nanos()) {
        tracing::warn!(api = %info.api, group, client_id = ?info.client_id, %error, reason, suppressed, "group request refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_asked_for_by_the_partition_that_holds_them() {
        let partition = |group: &str| group.len().checked_sub(1).map(|partition| partition as i32);
        let places = by_partition(&["a", "bb", "", "c"], partition);
        let places: Vec<_> = places.into_iter().collect();
        assert_eq!(places, [(None, vec![2]), (Some(0), vec![0, 3]), (Some(1), vec![1])]);
    }

    #[test]
    fn a_name_that_stands_twice_is_repeated_once() {
        assert_eq!(repeated(&["a", "b", "a", "", "", "b"]), [false, false, true, false, true, true]);
    }
}
