//! Owns the life of a broker process, from a checked configuration to an exit code. The shards themselves are started by
//! a function that is passed in, so that this file knows nothing of them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::banner::{BannerInputs, banner};
use super::exit::Exit;
use super::plan::{RunningNode, Sizing, StartError, StartShards};
use super::ready::{ReadyLine, ReadyPipe};
use super::stop::{Phase, Readiness, StopSignal};
use super::{crash, logging, plan, resources};
use crate::cli::version;
use crate::config::typed::{Advertised, ListenerConfig, StorageMode};
use crate::config::{BrokerConfig, ConfigErrors};
use crate::http::side::{self, SideInputs};

/// Runs a broker until it is told to stop or fails. Every failure is printed once.
pub fn run(config: BrokerConfig, ready_descriptor: Option<u32>, start_shards: StartShards) -> ExitCode {
    run_to_exit(config, ready_descriptor, start_shards).into()
}

fn run_to_exit(config: BrokerConfig, ready_descriptor: Option<u32>, start_shards: StartShards) -> Exit {
    let for_humans = logging::init(&config.observation);
    let exit = match serve(config, ready_descriptor, start_shards, for_humans) {
        Ok(()) => Exit::Success,
        Err(failure) => failure.report(for_humans),
    };
    logging::flush();
    exit
}

/// Why a broker process ends otherwise than by a drain.
enum Failure {
    ReadyDescriptor { number: u32, reason: String },
    Config(ConfigErrors),
    Start(StartError),
    Node(plan::NodeError),
}

impl Failure {
    fn report(&self, for_humans: bool) -> Exit {
        let (exit, text) = match self {
            Failure::ReadyDescriptor { number, reason } => {
                (Exit::Usage, format!("--ready-fd {number}: the descriptor cannot be written to: {reason}"))
            }
            Failure::Config(errors) => (errors.exit(), errors.to_string()),
            Failure::Start(error) => (error.exit(), error.to_string()),
            Failure::Node(error) => (Exit::Failure, error.to_string()),
        };
        for line in text.lines() {
            if for_humans {
                eprintln!("ringlog: {line}");
            } else {
                tracing::error!(exit_code = exit.code(), "{line}");
            }
        }
        exit
    }
}

fn serve(
    mut config: BrokerConfig,
    ready_descriptor: Option<u32>,
    start_shards: StartShards,
    for_humans: bool,
) -> Result<(), Failure> {
    let ready_pipe = match ready_descriptor {
        Some(number) => Some(
            ReadyPipe::open(number)
                .map_err(|error| Failure::ReadyDescriptor { number, reason: error.to_string() })?,
        ),
        None => None,
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let machine = resources::discover();
    let sizing = plan::size(&config, &machine).map_err(|error| Failure::Config(ConfigErrors(vec![error])))?;
    // What the open-file limit and memory allow is the bound that is enforced, not only printed.
    let bound = u32::try_from(sizing.capacity.connections_max).unwrap_or(u32::MAX);
    config.limits.connections_max = config.limits.connections_max.min(bound);
    let listeners = resolve_listeners(&config.listeners).map_err(Failure::Start)?;
    let (stop, readiness, config) = (StopSignal::default(), Readiness::default(), Arc::new(config));
    let (node_plan, slots) =
        plan::plan(Arc::clone(&config), sizing.clone(), listeners, stop.clone(), readiness.clone());
    let data_directory = match &config.storage.durability {
        StorageMode::Durable { data_directory, .. } => Some(data_directory.clone()),
        StorageMode::Ephemeral => None,
    };
    crash::install(data_directory.clone(), slots.clone(), version::short());
    let side =
        SideInputs { config: Arc::clone(&config), slots, readiness: readiness.clone(), stop: stop.clone() };
    let admin = side::start(side).map_err(Failure::Start)?;
    let node = start_shards(node_plan).map_err(Failure::Start)?;
    if !stop.is_stopping() {
        readiness.set(Phase::Serving);
    }
    announce(&config, &sizing, &node, admin, for_humans, data_directory.as_deref());
    if let Some(pipe) = ready_pipe {
        let line = ready_line(&config, &sizing, &node, admin, data_directory.as_deref());
        if let Err(error) = pipe.announce(&line) {
            tracing::warn!(%error, "the ready line was not taken");
        }
    }
    (node.join)().map_err(Failure::Node)?;
    tracing::info!("stopped");
    Ok(())
}

fn resolve_listeners(listeners: &[ListenerConfig]) -> Result<Vec<SocketAddr>, StartError> {
    let resolve = |listener: &ListenerConfig| {
        let address = listener.bind.to_string();
        listener
            .resolve()
            .map_err(|error| StartError::bind("listeners", address, listener.origin.clone(), &error))
    };
    listeners.iter().map(resolve).collect()
}

/// The advertised address of a listener as [`plan::ServingListener`] has it.
pub fn advertised_text(advertised: &Advertised) -> Option<String> {
    match advertised {
        Advertised::Auto => None,
        Advertised::Fixed(address) => Some(address.to_string()),
    }
}

fn announce(
    config: &BrokerConfig,
    sizing: &Sizing,
    node: &RunningNode,
    admin: Option<SocketAddr>,
    for_humans: bool,
    data_directory: Option<&Path>,
) {
    let version = version::short();
    let text = banner(&BannerInputs {
        version: &version,
        node_id: config.node_id.0,
        cluster_id: &node.cluster_id,
        driver: &node.driver,
        durability: &node.durability,
        sizing,
        storage: &config.storage.durability,
        free_bytes: data_directory.and_then(free_bytes),
        listeners: &node.listeners,
        admin,
    });
    if for_humans {
        // After the lines that came before it, so that it is read as one piece.
        logging::flush();
        eprint!("{text}");
        return;
    }
    for line in text.lines() {
        tracing::info!("{}", line.trim_start());
    }
}

fn free_bytes(directory: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(directory).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

fn ready_line<'a>(
    config: &BrokerConfig,
    sizing: &Sizing,
    node: &'a RunningNode,
    admin: Option<SocketAddr>,
    data_directory: Option<&Path>,
) -> ReadyLine<'a> {
    ReadyLine {
        version: version::VERSION,
        pid: std::process::id(),
        node_id: config.node_id.0,
        cluster_id: &node.cluster_id,
        listeners: &node.listeners,
        admin,
        shards: sizing.shard_cpus.len(),
        driver: &node.driver,
        data_directory: data_directory.map(|directory| directory.display().to_string()),
    }
}

#[cfg(test)]
mod tests;
