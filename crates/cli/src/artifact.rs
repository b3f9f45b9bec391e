//! `repl artifact`: what runs left behind, listed and brought back. Never writes outside the folder it was given, and
//! never over a file that says something else.

use crate::args::Listing;
use crate::complaint::{Complaint, Done, REFUSED};
use crate::control_plane::{ControlPlane, new_key};
use crate::lookup;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt as _;
use wire::api::ArtifactView;
use wire::model::crash_point;

/// Most artifacts that are listed; a run has fewer within its limit of 10 GB.
const MOST: usize = 10_000_000;

#[derive(Debug, clap::Subcommand)]
pub enum Artifact {
    /// List what a run left behind
    #[command(
        alias = "list",
        after_help = "Examples:
  repl artifact ls
  repl artifact ls train"
    )]
    Ls {
        /// Id, beginning of an id, name, or @last
        #[arg(default_value = lookup::LAST)]
        run: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Bring it back, under the paths it had
    #[command(
        alias = "download",
        after_help = "Examples:
  repl artifact get
  repl artifact get 'out/*.pt'
  repl artifact get train 'out/*.pt' --output models
  repl artifact get train out/loss.csv --output - | head"
    )]
    Get {
        /// Id, beginning of an id, name, or @last
        #[arg(default_value = lookup::LAST)]
        run: String,
        /// Only paths that match; a lone pattern with a / or * in it means the last run
        glob: Option<String>,
        /// Folder to write to; - writes one artifact to stdout
        #[arg(short, long, value_name = "DIR", default_value = ".")]
        output: PathBuf,
        /// Overwrite files that differ
        #[arg(long)]
        force: bool,
        /// Of this attempt instead of the last one
        #[arg(long, value_name = "N")]
        attempt: Option<i64>,
    },
}

pub async fn artifact(settings: &Settings, command: Artifact) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Artifact::Ls { run, listing } => {
            let run = lookup::run(&plane, &run).await?;
            list(&plane, &run, listing).await
        }
        Artifact::Get { run, glob, output, force, attempt } => {
            let (run, glob) = meant(run, glob);
            let run = match lookup::run(&plane, &run).await {
                // A file's name reads like a run's.
                Err(complaint) if glob.is_none() && complaint.code == REFUSED && run != lookup::LAST => {
                    let of_the_last = format!("repl artifact get @last {}", crate::meant::quoted(&[run]));
                    return Err(complaint.fix(format!("of the last run: {of_the_last}")));
                }
                found => found?,
            };
            let wanted = choose(&plane, &run, glob.as_deref(), attempt).await?;
            if output == Path::new("-") {
                return to_stdout(&plane, &run, &wanted).await;
            }
            let mut bytes = 0;
            // Links last: nothing is written through one that was just made.
            let (links, others): (Vec<_>, Vec<_>) = wanted.iter().partition(|artifact| artifact.target.is_some());
            for artifact in others.into_iter().chain(links.iter().copied()) {
                get(&plane, &run, artifact, &output, force).await?;
                bytes += artifact.size;
                eprintln!("{}", one_line(&output.join(&artifact.path).display().to_string()));
            }
            remove_escapes(&output, &links)?;
            let noun = if wanted.len() == 1 { "artifact" } else { "artifacts" };
            eprintln!("repl: {} {noun} from {run} ({})", wanted.len(), show::size(bytes));
            Ok(0)
        }
    }
}

/// `artifact get 'out/*'` is a pattern: no run is called so.
fn meant(run: String, glob: Option<String>) -> (String, Option<String>) {
    if glob.is_none() && run.contains(['/', '*', '?', '[']) {
        (lookup::LAST.to_owned(), Some(run))
    } else {
        (run, glob)
    }
}

async fn list(plane: &ControlPlane, run: &str, listing: Listing) -> Done {
    let found: Vec<ArtifactView> = plane.list(&format!("/runs/{run}/artifacts"), listing.limit).await?;
    if listing.json {
        return show::json(&found);
    }
    let mut table = Table::new(["ID", "ATTEMPT", "SIZE", "STATE", "KEPT", "PATH"])
        .without_if_narrow(&["ATTEMPT", "STATE"])
        .with_paths();
    for it in &found {
        let kept = if it.deleted_at.is_some() { Some("deleted".to_owned()) } else { it.expires_at.map(show::until) };
        let cells = [
            it.id.clone(),
            it.attempt.to_string(),
            show::size(it.size),
            it.state.clone(),
            show::or_dash(kept),
            it.path.clone(),
        ];
        table.row(cells);
    }
    table.print("this run left nothing behind (repl run --artifact 'out/*' keeps what matches)");
    Ok(0)
}

/// Whether this run left anything that can be brought back, if that can be asked.
pub async fn are_there(plane: &ControlPlane, run: &str) -> Option<bool> {
    let found: Vec<ArtifactView> = plane.list(&format!("/runs/{run}/artifacts"), 1).await.ok()?;
    Some(!found.is_empty())
}

/// Those of one attempt that match and still exist.
async fn choose(plane: &ControlPlane, run: &str, glob: Option<&str>, attempt: Option<i64>) -> Done<Vec<ArtifactView>> {
    let all: Vec<ArtifactView> = plane.list(&format!("/runs/{run}/artifacts"), MOST).await?;
    let glob = glob.map(patterns).transpose()?;
    let last = all.iter().map(|it| it.attempt).max();
    let is_wanted = |it: &ArtifactView| {
        it.state == "final"
            && attempt.or(last) == Some(it.attempt)
            && glob.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.is_match(&it.path)))
    };
    let count = all.len();
    let wanted: Vec<ArtifactView> = all.into_iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        let fix = match count {
            0 => "say what to keep: repl run --artifact 'out/*' …; if it was said, nothing matched".to_owned(),
            _ => format!("see `repl artifact ls {run}`"),
        };
        return Err(Complaint::refused(format!("no artifact of {run} to bring back")).fix(fix));
    }
    Ok(wanted)
}

/// As `--artifact` reads it: a folder's name means all that is in it.
fn patterns(text: &str) -> Done<[globset::GlobMatcher; 2]> {
    let plain = text.trim_end_matches('/');
    Ok([pattern(plain)?, pattern(&format!("{plain}/**"))?])
}

/// As a shell reads it: `*` stays within a folder, `**` does not.
pub fn pattern(text: &str) -> Done<globset::GlobMatcher> {
    let built = globset::GlobBuilder::new(text.trim_start_matches("./")).literal_separator(true).build();
    built.map(|glob| glob.compile_matcher()).map_err(|error| {
        Complaint::usage(format!("`{text}` is not a pattern: {}", error.kind()))
            .fix("write it like 'out/*.csv' or 'out/**'; a \\ before a special character takes it literally")
    })
}

async fn get(plane: &ControlPlane, run: &str, artifact: &ArtifactView, folder: &Path, force: bool) -> Done<()> {
    // Path and id were chosen on another machine.
    if !wire::model::tree::is_path(&artifact.path) || artifact.id.parse::<wire::model::ArtifactId>().is_err() {
        return Err(Complaint::refused(format!("`{}` would be written outside {}", artifact.path, folder.display())));
    }
    let path = folder.join(&artifact.path);
    let failed = |error: std::io::Error| Complaint::file("write", &path, &error);
    let parent = path.parent().unwrap_or(folder);
    tokio::fs::create_dir_all(folder).await.map_err(failed)?;
    leads_outside(folder, &artifact.path)?;
    tokio::fs::create_dir_all(parent).await.map_err(failed)?;
    if artifact.kind == "folder" && artifact.target.is_none() {
        return tokio::fs::create_dir_all(&path).await.map_err(failed);
    }
    // Beside its place, and moved there when complete: a broken connection leaves no half file under a good name. The name is
    // random, so no other user can have placed a link there.
    let fresh = parent.join(format!(".repl-{}", new_key()?));
    let written = match &artifact.target {
        Some(target) => link_to(artifact, target, &fresh),
        None => write_to(plane, run, artifact, &fresh).await,
    };
    let placed = match written {
        Ok(()) => place(&fresh, &path, force).await,
        Err(complaint) => Err(complaint),
    };
    if placed.is_err() {
        tokio::fs::remove_file(&fresh).await.ok();
    }
    placed
}

/// A link in the way could lead anywhere. Only the folders that are there already can be links.
fn leads_outside(folder: &Path, path: &str) -> Done<()> {
    let root = real(folder)?;
    let mut at = folder.to_owned();
    let steps: Vec<&str> = path.split('/').collect();
    for step in &steps[..steps.len() - 1] {
        at.push(step);
        if std::fs::symlink_metadata(&at).is_err() {
            return Ok(());
        }
        if !real(&at)?.starts_with(&root) {
            return Err(Complaint::refused(format!("{} leads outside {}", at.display(), folder.display()))
                .fix("write to another folder: --output DIR"));
        }
    }
    Ok(())
}

fn real(path: &Path) -> Done<PathBuf> {
    path.canonicalize().map_err(|error| Complaint::file("write to", path, &error))
}

/// Links that were brought back and lead outside after all, through other links: they are removed again.
fn remove_escapes(folder: &Path, links: &[&ArtifactView]) -> Done<()> {
    let root = real(folder)?;
    let escapes = |link: &&&ArtifactView| leads_to(&root, &root.join(&link.path)).is_none();
    let found: Vec<&&ArtifactView> = links.iter().filter(escapes).collect();
    for link in &found {
        std::fs::remove_file(root.join(&link.path)).ok();
    }
    match found.first() {
        Some(link) => Err(Complaint::refused(format!("the link `{}` leads outside, and was removed", link.path))),
        None => Ok(()),
    }
}

/// Where a link leads, step by step through whatever is there; none as soon as a step is outside.
fn leads_to(root: &Path, link: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(link).ok()?;
    let mut at = link.parent()?.canonicalize().ok()?;
    for step in target.components() {
        match step {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => drop(at.pop()),
            std::path::Component::Normal(name) => {
                at.push(name);
                at = at.canonicalize().unwrap_or(at);
            }
            _ => return None,
        }
        if !at.starts_with(root) {
            return None;
        }
    }
    Some(at)
}

async fn write_to(plane: &ControlPlane, run: &str, artifact: &ArtifactView, path: &Path) -> Done<()> {
    let failed = |error: std::io::Error| Complaint::file("write", path, &error);
    let mut body = plane.download(&format!("/runs/{run}/artifacts/{}", artifact.id)).await?;
    let mut file = tokio::fs::File::create_new(path).await.map_err(failed)?;
    while let Some(piece) = body.chunk().await? {
        file.write_all(&piece).await.map_err(failed)?;
    }
    file.flush().await.map_err(failed)?;
    if let Some(mode) = artifact.mode {
        let bits = std::os::unix::fs::PermissionsExt::from_mode(mode & 0o777);
        file.set_permissions(bits).await.map_err(failed)?;
    }
    Ok(())
}

/// The target was chosen on another machine, too.
fn link_to(artifact: &ArtifactView, target: &str, fresh: &Path) -> Done<()> {
    if !wire::model::tree::stays_inside(target, artifact.path.split('/').count() - 1) {
        return Err(Complaint::refused(format!("the link `{}` leads outside, to {target}", artifact.path)));
    }
    std::os::unix::fs::symlink(target, fresh).map_err(|error| Complaint::file("write", fresh, &error))
}

async fn place(fresh: &Path, path: &Path, force: bool) -> Done<()> {
    let failed = |error: std::io::Error| Complaint::file("write", path, &error);
    if !force && tokio::fs::symlink_metadata(path).await.is_ok() && !same(fresh, path)? {
        return Err(Complaint::refused(format!("{} is there already and differs", path.display()))
            .fix("add --force, or write elsewhere with --output DIR"));
    }
    crash_point!("artifact.place", tokio::fs::rename(fresh, path).await).map_err(failed)
}

fn same(one: &Path, other: &Path) -> Done<bool> {
    if let (Ok(one), Ok(other)) = (std::fs::read_link(one), std::fs::read_link(other)) {
        return Ok(one == other);
    }
    let digest = |path: &Path| -> std::io::Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut std::fs::File::open(path)?, &mut hasher)?;
        Ok(hasher.finalize())
    };
    match (digest(one), digest(other)) {
        (Ok(one), Ok(other)) => Ok(one == other),
        _ => Ok(false),
    }
}

async fn to_stdout(plane: &ControlPlane, run: &str, wanted: &[ArtifactView]) -> Done {
    let [artifact] = wanted else {
        return Err(Complaint::usage(format!("{} artifacts match; only one fits on stdout", wanted.len()))
            .fix(format!("name it: repl artifact get {run} PATH --output -")));
    };
    let mut body = plane.download(&format!("/runs/{run}/artifacts/{}", artifact.id)).await?;
    let mut out = tokio::io::stdout();
    let failed = |error: std::io::Error| Complaint::refused(format!("cannot write the output: {error}"));
    while let Some(piece) = body.chunk().await? {
        out.write_all(&piece).await.map_err(failed)?;
    }
    out.flush().await.map_err(failed)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_says_something_else_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (fresh, path) = (dir.path().join("fresh"), dir.path().join("there"));
        for (there, force, fine) in
            [(None, false, true), (Some("new"), false, true), (Some("old"), false, false), (Some("old"), true, true)]
        {
            std::fs::write(&fresh, "new").unwrap();
            match there {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => drop(std::fs::remove_file(&path)),
            }
            assert_eq!(place(&fresh, &path, force).await.is_ok(), fine, "{there:?} {force}");
        }
    }

    #[test]
    fn a_folders_name_means_all_that_is_in_it() {
        for (text, path, is_meant) in [
            ("out", "out/a", true),
            ("out/", "out/deep/b", true),
            ("./out", "out/a", true),
            ("out", "out", true),
            ("out", "outer/a", false),
            ("out/*.txt", "out/a.txt", true),
            ("out/*.txt", "out/a.csv", false),
            ("d*", "deep/b", true),
        ] {
            let globs = patterns(text).unwrap();
            assert_eq!(globs.iter().any(|glob| glob.is_match(path)), is_meant, "{text} {path}");
        }
    }

    #[test]
    fn a_lone_pattern_is_not_a_run() {
        let text = |text: &str| text.to_owned();
        assert_eq!(meant(text("out/*"), None), (text("@last"), Some(text("out/*"))));
        assert_eq!(meant(text("train"), None), (text("train"), None));
        assert_eq!(meant(text("train"), Some(text("n"))), (text("train"), Some(text("n"))));
    }

    #[test]
    fn a_link_out_of_the_folder_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("here");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::os::unix::fs::symlink(dir.path(), inside.join("out")).unwrap();
        assert!(leads_outside(&inside, "sub/x").is_ok() && leads_outside(&inside, "new/folder/x").is_ok());
        assert!(leads_outside(&inside, "out/x").is_err() && leads_outside(&inside, "out/new/x").is_err());
    }

    #[test]
    fn links_that_lead_outside_through_others_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap().join("out");
        std::fs::create_dir_all(root.join("o/p/q/r")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        link("../..", "o/p/q/r/d");
        link("p/q/r/d/../../../x", "o/e");
        link("p/q", "o/fine");
        link("p/gone/y", "o/dangling");
        link("/etc", "o/absolute");
        let inside = |name: &str| leads_to(&root, &root.join(name)).is_some();
        assert!(inside("o/p/q/r/d") && inside("o/fine") && inside("o/dangling"));
        assert!(!inside("o/e") && !inside("o/absolute"));
    }
}
