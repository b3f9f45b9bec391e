//! Heads: made from the index and from each other, moved by compare-and-swap, kept by collections, and never an answer to a run.

use crate::bench::{Bench, now, settings, shown, spec};
use crate::cached_runs::{cached, is_hit, salted};
use engine::Config;
use engine::cache::Garbage;
use engine::dag::{Expect, RefMoved, SetRef, commit_of, ref_of};
use engine::run::Submission;
use model::run::RunStatus;
use model::time::DAY;
use model::{Failure, OrgId, Refused, RunId};

fn set(bench: &Bench, name: &str, from: &str, expect: Expect, force: bool) -> Result<RefMoved, Failure> {
    let asked = SetRef { name: ref_of(name).unwrap(), from: from.to_owned(), expect, force };
    now(bench.engine.set_ref(bench.org, asked))
}

fn branch(bench: &Bench, name: &str, from: &str) -> String {
    set(bench, name, from, Expect::Anything, false).unwrap().commit.to_string()
}

fn log(bench: &Bench, of: &str) -> Vec<String> {
    let found = now(bench.engine.log(bench.org, of.to_owned(), 0, 100)).unwrap();
    found.iter().map(|it| it.id.to_string()).collect()
}

fn refused<T>(result: Result<T, Failure>) -> Refused {
    match result {
        Err(Failure::Refused(refused)) => refused,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// Another org of the same installation, with everything that is below a commit of the first.
fn sent_to(bench: &Bench, of: &str) -> OrgId {
    let other = now(bench.engine.ensure_org("other")).unwrap();
    let ids = now(bench.engine.below(bench.org, of.to_owned(), None)).unwrap();
    let records = now(bench.engine.records(bench.org, ids)).unwrap();
    now(bench.engine.put_records(other, records)).unwrap();
    other
}

#[test]
fn a_head_is_made_of_the_index_and_grows_by_commits() {
    let mut bench = Bench::new();
    assert_eq!(refused(set(&bench, "main", "index", Expect::Anything, false)).code(), "not_found", "nothing is pinned");
    bench.submit(cached(spec()));
    bench.settle();
    let first = branch(&bench, "main", "index");
    assert_eq!(branch(&bench, "main", "index"), first, "nothing is new");
    bench.submit(salted(spec(), "2"));
    bench.settle();
    let second = branch(&bench, "main", "index");
    assert_eq!(log(&bench, "main"), [second.clone(), first.clone()]);
    assert_eq!(log(&bench, &second[..10]), [second.clone(), first.clone()], "by its first digits");
    assert_eq!(branch(&bench, "old", &first), first);
    assert_eq!(branch(&bench, "old", "main"), second, "a fast-forward");
    // Back only by force, and only from what was seen.
    let back = refused(set(&bench, "old", &first, Expect::Anything, false));
    assert!(back.to_string().contains("--force"), "{back}");
    let seen = commit_of("x", &first).unwrap();
    assert_eq!(refused(set(&bench, "old", &first, Expect::At(seen), true)).code(), "conflict");
    assert_eq!(refused(set(&bench, "old", &first, Expect::Absent, true)).code(), "conflict");
    assert_eq!(set(&bench, "old", &first, Expect::At(commit_of("x", &second).unwrap()), true).unwrap().commit, seen);
    for (name, from) in [("index", "main"), ("abcd", "main"), ("x", "nothing"), ("refs/exec/x", "main")] {
        assert!(
            ref_of(name).is_err() || set(&bench, name, from, Expect::Anything, true).is_err(),
            "{name} from {from}"
        );
    }
    let index = now(bench.engine.indexes(bench.org)).unwrap();
    assert_eq!((index.len(), index[0].pins, index[0].current), (1, 2, true));
    assert!(set(&bench, &index[0].name.to_string(), "main", Expect::Anything, true).is_err(), "executions write it");
    assert!(now(bench.engine.delete_ref(bench.org, ref_of("old").unwrap(), Expect::Anything)).unwrap());
    assert!(!now(bench.engine.delete_ref(bench.org, ref_of("old").unwrap(), Expect::Anything)).unwrap());
}

#[test]
fn what_a_head_reaches_outlives_its_pins_and_what_it_does_not_goes() {
    let mut config = Config::default();
    config.timings.contents_kept_ms = DAY;
    let mut bench = Bench::with(settings(2), config);
    let run = bench.submit(cached(spec()));
    bench.submit(salted(spec(), "lost"));
    bench.settle();
    let exec = bench.run(run).call.unwrap().exec.unwrap();
    let head = branch(&bench, "main", "index");
    bench.jump(3 * DAY);
    let nothing_pinned = Garbage { older_than_ms: 0, max_bytes: 0 };
    assert_eq!(now(bench.engine.collect_garbage(bench.org, nothing_pinned)).unwrap().pins, 2);
    let shown = now(bench.engine.shown(bench.org, exec.clone())).unwrap();
    assert_eq!(shown.object["status"], "ok", "{}", shown.object);
    assert_eq!(log(&bench, "main"), std::slice::from_ref(&head));
    let all = now(bench.engine.below(bench.org, "main".into(), None)).unwrap();
    assert_eq!(now(bench.engine.records(bench.org, all.clone())).unwrap().len(), all.len(), "nothing of it is gone");
    // The head is no answer: the same run is executed again.
    let again = bench.submit(cached(spec()));
    assert!(!is_hit(&bench, again));
    bench.settle();
    assert!(now(bench.engine.delete_ref(bench.org, ref_of("main").unwrap(), Expect::Anything)).unwrap());
    bench.jump(3 * DAY);
    now(bench.engine.collect_garbage(bench.org, nothing_pinned)).unwrap();
    assert!(now(bench.engine.shown(bench.org, exec)).is_err(), "nothing leads to it any more");
    bench.check();
}

#[test]
fn a_head_that_came_from_elsewhere_is_whole_and_answers_no_run() {
    let mut bench = Bench::new();
    let run = bench.submit(cached(spec()));
    bench.settle();
    let commit = branch(&bench, "main", "index");
    let other = now(bench.engine.ensure_org("other")).unwrap();
    let seen = |from: &str| SetRef {
        name: ref_of("refs/remotes/origin/main").unwrap(),
        from: from.to_owned(),
        expect: Expect::Absent,
        force: false,
    };
    // Everything but one record below it: refused. All of it: a ref, and still no pin.
    let ids = now(bench.engine.below(bench.org, commit.clone(), None)).unwrap();
    let records = now(bench.engine.records(bench.org, ids)).unwrap();
    now(bench.engine.put_records(other, records[1..].to_vec())).unwrap();
    let missing = refused(now(bench.engine.set_ref(other, seen(&commit))));
    assert_eq!(missing.code(), "gone", "{missing}");
    assert!(now(bench.engine.put_records(other, vec![b"nonsense".to_vec()])).is_err());
    assert_eq!(sent_to(&bench, &commit), other);
    now(bench.engine.set_ref(other, seen(&commit))).unwrap();
    let submission =
        Submission { org: other, by: None, name: None, spec: cached(spec()), plans: Default::default(), start: true };
    let answer = now(bench.engine.submit(submission, None, shown())).unwrap();
    let theirs: RunId = String::from_utf8(answer.body).unwrap().parse().unwrap();
    let theirs = now(bench.engine.run(other, theirs)).unwrap();
    assert_eq!((theirs.status, theirs.call.clone().unwrap().exec), (RunStatus::Created, None), "it is executed");
    assert_eq!(theirs.call.unwrap().node, bench.run(run).call.unwrap().node, "although the call is the same");
    assert!(now(bench.engine.indexes(other)).unwrap()[0].commit.is_none());
}
