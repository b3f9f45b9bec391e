//! Files and folders that only their owner may read, whatever the umask: made so, tightened where they are ours and wider,
//! and refused where they belong to another user, who could read or replace what is in them. A link is followed only if it is ours or
//! the administrator's: in a folder that others can write, another user's link would make us read, empty or close a file elsewhere.

use crate::complaint::{Complaint, Done};
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::Mode;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const FILE: u32 = 0o600;
const FOLDER: u32 = 0o700;
const STICKY: u32 = 0o1000;
/// Links from one to the next before it is a circle, and tries when a file comes and goes.
const HOPS: usize = 8;
const ROOT: u32 = 0;
/// What our processes make in a home; anything else there is not ours to change.
const OURS: &[&str] = &[
    "control.",
    "token",
    "installation.json",
    "highest-id",
    "last",
    "remuda.db",
    "remuda-logs.db",
    "instances",
    "blobs",
    "hashes",
    "ui.html",
    "exchange",
    "ssh",
];

/// Something that is there, opened by its path without reading or writing it: what is judged is what is used afterwards.
struct Found {
    /// Where the links led to.
    path: PathBuf,
    handle: File,
    about: Metadata,
}

impl Found {
    /// Its name among this process's descriptors, whatever happens to its path meanwhile.
    fn place(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd()).into()
    }

    /// Refuses what belongs to another user, and takes the rights of others away.
    fn tighten(&self, wanted: u32) -> Done<()> {
        let Found { path, about, .. } = self;
        is_ours(path, about)?;
        if about.mode() & 0o077 == 0 && about.mode() & wanted == wanted {
            return Ok(());
        }
        std::fs::set_permissions(self.place(), Permissions::from_mode(wanted))
            .map_err(|error| Complaint::file("close to other users", path, &error))
    }
}

/// Follows the links at the end of a path, each only if it is trusted. `Err` holds the path at which nothing is.
fn reach(path: &Path) -> Done<Result<Found, PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..HOPS {
        let failed = |error: std::io::Error| Complaint::file("open", &path, &error);
        let handle = match nix::fcntl::open(&path, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
        {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(Err(path)),
            opened => File::from(opened.map_err(|error| failed(error.into()))?),
        };
        let about = handle.metadata().map_err(failed)?;
        if !about.file_type().is_symlink() {
            return Ok(Ok(Found { path, handle, about }));
        }
        is_trusted(&path, &about)?;
        // The target of the link that was judged, not of one that took its place.
        let target = readlinkat(&handle, "").map_err(|error| failed(error.into()))?;
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    Err(Complaint::usage(format!("{} is a link that leads to no end", path.display())).fix("remove it"))
}

/// Makes a folder and those above it.
pub fn folder(path: &Path) -> Done<()> {
    let found = match reach(path)? {
        Ok(found) => found,
        Err(path) => {
            let failed = |error: std::io::Error| Complaint::file("create", &path, &error);
            DirBuilder::new().recursive(true).mode(FOLDER).create(&path).map_err(failed)?;
            reach(&path)?.map_err(|_| failed(ErrorKind::NotFound.into()))?
        }
    };
    if !found.about.is_dir() {
        return Err(Complaint::usage(format!("{} is not a folder", path.display())).fix("move what is there"));
    }
    found.tighten(FOLDER)
}

/// Opens a file as asked, makes it if need be, and gives it its mode.
pub fn open(path: &Path, how: &mut OpenOptions) -> Done<File> {
    for _ in 0..HOPS {
        let opened = match reach(path)? {
            Ok(found) => {
                is_file(&found)?;
                found.tighten(FILE)?;
                how.open(found.place())
            }
            Err(place) => {
                let made = how.create_new(true).mode(FILE).open(place);
                how.create_new(false);
                made
            }
        };
        match opened {
            // Made by another process meanwhile: that one is looked at like any other.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map_err(|error| Complaint::file("open", path, &error)),
        }
    }
    Err(Complaint::usage(format!("{} comes and goes: it cannot be opened", path.display())))
}

/// Opens a file for reading, without changing its mode; none if it is not there.
pub fn open_unchanged(path: &Path) -> Done<Option<File>> {
    let Ok(found) = reach(path)? else { return Ok(None) };
    is_file(&found)?;
    is_ours(&found.path, &found.about)?;
    File::open(found.place()).map(Some).map_err(|error| Complaint::file("open", path, &error))
}

/// Writes a whole file in one step: a reader sees the old text or the new one, also after a loss of power.
pub fn write(path: &Path, text: &[u8]) -> Done<()> {
    replace(path, text, File::sync_all)
}

/// The same for what may be lost, without waiting for the disk.
pub fn note(path: &Path, text: &[u8]) -> Done<()> {
    replace(path, text, |_| Ok(()))
}

fn replace(path: &Path, text: &[u8], settle: impl FnOnce(&File) -> std::io::Result<()>) -> Done<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let fresh = path.with_file_name(name);
    let failed = |error: std::io::Error| Complaint::file("write", path, &error);
    let mut file = open(&fresh, OpenOptions::new().write(true).truncate(true))?;
    let written = file.write_all(text).and_then(|()| settle(&file)).and_then(|()| std::fs::rename(&fresh, path));
    written.map_err(|error| {
        std::fs::remove_file(&fresh).ok();
        failed(error)
    })
}

/// Reads a file that must be its owner's only; none if it is not there.
pub fn read(path: &Path) -> Done<Option<String>> {
    let Ok(found) = reach(path)? else { return Ok(None) };
    is_file(&found)?;
    found.tighten(FILE)?;
    let mut text = String::new();
    let read = File::open(found.place()).and_then(|mut file| file.read_to_string(&mut text));
    read.map(|_| Some(text)).map_err(|error| Complaint::file("read", path, &error))
}

/// The home itself: one look, so that every command can afford it. Made if it is not there.
pub fn home(path: &Path) -> Done<()> {
    let found = match reach(path)? {
        Ok(found) => found,
        Err(_) => {
            return folder(path).map_err(|complaint| match complaint.fix {
                None => complaint.fix("set REPL_HOME to a folder you can write to"),
                Some(_) => complaint,
            });
        }
    };
    if !found.about.is_dir() {
        return Err(Complaint::usage(format!("{} is not a folder", path.display())).fix("set REPL_HOME to a folder"));
    }
    // Such as /tmp: other users' files are in it, and closing it would take it away from them.
    if found.about.mode() & STICKY != 0 {
        return Err(Complaint::usage(format!("{} is a folder that several users write to", path.display()))
            .fix(format!("set REPL_HOME to a folder of yours, e.g. {}", path.join("remuda").display())));
    }
    found.tighten(FOLDER)
}

/// Everything of ours directly in the home, when a control plane starts there: an older or careless process may have left it
/// wider. What is deeper lies behind folders that are closed here.
pub fn contents(home: &Path) -> Done<()> {
    let failed = |error: std::io::Error| Complaint::file("read", home, &error);
    for entry in std::fs::read_dir(home).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !OURS.iter().any(|ours| name.as_encoded_bytes().starts_with(ours.as_bytes())) {
            continue;
        }
        let Ok(about) = entry.metadata() else { continue }; // gone meanwhile
        if about.file_type().is_symlink() {
            is_trusted(&entry.path(), &about)?;
            continue; // the code that opens it checks what it leads to
        }
        if let Ok(found) = reach(&entry.path())? {
            found.tighten(if found.about.is_dir() { FOLDER } else { FILE })?;
        }
    }
    Ok(())
}

fn is_file(found: &Found) -> Done<()> {
    if found.about.is_file() {
        return Ok(());
    }
    Err(Complaint::usage(format!("{} is not a file", found.path.display())).fix("move what is there"))
}

fn is_ours(path: &Path, about: &Metadata) -> Done<()> {
    let us = nix::unistd::geteuid().as_raw();
    if about.uid() == us {
        return Ok(());
    }
    let path = path.display();
    Err(Complaint::usage(format!("{path} belongs to {}, and this is {}", user(about.uid()), user(us))).fix(format!(
        "run it as that user, make it yours (chown -R {us} {path}), or set REPL_HOME to a folder of yours"
    )))
}

fn is_trusted(link: &Path, about: &Metadata) -> Done<()> {
    let us = nix::unistd::geteuid().as_raw();
    if about.uid() == us || about.uid() == ROOT {
        return Ok(());
    }
    let link = link.display();
    Err(Complaint::usage(format!("{link} is a link that belongs to {}, and this is {}", user(about.uid()), user(us)))
        .fix(format!("remove it (rm {link}), or set REPL_HOME to a folder that only you can write to")))
}

fn user(id: u32) -> String {
    match nix::unistd::User::from_uid(id.into()) {
        Ok(Some(user)) => format!("{} (uid {id})", user.name),
        _ => format!("uid {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_everybody_is_no_home() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
        let complaint = home(dir.path()).unwrap_err();
        assert!(complaint.text.contains("several users") && complaint.fix.is_some(), "{complaint}");
        assert_eq!(mode(dir.path()), 0o1777, "and it stays as it was");
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_home_is_closed_whoever_made_it() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("a/home");
        nix::sys::stat::umask(nix::sys::stat::Mode::empty());
        for name in ["instances", "exchange", "ssh"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        for name in ["control.log", "token", "remuda.db-wal", "ui.html", "notes.txt"] {
            std::fs::write(dir.join(name), "x").unwrap();
        }
        home(&dir).unwrap();
        contents(&dir).unwrap();
        let modes =
            ["", "instances", "control.log", "token", "remuda.db-wal", "notes.txt"].map(|name| mode(&dir.join(name)));
        assert_eq!(modes, [0o700, 0o700, 0o600, 0o600, 0o600, 0o666], "what is not ours stays as it is");
        assert_eq!(["exchange", "ssh", "ui.html"].map(|name| mode(&dir.join(name))), [0o700, 0o700, 0o600]);
        home(&place.path().join("new")).unwrap();
        assert_eq!(mode(&place.path().join("new")), 0o700);
        std::fs::create_dir(place.path().join("wide")).unwrap();
        folder(&place.path().join("wide")).unwrap();
        assert_eq!(mode(&place.path().join("wide")), 0o700);
    }

    #[test]
    fn a_file_is_replaced_in_one_step_and_closed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tokens.json");
        assert_eq!(read(&path).unwrap(), None);
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("old"));
        assert_eq!(mode(&path), 0o600, "tightened when it is read");
        write(&path, b"new").unwrap();
        assert_eq!((read(&path).unwrap().as_deref(), mode(&path)), (Some("new"), 0o600));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_belongs_to_another_user_is_refused_with_a_fix() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("theirs");
        std::fs::create_dir(&dir).unwrap();
        if std::os::unix::fs::chown(&dir, Some(65534), None).is_err() {
            return crate::skip::skip("root", "only root can give folders away");
        }
        let complaint = home(&dir).unwrap_err();
        assert!(complaint.text.contains("(uid 65534)") && complaint.text.contains("theirs belongs to"), "{complaint}");
        assert!(complaint.fix.unwrap().contains("chown -R"));
    }

    /// Changes the owner; false unless this process is root.
    fn give(path: &Path) -> bool {
        std::os::unix::fs::lchown(path, Some(65534), None).is_ok()
    }

    #[test]
    fn a_file_of_another_user_is_neither_read_nor_emptied() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("token");
        std::fs::write(&path, "theirs").unwrap();
        if !give(&path) {
            return crate::skip::skip("root", "only root can give files away");
        }
        let refusals = [
            read(&path).map(drop),
            open_unchanged(&path).map(drop),
            open(&path, OpenOptions::new().write(true).truncate(true)).map(drop),
            contents(place.path()),
        ];
        for refused in refusals {
            assert!(refused.unwrap_err().text.contains("token belongs to"));
        }
        assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("theirs", 0o644));
    }

    /// Another user who can write to the home puts a link to a file of ours into it.
    #[test]
    fn a_link_of_another_user_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (home_dir, mine) = (place.path().join("home"), place.path().join("mine"));
        std::fs::create_dir(&home_dir).unwrap();
        std::fs::write(&mine, "precious").unwrap();
        std::fs::set_permissions(&mine, Permissions::from_mode(0o644)).unwrap();
        let (link, dir, nowhere) = (home_dir.join("token"), place.path().join("link"), home_dir.join("control.log"));
        std::os::unix::fs::symlink(&mine, &link).unwrap();
        std::os::unix::fs::symlink(&home_dir, &dir).unwrap();
        std::os::unix::fs::symlink(place.path().join("made"), &nowhere).unwrap();
        if ![&link, &dir, &nowhere].into_iter().all(|link| give(link)) {
            return crate::skip::skip("root", "only root can give links away");
        }
        let emptied = |path| open(path, OpenOptions::new().write(true).truncate(true)).map(drop);
        for refused in [
            read(&link).map(drop),
            open_unchanged(&link).map(drop),
            emptied(&link),
            emptied(&nowhere),
            home(&dir),
            folder(&dir),
            contents(&home_dir),
        ] {
            let complaint = refused.unwrap_err();
            assert!(
                complaint.text.contains("is a link that belongs to") && complaint.text.contains("65534"),
                "{complaint}"
            );
            assert!(complaint.fix.as_ref().unwrap().contains("remove it"), "{complaint}");
        }
        assert_eq!((std::fs::read_to_string(&mine).unwrap().as_str(), mode(&mine)), ("precious", 0o644));
        assert!(!place.path().join("made").exists());
        // What is written anew takes the link's place.
        write(&link, b"ours").unwrap();
        assert_eq!(
            (read(&link).unwrap().as_deref(), std::fs::read_to_string(&mine).unwrap().as_str()),
            (Some("ours"), "precious")
        );
    }

    #[test]
    fn a_link_of_ours_is_followed_and_a_pipe_is_no_file() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere/text", at("link")).unwrap();
        std::os::unix::fs::symlink("link", at("again")).unwrap();
        std::os::unix::fs::symlink("elsewhere", at("home")).unwrap();
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        open(&at("again"), OpenOptions::new().write(true)).unwrap().write_all(b"text").unwrap();
        assert_eq!((read(&at("again")).unwrap().as_deref(), mode(&at("elsewhere/text"))), (Some("text"), 0o600));
        home(&at("home")).unwrap();
        assert_eq!(mode(&at("elsewhere")), 0o700);
        assert!(read(&at("circle")).unwrap_err().text.contains("no end"));
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        for refused in [read(&at("pipe")).map(drop), open(&at("pipe"), OpenOptions::new().write(true)).map(drop)] {
            assert!(refused.unwrap_err().text.contains("pipe is not a file"));
        }
    }
}
