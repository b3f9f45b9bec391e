//! The job's finer points, one sentence each: whose reason counts, what is awaited and for how long, what a fence means.

use crate::samples;
use crate::walks::job_events;
use model::job::{self, Job, JobConsequence, JobEvent, JobReason, JobStatus, LifecycleError, SlotEnd};
use model::run::{Phase, phase as run_phase};
use model::time::{MINUTE, SECOND};
use model::{AllocationId, InstanceId, Limits, Outcome, PoolId, Timestamp};

const PLACED: JobEvent =
    JobEvent::Placed { instance: InstanceId(1), allocation: AllocationId(1), warm: true, price_micro: 5 };
const SYNCED: JobEvent = JobEvent::SyncComplete { blobs: 0 };

fn ended(reason: JobReason, final_offset: i64) -> JobEvent {
    JobEvent::Ended {
        reason,
        exit_code: Some(1),
        signal: None,
        message: None,
        lifecycle_error: None,
        final_offset,
        active_ms: 7,
        ended_ago_ms: 0,
    }
}
/// An end that the command did not come to by itself.
fn broken(error: LifecycleError) -> JobEvent {
    JobEvent::Ended {
        reason: JobReason::ExecutorError,
        exit_code: None,
        signal: None,
        message: None,
        lifecycle_error: Some(error),
        final_offset: 0,
        active_ms: 0,
        ended_ago_ms: 0,
    }
}
fn stop(reason: JobReason, abort: bool) -> JobEvent {
    JobEvent::StopAsked { reason, abort }
}

/// What a job becomes, and what followed last.
fn after(events: &[(i64, JobEvent)]) -> (Job, Vec<JobConsequence>) {
    events.iter().fold((samples::job(), vec![]), |(job, last), (at, event)| {
        match job::apply(&job, event, Timestamp(*at)).unwrap_or_else(|refused| panic!("{event:?}: {refused}")) {
            Outcome::Moved { next, consequences } => (next, consequences),
            Outcome::Unchanged => (job, last),
        }
    })
}

fn running() -> Vec<(i64, JobEvent)> {
    vec![(1, PLACED), (2, JobEvent::Accepted), (3, SYNCED), (4, JobEvent::CommandStarted { unenforced: None })]
}

fn run_on(events: &[(i64, JobEvent)]) -> (Job, Vec<JobConsequence>) {
    after(&[&running()[..], events].concat())
}

fn due(job: &Job) -> i64 {
    let wait = job::deadline(job, &Limits::default()).expect("it waits for somebody");
    wait.from.ms() + wait.ms
}

#[test]
fn the_first_reason_wins() {
    use JobReason::*;
    let table = [
        (vec![ended(DoneByRunner, 0)], JobStatus::Done, DoneByRunner),
        (vec![stop(TerminatedByUser, false), ended(DoneByRunner, 0)], JobStatus::Terminated, TerminatedByUser),
        (
            vec![ended(DoneByRunner, 9), stop(TerminatedByUser, false), JobEvent::LimitPassed],
            JobStatus::Done,
            DoneByRunner,
        ),
        (
            vec![stop(MaxDuration, false), stop(AbortedByUser, true), ended(ExitedWithError, 0)],
            JobStatus::Terminated,
            MaxDuration,
        ),
        (vec![stop(AbortedByUser, true), JobEvent::GaveUpOn], JobStatus::Aborted, AbortedByUser),
        (vec![JobEvent::GaveUpOn, ended(DoneByRunner, 0)], JobStatus::Failed, InstanceLost),
        (vec![stop(Budget, false), JobEvent::LimitPassed, ended(DoneByRunner, 0)], JobStatus::Terminated, Budget),
    ];
    for (events, status, reason) in table {
        let events: Vec<_> = events.into_iter().map(|event| (10, event)).collect();
        let (job, _) = run_on(&events);
        assert_eq!((job.status, job.reason), (status, Some(reason)), "{events:?}");
    }
}

#[test]
fn how_it_went_is_kept_whoever_asked_for_the_end() {
    let (job, _) =
        run_on(&[(10, stop(JobReason::TerminatedByUser, false)), (11, ended(JobReason::ExitedWithError, 0))]);
    assert_eq!((job.exit_code, job.active_ms, job.reason), (Some(1), 7, Some(JobReason::TerminatedByUser)));
}

#[test]
fn what_is_said_after_the_end_changes_nothing() {
    for reason in JobReason::ALL {
        let job =
            Job { status: reason.end(), reason: Some(*reason), silent_since: Some(Timestamp(1)), ..samples::job() };
        for event in job_events() {
            let answer = job::apply(&job, &event, Timestamp(99));
            assert!(!matches!(answer, Ok(Outcome::Moved { .. })), "{reason} and then {event:?}");
        }
    }
}

#[test]
fn the_end_waits_for_the_tail_of_the_log_and_no_longer() {
    let (waiting, _) = run_on(&[(10, JobEvent::Logged { to: 5 }), (20, ended(JobReason::DoneByRunner, 9))]);
    assert_eq!((waiting.status, due(&waiting)), (JobStatus::Terminating, 20 + MINUTE));
    let table = [
        (JobEvent::Logged { to: 8 }, JobStatus::Terminating, false),
        (JobEvent::Logged { to: 9 }, JobStatus::Done, false),
        (JobEvent::LimitPassed, JobStatus::Done, true),
        (JobEvent::GaveUpOn, JobStatus::Done, true),
    ];
    for (event, status, cut) in table {
        let Ok(Outcome::Moved { next, .. }) = job::apply(&waiting, &event, Timestamp(30)) else { panic!("{event:?}") };
        assert_eq!((next.status, next.log_cut), (status, cut), "{event:?}");
    }
}

#[test]
fn a_log_never_runs_backwards() {
    let before_each = [vec![(1, PLACED)], vec![(1, PLACED), (2, JobEvent::Accepted)], running()];
    for events in before_each {
        let logged =
            [(5, JobEvent::Logged { to: 9 }), (6, JobEvent::Logged { to: 4 }), (7, JobEvent::Logged { to: 9 })];
        let (job, _) = after(&[&events[..], &logged].concat());
        assert_eq!(job.logged_to, 9, "{}", job.status);
    }
}

#[test]
fn who_does_not_answer_is_fenced_a_minute_after_the_kill() {
    let (asked, _) = run_on(&[(100, stop(JobReason::TerminatedByUser, false))]);
    assert_eq!((asked.remove_at, due(&asked)), (Some(Timestamp(100 + 10 * SECOND)), 100 + 10 * SECOND + MINUTE));
    let (aborted, _) = run_on(&[(100, stop(JobReason::AbortedByUser, true))]);
    assert_eq!((aborted.remove_at, due(&aborted)), (Some(Timestamp(100)), 100 + MINUTE));
}

#[test]
fn an_abort_after_a_stop_leaves_time_to_obey_and_is_never_later_than_the_stop() {
    for (at, expected) in [(5 * SECOND, 5 * SECOND + MINUTE), (40 * SECOND, 10 * SECOND + MINUTE)] {
        let events = [(0, stop(JobReason::TerminatedByUser, false)), (at, stop(JobReason::AbortedByUser, true))];
        let (job, consequences) = run_on(&events);
        assert_eq!((due(&job), job.abort), (expected, true));
        assert_eq!(consequences, [JobConsequence::TellRunner]);
        let again = job::apply(&job, &stop(JobReason::AbortedByUser, true), Timestamp(at + 1));
        assert_eq!(again, Ok(Outcome::Unchanged), "asked twice");
    }
}

#[test]
fn a_slot_ends_by_what_its_runner_said_and_not_by_who_asked_first() {
    use JobReason::*;
    use SlotEnd::{Failed, Fenced, Undone, Used};
    let stopped = (10, stop(TerminatedByUser, false));
    let pulling = || vec![(1, PLACED), (2, JobEvent::Accepted)];
    let table = [
        (running(), vec![(20, ended(DoneByRunner, 0))], Used),
        (running(), vec![(20, ended(ExitedWithError, 0))], Used),
        (running(), vec![(20, ended(ExitedWithError, 9)), (30, JobEvent::LimitPassed)], Used),
        (running(), vec![(20, ended(LimitsExceeded, 0))], Used),
        (running(), vec![(20, ended(ExecutorError, 0))], Used), // the command could not be started
        (running(), vec![stopped.clone(), (20, ended(DoneByRunner, 0))], Used),
        // R135: a sync that failed or took too long, reported by a runner that lives.
        (pulling(), vec![(20, broken(LifecycleError::SyncFailed))], Failed),
        (pulling(), vec![(20, JobEvent::LimitPassed), (30, ended(TerminatedByServer, 0))], Failed),
        (vec![(1, PLACED)], vec![(20, JobEvent::LimitPassed), (30, ended(TerminatedByServer, 0))], Failed),
        (pulling(), vec![(20, ended(LimitsExceeded, 0))], Failed),
        (pulling(), vec![(20, ended(ExecutorError, 0))], Failed),
        (running(), vec![(20, broken(LifecycleError::SyncFailed))], Failed), // by a runner that was started again
        // R136.
        (running(), vec![(20, broken(LifecycleError::KeeperDied))], Failed),
        (running(), vec![stopped.clone(), (20, broken(LifecycleError::KeeperDied))], Failed),
        (running(), vec![(20, ended(ControlLost, 0))], Failed),
        (running(), vec![stopped.clone(), (20, ended(ControlLost, 0))], Failed),
        (running(), vec![(20, ended(Interrupted, 0))], SlotEnd::Interrupted),
        (running(), vec![stopped.clone(), (20, ended(Interrupted, 0))], SlotEnd::Interrupted),
        // A user asked before anything ran.
        (pulling(), vec![stopped.clone(), (20, ended(TerminatedByServer, 0))], Undone),
        (vec![(1, PLACED)], vec![(10, stop(AbortedByUser, true)), (20, ended(AbortedByUser, 0))], Undone),
        // No report says that the processes are gone.
        (running(), vec![stopped.clone(), (20, JobEvent::LimitPassed)], Fenced),
        (running(), vec![stopped, (20, JobEvent::GaveUpOn)], Fenced),
        (running(), vec![(20, JobEvent::GaveUpOn)], Fenced),
        (pulling(), vec![(20, JobEvent::LimitPassed), (90, JobEvent::LimitPassed)], Fenced),
    ];
    for (before, events, how) in table {
        let (job, consequences) = after(&[&before[..], &events[..]].concat());
        assert!(consequences.contains(&JobConsequence::SlotEnded { how }), "{events:?}: {consequences:?}");
        assert_eq!(job.fenced, how == Fenced, "{events:?}");
        let told = consequences.iter().filter(|it| matches!(it, JobConsequence::ChildEnded { .. })).count();
        assert_eq!(told, 1, "the agent is told once");
    }
}

#[test]
fn a_job_that_waits_ends_at_once_when_asked() {
    for event in [stop(JobReason::TerminatedByUser, false), JobEvent::WaitedTooLong] {
        let (job, consequences) = after(&[(1, JobEvent::Queued { turn: 1, seq: 4 }), (2, event)]);
        assert!(job.status.is_end() && job.queue_seq.is_none() && job.gone_at.is_some());
        assert_eq!(consequences.first(), Some(&JobConsequence::LeaveQueue { pool: job.pool }));
        assert!(!consequences.iter().any(|it| matches!(it, JobConsequence::SlotEnded { .. })), "it never had one");
    }
}

#[test]
fn a_place_that_was_lost_leaves_nothing_of_itself() {
    let events = [(1, PLACED), (2, JobEvent::FellSilent), (3, JobEvent::DeclaredLost), (4, JobEvent::PlaceLost)];
    let (job, _) = after(&events);
    assert_eq!((job.status, job.instance, job.allocation), (JobStatus::Submitted, None, None));
    assert_eq!((job.silent_since, job.lost, job::phase(&job)), (None, false, Some(Phase::Queued)));
    let (job, _) = after(&[&events[..], &[(5, PLACED)]].concat());
    assert_eq!((job.epoch, job::phase(&job)), (2, Some(Phase::Provisioning)));
    let accepted = job::apply(&running_job(), &JobEvent::PlaceLost, Timestamp(9));
    assert!(accepted.is_err(), "the runner has it: its place is no longer ours to take");
}

/// The list that it leaves is looked at again, and nothing of its place there goes with it.
#[test]
fn a_move_to_another_pool_clears_turn_and_place() {
    let (from, to) = (samples::job().pool, PoolId(2));
    let (job, consequences) =
        after(&[(1, JobEvent::Queued { turn: 3, seq: 4 }), (2, JobEvent::PoolChanged { pool: to })]);
    assert_eq!((job.status, job.pool, job.turn, job.queue_seq), (JobStatus::Submitted, to, None, None));
    assert_eq!(consequences[..2], [JobConsequence::LeaveQueue { pool: from }, JobConsequence::EnterQueue]);
    let same = job::apply(&job, &JobEvent::PoolChanged { pool: to }, Timestamp(3));
    assert_eq!(same, Ok(Outcome::Unchanged), "it is there");
    let placed = job::apply(&running_job(), &JobEvent::PoolChanged { pool: to }, Timestamp(9));
    assert!(placed.is_err(), "it has a machine");
}

fn running_job() -> Job {
    run_on(&[]).0
}

#[test]
fn a_phase_says_where_a_job_is_and_whether_it_is_heard() {
    let silent = (20, JobEvent::FellSilent);
    let table = [
        (vec![], Some(Phase::Running)),
        (vec![silent.clone()], Some(Phase::Unreachable)),
        (vec![silent.clone(), (30, JobEvent::DeclaredLost)], Some(Phase::Lost)),
        (vec![silent.clone(), (30, JobEvent::DeclaredLost), (40, JobEvent::HeardAgain)], Some(Phase::Running)),
        (vec![silent.clone(), (30, stop(JobReason::TerminatedByUser, false))], Some(Phase::Fencing)),
        (vec![(30, stop(JobReason::TerminatedByUser, false))], Some(Phase::Terminating)),
        (vec![(30, ended(JobReason::DoneByRunner, 0))], None),
    ];
    for (events, expected) in table {
        assert_eq!(job::phase(&run_on(&events).0), expected, "{events:?}");
    }
}

#[test]
fn a_run_shows_the_most_advanced_of_its_jobs_or_the_trouble_all_of_them_share() {
    use Phase::*;
    let table: [(bool, &[Phase], Option<Phase>); 9] = [
        (false, &[], None),
        (false, &[Queued], Some(Queued)),
        (false, &[Queued, Provisioning], Some(Provisioning)),
        (false, &[Pulling, Provisioning], Some(Pulling)),
        (false, &[Running, Pulling], Some(Running)),
        (false, &[Unreachable], Some(Unreachable)),
        (false, &[Unreachable, Running], Some(Running)),
        (false, &[Lost, Queued], Some(Lost)),
        (true, &[Running], Some(Terminating)),
    ];
    for (terminating, jobs, expected) in table {
        assert_eq!(run_phase(terminating, jobs), expected, "{jobs:?}");
    }
}

/// Nothing runs out for a job whose run is paused before it has a machine.
#[test]
fn a_held_job_does_not_wait_in_vain() {
    let (held, consequences) = after(&[(1, JobEvent::Queued { turn: 1, seq: 4 }), (2, JobEvent::HoldAsked)]);
    assert!(held.queue_seq.is_none() && consequences.contains(&JobConsequence::LeaveQueue { pool: held.pool }));
    assert_eq!(job::deadline(&held, &Limits::default()), None);
    let (released, consequences) = after(&[(1, JobEvent::HoldAsked), (2, JobEvent::ReleaseAsked)]);
    assert!(consequences.contains(&JobConsequence::Place) && job::deadline(&released, &Limits::default()).is_some());
}
