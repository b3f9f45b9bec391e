//! Starts a step that may begin: journal entry, folder, and the orders to its keeper.

use super::{Daemon, Warm};
use crate::cache::Cache;
use crate::cgroup::Groups;
use crate::instance::Instance;
use crate::key::Key;
use crate::orders::{KeeperOrder, Start};
use crate::sandbox::{self, Sandbox};
use crate::step::{self, GPUS, Opening, Stage, Step};
use crate::steps_socket::{self, StepsSocket};
use crate::{beneath, init, output, slot, sync};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;
use wire::client::Client;
use wire::runner::{DesiredJob, DesiredState, EndCause};

impl Daemon {
    /// Gives waiting slots to waiting steps.
    pub(super) fn open_ready(&mut self, now: Instant) {
        self.want_servers();
        let mut ready = self.steps.values().filter(|step| self.may_open(step)).map(|step| step.key);
        let Some(key) = ready.next() else { return };
        drop(ready);
        match std::mem::replace(&mut self.warm, Warm::None) {
            Warm::Ready(slot) => {
                if let Err(error) = self.open(key, slot) {
                    self.could_not_open(key, &error);
                }
                self.slot_due = None;
            }
            // A slot is being prepared already: a second one would not be used.
            unready => {
                self.warm = unready;
                self.prepare_slot_now(now);
            }
        }
    }

    fn may_open(&self, step: &Step) -> bool {
        match &step.stage {
            Stage::Ready(Opening::Refuse { .. }) => true,
            Stage::Ready(Opening::Start) => {
                let state = self.jobs.get(&step.key.of).map(|job| step.state(job));
                let other = |other: &Step| excludes(other.key, step.key) && other.has_processes();
                let may = state == Some(DesiredState::Running) && self.closing.is_none();
                may && self.has_its_server(step) && !self.steps.values().any(other)
            }
            _ => false,
        }
    }

    /// Journal first, then the folder is the step's, then the keeper hears what to do.
    fn open(&mut self, key: Key, mut slot: slot::Slot) -> io::Result<()> {
        let (job, step) = (&self.jobs[&key.of], &self.steps[&key]);
        let Stage::Ready(opening) = &step.stage else { return Ok(()) };
        let opening = opening.clone();
        let order = match &opening {
            Opening::Start => {
                let wanted = job.wanted.as_ref().expect("a step starts as its job is wanted");
                let beside = self.steps_of(key.of).filter(|step| step.has_processes()).find_map(Step::folder);
                let groups = slot.limit(&self.instance.layout, wanted.limits, beside)?;
                let server = self.socket_for(step)?;
                match sandbox_of(step, wanted, &self.instance, server.as_deref()) {
                    Ok(sandbox) => start_order(wanted, step, &self.instance, &self.cache, (groups, server, sandbox))?,
                    Err(message) => KeeperOrder::Refuse { cause: EndCause::ExecutorError, message },
                }
            }
            Opening::Refuse { cause, message } => KeeperOrder::Refuse { cause: *cause, message: message.clone() },
        };
        if let Some(stub) = job.wanted.as_ref().and_then(|wanted| wanted.stub.as_ref()) {
            self.journal.keep_stub(key.of, stub)?;
        }
        self.journal.begins(key, &self.boot_id)?;
        slot.assign(key)?;
        let step = self.steps.get_mut(&key).expect("it was just found");
        step.starts += 1;
        step.ordered = (opening == Opening::Start).then_some(DesiredState::Running);
        step.still = Some(false);
        step.opening = Some(opening);
        step.output_in(&slot.dir);
        if !step.is_server() {
            step.steps_socket = serve_steps(&slot.dir, &self.steps_line);
        }
        let link = KeeperOrder::Link { up: *self.up.borrow() };
        let keeper = super::keepers::attach(key, slot.keeper, &[link, order], &self.events)?;
        step.stage = Stage::Kept(keeper);
        Ok(())
    }

    fn could_not_open(&mut self, key: Key, error: &io::Error) {
        tracing::error!(%key, %error, "a step could not be opened");
        let cause = if super::keepers::is_full(error) { EndCause::DiskFull } else { EndCause::ExecutorError };
        self.end_without_record(key, cause, format!("the runner could not start it: {error}"), false);
    }
}

/// A job runs without it, too: only its durable steps do not.
pub(super) fn serve_steps(folder: &Path, control: &Client) -> Option<StepsSocket> {
    let served = steps_socket::serve(folder, control.clone());
    served.inspect_err(|error| tracing::warn!(%error, "durable steps cannot be asked for here")).ok()
}

/// Two epochs of one job never run side by side, nor do two tries of one step.
fn excludes(other: Key, key: Key) -> bool {
    other.of.job == key.of.job && (other.of != key.of || (other.step.id == key.step.id && other != key))
}

/// The sandbox in which a step wants to run, if it wants one; otherwise why it cannot be had.
fn sandbox_of(
    step: &Step,
    job: &DesiredJob,
    instance: &Instance,
    server: Option<&Path>,
) -> Result<Option<Sandbox>, String> {
    let Some((sandbox, env)) = step.wanted.as_ref().and_then(|wanted| Some((wanted.sandbox?, &wanted.env))) else {
        return Ok(None);
    };
    let without = |why: String| format!("this machine cannot make a sandbox ({why}): {}", sandbox::FIX);
    sandbox::can().map_err(without)?;
    let failed = |error: io::Error| without(error.to_string());
    let folder = instance.jobs().join(step.key.to_string());
    // Sockets lie in the folder that is shared, or where its path is too long, in folders of their own.
    let own = if step.is_server() { super::servers::socket_in(&folder) } else { steps_socket::path(&folder) };
    let mut writable = vec![instance.dir.join(&job.workdir), output::shared(&folder)];
    let sockets = [Some(own.map_err(failed)?), server.map(Path::to_owned)];
    writable.extend(sockets.iter().flatten().filter_map(|socket| Some(socket.parent()?.to_owned())));
    writable.extend(job.init.as_ref().map(|_| init::folder(&instance.dir)));
    writable.dedup();
    let mut hidden: Vec<PathBuf> = instance.boot.hidden.iter().map(PathBuf::from).collect();
    hidden.push(instance.dir.clone());
    Ok(Some(Sandbox {
        bwrap: sandbox::program().map_err(without)?,
        repl: instance.image().map_err(failed)?,
        repl_as: instance.tools().join("repl"),
        network: sandbox.network,
        hidden,
        private: sandbox::homes(),
        writable,
        devices: {
            let given = step::visible(instance.boot.gpus.as_ref()).into_iter().find(|(name, _)| name == GPUS);
            let asked = env.get(GPUS).or_else(|| job.env.get(GPUS)).cloned();
            sandbox::devices(asked.or(given.map(|(_, gpus)| gpus)).as_ref())
        },
    }))
}

fn start_order(
    job: &DesiredJob,
    step: &Step,
    instance: &Instance,
    cache: &Cache,
    (groups, server, sandbox): (Groups, Option<PathBuf>, Option<Sandbox>),
) -> io::Result<KeeperOrder> {
    let wanted = step.wanted.as_ref().expect("a step starts as it is wanted");
    let (workdir, dir) = sync::workdir(&instance.dir, &job.workdir, wanted.working_dir.as_deref())
        .map_err(|not_placed| io::Error::other(not_placed.why))?;
    std::fs::create_dir_all(&workdir)?;
    if let Some(start) = wanted.working_dir.as_deref().filter(|_| dir != workdir) {
        let names = beneath::steps(start).map_err(io::Error::other)?;
        beneath::Beneath::open(&workdir)?.make_folders(&names)?;
    }
    let mut env = step::environment(
        job,
        wanted,
        step.key,
        (&workdir, &instance.jobs().join(step.key.to_string())),
        (&instance.tools(), instance.boot.gpus.as_ref()),
    );
    let mut argv = step::argv(&wanted.command);
    if let Some(init) = job.init.as_ref().filter(|_| !step.is_server()) {
        env.push((init::VARIABLE.to_owned(), init::folder(&instance.dir).display().to_string()));
        argv = init::before(&instance.dir, init, argv)?;
    }
    env.extend(server.map(|socket| (super::servers::VARIABLE.to_owned(), socket.display().to_string())));
    let secrets = job.secrets.values().chain(wanted.secrets.values()).chain(&wanted.steps_token);
    Ok(KeeperOrder::Start(Box::new(Start {
        key: step.key.to_string(),
        argv,
        env,
        secrets: secrets.map(|secret| secret.0.clone()).collect(),
        dir,
        merge: wanted.merge,
        tail: wanted.tail,
        answers: wanted.answers,
        max_duration_ms: wanted.max_duration_ms,
        stop_duration_ms: job.stop_duration_ms,
        spool_bytes: instance.boot.timings.log_spool_bytes,
        stdin: wanted.stdin.as_ref().map(|stdin| cache.path(&stdin.hash)),
        // Once a run is enough: its further attempts have the same limits.
        note: groups.unenforced.clone().filter(|_| job.attempt == 1),
        groups,
        sandbox,
    })))
}
