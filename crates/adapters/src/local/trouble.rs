//! What can go wrong with machines of this host, classified, each with what a person can do about it. Never retries.

use super::home::Home;
use model::{Effect, Trouble, TroubleKind};
use std::io;
use std::path::Path;

pub fn stranger(home: &Home) -> Trouble {
    let what = format!(
        "{} belongs to another machine than the one asked for (its nonce differs): left alone",
        home.dir.display()
    );
    Trouble::new(TroubleKind::NotFound, what)
}

pub fn silent(home: &Home) -> Trouble {
    let what = format!("a process holds {} but does not say who it is: asked again later", home.dir.display());
    Trouble { effect: Effect::None, ..Trouble::new(TroubleKind::Timeout, what) }
}

pub fn busy(home: &Home) -> Trouble {
    let what = format!("{} is being started or ended at this moment: asked again later", home.dir.display());
    Trouble { effect: Effect::None, ..Trouble::new(TroubleKind::Timeout, what) }
}

/// What the operating system said about a path, with what a person can do about it.
pub fn at(path: &Path) -> impl Fn(io::Error) -> Trouble + '_ {
    move |error| {
        let path = path.display();
        let (kind, fix) = match error.raw_os_error() {
            Some(libc::ENOSPC) => (TroubleKind::DiskFull, "the disk is full: free some space there"),
            Some(libc::EDQUOT) => (TroubleKind::DiskFull, "your disk quota is used up: free some space there"),
            Some(libc::EACCES | libc::EPERM) => {
                (TroubleKind::Auth, "make it yours, or set REPL_HOME to a folder that is")
            }
            Some(libc::EROFS) => {
                (TroubleKind::Auth, "the file system is read-only: set REPL_HOME to a writable folder")
            }
            Some(libc::ENOTDIR) => {
                (TroubleKind::InvalidSpec, "a file is in the way: move it, or set REPL_HOME elsewhere")
            }
            Some(libc::EMFILE | libc::ENFILE) => {
                (TroubleKind::Quota, "too many open files: raise the limit (ulimit -n)")
            }
            _ => (TroubleKind::Internal, "see `repl doctor`"),
        };
        Trouble::new(kind, format!("{path}: {error}: {fix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_is_classified() {
        for (errno, kind, retry) in [
            (libc::ENOSPC, TroubleKind::DiskFull, true),
            (libc::EDQUOT, TroubleKind::DiskFull, true),
            (libc::EACCES, TroubleKind::Auth, false),
            (libc::EROFS, TroubleKind::Auth, false),
            (libc::ENOTDIR, TroubleKind::InvalidSpec, false),
            (libc::EMFILE, TroubleKind::Quota, false),
            (libc::EIO, TroubleKind::Internal, false),
        ] {
            let found = at(Path::new("instances"))(io::Error::from_raw_os_error(errno));
            assert_eq!((found.kind, found.retry), (kind, retry), "{found}");
            assert!(found.what.starts_with("instances: "), "{found}");
        }
    }
}
