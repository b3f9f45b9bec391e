//! Where links of machines lead that cannot dial the control plane. A process that answers requests answers theirs itself, as those of
//! another machine: they have come over the network, and what holds for the unix socket does not hold for them.

use crate::listen::{self, Peer};
use crate::settings::{Role, Settings};
use crate::{Shared, routes};
use engine::Dialler;
use engine::adapters::ssh::{Connection, DialFuture};
use model::InstanceId;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::net::TcpStream;

/// Bytes between a link and the routes.
const BUFFER_BYTES: usize = 64 << 10;

pub(crate) fn dialler(state: &Shared, settings: &Settings) -> Dialler {
    match settings.role {
        Role::All | Role::Server => answered_here(state.clone()),
        Role::Worker => answered_there(state.engine.context.control_urls.host.clone()),
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

/// A worker dials the servers that it was told of.
fn answered_there(url: String) -> Dialler {
    Arc::new(move |_| -> DialFuture {
        let address = url.strip_prefix("http://").map(|address| address.trim_end_matches('/').to_owned());
        Box::pin(async move {
            let Some(address) = address else {
                return Err(io::Error::other("a worker carries links to a server at http:// only: set public_url"));
            };
            let stream = TcpStream::connect(address).await?;
            let _ = stream.set_nodelay(true);
            Ok(Box::new(stream) as Connection)
        })
    })
}

/// Bad tokens from one machine are held against that machine alone: each has an address of its own, which no peer on a network has.
fn peer(machine: InstanceId) -> Peer {
    let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (machine.0 >> shift) as u16);
    // Strangers are told apart by the first half of their addresses.
    Peer::Remote(IpAddr::V6(Ipv6Addr::new(0xfd00 | (a & 0xff), b, c, d, 0, 0, 0, 1)))
}
