//! Cached runs: the second that is the same is answered, several at once share one execution, what was stopped is not kept.

use crate::bench::{Bench, now, shown, spec};
use crate::choice::full;
use crate::machines::{Plan, ended as ended_by};
use crate::money::spend_all_but;
use crate::sweeps::{send as sent_file, with_file};
use adapters::fake::FakeSettings;
use calls::refs::{RefName, Swap, Uuid};
use calls::{ExecId, NodeId};
use engine::Listing;
use engine::cache::{Garbage, Invalid, WhyOf};
use engine::run::{Action, Submission};
use engine::runner::What;
use model::attempt::MINIMUM_CHARGE;
use model::claim::LEASE_MS;
use model::execution::ExecutionStatus;
use model::host::HostFacts;
use model::job::JobReason;
use model::run::{Run, RunStatus};
use model::spec::{Cache, CallPart, Network, RunSpec, Sandbox};
use model::time::{DAY, HOUR, MINUTE};
use model::{Credits, Failure, OrgId, Refused, RunId};
use std::sync::Arc;
use store::object::Objects;
use store::{Lane, Tx};

pub fn cached(spec: RunSpec) -> RunSpec {
    salted(spec, "")
}

pub fn salted(spec: RunSpec, salt: &str) -> RunSpec {
    RunSpec { call: Some(CallPart::Caller(Cache { salt: salt.to_owned(), errors: false })), ..spec }
}

fn or_error(spec: RunSpec) -> RunSpec {
    RunSpec { call: Some(CallPart::Caller(Cache { salt: String::new(), errors: true })), ..spec }
}

/// The run that executed what a caller waits for, or was answered with.
fn backend(bench: &Bench, caller: RunId) -> Run {
    bench.run(bench.run(caller).call.unwrap().run.unwrap())
}

pub fn is_hit(bench: &Bench, run: RunId) -> bool {
    let called = bench.run(run).call.unwrap();
    called.execution.is_none() && called.exec.is_some()
}

fn ended(bench: &Bench, run: RunId) -> (RunStatus, Option<i32>) {
    let run = bench.run(run);
    (run.status, run.exit_code)
}

const DONE: (RunStatus, Option<i32>) = (RunStatus::Completed, Some(0));

#[test]
fn the_second_run_that_is_the_same_is_answered_in_one_commit_without_a_job() {
    let mut bench = Bench::new();
    let first = bench.submit(cached(spec()));
    assert_eq!(bench.run(first).status, RunStatus::Created, "it waits");
    bench.settle();
    assert_eq!((ended(&bench, first), ended(&bench, backend(&bench, first).id)), (DONE, DONE));
    assert!(!is_hit(&bench, first) && bench.jobs(first).is_empty());
    let executed = bench.calls.lock().unwrap().len();
    let second = bench.submit(cached(spec()));
    assert_eq!(ended(&bench, second), DONE, "without any work of a worker");
    assert!(is_hit(&bench, second) && bench.jobs(second).is_empty());
    assert_eq!(backend(&bench, second).id, backend(&bench, first).id, "it says where its result came from");
    assert_eq!(bench.calls.lock().unwrap().len(), executed, "no machine was asked for");
    let tree = now(bench.engine.tree(bench.org, second)).unwrap();
    let steps: Vec<_> = tree.steps.iter().map(|step| (step.replayed, step.status.as_str())).collect();
    assert_eq!((tree.agents.len(), tree.tasks.len(), steps), (1, 1, vec![(true, "completed")]));
    let paid = bench.snapshot(second).attempt.unwrap();
    assert_eq!((paid.reserved, paid.charged), (MINIMUM_CHARGE, MINIMUM_CHARGE));
    bench.settle();
    bench.check();
    bench.check_all_gone();
}

#[test]
fn anything_that_may_change_the_result_is_another_key_and_the_rest_is_not() {
    let mut bench = Bench::new();
    let hash = sent_file(&mut bench, b"data");
    let base = || cached(with_file(&hash));
    let first = bench.submit(base());
    bench.settle();
    assert_eq!(ended(&bench, first), DONE);
    let of = |text: &str| model::spec::Command::Shell(text.into());
    let others = [
        ("salt", salted(with_file(&hash), "v2")),
        ("files", cached(spec())),
        ("command", RunSpec { command: of("false"), ..base() }),
        ("variable", RunSpec { env: [("A".into(), "1".into())].into(), ..base() }),
        ("folder", RunSpec { working_dir: Some("src".into()), ..base() }),
        ("artifacts", RunSpec { artifacts: vec!["out".into()], ..base() }),
        ("merge", RunSpec { merge: true, ..base() }),
        ("sandbox", RunSpec { sandbox: Some(Sandbox::DEFAULT), ..base() }),
        ("network", RunSpec { sandbox: Some(Sandbox { network: Network::None, ..Sandbox::DEFAULT }), ..base() }),
    ];
    for (what, other) in others {
        let run = bench.submit(other);
        assert_eq!(bench.run(run).status, RunStatus::Created, "{what} is in the key");
        bench.settle();
    }
    let same = RunSpec {
        budget: Some(Credits::whole(5)),
        hold_ms: Some(MINUTE),
        priority: model::spec::Priority::High,
        max_duration_ms: Some(MINUTE),
        ..base()
    };
    let run = bench.submit(same);
    assert!(is_hit(&bench, run), "how long, how dear and how urgent it is changes nothing");
    bench.settle();
    bench.check();
}

/// Its key says where it runs: what another provider's machines made would answer under that name.
#[test]
fn a_cached_run_is_executed_by_the_provider_of_its_key_alone() {
    let mut bench = Bench::new();
    bench.engine.context.providers.insert("other".into(), Listing::of(bench.provider.clone()));
    full(&mut bench, 1);
    let asked = RunSpec { providers: vec!["fake".into(), "other".into()], ..cached(spec()) };
    let run = bench.submit(asked);
    bench.settle();
    bench.advance(MINUTE);
    let executes = backend(&bench, run);
    assert_eq!((executes.spec.provider.as_str(), &executes.spec.providers), ("fake", &vec!["fake".to_owned()]));
    let jobs = bench.jobs(executes.id);
    assert!(!jobs.is_empty() && jobs.iter().all(|job| job.provider == "fake"), "{jobs:?}");
    bench.check();
}

/// The hosts of one provider differ: a result is kept for one platform, and is made nowhere else.
#[test]
fn a_cached_run_waits_for_a_host_of_the_platform_in_its_key() {
    let facts = |os_release: &str| HostFacts {
        architecture: "x86_64".into(),
        os_release: os_release.into(),
        ..HostFacts::default()
    };
    let hosts = vec![("box1".to_owned(), facts("debian 12")), ("box2".to_owned(), facts("debian 13"))];
    let mut bench = Bench::with(FakeSettings { hosts, ..crate::bench::settings(2) }, engine::Config::default());
    now(bench.engine.see_hosts("fake")).unwrap();
    bench.runners.plan = Some(Plan::Run);
    let place = |bench: &Bench, run: RunId| bench.snapshot(run).instance.and_then(|machine| machine.place);
    let first = bench.submit(cached(spec()));
    bench.settle();
    let plain = bench.submit(spec());
    bench.settle();
    let second = bench.submit(salted(spec(), "v2"));
    bench.settle();
    let [one, two] = [first, second].map(|run| backend(&bench, run).id);
    assert_eq!((place(&bench, one).as_deref(), place(&bench, plain).as_deref()), (Some("box1"), Some("box2")));
    let why = now(bench.engine.why(bench.org, two)).unwrap().1;
    assert!(format!("{why:?}").contains("box2: it is another platform: x86_64, debian 13"), "{why:?}");
    bench.exits(plain, 0);
    bench.advance(MINUTE);
    assert_eq!(place(&bench, two), None, "an idle machine there is of no use, either");
    bench.exits(one, 0);
    bench.advance(MINUTE);
    assert_eq!(place(&bench, two).as_deref(), Some("box1"));
    bench.exits(two, 0);
    bench.advance(MINUTE);
    let hit = bench.submit(cached(spec()));
    assert!(is_hit(&bench, hit));
    let from = now(bench.engine.backtrack(bench.org, hit.to_string())).unwrap();
    let machine = &from.inputs.iter().find(|(name, _)| name == "machine").unwrap().1;
    assert_eq!((&machine["provider"], &machine["os_release"]), (&"fake".into(), &"debian 12".into()));
    bench.check();
}

#[test]
fn runs_that_are_the_same_share_one_execution_and_the_last_that_leaves_ends_it() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let [one, two] = [0, 1].map(|_| bench.submit(cached(spec())));
    bench.settle();
    let executes = backend(&bench, one).id;
    assert_eq!((executes, bench.run(executes).status), (backend(&bench, two).id, RunStatus::Running));
    bench.cancel(one);
    bench.advance(2 * MINUTE);
    assert_eq!(bench.run(one).status, RunStatus::Cancelled);
    assert_eq!(bench.run(executes).status, RunStatus::Running, "the other one waits for it");
    bench.exits(executes, 0);
    bench.settle();
    assert_eq!(ended(&bench, two), DONE);
    assert_eq!(bench.run(one).status, RunStatus::Cancelled, "what is left is left");
    // Both leave: no run waits for the result.
    let [one, two] = [0, 1].map(|_| bench.submit(salted(spec(), "again")));
    bench.settle();
    let executes = backend(&bench, one).id;
    bench.cancel(one);
    now(bench.engine.delete(bench.org, two)).unwrap();
    bench.settle();
    assert_eq!(bench.run(executes).status, RunStatus::Cancelled);
    let three = bench.submit(salted(spec(), "again"));
    assert_ne!(bench.run(three).call.unwrap().run, Some(executes), "what was cancelled is not kept");
    bench.cancel(three);
    bench.settle();
    bench.check();
    bench.check_all_gone();
}

/// The run that executes the call is stopped when the credits end, and nothing is left for the charge of its caller.
#[test]
fn a_caller_is_answered_although_its_org_has_no_credits_left() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let caller = bench.submit(cached(spec()));
    bench.settle();
    spend_all_but(&bench, Credits::ZERO);
    bench.advance(2 * HOUR);
    assert!(bench.run(backend(&bench, caller).id).status.is_end());
    assert_eq!(bench.balance().available, Credits::ZERO, "or this shows nothing");
    assert_eq!(bench.run(caller).status, RunStatus::Failed, "{:?}", bench.run(caller).last_error);
    bench.check();
}

#[test]
fn an_exit_code_is_kept_as_an_error_and_runs_again_unless_errors_are_answers() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Exit(3));
    let first = bench.submit(cached(spec()));
    bench.settle();
    assert_eq!(ended(&bench, first), (RunStatus::Failed, Some(3)));
    let again = bench.submit(cached(spec()));
    assert_eq!(bench.run(again).status, RunStatus::Created);
    let why = now(bench.engine.cache_why(bench.org, WhyOf::Run(again))).unwrap();
    assert!(why.note.unwrap().contains("--cache-errors"));
    bench.settle();
    let answered = bench.submit(or_error(spec()));
    assert_eq!((ended(&bench, answered), is_hit(&bench, answered)), ((RunStatus::Failed, Some(3)), true));
    bench.runners.plan = Some(Plan::Exit(0));
    let well = bench.submit(cached(spec()));
    bench.settle();
    assert_eq!(ended(&bench, well), DONE);
    let hit = bench.submit(cached(spec()));
    assert_eq!((ended(&bench, hit), is_hit(&bench, hit)), (DONE, true), "the newest result answers");
    bench.settle();
    bench.check();
}

#[test]
fn what_a_person_stopped_is_the_failure_of_its_callers_and_is_not_kept() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let caller = bench.submit(cached(spec()));
    bench.settle();
    let executes = backend(&bench, caller).id;
    bench.cancel(executes);
    bench.settle();
    let failed = bench.run(caller);
    assert_eq!(failed.status, RunStatus::Failed);
    let error = failed.last_error.unwrap();
    assert!(error.message.contains(&format!("{executes}, which executed it, was cancelled")), "{error:?}");
    let refused = bench.act(caller, Action::Retry { force: false });
    assert!(matches!(refused, Err(Failure::Refused(Refused::Conflict { .. }))), "{refused:?}");
    let again = bench.submit(cached(spec()));
    assert_eq!(bench.run(again).status, RunStatus::Created);
    bench.cancel(again);
    bench.settle();
    bench.check();
    bench.check_all_gone();
}

#[test]
fn another_org_never_gets_a_result() {
    let mut bench = Bench::new();
    bench.submit(cached(spec()));
    bench.settle();
    let other: OrgId = now(bench.engine.ensure_org("other")).unwrap();
    let submission =
        Submission { org: other, by: None, name: None, spec: cached(spec()), plans: Default::default(), start: true };
    let answer = now(bench.engine.submit(submission, None, shown())).unwrap();
    let run: RunId = String::from_utf8(answer.body).unwrap().parse().unwrap();
    let seen = now(bench.engine.run(other, run)).unwrap();
    assert_eq!((seen.status, seen.call.unwrap().exec), (RunStatus::Created, None));
    let hit = bench.submit(cached(spec()));
    let exec = bench.run(hit).call.unwrap().exec.unwrap();
    let theirs = now(bench.engine.output_of(other, &exec));
    assert!(theirs.is_err(), "nor by its name");
    assert!(now(bench.engine.backtrack(other, exec.clone())).is_err());
    assert_eq!(now(bench.engine.backtrack(bench.org, exec[..8].to_owned())).unwrap().exec.id.to_string(), exec);
}

#[test]
fn why_names_what_differs_from_the_run_before() {
    let mut bench = Bench::new();
    let hash = sent_file(&mut bench, b"one!");
    bench.submit(cached(with_file(&hash)));
    bench.settle();
    bench.advance(MINUTE);
    let other = sent_file(&mut bench, b"two!");
    let changed = RunSpec { env: [("MODE".into(), "fast".into())].into(), ..salted(with_file(&other), "s") };
    let run = bench.submit(changed);
    let why = now(bench.engine.cache_why(bench.org, WhyOf::Run(run))).unwrap();
    let said = ["file data was changed", "variable MODE was added", r#"salt: "", now "s""#];
    assert_eq!(why.differences, said);
    bench.settle();
    bench.advance(MINUTE);
    let hit = bench.submit(cached(with_file(&hash)));
    let why = now(bench.engine.cache_why(bench.org, WhyOf::Run(hit))).unwrap();
    assert_eq!((why.differences.len(), why.with.unwrap().run), (0, bench.run(hit).call.unwrap().run));
}

#[test]
fn what_is_invalidated_or_collected_answers_nobody() {
    let mut bench = Bench::new();
    let run = bench.submit(cached(spec()));
    bench.submit(salted(spec(), "other"));
    bench.settle();
    let node = bench.run(run).call.unwrap().node.parse().unwrap();
    assert_eq!(invalidate(&bench, Invalid::Node(node)), "1");
    assert_eq!(invalidate(&bench, Invalid::Node(node)), "0");
    let again = bench.submit(cached(spec()));
    assert_eq!(bench.run(again).status, RunStatus::Created);
    let other = bench.submit(salted(spec(), "other"));
    assert!(is_hit(&bench, other));
    bench.settle();
    assert_eq!(invalidate(&bench, Invalid::Runs), "2");
    let third = bench.submit(cached(spec()));
    bench.settle();
    assert!(!is_hit(&bench, third));
    // Long unused, and nothing leads to it any more: one object after the other goes, and what is kept stays whole.
    bench.jump(2 * DAY);
    let kept = bench.submit(cached(spec()));
    assert!(is_hit(&bench, kept));
    let collect = |older_than_ms| {
        now(bench.engine.collect_garbage(bench.org, Garbage { older_than_ms, max_bytes: i64::MAX })).unwrap()
    };
    let swept = collect(DAY);
    assert!(swept.pins == 0 && swept.objects > 0, "{swept:?}");
    assert_eq!(collect(DAY).objects, 0);
    let hit = bench.submit(cached(spec()));
    assert_eq!((ended(&bench, hit), is_hit(&bench, hit)), (DONE, true));
    bench.advance(MINUTE);
    let swept = now(bench.engine.collect_garbage(bench.org, Garbage { older_than_ms: 0, max_bytes: 0 })).unwrap();
    assert_eq!(swept.pins, 1);
    let again = bench.submit(cached(spec()));
    bench.settle();
    assert!(!is_hit(&bench, again) && ended(&bench, again) == DONE);
    bench.check();
}

#[test]
fn bytes_of_a_hit_stay_while_its_artifacts_are_listed() {
    let mut config = engine::Config::default();
    (config.timings.contents_kept_ms, config.calls.unnamed_kept_ms) = (MINUTE, MINUTE);
    let mut bench = Bench::with(crate::bench::settings(2), config);
    bench.runners.plan = Some(Plan::Run);
    let with_artifact = || RunSpec { artifacts: vec!["out".into()], ..cached(spec()) };
    let caller = bench.submit(with_artifact());
    bench.settle();
    let executes = backend(&bench, caller).id;
    let job = bench.job(executes);
    let made = crate::artifacts::announce(&bench, &job, "out", 2, crate::artifacts::FILE).unwrap();
    crate::artifacts::upload(&bench, &made, b"ok").unwrap();
    bench.exits(executes, 0);
    bench.settle();
    let hit = bench.submit(with_artifact());
    assert!(is_hit(&bench, hit));
    let listed = now(bench.engine.artifacts(bench.org, hit, 0, 10)).unwrap();
    assert_eq!((listed.len(), listed[0].in_contents), (1, true));
    // The result is too much; its pin, its exec and its records go, and then the sweep of files comes.
    bench.jump(DAY);
    let swept =
        now(bench.engine.collect_garbage(bench.org, Garbage { older_than_ms: DAY * 90, max_bytes: 0 })).unwrap();
    assert!(swept.pins == 1 && swept.objects > 0, "{swept:?}");
    bench.advance(2 * DAY);
    let (_, download) = now(bench.engine.open_artifact(bench.org, hit, listed[0].id)).unwrap();
    assert_eq!(download.read_all().unwrap(), b"ok");
    // Past their expiry nothing needs the bytes.
    bench.advance(bench.engine.context.config.timings.artifacts_kept_ms);
    bench.advance(2 * DAY);
    assert!(now(bench.engine.open_artifact(bench.org, hit, listed[0].id)).is_err());
    let hash = listed[0].hash.clone().unwrap();
    assert_eq!(now(bench.engine.missing_blobs(bench.org, vec![hash.clone()])).unwrap(), [hash]);
    bench.check();
}

#[test]
fn a_result_outlives_the_runs_that_made_it() {
    let mut config = engine::Config::default();
    (config.timings.contents_kept_ms, config.timings.artifacts_kept_ms) = (MINUTE, HOUR);
    let mut bench = Bench::with(crate::bench::settings(2), config);
    bench.runners.plan = Some(Plan::Run);
    let with_artifact = || RunSpec { artifacts: vec!["out".into()], ..cached(spec()) };
    let caller = bench.submit(with_artifact());
    bench.settle();
    let executes = backend(&bench, caller).id;
    let job = bench.job(executes);
    let made = crate::artifacts::announce(&bench, &job, "out", 2, crate::artifacts::FILE).unwrap();
    crate::artifacts::upload(&bench, &made, b"ok").unwrap();
    bench.exits(executes, 0);
    bench.settle();
    let listed = now(bench.engine.artifacts(bench.org, caller, 0, 10)).unwrap().remove(0);
    for run in [caller, executes] {
        now(bench.engine.delete(bench.org, run)).unwrap();
    }
    bench.jump(2 * DAY);
    bench.advance(2 * HOUR);
    assert!(now(bench.engine.open_artifact(bench.org, caller, listed.id)).is_err(), "that of the run has expired");
    let hit = bench.submit(with_artifact());
    assert!(is_hit(&bench, hit));
    let listed = now(bench.engine.artifacts(bench.org, hit, 0, 10)).unwrap().remove(0);
    let (_, download) = now(bench.engine.open_artifact(bench.org, hit, listed.id)).unwrap();
    assert_eq!(download.read_all().unwrap(), b"ok");
    let exec = bench.run(hit).call.unwrap().exec.unwrap();
    assert_eq!(now(bench.engine.output_of(bench.org, &exec)).unwrap().exec, exec);
    bench.check();
}

fn invalidate(bench: &Bench, what: Invalid) -> String {
    let count: engine::cache::CountRender = Arc::new(|count| count.to_string().into_bytes());
    let answer = now(bench.engine.invalidate(bench.org, what, None, count)).unwrap();
    String::from_utf8(answer.body).unwrap()
}

fn node(bench: &Bench, caller: RunId) -> NodeId {
    bench.run(caller).call.unwrap().node.parse().unwrap()
}

#[test]
fn what_is_executed_while_all_is_invalidated_answers_its_callers_and_nobody_after_them() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let before = [0, 1].map(|_| bench.submit(cached(spec())));
    bench.settle();
    let old = backend(&bench, before[0]).id;
    assert_eq!(invalidate(&bench, Invalid::Runs), "0");
    let later = bench.submit(cached(spec()));
    bench.settle();
    let new = backend(&bench, later).id;
    assert_ne!(new, old, "who asks now has an execution of now");
    bench.exits(old, 0);
    for caller in before {
        assert_eq!((ended(&bench, caller), backend(&bench, caller).id), (DONE, old));
    }
    assert_eq!(bench.run(later).status, RunStatus::Created, "it waits for its own");
    let after = bench.submit(cached(spec()));
    assert!(!is_hit(&bench, after), "nobody is answered with what was invalidated");
    bench.exits(new, 0);
    for caller in [later, after] {
        assert_eq!((ended(&bench, caller), backend(&bench, caller).id), (DONE, new));
    }
    let hit = bench.submit(cached(spec()));
    assert_eq!((is_hit(&bench, hit), backend(&bench, hit).id), (true, new));
    bench.settle();
    bench.check();
}

#[test]
fn a_result_that_is_pinned_before_its_execution_begins_is_the_answer() {
    let mut bench = Bench::new();
    let first = bench.submit(cached(spec()));
    bench.settle();
    let (node, hit) = (node(&bench, first), bench.submit(cached(spec())));
    let exec: ExecId = bench.run(hit).call.unwrap().exec.unwrap().parse().unwrap();
    assert_eq!(invalidate(&bench, Invalid::Node(node)), "1");
    let caller = bench.submit(cached(spec()));
    let id = bench.run(caller).call.unwrap().execution.expect("it has opened an execution");
    let (org, project) = (bench.org, bench.config.calls.project.clone());
    let pin = move |tx: &mut Tx| {
        let name = RefName::Index(Uuid::derived(&format!("index of {org} {project}")));
        let at = store::refs::lock(tx, org, &name)?.expect("there is an index");
        let pinned = calls::history::pin(&mut Objects { tx, org }, at, &[(node, exec)].into());
        let (next, records) = pinned.expect("it is whole");
        store::object::put(tx, org, &records)?;
        let swap = Swap { expect: Some(at), to: Some(next) };
        store::refs::swap(tx, org, &name, swap)?.expect("it is locked");
        store::pin::set(tx, org, &project, node, exec)
    };
    now(bench.store.write(Lane::Normal, "test.pin", pin)).unwrap();
    let asked = bench.calls.lock().unwrap().len();
    bench.settle();
    assert_eq!((ended(&bench, caller), backend(&bench, caller).id), (DONE, backend(&bench, first).id));
    let it = now(bench.store.read("test.execution", move |tx| store::execution::find(tx, id))).unwrap().unwrap();
    assert_eq!((it.status, it.exec), (ExecutionStatus::PinnedHit, Some(exec.to_string())));
    assert_eq!(bench.calls.lock().unwrap().len(), asked, "nothing was executed");
    bench.check();
}

#[test]
fn of_a_node_the_newest_ten_execs_are_kept() {
    let mut bench = Bench::new();
    for _ in 0..11 {
        let run = bench.submit(cached(spec()));
        bench.settle();
        assert!(!is_hit(&bench, run) && ended(&bench, run) == DONE);
        let node = node(&bench, run);
        assert_eq!(invalidate(&bench, Invalid::Node(node)), "1");
        bench.advance(MINUTE);
    }
    let pinned = bench.submit(cached(spec()));
    bench.settle();
    let (org, node) = (bench.org, node(&bench, pinned));
    let execs = |bench: &Bench| {
        let read = move |tx: &mut Tx| {
            let rows = store::exec::of_node(tx, org, node, 100)?;
            let is_whole = |row: &store::exec::ExecRow| calls::read::exec(&mut Objects { tx, org }, row.id).is_ok();
            Ok((rows.iter().map(|row| row.id).collect::<Vec<_>>(), rows.iter().all(is_whole)))
        };
        now(bench.store.read("test.execs", read)).unwrap()
    };
    let (all, _) = execs(&bench);
    assert_eq!(all.len(), 12, "each execution has appended one");
    bench.jump(2 * DAY);
    assert!({
        let hit = bench.submit(cached(spec()));
        is_hit(&bench, hit)
    });
    let asked = Garbage { older_than_ms: DAY, max_bytes: i64::MAX };
    now(bench.engine.collect_garbage(bench.org, asked)).unwrap();
    let (kept, whole) = execs(&bench);
    assert_eq!((kept.as_slice(), whole), (&all[..10], true));
    bench.check();
}

#[test]
fn what_is_too_much_goes_and_what_was_used_last_stays() {
    let mut bench = Bench::new();
    for salt in ["a", "b", "c"] {
        bench.submit(salted(spec(), salt));
        bench.settle();
        bench.advance(MINUTE);
    }
    bench.jump(2 * HOUR);
    let used = bench.submit(salted(spec(), "a"));
    assert!(is_hit(&bench, used));
    let pins = now(bench.engine.pins(bench.org, i64::MAX, 10)).unwrap();
    let bytes: i64 = pins.iter().map(|pin| pin.exec.bytes).sum();
    let asked = Garbage { older_than_ms: DAY, max_bytes: bytes - 1 };
    assert_eq!(now(bench.engine.collect_garbage(bench.org, asked)).unwrap().pins, 1);
    for (salt, stays) in [("a", true), ("c", true), ("b", false)] {
        let run = bench.submit(salted(spec(), salt));
        assert_eq!(is_hit(&bench, run), stays, "{salt}");
    }
    bench.settle();
    bench.check();
}

#[test]
fn a_claim_names_its_job_and_its_owner_keeps_the_lease_up() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let callers = ["one", "two"].map(|salt| bench.submit(salted(spec(), salt)));
    bench.settle();
    let claim = |bench: &Bench, caller: RunId| {
        let (org, id) = (bench.org, bench.run(caller).call.unwrap().execution.unwrap());
        let read = move |tx: &mut Tx| {
            let it = store::execution::find(tx, id)?.expect("an execution stays");
            Ok((store::claim::find(tx, org, &it.key)?, format!("{}-{}", it.key, it.attempt)))
        };
        now(bench.store.read("test.claim", read)).unwrap()
    };
    let first = callers.map(|caller| {
        let (found, job) = claim(&bench, caller);
        let found = found.expect("it is claimed");
        assert_eq!(found.job, Some(job));
        found
    });
    assert_ne!(first[0].key, first[1].key, "each key has a claim of its own");
    bench.advance(LEASE_MS);
    for (caller, first) in callers.into_iter().zip(first) {
        let (later, _) = claim(&bench, caller);
        let later = later.expect("it runs");
        assert!(later.lease_until > bench.at() && later.lease_until > first.lease_until, "{first:?} {later:?}");
        assert_eq!((later.fence, later.owner, later.job), (first.fence, first.owner, first.job));
        let executes = backend(&bench, caller).id;
        bench.exits(executes, 0);
        assert_eq!(claim(&bench, caller).0, None, "the end releases it");
    }
    bench.check();
}

/// What is done to a run that executes a call, and the code of the error that its caller then has.
type Stopped = (&'static str, fn(&mut Bench, RunId), &'static str);

#[test]
fn what_was_stopped_from_outside_or_is_not_whole_is_never_kept() {
    fn says_end(bench: &mut Bench, run: RunId, reason: JobReason, killed: Option<i32>) {
        let mut end = ended_by(reason, None, 0, 0);
        if let What::Ended { signal, .. } = &mut end {
            *signal = killed;
        }
        bench.say(run, end);
    }
    let cases: [Stopped; 7] = [
        ("a signal", |bench, run| says_end(bench, run, JobReason::ExitedWithError, Some(9)), "exited_with_error"),
        ("out of memory", |bench, run| says_end(bench, run, JobReason::LimitsExceeded, None), "limits_exceeded"),
        ("a time-out", |bench, run| says_end(bench, run, JobReason::MaxDuration, None), "max_duration"),
        ("an interruption", |bench, run| says_end(bench, run, JobReason::Interrupted, None), "interrupted"),
        ("a cancel", |bench, run| bench.cancel(run), "cancelled"),
        (
            "a cut log",
            |bench, run| {
                bench.say(run, ended_by(JobReason::DoneByRunner, Some(0), 5, 0));
                bench.cut_off(run);
                bench.advance(2 * MINUTE);
            },
            "log_cut",
        ),
        (
            "a missing artifact",
            |bench, run| {
                let job = bench.job(run);
                crate::artifacts::announce(bench, &job, "out", 2, crate::artifacts::FILE).unwrap();
                bench.exits(run, 0);
                bench.advance(DAY);
            },
            "artifacts_missing",
        ),
    ];
    for (what, stop, code) in cases {
        let mut bench = Bench::new();
        bench.runners.plan = Some(Plan::Run);
        let asked = || RunSpec { artifacts: vec!["out".into()], ..cached(spec()) };
        let caller = bench.submit(asked());
        bench.settle();
        let executes = backend(&bench, caller).id;
        stop(&mut bench, executes);
        bench.settle();
        let failed = bench.run(caller);
        let error = failed.last_error.map(|error| error.code);
        assert_eq!((failed.status, error.as_deref()), (RunStatus::Failed, Some(code)), "{what}");
        assert_eq!(now(bench.engine.pins(bench.org, i64::MAX, 10)).unwrap(), [], "{what}");
        let again = bench.submit(asked());
        assert!(!is_hit(&bench, again), "{what}");
        bench.cancel(again);
        bench.settle();
        bench.check();
    }
}

/// For the stories of `crashes`: two callers, one execution, and a third that is answered.
pub fn story(bench: &mut Bench) -> RunId {
    // The items of a worker that died are taken over meanwhile.
    const TAKEN_OVER_MS: i64 = 11_000;
    let one = bench.submit(cached(spec()));
    let two = bench.submit(cached(spec()));
    bench.advance(TAKEN_OVER_MS);
    bench.advance(TAKEN_OVER_MS);
    let hit = bench.submit(cached(spec()));
    for run in [one, two, hit] {
        assert_eq!(ended(bench, run), DONE);
    }
    let executes = backend(bench, one).id;
    assert_eq!((backend(bench, two).id, backend(bench, hit).id), (executes, executes));
    executes
}
