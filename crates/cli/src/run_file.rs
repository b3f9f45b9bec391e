//! Run files of this machine: found and opened here, read by `runfile`.

use crate::complaint::{Complaint, Done};
use crate::nearest::nearest;
pub use runfile::{agents, defaults, fill, keys, retry_on_error};
use std::path::{Path, PathBuf};
use wire::api::Submit;

/// A file of another kind is not read to its end to find that out.
const LARGEST: u64 = 1 << 20;

/// What a file says: the run, and the files that go with it as `PATH[:DEST]` seen from the file's own folder.
#[derive(Debug)]
pub struct RunFile {
    pub submit: Submit,
    pub files: Vec<String>,
    pub folder: PathBuf,
}

/// Whether this can be meant as a run file: by its ending, or because it says so itself.
pub fn is_one(path: &Path) -> bool {
    if matches!(path.extension().and_then(|ending| ending.to_str()), Some("yml" | "yaml")) {
        return true;
    }
    if !std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LARGEST) {
        return false;
    }
    let Ok(text) = std::fs::read_to_string(path) else { return false };
    runfile::is_one(&text)
}

pub fn read(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Done<RunFile> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let complaint = Complaint::file("read the run file", path, &error);
        if error.kind() == std::io::ErrorKind::NotFound { complaint.fix(instead_of(path)) } else { complaint }
    })?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let (submit, files) = runfile::read(&path.display().to_string(), &text, env)?;
    Ok(RunFile { submit, files, folder })
}

/// Checks the plan that is about to be sent, and shows each problem where it stands in the file.
pub fn check_plan(path: &Path, plan: &serde_json::Value) -> Done<plan::Checked> {
    let text = std::fs::read_to_string(path).map_err(|error| Complaint::file("read the run file", path, &error))?;
    Ok(agents::check(&path.display().to_string(), &text, plan)?)
}

/// The run file in the same folder that was probably meant, or those that are there.
fn instead_of(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.ends_with(".repl.yml") || name.ends_with(".repl.yaml"));
    names.sort();
    let wanted = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match nearest(wanted, names.iter().map(String::as_str)) {
        Some(name) => format!("did you mean {}?", path.with_file_name(name).display()),
        None if names.is_empty() => format!("there is no run file (*.repl.yml) in {}", folder.display()),
        None => format!("run files in {}: {}", folder.display(), names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_looked_for_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let fix = |name: &str| read(&dir.path().join(name), &|_| None).unwrap_err().fix.unwrap();
        assert!(fix("train.repl.yml").starts_with("there is no run file"), "{}", fix("train.repl.yml"));
        std::fs::write(dir.path().join("train.repl.yml"), "").unwrap();
        assert!(fix("trian.repl.yml").ends_with("/train.repl.yml?"), "{}", fix("trian.repl.yml"));
        assert!(fix("other.repl.yml").ends_with(": train.repl.yml"), "{}", fix("other.repl.yml"));
    }
}
