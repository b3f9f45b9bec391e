//! Calls of the system's `ssh`, so that the user's own config, jump hosts and keys count. What the host's shell reads is a fixed script
//! with checked words of ours; everything else goes through stdin. Every call is bounded in time and output.

use super::binary::Binary;
use super::target::Target;
use super::trouble;
use model::{Trouble, TroubleKind};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

/// Until the connection stands.
const CONNECT_S: u32 = 5;
/// A host that is silent for three of these is cut off.
const ALIVE_S: u32 = 5;
/// Of what a call writes, as much is read.
const OUTPUT_BYTES: u64 = 4 << 20;
const STDERR_BYTES: u64 = 64 << 10;
/// Copying may take as long as a slow line needs for a large binary.
const COPY_WITHIN: Duration = Duration::from_secs(600);
/// What the script exits with when the binary is not there.
const NO_BINARY: i32 = 97;
/// What it exits with when less arrived than was sent.
const CUT_SHORT: i32 = 96;
/// What it exits with when our folder has more than binaries in it.
const MORE_THERE: i32 = 95;
const SSH_FAILED: i32 = 255;

/// Several calls may find at the same time that the binary is not there: each copies under a name of its own.
static COPIES: AtomicU64 = AtomicU64::new(0);

/// How hosts of one provider are connected to.
#[derive(Debug, Clone, Default)]
pub struct Way {
    /// A private key; else what the user's config and agent offer.
    pub identity: Option<PathBuf>,
    /// In place of the user's own file.
    pub known_hosts: Option<PathBuf>,
    /// Where accepted host keys are kept. With it, the key of a host that is met for the first time is accepted.
    pub accepted: Option<PathBuf>,
    /// On hosts, in place of `~/.repl`.
    pub dir: Option<String>,
}

/// What a call came to.
#[derive(Debug)]
struct Output {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Way {
    /// Starts `BINARY runner VERB` on the host, copied there first if it is not. The words of `verb` are ours.
    pub async fn ask(
        &self,
        target: &Target,
        binary: &Binary,
        verb: &str,
        input: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, Trouble> {
        for copied in [false, true] {
            let run = self.run_script(binary, verb);
            let output = self.call(target, &run, Input::Bytes(input), within).await?;
            match output.code {
                Some(0) => return Ok(output.stdout),
                Some(NO_BINARY) if !copied => self.copy(target, binary, &output).await?,
                code => return Err(trouble::of_script(target, code, &output.stderr)),
            }
        }
        Err(Trouble::internal(format!("the runner's binary vanished from {} as soon as it was copied", target.text)))
    }

    /// The same with its pipes open, for a verb that goes on. The binary is there.
    pub fn open(&self, target: &Target, binary: &Binary, verb: &str) -> Result<Child, Trouble> {
        self.start(target, &self.run_script(binary, verb))
    }

    fn run_script(&self, binary: &Binary, verb: &str) -> String {
        let place = self.place(binary);
        format!("b={place}/repl; [ -x \"$b\" ] || {{ uname -sm; exit {NO_BINARY}; }}; exec \"$b\" runner {verb} \"$b\"")
    }

    /// Removes our folder where nothing but binaries is in it. False: there is more, which only the binary there can remove.
    pub async fn clear(&self, target: &Target, within: Duration) -> Result<bool, Trouble> {
        let output = self.call(target, &self.clear_script(), Input::Bytes(&[]), within).await?;
        match output.code {
            Some(0) => Ok(true),
            Some(MORE_THERE) => Ok(false),
            code => Err(trouble::of_script(target, code, &output.stderr)),
        }
    }

    fn clear_script(&self) -> String {
        let folder = self.folder();
        format!(
            "p={folder}; [ -d \"$p\" ] || exit 0; \
             for f in \"$p\"/*; do case \"$f\" in \"$p\"/bin|\"$p/*\") ;; *) exit {MORE_THERE};; esac; done; \
             rm -rf \"$p\"/bin || exit 1; rmdir \"$p\" 2>/dev/null; exit 0"
        )
    }

    /// Folder of the binary, as a shell reads it.
    fn place(&self, binary: &Binary) -> String {
        format!("{}/bin/{}", self.folder(), binary.hash)
    }

    /// Everything of ours on a host, as a shell reads it.
    fn folder(&self) -> String {
        self.dir.clone().unwrap_or_else(|| "\"$HOME\"/.repl".to_owned())
    }

    async fn copy(&self, target: &Target, binary: &Binary, asked: &Output) -> Result<(), Trouble> {
        let said = String::from_utf8_lossy(&asked.stdout);
        let is = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("").trim();
        if let Some(ours) = binary.machine.filter(|ours| *ours != is) {
            return Err(trouble::wrong_architecture(target, is, ours));
        }
        let (place, bytes) = (self.place(binary), binary.bytes);
        // Under another name until it is whole; two who copy at once do not meet.
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let new = format!("\"$p\"/new.{}.{number}.{}", std::process::id(), target.mark());
        let script = format!(
            "umask 077; p={place}; mkdir -p \"$p\" && cat >{new} && \
             {{ [ \"$(wc -c <{new})\" -eq {bytes} ] || {{ rm -f {new}; exit {CUT_SHORT}; }}; }} && \
             chmod 700 {new} && mv -f {new} \"$p\"/repl || {{ c=$?; rm -f {new}; exit $c; }}"
        );
        tracing::info!(host = %target.text, bytes, "the runner's binary is copied");
        let output = self.call(target, &script, Input::File(&binary.path), COPY_WITHIN).await?;
        match output.code {
            Some(0) => Ok(()),
            Some(CUT_SHORT) => {
                let what = format!("the runner's binary did not reach {} as a whole: tried again later", target.text);
                Err(Trouble::new(TroubleKind::Network, what))
            }
            code => Err(trouble::of_script(target, code, &output.stderr)),
        }
    }

    async fn call(&self, target: &Target, script: &str, input: Input<'_>, within: Duration) -> Result<Output, Trouble> {
        let mut child = self.start(target, script)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let both = async {
            let fed = async {
                let Some(mut stdin) = stdin else { return };
                // One that ends before it has read everything says why by its exit.
                let _ = match input {
                    Input::Bytes(bytes) => stdin.write_all(bytes).await,
                    Input::File(path) => feed(path, &mut stdin).await,
                };
                let _ = stdin.shutdown().await;
            };
            let ((), stdout, stderr) = tokio::join!(fed, bounded(stdout, OUTPUT_BYTES), bounded(stderr, STDERR_BYTES));
            (stdout, stderr, child.wait().await)
        };
        let Ok((stdout, stderr, ended)) = tokio::time::timeout(within, both).await else {
            let what = format!(
                "{} did not answer within {} s: it may be overloaded or cut off",
                target.text,
                within.as_secs()
            );
            return Err(Trouble::new(TroubleKind::Timeout, what));
        };
        let (stderr, code) = (String::from_utf8_lossy(&stderr).into_owned(), ended.ok().and_then(|ended| ended.code()));
        if code == Some(SSH_FAILED) {
            return Err(self.failed(target, &stderr));
        }
        Ok(Output { code, stdout, stderr })
    }

    /// What it means that ssh itself has failed.
    pub fn failed(&self, target: &Target, stderr: &str) -> Trouble {
        let file = self.accepted.as_deref().or(self.known_hosts.as_deref());
        let file = file.map_or("~/.ssh/known_hosts".to_owned(), |file| file.display().to_string());
        // Once the connection stood, whether the host did what it was asked is not known.
        let found = trouble::of_ssh(target, stderr, &file);
        let stood = ["Timeout, server", "closed by remote host", "Broken pipe", "client_loop", "Connection reset"];
        if stood.iter().any(|text| stderr.contains(text)) { found.perhaps() } else { found }
    }

    fn start(&self, target: &Target, script: &str) -> Result<Child, Trouble> {
        let mut command = Command::new("ssh");
        command.args(self.options());
        if let Some(user) = &target.user {
            command.args(["-l", user]);
        }
        if let Some(port) = target.port {
            command.args(["-p", &port.to_string()]);
        }
        // A login shell of any kind passes this on as it is: there is no quote, `!` or backslash in the script.
        command.args(["--", &target.host, &format!("exec sh -c '{script}'")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Trouble::new(TroubleKind::InvalidSpec, "there is no `ssh` here: install the OpenSSH client")
            }
            _ => Trouble::internal(format!("`ssh` could not be started: {error}")),
        })
    }

    fn options(&self) -> Vec<String> {
        let strict = if self.accepted.is_some() { "accept-new" } else { "yes" };
        let mut options: Vec<String> = [
            "BatchMode=yes".to_owned(),
            format!("StrictHostKeyChecking={strict}"),
            format!("ConnectTimeout={CONNECT_S}"),
            "ConnectionAttempts=1".to_owned(),
            format!("ServerAliveInterval={ALIVE_S}"),
            "ServerAliveCountMax=3".to_owned(),
            // A master of the user's is used; one that we started would keep our pipes open behind us.
            "ControlMaster=no".to_owned(),
            "ControlPersist=no".to_owned(),
            "ForwardAgent=no".to_owned(),
            "ForwardX11=no".to_owned(),
            "ClearAllForwardings=yes".to_owned(),
            "PermitLocalCommand=no".to_owned(),
            "RemoteCommand=none".to_owned(),
            "LogLevel=ERROR".to_owned(),
            // What is accepted into our own file can be read there.
            "HashKnownHosts=no".to_owned(),
        ]
        .into_iter()
        .flat_map(|option| ["-o".to_owned(), option])
        .collect();
        if let Some(identity) = &self.identity {
            options.extend(["-i".to_owned(), text(identity), "-o".to_owned(), "IdentitiesOnly=yes".to_owned()]);
        }
        let usual = self.known_hosts.as_deref().map_or("~/.ssh/known_hosts".to_owned(), text_of);
        let files = match &self.accepted {
            Some(accepted) => format!("{} {usual}", text_of(accepted)),
            None => usual,
        };
        if self.accepted.is_some() || self.known_hosts.is_some() {
            options.extend(["-o".to_owned(), format!("UserKnownHostsFile={files}")]);
        }
        options.push("-T".to_owned());
        options
    }
}

enum Input<'a> {
    Bytes(&'a [u8]),
    File(&'a Path),
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// As ssh's options read it: they are words.
fn text_of(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

async fn feed(path: &Path, stdin: &mut tokio::process::ChildStdin) -> io::Result<()> {
    let mut file = tokio::fs::File::open(path).await?;
    tokio::io::copy(&mut file, stdin).await.map(drop)
}

/// The first bytes; the rest is read and dropped, so that the writing process does not block.
async fn bounded(from: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let Some(mut from) = from else { return Vec::new() };
    let mut read = Vec::new();
    let _ = (&mut from).take(most).read_to_end(&mut read).await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_can_stand_between_single_quotes() {
        let binary = Binary { path: "/b".into(), hash: "ab12".into(), bytes: 5, machine: None };
        for dir in [None, Some("/scratch/a_b-c.d".to_owned())] {
            let way = Way { dir, ..Way::default() };
            for script in [way.run_script(&binary, "host"), way.clear_script()] {
                assert!(!script.contains(['\'', '!', '\\', '\n']), "{script}");
            }
        }
    }

    #[test]
    fn without_asking_for_it_no_unknown_key_is_accepted() {
        assert!(Way::default().options().contains(&"StrictHostKeyChecking=yes".to_owned()));
        let way = Way { accepted: Some("/h/ssh/known_hosts".into()), ..Way::default() };
        let options = way.options().join(" ");
        assert!(options.contains("StrictHostKeyChecking=accept-new"), "{options}");
        assert!(options.contains("UserKnownHostsFile=\"/h/ssh/known_hosts\" ~/.ssh/known_hosts"), "{options}");
    }
}
