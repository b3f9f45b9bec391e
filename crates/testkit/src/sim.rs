//! One simulated world from its beginning to its end: trouble first (nothing may break), then calm (everything must end).
//! The same seed gives the same world, to the last line of its trace.

use crate::control::ENOUGH_MS;
use crate::time::now;
use crate::truth;
use crate::watch;
use crate::world::{BEGINNING_MS, World};
use adapters::fake::MachineState;
use model::run::{Run, RunStatus};
use model::time::MINUTE;
use store::LogStream;

/// How long things go wrong.
const TROUBLE_MS: i64 = 20 * MINUTE;
const LOOK_EVERY: u64 = 32;

/// What a world is judged by, so that each promise can be asked for by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Nothing runs twice at a time, the invariants hold at every commit, what is said is true, nothing accepted is lost.
    Safe,
    /// A command is not executed more often than its policy, or a person, wanted.
    NotRepeated,
    /// Every run ends, and every machine is ended and forgotten.
    Ends,
}

#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    pub hash: u64,
    pub runs: usize,
    pub executions: usize,
    /// Every promise that was broken, and how; empty in a good world.
    pub broken: Vec<(Promise, String)>,
    pub trace: Vec<String>,
}

impl Report {
    pub fn broke(&self, promise: Promise) -> bool {
        self.broken.iter().any(|(broken, _)| *broken == promise)
    }

    /// The end of a world that broke a promise, and how to see it again.
    pub fn story(&self) -> String {
        let last = self.trace.len().saturating_sub(60);
        let complaints: Vec<String> =
            self.broken.iter().map(|(promise, what)| format!("{promise:?}: {what}")).collect();
        format!(
            "seed {}:
{}
  {}",
            self.seed,
            self.trace[last..].join(
                "
"
            ),
            complaints.join(
                "
  "
            )
        )
    }
}

/// A world with everything in it that can go wrong.
pub fn run(seed: u64) -> Report {
    watch::watching(|| live(seed))
}

fn live(seed: u64) -> Report {
    let runs = 1 + seed % 6;
    let mut world = World::new(seed, runs, TROUBLE_MS);
    while world.step(BEGINNING_MS + TROUBLE_MS) {}
    world.now.move_to((BEGINNING_MS + TROUBLE_MS).max(world.now.ms()));
    world.calm_down();
    let until = world.now.ms() + ENOUGH_MS;
    // Asking whether it is over costs more than most steps.
    let mut steps = 0_u64;
    while (!steps.is_multiple_of(LOOK_EVERY) || !is_over(&world)) && world.step(until) {
        steps += 1;
    }
    if world.broken.is_empty() {
        judge(&mut world);
        judge_machines(&mut world);
    }
    let executions = world.clients.iter().filter_map(|c| c.run).map(|run| world.truth.of(run).count()).sum();
    let (runs, broken) = (world.clients.len(), std::mem::take(&mut world.broken));
    let panics = watch::panics().into_iter().map(|panic| (Promise::Safe, panic));
    let hash = world.trace.hash();
    Report {
        seed,
        hash,
        runs,
        executions,
        broken: broken.into_iter().chain(panics).collect(),
        trace: world.trace.into_lines(),
    }
}

fn is_over(world: &World) -> bool {
    let asked = world.clients.iter().all(|client| client.run.is_some() && client.wishes.is_empty());
    asked && world.far.near.machines().is_empty() && now(world.auditor.open_runs()).is_ok_and(|open| open == 0)
}

/// At the end of the world everything has ended, is paid, and is as it really was.
fn judge(world: &mut World) {
    let audit = now(world.auditor.audit()).expect("a database in memory is read");
    for broken in audit.broken {
        world.complain(Promise::Safe, format!("{}: {}: {}", broken.invariant, broken.subject, broken.detail));
    }
    for index in 0..world.clients.len() {
        let Some(id) = world.clients[index].run else {
            world.complain(Promise::Ends, format!("client {index} was never answered"));
            continue;
        };
        match now(world.auditor.picture(world.org, id)) {
            Ok(picture) => judge_run(world, index, &picture.run),
            Err(failure) => world.complain(Promise::Safe, format!("an accepted run is gone: {failure}")),
        }
    }
    let open = now(world.store.read("sim.runs", |tx| store::run::ids_after(tx, 0, 1000)))
        .expect("a database in memory is read");
    if open.len() != world.clients.len() {
        world.complain(Promise::Safe, format!("{} requests made {} runs", world.clients.len(), open.len()));
    }
}

fn judge_machines(world: &mut World) {
    for (name, machine) in world.far.near.machines() {
        let known = name.clone();
        let row = now(world.store.read("sim.instance", move |tx| store::instance::by_name(tx, &known)));
        let row = row.expect("a database in memory is read").map(|row| (row.status, row.handle.is_some()));
        let care = if machine.state == MachineState::Gone { "forgets" } else { "ends" };
        let what = format!("{name} is {:?} and nobody {care} it: its row says (status, bound) {row:?}", machine.state);
        world.complain(Promise::Ends, what);
    }
}

fn judge_run(world: &mut World, index: usize, run: &Run) {
    if !run.status.is_end() {
        return world.complain(Promise::Ends, format!("{} never ends: it is {} ({:?})", run.id, run.status, run.phase));
    }
    let executions: Vec<_> = world.truth.of(run.id).cloned().collect();
    let client = &world.clients[index];
    let allowed =
        client.retries + client.spec.retry.as_ref().map_or(1, |retry| retry.max_attempts * retry.max_attempts);
    if executions.len() as i64 > allowed {
        world.complain(
            Promise::NotRepeated,
            format!("{} was executed {} times, {allowed} were wanted", run.id, executions.len()),
        );
    }
    let really = |code: i32| executions.iter().any(|execution| execution.exit_code == Some(code));
    let said = run.exit_code;
    if run.status == RunStatus::Completed && !really(0) {
        world.complain(Promise::Safe, format!("{} is said to have completed, but no command of it did", run.id));
    }
    if let Some(code) = said.filter(|code| !really(*code)) {
        world
            .complain(Promise::Safe, format!("{} is said to have ended with {code}, but no command of it did", run.id));
    }
    judge_logs(world, run);
}

/// What is kept of a log is what was written, from its beginning, without gap or repetition; all of it unless it is marked.
fn judge_logs(world: &mut World, run: &Run) {
    let id = run.id;
    let jobs =
        now(world.store.read("sim.jobs", move |tx| store::job::of_run(tx, id))).expect("a database in memory is read");
    for job in jobs {
        let page = now(world.auditor.logs.read(job.id, 0, i64::MAX)).expect("a log is read");
        let kept: Vec<u8> = page
            .frames
            .iter()
            .filter(|p| p.frame.stream == LogStream::Stdout)
            .flat_map(|p| p.frame.data.clone())
            .collect();
        if kept != truth::output(job.id, job.epoch, 0, kept.len() as i64) {
            world.complain(Promise::Safe, format!("the log of {} is not what was written", job.id));
        }
        if let Some(end) = job.final_offset.filter(|end| !job.log_cut && *end != kept.len() as i64) {
            world.complain(
                Promise::Safe,
                format!("the log of {} has {} of {end} bytes, and no mark", job.id, kept.len()),
            );
        }
    }
}
