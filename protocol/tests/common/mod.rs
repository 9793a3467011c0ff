//! Messages made at random from the schema, as bytes: canonical ones, so that reading and writing back gives the same.
//!
//! Made from the model and not from our structs, so that a field the structs lack would be missed by no test.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;

use ringlog_codegen::model::{Api, Default, Direction, Field, Kind, Struct, Type};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::group::generated::consumer_protocol_assignment::ConsumerProtocolAssignment;
use ringlog_protocol::group::generated::consumer_protocol_subscription::ConsumerProtocolSubscription;
use ringlog_protocol::group::generated::{Key, Value};
use ringlog_protocol::messages::{Request, Response};
use ringlog_protocol::wire::{DecodeError, EncodeError, Reader, Writer, write_unsigned_varint};

/// A small generator (SplitMix64): the same seed gives the same message on every machine.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// Often an edge, otherwise anything.
    fn integer(&mut self) -> i64 {
        const EDGES: [i64; 8] = [0, -1, 1, 127, 32_767, -2_147_483_648, i64::MAX, i64::MIN];
        if self.one_in(2) { EDGES[self.below(EDGES.len())] } else { self.next().cast_signed() }
    }
}

/// Where an array's count lies.
#[derive(Debug, Clone, Copy)]
pub struct Count {
    pub at: usize,
    pub length: usize,
    pub is_compact: bool,
}

/// A message as bytes.
#[derive(Debug, Clone, std::default::Default)]
pub struct Sample {
    pub bytes: Vec<u8>,
    /// Counts of arrays outside tagged fields.
    pub counts: Vec<Count>,
}

/// One message that exists: what the tests run over.
#[derive(Debug, Clone, Copy)]
pub struct Case<'m> {
    pub model: &'m Api,
    pub direction: Direction,
    pub version: i16,
    /// Whether samples carry, in every section of tagged fields, two that nobody knows.
    pub has_unknown_tags: bool,
}

/// All schema files, parsed: APIs by key, then the messages that belong to none by name.
pub fn models() -> Vec<Api> {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("schema");
    let mut models = Vec::new();
    for folder in [schema.clone(), schema.join("group")] {
        for entry in std::fs::read_dir(&folder).expect("the schema folders are part of the crate") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|extension| extension == "kafka") {
                let text = std::fs::read_to_string(&path).expect("readable");
                let file = path.file_name().expect("it has an extension").to_string_lossy().into_owned();
                models.extend(ringlog_codegen::parse::parse(&file, &text).expect("valid").models);
            }
        }
    }
    models.sort_by_key(|model| match model.kind {
        Kind::Api { key } => (key, String::new()),
        _ => (i16::MAX, model.name.clone()),
    });
    assert!(
        models.len() >= 49,
        "27 APIs, 10 types of records and two messages of the consumer protocol are defined"
    );
    models
}

/// Every message and version, and of APIs both directions.
pub fn cases(models: &[Api]) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for model in models {
        let directions: &[Direction] = match model.kind {
            Kind::Api { .. } => &[Direction::Request, Direction::Response],
            _ => &[Direction::Stored],
        };
        for version in model.versions.min..=model.versions.max {
            for &direction in directions {
                cases.push(Case { model, direction, version, has_unknown_tags: false });
            }
        }
    }
    cases
}

/// Any message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message<'a> {
    Request(Request<'a>),
    Response(Response<'a>),
    Key(Key<'a>),
    Value(Value<'a>),
    Subscription(ConsumerProtocolSubscription<'a>),
    Assignment(ConsumerProtocolAssignment<'a>),
}

impl Case<'_> {
    /// The API; `None` for a message that belongs to none.
    pub fn api(&self) -> Option<ApiKey> {
        match self.model.kind {
            Kind::Api { key } => Some(ApiKey::from_i16(key).expect("a key of Kafka's")),
            _ => None,
        }
    }

    /// Kafka's name of the message, such as `FetchRequest`.
    pub fn name(&self) -> String {
        let suffix = match self.direction {
            Direction::Request => "Request",
            Direction::Response => "Response",
            Direction::Stored => "",
        };
        format!("{}{suffix}", self.model.name)
    }

    /// A random message.
    pub fn sample(&self, random: &mut Random) -> Sample {
        let item = self.model.find(&self.name());
        let mut sample = Sample::default();
        self.write_struct(item, random, &mut sample, false);
        sample
    }

    pub fn decode<'a>(&self, reader: &mut Reader<'a>) -> Result<Message<'a>, DecodeError> {
        let version = self.version;
        match (self.model.kind, self.direction) {
            (Kind::Api { .. }, Direction::Request) => {
                Request::decode(self.api().expect("an API"), reader, version).map(Message::Request)
            }
            (Kind::Api { .. }, _) => {
                Response::decode(self.api().expect("an API"), reader, version).map(Message::Response)
            }
            (Kind::RecordKey { record_type }, _) => {
                Key::decode(record_type, reader, version).map(|key| Message::Key(key.expect("it is defined")))
            }
            (Kind::RecordValue { record_type }, _) => Value::decode(record_type, reader, version)
                .map(|value| Message::Value(value.expect("it is defined"))),
            (Kind::Data, _) => match self.model.name.as_str() {
                "ConsumerProtocolSubscription" => {
                    ConsumerProtocolSubscription::decode(reader, version).map(Message::Subscription)
                }
                "ConsumerProtocolAssignment" => {
                    ConsumerProtocolAssignment::decode(reader, version).map(Message::Assignment)
                }
                name => panic!("no test knows {name}"),
            },
        }
    }

    pub fn encode(&self, message: &Message<'_>) -> Result<Vec<u8>, EncodeError> {
        let (mut writer, version) = (Writer::new(), self.version);
        match message {
            Message::Request(request) => request.encode(&mut writer, version)?,
            Message::Response(response) => response.encode(&mut writer, version)?,
            Message::Key(key) => key.encode(&mut writer, version)?,
            Message::Value(value) => value.encode(&mut writer, version)?,
            Message::Subscription(subscription) => subscription.encode(&mut writer, version)?,
            Message::Assignment(assignment) => assignment.encode(&mut writer, version)?,
        }
        Ok(writer.into_bytes().to_vec())
    }

    fn is_flexible(&self) -> bool {
        self.model.flexible_versions().contains(self.version)
    }

    fn write_struct(&self, item: &Struct, random: &mut Random, out: &mut Sample, is_set: bool) {
        let fields = || item.fields.iter().filter(|field| field.versions.contains(self.version));
        for field in fields().filter(|field| field.tag.is_none()) {
            self.write_field(field, random, out, is_set);
        }
        if !self.is_flexible() {
            return;
        }
        let mut tagged: Vec<&Field> = fields().filter(|field| field.tag.is_some()).collect();
        tagged.retain(|_| !random.one_in(3));
        tagged.sort_by_key(|field| field.tag);
        let unknown = if self.has_unknown_tags { 2 } else { 0 };
        write_unsigned_varint(&mut out.bytes, tagged.len() as u64 + unknown);
        for field in tagged {
            // A default would not be written back, so a tagged field differs from it.
            let mut content = Sample::default();
            self.write_field(field, random, &mut content, true);
            write_unsigned_varint(&mut out.bytes, u64::from(field.tag.expect("filtered")));
            write_unsigned_varint(&mut out.bytes, content.bytes.len() as u64);
            out.bytes.extend(content.bytes);
        }
        if self.has_unknown_tags {
            out.bytes.extend([100, 3, 1, 2, 3, 101, 0]);
        }
    }

    fn write_field(&self, field: &Field, random: &mut Random, out: &mut Sample, is_set: bool) {
        let is_nullable = field.nullable.is_some_and(|nullable| nullable.contains(self.version));
        // Null differs from the default where that is not null; records are null by default.
        let is_null_by_default = field.default == Some(Default::Null) || field.kind == Type::Records;
        let is_null = is_nullable && !(is_set && is_null_by_default) && random.one_in(4);
        if is_null {
            match (&field.kind, self.is_flexible()) {
                (Type::Struct(_), _) => out.bytes.push(if field.tag.is_some() { 0 } else { 0xff }),
                (_, true) => out.bytes.push(0),
                (Type::String, false) => out.bytes.extend([0xff, 0xff]),
                (_, false) => out.bytes.extend([0xff; 4]),
            }
            return;
        }
        if is_set && let Some(bytes) = set_number(field, random) {
            out.bytes.extend(bytes);
            return;
        }
        if is_nullable && matches!(field.kind, Type::Struct(_)) {
            out.bytes.push(1);
        }
        self.write_value(&field.kind, random, out, is_set);
    }

    fn write_value(&self, kind: &Type, random: &mut Random, out: &mut Sample, is_set: bool) {
        let integer = random.integer();
        match kind {
            Type::Bool => out.bytes.push(u8::from(is_set || random.one_in(2))),
            Type::Int8 => out.bytes.push(integer as u8),
            Type::Int16 | Type::Uint16 => out.bytes.extend((integer as u16).to_be_bytes()),
            Type::Int32 | Type::Uint32 => out.bytes.extend((integer as u32).to_be_bytes()),
            Type::Int64 => out.bytes.extend(integer.to_be_bytes()),
            Type::Float64 => out.bytes.extend(((integer >> 12) as f64).to_be_bytes()),
            Type::Uuid => {
                let high = if is_set { random.next() | 1 } else { random.next() };
                out.bytes.extend(high.to_be_bytes());
                out.bytes.extend(integer.to_be_bytes());
            }
            Type::String => {
                let text = string(random, is_set);
                let length = i16::try_from(text.len()).expect("short");
                if self.is_flexible() {
                    write_unsigned_varint(&mut out.bytes, text.len() as u64 + 1);
                } else {
                    out.bytes.extend(length.to_be_bytes());
                }
                out.bytes.extend(text.as_bytes());
            }
            Type::Bytes | Type::Records => {
                let length = random.below(300);
                self.write_count(length, out);
                out.bytes.extend((0..length).map(|_| random.next() as u8));
            }
            Type::Struct(name) => self.write_struct(self.model.find(name), random, out, is_set),
            Type::Array(element) => {
                let length = if is_set { 1 + random.below(3) } else { random.below(4) };
                let at = out.bytes.len();
                self.write_count(length, out);
                let is_compact = self.is_flexible();
                out.counts.push(Count { at, length: out.bytes.len() - at, is_compact });
                for _ in 0..length {
                    self.write_value(element, random, out, false);
                }
            }
        }
    }

    fn write_count(&self, count: usize, out: &mut Sample) {
        if self.is_flexible() {
            write_unsigned_varint(&mut out.bytes, count as u64 + 1);
        } else {
            out.bytes.extend(i32::try_from(count).expect("short").to_be_bytes());
        }
    }
}

/// A number that differs from the field's default; `None` for other types.
fn set_number(field: &Field, random: &mut Random) -> Option<Vec<u8>> {
    let default = match field.default {
        Some(Default::Number(number)) => number,
        _ => 0,
    };
    loop {
        let value = random.integer();
        let (value, bytes) = match field.kind {
            Type::Int8 => (i64::from(value as i8), (value as i8).to_be_bytes().to_vec()),
            Type::Int16 => (i64::from(value as i16), (value as i16).to_be_bytes().to_vec()),
            Type::Int32 => (i64::from(value as i32), (value as i32).to_be_bytes().to_vec()),
            Type::Int64 => (value, value.to_be_bytes().to_vec()),
            _ => return None,
        };
        if value != default {
            return Some(bytes);
        }
    }
}

fn string(random: &mut Random, is_set: bool) -> String {
    const TEXTS: [&str; 6] = ["a", "topic-1", "naïve", "日本語", "with space", "\u{10ffff}\n"];
    match random.below(8) {
        0 if !is_set => String::new(),
        // Long enough for a length of two bytes.
        1 => "x".repeat(200),
        _ => TEXTS[random.below(TEXTS.len())].to_owned(),
    }
}
