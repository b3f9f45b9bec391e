//! Tokens, secrets, blobs and slots.

use crate::support::World;
use crate::{read, rich_org, write};
use model::allocation::{Allocation, AllocationStatus};
use model::{AllocationId, ArtifactId, Failure, JobId, OrgId, Refused, RunId, Timestamp};
use store::token::{NewToken, Scope};
use store::{BlobHash, BlobName, Installation, allocation, content, secret, token};

pub async fn tokens_are_known_by_their_hash(w: &World) {
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

pub async fn secrets_are_kept_sealed(w: &World) {
    let ours = Installation::new("abcd1234", [3; 32]);
    for value in ["first", "second"] {
        let sealed = secret::seal(&ours, OrgId(1), "TOKEN", value);
        write(&w.store, move |tx| secret::put(tx, &sealed)).await.unwrap();
        let ours = ours.clone();
        assert_eq!(read(&w.store, move |tx| secret::open(tx, &ours, OrgId(1), "TOKEN")).await, value);
    }
    let names = read(&w.store, |tx| secret::page(tx, OrgId(1), "", 10)).await;
    assert_eq!((names[0].name.as_str(), names[0].version), ("TOKEN", 2));
    for name in ["a", "B", "_"] {
        let sealed = secret::seal(&ours, OrgId(1), name, "x");
        write(&w.store, move |tx| secret::put(tx, &sealed)).await.unwrap();
    }
    let names = read(&w.store, |tx| secret::page(tx, OrgId(1), "B", 10)).await;
    assert_eq!(
        names.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>(),
        ["TOKEN", "_", "a"],
        "the order of bytes"
    );
    write(&w.store, |tx| secret::delete(tx, OrgId(1), "TOKEN")).await.unwrap();
    assert!(write(&w.store, |tx| secret::delete(tx, OrgId(1), "TOKEN")).await.is_err());
}

pub async fn blobs_are_what_was_sent(w: &World) {
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

/// Compare-and-set: of two who saw the same free slot one takes it, and the other is told.
pub async fn a_slot_is_taken_by_the_one_who_saw_it_last(w: &World) {
    let free: Allocation = serde_json::from_value(serde_json::json!({
        "id": "alc_7", "org": "org_1", "manifest": null, "instance": "ins_5", "job": null, "status": "AVAILABLE", "debug_hold_until": null,
        "extensions": 0, "user": "me", "workdir": "work_1", "workdir_released": false, "created_at": 1, "updated_at": 1,
        "completed_at": null, "version": 1,
    }))
    .unwrap();
    let seen = free.clone();
    write(&w.store, move |tx| allocation::insert(tx, &free)).await.unwrap();
    let claim = |job: i64| {
        let claimed = Allocation { status: AllocationStatus::Claimed, job: Some(JobId(job)), ..seen.clone() };
        write(&w.store, move |tx| allocation::save(tx, &claimed))
    };
    claim(1).await.unwrap();
    assert!(matches!(claim(2).await, Err(Failure::Refused(Refused::Stale { .. }))));
    let kept = read(&w.store, |tx| allocation::find(tx, AllocationId(7))).await.unwrap();
    assert_eq!((kept.job, kept.version), (Some(JobId(1)), 2));
}

pub async fn contents_go_when_nobody_needs_them(w: &World) {
    let (org, hash) = (OrgId(1), "00ff");
    let named = || vec![hash.to_owned()];
    let later = Timestamp(i64::MAX / 2);
    let is_here = || read(&w.store, move |tx| content::is_here(tx, org, hash));
    let used = write(&w.store, move |tx| content::use_by(tx, org, RunId(7), &named())).await;
    assert!(matches!(used, Err(Failure::Refused(Refused::Invalid { .. }))), "{used:?}");
    write(&w.store, move |tx| content::announce(tx, org, hash)).await.unwrap();
    assert!(is_here().await);
    write(&w.store, move |tx| content::use_by(tx, org, RunId(7), &[named(), named()].concat())).await.unwrap();
    write(&w.store, |tx| content::used_until_now(tx, RunId(7))).await.unwrap();
    assert_eq!(write(&w.store, |tx| content::condemn(tx, Timestamp(1), 10)).await, Ok(0), "it was needed lately");
    assert_eq!(write(&w.store, move |tx| content::condemn(tx, later, 10)).await, Ok(1));
    assert!(!is_here().await, "nobody is told that it is here");
    let busy = write(&w.store, move |tx| content::announce(tx, org, hash)).await;
    assert!(matches!(busy, Err(Failure::Trouble(ref trouble)) if trouble.retry), "{busy:?}");
    let [going] = &read(&w.store, |tx| content::going(tx, 10)).await[..] else { panic!() };
    let gone = going.clone();
    write(&w.store, move |tx| content::gone(tx, &gone)).await.unwrap();
    assert_eq!(read(&w.store, |tx| content::going(tx, 10)).await, []);
    write(&w.store, move |tx| content::announce(tx, org, hash)).await.unwrap();
    assert!(is_here().await, "sent again");
    assert_eq!(write(&w.store, move |tx| content::forget(tx, later, 10)).await, Ok(0));
    write(&w.store, move |tx| content::condemn(tx, later, 10)).await.unwrap();
    let gone = going.clone();
    write(&w.store, move |tx| content::gone(tx, &gone)).await.unwrap();
    assert_eq!(write(&w.store, move |tx| content::forget(tx, later, 10)).await, Ok(1));
}
