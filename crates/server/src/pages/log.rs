//! The log of a run: one window of it, found by an offset in a job's log or by the number of a frame in a run of agents. Its last window is
//! followed live. A window is read as bytes of a bounded number and shown as lines.

use super::log_text::{self, Lines, RawLine, Style};
use super::parts;
use super::region;
use super::session::Viewer;
use crate::Shared;
use crate::problem::{HandlerResult, Problem};
use crate::routes::id as parsed;
use axum::http::Uri;
use engine::store::log_file::{LogStream, Placed};
use maud::{Markup, PreEscaped, html};
use model::job::Job;
use model::log::LogId;
use model::{JobId, RunId};
use wire::api::RunView;

/// Bytes of one window.
const WINDOW: i64 = 48 * 1024;

/// Which window.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
struct Wanted {
    job: Option<String>,
    /// Where it begins: an offset in the job's log, or the number of a frame. Without it: the end.
    from: Option<i64>,
}

/// What is shown, and where the windows beside it begin.
struct Window {
    lines: Vec<(Option<String>, RawLine)>,
    from: i64,
    next: i64,
    /// Where the log ends so far.
    end: i64,
}

fn read(query: &str) -> Wanted {
    let uri: Uri = format!("/?{query}").parse().unwrap_or_default();
    axum::extract::Query::<Wanted>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default()
}

/// The end of a log is a live region; what is before it does not change.
pub(crate) async fn page(state: &Shared, viewer: Viewer, run: &RunView, query: &str) -> HandlerResult<Markup> {
    let wanted = read(query);
    // The address of a live region names the job, because hints about bytes are about one log.
    let job = match wanted.job {
        Some(job) => Some(job),
        None if run.kind == "agents" => None,
        None => state.engine.jobs(viewer.org, parsed("run", &run.id)?).await?.1.last().map(|job| job.id.to_string()),
    };
    let src = format!("/ui/runs/{}/log{}", run.id, job.map_or_else(String::new, |job| format!("?job={job}")));
    if wanted.from.is_some() {
        region(state, viewer, &run.id, query).await
    } else {
        region::live(state, viewer, &src).await
    }
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let wanted = read(query);
    let run: RunId = parsed("run", id)?;
    let (seen, jobs) = state.engine.jobs(viewer.org, run).await?;
    if seen.spec.kind == model::spec::RunKind::Agents {
        state.engine.step_logs_are_kept(&seen).await?;
        let window = of_run(state, run, &wanted).await?;
        return Ok(shown(id, &window, &[], None, wanted.from.is_none() && !seen.status.is_end()));
    }
    let job = match &wanted.job {
        Some(job) => {
            let job: JobId = parsed("job", job)?;
            jobs.iter().find(|it| it.id == job).ok_or_else(|| Problem::from(model::Refused::not_found("job", job)))?
        }
        None => match jobs.last() {
            Some(job) => job,
            None => return Ok(html! { p.empty { "It has not written anything: it has not been on a machine yet." } }),
        },
    };
    state.engine.log_is_kept(&seen, vec![job.id]).await?;
    let window = of_job(state, job, &wanted).await?;
    Ok(shown(id, &window, &jobs, Some(job), wanted.from.is_none() && !job.status.is_end()))
}

/// A window of a job's log. The last window begins so that it ends with the log.
async fn of_job(state: &Shared, job: &Job, wanted: &Wanted) -> HandlerResult<Window> {
    let end = state.engine.logs.reached(job.id, job.epoch).await?.total;
    let from = wanted.from.unwrap_or(end - WINDOW).clamp(0, end.max(0));
    let page = state.engine.logs.read(job.id, from, WINDOW).await?;
    let frames: Vec<(Option<String>, Placed)> = page.frames.into_iter().map(|placed| (None, placed)).collect();
    Ok(Window { lines: lines(frames, wanted.from.is_none() && from > 0), from, next: page.next_offset.max(from), end })
}

/// A window of the frames of all steps of a run.
async fn of_run(state: &Shared, run: RunId, wanted: &Wanted) -> HandlerResult<Window> {
    // Frames are of different sizes; about as many as a window has lines.
    const FRAMES: i64 = 300;
    let end = state.engine.logs.last_of_run(run).await?;
    let from = wanted.from.unwrap_or(end - FRAMES).clamp(0, end.max(0));
    let mut after = from;
    let (mut frames, mut bytes) = (Vec::new(), 0);
    while bytes < WINDOW {
        let page = state.engine.logs.read_run(run, after, WINDOW).await?;
        if page.is_empty() {
            break;
        }
        for frame in page {
            after = frame.number;
            bytes += frame.placed.frame.data.len() as i64;
            let step = if let LogId::Step(step) = frame.log { Some(step.id.to_string()) } else { None };
            frames.push((step, frame.placed));
        }
    }
    Ok(Window { lines: lines(frames, false), from, next: after, end })
}

/// Lines of frames; of each log its own. A window that begins inside of a line begins with the next.
fn lines(frames: Vec<(Option<String>, Placed)>, within: bool) -> Vec<(Option<String>, RawLine)> {
    let mut found: Vec<(Option<String>, RawLine)> = Vec::new();
    let mut open: Vec<(Option<String>, Lines)> = Vec::new();
    for (step, placed) in &frames {
        let place = open.iter().position(|(of, _)| of == step).unwrap_or_else(|| {
            open.push((step.clone(), Lines::default()));
            open.len() - 1
        });
        open[place].1.add(placed, &mut |line| found.push((step.clone(), line)));
    }
    for (step, rest) in open {
        found.extend(rest.rest().into_iter().map(|line| (step.clone(), line)));
    }
    if within && !found.is_empty() {
        found.remove(0);
    }
    found
}

fn shown(id: &str, window: &Window, jobs: &[Job], job: Option<&Job>, follows: bool) -> Markup {
    let (base, of) = (format!("/runs/{id}/log"), job.map_or_else(String::new, |job| format!("&job={}", job.id)));
    let at = |from: i64| format!("{base}?from={from}{of}");
    let back = (window.from - if job.is_some() { WINDOW } else { 300 }).max(0);
    let mut style = [Style::default(), Style::default(), Style::default()];
    html! {
        nav.pages aria-label="Windows of the log" {
            @if window.from > 0 { a href=(at(0)) { "Beginning" } a href=(at(back)) { "Earlier" } }
            @if window.next < window.end { a href=(at(window.next)) { "Later" } }
            a href=(if of.is_empty() { base.clone() } else { format!("{base}?{}", &of[1..]) }) { "End" }
            @if jobs.len() > 1 {
                @for (n, one) in jobs.iter().enumerate() {
                    a href=(format!("{base}?job={}", one.id)) aria-current=[(job.map(|job| job.id) == Some(one.id)).then_some("true")] { "Job " (n + 1) }
                }
            }
            span.quiet { @if job.is_some() { (parts::bytes(window.end)) } @else { (window.end) " frames" } @if follows { " · live" } }
        }
        @if window.lines.is_empty() { p.empty { "Nothing was written here." } }
        @else {
            div.log tabindex="0" role="region" aria-label="Log" data-tail=[follows.then_some("")] {
                ol { @for (step, line) in &window.lines {
                    li id=(key(step.as_deref(), line)) class=(class(line.stream)) {
                        a href=(format!("{}#{}", at(window.from), key(step.as_deref(), line))) title=(step.as_deref().unwrap_or_default()) { (parts::moment(line.at_ms)) }
                        span { (PreEscaped(log_text::html(&line.bytes, &mut style[line.stream as usize])))
                            @if line.cut > 0 { i.hidden { " " (line.cut) " bytes more" } } }
                    }
                } }
            }
        }
    }
}

fn key(step: Option<&str>, line: &RawLine) -> String {
    match step {
        Some(step) => format!("{step}-{}", line.offset),
        None => format!("o{}-{}", line.offset, line.stream as usize),
    }
}

fn class(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Stdout => "out",
        LogStream::Stderr => "err",
        _ => "sys",
    }
}
