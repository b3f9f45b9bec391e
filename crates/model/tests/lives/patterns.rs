//! The workflow's patterns, one sentence each, and random blueprints: everything ends, in order, with its output under
//! its logical name.

use crate::dag::{addition, blueprint, check as check_state, growing};
use crate::samples::{self, NOW};
use model::Outcome;
use model::manifest::ResourceKind;
use model::workflow::{
    self, Alternative, Branch, FanOutMode, Node, NodeStatus, Pattern, PatternKind, Resource, Workflow, WorkflowEvent,
    WorkflowStatus,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

fn begun(node: &str) -> WorkflowEvent {
    WorkflowEvent::NodeBegun { node: node.into() }
}
fn done(node: &str, output: Value) -> WorkflowEvent {
    WorkflowEvent::NodeDone { node: node.into(), output }
}
fn failed(node: &str) -> WorkflowEvent {
    WorkflowEvent::NodeFailed { node: node.into(), error: format!("{node} broke"), uncertain: false }
}
fn acts(node: &str) -> WorkflowEvent {
    WorkflowEvent::NodeActs { node: node.into() }
}
fn compensated(node: &str) -> WorkflowEvent {
    WorkflowEvent::Compensated { node: node.into() }
}

fn after(nodes: Vec<Node>, events: &[WorkflowEvent]) -> Workflow {
    let begin = WorkflowEvent::Begun;
    std::iter::once(&begin).chain(events).fold(samples::workflow(nodes), |workflow, event| {
        match workflow::apply(&workflow, event, NOW) {
            Ok(Outcome::Moved { next, .. }) => next,
            other => panic!("{event:?} did nothing: {other:?}"),
        }
    })
}

fn ready(workflow: &Workflow) -> Vec<&str> {
    workflow::ready(workflow).into_iter().map(|node| node.name.as_str()).collect()
}

fn status(workflow: &Workflow, name: &str) -> NodeStatus {
    workflow.nodes.iter().find(|node| node.name == name).expect("a node of that name").status
}

fn with_alternatives(count: usize) -> Vec<Node> {
    let alternatives = (1..=count).map(|n| Alternative { parameters: json!({ "try": n }) }).collect();
    vec![Node::new("make", &[], 1_000).with_alternatives(alternatives), Node::new("use", &["make"], 1_000)]
}

#[test]
fn the_warm_path_is_taken_and_the_other_skipped_to_its_last_node() {
    let workflow = after(blueprint(), &[done("decide", json!({ "warm": true }))]);
    assert_eq!(ready(&workflow), ["claim", "side"]);
    assert_eq!(["spawn", "boot"].map(|name| status(&workflow, name)), [NodeStatus::Skipped; 2]);
    let workflow = after(blueprint(), &[done("decide", json!({ "warm": true })), done("claim", json!(1))]);
    assert_eq!(ready(&workflow), ["side", "bind"]);
}

#[test]
fn a_lost_claim_really_falls_back_to_a_new_machine() {
    let lost = [done("decide", json!({ "warm": true })), begun("claim"), failed("claim"), compensated("claim")];
    let workflow = after(blueprint(), &lost);
    assert_eq!((workflow.status, ready(&workflow)), (WorkflowStatus::Running, vec!["spawn", "side"]));
    let made = [done("spawn", json!("made")), done("boot", json!(null)), done("bind", json!(null))];
    let workflow = after(blueprint(), &[&lost[..], &made].concat());
    assert_eq!(workflow::output(&workflow, "machine"), Some(&json!("made")));
    let workflow = after(blueprint(), &[&lost[..], &made, &[done("side", json!(null))]].concat());
    assert_eq!(workflow.status, WorkflowStatus::Completed);
}

#[test]
fn an_alternative_takes_the_place_of_what_it_replaces() {
    let events = [begun("make"), failed("make"), compensated("make")];
    let workflow = after(with_alternatives(2), &events);
    assert_eq!(ready(&workflow), ["make#2"]);
    let node = &workflow.nodes[1];
    assert_eq!((node.logical.as_str(), node.kind.as_str(), &node.parameters), ("make", "make", &json!({ "try": 1 })));
    let workflow = after(with_alternatives(2), &[&events[..], &[done("make#2", json!("elsewhere"))]].concat());
    assert_eq!(ready(&workflow), ["use"]);
    assert_eq!(workflow::output(&workflow, "make"), Some(&json!("elsewhere")));
}

#[test]
fn after_three_tries_the_workflow_has_failed_with_the_last_error() {
    let mut events = Vec::new();
    for node in ["make", "make#2", "make#3"] {
        events.extend([failed(node), compensated(node)]);
    }
    let workflow = after(with_alternatives(2), &events);
    assert_eq!((workflow.status, workflow.error.as_deref()), (WorkflowStatus::Failed, Some("make#3 broke")));
    assert_eq!(status(&workflow, "use"), NodeStatus::Skipped);
}

fn asks(by: &str, pattern: Pattern) -> WorkflowEvent {
    WorkflowEvent::PatternAsked { by: by.into(), pattern }
}
fn insert(nodes: &[&str]) -> Pattern {
    Pattern::Insert { before: "join".into(), nodes: nodes.iter().map(|name| addition(name)).collect() }
}
fn fan_out(branches: &[&str], mode: FanOutMode) -> Pattern {
    Pattern::FanOut { join: "join".into(), branches: branches.iter().map(|name| addition(name)).collect(), mode }
}

#[test]
fn inserted_nodes_run_beside_each_other_and_the_target_waits_for_all() {
    let inserted = [asks("ask", insert(&["gpu", "net"])), done("ask", json!(1))];
    let workflow = after(growing(), &inserted);
    assert_eq!(ready(&workflow), ["gpu", "net"]);
    let applied = &workflow.applied[0];
    assert_eq!((applied.pattern, &*applied.by, &*applied.target), (PatternKind::InsertAndReconverge, "ask", "join"));
    assert_eq!(applied.nodes, ["gpu", "net"]);
    let workflow = after(growing(), &[&inserted[..], &[done("net", json!(2))]].concat());
    assert_eq!(ready(&workflow), ["gpu"], "one of them is not enough");
    let workflow = after(growing(), &[&inserted[..], &[done("net", json!(2)), done("gpu", json!(3))]].concat());
    assert_eq!(ready(&workflow), ["join"]);
    assert_eq!(workflow::output(&workflow, "gpu"), Some(&json!(3)));
}

#[test]
fn what_is_inserted_twice_at_one_place_still_runs_beside_each_other() {
    let nodes = vec![
        Node::new("first", &[], 1_000),
        Node::new("second", &[], 1_000),
        Node::new("join", &["first", "second"], 1_000),
    ];
    let events = [
        asks("first", insert(&["a"])),
        done("first", json!(1)),
        asks("second", insert(&["b"])),
        done("second", json!(1)),
    ];
    assert_eq!(ready(&after(nodes, &events)), ["a", "b"]);
}

#[test]
fn a_pattern_that_is_asked_for_twice_changes_nothing_twice() {
    for pattern in [insert(&["a"]), fan_out(&["a", "b"], FanOutMode::Isolate)] {
        let workflow = after(growing(), &[asks("ask", pattern.clone())]);
        assert_eq!(workflow::apply(&workflow, &asks("ask", pattern), NOW), Ok(Outcome::Unchanged));
    }
}

#[test]
fn a_pattern_beyond_its_limits_is_refused() {
    let many: Vec<String> = (0..17).map(|n| format!("n{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let three = vec![Alternative { parameters: json!(1) }; 3];
    let first = [asks("ask", insert(&["a"])), done("ask", json!(1))];
    let begun_join = [done("ask", json!(1)), begun("join")];
    let table: [(&str, &[WorkflowEvent], WorkflowEvent); 8] = [
        ("seventeen branches", &[], asks("ask", fan_out(&many, FanOutMode::Isolate))),
        ("seventeen insertions", &[], asks("ask", insert(&many))),
        ("two of one name", &[], asks("ask", insert(&["a", "a"]))),
        ("a name that is taken", &[], asks("ask", insert(&["ask"]))),
        ("a second level", &first, asks("a", insert(&["deeper"]))),
        (
            "before an inserted one",
            &[],
            asks("ask", Pattern::Insert { before: "nobody".into(), nodes: vec![addition("a")] }),
        ),
        ("four tries", &[], asks("ask", Pattern::Alternatives { of: "join".into(), alternatives: three })),
        ("by one that has ended", &begun_join, asks("ask", insert(&["late"]))),
    ];
    for (what, before, event) in table {
        let workflow = after(growing(), before);
        assert!(workflow::apply(&workflow, &event, NOW).is_err(), "{what}");
    }
}

#[test]
fn a_target_that_has_begun_waits_for_nothing_more() {
    let nodes = vec![Node::new("ask", &[], 1_000), Node::new("join", &[], 1_000)];
    let workflow = after(nodes, &[begun("join")]);
    assert!(workflow::apply(&workflow, &asks("ask", insert(&["late"])), NOW).is_err());
}

#[test]
fn the_join_waits_for_every_branch() {
    let begun = [asks("ask", fan_out(&["a", "b"], FanOutMode::FirstFailure)), done("ask", json!(1))];
    assert_eq!(ready(&after(growing(), &begun)), ["a", "b"]);
    assert_eq!(ready(&after(growing(), &[&begun[..], &[done("b", json!(2))]].concat())), ["a"]);
    let workflow = after(growing(), &[&begun[..], &[done("b", json!(2)), done("a", json!(1))]].concat());
    assert_eq!(ready(&workflow), ["join"]);
    let outputs: Vec<_> = workflow::branches_of(&workflow, "join").iter().map(|n| n.output.clone()).collect();
    assert_eq!(outputs, [Some(json!(1)), Some(json!(2))]);
}

#[test]
fn the_first_failure_ends_the_branches_beside_it_at_once() {
    let pattern = fan_out(&["a", "b", "c"], FanOutMode::FirstFailure);
    let events = [asks("ask", pattern), done("ask", json!(1)), begun("a"), begun("b"), acts("b"), failed("a")];
    let workflow = after(growing(), &events);
    assert_eq!(["a", "b", "c", "join"].map(|name| status(&workflow, name)), {
        use NodeStatus::{Failed, Skipped};
        [Failed, Failed, Skipped, Skipped]
    });
    let workflow = after(growing(), &[&events[..], &[compensated("b"), compensated("a")]].concat());
    assert_eq!((workflow.status, workflow.error.as_deref()), (WorkflowStatus::Failed, Some("a broke")));
}

/// Its worker died while it acted: what it may have made must be looked for, although it was to begin again.
#[test]
fn a_node_that_was_taken_over_is_compensated_when_the_workflow_fails() {
    let taken_over = WorkflowEvent::NodeTakenOver { node: "b".into() };
    let pattern = fan_out(&["a", "b"], FanOutMode::FirstFailure);
    let events =
        [asks("ask", pattern), done("ask", json!(1)), begun("a"), begun("b"), acts("b"), taken_over, failed("a")];
    let workflow = after(growing(), &events);
    assert_eq!(status(&workflow, "b"), NodeStatus::Failed);
    assert_eq!(workflow::uncompensated(&workflow).map(|node| node.name.as_str()), Some("b"));
}

#[test]
fn an_isolated_branch_fails_alone_and_the_join_sees_it() {
    let pattern = fan_out(&["a", "b"], FanOutMode::Isolate);
    let events = [asks("ask", pattern), done("ask", json!(1)), begun("a"), begun("b"), failed("a"), compensated("a")];
    let workflow = after(growing(), &events);
    assert_eq!((workflow.status, status(&workflow, "b")), (WorkflowStatus::Running, NodeStatus::Running));
    let workflow = after(growing(), &[&events[..], &[done("b", json!(2))]].concat());
    assert_eq!(ready(&workflow), ["join"]);
    let seen: Vec<_> = workflow::branches_of(&workflow, "join").iter().map(|n| (n.error.clone(), n.status)).collect();
    assert_eq!(seen, [(Some("a broke".into()), NodeStatus::Failed), (None, NodeStatus::Completed)]);
    let workflow = after(growing(), &[&events[..], &[done("b", json!(2)), done("join", json!(3))]].concat());
    assert_eq!(workflow.status, WorkflowStatus::Completed);
}

#[test]
fn a_branch_with_an_alternative_ends_nobody() {
    let instead = Pattern::Alternatives { of: "a".into(), alternatives: vec![Alternative { parameters: json!(2) }] };
    let pattern = fan_out(&["a", "b"], FanOutMode::FirstFailure);
    let events =
        [asks("ask", pattern), asks("ask", instead), done("ask", json!(1)), begun("a"), begun("b"), failed("a")];
    let workflow = after(growing(), &[&events[..], &[compensated("a")]].concat());
    assert_eq!((workflow.status, status(&workflow, "b")), (WorkflowStatus::Running, NodeStatus::Running));
    let ends = [compensated("a"), done("a#2", json!("second")), done("b", json!(2))];
    let workflow = after(growing(), &[&events[..], &ends].concat());
    assert_eq!(ready(&workflow), ["join"]);
    let winner = &workflow::branches_of(&workflow, "join")[0];
    assert_eq!((&*winner.name, &winner.output), ("a#2", &Some(json!("second"))));
}

#[test]
fn a_node_knows_whether_something_takes_its_place() {
    let gives_way = |workflow: &Workflow, name: &str| {
        let node = workflow.nodes.iter().find(|node| node.name == name).unwrap();
        workflow::gives_way(workflow, node)
    };
    let workflow = after(with_alternatives(1), &[failed("make")]);
    assert!(gives_way(&workflow, "make") && !gives_way(&workflow, "use"));
    let workflow = after(with_alternatives(1), &[failed("make"), compensated("make"), failed("make#2")]);
    assert!(!gives_way(&workflow, "make#2"), "it is the last one");
    let warm = after(blueprint(), &[done("decide", json!({ "warm": true }))]);
    assert!(gives_way(&warm, "claim"));
}

#[test]
fn the_same_shape_has_the_same_topology_and_another_one_another() {
    let shape = |events: &[WorkflowEvent]| workflow::topology(&after(with_alternatives(1), events));
    let plain = [done("make", json!("a")), done("use", json!(1))];
    let other = [done("make", json!("b")), done("use", json!(2))];
    let second = [failed("make"), compensated("make"), done("make#2", json!("b")), done("use", json!(2))];
    assert_eq!(shape(&plain), shape(&other));
    assert_ne!(shape(&plain), shape(&second));
}

#[test]
fn workflows_are_three_deep_at_most() {
    let begun = |depth| {
        let workflow = Workflow { depth, ..after(with_alternatives(0), &[]) };
        let child = WorkflowEvent::ChildBegun { node: "make".into(), child: model::WorkflowId(9) };
        workflow::apply(&workflow, &child, NOW)
    };
    assert!(matches!(begun(2), Ok(Outcome::Moved { next, .. }) if next.nodes[0].child.is_some()));
    assert!(begun(3).is_err());
}

#[test]
fn a_reason_stays_with_the_workflow_that_is_cancelled() {
    let wanted = |reason: &str| WorkflowEvent::CancelWanted { reason: reason.into() };
    let workflow = after(blueprint(), &[wanted("too dear")]);
    assert_eq!(workflow.status, WorkflowStatus::Running, "it ends when what it works for has ended");
    assert_eq!(workflow::apply(&workflow, &wanted("another"), NOW), Ok(Outcome::Unchanged));
    let workflow = after(blueprint(), &[wanted("too dear"), WorkflowEvent::CancelAsked]);
    let ended = (workflow.status, workflow.error.as_deref());
    assert_eq!(ended, (WorkflowStatus::Cancelled, Some("cancelled: too dear")));
}

#[test]
fn a_compensation_that_is_reported_twice_opens_nothing_twice() {
    let workflow = after(with_alternatives(2), &[failed("make"), compensated("make")]);
    assert_eq!(workflow::apply(&workflow, &compensated("make"), NOW), Ok(Outcome::Unchanged));
    let workflow = after(with_alternatives(2), &[failed("make"), compensated("make"), failed("make#2")]);
    assert_eq!(workflow::apply(&workflow, &compensated("make"), NOW), Ok(Outcome::Unchanged));
}

#[test]
fn what_runs_beside_a_failed_node_is_not_lost() {
    let events = [
        done("decide", json!({ "warm": true })),
        begun("claim"),
        begun("side"),
        failed("claim"),
        done("side", json!(7)),
    ];
    let workflow = after(blueprint(), &events);
    assert_eq!(workflow.status, WorkflowStatus::RollingBack);
    assert_eq!(workflow::output(&workflow, "side"), Some(&json!(7)));
    assert!(ready(&workflow).is_empty(), "nothing new begins meanwhile");
}

#[test]
fn branches_that_follow_each_other_are_decided_at_once() {
    let branch = |then: &str, otherwise: &str| Branch {
        decided_by: "decide".into(),
        field: "warm".into(),
        then: then.into(),
        otherwise: otherwise.into(),
        on_error: false,
    };
    let nodes = vec![
        Node::new("decide", &[], 1_000),
        Node::new("first", &["decide"], 1_000).branching(branch("a", "second")),
        Node::new("a", &["first"], 1_000),
        Node::new("second", &["first"], 1_000).branching(branch("b", "c")),
        Node::new("b", &["second"], 1_000),
        Node::new("c", &["second"], 1_000),
        Node::new("end", &["a", "b", "c"], 1_000),
    ];
    assert_eq!(ready(&after(nodes.clone(), &[done("decide", json!({ "warm": false }))])), ["c"]);
    let workflow = after(nodes, &[done("decide", json!({ "warm": true }))]);
    assert_eq!(ready(&workflow), ["a"]);
    assert_eq!(["second", "b", "c"].map(|name| status(&workflow, name)), [NodeStatus::Skipped; 3]);
}

#[test]
fn a_dead_workers_node_is_done_again_only_if_it_may_be() {
    use NodeStatus::{Failed, Pending};
    use WorkflowStatus::{RollingBack, Running};
    // (node, whether its worker had begun to act) -> what becomes of the workflow, of the node, and what it may have done
    let table = [
        (("claim", true), (Running, Pending, true)),
        (("claim", false), (Running, Pending, false)),
        (("side", true), (RollingBack, Failed, true)),
        (("side", false), (Running, Pending, false)),
    ];
    for ((name, acting), expected) in table {
        let mut events = vec![done("decide", json!({ "warm": true })), begun(name)];
        events.extend(acting.then(|| acts(name)));
        events.push(WorkflowEvent::NodeTakenOver { node: name.into() });
        let workflow = after(blueprint(), &events);
        let node = workflow.nodes.iter().find(|node| node.name == name).unwrap();
        assert_eq!((workflow.status, node.status, node.uncertain), expected, "{name}, acting: {acting}");
    }
}

#[test]
fn a_node_that_is_out_of_time_has_failed_and_may_have_had_its_effect() {
    let timed_out = WorkflowEvent::NodeTimedOut { node: "make".into() };
    let workflow = after(with_alternatives(1), &[begun("make"), acts("make"), timed_out, compensated("make")]);
    let node = &workflow.nodes[0];
    assert_eq!((node.status, node.uncertain, node.in_hand), (NodeStatus::Failed, true, false));
    assert_eq!(node.error.as_deref(), Some("timed out after 1.0s"));
    assert_eq!(ready(&workflow), ["make#2"], "an alternative is tried as after any other failure");
}

#[test]
fn a_workflow_fails_when_what_ran_beside_the_failed_node_is_compensated_too() {
    let nodes = ["first", "second", "third"].map(|name| Node::new(name, &[], 1_000)).to_vec();
    let events = [begun("first"), begun("second"), acts("second"), begun("third"), failed("first"), failed("third")];
    let workflow = after(nodes.clone(), &events);
    let next = |workflow: &Workflow| workflow::uncompensated(workflow).map(|node| node.name.clone());
    assert_eq!(next(&workflow).as_deref(), Some("third"), "the last one first");
    let events = [&events[..], &[compensated("third")]].concat();
    let workflow = after(nodes.clone(), &events);
    assert_eq!((workflow.status, next(&workflow).as_deref()), (WorkflowStatus::RollingBack, Some("second")));
    let stopped = &workflow.nodes[1];
    assert_eq!((stopped.error.as_deref(), stopped.uncertain), (Some("stopped because third failed"), true));
    let workflow = after(nodes, &[&events[..], &[compensated("second"), compensated("first")]].concat());
    assert_eq!((workflow.status, workflow.error.as_deref()), (WorkflowStatus::Failed, Some("third broke")));
}

#[test]
fn what_cannot_be_compensated_in_time_is_named_once() {
    let resource = Resource { kind: ResourceKind::Instance, name: "repl-made".into(), provider: Some("cloud".into()) };
    let late = WorkflowEvent::CompensationTimedOut { node: "make".into(), resource: resource.clone() };
    let begun = [begun("make"), failed("make")];
    let workflow = after(with_alternatives(1), &begun);
    assert_eq!(workflow::compensation_limit(&workflow), Some((NOW, workflow::COMPENSATION_LIMIT_MS)));
    let workflow = after(with_alternatives(1), &[&begun[..], std::slice::from_ref(&late)].concat());
    let risks: Vec<_> = workflow.orphan_risks.iter().map(|risk| (&*risk.node, &risk.resource)).collect();
    assert_eq!(risks, [("make", &resource)]);
    assert_eq!(ready(&workflow), ["make#2"], "the workflow goes on");
    assert_eq!(workflow::apply(&workflow, &late, NOW), Ok(Outcome::Unchanged));
}

#[test]
fn cancelling_skips_what_waits_and_ends_what_runs() {
    let workflow = after(blueprint(), &[begun("decide"), WorkflowEvent::CancelAsked]);
    assert_eq!(workflow.status, WorkflowStatus::Cancelled);
    assert_eq!(status(&workflow, "decide"), NodeStatus::Failed);
    assert!(workflow.nodes[1..].iter().all(|node| node.status == NodeStatus::Skipped));
    assert_eq!(workflow::apply(&workflow, &done("decide", json!(1)), NOW), Ok(Outcome::Unchanged));
}

#[test]
fn nothing_begins_before_what_it_follows() {
    let workflow = after(blueprint(), &[]);
    for event in [begun("bind"), done("bind", json!(1)), failed("spawn"), begun("choose")] {
        assert!(workflow::apply(&workflow, &event, NOW).is_err(), "{event:?}");
    }
}

#[test]
fn a_blueprint_that_cannot_work_is_refused() {
    let named = |name: &str, after: &[&str]| Node::new(name, after, 1_000);
    let branch = |on_error| Branch {
        decided_by: "a".into(),
        field: "x".into(),
        then: "b".into(),
        otherwise: "c".into(),
        on_error,
    };
    let arms = || vec![named("b", &["choose"]), named("c", &["choose"])];
    let choosing = |on_error, arms: Vec<Node>| {
        let start = vec![named("a", &[]), named("choose", &["a"]).branching(branch(on_error))];
        [start, arms].concat()
    };
    let table = [
        ("two of one name", vec![named("a", &[]), named("a", &[])], false),
        ("follows nobody we know", vec![named("a", &["z"])], false),
        ("a circle", vec![named("a", &["b"]), named("b", &["a"])], false),
        ("itself", vec![named("a", &["a"])], false),
        ("four tries", with_alternatives(3), false),
        ("three tries", with_alternatives(2), true),
        ("a branch to nowhere", choosing(false, vec![]), false),
        ("a branch", choosing(false, arms()), true),
        ("a fall-back with another output", choosing(true, arms()), false),
    ];
    for (what, nodes, good) in table {
        assert_eq!(workflow::check(&nodes).is_ok(), good, "{what}");
    }
}

/// A part of a random blueprint: a node that fails so often, or a choice between two.
#[derive(Debug, Clone)]
struct Part {
    after: Vec<prop::sample::Index>,
    failures: usize,
    alternatives: usize,
    choice: Option<(bool, bool)>,
}

fn part() -> impl Strategy<Value = Part> {
    let after = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    (after, 0..4usize, 0..3usize, prop::option::of(any::<(bool, bool)>()))
        .prop_map(|(after, failures, alternatives, choice)| Part { after, failures, alternatives, choice })
}

impl Part {
    /// Whether it comes to a good end, given how often it fails.
    fn works(&self) -> bool {
        match self.choice {
            None => self.failures <= self.alternatives,
            Some((takes_first, falls_back)) => !takes_first || self.failures == 0 || falls_back,
        }
    }
}

/// The nodes, and the names by which later parts follow each part.
fn build(parts: &[Part]) -> Vec<Node> {
    let (mut nodes, mut ends): (Vec<Node>, Vec<Vec<String>>) = (vec![], vec![]);
    for (i, part) in parts.iter().enumerate() {
        let mut follows: Vec<String> =
            part.after.iter().filter(|_| i > 0).flat_map(|index| ends[index.index(i)].clone()).collect();
        follows.sort();
        follows.dedup();
        let follows: Vec<&str> = follows.iter().map(String::as_str).collect();
        let name = |kind: &str| format!("{kind}{i}");
        if let Some((_, on_error)) = part.choice {
            let (decide, choose, first, second) = (name("decide"), name("choose"), name("first"), name("second"));
            let branch = Branch {
                decided_by: decide.clone(),
                field: "first".into(),
                then: first.clone(),
                otherwise: second.clone(),
                on_error,
            };
            nodes.push(Node::new(&decide, &follows, 1_000));
            nodes.push(Node::new(&choose, &[&decide], 1_000).branching(branch));
            nodes.extend([&first, &second].map(|arm| Node::new(arm, &[&choose], 1_000).as_logical(&name("part"))));
            ends.push(vec![first, second]);
        } else {
            let alternatives = vec![Alternative { parameters: json!(null) }; part.alternatives];
            nodes.push(Node::new(&name("part"), &follows, 1_000).with_alternatives(alternatives));
            ends.push(vec![name("part")]);
        }
    }
    nodes
}

/// Drives it with random picks until it ends; a part's tries fail as often as it says.
fn drive(parts: &[Part], picks: &[prop::sample::Index], cancel_at: Option<usize>) -> Workflow {
    let mut workflow = after(build(parts), &[]);
    let mut failures: Vec<usize> = parts.iter().map(|part| part.failures).collect();
    for turn in 0..1_000 {
        check_state(&workflow);
        if workflow.status.is_end() {
            return workflow;
        }
        let open = |n: &&Arc<Node>| n.status == NodeStatus::Running;
        let mut names: Vec<String> = workflow::ready(&workflow).into_iter().map(|n| n.name.clone()).collect();
        names.extend(workflow.nodes.iter().filter(open).map(|n| n.name.clone()));
        let event = if cancel_at == Some(turn) {
            WorkflowEvent::CancelAsked
        } else if workflow.status == WorkflowStatus::RollingBack {
            let failed = workflow.nodes.iter().filter(|n| n.status == NodeStatus::Failed);
            let open = failed.into_iter().map(|n| compensated(&n.name));
            open.into_iter()
                .find(|event| matches!(workflow::apply(&workflow, event, NOW), Ok(Outcome::Moved { .. })))
                .expect("one of them is to be compensated")
        } else {
            let name = &names[picks[turn % picks.len()].index(names.len())];
            next_event(&workflow, parts, &mut failures, name)
        };
        workflow = match workflow::apply(&workflow, &event, NOW) {
            Ok(Outcome::Moved { next, .. }) => next,
            other => panic!("{event:?}: {other:?}"),
        };
    }
    panic!("does not end: {workflow:#?}");
}

fn next_event(workflow: &Workflow, parts: &[Part], failures: &mut [usize], name: &str) -> WorkflowEvent {
    if status(workflow, name) == NodeStatus::Pending {
        return begun(name);
    }
    let digits: String = name.split('#').next().unwrap_or("").chars().filter(char::is_ascii_digit).collect();
    let part: usize = digits.parse().expect("every name carries its part's number");
    let may_fail = name.starts_with("part") || name.starts_with("first");
    if may_fail && failures[part] > 0 {
        failures[part] -= 1;
        return failed(name);
    }
    let first = parts[part].choice.is_some_and(|(first, _)| first);
    done(name, json!({ "first": first, "by": name }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_blueprint_ends_as_its_parts_do(
        parts in prop::collection::vec(part(), 1..6),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
    ) {
        let workflow = drive(&parts, &picks, None);
        let good = parts.iter().all(Part::works);
        prop_assert_eq!(workflow.status, if good { WorkflowStatus::Completed } else { WorkflowStatus::Failed });
        for i in (0..parts.len()).filter(|_| good) {
            prop_assert!(workflow::output(&workflow, &format!("part{i}")).is_some(), "part {} has no output", i);
        }
        prop_assert!(workflow.nodes.iter().all(|node| node.tries <= 1), "nothing runs twice");
    }

    #[test]
    fn a_cancelled_blueprint_ends_at_once_and_stays_so(
        parts in prop::collection::vec(part(), 1..6),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..40),
        turn in 0..30usize,
    ) {
        let workflow = drive(&parts, &picks, Some(turn));
        prop_assert!(workflow.status.is_end());
        for node in workflow.nodes.clone() {
            let late = workflow::apply(&workflow, &done(&node.name, json!(1)), NOW);
            prop_assert_eq!(late, Ok(Outcome::Unchanged));
        }
    }
}
