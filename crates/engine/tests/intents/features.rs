//! Machines that are prepared with features of the settings: what is installed and when, which run gets such a machine, and what becomes
//! of scripts that fail, never end, or are asked for twice.

use crate::bench::{Bench, now, spec};
use crate::machines::Plan;
use engine::run::Action;
use model::feature::{FeatureSettings, FeatureState, Features};
use model::instance::Instance;
use model::job::JobStatus;
use model::run::RunStatus;
use model::spec::{Retry, RetryEvent, RunSpec};
use model::time::{MINUTE, SECOND};
use model::workflow::{NodeStatus, PatternKind, Workflow, WorkflowStatus};
use model::{InstanceId, RunId};

/// Of the settings of a bench.
pub fn known() -> Features {
    let one = |name: &str| {
        let (install, remove) = (format!("install {name}"), format!("remove {name}"));
        let settings = FeatureSettings { install, remove, install_ms: MINUTE, ..FeatureSettings::default() };
        (name.to_owned(), settings)
    };
    ["a", "b"].map(one).into()
}

fn with(names: &[&str]) -> RunSpec {
    RunSpec { features: names.iter().map(|name| (*name).to_owned()).collect(), ..spec() }
}

/// The second run finds what was installed for the first.
pub fn story(bench: &mut Bench) -> RunId {
    bench.submit(with(&["a"]));
    bench.settle();
    let run = bench.submit(with(&["a", "b"]));
    bench.settle();
    run
}

/// What was installed is removed before its machine ends.
pub fn emptied_story(bench: &mut Bench) -> RunId {
    let run = bench.submit(with(&["a", "b"]));
    bench.advance(11 * SECOND); // the items of a worker that died are taken over meanwhile
    let id = bench.job(run).instance.unwrap();
    bench.terminate(id, true).unwrap();
    bench.advance(MINUTE);
    run
}

// For the matrix: scripts that fail, and scripts that never end.
pub fn install_fails(bench: &mut Bench) -> RunId {
    bench.runners.broken = vec!["a".into()];
    bench.submit(with(&["a"]))
}
pub fn install_never_ends(bench: &mut Bench) -> RunId {
    bench.runners.endless = vec!["a".into()];
    let run = bench.submit(with(&["a"]));
    bench.advance(2 * MINUTE);
    run
}
pub fn removal_fails(bench: &mut Bench) -> RunId {
    let run = story(bench);
    bench.runners.broken = vec!["a".into()];
    bench.terminate(machine(bench, run).id, true).unwrap();
    run
}
pub fn removal_never_ends(bench: &mut Bench) -> RunId {
    let run = story(bench);
    bench.runners.endless = vec!["a".into()];
    bench.terminate(machine(bench, run).id, true).unwrap();
    bench.advance(10 * MINUTE);
    run
}

fn machine(bench: &Bench, run: RunId) -> Instance {
    let id = bench.job(run).instance.unwrap();
    now(bench.engine.find_instance(id)).unwrap().unwrap()
}

fn ran(bench: &mut Bench, spec: RunSpec) -> InstanceId {
    let run = bench.submit(spec);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    machine(bench, run).id
}

fn launch_of(bench: &Bench, run: RunId) -> Workflow {
    now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap()
}

fn scripts(bench: &Bench) -> Vec<(&str, &str)> {
    bench.runners.scripts.iter().map(|(_, feature, act)| (feature.as_str(), *act)).collect()
}

fn state(machine: &Instance, name: &str) -> Option<FeatureState> {
    machine.features.iter().find(|it| it.name == name).map(|it| it.state)
}

#[test]
fn features_are_installed_before_the_job_and_removed_before_the_machine_ends() {
    let mut bench = Bench::brief();
    let run = bench.submit(with(&["a", "b"]));
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_eq!(scripts(&bench), [("a", "install"), ("b", "install")]);
    let (launch, machine) = (launch_of(&bench, run), machine(&bench, run));
    let inserted: Vec<&str> = launch.applied[0].nodes.iter().map(String::as_str).collect();
    assert_eq!(
        (launch.applied[0].pattern, inserted),
        (PatternKind::InsertAndReconverge, vec!["install-feature-a", "install-feature-b"])
    );
    let allocated = launch.nodes.iter().find(|node| node.name == "create-allocation").unwrap();
    assert!(allocated.after.iter().any(|name| name == "install-feature-a"), "{:?}", allocated.after);
    assert!(machine.has_features(&["a".to_owned(), "b".to_owned()]));
    bench.terminate(machine.id, true).unwrap();
    bench.advance(MINUTE);
    assert_eq!(scripts(&bench)[2..], [("a", "remove"), ("b", "remove")]);
    let ended = now(bench.engine.find_instance(machine.id)).unwrap().unwrap();
    assert_eq!(ended.features, []);
    let end = now(bench.engine.workflow(bench.org, ended.workflow.unwrap())).unwrap();
    assert_eq!((end.status, end.applied[0].pattern), (WorkflowStatus::Completed, PatternKind::ParallelFanOut));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_run_goes_to_a_machine_with_its_features_and_to_none_with_others() {
    let mut bench = Bench::brief_with(crate::bench::settings(4));
    let first = ran(&mut bench, with(&["a"]));
    assert_eq!(ran(&mut bench, with(&["a"])), first);
    assert_eq!(scripts(&bench), [("a", "install")], "what is there is not installed again");
    let plain = ran(&mut bench, spec());
    assert_ne!(plain, first, "it did not ask for `a`");
    assert_eq!(ran(&mut bench, with(&["b"])), plain, "a machine without any becomes one with `b`");
    assert_eq!(ran(&mut bench, with(&["b", "a"])), first.min(plain), "what is missing is installed");
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_script_that_fails_ends_the_job_and_what_it_left_is_cleared_before_the_next() {
    let mut bench = Bench::brief();
    bench.runners.broken = vec!["a".into()];
    let run = bench.submit(with(&["a", "b"]));
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("executor_error"));
    let failed = machine(&bench, run);
    assert_eq!(bench.runners.executions(run), 0, "its command was never started");
    assert_eq!((state(&failed, "a"), state(&failed, "b")), (Some(FeatureState::Broken), Some(FeatureState::Installed)));
    let message = bench.run(run).last_error.unwrap().message;
    assert!(message.contains("feature `a`") && message.contains("exit status: 1"), "{message}");
    bench.runners.broken.clear();
    assert_eq!(ran(&mut bench, with(&["a", "b"])), failed.id);
    assert_eq!(bench.runners.scripts.iter().filter(|(_, name, _)| name == "b").count(), 1);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_script_that_never_ends_is_given_up_after_its_time() {
    let mut bench = Bench::brief();
    bench.runners.endless = vec!["a".into()];
    let run = bench.submit(with(&["a"]));
    bench.advance(30 * SECOND);
    assert_eq!(bench.job(run).status, JobStatus::Provisioning);
    let why = now(bench.engine.why(bench.org, run)).unwrap().1.summary;
    assert!(why.contains("is being prepared with a"), "{why}");
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("executor_error"));
    assert_eq!(bench.runners.executions(run), 0);
    // Nor does it hold up the end of the machine for longer than its removal may take.
    let id = machine(&bench, run).id;
    bench.terminate(id, true).unwrap();
    bench.advance(3 * MINUTE);
    let ended = now(bench.engine.find_instance(id)).unwrap().unwrap();
    assert!(!ended.status.is_open(), "{}", ended.status);
    assert_eq!(state(&ended, "a"), Some(FeatureState::Left));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn one_that_cannot_be_removed_holds_up_no_other_and_not_the_machine() {
    let mut bench = Bench::brief();
    let id = ran(&mut bench, with(&["a", "b"]));
    bench.runners.broken = vec!["a".into()];
    bench.terminate(id, true).unwrap();
    bench.advance(MINUTE);
    let ended = now(bench.engine.find_instance(id)).unwrap().unwrap();
    assert_eq!(
        (ended.status.is_open(), state(&ended, "a"), state(&ended, "b")),
        (false, Some(FeatureState::Left), None)
    );
    let end = now(bench.engine.workflow(bench.org, ended.workflow.unwrap())).unwrap();
    let status = |name: &str| end.nodes.iter().find(|node| node.name == name).unwrap().status;
    assert_eq!(["remove-feature-a", "remove-feature-b"].map(status), [NodeStatus::Failed, NodeStatus::Completed]);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_run_that_is_cancelled_meanwhile_ends_and_a_late_answer_changes_nothing() {
    let mut bench = Bench::brief();
    bench.runners.endless = vec!["a".into()];
    bench.runners.plan = Some(Plan::Exit(0));
    let run = bench.submit(with(&["a"]));
    bench.advance(5 * SECOND);
    bench.act(run, Action::Cancel { abort: false }).unwrap();
    bench.settle();
    bench.expect_end(run, RunStatus::Cancelled, None);
    let id = machine(&bench, run).id;
    let said = |request| engine::feature::FeatureSaid { name: "a".into(), request, done: Ok(()) };
    now(bench.engine.feature_said(id, said(7))).unwrap();
    assert_eq!(state(&machine(&bench, run), "a"), Some(FeatureState::Installing), "nobody asked that");
    for _ in 0..2 {
        now(bench.engine.feature_said(id, said(1))).unwrap();
        assert_eq!(state(&machine(&bench, run), "a"), Some(FeatureState::Installed));
    }
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_machine_that_is_lost_while_it_is_prepared_is_replaced() {
    let mut bench = Bench::brief();
    bench.runners.endless = vec!["a".into()];
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None };
    let run = bench.submit(RunSpec { retry: Some(retry), ..with(&["a"]) });
    bench.advance(5 * SECOND);
    let first = machine(&bench, run).id;
    let name = bench.name_of(run);
    bench.provider.destroy(&name);
    bench.runners.endless.clear();
    bench.advance(2 * MINUTE);
    bench.expect_end(run, RunStatus::Completed, None);
    assert_ne!(machine(&bench, run).id, first);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn names_that_the_settings_do_not_have_are_refused() {
    let mut bench = Bench::brief();
    let key = bench.key();
    let refused = bench.submit_with(with(&["c"]), key).unwrap_err().to_string();
    assert!(refused.contains("unknown feature `c`"), "{refused}");
    let key = bench.key();
    let refused = bench.submit_with(with(&["a", "a"]), key).unwrap_err().to_string();
    assert!(refused.contains("named twice"), "{refused}");
}
