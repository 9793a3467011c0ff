//! One suite for every driver: what an executor promises, checked on io_uring, on epoll, with and without optional
//! kernel features, and (the portable part) in the simulation.

mod cancellation;
mod files;
mod kernel;
mod network;
mod tasks;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use ringlog_io::{DriverKind, Executor, ExecutorConfig, FeatureSwitches, Io, IoSetupError, sim};

/// What a case runs in.
#[derive(Clone)]
pub struct Env {
    pub io: Io,
    /// An empty directory of its own.
    pub directory: PathBuf,
    /// Where to listen: port 0 of an address that reaches us.
    pub address: SocketAddr,
    /// How to build a second executor of the same kind, where there are threads.
    pub config: ExecutorConfig,
}

type Case = (&'static str, fn(Env) -> Pin<Box<dyn Future<Output = ()>>>);

/// A case as a table entry.
#[macro_export]
macro_rules! case {
    ($name:ident) => {
        (stringify!($name), |env| Box::pin($name(env)))
    };
}

fn portable() -> Vec<Case> {
    [network::CASES, files::CASES, tasks::CASES, cancellation::CASES].concat()
}

fn run_on_kernel(driver: DriverKind, features: FeatureSwitches) {
    run_with(ExecutorConfig { driver, features, worker_threads: 2, ..ExecutorConfig::default() }, &[]);
}

/// Runs every case but the named ones.
fn run_with(config: ExecutorConfig, skipped: &[&str]) {
    let driver = config.driver;
    for (name, case) in portable().into_iter().chain(kernel::CASES.iter().copied()) {
        if skipped.contains(&name) {
            continue;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let executor = match Executor::new(config.clone()) {
            Ok(executor) => executor,
            Err(IoSetupError::Ring { source, .. }) if source.raw_os_error() != Some(libc_einval()) => {
                eprintln!("skipped: the kernel refuses io_uring: {source}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let env = Env {
            io: executor.io(),
            directory: directory.path().to_owned(),
            address: "127.0.0.1:0".parse().expect("an address"),
            config: config.clone(),
        };
        let io = env.io.clone();
        let start = std::time::Instant::now();
        executor.run(within(io, name, case(env)));
        eprintln!("{driver:?} {name}: {:?}", start.elapsed());
    }
}

/// EINVAL means that we asked for something wrong, which is a failure and no reason to skip.
fn libc_einval() -> i32 {
    22
}

/// A case that hangs fails with its name.
async fn within(io: Io, name: &str, case: Pin<Box<dyn Future<Output = ()>>>) {
    let mut case = case;
    let mut limit = Box::pin(io.sleep(Duration::from_secs(60)));
    std::future::poll_fn(|context| {
        if case.as_mut().poll(context).is_ready() {
            return std::task::Poll::Ready(());
        }
        assert!(limit.as_mut().poll(context).is_pending(), "{name} hangs");
        std::task::Poll::Pending
    })
    .await;
}

#[test]
fn uring() {
    run_on_kernel(DriverKind::IoUring, FeatureSwitches::default());
}

#[test]
fn uring_without_optional_features() {
    run_on_kernel(DriverKind::IoUring, FeatureSwitches::oldest());
}

#[test]
fn epoll() {
    run_on_kernel(DriverKind::Epoll, FeatureSwitches::default());
}

#[test]
fn epoll_without_optional_features() {
    run_on_kernel(DriverKind::Epoll, FeatureSwitches::oldest());
}

/// The second scheduler over the same ring. It has its own idea of whose turn it is, hence what is skipped.
#[cfg(feature = "glommio")]
#[test]
fn glommio() {
    let config = ExecutorConfig {
        driver: DriverKind::IoUring,
        scheduler: ringlog_io::Scheduler::Glommio,
        worker_threads: 2,
        ..ExecutorConfig::default()
    };
    // glommio shares time, not turns, between its queues.
    run_with(config, &["background_does_not_starve", "foreground_does_not_starve"]);
}

#[test]
fn simulation() {
    for (name, case) in portable() {
        for seed in 0..4 {
            eprintln!("simulation {name} seed {seed}");
            let world = sim::World::new(seed);
            let host = world.host("one");
            let io = host.executor();
            let env = Env {
                io: io.clone(),
                directory: PathBuf::from("/case"),
                address: SocketAddr::new(host.address(), 0),
                config: ExecutorConfig::default(),
            };
            let task = io.spawn(ringlog_io::Priority::Foreground, {
                let io = io.clone();
                async move {
                    io.create_directories(&env.directory).await.expect("a directory");
                    case(env).await;
                }
            });
            let outcome = world.run_until(|| task.is_finished(), Duration::from_secs(600));
            assert_eq!(outcome, sim::Outcome::Done, "{name} seed {seed}");
        }
    }
}
