//! ListConfigResources (API 74): what has configs, by type, out of the image. Version 0 is Kafka's ListClientMetricsResources.
//!
//! As Kafka 4.4: of groups those with configs of their own, of brokers and their loggers every node, and of client metrics none, because none
//! can be set here.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::list_config_resources::{
    ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse,
};

use super::reply::reply;
use super::{Request, RequestError};
use crate::controller::MetadataImage;
use crate::controller::alter_configs::resource;
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// Of version 1; version 0 speaks of client metrics alone.
const TYPES: [i8; 5] =
    [resource::TOPIC, resource::BROKER, resource::BROKER_LOGGER, resource::CLIENT_METRICS, resource::GROUP];

pub(super) fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = ListConfigResourcesRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let image = core.image();
    let nodes: Vec<String> = image.nodes().map(|node| node.id.to_string()).collect();
    let mut response = ListConfigResourcesResponse::default();
    let mut error = ErrorCode::None;
    match wanted(&asked, info.version) {
        Some(types) => response.config_resources = listed(&image, &nodes, &types),
        None => {
            error = ErrorCode::UnsupportedVersion;
            response.error_code = error.code();
        }
    }
    Ok(reply(info, error, 4096, |writer, version| response.encode(writer, version)))
}

/// The types to list, each once; `None` where one is asked for that there is not.
fn wanted(asked: &ListConfigResourcesRequest, version: i16) -> Option<Vec<i8>> {
    if version == 0 {
        return Some(vec![resource::CLIENT_METRICS]);
    }
    if asked.resource_types.is_empty() {
        return Some(TYPES.to_vec());
    }
    let are_known = asked.resource_types.iter().all(|kind| TYPES.contains(kind));
    are_known.then(|| TYPES.into_iter().filter(|kind| asked.resource_types.contains(kind)).collect())
}

fn listed<'a>(image: &'a MetadataImage, nodes: &'a [String], types: &[i8]) -> Vec<ConfigResource<'a>> {
    let mut found = Vec::new();
    for &resource_type in types {
        let of_type = |resource_name: &'a str| ConfigResource { resource_name, resource_type };
        match resource_type {
            resource::TOPIC => found.extend(image.topics().map(|topic| of_type(&topic.name))),
            resource::GROUP => found.extend(image.groups_with_configs().map(|group| of_type(group))),
            resource::BROKER | resource::BROKER_LOGGER => {
                found.extend(nodes.iter().map(|node| of_type(node)));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::image_of;
    use super::*;

    fn types(resource_types: &[i8], version: i16) -> Option<Vec<i8>> {
        wanted(&ListConfigResourcesRequest { resource_types: resource_types.to_vec() }, version)
    }

    #[test]
    fn types_are_listed_once_and_unknown_ones_refuse_all() {
        assert_eq!(types(&[], 1), Some(TYPES.to_vec()));
        assert_eq!(types(&[resource::GROUP, resource::TOPIC, resource::GROUP], 1), Some(vec![2, 32]));
        for unknown in [0, 1, 3, -1, 64] {
            assert_eq!(types(&[unknown], 1), None, "{unknown}");
            assert_eq!(types(&[resource::TOPIC, unknown], 1), None, "{unknown}");
        }
        assert_eq!(types(&[], 0), Some(vec![resource::CLIENT_METRICS]));
    }

    #[test]
    fn every_topic_and_node_is_listed_and_no_client_metric() {
        let (image, _) = image_of(&[("orders", 2), ("users", 1)]);
        let nodes = ["1".to_owned(), "2".to_owned()];
        let names = |types: &[i8]| {
            let found = listed(&image, &nodes, types);
            found
                .iter()
                .map(|found| (found.resource_type, found.resource_name.to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&[resource::TOPIC]), [(2, "orders".to_owned()), (2, "users".to_owned())]);
        assert_eq!(names(&[resource::BROKER]), [(4, "1".to_owned()), (4, "2".to_owned())]);
        assert_eq!(names(&[resource::BROKER_LOGGER]).len(), 2);
        assert_eq!(names(&[resource::CLIENT_METRICS, resource::GROUP]), []);
    }
}
