//! The executor with a made-up intent: `prepare` only changes rows, `make` acts in the world, `use` reads what was made. A crash
//! loses everything but the database; time is moved by the test alone.

mod patterns;

use super::executor;
use super::kind::{ActFuture, Blueprint, NodeError, NodeKind, NodeTx, Port, Registry, Undo, Verdict, to_value};
use crate::{Config, Engine, EngineContext, Presence, Timer, TimerFuture};
use model::manifest::ResourceKind;
use model::time::{MINUTE, SECOND};
use model::workflow::{Intent, Node, NodeStatus, Resource, Workflow, WorkflowStatus};
use model::{ManifestId, OrgId, Timestamp, Trouble, TroubleKind, WorkflowId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use store::{Clock, Database, Installation, Moment, Options, Store, Tx, WorkClass, WorkKind, Worker};

/// Time that never passes.
pub(crate) struct Never;

impl Timer for Never {
    fn after(&self, _: i64) -> TimerFuture {
        Box::pin(std::future::pending())
    }
}

const LIMIT_MS: i64 = 10 * MINUTE;
/// Beats may not be further apart than 20 s, or the gap is an outage of ours.
const STEP_MS: i64 = 19 * SECOND;

#[derive(Clone)]
struct Hands(Arc<AtomicI64>);

impl Clock for Hands {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}
impl Timer for Hands {
    fn after(&self, ms: i64) -> TimerFuture {
        let (hands, until) = (self.clone(), self.now() + ms);
        Box::pin(poll_fn(move |_| if hands.now() >= until { Poll::Ready(()) } else { Poll::Pending }))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Obey,
    Fail,
    /// It happens, and is said to have failed.
    FailAfter,
    Hang,
    /// It may be tried again, no sooner than the world wishes.
    Later,
}

/// What the made-up nodes do and have done.
struct World {
    done: Mutex<Vec<String>>,
    acts: Mutex<BTreeMap<&'static str, Fate>>,
    compensations: Mutex<Fate>,
    wish_ms: AtomicI64,
    /// What `prepare` says.
    prepared: Mutex<Value>,
    use_fails: AtomicBool,
    /// What exists in the world, and how often it was made.
    made: Mutex<BTreeMap<String, usize>>,
}

impl World {
    fn note(&self, what: String) {
        self.done.lock().unwrap().push(what);
    }
}

async fn meet(fate: Fate, at: &'static str) -> Result<Value, Trouble> {
    match fate {
        Fate::Obey => Ok(to_value(&Made { name: format!("made by {at}") })),
        Fate::Fail => Err(Trouble::new(TroubleKind::Auth, "not allowed")),
        Fate::FailAfter => Err(Trouble::new(TroubleKind::Auth, "not allowed").perhaps()),
        Fate::Later => Err(Trouble::new(TroubleKind::RateLimit, "too many calls")),
        Fate::Hang => std::future::pending().await,
    }
}

const PREPARED: Port<Prepared> = Port::new("prepare");
const MADE: Port<Made> = Port::new("make");

#[derive(Serialize, Deserialize)]
struct Prepared {
    size: i64,
}
#[derive(Serialize, Deserialize)]
struct Made {
    name: String,
}

struct Prepare(Arc<World>);
impl NodeKind for Prepare {
    fn inside(&self, _: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        Ok(Verdict::Done(self.0.prepared.lock().unwrap().clone()))
    }
}

/// Says before each act what the database says about its node.
struct Make {
    world: Arc<World>,
    name: &'static str,
}
impl NodeKind for Make {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let Prepared { size } = node.read(&PREPARED)?;
        Ok(Verdict::Act(json!({ "size": size, "workflow": node.workflow.id })))
    }
    fn act(&self, engine: &Engine, order: Value) -> ActFuture {
        let id: WorkflowId = serde_json::from_value(order["workflow"].clone()).unwrap();
        let row = engine.store.read_now("test.row", move |tx| store::workflow::find(tx, id)).unwrap().unwrap();
        let node = row.nodes.iter().find(|node| node.name == self.name).unwrap();
        self.world.note(format!("{} of {}: {}, in hand: {}", self.name, order["size"], node.status, node.in_hand));
        let (fate, wish_ms) = (self.world.acts.lock().unwrap()[self.name], self.world.wish_ms.load(Ordering::Relaxed));
        let met = meet(fate, self.name);
        Box::pin(async move { met.await.map_err(|trouble| Trouble { retry_after_ms: Some(wish_ms), ..trouble }) })
    }
    fn undo(&self, _: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let resource = Resource { kind: ResourceKind::Snapshot, name: format!("repl-{}", self.name), provider: None };
        Ok(Undo::Act { order: Value::Null, resource })
    }
    fn compensate(&self, _: &Engine, _: Value) -> ActFuture {
        self.world.note(format!("undo {}", self.name));
        Box::pin(meet(*self.world.compensations.lock().unwrap(), self.name))
    }
}

struct Use(Arc<World>);
impl NodeKind for Use {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let Made { name } = node.read(&MADE)?;
        self.0.note(format!("use what was {name}"));
        if self.0.use_fails.load(Ordering::Relaxed) {
            return Ok(Verdict::Failed { error: "it does not fit".into(), uncertain: false });
        }
        Ok(Verdict::Done(Value::Null))
    }
}

type Work = Pin<Box<dyn Future<Output = Result<(), model::Failure>>>>;

struct Bench {
    hands: Hands,
    /// The control plane dies at this write.
    dies_at: Arc<Mutex<Option<(&'static str, Moment)>>>,
    dead: Arc<AtomicBool>,
    store: Store,
    engine: Engine,
    worker: Worker,
    world: Arc<World>,
    registry: &'static Registry,
    org: OrgId,
    id: WorkflowId,
}

/// Polled once: an inline store answers at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits for anything"),
    }
}

fn poll(work: &mut Work) -> Poll<Result<(), model::Failure>> {
    work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn leak<T>(kind: T) -> &'static T {
    Box::leak(Box::new(kind))
}

/// `prepare`, `make` and `use`, one after the other.
fn chain(world: &Arc<World>) -> Blueprint {
    let make = Make { world: world.clone(), name: "make" };
    Blueprint::of(Intent::CreateSnapshot)
        .node(Node::new("prepare", &[], None), leak(Prepare(world.clone())))
        .node(Node::new("make", &["prepare"], LIMIT_MS), leak(make))
        .node(Node::new("use", &["make"], None), leak(Use(world.clone())))
        .checked()
}

/// `prepare`, and three that act beside each other.
fn fan(world: &Arc<World>) -> Blueprint {
    let first =
        Blueprint::of(Intent::CreateSnapshot).node(Node::new("prepare", &[], None), leak(Prepare(world.clone())));
    let made = |blueprint: Blueprint, name| {
        blueprint.node(Node::new(name, &["prepare"], LIMIT_MS), leak(Make { world: world.clone(), name }))
    };
    ["a", "b", "c"].into_iter().fold(first, made).checked()
}

impl Bench {
    fn new(blueprint: impl Fn(&Arc<World>) -> Blueprint, acts: &[(&'static str, Fate)]) -> Bench {
        let hands = Hands(Arc::new(AtomicI64::new(1_000_000_000)));
        let dies_at: Arc<Mutex<Option<(&'static str, Moment)>>> = Arc::default();
        let dead: Arc<AtomicBool> = Arc::default();
        let hook = {
            let (dies_at, dead) = (dies_at.clone(), dead.clone());
            move |name: &'static str, moment: Moment| {
                if dead.load(Ordering::Relaxed) {
                    return moment == Moment::Before; // a dead process writes nothing
                }
                let dies = *dies_at.lock().unwrap() == Some((name, moment));
                dead.store(dies, Ordering::Relaxed);
                dies
            }
        };
        let options =
            Options { clock: Arc::new(hands.clone()), crash: Some(Arc::new(hook)), ..Options::new(Database::Memory) };
        let store = Store::inline(&options).unwrap();
        let world = Arc::new(World {
            done: Mutex::default(),
            acts: Mutex::new(acts.iter().copied().collect()),
            compensations: Mutex::new(Fate::Obey),
            wish_ms: AtomicI64::default(),
            prepared: Mutex::new(to_value(&Prepared { size: 3 })),
            use_fails: AtomicBool::new(false),
            made: Mutex::default(),
        });
        let (engine, worker) = start(&store, &hands);
        let org = now(engine.ensure_org("test")).unwrap();
        let blueprint: &'static Blueprint = leak(blueprint(&world));
        let begin = move |tx: &mut Tx| {
            let (id, manifest, at) = (WorkflowId(tx.next_id()), ManifestId(tx.next_id()), tx.at());
            let workflow = blueprint.draft((id, manifest, org), &json!({}), at);
            super::open_manifest(tx, &workflow)?;
            store::workflow::insert(tx, &workflow)?;
            tx.wake(WorkKind::Workflow, id.0, at);
            Ok(id)
        };
        let id = store.write_now("test.begin", begin).unwrap();
        Bench { hands, dies_at, dead, store, engine, worker, world, registry: leak(Registry(vec![blueprint])), org, id }
    }

    fn workflow(&self) -> Workflow {
        let id = self.id;
        self.store.read_now("test.find", move |tx| store::workflow::find(tx, id)).unwrap().unwrap()
    }
    fn node(&self, name: &str) -> Node {
        Node::clone(self.workflow().nodes.iter().find(|node| node.name == name).unwrap())
    }
    fn done(&self) -> Vec<String> {
        std::mem::take(&mut self.world.done.lock().unwrap())
    }

    /// A worker claims what is due and begins to work on the workflow.
    fn claim(&self) -> Option<Work> {
        let items = now(self.engine.claim(&self.worker, WorkClass::Control, 32)).unwrap();
        let item = items.into_iter().find(|item| item.kind == WorkKind::Workflow)?;
        let (engine, registry) = (self.engine.clone(), self.registry);
        Some(Box::pin(async move { executor::work(&engine, registry, item, None).await }))
    }

    /// Works until nothing is due at this moment.
    fn settle(&self) {
        while let Some(mut work) = self.claim() {
            assert_eq!(poll(&mut work), Poll::Ready(Ok(())), "it does not wait");
        }
    }

    fn pass(&self, ms: i64) {
        for left in (0..ms).step_by(STEP_MS as usize) {
            self.hands.0.fetch_add(STEP_MS.min(ms - left), Ordering::Relaxed);
            now(self.engine.beat(&self.worker)).unwrap();
        }
    }

    /// Another process over the same database.
    fn restart(&mut self) {
        self.dead.store(false, Ordering::Relaxed);
        *self.dies_at.lock().unwrap() = None;
        (self.engine, self.worker) = start(&self.store, &self.hands);
    }
}

fn start(store: &Store, hands: &Hands) -> (Engine, Worker) {
    let context = EngineContext {
        config: Config::default(),
        installation: Installation::new("t3stt3st", [7; 32]),
        providers: Default::default(),
        tools: Default::default(),
        models: Default::default(),
        control_urls: crate::ControlUrls::only("test:"),
        control_ca: None,
        presence: Presence::alone(),
        blob_source: store.blobs().source(),
        timer: Arc::new(hands.clone()),
    };
    let engine = Engine::new(context, store.clone()).unwrap();
    let worker = now(engine.start_worker("only".to_owned())).unwrap();
    now(engine.beat(&worker)).unwrap();
    (engine, worker)
}

#[test]
fn a_node_is_marked_before_it_acts_and_what_follows_reads_its_output() {
    let bench = Bench::new(chain, &[("make", Fate::Obey)]);
    bench.settle();
    assert_eq!(bench.done(), ["make of 3: running, in hand: true", "use what was made by make"]);
    let workflow = bench.workflow();
    assert_eq!(workflow.status, WorkflowStatus::Completed);
    assert!(workflow.nodes.iter().all(|node| node.status == NodeStatus::Completed && !node.in_hand));
}

#[test]
fn an_act_that_was_not_recorded_is_repeated_by_the_next_worker_if_it_may_be() {
    // The worker dies after it has committed the mark, or after the act and before its result is committed.
    for (point, moment) in [("workflow.mark", Moment::After), ("workflow.record", Moment::Before)] {
        for idempotent in [true, false] {
            let mut bench = Bench::new(
                |world| {
                    let mut make = Node::new("make", &["prepare"], LIMIT_MS);
                    make.idempotent = idempotent;
                    Blueprint::of(Intent::CreateSnapshot)
                        .node(Node::new("prepare", &[], None), leak(Prepare(world.clone())))
                        .node(make, leak(Make { world: world.clone(), name: "make" }))
                },
                &[("make", Fate::Obey)],
            );
            *bench.dies_at.lock().unwrap() = Some((point, moment));
            let died = poll(&mut bench.claim().unwrap());
            assert!(matches!(died, Poll::Ready(Err(_))), "{died:?}");
            bench.restart();
            assert!(bench.node("make").in_hand);
            bench.done();
            bench.settle();
            let (make, status) = (bench.node("make"), bench.workflow().status);
            assert!(make.uncertain, "the first act may have happened");
            if idempotent {
                assert_eq!(bench.done(), ["make of 3: running, in hand: true"]);
                assert_eq!((make.status, make.tries, status), (NodeStatus::Completed, 2, WorkflowStatus::Completed));
            } else {
                assert_eq!(bench.done(), ["undo make"]);
                assert_eq!((make.status, make.tries, status), (NodeStatus::Failed, 1, WorkflowStatus::Failed));
                assert_eq!(make.error.as_deref(), Some("its worker died and it cannot be repeated"));
            }
        }
    }
}

/// What it wishes is believed up to 5 minutes.
#[test]
fn who_wants_to_be_left_alone_for_a_while_is_not_asked_before() {
    for (wish_ms, pause_ms) in [(0, 2 * SECOND), (90 * SECOND, 90 * SECOND), (60 * MINUTE, 5 * MINUTE)] {
        let bench = Bench::new(chain, &[("make", Fate::Later)]);
        bench.world.wish_ms.store(wish_ms, Ordering::Relaxed);
        bench.settle();
        let tried = |bench: &Bench| bench.done().iter().filter(|it| it.starts_with("make")).count();
        assert_eq!(tried(&bench), 1);
        bench.world.acts.lock().unwrap().insert("make", Fate::Obey);
        bench.pass(pause_ms - SECOND);
        bench.settle();
        assert_eq!(tried(&bench), 0, "{wish_ms}");
        bench.pass(SECOND);
        bench.settle();
        assert_eq!(tried(&bench), 1, "{wish_ms}");
        assert_eq!(bench.workflow().status, WorkflowStatus::Completed);
    }
}

#[test]
fn an_act_that_takes_too_long_is_abandoned_and_compensated() {
    let bench = Bench::new(chain, &[("make", Fate::Hang)]);
    let mut work = bench.claim().unwrap();
    assert!(poll(&mut work).is_pending());
    bench.pass(LIMIT_MS - 1);
    assert!(poll(&mut work).is_pending());
    assert_eq!(bench.node("make").status, NodeStatus::Running);
    bench.pass(1);
    assert_eq!(poll(&mut work), Poll::Ready(Ok(())));
    assert_eq!(bench.done(), ["make of 3: running, in hand: true", "undo make"]);
    let (workflow, make) = (bench.workflow(), bench.node("make"));
    assert_eq!((workflow.status, workflow.error.as_deref()), (WorkflowStatus::Failed, Some("timed out after 10m")));
    assert!(make.uncertain);
    assert!(workflow.orphan_risks.is_empty(), "it was undone in time");
}

/// R145: no worker lived meanwhile, so the time does not count against the node.
#[test]
fn an_outage_of_ours_does_not_count_against_a_time_limit() {
    const AWAY_MS: i64 = 20 * MINUTE;
    let bench = Bench::new(chain, &[("make", Fate::Hang)]);
    let mut work = bench.claim().unwrap();
    assert!(poll(&mut work).is_pending());
    bench.pass(MINUTE);
    bench.hands.0.fetch_add(AWAY_MS, Ordering::Relaxed);
    now(bench.engine.beat(&bench.worker)).unwrap();
    assert!(poll(&mut work).is_pending());
    bench.pass(LIMIT_MS - MINUTE - STEP_MS);
    assert!(poll(&mut work).is_pending(), "the limit has passed on the clock, and not without the outage");
    assert_eq!(bench.node("make").status, NodeStatus::Running);
    bench.pass(2 * STEP_MS);
    assert_eq!(poll(&mut work), Poll::Ready(Ok(())));
    assert_eq!(bench.node("make").status, NodeStatus::Failed);
}

#[test]
fn nodes_that_ran_beside_a_failed_one_are_compensated_after_it_the_last_first() {
    let bench = Bench::new(fan, &[("a", Fate::Hang), ("b", Fate::Fail), ("c", Fate::Hang)]);
    bench.settle();
    let done = bench.done();
    assert_eq!(done[3..], ["undo b", "undo c", "undo a"], "{done:?}");
    let workflow = bench.workflow();
    assert_eq!((workflow.status, workflow.error.as_deref()), (WorkflowStatus::Failed, Some("not allowed")));
    assert_eq!(bench.node("a").error.as_deref(), Some("stopped because b failed"));
}

/// Seed 000: what had completed keeps its effect, which the cleanup of the manifest removes.
#[test]
fn a_completed_node_is_not_compensated_when_a_later_one_fails() {
    let bench = Bench::new(chain, &[("make", Fate::Obey)]);
    bench.world.use_fails.store(true, Ordering::Relaxed);
    bench.settle();
    assert_eq!(bench.done()[1..], ["use what was made by make"]);
    assert_eq!((bench.workflow().status, bench.node("make").status), (WorkflowStatus::Failed, NodeStatus::Completed));
}

/// R145: 5 minutes, then the workflow ends and names what may still exist.
#[test]
fn a_compensation_that_takes_too_long_leaves_an_orphan_risk() {
    for fate in [Fate::Hang, Fate::Fail] {
        let bench = Bench::new(chain, &[("make", Fate::Fail)]);
        *bench.world.compensations.lock().unwrap() = fate;
        let (mut work, mut claims) = (None, 0);
        let mut go_on = |bench: &Bench| {
            loop {
                let Some(mut held) = work.take().or_else(|| bench.claim().inspect(|_| claims += 1)) else { return };
                if poll(&mut held).is_pending() {
                    work = Some(held);
                    return;
                }
            }
        };
        go_on(&bench);
        for _ in 0..5 * MINUTE / STEP_MS {
            bench.pass(STEP_MS);
            go_on(&bench);
            assert_eq!(bench.workflow().status, WorkflowStatus::RollingBack);
        }
        bench.pass(STEP_MS);
        go_on(&bench);
        let workflow = bench.workflow();
        assert_eq!(workflow.status, WorkflowStatus::Failed);
        assert_eq!(
            claims > 3,
            fate == Fate::Fail,
            "a failed compensation is repeated meanwhile, a hanging one is waited for"
        );
        let risk = &workflow.orphan_risks[0];
        assert_eq!((&*risk.node, &*risk.resource.name), ("make", "repl-make"));
        let org = bench.org;
        let events = bench.store.read_now("test.events", move |tx| store::event::after(tx, org, None, 0, 100)).unwrap();
        let told: Vec<_> = events.iter().filter(|event| event.kind == "workflow.orphan_risk").collect();
        assert_eq!(told.len(), 1);
        assert_eq!((&told[0].body["name"], &told[0].body["kind"]), (&json!("repl-make"), &json!("snapshot")));
    }
}

#[test]
fn an_input_that_does_not_parse_fails_its_node_and_says_why() {
    for (said, error) in [
        (
            json!({ "size": "three" }),
            "node `make`: its input `prepare` does not parse: invalid type: string \"three\", expected i64",
        ),
        (json!({}), "node `make`: its input `prepare` does not parse: missing field `size`"),
    ] {
        let bench = Bench::new(chain, &[("make", Fate::Obey)]);
        *bench.world.prepared.lock().unwrap() = said;
        bench.settle();
        assert_eq!(bench.workflow().error.as_deref(), Some(error));
        assert_eq!(bench.done(), ["undo make"], "it never acted");
    }
}

#[test]
fn a_kind_that_this_release_does_not_have_fails_its_node() {
    let mut bench = Bench::new(chain, &[("make", Fate::Obey)]);
    bench.registry = leak(Registry(Vec::new()));
    bench.settle();
    let error = bench.workflow().error.unwrap();
    assert!(error.contains("no node kind `prepare` for create-snapshot"), "{error}");
}
