//! A new run by a form: a command, or a plan of agents as JSON. What would become of it is shown before it starts.

use super::act::{after, writer};
use super::session::{Form, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, Refusal, parts, see_other};
use crate::input::{Asked, Query};
use crate::problem::{HandlerResult, Problem};
use crate::routes::RequestId;
use crate::{Shared, run};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use engine::store::token::Scope;
use maud::{Markup, html};
use model::Refused;
use wire::api::{AgentsPlan, DryRun, Plan, RunView, Submit};

/// What the form holds.
#[derive(Debug, Clone, Default)]
struct Draft {
    command: String,
    name: String,
    provider: String,
    budget: String,
    plan: String,
    /// Made when the plan was shown: pressed twice, the button starts one run.
    once: String,
}

impl Draft {
    fn read(form: &Form) -> Draft {
        let field = |name: &str| form.get(name).unwrap_or_default().to_owned();
        Draft {
            command: field("command"),
            name: field("name"),
            provider: field("provider"),
            budget: field("budget"),
            plan: field("plan"),
            once: field("once"),
        }
    }

    fn submission(&self, dry_run: bool) -> Result<Submit, Refused> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let mut submit = Submit {
            name: some(&self.name),
            provider: some(&self.provider),
            budget: some(&self.budget),
            start: true,
            dry_run,
            ..Submit::default()
        };
        match (some(&self.command), some(&self.plan)) {
            (Some(command), None) => submit.commands = vec![command],
            (None, Some(plan)) => {
                let plan = serde_json::from_str(&plan).map_err(|error| {
                    Refused::invalid("plan", format!("{error}; for YAML and local files, use: repl run FILE"))
                })?;
                (submit.kind, submit.plan) = (Some("agents".to_owned()), Some(plan));
            }
            (None, None) => return Err(Refused::invalid("command", "say what to run: a command, or a plan")),
            (Some(_), Some(_)) => return Err(Refused::invalid("plan", "either a command or a plan")),
        }
        Ok(submit)
    }
}

/// Which run it is like.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Like {
    from: Option<String>,
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, Query(like): Query<Like>) -> PageResult {
    visitor.token.must(Scope::Write, "new runs").or_shown(&visitor)?;
    let mut draft = Draft::default();
    if let Some(id) = &like.from {
        let run = super::run::one(&state, visitor.viewer(), id).await.or_shown(&visitor)?;
        (draft.command, draft.budget) = (run.command, run.budget.unwrap_or_default());
    }
    Ok(shown(&state, &visitor, &draft, None).await)
}

async fn shown(state: &Shared, visitor: &Visitor, draft: &Draft, said: Option<&Markup>) -> Response {
    let body = html! {
        p.crumbs { a href="/runs" { "Runs" } " / New" }
        h1 { "New run" }
        @if let Some(said) = said { (said) }
        (form(draft))
    };
    shell::full(state, visitor, Head { title: "New run", under: "/runs" }, &body).await
}

/// For the first visit: one line, and the plan comes next.
pub(crate) fn small_form() -> Markup {
    html! {
        p { "Or right here:" }
        div.line {
            label for="first-command" { "Command" }
            input id="first-command" form="act" name="command" placeholder="echo hello" autocomplete="off" spellcheck="false";
            button.primary type="submit" form="act" formaction="/new?do=plan" { "Plan it" }
        }
    }
}

fn form(draft: &Draft) -> Markup {
    html! {
        div.card.fields {
            label for="command" { "Command" }
            textarea id="command" form="act" name="command" rows="3" spellcheck="false" placeholder="python3 -c 'print(6 * 7)'" { (draft.command) }
            div.two {
                label { span { "Name" } input form="act" name="name" value=(draft.name) autocomplete="off" spellcheck="false"; }
                label { span { "Provider" } input form="act" name="provider" value=(draft.provider) placeholder="local" autocomplete="off" spellcheck="false"; }
                label { span { "Budget in credits" } input form="act" name="budget" value=(draft.budget) inputmode="decimal" autocomplete="off"; }
            }
            details open[!draft.plan.is_empty()] { summary { "A plan of agents instead" }
                label for="plan" { "JSON with " code { "type: agents" } }
                textarea id="plan" form="act" name="plan" rows="12" spellcheck="false" { (draft.plan) }
                p.quiet { "Files on your own machine are sent by the command line: " code { "repl run FILE" } }
            }
            div.actions {
                button.primary type="submit" form="act" formaction="/new?do=plan" { "Show what would happen" }
            }
        }
    }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct What {
    r#do: String,
}

pub(crate) async fn submit(
    State(state): State<Shared>,
    visitor: Visitor,
    Query(what): Query<What>,
    Extension(request_id): Extension<RequestId>,
    request: Request,
) -> Result<Response, Refusal> {
    let form = match Form::of(&visitor, request).await {
        Ok(form) => form,
        Err(response) => return Ok(response),
    };
    let draft = Draft::read(&form);
    writer(&visitor, "new runs").or_shown(&visitor)?;
    if what.r#do != "start" {
        let planned = plan(&state, &visitor, &draft, &request_id).await;
        let (status, said) = match planned {
            Ok(said) => (StatusCode::OK, said),
            Err(problem) => (problem.status(), parts::problem(&problem)),
        };
        let mut response = shown(&state, &visitor, &draft, Some(&said)).await;
        *response.status_mut() = status;
        return Ok(response);
    }
    let submission = draft.submission(false).or_shown(&visitor)?;
    let subject = serde_json::to_string(&submission).unwrap_or_default();
    let key = visitor.action_key("submit", &draft.once, "");
    let asked = Asked::made(submission, "POST /new", &subject, key, request_id.0);
    let writer = writer(&visitor, "new runs").or_shown(&visitor)?;
    match run::submit(State(state), writer, Query(Default::default()), asked).await {
        Ok(answer) if answer.status().is_success() => {
            let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap_or_default();
            let run: Result<RunView, _> = serde_json::from_slice(&bytes);
            Ok(see_other(&run.map_or_else(|_| "/runs".to_owned(), |run| format!("/runs/{}", run.id))))
        }
        other => Ok(after(&visitor, other, "/runs").await.into_response()),
    }
}

/// What a dry run answers.
async fn plan(state: &Shared, visitor: &Visitor, draft: &Draft, request_id: &RequestId) -> HandlerResult<Markup> {
    let submission = draft.submission(true)?;
    let asked = Asked::made(submission, "POST /new", "", visitor.action_key("plan", "", ""), request_id.0.clone());
    let writer = writer(visitor, "new runs")?;
    let answer = run::submit(State(state.clone()), writer, Query(Default::default()), asked).await?;
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap_or_default();
    let planned: DryRun = serde_json::from_slice(&bytes).map_err(|error| Problem::internal(error.to_string()))?;
    let once = engine::store::session::new_secret();
    Ok(html! {
        section.card.plan aria-label="What would happen" {
            h2 { "What would happen" }
            @match &planned { DryRun::Task(plan) => (task_plan(plan)), DryRun::Agents(plan) => (agents_plan(plan)) }
            input type="hidden" form="act" name="once" value=(once);
            div.actions { button.primary type="submit" form="act" formaction="/new?do=start" { "Start it" } }
        }
    })
}

fn task_plan(plan: &Plan) -> Markup {
    let place = match plan.placement.as_str() {
        "now" => "It starts at once on a machine that waits for it.",
        "start_machine" => "A machine is started for it.",
        "replace_machine" => "An idle machine that does not fit ends, and another is started.",
        _ => "It waits for a machine.",
    };
    html! {
        p { (place) }
        (parts::facts(vec![
            ("Command", Some(html! { code { (parts::visible(&plan.command)) } })),
            ("Where", Some(html! { (plan.provider) " " (plan.region) })),
            ("Price per hour", Some(parts::credits(&plan.price_per_hour))),
            ("Reserved", Some(parts::credits(&plan.credits_reserved))),
            ("At most", plan.credits_most.as_deref().map(parts::credits)),
            ("You have", Some(parts::credits(&plan.credits_available))),
            ("Waiting before it", (plan.pool.waiting > 0).then(|| html! { span.num { (plan.pool.waiting) } })),
        ]))
    }
}

fn agents_plan(plan: &AgentsPlan) -> Markup {
    html! {
        (parts::facts(vec![
            ("Agents", Some(html! { span.num { (plan.planned_agents) } })),
            ("Tasks", Some(html! { span.num { (plan.planned_tasks) } })),
            ("Steps", Some(html! { span.num { (plan.planned_steps) } })),
            ("Models cost at most", Some(parts::credits(&plan.estimate))),
            ("You have", Some(parts::credits(&plan.credits_available))),
        ]))
        @for warning in &plan.warnings { p.bad { (parts::visible(warning)) } }
    }
}
