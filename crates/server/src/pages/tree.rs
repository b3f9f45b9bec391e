//! The tree of a run, opened level by level: agents, the tasks of one, the steps of one. Of the innermost level a hundred are read, of those
//! around it fewer; those that failed, wait for a person or run stand first, also if they come much later.

use super::drawing::Tone;
use super::drawing::timeline::{Span, timeline};
use super::parts;
use super::session::Viewer;
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::routes::id as parsed;
use crate::{Shared, now_ms, tree, view};
use axum::extract::State;
use maud::{Markup, html};
use model::RunId;
use std::collections::HashSet;
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

/// Children of the innermost open level.
const LEVEL: i64 = 100;
/// Children of the levels around it.
const AROUND: i64 = 4;
/// Of those that are looked at first, in each state, when there are more children than one page has.
const FIRST: i64 = 5;

/// Where a level is read.
struct Level<'l> {
    state: &'l Shared,
    viewer: Viewer,
    run: &'l str,
    limit: i64,
    cursor: Option<String>,
}

impl Level<'_> {
    fn shared(&self) -> State<Shared> {
        State(self.state.clone())
    }

    /// Those that are looked at first stand before the first page, however late they were made.
    fn sorted<T>(
        &self,
        urgent: Vec<T>,
        mut page: Page<T>,
        id: impl Fn(&T) -> &str,
        status: impl Fn(&T) -> &str,
    ) -> Page<T> {
        let known: HashSet<String> = urgent.iter().map(|it| id(it).to_owned()).collect();
        let rest = std::mem::take(&mut page.data).into_iter().filter(|it| !known.contains(id(it)));
        page.data = urgent.into_iter().chain(rest).collect();
        page.data.sort_by_key(|it| rank(status(it)));
        page
    }

    fn is_cut<T>(&self, page: &Page<T>) -> bool {
        self.cursor.is_none() && page.next_cursor.is_some()
    }

    /// `open` is among them, wherever it stands.
    async fn agents(self, open: Option<&str>) -> HandlerResult<Page<AgentView>> {
        let filter = tree::AgentFilter::first(self.limit, self.cursor.clone());
        let page = tree::agents(self.shared(), self.viewer.reader(), Path(self.run.to_owned()), Query(filter)).await?.0;
        let (org, run): (_, RunId) = (self.viewer.org, parsed("run", self.run)?);
        let urgent = match self.is_cut(&page) {
            true => self.state.engine.urgent_agents(org, run, FIRST).await?,
            false => Vec::new(),
        };
        let urgent = urgent.iter().map(view::agent).collect();
        let mut page = self.sorted(urgent, page, |it| &it.id, |it| &it.status);
        if let Some(open) = open.filter(|open| page.data.iter().all(|it| it.id != *open)) {
            // A link of an earlier attempt opens nothing.
            let found = self.state.engine.agent(org, run, parsed("agent", open)?).await;
            page.data.extend(found.iter().map(view::agent));
        }
        Ok(page)
    }

    async fn tasks(self, agent: &str, open: Option<&str>) -> HandlerResult<Page<TaskView>> {
        let filter = tree::TaskFilter::of(agent.to_owned(), self.limit, self.cursor.clone());
        let page = tree::tasks(self.shared(), self.viewer.reader(), Path(self.run.to_owned()), Query(filter)).await?.0;
        let (org, run): (_, RunId) = (self.viewer.org, parsed("run", self.run)?);
        let urgent = match self.is_cut(&page) {
            true => self.state.engine.urgent_tasks(org, run, parsed("agent", agent)?, FIRST).await?,
            false => Vec::new(),
        };
        let urgent = urgent.iter().map(view::task).collect();
        let mut page = self.sorted(urgent, page, |it| &it.id, |it| &it.status);
        if let Some(open) = open.filter(|open| page.data.iter().all(|it| it.id != *open)) {
            // A link of an earlier attempt opens nothing.
            let found = self.state.engine.task(org, run, parsed("task", open)?).await;
            page.data.extend(found.iter().map(view::task));
        }
        Ok(page)
    }

    async fn steps(self, task: &str) -> HandlerResult<Page<StepView>> {
        let filter = tree::StepFilter::of(task.to_owned(), self.limit, self.cursor.clone());
        let page = tree::steps(self.shared(), self.viewer.reader(), Path(self.run.to_owned()), Query(filter)).await?.0;
        let urgent = match self.is_cut(&page) {
            true => {
                let (run, task) = (parsed("run", self.run)?, parsed("task", task)?);
                self.state.engine.urgent_steps(self.viewer.org, run, task, FIRST).await?
            }
            false => Vec::new(),
        };
        let urgent = urgent.iter().map(view::step).collect();
        Ok(self.sorted(urgent, page, |it| &it.id, |it| &it.status))
    }
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let uri: axum::http::Uri = format!("/?{query}").parse().unwrap_or_default();
    let opened = axum::extract::Query::<Opened>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default();
    let innermost: u8 = match (&opened.agent, &opened.task) {
        (None, None) => 0,
        (Some(_), None) => 1,
        _ => 2,
    };
    let level = |level: u8| Level {
        state,
        viewer,
        run: id,
        limit: if level < innermost { AROUND } else { LEVEL },
        cursor: opened.cursor.clone().filter(|_| level == innermost),
    };
    let agents = level(0).agents(opened.agent.as_deref()).await?;
    // What has one child only is open.
    let agent = opened.agent.clone().or_else(|| single(&agents.data).map(|agent| agent.id.clone()));
    let tasks = match &agent {
        Some(agent) => Some(level(1).tasks(agent, opened.task.as_deref()).await?),
        None => None,
    };
    let only = tasks.as_ref().and_then(|tasks| single(&tasks.data)).map(|task| task.id.clone());
    let task = opened.task.clone().or(only);
    let steps = match &task {
        Some(task) => Some(level(2).steps(task).await?),
        None => None,
    };
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
        // One bar would say what the phases above say.
        @if spans.len() > 1 {
            details.block.times open { summary { "Timeline" } (timeline(&spans, now_ms())) }
        }
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
        @if let Some(error) = &agent.last_error { (parts::error_in_short(error)) }
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
            @if let Some(error) = &step.last_error { (parts::error_in_short(error)) }
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
