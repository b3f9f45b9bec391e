//! Work items and workers: never lost, never doubled, and what a death proves.

use crate::support::World;
use crate::{read, together, write};
use model::time::Outage;
use model::{Failure, Refused, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::{Item, Sql, Store, Tx, WorkClass, WorkKind, Worker, args, pool, work, worker};

async fn start(store: &Store, name: &'static str) -> Worker {
    write(store, move |tx| worker::start(tx, name)).await.unwrap()
}

async fn claim(store: &Store, worker: &Worker, limit: i64) -> Vec<Item> {
    let worker = worker.clone();
    write(store, move |tx| work::claim(tx, &worker, WorkClass::Control, limit)).await.unwrap()
}

async fn wake(store: &Store, kind: WorkKind, subject: i64) {
    write(store, move |tx| {
        let at = tx.at();
        tx.wake(kind, subject, at);
        Ok(())
    })
    .await
    .unwrap();
}

async fn finish(store: &Store, item: Item, next_ms: Option<i64>) -> Result<(), Failure> {
    write(store, move |tx| {
        work::hold(tx, &item)?;
        let at = tx.at();
        work::finish(tx, &item, next_ms.map(|ms| at + ms));
        Ok(())
    })
    .await
}

/// Its process is gone for longer than a lease lives.
async fn silence(store: &Store, worker: &Worker) {
    const SILENCE: Sql = Sql::new("UPDATE workers SET beat_at = 1 WHERE id = $1");
    let id = worker.id;
    write(store, move |tx| tx.exec(&SILENCE, &args![id])).await.unwrap();
}

pub async fn an_item_has_one_holder(w: &World) {
    for subject in 0..50 {
        wake(&w.store, WorkKind::Run, subject).await;
    }
    let (a, b) = (start(&w.store, "a").await, start(&w.store, "b").await);
    let claims = together(&w.store, 10, |i| {
        let worker = if i % 2 == 0 { a.clone() } else { b.clone() };
        move |tx: &mut Tx| work::claim(tx, &worker, WorkClass::Control, 10)
    })
    .await;
    let mut items: Vec<Item> = claims.into_iter().flat_map(Result::unwrap).collect();
    // On PostgreSQL rows that another claim was looking at are stepped over, for a later claim.
    loop {
        let more = claim(&w.store, &a, 10).await;
        if more.is_empty() {
            break;
        }
        items.extend(more);
    }
    let subjects: BTreeSet<i64> = items.iter().map(|item| item.subject).collect();
    assert_eq!((items.len(), subjects.len()), (50, 50));
}

pub async fn a_holder_that_was_replaced_is_refused(w: &World) {
    wake(&w.store, WorkKind::Job, 7).await;
    let (a, b) = (start(&w.store, "a").await, start(&w.store, "b").await);
    let [old] = claim(&w.store, &a, 10).await[..] else { panic!() };
    silence(&w.store, &a).await;
    let [new] = claim(&w.store, &b, 10).await[..] else { panic!() };
    assert!(new.fence > old.fence);
    let fenced = Err(Failure::from(Refused::Fenced { what: "job 7".to_owned() }));
    assert_eq!(finish(&w.store, old, None).await, fenced);
    let without_hold = write(&w.store, move |tx| {
        work::finish(tx, &old, None);
        Ok(())
    });
    assert_eq!(without_hold.await, fenced, "even a holder that forgot to look");
    assert_eq!(finish(&w.store, new, None).await, Ok(()));
}

pub async fn a_wake_while_leased_is_not_lost(w: &World) {
    let worker = start(&w.store, "a").await;
    let mut again = Vec::new();
    for (woken, due_again) in [(false, false), (true, true)] {
        wake(&w.store, WorkKind::Run, 1).await;
        let [item] = claim(&w.store, &worker, 10).await[..] else { panic!() };
        if woken {
            wake(&w.store, WorkKind::Run, 1).await;
            assert_eq!(claim(&w.store, &worker, 10).await, [], "it is held");
        }
        finish(&w.store, item, None).await.unwrap();
        again = claim(&w.store, &worker, 10).await;
        assert_eq!(!again.is_empty(), due_again);
    }
    let item = again[0];
    // Its holder wakes itself in the transaction that finishes it: the earlier of both counts.
    write(&w.store, move |tx| {
        let at = tx.at();
        tx.wake(WorkKind::Run, 1, at + 50);
        work::finish(tx, &item, Some(at + 90));
        Ok(())
    })
    .await
    .unwrap();
    let known = read(&w.store, |tx| Ok((work::find(tx, WorkKind::Run, 1)?, tx.at()))).await;
    assert!(known.0.unwrap().due.unwrap() <= known.1 + 50);
}

pub async fn what_was_woken_while_held_is_due_since_its_last_look(w: &World) {
    let worker = start(&w.store, "a").await;
    let long_ago = |tx: &mut Tx| {
        let at = tx.at();
        tx.wake(WorkKind::Instance, 1, at - 200_000);
        Ok(at)
    };
    let before = write(&w.store, long_ago).await.unwrap();
    let [item] = claim(&w.store, &worker, 10).await[..] else { panic!() };
    write(&w.store, long_ago).await.unwrap();
    // A run whose time is ahead of the clock, as after one that was set back, does not put the item off.
    write(&w.store, move |tx| {
        let ahead = tx.at() + 3_600_000;
        tx.not_before(ahead);
        work::finish(tx, &item, None);
        Ok(())
    })
    .await
    .unwrap();
    let due = read(&w.store, |tx| work::find(tx, WorkKind::Instance, 1)).await.unwrap().due.unwrap();
    assert!(due >= before, "due since {due:?}, and looked at after {before:?}");
    assert_eq!(claim(&w.store, &worker, 10).await.len(), 1, "due at once");
}

pub async fn what_needs_nothing_is_put_off_without_a_lease(w: &World) {
    let (a, b) = (start(&w.store, "a").await, start(&w.store, "b").await);
    wake(&w.store, WorkKind::Run, 1).await;
    let [old] = claim(&w.store, &a, 10).await[..] else { panic!() };
    for subject in 2..=9 {
        wake(&w.store, WorkKind::Run, subject).await;
    }
    silence(&w.store, &a).await;
    // All but two rest: the odd ones until later, the even ones for good. One of the two is beyond the limit.
    let claimed = write(&w.store, {
        let b = b.clone();
        move |tx| {
            let later = tx.at() + 60_000;
            let holding = work::holding(tx, &b, WorkClass::Control)?;
            work::claim_awake(tx, &b, &holding, (100, 1), |_, items| {
                let idle = items.iter().filter(|(_, subject)| *subject < 8);
                Ok(idle.map(|key| (*key, (key.1 % 2 == 1).then_some(later))).collect())
            })
        }
    });
    let claimed = claimed.await.unwrap();
    assert_eq!((claimed.items.len(), claimed.rested), (1, 7));
    let due: Vec<_> = read(&w.store, |tx| {
        let at = tx.at();
        (1..=7).map(|subject| work::find(tx, WorkKind::Run, subject).map(|known| (known.unwrap(), at))).collect()
    })
    .await;
    for (known, at) in due {
        assert_eq!((known.owner, known.deaths), (None, 0), "{known:?}");
        assert_eq!(known.due.map(|due| due > at), (known.subject % 2 == 1).then_some(true), "{known:?}");
    }
    let fenced = Err(Failure::from(Refused::Fenced { what: "run 1".to_owned() }));
    assert_eq!(finish(&w.store, old, None).await, fenced, "who was slow and not dead has lost it");
    wake(&w.store, WorkKind::Run, 2).await;
    let mut left: Vec<i64> = claim(&w.store, &b, 10).await.iter().map(|item| item.subject).collect();
    left.sort_unstable();
    assert_eq!(left.len(), 2, "the one beyond the limit, and the one that was woken: {left:?}");
    assert_eq!(left[0], 2);
}

pub async fn an_item_that_is_made_again_begins_above_its_old_fence(w: &World) {
    let worker = start(&w.store, "a").await;
    wake(&w.store, WorkKind::Job, 5).await;
    let [old] = claim(&w.store, &worker, 10).await[..] else { panic!() };
    assert_eq!(write(&w.store, |tx| work::sweep(tx, 10)).await, Ok(0), "it is held");
    write(&w.store, |tx| work::forget(tx, WorkKind::Job, 5)).await.unwrap();
    let forgotten = read(&w.store, |tx| Ok(tx.at())).await;
    w.clock.advance(10);
    while read(&w.store, |tx| Ok(tx.at())).await <= forgotten {} // PostgreSQL has a clock of its own
    wake(&w.store, WorkKind::Job, 5).await;
    let [new] = claim(&w.store, &worker, 10).await[..] else { panic!() };
    assert!(new.fence > old.fence, "{old:?} {new:?}");
    assert!(finish(&w.store, old, None).await.is_err(), "whoever held the earlier one is not taken for the holder");
}

pub async fn a_wake_only_ever_brings_forward(w: &World) {
    let due = |ms: i64| {
        move |tx: &mut Tx| {
            tx.wake(WorkKind::Pool, 1, Timestamp(ms));
            Ok(())
        }
    };
    for (at, expected) in [(500, 500), (900, 500), (300, 300)] {
        write(&w.store, due(at)).await.unwrap();
        assert_eq!(read(&w.store, |tx| work::next_due(tx, WorkClass::Control)).await, Some(Timestamp(expected)));
    }
    let overdue = read(&w.store, |tx| work::overdue(tx, Timestamp(400), 10)).await;
    assert_eq!(overdue.iter().map(|item| item.subject).collect::<Vec<_>>(), [1]);
    write(&w.store, |tx| work::forget(tx, WorkKind::Pool, 1)).await.unwrap();
    assert_eq!(read(&w.store, |tx| work::next_due(tx, WorkClass::Control)).await, None);
}

pub async fn finishes_and_wakes_of_many_holders_do_not_deadlock(w: &World) {
    for subject in 0..20 {
        wake(&w.store, WorkKind::Run, subject).await;
    }
    let worker = start(&w.store, "a").await;
    let items = claim(&w.store, &worker, 20).await;
    assert_eq!(items.len(), 20);
    let runs = Arc::new(AtomicUsize::new(0));
    let answers = together(&w.store, 20, |i| {
        let (item, runs) = (items[i], runs.clone());
        move |tx: &mut Tx| {
            runs.fetch_add(1, Ordering::Relaxed);
            work::hold(tx, &item)?;
            let at = tx.at();
            (0..20).rev().for_each(|subject| tx.wake(WorkKind::Run, subject, at));
            work::finish(tx, &item, None);
            Ok(())
        }
    })
    .await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(runs.load(Ordering::Relaxed), 20, "nothing had to be tried again");
}

pub async fn a_restart_frees_everything_at_once(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let before = start(&w.store, "only").await;
    assert_eq!(claim(&w.store, &before, 10).await.len(), 1);
    let after = start(&w.store, "only").await;
    assert_eq!((after.id, after.boot), (before.id, before.boot + 1));
    assert_eq!(claim(&w.store, &after, 10).await.len(), 1);
    let renewed = write(&w.store, move |tx| worker::renew(tx, &before)).await;
    assert!(matches!(renewed, Err(Failure::Refused(Refused::Fenced { .. }))), "the older process must end");
}

pub async fn a_dead_lease_frees_what_it_held(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let (a, b) = (start(&w.store, "a").await, start(&w.store, "b").await);
    assert_eq!(claim(&w.store, &a, 10).await.len(), 1);
    assert_eq!(claim(&w.store, &b, 10).await, []);
    silence(&w.store, &a).await;
    assert_eq!(claim(&w.store, &b, 10).await.len(), 1);
}

pub async fn a_stale_or_replaced_worker_claims_nothing(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let worker = start(&w.store, "a").await;
    silence(&w.store, &worker).await;
    let claimed = {
        let worker = worker.clone();
        write(&w.store, move |tx| work::claim(tx, &worker, WorkClass::Control, 1)).await
    };
    assert_eq!(claimed, Err(Refused::Stale { what: "this worker's lease" }.into()));
    let renewed = worker.clone();
    write(&w.store, move |tx| worker::renew(tx, &renewed)).await.unwrap();
    assert_eq!(claim(&w.store, &worker, 1).await.len(), 1);
}

pub async fn an_item_that_kills_its_holders_is_claimed_alone_and_given_up(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    // Two processes die with it among other work: it is only suspected.
    for other in [10, 11] {
        wake(&w.store, WorkKind::Run, other).await;
        let worker = start(&w.store, "w").await;
        assert!(claim(&w.store, &worker, 10).await.len() >= 2);
    }
    // The next ones get it alone, and nothing beside it. Its companions wait their turn, suspected too.
    for death in 0..5 {
        let worker = start(&w.store, "w").await;
        let [item] = claim(&w.store, &worker, 10).await[..] else { panic!("not alone at {death}") };
        assert_eq!((item.subject, item.dead), (1, false), "after {death} deaths alone");
        wake(&w.store, WorkKind::Run, 99).await;
        assert_eq!(claim(&w.store, &worker, 10).await, [], "nothing beside it");
    }
    let worker = start(&w.store, "w").await;
    let [item] = claim(&w.store, &worker, 10).await[..] else { panic!() };
    assert_eq!((item.subject, item.dead), (1, true));
    // A worker that survives and finishes it resets the count of deaths.
    finish(&w.store, item, Some(0)).await.unwrap();
    let known = read(&w.store, |tx| work::find(tx, WorkKind::Run, 1)).await.unwrap();
    assert_eq!((known.deaths, known.owner), (0, None));
}

pub async fn an_orderly_stop_is_no_death(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    for _ in 0..4 {
        let worker = start(&w.store, "w").await;
        assert_eq!(claim(&w.store, &worker, 10).await.len(), 1);
        write(&w.store, move |tx| worker::stop(tx, &worker)).await.unwrap();
    }
    assert_eq!(read(&w.store, |tx| work::find(tx, WorkKind::Run, 1)).await.unwrap().deaths, 0);
}

/// The answer to its claim was lost: as long as the worker lives, no other worker would take these items.
pub async fn what_a_worker_does_not_know_it_holds_is_given_back(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let worker = start(&w.store, "a").await;
    let [lost] = claim(&w.store, &worker, 10).await[..] else { panic!("it was due") };
    let give_back = async |in_hand: &[work::InHand]| {
        let (worker, in_hand) = (worker.clone(), in_hand.to_vec());
        let given = move |tx: &mut Tx| work::give_back_unknown(tx, &worker, WorkClass::Control, &in_hand);
        write(&w.store, given).await.unwrap().items
    };
    assert_eq!(give_back(&[(WorkKind::Run, 1, lost.fence)]).await, 1, "it is in hand");
    assert_eq!(claim(&w.store, &worker, 10).await, []);
    wake(&w.store, WorkKind::Run, 2).await;
    let [other] = claim(&w.store, &worker, 10).await[..] else { panic!("it was due") };
    assert_eq!(give_back(&[(WorkKind::Run, 2, other.fence)]).await, 1, "one in hand is never given back");
    let [again] = claim(&w.store, &worker, 10).await[..] else { panic!("it is free again") };
    let known = read(&w.store, |tx| work::find(tx, WorkKind::Run, 1)).await.unwrap();
    assert_eq!((again.fence, known.deaths), (lost.fence + 1, 0), "nobody has died of it");
}

pub async fn a_gap_between_beats_is_an_outage(w: &World) {
    const LAST: Sql = Sql::new("UPDATE monitor SET beat_at = $1 WHERE id = 1");
    assert_eq!(write(&w.store, worker::beat).await.unwrap(), None, "the first beat ever follows no outage");
    assert_eq!(write(&w.store, worker::beat).await.unwrap(), None);
    let (before, noted) = write(&w.store, |tx| {
        let before = tx.at() - 60_000;
        tx.exec(&LAST, &args![before])?;
        let still_going_on = worker::outages(tx, Timestamp(0))?;
        assert_eq!(still_going_on.len(), 1, "it counts before anybody has noted it");
        Ok((before, worker::beat(tx)?.unwrap()))
    })
    .await
    .unwrap();
    assert_eq!(noted.from, before);
    let since = |at: Timestamp| {
        let store = w.store.clone();
        async move { read(&store, move |tx| worker::outages(tx, at)).await }
    };
    assert_eq!(since(Timestamp(0)).await, [Outage { from: before, to: noted.to }]);
    assert_eq!(since(noted.to).await, []);
}

/// A beat from a time that is still to come would hide every gap and every death until then.
pub async fn a_clock_that_was_set_back_is_followed(w: &World) {
    const LAST: Sql = Sql::new("UPDATE monitor SET beat_at = $1 WHERE id = 1");
    const LEASES: Sql = Sql::new("UPDATE workers SET beat_at = $1");
    wake(&w.store, WorkKind::Run, 1).await;
    let dead = start(&w.store, "dead").await;
    assert_eq!(claim(&w.store, &dead, 10).await.len(), 1);
    let set_back = write(&w.store, |tx| {
        let to_come = tx.at() + 3_600_000;
        tx.exec(&LAST, &args![to_come])?;
        tx.exec(&LEASES, &args![to_come])?;
        Ok((worker::beat(tx)?, worker::outages(tx, Timestamp(0))?, tx.at()))
    });
    let (noted, outages, at) = set_back.await.unwrap();
    assert_eq!((noted, outages), (None, Vec::new()), "nobody was away");
    // A minute later. The database's clock cannot be moved: whatever it has written is moved back instead.
    let gap = write(&w.store, move |tx| {
        const BEAT: Sql = Sql::new("SELECT beat_at FROM monitor WHERE id = 1");
        assert_eq!(tx.row(&BEAT, &args![])?.unwrap().at(0)?, at);
        const EARLIER: Sql = Sql::new("UPDATE workers SET beat_at = beat_at - 120000");
        tx.exec(&EARLIER, &args![])?;
        tx.exec(&LAST, &args![at - 60_000])?;
        worker::beat(tx)
    });
    assert_eq!(gap.await.unwrap().unwrap().from, at - 60_000, "a gap after it is seen");
    let living = start(&w.store, "living").await;
    assert_eq!(claim(&w.store, &living, 10).await.len(), 1, "so is a death that came before the gap");
}

/// After an outage of all processes a worker has the rest of its lease: time in which no lease could be renewed does not count.
pub async fn a_lease_does_not_run_out_while_nobody_could_renew_it(w: &World) {
    const AWAY: Sql = Sql::new("UPDATE workers SET beat_at = beat_at - 600000");
    const LAST: Sql = Sql::new("UPDATE monitor SET beat_at = $1 WHERE id = 1");
    wake(&w.store, WorkKind::Run, 1).await;
    let held = start(&w.store, "a").await;
    assert_eq!(claim(&w.store, &held, 10).await.len(), 1);
    write(&w.store, |tx| {
        let at = tx.at();
        tx.exec(&AWAY, &args![])?;
        tx.exec(&LAST, &args![at - 600_000])?;
        worker::beat(tx).map(drop)
    })
    .await
    .unwrap();
    let other = start(&w.store, "b").await;
    assert_eq!(claim(&w.store, &other, 10).await, [], "its holder was away as everybody was");
    const LATE: Sql = Sql::new("UPDATE workers SET beat_at = beat_at - 60000 WHERE name = 'a'");
    write(&w.store, |tx| tx.exec(&LATE, &args![]).map(drop)).await.unwrap();
    assert_eq!(claim(&w.store, &other, 10).await.len(), 1, "its own silence counts");
}

/// Acts that hang take no lease, no permit and no turn from other work.
pub async fn classes_of_work_do_not_see_each_other(w: &World) {
    for agent in 1..=3 {
        wake(&w.store, WorkKind::Agent, agent).await;
    }
    wake(&w.store, WorkKind::Run, 1).await;
    let worker = start(&w.store, "a").await;
    let claim_class = async |class: WorkClass| {
        let worker = worker.clone();
        write(&w.store, move |tx| work::claim(tx, &worker, class, 10)).await.unwrap()
    };
    let control = claim_class(WorkClass::Control).await;
    assert_eq!(control.iter().map(|item| item.kind).collect::<Vec<_>>(), [WorkKind::Run]);
    assert_eq!(read(&w.store, |tx| work::next_due(tx, WorkClass::Control)).await, None);
    assert!(read(&w.store, |tx| work::next_due(tx, WorkClass::Act)).await.is_some());
    assert_eq!(claim_class(WorkClass::Act).await.len(), 3);
    assert_eq!(claim_class(WorkClass::Act).await, []);
}

/// Items of a provider beyond its share are set aside without a lease. They are not met by later claims, and come back when fewer are held.
pub async fn a_provider_that_has_its_share_holds_up_no_other(w: &World) {
    let regions = |provider: &'static str, regions: i64| {
        move |tx: &mut Tx| {
            let at = tx.at();
            (0..regions).try_for_each(|region| {
                let pool = pool::ensure(tx, provider, &region.to_string())?;
                tx.wake(WorkKind::Scan, pool.0, at);
                Ok(())
            })
        }
    };
    write(&w.store, regions("hangs", 8)).await.unwrap();
    write(&w.store, regions("works", 2)).await.unwrap();
    wake(&w.store, WorkKind::Run, 1).await;
    let worker = start(&w.store, "a").await;
    let claim = async |held: &[(i64, i64)]| {
        let (worker, held) = (worker.clone(), BTreeMap::from_iter(held.iter().copied()));
        let claim = move |tx: &mut Tx| {
            let asking = work::Asking { of_one_provider: 3, held: held.clone(), brings_back: true };
            let holding = work::holding(tx, &worker, WorkClass::Control)?;
            let shares = work::Shares { of_one_org: 1, of_one_worker: 1 };
            work::claim_awake(tx, &worker, &holding.within(shares, asking), (100, 100), |_, _| Ok(BTreeMap::new()))
        };
        write(&w.store, claim).await.unwrap()
    };
    let first = claim(&[]).await;
    let mut of: BTreeMap<Option<i64>, Vec<Item>> = BTreeMap::new();
    first.items.iter().for_each(|item| of.entry(item.asks).or_default().push(*item));
    let mut counts: Vec<usize> = of.values().map(Vec::len).collect();
    counts.sort_unstable();
    assert_eq!((counts, first.parked), (vec![1, 2, 3], 5));
    assert_eq!(of[&None][0].kind, WorkKind::Run, "an item that calls no provider has no permit of one");
    let (hangs, asked) = of.iter().find(|(_, items)| items.len() == 3).unwrap();
    let (hangs, asked) = (hangs.unwrap(), asked.clone());
    // Whatever they are woken by, they are met by no claim as long as their provider has its share.
    for region in 0..8 {
        let wake = async |pool: i64| wake(&w.store, WorkKind::Scan, pool).await;
        wake(write(&w.store, move |tx| pool::ensure(tx, "hangs", &region.to_string())).await.unwrap().0).await;
    }
    let second = claim(&[(hangs, 3)]).await;
    assert_eq!((second.items.len(), second.parked), (0, 0));
    assert_eq!(read(&w.store, |tx| work::next_due(tx, WorkClass::Control)).await, None);
    let parked = read(&w.store, work::parked_of_providers).await;
    assert_eq!(parked, [hangs]);
    let may = |held: i64| {
        let held = BTreeMap::from([(hangs, held)]);
        work::Asking { of_one_provider: 3, held, brings_back: true }.may_bring_back(&parked)
    };
    assert_eq!((may(3), may(2)), (false, true));
    w.clock.advance(10);
    // One of the three ends, and was woken meanwhile: it takes its turn behind those that have waited.
    finish(&w.store, asked[0], None).await.unwrap();
    let third = claim(&[(hangs, 2)]).await;
    assert_eq!(third.items.len(), 1);
    assert!(asked.iter().all(|item| item.subject != third.items[0].subject), "the oldest comes first");
    assert_eq!(third.items[0].asks, Some(hangs));
    // With none held all that are left come, as many as there are permits.
    assert_eq!(claim(&[]).await.items.len(), 3);
}

/// Links are held for as long as machines live, many at once: however often their worker dies, the next one gets them all.
pub async fn a_link_is_not_suspected_of_killing_its_holders(w: &World) {
    for machine in 1..=3 {
        wake(&w.store, WorkKind::Link, machine).await;
    }
    for death in 0..8 {
        let worker = start(&w.store, "w").await;
        assert_eq!(claim(&w.store, &worker, 10).await, [], "they are of a class of their own");
        let links = write(&w.store, move |tx| work::claim(tx, &worker, WorkClass::Link, 10)).await.unwrap();
        assert_eq!(links.len(), 3, "after {death} deaths");
        assert!(links.iter().all(|item| !item.dead));
    }
}

/// An agent is held for hours: that its process ends now and then, for whatever reason, says nothing about it.
pub async fn a_holder_that_dies_long_after_its_claim_did_not_die_of_it(w: &World) {
    const LONG_AGO: Sql = Sql::new("UPDATE work SET leased_at = leased_at - 3600000");
    let act = async |worker: &Worker| {
        let worker = worker.clone();
        write(&w.store, move |tx| work::claim(tx, &worker, WorkClass::Act, 10)).await.unwrap()
    };
    let deaths = async || read(&w.store, |tx| work::find(tx, WorkKind::Agent, 1)).await.unwrap().deaths;
    wake(&w.store, WorkKind::Agent, 1).await;
    for death in 0..8 {
        let worker = start(&w.store, "w").await;
        assert_eq!(
            act(&worker).await.iter().map(|item| item.dead).collect::<Vec<_>>(),
            [false],
            "after {death} deaths"
        );
        assert_eq!(deaths().await, 0);
        write(&w.store, |tx| tx.exec(&LONG_AGO, &args![])).await.unwrap();
    }
    // One that kills its holders at once is suspected, and held alone until it has lived long enough.
    for _ in 0..3 {
        let worker = start(&w.store, "w").await;
        assert_eq!(act(&worker).await.len(), 1);
    }
    assert_eq!(deaths().await, 2);
    let worker = start(&w.store, "w").await;
    assert_eq!(act(&worker).await.len(), 1);
    wake(&w.store, WorkKind::Agent, 2).await;
    assert_eq!(act(&worker).await, [], "nothing beside a suspect");
    write(&w.store, |tx| tx.exec(&LONG_AGO, &args![])).await.unwrap();
    assert_eq!(act(&worker).await.len(), 1, "it has cleared itself");
}

pub async fn outages_that_overlap_count_once(w: &World) {
    const NOTED: Sql = Sql::new("INSERT INTO outages (from_at, to_at) VALUES ($1, $2)");
    let outage = |from: i64, to: i64| Outage { from: Timestamp(from), to: Timestamp(to) };
    write(&w.store, move |tx| {
        for (from, to) in [(100, 500), (200, 300), (400, 600), (700, 800)] {
            tx.exec(&NOTED, &args![Timestamp(from), Timestamp(to)])?;
        }
        Ok(())
    })
    .await
    .unwrap();
    let seen = read(&w.store, |tx| worker::outages(tx, Timestamp(0))).await;
    assert_eq!(seen, [outage(100, 600), outage(700, 800)]);
}
