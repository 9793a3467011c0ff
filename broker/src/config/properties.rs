//! Owns the reading of `server.properties` text: Java's properties syntax with the line of each entry. Knows no key
//! and no file system.

use thiserror::Error;

/// One `key=value` of a properties text, unescaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    pub key: String,
    /// Trimmed on both sides: Java keeps trailing blanks, but Kafka's own `ConfigDef` trims them.
    pub value: String,
    /// The line on which the entry starts, from 1.
    pub line: u32,
}

/// A line that is not properties syntax.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PropertiesError {
    #[error("line {line}: `\\u` must be followed by four hexadecimal digits")]
    BadUnicodeEscape { line: u32 },
    #[error("line {line}: a value without a key; an entry is written key=value")]
    EmptyKey { line: u32 },
}

/// Reads the whole text (`java.util.Properties.load`: comments `#` and `!`, separators `=`, `:` or blanks, escapes,
/// continuation lines). Every bad line is reported, not the first only. Later entries of one key come later in the
/// list; the caller decides that the last one wins.
pub fn parse(text: &str) -> (Vec<Property>, Vec<PropertiesError>) {
    let mut properties = Vec::new();
    let mut errors = Vec::new();
    let mut lines = natural_lines(text).peekable();
    while let Some((line, first)) = lines.next() {
        let first = first.trim_start_matches(is_blank);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = String::from(first);
        while ends_with_continuation(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(is_blank)),
                None => break,
            }
        }
        match parse_entry(&logical, line) {
            Ok(property) => properties.push(property),
            Err(error) => errors.push(error),
        }
    }
    (properties, errors)
}

/// Lines end at `\n`, `\r` or `\r\n`, as in Java.
fn natural_lines(text: &str) -> impl Iterator<Item = (u32, &str)> {
    let mut rest = Some(text);
    let mut line = 0;
    std::iter::from_fn(move || {
        let current = rest?;
        line += 1;
        match current.find(['\n', '\r']) {
            Some(end) => {
                let (head, tail) = current.split_at(end);
                rest = Some(tail.strip_prefix("\r\n").unwrap_or_else(|| tail.split_at(1).1));
                Some((line, head))
            }
            None => {
                rest = None;
                Some((line, current))
            }
        }
    })
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\u{c}')
}

/// An odd number of backslashes at the end: the last one escapes the line end.
fn ends_with_continuation(line: &str) -> bool {
    line.chars().rev().take_while(|character| *character == '\\').count() % 2 == 1
}

fn parse_entry(logical: &str, line: u32) -> Result<Property, PropertiesError> {
    let mut escaped = false;
    let key_end = logical
        .find(|character: char| {
            let ends = !escaped && (is_blank(character) || matches!(character, '=' | ':'));
            escaped = !escaped && character == '\\';
            ends
        })
        .unwrap_or(logical.len());
    let (raw_key, rest) = logical.split_at(key_end);
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    let key = unescape(raw_key, line)?;
    if key.is_empty() {
        return Err(PropertiesError::EmptyKey { line });
    }
    let value = unescape(rest.trim_start_matches(is_blank), line)?;
    Ok(Property { key, value: value.trim().to_owned(), line })
}

fn unescape(raw: &str, line: u32) -> Result<String, PropertiesError> {
    let mut units: Vec<u16> = Vec::new();
    let mut characters = raw.chars();
    let mut pair = [0u16; 2];
    while let Some(character) = characters.next() {
        if character != '\\' {
            units.extend_from_slice(character.encode_utf16(&mut pair));
            continue;
        }
        match characters.next() {
            Some('t') => units.push(u16::from(b'\t')),
            Some('n') => units.push(u16::from(b'\n')),
            Some('r') => units.push(u16::from(b'\r')),
            Some('f') => units.push(0x0c),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                let valid = digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| valid);
                units.push(unit.ok_or(PropertiesError::BadUnicodeEscape { line })?);
            }
            Some(other) => units.extend_from_slice(other.encode_utf16(&mut pair)),
            None => {}
        }
    }
    // Two `\u` escapes may form one surrogate pair; a lone half is not a character.
    String::from_utf16(&units).map_err(|_| PropertiesError::BadUnicodeEscape { line })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: &[(&str, &str, u32)]) {
        let (properties, errors) = parse(text);
        assert_eq!(errors, vec![], "{text:?}");
        let found: Vec<_> = properties.iter().map(|p| (p.key.as_str(), p.value.as_str(), p.line)).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn separators_comments_and_blanks() {
        check("a=b", &[("a", "b", 1)]);
        check("  a : b \n# c=d\n! e=f\n\n\tg h", &[("a", "b", 1), ("g", "h", 5)]);
        check("listeners=PLAINTEXT://:9092", &[("listeners", "PLAINTEXT://:9092", 1)]);
        check("empty=\nalone", &[("empty", "", 1), ("alone", "", 2)]);
        check("a=b=c", &[("a", "b=c", 1)]);
        check("a = = b", &[("a", "= b", 1)]);
        check("x=1\r\ny=2\rz=3", &[("x", "1", 1), ("y", "2", 2), ("z", "3", 3)]);
        check("", &[]);
    }

    #[test]
    fn continuation_lines_keep_the_first_line_number() {
        check("a=1,\\\n   2,\\\n\t3\nb=4", &[("a", "1,2,3", 1), ("b", "4", 4)]);
        check("a=even\\\\\nb=1", &[("a", "even\\", 1), ("b", "1", 2)]);
        check("a=last\\", &[("a", "last", 1)]);
        // A comment is never continued, and a continuation is never a comment.
        check("# no \\\na=1\\\n#2", &[("a", "1#2", 2)]);
    }

    #[test]
    fn escapes() {
        check(r"a\=b\ c\:d=e\tf", &[("a=b c:d", "e\tf", 1)]);
        check(r"a=\u00e9\ud83d\ude00", &[("a", "é😀", 1)]);
        check(r"path=C\:\\data\q", &[("path", r"C:\dataq", 1)]);
        check("naïve=ü", &[("naïve", "ü", 1)]);
    }

    #[test]
    fn every_bad_line_is_reported() {
        let (properties, errors) = parse("a=\\u12\n=b\nc=\\ud83d\nok=1\n: 2");
        assert_eq!(properties.len(), 1);
        assert_eq!(
            errors,
            vec![
                PropertiesError::BadUnicodeEscape { line: 1 },
                PropertiesError::EmptyKey { line: 2 },
                PropertiesError::BadUnicodeEscape { line: 3 },
                PropertiesError::EmptyKey { line: 5 },
            ]
        );
    }

    /// What `java.util.Properties.store` would write for a value.
    fn escape(text: &str, key: bool) -> String {
        let mut out = String::new();
        for (index, character) in text.chars().enumerate() {
            match character {
                ' ' if key || index == 0 => out.push_str("\\ "),
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\u{c}' => out.push_str("\\f"),
                '\\' | '=' | ':' | '#' | '!' => {
                    out.push('\\');
                    out.push(character);
                }
                other => out.push(other),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn never_panics_and_never_grows(text in any::<String>()) {
            let (properties, _) = parse(&text);
            let total: usize = properties.iter().map(|p| p.key.len() + p.value.len()).sum();
            // A `\u` escape of six bytes makes three at most.
            prop_assert!(total <= text.len());
        }

        #[test]
        fn stored_entries_are_read_back(entries in prop::collection::vec(("[^\u{0}]{1,12}", "\\PC{0,20}"), 0..8)) {
            let text: String = entries.iter().map(|(k, v)| format!("{}={}\n", escape(k, true), escape(v, false))).collect();
            let (properties, errors) = parse(&text);
            prop_assert_eq!(errors, vec![]);
            prop_assert_eq!(properties.len(), entries.len());
            for (property, (key, value)) in properties.iter().zip(&entries) {
                prop_assert_eq!(&property.key, key);
                prop_assert_eq!(property.value.as_str(), value.trim());
            }
        }
    }
}
