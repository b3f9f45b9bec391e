use model::{Credits, Refused, Timestamp};
use store::*;

#[test]
fn inline() {
    let store = Store::inline(&Options::new(Database::Memory)).unwrap();
    let mut hints = store.hints();
    let org = store
        .write_now("org", |tx| {
            let org = org::create(tx, "default")?;
            tx.ledger(Entry::new(org, EntryKind::Topup, Credits::whole(5), "first"));
            tx.event(NewEvent { org, run: None, kind: "org.created", body: serde_json::json!({}) });
            tx.wake(WorkKind::Run, 3, Timestamp(0));
            Ok(org)
        })
        .unwrap();
    assert_eq!(hints.try_recv().unwrap(), Hint::Work);
    let refused = store.write_now("spend", move |tx| {
        tx.ledger(Entry::new(org, EntryKind::Reserve, Credits::whole(6), "second"));
        Ok(())
    });
    assert_eq!(
        refused.unwrap_err().refused(),
        Some(&Refused::Unaffordable { needed: Credits::whole(6), available: Credits::whole(5) })
    );
    let items = store
        .write_now("claim", |tx| {
            let worker = worker::start(tx, "w")?;
            work::claim(tx, &worker, 10)
        })
        .unwrap();
    assert_eq!(items.len(), 1);
}
