//! Opens connections for tools: a host name is resolved once, each address is checked (`address`), and the returned client can connect
//! only to the addresses that passed. Never follows redirects, never uses a proxy, never sends anything twice.

use crate::tool::ToolFailure;
use crate::tool::address::{AddressClass, AddressPolicy, Denied};
use model::Effect;
use model::recovery::ErrorClass;
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use url::{Host, Url};

/// Also a bound on TLS handshakes.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Turns a host name into addresses.
pub trait Resolver: Send + Sync {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a>;
}

/// The resolver of the operating system.
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> Resolving<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }
}

/// Where the requests of one call went so far. One for each call, handed from redirect to redirect.
#[derive(Debug, Default)]
pub struct Trail {
    public: bool,
}

pub struct Connector {
    policy: AddressPolicy,
    resolver: Box<dyn Resolver>,
    tls: rustls::ClientConfig,
}

impl Connector {
    /// Trusts the certificates of the system.
    pub fn new(policy: AddressPolicy) -> Connector {
        Connector { policy, resolver: Box::new(SystemResolver), tls: tls(system_roots()) }
    }

    /// Trusts the certificates of this PEM text too.
    pub fn trusting(mut self, authorities: &str) -> Result<Connector, String> {
        self.tls = tls_trusting(Some(authorities))?;
        Ok(self)
    }

    pub fn resolving_by(mut self, resolver: Box<dyn Resolver>) -> Connector {
        self.resolver = resolver;
        self
    }

    /// A client for this URL's host and no other. It keeps no connection from one request to the next, so that none is sent on a
    /// connection that the far side is about to close. `within` is the time limit of the whole call: a third of it may be spent on the
    /// name and a third on connecting, so that a host that does not answer is told from a request that was sent and not answered.
    pub async fn open(&self, url: &Url, trail: &mut Trail, within: Duration) -> Result<reqwest::Client, ToolFailure> {
        let within = CONNECT_WITHIN.min(within / 3);
        let addresses = self.checked(url, trail, within).await?;
        let client = reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(within)
            .pool_max_idle_per_host(0)
            // What a packed body unpacks to has no bound.
            .default_headers(HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]))
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .dns_resolver(Arc::new(Judged(addresses)))
            .tls_backend_preconfigured(self.tls.clone())
            .build();
        client.map_err(|error| ToolFailure::new(ErrorClass::Permanent, Effect::None, "client", error.to_string()))
    }

    /// The addresses of the host that pass. At least one; the others are left out.
    async fn checked(&self, url: &Url, trail: &mut Trail, within: Duration) -> Result<Vec<SocketAddr>, ToolFailure> {
        self.policy.scheme(url.scheme()).map_err(refused)?;
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let found = match url.host() {
            Some(Host::Ipv4(ip)) => vec![SocketAddr::new(IpAddr::V4(ip), port)],
            Some(Host::Ipv6(ip)) => vec![SocketAddr::new(IpAddr::V6(ip), port)],
            Some(Host::Domain(name)) => self.resolved(name, port, within).await?,
            None => return Err(refused("a URL needs a host")),
        };
        let judged = found.into_iter().map(|address| {
            let class = self.policy.judge(host, address, trail.public, &is_local)?;
            Ok::<_, Denied>((address, class))
        });
        let (passed, denied): (Vec<_>, Vec<_>) = judged.partition(Result::is_ok);
        let passed: Vec<_> = passed.into_iter().flatten().collect();
        if passed.is_empty() {
            let why = denied.into_iter().find_map(Result::err);
            return Err(why.map_or_else(|| unresolved(host, "it has no address"), refused));
        }
        trail.public |= passed.iter().any(|(_, class)| *class == AddressClass::Public);
        Ok(passed.into_iter().map(|(address, _)| address).collect())
    }

    async fn resolved(&self, host: &str, port: u16, within: Duration) -> Result<Vec<SocketAddr>, ToolFailure> {
        let resolving = tokio::time::timeout(within, self.resolver.resolve(host, port));
        match resolving.await {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(unresolved(host, &error.to_string())),
            Err(_) => Err(unresolved(host, "the name server does not answer")),
        }
    }
}

/// Answers every question with the addresses that were judged: the HTTP client cannot resolve anything by itself.
struct Judged(Vec<SocketAddr>);

impl reqwest::dns::Resolve for Judged {
    fn resolve(&self, _name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let addresses: reqwest::dns::Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

/// Whether this machine has the address: only then can a socket be bound to it.
fn is_local(ip: IpAddr) -> bool {
    std::net::UdpSocket::bind((ip, 0)).is_ok()
}

fn refused(why: impl ToString) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, "address_refused", why.to_string())
}

fn unresolved(host: &str, why: &str) -> ToolFailure {
    ToolFailure::new(ErrorClass::Transient, Effect::None, "unresolved", format!("{host} is not resolved: {why}"))
}

/// TLS by rustls on ring, with the certificates of this system.
pub(crate) fn system_tls() -> rustls::ClientConfig {
    tls(system_roots())
}

/// The same, which trusts the certificates of this PEM text too.
pub fn tls_trusting(authorities: Option<&str>) -> Result<rustls::ClientConfig, String> {
    let mut roots = system_roots();
    for certificate in CertificateDer::pem_slice_iter(authorities.unwrap_or("").as_bytes()) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(tls(roots))
}

fn system_roots() -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

fn tls(roots: rustls::RootCertStore) -> rustls::ClientConfig {
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
