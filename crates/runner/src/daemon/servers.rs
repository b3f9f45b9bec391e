//! MCP servers of jobs. A server is started for the first step that names it, and held until its job ends: by a keeper, as steps are, so
//! that it outlives this runner, stands still with its job, and leaves nothing behind. The control plane does not know of it: a step
//! that finds no server gets a new one.

use super::{Daemon, Silence};
use crate::clock::wall_ms;
use crate::key::Key;
use crate::step::{Opening, Stage, Step};
use crate::{output, socket};
use std::io;
use std::path::{Path, PathBuf};
use wire::runner::{Command, DesiredServer, DesiredState, DesiredStep, EndCause};

/// Where the command of a step finds the socket of its server.
pub const VARIABLE: &str = "REPL_MCP";
const SERVE: &str = "mcp-serve";
const FILE: &str = "mcp.sock";
/// Servers of one job at once.
const MOST_SERVERS: usize = 16;
/// Servers that are made for one step, one after the other, if each dies before the step begins.
const MADE_AT_MOST: u32 = 3;

impl Daemon {
    /// Steps that are ready and have no server get one.
    pub(super) fn want_servers(&mut self) {
        let lacks = |step: &&Step| {
            let begins = matches!(step.stage, Stage::Ready(Opening::Start)) && !step.is_server();
            let runs = self.jobs.get(&step.key.of).is_some_and(|job| step.state(job) == DesiredState::Running);
            begins && runs && named(step).is_some_and(|server| self.server_of(step.key, server).is_none())
        };
        let lacking: Vec<Key> = self.steps.values().filter(lacks).map(|step| step.key).collect();
        if self.closing.is_none() {
            lacking.into_iter().for_each(|key| self.add_server(key));
        }
    }

    fn add_server(&mut self, of: Key) {
        let held = self.steps_of(of.of).filter(|step| step.is_server()).count();
        let Some(step) = self.steps.get_mut(&of) else { return };
        let Some((wanted, server)) = step.wanted.as_ref().and_then(|wanted| Some((wanted, wanted.server.clone()?)))
        else {
            return;
        };
        let (jobs, mut number) = (self.instance.jobs(), wall_ms());
        while jobs.join(of.of.server(&server.name, number).to_string()).exists() {
            number += 1; // the folder of one before it is still being removed
        }
        let key = of.of.server(&server.name, number);
        let socket = match socket_of(&jobs, key) {
            Ok(socket) if held < MOST_SERVERS && step.servers_made < MADE_AT_MOST => socket,
            refused => {
                let message = match refused {
                    Err(error) => format!("its MCP server cannot be started: {error}"),
                    Ok(_) if held >= MOST_SERVERS => format!("its job has {MOST_SERVERS} MCP servers already"),
                    Ok(_) => "the processes that held its MCP server died at once".to_owned(),
                };
                step.stage = Stage::Ready(Opening::Refuse { cause: EndCause::ExecutorError, message });
                return;
            }
        };
        step.servers_made += 1;
        let repl = self.instance.tools().join("repl").display().to_string();
        let mut argv = vec![repl, SERVE.to_owned(), socket.display().to_string()];
        argv.extend(server.argv);
        let wanted = held_server(wanted, key, argv);
        self.steps.insert(key, Step::new(key, Some(wanted), Stage::Ready(Opening::Start)));
    }

    /// The server that a step would ask, if it is to begin or lives.
    fn server_of(&self, of: Key, server: &DesiredServer) -> Option<&Step> {
        let mut steps = self.steps_of(of.of);
        steps.find(|step| step.key.is_server_called(&server.name) && !step.is_ended())
    }

    pub(super) fn has_its_server(&self, step: &Step) -> bool {
        let server = named(step).filter(|_| !step.is_server());
        server.is_none_or(|server| self.server_of(step.key, server).is_some_and(Step::is_kept))
    }

    /// Where a step asks its server.
    pub(super) fn socket_for(&self, step: &Step) -> io::Result<Option<PathBuf>> {
        let server = named(step).and_then(|server| self.server_of(step.key, server));
        server.map(|server| socket_of(&self.instance.jobs(), server.key)).transpose()
    }

    pub(super) fn forget_socket(&self, key: Key) {
        if let Ok(path) = socket_of(&self.instance.jobs(), key) {
            socket::remove(&path);
        }
    }

    /// When the control plane has been silent for too long, a server is only kept for a step that is under way: otherwise it would keep
    /// this runner, too.
    pub(super) fn let_servers_go(&mut self) {
        if self.silence != Silence::Panic {
            return;
        }
        let needed = |step: &Step| self.steps_of(step.key.of).any(|step| !step.is_server() && step.has_processes());
        let idle = self.steps.values().filter(|step| step.is_server() && step.listed && !needed(step));
        for key in idle.map(|step| step.key).collect::<Vec<_>>() {
            if let Some(step) = self.steps.get_mut(&key) {
                step.listed = false;
            }
            self.apply(key);
        }
    }
}

fn named(step: &Step) -> Option<&DesiredServer> {
    step.wanted.as_ref()?.server.as_ref()
}

fn socket_of(jobs: &Path, key: Key) -> io::Result<PathBuf> {
    socket_in(&jobs.join(key.to_string()))
}

/// Where a server that is held in this folder listens.
pub(super) fn socket_in(folder: &Path) -> io::Result<PathBuf> {
    socket::place(&output::shared(folder), FILE)
}

/// It has the variables of the step that it is started for, and none of the token for steps.
fn held_server(of: &DesiredStep, key: Key, argv: Vec<String>) -> DesiredStep {
    DesiredStep {
        step: key.step,
        state: DesiredState::Running,
        working_dir: of.working_dir.clone(),
        command: Command::Argv(argv),
        env: of.env.clone(),
        secrets: of.secrets.clone(),
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
        sandbox: of.sandbox,
    }
}
