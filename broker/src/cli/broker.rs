//! Owns `ringlog broker`: its flags, and which key each flag sets. Values are checked where every other source of a key
//! is checked, so a flag and a file line get the same refusal.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{self, BrokerConfig, ConfigErrors};
use crate::process;
use crate::process::plan::StartShards;

const AFTER_HELP: &str = "\
Examples:
  ringlog broker
  ringlog broker --data-dir /srv/ringlog --listen 0.0.0.0:9092
  ringlog broker --config server.properties --set num.partitions=3
  ringlog broker --profile server --cpuset 2-9 --memory 16GiB
  ringlog broker --ephemeral --listen 127.0.0.1:0 --admin none --ready-fd 1

Every flag sets a key of the configuration; `ringlog config reference` prints them all, with the environment \
variable of each. SIGTERM drains and stops; a second one stops at once.";

/// Run a broker.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    pub settings: SettingArgs,

    /// When serving, write one line of JSON with the addresses to this inherited descriptor
    #[arg(long, value_name = "N")]
    pub ready_fd: Option<u32>,
}

/// The flags that set keys; `ringlog config show` takes the same.
#[derive(Debug, Default, clap::Args)]
pub struct SettingArgs {
    /// Where data is kept; made when absent [default: by account, see `ringlog config explain log.dirs`]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,

    /// Keep everything in memory and write no file; all records are lost at exit
    #[arg(long)]
    pub ephemeral: bool,

    /// Address for Kafka clients; port 0 takes a free one [default: 127.0.0.1:9092]
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,

    /// Address that clients are told to connect to [default: the one that each client reached]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,

    /// Address of metrics, health and configuration over HTTP, or `none` [default: 127.0.0.1:9644]
    #[arg(long, value_name = "HOST:PORT")]
    pub admin: Option<String>,

    /// How many shards, each one thread [default: at most 4, or a core each in the server profile]
    #[arg(long, value_name = "N")]
    pub shards: Option<String>,

    /// CPUs to run shards on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub cpuset: Option<String>,

    /// Do not bind shards to CPUs
    #[arg(long)]
    pub no_pin: bool,

    /// Memory of all shards together: 4GiB or 25% [default: by profile]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,

    /// How the kernel is asked: auto, io_uring or epoll
    #[arg(long, value_name = "DRIVER")]
    pub io_driver: Option<String>,

    /// Kernel features to leave unused or insist on, such as -cachestat
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub io_features: Option<String>,

    /// How records leave: auto, send or sendfile
    #[arg(long, value_name = "ROUTE")]
    pub egress: Option<String>,

    /// How much of the machine to take: auto, dev or server
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,

    /// A file in the syntax of Kafka's server.properties
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Set any key; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Log lines: human or json [default: human on a terminal]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

impl SettingArgs {
    /// (flag, key, value) of every flag that was given.
    pub fn flags(&self) -> Vec<(&'static str, &'static str, String)> {
        let word = |given: bool, value: &str| given.then(|| value.to_owned());
        let table: [(&'static str, &'static str, Option<String>); 14] = [
            ("--data-dir", "log.dirs", self.data_dir.clone()),
            ("--ephemeral", "ringlog.ephemeral", word(self.ephemeral, "true")),
            ("--listen", "listeners", self.listen.clone()),
            ("--advertise", "advertised.listeners", self.advertise.clone()),
            ("--admin", "ringlog.admin.listen", self.admin.clone()),
            ("--shards", "ringlog.shards", self.shards.clone()),
            ("--cpuset", "ringlog.cpuset", self.cpuset.clone()),
            ("--no-pin", "ringlog.pin", word(self.no_pin, "false")),
            ("--memory", "ringlog.memory", self.memory.clone()),
            ("--io-driver", "ringlog.io.driver", self.io_driver.clone()),
            ("--io-features", "ringlog.io.features", self.io_features.clone()),
            ("--egress", "ringlog.egress", self.egress.clone()),
            ("--profile", "ringlog.profile", self.profile.clone()),
            ("--log-format", "ringlog.log.format", self.log_format.clone()),
        ];
        table.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value?))).collect()
    }

    /// The configuration that these flags, the environment and the file make.
    ///
    /// # Errors
    /// All refusals at once.
    pub fn load(&self) -> Result<BrokerConfig, ConfigErrors> {
        config::load_from_process(self.flags(), self.set.clone(), self.config.clone())
    }
}

/// Runs a broker until it is told to stop.
pub fn run(args: Args, start_shards: StartShards) -> ExitCode {
    match args.settings.load() {
        Ok(config) => process::run::run(config, args.ready_fd, start_shards),
        Err(errors) => refuse(&errors),
    }
}

/// Prints every refusal, one a line, and yields the exit code of the worst.
pub fn refuse(errors: &ConfigErrors) -> ExitCode {
    for error in &errors.0 {
        eprintln!("ringlog: {error}");
    }
    errors.exit().into()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Verb};
    use crate::config::keys;

    fn parse(line: &str) -> Args {
        let cli = Cli::try_parse_from(line.split_whitespace()).expect(line);
        match cli.verb {
            Some(Verb::Broker(args)) => *args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn flags_become_keys() {
        let args = parse(
            "ringlog broker --data-dir /d --listen 0.0.0.0:1 --admin none --advertise h:2 --shards 2 --cpuset 0-1 \
             --no-pin --memory 1GiB --io-driver epoll --io-features -cachestat --egress send --profile dev \
             --log-format json --ready-fd 3 --config f --set a=b --set c=d --ephemeral",
        );
        let flags = args.settings.flags();
        assert_eq!(flags.len(), 14);
        for (flag, key, _) in &flags {
            assert!(keys::find(key).is_some(), "{flag} sets {key}");
        }
        assert!(flags.contains(&("--no-pin", "ringlog.pin", "false".to_owned())));
        assert!(flags.contains(&("--io-features", "ringlog.io.features", "-cachestat".to_owned())));
        assert_eq!(args.settings.set, vec!["a=b", "c=d"]);
        assert_eq!(args.ready_fd, Some(3));
        assert_eq!(parse("ringlog broker").settings.flags(), vec![]);
    }
}
