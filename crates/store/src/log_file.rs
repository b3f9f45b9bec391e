//! The encoding of log frames: one after the other in a row's bytes, and in a gathered file as independently compressed blocks with an
//! index by offset, so that a read at any offset needs one block.

use crate::blob::{Download, Upload};
use model::{Failure, Timestamp, Trouble};
use std::io::{Read, Seek, SeekFrom};

const MAGIC: &[u8; 8] = b"RMDLOG1\n";
const BLOCK_BYTES: usize = 256 * 1024;
const ENTRY_BYTES: usize = 36;
const FOOTER_BYTES: usize = 20;
const FRAME_HEAD: usize = 13;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    Stdout,
    Stderr,
    /// Notes of the runner and of the control plane.
    Runner,
}

/// Bytes as they came from one pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub stream: LogStream,
    /// The runner's wall clock, for display.
    pub at: Timestamp,
    pub data: Vec<u8>,
}

/// A frame in its job's byte sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub offset: i64,
    /// Where to go on reading after it.
    pub next: i64,
    pub frame: Frame,
}

pub(crate) fn encode(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frames.iter().map(|frame| FRAME_HEAD + frame.data.len()).sum());
    for frame in frames {
        bytes.push(frame.stream as u8);
        bytes.extend_from_slice(&frame.at.0.to_le_bytes());
        bytes.extend_from_slice(&(frame.data.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&frame.data);
    }
    bytes
}

/// Frames that begin at `offset`, without what lies before `from`.
pub(crate) fn decode(mut bytes: &[u8], mut offset: i64, from: i64, into: &mut Vec<Placed>) -> Result<(), Failure> {
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(FRAME_HEAD).ok_or_else(damaged)?;
        let length = u32::from_le_bytes(head[9..].try_into().expect("four bytes")) as usize;
        let (data, rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let next = offset + length as i64;
        if next > from {
            let skip = (from - offset).max(0);
            let at = Timestamp(i64::from_le_bytes(head[1..9].try_into().expect("eight bytes")));
            let frame = Frame { stream: stream(head[0])?, at, data: data[skip as usize..].to_vec() };
            into.push(Placed { offset: offset + skip, next, frame });
        }
        (bytes, offset) = (rest, next);
    }
    Ok(())
}

fn stream(byte: u8) -> Result<LogStream, Failure> {
    [LogStream::Stdout, LogStream::Stderr, LogStream::Runner].into_iter().find(|s| *s as u8 == byte).ok_or_else(damaged)
}

/// Writes a gathered file, one block in memory at a time.
pub(crate) struct Gathering {
    upload: Upload,
    position: u64,
    block: Vec<u8>,
    starts: i64,
    ends: i64,
    index: Vec<u8>,
}

impl Gathering {
    pub(crate) fn begin(mut upload: Upload) -> Result<Gathering, Failure> {
        upload.write(MAGIC)?;
        Ok(Gathering { upload, position: MAGIC.len() as u64, block: Vec::new(), starts: 0, ends: 0, index: Vec::new() })
    }

    /// Encoded frames of `starts..ends`, which follow those given before; bytes in between are lost.
    pub(crate) fn add(&mut self, frames: &[u8], starts: i64, ends: i64) -> Result<(), Failure> {
        if !self.block.is_empty() && (self.block.len() + frames.len() > BLOCK_BYTES || starts != self.ends) {
            self.close_block()?;
        }
        if self.block.is_empty() {
            self.starts = starts;
        }
        self.block.extend_from_slice(frames);
        self.ends = ends;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Upload, Failure> {
        if !self.block.is_empty() {
            self.close_block()?;
        }
        let blocks = (self.index.len() / ENTRY_BYTES) as u32;
        self.upload.write(&self.index)?;
        self.upload.write(&self.position.to_le_bytes())?;
        self.upload.write(&blocks.to_le_bytes())?;
        self.upload.write(MAGIC)?;
        Ok(self.upload)
    }

    fn close_block(&mut self) -> Result<(), Failure> {
        let block = lz4_flex::block::compress_prepend_size(&self.block);
        self.block.clear();
        self.upload.write(&block)?;
        self.index.extend_from_slice(&self.starts.to_le_bytes());
        self.index.extend_from_slice(&self.ends.to_le_bytes());
        self.index.extend_from_slice(&self.position.to_le_bytes());
        self.index.extend_from_slice(&(block.len() as u32).to_le_bytes());
        self.index.extend_from_slice(&check(&block));
        self.position += block.len() as u64;
        Ok(())
    }
}

/// At least one block's frames from offset `from` on, more while they are below `max_bytes`.
pub(crate) fn read(mut file: Download, from: i64, max_bytes: i64) -> Result<Vec<Placed>, Failure> {
    let mut footer = [0; FOOTER_BYTES];
    read_at(&mut file, SeekFrom::End(-(FOOTER_BYTES as i64)), &mut footer)?;
    if &footer[12..] != MAGIC {
        return Err(damaged());
    }
    let position = u64::from_le_bytes(footer[..8].try_into().expect("eight bytes"));
    let blocks = u32::from_le_bytes(footer[8..12].try_into().expect("four bytes")) as usize;
    let mut index = vec![0; blocks * ENTRY_BYTES];
    read_at(&mut file, SeekFrom::Start(position), &mut index)?;
    let (mut frames, mut bytes) = (Vec::new(), 0);
    for entry in index.chunks_exact(ENTRY_BYTES).skip_while(|entry| number(&entry[8..]) <= from) {
        if bytes >= max_bytes {
            break;
        }
        let mut block = vec![0; u32::from_le_bytes(entry[24..28].try_into().expect("four bytes")) as usize];
        read_at(&mut file, SeekFrom::Start(number(&entry[16..]) as u64), &mut block)?;
        if check(&block) != entry[28..] {
            return Err(damaged());
        }
        let raw = lz4_flex::block::decompress_size_prepended(&block).map_err(|_| damaged())?;
        decode(&raw, number(entry), from, &mut frames)?;
        bytes = frames.last().map_or(0, |last| last.next - from);
    }
    Ok(frames)
}

fn read_at(file: &mut Download, at: SeekFrom, into: &mut [u8]) -> Result<(), Failure> {
    file.seek(at)
        .and_then(|_| file.read_exact(into))
        .map_err(|e| Trouble::internal(format!("a gathered log cannot be read: {e}")).into())
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

fn check(block: &[u8]) -> [u8; 8] {
    blake3::hash(block).as_bytes()[..8].try_into().expect("eight bytes")
}

fn damaged() -> Failure {
    Trouble::internal("a stored log is damaged").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::{BlobName, Blobs};
    use model::{JobId, OrgId};
    use proptest::prelude::*;

    fn frame(stream: LogStream, data: &[u8]) -> Frame {
        Frame { stream, at: Timestamp(5), data: data.to_vec() }
    }

    #[test]
    fn reading_may_begin_inside_a_frame() {
        let bytes = encode(&[frame(LogStream::Stdout, b"hello"), frame(LogStream::Stderr, b"world")]);
        let mut frames = Vec::new();
        decode(&bytes, 100, 103, &mut frames).unwrap();
        let [first, second] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((first.offset, first.next, first.frame.data.as_slice()), (103, 105, b"lo".as_slice()));
        assert_eq!((second.offset, second.frame.stream), (105, LogStream::Stderr));
        assert!(decode(&bytes[..7], 0, 0, &mut frames).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn a_gathered_log_reads_the_same_from_everywhere(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40_000), 1..30), at in 0.0..1.0f64,
        ) {
            let blobs = Blobs::memory();
            let mut gathering = Gathering::begin(blobs.begin().unwrap()).unwrap();
            let (mut all, mut offset) = (Vec::new(), 0);
            for chunk in &chunks {
                let next = offset + chunk.len() as i64;
                gathering.add(&encode(&[frame(LogStream::Stdout, chunk)]), offset, next).unwrap();
                all.extend_from_slice(chunk);
                offset = next;
            }
            let name = BlobName::Log { org: OrgId(1), log: JobId(2).into() };
            gathering.finish().unwrap().keep(&name).unwrap();
            let from = (offset as f64 * at) as i64;
            let (mut seen, mut place) = (Vec::new(), from);
            while place < offset {
                for placed in read(blobs.open(&name).unwrap(), place, 100_000).unwrap() {
                    prop_assert_eq!(placed.offset, place);
                    place = placed.next;
                    seen.extend(placed.frame.data);
                }
            }
            prop_assert_eq!(&seen[..], &all[from as usize..]);
        }
    }
}
