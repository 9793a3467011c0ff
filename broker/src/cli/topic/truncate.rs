//! `ringlog topic truncate`: deletes the oldest records of a topic. Owns its arguments and what it prints.

use std::collections::BTreeMap;

use ringlog_bench::client::Client;
use serde::Serialize;

use super::super::confirm::confirm;
use super::{Outcome, VerbError, align_right, new_table, plural, rendered};

/// DeleteRecords' offset for "all that is committed".
const ALL_COMMITTED: i64 = -1;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(value_name = "NAME")]
    name: String,
    /// First offset to keep, or `end` to keep none of the records that are there now
    #[arg(long, value_name = "OFFSET|end", value_parser = parse_before)]
    before: Before,
    /// A partition, may be repeated; left out = each of the topic
    #[arg(short, long = "partition", value_name = "N")]
    partitions: Vec<i32>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Offset(i64),
    End,
}

fn parse_before(text: &str) -> Result<Before, String> {
    if text == "end" {
        return Ok(Before::End);
    }
    match text.parse() {
        Ok(offset) if offset >= 0 => Ok(Before::Offset(offset)),
        _ => Err(format!("'{text}' is neither an offset, 0 or more, nor 'end'")),
    }
}

#[derive(Debug, Serialize)]
struct TruncatedPartition {
    partition: i32,
    /// The first that is left.
    earliest_offset: i64,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<Outcome, VerbError> {
    let Args { name, before, mut partitions, yes } = args;
    if partitions.is_empty() {
        partitions = client.topic(&name).await?.partitions.keys().copied().collect();
    }
    let offset = match before {
        Before::Offset(offset) => offset,
        Before::End => ALL_COMMITTED,
    };
    if !yes {
        confirm(&question(&name, before, partitions.len()))?;
    }
    let wanted: BTreeMap<i32, i64> = partitions.iter().map(|partition| (*partition, offset)).collect();
    let left = client.delete_records(&name, &wanted).await?;
    let truncated: Vec<TruncatedPartition> = left
        .into_iter()
        .map(|(partition, earliest_offset)| TruncatedPartition { partition, earliest_offset })
        .collect();
    let mut table = new_table(&["PARTITION", "EARLIEST"]);
    align_right(&mut table, &[0, 1]);
    for partition in &truncated {
        table.add_row([partition.partition.to_string(), partition.earliest_offset.to_string()]);
    }
    let table = format!("truncated topic {name}\n{}", rendered(&mut table));
    Ok(Outcome { table, json: serde_json::to_value(truncated)?, failures: Vec::new() })
}

fn question(name: &str, before: Before, partition_count: usize) -> String {
    let records = match before {
        Before::Offset(offset) => format!("the records below offset {offset}"),
        Before::End => "all records".to_owned(),
    };
    format!("delete {records} of {partition_count} partition{} of {name}", plural(partition_count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_or_the_end() {
        assert_eq!(parse_before("0"), Ok(Before::Offset(0)));
        assert_eq!(parse_before("end"), Ok(Before::End));
        for text in ["-1", "End", "", "1k"] {
            assert!(parse_before(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_question_says_what_goes() {
        assert_eq!(
            question("orders", Before::Offset(7), 1),
            "delete the records below offset 7 of 1 partition of orders"
        );
        assert_eq!(question("orders", Before::End, 3), "delete all records of 3 partitions of orders");
    }
}
