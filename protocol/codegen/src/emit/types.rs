//! Struct definitions, Rust types, defaults, and the test whether a value differs from its default.

use std::fmt::Write as _;

use crate::model::{Api, Default, Direction, Field, Kind, Struct, Type};

/// The Rust type of a field.
pub fn field_type(api: &Api, item: &Struct, field: &Field) -> String {
    if field.kind == Type::Records && item.direction == Direction::Response {
        // It has its own null.
        return "Records<'a>".to_owned();
    }
    let plain = plain_type(api, &field.kind);
    if field.nullable.is_some() { format!("Option<{plain}>") } else { plain }
}

/// The Rust type of a value that is not null.
pub fn plain_type(api: &Api, kind: &Type) -> String {
    match kind {
        Type::Bool => "bool".to_owned(),
        Type::Int8 => "i8".to_owned(),
        Type::Int16 => "i16".to_owned(),
        Type::Uint16 => "u16".to_owned(),
        Type::Int32 => "i32".to_owned(),
        Type::Uint32 => "u32".to_owned(),
        Type::Int64 => "i64".to_owned(),
        Type::Float64 => "f64".to_owned(),
        Type::Uuid => "TopicId".to_owned(),
        Type::String => "&'a str".to_owned(),
        Type::Bytes | Type::Records => "&'a [u8]".to_owned(),
        Type::Struct(name) => {
            let lifetime = if borrows(api, api.find(name)) { "<'a>" } else { "" };
            format!("{name}{lifetime}")
        }
        Type::Array(element) if **element == Type::Int32 => "Int32Array<'a>".to_owned(),
        Type::Array(element) => format!("Vec<{}>", plain_type(api, element)),
    }
}

/// Whether the struct has a lifetime.
pub fn borrows(api: &Api, item: &Struct) -> bool {
    item.fields.iter().any(|field| kind_borrows(api, &field.kind))
}

fn kind_borrows(api: &Api, kind: &Type) -> bool {
    match kind {
        Type::String | Type::Bytes | Type::Records => true,
        Type::Struct(name) => borrows(api, api.find(name)),
        Type::Array(element) => **element == Type::Int32 || kind_borrows(api, element),
        _ => false,
    }
}

fn is_copy(api: &Api, item: &Struct) -> bool {
    item.fields.iter().all(|field| match &field.kind {
        Type::Array(_) => false,
        Type::Records => item.direction == Direction::Request,
        Type::Struct(name) => is_copy(api, api.find(name)),
        _ => true,
    })
}

fn has_float(api: &Api, item: &Struct) -> bool {
    item.fields.iter().any(|field| match &field.kind {
        Type::Float64 => true,
        kind => kind.struct_name().is_some_and(|name| has_float(api, api.find(name))),
    })
}

/// A field's default as an expression.
pub fn default_value(item: &Struct, field: &Field) -> String {
    if field.kind == Type::Records {
        return if item.direction == Direction::Response { "Records::None" } else { "None" }.to_owned();
    }
    let plain = match (&field.default, &field.kind) {
        (Some(Default::Null), _) => return "None".to_owned(),
        (Some(Default::True), _) => "true".to_owned(),
        (Some(Default::Number(value)), kind) => extreme(*value, kind).unwrap_or_else(|| value.to_string()),
        (None, Type::Bool) => "false".to_owned(),
        (None, Type::Float64) => "0.0".to_owned(),
        (None, Type::Uuid) => "TopicId::ZERO".to_owned(),
        (None, Type::String) => "\"\"".to_owned(),
        (None, Type::Bytes) => "&[]".to_owned(),
        (None, Type::Struct(name)) => format!("{name}::default()"),
        (None, Type::Array(element)) if **element == Type::Int32 => "Int32Array::default()".to_owned(),
        (None, Type::Array(_)) => "Vec::new()".to_owned(),
        (None, _) => "0".to_owned(),
    };
    if field.nullable.is_some() { format!("Some({plain})") } else { plain }
}

fn extreme(value: i64, kind: &Type) -> Option<String> {
    let (name, min, max) = match kind {
        Type::Int32 => ("i32", i64::from(i32::MIN), i64::from(i32::MAX)),
        Type::Int64 => ("i64", i64::MIN, i64::MAX),
        _ => return None,
    };
    match value {
        value if value == min => Some(format!("{name}::MIN")),
        value if value == max => Some(format!("{name}::MAX")),
        _ => None,
    }
}

/// An expression: the field differs from its default.
pub fn is_set(item: &Struct, field: &Field) -> String {
    let value = format!("self.{}", field.name);
    let is_null = field.default == Some(Default::Null);
    match &field.kind {
        Type::Records if item.direction == Direction::Response => format!("{value} != Records::None"),
        Type::Records => format!("{value}.is_some()"),
        _ if is_null => format!("{value}.is_some()"),
        Type::Bool if field.default.is_some() => format!("!{value}"),
        Type::Bool => value,
        Type::Array(_) if field.nullable.is_some() => {
            format!("{value}.as_ref().is_none_or(|elements| !elements.is_empty())")
        }
        Type::String | Type::Bytes if field.nullable.is_some() => {
            format!("{value}.is_none_or(|value| !value.is_empty())")
        }
        Type::Array(_) | Type::String | Type::Bytes => format!("!{value}.is_empty()"),
        _ => format!("{value} != {}", default_value(item, field)),
    }
}

/// Whether `Default` can be derived: every default is its Rust type's own.
fn is_default_derivable(item: &Struct) -> bool {
    item.fields.iter().all(|field| match (&field.default, field.nullable) {
        (Some(Default::Null), _) => true,
        (Some(_), _) => false,
        (None, None) => true,
        (None, Some(_)) => field.kind == Type::Records,
    })
}

/// The struct and its `Default`.
pub fn definition(api: &Api, item: &Struct) -> String {
    let lifetime = if borrows(api, item) { "<'a>" } else { "" };
    let mut derives = vec!["Debug", "Clone"];
    if is_copy(api, item) {
        derives.push("Copy");
    }
    derives.push("PartialEq");
    if !has_float(api, item) {
        derives.push("Eq");
    }
    let is_derived = is_default_derivable(item);
    if is_derived {
        derives.push("Default");
    }
    let mut text = if item.is_top {
        match (api.kind, item.direction) {
            (Kind::Api { .. }, Direction::Request) => format!("/// The request of the {} API.\n", api.name),
            (Kind::Api { .. }, _) => format!("/// The response of the {} API.\n", api.name),
            (Kind::RecordKey { record_type }, _) => {
                format!("/// The key of records of type {record_type}.\n")
            }
            (Kind::RecordValue { record_type }, _) => {
                format!("/// The value of records of type {record_type}.\n")
            }
            (Kind::Data, _) => format!("/// Kafka's {}.\n", api.name),
        }
    } else if matches!(api.kind, Kind::Api { .. }) {
        format!("/// Part of the {} API.\n", api.name)
    } else {
        format!("/// Part of [`{}`].\n", api.name)
    };
    let _ = writeln!(text, "#[derive({})]\npub struct {}{lifetime} {{", derives.join(", "), item.name);
    for field in &item.fields {
        text += &field_doc(item, field);
        let _ = writeln!(text, "pub {}: {},", field.name, field_type(api, item, field));
    }
    text.push_str("}\n");
    if !is_derived {
        let anonymous = if lifetime.is_empty() { "" } else { "<'_>" };
        let _ =
            write!(text, "\nimpl Default for {}{anonymous} {{\nfn default() -> Self {{\nSelf {{", item.name);
        for field in &item.fields {
            let _ = write!(text, "{}: {},", field.name, default_value(item, field));
        }
        text.push_str("}\n}\n}\n");
    }
    text
}

fn field_doc(item: &Struct, field: &Field) -> String {
    let mut text = String::new();
    if let Some(doc) = &field.doc {
        let mut chars = doc.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase()).into_iter();
        let sentence: String = first.chain(chars).collect();
        let _ = writeln!(text, "/// {sentence}.");
    }
    let within = item.range.intersect(field.versions).expect("compute_ranges checked it");
    if within != item.range {
        let range = match within.max == item.range.max {
            true => format!("{}+", within.min),
            false => format!("{}-{}", within.min, within.max),
        };
        let blank = if text.is_empty() { "" } else { "///\n" };
        let dropped = if field.is_ignorable { "dropped in others" } else { "refused in others" };
        let _ = writeln!(text, "{blank}/// Versions {range}, {dropped}.");
    }
    text
}
