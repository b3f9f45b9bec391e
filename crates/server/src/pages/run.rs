//! One run: why it waits or failed, what it does, and what can be done. Its parts are pages of their own, so that each reads little.

use super::region;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, image, log, new_run, parts, question, run_list, tree};
use crate::auth::Reader;
use crate::input::{Path, Query};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Paging, download, id as parsed};
use crate::{Shared, artifact as artifacts, definition, run, usage, view};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use engine::Scope;
use maud::{Markup, html};
use model::{QuestionId, Refused, RunId};
use wire::api::{RunView, UsageGroups, UsageSums, Why};

/// Parts of a run that have a page of their own.
const PARTS: [(&str, &str); 6] = [
    ("", "Overview"),
    ("log", "Log"),
    ("events", "Events"),
    ("cost", "Cost"),
    ("files", "Files"),
    ("definition", "Definition"),
];
/// Events of one page.
const EVENTS: i64 = 50;
/// HTML bytes of a field of an event, of the output of a run beside its other parts, and of its definition.
const FIELD: usize = 300;
const BESIDE: usize = 4 * 1024;
const DEFINITION: usize = 32 * 1024;
/// Files of one page: a path may have 4 KiB, and stands twice where there is a preview.
const FILES: i64 = 40;
/// Steps of one page of their cost.
const STEPS: i64 = 50;
/// Groups that a table names; the others are one row.
const GROUPS: usize = 30;

pub(crate) async fn page(state: State<Shared>, visitor: Visitor, Path(id): Path<String>, uri: Uri) -> PageResult {
    shown(state.0, visitor, id, "", &uri).await
}

pub(crate) async fn part_page(
    state: State<Shared>,
    visitor: Visitor,
    Path((id, part)): Path<(String, String)>,
    uri: Uri,
) -> PageResult {
    shown(state.0, visitor, id, &part, &uri).await
}

async fn shown(state: Shared, visitor: Visitor, id: String, part: &str, uri: &Uri) -> PageResult {
    let viewer = visitor.viewer();
    let run = one(&state, viewer, &id).await.or_shown(&visitor)?;
    let (_, title) = PARTS.into_iter().find(|(name, _)| *name == part).ok_or_else(|| nothing(&visitor, part))?;
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let src = |name: &str| format!("/ui/runs/{}/{name}{query}", run.id);
    let head = region::live(&state, viewer, &format!("/ui/runs/{}/head", run.id)).await.or_shown(&visitor)?;
    let body = match part {
        "" => region::live(&state, viewer, &src("tree")).await,
        "log" => log::page(&state, viewer, &run, uri.query().unwrap_or_default()).await,
        "definition" => definition(&state, viewer, &run).await,
        other => region::live(&state, viewer, &src(other)).await,
    }
    .or_shown(&visitor)?;
    let more = match part {
        "" => Some(region::live(&state, viewer, &format!("/ui/runs/{}/more", run.id)).await.or_shown(&visitor)?),
        _ => None,
    };
    let body = html! {
        p.crumbs { a href="/runs" { "Runs" } " / " (run.id) }
        (head)
        nav.tabs aria-label="Parts of this run" {
            @for (name, label) in PARTS {
                a href=(address(&run.id, name)) aria-current=[(name == part).then_some("page")] { (label) }
            }
        }
        (body)
        @if let Some(more) = more { (more) }
    };
    let title = format!("{} · {title}", run.name);
    Ok(shell::full(&state, &visitor, Head { title: &title, under: "/runs" }, &body).await)
}

fn address(id: &str, part: &str) -> String {
    if part.is_empty() { format!("/runs/{id}") } else { format!("/runs/{id}/{part}") }
}

fn nothing(visitor: &Visitor, part: &str) -> super::Refusal {
    let detail = format!("a run has no part `{part}`");
    super::Refusal::of(visitor.clone(), Problem::new(StatusCode::NOT_FOUND, "not_found", detail))
}

pub(crate) async fn one(state: &Shared, viewer: Viewer, id: &str) -> HandlerResult<RunView> {
    Ok(run::show(State(state.clone()), viewer.reader(), Path(id.to_owned())).await?.0)
}

pub(crate) async fn region(state: &Shared, viewer: Viewer, id: &str, part: &str, query: &str) -> HandlerResult<Markup> {
    match part {
        "head" => head(state, viewer, id).await,
        "more" => more(state, viewer, id).await,
        "tree" => tree::region(state, viewer, id, query).await,
        "log" => log::region(state, viewer, id, query).await,
        "events" => events(state, viewer, id, query).await,
        "cost" => cost(state, viewer, id, query).await,
        "files" => files(state, viewer, id, query).await,
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "not_found", "there is no such part of a run")),
    }
}

/// What was submitted, as a run file.
async fn definition(state: &Shared, viewer: Viewer, run: &RunView) -> HandlerResult<Markup> {
    let it = definition::show(State(state.clone()), viewer.reader(), Path(run.id.clone())).await?.0;
    Ok(html! {
        @if it.sent_files { (new_run::without_files(&run.id)) }
        @let text = runfile::written(&it.definition);
        @if parts::cut(&text, DEFINITION) == text.len() { pre.json tabindex="0" data-copy { (parts::visible(&text)) } }
        @else { (parts::text_up_to(&text, DEFINITION, Some(&format!("/runs/{}/definition/raw", run.id)))) }
        @if viewer.may(Scope::Write) && run.kind != "external" {
            p { @if !it.sent_files { a.button href=(format!("/new?from={}", run.id)) { "Run again with changes" } " " } a href=(format!("/runs/{}/definition/raw", run.id)) download { "Save as " (run.id) ".yaml" } }
        }
    })
}

/// `GET /runs/{id}/definition/raw`: the run file.
pub(crate) async fn raw_definition(
    State(state): State<Shared>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Result<Response, super::Refusal> {
    let reader = Reader(visitor.token.clone());
    let it = definition::show(State(state), reader, Path(id.clone())).await.or_shown(&visitor)?.0;
    Ok(download(&format!("{id}.yaml"), runfile::written(&it.definition).into()))
}

/// `GET /runs/{id}/{output,inputs,error}/raw`: the whole of it, as a file.
pub(crate) async fn raw(
    State(state): State<Shared>,
    visitor: Visitor,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, super::Refusal> {
    let run = one(&state, visitor.viewer(), &id).await.or_shown(&visitor)?;
    let part = uri.path().rsplit('/').nth(1).unwrap_or_default();
    let value = match part {
        "output" => run.output,
        "inputs" => run.inputs,
        _ => run.last_error.and_then(|error| serde_json::to_value(error).ok()),
    };
    let value = value.ok_or_else(|| Refused::not_found("part of a run", part)).or_shown(&visitor)?;
    Ok(download(&format!("{id}-{part}.json"), format!("{value:#}").into()))
}

/// State, why, what it is, and what can be done.
async fn head(state: &Shared, viewer: Viewer, id: &str) -> HandlerResult<Markup> {
    let run = one(state, viewer, id).await?;
    let why = match run.status.as_str() {
        "completed" => None,
        _ => Some(run::why(State(state.clone()), viewer.reader(), Path(id.to_owned())).await?.0),
    };
    let why = why.filter(|why| why.attention);
    let ended = run.completed_at.or(run.cancelled_at);
    let raw = |part: &str| format!("/runs/{}/{part}/raw", run.id);
    // The first that is open is what the run waits for; the others stand among the facts.
    let asks = why.as_ref().and_then(|why| why.facts.iter().find_map(|fact| question_of(fact)));
    let asked = match asks {
        Some((id, _)) => question::detail(state, viewer, id).await.ok().filter(|it| it.question.status == "open"),
        None => None,
    };
    Ok(html! {
        div.title {
            h1 { (parts::visible(&run.name)) }
            (parts::state(&run.status))
            @if ended.is_none() { @if let Some(phase) = run.phase.as_ref().filter(|phase| **phase != run.status) { span.phase { (phase) } } }
            @if let Some(outcome) = run.outcome.as_ref().filter(|it| *it != "success") { span.phase { (outcome) } }
            @if viewer.may(Scope::Write) { (actions(&run)) }
        }
        (phases(&run))
        @if let Some(why) = why {
            section.why data-s=(run.status) aria-label="Why" {
                @if let Some(asked) = &asked {
                    div.title { p.summary { (question::headline(asked)) } a.button.primary href=(format!("/inbox?open={}", asked.question.id)) { "Answer" } }
                    p { (parts::said(&why.summary, 0, None, &why.spans)) }
                } @else { p.summary { (parts::said(&why.summary, 0, None, &why.spans)) } }
                @if !why.facts.is_empty() { ul { @for place in 0..why.facts.len() { li { (fact_of(&why, place)) } } } }
                @if !why.next.is_empty() {
                    p.quiet { "What helps" }
                    ul.commands { @for next in &why.next { li { (helps(next)) } } }
                }
            }
        } @else if let Some(error) = &run.last_error { (parts::error(error, &raw("error"))) }
        (parts::facts(vec![
            ("What", Some(html! { (run_list::what(&run, parts::long)) @if parts::is_long(run.task.as_deref().unwrap_or(&run.command)) { " " a href=(address(&run.id, "definition")) { "All of it" } } })),
            ("Machine", run.instance.as_ref().map(|it| html! { code { (it) } @if run.warm == Some(true) { " " span.quiet { "warm" } } })),
            ("Attempt", (run.max_attempts > 1 || run.attempt_number > 1).then(|| html! { span.num { (run.attempt_number) " of " (run.max_attempts) } })),
            ("Exit", run.exit_code.map(|code| html! { span.num { (code) } })),
            ("Signal", run.signal.map(|signal| html! { span.num { (signal) } })),
            ("Created", Some(parts::time(run.created_at))),
            ("Took", run.started_at.map(|at| parts::lasted(Some(at), ended))),
            ("Cost", Some(html! { (parts::credits(&run.credits_charged)) @if ended.is_none() { " of " (parts::credits(&run.credits_reserved)) " reserved" } })),
            ("Budget", run.budget.as_deref().map(parts::credits)),
            ("Waits for", run.follows.as_ref().map(|other| html! { a href=(format!("/runs/{other}")) { (other) } })),
            ("Answered by", run.cached_from.as_ref().map(|from| html! { a href=(format!("/calls/{}", from.exec)) { "a kept result" } @if let Some(id) = &from.run { " of " a href=(format!("/runs/{id}")) { (id) } } })),
            ("Kept until", run.hold_until.map(parts::time)),
            ("Workdir", run.workdir.as_ref().filter(|_| run.hold_until.is_some()).map(|it| html! { code { (parts::long(it)) } })),
        ]))
        @if let Some(output) = &run.output { details.block open { summary { "Output" } (parts::json_up_to(output, BESIDE, Some(&raw("output")))) } }
        @if let Some(why) = &run.output_error { p.bad { (parts::long(why)) } }
    })
}

/// Below the tree: a word to an agent, and what the run was given.
async fn more(state: &Shared, viewer: Viewer, id: &str) -> HandlerResult<Markup> {
    let run = one(state, viewer, id).await?;
    let is_over = run.completed_at.or(run.cancelled_at).is_some() || run.termination_reason.is_some();
    Ok(html! {
        @if viewer.may(Scope::Write) && run.kind == "agents" && !is_over { (say(&run)) }
        @if let Some(inputs) = run.inputs.as_ref().filter(|it| !it.is_null()) { details.block { summary { "Inputs" } (parts::json_up_to(inputs, BESIDE, Some(&format!("/runs/{}/inputs/raw", run.id)))) } }
    })
}

/// How far it has come, with what each phase took: queued, getting ready on a machine, running, ended. A run of agents has no machine of its own.
fn phases(run: &RunView) -> Markup {
    let ended = run.completed_at.or(run.cancelled_at);
    let now = run.phase.as_deref().filter(|_| ended.is_none());
    let has_job = run.queued_ms.is_some() || !matches!(run.kind.as_str(), "agents" | "external");
    let queued_ms = run.queued_ms.or_else(|| run.started_at.zip(run.running_at).map(|(from, to)| (to - from).max(0)));
    let running_ms = run.running_ms.or_else(|| run.running_at.zip(ended).map(|(from, to)| (to - from).max(0)));
    let mut all = vec![("queued", run.started_at, queued_ms)];
    if has_job {
        let placed = run.starting_ms.and(run.started_at).zip(run.queued_ms).map(|(from, queued)| from + queued);
        let ready = if now == Some("pulling") { "pulling" } else { "provisioning, pulling" };
        all.push((ready, placed, run.starting_ms));
    }
    all.push(("running", run.running_at, running_ms));
    let current = all.iter().rposition(|(_, at, _)| at.is_some()).filter(|_| ended.is_none());
    html! {
        ol.phases aria-label="Phases" {
            @for (place, (word, at, took)) in all.iter().enumerate() {
                @let is_now = current == Some(place);
                li data-s=(if at.is_none() { "next" } else if is_now { "now" } else { "done" }) aria-current=[is_now.then_some("step")] {
                    (word) " "
                    @match at {
                        Some(at) if is_now => (parts::lasted(Some(*at), None)),
                        Some(_) => (parts::duration(*took)),
                        None => "–",
                    }
                }
            }
            li data-s=(if ended.is_some() { "done" } else { "next" }) { "ended " @match ended { Some(at) => (parts::time(at)), None => "–" } }
        }
    }
}

/// A fact about a question, as its id and the rest.
fn question_of(fact: &str) -> Option<(&str, &str)> {
    fact.split_once(' ').filter(|(id, _)| id.parse::<QuestionId>().is_ok())
}

/// A fact about a question leads to it.
fn fact_of(why: &Why, place: usize) -> Markup {
    let fact = &why.facts[place];
    let id = question_of(fact).map(|(id, _)| id);
    html! {
        @if let Some(id) = id { a href=(format!("/inbox?open={id}")) { (id) } }
        (parts::said(fact, id.map_or(0, str::len), Some(place), &why.spans))
    }
}

/// A word to an agent that talks with a model.
fn say(run: &RunView) -> Markup {
    html! {
        details.block { summary { "Say something to an agent" }
            div.two {
                label { span { "Agent, if there are several" } input form="act" name="agent" autocomplete="off" spellcheck="false"; }
                label { span { "Text, read by its next turn" } input form="act" name="text" autocomplete="off"; }
            }
            div.actions { (parts::button("Send", &format!("/runs/{}/send?seen={}", run.id, seen(run)), "")) }
        }
    }
}

/// A line of advice: its command can be copied.
fn helps(text: &str) -> Markup {
    match text.split_once("repl ") {
        Some(("", _)) => parts::command(text),
        Some((why, words)) if why.ends_with(": ") => {
            html! { (parts::visible(why)) (parts::command(&format!("repl {words}"))) }
        }
        _ => html! { (parts::visible(text)) },
    }
}

/// Which state the buttons were shown for: pressed on an older page they are refused.
pub(crate) fn seen(run: &RunView) -> String {
    format!("{}.{}.{}", run.status, run.attempt_number, run.version)
}

/// What can be asked of a run on its page, where it is allowed: the action, its button, and the button's class.
const ACTIONS: [(&str, &str, &str); 5] = [
    ("start", "Start", "primary"),
    ("resume", "Resume", "primary"),
    ("retry", "Retry", "primary"),
    ("pause", "Pause", ""),
    ("cancel", "Cancel", "danger"),
];

pub(crate) fn is_allowed(run: &RunView, action: &str) -> bool {
    run.allowed.iter().any(|it| it == action)
}

/// The command line of each action that the page of a run offers: `kept` is the slot whose folder is kept.
pub fn run_commands(run: &RunView, kept: Option<&str>) -> Vec<String> {
    let id = &run.id;
    let looks = ["status", "logs -f"].map(|look| format!("repl {look} {id}"));
    let acts = ACTIONS.iter().filter(|it| is_allowed(run, it.0)).map(|(action, _, _)| format!("repl {action} {id}"));
    let kept = kept.into_iter().flat_map(|slot| ["extend", "release"].map(|act| format!("repl {act} {slot}")));
    let again = (run.kind != "external").then(|| format!("repl run {id}.yaml"));
    looks.into_iter().chain(acts).chain(kept).chain([format!("repl artifact get {id}")]).chain(again).collect()
}

fn actions(run: &RunView) -> Markup {
    let kept = run.allocation.as_deref().filter(|_| run.hold_until.is_some());
    let to = |action: &str| format!("/runs/{}/{action}?seen={}", run.id, seen(run));
    html! {
        div.actions {
            @for (action, label, class) in ACTIONS.iter().filter(|it| is_allowed(run, it.0)) { (parts::button(label, &to(action), class)) }
            @if let Some(slot) = kept {
                (parts::button("Keep 30 min longer", &format!("/allocations/{slot}/extend?run={}&seen={}", run.id, run.hold_until.unwrap_or(0)), ""))
                (parts::button("Release", &format!("/allocations/{slot}/release?run={}&seen={}", run.id, run.hold_until.unwrap_or(0)), ""))
            }
            @if run.kind != "external" { a.button href=(format!("/new?from={}", run.id)) { "Run again" } }
            details.shell { summary { "Shell" }
                ul.commands {
                    @for command in run_commands(run, kept) {
                        li { (parts::command(&command)) @if command.starts_with("repl run ") { span.quiet { "again, from the run file under Definition" } } }
                    }
                }
            }
        }
    }
}

pub(crate) fn paging(query: &str, limit: i64) -> Paging {
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor=")).map(str::to_owned);
    Paging { limit: Some(limit), cursor }
}

async fn events(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let run: RunId = parsed("run", id)?;
    let after = paging(query, EVENTS).after()?;
    let (_, events, newest) = state.engine.events(viewer.org, run, after, EVENTS).await?;
    let end = (newest > after + EVENTS).then(|| format!("/runs/{id}/events?cursor={}", model::slug(newest - EVENTS)));
    let next = events.last().filter(|_| events.len() as i64 == EVENTS).map(|last| model::slug(last.seq));
    Ok(html! {
        div.scroll tabindex="0" role="region" aria-label="Events" {
            table.list {
                thead { tr { th.r scope="col" { "#" } th scope="col" { "Time" } th scope="col" { "Event" } th scope="col" { "Who and what" } } }
                tbody { @for event in &events {
                    tr id=(format!("e{}", event.seq)) {
                        td.r.num { (event.seq) } td { (parts::moment(event.at.ms())) } td { code { (event.kind) } }
                        td { (event_body(&event.body)) }
                    }
                } }
            }
        }
        (parts::more(&format!("/runs/{id}/events"), next.as_deref(), after == 0))
        @if let Some(end) = end { nav.pages aria-label="The end" { a href=(end) { "To the newest" } } }
    })
}

/// The fields of an event in one line; those that are long open.
fn event_body(body: &serde_json::Value) -> Markup {
    let Some(fields) = body.as_object() else { return parts::json_up_to(body, FIELD, None) };
    html! {
        @for (name, value) in fields.iter().filter(|(name, value)| *name != "run" && !value.is_null()) {
            @match value {
                serde_json::Value::Object(_) | serde_json::Value::Array(_) => {
                    details.inline { summary { (parts::visible(name)) } (parts::json_up_to(value, FIELD, None)) }
                }
                serde_json::Value::String(text) => { span.field { b { (parts::visible(name)) } " " (parts::visible(&text[..parts::cut(text, FIELD)])) @if parts::cut(text, FIELD) < text.len() { "…" } } " " }
                other => { span.field { b { (parts::visible(name)) } " " (other.to_string()) } " " }
            }
        }
    }
}

async fn cost(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let (run, paging): (RunId, _) = (parsed("run", id)?, paging(query, STEPS));
    let first = paging.cursor.is_none();
    let used = usage::of_run(State(state.clone()), viewer.reader(), Path(id.to_owned()), Query(paging)).await?.0;
    let attempts = state.engine.attempts(viewer.org, run).await?;
    Ok(html! {
        (parts::facts(vec![
            ("Charged", Some(parts::credits(&used.total.charged))),
            ("Machine time", Some(parts::duration(Some(used.total.machine_ms)))),
            ("Turns", Some(html! { span.num { (used.total.turns) } })),
            ("Tokens in", Some(html! { span.num { (used.total.input_tokens) } })),
            ("Tokens out", Some(html! { span.num { (used.total.output_tokens) } })),
        ]))
        h2 { "Attempts" }
        div.scroll tabindex="0" role="region" aria-label="Attempts" { table.list {
            thead { tr { th.r scope="col" { "#" } th scope="col" { "State" } th.r scope="col" { "Reserved" } th.r scope="col" { "Charged" } th.r scope="col" { "Refunded" } th.r scope="col" { "Took" } } }
            tbody { @for it in attempts.iter().map(view::attempt) { tr {
                td.r.num { (it.number) } td { (parts::state(&it.status)) } td.r { (parts::credits(&it.credits_reserved)) }
                td.r { (parts::credits(&it.credits_charged)) } td.r { (parts::credits(&it.credits_refunded)) }
                td.r { (parts::lasted(Some(it.opened_at), it.ended_at)) }
            } } }
        } }
        (groups("By model", &used.models)) (groups("By agent", &used.agents)) (groups("By provider", &used.providers))
        @if !used.steps.is_empty() {
            h2 { "By step" }
            div.scroll tabindex="0" role="region" aria-label="By step" { table.list {
                thead { tr { th scope="col" { "Step" } th scope="col" { "Model" } (sums_head()) } }
                tbody { @for step in &used.steps { tr {
                    td { a href=(format!("/runs/{id}/steps/{}", step.step)) { (parts::visible(&step.path)) } }
                    td { (parts::visible(step.model.as_deref().unwrap_or("–"))) } (sums(&step.usage))
                } } }
            } }
        }
        (parts::more(&format!("/runs/{id}/cost"), used.next_cursor.as_deref(), first))
    })
}

/// What each has used: the first ones by name, the rest as one row.
pub(crate) fn groups(title: &str, groups: &UsageGroups) -> Markup {
    let (shown, rest) = groups.groups.split_at(groups.groups.len().min(GROUPS));
    let others =
        rest.iter().map(|group| &group.usage).chain(&groups.others).fold(None, |sum, one| Some(together(sum, one)));
    html! {
        @if groups.groups.iter().any(|group| group.key.is_some()) {
            h2 { (title) }
            div.scroll tabindex="0" role="region" aria-label=(title) { table.list {
                thead { tr { th scope="col" { "Name" } (sums_head()) } }
                tbody {
                    @for group in shown { tr {
                        td { (parts::visible(group.name.as_deref().or(group.key.as_deref()).unwrap_or("other"))) }
                        (sums(&group.usage))
                    } }
                    @if let Some(others) = others { tr { td.quiet { "others" } (sums(&others)) } }
                }
            } }
        }
    }
}

fn together(sum: Option<UsageSums>, one: &UsageSums) -> UsageSums {
    let Some(sum) = sum else { return one.clone() };
    let charged_micro = sum.charged_micro + one.charged_micro;
    UsageSums {
        input_tokens: sum.input_tokens + one.input_tokens,
        output_tokens: sum.output_tokens + one.output_tokens,
        turns: sum.turns + one.turns,
        estimated_turns: sum.estimated_turns + one.estimated_turns,
        tool_calls: sum.tool_calls + one.tool_calls,
        machine_ms: sum.machine_ms + one.machine_ms,
        charged: model::Credits(charged_micro).to_string(),
        charged_micro,
    }
}

fn sums_head() -> Markup {
    html! { th.r scope="col" { "Machine" } th.r scope="col" { "Turns" } th.r scope="col" { "Tokens" } th.r scope="col" { "Credits" } }
}

fn sums(usage: &UsageSums) -> Markup {
    html! {
        td.r { (parts::duration(Some(usage.machine_ms))) } td.r.num { (usage.turns) }
        td.r.num { (usage.input_tokens + usage.output_tokens) } td.r { (parts::credits(&usage.charged)) }
    }
}

async fn files(state: &Shared, viewer: Viewer, id: &str, query: &str) -> HandlerResult<Markup> {
    let asked = paging(query, FILES);
    let first = asked.cursor.is_none();
    let page = artifacts::list(State(state.clone()), viewer.reader(), Path(id.to_owned()), Query(asked)).await?.0;
    if page.data.is_empty() && first {
        return Ok(html! { p.empty { "This run kept no files. " code { "--artifact 'out/*'" } " keeps some." } });
    }
    Ok(html! {
        div.scroll tabindex="0" role="region" aria-label="Files" { table.list {
            thead { tr { th scope="col" { "Path" } th.r scope="col" { "Size" } th scope="col" { "State" } th.r scope="col" { "Attempt" } th.r scope="col" { "Kept until" } } }
            tbody { @for file in &page.data { tr id=(file.id) {
                td { @if file.kind == "file" && file.deleted_at.is_none() {
                        a download href=(format!("/runs/{id}/artifacts/{}", file.id)) { (parts::short(&file.path)) }
                        @if file.state == "final" && image::is_named(&file.path) && file.size <= image::LARGEST {
                            @let shown = format!("/runs/{id}/artifacts/{}/preview", file.id);
                            " " a.preview href=(shown) { img loading="lazy" alt=(parts::short(&file.path)) src=(shown); }
                        }
                    } @else { (parts::short(&file.path)) @if let Some(target) = &file.target { span.quiet { " → " (parts::short(target)) } } } }
                td.r.num { (parts::bytes(file.size)) } td { (file.state) } td.r.num { (file.attempt) }
                td.r { @match file.expires_at { Some(at) => (parts::time(at)), None => "–" } }
            } } }
        } }
        @if page.data.iter().any(|file| !parts::is_short(&file.path) || file.target.as_ref().is_some_and(|target| !parts::is_short(target))) {
            p.quiet { "Paths that end with … are listed whole by " (parts::command(&format!("repl artifact ls {id}"))) }
        }
        (parts::more(&format!("/runs/{id}/files"), page.next_cursor.as_deref(), first))
    })
}

pub(crate) async fn artifact(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((run, artifact)): Path<(String, String)>,
) -> Result<Response, super::Refusal> {
    let reader = Reader(visitor.token.clone());
    artifacts::get(State(state), reader, Path((run, artifact))).await.or_shown(&visitor)
}
