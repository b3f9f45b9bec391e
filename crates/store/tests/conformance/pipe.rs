//! What passes between us and PostgreSQL: how often a transaction waits for it, and what is known when a commit's answer is lost.

use crate::support::postgres::Postgres;
use crate::support::proxy::{Cut, Proxy};
use crate::support::{On, World, block_on};
use crate::{happened, rich_org};
use model::{Credits, Effect, Failure, OrgId, Timestamp, TroubleKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::{Database, Entry, EntryKind, Lane, Sql, Tx, WorkClass, WorkKind, args, org, work, worker};

const TOUCH: Sql = Sql::new("UPDATE orgs SET name = name WHERE id = $1");

fn through(postgres: &Postgres) -> (Proxy, World) {
    let proxy = Proxy::before(postgres);
    let world = World::with(On::Postgres, Some(postgres), |options| {
        let Database::Postgres(url) = &options.database else { panic!() };
        options.database = Database::Postgres(proxy.url(url));
        options.connections = 1; // every transaction passes the same way
    });
    (proxy, world)
}

/// How often the write waits for the server, once its statements are prepared. It is given the number of its round.
async fn turns<F>(proxy: &Proxy, w: &World, write: F) -> usize
where
    F: Fn(&mut Tx, i64) -> Result<(), Failure> + Clone + Send + Sync + 'static,
{
    let mut before = 0;
    for round in 0..3 {
        let write = write.clone();
        before = proxy.turns();
        w.store.write(Lane::Normal, "counted", move |tx| write(tx, round)).await.unwrap();
    }
    proxy.turns() - before
}

#[test]
fn a_transaction_waits_as_seldom_as_it_can() {
    let postgres = Postgres::start();
    let (proxy, w) = through(&postgres);
    block_on(async {
        let org = rich_org(&w.store).await;
        let one = turns(&proxy, &w, move |tx, _| tx.exec(&TOUCH, &args![org]).map(drop)).await;
        assert_eq!(one, 2, "a statement with BEGIN and the clock; COMMIT");
        let posted = turns(&proxy, &w, move |tx, _| {
            tx.exec(&TOUCH, &args![org])?;
            (0..5).try_for_each(|_| tx.post(&TOUCH, args![org]))
        });
        assert_eq!(posted.await, 2, "posted statements leave with the commit");
        let everything = turns(&proxy, &w, move |tx, round| {
            tx.exec(&TOUCH, &args![org])?;
            tx.post(&TOUCH, args![org])?;
            tx.event(happened(org, 1, "one"));
            tx.event(happened(org, 2, "of another run"));
            tx.ledger(Entry::new(org, EntryKind::Topup, Credits::whole(1), format!("round {round}")));
            let at = tx.at();
            tx.wake(WorkKind::Run, 1, at);
            tx.wake(WorkKind::Job, 2, at);
            Ok(())
        });
        assert_eq!(everything.await, 3, "the first statement; the heads of streams and org; all rows with COMMIT");
    });
}

#[test]
fn a_finish_whose_fence_was_checked_leaves_with_the_commit() {
    let postgres = Postgres::start();
    let (proxy, w) = through(&postgres);
    block_on(async {
        let org = rich_org(&w.store).await;
        let started = w.store.write(Lane::Normal, "start", |tx| {
            tx.wake(WorkKind::Run, 1, Timestamp(0));
            worker::start(tx, "me")
        });
        let me = started.await.unwrap();
        let claimed = w.store.write(Lane::Normal, "claim", move |tx| work::claim(tx, &me, WorkClass::Control, 1));
        let [item] = claimed.await.unwrap()[..] else { panic!() };
        let held = turns(&proxy, &w, move |tx, _| {
            work::hold(tx, &item)?;
            work::finish(tx, &item, None);
            Ok(())
        });
        assert_eq!(held.await, 2, "the fence; its finish with COMMIT");
        let unchecked = turns(&proxy, &w, move |tx, _| {
            tx.exec(&TOUCH, &args![org])?;
            work::finish(tx, &item, None);
            Ok(())
        });
        assert_eq!(unchecked.await, 3, "nobody has checked the fence: its finish must be heard before COMMIT");
    });
}

/// Makes an org through a wire that is cut at the commit; how often the closure ran, and the answer.
async fn unlucky(proxy: &Proxy, w: &World, cut: Cut) -> (usize, Result<OrgId, Failure>) {
    org_named(w, "first").await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    proxy.cut(cut);
    let answer = w.store.write(Lane::Normal, "unlucky", move |tx| {
        counted.fetch_add(1, Ordering::SeqCst);
        let made = org::create(tx, "unlucky")?;
        tx.event(happened(made, 1, "made"));
        Ok(made)
    });
    let answer = answer.await;
    (runs.load(Ordering::SeqCst), answer)
}

async fn org_named(w: &World, name: &'static str) -> Result<OrgId, Failure> {
    w.store.write(Lane::Normal, "make", move |tx| org::create(tx, name)).await
}

#[test]
fn a_commit_whose_answer_is_lost_happened_once() {
    let postgres = Postgres::start();
    let (proxy, w) = through(&postgres);
    block_on(async {
        let (runs, made) = unlucky(&proxy, &w, Cut::After).await;
        assert_eq!(runs, 1, "the server said that it did commit");
        let found = w.store.read("find", |tx| org::by_name(tx, "unlucky")).await.unwrap();
        assert_eq!(found.unwrap().id, made.unwrap());
    });
}

#[test]
fn a_commit_that_never_arrived_is_made_again() {
    let postgres = Postgres::start();
    let (proxy, w) = through(&postgres);
    block_on(async {
        let (runs, made) = unlucky(&proxy, &w, Cut::Before).await;
        assert_eq!(runs, 2, "the server said that it did not commit");
        let found = w.store.read("find", |tx| org::by_name(tx, "unlucky")).await.unwrap();
        assert_eq!(found.unwrap().id, made.unwrap());
    });
}

/// Numbers that never reached its disk are given out again, so that a crashed server may speak of another's transaction.
#[test]
fn a_commit_that_a_crashed_server_speaks_of_perhaps_happened() {
    let postgres = Postgres::start();
    let (proxy, w) = through(&postgres);
    block_on(async {
        let (runs, made) = unlucky(&proxy, &w, Cut::AfterAndCrash).await;
        let Err(Failure::Trouble(trouble)) = made else { panic!("{made:?}") };
        assert_eq!((trouble.kind, trouble.effect), (TroubleKind::Database, Effect::Perhaps), "{trouble}");
        assert_eq!(runs, 1, "what perhaps happened is not done again");
        let found = w.store.read("find", |tx| org::by_name(tx, "unlucky")).await.unwrap();
        assert!(found.is_some(), "here it did, and whoever asks again finds it");
    });
}

#[test]
fn a_commit_nobody_can_be_asked_about_perhaps_happened() {
    let postgres = Postgres::start();
    let (proxy, w) = through(&postgres);
    block_on(async {
        let (runs, made) = unlucky(&proxy, &w, Cut::AfterForGood).await;
        let Err(Failure::Trouble(trouble)) = made else { panic!("{made:?}") };
        assert_eq!((trouble.kind, trouble.effect), (TroubleKind::Database, Effect::Perhaps), "{trouble}");
        assert_eq!(runs, 1, "what perhaps happened is not done again");
    });
}
