//! What only PostgreSQL must survive: deadlocks, connections that die (idle, in a transaction, in a commit), slow first uses of a
//! key, and other processes.

use crate::support::postgres::Postgres;
use crate::support::{On, World, block_on};
use futures_util::FutureExt;
use model::{Effect, Failure, OrgId, Refused, RunId, TroubleKind};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use store::idempotency::{self, Key};
use store::{Database, Hint, Lane, Options, Sql, Store, Tx, WorkClass, WorkKind, args, org, work, worker};

#[test]
fn on_postgres() {
    let postgres = Postgres::start();
    macro_rules! cases {
        ($($case:ident)*) => {$(
            println!("{}", stringify!($case).replace('_', " "));
            block_on($case(&World::new(On::Postgres, Some(&postgres))));
        )*};
    }
    cases! {
        a_deadlock_is_tried_again
        a_lost_connection_is_replaced
        a_commit_that_lost_its_connection_is_asked_about
        the_first_use_of_a_key_is_not_waited_for_forever
        nothing_is_taken_over_in_the_middle_of_a_transaction
        sessions_have_limits
        a_row_that_stays_locked_is_waited_for_three_seconds_only
        the_high_lane_has_connections_of_its_own
        other_processes_hear_what_was_committed
        nobody_waits_for_ever_for_a_hint_that_was_never_sent
        two_processes_never_give_the_same_id
        what_comes_after_anothers_has_a_larger_id
        servers_that_start_together_migrate_once
        a_database_of_an_earlier_build_is_refused
        a_newer_database_is_refused_and_left_alone
        a_migration_of_another_is_waited_for_however_long_it_takes
        a_server_that_is_away_is_trouble_without_effect
    }
    assert!(postgres.deadlocks() > 0, "one was provoked above");
}

const LOCK_ORG: Sql = Sql::new("UPDATE orgs SET ledger_seq = ledger_seq + 1 WHERE name = $1");
const END_OTHERS: Sql = Sql::new(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
);
const MY_PID: Sql = Sql::new("SELECT pg_backend_pid()");
const END_ONE: Sql = Sql::new("SELECT pg_terminate_backend($1::bigint::int)");

async fn make(store: &Store, name: &'static str) {
    store.write(Lane::Normal, "make", move |tx| org::create(tx, name)).await.unwrap();
}

async fn a_deadlock_is_tried_again(w: &World) {
    make(&w.store, "a").await;
    make(&w.store, "b").await;
    let (both, runs) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let crossing = |first: &'static str, second: &'static str| {
        let (store, both, runs) = (w.store.clone(), both.clone(), runs.clone());
        tokio::spawn(async move {
            let cross = move |tx: &mut Tx| {
                tx.exec(&LOCK_ORG, &args![first])?;
                if runs.fetch_add(1, Ordering::SeqCst) < 2 {
                    both.wait();
                }
                tx.exec(&LOCK_ORG, &args![second])
            };
            store.write(Lane::Normal, "cross", cross).await
        })
    };
    let (one, two) = (crossing("a", "b"), crossing("b", "a"));
    assert_eq!((one.await.unwrap(), two.await.unwrap()), (Ok(1), Ok(1)));
    assert!(runs.load(Ordering::SeqCst) > 2, "one of them ran again");
}

async fn a_lost_connection_is_replaced(w: &World) {
    for round in 0..3 {
        w.store.write(Lane::Normal, "end", |tx| tx.rows(&END_OTHERS, &args![])).await.unwrap();
        let answers: Vec<_> = (0..20)
            .map(|i| {
                let store = w.store.clone();
                tokio::spawn(async move {
                    store.write(Lane::Normal, "after", move |tx| org::create(tx, &format!("{round}.{i}"))).await
                })
            })
            .collect();
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
    }
}

async fn a_commit_that_lost_its_connection_is_asked_about(w: &World) {
    // A second store ends the first one's session when its closure has done everything but commit.
    let other = Store::open(&w.options).unwrap();
    let (pids, to_end) = mpsc::channel::<i64>();
    let (ended, wait) = mpsc::channel::<()>();
    let killer = std::thread::spawn(move || {
        for pid in to_end {
            block_on(other.write(Lane::Normal, "end", move |tx| tx.rows(&END_ONE, &args![pid]))).unwrap();
            ended.send(()).unwrap();
        }
    });
    let runs = Arc::new(AtomicUsize::new(0));
    let (counted, pids, wait) = (runs.clone(), Mutex::new(Some(pids)), Mutex::new(wait));
    let answer = w.store.write(Lane::Normal, "unlucky", move |tx| {
        let made = org::create(tx, "unlucky")?;
        if counted.fetch_add(1, Ordering::SeqCst) == 0 {
            let pid = tx.row(&MY_PID, &args![])?.unwrap().int(0)?;
            pids.lock().unwrap().take().unwrap().send(pid).unwrap();
            wait.lock().unwrap().recv().unwrap();
        }
        Ok(made)
    });
    let made = answer.await.unwrap();
    killer.join().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 2, "the server said that the first did not commit");
    let found = w.store.read("find", |tx| org::by_name(tx, "unlucky")).await.unwrap();
    assert_eq!(found.unwrap().id, made);
}

async fn the_first_use_of_a_key_is_not_waited_for_forever(w: &World) {
    let key = || Key {
        org: OrgId(1),
        route: "POST /runs".to_owned(),
        key: "k".to_owned(),
        hash: [1; 32],
        request: String::new(),
    };
    let (holds, held) = tokio::sync::oneshot::channel();
    let (release, wait) = mpsc::channel::<()>();
    let (holds, wait) = (Mutex::new(Some(holds)), Mutex::new(wait));
    let store = w.store.clone();
    let first = tokio::spawn(async move {
        let slow = move |tx: &mut Tx| {
            idempotency::lookup(tx, &key())?;
            holds.lock().unwrap().take().unwrap().send(()).unwrap();
            let _ = wait.lock().unwrap().recv();
            idempotency::record(tx, &key(), 200, b"")
        };
        store.write(Lane::Normal, "slow", slow).await
    });
    held.await.unwrap();
    let second = w.store.write(Lane::Normal, "quick", move |tx| idempotency::lookup(tx, &key())).await;
    assert!(matches!(second, Err(Failure::Refused(Refused::KeyBusy { .. }))), "{second:?}");
    drop(release);
    first.await.unwrap().unwrap();
}

async fn nothing_is_taken_over_in_the_middle_of_a_transaction(w: &World) {
    const SILENCE: Sql = Sql::new("UPDATE workers SET beat_at = 1 WHERE name = 'a'");
    let claimed = w.store.write(Lane::Normal, "claim", |tx| {
        tx.wake(WorkKind::Run, 1, model::Timestamp(0));
        worker::start(tx, "a")
    });
    let a = claimed.await.unwrap();
    let [item] =
        w.store.write(Lane::Normal, "claim", move |tx| work::claim(tx, &a, WorkClass::Control, 1)).await.unwrap()[..]
    else {
        panic!()
    };
    let (holds, held) = tokio::sync::oneshot::channel();
    let (release, wait) = mpsc::channel::<()>();
    let (holds, wait) = (Mutex::new(Some(holds)), Mutex::new(wait));
    let store = w.store.clone();
    let working = tokio::spawn(async move {
        let work = move |tx: &mut Tx| {
            work::hold(tx, &item)?;
            holds.lock().unwrap().take().unwrap().send(()).unwrap();
            let _ = wait.lock().unwrap().recv();
            work::finish(tx, &item, None);
            Ok(())
        };
        store.write(Lane::Normal, "work", work).await
    });
    held.await.unwrap();
    let b = w.store.write(Lane::Normal, "start", |tx| {
        tx.exec(&SILENCE, &args![])?;
        worker::start(tx, "b")
    });
    let b = b.await.unwrap();
    let taken =
        w.store.write(Lane::Normal, "claim", move |tx| work::claim(tx, &b, WorkClass::Control, 10)).await.unwrap();
    assert_eq!(taken, [], "its holder is at work");
    // A wake does pass, and is not lost.
    w.store
        .write(Lane::Normal, "wake", |tx| {
            tx.wake(WorkKind::Run, 1, model::Timestamp(0));
            Ok(())
        })
        .await
        .unwrap();
    drop(release);
    working.await.unwrap().unwrap();
    assert!(w.store.read("due", |tx| work::next_due(tx, WorkClass::Control)).await.unwrap().is_some());
}

async fn sessions_have_limits(w: &World) {
    for (name, limit) in
        [("lock_timeout", "3s"), ("statement_timeout", "10s"), ("idle_in_transaction_session_timeout", "5s")]
    {
        const SHOW: Sql = Sql::new("SELECT current_setting($1)");
        let shown = w.store.read("show", move |tx| tx.row(&SHOW, &args![name])?.unwrap().text(0)).await.unwrap();
        assert_eq!(shown, limit, "{name}");
    }
}

/// Locks an org's row until it is dropped, in a session without limits of its own.
async fn locked(w: &World, name: &str) -> tokio_postgres::Client {
    let Database::Postgres(url) = &w.options.database else { panic!("not on PostgreSQL") };
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN").await.unwrap();
    client.execute(LOCK_ORG.text, &[&name]).await.unwrap();
    client
}

async fn a_row_that_stays_locked_is_waited_for_three_seconds_only(w: &World) {
    make(&w.store, "a").await;
    let lock = locked(w, "a").await;
    let waited = w.store.write(Lane::Normal, "wait", |tx| tx.exec(&LOCK_ORG, &args!["a"])).await.unwrap_err();
    let Failure::Trouble(trouble) = &waited else { panic!("{waited}") };
    assert_eq!((trouble.kind, trouble.effect, trouble.retry), (TroubleKind::Timeout, Effect::None, true), "{waited}");
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(w.store.write(Lane::Normal, "again", |tx| tx.exec(&LOCK_ORG, &args!["a"])).await, Ok(1));
}

/// With two connections, fifty writes of a run that another process has locked leave room for other runs.
#[test]
fn writes_of_one_run_wait_in_memory() {
    let postgres = Postgres::start();
    let w = World::with(On::Postgres, Some(&postgres), |options| options.connections = 2);
    block_on(async {
        make(&w.store, "hot").await;
        make(&w.store, "cold").await;
        let lock = locked(&w, "hot").await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let hot_write = |i: i64| {
            let order = order.clone();
            let write = move |tx: &mut Tx| {
                tx.exec(&LOCK_ORG, &args!["hot"])?;
                order.lock().unwrap().push(i);
                Ok(())
            };
            Box::pin(w.store.write(Lane::Normal.of(RunId(1)), "hot", write))
        };
        let mut hot: Vec<_> = (0..50).map(hot_write).collect();
        for write in &mut hot {
            assert!(write.as_mut().now_or_never().is_none(), "it waits");
        }
        let cold = w.store.write(Lane::Normal.of(RunId(2)), "cold", |tx| tx.exec(&LOCK_ORG, &args!["cold"]));
        assert_eq!(cold.await, Ok(1));
        let mut last = hot.pop().unwrap();
        assert!(last.as_mut().now_or_never().is_none(), "the other run did not wait for this one's fifty");
        lock.batch_execute("ROLLBACK").await.unwrap();
        for write in hot {
            // The first few may have waited for the row for longer than the database lets them.
            let _ = write.await;
        }
        assert_eq!(last.await, Ok(()));
        assert!(order.lock().unwrap().is_sorted(), "first come, first served: {order:?}");
    });
}

async fn the_high_lane_has_connections_of_its_own(w: &World) {
    let busy = w.options.connections;
    let (all_busy, release) = (Arc::new(Barrier::new(busy + 1)), Arc::new(Barrier::new(busy + 1)));
    let waiting: Vec<_> = (0..busy)
        .map(|_| {
            let (store, all_busy, release) = (w.store.clone(), all_busy.clone(), release.clone());
            tokio::spawn(async move {
                let hog = move |_: &mut Tx| {
                    all_busy.wait();
                    release.wait();
                    Ok(())
                };
                store.write(Lane::Low, "hog", hog).await
            })
        })
        .collect();
    tokio::task::spawn_blocking(move || all_busy.wait()).await.unwrap();
    w.store.write(Lane::High, "renew", |tx| org::create(tx, "renewed")).await.unwrap();
    tokio::task::spawn_blocking(move || release.wait()).await.unwrap();
    for answer in waiting {
        answer.await.unwrap().unwrap();
    }
}

async fn other_processes_hear_what_was_committed(w: &World) {
    let other = Store::open(&w.options).unwrap();
    let mut hints = other.hints();
    // Both have connected when each has heard the other: listening begins with a hint of its own.
    loop {
        w.store
            .write(Lane::Normal, "tell", |tx| {
                let at = tx.at();
                tx.hint(Hint::Run(model::RunId(7)));
                tx.wake(WorkKind::Run, 7, at);
                Ok(())
            })
            .await
            .unwrap();
        let heard = tokio::time::timeout(std::time::Duration::from_millis(200), async {
            while hints.recv().await.unwrap() != Hint::Run(model::RunId(7)) {}
        });
        if heard.await.is_ok() {
            break;
        }
    }
}

/// A process that dies between its commit and its hint sends no hint: other processes read again every 5 s all the same.
async fn nobody_waits_for_ever_for_a_hint_that_was_never_sent(w: &World) {
    let mut hints = w.store.hints();
    for _ in 0..2 {
        while hints.recv().await.unwrap() != Hint::Everything {}
    }
}

async fn two_processes_never_give_the_same_id(w: &World) {
    let other = Store::open(&w.options).unwrap();
    let mut ids = Vec::new();
    for _ in 0..5 {
        for store in [&w.store, &other] {
            let some = store.write(Lane::Normal, "ids", |tx| Ok((0..1050).map(|_| tx.next_id()).collect::<Vec<_>>()));
            ids.extend(some.await.unwrap());
        }
    }
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
}

async fn what_comes_after_anothers_has_a_larger_id(w: &World) {
    let other = Store::open(&w.options).unwrap();
    let mut last = 0;
    for _ in 0..3 {
        for store in [&w.store, &other] {
            let next = store.write(Lane::Normal, "ids", move |tx| Ok(tx.next_id_after(last))).await.unwrap();
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }
}

async fn servers_that_start_together_migrate_once(w: &World) {
    const EMPTY: Sql = Sql::new("DROP SCHEMA public CASCADE");
    const AGAIN: Sql = Sql::new("CREATE SCHEMA public");
    w.store
        .write(Lane::Normal, "empty", |tx| {
            tx.exec(&EMPTY, &args![])?;
            tx.exec(&AGAIN, &args![])
        })
        .await
        .unwrap();
    let opening: Vec<_> = (0..4)
        .map(|_| {
            let options = w.options.clone();
            tokio::task::spawn_blocking(move || Store::open(&options).map(drop))
        })
        .collect();
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
}

async fn a_database_of_an_earlier_build_is_refused(w: &World) {
    const EARLIER: Sql = Sql::new("UPDATE schema SET version = 6, min_binary = 6 WHERE part = 'main'");
    w.store.write(Lane::Normal, "earlier", |tx| tx.exec(&EARLIER, &args![])).await.unwrap();
    let options = w.options.clone();
    let refused = tokio::task::spawn_blocking(move || Store::open(&options).err().unwrap()).await.unwrap();
    let refused = refused.to_string();
    assert!(refused.contains("the PostgreSQL database was made by a build before"), "{refused}");
    assert!(refused.contains("move it away, or start with an empty home or database"), "{refused}");
}

async fn a_newer_database_is_refused_and_left_alone(w: &World) {
    const NEWER: Sql = Sql::new("UPDATE schema SET version = 9001, min_binary = 9000 WHERE part = 'main'");
    const STATE: Sql = Sql::new("SELECT version, min_binary FROM schema WHERE part = 'main'");
    w.store.write(Lane::Normal, "newer", |tx| tx.exec(&NEWER, &args![])).await.unwrap();
    let options = w.options.clone();
    let refused = tokio::task::spawn_blocking(move || Store::open(&options).err().unwrap()).await.unwrap();
    assert!(matches!(refused, Failure::Refused(Refused::Conflict { .. })), "{refused:?}");
    let refused = refused.to_string();
    assert!(refused.contains("the PostgreSQL database is of a newer version (schema 9001"), "{refused}");
    assert!(refused.contains("upgrade repl"), "{refused}");
    let state = w.store.read("state", |tx| Ok(tx.row(&STATE, &args![])?.map(|row| (row.int(0), row.int(1))))).await;
    let (version, min_binary) = state.unwrap().unwrap();
    assert_eq!((version.unwrap(), min_binary.unwrap()), (9001, 9000), "it was not written to");
}

async fn a_migration_of_another_is_waited_for_however_long_it_takes(w: &World) {
    const WAITS: &str = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    let migrating = locked(w, "nobody").await;
    migrating.batch_execute("SELECT pg_advisory_xact_lock(7265816)").await.unwrap();
    let options = w.options.clone();
    let opening = tokio::task::spawn_blocking(move || Store::open(&options).map(drop));
    while migrating.query(WAITS, &[]).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    // Longer than an ordinary session lets a statement wait for a lock.
    migrating.batch_execute("SELECT pg_sleep(3.5); ROLLBACK").await.unwrap();
    opening.await.unwrap().unwrap();
}

async fn a_server_that_is_away_is_trouble_without_effect(w: &World) {
    let mut options = Options::new(Database::Postgres("postgres://nobody@127.0.0.1:1/none".to_owned()));
    options.blobs = w.options.blobs.clone();
    let away = tokio::task::spawn_blocking(move || Store::open(&options).err().unwrap()).await.unwrap();
    assert!(away.to_string().contains("cannot reach PostgreSQL"), "{away}");
    let mut options = w.options.clone();
    options.database = Database::Postgres("mysql://".to_owned());
    assert!(matches!(Store::open(&options).err().unwrap(), Failure::Refused(Refused::Invalid { .. })));
}
