//! People in the simulated world: each submits one run, and some change their minds. They repeat every request with its key
//! until it is answered. Never looks at a database.

use crate::chance::Chance;
use crate::machine::Plan;
use engine::run::{Action, Plans, Submission};
use model::plan::{AgentPlan, MachinePlan, StepPlan, TaskPlan};
use model::recovery::OnExhausted;
use model::spec::{
    Command, FailureMode, OnLostControl, PlanRules, Priority, Resources, Retry, RetryEvent, RunKind, RunSpec,
};
use model::step::ToolKind;
use model::time::{MINUTE, SECOND};
use model::{Credits, OrgId, RunId};
use serde_json::json;
use std::collections::BTreeMap;
use store::idempotency::Key;

pub struct Client {
    pub number: u64,
    /// Which of the world's orgs they belong to.
    pub org: usize,
    pub spec: RunSpec,
    pub plans: Plans,
    pub start: bool,
    pub run: Option<RunId>,
    /// The run was not accepted, for a good reason.
    pub turned_away: bool,
    /// When to ask for what, soonest last.
    pub wishes: Vec<(i64, Wish)>,
    /// A retry that was accepted: the command may run once more.
    pub retries: i64,
    pub deleted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    ProviderFuture(Action),
    Delete,
    /// About what was kept of the run.
    Extend {
        ms: i64,
    },
    Release,
    /// The machine it was on.
    Terminate {
        force: bool,
    },
    /// As somebody of the other org, to whom the run does not exist.
    Meddle,
}

impl Client {
    pub fn draw(number: u64, chance: &mut Chance, from_ms: i64) -> Client {
        let ms = chance.pick(&[0, SECOND, 15 * SECOND, MINUTE, 4 * MINUTE]);
        let exit_code = chance.pick(&[0, 0, 0, 1, 7]);
        let text = Plan::text(ms + chance.between(0, 2000), exit_code, chance.pick(&[0, 30, 3000]));
        let start = !chance.one_in(8);
        let mut wishes = Vec::new();
        if !start {
            wishes.push((from_ms + chance.between(0, MINUTE), Wish::ProviderFuture(Action::Start)));
        }
        let within_ms = chance.pick(&[20 * SECOND, 5 * MINUTE]);
        for _ in 0..chance.pick(&[0, 0, 1, 1, 3]) {
            wishes.push((from_ms + chance.between(0, within_ms), wish(chance)));
        }
        let of_agents = chance.one_in(3);
        if of_agents && chance.one_in(4) {
            let at = from_ms + chance.between(0, within_ms);
            wishes.push((at, Wish::ProviderFuture(Action::Pause)));
            wishes.push((at + chance.between(0, MINUTE), Wish::ProviderFuture(Action::Resume)));
        }
        wishes.sort_by_key(|(at, _)| -at);
        let org = usize::from(chance.one_in(3));
        let client = if of_agents {
            let (spec, plans) = agents(chance);
            Client { plans, ..Client::of(number, spec) }
        } else {
            Client::of(number, spec(text, chance))
        };
        Client { org, start, wishes, ..client }
    }

    /// Somebody with this run in mind and nothing else.
    pub fn of(number: u64, spec: RunSpec) -> Client {
        Client {
            number,
            org: 0,
            spec,
            plans: Plans::default(),
            start: true,
            run: None,
            turned_away: false,
            wishes: Vec::new(),
            retries: 0,
            deleted: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.turned_away || (self.run.is_some() && self.wishes.is_empty())
    }

    pub fn submission(&self, org: OrgId) -> Submission {
        Submission {
            org,
            name: Some(format!("sim-{}", self.number)),
            spec: self.spec.clone(),
            plans: self.plans.clone(),
            start: self.start,
        }
    }

    /// Each request has its key: the first one and the repetitions are one request.
    pub fn key(&self, org: OrgId) -> Key {
        let what = self.run.map_or("POST /runs".to_owned(), |run| format!("POST /runs/{run}"));
        Key {
            org,
            route: what,
            key: format!("{}-{}", self.number, self.wishes.len()),
            hash: [self.number as u8; 32],
            request: String::new(),
        }
    }
}

/// A run of agents: modes at all levels, steps that may be repeated and steps that may not, a planner.
fn agents(chance: &mut Chance) -> (RunSpec, Plans) {
    let mode = |chance: &mut Chance| chance.pick(FailureMode::ALL);
    let step = |chance: &mut Chance, name: String, machine: bool| {
        let once = chance.one_in(2);
        // What fails although it did something may be done again by a retry of what is above it.
        let ends = if !once && chance.one_in(4) { "badly" } else { "well" };
        if machine && chance.one_in(2) {
            return command(chance, name, once);
        }
        StepPlan {
            idempotent: !once,
            input: json!({ "once": once, "ends": ends }),
            ..StepPlan::new(&name, ToolKind::Http)
        }
    };
    let task = |chance: &mut Chance, position: usize, machine: bool| {
        let steps = (0..chance.between(1, 4)).map(|n| step(chance, format!("s{n}"), machine)).collect();
        let after = if position > 0 && chance.one_in(3) { vec![position - 1] } else { vec![] };
        let (mode, parallel) = (mode(chance), chance.between(1, 3));
        TaskPlan { mode, parallel, after, ..TaskPlan::new(&format!("t{position}"), steps) }
    };
    let agent = |chance: &mut Chance, name: String| {
        let machine = chance.one_in(2);
        let tasks = (0..chance.between(1, 4) as usize).map(|position| task(chance, position, machine)).collect();
        let machine = machine.then(MachinePlan::default);
        AgentPlan { mode: mode(chance), parallel: chance.between(1, 3), machine, ..AgentPlan::new(&name, tasks) }
    };
    let agents = (0..chance.between(1, 4)).map(|n| agent(chance, format!("a{n}"))).collect();
    let rules = PlanRules {
        max_agents: chance.pick(&[1, 2, 10]),
        on_exhausted: chance.pick(&[OnExhausted::Abort, OnExhausted::Abort, OnExhausted::Escalate]),
        ..PlanRules::default()
    };
    let spec = RunSpec {
        kind: RunKind::Agents,
        command: Command::Argv(Vec::new()),
        failure_mode: mode(chance),
        plan: rules,
        ..plain(String::new())
    };
    (spec, Plans { agents, ..Plans::default() })
}

/// A command on the agent's machine. What it leaves there may be needed, or kept by nobody.
fn command(chance: &mut Chance, name: String, once: bool) -> StepPlan {
    let ms = chance.pick(&[0, SECOND, 15 * SECOND, MINUTE]);
    let exit_code = if !once && chance.one_in(5) { 1 } else { 0 };
    StepPlan {
        idempotent: !once,
        retry_interrupted: chance.one_in(4),
        files: chance.one_in(2).then(Vec::new),
        timeout_ms: chance.pick(&[30 * SECOND, 10 * MINUTE]),
        input: json!({ "shell": Plan::text(ms, exit_code, chance.pick(&[0, 30, 3000])) }),
        ..StepPlan::new(&name, ToolKind::Command)
    }
}

fn wish(chance: &mut Chance) -> Wish {
    match chance.between(0, 10) {
        0 | 1 => Wish::ProviderFuture(Action::Cancel { abort: false }),
        2 => Wish::ProviderFuture(Action::Cancel { abort: true }),
        3 | 4 => Wish::ProviderFuture(Action::Retry { force: chance.one_in(3) }),
        5 => Wish::Delete,
        6 => Wish::Extend { ms: 2 * MINUTE },
        7 => Wish::Release,
        8 => Wish::Terminate { force: chance.one_in(2) },
        _ => Wish::Meddle,
    }
}

fn spec(text: String, chance: &mut Chance) -> RunSpec {
    let events = [vec![RetryEvent::Error], vec![RetryEvent::Interruption, RetryEvent::NoCapacity]];
    let retry = chance.one_in(3).then(|| Retry {
        max_attempts: chance.between(2, 4),
        on_events: events[chance.between(0, 2) as usize].clone(),
        duration_ms: None,
        delay_ms: None,
    });
    RunSpec {
        resources: Resources {
            cpu_milli: None,
            memory_bytes: chance.pick(&[None, None, Some(1 << 30), Some(4 << 30)]),
        },
        max_duration_ms: chance.pick(&[None, None, Some(2 * MINUTE)]),
        stop_duration_ms: chance.pick(&[0, 10 * SECOND]),
        hold_ms: chance.pick(&[None, Some(0)]),
        // An hour costs 10,000: the last ends a run within the minute.
        budget: chance.pick(&[None, None, None, Some(Credits(5_000)), Some(Credits(100))]),
        retry,
        priority: chance.pick(&[Priority::Normal, Priority::Normal, Priority::High]),
        on_lost_control: chance.pick(&[OnLostControl::Finish, OnLostControl::Finish, OnLostControl::Stop]),
        ..plain(text)
    }
}

/// A run of this command, as it is when nobody asks for anything else.
pub fn plain(text: String) -> RunSpec {
    RunSpec {
        kind: RunKind::Task,
        command: Command::Shell(text),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        files: None,
        stdin: None,
        working_dir: None,
        resources: Resources { cpu_milli: None, memory_bytes: None },
        provider: "fake".to_owned(),
        region: "here".to_owned(),
        any_region: false,
        max_duration_ms: None,
        stop_duration_ms: 10 * SECOND,
        hold_ms: Some(0),
        budget: None,
        retry: None,
        priority: Priority::Normal,
        artifacts: Vec::new(),
        merge: false,
        on_lost_control: OnLostControl::Finish,
        failure_mode: FailureMode::FailFast,
        plan: Default::default(),
        nodes: 1,
        init_checksum: None,
    }
}
