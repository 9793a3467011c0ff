//! Owns `ringlog bench`: hands its arguments to the bench crate, which `ringlog-bench` shares. Decides nothing itself.

use std::process::ExitCode;

pub use ringlog_bench::args::Args;

/// Runs the benchmark. Exit codes: 0 measured and every record verified, 1 failed, 2 wrong usage, 130 interrupted.
pub fn run(args: Args) -> ExitCode {
    ringlog_bench::run(args)
}
