//! Runs one future to its end on an executor of this thread, for programs that are not servers.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ringlog_io::{Executor, ExecutorConfig, Io, IoSetupError};

use crate::error::BenchError;
use crate::interrupt::Interrupt;

/// How often a running future is interrupted to look for a signal.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// Runs `main` on a new executor with default settings.
///
/// # Errors
/// The executor cannot be set up.
pub fn block_on<F: Future>(main: impl FnOnce(Io) -> F) -> Result<F::Output, IoSetupError> {
    block_on_with(ExecutorConfig::default(), main)
}

/// Runs `main` on a new executor.
///
/// # Errors
/// The executor cannot be set up.
pub fn block_on_with<F: Future>(
    config: ExecutorConfig,
    main: impl FnOnce(Io) -> F,
) -> Result<F::Output, IoSetupError> {
    let executor = Executor::new(config)?;
    let io = executor.io();
    Ok(executor.run(main(io)))
}

/// Runs `future` until it ends or the user interrupts; then it is dropped.
///
/// # Errors
/// [`BenchError::Interrupted`], and the future's own.
pub async fn unless_interrupted<T>(
    io: &Io,
    interrupt: &Interrupt,
    future: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    let mut future = pin!(future);
    loop {
        let mut tick = pin!(io.sleep(INTERRUPT_POLL));
        let ended = std::future::poll_fn(|context| {
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            tick.as_mut().poll(context).map(|_| None)
        })
        .await;
        match ended {
            Some(result) => return result,
            None if interrupt.is_raised() => return Err(BenchError::Interrupted),
            None => {}
        }
    }
}
