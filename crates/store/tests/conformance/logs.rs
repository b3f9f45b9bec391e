//! Logs: exact, whole, the same from rows and from the file.

use crate::support::{On, World};
use crate::write;
use model::time::HOUR;
use model::{JobId, OrgId, Refused, Timestamp};
use store::log::{Chunk, Logged};
use store::{Frame, Hint, LogStream, Sql, Store, args};

const JOB: JobId = JobId(5);

fn chunk(epoch: i64, offset: i64, text: &str) -> Chunk {
    Chunk {
        job: JOB,
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
    while hints.recv().await.unwrap() != Hint::Logs(JOB) {}
    assert_eq!(logs.seal(JOB, 0).await, Ok(12));
    assert!(text(&w.store, 0).await.2);
    assert_eq!(logs.append(chunk(1, 12, "late")).await, Ok(Logged { next_offset: 16, total: 12 }), "taken and dropped");
    assert_eq!(text(&w.store, 0).await.0, "hello world!");
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

pub async fn a_log_reads_the_same_after_it_was_gathered(w: &World) {
    const GATHERED_LONG_AGO: Sql = Sql::new("UPDATE log_heads SET gathered_at = gathered_at - $1");
    let logs = w.store.logs();
    let mut offset = 0;
    for i in 0..300 {
        let line = format!("line {i} of many, with enough words to be worth something\n");
        offset = logs.append(chunk(1, offset, &line)).await.unwrap().next_offset;
    }
    logs.seal(JOB, 0).await.unwrap();
    let before = text(&w.store, 0).await;
    assert_eq!(before.0.len() as i64, offset);
    logs.gather(OrgId(1), JOB).await.unwrap();
    logs.gather(OrgId(1), JOB).await.unwrap();
    assert_eq!(text(&w.store, 0).await, before, "from rows, although the file is there");
    assert_eq!(logs.sweep().await, Ok(false), "not within the hour");
    if w.on == On::Postgres {
        write(&w.store, |tx| tx.exec(&GATHERED_LONG_AGO, &args![2 * HOUR])).await.unwrap();
    } else {
        w.clock.advance(2 * HOUR);
    }
    assert_eq!(logs.sweep().await, Ok(true));
    assert_eq!(text(&w.store, 0).await, before, "some rows are gone");
    while logs.sweep().await.unwrap() {}
    assert_eq!(text(&w.store, 0).await, before, "from the file");
    assert_eq!(text(&w.store, 100).await.0, before.0[100..]);
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
