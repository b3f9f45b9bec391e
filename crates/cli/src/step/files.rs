//! Files that a step keeps beside its output (`--file GLOB`): small ones, which travel in its record, and are laid down again in a folder
//! where they are missing.

use crate::complaint::{Complaint, Done};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};
use wire::Base64;

/// Bytes of all kept files together: a record has at most 256 KiB, and holds the output, too.
const MOST_BYTES: usize = 64 << 10;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeptFile {
    /// Below the folder in which the step ran.
    path: String,
    mode: u32,
    bytes: Base64,
}

/// The files below this folder that one of the patterns fits, in order of their names.
pub fn gather(globs: &[String]) -> Done<Vec<KeptFile>> {
    if globs.is_empty() {
        return Ok(Vec::new());
    }
    let mut patterns = globset::GlobSetBuilder::new();
    for glob in globs {
        let pattern = globset::GlobBuilder::new(glob).literal_separator(true).build();
        patterns.add(pattern.map_err(|error| Complaint::usage(format!("--file `{glob}`: {}", error.kind())))?);
    }
    let patterns = patterns.build().map_err(|error| Complaint::usage(format!("--file: {error}")))?;
    let (mut kept, mut open, mut sum) = (Vec::new(), vec![std::path::PathBuf::new()], 0);
    while let Some(folder) = open.pop() {
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder.as_path() };
        let failed = |error: std::io::Error| Complaint::file("read", here, &error);
        for entry in std::fs::read_dir(here).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, kind) = (folder.join(entry.file_name()), entry.file_type().map_err(failed)?);
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() && patterns.is_match(&path) {
                kept.push(read(&path, &mut sum)?);
            }
        }
    }
    kept.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(kept)
}

fn read(path: &Path, sum: &mut usize) -> Done<KeptFile> {
    let failed = |error: std::io::Error| Complaint::file("read", path, &error);
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    let bytes = std::fs::read(path).map_err(failed)?;
    *sum += bytes.len();
    if *sum > MOST_BYTES {
        let text = format!("--file keeps at most {} KiB, and {} is beyond that", MOST_BYTES >> 10, path.display());
        return Err(
            Complaint::refused(text).fix("let the run keep larger files as artifacts: repl run --artifact GLOB")
        );
    }
    let name = path.to_str().ok_or_else(|| Complaint::refused(format!("{} is not UTF-8", path.display())))?;
    Ok(KeptFile { path: name.to_owned(), mode, bytes: Base64(bytes) })
}

/// Lays files down that are missing or different. Only below this folder: a record may come from another program.
pub fn restore(files: &[KeptFile]) -> Done<()> {
    for file in files {
        let path = Path::new(&file.path);
        let inside = path.components().all(|part| matches!(part, Component::Normal(_))) && !file.path.is_empty();
        if !inside {
            return Err(Complaint::refused(format!("a kept file is outside of this folder: {}", file.path)));
        }
        let failed = |error: std::io::Error| Complaint::file("write", path, &error);
        if std::fs::read(path).is_ok_and(|bytes| bytes == file.bytes.0) {
            continue;
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(path, &file.bytes.0).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(file.mode)).map_err(failed)?;
    }
    Ok(())
}
