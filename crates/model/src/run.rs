//! The state machine of a run. An end has two steps: an event sets the termination reason; when no agent or job is left open, the
//! finaliser (`settlement` in the engine) ends the run.

use crate::bug;
use crate::plan::Totals;
use crate::recovery;
use crate::spec::{OnLostControl, RunKind, RunTerms};
use crate::time::show_duration;
use crate::{Limits, OrgId, Outcome, Refused, RunId, Timestamp, moved, string_enum, unchanged};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum RunStatus {
        Created = "created", Pending = "pending", Running = "running", Paused = "paused", Resuming = "resuming",
        Retrying = "retrying", Completed = "completed", Failed = "failed", Cancelled = "cancelled",
    }
}

impl RunStatus {
    pub fn is_end(self) -> bool {
        matches!(self, RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled)
    }
}

string_enum! {
    /// How far the run's jobs are, for display. Derived from them; no decision depends on it.
    pub enum Phase {
        Queued = "queued", Provisioning = "provisioning", Pulling = "pulling", Running = "running", Terminating = "terminating",
        Unreachable = "unreachable", Lost = "lost", Fencing = "fencing",
    }
}
string_enum! {
    pub enum RunReason {
        AllDone = "all_done", JobFailed = "job_failed", AgentFailed = "agent_failed", StoppedByUser = "stopped_by_user",
        AbortedByUser = "aborted_by_user", RetryLimit = "retry_limit", Deadline = "deadline", Budget = "budget",
        PlannerFailed = "planner_failed", EscalationAborted = "escalation_aborted", Poisoned = "poisoned",
        QueueTimeout = "queue_timeout", PauseTimeout = "pause_timeout", ResumeFailed = "resume_failed",
    }
}

impl RunReason {
    pub fn end(self) -> RunStatus {
        match self {
            RunReason::AllDone => RunStatus::Completed,
            RunReason::StoppedByUser | RunReason::AbortedByUser | RunReason::PauseTimeout => RunStatus::Cancelled,
            _ => RunStatus::Failed,
        }
    }
}

string_enum! {
    pub enum RunOutcome { Success = "success", Partial = "partial", Skipped = "skipped" }
}
string_enum! {
    pub enum PauseReason { Asked = "asked", Escalated = "escalated" }
}
string_enum! {
    /// What a person decides about a step. `done` and `not_done` are about one whose outcome is unknown.
    pub enum Ticket {
        Resume = "resume", Skip = "skip", Retry = "retry", Abort = "abort", Done = "done", NotDone = "not_done",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LastError {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Termination {
    pub reason: RunReason,
    pub at: Timestamp,
    /// Kill at once instead of asking first.
    pub abort: bool,
}

/// A call as one of its callers sees it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Called {
    /// The call node.
    pub node: String,
    /// Number of the execution that it waits for, or that answered it; none for a result that was kept when it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<i64>,
    /// The run that executes it, or has executed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The exec that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    pub id: RunId,
    pub org: OrgId,
    pub name: String,
    pub spec: RunTerms,
    pub status: RunStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
    /// A pause was requested, and not every job is frozen yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_asked: Option<PauseReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_reason: Option<PauseReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination: Option<Termination>,
    pub attempt: i64,
    pub max_attempts: i64,
    pub plan_version: i64,
    /// A planner works on the next plan version: nothing else begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replanning: bool,
    /// Rows of the present attempt, those of planners and of earlier plan versions included.
    pub agent_count: i64,
    pub task_count: i64,
    pub step_count: i64,
    /// What the present plan version has, whether it has rows yet or not. Nothing while a planner makes the first one.
    #[serde(default)]
    pub planned: Totals,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// When the present status was reached; every state's deadline counts from here.
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Active time collected so far, and since when it is running on.
    pub active_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The exit status is that of the first rank that failed: no other one changes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rank_failed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    pub late_evidence: Vec<String>,
    /// When the reservation will be used up, set once no more can be reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits_end_at: Option<Timestamp>,
    /// What a person did that ended it, if it was not a plain cancel: one sentence that names the token and the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// It was tracked again after the loss of the database: it cannot be retried, and money does not end it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_at: Option<Timestamp>,
    /// Of a run that asks for a call: what it waits for, or what answered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Called>,
    /// No earlier than any time already stored in this run.
    pub last_at: Timestamp,
    pub version: i64,
}

impl Run {
    /// Whether its steps may begin: it runs, and neither ends nor is about to pause.
    pub fn begins_steps(&self) -> bool {
        self.status == RunStatus::Running && self.termination.is_none() && self.pause_asked.is_none()
    }

    /// A run as it was submitted, not started.
    pub fn created(id: RunId, org: OrgId, name: String, spec: RunTerms, at: Timestamp) -> Run {
        Run {
            id,
            org,
            name,
            max_attempts: spec.max_attempts(),
            planned: if spec.kind == RunKind::Agents { Totals::default() } else { Totals::single(spec.nodes) },
            spec,
            status: RunStatus::Created,
            phase: None,
            outcome: None,
            pause_asked: None,
            pause_reason: None,
            termination: None,
            attempt: 1,
            plan_version: 1,
            replanning: false,
            agent_count: 0,
            task_count: 0,
            step_count: 0,
            created_at: at,
            queued_at: None,
            running_at: None,
            completed_at: None,
            cancelled_at: None,
            deleted_at: None,
            since: at,
            retry_at: None,
            active_ms: 0,
            active_since: None,
            exit_code: None,
            signal: None,
            rank_failed: false,
            last_error: None,
            late_evidence: Vec::new(),
            credits_end_at: None,
            ended_by: None,
            imported_at: None,
            call: None,
            last_at: at,
            version: 1,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEvent {
    Started,
    Deleted,
    PickedUp,
    WaitedTooLong,
    AllAgentsCompleted {
        outcome: RunOutcome,
    },
    AgentGoesOn,
    AgentFailed {
        reason: RunReason,
        error: LastError,
    },
    InfrastructureFailed {
        retry_after_ms: i64,
    },
    PauseAsked {
        why: PauseReason,
    },
    EverythingHeld,
    /// Too much has failed: a planner makes the next plan version.
    ReplanAsked,
    Replanned,
    MaxDurationPassed,
    WorkItemDied {
        cause: String,
    },
    ResumeAsked,
    TicketResolved {
        ticket: Ticket,
    },
    PauseExpired,
    AgentsWoken,
    ResumeFailed {
        cause: String,
    },
    /// By a person at once, by the policy after a pause.
    RetryAsked {
        after_ms: i64,
    },
    RetryCame,
    CancelAsked {
        abort: bool,
    },
    /// Every agent has ended. Only the finaliser sends this event.
    Finalised,
}

impl RunEvent {
    pub fn name(&self) -> &'static str {
        match self {
            RunEvent::Started => "start",
            RunEvent::Deleted => "delete",
            RunEvent::PickedUp => "picked_up",
            RunEvent::WaitedTooLong => "waited_too_long",
            RunEvent::AllAgentsCompleted { .. } => "all_agents_completed",
            RunEvent::AgentGoesOn => "agent_goes_on",
            RunEvent::AgentFailed { .. } => "agent_failed",
            RunEvent::InfrastructureFailed { .. } => "infrastructure_failed",
            RunEvent::PauseAsked { .. } => "pause",
            RunEvent::EverythingHeld => "everything_held",
            RunEvent::ReplanAsked => "replan_asked",
            RunEvent::Replanned => "replanned",
            RunEvent::MaxDurationPassed => "max_duration_passed",
            RunEvent::WorkItemDied { .. } => "work_item_died",
            RunEvent::ResumeAsked => "resume",
            RunEvent::TicketResolved { .. } => "ticket_resolved",
            RunEvent::PauseExpired => "pause_expired",
            RunEvent::AgentsWoken => "agents_woken",
            RunEvent::ResumeFailed { .. } => "resume_failed",
            RunEvent::RetryAsked { .. } => "retry",
            RunEvent::RetryCame => "retry_came",
            RunEvent::CancelAsked { .. } => "cancel",
            RunEvent::Finalised => "finalised",
        }
    }
}

/// Rows to write in the same transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunConsequence {
    OpenAttempt,
    Reserve,
    WakeDispatch,
    CreateAgents,
    WakeAgents,
    HoldAgents,
    /// Ask every live job to stop; agents without one end at once.
    StopAgents {
        abort: bool,
        failed: bool,
    },
    /// Charge what was used, refund the rest, date the artifacts.
    Settle,
    Publish {
        kind: &'static str,
    },
}

use RunConsequence as C;
use RunEvent as E;
use RunStatus as S;

type Step = Result<Outcome<Run, RunConsequence>, Refused>;

#[expect(clippy::too_many_lines, reason = "one flat match: the table of its transitions")]
pub fn apply(run: &Run, event: &RunEvent, at: Timestamp) -> Step {
    if run.deleted_at.is_some() {
        return if *event == E::Deleted { unchanged() } else { Err(Refused::not_found("run", run.id)) };
    }
    match (run.status, event) {
        (S::Created, E::Started) => {
            go(run, S::Pending, at, |r| r.queued_at = Some(at), [C::OpenAttempt, C::Reserve, C::WakeDispatch])
        }
        (S::Pending | S::Running | S::Paused | S::Resuming | S::Retrying, E::Started) => unchanged(),
        (S::Completed | S::Failed | S::Cancelled, E::Started) => unchanged(), // passed in this attempt (R22)

        (S::Created | S::Completed | S::Failed | S::Cancelled, E::Deleted) => {
            go(run, run.status, at, |r| r.deleted_at = Some(at), [])
        }

        // Nothing new begins in a run that is on its way to its end.
        (S::Pending | S::Retrying | S::Resuming, E::PickedUp | E::RetryCame | E::AgentsWoken)
            if run.termination.is_some() =>
        {
            unchanged()
        }
        (S::Pending, E::PickedUp) => {
            // Asked to pause before its machines were lost: the wish stands for the new ones.
            let hold = if run.pause_asked.is_some() { vec![C::HoldAgents] } else { vec![] };
            let consequences = [vec![C::CreateAgents], hold].concat();
            go(run, S::Running, at, |r| r.running_at = Some(at), consequences)
        }
        (S::Running, E::PickedUp) => unchanged(),
        (S::Pending | S::Retrying, E::WaitedTooLong) => {
            let waited = show_duration(at.since(run.since));
            end(run, RunReason::QueueTimeout, at, &format!("waited {waited} without being picked up"))
        }

        // A termination reason stands: what children report now is evidence, not a new decision.
        (
            S::Running | S::Paused | S::Resuming | S::Pending | S::Retrying,
            E::AllAgentsCompleted { .. }
            | E::AgentFailed { .. }
            | E::InfrastructureFailed { .. }
            | E::MaxDurationPassed,
        ) if run.termination.is_some() => unchanged(),
        // Heard in every open state: a frozen machine may still report what came before the freeze, or die.
        (S::Running | S::Paused | S::Resuming | S::Pending | S::Retrying, E::AllAgentsCompleted { outcome }) => {
            let mut next = run.clone();
            next.outcome = Some(*outcome);
            next.termination = Some(Termination { reason: RunReason::AllDone, at, abort: false });
            moved(next, [])
        }
        (S::Running, E::AgentGoesOn) => unchanged(),
        (S::Running | S::Paused | S::Resuming | S::Pending | S::Retrying, E::AgentFailed { reason, error }) => {
            let mut next = run.clone();
            next.last_error = Some(error.clone());
            terminate(next, *reason, at, false)
        }
        (S::Running, E::InfrastructureFailed { retry_after_ms }) => {
            go(run, S::Retrying, at, |r| r.retry_at = Some(at + *retry_after_ms), [])
        }

        (S::Running, E::PauseAsked { why }) if run.termination.is_none() => {
            // A ticket's pause replaces a user's, and lasts until the ticket is resolved.
            if run.pause_asked == Some(*why) || run.pause_asked == Some(PauseReason::Escalated) {
                return unchanged();
            }
            let mut next = run.clone();
            next.pause_asked = Some(*why);
            moved(next, [C::HoldAgents, C::Publish { kind: "run.pausing" }])
        }
        (S::Paused, E::PauseAsked { .. }) => unchanged(),
        // The run ends, or goes on with what is left: the ticket's step waits, and with it the run's completion.
        (S::Running | S::Resuming | S::Pending | S::Retrying, E::PauseAsked { why: PauseReason::Escalated }) => {
            unchanged()
        }
        (S::Running, E::EverythingHeld) if run.termination.is_none() && run.pause_asked.is_some() => {
            go(run, S::Paused, at, |r| r.pause_reason = r.pause_asked.take(), [])
        }
        (S::Running | S::Paused | S::Resuming, E::ReplanAsked) if run.termination.is_none() => {
            if run.replanning {
                return unchanged();
            }
            let mut next = run.clone();
            next.replanning = true;
            moved(next, [C::Publish { kind: "run.replanning" }])
        }
        (S::Running | S::Paused | S::Resuming, E::Replanned) if run.replanning && run.termination.is_none() => {
            let mut next = run.clone();
            next.replanning = false;
            next.plan_version += 1;
            moved(next, [C::Publish { kind: "run.replanned" }])
        }
        (S::Paused, E::ResumeAsked | E::TicketResolved { ticket: Ticket::Resume }) if run.termination.is_none() => {
            go(run, S::Resuming, at, |r| r.pause_reason = None, [C::WakeAgents])
        }
        // Resolved before everything stood still, or after a person let the run go on.
        (S::Running, E::TicketResolved { ticket: Ticket::Resume })
            if run.pause_asked == Some(PauseReason::Escalated) && run.termination.is_none() =>
        {
            let mut next = run.clone();
            next.pause_asked = None;
            moved(next, [C::WakeAgents])
        }
        (S::Running | S::Resuming | S::Pending | S::Retrying, E::TicketResolved { ticket: Ticket::Resume }) => {
            unchanged()
        }
        // Not yet held: the wish is taken back, and whatever stands still already goes on.
        (S::Running, E::ResumeAsked) if run.pause_asked.is_some() && run.termination.is_none() => {
            let mut next = run.clone();
            next.pause_asked = None;
            moved(next, [C::WakeAgents])
        }
        (S::Resuming | S::Running, E::ResumeAsked) => unchanged(),
        (S::Paused, E::TicketResolved { ticket: Ticket::Retry }) if run.termination.is_none() => go(
            run,
            S::Retrying,
            at,
            |r| {
                r.pause_reason = None;
                r.retry_at = Some(at);
            },
            [],
        ),
        (
            S::Paused | S::Running | S::Resuming | S::Pending | S::Retrying,
            E::TicketResolved { ticket: Ticket::Abort },
        ) => end(run, RunReason::EscalationAborted, at, "the escalation was resolved by abort"),
        (S::Paused, E::PauseExpired) => {
            end(run, RunReason::PauseTimeout, at, &format!("paused for {}", show_duration(at.since(run.since))))
        }
        (S::Resuming, E::AgentsWoken) => go(run, S::Running, at, |_| {}, []),
        (S::Resuming, E::ResumeFailed { cause }) => end(run, RunReason::ResumeFailed, at, cause),

        (S::Running, E::MaxDurationPassed) => end(run, RunReason::Deadline, at, "max_duration of active time passed"),
        (status, E::WorkItemDied { cause }) if !status.is_end() && status != S::Created => {
            end(run, RunReason::Poisoned, at, cause)
        }

        (S::Failed, E::RetryAsked { after_ms }) if run.attempt < run.max_attempts => {
            let due = at + *after_ms;
            go(run, S::Retrying, at, |r| reopened(r, due), [C::OpenAttempt, C::Reserve, C::WakeDispatch])
        }
        (S::Retrying, E::RetryAsked { .. }) => unchanged(),
        (S::Pending | S::Running, E::RetryAsked { .. }) if run.attempt > 1 => unchanged(), // passed in this attempt (R22)
        (S::Retrying, E::RetryCame) => go(run, S::Pending, at, |r| r.retry_at = None, [C::WakeDispatch]),
        (S::Pending, E::RetryCame) => unchanged(),

        (S::Cancelled, E::CancelAsked { .. }) => unchanged(),
        (S::Created, E::CancelAsked { .. }) => go(
            run,
            S::Cancelled,
            at,
            |r| {
                r.cancelled_at = Some(at);
            },
            [],
        ), // R16: nothing was reserved
        (status, E::CancelAsked { abort }) if !status.is_end() || bug!(later_end_decides) => {
            let reason = if *abort { RunReason::AbortedByUser } else { RunReason::StoppedByUser };
            terminate(run.clone(), reason, at, *abort)
        }

        (status, E::Finalised) if status.is_end() && !bug!(later_end_decides) => unchanged(),
        (status, E::Finalised) if status != S::Created => match &run.termination {
            Some(termination) => finalised(run, termination.reason.end(), at),
            None => Err(refuse(run, event)),
        },
        _ => Err(refuse(run, event)),
    }
}

/// The run's next deadline, and the event that it causes. `silent`: a runner of one of its jobs is silent.
pub fn deadline(run: &Run, limits: &Limits, silent: bool) -> Option<(Timestamp, RunEvent)> {
    if run.termination.is_some() {
        return None; // the jobs' own deadlines carry the end
    }
    match run.status {
        S::Pending => Some((run.since + limits.pending_ms, E::WaitedTooLong)),
        S::Retrying => match run.retry_at {
            Some(due) => Some((due, E::RetryCame)),
            None => Some((run.since + limits.pending_ms, E::WaitedTooLong)),
        },
        S::Running => {
            let (max, since) = (run.spec.max_duration_ms?, run.active_since?);
            // A silent machine may have ended the job in time, and reports it when it returns (R147).
            let finishes = silent && run.spec.on_lost_control == OnLostControl::Finish;
            let grace = if finishes { limits.silent_grace_ms } else { limits.max_duration_grace_ms };
            Some((since + (max - run.active_ms).max(0) + grace, E::MaxDurationPassed))
        }
        S::Paused => Some((run.since + limits.paused_ms, E::PauseExpired)),
        S::Resuming => Some((
            run.since + limits.resuming_ms,
            E::ResumeFailed { cause: format!("resuming took longer than {}", show_duration(limits.resuming_ms)) },
        )),
        S::Created | S::Completed | S::Failed | S::Cancelled => None,
    }
}

/// A rank has ended with this exit code or signal: the run's is that of the first rank that failed, else that of rank 0.
pub fn rank_ended(run: &Run, rank: i64, failed: bool, exit_code: Option<i32>, signal: Option<i32>) -> Run {
    let mut next = run.clone();
    if !run.rank_failed && (failed || rank == 0) {
        (next.exit_code, next.signal) = (exit_code, signal);
        next.rank_failed = failed;
    }
    next
}

/// How long the policy waits before it tries a failed run again.
pub fn pause_before_retry(run: &Run) -> i64 {
    let asked = run.spec.retry.as_ref().and_then(|retry| retry.delay_ms);
    asked.unwrap_or_else(|| recovery::backoff(run.attempt, recovery::jitter(run.id, run.attempt)))
}

/// The actions a person may ask for now. A run that waits for another one's execution of the same command, or was answered with a result,
/// never executes anything itself; what an imported run was sent with is not known.
pub fn allowed(run: &Run) -> Vec<&'static str> {
    let waits_for_another = run.call.as_ref().is_some_and(|called| called.run.is_some());
    let may_retry = run.attempt < run.max_attempts && run.call.is_none() && run.imported_at.is_none();
    match run.status {
        _ if run.deleted_at.is_some() => vec![],
        status if run.termination.is_some() && !status.is_end() => vec!["cancel"],
        S::Created if waits_for_another => vec!["cancel", "delete"],
        S::Created => vec!["start", "cancel", "delete"],
        S::Pending | S::Retrying | S::Resuming => vec!["cancel"],
        S::Running => vec!["pause", "cancel"],
        S::Paused => vec!["resume", "cancel"],
        S::Failed if may_retry => vec!["retry", "delete"],
        S::Completed | S::Failed | S::Cancelled => vec!["delete"],
    }
}

/// The run's phase: that of its most advanced job, or `unreachable`, `lost` or `fencing` if that is true of all running ones.
pub fn phase(terminating: bool, jobs: &[Phase]) -> Option<Phase> {
    if terminating {
        return Some(Phase::Terminating);
    }
    if jobs.is_empty() {
        return None;
    }
    let troubled = |p: &Phase| matches!(p, Phase::Unreachable | Phase::Lost | Phase::Fencing);
    let started: Vec<&Phase> = jobs.iter().filter(|p| troubled(p) || **p == Phase::Running).collect();
    if !started.is_empty() && started.iter().all(|p| troubled(p)) {
        return started.first().map(|p| **p);
    }
    let rank = |p: &Phase| match p {
        Phase::Queued => 0,
        Phase::Provisioning => 1,
        Phase::Pulling => 2,
        _ => 3,
    };
    let top = jobs.iter().max_by_key(|p| rank(p)).copied()?;
    Some(if troubled(&top) { Phase::Running } else { top })
}

fn refuse(run: &Run, event: &RunEvent) -> Refused {
    let used_up =
        matches!(event, RunEvent::RetryAsked { .. }) && run.status == S::Failed && run.attempt >= run.max_attempts;
    let state = if used_up {
        format!("failed, and all {} attempts are used", run.max_attempts)
    } else {
        run.status.to_string()
    };
    Refused::NotFrom { what: "run", state, event: event.name().replace('_', " "), allowed: allowed(run) }
}

fn go(run: &Run, to: RunStatus, at: Timestamp, change: impl FnOnce(&mut Run), consequences: impl Into<Vec<C>>) -> Step {
    let mut next = run.clone();
    next.status = to;
    if to != run.status {
        next.since = at;
    }
    change(&mut next);
    let mut consequences = consequences.into();
    consequences.push(C::Publish { kind: if next.deleted_at.is_some() { "run.deleted" } else { published(to) } });
    moved(next, consequences)
}

fn published(status: RunStatus) -> &'static str {
    match status {
        S::Created => "run.created",
        S::Pending => "run.pending",
        S::Running => "run.running",
        S::Paused => "run.paused",
        S::Resuming => "run.resuming",
        S::Retrying => "run.retrying",
        S::Completed => "run.completed",
        S::Failed => "run.failed",
        S::Cancelled => "run.cancelled",
    }
}

fn end(run: &Run, reason: RunReason, at: Timestamp, why: &str) -> Step {
    let mut next = run.clone();
    if run.termination.is_none() {
        next.last_error = Some(LastError { code: reason.to_string(), message: why.to_owned(), cause: None });
    }
    terminate(next, reason, at, false)
}

/// The first reason wins; a later abort only makes the same end quicker.
fn terminate(mut next: Run, reason: RunReason, at: Timestamp, abort: bool) -> Step {
    match &mut next.termination {
        None => next.termination = Some(Termination { reason, at, abort }),
        Some(first) if abort && !first.abort => first.abort = true,
        Some(_) => return unchanged(),
    }
    let failed = next.termination.as_ref().is_some_and(|t| t.reason.end() == S::Failed);
    moved(next, [C::StopAgents { abort, failed }, C::Publish { kind: "run.terminating" }])
}

fn finalised(run: &Run, to: RunStatus, at: Timestamp) -> Step {
    go(
        run,
        to,
        at,
        |r| {
            if let Some(since) = r.active_since.take() {
                r.active_ms += at.since(since);
            }
            r.phase = None;
            r.pause_asked = None;
            r.pause_reason = None;
            r.replanning = false;
            if to == S::Cancelled { r.cancelled_at = Some(at) } else { r.completed_at = Some(at) }
        },
        [C::Settle],
    )
}

/// A new attempt starts from a clean sheet; what the old one left stays with the attempt's own rows.
fn reopened(run: &mut Run, due: Timestamp) {
    run.attempt += 1;
    run.termination = None;
    run.outcome = None;
    run.completed_at = None;
    run.running_at = None;
    run.exit_code = None;
    run.signal = None;
    run.rank_failed = false;
    run.last_error = None;
    run.ended_by = None;
    run.active_ms = 0;
    run.active_since = None;
    run.agent_count = 0;
    run.task_count = 0;
    run.step_count = 0;
    run.retry_at = Some(due);
}
