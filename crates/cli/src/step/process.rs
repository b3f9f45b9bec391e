//! The command of a step: starts it with the step's key, waits for its end, and ends it when the control plane answers that the step is cancelled.

use super::Asking;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wire::api::{BeatStep, StepBeat};
use wire::client::ClientError;

pub(super) struct Process<'a> {
    pub(super) command: &'a [String],
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) stdin: Option<Vec<u8>>,
    /// Bytes of its standard output that are kept; of a longer one, its end.
    pub(super) kept: usize,
    /// Whether its standard output is also ours.
    pub(super) echo: bool,
}

/// How the command ended, and what it wrote.
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) by_signal: bool,
    pub(super) stdout: Vec<u8>,
    pub(super) cut: bool,
    /// The control plane answered that the step is cancelled.
    pub(super) cancelled: bool,
}

impl Process<'_> {
    /// An error: it could not be started, or not be heard.
    pub(super) async fn run(self, asking: &Asking<'_>, at: (&str, i64), lease_ms: i64) -> std::io::Result<Ran> {
        let mut child = tokio::process::Command::new(&self.command[0])
            .args(&self.command[1..])
            .envs(self.env)
            .stdin(if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .spawn()?;
        if let (Some(mut pipe), Some(bytes)) = (child.stdin.take(), self.stdin) {
            // A command that does not read to the end is right all the same.
            tokio::spawn(async move { pipe.write_all(&bytes).await.ok() });
        }
        let mut output = child.stdout.take().expect("it is piped");
        let pid = child.id();
        let beats = beat(asking, at, lease_ms, pid);
        let work = async {
            let mut kept = Tail { bytes: Vec::new(), cut: false, most: self.kept };
            let mut piece = vec![0; 64 << 10];
            loop {
                let read = output.read(&mut piece).await?;
                if read == 0 {
                    return Ok::<_, std::io::Error>((child.wait().await?, kept));
                }
                kept.add(&piece[..read]);
                if self.echo {
                    pass_on(&piece[..read]);
                }
            }
        };
        tokio::pin!(work, beats);
        let ((status, kept), cancelled) = tokio::select! {
            ran = &mut work => (ran?, false),
            () = &mut beats => (work.await?, true),
        };
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
        Ok(Ran { code, by_signal: status.signal().is_some(), cut: kept.cut, stdout: kept.bytes, cancelled })
    }
}

/// Renews the lease until the control plane answers that the step is cancelled; then asks the command to end.
async fn beat(asking: &Asking<'_>, (id, fence): (&str, i64), lease_ms: i64, pid: Option<u32>) {
    let every = Duration::from_millis((lease_ms / 3).max(1) as u64);
    loop {
        tokio::time::sleep(every).await;
        let body = BeatStep { fence, lease_ms: None };
        let beat: Result<StepBeat, ClientError> = asking.post(&format!("/{id}/heartbeat"), &body).await;
        if beat.is_ok_and(|beat| beat.state == "cancel") {
            eprintln!("repl: nobody waits for this step any more: it is ended");
            if let Some(pid) = pid {
                let _ =
                    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGTERM);
            }
            return;
        }
    }
}

/// The last bytes of something long.
struct Tail {
    bytes: Vec<u8>,
    cut: bool,
    most: usize,
}

impl Tail {
    fn add(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        if let Some(too_much) = self.bytes.len().checked_sub(self.most).filter(|too_much| *too_much > 0) {
            self.bytes.drain(..too_much);
            self.cut = true;
        }
    }
}

/// Exactly the bytes: they are the work's, not ours.
pub(super) fn pass_on(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    // A reader that has gone reads nothing; the command goes on.
    out.write_all(bytes).and_then(|()| out.flush()).ok();
}
