//! How consumed records are printed and how delimiters are written: kcat's `%` formats, escapes, JSON lines.
//!
//! Pure: values in, bytes out. Binary keys and values pass through unchanged.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringlog_protocol::records::reader::Record;
use serde_json::{Map, Value};

/// A text that is not a format or an escape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error(
        "'%{letter}' is not a field; known: %s value, %S its length, %k key, %K its length, %h headers, %t topic, %p partition, %o offset, %T timestamp, %% percent"
    )]
    UnknownField { letter: char },
    #[error("the format ends in a single '%'; write %% for a percent sign")]
    LonePercent,
    #[error("'\\{letter}' is not an escape; known: \\n \\r \\t \\0 \\\\ \\xNN")]
    UnknownEscape { letter: char },
    #[error("the text ends in a single backslash; write \\\\ for one")]
    LoneBackslash,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Vec<u8>),
    Value,
    ValueBytes,
    Key,
    KeyBytes,
    Headers,
    Topic,
    Partition,
    Offset,
    Timestamp,
}

/// A parsed `-f` format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    parts: Vec<Part>,
}

/// Where a record was read.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub topic: &'a str,
    pub partition: i32,
}

impl Format {
    /// Reads kcat's format: `%` fields and backslash escapes.
    ///
    /// # Errors
    /// Unknown fields and escapes, by name.
    pub fn parse(text: &str) -> Result<Format, FormatError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                literal.push(letter);
                continue;
            }
            let field = letters.next().ok_or(FormatError::LonePercent)?;
            if field == '%' {
                literal.push('%');
                continue;
            }
            if !literal.is_empty() {
                parts.push(Part::Literal(unescape(&std::mem::take(&mut literal))?));
            }
            parts.push(part(field)?);
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(unescape(&literal)?));
        }
        Ok(Format { parts })
    }

    /// Key, delimiter, value, delimiter: what `-K` and `-D` ask for.
    pub fn lines(key_delimiter: Option<&[u8]>, delimiter: &[u8]) -> Format {
        let mut parts = Vec::new();
        if let Some(key_delimiter) = key_delimiter {
            parts.extend([Part::Key, Part::Literal(key_delimiter.to_vec())]);
        }
        parts.extend([Part::Value, Part::Literal(delimiter.to_vec())]);
        Format { parts }
    }

    /// Appends one record.
    pub fn write(&self, place: Place<'_>, record: &Record<'_>, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                Part::Literal(bytes) => out.extend_from_slice(bytes),
                Part::Value => out.extend_from_slice(record.value.unwrap_or_default()),
                Part::ValueBytes => push_display(out, length(record.value)),
                Part::Key => out.extend_from_slice(record.key.unwrap_or_default()),
                Part::KeyBytes => push_display(out, length(record.key)),
                Part::Headers => push_headers(out, record),
                Part::Topic => out.extend_from_slice(place.topic.as_bytes()),
                Part::Partition => push_display(out, place.partition),
                Part::Offset => push_display(out, record.offset.0),
                Part::Timestamp => push_display(out, record.timestamp),
            }
        }
    }
}

fn part(field: char) -> Result<Part, FormatError> {
    Ok(match field {
        's' => Part::Value,
        'S' => Part::ValueBytes,
        'k' => Part::Key,
        'K' => Part::KeyBytes,
        'h' => Part::Headers,
        't' => Part::Topic,
        'p' => Part::Partition,
        'o' => Part::Offset,
        'T' => Part::Timestamp,
        letter => return Err(FormatError::UnknownField { letter }),
    })
}

/// The length of a field, -1 for null, as kcat prints it.
fn length(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |bytes| bytes.len() as i64)
}

fn push_display(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    out.extend_from_slice(value.to_string().as_bytes());
}

fn push_headers(out: &mut Vec<u8>, record: &Record<'_>) {
    for (index, header) in record.headers.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(header.key);
        out.push(b'=');
        out.extend_from_slice(header.value.unwrap_or(b"NULL"));
    }
}

/// Turns `\n`, `\t`, `\r`, `\0`, `\\` and `\xNN` into bytes.
///
/// # Errors
/// Unknown escapes, by letter.
pub fn unescape(text: &str) -> Result<Vec<u8>, FormatError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(position) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..position]);
        let mut letters = rest[position + 1..].chars();
        let letter = letters.next().ok_or(FormatError::LoneBackslash)?;
        rest = letters.as_str();
        match letter {
            'n' => out.push(b'\n'),
            't' => out.push(b'\t'),
            'r' => out.push(b'\r'),
            '0' => out.push(0),
            '\\' => out.push(b'\\'),
            'x' => {
                let digits =
                    rest.get(..2).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                out.push(byte.ok_or(FormatError::UnknownEscape { letter })?);
                rest = &rest[2..];
            }
            letter => return Err(FormatError::UnknownEscape { letter }),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// Appends one record as a JSON line. Bytes that are not UTF-8 stand in base64 under `<field>_base64`.
pub fn write_json(place: Place<'_>, record: &Record<'_>, out: &mut Vec<u8>) {
    let mut object = Map::new();
    object.insert("topic".to_owned(), place.topic.into());
    object.insert("partition".to_owned(), place.partition.into());
    object.insert("offset".to_owned(), record.offset.0.into());
    object.insert("timestamp".to_owned(), record.timestamp.into());
    insert_bytes(&mut object, "key", record.key);
    insert_bytes(&mut object, "value", record.value);
    let headers = record.headers.map(|header| {
        let mut entry = Map::new();
        insert_bytes(&mut entry, "key", Some(header.key));
        insert_bytes(&mut entry, "value", header.value);
        Value::Object(entry)
    });
    object.insert("headers".to_owned(), headers.collect());
    push_display(out, Value::Object(object));
    out.push(b'\n');
}

fn insert_bytes(object: &mut Map<String, Value>, field: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => object.insert(field.to_owned(), Value::Null),
        Some((_, Ok(text))) => object.insert(field.to_owned(), text.into()),
        Some((bytes, Err(_))) => object.insert(format!("{field}_base64"), STANDARD.encode(bytes).into()),
    };
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::Offset;
    use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
    use ringlog_protocol::records::reader::{Header, read_batch};

    use super::*;

    fn with_record(record: &NewRecord<'_>, check: impl FnOnce(&Record<'_>)) {
        let mut builder = BatchBuilder::new();
        builder.append(record).expect("one small record fits");
        let options = BatchOptions { base_offset: Offset(42), ..BatchOptions::default() };
        let bytes = builder.finish(&options).expect("the batch has a record");
        let mut scratch = Vec::new();
        let (_, mut records) = read_batch(&bytes, 1 << 20, &mut scratch).expect("just built");
        check(&records.next().expect("one record").expect("it is sound"));
    }

    fn formatted(format: &str, record: &NewRecord<'_>) -> Vec<u8> {
        let format = Format::parse(format).expect(format);
        let mut out = Vec::new();
        with_record(record, |record| format.write(Place { topic: "t", partition: 3 }, record, &mut out));
        out
    }

    fn sample() -> NewRecord<'static> {
        const HEADERS: &[Header<'_>] =
            &[Header { key: b"a", value: Some(b"1") }, Header { key: b"b", value: None }];
        NewRecord { timestamp: 7, key: Some(b"key"), value: Some(b"va\xfflue"), headers: HEADERS }
    }

    #[test]
    fn every_field_is_filled_in() {
        assert_eq!(
            formatted("%t[%p]@%o:%T %k(%K)=%s(%S) %h %%\\n", &sample()),
            b"t[3]@42:7 key(3)=va\xfflue(6) a=1,b=NULL %\n"
        );
        let empty = NewRecord { timestamp: 7, ..NewRecord::default() };
        assert_eq!(formatted("%k(%K)=%s(%S)", &empty), b"(-1)=(-1)");
    }

    #[test]
    fn nonsense_names_what_is_known() {
        assert_eq!(Format::parse("%q"), Err(FormatError::UnknownField { letter: 'q' }));
        assert_eq!(Format::parse("50%"), Err(FormatError::LonePercent));
        assert_eq!(unescape("a\\q"), Err(FormatError::UnknownEscape { letter: 'q' }));
        assert_eq!(unescape("a\\"), Err(FormatError::LoneBackslash));
        assert_eq!(unescape("\\x1"), Err(FormatError::UnknownEscape { letter: 'x' }));
    }

    #[test]
    fn escapes_reach_every_byte() {
        assert_eq!(unescape("a\\n\\t\\r\\0\\\\\\x00\\xFFé"), Ok(b"a\n\t\r\0\\\x00\xff\xc3\xa9".to_vec()));
    }

    #[test]
    fn json_keeps_binary_apart_from_text() {
        let mut out = Vec::new();
        with_record(&sample(), |record| write_json(Place { topic: "t", partition: 3 }, record, &mut out));
        let line: Value = serde_json::from_slice(&out).expect("a JSON line");
        assert_eq!(line["key"], "key");
        assert_eq!(line["value_base64"], "dmH/bHVl");
        assert_eq!(line.get("value"), None);
        assert_eq!(
            (&line["offset"], &line["partition"], &line["timestamp"]),
            (&42.into(), &3.into(), &7.into())
        );
        assert_eq!(line["headers"][1]["value"], Value::Null);
        assert_eq!(out.last(), Some(&b'\n'));
    }
}
