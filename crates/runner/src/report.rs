//! What is told to the control plane: facts and output in one batch, repeated until acknowledged. One batch is on its
//! way at a time; the next leaves with the answer, so a busy job makes larger batches, not more of them.

use crate::job::{Job, Stage};
use crate::key::Key;
use crate::orders::KeeperOrder;
use std::collections::BTreeMap;
use std::time::Instant;
use wire::Base64;
use wire::runner::{Fact, Frame, LogChunk, ReportAnswer, ReportBatch, What};

/// Payload of a batch; base64 and JSON around it stay below the control plane's 1 MiB.
const MOST_OUTPUT: usize = 512 << 10;

/// What a batch carried, to settle its answer.
#[derive(Debug, Default)]
pub struct Sent {
    jobs: Vec<SentJob>,
}

#[derive(Debug)]
struct SentJob {
    key: Key,
    facts: usize,
    /// Whether output travelled, and from where.
    from: Option<i64>,
    ended: bool,
}

/// The next batch, or none when there is nothing to tell yet.
pub fn collect(jobs: &mut BTreeMap<Key, Job>, session: i64, now: Instant) -> Option<(ReportBatch, Sent)> {
    let mut batch =
        ReportBatch { session, facts: Vec::new(), logs: Vec::new(), durable_waits: crate::durable::waits() };
    let (mut sent, mut room, mut urgent) = (Sent::default(), MOST_OUTPUT, false);
    let newest: BTreeMap<_, _> = jobs.keys().map(|key| (key.job, key.epoch)).collect();
    for job in jobs.values_mut().filter(|job| !job.refused) {
        // Offsets are answered by job: an epoch that was replaced has no say in them.
        let is_newest = newest.get(&job.key.job) == Some(&job.key.epoch);
        let chunk = if is_newest { next_chunk(job, &mut room) } else { Chunk::default() };
        let mut facts: Vec<Fact> = ready_facts(job, &chunk).cloned().collect();
        date_the_end(job, &mut facts);
        if facts.is_empty() && chunk.log.is_none() {
            continue;
        }
        let ended = facts.iter().any(|fact| matches!(fact.what, What::Ended { .. }));
        urgent |= chunk.log.is_some() || ended || job.company_until.is_none_or(|until| until <= now);
        let from = chunk.log.as_ref().map(|log| log.offset);
        sent.jobs.push(SentJob { key: job.key, facts: facts.len(), from, ended });
        batch.facts.extend(facts);
        batch.logs.extend(chunk.log);
    }
    urgent.then_some((batch, sent))
}

#[derive(Default)]
struct Chunk {
    log: Option<LogChunk>,
    /// Whether with this chunk all output has been sent, or the rest can never be.
    last: bool,
}

fn next_chunk(job: &mut Job, room: &mut usize) -> Chunk {
    let final_offset = job.ended.as_ref().map(|ended| ended.final_offset);
    if matches!(job.stage, Stage::Kept(_)) && !job.told_started {
        return Chunk::default(); // its keeper is about to say so, and output comes after the start
    }
    let Some(output) = &mut job.output else { return Chunk { log: None, last: true } };
    output.reader.seek(output.delivered);
    let pieces = match output.reader.read(*room) {
        Ok(pieces) => pieces,
        Err(error) => {
            tracing::error!(job = %job.key, %error, "output cannot be read");
            Vec::new()
        }
    };
    let read_to = output.reader.offset();
    if pieces.is_empty() {
        // Nothing more on disk: the end, or a control plane that wants what is long delivered and gone.
        output.rest_is_gone = *room > 0 && final_offset.is_some_and(|end| output.delivered < end);
        return Chunk { log: None, last: *room > 0 };
    }
    *room = room.saturating_sub((read_to - output.delivered) as usize);
    let frames = pieces
        .into_iter()
        .map(|piece| Frame { stream: piece.stream, at_ms: piece.at_ms, data: Base64(piece.bytes) })
        .collect();
    let log = LogChunk { job: job.key.job, epoch: job.key.epoch, offset: output.delivered, frames };
    Chunk { log: Some(log), last: final_offset.is_some_and(|end| read_to >= end) }
}

/// The end is told with the last of the output or after it, never before.
fn ready_facts<'a>(job: &'a Job, chunk: &Chunk) -> impl Iterator<Item = &'a Fact> {
    let last = chunk.last;
    job.facts.iter().take_while(move |fact| last || !matches!(fact.what, What::Ended { .. }))
}

/// Says how long ago the job ended. A clock that was set back says nothing.
fn date_the_end(job: &Job, facts: &mut [Fact]) {
    let Some(ended) = &job.ended else { return };
    for fact in facts {
        if let What::Ended { ended_ago_ms, .. } = &mut fact.what {
            *ended_ago_ms = (crate::clock::wall_ms() - ended.at_ms).max(0);
        }
    }
}

/// Settles an answer. Returns the jobs the control plane disowns, and whether anything moved on.
pub fn settle(jobs: &mut BTreeMap<Key, Job>, sent: &Sent, answer: &ReportAnswer) -> (Vec<Key>, bool) {
    let mut moved = false;
    for told in &sent.jobs {
        let Some(job) = jobs.get_mut(&told.key) else { continue };
        moved |= told.facts > 0;
        job.facts.drain(..told.facts.min(job.facts.len()));
        job.reported |= told.ended;
        job.company_until = None;
        let (Some(from), Some(output)) = (told.from, &mut job.output) else { continue };
        if let Some(durable) = answer.log_offsets.get(&told.key.job).copied() {
            moved |= durable != from;
            output.delivered = durable;
            job.order(KeeperOrder::Delivered { offset: durable });
        }
    }
    let mut disowned: Vec<Key> =
        answer.refused.iter().map(|refused| Key { job: refused.job, epoch: refused.epoch }).collect();
    disowned.retain(|key| jobs.get(key).is_some_and(|job| !job.refused));
    disowned.dedup();
    (disowned, moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitRecord;
    use crate::spool::{self, Writer};
    use std::time::Duration;
    use wire::model::JobId;
    use wire::runner::{RefusedFact, Stream};

    const KEY: Key = Key { job: JobId(1), epoch: 1 };

    fn job_with_output(dir: &std::path::Path, bytes: usize) -> BTreeMap<Key, Job> {
        spool::prepare(dir).unwrap();
        let mut writer = Writer::open(dir, 1 << 30).unwrap();
        writer.append(Stream::Stdout, 1, &vec![b'x'; bytes]).unwrap();
        let mut job = Job::new(KEY, None, Stage::Ended);
        job.output_in(dir);
        job.tell(What::Accepted);
        job.tell_started();
        job.ended = Some(ExitRecord { final_offset: bytes as i64, ..ExitRecord::default() });
        let end = job.end_fact().unwrap();
        job.tell(end);
        BTreeMap::from([(KEY, job)])
    }

    fn answer(offset: i64) -> ReportAnswer {
        ReportAnswer { log_offsets: BTreeMap::from([(KEY.job, offset)]), refused: vec![], session_current: true }
    }

    #[test]
    fn the_end_travels_with_the_last_output() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = job_with_output(dir.path(), 1_200_000);
        let (mut offset, mut batches) = (0, 0);
        loop {
            let (batch, sent) = collect(&mut jobs, 7, Instant::now()).unwrap();
            batches += 1;
            let log = &batch.logs[0];
            assert_eq!(log.offset, offset);
            offset += log.frames.iter().map(|frame| frame.data.0.len() as i64).sum::<i64>();
            settle(&mut jobs, &sent, &answer(offset));
            let ended = batch.facts.iter().any(|fact| matches!(fact.what, What::Ended { .. }));
            assert_eq!(ended, offset == 1_200_000);
            if ended {
                break;
            }
        }
        assert!((3..=4).contains(&batches), "{batches}");
        assert!(jobs[&KEY].is_delivered());
        assert!(collect(&mut jobs, 7, Instant::now()).is_none());
    }

    #[test]
    fn what_was_not_acknowledged_is_told_again_and_what_arrived_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut jobs = job_with_output(dir.path(), 100);
        let (first, _lost) = collect(&mut jobs, 7, Instant::now()).unwrap();
        let (again, sent) = collect(&mut jobs, 8, Instant::now()).unwrap();
        assert_eq!(first.facts.len(), again.facts.len());
        assert_eq!((first.logs[0].offset, again.logs[0].offset), (0, 0));
        settle(&mut jobs, &sent, &answer(40));
        let (rest, _) = collect(&mut jobs, 8, Instant::now()).unwrap();
        assert_eq!((rest.facts.len(), rest.logs[0].offset), (0, 40));
        assert_eq!(rest.logs[0].frames[0].data.0.len(), 60);
    }

    #[test]
    fn first_facts_wait_a_moment_for_company() {
        let mut job = Job::new(KEY, None, Stage::Over);
        job.tell(What::Accepted);
        let now = Instant::now();
        job.company_until = Some(now + Duration::from_millis(3));
        let mut jobs = BTreeMap::from([(KEY, job)]);
        assert!(collect(&mut jobs, 1, now).is_none());
        assert!(collect(&mut jobs, 1, now + Duration::from_millis(3)).is_some());
    }

    #[test]
    fn a_disowned_job_is_named_once() {
        let mut jobs = BTreeMap::from([(KEY, Job::new(KEY, None, Stage::Over))]);
        jobs.get_mut(&KEY).unwrap().tell(What::Accepted);
        let (_, sent) = collect(&mut jobs, 1, Instant::now()).unwrap();
        let refused = RefusedFact { job: KEY.job, epoch: 1, code: "old_epoch".to_owned(), message: String::new() };
        let answer = ReportAnswer { refused: vec![refused.clone(), refused], ..answer(0) };
        assert_eq!(settle(&mut jobs, &sent, &answer).0, [KEY]);
    }
}
