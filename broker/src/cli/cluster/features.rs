//! `ringlog cluster features`: the levels of features, shown and changed. Owns its arguments, tables and JSON.

use clap::Subcommand;
use ringlog_bench::client::Client;
use ringlog_bench::client::features::{Direction, FeatureState, Features};
use serde::Serialize;

use super::super::output::{align_right, new_table, plural, rendered};
use super::super::shell::{Outcome, VerbError};

const EXAMPLES: &str = "\
Examples:
  ringlog cluster features                         what runs, and what could run
  ringlog cluster features upgrade                 each to this broker's highest
  ringlog cluster features upgrade group.version=1 --dry-run
  ringlog cluster features downgrade group.version=0

A level says what may be written to disk and offered to clients. A newer version of the broker raises none by being started, \
so that the older one can be started again; once a level is raised it cannot. All levels of one call change or none do.

Exit codes: 0 done, 1 refused by the broker or not reached, 2 wrong usage.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Raise levels
    Upgrade {
        /// Features with the level they shall run at; none = each, to the highest that the broker can run
        #[arg(value_name = "NAME=LEVEL", value_parser = parse_level)]
        levels: Vec<(String, i16)>,
        /// Let the broker check the change and make none
        #[arg(long)]
        dry_run: bool,
    },
    /// Lower levels
    Downgrade {
        /// Features with the level they shall run at; 0 = off
        #[arg(required = true, value_name = "NAME=LEVEL", value_parser = parse_level)]
        levels: Vec<(String, i16)>,
        /// Even where something of the cluster's state is lost by it
        #[arg(long)]
        allow_loss: bool,
        /// Let the broker check the change and make none
        #[arg(long)]
        dry_run: bool,
    },
}

fn parse_level(text: &str) -> Result<(String, i16), String> {
    let parsed = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let parsed = parsed.and_then(|(name, level)| Some((name.to_owned(), level.parse::<u16>().ok()?)));
    match parsed.and_then(|(name, level)| Some((name, i16::try_from(level).ok()?))) {
        Some(level) => Ok(level),
        None => Err(format!("'{text}' is not NAME=LEVEL, as in group.version=1")),
    }
}

#[derive(Debug, Serialize)]
struct Shown<'a> {
    epoch: Option<i64>,
    features: Vec<ShownFeature<'a>>,
}

#[derive(Debug, Serialize)]
struct ShownFeature<'a> {
    name: &'a str,
    level: i16,
    lowest: Option<i16>,
    highest: Option<i16>,
}

#[derive(Debug, Serialize)]
struct Changed<'a> {
    dry_run: bool,
    features: Vec<ChangedFeature<'a>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ChangedFeature<'a> {
    name: &'a str,
    from: i16,
    to: i16,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<Outcome, VerbError> {
    let before = client.features().await?;
    let (levels, direction, dry_run) = match args.verb {
        None => return show(&before),
        Some(Verb::Upgrade { levels, dry_run }) if levels.is_empty() => {
            (highest(&before), Direction::Up, dry_run)
        }
        Some(Verb::Upgrade { levels, dry_run }) => (levels, Direction::Up, dry_run),
        Some(Verb::Downgrade { levels, allow_loss, dry_run }) => {
            let direction = if allow_loss { Direction::DownWithLoss } else { Direction::Down };
            (levels, direction, dry_run)
        }
    };
    let wanted: Vec<(&str, i16)> = levels.iter().map(|(name, level)| (name.as_str(), *level)).collect();
    if !wanted.is_empty() {
        client.update_features(&wanted, direction, dry_run).await?;
    }
    let features = wanted.iter().map(|&(name, to)| ChangedFeature { name, from: level(&before, name), to });
    changed(Changed { dry_run, features: features.filter(|feature| feature.from != feature.to).collect() })
}

fn level(features: &Features, name: &str) -> i16 {
    features.features.get(name).map_or(0, |feature| feature.level)
}

/// What runs below the highest level that it could, with that level.
fn highest(features: &Features) -> Vec<(String, i16)> {
    let could = |(name, state): (&String, &FeatureState)| {
        let (_, highest) = state.supported?;
        (state.level < highest).then(|| (name.clone(), highest))
    };
    features.features.iter().filter_map(could).collect()
}

fn show(features: &Features) -> Result<Outcome, VerbError> {
    let mut table = new_table(&["FEATURE", "LEVEL", "SUPPORTED"]);
    align_right(&mut table, &[1]);
    for (name, FeatureState { level, supported }) in &features.features {
        let level = if *level == 0 { "off".to_owned() } else { level.to_string() };
        let supported =
            supported.map_or_else(|| "-".to_owned(), |(lowest, highest)| format!("{lowest}-{highest}"));
        table.add_row([name.clone(), level, supported]);
    }
    let shown = features.features.iter().map(|(name, state)| ShownFeature {
        name,
        level: state.level,
        lowest: state.supported.map(|(lowest, _)| lowest),
        highest: state.supported.map(|(_, highest)| highest),
    });
    let json = serde_json::to_value(Shown { epoch: features.epoch, features: shown.collect() })?;
    let mut text = match features.features.is_empty() {
        true => "the broker reports no features\n".to_owned(),
        false => rendered(&mut table),
    };
    let higher = highest(features).len();
    if higher > 0 {
        let s = plural(higher);
        text.push_str(&format!("{higher} feature{s} could run at a higher level (upgrade raises them)\n"));
    }
    Ok(Outcome { table: text, json, failures: Vec::new() })
}

fn changed(changed: Changed<'_>) -> Result<Outcome, VerbError> {
    let verb = if changed.dry_run { "would run" } else { "runs" };
    let mut table = String::new();
    for ChangedFeature { name, from, to } in &changed.features {
        table.push_str(&format!("{name} {verb} at level {to}, before at {from}\n"));
    }
    if table.is_empty() {
        table.push_str("all run at these levels already\n");
    }
    Ok(Outcome { table, json: serde_json::to_value(changed)?, failures: Vec::new() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Option<Verb>, clap::Error> {
        Cli::try_parse_from(std::iter::once("features").chain(line.split_whitespace()))
            .map(|cli| cli.args.verb)
    }

    fn features() -> Features {
        let state = |level, supported| FeatureState { level, supported };
        let features = BTreeMap::from([
            ("group.version".to_owned(), state(0, Some((0, 1)))),
            ("metadata.version".to_owned(), state(33, Some((7, 33)))),
            ("old.version".to_owned(), state(2, None)),
        ]);
        Features { features, epoch: Some(87) }
    }

    #[test]
    fn verbs_take_levels() {
        assert!(matches!(parse(""), Ok(None)));
        let Ok(Some(Verb::Upgrade { levels, dry_run: true })) = parse("upgrade a=1 b.c=20 --dry-run") else {
            panic!("an upgrade")
        };
        assert_eq!(levels, [("a".to_owned(), 1), ("b.c".to_owned(), 20)]);
        assert!(matches!(parse("upgrade"), Ok(Some(Verb::Upgrade { levels, .. })) if levels.is_empty()));
        let lossy = parse("downgrade a=0 --allow-loss");
        assert!(matches!(lossy, Ok(Some(Verb::Downgrade { allow_loss: true, dry_run: false, .. }))));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "downgrade",
            "upgrade a",
            "upgrade =1",
            "upgrade a=",
            "upgrade a=-1",
            "upgrade a=32768",
            "upgrade a=1 --allow-loss",
            "raise",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_table_names_what_is_off_and_what_could_be_higher() {
        let shown = show(&features()).expect("plain data");
        let lines: Vec<Vec<&str>> =
            shown.table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["group.version", "off", "0-1"]);
        assert_eq!(lines[2], ["metadata.version", "33", "7-33"]);
        assert_eq!(lines[3], ["old.version", "2", "-"]);
        assert!(shown.table.ends_with("\n1 feature could run at a higher level (upgrade raises them)\n"));
        assert_eq!(shown.json["epoch"], 87);
        assert_eq!(
            shown.json["features"][0],
            serde_json::json!({ "name": "group.version", "level": 0, "lowest": 0, "highest": 1 })
        );
        assert_eq!(shown.json["features"][2]["highest"], serde_json::Value::Null);
        assert_eq!(show(&Features::default()).expect("plain data").table, "the broker reports no features\n");
    }

    #[test]
    fn a_change_tells_from_where_to_where() {
        assert_eq!(highest(&features()), [("group.version".to_owned(), 1)]);
        let one = || vec![ChangedFeature { name: "a", from: 0, to: 1 }];
        let done = changed(Changed { dry_run: false, features: one() }).expect("plain data");
        assert_eq!(done.table, "a runs at level 1, before at 0\n");
        assert_eq!(
            done.json,
            serde_json::json!({ "dry_run": false, "features": [{ "name": "a", "from": 0, "to": 1 }] })
        );
        let dry = changed(Changed { dry_run: true, features: one() }).expect("plain data");
        assert_eq!(dry.table, "a would run at level 1, before at 0\n");
        let none = changed(Changed { dry_run: false, features: Vec::new() }).expect("plain data");
        assert_eq!(none.table, "all run at these levels already\n");
    }
}
