//! Failures at each level of the tree: asks `recovery` for the decision and writes its consequences as rows.

use super::end::{is_current, is_to_stop, settle_agent, settle_step, settle_task};
use super::{Ending, Pick, Rows, step_event};
use crate::agent::{Agent, AgentKind, AgentStatus};
use crate::attempt::Attempt;
use crate::plan::AGENTS_IN_ALL;
use crate::recovery::{
    self, Case, Decided, Decision, ErrorClass, Errors, Judged, Level, RETRY_BUDGET, Rule, StepFailure,
};
use crate::run::{LastError, PauseReason, Run, RunEvent, RunReason, RunStatus, Ticket};
use crate::spec::FailureMode;
use crate::step::{Step, StepEvent, StepStatus, StepWait};
use crate::task::{Task, TaskStatus};
use crate::{AgentId, Credits, Effect, Refused, StepId, TaskId, bug};

/// A try of a step has failed. A report about an older try, or about a step that has ended, changes nothing.
pub fn fail_step<R: Rows>(rows: &mut R, id: StepId, try_number: i64, failure: &StepFailure) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if !is_current(&step, try_number) {
        return Ok(());
    }
    if step.parent.is_some() {
        return super::fail_child(rows, id, try_number, failure);
    }
    // Of a step whose outcome is unknown already this says nothing new: its `verify` or its ticket stays.
    if !step.idempotent && failure.effect == Effect::Perhaps {
        if bug!(sent_and_retried) {
            return fail_open_step(rows, &step, &StepFailure { effect: Effect::None, ..failure.clone() });
        }
        return if step.is_unknown() { Ok(()) } else { lost_or_cut(rows, &step, failure.class, &failure.error) };
    }
    fail_open_step(rows, &step, failure)
}

/// The dialogue of a step has failed because a turn of it has, after so many tries. These are the tries of the step, which has no others.
pub fn fail_dialogue<R: Rows>(
    rows: &mut R,
    id: StepId,
    try_number: i64,
    failure: &StepFailure,
    tries: i64,
) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if is_current(&step, try_number) { fail_open_step(rows, &Step { tries, ..step }, failure) } else { Ok(()) }
}

fn fail_open_step<R: Rows>(rows: &mut R, step: &Step, failure: &StepFailure) -> Result<(), R::Error> {
    let told = is_told(rows, step, failure)?;
    if rows.is_counted(step) && !told {
        note_failure(rows)?;
    }
    let (id, error) = (step.id, failure.error.clone());
    if is_to_stop(rows, step)? {
        note_judged(rows, id, failure, (Decided::Abort, Rule::Ending))?;
        step_event(rows, id, &StepEvent::Failed { error })?;
        return settle_task(rows, step.task);
    }
    let (decision, rule) = decide(rows, step, failure)?;
    note_judged(rows, id, failure, (decision.decided(), rule))?;
    match decision {
        Decision::Retry { after_ms } => {
            let at = rows.at() + after_ms;
            if !told {
                count_retry(rows)?;
            }
            step_event(rows, id, &StepEvent::ToBeRetried { at, error })?;
        }
        Decision::Skip => drop(step_event(rows, id, &StepEvent::Skipped { error })?),
        Decision::Escalate => return escalate(rows, id, error),
        Decision::OutOfBudget => return out_of_budget(rows, step, error),
        Decision::Abort if failure.class == ErrorClass::Budget => return out_of_budget(rows, step, error),
        Decision::Abort | Decision::Replan => {
            step_event(rows, id, &StepEvent::Failed { error: error.clone() })?;
            task_failed(rows, step.task, None, error)?;
        }
    }
    settle_task(rows, step.task)
}

/// A planner is told what is wrong with its plan, and asked again. As with all that a model or a program is told, this counts neither among
/// the run's failures nor in its budget of retries (R152).
fn is_told<R: Rows>(rows: &mut R, step: &Step, failure: &StepFailure) -> Result<bool, R::Error> {
    let by_a_planner = rows.agent(step.agent)?.kind == AgentKind::Planner;
    Ok(by_a_planner && failure.class == ErrorClass::InvalidOutput)
}

/// What a failure was and what follows from it stays with the step, for people who ask.
pub(super) fn note_judged<R: Rows>(
    rows: &mut R,
    id: StepId,
    failure: &StepFailure,
    (decision, rule): (Decided, Rule),
) -> Result<(), R::Error> {
    let judged = Judged { class: failure.class, effect: failure.effect, decision, rule };
    let step = rows.step(id)?;
    rows.set_step(Step { judged: Some(judged), ..step });
    Ok(())
}

/// A step that waits for a person or has not begun will not begin: a person said no, its input cannot be evaluated, or it cannot be
/// paid.
pub fn refuse_step<R: Rows>(rows: &mut R, id: StepId, error: LastError, unaffordable: bool) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if step.replaced || !matches!(step.status, StepStatus::Pending | StepStatus::Waiting) {
        return Ok(());
    }
    let class = if unaffordable { ErrorClass::Budget } else { ErrorClass::Permanent };
    let failure = StepFailure { class, effect: Effect::None, retry_after_ms: None, error };
    match step.parent {
        Some(_) => super::child::fail_open_child(rows, &step, &failure),
        None => fail_open_step(rows, &step, &failure),
    }
}

/// The same, of a step whose task, agent or run may be ending.
fn lost_or_cut<R: Rows>(rows: &mut R, step: &Step, class: ErrorClass, error: &LastError) -> Result<(), R::Error> {
    if is_to_stop(rows, step)? {
        return super::cancel_step(rows, step.id, step.tries, true);
    }
    lost(rows, step, class, error)
}

/// A task whose expressions cannot be evaluated.
pub(super) fn refuse_task<R: Rows>(rows: &mut R, id: TaskId, error: LastError) -> Result<(), R::Error> {
    note_failure(rows)?;
    task_failed(rows, id, None, error)?;
    settle_task(rows, id)
}

/// The holder of a try is gone, or cannot say what happened. Never repeated unless it may be (R42).
pub fn lose_step<R: Rows>(rows: &mut R, id: StepId, try_number: i64, error: &LastError) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if !is_current(&step, try_number) || step.is_unknown() {
        return Ok(());
    }
    if step.parent.is_some() {
        return super::lose_child(rows, id, try_number, error);
    }
    lose(rows, &step, ErrorClass::Unknown, error)
}

fn lose<R: Rows>(rows: &mut R, step: &Step, class: ErrorClass, error: &LastError) -> Result<(), R::Error> {
    let (id, try_number) = (step.id, step.tries);
    if is_to_stop(rows, step)? {
        return super::cancel_step(rows, id, try_number, !step.idempotent);
    }
    if !step.may_be_repeated() && !bug!(uncertain_step_repeated) {
        return lost(rows, step, class, error);
    }
    if step.tries < step.max_tries {
        let at = rows.at();
        step_event(rows, id, &StepEvent::ToBeRetried { at, error: error.clone() })?;
        return settle_step(rows, step);
    }
    let class = ErrorClass::Transient;
    let failure = StepFailure { class, effect: Effect::Perhaps, retry_after_ms: None, error: error.clone() };
    fail_open_step(rows, step, &failure)
}

/// Its outcome is unknown and it must not be repeated: its `verify` finds out what happened, or a person says.
pub(super) fn lost<R: Rows>(rows: &mut R, step: &Step, class: ErrorClass, error: &LastError) -> Result<(), R::Error> {
    let (decision, rule) = match step.verifiable {
        true => (Decided::Verify, Rule::Verifiable),
        false => (Decided::Escalate, Rule::OutcomeUnknown),
    };
    let judged = Judged { class, effect: Effect::Perhaps, decision, rule };
    rows.set_step(Step { judged: Some(judged), last_error: Some(error.clone()), ..step.clone() });
    ask_what_happened(rows, step)
}

/// Its `verify` says whether it had its effect; without one, a person.
pub(super) fn ask_what_happened<R: Rows>(rows: &mut R, step: &Step) -> Result<(), R::Error> {
    if step.verifiable {
        return step_event(rows, step.id, &StepEvent::VerifyBegun).map(drop);
    }
    step_event(rows, step.id, &StepEvent::OutcomeUnknown)?;
    ask_a_person(rows, step.id)
}

/// What the `verify` of a step has found out. Says nothing of a step whose outcome is known by now.
pub fn verified<R: Rows>(rows: &mut R, id: StepId, found: Verified) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if !step.verifying || step.replaced {
        return Ok(());
    }
    match found {
        Verified::Done => super::complete_step(rows, id, step.tries),
        // It may begin again under the same key, as after any failure that had no effect.
        Verified::NotDone => {
            let error = step.last_error.clone().unwrap_or_else(unknown_outcome);
            let class = ErrorClass::Transient;
            let failure = StepFailure { class, effect: Effect::None, retry_after_ms: None, error };
            fail_open_step(rows, &step, &failure)
        }
        Verified::Unclear(error) => {
            let judged =
                step.judged.map(|judged| Judged { decision: Decided::Escalate, rule: Rule::OutcomeUnknown, ..judged });
            rows.set_step(Step { judged, last_error: Some(error), ..step });
            step_event(rows, id, &StepEvent::OutcomeUnknown)?;
            ask_a_person(rows, id)
        }
    }
}

/// The answer of a step's `verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verified {
    /// It happened; its output, if any is known, is recorded already.
    Done,
    NotDone,
    /// It could not be asked, or said neither.
    Unclear(LastError),
}

fn escalate<R: Rows>(rows: &mut R, id: StepId, error: LastError) -> Result<(), R::Error> {
    step_event(rows, id, &StepEvent::Escalated { error })?;
    ask_a_person(rows, id)
}

/// Opens a ticket. The run pauses until a person has resolved it.
pub(super) fn ask_a_person<R: Rows>(rows: &mut R, id: StepId) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    rows.open_ticket(&step)?;
    rows.run_event(RunEvent::PauseAsked { why: PauseReason::Escalated })?;
    // An agent that begins anew may have waited for this step only.
    if rows.agent(step.agent)?.ending.is_some() { settle_agent(rows, step.agent) } else { Ok(()) }
}

pub(super) fn out_of_budget<R: Rows>(rows: &mut R, step: &Step, error: LastError) -> Result<(), R::Error> {
    step_event(rows, step.id, &StepEvent::Failed { error: error.clone() })?;
    task_failed(rows, step.task, Some(RunReason::Budget), error)?;
    settle_task(rows, step.task)
}

/// A person has resolved the ticket of a step, which may have an unknown outcome. The run's pause ends with its last ticket.
pub fn resolve_ticket<R: Rows>(rows: &mut R, id: StepId, ticket: Ticket) -> Result<(), R::Error> {
    let step = rows.step(id)?;
    if step.waits != Some(StepWait::Ticket) || step.replaced {
        return Err(Refused::not_from("step", step.status, "be resolved: it has no open ticket", &[]).into());
    }
    let error = step.last_error.clone().unwrap_or_else(unknown_outcome);
    match ticket {
        Ticket::Done if step.uncertain => super::complete_step(rows, id, step.tries),
        Ticket::NotDone | Ticket::Resume | Ticket::Retry if step.uncertain => {
            let at = rows.at();
            step_event(rows, id, &StepEvent::ToBeRetried { at, error })?;
            follow_up(rows, ticket)
        }
        Ticket::Done | Ticket::NotDone => {
            Err(Refused::not_from("step", step.status, ticket, &["resume", "skip", "retry", "abort"]).into())
        }
        Ticket::Resume | Ticket::Retry => {
            step_event(rows, id, &StepEvent::Approved)?;
            follow_up(rows, ticket)
        }
        Ticket::Skip => {
            step_event(rows, id, &StepEvent::Skipped { error })?;
            settle_step(rows, &step)
        }
        Ticket::Abort => rows.run_event(RunEvent::TicketResolved { ticket }),
    }
}

/// `retry` begins the whole run again; what finished answers from its record.
fn follow_up<R: Rows>(rows: &mut R, ticket: Ticket) -> Result<(), R::Error> {
    match ticket {
        Ticket::Retry if rows.run().status == RunStatus::Paused && rows.run().termination.is_none() => {
            rows.run_event(RunEvent::TicketResolved { ticket })
        }
        _ => Ok(()),
    }
}

/// The step's tool may be used only after a person has approved its input.
pub fn ask_approval<R: Rows>(rows: &mut R, id: StepId) -> Result<(), R::Error> {
    step_event(rows, id, &StepEvent::ApprovalAsked)?;
    let step = rows.step(id)?;
    rows.open_approval(&step)
}

pub fn approve_step<R: Rows>(rows: &mut R, id: StepId) -> Result<(), R::Error> {
    step_event(rows, id, &StepEvent::Approved).map(drop)
}

/// The job of a rank has failed: its command, if it ran, and with it its task and its agent.
pub fn fail_rank<R: Rows>(rows: &mut R, id: AgentId, reason: RunReason, error: LastError) -> Result<(), R::Error> {
    let running = rows.tasks(id, Pick::Running, 1)?;
    let Some(task) = running.first().copied() else {
        agent_failed(rows, id, Some(reason), error)?;
        return settle_agent(rows, id);
    };
    for step in rows.steps(task, Pick::Running, super::CHUNK)? {
        step_event(rows, step, &StepEvent::Failed { error: error.clone() })?;
    }
    task_failed(rows, task, Some(reason), error)?;
    settle_task(rows, task)
}

/// The limit of a task's time has passed.
pub fn expire_task<R: Rows>(rows: &mut R, id: TaskId) -> Result<(), R::Error> {
    let task = rows.task(id)?;
    if task.status != TaskStatus::Running || task.ending.is_some() {
        return Ok(());
    }
    task_failed(rows, id, None, timed_out("task"))?;
    let now = rows.at();
    rows.wake_agent(task.agent, now);
    settle_task(rows, id)
}

pub fn expire_agent<R: Rows>(rows: &mut R, id: AgentId) -> Result<(), R::Error> {
    match rows.agent(id)?.status {
        AgentStatus::Running => fail_agent(rows, id, timed_out("agent")),
        _ => Ok(()),
    }
}

/// An agent cannot go on: its time is up, or it gets no machine. Its modes decide what becomes of it.
pub fn fail_agent<R: Rows>(rows: &mut R, id: AgentId, error: LastError) -> Result<(), R::Error> {
    let agent = rows.agent(id)?;
    if !matches!(agent.status, AgentStatus::Running | AgentStatus::Paused) || agent.ending.is_some() {
        return Ok(());
    }
    agent_failed(rows, id, None, error)?;
    let now = rows.at();
    rows.wake_agent(id, now);
    settle_agent(rows, id)
}

/// One of its steps has failed for good: tried again, skipped or failed, as soon as nothing below it is in flight.
fn task_failed<R: Rows>(rows: &mut R, id: TaskId, reason: Option<RunReason>, error: LastError) -> Result<(), R::Error> {
    let mut task = rows.task(id)?;
    if is_decided(task.ending.as_ref(), reason) {
        return Ok(());
    }
    let agent = rows.agent(task.agent)?;
    let decision = match reason {
        Some(_) => Decision::Abort, // the run's end, whatever its modes say
        None => decide_above(rows, Above::Task(&task, &agent))?,
    };
    let at = rows.at();
    task.ending = Some(match decision {
        Decision::Retry { after_ms } => {
            count_retry(rows)?;
            Ending::retried(error, at + after_ms)
        }
        Decision::Skip => Ending::skipped(error),
        Decision::OutOfBudget => Ending { reason: Some(RunReason::Budget), ..Ending::failed(error) },
        Decision::Abort | Decision::Replan | Decision::Escalate => Ending { reason, ..Ending::failed(error) },
    });
    rows.set_task(task);
    Ok(())
}

/// One of its tasks has failed for good.
pub(super) fn agent_failed<R: Rows>(
    rows: &mut R,
    id: AgentId,
    reason: Option<RunReason>,
    error: LastError,
) -> Result<(), R::Error> {
    let mut agent = rows.agent(id)?;
    if is_decided(agent.ending.as_ref(), reason) {
        return Ok(());
    }
    // A rank's reason is its job's: in mode `continue` another one does without it.
    let others = rows.attempt()?.tree.agents.total() > 1;
    let spared = agent.kind == AgentKind::Rank && rows.run().spec.failure_mode == FailureMode::Continue && others;
    let decision = match reason {
        Some(RunReason::JobFailed) if spared => Decision::Skip,
        Some(_) => Decision::Abort,
        None => decide_above(rows, Above::Agent(&agent))?,
    };
    let at = rows.at();
    let ending = match decision {
        Decision::Retry { after_ms } => {
            count_retry(rows)?;
            Ending::retried(error, at + after_ms)
        }
        Decision::Skip => Ending::skipped(error),
        Decision::OutOfBudget => Ending { reason: Some(RunReason::Budget), ..Ending::failed(error) },
        Decision::Replan => {
            agent.ending = Some(Ending::failed(error));
            rows.set_agent(agent);
            rows.run_event(RunEvent::ReplanAsked)?;
            return rows.open_planner();
        }
        Decision::Abort | Decision::Escalate => Ending { reason, ..Ending::failed(error) },
    };
    agent.ending = Some(ending);
    rows.set_agent(agent);
    Ok(())
}

/// The first end wins, but for one: a run that must end does not wait for a retry that was decided before.
fn is_decided(ending: Option<&Ending>, reason: Option<RunReason>) -> bool {
    ending.is_some_and(|ending| ending.is_final() || reason.is_none())
}

enum Above<'a> {
    Task(&'a Task, &'a Agent),
    Agent(&'a Agent),
    /// In its last attempt. Before that its end opens the next one.
    Run,
}

/// The step's own decision; where it gives up, a ticket that its task, agent or run would ask for is asked for at once, while the
/// step can still be tried again.
fn decide<R: Rows>(rows: &mut R, step: &Step, failure: &StepFailure) -> Result<(Decision, Rule), R::Error> {
    let (task, agent) = (rows.task(step.task)?, rows.agent(step.agent)?);
    let (attempt, affordable) = (rows.attempt()?, rows.pays_for_retry()?);
    let at = rows.at();
    let limits = rows.limits();
    let told = is_told(rows, step, failure)?;
    let base = base(rows.run(), &attempt, affordable);
    let errors = if told { Errors::default() } else { attempt.tree.errors.errors(at, limits.window_ms) };
    let case = Case {
        level: Level::Step,
        class: failure.class,
        effect: failure.effect,
        idempotent: step.idempotent,
        tries: step.tries,
        max_tries: step.max_tries,
        retry_after_ms: failure.retry_after_ms,
        errors,
        parent_mode: task.mode,
        budget_left: if told { RETRY_BUDGET } else { base.budget_left },
        retried_cost: if told { Credits::ZERO } else { base.retried_cost },
        ..base
    };
    let (decision, rule) = recovery::decide(&case, &limits);
    if decision != Decision::Abort || matches!(failure.class, ErrorClass::Budget | ErrorClass::Cancelled) {
        return Ok((decision, rule));
    }
    let above = decide_above(rows, Above::Task(&task, &agent))?;
    let above = if above == Decision::Abort { decide_above(rows, Above::Agent(&agent))? } else { above };
    let last = rows.run().attempt >= rows.run().max_attempts && agent.kind == AgentKind::Planned;
    let above = if above == Decision::Abort && last { decide_above(rows, Above::Run)? } else { above };
    Ok((if above == Decision::Escalate { above } else { decision }, rule))
}

fn decide_above<R: Rows>(rows: &mut R, above: Above<'_>) -> Result<Decision, R::Error> {
    let (attempt, affordable, limits) = (rows.attempt()?, rows.pays_for_retry()?, rows.limits());
    let run = rows.run();
    let base = base(run, &attempt, affordable);
    let case = match above {
        Above::Task(task, agent) => Case {
            level: Level::Task,
            tries: task.tries,
            max_tries: task.max_tries,
            mode: task.mode,
            parent_mode: agent.mode,
            ..base
        },
        Above::Agent(agent) => Case {
            level: Level::Agent,
            // The try of one that is held, or not begun again since, is counted when it goes on.
            tries: agent.tries + i64::from(agent.status != AgentStatus::Running),
            max_tries: agent.max_tries,
            mode: agent.mode,
            // Without its planner a run has no plan: that is never skipped.
            parent_mode: if agent.kind == AgentKind::Planner { FailureMode::FailFast } else { run.spec.failure_mode },
            replan_possible: agent.kind == AgentKind::Planned && may_replan(run),
            many_children_failed: many_failed(&attempt),
            ..base
        },
        Above::Run => Case {
            level: Level::Run,
            tries: run.attempt,
            max_tries: run.max_attempts,
            mode: run.spec.failure_mode,
            ..base
        },
    };
    Ok(recovery::decide(&case, &limits).0)
}

/// What every level's decision looks at.
pub(super) fn base(run: &Run, attempt: &Attempt, affordable: bool) -> Case {
    Case {
        level: Level::Step,
        class: ErrorClass::Permanent,
        effect: Effect::Done,
        idempotent: false,
        tries: 1,
        max_tries: 1,
        retry_after_ms: None,
        budget_left: RETRY_BUDGET - attempt.tree.retries,
        retried_cost: attempt.tree.retried_cost,
        reserved: attempt.reserved,
        affordable,
        errors: Errors::default(),
        on_exhausted: run.spec.plan.on_exhausted,
        mode: FailureMode::FailFast,
        parent_mode: FailureMode::FailFast,
        replan_possible: false,
        many_children_failed: false,
        jitter_thousandths: recovery::jitter(run.id, attempt.tree.retries),
    }
}

/// A planner for whose plan there is no room, not even of one agent, is not asked.
fn may_replan(run: &Run) -> bool {
    let rules = &run.spec.plan;
    let made = run.plan_version - 1 - i64::from(rules.goal);
    let has_room = run.agent_count + 2 <= AGENTS_IN_ALL * rules.max_agents;
    made < rules.replans && has_room && run.termination.is_none() && !run.replanning
}

/// More than half of the agents, this one included, or more than ten tasks of this plan version.
fn many_failed(attempt: &Attempt) -> bool {
    let agents = attempt.tree.agents;
    (agents.failed + agents.skipped + 1) * 2 > agents.total() || attempt.tree.failed_tasks > 10
}

fn note_failure<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let (at, window) = (rows.at(), rows.limits().window_ms);
    let mut attempt = rows.attempt()?;
    attempt.tree.errors.note(at, window, true);
    rows.set_attempt(attempt)
}

fn count_retry<R: Rows>(rows: &mut R) -> Result<(), R::Error> {
    let mut attempt = rows.attempt()?;
    attempt.tree.retries += 1;
    rows.set_attempt(attempt)
}

fn timed_out(what: &str) -> LastError {
    LastError { code: "timeout".into(), message: format!("the {what}'s time limit passed"), cause: None }
}

fn unknown_outcome() -> LastError {
    LastError {
        code: "outcome_unknown".into(),
        message: "it is not known whether it had an effect".into(),
        cause: None,
    }
}
