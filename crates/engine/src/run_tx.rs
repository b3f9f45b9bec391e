//! The rows of one run in one transaction: the run's row is locked, its entities are loaded once, changed by their `apply` functions, and
//! written once. An effect on another run is a work item, never a second `RunTx`.

use crate::EngineContext;
use crate::child::ChildInput;
use crate::orphan::import::Importing;
use crate::step::Acting;
use crate::view::RunSnapshot;
use model::agent::Agent;
use model::allocation::Allocation;
use model::attempt::Attempt;
use model::instance::Instance;
use model::job::Job;
use model::job_counters::JobPick;
use model::question::Question;
use model::run::Run;
use model::spec::{Priority, RunContent};
use model::step::Step;
use model::task::Task;
use model::workflow::Workflow;
use model::{
    AgentId, AllocationId, Failure, InstanceId, JobId, PoolId, Refused, RunId, StepId, Timestamp, Trouble, WorkflowId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use store::pool::Pool;
use store::{Hint, NewEvent, Tx, WorkKind};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Clean,
    Changed,
    New,
}

/// An entity and whether its row has to be written.
pub(crate) struct Tracked<T> {
    pub(crate) it: T,
    mark: Mark,
}

impl<T> Tracked<T> {
    pub(crate) fn clean(it: T) -> Tracked<T> {
        Tracked { it, mark: Mark::Clean }
    }
    pub(crate) fn new(it: T) -> Tracked<T> {
        Tracked { it, mark: Mark::New }
    }
    pub(crate) fn is_new(&self) -> bool {
        self.mark == Mark::New
    }
    pub(crate) fn is_to_be_written(&self) -> bool {
        self.mark != Mark::Clean
    }
    pub(crate) fn set(&mut self, it: T) {
        self.it = it;
        if self.mark == Mark::Clean {
            self.mark = Mark::Changed;
        }
    }
}

pub(crate) struct RunTx<'t> {
    pub(crate) tx: &'t mut Tx,
    pub(crate) context: &'t EngineContext,
    pub(crate) at: Timestamp,
    /// Whose request this transaction carries out, in words: the run's events say it.
    pub(crate) by: Option<String>,
    pub(crate) run: Run,
    mark: Mark,
    /// Of a run that is being submitted.
    content: Option<RunContent>,
    pub(crate) attempts: Vec<Tracked<Attempt>>,
    pub(crate) agents: Vec<Tracked<Agent>>,
    pub(crate) tasks: Vec<Tracked<Task>>,
    pub(crate) steps: Vec<Tracked<Step>>,
    /// Those that were needed so far. The attempt's counters say how many more there are.
    pub(crate) jobs: Vec<Tracked<Job>>,
    /// Submitted jobs that want a machine: placed together, when everything else has been decided.
    pub(crate) to_place: VecDeque<JobId>,
    /// Agents that have ended: their machines are let go.
    pub(crate) to_let_go: Vec<AgentId>,
    /// Pools that this transaction has locked.
    pools: Vec<Pool>,
    pub(crate) workflows: Vec<Tracked<Workflow>>,
    pub(crate) allocations: Vec<Tracked<Allocation>>,
    pub(crate) instances: Vec<Tracked<Instance>>,
    told: BTreeSet<InstanceId>,
    /// Tries that another one follows in this transaction, as they were.
    pub(crate) earlier_tries: Vec<Step>,
    /// The agent whose work item is held, and what its holder knows.
    pub(crate) acting: Option<Acting>,
    pub(crate) questions: Vec<Tracked<Question>>,
    /// Steps whose failures are not counted among those of the run.
    pub(crate) uncounted: BTreeSet<StepId>,
    /// Evaluated inputs of the children that are about to begin.
    pub(crate) child_inputs: BTreeMap<StepId, ChildInput>,
    /// Outputs that are written in this transaction.
    pub(crate) outputs: BTreeMap<StepId, serde_json::Value>,
    /// Workflows whose nodes are being looked at, and whether one of them caused an event meanwhile.
    pub(crate) advancing: BTreeMap<WorkflowId, bool>,
    /// The run is imported: its job is on its machine already.
    pub(crate) importing: Option<Importing>,
    /// The run is answered with a result: no job is submitted, and it costs the least that a run costs.
    pub(crate) replaying: bool,
}

impl<'t> RunTx<'t> {
    /// A run that is being submitted.
    pub(crate) fn fresh(tx: &'t mut Tx, context: &'t EngineContext, run: Run, content: RunContent) -> RunTx<'t> {
        let at = tx.at();
        let mut run_tx = RunTx::of(tx, context, run, at);
        (run_tx.mark, run_tx.content) = (Mark::New, Some(content));
        run_tx
    }

    /// A run that exists: its row is locked first.
    pub(crate) fn open(tx: &'t mut Tx, context: &'t EngineContext, id: RunId) -> Result<RunTx<'t>, Failure> {
        let run = store::run::lock(tx, id)?;
        let at = tx.at();
        let attempt = store::attempt::find(tx, run.id, run.attempt)?;
        let mut run_tx = RunTx::of(tx, context, run, at);
        run_tx.attempts.extend(attempt.map(Tracked::clean));
        Ok(run_tx)
    }

    fn of(tx: &'t mut Tx, context: &'t EngineContext, run: Run, at: Timestamp) -> RunTx<'t> {
        RunTx {
            tx,
            context,
            at,
            by: None,
            run,
            mark: Mark::Clean,
            content: None,
            attempts: Vec::new(),
            agents: Vec::new(),
            tasks: Vec::new(),
            steps: Vec::new(),
            jobs: Vec::new(),
            to_place: VecDeque::new(),
            to_let_go: Vec::new(),
            pools: Vec::new(),
            workflows: Vec::new(),
            allocations: Vec::new(),
            instances: Vec::new(),
            told: BTreeSet::new(),
            earlier_tries: Vec::new(),
            acting: None,
            questions: Vec::new(),
            uncounted: BTreeSet::new(),
            child_inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            advancing: BTreeMap::new(),
            importing: None,
            replaying: false,
        }
    }

    pub(crate) fn set_run(&mut self, run: Run) {
        self.run = run;
        if self.mark == Mark::Clean {
            self.mark = Mark::Changed;
        }
    }

    /// The attempt that money and counters of now belong to.
    pub(crate) fn attempt(&mut self) -> Result<&mut Tracked<Attempt>, Failure> {
        let number = self.run.attempt;
        self.attempts
            .iter_mut()
            .find(|attempt| attempt.it.number == number)
            .ok_or_else(|| Trouble::internal("the run's attempt is missing").into())
    }

    /// A run that was never started has none.
    pub(crate) fn has_attempt(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.it.number == self.run.attempt)
    }

    /// A job of the current attempt. Those of earlier attempts have ended, and are not the run's any more.
    pub(crate) fn job(&mut self, id: JobId) -> Result<&Job, Failure> {
        if let Some(i) = self.jobs.iter().position(|job| job.it.id == id) {
            return Ok(&self.jobs[i].it);
        }
        let mine = |job: &Job| job.run == self.run.id && job.attempt == self.run.attempt;
        let job = store::job::find(self.tx, id)?.filter(mine).ok_or_else(|| Refused::not_found("job", id))?;
        self.jobs.push(Tracked::clean(job));
        Ok(&self.jobs.last().expect("just pushed").it)
    }

    /// A job as it is now, or a new one. Its attempt counts it.
    pub(crate) fn set_job(&mut self, job: Job) -> Result<(), Failure> {
        let i = self.jobs.iter().position(|kept| kept.it.id == job.id);
        let before = i.map(|i| &self.jobs[i].it);
        let attempt = self.attempts.iter_mut().find(|attempt| attempt.it.number == job.attempt);
        let attempt = attempt.ok_or_else(|| Trouble::internal("the job's attempt is missing"))?;
        let mut next = attempt.it.clone();
        next.tree.jobs.shift(before, &job);
        if next != attempt.it {
            attempt.set(next);
        }
        match i {
            Some(i) => self.jobs[i].set(job),
            None => self.jobs.push(Tracked::new(job)),
        }
        Ok(())
    }

    /// Open jobs of the current attempt that are held in memory.
    fn open_here(&self) -> impl Iterator<Item = &Job> {
        let attempt = self.run.attempt;
        self.jobs.iter().map(|job| &job.it).filter(move |job| job.attempt == attempt && !job.status.is_end())
    }

    fn all_open_are_here(&mut self) -> Result<bool, Failure> {
        let open = self.attempt()?.it.tree.jobs.open();
        Ok(self.open_here().count() as i64 == open)
    }

    /// Open jobs of the current attempt, as many as are meant, in order of their ids. What is held in memory is newer than what the
    /// database has.
    pub(crate) fn pick_jobs(&mut self, pick: JobPick, limit: usize) -> Result<Vec<JobId>, Failure> {
        if !self.all_open_are_here()? {
            let most = (limit + self.jobs.len()) as i64;
            for job in store::job::pick(self.tx, self.run.id, self.run.attempt, pick, most)? {
                if !self.jobs.iter().any(|kept| kept.it.id == job.id) {
                    self.jobs.push(Tracked::clean(job));
                }
            }
        }
        let mut picked: Vec<JobId> = self.open_here().filter(|job| pick.fits(job)).map(|job| job.id).collect();
        picked.sort();
        picked.truncate(limit);
        Ok(picked)
    }

    pub(crate) fn open_job_of(&mut self, agent: AgentId) -> Result<Option<JobId>, Failure> {
        if let Some(job) = self.open_here().find(|job| job.agent == agent) {
            return Ok(Some(job.id));
        }
        if self.all_open_are_here()? {
            return Ok(None);
        }
        let found = store::job::open_of_agent(self.tx, agent)?;
        let found = found.filter(|job| !self.jobs.iter().any(|kept| kept.it.id == job.id)); // it has ended here
        let id = found.as_ref().map(|job| job.id);
        self.jobs.extend(found.map(Tracked::clean));
        Ok(id)
    }

    /// The pool, locked. All pools that a transaction needs are locked before the first instance, in the order of their ids.
    pub(crate) fn pool(&mut self, id: PoolId) -> Result<&mut Pool, Failure> {
        if let Some(i) = self.pools.iter().position(|pool| pool.id == id) {
            return Ok(&mut self.pools[i]);
        }
        let pool = store::pool::lock(self.tx, id)?;
        self.pools.push(pool);
        Ok(self.pools.last_mut().expect("just pushed"))
    }

    /// A workflow of one of the run's jobs: the run's lock is its lock.
    pub(crate) fn workflow(&mut self, id: WorkflowId) -> Result<&mut Tracked<Workflow>, Failure> {
        if let Some(i) = self.workflows.iter().position(|w| w.it.id == id) {
            return Ok(&mut self.workflows[i]);
        }
        let workflow = store::workflow::find(self.tx, id)?.ok_or_else(|| Refused::not_found("workflow", id))?;
        self.workflows.push(Tracked::clean(workflow));
        Ok(self.workflows.last_mut().expect("just pushed"))
    }

    pub(crate) fn allocation(&mut self, id: AllocationId) -> Result<&mut Tracked<Allocation>, Failure> {
        if let Some(i) = self.allocations.iter().position(|a| a.it.id == id) {
            return Ok(&mut self.allocations[i]);
        }
        let slot = store::allocation::find(self.tx, id)?.ok_or_else(|| Refused::not_found("allocation", id))?;
        self.allocations.push(Tracked::clean(slot));
        Ok(self.allocations.last_mut().expect("just pushed"))
    }

    pub(crate) fn instance(&mut self, id: InstanceId) -> Result<&mut Tracked<Instance>, Failure> {
        if let Some(i) = self.instances.iter().position(|i| i.it.id == id) {
            return Ok(&mut self.instances[i]);
        }
        let instance = store::instance::lock(self.tx, id)?;
        self.instances.push(Tracked::clean(instance));
        Ok(self.instances.last_mut().expect("just pushed"))
    }

    /// The instance's desired document is another one after this transaction.
    pub(crate) fn tell(&mut self, instance: InstanceId) {
        self.told.insert(instance);
    }

    pub(crate) fn publish(&mut self, kind: &'static str, body: store::event::Body) {
        self.tx.event(NewEvent { org: self.run.org, run: Some(self.run.id), kind, body });
    }

    /// The first event of a run.
    pub(crate) fn created(&mut self) {
        self.publish("run.created", store::body!({ "name": self.run.name, "status": "created", "by": self.by }));
    }

    /// A moment that has passed is now: a deadline is asked for as if we had never been away.
    pub(crate) fn wake(&mut self, kind: WorkKind, subject: i64, at: Timestamp) {
        self.tx.wake(kind, subject, at.max(self.at));
    }

    /// Writes every changed row once. Order does not matter below the run's lock; wakes, events and ledger are staged behind.
    pub(crate) fn close(mut self) -> Result<Run, Failure> {
        self.let_machines_go()?;
        self.place_waiting()?;
        self.refresh_phase();
        self.assert_counted();
        self.write_journal()?;
        let priority: Priority = self.run.spec.priority;
        let tx = &mut *self.tx;
        for kept in &self.attempts {
            write_tracked(tx, kept, store::attempt::insert, store::attempt::save)?;
        }
        for kept in &self.agents {
            write_tracked(tx, kept, store::agent::insert, store::agent::save)?;
        }
        for kept in &self.tasks {
            write_tracked(tx, kept, store::task::insert, store::task::save)?;
        }
        for kept in &self.steps {
            write_tracked(tx, kept, store::step::insert, store::step::save)?;
        }
        if self.steps.iter().any(|kept| kept.is_to_be_written() && kept.it.offer.is_some()) {
            tx.hint(Hint::Offers(self.run.org));
        }
        for earlier in &self.earlier_tries {
            store::step::insert_try(tx, earlier)?;
        }
        for kept in &self.questions {
            write_tracked(tx, kept, store::question::insert, store::question::save)?;
        }
        for kept in &self.jobs {
            write_tracked(tx, kept, |tx, job| store::job::insert(tx, job, priority), store::job::save)?;
        }
        for kept in &self.workflows {
            write_tracked(tx, kept, store::workflow::insert, store::workflow::save)?;
        }
        for kept in &self.allocations {
            write_tracked(tx, kept, store::allocation::insert, store::allocation::save)?;
        }
        for id in &self.told {
            match self.instances.iter_mut().find(|i| i.it.id == *id) {
                Some(kept) => {
                    let mut next = kept.it.clone();
                    next.desired_version += 1;
                    kept.set(next);
                    tx.hint(Hint::Instance(*id));
                }
                None => store::instance::tell(tx, *id)?,
            }
        }
        for kept in &self.instances {
            write_tracked(tx, kept, store::instance::insert, store::instance::save)?;
        }
        self.run.last_at = self.run.last_at.max(self.at);
        match self.mark {
            Mark::Clean => {}
            Mark::Changed => store::run::save(tx, &self.run)?,
            Mark::New => {
                let content = self.content.as_ref().expect("a new run has its content");
                store::run::insert(tx, &self.run, content)?;
            }
        }
        Ok(self.run)
    }

    /// The same for a run that is being submitted. Returns the run as a reader will find it, without reading it back.
    pub(crate) fn close_shown(mut self) -> Result<RunSnapshot, Failure> {
        debug_assert!(self.mark == Mark::New, "a run that was there has a newer version after it is written");
        self.place_waiting()?;
        self.refresh_phase();
        let (number, jobs) = (self.run.attempt, self.jobs.iter().map(|job| &job.it));
        let job = jobs.filter(|job| job.attempt == number).max_by_key(|job| job.id).cloned();
        let (slot, machine) = (job.as_ref().and_then(|j| j.allocation), job.as_ref().and_then(|j| j.instance));
        // Counters are not shown.
        let attempt = self.attempts.iter().map(|a| &a.it).find(|a| a.number == number);
        let attempt = attempt.map(|a| Attempt { tree: Default::default(), ..a.clone() });
        let allocation = self.allocations.iter().map(|a| &a.it).find(|a| Some(a.id) == slot).cloned();
        let instance = self.instances.iter().map(|i| &i.it).find(|i| Some(i.id) == machine).cloned();
        let content = self.content.clone().expect("a new run has its content");
        let goal = match self.run.spec.plan.goal {
            true => store::plan::shared(self.tx, self.run.id)?.goal,
            false => None,
        };
        let run = self.close()?;
        // Who will look after it is not decided before the commit.
        Ok(RunSnapshot { run, content, attempt, job, allocation, instance, beat_at: None, ticket: None, goal })
    }

    /// Writes what a placement has changed of the pool before the next one looks at the pool.
    pub(crate) fn write_placed(&mut self) -> Result<(), Failure> {
        let (priority, tx) = (self.run.spec.priority, &mut *self.tx);
        for kept in &mut self.jobs {
            let saved = kept.mark == Mark::Changed;
            write_tracked(tx, kept, |tx, job| store::job::insert(tx, job, priority), store::job::save)?;
            (kept.mark, kept.it.version) = (Mark::Clean, kept.it.version + i64::from(saved));
        }
        for kept in &mut self.allocations {
            let saved = kept.mark == Mark::Changed;
            write_tracked(tx, kept, store::allocation::insert, store::allocation::save)?;
            (kept.mark, kept.it.version) = (Mark::Clean, kept.it.version + i64::from(saved));
        }
        for kept in &mut self.instances {
            let saved = kept.mark == Mark::Changed;
            write_tracked(tx, kept, store::instance::insert, store::instance::save)?;
            (kept.mark, kept.it.version) = (Mark::Clean, kept.it.version + i64::from(saved));
        }
        Ok(())
    }

    /// The attempt counts its jobs rightly, as far as they are here.
    fn assert_counted(&self) {
        let attempt = self.attempts.iter().find(|attempt| attempt.it.number == self.run.attempt);
        let Some(counted) = attempt.map(|attempt| &attempt.it.tree.jobs) else { return };
        let here = self.open_here().count() as i64;
        let right = counted.open() > here || counted.counts(self.open_here());
        debug_assert!(right, "{counted:?} for {:?}", self.open_here().collect::<Vec<_>>());
    }

    fn refresh_phase(&mut self) {
        let attempt = self.attempts.iter().find(|attempt| attempt.it.number == self.run.attempt);
        let phases = attempt.map(|attempt| attempt.it.tree.jobs.phases()).unwrap_or_default();
        let phase =
            if self.run.status.is_end() { None } else { model::run::phase(self.run.termination.is_some(), &phases) };
        if phase != self.run.phase {
            let mut run = self.run.clone();
            run.phase = phase;
            self.set_run(run);
        }
    }
}

fn write_tracked<T>(
    tx: &mut Tx,
    kept: &Tracked<T>,
    insert: impl FnOnce(&mut Tx, &T) -> Result<(), Failure>,
    save: impl FnOnce(&mut Tx, &T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match kept.mark {
        Mark::Clean => Ok(()),
        Mark::Changed => save(tx, &kept.it),
        Mark::New => insert(tx, &kept.it),
    }
}
