//! Owns making strangers' text safe to print: client ids, topic names and configured values may hold terminal escape
//! sequences, line ends, or text direction marks that would forge a log line.

use std::fmt::{self, Write};

/// Longest text printed from one value, in characters; the rest is counted.
const CHARACTERS_MAX: usize = 512;

/// `text` with every control and invisible formatting character written as `\n`, `\x1b` or `\u{202e}`, and a
/// backslash doubled, so that what is printed is one line and can be read back.
pub fn escaped(text: &str) -> Escaped<'_> {
    Escaped(text)
}

/// The displayed form of [`escaped`].
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, character) in self.0.chars().enumerate() {
            if index == CHARACTERS_MAX {
                let left = self.0.chars().count() - CHARACTERS_MAX;
                return write!(formatter, "... ({left} more characters)");
            }
            write_escaped(formatter, character)?;
        }
        Ok(())
    }
}

/// One character in the form of [`escaped`].
pub fn write_escaped(out: &mut dyn Write, character: char) -> fmt::Result {
    match character {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        '\\' => out.write_str("\\\\"),
        other if other.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(other)),
        other if is_unprintable(other) => write!(out, "\\u{{{:x}}}", u32::from(other)),
        other => out.write_char(other),
    }
}

/// C1 controls (0x9b starts an escape sequence by itself), line and paragraph separators, direction marks, joiners
/// and the byte order mark.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_raw() {
        let check = |text: &str, expected: &str| assert_eq!(escaped(text).to_string(), expected);
        check("plain-client_1", "plain-client_1");
        check("a\nINFO forged", "a\\nINFO forged");
        check("\x1b[2J\x07", "\\x1b[2J\\x07");
        check("\u{9b}31m", "\\u{9b}31m");
        check("\u{202e}gol", "\\u{202e}gol");
        check("back\\slash", "back\\\\slash");
        check("naïve 😀", "naïve 😀");
    }

    #[test]
    fn long_text_is_cut_and_counted() {
        let text = "x".repeat(600);
        assert!(escaped(&text).to_string().ends_with("... (88 more characters)"));
    }

    proptest! {
        #[test]
        fn the_result_is_one_printable_line(text in any::<String>()) {
            let shown = escaped(&text).to_string();
            prop_assert!(shown.chars().all(|character| !character.is_control() && !is_unprintable(character)));
        }
    }
}
