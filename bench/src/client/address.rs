//! Broker addresses: parsing bootstrap lists, remembering where an address came from, resolving off the executor.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use ringlog_io::Io;

use super::error::ClientError;

/// The port where none is given.
pub const DEFAULT_PORT: u16 = 9092;

/// How we learned an address. It decides what the error text advises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressOrigin {
    /// The user named it.
    Bootstrap,
    /// The broker's own metadata named it, as fetched through the address `via`.
    Advertised { node_id: i32, via: String },
}

/// Host, port and origin of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAddress {
    /// Name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Where it came from.
    pub origin: AddressOrigin,
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl BrokerAddress {
    /// What to do when this address cannot be reached.
    pub fn unreachable_hint(&self) -> String {
        match &self.origin {
            AddressOrigin::Bootstrap => {
                format!("is a broker running there? check the address given with --bootstrap-server ({self})")
            }
            AddressOrigin::Advertised { node_id, via } => format!(
                "broker {node_id} was reached through {via} but advertises {self}, which this machine cannot reach; \
                 set advertised.listeners on that broker to an address that clients can reach"
            ),
        }
    }

    /// All socket addresses of the host. Names are looked up on a worker thread, never on the executor.
    ///
    /// # Errors
    /// [`ClientError::Resolve`] when the name has no address.
    pub async fn resolve(&self, io: &Io) -> Result<Vec<SocketAddr>, ClientError> {
        if let Ok(address) = self.host.parse() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let (host, port) = (self.host.clone(), self.port);
        let looked_up = io
            .compute(move || {
                (host.as_str(), port)
                    .to_socket_addrs()
                    .map(Iterator::collect::<Vec<_>>)
                    .map_err(|e| e.to_string())
            })
            .await;
        match looked_up {
            Ok(addresses) if !addresses.is_empty() => Ok(addresses),
            Ok(_) => Err(self.resolve_error("the name has no address".to_owned())),
            Err(reason) => Err(self.resolve_error(reason)),
        }
    }

    fn resolve_error(&self, reason: String) -> ClientError {
        ClientError::Resolve { address: self.to_string(), reason, hint: self.unreachable_hint() }
    }
}

/// Reads `host:port,host:port`; the port may be left out, IPv6 addresses stand in brackets.
///
/// # Errors
/// [`ClientError::BadAddress`] for an empty list, an empty host or a port outside 1..=65535.
pub fn parse_bootstrap(text: &str) -> Result<Vec<BrokerAddress>, ClientError> {
    let addresses = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(parse_address)
        .collect::<Result<Vec<_>, _>>()?;
    if addresses.is_empty() {
        return Err(bad(text, "it names no broker"));
    }
    Ok(addresses)
}

fn parse_address(text: &str) -> Result<BrokerAddress, ClientError> {
    if text.contains("://") {
        return Err(bad(
            text,
            "write HOST:PORT, without a scheme; TLS and SASL are not supported by this client",
        ));
    }
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, tail) = rest.split_once(']').ok_or_else(|| bad(text, "a '[' without ']'"))?;
        (host, tail.strip_prefix(':'))
    } else {
        match text.rsplit_once(':') {
            // More than one colon without brackets is an IPv6 address without a port.
            Some((host, _)) if host.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| bad(text, "the port is not in 1..=65535"))?,
    };
    if host.is_empty() {
        return Err(bad(text, "the host is empty"));
    }
    Ok(BrokerAddress { host: host.to_owned(), port, origin: AddressOrigin::Bootstrap })
}

fn bad(text: &str, reason: &'static str) -> ClientError {
    ClientError::BadAddress { text: text.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, u16)]) {
        let addresses = parse_bootstrap(text).expect(text);
        let got: Vec<_> = addresses.iter().map(|address| (address.host.as_str(), address.port)).collect();
        assert_eq!(got, expected, "{text}");
    }

    #[test]
    fn bootstrap_lists_are_read() {
        check("localhost", &[("localhost", 9092)]);
        check("a:1, b:65535 ,", &[("a", 1), ("b", 65_535)]);
        check("[::1]:9093,[::1]", &[("::1", 9093), ("::1", 9092)]);
        check("fe80::1", &[("fe80::1", 9092)]);
    }

    #[test]
    fn bad_addresses_say_why() {
        for bad in ["", ",", "a:0", "a:70000", "a:x", ":9092", "[::1:9092", "PLAINTEXT://a:1"] {
            assert!(matches!(parse_bootstrap(bad), Err(ClientError::BadAddress { .. })), "{bad}");
        }
    }

    #[test]
    fn an_advertised_address_that_fails_names_the_setting_to_change() {
        let address = BrokerAddress {
            host: "broker-1".to_owned(),
            port: 9092,
            origin: AddressOrigin::Advertised { node_id: 4, via: "10.0.0.1:29092".to_owned() },
        };
        let hint = address.unreachable_hint();
        for part in ["broker 4", "10.0.0.1:29092", "broker-1:9092", "advertised.listeners"] {
            assert!(hint.contains(part), "{hint}");
        }
        let ipv6 = BrokerAddress { host: "::1".to_owned(), port: 1, origin: AddressOrigin::Bootstrap };
        assert_eq!(ipv6.to_string(), "[::1]:1");
    }
}
