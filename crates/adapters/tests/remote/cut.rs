//! A process that is killed between any two steps of a push leaves a remote that can be read, and the next push finishes.

use crate::world::{Origin, Watched, age, check, folder, head, is_cut, now_ms, remote};
use adapters::remote::{Access, Remote, WINDOW};
use std::sync::Arc;

#[test]
fn a_kill_between_any_two_steps_of_a_push_leaves_a_readable_remote() {
    let mut origin = Origin::default();
    let base = origin.commit(0..30, &[]);
    let nodes = [origin.blob(b"a large thing"), origin.blob(b"another")];
    let next = origin.commit_of(&nodes, &[base]);
    let mut cuts = 0;
    for with_effect in [false, true] {
        for cut_at in 0.. {
            let folder = folder();
            remote(folder.path()).push(&mut origin, &head("main"), base, false).unwrap();
            let bucket = Watched { cut_at: Some(cut_at), with_effect, ..Watched::new(folder.path()) };
            let pushed = Remote::at(Arc::new(bucket), Access::Write)
                .and_then(|remote| remote.push(&mut origin, &head("main"), next, false));
            let after = remote(folder.path());
            match pushed {
                Ok(_) => {
                    check(&after, &head("main"), next, &mut origin);
                    break;
                }
                Err(error) => assert!(is_cut(&error), "{error}"),
            }
            cuts += 1;
            // The old commit or the new one, and all of it.
            let is = after.commit(&head("main")).unwrap().unwrap();
            assert!(is == base || is == next, "{cut_at}");
            check(&after, &head("main"), is, &mut origin);
            after.push(&mut origin, &head("main"), next, false).unwrap();
            check(&after, &head("main"), next, &mut origin);
            // What the killed process left is swept.
            for _ in 0..2 {
                age(folder.path(), 3);
                after.sweep(now_ms(), WINDOW).unwrap();
            }
            check(&after, &head("main"), next, &mut origin);
            let left = |name: &str| std::fs::read_dir(folder.path().join(name)).map_or(0, |files| files.count());
            assert_eq!((left("manifests"), left("segments"), left("blobs")), (1, 2, 1), "{cut_at}");
        }
    }
    assert!(cuts > 15, "{cuts}");
}

#[test]
fn a_lost_answer_to_the_change_of_a_ref_is_looked_up() {
    let (folder, mut origin) = (folder(), Origin::default());
    let base = origin.commit(0..3, &[]);
    remote(folder.path()).push(&mut origin, &head("a"), base, false).unwrap();
    for with_effect in [true, false] {
        let next = origin.commit(3..5 + i64::from(with_effect), &[base]);
        let lossy = Watched { lost: Some("swap refs/"), with_effect, ..Watched::new(folder.path()) };
        let pushed = Remote::at(Arc::new(lossy), Access::Write).unwrap().push(&mut origin, &head("a"), next, true);
        assert_eq!(pushed.is_ok(), with_effect, "it happened or not, and that is known");
        let is = remote(folder.path()).commit(&head("a")).unwrap();
        assert_eq!(is == Some(next), with_effect);
        remote(folder.path()).push(&mut origin, &head("a"), base, true).unwrap();
    }
}
