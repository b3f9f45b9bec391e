//! One process of an adapter: started in a process group of its own, fed, read and, past its limits, killed with the whole group.

use super::program::Program;
use calls::adapter::{Ended, How, MAX_BYTES};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// The rest of this process's environment may hold secrets.
const PASSED_ON: [&str; 6] = ["HOME", "USER", "LANG", "TZ", "TMPDIR", "SSH_AUTH_SOCK"];
/// Of stderr the end is kept: errors come last.
const STDERR_BYTES: usize = 16 << 10;
/// An adapter may leave a process behind that holds its output open. What was written until the exit is there at once.
const REST_WITHIN: Duration = Duration::from_millis(200);

pub async fn run(
    program: &Program,
    path: &OsStr,
    variables: &[(&str, String)],
    request: &[u8],
    within: Duration,
) -> io::Result<Ended> {
    let mut command = Command::new(&program.file);
    command.arg0(&program.name).env_clear().env("PATH", path);
    command.envs(PASSED_ON.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    // Declared after the child, and so dropped before it: the child is not waited for yet when the group is killed.
    let group = Group::of(&child);
    let mut output = Output::default();
    let how = match tokio::time::timeout(within, output.follow(&mut child, request)).await {
        Ok(Some(status)) => {
            group.has_ended();
            how(status?)
        }
        // More than the limit.
        Ok(None) => group.kill(&mut child).await,
        Err(_) => {
            group.kill(&mut child).await;
            How::TimedOut
        }
    };
    Ok(Ended { how, stdout: output.stdout, stderr: output.stderr })
}

/// The process group of a child that was not waited for yet: its number cannot mean another group. Killed when it is dropped, so that
/// an adapter does not outlive a caller that gave up.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id().map(|pid| Pid::from_raw(pid as i32)))
    }
    fn has_ended(mut self) {
        self.0 = None;
    }
    async fn kill(self, child: &mut Child) -> How {
        drop(self);
        child.wait().await.map_or(How::Signalled(libc::SIGKILL), how)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            killpg(group, Signal::SIGKILL).ok();
        }
    }
}

fn how(status: ExitStatus) -> How {
    match (status.code(), status.signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Signalled(signal.unwrap_or(libc::SIGKILL)),
    }
}

struct TooMuch;

#[derive(Default)]
struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    /// Feeds and reads the process until it has ended. None: it wrote more than an answer may have.
    async fn follow(&mut self, child: &mut Child, request: &[u8]) -> Option<io::Result<ExitStatus>> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            // An adapter that does not read all of it may answer all the same.
            if let Some(mut stdin) = stdin {
                stdin.write_all(request).await.ok();
                stdin.write_all(b"\n").await.ok();
            }
        };
        let said = async {
            if let Some(mut stderr) = stderr {
                keep_end(&mut stderr, &mut self.stderr).await;
            }
            Ok::<(), TooMuch>(())
        };
        let answer = async {
            if let Some(mut stdout) = stdout {
                (&mut stdout).take(MAX_BYTES as u64 + 1).read_to_end(&mut self.stdout).await.ok();
            }
            if self.stdout.len() > MAX_BYTES { Err(TooMuch) } else { Ok(()) }
        };
        let write = async {
            write.await;
            Ok(())
        };
        let mut talk = std::pin::pin!(async { tokio::try_join!(write, said, answer) });
        let mut ended = std::pin::pin!(child.wait());
        let status = tokio::select! {
            talked = &mut talk => return if talked.is_ok() { Some(ended.await) } else { None },
            status = &mut ended => status,
        };
        tokio::time::timeout(REST_WITHIN, talk).await.ok();
        Some(status)
    }
}

/// The last bytes that a process writes.
async fn keep_end(from: &mut (impl AsyncRead + Unpin), end: &mut Vec<u8>) {
    let mut piece = [0; 4 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        end.extend_from_slice(&piece[..read]);
        if end.len() > 2 * STDERR_BYTES {
            end.drain(..end.len() - STDERR_BYTES);
        }
    }
}
