//! The walk: every file, empty folder and link behind the sources, by its name on the other side. Hidden files too, but not what
//! `.gitignore` names, and never `.git` itself. What cannot be sent is refused by name, before anything is.

use super::Source;
use crate::complaint::{Complaint, Done};
use std::collections::BTreeMap;
use std::fs::{FileType, Metadata};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use wire::model::tree::{is_name, resolve};

#[derive(Debug, Default)]
pub struct Files {
    /// In the order of names.
    pub found: BTreeMap<String, Found>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    File(FoundFile),
    Folder,
    Link {
        target: String,
        /// Where its source lands: a link may lead anywhere within it.
        source: String,
    },
}

/// A file as it was when the walk met it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFile {
    pub path: PathBuf,
    pub size: i64,
    pub mode: u32,
    pub stamp: Stamp,
}

/// What changes when a file does. Together with its path and size it tells whether a hash is still good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub modified_ns: i64,
    pub changed_ns: i64,
    pub inode: u64,
}

impl Files {
    pub fn files(&self) -> impl Iterator<Item = (&str, &FoundFile)> {
        self.found.iter().filter_map(|(name, found)| match found {
            Found::File(file) => Some((name.as_str(), file)),
            _ => None,
        })
    }

    pub fn count(&self) -> usize {
        self.files().count()
    }

    pub fn bytes(&self) -> i64 {
        self.files().map(|(_, file)| file.size).sum()
    }

    /// Whether a file of this name, or something in a folder of this name, is sent.
    pub fn names(&self, word: &str) -> bool {
        let inside = format!("{word}/");
        self.found.contains_key(word)
            || self.found.range(inside.clone()..).next().is_some_and(|(name, _)| name.starts_with(&inside))
    }

    fn add(&mut self, name: String, found: Found) -> Done<()> {
        match (self.found.get(&name), &found) {
            (None, _) | (Some(Found::Folder), Found::Folder) => {}
            (Some(Found::File(old)), Found::File(new)) if old.path == new.path => {}
            (Some(Found::Link { target: old, .. }), Found::Link { target: new, .. }) if old == new => {}
            _ => {
                return Err(Complaint::usage(format!("two of the files to send would both become {name}"))
                    .fix("give one of them another name: --file PATH:DEST"));
            }
        }
        self.found.insert(name, found);
        Ok(())
    }
}

/// `follow`: what a link leads to is sent in its place.
pub fn walk(sources: &[Source], follow: bool) -> Done<Files> {
    let mut files = Files::default();
    for source in sources {
        let about = std::fs::metadata(&source.path).map_err(|error| Complaint::file("send", &source.path, &error))?;
        if about.is_dir() {
            walk_folder(source, follow, &mut files)?;
        } else {
            // Named by a person: what a link leads to is meant.
            files.add(source.dest.clone(), entry(&source.path, about.file_type(), &about, &source.dest)?)?;
        }
    }
    check_names(&files)?;
    check_links(&files)?;
    Ok(files)
}

fn walk_folder(source: &Source, follow: bool, files: &mut Files) -> Done<()> {
    let walk = ignore::WalkBuilder::new(&source.path)
        .hidden(false)
        .require_git(false)
        .follow_links(follow)
        .filter_entry(|entry| entry.file_name() != ".git")
        .build();
    for found in walk {
        let found = found.map_err(|error| refused(&error.to_string()))?;
        let path = found.path();
        let below = path.strip_prefix(&source.path).unwrap_or(path);
        let below = below.to_str().ok_or_else(|| refused(&format!("the name {} is not UTF-8", path.display())))?;
        let name = super::join(&source.dest, below);
        let name = name.trim_end_matches('/').to_owned();
        let about = found.metadata().map_err(|error| refused(&error.to_string()))?;
        // The root of a walk is a folder even where it is reached by a link.
        let kind = if below.is_empty() { None } else { Some(about.file_type()) };
        match kind {
            None if name.is_empty() => {}
            None => files.add(name, Found::Folder)?,
            Some(kind) => files.add(name, entry(path, kind, &about, &source.dest)?)?,
        }
    }
    Ok(())
}

fn entry(path: &Path, kind: FileType, about: &Metadata, source: &str) -> Done<Found> {
    if kind.is_dir() {
        return Ok(Found::Folder);
    }
    if kind.is_file() {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        let stamp = Stamp {
            modified_ns: ns(about.mtime(), about.mtime_nsec()),
            changed_ns: ns(about.ctime(), about.ctime_nsec()),
            inode: about.ino(),
        };
        let (size, mode) = (about.size() as i64, about.mode() & 0o777);
        return Ok(Found::File(FoundFile { path: path.to_owned(), size, mode, stamp }));
    }
    if kind.is_symlink() {
        let target = std::fs::read_link(path).map_err(|error| Complaint::file("read", path, &error))?;
        let target = target.to_str().ok_or_else(|| refused(&format!("the link {} is not UTF-8", path.display())))?;
        return Ok(Found::Link { target: target.to_owned(), source: source.to_owned() });
    }
    let what = match kind {
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(refused(&format!("{} is {what}", path.display())))
}

fn refused(what: &str) -> Complaint {
    Complaint::usage(format!("cannot be sent: {what}"))
        .fix("leave it out: name it in a .gitignore, or name less after --file")
}

fn check_names(files: &Files) -> Done<()> {
    match files.found.keys().find(|name| !name.split('/').all(is_name)) {
        Some(name) => Err(refused(&format!("{name} has a name that is too long"))),
        None => Ok(()),
    }
}

/// A link must stay within its source, or lead to something else that is sent: on the other machine there is nothing else.
fn check_links(files: &Files) -> Done<()> {
    for (name, found) in &files.found {
        let Found::Link { target, source } = found else { continue };
        let folder: Vec<&str> = name.split('/').collect();
        let leads_to = resolve(&folder[..folder.len() - 1], target).map(|steps| steps.join("/"));
        let is_fine =
            leads_to.is_some_and(|to| source.is_empty() || to.starts_with(&format!("{source}/")) || files.names(&to));
        if !is_fine {
            return Err(Complaint::usage(format!("the link {name} leads out of what is sent, to {target}"))
                .fix("add --follow-links to send what it leads to, or leave it out by a .gitignore"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::super::tests::place;
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(files: &Files) -> Vec<String> {
        let shown = |(name, found): (&String, &Found)| match found {
            Found::File(_) => name.clone(),
            Found::Folder => format!("{name}/"),
            Found::Link { target, .. } => format!("{name} -> {target}"),
        };
        files.found.iter().map(shown).collect()
    }

    #[test]
    fn a_folder_brings_what_git_would() {
        let dir = place(&["p/a.py", "p/.env", "p/.git/config", "p/out/big", "p/sub/b.py", "p/sub/c.tmp"]);
        std::fs::write(dir.path().join("p/.gitignore"), "out/\n*.tmp\n").unwrap();
        symlink("a.py", dir.path().join("p/link.py")).unwrap();
        symlink("gone", dir.path().join("p/broken")).unwrap();
        std::fs::create_dir(dir.path().join("p/empty")).unwrap();
        let files = walk(&[source("p", dir.path()).unwrap()], false).unwrap();
        let expected = [
            "p/",
            "p/.env",
            "p/.gitignore",
            "p/a.py",
            "p/broken -> gone",
            "p/empty/",
            "p/link.py -> a.py",
            "p/sub/",
            "p/sub/b.py",
        ];
        assert_eq!(names(&files), expected);
        assert!(files.names("p/sub") && files.names("p/a.py") && !files.names("p/su") && !files.names("a.py"));
    }

    #[test]
    fn two_files_never_share_a_name() {
        let dir = place(&["a/x", "b/x"]);
        let both = [source("a/x:x", dir.path()).unwrap(), source("b/x:x", dir.path()).unwrap()];
        assert_eq!(walk(&both, false).unwrap_err().code, 2);
        let twice = [source("a", dir.path()).unwrap(), source("a/x", dir.path()).unwrap()];
        assert_eq!(walk(&twice, false).unwrap().count(), 1);
    }

    #[test]
    fn links_stay_links_inside_and_are_refused_by_name_outside() {
        let dir = place(&["p/lib/x", "p/data/y", "secret"]);
        symlink("../data/y", dir.path().join("p/lib/y")).unwrap();
        let of = |sources: &[&str], follow| {
            let sources: Vec<_> = sources.iter().map(|text| source(text, &dir.path().join("p")).unwrap()).collect();
            walk(&sources, follow)
        };
        assert!(names(&of(&["."], false).unwrap()).contains(&"lib/y -> ../data/y".to_owned()));
        assert!(of(&["lib", "data"], false).is_ok(), "what it leads to is sent too");
        let alone = of(&["lib"], false).unwrap_err();
        assert!(alone.text.contains("lib/y") && alone.fix.unwrap().contains("--follow-links"), "{}", alone.text);
        assert_eq!(names(&of(&["lib"], true).unwrap()), ["lib/", "lib/x", "lib/y"]);
        for target in ["../../secret", "/etc/passwd"] {
            std::fs::remove_file(dir.path().join("p/out")).ok();
            symlink(target, dir.path().join("p/out")).unwrap();
            assert!(of(&["."], false).unwrap_err().text.contains("out"), "{target}");
        }
    }

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let dir = place(&["p/a", "s/a", "l/a"]);
        let at = |name: &str| dir.path().join(name);
        nix::unistd::mkfifo(&at("p/odd"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("s/odd")).unwrap();
        symlink("/dev/null", at("l/odd")).unwrap();
        for (named, what, follow) in [
            ("p", "p/odd is a FIFO", false),
            ("p", "p/odd is a FIFO", true),
            ("p/odd", "p/odd is a FIFO", false),
            ("s", "s/odd is a socket", false),
            ("s/odd", "s/odd is a socket", false),
            ("/dev/null:d/null", "/dev/null is a device", false),
            // Followed, a link is what it leads to.
            ("l", "l/odd is a device", true),
            ("l/odd", "l/odd is a device", false),
        ] {
            let complaint = walk(&[source(named, dir.path()).unwrap()], follow).unwrap_err();
            assert!(complaint.code == 2 && complaint.fix.is_some(), "{named}: {complaint}");
            assert!(complaint.text.contains(what), "{named}: {}", complaint.text);
        }
    }

    #[test]
    fn a_folder_that_is_no_repository_has_a_gitignore_too() {
        let dir = place(&["p/a", "p/b.tmp"]);
        std::fs::write(dir.path().join("p/.gitignore"), "*.tmp\n").unwrap();
        let files = walk(&[source("p", dir.path()).unwrap()], false).unwrap();
        assert_eq!(names(&files), ["p/", "p/.gitignore", "p/a"]);
    }

    #[test]
    fn two_links_never_share_a_name_and_one_may_lead_to_its_source() {
        let dir = place(&["a/x", "a/y", "b/x"]);
        let link = |target: &str, name: &str| {
            std::fs::remove_file(dir.path().join(name)).ok();
            symlink(target, dir.path().join(name)).unwrap();
        };
        let both = || walk(&["a:d", "b:d"].map(|text| source(text, dir.path()).unwrap()), false);
        std::fs::remove_file(dir.path().join("b/x")).unwrap();
        link("x", "a/l");
        link("y", "b/l");
        assert!(both().unwrap_err().text.contains("d/l"));
        link("x", "b/l");
        assert_eq!(names(&both().unwrap()), ["d/", "d/l -> x", "d/x", "d/y"]);
        std::fs::create_dir(dir.path().join("a/sub")).unwrap();
        link("..", "a/sub/up");
        assert!(walk(&[source("a", dir.path()).unwrap()], false).is_ok());
    }

    #[test]
    fn a_name_that_is_too_long_is_refused_and_a_file_is_known_by_its_stamp() {
        let dir = place(&["x"]);
        let long = source(&format!("x:{}", "n".repeat(300)), dir.path()).unwrap();
        assert!(walk(&[long], false).unwrap_err().text.contains("too long"));
        let about = std::fs::metadata(dir.path().join("x")).unwrap();
        let files = walk(&[source("x", dir.path()).unwrap()], false).unwrap();
        let Some((_, file)) = files.files().next() else { panic!("one file") };
        let ns = |seconds: i64, ns: i64| seconds * 1_000_000_000 + ns;
        let stamp = Stamp {
            modified_ns: ns(about.mtime(), about.mtime_nsec()),
            changed_ns: ns(about.ctime(), about.ctime_nsec()),
            inode: about.ino(),
        };
        assert_eq!((file.size, file.stamp), (1, stamp));
    }
}
