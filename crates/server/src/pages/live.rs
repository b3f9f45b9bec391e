//! Keeps regions of open pages up to date. One renderer per followed region renders again when a hint says that something changed, at
//! most twice a second; browsers are told the hash of the new fragment and fetch it, which is answered from memory. So a thousand
//! viewers of one region cost the reads of one.

use super::fragments::{Cache, Key, Turns};
use super::region;
use super::session::{Viewer, Visitor};
use crate::Shared;
use crate::follow::{Feed, stream as sse_stream};
use crate::now_ms;
use crate::problem::HandlerResult;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use engine::Hint;
use futures_util::future::select_all;
use futures_util::stream::{StreamExt as _, select_all as merged};
use percent_encoding::percent_decode_str;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// The pause between two renders of one region.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
/// The same of a search, which reads up to 10,000 rows; and how many searches are rendered at once.
pub(super) const SEARCH_PAUSE: Duration = Duration::from_secs(5);
const SEARCHES: usize = 2;
/// A region that could not be rendered is tried again after this, also without a hint.
const AGAIN: Duration = Duration::from_secs(5);
/// Machines are rendered again after this, also without a hint.
const MACHINES_EVERY: Duration = Duration::from_secs(15);
/// Bytes of fragments that are kept.
const KEPT_BYTES: usize = 64 << 20;
/// Regions of one browser; a page has fewer than ten.
const REGIONS: usize = 200;
/// Regions of one process.
const SOURCES: usize = 20_000;
/// An open stream counts as activity: the control plane of a person who looks does not end.
const ACTIVE_EVERY: Duration = Duration::from_secs(30);
/// A browser that was cut off comes again after this, and up to as much again, so that not all come at once.
const RETRY_MS: u64 = 1_000;

pub(crate) struct Live {
    sources: Mutex<HashMap<Key, Weak<Source>>>,
    cache: Mutex<Cache>,
    /// Page loads, and requests for regions that are not kept.
    turns: Turns,
    pub(crate) searching: Semaphore,
    /// Fragments that were rendered for followers, and for requests: for tests.
    pub(crate) renders: std::sync::atomic::AtomicU64,
    pub(crate) loads: std::sync::atomic::AtomicU64,
    /// Streams that are open.
    pub(crate) streams: std::sync::atomic::AtomicU64,
    /// How often an open stream counts as a request.
    pub(crate) active_every: Duration,
    /// How long machines stay as they were rendered.
    pub(crate) machines_every: Duration,
}

/// An open stream, counted as long as this lives.
struct Counted(Shared);

impl Counted {
    fn new(state: &Shared) -> Counted {
        state.pages.live.streams.fetch_add(1, Ordering::Relaxed);
        Counted(state.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.pages.live.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Live {
    fn default() -> Live {
        let (sources, turns, renders, loads, streams) = Default::default();
        let (cache, searching) = (Mutex::new(Cache::of(KEPT_BYTES)), Semaphore::new(SEARCHES));
        let (active_every, machines_every) = (ACTIVE_EVERY, MACHINES_EVERY);
        Live { sources, cache, turns, searching, renders, loads, streams, active_every, machines_every }
    }
}

/// When a region is rendered again.
#[derive(Debug, PartialEq)]
pub(super) struct Pace {
    /// At the earliest.
    pub(super) pause: Duration,
    /// At the latest, also without a hint.
    pub(super) every: Option<Duration>,
    pub(super) is_search: bool,
}

struct Source {
    /// The hash of the newest fragment; none before the first.
    version: watch::Receiver<Option<u64>>,
    /// Dropped with the last follower; that ends the renderer.
    _alive: watch::Sender<()>,
}

impl Live {
    /// The newest fragment of a region that is followed, with its hash.
    pub(crate) fn kept(&self, viewer: Viewer, src: &str) -> Option<(u64, Arc<str>)> {
        let key = Key { viewer, src: src.to_owned() };
        let followed =
            self.sources.lock().expect("no panic while locked").get(&key).is_some_and(|it| it.strong_count() > 0);
        if !followed {
            return None;
        }
        self.cache.lock().expect("no panic while locked").get(&key)
    }

    /// A region as it is now, for a request. Requests that come at once share a render.
    pub(crate) async fn read(&self, state: &Shared, viewer: Viewer, src: &str) -> HandlerResult<Arc<str>> {
        let render = async {
            self.loads.fetch_add(1, Ordering::Relaxed);
            Ok(region::render(state, viewer, src).await?.into_string().into())
        };
        self.turns.shared(Key { viewer, src: src.to_owned() }, render).await
    }

    /// Keeps the newest fragment of a region that is followed again, if there was no room for it since.
    pub(crate) fn put_back(&self, viewer: Viewer, src: &str, version: u64, html: Arc<str>) {
        let key = Key { viewer, src: src.to_owned() };
        let source = self.sources.lock().expect("no panic while locked").get(&key).and_then(Weak::upgrade);
        if source.is_some_and(|source| *source.version.borrow() == Some(version)) {
            self.cache.lock().expect("no panic while locked").put(&key, version, html);
        }
    }

    fn follow(&self, state: &Shared, viewer: Viewer, src: &str) -> Option<Arc<Source>> {
        let key = Key { viewer, src: src.to_owned() };
        let mut sources = self.sources.lock().expect("no panic while locked");
        if let Some(source) = sources.get(&key).and_then(Weak::upgrade) {
            return Some(source);
        }
        sources.retain(|_, source| source.strong_count() > 0);
        if sources.len() >= SOURCES {
            return None;
        }
        let hints = region::hints(viewer.org, src)?;
        let (versions, version) = watch::channel(None);
        let (alive, gone) = watch::channel(());
        let source = Arc::new(Source { version, _alive: alive });
        sources.insert(key.clone(), Arc::downgrade(&source));
        tokio::spawn(render(state.clone(), key, hints, versions, gone));
        Some(source)
    }
}

pub(crate) fn hash(html: &str) -> u64 {
    let bytes = *blake3::hash(html.as_bytes()).as_bytes();
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Renders a region whenever one of its hints arrives, and some from time to time, as long as it has a follower.
async fn render(
    state: Shared,
    key: Key,
    hints: Vec<Hint>,
    versions: watch::Sender<Option<u64>>,
    mut gone: watch::Receiver<()>,
) {
    // Listened to before the first read: what changes meanwhile rings afterwards.
    let mut bells: Vec<_> = hints.into_iter().map(|hint| state.hub.follow(hint)).collect();
    let mut closing = state.closing.subscribe();
    let Pace { pause, every, is_search } = region::pace(&key.src, state.pages.live.machines_every);
    loop {
        let searching = match is_search {
            true => state.pages.live.searching.acquire().await.ok(),
            false => None,
        };
        let began = Instant::now();
        state.pages.live.renders.fetch_add(1, Ordering::Relaxed);
        // What cannot be shown any more is said in its place: an old text would pass for the present one. What never could has no version.
        let (html, failed) = match region::render(&state, key.viewer, &key.src).await {
            Ok(html) => (html, false),
            Err(problem) => (super::parts::problem(&problem, None), true),
        };
        drop(searching);
        let html: Arc<str> = html.into_string().into();
        let version = hash(&html);
        let before = *versions.borrow();
        let again = failed && before.is_some();
        if before != Some(version) && (again || !failed) {
            state.pages.live.cache.lock().expect("no panic while locked").put(&key, version, html);
            versions.send_replace(Some(version));
        }
        let rung = select_all(bells.iter_mut().map(|bell| Box::pin(bell.rung())));
        tokio::select! {
            _ = rung => {}
            () = tokio::time::sleep(AGAIN), if again => {}
            () = tokio::time::sleep(every.unwrap_or_default()), if every.is_some() => {}
            _ = gone.changed() => break,
            _ = closing.changed() => break,
        }
        tokio::select! {
            () = tokio::time::sleep_until(began + pause) => {}
            _ = gone.changed() => break,
        }
    }
    state.pages.live.cache.lock().expect("no panic while locked").remove(&key);
}

/// `GET /ui/live?r=…&r=…`: versions of these regions, and of each again when it changes.
pub(crate) async fn stream(State(state): State<Shared>, visitor: Visitor, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let wanted = query.split('&').filter_map(|pair| pair.strip_prefix("r="));
    let wanted: Vec<String> =
        wanted.filter_map(|src| percent_decode_str(src).decode_utf8().ok()).map(Into::into).collect();
    if wanted.len() > REGIONS {
        return StatusCode::BAD_REQUEST.into_response();
    }
    sse_stream(&state, move |state, feed| follow(state, feed, visitor, wanted))
}

async fn follow(state: Shared, feed: Feed, visitor: Visitor, wanted: Vec<String>) {
    let _counted = Counted::new(&state);
    let mut revoked = state.hub.follow(Hint::Tokens);
    if !visitor.is_good(&state).await {
        return;
    }
    let viewer = visitor.viewer();
    let sources: Vec<(String, Arc<Source>)> = wanted
        .into_iter()
        .filter_map(|src| Some((src.clone(), state.pages.live.follow(&state, viewer, &src)?)))
        .collect();
    let jitter = u64::from_le_bytes(blake3::hash(visitor.secret.as_bytes()).as_bytes()[..8].try_into().expect("eight"));
    let retry = Duration::from_millis(RETRY_MS + jitter % RETRY_MS);
    let hello = Event::default().event("build").retry(retry).data(super::build());
    if feed.send(hello).await.is_err() {
        return;
    }
    let versions = sources.iter().map(|(src, source)| {
        let src = src.clone();
        tokio_stream::wrappers::WatchStream::new(source.version.clone())
            .filter_map(move |version| std::future::ready(version.map(|version| (src.clone(), version))))
            .boxed()
    });
    let mut versions = merged(versions);
    let until = Duration::from_millis((visitor.until.ms() - now_ms()).max(0) as u64);
    let mut ends = std::pin::pin!(tokio::time::sleep(until));
    let mut active = tokio::time::interval(state.pages.live.active_every);
    loop {
        tokio::select! {
            Some((src, version)) = versions.next() => {
                let data = serde_json::json!({ "src": src, "v": format!("{version:016x}") }).to_string();
                if feed.send(Event::default().event("v").data(data)).await.is_err() {
                    return;
                }
            }
            () = revoked.rung() => {
                state.pages.forget_sessions();
                if !visitor.is_good(&state).await {
                    let _ = feed.send(Event::default().event("over").data("")).await;
                    return;
                }
            }
            () = &mut ends => {
                let _ = feed.send(Event::default().event("over").data("")).await;
                return;
            }
            _ = active.tick() => state.asked_at.store(now_ms(), Ordering::Relaxed),
            gone = feed.wait(std::future::pending()) => { debug_assert!(!gone); return }
        }
    }
}
