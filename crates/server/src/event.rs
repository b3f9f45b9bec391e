//! A run's events: a page, or a stream that resumes by number and ends with the run. New events are read from the database once
//! per run, and sent from memory to all its followers.

use crate::auth::Reader;
use crate::follow::{Feed, stream};
use crate::input::last_event_id;
use crate::problem::HandlerResult;
use crate::routes::{Paging, Path, Query, id, page};
use crate::{Shared, now_ms};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::response::sse;
use engine::{Event, Hint};
use model::{Failure, OrgId, RunId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{broadcast, watch};
use wire::api::EventView;

/// Events read at once.
const AT_ONCE: i64 = 500;
/// What a follower may be behind before it reads for itself again.
const REMEMBERED: usize = 1024;

pub(crate) async fn events(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
    headers: HeaderMap,
) -> HandlerResult {
    let run: RunId = id("run", &run)?;
    let org = reader.org();
    let told = last_event_id(&headers, "the number of an event", |text| text.parse().ok().filter(|n: &i64| *n >= 0))?;
    let accepts = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    if !accepts.is_some_and(|v| v.contains("text/event-stream")) {
        let (limit, after) = (paging.limit()?, paging.after()?);
        let (_, events, _) = state.engine.events(org, run, after, limit).await?;
        return Ok(page(events, limit, |e| e.seq, |e| view(run, e)).into_response());
    }
    state.engine.run(org, run).await?; // a stream of nothing is a 404, not a silence
    let after = told.unwrap_or(paging.after()?);
    Ok(stream(&state, move |state, feed| async move {
        if let Err(failure) = follow(state, feed, org, run, after).await {
            tracing::warn!(%failure, %run, "a stream of events ended early");
        }
    }))
}

/// Catches up from the database, then listens. A follower that falls behind catches up again.
async fn follow(state: Shared, feed: Feed, org: OrgId, run: RunId, mut after: i64) -> Result<(), Failure> {
    let source = state.sources.of(&state, org, run);
    loop {
        let mut news = source.news.subscribe();
        let (status, events, last) = state.engine.events(org, run, after, AT_ONCE).await?;
        if after > last {
            // The follower knows more than we do: the database lost its end, so everything is told again.
            after = 0;
            let reset = sse::Event::default().event("reset").data(now_ms().to_string());
            if feed.send(reset).await.is_err() {
                return Ok(());
            }
            continue;
        }
        let full = events.len() as i64 == AT_ONCE;
        for event in &events {
            after = event.seq;
            if feed.send(Told::new(run, event).shown()).await.is_err() {
                return Ok(());
            }
        }
        if full {
            continue;
        }
        if status.status.is_end() {
            return Ok(());
        }
        loop {
            let told = tokio::select! {
                told = news.recv() => told,
                gone = feed.wait(std::future::pending()) => { debug_assert!(!gone); return Ok(()) }
            };
            match told {
                Ok(News::Event(told)) if told.number == after + 1 => {
                    after = told.number;
                    if feed.send(told.shown()).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(News::Event(told)) if told.number <= after => {}
                Ok(News::Reached { last, ended }) if last <= after => {
                    if ended {
                        return Ok(());
                    }
                }
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
                _ => break, // something was missed: back to the database
            }
        }
    }
}

/// One reader a followed run; gone with its last follower.
#[derive(Default)]
pub(crate) struct Sources {
    runs: Mutex<HashMap<RunId, Weak<Source>>>,
}

struct Source {
    news: broadcast::Sender<News>,
    /// Dropped with the last follower; that ends the reading task.
    _alive: watch::Sender<()>,
}

#[derive(Clone)]
enum News {
    Event(Arc<Told>),
    /// Nothing is newer than this. A follower that has less missed something before it listened.
    Reached {
        last: i64,
        ended: bool,
    },
}

struct Told {
    number: i64,
    kind: String,
    data: String,
}

impl Told {
    fn new(run: RunId, event: &Event) -> Told {
        let data = serde_json::to_string(&view(run, event)).expect("a view is plain data");
        Told { number: event.seq, kind: event.kind.clone(), data }
    }
    fn shown(&self) -> sse::Event {
        sse::Event::default().id(self.number.to_string()).event(&self.kind).data(&self.data)
    }
}

impl Sources {
    fn of(&self, state: &Shared, org: OrgId, run: RunId) -> Arc<Source> {
        let mut runs = self.runs.lock().expect("no panic while locked");
        if let Some(source) = runs.get(&run).and_then(Weak::upgrade) {
            return source;
        }
        runs.retain(|_, source| source.strong_count() > 0);
        let (alive, gone) = watch::channel(());
        let source = Arc::new(Source { news: broadcast::channel(REMEMBERED).0, _alive: alive });
        runs.insert(run, Arc::downgrade(&source));
        tokio::spawn(read(state.clone(), Arc::downgrade(&source), gone, org, run));
        source
    }
}

/// Reads new events whenever a hint about the run arrives, as long as it has a follower.
async fn read(state: Shared, source: Weak<Source>, mut gone: watch::Receiver<()>, org: OrgId, run: RunId) {
    let mut bell = state.hub.follow(Hint::Run(run));
    let mut closing = state.closing.subscribe();
    let mut last = None;
    loop {
        let from = match last {
            Some(last) => state.engine.events(org, run, last, AT_ONCE).await,
            // Followers read the past themselves: only what comes from now on is told here.
            None => state.engine.events(org, run, i64::MAX - 1, 1).await,
        };
        let (state, events, newest) = match from {
            Ok(found) => found,
            Err(failure) => return tracing::warn!(%failure, %run, "the events of a run could not be read"),
        };
        let Some(source) = source.upgrade() else { return };
        let reached = events.last().map_or(last.unwrap_or(newest), |event| event.seq);
        let full = events.len() as i64 == AT_ONCE;
        for event in &events {
            // An error means that no follower listens just now.
            let _ = source.news.send(News::Event(Arc::new(Told::new(run, event))));
        }
        last = Some(reached);
        if full {
            continue;
        }
        let ended = state.status.is_end() && reached >= newest;
        let _ = source.news.send(News::Reached { last: reached, ended });
        drop(source);
        tokio::select! {
            () = bell.rung() => {}
            _ = gone.changed() => return,
            _ = closing.changed() => return,
        }
    }
}

fn view(run: RunId, event: &Event) -> EventView {
    EventView {
        number: event.seq,
        at: event.at.ms(),
        kind: event.kind.clone(),
        run: Some(run.to_string()),
        body: event.body.clone(),
    }
}
