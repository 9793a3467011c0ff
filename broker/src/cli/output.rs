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

/// The `s` of a noun.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
