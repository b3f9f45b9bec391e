//! What becomes of results and of their executions beside runs that go well: collections, invalidations, items that kill their workers.

use crate::bench::{Bench, now, settings, spec};
use crate::cached_runs::{cached, is_hit, salted};
use crate::machines::Plan;
use calls::NodeId;
use calls::record::Node;
use engine::Config;
use engine::cache::{Garbage, Invalid};
use engine::dag::{Expect, SetRef, ref_of};
use engine::run::Submission;
use model::execution::ExecutionStatus;
use model::run::{Run, RunStatus};
use model::spec::RunSpec;
use model::time::{DAY, HOUR, MINUTE};
use model::{CallId, OrgId, RunId};
use store::object::Objects;
use store::{Item, Lane, Sql, Tx, WorkClass, WorkKind, args};

fn read<T: Send + 'static>(
    bench: &Bench,
    look: impl Fn(&mut Tx) -> Result<T, model::Failure> + Send + Sync + 'static,
) -> T {
    now(bench.store.read("test.look", look)).unwrap()
}

pub fn write<T: Send + 'static>(
    bench: &Bench,
    act: impl Fn(&mut Tx) -> Result<T, model::Failure> + Send + Sync + 'static,
) -> T {
    now(bench.store.write(Lane::Normal, "test.act", act)).unwrap()
}

fn submit_as(bench: &Bench, org: OrgId, spec: RunSpec) -> RunId {
    let submission = Submission { org, by: None, name: None, spec, plans: Default::default(), start: true };
    let answer = now(bench.engine.submit(submission, None, crate::bench::shown())).unwrap();
    String::from_utf8(answer.body).unwrap().parse().unwrap()
}

/// The run that executes what a caller waits for.
fn executes(bench: &Bench, caller: RunId) -> Run {
    bench.run(bench.run(caller).call.unwrap().run.unwrap())
}

pub fn executions(bench: &Bench, org: OrgId) -> Vec<store::execution::Numbered> {
    read(bench, move |tx| store::execution::page(tx, org, i64::MAX, 100))
}

fn pins(bench: &Bench, org: OrgId) -> i64 {
    let projects = read(bench, move |tx| store::pin::projects(tx, org, 10));
    projects.iter().map(|(_, count)| count).sum()
}

fn invalidate(bench: &Bench, what: Invalid) -> String {
    let count: engine::cache::CountRender = std::sync::Arc::new(|count| count.to_string().into_bytes());
    let answer = now(bench.engine.invalidate(bench.org, what, None, count)).unwrap();
    String::from_utf8(answer.body).unwrap()
}

const ALL: Garbage = Garbage { older_than_ms: 0, max_bytes: 0 };

#[test]
fn a_record_that_is_damaged_keeps_no_other_org_from_being_collected() {
    let mut bench = Bench::new();
    let other = now(bench.engine.ensure_org("other")).unwrap();
    let org = bench.org;
    assert!(other.0 > org.0, "the damaged one is looked at first");
    bench.submit(cached(spec()));
    submit_as(&bench, other, cached(spec()));
    bench.settle();
    let head = SetRef { name: ref_of("main").unwrap(), from: "index".into(), expect: Expect::Anything, force: false };
    let head = now(bench.engine.set_ref(org, head)).unwrap().commit;
    write(&bench, move |tx| {
        let root = calls::read::commit(&mut Objects { tx, org }, head).unwrap().execs;
        store::object::delete(tx, org, root.unwrap().0, model::Timestamp(i64::MAX))
    });
    let (objects, _) = read(&bench, move |tx| store::object::count(tx, other));
    bench.jump(100 * DAY);
    bench.advance(MINUTE);
    assert_eq!(pins(&bench, other), 0, "its result was unused for 90 days");
    bench.jump(2 * DAY);
    bench.advance(MINUTE);
    let (left, _) = read(&bench, move |tx| store::object::count(tx, other));
    assert!(left < objects, "{left} of {objects} objects are left");
    let asked = now(bench.engine.collect_garbage(org, ALL));
    let said = asked.unwrap_err().to_string();
    assert!(said.contains("missing") && said.contains("damaged"), "{said}");
}

#[test]
fn what_another_project_has_pinned_is_collected_too_and_counts() {
    let mut config = Config::default();
    config.calls.project = "earlier".into();
    let mut bench = Bench::with(settings(2), config);
    bench.submit(cached(spec()));
    bench.settle();
    bench.advance(HOUR);
    bench.config.calls.project = "later".into();
    bench.restart();
    let run = bench.submit(cached(spec()));
    assert!(!is_hit(&bench, run), "results of one project answer no run of another");
    bench.settle();
    assert_eq!(pins(&bench, bench.org), 2);
    let bytes = now(bench.engine.pins(bench.org, i64::MAX, 10)).unwrap()[0].exec.bytes;
    let one = Garbage { older_than_ms: DAY, max_bytes: 2 * bytes - 1 };
    assert_eq!(now(bench.engine.collect_garbage(bench.org, one)).unwrap().pins, 1, "the limit is of the org");
    let hit = bench.submit(cached(spec()));
    assert!(is_hit(&bench, hit), "what was used longest ago went first");
    bench.config.calls.project = "last".into();
    bench.restart();
    bench.jump(DAY + HOUR);
    assert_eq!(now(bench.engine.collect_garbage(bench.org, Garbage { older_than_ms: DAY, ..one })).unwrap().pins, 1);
    assert_eq!(pins(&bench, bench.org), 0);
    bench.check();
}

#[test]
fn an_execution_that_ended_long_ago_goes_and_its_attempt_comes_never_again() {
    let mut bench = Bench::new();
    bench.submit(cached(spec()));
    bench.settle();
    let first = executions(&bench, bench.org).remove(0);
    bench.jump(80 * DAY);
    bench.advance(MINUTE);
    assert_eq!(executions(&bench, bench.org).len(), 1, "people look it up");
    bench.jump(20 * DAY);
    bench.advance(MINUTE);
    assert_eq!(executions(&bench, bench.org), []);
    for attempt in [2, 3] {
        let caller = bench.submit(cached(spec()));
        assert!(!is_hit(&bench, caller));
        let second = executions(&bench, bench.org).remove(0);
        assert_eq!((second.it.key, second.it.attempt), (first.it.key.clone(), attempt));
        bench.settle();
        assert_eq!(bench.run(caller).status, RunStatus::Completed);
        now(bench.engine.collect_garbage(bench.org, ALL)).unwrap();
    }
    bench.check();
}

/// The item of an execution, as a worker claims it whose predecessors have died on it.
pub fn dead_item(bench: &Bench, execution: i64) -> Item {
    write(bench, move |tx| {
        let at = tx.at();
        tx.wake(WorkKind::Execution, execution, at);
        Ok(())
    });
    let claimed = now(bench.engine.claim(&bench.worker, WorkClass::Control, 32)).unwrap();
    let (mine, others): (Vec<Item>, Vec<Item>) =
        claimed.into_iter().partition(|item| (item.kind, item.subject) == (WorkKind::Execution, execution));
    others.into_iter().for_each(|item| now(bench.engine.work_on(item)));
    Item { dead: true, ..mine[0] }
}

#[test]
fn an_execution_that_kills_its_workers_ends_and_its_callers_are_told() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let caller = bench.submit(cached(spec()));
    bench.settle();
    let id = bench.run(caller).call.unwrap().execution.unwrap();
    let backend = executes(&bench, caller).id;
    now(bench.engine.work_on(dead_item(&bench, id)));
    bench.settle();
    let it = executions(&bench, bench.org).remove(0).it;
    let said = it.error.unwrap();
    assert_eq!((it.status, said.code.as_str(), it.gave_up), (ExecutionStatus::FailedTerminal, "poisoned", true));
    let told = bench.run(caller);
    assert_eq!((told.status, told.last_error.unwrap().code), (RunStatus::Failed, "poisoned".to_owned()));
    assert_eq!(bench.run(backend).status, RunStatus::Cancelled, "nobody waits for it any more");
    let again = bench.submit(cached(spec()));
    assert_eq!(bench.run(again).status, RunStatus::Created, "it is executed again");
    bench.cancel(again);
    bench.settle();
    bench.check();
    bench.check_all_gone();
}

/// The end itself may be what the workers die of: then the callers are failed where the item is given up.
#[test]
fn callers_of_an_execution_that_kills_its_workers_after_its_end_are_failed() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let caller = bench.submit(cached(spec()));
    bench.settle();
    let id = bench.run(caller).call.unwrap().execution.unwrap();
    now(bench.engine.work_on(dead_item(&bench, id)));
    now(bench.engine.work_on(dead_item(&bench, id)));
    let told = bench.run(caller);
    assert_eq!((told.status, told.last_error.unwrap().code), (RunStatus::Failed, "poisoned".to_owned()));
    bench.settle();
    bench.check();
    bench.check_all_gone();
}

#[test]
fn what_is_executed_while_its_result_is_invalidated_answers_its_callers_and_nobody_after_them() {
    let whats: [fn(NodeId) -> Invalid; 2] =
        [Invalid::Node, |_| Invalid::Function(calls::cached_run::FUNCTION.to_owned())];
    for (other_is_shared, what) in [true, false].into_iter().zip(whats) {
        let mut bench = Bench::with(settings(5), Config::default());
        bench.runners.plan = Some(Plan::Run);
        let before = bench.submit(cached(spec()));
        let other = bench.submit(salted(spec(), "other"));
        bench.settle();
        let (old, node) = (executes(&bench, before).id, bench.run(before).call.unwrap().node.parse().unwrap());
        assert_eq!(invalidate(&bench, what(node)), "0");
        let later = bench.submit(cached(spec()));
        let also = bench.submit(salted(spec(), "other"));
        bench.settle();
        let new = executes(&bench, later).id;
        assert_ne!(new, old, "who asks now has an execution of now");
        let shared = executes(&bench, also).id == executes(&bench, other).id;
        assert_eq!(shared, other_is_shared, "another call is meant by its function alone");
        bench.exits(old, 0);
        bench.settle();
        assert_eq!((bench.run(before).status, bench.run(later).status), (RunStatus::Completed, RunStatus::Created));
        let after = bench.submit(cached(spec()));
        assert!(!is_hit(&bench, after), "nobody is answered with what was invalidated");
        bench.exits(new, 0);
        bench.settle();
        let hit = bench.submit(cached(spec()));
        assert!(is_hit(&bench, hit) && executes(&bench, hit).id == new);
        assert_eq!(bench.run(after).status, RunStatus::Completed);
        for left in [other, also] {
            bench.cancel(left);
        }
        bench.settle();
        bench.check();
    }
}

/// What the audit says of pins.
pub fn flaws(bench: &Bench) -> Vec<String> {
    let audit = now(bench.engine.audit()).unwrap();
    audit.broken.into_iter().filter(|it| it.invariant == "9 pins").map(|it| it.detail).collect()
}

#[test]
fn rows_of_pins_that_differ_from_the_index_are_reported_and_made_again() {
    let mut bench = Bench::new();
    let runs = ["gone", "other", "extra", "unlisted"].map(|salt| bench.submit(salted(spec(), salt)));
    bench.settle();
    assert_eq!(flaws(&bench), [""; 0]);
    assert_eq!(now(bench.engine.audit()).unwrap().checked["pins"], 4);
    let nodes: Vec<NodeId> = runs.map(|run| bench.run(run).call.unwrap().node.parse().unwrap()).into();
    let org = bench.org;
    let before = read(&bench, move |tx| store::pin::after(tx, org, "default", None, 10));
    let exec = |node: NodeId| before.iter().find(|(of, _)| *of == node).unwrap().1;
    let (gone, other, unlisted) = (nodes[0], nodes[1], exec(nodes[3]));
    let foreign = exec(nodes[2]);
    let unknown = NodeId(calls::Id([7; 32]));
    write(&bench, move |tx| {
        store::pin::remove(tx, org, "default", gone)?;
        store::pin::set(tx, org, "default", other, foreign)?;
        store::pin::set(tx, org, "default", unknown, foreign)?;
        store::exec::forget(tx, org, unlisted)
    });
    let said = flaws(&bench);
    for part in ["no row does", "another exec", "is not in the index", "its exec has no row"] {
        assert_eq!(said.iter().filter(|detail| detail.contains(part)).count(), 1, "{part}: {said:#?}");
    }
    let rebuilt = now(bench.engine.rebuild_pins(bench.org)).unwrap();
    assert_eq!((rebuilt.made, rebuilt.removed, rebuilt.execs, rebuilt.damaged), (2, 1, 1, 0));
    assert_eq!(read(&bench, move |tx| store::pin::after(tx, org, "default", None, 10)), before);
    assert_eq!(flaws(&bench), [""; 0]);
    for salt in ["gone", "other", "extra", "unlisted"] {
        let hit = bench.submit(salted(spec(), salt));
        assert!(is_hit(&bench, hit), "{salt}");
    }
    let row = read(&bench, move |tx| store::exec::find(tx, org, unlisted)).unwrap();
    assert_eq!(
        (row.function.as_str(), row.ok, row.run),
        (calls::cached_run::FUNCTION, true, Some(executes(&bench, runs[3]).id))
    );
    assert!(row.bytes > 0);
    bench.check();
}

#[test]
fn a_pin_whose_exec_does_not_decode_is_reported() {
    let mut bench = Bench::new();
    bench.submit(cached(spec()));
    bench.settle();
    let org = bench.org;
    write(&bench, move |tx| {
        let (_, exec) = store::pin::after(tx, org, "default", None, 1)?[0];
        store::object::delete(tx, org, exec.0, model::Timestamp(i64::MAX))
    });
    let said = flaws(&bench);
    assert!(said.len() == 1 && said[0].contains("missing or damaged"), "{said:?}");
}

#[test]
fn a_damaged_result_is_passed_by_a_collection_and_the_others_stay_whole() {
    let mut bench = Bench::new();
    let [damaged, _] = ["damaged", "whole"].map(|salt| bench.submit(salted(spec(), salt)));
    bench.settle();
    let org = bench.org;
    let head = SetRef { name: ref_of("main").unwrap(), from: "index".into(), expect: Expect::Anything, force: false };
    now(bench.engine.set_ref(org, head)).unwrap();
    let node: NodeId = bench.run(damaged).call.unwrap().node.parse().unwrap();
    write(&bench, move |tx| {
        let exec = store::pin::find(tx, org, "default", node)?.unwrap();
        store::object::delete(tx, org, exec.0, model::Timestamp(i64::MAX))
    });
    bench.jump(2 * DAY);
    let swept =
        now(bench.engine.collect_garbage(org, Garbage { older_than_ms: 30 * DAY, max_bytes: i64::MAX })).unwrap();
    assert_eq!((swept.pins, swept.damaged), (0, 1), "{swept:?}");
    let [again, hit] = ["damaged", "whole"].map(|salt| bench.submit(salted(spec(), salt)));
    assert!(is_hit(&bench, hit) && !is_hit(&bench, again));
    bench.settle();
    let again = bench.submit(salted(spec(), "damaged"));
    assert!(is_hit(&bench, again), "its new result is kept");
    bench.check();
}

/// What `repl audit` advises for a pin whose result cannot be read.
#[test]
fn a_damaged_result_is_let_go_by_each_of_its_names() {
    for damaged in ["exec", "result", "input"] {
        for named in ["run", "execution", "key", "digits of the key", "exec"] {
            let mut bench = Bench::new();
            let run = bench.submit(cached(spec()));
            bench.settle();
            let org = bench.org;
            let (node, exec) = read(&bench, move |tx| Ok(store::pin::after(tx, org, "default", None, 1)?[0]));
            write(&bench, move |tx| {
                let mut objects = Objects { tx, org };
                let result = calls::read::exec(&mut objects, exec).unwrap().result;
                let Ok(Node::Call { inputs, .. }) = calls::read::node(&mut objects, node) else { panic!("a call") };
                let gone = match damaged {
                    "exec" => exec.0,
                    "result" => result.0,
                    _ => inputs[0].0,
                };
                store::object::delete(tx, org, gone, model::Timestamp(i64::MAX))
            });
            let called = bench.run(run).call.unwrap();
            let name = match named {
                "run" => run.to_string(),
                "execution" => CallId(called.execution.unwrap()).to_string(),
                "key" => called.node,
                "digits of the key" => called.node[..12].to_owned(),
                // Digits are looked up among the records that are there.
                _ if damaged == "exec" => continue,
                _ => exec.to_string(),
            };
            let found = now(bench.engine.node_named(org, name)).unwrap();
            assert_eq!(found, node, "{damaged}, {named}");
            assert_eq!(invalidate(&bench, Invalid::Node(found)), "1", "{damaged}, {named}");
            assert_eq!(flaws(&bench), [""; 0]);
        }
    }
}

/// Why the run that executed it failed is said as a value to its callers, and is no result.
#[test]
fn a_run_that_fails_from_outside_leaves_a_dag_that_says_so_and_no_pin() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let caller = bench.submit(cached(spec()));
    bench.settle();
    let backend = executes(&bench, caller).id;
    bench.cancel(backend);
    bench.settle();
    let id = bench.run(caller).call.unwrap().execution.unwrap();
    let seen = now(bench.engine.called(bench.org, model::CallId(id))).unwrap();
    assert_eq!((seen.status, seen.result.is_none()), (ExecutionStatus::FailedTerminal, true));
    let value = seen.failure.unwrap().value.unwrap();
    assert_eq!((value["type"].as_str(), value["origin"].as_str()), (Some("cancelled"), Some("dml-exec-repl")));
    assert!(value["message"].as_str().unwrap().contains(&backend.to_string()), "{value}");
    assert!(value["stack"].is_array());
    let org = bench.org;
    let (pins, execs) = read(&bench, move |tx| {
        let execs = store::exec::page(tx, org, model::Timestamp(i64::MAX), 10)?;
        Ok((store::pin::projects(tx, org, 10)?, execs))
    });
    assert_eq!((pins, execs), (Vec::new(), Vec::new()), "it is no result");
    bench.check();
}

/// Its row is deleted behind the engine: the Orchestrator says that the job has vanished (R116).
#[test]
fn a_run_that_is_not_known_any_more_ends_its_execution() {
    let mut bench = Bench::new();
    bench.runners.plan = Some(Plan::Run);
    let caller = bench.submit(cached(spec()));
    bench.settle();
    let id = bench.run(caller).call.unwrap().execution.unwrap();
    write(&bench, move |tx| {
        let mut request = store::execution::request(tx, id)?;
        request["work"]["run"]["run"] = serde_json::json!(RunId(4_711).to_string());
        tx.exec(&Sql::new(include_str!("other_request.sql")), &args![request.to_string(), id])
    });
    bench.advance(MINUTE);
    let seen = now(bench.engine.called(bench.org, model::CallId(id))).unwrap();
    assert_eq!(seen.error.unwrap().code, "job_vanished");
    assert_eq!(seen.failure.unwrap().value.unwrap()["type"], "job_vanished");
    assert_eq!(bench.run(caller).status, RunStatus::Failed);
}
