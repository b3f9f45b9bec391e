//! The log of a run that asks for a call: while it waits, that of the run which executes the call; afterwards the two streams of the result,
//! one after the other.

use crate::Shared;
use crate::follow::{Feed, stream};
use crate::input::last_event_id;
use crate::log::{Cursor, FRAME_BYTES, Filter, Stopped, name_of, tell_backend, tell_end};
use crate::problem::HandlerResult;
use axum::http::HeaderMap;
use axum::response::sse;
use engine::Hint;
use engine::cached_run::{Opened, Output};
use engine::log::Frame;
use futures_util::{Stream, StreamExt as _};
use model::run::{Called, Run, RunStatus};
use model::{Failure, OrgId, RunId, Timestamp};
use wire::Base64;
use wire::api::{LogEnd, LogFrame};

/// How far a follower has come: in the streams of the result, or in the log of the run that executes.
enum Position {
    Result(i64),
    Backend(Cursor),
}

impl Position {
    fn parse(text: &str) -> Option<Position> {
        let bytes = text.parse().ok().filter(|bytes| *bytes >= 0).map(Position::Result);
        bytes.or_else(|| Cursor::parse(text).map(Position::Backend))
    }
}

pub(crate) async fn logs(
    state: &Shared,
    (run, called): (&Run, &Called),
    filter: Filter,
    tail: Option<u64>,
    headers: &HeaderMap,
) -> HandlerResult {
    let seen = last_event_id(headers, "<bytes> or <job>:<offset>, joined by commas", Position::parse)?;
    let (org, id, backend) = (run.org, run.id, called.run);
    let exec = called.exec.clone().filter(|_| run.status.is_end());
    let (output, from) = match (exec, &seen) {
        (Some(_), Some(Position::Backend(_))) | (None, _) => (None, 0),
        (Some(exec), seen) => {
            let output = state.engine.output_of(org, &exec).await?;
            let from = match (seen, tail) {
                (Some(Position::Result(bytes)), _) => *bytes,
                (_, Some(lines)) => before_last(&output, &filter, usize::try_from(lines).unwrap_or(usize::MAX)),
                _ => 0,
            };
            (Some(output), from)
        }
    };
    let end = LogEnd { status: run.status.to_string(), exit_code: run.exit_code, cut: false };
    let at = run.completed_at.unwrap_or(run.created_at);
    Ok(stream(state, move |state, feed| async move {
        let told = match (output, backend) {
            (Some(output), _) => tell_result(&state, &feed, (org, at), &filter, &output, from, &end).await,
            (None, Some(backend)) => {
                let cursor = match seen {
                    Some(Position::Backend(cursor)) => cursor,
                    _ => Cursor::default(),
                };
                tell_execution(&state, &feed, org, (id, backend), &filter, cursor).await
            }
            (None, None) => tell_end(&feed, &end).await,
        };
        if let Err(Stopped::Failed(failure)) = told {
            tracing::warn!(%failure, run = %id, "a log stream ended early");
        }
    }))
}

/// Both streams of a result: what was written to the one, then what was written to the other.
async fn tell_result(
    state: &Shared,
    feed: &Feed,
    (org, at): (OrgId, Timestamp),
    filter: &Filter,
    output: &Output,
    from: i64,
    end: &LogEnd,
) -> Result<(), Stopped> {
    let mut offset = 0;
    for (stream, part) in output.parts() {
        let mut pieces = std::pin::pin!(pieces(state.engine.open_part(org, part)?));
        while let Some(piece) = pieces.next().await {
            for piece in piece.map_err(broken)?.chunks(FRAME_BYTES) {
                let skip = (from - offset).clamp(0, piece.len() as i64);
                let frame = Frame { stream, at, data: piece[skip as usize..].to_vec() };
                let begins = offset + skip;
                offset += piece.len() as i64;
                if !frame.data.is_empty() && filter.wants(&frame) {
                    send(feed, &output.exec, begins, frame).await?;
                }
            }
        }
    }
    tell_end(feed, end).await
}

fn pieces(opened: Opened) -> impl Stream<Item = std::io::Result<Vec<u8>>> + Send {
    match opened {
        Opened::Bytes(bytes) => tokio_stream::once(Ok(bytes)).left_stream(),
        Opened::Blob(blob) => blob.into_stream().right_stream(),
    }
}

fn broken(error: std::io::Error) -> Failure {
    model::Trouble::new(model::TroubleKind::Database, format!("a result cannot be read: {error}")).into()
}

async fn send(feed: &Feed, exec: &str, offset: i64, frame: Frame) -> Result<(), Stopped> {
    let next = offset + frame.data.len() as i64;
    let frame = LogFrame {
        job: exec.to_owned(),
        step: None,
        number: None,
        stream: name_of(frame.stream).to_owned(),
        offset,
        at: frame.at.ms(),
        data: Base64(frame.data),
    };
    let data = serde_json::to_string(&frame).expect("a frame is plain data");
    Ok(feed.send(sse::Event::default().id(next.to_string()).event("log").data(data)).await?)
}

/// Where the last lines of a small result begin; a large one is told whole.
fn before_last(output: &Output, filter: &Filter, lines: usize) -> i64 {
    let (mut offset, mut ends, mut last) = (0, vec![0], 0);
    for (stream, part) in output.parts() {
        let Some(bytes) = part.small() else { return 0 };
        if filter.stream.is_none_or(|wanted| wanted == stream) {
            let breaks = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            ends.extend(breaks.map(|(i, _)| offset + i as i64 + 1));
            last = offset + bytes.len() as i64;
        }
        offset += bytes.len() as i64;
    }
    let unfinished = usize::from(ends.last() != Some(&last));
    match ends.len().checked_sub(lines.saturating_sub(unfinished).saturating_add(1)) {
        Some(before) => ends[before],
        None => 0,
    }
}

/// The log of the run that executes the call, and then the end of the run that waits for it. A caller that leaves is told so at once.
async fn tell_execution(
    state: &Shared,
    feed: &Feed,
    org: OrgId,
    (caller, backend): (RunId, RunId),
    filter: &Filter,
    cursor: Cursor,
) -> Result<(), Stopped> {
    let mut executes = std::pin::pin!(tell_backend(state, feed, org, backend, filter, cursor));
    let mut bell = state.hub.follow(Hint::Run(caller));
    let mut is_told = false;
    loop {
        let seen = state.engine.run(org, caller).await?;
        let over = seen.status == RunStatus::Cancelled || (is_told && seen.status.is_end());
        if over || (is_told && !filter.follow) {
            let end = LogEnd { status: seen.status.to_string(), exit_code: seen.exit_code, cut: false };
            return tell_end(feed, &end).await;
        }
        tokio::select! {
            told = &mut executes, if !is_told => {
                told?;
                is_told = true;
            }
            goes_on = feed.wait(bell.rung()) => {
                if !goes_on {
                    return Err(Stopped::Left);
                }
            }
        }
    }
}
