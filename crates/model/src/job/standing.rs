//! What follows from the row of a job alone: its deadline, its phase, and what can still be asked of it. Changes nothing.

use super::{FreezeState, Job, JobEvent, JobEvent as E, JobStatus as S, LOG_TAIL_LIMIT_MS, LifecycleError};
use crate::run::Phase;
use crate::{Limits, Timestamp};

/// When this job must be looked at although no report arrives. The caller moves it by outages of the control plane.
pub fn deadline(job: &Job, limits: &Limits) -> Option<Wait> {
    match job.status {
        S::Submitted if job.freeze == FreezeState::Frozen => None,
        S::Submitted => Some(Wait { from: job.submitted_at, ms: limits.pending_ms, event: E::WaitedTooLong }),
        S::Provisioning if job.machine_queued.is_some() => {
            Some(Wait { from: job.submitted_at, ms: limits.pending_ms, event: E::LimitPassed })
        }
        S::Provisioning => {
            let ms = limits.boot_ms + job.prepare_ms;
            Some(Wait { from: boots_since(job)?, ms, event: E::LimitPassed })
        }
        S::Pulling => Some(Wait { from: job.accepted_at?, ms: limits.sync_ms, event: E::LimitPassed }),
        S::Terminating => match job.gone_at {
            Some(gone) => Some(Wait { from: gone, ms: LOG_TAIL_LIMIT_MS, event: E::LimitPassed }),
            None => {
                let grace = if job.abort { 0 } else { job.stop_duration_ms };
                Some(Wait { from: job.stop_asked_at?, ms: grace + limits.fence_ms, event: E::LimitPassed })
            }
        },
        S::Running | S::Done | S::Failed | S::Terminated | S::Aborted => None,
    }
}

/// Time in a queue of its provider is no part of a machine's boot.
pub(super) fn boots_since(job: &Job) -> Option<Timestamp> {
    job.machine_started_at.or(job.placed_at)
}

/// A wait for a runner or provider: over `ms` after `from`, not counting outages of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub from: Timestamp,
    pub ms: i64,
    pub event: JobEvent,
}

pub fn phase(job: &Job) -> Option<Phase> {
    Some(match job.status {
        ended if ended.is_end() => return None,
        S::Submitted => Phase::Queued,
        S::Terminating if job.silent_since.is_some() && job.gone_at.is_none() => Phase::Fencing,
        S::Terminating => Phase::Terminating,
        _ if job.lost => Phase::Lost,
        _ if job.silent_since.is_some() => Phase::Unreachable,
        S::Provisioning if job.machine_queued.is_some() => Phase::Queued,
        S::Provisioning => Phase::Provisioning,
        S::Pulling => Phase::Pulling,
        S::Running => Phase::Running,
        _ => return None,
    })
}

/// What it can still be asked: 2 to stop, 1 only to stop at once, 0 nothing.
pub fn can_stop(job: &Job) -> i64 {
    match job.status {
        S::Terminating => i64::from(!job.abort && job.gone_at.is_none()),
        status => 2 * i64::from(!status.is_end()),
    }
}

/// Whether it wants a machine and stands in no pool's list.
pub fn is_in_no_list(job: &Job) -> bool {
    job.status == S::Submitted && job.queue_seq.is_none() && job.freeze == FreezeState::Moving
}

/// Whether it can be asked to stand still or to go on.
pub fn can_move(job: &Job) -> bool {
    !job.status.is_end() && job.status != S::Terminating
}

/// Whether the command may have begun: after that nothing is repeated unless the policy says so.
/// A report that arrives after a limit has passed does not move the job to `running`, but is evidence all the same.
pub fn may_have_started(job: &Job) -> bool {
    job.running_at.is_some()
        || job.started_at.is_some()
        || job.active_ms > 0
        || job.lifecycle_error == Some(LifecycleError::KeeperDied)
}
