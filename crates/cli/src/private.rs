//! Files and folders that only their owner may read, whatever the umask: made so, tightened where they are ours and wider,
//! and refused where they belong to another user, who could read or replace what is in them.

use crate::complaint::{Complaint, Done};
use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

const FILE: u32 = 0o600;
const FOLDER: u32 = 0o700;
const STICKY: u32 = 0o1000;
/// What our processes make in a home; anything else there is not ours to change.
const OURS: &[&str] =
    &["control.", "token", "installation.json", "last", "remuda.db", "remuda-logs.db", "instances", "blobs", "hashes"];

/// Makes a folder and those above it.
pub fn folder(path: &Path) -> Done<()> {
    let made = DirBuilder::new().recursive(true).mode(FOLDER).create(path).and_then(|()| std::fs::metadata(path));
    let found = made.map_err(|error| Complaint::file("create", path, &error))?;
    tighten(path, &found, FOLDER)
}

/// Opens a file as asked, makes it if need be, and gives it its mode.
pub fn open(path: &Path, how: &mut OpenOptions) -> Done<File> {
    let file = how.create(true).mode(FILE).open(path).map_err(|error| Complaint::file("open", path, &error))?;
    let found = file.metadata().map_err(|error| Complaint::file("look at", path, &error))?;
    tighten(path, &found, FILE)?;
    Ok(file)
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
    let found = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(|error| Complaint::file("read", path, &error))?,
    };
    tighten(path, &found, FILE)?;
    std::fs::read_to_string(path).map(Some).map_err(|error| Complaint::file("read", path, &error))
}

/// The home itself: one look, so that every command can afford it. Made if it is not there.
pub fn home(path: &Path) -> Done<()> {
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(_) => {
            return folder(path).map_err(|complaint| match complaint.fix {
                None => complaint.fix("set REPL_HOME to a folder you can write to"),
                Some(_) => complaint,
            });
        }
    };
    if !found.is_dir() {
        return Err(Complaint::usage(format!("{} is not a folder", path.display())).fix("set REPL_HOME to a folder"));
    }
    // Such as /tmp: other users' files are in it, and closing it would take it away from them.
    if found.mode() & STICKY != 0 {
        return Err(Complaint::usage(format!("{} is a folder that several users write to", path.display()))
            .fix(format!("set REPL_HOME to a folder of yours, e.g. {}", path.join("remuda").display())));
    }
    tighten(path, &found, FOLDER)
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
        let Ok(found) = entry.metadata() else { continue }; // gone meanwhile
        let kind = found.file_type();
        if kind.is_symlink() {
            continue; // what it leads to is looked at by whoever opens it
        }
        tighten(&entry.path(), &found, if kind.is_dir() { FOLDER } else { FILE })?;
    }
    Ok(())
}

fn tighten(path: &Path, found: &Metadata, wanted: u32) -> Done<()> {
    let us = nix::unistd::geteuid().as_raw();
    if found.uid() != us {
        return Err(Complaint::usage(format!(
            "{} belongs to {}, and this is {}",
            path.display(),
            user(found.uid()),
            user(us)
        ))
        .fix(format!(
            "run it as that user, make it yours (chown -R {us} {}), or set REPL_HOME to a folder of yours",
            path.display()
        )));
    }
    if found.mode() & 0o077 == 0 && found.mode() & wanted == wanted {
        return Ok(());
    }
    std::fs::set_permissions(path, Permissions::from_mode(wanted))
        .map_err(|error| Complaint::file("close to other users", path, &error))
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
        std::fs::create_dir_all(dir.join("instances")).unwrap();
        for name in ["control.log", "token", "remuda.db-wal", "notes.txt"] {
            std::fs::write(dir.join(name), "x").unwrap();
        }
        home(&dir).unwrap();
        contents(&dir).unwrap();
        let modes =
            ["", "instances", "control.log", "token", "remuda.db-wal", "notes.txt"].map(|name| mode(&dir.join(name)));
        assert_eq!(modes, [0o700, 0o700, 0o600, 0o600, 0o600, 0o666], "what is not ours stays as it is");
        home(&place.path().join("new")).unwrap();
        assert_eq!(mode(&place.path().join("new")), 0o700);
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
            return; // only root can give folders away
        }
        let complaint = home(&dir).unwrap_err();
        assert!(complaint.text.contains("(uid 65534)") && complaint.text.contains("theirs belongs to"), "{complaint}");
        assert!(complaint.fix.unwrap().contains("chown -R"));
    }
}
