//! Owns the table of configuration keys: Kafka's names where the meaning is the same, `ringlog.*` for ours. A key that
//! Kafka has and that does nothing here yet stands in the table too, so that a user's file gets a sentence about it. The keys are in the
//! parts; this is what the parts are written in.

use super::keys::{Effect, Key, Kind, Update};

mod cluster;
mod groups;
mod logs;
mod node;
mod process;

const I32_MAX: i64 = i32::MAX as i64;
const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;

const fn built(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default, effect: Effect::Built, update: Update::Restart, doc }
}

/// `why` ends the refusal of any value but the default.
const fn not_built(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    why: &'static str,
    doc: &'static str,
) -> Key {
    Key { name, kind, default, effect: Effect::NotBuilt(why), update: Update::Restart, doc }
}

const fn fixed(key: Key) -> Key {
    Key { update: Update::Formatted, ..key }
}

/// Changes at run time too.
const fn dynamic(key: Key) -> Key {
    Key { update: Update::Runtime, ..key }
}

const fn integer(minimum: i64, maximum: i64) -> Kind {
    Kind::Integer { minimum, maximum }
}

const fn optional_integer(minimum: i64, maximum: i64) -> Kind {
    Kind::OptionalInteger { minimum, maximum }
}

const fn bytes(minimum: i64, maximum: i64) -> Kind {
    Kind::Bytes { minimum, maximum }
}

const fn milliseconds(minimum: i64, maximum: i64) -> Kind {
    Kind::Milliseconds { minimum, maximum }
}

const NAME: Kind = Kind::Text { bytes_max: 249 };

/// Reasons that several keys share.
const ONE_NODE: &str = "clusters of several brokers are not built yet";
const THREADS: &str =
    "there are no such threads here: one thread runs each shard; set ringlog.shards instead";

/// In the order of the reference page.
pub(super) const ALL: &[Key] = &joined::<{ count(PARTS) }>(PARTS);

const PARTS: &[&[Key]] = &[node::KEYS, logs::KEYS, cluster::KEYS, groups::KEYS, process::KEYS];

const fn count(parts: &[&[Key]]) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < parts.len() {
        sum += parts[at].len();
        at += 1;
    }
    sum
}

const fn joined<const COUNT: usize>(parts: &[&[Key]]) -> [Key; COUNT] {
    let mut keys = [parts[0][0]; COUNT];
    let (mut part, mut at, mut place) = (0, 0, 0);
    while part < parts.len() {
        while at < parts[part].len() {
            keys[place] = parts[part][at];
            (at, place) = (at + 1, place + 1);
        }
        (part, at) = (part + 1, 0);
    }
    keys
}
