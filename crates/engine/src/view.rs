//! Reads for the API: a run with everything shown beside it, in one snapshot; the tree below it in pages.

use crate::Engine;
use model::agent::{Agent, AgentStatus};
use model::attempt::Attempt;
use model::job::Job;
use model::run::Run;
use model::step::{Step, StepStatus, StepWait};
use model::task::{Task, TaskStatus};
use model::usage::UsageBy;
use model::{AgentId, Credits, Failure, JobId, OrgId, QuestionId, Refused, RunId, StepId, TaskId};
use std::collections::BTreeMap;
use store::{Event, Tx};

/// A job with the last sign of life of its machine.
pub use store::job::JobWithLastSeen as SeenJob;
/// A run with its money, its last job and where that was.
pub use store::run::Shown as RunSnapshot;
pub use store::run::Which;
pub use store::step::Below;
use store::step::Data;

/// How much of a tree is shown at once. The rest is in the pages of agents, tasks, steps and jobs.
pub const TREE_AGENTS: i64 = 1_000;
pub const TREE_TASKS: i64 = 1_000;
pub const TREE_STEPS: i64 = 2_000;
pub const TREE_JOBS: i64 = 1_000;

/// What is below a run's current attempt: the first agents, tasks, steps and jobs.
#[derive(Debug, Clone)]
pub struct Tree {
    pub snapshot: RunSnapshot,
    pub agents: Vec<Agent>,
    pub tasks: Vec<Task>,
    pub steps: Vec<Step>,
    pub jobs: Vec<SeenJob>,
    /// What agents have used in all attempts, by their names: the dearest.
    pub charged: BTreeMap<String, Credits>,
    /// There are more than these.
    pub cut: bool,
}

/// A step with what it was called with, what it answered and its earlier tries.
#[derive(Debug, Clone)]
pub struct StepDetail {
    pub step: Step,
    pub input: Option<serde_json::Value>,
    pub output: Option<serde_json::Value>,
    /// Oldest first, the present one not among them.
    pub earlier: Vec<Step>,
    /// What people were asked about it last.
    pub questions: Vec<QuestionId>,
}

/// At most `limit` rows, and whether there are more.
fn cut<T>(mut rows: Vec<T>, limit: i64) -> (Vec<T>, bool) {
    let more = rows.len() as i64 > limit;
    rows.truncate(limit as usize);
    (rows, more)
}

pub(crate) fn snapshot(tx: &mut Tx, id: RunId) -> Result<RunSnapshot, Failure> {
    store::run::find_shown(tx, id)?.ok_or_else(|| Refused::not_found("run", id).into())
}

/// A snapshot of a run that this org has and did not delete.
fn owned_run(tx: &mut Tx, org: OrgId, id: RunId) -> Result<RunSnapshot, Failure> {
    let snapshot = store::run::find_shown(tx, id)?.filter(|p| p.run.org == org && p.run.deleted_at.is_none());
    snapshot.ok_or_else(|| Refused::not_found("run", id).into())
}

pub(crate) fn owned(tx: &mut Tx, org: OrgId, id: RunId) -> Result<Run, Failure> {
    let run = store::run::find(tx, id)?.filter(|run| run.org == org && run.deleted_at.is_none());
    run.ok_or_else(|| Refused::not_found("run", id).into())
}

impl Engine {
    pub async fn snapshot(&self, org: OrgId, id: RunId) -> Result<RunSnapshot, Failure> {
        self.store.read("run.snapshot", move |tx| owned_run(tx, org, id)).await
    }

    /// Newest first.
    pub async fn list_runs(
        &self,
        org: OrgId,
        which: Which,
        before: i64,
        limit: i64,
    ) -> Result<Vec<RunSnapshot>, Failure> {
        self.store.read("run.list", move |tx| store::run::page_shown(tx, org, which, before, limit)).await
    }

    /// Of the newest runs, those of this kind whose name or command holds this text.
    pub async fn search_runs(
        &self,
        org: OrgId,
        (which, text): (Which, String),
        before: i64,
        limit: i64,
    ) -> Result<Vec<RunSnapshot>, Failure> {
        self.store.read("run.found", move |tx| store::run::page_found(tx, org, (which, &text), before, limit)).await
    }

    /// A run, and the document of a run of agents as it was submitted.
    pub async fn definition(&self, org: OrgId, id: RunId) -> Result<(RunSnapshot, Option<serde_json::Value>), Failure> {
        self.store.read("run.definition", move |tx| Ok((owned_run(tx, org, id)?, store::plan::document(tx, id)?))).await
    }

    /// The open run of that name, or the newest.
    pub async fn run_by_name(&self, org: OrgId, name: String) -> Result<Option<RunSnapshot>, Failure> {
        self.store
            .read("run.by_name", move |tx| match store::run::by_name(tx, org, &name)? {
                Some(run) => owned_run(tx, org, run.id).map(Some),
                None => Ok(None),
            })
            .await
    }

    pub async fn attempts(&self, org: OrgId, id: RunId) -> Result<Vec<Attempt>, Failure> {
        self.store
            .read("run.attempts", move |tx| {
                owned(tx, org, id)?;
                store::attempt::of_run(tx, id)
            })
            .await
    }

    pub async fn tree(&self, org: OrgId, id: RunId) -> Result<Tree, Failure> {
        self.store
            .read("run.tree", move |tx| {
                let snapshot = owned_run(tx, org, id)?;
                let attempt = snapshot.run.attempt;
                let (agents, more_agents) = cut(store::agent::page(tx, id, attempt, 0, TREE_AGENTS + 1)?, TREE_AGENTS);
                let tasks = store::task::page(tx, id, attempt, None, 0, TREE_TASKS + 1)?;
                let (tasks, more_tasks) = cut(tasks, TREE_TASKS);
                let steps = store::step::page(tx, id, attempt, Below::Attempt, 0, TREE_STEPS + 1)?;
                let (steps, more_steps) = cut(steps, TREE_STEPS);
                let (jobs, more_jobs) = cut(store::job::seen_page(tx, id, (attempt, 0), TREE_JOBS + 1)?, TREE_JOBS);
                let used = store::usage::of_run_by(tx, org, id, UsageBy::Agent, TREE_AGENTS)?;
                let charged = used.into_iter().map(|(agent, usage)| (agent, usage.charged)).collect();
                let cut = more_agents || more_tasks || more_steps || more_jobs;
                Ok(Tree { agents, tasks, steps, jobs, charged, cut, snapshot })
            })
            .await
    }

    /// Agents of the current attempt after an id, in order of creation.
    pub async fn agents(&self, org: OrgId, id: RunId, after: i64, limit: i64) -> Result<Vec<Agent>, Failure> {
        self.store
            .read("run.agents", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                store::agent::page(tx, id, attempt, after, limit)
            })
            .await
    }

    pub async fn tasks(
        &self,
        org: OrgId,
        id: RunId,
        agent: Option<AgentId>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Task>, Failure> {
        self.store
            .read("run.tasks", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                store::task::page(tx, id, attempt, agent, after, limit)
            })
            .await
    }

    pub async fn steps(
        &self,
        org: OrgId,
        id: RunId,
        below: Below,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Step>, Failure> {
        self.store
            .read("run.steps", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                store::step::page(tx, id, attempt, below, after, limit)
            })
            .await
    }

    /// Agents of the current attempt that are looked at first: those that failed, wait for a person, or run; at most `limit` of each.
    pub async fn urgent_agents(&self, org: OrgId, id: RunId, limit: i64) -> Result<Vec<Agent>, Failure> {
        self.store
            .read("run.agents", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                let mut found = Vec::new();
                for state in [AgentStatus::Failed, AgentStatus::Paused, AgentStatus::Running] {
                    found.extend(store::agent::in_state(tx, id, attempt, state, limit)?);
                }
                Ok(found)
            })
            .await
    }

    /// The same of the tasks of an agent.
    pub async fn urgent_tasks(&self, org: OrgId, id: RunId, agent: AgentId, limit: i64) -> Result<Vec<Task>, Failure> {
        self.store
            .read("run.tasks", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                let mut found = Vec::new();
                for state in [TaskStatus::Failed, TaskStatus::Running] {
                    found.extend(store::task::in_state(tx, agent, state, limit)?);
                }
                found.retain(|task| task.run == id && task.attempt == attempt);
                Ok(found)
            })
            .await
    }

    /// The same of the steps of a task; children of other steps are found below these.
    pub async fn urgent_steps(&self, org: OrgId, id: RunId, task: TaskId, limit: i64) -> Result<Vec<Step>, Failure> {
        self.store
            .read("run.steps", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                let mut found = Vec::new();
                for state in [StepStatus::Failed, StepStatus::Waiting, StepStatus::Running] {
                    found.extend(store::step::in_state(tx, task, state, limit)?);
                }
                found.retain(|step| step.run == id && step.attempt == attempt);
                Ok(found)
            })
            .await
    }

    /// One agent of the current attempt.
    pub async fn agent(&self, org: OrgId, id: RunId, agent: AgentId) -> Result<Agent, Failure> {
        self.store
            .read("run.agent", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                let found = store::agent::find(tx, agent)?.filter(|it| it.run == id && it.attempt == attempt);
                Ok(found.ok_or_else(|| Refused::not_found("agent", agent))?)
            })
            .await
    }

    /// One task of the current attempt.
    pub async fn task(&self, org: OrgId, id: RunId, task: TaskId) -> Result<Task, Failure> {
        self.store
            .read("run.task", move |tx| {
                let attempt = owned(tx, org, id)?.attempt;
                let found = store::task::find(tx, task)?.filter(|it| it.run == id && it.attempt == attempt);
                Ok(found.ok_or_else(|| Refused::not_found("task", task))?)
            })
            .await
    }

    /// A step of any attempt of the run, also one in whose place a retry has put another.
    pub async fn step(&self, org: OrgId, id: RunId, step: StepId) -> Result<StepDetail, Failure> {
        self.store
            .read("run.step", move |tx| {
                owned(tx, org, id)?;
                let step = store::step::find(tx, step)?
                    .filter(|found| found.run == id)
                    .ok_or_else(|| Refused::not_found("step", step))?;
                let output = match step.answer {
                    Some(answer) => store::step::data(tx, answer, Data::Output)?,
                    None => None,
                };
                let mut questions = Vec::new();
                for kind in StepWait::ALL {
                    questions.extend(store::question::last_of_step(tx, step.id, *kind)?.map(|question| question.id));
                }
                Ok(StepDetail {
                    // A step whose record answered has the input of the one that was called.
                    input: store::step::data(tx, step.answer.unwrap_or(step.id), Data::Input)?,
                    output,
                    earlier: store::step::tries(tx, step.id)?,
                    questions,
                    step,
                })
            })
            .await
    }

    pub async fn run(&self, org: OrgId, id: RunId) -> Result<Run, Failure> {
        self.store.read("run.find", move |tx| owned(tx, org, id)).await
    }

    pub async fn jobs(&self, org: OrgId, id: RunId) -> Result<(Run, Vec<Job>), Failure> {
        self.store
            .read("run.jobs", move |tx| {
                let run = owned(tx, org, id)?;
                let jobs = store::job::of_run(tx, id)?;
                Ok((run, jobs))
            })
            .await
    }

    /// Jobs of all attempts after the one with this number, or from the first one on after 0.
    pub async fn seen_jobs(&self, org: OrgId, id: RunId, after: i64, limit: i64) -> Result<Vec<SeenJob>, Failure> {
        self.store
            .read("run.seen_jobs", move |tx| {
                owned(tx, org, id)?;
                let last = store::job::find(tx, JobId(after))?.filter(|job| job.run == id);
                if after > 0 && last.is_none() {
                    return Err(Refused::invalid("cursor", "no page of this run's jobs ended there").into());
                }
                store::job::seen_page(tx, id, last.map_or((0, 0), |job| (job.attempt, after)), limit)
            })
            .await
    }

    /// Events after `after`, with the run as it was when they were read.
    pub async fn events(
        &self,
        org: OrgId,
        id: RunId,
        after: i64,
        limit: i64,
    ) -> Result<(Run, Vec<Event>, i64), Failure> {
        self.store
            .read("run.events", move |tx| {
                let run = owned(tx, org, id)?;
                let last = store::event::last(tx, org, Some(id))?;
                let events = store::event::after(tx, org, Some(id), after, limit)?;
                Ok((run, events, last))
            })
            .await
    }

    pub async fn pools(&self) -> Result<Vec<PoolOverview>, Failure> {
        let context = self.context.clone();
        self.store
            .read("pool.overviews", move |tx| {
                let mut overviews = Vec::new();
                // A pool stays when its provider is removed, and some only list what features have made.
                let set_up = |pool: &store::pool::Pool| context.providers.get(&pool.provider).is_some();
                for pool in store::pool::all(tx)?.into_iter().filter(set_up) {
                    let room = crate::pool::room(tx, &context, &pool)?;
                    let available = store::allocation::available(tx, pool.id)?.len() as i64;
                    let waiting = store::job::count_waiting(tx, pool.id)?;
                    let busy = (room.instances - room.ending - available).max(0);
                    overviews.push(PoolOverview { pool, room, available, busy, waiting });
                }
                Ok(overviews)
            })
            .await
    }
}

/// What is still open or held, for `repl control stop` and the idle shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remains {
    pub runs: i64,
    pub instances: i64,
    pub held: i64,
}

impl Engine {
    pub async fn remains(&self) -> Result<Remains, Failure> {
        self.store
            .read("view.remains", |tx| {
                let mut instances = 0;
                for pool in store::pool::all(tx)? {
                    instances += store::instance::open_in(tx, pool.id)?.len() as i64;
                }
                Ok(Remains { runs: store::run::count_open(tx)?, instances, held: store::allocation::count_held(tx)? })
            })
            .await
    }
}

#[derive(Debug, Clone)]
pub struct PoolOverview {
    pub pool: store::pool::Pool,
    pub room: model::pool::Room,
    pub available: i64,
    pub busy: i64,
    pub waiting: i64,
}
