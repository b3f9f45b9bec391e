//! Idempotency keys: one effect, one answer.

use crate::support::World;
use crate::{TOPUP, happened, read, rich_org, together, write};
use model::{Credits, OrgId, Refused, RunId};
use std::collections::BTreeSet;
use store::idempotency::{self, Key, Looked};
use store::{Tx, event};

fn key(hash: u8) -> Key {
    Key { org: OrgId(1), route: "POST /runs".to_owned(), key: "k".to_owned(), hash: [hash; 32], request: String::new() }
}

pub async fn a_key_has_one_effect(w: &World) {
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

pub async fn a_key_is_bound_to_its_request(w: &World) {
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

pub async fn a_refusal_leaves_no_key(w: &World) {
    let refused = write(&w.store, |tx| {
        idempotency::lookup(tx, &key(1))?;
        Err::<(), _>(Refused::Unaffordable { needed: TOPUP, available: Credits::ZERO }.into())
    });
    refused.await.unwrap_err();
    assert_eq!(write(&w.store, |tx| idempotency::lookup(tx, &key(9))).await, Ok(Looked::Fresh));
}
