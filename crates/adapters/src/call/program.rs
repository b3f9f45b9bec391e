//! Finds the program of an adapter by its name. Never takes a path, and never looks into the working directory.

use super::Own;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

pub struct Program {
    pub file: PathBuf,
    /// Its `argv[0]`.
    pub name: String,
}

pub fn find(adapter: &str, path: &OsStr, own: Option<&Own>) -> Option<Program> {
    let name = adapter.to_owned();
    if let Some(own) = own.filter(|own| own.names.contains(&adapter)) {
        return Some(Program { file: own.program.clone(), name });
    }
    // A relative folder would be one of the working directory.
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    let file = folders.map(|folder| folder.join(adapter)).find(|file| is_executable(file))?;
    Some(Program { file, name })
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
