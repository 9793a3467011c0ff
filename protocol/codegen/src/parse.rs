//! The schema notation, as `protocol/schema/README.md` describes it, into the model. Every error names file and line.

use crate::model::{Api, Default, Direction, Field, File, Kind, Range, Struct, Type, Versions};

/// A mistake in a schema file.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct ParseError {
    pub file: String,
    pub line: usize,
    pub message: String,
}

/// Spaces that open one level.
const INDENT: usize = 4;

type Result<T, E = (usize, String)> = std::result::Result<T, E>;

/// Parses the file `file` (its name, for errors and for the module's name) with content `text`.
///
/// # Errors
/// [`ParseError`] for the first mistake.
pub fn parse(file: &str, text: &str) -> Result<File, ParseError> {
    parse_file(file.trim_end_matches(".kafka"), text).map_err(|(line, message)| ParseError {
        file: file.to_owned(),
        line,
        message,
    })
}

/// A line that says something.
struct Line<'t> {
    number: usize,
    depth: usize,
    words: Vec<&'t str>,
    doc: Option<&'t str>,
}

fn lines(text: &str) -> Result<Vec<Line<'_>>> {
    let mut lines = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        let (content, doc) = match raw.split_once(" # ") {
            Some((content, doc)) => (content, Some(doc.trim())),
            None => (raw, None),
        };
        let trimmed = content.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        if content.contains('\t') {
            return Err((number, "tabs are not used here: indent by four spaces".to_owned()));
        }
        let spaces = content.len() - content.trim_start().len();
        if spaces % INDENT != 0 {
            return Err((
                number,
                format!("indented by {spaces} spaces, which is not a multiple of {INDENT}"),
            ));
        }
        lines.push(Line { number, depth: spaces / INDENT, words: trimmed.split_whitespace().collect(), doc });
    }
    Ok(lines)
}

/// A section's word, the direction of what it holds, and what its struct is called beyond the model's name.
type Section = (&'static str, Direction, &'static str);

fn parse_file(module: &str, text: &str) -> Result<File> {
    let lines = lines(text)?;
    let mut cursor = lines.iter();
    let mut next = |what: &str| cursor.next().ok_or((1, format!("the file ends before `{what}`")));
    let head = next("api KEY NAME")?;
    let line = next("versions MIN-MAX")?;
    let ["versions", versions] = line.words.as_slice() else {
        return Err((line.number, "expected `versions MIN-MAX`".to_owned()));
    };
    let versions = match parse_versions(line, versions)? {
        Versions { min, max: Some(max) } => Range { min, max },
        Versions { max: None, .. } => return Err((line.number, "the versions need an end".to_owned())),
    };
    let line = next("flexible MIN+")?;
    let flexible = match line.words.as_slice() {
        ["flexible", "never"] => None,
        ["flexible", versions] => Some(parse_versions(line, versions)?.min),
        _ => return Err((line.number, "expected `flexible MIN+` or `flexible never`".to_owned())),
    };

    let mut rest = &lines[3..];
    let mut models = Vec::new();
    for (mut model, sections) in plan(module, head, versions, flexible)? {
        for section in sections {
            rest = add_section(&mut model, section, rest, lines.len())?;
        }
        model.compute_ranges()?;
        check_tags(&model)?;
        models.push(model);
    }
    match rest.first() {
        Some(line) => Err((line.number, "nothing is expected after the last section".to_owned())),
        None => Ok(File { module: module.to_owned(), models }),
    }
}

/// The models that the file's first line promises, and the sections of each.
fn plan(
    module: &str,
    head: &Line<'_>,
    versions: Range,
    flexible: Option<i16>,
) -> Result<Vec<(Api, Vec<Section>)>> {
    let model = |kind, name: String, versions, flexible| {
        let module = module.to_owned();
        Api { module, kind, name, versions, flexible, structs: Vec::new() }
    };
    Ok(match head.words.as_slice() {
        ["api", key, name] => {
            let kind = Kind::Api { key: number(head, key)? };
            let sections = vec![
                ("request", Direction::Request, "Request"),
                ("response", Direction::Response, "Response"),
            ];
            vec![(model(kind, (*name).to_owned(), versions, flexible), sections)]
        }
        ["data", name] => {
            let sections = vec![("fields", Direction::Stored, "")];
            vec![(model(Kind::Data, (*name).to_owned(), versions, flexible), sections)]
        }
        ["record", record_type, name] => {
            let record_type = number(head, record_type)?;
            // Kafka's keys have one version only and are never flexible: two encodings of one key would be two keys.
            let only = Range { min: 0, max: 0 };
            let key = model(Kind::RecordKey { record_type }, format!("{name}Key"), only, None);
            let value = model(Kind::RecordValue { record_type }, format!("{name}Value"), versions, flexible);
            vec![(key, vec![("key", Direction::Stored, "")]), (value, vec![("value", Direction::Stored, "")])]
        }
        _ => {
            let expected = "expected `api KEY NAME`, `record TYPE NAME` or `data NAME`";
            return Err((head.number, expected.to_owned()));
        }
    })
}

/// Reads one section; gives back the lines behind it.
fn add_section<'l, 't>(
    model: &mut Api,
    (word, direction, suffix): Section,
    lines: &'l [Line<'t>],
    line_max: usize,
) -> Result<&'l [Line<'t>]> {
    let Some((line, after)) = lines.split_first() else {
        return Err((line_max, format!("the file ends before `{word}`")));
    };
    if line.depth != 0 || line.words != [word] {
        return Err((line.number, format!("expected `{word}`")));
    }
    let length = after.iter().take_while(|line| line.depth > 0).count();
    let (body, after) = after.split_at(length);
    let name = format!("{}{suffix}", model.name);
    add_struct(model, Header { name, direction, is_top: true, line: line.number }, body, 1)?;
    Ok(after)
}

/// What is known of a struct before its fields.
struct Header {
    name: String,
    direction: Direction,
    is_top: bool,
    line: usize,
}

fn add_struct(api: &mut Api, header: Header, body: &[Line<'_>], depth: usize) -> Result<()> {
    let Header { name, direction, is_top, line } = header;
    if api.structs.iter().any(|item| item.name == name) {
        return Err((line, format!("the struct {name} is defined twice")));
    }
    let position = api.structs.len();
    let range = api.versions;
    api.structs.push(Struct { name: name.clone(), fields: Vec::new(), direction, is_top, range });
    let mut fields: Vec<Field> = Vec::new();
    let mut rest = body;
    while let Some((line, after)) = rest.split_first() {
        if line.depth != depth {
            return Err((
                line.number,
                format!("expected a field of {name} at depth {depth}, found depth {}", line.depth),
            ));
        }
        let length = after.iter().take_while(|line| line.depth > depth).count();
        let (children, after) = after.split_at(length);
        let field = parse_field(line)?;
        if fields.iter().any(|known| known.name == field.name) {
            return Err((line.number, format!("the field {} is defined twice", field.name)));
        }
        match (field.kind.struct_name(), children.is_empty()) {
            (Some(child), false) => {
                let header = Header { name: child.to_owned(), direction, is_top: false, line: line.number };
                add_struct(api, header, children, depth + 1)?;
            }
            (Some(child), true) if api.structs.iter().all(|item| item.name != child) => {
                return Err((line.number, format!("{child} is neither a type nor a struct with fields")));
            }
            (None, false) => {
                return Err((line.number, format!("{} is not a struct and has no fields", field.name)));
            }
            _ => {}
        }
        fields.push(field);
        rest = after;
    }
    if fields.is_empty() && !is_top {
        return Err((line, format!("the struct {name} has no fields")));
    }
    api.structs[position].fields = fields;
    Ok(())
}

fn parse_field(line: &Line<'_>) -> Result<Field> {
    let [name, kind, versions, attributes @ ..] = line.words.as_slice() else {
        return Err((line.number, "expected `NAME TYPE VERSIONS [ATTRIBUTES]`".to_owned()));
    };
    let is_snake = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !is_snake || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err((line.number, format!("field names are in snake_case, not {name:?}")));
    }
    let mut field = Field {
        name: (*name).to_owned(),
        kind: parse_type(line, kind)?,
        versions: parse_versions(line, versions)?,
        nullable: None,
        tag: None,
        default: None,
        is_ignorable: false,
        doc: line.doc.map(str::to_owned),
        line: line.number,
    };
    let mut words = attributes.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or((line.number, format!("`{word}` needs a value")));
        match *word {
            "nullable" => field.nullable = Some(parse_versions(line, value()?)?),
            "tag" => field.tag = Some(number(line, value()?)?),
            "default" => field.default = Some(parse_default(line, value()?)?),
            "ignorable" => field.is_ignorable = true,
            _ => return Err((line.number, format!("unknown attribute {word:?}"))),
        }
    }
    check_field(&field)?;
    Ok(field)
}

fn check_field(field: &Field) -> Result<()> {
    let fail = |message: &str| Err((field.line, format!("{}: {message}", field.name)));
    if field.nullable.is_some() && !field.kind.can_be_null() {
        return fail("this type cannot be null");
    }
    let fits = match (&field.default, &field.kind) {
        (None, _) | (Some(Default::True), Type::Bool) => true,
        (Some(Default::Null), _) => field.nullable.is_some(),
        (Some(Default::Number(value)), kind) => match kind {
            Type::Int8 => i8::try_from(*value).is_ok(),
            Type::Int16 => i16::try_from(*value).is_ok(),
            Type::Uint16 => u16::try_from(*value).is_ok(),
            Type::Int32 => i32::try_from(*value).is_ok(),
            Type::Uint32 => u32::try_from(*value).is_ok(),
            Type::Int64 => true,
            _ => false,
        },
        (Some(Default::True), _) => false,
    };
    if fits { Ok(()) } else { fail("the default does not fit the type") }
}

/// Tags exist in flexible versions only, and once each.
fn check_tags(api: &Api) -> Result<()> {
    for item in &api.structs {
        let mut seen = Vec::new();
        for field in &item.fields {
            let Some(tag) = field.tag else { continue };
            let within = item.range.intersect(field.versions).expect("compute_ranges checked it");
            if !api.flexible_versions().contains(within.min) {
                return Err((
                    field.line,
                    format!("{} is tagged, but version {} is not flexible", field.name, within.min),
                ));
            }
            if seen.contains(&tag) {
                return Err((field.line, format!("tag {tag} is used twice in {}", item.name)));
            }
            seen.push(tag);
        }
    }
    Ok(())
}

fn parse_type(line: &Line<'_>, word: &str) -> Result<Type> {
    if let Some(element) = word.strip_prefix("[]") {
        let element = parse_type(line, element)?;
        if matches!(element, Type::Array(_) | Type::Records) {
            return Err((line.number, format!("{word}: arrays of these are not known to Kafka")));
        }
        return Ok(Type::Array(Box::new(element)));
    }
    Ok(match word {
        "bool" => Type::Bool,
        "int8" => Type::Int8,
        "int16" => Type::Int16,
        "uint16" => Type::Uint16,
        "int32" => Type::Int32,
        "uint32" => Type::Uint32,
        "int64" => Type::Int64,
        "float64" => Type::Float64,
        "uuid" => Type::Uuid,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "records" => Type::Records,
        name if name.starts_with(|c: char| c.is_ascii_uppercase()) => Type::Struct(name.to_owned()),
        _ => return Err((line.number, format!("unknown type {word:?}"))),
    })
}

fn parse_versions(line: &Line<'_>, word: &str) -> Result<Versions> {
    let versions = if let Some(min) = word.strip_suffix('+') {
        Versions { min: number(line, min)?, max: None }
    } else if let Some((min, max)) = word.split_once('-') {
        Versions { min: number(line, min)?, max: Some(number(line, max)?) }
    } else {
        let only = number(line, word)?;
        Versions { min: only, max: Some(only) }
    };
    if versions.min < 0 || versions.max.is_some_and(|max| max < versions.min) {
        return Err((line.number, format!("{word:?} is not a range of versions")));
    }
    Ok(versions)
}

fn parse_default(line: &Line<'_>, word: &str) -> Result<Default> {
    match word {
        "null" => Ok(Default::Null),
        "true" => Ok(Default::True),
        _ => number(line, word).map(Default::Number),
    }
}

fn number<T: std::str::FromStr>(line: &Line<'_>, word: &str) -> Result<T> {
    word.parse().map_err(|_| (line.number, format!("{word:?} is not a number that fits here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "api 1 Fetch\nversions 4-18\nflexible 12+\nrequest\n";

    #[track_caller]
    fn check_error(body: &str, expected: &str) {
        let text = format!("{HEAD}{body}");
        match parse("fetch.kafka", &text) {
            Ok(api) => panic!("accepted: {api:?}"),
            Err(error) => assert_eq!(error.to_string(), expected),
        }
    }

    #[test]
    fn mistakes_are_named_with_file_and_line() {
        check_error("    a int33 0+\nresponse\n", "fetch.kafka:5: unknown type \"int33\"");
        check_error("    a int32\nresponse\n", "fetch.kafka:5: expected `NAME TYPE VERSIONS [ATTRIBUTES]`");
        check_error("   a int32 0+\n", "fetch.kafka:5: indented by 3 spaces, which is not a multiple of 4");
        check_error(
            "    a int32 0+\n    a int8 0+\nresponse\n",
            "fetch.kafka:6: the field a is defined twice",
        );
        check_error("    a int32 0-3\nresponse\n", "fetch.kafka:5: no version of the API has the field a");
        check_error(
            "    a int8 0+ default 128\nresponse\n",
            "fetch.kafka:5: a: the default does not fit the type",
        );
        check_error(
            "    a string 0+ default null\nresponse\n",
            "fetch.kafka:5: a: the default does not fit the type",
        );
        check_error("    a int8 0+ nullable 0+\nresponse\n", "fetch.kafka:5: a: this type cannot be null");
        check_error(
            "    a []Thing 0+\nresponse\n",
            "fetch.kafka:5: Thing is neither a type nor a struct with fields",
        );
        check_error(
            "    a int8 0+\n        b int8 0+\nresponse\n",
            "fetch.kafka:5: a is not a struct and has no fields",
        );
        check_error(
            "    a int8 0+ tag 0\nresponse\n",
            "fetch.kafka:5: a is tagged, but version 4 is not flexible",
        );
        check_error(
            "    a int8 12+ tag 0\n    b int8 12+ tag 0\nresponse\n",
            "fetch.kafka:6: tag 0 is used twice in FetchRequest",
        );
        check_error("    a int8 0+ ignored\nresponse\n", "fetch.kafka:5: unknown attribute \"ignored\"");
        check_error(
            "    Name int8 0+\nresponse\n",
            "fetch.kafka:5: field names are in snake_case, not \"Name\"",
        );
        check_error("    a int8 0+\n", "fetch.kafka:5: the file ends before `response`");
    }

    #[test]
    fn a_file_becomes_structs_with_the_versions_they_occur_in() {
        let body = "    a []Thing 5+ nullable 7-8  # what\n        b int8 0+ default -1\nresponse\n    c []Thing 13+\n";
        let file = parse("fetch.kafka", &format!("{HEAD}{body}")).expect("valid");
        let api = &file.models[0];
        let names: Vec<_> = api.structs.iter().map(|item| (item.name.as_str(), item.range)).collect();
        let range = |min, max| Range { min, max };
        assert_eq!(
            names,
            [("FetchRequest", range(4, 18)), ("Thing", range(5, 18)), ("FetchResponse", range(4, 18))]
        );
        let field = &api.structs[0].fields[0];
        assert_eq!(field.doc.as_deref(), Some("what"));
        assert_eq!(field.nullable, Some(Versions { min: 7, max: Some(8) }));
    }

    #[test]
    fn a_record_becomes_a_key_of_one_version_and_a_value() {
        let text = "record 5 Member\nversions 0-2\nflexible 1+\nkey\n    group string 0\nvalue\n    epoch int32 0+\n";
        let file = parse("member.kafka", text).expect("valid");
        let [key, value] = &file.models[..] else { panic!("{file:?}") };
        assert_eq!((key.name.as_str(), key.kind), ("MemberKey", Kind::RecordKey { record_type: 5 }));
        assert_eq!((key.versions, key.flexible), (Range { min: 0, max: 0 }, None));
        assert_eq!((value.name.as_str(), value.kind), ("MemberValue", Kind::RecordValue { record_type: 5 }));
        assert_eq!((value.versions, value.flexible), (Range { min: 0, max: 2 }, Some(1)));
        let error = parse("member.kafka", &text.replace("value", "values")).expect_err("no such section");
        assert_eq!(error.to_string(), "member.kafka:6: expected `value`");
    }

    #[test]
    fn a_struct_named_again_further_down_occurs_in_the_versions_of_both_uses() {
        let body =
            "    a []Thing 5-6\n        b int8 0+\nresponse\n    c Thing 9+ nullable 9+ default null\n";
        let file = parse("fetch.kafka", &format!("{HEAD}{body}")).expect("valid");
        assert_eq!(file.models[0].find("Thing").range, Range { min: 5, max: 18 });
    }
}
