//! The lock of a home: the control plane's process holds it while it lives, and the file contains its pid and address. A command that
//! only looks never takes the lock, so that it does not delay a start.

use crate::complaint::{Complaint, Done};
use crate::private;
use nix::fcntl::{FcntlArg, fcntl};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use wire::model::crash_point;

pub const FILE: &str = "control.lock";

/// Who holds a home, as it wrote itself into the lock's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: i32,
    pub host: String,
    pub boot_id: String,
    pub version: String,
    pub socket: PathBuf,
    /// Where it listens beside the socket.
    pub url: Option<String>,
    pub started_at: i64,
    /// The settings it was started with, which commands compare with their own. Without passwords.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// The control plane that holds this home now, if any.
pub fn find(home: &Path) -> Done<Option<Holder>> {
    let path = home.join(FILE);
    // Of another user it is refused: its text says where to send a token.
    let Some(mut file) = private::open_unchanged(&path)? else { return Ok(None) };
    if !is_held(&file, &path)? {
        return Ok(None);
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| Complaint::file("read", &path, &error))?;
    // Held and not readable yet: a control plane is starting. A command that needs it waits for the start lock.
    Ok(serde_json::from_str(&text).ok())
}

/// Held, and its holder has not said yet where it listens.
pub fn is_starting(home: &Path) -> Done<bool> {
    let path = home.join(FILE);
    let Ok(file) = File::open(&path) else { return Ok(false) };
    Ok(is_held(&file, &path)? && find(home)?.is_none())
}

/// Held by the control plane while it lives: no other process controls this home meanwhile.
pub struct Held {
    file: File,
    /// The socket of this process. It is removed before the lock is released, because only the holder of the lock may listen there.
    socket: Option<PathBuf>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            std::fs::remove_file(socket).ok();
            // A short folder of our own, now empty; the home itself is never empty.
            socket.parent().map(std::fs::remove_dir);
        }
    }
}

/// Takes the home, or says who has it.
pub fn hold(home: &Path) -> Done<Held> {
    private::home(home)?;
    let path = home.join(FILE);
    let file = private::open(&path, OpenOptions::new().read(true).write(true))?;
    match fcntl(&file, FcntlArg::F_OFD_SETLK(&lock(libc::F_WRLCK))) {
        // What a dead one wrote must not be read as ours.
        Ok(_) => match file.set_len(0) {
            Ok(()) => Ok(Held { file, socket: None }),
            Err(error) => Err(Complaint::file("write", &path, &error)),
        },
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {
            let who =
                find(home)?.map_or_else(String::new, |holder| format!(" (pid {} on {})", holder.pid, holder.host));
            Err(Complaint::usage(format!("another control plane{who} already runs in {}", home.display()))
                .fix("end it with `repl control stop`, or use another REPL_HOME"))
        }
        Err(error) => Err(Complaint::usage(format!("cannot lock {}: {error}", path.display()))),
    }
}

impl Held {
    /// If the home is deleted, its control plane ends gracefully as soon as the lock file is gone.
    pub fn end_when_deleted(&self) {
        use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
        let watched = Inotify::init(InitFlags::IN_CLOEXEC).and_then(|inotify| {
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            inotify.add_watch(path.as_str(), AddWatchFlags::IN_ATTRIB).map(|_| inotify)
        });
        let (Ok(inotify), Ok(file)) = (watched, self.file.try_clone()) else {
            tracing::warn!("cannot watch the data folder; should it be deleted, nobody notices");
            return;
        };
        std::thread::spawn(move || {
            while inotify.read_events().is_ok() {
                if file.metadata().is_ok_and(|found| found.nlink() == 0) {
                    tracing::warn!("the data folder was deleted; ending");
                    nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM).ok();
                    return;
                }
            }
        });
    }

    /// Says where we listen. In place: the lock belongs to this very file.
    pub fn announce(&mut self, socket: &Path, url: Option<String>, settings: BTreeMap<String, String>) -> Done<()> {
        self.socket = Some(socket.to_owned());
        let holder = Holder {
            pid: std::process::id() as i32,
            host: host(),
            boot_id: boot_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            socket: socket.to_owned(),
            url,
            started_at: crate::show::now_ms(),
            settings,
        };
        let text = serde_json::to_vec(&holder).expect("a holder is plain text");
        let written = self.file.set_len(0).and_then(|()| self.file.rewind());
        let written = crash_point!("control.announce", written.and_then(|()| self.file.write_all(&text)));
        written.map_err(|error| Complaint::usage(format!("cannot write {FILE}: {error}")))
    }
}

/// Blocks until its holder is gone.
pub fn wait_until_free(file: &File) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLKW(&lock(libc::F_RDLCK))).map(drop)
}

/// Whether a holder's pid means anything here and now.
pub fn is_of_this_boot(holder: &Holder) -> bool {
    holder.host == host() && holder.boot_id == boot_id()
}

/// Asks without taking: a reader must never be in a starter's way.
fn is_held(file: &File, path: &Path) -> Done<bool> {
    let mut question = lock(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut question))
        .map_err(|error| Complaint::usage(format!("cannot ask for the lock of {}: {error}", path.display())))?;
    Ok(question.l_type != libc::F_UNLCK as libc::c_short)
}

fn lock(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

fn host() -> String {
    nix::unistd::gethostname().map_or_else(|_| "unknown".to_owned(), |name| name.to_string_lossy().into_owned())
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_has_one_holder_and_everybody_sees_who() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(find(home.path()).unwrap(), None);
        let mut held = hold(home.path()).unwrap();
        assert_eq!(find(home.path()).unwrap(), None, "held, and still starting");
        assert!(is_starting(home.path()).unwrap());
        held.announce(Path::new("/x/control.sock"), Some("http://127.0.0.1:1".into()), BTreeMap::new()).unwrap();
        assert!(!is_starting(home.path()).unwrap());
        let holder = find(home.path()).unwrap().unwrap();
        assert_eq!((holder.pid, &*holder.socket), (std::process::id() as i32, Path::new("/x/control.sock")));
        let complaint = hold(home.path()).err().unwrap();
        assert!(complaint.text.contains(&format!("(pid {} on {})", holder.pid, holder.host)), "{complaint}");
        drop(held);
        assert_eq!(find(home.path()).unwrap(), None, "what a dead one wrote counts for nothing");
        hold(home.path()).unwrap();
    }
}
