//! How verbs print what they found: tables and JSON. Owns the look of both; what stands in them is each verb's.

use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    Json,
}

/// A table without lines.
pub(super) fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

/// For numbers.
pub(super) fn align_right(table: &mut Table, columns: &[usize]) {
    for column in columns {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The text, without spaces at the ends of lines.
pub(super) fn rendered(table: &mut Table) -> String {
    table.column_iter_mut().for_each(|column| {
        column.set_padding((0, 2));
    });
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A size as people read it: `512 B`, `1.5 KiB`, `20.0 GiB`.
pub(super) fn byte_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut scaled, mut unit) = (bytes as f64 / 1024.0, 0);
    // What would be printed as 1024.0 is 1.0 of the next.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        (scaled, unit) = (scaled / 1024.0, unit + 1);
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// The `s` of a noun.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_and_at_most_four_digits_before_the_point() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            ((1 << 20) - 100, "1023.9 KiB"),
            (20 << 30, "20.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(byte_size(bytes), expected, "{bytes}");
        }
    }
}
