//! Files below one folder and never outside of it: every path component is opened relative to a descriptor, and no symbolic link is followed.

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

pub struct Beneath {
    root: OwnedFd,
}

/// The steps of a path that stays below where it starts; an error says why it does not.
pub fn steps(path: &str) -> Result<Vec<&str>, String> {
    let mut steps = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(step) => steps.push(step.to_str().expect("a part of UTF-8 text is UTF-8")),
            Component::CurDir => {}
            _ => return Err(format!("`{path}` leaves the workdir")),
        }
    }
    if steps.is_empty() || path.contains('\0') {
        return Err(format!("`{path}` names no file"));
    }
    Ok(steps)
}

impl Beneath {
    pub fn open(root: &Path) -> io::Result<Beneath> {
        Ok(Beneath { root: File::open(root)?.into() })
    }

    /// A new file; what was there under that name is replaced, a folder is not.
    pub fn file(&self, name: &str, mode: u32) -> io::Result<File> {
        self.clear(name)?;
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.root, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // Permission bits only: no set-uid from afar. Whatever the umask, they are as they were sent.
        fchmod(&file, Mode::from_bits_truncate(mode & 0o777))?;
        Ok(File::from(file))
    }

    pub fn link(&self, name: &str, target: &str) -> io::Result<()> {
        self.clear(name)?;
        Ok(symlinkat(target, &self.root, name)?)
    }

    /// The folder of this name, made if need be.
    pub fn enter(&self, name: &str) -> io::Result<Beneath> {
        let made = match mkdirat(&self.root, name, Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = openat(&self.root, name, flags, Mode::empty())?;
        if made {
            // The job's own folders are as it would make them, whatever the umask of this process.
            fchmod(&folder, Mode::from_bits_truncate(0o755))?;
        }
        Ok(Beneath { root: folder })
    }

    pub fn make_folders(&self, steps: &[&str]) -> io::Result<()> {
        match steps.split_first() {
            Some((first, rest)) => self.enter(first)?.make_folders(rest),
            None => Ok(()),
        }
    }

    fn clear(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.root, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn paths_that_leave_are_refused() {
        for bad in ["/etc/passwd", "../x", "a/../../x", "", ".", "a/.."] {
            assert!(steps(bad).is_err(), "{bad}");
        }
        assert_eq!(steps("./a//b/./c").unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn a_link_is_neither_followed_nor_written_through() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("f"), "theirs").unwrap();
        symlink(outside.path(), root.path().join("dir")).unwrap();
        symlink(outside.path().join("f"), root.path().join("file")).unwrap();
        let beneath = Beneath::open(root.path()).unwrap();
        assert!(beneath.enter("dir").is_err());
        beneath.file("file", 0o755).unwrap().write_all(b"ours").unwrap();
        assert_eq!(std::fs::read(outside.path().join("f")).unwrap(), b"theirs");
        let placed = root.path().join("file");
        assert_eq!(std::fs::read(&placed).unwrap(), b"ours");
        assert_eq!(std::fs::metadata(placed).unwrap().permissions().mode() & 0o7777, 0o755);
    }
}
