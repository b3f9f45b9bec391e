//! Copies a step's output from its pipes to its log: masks secrets, writes frames, and records how much was dropped.

use crate::clock::wall_ms;
use crate::spool::{LONGEST_FRAME, Writer};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::model::secret::Masker;
use wire::runner::{OUTPUT_BYTES, Stream, TAIL_BYTES};

pub struct Pump {
    sources: [Option<Source>; 2],
    spool: Writer,
    quota: u64,
    dropped: Dropped,
    buffer: Vec<u8>,
    /// The last bytes of standard output, for steps whose output contains them.
    tail: Option<Vec<u8>>,
    /// Where the standard output goes instead of the log, and how much more of it.
    answer: Option<(File, usize)>,
}

struct Source {
    pipe: OwnedFd,
    stream: Stream,
    masker: Masker,
}

/// Output that found no room, until a mark says so in its place.
#[derive(Default)]
struct Dropped {
    bytes: u64,
    disk_full: bool,
}

impl Pump {
    /// `pipes`: stdout, and stderr unless both go through the first.
    pub fn new(pipes: (OwnedFd, Option<OwnedFd>), secrets: &[String], spool: Writer, quota: u64, tail: bool) -> Pump {
        let source = |pipe, stream| Source { pipe, stream, masker: Masker::new(secrets) };
        let sources = [Some(source(pipes.0, Stream::Stdout)), pipes.1.map(|pipe| source(pipe, Stream::Stderr))];
        let buffer = vec![0; LONGEST_FRAME];
        Pump { sources, spool, quota, dropped: Dropped::default(), buffer, tail: tail.then(Vec::new), answer: None }
    }

    /// The standard output is the command's answer. One byte more than an answer may have is enough to refuse it.
    pub fn answer_to(&mut self, file: File) {
        self.answer = Some((file, OUTPUT_BYTES + 1));
    }

    pub fn offset(&self) -> i64 {
        self.spool.offset()
    }

    /// The end of the standard output, if it was asked for.
    pub fn tail(&mut self) -> Option<Vec<u8>> {
        self.tail.take()
    }

    pub fn delivered(&mut self, offset: i64) {
        self.spool.delivered(offset);
    }

    /// The pipes to poll: none while the spool is full and a runner is connected, which will empty it.
    pub fn sources(&self, link_up: bool) -> [Option<BorrowedFd<'_>>; 2] {
        if link_up && self.is_full() {
            return [None, None];
        }
        [0, 1].map(|n: usize| self.sources[n].as_ref().map(|source| source.pipe.as_fd()))
    }

    fn is_full(&self) -> bool {
        self.spool.used() >= self.quota
    }

    /// One read of one pipe. True when there may be more.
    pub fn take(&mut self, which: usize, link_up: bool) -> io::Result<bool> {
        let Some(source) = &mut self.sources[which] else { return Ok(false) };
        match nix::unistd::read(&source.pipe, &mut self.buffer) {
            Ok(0) => {
                self.close(which);
                Ok(false)
            }
            Ok(read) => {
                let mut shown = Vec::with_capacity(read);
                source.masker.feed(&self.buffer[..read], &mut shown);
                let stream = source.stream;
                self.write(stream, &shown, link_up);
                Ok(true)
            }
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&mut self, stream: Stream, bytes: &[u8], link_up: bool) {
        if bytes.is_empty() {
            return;
        }
        if let Some(tail) = self.tail.as_mut().filter(|_| stream == Stream::Stdout) {
            tail.extend_from_slice(bytes);
            tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
        }
        if let Some((file, room)) = self.answer.as_mut().filter(|_| stream == Stream::Stdout) {
            let taken = bytes.len().min(*room);
            match file.write_all(&bytes[..taken]) {
                Ok(()) => *room -= taken,
                Err(_) => self.dropped = Dropped { bytes: self.dropped.bytes + taken as u64, disk_full: true },
            }
            return;
        }
        if !link_up && self.is_full() {
            self.dropped.bytes += bytes.len() as u64;
            return;
        }
        if self.mark().and_then(|()| self.spool.append(stream, wall_ms(), bytes)).is_err() {
            self.dropped.bytes += bytes.len() as u64;
            self.dropped.disk_full = true;
        }
    }

    /// Says what is missing, where it is missing.
    fn mark(&mut self) -> io::Result<()> {
        if let Some(text) = self.missing() {
            self.spool.append(Stream::Runner, wall_ms(), format!("[{text}]\n").as_bytes())?;
            self.dropped = Dropped::default();
        }
        Ok(())
    }

    fn missing(&self) -> Option<String> {
        let why = if self.dropped.disk_full {
            "the disk was full"
        } else {
            "the spool was full while the control plane was away"
        };
        (self.dropped.bytes > 0).then(|| format!("{} bytes of output dropped: {why}", self.dropped.bytes))
    }

    pub fn note(&mut self, text: &str) {
        // A note that finds no room is in the exit record too.
        let _ = self.spool.append(Stream::Runner, wall_ms(), format!("{text}\n").as_bytes());
    }

    fn close(&mut self, which: usize) {
        if let Some(mut source) = self.sources[which].take() {
            let mut shown = Vec::new();
            source.masker.finish(&mut shown);
            self.write(source.stream, &shown, true);
        }
    }

    /// Everything of the job is gone: takes what the pipes still hold. A pipe that went to a process outside the job
    /// never ends, so an empty one is enough. Returns what could not be kept.
    pub fn drain(&mut self) -> io::Result<Option<String>> {
        for which in 0..2 {
            while self.take(which, true)? {}
            self.close(which);
        }
        match self.mark() {
            Err(error) if error.kind() != ErrorKind::StorageFull => Err(error),
            _ => Ok(self.missing()),
        }
    }
}
