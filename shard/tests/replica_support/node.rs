//! A life of one node: it starts, takes part, serves, until its power goes. Judges nothing.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::sim::UnsyncedData;
use ringlog_io::{Io, Monotonic, Priority};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::replica::Replication;
use ringlog_shard::storage::CoreStorage;
use ringlog_shard::store::{Opening, Store};

use super::cluster::{Cluster, replica};
use super::network::Packet;
use crate::storage_support::{core_of, open_directory};

const TICK: Duration = Duration::from_millis(10);
const RETENTION: Duration = Duration::from_millis(200);
/// Longest sleep of a node that waits for packets.
const LISTEN_NS: u64 = 2_000_000;
/// Longer than any seed: a producer is not forgotten.
const PRODUCER_EXPIRATION_MS: i64 = 3_600_000;

pub fn start(cluster: &Rc<Cluster>, place: usize) {
    let io = cluster.nodes[place].host.executor();
    cluster.nodes[place].is_up.set(true);
    io.spawn(Priority::Foreground, live(io.clone(), Rc::clone(cluster), place)).detach();
}

pub fn crash(cluster: &Cluster, place: usize, unsynced: UnsyncedData) {
    let slot = &cluster.nodes[place];
    slot.is_up.set(false);
    cluster.network.set_open(place, false);
    slot.store.take();
    slot.host.disk().heal();
    slot.host.crash_with(unsynced);
}

async fn live(io: Io, cluster: Rc<Cluster>, place: usize) {
    let settings = cluster.storage_settings();
    let directory = open_directory(&io, Path::new("/data")).await;
    let recovery = recover(&io, &directory, 1, &core_of(1), &settings).await;
    let mut recovery = recovery.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    let shard = recovery.shards.pop().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, settings).await.expect("start");
    let mut recovered = storage.take_recovered();
    let store = Store::new(io.clone(), storage, replica(place), PRODUCER_EXPIRATION_MS);
    let outbox = (Rc::clone(&cluster), io.clone());
    store.set_outbox(move |outgoing| outbox.0.network.post(&outbox.1, place, &outgoing));
    let openings = cluster.keys().map(|key| {
        let at = recovered.iter().position(|found| found.key == key);
        let recovered = at.map(|at| recovered.swap_remove(at));
        let opening = Opening { key, recovered, settings: cluster.log_settings() };
        let configuration = cluster.configuration(place);
        (opening, Replication { configuration, settings: cluster.raft_settings(place).into() })
    });
    let openings = openings.collect();
    store.open_replicated(openings).await;
    assert_eq!(store.unhealthy(), Vec::new(), "every partition opens");
    cluster.nodes[place].store.replace(Some(store.clone()));
    cluster.network.set_open(place, true);
    io.spawn(Priority::Foreground, tick(io.clone(), store.clone())).detach();
    io.spawn(Priority::Background, retain(io.clone(), store.clone(), Rc::clone(&cluster))).detach();
    serve(io, cluster, place, store).await;
}

async fn tick(io: Io, store: Store) {
    loop {
        io.sleep(TICK + Duration::from_micros(io.random_u64() % 2_000)).await;
        store.tick(io.monotonic_now());
    }
}

async fn retain(io: Io, store: Store, cluster: Rc<Cluster>) {
    loop {
        io.sleep(RETENTION).await;
        // A batch that is sent again must not be gone: the copy of a log does not bring what lies below its start.
        if cluster.retries.get() == 0 && !cluster.is_healed.get() {
            store.retain().await;
        }
        if io.random_u64().is_multiple_of(4) {
            // Poisoned storage is told by other ways.
            let _report = store.storage().checkpoint().await;
        }
    }
}

async fn serve(io: Io, cluster: Rc<Cluster>, place: usize, store: Store) {
    loop {
        let now_ns = io.monotonic_now().0;
        while let Some(packet) = cluster.network.take(place, now_ns) {
            match packet {
                Packet::Peer { key, message, records } => store.receive(key, message, records),
                Packet::Job(job) => io.spawn(Priority::Foreground, job(store.clone(), io.clone())).detach(),
            }
        }
        let latest = now_ns + LISTEN_NS;
        let next = cluster.network.next_ns(place).map_or(latest, |next| next.min(latest));
        io.sleep_until(Monotonic(next.max(now_ns + 1))).await;
    }
}
