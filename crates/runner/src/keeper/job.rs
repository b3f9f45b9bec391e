//! The processes of one step of a job: started, frozen, stopped, ended together. The step is over when its command has ended and no
//! process of its tree is left.

use super::feed::Feed;
use super::pump::Pump;
use super::start::{self, Pipes};
use crate::cgroup::Groups;
use crate::clock::{ActiveTime, wall_ms};
use crate::containment::Way;
use crate::exit::{self, ExitRecord};
use crate::namespace::{self, Namespace};
use crate::orders::Start;
use crate::output;
use crate::process;
use crate::spool::Writer;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::Base64;
use wire::model::secret::Masker;
use wire::model::{bug, crash_point};
use wire::runner::EndCause;

/// While processes that were killed are still there, they are killed again, because one may have forked meanwhile:
/// first after this long, then ever less often, for those that hang in the kernel.
const KILL_AGAIN_AFTER: Duration = Duration::from_millis(20);
const KILL_AGAIN_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// Large enough that a job writing fast does not wait for us at every page.
const PIPE_BYTES: i32 = 256 << 10;

pub struct Job {
    pub pump: Pump,
    /// Until the command has all of its standard input, or wants no more.
    feed: Option<Feed>,
    dir: PathBuf,
    /// What is hidden in the command's output.
    secrets: Masker,
    /// The command, or the first process of the namespace it is in.
    main: Pid,
    namespace: Option<Namespace>,
    /// `main` is bwrap.
    sandboxed: bool,
    ended: Option<End>,
    none_left: bool,
    time: ActiveTime,
    limit: Option<Duration>,
    stop_within: Duration,
    ending: Option<Ending>,
    kill_again_at: Option<Instant>,
    kill_again_after: Duration,
    frozen: bool,
    groups: Groups,
}

#[derive(Clone, Copy)]
struct End {
    exit_code: Option<i32>,
    signal: Option<i32>,
}

impl From<namespace::End> for End {
    fn from(end: namespace::End) -> End {
        match end {
            namespace::End::Exited(code) => End { exit_code: Some(code), signal: None },
            namespace::End::Signaled(signal) => End { exit_code: None, signal: Some(signal) },
        }
    }
}

/// Why the job is being ended, and when SIGKILL follows.
struct Ending {
    cause: EndCause,
    kill_at: Option<Instant>,
}

impl Job {
    /// None when the system would not start it; the exit record says why.
    pub fn start(order: Start, held: (&Groups, Way), dir: &Path, now: Instant) -> io::Result<Option<Job>> {
        let spool = Writer::open(dir, order.spool_bytes)?;
        let (out_read, out_write) = pipe()?;
        let (err_read, err_write) = if order.merge { (None, out_write.try_clone()?) } else { split(pipe()?) };
        let mut pump = Pump::new((out_read, err_read), &order.secrets, spool, order.spool_bytes, order.tail);
        if order.answers {
            pump.answer_to(output::begin(dir)?);
        }
        if let Some(note) = &order.note {
            pump.note(note);
        }
        let opened = order.stdin.as_deref().map(Feed::open).transpose();
        let begun = opened.and_then(|stdin| {
            let (feed, stdin) = stdin.unzip();
            let pipes = Pipes { stdin, stdout: out_write, stderr: err_write };
            Ok((feed, crash_point!("job.exec", start::begin(&order, held, dir, pipes))?))
        });
        let (feed, begun) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                refused_by_the_system(&order, &error, &mut pump, dir)?;
                return Ok(None);
            }
        };
        if let Some(note) = &begun.note {
            pump.note(note);
        }
        Ok(Some(Job {
            pump,
            feed,
            dir: dir.to_owned(),
            secrets: Masker::new(&order.secrets),
            main: begun.main,
            namespace: begun.namespace,
            sandboxed: begun.sandboxed,
            ended: None,
            none_left: false,
            time: ActiveTime::started(now),
            limit: order.max_duration_ms.map(millis),
            stop_within: millis(order.stop_duration_ms),
            ending: None,
            kill_again_at: None,
            kill_again_after: KILL_AGAIN_AFTER,
            frozen: false,
            groups: held.0.clone(),
        }))
    }

    pub fn is_over(&self) -> bool {
        self.ended.is_some() && self.none_left
    }

    /// The pipe that waits for more of the standard input.
    pub fn hungry(&self) -> Option<BorrowedFd<'_>> {
        self.feed.as_ref().map(Feed::pipe)
    }

    pub fn feed(&mut self) {
        if self.feed.as_mut().is_some_and(|feed| !feed.pump()) {
            self.feed = None;
        }
    }

    /// Collects the dead. As subreaper the keeper is the parent of every orphan of the job, so "no children" means
    /// that nothing of the job is left.
    pub fn reap(&mut self, now: Instant) {
        loop {
            let end = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => Some((pid, End { exit_code: Some(code), signal: None })),
                Ok(WaitStatus::Signaled(pid, signal, _)) => {
                    Some((pid, End { exit_code: None, signal: Some(signal as i32) }))
                }
                Ok(WaitStatus::StillAlive) => break,
                Err(Errno::ECHILD) => {
                    self.none_left = true;
                    break;
                }
                Err(Errno::EINTR) | Ok(_) => None,
                Err(_) => break,
            };
            if let Some((pid, end)) = end
                && pid == self.main
            {
                self.ended = Some(self.namespace.as_ref().and_then(Namespace::end).map_or(end, End::from));
                self.time.pause(now);
            }
        }
        if self.ended.is_some() && !self.none_left {
            self.kill_all(now);
        }
    }

    pub fn stop(&mut self, cause: EndCause, within_ms: i64, now: Instant) {
        self.stop_within = millis(within_ms);
        self.ask_to_end(cause, now);
    }

    fn ask_to_end(&mut self, cause: EndCause, now: Instant) {
        if self.ending.is_some() || self.ended.is_some() {
            return; // the first cause wins
        }
        self.ending = Some(Ending { cause, kill_at: Some(now + self.stop_within) });
        self.ask_all_to_end();
        self.thaw(now);
    }

    pub fn abort(&mut self, cause: EndCause, now: Instant) {
        match &mut self.ending {
            Some(ending) => ending.kill_at = None,
            None if self.ended.is_none() => self.ending = Some(Ending { cause, kill_at: None }),
            None => {}
        }
        self.kill_all(now);
    }

    /// Does what time asks for.
    pub fn tend(&mut self, now: Instant) {
        if self.limit.and_then(|limit| self.time.reaches(limit)).is_some_and(|due| due <= now) {
            self.limit = None;
            self.pump.note("max_duration has passed: the command is asked to end");
            self.ask_to_end(EndCause::MaxDuration, now);
        }
        if self.ending.as_ref().and_then(|ending| ending.kill_at).is_some_and(|due| due <= now) {
            if let Some(ending) = &mut self.ending {
                ending.kill_at = None;
            }
            self.kill_all(now);
        }
        if self.kill_again_at.is_some_and(|due| due <= now) {
            self.kill_all(now);
            self.reap(now);
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        let limit = self.limit.filter(|_| self.ended.is_none()).and_then(|limit| self.time.reaches(limit));
        let kill = self.ending.as_ref().and_then(|ending| ending.kill_at);
        [limit, kill, self.kill_again_at].into_iter().flatten().min()
    }

    /// Whether everything stands still; what is on its way to its end does not.
    pub fn freeze(&mut self, now: Instant) -> bool {
        if self.frozen || self.ended.is_some() || self.ending.is_some() {
            return self.frozen;
        }
        self.frozen = true;
        self.time.pause(now);
        if !self.groups.freeze(true) {
            self.stop_each();
        }
        true
    }

    pub fn thaw(&mut self, now: Instant) {
        if !std::mem::take(&mut self.frozen) {
            return;
        }
        if !self.groups.freeze(false) {
            self.signal_all(Signal::SIGCONT);
        }
        if self.ended.is_none() {
            self.time.resume(now);
        }
    }

    /// Without a control group: walks the tree until no process runs any more, because one may fork during a walk.
    fn stop_each(&self) {
        for _ in 0..100 {
            let running: Vec<_> = self.tree().into_iter().filter(|process| process.state != 'T').collect();
            if running.is_empty() {
                return;
            }
            running.iter().for_each(|process| process.signal(Signal::SIGSTOP));
        }
    }

    fn tree(&self) -> Vec<process::Process> {
        process::descendants(std::process::id() as i32, &|_| false)
    }

    fn signal_all(&self, signal: Signal) {
        self.tree().iter().for_each(|process| process.signal(signal));
    }

    /// bwrap has no handler: it would end at once, and everything in the sandbox with it, before a handler of the command has run.
    fn ask_all_to_end(&self) {
        let spared = self.sandboxed && !bug!(bwrap_asked_to_end);
        let asked = self.tree().into_iter().filter(|process| !spared || process.pid != self.main.as_raw());
        asked.for_each(|process| process.signal(Signal::SIGTERM));
    }

    fn kill_all(&mut self, now: Instant) {
        self.groups.kill();
        self.signal_all(Signal::SIGKILL);
        if std::mem::take(&mut self.frozen) {
            self.groups.freeze(false);
        }
        self.kill_again_at = Some(now + self.kill_again_after);
        self.kill_again_after = (2 * self.kill_again_after).min(KILL_AGAIN_AT_LEAST_EVERY);
    }

    /// Drains the pipes and writes how it ended.
    pub fn finish(mut self) -> io::Result<()> {
        let end = self.ended.expect("only a job that is over is finished");
        let out_of_memory = end.exit_code != Some(0) && self.groups.out_of_memory() > 0;
        let cause = match &self.ending {
            Some(ending) => Some(ending.cause),
            None => out_of_memory.then_some(EndCause::OutOfMemory),
        };
        let lost = self.pump.drain()?;
        // If the output cannot be kept or is not valid, the runner notices when it reads it.
        let _ = output::keep(&self.dir, &self.secrets);
        let ended = ExitRecord {
            exit_code: end.exit_code,
            signal: end.signal,
            cause,
            message: lost.or_else(|| out_of_memory.then(|| "the memory limit was reached".to_owned())),
            final_offset: self.pump.offset(),
            active_ms: self.time.so_far(Instant::now()).as_millis() as i64,
            started: true,
            at_ms: wall_ms(),
            stdout_tail: self.pump.tail().map(Base64),
        };
        exit::write(&self.dir, &ended)
    }
}

fn millis(ms: i64) -> Duration {
    Duration::from_millis(ms.max(0) as u64)
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // Over the user's share of pipe memory this is refused; then it is just smaller.
    let _ = fcntl(&read, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
    Ok((read, write))
}

fn split((read, write): (OwnedFd, OwnedFd)) -> (Option<OwnedFd>, OwnedFd) {
    (Some(read), write)
}

/// As a shell would say it: 127 not found, 126 found but not to be executed. Anything else is the machine's trouble.
fn refused_by_the_system(order: &Start, error: &io::Error, pump: &mut Pump, dir: &Path) -> io::Result<()> {
    let program = order.argv.first().map_or("", String::as_str);
    let exit_code = match error.raw_os_error() {
        Some(libc::ENOENT) => Some(127),
        Some(libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::ENOTDIR | libc::E2BIG | libc::ELOOP) => Some(126),
        _ => None,
    };
    let message = match exit_code {
        Some(127) => format!("{program}: not found"),
        _ => format!("{program}: {error}"),
    };
    // What a sandbox that could not be made has said.
    pump.drain()?;
    pump.note(&message);
    let ended = ExitRecord {
        exit_code,
        cause: exit_code.is_none().then_some(EndCause::ExecutorError),
        message: Some(message),
        final_offset: pump.offset(),
        started: exit_code.is_some(),
        at_ms: wall_ms(),
        ..ExitRecord::default()
    };
    exit::write(dir, &ended)
}
