//! What machines of groups want computed off the core, and the topics that they compute with.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_io::Priority;

use super::host::Host;
use crate::controller::MetadataImage;
use crate::core::Core;
use crate::group::Event;
use crate::group::consumer::{Computation, TopicFacts, Topics};

/// Has it computed on the pool; the machine hears of it unless another one took its place meanwhile.
pub(super) fn carry_out(core: &Rc<Core>, host: &Rc<Host>, computation: Computation) {
    let (core, host, term) = (Rc::clone(core), Rc::clone(host), host.term());
    let io = core.io.clone();
    let task = async move {
        let computed = core.io.compute(move || computation.run()).await;
        if host.term() == term {
            host.drive(&core, Event::Computed(computed));
        }
    };
    io.spawn(Priority::Foreground, task).detach();
}

/// The topics of `image` as groups look at them, all on a node of this rack; `None` where they are those of `before`. What did not change
/// is shared.
pub(super) fn topics_of(image: &MetadataImage, before: &Topics, rack: Option<&str>) -> Option<Topics> {
    let rack: Option<Arc<str>> = rack.map(Arc::from);
    let mut changed = before.version() == 0 || image.topics().len() != before.iter().count();
    let facts: Vec<Arc<TopicFacts>> = image
        .topics()
        .map(|topic| match before.of_id(topic.id) {
            Some(known) if known.partition_count == topic.partition_count => Arc::clone(known),
            _ => {
                changed = true;
                let racks = rack.as_ref().map(|rack| {
                    (0..topic.partition_count).map(|_| vec![Arc::clone(rack)]).collect::<Arc<[_]>>()
                });
                Arc::new(TopicFacts::new(Arc::clone(&topic.name), topic.id, topic.partition_count, racks))
            }
        })
        .collect();
    // The first image has offset 0 or more; 0 means that nothing is known.
    changed.then(|| Topics::new(image.next_offset().0.saturating_add(1), facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_made_anew_when_they_change() {
        let image = MetadataImage::with_topics_for_tests(&[("orders", 2), ("users", 1)]);
        let topics = topics_of(&image, &Topics::default(), Some("a")).expect("nothing was known");
        assert_eq!(topics.of_name("orders").map(|topic| topic.partition_count), Some(2));
        let racks = topics.of_name("orders").and_then(|topic| topic.racks.clone()).expect("the node has one");
        assert_eq!(*racks, [vec!["a".into()], vec!["a".into()]]);
        assert!(topics.version() > 0);
        assert_eq!(topics_of(&image, &topics, Some("a")), None);
        let fewer = MetadataImage::with_topics_for_tests(&[("orders", 2)]);
        assert_eq!(topics_of(&fewer, &topics, Some("a")).map(|topics| topics.iter().count()), Some(1));
    }
}
