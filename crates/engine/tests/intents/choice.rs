//! Where a run gets its machine: offers are tried in their order, each with a row and a name of its own; what bills is for who named it;
//! a machine in its provider's queue is waited for and costs nothing.

use crate::agents::{agent, submit_agents, task};
use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::machines::{Does, Plan};
use adapters::fake::{Call, FakeSettings, Fate, QUEUED};
use engine::{Config, Listing};
use model::instance::Instance;
use model::job::{JobReason, JobStatus};
use model::plan::{AgentPlan, MachinePlan, StepPlan};
use model::run::{Phase, RunStatus};
use model::spec::{Gpu, Resources, RunSpec};
use model::step::ToolKind;
use model::time::{DAY, MINUTE, SECOND};
use model::{Credits, Refused, RunId, TroubleKind};
use serde_json::json;

/// The first so many machines that are asked for cannot be had.
pub fn full(bench: &mut Bench, times: usize) {
    let mut struck: Vec<String> = Vec::new();
    bench.fate(move |call, _, name| {
        if call == Call::Spawn && struck.len() < times && !struck.iter().any(|other| other == name) {
            struck.push(name.to_owned());
        }
        let hit = call == Call::Spawn && struck.iter().any(|other| other == name);
        if hit { Fate::FailBefore(TroubleKind::Capacity) } else { Fate::Obey }
    });
}

fn instance(bench: &Bench, run: RunId) -> Instance {
    let id = bench.job(run).instance.expect("it has a machine");
    now(bench.engine.find_instance(id)).unwrap().unwrap()
}

fn market() -> FakeSettings {
    let mut market = settings(4);
    market.capabilities.spot = true;
    for (region, spot, price) in [("here", true, 5), ("there", true, 3), ("here", false, 10), ("there", false, 20)] {
        market.prices.insert((region.to_owned(), spot), Credits(price * 1000));
    }
    market
}

/// What resolve-instance kept.
fn offers(bench: &Bench, run: RunId) -> Vec<(String, bool, i64)> {
    let workflow = now(bench.engine.workflow(bench.org, bench.job(run).workflow)).unwrap();
    let kept = model::workflow::output(&workflow, "resolve-instance").unwrap()["offers"].clone();
    let offers: Vec<model::offer::Offer> = serde_json::from_value(kept).unwrap();
    offers.into_iter().map(|it| (format!("{}/{}", it.provider, it.region), it.spot, it.price_micro)).collect()
}

#[test]
fn an_agent_that_names_a_provider_and_no_region_has_offers_too() {
    let mut bench = Bench::brief_with(market());
    bench.runners.script = Some(Box::new(|_| Does::Runs));
    full(&mut bench, 2);
    let machine = MachinePlan { provider: Some("fake".into()), spot: true, ..MachinePlan::default() };
    let step = StepPlan { input: json!({ "shell": "a" }), ..StepPlan::new("a", ToolKind::Command) };
    let plan = AgentPlan { machine: Some(machine), ..agent("one", vec![task("all", vec![step])]) };
    let run = submit_agents(&mut bench, vec![plan]);
    bench.settle();
    let expected = [("fake/there", true, 3000), ("fake/here", true, 5000), ("fake/here", false, 10_000)];
    assert_eq!(offers(&bench, run), expected.map(|(place, spot, price)| (place.to_owned(), spot, price)));
    let machine = instance(&bench, run);
    assert_eq!((machine.region.as_str(), machine.spot, machine.price_micro), ("here", false, 10_000));
    bench.cancel(run);
    bench.advance(MINUTE);
    bench.expect_end(run, RunStatus::Cancelled, None);
    bench.check();
}

#[test]
fn spot_is_tried_in_the_two_cheapest_regions_and_then_an_ordinary_machine() {
    let mut bench = Bench::brief_with(market());
    bench.runners.plan = Some(Plan::Run);
    full(&mut bench, 2);
    let run = bench.submit(RunSpec { spot: true, any_region: true, region: "there".into(), ..spec() });
    bench.settle();
    let kept = offers(&bench, run);
    let expected = [("fake/there", true, 3000), ("fake/here", true, 5000), ("fake/here", false, 10_000)];
    assert_eq!(kept, expected.map(|(place, spot, price)| (place.to_owned(), spot, price)));
    let machine = instance(&bench, run);
    assert_eq!((machine.region.as_str(), machine.spot, machine.price_micro), ("here", false, 10_000));
    assert_eq!(bench.job(run).price_micro, 10_000, "what it is charged");
    let made = bench.provider.machine(&machine.name).unwrap();
    assert_eq!((made.region.as_str(), made.spot), ("here", false));
    bench.exits(run, 0);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
    bench.check_all_gone_after(5 * MINUTE);
}

#[test]
fn the_next_provider_that_was_named_is_tried_when_the_first_has_no_machine() {
    let mut bench = Bench::brief();
    bench.runners.plan = Some(Plan::Run);
    bench.engine.context.providers.insert("other".into(), Listing::of(bench.provider.clone()));
    full(&mut bench, 1);
    let run = bench.submit(RunSpec { providers: vec!["fake".into(), "other".into()], ..spec() });
    bench.settle();
    assert_eq!((instance(&bench, run).provider.as_str(), bench.job(run).provider.as_str()), ("other", "other"));
    bench.exits(run, 0);
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
    bench.check_all_gone_after(5 * MINUTE);
}

#[test]
fn what_bills_is_refused_to_who_did_not_name_it() {
    let mut paid = settings(1);
    paid.capabilities.bills = true;
    let mut bench = Bench::with(paid, Config::default());
    let key = bench.key();
    let refused = bench.submit_with(RunSpec { providers: Vec::new(), ..spec() }, key).unwrap_err();
    assert_eq!(refused.refused(), Some(&Refused::Unasked { provider: "fake".into() }));
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
}

#[test]
fn a_provider_is_for_the_orgs_that_its_settings_name() {
    let mut bench = Bench::new();
    let listing = bench.engine.context.providers.all()["fake"].clone();
    let only = |org: &str| Listing { orgs: Some(vec![org.to_owned()]), ..listing.clone() };
    bench.engine.context.providers.insert("fake".into(), only("others"));
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
    let name = now(bench.engine.balance(bench.org)).unwrap().name;
    bench.engine.context.providers.insert("fake".into(), only(&name));
    let run = bench.submit(spec());
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
}

#[test]
fn a_machine_without_the_gpu_is_never_given_to_who_asked_for_one() {
    let mut settings = settings(2);
    settings.capabilities.gpus = vec![Gpu { kind: Some("a100".into()), count: 2 }];
    let mut bench = Bench::with(settings, Config::default());
    let plain = bench.submit(spec());
    bench.settle();
    let resources = Resources { gpu: Some(Gpu { kind: Some("A100".into()), count: 2 }), ..Resources::default() };
    let run = bench.submit(RunSpec { resources: resources.clone(), ..spec() });
    bench.settle();
    bench.expect_end(run, RunStatus::Completed, None);
    assert_ne!(bench.job(plain).instance, bench.job(run).instance);
    assert_eq!(instance(&bench, run).resources, resources);
    let key = bench.key();
    let three = Resources { gpu: Some(Gpu { kind: None, count: 3 }), ..Resources::default() };
    let refused = bench.submit_with(RunSpec { resources: three, ..spec() }, key).unwrap_err().to_string();
    assert_eq!(refused, "asked for 3 GPUs, and fake has no such machine: it has other GPUs: a100:2");
}

fn queueing() -> Bench {
    Bench::with(FakeSettings { queues: true, ..settings(1) }, Config::default())
}

/// Its boot counts from its start, however long it waited before.
#[test]
fn a_machine_in_its_providers_queue_is_waited_for_and_costs_nothing() {
    let mut bench = queueing();
    let run = bench.submit(spec());
    bench.advance(30 * MINUTE);
    let job = bench.job(run);
    assert_eq!((job.status, model::job::phase(&job)), (JobStatus::Provisioning, Some(Phase::Queued)));
    assert_eq!(job.machine_queued.as_deref(), Some(QUEUED));
    assert_eq!(bench.money(run, 1), (PRICE, Credits::ZERO, Credits::ZERO), "nothing is charged for the wait");
    bench.check();
    bench.runners.unborn = true;
    bench.provider.start(&instance(&bench, run).name);
    bench.advance(9 * MINUTE);
    assert_eq!(bench.job(run).machine_queued, None);
    assert_eq!(bench.job(run).status, JobStatus::Provisioning, "its boot has a minute left");
    bench.runners.unborn = false;
    bench.advance(30 * SECOND);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
}

#[test]
fn a_machine_that_was_started_has_its_boot_limit() {
    let mut bench = queueing();
    let run = bench.submit(spec());
    bench.advance(30 * MINUTE);
    bench.runners.unborn = true;
    bench.provider.start(&instance(&bench, run).name);
    bench.advance(9 * MINUTE);
    assert_eq!(bench.jobs(run)[0].reason, None);
    bench.advance(MINUTE + 10 * SECOND);
    assert_eq!(bench.jobs(run)[0].reason, Some(JobReason::BootLimit));
}

#[test]
fn a_queue_is_waited_for_as_long_as_a_run_may_wait() {
    let mut bench = queueing();
    let run = bench.submit(spec());
    bench.advance(DAY + 10 * MINUTE);
    bench.expect_end(run, RunStatus::Failed, Some("no_capacity"));
    assert!(bench.run(run).last_error.unwrap().message.contains(QUEUED));
    bench.check();
    bench.check_all_gone_after(10 * MINUTE);
}
