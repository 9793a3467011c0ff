//! Owns `ringlog bench`: hands its arguments to the bench crate, which `ringlog-bench` shares. Decides nothing itself.

use std::process::ExitCode;

pub use ringlog_bench::cli::BenchArgs as Args;

/// Runs the benchmark. Exit codes: 0 done and sound, 1 failed, 2 wrong usage, 130 interrupted.
pub fn run(args: Args) -> ExitCode {
    ringlog_bench::cli::run(args)
}
