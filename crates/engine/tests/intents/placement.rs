//! Who gets which machine, in which order, and who has to go for whom.

use crate::agents;
use crate::bench::{Bench, PRICE, now, settings, shown, spec};
use crate::machines::Plan;
use adapters::FakeProvider;
use adapters::fake::{FakeSettings, Fate};
use engine::Config;
use engine::plan::Place;
use engine::run::{Plans, Submission};
use model::host::HostFacts;
use model::instance::InstanceStatus;
use model::plan::{AgentPlan, MachinePlan, StepPlan};
use model::run::{Phase, RunStatus};
use model::spec::{Gpu, Priority, Resources, Retry, RetryEvent, RunSpec, Sandbox};
use model::step::ToolKind;
use model::time::{HOUR, MINUTE, SECOND};
use model::{Credits, Refused, RunId, Timestamp};
use serde_json::json;
use std::sync::Arc;

fn sized(gigabytes: i64) -> RunSpec {
    RunSpec { resources: Resources { memory_bytes: Some(gigabytes << 30), ..Resources::default() }, ..spec() }
}

fn one_machine() -> Bench {
    Bench::with(settings(1), Config::default())
}

fn placed_at(bench: &Bench, run: RunId) -> Timestamp {
    bench.job(run).placed_at.expect("it was placed")
}

/// Started in the order of submission within a priority; one job a machine at a time.
#[test]
fn waiting_runs_are_served_by_priority_and_then_by_turn() {
    let mut bench = one_machine();
    bench.runners.plan = Some(Plan::Run);
    let first = bench.submit(spec());
    bench.settle();
    let normal: Vec<RunId> = (0..3).map(|_| bench.submit(spec())).collect();
    let high: Vec<RunId> = (0..2).map(|_| bench.submit(RunSpec { priority: Priority::High, ..spec() })).collect();
    assert!(normal.iter().chain(&high).all(|run| bench.run(*run).phase == Some(Phase::Queued)));
    let mut order = vec![first];
    for _ in 0..6 {
        let run = *order.last().unwrap();
        bench.advance(SECOND);
        bench.exits(run, 0);
        let all = normal.iter().chain(&high);
        order.extend(all.filter(|run| bench.run(**run).phase == Some(Phase::Running)));
        bench.check();
    }
    assert_eq!(order, [vec![first], high, normal].concat());
    assert!(order.windows(2).all(|pair| placed_at(&bench, pair[0]) < placed_at(&bench, pair[1])));
}

/// Orgs take turns in the list: an org that has submitted many jobs does not keep out one that comes later.
#[test]
fn orgs_are_served_in_turn() {
    let mut bench = one_machine();
    bench.runners.plan = Some(Plan::Run);
    let (busy, other) = (bench.org, now(bench.engine.ensure_org("other")).unwrap());
    let mut order = vec![(busy, bench.submit(spec()))];
    bench.settle();
    let [a, b, c, d] = [(); 4].map(|()| (busy, bench.submit(spec())));
    bench.org = other;
    let [x, y] = [(); 2].map(|()| (other, bench.submit(spec())));
    let why = now(bench.engine.why(other, y.1)).unwrap().1;
    assert_eq!(why.summary, "it waits behind 3 runs on fake", "two of theirs and one of its own");
    for _ in 0..6 {
        let (org, run) = *order.last().unwrap();
        bench.org = org;
        bench.exits(run, 0);
        bench.advance(MINUTE); // an org's machine has to go before the other's can come
        for (org, run) in [a, b, c, d, x, y] {
            bench.org = org;
            order.extend((bench.run(run).phase == Some(Phase::Running)).then_some((org, run)));
        }
    }
    assert_eq!(order[1..], [a, x, b, y, c, d]);
    bench.check();
}

/// Of two hosts one cannot make sandboxes: it is of no use to a run that wants one, however free it is.
#[test]
fn a_run_that_wants_a_sandbox_gets_a_host_that_can_make_one() {
    let facts = |no_sandbox: Option<&str>| HostFacts {
        architecture: "x86_64".into(),
        os_release: "debian 12".into(),
        no_sandbox: no_sandbox.map(str::to_owned),
        ..HostFacts::default()
    };
    let bench = |second: Option<&str>| {
        let hosts = vec![("box1".to_owned(), facts(Some("no bwrap"))), ("box2".to_owned(), facts(second))];
        let bench = Bench::with(FakeSettings { hosts, ..settings(2) }, Config::default());
        now(bench.engine.see_hosts("fake")).unwrap();
        bench
    };
    let sandboxed = || RunSpec { sandbox: Some(Sandbox::DEFAULT), ..spec() };
    let place = |bench: &Bench, run: RunId| bench.snapshot(run).instance.and_then(|machine| machine.place);
    let mut able = bench(None);
    able.runners.plan = Some(Plan::Run);
    let [first, second] = [(); 2].map(|()| able.submit(sandboxed()));
    able.settle();
    assert_eq!((place(&able, first).as_deref(), able.run(second).phase), (Some("box2"), Some(Phase::Queued)));
    let why = now(able.engine.why(able.org, second)).unwrap().1;
    assert!(format!("{why:?}").contains("box1: it cannot make sandboxes: no bwrap"), "{why:?}");
    able.exits(first, 0);
    able.advance(MINUTE);
    assert_eq!(place(&able, second).as_deref(), Some("box2"), "as soon as it is free");
    let plain = able.submit(spec());
    able.settle();
    assert_eq!(place(&able, plain).as_deref(), Some("box1"), "without a sandbox it is as good as any");
    able.exits(plain, 0);
    let third = able.submit(sandboxed());
    able.settle();
    assert_eq!(able.run(third).phase, Some(Phase::Queued), "an idle machine there is of no use, either");
    able.exits(second, 0);
    able.advance(MINUTE);
    assert_eq!(place(&able, third).as_deref(), Some("box2"));
    able.exits(third, 0);
    able.check();
    let mut unable = bench(Some("no namespaces"));
    let key = unable.key();
    let refused = unable.submit_with(sandboxed(), key).unwrap_err();
    let said = |why: &str| why.contains("box1: no bwrap") && why.contains("box2: no namespaces");
    assert!(matches!(refused.refused(), Some(Refused::NoSandbox { place, why }) if place == "fake" && said(why)));
    let run = unable.submit(spec());
    unable.settle();
    unable.expect_end(run, RunStatus::Completed, None);
}

fn host(name: &str, no_sandbox: Option<&str>, gpus: &[&str]) -> (String, HostFacts) {
    let facts = HostFacts {
        architecture: "x86_64".into(),
        os_release: "debian 12".into(),
        gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
        no_sandbox: no_sandbox.map(str::to_owned),
        ..HostFacts::default()
    };
    (name.to_owned(), facts)
}

/// A plan with one command on a machine like this.
fn on_machine(machine: MachinePlan) -> Plans {
    let step = StepPlan { input: json!({ "shell": "true" }), ..StepPlan::new("only", ToolKind::Command) };
    let agent = AgentPlan { machine: Some(machine), ..agents::agent("one", vec![agents::task("all", vec![step])]) };
    Plans { agents: vec![agent], ..Plans::default() }
}

/// No host of the provider can make a sandbox. That matters only for agents around whose processes there is one.
#[test]
fn a_sandbox_is_asked_only_of_the_machines_whose_processes_it_is_around() {
    let hosts = vec![host("box1", Some("no bwrap"), &[])];
    let mut bench = Bench::with(FakeSettings { hosts, ..settings(2) }, Config::default());
    now(bench.engine.see_hosts("fake")).unwrap();
    let asks = |only_models| {
        let sandbox = Some(Sandbox { only_models, ..Sandbox::DEFAULT });
        RunSpec { sandbox, ..agents::agents_spec() }
    };
    let without = vec![agents::agent("one", vec![agents::task("all", vec![agents::step("a")])])];
    let without = agents::submit(&mut bench, asks(false), Plans { agents: without, ..Plans::default() });
    bench.settle();
    bench.expect_end(without, RunStatus::Completed, None);

    let plans = on_machine(MachinePlan::default());
    let (org, spec) = (bench.org, asks(false));
    let all = Submission { org, by: None, name: None, spec, plans: plans.clone(), start: true };
    let refused = now(bench.engine.submit(all, None, shown())).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::NoSandbox { .. })), "{refused:?}");

    let commands = agents::submit(&mut bench, asks(true), plans);
    bench.settle();
    bench.expect_end(commands, RunStatus::Completed, None);
}

/// Nobody has asked the hosts yet when the plan comes.
#[test]
fn hosts_that_agents_name_are_asked_before_a_plan_is_judged() {
    let hosts = vec![host("box1", None, &[]), host("box2", None, &["Tesla T4"])];
    let mut bench = Bench::with(FakeSettings { hosts, ..settings(2) }, Config::default());
    now(bench.engine.read_providers()).unwrap();
    let gpu = Some(Gpu { kind: Some("t4".to_owned()), count: 1 });
    let resources = Resources { gpu, ..Resources::default() };
    let machine = MachinePlan { provider: Some("fake".to_owned()), resources, ..MachinePlan::default() };
    let run = agents::submit(&mut bench, agents::agents_spec(), on_machine(machine));
    bench.settle();
    assert_eq!(bench.snapshot(run).instance.and_then(|machine| machine.place).as_deref(), Some("box2"));
    bench.expect_end(run, RunStatus::Completed, None);
}

/// The commit that moves a job gives up its turn and its place; the next one enters the other pool.
#[test]
fn a_job_that_waits_moves_to_another_pool() {
    let mut bench = one_machine();
    let other =
        FakeProvider::new(FakeSettings { name: "other".to_owned(), ..settings(1) }, Box::new(|_, _| Fate::Obey));
    let context = Arc::get_mut(&mut bench.engine.context).expect("nothing else has it yet");
    context.providers.insert("other".to_owned(), engine::Listing::of(Arc::new(other)));
    bench.runners.plan = Some(Plan::Run);
    let first = bench.submit(spec());
    bench.settle();
    let [moves, follows] = [(); 2].map(|()| bench.submit(spec()));
    let waits = bench.job(moves);
    assert!(waits.queue_seq.is_some() && waits.turn.is_some());
    let change =
        |bench: &Bench, run, provider, region| now(bench.engine.change_pool(bench.job(run).id, provider, region));
    assert!(change(&bench, moves, "other", "nowhere").is_err(), "no such region");
    assert!(change(&bench, first, "other", "here").is_err(), "it has a machine");
    change(&bench, moves, "other", "here").unwrap();
    let between = bench.job(moves);
    assert_eq!((between.turn, between.queue_seq), (None, None));
    assert_ne!(between.pool, waits.pool);
    bench.check();
    bench.settle();
    let machine = bench.snapshot(moves).instance.expect("the other pool has room");
    assert_eq!((bench.run(moves).phase, machine.provider.as_str()), (Some(Phase::Provisioning), "other"));
    assert_eq!(bench.run(follows).phase, Some(Phase::Queued), "nothing has become free here");
    // Both pools are full: one that moves waits there too, and one that comes back waits at the end.
    let last = bench.submit(spec());
    change(&bench, last, "other", "here").unwrap();
    bench.settle();
    assert_eq!((bench.job(last).pool, bench.job(last).queue_seq.is_some()), (between.pool, true));
    change(&bench, last, "fake", "here").unwrap();
    bench.settle();
    bench.exits(first, 0);
    bench.advance(SECOND);
    assert_eq!((bench.run(follows).phase, bench.run(last).phase), (Some(Phase::Running), Some(Phase::Queued)));
    bench.check();
}

#[test]
fn many_runs_over_few_machines_all_end_right() {
    let mut bench = Bench::new();
    let runs: Vec<RunId> = (0..60).map(|_| bench.submit(spec())).collect();
    bench.advance(10 * SECOND);
    for run in &runs {
        bench.expect_end(*run, RunStatus::Completed, None);
        assert_eq!(bench.runners.executions(*run), 1);
    }
    let started: Vec<i64> = bench.runners.began.iter().map(|(run, ..)| run.0).collect();
    // The first four wait for machines that boot in any order; jobs that wait for a free one go by turn.
    assert!(started[4..].is_sorted(), "in the order of submission: {started:?}");
    assert_eq!(bench.provider.machines().len(), 4);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_full_pool_retires_an_idle_machine_that_fits_nobody() {
    let mut bench = one_machine();
    let small = bench.submit(sized(1));
    bench.settle();
    let large = bench.submit(sized(4));
    let (_, why) = now(bench.engine.why(bench.org, large)).unwrap();
    assert!(why.summary.contains("next in line"), "{}", why.summary);
    bench.settle();
    bench.expect_end(large, RunStatus::Completed, None);
    assert_eq!(bench.snapshot(small).instance.unwrap().status, InstanceStatus::Terminated);
    assert!(!bench.provider.machines().is_empty(), "the held folder of the first one is still there");
    let again = bench.submit(sized(1));
    bench.settle();
    assert_eq!(bench.job(again).instance, bench.job(large).instance, "a larger machine is enough");
    bench.check();
    bench.check_all_gone();
}

/// Where all machines are of one size, what a run asks for limits the run and not the machine.
#[test]
fn a_machine_takes_every_run_that_is_no_larger() {
    let host = Resources { cpu_milli: Some(2000), memory_bytes: Some(8 << 30), gpu: None, disk_bytes: None };
    let mut bench = Bench::with(FakeSettings { one_size: Some(host.clone()), ..settings(1) }, Config::default());
    let small = bench.submit(sized(1));
    bench.settle();
    assert_eq!(bench.snapshot(small).instance.unwrap().resources, host);
    for spec in [spec(), sized(8), sized(1)] {
        let limits = spec.resources.clone();
        bench.runners.plan = Some(Plan::Run);
        let next = bench.submit(spec);
        bench.settle();
        let machine = bench.job(next).instance.unwrap();
        assert_eq!((Some(machine), bench.job(next).warm), (bench.job(small).instance, true));
        let desired = now(bench.engine.desired(machine)).unwrap();
        assert_eq!(desired.job.unwrap().run.spec.resources, limits, "they travel with the job");
        bench.exits(next, 0);
    }
    bench.check();
}

#[test]
fn what_fits_no_machine_is_refused_and_leaves_nothing() {
    let mut settings = settings(2);
    settings.capabilities.largest =
        Resources { cpu_milli: Some(2000), memory_bytes: Some(8 << 30), gpu: None, disk_bytes: None };
    let mut bench = Bench::with(settings, Config::default());
    let key = bench.key();
    let cpu = RunSpec { resources: Resources { cpu_milli: Some(2001), ..Resources::default() }, ..spec() };
    for spec in [sized(9), cpu] {
        let submission = Submission {
            org: bench.org,
            by: None,
            name: None,
            spec: spec.clone(),
            plans: Default::default(),
            start: true,
        };
        let planned = now(bench.engine.plan(&submission)).unwrap_err();
        let refused = bench.submit_with(spec, key.clone()).unwrap_err();
        assert!(matches!(refused.refused(), Some(Refused::DoesNotFit(_))), "{refused:?}");
        assert_eq!(planned, refused);
    }
    assert_eq!(now(bench.engine.open_runs()).unwrap(), 0);
    let run = bench.submit_with(sized(8), key).expect("the key was not used up");
    assert!(!run.replayed);
}

/// A plan is the decision that the submission itself would come to, and nothing is written for it.
#[test]
fn a_plan_says_what_would_happen_and_writes_nothing() {
    let mut bench = one_machine();
    let retry = Retry { max_attempts: 3, on_events: vec![RetryEvent::Error], duration_ms: None, delay_ms: None };
    let spec = RunSpec { retry: Some(retry), max_duration_ms: Some(2 * HOUR), ..sized(1) };
    let plan = |bench: &Bench, spec: &RunSpec| {
        let before = bench.crashes.writes.lock().unwrap().len();
        let submission = Submission {
            org: bench.org,
            by: None,
            name: None,
            spec: spec.clone(),
            plans: Default::default(),
            start: true,
        };
        let plan = now(bench.engine.plan(&submission)).unwrap();
        assert_eq!(bench.crashes.writes.lock().unwrap().len(), before);
        plan
    };
    let first = plan(&bench, &spec);
    assert_eq!((first.placement, first.room.instances, &first.size), (Place::StartMachine, 0, &spec.resources));
    assert_eq!((first.per_hour, first.reserved, first.most), (PRICE, PRICE, Some(Credits(6 * PRICE.micro()))));
    let capped = RunSpec { budget: Some(Credits(7)), ..spec.clone() };
    assert_eq!((plan(&bench, &capped).reserved, plan(&bench, &capped).most), (Credits(7), Some(Credits(7))));
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec.clone());
    bench.settle();
    assert_eq!(plan(&bench, &spec).placement, Place::Wait);
    let waits = bench.submit(spec.clone());
    assert_eq!((plan(&bench, &spec).placement, plan(&bench, &spec).waiting), (Place::Wait, 1));
    bench.exits(run, 0);
    bench.exits(waits, 0);
    let idle = bench.job(run).instance.unwrap();
    assert_eq!((plan(&bench, &spec).placement, plan(&bench, &spec).available), (Place::Now(idle), 1));
    assert_eq!(plan(&bench, &sized(4)).placement, Place::ReplaceMachine(idle));
    let unsent = model::tree::TreeRef { hash: "0".repeat(64), files: 1, bytes: 1 };
    let missing = plan(&bench, &RunSpec { files: Some(unsent), ..spec }).missing;
    assert_eq!(missing, engine::plan::Missing { tree: true, stdin: false });
    bench.check();
}

#[test]
fn the_smallest_machine_that_is_enough_is_taken() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let runs = [sized(8), sized(2), sized(4)].map(|spec| bench.submit(spec));
    bench.settle();
    runs.into_iter().for_each(|run| bench.exits(run, 0));
    let next = bench.submit(sized(3));
    assert_eq!(bench.job(next).instance, bench.job(runs[2]).instance);
    bench.check();
}

/// The machine that was warm when it was claimed turns out to be gone: by policy the job goes elsewhere. Without one only if it
/// surely never began there.
#[test]
fn a_warm_machine_that_is_gone_is_an_interruption() {
    for retry in [
        None,
        Some(Retry { max_attempts: 2, on_events: vec![RetryEvent::Interruption], duration_ms: None, delay_ms: None }),
    ] {
        let mut bench = Bench::new();
        let first = bench.submit(spec());
        bench.settle();
        let name = bench.name_of(first);
        bench.runners.deaf.push(name.clone());
        let run = bench.submit(RunSpec { retry: retry.clone(), ..spec() });
        assert!(bench.job(run).warm);
        bench.provider.destroy(&name);
        bench.advance(MINUTE);
        let completed = bench.run(run).status == RunStatus::Completed;
        assert!(completed || retry.is_none(), "{:?}", bench.end(run));
        assert_eq!(bench.runners.executions(run), usize::from(completed));
        assert_eq!(bench.run(run).attempt, 1, "infrastructure uses no attempt");
        bench.check();
        bench.check_all_gone();
    }
}

/// The slot is gone between the look and the claim: the next one is taken, or a machine is made.
#[test]
fn a_machine_on_its_way_out_is_never_claimed() {
    let mut bench = Bench::new();
    let first = bench.submit(spec());
    bench.settle();
    bench.terminate(bench.job(first).instance.unwrap(), false).unwrap();
    let run = bench.submit(spec());
    assert!(!bench.job(run).warm);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_ne!(bench.job(run).instance, bench.job(first).instance);
    bench.check();
}

#[test]
fn who_waits_for_a_day_ends_without_a_machine() {
    let mut bench = Bench::with(settings(0), Config::default());
    let waits = bench.submit(spec());
    bench.advance(24 * HOUR - MINUTE);
    assert_eq!(bench.run(waits).phase, Some(Phase::Queued));
    bench.advance(2 * MINUTE);
    bench.expect_end(waits, RunStatus::Failed, Some("no_capacity"));
    bench.check();
}

#[test]
fn another_orgs_machine_is_nobody_elses() {
    let mut bench = Bench::with(settings(2), Config::default());
    let first = bench.submit(spec());
    bench.settle();
    let (home, other) = (bench.org, now(bench.engine.ensure_org("other")).unwrap());
    bench.org = other;
    let theirs = bench.submit(spec());
    assert!(!bench.job(theirs).warm);
    bench.settle();
    bench.expect_end(theirs, RunStatus::Completed, None);
    let their_machine = bench.job(theirs).instance;
    assert!(now(bench.engine.snapshot(other, first)).is_err(), "another org's run does not exist");
    bench.org = home;
    assert_ne!(bench.job(first).instance, their_machine);
    bench.check();
}

/// Machines of two regions, the ids of which are not in the order of the regions: their rows are locked by their ids.
#[test]
fn idle_machines_of_several_pools_are_ended_at_once() {
    let mut bench = Bench::with(settings(4), Config::default());
    bench.runners.plan = Some(Plan::Run);
    let runs: Vec<RunId> = ["here", "there", "here"]
        .into_iter()
        .map(|region| {
            let run = bench.submit(RunSpec { region: region.into(), ..spec() });
            bench.settle();
            run
        })
        .collect();
    runs.iter().for_each(|run| bench.exits(*run, 0));
    assert_eq!(now(bench.engine.retire_idle()).unwrap(), 3);
    bench.check_all_gone();
}

#[test]
fn closing_the_shop_ends_what_nobody_uses_and_spares_the_rest() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let (stays, ends) = (bench.submit(spec()), bench.submit(spec()));
    bench.settle();
    bench.exits(ends, 0);
    assert_eq!(now(bench.engine.retire_idle()).unwrap(), 1);
    bench.settle();
    assert_eq!(now(bench.engine.retire_idle()).unwrap(), 0);
    assert_eq!(bench.run(stays).phase, Some(Phase::Running));
    assert_eq!(now(bench.engine.cancel_everything("the owner")).unwrap(), 1);
    bench.settle();
    assert_eq!(bench.run(stays).status, RunStatus::Cancelled);
    now(bench.engine.retire_idle()).unwrap();
    bench.settle();
    assert_eq!(now(bench.engine.remains()).unwrap().instances, 0);
    bench.check();
}

/// Its provider is no longer configured: the run fails with that reason, instead of waiting for ever with all other jobs behind it.
#[test]
fn a_job_that_waits_for_a_provider_which_is_gone_ends() {
    let mut bench = Bench::with(settings(1), Config::default());
    bench.runners.plan = Some(Plan::Run);
    bench.submit(spec());
    let waits: Vec<_> = (0..3).map(|_| bench.submit(spec())).collect();
    bench.settle();
    bench.restart_without_providers();
    bench.advance(10 * SECOND);
    for run in waits {
        bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
        let said = bench.run(run).last_error.unwrap().message;
        assert!(said.contains("`fake` is not set up any more"), "{said}");
    }
}
