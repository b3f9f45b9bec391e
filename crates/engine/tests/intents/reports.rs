//! What runners say: repeated, reordered, too late, of an epoch that is over; and logs that are longer than what has arrived.

use crate::bench::{Bench, now, spec};
use crate::machines::{Plan, broken, chunk, ended, fact};
use crate::sweeps::{send, with_file};
use engine::runner::{LogReach, StepChunk, Taken, What};
use model::allocation::{Allocation, AllocationStatus};
use model::instance::InstanceStatus;
use model::job::{Job, JobReason, JobStatus, LifecycleError};
use model::log::LogId;
use model::run::{Phase, RunStatus};
use model::spec::{Retry, RetryEvent};
use model::step::StepTry;
use model::time::{MINUTE, SECOND};
use model::{Credits, InstanceId, Refused, RunId};
use store::LogStream;

fn silent_runner(plan: Plan) -> (Bench, RunId, Job) {
    let mut bench = Bench::new();
    bench.runners.plan = Some(plan);
    let run = bench.submit(spec());
    bench.settle();
    let job = bench.job(run);
    (bench, run, job)
}

fn say(bench: &mut Bench, job: &Job, facts: &[What], chunks: Vec<StepChunk>) -> Taken {
    let facts = facts.iter().map(|what| fact(job.id, job.epoch, job.step, what.clone())).collect();
    bench.report(job.instance.unwrap(), facts, chunks).expect("nobody dies here").unwrap()
}

fn done(final_offset: i64) -> What {
    ended(JobReason::DoneByRunner, Some(0), final_offset, SECOND)
}

fn all() -> Vec<What> {
    vec![What::Accepted, What::SyncComplete { blobs: 2 }, What::Started { unenforced: None }, done(0)]
}

#[test]
fn facts_may_come_repeated_and_in_any_order() {
    let orders: [&[usize]; 8] = [
        &[0, 1, 2, 3],
        &[0, 0, 1, 1, 2, 2, 3, 3],
        &[0, 1, 0, 2, 1, 3, 2, 0],
        &[3, 2, 1, 0],
        &[2, 0, 1, 3],
        &[1, 3, 2],
        &[3],
        &[2, 3, 0],
    ];
    for order in orders {
        let (mut bench, run, job) = silent_runner(Plan::Ignore);
        for i in order {
            let taken = say(&mut bench, &job, &[all()[*i].clone()], Vec::new());
            assert!(taken.refused.is_empty(), "{order:?}: {:?}", taken.refused);
            bench.check();
        }
        bench.expect_end(run, RunStatus::Completed, None);
        assert_eq!(bench.job(run).status, JobStatus::Done);
        assert!(bench.money(run, 1).1 >= Credits(1));
        let slot = bench.snapshot(run).allocation.unwrap();
        assert_eq!(slot.status.as_str(), "COMPLETE", "{order:?}: its folder is held");
        let events = bench.events(run);
        assert_eq!(events.iter().filter(|kind| *kind == "job.ended").count(), 1, "{order:?}");
    }
}

/// The AVAILABLE slots of a machine.
fn free_slots(bench: &Bench, machine: InstanceId) -> Vec<Allocation> {
    let all = now(bench.engine.allocations(bench.org, i64::MAX, 100)).unwrap().into_iter();
    let all = all.map(|snapshot| snapshot.allocation).filter(|slot| slot.instance == machine);
    all.filter(|slot| slot.status == AllocationStatus::Available).collect()
}

/// R135, R136: a FAILED slot without a hold, its folder given up, and in the same commit a new slot in a folder of its own.
#[track_caller]
fn slot_failed(bench: &Bench, run: RunId, replenished: bool) {
    let snapshot = bench.snapshot(run);
    let (job, slot, machine) = (snapshot.job.unwrap(), snapshot.allocation.unwrap(), snapshot.instance.unwrap());
    assert_eq!((slot.status, slot.job), (AllocationStatus::Failed, Some(job.id)));
    assert!(slot.hold().is_none() && slot.workdir_released && slot.debug_hold_until.is_none(), "{slot:?}");
    let free = free_slots(bench, machine.id);
    assert_eq!(free.len(), usize::from(replenished), "{free:?}");
    for fresh in free {
        assert!(fresh.id != slot.id && fresh.workdir != slot.workdir, "{fresh:?}");
        assert_eq!((fresh.job, fresh.created_at), (None, slot.completed_at.unwrap()), "in the same commit");
    }
    let kept = now(bench.engine.desired(machine.id)).unwrap().kept_workdirs;
    assert!(!kept.contains(&slot.workdir), "nobody may look at it: {kept:?}");
}

#[test]
fn a_failed_sync_fails_its_slot_and_a_healthy_machine_gets_a_new_one() {
    for facts in [
        vec![What::Accepted, broken(LifecycleError::SyncFailed, 0)],
        vec![broken(LifecycleError::SyncFailed, 0)],
        vec![What::Accepted, ended(JobReason::ExecutorError, None, 0, 0)], // failed before the files were in place
        vec![What::Accepted, What::SyncComplete { blobs: 0 }, broken(LifecycleError::SyncFailed, 0)],
    ] {
        let (mut bench, run, job) = silent_runner(Plan::Ignore);
        say(&mut bench, &job, &facts, Vec::new());
        bench.expect_end(run, RunStatus::Failed, Some("executor_error"));
        slot_failed(&bench, run, true);
        bench.check();
        bench.runners.plan = Some(Plan::Exit(0));
        let next = bench.submit(spec());
        bench.settle();
        bench.expect_end(next, RunStatus::Completed, None);
        assert_eq!((bench.job(next).instance, bench.job(next).warm), (job.instance, true), "on the same machine");
        bench.check();
        bench.check_all_gone();
    }
}

#[test]
fn a_sync_that_takes_too_long_fails_its_slot() {
    let (mut bench, run, job) = silent_runner(Plan::Pull);
    bench.advance(10 * MINUTE + SECOND); // the runner is told to stop, and says that nothing is left
    let jobs = bench.jobs(run);
    let first = jobs.iter().find(|other| other.id == job.id).unwrap();
    assert_eq!((first.reason, first.fenced), (Some(JobReason::SyncLimit), false));
    let slot = now(bench.engine.allocation(bench.org, first.allocation.unwrap())).unwrap().allocation;
    assert_eq!((slot.status, slot.hold()), (AllocationStatus::Failed, None));
    assert_eq!(free_slots(&bench, slot.instance).len(), 1, "a healthy machine");
    bench.check();
    bench.runners.plan = Some(Plan::Exit(0));
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Completed, None); // tried again: nothing can have begun
    bench.check();
}

#[test]
fn a_dead_keeper_or_lost_control_fails_its_slot_without_a_hold() {
    for (error, code) in [(LifecycleError::KeeperDied, "executor_error"), (LifecycleError::ControlLost, "control_lost")]
    {
        for active_ms in [0, 5 * SECOND] {
            let (mut bench, run, job) = silent_runner(Plan::Run);
            say(&mut bench, &job, &[broken(error, active_ms)], Vec::new());
            bench.expect_end(run, RunStatus::Failed, Some(code));
            slot_failed(&bench, run, true);
            let machine = bench.snapshot(run).instance.unwrap();
            assert_eq!(machine.status, InstanceStatus::Ready);
            assert!(machine.idle_since.is_some(), "it ends when it stays unused");
            bench.check();
            bench.check_all_gone();
        }
    }
}

#[test]
fn a_keeper_that_dies_while_its_run_is_cancelled_fails_its_slot_too() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    let name = bench.cut_off(run);
    bench.cancel(run);
    bench.reconnect(&name);
    say(&mut bench, &job, &[broken(LifecycleError::KeeperDied, SECOND)], Vec::new());
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    slot_failed(&bench, run, true);
    bench.check();
}

#[test]
fn an_interrupted_machine_is_ended_and_its_run_tried_elsewhere() {
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(model::spec::RunSpec { retry: Some(retry), ..spec() });
    bench.settle();
    let job = bench.job(run);
    say(&mut bench, &job, &[broken(LifecycleError::Interrupted, SECOND)], Vec::new());
    slot_failed(&bench, run, false);
    assert_eq!(bench.snapshot(run).instance.unwrap().status, InstanceStatus::Terminating);
    bench.check();
    bench.runners.plan = Some(Plan::Exit(0));
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_ne!(bench.job(run).instance, job.instance);
    let first = now(bench.engine.find_instance(job.instance.unwrap())).unwrap().unwrap();
    assert_eq!(first.status, InstanceStatus::Terminated);
    bench.check();
    bench.check_all_gone();
}

/// The command ran, or was found not to be startable: that is the run's failure, and its folder is held.
#[test]
fn a_command_that_cannot_be_started_leaves_a_held_slot() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    say(&mut bench, &job, &[ended(JobReason::ExecutorError, None, 0, 0)], Vec::new());
    let slot = bench.snapshot(run).allocation.unwrap();
    assert_eq!((slot.status, slot.hold().is_some()), (AllocationStatus::Complete, true));
    bench.check();
}

#[test]
fn a_claim_that_was_stopped_before_use_goes_back_to_the_pool() {
    let (mut bench, run, _) = silent_runner(Plan::Pull);
    bench.cancel(run);
    bench.settle();
    let slot = bench.snapshot(run).allocation.unwrap();
    assert_eq!((slot.status, slot.workdir.as_str()), (AllocationStatus::Available, "work_2"));
    bench.check();
}

#[test]
fn what_is_said_after_the_end_is_kept_and_changes_nothing() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    let name = bench.cut_off(run);
    bench.cancel(run);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    let (money, balance) = (bench.money(run, 1), bench.balance());
    bench.reconnect(&name);
    for _ in 0..2 {
        let taken = say(&mut bench, &job, &[done(0)], Vec::new());
        assert!(matches!(taken.refused[0].why, Refused::OldEpoch { .. }), "{:?}", taken.refused);
    }
    assert_eq!(bench.run(run).status, RunStatus::Cancelled);
    assert_eq!((bench.money(run, 1), bench.balance()), (money, balance));
    let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
    let late: Vec<_> = why.facts.iter().filter(|fact| fact.contains("late")).collect();
    assert_eq!(late.len(), 1, "told once: {:?}", why.facts);
    bench.check();
}

#[test]
fn an_earlier_attempts_late_end_is_only_evidence() {
    let (mut bench, run, job) = silent_runner(Plan::Exit(4));
    bench.runners.plan = Some(Plan::Run);
    bench.act(run, engine::run::Action::Retry { force: false }).unwrap();
    bench.settle();
    say(&mut bench, &job, &[ended(JobReason::ExitedWithError, Some(4), 0, 0)], Vec::new());
    assert_eq!((bench.run(run).attempt, bench.run(run).phase), (2, Some(Phase::Running)));
    assert_eq!(bench.run(run).late_evidence.len(), 1);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn only_the_machine_that_has_the_job_may_speak_of_it() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    let other = bench.submit(spec());
    bench.settle();
    let stranger = bench.job(other).instance.unwrap();
    for (instance, epoch) in [(stranger, job.epoch), (job.instance.unwrap(), job.epoch + 1), (stranger, 0)] {
        let fact = fact(job.id, epoch, job.step, done(0));
        let lie = StepChunk { epoch, ..chunk(&job, 0, "lies") };
        let taken = bench.report(instance, vec![fact], vec![lie]).unwrap().unwrap();
        assert_eq!(taken.refused.len(), 2, "the fact and the bytes: {taken:?}");
    }
    assert_eq!(bench.run(run).phase, Some(Phase::Running));
    assert_eq!(now(bench.engine.logs.read(job.id, 0, 100)).unwrap().frames.len(), 0);
    let unknown = fact(model::JobId(999_999), 1, job.step, done(0));
    let taken = bench.report(stranger, vec![unknown], Vec::new()).unwrap().unwrap();
    assert!(matches!(taken.refused[0].why, Refused::NotFound { .. }));
    bench.check();
}

#[test]
fn a_report_about_an_older_try_changes_nothing() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.submit(model::spec::RunSpec { retry: Some(retry), ..spec() });
    bench.settle();
    let first = bench.job(run).step.unwrap();
    assert_eq!(first.number, 1);
    bench.say(run, broken(LifecycleError::ControlLost, 1));
    bench.advance(5 * MINUTE);
    let job = bench.job(run);
    let step = job.step.unwrap();
    assert_eq!((step.id, step.number, job.submission), (first.id, 2, 2), "the same step, tried again");
    let said = vec![fact(job.id, job.epoch, Some(first), done(0))];
    let lie = StepChunk { step: first, ..chunk(&job, 0, "old") };
    let taken = bench.report(job.instance.unwrap(), said, vec![lie]).unwrap().unwrap();
    assert_eq!(taken.refused.len(), 2, "the end and the bytes: {taken:?}");
    for no in &taken.refused {
        assert!(matches!(no.why, Refused::OldTry { given: 1, current: 2, .. }) && no.step == Some(first), "{no:?}");
    }
    assert_eq!(bench.run(run).phase, Some(Phase::Running), "the try that runs is not touched");
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn a_step_of_an_agent_writes_into_a_log_of_its_own() {
    let (mut bench, _, job) = silent_runner(Plan::Run);
    let step = job.step.unwrap();
    // As the job of an agent whose steps come one by one.
    let others = Job { step: None, ..job.clone() };
    now(bench.engine.store.write(store::Lane::Normal, "test.job", move |tx| store::job::save(tx, &others))).unwrap();
    let taken = say(&mut bench, &job, &[], vec![chunk(&job, 0, "its own")]);
    assert_eq!(taken.log_offsets[0], LogReach { job: job.id, epoch: job.epoch, step, offset: 7 });
    let said = |log: LogId| now(bench.engine.logs.read(log, 0, 100)).unwrap().frames;
    assert_eq!(said(step.into())[0].frame.data, b"its own");
    assert!(said(job.id.into()).is_empty());
    let strange = StepTry { id: model::StepId(999_999), number: 1 };
    for (step, code) in [(StepTry { number: 2, ..step }, "old_try"), (strange, "not_found")] {
        let taken = say(&mut bench, &job, &[], vec![StepChunk { step, ..chunk(&job, 0, "lies") }]);
        assert_eq!((taken.refused[0].why.code(), taken.refused[0].step), (code, Some(step)));
    }
}

#[test]
fn the_document_names_one_step_and_its_files_only_until_they_are_in_place() {
    for (plan, bring) in [(Plan::Pull, true), (Plan::Run, false)] {
        let mut bench = Bench::new();
        bench.runners.plan = Some(plan);
        let hash = send(&mut bench, b"data");
        let run = bench.submit(with_file(&hash));
        bench.settle();
        let job = bench.job(run);
        let desired = now(bench.engine.desired(job.instance.unwrap())).unwrap().job.unwrap();
        assert_eq!((desired.closed, desired.files.is_some(), desired.inline.is_empty()), (true, bring, !bring));
        assert_eq!(desired.steps.iter().map(|step| Some(step.step)).collect::<Vec<_>>(), [job.step]);
    }
}

fn text(bench: &Bench, job: &Job, stream: LogStream) -> String {
    let page = now(bench.engine.logs.read(job.id, 0, 1 << 20)).unwrap();
    let frames = page.frames.into_iter().filter(|placed| placed.frame.stream == stream);
    String::from_utf8(frames.flat_map(|placed| placed.frame.data).collect()).unwrap()
}

#[test]
fn a_log_has_no_gaps_and_repeats_nothing() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    let send = |bench: &mut Bench, offset, text: &str| {
        let chunk = chunk(&job, offset, text);
        say(bench, &job, &[], vec![chunk]).log_offsets[0].offset
    };
    assert_eq!(send(&mut bench, 0, "hello "), 6);
    assert_eq!(send(&mut bench, 9, "never"), 6, "something is missing before it");
    assert_eq!(send(&mut bench, 3, "lo world"), 11, "an overlap is trimmed");
    assert_eq!(send(&mut bench, 0, "hello "), 11, "a repetition is nothing");
    say(&mut bench, &job, &[done(11)], Vec::new());
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(text(&bench, &job, LogStream::Stdout), "hello world");
    bench.settle();
    assert_eq!(text(&bench, &job, LogStream::Stdout), "hello world", "gathered");
    assert!(now(bench.engine.logs.read(job.id, 11, 100)).unwrap().done);
    bench.check();
}

#[test]
fn an_end_waits_for_the_tail_of_its_log() {
    for restart in [false, true] {
        let (mut bench, run, job) = silent_runner(Plan::Run);
        say(&mut bench, &job, &[done(5)], vec![chunk(&job, 0, "ab")]);
        assert_eq!(bench.run(run).status, RunStatus::Running, "three bytes are missing");
        assert_eq!(bench.job(run).status, JobStatus::Terminating);
        bench.advance(30 * SECOND);
        if restart {
            bench.restart(); // what waits for the tail is in the rows, not in memory
            bench.settle();
        }
        say(&mut bench, &job, &[], vec![chunk(&job, 2, "cde")]);
        bench.settle();
        bench.expect_end(run, RunStatus::Completed, None);
        assert!(!bench.job(run).log_cut);
        assert_eq!(text(&bench, &job, LogStream::Stdout), "abcde");
        bench.check();
    }
}

#[test]
fn a_tail_that_never_comes_leaves_a_mark() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    say(&mut bench, &job, &[done(5)], vec![chunk(&job, 0, "ab")]);
    bench.cut_off(run);
    bench.advance(59 * SECOND);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    bench.advance(2 * SECOND);
    bench.expect_end(run, RunStatus::Completed, None);
    assert!(bench.job(run).log_cut);
    assert_eq!(text(&bench, &job, LogStream::Stdout), "ab");
    assert!(
        text(&bench, &job, LogStream::Runner).contains("last 3 bytes"),
        "{}",
        text(&bench, &job, LogStream::Runner)
    );
    bench.check();
}

/// The charge stops when the processes are gone, not when the tail of the log has come.
#[test]
fn waiting_for_a_tail_costs_nothing() {
    let (mut bench, run, job) = silent_runner(Plan::Run);
    bench.advance(30 * SECOND);
    say(&mut bench, &job, &[done(5)], Vec::new());
    bench.cut_off(run);
    bench.advance(2 * MINUTE);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.money(run, 1).1, Credits(30 * 10_000));
    bench.check();
}

#[test]
fn limits_that_a_machine_cannot_enforce_are_told_to_whoever_asks_why() {
    let (mut bench, run, job) = silent_runner(Plan::Ignore);
    let started = What::Started { unenforced: Some("--memory is not enforced: no group".into()) };
    say(&mut bench, &job, &[What::Accepted, What::SyncComplete { blobs: 0 }, started], Vec::new());
    for end in [None, Some(done(0))] {
        say(&mut bench, &job, &end.into_iter().collect::<Vec<_>>(), Vec::new());
        let (_, why) = now(bench.engine.why(bench.org, run)).unwrap();
        assert!(why.facts.contains(&"not limited: --memory is not enforced: no group".to_owned()), "{why:?}");
        assert!(why.next.iter().any(|next| next.contains("repl doctor")), "{why:?}");
    }
    bench.check();
}

/// The report was late, not the command: the sync limit passed while its machine could not be heard.
#[test]
fn a_command_that_began_before_the_sync_limit_passed_is_not_repeated() {
    let (mut bench, run, job) = silent_runner(Plan::Pull);
    let name = bench.cut_off(run);
    bench.advance(10 * MINUTE + SECOND);
    bench.reconnect(&name);
    let began = [What::SyncComplete { blobs: 0 }, What::Started { unenforced: None }];
    say(&mut bench, &job, &[&began[..], &[broken(LifecycleError::KeeperDied, SECOND)]].concat(), Vec::new());
    bench.advance(MINUTE);
    assert_eq!(bench.jobs(run).len(), 1, "nothing is repeated once it may have begun");
    assert_eq!(bench.run(run).status, RunStatus::Failed);
    bench.check();
}
