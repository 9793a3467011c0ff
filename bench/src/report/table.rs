//! The report for people: verdict first, then latencies, rates and what it cost.

use comfy_table::{CellAlignment, Table, presets};

use super::{ConsumedReport, ProducedReport, Report, Throughput, Verdict};
use crate::latency::{LatencySummary, PERCENTILES};
use crate::units::{format_bytes, format_count, format_nanoseconds};

/// A percentile with fewer slower records than this is marked: the next run may well show another value.
const FEW_RECORDS: u64 = 10;

/// The whole report as text, ending in a line feed.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let verdict = match report.verdict {
        Verdict::Passed => "PASSED: every record was delivered once, in order, unaltered",
        Verdict::Failed => "FAILED",
    };
    line(&mut text, verdict);
    for failure in &report.failures {
        line(&mut text, &format!("  ! {failure}"));
    }
    line(&mut text, &what_ran(report));
    line(&mut text, "");
    text.push_str(&latency_table(report));
    line(&mut text, "");
    text.push_str(&throughput_table(report));
    line(&mut text, "");
    for sentence in sentences(report) {
        line(&mut text, &sentence);
    }
    for reason in &report.generator.reasons {
        line(&mut text, &format!("THE GENERATOR IS THE LIMIT: {reason}"));
    }
    for warning in &report.warnings {
        line(&mut text, &format!("warning: {warning}"));
    }
    text
}

fn line(text: &mut String, content: &str) {
    text.push_str(content);
    text.push('\n');
}

fn what_ran(report: &Report) -> String {
    let config = &report.config;
    let load = match (config.offered_records_per_second, config.closed_batches_in_flight) {
        (Some(rate), _) => format!("open loop at {}/s", format_count(rate.round() as u64)),
        (None, Some(batches)) => format!("CLOSED LOOP, {batches} batches in flight (latencies hide stalls)"),
        (None, None) => "readers without a rate (closed loop)".to_owned(),
    };
    let broker =
        if report.broker.is_temporary { "a temporary broker" } else { report.broker.bootstrap.as_str() };
    format!(
        "{:?} on {broker}: {load}, {} B records, batches of up to {}, {} partitions, acks={}, {}{}, {:.0} s after {:.0} s of warm-up",
        config.workload,
        config.record_bytes,
        config.batch_records_max,
        config.partitions,
        config.acks,
        if config.is_idempotent { "idempotent, " } else { "" },
        config.compression,
        config.duration_seconds,
        config.warmup_seconds,
    )
}

fn latency_table(report: &Report) -> String {
    let mut table = new_table();
    let mut header = vec!["LATENCY"];
    header.extend(PERCENTILES.iter().map(|(name, _)| *name));
    header.extend(["max", "mean", "records"]);
    let columns = header.len();
    table.set_header(header);
    let produced = report.produced.as_ref();
    let consumed = report.consumed.as_ref();
    let rows = [
        ("acknowledged (from intended time)", produced.and_then(|produced| produced.acknowledged.as_ref())),
        ("service time (from sending)", produced.and_then(|produced| produced.service.as_ref())),
        ("end to end (from intended time)", consumed.and_then(|consumed| consumed.end_to_end.as_ref())),
        ("fetch answers (service time)", consumed.and_then(|consumed| consumed.fetch.as_ref())),
    ];
    let rows: Vec<_> = rows.into_iter().filter_map(|(name, summary)| Some((name, summary?))).collect();
    if rows.is_empty() {
        return "no latencies: with acks=0 the broker does not answer (e2e measures arrival)\n".to_owned();
    }
    for (name, summary) in rows {
        table.add_row(latency_row(name, summary));
    }
    align_right(&mut table, 1..columns);
    rendered(&mut table)
}

fn latency_row(name: &str, summary: &LatencySummary) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.extend(summary.percentiles.iter().map(|value| {
        let mark = if value.records_above < FEW_RECORDS { "*" } else { "" };
        format!("{}{mark}", format_nanoseconds(value.nanoseconds))
    }));
    row.push(format_nanoseconds(summary.max_nanoseconds));
    row.push(format_nanoseconds(summary.mean_nanoseconds));
    row.push(format_count(summary.count));
    row
}

fn throughput_table(report: &Report) -> String {
    let mut table = new_table();
    table.set_header(["THROUGHPUT", "records/s", "MB/s", "records", "bytes"]);
    let rows = [
        ("sent", report.produced.as_ref().map(|produced| produced.throughput)),
        ("read", report.consumed.as_ref().map(|consumed| consumed.throughput)),
    ];
    for (name, throughput) in rows.into_iter().filter_map(|(name, throughput)| Some((name, throughput?))) {
        table.add_row(throughput_row(name, throughput));
    }
    align_right(&mut table, 1..5);
    rendered(&mut table)
}

fn throughput_row(name: &str, throughput: Throughput) -> [String; 5] {
    [
        name.to_owned(),
        format_count(throughput.records_per_second.round() as u64),
        format!("{:.1}", throughput.megabytes_per_second),
        format_count(throughput.records),
        format_bytes(throughput.bytes as f64),
    ]
}

fn sentences(report: &Report) -> Vec<String> {
    let verification = &report.verification;
    let mut sentences = vec![format!(
        "verified   {} of {} records read; lost {}, duplicated {}, reordered {}, altered {}{}",
        format_count(verification.received),
        format_count(verification.expected),
        verification.lost,
        verification.duplicated,
        verification.reordered,
        verification.corrupt,
        if verification.foreign > 0 {
            format!(" ({} of other programs)", verification.foreign)
        } else {
            String::new()
        },
    )];
    sentences.extend(report.produced.as_ref().map(sends));
    sentences.extend(report.consumed.as_ref().and_then(passes));
    let busy = report.generator.thread_busy.iter().map(|busy| format!("{:.0} %", busy * 100.0));
    let lag = report.generator.send_lag.as_ref().and_then(|lag| lag.nanoseconds("p99"));
    sentences.push(format!(
        "generator  busy {} ({}){}",
        busy.collect::<Vec<_>>().join(", "),
        report.generator.drivers.join(", "),
        lag.map_or_else(String::new, |lag| format!("; own send lag p99 {}", format_nanoseconds(lag))),
    ));
    if let Some(cost) = &report.broker.process {
        let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        sentences.push(format!(
            "broker     pid {}: {:.2} CPU s = {} s/GB = {} s per 10^6 records; memory {} -> {}",
            cost.pid,
            cost.cpu_seconds,
            figure(cost.cpu_seconds_per_gigabyte),
            figure(cost.cpu_seconds_per_million_records),
            format_bytes(cost.resident_bytes_before as f64),
            format_bytes(cost.resident_bytes_after as f64),
        ));
    }
    if has_marks(report) {
        sentences.push(format!("* fewer than {FEW_RECORDS} records were slower: do not rely on it"));
    }
    sentences
}

fn sends(produced: &ProducedReport) -> String {
    let wait = produced.window_wait.as_ref().and_then(|wait| wait.nanoseconds("p99"));
    format!(
        "sends      {} batches, {} late by over 1 ms, {} sent again; p99 wait for room in the window {}",
        format_count(produced.batches),
        format_count(produced.late_batches),
        format_count(produced.retried_batches),
        wait.map_or_else(|| "-".to_owned(), format_nanoseconds),
    )
}

fn passes(consumed: &ConsumedReport) -> Option<String> {
    (consumed.passes > 0).then(|| format!("reads      the whole topic {} times", consumed.passes))
}

fn has_marks(report: &Report) -> bool {
    let produced = report.produced.iter().flat_map(|produced| [&produced.acknowledged, &produced.service]);
    let consumed = report.consumed.iter().flat_map(|consumed| [&consumed.end_to_end, &consumed.fetch]);
    produced
        .chain(consumed)
        .flatten()
        .flat_map(|summary| &summary.percentiles)
        .any(|value| value.records_above < FEW_RECORDS)
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

fn align_right(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn rendered(table: &mut Table) -> String {
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    let mut text = String::new();
    for row in table.lines() {
        line(&mut text, row.trim_end());
    }
    text
}
