//! How long a run's log is kept: as rows, which are read quickly, then as one file for each job, then not at all. Counted from
//! the end of the run; a run that is open keeps everything.

use crate::bug;
use crate::step::StepTry;
use crate::time::DAY;
use crate::{JobId, Refused, StepId, Timestamp};
use serde::{Deserialize, Serialize};

/// One sequence of bytes: what a job has written whose one step is a plain task's command, or what one try of a command step has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogId {
    Job(JobId),
    Step(StepTry),
}

impl LogId {
    /// As it is stored. Tries are counted from 1, and a job has none.
    pub fn key(self) -> (i64, i64) {
        match self {
            LogId::Job(job) => (job.0, 0),
            LogId::Step(step) => (step.id.0, step.number),
        }
    }

    pub fn from_key(subject: i64, number: i64) -> LogId {
        match number {
            0 => LogId::Job(JobId(subject)),
            number => LogId::Step(StepTry { id: StepId(subject), number }),
        }
    }
}

impl From<JobId> for LogId {
    fn from(job: JobId) -> LogId {
        LogId::Job(job)
    }
}

impl From<StepTry> for LogId {
    fn from(step: StepTry) -> LogId {
        LogId::Step(step)
    }
}

impl std::fmt::Display for LogId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LogId::Job(job) => job.fmt(f),
            LogId::Step(step) => step.fmt(f),
        }
    }
}

/// `[logs]` in the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogLimits {
    /// Rows stay so long after the end of the run.
    pub hot_ms: i64,
    /// The file stays so long after the end of the run; then only a mark is left.
    pub keep_ms: i64,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits { hot_ms: 7 * DAY, keep_ms: 30 * DAY }
    }
}

/// What is due for a log that is old enough to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aged {
    /// Nothing yet: its time counts from here on.
    KeptFrom(Timestamp),
    /// The rows go; the file is read from now on.
    RowsGo,
    Deleted,
}

impl LogLimits {
    /// `ended_at`: the end of the run, none while it is open. A run may be tried again, and then it ends later.
    pub fn aged(&self, ended_at: Option<Timestamp>, at: Timestamp) -> Aged {
        let ended_at = if bug!(log_deleted_under_its_run) { ended_at.or(Some(Timestamp(0))) } else { ended_at };
        match ended_at {
            None => Aged::KeptFrom(at), // it cannot end before now
            Some(end) if at >= end + self.keep_ms => Aged::Deleted,
            Some(end) if at >= end + self.hot_ms => Aged::RowsGo,
            Some(end) => Aged::KeptFrom(end),
        }
    }

    pub fn check(&self) -> Result<(), Refused> {
        if self.hot_ms <= 0 {
            return Err(Refused::invalid("logs.hot_ms", "must be positive"));
        }
        if self.keep_ms < self.hot_ms {
            return Err(Refused::invalid(
                "logs.keep_ms",
                format!("must not be smaller than logs.hot_ms ({})", self.hot_ms),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_by_the_end_of_its_run() {
        let limits = LogLimits::default();
        let end = Timestamp(1000);
        let table = [
            (None, end + 90 * DAY, Aged::KeptFrom(end + 90 * DAY)),
            (Some(end), end, Aged::KeptFrom(end)),
            (Some(end), end + 7 * DAY - 1, Aged::KeptFrom(end)),
            (Some(end), end + 7 * DAY, Aged::RowsGo),
            (Some(end), end + 30 * DAY - 1, Aged::RowsGo),
            (Some(end), end + 30 * DAY, Aged::Deleted),
        ];
        for (ended_at, at, aged) in table {
            assert_eq!(limits.aged(ended_at, at), aged, "ended {ended_at:?}, at {at:?}");
        }
        assert!(
            LogLimits { hot_ms: 5, keep_ms: 4 }.check().is_err()
                && LogLimits { hot_ms: 0, keep_ms: 4 }.check().is_err()
        );
    }
}
