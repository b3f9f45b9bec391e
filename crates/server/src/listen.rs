//! Accepts connections and serves HTTP/1.1 on them, over TCP (with or without TLS) and over the unix socket. Bounds what a peer on
//! the network can hold: connections in sum, time for headers, time without reading or writing.

use crate::tls::Tls;
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

/// Connections from the network at once. More wait in the kernel's queue until one ends.
const CONNECTIONS: usize = 8_192;
/// A TLS handshake, the headers of a request, and the pause before the next request each take at most this long.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// A peer that takes nothing of an answer for this long is disconnected.
const WRITES_WITHIN: Duration = Duration::from_secs(60);
/// Buffered of one connection: headers are smaller, bodies pass through.
const BUFFER_BYTES: usize = 64 * 1024;
/// When the process has no more descriptors, it tries again after this.
const ACCEPTS_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Where a request came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Over the unix socket, which only its owner may open.
    Local,
    Remote(IpAddr),
}

impl Peer {
    /// Of a request; one that does not say is not trusted.
    pub(crate) fn of(extensions: &axum::http::Extensions) -> Peer {
        extensions.get::<Peer>().copied().unwrap_or(Peer::Remote(Ipv4Addr::UNSPECIFIED.into()))
    }
}

/// Limits of connections from the network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) connections: usize,
    pub(crate) headers_within: Duration,
    pub(crate) writes_within: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { connections: CONNECTIONS, headers_within: HEADERS_WITHIN, writes_within: WRITES_WITHIN }
    }
}

/// Serves until `closing`, then waits for the answers under way.
pub(crate) async fn tcp(
    listener: TcpListener,
    tls: Option<Tls>,
    app: Router,
    bounds: Bounds,
    mut closing: watch::Receiver<bool>,
) {
    let (room, mut open) = (Arc::new(Semaphore::new(bounds.connections)), JoinSet::new());
    loop {
        let accepted = tokio::select! {
            accepted = async {
                let permit = room.clone().acquire_owned().await.expect("never closed");
                (permit, listener.accept().await)
            } => accepted,
            Some(_) = open.join_next(), if !open.is_empty() => continue,
            () = closed(&mut closing) => break,
        };
        let (permit, (stream, address)) = match accepted {
            (permit, Ok(accepted)) => (permit, accepted),
            (_, Err(error)) => {
                refused(&error).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (app, closing) = (app.clone(), closing.clone());
        let (peer, tls) = (Peer::Remote(address.ip()), tls.as_ref().map(Tls::acceptor));
        open.spawn(async move {
            let _permit = permit;
            let stream = Steady::new(stream, bounds.writes_within);
            match tls {
                None => connection(stream, app, peer, Some(bounds.headers_within), closing).await,
                Some(tls) => match tokio::time::timeout(bounds.headers_within, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, app, peer, Some(bounds.headers_within), closing).await,
                    Ok(Err(error)) => tracing::debug!(%error, %address, "no TLS handshake"),
                    Err(_) => tracing::debug!(%address, "the TLS handshake took too long"),
                },
            }
        });
    }
    while open.join_next().await.is_some() {}
}

/// The same over the unix socket, without limits: who may open it may also stop the process.
pub(crate) async fn unix(listener: UnixListener, app: Router, mut closing: watch::Receiver<bool>) {
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = open.join_next(), if !open.is_empty() => continue,
            () = closed(&mut closing) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                open.spawn(connection(stream, app.clone(), Peer::Local, None, closing.clone()));
            }
            Err(error) => refused(&error).await,
        }
    }
    while open.join_next().await.is_some() {}
}

/// Serves one connection that a relay has brought from another machine, with the same bounds as one from the network.
pub(crate) async fn relayed(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    peer: Peer,
    closing: watch::Receiver<bool>,
) {
    let bounds = Bounds::default();
    let stream = Steady::new(stream, bounds.writes_within);
    connection(stream, app, peer, Some(bounds.headers_within), closing).await;
}

/// A connection that ended before it was accepted means nothing; a lack of descriptors passes.
async fn refused(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "no connection can be accepted");
        tokio::time::sleep(ACCEPTS_AGAIN_AFTER).await;
    }
}

/// Requests of one connection, until either side ends it.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    peer: Peer,
    headers_within: Option<Duration>,
    mut closing: watch::Receiver<bool>,
) {
    let app = TowerToHyperService::new(app);
    let service = hyper::service::service_fn(move |request: axum::http::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        hyper::service::Service::call(&app, request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(headers_within).max_buf_size(BUFFER_BYTES);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = closed(&mut closing) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

pub(crate) async fn closed(closing: &mut watch::Receiver<bool>) {
    while !*closing.borrow() {
        if closing.changed().await.is_err() {
            return;
        }
    }
}

/// A stream whose writes end with an error when the peer takes nothing for too long.
struct Steady<S> {
    inner: S,
    within: Duration,
    waiting: bool,
    deadline: Pin<Box<Sleep>>,
}

impl<S> Steady<S> {
    fn new(inner: S, within: Duration) -> Steady<S> {
        Steady { inner, within, waiting: false, deadline: Box::pin(tokio::time::sleep(within)) }
    }

    fn judged<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.within);
        }
        match self.deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Steady<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Steady<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.judged(cx, written)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.judged(cx, written)
    }
    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.judged(cx, flushed)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.judged(cx, ended)
    }
}
