//! A new run by a form: a command, or a run file as the command line reads it. What would become of it is shown before it starts.

use super::act::{Sent, answer_of};
use super::said::Said;
use super::session::Visitor;
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts};
use crate::input::{Asked, Path, Query};
use crate::problem::{HandlerResult, Problem};
use crate::{Shared, definition, run};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use engine::Scope;
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
    /// A run file instead of a command.
    file: String,
    /// Made when the plan was shown: pressed twice, the button starts one run.
    once: String,
    /// Of the submission that was planned.
    planned: String,
}

impl Draft {
    fn read(sent: &Sent) -> Draft {
        let field = |name: &str| sent.field(name);
        Draft {
            command: field("command"),
            name: field("name"),
            provider: field("provider"),
            budget: field("budget"),
            file: field("file"),
            once: field("once"),
            planned: field("planned"),
        }
    }

    fn submission(&self, dry_run: bool) -> HandlerResult<Submit> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let mut submit = match (some(&self.command), some(&self.file)) {
            (Some(command), None) => Submit { commands: vec![command], ..Submit::default() },
            (None, Some(_)) => pasted(&self.file)?,
            (None, None) => return Err(Refused::invalid("command", "say what to run: a command, or a run file").into()),
            (Some(_), Some(_)) => return Err(Refused::invalid("file", "either a command or a run file").into()),
        };
        submit.name = some(&self.name).or(submit.name);
        submit.provider = some(&self.provider).or(submit.provider);
        submit.budget = some(&self.budget).or(submit.budget);
        Ok(Submit { start: true, dry_run, ..submit })
    }
}

/// Names a submission: what is started is what was planned.
fn hash(submission: &Submit) -> HandlerResult<String> {
    let text = serde_json::to_vec(submission).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

/// A run file that was pasted: read as the command line reads it, but for files and variables of the person's own machine.
fn pasted(text: &str) -> HandlerResult<Submit> {
    let wrong = |wrong: runfile::Wrong| {
        let problem = Problem::from(Refused::invalid("file", wrong.text));
        match wrong.fix {
            Some(fix) => problem.fix(fix),
            None => problem,
        }
    };
    let (submit, files) = runfile::read("the file", text, &|_| None).map_err(wrong)?;
    if !files.is_empty() {
        let why = format!("it names files of your own machine ({}), which this server cannot read", files.join(", "));
        return Err(Problem::from(Refused::invalid("file", why)).fix("save it and send it from there: repl run FILE"));
    }
    if let Some(plan) = &submit.plan {
        runfile::agents::check("the file", text, plan).map_err(wrong)?;
    }
    Ok(submit)
}

/// Which run it is like.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Like {
    from: Option<String>,
}

pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, Query(like): Query<Like>) -> PageResult {
    visitor.token.must(Scope::Write, "new runs").or_shown(&visitor)?;
    let (mut draft, mut said) = (Draft::default(), None);
    if let Some(id) = &like.from {
        let shown = definition::show(State(state.clone()), visitor.viewer().reader(), Path(id.clone())).await;
        let shown = shown.or_shown(&visitor)?.0;
        said = shown.sent_files.then(|| without_files(id));
        let mut definition = shown.definition;
        // Two open runs have not the same name.
        definition.as_object_mut().map(|fields| fields.remove("name"));
        draft.file = runfile::written(&definition);
    }
    Ok(shown(&state, &visitor, &draft, said.as_ref()).await)
}

/// A run file holds no bytes: what this run was given besides must be sent again from where it is.
pub(crate) fn without_files(run: &str) -> Markup {
    html! {
        section.card {
            p.bad { "This run was sent with files, standard input or a snapshot, which its run file does not hold: a run that is started here has none of them." }
            p { "Save the run file (" a href=(format!("/runs/{run}/definition/raw")) download { (run) ".yaml" } "), and send it again with them from where they are: "
                (parts::command(&format!("repl run {run}.yaml --file PATH"))) }
        }
    }
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
            details open[!draft.file.is_empty()] { summary { "A run file instead" }
                label for="file" { "YAML or JSON, as " code { "repl run FILE" } " reads it" }
                textarea id="file" form="act" name="file" rows="14" spellcheck="false" placeholder="type: task" { (draft.file) }
                p.quiet { "Files on your own machine are sent by the command line." }
            }
            div.actions {
                button.primary type="submit" form="act" formaction="/new?do=plan" { "Show what would happen" }
            }
        }
    }
}

/// `POST /new?do=plan` and `POST /new?do=start`. A form that was changed after it was planned is planned again and not started.
pub(crate) async fn submit(sent: Sent) -> Response {
    let draft = Draft::read(&sent);
    let starts = sent.button.r#do == "start";
    let submission = match draft.submission(false).and_then(|it| hash(&it)) {
        Ok(submission) => submission,
        Err(problem) => return refused(&sent, &draft, &problem).await,
    };
    if !starts || submission != draft.planned {
        return match plan(&sent, &draft, &submission).await {
            Ok(plan) => {
                let changed = html! { p.bad { "The form was changed after it was planned, so nothing was started. This is what would happen now." } };
                let said = html! { @if starts { (changed) } (plan) };
                let mut response = shown(&sent.state, &sent.visitor, &draft, Some(&said)).await;
                *response.status_mut() = if starts { StatusCode::CONFLICT } else { StatusCode::OK };
                response
            }
            Err(problem) => refused(&sent, &draft, &problem).await,
        };
    }
    match start(&sent, &draft).await {
        Ok(answer) if answer.status().is_success() => {
            let run: Result<RunView, _> = answer_of(Ok(answer)).await;
            let to = run.map_or_else(|_| "/runs".to_owned(), |run| format!("/runs/{}", run.id));
            sent.done(&to, Said::of("new"))
        }
        other => sent.answered(other, "/runs", "").await,
    }
}

/// The form again, with what is wrong about it.
async fn refused(sent: &Sent, draft: &Draft, problem: &Problem) -> Response {
    let said = parts::problem(problem, None);
    let mut response = shown(&sent.state, &sent.visitor, draft, Some(&said)).await;
    *response.status_mut() = problem.status();
    response
}

async fn start(sent: &Sent, draft: &Draft) -> HandlerResult {
    let (writer, submission) = (sent.writer("new runs")?, draft.submission(false)?);
    let subject = serde_json::to_string(&submission).unwrap_or_default();
    let key = sent.visitor.action_key("submit", &draft.once, "");
    let asked = Asked::made(submission, "new", &subject, key, sent.request.clone());
    run::submit(sent.shared(), writer, Query(Default::default()), asked).await
}

/// What a dry run answers.
async fn plan(sent: &Sent, draft: &Draft, planned_for: &str) -> HandlerResult<Markup> {
    let (writer, submission) = (sent.writer("new runs")?, draft.submission(true)?);
    let asked = sent.asked(submission, "plan", "", "");
    let planned: DryRun = answer_of(run::submit(sent.shared(), writer, Query(Default::default()), asked).await).await?;
    let once = engine::new_secret();
    Ok(html! {
        section.card.plan aria-label="What would happen" {
            h2 { "What would happen" }
            @match &planned { DryRun::Task(plan) => (task_plan(plan)), DryRun::Agents(plan) => (agents_plan(plan)) }
            input type="hidden" form="act" name="once" value=(once);
            input type="hidden" form="act" name="planned" value=(planned_for);
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
            ("Command", Some(html! { code { (parts::long(&plan.command)) } })),
            ("Where", Some(html! { (parts::visible(&plan.provider)) " " (parts::visible(&plan.region)) })),
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
