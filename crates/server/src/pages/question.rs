//! The inbox: approvals with the exact input that they are about, tickets with their error; answered right there.

use super::region;
use super::session::{Viewer, Visitor};
use super::shell::{self, Head};
use super::{OrShown as _, PageResult, parts, step};
use crate::input::{Path, Query};
use crate::problem::HandlerResult;
use crate::question::{self, Filter};
use crate::routes::download;
use crate::{Shared, tree};
use axum::extract::State;
use axum::http::Uri;
use engine::Scope;
use maud::{Markup, html};
use model::{QuestionId, Refused};
use wire::api::{QuestionDetailView, QuestionView, StepView};

/// Questions of one page.
const LISTED: usize = 40;
/// Of each kind, as far as they are counted.
const COUNTED: i64 = 100;
/// HTML bytes of the schema of an answer, which also stands in the exact input.
const SCHEMA: usize = 2 * 1024;

/// Which question is open, and where the list goes on: each kind has its own place.
#[derive(Debug, Default, Clone, serde::Deserialize)]
#[serde(default)]
struct Wanted {
    open: Option<String>,
    tickets: Option<String>,
    approvals: Option<String>,
}

impl Wanted {
    fn read(query: &str) -> Wanted {
        let uri: Uri = format!("/?{query}").parse().unwrap_or_default();
        axum::extract::Query::<Wanted>::try_from_uri(&uri).map(|it| it.0).unwrap_or_default()
    }

    fn is_first(&self) -> bool {
        self.tickets.is_none() && self.approvals.is_none()
    }

    /// The place of this page as a query.
    fn place(&self) -> String {
        let pairs = [("tickets", &self.tickets), ("approvals", &self.approvals)];
        let pairs = pairs.iter().filter_map(|(name, cursor)| Some(format!("{name}={}", cursor.as_ref()?)));
        pairs.collect::<Vec<_>>().join("&")
    }

    /// The address of this page with this question; with none if it is empty.
    fn at(&self, id: &str) -> String {
        // An id as it is; whatever else stood in the address, encoded.
        const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC.remove(b'_');
        let open = percent_encoding::utf8_percent_encode(id, KEPT);
        let open = if id.is_empty() { String::new() } else { format!("open={open}") };
        let query = [open, self.place()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&");
        if query.is_empty() { "/inbox".to_owned() } else { format!("/inbox?{query}") }
    }

    /// Behind the last of each kind that is shown.
    fn behind(&self, shown: &[(&str, QuestionView)]) -> Wanted {
        let last = |kind: &str, before: &Option<String>| {
            let last =
                shown.iter().rev().find(|(of, _)| *of == kind).and_then(|(_, it)| it.id.parse::<QuestionId>().ok());
            last.map_or_else(|| before.clone(), |id| Some(model::slug(id.0)))
        };
        Wanted { open: None, tickets: last("ticket", &self.tickets), approvals: last("approval", &self.approvals) }
    }
}

/// The page shows one question until the person chooses another: when a colleague answers it, the live region shows the answer. Another
/// question in its place would have its buttons where a click was meant for this one.
pub(crate) async fn page(State(state): State<Shared>, visitor: Visitor, uri: Uri) -> PageResult {
    let wanted = Wanted::read(uri.query().unwrap_or_default());
    let chosen = match wanted.open.clone() {
        Some(named) => Some(named),
        None => {
            let (oldest, _) = open(&state, visitor.viewer(), LISTED as i64, &wanted).await.or_shown(&visitor)?;
            oldest.into_iter().next().map(|(_, it)| it.id)
        }
    };
    let src = chosen.map_or_else(|| wanted.at(""), |id| wanted.at(&id));
    let list = region::live(&state, visitor.viewer(), &format!("/ui{src}")).await.or_shown(&visitor)?;
    let body = html! { div.title { h1 { "Inbox" } } (list) };
    Ok(shell::full(&state, &visitor, Head { title: "Inbox", under: "/inbox" }, &body).await)
}

/// Open tickets and approvals, oldest first, up to so many of each kind, and whether there are more.
async fn open(
    state: &Shared,
    viewer: Viewer,
    limit: i64,
    wanted: &Wanted,
) -> HandlerResult<(Vec<(&'static str, QuestionView)>, bool)> {
    let filter = |cursor: &Option<String>| Query(Filter::open(limit, cursor.clone()));
    let shared = || State(state.clone());
    let tickets = question::escalations(shared(), viewer.reader(), filter(&wanted.tickets)).await?.0;
    let approvals = question::approvals(shared(), viewer.reader(), filter(&wanted.approvals)).await?.0;
    let more = tickets.next_cursor.is_some() || approvals.next_cursor.is_some();
    let tickets = tickets.data.into_iter().map(|it| ("ticket", it));
    let approvals = approvals.data.into_iter().map(|it| ("approval", it));
    let mut all: Vec<_> = tickets.chain(approvals).filter(|(_, it)| it.status == "open").collect();
    all.sort_by_key(|(_, it)| it.id.parse::<QuestionId>().map_or(i64::MAX, |id| id.0));
    Ok((all, more))
}

/// How many wait for an answer, as far as they are counted; none if none does.
pub(crate) async fn counted(state: &Shared, viewer: Viewer) -> HandlerResult<Option<String>> {
    let (open, more) = open(state, viewer, COUNTED, &Wanted::default()).await?;
    let shown = format!("{}{}", open.len(), if more { "+" } else { "" });
    Ok(Some(shown).filter(|_| !open.is_empty()))
}

/// The same beside the name of the inbox. The script shows it in the title.
pub(crate) fn badge(count: Option<&str>) -> Markup {
    html! { @if let Some(count) = count { span.count data-count=(count) { (count) } } }
}

/// One question that is open or answered, whichever kind it is of.
pub(crate) async fn detail(state: &Shared, viewer: Viewer, id: &str) -> HandlerResult<QuestionDetailView> {
    let (shared, path) = (|| State(state.clone()), || Path(id.to_owned()));
    match question::escalation(shared(), viewer.reader(), path()).await {
        Ok(ticket) => Ok(ticket.0),
        Err(_) => Ok(question::approval(shared(), viewer.reader(), path()).await?.0),
    }
}

/// The list, and the question that the address names: with all that is needed to answer it while it is open, and as it was answered
/// afterwards. Without a name no question is shown, so that none takes another's place.
pub(crate) async fn region(state: &Shared, viewer: Viewer, query: &str) -> HandlerResult<Markup> {
    let wanted = Wanted::read(query);
    let (mut all, mut more) = open(state, viewer, LISTED as i64, &wanted).await?;
    more |= all.len() > LISTED;
    all.truncate(LISTED);
    let named = match wanted.open.as_deref() {
        Some(id) => detail(state, viewer, id).await.ok(),
        None => None,
    };
    if named.is_none() && all.is_empty() {
        return Ok(html! { p.empty { @if wanted.is_first() { "Nothing waits for an answer." }
        @else { "Nothing more waits for an answer. " a href="/inbox" { "The oldest" } } } });
    }
    let next = all.first().map(|(_, it)| (wanted.at(&it.id), it.path.as_str()));
    let card = match &named {
        Some(it) if it.question.status == "open" => {
            let place = Path((it.question.run.clone(), it.question.step.clone()));
            let tries = tree::step(State(state.clone()), viewer.reader(), place).await;
            card(it, viewer.may(Scope::Approve), &tries.map(|it| it.0.earlier_tries).unwrap_or_default())
        }
        Some(it) => closed(it, next.as_ref()),
        None => html! { article.card.question {
            @if wanted.open.is_some() { p { "There is no such question." } }
            p { (next_one(next.as_ref())) }
        } },
    };
    let chosen = named.map_or_else(String::new, |it| it.question.id);
    Ok(html! {
        div.inbox {
            nav.letters aria-label="Open questions" {
                ul { @for (kind, it) in &all {
                    li id=(format!("l-{}", it.id)) {
                        a href=(wanted.at(&it.id)) aria-current=[(it.id == chosen).then_some("true")] {
                            strong { (parts::visible(&it.path)) }
                            span { span.phase { (kind) } " " (parts::time(it.asked_at)) }
                        }
                    }
                } }
                @if more || !wanted.is_first() {
                    p.pages {
                        @if !wanted.is_first() { a href="/inbox" { "The oldest" } " " }
                        @if more { a rel="next" href=(format!("/inbox?{}", wanted.behind(&all).place())) { "Later ones" } }
                    }
                }
            }
            (card)
        }
    })
}

/// `GET /inbox/{id}/{input,edited,answer}`: the exact input, the one that was approved in its place, or the answer, as a file.
pub(crate) async fn part(
    State(state): State<Shared>,
    visitor: Visitor,
    Path((id, what)): Path<(String, String)>,
) -> PageResult {
    let it = detail(&state, visitor.viewer(), &id).await.or_shown(&visitor)?;
    let value = match what.as_str() {
        "input" => it.input,
        "edited" => it.edited_input,
        "answer" => it.answer,
        _ => None,
    };
    let value = value.ok_or_else(|| Refused::not_found("part of a question", what.as_str())).or_shown(&visitor)?;
    Ok(download(&format!("{id}-{what}.json"), format!("{value:#}").into()))
}

/// What is asked, in one line: the words of a step that asks people, otherwise what is to be decided about it.
pub(crate) fn headline(it: &QuestionDetailView) -> String {
    let q = &it.question;
    let message = it.input.as_ref().and_then(|input| input.get("message")).and_then(|it| it.as_str());
    match message.filter(|_| q.tool == "approval") {
        Some(message) => parts::long(message),
        None if it.allowed.iter().any(|word| word == "resume") => {
            format!("What becomes of {}?", parts::visible(&q.path))
        }
        None => format!("Approve {}?", parts::visible(&q.path)),
    }
}

/// A question with what is needed to answer it; `tries` is what became of the step before.
pub(crate) fn card(it: &QuestionDetailView, may: bool, tries: &[StepView]) -> Markup {
    let q = &it.question;
    let is_ticket = it.allowed.iter().any(|word| word == "resume");
    let to = |action: &str| format!("/inbox/{}/{action}", q.id);
    let can = |word: &str| it.allowed.iter().any(|allowed| allowed == word);
    // It is not approved without an answer that matches.
    let demanded = it.input.as_ref().and_then(|input| input.get("answer")).filter(|_| can("answer") && !can("approve"));
    html! {
        article.card.question id=(q.id) aria-labelledby=(format!("{}-h", q.id)) {
            div.title {
                h2 id=(format!("{}-h", q.id)) { (headline(it)) }
                span.phase { (q.severity) } code { (parts::visible(&q.tool)) }
            }
            p.quiet { (if is_ticket { "Ticket" } else { "Approval" }) " · " (parts::visible(&q.path)) ". Run " a href=(format!("/runs/{}", q.run)) { (parts::visible(&it.run_name)) } ", step "
                a href=(format!("/runs/{}/steps/{}", q.run, q.step)) { (q.step) } ", asked " (parts::time(q.asked_at))
                @if let Some(at) = q.expires_at { ", expires " (parts::time(at)) } }
            @if let Some(error) = &q.error { (parts::error(error, &format!("/runs/{}/steps/{}/error", q.run, q.step))) }
            @if let (Some(path), Some(step)) = (&q.same_as, &q.same_as_step) {
                p.bad { "The same call was begun before, as " a href=(format!("/runs/{}/steps/{step}", q.run)) { (parts::visible(path)) } "." }
            }
            @if let Some(input) = &it.input {
                details.block open { summary { "Exact input" } (parts::json_or(input, &format!("/inbox/{}/input", q.id))) }
            }
            @if may && !is_ticket {
                @if let Some(schema) = demanded {
                    p { "The answer must match this schema:" }
                    (parts::json_up_to(schema, SCHEMA, Some(&format!("/inbox/{}/input", q.id))))
                    (value_field(&q.id, "Answer (JSON)", ""))
                }
                (note(&q.id))
                div.actions {
                    @if demanded.is_some() { (parts::button("Approve with this answer", &to("answer"), "primary")) }
                    @else { (parts::button("Approve", &to("approve"), "primary")) }
                    (parts::button("Reject", &to("reject"), "danger"))
                }
            }
            @if !tries.is_empty() { details.block { summary { "History: " (parts::counted(tries.len() as i64, "earlier try", "earlier tries")) } (step::tries(tries)) } }
            @if may && is_ticket { (ticket(q.id.as_str(), it, &to)) }
            @else if may && demanded.is_none() {
                @if can("edit") && it.input.as_ref().is_some_and(|input| !fits(input)) {
                    p.quiet { "Its input is too long to be edited here: " (parts::command(&format!("repl approval approve {} --input JSON", q.id))) }
                } @else if can("edit") || can("answer") {
                    @let text = it.input.as_ref().filter(|_| can("edit")).map(|input| serde_json::to_string_pretty(input).unwrap_or_default()).unwrap_or_default();
                    details.block { summary { (if can("answer") { "Answer with a value" } else { "Edit the input" }) }
                        (value_field(&q.id, "JSON", &text))
                        (parts::button(if can("answer") { "Approve with this answer" } else { "Approve this input" }, &to(if can("answer") { "answer" } else { "edit" }), ""))
                    }
                }
            } @else if !may { p.quiet { "A token with the scope approve answers this." } }
        }
    }
}

/// A field for a value in JSON.
fn value_field(id: &str, label: &str, text: &str) -> Markup {
    let field = format!("{id}-json");
    html! {
        label for=(field) { (label) }
        textarea id=(field) form="act" name=(format!("json-{id}")) rows=(text.lines().count().clamp(3, 20)) spellcheck="false" { (text) }
    }
}

/// A question that is not open any more: what was decided, who decided it, and the way to the next one.
fn closed(it: &QuestionDetailView, next: Option<&(String, &str)>) -> Markup {
    let q = &it.question;
    html! {
        article.card.question id=(q.id) aria-labelledby=(format!("{}-h", q.id)) {
            div.title { h2 id=(format!("{}-h", q.id)) { (parts::visible(&q.path)) } (parts::state(&q.status)) code { (parts::visible(&q.tool)) } }
            p.quiet { "Run " a href=(format!("/runs/{}", q.run)) { (parts::visible(&it.run_name)) } ", step "
                a href=(format!("/runs/{}/steps/{}", q.run, q.step)) { (q.step) } ", asked " (parts::time(q.asked_at)) }
            (parts::facts(vec![
                ("Answered by", q.answered_by.as_deref().map(|by| html! { (parts::visible(by)) })),
                ("Answered", q.answered_at.map(parts::time)),
                ("Decided", q.action.as_deref().map(|word| html! { (label(word)) })),
                ("Note", q.note.as_deref().map(|note| html! { (parts::visible(note)) })),
            ]))
            @if let Some(input) = &it.edited_input { details.block open { summary { "The input that was approved" } (parts::json_or(input, &format!("/inbox/{}/edited", q.id))) } }
            @if let Some(answer) = &it.answer { details.block open { summary { "The answer" } (parts::json_or(answer, &format!("/inbox/{}/answer", q.id))) } }
            p { (next_one(next)) }
        }
    }
}

fn next_one(next: Option<&(String, &str)>) -> Markup {
    html! {
        @match next {
            Some((to, path)) => { "Next: " a href=(to) { (parts::visible(path)) } }
            None => "Nothing else waits for an answer.",
        }
    }
}

/// Whether a field of the page can hold it.
fn fits(input: &serde_json::Value) -> bool {
    let text = serde_json::to_string_pretty(input).unwrap_or_default();
    parts::cut(&text, parts::SHOWN_JSON) == text.len()
}

/// What a decision about a ticket says.
fn label(word: &str) -> &'static str {
    match word {
        "resume" => "Resume",
        "skip" => "Skip the step",
        "retry" => "Try again",
        "abort" => "Abort the run",
        "done" => "It was done",
        "not_done" => "It was not done",
        _ => "Decide",
    }
}

fn ticket(id: &str, it: &QuestionDetailView, to: &dyn Fn(&str) -> String) -> Markup {
    html! {
        @if it.allowed.iter().any(|word| word == "done") {
            @let field = format!("{id}-json");
            details.block { summary { "What it would have answered" }
                label for=(field) { "JSON, for “it was done”" }
                textarea id=(field) form="act" name=(format!("json-{id}")) rows="4" spellcheck="false" {}
            }
        }
        (note(id))
        div.actions { @for word in &it.allowed {
            (parts::button(label(word), &to(word), if word == "abort" { "danger" } else { "" }))
        } }
    }
}

fn note(id: &str) -> Markup {
    html! { label.note { span { "Note" } input form="act" name=(format!("note-{id}")) maxlength="4000" autocomplete="off"; } }
}
