//! Uploads a job's artifacts: files below its workdir that match its globs, after the command has ended and
//! before its end is reported. Never reads outside of the workdir.

use crate::clock::Backoff;
use crate::kept;
use crate::key::JobKey;
use crate::link::Line;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use wire::client::{ClientError, Method, Request};
use wire::model::crash_point;
use wire::model::tree::{TreeRef, resolve};

const UPLOADS_AT_A_TIME: usize = 10;
/// Tries of one file while the control plane answers; while it is away results wait.
const TRIES: u32 = 5;
/// A workdir with more than this is not searched to its end.
pub const MOST_FILES: usize = 2_000_000;
const PIECE: usize = 256 << 10;
/// A log is not the place for thousands of names.
const MOST_LINES: usize = 20;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Name below the workdir, and what is there.
    pub files: Vec<(String, Item)>,
    pub problems: Vec<String>,
    /// Globs that named nothing: no failure, but rarely what was meant.
    pub idle: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Where its bytes are.
    File(PathBuf),
    /// A folder with nothing in it that is kept otherwise.
    Folder,
    /// A link to something that is kept too.
    Link(String),
}

/// What did not become of the artifacts that were asked for.
#[derive(Debug, Default)]
pub struct Shortfall {
    /// What could not be uploaded, in words.
    pub problems: Vec<String>,
    pub idle: Vec<String>,
    /// Why the command's answer, which is too large for a report, could not be uploaded.
    pub answer: Option<String>,
    /// The tree of what the step was to keep, if all of it was uploaded.
    pub kept: Option<TreeRef>,
}

impl Shortfall {
    /// For the log: the first of them, a line each.
    pub fn lines(&self) -> String {
        let problems = self.problems.iter().map(|problem| format!("artifact not uploaded: {problem}\n"));
        let idle = self.idle.iter().map(|glob| format!("no file matches the artifact glob {glob}\n"));
        let (mut lines, rest) =
            (problems.chain(idle), (self.problems.len() + self.idle.len()).saturating_sub(MOST_LINES));
        let mut text: String = lines.by_ref().take(MOST_LINES).collect();
        if rest > 0 {
            text.push_str(&format!("and {rest} more artifacts not uploaded\n"));
        }
        text
    }
}

/// What a step has left.
#[derive(Debug, Default)]
pub struct Left {
    pub workdir: PathBuf,
    /// Globs of its artifacts.
    pub artifacts: Vec<String>,
    /// Globs of what is kept for another workdir.
    pub keep: Vec<String>,
    /// An answer that is too large for a report: its name, and where it is.
    pub answer: Option<(String, PathBuf)>,
}

impl Left {
    pub fn is_nothing(&self) -> bool {
        self.artifacts.is_empty() && self.keep.is_empty() && self.answer.is_none()
    }
}

/// Uploads what the globs find in the workdir, and a large answer under its name.
pub async fn upload(key: JobKey, left: Left, line: Line) -> Shortfall {
    let Left { workdir, artifacts, keep, answer } = left;
    let kept = match keep.is_empty() {
        true => Ok(None),
        false => kept::keep(&workdir, keep, &line).await.map(Some),
    };
    let search = move || if artifacts.is_empty() { Found::default() } else { find(&workdir, &artifacts) };
    let found = tokio::task::spawn_blocking(search).await.expect("a search does not panic");
    let answer = match answer {
        Some((name, path)) => upload_one(key, name, Item::File(path), line.clone()).await,
        None => None,
    };
    let uploads = stream::iter(found.files)
        .map(|(name, item)| upload_one(key, name, item, line.clone()))
        .buffer_unordered(UPLOADS_AT_A_TIME);
    let failed: Vec<Option<String>> = uploads.collect().await;
    let unkept = kept.as_ref().err().map(|why| format!("files were not kept: {why}"));
    let problems = found.problems.into_iter().chain(failed.into_iter().flatten()).chain(unkept).collect();
    Shortfall { problems, idle: found.idle, answer, kept: kept.ok().flatten() }
}

async fn upload_one(key: JobKey, name: String, item: Item, mut line: Line) -> Option<String> {
    let (mut tries, mut backoff) = (0, Backoff::default());
    loop {
        let why = match try_upload(key, &name, &item, &line).await {
            Ok(()) => return None,
            Err(Trying::System(error)) => return Some(format!("{name}: {error}")),
            Err(Trying::Control(error)) if line.is_away(&error) => {
                line.try_again_after(backoff.next()).await;
                continue;
            }
            Err(Trying::Control(error)) if error.is_final() => return Some(format!("{name}: {error}")),
            Err(Trying::Control(error)) => error.to_string(),
        };
        tries += 1;
        if tries == TRIES {
            return Some(format!("{name}: {why}"));
        }
        line.try_again_after(backoff.next()).await;
    }
}

enum Trying {
    Control(ClientError),
    System(io::Error),
}

async fn try_upload(key: JobKey, name: &str, item: &Item, line: &Line) -> Result<(), Trying> {
    let request = line.client.request(Method::PUT, &format!("/runner/v1/jobs/{}/artifacts", key.job));
    let request = request.query("epoch", key.epoch).query("path", name);
    let path = match item {
        Item::File(path) => path,
        Item::Folder => return put(request.query("kind", "folder").query("size", 0)).await,
        Item::Link(target) => return put(request.query("kind", "link").query("size", 0).query("target", target)).await,
    };
    // Another process of the same user may have put something else there since the search: no link is followed, no FIFO waited for.
    let mut how = tokio::fs::OpenOptions::new();
    how.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = how.open(path).await.map_err(Trying::System)?;
    let about = file.metadata().await.map_err(Trying::System)?;
    if !about.is_file() {
        return Err(Trying::System(io::Error::other("not a file any more")));
    }
    let (length, mode) = (about.len(), about.permissions().mode() & 0o777);
    let pieces = pieces(file, length);
    let request = request.query("kind", "file").query("size", length).query("mode", mode);
    put(request.stream(pieces, Some(length))).await
}

/// The first `length` bytes of a file.
pub fn pieces(file: tokio::fs::File, length: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::try_unfold((file, length), |(mut file, left)| async move {
        if left == 0 {
            return Ok::<_, io::Error>(None);
        }
        let mut piece = vec![0; PIECE.min(left as usize)];
        let read = tokio::io::AsyncReadExt::read(&mut file, &mut piece).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        piece.truncate(read);
        Ok(Some((Bytes::from(piece), (file, left - read as u64))))
    })
}

async fn put(request: Request) -> Result<(), Trying> {
    crash_point!("artifact.put", request.send().await).map(drop).map_err(Trying::Control)
}

/// Blocking: walks the workdir.
pub fn find(workdir: &Path, globs: &[String]) -> Found {
    let mut found = Found::default();
    let wanted = match patterns(globs) {
        Ok(wanted) => wanted,
        Err(why) => {
            found.problems.push(why);
            return found;
        }
    };
    let Ok(root) = workdir.canonicalize() else { return found };
    let (mut folders, mut seen, mut used) = (vec![(PathBuf::new(), false)], 0, vec![false; globs.len()]);
    let mut links = Vec::new();
    while let Some((folder, is_wanted)) = folders.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(root.join(&folder)).into_iter().flatten().flatten().collect();
        entries.sort_by_key(|entry| entry.file_name());
        if is_wanted && entries.is_empty() {
            found.folder(&folder);
        }
        for entry in entries {
            seen += 1;
            if seen > MOST_FILES {
                found.problems.push(format!("more than {MOST_FILES} files in the workdir: the rest was not searched"));
                return found;
            }
            let name = folder.join(entry.file_name());
            let matching = wanted.matches(&name);
            let is_wanted = !matching.is_empty();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push((name, is_wanted)),
                Ok(kind) if is_wanted && kind.is_symlink() => links.push(name),
                Ok(_) if is_wanted => found.take(&root, &name),
                _ => {}
            }
            // Two patterns stand for each glob.
            matching.into_iter().for_each(|pattern| used[pattern / 2] = true);
        }
    }
    found.files.sort_by(|left, right| left.0.cmp(&right.0));
    links.sort();
    for name in links {
        found.link(&root, &name);
    }
    found.files.sort_by(|left, right| left.0.cmp(&right.0));
    found.idle = globs.iter().zip(used).filter(|(_, used)| !used).map(|(glob, _)| glob.clone()).collect();
    found
}

impl Found {
    fn take(&mut self, root: &Path, name: &Path) {
        let Some(text) = name.to_str() else {
            return self.problems.push(format!("{}: the name is not UTF-8", name.display()));
        };
        match root.join(name).canonicalize() {
            Ok(path) if !path.starts_with(root) => self.problems.push(format!("{text}: leads out of the workdir")),
            Ok(path) if path.is_file() => self.files.push((text.to_owned(), Item::File(path))),
            Ok(_) => self.problems.push(format!("{text}: not a file")),
            Err(error) => self.problems.push(format!("{text}: {error}")),
        }
    }

    fn folder(&mut self, name: &Path) {
        match name.to_str() {
            Some(text) => self.files.push((text.to_owned(), Item::Folder)),
            None => self.problems.push(format!("{}: the name is not UTF-8", name.display())),
        }
    }

    /// A link stays one if it is relative and what it leads to is kept too; otherwise what it leads to is kept under its name. Called
    /// in the order of names with the files sorted.
    fn link(&mut self, root: &Path, name: &Path) {
        let target = std::fs::read_link(root.join(name)).ok().and_then(|target| Some(target.to_str()?.to_owned()));
        let (Some(text), Some(target)) = (name.to_str(), target) else { return self.take(root, name) };
        let folder: Vec<&str> = text.split('/').rev().skip(1).collect::<Vec<_>>().into_iter().rev().collect();
        let leads_to = resolve(&folder, &target).map(|steps| steps.join("/"));
        // Where it really leads: on the way there may be other links, which the text does not show.
        let really = |path: &str| root.join(name).canonicalize().is_ok_and(|real| real == root.join(path));
        if leads_to.is_some_and(|path| self.keeps(&path) && really(&path)) {
            self.files.push((text.to_owned(), Item::Link(target)));
        } else {
            self.take(root, name);
        }
    }

    /// Whether a file of this name, or one in a folder of this name, is kept.
    fn keeps(&self, path: &str) -> bool {
        let at = self.files.partition_point(|(name, _)| name.as_str() < path);
        let is_it = |(name, item): &(String, Item)| {
            !matches!(item, Item::Link(_)) && (name == path || name.starts_with(&format!("{path}/")))
        };
        // A name such as `a-b` lies between `a` and `a/b`.
        self.files[at..].iter().take_while(|(name, _)| name.starts_with(path)).any(is_it)
    }
}

/// As a shell reads them: `*` stays within a folder, `**` does not; a folder's name means all that is in it.
fn patterns(globs: &[String]) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        let plain = glob.trim_start_matches("./").trim_end_matches('/');
        if plain.starts_with('/') || plain.split('/').any(|step| step == "..") {
            return Err(format!("{glob}: leads out of the workdir"));
        }
        for pattern in [plain.to_owned(), format!("{plain}/**")] {
            let built = GlobBuilder::new(&pattern).literal_separator(true).build();
            set.add(built.map_err(|error| format!("{glob}: {error}"))?);
        }
    }
    set.build().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn globs_find_what_a_shell_would_and_nothing_outside() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["out/a", "out/deep/b", "top.txt", "other/c"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        }
        std::fs::write(outside.path().join("secret"), "x").unwrap();
        symlink(outside.path().join("secret"), dir.path().join("out/leak")).unwrap();
        symlink(outside.path(), dir.path().join("out/dir")).unwrap();
        symlink("a", dir.path().join("out/link")).unwrap();
        symlink("../top.txt", dir.path().join("out/copy")).unwrap();
        symlink("deep", dir.path().join("out/to-deep")).unwrap();
        std::fs::create_dir(dir.path().join("out/empty")).unwrap();
        // By their text these stay inside; one goes through the other and leads out.
        symlink("../..", dir.path().join("out/deep/up")).unwrap();
        symlink("deep/up/../a", dir.path().join("out/through")).unwrap();
        let names = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(|glob| glob.to_string()).collect();
            let found = find(dir.path(), &globs);
            let shown = |(name, item)| match item {
                Item::File(_) => name,
                Item::Folder => format!("{name}/"),
                Item::Link(target) => format!("{name} -> {target}"),
            };
            (found.files.into_iter().map(shown).collect::<Vec<_>>(), found.problems.len(), found.idle.len())
        };
        let strings = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let all = ["out/a", "out/copy", "out/deep/b", "out/empty/", "out/link -> a", "out/to-deep -> deep"];
        assert_eq!(names(&["out/*"]), (strings(&all), 4, 0), "a link stays one if what it leads to is kept");
        assert_eq!(names(&["out/link"]), (strings(&["out/link"]), 0, 0), "and is kept as a file otherwise");
        assert_eq!(names(&["*.txt", "./other"]), (strings(&["other/c", "top.txt"]), 0, 0));
        assert_eq!(names(&["**/b"]), (strings(&["out/deep/b"]), 0, 0));
        assert_eq!(names(&["../*"]), (vec![], 1, 0));
        assert_eq!(names(&["/etc/*"]), (vec![], 1, 0));
        assert_eq!(names(&["nothing", "*.txt", "out/none*"]), (strings(&["top.txt"]), 0, 2));
    }

    #[test]
    fn a_shortfall_is_said_in_few_lines() {
        let shortfall = Shortfall {
            problems: vec!["a: not a file".to_owned()],
            idle: vec!["*.x".to_owned()],
            ..Shortfall::default()
        };
        assert_eq!(shortfall.lines(), "artifact not uploaded: a: not a file\nno file matches the artifact glob *.x\n");
        let many = Shortfall { problems: vec!["b".to_owned(); 1000], ..Shortfall::default() };
        assert_eq!(many.lines().lines().count(), MOST_LINES + 1);
        assert!(many.lines().ends_with("and 980 more artifacts not uploaded\n"));
    }
}
