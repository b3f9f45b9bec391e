//! What must be true after every transaction, and between two. The numbers are those of the design's page 3.

use crate::life::{Id, NONE};
use crate::world::{Lives, MONEY, Scope, World};
use model::agent::{Agent, AgentKind, AgentStatus};
use model::allocation::AllocationStatus;
use model::attempt::{Attempt, AttemptStatus};
use model::children::{ChildState, Children};
use model::hierarchy::EndKind;
use model::instance::InstanceStatus;
use model::job::{FreezeState, Job, JobStatus};
use model::run::{PauseReason, RunOutcome, RunStatus};
use model::spec::RunKind;
use model::task::TaskStatus;
use model::{AgentId, Credits};

type Check = Result<(), String>;

macro_rules! must {
    ($true:expr, $($why:tt)+) => { if !$true { return Err(format!($($why)+)); } };
}

pub fn hold(lives: &Lives, scope: &Scope, world: &World) -> Check {
    credits_are_conserved(lives, world)?;
    counters_are_exact(lives, scope, world)?;
    statuses_agree(lives, world)?;
    levels_agree(lives, world)?;
    jobs_and_slots_agree(lives, scope, world)
}

/// 1: `0 ≤ charged ≤ reserved`; at every end `charged + refunded = reserved`, per attempt and in sum.
fn credits_are_conserved(lives: &Lives, world: &World) -> Check {
    let attempts: Vec<&Attempt> = world.attempts.iter().map(|id| lives.attempt.get(*id)).collect();
    for attempt in &attempts {
        must!(Credits::ZERO <= attempt.charged && attempt.charged <= attempt.reserved, "{attempt:?}");
        let ended = attempt.status != AttemptStatus::Open;
        must!(!ended || attempt.left().is_zero(), "an ended attempt keeps credits: {attempt:?}");
        let free = attempt.status == AttemptStatus::Completed && attempt.charged.is_zero();
        must!(!free, "a completed attempt was free: {attempt:?}");
    }
    let left: Credits = attempts.iter().map(|attempt| attempt.left()).sum();
    let charged: Credits = attempts.iter().map(|attempt| attempt.charged).sum();
    let balance = world.balance();
    must!(balance.reserved == left, "{balance:?} against {left:?} left in the attempts");
    must!(balance.available >= Credits::ZERO, "{balance:?}");
    must!(balance.available + balance.reserved + charged == MONEY, "credits appeared or vanished: {balance:?}");
    let open = attempts.iter().filter(|attempt| attempt.status == AttemptStatus::Open).count();
    must!(open <= 1, "{open} attempts are open");
    Ok(())
}

/// 2: no child without its parent, and every count right, at every level.
fn counters_are_exact(lives: &Lives, scope: &Scope, world: &World) -> Check {
    let run = lives.run.get(world.run);
    let agents = world.agents.len() + usize::from(world.system.is_some());
    let made = |ids: &[Id]| ids.iter().filter(|id| **id != NONE).count() as i64;
    must!(run.agent_count == agents as i64, "{} agents, said to be {}", agents, run.agent_count);
    must!(run.task_count == made(&world.tasks), "tasks: {}", run.task_count);
    must!(run.step_count == made(&world.steps) + made(&world.children), "steps: {}", run.step_count);
    must!(world.attempts.len() as i64 <= run.max_attempts, "{} attempts", world.attempts.len());
    let Some(attempt) = world.attempts.last().map(|id| lives.attempt.get(*id)) else { return Ok(()) };
    let jobs: Vec<&Job> = world.jobs.iter().map(|id| lives.job.get(*id)).collect();
    must!(attempt.tree.jobs.counts(jobs.iter().copied()), "{:?} for {jobs:?}", attempt.tree.jobs);
    let (mut counted, mut superseded, mut in_flight) =
        (Children::default(), 0, crate::children::counted(lives, world)?);
    for (a, id) in world.agents.iter().enumerate() {
        let agent = lives.agent.get(*id);
        if agent.plan_version == run.plan_version {
            counted.add(agent.child_state());
        } else {
            superseded += i64::from(!agent.status.is_end());
        }
        let tasks = &world.tasks[a * scope.tasks..(a + 1) * scope.tasks];
        must!(agent.task_count == made(tasks), "{agent:?} with {} tasks", made(tasks));
        let mut below = Children::default();
        for (t, id) in tasks.iter().enumerate().filter(|(_, id)| **id != NONE) {
            let task = lives.task.get(*id);
            below.add(task.child_state());
            let first = (a * scope.tasks + t) * scope.steps;
            let steps = &world.steps[first..first + scope.steps];
            let children = if first == 0 { made(&world.children) } else { 0 };
            must!(task.step_count == made(steps) + children, "{task:?} with {} steps", made(steps));
            let mut below = Children::default();
            for step in steps.iter().filter(|id| **id != NONE).map(|id| lives.step.get(*id)) {
                below.add(step.child_state());
                let act = step.child_state() == ChildState::Running && !step.by_children;
                in_flight += i64::from(agent.kind != AgentKind::Rank && act);
            }
            must!(made(steps) == 0 || task.steps == below, "{task:?} counts {below:?}");
            must!(task.steps.total() == scope.steps as i64, "{task:?}");
            must!(task.steps.running + task.steps.waiting <= task.parallel, "more steps at once than may be: {task:?}");
        }
        must!(made(tasks) == 0 || agent.tasks == below, "{agent:?} counts {below:?}");
        must!(agent.tasks.total() == scope.tasks as i64, "{agent:?}");
        must!(agent.tasks.running <= agent.parallel, "more tasks at once than may be: {agent:?}");
    }
    let tree = &attempt.tree;
    must!(tree.agents == counted, "{tree:?} counts {counted:?}");
    let planner = i64::from(tree.planner.is_some());
    let most = if run.spec.kind == RunKind::Agents { run.spec.plan.max_agents + planner } else { i64::MAX };
    must!(tree.agents.running <= most, "more agents at once than may be: {tree:?}");
    must!(tree.superseded == superseded, "{tree:?} has {superseded} of earlier plans");
    must!(tree.in_flight == in_flight, "{tree:?} has {in_flight} in flight");
    Ok(())
}

/// 3: the run says what its agents are, and the attempt what the run is.
fn statuses_agree(lives: &Lives, world: &World) -> Check {
    use RunStatus::*;
    let run = lives.run.get(world.run);
    let system = world.system.iter().chain(&world.agents);
    let agents: Vec<&Agent> = system.map(|id| lives.agent.get(*id)).collect();
    // What a run says of its agents it says of the current plan version.
    let current = |agent: &&&Agent| agent.plan_version == run.plan_version;
    let now: Vec<&&Agent> = agents.iter().filter(current).collect();
    let all = |status: AgentStatus| now.iter().all(|agent| agent.status == status);
    let open: Vec<&&Agent> = agents.iter().filter(|agent| !agent.status.is_end()).collect();
    let none_open = open.is_empty();
    match run.status {
        Created => must!(agents.is_empty() && world.attempts.is_empty(), "a created run has children"),
        Completed => must!(!agents.is_empty() && all(AgentStatus::Completed), "completed, and {agents:?}"),
        Failed => {
            must!(
                none_open && agents.iter().any(|agent| agent.status == AgentStatus::Failed),
                "failed, and {agents:?}"
            );
            must!(run.last_error.is_some(), "failed without a word");
        }
        Cancelled => must!(none_open, "cancelled, and {agents:?}"),
        Running => must!(!none_open, "running, and nobody is open"),
        Paused => must!(!none_open && open.iter().all(|it| it.status == AgentStatus::Paused), "paused, and {agents:?}"),
        Resuming => must!(open.iter().all(|it| it.status != AgentStatus::Running), "resuming, and {agents:?}"),
        Pending | Retrying => {
            must!(open.iter().all(|it| it.status != AgentStatus::Running), "nobody picked it up, and {agents:?}");
        }
    }
    let expected = match run.status {
        Completed => AttemptStatus::Completed,
        Failed => AttemptStatus::Failed,
        Cancelled => AttemptStatus::Cancelled,
        _ => AttemptStatus::Open,
    };
    let last = world.attempts.last().map(|id| lives.attempt.get(*id).status);
    must!(last.is_none_or(|status| status == expected), "the run is {}, its attempt {last:?}", run.status);
    let dated = if run.status == Cancelled { run.cancelled_at } else { run.completed_at };
    must!(run.status.is_end() == dated.is_some(), "{} and dated {dated:?}", run.status);
    // The finaliser leaves no run behind whose agents have all ended.
    let waits = run.termination.is_some() && !run.status.is_end();
    must!(!waits || !none_open, "nobody is open, and the run was not finalised");
    Ok(())
}

/// An end leaves nothing open below it; a success leaves nothing undone; nothing that ends begins anything.
fn levels_agree(lives: &Lives, world: &World) -> Check {
    for agent in world.agents.iter().map(|id| lives.agent.get(*id)) {
        must!(!agent.status.is_end() || agent.tasks.open() == 0, "an ended agent has open tasks: {agent:?}");
        must!(!agent.status.is_end() || agent.ending.is_none(), "{agent:?}");
        if agent.status == AgentStatus::Completed && agent.outcome == Some(RunOutcome::Success) {
            must!(agent.tasks.completed == agent.tasks.total(), "a success with something undone: {agent:?}");
        }
        must!(agent.tries <= agent.max_tries || agent.kind == AgentKind::Rank, "{agent:?}");
        let held = agent.status == AgentStatus::Paused && agent.kind != AgentKind::Rank;
        must!(!held || agent.ending.is_none() || agent.tasks.running > 0 || agent.cut, "{agent:?} should have ended");
        let renewing = agent.ending.as_ref().is_some_and(|ending| ending.to == EndKind::Renewed);
        must!(
            !renewing || agent.acting > 0 || agent.cut,
            "nothing is in flight, and it does not begin anew: {agent:?}"
        );
    }
    for task in world.tasks.iter().filter(|id| **id != NONE).map(|id| lives.task.get(*id)) {
        must!(!task.status.is_end() || task.steps.open() == 0, "an ended task has open steps: {task:?}");
        must!(task.waits_for >= 0, "{task:?}");
        must!(task.status != TaskStatus::Running || task.waits_for == 0, "it began before what it waits for: {task:?}");
        let done = task.status == TaskStatus::Completed && task.outcome == Some(RunOutcome::Success);
        must!(!done || task.steps.completed == task.steps.total(), "a success with something undone: {task:?}");
    }
    for step in world.steps.iter().chain(&world.children).filter(|id| **id != NONE).map(|id| lives.step.get(*id)) {
        must!(!step.uncertain || !step.idempotent, "{step:?} could have been repeated");
    }
    Ok(())
}

/// One live job an agent, one live job a slot, one live slot a machine; and each knows the other.
fn jobs_and_slots_agree(lives: &Lives, scope: &Scope, world: &World) -> Check {
    let jobs: Vec<&Job> = world.jobs.iter().map(|id| lives.job.get(*id)).filter(|job| !job.status.is_end()).collect();
    for (a, id) in world.agents.iter().enumerate() {
        let agent = lives.agent.get(*id);
        let own = jobs.iter().filter(|job| job.agent == AgentId(a as i64 + 1)).count();
        must!(own <= 1, "{own} live jobs of one agent");
        must!(own == 0 || !agent.status.is_end(), "a live job of an ended agent: {agent:?}");
        let idle = scope.machines > 0 && agent.status == AgentStatus::Running && own == 0;
        must!(!idle, "a running agent without a job");
    }
    let run = lives.run.get(world.run);
    if run.status == RunStatus::Paused && run.pause_reason == Some(PauseReason::Asked) {
        let still = |job: &&Job| job.freeze == FreezeState::Frozen || job.status == JobStatus::Terminating;
        must!(jobs.iter().all(still), "paused, and {jobs:?}");
    }
    for job in &jobs {
        let slot = job.allocation.map(|it| world.slot_at(lives, it).map(|at| lives.slot.get(world.slots[at])));
        match (job.status, slot) {
            (JobStatus::Submitted, slot) => must!(slot.is_none(), "a waiting job has a slot: {job:?}"),
            (_, Some(Some(slot))) => {
                must!(slot.status.is_live() && slot.job == Some(job.id), "{job:?} on {slot:?}");
                let active = slot.status == AllocationStatus::Active;
                must!(active == job.running_at.is_some(), "{job:?} on {slot:?}");
            }
            (_, slot) => return Err(format!("a placed job without a slot: {job:?} {slot:?}")),
        }
        must!(!job.lost || job.silent_since.is_some(), "lost and heard: {job:?}");
        must!(job.reason.is_some() == (job.status == JobStatus::Terminating), "{job:?}");
    }
    for id in &world.slots {
        let slot = lives.slot.get(*id);
        let users = jobs.iter().filter(|job| job.allocation == Some(slot.id)).count();
        must!(users == usize::from(slot.status.is_live()), "{users} live jobs on {slot:?}");
        must!(slot.job.is_none() == (slot.status == AllocationStatus::Available), "{slot:?}");
        let machine = world.instance_at(lives, slot.instance).map(|at| lives.instance.get(world.instances[at]).status);
        must!(machine.is_some_and(|it| it != InstanceStatus::Terminated), "{slot:?} on no machine");
    }
    for id in &world.instances {
        let machine = lives.instance.get(*id);
        let on_it = world.slots.iter().map(|slot| lives.slot.get(*slot)).filter(|slot| slot.instance == machine.id);
        let live = on_it.filter(|slot| slot.status.is_live()).count();
        must!(live <= 1, "{live} live slots on one machine");
    }
    Ok(())
}

/// Between two transactions: the first reason wins, ends are sinks, attempts and submissions only grow.
pub fn hold_between(lives: &Lives, before: &World, after: &World) -> Check {
    let (was, is) = (lives.run.get(before.run), lives.run.get(after.run));
    must!(is.attempt >= was.attempt, "attempts ran backwards");
    if is.attempt == was.attempt {
        let reason = |run: &model::run::Run| run.termination.as_ref().map(|t| t.reason);
        must!(reason(was).is_none() || reason(was) == reason(is), "{:?} became {:?}", reason(was), reason(is));
        must!(!was.status.is_end() || was.status == is.status, "{} became {}", was.status, is.status);
        let astray = was.termination.is_some() && is.status != was.status && !is.status.is_end();
        must!(!astray, "on its way to its end, {} became {}", was.status, is.status);
        for (earlier, later) in before.agents.iter().zip(&after.agents) {
            let (earlier, later) = (lives.agent.get(*earlier), lives.agent.get(*later));
            must!(!earlier.status.is_end() || earlier == later, "{earlier:?} became {later:?}");
        }
    } else {
        must!(was.status == RunStatus::Failed && is.attempt == was.attempt + 1, "a new attempt from {}", was.status);
    }
    for (earlier, later) in before.attempts.iter().zip(&after.attempts) {
        let (was, is) = (lives.attempt.get(*earlier), lives.attempt.get(*later));
        must!(was.status == AttemptStatus::Open || was == is, "{was:?} became {is:?}");
        must!(is.charged >= was.charged && is.refunded >= was.refunded, "{was:?} became {is:?}");
    }
    for (earlier, later) in before.jobs.iter().zip(&after.jobs) {
        let (was, is) = (lives.job.get(*earlier), lives.job.get(*later));
        let same = was.agent == is.agent && was.attempt == is.attempt && was.submission == is.submission;
        must!(!same || was.reason.is_none() || was.reason == is.reason, "{was:?} became {is:?}");
    }
    Ok(())
}
