//! The log of a run of agents: frames of all its steps in the order in which they were stored, each with its number in the run, which is
//! where a follower goes on.

use crate::Shared;
use crate::follow::{Feed, stream};
use crate::input::last_event_id;
use crate::log::{FRAME_BYTES, Filter, PAGE_BYTES, Stopped, name_of, tell_end};
use crate::problem::HandlerResult;
use axum::http::HeaderMap;
use axum::response::sse;
use engine::Hint;
use engine::log::RunFrame;
use model::log::LogId;
use model::run::Run;
use model::{Failure, OrgId, RunId};
use std::collections::VecDeque;
use wire::Base64;
use wire::api::{LogEnd, LogFrame};

pub(crate) async fn logs(
    state: &Shared,
    run: &Run,
    filter: Filter,
    tail: Option<u64>,
    headers: &HeaderMap,
) -> HandlerResult {
    state.engine.step_logs_are_kept(run).await?;
    let (id, org) = (run.id, run.org);
    let told = last_event_id(headers, "the number of a frame", |text| text.parse().ok().filter(|number| *number >= 0))?;
    let after = match (told, tail) {
        (Some(told), _) => told,
        (None, Some(lines)) => before_last(state, id, &filter, lines).await?,
        (None, None) => 0,
    };
    Ok(stream(state, move |state, feed| async move {
        if let Err(Stopped::Failed(failure)) = tell(&state, &feed, (org, id), &filter, after).await {
            tracing::warn!(%failure, run = %id, "a log stream ended early");
        }
    }))
}

async fn tell(
    state: &Shared,
    feed: &Feed,
    (org, run): (OrgId, RunId),
    filter: &Filter,
    mut after: i64,
) -> Result<(), Stopped> {
    // Listened to before anything is read: what comes while an answer is on its way rings afterwards.
    let (mut news, mut frames) = (state.hub.follow(Hint::Run(run)), state.hub.follow(Hint::RunLogs(run)));
    loop {
        // The state first, the frames second: what is complete by this state is complete in the log.
        let seen = state.engine.run(org, run).await?;
        loop {
            let page = state.engine.logs.read_run(run, after, PAGE_BYTES).await?;
            let Some(last) = page.last() else { break };
            after = last.number;
            for frame in page {
                tell_frame(feed, filter, frame).await?;
            }
        }
        if seen.status.is_end() || !filter.follow {
            let end = LogEnd { status: seen.status.to_string(), exit_code: seen.exit_code, cut: false };
            return tell_end(feed, &end).await;
        }
        let either = async {
            tokio::select! { () = news.rung() => {}, () = frames.rung() => {} }
        };
        if !feed.wait(either).await {
            return Err(Stopped::Left);
        }
    }
}

/// A frame that is too long for one event is told in several; the last of them has its number.
async fn tell_frame(feed: &Feed, filter: &Filter, frame: RunFrame) -> Result<(), Stopped> {
    let RunFrame { number, log, placed } = frame;
    if !is_of(filter, log) || !filter.wants(&placed.frame) {
        return Ok(());
    }
    let LogId::Step(step) = log else { return Ok(()) };
    let (mut offset, pieces) = (placed.offset, placed.frame.data.chunks(FRAME_BYTES));
    let count = pieces.len();
    for (n, piece) in pieces.enumerate() {
        let told = LogFrame {
            job: String::new(),
            step: Some(step.id.to_string()),
            number: Some(step.number),
            stream: name_of(placed.frame.stream).to_owned(),
            offset,
            at: placed.frame.at.ms(),
            data: Base64(piece.to_vec()),
        };
        offset += piece.len() as i64;
        let reached = if n + 1 == count { number } else { number - 1 };
        let data = serde_json::to_string(&told).expect("a frame is plain data");
        feed.send(sse::Event::default().id(reached.to_string()).event("log").data(data)).await?;
    }
    Ok(())
}

fn is_of(filter: &Filter, log: LogId) -> bool {
    let wanted = |step| matches!(log, LogId::Step(of) if of.id == step);
    filter.step.is_none_or(wanted)
}

/// The number of the frame behind which the last `lines` lines are. Whole frames: a few lines more may be told.
async fn before_last(state: &Shared, run: RunId, filter: &Filter, lines: u64) -> Result<i64, Failure> {
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    if lines == 0 {
        return state.engine.logs.last_of_run(run).await;
    }
    // Frames that hold the last lines, with how many each ends.
    let (mut held, mut sum, mut after): (VecDeque<(i64, usize)>, usize, i64) = (VecDeque::new(), 0, 0);
    loop {
        let page = state.engine.logs.read_run(run, after, PAGE_BYTES).await?;
        let Some(last) = page.last() else { break };
        after = last.number;
        for frame in page.iter().filter(|frame| is_of(filter, frame.log) && filter.wants(&frame.placed.frame)) {
            let ends = frame.placed.frame.data.iter().filter(|byte| **byte == b'\n').count();
            held.push_back((frame.number, ends));
            sum += ends;
            while held.front().is_some_and(|(_, first)| sum - first >= lines && held.len() > 1) {
                sum -= held.pop_front().map_or(0, |(_, first)| first);
            }
        }
    }
    Ok(held.front().map_or(after, |(number, _)| number - 1))
}
