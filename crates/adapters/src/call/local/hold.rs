//! The process that holds a program of `dml-exec-local`: starts it, waits for it, and notes how it ended. It is the leader of a session, so
//! that a cancel ends everything in it.

use super::job::{ERRORS, EXIT, Ended, HELD, INPUT, OUTPUT, PROGRAM, STARTED, WORK};
use crate::local::{Trace, lock};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a program sees of its surroundings: a result must not depend on more.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

pub fn hold(folder: &Path, mut out: impl Write) -> io::Result<()> {
    let held = lock::take(&folder.join(HELD)).map_err(|trouble| io::Error::other(trouble.what))?;
    let held = held.ok_or_else(|| io::Error::other("there is no such folder"))?;
    let trace = Trace::of(std::process::id() as i32)?.ok_or_else(|| io::Error::other("no trace of this process"))?;
    write(folder, STARTED, &serde_json::to_vec(&trace)?)?;
    writeln!(out, "ready")?;
    out.flush()?;
    drop(out);
    // The invocation reads until the end of our stdout.
    nix::unistd::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    let ended = run(folder).unwrap_or_else(|error| Ended::NotStarted(error.to_string()));
    write(folder, EXIT, &serde_json::to_vec(&ended)?)?;
    drop(held);
    Ok(())
}

fn run(folder: &Path) -> io::Result<Ended> {
    let program = PathBuf::from(std::ffi::OsString::from_vec(fs::read(folder.join(PROGRAM))?));
    let work = folder.join(WORK);
    let mut command = Command::new(&program);
    command.current_dir(&work).env_clear();
    command.envs([("PATH", PATH), ("LANG", "C.UTF-8"), ("TZ", "UTC")]).env("HOME", &work);
    command.stdin(File::open(folder.join(INPUT))?);
    command.stdout(File::create(folder.join(OUTPUT))?).stderr(Stdio::from(File::create(folder.join(ERRORS))?));
    let status = command.status()?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, signal) => Ended::Signal(signal.unwrap_or(libc::SIGKILL)),
    })
}

/// There with all its bytes, or not at all.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let draft = folder.join(format!("{name}.draft"));
    fs::write(&draft, bytes)?;
    fs::rename(draft, folder.join(name))
}
