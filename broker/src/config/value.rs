//! Owns turning one key's text into a typed value. Pure: no environment, no file system, no name resolution.

use std::fmt;
use std::path::PathBuf;

use super::keys::{Key, Kind};

const MIB: u64 = 1 << 20;
/// Below this a shard cannot hold its smallest budgets.
pub const MEMORY_BYTES_MIN: u64 = 64 * MIB;
/// Highest CPU number understood; Linux is built for at most 8192.
const CPU_MAX: u32 = 8191;

/// A value in the type of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Boolean(bool),
    Integer(i64),
    /// `None` = `auto`, or empty.
    AutoInteger(Option<i64>),
    Choice(&'static str),
    Text(String),
    /// `None` = `auto`.
    Directory(Option<PathBuf>),
    Listeners(Vec<Address>),
    /// `None` = `auto`.
    Advertised(Option<Address>),
    /// `None` = `none`.
    Address(Option<Address>),
    /// Empty = all.
    Cpus(Vec<u32>),
    Features(Vec<String>),
    Memory(Memory),
}

/// `HOST:PORT`, unresolved. An empty host means every interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Without the brackets of an IPv6 literal.
    pub host: String,
    pub port: u16,
}

/// How much memory the shards may use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// By the profile's rule.
    Auto,
    Bytes(u64),
    /// Of what the container or machine allows; 1 to 90.
    Percent(u8),
}

/// Parses by the key's kind. The error is the problem alone, as a clause: the caller knows key, origin and range.
pub fn parse(key: &Key, text: &str) -> Result<Value, String> {
    let text = text.trim();
    match key.kind {
        Kind::Boolean => parse_boolean(text).map(Value::Boolean),
        Kind::Integer { minimum, maximum } | Kind::Milliseconds { minimum, maximum } => {
            parse_integer(text, minimum, maximum).map(Value::Integer)
        }
        Kind::AutoInteger { .. } | Kind::AutoBytes { .. } if text.eq_ignore_ascii_case("auto") => {
            Ok(Value::AutoInteger(None))
        }
        Kind::OptionalInteger { .. } if text.is_empty() => Ok(Value::AutoInteger(None)),
        Kind::AutoInteger { minimum, maximum } | Kind::OptionalInteger { minimum, maximum } => {
            parse_integer(text, minimum, maximum).map(|number| Value::AutoInteger(Some(number)))
        }
        Kind::Bytes { minimum, maximum } => {
            in_range(parse_bytes(text)?, minimum, maximum).map(Value::Integer)
        }
        Kind::AutoBytes { minimum, maximum } => {
            in_range(parse_bytes(text)?, minimum, maximum).map(|bytes| Value::AutoInteger(Some(bytes)))
        }
        Kind::Number { minimum, maximum } => parse_number(text, minimum, maximum),
        Kind::List(choices) => {
            let mut items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            match items.find(|item| !choices.contains(item)) {
                None => Ok(Value::Text(text.to_owned())),
                Some(item) => Err(format!("`{item}` is not one of the choices")),
            }
        }
        Kind::Choice(choices) => choices
            .iter()
            .find(|choice| choice.eq_ignore_ascii_case(text))
            .map(|choice| Value::Choice(choice))
            .ok_or_else(|| "not one of the choices".to_owned()),
        Kind::Text { bytes_max } if text.len() > bytes_max => {
            Err(format!("{} bytes are too long", text.len()))
        }
        Kind::Text { .. } => Ok(Value::Text(text.to_owned())),
        Kind::Directory => parse_directory(text).map(Value::Directory),
        Kind::Listeners => parse_listeners(text).map(Value::Listeners),
        Kind::AdvertisedListeners if text.eq_ignore_ascii_case("auto") => Ok(Value::Advertised(None)),
        Kind::AdvertisedListeners => parse_advertised(text).map(|address| Value::Advertised(Some(address))),
        Kind::Address if text.eq_ignore_ascii_case("none") => Ok(Value::Address(None)),
        Kind::Address => parse_address(text).map(|address| Value::Address(Some(address))),
        Kind::CpuList => parse_cpu_list(text).map(Value::Cpus),
        Kind::Features => parse_features(text).map(Value::Features),
        Kind::Memory => parse_memory(text).map(Value::Memory),
        Kind::LogFilter => match text.parse::<tracing_subscriber::filter::Targets>() {
            Ok(_) if !text.is_empty() => Ok(Value::Text(text.to_owned())),
            _ => Err("not a log filter".to_owned()),
        },
        Kind::Alias(_) => Err("an alias has no value of its own".to_owned()),
    }
}

fn parse_number(text: &str, minimum: u32, maximum: Option<u32>) -> Result<Value, String> {
    match text.parse::<f64>() {
        Ok(number) if !number.is_finite() => Err("not a decimal number".to_owned()),
        Ok(number) if number < f64::from(minimum) => Err("below the smallest value".to_owned()),
        Ok(number) if maximum.is_some_and(|maximum| number > f64::from(maximum)) => {
            Err("above the largest value".to_owned())
        }
        Ok(_) => Ok(Value::Text(text.to_owned())),
        Err(_) => Err("not a decimal number".to_owned()),
    }
}

fn parse_boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("neither true nor false".to_owned()),
    }
}

fn parse_integer(text: &str, minimum: i64, maximum: i64) -> Result<i64, String> {
    in_range(text.parse::<i64>().map_err(|_| "not a whole number".to_owned())?, minimum, maximum)
}

fn in_range(number: i64, minimum: i64, maximum: i64) -> Result<i64, String> {
    match number {
        _ if number < minimum => Err("below the smallest value".to_owned()),
        _ if number > maximum => Err("above the largest value".to_owned()),
        _ => Ok(number),
    }
}

/// Plain bytes, as Kafka has them, or a suffix: `k`, `m`, `g`, `t` and `KiB`... are powers of 1024, `KB`... of 1000.
pub fn parse_bytes(text: &str) -> Result<i64, String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: i64 = number.parse().map_err(|_| "not a number of bytes".to_owned())?;
    let multiplier: i64 = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err("an unknown unit; use KiB, MiB, GiB or TiB".to_owned()),
    };
    number.checked_mul(multiplier).ok_or_else(|| "above the largest value".to_owned())
}

fn parse_memory(text: &str) -> Result<Memory, String> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(Memory::Auto);
    }
    if let Some(percent) = text.strip_suffix('%') {
        return parse_integer(percent.trim(), 1, 90).map(|percent| Memory::Percent(percent as u8));
    }
    let bytes = in_range(parse_bytes(text)?, MEMORY_BYTES_MIN as i64, i64::MAX)?;
    Ok(Memory::Bytes(bytes as u64))
}

fn parse_directory(text: &str) -> Result<Option<PathBuf>, String> {
    match text {
        "" => Err("empty".to_owned()),
        _ if text.eq_ignore_ascii_case("auto") => Ok(None),
        _ if text.contains('\0') => Err("a path cannot hold a zero byte".to_owned()),
        _ if text.contains(',') => Err("several directories are not built yet; name one".to_owned()),
        _ => Ok(Some(PathBuf::from(text))),
    }
}

/// `HOST:PORT`, `[v6]:PORT` or `:PORT`.
pub fn parse_address(text: &str) -> Result<Address, String> {
    let (host, port) = text.rsplit_once(':').ok_or_else(|| "no port".to_owned())?;
    let port: u16 = port.parse().map_err(|_| "the port is not a number from 0 to 65535".to_owned())?;
    let bare = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let host = match bare {
        Some(literal) if literal.parse::<std::net::Ipv6Addr>().is_ok() => literal,
        Some(_) => return Err("not an IPv6 address in the brackets".to_owned()),
        None if host.contains(':') => return Err("an IPv6 address needs brackets: [::1]:9092".to_owned()),
        None => host,
    };
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.len() > 253 || !host.chars().all(legal) {
        return Err("not a host name".to_owned());
    }
    Ok(Address { host: host.to_owned(), port })
}

fn parse_listeners(text: &str) -> Result<Vec<Address>, String> {
    let listeners = text.split(',').map(parse_listener).collect::<Result<Vec<_>, _>>()?;
    match listeners.len() {
        1 => Ok(listeners),
        _ => {
            Err("several listeners are not built yet; name one, or an empty host for every interface"
                .to_owned())
        }
    }
}

fn parse_listener(text: &str) -> Result<Address, String> {
    match text.trim().split_once("://") {
        None => parse_address(text.trim()),
        Some(("PLAINTEXT", address)) => parse_address(address),
        Some(("CONTROLLER", _)) => {
            Err("the controller runs inside the broker; remove the CONTROLLER listener".to_owned())
        }
        Some((protocol @ ("SSL" | "SASL_PLAINTEXT" | "SASL_SSL"), _)) => {
            Err(format!("{protocol} is not built yet: only PLAINTEXT is served"))
        }
        Some(_) => Err("named listeners are not built yet: only PLAINTEXT is served".to_owned()),
    }
}

fn parse_advertised(text: &str) -> Result<Address, String> {
    let addresses = parse_listeners(text)?;
    let address = addresses.into_iter().next().ok_or_else(|| "empty".to_owned())?;
    match address.host.as_str() {
        "" => Err("no host that a client could dial; use auto".to_owned()),
        "0.0.0.0" | "::" => Err("no client can dial the wildcard address; use auto".to_owned()),
        _ if address.port == 0 => Err("no client can dial port 0".to_owned()),
        _ => Ok(address),
    }
}

/// The kernel's list notation: `0-3,8`.
pub fn parse_cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let number = |part: &str| match part.trim().parse::<u32>() {
        Ok(cpu) if cpu <= CPU_MAX => Ok(cpu),
        _ => Err(format!("not CPU numbers up to {CPU_MAX} and ranges of them")),
    };
    let mut cpus: Vec<u32> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err("a range that runs backwards".to_owned());
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("CPU {cpu} named twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

fn parse_features(text: &str) -> Result<Vec<String>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let name =
                part.strip_prefix(['+', '-']).ok_or_else(|| format!("`{part}` has no + or - in front"))?;
            let legal = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if legal { Ok(part.to_owned()) } else { Err(format!("`{part}` is not a feature name")) }
        })
        .collect()
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(formatter, "[{}]:{}", self.host, self.port),
            false => write!(formatter, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_and_without_units() {
        let check =
            |text: &str, expected: Option<i64>| assert_eq!(parse_bytes(text).ok(), expected, "{text}");
        check("1048588", Some(1_048_588));
        check("-1", Some(-1));
        check("64KiB", Some(65_536));
        check("64 kib", Some(65_536));
        check("8m", Some(8 << 20));
        check("2GB", Some(2_000_000_000));
        check("1.5GiB", None);
        check("9223372036854775807k", None);
        check("", None);
        check("MiB", None);
        check("1XB", None);
    }

    #[test]
    fn addresses() {
        let check = |text: &str, expected: Option<(&str, u16)>| {
            let found = parse_address(text).ok();
            assert_eq!(found.as_ref().map(|a| (a.host.as_str(), a.port)), expected, "{text}");
        };
        check("localhost:9092", Some(("localhost", 9092)));
        check(":9092", Some(("", 9092)));
        check("[::1]:0", Some(("::1", 0)));
        check("::1:9092", None);
        check("localhost", None);
        check("localhost:70000", None);
        check("[nonsense]:1", None);
        check("bad host:1", None);
        check("a\x1b[2J:1", None);
        assert_eq!(Address { host: "::1".to_owned(), port: 7 }.to_string(), "[::1]:7");
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list("0-3,8"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cpu_list(""), Ok(vec![]));
        for bad in ["3-1", "0,0", "a", "1-", "9999", "-1"] {
            assert!(parse_cpu_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory() {
        assert_eq!(parse_memory("auto"), Ok(Memory::Auto));
        assert_eq!(parse_memory("25%"), Ok(Memory::Percent(25)));
        assert_eq!(parse_memory("1GiB"), Ok(Memory::Bytes(1 << 30)));
        for bad in ["0%", "91%", "1MiB", "x%", "%"] {
            assert!(parse_memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn listeners_say_what_is_not_built() {
        let check = |text: &str, expected: &str| {
            let problem = parse_listeners(text).expect_err(text);
            assert!(problem.contains(expected), "{text}: {problem}");
        };
        assert!(parse_listeners("PLAINTEXT://:9092").is_ok());
        assert!(parse_listeners("127.0.0.1:0").is_ok());
        check("SSL://:9093", "SSL is not built yet");
        check("SASL_SSL://:9093", "SASL_SSL is not built yet");
        check("INTERNAL://:9093", "named listeners");
        check("CONTROLLER://:9093", "remove the CONTROLLER listener");
        check("PLAINTEXT://a:1,PLAINTEXT://b:2", "several listeners");
        assert!(parse_advertised("PLAINTEXT://0.0.0.0:9092").is_err());
        assert!(parse_advertised("PLAINTEXT://:9092").is_err());
        assert!(parse_advertised("host:0").is_err());
        assert!(parse_advertised("host:19092").is_ok());
    }

    #[test]
    fn features() {
        assert_eq!(
            parse_features("-cachestat, +send_zc"),
            Ok(vec!["-cachestat".to_owned(), "+send_zc".to_owned()])
        );
        assert!(parse_features("cachestat").is_err());
        assert!(parse_features("-").is_err());
    }
}
