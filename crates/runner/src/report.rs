//! Reports to the control plane: facts and output in one batch, repeated until acknowledged. One batch is in flight at a
//! time; the next is sent when the answer arrives, so a busy job makes larger batches, not more of them.

use crate::job::Job;
use crate::key::{JobKey, Key};
use crate::orders::KeeperOrder;
use crate::step::{Stage, Step};
use std::collections::BTreeMap;
use std::time::Instant;
use wire::Base64;
use wire::runner::{Fact, Frame, LogChunk, LogReach, Output, ReportAnswer, ReportBatch, What};

/// Payload of a batch; base64 and JSON around it stay below the control plane's 1 MiB.
const MOST_OUTPUT: usize = 512 << 10;

/// What a batch carried, to settle its answer.
#[derive(Debug, Default)]
pub struct Sent {
    /// Each with how many of its facts.
    jobs: Vec<(JobKey, usize)>,
    steps: Vec<SentStep>,
}

#[derive(Debug)]
struct SentStep {
    key: Key,
    facts: usize,
    /// Whether output travelled, and from where.
    from: Option<i64>,
    ended: bool,
}

/// The next batch, or none when there is nothing to tell yet. Of each job first what concerns all of it, then its steps.
pub fn collect(
    jobs: &mut BTreeMap<JobKey, Job>,
    steps: &mut BTreeMap<Key, Step>,
    session: i64,
    now: Instant,
) -> Option<(ReportBatch, Sent)> {
    let mut batch =
        ReportBatch { session, facts: Vec::new(), logs: Vec::new(), durable_waits: crate::durable::waits() };
    let (mut sent, mut room, mut urgent) = (Sent::default(), MOST_OUTPUT, false);
    for job in jobs.values_mut().filter(|job| !job.refused) {
        let alone = job.company_until.is_none_or(|until| until <= now);
        if !job.facts.is_empty() {
            sent.jobs.push((job.key, job.facts.len()));
            batch.facts.extend(job.facts.iter().cloned());
            urgent |= alone;
        }
        for (_, step) in steps.range_mut(job.key.steps()).filter(|(_, step)| !step.refused && !step.is_server()) {
            let chunk = next_chunk(step, &mut room);
            let mut facts: Vec<Fact> = ready_facts(step, &chunk).cloned().collect();
            date_the_end(step, &mut facts);
            if !make_room(&mut room, &facts) {
                facts.retain(|fact| !matches!(fact.what, What::Ended { .. })); // with the next batch
            }
            if facts.is_empty() && chunk.log.is_none() {
                continue;
            }
            let ended = facts.iter().any(|fact| matches!(fact.what, What::Ended { .. }));
            urgent |= chunk.log.is_some() || ended || alone;
            let from = chunk.log.as_ref().map(|log| log.offset);
            sent.steps.push(SentStep { key: step.key, facts: facts.len(), from, ended });
            batch.facts.extend(facts);
            batch.logs.extend(chunk.log);
        }
    }
    urgent.then_some((batch, sent))
}

#[derive(Default)]
struct Chunk {
    log: Option<LogChunk>,
    /// Whether with this chunk all output has been sent, or the rest can never be.
    last: bool,
}

fn next_chunk(step: &mut Step, room: &mut usize) -> Chunk {
    let final_offset = step.ended.as_ref().map(|ended| ended.final_offset);
    if matches!(step.stage, Stage::Kept(_)) && !step.told_started {
        return Chunk::default(); // its keeper is about to say so, and output comes after the start
    }
    let Some(output) = &mut step.output else { return Chunk { log: None, last: true } };
    output.reader.seek(output.delivered);
    let pieces = match output.reader.read(*room) {
        Ok(pieces) => pieces,
        Err(error) => {
            tracing::error!(step = %step.key, %error, "output cannot be read");
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
    let log = LogChunk {
        job: step.key.of.job,
        epoch: step.key.of.epoch,
        step: step.key.step,
        offset: output.delivered,
        frames,
    };
    Chunk { log: Some(log), last: final_offset.is_some_and(|end| read_to >= end) }
}

/// The end is told with the last of the output or after it, never before.
fn ready_facts<'a>(step: &'a Step, chunk: &Chunk) -> impl Iterator<Item = &'a Fact> {
    let last = chunk.last;
    step.facts.iter().take_while(move |fact| last || !matches!(fact.what, What::Ended { .. }))
}

/// What travels with an end takes room too: as text in text, twice its length at most.
fn make_room(room: &mut usize, facts: &[Fact]) -> bool {
    let length = |fact: &Fact| match &fact.what {
        What::Ended { output: Some(Output::Json(json)), .. } => 2 * json.len(),
        _ => 0,
    };
    let needed: usize = facts.iter().map(length).sum();
    let fits = needed <= *room;
    *room -= if fits { needed } else { 0 };
    fits
}

/// Says how long ago the step ended. A clock that was set back says nothing.
fn date_the_end(step: &Step, facts: &mut [Fact]) {
    let Some(ended) = &step.ended else { return };
    for fact in facts {
        if let What::Ended { ended_ago_ms, .. } = &mut fact.what {
            *ended_ago_ms = (crate::clock::wall_ms() - ended.at_ms).max(0);
        }
    }
}

/// Settles an answer; whether anything moved on. What the control plane refuses is not looked at here.
pub fn settle(
    jobs: &mut BTreeMap<JobKey, Job>,
    steps: &mut BTreeMap<Key, Step>,
    sent: &Sent,
    answer: &ReportAnswer,
) -> bool {
    let mut moved = false;
    for (key, facts) in &sent.jobs {
        let Some(job) = jobs.get_mut(key) else { continue };
        moved = true;
        job.facts.drain(..(*facts).min(job.facts.len()));
        job.company_until = None;
    }
    for told in &sent.steps {
        if let Some(job) = jobs.get_mut(&told.key.of) {
            job.company_until = None;
        }
        let Some(step) = steps.get_mut(&told.key) else { continue };
        moved |= told.facts > 0;
        step.facts.drain(..told.facts.min(step.facts.len()));
        step.reported |= told.ended;
        let (Some(from), Some(output)) = (told.from, &mut step.output) else { continue };
        if let Some(durable) = reached(answer, told.key) {
            moved |= durable != from;
            output.delivered = durable;
            step.order(KeeperOrder::Delivered { offset: durable });
        }
    }
    moved
}

fn reached(answer: &ReportAnswer, key: Key) -> Option<i64> {
    let of = |reach: &&LogReach| (reach.job, reach.epoch, reach.step) == (key.of.job, key.of.epoch, key.step);
    answer.log_offsets.iter().find(of).map(|reach| reach.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitRecord;
    use crate::spool::{self, Writer};
    use std::time::Duration;
    use wire::model::step::StepTry;
    use wire::model::{JobId, StepId};
    use wire::runner::Stream;

    const JOB: JobKey = JobKey { job: JobId(1), epoch: 1 };
    const KEY: Key = Key { of: JOB, step: StepTry { id: StepId(1), number: 1 } };

    type Jobs = BTreeMap<JobKey, Job>;
    type Steps = BTreeMap<Key, Step>;

    fn with_output(dir: &std::path::Path, bytes: usize) -> (Jobs, Steps) {
        spool::prepare(dir).unwrap();
        let mut writer = Writer::open(dir, 1 << 30).unwrap();
        writer.append(Stream::Stdout, 1, &vec![b'x'; bytes]).unwrap();
        let (mut job, mut step) = (Job::new(JOB), Step::new(KEY, None, Stage::Ended));
        step.output_in(dir);
        job.tell(What::Accepted);
        step.tell_started(None);
        step.ended = Some(ExitRecord { final_offset: bytes as i64, ..ExitRecord::default() });
        let end = step.end_fact().unwrap();
        step.tell(end);
        (BTreeMap::from([(JOB, job)]), BTreeMap::from([(KEY, step)]))
    }

    fn answer(offset: i64) -> ReportAnswer {
        let reach = LogReach { job: JOB.job, epoch: JOB.epoch, step: KEY.step, offset };
        ReportAnswer { log_offsets: vec![reach], refused: vec![], session_current: true }
    }

    #[test]
    fn the_end_travels_with_the_last_output() {
        let dir = tempfile::tempdir().unwrap();
        let (mut jobs, mut steps) = with_output(dir.path(), 1_200_000);
        let (mut offset, mut batches) = (0, 0);
        loop {
            let (batch, sent) = collect(&mut jobs, &mut steps, 7, Instant::now()).unwrap();
            batches += 1;
            let log = &batch.logs[0];
            assert_eq!(log.offset, offset);
            offset += log.frames.iter().map(|frame| frame.data.0.len() as i64).sum::<i64>();
            settle(&mut jobs, &mut steps, &sent, &answer(offset));
            let ended = batch.facts.iter().any(|fact| matches!(fact.what, What::Ended { .. }));
            assert_eq!(ended, offset == 1_200_000);
            if ended {
                break;
            }
        }
        assert!((3..=4).contains(&batches), "{batches}");
        assert!(steps[&KEY].is_delivered());
        assert!(collect(&mut jobs, &mut steps, 7, Instant::now()).is_none());
    }

    #[test]
    fn what_was_not_acknowledged_is_told_again_and_what_arrived_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (mut jobs, mut steps) = with_output(dir.path(), 100);
        let (first, _lost) = collect(&mut jobs, &mut steps, 7, Instant::now()).unwrap();
        let (again, sent) = collect(&mut jobs, &mut steps, 8, Instant::now()).unwrap();
        assert_eq!(first.facts.len(), again.facts.len());
        assert_eq!((first.logs[0].offset, again.logs[0].offset), (0, 0));
        settle(&mut jobs, &mut steps, &sent, &answer(40));
        let (rest, _) = collect(&mut jobs, &mut steps, 8, Instant::now()).unwrap();
        assert_eq!((rest.facts.len(), rest.logs[0].offset), (0, 40));
        assert_eq!(rest.logs[0].frames[0].data.0.len(), 60);
    }

    #[test]
    fn first_facts_wait_a_moment_for_company() {
        let mut job = Job::new(JOB);
        job.tell(What::Accepted);
        let now = Instant::now();
        job.company_until = Some(now + Duration::from_millis(3));
        let (mut jobs, mut steps) = (BTreeMap::from([(JOB, job)]), BTreeMap::new());
        assert!(collect(&mut jobs, &mut steps, 1, now).is_none());
        assert!(collect(&mut jobs, &mut steps, 1, now + Duration::from_millis(3)).is_some());
    }

    #[test]
    fn the_end_of_one_step_does_not_wait_for_the_output_of_another() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mut jobs, mut steps) = with_output(one.path(), 1_200_000);
        let (_, mut other) = with_output(two.path(), 10);
        let mut other = other.remove(&KEY).unwrap();
        other.key = JOB.step(StepTry { id: StepId(2), number: 1 });
        other.facts.iter_mut().for_each(|fact| fact.step = Some(other.key.step));
        steps.insert(other.key, other);
        let (first, sent) = collect(&mut jobs, &mut steps, 7, Instant::now()).unwrap();
        assert_eq!(first.logs.len(), 1, "no room for the second yet");
        settle(&mut jobs, &mut steps, &sent, &answer(1_200_000));
        let (second, _) = collect(&mut jobs, &mut steps, 7, Instant::now()).unwrap();
        let ended: Vec<_> = second.facts.iter().filter(|fact| matches!(fact.what, What::Ended { .. })).collect();
        assert_eq!(ended.len(), 2);
        assert_eq!((second.logs.len(), second.logs[0].step.id), (1, StepId(2)));
    }
}
