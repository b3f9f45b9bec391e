//! The mark of the ids that were given out, in a file beside a SQLite database and not in it: a database that is restored from an older
//! copy goes on above the mark, and never gives the id of something that is still out there to something else. Written before a block of
//! ids is used. It is of no use where it is restored together with the database.

use crate::private;
use model::{Failure, Refused, crash_point, names};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Named unlike the database, so that a copy of `remuda.db*` is without it.
const FILE: &str = "highest-id";
/// A decimal number is shorter.
const MOST_BYTES: u64 = 32;

pub(crate) struct IdMark {
    path: PathBuf,
    found: i64,
}

impl IdMark {
    pub(crate) fn open(database: &Path) -> Result<IdMark, Failure> {
        let path = database.with_file_name(FILE);
        private::file_if_there(&path)?;
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(IdMark { path, found: 1 }),
            Err(error) if error.kind() != ErrorKind::InvalidData => return Err(private::trouble(&path, error)),
            _ => {} // what is no text is no number either
        }
        let found = text.trim_end().parse::<i64>().ok().filter(|found| (1..=names::MAX_ID).contains(found));
        let damaged = || Refused::Conflict {
            why: format!(
                "{} is damaged: delete it, unless the database was just restored from an older copy; then write the present time in ms \
                 into it",
                path.display()
            ),
        };
        let found = found.ok_or_else(damaged)?;
        Ok(IdMark { path, found })
    }

    /// Ids below were given out before the database was opened.
    pub(crate) fn found(&self) -> i64 {
        self.found
    }

    /// Ids below `next` may be given out from now on. On disk when this returns.
    pub(crate) fn raise(&self, next: i64) -> Result<(), Failure> {
        self.write(next).map_err(|error| private::trouble(&self.path, error))
    }

    fn write(&self, next: i64) -> std::io::Result<()> {
        let draft = self.path.with_extension("draft");
        let mut file = private::draft(&draft)?;
        file.write_all(format!("{next}\n").as_bytes())?;
        file.sync_all()?;
        crash_point!("ids.mark", fs::rename(&draft, &self.path))?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_mark_is_as_it_was_written_last() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("remuda.db");
        let mark = IdMark::open(&database).unwrap();
        assert_eq!(mark.found(), 1, "none was given out");
        mark.raise(1025).unwrap();
        mark.raise(3073).unwrap();
        assert_eq!(IdMark::open(&database).unwrap().found(), 3073);
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays behind");
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_refused_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let long = "1".repeat(100);
        for wrong in [b"".as_slice(), b"1 2", b"-7", b"0", b"9223372036854775807", b"\xff", long.as_bytes()] {
            fs::write(folder.path().join(FILE), wrong).unwrap();
            let refused = IdMark::open(&folder.path().join("remuda.db")).err().unwrap().to_string();
            assert!(refused.contains("highest-id is damaged"), "{refused}");
            assert_eq!(fs::read(folder.path().join(FILE)).unwrap(), wrong);
        }
    }
}
