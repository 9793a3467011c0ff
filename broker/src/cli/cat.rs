//! Owns `ringlog cat`: copies lines into a topic and records out of it, in the manner of kcat.
//!
//! Standard output carries records only; everything else goes to standard error.

mod consume;
mod format;
mod lines;
mod produce;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use ringlog_bench::client::address::parse_bootstrap;
use ringlog_bench::client::producer::Acks;
use ringlog_bench::client::{Client, ClientConfig, ClientError};
use ringlog_protocol::records::builder::BuildError;
use ringlog_protocol::records::compression::Compression;

use crate::process::exit::Exit;
use consume::{ConsumeJob, Printer, StartAt};
use format::{Format, unescape};
use produce::ProduceJob;

const AFTER_HELP: &str = "\
Examples:
  ringlog cat orders -P lines.txt                 a record for each line
  ringlog cat orders -P -K : -z zstd < keyed.txt  key:value lines, compressed
  ringlog cat orders -C -e                        print all records and stop
  ringlog cat orders -C --offset -10 -o json      the last ten, then follow
  ringlog cat orders -C -f '%p:%o %k=%s\\n' -c 5   five in a format of your own

Formats: %s value, %S its length, %k key, %K its length, %h headers, %t topic, %p partition, %o offset, \
%T timestamp, %% percent; escapes \\n \\r \\t \\0 \\\\ \\xNN. JSON shows bytes that are not UTF-8 in base64.";

/// Produce lines or print records.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The topic, then with -P perhaps a file to read (default: standard input)
    #[arg(value_name = "TOPIC [FILE]", num_args = 0..=2)]
    pub words: Vec<String>,

    /// The topic, in the manner of kcat
    #[arg(short, long, value_name = "TOPIC")]
    pub topic: Option<String>,

    /// Broker addresses, HOST:PORT, separated by commas
    #[arg(short, long, default_value = "127.0.0.1:9092", value_name = "LIST")]
    pub bootstrap_server: String,

    /// Produce; the default when standard input is not a terminal
    #[arg(short = 'P', long, conflicts_with = "consume")]
    pub produce: bool,

    /// Consume; the default on a terminal
    #[arg(short = 'C', long)]
    pub consume: bool,

    /// Partition to produce to or to read [default: by key, or all]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub partition: Option<i32>,

    /// Ends a record; escapes such as \n, \0 and \x1e are understood
    #[arg(short = 'D', long, default_value = "\\n", value_name = "TEXT")]
    pub delimiter: String,

    /// Stands between key and value [default: no keys]
    #[arg(short = 'K', long, value_name = "TEXT")]
    pub key_delimiter: Option<String>,

    /// With -P: a header of every record; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME=VALUE")]
    pub headers: Vec<String>,

    /// With -P: none, gzip, snappy, lz4 or zstd
    #[arg(short = 'z', long, default_value = "none", value_name = "CODEC")]
    pub compression: String,

    /// With -P: when the broker answers: 0, 1 or all
    #[arg(long, default_value = "all", value_name = "ACKS")]
    pub acks: Acks,

    /// With -P: send empty keys and values as null
    #[arg(short = 'Z', long)]
    pub null: bool,

    /// With -C: where to begin: beginning, end, an offset, -N (the last N) or @MS (Unix milliseconds)
    #[arg(long, default_value = "beginning", value_name = "POSITION", allow_hyphen_values = true)]
    pub offset: StartAt,

    /// With -C: stop after so many records
    #[arg(short, long, value_name = "N")]
    pub count: Option<u64>,

    /// With -C: stop at the end as it was at the start
    #[arg(short, long)]
    pub exit: bool,

    /// With -C: how a record is printed
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "output")]
    pub format: Option<String>,

    /// With -C: raw bytes, or one JSON object a line
    #[arg(short, long, value_enum, default_value = "raw")]
    pub output: Output,

    /// Do not say on standard error how much was copied
    #[arg(short, long)]
    pub quiet: bool,
}

/// How records are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Raw,
    Json,
}

/// Why copying ended early.
#[derive(Debug, thiserror::Error)]
pub enum CatError {
    #[error("{source}")]
    Client {
        #[from]
        source: ClientError,
    },
    #[error("cannot start the client: {source}")]
    Setup {
        #[from]
        source: ringlog_io::IoSetupError,
    },
    #[error("cannot open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot read the input: {source}")]
    Input { source: io::Error },
    #[error("cannot write the output: {source}")]
    Output { source: io::Error },
    #[error("{source}")]
    Line {
        #[from]
        source: lines::LineTooLong,
    },
    #[error("a record does not fit a batch: {source}")]
    Build {
        #[from]
        source: BuildError,
    },
    #[error("topic '{topic}' has no partition {partition}: it has {count}, counted from 0")]
    NoPartition { topic: String, partition: i32, count: usize },
    #[error("{option}: {reason}")]
    Usage { option: &'static str, reason: String },
}

#[derive(Debug)]
enum Job {
    Produce(ProduceJob),
    Consume(ConsumeJob),
}

/// Copies. Exit codes: 0 everything was copied, 1 failed, 2 wrong usage.
pub fn run(args: Args) -> ExitCode {
    let is_quiet = args.quiet;
    match execute(args) {
        Ok(summary) => {
            if !is_quiet {
                eprintln!("{summary}");
            }
            Exit::Success.into()
        }
        Err(error) => {
            eprintln!("ringlog cat: {error}");
            if matches!(error, CatError::Usage { .. }) { Exit::Usage.into() } else { Exit::Failure.into() }
        }
    }
}

fn execute(args: Args) -> Result<String, CatError> {
    let bootstrap = parse_bootstrap(&args.bootstrap_server)
        .map_err(|error| usage("--bootstrap-server", error.to_string()))?;
    let job = job_of(args, io::stdin().is_terminal())?;
    let mut config = ClientConfig::new(bootstrap);
    config.connection.client_id = "ringlog-cat".to_owned();
    // Whether a missing topic is made on the way is the broker's setting; a reader never asks for it.
    config.create_missing_topics = matches!(job, Job::Produce(_));
    ringlog_bench::runtime::block_on(|io| async move {
        let client = Client::connect(&io, config).await?;
        match &job {
            Job::Produce(job) => {
                let produced = produce::produce(&io, &client, job).await?;
                Ok(format!(
                    "produced {} records ({} bytes) to {}",
                    produced.records, produced.bytes, job.topic
                ))
            }
            Job::Consume(job) => {
                let printed = consume::consume(&client, job).await?;
                Ok(format!("consumed {printed} records from {}", job.topic))
            }
        }
    })?
}

fn usage(option: &'static str, reason: String) -> CatError {
    CatError::Usage { option, reason }
}

fn job_of(args: Args, stdin_is_terminal: bool) -> Result<Job, CatError> {
    let mut words = args.words.into_iter();
    let topic = args.topic.or_else(|| words.next());
    let topic =
        topic.ok_or_else(|| usage("TOPIC", "name the topic, as in `ringlog cat orders -C`".to_owned()))?;
    let file = words.next();
    if let Some(extra) = words.next() {
        return Err(usage("FILE", format!("'{extra}' is one word too many")));
    }
    let is_producer = args.produce || (!args.consume && (file.is_some() || !stdin_is_terminal));
    let delimiter = unescape(&args.delimiter).map_err(|error| usage("--delimiter", error.to_string()))?;
    let key_delimiter = args.key_delimiter.as_deref().map(unescape).transpose();
    let key_delimiter = key_delimiter.map_err(|error| usage("--key-delimiter", error.to_string()))?;
    if delimiter.is_empty() || key_delimiter.as_ref().is_some_and(Vec::is_empty) {
        return Err(usage("--delimiter", "a delimiter has at least one byte".to_owned()));
    }
    if !is_producer {
        if let Some(file) = file {
            return Err(usage(
                "FILE",
                format!("'{file}' is only read with -P; redirect the output to write a file"),
            ));
        }
        let printer = match (args.format, args.output) {
            (Some(text), _) => {
                Printer::Format(Format::parse(&text).map_err(|error| usage("--format", error.to_string()))?)
            }
            (None, Output::Json) => Printer::Json,
            (None, Output::Raw) => Printer::Format(Format::lines(key_delimiter.as_deref(), &delimiter)),
        };
        return Ok(Job::Consume(ConsumeJob {
            topic,
            partition: args.partition,
            start: args.offset,
            count: args.count,
            exit_at_end: args.exit,
            printer,
        }));
    }
    let compression =
        args.compression.parse::<Compression>().map_err(|error| usage("--compression", error.to_string()))?;
    Ok(Job::Produce(ProduceJob {
        topic,
        file: file.filter(|file| file != "-").map(PathBuf::from),
        delimiter,
        key_delimiter,
        headers: args.headers.iter().map(|text| header(text)).collect::<Result<_, _>>()?,
        compression,
        acks: args.acks,
        partition: args.partition,
        empty_is_null: args.null,
    }))
}

fn header(text: &str) -> Result<(String, Vec<u8>), CatError> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.as_bytes().to_vec())),
        _ => Err(usage("--header", format!("'{text}' is not NAME=VALUE"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn job(line: &str, stdin_is_terminal: bool) -> Result<Job, CatError> {
        let words = std::iter::once("cat").chain(line.split_whitespace());
        job_of(Cli::try_parse_from(words).expect(line).args, stdin_is_terminal)
    }

    #[test]
    fn topic_and_file_are_found_in_both_spellings() {
        for line in
            ["orders lines.txt -P", "-P -t orders lines.txt", "orders -P lines.txt", "-t orders lines.txt"]
        {
            let Ok(Job::Produce(job)) = job(line, true) else { panic!("{line}") };
            assert_eq!(
                (job.topic.as_str(), job.file),
                ("orders", Some(PathBuf::from("lines.txt"))),
                "{line}"
            );
        }
    }

    #[test]
    fn the_direction_follows_from_standard_input() {
        assert!(matches!(job("orders", false), Ok(Job::Produce(ProduceJob { file: None, .. }))));
        assert!(matches!(job("orders", true), Ok(Job::Consume(_))));
        assert!(matches!(job("orders -C", false), Ok(Job::Consume(_))));
        assert!(matches!(job("orders - -P", true), Ok(Job::Produce(ProduceJob { file: None, .. }))));
    }

    #[test]
    fn options_reach_the_job() {
        let line = "orders -P -K => -D \\0 -H a=1 -H b=x=y -z zstd --acks 1 -p 2 -Z";
        let Ok(Job::Produce(produce)) = job(line, true) else { panic!("{line}") };
        assert_eq!((produce.delimiter, produce.key_delimiter), (vec![0], Some(b"=>".to_vec())));
        assert_eq!(produce.headers, [("a".into(), b"1".to_vec()), ("b".into(), b"x=y".to_vec())]);
        assert_eq!((produce.acks, produce.partition, produce.empty_is_null), (Acks::Leader, Some(2), true));
        assert_eq!(produce.compression, Compression::Zstd);
        let line = "orders -C --offset -10 -c 3 -e -o json";
        let Ok(Job::Consume(consume)) = job(line, false) else { panic!("{line}") };
        assert_eq!((consume.start, consume.count, consume.exit_at_end), (StartAt::Tail(10), Some(3), true));
        assert!(matches!(consume.printer, Printer::Json));
    }

    #[test]
    fn wrong_usage_names_the_option() {
        for (line, option) in [
            ("-C", "TOPIC"),
            ("orders file -C", "FILE"),
            ("-t orders a b -P", "FILE"),
            ("orders -P -H novalue", "--header"),
            ("orders -P -z brotli", "--compression"),
            ("orders -C -f %q", "--format"),
            ("orders -P -D \\q", "--delimiter"),
            ("orders -b host:0", ""),
        ] {
            match job(line, true) {
                Err(CatError::Usage { option: named, .. }) => assert_eq!(named, option, "{line}"),
                Ok(_) if option.is_empty() => {}
                other => panic!("{line}: {other:?}"),
            }
        }
        assert!(Cli::try_parse_from(["cat", "t", "-P", "-C"]).is_err());
        assert!(Cli::try_parse_from(["cat", "t", "-f", "%s", "-o", "json"]).is_err());
    }
}
