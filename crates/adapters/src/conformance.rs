//! The conformance suite of providers: a new provider is done when it passes. The suite uses only the trait `Provider` and a `Subject`,
//! through which a test changes the machines behind the provider (kills one, for example).

use crate::provider::{Capabilities, Handle, ListAsk, Listed, ListedPage, Order, Provider, Seen};
use model::boot::{Boot, BootTimings};
use model::names::ResourceName;
use model::orphan::{ListedStatus, ResourceType};
use model::spec::Resources;
use model::{Effect, InstanceId, Trouble, TroubleKind};
use std::future::Future;
use std::pin::Pin;

pub const CONTROL_ID: &str = "c0nf0rm1";

pub type Deed<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// A provider under test, with as many machines allowed as `MACHINES`, and what only its world can do.
pub trait Subject {
    fn provider(&self) -> &dyn Provider;
    /// Returns when the machine's runner answers.
    fn await_runner<'a>(&'a self, name: &'a str) -> Deed<'a>;
    /// The runner dies as in a crash; the machine stays. Returns when it is dead.
    fn kill_runner(&self, name: &str);
    /// What answers under this name is no longer the machine that was made.
    fn replace_by_stranger<'a>(&'a self, name: &'a str) -> Deed<'a>;
    /// The machine loses what its provider knows it by. False: that cannot happen here.
    fn lose_nonce(&self, _name: &str) -> bool {
        false
    }
    /// How often a runner was started under this name.
    fn starts(&self, name: &str) -> usize;
}

pub const MACHINES: i64 = 3;

/// Makes one test of each case, for a function that makes a fresh subject.
#[macro_export]
macro_rules! provider_conformance {
    ($make:path) => {
        $crate::provider_conformance! { $make:
            a_machine_is_made_once_however_often_it_is_ordered
            a_machine_is_found_by_its_name
            a_killed_runner_comes_back_by_spawning_again
            a_terminated_machine_is_gone_however_often_it_is_asked_for
            a_machine_whose_runner_died_can_be_terminated
            a_name_is_used_once
            what_never_was_is_gone
            a_stranger_is_left_alone
            a_machine_without_a_nonce_is_ended_by_an_empty_one
            a_list_shows_what_has_the_prefix
            a_list_says_what_each_is_and_has_pages
            more_than_allowed_is_a_matter_of_capacity
            names_that_are_not_ours_are_refused
            only_workdirs_of_the_dead_are_removed
            only_what_is_gone_is_forgotten
            what_is_seen_from_outside_is_as_it_should_be
        }
    };
    ($make:path: $($case:ident)*) => {$(
        #[tokio::test]
        async fn $case() {
            let subject = $make();
            if $crate::conformance::applies(stringify!($case), &$crate::conformance::Subject::provider(&subject).capabilities()) {
                $crate::conformance::$case(&subject).await;
            }
        }
    )*};
}

/// Whether a provider that can do this much is asked to pass the case.
pub fn applies(case: &str, can: &Capabilities) -> bool {
    match case {
        "a_killed_runner_comes_back_by_spawning_again" => can.sees_runner && can.restarts_runner,
        "a_list_shows_what_has_the_prefix" => can.sees_runner,
        "a_name_is_used_once" | "only_what_is_gone_is_forgotten" => can.remembers_names,
        "only_workdirs_of_the_dead_are_removed" => can.keeps_workdirs,
        _ => true,
    }
}

pub fn order(number: i64) -> Order {
    let name = ResourceName { control_id: CONTROL_ID.to_owned(), manifest: Some(7), resource: number }.to_string();
    let boot = Boot {
        nonce: format!("nonce-{number}"),
        name,
        instance: InstanceId(number),
        control_id: CONTROL_ID.to_owned(),
        control_url: "unix:/nowhere/control.sock".to_owned(),
        control_ca: None,
        token: "token".to_owned(),
        cpu_milli: None,
        memory_bytes: None,
        gpus: None,
        timings: BootTimings::default(),
        hidden: Vec::new(),
    };
    Order::new(boot, "local", Resources::default())
}

pub async fn a_machine_is_made_once_however_often_it_is_ordered(subject: &dyn Subject) {
    let order = order(1);
    let first = up(subject, &order).await;
    let again = spawn(subject, &order).await;
    assert_eq!(first, again);
    assert_eq!(inspect(subject, &order).await, Seen::Alive);
    assert_eq!(subject.starts(&order.boot.name), 1);
    // Asked twice at the same moment, before anything answers.
    let order = self::order(2);
    let provider = subject.provider();
    let (a, b) = tokio::join!(provider.spawn(&order), provider.spawn(&order));
    assert_eq!(a.unwrap(), b.unwrap());
    subject.await_runner(&order.boot.name).await;
    assert_eq!(subject.starts(&order.boot.name), 1);
}

pub async fn a_machine_is_found_by_its_name(subject: &dyn Subject) {
    let order = order(1);
    let provider = subject.provider();
    assert_eq!(provider.find_by_name(&order.boot.name).await.unwrap(), None);
    let handle = spawn(subject, &order).await;
    assert_eq!(provider.find_by_name(&order.boot.name).await.unwrap(), Some(handle.clone()));
    provider.terminate(&handle, &order.boot.nonce).await.unwrap();
    // Gone, and still listed: a caller without the handle can find it by its name and forget it.
    if provider.capabilities().remembers_names {
        assert_eq!(provider.find_by_name(&order.boot.name).await.unwrap(), Some(handle.clone()));
    }
    provider.forget(&handle).await.unwrap();
    assert_eq!(provider.find_by_name(&order.boot.name).await.unwrap(), None);
}

pub async fn a_killed_runner_comes_back_by_spawning_again(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    subject.kill_runner(&order.boot.name);
    assert_eq!(inspect(subject, &order).await, Seen::RunnerGone);
    assert_eq!(up(subject, &order).await, handle);
    assert_eq!(inspect(subject, &order).await, Seen::Alive);
    assert_eq!(subject.starts(&order.boot.name), 2);
}

pub async fn a_terminated_machine_is_gone_however_often_it_is_asked_for(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    for _ in 0..2 {
        subject.provider().terminate(&handle, &order.boot.nonce).await.unwrap();
        assert_eq!(inspect(subject, &order).await, Seen::Gone);
    }
}

pub async fn a_machine_whose_runner_died_can_be_terminated(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    subject.kill_runner(&order.boot.name);
    subject.provider().terminate(&handle, &order.boot.nonce).await.unwrap();
    assert_eq!(inspect(subject, &order).await, Seen::Gone);
}

/// A late repetition of an order must not make a second machine that has no row.
pub async fn a_name_is_used_once(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    subject.provider().terminate(&handle, &order.boot.nonce).await.unwrap();
    let late = subject.provider().spawn(&order).await.unwrap_err();
    check_trouble(&late, TroubleKind::NotFound, false);
    assert_eq!((inspect(subject, &order).await, subject.starts(&order.boot.name)), (Seen::Gone, 1));
}

pub async fn what_never_was_is_gone(subject: &dyn Subject) {
    let order = order(1);
    let handle = Handle(order.boot.name.clone());
    assert_eq!(inspect(subject, &order).await, Seen::Gone);
    subject.provider().terminate(&handle, &order.boot.nonce).await.unwrap();
    subject.provider().remove_workdir(&handle, "work_1").await.unwrap();
    subject.provider().forget(&handle).await.unwrap();
    assert_eq!(subject.starts(&order.boot.name), 0);
}

pub async fn a_stranger_is_left_alone(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    subject.replace_by_stranger(&order.boot.name).await;
    assert_eq!(inspect(subject, &order).await, Seen::Stranger);
    let starts = subject.starts(&order.boot.name);
    let refused = subject.provider().terminate(&handle, &order.boot.nonce).await.unwrap_err();
    check_trouble(&refused, TroubleKind::NotFound, false);
    check_trouble(&subject.provider().spawn(&order).await.unwrap_err(), TroubleKind::NotFound, false);
    assert_eq!((inspect(subject, &order).await, subject.starts(&order.boot.name)), (Seen::Stranger, starts));
    let listed = subject.provider().list(&ListAsk::of(&order.boot.name)).await.unwrap().listed;
    assert_eq!(listed[0].status, ListedStatus::Running, "the stranger still lives");
}

/// A caller that has listed a machine without a nonce can end it; one that has a nonce is not meant.
pub async fn a_machine_without_a_nonce_is_ended_by_an_empty_one(subject: &dyn Subject) {
    let order = order(1);
    let (provider, handle) = (subject.provider(), up(subject, &order).await);
    check_trouble(&provider.terminate(&handle, "").await.unwrap_err(), TroubleKind::NotFound, false);
    assert_eq!(inspect(subject, &order).await, Seen::Alive);
    if subject.lose_nonce(&order.boot.name) {
        assert_eq!(listed(provider, &order.boot.name).await[0].nonce, None);
        provider.terminate(&handle, "").await.unwrap();
        assert_eq!(inspect(subject, &order).await, Seen::Gone);
    }
}

pub async fn a_list_shows_what_has_the_prefix(subject: &dyn Subject) {
    let provider = subject.provider();
    assert_eq!(listed(provider, "repl-").await, []);
    let orders = [order(1), order(2)];
    for order in &orders {
        up(subject, order).await;
    }
    subject.kill_runner(&orders[1].boot.name);
    for (prefix, expected) in [
        ("repl-", vec![(&orders[0], true), (&orders[1], false)]),
        ("repl-c0nf0rm1-", vec![(&orders[0], true), (&orders[1], false)]),
        (orders[1].boot.name.as_str(), vec![(&orders[1], false)]),
        ("repl-an0ther1-", vec![]),
    ] {
        let listed = listed(provider, prefix).await;
        let found: Vec<_> = listed.iter().map(|l| (l.name.as_str(), l.status == ListedStatus::Running)).collect();
        let expected: Vec<_> = expected.iter().map(|(order, alive)| (order.boot.name.as_str(), *alive)).collect();
        assert_eq!(found, expected, "{prefix}");
    }
}

/// A caller that knows only the list can tell which control plane made each entry and what it costs, and can read it in pages.
pub async fn a_list_says_what_each_is_and_has_pages(subject: &dyn Subject) {
    let provider = subject.provider();
    let orders = [order(1), order(2)];
    for order in &orders {
        up(subject, order).await;
    }
    let (mut ask, mut found) = (ListAsk { limit: 1, ..ListAsk::of("repl-") }, Vec::new());
    loop {
        let page = provider.list(&ask).await.unwrap();
        assert!(page.listed.len() <= 1);
        found.extend(page.listed);
        match page.next {
            Some(next) => ask.after = Some(next),
            None => break,
        }
    }
    let names: Vec<_> = found.iter().map(|listed| listed.name.as_str()).collect();
    assert_eq!(names, orders.each_ref().map(|order| order.boot.name.as_str()));
    for (listed, order) in found.iter().zip(&orders) {
        assert_eq!(listed.kind, ResourceType::Instance);
        assert_eq!(listed.nonce.as_ref(), Some(&order.boot.nonce));
        assert_eq!(listed.price_micro, Some(provider.price(&order.resources, &order.region, order.spot).0));
        assert_eq!(provider.inspect(&Handle(listed.handle.clone()), &order.boot.nonce).await.unwrap(), Seen::Alive);
    }
    let elsewhere = ListAsk { region: Some("elsewhere".to_owned()), ..ListAsk::of("repl-") };
    assert_eq!(provider.list(&elsewhere).await.unwrap().listed, []);
}

async fn listed(provider: &dyn Provider, prefix: &str) -> Vec<Listed> {
    provider.list(&ListAsk::of(prefix)).await.unwrap().listed
}

pub async fn more_than_allowed_is_a_matter_of_capacity(subject: &dyn Subject) {
    let provider = subject.provider();
    assert_eq!(provider.capabilities().max_instances, MACHINES);
    let mut handles = Vec::new();
    for number in 1..=MACHINES {
        handles.push(up(subject, &order(number)).await);
    }
    let one_more = order(MACHINES + 1);
    check_trouble(&provider.spawn(&one_more).await.unwrap_err(), TroubleKind::Capacity, true);
    assert_eq!(provider.find_by_name(&one_more.boot.name).await.unwrap(), None, "nothing half-made is left");
    // What exists already needs no room.
    spawn(subject, &order(1)).await;
    provider.terminate(&handles[0], &order(1).boot.nonce).await.unwrap();
    up(subject, &one_more).await;
}

pub async fn names_that_are_not_ours_are_refused(subject: &dyn Subject) {
    let provider = subject.provider();
    for name in ["", "..", "../repl-c0nf0rm1-1-1", "repl-c0nf0rm1-1-1/../..", "somebody-else", "repl-c0nf0rm1-1-1\0"] {
        let handle = Handle(name.to_owned());
        let mut order = order(1);
        order.boot.name = name.to_owned();
        let refusals = [
            provider.spawn(&order).await.unwrap_err(),
            provider.find_by_name(name).await.unwrap_err(),
            provider.inspect(&handle, "nonce").await.unwrap_err(),
            provider.terminate(&handle, "nonce").await.unwrap_err(),
            provider.remove_workdir(&handle, "work_1").await.unwrap_err(),
            provider.forget(&handle).await.unwrap_err(),
        ];
        for refusal in refusals {
            check_trouble(&refusal, TroubleKind::InvalidSpec, false);
        }
        assert_eq!(provider.workdir_path(&handle, "work_1"), None);
    }
}

pub async fn only_workdirs_of_the_dead_are_removed(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    let provider = subject.provider();
    check_trouble(&provider.remove_workdir(&handle, "work_1").await.unwrap_err(), TroubleKind::InvalidSpec, false);
    subject.kill_runner(&order.boot.name);
    for workdir in ["", ".", "..", "../work_1", "work_1/..", "work_", "work_1/../../x", "/work_1", "runner.json"] {
        let refused = provider.remove_workdir(&handle, workdir).await.unwrap_err();
        check_trouble(&refused, TroubleKind::InvalidSpec, false);
        assert_eq!(provider.workdir_path(&handle, workdir), None, "{workdir}");
    }
    for _ in 0..2 {
        provider.remove_workdir(&handle, "work_1").await.unwrap();
    }
    provider.terminate(&handle, &order.boot.nonce).await.unwrap();
    provider.remove_workdir(&handle, "work_2").await.expect("a hold may end long after its machine");
}

pub async fn what_is_seen_from_outside_is_as_it_should_be(subject: &dyn Subject) {
    for (case, result) in black_box(subject.provider(), &order(1)).await.1 {
        assert_eq!(result, Ok(()), "{case}");
    }
}

pub async fn only_what_is_gone_is_forgotten(subject: &dyn Subject) {
    let order = order(1);
    let handle = up(subject, &order).await;
    let provider = subject.provider();
    check_trouble(&provider.forget(&handle).await.unwrap_err(), TroubleKind::InvalidSpec, false);
    subject.kill_runner(&order.boot.name);
    check_trouble(&provider.forget(&handle).await.unwrap_err(), TroubleKind::InvalidSpec, false);
    provider.terminate(&handle, &order.boot.nonce).await.unwrap();
    for _ in 0..2 {
        provider.forget(&handle).await.unwrap();
        assert_eq!(listed(provider, "repl-").await, []);
    }
    assert_eq!(inspect(subject, &order).await, Seen::Gone);
}

/// A promise of providers, and what was not as it should be.
pub type Case = (&'static str, Result<(), String>);

/// What can be seen of a provider from outside, with one machine. It ends the machine if it can. The caller sees to it that it is ended, and
/// gets its handle for that, if one was made: the provider may not find it by its name.
pub async fn black_box(provider: &dyn Provider, order: &Order) -> (Option<Handle>, Vec<Case>) {
    match provider.spawn(order).await {
        Ok(handle) => {
            let cases = black_box_of(provider, order, &handle).await;
            (Some(handle), cases)
        }
        Err(trouble) => (None, vec![("a_machine_is_made", Err(said(trouble)))]),
    }
}

async fn black_box_of(provider: &dyn Provider, order: &Order, handle: &Handle) -> Vec<Case> {
    let (name, nonce) = (&order.boot.name, &order.boot.nonce);
    let mut cases: Vec<Case> = vec![("a_machine_is_made", Ok(()))];
    cases.push(("ordered_again_it_is_the_same", is(provider.spawn(order).await, handle)));
    cases.push(("it_is_found_by_its_name", is(provider.find_by_name(name).await, &Some(handle.clone()))));
    cases.push((
        "it_is_there",
        provider.inspect(handle, nonce).await.map_err(said).and_then(|seen| match seen {
            Seen::Alive | Seen::Queued { .. } | Seen::RunnerGone => Ok(()),
            other => Err(format!("it is said to be {other:?}")),
        }),
    ));
    cases.push(("its_list_has_it", has(provider.list(&ListAsk::of(name)).await, order)));
    let strange = provider.terminate(handle, "the nonce of somebody else").await;
    cases.push((
        "with_another_nonce_it_is_left_alone",
        match strange {
            Err(trouble) if trouble.effect == Effect::None => Ok(()),
            Err(trouble) => Err(format!("it may have been ended: {trouble}")),
            Ok(()) => Err("it was ended".to_owned()),
        },
    ));
    cases.push(("it_is_ended", provider.terminate(handle, nonce).await.map_err(said)));
    cases.push(("then_it_is_gone", is(provider.inspect(handle, nonce).await, &Seen::Gone)));
    cases.push(("ended_again_nothing_happens", provider.terminate(handle, nonce).await.map_err(said)));
    if provider.capabilities().remembers_names {
        let late = provider.spawn(order).await;
        cases.push(("its_name_is_used_once", late.map_or(Ok(()), |_| Err("a second one was made".to_owned()))));
    }
    cases
}

fn said(trouble: Trouble) -> String {
    trouble.to_string()
}

fn is<T: PartialEq + std::fmt::Debug>(found: Result<T, Trouble>, expected: &T) -> Result<(), String> {
    let found = found.map_err(said)?;
    if found == *expected { Ok(()) } else { Err(format!("expected {expected:?}, got {found:?}")) }
}

fn has(page: Result<ListedPage, Trouble>, order: &Order) -> Result<(), String> {
    let page = page.map_err(said)?;
    let found = page.listed.iter().find(|listed| listed.name == order.boot.name);
    match found.map(|listed| listed.nonce.as_ref()) {
        Some(Some(nonce)) if *nonce == order.boot.nonce => Ok(()),
        Some(nonce) => Err(format!("it is listed with the nonce {nonce:?}")),
        None => Err("it is not listed".to_owned()),
    }
}

async fn spawn(subject: &dyn Subject, order: &Order) -> Handle {
    subject.provider().spawn(order).await.unwrap()
}

async fn up(subject: &dyn Subject, order: &Order) -> Handle {
    let handle = spawn(subject, order).await;
    subject.await_runner(&order.boot.name).await;
    handle
}

async fn inspect(subject: &dyn Subject, order: &Order) -> Seen {
    subject.provider().inspect(&Handle(order.boot.name.clone()), &order.boot.nonce).await.unwrap()
}

/// Refusals here are certain: nothing may have happened.
fn check_trouble(trouble: &Trouble, kind: TroubleKind, retry: bool) {
    assert_eq!((trouble.kind, trouble.retry, trouble.effect), (kind, retry, Effect::None), "{trouble}");
}
