//! What a schema file says, as values. It owns the version arithmetic and computes, for every struct, in which versions
//! it can occur; it reads and writes no text.

use std::collections::BTreeMap;

/// A range of versions; `max` is `None` for `N+`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub min: i16,
    pub max: Option<i16>,
}

impl Versions {
    /// Whether `version` is one of them.
    pub fn contains(self, version: i16) -> bool {
        version >= self.min && self.max.is_none_or(|max| version <= max)
    }
}

/// An inclusive, bounded range of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub min: i16,
    pub max: i16,
}

impl Range {
    /// The versions in both; `None` when there is none.
    pub fn intersect(self, versions: Versions) -> Option<Range> {
        let min = self.min.max(versions.min);
        let max = versions.max.map_or(self.max, |max| max.min(self.max));
        (min <= max).then_some(Range { min, max })
    }

    fn hull(self, other: Range) -> Range {
        Range { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Cuts the range wherever membership of one of `parts` changes, lowest part first. Within each part every one of
    /// them is either wholly in or wholly out.
    pub fn split(self, parts: &[Versions]) -> Vec<Range> {
        let mut starts = vec![self.min];
        for part in parts {
            starts.push(part.min);
            starts.extend(part.max.and_then(|max| max.checked_add(1)));
        }
        starts.retain(|start| (self.min..=self.max).contains(start));
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().skip(1).map(|next| next - 1).chain([self.max]);
        starts.iter().zip(ends).map(|(&min, max)| Range { min, max }).collect()
    }
}

/// A field's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    Bool,
    Int8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Float64,
    Uuid,
    String,
    Bytes,
    Records,
    Struct(String),
    Array(Box<Type>),
}

/// A default that is not the type's own (0, false, empty).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Default {
    Null,
    True,
    Number(i64),
}

/// One field.
#[derive(Debug, Clone)]
pub struct Field {
    pub name: String,
    pub kind: Type,
    pub versions: Versions,
    /// In which versions null is allowed.
    pub nullable: Option<Versions>,
    /// Set: the field travels in the section of tagged fields, in all its versions.
    pub tag: Option<u32>,
    pub default: Option<Default>,
    /// Whether a value that the version cannot carry is dropped (otherwise encoding fails).
    pub is_ignorable: bool,
    pub doc: Option<String>,
    /// Where it is defined, for errors.
    pub line: usize,
}

/// A request or response, or a struct within one.
#[derive(Debug, Clone)]
pub struct Struct {
    pub name: String,
    pub fields: Vec<Field>,
    pub direction: Direction,
    /// A request or response itself.
    pub is_top: bool,
    /// In which versions it can occur.
    pub range: Range,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Request,
    Response,
    /// Neither: bytes within a record or within another message.
    Stored,
}

/// What a model describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request and a response.
    Api { key: i16 },
    /// One message by itself.
    Data,
    /// The key of a coordinator's records of one type.
    RecordKey { record_type: i16 },
    /// The value of a coordinator's records of one type.
    RecordValue { record_type: i16 },
}

/// One file: a module.
#[derive(Debug, Clone)]
pub struct File {
    /// File name without its ending: the name of the module.
    pub module: String,
    /// An API, or a message by itself, or the key and the value of a record.
    pub models: Vec<Api>,
}

/// An API, or a message that belongs to none.
#[derive(Debug, Clone)]
pub struct Api {
    /// The module it is in.
    pub module: String,
    pub kind: Kind,
    /// Kafka's name of the API or of the message.
    pub name: String,
    pub versions: Range,
    /// `None`: never flexible.
    pub flexible: Option<i16>,
    /// Request, its structs, response, its structs (or the one message and its structs); each before those it uses.
    pub structs: Vec<Struct>,
}

impl Api {
    /// The versions that are flexible, as a range that may lie beyond the API's.
    pub fn flexible_versions(&self) -> Versions {
        Versions { min: self.flexible.unwrap_or(i16::MAX), max: None }
    }

    /// The struct of this name.
    ///
    /// # Panics
    /// For a name that no field of this API has.
    pub fn find(&self, name: &str) -> &Struct {
        self.structs.iter().find(|item| item.name == name).expect("the parser refuses unknown structs")
    }

    /// Computes [`Struct::range`] of all structs.
    ///
    /// # Errors
    /// Line and message for a field that no version has.
    pub fn compute_ranges(&mut self) -> Result<(), (usize, String)> {
        let mut ranges: BTreeMap<String, Range> = BTreeMap::new();
        // A struct that is named again further down may occur in more versions than its first use says.
        loop {
            let before = ranges.clone();
            self.compute_ranges_once(&mut ranges);
            if ranges == before {
                break;
            }
        }
        for item in &self.structs {
            if let Some(field) =
                item.fields.iter().find(|field| item.range.intersect(field.versions).is_none())
            {
                return Err((field.line, format!("no version of the API has the field {}", field.name)));
            }
        }
        Ok(())
    }

    fn compute_ranges_once(&mut self, ranges: &mut BTreeMap<String, Range>) {
        for item in &mut self.structs {
            if !item.is_top {
                // No range: only fields that no version has lead here, and those are refused.
                let Some(range) = ranges.get(&item.name) else { continue };
                item.range = *range;
            }
            for field in &item.fields {
                if let Some(name) = field.kind.struct_name()
                    && let Some(within) = item.range.intersect(field.versions)
                {
                    ranges
                        .entry(name.to_owned())
                        .and_modify(|known| *known = known.hull(within))
                        .or_insert(within);
                }
            }
        }
    }
}

impl Type {
    /// The struct this is, or is an array of.
    pub fn struct_name(&self) -> Option<&str> {
        match self {
            Type::Struct(name) => Some(name),
            Type::Array(element) => element.struct_name(),
            _ => None,
        }
    }

    /// Whether null can be written at all.
    pub fn can_be_null(&self) -> bool {
        matches!(self, Type::String | Type::Bytes | Type::Records | Type::Array(_) | Type::Struct(_))
    }
}
