//! What the groups of a core need besides calls: following the metadata, expiry, the end of the node.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringlog_io::{Monotonic, Priority};

use super::computations::topics_of;
use super::host::Host;
use crate::controller::{MetadataImage, OFFSETS_TOPIC_NAME};
use crate::core::{Core, images};
use crate::group::{DeletedTopic, Event};

/// Makes a host of each partition that `image` gives this core, and ends those that it takes; offsets of topics that are gone go. Called
/// once the partitions lead and the core has the image.
pub(crate) fn follow(core: &Rc<Core>, previous: &MetadataImage, image: &MetadataImage) {
    tell_overrides(core, image);
    tell_topics(core, image);
    let groups = core.groups();
    let topic = image.topic(OFFSETS_TOPIC_NAME);
    let id = topic.map(|topic| topic.id);
    for host in groups.all_hosts().into_iter().filter(|host| Some(host.key.topic) != id) {
        groups.hosts.borrow_mut().remove(&host.partition());
        host.resign(core);
    }
    if let Some(topic) = topic
        && !core.is_draining()
    {
        for key in images::own_keys(core, topic) {
            if groups.hosts.borrow().contains_key(&key.partition.0) {
                continue;
            }
            let host = Rc::new(Host::new(key, groups.new_machine()));
            groups.hosts.borrow_mut().insert(host.partition(), Rc::clone(&host));
            host.begin_load(core);
            core.io.spawn(Priority::Background, host.follow_leader(Rc::clone(core))).detach();
        }
    }
    let gone = previous.topics().filter(|topic| image.topic_by_id(topic.id).is_none());
    let gone: Vec<DeletedTopic> =
        gone.map(|topic| DeletedTopic { name: Arc::clone(&topic.name), id: topic.id }).collect();
    if gone.is_empty() {
        return;
    }
    // Those that are being loaded look for themselves afterwards.
    for host in groups.all_hosts().into_iter().filter(|host| host.is_serving()) {
        host.drive(core, Event::TopicsDeleted(gone.clone()));
    }
}

/// Gives the machines what is set on single groups, also those that are made later.
fn tell_overrides(core: &Core, image: &MetadataImage) {
    let (groups, overrides) = (core.groups(), image.group_overrides());
    if Arc::ptr_eq(overrides, &groups.overrides.borrow()) {
        return;
    }
    *groups.overrides.borrow_mut() = Arc::clone(overrides);
    for host in groups.all_hosts() {
        host.machine.borrow_mut().set_overrides(Arc::clone(overrides));
    }
}

/// Tells the machines of the topics of `image`, where there are any and they changed.
fn tell_topics(core: &Rc<Core>, image: &MetadataImage) {
    let groups = core.groups();
    if image.topic(OFFSETS_TOPIC_NAME).is_none() {
        return;
    }
    let changed = topics_of(image, &groups.topics.borrow(), core.config.rack.as_deref());
    let Some(topics) = changed.map(Arc::new) else { return };
    *groups.topics.borrow_mut() = Arc::clone(&topics);
    for host in groups.all_hosts() {
        host.drive(core, Event::MetadataChanged(Arc::clone(&topics)));
    }
}

/// Forgets offsets of topics that are gone, of which the node went down before that was in the log, or which were committed while
/// the topic was deleted. What is newer than `core`'s image looks as if it were gone, for a moment: only what was missing at
/// `before` too is believed. A log that was just read holds nothing newer, since an image of a start has all that there was.
pub(super) fn forget_missing_topics(
    core: &Rc<Core>,
    host: &Rc<Host>,
    before: Option<BTreeSet<DeletedTopic>>,
) {
    let missing = missing_topics(&core.image(), host);
    let gone = missing.iter().filter(|topic| before.as_ref().is_none_or(|before| before.contains(topic)));
    let gone: Vec<DeletedTopic> = gone.cloned().collect();
    *host.missing.borrow_mut() = missing;
    if !gone.is_empty() {
        ringlog_io::reached!("groups.missing_topics");
        host.drive(core, Event::TopicsDeleted(gone));
    }
}

/// The topics of offsets that the image does not hold.
fn missing_topics(image: &MetadataImage, host: &Host) -> BTreeSet<DeletedTopic> {
    let mut missing = BTreeSet::new();
    for (name, partitions) in host.machine.borrow().durable().offsets().values().flatten() {
        for id in partitions.values().map(|offset| offset.topic_id).collect::<BTreeSet<_>>() {
            let is_there = match id.is_zero() {
                true => image.topic(name).is_some(),
                false => image.topic_by_id(id).is_some(),
            };
            if !is_there {
                missing.insert(DeletedTopic { name: Arc::clone(name), id });
            }
        }
    }
    missing
}

/// Lets what nobody needs expire, for as long as the core lives.
pub(crate) async fn keep_expiring(core: Rc<Core>) {
    let period = Duration::from_millis(core.config.groups.offsets_check_ms);
    loop {
        core.io.sleep(period).await;
        for host in core.groups().all_hosts() {
            while host.is_serving() && host.drive(&core, Event::Expire) {
                core.io.yield_now().await;
            }
            if host.is_serving() {
                let before = host.missing.take();
                forget_missing_topics(&core, &host, Some(before));
            }
            core.io.yield_now().await;
        }
    }
}

/// Lets commits that are under way end, and sends whoever else waits to the next coordinator.
pub(crate) async fn drain(core: &Rc<Core>, deadline: Monotonic) {
    let hosts = core.groups().all_hosts();
    while hosts.iter().any(|host| !host.is_quiet()) && core.io.monotonic_now() < deadline {
        core.io.sleep(Duration::from_millis(1)).await;
    }
    hosts.iter().for_each(|host| host.resign(core));
}
