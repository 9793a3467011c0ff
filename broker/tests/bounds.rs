//! Bounds that two crates state must be the same, or a setting that is accepted would be refused later.

use ringlog_broker::config::keys::{self, Kind};
use ringlog_shard::limits::{JOURNAL_FILE_BYTES_LIMIT, JOURNAL_FILE_BYTES_MIN};

#[test]
fn journal_file_sizes_are_those_of_storage() {
    let key = keys::find("ringlog.journal.file.bytes").expect("the key is in the table");
    let expected =
        Kind::AutoBytes { minimum: JOURNAL_FILE_BYTES_MIN as i64, maximum: JOURNAL_FILE_BYTES_LIMIT as i64 };
    assert_eq!(key.kind, expected);
}
