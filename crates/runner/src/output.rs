//! The output of a command: JSON that it writes to the file named by `REPL_OUTPUT`, in the step's folder. The keeper hides secrets
//! in it and syncs it before it writes the exit record; the runner validates the output and reports it with the end.

use crate::durable;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wire::model::secret::Masker;
use wire::runner::OUTPUT_BYTES;

pub const VARIABLE: &str = "REPL_OUTPUT";
const FILE: &str = "output";
/// The output without secrets, until it takes the place of the other.
const HIDDEN: &str = "output.hidden";
/// What the processes of a step share with us: their output and the sockets they ask. Of the step's folder, a sandbox shows only this.
const SHARED: &str = "io";

pub fn shared(dir: &Path) -> PathBuf {
    dir.join(SHARED)
}

pub fn path(dir: &Path) -> PathBuf {
    shared(dir).join(FILE)
}

/// For an answer that the keeper writes, because it is the command's standard output.
pub fn begin(dir: &Path) -> io::Result<File> {
    File::create_new(path(dir))
}

/// The command may have left anything under this name: no link is followed, no FIFO waited for.
fn open(dir: &Path) -> io::Result<Option<File>> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path(dir));
    match opened {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) => Err(io::Error::other("it is not a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The command has ended. Hides secrets in what it left, and waits for the disk if there is something to keep. What is no JSON or too large
/// stays as it is: [`read`] refuses it.
pub fn keep(dir: &Path, secrets: &Masker) -> io::Result<()> {
    let Some(file) = open(dir)? else { return Ok(()) };
    let mut bytes = Vec::new();
    (&file).take(OUTPUT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(());
    }
    let left = Some(&bytes).filter(|bytes| bytes.len() <= OUTPUT_BYTES);
    let left: Option<Value> = left.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let hidden = left.and_then(|left| Some(secrets.value(left.clone())).filter(|hidden| *hidden != left));
    let Some(hidden) = hidden else { return durable::sync_all(&file) };
    let fresh = dir.join(HIDDEN);
    let mut file = File::create(&fresh)?;
    file.write_all(hidden.to_string().as_bytes())?;
    durable::sync_all(&file)?;
    std::fs::rename(fresh, path(dir))
}

/// The JSON that was left, if any; otherwise why it cannot be used.
pub fn read(dir: &Path) -> Result<Option<String>, String> {
    let Some(file) = open(dir).map_err(|error| error.to_string())? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(OUTPUT_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > OUTPUT_BYTES {
        return Err(format!("it is larger than {} MiB", OUTPUT_BYTES >> 20));
    }
    let text = String::from_utf8(bytes).map_err(|error| format!("it is not UTF-8: {error}"))?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    serde_json::from_str::<serde::de::IgnoredAny>(&text).map_err(|error| format!("it is not JSON: {error}"))?;
    Ok(Some(text))
}

#[test]
fn only_json_of_a_bearable_size_is_an_output() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(shared(dir.path())).unwrap();
    let left = |bytes: &[u8]| {
        std::fs::write(path(dir.path()), bytes).unwrap();
        keep(dir.path(), &Masker::new(&["hunter\"22".to_owned()])).unwrap();
        read(dir.path())
    };
    assert_eq!(read(dir.path()), Ok(None));
    assert_eq!(left(b" \n"), Ok(None));
    assert_eq!(left(b"{\"a\": 1}\n"), Ok(Some("{\"a\": 1}\n".to_owned())));
    for text in [r#"{"a":  "is hunter\"22"}"#, r#"{"a":  "is hunter\u002222"}"#] {
        assert_eq!(left(text.as_bytes()), Ok(Some(r#"{"a":"is ***"}"#.to_owned())));
    }
    assert!(left(b"{\"a\": 1} x").unwrap_err().starts_with("it is not JSON"));
    assert!(left(b"\"\xff\"").unwrap_err().starts_with("it is not UTF-8"));
    let string = |length: usize| format!("\"{}\"", "x".repeat(length - 2)).into_bytes();
    assert_eq!(left(&string(OUTPUT_BYTES)).unwrap().unwrap().len(), OUTPUT_BYTES);
    assert_eq!(left(&string(OUTPUT_BYTES + 1)), Err("it is larger than 8 MiB".to_owned()));
    std::fs::remove_file(path(dir.path())).unwrap();
    nix::unistd::mkfifo(&path(dir.path()), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(keep(dir.path(), &Masker::default()).is_err() && read(dir.path()) == Err("it is not a file".to_owned()));
}
