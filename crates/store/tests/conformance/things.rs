//! Tokens, secrets, blobs and slots.

use crate::support::World;
use crate::{read, rich_org, write};
use model::agent::{Agent, AgentKind};
use model::allocation::{Allocation, AllocationStatus};
use model::orphan::{Listed, ListedStatus, ResourceType, Whitelisted};
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::run::Run;
use model::step::{Recorded, Step, ToolKind};
use model::task::Task;
use model::tree::Child;
use model::{
    AgentId, AllocationId, ArtifactId, Failure, JobId, MessageId, OrgId, PoolId, Refused, RunId, StepId, TaskId,
    Timestamp,
};
use serde_json::json;
use std::collections::BTreeSet;
use store::artifact::{Announced, EntryKind};
use store::message::{self, Message};
use store::step::JournalRow;
use store::token::{NewToken, Scope};
use store::{BlobHash, BlobName, Installation, allocation, artifact, content, orphan, secret, step, token};

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
    assert!(!is_here().await, "its bytes are on their way");
    write(&w.store, move |tx| content::kept(tx, org, hash)).await.unwrap();
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
    assert!(!is_here().await, "the old bytes are gone");
    write(&w.store, move |tx| content::kept(tx, org, hash)).await.unwrap();
    assert!(is_here().await, "sent again");
    assert_eq!(write(&w.store, move |tx| content::forget(tx, later, 10)).await, Ok(0));
    write(&w.store, move |tx| content::condemn(tx, later, 10)).await.unwrap();
    let gone = going.clone();
    write(&w.store, move |tx| content::gone(tx, &gone)).await.unwrap();
    assert_eq!(write(&w.store, move |tx| content::forget(tx, later, 10)).await, Ok(1));
}

/// A tree is here with all that it names, keeps it, and lets it go.
pub async fn a_tree_keeps_what_it_names(w: &World) {
    let (org, later) = (OrgId(1), Timestamp(i64::MAX / 2));
    let keep = |hash: &'static str| {
        write(&w.store, move |tx| content::announce(tx, org, hash).and_then(|()| content::kept(tx, org, hash)))
    };
    let file = |hash| Child { hash, is_tree: false };
    let tree = |hash| Child { hash, is_tree: true };
    let link = |name: &'static str, children: Vec<Child<'static>>| {
        write(&w.store, move |tx| {
            content::link(tx, org, name, &children)?;
            content::finish_tree(tx, org, name, &children)
        })
    };
    let condemn = || write(&w.store, move |tx| content::condemn(tx, later, 10));
    for hash in ["a", "b", "inner", "root", "other"] {
        keep(hash).await.unwrap();
    }
    let early = link("root", vec![file("a"), tree("inner")]).await.unwrap_err();
    assert!(early.to_string().contains("the folder inner"), "a document alone is no tree: {early}");
    link("inner", vec![file("b")]).await.unwrap();
    let gone = link("root", vec![file("gone"), tree("inner")]).await.unwrap_err();
    assert!(gone.to_string().contains("the file gone"), "{gone}");
    let asked: Vec<String> = ["inner", "root"].map(str::to_owned).to_vec();
    let missing = || {
        let asked = asked.clone();
        read(&w.store, move |tx| content::missing(tx, org, &asked, true))
    };
    assert_eq!(missing().await, ["root"]);
    link("root", vec![file("a"), tree("inner")]).await.unwrap();
    link("root", vec![file("a"), tree("inner")]).await.unwrap();
    link("other", vec![file("a")]).await.unwrap();
    assert_eq!(missing().await, [""; 0]);

    // The roots go first, and only then what they alone have named.
    assert_eq!(condemn().await, Ok(2));
    let going = read(&w.store, |tx| content::going(tx, 10)).await;
    let names = |going: &[content::Going]| going.iter().map(|one| one.hash.clone()).collect::<BTreeSet<_>>();
    assert_eq!(names(&going), BTreeSet::from(["other".to_owned(), "root".to_owned()]));
    let root = going.iter().find(|one| one.hash == "root").unwrap().clone();
    let let_go = |one: content::Going| {
        write(&w.store, move |tx| {
            while content::unlink(tx, &one, 1)? > 0 {}
            content::gone(tx, &one)
        })
    };
    let_go(root).await.unwrap();
    assert_eq!(condemn().await, Ok(1), "`a` has another tree");
    let going = read(&w.store, |tx| content::going(tx, 10)).await;
    assert_eq!(names(&going), BTreeSet::from(["other".to_owned(), "inner".to_owned()]));
    for one in going {
        let_go(one).await.unwrap();
    }
    assert_eq!(condemn().await, Ok(2));
    assert!(!read(&w.store, move |tx| content::is_here(tx, org, "a")).await);
}

pub async fn artifacts_reserve_their_bytes(w: &World) {
    let (org, run) = (OrgId(1), RunId(5));
    let announce = |path: &'static str, size: i64, what: EntryKind| {
        write(&w.store, move |tx| artifact::announce(tx, &Announced { org, run, attempt: 1, path, size, what: &what }))
    };
    let reserve = |more: i64| write(&w.store, move |tx| artifact::reserve(tx, run, more));
    assert_eq!((reserve(10).await, reserve(-4).await), (Ok(10), Ok(6)));
    let first = announce("out/a", 6, EntryKind::File { mode: 0o755 }).await.unwrap();
    let again = announce("out/a", 7, EntryKind::File { mode: 0o700 }).await.unwrap();
    assert_eq!(
        (again.id, again.size, &again.what),
        (first.id, 7, &EntryKind::File { mode: 0o700 }),
        "one name, one row"
    );
    announce("out/cut", 4, EntryKind::File { mode: 0o600 }).await.unwrap();
    assert_eq!(reserve(5).await, Ok(11));
    let link = announce("out/l", 0, EntryKind::Link { target: "a".into() }).await.unwrap();
    assert_eq!((link.state.as_str(), link.what.target()), ("uploading", Some("a")));
    let finalise = |id| write(&w.store, move |tx| artifact::finalise(tx, (run, id), 7, "00"));
    assert_eq!(finalise(first.id).await, Ok(true));
    assert_eq!(read(&w.store, move |tx| artifact::uploading(tx, run)).await, 2);
    write(&w.store, move |tx| artifact::give_up(tx, run)).await.unwrap();
    assert_eq!(finalise(link.id).await, Ok(false), "given up meanwhile");
    assert_eq!(reserve(0).await, Ok(7), "what did not get through takes no room");
    write(&w.store, move |tx| artifact::give_up(tx, run)).await.unwrap();
    assert_eq!(reserve(0).await, Ok(7));
    let states: Vec<String> =
        read(&w.store, move |tx| artifact::of_run(tx, run, 0, 10)).await.into_iter().map(|a| a.state).collect();
    assert_eq!(states, ["final", "failed", "failed"]);

    write(&w.store, move |tx| artifact::date(tx, run, Timestamp(100))).await.unwrap();
    for until in [500, 300] {
        write(&w.store, move |tx| artifact::lease(tx, first.id, Timestamp(until))).await.unwrap();
    }
    let expired = |at| read(&w.store, move |tx| artifact::expired(tx, Timestamp(at), 10));
    let ids = |found: Vec<artifact::Artifact>| found.into_iter().map(|a| a.id).collect::<Vec<_>>();
    assert_eq!(ids(expired(99).await), []);
    assert_eq!(ids(expired(499).await).len(), 2, "a download is under way");
    assert_eq!(ids(expired(500).await).len(), 3);
}

/// Servers take ids from blocks of their own, so a later step may have a smaller id.
pub async fn the_newest_record_is_the_last_one_of_the_last_attempt(w: &World) {
    let terms = json!({
        "kind": "task", "title": "true", "provider": "local", "region": "here", "stop_duration_ms": 1_000,
        "priority": "normal", "on_lost_control": "finish", "failure_mode": "fail-fast",
    });
    let run = Run::created(RunId(1), OrgId(1), "loop".into(), serde_json::from_value(terms).unwrap(), Timestamp(1));
    let plan = TaskPlan::new("main", vec![StepPlan::new("train", ToolKind::External)]);
    let agent = Agent::planned(AgentId(1), &run, AgentKind::Rank, 0, &AgentPlan::new("a", vec![plan.clone()]));
    let task = Task::planned(TaskId(1), &agent, 0, &plan);
    for (id, attempt, sequence) in [(900, 1, 1), (100, 1, 2), (50, 2, 0), (20, 2, 1), (70, 1, 3)] {
        let made = Step { attempt, ..Step::planned(StepId(id), &task, sequence, &plan.steps[0]) };
        let row = JournalRow { key: id.to_string(), state: Recorded::Done, step: made.id, content: Some("c".into()) };
        let name = format!("a/main/train/{id}");
        write(&w.store, move |tx| {
            step::insert(tx, &made)?;
            step::record(tx, RunId(1), &name, &row)
        })
        .await
        .unwrap();
    }
    let newest = read(&w.store, |tx| step::last_recorded(tx, RunId(1), "a/main/train/")).await;
    assert_eq!(newest, Some(StepId(20)));
    assert_eq!(read(&w.store, |tx| step::last_recorded(tx, RunId(1), "a/main/other/")).await, None);
    let below = |beginning: &'static str, content: &'static str| {
        read(&w.store, move |tx| step::begun_below(tx, RunId(1), content, beginning, "n/20"))
    };
    assert_eq!(below("a/main/train/", "c").await, Some(("a/main/train/50".to_owned(), StepId(50))));
    assert_eq!((below("a/main/other/", "c").await, below("a/main/train/", "d").await), (None, None));
}

pub async fn a_message_is_taken_by_one_turn(w: &World) {
    let org = rich_org(&w.store).await;
    let said = |id: i64, agent: &str, text: &str| Message {
        id: MessageId(id),
        org,
        run: RunId(7),
        agent: agent.to_owned(),
        at: Timestamp(1),
        text: text.to_owned(),
    };
    let all = [said(1, "a", "one"), said(2, "b", "two"), said(3, "a", "three")];
    write(&w.store, move |tx| all.iter().try_for_each(|said| message::insert(tx, said))).await.unwrap();
    write(&w.store, |tx| message::take(tx, MessageId(1), "a/t/talk#1", "t2")).await.unwrap();
    write(&w.store, |tx| message::take(tx, MessageId(1), "a/t/talk#1", "t3")).await.unwrap();
    let waiting = read(&w.store, |tx| message::waiting(tx, RunId(7), "a", 10)).await;
    assert_eq!(waiting, [(MessageId(3), "three".to_owned())]);
    let taken = read(&w.store, |tx| message::taken(tx, RunId(7), "a/t/talk#1")).await;
    assert_eq!(taken, [("t2".to_owned(), "one".to_owned())], "the first turn keeps it");
    assert_eq!(read(&w.store, |tx| message::count(tx, RunId(7))).await, 3);
    assert_eq!(read(&w.store, |tx| message::count(tx, RunId(8))).await, 0);
}

/// What a scan saw, what it did not see again, and what a user keeps.
pub async fn orphans_are_kept_until_they_are_not_seen_again(w: &World) {
    let listed = |handle: &str, name: &str| Listed {
        kind: ResourceType::Instance,
        name: name.to_owned(),
        handle: handle.to_owned(),
        nonce: None,
        status: ListedStatus::Running,
        instance_type: None,
        region: "here".to_owned(),
        created_at: None,
        ip: None,
        last_seen: None,
        price_micro: Some(7),
    };
    let pool = PoolId(5);
    let ours = listed("i-1", "repl-abcd1234-none-1");
    let seen = [ours.clone(), listed("i-2", "repl-other123-none-1"), listed("i-3", "repl-old")];
    let first = write(&w.store, move |tx| {
        let at = tx.at();
        seen.iter().try_for_each(|it| orphan::seen(tx, "fake", pool, at, it))?;
        orphan::seen(tx, "second", pool, at, &seen[0])?;
        Ok(at)
    })
    .await
    .unwrap();
    let count = |control: &'static str| read(&w.store, move |tx| orphan::count(tx, control, 10));
    assert_eq!((count("abcd1234").await, count("").await, count("nobody12").await), ((2, 14), (1, 7), (0, 0)));
    assert_eq!(read(&w.store, |tx| orphan::by_handle(tx, "i-1")).await.len(), 2);
    let entry = Whitelisted {
        provider: "fake".to_owned(),
        provider_id: "i-1".to_owned(),
        kind: ResourceType::Instance,
        reason: "why".to_owned(),
        acknowledged_by: "me".to_owned(),
        acknowledged_at: first,
        expires_at: Some(first + 1_000_000_000),
        notes: Some("more".to_owned()),
    };
    let kept = entry.clone();
    write(&w.store, move |tx| orphan::keep(tx, &kept)).await.unwrap();
    assert_eq!(count("abcd1234").await, (1, 7));
    let page = read(&w.store, |tx| orphan::page(tx, i64::MAX, 10)).await;
    let found = page.iter().find(|it| it.provider == "fake" && it.listed.handle == "i-1").unwrap().clone();
    assert_eq!((page.len(), found.whitelisted.as_ref(), &found.listed), (4, Some(&entry), &ours));
    assert_eq!(read(&w.store, |tx| orphan::kept_page(tx, ("", ""), 10)).await, std::slice::from_ref(&entry));
    assert_eq!(read(&w.store, |tx| orphan::kept(tx, "i-1")).await, std::slice::from_ref(&entry));
    write(&w.store, move |tx| orphan::end_asked(tx, found.id, OrgId(3), "me")).await.unwrap();
    write(&w.store, move |tx| orphan::end_failed(tx, found.id, "stuck")).await.unwrap();
    // A scan that began later sees one of them again, which changes neither its id nor what was asked.
    write(&w.store, move |tx| orphan::seen(tx, "fake", pool, first + 1, &ours)).await.unwrap();
    let again = read(&w.store, move |tx| orphan::find(tx, found.id)).await.unwrap();
    let ending = again.ending.unwrap();
    assert_eq!((ending.org, ending.by.as_str(), ending.error.as_deref()), (OrgId(3), "me", Some("stuck")));
    let gone = write(&w.store, move |tx| orphan::vanished(tx, pool, first + 1, 10)).await.unwrap();
    assert_eq!((gone, read(&w.store, |tx| orphan::page(tx, i64::MAX, 10)).await.len()), (3, 1));
    // When its time is up people are told of it anew.
    let over = Whitelisted { expires_at: Some(first), ..entry };
    write(&w.store, move |tx| {
        orphan::told(tx, found.id)?;
        orphan::keep(tx, &over)
    })
    .await
    .unwrap();
    assert_eq!(read(&w.store, |tx| orphan::untold(tx, "abcd1234", 10)).await.len(), 0);
    assert_eq!(write(&w.store, |tx| orphan::expire(tx, 10)).await.unwrap(), 1);
    assert_eq!(read(&w.store, |tx| orphan::untold(tx, "abcd1234", 10)).await.len(), 1);
    assert_eq!(read(&w.store, |tx| orphan::kept_page(tx, ("", ""), 10)).await, []);
    let scan = orphan::Scan { listed: 4, error: Some("no".to_owned()), ..orphan::Scan::default() };
    let saved = scan.clone();
    write(&w.store, move |tx| orphan::save_scan(tx, pool, &saved)).await.unwrap();
    assert_eq!(read(&w.store, move |tx| orphan::scan_of(tx, pool)).await, Some(scan));
}
