//! The first process in a sandbox (`repl first FD PROGRAM…`): starts the command, collects its orphans, and tells the keeper how it ended.
//! It has the command's environment, streams and working folder. Its end is the end of everything in the sandbox.

use crate::keeper;
use crate::namespace;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{SigHandler, Signal, signal};
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Never returns. The second argument is the descriptor of the line to the keeper.
pub fn main() -> ! {
    if let Some(line) = line() {
        let _ = nix::sys::prctl::set_name(c"repl-first");
        let argv: Vec<String> = std::env::args().skip(3).collect();
        match command(&argv) {
            Ok(mut command) => namespace::live(&mut command, &line),
            Err(error) => namespace::refuse(&error, &line),
        }
    }
    // SAFETY: nothing of this process is to be cleaned up.
    unsafe { libc::_exit(0) }
}

fn line() -> Option<UnixStream> {
    let number: i32 = std::env::args().nth(2)?.parse().ok()?;
    if number < 3 {
        return None;
    }
    // SAFETY: the keeper has passed this descriptor, and nothing else in this process uses it.
    let line = unsafe { UnixStream::from_raw_fd(number) };
    // The command does not get it.
    fcntl(&line, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
    namespace::waits_for_leave(&line).then_some(line)
}

/// Looked for in here: what lies in a hidden folder is not found.
fn command(argv: &[String]) -> io::Result<Command> {
    let (name, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let program = keeper::find_program(name, Path::new("."), &path)?;
    let mut command = Command::new(program);
    command.arg0(name).args(arguments);
    // SAFETY: between fork and exec, system calls only.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            // The default action has no code of ours. Rust ignores this signal, commands expect it.
            signal(Signal::SIGPIPE, SigHandler::SigDfl)?;
            Ok(())
        })
    };
    Ok(command)
}
