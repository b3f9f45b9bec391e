//! People in the simulated world: each submits one run, and some change their minds. They repeat every request with its key
//! until it is answered. Never looks at a database.

use crate::chance::Chance;
use crate::machine::Plan;
use engine::run::{Action, Submission};
use model::spec::{Command, FailureMode, OnLostControl, Priority, Resources, Retry, RetryEvent, RunKind, RunSpec};
use model::time::{MINUTE, SECOND};
use model::{OrgId, RunId};
use std::collections::BTreeMap;
use store::idempotency::Key;

pub struct Client {
    pub number: u64,
    pub spec: RunSpec,
    pub run: Option<RunId>,
    /// When to ask for what, soonest last.
    pub wishes: Vec<(i64, Action)>,
    /// A retry that was accepted: the command may run once more.
    pub retries: i64,
}

impl Client {
    pub fn draw(number: u64, provider: &str, region: &str, chance: &mut Chance, from_ms: i64) -> Client {
        let ms = chance.pick(&[0, SECOND, 20 * SECOND, 3 * MINUTE, 12 * MINUTE]);
        let exit_code = chance.pick(&[0, 0, 0, 1, 7]);
        let text = Plan::text(ms + chance.between(0, 2000), exit_code, chance.pick(&[0, 30, 3000]));
        let mut wishes = Vec::new();
        if chance.between(0, 4) == 0 {
            let abort = chance.between(0, 2) == 0;
            wishes.push((from_ms + chance.between(0, 10 * MINUTE), Action::Cancel { abort }));
        }
        if chance.between(0, 4) == 0 {
            wishes.push((from_ms + chance.between(0, 25 * MINUTE), Action::Retry { force: false }));
        }
        wishes.sort_by_key(|(at, _)| -at);
        Client { number, spec: spec(text, provider, region, chance), run: None, wishes, retries: 0 }
    }

    pub fn submission(&self, org: OrgId) -> Submission {
        Submission { org, name: Some(format!("sim-{}", self.number)), spec: self.spec.clone(), start: true }
    }

    /// Each request has its key: the first one and the repetitions are one request.
    pub fn key(&self, org: OrgId) -> Key {
        let what = self.run.map_or("POST /runs".to_owned(), |run| format!("POST /runs/{run}"));
        Key { org, route: what, key: format!("{}-{}", self.number, self.wishes.len()), hash: [self.number as u8; 32] }
    }
}

fn spec(text: String, provider: &str, region: &str, chance: &mut Chance) -> RunSpec {
    let events = [vec![RetryEvent::Error], vec![RetryEvent::Interruption, RetryEvent::NoCapacity]];
    let retry = (chance.between(0, 3) == 0).then(|| Retry {
        max_attempts: chance.between(2, 4),
        on_events: events[chance.between(0, 2) as usize].clone(),
        duration_ms: None,
    });
    RunSpec {
        kind: RunKind::Task,
        command: Command::Shell(text),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        files: Vec::new(),
        working_dir: None,
        resources: Resources {
            cpu_milli: None,
            memory_bytes: chance.pick(&[None, None, Some(1 << 30), Some(4 << 30)]),
        },
        provider: provider.to_owned(),
        region: region.to_owned(),
        max_duration_ms: chance.pick(&[None, None, Some(2 * MINUTE)]),
        stop_duration_ms: chance.pick(&[0, 10 * SECOND]),
        hold_ms: chance.pick(&[None, Some(0)]),
        budget: None,
        retry,
        priority: chance.pick(&[Priority::Normal, Priority::Normal, Priority::High]),
        artifacts: Vec::new(),
        merge: false,
        on_lost_control: OnLostControl::Finish,
        failure_mode: FailureMode::FailFast,
        init_checksum: None,
    }
}
