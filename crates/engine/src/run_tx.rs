//! One run's working set inside one transaction: the run locked, what belongs to it loaded once, changed by its lives, and written once.
//! Whatever concerns another run is a work item, never a second run_tx.

use crate::EngineContext;
use crate::view::RunSnapshot;
use model::agent::Agent;
use model::allocation::Allocation;
use model::attempt::Attempt;
use model::instance::Instance;
use model::job::Job;
use model::run::Run;
use model::spec::Priority;
use model::step::Step;
use model::task::Task;
use model::workflow::Workflow;
use model::{AllocationId, Failure, InstanceId, JobId, Refused, RunId, StepId, TaskId, Timestamp, Trouble, WorkflowId};
use std::collections::{BTreeMap, BTreeSet};
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
    pub(crate) run: Run,
    mark: Mark,
    pub(crate) attempts: Vec<Tracked<Attempt>>,
    pub(crate) agents: Vec<Tracked<Agent>>,
    pub(crate) tasks: Vec<Tracked<Task>>,
    pub(crate) steps: Vec<Tracked<Step>>,
    pub(crate) jobs: Vec<Tracked<Job>>,
    pub(crate) workflows: Vec<Tracked<Workflow>>,
    pub(crate) allocations: Vec<Tracked<Allocation>>,
    pub(crate) instances: Vec<Tracked<Instance>>,
    told: BTreeSet<InstanceId>,
    /// Rows in whose place a retry has put new ones.
    pub(crate) replaced_tasks: Vec<TaskId>,
    pub(crate) replaced_steps: Vec<StepId>,
    /// Workflows whose nodes are being looked at, and whether one of them caused an event meanwhile.
    pub(crate) advancing: BTreeMap<WorkflowId, bool>,
}

impl<'t> RunTx<'t> {
    /// A run that is being submitted.
    pub(crate) fn fresh(tx: &'t mut Tx, context: &'t EngineContext, run: Run) -> RunTx<'t> {
        let at = tx.at();
        let mut run_tx = RunTx::of(tx, context, run, at);
        run_tx.mark = Mark::New;
        run_tx
    }

    /// A run that exists: its row is locked first.
    pub(crate) fn open(tx: &'t mut Tx, context: &'t EngineContext, id: RunId) -> Result<RunTx<'t>, Failure> {
        let run = store::run::lock(tx, id)?;
        let at = tx.at();
        let attempt = store::attempt::find(tx, run.id, run.attempt)?;
        let jobs = store::job::of_attempt(tx, run.id, run.attempt)?;
        let mut run_tx = RunTx::of(tx, context, run, at);
        run_tx.attempts.extend(attempt.map(Tracked::clean));
        run_tx.jobs.extend(jobs.into_iter().map(Tracked::clean));
        Ok(run_tx)
    }

    fn of(tx: &'t mut Tx, context: &'t EngineContext, run: Run, at: Timestamp) -> RunTx<'t> {
        RunTx {
            tx,
            context,
            at,
            run,
            mark: Mark::Clean,
            attempts: Vec::new(),
            agents: Vec::new(),
            tasks: Vec::new(),
            steps: Vec::new(),
            jobs: Vec::new(),
            workflows: Vec::new(),
            allocations: Vec::new(),
            instances: Vec::new(),
            told: BTreeSet::new(),
            replaced_tasks: Vec::new(),
            replaced_steps: Vec::new(),
            advancing: BTreeMap::new(),
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

    pub(crate) fn job(&self, id: JobId) -> Result<&Job, Failure> {
        self.jobs
            .iter()
            .find(|job| job.it.id == id)
            .map(|job| &job.it)
            .ok_or_else(|| Refused::not_found("job", id).into())
    }

    pub(crate) fn set_job(&mut self, job: Job) {
        match self.jobs.iter_mut().find(|kept| kept.it.id == job.id) {
            Some(kept) => kept.set(job),
            None => self.jobs.push(Tracked::new(job)),
        }
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

    /// A moment that has passed is now: a deadline is asked for as if we had never been away.
    pub(crate) fn wake(&mut self, kind: WorkKind, subject: i64, at: Timestamp) {
        self.tx.wake(kind, subject, at.max(self.at));
    }

    /// Writes every changed row once. Order does not matter below the run's lock; wakes, events and ledger are staged behind.
    pub(crate) fn close(mut self) -> Result<Run, Failure> {
        self.refresh_phase();
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
        for id in &self.replaced_tasks {
            store::task::replaced(tx, *id)?;
        }
        for id in &self.replaced_steps {
            store::step::replaced(tx, *id)?;
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
            Mark::New => store::run::insert(tx, &self.run)?,
        }
        Ok(self.run)
    }

    /// The same for a run that is being submitted, which is shown as it will be found: nobody has to read it back.
    pub(crate) fn close_shown(mut self) -> Result<RunSnapshot, Failure> {
        debug_assert!(self.mark == Mark::New, "a run that was there has a newer version after it is written");
        self.refresh_phase();
        let (number, jobs) = (self.run.attempt, self.jobs.iter().map(|job| &job.it));
        let job = jobs.filter(|job| job.attempt == number).max_by_key(|job| job.id).cloned();
        let (slot, machine) = (job.as_ref().and_then(|j| j.allocation), job.as_ref().and_then(|j| j.instance));
        // Counters are not shown.
        let attempt = self.attempts.iter().map(|a| &a.it).find(|a| a.number == number);
        let attempt = attempt.map(|a| Attempt { tree: Default::default(), ..a.clone() });
        let allocation = self.allocations.iter().map(|a| &a.it).find(|a| Some(a.id) == slot).cloned();
        let instance = self.instances.iter().map(|i| &i.it).find(|i| Some(i.id) == machine).cloned();
        let run = self.close()?;
        // Who will look after it is not decided before the commit.
        Ok(RunSnapshot { run, attempt, job, allocation, instance, beat_at: None })
    }

    fn refresh_phase(&mut self) {
        let attempt = self.run.attempt;
        let phases: Vec<_> =
            self.jobs.iter().filter(|j| j.it.attempt == attempt).filter_map(|j| model::job::phase(&j.it)).collect();
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
