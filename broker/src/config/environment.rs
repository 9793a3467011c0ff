//! Owns the rule between environment variables and keys. It never reads the environment itself.

/// What our variables start with.
pub const PREFIX: &str = "RINGLOG_";

/// Names the variable that holds the path of the properties file, as `--config` does; no key.
pub const CONFIG_FILE: &str = "RINGLOG_CONFIG";

/// The variable of a key, by the rule of Apache Kafka's container image: `.` becomes `_`, `_` becomes `__`, `-`
/// becomes `___`, all upper case. The `ringlog.` of our own keys is not repeated after the prefix.
pub fn variable_of(key: &str) -> String {
    let mut variable = String::from(PREFIX);
    for character in key.strip_prefix("ringlog.").unwrap_or(key).chars() {
        match character {
            '.' => variable.push('_'),
            '_' => variable.push_str("__"),
            '-' => variable.push_str("___"),
            other => variable.extend(other.to_uppercase()),
        }
    }
    variable
}

/// The key that a variable names, before it is looked up; `None` for a variable that is not ours.
/// `RINGLOG_LOG_DIRS` is `log.dirs`; the caller also tries `ringlog.` in front.
pub fn key_of(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    let mut key = String::new();
    let mut underscores = 0;
    for character in name.chars() {
        if character == '_' {
            underscores += 1;
            continue;
        }
        push_underscores(&mut key, underscores);
        underscores = 0;
        key.extend(character.to_lowercase());
    }
    push_underscores(&mut key, underscores);
    Some(key)
}

/// The image's rule reads a run from the left: three are a dash, two an underscore, one a dot.
fn push_underscores(key: &mut String, mut count: usize) {
    while count > 0 {
        let (character, used) = match count {
            1 => ('.', 1),
            2 => ('_', 2),
            _ => ('-', 3),
        };
        key.push(character);
        count -= used;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::keys;

    #[test]
    fn rule_of_the_image() {
        assert_eq!(variable_of("log.dirs"), "RINGLOG_LOG_DIRS");
        assert_eq!(variable_of("a_b-c.d"), "RINGLOG_A__B___C_D");
        assert_eq!(variable_of("ringlog.shards"), "RINGLOG_SHARDS");
        assert_eq!(key_of("RINGLOG_A__B___C_D").as_deref(), Some("a_b-c.d"));
        assert_eq!(key_of("RINGLOG_LOG_DIRS").as_deref(), Some("log.dirs"));
        assert_eq!(key_of("KAFKA_LOG_DIRS"), None);
        assert_eq!(key_of("PATH"), None);
    }

    #[test]
    fn every_key_is_reached_by_its_variable() {
        for key in keys::ALL {
            let decoded = key_of(&variable_of(key.name)).expect("the prefix is ours");
            let found = keys::find_variable(&decoded).map(|found| found.name);
            assert_eq!(found, Some(key.name), "{decoded}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(words in prop::collection::vec("[a-z0-9]{1,8}", 1..6), separators in prop::collection::vec("[._-]", 6)) {
            let mut key = String::from("k.");
            for (index, word) in words.iter().enumerate() {
                if index > 0 {
                    key.push_str(&separators[index]);
                }
                key.push_str(word);
            }
            prop_assert_eq!(key_of(&variable_of(&key)), Some(key));
        }
    }
}
