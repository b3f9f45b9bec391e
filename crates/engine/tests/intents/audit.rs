//! The audit sees each invariant broken. The damage is planted with statements of this file, since no function of the store can do it.

use crate::agents::{agent, once, step, submit_agents, task};
use crate::bench::{Bench, now, spec};
use crate::dialogues;
use crate::machines::Plan;
use adapters::tool::fake::Fate;
use engine::artifact::Announcement;
use engine::audit::Broken;
use model::RunId;
use model::run::RunStatus;
use model::spec::RunSpec;
use model::time::{DAY, HOUR, MINUTE, SECOND};
use store::artifact::{Artifact, EntryKind};
use store::blob::BlobName;
use store::{Lane, Sql, Value, WorkKind, worker};

fn broken(bench: &Bench, invariant: &str) -> Vec<Broken> {
    let audit = now(bench.engine.audit()).unwrap();
    audit.broken.into_iter().filter(|broken| broken.invariant == invariant).collect()
}

/// Exactly this is reported of this invariant, and nothing of any other.
#[track_caller]
fn expect(bench: &Bench, invariant: &str, subject: &str, detail: &str) {
    let audit = now(bench.engine.audit()).unwrap();
    let [found] = &audit.broken[..] else { panic!("one thing is broken: {:#?}", audit.broken) };
    assert_eq!((found.invariant, found.subject.as_str()), (invariant, subject), "{found:?}");
    assert!(found.detail.contains(detail), "{found:?}");
}

fn plant(bench: &Bench, statement: &'static str, args: Vec<Value>) {
    let planted = bench.store.write(Lane::Normal, "test.plant", move |tx| {
        tx.exec(&Sql::new(Box::leak(statement.to_owned().into_boxed_str())), &args)?;
        Ok(())
    });
    now(planted).unwrap();
}

/// Rows that the table's constraints refuse: a copy of the table without them takes its place.
fn without_constraints(bench: &Bench, table: [&'static str; 2]) {
    table.into_iter().for_each(|statement| plant(bench, statement, Vec::new()));
}

const ARTIFACTS: [&str; 2] = ["ALTER TABLE artifacts RENAME TO was", "CREATE TABLE artifacts AS SELECT * FROM was"];
const KEYS: [&str; 2] = ["ALTER TABLE idempotency RENAME TO was", "CREATE TABLE idempotency AS SELECT * FROM was"];

/// A run that has ended and left one artifact.
fn with_artifact() -> (Bench, RunId, Artifact) {
    let mut bench = Bench::brief();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(RunSpec { artifacts: vec!["out/**".into()], ..spec() });
    bench.settle();
    let job = bench.job(run);
    let what = EntryKind::File { mode: 0o644 };
    let new = Announcement { job: job.id, epoch: job.epoch, path: "out/a".into(), size: 2, what };
    let artifact = now(bench.engine.announce_artifact(job.instance.unwrap(), new)).unwrap();
    let mut upload = bench.engine.blobs.begin().unwrap();
    upload.write(b"ok").unwrap();
    now(bench.engine.keep_artifact(&artifact, upload)).unwrap();
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench.check();
    (bench, run, artifact)
}

#[test]
fn an_artifact_without_a_run_is_reported() {
    let (bench, _, artifact) = with_artifact();
    plant(&bench, "UPDATE artifacts SET run_id = 999", vec![]);
    expect(&bench, "4 artifacts", &artifact.id.to_string(), "has no run");
}

#[test]
fn an_artifact_of_another_orgs_run_is_reported() {
    let (bench, _, artifact) = with_artifact();
    plant(&bench, "UPDATE artifacts SET org_id = org_id + 1", vec![]);
    expect(&bench, "4 artifacts", &artifact.id.to_string(), "has no run");
}

#[test]
fn an_artifact_of_an_attempt_that_never_was_is_reported() {
    let (bench, _, artifact) = with_artifact();
    plant(&bench, "UPDATE artifacts SET attempt = 7", vec![]);
    expect(&bench, "4 artifacts", &artifact.id.to_string(), "of attempt 7, which");
}

#[test]
fn two_artifacts_of_one_name_are_reported() {
    let (bench, _, artifact) = with_artifact();
    without_constraints(&bench, ARTIFACTS);
    bench.check();
    plant(
        &bench,
        "INSERT INTO artifacts (id, org_id, run_id, attempt, path, kind, mode, state, size, created_at)
         SELECT id + 1, org_id, run_id, attempt, path, kind, mode, 'final', size, created_at FROM artifacts",
        vec![],
    );
    let second = model::ArtifactId(artifact.id.0 + 1).to_string();
    expect(&bench, "4 artifacts", &second, "another of attempt 1 has the name out/a");
}

#[test]
fn a_key_without_a_response_is_reported() {
    let mut bench = Bench::brief();
    bench.submit(spec());
    bench.settle();
    bench.check();
    assert!(now(bench.engine.audit()).unwrap().checked["idempotency keys"] > 0);
    for half in ["UPDATE idempotency SET status = NULL", "UPDATE idempotency SET status = 201, body = NULL"] {
        plant(&bench, half, vec![]);
        let found = broken(&bench, "5 keys");
        assert!(found.len() == 1 && found[0].detail == "stored without its response", "{found:?}");
    }
}

#[test]
fn a_key_with_two_responses_is_reported() {
    let mut bench = Bench::brief();
    bench.submit(spec());
    bench.settle();
    without_constraints(&bench, KEYS);
    bench.check();
    plant(&bench, "INSERT INTO idempotency SELECT org_id, route, key, hash, 500, body, at FROM idempotency", vec![]);
    let found = broken(&bench, "5 keys");
    assert!(found.len() == 1 && found[0].detail == "stored 2 times", "{found:?}");
}

#[test]
fn bytes_past_their_expiry_are_reported() {
    let (mut bench, _, artifact) = with_artifact();
    let id = artifact.id.to_string();
    let expiry = |bench: &Bench, ago_ms: i64| {
        let at = bench.at() - ago_ms;
        plant(bench, "UPDATE artifacts SET expires_at = $1", vec![Value::from(at)]);
    };
    let within = bench.engine.context.config.timings.sweep_every_ms + HOUR;
    expiry(&bench, within - SECOND);
    bench.check(); // the sweep has time
    expiry(&bench, within + SECOND);
    expect(&bench, "8 expiry", &id, "overdue");
    let lease = bench.at() - HOUR;
    plant(&bench, "UPDATE artifacts SET lease_until = $1", vec![Value::from(lease)]);
    bench.check(); // a download delayed it
    // During an outage no worker could delete anything.
    bench.outage(DAY);
    assert_eq!(broken(&bench, "8 expiry"), []);
    bench.advance(2 * HOUR);
    bench.check();
    // The row remains when the bytes are gone; a row that says so must be right.
    let mut upload = bench.engine.blobs.begin().unwrap();
    upload.write(b"ok").unwrap();
    let Artifact { org, run, attempt, .. } = artifact;
    upload.keep(&BlobName::Artifact { org, run, attempt, artifact: artifact.id }).unwrap();
    expect(&bench, "8 expiry", &id, "marked as deleted, and its bytes are there");
}

#[test]
fn an_item_that_a_dead_worker_holds_has_no_owner() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let run = bench.submit(spec());
    bench.settle();
    let overdue = |bench: &Bench| {
        let found = broken(bench, "7 owner").into_iter().map(|broken| broken.detail);
        found.filter(|detail| detail.contains("held by a dead worker")).count()
    };
    // Another worker takes everything that is due now.
    let other = now(bench.store.write(Lane::Normal, "test.claim", move |tx| {
        let at = tx.at();
        tx.wake(WorkKind::Run, run.0, at);
        worker::start(tx, "other")
    }));
    let (other, renewed) = (other.as_ref().unwrap().clone(), other.unwrap());
    let claimed = now(bench
        .store
        .write(Lane::Normal, "test.claim", move |tx| store::work::claim(tx, &other, store::WorkClass::Control, 100)));
    assert!(claimed.unwrap().iter().any(|item| item.subject == run.0), "it holds the run's item");
    for _ in 0..3 {
        bench.pass(MINUTE);
        let renewed = renewed.clone();
        now(bench.store.write(Lane::Normal, "test.renew", move |tx| worker::renew(tx, &renewed))).unwrap();
        assert_eq!(overdue(&bench), 0, "however long a living worker holds it");
    }
    bench.pass(worker::LEASE_MS + 50 * SECOND);
    assert_eq!(overdue(&bench), 0, "another worker has a minute to take it over");
    bench.pass(20 * SECOND);
    assert_eq!(overdue(&bench), 1);
    bench.settle();
    bench.check(); // taken over
}

#[test]
fn what_waits_behind_a_suspect_is_reported_after_a_quarter_of_an_hour() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let (waits, suspect) = (bench.submit(spec()), bench.submit(spec()));
    bench.settle();
    let reports = |since_ms: i64, deaths: i64| {
        let due = bench.at() - since_ms;
        plant(&bench, "UPDATE work SET due = $1 WHERE kind = 'run'", vec![Value::from(due)]);
        let row = vec![Value::from(deaths), Value::from(suspect.0)];
        plant(&bench, "UPDATE work SET deaths = $1 WHERE kind = 'run' AND subject = $2", row);
        let found = broken(&bench, "7 owner");
        found.iter().any(|broken| broken.subject == waits.to_string())
    };
    assert!(!reports(50 * SECOND, 0));
    assert!(reports(2 * MINUTE, 0));
    assert!(reports(2 * MINUTE, store::work::SUSPECT_AFTER - 1), "one death is no evidence");
    assert!(!reports(2 * MINUTE, store::work::SUSPECT_AFTER), "the other item is worked on alone first");
    assert!(reports(16 * MINUTE, store::work::SUSPECT_AFTER));
}

/// An agent in its first task: one step has ended, one hangs, one has not begun.
fn of_agents() -> Bench {
    let mut bench = Bench::brief();
    bench.tool.decide_by(Box::new(|call, _| match call.input["of"] == "hang" {
        true => Fate::hang(),
        false => Fate::answer(call.input.clone()),
    }));
    let first = task("first", vec![step("a"), once("hang"), step("b")]);
    submit_agents(&mut bench, vec![agent("one", vec![first, task("second", vec![step("c")])])]);
    bench.settle();
    assert_eq!(bench.tool.hanging().len(), 1);
    bench
}

/// A model's dialogue that has ended.
fn of_a_dialogue() -> Bench {
    let mut bench = Bench::brief();
    bench.tool.decide_by(Box::new(|call, _| dialogues::talks(call)));
    let run = dialogues::begin(&mut bench);
    bench.advance(MINUTE);
    assert_eq!(bench.run(run).status, RunStatus::Completed);
    bench
}

/// A command that runs on a machine and was charged for a while.
fn running() -> Bench {
    let mut bench = Bench::brief();
    bench.running(spec());
    bench.advance(3 * MINUTE);
    bench
}

/// A command that has ended; its machine is still there.
fn ended() -> Bench {
    let mut bench = Bench::brief();
    let run = bench.running(spec());
    bench.advance(3 * MINUTE);
    bench.exits(run, 0);
    bench.expect_end(run, RunStatus::Completed, None);
    bench
}

/// Where it is planted, the damage, and what the audit says of it: the invariant, and part of the detail.
type Damage = (fn() -> Bench, &'static [&'static str], &'static str, &'static str);

const RENAMED: &str = "ALTER TABLE attempts RENAME TO was";
const COPIED: &str = "CREATE TABLE attempts AS SELECT * FROM was";

const DAMAGES: &[Damage] = &[
    // What is stored twice.
    (running, &["UPDATE runs SET status = 'paused'"], "projection", "paused"),
    (running, &["UPDATE runs SET open = 0"], "projection", "false"),
    // Counters, at every level.
    (of_agents, &["UPDATE runs SET doc = json_set(doc, '$.agent_count', 7)"], "2 hierarchy", "(7, 2, 3)"),
    (of_agents, &["UPDATE runs SET doc = json_set(doc, '$.task_count', 7)"], "2 hierarchy", "(1, 7, 3)"),
    (of_agents, &["UPDATE runs SET doc = json_set(doc, '$.step_count', 7)"], "2 hierarchy", "(1, 2, 7)"),
    (of_agents, &["UPDATE attempts SET tree = json_set(tree, '$.agents.completed', 7)"], "2 counters", "completed: 7"),
    (of_agents, &["UPDATE attempts SET tree = json_set(tree, '$.superseded', 7)"], "2 counters", "7)"),
    (of_agents, &["UPDATE attempts SET tree = json_set(tree, '$.in_flight', 7)"], "2 counters", "the attempt says 7"),
    (running, &["UPDATE attempts SET tree = json_set(tree, '$.jobs.queued', 7)"], "2 counters", "what its jobs say"),
    (of_agents, &["UPDATE agents SET doc = json_set(doc, '$.tasks.completed', 7)"], "2 counters", "completed: 7"),
    (of_agents, &["UPDATE agents SET doc = json_set(doc, '$.task_count', 7)"], "2 counters", "[Running, Pending]"),
    (of_agents, &["UPDATE tasks SET doc = json_set(doc, '$.steps.completed', 7)"], "2 counters", "completed: 7"),
    (of_a_dialogue, &["UPDATE steps SET doc = json_set(doc, '$.children.failed', 7)"], "2 counters", "failed: 7"),
    (of_a_dialogue, &["DELETE FROM steps WHERE parent_id IS NOT NULL"], "2 counters", "for children"),
    (of_agents, &["UPDATE tasks SET doc = json_set(doc, '$.step_count', 7)"], "2 counters", "[Completed, Running"),
    (of_agents, &["DELETE FROM agents"], "2 hierarchy", "tasks of an agent that does not exist"),
    (of_agents, &["DELETE FROM tasks"], "2 hierarchy", "steps of a task that does not exist"),
    (
        of_a_dialogue,
        &["DELETE FROM steps WHERE parent_id IS NULL"],
        "2 hierarchy",
        "children of a step that does not exist",
    ),
    (running, &["DELETE FROM agents"], "2 hierarchy", "a job of agent"),
    // No parent has more at work than it may.
    (of_agents, &["UPDATE agents SET doc = json_set(doc, '$.parallel', 0)"], "2 limits", "1 run at once, 0 may"),
    (of_agents, &["UPDATE tasks SET doc = json_set(doc, '$.parallel', 0)"], "2 limits", "1 run at once, 0 may"),
    (
        of_agents,
        &["UPDATE runs SET doc = json_set(doc, '$.spec.plan.max_agents', 0)"],
        "2 limits",
        "1 run at once, 0 may",
    ),
    // What has ended has no open children.
    (of_agents, &["UPDATE tasks SET doc = json_set(doc, '$.status', 'completed')"], "2 counters", "completed with"),
    (of_agents, &["UPDATE agents SET doc = json_set(doc, '$.status', 'completed')"], "2 counters", "completed with"),
    // What a run says fits what its agents and jobs say.
    (ended, &["UPDATE agents SET doc = json_set(doc, '$.status', 'failed')"], "3 states", "completed with agents"),
    (of_agents, &["UPDATE agents SET doc = json_set(doc, '$.status', 'completed')"], "3 states", "running with agents"),
    (of_agents, &["UPDATE runs SET doc = json_set(doc, '$.status', 'failed')"], "3 states", "failed with agents"),
    (of_agents, &["UPDATE runs SET doc = json_set(doc, '$.status', 'cancelled')"], "3 states", "cancelled with agents"),
    (ended, &["UPDATE jobs SET doc = json_set(doc, '$.status', 'running')"], "3 states", "1 open jobs"),
    (ended, &["UPDATE attempts SET status = 'open'"], "3 states", "its attempt open"),
    (
        running,
        &[
            "ALTER TABLE jobs RENAME TO jobs_were",
            "CREATE TABLE jobs AS SELECT * FROM jobs_were",
            "INSERT INTO jobs SELECT * FROM jobs_were",
        ],
        "one live job an agent",
        "2 are open",
    ),
    // Credits: of the attempt, of what was used, of the org.
    (running, &["UPDATE attempts SET charged = charged + 1"], "1 credits", "attempt"),
    (running, &["UPDATE usage SET charged = charged + 1"], "1 credits", "usage"),
    (running, &["UPDATE orgs SET available = available + 1"], "1 credits", "the balance says"),
    (running, &["UPDATE orgs SET reserved = reserved + 1"], "1 credits", "the balance says"),
    (running, &[RENAMED, COPIED, "UPDATE attempts SET charged = reserved + 1"], "1 credits", "reserved"),
    (ended, &[RENAMED, COPIED, "UPDATE attempts SET refunded = refunded - 1"], "1 credits", "is not"),
    (
        of_agents,
        &["UPDATE steps SET doc = json_set(doc, '$.held', 7) WHERE state = 'completed'"],
        "1 credits",
        "set aside",
    ),
    // The ledger is one chain.
    (
        ended,
        &["DROP TRIGGER ledger_is_never_changed", "UPDATE ledger SET amount = amount + 1 WHERE seq = 2"],
        "6 ledger",
        "row 2 does not follow",
    ),
    (
        ended,
        &["DROP TRIGGER ledger_is_never_changed", "UPDATE ledger SET hash = x'00' WHERE seq = 2"],
        "6 ledger",
        "row 3 does not follow",
    ),
    (
        ended,
        &["DROP TRIGGER ledger_is_never_deleted", "DELETE FROM ledger WHERE seq = 2"],
        "6 ledger",
        "row 3 does not follow",
    ),
    (
        ended,
        &["DROP TRIGGER ledger_is_never_deleted", "DELETE FROM ledger WHERE seq = (SELECT max(seq) FROM ledger)"],
        "6 ledger",
        "the org says row",
    ),
    // Events are numbered without gaps.
    (ended, &["DELETE FROM events WHERE seq = 2"], "events gapless", "are numbered from 1"),
    (ended, &["DELETE FROM events WHERE seq = 1"], "events gapless", "are numbered from 2"),
    (ended, &["UPDATE event_heads SET last = last + 1"], "events gapless", "the head says"),
    // Something wakes an open run.
    (running, &["DELETE FROM work"], "7 owner", "nothing will ever wake it"),
    // Machines and slots.
    (running, &["DELETE FROM resources"], "nothing untracked", "no manifest owns it"),
    (ended, &["DELETE FROM allocations"], "a machine has a slot", "without a slot"),
    (running, &["UPDATE jobs SET open = 0"], "one job an instance", "open jobs []"),
];

#[test]
fn every_invariant_that_is_broken_is_named() {
    let mut silent = Vec::new();
    for (world, statements, invariant, detail) in DAMAGES {
        let bench = world();
        let audit = now(bench.engine.audit()).unwrap();
        assert_eq!(audit.broken, [], "before {statements:?}");
        for statement in *statements {
            // A `$` in a statement of the store begins a parameter.
            plant(&bench, statement.replace("'$.", "char(36) || '.").leak(), Vec::new());
        }
        let found = broken(&bench, invariant);
        if !found.iter().any(|broken| broken.detail.contains(detail)) {
            silent.push(format!("{statements:?}: {found:#?}"));
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}
