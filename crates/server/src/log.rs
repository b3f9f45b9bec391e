//! A run's log: frames by job and offset, exact bytes, from any place, to the end of the run.

use crate::Shared;
use crate::auth::Reader;
use crate::follow::{Feed, Left, stream};
use crate::hub::{Bell, Hub};
use crate::input::last_event_id;
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Path, Query, id};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse;
use engine::Hint;
use engine::log::Page;
use engine::log::{Frame, LogStream, Placed};
use model::job::Job;
use model::run::Run;
use model::spec::RunKind;
use model::{Failure, JobId, OrgId, Refused, RunId, StepId, bug};
use serde::Deserialize;
use std::collections::BTreeSet;
use wire::Base64;
use wire::api::{LogAttempt, LogEnd, LogFrame};

pub(crate) const PAGE_BYTES: i64 = 256 * 1024;
/// One frame over the wire.
pub(crate) const FRAME_BYTES: usize = 64 * 1024;

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// Only this stream.
    stream: Option<String>,
    /// Only of this job.
    job: Option<String>,
    /// Only of this step.
    step: Option<String>,
    /// Only the last lines of the newest job, or of a run of agents.
    #[param(minimum = 0)]
    tail: Option<u64>,
    /// Only what was written since then, in Unix milliseconds.
    since_ms: Option<i64>,
    /// Go on until the run ends (the usual way), or end with what is there.
    follow: Option<bool>,
}

pub(crate) struct Filter {
    pub(crate) stream: Option<LogStream>,
    job: Option<JobId>,
    pub(crate) step: Option<StepId>,
    pub(crate) since_ms: i64,
    pub(crate) follow: bool,
}

impl Filter {
    pub(crate) fn wants(&self, frame: &Frame) -> bool {
        self.stream.is_none_or(|wanted| wanted == frame.stream) && frame.at.ms() >= self.since_ms
    }
}

pub(crate) async fn logs(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> HandlerResult {
    let (run, org): (RunId, OrgId) = (id("run", &run)?, reader.org());
    let mut filter = Filter {
        stream: wanted.stream.as_deref().map(stream_named).transpose()?,
        job: wanted.job.as_deref().map(|job| id("job", job)).transpose()?,
        step: wanted.step.as_deref().map(|step| id("step", step)).transpose()?,
        since_ms: wanted.since_ms.unwrap_or(i64::MIN),
        follow: wanted.follow.unwrap_or(true),
    };
    let seen = state.engine.run(org, run).await?;
    if let Some(called) = &seen.call {
        return crate::call_log::logs(&state, (&seen, called), filter, wanted.tail, &headers).await;
    }
    if seen.spec.kind == RunKind::Agents {
        return crate::run_log::logs(&state, &seen, filter, wanted.tail, &headers).await;
    }
    let (seen, jobs) = state.engine.jobs(org, run).await?;
    if let Some(step) = filter.step {
        let of = jobs.iter().rfind(|job| job.step.is_some_and(|of| of.id == step));
        filter.job = Some(of.ok_or_else(|| Refused::not_found("step", step))?.id);
    }
    let wanted_jobs = jobs.iter().map(|job| job.id).filter(|job| filter.job.is_none_or(|only| only == *job));
    state.engine.log_is_kept(&seen, wanted_jobs.collect()).await?;
    let told = last_event_id(&headers, "<job>:<offset>, joined by commas", Cursor::parse)?;
    let mut cursor = told.unwrap_or_default();
    if let Some(lines) = wanted.tail.filter(|_| cursor.0.is_empty()) {
        let lines = usize::try_from(lines).unwrap_or(usize::MAX);
        cursor = tail(&state, &jobs, &filter, lines).await?;
    }
    Ok(stream(&state, move |state, feed| async move {
        if let Err(Some(failure)) = follow(&state, &feed, org, run, &filter, cursor).await {
            tracing::warn!(%failure, %run, "a log stream ended early");
        }
    }))
}

/// How far the follower has each job's log: `<job>:<offset>`, joined by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cursor(Vec<(JobId, i64)>);

impl Cursor {
    pub(crate) fn parse(text: &str) -> Option<Cursor> {
        let one = |part: &str| {
            let (job, offset) = part.split_once(':')?;
            let offset: i64 = offset.parse().ok()?;
            (offset >= 0).then_some((job.parse().ok()?, offset))
        };
        text.split(',').map(one).collect::<Option<_>>().map(Cursor)
    }
    fn of(&self, job: JobId) -> i64 {
        self.0.iter().find(|(id, _)| *id == job).map_or(0, |(_, offset)| *offset)
    }
    fn advance(&mut self, job: JobId, to: i64) {
        match self.0.iter_mut().find(|(id, _)| *id == job) {
            Some((_, offset)) => *offset = to,
            None => self.0.push((job, to)),
        }
    }
    fn text(&self) -> String {
        self.0.iter().map(|(job, offset)| format!("{job}:{offset}")).collect::<Vec<_>>().join(",")
    }
}

pub(crate) enum Stopped {
    Left,
    Failed(Failure),
}
impl From<Left> for Stopped {
    fn from(_: Left) -> Stopped {
        Stopped::Left
    }
}
impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Failed(failure)
    }
}

/// Where a run and the logs of its jobs are looked up.
trait Desk: Sync {
    fn log_state(&self) -> impl Future<Output = Result<LogState, Failure>> + Send;
    fn read(&self, job: JobId, from: i64) -> impl Future<Output = Result<Page, Failure>> + Send;
}

/// A run as it was when it was last read.
struct LogState {
    version: i64,
    jobs: Vec<SeenJob>,
    max_attempts: i64,
    has_ended: bool,
    end: LogEnd,
}

struct SeenJob {
    id: JobId,
    attempt: i64,
    has_ended: bool,
}

impl LogState {
    /// Of a run that does not exist yet.
    fn none() -> LogState {
        let end = LogEnd { status: String::new(), exit_code: None, cut: false };
        LogState { version: 0, jobs: Vec::new(), max_attempts: 1, has_ended: false, end }
    }

    fn new(run: &Run, jobs: &[Job]) -> LogState {
        let cut = jobs.iter().any(|job| job.log_cut);
        LogState {
            version: run.version,
            jobs: jobs
                .iter()
                .map(|job| SeenJob { id: job.id, attempt: job.attempt, has_ended: job.status.is_end() })
                .collect(),
            max_attempts: run.max_attempts,
            has_ended: run.status.is_end(),
            end: LogEnd { status: run.status.to_string(), exit_code: run.exit_code, cut },
        }
    }
}

struct RunDesk<'a> {
    state: &'a Shared,
    org: OrgId,
    run: RunId,
    /// Its row may come later: until then it has no jobs.
    may_come: bool,
}

impl Desk for RunDesk<'_> {
    async fn log_state(&self) -> Result<LogState, Failure> {
        match self.state.engine.jobs(self.org, self.run).await {
            Ok((run, jobs)) => Ok(LogState::new(&run, &jobs)),
            Err(Failure::Refused(Refused::NotFound { .. })) if self.may_come => Ok(LogState::none()),
            Err(failure) => Err(failure),
        }
    }
    async fn read(&self, job: JobId, from: i64) -> Result<Page, Failure> {
        self.state.engine.logs.read(job, from, PAGE_BYTES).await
    }
}

async fn follow(
    state: &Shared,
    feed: &Feed,
    org: OrgId,
    run: RunId,
    filter: &Filter,
    cursor: Cursor,
) -> Result<(), Option<Failure>> {
    let desk = RunDesk { state, org, run, may_come: false };
    match tell(&desk, &state.hub, feed, run, filter, cursor).await {
        Ok(()) | Err(Stopped::Left) => Ok(()),
        Err(Stopped::Failed(failure)) => Err(Some(failure)),
    }
}

/// The log of a run that executes a call for others, from its first job to its end. The end itself is not told.
pub(crate) async fn tell_backend(
    state: &Shared,
    feed: &Feed,
    org: OrgId,
    run: RunId,
    filter: &Filter,
    cursor: Cursor,
) -> Result<(), Stopped> {
    let desk = RunDesk { state, org, run, may_come: true };
    tell_jobs(&desk, &state.hub, feed, run, filter, cursor).await.map(drop)
}

async fn tell(
    desk: &impl Desk,
    hub: &Hub,
    feed: &Feed,
    run: RunId,
    filter: &Filter,
    cursor: Cursor,
) -> Result<(), Stopped> {
    let end = tell_jobs(desk, hub, feed, run, filter, cursor).await?;
    tell_end(feed, &end).await
}

async fn tell_jobs(
    desk: &impl Desk,
    hub: &Hub,
    feed: &Feed,
    run: RunId,
    filter: &Filter,
    mut cursor: Cursor,
) -> Result<LogEnd, Stopped> {
    // Subscribed before the first read: a change during a read rings the bell afterwards.
    let mut bell = hub.follow(Hint::Run(run));
    let (mut complete, mut attempt) = (BTreeSet::new(), 1);
    'look: loop {
        // The state first, the bytes second: what is complete by this state is complete in the log.
        let state = desk.log_state().await?;
        if bug!(listens_after_looking) {
            bell = hub.follow(Hint::Run(run));
        }
        let wanted = |job: &&SeenJob| filter.job.is_none_or(|id| id == job.id) && !complete.contains(&job.id);
        for job in state.jobs.iter().filter(wanted).collect::<Vec<_>>() {
            if job.attempt > attempt {
                attempt = job.attempt;
                tell_attempt(feed, attempt, state.max_attempts).await?;
            }
            match tell_job(desk, hub, feed, filter, job, &mut bell, &mut cursor).await? {
                Told::Complete => drop(complete.insert(job.id)),
                Told::SoFar => {}
                Told::Changed => continue 'look,
            }
        }
        let news = desk.log_state().await?;
        let same = news.version == state.version && news.jobs.len() == state.jobs.len();
        if (state.has_ended && same) || !filter.follow {
            return Ok(state.end);
        }
        if same && !feed.wait(bell.rung()).await {
            return Err(Stopped::Left);
        }
    }
}

enum Told {
    /// Nothing more comes, ever.
    Complete,
    /// As far as it is stored: its job has ended, or the client does not follow.
    SoFar,
    /// Something about the run has changed: what is known of it is no longer true, of this job or of another.
    Changed,
}

async fn tell_job(
    desk: &impl Desk,
    hub: &Hub,
    feed: &Feed,
    filter: &Filter,
    job: &SeenJob,
    run: &mut Bell,
    cursor: &mut Cursor,
) -> Result<Told, Stopped> {
    let mut bytes = hub.follow(Hint::Logs(job.id.into()));
    loop {
        let from = cursor.of(job.id);
        let page = desk.read(job.id, from).await?;
        let empty = page.frames.is_empty();
        for placed in page.frames {
            tell_frame(feed, filter, job.id, placed, cursor).await?;
        }
        cursor.advance(job.id, page.next_offset);
        if page.done {
            return Ok(Told::Complete);
        }
        if empty && (job.has_ended || !filter.follow) {
            return Ok(Told::SoFar);
        }
        if empty {
            // The run is looked at only when it says that something has changed: more bytes are no such thing.
            let mut changed = false;
            let news = async {
                tokio::select! { () = bytes.rung() => {}, () = run.rung() => changed = true }
            };
            if !feed.wait(news).await {
                return Err(Stopped::Left);
            }
            if changed {
                return Ok(Told::Changed);
            }
        }
    }
}

async fn tell_frame(
    feed: &Feed,
    filter: &Filter,
    job: JobId,
    placed: Placed,
    cursor: &mut Cursor,
) -> Result<(), Stopped> {
    let mut offset = placed.offset;
    for piece in placed.frame.data.chunks(FRAME_BYTES) {
        let next = offset + piece.len() as i64;
        cursor.advance(job, next);
        if filter.wants(&placed.frame) {
            let frame = LogFrame {
                job: job.to_string(),
                step: None,
                number: None,
                stream: name_of(placed.frame.stream).to_owned(),
                offset,
                at: placed.frame.at.ms(),
                data: Base64(piece.to_vec()),
            };
            let data = serde_json::to_string(&frame).expect("a frame is plain data");
            feed.send(sse::Event::default().id(cursor.text()).event("log").data(data)).await?;
        }
        offset = next;
    }
    cursor.advance(job, placed.next);
    Ok(())
}

/// Without an id: where a follower goes on is said by frames alone.
pub(crate) async fn tell_attempt(feed: &Feed, attempt: i64, max_attempts: i64) -> Result<(), Stopped> {
    let data = serde_json::to_string(&LogAttempt { attempt, max_attempts }).expect("two numbers are plain data");
    Ok(feed.send(sse::Event::default().event("attempt").data(data)).await?)
}

pub(crate) async fn tell_end(feed: &Feed, end: &LogEnd) -> Result<(), Stopped> {
    let data = serde_json::to_string(end).expect("an end is plain data");
    Ok(feed.send(sse::Event::default().event("end").data(data)).await?)
}

/// Where the last `lines` lines of the newest job begin; earlier jobs are passed over.
async fn tail(state: &Shared, jobs: &[Job], filter: &Filter, lines: usize) -> Result<Cursor, Problem> {
    let mut cursor = Cursor::default();
    let mine: Vec<&Job> = jobs.iter().filter(|job| filter.job.is_none_or(|id| id == job.id)).collect();
    let Some((newest, earlier)) = mine.split_last() else { return Ok(cursor) };
    for job in earlier {
        cursor.advance(job.id, state.engine.logs.reached(job.id, job.epoch).await?.total);
    }
    let total = state.engine.logs.reached(newest.id, newest.epoch).await?.total;
    let mut back = if lines == 0 { 0 } else { 16 * 1024_i64 };
    loop {
        let from = (total - back).max(0);
        let (mut seen, mut at) = (Lines::default(), from);
        while at < total {
            let page = state.engine.logs.read(newest.id, at, PAGE_BYTES).await?;
            let wanted = page.frames.iter().filter(|p| filter.stream.is_none_or(|wanted| wanted == p.frame.stream));
            wanted.for_each(|placed| seen.add(placed));
            if page.next_offset <= at {
                break;
            }
            at = page.next_offset;
        }
        let begins = if lines == 0 { Some(total) } else { seen.last(lines) };
        if let Some(begins) = begins.or((from == 0).then_some(0)) {
            cursor.advance(newest.id, begins);
            return Ok(cursor);
        }
        back = back.saturating_mul(4);
    }
}

/// The lines of the wanted streams in a piece of a log, counted by where they end.
#[derive(Default)]
struct Lines {
    ends: Vec<i64>,
    /// Just after the last wanted byte: bytes of other streams may follow.
    end: Option<i64>,
}

impl Lines {
    fn add(&mut self, placed: &Placed) {
        let breaks = placed.frame.data.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        self.ends.extend(breaks.map(|(i, _)| (placed.offset + i as i64 + 1).min(placed.next)));
        self.end = Some(placed.next);
    }

    /// Where the last `count` lines begin, if all of them are here. A last line without an end is a line too.
    fn last(&self, count: usize) -> Option<i64> {
        let unfinished = usize::from(self.end.is_some() && self.ends.last() != self.end.as_ref());
        let before = self.ends.len().checked_sub(count.saturating_sub(unfinished).saturating_add(1))?;
        Some(self.ends[before])
    }
}

pub(crate) fn name_of(stream: LogStream) -> &'static str {
    match stream {
        LogStream::Stdout => "stdout",
        LogStream::Stderr => "stderr",
        LogStream::Runner => "runner",
    }
}

fn stream_named(name: &str) -> Result<LogStream, Problem> {
    match name {
        "stdout" => Ok(LogStream::Stdout),
        "stderr" => Ok(LogStream::Stderr),
        "runner" => Ok(LogStream::Runner),
        other => Err(Refused::invalid("stream", format!("`{other}` is none of stdout, stderr, runner")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use model::Timestamp;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::{mpsc, watch};

    /// A run that changes while each answer is on its way: what is answered was true when it was asked.
    struct Restless {
        hub: Hub,
        life: &'static [&'static [bool]],
        looks: AtomicUsize,
    }

    const RUN: RunId = RunId(7);

    impl Desk for Restless {
        async fn log_state(&self) -> Result<LogState, Failure> {
            let now = self.looks.fetch_add(1, Ordering::Relaxed).min(self.life.len() - 1);
            if now + 1 < self.life.len() {
                self.hub.ring(Hint::Run(RUN));
            }
            Ok(seen(now as i64, self.life[now]))
        }
        async fn read(&self, _: JobId, from: i64) -> Result<Page, Failure> {
            Ok(Page { frames: Vec::new(), next_offset: from, done: false })
        }
    }

    /// Of a run whose jobs have ended or not; it has when all of them have.
    fn seen(version: i64, jobs: &[bool]) -> LogState {
        let has_ended = !jobs.is_empty() && jobs.iter().all(|ended| *ended);
        let end = LogEnd { status: "completed".into(), exit_code: Some(0), cut: false };
        let jobs =
            jobs.iter().zip(1..).map(|(has_ended, n)| SeenJob { id: JobId(n), attempt: 1, has_ended: *has_ended });
        LogState { version, jobs: jobs.collect(), max_attempts: 3, has_ended, end }
    }

    #[test]
    fn nothing_that_changes_while_a_follower_looks_is_missed() {
        let filter = Filter { stream: None, job: None, step: None, since_ms: 0, follow: true };
        let lives: [&'static [&'static [bool]]; 3] =
            [&[&[false], &[true]], &[&[false], &[true, false], &[true, true]], &[&[], &[false], &[true]]];
        for life in lives {
            let desk = Restless { hub: Hub::default(), life, looks: AtomicUsize::new(0) };
            let ((pipe, mut told), (_closing, closing)) = (mpsc::channel(8), watch::channel(false));
            let feed = Feed::to(pipe, closing);
            let end = tell(&desk, &desk.hub, &feed, RUN, &filter, Cursor::default()).now_or_never();
            assert!(matches!(end, Some(Ok(()))), "it waits for what has happened: {life:?}");
            assert!(told.try_recv().is_ok() && told.try_recv().is_err(), "one end: {life:?}");
        }
    }

    #[test]
    fn every_further_attempt_is_told_before_its_frames() {
        struct Retried;
        impl Desk for Retried {
            async fn log_state(&self) -> Result<LogState, Failure> {
                let mut seen = seen(1, &[true, true, true]);
                for (job, attempt) in seen.jobs.iter_mut().zip([1, 2, 2]) {
                    job.attempt = attempt;
                }
                Ok(seen)
            }
            async fn read(&self, job: JobId, from: i64) -> Result<Page, Failure> {
                let frame = Frame { stream: LogStream::Stdout, at: Timestamp(0), data: job.to_string().into_bytes() };
                let frames = if from == 0 { vec![Placed { offset: 0, next: 5, frame }] } else { Vec::new() };
                Ok(Page { frames, next_offset: 5, done: from > 0 })
            }
        }
        let filter = Filter { stream: None, job: None, step: None, since_ms: 0, follow: true };
        let ((pipe, mut told), (_closing, closing)) = (mpsc::channel(8), watch::channel(false));
        let hub = Hub::default();
        let end = tell(&Retried, &hub, &Feed::to(pipe, closing), RUN, &filter, Cursor::default()).now_or_never();
        assert!(matches!(end, Some(Ok(()))));
        let mut kinds = Vec::new();
        while let Ok(event) = told.try_recv() {
            let text = format!("{event:?}");
            let kind = ["event: log", "event: attempt", "event: end"].into_iter().find(|kind| text.contains(kind));
            kinds.push(kind.unwrap_or_default());
        }
        assert_eq!(kinds, ["event: log", "event: attempt", "event: log", "event: log", "event: end"]);
    }

    fn lines(wanted: Option<LogStream>, frames: &[(LogStream, &str)]) -> Lines {
        let (mut lines, mut offset) = (Lines::default(), 0);
        for (stream, text) in frames {
            let next = offset + text.len() as i64;
            let frame = Frame { stream: *stream, at: Timestamp(0), data: text.as_bytes().to_vec() };
            if wanted.is_none_or(|wanted| wanted == *stream) {
                lines.add(&Placed { offset, next, frame });
            }
            offset = next;
        }
        lines
    }

    #[test]
    fn the_last_lines_of_a_stream_begin_where_the_one_before_them_ends() {
        use LogStream::{Stderr, Stdout};
        let log = [(Stdout, "a\nb\n"), (Stderr, "x\n"), (Stdout, "c\n"), (Stderr, "y"), (Stdout, "d")];
        let table = [
            (None, 1, Some(8)),
            (None, 2, Some(6)),
            (None, 3, Some(4)),
            (Some(Stdout), 1, Some(8)),
            (Some(Stdout), 2, Some(4)),
            (Some(Stderr), 1, Some(6)),
            (Some(Stderr), 2, None),
        ];
        for (wanted, count, begins) in table {
            assert_eq!(lines(wanted, &log).last(count), begins, "{count} of {wanted:?}");
        }
        // What other streams wrote behind the last line does not make it unfinished.
        let log = [(Stderr, "x\n"), (Stderr, "y\n"), (Stdout, "a\n")];
        assert_eq!(lines(Some(Stderr), &log).last(1), Some(2));
        assert_eq!(lines(None, &[]).last(1), None);
    }

    /// A log that was deleted is 410 and says why; the run is there as before.
    #[tokio::test]
    async fn a_deleted_log_is_gone_and_its_run_is_not() {
        use crate::hostile::World;
        use engine::store::log::Chunk;
        let world = World::new(true).await;
        let body = serde_json::json!({ "commands": ["true"], "start": true });
        let run = world.submit(&world.admin, body).await.body["id"].as_str().unwrap().to_owned();
        let id: RunId = run.parse().unwrap();
        let job = world.engine.jobs(world.org, id).await.unwrap().1[0].id;
        let frame = Frame { stream: LogStream::Stdout, at: Timestamp(0), data: b"hello".to_vec() };
        world.engine.logs.append(Chunk { log: job.into(), epoch: 1, offset: 0, frames: vec![frame] }).await.unwrap();
        world.engine.logs.seal(job, 0).await.unwrap();
        world.engine.logs.gather(world.org, job).await.unwrap();
        let ask = async |path: &str| {
            world.ask("get", &format!("/api/v1/runs/{run}{path}"), Some(&world.admin), &[], "").await
        };
        let ended = move |tx: &mut engine::store::Tx| {
            let mut run = engine::store::run::lock(tx, id)?;
            (run.status, run.completed_at) = (model::run::RunStatus::Failed, Some(tx.at()));
            engine::store::run::save(tx, &run)
        };
        world.engine.store.write(engine::store::Lane::Normal, "test.end", ended).await.unwrap();
        assert_eq!(ask("/logs?follow=false").await.status, 200);
        world.engine.logs.mark_deleted(job).await.unwrap();
        for path in ["/logs", "/logs?follow=false&tail=5", &format!("/logs?job={job}")] {
            let got = ask(path).await;
            assert_eq!((got.status.as_u16(), got.body["code"].as_str()), (410, Some("gone")), "{path}: {}", got.body);
            let detail = got.body["detail"].as_str().unwrap();
            assert!(detail.contains("logs are kept for 30d after the end of their run"), "{detail}");
        }
        for path in ["", "/why", "/tree", "/jobs", "/events"] {
            assert_eq!(ask(path).await.status, 200, "{path}");
        }
    }
}
