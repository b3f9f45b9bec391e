//! One step of a job as the daemon sees it: one try of a command, its stage, and the facts that are still to be reported.

use crate::clock::wall_ms;
use crate::contain::{KEY_MARK, WORKDIR_MARK};
use crate::exit::ExitRecord;
use crate::job::Job;
use crate::key::Key;
use crate::orders::KeeperOrder;
use crate::output;
use crate::slot;
use crate::spool::{self, Reader};
use crate::steps_socket::{self, StepsSocket};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use wire::model::tree::TreeRef;
use wire::runner::{Command, DesiredJob, DesiredState, DesiredStep, EndCause, Fact, INLINE_OUTPUT_BYTES, Limits, What};

/// Where programs of a command whose result is kept are looked for, unless its run says otherwise.
const CLEAN_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Which GPUs a job may use, by their numbers.
pub const GPUS: &str = "CUDA_VISIBLE_DEVICES";
const GPU_ORDER: &str = "CUDA_DEVICE_ORDER";
/// Of the host's environment a job sees these; nothing else of the runner's own reaches it.
const FROM_THE_HOST: &[&str] = &["PATH", "HOME", "USER", "SHELL", "LANG", "TZ"];
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Step {
    pub key: Key,
    /// From the desired document; unknown to a new runner until it has heard one.
    pub wanted: Option<DesiredStep>,
    /// Whether the newest desired document names it.
    pub listed: bool,
    pub stage: Stage,
    pub facts: VecDeque<Fact>,
    pub told_started: bool,
    pub output: Option<Output>,
    /// What the command has answered, checked; once it is over.
    pub answer: Option<String>,
    /// What it has left that is with the control plane.
    pub kept: Option<TreeRef>,
    pub ended: Option<ExitRecord>,
    /// The control plane has the end.
    pub reported: bool,
    /// The control plane wants to hear no more of this try.
    pub refused: bool,
    /// What its keeper was last told to do.
    pub ordered: Option<DesiredState>,
    /// Its keeper has said that it stands still, or goes on, since it was last told to.
    pub still: Option<bool>,
    /// What its keeper was given, to give it to another if the first never began.
    pub opening: Option<Opening>,
    pub starts: u32,
    /// Where its processes ask for durable steps.
    pub steps_socket: Option<StepsSocket>,
    /// Servers that were made for it.
    pub servers_made: u32,
}

pub enum Stage {
    /// For its job's files, or for what its command reads.
    Waiting(Option<AbortHandle>),
    /// Everything is there but a slot, or leave to run.
    Ready(Opening),
    /// Its keeper lives and takes orders here.
    Kept(mpsc::UnboundedSender<KeeperOrder>),
    /// Its keeper died; what it left is being ended.
    Containing,
    /// Nothing of it runs; a new runner has still to learn what is wanted of it.
    Over,
    Uploading(AbortHandle),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    Start,
    Refuse { cause: EndCause, message: String },
}

pub struct Output {
    pub dir: PathBuf,
    pub reader: Reader,
    /// How far the control plane has it.
    pub delivered: i64,
    /// What it still lacks is no longer on disk.
    pub rest_is_gone: bool,
}

impl Step {
    pub fn new(key: Key, wanted: Option<DesiredStep>, stage: Stage) -> Step {
        Step {
            key,
            wanted,
            listed: true,
            stage,
            facts: VecDeque::new(),
            told_started: false,
            output: None,
            answer: None,
            kept: None,
            ended: None,
            reported: false,
            refused: false,
            ordered: None,
            still: None,
            opening: None,
            starts: 0,
            steps_socket: None,
            servers_made: 0,
        }
    }

    /// It is a server of its job: the control plane does not know of it, and is told nothing about it.
    pub fn is_server(&self) -> bool {
        self.key.is_server()
    }

    pub fn tell(&mut self, what: What) {
        if !self.refused && !self.is_server() {
            let (of, step) = (self.key.of, Some(self.key.step));
            self.facts.push_back(Fact { job: of.job, epoch: of.epoch, step, at_ms: wall_ms(), what });
        }
    }

    pub fn tell_started(&mut self, limits: Option<Limits>) {
        if !std::mem::replace(&mut self.told_started, true) {
            let limited = limits.is_none_or(|limits| limits != Limits::default());
            let folder = self.output.as_ref().filter(|_| limited);
            let unenforced = folder.and_then(|output| slot::groups_of(&output.dir).unenforced);
            self.tell(What::Started { unenforced });
        }
    }

    pub fn has_processes(&self) -> bool {
        matches!(self.stage, Stage::Kept(_) | Stage::Containing)
    }

    pub fn is_kept(&self) -> bool {
        matches!(self.stage, Stage::Kept(_))
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    pub fn folder(&self) -> Option<&Path> {
        self.output.as_ref().map(|output| output.dir.as_path())
    }

    pub fn order(&self, order: KeeperOrder) {
        if let Stage::Kept(keeper) = &self.stage {
            let _ = keeper.send(order); // a keeper that is gone is noticed by its reader
        }
    }

    pub fn output_in(&mut self, dir: &Path) {
        let delivered = self.wanted.as_ref().map_or(0, |wanted| wanted.log_offset);
        self.output = Some(Output { dir: dir.to_owned(), reader: Reader::new(dir), delivered, rest_is_gone: false });
    }

    /// The runner's own words, after all that the keeper wrote: the log ends with them.
    pub fn add_to_log(&mut self, text: &str) -> io::Result<()> {
        let (Some(output), Some(ended)) = (&self.output, &mut self.ended) else { return Ok(()) };
        if !text.is_empty() {
            ended.final_offset = spool::add_at_end(&output.dir, ended.final_offset, text.as_bytes())?;
        }
        Ok(())
    }

    /// Reads what the command has answered. Something that cannot be used fails a command that ended well.
    pub fn take_answer(&mut self) {
        let read = self.output.as_ref().map_or(Ok(None), |output| output::read(&output.dir));
        match read {
            Ok(answer) => self.answer = answer,
            Err(why) => self.answer_unusable(&why),
        }
    }

    pub fn answer_unusable(&mut self, why: &str) {
        self.answer = None;
        let Some(ended) = &mut self.ended else { return };
        let prints = self.wanted.as_ref().is_some_and(|wanted| wanted.answers);
        let message = match prints {
            true => format!("what it wrote to its standard output cannot be used: {why}"),
            false => format!("what it wrote to ${} cannot be used: {why}", output::VARIABLE),
        };
        if (ended.exit_code, ended.signal, ended.cause) == (Some(0), None, None) {
            ended.cause = Some(EndCause::InvalidOutput);
        }
        ended.message = Some(ended.message.take().map_or(message.clone(), |before| format!("{before}; {message}")));
    }

    /// What it is to keep, if it ended well.
    pub fn to_keep(&self) -> &[String] {
        let well = |ended: &ExitRecord| (ended.exit_code, ended.cause) == (Some(0), None);
        let wanted = self.wanted.as_ref().filter(|_| self.ended.as_ref().is_some_and(well));
        wanted.map_or(&[], |wanted| wanted.keep.as_slice())
    }

    pub fn has_large_answer(&self) -> bool {
        self.answer.as_ref().is_some_and(|json| json.len() > INLINE_OUTPUT_BYTES)
    }

    /// The name of the artifact as which a large answer travels.
    pub fn answer_path(&self) -> String {
        format!(".repl/output/{}.json", self.key.step)
    }

    /// The sharper of what is wanted of its job and of itself.
    pub fn state(&self, job: &Job) -> DesiredState {
        let own = match &self.wanted {
            _ if !self.listed || self.refused => DesiredState::Aborted,
            Some(wanted) => wanted.state,
            None => DesiredState::Running,
        };
        if sharpness(own) > sharpness(job.state()) { own } else { job.state() }
    }

    /// Whether it is known to stand still, or to go on. What has not begun does both; what has ended does, once that is known.
    pub fn stands(&self, still: bool) -> bool {
        match &self.stage {
            Stage::Waiting(_) | Stage::Ready(_) => true,
            Stage::Kept(_) => self.still == Some(still),
            Stage::Containing | Stage::Over | Stage::Uploading(_) => false,
            Stage::Ended => self.reported,
        }
    }

    /// All has been told and heard, the last byte of output too.
    pub fn is_delivered(&self) -> bool {
        let final_offset = self.ended.as_ref().map_or(0, |ended| ended.final_offset);
        let has_all = |output: &Output| output.delivered >= final_offset || output.rest_is_gone;
        let told =
            self.is_server() || self.facts.is_empty() && self.reported && self.output.as_ref().is_none_or(has_all);
        self.is_ended() && (told || self.refused)
    }

    pub fn end_fact(&self) -> Option<What> {
        let ended = self.ended.as_ref()?;
        Some(What::Ended {
            exit_code: ended.exit_code,
            signal: ended.signal,
            cause: ended.cause,
            message: ended.message.clone(),
            final_offset: ended.final_offset,
            active_ms: ended.active_ms,
            started: ended.started,
            ended_ago_ms: 0, // filled in when it is sent
            output: self.answer.as_ref().map(|json| match json.len() {
                ..=INLINE_OUTPUT_BYTES => wire::runner::Output::Json(json.clone()),
                size => wire::runner::Output::Artifact { path: self.answer_path(), size: size as i64 },
            }),
            stdout_tail: ended.stdout_tail.clone(),
            kept: self.kept.clone(),
        })
    }
}

fn sharpness(state: DesiredState) -> u8 {
    match state {
        DesiredState::Running | DesiredState::Unknown => 0,
        DesiredState::Frozen => 1,
        DesiredState::Stopped => 2,
        DesiredState::Aborted => 3,
    }
}

pub fn argv(command: &Command) -> Vec<String> {
    match command {
        Command::Shell(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
        Command::Argv(argv) => argv.clone(),
    }
}

/// The whole environment of a command. What is ours cannot be overridden: the sweep relies on it.
pub fn environment(
    job: &DesiredJob,
    wanted: &DesiredStep,
    key: Key,
    (workdir, folder): (&Path, &Path),
    (tools, gpus): (&Path, Option<&Vec<i64>>),
) -> Vec<(String, String)> {
    let mut env = if job.clean { clean_environment(workdir) } else { environment_of_host() };
    env.extend(visible(gpus));
    for (plain, secrets) in [(&job.env, &job.secrets), (&wanted.env, &wanted.secrets)] {
        env.extend(plain.clone());
        env.extend(secrets.iter().map(|(name, secret)| (name.clone(), secret.0.clone())));
    }
    if job.clean {
        // By these two the runner finds what is left of the command.
        env.insert(KEY_MARK.to_owned(), key.to_string());
        env.insert(WORKDIR_MARK.to_owned(), workdir.display().to_string());
        return passable(env);
    }
    let ours = [
        ("REPL_RUN", job.run.to_string()),
        ("REPL_JOB", job.job.to_string()),
        ("REPL_STEP", key.step.id.to_string()),
        ("REPL_ATTEMPT", job.attempt.to_string()),
        (output::VARIABLE, output::path(folder).display().to_string()),
        (KEY_MARK, key.to_string()),
        (WORKDIR_MARK, workdir.display().to_string()),
    ];
    env.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    if let (Some(token), Ok(socket)) = (&wanted.steps_token, steps_socket::path(folder)) {
        env.insert(steps_socket::VARIABLE.to_owned(), socket.display().to_string());
        env.insert(steps_socket::TOKEN_VARIABLE.to_owned(), token.0.clone());
    }
    // `repl step` is found by every command.
    let path =
        env.get("PATH").map_or_else(|| tools.display().to_string(), |path| format!("{}:{path}", tools.display()));
    env.insert("PATH".to_owned(), path);
    passable(env)
}

/// What tells programs which GPUs are theirs, numbered as on the bus.
pub fn visible(gpus: Option<&Vec<i64>>) -> Vec<(String, String)> {
    let Some(gpus) = gpus else { return Vec::new() };
    let numbers: Vec<String> = gpus.iter().map(i64::to_string).collect();
    [(GPUS, numbers.join(",")), (GPU_ORDER, "PCI_BUS_ID".to_owned())]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

/// A name that no environment can hold would keep the command from starting at all.
fn passable(env: BTreeMap<String, String>) -> Vec<(String, String)> {
    env.into_iter()
        .filter(|(name, value)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'))
        .collect()
}

fn environment_of_host() -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    env.extend(FROM_THE_HOST.iter().filter_map(|name| Some((name.to_string(), std::env::var(name).ok()?))));
    env
}

/// What a command whose result is kept is started with, whatever its host has: the same everywhere.
fn clean_environment(workdir: &Path) -> BTreeMap<String, String> {
    let variables = [("PATH", CLEAN_PATH), ("LANG", "C.UTF-8"), ("TZ", "UTC")];
    let mut env: BTreeMap<_, _> = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    env.insert("HOME".to_owned(), workdir.display().to_string());
    env
}
