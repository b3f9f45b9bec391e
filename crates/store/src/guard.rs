//! Checks before a SQLite file is opened: no other process has it open, and its file system supports write-ahead logging.
//! The lock is released by the kernel when the process ends.

use model::{Failure, Refused, Trouble, TroubleKind};
use nix::sys::statfs::statfs;
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// File systems whose locks or shared memory do not reach every machine that mounts them.
const NETWORK: &[(i64, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x5346_414F, "AFS"),
    (0x00C3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x7461_636F, "OCFS2"),
];

/// Held for as long as the store is open.
pub(crate) struct Guard {
    _lock: File,
}

impl Guard {
    pub(crate) fn take(database: &Path) -> Result<Guard, Failure> {
        let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let trouble = |e: io::Error| {
            Failure::from(Trouble::new(TroubleKind::Database, format!("cannot use {}: {e}", database.display())))
        };
        // An existing folder may hold other files of its owner: only the mode of our own files is changed.
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(trouble)?;
        refuse_network(folder, statfs(folder).map_err(|e| trouble(e.into()))?.filesystem_type().0)?;
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let lock = crate::private::file(Path::new(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Guard { _lock: lock }),
            Err(TryLockError::Error(e)) => Err(trouble(e)),
            Err(TryLockError::WouldBlock) => {
                let why =
                    format!("another control plane has {} open: use that one, or stop it first", database.display());
                Err(Refused::Conflict { why }.into())
            }
        }
    }
}

fn refuse_network(folder: &Path, magic: i64) -> Result<(), Failure> {
    // Some systems widen the 32-bit magic with its sign.
    let Some((_, name)) = NETWORK.iter().find(|(known, _)| *known == magic & 0xFFFF_FFFF) else { return Ok(()) };
    let why = format!(
        "{} is on a network file system ({name}), where SQLite loses data: use a local disk or PostgreSQL",
        folder.display()
    );
    Err(Refused::Conflict { why }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_file_system_is_refused_by_name() {
        assert!(refuse_network(Path::new("/x"), 0x6969).unwrap_err().to_string().contains("NFS"));
        assert!(refuse_network(Path::new("/x"), i64::from(0xFF53_4D42_u32 as i32)).is_err());
        assert_eq!(refuse_network(Path::new("/x"), 0xEF53), Ok(()), "ext4");
    }

    #[test]
    fn one_file_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("new/remuda.db");
        let first = Guard::take(&database).unwrap();
        assert!(Guard::take(&database).is_err_and(|e| e.to_string().contains("another control plane")));
        drop(first);
        assert!(Guard::take(&database).is_ok());
    }
}
