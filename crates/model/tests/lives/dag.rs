//! Every state that a small workflow can reach, with a branch that falls back, an alternative and a side path that
//! cannot be repeated. Gives the tables of workflow and node, and checks the scheduling at every state.

use crate::charting::{Chart, Move};
use crate::samples::{self, NOW};
use crate::walks::workflow_event;
use model::Outcome;
use model::manifest::ResourceKind;
use model::workflow::{
    Addition, Alternative, Branch, FanOutMode, Node, NodeStatus, Pattern, Resource, Workflow, WorkflowEvent,
    WorkflowStatus, apply, ready,
};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;

#[derive(Default)]
pub struct Walked {
    pub workflow: Chart,
    pub node: Chart,
    pub states: usize,
}

/// `choose` takes the warm machine or makes one; `side` runs beside both and cannot be repeated.
pub fn blueprint() -> Vec<Node> {
    let branch = Branch {
        decided_by: "decide".into(),
        field: "warm".into(),
        then: "claim".into(),
        otherwise: "spawn".into(),
        on_error: true,
    };
    let elsewhere = Alternative { parameters: json!({ "region": "elsewhere" }) };
    let mut side = Node::new("side", &["decide"], 1_000);
    side.idempotent = false;
    vec![
        Node::new("decide", &[], 1_000),
        Node::new("choose", &["decide"], 1_000).branching(branch),
        Node::new("claim", &["choose"], 1_000).as_logical("machine"),
        Node::new("spawn", &["choose"], 1_000).as_logical("machine").with_alternatives(vec![elsewhere]),
        Node::new("boot", &["spawn"], 1_000),
        side,
        Node::new("bind", &["claim", "boot"], 1_000),
    ]
}

/// `ask` may put nodes between itself and `join`.
pub fn growing() -> Vec<Node> {
    vec![Node::new("ask", &[], 1_000), Node::new("join", &["ask"], 1_000)]
}

pub fn addition(name: &str) -> Addition {
    let parameters = json!({ "for": name });
    Addition { name: name.into(), kind: "part".into(), parameters, timeout_ms: Some(1_000), idempotent: true }
}

fn patterns() -> Vec<Pattern> {
    let fan_out = |mode| Pattern::FanOut { join: "join".into(), branches: ["a", "b"].map(addition).to_vec(), mode };
    let insert = Pattern::Insert { before: "join".into(), nodes: vec![addition("i")] };
    let alternatives = vec![Alternative { parameters: json!({ "region": "elsewhere" }) }];
    let instead = |of: &str| Pattern::Alternatives { of: of.into(), alternatives: alternatives.clone() };
    vec![fan_out(FanOutMode::FirstFailure), fan_out(FanOutMode::Isolate), insert, instead("a")]
}

pub fn walked() -> Walked {
    let mut found = Walked::default();
    walk(&mut found, samples::workflow(blueprint()), &[]);
    let asked: Vec<WorkflowEvent> =
        patterns().into_iter().map(|pattern| WorkflowEvent::PatternAsked { by: "ask".into(), pattern }).collect();
    walk(&mut found, samples::workflow(growing()), &asked);
    found
}

fn walk(found: &mut Walked, first: Workflow, asked: &[WorkflowEvent]) {
    let mut seen = HashSet::from([key(&first)]);
    let mut waiting = vec![first];
    while let Some(workflow) = waiting.pop() {
        check(&workflow);
        for event in events(&workflow).into_iter().chain(asked.iter().cloned()) {
            let result = apply(&workflow, &event, NOW);
            let pair = (workflow.status.to_string(), workflow_event(&event));
            match result {
                Ok(Outcome::Moved { next, .. }) => {
                    let next = canonical(next);
                    found.workflow.moves.insert(Move::new(pair.0, pair.1, next.status.as_str()));
                    found.node.moves.extend(node_moves(&workflow, &event, &next));
                    if seen.insert(key(&next)) {
                        waiting.push(next);
                    }
                }
                Ok(Outcome::Unchanged) => drop(found.workflow.unchanged.insert(pair)),
                Err(_) => drop(found.workflow.refused.insert(pair)),
            }
        }
    }
    found.states += seen.len();
}

fn events(workflow: &Workflow) -> Vec<WorkflowEvent> {
    let wanted = WorkflowEvent::CancelWanted { reason: "too dear".into() };
    let mut all = vec![WorkflowEvent::Begun, wanted, WorkflowEvent::CancelAsked];
    for name in workflow.nodes.iter().map(|node| node.name.clone()) {
        let node = || name.clone();
        all.push(WorkflowEvent::NodeBegun { node: node() });
        all.push(WorkflowEvent::NodeActs { node: node() });
        all.push(WorkflowEvent::NodeWaits { node: node(), until: Some(NOW) });
        all.push(WorkflowEvent::NodeTroubled { node: node(), error: "broke".into(), uncertain: true, until: NOW });
        all.push(WorkflowEvent::NodeFailed { node: node(), error: "broke".into(), uncertain: false });
        all.push(WorkflowEvent::NodeTimedOut { node: node() });
        all.push(WorkflowEvent::Compensated { node: node() });
        all.push(WorkflowEvent::CompensationTroubled { node: node(), error: "broke".into(), until: NOW });
        all.push(WorkflowEvent::CompensationTimedOut { node: node(), resource: resource() });
        all.push(WorkflowEvent::NodeTakenOver { node: node() });
        all.push(WorkflowEvent::ChildBegun { node: node(), child: model::WorkflowId(9) });
        let outputs = if name == "decide" { vec![true, false] } else { vec![true] };
        all.extend(
            outputs.into_iter().map(|warm| WorkflowEvent::NodeDone { node: node(), output: json!({ "warm": warm }) }),
        );
    }
    all
}

fn resource() -> Resource {
    Resource { kind: ResourceKind::Instance, name: "repl-made".into(), provider: None }
}

/// How often something was tried, what was reported about it meanwhile and when the next try comes decide nothing here.
fn canonical(mut workflow: Workflow) -> Workflow {
    for node in workflow.nodes.iter_mut().map(Arc::make_mut) {
        node.tries = 0;
        node.uncertain = false;
        node.error = None;
        node.waiting_until = None;
        node.child = None;
    }
    (workflow.cancel_asked, workflow.cancel_reason) = (false, None);
    workflow.error = workflow.error.map(|_| "broke".into());
    workflow.orphan_risks.clear();
    workflow
}

fn key(workflow: &Workflow) -> String {
    serde_json::to_string(workflow).expect("a workflow is a document")
}

fn node_moves(before: &Workflow, event: &WorkflowEvent, after: &Workflow) -> Vec<Move> {
    let was = |name: &str| before.nodes.iter().find(|n| n.name == name).map(|n| n.status);
    let changed = after.nodes.iter().filter(|n| was(&n.name) != Some(n.status));
    let from = |node: &Node| was(&node.name).map_or("(none)", NodeStatus::as_str);
    changed.map(|node| Move::new(from(node), workflow_event(event), node.status.as_str())).collect()
}

/// What is true of a workflow in every state.
pub fn check(workflow: &Workflow) {
    use NodeStatus as N;
    let of = |name: &str| workflow.nodes.iter().find(|n| n.name == name).expect("a node of that name");
    let running = workflow.nodes.iter().any(|n| n.status == N::Running);
    match workflow.status {
        WorkflowStatus::Running => assert!(running || !ready(workflow).is_empty(), "stuck: {workflow:#?}"),
        WorkflowStatus::RollingBack => {
            assert!(workflow.nodes.iter().any(|n| n.status == N::Failed), "rolls back nothing: {workflow:#?}");
        }
        status if status.is_end() => assert!(workflow.nodes.iter().all(|n| n.status.is_end()), "{workflow:#?}"),
        _ => {}
    }
    if workflow.status == WorkflowStatus::Completed {
        assert!(workflow.nodes.iter().all(|n| n.branch.is_none() || n.status == N::Completed), "{workflow:#?}");
        for node in workflow.nodes.iter().filter(|n| n.status == N::Failed) {
            let stood_in = |n: &Arc<Node>| n.logical == node.logical && n.status == N::Completed;
            assert!(node.isolated || workflow.nodes.iter().any(stood_in), "completed over a failure: {workflow:#?}");
        }
    }
    // No task begins before everything it follows has come to an end.
    for node in workflow.nodes.iter().filter(|n| matches!(n.status, N::Running | N::Completed)) {
        assert!(node.after.iter().all(|name| of(name).status.is_end()), "out of order: {workflow:#?}");
    }
}

#[test]
fn a_workflow_is_never_stuck_and_never_out_of_order() {
    let found = walked();
    assert!(found.states > 100, "only {} states were reached", found.states);
}
