//! Hand-made histories: each bad one breaks exactly the rule that its name begins with, the good ones break none.

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use ringlog_bench::history::{CheckOptions, Checker, Rule, SCHEMA, Verdict, read};

fn histories(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories").join(folder);
    let entries = fs::read_dir(&folder).expect("the folder exists");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_stem().expect("a file has a name").to_string_lossy().into_owned()
}

fn judge(text: &str, options: CheckOptions) -> Result<Verdict, read::HistoryError> {
    let mut checker = Checker::new(options);
    read::feed(&mut checker, "h.jsonl", Cursor::new(text))?;
    Ok(checker.finish())
}

fn judged(path: &Path, options: CheckOptions) -> Verdict {
    let text = fs::read_to_string(path).expect("a history is text");
    judge(&text, options).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_bad_history_breaks_exactly_its_rule() {
    let paths = histories("bad");
    assert!(paths.len() >= 30, "{}", paths.len());
    for path in &paths {
        let name = name_of(path);
        let verdict = judged(path, CheckOptions::default());
        let broken: Vec<&str> = verdict.anomalies.iter().map(|anomaly| anomaly.rule.name()).collect();
        let expected = name.split("--").next().expect("a name has a first part");
        assert_eq!(broken, [expected], "{name}: {:#?}", verdict.anomalies);
        assert!(!verdict.is_clean);
    }
}

#[test]
fn every_rule_has_a_bad_history_and_stands_in_the_schema() {
    let names: Vec<String> = histories("bad").iter().map(|path| name_of(path)).collect();
    for rule in Rule::ALL {
        let prefix = format!("{}--", rule.name());
        assert!(names.iter().any(|name| name.starts_with(&prefix)), "{}", rule.name());
        assert!(SCHEMA.contains(rule.name()), "{}", rule.name());
    }
}

#[test]
fn good_histories_break_no_rule() {
    for path in histories("good") {
        let verdict = judged(&path, CheckOptions::default());
        assert!(verdict.is_clean, "{}: {:#?}", name_of(&path), verdict.anomalies);
    }
}

#[test]
fn acks_1_is_held_to_its_word_only_when_asked() {
    let path =
        histories("good").into_iter().find(|path| name_of(path).starts_with("acks-1")).expect("it exists");
    let strict = CheckOptions { acks_1_is_durable: true, ..CheckOptions::default() };
    let broken: Vec<Rule> = judged(&path, strict).anomalies.iter().map(|anomaly| anomaly.rule).collect();
    assert_eq!(broken, [Rule::InconsistentOffsets, Rule::LostWrite]);
}

#[test]
fn what_is_not_judged_is_said() {
    let line =
        r#"{"op":"send","process":1,"outcome":"ok","partition":3,"offset":0,"values":[1],"acks":"all"}"#;
    let verdict = judge(line, CheckOptions::default()).expect("it is a history");
    assert!(verdict.is_clean && !verdict.has_final_read);
    assert!(verdict.not_judged.first().is_some_and(|text| text.contains("partition 3")), "{verdict:?}");
}

#[test]
fn malformed_lines_are_named_by_their_number() {
    let line =
        r#"{"op":"send","process":1,"outcome":"ok","partition":0,"offset":0,"values":[1],"acks":"all"}"#;
    for (text, number) in [
        (format!("{line}\n\n{{\"op\":"), 3),
        (format!("{line}\n{}", &line[..40]), 2),
        (format!("{line}\n{line}"), 2),
        ("\u{1}".to_owned(), 1),
    ] {
        let error = judge(&text, CheckOptions::default()).expect_err(&text).to_string();
        assert!(error.starts_with(&format!("h.jsonl:{number}: ")), "{error}");
    }
    let bounded = CheckOptions { values_max: 1, ..CheckOptions::default() };
    let two = line.replace("[1]", "[1,2]");
    assert!(judge(&two, bounded).is_err_and(|error| error.to_string().contains("--values-max")));
}

#[test]
fn lag_is_the_time_from_the_answer_to_the_first_read() {
    let text = concat!(
        r#"{"op":"send","process":1,"outcome":"ok","start":0,"end":5000000,"partition":0,"offset":0,"values":[1],"acks":"all"}"#,
        "\n",
        r#"{"op":"poll","process":2,"start":0,"end":47000000,"polled":[{"partition":0,"records":[[0,1]]}]}"#,
    );
    let verdict = judge(text, CheckOptions::default()).expect("it is a history");
    assert_eq!(verdict.lag.iter().map(|lag| lag.worst_ms).collect::<Vec<_>>(), [42]);
}
