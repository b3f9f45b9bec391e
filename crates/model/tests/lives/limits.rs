//! When a run or a job is looked at although nothing happens: by the limits that are set, whatever they are.

use crate::samples;
use model::job::{self, Job, JobStatus};
use model::run::{self, Run, RunStatus};
use model::spec::OnLostControl;
use model::{Limits, Timestamp};

/// All different, so that none can stand for another.
const LIMITS: Limits = Limits {
    pending_ms: 1_000,
    paused_ms: 2_000,
    resuming_ms: 300,
    boot_ms: 400,
    sync_ms: 500,
    fence_ms: 60,
    max_duration_grace_ms: 70,
    silent_grace_ms: 80,
    min_credits_to_retry: 10,
};

#[test]
fn a_run_waits_as_long_as_the_limits_say() {
    let due = |status: RunStatus| {
        let run = Run { status, since: Timestamp(5), ..samples::run() };
        run::deadline(&run, &LIMITS, false).map(|(due, _)| due.ms() - 5)
    };
    use RunStatus::*;
    assert_eq!([Pending, Retrying, Paused, Resuming].map(due), [Some(1_000), Some(1_000), Some(2_000), Some(300)]);
    assert_eq!([Created, Completed, Failed, Cancelled].map(due), [None; 4]);
}

#[test]
fn a_job_waits_as_long_as_the_limits_say() {
    let at = Some(Timestamp(5));
    let job = Job {
        submitted_at: Timestamp(5),
        placed_at: at,
        accepted_at: at,
        stop_asked_at: at,
        stop_duration_ms: 7,
        ..samples::job()
    };
    let due = |status, abort| {
        let wait = job::deadline(&Job { status, abort, ..job.clone() }, &LIMITS);
        wait.map(|wait| wait.from.ms() + wait.ms - 5)
    };
    for (status, abort, expected) in [
        (JobStatus::Submitted, false, Some(1_000)),
        (JobStatus::Provisioning, false, Some(400)),
        (JobStatus::Pulling, false, Some(500)),
        (JobStatus::Running, false, None),
        (JobStatus::Terminating, false, Some(67)),
        (JobStatus::Terminating, true, Some(60)),
    ] {
        assert_eq!(due(status, abort), expected, "{status}");
    }
}

/// R147: a machine that works to the end by itself may have kept `max_duration`; it is waited for.
#[test]
fn a_silent_machine_that_finishes_by_itself_has_longer_to_report() {
    let due = |policy, silent| {
        let mut run = Run { status: RunStatus::Running, active_since: Some(Timestamp(0)), ..samples::run() };
        run.active_ms = 100;
        run.spec.max_duration_ms = Some(1_000);
        run.spec.on_lost_control = policy;
        run::deadline(&run, &LIMITS, silent).map(|(due, _)| due.ms())
    };
    assert_eq!(due(OnLostControl::Finish, false), Some(970));
    assert_eq!(due(OnLostControl::Finish, true), Some(980));
    assert_eq!(due(OnLostControl::Stop, true), Some(970), "it ends its job itself");
}
