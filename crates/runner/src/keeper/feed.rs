//! Standard input of a step: the bytes of a kept file, into a pipe that the command reads. A pipe and not the file itself, so that the
//! command cannot change what is kept for others.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{pipe2, write};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// As much as a pipe usually holds.
const PIECE: usize = 64 << 10;
/// Pieces in one go: output and orders wait no longer than this.
const AT_ONCE: usize = 16;

pub struct Feed {
    file: File,
    pipe: OwnedFd,
    written: u64,
}

impl Feed {
    /// The other end is the command's.
    pub fn open(path: &Path) -> io::Result<(Feed, OwnedFd)> {
        let missing = |error: io::Error| io::Error::other(format!("its standard input is not here: {error}"));
        let file = File::open(path).map_err(missing)?;
        let (reads, pipe) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok((Feed { file, pipe, written: 0 }, reads))
    }

    pub fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Writes what there is room for. False when all is written, or the reading end is closed, or the file cannot be read: the command then
    /// sees the end.
    pub fn pump(&mut self) -> bool {
        let mut piece = [0; PIECE];
        for _ in 0..AT_ONCE {
            let read = match self.file.read_at(&mut piece, self.written) {
                Ok(0) | Err(_) => return false,
                Ok(read) => read,
            };
            match write(&self.pipe, &piece[..read]) {
                Ok(written) => self.written += written as u64,
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[test]
fn all_bytes_arrive_and_then_the_end() {
    use std::io::Read;
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(file.path(), &bytes).unwrap();
    let (mut feed, reads) = Feed::open(file.path()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        File::from(reads).read_to_end(&mut all).map(|_| all).unwrap()
    });
    loop {
        let mut fds = [nix::poll::PollFd::new(feed.pipe(), nix::poll::PollFlags::POLLOUT)];
        nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE).unwrap();
        if !feed.pump() {
            break;
        }
    }
    drop(feed);
    assert!(reader.join().unwrap() == bytes);
}

#[test]
fn a_command_that_reads_nothing_is_fed_no_more() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0; 1 << 20]).unwrap();
    let (mut feed, reads) = Feed::open(file.path()).unwrap();
    assert!(feed.pump(), "the pipe is full");
    drop(reads);
    assert!(!feed.pump());
    assert!(Feed::open(Path::new("/nowhere")).is_err());
}
