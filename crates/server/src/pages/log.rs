//! The log of a run: one window of it, found by an offset in a job's log or by the number of a frame in a run of agents. Its last window is
//! followed live; of a job that failed the window with the first failure comes first. Searched, and downloaded as it was written.

use super::log_search::{Found, Needle, Place};
use super::log_text::{self, Lines, Style};
use super::log_window::{self, WINDOW_BYTES};
use super::session::{Viewer, Visitor};
use super::{OrShown as _, PageResult, parts, region};
use crate::Shared;
use crate::input::{Path, Query};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{download, id as parsed};
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use engine::store::log_file::LogStream;
use futures_util::stream;
use maud::{Markup, PreEscaped, html};
use model::job::{Job, JobStatus};
use model::log::LogId;
use model::{JobId, RunId};
use wire::api::RunView;

/// Frames of one window of a run of agents, and their bytes.
const FRAMES: i64 = 300;
const FRAME_BYTES: i64 = 48 * 1024;

/// Which window, or what is looked for.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    job: Option<String>,
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

/// The end of a log is a live region; what is before it does not change.
pub(crate) async fn page(state: &Shared, viewer: Viewer, run: &RunView, query: &str) -> HandlerResult<Markup> {
    let wanted = Wanted::read(query);
    let job = match &wanted.job {
        Some(job) => Some(job.clone()),
        None if run.kind == "agents" => None,
        None => state.engine.jobs(viewer.org, parsed("run", &run.id)?).await?.1.last().map(|job| job.id.to_string()),
    };
    let searched = match wanted.q.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(search(state, viewer, run, job.as_deref(), text, &wanted).await?),
        None => None,
    };
    // The address of a live region names the job, because hints about bytes are about one log.
    let src =
        format!("/ui/runs/{}/log{}", run.id, job.as_deref().map_or_else(String::new, |job| format!("?job={job}")));
    let ends = wanted.from.is_none() || wanted.from.as_deref() == Some("end");
    let failed = run.status == "failed" && wanted.from.is_none();
    let window = if ends && !failed {
        region::live(state, viewer, &src).await?
    } else {
        region(state, viewer, &run.id, query).await?
    };
    Ok(html! {
        form.filters method="get" action=(format!("/runs/{}/log", run.id)) role="search" {
            @if let Some(job) = &wanted.job { input type="hidden" name="job" value=(job); }
            label { span { "Find in the log" } input type="search" id="search" name="q" value=(wanted.q.as_deref().unwrap_or_default()) spellcheck="false"; }
            label.tick { input type="checkbox" name="re" value="1" checked[wanted.re.is_some()]; " expression" }
            button type="submit" { "Find" }
            a href=(format!("/runs/{}/log/raw{}", run.id, job.map_or_else(String::new, |job| format!("?job={job}")))) download { "Download" }
        }
        @if let Some(searched) = searched { (searched) }
        (window)
    })
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let wanted = Wanted::read(query);
    let run: RunId = parsed("run", id)?;
    let (seen, jobs) = state.engine.jobs(viewer.org, run).await?;
    if seen.spec.kind == model::spec::RunKind::Agents {
        state.engine.step_logs_are_kept(&seen).await?;
        let window = of_run(state, run, &wanted, seen.status.is_end()).await?;
        return Ok(shown(id, &window, &[], None));
    }
    let Some(job) = chosen(&jobs, wanted.job.as_deref())? else {
        return Ok(html! { p.empty { "It has not written anything: it has not been on a machine yet." } });
    };
    state.engine.log_is_kept(&seen, vec![job.id]).await?;
    let window = of_job(state, job, &wanted).await?;
    Ok(shown(id, &window, &jobs, Some(job)))
}

/// The job that is named, or the last.
fn chosen<'j>(jobs: &'j [Job], named: Option<&str>) -> HandlerResult<Option<&'j Job>> {
    let Some(named) = named else { return Ok(jobs.last()) };
    let id: JobId = parsed("job", named)?;
    let found = jobs.iter().find(|job| job.id == id);
    found.map(Some).ok_or_else(|| Problem::from(model::Refused::not_found("job", id)))
}

async fn of_job(state: &Shared, job: &Job, wanted: &Wanted) -> HandlerResult<Window> {
    let total = state.engine.logs.reached(job.id, job.epoch).await?.total;
    let failure = match (wanted.from.as_deref(), job.status) {
        (None, JobStatus::Failed) => state.pages.searches.first_failure(&state.engine.logs, job.id.into()).await?,
        _ => None,
    };
    let found = match wanted.offset().or(failure) {
        Some(from) => log_window::window(&state.engine.logs, job.id.into(), from).await?,
        None => log_window::last(&state.engine.logs, job.id.into(), total).await?,
    };
    let lines = found.lines.iter().map(|line| Shown {
        key: format!("o{}-{}", line.offset, line.stream as usize),
        at_ms: line.at_ms,
        stream: line.stream,
        html: line.html.clone(),
        cut: line.cut,
        title: String::new(),
    });
    Ok(Window {
        lines: lines.collect(),
        from: found.from,
        before: found.before(),
        next: found.more.then_some(found.next),
        size: parts::bytes(total),
        follows: wanted.offset().is_none() && failure.is_none() && !job.status.is_end(),
    })
}

/// A window of the frames of all steps of a run, each log with lines of its own.
async fn of_run(state: &Shared, run: RunId, wanted: &Wanted, ended: bool) -> HandlerResult<Window> {
    let end = state.engine.logs.last_of_run(run).await?;
    let from = wanted.offset().unwrap_or(end - FRAMES).clamp(0, end.max(0));
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
    let lines = found.iter().map(|(log, line)| {
        let step = if let LogId::Step(step) = log { step.id.to_string() } else { String::new() };
        Shown {
            key: format!("{step}-{}-{}", line.offset, line.stream as usize),
            at_ms: line.at_ms,
            stream: line.stream,
            html: log_text::html(&line.bytes, &mut Style::default()),
            cut: line.cut > 0,
            title: step,
        }
    });
    Ok(Window {
        lines: lines.collect(),
        from,
        before: (from > 0).then(|| (from - FRAMES).max(0)),
        next: (after < end).then_some(after),
        size: format!("{end} pieces"),
        follows: wanted.offset().is_none() && !ended,
    })
}

fn shown(id: &str, window: &Window, jobs: &[Job], job: Option<&Job>) -> Markup {
    let (base, of) = (format!("/runs/{id}/log"), job.map_or_else(String::new, |job| format!("&job={}", job.id)));
    let at = |from: i64| format!("{base}?from={from}{of}");
    html! {
        nav.pages aria-label="Windows of the log" {
            @if let Some(before) = window.before { a href=(at(0)) { "Beginning" } a rel="prev" href=(at(before)) { "Earlier" } }
            @if let Some(next) = window.next { a rel="next" href=(at(next)) { "Later" } }
            a href=(format!("{base}?from=end{of}")) { "End" }
            @if jobs.len() > 1 {
                @for (n, one) in jobs.iter().enumerate() {
                    a href=(format!("{base}?job={}", one.id)) aria-current=[(job.map(|job| job.id) == Some(one.id)).then_some("true")] { "Job " (n + 1) }
                }
            }
            span.quiet { (window.size) @if window.follows { " · live" } }
        }
        @if window.lines.is_empty() { p.empty { "Nothing was written here." } }
        @else {
            div.log tabindex="0" role="region" aria-label="Log" data-tail=[window.follows.then_some("")] {
                ol { @for line in &window.lines {
                    li id=(line.key) class=(class(line.stream)) {
                        a href=(format!("?from={}{of}#{}", window.from, line.key)) title=[Some(&line.title).filter(|it| !it.is_empty())] { (parts::clock_time(line.at_ms)) }
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

async fn search(
    state: &Shared,
    viewer: Viewer,
    run: &RunView,
    job: Option<&str>,
    text: &str,
    wanted: &Wanted,
) -> HandlerResult<Markup> {
    let id: RunId = parsed("run", &run.id)?;
    let (seen, jobs) = state.engine.jobs(viewer.org, id).await?;
    let Some(job) = chosen(&jobs, job)?.filter(|_| run.kind != "agents") else {
        return Ok(
            html! { p.quiet { "The log of a run of agents is searched by " (parts::command(&format!("repl logs {} | grep -n TEXT", run.id))) } },
        );
    };
    state.engine.log_is_kept(&seen, vec![job.id]).await?;
    let needle = if wanted.re.is_some() { Needle::expression(text)? } else { Needle::literal(text)? };
    let from: Place = wanted.on.as_deref().map_or(Ok(Place::at(0)), str::parse)?;
    let found = state.pages.searches.search(&state.engine.logs, job.id.into(), needle, from).await?;
    Ok(hits(run, job, wanted, &found))
}

fn hits(run: &RunView, job: &Job, wanted: &Wanted, found: &Found) -> Markup {
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let base = format!("/runs/{}/log?job={}", run.id, job.id);
    let again = format!(
        "{base}&q={}{}",
        encode(wanted.q.as_deref().unwrap_or_default()),
        if wanted.re.is_some() { "&re=1" } else { "" }
    );
    html! {
        section aria-label="Found" {
            p.quiet { (found.hits.len()) " lines" @if let Some(on) = found.go_on { " up to " (parts::bytes(on.reached())) ". " a href=(format!("{again}&on={on}")) { "Go on" } } }
            @if !found.hits.is_empty() { div.log tabindex="0" role="region" aria-label="Found lines" { ol {
                @for hit in &found.hits { li class=(class(hit.stream)) {
                    a href=(format!("{base}&from={0}#o{0}-{1}", hit.offset, hit.stream as usize)) { (parts::moment(hit.at_ms)) }
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
    let run: RunId = parsed("run", &id).or_shown(&visitor)?;
    let (seen, jobs) = state.engine.jobs(visitor.token.org, run).await.or_shown(&visitor)?;
    let logs = state.engine.logs.clone();
    if seen.spec.kind == model::spec::RunKind::Agents {
        let pieces = stream::try_unfold(0, move |after| {
            let logs = logs.clone();
            async move {
                let page = logs.read_run(run, after, WINDOW_BYTES).await.map_err(std::io::Error::other)?;
                let Some(last) = page.last().map(|frame| frame.number) else { return Ok::<_, std::io::Error>(None) };
                Ok(Some((page.into_iter().flat_map(|frame| frame.placed.frame.data).collect::<Vec<u8>>(), last)))
            }
        });
        return Ok(download(&format!("{id}.log"), Body::from_stream(pieces)));
    }
    let job = chosen(&jobs, wanted.job.as_deref()).or_shown(&visitor)?.map(|job| job.id);
    let pieces = stream::try_unfold(0, move |from| {
        let logs = logs.clone();
        async move {
            let Some(job) = job else { return Ok::<_, std::io::Error>(None) };
            let page = logs.read(job, from, WINDOW_BYTES).await.map_err(std::io::Error::other)?;
            if page.frames.is_empty() {
                return Ok(None);
            }
            Ok(Some((
                page.frames.into_iter().flat_map(|placed| placed.frame.data).collect::<Vec<u8>>(),
                page.next_offset,
            )))
        }
    });
    Ok(download(&format!("{id}.log"), Body::from_stream(pieces)))
}
