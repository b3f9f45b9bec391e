//! Where links of machines lead that cannot dial the control plane. A process that answers requests answers theirs itself, as those of
//! another machine: they have come over the network, and what holds for the unix socket does not hold for them.

use crate::listen::{self, Peer};
use crate::settings::{Role, Settings};
use crate::{Shared, routes};
use axum::http::Uri;
use engine::Dialler;
use engine::adapters::ssh::{Connection, DialFuture};
use engine::adapters::tool::connector::tls_trusting;
use model::InstanceId;
use rustls::pki_types::ServerName;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Bytes between a link and the routes.
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) fn dialler(state: &Shared, settings: &Settings) -> Dialler {
    match settings.role {
        Role::All | Role::Server => answered_here(state.clone()),
        Role::Worker => {
            let context = &state.engine.context;
            answered_there(&context.control_urls.host, context.control_ca.as_deref())
        }
    }
}

fn answered_here(state: Shared) -> Dialler {
    let app = routes::router(state.clone());
    Arc::new(move |machine| -> DialFuture {
        let (here, there) = tokio::io::duplex(BUFFER_BYTES);
        tokio::spawn(listen::relayed(there, app.clone(), peer(machine), state.closing.subscribe()));
        Box::pin(std::future::ready(Ok(Box::new(here) as Connection)))
    })
}

/// A worker dials the servers that it was told of; over TLS where their address says so, because the runner's end of the link is plain.
/// `authorities` are trusted beside those of the system.
pub(crate) fn answered_there(url: &str, authorities: Option<&str>) -> Dialler {
    let server = Server::parse(url, authorities).map(Arc::new);
    Arc::new(move |_| -> DialFuture {
        let server = server.clone();
        Box::pin(async move {
            let server = server.map_err(io::Error::other)?;
            let stream = TcpStream::connect((server.host.as_str(), server.port)).await?;
            let _ = stream.set_nodelay(true);
            let Some((tls, name)) = &server.tls else { return Ok(Box::new(stream) as Connection) };
            Ok(Box::new(tls.connect(name.clone(), stream).await?) as Connection)
        })
    })
}

/// Where a worker finds the servers.
struct Server {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Server {
    fn parse(url: &str, authorities: Option<&str>) -> Result<Server, String> {
        let strange =
            || format!("a worker carries links to a server at http:// or https://, not at {url}: set public_url");
        let parsed: Uri = url.parse().map_err(|_| strange())?;
        let host = parsed.host().ok_or_else(strange)?.trim_matches(['[', ']']).to_owned();
        let (port, tls) = match parsed.scheme_str() {
            Some("http") => (80, None),
            Some("https") => {
                let config =
                    tls_trusting(authorities).map_err(|why| format!("the certificate of its authority: {why}"))?;
                let name = ServerName::try_from(host.clone()).map_err(|_| strange())?;
                (443, Some((TlsConnector::from(Arc::new(config)), name)))
            }
            _ => return Err(strange()),
        };
        Ok(Server { host, port: parsed.port_u16().unwrap_or(port), tls })
    }
}

/// Bad tokens from one machine are held against that machine alone: each has an address of its own, which no peer on a network has.
fn peer(machine: InstanceId) -> Peer {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (machine.0 >> shift) as u16);
    // Strangers are told apart by the first half of their addresses.
    Peer::Remote(IpAddr::V6(Ipv6Addr::new(0xfd00 | (a & 0xff), b, c, d, 0, 0, 0, 1)))
}
