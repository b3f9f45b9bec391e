//! `repl workflow`: the durable DAGs behind runs and machines, drawn layer by layer.

use crate::args::{Json, Listing};
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::lookup;
use crate::settings::Settings;
use crate::show::{self, Table};
use std::collections::BTreeMap;
use wire::api::{CancelBody, NodeView, OrphanRiskView, WorkflowView};
use wire::model::time::show_duration;

#[derive(Debug, clap::Subcommand)]
pub enum Workflow {
    /// List workflows
    #[command(
        alias = "list",
        after_help = "Examples:
  repl workflow ls --limit 10"
    )]
    Ls(Listing),
    /// Draw one workflow's DAG with what each node did
    #[command(aliases = ["describe", "inspect"], after_help = "Examples:
  repl workflow show wfl_3
  repl workflow show")]
    Show {
        /// Id, beginning of an id, or the run it launched
        #[arg(default_value = lookup::LAST)]
        workflow: String,
        #[command(flatten)]
        json: Json,
    },
    /// Skip what has not begun, tell what has
    #[command(after_help = "Examples:
  repl workflow cancel wfl_3
  repl workflow cancel wfl_3 --reason 'wrong data'")]
    Cancel {
        /// Id, beginning of an id, or the run it launched
        workflow: String,
        /// Why, shown with the workflow later
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Make a new workflow of a failed one
    #[command(after_help = "Examples:
  repl workflow retry wfl_3")]
    Retry {
        /// Id, beginning of an id, or the run it launched
        workflow: String,
        #[command(flatten)]
        json: Json,
    },
}

pub async fn workflow(settings: &Settings, command: Workflow) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Workflow::Ls(listing) => list(&plane, listing).await,
        Workflow::Show { workflow, json } => {
            let id = lookup::workflow(&plane, &workflow).await?;
            let view: WorkflowView = plane.get(&format!("/workflows/{id}")).await?;
            if json.json { show::json(&view) } else { Ok(print(&view)) }
        }
        Workflow::Cancel { workflow, reason, json } => {
            act(&plane, &workflow, "cancel", &CancelBody { reason }, json).await
        }
        Workflow::Retry { workflow, json } => act(&plane, &workflow, "retry", &CancelBody::default(), json).await,
    }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let workflows: Vec<WorkflowView> = plane.list("/workflows", listing.limit).await?;
    if listing.json {
        return show::json(&workflows);
    }
    let mut table =
        Table::new(["ID", "INTENT", "STATUS", "FOR", "MANIFEST", "AGE", "ERROR"]).without_if_narrow(&["MANIFEST"]);
    for it in &workflows {
        table.row([
            it.id.clone(),
            it.intent.clone(),
            show::status(&it.status),
            show::or_dash(it.run.as_ref().or(it.instance.as_ref())),
            it.manifest.clone(),
            show::ago(it.created_at),
            it.error.clone().unwrap_or_default(),
        ]);
    }
    table.print("no workflows");
    Ok(0)
}

async fn act(plane: &ControlPlane, said: &str, verb: &str, body: &CancelBody, json: Json) -> Done {
    let id = lookup::workflow(plane, said).await?;
    let view: WorkflowView = plane.post(&format!("/workflows/{id}/{verb}"), body).await?;
    if json.json {
        return show::json(&view);
    }
    println!("{} {} {}", view.id, view.intent, show::status(&view.status));
    Ok(0)
}

fn print(it: &WorkflowView) -> u8 {
    let took = it.ended_at.map(|ended| show_duration(ended - it.created_at));
    show::pairs(&[
        ("id", Some(it.id.clone())),
        ("intent", Some(it.intent.clone())),
        ("status", Some(show::status(&it.status))),
        ("run", it.run.clone()),
        ("job", it.job.clone()),
        ("instance", it.instance.clone()),
        ("manifest", Some(it.manifest.clone())),
        ("parent", it.parent.clone()),
        ("took", took),
        ("cancelled for", it.cancel_reason.clone()),
        ("error", it.error.clone()),
        ("topology", Some(it.topology.clone())),
    ]);
    println!();
    for line in draw(&it.nodes).into_iter().chain(risks(&it.orphan_risks)) {
        println!("{}", show::wrapped(&line, 0, BEHIND_GUTTER));
    }
    0
}

/// Where the further lines of a node begin on a terminal.
const BEHIND_GUTTER: usize = 6;

/// Why a node is there that is none of the intent's own.
fn brought(node: &NodeView) -> Option<String> {
    let of = node.of.as_ref()?;
    Some(match node.pattern.as_deref()? {
        "insert-and-reconverge" => format!("inserted before {of}"),
        "parallel-fan-out" => format!("branch into {of}"),
        "retry-with-alternative" => format!("in place of {of}"),
        other => format!("{other} of {of}"),
    })
}

/// What may still exist although its workflow has given it up: a person looks for it.
fn risks(risks: &[OrphanRiskView]) -> Vec<String> {
    let line = |risk: &OrphanRiskView| {
        let at = risk.provider.as_ref().map_or_else(String::new, |provider| format!(" at {provider}"));
        let why = risk.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        format!("orphan risk: {} {}{at} may still exist, {} could not be undone{why}", risk.kind, risk.name, risk.node)
    };
    risks.iter().map(line).collect()
}

/// One row per node, deepest last; a gutter shows what waits for what: `├` shares its layer, `╰` closes it.
fn draw(nodes: &[NodeView]) -> Vec<String> {
    let depths = depths(nodes);
    let deepest = depths.values().copied().max().unwrap_or(0);
    let mut lines = Vec::new();
    for depth in 0..=deepest {
        let layer: Vec<&NodeView> =
            nodes.iter().filter(|node| depths.get(node.name.as_str()) == Some(&depth)).collect();
        for (at, node) in layer.iter().enumerate() {
            let gutter = match (layer.len(), at) {
                (1, _) => "●",
                (_, 0) => "├─┬─●",
                (many, at) if at + 1 == many => "│ ╰─●",
                _ => "│ ├─●",
            };
            lines.push(describe(gutter, node, nodes, depth));
        }
        if depth < deepest {
            lines.push("│".to_owned());
        }
    }
    lines
}

fn describe(gutter: &str, node: &NodeView, nodes: &[NodeView], depth: usize) -> String {
    let mut words = vec![format!("{gutter} {}", node.name), show::status(&node.status)];
    if node.logical != node.name {
        words.push(format!("as {}", node.logical));
    }
    words.extend(brought(node));
    words.extend(node.child.as_ref().map(|child| format!("by {child}")));
    if let (Some(from), Some(to)) = (node.started_at, node.ended_at) {
        words.push(show_duration(to - from));
    }
    if node.tries > 1 {
        words.push(format!("{} tries", node.tries));
    }
    // The node above says it unless the layer before had several.
    let plain_chain =
        node.after.len() == 1 && depth > 0 && nodes.iter().filter(|other| other.after == node.after).count() == 1;
    if !plain_chain && !node.after.is_empty() {
        words.push(format!("after {}", node.after.join(", ")));
    }
    words.extend(node.compensated_at.map(|_| "undone".to_owned()));
    words.extend(node.error.as_ref().map(|error| format!("— {error}")));
    words.extend(node.waiting_until.map(|until| format!("— looks again {}", show::until(until))));
    words.join("  ")
}

/// How many nodes come before, on the longest way. A name that no node has is ignored.
fn depths(nodes: &[NodeView]) -> BTreeMap<&str, usize> {
    let mut depths: BTreeMap<&str, usize> = nodes.iter().map(|node| (node.name.as_str(), 0)).collect();
    // In a DAG the longest way has as many steps as there are nodes, at most.
    for _ in 0..nodes.len() {
        for node in nodes {
            let before = node.after.iter().filter_map(|name| depths.get(name.as_str())).max();
            let depth = before.map_or(0, |before| before + 1);
            depths.insert(&node.name, depth.min(nodes.len()));
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, after: &[&str], status: &str) -> NodeView {
        NodeView {
            name: name.to_owned(),
            logical: name.to_owned(),
            after: after.iter().map(|name| name.to_string()).collect(),
            status: status.to_owned(),
            tries: 1,
            output: None,
            error: None,
            waiting_until: None,
            started_at: Some(0),
            ended_at: Some(12),
            compensated_at: None,
            pattern: None,
            of: None,
            child: None,
        }
    }

    #[test]
    fn what_a_pattern_brought_says_so() {
        let brought = |name: &str, after: &[&str], pattern: &str, of: &str| NodeView {
            pattern: Some(pattern.into()),
            of: Some(of.into()),
            ..node(name, after, "completed")
        };
        let why = Some("no capacity".to_owned());
        let failed = NodeView { compensated_at: Some(13), error: why, ..node("spawn", &[], "failed") };
        let nodes = [
            failed,
            brought("spawn#2", &[], "retry-with-alternative", "spawn"),
            brought("gpu", &["spawn"], "insert-and-reconverge", "boot"),
            brought("a", &["gpu"], "parallel-fan-out", "join"),
            NodeView { child: Some("wfl_9".into()), ..node("join", &["a"], "running") },
        ];
        let drawn = [
            "├─┬─● spawn  failed  12ms  undone  — no capacity",
            "│ ╰─● spawn#2  completed  in place of spawn  12ms",
            "│",
            "● gpu  completed  inserted before boot  12ms",
            "│",
            "● a  completed  branch into join  12ms",
            "│",
            "● join  running  by wfl_9  12ms",
        ];
        assert_eq!(draw(&nodes), drawn);
    }

    #[test]
    fn branches_stand_in_one_layer() {
        let nodes = [
            node("check-budget", &[], "completed"),
            node("claim", &["check-budget"], "failed"),
            node("spawn", &["check-budget"], "completed"),
            node("wait-for-boot", &["claim", "spawn"], "running"),
            node("sync-files", &["wait-for-boot"], "pending"),
        ];
        let drawn = [
            "● check-budget  completed  12ms",
            "│",
            "├─┬─● claim  failed  12ms  after check-budget",
            "│ ╰─● spawn  completed  12ms  after check-budget",
            "│",
            "● wait-for-boot  running  12ms  after claim, spawn",
            "│",
            "● sync-files  pending  12ms",
        ];
        assert_eq!(draw(&nodes), drawn);
        assert!(draw(&[]).is_empty());
    }

    #[test]
    fn what_may_still_exist_is_named_with_the_reason() {
        let risk = OrphanRiskView {
            node: "spawn-instance".into(),
            kind: "instance".into(),
            name: "repl-c0ntr0l1-m-i".into(),
            provider: Some("cloud".into()),
            error: Some("timed out".into()),
            at: 0,
        };
        let bare = OrphanRiskView { provider: None, error: None, ..risk.clone() };
        let lines = [
            "orphan risk: instance repl-c0ntr0l1-m-i at cloud may still exist, spawn-instance could not be undone: timed out",
            "orphan risk: instance repl-c0ntr0l1-m-i may still exist, spawn-instance could not be undone",
        ];
        assert_eq!(risks(&[risk, bare]), lines);
    }
}
