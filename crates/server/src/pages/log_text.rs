//! Bytes of a log as lines of escaped HTML. What a terminal would do invisibly is shown or left out: a line shows what is behind its last
//! carriage return, colours become classes, other escape sequences are dropped, invisible characters are marked. Reads nothing.

mod sgr;
mod visible;

use engine::log::{LogStream, Placed};
pub(crate) use sgr::Style;
pub(crate) use visible::{html, text};

/// Of one line, as it was written. What is longer is a file on one line, and would be in the way of all others.
pub(crate) const LINE_BYTES: usize = 16 * 1024;

/// A line of one stream, without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawLine {
    /// Where in the log what it shows begins.
    pub(crate) offset: i64,
    /// Behind its last byte; no bytes of this line come after it.
    pub(crate) ends: i64,
    pub(crate) at_ms: i64,
    pub(crate) stream: LogStream,
    /// At most `LINE_BYTES`.
    pub(crate) bytes: Vec<u8>,
    /// Bytes beyond these.
    pub(crate) cut: u64,
    /// Whether a line break ends it: otherwise more may come.
    pub(crate) ended: bool,
}

/// Puts lines together out of frames. Streams are mixed frame by frame, so each has a line of its own that is not ended.
#[derive(Default)]
pub(crate) struct Lines {
    open: [Option<Open>; 3],
}

/// A line whose end has not come.
struct Open {
    line: RawLine,
    /// The last byte was a carriage return: what comes next replaces the line, unless it is a line break.
    returned: bool,
}

impl Lines {
    /// Calls `line` for each line that ends in this frame.
    pub(crate) fn add(&mut self, placed: &Placed, line: &mut impl FnMut(RawLine)) {
        let mut offset = placed.offset;
        for piece in placed.frame.data.split_inclusive(|byte| *byte == b'\n') {
            let next = offset + piece.len() as i64;
            let open = self.open[placed.frame.stream as usize].get_or_insert_with(|| Open::at(offset, placed));
            match piece.strip_suffix(b"\n") {
                None => open.push(piece, offset, placed),
                Some(piece) => {
                    open.push(piece, offset, placed);
                    let mut done = self.open[placed.frame.stream as usize].take().expect("it was put there above").line;
                    (done.ended, done.ends) = (true, next);
                    line(done);
                }
            }
            offset = next;
        }
    }

    /// What is not ended, in the order in which it begins.
    pub(crate) fn rest(self) -> Vec<RawLine> {
        let mut rest: Vec<RawLine> = self.open.into_iter().flatten().map(|open| open.line).collect();
        rest.sort_by_key(|line| line.offset);
        rest
    }

    /// What is not ended so far.
    pub(crate) fn open(&self) -> impl Iterator<Item = &RawLine> {
        self.open.iter().flatten().map(|open| &open.line)
    }
}

impl Open {
    fn at(offset: i64, placed: &Placed) -> Open {
        let (at_ms, stream) = (placed.frame.at.ms(), placed.frame.stream);
        let line = RawLine { offset, ends: offset, at_ms, stream, bytes: Vec::new(), cut: 0, ended: false };
        Open { line, returned: false }
    }

    /// Bytes without a line break, the first of them at `offset`.
    fn push(&mut self, mut piece: &[u8], mut offset: i64, placed: &Placed) {
        while !piece.is_empty() {
            if self.returned && piece[0] != b'\r' {
                // A colour that was set before the carriage return holds behind it.
                let kept = sgr::sequences(&self.line.bytes);
                *self = Open::at(offset, placed);
                self.line.bytes = kept;
            }
            let until = piece.iter().position(|byte| *byte == b'\r').unwrap_or(piece.len());
            let (shown, rest) = piece.split_at(until);
            let room = LINE_BYTES - self.line.bytes.len();
            self.line.bytes.extend_from_slice(&shown[..shown.len().min(room)]);
            self.line.cut += shown.len().saturating_sub(room) as u64;
            self.returned = !rest.is_empty();
            let taken = until + usize::from(self.returned);
            (piece, offset) = (&piece[taken..], offset + taken as i64);
        }
        self.line.ends = offset;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::store::log_file::Frame;
    use model::Timestamp;
    use proptest::prelude::*;

    fn frame(offset: i64, stream: LogStream, data: &[u8]) -> Placed {
        let frame = Frame { stream, at: Timestamp(offset), data: data.to_vec() };
        Placed { offset, next: offset + data.len() as i64, frame }
    }

    fn lines(parts: &[(LogStream, &[u8])]) -> Vec<RawLine> {
        let (mut lines, mut found, mut offset) = (Lines::default(), Vec::new(), 0);
        for (stream, data) in parts {
            lines.add(&frame(offset, *stream, data), &mut |line| found.push(line));
            offset += data.len() as i64;
        }
        found.extend(lines.rest());
        found
    }

    fn shown(parts: &[(LogStream, &[u8])]) -> Vec<(i64, String)> {
        lines(parts).iter().map(|line| (line.offset, String::from_utf8_lossy(&line.bytes).into_owned())).collect()
    }

    use LogStream::{Stderr, Stdout};

    fn check(data: &[u8], expected: &[(i64, &str)]) {
        let expected: Vec<(i64, String)> = expected.iter().map(|(at, text)| (*at, (*text).to_owned())).collect();
        assert_eq!(shown(&[(Stdout, data)]), expected, "{:?}", String::from_utf8_lossy(data));
        // Byte by byte it is the same.
        let bytes: Vec<(LogStream, &[u8])> = data.chunks(1).map(|byte| (Stdout, byte)).collect();
        assert_eq!(shown(&bytes), expected, "{:?}, byte by byte", String::from_utf8_lossy(data));
    }

    #[test]
    fn a_line_shows_what_is_behind_its_last_carriage_return() {
        check(b"one\ntwo\n", &[(0, "one"), (4, "two")]);
        check(b"one\r\ntwo\r\r\n", &[(0, "one"), (5, "two")]);
        check(b"10%\r50%\r100%\ndone", &[(8, "100%"), (13, "done")]);
        check(b"10%\r50%\r", &[(4, "50%")]);
        check(b"\n\n", &[(0, ""), (1, "")]);
        check(b"", &[]);
        check(b"\x1b[31m10%\r20%\n", &[(9, "\x1b[31m20%")]);
    }

    #[test]
    fn streams_do_not_cut_each_others_lines() {
        let mixed: &[(LogStream, &[u8])] =
            &[(Stdout, b"be"), (Stderr, b"warn\nmo"), (Stdout, b"gin\n"), (Stderr, b"re")];
        let expected = [(2, "warn".to_owned()), (0, "begin".to_owned()), (7, "more".to_owned())];
        assert_eq!(shown(mixed), expected);
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let long = [&[b'x'; LINE_BYTES][..], b"yyy\nz"].concat();
        let found = lines(&[(Stdout, &long)]);
        assert_eq!((found[0].bytes.len(), found[0].cut, found[0].ends), (LINE_BYTES, 3, LINE_BYTES as i64 + 4));
        assert_eq!(found[1].offset, LINE_BYTES as i64 + 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// However the bytes are cut into frames, the lines are the same, they are bounded and none is lost.
        #[test]
        fn frames_are_not_seen(data in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), any::<u8>()], 0..400),
                               cuts in prop::collection::vec(1..40_usize, 1..40)) {
            let whole = lines(&[(Stdout, &data)]);
            let (mut parts, mut rest) = (Vec::new(), &data[..]);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (part, more) = rest.split_at((*cut).min(rest.len()));
                parts.push((Stdout, part));
                rest = more;
            }
            let pieces: Vec<RawLine> = lines(&parts).into_iter().map(|line| RawLine { at_ms: 0, ..line }).collect();
            let whole: Vec<RawLine> = whole.into_iter().map(|line| RawLine { at_ms: 0, ..line }).collect();
            prop_assert_eq!(&whole, &pieces);
            let breaks = data.iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(whole.iter().filter(|line| line.ended).count(), breaks);
            prop_assert!(whole.iter().all(|line| line.bytes.len() <= LINE_BYTES));
        }
    }
}
