//! Events from the operating system: signals, dead children, connections to the runner's socket, and the removal of its directory.

use super::{Daemon, Event};
use crate::instance;
use crate::slot::Keepers;
use crate::socket::Socket;
use nix::fcntl::Flock;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Returns where the runner's socket lies, for the end.
pub fn watch(daemon: &Daemon, lock: Flock<File>) -> io::Result<PathBuf> {
    // What its keepers may leave behind when they die becomes the runner's own, to be ended by it.
    nix::sys::prctl::set_child_subreaper(true)?;
    watch_signals(daemon.events.clone(), daemon.keepers.clone())?;
    watch_directory(daemon, lock)?;
    answer(daemon)
}

fn watch_signals(events: mpsc::UnboundedSender<Event>, keepers: Keepers) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (mut child, mut hangup) = (signal(SignalKind::child())?, signal(SignalKind::hangup())?);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => drop(events.send(Event::Terminated)),
                _ = interrupt.recv() => drop(events.send(Event::Terminated)),
                _ = child.recv() => reap(&keepers),
                _ = hangup.recv() => {} // the terminal of the process that started it is closed
            }
        }
    });
    Ok(())
}

fn reap(keepers: &Keepers) {
    // Held, so that no child is collected before it is known to be a keeper.
    let mut keepers = keepers.lock().expect("no one panics with it");
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(_) => return,
            Ok(status) => {
                if let Some(pid) = status.pid() {
                    keepers.remove(&pid.as_raw());
                }
            }
        }
    }
}

/// Holds the lock, and tells when it is no longer the one others would find.
fn watch_directory(daemon: &Daemon, lock: Flock<File>) -> io::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let gone = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_DELETE_SELF;
    inotify.add_watch(&daemon.instance.dir, gone | AddWatchFlags::IN_MOVE_SELF)?;
    let (dir, events) = (daemon.instance.dir.clone(), daemon.events.clone());
    // SAFETY: the descriptor is open and owned by what it is given to, until that is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(OwnedFd::from(inotify), Interest::READABLE) }?;
    tokio::spawn(async move {
        while instance::is_ours(&dir, &lock) {
            let Ok(mut ready) = watched.readable().await else { break };
            let _ = ready.try_io(|watched| {
                let mut buffer = [0; 4096];
                nix::unistd::read(watched.get_ref(), &mut buffer).map_err(io::Error::from)
            });
        }
        let _ = events.send(Event::DirectoryGone);
    });
    Ok(())
}

fn answer(daemon: &Daemon) -> io::Result<PathBuf> {
    let socket = Socket::bind(&daemon.instance.dir)?;
    let path = socket.path.clone();
    let (boot, events) = (daemon.instance.boot.clone(), daemon.events.clone());
    let (shut_down, mut asked) = mpsc::unbounded_channel();
    tokio::spawn(async move { socket.serve(boot, shut_down).await });
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            let _ = events.send(Event::ShutDown);
        }
    });
    Ok(path)
}
