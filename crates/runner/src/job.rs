//! One job as the daemon sees it: what is wanted, how far it is, and what has still to be told about it.

use crate::clock::wall_ms;
use crate::contain::{KEY_MARK, WORKDIR_MARK};
use crate::exit::ExitRecord;
use crate::key::Key;
use crate::orders::KeeperOrder;
use crate::slot;
use crate::spool::{self, Reader};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use wire::runner::{Command, DesiredJob, DesiredState, EndCause, Fact, Limits, OnLostControl, What};

/// Of the host's environment a job sees these; nothing else of the runner's own reaches it.
const FROM_THE_HOST: &[&str] = &["PATH", "HOME", "USER", "SHELL", "LANG", "TZ"];
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Job {
    pub key: Key,
    /// From the desired document; unknown to a new runner until it has heard one.
    pub wanted: Option<DesiredJob>,
    /// Whether the newest desired document names it.
    pub listed: bool,
    pub stage: Stage,
    pub facts: VecDeque<Fact>,
    pub told_started: bool,
    /// Facts that may wait this long for the first output, to travel with it.
    pub company_until: Option<Instant>,
    pub output: Option<Output>,
    pub ended: Option<ExitRecord>,
    /// The control plane has the end, or wants to hear no more of this job.
    pub reported: bool,
    pub refused: bool,
    /// What its keeper was last told to do.
    pub ordered: Option<DesiredState>,
    /// The newest desired document waits to be told that it stands still or goes on.
    pub unanswered: bool,
    /// What its keeper was given, to give it to another if the first never began.
    pub opening: Option<Opening>,
    pub starts: u32,
}

pub enum Stage {
    Syncing(AbortHandle),
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

impl Job {
    pub fn new(key: Key, wanted: Option<DesiredJob>, stage: Stage) -> Job {
        Job {
            key,
            wanted,
            listed: true,
            stage,
            facts: VecDeque::new(),
            told_started: false,
            company_until: None,
            output: None,
            ended: None,
            reported: false,
            refused: false,
            ordered: None,
            unanswered: false,
            opening: None,
            starts: 0,
        }
    }

    pub fn tell(&mut self, what: What) {
        if !self.refused {
            self.facts.push_back(Fact { job: self.key.job, epoch: self.key.epoch, at_ms: wall_ms(), what });
        }
    }

    pub fn tell_started(&mut self) {
        if !std::mem::replace(&mut self.told_started, true) {
            let limited = self.wanted.as_ref().is_none_or(|wanted| wanted.limits != Limits::default());
            let folder = self.output.as_ref().filter(|_| limited);
            let unenforced = folder.and_then(|output| slot::groups_of(&output.dir).unenforced);
            self.tell(What::Started { unenforced });
        }
    }

    pub fn has_processes(&self) -> bool {
        matches!(self.stage, Stage::Kept(_) | Stage::Containing)
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
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

    pub fn want(&mut self, wanted: DesiredJob) {
        self.unanswered = wanted.answer;
        self.wanted = Some(wanted);
    }

    pub fn state(&self) -> DesiredState {
        match &self.wanted {
            _ if !self.listed || self.refused => DesiredState::Aborted,
            Some(wanted) => wanted.state,
            None => DesiredState::Running,
        }
    }

    pub fn stops_when_lost(&self) -> bool {
        self.wanted.as_ref().is_some_and(|wanted| wanted.on_lost_control == OnLostControl::Stop)
    }

    /// All has been told and heard, the last byte of output too.
    pub fn is_delivered(&self) -> bool {
        let final_offset = self.ended.as_ref().map_or(0, |ended| ended.final_offset);
        let has_all = |output: &Output| output.delivered >= final_offset || output.rest_is_gone;
        let told = self.facts.is_empty() && self.reported && self.output.as_ref().is_none_or(has_all);
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
        })
    }
}

pub fn argv(command: &Command) -> Vec<String> {
    match command {
        Command::Shell(text) => vec!["/bin/sh".to_owned(), "-c".to_owned(), text.clone()],
        Command::Argv(argv) => argv.clone(),
    }
}

/// The whole environment of a job. What is ours cannot be overridden: the sweep relies on it.
pub fn environment(wanted: &DesiredJob, key: Key, workdir: &Path) -> Vec<(String, String)> {
    let mut env: BTreeMap<String, String> = BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    let host = FROM_THE_HOST.iter().filter_map(|name| Some((name.to_string(), std::env::var(name).ok()?)));
    env.extend(host);
    env.extend(wanted.env.clone());
    env.extend(wanted.secrets.iter().map(|(name, secret)| (name.clone(), secret.0.clone())));
    let ours = [
        ("REPL_RUN", wanted.run.to_string()),
        ("REPL_JOB", wanted.job.to_string()),
        ("REPL_ATTEMPT", wanted.attempt.to_string()),
        (KEY_MARK, key.to_string()),
        (WORKDIR_MARK, workdir.display().to_string()),
    ];
    env.extend(ours.map(|(name, value)| (name.to_owned(), value)));
    // A name that no environment can hold would keep the command from starting at all.
    env.into_iter()
        .filter(|(name, value)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'))
        .collect()
}
