//! A run from its submission to the end of its machine, when nothing goes wrong: the story every other test bends.

use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::machines::Plan;
use engine::Config;
use engine::run::{Render, Submission};
use engine::view::RunSnapshot;
use model::job::JobStatus;
use model::run::RunStatus;
use model::time::{MINUTE, SECOND};
use model::{Credits, RunId};
use std::sync::Arc;
use store::WorkClass;

#[test]
fn a_cold_run_completes_and_its_machine_ends_when_nobody_uses_it() {
    let mut bench = Bench::new();
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.run(run).exit_code, Some(0));
    assert_eq!(bench.job(run).status, JobStatus::Done);
    assert!(!bench.job(run).warm);
    assert_eq!(bench.runners.executions(run), 1);
    assert_eq!(bench.money(run, 1), (PRICE, Credits(1), PRICE - Credits(1)), "an hour ahead, the least charged");
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_second_run_goes_to_the_warm_machine() {
    let mut bench = Bench::new();
    let first = bench.submit(spec());
    bench.settle();
    let second = bench.submit(spec());
    assert_eq!(bench.job(second).status, JobStatus::Provisioning, "placed inside the submit");
    assert!(bench.job(second).warm);
    bench.settle();
    bench.expect_end(second, RunStatus::Completed, None);
    assert_eq!(bench.job(first).instance, bench.job(second).instance);
    assert_ne!(bench.job(first).allocation, bench.job(second).allocation);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_submission_without_files_is_one_write_and_reads_nothing_before() {
    let mut bench = Bench::new();
    let (key, before) = (bench.key(), bench.engine.store.counts());
    bench.submit_with(spec(), key).unwrap();
    let after = bench.engine.store.counts();
    assert_eq!(after.reads, before.reads);
    assert_eq!(after.writes.values().sum::<u64>(), before.writes.values().sum::<u64>() + 1);
}

#[test]
fn an_accepted_run_is_answered_as_it_is_found() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    // Cold, then on a warm machine, then behind that one in the list.
    for plan in [Plan::Exit(0), Plan::Run, Plan::Run] {
        bench.runners.plan = Some(plan);
        let key = bench.key();
        let render: Render = Arc::new(|snapshot| format!("{:#?}", strip(snapshot.clone())).into_bytes());
        let submission =
            Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start: true };
        let answer = now(bench.engine.submit(submission, Some(key), render)).unwrap();
        let runs = now(bench.engine.list_runs(bench.org, engine::view::Which::All, i64::MAX, 1)).unwrap();
        let found = format!("{:#?}", strip(runs.into_iter().next().unwrap()));
        assert_eq!(String::from_utf8(answer.body).unwrap(), found);
        bench.settle();
    }
    bench.check();
}

/// What the API does not show: how often a row was written, and what is known of its machine and of its worker besides.
fn strip(mut snapshot: RunSnapshot) -> RunSnapshot {
    snapshot.beat_at = None;
    snapshot.allocation.iter_mut().for_each(|slot| slot.version = 0);
    snapshot.instance.iter_mut().for_each(|machine| {
        (machine.version, machine.desired_version, machine.last_seen_at) = (0, 0, None);
    });
    snapshot
}

#[test]
fn a_running_job_is_charged_by_the_window_and_to_the_millisecond() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.advance(2 * MINUTE + 30 * SECOND);
    assert_eq!(bench.money(run, 1).1, Credits(120 * 10_000));
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.money(run, 1).1, Credits(150 * 10_000));
    bench.check();
}

/// R141: of the worker that holds its item; of any worker while none holds it, because each of them may claim it.
#[test]
fn a_run_shows_the_beat_of_the_worker_that_looks_after_it() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let submission =
        Submission { org: bench.org, by: None, name: None, spec: spec(), plans: Default::default(), start: false };
    let created = now(bench.engine.submit(submission, None, crate::bench::shown())).unwrap();
    let created: RunId = String::from_utf8(created.body).unwrap().parse().unwrap();
    let run = bench.submit(spec());
    bench.advance(MINUTE);
    let shown = |bench: &Bench| {
        let listed = now(bench.engine.list_runs(bench.org, engine::view::Which::All, i64::MAX, 10)).unwrap();
        let listed = listed.into_iter().find(|snapshot| snapshot.run.id == run).unwrap().beat_at;
        assert_eq!(listed, bench.snapshot(run).beat_at, "a list says the same");
        listed
    };
    let beat = shown(&bench).expect("somebody lives");
    assert!(bench.at().since(beat) <= 19 * SECOND);
    assert_eq!(bench.snapshot(created).beat_at, None, "nobody has to look after it");

    let other = now(bench.engine.start_worker("other".to_owned())).unwrap();
    now(bench.engine.beat(&other)).unwrap();
    let (last_beat, wake) = (bench.at(), move |tx: &mut store::Tx| {
        let at = tx.at();
        tx.wake(store::WorkKind::Run, run.0, at);
        Ok(())
    });
    now(bench.store.write(store::Lane::Normal, "test", wake)).unwrap();
    let held = now(bench.engine.claim(&other, WorkClass::Control, 32)).unwrap();
    assert!(held.iter().any(|item| item.kind == store::WorkKind::Run && item.subject == run.0), "{held:?}");
    bench.pass(20 * SECOND);
    assert!(bench.at() > last_beat);
    assert_eq!(shown(&bench), Some(last_beat), "its holder is silent, whoever else beats");
    held.into_iter().for_each(|item| now(bench.engine.work_on(item)));
    assert_eq!(shown(&bench), Some(bench.at()), "given back");
    bench.exits(run, 0);
    assert_eq!(shown(&bench), None, "it has ended");
    bench.check();
}

/// What never changes is written once: the document that every event writes again stays small.
#[test]
fn a_long_command_does_not_make_the_rows_larger_that_every_event_writes() {
    use model::spec::{Command, RunSpec};
    use std::collections::BTreeMap;
    let row = |spec: RunSpec| {
        let mut bench = Bench::new();
        let run = bench.submit(spec);
        bench.settle();
        bench.expect_end(run, RunStatus::Completed, None);
        let snapshot = bench.snapshot(run);
        (serde_json::to_vec(&snapshot.run).unwrap().len(), snapshot.content)
    };
    let (text, value) = ("x".repeat(100 * 1024), "y".repeat(50 * 1024));
    let long = RunSpec { command: Command::Shell(text), env: BTreeMap::from([("A".to_owned(), value)]), ..spec() };
    let ((plain, _), (large, content)) = (row(spec()), row(long.clone()));
    assert_eq!(content, long.content(), "it is shown and delivered whole");
    assert!(large - plain < 100, "{plain} bytes, and {large} with a long command");
}
