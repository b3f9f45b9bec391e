//! The runner's binary that is copied to hosts: which file, its hash and the machines it is for. Reads files only.

use model::{Trouble, TroubleKind};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The command that builds the static one.
pub const BUILD: &str = "scripts/build-runner";
/// Beside the control plane's own binary, where `scripts/build-runner` puts it.
const BESIDE: &str = "repl-static";
/// Where the path of one is set.
pub const VARIABLE: &str = "REPL_RUNNER_BINARY";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    pub path: PathBuf,
    /// In hex.
    pub hash: String,
    pub bytes: u64,
    /// As `uname -sm` says it; none of a script, which says for itself where it can run.
    pub machine: Option<&'static str>,
}

impl Binary {
    /// As the compiler names what it is for.
    pub fn target(&self) -> Option<&'static str> {
        match self.machine? {
            "Linux x86_64" => Some("x86_64-unknown-linux-gnu"),
            "Linux aarch64" => Some("aarch64-unknown-linux-gnu"),
            _ => None,
        }
    }

    /// The one that is set, else the static one beside `exe`, else `exe` itself.
    pub fn choose(set: Option<&Path>, exe: &Path) -> PathBuf {
        if let Some(set) = set {
            return set.to_owned();
        }
        let own = std::fs::read_link(exe).unwrap_or_else(|_| exe.to_owned());
        let beside = own.with_file_name(BESIDE);
        if beside.is_file() { beside } else { exe.to_owned() }
    }

    pub fn read(path: &Path) -> Result<Binary, Trouble> {
        let wrong = |why: String| {
            let what = format!("the runner's binary {} cannot be used ({why}): build one by `{BUILD}`", path.display());
            Trouble::new(TroubleKind::InvalidSpec, what)
        };
        let mut file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let bytes = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
        let mut head = [0; 20];
        file.read_exact(&mut head).map_err(|error| wrong(error.to_string()))?;
        let machine = match machine(&head) {
            None if !head.starts_with(b"#!") => {
                return Err(wrong("it is no program for Linux that we know".to_owned()));
            }
            machine => machine,
        };
        let hash = hash(head, file).map_err(|error| wrong(error.to_string()))?;
        Ok(Binary { path: path.to_owned(), hash, bytes, machine })
    }
}

fn hash(head: [u8; 20], rest: File) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&head);
    io::copy(&mut io::BufReader::with_capacity(1 << 20, rest), &mut hasher)?;
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// From the header of an ELF file.
fn machine(head: &[u8; 20]) -> Option<&'static str> {
    if head[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    match u16::from_le_bytes([head[18], head[19]]) {
        62 => Some("Linux x86_64"),
        183 => Some("Linux aarch64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_is_known_by_its_content() {
        let own = Binary::read(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(own.hash.len(), 32);
        assert_eq!(own.machine.unwrap(), format!("Linux {}", std::env::consts::ARCH));
        let dir = tempfile::tempdir().unwrap();
        let (script, text) = (dir.path().join("script"), dir.path().join("text"));
        std::fs::write(&script, "#!/bin/sh\nexec something\n").unwrap();
        assert_eq!(Binary::read(&script).unwrap().machine, None);
        std::fs::write(&text, "this is no program at all\n").unwrap();
        assert!(Binary::read(&text).unwrap_err().what.contains("build-runner"));
        assert!(Binary::read(Path::new("/nowhere")).unwrap_err().what.contains("/nowhere"));
    }

    #[test]
    fn the_static_one_beside_the_own_binary_is_preferred() {
        let dir = tempfile::tempdir().unwrap();
        let (exe, beside) = (dir.path().join("repl"), dir.path().join(BESIDE));
        std::fs::write(&exe, "").unwrap();
        assert_eq!(Binary::choose(None, &exe), exe);
        std::fs::write(&beside, "").unwrap();
        assert_eq!(Binary::choose(None, &exe), beside);
        assert_eq!(Binary::choose(Some(Path::new("/set")), &exe), Path::new("/set"));
    }
}
