//! Events and credits: no gaps, no overdraft, no second charge.

use crate::support::World;
use crate::{TOPUP, happened, read, rich_org, together, write};
use model::time::DAY;
use model::usage::{Usage, UsageBy};
use model::{Credits, Failure, OrgId, Refused, RunId, StepId, Timestamp};
use store::usage::{self, Spent};
use store::{Entry, EntryKind, NewEvent, Sql, Store, Tx, args, event, ledger, org};

pub async fn events_are_numbered_without_gaps(w: &World) {
    let org = rich_org(&w.store).await;
    let answers = together(&w.store, 60, move |i| {
        move |tx: &mut Tx| {
            tx.event(happened(org, 1 + (i % 2) as i64, "a"));
            tx.event(NewEvent { org, run: None, kind: "org", body: store::body!({}) });
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

pub async fn credits_move_only_as_far_as_they_reach(w: &World) {
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
        (Adjust, 5, "a", true, (60, 0)),
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

pub async fn a_movement_is_made_once(w: &World) {
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

pub async fn the_ledger_is_a_chain_nobody_changes(w: &World) {
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
    let (mut before, mut after) = (rows[4].clone(), rows[5].clone());
    (before.hash, after.prev_hash) = (vec![7; 32], vec![7; 32]);
    assert!(!after.follows(Some(&before)), "a row vouches for all before it");
}

pub async fn concurrent_reservations_never_overdraw(w: &World) {
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

pub async fn usage_is_summed_by_what_it_belongs_to(w: &World) {
    let org = rich_org(&w.store).await;
    let spent = |run: i64, subject: i64, agent: &str, model: &str, charged: i64| Spent {
        run: Some(RunId(run)),
        subject,
        agent: agent.to_owned(),
        model: model.to_owned(),
        usage: Usage { turns: 1, input_tokens: 10, charged: Credits(charged), ..Usage::default() },
        ..Spent::of(org)
    };
    let all = [spent(7, 1, "a", "m", 5), spent(7, 1, "a", "m", 6), spent(7, 2, "b", "n", 100), spent(8, 0, "b", "", 1)];
    let total: Usage = all.iter().map(|spent| spent.usage).sum();
    write(&w.store, move |tx| all.iter().try_for_each(|spent| usage::add(tx, spent))).await.unwrap();
    let whole = (Timestamp(0), Timestamp(i64::MAX));
    assert_eq!(read(&w.store, move |tx| usage::of_org(tx, org, whole.0, whole.1)).await, total);
    let past = read(&w.store, move |tx| usage::of_org(tx, org, Timestamp(0), Timestamp(1))).await;
    assert_eq!(past, Usage::default(), "a sum of nothing is nothing");
    let credits = |named: Vec<(String, Usage)>| -> Vec<(String, i64)> {
        named.into_iter().map(|(name, usage)| (name, usage.charged.micro())).collect()
    };
    let of = |names: &[(&str, i64)]| -> Vec<(String, i64)> {
        names.iter().map(|(name, charged)| ((*name).to_owned(), *charged)).collect()
    };
    for (by, expected) in [
        (UsageBy::Run, of(&[("7", 111), ("8", 1)])),
        (UsageBy::Agent, of(&[("b", 101), ("a", 11)])),
        (UsageBy::Model, of(&[("n", 100), ("m", 11), ("", 1)])),
        (UsageBy::Provider, of(&[("", 112)])),
    ] {
        let found = read(&w.store, move |tx| usage::of_org_by(tx, org, whole, by, 10)).await;
        assert_eq!(credits(found), expected, "{by}");
    }
    let days = read(&w.store, move |tx| usage::of_org_by(tx, org, whole, UsageBy::Day, 10)).await;
    assert_eq!((days.len(), days[0].1, days[0].0.parse::<i64>().unwrap() % DAY), (1, total, 0));
    let steps = read(&w.store, move |tx| usage::steps(tx, org, RunId(7), StepId(0), 1)).await;
    assert_eq!((steps.len(), steps[0].0, steps[0].2.turns), (1, StepId(1), 2), "both turns of the step are in one row");
    let next = read(&w.store, move |tx| usage::steps(tx, org, RunId(7), StepId(1), 10)).await;
    assert_eq!(next.iter().map(|step| step.0).collect::<Vec<_>>(), [StepId(2)]);
    let beside = read(&w.store, move |tx| usage::beside_steps(tx, org, RunId(8))).await;
    assert_eq!(beside.charged, Credits(1));
    let stranger = read(&w.store, move |tx| usage::of_run(tx, OrgId(999), RunId(7))).await;
    assert!(stranger.is_zero(), "another org sees nothing");
}
