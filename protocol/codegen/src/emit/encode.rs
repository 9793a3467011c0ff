//! Writing: `encode` and a helper for tagged fields. Values that the version cannot carry are refused or dropped, as the
//! schema says.

use std::fmt::Write as _;

use super::{Shape, condition, is_outside, statements_by_version, types};
use crate::model::{Api, Direction, Field, Range, Struct, Type};

/// `encode` and its helper.
pub fn functions(api: &Api, item: &Struct) -> String {
    let mut body = String::new();
    for field in &item.fields {
        body += &refuse_field(item, field);
        if field.tag.is_none() {
            body += &write_field(api, item, field, item.range);
        }
    }
    let has_tags = item.fields.iter().any(|field| field.tag.is_some());
    body += &statements_by_version(item.range, &[api.flexible_versions()], |part| {
        match (api.flexible_versions().contains(part.min), has_tags) {
            (false, _) => String::new(),
            (true, false) => "writer.u8(0);".to_owned(),
            (true, true) => "self.encode_tags(writer, version)?;".to_owned(),
        }
    });
    body.push_str("\nOk(())\n");
    let mut text = String::new();
    if item.is_top {
        let (outside, name) = (is_outside(api.versions), &item.name);
        body.insert_str(
            0,
            &format!(
                "if {outside} {{ return Err(EncodeError::UnsupportedVersion {{ message: \
                 \"{name}\", version }}); }}\n"
            ),
        );
        text.push_str("/// Writes the message at `version`.\n///\n/// # Errors\n/// [`EncodeError`] for what the version cannot carry.\n");
    }
    text += &signature(if item.is_top { "pub fn encode" } else { "fn encode" }, &body);
    if has_tags {
        text += &tags_function(api, item);
    }
    text
}

fn signature(name: &str, body: &str) -> String {
    let version = if super::mentions(body, "version") { "version" } else { "_version" };
    format!("{name}(&self, writer: &mut Writer, {version}: i16) -> Result<(), EncodeError> {{\n{body}}}\n\n")
}

fn label(item: &Struct, field: &Field) -> String {
    format!("\"{}.{}\"", item.name, field.name)
}

/// Refuses a value where no version of the part can carry it.
fn refuse_field(item: &Struct, field: &Field) -> String {
    if field.is_ignorable {
        return String::new();
    }
    let (set, label) = (types::is_set(item, field), label(item, field));
    let absent =
        item.range.split(&[field.versions]).into_iter().filter(|part| !field.versions.contains(part.min));
    absent
        .map(|part| {
            let condition = condition(item.range, part).expect("the field is in some version");
            format!("if {condition} && {set} {{ return Err(EncodeError::NotInVersion {{ field: {label}, version }}); }}\n")
        })
        .collect()
}

/// Statements that write the field in the versions of `range` that have it.
fn write_field(api: &Api, item: &Struct, field: &Field, range: Range) -> String {
    let mut cuts = vec![field.versions, api.flexible_versions()];
    cuts.extend(field.nullable);
    let in_versions = |emit: &dyn Fn(Shape) -> String| {
        statements_by_version(range, &cuts, |part| {
            if field.versions.contains(part.min) { emit(shape(api, field, part)) } else { String::new() }
        })
    };
    let Type::Array(element) = &field.kind else {
        return in_versions(&|shape| write_value(item, field, shape)) + "\n";
    };
    // The count depends on more than the elements do: two steps, so that the loop is written once.
    let count = in_versions(&|shape| write_count(item, field, shape));
    let elements = in_versions(&|shape| write_elements(item, field, element, shape));
    format!("{count}\n{elements}\n")
}

fn shape(api: &Api, field: &Field, part: Range) -> Shape {
    Shape {
        is_compact: api.flexible_versions().contains(part.min),
        is_nullable: field.nullable.is_some_and(|nullable| nullable.contains(part.min)),
    }
}

fn write_count(item: &Struct, field: &Field, shape: Shape) -> String {
    let (value, label) = (format!("self.{}", field.name), label(item, field));
    let compact = if shape.is_compact { "compact_" } else { "" };
    match (field.nullable.is_some(), shape.is_nullable) {
        (false, _) => format!("writer.{compact}array_count({label}, {value}.len())?;"),
        (true, true) => {
            let length = format!("{value}.as_ref().map(|elements| elements.len())");
            format!("writer.{compact}nullable_array_count({label}, {length})?;")
        }
        (true, false) => {
            let elements = format!("EncodeError::require({value}.as_ref(), {label}, version)?");
            format!("writer.{compact}array_count({label}, {elements}.len())?;")
        }
    }
}

fn write_elements(item: &Struct, field: &Field, element: &Type, shape: Shape) -> String {
    let (value, label) = (format!("self.{}", field.name), label(item, field));
    let is_optional = field.nullable.is_some();
    if *element == Type::Int32 {
        return match is_optional {
            true => format!("if let Some(elements) = &{value} {{ writer.int32s(elements); }}"),
            false => format!("writer.int32s(&{value});"),
        };
    }
    let statement = match element {
        Type::Struct(_) => "element.encode(writer, version)?;".to_owned(),
        kind => {
            let copied = if matches!(kind, Type::String | Type::Bytes) { "element" } else { "*element" };
            write_plain(kind, Shape { is_nullable: false, ..shape }, &label, copied)
        }
    };
    let elements = if is_optional { format!("{value}.iter().flatten()") } else { format!("&{value}") };
    format!("for element in {elements} {{ {statement} }}")
}

/// A statement that writes a field that is no array.
fn write_value(item: &Struct, field: &Field, shape: Shape) -> String {
    let (value, label) = (format!("self.{}", field.name), label(item, field));
    if field.kind == Type::Records && item.direction == Direction::Response {
        let compact = if shape.is_compact { "compact_" } else { "" };
        return format!("writer.{compact}nullable_records({label}, &{value})?;");
    }
    if let (Type::Struct(_), true) = (&field.kind, field.nullable.is_some()) {
        return if shape.is_nullable {
            // Kafka marks the same thing in two ways.
            let (some, none) = match field.tag {
                Some(_) => ("writer.unsigned_varint(1)", "writer.unsigned_varint(0)"),
                None => ("writer.i8(1)", "writer.i8(-1)"),
            };
            format!(
                "match &{value} {{ Some(value) => {{ {some}; value.encode(writer, version)?; }} None => {none}, }}"
            )
        } else {
            format!("EncodeError::require({value}.as_ref(), {label}, version)?.encode(writer, version)?;")
        };
    }
    if field.nullable.is_some() && !shape.is_nullable {
        // An Option in Rust that must not be null in these versions.
        let required = format!("EncodeError::require({value}, {label}, version)?");
        return write_plain(&field.kind, shape, &label, &required);
    }
    write_plain(&field.kind, shape, &label, &value)
}

/// A statement that writes one value that is no array.
fn write_plain(kind: &Type, shape: Shape, label: &str, value: &str) -> String {
    let compact = if shape.is_compact { "compact_" } else { "" };
    let nullable = if shape.is_nullable { "nullable_" } else { "" };
    match kind {
        Type::Bool => format!("writer.bool({value});"),
        Type::Int8 => format!("writer.i8({value});"),
        Type::Int16 => format!("writer.i16({value});"),
        Type::Uint16 => format!("writer.u16({value});"),
        Type::Int32 => format!("writer.i32({value});"),
        Type::Uint32 => format!("writer.u32({value});"),
        Type::Int64 => format!("writer.i64({value});"),
        Type::Float64 => format!("writer.f64({value});"),
        Type::Uuid => format!("writer.uuid({value});"),
        Type::String => format!("writer.{compact}{nullable}string({label}, {value})?;"),
        Type::Bytes | Type::Records => format!("writer.{compact}{nullable}bytes({label}, {value})?;"),
        Type::Struct(_) => format!("{value}.encode(writer, version)?;"),
        Type::Array(_) => unreachable!("arrays are written by their own functions"),
    }
}

fn tags_function(api: &Api, item: &Struct) -> String {
    let flexible = item.range.intersect(api.flexible_versions()).expect("tags need flexible versions");
    let mut fields: Vec<&Field> = item.fields.iter().filter(|field| field.tag.is_some()).collect();
    fields.sort_by_key(|field| field.tag);
    let (mut tests, mut counts, mut writes) = (String::new(), Vec::new(), String::new());
    for field in fields {
        let within = flexible.intersect(field.versions).expect("compute_ranges checked it");
        let (name, set, label) = (&field.name, types::is_set(item, field), label(item, field));
        let guard = condition(flexible, within).map_or(String::new(), |condition| format!("{condition} && "));
        let _ = writeln!(tests, "let has_{name} = {guard}{set};");
        counts.push(format!("u32::from(has_{name})"));
        let value = write_field(api, item, field, within);
        let tag = field.tag.expect("filtered");
        let _ = writeln!(
            writes,
            "if has_{name} {{ let mark = writer.begin_tag({tag}); {value} writer.end_tag({label}, mark)?; }}"
        );
    }
    let body = format!("{tests}writer.unsigned_varint({});\n{writes}Ok(())\n", counts.join(" + "));
    signature("fn encode_tags", &body)
}
