//! Logs: exact, whole, the same from rows and from the file.

use crate::support::{On, World};
use crate::write;
use model::log::LogId;
use model::step::StepTry;
use model::time::HOUR;
use model::{JobId, OrgId, Refused, StepId, Timestamp};
use store::blob::BlobName;
use store::log::{Chunk, Logged};
use store::{Frame, Hint, LogStream, Sql, Store, args};

const JOB: JobId = JobId(5);

fn chunk(epoch: i64, offset: i64, text: &str) -> Chunk {
    Chunk {
        log: JOB.into(),
        epoch,
        offset,
        frames: vec![Frame { stream: LogStream::Stdout, at: Timestamp(3), data: text.as_bytes().to_vec() }],
    }
}

/// Everything from `from` on; where it ends, and whether for ever.
async fn text(store: &Store, from: i64) -> (String, i64, bool) {
    let (mut text, mut from) = (Vec::new(), from);
    loop {
        let page = store.logs().read(JOB, from, 1 << 20).await.unwrap();
        for placed in &page.frames {
            assert!(placed.offset >= from && placed.next >= placed.offset);
            text.extend_from_slice(&placed.frame.data);
        }
        if page.done || page.next_offset == from {
            return (String::from_utf8(text).unwrap(), page.next_offset, page.done);
        }
        from = page.next_offset;
    }
}

pub async fn a_log_has_no_gaps_and_no_repeats(w: &World) {
    let logs = w.store.logs();
    let mut hints = w.store.hints();
    let logged = |next_offset| Ok(Logged { next_offset, total: next_offset });
    assert_eq!(logs.append(chunk(1, 0, "hello ")).await, logged(6));
    assert_eq!(logs.append(chunk(1, 0, "hello ")).await, logged(6), "sent twice");
    assert_eq!(logs.append(chunk(1, 3, "lo world")).await, logged(11), "overlapping");
    assert_eq!(logs.append(chunk(1, 12, "!")).await, Err(Refused::LogGap { expected: 11, given: 12 }.into()));
    assert_eq!(logs.append(chunk(1, 11, "!")).await, logged(12));
    assert_eq!(text(&w.store, 0).await.0, "hello world!");
    assert_eq!(text(&w.store, 8).await.0, "rld!");
    assert_eq!(logs.reached(JOB, 1).await, logged(12));
    assert!(!text(&w.store, 0).await.2);
    while hints.recv().await.unwrap() != Hint::Logs(JOB.into()) {}
    assert_eq!(logs.seal(JOB, 0).await, Ok(12));
    assert!(text(&w.store, 0).await.2);
    assert_eq!(logs.append(chunk(1, 12, "late")).await, Ok(Logged { next_offset: 16, total: 12 }), "taken and dropped");
    assert_eq!(text(&w.store, 0).await.0, "hello world!");
}

pub async fn each_try_of_a_step_has_a_log_of_its_own(w: &World) {
    let logs = w.store.logs();
    // Even where a step had the number of a job.
    let tries = [1, 2].map(|number| LogId::Step(StepTry { id: StepId(JOB.0), number }));
    let of = |log: LogId, text: &str| Chunk { log, ..chunk(1, 0, text) };
    logs.append(chunk(1, 0, "of the job")).await.unwrap();
    logs.append(of(tries[0], "first try")).await.unwrap();
    logs.append(of(tries[1], "second")).await.unwrap();
    assert_eq!(logs.append(of(tries[0], "first try")).await.unwrap().next_offset, 9, "sent twice");
    assert_eq!(logs.reached(tries[1], 1).await.unwrap().next_offset, 6);
    logs.seal(tries[0], 2).await.unwrap();
    logs.gather(OrgId(1), tries[0]).await.unwrap();
    while logs.sweep(tries[0]).await.unwrap() {}
    let said = async |log: LogId| {
        let page = logs.read(log, 0, 1 << 20).await.unwrap();
        let text = page.frames.into_iter().flat_map(|placed| placed.frame.data).collect();
        (String::from_utf8(text).unwrap(), page.done)
    };
    let (first, done) = said(tries[0]).await;
    assert!(first.starts_with("first try[remuda: the last 2 bytes") && done, "from its file: {first}");
    assert_eq!(said(tries[1]).await, ("second".to_owned(), false));
    assert_eq!(text(&w.store, 0).await, ("of the job".to_owned(), 10, false));
    logs.mark_deleted(tries[0]).await.unwrap();
    assert_eq!(logs.deleted(vec![tries[1], JOB.into()]).await.unwrap(), [None, None]);
}

pub async fn a_new_epoch_of_a_job_goes_on_where_the_log_ended(w: &World) {
    let logs = w.store.logs();
    logs.append(chunk(1, 0, "first;")).await.unwrap();
    assert_eq!(logs.append(chunk(2, 3, "?")).await, Err(Refused::LogGap { expected: 0, given: 3 }.into()));
    assert_eq!(logs.append(chunk(2, 0, "second")).await, Ok(Logged { next_offset: 6, total: 12 }));
    let old = Refused::OldEpoch { job: JOB.to_string(), given: 1, current: 2 };
    assert_eq!(logs.append(chunk(1, 6, "zombie")).await, Err(old.into()));
    assert_eq!(text(&w.store, 0).await.0, "first;second");
    assert_eq!(logs.reached(JOB, 3).await, Ok(Logged { next_offset: 0, total: 12 }));
}

/// After the loss of the database a runner has what comes from some byte on.
pub async fn a_log_whose_beginning_is_lost_says_from_which_byte_it_is(w: &World) {
    let logs = w.store.logs();
    let note = "[remuda: bytes 0 to 1000 of the log were lost with the database]\n";
    for _ in 0..2 {
        logs.begin_at(JOB, 3, 1000).await.unwrap();
        assert_eq!(text(&w.store, 0).await, (note.to_owned(), note.len() as i64, false));
    }
    let reached = Logged { next_offset: 1000, total: note.len() as i64 };
    assert_eq!(logs.reached(JOB, 3).await, Ok(reached), "its runner is asked for what comes then");
    assert_eq!(logs.append(chunk(3, 999, "!")).await.unwrap().next_offset, 1000, "what is before it is lost");
    assert_eq!(logs.append(chunk(3, 1001, "!")).await, Err(Refused::LogGap { expected: 1000, given: 1001 }.into()));
    let total = note.len() as i64 + 5;
    assert_eq!(logs.append(chunk(3, 1000, "later")).await, Ok(Logged { next_offset: 1005, total }));
    // Too late, or of an epoch that is over: what is there stays.
    logs.begin_at(JOB, 3, 1002).await.unwrap();
    logs.begin_at(JOB, 2, 5000).await.unwrap();
    assert_eq!(text(&w.store, 0).await, (format!("{note}later"), total, false));
    logs.seal(JOB, 0).await.unwrap();
    logs.begin_at(JOB, 3, 9000).await.unwrap();
    assert_eq!(text(&w.store, 0).await, (format!("{note}later"), total, true));
}

/// A log in rows and in a file.
async fn gathered(w: &World, lines: usize) -> (String, i64, bool) {
    let logs = w.store.logs();
    let mut offset = 0;
    for i in 0..lines {
        let line = format!("line {i} of many, with enough words to be worth something\n");
        offset = logs.append(chunk(1, offset, &line)).await.unwrap().next_offset;
    }
    logs.seal(JOB, 0).await.unwrap();
    let before = text(&w.store, 0).await;
    assert_eq!(before.0.len() as i64, offset);
    logs.gather(OrgId(1), JOB).await.unwrap();
    logs.gather(OrgId(1), JOB).await.unwrap();
    assert_eq!(text(&w.store, 0).await, before, "from rows, although the file is there");
    before
}

/// PostgreSQL has a clock of its own: there the log becomes older instead.
async fn pass(w: &World, ms: i64) {
    const OLDER: Sql = Sql::new("UPDATE log_heads SET kept_from = kept_from - $1");
    match w.on {
        On::Postgres => drop(write(&w.store, move |tx| tx.exec(&OLDER, &args![ms])).await.unwrap()),
        _ => w.clock.advance(ms),
    }
}

async fn old(w: &World) -> Vec<(LogId, bool)> {
    let (old, _) = w.store.logs().old(HOT_MS, KEEP_MS, 10).await.unwrap();
    old.into_iter().map(|log| (log.log, log.deleted)).collect()
}

const HOT_MS: i64 = HOUR;
const KEEP_MS: i64 = 3 * HOUR;

pub async fn a_log_reads_the_same_after_it_was_gathered(w: &World) {
    let (logs, before) = (w.store.logs(), gathered(w, 300).await);
    assert_eq!(old(w).await, [], "not within the hour");
    pass(w, 2 * HOUR).await;
    assert_eq!(old(w).await, [(JOB.into(), false)]);
    assert_eq!(logs.sweep(JOB).await, Ok(true));
    assert_eq!(text(&w.store, 0).await, before, "some rows are gone");
    while logs.sweep(JOB).await.unwrap() {}
    assert_eq!(text(&w.store, 0).await, before, "from the file");
    assert_eq!(text(&w.store, 100).await.0, before.0[100..]);
    assert_eq!(old(w).await, [], "there is nothing more to sweep");
}

pub async fn a_log_is_as_old_as_its_run_says(w: &World) {
    let (logs, _) = (w.store.logs(), gathered(w, 3).await);
    pass(w, 4 * HOUR).await;
    assert_eq!(old(w).await, [(JOB.into(), false)]);
    let (known, at) = logs.old(HOT_MS, KEEP_MS, 10).await.unwrap();
    logs.keep_from(vec![(JOB.into(), at - 2 * HOUR)]).await.unwrap();
    logs.keep_from(vec![(JOB.into(), known[0].kept_from)]).await.unwrap();
    let (known, _) = logs.old(HOT_MS, KEEP_MS, 10).await.unwrap();
    assert_eq!((known.len(), known[0].kept_from), (1, at - 2 * HOUR), "an earlier end is old news");
    logs.keep_from(vec![(JOB.into(), at)]).await.unwrap();
    assert_eq!(old(w).await, []);
}

pub async fn a_deleted_log_is_gone_with_a_mark(w: &World) {
    let (logs, before) = (w.store.logs(), gathered(w, 300).await);
    let name = BlobName::Log { org: OrgId(1), log: JOB.into() };
    assert_eq!(
        logs.deleted(vec![JOB.into(), JobId(77).into()]).await,
        Ok(vec![None]),
        "of one that said nothing there is nothing"
    );
    pass(w, 4 * HOUR).await;
    assert_eq!(old(w).await, [(JOB.into(), false)], "once, although its rows are old too");
    logs.mark_deleted(JOB).await.unwrap();
    assert_eq!(old(w).await, [(JOB.into(), true)], "a crash after the mark is taken up");
    let (told, end, done) = text(&w.store, 0).await;
    assert!(told.contains("was deleted") && done && end == before.1, "{told}");
    assert!(w.store.blobs().has(&name).unwrap());
    assert_eq!(logs.delete(OrgId(1), JOB).await, Ok(true));
    assert_eq!(old(w).await, [(JOB.into(), true)], "some rows are left");
    while logs.delete(OrgId(1), JOB).await.unwrap() {}
    assert!(!w.store.blobs().has(&name).unwrap());
    assert_eq!(old(w).await, []);
    assert_eq!(text(&w.store, 0).await, (told, end, true));
    assert_eq!(
        text(&w.store, before.1).await,
        (String::new(), before.1, true),
        "whoever had read it all is told nothing"
    );
    assert!(logs.deleted(vec![JOB.into()]).await.unwrap()[0].is_some());
    assert_eq!(logs.append(chunk(1, before.1, "late")).await.unwrap().total, before.1, "taken and dropped");
    logs.gather(OrgId(1), JOB).await.unwrap();
    assert!(!w.store.blobs().has(&name).unwrap(), "a gathering that is repeated brings nothing back");
}

/// The reader has the head of a log whose file goes before it is opened.
pub async fn a_log_that_is_deleted_under_its_reader_says_so(w: &World) {
    let (logs, before) = (w.store.logs(), gathered(w, 3).await);
    while logs.sweep(JOB).await.unwrap() {}
    w.store.blobs().delete(&BlobName::Log { org: OrgId(1), log: JOB.into() }).unwrap();
    assert!(logs.read(JOB, 0, 100).await.is_err(), "without a mark a missing file is trouble");
    logs.mark_deleted(JOB).await.unwrap();
    assert_eq!(text(&w.store, 5).await.1, before.1);
}

pub async fn a_log_over_its_quota_is_marked(w: &World) {
    let logs = w.store.logs();
    let (quota, half) = (w.options.log_quota_bytes, "x".repeat(60_000));
    logs.append(chunk(1, 0, &half)).await.unwrap();
    assert_eq!(logs.append(chunk(1, 60_000, &half)).await.unwrap().next_offset, 120_000, "the work goes on");
    assert_eq!(logs.append(chunk(1, 120_000, &half)).await.unwrap().next_offset, 180_000);
    logs.seal(JOB, 0).await.unwrap();
    let (text, end, done) = text(&w.store, 0).await;
    let (kept, mark) = text.split_at(quota as usize);
    assert!(kept.bytes().all(|byte| byte == b'x') && mark.contains("not kept"), "{mark}");
    assert!(done && end == 180_000);
}

pub async fn bytes_that_never_came_are_marked(w: &World) {
    w.store.logs().append(chunk(1, 0, "begun")).await.unwrap();
    w.store.logs().seal(JOB, 17).await.unwrap();
    let (text, end, done) = text(&w.store, 0).await;
    assert!(text.starts_with("begun") && text.contains("last 17 bytes") && done && end == 5, "{text}");
}

pub async fn frames_of_all_logs_of_a_run_have_one_order(w: &World) {
    let (logs, run) = (w.store.logs(), model::RunId(77));
    let of = |step: i64| LogId::Step(StepTry { id: StepId(step), number: 1 });
    let write = async |step: i64, offset: i64, text: &str| {
        logs.append_in_run(run, Chunk { log: of(step), ..chunk(1, offset, text) }).await.unwrap();
    };
    let mut hints = w.store.hints();
    write(501, 0, "one").await;
    while hints.recv().await.unwrap() != Hint::RunLogs(run) {}
    write(502, 0, "two").await;
    write(501, 0, "one").await; // sent twice
    write(501, 2, "e more").await; // overlapping
    let read = async |after: i64| {
        let frames = logs.read_run(run, after, 1 << 20).await.unwrap();
        let shown = |frame: &store::run_log::RunFrame| {
            let text = String::from_utf8(frame.placed.frame.data.clone()).unwrap();
            (frame.number, frame.log, frame.placed.offset, text)
        };
        frames.iter().map(shown).collect::<Vec<_>>()
    };
    let all =
        vec![(1, of(501), 0, "one".to_owned()), (2, of(502), 0, "two".to_owned()), (3, of(501), 3, " more".to_owned())];
    assert_eq!(read(0).await, all);
    assert_eq!(read(1).await, all[1..]);
    assert_eq!((read(3).await, logs.last_of_run(run).await.unwrap()), (vec![], 3));
    for step in [501, 502] {
        logs.seal(of(step), 0).await.unwrap();
        logs.gather(OrgId(1), of(step)).await.unwrap();
        while logs.sweep(of(step)).await.unwrap() {}
    }
    assert_eq!(read(0).await, all, "the same from the files");
    logs.mark_deleted(of(501)).await.unwrap();
    while logs.delete(OrgId(1), of(501)).await.unwrap() {}
    assert_eq!(read(0).await, all[1..2], "numbers of what is deleted go with it");
}
