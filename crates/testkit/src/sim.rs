//! One simulation from beginning to end: first with faults (no invariant may break), then without (everything must end).
//! The same seed gives the same history, to the last line of its trace.

pub use crate::book::Situation;
use crate::chance::Chance;
pub use crate::faults::{Decision, Kind};
use crate::watch;
use crate::world::{BEGINNING_MS, World};
use model::run::RunStatus;
use model::time::MINUTE;
use std::collections::BTreeSet;

/// How long a world may need to end everything once nothing goes wrong any more.
const ENOUGH_MS: i64 = 200 * MINUTE;
const LOOK_EVERY: u64 = 16;
/// How much of a world's end is told.
const LAST_LINES: usize = 60;

/// What a world is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Nothing runs twice at a time, the invariants hold at every commit, what is said is true, nothing accepted is lost.
    Safe,
    /// A command is not executed more often than its policy, or a person, wanted.
    NotRepeated,
    /// Every run ends, and every machine is ended and forgotten.
    Ends,
    /// The same seed is the same world.
    Same,
}

#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    /// Of the whole trace: the same seed gives the same.
    pub hash: u64,
    pub runs: usize,
    pub executions: usize,
    pub commits: u64,
    /// How long the world lived, in its own time.
    pub lived_ms: i64,
    /// What went wrong, and when.
    pub faults: Vec<(i64, Decision)>,
    /// Every promise that was broken, and how; empty in a good world.
    pub broken: Vec<(Promise, String)>,
    /// What it came to, of all that worlds come to now and then.
    pub met: BTreeSet<Situation>,
    /// How each run ended.
    pub ends: Vec<(RunStatus, Option<i32>)>,
    pub trace: Vec<String>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.broken.is_empty()
    }

    /// What broke, without whom it happened to: by this two failures are known to be the same.
    pub fn sort(&self) -> Option<(Promise, String)> {
        let (promise, what) = self.broken.first()?;
        let plain = |word: &&str| !word.chars().any(|letter| letter.is_ascii_digit() || letter == '_');
        Some((*promise, what.split_whitespace().filter(plain).take(6).collect::<Vec<_>>().join(" ")))
    }

    /// The end of a world that broke a promise.
    pub fn story(&self) -> String {
        let last = self.trace.len().saturating_sub(LAST_LINES);
        let complaints: Vec<String> =
            self.broken.iter().map(|(promise, what)| format!("{promise:?}: {what}")).collect();
        format!("seed {}:\n{}\n  {}", self.seed, self.trace[last..].join("\n"), complaints.join("\n  "))
    }

    /// Broken, if the other is not the same to the last line.
    pub fn compared_with(mut self, other: &Report) -> Report {
        if self.hash != other.hash {
            let part = self.trace.iter().zip(&other.trace).find(|(once, again)| once != again);
            let what = format!("the same seed made two different worlds, which part at {part:?}");
            self.broken.push((Promise::Same, what));
        }
        self
    }

    /// The decisions by which it went wrong.
    pub fn decisions(&self) -> Vec<Decision> {
        self.faults.iter().map(|(_, decision)| *decision).collect()
    }
}

/// The world of this seed, with everything in it that goes wrong there.
pub fn run(seed: u64) -> Report {
    watch::watching(|| live(seed, None))
}

/// The same world with these faults and no others.
pub fn run_with(seed: u64, only: &[Decision]) -> Report {
    watch::watching(|| live(seed, Some(only)))
}

fn live(seed: u64, only: Option<&[Decision]>) -> Report {
    let mut size = Chance::of(seed, u64::MAX, 1);
    let (runs, trouble_ms) = (size.pick(&[1, 2, 2, 3, 4, 8]), size.pick(&[MINUTE / 2, 2 * MINUTE, 6 * MINUTE]));
    let mut world = World::new(seed, trouble_ms, only);
    world.populate(runs, trouble_ms / 2);
    end(world, seed, trouble_ms)
}

/// Lives the world through its trouble and its calm, and judges it.
pub(crate) fn end(mut world: World, seed: u64, trouble_ms: i64) -> Report {
    while world.step(BEGINNING_MS + trouble_ms) {}
    world.now.move_to((BEGINNING_MS + trouble_ms).max(world.now.ms()));
    world.calm_down();
    let until = world.now.ms() + ENOUGH_MS + world.set_back_ms;
    // Asking whether it is over costs more than most steps.
    let mut steps = 0_u64;
    while (!steps.is_multiple_of(LOOK_EVERY) || !world.is_over()) && world.step(until) {
        steps += 1;
    }
    if world.broken.is_empty() {
        world.judge();
    }
    report(world, seed)
}

fn report(mut world: World, seed: u64) -> Report {
    let runs: Vec<_> = world.clients.iter().filter_map(|client| client.run).collect();
    let executions = runs.iter().map(|run| world.truth.of(*run).count()).sum();
    let found = runs.iter().filter_map(|id| {
        let id = *id;
        world.store.read_now("sim.end", move |tx| store::run::find(tx, id)).ok().flatten()
    });
    let ends = found.map(|run| (run.status, run.exit_code)).collect();
    let panics = watch::panics().into_iter().map(|panic| (Promise::Safe, panic));
    let faults = world.faults.struck();
    let met = world.tool.book().met();
    Report {
        seed,
        hash: world.trace.hash(),
        runs: runs.len(),
        executions,
        commits: world.auditor.commits(),
        lived_ms: world.now.ms() - BEGINNING_MS,
        faults: faults.into_iter().map(|(at, decision)| (at - BEGINNING_MS, decision)).collect(),
        broken: std::mem::take(&mut world.broken).into_iter().chain(panics).collect(),
        met,
        ends,
        trace: world.trace.into_lines(),
    }
}
