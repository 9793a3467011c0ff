//! Owns what `/groups/<group>/timeline` answers: the last rebalances of a group, who made them and what moved. `ringlog group describe`
//! reads it. Fields are added, never renamed.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::group::{Move, Moves, Rebalance, Trigger};
use crate::observe::snapshot::ShardSnapshot;

/// The newest first; none where nothing is remembered.
pub(super) fn of_group(group: &str, shards: &[Arc<ShardSnapshot>]) -> Value {
    let mut rebalances: Vec<Arc<Rebalance>> =
        shards.iter().flat_map(|shard| shard.timelines.of(group)).collect();
    rebalances.sort_by_key(|rebalance| std::cmp::Reverse(rebalance.ended_ms));
    let shown: Vec<Value> = rebalances.iter().map(|rebalance| rebalance_json(rebalance)).collect();
    json!({ "group": group, "rebalances": shown })
}

fn rebalance_json(rebalance: &Rebalance) -> Value {
    let causes: Vec<Value> = rebalance.triggers.iter().map(trigger_json).collect();
    json!({
        "began_ms": rebalance.began_ms,
        "ended_ms": rebalance.ended_ms,
        "settled_ms": rebalance.settled_ms,
        "generation": rebalance.generation,
        "members_before": rebalance.members_before,
        "members": rebalance.members,
        "causes": causes,
        "causes_left_out": rebalance.triggers_left_out,
        "partitions": rebalance.moves.as_ref().map(moves_json),
    })
}

fn trigger_json(trigger: &Trigger) -> Value {
    json!({
        "cause": trigger.cause.name(),
        "member": &*trigger.member,
        "instance": trigger.instance.as_deref(),
        "client_id": &*trigger.client_id,
        "client_host": &*trigger.client_host,
        "reason": trigger.reason.as_deref(),
    })
}

fn moves_json(moves: &Moves) -> Value {
    let Moves { kept, moved, taken, released, shown } = moves;
    let shown: Vec<Value> = shown.iter().map(move_json).collect();
    json!({ "kept": kept, "moved": moved, "taken": taken, "released": released, "shown": shown })
}

fn move_json(one: &Move) -> Value {
    json!({
        "topic": &*one.topic,
        "partition": one.partition,
        "from": one.from.as_deref(),
        "to": one.to.as_deref(),
    })
}
