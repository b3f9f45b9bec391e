//! The keeper: a process that holds the processes and pipes of one step, writes the step's output and exit record to disk, and outlives
//! the runner. One thread around poll(2). Communicates only with its runner, never over the network.

mod feed;
mod job;
mod pump;
mod start;

use crate::cgroup::Groups;
use crate::clock::wall_ms;
use crate::containment::Way;
use crate::exit::{self, ExitRecord};
use crate::orders::{self, KeeperOrder, Told};
use crate::pages;
use crate::slot;
use crate::spool::Writer;
use job::Job;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};
use wire::runner::{EndCause, Stream};

pub use start::find_program;

/// The step's folder is the keeper's working directory, so it may be renamed at any time.
const HERE: &str = ".";
/// How often a keeper without a runner checks whether its folder was removed: then no runner will ask for the outcome, and it ends.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(10);

/// Most of what happens to a keeper is over after this: its start, its job's start, a burst of output.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// Never returns. Descriptor 0 is the listening socket.
pub fn main() -> ! {
    // Begun before the folder can go; removed when nothing is left in them, whichever way this ends.
    let groups = slot::groups_of(Path::new(HERE));
    let way = Way::from_argument(&std::env::args().nth(2).unwrap_or_default());
    let served = match Keeper::new(groups.clone(), way) {
        Ok(mut keeper) => {
            let served = keeper.serve();
            keeper.groups.remove();
            served
        }
        Err(error) => {
            groups.remove();
            Err(error)
        }
    };
    let code = match served {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "keeper: {error}");
            1
        }
    };
    std::process::exit(code)
}

struct Keeper {
    listener: UnixListener,
    signals: SignalFd,
    runner: Option<Runner>,
    job: Option<Job>,
    groups: Groups,
    way: Way,
    link_up: bool,
    /// When the pages that the latest events needed are let go.
    settled_at: Option<Instant>,
}

/// The runner that is attached now.
struct Runner {
    stream: UnixStream,
    arrived: Vec<u8>,
}

/// What woke the keeper.
struct Woken {
    signals: bool,
    knocked: bool,
    runner: bool,
    output: [bool; 2],
    input: bool,
}

impl Woken {
    /// And not by the clock.
    fn by_somebody(&self) -> bool {
        self.signals || self.knocked || self.runner || self.input || self.output.contains(&true)
    }
}

impl Keeper {
    fn new(groups: Groups, way: Way) -> io::Result<Keeper> {
        // Inherited descriptors are closed: another process may be waiting for the end of such a pipe.
        // SAFETY: nothing above 2 has been opened by this process yet.
        unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
        // The runner's terminal and its signals are not ours; our own children come back to us when their parents die.
        let _ = nix::unistd::setsid();
        nix::sys::prctl::set_child_subreaper(true)?;
        nix::sys::prctl::set_name(c"repl-keeper")?;
        let mut mask = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            mask.add(signal);
        }
        mask.thread_block()?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // SAFETY: the runner passes the listening socket as descriptor 0; nothing else in this process uses it.
        let listener = unsafe { UnixListener::from_raw_fd(0) };
        listener.set_nonblocking(true)?;
        Ok(Keeper {
            listener,
            signals,
            runner: None,
            job: None,
            groups,
            way,
            link_up: true,
            settled_at: Some(Instant::now() + SETTLED_AFTER),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            if self.job.as_mut().is_some_and(|job| job.is_over()) {
                return self.job.take().expect("just looked").finish();
            }
            let woken = self.wait()?;
            let now = Instant::now();
            if woken.signals {
                while self.signals.read_signal()?.is_some() {}
                if let Some(job) = &mut self.job {
                    job.reap(now);
                }
            }
            if woken.knocked {
                self.greet()?;
            }
            if woken.runner && self.listen(now)? {
                return Ok(());
            }
            self.pump(woken.output)?;
            if let Some(job) = self.job.as_mut().filter(|_| woken.input) {
                job.feed();
            }
            self.settle(woken.by_somebody(), now);
            if let Some(job) = &mut self.job {
                job.tend(now);
            }
            if self.runner.is_none() && self.is_forsaken() {
                match &mut self.job {
                    Some(job) => job.abort(EndCause::ExecutorError, now),
                    None => return Ok(()),
                }
            }
        }
    }

    /// After something has happened, pages it needed go. Not at once and not each time: what comes next may need them.
    fn settle(&mut self, happened: bool, now: Instant) {
        match self.settled_at {
            Some(due) if due <= now => {
                self.settled_at = None;
                pages::let_go();
            }
            None if happened => self.settled_at = Some(now + SETTLED_AFTER),
            _ => {}
        }
    }

    fn wait(&self) -> io::Result<Woken> {
        let mut watched = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(runner) = &self.runner {
            watched.push(PollFd::new(runner.stream.as_fd(), PollFlags::POLLIN));
        }
        let first_output = watched.len();
        let sources = self.job.as_ref().map_or([None, None], |job| job.pump.sources(self.link_up));
        let which: Vec<usize> = (0..2).filter(|n| sources[*n].is_some()).collect();
        watched.extend(sources.iter().flatten().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        let input = watched.len();
        watched.extend(self.job.as_ref().and_then(Job::hungry).map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
        match poll(&mut watched, self.timeout()) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |n: usize| watched.get(n).is_some_and(|fd| fd.any().unwrap_or(false));
        let mut output = [false; 2];
        for (nth, source) in which.into_iter().enumerate() {
            output[source] = ready(first_output + nth);
        }
        let runner = self.runner.is_some() && ready(2);
        Ok(Woken { signals: ready(0), knocked: ready(1), runner, output, input: ready(input) })
    }

    fn timeout(&self) -> PollTimeout {
        let due = [self.job.as_ref().and_then(Job::next_due), self.settled_at].into_iter().flatten().min();
        let mut wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        if self.runner.is_none() {
            wait = Some(wait.unwrap_or(LOOK_AROUND_EVERY).min(LOOK_AROUND_EVERY));
        }
        // Rounded up: to wake a moment early would be to wake twice.
        wait.map_or(PollTimeout::NONE, |wait| {
            PollTimeout::try_from(wait.as_millis() + 1).unwrap_or(PollTimeout::from(u16::MAX))
        })
    }

    /// The newest runner is the runner.
    fn greet(&mut self) -> io::Result<()> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        self.runner = Some(Runner { stream, arrived: Vec::new() });
        if self.job.is_some() {
            self.tell(Told::Started);
        }
        Ok(())
    }

    /// Best effort: a full socket holds an older byte that wakes the runner just as well.
    fn tell(&mut self, told: Told) {
        if let Some(runner) = &mut self.runner {
            let _ = runner.stream.write(&[told.byte()]);
        }
    }

    /// Hears what the runner says; true when the keeper has nothing left to live for.
    fn listen(&mut self, now: Instant) -> io::Result<bool> {
        let gone = match &mut self.runner {
            Some(runner) => runner.read(),
            None => return Ok(false),
        };
        while let Some(order) = self.next_order()? {
            if self.obey(order, now)? {
                return Ok(true);
            }
        }
        if gone {
            self.runner = None;
            self.link_up = false;
        }
        // A runner that went away before it gave any order will make itself a new keeper.
        Ok(gone && self.job.is_none())
    }

    fn next_order(&mut self) -> io::Result<Option<KeeperOrder>> {
        self.runner.as_mut().map_or(Ok(None), |runner| orders::unpack(&mut runner.arrived))
    }

    fn obey(&mut self, order: KeeperOrder, now: Instant) -> io::Result<bool> {
        match (order, &mut self.job) {
            (KeeperOrder::Start(start), None) => {
                self.groups = start.groups.clone();
                exit::mark_begun(Path::new(HERE), wall_ms())?;
                self.job = Job::start(*start, (&self.groups, self.way), Path::new(HERE), now)?;
                if self.job.is_none() {
                    return Ok(true);
                }
                self.tell(Told::Started);
            }
            (KeeperOrder::Refuse { cause, message }, None) => {
                refuse(cause, message)?;
                return Ok(true);
            }
            (KeeperOrder::Link { up }, _) => self.link_up = up,
            // Said again to a runner that asks again: the one that asked first may be gone.
            (KeeperOrder::Freeze, Some(job)) => {
                if job.freeze(now) {
                    self.tell(Told::Froze);
                }
            }
            (KeeperOrder::Thaw, Some(job)) => {
                job.thaw(now);
                self.tell(Told::Thawed);
            }
            (KeeperOrder::Stop { cause, within_ms }, Some(job)) => job.stop(cause, within_ms, now),
            (KeeperOrder::Abort { cause }, Some(job)) => job.abort(cause, now),
            (KeeperOrder::Delivered { offset }, Some(job)) => job.pump.delivered(offset),
            // Said twice, or to a keeper that has nothing to stop.
            (KeeperOrder::Start(_) | KeeperOrder::Refuse { .. }, Some(_)) | (_, None) => {}
        }
        Ok(false)
    }

    fn pump(&mut self, output: [bool; 2]) -> io::Result<()> {
        let Some(job) = &mut self.job else { return Ok(()) };
        let before = job.pump.offset();
        for source in (0..2).filter(|n| output[*n]) {
            job.pump.take(source, self.link_up)?;
        }
        if job.pump.offset() > before {
            self.tell(Told::Wrote);
        }
        Ok(())
    }

    /// The folder was removed: no runner will ask for this step.
    fn is_forsaken(&self) -> bool {
        std::fs::metadata(HERE).is_ok_and(|here| std::os::unix::fs::MetadataExt::nlink(&here) == 0)
    }
}

impl Runner {
    /// Takes what has arrived; true when the runner is gone.
    fn read(&mut self) -> bool {
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return true,
                Ok(read) => self.arrived.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

/// Ends a step that never began, in the same two files as any other.
fn refuse(cause: EndCause, message: String) -> io::Result<()> {
    let here = Path::new(HERE);
    exit::mark_begun(here, wall_ms())?;
    let mut spool = Writer::open(here, u64::MAX)?;
    // Without room for a note the record below says it too.
    let _ = spool.append(Stream::Runner, wall_ms(), format!("{message}\n").as_bytes());
    let ended = ExitRecord {
        cause: Some(cause),
        message: Some(message),
        final_offset: spool.offset(),
        at_ms: wall_ms(),
        ..ExitRecord::default()
    };
    exit::write(here, &ended)
}
