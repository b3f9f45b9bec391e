//! Files and folders that only their owner may read, independent of the umask. A wider mode of an own file is narrowed; a file of
//! another user is refused. SQLite gives `-wal` and `-shm` the mode of the database's file.

use model::{Failure, Refused, Trouble, TroubleKind};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const FILE: u32 = 0o600;
const FOLDER: u32 = 0o700;

/// Opens a file for reading and writing, made if it is not there.
pub(crate) fn file(path: &Path) -> Result<File, Failure> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(FILE).open(path);
    let file = opened.map_err(|e| trouble(path, e))?;
    let found = file.metadata().map_err(|e| trouble(path, e))?;
    if must_change(path, &found, FILE)? {
        file.set_permissions(Permissions::from_mode(FILE)).map_err(|e| trouble(path, e))?;
    }
    Ok(file)
}

/// An empty file, which replaces what an earlier try has left.
pub(crate) fn draft(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(FILE).open(path)
}

/// The same for a file that may be missing and is not made.
pub(crate) fn file_if_there(path: &Path) -> Result<(), Failure> {
    match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(trouble(path, e)),
        Ok(found) if must_change(path, &found, FILE)? => {
            fs::set_permissions(path, Permissions::from_mode(FILE)).map_err(|e| trouble(path, e))
        }
        Ok(_) => Ok(()),
    }
}

/// Makes a folder and those above it.
pub(crate) fn folder(path: &Path) -> Result<(), Failure> {
    let made = DirBuilder::new().recursive(true).mode(FOLDER).create(path).and_then(|()| fs::metadata(path));
    let found = made.map_err(|e| trouble(path, e))?;
    if must_change(path, &found, FOLDER)? {
        fs::set_permissions(path, Permissions::from_mode(FOLDER)).map_err(|e| trouble(path, e))?;
    }
    Ok(())
}

/// Whether others may read it, or its owner may not.
fn must_change(path: &Path, found: &Metadata, wanted: u32) -> Result<bool, Failure> {
    let us = nix::unistd::geteuid().as_raw();
    if found.uid() != us {
        let why = format!(
            "{} belongs to the user with the id {}, and this process runs as {us}: start it as that user, give the file to \
             this one (chown {us}), or use another place",
            path.display(),
            found.uid()
        );
        return Err(Refused::Conflict { why }.into());
    }
    Ok(found.mode() & 0o077 != 0 || found.mode() & wanted != wanted)
}

pub(crate) fn trouble(path: &Path, error: io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TroubleKind::DiskFull,
        _ => TroubleKind::Database,
    };
    Trouble::new(kind, format!("cannot use {}: {error}", path.display())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn what_is_made_or_found_is_for_its_owner_only() {
        let place = tempfile::tempdir().unwrap();
        let (made, there) = (place.path().join("a/made"), place.path().join("a/there"));
        folder(&place.path().join("a")).unwrap();
        file(&made).unwrap();
        fs::write(&there, "kept").unwrap();
        fs::set_permissions(&there, Permissions::from_mode(0o664)).unwrap();
        fs::set_permissions(place.path().join("a"), Permissions::from_mode(0o755)).unwrap();
        folder(&place.path().join("a")).unwrap();
        file_if_there(&there).unwrap();
        file_if_there(&place.path().join("gone")).unwrap();
        assert_eq!((mode(&made), mode(&there), mode(&place.path().join("a"))), (0o600, 0o600, 0o700));
        assert_eq!(fs::read_to_string(&there).unwrap(), "kept");
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("theirs");
        fs::write(&path, "").unwrap();
        if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
            return crate::skip::skip("root", "only root can give files away");
        }
        for refused in [file(&path).map(drop), file_if_there(&path)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("belongs to the user with the id 65534") && said.contains("chown"), "{said}");
        }
    }
}
