//! Cached runs of simulated users, and what must hold of them: an answer is what a command really did, a pin leads to a whole result, and
//! every execution ends.

use crate::book::Situation;
use crate::chance::Chance;
use crate::client::{Client, Wish, plain};
use crate::machine::Plan;
use crate::sim::Promise;
use crate::time::now;
use crate::world::World;
use calls::cached_run::RunValue;
use calls::call::value_of;
use calls::reach::available;
use calls::refs::RefName;
use calls::{NodeId, read, trie};
use engine::cache::{CountRender, Garbage, Invalid};
use engine::call::{CallAnswer, CallAsked, CallRender};
use engine::run::{Plans, Submission};
use engine::{Engine, EngineContext};
use model::plan::StepPlan;
use model::run::{Run, RunStatus};
use model::spec::{Cache, CallPart, Command, RunSpec};
use model::step::ToolKind;
use model::time::{MINUTE, SECOND};
use model::{Failure, OrgId, Refused, RunId};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::idempotency::Key;
use store::object::Objects;

/// The function whose calls are executed by runs.
const RUN: &str = "dml+exec://dml-exec-repl/run";
/// Rows of one org that are looked at.
const MANY: i64 = 10_000;
/// Records of one result.
const MAX_RECORDS: usize = 1_000;

/// The same few commands again and again, so that users meet each other's results.
pub fn cached(spec: RunSpec, chance: &mut Chance) -> RunSpec {
    let (ms, exit_code) = chance.pick(&[(0, 0), (15 * SECOND, 0), (15 * SECOND, 0), (2 * MINUTE, 0), (SECOND, 7)]);
    let salt = chance.pick(&["", "", "v2"]).to_owned();
    RunSpec {
        command: Command::Shell(Plan::text(ms, exit_code, 30)),
        call: Some(CallPart::Caller(Cache { salt, errors: chance.one_in(3) })),
        ..spec
    }
}

/// What users of cached runs do beside what all do.
pub fn wish(chance: &mut Chance) -> Wish {
    match chance.between(0, 8) {
        4..=6 => Wish::Call { fresh: false },
        7 => Wish::Call { fresh: true },
        0 => Wish::Invalidate { all: chance.one_in(2) },
        1 => Wish::Collect { older_than_ms: 0, max_bytes: chance.pick(&[0, i64::MAX]) },
        _ => Wish::Collect { older_than_ms: MINUTE, max_bytes: i64::MAX },
    }
}

/// A function's input, the document of a run, is here its whole specification.
pub fn document(_: &EngineContext, (org, _): (OrgId, &str), document: Json) -> Result<Submission, Failure> {
    let spec = serde_json::from_value(document).map_err(|error| Refused::invalid("inputs", error.to_string()))?;
    Ok(Submission { org, by: None, name: None, spec, plans: Plans::default(), start: true })
}

/// What a step of a plan calls: one of the commands that cached runs have, too.
pub fn step(chance: &mut Chance, name: &str) -> StepPlan {
    let spec = cached(plain(String::new()), chance);
    let input = json!({ "function": RUN, "inputs": [spec], "cache": !chance.one_in(6) });
    // Its agent may hold the only machine that the call could run on: 27 tries at three levels must be over within the life of a world.
    let timeout_ms = chance.pick(&[MINUTE, 3 * MINUTE]);
    StepPlan { idempotent: true, input, timeout_ms, ..StepPlan::new(name, ToolKind::Call) }
}

/// What a user that is no run asks for, and which situation that was.
fn call(engine: &Engine, client: &Client, org: OrgId, fresh: bool, key: Option<Key>) -> Result<Vec<u8>, Failure> {
    let input = serde_json::to_value(&client.spec).expect("a specification is plain data");
    let asked = CallAsked { org, function: RUN.to_owned(), inputs: vec![input], cache: !fresh };
    let render: CallRender = Arc::new(|seen| format!("{:?} {}", seen.id, seen.status).into_bytes());
    match now(engine.call(asked, key, render))? {
        CallAnswer::Hit(seen) => Ok(format!("hit {}", seen.node).into_bytes()),
        CallAnswer::Asked(answer) if answer.status < 400 => Ok(answer.body),
        CallAnswer::Asked(answer) => {
            Err(Refused::Conflict { why: String::from_utf8_lossy(&answer.body).into_owned() }.into())
        }
    }
}

/// The situation in which a user was answered.
pub fn met(wish: Wish, answer: &[u8]) -> Option<Situation> {
    match wish {
        Wish::Invalidate { .. } => Some(Situation::ResultsInvalidated),
        Wish::Collect { .. } => Some(Situation::ResultsCollected),
        Wish::Call { .. } if answer.starts_with(b"hit ") => Some(Situation::CallOfUserAnswered),
        Wish::Call { .. } => Some(Situation::CallOfUserExecuted),
        _ => None,
    }
}

/// A request about results, as the server's handlers make it.
pub fn request(
    engine: &Engine,
    (client, org): (&Client, OrgId),
    run: RunId,
    wish: Wish,
    key: Option<Key>,
) -> Result<Vec<u8>, Failure> {
    match wish {
        Wish::Call { fresh } => call(engine, client, org, fresh, key),
        Wish::Invalidate { all } => {
            let node = now(engine.run(org, run))?.call.and_then(|called| called.node.parse().ok());
            let what = match node.filter(|_| !all) {
                Some(node) => Invalid::Node(node),
                None => Invalid::Runs,
            };
            let render: CountRender = Arc::new(|count| count.to_string().into_bytes());
            now(engine.invalidate(org, what, key, render)).map(|answer| answer.body)
        }
        Wish::Collect { older_than_ms, max_bytes } => {
            let swept = now(engine.collect_garbage(org, Garbage { older_than_ms, max_bytes }))?;
            Ok(format!("{swept:?}").into_bytes())
        }
        _ => Err(Refused::Conflict { why: "not about results".into() }.into()),
    }
}

impl World {
    /// Executions that have not ended.
    pub fn open_executions(&self) -> usize {
        let orgs = self.orgs;
        let open = now(self.store.read("sim.executions", move |tx| {
            let mut open = 0;
            for org in orgs {
                let all = store::execution::page(tx, org, i64::MAX, MANY)?;
                open += all.iter().filter(|found| !found.it.status.is_end()).count();
            }
            Ok(open)
        }));
        open.expect("a database in memory is read")
    }

    /// Looks whether the work on a key has changed hands.
    pub fn look_at_claims(&self) {
        let orgs = self.orgs;
        let taken = now(self.store.read("sim.claims", move |tx| {
            let mut taken = false;
            for org in orgs {
                for found in store::execution::page(tx, org, i64::MAX, MANY)? {
                    let claim = store::claim::find(tx, org, &found.it.key)?;
                    taken |= claim.is_some_and(|claim| claim.fence > 1);
                }
            }
            Ok(taken)
        }));
        if taken.expect("a database in memory is read") {
            self.tool.book().meets(Situation::ClaimTakenOver);
        }
    }

    /// A caller has executed nothing, and says what the run that executed its call did.
    pub fn judge_caller(&mut self, client: usize, run: &Run) {
        let Some(called) = run.call.clone() else { return };
        if self.truth.of(run.id).next().is_some() {
            self.complain(Promise::NotRepeated, format!("{} waits for a result and was executed itself", run.id));
        }
        let by: Vec<_> = called.run.map(|by| self.truth.of(by).cloned().collect()).unwrap_or_default();
        let really = |code: i32| by.iter().any(|execution| execution.exit_code == Some(code));
        let said = run.exit_code.or((run.status == RunStatus::Completed).then_some(0));
        if let Some(code) = said.filter(|code| !really(*code)) {
            let what = format!("{} is said to have ended with {code}, and {:?} did not", run.id, called.run);
            self.complain(Promise::Safe, what);
        }
        if run.status == RunStatus::Completed && called.execution.is_none() {
            self.tool.book().meets(Situation::CallAnswered);
        }
        let shares = |other: &Client| other.run.is_some() && other.number != self.clients[client].number;
        let others: Vec<RunId> =
            self.clients.iter().filter(|other| shares(other)).filter_map(|other| other.run).collect();
        let shared = called.execution.is_some()
            && others.into_iter().any(|other| {
                let found = now(self.store.read("sim.run", move |tx| store::run::find(tx, other)));
                let found = found.expect("a database in memory is read").and_then(|run| run.call);
                found.is_some_and(|found| found.execution == called.execution)
            });
        if shared {
            self.tool.book().meets(Situation::CallShared);
        }
    }

    /// The value of every exec is what the run that it names really did.
    fn judge_execs(&mut self, org: OrgId) {
        let found = now(self.store.read("sim.execs", move |tx| {
            let mut found = Vec::new();
            for row in store::exec::page(tx, org, model::Timestamp(i64::MAX), MANY)? {
                let mut objects = Objects { tx, org };
                let value = read::exec(&mut objects, row.id)
                    .and_then(|exec| read::dag(&mut objects, exec.result))
                    .and_then(|dag| value_of(&mut objects, dag.root));
                let code = value.ok().flatten().and_then(|value| RunValue::read(&value)).map(|value| value.exit_code);
                found.push((row.run, row.ok, code));
            }
            Ok(found)
        }));
        for (run, ok, code) in found.expect("a database in memory is read") {
            // One that a collection has taken says nothing.
            let (Some(run), Some(code)) = (run, code) else { continue };
            let really = self.truth.of(run).any(|execution| execution.exit_code.map(i64::from) == Some(code));
            if !really || ok != (code == 0) {
                self.complain(Promise::Safe, format!("the result of {run} says {code} (ok: {ok}), and it did not"));
            }
        }
    }

    /// The rows of pins are the exec map of the index, and every pin leads to a result that is whole; no execution is left open.
    pub fn judge_results(&mut self) {
        if self.open_executions() > 0 {
            self.complain(Promise::Ends, "an execution never ends".to_owned());
        }
        for org in self.orgs {
            self.judge_execs(org);
            let judged = now(self.store.read("sim.pins", move |tx| {
                let rows: BTreeMap<NodeId, calls::ExecId> = store::pin::page(tx, org, "default", i64::MAX, MANY)?
                    .into_iter()
                    .map(|pin| (pin.node, pin.exec.id))
                    .collect();
                let index = store::refs::page(tx, org, "refs/index/", MANY)?
                    .into_iter()
                    .find_map(|(name, commit)| matches!(name, RefName::Index(_)).then_some(commit));
                let mut objects = Objects { tx, org };
                let mut map = BTreeMap::new();
                if let Some(index) = index {
                    let root = match read::commit(&mut objects, index) {
                        Ok(commit) => commit.execs,
                        Err(fault) => return Ok(Err(format!("the index of {org} is damaged: {fault}"))),
                    };
                    let mut pinned = |node, exec| {
                        map.insert(node, exec);
                    };
                    if let Err(fault) = trie::walk(&mut objects, root, &mut pinned) {
                        return Ok(Err(format!("the index of {org} is damaged: {fault}")));
                    }
                }
                if rows != map {
                    return Ok(Err(format!("the pins of {org} are not those of its index")));
                }
                for exec in rows.values() {
                    if let Err(fault) = available(&mut objects, (*exec).into(), MAX_RECORDS) {
                        return Ok(Err(format!("the result {exec} of {org} is pinned and not whole: {fault}")));
                    }
                }
                Ok(Ok(()))
            }));
            if let Err(what) = judged.expect("a database in memory is read") {
                self.complain(Promise::Safe, what);
            }
        }
    }
}
