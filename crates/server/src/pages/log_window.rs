//! A window into a log: the lines that begin in a range of its bytes, so that windows beside each other show each line once. Bounded in bytes and
//! lines, however the log is written. Reads the log and nothing else.

use super::log_text::{Lines, RawLine, Style, html};
use engine::log::LogStream;
use engine::log::{Logs, Page};
use model::Failure;
use model::log::LogId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Of a log, in one window: about 500 lines of a usual one.
pub(crate) const WINDOW_BYTES: i64 = 64 * 1024;
pub(crate) const MOST_LINES: usize = 1_000;
/// Read before a window to see which streams are in the middle of a line where it begins, and behind it to see lines that begin in it whole.
const AROUND_BYTES: i64 = 64 * 1024;
/// A window in which no line begins (a file on one line) goes on for so long until one does.
const LONGEST_BYTES: i64 = 2 * 1024 * 1024;
const READ_BYTES: i64 = 256 * 1024;
/// Shown before a line that a reader is led to.
const BEFORE_LINES: usize = 10;
const BEFORE_BYTES: i64 = 8 * 1024;
/// Windows of complete logs that are kept: some megabytes.
const KEPT: usize = 64;

/// A line, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// Names the line: a permanent link leads to the window that begins here.
    pub(crate) offset: i64,
    pub(crate) at_ms: i64,
    pub(crate) stream: LogStream,
    /// Escaped.
    pub(crate) html: String,
    /// More of it was written than is shown.
    pub(crate) cut: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) lines: Vec<Line>,
    pub(crate) from: i64,
    /// Where the next window begins; for the last one, where the log ends now.
    pub(crate) next: i64,
    /// There is more behind it now.
    pub(crate) more: bool,
    /// Nothing comes after `next`, ever.
    pub(crate) done: bool,
}

impl Window {
    /// Where the window before this one begins.
    pub(crate) fn before(&self) -> Option<i64> {
        (self.from > 0).then(|| (self.from - WINDOW_BYTES).max(0))
    }
}

/// The lines that begin at `from` or behind it. `from` may be any number: what is not the beginning of a line leads to the next line.
pub(crate) async fn window(logs: &Logs, log: LogId, from: i64) -> Result<Window, Failure> {
    gathered(logs, log, Gathering::new(from)).await
}

/// Where a window begins in which the line at `offset` stands behind a few of those before it.
pub(crate) async fn few_before(logs: &Logs, log: LogId, offset: i64) -> Result<i64, Failure> {
    let near = window(logs, log, offset - BEFORE_BYTES).await?;
    Ok(before(&near.lines, offset))
}

fn before(near: &[Line], offset: i64) -> i64 {
    // Of lines that are so short that the window ends before it, none are shown.
    let Some(at) = near.iter().position(|line| line.offset == offset) else { return offset };
    near[at.saturating_sub(BEFORE_LINES)].offset
}

/// The last lines of a log that has this many bytes.
pub(crate) async fn last(logs: &Logs, log: LogId, total: i64) -> Result<Window, Failure> {
    gathered(logs, log, Gathering::last(total)).await
}

/// Windows of logs that are complete, the newest first: a reader who goes back, and each of several readers of one place, reads nothing.
#[derive(Default)]
pub(crate) struct WindowCache(Mutex<VecDeque<((LogId, i64), Arc<Window>)>>);

impl WindowCache {
    /// The window at `from` of a log to which nothing is added any more.
    pub(crate) async fn window(&self, logs: &Logs, log: LogId, from: i64) -> Result<Arc<Window>, Failure> {
        if let Some(kept) = self.find((log, from)) {
            return Ok(kept);
        }
        let found = Arc::new(window(logs, log, from).await?);
        if found.more || found.done {
            self.keep((log, from), found.clone());
        }
        Ok(found)
    }

    fn find(&self, place: (LogId, i64)) -> Option<Arc<Window>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|(of, _)| *of == place).and_then(|at| kept.remove(at))?;
        kept.push_front(found.clone());
        Some(found.1)
    }

    fn keep(&self, place: (LogId, i64), window: Arc<Window>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front((place, window));
        kept.truncate(KEPT);
    }
}

async fn gathered(logs: &Logs, log: LogId, mut gathering: Gathering) -> Result<Window, Failure> {
    while let Some(at) = gathering.wants() {
        gathering.add(logs.read(log, at, READ_BYTES).await?);
    }
    Ok(gathering.finish())
}

/// A window while its bytes are read.
struct Gathering {
    from: i64,
    /// Lines that begin here belong to the next window.
    end: i64,
    /// Of too many lines the last ones are shown, not the first.
    keeps_last: bool,
    at: i64,
    lines: Lines,
    found: Vec<RawLine>,
    /// The log ends at `at`, for now or for ever.
    ended: Option<bool>,
}

impl Gathering {
    fn new(from: i64) -> Gathering {
        let from = from.max(0);
        let (at, end) = ((from - AROUND_BYTES).max(0), from.saturating_add(WINDOW_BYTES));
        Gathering { from, end, keeps_last: false, at, lines: Lines::default(), found: Vec::new(), ended: None }
    }

    /// It also shows what is written while it is read, so that it says whether it ends with the log.
    fn last(total: i64) -> Gathering {
        let window = Gathering::new(total - WINDOW_BYTES);
        Gathering { keeps_last: true, end: window.end + AROUND_BYTES, ..window }
    }

    /// Where to read on, or none if the window is complete.
    fn wants(&self) -> Option<i64> {
        let begun = self.lines.open().any(|line| self.holds(line.offset));
        let complete = self.at >= self.end && (!begun || self.at >= self.end.saturating_add(AROUND_BYTES));
        let may_go_on = self.has_no_line() && self.at < self.from.saturating_add(LONGEST_BYTES);
        (self.ended.is_none() && (!complete || may_go_on)).then_some(self.at)
    }

    fn add(&mut self, page: Page) {
        let (from, found) = (self.from, &mut self.found);
        for placed in &page.frames {
            self.lines.add(placed, &mut |line| {
                if line.offset >= from {
                    found.push(line);
                }
            });
        }
        if page.done || (page.frames.is_empty() && page.next_offset <= self.at) {
            self.ended = Some(page.done);
        }
        self.at = page.next_offset.max(self.at);
        if self.has_no_line() {
            self.end = self.end.max(self.at);
        }
    }

    fn holds(&self, offset: i64) -> bool {
        (self.from..self.end).contains(&offset)
    }

    fn has_no_line(&self) -> bool {
        !self.found.iter().chain(self.lines.open()).any(|line| self.holds(line.offset))
    }

    fn finish(self) -> Window {
        let Gathering { mut from, end, keeps_last, at, lines, mut found, ended } = self;
        found.extend(lines.rest().into_iter().filter(|line| line.offset >= from));
        found.sort_by_key(|line| line.offset);
        let mut inside = found.iter().position(|line| line.offset >= end).unwrap_or(found.len());
        if keeps_last && inside > MOST_LINES {
            found.drain(..inside - MOST_LINES);
            (from, inside) = (found[0].offset, MOST_LINES);
        }
        let shown = inside.min(MOST_LINES);
        let next = match found.get(shown) {
            Some(line) if inside > MOST_LINES => line.offset,
            None if ended.is_some() => at.max(from),
            _ => end,
        };
        let more = ended.is_none() || shown < found.len();
        let mut styles = [Style::default(); 3];
        let lines = found.iter().take(shown).map(|line| Line {
            offset: line.offset,
            at_ms: line.at_ms,
            stream: line.stream,
            html: html(&line.bytes, &mut styles[line.stream as usize]),
            cut: line.cut > 0 || (!line.ended && ended.is_none()),
        });
        Window { lines: lines.collect(), from, next, more, done: ended == Some(true) && !more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::store::log_file::{Frame, LogStream, Placed};
    use model::Timestamp;
    use proptest::prelude::*;

    /// A log that is complete, as the store would read it.
    fn read(frames: &[Placed], from: i64, max_bytes: i64) -> Page {
        let total = frames.last().map_or(0, |placed| placed.next);
        let mut found = Vec::new();
        for placed in frames.iter().filter(|placed| placed.next > from && placed.offset < from + max_bytes) {
            let skip = (from - placed.offset).max(0);
            let data = placed.frame.data[skip as usize..].to_vec();
            let frame = Frame { data, ..placed.frame.clone() };
            found.push(Placed { offset: placed.offset + skip, next: placed.next, frame });
        }
        let next_offset = found.last().map_or(from, |placed| placed.next);
        Page { frames: found, next_offset, done: next_offset >= total }
    }

    fn log(parts: &[(LogStream, Vec<u8>)]) -> Vec<Placed> {
        let mut offset = 0;
        let place = |(stream, data): &(LogStream, Vec<u8>)| {
            let (at, next) = (Timestamp(offset), offset + data.len() as i64);
            let placed = Placed { offset, next, frame: Frame { stream: *stream, at, data: data.clone() } };
            offset = next;
            placed
        };
        parts.iter().map(place).collect()
    }

    /// The window, and how many bytes were asked for.
    fn window(frames: &[Placed], from: i64) -> (Window, i64) {
        let (mut gathering, mut asked) = (Gathering::new(from), 0);
        while let Some(at) = gathering.wants() {
            asked += READ_BYTES;
            gathering.add(read(frames, at, READ_BYTES));
        }
        (gathering.finish(), asked)
    }

    fn walk(frames: &[Placed]) -> Vec<Line> {
        let (mut lines, mut from) = (Vec::new(), 0);
        loop {
            let (window, _) = window(frames, from);
            assert!(window.lines.len() <= MOST_LINES);
            lines.extend(window.lines);
            if !window.more {
                assert!(window.done);
                return lines;
            }
            assert!(window.next > from, "the window at {from} leads nowhere");
            from = window.next;
        }
    }

    use LogStream::{Stderr, Stdout};

    #[test]
    fn the_windows_that_were_looked_at_last_are_kept() {
        let (kept, log) = (WindowCache::default(), LogId::from_key(1, 0));
        let one = |from| Arc::new(Window { lines: Vec::new(), from, next: from, more: true, done: false });
        (0..KEPT as i64).for_each(|from| kept.keep((log, from), one(from)));
        assert_eq!(kept.find((log, 0)).map(|it| it.from), Some(0));
        kept.keep((log, 1_000), one(1_000));
        assert_eq!(kept.find((log, 0)).map(|it| it.from), Some(0), "it was looked at a moment ago");
        assert_eq!(kept.find((log, 1)), None);
        assert_eq!(kept.find((LogId::from_key(2, 0), 0)), None);
    }

    #[test]
    fn a_line_that_a_reader_is_led_to_has_ten_lines_before_it() {
        let lines: Vec<u8> = (0..30).flat_map(|n| format!("line {n:02}\n").into_bytes()).collect();
        let near = window(&log(&[(Stdout, lines)]), 0).0.lines;
        assert_eq!(before(&near, 20 * 8), 10 * 8);
        assert_eq!(before(&near, 3 * 8), 0);
        assert_eq!(before(&near[..3], 20 * 8), 20 * 8, "it is not among them");
    }

    #[test]
    fn windows_beside_each_other_show_each_line_once() {
        let lines: Vec<String> = (0..30_000).map(|n| format!("line {n}\n")).collect();
        let frames = log(&lines.chunks(1_000).map(|part| (Stdout, part.concat().into_bytes())).collect::<Vec<_>>());
        let walked: Vec<String> = walk(&frames).into_iter().map(|line| format!("{}\n", line.html)).collect();
        assert_eq!(walked, lines);
    }

    #[test]
    fn a_window_costs_the_same_wherever_it_is_in_a_large_log() {
        let part = b"0123456789abcdef0123456789abcde\n".repeat(8 * 1024);
        let frames = log(&vec![(Stdout, part); 80]);
        let total = frames.last().unwrap().next;
        assert_eq!(total, 20 * 1024 * 1024);
        for from in [0, total / 3, total - 50_000] {
            let (window, asked) = window(&frames, from);
            assert!(!window.lines.is_empty() && asked <= 2 * READ_BYTES, "{asked} bytes were read at {from}");
        }
    }

    #[test]
    fn a_place_inside_of_a_line_leads_to_the_next_line() {
        let frames = log(&[(Stdout, b"first\nsecond\nthird\n".to_vec())]);
        let (window, _) = window(&frames, 8);
        assert_eq!(window.lines.iter().map(|line| line.html.as_str()).collect::<Vec<_>>(), ["third"]);
        assert_eq!((window.before(), window.next, window.done), (Some(0), 19, true));
        assert_eq!(self::window(&frames, 6).0.lines[0].html, "second");
        assert_eq!(self::window(&frames, 1_000).0.lines, []);
    }

    #[test]
    fn a_file_on_one_line_is_cut_and_passed() {
        let line = [&b"x".repeat(1_500_000)[..], b"\nend\n"].concat();
        let frames = log(&line.chunks(60_000).map(|part| (Stdout, part.to_vec())).collect::<Vec<_>>());
        let (first, asked) = window(&frames, 0);
        assert!(first.lines[0].cut && asked <= 2 * READ_BYTES);
        let lines = walk(&frames);
        assert_eq!((lines.len(), lines[1].html.as_str(), lines[1].offset), (2, "end", 1_500_001));
    }

    #[test]
    fn many_short_lines_are_bounded() {
        let frames = log(&[(Stdout, b"\n".repeat(5_000))]);
        assert_eq!(window(&frames, 0).0.next, 1_000);
        assert_eq!(walk(&frames).len(), 5_000);
    }

    #[test]
    fn the_last_window_ends_with_the_log() {
        let frames = log(&[(Stdout, b"0\n".repeat(40_000)), (Stdout, b"the end\n".to_vec())]);
        // It is still written: that it ends here is known by reading nothing more.
        let open = |at| Page { done: false, ..read(&frames, at, READ_BYTES) };
        let mut gathering = Gathering::last(80_008);
        while let Some(at) = gathering.wants() {
            gathering.add(open(at));
        }
        let window = gathering.finish();
        assert!(!window.more);
        assert_eq!((window.lines.len(), window.lines[MOST_LINES - 1].html.as_str()), (MOST_LINES, "the end"));
        assert_eq!((window.from, window.next), (window.lines[0].offset, 80_008));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// No line is lost or doubled at the edges of windows, however two streams are mixed.
        #[test]
        fn every_line_is_in_one_window(parts in prop::collection::vec((any::<bool>(), 0..30_000_usize, any::<bool>()), 1..40)) {
            let part = |(err, length, ends): &(bool, usize, bool)| {
                let mut data = vec![b'a'; *length];
                data.iter_mut().skip(200).step_by(5_003).for_each(|byte| *byte = b'\n');
                data.extend(ends.then_some(b'\n'));
                (if *err { Stderr } else { Stdout }, data)
            };
            let frames = log(&parts.iter().map(part).collect::<Vec<_>>());
            let (mut all, mut lines) = (Vec::new(), Lines::default());
            frames.iter().for_each(|placed| lines.add(placed, &mut |line| all.push(line)));
            all.extend(lines.rest());
            // A line that is open for longer than what is read around a window may be shown twice: once cut, once by its end.
            prop_assume!(all.iter().all(|line| line.ends - line.offset < AROUND_BYTES));
            let mut all: Vec<i64> = all.iter().map(|line| line.offset).collect();
            all.sort_unstable();
            prop_assert_eq!(walk(&frames).into_iter().map(|line| line.offset).collect::<Vec<_>>(), all);
        }
    }
}
