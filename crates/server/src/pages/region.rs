//! Regions: parts of pages that are rendered again when something changes. Each has a path below `/ui/`, the hints that it follows, and
//! a function that renders it from the API's own views. A fragment depends on the org and scope of its viewer and on nothing else of them.

use super::live::Pace;
use super::session::{Viewer, Visitor};
use super::{build, cache, instance, live, orphan, question, run, run_list, step, usage, workflow};
use crate::Shared;
use crate::problem::{HandlerResult, Problem};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use engine::{Hint, Topic};
use maud::{Markup, PreEscaped, html};
use model::{JobId, OrgId, RunId};
use std::time::Duration;

/// What a path below `/ui/` names.
enum Region<'s> {
    Runs,
    Run(&'s str, &'s str),
    Step(&'s str, &'s str),
    StepLog(&'s str, &'s str),
    Inbox,
    InboxCount,
    Machines,
    Workflows,
    Workflow(&'s str),
    Orphans,
    Spending,
    Calls,
}

fn read(src: &str) -> Option<(Region<'_>, &str)> {
    let (path, query) = src.split_once('?').unwrap_or((src, ""));
    let parts: Vec<&str> = path.strip_prefix("/ui/")?.split('/').collect();
    let region = match parts.as_slice() {
        ["runs"] => Region::Runs,
        ["runs", id, part] => Region::Run(id, part),
        ["runs", run, "steps", step] => Region::Step(run, step),
        ["runs", run, "steps", step, "log"] => Region::StepLog(run, step),
        ["machines"] => Region::Machines,
        ["workflows"] => Region::Workflows,
        ["workflows", id] => Region::Workflow(id),
        ["orphans"] => Region::Orphans,
        ["spending"] => Region::Spending,
        ["calls"] => Region::Calls,
        ["inbox"] => Region::Inbox,
        ["inbox", "count"] => Region::InboxCount,
        _ => return None,
    };
    Some((region, query))
}

/// What changes a region. None: there is no such region.
pub(crate) fn hints(org: OrgId, src: &str) -> Option<Vec<Hint>> {
    let (region, query) = read(src)?;
    Some(match region {
        Region::Runs => vec![Hint::Org(org, Topic::Runs)],
        Region::Run(id, part) => {
            let id: RunId = id.parse().ok()?;
            match part {
                "log" => {
                    let job = query.split('&').find_map(|pair| pair.strip_prefix("job="));
                    let job: Option<JobId> = job.and_then(|job| job.parse().ok());
                    let bytes = job.map_or(Hint::RunLogs(id), |job| Hint::Logs(job.into()));
                    let of_step = query.split('&').any(|pair| pair.starts_with("step="));
                    // A step that ends says so in its row alone.
                    [Hint::Run(id), bytes].into_iter().chain(of_step.then_some(Hint::Rows(id))).collect()
                }
                "events" | "files" => vec![Hint::Run(id)],
                _ => vec![Hint::Run(id), Hint::Rows(id)],
            }
        }
        Region::Step(run, _) | Region::StepLog(run, _) => {
            let run: RunId = run.parse().ok()?;
            vec![Hint::Run(run), Hint::Rows(run)]
        }
        Region::Machines => vec![Hint::Org(org, Topic::Machines), Hint::Org(org, Topic::Runs)],
        Region::Workflows => vec![Hint::Org(org, Topic::Workflows)],
        Region::Workflow(_) => vec![Hint::Org(org, Topic::Workflows), Hint::Org(org, Topic::Machines)],
        Region::Orphans => vec![Hint::Orphans],
        Region::Spending => vec![Hint::Org(org, Topic::Money)],
        // Cached runs end as runs do, other calls by themselves; results are kept and invalidated apart from both.
        Region::Calls => vec![Hint::Org(org, Topic::Calls), Hint::Org(org, Topic::Runs)],
        Region::Inbox | Region::InboxCount => vec![Hint::Org(org, Topic::Inbox)],
    })
}

/// When a region is rendered again. Heartbeats and costs change machines all the time and send no hint.
pub(super) fn pace(src: &str, machines: Duration) -> Pace {
    let is_query = |pair: &str| pair.strip_prefix("q=").is_some_and(|text| !text.is_empty());
    match read(src) {
        Some((Region::Runs, query)) if query.split('&').any(is_query) => {
            Pace { pause: live::SEARCH_PAUSE, every: None, is_search: true }
        }
        Some((Region::Machines, _)) => Pace { pause: live::PAUSE, every: Some(machines), is_search: false },
        _ => Pace { pause: live::PAUSE, every: None, is_search: false },
    }
}

pub(crate) async fn render(state: &Shared, viewer: Viewer, src: &str) -> HandlerResult<Markup> {
    let (region, query) =
        read(src).ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "not_found", "there is no such part of a page"))?;
    match region {
        Region::Runs => run_list::region(state, viewer, query).await,
        Region::Run(id, part) => run::region(state, viewer, id, part, query).await,
        Region::Step(run, id) => step::region(state, viewer, run, id).await,
        Region::StepLog(run, id) => step::log_region(state, viewer, run, id).await,
        Region::Inbox => question::region(state, viewer, query).await,
        Region::InboxCount => Ok(question::badge(question::counted(state, viewer).await?.as_deref())),
        Region::Machines => instance::region(state, viewer, query).await,
        Region::Workflows => workflow::list_region(state, viewer, query).await,
        Region::Orphans => orphan::region(state, viewer, query).await,
        Region::Workflow(id) => workflow::region(state, viewer, id).await,
        Region::Calls => cache::region(state, viewer, query).await,
        Region::Spending => usage::region(state, viewer, query).await,
    }
}

/// A region inside a page, rendered now.
pub(crate) async fn live(state: &Shared, viewer: Viewer, src: &str) -> HandlerResult<Markup> {
    Ok(held(src, &state.pages.live.read(state, viewer, src).await?))
}

/// A region around what was rendered for it now.
pub(crate) fn around(src: &str, inner: Markup) -> Markup {
    held(src, &inner.into_string())
}

fn held(src: &str, inner: &str) -> Markup {
    let version = format!("{:016x}", live::hash(inner));
    html! { live-region src=(src) data-v=(version) { (PreEscaped(inner)) } }
}

/// `GET /ui/…`: the fragment, from memory if the region is followed.
pub(crate) async fn fragment(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> Response {
    let src = uri.path_and_query().map_or("", |place| place.as_str());
    let viewer = visitor.viewer();
    let (version, html) = match state.pages.live.kept(viewer, src) {
        Some(kept) => kept,
        None => match state.pages.live.read(&state, viewer, src).await {
            Ok(html) => {
                let version = live::hash(&html);
                state.pages.live.put_back(viewer, src, version, html.clone());
                (version, html)
            }
            Err(problem) => return problem.into_response(),
        },
    };
    let text = |text: String| HeaderValue::from_str(&text).expect("ASCII");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
        (header::HeaderName::from_static("x-version"), text(format!("{version:016x}"))),
        (header::HeaderName::from_static("x-build"), text(build())),
    ];
    (headers, html.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_are_rendered_seldom_and_machines_also_without_a_hint() {
        let machines = Duration::from_secs(15);
        let paced = |pause, every, is_search| Pace { pause, every, is_search };
        for (src, pace) in [
            ("/ui/runs?show=open&q=a", paced(live::SEARCH_PAUSE, None, true)),
            ("/ui/runs?q=", paced(live::PAUSE, None, false)),
            ("/ui/runs", paced(live::PAUSE, None, false)),
            ("/ui/runs/run_1/head?q=a", paced(live::PAUSE, None, false)),
            ("/ui/machines?pools=1", paced(live::PAUSE, Some(machines), false)),
        ] {
            assert_eq!(super::pace(src, machines), pace, "{src}");
        }
    }
}
