//! Counters of an attempt's open jobs, by phase and by freeze state, so that "may it end?", "does everything stand still?" and "what does
//! an hour cost?" are answered without reading the jobs.

use crate::job::{self, FreezeState, Job, JobStatus};
use crate::run::Phase;
use crate::{Credits, JobId, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct JobCounters {
    /// The job that was submitted last: ids of an attempt's jobs grow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<JobId>,
    // Open jobs by phase.
    #[serde(skip_serializing_if = "is_zero")]
    pub queued: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub provisioning: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub pulling: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub running: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub terminating: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub unreachable: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub fencing: i64,
    /// Jobs whose status is `running`, heard or not.
    #[serde(skip_serializing_if = "is_zero")]
    pub active: i64,
    /// What an hour of the active jobs costs, and the most that it has cost so far.
    #[serde(skip_serializing_if = "is_zero")]
    pub hourly_micro: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub most_hourly_micro: i64,
    // Open jobs by freeze state. One that is on its way to its end neither stands still nor goes on.
    #[serde(skip_serializing_if = "is_zero")]
    pub moving: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub frozen: i64,
    /// Compute of every active job is charged at least up to here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charged_to: Option<Timestamp>,
}

fn is_zero(count: &i64) -> bool {
    *count == 0
}

impl JobCounters {
    /// The counters of exactly these jobs; what only an attempt remembers is left out.
    pub fn of<'j>(jobs: impl IntoIterator<Item = &'j Job>) -> JobCounters {
        let mut counters = JobCounters::default();
        jobs.into_iter().for_each(|job| counters.count(job, 1));
        counters
    }

    /// A job has changed, or is new.
    pub fn shift(&mut self, before: Option<&Job>, after: &Job) {
        if let Some(before) = before {
            self.count(before, -1);
        }
        self.count(after, 1);
        self.most_hourly_micro = self.most_hourly_micro.max(self.hourly_micro);
        self.charged_to = match after.charged_to.filter(|_| after.status == JobStatus::Running) {
            _ if self.active == 0 => None,
            Some(at) => Some(self.charged_to.map_or(at, |earliest| earliest.min(at))),
            None => self.charged_to,
        };
    }

    fn count(&mut self, job: &Job, by: i64) {
        let Some(phase) = job::phase(job) else { return };
        *self.at(phase) += by;
        if job.status == JobStatus::Running {
            self.active += by;
            self.hourly_micro += by * job.price_micro;
        }
        match job.freeze {
            _ if job.status == JobStatus::Terminating => {}
            FreezeState::Moving => self.moving += by,
            FreezeState::Frozen => self.frozen += by,
            FreezeState::Freezing | FreezeState::Thawing => {}
        }
    }

    fn at(&mut self, phase: Phase) -> &mut i64 {
        match phase {
            Phase::Queued => &mut self.queued,
            Phase::Provisioning => &mut self.provisioning,
            Phase::Pulling => &mut self.pulling,
            Phase::Running => &mut self.running,
            Phase::Terminating => &mut self.terminating,
            Phase::Unreachable => &mut self.unreachable,
            Phase::Lost => &mut self.lost,
            Phase::Fencing => &mut self.fencing,
        }
    }

    /// Phases in which at least one job is.
    pub fn phases(&self) -> Vec<Phase> {
        let mut counted = self.clone();
        Phase::ALL.iter().copied().filter(|phase| *counted.at(*phase) > 0).collect()
    }

    pub fn open(&self) -> i64 {
        let started = self.running + self.terminating + self.unreachable + self.lost + self.fencing;
        self.queued + self.provisioning + self.pulling + started
    }

    pub fn all_frozen(&self) -> bool {
        self.frozen == self.open()
    }

    pub fn all_moving(&self) -> bool {
        self.moving == self.open()
    }

    pub fn silent(&self) -> i64 {
        self.unreachable + self.lost + self.fencing
    }

    pub fn hourly(&self) -> Credits {
        Credits(self.hourly_micro)
    }

    /// Whether these are the counters of exactly these jobs. What only an attempt remembers is not compared.
    pub fn counts<'j>(&self, jobs: impl IntoIterator<Item = &'j Job>) -> bool {
        let (last, most_hourly_micro, charged_to) = (self.last, self.most_hourly_micro, self.charged_to);
        JobCounters { last, most_hourly_micro, charged_to, ..JobCounters::of(jobs) } == *self
    }
}

/// Which open jobs of an attempt are meant, in order of their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPick {
    Open,
    /// Whose status is `running`.
    Active,
    /// Not yet asked to stop, or not yet to abort.
    ToStop,
    ToAbort,
    /// Not yet asked to stand still, or to go on.
    ToHold,
    ToRelease,
}

impl JobPick {
    pub fn fits(self, job: &Job) -> bool {
        match self {
            JobPick::Open => !job.status.is_end(),
            JobPick::Active => job.status == JobStatus::Running,
            JobPick::ToStop => job::can_stop(job) == 2,
            JobPick::ToAbort => job::can_stop(job) >= 1,
            JobPick::ToHold => job::can_move(job) && matches!(job.freeze, FreezeState::Moving | FreezeState::Thawing),
            JobPick::ToRelease => {
                job::can_move(job) && matches!(job.freeze, FreezeState::Freezing | FreezeState::Frozen)
            }
        }
    }
}
