//! A run's log: frames by job and offset, exact bytes, from any place, to the end of the run.

use crate::Shared;
use crate::auth::Reader;
use crate::follow::{Feed, Left, stream};
use crate::problem::{Answer, Problem};
use crate::routes::id;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::sse;
use engine::store::Hint;
use engine::store::log_file::{LogStream, Placed};
use model::job::Job;
use model::run::Run;
use model::{Failure, JobId, OrgId, Refused, RunId};
use serde::Deserialize;
use wire::Base64;
use wire::api::{LogEnd, LogFrame};

const PAGE_BYTES: i64 = 256 * 1024;
/// One frame over the wire.
const FRAME_BYTES: usize = 64 * 1024;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    stream: Option<String>,
    job: Option<String>,
    tail: Option<usize>,
    since_ms: Option<i64>,
    follow: Option<bool>,
}

struct Filter {
    stream: Option<LogStream>,
    job: Option<JobId>,
    since_ms: i64,
    follow: bool,
}

pub(crate) async fn logs(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Answer {
    let (run, org): (RunId, OrgId) = (id("run", &run)?, reader.org());
    let filter = Filter {
        stream: wanted.stream.as_deref().map(stream_named).transpose()?,
        job: wanted.job.as_deref().map(|job| id("job", job)).transpose()?,
        since_ms: wanted.since_ms.unwrap_or(i64::MIN),
        follow: wanted.follow.unwrap_or(true),
    };
    let (_, jobs) = house.engine.jobs(org, run).await?;
    let mut cursor = Cursor::parse(headers.get("last-event-id").and_then(|v| v.to_str().ok()))?;
    if let Some(lines) = wanted.tail.filter(|_| cursor.0.is_empty()) {
        cursor = tail(&house, &jobs, &filter, lines).await?;
    }
    Ok(stream(&house, move |house, feed| async move {
        if let Err(Some(failure)) = follow(&house, &feed, org, run, &filter, cursor).await {
            tracing::warn!(%failure, %run, "a log stream ended early");
        }
    }))
}

/// How far the follower has each job's log: `<job>:<offset>`, joined by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Cursor(Vec<(JobId, i64)>);

impl Cursor {
    fn parse(text: Option<&str>) -> Result<Cursor, Problem> {
        let bad = || Problem::from(Refused::invalid("Last-Event-ID", "must be <job>:<offset>, joined by commas"));
        let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Cursor::default()) };
        let one = |part: &str| {
            let (job, offset) = part.split_once(':').ok_or_else(bad)?;
            Ok((job.parse().map_err(|_| bad())?, offset.parse().map_err(|_| bad())?))
        };
        text.split(',').map(one).collect::<Result<_, Problem>>().map(Cursor)
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

enum Stopped {
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

async fn follow(
    house: &Shared,
    feed: &Feed,
    org: OrgId,
    run: RunId,
    filter: &Filter,
    cursor: Cursor,
) -> Result<(), Option<Failure>> {
    match tell(house, feed, org, run, filter, cursor).await {
        Ok(()) | Err(Stopped::Left) => Ok(()),
        Err(Stopped::Failed(failure)) => Err(Some(failure)),
    }
}

async fn tell(
    house: &Shared,
    feed: &Feed,
    org: OrgId,
    run: RunId,
    filter: &Filter,
    mut cursor: Cursor,
) -> Result<(), Stopped> {
    let mut bell = house.hub.follow(Hint::Run(run));
    loop {
        // The state first, the bytes second: what is complete by this state is complete in the log.
        let (state, jobs) = house.engine.jobs(org, run).await?;
        for job in jobs.iter().filter(|job| filter.job.is_none_or(|id| id == job.id)) {
            tell_job(house, feed, filter, job, &mut cursor).await?;
        }
        let news = house.engine.jobs(org, run).await?;
        let same = news.0.version == state.version && news.1.len() == jobs.len();
        if (state.status.is_end() && same) || !filter.follow {
            return tell_end(feed, &state, &jobs).await;
        }
        if same && !feed.wait(bell.rung()).await {
            return Err(Stopped::Left);
        }
    }
}

/// One job's bytes to the end of its log, or as far as they are when nobody follows.
async fn tell_job(house: &Shared, feed: &Feed, filter: &Filter, job: &Job, cursor: &mut Cursor) -> Result<(), Stopped> {
    let mut bell = house.hub.follow(Hint::Logs(job.id));
    let mut ends = house.hub.follow(Hint::Run(job.run));
    let mut ended = job.status.is_end();
    loop {
        let from = cursor.of(job.id);
        let page = house.engine.logs.read(job.id, from, PAGE_BYTES).await?;
        let empty = page.frames.is_empty();
        for placed in page.frames {
            tell_frame(feed, filter, job.id, placed, cursor).await?;
        }
        cursor.advance(job.id, page.next_offset);
        if page.done || (empty && (ended || !filter.follow)) {
            return Ok(());
        }
        if empty {
            // Its state is asked for only when the run says that something has changed: more bytes are no such thing.
            let mut changed = false;
            let news = async {
                tokio::select! { () = bell.rung() => {}, () = ends.rung() => changed = true }
            };
            if !feed.wait(news).await {
                return Err(Stopped::Left);
            }
            if changed {
                let (_, jobs) = house.engine.jobs(job.org, job.run).await?;
                ended = jobs.iter().any(|j| j.id == job.id && j.status.is_end());
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
        if filter.stream.is_none_or(|wanted| wanted == placed.frame.stream) && placed.frame.at.ms() >= filter.since_ms {
            let frame = LogFrame {
                job: job.to_string(),
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

async fn tell_end(feed: &Feed, run: &Run, jobs: &[Job]) -> Result<(), Stopped> {
    let end =
        LogEnd { status: run.status.to_string(), exit_code: run.exit_code, cut: jobs.iter().any(|job| job.log_cut) };
    let data = serde_json::to_string(&end).expect("an end is plain data");
    Ok(feed.send(sse::Event::default().event("end").data(data)).await?)
}

/// Where the last `lines` lines of the newest job begin; earlier jobs are passed over.
async fn tail(house: &Shared, jobs: &[Job], filter: &Filter, lines: usize) -> Result<Cursor, Problem> {
    let mut cursor = Cursor::default();
    let mine: Vec<&Job> = jobs.iter().filter(|job| filter.job.is_none_or(|id| id == job.id)).collect();
    let Some((newest, earlier)) = mine.split_last() else { return Ok(cursor) };
    for job in earlier {
        cursor.advance(job.id, house.engine.logs.reached(job.id, job.epoch).await?.total);
    }
    let total = house.engine.logs.reached(newest.id, newest.epoch).await?.total;
    let mut back = if lines == 0 { 0 } else { 16 * 1024_i64 };
    loop {
        let from = (total - back).max(0);
        let (mut seen, mut at) = (Lines::default(), from);
        while at < total {
            let page = house.engine.logs.read(newest.id, at, PAGE_BYTES).await?;
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
        back *= 4;
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
        let before = self.ends.len().checked_sub(1 + count.saturating_sub(unfinished))?;
        Some(self.ends[before])
    }
}

fn name_of(stream: LogStream) -> &'static str {
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
    use engine::store::log_file::Frame;
    use model::Timestamp;

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
}
