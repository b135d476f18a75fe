//! Which addresses may be connected to: public ones, and those that the user's settings allow.
//!
//! What counts is the address a connection really goes to, however it is written and whatever name led to it. Pure: names
//! are resolved elsewhere.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::Deserialize;

/// Places inside the user's network that may be reached all the same (`[web] allow_private`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct AllowList {
    entries: Vec<Allowed>,
}

/// One entry: an address, a network or a name, with or without a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Allowed {
    place: Place,
    /// `None`: every port.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Network {
        base: IpAddr,
        prefix: u8,
    },
    /// In lower case.
    Name(String),
    /// `*.example.com`: every name below it.
    NamesBelow(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{entry}` is no address: write 127.0.0.1:8080, 10.0.0.0/8, [::1]:8080, wiki.example.com or *.example.com, the port where one is \
     meant"
)]
pub struct AllowedError {
    entry: String,
}

/// Why an address is not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Unspecified,
    Loopback,
    LinkLocal,
    Private,
    /// Between a provider and its customers (100.64.0.0/10).
    SharedByProvider,
    Multicast,
    Reserved,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "the unspecified address",
            Self::Loopback => "an address of this machine",
            Self::LinkLocal => "a link-local address",
            Self::Private => "a private address",
            Self::SharedByProvider => "an address inside a provider's network",
            Self::Multicast => "a multicast address",
            Self::Reserved => "a reserved address",
        })
    }
}

impl AllowList {
    pub fn new(entries: Vec<Allowed>) -> Self {
        Self { entries }
    }

    /// Whether a connection to this address may be made for a URL with this host. `host` in lower case, without brackets.
    pub fn admits(&self, host: &str, address: IpAddr, port: u16) -> Result<(), Scope> {
        let Some(scope) = scope(address) else { return Ok(()) };
        let address = unwrapped(address);
        let is_allowed = self.entries.iter().any(|allowed| {
            allowed.port.is_none_or(|allowed| allowed == port)
                && match &allowed.place {
                    Place::Network { base, prefix } => contains(*base, *prefix, address),
                    Place::Name(name) => name == host,
                    Place::NamesBelow(suffix) => host.strip_suffix(suffix).is_some_and(|rest| rest.ends_with('.')),
                }
        });
        if is_allowed { Ok(()) } else { Err(scope) }
    }
}

/// Names that mean this machine wherever they are resolved.
pub fn is_local_name(host: &str) -> bool {
    const NAMES: &[&str] =
        &["localhost", "localhost.localdomain", "localhost6", "localhost6.localdomain6", "ip6-localhost", "ip6-loopback"];
    NAMES.contains(&host) || host.ends_with(".localhost")
}

/// What keeps an address from being public; `None` for a public one.
pub fn scope(address: IpAddr) -> Option<Scope> {
    match unwrapped(address) {
        IpAddr::V4(address) => scope_v4(address),
        IpAddr::V6(address) => scope_v6(address),
    }
}

/// The IPv4 address inside an IPv6 one that stands for it: mapped, or behind the well-known NAT64 prefix.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    let inner = match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (u32::from(high) << 16) | u32::from(low),
        _ => return address,
    };
    IpAddr::V4(Ipv4Addr::from(inner))
}

fn scope_v4(address: Ipv4Addr) -> Option<Scope> {
    const SCOPES: &[([u8; 4], u8, Scope)] = &[
        ([0, 0, 0, 0], 32, Scope::Unspecified),
        ([0, 0, 0, 0], 8, Scope::Reserved),
        ([10, 0, 0, 0], 8, Scope::Private),
        ([100, 64, 0, 0], 10, Scope::SharedByProvider),
        ([127, 0, 0, 0], 8, Scope::Loopback),
        ([169, 254, 0, 0], 16, Scope::LinkLocal),
        ([172, 16, 0, 0], 12, Scope::Private),
        ([192, 0, 0, 0], 24, Scope::Reserved),
        ([192, 0, 2, 0], 24, Scope::Reserved),
        ([192, 88, 99, 0], 24, Scope::Reserved),
        ([192, 168, 0, 0], 16, Scope::Private),
        ([198, 18, 0, 0], 15, Scope::Reserved),
        ([198, 51, 100, 0], 24, Scope::Reserved),
        ([203, 0, 113, 0], 24, Scope::Reserved),
        ([224, 0, 0, 0], 4, Scope::Multicast),
        ([240, 0, 0, 0], 4, Scope::Reserved),
    ];
    let found = SCOPES.iter().find(|(base, prefix, _)| contains(IpAddr::V4((*base).into()), *prefix, IpAddr::V4(address)));
    found.map(|(_, _, scope)| *scope)
}

/// Only 2000::/3 is routed in public, and parts of it are not.
fn scope_v6(address: Ipv6Addr) -> Option<Scope> {
    const RESERVED: &[([u16; 8], u8)] = &[
        // Teredo, ORCHID, benchmarking: tunnels and identifiers.
        ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
        // 6to4: leads to any IPv4 address, private ones too.
        ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
        ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
    ];
    let within = |base: [u16; 8], prefix: u8| contains(IpAddr::V6(base.into()), prefix, IpAddr::V6(address));
    if address.is_unspecified() {
        return Some(Scope::Unspecified);
    }
    if address.is_loopback() {
        return Some(Scope::Loopback);
    }
    if within([0xff00, 0, 0, 0, 0, 0, 0, 0], 8) {
        return Some(Scope::Multicast);
    }
    if within([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10) {
        return Some(Scope::LinkLocal);
    }
    if within([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7) || within([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10) {
        return Some(Scope::Private);
    }
    let is_public = within([0x2000, 0, 0, 0, 0, 0, 0, 0], 3) && !RESERVED.iter().any(|(base, prefix)| within(*base, *prefix));
    (!is_public).then_some(Scope::Reserved)
}

fn contains(base: IpAddr, prefix: u8, address: IpAddr) -> bool {
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            u32::from(base) & mask == u32::from(address) & mask
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            u128::from(base) & mask == u128::from(address) & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

impl TryFrom<String> for Allowed {
    type Error = AllowedError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl FromStr for Allowed {
    type Err = AllowedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || AllowedError { entry: text.to_owned() };
        let text = text.trim();
        // An IPv6 address without brackets has no port.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { place: Place::single(address), port: None });
        }
        if let Some((base, prefix)) = text.split_once('/') {
            let base: IpAddr = base.parse().map_err(|_| refused())?;
            let prefix: u8 = prefix.parse().map_err(|_| refused())?;
            let most = if base.is_ipv4() { 32 } else { 128 };
            return if prefix <= most { Ok(Self { place: Place::Network { base, prefix }, port: None }) } else { Err(refused()) };
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(refused)?)),
            None => (text, None),
        };
        if let Some(inner) = host.strip_prefix('[') {
            let address: Ipv6Addr = inner.strip_suffix(']').unwrap_or(inner).parse().map_err(|_| refused())?;
            return Ok(Self { place: Place::single(IpAddr::V6(address)), port });
        }
        if let Ok(address) = host.parse::<Ipv4Addr>() {
            return Ok(Self { place: Place::single(IpAddr::V4(address)), port });
        }
        let host = host.to_ascii_lowercase();
        let name = host.strip_prefix("*.").unwrap_or(&host);
        let is_name = !name.is_empty()
            && name.split('.').all(|label| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')))
            && name.chars().any(|c| c.is_ascii_alphabetic());
        if !is_name {
            return Err(refused());
        }
        let place = if name.len() < host.len() { Place::NamesBelow(name.to_owned()) } else { Place::Name(host) };
        Ok(Self { place, port })
    }
}

impl Place {
    fn single(address: IpAddr) -> Self {
        let address = unwrapped(address);
        Self::Network { base: address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> AllowList {
        AllowList::new(entries.iter().map(|entry| entry.parse().unwrap()).collect())
    }

    /// Every range that is not public, at both of its ends, and the neighbours that are.
    #[test]
    fn what_is_not_public_is_known_by_its_range() {
        for (address, expected) in [
            ("0.0.0.0", Some(Scope::Unspecified)),
            ("0.255.255.255", Some(Scope::Reserved)),
            ("1.0.0.0", None),
            ("9.255.255.255", None),
            ("10.0.0.0", Some(Scope::Private)),
            ("10.255.255.255", Some(Scope::Private)),
            ("11.0.0.0", None),
            ("100.63.255.255", None),
            ("100.64.0.0", Some(Scope::SharedByProvider)),
            ("100.127.255.255", Some(Scope::SharedByProvider)),
            ("100.128.0.0", None),
            ("127.0.0.1", Some(Scope::Loopback)),
            ("127.255.255.254", Some(Scope::Loopback)),
            ("128.0.0.0", None),
            ("169.253.255.255", None),
            ("169.254.169.254", Some(Scope::LinkLocal)),
            ("172.15.255.255", None),
            ("172.16.0.0", Some(Scope::Private)),
            ("172.31.255.255", Some(Scope::Private)),
            ("172.32.0.0", None),
            ("192.0.0.8", Some(Scope::Reserved)),
            ("192.0.2.1", Some(Scope::Reserved)),
            ("192.167.255.255", None),
            ("192.168.0.1", Some(Scope::Private)),
            ("198.17.255.255", None),
            ("198.19.255.255", Some(Scope::Reserved)),
            ("203.0.113.9", Some(Scope::Reserved)),
            ("223.255.255.255", None),
            ("224.0.0.1", Some(Scope::Multicast)),
            ("239.255.255.255", Some(Scope::Multicast)),
            ("255.255.255.255", Some(Scope::Reserved)),
            ("8.8.8.8", None),
            ("::", Some(Scope::Unspecified)),
            ("::1", Some(Scope::Loopback)),
            ("::127.0.0.1", Some(Scope::Reserved)),
            ("::ffff:127.0.0.1", Some(Scope::Loopback)),
            ("::ffff:10.1.2.3", Some(Scope::Private)),
            ("::ffff:8.8.8.8", None),
            ("64:ff9b::7f00:1", Some(Scope::Loopback)),
            ("64:ff9b::a9fe:a9fe", Some(Scope::LinkLocal)),
            ("64:ff9b::808:808", None),
            ("64:ff9b:1::808:808", Some(Scope::Reserved)),
            ("100::1", Some(Scope::Reserved)),
            ("2001:0:53aa:64c:0:0:0:1", Some(Scope::Reserved)),
            ("2001:db8::1", Some(Scope::Reserved)),
            ("2002:7f00:1::", Some(Scope::Reserved)),
            ("2606:4700:4700::1111", None),
            ("2a00:1450::1", None),
            ("3fff::1", Some(Scope::Reserved)),
            ("fc00::1", Some(Scope::Private)),
            ("fdff::1", Some(Scope::Private)),
            ("fe80::1", Some(Scope::LinkLocal)),
            ("fec0::1", Some(Scope::Private)),
            ("ff02::1", Some(Scope::Multicast)),
        ] {
            assert_eq!(scope(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn an_entry_opens_what_it_names_and_nothing_else() {
        let allowed = list(&["127.0.0.1:8080", "10.0.0.0/8", "[::1]:81", "wiki.corp.example", "*.lab.example:90"]);
        for (host, address, port, expected) in [
            ("127.0.0.1", "127.0.0.1", 8080, Ok(())),
            ("localhost", "127.0.0.1", 8080, Ok(())),
            ("localhost", "::ffff:127.0.0.1", 8080, Ok(())),
            ("localhost", "127.0.0.1", 8081, Err(Scope::Loopback)),
            ("localhost", "::1", 8080, Err(Scope::Loopback)),
            ("localhost", "::1", 81, Ok(())),
            ("a.example", "10.9.9.9", 1, Ok(())),
            ("a.example", "11.9.9.9", 1, Ok(())),
            ("a.example", "192.168.1.1", 1, Err(Scope::Private)),
            ("wiki.corp.example", "192.168.1.1", 1, Ok(())),
            ("x.wiki.corp.example", "192.168.1.1", 1, Err(Scope::Private)),
            ("a.lab.example", "192.168.1.1", 90, Ok(())),
            ("lab.example", "192.168.1.1", 90, Err(Scope::Private)),
            ("evillab.example", "192.168.1.1", 90, Err(Scope::Private)),
            ("a.lab.example", "192.168.1.1", 91, Err(Scope::Private)),
        ] {
            assert_eq!(allowed.admits(host, address.parse().unwrap(), port), expected, "{host} {address} {port}");
        }
    }

    #[test]
    fn an_entry_that_is_none_is_refused() {
        for entry in
            ["", ":80", "http://localhost", "10.0.0.0/33", "::1/129", "1.2.3", "a..b", "localhost:0", "localhost:x", "*", "[::1", "a b"]
        {
            let parsed = entry.parse::<Allowed>();
            assert!(parsed.is_err() || entry == "[::1", "{entry}: {parsed:?}");
        }
    }

    #[test]
    fn names_of_this_machine() {
        assert!(is_local_name("localhost") && is_local_name("a.localhost") && is_local_name("ip6-loopback"));
        assert!(!is_local_name("localhost.example.com") && !is_local_name("notlocalhost"));
    }
}
