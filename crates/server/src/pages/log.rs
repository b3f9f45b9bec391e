//! The log of a run: one window of it, found by an offset in a job's log or by the number of a frame in a run of agents. Its last window is
//! followed live; of a job that failed the window with the first failure comes first. Searched, and downloaded as it was written.

use super::log_search::{Hit, Needle, Place, RunFound, RunPlace};
use super::log_text::{self, Lines, Style};
use super::log_window::{self, WINDOW_BYTES};
use super::session::{Viewer, Visitor};
use super::{OrShown as _, PageResult, parts, region};
use crate::Shared;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::routes::{download, id as parsed};
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use engine::log::LogStream;
use futures_util::stream;
use maud::{Markup, PreEscaped, html};
use model::job::{Job, JobStatus};
use model::log::LogId;
use model::run::{Run, RunStatus};
use model::spec::RunKind;
use model::step::{Step, StepStatus};
use model::{JobId, Refused, RunId, StepId};
use std::collections::HashMap;
use std::sync::Arc;
use wire::api::RunView;

/// Frames of one window of a run of agents, and their bytes.
const FRAMES: i64 = 300;
const FRAME_BYTES: i64 = 48 * 1024;

/// Which window, or what is looked for.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    job: Option<String>,
    /// Only of this step.
    step: Option<String>,
    /// Where it begins: an offset in the job's log, the number of a frame, or `end`.
    from: Option<String>,
    q: Option<String>,
    /// Whether `q` is an expression.
    re: Option<String>,
    /// Where a search goes on.
    on: Option<String>,
}

impl Wanted {
    fn read(query: &str) -> Wanted {
        let uri: Uri = format!("/?{query}").parse().unwrap_or_default();
        axum::extract::Query::<Wanted>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default()
    }
    fn offset(&self) -> Option<i64> {
        self.from.as_deref().and_then(|from| from.parse().ok())
    }
}

struct Shown {
    key: String,
    at_ms: i64,
    stream: LogStream,
    html: String,
    cut: bool,
    title: String,
    /// The first line that says what went wrong.
    fails: bool,
}

/// What is shown, and where the windows beside it begin.
struct Window {
    lines: Vec<Shown>,
    from: i64,
    before: Option<i64>,
    next: Option<i64>,
    size: String,
    follows: bool,
}

/// One log of a run: of a job, or of the present try of a step.
struct Of {
    log: LogId,
    epoch: i64,
    ended: bool,
    failed: bool,
    /// What names it in addresses.
    named: String,
}

impl Of {
    fn job(job: &Job) -> Of {
        let (ended, failed) = (job.status.is_end(), job.status == JobStatus::Failed);
        Of { log: job.id.into(), epoch: job.epoch, ended, failed, named: format!("job={}", job.id) }
    }

    /// None: it has no log, because it does not run on a machine, or has not begun.
    fn step(step: &Step, jobs: &[Job]) -> Option<Of> {
        if let Some(job) = jobs.iter().rfind(|job| job.step.is_some_and(|of| of.id == step.id)) {
            return Some(Of::job(job));
        }
        let epoch = step.on.as_ref().map(|_| 0)?;
        let (ended, failed) = (step.status.is_end(), step.status == StepStatus::Failed);
        Some(Of { log: step.present_try().into(), epoch, ended, failed, named: format!("step={}", step.id) })
    }
}

/// What a page is about: the run, its jobs, and which of its logs. None: all of a run of agents, or nothing was on a machine yet.
async fn chosen(
    state: &Shared,
    viewer: Viewer,
    run: &str,
    wanted: &Wanted,
) -> HandlerResult<(Run, Vec<Job>, Option<Of>)> {
    let run: RunId = parsed("run", run)?;
    let (seen, jobs) = state.engine.jobs(viewer.org, run).await?;
    let agents = seen.spec.kind == RunKind::Agents;
    let of = match (&wanted.step, &wanted.job) {
        (Some(step), _) => {
            let step: StepId = parsed("step", step)?;
            let found = state.engine.step(viewer.org, run, step).await?.step;
            Some(
                Of::step(&found, if agents { &[][..] } else { &jobs })
                    .ok_or_else(|| Refused::not_found("log of", step))?,
            )
        }
        (None, _) if agents => None,
        (None, Some(named)) => {
            let id: JobId = parsed("job", named)?;
            let found = jobs.iter().find(|job| job.id == id);
            Some(found.map(Of::job).ok_or_else(|| Refused::not_found("job", id))?)
        }
        (None, None) => jobs.last().map(Of::job),
    };
    match &of {
        Some(Of { log: LogId::Job(job), .. }) => state.engine.log_is_kept(&seen, vec![*job]).await?,
        _ if agents => state.engine.step_logs_are_kept(&seen).await?,
        _ => {}
    }
    Ok((seen, jobs, of))
}

/// The end of a log is a live region; what is before it does not change.
pub(crate) async fn page(state: &Shared, viewer: Viewer, run: &RunView, query: &str) -> HandlerResult<Markup> {
    let wanted = Wanted::read(query);
    let (seen, _, of) = chosen(state, viewer, &run.id, &wanted).await?;
    let named = of.as_ref().map_or_else(String::new, |of| format!("?{}", of.named));
    let searched = match wanted.q.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(search(state, (&seen, of.as_ref()), text, &wanted).await?),
        None => None,
    };
    // The address of a live region names the job, because hints about bytes are about one log.
    let src = format!("/ui/runs/{}/log{named}", run.id);
    let ends = wanted.from.is_none() || wanted.from.as_deref() == Some("end");
    // A live region would open at the first failure, also where the end is asked for; and nothing more is written here.
    let failed = of.as_ref().map_or(run.status == "failed", |of| of.failed);
    let window = if ends && !failed {
        region::live(state, viewer, &src).await?
    } else {
        region(state, viewer, &run.id, query).await?
    };
    Ok(html! {
        form.filters method="get" action=(format!("/runs/{}/log", run.id)) role="search" {
            @if let Some(job) = &wanted.job { input type="hidden" name="job" value=(job); }
            @if let Some(step) = &wanted.step { input type="hidden" name="step" value=(step); }
            label { span { "Find in the log" } input type="search" id="search" name="q" value=(parts::visible(wanted.q.as_deref().unwrap_or_default())) spellcheck="false"; }
            label.tick { input type="checkbox" name="re" value="1" checked[wanted.re.is_some()]; " expression" }
            button type="submit" { "Find" }
            a href=(format!("/runs/{}/log/raw{named}", run.id)) download { "Download" }
        }
        @if let Some(step) = &wanted.step {
            p.quiet { "Of the step " a href=(format!("/runs/{}/steps/{step}", run.id)) { (step) } ". " a href=(format!("/runs/{}/log", run.id)) { "The whole log" } }
        }
        @if let Some(searched) = searched { (searched) }
        (window)
    })
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let wanted = Wanted::read(query);
    let (seen, jobs, of) = chosen(state, viewer, id, &wanted).await?;
    match of {
        Some(of) => Ok(shown(id, &of_log(state, &of, &wanted).await?, &jobs, &of.named)),
        None if seen.spec.kind == RunKind::Agents => Ok(shown(id, &of_run(state, &seen, &wanted).await?, &[], "")),
        None => Ok(html! { p.empty { "It has not written anything: it has not been on a machine yet." } }),
    }
}

/// The end of the log of one step, for its page. None: it has none.
pub(crate) async fn of_step(
    state: &Shared,
    viewer: Viewer,
    run: &RunView,
    step: &str,
) -> HandlerResult<Option<Markup>> {
    let wanted = Wanted { step: Some(step.to_owned()), ..Wanted::default() };
    let of = match chosen(state, viewer, &run.id, &wanted).await {
        Ok((_, _, Some(of))) => of,
        Ok(_) => return Ok(None),
        Err(problem) if problem.status() == StatusCode::GONE => {
            return Ok(Some(html! { p.quiet { (parts::visible(problem.detail())) } }));
        }
        Err(problem) if problem.status() == StatusCode::NOT_FOUND => return Ok(None),
        Err(problem) => return Err(problem),
    };
    let src = format!("/ui/runs/{}/log?{}", run.id, of.named);
    let shown = region(state, viewer, &run.id, &of.named).await?;
    let window = if of.failed { shown } else { region::around(&src, shown) };
    Ok(Some(html! {
        p { a href=(format!("/runs/{}/log?{}", run.id, of.named)) { "Search it or download it" } }
        (window)
    }))
}

async fn of_log(state: &Shared, of: &Of, wanted: &Wanted) -> HandlerResult<Window> {
    let total = state.engine.logs.reached(of.log, of.epoch).await?.total;
    let failure = match wanted.from.as_deref() {
        None if of.failed => state.pages.searches.first_failure(&state.engine.logs, of.log).await?,
        _ => None,
    };
    let found = match wanted.offset().or(failure.map(|it| it.from)) {
        Some(from) if of.ended => state.pages.windows.window(&state.engine.logs, of.log, from).await?,
        Some(from) => Arc::new(log_window::window(&state.engine.logs, of.log, from).await?),
        None => Arc::new(log_window::last(&state.engine.logs, of.log, total).await?),
    };
    let lines = found.lines.iter().map(|line| Shown {
        key: format!("o{}-{}", line.offset, line.stream as usize),
        at_ms: line.at_ms,
        stream: line.stream,
        html: line.html.clone(),
        cut: line.cut,
        title: String::new(),
        fails: failure.is_some_and(|it| (it.offset, it.stream) == (line.offset, line.stream)),
    });
    Ok(Window {
        lines: lines.collect(),
        from: found.from,
        before: found.before(),
        next: found.more.then_some(found.next),
        size: parts::bytes(total),
        follows: wanted.offset().is_none() && failure.is_none() && !of.ended,
    })
}

/// A window of the frames of all steps of a run, each log with lines of its own.
async fn of_run(state: &Shared, seen: &Run, wanted: &Wanted) -> HandlerResult<Window> {
    let (run, ended) = (seen.id, seen.status.is_end());
    let end = state.engine.logs.last_of_run(run).await?;
    let failure = match wanted.from {
        None if seen.status == RunStatus::Failed => {
            state.pages.searches.first_failure_of_run(&state.engine.logs, run, end).await?
        }
        _ => None,
    };
    let from = wanted.offset().or(failure.map(|it| it.from)).unwrap_or(end - FRAMES).clamp(0, end.max(0));
    let (mut after, mut bytes) = (from, 0);
    let (mut open, mut found): (Vec<(LogId, Lines)>, Vec<(LogId, log_text::RawLine)>) = (Vec::new(), Vec::new());
    while bytes < FRAME_BYTES {
        let page = state.engine.logs.read_run(run, after, FRAME_BYTES).await?;
        let Some(last) = page.last() else { break };
        after = last.number;
        for frame in page {
            bytes += frame.placed.frame.data.len() as i64;
            let place = open.iter().position(|(of, _)| *of == frame.log).unwrap_or_else(|| {
                open.push((frame.log, Lines::default()));
                open.len() - 1
            });
            open[place].1.add(&frame.placed, &mut |line| found.push((frame.log, line)));
        }
    }
    for (log, rest) in open {
        found.extend(rest.rest().into_iter().map(|line| (log, line)));
    }
    // Of each stream of each step: its colours go on behind the lines of others.
    let mut styles: HashMap<(LogId, usize), Style> = HashMap::new();
    let lines = found.iter().map(|(log, line)| {
        let style = styles.entry((*log, line.stream as usize)).or_default();
        let step = step_of(*log);
        Shown {
            key: format!("{step}-{}-{}", line.offset, line.stream as usize),
            at_ms: line.at_ms,
            stream: line.stream,
            html: log_text::html(&line.bytes, style),
            cut: line.cut > 0,
            fails: failure.is_some_and(|it| (it.log, it.offset, it.stream) == (*log, line.offset, line.stream)),
            title: step,
        }
    });
    Ok(Window {
        lines: lines.collect(),
        from,
        before: (from > 0).then(|| (from - FRAMES).max(0)),
        next: (after < end).then_some(after),
        size: format!("{end} pieces"),
        follows: wanted.offset().is_none() && failure.is_none() && !ended,
    })
}

fn shown(id: &str, window: &Window, jobs: &[Job], named: &str) -> Markup {
    let (base, of) = (format!("/runs/{id}/log"), if named.is_empty() { String::new() } else { format!("&{named}") });
    let at = |from: i64| format!("{base}?from={from}{of}");
    html! {
        nav.pages aria-label="Windows of the log" {
            @if let Some(before) = window.before { a href=(at(0)) { "Beginning" } a rel="prev" href=(at(before)) { "Earlier" } }
            @if let Some(next) = window.next { a rel="next" href=(at(next)) { "Later" } }
            a href=(format!("{base}?from=end{of}")) { "End" }
            @if jobs.len() > 1 {
                @for (n, one) in jobs.iter().enumerate() {
                    a href=(format!("{base}?job={}", one.id)) aria-current=[(named == format!("job={}", one.id)).then_some("true")] { "Job " (n + 1) }
                }
            }
            span.quiet { (window.size) @if window.follows { " · live" } }
        }
        @if window.lines.is_empty() { p.empty { "Nothing was written here." } }
        @else {
            div.log tabindex="0" role="region" aria-label="Log" data-tail=[window.follows.then_some("")] {
                ol { @for line in &window.lines {
                    li id=(line.key) class=(format!("{}{}", class(line.stream), if line.fails { " fails" } else { "" })) {
                        a href=(format!("{base}?from={}{of}#{}", window.from, line.key)) title=[Some(&line.title).filter(|it| !it.is_empty())] { (parts::clock_time(line.at_ms)) }
                        @if line.fails { i.away { "The first line that says what went wrong:" } }
                        span { (PreEscaped(&line.html)) @if line.cut { i.hidden { "cut" } } }
                    }
                } }
            }
        }
    }
}

fn class(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Stdout => "out",
        LogStream::Stderr => "err",
        _ => "sys",
    }
}

async fn search(state: &Shared, (run, of): (&Run, Option<&Of>), text: &str, wanted: &Wanted) -> HandlerResult<Markup> {
    let needle = if wanted.re.is_some() { Needle::expression(text)? } else { Needle::literal(text)? };
    let (searches, logs, on) = (&state.pages.searches, &state.engine.logs, wanted.on.as_deref());
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let asked = format!("q={}{}", encode(text), if wanted.re.is_some() { "&re=1" } else { "" });
    let base = format!("/runs/{}/log", run.id);
    if let Some(of) = of {
        let from = on.map_or(Ok(Place::at(0)), str::parse)?;
        let found = searches.search(logs, of.log, needle, from).await?;
        let base = format!("{base}?{}", of.named);
        let lines = found.hits.iter().map(|hit| {
            let to = format!("{base}&from={0}#o{0}-{1}", hit.offset, hit.stream as usize);
            (to, String::new(), hit)
        });
        let on = found.go_on.map(|on| (parts::bytes(on.reached()), format!("{base}&{asked}&on={on}")));
        return Ok(hits(&lines.collect::<Vec<_>>(), on));
    }
    let from = on.map_or(Ok(RunPlace::default()), str::parse)?;
    let found: RunFound = searches.search_run(logs, run.id, needle, from).await?;
    let lines = found.hits.iter().map(|it| {
        let (step, hit) = (step_of(it.log), &it.hit);
        let to = format!("{base}?from={}#{step}-{}-{}", (it.frame - 1).max(0), hit.offset, hit.stream as usize);
        (to, step, hit)
    });
    let on = found.go_on.map(|on| (format!("piece {}", on.reached()), format!("{base}?{asked}&on={on}")));
    Ok(hits(&lines.collect::<Vec<_>>(), on))
}

fn step_of(log: LogId) -> String {
    if let LogId::Step(step) = log { step.id.to_string() } else { String::new() }
}

/// Lines with where they are and their step, and how far the search has come and where it goes on.
fn hits(found: &[(String, String, &Hit)], on: Option<(String, String)>) -> Markup {
    html! {
        section aria-label="Found" {
            p.quiet { (parts::counted(found.len() as i64, "line", "lines")) @if let Some((reached, on)) = on { " up to " (reached) ". " a href=(on) { "Go on" } } }
            @if !found.is_empty() { div.log tabindex="0" role="region" aria-label="Found lines" { ol {
                @for (to, step, hit) in found { li class=(class(hit.stream)) {
                    a href=(to) title=[Some(step).filter(|it| !it.is_empty())] { (parts::moment(hit.at_ms)) }
                    span { (parts::visible(&hit.before)) mark { (parts::visible(&hit.found)) } (parts::visible(&hit.behind)) }
                } }
            } } }
        }
    }
}

/// The bytes as they were written, of one job or of all steps of a run.
pub(crate) async fn raw(
    State(state): State<Shared>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(wanted): Query<Wanted>,
) -> PageResult {
    let (seen, _, of) = chosen(&state, visitor.viewer(), &id, &wanted).await.or_shown(&visitor)?;
    let (logs, run) = (state.engine.logs.clone(), seen.id);
    let Some(log) = of.as_ref().map(|of| of.log) else {
        // Of a run that has not been on a machine there is nothing.
        let pieces = stream::try_unfold(0, move |after| {
            let logs = logs.clone();
            async move {
                let page = logs.read_run(run, after, WINDOW_BYTES).await.map_err(std::io::Error::other)?;
                let Some(last) = page.last().map(|frame| frame.number) else { return Ok::<_, std::io::Error>(None) };
                Ok(Some((page.into_iter().flat_map(|frame| frame.placed.frame.data).collect::<Vec<u8>>(), last)))
            }
        });
        return Ok(download(&format!("{id}.log"), Body::from_stream(pieces)));
    };
    let pieces = stream::try_unfold(0, move |from| {
        let logs = logs.clone();
        async move {
            let page = logs.read(log, from, WINDOW_BYTES).await.map_err(std::io::Error::other)?;
            if page.frames.is_empty() {
                return Ok::<_, std::io::Error>(None);
            }
            Ok(Some((
                page.frames.into_iter().flat_map(|placed| placed.frame.data).collect::<Vec<u8>>(),
                page.next_offset,
            )))
        }
    });
    Ok(download(&format!("{id}.log"), Body::from_stream(pieces)))
}
