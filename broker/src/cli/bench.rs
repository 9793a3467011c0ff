//! Owns `ringlog bench`: hands its arguments to the bench crate, which `ringlog-bench` shares. Decides nothing itself.

use std::process::ExitCode;

const AFTER_HELP: &str = "\
Examples:
  ringlog bench                                            a broker of its own, 60 s, 10k records/s of 1 KiB
  ringlog bench produce -b host:9092 --rate 200k/s --record-size 100 --records-per-batch 10 --partitions 100
  ringlog bench consume --consumers 4 --preload 1GiB
  ringlog bench e2e --rate 50MB/s --acks 1 -o json --report run.json";

/// Drive load against a broker and verify every record.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    pub bench: ringlog_bench::args::Args,
}

/// Runs the benchmark. Exit codes: 0 measured and every record verified, 1 failed, 2 wrong usage, 130 interrupted.
pub fn run(args: Args) -> ExitCode {
    ringlog_bench::run(args.bench)
}
