//! The phases of a run: preflight, topic, preload, warm-up and measurement, drain, verification, clean-up.
//!
//! It holds what must be undone (temporary broker, topic) in values that undo it, so that errors and signals clean up
//! as success does.

mod measure;
mod setup;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use crate::args::{Args, Output, Plan, Workload};
use crate::error::{BenchError, EXIT_FAILURE};
use crate::interrupt::Interrupt;
use crate::live::Progress;
use crate::report::{BrokerReport, ConfigReport, Report, SCHEMA_VERSION, Verdict, failures_of, table};
use crate::runtime::{block_on_with, unless_interrupted};
use measure::{Measurement, measure};
use setup::{Target, TopicSetup};

/// Runs the benchmark and prints its report. Exit codes: 0 measured and every record verified, 1 failed, 2 wrong usage,
/// 130 interrupted.
pub fn run(args: Args) -> ExitCode {
    let plan = match Plan::new(args) {
        Ok(plan) => plan,
        Err(error) => return explain(&error),
    };
    let interrupt = Interrupt::install().map_err(|source| BenchError::local("cannot handle signals", source));
    let result = interrupt.and_then(|interrupt| execute(&plan, &interrupt)).and_then(|report| {
        print(&plan, &report)?;
        Ok(report.verdict)
    });
    match result {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(EXIT_FAILURE),
        Err(error) => explain(&error),
    }
}

fn explain(error: &BenchError) -> ExitCode {
    eprintln!("ringlog bench: {error}");
    error.exit_code()
}

/// Runs the plan and judges what it found.
///
/// # Errors
/// What kept it from being measured. A measured run that failed is a report.
pub fn execute(plan: &Plan, interrupt: &Interrupt) -> Result<Report, BenchError> {
    let mut progress = Progress::new();
    let target = Target::prepare(plan, interrupt, &progress)?;
    let topic = block_on_with(setup::executor_config(plan, 0), |io| {
        let target = &target;
        async move { unless_interrupted(&io, interrupt, TopicSetup::prepare(&io, plan, target)).await }
    })??;
    let measured = measure(plan, &target, &topic, interrupt, &mut progress);
    progress.finish();
    // The topic goes also when the measurement failed; an error of the measurement matters more than one of this.
    let cleaned = clean_up(plan, &target, &topic);
    let mut report = report_of(plan, &target, &topic, measured?);
    if let Err(error) = cleaned {
        report.warnings.push(format!("the topic could not be deleted: {error}"));
    }
    Ok(report)
}

fn clean_up(plan: &Plan, target: &Target, topic: &TopicSetup) -> Result<(), BenchError> {
    if !topic.is_ours || plan.args.keep_topic || target.is_temporary() {
        return Ok(());
    }
    block_on_with(setup::executor_config(plan, 0), |io| async move {
        let client = target.connect(&io).await?;
        client.delete_topic(&topic.name).await?;
        Ok(())
    })?
}

fn report_of(plan: &Plan, target: &Target, topic: &TopicSetup, found: Measurement) -> Report {
    let mut failures = failures_of(&found.verification, found.failed_records, found.first_failure.as_deref());
    failures.extend(found.reader_failures);
    let mut warnings = target.machine.warnings();
    if plan.args.workload == Workload::Consume && plan.preload_records == 0 {
        warnings
            .push("records of other programs carry no sequence: only their offsets were verified".to_owned());
    }
    Report {
        schema_version: SCHEMA_VERSION,
        generator_version: format!("ringlog-bench {}", env!("CARGO_PKG_VERSION")),
        verdict: if failures.is_empty() { Verdict::Passed } else { Verdict::Failed },
        failures,
        warnings,
        config: ConfigReport::new(plan, &topic.name, topic.partitions.len()),
        machine: target.machine.clone(),
        broker: BrokerReport {
            bootstrap: target.bootstrap_text(),
            cluster_id: topic.cluster_id.clone(),
            is_temporary: target.is_temporary(),
            process: found.broker_cost,
        },
        produced: found.produced,
        consumed: found.consumed,
        generator: found.generator,
        verification: found.verification,
    }
}

fn print(plan: &Plan, report: &Report) -> Result<(), BenchError> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| BenchError::local("cannot encode the report", std::io::Error::other(error)))?;
    if let Some(path) = &plan.args.report {
        std::fs::write(path, format!("{json}\n"))
            .map_err(|source| BenchError::local(format!("cannot write {}", path.display()), source))?;
    }
    let text = match plan.args.output {
        Output::Table => table::render(report),
        Output::Json => format!("{json}\n"),
    };
    std::io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .map_err(|source| BenchError::local("cannot write to standard output", source))
}

/// Shares a value between the threads of a run.
fn shared<T>(value: T) -> Arc<T> {
    Arc::new(value)
}
