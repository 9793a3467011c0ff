//! `bench verify`: reads histories, judges them, prints the verdict. It holds no rule.

use std::fs::File;
use std::io::{BufReader, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use comfy_table::{CellAlignment, Table, presets};

use crate::args::Output;
use crate::error::{EXIT_FAILURE, EXIT_USAGE};
use crate::history::read::{HistoryError, feed};
use crate::history::{CheckOptions, Checker, SCHEMA, Verdict};
use crate::units::format_count;

const AFTER_HELP: &str = "\
The format of a history and the rules: verify --schema. Memory: about 200 bytes a value.

Exit codes: 0 no rule is broken, 1 one is, 2 a file or line cannot be read.";

/// Judge a history of sends and polls, of any client of any broker, by the rules of a log.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub struct VerifyArgs {
    /// Histories, parts of one; - = standard input.
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    pub files: Vec<PathBuf>,
    /// Print the format of a history and the rules.
    #[arg(long)]
    pub schema: bool,
    /// Hold acks=1 to its word as acks=all: right for one node, not where a leader can lose its place.
    #[arg(long)]
    pub acks_1_durable: bool,
    /// The most values that are taken.
    #[arg(long, default_value_t = 20_000_000, value_name = "N")]
    pub values_max: u64,
    /// Table or JSON on standard output.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
}

/// Judges and prints. Exit codes: 0 no rule is broken, 1 one is, 2 a file or line cannot be read.
pub fn verify(args: &VerifyArgs) -> ExitCode {
    if args.schema {
        return print(&format!("{SCHEMA}\n"), ExitCode::SUCCESS);
    }
    let verdict = match judge(args) {
        Ok(verdict) => verdict,
        Err(error) => {
            eprintln!("ringlog bench verify: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let text = match args.output {
        Output::Table => table(&verdict),
        Output::Json => {
            let json = serde_json::to_string_pretty(&verdict)
                .expect("a verdict is strings and numbers, which JSON has");
            format!("{json}\n")
        }
    };
    print(&text, if verdict.is_clean { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILURE) })
}

fn judge(args: &VerifyArgs) -> Result<Verdict, HistoryError> {
    let options = CheckOptions {
        acks_1_is_durable: args.acks_1_durable,
        values_max: args.values_max,
        ..CheckOptions::default()
    };
    let mut checker = Checker::new(options);
    for path in &args.files {
        let name = path.display().to_string();
        if path == Path::new("-") {
            feed(&mut checker, "standard input", stdin().lock())?;
            continue;
        }
        let file = File::open(path).map_err(|source| HistoryError::Read { file: name.clone(), source })?;
        feed(&mut checker, &name, BufReader::with_capacity(1 << 20, file))?;
    }
    Ok(checker.finish())
}

fn print(text: &str, code: ExitCode) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => code,
        Err(error) => {
            eprintln!("ringlog bench verify: cannot write to standard output: {error}");
            ExitCode::from(EXIT_FAILURE)
        }
    }
}

/// The verdict for people: what is broken first, then of how much it speaks.
pub fn table(verdict: &Verdict) -> String {
    let mut text = String::new();
    if verdict.is_clean {
        text.push_str("CLEAN: no rule is broken\n");
    } else {
        text.push_str("ANOMALIES\n");
    }
    for anomaly in &verdict.anomalies {
        text.push_str(&format!("\n{} ({})\n", anomaly.rule.name(), format_count(anomaly.count)));
        for example in &anomaly.examples {
            text.push_str(&format!("  {example}\n"));
        }
        let others = anomaly.count - anomaly.examples.len() as u64;
        if others > 0 {
            text.push_str(&format!("  and {} more\n", format_count(others)));
        }
    }
    for reason in &verdict.not_judged {
        text.push_str(&format!("not judged: {reason}\n"));
    }
    text.push_str(&format!("\n{}\n", counts_table(verdict)));
    if let Some(worst) = verdict.lag.iter().max_by_key(|lag| lag.worst_ms) {
        let lag = format!("longest from an answer to the first read: {} ms, {}\n", worst.worst_ms, worst.key);
        text.push_str(&lag);
    }
    text
}

fn counts_table(verdict: &Verdict) -> Table {
    let counts = &verdict.counts;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, count) in [
        ("operations", counts.operations),
        ("partitions", counts.partitions),
        ("processes", counts.processes),
        ("sends ok", counts.sends_ok),
        ("sends failed", counts.sends_fail),
        ("sends of unknown outcome", counts.sends_info),
        ("values acknowledged", counts.values_acknowledged),
        ("values of unknown outcome, read", counts.values_info_read),
        ("values read", counts.values_read),
        ("polls", counts.polls),
        ("records polled", counts.records_polled),
        ("duplicates, allowed", counts.duplicates_allowed),
        ("losses, allowed", counts.losses_allowed),
        ("values deleted or damaged on purpose", counts.values_excused),
        ("clients dropped", counts.crashes),
    ] {
        table.add_row([name.to_owned(), format_count(count)]);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
