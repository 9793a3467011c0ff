//! Runtime micro-benchmark: the native executor on io_uring and epoll, glommio over the same ring (with
//! `--features glommio`), and tokio's current-thread runtime. Prints one JSON line a run and one with each median.
//!
//! `cargo run --release -p ringlog-io --example runtime_bench -- [--seconds S] [--rounds N] [--only CASE]`
//!
//! The server is pinned to the first allowed CPU, the client (always the native executor) to the last. Runs of the
//! runtimes alternate, each round in the other direction, so that a slow minute of the machine hits them alike; what is
//! compared is the runs of one round, and the figure is the median over the rounds. CPU is that of the server's thread
//! alone, including what the kernel does in its name.

mod cross_core;
mod echo;
mod file_read;
mod measure;

use std::time::Duration;

use ringlog_io::{CpuId, DriverKind, ExecutorConfig, Scheduler, allowed_cpus};

use crate::measure::{Measurement, quantile};

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Uring,
    Epoll,
    Glommio,
    Tokio,
}

impl Runtime {
    /// Those in this build, the yardstick last.
    fn all() -> Vec<Self> {
        let mut all = vec![Self::Uring, Self::Epoll];
        if cfg!(feature = "glommio") {
            all.push(Self::Glommio);
        }
        all.push(Self::Tokio);
        all
    }

    fn name(self) -> &'static str {
        match self {
            Self::Uring => "io_uring",
            Self::Epoll => "epoll",
            Self::Glommio => "glommio",
            Self::Tokio => "tokio",
        }
    }

    /// How to build its executor; `None` for tokio.
    pub fn config(self, pin: CpuId, spin_us: u32) -> Option<ExecutorConfig> {
        let (driver, scheduler) = match self {
            Self::Uring => (DriverKind::IoUring, Scheduler::Native),
            Self::Epoll => (DriverKind::Epoll, Scheduler::Native),
            Self::Glommio => (DriverKind::IoUring, Scheduler::Glommio),
            Self::Tokio => return None,
        };
        Some(ExecutorConfig { driver, scheduler, pin: Some(pin), spin_us, ..ExecutorConfig::default() })
    }
}

/// Where the two sides run, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub server_cpu: CpuId,
    pub client_cpu: CpuId,
    pub duration: Duration,
}

type Case = (&'static str, fn(Runtime, Setting) -> Measurement);

const CASES: &[Case] = &[
    ("echo_64B_x64", |runtime, setting| {
        echo::run(runtime, setting, echo::Load { bytes: 64, connections: 64 })
    }),
    ("echo_64KiB_x64", |runtime, setting| {
        echo::run(runtime, setting, echo::Load { bytes: 65_536, connections: 64 })
    }),
    ("echo_64B_x1", |runtime, setting| echo::run(runtime, setting, echo::Load { bytes: 64, connections: 1 })),
    ("file_read_4KiB_cached", file_read::run),
    ("cross_core_parked", |runtime, setting| cross_core::run(runtime, setting, 0, 1)),
    ("cross_core_spinning", |runtime, setting| cross_core::run(runtime, setting, 50, 1)),
    ("cross_core_streaming", |runtime, setting| cross_core::run(runtime, setting, 0, 256)),
];

struct Arguments {
    seconds: f64,
    rounds: usize,
    only: Option<String>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { seconds: 2.0, rounds: 5, only: None };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--seconds" => {
                parsed.seconds = value.parse().map_err(|_| format!("{value} is no number of seconds"))?
            }
            "--rounds" => {
                parsed.rounds = value.parse().map_err(|_| format!("{value} is no number of rounds"))?
            }
            "--only" => parsed.only = Some(value),
            _ => return Err(format!("unknown flag {flag}; known are --seconds, --rounds, --only")),
        }
    }
    Ok(parsed)
}

fn main() {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    let cpus = allowed_cpus();
    let (Some(server_cpu), Some(client_cpu)) = (cpus.first().copied(), cpus.last().copied()) else {
        eprintln!("no cpu is allowed");
        std::process::exit(2);
    };
    if server_cpu == client_cpu {
        eprintln!("one cpu only: server and client share it, and the figures mean little");
    }
    let setting = Setting { server_cpu, client_cpu, duration: Duration::from_secs_f64(arguments.seconds) };
    for (case, run) in CASES {
        if arguments.only.as_deref().is_some_and(|only| !case.contains(only)) {
            continue;
        }
        run_case(case, *run, setting, arguments.rounds.max(1));
    }
}

fn run_case(case: &str, run: fn(Runtime, Setting) -> Measurement, setting: Setting, rounds: usize) {
    let runtimes = Runtime::all();
    let mut results: Vec<Vec<Measurement>> = vec![Vec::new(); runtimes.len()];
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..runtimes.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let measured = run(runtimes[index], setting);
            println!(
                r#"{{"case":"{case}","runtime":"{}","round":{round},"operations_per_second":{:.0},"server_cpu_ns_per_operation":{:.0},"server_busy":{:.3}}}"#,
                runtimes[index].name(),
                measured.rate(),
                measured.cpu_ns_per_operation(),
                measured.busy(),
            );
            results[index].push(measured);
        }
    }
    let Some(yardstick) = results.last() else { return };
    for (runtime, runs) in runtimes.iter().zip(&results) {
        let all = |figure: fn(&Measurement) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
        let ratios = |figure: fn(&Measurement) -> f64| -> Vec<f64> {
            runs.iter().zip(yardstick).map(|(run, other)| figure(run) / figure(other)).collect()
        };
        let cpu = ratios(Measurement::cpu_ns_per_operation);
        println!(
            r#"{{"case":"{case}","runtime":"{}","median_of":{rounds},"operations_per_second":{:.0},"server_cpu_ns_per_operation":{:.0},"rate_to_tokio":{:.3},"cpu_to_tokio":{:.3},"cpu_to_tokio_quartiles":[{:.3},{:.3}]}}"#,
            runtime.name(),
            quantile(all(Measurement::rate), 0.5),
            quantile(all(Measurement::cpu_ns_per_operation), 0.5),
            quantile(ratios(Measurement::rate), 0.5),
            quantile(cpu.clone(), 0.5),
            quantile(cpu.clone(), 0.25),
            quantile(cpu, 0.75),
        );
    }
}
