//! Children of a step: turns and calls of a loop, durable steps of a program. Rows of the same task with their own tries, questions
//! and journal records. The end of a child does not end its task: the holder or program that works on the parent gets it as an answer.

use super::begin::answer_step;
use super::end::{is_current, is_to_stop, settle_step};
use super::fail::{base, lost, note_judged, out_of_budget};
use super::{Ready, Rows, count_in_flight, may_begin, step_event};
use crate::agent::AgentStatus;
use crate::children::ChildState;
use crate::recovery::{self, Case, Decision, ErrorClass, RETRY_BUDGET, Rule, StepFailure};
use crate::run::LastError;
use crate::step::{Step, StepEvent, StepStatus, ToolKind};
use crate::{Credits, Effect, Refused, StepId, bug};

/// Open children that a step may have at once: they all end in the commit in which it ends.
pub const MAX_OPEN_CHILDREN: i64 = 100;

/// What a child is made of. Its row's name is that of its parent, a slash, and this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewChild {
    pub name: String,
    pub item: Option<String>,
    pub tool: ToolKind,
    pub idempotent: bool,
    pub max_tries: i64,
    pub timeout_ms: Option<i64>,
}

/// Makes a child of a step that runs; it is pending.
pub fn add_child<R: Rows>(rows: &mut R, parent: StepId, child: NewChild) -> Result<StepId, R::Error> {
    let mut parent = rows.step(parent)?;
    let open = is_worked_on(&parent) && !parent.replaced && !is_to_stop(rows, &parent)?;
    if !open || parent.parent.is_some() {
        return Err(Refused::not_from("step", parent.status, "have children", &[]).into());
    }
    if parent.children.open() >= MAX_OPEN_CHILDREN {
        let why = format!("{MAX_OPEN_CHILDREN} steps are open: end some of them first");
        return Err(Refused::Conflict { why }.into());
    }
    let id = rows.make_child(&parent, child)?;
    parent.children.add(ChildState::Pending);
    let mut task = rows.task(parent.task)?;
    task.step_count += 1;
    rows.set_task(task);
    rows.set_step(parent);
    Ok(id)
}

/// Begins a pending child if it may begin now. What became of it is in its row: it runs, it has ended because its record or its input
/// answered, it waits for a person, or it is still pending.
pub fn begin_child<R: Rows>(rows: &mut R, id: StepId) -> Result<Step, R::Error> {
    let child = rows.step(id)?;
    if child.status != StepStatus::Pending || !may_begin_child(rows, &child)? {
        return Ok(child);
    }
    match rows.ready(&child)? {
        Ready::Go => {
            let fence = rows.fence();
            step_event(rows, id, &StepEvent::Begun { fence })?;
            let child = rows.step(id)?;
            rows.step_begun(&child)?;
        }
        Ready::Later => {}
        answer => answer_step(rows, &child, answer)?,
    }
    rows.step(id)
}

fn may_begin_child<R: Rows>(rows: &mut R, child: &Step) -> Result<bool, R::Error> {
    let agent = rows.agent(child.agent)?;
    let awake = agent.status == AgentStatus::Running && may_begin(rows.run(), agent.kind);
    let due = child.due_at.is_none_or(|due| due <= rows.at());
    Ok(awake && due && !is_to_stop(rows, child)?)
}

/// A try of a child has done its work.
pub fn complete_child<R: Rows>(rows: &mut R, id: StepId, try_number: i64) -> Result<(), R::Error> {
    let child = rows.step(id)?;
    if !is_current(&child, try_number) {
        return Ok(());
    }
    step_event(rows, id, &StepEvent::Completed)?;
    settle_step(rows, &child)
}

/// A try of a child has failed: tried again as long as it has tries, else its parent gets the error. Counts neither among the run's
/// failures nor in its budget of retries.
pub fn fail_child<R: Rows>(rows: &mut R, id: StepId, try_number: i64, failure: &StepFailure) -> Result<(), R::Error> {
    let child = rows.step(id)?;
    if !is_current(&child, try_number) {
        return Ok(());
    }
    if !child.idempotent && failure.effect == Effect::Perhaps {
        return if child.uncertain { Ok(()) } else { lose(rows, &child, failure.class, &failure.error) };
    }
    fail_open_child(rows, &child, failure)
}

pub(super) fn fail_open_child<R: Rows>(rows: &mut R, child: &Step, failure: &StepFailure) -> Result<(), R::Error> {
    let (id, error) = (child.id, failure.error.clone());
    let (decision, rule) = match is_to_stop(rows, child)? {
        true => (Decision::Abort, Rule::Ending),
        false => decide(rows, child, failure)?,
    };
    note_judged(rows, id, failure, (decision.decided(), rule))?;
    if let Decision::Retry { after_ms } = decision {
        let at = rows.at() + after_ms;
        step_event(rows, id, &StepEvent::ToBeRetried { at, error })?;
        return settle_step(rows, child);
    }
    step_event(rows, id, &StepEvent::Failed { error: error.clone() })?;
    let unpaid = decision == Decision::OutOfBudget || failure.class == ErrorClass::Budget;
    let parent = parent_of(rows, child)?;
    if unpaid && parent.by_children && is_worked_on(&parent) && !is_to_stop(rows, child)? {
        return out_of_budget(rows, &parent, error);
    }
    settle_step(rows, child)
}

fn decide<R: Rows>(rows: &mut R, child: &Step, failure: &StepFailure) -> Result<(Decision, Rule), R::Error> {
    let (attempt, affordable, limits) = (rows.attempt()?, rows.pays_for_retry()?, rows.limits());
    let case = Case {
        class: failure.class,
        effect: failure.effect,
        idempotent: child.idempotent,
        tries: child.tries,
        max_tries: child.max_tries,
        retry_after_ms: failure.retry_after_ms,
        budget_left: RETRY_BUDGET,
        retried_cost: Credits::ZERO,
        on_exhausted: recovery::OnExhausted::Abort,
        ..base(rows.run(), &attempt, affordable)
    };
    Ok(recovery::decide(&case, &limits))
}

/// The holder of a child's try is gone, or cannot say what happened. Its parent goes on once it is known what became of it.
pub fn lose_child<R: Rows>(rows: &mut R, id: StepId, try_number: i64, error: &LastError) -> Result<(), R::Error> {
    let child = rows.step(id)?;
    if !is_current(&child, try_number) || child.uncertain {
        return Ok(());
    }
    lose(rows, &child, ErrorClass::Unknown, error)
}

fn lose<R: Rows>(rows: &mut R, child: &Step, class: ErrorClass, error: &LastError) -> Result<(), R::Error> {
    let id = child.id;
    if is_to_stop(rows, child)? {
        return super::cancel_step(rows, id, child.tries, !child.idempotent);
    }
    if child.idempotent && child.tries < child.max_tries {
        let at = rows.at();
        step_event(rows, id, &StepEvent::ToBeRetried { at, error: error.clone() })?;
        return settle_step(rows, child);
    }
    if child.idempotent {
        let class = ErrorClass::Transient;
        let failure = StepFailure { class, effect: Effect::Perhaps, retry_after_ms: None, error: error.clone() };
        return fail_open_child(rows, child, &failure);
    }
    lost(rows, child, class, error)
}

/// The parent has ended, begins anew, or its holder is gone: so do its open children. What one that was in flight did stays unknown,
/// unless it may be repeated.
pub(super) fn end_children<R: Rows>(rows: &mut R, was: &Step, parent: &Step) -> Result<(), R::Error> {
    if parent.children.open() == 0 {
        return Ok(());
    }
    for id in rows.open_children(parent.id)? {
        let child = rows.step(id)?;
        let unknown = child.status == StepStatus::Running && !child.idempotent;
        step_event(rows, id, &StepEvent::Cancelled { unknown })?;
        // Its end was counted by what its parent's row says now. While a `verify` asks, the work of any parent is its child's, and only then.
        let uncounted = i64::from(was.by_children) - i64::from(parent.by_children);
        if !bug!(act_of_a_verify_kept) {
            count_in_flight(rows, &child, -uncounted * acts(&child), 0)?;
        }
    }
    Ok(())
}

/// The parent counts its child in another state, and is itself counted in the state that follows from it.
pub(super) fn count<R: Rows>(rows: &mut R, parent: StepId, before: &Step, after: &Step) -> Result<(), R::Error> {
    let (from, to) = (before.child_state(), after.child_state());
    if from == to {
        return Ok(());
    }
    let was = rows.step(parent)?;
    let mut parent = was.clone();
    parent.children.shift(from, to);
    rows.set_step(parent.clone());
    super::count(rows, &was, &parent)?;
    if parent.by_children {
        return count_in_flight(rows, after, acts(after) - acts(before), 0);
    }
    Ok(())
}

/// Whether it is being worked on, itself or by its children.
pub(super) fn is_worked_on(step: &Step) -> bool {
    step.status == StepStatus::Running && !step.uncertain
}

/// How many acts of it are in flight. Those of a step whose work its children do are theirs.
pub(super) fn acts(step: &Step) -> i64 {
    i64::from(is_worked_on(step) && !step.by_children)
}

/// Whether the holder of the agent's work item goes on when this step has moved. A program of the user's goes on by itself.
pub(super) fn has_driver<R: Rows>(rows: &mut R, step: &Step) -> Result<bool, R::Error> {
    if step.parent.is_none() {
        return Ok(true);
    }
    let parent = parent_of(rows, step)?;
    Ok(parent.by_children && parent.tool != ToolKind::External)
}

fn parent_of<R: Rows>(rows: &mut R, child: &Step) -> Result<Step, R::Error> {
    rows.step(child.parent.unwrap_or(child.id))
}
