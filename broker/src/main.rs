//! The `ringlog` binary: picks the allocator and hands over to the command line.

use std::process::ExitCode;

/// Faster than the system's on small allocations, and indifferent to the page size of arm64 kernels.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ringlog_broker::cli::main(ringlog_broker::node::start_shards)
}
