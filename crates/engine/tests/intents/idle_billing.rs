//! Machines that cost money while no job runs on them: which account pays, under which ledger keys, what an extension reserves, and what
//! happens when a window cannot be paid.

use crate::bench::{Bench, PRICE, now, settings, spec};
use crate::holds::{cloud, extend, finished, shown, slot_of};
use crate::machines::Plan;
use crate::money::spend_all_but;
use engine::Config;
use model::instance::InstanceStatus;
use model::spec::RunSpec;
use model::time::{HOUR, MINUTE, SECOND};
use model::{Credits, Refused, RunId};
use store::ledger::Entered;
use store::{EntryKind, Moment};

const SECOND_COSTS: i64 = 10_000;

fn rows(bench: &Bench) -> Vec<Entered> {
    let all = now(bench.engine.ledger(bench.org, 0, 1000)).unwrap();
    all.into_iter().filter(|row| row.entry.run.is_none() && row.entry.kind != EntryKind::Topup).collect()
}

/// Seconds paid from what is available, by what is before the last part of the key.
fn seconds(bench: &Bench, prefix: &str) -> i64 {
    let rows = rows(bench);
    let charged = rows.iter().filter(|row| row.entry.kind == EntryKind::Charge && row.entry.key.starts_with(prefix));
    charged.map(|row| row.entry.amount).sum::<Credits>().micro() / SECOND_COSTS
}

fn sums(bench: &Bench, kind: EntryKind) -> Credits {
    rows(bench)
        .iter()
        .filter(|row| row.entry.kind == kind && !row.entry.from_available)
        .map(|row| row.entry.amount)
        .sum()
}

fn held_for(bench: &mut Bench, ms: i64) -> RunId {
    finished(bench, 0, RunSpec { hold_ms: Some(ms), ..spec() })
}

fn machine(bench: &Bench, run: RunId) -> InstanceStatus {
    bench.snapshot(run).instance.unwrap().status
}

#[test]
fn the_hold_pays_first_and_warm_idle_time_after_it() {
    let mut bench = cloud(2);
    let run = held_for(&mut bench, 2 * MINUTE);
    let (slot, instance) = (slot_of(&bench, run).id, bench.job(run).instance.unwrap());
    bench.advance(10 * MINUTE);
    assert_eq!(machine(&bench, run), InstanceStatus::Terminated, "five idle minutes are enough");
    assert_eq!(seconds(&bench, &format!("alc:{}:hold:", slot.slug())), 120);
    assert_eq!(seconds(&bench, &format!("ins:{}:idle:", instance.slug())), 180);
    assert_eq!(seconds(&bench, ""), 300, "and nothing is paid twice");
    let longest = rows(&bench).iter().map(|row| row.entry.amount.micro() / SECOND_COSTS).max();
    assert_eq!(longest, Some(60), "one row a window");
    bench.check();
    bench.check_all_gone();
}

#[test]
fn a_run_on_a_held_machine_pays_for_its_own_time() {
    let mut bench = cloud(1);
    held_for(&mut bench, HOUR);
    bench.advance(90 * SECOND);
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.advance(3 * MINUTE);
    assert_eq!(seconds(&bench, ""), 90, "paid up to the claim, and not while somebody runs there");
    bench.exits(run, 0);
    bench.advance(MINUTE);
    assert_eq!(seconds(&bench, ""), 150);
    assert_eq!(bench.money(run, 1).1, Credits(180 * SECOND_COSTS));
    bench.check();
}

#[test]
fn where_machines_cost_nobody_money_holds_and_idle_time_are_free() {
    let mut bench = Bench::with(settings(2), Config::default());
    let run = held_for(&mut bench, HOUR);
    extend(&bench, slot_of(&bench, run).id, Some(2 * HOUR)).unwrap();
    bench.advance(25 * MINUTE);
    assert_eq!(machine(&bench, run), InstanceStatus::Ready);
    assert_eq!(rows(&bench), []);
    bench.check();
}

#[test]
fn a_hold_and_a_machine_that_cannot_be_paid_end() {
    let mut bench = cloud(2);
    let run = held_for(&mut bench, HOUR);
    spend_all_but(&bench, Credits(150 * SECOND_COSTS));
    bench.advance(119 * SECOND);
    assert!(!slot_of(&bench, run).workdir_released);
    bench.advance(2 * SECOND);
    assert!(slot_of(&bench, run).workdir_released, "half a minute is left, which is no window");
    assert_eq!(machine(&bench, run), InstanceStatus::Terminated);
    assert_eq!(bench.balance().available, Credits(30 * SECOND_COSTS));
    assert!(bench.events(run).contains(&"allocation.hold_unpaid".to_owned()));
    bench.check();
    bench.check_all_gone();
}

#[test]
fn without_any_credits_a_finished_run_is_not_held_at_all() {
    let mut bench = cloud(2);
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    spend_all_but(&bench, Credits::ZERO);
    bench.advance(HOUR);
    bench.expect_end(run, model::run::RunStatus::Failed, Some("budget"));
    bench.advance(SECOND);
    assert_eq!(machine(&bench, run), InstanceStatus::Terminated);
    assert_eq!(seconds(&bench, "ins:"), 0);
    bench.check();
}

#[test]
fn an_extension_sets_its_price_aside_uses_it_and_gives_the_rest_back() {
    let mut bench = cloud(2);
    let run = held_for(&mut bench, 2 * MINUTE);
    let (id, available) = (slot_of(&bench, run).id, bench.balance().available);
    extend(&bench, id, Some(32 * MINUTE)).unwrap();
    let reserved = Credits(30 * 60 * SECOND_COSTS);
    assert_eq!((bench.balance().reserved, bench.balance().available), (reserved, available - reserved));
    extend(&bench, id, Some(MINUTE)).unwrap();
    assert_eq!(bench.balance().reserved, reserved, "a shorter wish costs nothing");
    bench.check();
    bench.advance(2 * MINUTE);
    assert_eq!((bench.balance().reserved, seconds(&bench, "")), (reserved, 120), "the first hold is the org's");
    bench.advance(10 * MINUTE);
    assert_eq!(bench.balance().reserved, reserved - Credits(600 * SECOND_COSTS), "then what was set aside is used");
    bench.check();
    now(bench.engine.release(bench.org, id, None, shown())).unwrap();
    now(bench.engine.release(bench.org, id, None, shown())).unwrap(); // asked twice
    assert_eq!(bench.balance().reserved, Credits::ZERO);
    assert_eq!(sums(&bench, EntryKind::Reserve), reserved);
    assert_eq!(sums(&bench, EntryKind::Charge), Credits(600 * SECOND_COSTS));
    assert_eq!(sums(&bench, EntryKind::Refund), Credits(1200 * SECOND_COSTS));
    let key = format!("alc:{}:extend:1", id.slug());
    let keyed: Vec<_> = rows(&bench).iter().filter(|row| row.entry.key == key).map(|row| row.entry.kind).collect();
    assert_eq!(keyed, [EntryKind::Reserve, EntryKind::Refund]);
    bench.check();
    bench.check_all_gone();
}

#[test]
fn an_extension_that_cannot_be_paid_changes_nothing() {
    let mut bench = cloud(2);
    let run = held_for(&mut bench, 20 * MINUTE);
    let before = slot_of(&bench, run);
    spend_all_but(&bench, PRICE);
    let refused = extend(&bench, before.id, Some(2 * HOUR)).unwrap_err();
    assert!(matches!(refused.refused(), Some(Refused::Unaffordable { .. })), "{refused:?}");
    assert_eq!(slot_of(&bench, run), before);
    assert_eq!(bench.balance().reserved, Credits::ZERO);
    extend(&bench, before.id, Some(30 * MINUTE)).unwrap();
    bench.check();
}

/// What was paid ahead keeps the machine although nothing else is left.
#[test]
fn an_extended_hold_outlives_the_orgs_credits() {
    let mut bench = cloud(2);
    let run = held_for(&mut bench, MINUTE);
    extend(&bench, slot_of(&bench, run).id, Some(21 * MINUTE)).unwrap();
    spend_all_but(&bench, Credits(60 * SECOND_COSTS));
    bench.advance(20 * MINUTE + 30 * SECOND);
    assert!(!slot_of(&bench, run).workdir_released);
    bench.advance(MINUTE);
    assert!(slot_of(&bench, run).workdir_released);
    assert_eq!(machine(&bench, run), InstanceStatus::Terminated);
    assert_eq!((bench.balance().available, bench.balance().reserved), (Credits::ZERO, Credits::ZERO));
    bench.check();
}

#[test]
fn a_machine_that_ends_gives_back_what_its_holds_set_aside() {
    for by_force in [true, false] {
        let mut bench = cloud(2);
        let run = held_for(&mut bench, MINUTE);
        extend(&bench, slot_of(&bench, run).id, Some(HOUR)).unwrap();
        bench.advance(5 * MINUTE);
        if by_force {
            bench.terminate(bench.job(run).instance.unwrap(), true).unwrap();
        } else {
            let name = bench.cut_off(run);
            bench.provider.destroy(&name);
        }
        bench.advance(MINUTE);
        assert_eq!(machine(&bench, run), InstanceStatus::Terminated);
        assert_eq!(bench.balance().reserved, Credits::ZERO, "by force: {by_force}");
        bench.check();
    }
}

/// The control plane dies at every commit of a life with a hold, an extension, idle time and the machine's end.
#[test]
fn no_window_is_charged_twice_or_forgotten_by_a_crash() {
    let story = |bench: &mut Bench| {
        let run = held_for(bench, MINUTE);
        let (id, key) = (slot_of(bench, run).id, bench.key());
        while now(bench.engine.extend(bench.org, id, Some(4 * MINUTE), Some(key.clone()), shown())).is_err() {
            assert!(bench.revive(), "only a death is a reason to ask again");
        }
        bench.revive();
        bench.advance(11 * MINUTE);
        assert_eq!(machine(bench, run), InstanceStatus::Terminated);
        bench.check();
        let idle = seconds(bench, "ins:");
        (sums(bench, EntryKind::Reserve), sums(bench, EntryKind::Charge), seconds(bench, "alc:"), idle)
    };
    let mut calm = cloud(2);
    let told = story(&mut calm);
    let set_aside = Credits(180 * SECOND_COSTS);
    assert_eq!(told, (set_aside, set_aside, 240, 60));
    let writes = calm.crashes.writes.lock().unwrap().len();
    for write in (0..writes).step_by(3) {
        for moment in [Moment::Before, Moment::After] {
            let mut bench = cloud(2);
            bench.crashes.arm(write, moment);
            let (reserved, charged, held, idle) = story(&mut bench);
            assert_eq!((reserved, charged, held), (set_aside, set_aside, 240), "write {write} {moment:?}");
            assert!((60..=75).contains(&idle), "write {write} {moment:?}: {idle} s"); // it ends a little later after a crash
        }
    }
}
