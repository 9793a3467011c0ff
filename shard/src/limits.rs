//! Every bound of this crate with its reason. A number that limits anything stands here and nowhere else.

// Egress.

/// Largest piece of a file that is sent in one step, in bytes: what one `cachestat` answer can be trusted for, and a
/// turn of the loop short enough for its neighbours.
pub const EGRESS_FILE_PIECE_BYTES_MAX: u32 = 256 * 1024;

/// A piece of a log up to this many bytes is copied into the reply: that costs less than a slice of its own, and the
/// encoder does so.
pub const EGRESS_COPY_BYTES_MAX: usize = 256;

/// Memory of log tails that unsent replies of a core may keep alive, as a part of the core's memory: beyond it replies
/// come from segment files. What is not flushed yet comes on top; the tail holds it anyway.
pub const EGRESS_PINNED_MEMORY_DIVISOR: u64 = 8;

/// Part of that which one connection may hold: a few slow ones leave room for the rest.
pub const EGRESS_CONNECTION_PINNED_DIVISOR: u64 = 4;

/// Time for a reply to leave, in milliseconds: after it the rest comes from segment files as far as it is flushed, looked
/// at again after the same time.
pub const EGRESS_STALL_MS: u64 = 1_000;

/// Largest piece of a file that is read into memory for a peer that was slow, in bytes.
pub const EGRESS_SLOW_PIECE_BYTES_MAX: u32 = 64 * 1024;

// Journal.

/// Bytes of entries gathered into one frame before the next one starts: enough that the device's flush is a small part
/// of the write. A frame holds at most this or one entry, whichever is more; the journal file's size bounds both.
pub const JOURNAL_FRAME_BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Smallest journal file: it takes a batch of Kafka's default `max.message.bytes` (1,048,588) in one frame.
pub const JOURNAL_FILE_BYTES_MIN: u64 = 2 * 1024 * 1024;

/// Largest journal file: one entry may fill it, and a frame's length field has 32 bits.
pub const JOURNAL_FILE_BYTES_LIMIT: u64 = 1024 * 1024 * 1024;

/// Bytes of entries that may wait for the journal before appends have to wait: four frames, a few milliseconds of a device.
pub const JOURNAL_BACKLOG_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of entries waiting for the journal at which an append is refused although its caller did not wait for room.
pub const JOURNAL_BACKLOG_BYTES_REFUSED: usize = 2 * JOURNAL_BACKLOG_BYTES_MAX;

/// Frame buffers kept for reuse: one that is written and one that fills.
pub const JOURNAL_BUFFERS_KEPT_MAX: usize = 2;

/// A frame buffer that grew beyond this is freed once the journal is idle, in bytes.
pub const JOURNAL_BUFFER_IDLE_BYTES_MAX: usize = 512 * 1024;

/// Bytes zeroed in one write while a journal file is made: short enough not to delay a commit beside it.
pub const JOURNAL_ZERO_PIECE_BYTES: usize = 1024 * 1024;

/// Pause before a journal file that could not be made is tried again, in milliseconds.
pub const JOURNAL_CREATE_RETRY_MS: u64 = 100;

/// Bytes read in one step from a journal file at recovery.
pub const JOURNAL_READ_PIECE_BYTES: usize = 1024 * 1024;

/// Partitions whose segments recovery mends at once: their syncs share the file system's own commits.
pub const RECOVERY_PARTITIONS_AT_ONCE: usize = 16;

// Storage.

/// Bytes of one chunk of the tail arena: small enough that a slow partition pins little, large enough that a chunk
/// serves a hundred small batches.
pub const TAIL_ARENA_CHUNK_BYTES: usize = 256 * 1024;

/// A slice of at least this many bytes, and of at least half of its receive buffer, keeps that buffer as tail.
pub const TAIL_KEPT_SLICE_BYTES_MIN: usize = 64 * 1024;

/// Partitions that one checkpoint writes and syncs at once.
pub const CHECKPOINT_LOGS_AT_ONCE: usize = 8;

/// Bytes handed to one segment write of a checkpoint: bounds what a worker holds and how long it is busy.
pub const CHECKPOINT_WRITE_BYTES_MAX: usize = 1024 * 1024;

/// Entries of one segment's index; when it is full every second one goes and the interval doubles: 64 KiB at most.
pub const INDEX_ENTRIES_MAX: usize = 4096;

/// Bytes read in one step while batch headers are searched in a segment.
pub const READ_SCAN_BYTES: usize = 64 * 1024;

/// Bytes read in one step while a segment is scanned at start.
pub const START_SCAN_BYTES: usize = 1024 * 1024;

/// Largest record batch believed from a segment file, in bytes: Kafka's own bound on a request, which held it.
pub const SEGMENT_BATCH_BYTES_MAX: usize = 100 * 1024 * 1024;

/// Positions remembered per segment so that a reader who goes on finds its place without a scan.
pub const READ_HINTS_PER_SEGMENT: usize = 4;

// Producers.

/// Batches kept per idempotent producer, newest last. Kafka's number: clients keep at most five requests in flight, so any
/// batch that may be sent again is among them.
pub const BATCHES_PER_PRODUCER: usize = 5;

/// Most producers remembered per partition, about 250 bytes each, so that a partition's share stays near 1 MiB. Beyond it the one that
/// appended longest ago is forgotten, as if it had expired: its next batch is taken with any sequence. Kafka has no bound, and a
/// fleet of short-lived producers fills its heap.
pub const PRODUCERS_PER_PARTITION_MAX: usize = 4096;

/// Most bytes that one batch may decompress to while a record is sought by its time: as much as a request may carry.
pub const LOOKUP_DECOMPRESSED_BYTES_MAX: usize = 100 * 1024 * 1024;

/// Pause after a checkpoint that failed, in milliseconds.
pub const CHECKPOINT_RETRY_MS: u64 = 100;

/// How far behind a frame that does not check a later one is sought, in bytes: two full frames. A later frame further away
/// shows by its number.
pub const JOURNAL_GAP_SCAN_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Length of the journal file that recovery makes for each core, at most, in bytes: it must be there before the core
/// serves, the others are made in the background.
pub const JOURNAL_FIRST_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

// Replicated machines and metadata.

/// Requests that may wait for one machine. At a millisecond a commit the last one waits a quarter of a second, well below any
/// client's timeout; more would only be answered after their clients gave up.
pub const MACHINE_REQUESTS_QUEUED_MAX: usize = 256;

/// Bytes of the records of one request to a machine: they travel as one batch, and the smallest journal file takes one of this size.
pub const MACHINE_PROPOSAL_BYTES_MAX: usize = 1024 * 1024;

/// Partitions of one topic: a Metadata answer that names each stays below a mebibyte.
pub const PARTITIONS_PER_TOPIC_MAX: i32 = 10_000;

/// Partitions of all topics together: at 4 KiB for an idle one they take 400 MiB of memory.
pub const PARTITIONS_MAX: u64 = 100_000;

/// Producer ids handed to a node at once: one durable write for so many producers (Kafka's number, KIP-730).
pub const PRODUCER_IDS_PER_BLOCK: i64 = 1000;

// Connections and requests.

/// First allocation for a request larger than what one small receive brings, in bytes. It grows by what arrives.
pub const RECEIVE_BUFFER_BYTES_FIRST: usize = 64 * 1024;

/// Most bytes that a connection gets in one piece for a promised request because it sent one of that size before.
pub const RECEIVE_BUFFER_EARNED_BYTES_MAX: usize = 1024 * 1024;

/// Requests that are arriving or not yet dispatched may hold this part of a core's memory, and one request more.
pub const RECEIVE_MEMORY_DIVISOR: u64 = 4;

/// Time for one request to arrive whole, in milliseconds: a client that sends a byte now and then is cut off.
pub const REQUEST_RECEIVE_MS_MAX: u64 = 30_000;

/// Requests of one connection that are read before the first of them is answered. Clients keep 5 in flight by default;
/// beyond this the connection is not read, so a pipeline costs a bounded number of requests in memory.
pub const PIPELINED_REQUESTS_MAX: usize = 64;

/// Replies of one connection that leave in one send.
pub const REPLIES_PER_SEND_MAX: usize = 16;

/// Compressed batches up to this many bytes are decompressed on the connection's core, larger ones on the pool: at 32
/// times the size and 1 GB/s it stays below 5 ms.
pub const VALIDATE_INLINE_BYTES_MAX: usize = 128 * 1024;

/// Longest wait of a fetch, in milliseconds, whatever it asks: a peer that vanished without a word holds its place that long.
pub const FETCH_WAIT_MS_MAX: u64 = 600_000;

/// Time for replies in flight to leave when the broker stops, in milliseconds.
pub const DRAIN_MS_MAX: u64 = 5_000;

/// Connections that the kernel keeps until they are accepted: a restart makes all clients reconnect at once.
pub const LISTEN_BACKLOG: i32 = 4096;

/// Receive buffer of a listener's sockets, in bytes; set only where `net.core.rmem_max` allows it.
pub const RECEIVE_BUFFER_SOCKET_BYTES: usize = 2 * 1024 * 1024;

// Mesh.

/// Requests that may be open from one core to another, itself included. Long polls hold none while they wait, so this
/// bounds produce requests and short questions; about 200 KiB a pair of cores.
pub const MESH_CREDITS: u32 = 1024;

/// Most requests of one core to another that wait for more than the target's own device, and so hold a credit for as
/// long as other requests take: those that the controller has in its queue and the one in the works, which may all come
/// from one core; the controller's own image, one at a time; the question whether the controller runs, asked once at
/// start; and one step of the node's end.
pub const MESH_HELD_LONG_MAX: u32 = MACHINE_REQUESTS_QUEUED_MAX as u32 + 1 + 1 + 1 + 1;

// A request to the controller ends when its image was applied, and the image needs a credit of the same pair where the
// target is the controller's own core: with none left both would wait for ever. Half of the credits stay for produce and
// short questions, so that a flood of changes does not stop them either.
const _: () = assert!(MESH_HELD_LONG_MAX <= MESH_CREDITS / 2);
