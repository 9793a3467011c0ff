//! Owns `ringlog version`: one line, or all that tells two builds apart.

use std::process::ExitCode;

use crate::process::exit::Exit;

/// Oldest kernel that the io_uring driver is built for; the epoll driver needs less.
pub const KERNEL_FLOOR: &str = "6.1 for io_uring, 5.4 for epoll";
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Print the version.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also git revision, compiler, target, features and oldest kernel
    #[arg(short, long)]
    pub verbose: bool,
}

pub fn run(args: &Args) -> ExitCode {
    if args.verbose {
        print!("{}", long())
    } else {
        println!("{}", short())
    }
    Exit::Success.into()
}

/// `ringlog 0.1.0`
pub fn short() -> String {
    format!("ringlog {VERSION}")
}

fn long() -> String {
    format!(
        "{}\ngit       {}\nrustc     {}\ntarget    {}\nprofile   {}\nfeatures  {}\nkernel    {KERNEL_FLOOR}\n",
        short(),
        // Set by whoever builds a release: the sources alone do not say.
        option_env!("BUILD_GIT_REVISION").unwrap_or("unknown"),
        env!("BUILD_RUSTC_VERSION"),
        env!("BUILD_TARGET"),
        env!("BUILD_PROFILE"),
        features(),
    )
}

fn features() -> String {
    let all =
        [("glommio", cfg!(feature = "glommio")), ("planted-early-ack", cfg!(feature = "planted-early-ack"))];
    let on: Vec<&str> = all.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    if on.is_empty() { "none".to_owned() } else { on.join(", ") }
}
