//! A run's events: a page, or a stream that resumes by number and ends with the run.

use crate::auth::Reader;
use crate::follow::{Feed, stream};
use crate::problem::Answer;
use crate::routes::{Paging, id, page};
use crate::{Shared, now_ms};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::response::sse;
use engine::store::{Event, Hint};
use model::{OrgId, RunId};
use wire::api::EventView;

/// Events read at once.
const AT_ONCE: i64 = 500;

pub(crate) async fn events(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
    headers: HeaderMap,
) -> Answer {
    let run: RunId = id("run", &run)?;
    let org = reader.org();
    let streams =
        headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("text/event-stream"));
    if !streams {
        let (limit, after) = (paging.limit()?, paging.after()?);
        let (_, events, _) = house.engine.events(org, run, after, limit).await?;
        return Ok(page(events, limit, |e| e.seq, |e| view(run, e)).into_response());
    }
    house.engine.run(org, run).await?; // a stream of nothing is a 404, not a silence
    let after = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let after = after.unwrap_or(paging.after()?);
    Ok(stream(&house, move |house, feed| follow(house, feed, org, run, after)))
}

async fn follow(house: Shared, feed: Feed, org: OrgId, run: RunId, mut after: i64) {
    let mut bell = house.hub.follow(Hint::Run(run));
    loop {
        let (status, events, last) = match house.engine.events(org, run, after, AT_ONCE).await {
            Ok((run, events, last)) => (run.status, events, last),
            Err(failure) => return tracing::warn!(%failure, "a stream of events ended early"),
        };
        if after > last {
            // The follower knows more than we do: the database lost its end, so everything is told again.
            after = 0;
            let reset = sse::Event::default().event("reset").data(now_ms().to_string());
            if feed.send(reset).await.is_err() {
                return;
            }
            continue;
        }
        let full = events.len() as i64 == AT_ONCE;
        for event in events {
            after = event.seq;
            let data = serde_json::to_string(&view(run, &event)).expect("a view is plain data");
            let told = sse::Event::default().id(event.seq.to_string()).event(event.kind.clone()).data(data);
            if feed.send(told).await.is_err() {
                return;
            }
        }
        if full {
            continue;
        }
        if status.is_end() || !feed.wait(bell.rung()).await {
            return;
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
