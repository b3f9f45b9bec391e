//! Jobs, slots and machines: what a placement, a report, a silence or a loss does to each of them and to the agent above.
//! Part of the stand-in for the engine; the run and its money are in `settlement`.

use crate::hierarchy::agent_id;
use crate::life::Id;
use crate::samples::{self, NOW, error};
use crate::settlement::{Commit, Done, Origin, Stop, read};
use crate::world::{free_number, spawning};
use model::agent::AgentStatus;
use model::allocation::{AllocationConsequence, AllocationEvent, AllocationStatus};
use model::hierarchy;
use model::instance::{InstanceConsequence, InstanceEvent, InstanceStatus};
use model::job::{JobConsequence, JobEvent, JobReason, SlotEnd};
use model::run::RunStatus;
use model::spec::RetryEvent;
use model::*;

impl Commit<'_> {
    pub fn claim(&mut self, job: usize, slot: usize) -> Done {
        let (allocation, machine) = (self.lives.slot.get(self.world.slots[slot]).id, self.machine_of(slot));
        let ready = machine.is_some_and(|it| self.instance_status(it) == InstanceStatus::Ready);
        if !ready {
            return Err(Stop::Nothing);
        }
        let (instance, id) =
            (self.lives.slot.get(self.world.slots[slot]).instance, self.lives.job.get(self.world.jobs[job]).id);
        self.job(job, &JobEvent::Placed { instance, allocation, warm: true, price_micro: 0 }, Origin::Outside)?;
        self.slot(slot, &AllocationEvent::Claimed { job: id }, Origin::Outside)
    }

    /// The slot of a machine made for a job is born claimed (R94).
    pub fn spawn(&mut self, job: usize) -> Done {
        let number = free_number(self.world.instances.iter().map(|it| self.lives.instance.get(*it).id.0));
        let machine = self.lives.instance.keep(spawning(number));
        self.world.instances.push(machine);
        let slot = self.open_slot(InstanceId(number));
        let allocation = self.lives.slot.get(self.world.slots[slot]).id;
        let id = self.lives.job.get(self.world.jobs[job]).id;
        self.slot(slot, &AllocationEvent::Claimed { job: id }, Origin::Within)?;
        let placed = JobEvent::Placed { instance: InstanceId(number), allocation, warm: false, price_micro: 0 };
        self.job(job, &placed, Origin::Outside)
    }

    fn open_slot(&mut self, instance: InstanceId) -> usize {
        let number = free_number(self.world.slots.iter().map(|it| self.lives.slot.get(*it).id.0));
        let slot = model::allocation::Allocation { id: AllocationId(number), instance, ..samples::slot() };
        self.world.slots.push(self.lives.slot.keep(slot));
        self.world.slots.len() - 1
    }

    pub fn lose_place(&mut self, job: usize) -> Done {
        let allocation = self.lives.job.get(self.world.jobs[job]).allocation;
        self.job(job, &JobEvent::PlaceLost, Origin::Outside)?;
        self.release(allocation, SlotEnd::Undone)
    }

    /// What the engine does with a slot whose job has ended: a claim is undone only while the machine is well.
    fn release(&mut self, allocation: Option<AllocationId>, how: SlotEnd) -> Done {
        let Some(slot) = allocation.and_then(|id| self.world.slot_at(self.lives, id)) else { return Ok(()) };
        let machine = self.machine_of(slot);
        let ready = machine.is_some_and(|it| self.instance_status(it) == InstanceStatus::Ready);
        let event = match how {
            SlotEnd::Used => AllocationEvent::RunFinished { hold_until: NOW + 5 },
            SlotEnd::Undone if ready => AllocationEvent::RolledBack { workdir: "work_2".into() },
            SlotEnd::Failed => AllocationEvent::LifecycleFailed { replenish: true, hold_until: None },
            SlotEnd::Undone | SlotEnd::Interrupted | SlotEnd::Fenced => {
                AllocationEvent::LifecycleFailed { replenish: false, hold_until: None }
            }
        };
        self.slot(slot, &event, Origin::Within)?;
        match machine.filter(|_| how == SlotEnd::Interrupted) {
            Some(machine) => self.machine(machine, &InstanceEvent::TerminateAsked, Origin::Within),
            None => Ok(()),
        }
    }

    pub fn slot(&mut self, slot: usize, event: &AllocationEvent, from: Origin) -> Done {
        let answer = self.lives.slot.step(self.world.slots[slot], event);
        let Some((id, consequences)) = read(answer, from, allocation::name(event))? else { return Ok(()) };
        let before = self.lives.slot.get(self.world.slots[slot]).debug_hold_until;
        let after = self.lives.slot.get(id).debug_hold_until;
        if before > after && *event != AllocationEvent::HoldEnded {
            return Err(Stop::Broken(format!("a hold was shortened from {before:?} to {after:?}")));
        }
        self.world.slots[slot] = id;
        if consequences.contains(&AllocationConsequence::Replenish) {
            if self.machine_of(slot).is_some_and(|it| self.instance_status(it) == InstanceStatus::Ready) {
                self.open_slot(self.lives.slot.get(id).instance);
            }
            if !self.scope.holds {
                self.slot(slot, &AllocationEvent::HoldEnded, Origin::Within)?;
            }
        }
        Ok(())
    }

    pub fn machine(&mut self, machine: usize, event: &InstanceEvent, from: Origin) -> Done {
        let answer = self.lives.instance.step(self.world.instances[machine], event);
        let Some((id, consequences)) = read(answer, from, instance::name(event))? else { return Ok(()) };
        self.world.instances[machine] = id;
        let name = self.lives.instance.get(id).id;
        for consequence in consequences.iter() {
            match consequence {
                InstanceConsequence::JobsQueued => {
                    self.jobs_on(name, &JobEvent::MachineQueued { why: "no nodes are free".into() })?
                }
                InstanceConsequence::JobsStarted => self.jobs_on(name, &JobEvent::MachineStarted)?,
                InstanceConsequence::JobsSilent => self.jobs_on(name, &JobEvent::FellSilent)?,
                InstanceConsequence::JobsHeard => self.jobs_on(name, &JobEvent::HeardAgain)?,
                InstanceConsequence::JobsLost => self.jobs_on(name, &JobEvent::DeclaredLost)?,
                InstanceConsequence::JobsGone => self.jobs_on(name, &JobEvent::GaveUpOn)?,
                InstanceConsequence::SlotsFailed => self.fail_slots_on(name)?,
                InstanceConsequence::TellRunner
                | InstanceConsequence::WakePool
                | InstanceConsequence::Publish { .. } => {}
            }
        }
        Ok(())
    }

    fn jobs_on(&mut self, instance: InstanceId, event: &JobEvent) -> Done {
        for job in 0..self.world.jobs.len() {
            let it = self.lives.job.get(self.world.jobs[job]);
            if it.instance == Some(instance) && !it.status.is_end() {
                self.job(job, event, Origin::Within)?;
            }
        }
        Ok(())
    }

    fn fail_slots_on(&mut self, instance: InstanceId) -> Done {
        for slot in 0..self.world.slots.len() {
            let it = self.lives.slot.get(self.world.slots[slot]);
            if it.instance == instance && it.status != AllocationStatus::Complete {
                self.slot(
                    slot,
                    &AllocationEvent::LifecycleFailed { replenish: false, hold_until: None },
                    Origin::Within,
                )?;
            }
        }
        Ok(())
    }

    pub fn job(&mut self, job: usize, event: &JobEvent, from: Origin) -> Done {
        let answer = self.lives.job.step(self.world.jobs[job], event);
        let Some((id, consequences)) = read(answer, from, job::name(event))? else { return Ok(()) };
        // An ended job forgets where it was: it is asked before.
        let allocation = self.lives.job.get(self.world.jobs[job]).allocation;
        let before = self.world.jobs[job];
        self.world.jobs[job] = id;
        self.count_job(Some(before), id);
        for consequence in consequences.iter() {
            match consequence {
                JobConsequence::SlotActive => {
                    let slot = allocation.and_then(|it| self.world.slot_at(self.lives, it));
                    let slot = slot.ok_or_else(|| Stop::Broken("a running job has no slot".into()))?;
                    self.slot(slot, &AllocationEvent::SyncComplete, Origin::Within)?;
                    hierarchy::begin_rank(self, self.lives.job.get(id).agent)?;
                }
                JobConsequence::SlotEnded { how } => self.release(allocation, *how)?,
                JobConsequence::ChildEnded { reason } => self.submission_ended(id, *reason)?,
                JobConsequence::TellRunner
                | JobConsequence::LeaveQueue { .. }
                | JobConsequence::EnterQueue
                | JobConsequence::Place
                | JobConsequence::FreezeChanged
                | JobConsequence::GatherLogs
                | JobConsequence::Publish { .. } => {}
            }
        }
        Ok(())
    }

    fn submission_ended(&mut self, job: Id, reason: JobReason) -> Done {
        let (agent, submission) = (self.lives.job.get(job).agent.0 as usize - 1, self.lives.job.get(job).submission);
        let run = self.lives.run.get(self.world.run);
        let infrastructure = matches!(reason.retry_event(), Some(RetryEvent::NoCapacity | RetryEvent::Interruption));
        let goes_on = run.termination.is_none() && run.status == RunStatus::Running;
        if infrastructure && goes_on && submission < self.scope.submissions {
            return hierarchy::resubmit_rank(self, agent_id(agent), 15_000, &error());
        }
        let id = agent_id(agent);
        match reason.agent_end() {
            AgentStatus::Completed => hierarchy::complete_rank(self, id),
            AgentStatus::Failed => hierarchy::fail_rank(self, id, reason.run_reason(), error()),
            _ => hierarchy::cancel_rank(self, id),
        }
    }

    /// The attempt counts its jobs as the engine does.
    pub fn count_job(&mut self, before: Option<Id>, after: Id) {
        let last = self.world.attempts.len() - 1;
        let (before, after) = (before.map(|id| self.lives.job.get(id).clone()), self.lives.job.get(after).clone());
        let attempt = self.world.attempts[last];
        self.world.attempts[last] =
            self.lives.attempt.edited(attempt, |attempt| attempt.tree.jobs.shift(before.as_ref(), &after));
    }

    fn machine_of(&self, slot: usize) -> Option<usize> {
        self.world.instance_at(self.lives, self.lives.slot.get(self.world.slots[slot]).instance)
    }

    fn instance_status(&self, machine: usize) -> InstanceStatus {
        self.lives.instance.get(self.world.instances[machine]).status
    }
}
