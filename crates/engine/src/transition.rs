//! Applies events to runs, jobs, slots and machines, and carries out the consequences of each transition in the same transaction. What
//! follows from the end of a job or run is in `settlement`.

use crate::intents::launch_run;
use crate::job::stop_reason;
use crate::run_tx::RunTx;
use model::allocation::{Allocation, AllocationConsequence, AllocationEvent, AllocationStatus};
use model::hierarchy::{self, CHUNK, Jobs, Rows};
use model::instance::{Instance, InstanceConsequence, InstanceEvent};
use model::job::{JobConsequence, JobEvent, JobReason};
use model::job_counters::JobPick;
use model::run::{RunConsequence, RunEvent, RunStatus};
use model::spec::RunKind;
use model::{AllocationId, Credits, Failure, InstanceId, JobId, Outcome, PoolId};
use store::{Hint, NewEvent, Tx, WorkKind};

impl RunTx<'_> {
    pub(crate) fn run_event(&mut self, event: RunEvent) -> Result<(), Failure> {
        let Outcome::Moved { next, consequences } = model::run::apply(&self.run, &event, self.at)? else {
            return Ok(());
        };
        let stood_still = !self.run.begins_steps();
        self.set_run(next);
        if stood_still && self.run.begins_steps() && self.run.spec.kind == RunKind::Agents {
            // Steps that were offered before a pause may be taken again.
            self.tx.hint(Hint::Offers(self.run.org));
        }
        self.keep_time();
        // What happened is told before what follows from it.
        let (told, done): (Vec<_>, Vec<_>) =
            consequences.into_iter().partition(|c| matches!(c, RunConsequence::Publish { .. }));
        for consequence in told.into_iter().chain(done) {
            self.run_consequence(consequence)?;
        }
        self.rearm_run();
        self.tell_execution();
        Ok(())
    }

    /// A run of agents is active while it is running: its steps need no machine whose time could be counted.
    fn keep_time(&mut self) {
        if !self.run.spec.kind.has_no_machine_time() {
            return;
        }
        match self.run.status {
            RunStatus::Running => self.begin_active(),
            _ => self.stop_clock(),
        }
    }

    fn run_consequence(&mut self, consequence: RunConsequence) -> Result<(), Failure> {
        match consequence {
            RunConsequence::Publish { kind } => {
                let run = &self.run;
                let body = store::body!({
                    "status": run.status, "attempt": run.attempt, "name": run.name, "outcome": run.outcome, "exit_code": run.exit_code,
                    "reason": run.termination.as_ref().map(|t| t.reason), "last_error": run.last_error, "retry_at": run.retry_at,
                    "by": self.by,
                });
                self.publish(kind, body);
                Ok(())
            }
            RunConsequence::OpenAttempt => self.open_attempt(),
            RunConsequence::Reserve => self.reserve_for_start(),
            RunConsequence::WakeDispatch => self.dispatch(),
            RunConsequence::CreateAgents => self.create_agents(),
            RunConsequence::HoldAgents => self.hold_jobs(),
            RunConsequence::WakeAgents => self.release_jobs(),
            RunConsequence::StopAgents { abort, .. } => self.stop_agents(abort),
            RunConsequence::Settle => self.settle(),
        }
    }

    /// Every live job is asked to stop; agents without one end at once; then the run may be ready for its end. What a commit has no
    /// room for is left to the run's item.
    pub(crate) fn stop_agents(&mut self, abort: bool) -> Result<(), Failure> {
        let reason = self.run.termination.as_ref().map_or(JobReason::TerminatedByServer, |t| stop_reason(t.reason));
        let pick = if abort { JobPick::ToAbort } else { JobPick::ToStop };
        self.ask_jobs(pick, &JobEvent::StopAsked { reason, abort })?;
        hierarchy::stop_agents(self)
    }

    /// What may follow in the run by itself: the next chunk of what ends, pauses or resumes, and agents that may begin. Called by the
    /// holder of the run's item.
    pub(crate) fn go_on(&mut self) -> Result<(), Failure> {
        if !self.has_attempt() || self.run.status.is_end() {
            return Ok(());
        }
        if self.attempt()?.it.tree.unfinished {
            hierarchy::continue_endings(self)?;
            self.continue_jobs()?;
        }
        if let Some(termination) = self.run.termination.clone().filter(|_| !self.run.status.is_end()) {
            return self.stop_agents(termination.abort);
        }
        let tree = &self.attempt()?.it.tree;
        if tree.unfinished {
            return Ok(()); // this commit has done its share
        }
        let jobs = Jobs { all_frozen: tree.jobs.all_frozen(), all_moving: tree.jobs.all_moving() };
        hierarchy::go_on(self, jobs)
    }

    /// Jobs that a commit had no room to hold or to release. In a paused run there are none: it is paused when all are frozen, and a
    /// person or a ticket resumes it.
    fn continue_jobs(&mut self) -> Result<(), Failure> {
        match self.run.status {
            _ if self.run.termination.is_some() => Ok(()),
            RunStatus::Running if self.run.pause_asked.is_some() => self.hold_jobs(),
            RunStatus::Running | RunStatus::Resuming => self.release_jobs(),
            _ => Ok(()),
        }
    }

    /// Asks as many jobs as one commit has room for.
    pub(crate) fn ask_jobs(&mut self, pick: JobPick, event: &JobEvent) -> Result<(), Failure> {
        let jobs = self.pick_jobs(pick, CHUNK + 1)?;
        for job in jobs.iter().take(CHUNK) {
            self.job_event(*job, event.clone())?;
        }
        if jobs.len() > CHUNK {
            let mut attempt = Rows::attempt(self)?;
            attempt.tree.unfinished = true;
            self.set_attempt(attempt)?;
            self.wake_run(self.at);
        }
        Ok(())
    }

    pub(crate) fn job_event(&mut self, id: JobId, event: JobEvent) -> Result<bool, Failure> {
        let before = self.job(id)?.clone();
        let Outcome::Moved { next, consequences } = model::job::apply(&before, &event, self.at)? else {
            return Ok(false);
        };
        self.set_job(next)?;
        for consequence in consequences {
            self.job_consequence(id, consequence)?;
        }
        self.rearm(id)?;
        if event == JobEvent::HeardAgain {
            self.rearm_run(); // it was waited for longer while its machine was silent
        }
        launch_run::advance(self, id)?;
        Ok(true)
    }

    fn job_consequence(&mut self, id: JobId, consequence: JobConsequence) -> Result<(), Failure> {
        let job = self.job(id)?.clone();
        match consequence {
            JobConsequence::TellRunner => {
                if let Some(instance) = job.instance {
                    self.tell(instance);
                }
            }
            JobConsequence::SlotActive => {
                let slot = job.allocation.expect("a job that runs has a slot");
                self.allocation_event(slot, AllocationEvent::SyncComplete)?;
                self.begin_active();
                if let Some(step) = job.step {
                    let begun = hierarchy::begin_rank(self, job.agent)?;
                    debug_assert!(begun.contains(&step.id), "{} begins its own step", job.id);
                } else {
                    // The holder of the agent's item begins its commands, whose inputs it evaluates.
                    self.wake(WorkKind::Agent, job.agent.0, self.at);
                }
                if let Some(due) = self.next_charge()? {
                    self.wake(WorkKind::Run, self.run.id.0, due);
                }
            }
            JobConsequence::SlotEnded { how } => self.slot_ended(id, how)?,
            JobConsequence::Place => self.to_place.push_back(id),
            JobConsequence::FreezeChanged => self.settle_pause()?,
            JobConsequence::LeaveQueue { pool } => self.wake(WorkKind::Pool, pool.0, self.at),
            JobConsequence::EnterQueue => self.wake(WorkKind::Job, id.0, self.at),
            JobConsequence::ChildEnded { reason } => self.job_ended(id, reason)?,
            JobConsequence::GatherLogs => self.wake(WorkKind::Gather, id.0, self.at),
            JobConsequence::Publish { kind } => {
                let body = store::body!({
                    "job": job.id, "attempt": job.attempt, "submission": job.submission, "status": job.status,
                    "reason": job.reason, "instance": job.instance, "warm": job.warm, "exit_code": job.exit_code, "signal": job.signal,
                });
                self.publish(kind, body);
            }
        }
        Ok(())
    }

    pub(crate) fn allocation_event(&mut self, id: AllocationId, event: AllocationEvent) -> Result<(), Failure> {
        let slot = self.allocation(id)?.it.clone();
        slot_event(self, slot, event).map(drop)
    }

    pub(crate) fn instance_event(&mut self, id: InstanceId, event: InstanceEvent) -> Result<(), Failure> {
        let before = self.instance(id)?.it.clone();
        let next = instance_event(self, before, event)?;
        self.set_machine(next)
    }
}

/// Machines and their slots, as one transaction sees them: the transaction of a run changes them in its working set, any other one in
/// their rows.
pub(crate) trait Machines {
    fn tx(&mut self) -> &mut Tx;
    /// The machine, locked.
    fn machine(&mut self, id: InstanceId) -> Result<Instance, Failure>;
    fn set_machine(&mut self, instance: Instance) -> Result<(), Failure>;
    fn pool_of(&mut self, machine: InstanceId) -> Result<Option<PoolId>, Failure>;
    /// The machine's slots that are free, in use or held.
    fn slots_on(&mut self, machine: InstanceId) -> Result<Vec<Allocation>, Failure>;
    fn set_slot(&mut self, slot: Allocation) -> Result<(), Failure>;
    /// The machine's desired document changes with this transaction.
    fn tell_runner(&mut self, machine: InstanceId) -> Result<(), Failure>;
    fn replenish(&mut self, used: AllocationId) -> Result<(), Failure>;
}

impl Machines for Tx {
    fn tx(&mut self) -> &mut Tx {
        self
    }
    fn machine(&mut self, id: InstanceId) -> Result<Instance, Failure> {
        store::instance::lock(self, id)
    }
    fn set_machine(&mut self, instance: Instance) -> Result<(), Failure> {
        store::instance::save(self, &instance)
    }
    fn pool_of(&mut self, machine: InstanceId) -> Result<Option<PoolId>, Failure> {
        Ok(store::instance::find(self, machine)?.map(|instance| instance.pool))
    }
    fn slots_on(&mut self, machine: InstanceId) -> Result<Vec<Allocation>, Failure> {
        store::allocation::kept_on(self, machine)
    }
    fn set_slot(&mut self, slot: Allocation) -> Result<(), Failure> {
        store::allocation::save(self, &slot)
    }
    fn tell_runner(&mut self, machine: InstanceId) -> Result<(), Failure> {
        store::instance::tell(self, machine)
    }
    /// A slot is used up by the job of a run, so its successor is opened in the run's transaction.
    fn replenish(&mut self, _: AllocationId) -> Result<(), Failure> {
        Ok(())
    }
}

impl Machines for RunTx<'_> {
    fn tx(&mut self) -> &mut Tx {
        self.tx
    }
    fn machine(&mut self, id: InstanceId) -> Result<Instance, Failure> {
        self.instance(id).map(|kept| kept.it.clone())
    }
    fn set_machine(&mut self, instance: Instance) -> Result<(), Failure> {
        self.instance(instance.id)?.set(instance);
        Ok(())
    }
    fn pool_of(&mut self, machine: InstanceId) -> Result<Option<PoolId>, Failure> {
        Ok(Some(self.instance(machine)?.it.pool))
    }
    fn slots_on(&mut self, machine: InstanceId) -> Result<Vec<Allocation>, Failure> {
        let mut slots = store::allocation::kept_on(self.tx, machine)?;
        for kept in self.allocations.iter().filter(|kept| kept.it.instance == machine) {
            match slots.iter_mut().find(|slot| slot.id == kept.it.id) {
                Some(slot) => *slot = kept.it.clone(),
                None if kept.is_new() => slots.push(kept.it.clone()),
                None => {}
            }
        }
        Ok(slots)
    }
    fn set_slot(&mut self, slot: Allocation) -> Result<(), Failure> {
        self.allocation(slot.id)?.set(slot);
        Ok(())
    }
    fn tell_runner(&mut self, machine: InstanceId) -> Result<(), Failure> {
        self.tell(machine);
        Ok(())
    }
    fn replenish(&mut self, used: AllocationId) -> Result<(), Failure> {
        self.open_next_slot(used)
    }
}

/// One event of a slot. What is returned is written already.
pub(crate) fn slot_event(
    machines: &mut impl Machines,
    slot: Allocation,
    event: AllocationEvent,
) -> Result<Allocation, Failure> {
    let at = machines.tx().at();
    let Outcome::Moved { next, consequences } = model::allocation::apply(&slot, &event, at)? else { return Ok(slot) };
    machines.set_slot(next.clone())?;
    for consequence in consequences {
        match consequence {
            AllocationConsequence::TellRunner => machines.tell_runner(next.instance)?,
            AllocationConsequence::WakeAt { at } => machines.tx().wake(WorkKind::Allocation, next.id.0, at),
            AllocationConsequence::WakePool => {
                if let Some(pool) = machines.pool_of(next.instance)? {
                    machines.tx().wake(WorkKind::Pool, pool.0, at);
                }
            }
            AllocationConsequence::Replenish => machines.replenish(next.id)?,
        }
    }
    Ok(next)
}

/// One event of a machine. The caller writes what is returned.
pub(crate) fn instance_event(
    machines: &mut impl Machines,
    mut instance: Instance,
    event: InstanceEvent,
) -> Result<Instance, Failure> {
    let at = machines.tx().at();
    // From here on its org does not pay for it any more.
    if matches!(event, InstanceEvent::TerminateAsked | InstanceEvent::ProviderConfirmedGone) {
        crate::idle_billing::close(machines, &mut instance)?;
    }
    let Outcome::Moved { next, consequences } = model::instance::apply(&instance, &event, at)? else {
        return Ok(instance);
    };
    for consequence in consequences {
        instance_consequence(machines, &next, consequence)?;
    }
    if !next.status.is_open() {
        crate::manifest::machine_gone(machines.tx(), &next)?;
        machines.tx().wake(WorkKind::Instance, next.id.0, at); // its row is deleted once no folder is kept there
    }
    Ok(next)
}

fn instance_consequence(
    machines: &mut impl Machines,
    instance: &Instance,
    consequence: InstanceConsequence,
) -> Result<(), Failure> {
    let tx = machines.tx();
    let at = tx.at();
    match consequence {
        InstanceConsequence::TellRunner => tx.hint(Hint::Instance(instance.id)),
        // What concerns a run is done by its job's item, which looks at the machine's state itself.
        InstanceConsequence::JobsSilent
        | InstanceConsequence::JobsQueued
        | InstanceConsequence::JobsStarted
        | InstanceConsequence::JobsHeard
        | InstanceConsequence::JobsLost
        | InstanceConsequence::JobsGone => {
            if let Some(job) = store::job::on_instance(tx, instance.id)? {
                tx.wake(WorkKind::Job, job.id.0, at);
            }
        }
        InstanceConsequence::SlotsFailed => fail_slots(machines, instance)?,
        InstanceConsequence::WakePool => tx.wake(WorkKind::Pool, instance.pool.0, at),
        InstanceConsequence::Publish { kind } => {
            let body = store::body!({ "instance": instance.id, "name": instance.name, "status": instance.status });
            tx.event(NewEvent { org: instance.org, run: None, kind, body });
        }
    }
    Ok(())
}

/// Free slots go with their machine; one in use ends with its job. The runner is told by the machine's own event.
fn fail_slots(machines: &mut impl Machines, instance: &Instance) -> Result<(), Failure> {
    let at = machines.tx().at();
    let failed = AllocationEvent::LifecycleFailed { replenish: false, hold_until: None };
    for slot in machines.slots_on(instance.id)? {
        if slot.account.left() > Credits::ZERO {
            machines.tx().wake(WorkKind::Allocation, slot.id.0, at); // a hold that was paid ahead may end with its machine
        }
        if slot.status != AllocationStatus::Available {
            continue;
        }
        if let Outcome::Moved { next, .. } = model::allocation::apply(&slot, &failed, at)? {
            machines.set_slot(next)?;
            machines.tx().wake(WorkKind::Pool, instance.pool.0, at);
        }
    }
    Ok(())
}
