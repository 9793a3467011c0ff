//! Owns the side thread: a single-threaded tokio runtime that serves admin requests and waits for signals. It lives until
//! the process ends.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::SystemTime;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tokio::io::AsyncReadExt;

use super::listener::BoundedListener;
use super::routes::{self, AdminState};
use crate::config::BrokerConfig;
use crate::observe::snapshot::SnapshotSlot;
use crate::process::exit::Exit;
use crate::process::logging;
use crate::process::plan::StartError;
use crate::process::stop::{Phase, Readiness, StopSignal};

const ADMIN_KEY: &str = "ringlog.admin.listen";

/// What the side thread works with.
#[derive(Debug)]
pub struct SideInputs {
    pub config: Arc<BrokerConfig>,
    pub slots: Vec<SnapshotSlot>,
    pub readiness: Readiness,
    pub stop: StopSignal,
}

/// Binds the admin address, takes over SIGTERM, SIGINT and SIGHUP, and starts the thread. Yields the bound address, or
/// `None` when the admin server is off.
///
/// # Errors
/// When the admin address cannot be bound, or a thread or signal handler cannot be made.
pub fn start(inputs: SideInputs) -> Result<Option<SocketAddr>, StartError> {
    let failed = |what| move |error: io::Error| StartError::Failed { what, reason: error.to_string() };
    let listener = bind_admin(&inputs.config)?;
    let address = match &listener {
        Some(listener) => Some(listener.local_addr().map_err(failed("reading the admin address"))?),
        None => None,
    };
    let signals = register_signals().map_err(failed("taking over signals"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed("starting the side thread's runtime"))?;
    std::thread::Builder::new()
        .name("side".to_owned())
        .spawn(move || runtime.block_on(run(inputs, listener, signals)))
        .map_err(failed("starting the side thread"))?;
    Ok(address)
}

fn bind_admin(config: &BrokerConfig) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = &config.observation.admin else {
        return Ok(None);
    };
    let bound = address.resolve().and_then(|resolved| {
        let listener = TcpListener::bind(resolved)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    match bound {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => {
            let origin = config.observation.admin_origin.clone();
            Err(StartError::bind(ADMIN_KEY, address.to_string(), origin, &error))
        }
    }
}

/// One stream for each signal: a byte arrives when it does.
fn register_signals() -> io::Result<Vec<(i32, UnixStream)>> {
    let register = |signal: i32| {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        signal_hook::low_level::pipe::register(signal, writer)?;
        Ok((signal, reader))
    };
    // A terminal that goes away sends SIGHUP: drain then too, rather than die.
    [SIGTERM, SIGINT, SIGHUP].into_iter().map(register).collect()
}

async fn run(inputs: SideInputs, listener: Option<TcpListener>, signals: Vec<(i32, UnixStream)>) {
    for (signal, stream) in signals {
        tokio::spawn(watch(signal, stream, inputs.stop.clone(), inputs.readiness.clone()));
    }
    let state = AdminState {
        config: inputs.config,
        slots: inputs.slots,
        readiness: inputs.readiness,
        started: SystemTime::now(),
    };
    if let Some(listener) = listener {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                let listener = BoundedListener::new(listener);
                if let Err(error) = axum::serve(listener, routes::router(Arc::new(state))).await {
                    tracing::error!(%error, "the admin server ended");
                }
            }
            Err(error) => tracing::error!(%error, "the admin server did not start"),
        }
    }
    // Signals are watched for as long as the process lives.
    std::future::pending::<()>().await;
}

async fn watch(signal: i32, stream: UnixStream, stop: StopSignal, readiness: Readiness) {
    let mut stream = match tokio::net::UnixStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::error!(%error, signal, "the signal cannot be watched");
            return;
        }
    };
    while stream.read_u8().await.is_ok() {
        if stop.is_stopping() {
            tracing::warn!(signal, "stopping at once; the next start recovers from the journal");
            logging::flush();
            let exit = Exit::Signal(u8::try_from(signal).unwrap_or(0));
            std::process::exit(i32::from(exit.code()));
        }
        // Said before it begins: a node with nothing in flight has ended, and its process with it, the moment after.
        readiness.set(Phase::Draining);
        tracing::info!(signal, "draining; a second signal stops at once");
        let first = stop.stop();
        debug_assert!(first, "this thread alone stops the node");
    }
}
