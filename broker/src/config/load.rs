//! Owns the layers of a configuration: flag > `--set` > environment > file > default. Pure: texts come in, resolved
//! values or all refusals come out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::environment;
use super::error::{ConfigError, ConfigErrors};
use super::keys::{self, Effect, Key, Kind};
use super::origin::Origin;
use super::properties;
use super::value::{self, Value};

/// All the places that settings come from, as read by the caller.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Flags with a name of their own: (flag, key, value).
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// `--set key=value`, in order; the last one of a key wins.
    pub sets: Vec<String>,
    /// The whole environment; only names with our prefix are looked at.
    pub variables: Vec<(String, String)>,
    /// Path and text of the properties file.
    pub file: Option<(PathBuf, String)>,
}

/// One key's effective value and where it came from.
#[derive(Debug, Clone)]
pub struct Setting {
    pub key: &'static Key,
    pub value: Value,
    /// As written.
    pub text: String,
    pub origin: Origin,
}

/// A value for every key of the table.
#[derive(Debug, Clone)]
pub struct Resolved {
    settings: BTreeMap<&'static str, Setting>,
    /// Sentences for the log: settings that lost against another one of the same place.
    pub warnings: Vec<String>,
}

/// A text on its way to a key.
struct Candidate {
    key: &'static Key,
    /// As the user wrote the key: an alias loses against the name itself in one layer.
    is_alias: bool,
    text: String,
    origin: Origin,
}

/// Collects, layers and checks every setting.
pub fn resolve(sources: &Sources) -> Result<Resolved, ConfigErrors> {
    let mut errors = Vec::new();
    let mut warnings = Vec::new();
    let mut chosen: BTreeMap<&'static str, Candidate> = BTreeMap::new();
    // From the weakest layer to the strongest: each overwrites what is there.
    for candidate in candidates(sources, &mut errors) {
        if let Some(previous) = chosen.get(candidate.key.name) {
            let same_layer =
                std::mem::discriminant(&previous.origin) == std::mem::discriminant(&candidate.origin);
            if same_layer && candidate.is_alias && !previous.is_alias {
                continue;
            }
            if same_layer && previous.text != candidate.text {
                warnings.push(format!(
                    "{} is set twice: {} loses against {}",
                    candidate.key.name, previous.origin, candidate.origin
                ));
            }
        }
        chosen.insert(candidate.key.name, candidate);
    }
    let mut settings = BTreeMap::new();
    for key in keys::ALL.iter().filter(|key| !matches!(key.kind, Kind::Alias(_))) {
        let (text, origin) = match chosen.remove(key.name) {
            Some(candidate) => (candidate.text, candidate.origin),
            None => (key.default.to_owned(), Origin::Default),
        };
        match check(key, &text, &origin) {
            Ok(value) => {
                settings.insert(key.name, Setting { key, value, text, origin });
            }
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(Resolved { settings, warnings }) } else { Err(ConfigErrors(errors)) }
}

fn candidates(sources: &Sources, errors: &mut Vec<ConfigError>) -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut take = |name: &str, text: String, origin: Origin, key: Option<&'static Key>| match key {
        Some(key) => {
            let (key, is_alias) = target(key);
            found.push(Candidate { key, is_alias, text, origin });
        }
        None => errors.push(ConfigError::UnknownKey {
            key: name.to_owned(),
            suggestion: keys::suggest(name),
            origin,
        }),
    };
    let mut file_errors = Vec::new();
    if let Some((path, text)) = &sources.file {
        let (properties, problems) = properties::parse(text);
        for property in properties {
            let origin = Origin::File { path: path.clone(), line: property.line };
            take(&property.key, property.value, origin, keys::find(&property.key));
        }
        file_errors
            .extend(problems.into_iter().map(|problem| ConfigError::Syntax { path: path.clone(), problem }));
    }
    let mut variables: Vec<_> =
        sources.variables.iter().filter(|(name, _)| name != environment::CONFIG_FILE).collect();
    variables.sort();
    for (variable, text) in variables {
        if let Some(name) = environment::key_of(variable) {
            take(&name, text.clone(), Origin::Variable(variable.clone()), keys::find_variable(&name));
        }
    }
    for set in &sources.sets {
        match set.split_once('=') {
            Some((name, text)) => {
                take(name.trim(), text.trim().to_owned(), Origin::Set, keys::find(name.trim()))
            }
            None => file_errors.push(ConfigError::BadSet { text: set.clone() }),
        }
    }
    for (flag, name, text) in &sources.flags {
        take(name, text.clone(), Origin::Flag(flag), keys::find(name));
    }
    errors.extend(file_errors);
    found
}

fn target(key: &'static Key) -> (&'static Key, bool) {
    match key.kind {
        Kind::Alias(name) => {
            (keys::find(name).expect("a test checks that every alias points at a key"), true)
        }
        _ => (key, false),
    }
}

fn check(key: &'static Key, text: &str, origin: &Origin) -> Result<Value, ConfigError> {
    let value = match value::parse(key, text) {
        Ok(value) => value,
        Err(problem) => {
            return Err(ConfigError::BadValue {
                key: key.name,
                value: text.to_owned(),
                origin: origin.clone(),
                problem,
                allowed: key.kind.allowed(),
            });
        }
    };
    if let Effect::NotBuilt(reason) = key.effect
        && value::parse(key, key.default).as_ref() != Ok(&value)
    {
        return Err(ConfigError::NotBuilt {
            key: key.name,
            value: text.to_owned(),
            origin: origin.clone(),
            default: key.default,
            reason,
        });
    }
    Ok(value)
}

impl Resolved {
    /// The setting of a key of the table.
    pub fn setting(&self, name: &str) -> &Setting {
        self.settings.get(name).expect("resolve() makes a setting for every key that is not an alias")
    }

    /// All settings, in the order of the table.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        keys::ALL.iter().filter_map(|key| self.settings.get(key.name))
    }

    pub(super) fn boolean(&self, name: &str) -> bool {
        matches!(self.setting(name).value, Value::Boolean(true))
    }

    pub(super) fn integer(&self, name: &str) -> i64 {
        match self.setting(name).value {
            Value::Integer(number) => number,
            ref other => unreachable!("{name} is no integer key: {other:?}"),
        }
    }

    pub(super) fn auto_integer(&self, name: &str) -> Option<i64> {
        match self.setting(name).value {
            Value::AutoInteger(number) => number,
            ref other => unreachable!("{name} is no integer key: {other:?}"),
        }
    }

    pub(super) fn choice(&self, name: &str) -> &'static str {
        match self.setting(name).value {
            Value::Choice(choice) => choice,
            ref other => unreachable!("{name} is no choice key: {other:?}"),
        }
    }

    pub(super) fn text(&self, name: &str) -> &str {
        match &self.setting(name).value {
            Value::Text(text) => text,
            other => unreachable!("{name} is no text key: {other:?}"),
        }
    }
}
