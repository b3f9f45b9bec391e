//! Sweeps beside writers: what no ref names goes, in two steps; what a writer is about to name stays.

use crate::world::{At, Origin, Watched, age, check, folder, head, now_ms, remote};
use adapters::remote::{Access, MIN_WINDOW, Remote, Swept, WINDOW};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn what_no_ref_names_is_deleted_by_the_second_sweep_and_not_before_its_time() {
    let (folder, mut origin) = (folder(), Origin::default());
    let [kept, gone] = [origin.commit(0..20, &[]), origin.commit(20..40, &[])];
    let node = origin.blob(b"bytes");
    let gone = origin.commit_of(&[node], &[gone]);
    let remote = remote(folder.path());
    remote.push(&mut origin, &head("kept"), kept, false).unwrap();
    remote.push(&mut origin, &head("gone"), gone, false).unwrap();
    remote.delete(&head("gone"), gone).unwrap();
    let sweep = || remote.sweep(now_ms(), WINDOW).unwrap();
    assert_eq!(sweep(), Swept::default(), "all is young");
    age(folder.path(), 2);
    // A manifest, a segment and a blob.
    assert_eq!(sweep(), Swept { condemned: 3, ..Swept::default() });
    assert_eq!(sweep(), Swept::default(), "the marks are young");
    age(folder.path(), 2);
    assert_eq!(sweep(), Swept { deleted: 3, ..Swept::default() });
    assert_eq!(sweep(), Swept::default());
    check(&remote, &head("kept"), kept, &mut origin);
    assert!(remote.sweep(now_ms(), MIN_WINDOW - Duration::from_secs(1)).is_err());
}

#[test]
fn what_is_condemned_is_put_again_and_stays() {
    let (folder, mut origin) = (folder(), Origin::default());
    let commit = origin.commit(0..20, &[]);
    let remote = remote(folder.path());
    remote.push(&mut origin, &head("a"), commit, false).unwrap();
    remote.push(&mut origin, &head("c"), commit, false).unwrap();
    remote.delete(&head("a"), commit).unwrap();
    age(folder.path(), 2);
    // The segment is shared with `c`: only the manifest of `a` is condemned.
    assert_eq!(remote.sweep(now_ms(), WINDOW).unwrap().condemned, 1);
    remote.delete(&head("c"), commit).unwrap();
    assert_eq!(remote.sweep(now_ms(), WINDOW).unwrap().condemned, 2);
    // The same objects again, under a name that has nothing to do with the condemned ones.
    assert_eq!(remote.push(&mut origin, &head("b"), commit, false).unwrap().objects, 23);
    for _ in 0..2 {
        age(folder.path(), 2);
        remote.sweep(now_ms(), WINDOW).unwrap();
        check(&remote, &head("b"), commit, &mut origin);
    }
    assert_eq!(std::fs::read_dir(folder.path().join("segments")).unwrap().count(), 1);
}

/// A writer makes a branch of segments that another head has. At each of its steps in turn, that head is deleted, another writer pushes,
/// and a sweep runs that finds everything old.
#[test]
fn a_sweep_takes_nothing_that_two_writers_are_about_to_name() {
    let mut origin = Origin::default();
    let base = origin.commit(0..20, &[]);
    let [mine, other] = [origin.commit(20..25, &[base]), origin.commit(25..30, &[base])];
    for step in 0.. {
        let folder = folder();
        let path = folder.path().to_owned();
        remote(&path).push(&mut origin, &head("main"), base, false).unwrap();
        age(&path, 3);
        let (mut beside, there) = (origin.clone(), path.clone());
        let bucket = Watched::new(&path).before(At::Number(step), move || {
            let remote = remote(&there);
            remote.push(&mut beside, &head("other"), other, false).unwrap();
            remote.delete(&head("main"), base).unwrap();
            remote.sweep(now_ms(), WINDOW).unwrap();
            remote.delete(&head("other"), other).unwrap();
            for _ in 0..2 {
                remote.sweep(now_ms(), WINDOW).unwrap();
            }
        });
        let bucket = Arc::new(bucket);
        let writer = Remote::at(bucket.clone(), Access::Write).unwrap();
        writer.push(&mut origin, &head("mine"), mine, false).unwrap();
        let after = remote(&path);
        check(&after, &head("mine"), mine, &mut origin);
        for _ in 0..3 {
            age(&path, 3);
            after.sweep(now_ms(), WINDOW).unwrap();
            check(&after, &head("mine"), mine, &mut origin);
        }
        if step >= bucket.operations() {
            assert!(step > 8, "{step} steps");
            break;
        }
    }
}

/// A segment may be named and marked at the same time: a writer shared it, and a sweep marked it before the writer's ref was there. The mark
/// is then older than the ref that names it, so no other writer may rely on that ref.
#[test]
fn a_segment_that_is_marked_is_not_shared_although_a_ref_names_it() {
    let (folder, mut origin) = (folder(), Origin::default());
    let base = origin.commit(0..20, &[]);
    let [first, second] = [origin.commit(20..25, &[base]), origin.commit(25..30, &[base])];
    let path = folder.path().to_owned();
    remote(&path).push(&mut origin, &head("main"), base, false).unwrap();
    age(&path, 3);
    let there = path.clone();
    let one = Watched::new(&path).before(At::Line("swap refs/heads/first"), move || {
        remote(&there).delete(&head("main"), base).unwrap();
        assert!(remote(&there).sweep(now_ms(), WINDOW).unwrap().condemned > 0);
    });
    Remote::at(Arc::new(one), Access::Write).unwrap().push(&mut origin, &head("first"), first, false).unwrap();
    age(&path, 3);
    let there = path.clone();
    let two = Watched::new(&path).before(At::Line("swap refs/heads/second"), move || {
        remote(&there).delete(&head("first"), first).unwrap();
        assert!(remote(&there).sweep(now_ms(), WINDOW).unwrap().deleted > 0);
    });
    Remote::at(Arc::new(two), Access::Write).unwrap().push(&mut origin, &head("second"), second, false).unwrap();
    check(&remote(&path), &head("second"), second, &mut origin);
}
