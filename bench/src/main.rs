//! The binary `ringlog-bench`: the load generator alone, for machines without the broker.

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load generator for any Kafka-compatible broker.
#[derive(Debug, Parser)]
#[command(name = "ringlog-bench", version, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    args: ringlog_bench::cli::BenchArgs,
}

fn main() -> ExitCode {
    ringlog_bench::cli::run(Cli::parse().args)
}
