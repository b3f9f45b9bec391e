//! Removes a folder with all that is in it, however deep. The standard library's way takes a stack frame and a descriptor for each level,
//! and how many levels there are is decided by the job that made them.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Folders below the first level are moved up into the root before they are emptied, so no path grows longer than two names. What a
/// crash leaves lies in the root, and goes when it is removed again. A folder that is not there is removed already.
pub fn remove(root: &Path) -> io::Result<()> {
    let (mut open, mut moved) = (vec![root.to_owned()], 0u64);
    while let Some(folder) = open.pop() {
        // A job may have taken its own rights away. Never through a link: only real folders come here.
        let _ = fs::set_permissions(&folder, Permissions::from_mode(0o700));
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                there(fs::remove_file(entry.path()))?;
            } else if folder == root {
                open.push(entry.path());
            } else {
                open.push(move_up(root, &entry.path(), &mut moved)?);
            }
        }
        if folder != root {
            there(fs::remove_dir(&folder))?;
        }
    }
    there(fs::remove_dir(root))
}

fn move_up(root: &Path, folder: &Path, moved: &mut u64) -> io::Result<std::path::PathBuf> {
    loop {
        let place = root.join(format!(".moved_{}_{moved}", std::process::id()));
        *moved += 1;
        match fs::rename(folder, &place) {
            Ok(()) => return Ok(place),
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(error),
        }
    }
}

fn there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[test]
fn a_folder_goes_however_deep_it_is() {
    use nix::fcntl::{OFlag, openat};
    use nix::sys::stat::{Mode, mkdirat};
    let dir = tempfile::tempdir().unwrap();
    let (root, kept) = (dir.path().join("root"), dir.path().join("kept"));
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(&kept, "theirs").unwrap();
    std::os::unix::fs::symlink(dir.path(), root.join("a/link")).unwrap();
    fs::write(root.join("a/b/file"), "x").unwrap();
    fs::set_permissions(root.join("a/b"), Permissions::from_mode(0o500)).unwrap();
    let mut deep: std::os::fd::OwnedFd = fs::File::open(&root).unwrap().into();
    for _ in 0..20_000 {
        mkdirat(&deep, "d", Mode::S_IRWXU).unwrap();
        deep = openat(&deep, "d", OFlag::O_DIRECTORY, Mode::empty()).unwrap();
    }
    drop(deep);
    remove(&root).unwrap();
    assert!(!root.exists() && fs::read(&kept).unwrap() == b"theirs");
    remove(&root).unwrap();
}
