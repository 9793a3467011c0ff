//! `bench history` against a broker of this binary, and `bench verify` over what it wrote: from the shell's side.

use std::fs;
use std::path::Path;
use std::process::Output;

use process::{Broker, ringlog};
use serde_json::Value;

mod process;

/// An in-memory broker.
fn start() -> Broker {
    Broker::serve(&["--ephemeral", "--shards", "2", "--no-pin"])
}

fn bench(arguments: &[&str]) -> Output {
    ringlog(&["bench"]).args(arguments).output().expect("the binary runs")
}

fn verify(path: &Path) -> (Option<i32>, Value, String) {
    let path = path.to_str().expect("a temporary path is text");
    let output = bench(&["verify", "--acks-1-durable", "-o", "json", path]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), stderr)
}

fn count(verdict: &Value, name: &str) -> u64 {
    verdict.get("counts").and_then(|counts| counts.get(name)).and_then(Value::as_u64).unwrap_or_default()
}

#[test]
fn what_clients_saw_is_written_and_judged() {
    let broker = start();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("history.jsonl");
    let out = path.to_str().expect("a temporary path is text");
    // This seed draws producers of each kind.
    let arguments = ["history", "-b", broker.address(), "--out", out, "--duration", "2s", "--producers", "8"];
    let output =
        bench(&[&arguments[..], &["--rate", "600", "--seed", "7", "--record-size-max", "16KiB"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    let (code, verdict, stderr) = verify(&path);
    assert_eq!(code, Some(0), "{stderr} {verdict:#}");
    assert_eq!(verdict.get("has_final_read"), Some(&Value::Bool(true)));
    // The sends that were damaged on purpose were refused, and none of them was read.
    assert!(count(&verdict, "sends_fail") > 0, "{verdict:#}");
    assert!(count(&verdict, "sends_ok") > 300, "{verdict:#}");
    assert!(count(&verdict, "values_read") >= count(&verdict, "values_acknowledged"), "{verdict:#}");
    let text = fs::read_to_string(&path).expect("the history is text");
    for acks in ["\"all\"", "\"1\"", "\"0\""] {
        assert!(text.contains(&format!("\"acks\":{acks}")), "no producer with acks={acks}");
    }

    // An acknowledgement more than there are records is a loss.
    let line = r#"{"op":"send","process":7000,"outcome":"ok","partition":0,"offset":9000000,"values":[9000000],"acks":"all"}"#;
    fs::write(&path, format!("{text}{line}\n")).expect("the file can be written");
    let (code, verdict, _) = verify(&path);
    assert_eq!(code, Some(1));
    assert_eq!(verdict.pointer("/anomalies/0/rule"), Some(&Value::from("unseen")), "{verdict:#}");

    // Half a line is named by its number.
    fs::write(&path, format!("{text}{}", &line[..30])).expect("the file can be written");
    let (code, _, stderr) = verify(&path);
    assert_eq!(code, Some(2));
    let number = text.lines().count() + 1;
    assert!(stderr.contains(&format!("history.jsonl:{number}: ")), "{stderr}");
}
