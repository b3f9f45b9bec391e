//! Search in the log of a run of agents: in the lines of all its steps, in the order in which their frames were stored. Bounded as a search
//! in one log is. A place is the number of a frame.

use super::{Hit, MOST_BYTES, MOST_HITS, Needle, OVERLAP_BYTES, READ_BYTES, Searches, judge, off_the_reactor};
use crate::pages::log_text::{Lines, RawLine};
use crate::problem::Problem;
use engine::log::Logs;
use engine::log::RunFrame;
use model::log::LogId;
use model::{Failure, Refused, RunId};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::str::FromStr;
use tokio::runtime::Handle;

/// Logs with a line that has not ended. Steps that run at once are fewer; the log that is open for longest is given up.
const MOST_OPEN: usize = 256;

/// Where a search goes on: frames behind `from` are read, of which those up to `told` were searched, and `lines` lines of the one behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RunPlace {
    from: i64,
    told: i64,
    lines: i64,
}

impl RunPlace {
    /// How far the search has come.
    pub(crate) fn reached(self) -> i64 {
        self.told
    }
}

impl fmt::Display for RunPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.from, self.told, self.lines)
    }
}

impl FromStr for RunPlace {
    type Err = Refused;
    fn from_str(text: &str) -> Result<RunPlace, Refused> {
        let numbers: Option<Vec<i64>> = text.split('.').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([from, told, lines]) if 0 <= *from && from <= told && *lines >= 0 => {
                Ok(RunPlace { from: *from, told: *told, lines: *lines })
            }
            _ => Err(Refused::invalid("from", format!("`{text}` is not where a search goes on: search again"))),
        }
    }
}

/// A line in which it was found, the log that it is of, and the frame in which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunHit {
    pub(crate) log: LogId,
    pub(crate) frame: i64,
    pub(crate) hit: Hit,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunFound {
    pub(crate) hits: Vec<RunHit>,
    /// The rest was not searched. None: nothing more was stored.
    pub(crate) go_on: Option<RunPlace>,
}

impl Searches {
    /// Looks for it in all logs of a run. Dropping the future ends the search.
    pub(crate) async fn search_run(
        &self,
        logs: &Logs,
        run: RunId,
        needle: Needle,
        from: RunPlace,
    ) -> Result<RunFound, Problem> {
        let turn = self.turn().await?;
        let (logs, handle) = (logs.clone(), Handle::current());
        let read = move |after| handle.block_on(logs.read_run(run, after, READ_BYTES));
        let mut scan = RunScan::new(needle, from);
        Ok(off_the_reactor(turn, move |over| scan.all(&read, over)).await?)
    }
}

/// The lines of one log that have not ended, and the frame in which each stream's began.
#[derive(Default)]
struct Open {
    lines: Lines,
    begun: [Option<i64>; 3],
}

pub(super) struct RunScan {
    needle: Needle,
    from: RunPlace,
    most: usize,
    most_bytes: i64,
    open: HashMap<LogId, Open>,
    /// The last frames with their bytes: so far a search goes back for lines that are open.
    last: VecDeque<(i64, i64)>,
    hits: Vec<RunHit>,
}

impl RunScan {
    /// Looks for one hit in at most so many bytes.
    pub(super) fn first(needle: Needle, from: RunPlace, most_bytes: i64) -> RunScan {
        RunScan { most: 1, most_bytes, ..RunScan::new(needle, from) }
    }

    fn new(needle: Needle, from: RunPlace) -> RunScan {
        let (open, last, hits) = (HashMap::new(), VecDeque::new(), Vec::new());
        RunScan { needle, from, most: MOST_HITS, most_bytes: MOST_BYTES, open, last, hits }
    }

    pub(super) fn all(
        &mut self,
        read: &impl Fn(i64) -> Result<Vec<RunFrame>, Failure>,
        over: impl Fn() -> bool,
    ) -> Result<RunFound, Failure> {
        let (mut at, mut bytes) = (self.from.from, 0);
        loop {
            let page = read(at)?;
            if page.is_empty() {
                let open = std::mem::take(&mut self.open);
                let mut rest: Vec<RunHit> = open.into_iter().flat_map(|(log, open)| self.judged(log, open)).collect();
                rest.sort_by_key(|it| (it.frame, it.log, it.hit.offset));
                self.hits.append(&mut rest);
                return Ok(RunFound { hits: std::mem::take(&mut self.hits), go_on: None });
            }
            for frame in page {
                (at, bytes) = (frame.number, bytes + frame.placed.frame.data.len() as i64);
                if let Some(lines) = self.frame(frame) {
                    return Ok(self.stop(at - 1, lines));
                }
                // What was read again does not count: each request comes further than the one before.
                if at > self.from.told && (bytes >= self.most_bytes || over()) {
                    return Ok(self.stop(at, 0));
                }
            }
        }
    }

    /// Some if there are enough hits: how many lines of this frame were searched.
    fn frame(&mut self, frame: RunFrame) -> Option<i64> {
        let RunFrame { number, log, placed } = frame;
        self.last.push_back((number, placed.frame.data.len() as i64));
        let stream = placed.frame.stream as usize;
        let open = self.open.entry(log).or_default();
        let (mut ended, before) = (Vec::new(), open.begun[stream]);
        open.lines.add(&placed, &mut |line| ended.push(line));
        let goes_on = open.lines.open().any(|line| line.stream as usize == stream);
        open.begun[stream] = goes_on.then(|| before.filter(|_| ended.is_empty()).unwrap_or(number));
        if open.begun.iter().all(Option::is_none) {
            self.open.remove(&log);
        } else if self.open.len() > MOST_OPEN {
            let oldest = self
                .open
                .iter()
                .min_by_key(|(_, open)| open.begun.iter().flatten().copied().min())
                .map(|(log, _)| *log);
            let given_up = oldest.and_then(|log| Some((log, self.open.remove(&log)?)));
            let hits = given_up.map(|(log, open)| self.judged(log, open)).unwrap_or_default();
            self.hits.extend(hits);
        }
        for (count, line) in (0..).zip(ended) {
            let told = number <= self.from.told || (number == self.from.told + 1 && count < self.from.lines);
            if told {
                continue;
            }
            let begins = before.filter(|_| count == 0).unwrap_or(number);
            let hit = judge(&self.needle, 0, &line);
            self.hits.extend(hit.map(|hit| RunHit { log, frame: begins, hit }));
            if self.hits.len() >= self.most {
                return Some(count + 1);
            }
        }
        None
    }

    /// What a log has that has not ended.
    fn judged(&self, log: LogId, open: Open) -> Vec<RunHit> {
        let begun = open.begun;
        let hit = |line: RawLine| {
            let hit = judge(&self.needle, 0, &line)?;
            Some(RunHit { log, frame: begun[line.stream as usize].unwrap_or(0), hit })
        };
        open.lines.rest().into_iter().filter_map(hit).collect()
    }

    /// Stops in the middle. Lines that are open are read again, but for those that have been open for too long.
    fn stop(&mut self, told: i64, lines: i64) -> RunFound {
        let mut back = 0;
        let near = self.last.iter().rev().take_while(|(_, bytes)| {
            back += bytes;
            back <= OVERLAP_BYTES
        });
        let earliest = near.last().map_or(told + 1, |(number, _)| *number);
        let begun = self.open.values().flat_map(|open| open.begun.iter().flatten().copied());
        let since = begun.filter(|number| *number >= earliest).min().unwrap_or(told + 1);
        let far: Vec<LogId> = self
            .open
            .iter()
            .filter(|(_, open)| open.begun.iter().flatten().any(|it| *it < earliest))
            .map(|(log, _)| *log)
            .collect();
        for log in far {
            let open = self.open.remove(&log).unwrap_or_default();
            let hits = self.judged(log, open);
            self.hits.extend(hits.into_iter().filter(|it| it.frame < earliest));
        }
        let go_on = Some(RunPlace { from: (since - 1).min(told), told, lines });
        RunFound { hits: std::mem::take(&mut self.hits), go_on }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::store::log_file::{Frame, LogStream, Placed};
    use model::step::StepTry;
    use model::{StepId, Timestamp};
    use proptest::prelude::*;

    fn log(step: i64) -> LogId {
        LogId::Step(StepTry { id: StepId(step), number: 1 })
    }

    /// Frames of several steps, mixed as they were stored.
    fn frames(parts: &[(i64, LogStream, &[u8])]) -> Vec<RunFrame> {
        let mut offsets = HashMap::new();
        let frame = |(number, (step, stream, data)): (i64, &(i64, LogStream, &[u8]))| {
            let offset: &mut i64 = offsets.entry(*step).or_default();
            let next = *offset + data.len() as i64;
            let frame = Frame { stream: *stream, at: Timestamp(number), data: data.to_vec() };
            let placed = Placed { offset: std::mem::replace(offset, next), next, frame };
            RunFrame { number, log: log(*step), placed }
        };
        (1..).zip(parts).map(frame).collect()
    }

    fn found(frames: &[RunFrame], text: &str, from: RunPlace, most: usize, over: bool) -> RunFound {
        let read = |after: i64| Ok(frames.iter().filter(|it| it.number > after).take(3).cloned().collect());
        let mut scan = RunScan { most, ..RunScan::new(Needle::literal(text).unwrap(), from) };
        scan.all(&read, || over).unwrap()
    }

    /// Step and offset of each hit, in the requests that it takes.
    fn walked(frames: &[RunFrame], text: &str, most: usize, over: bool) -> Vec<(LogId, i64)> {
        let (mut seen, mut place) = (Vec::new(), Some(RunPlace::default()));
        while let Some(at) = place {
            let part = found(frames, text, at, most, over);
            assert!(part.go_on.is_none_or(|next| (next.told, next.lines) > (at.told, at.lines)), "{at} goes nowhere");
            seen.extend(part.hits.iter().map(|it| (it.log, it.hit.offset)));
            place = part.go_on.map(|next| next.to_string().parse().unwrap());
        }
        seen
    }

    use LogStream::{Stderr, Stdout};

    #[test]
    fn lines_of_steps_that_write_at_once_are_put_together_and_found_once() {
        let parts: Vec<(i64, LogStream, &[u8])> = vec![
            (1, Stdout, b"hi"),
            (2, Stdout, b"a hit\nnothing\n"),
            (1, Stderr, b"hit on stderr\n"),
            (1, Stdout, b"t in two\nhi"),
            (2, Stdout, b"hit again\nthe last hit"),
        ];
        let frames = frames(&parts);
        let whole = found(&frames, "hit", RunPlace::default(), 99, false);
        let places: Vec<(LogId, i64, i64)> = whole.hits.iter().map(|it| (it.log, it.frame, it.hit.offset)).collect();
        assert_eq!(places, [(log(2), 2, 0), (log(1), 3, 2), (log(1), 1, 0), (log(2), 5, 14), (log(2), 5, 24)]);
        assert_eq!(whole.go_on, None);
        for (most, over) in [(1, false), (2, true), (99, true)] {
            let all: Vec<(LogId, i64)> = places.iter().map(|(log, _, offset)| (*log, *offset)).collect();
            assert_eq!(walked(&frames, "hit", most, over), all, "{most} at a time");
        }
    }

    #[test]
    fn one_request_reads_at_most_so_much() {
        let line = b"nothing is to be found here\n".repeat(1_000);
        let parts: Vec<(i64, LogStream, &[u8])> = (0..50).map(|_| (1, Stdout, line.as_slice())).collect();
        let frames = frames(&parts);
        let read = |after: i64| Ok(frames.iter().filter(|it| it.number > after).take(3).cloned().collect());
        let mut scan = RunScan {
            most_bytes: 10 * line.len() as i64,
            ..RunScan::new(Needle::literal("x").unwrap(), RunPlace::default())
        };
        assert_eq!(scan.all(&read, || false).unwrap().go_on.unwrap().reached(), 10);
    }

    #[test]
    fn what_is_not_a_place_is_refused() {
        for text in ["1", "2.1.0", "-1.0.0", "1.2.-3", "a.b.c", "1.2.3.4"] {
            assert!(text.parse::<RunPlace>().is_err(), "{text}");
        }
        assert_eq!("1.2.3".parse::<RunPlace>().unwrap().to_string(), "1.2.3");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        /// However the logs are cut into frames and a search into requests, each line is found once.
        #[test]
        fn going_on_is_the_same_as_going_through(
            parts in prop::collection::vec((1..4_i64, any::<bool>(), "[ab\n\r]{0,20}"), 1..30), most in 1..5_usize, over in any::<bool>()
        ) {
            let stream = |err: bool| if err { Stderr } else { Stdout };
            let parts: Vec<(i64, LogStream, &[u8])> =
                parts.iter().filter(|(.., text)| !text.is_empty()).map(|(step, err, text)| (*step, stream(*err), text.as_bytes())).collect();
            let frames = frames(&parts);
            let key = |(log, offset): &(LogId, i64)| (*log, *offset);
            let mut whole = walked(&frames, "b", 999, false);
            let mut seen = walked(&frames, "b", most, over);
            whole.sort_unstable_by_key(key);
            seen.sort_unstable_by_key(key);
            prop_assert_eq!(seen, whole);
        }
    }
}
