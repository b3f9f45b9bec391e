//! What a push sends, and which pushes are refused.

use crate::world::{Origin, Watched, check, folder, head, remote, whole};
use adapters::remote::bucket::Bucket as _;
use adapters::remote::{Access, Folder, Remote, RemoteError};
use calls::reach::closure;
use calls::refs::RefName;
use calls::uri::Blob;
use calls::{Fault, Reference};
use std::sync::Arc;

#[test]
fn ten_new_objects_are_one_segment_one_manifest_and_one_ref() {
    let (folder, mut origin) = (folder(), Origin::default());
    let base = origin.commit(0..1_000, &[]);
    let bucket = Arc::new(Watched::new(folder.path()));
    let remote = Remote::at(bucket.clone(), Access::Write).unwrap();
    assert_eq!(remote.push(&mut origin, &head("main"), base, false).unwrap().objects, 1_003);
    bucket.begin_again();
    let next = origin.commit(993..1_007, &[base]);
    let pushed = remote.push(&mut origin, &head("main"), next, false).unwrap();
    assert_eq!((pushed.objects, pushed.segments, pushed.previous), (10, 1, Some(base)));
    assert_eq!(bucket.writes(), [1, 1, 0, 1]);
    check(&remote, &head("main"), next, &mut origin);
    // Nothing new, nothing written.
    bucket.begin_again();
    assert_eq!(remote.push(&mut origin, &head("main"), next, false).unwrap().objects, 0);
    assert_eq!(bucket.writes(), [0, 0, 0, 0]);
}

#[test]
fn a_new_branch_shares_what_other_heads_have() {
    let (folder, mut origin) = (folder(), Origin::default());
    let base = origin.commit(0..500, &[]);
    let remote = remote(folder.path());
    remote.push(&mut origin, &head("main"), base, false).unwrap();
    let branch = origin.commit(0..2, &[base]);
    assert_eq!(remote.push(&mut origin, &head("team/x"), branch, false).unwrap().objects, 3);
    check(&remote, &head("team/x"), branch, &mut origin);
    let refs: Vec<_> = remote.refs().unwrap();
    assert_eq!(refs, [(head("main"), base), (head("team/x"), branch)]);
    // It does not need the other head.
    remote.delete(&head("main"), base).unwrap();
    check(&remote, &head("team/x"), branch, &mut origin);
    assert_eq!(remote.commit(&head("main")).unwrap(), None);
}

#[test]
fn only_a_fast_forward_is_pushed_unless_forced() {
    let (folder, mut origin) = (folder(), Origin::default());
    let remote = remote(folder.path());
    let [base, other] = [origin.commit(0..5, &[]), origin.commit(5..9, &[])];
    let next = origin.commit(0..6, &[base]);
    let main = head("main");
    remote.push(&mut origin, &main, next, false).unwrap();
    for behind in [base, other] {
        let error = remote.push(&mut origin, &main, behind, false).unwrap_err();
        assert_eq!(error, RemoteError::NotFastForward { name: main.clone(), remote: next, pushed: behind });
        assert!(error.to_string().contains("--force"), "{error}");
        assert_eq!(remote.commit(&main).unwrap(), Some(next));
    }
    remote.push(&mut origin, &main, other, true).unwrap();
    check(&remote, &main, other, &mut origin);
    assert!(matches!(remote.delete(&main, next), Err(RemoteError::Moved { .. })));
    remote.delete(&main, other).unwrap();
    assert!(matches!(remote.fetch(&main), Err(RemoteError::NoRef { .. })));
    // A ref that was deleted can be made again.
    remote.push(&mut origin, &main, base, false).unwrap();
    check(&remote, &main, base, &mut origin);
}

#[test]
fn many_pushes_leave_few_segments() {
    let (folder, mut origin) = (folder(), Origin::default());
    let remote = remote(folder.path());
    let mut last = origin.commit(0..200, &[]);
    remote.push(&mut origin, &head("main"), last, false).unwrap();
    let (mut merged, mut sent) = (0, 0);
    for number in 1..150 {
        last = origin.commit(number..number + 3, &[last]);
        let pushed = remote.push(&mut origin, &head("main"), last, false).unwrap();
        assert_eq!(pushed.segments, 1);
        merged += pushed.merged;
        sent += pushed.bytes;
        let segments = std::fs::read_dir(folder.path().join("segments")).unwrap().count();
        assert!(segments <= number as usize + 1);
    }
    assert!(merged > 90, "{merged} segments were merged");
    assert!(sent < 1_000_000, "what is large is not copied again and again: {sent} bytes");
    check(&remote, &head("main"), last, &mut origin);
}

#[test]
fn a_pull_reads_only_what_is_missing_here() {
    let (folder, mut origin) = (folder(), Origin::default());
    let base = origin.commit(0..300, &[]);
    let next = origin.commit(290..302, &[base]);
    let remote = remote(folder.path());
    remote.push(&mut origin, &head("main"), next, false).unwrap();
    let here = closure(&mut origin, [Reference::from(base)], &|_| false, 10_000).unwrap();
    let mut opened = remote.fetch(&head("main")).unwrap();
    let new = closure(&mut opened, [Reference::from(next)], &|it| here.objects.contains(&it), 10_000).unwrap();
    assert_eq!(new.objects.len(), 5, "two nodes, a dag, a tree and a commit");
}

#[test]
fn blobs_are_sent_once_and_checked() {
    let (folder, mut origin) = (folder(), Origin::default());
    let bucket = Arc::new(Watched::new(folder.path()));
    let remote = Remote::at(bucket.clone(), Access::Write).unwrap();
    let nodes = [origin.blob(&vec![7; 3 << 20]), origin.blob(b"")];
    let first = origin.commit_of(&nodes, &[]);
    assert_eq!(remote.push(&mut origin, &head("main"), first, false).unwrap().blobs, 2);
    check(&remote, &head("main"), first, &mut origin);
    bucket.begin_again();
    let more = origin.blob(b"another");
    let second = origin.commit_of(&[nodes[0], more], &[first]);
    assert_eq!(remote.push(&mut origin, &head("main"), second, false).unwrap().blobs, 1);
    assert_eq!(bucket.writes(), [1, 1, 1, 1]);
    check(&remote, &head("main"), second, &mut origin);
    // What is not the blob does not become it.
    let third = origin.commit_of(&[more, nodes[1]], &[second]);
    let lost = origin.blob(b"lost");
    let fourth = origin.commit_of(&[lost], &[third]);
    origin.blobs.insert(Blob::of(b"lost"), b"Lost".to_vec());
    let error = remote.push(&mut origin, &head("main"), fourth, false).unwrap_err();
    assert!(error.to_string().contains("changed while it was sent"), "{error}");
    origin.blobs.remove(&Blob::of(b"lost"));
    let error = remote.push(&mut origin, &head("main"), fourth, false).unwrap_err();
    assert_eq!(error, RemoteError::Source(Fault::MissingBlob(Blob::of(b"lost"))));
    check(&remote, &head("main"), second, &mut origin);
}

#[test]
fn what_is_not_whole_here_is_not_pushed() {
    let (folder, mut origin) = (folder(), Origin::default());
    let remote = remote(folder.path());
    let commit = origin.commit(0..4, &[]);
    let node = *origin.memory.records.keys().find(|it| it.kind == calls::Kind::Node).unwrap();
    origin.memory.records.remove(&node);
    let error = remote.push(&mut origin, &head("main"), commit, false).unwrap_err();
    assert_eq!(error, RemoteError::Source(Fault::Missing(node)));
    assert_eq!(remote.refs().unwrap(), []);
}

#[test]
fn an_address_is_a_folder_of_this_machine() {
    let folder = folder();
    let at = format!("file://{}/a%20b", folder.path().display());
    assert_eq!(Remote::open(&at, Access::Read).err(), Some(RemoteError::NoRepository));
    Remote::open(&at, Access::Write).unwrap();
    assert!(folder.path().join("a b/meta/schema").exists());
    Remote::open(&at, Access::Read).unwrap();
    for bad in ["file://host/a", "file:///a/../b", "file:///a/%2E%2E/b", "file:a", "http://a/b", "/a", ""] {
        assert!(matches!(Remote::open(bad, Access::Write), Err(RemoteError::Uri { .. })), "{bad}");
    }
    std::fs::write(folder.path().join("a b/meta/schema"), calls::object::Meta { schema: 9 }.encode()).unwrap();
    assert_eq!(Remote::open(&at, Access::Read).err(), Some(RemoteError::Schema { found: 9, ours: 1 }));
}

#[test]
fn two_writers_of_one_ref_lose_nothing() {
    let folder = folder();
    let main: RefName = head("main");
    let mut origin = Origin::default();
    let base = origin.commit(0..50, &[]);
    remote(folder.path()).push(&mut origin, &main, base, false).unwrap();
    let writer = |number: i64| {
        let (mut origin, main, path) = (origin.clone(), main.clone(), folder.path().to_owned());
        std::thread::spawn(move || {
            let remote = remote(&path);
            for round in 0..15 {
                // Builds on what is there until it comes first.
                loop {
                    let mut opened = remote.fetch(&main).unwrap();
                    let have = |reference| origin.memory.records.contains_key(&reference);
                    let tip = opened.commit;
                    let new = closure(&mut opened, [tip.into()], &have, 100_000).unwrap();
                    for reference in new.objects {
                        let record = calls::Read::record(&mut opened, reference).unwrap().unwrap();
                        origin.memory.records.insert(reference, record);
                    }
                    let from = 1_000 * number + 2 * round;
                    let mine = origin.commit(from..from + 2, &[tip]);
                    match remote.push(&mut origin, &main, mine, false) {
                        Ok(_) => break,
                        Err(RemoteError::NotFastForward { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        })
    };
    let writers = [writer(1), writer(2)];
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let mut opened = remote(folder.path()).fetch(&main).unwrap();
    let all = whole(&mut opened);
    let commits = all.objects.iter().filter(|it| it.kind == calls::Kind::Commit).count();
    assert_eq!(commits, 31, "every commit of both is in the history");
}

#[test]
fn a_key_changes_only_from_the_bytes_that_its_writer_saw() {
    const ROUNDS: usize = 150;
    let folder = folder();
    let key = "refs/heads/counter";
    let writer = |_| {
        let bucket = Folder::new(folder.path());
        std::thread::spawn(move || {
            let mut done = 0;
            while done < ROUNDS {
                let was = bucket.whole(key, 100).unwrap();
                let number: usize = was.as_deref().map_or(0, |was| String::from_utf8_lossy(was).parse().unwrap());
                let next = (number + 1).to_string();
                done += usize::from(bucket.swap(key, was.as_deref(), next.as_bytes()).unwrap());
            }
        })
    };
    let writers: Vec<_> = (0..4).map(writer).collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let bucket = Folder::new(folder.path());
    assert_eq!(bucket.whole(key, 100).unwrap().unwrap(), (4 * ROUNDS).to_string().into_bytes());
    assert!(!bucket.remove(key, b"1").unwrap() && bucket.remove(key, b"600").unwrap());
    assert_eq!(bucket.whole(key, 100).unwrap(), None);
    assert_eq!(std::fs::read_dir(folder.path().join("locks")).unwrap().count(), 0, "its lock goes with it");
}
