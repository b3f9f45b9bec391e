//! Scripts of features: install something on this machine, or remove it. A mark is written before an installation begins and another when
//! it has ended well, so a runner that comes later knows what is there, and what stopped half-way is removed before it is installed again.

use crate::durable;
use crate::process;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use wire::model::crash_point;
use wire::runner::{DesiredFeature, FeatureAct};

/// In the environment of its scripts: the feature, the machine, and the name that a machine of another service gets, from which an orphan
/// is recognised.
const FEATURE: &str = "REPL_FEATURE";
const MACHINE: &str = "REPL_MACHINE";
const PUBLIC_NAME: &str = "REPL_MACHINE_NAME";
/// Tells the script's code on its own standard output, because the runner collects all dead children and a status may be gone before it is
/// waited for. What a script that fails has started ends with it; what one that ends well has started stays.
const WRAPPER: &str = r#"/bin/sh -e -c "$1" >"$2" 2>&1 </dev/null
code=$?
echo "$code"
[ "$code" -eq 0 ] || kill -KILL 0"#;
const LONGEST_CODE: u64 = 16;
/// Of what a script wrote, as much is told when it fails.
const TAIL_BYTES: u64 = 1 << 10;
/// What processes of an earlier runner's script have to end within.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The machine as scripts know it.
#[derive(Debug, Clone)]
pub struct Here {
    /// Of the instance.
    pub dir: PathBuf,
    pub name: String,
    pub public_name: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Mark {
    None,
    /// Its installation has begun, and not ended well.
    Half,
    Done(String),
}

impl Here {
    fn folder(&self) -> PathBuf {
        self.dir.join("features")
    }

    fn mark(&self, feature: &str) -> Mark {
        let text = std::fs::read_to_string(self.folder().join(feature));
        match text.as_deref().map(|text| text.split_once(' ')) {
            Ok(Some(("installed", checksum))) => Mark::Done(checksum.to_owned()),
            Ok(_) => Mark::Half,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Mark::None,
            Err(_) => Mark::Half,
        }
    }

    /// On disk before anything follows from it.
    fn set_mark(&self, feature: &str, text: &str) -> io::Result<()> {
        let folder = self.folder();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let new = folder.join(format!("{feature}.new"));
        let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        durable::sync_all(&file)?;
        std::fs::rename(&new, folder.join(feature))?;
        durable::sync_all(&File::open(&folder)?)
    }

    fn remove_mark(&self, feature: &str) -> io::Result<()> {
        match std::fs::remove_file(self.folder().join(feature)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Does what is asked, unless it is done already. The error is for people.
    pub async fn change(&self, wanted: &DesiredFeature) -> Result<(), String> {
        match wanted.act {
            FeatureAct::Install => self.install(wanted).await,
            FeatureAct::Remove => self.remove(wanted).await,
            FeatureAct::Unknown => Err("this runner does not know what to do with it: it is older".to_owned()),
        }
    }

    async fn install(&self, wanted: &DesiredFeature) -> Result<(), String> {
        match self.mark(&wanted.name) {
            Mark::Done(checksum) if checksum == wanted.checksum => return Ok(()),
            Mark::None => {}
            Mark::Half | Mark::Done(_) => self.remove(wanted).await?,
        }
        let kept = |error: io::Error| format!("its state could not be written: {error}");
        self.set_mark(&wanted.name, &format!("begun {}", wanted.checksum)).map_err(kept)?;
        self.run(wanted, &wanted.install).await?;
        self.set_mark(&wanted.name, &format!("installed {}", wanted.checksum)).map_err(kept)
    }

    /// The mark goes last: a removal that stops half-way is begun again.
    async fn remove(&self, wanted: &DesiredFeature) -> Result<(), String> {
        match self.mark(&wanted.name) {
            Mark::None => return Ok(()),
            Mark::Half => self.end_earlier(&wanted.name).await,
            Mark::Done(_) => {}
        }
        self.run(wanted, &wanted.remove).await.map_err(|why| format!("it could not be removed: {why}"))?;
        self.remove_mark(&wanted.name).map_err(|error| format!("its state could not be written: {error}"))
    }

    /// A script of a runner that died may still be at work.
    async fn end_earlier(&self, feature: &str) {
        let entry = |name: &str, value: &str| format!("{name}={value}").into_bytes();
        let (feature, machine) = (entry(FEATURE, feature), entry(MACHINE, &self.name));
        let ended = tokio::task::spawn_blocking(move || {
            let left = process::marked(&|entry| entry == feature, &|entry| entry == machine);
            left.iter().for_each(|process| process.signal(Signal::SIGKILL));
            process::wait_for_an_end(&left, END_WITHIN);
        });
        let _ = ended.await;
    }

    async fn run(&self, wanted: &DesiredFeature, script: &str) -> Result<(), String> {
        let log = self.folder().join(format!("{}.log", wanted.name));
        let opened = File::options().create(true).truncate(true).write(true).mode(0o600).open(&log);
        let started = opened.and_then(|_| self.start(wanted, script, &log));
        let mut script = started.map_err(|error| format!("its script could not be started: {error}"))?;
        let within = Duration::from_millis(wanted.within_ms.max(0).unsigned_abs());
        let ended = crash_point!("feature.script", tokio::time::timeout(within, script.code()).await);
        match ended {
            Ok(Some(0)) => Ok(()),
            Ok(Some(code)) => Err(format!("its script ended with code {code}{}", tail(&log))),
            Ok(None) => Err(format!("its script was killed{}", tail(&log))),
            Err(_) => Err(format!("its script took longer than {} ms{}", wanted.within_ms, tail(&log))),
        }
    }

    fn start(&self, wanted: &DesiredFeature, script: &str, log: &Path) -> io::Result<Script> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WRAPPER, "repl-feature", script]).arg(log).env_clear().current_dir(self.folder());
        for name in ["PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.envs(&wanted.env).envs(wanted.secrets.iter().map(|(name, secret)| (name, &secret.0)));
        command.env(FEATURE, &wanted.name).env(MACHINE, &self.name).env(PUBLIC_NAME, &self.public_name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        Ok(Script { child: command.spawn()?, ended: false })
    }
}

/// A script that is under way: unless it has ended, everything in its process group ends with this.
struct Script {
    child: tokio::process::Child,
    ended: bool,
}

impl Script {
    /// The code that the wrapper tells; none if it was killed before.
    async fn code(&mut self) -> Option<i32> {
        let mut said = String::new();
        if let Some(stdout) = &mut self.child.stdout {
            let _ = stdout.take(LONGEST_CODE).read_to_string(&mut said).await;
        }
        self.ended = true;
        said.trim().parse().ok()
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // Its first process lives, because the pipe that it holds has not ended: the group is still this one.
        if let Some(pid) = self.child.id().filter(|_| !self.ended) {
            let _ = killpg(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
    }
}

/// The end of what a script wrote.
fn tail(log: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(log)?;
        let end = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(end.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read() {
        Ok(text) if !text.is_empty() => format!(": {text}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn here(dir: &Path) -> Here {
        Here { dir: dir.to_owned(), name: "repl-c-m-1".into(), public_name: "repl-c-1".into() }
    }

    fn wanted(act: FeatureAct, install: &str, remove: &str) -> DesiredFeature {
        DesiredFeature {
            name: "f".into(),
            checksum: format!("of {install}"),
            request: 1,
            act,
            install: install.into(),
            remove: remove.into(),
            env: BTreeMap::from([("GIVEN".to_owned(), "yes".to_owned())]),
            secrets: BTreeMap::new(),
            within_ms: 5_000,
        }
    }

    fn lines(dir: &Path) -> String {
        std::fs::read_to_string(dir.join("features/said")).unwrap_or_default()
    }

    #[tokio::test]
    async fn what_is_installed_is_not_installed_again_and_goes_once() {
        let dir = tempfile::tempdir().unwrap();
        let here = here(dir.path());
        let script = "echo in $GIVEN $REPL_FEATURE $REPL_MACHINE_NAME >> said";
        for _ in 0..2 {
            here.change(&wanted(FeatureAct::Install, script, "echo out >> said")).await.unwrap();
        }
        assert_eq!(lines(dir.path()), "in yes f repl-c-1\n");
        for _ in 0..2 {
            here.change(&wanted(FeatureAct::Remove, script, "echo out >> said")).await.unwrap();
        }
        assert_eq!(lines(dir.path()), "in yes f repl-c-1\nout\n");
    }

    #[tokio::test]
    async fn what_stopped_half_way_or_is_another_is_removed_first() {
        let dir = tempfile::tempdir().unwrap();
        let here = here(dir.path());
        let why = here.change(&wanted(FeatureAct::Install, "echo half >> said; echo no >&2; exit 3", "")).await;
        let why = why.unwrap_err();
        assert!(why.contains("code 3") && why.contains("no"), "{why}");
        here.change(&wanted(FeatureAct::Install, "echo a >> said", "echo out >> said")).await.unwrap();
        assert_eq!(lines(dir.path()), "half\nout\na\n");
        here.change(&wanted(FeatureAct::Install, "echo b >> said", "echo out >> said")).await.unwrap();
        assert_eq!(lines(dir.path()), "half\nout\na\nout\nb\n");
        let why = here.change(&wanted(FeatureAct::Remove, "", "exit 4")).await.unwrap_err();
        assert!(why.contains("could not be removed"), "{why}");
        here.change(&wanted(FeatureAct::Remove, "", "echo gone >> said")).await.unwrap();
        assert!(lines(dir.path()).ends_with("b\ngone\n"), "a removal that failed is tried again");
    }

    #[tokio::test]
    async fn a_script_that_takes_too_long_ends_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let here = here(dir.path());
        let script = "sleep 1000 & echo $! > pid; wait";
        let slow = DesiredFeature { within_ms: 500, ..wanted(FeatureAct::Install, script, "true") };
        let why = here.change(&slow).await.unwrap_err();
        assert!(why.contains("took longer than 500 ms"), "{why}");
        let pid: i32 = std::fs::read_to_string(dir.path().join("features/pid")).unwrap().trim().parse().unwrap();
        let left: Vec<_> = process::Process::read(pid).into_iter().filter(|it| !it.is_dead()).collect();
        process::wait_for_an_end(&left, END_WITHIN);
        assert!(process::Process::read(pid).is_none_or(|it| it.is_dead()));
        assert_eq!(here.mark("f"), Mark::Half);
    }

    #[tokio::test]
    async fn what_a_dead_runners_script_still_does_is_ended_first() {
        let dir = tempfile::tempdir().unwrap();
        let here = here(dir.path());
        here.set_mark("f", "begun of x").unwrap();
        let mut left = std::process::Command::new("sleep");
        let mut left = left.arg("1000").env(FEATURE, "f").env(MACHINE, &here.name).spawn().unwrap();
        here.change(&wanted(FeatureAct::Install, "echo in >> said", "echo out >> said")).await.unwrap();
        assert!(!left.wait().unwrap().success());
        assert_eq!(lines(dir.path()), "out\nin\n");
    }
}
