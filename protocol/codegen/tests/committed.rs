//! The committed messages are those of the schema.

use std::process::Command;

#[test]
fn what_is_committed_is_what_the_schema_says() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ringlog-codegen")).arg("--check").output().expect("it was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
