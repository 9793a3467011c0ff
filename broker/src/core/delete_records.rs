//! DeleteRecords on the core that owns the partitions: moves their starts and waits until the journal holds that.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use ringlog_io::Io;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::Offset;
use ringlog_shard::storage::StorageError;
use ringlog_shard::store::life::{DeleteRecordsError, MovedStart};

use super::Core;
use super::messages::{DeletePart, DeletedPart};
use super::serve::view_error_code;

/// What a deletion is given at least, to be durable here. In Apache Kafka the time is for followers alone, and it answers at once, though its
/// disk knows nothing yet: clients that give no time (librdkafka's `op timeout 0`) count on success.
const DURABLE_WAIT_MIN: Duration = Duration::from_secs(1);

/// Deletes from each partition, all at once, and answers when every deletion is durable or the time is up.
pub async fn delete_records(core: &Rc<Core>, parts: &[DeletePart], timeout: Duration) -> Vec<DeletedPart> {
    let deadline = core.io.monotonic_now() + timeout.max(DURABLE_WAIT_MIN);
    // Before anything waits, so that one frame of the journal holds them all.
    let moved: Vec<_> = parts.iter().map(|part| core.store.delete_records(part.key, part.before)).collect();
    let mut results = Vec::with_capacity(parts.len());
    for (part, moved) in parts.iter().zip(moved) {
        results.push(match moved {
            Ok(moved) => {
                let left = deadline.saturating_since(core.io.monotonic_now());
                finish(core, part, moved, left).await
            }
            Err(error) => {
                tracing::debug!(topic_id = %part.key.topic, partition = part.key.partition.0, %error, "records not deleted");
                DeletedPart::refused(error_code(&error))
            }
        });
    }
    results
}

async fn finish(core: &Rc<Core>, part: &DeletePart, moved: MovedStart, left: Duration) -> DeletedPart {
    let error = match within(&core.io, left, core.store.start_durable(moved)).await {
        Some(Ok(())) => ErrorCode::None,
        Some(Err(StorageError::UnknownLog)) => ErrorCode::UnknownTopicOrPartition,
        Some(Err(error)) => {
            let (topic_id, partition) = (part.key.topic, part.key.partition.0);
            tracing::error!(%topic_id, partition, %error, "a deletion of records cannot be made durable");
            ErrorCode::KafkaStorageError
        }
        // As Kafka: the deletion goes on, the client is told where it stands.
        None => ErrorCode::RequestTimedOut,
    };
    match error {
        ErrorCode::None | ErrorCode::RequestTimedOut => DeletedPart { error, low_watermark: moved.log_start },
        error => DeletedPart::refused(error),
    }
}

/// What `work` comes to, if that takes no longer than `time`. Even without time it gets one look.
pub(super) async fn within<T>(io: &Io, time: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut sleep) = (pin!(work), pin!(io.sleep(time)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}

fn error_code(error: &DeleteRecordsError) -> ErrorCode {
    match error {
        DeleteRecordsError::View(error) => view_error_code(error),
        DeleteRecordsError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        DeleteRecordsError::Poisoned { .. } => ErrorCode::KafkaStorageError,
    }
}

impl DeletedPart {
    /// Nothing was deleted.
    pub fn refused(error: ErrorCode) -> DeletedPart {
        DeletedPart { error, low_watermark: Offset(-1) }
    }
}
