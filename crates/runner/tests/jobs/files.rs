//! Files on their way in and out: verified, placed below the workdir and nowhere else, fetched once.

use crate::host::{JOB, RunnerUnderTest};
use std::collections::BTreeMap;
use wire::Base64;
use wire::model::JobId;
use wire::model::tree::{Entry, Node, Tree};
use wire::runner::{EndCause, Stream, SyncTree, What};

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// A tree of files and modes, as documents and blobs by hash, and its root.
pub fn tree(files: &[(&str, &[u8], u32)]) -> (String, BTreeMap<String, Vec<u8>>) {
    let mut blobs = BTreeMap::new();
    let root = folder(files, &mut blobs);
    (root, blobs)
}

fn folder(files: &[(&str, &[u8], u32)], blobs: &mut BTreeMap<String, Vec<u8>>) -> String {
    let (mut entries, mut inner) = (Vec::new(), BTreeMap::<&str, Vec<(&str, &[u8], u32)>>::new());
    for (path, bytes, mode) in files {
        match path.split_once('/') {
            Some((name, rest)) => inner.entry(name).or_default().push((rest, bytes, *mode)),
            None => {
                blobs.insert(hash(bytes), bytes.to_vec());
                let node = Node::File { hash: hash(bytes), size: bytes.len() as i64, mode: *mode };
                entries.push(Entry { name: path.to_string(), node });
            }
        }
    }
    for (name, files) in inner {
        let node = Node::Folder { hash: folder(&files, blobs) };
        entries.push(Entry { name: name.to_owned(), node });
    }
    let document = Tree::of(entries).document();
    let root = hash(&document);
    blobs.insert(root.clone(), document);
    root
}

pub fn inline((hash, blobs): (String, BTreeMap<String, Vec<u8>>)) -> Option<SyncTree> {
    let inline = blobs.into_iter().map(|(hash, bytes)| (hash, Base64(bytes))).collect();
    Some(SyncTree { hash, inline, plain_modes: false })
}

#[tokio::test]
async fn files_arrive_and_travel_only_once() {
    let host = RunnerUnderTest::new().await;
    let large = vec![b'L'; 300_000];
    let script = b"#!/bin/sh\necho ran\n";
    let (root, blobs) =
        tree(&[("in/small", b"small\n", 0o640), ("in/deep/large", &large, 0o644), ("run", script, 0o755)]);
    host.control.change(|state| state.blobs = blobs);
    // Three levels of folders, a pack each; two small files in a pack, the large one alone.
    for (number, fetched) in [(1, 3), (2, 0)] {
        let mut job = host.job("cat in/small; wc -c < in/deep/large; stat -c %a in/small; ./run");
        job.job = JobId(number);
        job.workdir = format!("work_{number}");
        job.files = Some(SyncTree { hash: root.clone(), inline: BTreeMap::new(), plain_modes: false });
        host.ask(job);
        host.control.until("its end", |state| state.ended(JobId(number)).is_some()).await;
        host.control.see(|state| {
            assert_eq!(state.log(JobId(number)).text(Stream::Stdout), "small\n300000\n640\nran\n");
            let synced = state.facts.iter().find_map(|fact| match fact.what {
                What::SyncComplete { fetched_blobs, .. } if fact.job == JobId(number) => Some(fetched_blobs),
                _ => None,
            });
            assert_eq!(synced, Some(fetched), "job {number}");
        });
    }
    assert_eq!(host.control.see(|state| (state.blobs_served, state.packs_served)), (1, 4));
}

/// Jobs run as the user who owns the cache: what a job writes into its files must not reach the cached bytes, nor the files of another.
#[tokio::test]
async fn what_a_job_writes_into_its_files_no_other_job_sees() {
    let host = RunnerUnderTest::new().await;
    let (root, blobs) = tree(&[("data", b"original\n", 0o644)]);
    host.control.change(|state| state.blobs = blobs);
    let script =
        "cat data; stat -c %h data; chmod u+w data; echo more >> data; tail -n 1 data; : > data; stat -c %s data";
    let mut served = None;
    for number in [1, 2] {
        let mut job = host.job(script);
        job.job = JobId(number);
        job.workdir = format!("work_{number}");
        job.files = Some(SyncTree { hash: root.clone(), inline: BTreeMap::new(), plain_modes: false });
        host.ask(job);
        host.control.until("its end", |state| state.ended(JobId(number)).is_some()).await;
        host.control.see(|state| {
            assert_eq!(state.log(JobId(number)).text(Stream::Stdout), "original\n1\nmore\n0\n", "job {number}");
        });
        let now = host.control.see(|state| (state.blobs_served, state.packs_served));
        assert_eq!(*served.get_or_insert(now), now, "the second had it from the cache");
    }
}

#[tokio::test]
async fn a_small_tree_comes_with_the_order() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job("cat in/a; test -d out");
    let mut both = tree(&[("in/a", b"A", 0o644)]);
    let document = Tree::of(vec![
        Entry { name: "in".to_owned(), node: Node::Folder { hash: folder(&[("a", b"A", 0o644)], &mut both.1) } },
        Entry { name: "out".to_owned(), node: Node::Folder { hash: folder(&[], &mut both.1) } },
    ])
    .document();
    both.0 = hash(&document);
    both.1.insert(both.0.clone(), document);
    job.files = inline(both);
    host.ask(job);
    let What::Ended { exit_code, .. } = host.ends().await else { panic!() };
    assert_eq!(exit_code, Some(0));
    assert_eq!(host.control.see(|state| (state.blobs_served, state.packs_served)), (0, 0));
}

#[tokio::test]
async fn files_that_cannot_be_placed_keep_the_job_from_starting() {
    let host = RunnerUnderTest::new().await;
    let leaving = |name: &str, node: Node| {
        let document = Tree { entries: vec![Entry { name: name.to_owned(), node }] }.document();
        (hash(&document), BTreeMap::from([(hash(&document), document), (hash(b"x"), b"x".to_vec())]))
    };
    let x = || Node::File { hash: hash(b"x"), size: 1, mode: 0o644 };
    let mut wrong = inline(tree(&[("a", b"right", 0o644)]));
    wrong.as_mut().unwrap().inline.insert(hash(b"right"), Base64(b"wrong".to_vec()));
    let missing = Some(SyncTree { hash: hash(b"nobody has this"), inline: BTreeMap::new(), plain_modes: false });
    let cases = [
        ("a name with a slash", inline(leaving("../escaped", x()))),
        ("an absolute name", inline(leaving("/tmp/escaped", x()))),
        ("a link that leaves", inline(leaving("link", Node::Link { target: "../escaped".into() }))),
        ("other bytes", wrong),
        ("nobody has it", missing),
    ];
    for (number, (what, bad)) in cases.into_iter().enumerate() {
        let id = JobId(number as i64 + 1);
        let mut job = host.job("touch ran");
        (job.job, job.files) = (id, bad);
        host.ask(job);
        host.control.until(what, |state| state.ended(id).is_some()).await;
        host.control.see(|state| {
            let Some(What::Ended { cause, started, message, .. }) = state.ended(id) else { panic!() };
            assert_eq!((*cause, *started), (Some(EndCause::SyncFailed), false), "{what}: {message:?}");
            assert!(state.log(id).text(Stream::Runner).contains(message.as_deref().unwrap()));
        });
    }
    assert!(!host.dir.join("escaped").exists() && !host.workdir().join("ran").exists());
}

#[tokio::test]
async fn artifacts_are_uploaded_before_the_end_is_told() {
    let host = RunnerUnderTest::new().await;
    let mut job = host.job(
        "mkdir -p out/deep; echo 1 > out/a; echo 2 > out/deep/b; ln -s /etc/passwd out/leak; : > empty
              : > \"$(printf 'out/\\377')\"; echo said; exit 1",
    );
    job.artifacts = vec!["out/*".to_owned(), "empty".to_owned(), "*.csv".to_owned()];
    host.ask(job);
    let What::Ended { exit_code, message, final_offset, .. } = host.ends().await else { panic!() };
    assert_eq!(exit_code, Some(1));
    assert!(message.unwrap().contains("out/leak: leads out of the workdir"));
    host.control.until("the whole log", |state| state.log(JOB).next == final_offset).await;
    host.control.see(|state| {
        let said = state.log(JOB).text(Stream::Runner);
        let lines: Vec<&str> = said.lines().collect();
        let expected = [
            "artifact not uploaded: out/\u{fffd}: the name is not UTF-8",
            "artifact not uploaded: out/leak: leads out of the workdir",
            "no file matches the artifact glob *.csv",
        ];
        assert_eq!(lines, expected);
        let names: Vec<(&str, &[u8])> = state.artifacts.iter().map(|((_, name), bytes)| (&**name, &**bytes)).collect();
        assert_eq!(names, [("empty", &b""[..]), ("out/a", b"1\n"), ("out/deep/b", b"2\n")]);
    });
}

#[tokio::test]
async fn workdirs_nobody_keeps_are_removed() {
    let host = RunnerUnderTest::new().await;
    host.ask(host.job("touch here"));
    host.ends().await;
    assert!(host.workdir().join("here").exists());
    std::fs::create_dir(host.dir.join("work_of_others")).unwrap();
    let mut second = host.job("true");
    (second.job, second.workdir) = (JobId(8), "work_2".to_owned());
    host.control.change(|state| {
        state.desired = vec![second.into()];
        state.kept_workdirs = vec!["work_3".to_owned()];
    });
    host.control.until("the second job", |state| state.ended(JobId(8)).is_some()).await;
    while host.workdir().exists() {
        tokio::task::yield_now().await;
    }
    assert!(host.dir.join("work_of_others").exists() && host.dir.join("work_2").exists());
}
