//! Starts the program of `[notify]` for each new ticket and approval, at least once (orphans: `orphan/notice.rs`). The question's row is committed before the program
//! starts; its exit is recorded afterwards. A program that fails is started again a few times, then the question says so by its event.

use crate::question::QuestionDetail;
use crate::{Engine, Tool};
use adapters::{ToolCall, ToolLog};
use model::question::Question;
use model::recovery::backoff;
use model::step::StepWait;
use model::{Failure, QuestionId, RunId, Timestamp, crash_point};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use store::{Item, Lane, NewEvent, Tx, WorkKind};

/// How often the program is started for one question.
const MOST_TRIES: i64 = 5;
/// The first pause is one second, each further one twice as long.
const PAUSE_FACTOR: i64 = 10;

#[derive(Clone)]
pub(crate) struct Notifier {
    pub(crate) program: Arc<dyn Tool>,
    pub(crate) timeout_ms: i64,
}

/// What the program writes is not kept.
struct NoLog;

impl ToolLog for NoLog {
    fn write(&self, _: &[u8]) {}
}

pub(crate) enum Told {
    Well,
    Badly(String),
    /// This process ends: another worker starts it again.
    Cut,
}

impl Engine {
    pub(crate) async fn notify(&self, item: Item) -> Result<(), Failure> {
        let id = QuestionId(item.subject);
        let found = self.store.read("question.notify", move |tx| crate::question::to_tell(tx, id)).await?;
        let to_tell = |detail: &QuestionDetail| {
            detail.question.notified_at.is_none() && detail.question.notify_tries < MOST_TRIES
        };
        let (Some(detail), Some(notifier)) = (found.filter(to_tell), &self.notifier) else {
            return self.forget_notify(item).await;
        };
        match crash_point!("notify.start", self.start(notifier, &detail).await) {
            Told::Well => self.told(item, detail.question.run, Ok(())).await,
            Told::Badly(why) => self.told(item, detail.question.run, Err(why)).await,
            Told::Cut => self.again(item).await,
        }
    }

    async fn start(&self, notifier: &Notifier, detail: &QuestionDetail) -> Told {
        let question = &detail.question;
        self.start_program(notifier, question.id.to_string(), message(detail)).await
    }

    /// Starts the program with this message.
    pub(crate) async fn start_program(&self, notifier: &Notifier, key: String, input: Value) -> Told {
        let call = ToolCall { key, input, secrets: BTreeMap::new(), timeout_ms: Some(notifier.timeout_ms) };
        let mut program = notifier.program.call(&call, &NoLog);
        let mut limit = self.context.timer.after(notifier.timeout_ms);
        let mut closing = pin!(self.closing.asked());
        poll_fn(|context| {
            if let Poll::Ready(ended) = program.as_mut().poll(context) {
                return Poll::Ready(match ended {
                    Ok(_) => Told::Well,
                    Err(failed) => Told::Badly(failed.failure.error.message),
                });
            }
            if limit.as_mut().poll(context).is_ready() {
                return Poll::Ready(Told::Badly(format!("it took longer than {} ms", notifier.timeout_ms)));
            }
            closing.as_mut().poll(context).map(|()| Told::Cut)
        })
        .await
    }

    async fn forget_notify(&self, item: Item) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "question.untold", move |tx| {
                store::work::hold(tx, &item)?;
                store::work::forget(tx, WorkKind::Notify, item.subject)
            })
            .await
    }

    /// Writes down how the program ended, and when it is started again.
    async fn told(&self, item: Item, run: RunId, ended: Result<(), String>) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal.of(run), "question.told", move |tx| {
                store::work::hold(tx, &item)?;
                match note(tx, run, QuestionId(item.subject), &ended)? {
                    Some(next) => store::work::finish(tx, &item, Some(next)),
                    None => store::work::forget(tx, WorkKind::Notify, item.subject)?,
                }
                Ok(())
            })
            .await
    }
}

/// Answers are written under the run's lock, and so is this.
fn note(tx: &mut Tx, run: RunId, id: QuestionId, ended: &Result<(), String>) -> Result<Option<Timestamp>, Failure> {
    let at = tx.at();
    store::run::lock(tx, run)?;
    let Some(question) = store::question::find(tx, id)? else { return Ok(None) };
    let tries = question.notify_tries + 1;
    let notified_at = ended.is_ok().then_some(at);
    let next = Question { notify_tries: tries, notified_at, ..question };
    store::question::save(tx, &next)?;
    let Err(why) = ended else { return Ok(None) };
    let body = store::body!({ "question": id, "kind": next.kind, "tries": tries, "error": why });
    tx.event(NewEvent { org: next.org, run: Some(next.run), kind: "question.notify_failed", body });
    Ok((tries < MOST_TRIES).then(|| at + PAUSE_FACTOR * backoff(tries, 0)))
}

/// What the program reads.
fn message(detail: &QuestionDetail) -> Value {
    let question = &detail.question;
    let kind = if question.kind == StepWait::Ticket { "escalation" } else { "approval" };
    let command = format!("repl {kind} show {}", question.id);
    json!({
        "id": question.id, "kind": kind, "run": question.run, "run_name": detail.run_name,
        "path": question.path, "step": question.step, "tool": question.tool, "severity": question.severity,
        "error": question.error, "input": detail.input, "asked_at": question.asked_at,
        "expires_at": question.expires_at, "status": question.status, "command": command,
    })
}
