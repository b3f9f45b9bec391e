//! Server-sent events: a bounded pipe to one follower, a comment every 15 s, an end when the follower leaves or the process closes.

use crate::Shared;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

/// What may wait for a slow follower; more makes the writer wait, never the memory grow.
const PENDING: usize = 64;
const COMMENT_EVERY: Duration = Duration::from_secs(15);

pub(crate) struct Feed {
    pipe: mpsc::Sender<Event>,
    closing: watch::Receiver<bool>,
}

/// The follower has left.
#[derive(Debug)]
pub(crate) struct Left;

impl Feed {
    #[cfg(test)]
    pub(crate) fn to(pipe: mpsc::Sender<Event>, closing: watch::Receiver<bool>) -> Feed {
        Feed { pipe, closing }
    }

    pub(crate) async fn send(&self, event: Event) -> Result<(), Left> {
        self.pipe.send(event).await.map_err(|_| Left)
    }

    /// Waits for news. False: the follower has left or the process is closing.
    pub(crate) async fn wait(&self, news: impl Future<Output = ()>) -> bool {
        let mut closing = self.closing.clone();
        if *closing.borrow() {
            return false;
        }
        tokio::select! {
            () = news => true,
            () = self.pipe.closed() => false,
            _ = closing.changed() => false,
        }
    }
}

/// Starts a task that feeds the answer's stream.
pub(crate) fn stream<F>(state: &Shared, follow: impl FnOnce(Shared, Feed) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (pipe, events) = mpsc::channel(PENDING);
    let feed = Feed { pipe, closing: state.closing.subscribe() };
    tokio::spawn(follow(state.clone(), feed));
    let events = ReceiverStream::new(events).map(Ok::<Event, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(COMMENT_EVERY)).into_response()
}
