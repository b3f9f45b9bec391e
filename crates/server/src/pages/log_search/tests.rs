//! Searches in logs that tests make up: what is found, where it goes on, what bounds it and what ends it.

use super::*;
use engine::store::log_file::{Frame, Placed};
use model::Timestamp;
use proptest::prelude::*;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

fn log(parts: &[(LogStream, &[u8])]) -> Vec<Placed> {
    let mut offset = 0;
    let place = |(stream, data): &(LogStream, &[u8])| {
        let (at, next) = (Timestamp(offset), offset + data.len() as i64);
        let placed = Placed { offset, next, frame: Frame { stream: *stream, at, data: data.to_vec() } };
        offset = next;
        placed
    };
    parts.iter().map(place).collect()
}

/// One frame at a time, as the store would read it at any offset.
fn read(frames: &[Placed], from: i64) -> Page {
    let total = frames.last().map_or(0, |placed| placed.next);
    let mut frames: Vec<Placed> = frames.iter().find(|placed| placed.next > from).cloned().into_iter().collect();
    for placed in &mut frames {
        let skip = (from - placed.offset).max(0);
        placed.frame.data.drain(..skip as usize);
        placed.offset += skip;
    }
    let next_offset = frames.last().map_or(from, |placed| placed.next);
    Page { frames, next_offset, done: next_offset >= total }
}

fn found(frames: &[Placed], needle: &Needle, from: Place, most: usize, over: bool) -> Found {
    let mut scan = Scan::new(needle.clone(), from, most);
    scan.all(&|at| Ok(read(frames, at)), || over).unwrap().0
}

fn literal(text: &str) -> Needle {
    Needle::literal(text).unwrap()
}

use LogStream::{Stderr, Stdout};

#[test]
fn a_line_is_found_by_what_a_reader_sees() {
    let frames = log(&[(Stdout, b"one\n\x1b[31mer\x1b[1mror\x1b[0m: two\n10%\r20%\n")]);
    let hits = |needle: &Needle| found(&frames, needle, Place::default(), 9, false).hits;
    let hit = &hits(&literal("error"))[0];
    assert_eq!((hit.offset, hit.found.as_str(), hit.behind.as_str()), (4, "error", ": two"));
    assert_eq!(hits(&literal("10%")), []);
    assert_eq!(hits(&literal("ERROR")), []);
    assert_eq!(hits(&Needle::expression("^o.e$").unwrap())[0].offset, 0);
}

#[test]
fn what_cannot_be_looked_for_is_refused_with_a_reason() {
    let why = |needle: Result<Needle, Refused>| needle.unwrap_err().to_string();
    assert_eq!(why(Needle::literal("")), "search: nothing to look for: type a word");
    assert!(why(Needle::expression("a(")).contains("unclosed group"), "{}", why(Needle::expression("a(")));
    assert!(why(Needle::expression(r"\w{900}{900}")).contains("too large"));
    assert!(why(Needle::literal(&"x".repeat(2_000))).contains("1000 at most"));
    assert!("7".parse::<Place>().is_err() && "-1.5".parse::<Place>().is_err() && "9.5".parse::<Place>().is_err());
    assert!("0.99999999".parse::<Place>().is_err());
    assert_eq!("5.9".parse::<Place>().unwrap().to_string(), "5.9");
}

#[test]
fn an_expression_that_backtracks_elsewhere_is_linear_here() {
    let line = b"a".repeat(LINE_BYTES);
    let frames = log(&[(Stdout, &line)]);
    let needle = Needle::expression("(a+)+(a|aa)*b").unwrap();
    assert_eq!(found(&frames, &needle, Place::default(), 9, false).hits, []);
}

#[test]
fn a_failure_is_known_by_its_words() {
    let needle = Needle::expression(FAILURE).unwrap();
    let is = |line: &str, failed: bool| assert_eq!(needle.0.is_match(line.as_bytes()), failed, "{line}");
    for line in [
        "error: expected `;`",
        "error[E0382]: use of moved value",
        "make: *** [all] Error: 1 ",
        "Traceback (most recent call last):",
        "ValueError: no",
        "thread 'main' panicked at src/main.rs:1",
        "FAILED tests/a.py",
        "sh: 1: pyhton: command not found",
        "fatal: not a git repository",
        "2026-01-01 12:00 ERROR: disk is full",
    ] {
        is(line, true);
    }
    for line in
        ["0 errors, 0 warnings", "compiled with error handling", "no failures", "ErrorKind is an enum", "Skilled"]
    {
        is(line, false);
    }
}

#[test]
fn a_search_stops_after_its_time_and_goes_on_without_losing_or_doubling_a_line() {
    let parts: Vec<(LogStream, &[u8])> =
        vec![(Stdout, b"hit 1\nhit "), (Stderr, b"hit A\nhi"), (Stdout, b"2\n"), (Stderr, b"t B\nrest hit")];
    let frames = log(&parts);
    let whole: Vec<i64> =
        found(&frames, &literal("hit"), Place::default(), 99, false).hits.iter().map(|h| h.offset).collect();
    assert_eq!(whole.len(), 5);
    for (most, over) in [(99, true), (1, false), (2, true)] {
        let (mut place, mut seen, mut requests) = (Place::default(), Vec::new(), 0);
        loop {
            let part = found(&frames, &literal("hit"), place, most, over);
            seen.extend(part.hits.iter().map(|hit| hit.offset));
            requests += 1;
            match part.go_on {
                Some(next) => place = next.to_string().parse().unwrap(),
                None => break,
            }
        }
        assert_eq!(seen, whole, "{most} at a time, in {requests} requests");
        assert!(requests > 1);
    }
}

#[test]
fn one_request_reads_at_most_so_much() {
    let part = b"nothing is to be found in this line\n".repeat(30_000);
    let reads = AtomicUsize::new(0);
    let endless = |at: i64| {
        reads.fetch_add(1, Ordering::Relaxed);
        let frame = Frame { stream: Stdout, at: Timestamp(0), data: part.clone() };
        let next = at + part.len() as i64;
        Ok(Page { frames: vec![Placed { offset: at, next, frame }], next_offset: next, done: false })
    };
    let mut scan = Scan { most_bytes: 2 * 1024 * 1024, ..Scan::new(literal("xyz"), Place::default(), 9) };
    let (found, complete) = scan.all(&endless, || false).unwrap();
    let read = reads.into_inner() as i64 * part.len() as i64;
    assert!(!complete && (scan.most_bytes..scan.most_bytes + 2 * part.len() as i64).contains(&read), "{read}");
    assert_eq!(found.go_on.unwrap().reached(), read);
}

#[test]
fn a_line_that_never_ends_does_not_keep_a_search_from_going_on() {
    let (prompt, line) = (b"Password hit: ".as_slice(), b"stdout goes on\n".repeat(30_000));
    let frames = log(&[(Stderr, prompt), (Stdout, &line), (Stdout, &line), (Stdout, b"a hit\n")]);
    let (mut hits, mut place) = (Vec::new(), Some(Place::default()));
    while let Some(at) = place {
        let part = found(&frames, &literal("hit"), at, 9, true);
        assert!(part.go_on.is_none_or(|next| next.told > at.told), "{at} leads to {:?}", part.go_on);
        hits.extend(part.hits.iter().map(|hit| hit.offset));
        place = part.go_on;
    }
    assert_eq!(hits, [0, 900_014]);
}

/// The request is dropped while its thread reads: the thread stops at once, and its turn ends with it.
#[tokio::test]
async fn a_search_ends_with_its_request_and_two_run_at_once() {
    let searches = Searches::default();
    let (started, heard) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let endless = move |at: i64| {
        counted.fetch_add(1, Ordering::SeqCst);
        started.send(()).ok();
        held.recv().ok();
        let frame = Frame { stream: Stdout, at: Timestamp(0), data: b"x\n".to_vec() };
        Ok(Page { frames: vec![Placed { offset: at, next: at + 2, frame }], next_offset: at + 2, done: false })
    };
    let turn = searches.turn().await.unwrap();
    let mut scan = Scan::new(literal("y"), Place::default(), 9);
    let search = tokio::spawn(off_the_reactor(turn, move |over| scan.all(&endless, over)));
    tokio::task::spawn_blocking(move || heard.recv()).await.unwrap().unwrap();
    let other = searches.turn().await.unwrap();
    assert_eq!(searches.turns.available_permits(), 0);
    search.abort();
    assert!(search.await.unwrap_err().is_cancelled());
    assert_eq!(searches.turns.available_permits(), 0, "the thread still reads");
    drop(release);
    let again = searches.turn().await.unwrap();
    assert_eq!(reads.load(Ordering::SeqCst), 1);
    drop((other, again));
    assert_eq!(searches.turns.available_permits(), AT_ONCE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// However a log is cut into frames and a search into requests, each line is found once.
    #[test]
    fn going_on_is_the_same_as_going_through(
        parts in prop::collection::vec((any::<bool>(), "[ab\n\r]{0,30}"), 1..30), most in 1..5_usize, over in any::<bool>()
    ) {
        let parts: Vec<(LogStream, &[u8])> =
            parts.iter().map(|(err, text)| (if *err { Stderr } else { Stdout }, text.as_bytes())).collect();
        let frames: Vec<Placed> = log(&parts).into_iter().filter(|placed| placed.next > placed.offset).collect();
        let mut whole: Vec<i64> =
            found(&frames, &literal("b"), Place::default(), 999, false).hits.iter().map(|hit| hit.offset).collect();
        let (mut seen, mut place) = (Vec::new(), Some(Place::default()));
        while let Some(at) = place {
            let part = found(&frames, &literal("b"), at, most, over);
            seen.extend(part.hits.iter().map(|hit| hit.offset));
            prop_assert!(part.go_on.is_none_or(|next| next.told > at.told || next.from > at.from));
            place = part.go_on;
        }
        whole.sort_unstable();
        seen.sort_unstable();
        prop_assert_eq!(seen, whole);
    }
}
