//! Random histories of two writers, deletions and sweeps: after each step every ref can be read in full.

use crate::world::{Origin, age, check, folder, head, now_ms, remote};
use adapters::remote::{RemoteError, WINDOW};
use calls::CommitId;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
enum Step {
    /// A writer commits some numbers on top of what it pushed or saw last, and pushes that to a ref.
    Push {
        writer: usize,
        to: usize,
        first: i64,
        count: i64,
        force: bool,
    },
    Delete {
        of: usize,
    },
    Days(u64),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2usize, 0..3usize, 0..60i64, 1..6i64, any::<bool>())
            .prop_map(|(writer, to, first, count, force)| Step::Push { writer, to, first, count, force }),
        1 => (0..3usize).prop_map(|of| Step::Delete { of }),
        2 => (1..3u64).prop_map(Step::Days),
        2 => Just(Step::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_ref_is_whole_after_every_step(steps in vec(step(), 1..30)) {
        let folder = folder();
        let writers = [remote(folder.path()), remote(folder.path())];
        let mut origin = Origin::default();
        let mut tips: [Option<CommitId>; 2] = [None, None];
        let mut refs: BTreeMap<usize, CommitId> = BTreeMap::new();
        let names = ["a", "b", "c"].map(head);
        for step in steps {
            match step {
                Step::Push { writer, to, first, count, force } => {
                    let parents: Vec<CommitId> = tips[writer].into_iter().collect();
                    let commit = origin.commit(first..first + count, &parents);
                    tips[writer] = Some(commit);
                    match writers[writer].push(&mut origin, &names[to], commit, force) {
                        Ok(pushed) => {
                            prop_assert_eq!(pushed.previous, refs.insert(to, commit));
                        }
                        Err(RemoteError::NotFastForward { remote, .. }) => {
                            prop_assert!(!force);
                            prop_assert_eq!(Some(&remote), refs.get(&to));
                            tips[writer] = Some(remote);
                        }
                        Err(error) => return Err(TestCaseError::fail(error.to_string())),
                    }
                }
                Step::Delete { of } => match refs.remove(&of) {
                    Some(commit) => writers[0].delete(&names[of], commit).unwrap(),
                    None => prop_assert!(writers[0].commit(&names[of]).unwrap().is_none()),
                },
                Step::Days(days) => age(folder.path(), days),
                Step::Sweep => drop(writers[1].sweep(now_ms(), WINDOW).unwrap()),
            }
            for (of, commit) in &refs {
                check(&remote(folder.path()), &names[*of], *commit, &mut origin);
            }
        }
    }
}
