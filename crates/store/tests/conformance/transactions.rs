//! Transactions: what commits together, what is taken back, what a reader sees.

use crate::support::{On, World};
use crate::{TOPUP, happened, read, rich_org, together, write};
use model::names::{MAX_ID, MAX_SEEN_ID};
use model::{Effect, Failure, OrgId, Refused, RunId, Timestamp, Trouble, TroubleKind};
use std::collections::BTreeSet;
use std::sync::{Mutex, mpsc};
use store::{Entry, EntryKind, Hint, Rank, Sql, Topic, Tx, WorkKind, args, org};

pub async fn one_refusal_takes_back_its_own_rows_only(w: &World) {
    // The first closure holds the writer until the others wait behind it, so that on SQLite they are one group.
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
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

pub async fn a_swallowed_error_commits_nothing(w: &World) {
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

pub async fn ids_are_never_given_twice(w: &World) {
    let answers =
        together(&w.store, 40, |_| |tx: &mut Tx| Ok((0..100).map(|_| tx.next_id()).collect::<Vec<_>>())).await;
    let ids: Vec<i64> = answers.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 4000);
    assert!(ids.iter().all(|id| *id > 0 && model::slug(*id) != "none"));
}

pub async fn a_closure_that_needs_many_ids_gets_them(w: &World) {
    let ids = write(&w.store, |tx| Ok((0..20_000).map(|_| tx.next_id()).collect::<BTreeSet<_>>())).await.unwrap();
    assert_eq!(ids.len(), 20_000);
}

pub async fn an_id_that_was_seen_is_passed_and_one_too_great_is_refused(w: &World) {
    let some = || write(&w.store, |tx| Ok((0..2_000).map(|_| tx.next_id()).collect::<Vec<_>>()));
    for far in [MAX_SEEN_ID + 1, i64::MAX] {
        let refused = w.store.pass_ids(far).await.unwrap_err();
        assert!(matches!(refused, Failure::Refused(Refused::Invalid { .. })), "{refused}");
    }
    let ids = some().await.unwrap();
    assert!(ids.iter().all(|id| (1..100_000).contains(id)), "{:?}", ids.last());
    w.store.pass_ids(1_000_000).await.unwrap();
    w.store.pass_ids(5).await.unwrap();
    let ids = some().await.unwrap();
    assert!(ids.iter().all(|id| (1_000_001..2_000_000).contains(id)), "{:?}", ids.last());
    w.store.pass_ids(MAX_SEEN_ID).await.unwrap();
    let ids = some().await.unwrap();
    assert!(ids.iter().all(|id| (MAX_SEEN_ID + 1..MAX_ID).contains(id)), "{:?}", ids.last());
}

pub async fn hints_come_after_the_commit_and_once(w: &World) {
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
    write(&w.store, |tx| {
        tx.hint(Hint::Run(RunId(3)));
        Ok(())
    })
    .await
    .unwrap();
    let mut heard = Vec::new();
    while heard.last() != Some(&Hint::Run(RunId(3))) {
        heard.push(hints.recv().await.unwrap());
    }
    assert!(heard.contains(&Hint::Work(Timestamp(0))));
    // PostgreSQL's listener adds an `Everything` of its own when it connects, and the hint of the top-up may follow its answer.
    heard.retain(|hint| !matches!(hint, Hint::Work(_) | Hint::Everything | Hint::Org(_, Topic::Money)));
    assert_eq!(heard, [Hint::Run(RunId(2)), Hint::Org(org, Topic::Runs), Hint::Run(RunId(3))]);
}

pub async fn time_does_not_go_backwards_for_a_run(w: &World) {
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

pub async fn placeholders_mean_their_number(w: &World) {
    const ECHO: Sql =
        Sql::new("SELECT id, name, available + $2 FROM orgs WHERE name = $3 AND available + $2 > $1 AND $2 = $2");
    rich_org(&w.store).await;
    let row = read(&w.store, |tx| tx.row(&ECHO, &args![0, 7, "default"])).await.unwrap();
    assert_eq!(row.int(2).unwrap(), TOPUP.0 + 7);
}

pub async fn reads_see_one_moment(w: &World) {
    let org = rich_org(&w.store).await;
    let store = w.store.clone();
    let on = w.on;
    let (asked, ask) = mpsc::channel::<()>();
    let (done, wait) = mpsc::channel::<()>();
    let (asked, wait) = (Mutex::new(asked), Mutex::new(wait));
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
    let gone = write(&w.store, |_| Err::<(), _>(Trouble::new(TroubleKind::Network, "x").into())).await;
    assert!(matches!(gone, Err(Failure::Trouble(trouble)) if trouble.effect == Effect::None));
}

pub async fn an_inline_read_sees_what_is_committed_and_fails_alone(w: &World) {
    let org = rich_org(&w.store).await;
    let found = w.store.read_inline("read_inline", move |tx| org::find(tx, org)).await.unwrap();
    assert_eq!(found.id, org);
    let panicked =
        w.store.read_inline("read_inline", |_| -> Result<(), Failure> { panic!("a bug") }).await.unwrap_err();
    assert!(panicked.to_string().contains("a bug"), "{panicked}");
    let again = w.store.read_inline("read_inline", move |tx| org::find(tx, org)).await.unwrap();
    assert_eq!(again, found);
}

pub async fn an_inline_read_is_a_few_rows_and_bytes(w: &World) {
    let org = rich_org(&w.store).await;
    let times =
        |times: usize| w.store.read_inline("rows", move |tx| (0..times).try_for_each(|_| org::find(tx, org).map(drop)));
    times(16).await.unwrap();
    let refused = times(17).await.unwrap_err();
    assert!(refused.to_string().contains("too many for `read_inline`"), "{refused}");
    let named = |length: i64| {
        let name = "n".repeat(length as usize);
        write(&w.store, move |tx| org::create(tx, &name))
    };
    let (fits, large) = (named(60 * 1024).await.unwrap(), named(65 * 1024).await.unwrap());
    w.store.read_inline("bytes", move |tx| org::find(tx, fits)).await.unwrap();
    let refused = w.store.read_inline("bytes", move |tx| org::find(tx, large)).await.unwrap_err();
    assert!(refused.to_string().contains("too many for `read_inline`"), "{refused}");
    w.store.read("bytes", move |tx| org::find(tx, large)).await.unwrap();
}

/// Rows are locked in the order of their ranks, those of one rank in the order of their ids. Who locks against the order has written
/// nothing.
pub async fn locks_are_taken_in_one_order(w: &World) {
    const INSTANCE: Sql = Sql::new("SELECT id FROM instances WHERE id = $1").no_key_update().locks(Rank::Instance);
    const RUN: Sql = Sql::new("SELECT id FROM runs WHERE id = $1").no_key_update().locks(Rank::Run);
    const ORG: Sql = Sql::new("SELECT id FROM orgs WHERE id = $1").no_key_update().locks(Rank::Org);
    let table: [(&'static [(Sql, i64)], bool); 6] = [
        (&[(INSTANCE, 1), (INSTANCE, 2)], true),
        (&[(INSTANCE, 2), (INSTANCE, 1)], false),
        (&[(INSTANCE, 2), (INSTANCE, 2)], true),
        (&[(RUN, 9), (INSTANCE, 1), (ORG, 1)], true),
        (&[(ORG, 1), (RUN, 1)], false),
        (&[(RUN, 1), (ORG, 1), (INSTANCE, 1)], false),
    ];
    for (locks, allowed) in table {
        let name = format!("{locks:?}");
        let answer = write(&w.store, move |tx| {
            let made = org::create(tx, &name)?;
            for (lock, id) in locks {
                tx.row(lock, &args![*id])?;
            }
            Ok(made)
        });
        match answer.await {
            Ok(_) => assert!(allowed, "{locks:?}"),
            Err(failure) => {
                assert!(!allowed && failure.to_string().contains("is locked after"), "{locks:?}: {failure}");
            }
        }
    }
    let made = read(&w.store, |tx| org::page(tx, OrgId(0), 100)).await;
    assert_eq!(made.len(), table.iter().filter(|(_, allowed)| *allowed).count(), "the others wrote nothing");
}
