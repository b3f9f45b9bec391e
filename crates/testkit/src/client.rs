//! Simulated users: each submits one run, and some later cancel, pause, retry or delete it. They repeat every request with its idempotency
//! key until it is answered. They never read the database.

use crate::cached_run;
use crate::chance::Chance;
use crate::machine::{Plan, Steps};
use crate::plans;
use engine::run::{Action, Plans, Submission};
use model::spec::{Command, OnLostControl, Priority, Resources, Retry, RetryEvent, RunKind, RunSpec};
use model::time::{MINUTE, SECOND};
use model::{Credits, OrgId, RunId};
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
    /// The run it had when the database was lost.
    pub lost: Option<RunId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Ask(Action),
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
    /// As a user of the other org, for whom the run does not exist.
    Meddle,
    /// Of a cached run: its result is to answer no more, or none is.
    Invalidate {
        all: bool,
    },
    /// As a caller that is no run, of the same call.
    Call {
        fresh: bool,
    },
    /// Results that answered no run for long go.
    Collect {
        older_than_ms: i64,
        max_bytes: i64,
    },
}

impl Client {
    pub fn draw(number: u64, chance: &mut Chance, from_ms: i64) -> Client {
        let ms = chance.pick(&[0, SECOND, 15 * SECOND, MINUTE, 4 * MINUTE]);
        let exit_code = chance.pick(&[0, 0, 0, 1, 7]);
        let text = Plan::text(ms + chance.between(0, 2000), exit_code, chance.pick(&[0, 30, 3000]));
        let text = if chance.one_in(4) { Steps::draw(chance).after(text) } else { text };
        let start = !chance.one_in(8);
        let mut wishes = Vec::new();
        if !start {
            wishes.push((from_ms + chance.between(0, MINUTE), Wish::Ask(Action::Start)));
        }
        let within_ms = chance.pick(&[20 * SECOND, 5 * MINUTE]);
        for _ in 0..chance.pick(&[0, 0, 1, 1, 3]) {
            wishes.push((from_ms + chance.between(0, within_ms), wish(chance)));
        }
        let of_agents = chance.one_in(3);
        if of_agents && chance.one_in(4) {
            let at = from_ms + chance.between(0, within_ms);
            wishes.push((at, Wish::Ask(Action::Pause)));
            wishes.push((at + chance.between(0, MINUTE), Wish::Ask(Action::Resume)));
        }
        wishes.sort_by_key(|(at, _)| -at);
        let org = usize::from(chance.one_in(3));
        let client = if of_agents {
            let (spec, plans) = plans::draw(number, chance);
            Client { plans, ..Client::of(number, spec) }
        } else if chance.one_in(8) {
            Client::of(number, external(chance))
        } else if start && chance.one_in(3) {
            for _ in 0..chance.pick(&[0, 0, 1, 2]) {
                wishes.push((from_ms + chance.between(0, 2 * within_ms), cached_run::wish(chance)));
            }
            wishes.sort_by_key(|(at, _)| -at);
            Client::of(number, cached_run::cached(spec(text, chance), chance))
        } else {
            Client::of(number, spec(text, chance))
        };
        Client { org, start, wishes, ..client }
    }

    /// A user who submits this run and does nothing else.
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
            lost: None,
        }
    }

    pub fn is_done(&self) -> bool {
        self.turned_away || (self.run.is_some() && self.wishes.is_empty())
    }

    pub fn submission(&self, org: OrgId) -> Submission {
        Submission {
            org,
            by: None,
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

fn wish(chance: &mut Chance) -> Wish {
    match chance.between(0, 10) {
        0 | 1 => Wish::Ask(Action::Cancel { abort: false }),
        2 => Wish::Ask(Action::Cancel { abort: true }),
        3 | 4 => Wish::Ask(Action::Retry { force: chance.one_in(3) }),
        5 => Wish::Delete,
        6 => Wish::Extend { ms: 2 * MINUTE },
        7 => Wish::Release,
        8 => Wish::Terminate { force: chance.one_in(2) },
        _ => Wish::Meddle,
    }
}

/// A run that a program outside drives.
fn external(chance: &mut Chance) -> RunSpec {
    let retry = chance.one_in(3).then(|| Retry {
        max_attempts: 2,
        on_events: vec![RetryEvent::Error],
        duration_ms: None,
        delay_ms: None,
    });
    RunSpec { kind: RunKind::External, command: Command::Argv(Vec::new()), retry, ..plain(String::new()) }
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
            gpu: None,
            disk_bytes: None,
        },
        any_region: chance.one_in(3),
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

/// A run of this command with all defaults.
pub fn plain(text: String) -> RunSpec {
    RunSpec { hold_ms: Some(0), ..RunSpec::task(Command::Shell(text), "fake", "here") }
}
