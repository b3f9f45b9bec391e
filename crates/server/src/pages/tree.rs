//! The tree of a run, opened level by level: agents, the tasks of one, the steps of one. At most a hundred of each are read.

use super::drawing::Tone;
use super::drawing::timeline::{Span, timeline};
use super::parts;
use super::session::Viewer;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::{Shared, now_ms, tree};
use axum::extract::State;
use maud::{Markup, html};
use wire::api::{AgentView, CountsView, Page, StepView, TaskView};

/// Which agent and task are open, and where the lists go on.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
struct Opened {
    agent: Option<String>,
    task: Option<String>,
    /// Where the innermost open list goes on.
    cursor: Option<String>,
}

/// Children of one level.
const LEVEL: i64 = 100;

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let uri: axum::http::Uri = format!("/?{query}").parse().unwrap_or_default();
    let opened = axum::extract::Query::<Opened>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default();
    let path = || Path(id.to_owned());
    let inner = |level: u8| match (&opened.agent, &opened.task) {
        (None, None) => level == 0,
        (Some(_), None) => level == 1,
        _ => level == 2,
    };
    let cursor = |level| opened.cursor.clone().filter(|_| inner(level));
    let agents = tree::AgentFilter::first(LEVEL, cursor(0));
    let mut agents = tree::agents(State(state.clone()), viewer.reader(), path(), Query(agents)).await?.0;
    agents.data.sort_by_key(|agent| rank(&agent.status));
    // What has one child only is open.
    let agent = opened.agent.clone().or_else(|| single(&agents.data).map(|agent| agent.id.clone()));
    let mut tasks = match &agent {
        Some(agent) => {
            let filter = tree::TaskFilter::of(agent.clone(), LEVEL, cursor(1));
            Some(tree::tasks(State(state.clone()), viewer.reader(), path(), Query(filter)).await?.0)
        }
        None => None,
    };
    if let Some(tasks) = &mut tasks {
        tasks.data.sort_by_key(|task| rank(&task.status));
    }
    let only = tasks.as_ref().and_then(|tasks| single(&tasks.data)).map(|task| task.id.clone());
    let task = opened.task.clone().or(only);
    let mut steps = match &task {
        Some(task) => {
            let filter = tree::StepFilter::of(task.clone(), LEVEL, cursor(2));
            Some(tree::steps(State(state.clone()), viewer.reader(), path(), Query(filter)).await?.0)
        }
        None => None,
    };
    if let Some(steps) = &mut steps {
        steps.data.sort_by_key(|step| rank(&step.status));
    }
    let here = |agent: Option<&str>, task: Option<&str>| match (agent, task) {
        (Some(agent), Some(task)) => format!("/runs/{id}?agent={agent}&task={task}"),
        (Some(agent), None) => format!("/runs/{id}?agent={agent}"),
        _ => format!("/runs/{id}"),
    };
    if agents.data.is_empty() {
        return Ok(html! { p.empty { "Nothing has begun yet." } });
    }
    let first = opened.cursor.is_none();
    let spans = spans(id, &agents.data, (agent.as_deref(), tasks.as_ref()), (task.as_deref(), steps.as_ref()));
    Ok(html! {
        @if spans.len() > 3 {
            details.block.times open { summary { "Timeline" } (timeline(&spans, now_ms())) }
        }
        ul.tree aria-label="Agents, tasks and steps" {
            @for one in &agents.data {
                @let is_open = agent.as_deref() == Some(&one.id);
                li id=(one.id) {
                    (agent_row(one, &here((!is_open).then_some(one.id.as_str()), None), is_open))
                    @if let Some(tasks) = tasks.as_ref().filter(|_| is_open) {
                        ul {
                            @for it in &tasks.data {
                                @let is_open = task.as_deref() == Some(&it.id);
                                li id=(it.id) {
                                    (task_row(it, &here(Some(&one.id), (!is_open).then_some(it.id.as_str())), is_open))
                                    @if let Some(steps) = steps.as_ref().filter(|_| is_open) {
                                        ul { @for step in &steps.data { (step_row(id, step)) } }
                                        (parts::more(&here(Some(&one.id), Some(&it.id)), steps.next_cursor.as_deref(), first))
                                    }
                                }
                            }
                        }
                        (parts::more(&here(Some(&one.id), None), tasks.next_cursor.as_deref(), first || task.is_some()))
                    }
                }
            }
        }
        (parts::more(&here(None, None), agents.next_cursor.as_deref(), first || agent.is_some()))
    })
}

/// What is shown as bars: the agents, and below the open ones their tasks and steps, each that has begun.
fn spans(
    run: &str,
    agents: &[AgentView],
    (open, tasks): (Option<&str>, Option<&Page<TaskView>>),
    (open_task, steps): (Option<&str>, Option<&Page<StepView>>),
) -> Vec<Span> {
    let span = |name: &str, href: String, depth, status: &str, times: (Option<i64>, Option<i64>)| {
        let (name, status, tone) = (parts::visible(name), status.to_owned(), tone(status));
        times.0.map(|started_ms| Span { name, href: Some(href), depth, tone, status, started_ms, ended_ms: times.1 })
    };
    let mut all = Vec::new();
    for agent in agents {
        let link = format!("/runs/{run}?agent={}", agent.id);
        all.extend(span(&agent.name, link.clone(), 0, &agent.status, (agent.started_at, agent.ended_at)));
        for task in tasks.iter().filter(|_| open == Some(&agent.id)).flat_map(|page| &page.data) {
            let to = format!("{link}&task={}", task.id);
            all.extend(span(&task.name, to, 1, &task.status, (task.started_at, task.ended_at)));
            for step in steps.iter().filter(|_| open_task == Some(&task.id)).flat_map(|page| &page.data) {
                let to = format!("/runs/{run}/steps/{}", step.id);
                all.extend(span(&step.name, to, 2, &step.status, (step.started_at, step.ended_at)));
            }
        }
    }
    all
}

fn tone(status: &str) -> Tone {
    match status {
        "completed" | "partial" => Tone::Done,
        "failed" => Tone::Failed,
        "running" | "retrying" => Tone::Runs,
        "waiting" | "paused" => Tone::Asks,
        "pending" => Tone::Waits,
        _ => Tone::Stopped,
    }
}

fn single<T>(all: &[T]) -> Option<&T> {
    if all.len() == 1 { all.first() } else { None }
}

/// What needs a person first, then what moves, then the rest.
fn rank(status: &str) -> u8 {
    match status {
        "failed" => 0,
        "waiting" | "paused" => 1,
        "running" | "retrying" => 2,
        "pending" => 3,
        _ => 4,
    }
}

fn agent_row(agent: &AgentView, link: &str, open: bool) -> Markup {
    html! {
        div.node {
            a.twist href=(link) aria-expanded=(open) { (parts::visible(&agent.name)) }
            (parts::state(&agent.status))
            span.quiet { (agent.kind) } (counts("tasks", &agent.task_counts))
            span.fill {}
            @if let Some(job) = agent.jobs.last() { @if let Some(machine) = &job.instance { code { (machine) } } }
            (parts::lasted(agent.started_at, agent.ended_at))
        }
        @if let Some(error) = &agent.last_error { (parts::error(error)) }
    }
}

fn task_row(task: &TaskView, link: &str, open: bool) -> Markup {
    html! {
        div.node {
            a.twist href=(link) aria-expanded=(open) { (parts::visible(&task.name)) }
            (parts::state(&task.status))
            @if task.unneeded { span.quiet { "not needed" } }
            (counts("steps", &task.step_counts))
            span.fill {}
            (parts::lasted(task.started_at, task.ended_at))
        }
    }
}

fn step_row(run: &str, step: &StepView) -> Markup {
    html! {
        li id=(step.id) {
            div.node {
                a href=(format!("/runs/{run}/steps/{}", step.id)) { (parts::visible(&step.name)) }
                (parts::state(&step.status))
                code.quiet { (step.tool) }
                @if step.tries > 1 { span.quiet.num { "try " (step.tries) " of " (step.max_tries) } }
                @if let Some(waits) = &step.waits { span.phase { "waits for " (waits) } }
                @if step.uncertain || step.outcome_unknown { span.phase { "outcome unknown" } }
                @if step.replayed { span.quiet { "from the journal" } }
                span.fill {}
                (parts::lasted(step.started_at, step.ended_at))
            }
            @if let Some(error) = &step.last_error { (parts::error(error)) }
        }
    }
}

fn counts(of: &str, c: &CountsView) -> Markup {
    let all = [
        ("failed", c.failed),
        ("running", c.running),
        ("waiting", c.waiting),
        ("paused", c.paused),
        ("pending", c.pending),
        ("completed", c.completed),
        ("partial", c.partial),
        ("skipped", c.skipped),
        ("cancelled", c.cancelled),
    ];
    let sum: i64 = all.iter().map(|(_, n)| n).sum();
    html! {
        @if sum > 1 {
            span.counts { (sum) " " (of)
                @for (word, n) in all.iter().filter(|(_, n)| *n > 0) { " · " span data-s=(word) { (n) " " (word) } }
            }
        }
    }
}
