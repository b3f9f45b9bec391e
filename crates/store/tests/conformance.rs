//! Every promise of the store, on SQLite in memory, SQLite in a file and PostgreSQL. A case is a sentence; each gets an empty
//! database of its own.

mod support;

use model::time::{HOUR, Outage};
use model::{ArtifactId, Credits, Effect, Failure, JobId, OrgId, Refused, RunId, Timestamp, TroubleKind};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use store::idempotency::{self, Key, Looked};
use store::log::{Chunk, Logged};
use store::token::{NewToken, Scope};
use store::{
    BlobHash, BlobName, Entry, EntryKind, Frame, Hint, Installation, Item, Lane, LogStream, NewEvent, Sql, Store, Tx,
    WorkKind, Worker, args, event, ledger, org, secret, token, work, worker,
};
use support::postgres::Postgres;
use support::{On, World, block_on};

#[test]
fn in_memory() {
    all(On::Memory, None);
}

#[test]
fn in_a_file() {
    all(On::File, None);
}

#[test]
fn on_postgres() {
    all(On::Postgres, Some(&Postgres::start()));
}

/// Names each case before it runs, so that the last name of a failed test is the one that failed.
fn all(on: On, postgres: Option<&Postgres>) {
    macro_rules! cases {
        ($($case:ident)*) => {$(
            println!("{on:?}: {}", stringify!($case).replace('_', " "));
            block_on($case(&World::new(on, postgres)));
        )*};
    }
    cases! {
        one_refusal_takes_back_its_own_rows_only
        a_swallowed_error_commits_nothing
        ids_are_never_given_twice
        a_closure_that_needs_many_ids_gets_them
        hints_come_after_the_commit_and_once
        time_does_not_go_backwards_for_a_run
        placeholders_mean_their_number
        an_item_has_one_holder
        a_holder_that_was_replaced_is_refused
        a_wake_while_leased_is_not_lost
        a_wake_only_ever_brings_forward
        finishes_and_wakes_of_many_holders_do_not_deadlock
        a_restart_frees_everything_at_once
        a_dead_lease_frees_what_it_held
        a_stale_or_replaced_worker_claims_nothing
        an_item_that_kills_its_holders_is_claimed_alone_and_given_up
        an_orderly_stop_is_no_death
        a_gap_between_beats_is_an_outage
        events_are_numbered_without_gaps
        credits_move_only_as_far_as_they_reach
        a_movement_is_made_once
        the_ledger_is_a_chain_nobody_changes
        concurrent_reservations_never_overdraw
        a_key_has_one_effect
        a_key_is_bound_to_its_request
        a_refusal_leaves_no_key
        a_log_has_no_gaps_and_no_repeats
        a_new_epoch_of_a_job_goes_on_where_the_log_ended
        a_log_reads_the_same_after_it_was_gathered
        a_log_over_its_quota_is_marked
        bytes_that_never_came_are_marked
        tokens_are_known_by_their_hash
        secrets_are_kept_sealed
        blobs_are_what_was_sent
        reads_see_one_moment
    }
}

const TOPUP: Credits = Credits::whole(100);

async fn write<T: Send + 'static>(
    store: &Store,
    f: impl Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
) -> Result<T, Failure> {
    store.write(Lane::Normal, "test", f).await
}

async fn read<T: Send + 'static>(
    store: &Store,
    f: impl Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
) -> T {
    store.read("test", f).await.unwrap()
}

async fn rich_org(store: &Store) -> OrgId {
    let made = write(store, |tx| {
        let org = org::create(tx, "default")?;
        tx.ledger(Entry::new(org, EntryKind::Topup, TOPUP, "first"));
        Ok(org)
    });
    made.await.unwrap()
}

fn happened(org: OrgId, run: i64, kind: &'static str) -> NewEvent {
    NewEvent { org, run: Some(RunId(run)), kind, body: serde_json::json!({ "kind": kind }) }
}

/// Many writes at once; their answers in order.
async fn together<T, F>(store: &Store, count: usize, make: impl Fn(usize) -> F) -> Vec<Result<T, Failure>>
where
    T: Send + 'static,
    F: Fn(&mut Tx) -> Result<T, Failure> + Send + Sync + 'static,
{
    let tasks: Vec<_> = (0..count)
        .map(|i| {
            let (store, f) = (store.clone(), make(i));
            tokio::spawn(async move { store.write(Lane::Normal, "together", f).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

// Transactions

async fn one_refusal_takes_back_its_own_rows_only(w: &World) {
    // The first closure holds the writer until the others wait behind it, so that on SQLite they are one group.
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let holding = {
        let store = w.store.clone();
        tokio::spawn(async move {
            write(&store, move |_| {
                let _ = wait.lock().unwrap().recv();
                Ok(())
            })
            .await
        })
    };
    let answers = tokio::spawn({
        let store = w.store.clone();
        async move {
            together(&store, 9, |i| {
                move |tx: &mut Tx| {
                    let org = org::create(tx, &format!("org {i}"))?;
                    match i % 3 {
                        0 => Ok(org),
                        1 => Err(Refused::Conflict { why: "no".to_owned() }.into()),
                        _ => panic!("a bug"),
                    }
                }
            })
            .await
        }
    });
    tokio::task::yield_now().await;
    drop(go);
    holding.await.unwrap().unwrap();
    for (i, answer) in answers.await.unwrap().into_iter().enumerate() {
        match i % 3 {
            0 => assert!(answer.is_ok()),
            1 => assert_eq!(answer, Err(Refused::Conflict { why: "no".to_owned() }.into())),
            _ => assert!(answer.unwrap_err().to_string().contains("panicked: a bug")),
        }
    }
    let names =
        read(&w.store, |tx| Ok(org::page(tx, OrgId(0), 100)?.into_iter().map(|org| org.name).collect::<BTreeSet<_>>()))
            .await;
    assert_eq!(names, BTreeSet::from(["org 0", "org 3", "org 6"].map(str::to_owned)));
}

async fn a_swallowed_error_commits_nothing(w: &World) {
    const TWICE: Sql = Sql::new(
        "INSERT INTO orgs (id, name, available, reserved, ledger_seq, created_at) VALUES (1, 'x', 0, 0, 0, 0)",
    );
    let answer = write(&w.store, |tx| {
        tx.exec(&TWICE, &args![])?;
        assert!(tx.exec(&TWICE, &args![]).is_err());
        assert!(org::page(tx, OrgId(0), 10).is_err(), "after an error everything fails");
        Ok(())
    });
    assert!(matches!(answer.await, Err(Failure::Refused(Refused::Conflict { .. }))));
    assert_eq!(read(&w.store, |tx| org::page(tx, OrgId(0), 10)).await, []);
}

async fn ids_are_never_given_twice(w: &World) {
    let answers =
        together(&w.store, 40, |_| |tx: &mut Tx| Ok((0..100).map(|_| tx.next_id()).collect::<Vec<_>>())).await;
    let ids: Vec<i64> = answers.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 4000);
    assert!(ids.iter().all(|id| *id > 0 && model::slug(*id) != "none"));
}

async fn a_closure_that_needs_many_ids_gets_them(w: &World) {
    let ids = write(&w.store, |tx| Ok((0..20_000).map(|_| tx.next_id()).collect::<BTreeSet<_>>())).await.unwrap();
    assert_eq!(ids.len(), 20_000);
}

async fn hints_come_after_the_commit_and_once(w: &World) {
    let org = rich_org(&w.store).await;
    let mut hints = w.store.hints();
    let refused = write(&w.store, move |tx| {
        tx.hint(Hint::Run(RunId(1)));
        Err::<(), _>(Refused::KeyReused.into())
    });
    refused.await.unwrap_err();
    write(&w.store, move |tx| {
        tx.event(happened(org, 2, "one"));
        tx.event(happened(org, 2, "two"));
        tx.hint(Hint::Run(RunId(2)));
        tx.wake(WorkKind::Run, 2, Timestamp(0));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((hints.recv().await.unwrap(), hints.recv().await.unwrap()), (Hint::Work, Hint::Run(RunId(2))));
    assert!(hints.try_recv().is_err());
}

async fn time_does_not_go_backwards_for_a_run(w: &World) {
    let (now, later, raised) = write(&w.store, |tx| {
        let now = tx.at();
        assert_eq!(tx.at(), now, "a transaction has one time");
        assert_eq!(tx.not_before(now - 5), now);
        Ok((now, now + 5, tx.not_before(now + 5)))
    })
    .await
    .unwrap();
    assert!(now > Timestamp(1_600_000_000_000) && raised == later);
}

async fn placeholders_mean_their_number(w: &World) {
    const ECHO: Sql =
        Sql::new("SELECT id, name, available + $2 FROM orgs WHERE name = $3 AND available + $2 > $1 AND $2 = $2");
    rich_org(&w.store).await;
    let row = read(&w.store, |tx| tx.row(&ECHO, &args![0, 7, "default"])).await.unwrap();
    assert_eq!(row.int(2).unwrap(), TOPUP.0 + 7);
}

// Work items

async fn start(store: &Store, name: &'static str) -> Worker {
    write(store, move |tx| worker::start(tx, name)).await.unwrap()
}

async fn claim(store: &Store, worker: &Worker, limit: i64) -> Vec<Item> {
    let worker = worker.clone();
    write(store, move |tx| work::claim(tx, &worker, limit)).await.unwrap()
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

async fn an_item_has_one_holder(w: &World) {
    for subject in 0..50 {
        wake(&w.store, WorkKind::Run, subject).await;
    }
    let (a, b) = (start(&w.store, "a").await, start(&w.store, "b").await);
    let claims = together(&w.store, 10, |i| {
        let worker = if i % 2 == 0 { a.clone() } else { b.clone() };
        move |tx: &mut Tx| work::claim(tx, &worker, 10)
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

async fn a_holder_that_was_replaced_is_refused(w: &World) {
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

async fn a_wake_while_leased_is_not_lost(w: &World) {
    let worker = start(&w.store, "a").await;
    for (woken, due_again) in [(false, false), (true, true)] {
        wake(&w.store, WorkKind::Run, 1).await;
        let [item] = claim(&w.store, &worker, 10).await[..] else { panic!() };
        if woken {
            wake(&w.store, WorkKind::Run, 1).await;
            assert_eq!(claim(&w.store, &worker, 10).await, [], "it is held");
        }
        finish(&w.store, item, None).await.unwrap();
        assert_eq!(!claim(&w.store, &worker, 10).await.is_empty(), due_again);
    }
    let left = read(&w.store, |tx| work::find(tx, WorkKind::Run, 1)).await.unwrap();
    let item = Item { kind: WorkKind::Run, subject: 1, generation: left.generation, fence: 3, dead: false };
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

async fn a_wake_only_ever_brings_forward(w: &World) {
    let due = |ms: i64| {
        move |tx: &mut Tx| {
            tx.wake(WorkKind::Pool, 1, Timestamp(ms));
            Ok(())
        }
    };
    for (at, expected) in [(500, 500), (900, 500), (300, 300)] {
        write(&w.store, due(at)).await.unwrap();
        assert_eq!(read(&w.store, work::next_due).await, Some(Timestamp(expected)));
    }
    let overdue = read(&w.store, |tx| work::overdue(tx, Timestamp(400), 10)).await;
    assert_eq!(overdue.iter().map(|item| item.subject).collect::<Vec<_>>(), [1]);
    write(&w.store, |tx| work::forget(tx, WorkKind::Pool, 1)).await.unwrap();
    assert_eq!(read(&w.store, work::next_due).await, None);
}

async fn finishes_and_wakes_of_many_holders_do_not_deadlock(w: &World) {
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

async fn a_restart_frees_everything_at_once(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let before = start(&w.store, "only").await;
    assert_eq!(claim(&w.store, &before, 10).await.len(), 1);
    let after = start(&w.store, "only").await;
    assert_eq!((after.id, after.boot), (before.id, before.boot + 1));
    assert_eq!(claim(&w.store, &after, 10).await.len(), 1);
    let renewed = write(&w.store, move |tx| worker::renew(tx, &before)).await;
    assert!(matches!(renewed, Err(Failure::Refused(Refused::Fenced { .. }))), "the older process must end");
}

async fn a_dead_lease_frees_what_it_held(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let (a, b) = (start(&w.store, "a").await, start(&w.store, "b").await);
    assert_eq!(claim(&w.store, &a, 10).await.len(), 1);
    assert_eq!(claim(&w.store, &b, 10).await, []);
    silence(&w.store, &a).await;
    assert_eq!(claim(&w.store, &b, 10).await.len(), 1);
}

async fn a_stale_or_replaced_worker_claims_nothing(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    let worker = start(&w.store, "a").await;
    silence(&w.store, &worker).await;
    let claimed = {
        let worker = worker.clone();
        write(&w.store, move |tx| work::claim(tx, &worker, 1)).await
    };
    assert_eq!(claimed, Err(Refused::Stale { what: "this worker's lease" }.into()));
    let renewed = worker.clone();
    write(&w.store, move |tx| worker::renew(tx, &renewed)).await.unwrap();
    assert_eq!(claim(&w.store, &worker, 1).await.len(), 1);
}

async fn an_item_that_kills_its_holders_is_claimed_alone_and_given_up(w: &World) {
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
    // Whoever lives to finish it has made progress.
    finish(&w.store, item, Some(0)).await.unwrap();
    let known = read(&w.store, |tx| work::find(tx, WorkKind::Run, 1)).await.unwrap();
    assert_eq!((known.deaths, known.owner), (0, None));
}

async fn an_orderly_stop_is_no_death(w: &World) {
    wake(&w.store, WorkKind::Run, 1).await;
    for _ in 0..4 {
        let worker = start(&w.store, "w").await;
        assert_eq!(claim(&w.store, &worker, 10).await.len(), 1);
        write(&w.store, move |tx| worker::stop(tx, &worker)).await.unwrap();
    }
    assert_eq!(read(&w.store, |tx| work::find(tx, WorkKind::Run, 1)).await.unwrap().deaths, 0);
}

async fn a_gap_between_beats_is_an_outage(w: &World) {
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

// Events and money

async fn events_are_numbered_without_gaps(w: &World) {
    let org = rich_org(&w.store).await;
    let answers = together(&w.store, 60, move |i| {
        move |tx: &mut Tx| {
            tx.event(happened(org, 1 + (i % 2) as i64, "a"));
            tx.event(NewEvent { org, run: None, kind: "org", body: serde_json::Value::Null });
            tx.event(happened(org, 1 + (i % 2) as i64, "b"));
            if i % 5 == 4 { Err(Refused::KeyReused.into()) } else { Ok(()) }
        }
    })
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 48);
    for (run, count) in [(Some(RunId(1)), 48), (Some(RunId(2)), 48), (None, 48)] {
        let events = read(&w.store, move |tx| event::after(tx, org, run, 0, 1000)).await;
        assert!(events.iter().map(|event| event.seq).eq(1..=count), "{run:?}");
        assert_eq!(read(&w.store, move |tx| event::last(tx, org, run)).await, count);
        let page = read(&w.store, move |tx| event::after(tx, org, run, 10, 3)).await;
        assert_eq!(page, events[10..13]);
    }
    let other = read(&w.store, |tx| event::after(tx, OrgId(999), Some(RunId(1)), 0, 10)).await;
    assert_eq!(other, [], "another org sees nothing");
}

async fn balance(store: &Store, org: OrgId) -> (Credits, Credits) {
    read(store, move |tx| org::find(tx, org).map(|org| (org.available, org.reserved))).await
}

async fn credits_move_only_as_far_as_they_reach(w: &World) {
    use EntryKind::*;
    let org = rich_org(&w.store).await;
    let enter = |kind, amount, key: &'static str, direct: bool| {
        write(&w.store, move |tx| {
            let entry = Entry::new(org, kind, Credits::whole(amount), key).of(RunId(1), 1);
            tx.ledger(if direct { entry.from_available() } else { entry });
            Ok(())
        })
    };
    let steps = [
        (Reserve, 60, "r", false, (40, 60)),
        (Charge, 25, "c", false, (40, 35)),
        (Charge, 10, "hold", true, (30, 35)),
        (Refund, 35, "f", false, (65, 0)),
        (Adjust, -5, "a", false, (60, 0)),
        (Charge, 0, "nothing", false, (60, 0)),
    ];
    for (kind, amount, key, direct, (available, reserved)) in steps {
        enter(kind, amount, key, direct).await.unwrap();
        assert_eq!(balance(&w.store, org).await, (Credits::whole(available), Credits::whole(reserved)), "{key}");
    }
    let needed = Credits::whole(61);
    let unaffordable = Err(Refused::Unaffordable { needed, available: Credits::whole(60) }.into());
    assert_eq!(enter(Reserve, 61, "too much", false).await, unaffordable);
    assert_eq!(enter(Charge, 61, "too much", true).await, unaffordable);
    assert!(enter(Refund, 1, "nothing is reserved", false).await.is_err());
    let unknown = write(&w.store, |tx| {
        tx.ledger(Entry::new(OrgId(999_999), Topup, TOPUP, "x"));
        Ok(())
    })
    .await;
    assert!(matches!(unknown, Err(Failure::Refused(Refused::NotFound { .. }))));
    assert_eq!(read(&w.store, move |tx| ledger::after(tx, org, 0, 100)).await.len(), 6, "nothing but what moved");
    assert_eq!(read(&w.store, move |tx| ledger::of_run(tx, org, RunId(1), 0, 100)).await.len(), 5);
}

async fn a_movement_is_made_once(w: &World) {
    let org = rich_org(&w.store).await;
    let answers = together(&w.store, 8, move |_| {
        move |tx: &mut Tx| {
            tx.ledger(Entry::new(org, EntryKind::Reserve, Credits::whole(1), "1:1"));
            Ok(())
        }
    })
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    let told = answers.iter().find_map(|answer| answer.as_ref().err()).unwrap();
    assert!(told.to_string().contains("was made before"), "{told}");
    assert_eq!(balance(&w.store, org).await.1, Credits::whole(1));
    assert!(read(&w.store, move |tx| ledger::has(tx, org, "1:1", EntryKind::Reserve)).await);
    assert!(!read(&w.store, move |tx| ledger::has(tx, org, "1:1", EntryKind::Charge)).await);
}

async fn the_ledger_is_a_chain_nobody_changes(w: &World) {
    const FORGE: Sql = Sql::new("UPDATE ledger SET amount = 1 WHERE seq = 2");
    const ERASE: Sql = Sql::new("DELETE FROM ledger WHERE seq = 2");
    let org = rich_org(&w.store).await;
    let many = together(&w.store, 20, move |i| {
        move |tx: &mut Tx| {
            for part in ["a", "b"] {
                tx.ledger(
                    Entry::new(org, EntryKind::Reserve, Credits(1 + i as i64), format!("{i}{part}")).memo("a memo"),
                );
            }
            Ok(())
        }
    });
    assert!(many.await.iter().all(Result::is_ok));
    for forged in [&FORGE, &ERASE] {
        let answer = write(&w.store, move |tx| tx.exec(forged, &args![])).await;
        assert!(answer.unwrap_err().to_string().contains("never"), "{}", forged.text);
    }
    let rows = read(&w.store, move |tx| ledger::after(tx, org, 0, 1000)).await;
    assert_eq!(rows.len(), 41);
    let mut before = None;
    for row in &rows {
        assert!(row.follows(before), "row {}", row.seq);
        before = Some(row);
    }
    let mut forged = rows[5].clone();
    forged.entry.amount = Credits(1_000);
    assert!(!forged.follows(Some(&rows[4])));
}

async fn concurrent_reservations_never_overdraw(w: &World) {
    let org = rich_org(&w.store).await;
    let answers = together(&w.store, 30, move |i| {
        move |tx: &mut Tx| {
            tx.ledger(Entry::new(org, EntryKind::Reserve, Credits::whole(7), format!("{i}")));
            Ok(())
        }
    })
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 14);
    assert_eq!(balance(&w.store, org).await, (Credits::whole(2), Credits::whole(98)));
}

// Idempotency

fn key(hash: u8) -> Key {
    Key { org: OrgId(1), route: "POST /runs".to_owned(), key: "k".to_owned(), hash: [hash; 32] }
}

async fn a_key_has_one_effect(w: &World) {
    let org = rich_org(&w.store).await;
    let answers = together(&w.store, 12, move |i| {
        move |tx: &mut Tx| match idempotency::lookup(tx, &key(1))? {
            Looked::Replay { status, body } => Ok((status, body)),
            Looked::Fresh => {
                tx.event(happened(org, 1, "effect"));
                let answer = (201, format!("made by {i}").into_bytes());
                idempotency::record(tx, &key(1), answer.0, &answer.1)?;
                Ok(answer)
            }
        }
    })
    .await;
    let answers: BTreeSet<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.len(), 1, "everybody gets the same answer");
    assert_eq!(read(&w.store, move |tx| event::last(tx, org, Some(RunId(1)))).await, 1);
}

async fn a_key_is_bound_to_its_request(w: &World) {
    let first = |hash| {
        write(&w.store, move |tx| {
            let looked = idempotency::lookup(tx, &key(hash))?;
            if looked == Looked::Fresh {
                idempotency::record(tx, &key(hash), 200, b"{}")?;
            }
            Ok(looked)
        })
    };
    assert_eq!(first(1).await, Ok(Looked::Fresh));
    assert_eq!(first(1).await, Ok(Looked::Replay { status: 200, body: b"{}".to_vec() }));
    assert_eq!(first(2).await, Err(Refused::KeyReused.into()));
    let expired = write(&w.store, |tx| {
        let before = tx.at() + 1;
        idempotency::expire(tx, before, 10)
    })
    .await;
    assert_eq!(expired, Ok(1));
    assert_eq!(first(2).await, Ok(Looked::Fresh));
}

async fn a_refusal_leaves_no_key(w: &World) {
    let refused = write(&w.store, |tx| {
        idempotency::lookup(tx, &key(1))?;
        Err::<(), _>(Refused::Unaffordable { needed: TOPUP, available: Credits::ZERO }.into())
    });
    refused.await.unwrap_err();
    assert_eq!(write(&w.store, |tx| idempotency::lookup(tx, &key(9))).await, Ok(Looked::Fresh));
}

// Logs

const JOB: JobId = JobId(5);

fn chunk(epoch: i64, offset: i64, text: &str) -> Chunk {
    Chunk {
        job: JOB,
        epoch,
        offset,
        frames: vec![Frame { stream: LogStream::Stdout, at: Timestamp(3), data: text.as_bytes().to_vec() }],
    }
}

/// Everything from `from` on; where it ends, and whether for ever.
async fn text(store: &Store, from: i64) -> (String, i64, bool) {
    let (mut text, mut from) = (Vec::new(), from);
    loop {
        let page = store.logs().read(JOB, from, 1 << 20).await.unwrap();
        for placed in &page.frames {
            assert!(placed.offset >= from && placed.next >= placed.offset);
            text.extend_from_slice(&placed.frame.data);
        }
        if page.done || page.next_offset == from {
            return (String::from_utf8(text).unwrap(), page.next_offset, page.done);
        }
        from = page.next_offset;
    }
}

async fn a_log_has_no_gaps_and_no_repeats(w: &World) {
    let logs = w.store.logs();
    let mut hints = w.store.hints();
    let logged = |next_offset| Ok(Logged { next_offset, total: next_offset });
    assert_eq!(logs.append(chunk(1, 0, "hello ")).await, logged(6));
    assert_eq!(logs.append(chunk(1, 0, "hello ")).await, logged(6), "sent twice");
    assert_eq!(logs.append(chunk(1, 3, "lo world")).await, logged(11), "overlapping");
    assert_eq!(logs.append(chunk(1, 12, "!")).await, Err(Refused::LogGap { expected: 11, given: 12 }.into()));
    assert_eq!(logs.append(chunk(1, 11, "!")).await, logged(12));
    assert_eq!(text(&w.store, 0).await.0, "hello world!");
    assert_eq!(text(&w.store, 8).await.0, "rld!");
    assert_eq!(logs.reached(JOB, 1).await, logged(12));
    assert!(!text(&w.store, 0).await.2);
    while hints.recv().await.unwrap() != Hint::Logs(JOB) {}
    assert_eq!(logs.seal(JOB, 0).await, Ok(12));
    assert!(text(&w.store, 0).await.2);
    assert_eq!(logs.append(chunk(1, 12, "late")).await, Ok(Logged { next_offset: 16, total: 12 }), "taken and dropped");
    assert_eq!(text(&w.store, 0).await.0, "hello world!");
}

async fn a_new_epoch_of_a_job_goes_on_where_the_log_ended(w: &World) {
    let logs = w.store.logs();
    logs.append(chunk(1, 0, "first;")).await.unwrap();
    assert_eq!(logs.append(chunk(2, 3, "?")).await, Err(Refused::LogGap { expected: 0, given: 3 }.into()));
    assert_eq!(logs.append(chunk(2, 0, "second")).await, Ok(Logged { next_offset: 6, total: 12 }));
    let old = Refused::OldEpoch { job: JOB.to_string(), given: 1, current: 2 };
    assert_eq!(logs.append(chunk(1, 6, "zombie")).await, Err(old.into()));
    assert_eq!(text(&w.store, 0).await.0, "first;second");
    assert_eq!(logs.reached(JOB, 3).await, Ok(Logged { next_offset: 0, total: 12 }));
}

async fn a_log_reads_the_same_after_it_was_gathered(w: &World) {
    const GATHERED_LONG_AGO: Sql = Sql::new("UPDATE log_heads SET gathered_at = gathered_at - $1");
    let logs = w.store.logs();
    let mut offset = 0;
    for i in 0..300 {
        let line = format!("line {i} of many, with enough words to be worth something\n");
        offset = logs.append(chunk(1, offset, &line)).await.unwrap().next_offset;
    }
    logs.seal(JOB, 0).await.unwrap();
    let before = text(&w.store, 0).await;
    assert_eq!(before.0.len() as i64, offset);
    logs.gather(OrgId(1), JOB).await.unwrap();
    logs.gather(OrgId(1), JOB).await.unwrap();
    assert_eq!(text(&w.store, 0).await, before, "from rows, although the file is there");
    assert_eq!(logs.sweep().await, Ok(false), "not within the hour");
    if w.on == On::Postgres {
        write(&w.store, |tx| tx.exec(&GATHERED_LONG_AGO, &args![2 * HOUR])).await.unwrap();
    } else {
        w.clock.advance(2 * HOUR);
    }
    assert_eq!(logs.sweep().await, Ok(true));
    assert_eq!(text(&w.store, 0).await, before, "some rows are gone");
    while logs.sweep().await.unwrap() {}
    assert_eq!(text(&w.store, 0).await, before, "from the file");
    assert_eq!(text(&w.store, 100).await.0, before.0[100..]);
    logs.forget(OrgId(1), JOB).await.unwrap();
    assert_eq!(text(&w.store, 0).await.0, "");
}

async fn a_log_over_its_quota_is_marked(w: &World) {
    let logs = w.store.logs();
    let (quota, half) = (w.options.log_quota_bytes, "x".repeat(60_000));
    logs.append(chunk(1, 0, &half)).await.unwrap();
    assert_eq!(logs.append(chunk(1, 60_000, &half)).await.unwrap().next_offset, 120_000, "the work goes on");
    assert_eq!(logs.append(chunk(1, 120_000, &half)).await.unwrap().next_offset, 180_000);
    logs.seal(JOB, 0).await.unwrap();
    let (text, end, done) = text(&w.store, 0).await;
    let (kept, mark) = text.split_at(quota as usize);
    assert!(kept.bytes().all(|byte| byte == b'x') && mark.contains("not kept"), "{mark}");
    assert!(done && end == 180_000);
}

async fn bytes_that_never_came_are_marked(w: &World) {
    w.store.logs().append(chunk(1, 0, "begun")).await.unwrap();
    w.store.logs().seal(JOB, 17).await.unwrap();
    let (text, end, done) = text(&w.store, 0).await;
    assert!(text.starts_with("begun") && text.contains("last 17 bytes") && done && end == 5, "{text}");
}

// Tokens, secrets, blobs

async fn tokens_are_known_by_their_hash(w: &World) {
    let org = rich_org(&w.store).await;
    let (good, short) = (NewToken::generate(), NewToken::generate());
    let made = {
        let (good, short) = (good.clone(), short.clone());
        write(&w.store, move |tx| {
            let soon = tx.at();
            token::create(tx, org, "short", Scope::Admin, Some(soon), &short)?;
            token::create(tx, org, "laptop", Scope::Write, None, &good)
        })
        .await
        .unwrap()
    };
    let check = |text: String| {
        let store = w.store.clone();
        async move { store.read("check", move |tx| token::check(tx, &text)).await }
    };
    let found = check(good.reveal().to_owned()).await.unwrap();
    assert_eq!((found.id, found.org, found.name.as_str(), found.scope), (made, org, "laptop", Scope::Write));
    assert!(found.must(Scope::Read, "look").is_ok() && found.must(Scope::Admin, "rule").is_err());
    for text in ["", "rmd_", "rmd_x", "Bearer", short.reveal()] {
        assert!(matches!(check(text.to_owned()).await, Err(Failure::Refused(Refused::Unauthorized { .. }))), "{text}");
    }
    let elsewhere = write(&w.store, move |tx| token::revoke(tx, OrgId(999), made)).await;
    assert!(matches!(elsewhere, Err(Failure::Refused(Refused::NotFound { .. }))), "another org's token does not exist");
    write(&w.store, move |tx| token::revoke(tx, org, made)).await.unwrap();
    assert!(check(good.reveal().to_owned()).await.unwrap_err().to_string().contains("revoked"));
    assert_eq!(read(&w.store, move |tx| token::page(tx, org, model::TokenId(0), 10)).await.len(), 2);
}

async fn secrets_are_kept_sealed(w: &World) {
    let ours = Installation::new("abcd1234", [3; 32]);
    for value in ["first", "second"] {
        let sealed = secret::seal(&ours, OrgId(1), "TOKEN", value);
        write(&w.store, move |tx| secret::put(tx, &sealed)).await.unwrap();
        let ours = ours.clone();
        assert_eq!(read(&w.store, move |tx| secret::open(tx, &ours, OrgId(1), "TOKEN")).await, value);
    }
    let names = read(&w.store, |tx| secret::page(tx, OrgId(1), "", 10)).await;
    assert_eq!((names[0].name.as_str(), names[0].version), ("TOKEN", 2));
    write(&w.store, |tx| secret::delete(tx, OrgId(1), "TOKEN")).await.unwrap();
    assert!(write(&w.store, |tx| secret::delete(tx, OrgId(1), "TOKEN")).await.is_err());
}

async fn blobs_are_what_was_sent(w: &World) {
    let blobs = w.store.blobs();
    let pieces = |pieces: &[&'static [u8]]| {
        futures_util::stream::iter(pieces.iter().map(|piece| Ok::<_, String>(*piece)).collect::<Vec<_>>())
    };
    let upload = blobs.receive(pieces(&[b"hello ", b"world"]), 100).await.unwrap();
    let stored = upload.keep_content_async(OrgId(1), None).await.unwrap();
    let name = BlobName::Content { org: OrgId(1), hash: stored.hash };
    assert_eq!((stored.size, stored.hash), (11, BlobHash(*blake3::hash(b"hello world").as_bytes())));
    assert_eq!(stored.hash.to_string().parse::<BlobHash>(), Ok(stored.hash));
    assert_eq!(blobs.open(&name).unwrap().read_all().unwrap(), b"hello world");
    let other = BlobName::Content { org: OrgId(2), hash: stored.hash };
    assert!(blobs.has(&name).unwrap() && !blobs.has(&other).unwrap(), "each org has its own");
    assert!(matches!(blobs.open(&other), Err(Failure::Refused(Refused::NotFound { .. }))));

    let again = blobs.receive(pieces(&[b"hello world"]), 11).await.unwrap();
    assert_eq!(again.keep_content(OrgId(1), Some(stored.hash)).unwrap(), stored, "kept twice is kept once");
    let wrong = blobs.receive(pieces(&[b"other"]), 100).await.unwrap().keep_content(OrgId(1), Some(stored.hash));
    assert!(matches!(wrong, Err(Failure::Refused(Refused::Invalid { .. }))));
    let long = blobs.receive(pieces(&[b"hello ", b"world"]), 10).await.err().unwrap();
    assert!(matches!(long, Failure::Refused(Refused::TooLarge { .. })));

    let artifact = BlobName::Artifact { org: OrgId(1), run: RunId(2), attempt: 1, artifact: ArtifactId(3) };
    blobs.receive(pieces(&[b"a", b"b"]), 10).await.unwrap().keep_async(artifact.clone()).await.unwrap();
    let streamed: Vec<Vec<u8>> =
        futures_util::TryStreamExt::try_collect(blobs.open(&artifact).unwrap().into_stream()).await.unwrap();
    assert_eq!(streamed.concat(), b"ab");
    blobs.delete(&artifact).unwrap();
    blobs.delete(&artifact).unwrap();
    assert!(!blobs.has(&artifact).unwrap());
    let drafts = std::fs::read_dir(w.options.blobs.as_ref().unwrap().join("drafts")).unwrap();
    assert_eq!(drafts.count(), 0, "nothing half-done stays");
}

async fn reads_see_one_moment(w: &World) {
    let org = rich_org(&w.store).await;
    let store = w.store.clone();
    let on = w.on;
    let (asked, ask) = mpsc::channel::<()>();
    let (done, wait) = mpsc::channel::<()>();
    let (asked, wait) = (std::sync::Mutex::new(asked), std::sync::Mutex::new(wait));
    let reading = tokio::spawn(async move {
        store
            .read("one moment", move |tx| {
                let before = org::find(tx, org)?.available;
                if on != On::Memory {
                    asked.lock().unwrap().send(()).unwrap();
                    wait.lock().unwrap().recv().unwrap();
                }
                Ok((before, org::find(tx, org)?.available))
            })
            .await
    });
    if on != On::Memory {
        tokio::task::spawn_blocking(move || ask.recv().unwrap()).await.unwrap();
        write(&w.store, move |tx| {
            tx.ledger(Entry::new(org, EntryKind::Topup, TOPUP, "more"));
            Ok(())
        })
        .await
        .unwrap();
        done.send(()).unwrap();
    }
    assert_eq!(reading.await.unwrap().unwrap(), (TOPUP, TOPUP));
    let gone = write(&w.store, |_| Err::<(), _>(model::Trouble::new(TroubleKind::Network, "x").into())).await;
    assert!(matches!(gone, Err(Failure::Trouble(trouble)) if trouble.effect == Effect::None));
}
