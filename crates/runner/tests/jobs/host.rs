//! One instance's directory with a real runner process in it, against the control plane of these tests.

use crate::control::{Control, ID, TIMEOUT};
pub use crate::skip::skip;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use wire::model::boot::{BOOT_FILE, Boot, BootTimings};
use wire::model::step::StepTry;
use wire::model::{InstanceId, JobId, RunId, StepId};
use wire::runner::{
    Command as Commanded, DesiredJob, DesiredState, DesiredStep, Limits, OnLostControl, Sandbox, Secret, Stdin,
    SyncTree,
};

pub const JOB: JobId = JobId(7);
/// The one step of a plain task.
pub const STEP: StepTry = StepTry { id: StepId(1), number: 1 };
pub const NOBODY: u32 = 65534;

/// A plain task as the control plane would ask for it: a job with one step, closed from the beginning.
#[derive(Clone)]
pub struct Plain {
    pub job: JobId,
    pub workdir: String,
    pub working_dir: Option<String>,
    pub command: Commanded,
    pub env: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, Secret>,
    pub files: Option<SyncTree>,
    pub stdin: Option<Stdin>,
    pub limits: Limits,
    pub attempt: i64,
    pub artifacts: Vec<String>,
    pub max_duration_ms: Option<i64>,
    pub stop_duration_ms: i64,
    pub merge: bool,
    pub on_lost_control: OnLostControl,
    pub state: DesiredState,
    pub sandbox: Option<Sandbox>,
}

impl From<Plain> for DesiredJob {
    fn from(plain: Plain) -> DesiredJob {
        let step = DesiredStep {
            working_dir: plain.working_dir,
            command: plain.command,
            stdin: plain.stdin,
            artifacts: plain.artifacts,
            max_duration_ms: plain.max_duration_ms,
            merge: plain.merge,
            sandbox: plain.sandbox,
            ..step(STEP, "")
        };
        DesiredJob {
            job: plain.job,
            run: RunId(3),
            epoch: 1,
            state: plain.state,
            answer: false,
            workdir: plain.workdir,
            env: plain.env,
            secrets: plain.secrets,
            files: plain.files,
            init: None,
            base: None,
            source: Default::default(),
            limits: plain.limits,
            attempt: plain.attempt,
            stop_duration_ms: plain.stop_duration_ms,
            on_lost_control: plain.on_lost_control,
            steps: vec![step],
            closed: true,
            stub: None,
            clean: false,
        }
    }
}

/// One try of one step.
pub fn step(step: StepTry, script: &str) -> DesiredStep {
    DesiredStep {
        step,
        state: DesiredState::Running,
        working_dir: None,
        command: Commanded::Shell(script.to_owned()),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        stdin: None,
        restore: Vec::new(),
        keep: Vec::new(),
        artifacts: Vec::new(),
        max_duration_ms: None,
        merge: false,
        tail: false,
        answers: false,
        server: None,
        log_offset: 0,
        steps_token: None,
        sandbox: None,
    }
}

pub struct RunnerUnderTest {
    pub dir: PathBuf,
    pub control: Arc<Control>,
    /// The best way to hold processes together that the runner may use; empty: whichever it finds.
    pub containment: &'static str,
    /// Without any privilege, where the tests themselves have them.
    pub as_nobody: bool,
    /// Of every job that is asked for.
    pub limits: Limits,
    runner: Option<Child>,
    _folder: tempfile::TempDir,
}

impl RunnerUnderTest {
    pub async fn new() -> RunnerUnderTest {
        RunnerUnderTest::with(|_| {}).await
    }

    /// `adjust` changes the boot file before the runner starts.
    pub async fn with(adjust: impl FnOnce(&mut Boot)) -> RunnerUnderTest {
        let mut host = RunnerUnderTest::unstarted(adjust);
        host.start();
        host.control.until("the runner registers", |state| state.session == 1).await;
        host
    }

    pub fn unstarted(adjust: impl FnOnce(&mut Boot)) -> RunnerUnderTest {
        RunnerUnderTest::unstarted_in(tempfile::tempdir().unwrap(), adjust)
    }

    pub fn unstarted_in(folder: tempfile::TempDir, adjust: impl FnOnce(&mut Boot)) -> RunnerUnderTest {
        let control = Control::start(folder.path());
        let dir = folder.path().canonicalize().unwrap().join("instance");
        std::fs::create_dir(&dir).unwrap();
        let mut boot = Boot {
            name: "repl-test".to_owned(),
            nonce: "nonce-1".to_owned(),
            instance: InstanceId(1),
            control_id: ID.to_owned(),
            control_url: format!("unix:{}", control.path.display()),
            control_ca: None,
            token: "secret-token".to_owned(),
            cpu_milli: None,
            memory_bytes: None,
            gpus: None,
            timings: BootTimings::default(),
            hidden: vec![folder.path().canonicalize().unwrap().display().to_string()],
        };
        adjust(&mut boot);
        std::fs::write(dir.join(BOOT_FILE), serde_json::to_vec(&boot).unwrap()).unwrap();
        RunnerUnderTest {
            dir,
            control,
            containment: "",
            as_nobody: false,
            limits: Limits::default(),
            runner: None,
            _folder: folder,
        }
    }

    pub fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_repl-runner"));
        if !self.containment.is_empty() {
            command.env("REPL_CONTAINMENT", self.containment);
        }
        if self.as_nobody && nix::unistd::geteuid().is_root() {
            self.give_to_nobody(&mut command);
        }
        command.arg("run").arg(&self.dir).env("LEAK_OF_THE_RUNNER", "1").stdin(Stdio::null()).stdout(Stdio::null());
        self.runner = Some(command.process_group(0).spawn().unwrap());
    }

    fn give_to_nobody(&self, command: &mut Command) {
        let folder = self._folder.path();
        let binary = folder.join("repl-runner");
        if !binary.exists() {
            // The user `nobody` may have no access to where the tests were built.
            std::fs::copy(command.get_program(), &binary).unwrap();
        }
        for path in [folder, &self.dir, &self.dir.join(BOOT_FILE), &self.control.path] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        *command = Command::new(binary);
        command.uid(NOBODY).gid(NOBODY);
    }

    pub fn runner_pid(&self) -> i32 {
        self.runner.as_ref().unwrap().id() as i32
    }

    pub async fn kill_runner(&mut self) {
        let mut runner = self.runner.take().unwrap();
        runner.kill().unwrap();
        tokio::task::spawn_blocking(move || runner.wait().unwrap()).await.unwrap();
    }

    /// Waits until the runner leaves by itself.
    pub async fn runner_leaves(&mut self) -> bool {
        let mut runner = self.runner.take().unwrap();
        tokio::task::spawn_blocking(move || runner.wait().unwrap()).await.unwrap().success()
    }

    /// What a restart of the host does: every process of this machine is killed, and the boot in the journal is an earlier one.
    pub async fn restart_of_the_host(&mut self) {
        self.kill_runner().await;
        // Keepers first: none of them may write down how a command ended that was killed here.
        while !self.is_deserted() {
            let keepers = pids().filter(|pid| works_below(*pid, &self.dir.join("jobs")));
            let commands = pids().filter(|pid| works_below(*pid, &self.dir));
            for pid in keepers.chain(commands).chain(self.living()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            tokio::task::yield_now().await;
        }
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let (boot, earlier) = (boot.trim().as_bytes(), "e".repeat(boot.trim().len()));
        let journal = self.dir.join("journal");
        let mut bytes = std::fs::read(&journal).unwrap();
        // Each record: its length in four bytes, eight of a checksum, the entry.
        let mut at = 0;
        loop {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            if length == 0 {
                break;
            }
            let body = at + 12..at + 12 + length;
            if let Some(found) = bytes[body.clone()].windows(boot.len()).position(|window| window == boot) {
                bytes[body.start + found..][..boot.len()].copy_from_slice(earlier.as_bytes());
                let hash = blake3::Hasher::new().update(&bytes[at..at + 4]).update(&bytes[body.clone()]).finalize();
                bytes[at + 4..at + 12].copy_from_slice(&hash.as_bytes()[..8]);
            }
            at = body.end;
        }
        std::fs::write(&journal, bytes).unwrap();
    }

    pub fn signal_runner(&self, signal: Signal) {
        kill(Pid::from_raw(self.runner_pid()), signal).unwrap();
    }

    pub fn job(&self, script: &str) -> Plain {
        Plain {
            job: JOB,
            workdir: "work_1".to_owned(),
            working_dir: None,
            command: Commanded::Shell(script.to_owned()),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            files: None,
            stdin: None,
            limits: self.limits,
            attempt: 1,
            artifacts: Vec::new(),
            max_duration_ms: None,
            stop_duration_ms: 10_000,
            merge: false,
            on_lost_control: OnLostControl::Finish,
            state: DesiredState::Running,
            sandbox: None,
        }
    }

    /// A job that stays open, with these steps.
    pub fn open_job(&self, steps: Vec<DesiredStep>) -> DesiredJob {
        DesiredJob { steps, closed: false, ..self.job("").into() }
    }

    pub fn ask(&self, job: impl Into<DesiredJob>) {
        self.control.change(|state| state.desired.push(job.into()));
    }

    pub fn want(&self, wanted: DesiredState) {
        self.control.change(|state| state.desired.iter_mut().for_each(|job| job.state = wanted));
    }

    pub async fn ends(&self) -> wire::runner::What {
        self.control.until("the job ends", |state| state.ended(JOB).is_some()).await;
        self.control.see(|state| state.ended(JOB).cloned().unwrap())
    }

    pub async fn says(&self, text: &str) {
        self.control.until(text, |state| state.has(JOB, wire::runner::Stream::Stdout, text)).await;
    }

    pub fn workdir(&self) -> PathBuf {
        self.dir.join("work_1")
    }

    /// Lets a job go on that waits at a fifo it made in its workdir. A thread of its own opens it: where nothing waits there, that never
    /// returns, and the end of the test would wait for a task of its runtime.
    pub async fn open_gate(&self, name: &str) {
        let gate = self.workdir().join(name);
        let (done, opened) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || done.send(std::fs::write(gate, "go")));
        tokio::time::timeout(TIMEOUT, opened).await.expect("a process waits at the gate").unwrap().unwrap();
    }

    /// Every living process of a job of this instance.
    pub fn living(&self) -> Vec<i32> {
        let mark = format!("REPL_WORKDIR={}/", self.dir.display());
        pids().filter(|pid| environ(*pid).any(|entry| entry.starts_with(mark.as_bytes()))).collect()
    }

    pub fn keeper_pid(&self) -> i32 {
        self.keeper_of(STEP)
    }

    pub fn keeper_of(&self, step: StepTry) -> i32 {
        let folder = self.folder(JOB, step);
        let is_keeper = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder);
        pids().find(is_keeper).expect("the step has a keeper")
    }

    /// Where a step's keeper works.
    pub fn folder(&self, job: JobId, step: StepTry) -> PathBuf {
        self.dir.join("jobs").join(format!("{job}.1.{step}"))
    }

    /// The keeper that has no job yet, once it is one.
    pub fn waiting_keeper(&self) -> Option<i32> {
        let waits = self.dir.join("jobs/next.");
        let cwd = |pid: i32| std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        let comm = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let is_it = |pid: &i32| {
            cwd(*pid).to_string_lossy().starts_with(&*waits.to_string_lossy()) && comm(*pid) == "repl-keeper\n"
        };
        pids().find(is_it)
    }

    /// Every living process with this word in its arguments, whatever its environment.
    pub fn named(&self, word: &str) -> Vec<i32> {
        let is_named = |pid: &i32| {
            let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).any(|argument| argument == word.as_bytes())
        };
        pids().filter(is_named).collect()
    }

    /// No process of any kind works in this instance's directory.
    pub fn is_deserted(&self) -> bool {
        !pids().any(|pid| works_below(pid, &self.dir)) && self.living().is_empty()
    }
}

impl Drop for RunnerUnderTest {
    fn drop(&mut self) {
        if let Some(mut runner) = self.runner.take() {
            let _ = runner.kill();
            let _ = runner.wait();
        }
        let _ = runner::end(&self.dir);
        if !std::thread::panicking() {
            assert!(self.living().is_empty(), "a test leaves nothing behind");
        }
    }
}

/// The most memory that a process has had, in bytes, without the pages of its binary.
pub fn peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kilobytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    (kilobytes("VmHWM:") - kilobytes("RssFile:")) * 1024
}

fn pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn works_below(pid: i32, folder: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
}

fn environ(pid: i32) -> impl Iterator<Item = Vec<u8>> {
    let bytes = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
}
