//! Reading: `decode`, one helper per array, one for tagged fields, and the smallest size of an array's element.

use std::fmt::Write as _;

use super::{Shape, by_version, condition, is_outside, statements_by_version, types};
use crate::model::{Api, Direction, Field, Range, Struct, Type, Versions};

/// `decode` and its helpers.
pub fn functions(api: &Api, item: &Struct) -> String {
    let mut body = String::new();
    for field in &item.fields {
        let value = if field.tag.is_some() {
            types::default_value(item, field)
        } else {
            by_version(item.range, &cuts(api, field), |part| read_field(api, item, field, part))
        };
        let _ = writeln!(body, "let {} = {value};", local(field));
    }
    let has_tags = item.fields.iter().any(|field| field.tag.is_some());
    let tags = statements_by_version(item.range, &[api.flexible_versions()], |part| {
        match (api.flexible_versions().contains(part.min), has_tags) {
            (false, _) => String::new(),
            (true, false) => format!("reader.skip_tags(\"{}\")?;", item.name),
            (true, true) => "message.decode_tags(reader, version)?;".to_owned(),
        }
    });
    let fields: Vec<String> = item
        .fields
        .iter()
        .map(|field| match local(field) {
            local if local == field.name => local,
            local => format!("{}: {local}", field.name),
        })
        .collect();
    let fields = fields.join(", ");
    if has_tags {
        let _ = write!(body, "let mut message = Self {{ {fields} }};\n{tags}\nOk(message)\n");
    } else {
        let _ = write!(body, "{tags}\nOk(Self {{ {fields} }})\n");
    }
    let mut text = String::new();
    if item.is_top {
        let (outside, name) = (is_outside(api.versions), &item.name);
        body.insert_str(
            0,
            &format!(
                "if {outside} {{ return Err(DecodeError::UnsupportedVersion {{ message: \
                 \"{name}\", version }}); }}\n"
            ),
        );
        let _ = write!(
            text,
            "/// Reads the message at `version`; the reader is then behind it.\n///\n/// # Errors\n/// [`DecodeError`], never a panic.\n"
        );
    }
    let name = if item.is_top { "pub fn decode" } else { "fn decode" };
    text += &signature(api, item, name, "Self", &body);
    for field in &item.fields {
        if let Type::Array(element) = &field.kind
            && **element != Type::Int32
        {
            text += &array_function(api, item, field, element);
        }
    }
    if has_tags {
        text += &tags_function(api, item);
    }
    text
}

fn signature(api: &Api, item: &Struct, name: &str, output: &str, body: &str) -> String {
    let lifetime = if types::borrows(api, item) { "'a" } else { "'_" };
    let version = if super::mentions(body, "version") { "version" } else { "_version" };
    format!(
        "{name}(reader: &mut Reader<{lifetime}>, {version}: i16) -> Result<{output}, DecodeError> {{\n{body}}}\n\n"
    )
}

/// The variable that holds a field's value until the struct is built.
fn local(field: &Field) -> String {
    match field.name.as_str() {
        "reader" | "version" | "message" => format!("{}_", field.name),
        name => name.to_owned(),
    }
}

fn cuts(api: &Api, field: &Field) -> Vec<Versions> {
    let mut cuts = vec![field.versions, api.flexible_versions()];
    cuts.extend(field.nullable);
    cuts
}

fn shape(api: &Api, field: &Field, part: Range) -> Shape {
    Shape {
        is_compact: api.flexible_versions().contains(part.min),
        is_nullable: field.nullable.is_some_and(|nullable| nullable.contains(part.min)),
    }
}

fn label(item: &Struct, field: &Field) -> String {
    format!("\"{}.{}\"", item.name, field.name)
}

/// An expression: the field's value in versions of `part`.
fn read_field(api: &Api, item: &Struct, field: &Field, part: Range) -> String {
    if !field.versions.contains(part.min) {
        return types::default_value(item, field);
    }
    let shape = shape(api, field, part);
    let label = label(item, field);
    match &field.kind {
        Type::Struct(name) if shape.is_nullable => {
            let present = match field.tag {
                Some(_) => format!("reader.is_present_in_tag({label})?"),
                None => format!("reader.is_present({label})?"),
            };
            format!("if {present} {{ Some({name}::decode(reader, version)?) }} else {{ None }}")
        }
        Type::Records if item.direction == Direction::Response => {
            format!("{}.map_or(Records::None, Records::Borrowed)", read(&Type::Bytes, shape, &label))
        }
        Type::Array(element) if **element != Type::Int32 => {
            format!("Self::decode_{}(reader, version)?", field.name)
        }
        kind => {
            let value = read(kind, shape, &label);
            // The Rust type is an Option, but null is not allowed in these versions.
            if field.nullable.is_some() && !shape.is_nullable { format!("Some({value})") } else { value }
        }
    }
}

/// An expression that reads a value.
fn read(kind: &Type, shape: Shape, label: &str) -> String {
    let compact = if shape.is_compact { "compact_" } else { "" };
    let nullable = if shape.is_nullable { "nullable_" } else { "" };
    match kind {
        Type::Bool => format!("reader.bool({label})?"),
        Type::Int8 => format!("reader.i8({label})?"),
        Type::Int16 => format!("reader.i16({label})?"),
        Type::Uint16 => format!("reader.u16({label})?"),
        Type::Int32 => format!("reader.i32({label})?"),
        Type::Uint32 => format!("reader.u32({label})?"),
        Type::Int64 => format!("reader.i64({label})?"),
        Type::Float64 => format!("reader.f64({label})?"),
        Type::Uuid => format!("reader.uuid({label})?"),
        Type::String => format!("reader.{compact}{nullable}string({label})?"),
        Type::Bytes | Type::Records => format!("reader.{compact}{nullable}bytes({label})?"),
        Type::Struct(name) => format!("{name}::decode(reader, version)?"),
        Type::Array(_) => {
            // Of int32 only: others have a function.
            let count = format!("reader.{compact}{nullable}array_count({label})?");
            if shape.is_nullable {
                format!(
                    "match {count} {{ Some(count) => Some(reader.int32s({label}, count)?), None => None }}"
                )
            } else {
                format!("{{ let count = {count}; reader.int32s({label}, count)? }}")
            }
        }
    }
}

fn array_function(api: &Api, item: &Struct, field: &Field, element: &Type) -> String {
    let label = label(item, field);
    let within = item.range.intersect(field.versions).expect("compute_ranges checked it");
    let count = by_version(within, &cuts(api, field), |part| {
        let shape = shape(api, field, part);
        let compact = if shape.is_compact { "compact_" } else { "" };
        match (shape.is_nullable, field.nullable.is_some()) {
            (true, _) => format!("reader.{compact}nullable_array_count({label})?"),
            (false, true) => format!("Some(reader.{compact}array_count({label})?)"),
            (false, false) => format!("reader.{compact}array_count({label})?"),
        }
    });
    let minimum = match element {
        Type::Struct(name) => format!("{name}::minimum_bytes(version)"),
        kind => {
            by_version(within, &[api.flexible_versions()], |part| minimum_of(api, kind, part.min).to_string())
        }
    };
    let value = by_version(within, &[api.flexible_versions()], |part| {
        let is_compact = api.flexible_versions().contains(part.min);
        read(element, Shape { is_compact, is_nullable: false }, &label)
    });
    let is_nullable = field.nullable.is_some();
    let mut body = format!("let count = {count};\n");
    if is_nullable {
        body.push_str("let Some(count) = count else { return Ok(None) };\n");
    }
    let _ = write!(
        body,
        "let mut elements = reader.vector({label}, count, {minimum})?;\nfor _ in 0..count {{ elements.push({value}); }}\n"
    );
    body.push_str(if is_nullable { "Ok(Some(elements))\n" } else { "Ok(elements)\n" });
    let output = types::field_type(api, item, field);
    // Without a lifetime of its own in the output, the elided one suffices.
    let lifetime = if output.contains("'a") { "'a" } else { "'_" };
    let version = if super::mentions(&body, "version") { "version" } else { "_version" };
    format!(
        "fn decode_{}(reader: &mut Reader<{lifetime}>, {version}: i16) -> Result<{output}, DecodeError> {{\n{body}}}\n\n",
        field.name
    )
}

fn tags_function(api: &Api, item: &Struct) -> String {
    let flexible = item.range.intersect(api.flexible_versions()).expect("tags need flexible versions");
    let mut arms = String::new();
    for field in item.fields.iter().filter(|field| field.tag.is_some()) {
        let within = flexible.intersect(field.versions).expect("compute_ranges checked it");
        let guard = condition(flexible, within).map_or(String::new(), |condition| format!(" if {condition}"));
        let value = by_version(within, &cuts(api, field), |part| read_field(api, item, field, part));
        let tag = field.tag.expect("filtered");
        let (name, label) = (&field.name, label(item, field));
        let _ = writeln!(
            arms,
            "{tag}{guard} => {{ let scope = reader.enter_tag({label}, size)?; self.{name} = {value}; \
             reader.leave_tag({label}, scope)?; }}"
        );
    }
    let name = &item.name;
    let body = format!(
        "let mut tags = reader.tags(\"{name}\")?;\nwhile let Some((tag, size)) = reader.next_tag(\"{name}\", &mut tags)? {{\n\
         match tag {{ {arms} _ => {{ reader.take(\"{name}\", size)?; }} }}\n}}\nOk(())\n"
    );
    let lifetime = if types::borrows(api, item) { "'a" } else { "'_" };
    let version = if super::mentions(&body, "version") { "version" } else { "_version" };
    format!(
        "fn decode_tags(&mut self, reader: &mut Reader<{lifetime}>, {version}: i16) -> Result<(), DecodeError> {{\n{body}}}\n\n"
    )
}

/// `minimum_bytes`: what an element takes at least, so that a count can be held against the bytes left.
pub fn minimum_bytes(api: &Api, item: &Struct) -> String {
    let versions: Vec<Versions> = (item.range.min..=item.range.max)
        .map(|version| Versions { min: version, max: Some(version) })
        .collect();
    let body = by_version(item.range, &versions, |part| minimum_of_struct(api, item, part.min).to_string());
    let version = if super::mentions(&body, "version") { "version" } else { "_version" };
    format!(
        "/// The fewest bytes it takes on the wire.\nconst fn minimum_bytes({version}: i16) -> usize {{\n{body}\n}}\n\n"
    )
}

fn minimum_of_struct(api: &Api, item: &Struct, version: i16) -> usize {
    let fields = item.fields.iter().filter(|field| field.tag.is_none() && field.versions.contains(version));
    let tags = usize::from(api.flexible_versions().contains(version));
    let of_field = |field: &Field| match &field.kind {
        // Null is one byte in place of the struct.
        Type::Struct(_) if field.nullable.is_some_and(|nullable| nullable.contains(version)) => 1,
        kind => minimum_of(api, kind, version),
    };
    fields.map(of_field).sum::<usize>() + tags
}

fn minimum_of(api: &Api, kind: &Type, version: i16) -> usize {
    let is_compact = api.flexible_versions().contains(version);
    match kind {
        Type::Bool | Type::Int8 => 1,
        Type::Int16 | Type::Uint16 => 2,
        Type::Int32 | Type::Uint32 => 4,
        Type::Int64 | Type::Float64 => 8,
        Type::Uuid => 16,
        Type::Struct(name) => minimum_of_struct(api, api.find(name), version),
        Type::String if !is_compact => 2,
        Type::Bytes | Type::Records | Type::Array(_) if !is_compact => 4,
        Type::String | Type::Bytes | Type::Records | Type::Array(_) => 1,
    }
}
