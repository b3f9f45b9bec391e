//! A step's output on disk: one sequence of frames with checksums, in segments that are deleted once they are delivered.
//! The keeper writes, the runner reads; neither waits for the other.

use crate::record::checksum;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use wire::model::crash_point;
use wire::runner::Stream;

/// Length, stream, time and checksum stand before the bytes of a frame.
const HEAD: usize = 24;
pub const LONGEST_FRAME: usize = 64 << 10;
const SEGMENT: u64 = 8 << 20;
/// Room for a small job's whole output and for the marks that say what is missing, taken before the job begins.
const SET_ASIDE: i64 = 128 << 10;

pub struct Writer {
    dir: PathBuf,
    file: File,
    current: Segment,
    /// Full segments, oldest first.
    full: VecDeque<Segment>,
    segment_bytes: u64,
}

struct Segment {
    /// Offsets of the byte sequence, not of the file.
    from: i64,
    to: i64,
    /// What it takes on disk, heads included.
    bytes: u64,
}

fn segment_path(dir: &Path, from: i64) -> PathBuf {
    dir.join(format!("log.{from:020}"))
}

/// Creates the first segment with room set aside in it.
pub fn prepare(dir: &Path) -> io::Result<()> {
    let file = File::create_new(segment_path(dir, 0))?;
    // SAFETY: a plain system call on an open descriptor. Not every file system can; then there is just no room set aside.
    unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, 0, SET_ASIDE) };
    Ok(())
}

impl Writer {
    /// `quota` only sets how large a segment may grow: there must be some to drop before it is reached.
    pub fn open(dir: &Path, quota: u64) -> io::Result<Writer> {
        let file = OpenOptions::new().write(true).open(segment_path(dir, 0))?;
        let current = Segment { from: 0, to: 0, bytes: 0 };
        let segment_bytes = (quota / 4).clamp(1, SEGMENT);
        Ok(Writer { dir: dir.to_owned(), file, current, full: VecDeque::new(), segment_bytes })
    }

    pub fn offset(&self) -> i64 {
        self.current.to
    }

    /// What is on disk and not yet delivered.
    pub fn used(&self) -> u64 {
        self.current.bytes + self.full.iter().map(|segment| segment.bytes).sum::<u64>()
    }

    /// All or nothing: after an error the sequence ends where it ended before.
    pub fn append(&mut self, stream: Stream, at_ms: i64, bytes: &[u8]) -> io::Result<()> {
        for frame in bytes.chunks(LONGEST_FRAME) {
            if self.current.bytes >= self.segment_bytes {
                self.roll()?;
            }
            let mut sealed = Vec::with_capacity(HEAD + frame.len());
            sealed.extend_from_slice(&head(stream, at_ms, frame));
            sealed.extend_from_slice(frame);
            if let Err(error) = crash_point!("spool.append", self.file.write_all(&sealed)) {
                self.file.set_len(self.current.bytes)?;
                io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.current.bytes))?;
                return Err(error);
            }
            self.current.bytes += sealed.len() as u64;
            self.current.to += frame.len() as i64;
        }
        Ok(())
    }

    fn roll(&mut self) -> io::Result<()> {
        let at = self.current.to;
        self.file = crash_point!("spool.roll", File::create(segment_path(&self.dir, at)))?;
        self.full.push_back(std::mem::replace(&mut self.current, Segment { from: at, to: at, bytes: 0 }));
        Ok(())
    }

    /// Everything below `offset` is safe elsewhere.
    pub fn delivered(&mut self, offset: i64) {
        while self.full.front().is_some_and(|segment| segment.to <= offset) {
            let segment = self.full.pop_front().expect("looked at it");
            // One that cannot be removed costs room, nothing else.
            let _ = crash_point!("spool.drop", std::fs::remove_file(segment_path(&self.dir, segment.from)));
        }
    }
}

/// Adds words of the runner to a log whose writer is gone and which ends at `end`. Once: what a runner before this one
/// has added is the end already. Returns the new end.
pub fn add_at_end(dir: &Path, end: i64, text: &[u8]) -> io::Result<i64> {
    let mut reader = Reader::new(dir);
    reader.seek(end);
    let found = reader.end()?;
    if found > end {
        return Ok(found);
    }
    let place = reader.place.ok_or(io::ErrorKind::NotFound)?;
    let file = OpenOptions::new().write(true).open(segment_path(dir, place.from))?;
    let text = &text[..text.len().min(LONGEST_FRAME)];
    let frame = [&head(Stream::Runner, crate::clock::wall_ms(), text)[..], text].concat();
    // Behind the last whole frame; what of this one does not find room is read as a torn one, which is none.
    file.write_all_at(&frame, place.at)?;
    Ok(end + text.len() as i64)
}

fn head(stream: Stream, at_ms: i64, bytes: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    head[4] = match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
        Stream::Runner | Stream::Unknown => 3,
    };
    head[8..16].copy_from_slice(&at_ms.to_le_bytes());
    let check = checksum(&[&head[..16], bytes]);
    head[16..].copy_from_slice(&check.to_le_bytes());
    head
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub stream: Stream,
    pub at_ms: i64,
    pub bytes: Vec<u8>,
}

/// Reads the sequence from any offset that is still on disk.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    offset: i64,
    /// The segment being read and where in its file the frame at `offset` (or around it) begins.
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    file: File,
    from: i64,
    at: u64,
    /// The offset of the byte sequence at which that frame begins.
    frame_offset: i64,
}

impl Reader {
    pub fn new(dir: &Path) -> Reader {
        Reader { dir: dir.to_owned(), offset: 0, place: None }
    }

    pub fn offset(&self) -> i64 {
        self.offset
    }

    pub fn seek(&mut self, offset: i64) {
        if offset != self.offset {
            self.offset = offset;
            self.place = None;
        }
    }

    /// Whole frames from here on, up to about `most` bytes. Empty at the end, and before an offset no longer on disk.
    pub fn read(&mut self, most: usize) -> io::Result<Vec<Piece>> {
        let (mut pieces, mut taken) = (Vec::new(), 0);
        while taken < most {
            let Some(piece) = self.next_piece()? else { break };
            taken += piece.bytes.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Where the sequence ends on disk: for a log whose writer is gone.
    pub fn end(&mut self) -> io::Result<i64> {
        while self.next_piece()?.is_some() {}
        Ok(self.offset)
    }

    fn next_piece(&mut self) -> io::Result<Option<Piece>> {
        loop {
            let offset = self.offset;
            let Some(place) = self.find_place()? else { return Ok(None) };
            let Some(piece) = read_frame(&place.file, place.at)? else {
                // The end of this segment, or the writer is in the midst of a frame.
                if place.from == offset || !segment_path(&self.dir, offset).exists() {
                    return Ok(None);
                }
                self.place = None;
                continue;
            };
            let skip = usize::try_from(offset - place.frame_offset).unwrap_or(0);
            place.at += (HEAD + piece.bytes.len()) as u64;
            place.frame_offset += piece.bytes.len() as i64;
            if skip >= piece.bytes.len() {
                continue;
            }
            self.offset = place.frame_offset;
            return Ok(Some(Piece { bytes: piece.bytes[skip..].to_vec(), ..piece }));
        }
    }

    fn find_place(&mut self) -> io::Result<Option<&mut Place>> {
        if self.place.is_none() {
            let Some(from) = self.segments().into_iter().rfind(|from| *from <= self.offset) else { return Ok(None) };
            let file = match File::open(segment_path(&self.dir, from)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                opened => opened?,
            };
            self.place = Some(Place { file, from, at: 0, frame_offset: from });
        }
        Ok(self.place.as_mut())
    }

    fn segments(&self) -> Vec<i64> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut found: Vec<i64> =
            entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("log.")?.parse().ok()).collect();
        found.sort_unstable();
        found
    }
}

/// The first byte that is still on disk.
pub fn first(dir: &Path) -> i64 {
    Reader::new(dir).segments().first().copied().unwrap_or(0)
}

fn read_frame(file: &File, at: u64) -> io::Result<Option<Piece>> {
    let mut head = [0; HEAD];
    if read_up_to(file, &mut head, at)? < HEAD {
        return Ok(None);
    }
    let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
    if length == 0 || length > LONGEST_FRAME {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    let whole = read_up_to(file, &mut bytes, at + HEAD as u64)? == length;
    let check = u64::from_le_bytes(head[16..].try_into().expect("eight bytes"));
    if !whole || checksum(&[&head[..16], &bytes]) != check {
        return Ok(None);
    }
    let stream = match head[4] {
        1 => Stream::Stdout,
        2 => Stream::Stderr,
        _ => Stream::Runner,
    };
    Ok(Some(Piece { stream, at_ms: i64::from_le_bytes(head[8..16].try_into().expect("eight bytes")), bytes }))
}

fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[Piece]) -> String {
        pieces.iter().map(|piece| String::from_utf8_lossy(&piece.bytes).into_owned()).collect()
    }

    #[test]
    fn what_is_written_is_read_from_any_offset() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        let mut writer = Writer::open(dir.path(), 400).unwrap();
        let whole: String = (0..100).map(|n| format!("line {n}\n")).collect();
        for line in whole.split_inclusive('\n') {
            writer.append(Stream::Stdout, 5, line.as_bytes()).unwrap();
        }
        assert_eq!(writer.offset(), whole.len() as i64);
        for offset in 0..=whole.len() {
            let mut reader = Reader::new(dir.path());
            reader.seek(offset as i64);
            assert_eq!(text(&reader.read(usize::MAX).unwrap()), whole[offset..], "from {offset}");
            assert_eq!(reader.offset(), whole.len() as i64);
        }
    }

    #[test]
    fn a_reader_follows_its_writer_over_segments_that_go() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        let (mut writer, mut reader) = (Writer::open(dir.path(), 400).unwrap(), Reader::new(dir.path()));
        let mut seen = String::new();
        for n in 0..200 {
            writer.append(Stream::Stderr, n, format!("{n},").as_bytes()).unwrap();
            if n % 7 == 0 {
                seen.push_str(&text(&reader.read(1000).unwrap()));
                writer.delivered(reader.offset());
                assert!(writer.used() < 800, "delivered segments go: {}", writer.used());
            }
        }
        seen.push_str(&text(&reader.read(usize::MAX).unwrap()));
        assert_eq!(seen, (0..200).map(|n| format!("{n},")).collect::<String>());
        reader.seek(0);
        assert_eq!(reader.read(10).unwrap(), [], "what is gone is not invented");
    }

    #[test]
    fn a_torn_frame_is_the_end() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        let mut writer = Writer::open(dir.path(), 1 << 20).unwrap();
        writer.append(Stream::Stdout, 0, b"whole").unwrap();
        writer.append(Stream::Stdout, 0, b"torn by a crash").unwrap();
        let path = segment_path(dir.path(), 0);
        let length = std::fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(path).unwrap().set_len(length - 3).unwrap();
        assert_eq!(Reader::new(dir.path()).end().unwrap(), 5);
    }

    #[test]
    fn last_words_are_added_once_wherever_the_log_ends() {
        for lines in [0, 1, 100] {
            let dir = tempfile::tempdir().unwrap();
            prepare(dir.path()).unwrap();
            let mut writer = Writer::open(dir.path(), 400).unwrap();
            let whole: String = (0..lines).map(|n| format!("line {n}\n")).collect();
            for line in whole.split_inclusive('\n') {
                writer.append(Stream::Stdout, 5, line.as_bytes()).unwrap();
            }
            writer.delivered(writer.offset() / 2);
            let end = add_at_end(dir.path(), writer.offset(), b"last\n").unwrap();
            assert_eq!(end, whole.len() as i64 + 5);
            assert_eq!(add_at_end(dir.path(), writer.offset(), b"again\n").unwrap(), end, "a second runner");
            let mut reader = Reader::new(dir.path());
            reader.seek(whole.len() as i64);
            let last = reader.read(usize::MAX).unwrap();
            assert_eq!((text(&last), last[0].stream), ("last\n".to_owned(), Stream::Runner), "after {lines} lines");
        }
    }

    #[test]
    fn long_output_is_cut_into_frames() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        let mut writer = Writer::open(dir.path(), 1 << 20).unwrap();
        writer.append(Stream::Stdout, 0, &vec![b'x'; 200_000]).unwrap();
        let pieces = Reader::new(dir.path()).read(usize::MAX).unwrap();
        assert!(pieces.len() == 4 && pieces.iter().all(|piece| piece.bytes.len() <= LONGEST_FRAME));
    }
}
