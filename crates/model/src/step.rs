//! The state machine of a step: one tool invocation. Tries are counted. A step that was started and whose outcome is unknown is `uncertain`; unless
//! it may be repeated, a person decides how it goes on.

use crate::children::{ChildState, Children};
use crate::plan::StepPlan;
use crate::recovery::Judged;
use crate::run::LastError;
use crate::task::Task;
use crate::{
    AgentId, Credits, Effect, JobId, OrgId, Outcome, Refused, RunId, StepId, TaskId, Timestamp, moved, string_enum,
    unchanged,
};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum StepStatus {
        Pending = "pending", Running = "running", Waiting = "waiting", Completed = "completed", Failed = "failed",
        Skipped = "skipped", Cancelled = "cancelled",
    }
}
string_enum! {
    /// What a step invokes.
    pub enum ToolKind {
        Command = "command", Http = "http", Llm = "llm", Mcp = "mcp", Exec = "exec", External = "external",
        Approval = "approval", Wait = "wait", Call = "call",
    }
}

impl ToolKind {
    /// Runs on the agent's machine. The others run on a worker of the control plane, in a program of the user's, or nowhere. A call of an
    /// MCP server does if the server is a program: its input says so, and [`Step::needs_machine`] knows.
    pub fn needs_machine(self) -> bool {
        matches!(self, ToolKind::Command | ToolKind::Exec)
    }

    /// Whether this input names an MCP server that is a program.
    pub fn is_stdio(self, input: &serde_json::Value) -> bool {
        self == ToolKind::Mcp && input.get("argv").is_some()
    }
}

impl ToolKind {
    /// A call may change something outside. The others only wait.
    pub fn has_effect(self) -> bool {
        !matches!(self, ToolKind::Wait | ToolKind::Approval)
    }
}

string_enum! {
    /// What a step waits for while it has no holder.
    /// `poller`: it is offered to programs of the user's that poll for its tool.
    pub enum StepWait { Approval = "approval", Ticket = "ticket", Timer = "timer", Poller = "poller" }
}

/// To whom a step of the tool `external` is offered: programs of this org that poll for this name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Offer {
    pub org: OrgId,
    pub tool: String,
}

impl Step {
    /// As its task counts it, or, of a child, its parent. No holder works on an uncertain step, nor on one whose work is done by its
    /// children, while none of them runs. What a program outside has under way ends with the step it belongs to: it is not waited for.
    pub fn child_state(&self) -> ChildState {
        match self.status {
            StepStatus::Pending => ChildState::Pending,
            StepStatus::Running if self.uncertain => ChildState::Waiting,
            StepStatus::Running
                if self.by_children && (self.children.running == 0 || self.tool == ToolKind::External) =>
            {
                ChildState::Waiting
            }
            StepStatus::Running => ChildState::Running,
            StepStatus::Waiting => ChildState::Waiting,
            StepStatus::Completed => ChildState::Completed,
            StepStatus::Failed => ChildState::Failed,
            StepStatus::Skipped => ChildState::Skipped,
            StepStatus::Cancelled => ChildState::Cancelled,
        }
    }
}

string_enum! {
    /// What the journal says of a step's identity: begun with an unknown outcome, finished with an output, or failed after it had its
    /// effect. What failed may begin again, but not with another input; a dialogue that failed is another one then.
    pub enum Recorded { Begun = "begun", Done = "done", Failed = "failed" }
}

impl Step {
    /// What the journal has to say after this row is written. A step that surely did not happen may begin again as if it never had.
    pub fn recorded(&self) -> Option<Recorded> {
        match self.status {
            StepStatus::Completed if self.unneeded => None,
            StepStatus::Completed => Some(Recorded::Done),
            StepStatus::Running => Some(Recorded::Begun),
            _ if self.found_done => Some(Recorded::Done),
            _ if self.outcome_unknown => Some(Recorded::Begun),
            _ if self.parent.is_none() && self.has_failed_for_good() => Some(Recorded::Failed),
            _ => None,
        }
    }

    /// What failed below a step is the matter of its model or its program.
    fn has_failed_for_good(&self) -> bool {
        let had_its_effect = self.judged.is_some_and(|judged| judged.effect == Effect::Done);
        self.talked_out || (had_its_effect && !self.idempotent && self.tool != ToolKind::Llm)
    }
}

impl Step {
    /// Runs on the agent's machine.
    pub fn needs_machine(&self) -> bool {
        self.tool.needs_machine() || self.stdio
    }

    pub fn present_try(&self) -> StepTry {
        StepTry { id: self.id, number: self.tries }
    }

    /// It runs, and whether it had its effect is not known: its `verify` or a person says.
    pub fn is_unknown(&self) -> bool {
        self.uncertain || self.verifying
    }

    /// The question of its outcome is closed.
    fn known(&mut self) {
        self.uncertain = false;
        if std::mem::take(&mut self.verifying) {
            self.by_children = self.tool == ToolKind::Llm;
        }
    }

    /// Whether a try with an unknown outcome may be repeated without asking a person.
    pub fn may_be_repeated(&self) -> bool {
        self.idempotent || self.retry_interrupted
    }
}

impl StepStatus {
    pub fn is_end(self) -> bool {
        matches!(self, StepStatus::Completed | StepStatus::Failed | StepStatus::Skipped | StepStatus::Cancelled)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    pub id: StepId,
    pub run: RunId,
    pub attempt: i64,
    pub agent: AgentId,
    pub task: TaskId,
    pub sequence: i64,
    pub name: String,
    pub tool: ToolKind,
    /// Of the tool `mcp`: its server is a program on the agent's machine, and not one that a worker reaches over HTTP.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdio: bool,
    /// May run again under the same key even if its outcome is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idempotent: bool,
    pub status: StepStatus,
    /// Running, begun by a holder that is gone; whether it had an effect is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// The plan has a `verify` for it: when its outcome is unknown, that is asked before a person is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verifiable: bool,
    /// Running with an unknown outcome: its child `verify` finds out whether it had its effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verifying: bool,
    /// Ended; whether it had an effect is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
    /// Tries begun so far. A report of a try's end carries its number: the end of an older try changes nothing.
    pub tries: i64,
    pub max_tries: i64,
    /// A try that was lost with its machine or its holder is repeated although the step is not idempotent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry_interrupted: bool,
    /// Of a command: what it leaves that is kept and laid into another workdir. Empty: nothing there needs what it left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
    /// Pending, and not called before `due_at`, because this endpoint answered 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_by: Option<String>,
    /// What it waits for, while it is `waiting` or `uncertain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<StepWait>,
    /// Set exactly while it waits for a poller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Offer>,
    /// Made of its names and its exact input when it first begins; the same in every try and attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The hash of tool and input, of a step that is not idempotent: a later plan finds it by what it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Its logical names with its generation, by which the run's journal knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The step, perhaps of an earlier attempt, whose recorded output is this one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<StepId>,
    /// When the present try began, and the fence of the work item whose holder began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Timestamp>,
    #[serde(default)]
    pub fence: i64,
    /// The most that the try under way may cost: set aside until it ends.
    #[serde(default)]
    pub held: Credits,
    /// Of that, what the call itself costs: charged when the try ends.
    #[serde(default)]
    pub call_price: Credits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<StepUsage>,
    /// What the present try asks a model, if it is a turn: paid even if the answer is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// Of the present try, if it runs on the agent's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<OnMachine>,
    /// Completed without being called: its record answered, or its `if` was false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unneeded: bool,
    /// A retry has replaced it by another row: it is kept as history and counted nowhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// The step that it is part of: a turn or a call of a loop, a durable step of a program. It has no children of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<StepId>,
    /// Tells children of one name apart: of a durable step, the hash of its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Its own children by state.
    #[serde(default, skip_serializing_if = "Children::is_empty")]
    pub children: Children,
    /// Its work is what its children do: no holder and no machine acts on the step itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_children: bool,
    /// Its dialogue has failed by what was said in it: no other answer would come of the same turns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub talked_out: bool,
    /// The end of the lease of the program that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// When the leases of its children are looked at next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases_due: Option<Timestamp>,
    /// It had ended with its parent when its program reported that it was done: the record answers from then on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub found_done: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// What its last failure was, and what was decided about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// What a program of the user's has to renew while it works on a step. Time in which the agent is paused does not count.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    pub from: Timestamp,
    pub ms: i64,
    /// The agent's active time at which it is over.
    pub until_active_ms: i64,
    /// The job whose process it is, and that job's epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<(JobId, i64)>,
}

impl Step {
    /// Its program reports that it was done after it had ended with an unknown outcome. Its status does not change.
    pub fn found_done(&self) -> Step {
        Step { found_done: true, outcome_unknown: false, answer: Some(self.id), ..self.clone() }
    }
}

impl Step {
    /// A step that has not begun. In a task without a time limit it has none either.
    pub fn planned(id: StepId, task: &Task, sequence: i64, plan: &StepPlan) -> Step {
        Step {
            id,
            run: task.run,
            attempt: task.attempt,
            agent: task.agent,
            task: task.id,
            sequence,
            name: plan.name.clone(),
            tool: plan.tool,
            stdio: plan.tool.is_stdio(&plan.input),
            idempotent: plan.idempotent,
            status: StepStatus::Pending,
            uncertain: false,
            verifiable: plan.verify.is_some(),
            verifying: false,
            outcome_unknown: false,
            tries: 0,
            max_tries: plan.max_tries,
            retry_interrupted: plan.retry_interrupted,
            files: plan.files.clone(),
            timeout_ms: task.timeout_ms.is_some().then_some(plan.timeout_ms),
            due_at: None,
            held_back_by: None,
            waits: None,
            offer: None,
            key: None,
            content: None,
            identity: None,
            answer: None,
            began_at: None,
            fence: 0,
            held: Credits::ZERO,
            call_price: Credits::ZERO,
            usage: None,
            asked: None,
            on: None,
            replayed: false,
            unneeded: false,
            replaced: false,
            parent: None,
            item: None,
            children: Children::default(),
            by_children: plan.tool == ToolKind::Llm,
            talked_out: false,
            lease: None,
            leases_due: None,
            found_done: false,
            last_error: None,
            judged: None,
            started_at: None,
            ended_at: None,
        }
    }
}

/// What a model is asked in one turn, before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    /// The model, as the settings name it.
    pub of: String,
    /// About so many.
    pub tokens: i64,
}

/// What all tries of a step have used of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepUsage {
    /// The model, as the settings name it.
    pub of: String,
    pub input_tokens: i64,
    pub output_tokens: i64,
    /// The server did not count: the numbers are ours.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
    pub charged: Credits,
}

/// A try of a step on its agent's machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OnMachine {
    /// The job in whose workdir it runs, and its epoch.
    pub job: JobId,
    pub epoch: i64,
    /// Length of its input, which travels in the machine's document.
    pub input_bytes: i64,
    /// Trees of files that finished steps have left, laid into the workdir before it starts. Empty once it has started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restores: Vec<String>,
    /// Its machine was told to end it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
    /// It has ended, and its log is so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_end: Option<i64>,
    /// It has ended, and all files that it had to keep are in this tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

/// Which try of which step. Every report about a step carries it: a report of an older try changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepTry {
    pub id: StepId,
    /// Counted from 1.
    #[serde(rename = "try")]
    pub number: i64,
}

impl std::fmt::Display for StepTry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id, self.number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepEvent {
    /// The holder of the agent's item, or a machine, works on it from now on.
    Begun {
        fence: i64,
    },
    /// An earlier try, perhaps of an earlier attempt, has finished: its record is the answer.
    Replayed,
    /// Its `if` is false.
    NotNeeded,
    /// A step of the tool `wait`: it is over at this time.
    TimerSet {
        until: Timestamp,
    },
    /// A step of the tool `external`: the first program that polls for it begins it.
    Offered {
        offer: Offer,
    },
    /// It may not be called before this time.
    PutOff {
        until: Timestamp,
    },
    ApprovalAsked,
    Approved,
    Completed,
    Failed {
        error: LastError,
    },
    ToBeRetried {
        at: Timestamp,
        error: LastError,
    },
    /// As `OutcomeUnknown`, of a step whose `verify` is asked first: a child of it that this commit does not make yet.
    VerifyBegun,
    OutcomeUnknown,
    /// A ticket was opened: a person decides how it goes on.
    Escalated {
        error: LastError,
    },
    Skipped {
        error: LastError,
    },
    /// `unknown`: it was cut off, and may have had an effect.
    Cancelled {
        unknown: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepConsequence {
    ChildEnded { ended: StepStatus },
    WakeAt { at: Timestamp },
}

use StepConsequence as C;
use StepEvent as E;
use StepStatus as S;

pub fn apply(step: &Step, event: &StepEvent, at: Timestamp) -> Result<Outcome<Step, C>, Refused> {
    let mut next = step.clone();
    match (step.status, event) {
        // A step that waits for a time can only complete or be cancelled.
        (S::Waiting, event) if step.waits == Some(StepWait::Timer) => match event {
            E::TimerSet { .. } => unchanged(),
            E::Completed => end(next, S::Completed, at, None),
            E::Cancelled { .. } => end(next, S::Cancelled, at, None),
            event => Err(Refused::not_from("step", step.status, name(event), &[])),
        },
        // An offered step is begun by the program that takes it, or never: an earlier one may be found done after all (R151), or what it
        // costs cannot be paid.
        (S::Waiting, event) if step.waits == Some(StepWait::Poller) => match event {
            E::Offered { .. } => unchanged(),
            E::Replayed => {
                next.replayed = true;
                end(next, S::Completed, at, None)
            }
            E::Begun { fence } => {
                let taken = begun(next, *fence, at);
                moved(taken, [C::WakeAt { at }]) // the agent's clock runs again: its deadlines have a time
            }
            E::Failed { error } => end(next, S::Failed, at, Some(error.clone())),
            E::Cancelled { .. } => end(next, S::Cancelled, at, None),
            event => Err(Refused::not_from("step", step.status, name(event), &[])),
        },
        (S::Pending, E::Begun { fence }) => moved(begun(next, *fence, at), []),
        (S::Running, E::Begun { .. }) => unchanged(),
        (S::Pending, E::PutOff { until }) => {
            next.due_at = Some(*until);
            moved(next, [C::WakeAt { at: *until }])
        }
        (S::Pending, E::Replayed) => {
            next.replayed = true;
            end(next, S::Completed, at, None)
        }
        (S::Pending, E::NotNeeded) => {
            next.unneeded = true;
            end(next, S::Completed, at, None)
        }
        (S::Pending, E::ApprovalAsked) => {
            next.status = S::Waiting;
            next.waits = Some(StepWait::Approval);
            moved(next, [])
        }
        (S::Pending, E::TimerSet { until }) => {
            next.status = S::Waiting;
            next.waits = Some(StepWait::Timer);
            next.started_at = step.started_at.or(Some(at));
            next.began_at = Some(at);
            next.tries += 1;
            next.due_at = Some(*until);
            moved(next, [C::WakeAt { at: *until }])
        }
        (S::Pending, E::Offered { offer }) => {
            next.status = S::Waiting;
            next.waits = Some(StepWait::Poller);
            next.offer = Some(offer.clone());
            next.due_at = None;
            moved(next, [])
        }
        (S::Waiting, E::ApprovalAsked) | (S::Pending, E::Approved) => unchanged(),
        (S::Waiting, E::Approved) => {
            next.status = S::Pending;
            next.waits = None;
            moved(next, [C::WakeAt { at }])
        }
        (S::Running, E::Completed) => end(next, S::Completed, at, None),
        // Pending: refused before it began.
        (S::Pending | S::Running | S::Waiting, E::Failed { error }) => end(next, S::Failed, at, Some(error.clone())),
        (S::Pending | S::Running | S::Waiting, E::Skipped { error }) => {
            next.outcome_unknown = step.is_unknown(); // who skips it does not say what became of it
            end(next, S::Skipped, at, Some(error.clone()))
        }
        (S::Running, E::ToBeRetried { at: due, error }) => {
            next.status = S::Pending;
            next.known(); // it may be repeated, or it is known that it was not done
            next.waits = None;
            next.due_at = Some(*due);
            next.last_error = Some(error.clone());
            moved(next, [C::WakeAt { at: *due }])
        }
        (S::Running, E::VerifyBegun) if step.is_unknown() => unchanged(),
        // Its work is that of its child from here on.
        (S::Pending | S::Running, E::VerifyBegun) => {
            next.status = S::Running;
            next.verifying = true;
            next.by_children = true;
            next.due_at = None;
            moved(next, [C::WakeAt { at }])
        }
        (S::Running, E::OutcomeUnknown) if step.uncertain => unchanged(),
        // Pending: an earlier try of it, which another row had, was begun and never ended.
        (S::Pending | S::Running, E::OutcomeUnknown) => {
            next.known();
            next.status = S::Running;
            next.uncertain = true;
            next.waits = Some(StepWait::Ticket);
            moved(next, [C::WakeAt { at }])
        }
        // Its last try has ended, or it may not begin: what is open is what a person says to it.
        (S::Waiting, E::Escalated { .. }) if step.waits == Some(StepWait::Ticket) => unchanged(),
        (S::Pending | S::Running | S::Waiting, E::Escalated { error }) => {
            next.known();
            next.status = S::Waiting;
            next.waits = Some(StepWait::Ticket);
            next.last_error = Some(error.clone());
            moved(next, [])
        }
        (S::Pending | S::Running | S::Waiting, E::Cancelled { unknown }) => {
            next.outcome_unknown = *unknown || step.is_unknown();
            end(next, S::Cancelled, at, None)
        }
        (S::Completed, E::Completed | E::Replayed | E::NotNeeded)
        | (S::Failed, E::Failed { .. })
        | (S::Skipped, E::Skipped { .. }) => unchanged(),
        (ended, E::Cancelled { .. }) if ended.is_end() => unchanged(),
        (state, event) => Err(Refused::not_from("step", state, name(event), &[])),
    }
}

fn begun(mut next: Step, fence: i64, at: Timestamp) -> Step {
    next.status = S::Running;
    next.started_at = next.started_at.or(Some(at));
    next.began_at = Some(at);
    next.fence = fence;
    next.on = None;
    next.tries += 1;
    next.due_at = None;
    next.held_back_by = None;
    next.waits = None;
    next.offer = None;
    next.talked_out = false;
    next
}

fn end(mut next: Step, to: StepStatus, at: Timestamp, error: Option<LastError>) -> Result<Outcome<Step, C>, Refused> {
    next.status = to;
    next.ended_at = Some(at);
    next.due_at = None;
    next.known();
    next.waits = None;
    next.offer = None;
    if error.is_some() {
        next.last_error = error;
    }
    moved(next, [C::ChildEnded { ended: to }])
}

pub fn name(event: &StepEvent) -> &'static str {
    match event {
        E::Begun { .. } => "begun",
        E::Replayed => "replayed",
        E::NotNeeded => "not_needed",
        E::TimerSet { .. } => "timer_set",
        E::Offered { .. } => "offered",
        E::PutOff { .. } => "put_off",
        E::ApprovalAsked => "approval_asked",
        E::Approved => "approved",
        E::Completed => "completed",
        E::Failed { .. } => "failed",
        E::ToBeRetried { .. } => "to_be_retried",
        E::VerifyBegun => "verify_begun",
        E::OutcomeUnknown => "outcome_unknown",
        E::Escalated { .. } => "escalated",
        E::Skipped { .. } => "skipped",
        E::Cancelled { .. } => "cancelled",
    }
}
