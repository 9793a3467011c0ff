//! What decoding allocates: nothing for a lie, next to nothing for the truth.

#![allow(unsafe_code, reason = "a counting allocator cannot be written without")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Random, cases, models};
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::metadata::{
    MetadataRequest, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic,
};
use ringlog_protocol::messages::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use ringlog_protocol::wire::{DecodeError, MEMORY_BASE_BYTES, MEMORY_PER_BYTE, Reader, Writer};

/// Counts what the current thread asks for.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn note(bytes: usize) {
    COUNT.set(COUNT.get() + 1);
    BYTES.set(BYTES.get() + bytes);
}

// SAFETY: every call is passed on to `System` unchanged; the counters are plain cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Debug, Clone, Copy)]
struct Allocated {
    count: usize,
    bytes: usize,
}

fn allocated<T>(run: impl FnOnce() -> T) -> (T, Allocated) {
    let before = (COUNT.get(), BYTES.get());
    let value = run();
    (value, Allocated { count: COUNT.get() - before.0, bytes: BYTES.get() - before.1 })
}

#[test]
fn the_allocator_counts() {
    let (vector, seen) = allocated(|| Vec::<u8>::with_capacity(4_096));
    assert_eq!((seen.count, seen.bytes), (1, 4_096));
    drop(vector);
}

#[test]
fn the_metadata_bomb_of_eight_bytes_allocates_nothing() {
    let bomb = [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    let (result, seen) = allocated(|| MetadataRequest::decode(&mut Reader::new(&bomb), 0));
    assert!(matches!(result, Err(DecodeError::TooManyElements { .. })), "{result:?}");
    assert_eq!((seen.count, seen.bytes), (0, 0));
}

#[test]
fn lying_counts_allocate_no_more_than_the_frame_allows() {
    let models = models();
    for case in cases(&models) {
        let sample = case.sample(&mut Random(7));
        for count in &sample.counts {
            let lie: &[u8] =
                if count.is_compact { &[0xff, 0xff, 0xff, 0xff, 0x0f] } else { &[0x7f, 0xff, 0xff, 0xff] };
            let mut bytes = sample.bytes.clone();
            bytes.splice(count.at..count.at + count.length, lie.iter().copied());
            let (result, seen) = allocated(|| case.decode(&mut Reader::new(&bytes)).is_err());
            assert!(result);
            // Only what comes before the lie, and that is held by the bytes before it. The bound is far below the 1 MiB of
            // slack that the memory budget grants.
            assert!(seen.bytes <= 64 * bytes.len(), "{} {}: {seen:?}", case.name(), case.version);
        }
    }
}

#[test]
fn a_frame_of_smallest_elements_stays_within_the_memory_budget() {
    // Ten million topics with empty names: two bytes each on the wire, a struct each in memory.
    let mut bytes = vec![0, 0x98, 0x96, 0x80];
    bytes.resize(4 + 2 * 10_000_000, 0);
    let (result, seen) = allocated(|| MetadataRequest::decode(&mut Reader::new(&bytes), 0));
    assert!(matches!(result, Err(DecodeError::MemoryBudget { .. })), "{:?}", result.map(|_| ()));
    assert!(seen.bytes <= MEMORY_PER_BYTE * bytes.len() + MEMORY_BASE_BYTES, "{seen:?}");
}

#[test]
fn a_produce_of_a_thousand_partitions_decodes_in_few_allocations() {
    let records = [7; 100];
    let partition_data =
        (0..1_000).map(|index| PartitionProduceData { index, records: Some(&records) }).collect::<Vec<_>>();
    let topic = TopicProduceData { name: "topic", topic_id: TopicId([1; 16]), partition_data };
    let request = ProduceRequest { acks: -1, topic_data: vec![topic], ..Default::default() };
    for version in 3..=13 {
        let mut writer = Writer::new();
        request.encode(&mut writer, version).expect("carried by every version");
        let bytes = writer.into_bytes();
        let (decoded, seen) = allocated(|| ProduceRequest::decode(&mut Reader::new(&bytes), version));
        assert_eq!(decoded.expect("valid").topic_data[0].partition_data.len(), 1_000);
        assert_eq!(seen.count, 2, "one vector of topics, one of partitions");
    }
}

#[test]
fn metadata_of_ten_thousand_partitions_costs_no_allocation_each() {
    let replicas = [1, 2, 3];
    let partitions = (0..10_000)
        .map(|partition_index| MetadataResponsePartition {
            partition_index,
            replica_nodes: replicas.as_slice().into(),
            isr_nodes: replicas.as_slice().into(),
            ..Default::default()
        })
        .collect::<Vec<_>>();
    let topic = MetadataResponseTopic { name: Some("topic"), partitions, ..Default::default() };
    let response = MetadataResponse { topics: vec![topic], ..Default::default() };
    for version in 0..=13 {
        let (bytes, seen) = allocated(|| {
            let mut writer = Writer::with_capacity(1024 * 1024);
            response.encode(&mut writer, version).expect("carried by every version");
            writer.into_bytes()
        });
        assert!(seen.count <= 3, "encoding: {seen:?}");
        let (decoded, seen) = allocated(|| MetadataResponse::decode(&mut Reader::new(&bytes), version));
        assert_eq!(decoded.expect("valid").topics[0].partitions.len(), 10_000);
        assert_eq!(seen.count, 2, "decoding: one vector of topics, one of partitions");
    }
}
