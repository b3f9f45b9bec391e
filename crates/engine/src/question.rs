//! What people are asked about steps: approvals and tickets. A question is opened, answered and withdrawn in the commit that moves its step.

use crate::Engine;
use crate::run::KeyedResponse;
use crate::run_tx::{RunTx, Tracked};
use crate::step::{Call, Place, step_plan};
use model::hierarchy::{self, Rows};
use model::question::{self, Answer, Question, QuestionEvent, QuestionStatus};
use model::run::{LastError, Ticket};
use model::step::{Step, StepWait, ToolKind};
use model::time::show_duration;
use model::{Failure, OrgId, Outcome, QuestionId, Refused, Timestamp, Trouble, bug};
use serde_json::Value;
use std::sync::Arc;
use store::question::Data;
use store::step::JournalRow;
use store::{Lane, Tx, WorkKind};

pub use store::question::Which;

/// What a person may say has the size of a step's input and output.
pub const MAX_DATA_BYTES: usize = crate::agent::MAX_OUTPUT_BYTES;
/// Approvals that expire in one commit; the next one goes on.
const EXPIRED_AT_ONCE: i64 = 100;

/// What a person says to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// `answer` is the output of an approval step, `input` takes the place of the input that was asked about.
    Approve {
        answer: Option<Value>,
        input: Option<Value>,
    },
    Reject,
    Resolve(Ticket),
    /// As `Resolve(Ticket::Done)`, with what the step would have answered.
    Done {
        output: Value,
    },
}

impl Verdict {
    fn ticket(&self) -> Option<Ticket> {
        match self {
            Verdict::Resolve(ticket) => Some(*ticket),
            Verdict::Done { .. } => Some(Ticket::Done),
            Verdict::Approve { .. } | Verdict::Reject => None,
        }
    }

    fn check(&self) -> Result<(), Refused> {
        let parts = match self {
            Verdict::Approve { answer, input } => vec![("answer", answer.as_ref()), ("input", input.as_ref())],
            Verdict::Done { output } => vec![("output", Some(output))],
            Verdict::Reject | Verdict::Resolve(_) => Vec::new(),
        };
        for (field, value) in parts {
            if value.is_some_and(|value| value.to_string().len() > MAX_DATA_BYTES) {
                return Err(Refused::invalid(field, format!("must not be longer than {} KiB", MAX_DATA_BYTES >> 10)));
            }
        }
        Ok(())
    }
}

/// A person's answer, with the name of the token that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    pub by: String,
    pub verdict: Verdict,
    pub note: Option<String>,
}

/// A question with all that a person needs to answer it.
#[derive(Debug, Clone)]
pub struct QuestionDetail {
    pub question: Question,
    pub run_name: String,
    pub step: Option<Step>,
    /// What the step was or would be called with.
    pub input: Option<Value>,
    pub edited: Option<Value>,
    pub answer: Option<Value>,
}

/// Turns a question into the bytes that are answered now and at every repetition.
pub type QuestionRender = Arc<dyn Fn(&QuestionDetail) -> Vec<u8> + Send + Sync>;

fn owned(tx: &mut Tx, org: OrgId, kind: StepWait, id: QuestionId) -> Result<Question, Failure> {
    let found = store::question::find(tx, id)?.filter(|question| question.org == org && question.kind == kind);
    found.ok_or_else(|| Refused::not_found(question::what(kind), id).into())
}

fn detail(tx: &mut Tx, question: Question) -> Result<QuestionDetail, Failure> {
    let step = store::step::find(tx, question.step)?;
    let run_name = store::run::find(tx, question.run)?.map(|run| run.name).unwrap_or_default();
    let asked = store::question::data(tx, question.id, Data::Input)?;
    let input = match asked {
        Some(asked) => Some(asked),
        None => store::step::data(tx, question.step, store::step::Data::Input)?,
    };
    let edited = store::question::data(tx, question.id, Data::Edited)?;
    let answer = store::question::data(tx, question.id, Data::Answer)?;
    Ok(QuestionDetail { question, run_name, step, input, edited, answer })
}

/// A question as the program of `[notify]` reads it.
pub(crate) fn to_tell(tx: &mut Tx, id: QuestionId) -> Result<Option<QuestionDetail>, Failure> {
    store::question::find(tx, id)?.map(|question| detail(tx, question)).transpose()
}

impl Engine {
    /// Answers a question once: if several people answer at the same time, one succeeds.
    pub async fn answer(
        &self,
        org: OrgId,
        id: QuestionId,
        word: Word,
        key: Option<store::idempotency::Key>,
    ) -> Result<KeyedResponse, Failure> {
        let render: QuestionRender = Arc::new(|detail| detail.question.id.to_string().into_bytes());
        self.answer_shown(org, id, word, key, render).await
    }

    pub async fn answer_shown(
        &self,
        org: OrgId,
        id: QuestionId,
        word: Word,
        key: Option<store::idempotency::Key>,
        render: QuestionRender,
    ) -> Result<KeyedResponse, Failure> {
        word.verdict.check()?;
        let kind = if word.verdict.ticket().is_some() { StepWait::Ticket } else { StepWait::Approval };
        let found = self.store.read_inline("question.find", move |tx| store::question::find(tx, id)).await?;
        let turn = found.map_or(Lane::Normal.into(), |question| Lane::Normal.of(question.run));
        let context = self.context.clone();
        self.keyed(turn, "question.answer", key, 200, move |tx| {
            let run = owned(tx, org, kind, id)?.run;
            let mut run_tx = RunTx::open(tx, &context, run)?;
            run_tx.by = Some(word.by.clone());
            run_tx.hear(id, &word)?;
            run_tx.close()?;
            let question = owned(tx, org, kind, id)?;
            Ok(render(&detail(tx, question)?))
        })
        .await
    }

    /// Open or closed questions of an org, newest first.
    pub async fn questions(
        &self,
        org: OrgId,
        kind: StepWait,
        open: bool,
        before: i64,
        limit: i64,
    ) -> Result<Vec<Question>, Failure> {
        self.questions_of(org, Which { kind, open, run: None, oldest_first: false }, before, limit).await
    }

    pub async fn questions_of(
        &self,
        org: OrgId,
        which: Which,
        from: i64,
        limit: i64,
    ) -> Result<Vec<Question>, Failure> {
        self.store.read("question.page", move |tx| store::question::page(tx, org, which, from, limit)).await
    }

    pub async fn question(&self, org: OrgId, kind: StepWait, id: QuestionId) -> Result<QuestionDetail, Failure> {
        self.store
            .read("question.detail", move |tx| {
                let question = owned(tx, org, kind, id)?;
                detail(tx, question)
            })
            .await
    }
}

impl RunTx<'_> {
    pub(crate) fn ask(&mut self, step: &Step, kind: StepWait) -> Result<(), Failure> {
        let (id, path, call) = (QuestionId(self.tx.next_id()), self.path_of(step)?, self.asked_call(step)?);
        // A step that has not begun has no key yet: that of its evaluated input is what is asked about.
        let key = step.key.clone().or(call.as_ref().map(|call| call.key.clone()));
        let mut question = Question::about(step, id, self.run.org, kind, (path, key.unwrap_or_default()), self.at);
        if let Some(call) = call.filter(|_| kind == StepWait::Approval) {
            question.same_as = self.same_step(step, &call)?;
            store::question::insert_data(self.tx, id, Data::Input, &call.input)?;
            question.identity = Some(call.identity);
            // A step of the tool `approval` may say how long it waits.
            let limit =
                call.input.get("expires_ms").and_then(Value::as_i64).filter(|_| step.tool == ToolKind::Approval);
            question.expires_at = limit.map(|ms| self.at + ms).or(question.expires_at);
        }
        let body = store::body!({
            "question": id, "kind": kind, "step": step.id, "path": question.path, "error": question.error,
            "same_as": question.same_as
        });
        self.publish("question.asked", body);
        self.questions.push(Tracked::new(question));
        self.wake(WorkKind::Notify, id.0, self.at);
        Ok(())
    }

    /// What a step would be called with: as its plan's expressions gave it, or as its parent said.
    fn asked_call(&mut self, step: &Step) -> Result<Option<Call>, Failure> {
        let Some(input) = self.child_inputs.get(&step.id).cloned() else { return self.call_of(step) };
        Ok(Some(Call { identity: self.child_identity(step)?, key: input.key, input: input.input }))
    }

    fn path_of(&mut self, step: &Step) -> Result<String, Failure> {
        let (agent, task) = (Rows::agent(self, step.agent)?, Rows::task(self, step.task)?);
        Ok(format!("{}/{}/{}", agent.name, task.name, step.name))
    }

    pub(crate) fn withdraw(&mut self, step: &Step, kind: StepWait) -> Result<(), Failure> {
        match self.last_question(step, kind)? {
            Some(open) if open.status == QuestionStatus::Open => self.question_event(&open, &QuestionEvent::Withdrawn),
            _ => Ok(()),
        }
    }

    pub(crate) fn count_open(&mut self, kind: StepWait) -> Result<i64, Failure> {
        let stored = store::question::count_open(self.tx, self.run.id, kind)?;
        let held = self.questions.iter().filter(|held| held.it.kind == kind);
        // Those opened or closed in this transaction are not in the database yet.
        let change: i64 = held
            .map(|held| match (held.is_new(), held.it.status == QuestionStatus::Open) {
                (true, true) => 1,
                (false, false) => -1,
                _ => 0,
            })
            .sum();
        Ok(stored + change)
    }

    pub(crate) fn last_question(&mut self, step: &Step, kind: StepWait) -> Result<Option<Question>, Failure> {
        let held = self.questions.iter().rev().find(|held| held.it.step == step.id && held.it.kind == kind);
        match held {
            Some(held) => Ok(Some(held.it.clone())),
            None => store::question::last_of_step(self.tx, step.id, kind),
        }
    }

    /// What the person said to a step of the tool `approval`: its output.
    pub(crate) fn approved(&mut self, step: &Step) -> Result<Value, Failure> {
        let Some(question) = self.last_question(step, StepWait::Approval)? else { return Ok(Value::Null) };
        if let Some(said) = store::question::data(self.tx, question.id, Data::Answer)? {
            return Ok(said);
        }
        let (by, note) = question.answer.map(|answer| (answer.by, answer.note)).unzip();
        Ok(serde_json::json!({ "approved": true, "by": by, "note": note.flatten() }))
    }

    fn question_event(&mut self, question: &Question, event: &QuestionEvent) -> Result<(), Failure> {
        let Outcome::Moved { next, .. } = question::apply(question, event, self.at)? else { return Ok(()) };
        let by = next.answer.as_ref().map(|answer| answer.by.clone());
        let body = store::body!({
            "question": next.id, "kind": next.kind, "step": next.step, "path": next.path, "status": next.status, "by": by
        });
        self.publish("question.closed", body);
        match self.questions.iter_mut().find(|held| held.it.id == next.id) {
            Some(held) => held.set(next),
            None => {
                let mut held = Tracked::clean(question.clone());
                held.set(next);
                self.questions.push(held);
            }
        }
        Ok(())
    }

    /// A person decides about a step. The first answer counts.
    fn hear(&mut self, id: QuestionId, word: &Word) -> Result<(), Failure> {
        let answer = Answer {
            by: word.by.clone(),
            at: self.at,
            ticket: word.verdict.ticket(),
            note: word.note.clone(),
            edited_key: None,
        };
        match &word.verdict {
            Verdict::Approve { answer: said, input } => self.approve(id, answer, said.as_ref(), input.as_ref()),
            Verdict::Reject => self.reject(id, answer),
            Verdict::Resolve(ticket) => self.resolve(id, answer, *ticket, None),
            Verdict::Done { output } => self.resolve(id, answer, Ticket::Done, Some(output)),
        }
    }

    fn resolve(
        &mut self,
        id: QuestionId,
        answer: Answer,
        ticket: Ticket,
        output: Option<&Value>,
    ) -> Result<(), Failure> {
        let question = self.open_question(id, StepWait::Ticket)?;
        self.question_event(&question, &QuestionEvent::Resolved { answer })?;
        if let Some(output) = output {
            let step = Rows::step(self, question.step)?;
            self.check_output(&step, "output", output)?;
            store::question::insert_data(self.tx, id, Data::Answer, output)?;
            self.note_output(&step, output)?;
        }
        hierarchy::resolve_ticket(self, question.step, ticket)
    }

    fn approve(
        &mut self,
        id: QuestionId,
        answer: Answer,
        said: Option<&Value>,
        input: Option<&Value>,
    ) -> Result<(), Failure> {
        let question = self.open_question(id, StepWait::Approval)?;
        self.check_word(&question, said, input)?;
        let edited_key = input.map(|input| self.edited_key(&question, input)).transpose()?;
        self.question_event(&question, &QuestionEvent::Approved { answer: Answer { edited_key, ..answer } })?;
        for (kind, value) in [(Data::Answer, said), (Data::Edited, input)] {
            if let Some(value) = value {
                store::question::insert_data(self.tx, id, kind, value)?;
            }
        }
        hierarchy::approve_step(self, question.step)
    }

    /// A step of the tool `approval` takes an answer, and any other one an input.
    fn check_word(&mut self, question: &Question, said: Option<&Value>, input: Option<&Value>) -> Result<(), Failure> {
        let step = Rows::step(self, question.step)?;
        let is_only_asked = question.tool == ToolKind::Approval;
        if let Some(said) = said {
            if !is_only_asked {
                let why =
                    "only a step of the tool `approval` has one: this step calls its tool, and `input` edits with what";
                return Err(Refused::invalid("answer", why).into());
            }
            self.check_output(&step, "answer", said)?;
        }
        if is_only_asked {
            self.check_answer(&step, said)?;
        }
        let Some(input) = input else { return Ok(()) };
        let by_a_program = match step.parent {
            Some(parent) => !Rows::step(self, parent)?.by_children,
            None => false,
        };
        if is_only_asked || by_a_program {
            let why = match is_only_asked {
                true => "this step only asks: say something with `answer`",
                false => "a program makes this step with an input of its own: approve it as it is, or reject it",
            };
            return Err(Refused::invalid("input", why).into());
        }
        let asked = store::question::data(self.tx, question.id, Data::Input)?.unwrap_or(Value::Null);
        let known = crate::agent::named_secrets(&asked);
        match crate::agent::named_secrets(input).into_iter().find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(secret) => {
                let why = format!("names the secret `{secret}`, which the input that was asked about does not");
                Err(Refused::invalid("input", why).into())
            }
        }
    }

    /// What a person gives as a step's output must match its schema, as a tool's answer must.
    fn check_output(&mut self, step: &Step, field: &'static str, value: &Value) -> Result<(), Failure> {
        let (agent, task) = (Rows::agent(self, step.agent)?, Rows::task(self, step.task)?);
        let plan = self.plan_of(&agent)?;
        let schema = step_plan(&plan, Place::of(&task, step)).and_then(|plan| plan.output.as_ref());
        match crate::agent::output_problem(value, schema) {
            None => Ok(()),
            Some(problem) => Err(Refused::invalid(field, problem.failure.error.message).into()),
        }
    }

    /// The plan may say by a schema what is to be answered.
    fn check_answer(&mut self, step: &Step, said: Option<&Value>) -> Result<(), Failure> {
        let (agent, task) = (Rows::agent(self, step.agent)?, Rows::task(self, step.task)?);
        let plan = self.plan_of(&agent)?;
        let asks = step_plan(&plan, Place::of(&task, step)).and_then(|plan| plan.input.get("answer"));
        let Some(schema) = asks.filter(|schema| !schema.is_null()) else { return Ok(()) };
        let Some(said) = said else {
            return Err(Refused::invalid("answer", format!("this approval asks for one that matches {schema}")).into());
        };
        let compiled = plan::OutputSchema::compile(schema).map_err(|why| vec![why]);
        match compiled.and_then(|schema| schema.validate(said)) {
            Ok(()) => Ok(()),
            Err(problems) => Err(Refused::invalid("answer", problems.join("; ")).into()),
        }
    }

    /// The key of the step with the input that a person puts in the place of the one that was asked about.
    fn edited_key(&self, question: &Question, input: &Value) -> Result<String, Failure> {
        let identity = question.identity.as_deref().and_then(|text| text.parse::<plan::Identity>().ok());
        let identity = identity.ok_or_else(|| Trouble::internal("an approval without the identity of its step"))?;
        if bug!(approval_not_bound) {
            return Ok(question.key.clone());
        }
        Ok(plan::key(self.run.id, &identity, question.tool, input))
    }

    fn reject(&mut self, id: QuestionId, answer: Answer) -> Result<(), Failure> {
        let question = self.open_question(id, StepWait::Approval)?;
        let note = answer.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
        let message = format!("{} said no{note}", answer.by);
        self.question_event(&question, &QuestionEvent::Rejected { answer })?;
        hierarchy::refuse_step(self, question.step, error("rejected", message), false)
    }

    fn open_question(&mut self, id: QuestionId, kind: StepWait) -> Result<Question, Failure> {
        let held = self.questions.iter().find(|held| held.it.id == id).map(|held| held.it.clone());
        let found = match held {
            Some(held) => Some(held),
            None => store::question::find(self.tx, id)?,
        };
        let of_this_run = found.filter(|question| question.run == self.run.id && question.kind == kind);
        of_this_run.ok_or_else(|| Refused::not_found(question::what(kind), id).into())
    }
}

/// Approvals before a step begins, and their end by time.
impl RunTx<'_> {
    /// What a step that people are asked about would be called with now, and whether it may. A person may have put another input in the
    /// place of the one that was evaluated: it counts in the attempt that it was approved for, and wherever the journal knows the step by
    /// its key.
    pub(crate) fn as_approved(&mut self, call: Call, recorded: Option<&JournalRow>) -> Result<(Call, bool), Failure> {
        let Some(approval) = self.approval_of(&call.key)? else { return Ok((call, false)) };
        let in_force = approval.attempt == self.run.attempt;
        let key = approval.effective_key();
        if key == call.key {
            return Ok((call, in_force));
        }
        if !in_force && recorded.is_none_or(|row| row.key != key) {
            return Ok((call, false));
        }
        let input = store::question::data(self.tx, approval.id, Data::Edited)?.unwrap_or(Value::Null);
        Ok((Call { input, key: key.to_owned(), identity: call.identity }, in_force))
    }

    fn approval_of(&mut self, key: &str) -> Result<Option<Question>, Failure> {
        let held = self.questions.iter().rev().find(|held| held.it.kind == StepWait::Approval && held.it.key == key);
        let last = match held {
            Some(held) => Some(held.it.clone()),
            None => store::question::last_of_key(self.tx, self.run.id, key)?,
        };
        Ok(last.filter(|approval| approval.status == QuestionStatus::Approved))
    }

    /// An approval that no person gave in time is a refusal.
    pub(crate) fn expire_approvals(&mut self) -> Result<(), Failure> {
        for question in store::question::expired(self.tx, self.run.id, EXPIRED_AT_ONCE)? {
            if self.questions.iter().any(|held| held.it.id == question.id) {
                continue; // answered in this transaction
            }
            let message = format!("nobody approved it within {}", show_duration(self.at.since(question.asked_at)));
            self.question_event(&question, &QuestionEvent::Expired)?;
            hierarchy::refuse_step(self, question.step, error("approval_expired", message), false)?;
        }
        Ok(())
    }

    /// When the next open approval of the run expires, those of this transaction included.
    pub(crate) fn next_expiry(&mut self) -> Result<Option<Timestamp>, Failure> {
        let stored = store::question::next_expiry(self.tx, self.run.id)?;
        let open = self.questions.iter().filter(|held| held.it.status == QuestionStatus::Open);
        Ok(stored.into_iter().chain(open.filter_map(|held| held.it.expires_at)).min())
    }
}

fn error(code: &str, message: String) -> LastError {
    LastError { code: code.to_owned(), message, cause: None }
}
