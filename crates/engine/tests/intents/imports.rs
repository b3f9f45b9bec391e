//! The database is lost while jobs run: nothing ends, and what was sealed is tracked again, once.

use crate::agents;
use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::cleanups::written;
use crate::machines::{Does, Plan};
use crate::money::spend_all_but;
use adapters::fake::{Call, Fate};
use engine::Config;
use engine::orphan::{IMPORT_MS, Import, ImportOutcome, Imported};
use engine::run::Action;
use model::allocation::AllocationStatus;
use model::fault::Moment;
use model::feature::FeatureState;
use model::instance::{Instance, InstanceStatus};
use model::plan::{AgentPlan, MachinePlan, StepPlan};
use model::run::RunStatus;
use model::spec::{Command, RunSpec};
use model::step::ToolKind;
use model::time::{HOUR, MINUTE};
use model::{Credits, Failure, InstanceId, Refused, RunId, Timestamp, TroubleKind, names};
use serde_json::json;
use std::task::{Context, Poll, Waker};
use store::unlisted::{Unlisted, UnlistedJob};

/// A run at work, and its machine's name; then the database is lost.
fn lost() -> (Bench, RunId, String) {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(RunSpec { command: Command::Shell("train".into()), ..spec() });
    bench.settle();
    let name = bench.provider.machines().keys().next().unwrap().clone();
    bench.advance(HOUR);
    bench.lose_database();
    bench.settle();
    (bench, run, name)
}

fn import(bench: &Bench, org: Option<&str>) -> Vec<Import> {
    now(bench.engine.import("somebody".into(), org.map(str::to_owned))).unwrap()
}

fn imported(bench: &Bench) -> Imported {
    match import(bench, None).remove(0).outcome {
        ImportOutcome::Imported(it) => it,
        ImportOutcome::Left(why) => panic!("{why}"),
    }
}

#[track_caller]
fn left(bench: &Bench, because: &str) {
    let all = import(bench, None);
    let [Import { outcome: ImportOutcome::Left(why), .. }] = &all[..] else { panic!("{all:?}") };
    assert!(why.contains(because), "{why}");
}

#[test]
fn an_imported_run_goes_on_under_its_name_and_ends_as_its_command_does() {
    let (mut bench, run, name) = lost();
    let waits = now(bench.engine.unlisted(String::new(), 10)).unwrap();
    assert_eq!((waits.len(), waits[0].runner.name.as_str()), (1, name.as_str()));
    assert_eq!(waits[0].jobs[0].1.as_ref().map(|stub| stub.run), Some(run), "what it says of its job bears our seal");
    let it = imported(&bench);
    assert_eq!((it.run, it.org.as_str()), (run, "bench"));
    assert_eq!(import(&bench, None), [], "a second time there is nothing left to import");
    let row = bench.run(run);
    assert_eq!((row.status, row.imported_at), (RunStatus::Running, Some(bench.at())));
    assert!(row.active_ms >= HOUR, "the time before counts for its limit: {}", row.active_ms);
    let machine = bench.snapshot(run).instance.unwrap();
    assert_eq!((machine.id, machine.status), (it.instance, InstanceStatus::Ready));
    assert_eq!(machine.handle.as_deref(), Some(name.as_str()), "as its provider calls it");
    bench.settle();
    assert_eq!(bench.runners.executions(run), 1, "it goes on, and is not begun again");
    bench.check();
    bench.runners.plan = Some(Plan::Exit(6));
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    assert_eq!((bench.run(run).exit_code, bench.job(run).exit_code), (Some(6), Some(6)));
    let attempt = bench.snapshot(run).attempt.unwrap();
    assert!(attempt.uncollected > Credits::ZERO, "what it cost before is on us, and on record: {attempt:?}");
    let refused = bench.act(run, Action::Retry { force: false }).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Conflict { why }) if why.contains("imported")), "{refused}");
    assert_eq!(bench.runners.executions(run), 1);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_death_before_or_after_the_commit_imports_all_of_it_or_nothing() {
    for moment in [Moment::Before, Moment::After] {
        for write in 0..4 {
            let (mut bench, run, _) = lost();
            bench.crashes.arm(write, moment);
            let first = now(bench.engine.import("somebody".into(), None));
            bench.revive();
            if first.is_err() || bench.snapshot_of(run).is_none() {
                import(&bench, None);
            }
            bench.settle();
            assert_eq!(bench.run(run).status, RunStatus::Running, "{moment:?} of write {write}");
            bench.check();
            bench.runners.plan = Some(Plan::Exit(0));
            bench.settle();
            bench.expect_end(run, RunStatus::Completed, None);
            assert_eq!(bench.runners.executions(run), 1);
        }
    }
}

#[test]
fn what_ends_before_the_import_is_delivered_after_it() {
    let (mut bench, run, name) = lost();
    bench.ends_alone(&name, 3);
    bench.settle();
    imported(&bench);
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("exited_with_error"));
    assert_eq!(bench.run(run).exit_code, Some(3));
    bench.check();
}

#[test]
fn what_is_not_sealed_here_is_listed_and_never_imported() {
    let (bench, run, name) = lost();
    let nonce = bench.provider.machine(&name).unwrap().boot.nonce;
    let mut forged = bench.introduction(&name, &nonce);
    let stub = forged.jobs[0].stub.as_mut().unwrap();
    stub.text = stub.text.replace("train", "steal");
    assert!(now(bench.engine.listed(forged.clone())).is_err());
    left(&bench, "seal");
    forged.jobs[0].stub = None;
    assert!(now(bench.engine.listed(forged)).is_err());
    left(&bench, "seal");
    let shown = now(bench.engine.unlisted(String::new(), 10)).unwrap();
    assert_eq!((shown[0].jobs.len(), &shown[0].jobs[0].1), (1, &None), "it is shown all the same");
    assert!(bench.snapshot_of(run).is_none());
}

#[test]
fn only_the_machine_with_the_same_tag_is_imported() {
    let (bench, _, name) = lost();
    bench.provider.replace_by_stranger(&name);
    left(&bench, "no machine of its name and tag");
}

/// One dead host of the provider makes its list fail as a whole.
#[test]
fn a_provider_that_cannot_be_listed_is_asked_for_the_machine_by_its_name() {
    let (mut bench, run, _) = lost();
    bench.fate(|call, _, _| if call == Call::List { Fate::FailBefore(TroubleKind::Network) } else { Fate::Obey });
    assert_eq!(imported(&bench).run, run);
    bench.runners.plan = Some(Plan::Exit(0));
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
}

/// A machine with everything that it can be prepared with. `known`: whether the settings still have its feature when it is imported.
fn prepared(known: bool) -> (Bench, Instance, Instance) {
    let mut bench = Bench::brief();
    let (init, init_checksum) = (Some("make".to_owned()), Some("of the init".to_owned()));
    let run = bench.running(RunSpec { features: vec!["a".into()], init, init_checksum, ..spec() });
    let id = bench.job(run).instance.unwrap();
    written(&mut bench, move |tx| {
        let instance = store::instance::lock(tx, id).unwrap();
        store::instance::save(tx, &Instance { gpus: Some(vec![1, 3]), ..instance }).unwrap();
    });
    bench.runners.disconnect();
    bench.settle();
    let of = |bench: &Bench, id| now(bench.engine.find_instance(id)).unwrap().unwrap();
    let before = of(&bench, id);
    if !known {
        bench.config.features.clear();
    }
    bench.lose_database();
    bench.settle();
    let after = of(&bench, imported(&bench).instance);
    (bench, before, after)
}

#[test]
fn an_imported_machine_has_its_gpus_its_init_and_its_features_and_is_rid_of_them() {
    let (mut bench, before, after) = prepared(true);
    assert_eq!(after.gpus, Some(vec![1, 3]), "no other machine of its host gets them");
    assert_eq!((&after.init_checksum, after.init_done), (&before.init_checksum, true));
    assert!(before.init_checksum.is_some() && before.has_features(&["a".to_owned()]));
    assert_eq!(after.features, before.features, "with the script that removes it");
    bench.runners.plan = Some(Plan::Exit(0));
    bench.settle();
    bench.terminate(after.id, true).unwrap();
    bench.advance(MINUTE);
    let last = bench.runners.scripts.last().map(|(_, feature, act)| (feature.as_str(), *act));
    assert_eq!(last, Some(("a", "remove")));
}

#[test]
fn a_feature_that_the_settings_lost_with_the_database_is_said_to_be_left() {
    let (_, _, after) = prepared(false);
    let [feature] = &after.features[..] else { panic!("{:?}", after.features) };
    assert_eq!(feature.state, FeatureState::Left);
    assert!(feature.error.as_ref().unwrap().contains("lost with the database"), "{feature:?}");
}

/// Its org can pay for nothing when it is imported, and for nothing afterwards.
#[test]
fn money_never_ends_an_imported_run() {
    let (mut bench, run, _) = lost();
    spend_all_but(&bench, Credits::ZERO);
    imported(&bench);
    bench.advance(2 * HOUR);
    assert_eq!(bench.run(run).status, RunStatus::Running);
    let attempt = bench.snapshot(run).attempt.unwrap();
    assert_eq!((attempt.reserved, attempt.charged), (Credits::ZERO, Credits::ZERO), "{attempt:?}");
    assert!(attempt.uncollected.0 >= 2 * PRICE.0, "all of it is on record: {attempt:?}");
    bench.runners.plan = Some(Plan::Exit(0));
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(bench.balance().available, Credits::ZERO);
    bench.check();
}

#[test]
fn a_run_without_its_org_goes_to_the_one_that_was_named() {
    let (mut bench, run, _) = lost();
    bench.lose_database_for("other");
    bench.settle();
    left(&bench, "--org");
    let refused = now(bench.engine.import("somebody".into(), Some("nobody".into()))).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refused::Conflict { .. })), "{refused}");
    assert!(matches!(import(&bench, Some("other"))[0].outcome, ImportOutcome::Imported(_)));
    assert_eq!(bench.run(run).org, bench.org);
}

/// A machine that is warm after its first run. Twice the same, to the last id.
fn warm() -> (Bench, InstanceId) {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(0));
    let before = bench.submit(spec());
    bench.settle();
    let machine = bench.job(before).instance.unwrap();
    (bench, machine)
}

/// An older copy of the database knows the machine and not its job.
#[test]
fn a_machine_that_an_older_database_knows_keeps_its_job() {
    let ((mut bench, machine), (mut restored, same)) = (warm(), warm());
    assert_eq!(machine, same);
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    assert_eq!(bench.job(run).instance, Some(machine), "the same machine, in another folder");
    let workdir = bench.snapshot(run).allocation.unwrap().workdir;
    restored.runners = std::mem::take(&mut bench.runners);
    restored.runners.disconnect();
    restored.settle();
    assert!(restored.snapshot_of(run).is_none());
    let it = imported(&restored);
    assert_eq!((it.run, it.instance), (run, machine));
    restored.settle();
    let slot = restored.snapshot(run).allocation.unwrap();
    assert_eq!((slot.status, slot.workdir), (AllocationStatus::Active, workdir));
    restored.runners.plan = Some(Plan::Exit(0));
    restored.settle();
    restored.expect_end(run, RunStatus::Completed, None);
    assert_eq!(restored.runners.executions(run), 1);
    restored.check();
}

/// Before anything is imported: what the runner says of its job is enough.
#[test]
fn ids_that_a_runner_reports_are_not_given_out_again() {
    let ((mut bench, _), (mut restored, _)) = (warm(), warm());
    now(bench.store.pass_ids(5_000_000)).unwrap();
    bench.runners.plan = Some(Plan::Run);
    let lost = bench.submit(spec());
    bench.settle();
    restored.runners = std::mem::take(&mut bench.runners);
    restored.runners.disconnect();
    restored.settle();
    let after = restored.submit(RunSpec { region: "there".into(), ..spec() });
    assert!(after > lost && lost.0 > 5_000_000, "{after} after {lost}");
    assert_eq!(imported(&restored).run, lost, "and the lost one is not known already");
    restored.runners.plan = Some(Plan::Exit(0));
    restored.advance(MINUTE);
    restored.expect_end(lost, RunStatus::Completed, None);
}

#[test]
fn ids_that_are_in_use_outside_are_not_given_out_again() {
    let mut bench = Bench::new();
    let far = names::ResourceName { control_id: "b3nchm4n".into(), manifest: Some(5_000_000), resource: 4_000_000 };
    bench.runners.plan = Some(Plan::Exit(0));
    let before = bench.submit(spec());
    bench.settle();
    bench.provider.place(crate::orphans::listed(&bench, "i-9", &far.to_string(), HOUR));
    now(bench.engine.scan_now(None)).unwrap();
    let after = bench.submit(spec());
    assert!(before.0 < 4_000_000 && after.0 > 5_000_000, "{before} {after}");
    bench.advance(MINUTE);
}

/// So many runs at work, and their machines' names in order; then the database is lost.
fn many_lost(machines: usize) -> (Bench, Vec<String>) {
    let mut bench = Bench::with(settings(machines as i64), Config::default());
    bench.runners.plan = Some(Plan::Run);
    for _ in 0..machines {
        bench.submit(spec());
    }
    bench.settle();
    bench.lose_database();
    bench.settle();
    let names: Vec<String> = bench.provider.machines().into_keys().collect();
    assert_eq!(names.len(), machines);
    (bench, names)
}

/// The import, and how many minutes a person waits for it.
fn timed(bench: &mut Bench) -> (i64, Vec<Import>) {
    let engine = bench.engine.clone();
    let mut asked = Box::pin(async move { engine.import("somebody".into(), None).await });
    for minutes in 0..100 {
        if let Poll::Ready(found) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return (minutes, found.unwrap());
        }
        bench.elapse(MINUTE);
    }
    panic!("the import does not end");
}

fn why_left(imports: &[Import], because: &str) -> usize {
    let left = |it: &&Import| matches!(&it.outcome, ImportOutcome::Left(why) if why.contains(because));
    imports.iter().filter(left).count()
}

#[test]
fn machines_that_cannot_be_looked_up_hold_up_no_other() {
    let (mut bench, names) = many_lost(6);
    bench.provider.hanging_names(&names[..4]);
    let (minutes, found) = timed(&mut bench);
    assert_eq!((minutes, found.len(), why_left(&found, "it did not answer within 60 s")), (1, 6, 4));
    bench.provider.hanging_names(&[]);
    let (minutes, found) = timed(&mut bench);
    assert_eq!((minutes, found.len(), why_left(&found, "")), (0, 4, 0));
    bench.check();
}

/// More machines than one import has time for cannot be looked up: it says so of the others, and the next one begins with them.
#[test]
fn an_import_ends_in_time_and_the_next_one_begins_where_it_ended() {
    let (mut bench, names) = many_lost(70);
    bench.provider.hanging_names(&names[..64]);
    let (minutes, found) = timed(&mut bench);
    assert_eq!((minutes, found.len()), (IMPORT_MS / MINUTE, 70));
    assert_eq!((why_left(&found, "it did not answer"), why_left(&found, "no time left")), (64, 6));
    let (_, found) = timed(&mut bench);
    assert_eq!((found.len(), why_left(&found, "it did not answer"), why_left(&found, "no time left")), (70, 64, 0));
    assert!(found.iter().map(|it| &it.name).eq(&names), "in the order of their names");
    bench.provider.hanging_names(&[]);
    let (minutes, found) = timed(&mut bench);
    assert_eq!((minutes, found.len(), why_left(&found, "")), (0, 64, 0));
}

/// What an agent's commands were for is lost with the plan: a person is told which run it was and how to end the machine, and nothing
/// ends by itself.
#[test]
fn a_run_of_agents_is_named_with_what_to_do_about_it() {
    let mut bench = Bench::new();
    bench.runners.script = Some(Box::new(|_| Does::Runs));
    let step = StepPlan { input: json!({ "shell": "train" }), ..StepPlan::new("only", ToolKind::Command) };
    let agent = agents::agent("one", vec![agents::task("all", vec![step])]);
    let run = agents::submit_agents(&mut bench, vec![AgentPlan { machine: Some(MachinePlan::default()), ..agent }]);
    bench.settle();
    let (run_name, name) = (bench.run(run).name, bench.provider.machines().keys().next().unwrap().clone());
    let machine = bench.job(run).instance.unwrap();
    let sent = now(bench.engine.desired(machine)).unwrap().job.clone().unwrap();
    bench.lose_database();
    bench.settle();
    // What its runner says: one of the commands that it was given runs.
    let (job, epoch, stub) = (sent.job.id, sent.job.epoch, Some(sent.stub));
    let jobs = vec![UnlistedJob { job, epoch, started: true, ended: false, log_from: 0, stub }];
    let nonce = bench.provider.machine(&name).unwrap().boot.nonce;
    let (host, version, seen_at) = ("bench".to_owned(), "1".to_owned(), Timestamp(0));
    let said = Unlisted { name: name.clone(), nonce, host, version, jobs, seen_at };
    assert!(now(bench.engine.listed(said)).is_err());
    left(&bench, &format!("{run} {run_name}: it is of a plan, which is lost with the database: submit it anew"));
    left(&bench, &format!("end the machine with what runs there: repl orphans terminate {name}"));
    assert!(bench.snapshot_of(run).is_none());
    now(bench.engine.scan_now(None)).unwrap();
    now(bench.engine.end_orphan((bench.org, "somebody".into()), (None, &name), &name, false)).unwrap();
    bench.advance(MINUTE);
    assert_eq!(bench.provider.machine(&name), None, "it is ended and forgotten");
}
