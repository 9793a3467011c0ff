//! Expressions over topic names (KIP-848): whether one can be read, and which topics it stands for. The engine takes time linear in the
//! text whatever the expression. As in Kafka a name must match as a whole.

use std::sync::Arc;

use super::topics::Topics;

/// Memory of one compiled expression, in bytes: a thousand alternatives of names fit, repetitions of repetitions do not.
const COMPILED_BYTES_MAX: usize = 1024 * 1024;

/// Reads an expression in RE2's syntax.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn compile(text: &str) -> Result<regex::Regex, String> {
    let text = unquoted(text);
    let build = |text: &str| regex::RegexBuilder::new(text).size_limit(COMPILED_BYTES_MAX).build();
    // By itself first: `a)(b` is no expression, though it would be one in brackets.
    build(&text).and_then(|_| build(&format!(r"\A(?:{text})\z"))).map_err(|error| match error {
        regex::Error::CompiledTooBig(max) => format!("it takes more than {max} bytes compiled"),
        // The engine draws the place below the text; its last line says what is wrong.
        error => {
            error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    })
}

/// `\Q...\E`, which RE2 knows and the engine does not, with every character escaped.
fn unquoted(text: &str) -> String {
    let mut parts = text.split(r"\Q");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (quoted, rest) = part.split_once(r"\E").unwrap_or((part, ""));
        plain.push_str(&regex::escape(quoted));
        plain.push_str(rest);
    }
    plain
}

/// The topics that each expression stands for, in the order of the expressions. One that cannot be read stands for none: a record may
/// hold it that another engine wrote.
pub(super) fn resolve(texts: &[Arc<str>], topics: &Topics) -> Vec<Vec<Arc<str>>> {
    let resolved = texts.iter().map(|text| match compile(text) {
        Ok(regex) => {
            let matching = topics.iter().filter(|topic| regex.is_match(&topic.name));
            matching.map(|topic| Arc::clone(&topic.name)).collect()
        }
        Err(_) => Vec::new(),
    });
    resolved.collect()
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::TopicId;

    use super::super::topics::TopicFacts;
    use super::*;

    fn matching(text: &str, names: &[&str]) -> Vec<String> {
        let topics = names
            .iter()
            .zip(1..)
            .map(|(name, number)| Arc::new(TopicFacts::new((*name).into(), TopicId([number; 16]), 1, None)));
        let resolved = resolve(&[text.into()], &Topics::new(1, topics));
        resolved[0].iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn names_match_as_a_whole() {
        assert_eq!(matching("ab*", &["a", "abb", "abc", "xab"]), ["a", "abb"]);
        assert_eq!(matching("a|b", &["a", "ab", "b"]), ["a", "b"]);
        assert_eq!(matching("^a.c$", &["abc", "abcd"]), ["abc"]);
    }

    #[test]
    fn what_is_quoted_stands_for_itself() {
        assert_eq!(matching(r"\Qa.b\E.*", &["a.b", "a.bc", "axb"]), ["a.b", "a.bc"]);
        assert_eq!(matching(r"x\Q.", &["x.", "xy"]), ["x."]);
    }

    #[test]
    fn what_cannot_be_read_is_told_and_matches_nothing() {
        for text in ["[", "a)(b", "(?=a)", r"(a)\1", "*", "(?:a{1000}){1000}"] {
            assert!(compile(text).is_err_and(|message| !message.is_empty()), "{text}");
            assert_eq!(matching(text, &["a"]), [""; 0]);
        }
        assert_eq!(compile("(").expect_err("open"), "unclosed group");
    }
}
