//! Breadth first through every small world: each choice in each reachable state, every invariant at each, a way to the
//! end from each, and at last the proof that every row of every table was taken.

use crate::charting::{Chart, Move};
use crate::children::Parent;
use crate::invariants;
use crate::life::Map;
use crate::settlement::{Stop, apply};
use crate::world::{Choice, Lives, Mover, Scope, World};
use crate::{dag, fixture};
use model::recovery::OnExhausted;
use model::run::RunStatus;
use model::spec::{FailureMode, PlanRules};
use std::collections::{BTreeMap, BTreeSet};

const MOST_STATES: usize = 2_000_000;

const MACHINE: Scope = Scope {
    name: "one machine and everything that can befall it",
    agents: 1,
    tasks: 1,
    steps: 1,
    machines: 1,
    warm: false,
    attempts: 1,
    submissions: 2,
    mode: FailureMode::FailFast,
    agent_mode: FailureMode::FailFast,
    task_mode: FailureMode::FailFast,
    parallel: 1,
    chained: false,
    idempotent: false,
    poor: false,
    rules: PlanRules {
        max_agents: 10,
        replans: 0,
        on_exhausted: OnExhausted::Abort,
        estimate: model::Credits::ZERO,
        machines: 0,
        goal: false,
    },
    quiet: false,
    pauses: false,
    approvals: false,
    odd: false,
    silence: true,
    holds: false,
    charges: false,
    deaths: false,
    losses: false,
    children: 0,
    parent: None,
    verify: false,
};
const PAUSED_MACHINE: Scope =
    Scope { name: "one machine whose run is paused", silence: false, pauses: true, deaths: true, ..MACHINE };
const TWO_RANKS: Scope =
    Scope { name: "two ranks on two machines", agents: 2, machines: 2, warm: true, silence: false, ..MACHINE };
const SKIPPED_RANKS: Scope =
    Scope { name: "two ranks, each of which may be skipped", mode: FailureMode::Continue, submissions: 1, ..TWO_RANKS };
const PAUSED_RANKS: Scope =
    Scope { name: "two ranks that are paused, and of which one may be skipped", pauses: true, ..SKIPPED_RANKS };
const ATTEMPTS: Scope = Scope {
    name: "two attempts and their money",
    warm: true,
    attempts: 2,
    silence: false,
    holds: true,
    charges: true,
    deaths: true,
    ..MACHINE
};
const TOOLS: Scope = Scope {
    name: "one agent with one tool, asked about, paused, retried and cut off",
    machines: 0,
    agent_mode: FailureMode::Retry,
    attempts: 2,
    submissions: 1,
    pauses: true,
    approvals: true,
    silence: false,
    deaths: true,
    ..MACHINE
};
const VERIFIED: Scope =
    Scope { name: "a tool whose `verify` says what became of a call", verify: true, approvals: false, ..TOOLS };
const VERIFIED_OR_ASKED: Scope = Scope {
    name: "a tool with a `verify`, which is exhausted and goes to a person",
    rules: PlanRules { on_exhausted: OnExhausted::Escalate, ..MACHINE.rules },
    attempts: 1,
    pauses: false,
    ..VERIFIED
};
const VERIFIED_OR_SKIPPED: Scope = Scope {
    name: "a tool with a `verify`, which may be done without",
    agent_mode: FailureMode::FailFast,
    task_mode: FailureMode::Continue,
    attempts: 1,
    pauses: false,
    ..VERIFIED
};
const TWO_TOOLS: Scope = Scope {
    name: "two agents that are paused together",
    agents: 2,
    idempotent: true,
    approvals: false,
    deaths: false,
    attempts: 1,
    ..TOOLS
};
const TREE: Scope = Scope {
    name: "two tasks of two steps, one after the other",
    agents: 1,
    tasks: 2,
    steps: 2,
    idempotent: true,
    attempts: 1,
    pauses: false,
    approvals: false,
    ..TOOLS
};
const CHAINED: Scope = Scope {
    name: "a task that waits for another, which may be skipped",
    agents: 1,
    tasks: 2,
    parallel: 2,
    chained: true,
    agent_mode: FailureMode::Continue,
    ..TOOLS
};
const ONE_BY_ONE: Scope = Scope {
    name: "two agents, one at a time",
    rules: PlanRules { max_agents: 1, ..MACHINE.rules },
    mode: FailureMode::Continue,
    ..TWO_TOOLS
};
const ESCALATING: Scope = Scope {
    name: "what is exhausted goes to a person",
    rules: PlanRules { on_exhausted: OnExhausted::Escalate, ..MACHINE.rules },
    agent_mode: FailureMode::Retry,
    agents: 1,
    tasks: 2,
    parallel: 2,
    attempts: 1,
    approvals: false,
    idempotent: true,
    ..TOOLS
};
const ODD: Scope = Scope {
    name: "steps that are answered without being called",
    rules: PlanRules { on_exhausted: OnExhausted::Escalate, ..MACHINE.rules },
    task_mode: FailureMode::Retry,
    agent_mode: FailureMode::FailFast,
    steps: 2,
    odd: true,
    attempts: 1,
    pauses: false,
    ..TOOLS
};
const ODD_AND_SKIPPED: Scope = Scope {
    name: "steps that are not called and done without",
    rules: MACHINE.rules,
    task_mode: FailureMode::Continue,
    ..ODD
};
const REPLANNING: Scope = Scope {
    name: "a planner makes a second plan",
    rules: PlanRules { replans: 1, ..MACHINE.rules },
    mode: FailureMode::Continue,
    ..TWO_TOOLS
};
const POOR: Scope = Scope {
    name: "a retry that cannot be paid",
    poor: true,
    attempts: 1,
    pauses: false,
    approvals: false,
    task_mode: FailureMode::Retry,
    ..TOOLS
};
const LOOP: Scope = Scope {
    name: "a loop whose turns are children, asked about, paused, retried and cut off",
    children: 1,
    parent: Some(Parent::Act),
    attempts: 1,
    agent_mode: FailureMode::FailFast,
    task_mode: FailureMode::Retry,
    ..TOOLS
};
const SIDE_BY_SIDE: Scope = Scope {
    name: "a loop with two calls at once",
    children: 2,
    task_mode: FailureMode::FailFast,
    pauses: false,
    approvals: false,
    deaths: false,
    ..LOOP
};
const REPEATABLE_LOOP: Scope = Scope {
    name: "a loop whose turns may be repeated, in two attempts",
    idempotent: true,
    approvals: false,
    attempts: 2,
    ..LOOP
};
const PROGRAM: Scope =
    Scope { name: "a program outside that begins durable steps", parent: Some(Parent::Program), attempts: 2, ..LOOP };
const SCRIPT: Scope = Scope {
    name: "a command on a machine that begins durable steps, in two attempts",
    children: 1,
    parent: Some(Parent::Act),
    attempts: 2,
    warm: true,
    silence: false,
    pauses: true,
    ..MACHINE
};

/// What is in flight when a machine is lost ends first; then the agent begins anew, and no effect is repeated.
const LOSING: Scope = Scope {
    name: "agents that lose their machines",
    tasks: 2,
    steps: 1,
    parallel: 2,
    attempts: 1,
    approvals: false,
    deaths: false,
    losses: true,
    ..TOOLS
};
/// What is in flight when the machine is lost may be repeated: its next try waits for the agent that begins anew.
const LOSING_REPEATABLE: Scope =
    Scope { name: "agents that lose their machines in the middle of what may be repeated", idempotent: true, ..LOSING };
const LOSING_LOOP: Scope = Scope {
    name: "a loop whose agent loses its machine",
    tasks: 1,
    parallel: 1,
    idempotent: true,
    losses: true,
    deaths: false,
    ..LOOP
};

const SCOPES: &[Scope] = &[
    MACHINE,
    PAUSED_MACHINE,
    TWO_RANKS,
    SKIPPED_RANKS,
    PAUSED_RANKS,
    ATTEMPTS,
    TOOLS,
    VERIFIED,
    VERIFIED_OR_ASKED,
    VERIFIED_OR_SKIPPED,
    TWO_TOOLS,
    TREE,
    CHAINED,
    ONE_BY_ONE,
    ESCALATING,
    ODD,
    ODD_AND_SKIPPED,
    LOSING,
    LOSING_REPEATABLE,
    LOSING_LOOP,
    REPLANNING,
    POOR,
    LOOP,
    SIDE_BY_SIDE,
    REPEATABLE_LOOP,
    PROGRAM,
    SCRIPT,
];

/// Three modes at three levels, with two children that run at once at each level in turn.
fn modes() -> Vec<Scope> {
    let mut all = Vec::new();
    for mode in FailureMode::ALL.iter().copied() {
        for agent_mode in FailureMode::ALL.iter().copied() {
            for task_mode in FailureMode::ALL.iter().copied() {
                for (agents, tasks, steps) in [(2, 1, 1), (1, 2, 1), (1, 1, 2)] {
                    let name = "three modes at three levels";
                    let rules = PlanRules { max_agents: 2, ..MACHINE.rules };
                    let small = Scope { attempts: 1, quiet: true, idempotent: true, deaths: true, ..TOOLS };
                    let shape = Scope { name, agents, tasks, steps, parallel: 2, rules, ..small };
                    all.push(Scope { mode, agent_mode, task_mode, ..shape });
                }
            }
        }
    }
    all
}

/// Rows that no small world takes, and why. Their table walk takes them.
const WALKED_ONLY: &[(&str, &str, &[&str])] = &[
    (
        "a run whose agents have all completed is finalised in the same transaction",
        "run",
        &[
            "pending (to completed) -> cancel(abort) -> pending (to completed)",
            "running (to completed) -> cancel(abort) -> running (to completed)",
            "paused (to completed) -> cancel(abort) -> paused (to completed)",
            "resuming (to completed) -> cancel(abort) -> resuming (to completed)",
            "retrying (to completed) -> cancel(abort) -> retrying (to completed)",
        ],
    ),
    (
        "in these worlds a run has tickets or machines, not both: after a ticket's retry nothing can report",
        "run",
        &[
            "pending (pausing) -> agent_failed -> pending (to failed)",
            "pending (pausing) -> all_agents_completed -> pending (to completed)",
            "pending (pausing) -> ticket_resolved(abort) -> pending (to failed)",
            "retrying (pausing) -> agent_failed -> retrying (to failed)",
            "retrying (pausing) -> all_agents_completed -> retrying (to completed)",
            "retrying (pausing) -> ticket_resolved(abort) -> retrying (to failed)",
        ],
    ),
    (
        "in these worlds an agent has tools or a machine, not both: between a pause and going on no command of a plan can report",
        "agent",
        &["pending -> to_be_retried -> pending"],
    ),
    ("the provider of a small world lets no machine wait", "instance", &["booting -> queued -> booting"]),
    ("the provider of a small world lets no machine wait", "job", &["provisioning -> machine_queued -> provisioning"]),
    (
        "a small world has one pool",
        "job",
        &["submitted (waiting) -> pool_changed -> submitted", "submitted -> pool_changed -> submitted"],
    ),
    (
        "the log of a small world comes in one piece",
        "job",
        &[
            "terminating (gone, to done) -> logged -> terminating (gone, to done)",
            "terminating (gone, to failed) -> logged -> terminating (gone, to failed)",
            "terminating (gone, to terminated) -> logged -> terminating (gone, to terminated)",
            "terminating (gone, to aborted) -> logged -> terminating (gone, to aborted)",
        ],
    ),
    (
        "who aborts asks so from the start, and a spot notice is never an abort",
        "job",
        &[
            "terminating (to aborted) -> stop_asked(aborted) -> terminating (to aborted)",
            "terminating (to aborted) -> stop_asked(failed) -> terminating (to aborted)",
            "terminating (to aborted) -> stop_asked(terminated) -> terminating (to aborted)",
            "terminating (to failed) -> stop_asked(failed) -> terminating (to failed)",
            "terminating (to terminated) -> stop_asked(failed) -> terminating (to terminated)",
        ],
    ),
    ("a machine is silent before it is lost", "silence", &["heard -> declared_lost -> lost"]),
    (
        "manifests live beside the workflows, not in this world",
        "manifest",
        &["DRAFT -> workflow_ended -> SEALED", "SEALED -> emptied -> DELETED"],
    ),
];

struct Explored {
    states: usize,
    taken: BTreeMap<&'static str, BTreeSet<Move>>,
}

fn explore(scope: &Scope) -> Result<Explored, String> {
    let mut lives = Lives::new();
    let first = lives.world(scope);
    let mut worlds = vec![first];
    let mut numbers: Map<World, u32> = Map::default();
    numbers.insert(first, 0);
    // How each world was first reached, and who reaches whom by itself.
    let mut reached: Vec<(u32, Choice)> = vec![(0, Choice::RunDeadline)];
    let mut by_itself: Vec<(u32, u32, Mover)> = Vec::new();
    let mut at = 0;
    while at < worlds.len() {
        let world = worlds[at];
        for choice in world.choices(&lives, scope) {
            let broken = |why: String, reached: &[(u32, Choice)]| {
                Err(format!("{}: {why}\n{}", scope.name, path(reached, at, &choice)))
            };
            let next = match apply(&mut lives, scope, &world, &choice) {
                Ok(next) => next,
                Err(Stop::Nothing) => continue,
                Err(Stop::Broken(why)) => return broken(why, &reached),
            };
            if next == world {
                continue;
            }
            let number = match numbers.get(&next) {
                Some(number) => *number,
                None => {
                    if let Err(why) = invariants::hold(&lives, scope, &next) {
                        return broken(why, &reached);
                    }
                    worlds.push(next);
                    reached.push((at as u32, choice.clone()));
                    numbers.insert(next, worlds.len() as u32 - 1);
                    worlds.len() as u32 - 1
                }
            };
            if let Err(why) = invariants::hold_between(&lives, &world, &next) {
                return broken(why, &reached);
            }
            if choice.mover() <= Mover::Work {
                by_itself.push((at as u32, number, choice.mover()));
            }
        }
        at += 1;
        assert!(worlds.len() < MOST_STATES, "{}: too many states", scope.name);
    }
    let run = |at: usize| lives.run.get(worlds[at].run);
    let is_ending = |at: usize| run(at).termination.is_some();
    let starts = |at: usize| run(at).status != RunStatus::Created;
    let (clock, work) = (Mover::Clock, Mover::Work);
    let checks: [(&str, Mover, &dyn Fn(usize) -> bool); 2] = [
        ("a run that was asked to end does not end by the clock alone", clock, &is_ending),
        ("a run cannot end although all goes well", work, &starts),
    ];
    for (what, mover, concerns) in checks {
        let ends = reaching(&|at| run(at).status.is_end(), worlds.len(), &by_itself, mover);
        if let Some(stuck) = (0..worlds.len()).find(|at| concerns(*at) && !ends[*at]) {
            let (before, last) = &reached[stuck];
            return Err(format!("{}: {what}\n{}", scope.name, path(&reached, *before as usize, last)));
        }
    }
    Ok(Explored { states: worlds.len(), taken: taken(&lives) })
}

/// The worlds from which a good one can be reached by movers no less sure than this one.
fn reaching(is_good: &dyn Fn(usize) -> bool, count: usize, edges: &[(u32, u32, Mover)], least: Mover) -> Vec<bool> {
    let mut before: Vec<Vec<u32>> = vec![vec![]; count];
    for (from, to, _) in edges.iter().filter(|(_, _, mover)| *mover <= least) {
        before[*to as usize].push(*from);
    }
    let mut good: Vec<bool> = (0..count).map(is_good).collect();
    let mut waiting: Vec<usize> = (0..count).filter(|at| good[*at]).collect();
    while let Some(at) = waiting.pop() {
        for from in std::mem::take(&mut before[at]) {
            if !std::mem::replace(&mut good[from as usize], true) {
                waiting.push(from as usize);
            }
        }
    }
    good
}

/// The choices that led here, one a line.
fn path(reached: &[(u32, Choice)], mut at: usize, last: &Choice) -> String {
    let mut lines = vec![format!("{last:?}")];
    while at != 0 {
        lines.push(format!("{:?}", reached[at].1));
        at = reached[at].0 as usize;
    }
    lines.reverse();
    lines.join("\n")
}

fn taken(lives: &Lives) -> BTreeMap<&'static str, BTreeSet<Move>> {
    let moves = |chart: &Chart| chart.moves.clone();
    BTreeMap::from([
        ("run", moves(&lives.run.taken[0])),
        ("replan", moves(&lives.run.taken[1])),
        ("attempt", moves(&lives.attempt.taken[0])),
        ("agent", moves(&lives.agent.taken[0])),
        ("task", moves(&lives.task.taken[0])),
        ("step", moves(&lives.step.taken[0])),
        ("job", moves(&lives.job.taken[0])),
        ("silence", moves(&lives.job.taken[1])),
        ("freeze", moves(&lives.job.taken[2])),
        ("allocation", moves(&lives.slot.taken[0])),
        ("instance", moves(&lives.instance.taken[0])),
    ])
}

#[test]
fn every_small_world_keeps_every_promise_and_takes_every_row() {
    // EXPLORE=words explores only the worlds whose name has them, and does not ask for every row.
    let only = std::env::var("EXPLORE").unwrap_or_default();
    let scopes: Vec<Scope> = SCOPES.iter().copied().chain(modes()).filter(|s| s.name.contains(&only)).collect();
    let results: Vec<Result<Explored, String>> = std::thread::scope(|threads| {
        let all: Vec<_> = scopes.iter().map(|scope| threads.spawn(|| explore(scope))).collect();
        all.into_iter().map(|thread| thread.join().expect("an explorer does not panic")).collect()
    });
    let mut taken: BTreeMap<&str, BTreeSet<Move>> = BTreeMap::new();
    let broken: Vec<&str> = results.iter().filter_map(|result| result.as_ref().err()).map(String::as_str).collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n\n"));
    for (scope, result) in scopes.iter().zip(results) {
        let Ok(explored) = result else { continue };
        println!("{:>8} states: {}", explored.states, scope.name);
        assert!(explored.states > 100, "{}: only {} states were reached", scope.name, explored.states);
        for (name, rows) in explored.taken {
            taken.entry(name).or_default().extend(rows);
        }
    }
    if !only.is_empty() {
        return;
    }
    let found = dag::walked();
    taken.insert("workflow", found.workflow.moves);
    taken.insert("node", found.node.moves);
    let mut missing = BTreeSet::new();
    // Calls have no part in these worlds: `calls.rs` lives all their short histories.
    let of_calls = ["execution", "orchestrator"];
    let others = fixture::ALL.iter().filter(|(name, _)| !of_calls.contains(name));
    for fixture in others.map(|(name, _)| fixture::named(name)) {
        let rows = taken.get(fixture.name).cloned().unwrap_or_default();
        let not_taken = fixture.ours.keys().filter(|row| !rows.contains(row));
        missing.extend(not_taken.map(|row| format!("{}: {row}", fixture.name)));
    }
    let known = WALKED_ONLY.iter().flat_map(|(_, name, rows)| rows.iter().map(move |row| format!("{name}: {row}")));
    let known: BTreeSet<String> = known.collect();
    let difference: Vec<&String> = missing.symmetric_difference(&known).collect();
    assert!(difference.is_empty(), "taken by no world, or taken and said not to be: {difference:#?}");
}
