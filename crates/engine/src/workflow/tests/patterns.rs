//! Each pattern with each fault: the end is right, and what exists in the world is what completed nodes have made. `ask` brings the
//! pattern, `a` is struck, `b` stands beside it or takes its place, `join` follows.

use super::*;
use model::workflow::{Addition, Alternative, Branch, FanOutMode, Pattern, PatternKind, branches_of};
use std::collections::BTreeSet;

/// Brings the pattern and is done.
struct Ask(Vec<Pattern>);
impl NodeKind for Ask {
    fn inside(&self, _: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        Ok(Verdict::With { output: json!({ "first": true }), patterns: self.0.clone() })
    }
}

/// Makes something in the world under its node's name: made twice it is there once.
struct Part(Arc<World>);
impl NodeKind for Part {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        Ok(Verdict::Act(json!({ "name": node.node.name, "parameters": node.node.parameters })))
    }
    fn act(&self, _: &Engine, order: Value) -> ActFuture {
        let name = order["name"].as_str().unwrap().to_owned();
        let fate = self.0.acts.lock().unwrap().get(name.as_str()).copied().unwrap_or(Fate::Obey);
        if matches!(fate, Fate::Obey | Fate::FailAfter) {
            *self.0.made.lock().unwrap().entry(name.clone()).or_default() += 1;
        }
        self.0.note(format!("{name} with {}", order["parameters"]));
        Box::pin(async move { meet(fate, "part").await.map(|_| json!({ "by": name })) })
    }
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let name = node.node.name.clone();
        let resource = Resource { kind: ResourceKind::Snapshot, name: name.clone(), provider: None };
        Ok(Undo::Act { order: json!(name), resource })
    }
    fn compensate(&self, _: &Engine, order: Value) -> ActFuture {
        let fate = *self.0.compensations.lock().unwrap();
        if fate == Fate::Obey {
            self.0.made.lock().unwrap().remove(order.as_str().unwrap());
        }
        self.0.note(format!("undo {}", order.as_str().unwrap()));
        Box::pin(meet(fate, "part"))
    }
}

/// Says what it read.
struct Join(Arc<World>);
impl NodeKind for Join {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let read = branches_of(node.workflow, &node.node.name);
        let told = |n: &&Arc<Node>| n.output.as_ref().map_or("nothing".into(), |output| output["by"].to_string());
        let mut read: Vec<String> = read.iter().map(told).collect();
        let instead = model::workflow::output(node.workflow, "a").or(model::workflow::output(node.workflow, "one"));
        read.extend(instead.map(|output| output["by"].to_string()));
        self.0.note(format!("join reads {}", read.join(", ")));
        Ok(Verdict::Done(Value::Null))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Case {
    Insert,
    FirstFailure,
    Isolate,
    Alternative,
    Branch,
}
const CASES: [Case; 5] = [Case::Insert, Case::FirstFailure, Case::Isolate, Case::Alternative, Case::Branch];

fn addition(name: &str) -> Addition {
    let (kind, parameters) = ("part".to_owned(), json!({ "for": name }));
    Addition { name: name.into(), kind, parameters, timeout_ms: Some(LIMIT_MS), idempotent: true }
}

fn part(name: &str, after: &str) -> Node {
    Node { kind: "part".into(), ..Node::new(name, &[after], LIMIT_MS) }
}

fn blueprint(case: Case, world: &Arc<World>) -> Blueprint {
    let both = ["a", "b"].map(addition).to_vec();
    let fan_out = |mode| Pattern::FanOut { join: "join".into(), branches: ["a", "b"].map(addition).to_vec(), mode };
    let elsewhere = Alternative { parameters: json!({ "for": "elsewhere" }) };
    let pattern = match case {
        Case::Insert => vec![Pattern::Insert { before: "join".into(), nodes: both }],
        Case::FirstFailure => vec![fan_out(FanOutMode::FirstFailure)],
        Case::Isolate => vec![fan_out(FanOutMode::Isolate)],
        Case::Alternative => vec![Pattern::Alternatives { of: "a".into(), alternatives: vec![elsewhere] }],
        Case::Branch => Vec::new(),
    };
    let (made, joins): (&'static Part, _) = (leak(Part(world.clone())), leak(Join(world.clone())));
    let begun = Blueprint::of(Intent::CreateSnapshot).node(Node::new("ask", &[], None), leak(Ask(pattern)));
    let grown = match case {
        Case::Insert | Case::FirstFailure | Case::Isolate => {
            begun.kind("part", made).node(Node::new("join", &["ask"], None), joins)
        }
        Case::Alternative => begun.node(part("a", "ask"), made).node(Node::new("join", &["a"], None), joins),
        Case::Branch => {
            let (then, otherwise) = ("a".to_owned(), "b".to_owned());
            let branch = Branch { decided_by: "ask".into(), field: "first".into(), then, otherwise, on_error: true };
            begun
                .choice(Node::new("choose", &["ask"], None).branching(branch))
                .node(part("a", "choose").as_logical("one"), made)
                .node(part("b", "choose").as_logical("one"), made)
                .node(Node::new("join", &["a", "b"], None), joins)
        }
    };
    grown.checked()
}

impl Bench {
    fn claim_all(&self) -> Vec<Work> {
        let items = now(self.engine.claim(&self.worker, WorkClass::Control, 32)).unwrap();
        let ours = items.into_iter().filter(|item| item.kind == WorkKind::Workflow);
        let work = |item| -> Work {
            let (engine, registry) = (self.engine.clone(), self.registry);
            Box::pin(async move { executor::work(&engine, registry, item, None).await })
        };
        ours.map(work).collect()
    }

    /// Works, and lets time pass, until the workflow has ended and nothing is due. A dead control plane is started again.
    fn finish(&mut self) {
        let mut under_way: Vec<Work> = Vec::new();
        for _ in 0..100 {
            loop {
                let begun = self.claim_all();
                let idle = begun.is_empty();
                under_way.extend(begun);
                under_way.retain_mut(|work| poll(work).is_pending());
                if self.dead.load(Ordering::Relaxed) {
                    under_way.clear();
                    self.restart();
                } else if idle {
                    break;
                }
            }
            if self.workflow().status.is_end() {
                return;
            }
            self.pass(STEP_MS);
        }
        panic!("it does not end: {:#?}", self.workflow());
    }

    fn made(&self) -> BTreeSet<String> {
        self.world.made.lock().unwrap().keys().cloned().collect()
    }

    /// What exists was made by a node that completed, or is named as what may be left.
    fn check_nothing_is_untracked(&self, what: &str) {
        let workflow = self.workflow();
        let completed = workflow.nodes.iter().filter(|n| n.kind == "part" && n.status == NodeStatus::Completed);
        let risks = workflow.orphan_risks.iter().map(|risk| risk.resource.name.clone());
        let known: BTreeSet<String> = completed.map(|n| n.name.clone()).chain(risks).collect();
        assert!(self.made().is_subset(&known), "{what}: {:?} exists, and {known:?} is known", self.made());
        for node in workflow.nodes.iter().filter(|n| n.kind == "part" && n.status == NodeStatus::Completed) {
            assert!(self.made().contains(&node.name), "{what}: {} was undone", node.name);
        }
        let manifest = workflow.manifest;
        let sealed = self.store.read_now("test", move |tx| store::manifest::find(tx, manifest)).unwrap().unwrap();
        assert_eq!(sealed.outcome, Some(workflow.status), "{what}");
    }
}

/// How the workflow ends when `a` cannot be done, and what its join then reads.
fn end_without_a(case: Case) -> (WorkflowStatus, Option<&'static str>) {
    match case {
        Case::Insert | Case::FirstFailure => (WorkflowStatus::Failed, None),
        Case::Isolate => (WorkflowStatus::Completed, Some("join reads nothing, \"b\"")),
        Case::Alternative => (WorkflowStatus::Completed, Some("join reads \"a#2\"")),
        Case::Branch => (WorkflowStatus::Completed, Some("join reads \"b\"")),
    }
}

#[test]
fn a_node_that_fails_in_a_pattern_leaves_nothing_and_the_pattern_decides_the_end() {
    for case in CASES {
        for fate in [Fate::Fail, Fate::FailAfter, Fate::Hang] {
            let what = format!("{case:?}, {}", ["", "fails before", "fails after", "times out"][fate as usize]);
            let mut bench = Bench::new(|world| blueprint(case, world), &[("a", fate)]);
            bench.finish();
            let (status, read) = end_without_a(case);
            assert_eq!(bench.workflow().status, status, "{what}: {:?}", bench.workflow().error);
            let done = bench.done();
            let told = done.iter().find(|note| note.starts_with("join"));
            assert_eq!(told.map(String::as_str), read, "{what}");
            assert!(done.contains(&"undo a".to_owned()), "{what}: {done:?}");
            assert!(!bench.made().contains("a"), "{what}");
            bench.check_nothing_is_untracked(&what);
        }
    }
}

#[test]
fn a_crash_at_any_commit_of_a_pattern_changes_nothing_of_its_end() {
    for case in CASES {
        for fate in [Fate::Obey, Fate::Fail, Fate::FailAfter] {
            for point in [
                ("workflow.mark", Moment::Before),
                ("workflow.mark", Moment::After),
                ("workflow.record", Moment::Before),
                ("workflow.record", Moment::After),
            ] {
                let what = format!("{case:?}, {}, {point:?}", fate as usize);
                let mut bench = Bench::new(|world| blueprint(case, world), &[("a", fate)]);
                *bench.dies_at.lock().unwrap() = Some(point);
                bench.finish();
                let status = if fate == Fate::Obey { WorkflowStatus::Completed } else { end_without_a(case).0 };
                assert_eq!(bench.workflow().status, status, "{what}: {:?}", bench.workflow().error);
                let names: Vec<_> = bench.workflow().nodes.iter().map(|n| n.name.clone()).collect();
                assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{what}: {names:?}");
                bench.check_nothing_is_untracked(&what);
            }
        }
    }
}

/// Who works on an item that another has finished meanwhile changes nothing.
#[test]
fn a_pattern_whose_work_is_done_twice_is_applied_once() {
    for case in CASES {
        for fate in [Fate::Obey, Fate::FailAfter] {
            let mut bench = Bench::new(|world| blueprint(case, world), &[("a", fate)]);
            let items = now(bench.engine.claim(&bench.worker, WorkClass::Control, 32)).unwrap();
            for _ in 0..2 {
                for item in items.clone() {
                    let (engine, registry) = (bench.engine.clone(), bench.registry);
                    drop(poll(
                        &mut (Box::pin(async move { executor::work(&engine, registry, item, None).await }) as Work),
                    ));
                }
            }
            bench.finish();
            let applied = bench.workflow().applied;
            let asked = applied.iter().filter(|a| a.by == "ask").count();
            assert_eq!(asked, usize::from(!matches!(case, Case::Alternative | Case::Branch)), "{case:?}");
            let instead = applied.iter().filter(|a| a.by == "a").count();
            let gives_way = fate == Fate::FailAfter && matches!(case, Case::Alternative | Case::Branch);
            assert_eq!(instead, usize::from(gives_way), "{case:?}");
            bench.check_nothing_is_untracked(&format!("{case:?}"));
        }
    }
}

#[test]
fn a_compensation_that_fails_in_a_pattern_names_what_may_be_left() {
    for case in CASES {
        let mut bench = Bench::new(|world| blueprint(case, world), &[("a", Fate::FailAfter)]);
        *bench.world.compensations.lock().unwrap() = Fate::Fail;
        bench.finish();
        assert_eq!(bench.workflow().status, end_without_a(case).0, "{case:?}");
        let risks: Vec<_> = bench.workflow().orphan_risks.iter().map(|risk| risk.resource.name.clone()).collect();
        assert!(risks.contains(&"a".to_owned()), "{case:?}: {risks:?}");
        assert!(bench.made().contains("a"), "{case:?}");
        bench.check_nothing_is_untracked(&format!("{case:?}"));
    }
}

#[test]
fn an_alternative_has_its_own_parameters_and_is_stored_with_what_it_replaces() {
    let mut bench = Bench::new(|world| blueprint(Case::Alternative, world), &[("a", Fate::Fail)]);
    bench.finish();
    let done = bench.done();
    assert_eq!(done, ["a with null", "undo a", "a#2 with {\"for\":\"elsewhere\"}", "join reads \"a#2\""]);
    let workflow = bench.workflow();
    let applied = &workflow.applied[0];
    assert_eq!((applied.pattern, &*applied.by, &*applied.nodes[0]), (PatternKind::RetryWithAlternative, "a", "a#2"));
}

/// The second branch never returns: the first one's failure ends it at once and undoes it.
#[test]
fn the_first_failure_cuts_the_acts_of_the_branches_beside_it() {
    let mut bench = Bench::new(|world| blueprint(Case::FirstFailure, world), &[("a", Fate::Fail), ("b", Fate::Hang)]);
    let begun = bench.hands.now();
    bench.finish();
    assert_eq!(bench.hands.now(), begun, "nobody waited for it");
    assert_eq!(bench.node("b").error.as_deref(), Some("stopped because a failed"));
    assert!(bench.done().contains(&"undo b".to_owned()));
}

#[test]
fn a_pattern_that_the_model_refuses_fails_the_node_that_asked() {
    let many = |world: &Arc<World>| {
        let branches = (0..17).map(|n| addition(&format!("n{n}"))).collect();
        let pattern = Pattern::FanOut { join: "join".into(), branches, mode: FanOutMode::Isolate };
        Blueprint::of(Intent::CreateSnapshot)
            .node(Node::new("ask", &[], None), leak(Ask(vec![pattern])))
            .node(Node::new("join", &["ask"], None), leak(Join(world.clone())))
    };
    let mut bench = Bench::new(many, &[]);
    bench.finish();
    let error = bench.workflow().error.unwrap();
    assert!(error.contains("17 nodes: at most 16"), "{error}");
    assert!(bench.done().is_empty());
}

/// Its work is another workflow's.
struct Sub(Intent);
impl NodeKind for Sub {
    fn inside(&self, _: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        Ok(Verdict::Child { intent: self.0, input: json!({}) })
    }
}

/// A workflow whose only node is another one, which makes `a`.
fn nested(fate: Fate) -> Bench {
    let outer = |_: &Arc<World>| {
        Blueprint::of(Intent::CreateSnapshot).node(Node::new("sub", &[], LIMIT_MS), leak(Sub(Intent::CleanupManifest)))
    };
    let mut bench = Bench::new(outer, &[("a", fate)]);
    let made: &'static Part = leak(Part(bench.world.clone()));
    let long = Node { timeout_ms: None, kind: "part".into(), ..Node::new("a", &[], None) };
    let inner: &'static Blueprint = leak(Blueprint::of(Intent::CleanupManifest).node(long, made));
    bench.registry = leak(Registry(vec![bench.registry.0[0], inner]));
    bench
}

/// The manifest of its workflow owns a snapshot from then on.
struct Own;
const OWNED: (ResourceKind, i64) = (ResourceKind::Snapshot, 77);
impl NodeKind for Own {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let manifest = node.workflow.manifest;
        store::manifest::own(node.scope.tx(), manifest, &[OWNED])?;
        Ok(Verdict::Done(Value::Null))
    }
}

#[test]
fn what_a_child_made_is_its_parents_after_success_and_its_own_after_a_failure() {
    for (fate, status) in [(Fate::Obey, WorkflowStatus::Completed), (Fate::Fail, WorkflowStatus::Failed)] {
        for point in [None, Some(("workflow.record", Moment::Before)), Some(("workflow.record", Moment::After))] {
            let mut bench = nested(fate);
            let long = Node { timeout_ms: None, kind: "part".into(), ..Node::new("a", &["own"], None) };
            let inner = Blueprint::of(Intent::CleanupManifest).node(Node::new("own", &[], None), leak(Own));
            let inner: &'static Blueprint = leak(inner.node(long, leak(Part(bench.world.clone()))));
            bench.registry = leak(Registry(vec![bench.registry.0[0], inner]));
            *bench.dies_at.lock().unwrap() = point;
            bench.finish();
            let (workflow, child) = (bench.workflow(), children(&bench).remove(0));
            assert_eq!((workflow.status, child.status), (status, status), "{point:?}");
            let owned = [workflow.manifest, child.manifest].map(|manifest| {
                bench.store.read_now("test", move |tx| store::manifest::resources(tx, manifest)).unwrap()
            });
            let expected = match status {
                WorkflowStatus::Completed => [vec![OWNED], vec![]],
                _ => [vec![], vec![OWNED]],
            };
            assert_eq!(owned, expected, "{status}, {point:?}");
        }
    }
}

fn children(bench: &Bench) -> Vec<Workflow> {
    let org = bench.org;
    let all = bench.store.read_now("test", move |tx| store::workflow::page(tx, org, i64::MAX, 100)).unwrap();
    all.into_iter().filter(|workflow| workflow.parent.is_some()).collect()
}

#[test]
fn a_node_ends_as_the_workflow_that_does_its_work() {
    for (fate, status, error) in
        [(Fate::Obey, WorkflowStatus::Completed, None), (Fate::FailAfter, WorkflowStatus::Failed, Some("not allowed"))]
    {
        for point in [None, Some(("workflow.mark", Moment::After)), Some(("workflow.record", Moment::Before))] {
            let mut bench = nested(fate);
            *bench.dies_at.lock().unwrap() = point;
            bench.finish();
            let (workflow, inner) = (bench.workflow(), children(&bench));
            assert_eq!((workflow.status, inner.len()), (status, 1), "{point:?}");
            let child = &inner[0];
            assert_eq!((child.status, child.depth, child.parent), (status, 1, Some(workflow.id)));
            assert_ne!(child.manifest, workflow.manifest);
            let manifest = child.manifest;
            let sealed = bench.store.read_now("test", move |tx| store::manifest::find(tx, manifest)).unwrap().unwrap();
            assert_eq!(sealed.outcome, Some(status));
            assert_eq!(bench.made().contains("a"), fate == Fate::Obey);
            match error {
                None => assert_eq!(bench.node("sub").output, Some(json!({ "a": { "by": "a" } }))),
                Some(error) => assert_eq!(workflow.error, Some(format!("{}: {error}", child.id))),
            }
        }
    }
}

#[test]
fn a_child_that_nobody_waits_for_any_more_is_cancelled() {
    let mut bench = nested(Fate::Hang);
    bench.finish();
    assert_eq!(bench.workflow().error.as_deref(), Some("timed out after 10m"));
    bench.restart(); // the worker that waited for its act is gone
    drop(bench.claim_all().iter_mut().map(poll).collect::<Vec<_>>());
    let child = children(&bench).pop().unwrap();
    assert_eq!(child.status, WorkflowStatus::Cancelled);
    assert_eq!(child.error.as_deref(), Some("cancelled: what began it does not wait for it any more"));
}

#[test]
fn workflows_within_workflows_are_three_deep_at_most() {
    let endless = |_: &Arc<World>| {
        Blueprint::of(Intent::CreateSnapshot).node(Node::new("sub", &[], LIMIT_MS), leak(Sub(Intent::CreateSnapshot)))
    };
    let mut bench = Bench::new(endless, &[]);
    bench.finish();
    let deepest = children(&bench).iter().map(|child| child.depth).max();
    assert_eq!((deepest, children(&bench).len()), (Some(3), 3));
    let error = bench.workflow().error.unwrap();
    assert!(error.contains("more than 3 others"), "{error}");
}
