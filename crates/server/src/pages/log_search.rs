//! Search in a log: a text or a regular expression, in what a reader sees of each line. One request reads at most 64 MiB or for one second and
//! then says where to go on. At most two run at once in a process, on threads of their own, and each ends with its request.

use super::log_text::{LINE_BYTES, Lines, RawLine, text};
use crate::problem::Problem;
use axum::http::StatusCode;
use engine::log::LogStream;
use engine::log::{Logs, Page};
use model::log::LogId;
use model::{Failure, Refused};
use regex::bytes::{Regex, RegexBuilder};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One request.
const MOST_BYTES: i64 = 64 * 1024 * 1024;
const LONGEST: Duration = Duration::from_secs(1);
pub(crate) const MOST_HITS: usize = 200;
/// In a process: each keeps a core busy.
const AT_ONCE: usize = 2;
/// A request that waits longer for its turn is told to come again.
const TURN_WITHIN: Duration = Duration::from_secs(5);
const READ_BYTES: i64 = 1024 * 1024;
/// Read again where a search goes on, so that lines which are open there are seen whole.
const OVERLAP_BYTES: i64 = 256 * 1024;
const PATTERN_BYTES: usize = 1_000;
/// Of a compiled expression: `\w{1000}` alone would need megabytes.
const COMPILED_BYTES: usize = 1024 * 1024;
/// Shown of a line before and behind what was found.
const AROUND_BYTES: usize = 160;

/// What says that something went wrong, in the words of common tools.
const FAILURE: &str = r"(?-u)(?:^|[\s\]])(?:[Ee]rror|ERROR|[Ff]atal|FATAL|E)(?:\[\w+\])?:\s|Traceback \(most recent call last\)|panicked at|\bFAILED\b|\b[A-Z][A-Za-z]*(?:Error|Exception)\b|Segmentation fault|[Cc]ommand not found|\bKilled\b|No such file or directory|Permission denied";

/// What is looked for.
#[derive(Debug, Clone)]
pub(crate) struct Needle(Regex);

impl Needle {
    /// The text as it stands. Without capital letters, in any case.
    pub(crate) fn literal(text: &str) -> Result<Needle, Refused> {
        Needle::compiled(&regex::escape(text), !text.chars().any(char::is_uppercase))
    }

    pub(crate) fn expression(pattern: &str) -> Result<Needle, Refused> {
        Needle::compiled(pattern, false)
    }

    fn compiled(pattern: &str, any_case: bool) -> Result<Needle, Refused> {
        let refused = |why: String| Refused::invalid("search", why);
        if pattern.is_empty() {
            return Err(refused("nothing to look for: type a word".to_owned()));
        }
        if pattern.len() > PATTERN_BYTES {
            return Err(refused(format!("{} bytes are too long: {PATTERN_BYTES} at most", pattern.len())));
        }
        let mut builder = RegexBuilder::new(pattern);
        builder.case_insensitive(any_case).size_limit(COMPILED_BYTES).dfa_size_limit(COMPILED_BYTES);
        builder.build().map(Needle).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                refused("this expression is too large: use smaller repetitions".to_owned())
            }
            error => refused(format!("not a regular expression: {}", last_line(&error.to_string()))),
        })
    }
}

/// The library draws the pattern above its reason.
fn last_line(error: &str) -> &str {
    error.lines().last().unwrap_or(error).trim_start_matches("error: ")
}

/// Where a search goes on: read from there, but lines that end before `told` were searched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    from: i64,
    told: i64,
}

impl Place {
    pub(crate) fn at(offset: i64) -> Place {
        Place { from: offset.max(0), told: offset.max(0) }
    }
    /// How far the search has come.
    pub(crate) fn reached(self) -> i64 {
        self.told
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.from, self.told)
    }
}

impl FromStr for Place {
    type Err = Refused;
    fn from_str(text: &str) -> Result<Place, Refused> {
        let parsed = text.split_once('.').and_then(|(from, told)| Some((from.parse().ok()?, told.parse().ok()?)));
        match parsed {
            Some((from, told)) if 0 <= from && from <= told && told - from <= OVERLAP_BYTES => Ok(Place { from, told }),
            _ => Err(Refused::invalid("from", format!("`{text}` is not where a search goes on: search again"))),
        }
    }
}

/// A line in which it was found, as text that is not escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) offset: i64,
    pub(crate) at_ms: i64,
    pub(crate) stream: LogStream,
    pub(crate) before: String,
    pub(crate) found: String,
    pub(crate) behind: String,
    ends: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) hits: Vec<Hit>,
    /// The rest was not searched. None: the log ends here.
    pub(crate) go_on: Option<Place>,
}

/// The searches of a process.
pub(crate) struct Searches {
    turns: Arc<Semaphore>,
    /// Read for one first failure.
    most_bytes: i64,
    failures: failure::Failures,
}

impl Default for Searches {
    fn default() -> Searches {
        Searches { turns: Arc::new(Semaphore::new(AT_ONCE)), most_bytes: MOST_BYTES, failures: Default::default() }
    }
}

impl Searches {
    /// Looks for it from `from` on. Dropping the future ends the search.
    pub(crate) async fn search(&self, logs: &Logs, log: LogId, needle: Needle, from: Place) -> Result<Found, Problem> {
        self.run(logs, log, Scan::new(needle, from, MOST_HITS)).await.map(|(found, _)| found)
    }

    async fn run(&self, logs: &Logs, log: LogId, mut scan: Scan) -> Result<(Found, bool), Problem> {
        let turn = self.turn().await?;
        let (logs, handle) = (logs.clone(), Handle::current());
        let read = move |at| handle.block_on(logs.read(log, at, READ_BYTES));
        Ok(off_the_reactor(turn, move |over| scan.all(&read, over)).await?)
    }

    async fn turn(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let turn = tokio::time::timeout(TURN_WITHIN, self.turns.clone().acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "other searches are under way")
                .fix("search again in a moment")
                .retry_after(1)
        })
    }
}

/// Ends the search when the request is gone.
struct EndsWith(Arc<AtomicBool>);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The turn is over when the thread has stopped, not when the request is gone.
async fn off_the_reactor<F: Send + 'static>(
    turn: OwnedSemaphorePermit,
    scan: impl FnOnce(&dyn Fn() -> bool) -> Result<F, Failure> + Send + 'static,
) -> Result<F, Failure> {
    let gone = EndsWith(Arc::default());
    let is_gone = gone.0.clone();
    let until = Instant::now() + LONGEST;
    let searched = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        scan(&|| is_gone.load(Ordering::Relaxed) || Instant::now() >= until)
    });
    let found = searched.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    drop(gone);
    found
}

/// One search while it goes on.
struct Scan {
    needle: Needle,
    from: Place,
    most: usize,
    most_bytes: i64,
    lines: Lines,
    hits: Vec<Hit>,
}

impl Scan {
    fn new(needle: Needle, from: Place, most: usize) -> Scan {
        Scan { needle, from, most, most_bytes: MOST_BYTES, lines: Lines::default(), hits: Vec::new() }
    }

    /// Reads on until it is enough, or `over`. Also says whether the log is complete and was searched whole.
    fn all(
        &mut self,
        read: &impl Fn(i64) -> Result<Page, Failure>,
        over: impl Fn() -> bool,
    ) -> Result<(Found, bool), Failure> {
        let mut at = self.from.from;
        loop {
            let page = read(at)?;
            let ended = page.done || (page.frames.is_empty() && page.next_offset <= at);
            if let Some(go_on) = self.page(&page) {
                return Ok((self.found(Some(go_on)), false));
            }
            at = page.next_offset.max(at);
            if ended {
                for line in std::mem::take(&mut self.lines).rest() {
                    self.hits.extend(judge(&self.needle, self.from.told, &line));
                }
                return Ok((self.found(None), page.done));
            }
            // What was read again does not count: each request comes further than the one before.
            if at > self.from.told && (at - self.from.from >= self.most_bytes || over()) {
                return Ok((self.stop(at), false));
            }
        }
    }

    /// Some if there are enough hits: where to go on.
    fn page(&mut self, page: &Page) -> Option<Place> {
        for placed in &page.frames {
            let since = self.lines.open().map(|line| line.offset).chain([placed.offset]).min().unwrap_or(placed.offset);
            let (needle, told, hits) = (&self.needle, self.from.told, &mut self.hits);
            self.lines.add(placed, &mut |line| hits.extend(judge(needle, told, &line)));
            if self.hits.len() >= self.most {
                self.hits.truncate(self.most);
                let told = self.hits.last().map_or(placed.next, |hit| hit.ends);
                return Some(Place { from: since.max(told - OVERLAP_BYTES), told });
            }
        }
        None
    }

    /// Stops in the middle. A line that has been open for too long is judged by what there is of it.
    fn stop(&mut self, at: i64) -> Found {
        let earliest = at - OVERLAP_BYTES;
        let since = self.lines.open().map(|line| line.offset).filter(|since| *since >= earliest).min().unwrap_or(at);
        for line in std::mem::take(&mut self.lines).rest().iter().filter(|line| line.offset < earliest) {
            self.hits.extend(judge(&self.needle, self.from.told, line));
        }
        self.found(Some(Place { from: since, told: at }))
    }

    fn found(&mut self, go_on: Option<Place>) -> Found {
        Found { hits: std::mem::take(&mut self.hits), go_on }
    }
}

/// Lines that ended before `told` were judged by the search that goes on here.
fn judge(needle: &Needle, told: i64, line: &RawLine) -> Option<Hit> {
    if line.ended && line.ends <= told {
        return None;
    }
    debug_assert!(line.bytes.len() <= LINE_BYTES);
    let seen = text(&line.bytes);
    let found = needle.0.find(&seen)?;
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (first, last) = (found.start().saturating_sub(AROUND_BYTES), seen.len().min(found.end() + AROUND_BYTES));
    Some(Hit {
        offset: line.offset,
        at_ms: line.at_ms,
        stream: line.stream,
        before: shown(&seen[first..found.start()]),
        found: shown(&seen[found.range()]),
        behind: shown(&seen[found.end()..last]),
        ends: line.ends,
    })
}

mod failure;
mod of_run;
#[cfg(test)]
mod opened;
pub(crate) use of_run::{RunFound, RunPlace};
#[cfg(test)]
mod tests;
