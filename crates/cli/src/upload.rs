//! Which files travel with a run: what a person names on the command line or in a run file, and the name it gets there. The walk is in
//! `walk`, hashing in `hashing`, what is remembered of earlier hashing in `memory`, sending in `send`.

mod hashing;
mod memory;
mod progress;
mod send;
mod walk;

pub use hashing::hash;
pub use send::{Missing, Sent, pieces, send};
pub use walk::{Files, Found, walk};

use crate::complaint::{Complaint, Done};
use std::path::{Component, Path, PathBuf};

/// Something of this machine and the name it gets on the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub path: PathBuf,
    pub dest: String,
}

/// Reads `PATH[:DEST]` as seen from `base`. A relative path keeps itself; an absolute one, or one that leaves the
/// folder, lands under its last name; a DEST with a slash at its end is a folder to land in.
pub fn source(text: &str, base: &Path) -> Done<Source> {
    let whole = Path::new(text);
    let (path, dest) = match text.rsplit_once(':') {
        // A colon may be part of a name.
        Some((path, dest)) if !base.join(whole).exists() && !path.is_empty() => (Path::new(path), Some(dest)),
        _ => (whole, None),
    };
    let path = match path.strip_prefix("~") {
        Ok(rest) => PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(rest),
        Err(_) => path.to_owned(),
    };
    if text.is_empty() || dest == Some("") {
        return Err(Complaint::usage(format!(
            "`--file {text}` does not say {}",
            if text.is_empty() { "what to send" } else { "where it should land" }
        ))
        .fix("write it like --file data/train.csv:input/train.csv, or leave out the colon"));
    }
    let found = base.join(&path);
    if let Err(error) = std::fs::metadata(&found) {
        return Err(Complaint::file("send", &found, &error)
            .fix("check the path: after --file it is seen from this folder, in a run file from the file's own"));
    }
    let last_name = || found.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let own = match kept(&path) {
        Some(own) => own,
        None => last_name().ok_or_else(|| no_name(&path))?,
    };
    let dest = match dest {
        None => own,
        Some(folder) if folder.ends_with('/') => join(folder, &last_name().ok_or_else(|| no_name(&path))?),
        Some(dest) => dest.to_owned(),
    };
    let dest = dest.trim_end_matches('/').trim_start_matches("./").to_owned();
    let dest = if dest == "." { String::new() } else { dest };
    if dest.is_empty() && !found.is_dir() {
        let name = last_name().unwrap_or_default();
        return Err(Complaint::usage(format!("`{text}`: a file needs a name where it lands"))
            .fix(format!("--file {}:{name} lands it in the working folder", path.display())));
    }
    if !dest.is_empty() && !wire::model::spec::is_inside(&dest) {
        return Err(Complaint::usage(format!("`{text}`: the destination must stay below the working folder"))
            .fix("write it like --file data/train.csv:input/train.csv"));
    }
    Ok(Source { path: found, dest })
}

/// The path itself, cleaned, if it stays below where we are.
fn kept(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

fn no_name(path: &Path) -> Complaint {
    Complaint::usage(format!("{} has no name of its own that could be kept", path.display()))
        .fix("say where it should land: --file PATH:DEST")
}

fn join(folder: &str, name: &str) -> String {
    let folder = folder.trim_end_matches('/');
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A folder with these files in it, each with its own name as content.
    pub(super) fn place(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for path in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        dir
    }

    #[test]
    fn a_path_keeps_itself_unless_it_leads_elsewhere() {
        let dir = place(&["here/data/a.txt", "lib/x.py", "here/odd:name"]);
        let base = dir.path().join("here");
        let absolute = dir.path().join("lib").display().to_string();
        let table = [
            ("data/a.txt", "data/a.txt"),
            ("./data//a.txt", "data/a.txt"),
            (".", ""),
            ("data", "data"),
            ("data/", "data"),
            ("../lib", "lib"),
            (absolute.as_str(), "lib"),
            ("data/a.txt:b.txt", "b.txt"),
            ("data/a.txt:in/", "in/a.txt"),
            ("data:.", ""),
            ("odd:name", "odd:name"),
        ];
        for (text, dest) in table {
            assert_eq!(source(text, &base).unwrap().dest, dest, "{text}");
        }
        for bad in ["gone", "gone:x", "data:../x", "data:/x", "", "data:", "data/a.txt:", "data/a.txt:."] {
            let complaint = source(bad, &base).unwrap_err();
            assert!(complaint.code == 2 && complaint.fix.is_some(), "{bad}: {complaint:?}");
        }
    }
}
