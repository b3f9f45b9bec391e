//! The same remote in a real store that speaks S3, and stores that cannot hold one.

use crate::lossy::Lossy;
use crate::weed::{BUCKET, KEY, SECRET, Weed};
use crate::world::{Origin, check, head, now_ms};
use adapters::remote::bucket::Bucket as _;
use adapters::remote::{Access, Remote, RemoteError, S3, WINDOW};
use model::TroubleKind;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

const OBJECTS: i64 = 10_000;
const DAY_MS: i64 = 86_400_000;

fn store(weed: &Weed, prefix: &str) -> S3 {
    S3::with(&format!("s3://{BUCKET}/{prefix}"), &weed.endpoint, KEY, SECRET).unwrap()
}

/// One test: the store takes seconds to start.
#[test]
fn a_remote_in_s3_does_what_one_in_a_folder_does() {
    let weed = Weed::start();
    ten_new_of_ten_thousand(&weed);
    refs_and_blobs(&weed);
    many_writers_of_one_key(&weed);
    sweeps(&weed);
    lost_answers(&weed);
    refusals(&weed);
}

fn ten_new_of_ten_thousand(weed: &Weed) {
    let mut origin = Origin::default();
    let base = origin.commit(0..OBJECTS - 3, &[]);
    let remote = Remote::in_s3(store(weed, "large"), Access::Write).unwrap();
    assert_eq!(remote.push(&mut origin, &head("main"), base, false).unwrap().objects, OBJECTS as usize);
    let next = origin.commit(OBJECTS..OBJECTS + 7, &[base]);
    // Another process: it knows nothing of what is there.
    let remote = Remote::in_s3(store(weed, "large"), Access::Write).unwrap();
    let pushed = remote.push(&mut origin, &head("main"), next, false).unwrap();
    assert_eq!((pushed.objects, pushed.segments), (10, 1));
    assert!(pushed.bytes < 10_000, "{} bytes", pushed.bytes);
    check(&remote, &head("main"), next, &mut origin);
    let count = |folder: &str| store(weed, "large").list(folder).unwrap().len();
    assert_eq!((count("segments"), count("manifests"), count("refs"), count("meta")), (2, 2, 1, 1));
}

fn refs_and_blobs(weed: &Weed) {
    let mut origin = Origin::default();
    let remote = Remote::in_s3(store(weed, "small/one"), Access::Write).unwrap();
    // The first is sent in parts.
    let nodes = [origin.blob(&vec![7; 20 << 20]), origin.blob(b"bytes"), origin.blob(b"")];
    let first = origin.commit_of(&nodes, &[]);
    let other = origin.commit(0..3, &[]);
    let name = head("team/ä x");
    assert_eq!(remote.push(&mut origin, &name, first, false).unwrap().blobs, 3);
    check(&remote, &name, first, &mut origin);
    assert_eq!(remote.refs().unwrap(), [(name.clone(), first)]);
    let error = remote.push(&mut origin, &name, other, false).unwrap_err();
    assert!(matches!(error, RemoteError::NotFastForward { .. }), "{error}");
    remote.delete(&name, first).unwrap();
    assert_eq!(remote.refs().unwrap(), []);
    assert!(matches!(remote.fetch(&name), Err(RemoteError::NoRef { .. })));
    remote.push(&mut origin, &name, other, false).unwrap();
    check(&remote, &name, other, &mut origin);
    let elsewhere = Remote::in_s3(store(weed, "small/two"), Access::Read);
    assert_eq!(elsewhere.err(), Some(RemoteError::NoRepository), "prefixes have nothing to do with one another");
}

fn many_writers_of_one_key(weed: &Weed) {
    const ROUNDS: usize = 8;
    let key = "refs/heads/counter";
    let number_in = |bytes: &[u8]| -> usize {
        String::from_utf8_lossy(bytes).split(' ').next().unwrap_or_default().parse().unwrap()
    };
    let writer = |me: usize| {
        let store = store(weed, "counter");
        std::thread::spawn(move || {
            let mut done = 0;
            while done < ROUNDS {
                let was = store.whole(key, 100).unwrap();
                let next = format!("{} by {me}", was.as_deref().map_or(0, number_in) + 1);
                done += usize::from(store.swap(key, was.as_deref(), next.as_bytes()).unwrap());
            }
        })
    };
    let writers: Vec<_> = (0..4).map(writer).collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let is = store(weed, "counter").whole(key, 100).unwrap().unwrap();
    assert_eq!(number_in(&is), 4 * ROUNDS, "each change was seen by the next");
}

fn sweeps(weed: &Weed) {
    let mut origin = Origin::default();
    let [kept, gone] = [origin.commit(0..5, &[]), origin.commit(5..9, &[])];
    let remote = Remote::in_s3(store(weed, "swept"), Access::Write).unwrap();
    remote.push(&mut origin, &head("kept"), kept, false).unwrap();
    remote.push(&mut origin, &head("gone"), gone, false).unwrap();
    remote.delete(&head("gone"), gone).unwrap();
    assert_eq!(remote.sweep(now_ms(), WINDOW).unwrap().condemned, 0);
    assert_eq!(remote.sweep(now_ms() + 2 * DAY_MS, WINDOW).unwrap().condemned, 2);
    assert_eq!(remote.sweep(now_ms() + 2 * DAY_MS, WINDOW).unwrap().deleted, 2);
    check(&remote, &head("kept"), kept, &mut origin);
    assert_eq!(store(weed, "swept").list("condemned").unwrap(), []);
}

/// The put of a ref is done and its answer lost. If the client repeats it, its own first put makes the condition false (412).
fn lost_answers(weed: &Weed) {
    let mut origin = Origin::default();
    let base = origin.commit(0..3, &[]);
    let next = origin.commit(3..5, &[base]);
    // When the ref is made, and when it is changed.
    for (previous, commit) in [(None, base), (Some(base), next)] {
        let lossy = Lossy::before(&weed.endpoint, &["PUT", "refs"], 1);
        let through = S3::with(&format!("s3://{BUCKET}/lossy"), &lossy.endpoint, KEY, SECRET).unwrap();
        let remote = Remote::in_s3(through, Access::Write).unwrap();
        let pushed = remote.push(&mut origin, &head("main"), commit, false).unwrap();
        assert_eq!(pushed.previous, previous);
        assert!(lossy.asked() > 0, "an answer was lost");
        check(&Remote::in_s3(store(weed, "lossy"), Access::Read).unwrap(), &head("main"), commit, &mut origin);
    }
}

fn refusals(weed: &Weed) {
    let wrong = S3::with(&format!("s3://{BUCKET}/x"), &weed.endpoint, KEY, "wrong").unwrap();
    let error = Remote::in_s3(wrong, Access::Write).err().unwrap();
    assert!(matches!(&error, RemoteError::Trouble(trouble) if trouble.kind == TroubleKind::Auth), "{error}");
    for bad in ["s3://", "s3:///a", "s3://Bucket/a", "s3://b/a//b", "s3://b/../a", "s3://b/a?x"] {
        assert!(matches!(S3::with(bad, &weed.endpoint, KEY, SECRET), Err(RemoteError::Uri { .. })), "{bad}");
    }
}

/// A store that knows one key and obeys no condition but this one, if any. Its address.
fn careless(obeys: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut is_there = false;
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut bytes, mut lines) = (0, Vec::new());
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(length) = line.strip_prefix("content-length:") {
                    bytes = length.trim().parse().unwrap();
                }
                lines.push(line);
            }
            std::io::copy(&mut (&mut stream).take(bytes), &mut std::io::sink()).unwrap();
            let asks =
                |name: &str| lines.iter().any(|line| line.starts_with(&format!("{}:", name.to_ascii_lowercase())));
            let refused = is_there && obeys.is_some_and(asks);
            is_there |= lines[0].starts_with("put ");
            let status = if refused { "412 Precondition Failed" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\nETag: \"e\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    endpoint
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    for (obeys, condition) in [(None, "If-None-Match"), (Some("If-None-Match"), "If-Match")] {
        let store = S3::with("s3://b/x", &careless(obeys), KEY, SECRET).unwrap();
        let error = Remote::in_s3(store, Access::Write).err().unwrap();
        assert_eq!(error, RemoteError::Unconditional { condition });
    }
}
