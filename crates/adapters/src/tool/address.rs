//! Which network addresses a tool may connect to. A step's URL may come from a model or from a web page, so it must not
//! make a worker connect to the control plane, to services of its own network or to a cloud's metadata service (169.254.169.254). Pure
//! decisions; `connector` applies them to every resolved address before it connects.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, RwLock};

/// What is allowed without being listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// A control plane that serves several people: public addresses only.
    Server,
    /// The control plane inside a person's own `repl`: what the person could reach is allowed, but for link-local addresses and metadata.
    Embedded,
}

/// One entry of the list of addresses that are allowed beside those of the profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    Net(IpNet),
    /// A host name, as URLs write it. Any address that it resolves to is allowed.
    Host(String),
}

#[derive(Debug, Clone)]
pub struct AddressPolicy {
    profile: Profile,
    allowed: Vec<Allowed>,
    /// Addresses on which the control plane listens. Never allowed, even if listed.
    own: OwnAddresses,
    #[cfg(test)]
    pub(crate) taken_for_public: Option<IpAddr>,
}

/// Addresses on which this process listens. Clones share them, because a listener may be opened later.
#[derive(Debug, Clone, Default)]
pub struct OwnAddresses(Arc<RwLock<Vec<SocketAddr>>>);

impl OwnAddresses {
    pub fn add(&self, address: SocketAddr) {
        self.0.write().expect("no panic while locked").push(address);
    }
    fn any(&self, is_it: impl Fn(&SocketAddr) -> bool) -> bool {
        self.0.read().expect("no panic while locked").iter().any(is_it)
    }
}

impl From<Vec<SocketAddr>> for OwnAddresses {
    fn from(addresses: Vec<SocketAddr>) -> OwnAddresses {
        OwnAddresses(Arc::new(RwLock::new(addresses)))
    }
}

/// What kind of address it is, after forms that embed an IPv4 address in an IPv6 address were unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    Public,
    Loopback,
    /// Networks that are not routed on the internet: RFC 1918, shared address space (RFC 6598), unique local IPv6.
    Private,
    LinkLocal,
    /// A cloud's metadata service: it hands out credentials.
    Metadata,
    /// Unspecified, multicast, reserved, for documentation, or a tunnel.
    Special,
}

/// Why an address is refused; the text is for the person who wrote the URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("scheme `{0}` is not allowed: only http and https are")]
    Scheme(String),
    #[error("{host} is {address}, a {} address: allow it in the settings of the server, or use another", class.as_str())]
    Class { host: String, address: IpAddr, class: AddressClass },
    #[error("{host} is {address}, where this control plane itself listens")]
    Own { host: String, address: SocketAddr },
    #[error("a public server redirects to {host}, which is {address}, a {} address: never followed", class.as_str())]
    FromPublic { host: String, address: IpAddr, class: AddressClass },
}

impl AddressPolicy {
    pub fn new(profile: Profile, allowed: Vec<Allowed>, own: impl Into<OwnAddresses>) -> AddressPolicy {
        AddressPolicy {
            profile,
            allowed,
            own: own.into(),
            #[cfg(test)]
            taken_for_public: None,
        }
    }

    pub fn scheme(&self, scheme: &str) -> Result<(), Denied> {
        if matches!(scheme, "http" | "https") { Ok(()) } else { Err(Denied::Scheme(scheme.to_owned())) }
    }

    /// Whether a request for `host` may go to `address`. `from_public` is true when a public server redirected here.
    /// `is_local` says whether this machine has an address; it is asked only about ports on which the control plane listens.
    pub fn judge(
        &self,
        host: &str,
        address: SocketAddr,
        from_public: bool,
        is_local: &dyn Fn(IpAddr) -> bool,
    ) -> Result<AddressClass, Denied> {
        let (host, ip) = (host.to_owned(), unpacked(address.ip()));
        if self.own.any(|own| listens(own, SocketAddr::new(ip, address.port()), is_local)) {
            return Err(Denied::Own { host, address });
        }
        let class = self.class_of(ip);
        if from_public && class != AddressClass::Public {
            return Err(Denied::FromPublic { host, address: address.ip(), class });
        }
        let by_profile = match class {
            AddressClass::Public => true,
            AddressClass::Loopback | AddressClass::Private => self.profile == Profile::Embedded,
            AddressClass::LinkLocal | AddressClass::Metadata | AddressClass::Special => false,
        };
        if by_profile || self.allowed.iter().any(|entry| entry.covers(&host, ip)) {
            Ok(class)
        } else {
            Err(Denied::Class { host, address: address.ip(), class })
        }
    }

    fn class_of(&self, ip: IpAddr) -> AddressClass {
        #[cfg(test)]
        if self.taken_for_public == Some(ip) {
            return AddressClass::Public;
        }
        class_of(ip)
    }
}

impl Allowed {
    fn covers(&self, host: &str, ip: IpAddr) -> bool {
        match self {
            Allowed::Net(net) => net.contains(&ip),
            Allowed::Host(name) => same_host(name, host),
        }
    }
}

impl FromStr for Allowed {
    type Err = String;

    /// `10.0.0.0/8`, `169.254.169.254` or `models.internal`.
    fn from_str(text: &str) -> Result<Allowed, String> {
        if let Ok(net) = text.parse() {
            return Ok(Allowed::Net(net));
        }
        if let Ok(ip) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            return Ok(Allowed::Net(IpNet::from(unpacked(ip))));
        }
        let is_name =
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
        let looks_numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if is_name && !looks_numeric {
            Ok(Allowed::Host(text.to_owned()))
        } else {
            Err(format!("`{text}` is neither a network (10.0.0.0/8), an address nor a host name"))
        }
    }
}

impl AddressClass {
    pub fn as_str(self) -> &'static str {
        match self {
            AddressClass::Public => "public",
            AddressClass::Loopback => "loopback",
            AddressClass::Private => "private",
            AddressClass::LinkLocal => "link-local",
            AddressClass::Metadata => "cloud metadata",
            AddressClass::Special => "reserved",
        }
    }
}

fn same_host(a: &str, b: &str) -> bool {
    a.trim_end_matches('.').eq_ignore_ascii_case(b.trim_end_matches('.'))
}

/// Whether a connection to `target` reaches the listener `own`.
fn listens(own: &SocketAddr, target: SocketAddr, is_local: &dyn Fn(IpAddr) -> bool) -> bool {
    if own.port() != target.port() {
        return false;
    }
    let own = unpacked(own.ip());
    if own.is_unspecified() {
        // A wildcard listener of either family may accept both.
        return target.ip().is_unspecified() || target.ip().is_loopback() || is_local(target.ip());
    }
    // Linux connects 0.0.0.0 and :: to the loopback interface.
    own == target.ip() || (target.ip().is_unspecified() && own.is_loopback())
}

/// The IPv4 address inside an IPv6 address that a router or the kernel would unpack, else the address itself.
fn unpacked(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let low = || v4(g, h);
    match [a, b, c, d, e, f] {
        // Unspecified and loopback are addresses of IPv6.
        [0, 0, 0, 0, 0, 0] if g == 0 && h <= 1 => ip,
        // IPv4-compatible (deprecated), IPv4-mapped and IPv4-translated.
        [0, 0, 0, 0, 0, 0] | [0, 0, 0, 0, 0, 0xffff] | [0, 0, 0, 0, 0xffff, 0] => low(),
        // NAT64, RFC 6052.
        [0x64, 0xff9b, 0, 0, 0, 0] => low(),
        // 6to4.
        [0x2002, high, low, ..] => v4(high, low),
        _ => ip,
    }
}

fn v4(high: u16, low: u16) -> IpAddr {
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// Of AWS, Google and most others; Alibaba; Oracle; Azure's host agent.
const METADATA_V4: [[u8; 4]; 4] = [[169, 254, 169, 254], [100, 100, 100, 200], [192, 0, 0, 192], [168, 63, 129, 16]];
/// Of AWS and Google.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Of an address that [`unpacked`] has seen.
fn class_of(ip: IpAddr) -> AddressClass {
    match ip {
        IpAddr::V4(v4) => class_of_v4(v4),
        IpAddr::V6(v6) => class_of_v6(v6),
    }
}

fn class_of_v4(ip: Ipv4Addr) -> AddressClass {
    use AddressClass::{LinkLocal, Loopback, Metadata, Private, Public, Special};
    let octets = ip.octets();
    if METADATA_V4.contains(&octets) {
        return Metadata;
    }
    match octets {
        [127, ..] => Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Private,
        [169, 254, ..] => LinkLocal,
        // "This network", protocol assignments, 6to4 relays, benchmarks, documentation, multicast, reserved, broadcast.
        [0, ..] | [192, 0, 0, _] | [192, 88, 99, _] | [198, 18..=19, ..] => Special,
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] | [224..=255, ..] => Special,
        _ => Public,
    }
}

fn class_of_v6(ip: Ipv6Addr) -> AddressClass {
    use AddressClass::{LinkLocal, Loopback, Metadata, Private, Public, Special};
    if METADATA_V6.contains(&ip) {
        return Metadata;
    }
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Loopback,
        // Unique local, and the deprecated site-local.
        [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Private,
        [0xfe80..=0xfebf, ..] => LinkLocal,
        // Teredo and other protocol assignments, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Special,
        [0x2000..=0x3fff, ..] => Public,
        // Everything else is not assigned, or not for one host: `::`, NAT64 of a site, discard, multicast.
        _ => Special,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(policy: &AddressPolicy, host: &str, address: &str, from_public: bool) -> Result<AddressClass, Denied> {
        let here: IpAddr = "93.184.216.34".parse().unwrap();
        policy.judge(host, address.parse().unwrap(), from_public, &|ip| ip == here)
    }

    #[test]
    fn each_address_is_of_its_class_however_it_is_written() {
        use AddressClass::{LinkLocal, Loopback, Metadata, Private, Public, Special};
        let table: &[(AddressClass, &[&str])] = &[
            (
                Public,
                &["1.1.1.1", "93.184.216.34", "172.15.0.1", "172.32.0.1", "100.63.0.1", "100.128.0.1", "223.255.255.1"],
            ),
            (Public, &["2606:4700::1111", "2002:0101:0101::1", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1"]),
            (Loopback, &["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1"]),
            (Loopback, &["64:ff9b::127.0.0.1", "2002:7f00:1::"]),
            (Private, &["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "100.127.255.255"]),
            (
                Private,
                &["fd12:3456::1", "fc00::1", "fec0::1", "::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2002:0a00:1::1"],
            ),
            (LinkLocal, &["169.254.0.1", "fe80::1", "febf::1", "::ffff:169.254.1.1"]),
            (Metadata, &["169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192"]),
            (Metadata, &["168.63.129.16", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::"]),
            (Special, &["0.0.0.0", "0.1.2.3", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "198.18.0.1"]),
            (Special, &["192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "192.0.0.8", "::ffff:0.0.0.0"]),
            (Special, &["::", "ff02::1", "2001:db8::1", "2001::1", "100::1", "64:ff9b:1::1", "4000::1", "3fff::1"]),
        ];
        for (class, addresses) in table {
            for address in *addresses {
                assert_eq!(class_of(unpacked(address.parse().unwrap())), *class, "{address}");
            }
        }
    }

    #[test]
    fn a_profile_allows_its_classes_and_what_is_listed() {
        let listed: Vec<Allowed> =
            ["10.1.0.0/16", "169.254.169.254", "models.internal", "fd00:1::/32"].map(|it| it.parse().unwrap()).into();
        let policy = |profile, listed: &[Allowed]| AddressPolicy::new(profile, listed.to_vec(), Vec::new());
        // Host, address, allowed by: server, server with the list, embedded, embedded with the list.
        for (host, address, expected) in [
            ("a.example", "93.184.216.34:443", [true, true, true, true]),
            ("localhost", "127.0.0.1:80", [false, false, true, true]),
            ("a.example", "10.1.2.3:80", [false, true, true, true]),
            ("a.example", "10.2.2.3:80", [false, false, true, true]),
            ("a.example", "[::ffff:10.1.2.3]:80", [false, true, true, true]),
            ("a.example", "[fd00:1::7]:80", [false, true, true, true]),
            ("a.example", "169.254.169.254:80", [false, true, false, true]),
            ("a.example", "[2002:a9fe:a9fe::]:80", [false, true, false, true]),
            ("a.example", "169.254.1.1:80", [false, false, false, false]),
            ("a.example", "[fe80::1]:80", [false, false, false, false]),
            ("a.example", "0.0.0.0:80", [false, false, false, false]),
            ("a.example", "224.0.0.1:80", [false, false, false, false]),
            ("Models.Internal.", "192.168.7.7:80", [false, true, true, true]),
            ("models.internal.evil.example", "192.168.7.7:80", [false, false, true, true]),
            ("models.internal", "169.254.7.7:80", [false, true, false, true]),
        ] {
            let policies = [
                policy(Profile::Server, &[]),
                policy(Profile::Server, &listed),
                policy(Profile::Embedded, &[]),
                policy(Profile::Embedded, &listed),
            ];
            let found = policies.map(|policy| judge(&policy, host, address, false).is_ok());
            assert_eq!(found, expected, "{host} {address}");
        }
    }

    #[test]
    fn a_public_server_never_redirects_to_another_kind_of_address() {
        let listed = vec!["10.0.0.0/8".parse().unwrap(), "localhost".parse().unwrap()];
        for profile in [Profile::Server, Profile::Embedded] {
            let policy = AddressPolicy::new(profile, listed.clone(), Vec::new());
            for (host, address) in [("a", "10.0.0.1:80"), ("localhost", "127.0.0.1:80"), ("localhost", "[::1]:80")] {
                assert!(judge(&policy, host, address, false).is_ok(), "{host} is listed");
                assert!(matches!(judge(&policy, host, address, true), Err(Denied::FromPublic { .. })), "{address}");
            }
            assert_eq!(judge(&policy, "a", "1.1.1.1:80", true), Ok(AddressClass::Public));
        }
    }

    #[test]
    fn the_control_plane_is_never_reached_even_if_it_is_listed() {
        let listed: Vec<Allowed> = ["127.0.0.0/8", "::/0", "0.0.0.0/0", "me"].map(|it| it.parse().unwrap()).into();
        // Listener, target, refused.
        for (own, target, refused) in [
            ("127.0.0.1:8080", "127.0.0.1:8080", true),
            ("127.0.0.1:8080", "127.0.0.1:8081", false),
            ("127.0.0.1:8080", "127.0.0.2:8080", false),
            ("127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", true),
            ("127.0.0.1:8080", "0.0.0.0:8080", true),
            ("[::1]:8080", "[::]:8080", true),
            ("0.0.0.0:8080", "127.3.4.5:8080", true),
            ("0.0.0.0:8080", "[::1]:8080", true),
            ("0.0.0.0:8080", "[::]:8080", true),
            ("[::]:8080", "127.0.0.1:8080", true),
            ("[::]:8080", "93.184.216.34:8080", true),
            ("[::]:8080", "93.184.216.34:443", false),
            ("[::]:8080", "93.184.216.35:8080", false),
            ("93.184.216.34:8080", "93.184.216.34:8080", true),
        ] {
            let policy = AddressPolicy::new(Profile::Embedded, listed.clone(), vec![own.parse().unwrap()]);
            let found = matches!(judge(&policy, "me", target, false), Err(Denied::Own { .. }));
            assert_eq!(found, refused, "listening on {own}, asked for {target}");
        }
    }

    #[test]
    fn only_http_and_https_are_schemes() {
        let policy = AddressPolicy::new(Profile::Embedded, Vec::new(), Vec::new());
        for (scheme, allowed) in [("http", true), ("https", true), ("file", false), ("ftp", false), ("unix", false)] {
            assert_eq!(policy.scheme(scheme).is_ok(), allowed, "{scheme}");
        }
    }

    #[test]
    fn an_entry_of_the_list_is_a_network_an_address_or_a_name() {
        for good in ["10.0.0.0/8", "fd00::/8", "10.1.2.3", "[::1]", "::1", "localhost", "a-b.example"] {
            assert!(good.parse::<Allowed>().is_ok(), "{good}");
        }
        for bad in ["", "10.0.0.0/33", "http://a", "a b", "10.0.0", "*.example", "a:80"] {
            assert!(bad.parse::<Allowed>().is_err(), "{bad}");
        }
    }
}
