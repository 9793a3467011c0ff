//! Steps of a start that need not wait for one another: a disk does several syncs in little more than the time of one.

use std::future::Future;

use ringlog_io::{Io, Priority, Task};

/// Does all the parts at once and answers their results in order. After an error the other parts are given up wherever
/// they are; what the disk has begun it ends.
///
/// # Errors
/// Of the first part, in order, that failed.
pub(crate) async fn side_by_side<T: 'static, E: 'static>(
    io: &Io,
    parts: impl IntoIterator<Item = impl Future<Output = Result<T, E>> + 'static>,
) -> Result<Vec<T>, E> {
    let tasks: Vec<Task<Result<T, E>>> =
        parts.into_iter().map(|part| io.spawn(Priority::Foreground, part)).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await?);
    }
    Ok(results)
}
