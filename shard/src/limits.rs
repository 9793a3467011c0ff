//! Every bound of this crate with its reason. A number that limits anything stands here and nowhere else.

use std::time::Duration;

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

/// Partitions that a core opens at once at start: each waits for a few reads, which a device answers side by side.
pub const PARTITIONS_OPENED_AT_ONCE: usize = 16;

/// Times that a start reads the same bytes before it takes them for unreadable: a device's hiccup passes within a few, and what is
/// broken for good delays the start by next to nothing.
pub const RECOVERY_READ_ATTEMPTS: u32 = 4;

/// Pause between two of them.
pub const RECOVERY_READ_PAUSE_MS: u64 = 50;

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

/// Smallest write of a checkpoint where a log has so much, in bytes: enough that a disk does little else than write.
pub const CHECKPOINT_PIECE_BYTES: usize = 256 * 1024;

/// Bytes of one log that a checkpoint writes before it syncs them: bounds what a sync waits for, and how long the core sums them.
pub const CHECKPOINT_RUN_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bytes of a core's segments that are written and not yet synced: more would stall the journal's writes at the sync.
pub const CHECKPOINT_UNSYNCED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A log with fewer bytes due than this is copied into the newer journal file once instead of synced.
pub const CHECKPOINT_CARRY_BYTES_MAX: usize = 64 * 1024;

/// Of each journal file at most this part is filled with copies: they are written a second time, which counts in the write
/// amplification, and many small logs would otherwise only move from file to file.
pub const CHECKPOINT_CARRY_DIVISOR: u64 = 8;

/// Bytes of entries that a checkpoint queues for the journal before it waits for them: commits beside it share their frame.
pub const CHECKPOINT_COVER_BYTES: usize = 64 * 1024;

/// What the sync of one log counts for in a checkpoint's schedule, in bytes: about the bytes written in the time it takes.
pub const CHECKPOINT_LOG_COST_BYTES: u64 = 64 * 1024;

/// Milliseconds that a record waits for the journal to hold what it speaks of, before it is left for another time.
pub const CHECKPOINT_CAPTURE_WAITS_MAX: usize = 100;

/// Longest time over which the work for one journal file is spread, in milliseconds: what fills slower is flushed early.
pub const CHECKPOINT_SPREAD_MS_MAX: u64 = 30_000;

/// A checkpoint that waits looks at the journal again after this time, in milliseconds.
pub const CHECKPOINT_PACE_STEP_MS: u64 = 10;

/// Disk space reserved ahead of a segment's end, in bytes: as much as the segment has, between these bounds. A segment
/// below the smaller one reserves nothing, so that many small partitions do not hold space.
pub const SEGMENT_ALLOCATE_BYTES_MIN: u32 = 1024 * 1024;

/// See [`SEGMENT_ALLOCATE_BYTES_MIN`].
pub const SEGMENT_ALLOCATE_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// Bytes of a segment that share one checksum in its sidecar (the design's number): 4 bytes for each.
pub const SUM_BLOCK_BYTES: u32 = 64 * 1024;

/// Checksums of complete blocks that wait in memory, and in a checkpoint, until they are appended to their sidecar together:
/// 1 KiB for 16 MiB of a segment.
pub const SUMS_PENDING_MAX: usize = 256;

/// Largest sidecar that is read, in bytes: checksums of 4 GiB, a full index and some thousand epochs. What would be larger is
/// not written.
pub const SIDECAR_BYTES_MAX: usize = 1024 * 1024;

/// Index entries of the segment that fills, as a checkpoint keeps them: after a start a cold seek walks at most a 256th of
/// the segment.
pub const CHECKPOINT_INDEX_ENTRIES_MAX: usize = 256;

/// Largest checkpoint file of a core, in bytes. Partitions beyond it are scanned at start.
pub const CHECKPOINT_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A checkpoint file is written anew once it is twice as long as what counts in it and this many bytes.
pub const CHECKPOINT_FILE_SLACK_BYTES: u64 = 1024 * 1024;

/// Records of one checkpoint that wait to be written together, in bytes; partitions beyond it have theirs next time.
pub const CHECKPOINT_RECORDS_QUEUED_BYTES: usize = 8 * 1024 * 1024;

/// A partition gets a new record once it holds this many times the record's bytes more than the last one says.
pub const CHECKPOINT_RECORD_WORTH: u64 = 8;

/// Bytes of a core's segments that no record speaks of: a start has to read them. Beyond it records are made although no
/// journal file is full, until half of it is left.
pub const CHECKPOINT_UNRECORDED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Step in which the age of unflushed records is known, in milliseconds.
pub const LAG_SAMPLE_MS: u64 = 50;

/// Moments remembered for that: enough for a minute, coarser beyond.
pub const LAG_SAMPLES_MAX: usize = 1200;

/// Entries of one segment's index; when it is full every second one goes and the interval doubles: 64 KiB at most.
pub const INDEX_ENTRIES_MAX: usize = 4096;

/// Bytes read in one step while batch headers are searched in a segment: a few times the distance of index entries, beyond
/// which a search is not far from its end.
pub const READ_SCAN_BYTES: usize = 16 * 1024;

/// Bytes read in one step while the batch headers of a segment are walked one after another: what is read is looked at.
pub const WALK_SCAN_BYTES: usize = 64 * 1024;

/// Headers of batches in memory that are shown in one turn when a log is visited: about 30 KiB.
pub const VISIT_HEADERS_AT_ONCE: usize = 256;

/// Bytes read in one step while a segment is scanned at start.
pub const START_SCAN_BYTES: usize = 1024 * 1024;

/// Largest record batch believed from a segment file, in bytes: Kafka's own bound on a request, which held it.
pub const SEGMENT_BATCH_BYTES_MAX: usize = 100 * 1024 * 1024;

/// How far a record's timestamp may lie ahead of our clock and still count as its age, in milliseconds: Kafka's default of
/// `message.timestamp.after.max.ms`, which is what clocks of producers are trusted for.
pub const RETENTION_FUTURE_MS_MAX: i64 = 3_600_000;

/// A wall clock that gained more than this on the monotonic one, in milliseconds, was set: retention waits a period.
pub const RETENTION_CLOCK_JUMP_MS_MAX: i64 = 3_600_000;

/// Blocks that the scrub reads between two pauses: a mebibyte, so that an idle machine is woken a few times a second.
pub const SCRUB_PIECE_BLOCKS: u64 = 16;

/// A pass of the scrub begins at most once in this time: bytes rot over months.
pub const SCRUB_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// The scrub lets a start settle for so long.
pub const SCRUB_START_DELAY: Duration = Duration::from_secs(300);

/// Damaged places that a core keeps for its health list: each costs some hundred bytes, and more would tell nobody more.
pub const DAMAGED_PLACES_MAX: usize = 1024;

/// Ranges of one segment that are known to be sound: readers at as many places each extend their own.
pub const CHECKED_RANGES_PER_SEGMENT: usize = 32;

/// Bytes read in one step while batches are checked before they are first sent: one step never delays others for long.
pub const READ_CHECK_BYTES: usize = 256 * 1024;

/// Bytes of one partition that a read copies rather than hold its segment open, once more segments are open than may be: a
/// reply of many partitions then holds few descriptors, and copies no more than it was asked for.
pub const READ_COPY_BYTES_MAX: u32 = 1024 * 1024;

/// Partitions that retention looks at before it lets others run.
pub const RETENTION_PARTITIONS_AT_ONCE: usize = 64;

/// Positions remembered per segment so that a reader who goes on finds its place without a scan.
pub const READ_HINTS_PER_SEGMENT: usize = 4;

// Bypass.

/// Bytes of batches that one run of references may hold: one write and one sync, short enough not to make the next run wait.
pub const BYPASS_RUN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// With more unflushed bytes than this before it a large batch goes to the journal: they would be synced with it.
pub const BYPASS_DIRTY_BYTES_MAX: usize = 1024 * 1024;

// Space.

/// Time between two looks at the free space, in milliseconds: producing resumes this soon after space came.
pub const SPACE_LOOK_MS: u64 = 1000;

/// The automatic reserve is this part of the file system: what a small disk can spare.
pub const SPACE_RESERVE_DIVISOR: u64 = 20;

/// The automatic reserve at most, in bytes: more than all cores journal between two looks at the rate of a fast device.
pub const SPACE_RESERVE_BYTES_MAX: u64 = 1 << 30;

/// Below so many reserves appends are slowed down.
pub const SPACE_THROTTLE_FACTOR: u64 = 2;

/// Below so many reserves the operator is told.
pub const SPACE_WARN_FACTOR: u64 = 4;

/// While slowed down a core takes at most this part of its share between two looks: from there the reserve is a quarter of
/// a minute away at least.
pub const SPACE_THROTTLE_DIVISOR: u64 = 16;

/// A level is left for a better one only once this part of its bound is free beyond it.
pub const SPACE_LEVEL_HYSTERESIS_DIVISOR: u64 = 16;

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

/// Pause after a checkpoint that found nothing to flush although much is unflushed, in milliseconds: about one write of a device.
pub const CHECKPOINT_NOTHING_DUE_MS: u64 = 1;

/// How often a core asks again, and after how many milliseconds each time, whether another core was told of the failed write
/// of which the file system speaks: a completion reaches a core within a turn, unless the core stands still.
pub const FILE_SYSTEM_FAILURE_WAITS_MAX: u32 = 20;
pub const FILE_SYSTEM_FAILURE_WAIT_MS: u64 = 50;

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

/// Resources whose configs one request describes or alters: as many as a cluster has topics. The answer to each may be several
/// kilobytes where its part of the request was ten bytes.
pub const CONFIG_RESOURCES_PER_REQUEST_MAX: usize = 10_000;

/// Bytes of the records of one request to a machine: they travel as one batch, and the smallest journal file takes one of this size.
pub const MACHINE_PROPOSAL_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of records behind a machine's last snapshot that lead to the next one: some 60,000 changes of metadata at 140 bytes each, a few reads
/// of a start. Each snapshot stops the machine's requests for as long as its file takes, so not for less. The default of
/// `metadata.log.max.record.bytes.between.snapshots`.
pub const MACHINE_SNAPSHOT_AFTER_BYTES: u64 = 8 * 1024 * 1024;

/// Longest file of a machine's snapshot, in bytes: as many topics as there may be partitions, with every config set, take a fifth. A start
/// has all of it in memory.
pub const MACHINE_SNAPSHOT_FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

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

/// Partitions of all fetch sessions of one core: some 400 bytes each at their home and 200 at their owner, so at most 60 MB. A session that
/// finds no room is not begun, or ends, and its client names all partitions with each fetch.
pub const FETCH_SESSION_PARTITIONS_PER_CORE_MAX: usize = 100_000;

/// Younger than this, in milliseconds, a fetch session makes no room for another; as in Kafka.
pub const FETCH_SESSION_KEPT_MS: u64 = 120_000;

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

// Replicas.

/// How long a replica waits before it tries again what found no room or could not be read: about a few journal frames, so that a
/// short jam costs little and a long one no time of the core.
pub const REPLICA_WRITE_RETRY_MS: u64 = 20;

/// Most bytes of one piece of a log that is copied, and of what is in memory for it: as large as an append.
pub const REPLICA_COPY_PIECE_BYTES_MAX: u32 = 1 << 20;

/// How long a replica that copies a log waits for a piece: a piece takes 10 ms on a slow network, and a disk in trouble a second.
pub const REPLICA_COPY_ANSWER_MS: u64 = 1_000;

/// Questions in a row without an answer after which a copy is given up, or another replica asked.
pub const REPLICA_COPY_TRIES: u32 = 3;

// Consumer groups.

/// Groups of one core, with those that have only offsets: at a kilobyte for an idle one they take 20 MB. A client that names a new
/// group at every start fills this until its groups expire, and harms no group that exists.
pub const GROUPS_PER_CORE_MAX: usize = 20_000;

/// Groups with configs of their own (GROUP resources), in the metadata of the whole cluster: at a short name each is some 300 bytes of it
/// on each node. A change of one copies the table of all, a millisecond.
pub const GROUPS_WITH_CONFIGS_MAX: usize = 10_000;

/// Members of one group: each join of a rebalance is answered with all of them, and a record holds what all said and were assigned.
pub const GROUP_MEMBERS_MAX: usize = 10_000;

/// Members of one group that were given a name and have not joined with it: each costs about 200 bytes for a session.
pub const GROUP_MEMBERS_PENDING_MAX: usize = 10_000;

/// Bytes of the protocols of one member with what it says for each: a subscription of ten thousand topics has half of it.
pub const GROUP_MEMBER_METADATA_BYTES_MAX: usize = 1024 * 1024;

/// Memory of all groups of one core, in bytes: what is durable of them and what is live.
pub const GROUP_BYTES_PER_CORE_MAX: usize = 256 * 1024 * 1024;

/// Members whose doings are told one by one for each rebalance of a timeline; the rest are counted.
pub const GROUP_CAUSES_SHOWN_MAX: usize = 8;

/// Partitions that changed hands told one by one for each rebalance of a timeline; the rest are counted.
pub const GROUP_MOVES_SHOWN_MAX: usize = 16;

/// Longest text of a stranger in a timeline, in bytes; what is longer is cut.
pub const GROUP_TIMELINE_TEXT_BYTES_MAX: usize = 128;

/// Assignments before and after a rebalance that are compared on the core, in bytes: of some 15,000 partitions, for a few milliseconds.
pub const GROUP_ASSIGNMENT_BYTES_COMPARED_MAX: usize = 128 * 1024;

/// Partitions of members whose part changed with an assignment of KIP-848, before and after it together, that are compared on the core:
/// for a few milliseconds.
pub const GROUP_PARTITIONS_COMPARED_MAX: usize = 16 * 1024;

/// Rebalances that are remembered of one group.
pub const GROUP_TIMELINE_LENGTH_MAX: usize = 10;

/// Groups whose timelines a core remembers: those that rebalanced last.
pub const GROUP_TIMELINES_PER_CORE_MAX: usize = 2_000;

/// Memory of the timelines of a core, in bytes.
pub const GROUP_TIMELINE_BYTES_PER_CORE_MAX: usize = 4 * 1024 * 1024;

/// Longest name in a JoinGroup, in bytes: a record takes 32,767, and a member's name is longer than its instance's.
pub const GROUP_TEXT_BYTES_MAX: usize = 16 * 1024;

/// Groups that one request names: as many as tools ask for at once. An empty name is one byte, and the answer to it is dozens.
pub const GROUPS_PER_REQUEST_MAX: usize = 10_000;

/// Offsets that one request commits or asks for: as many partitions as a large cluster has.
pub const OFFSETS_PER_REQUEST_MAX: usize = 200_000;

/// Bytes of one answer to OffsetFetch, counting what a client may ask for again and again: the metadata of offsets.
pub const OFFSETS_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Time for a member that joined for the first time to be answered, in milliseconds (Kafka's number): its client may be gone, and it
/// cannot send heartbeats yet.
pub const GROUP_NEW_MEMBER_JOIN_MS: i32 = 300_000;

/// Calls of groups that wait for their answer on the core of their connection, and answers that the machines of a core owe: each is a
/// hundred bytes beside the connection that waits for it.
pub const GROUP_CALLS_WAITING_MAX: usize = 200_000;

/// Bytes of a log of groups read in one step while it is loaded, so that fifty partitions that load at once hold 12 MiB.
pub const GROUP_LOAD_STEP_BYTES: u32 = 256 * 1024;

/// Records of groups replayed before others get their turn: about a millisecond.
pub const GROUP_LOAD_RECORDS_AT_ONCE: usize = 500;

/// Most bytes that one batch of a log of groups may decompress to. This build writes none that is larger than a proposal; Kafka's are
/// at most as large as a message.
pub const GROUP_LOAD_BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long a partition of groups whose log could not be read waits before it is tried again, in milliseconds.
pub const GROUP_LOAD_RETRY_MS: u64 = 10_000;

/// Timers of groups that are looked at before others get their turn: about a tenth of a millisecond.
pub const GROUP_TIMERS_AT_ONCE: usize = 200;

/// Joins of one member of a consumer group that wait for the next assignment: a client that asks again waits for its last one only.
pub const GROUP_MEMBER_JOINS_WAITING_MAX: usize = 4;

/// Groups that are looked at for what may expire before others get their turn.
pub const GROUPS_EXPIRED_AT_ONCE: usize = 1_000;

/// Groups whose lag is shown one by one, of the whole broker: eight series each, of the 6,000 that a scrape may have.
pub const GROUP_LAGS_SHOWN_MAX: usize = 64;

/// Topics whose lag is shown one by one, over all groups that are shown: three series each, with two names in every line.
pub const GROUP_LAG_TOPICS_SHOWN_MAX: usize = 256;

/// Topics of one group whose lag is shown, so that a group of a thousand topics does not push out all others.
pub const GROUP_LAG_TOPICS_OF_GROUP_MAX: usize = 16;

/// Longest name of a group whose lag is shown, in bytes: it is in every line. A longer one counts among those left out.
pub const GROUP_LAG_NAME_BYTES_MAX: usize = 255;

/// Offsets of groups that are looked at for their lag before others get their turn, and partitions in one question to another core:
/// about a tenth of a millisecond.
pub const GROUP_LAG_PARTITIONS_AT_ONCE: usize = 1_000;

/// Partitions of the groups whose lag a core shows, beyond which it shows no further one: it remembers two looks at each, some 10 MiB.
pub const GROUP_LAG_PARTITIONS_SHOWN_MAX: usize = 50_000;

/// Records that all cores together have read in one look at the lag of groups, to know how long they have waited; each costs a batch that
/// may have to be read from disk. Where more are wanted they take turns.
pub const GROUP_LAG_READS_MAX: usize = 100;

/// Logs whose segments are added up, to know when retention by size takes a record, before others get their turn: most have a few
/// segments, some have thousands.
pub const GROUP_LAG_SIZES_AT_ONCE: usize = 100;

/// Bytes of a log's end, in whole segments, of which it is reckoned what a record takes: enough that one odd batch does not count much,
/// and few enough that those of long ago, or compacted ones, do not count.
pub const RECORD_BYTES_SAMPLE_BYTES: u64 = 1024 * 1024;

/// Bytes of one batch's records that compaction decompresses: as many as a produce may bring.
pub const COMPACTION_BATCH_BYTES_MAX: usize = LOOKUP_DECOMPRESSED_BYTES_MAX;

/// Bytes of whole batches that compaction reads, filters off the core and writes at a time: beside them it holds the result and one
/// batch decompressed.
pub const COMPACTION_PIECE_BYTES: usize = 1024 * 1024;

/// Segments that compaction makes one of: each keeps a descriptor open while readers hold it.
pub const COMPACTION_GROUP_SEGMENTS_MAX: usize = 64;

/// The part of a core's memory in which compaction keeps keys at most: an eighth.
pub const COMPACTION_MEMORY_DIVISOR: u64 = 8;

/// Shortest pause between two looks for what to compact, whatever is set.
pub const COMPACTION_PAUSE_MIN: Duration = Duration::from_millis(100);

/// Longest pause before a partition whose compaction failed gets another try. The pause doubles up to it.
pub const COMPACTION_RETRY_MAX: Duration = Duration::from_secs(3_600);

/// Partitions whose segments' sizes are summed up for DescribeLogDirs before others get their turn.
pub const LOG_SIZES_PARTITIONS_AT_ONCE: usize = 256;

/// Partitions whose dirty ratio is looked at before others get their turn.
pub const COMPACTION_PARTITIONS_AT_ONCE: usize = 256;
