//! Topic names and ids: which are legal, and which are too alike (Kafka's `Topic` and `Uuid`).

use ringlog_protocol::ids::TopicId;

/// Longest topic name, in bytes: with `-` and a partition number it must fit a file name of 255.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// Checks a topic name.
///
/// # Errors
/// The text for INVALID_TOPIC_EXCEPTION (17).
pub fn check_topic_name(name: &str) -> Result<(), String> {
    match name {
        "" => return Err("A topic cannot have an empty name.".to_owned()),
        "." | ".." => return Err(format!("A topic cannot be named '{name}': that is a folder's name.")),
        _ => {}
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        let start: String = name.chars().take(64).collect();
        return Err(format!(
            "The topic name '{start}...' is {} bytes long and may be {TOPIC_NAME_BYTES_MAX}.",
            name.len()
        ));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !name.bytes().all(legal) {
        return Err(format!(
            "The topic name '{}' holds what none may: only ASCII letters, digits, '.', '_' and '-' can stand in it.",
            name.escape_default()
        ));
    }
    Ok(())
}

/// True for a legal topic name.
pub fn is_topic_name(name: &str) -> bool {
    check_topic_name(name).is_ok()
}

/// The text for a topic that is not there.
pub(super) fn no_topic(name: &str) -> String {
    format!("There is no topic '{}'.", name.escape_default())
}

/// The text for a topic that stands twice in a request.
pub(super) fn twice(name: &str) -> String {
    format!("The request names topic '{}' twice: name it once.", name.escape_default())
}

/// The spelling that names with `.` and `_` share, for names that have one: metric names write both as `_`, so `a.b` and `a_b` may not
/// stand side by side.
pub(super) fn collision_key(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

/// A topic id from 16 random bytes: a version 4 UUID whose text does not begin with `-`, which command lines would take for an
/// option. Never zero nor otherwise reserved, since its version is set.
pub(super) fn topic_id(mut random: [u8; 16]) -> TopicId {
    // The first of the 22 characters is the upper six bits of the first byte; `-` is 62.
    random[0] &= 0x7f;
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    TopicId(random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_kafkas() {
        for good in ["a", "A.b_c-9", "...", "__consumer_offsets", &"x".repeat(249)] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        for (bad, text) in [
            ("", "A topic cannot have an empty name."),
            (".", "A topic cannot be named '.': that is a folder's name."),
            ("..", "A topic cannot be named '..': that is a folder's name."),
        ] {
            assert_eq!(check_topic_name(bad), Err(text.to_owned()));
        }
        for (bad, shown) in [("a b", "'a b'"), ("a\n", "'a\\n'")] {
            let text = check_topic_name(bad).expect_err("it holds what none may");
            assert!(text.starts_with(&format!("The topic name {shown} holds")), "{text}");
        }
        assert!(!is_topic_name(&"x".repeat(250)));
        assert!(!is_topic_name("naïve"));
    }

    #[test]
    fn dots_and_underscores_collide() {
        assert_eq!(collision_key("a.b_c"), Some("a_b_c".to_owned()));
        assert_eq!(collision_key("a_b.c"), Some("a_b_c".to_owned()));
        assert_eq!(collision_key("abc"), None);
    }

    proptest! {
        #[test]
        fn a_topic_id_is_never_reserved_and_never_looks_like_an_option(random in any::<[u8; 16]>()) {
            let id = topic_id(random);
            prop_assert!(!id.is_zero());
            prop_assert_ne!(id, crate::controller::METADATA_TOPIC_ID);
            prop_assert!(!id.to_string().starts_with('-'));
        }
    }
}
