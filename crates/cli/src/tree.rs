//! The tree of a run of agents as it stands: states, times, tries, costs and errors, with a bound on its length. `repl status` prints it, once or
//! again and again.

use crate::drawing::branch;
use crate::say::one_line;
use crate::show::{self, Colour, paint};
use std::collections::BTreeMap;
use wire::api::{AgentView, CountsView, ErrorView, StepView, TaskView, Tree};
use wire::model::Credits;
use wire::model::time::show_duration;

/// Lines that are drawn; a run may have 100,000 steps.
pub const MOST_LINES: usize = 200;

/// All of it if it is short; else what has ended well is only counted, and what is still too long is cut.
pub fn lines(tree: &Tree, most: usize, now: i64) -> Vec<String> {
    let whole = drawn(tree, Detail::All, now);
    let mut lines = if whole.len() <= most { whole } else { drawn(tree, Detail::NotDone, now) };
    if lines.len() > most {
        let left = lines.len() - most + 1;
        lines.truncate(most.saturating_sub(1));
        lines.push(format!("… and {left} more lines"));
    }
    if tree.cut {
        lines.push(format!("more than is shown: GET /api/v1/runs/{}/steps has all", tree.run.id));
    }
    lines
}

#[derive(Clone, Copy, PartialEq)]
enum Detail {
    All,
    /// What is below a completed agent or task is only counted.
    NotDone,
}

struct Pen {
    detail: Detail,
    now: i64,
    lines: Vec<String>,
}

fn drawn(tree: &Tree, detail: Detail, now: i64) -> Vec<String> {
    let mut pen = Pen { detail, now, lines: Vec::new() };
    let agents: Vec<&AgentView> = tree.agents.iter().filter(|agent| agent.kind != "system").collect();
    for (at, agent) in agents.iter().enumerate() {
        pen.agent(agent, at + 1 == agents.len());
    }
    pen.lines
}

impl Pen {
    fn agent(&mut self, agent: &AgentView, last: bool) {
        let (branch, below) = branch(last, "");
        let folded = self.detail == Detail::NotDone && agent.status == "completed";
        let mut said = vec![bold(&agent.name), state(&agent.status, agent.outcome.as_deref())];
        said.extend(self.took(agent.started_at, agent.ended_at));
        said.extend(tries(agent.tries));
        said.extend(cost(agent.credits_charged_micro.unwrap_or(0)));
        said.extend((folded || agent.tasks.is_empty()).then(|| counted(&agent.task_counts, "task")).flatten());
        let machines = agent.jobs.iter().rev().find_map(|job| job.instance.as_ref());
        said.extend(machines.map(|machine| format!("on {machine}")));
        self.lines.push(format!("{branch}{}", said.join(" · ")));
        // An error goes up from the step that has it; where it began is where it is told.
        let told = agent.tasks.iter().any(|task| is_same(&agent.last_error, &task.last_error));
        self.error(agent.last_error.as_ref().filter(|_| !told), &below);
        if folded {
            return;
        }
        for (at, task) in agent.tasks.iter().enumerate() {
            self.task(task, at + 1 == agent.tasks.len(), &below);
        }
    }

    fn task(&mut self, task: &TaskView, last: bool, indent: &str) {
        let (branch, below) = branch(last, indent);
        let folded = self.detail == Detail::NotDone && task.status == "completed";
        let mut said = vec![one_line(&task.name), state(&task.status, task.outcome.as_deref())];
        said.extend(task.unneeded.then(|| "not needed".to_owned()));
        said.extend(self.took(task.started_at, task.ended_at));
        said.extend(tries(task.tries));
        said.extend((folded || task.steps.is_empty()).then(|| counted(&task.step_counts, "step")).flatten());
        self.lines.push(format!("{branch}{}", said.join(" · ")));
        let told = task.steps.iter().any(|step| is_same(&task.last_error, &step.last_error));
        self.error(task.last_error.as_ref().filter(|_| !told), &below);
        if folded {
            return;
        }
        let mut children: BTreeMap<&str, Vec<&StepView>> = BTreeMap::new();
        for step in &task.steps {
            children.entry(step.parent.as_deref().unwrap_or_default()).or_default().push(step);
        }
        self.steps("", &children, &below);
    }

    fn steps(&mut self, parent: &str, children: &BTreeMap<&str, Vec<&StepView>>, indent: &str) {
        let steps = children.get(parent).map_or(&[][..], Vec::as_slice);
        for (at, step) in steps.iter().enumerate() {
            let (branch, below) = branch(at + 1 == steps.len(), indent);
            // A child is called after its parent: `write/t3`.
            let name = if parent.is_empty() { step.name.as_str() } else { after_slash(&step.name) };
            let mut said = vec![format!("{} ({})", one_line(name), step.tool), step_state(step)];
            said.extend(self.took(step.started_at, step.ended_at));
            said.extend(tries(step.tries));
            let below_it = children.get(step.id.as_str()).into_iter().flatten();
            let charged: i64 = below_it.map(|child| child.credits_charged_micro).sum();
            said.extend(cost(step.credits_charged_micro + charged));
            said.extend(step.replayed.then(|| "from its record".to_owned()));
            said.extend(step.unneeded.then(|| "not needed".to_owned()));
            said.extend(step.due_at.filter(|due| *due > self.now).map(|due| format!("goes on {}", show::until(due))));
            self.lines.push(format!("{branch}{}", said.join(" · ")));
            self.error(step.last_error.as_ref().filter(|_| step.status != "completed"), &below);
            self.steps(&step.id, children, &below);
        }
    }

    fn error(&mut self, error: Option<&ErrorView>, indent: &str) {
        if let Some(error) = error {
            self.lines.push(format!("{indent}{} ({})", one_line(&error.message), error.code));
        }
    }

    fn took(&self, from: Option<i64>, to: Option<i64>) -> Option<String> {
        let from = from?;
        Some(paint(Colour::Dim, &show_duration((to.unwrap_or(self.now) - from).max(0))))
    }
}

fn bold(text: &str) -> String {
    paint(Colour::Bold, &one_line(text))
}

fn after_slash(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, rest)| rest)
}

/// `completed, partial`; a plain success is not said twice.
fn state(status: &str, outcome: Option<&str>) -> String {
    match outcome.filter(|outcome| *outcome != "success") {
        Some(outcome) => format!("{}, {outcome}", show::status(status)),
        None => show::status(status),
    }
}

fn step_state(step: &StepView) -> String {
    match (step.waits.as_deref(), step.uncertain || step.outcome_unknown) {
        _ if step.verifying => format!("{}, its `verify` is asked", show::status(&step.status)),
        (_, true) => format!("{}, outcome unknown", show::status(&step.status)),
        (Some("approval"), _) => paint(Colour::Yellow, "waits for an approval"),
        (Some("ticket"), _) => paint(Colour::Yellow, "waits for a decision"),
        (Some("timer"), _) => "waits".to_owned(),
        (Some("poller"), _) => "waits for a program".to_owned(),
        _ => show::status(&step.status),
    }
}

fn tries(tries: i64) -> Option<String> {
    (tries > 1).then(|| format!("{tries} tries"))
}

/// What is free says nothing.
fn cost(micro: i64) -> Option<String> {
    (micro > 0).then(|| show::credits(&Credits(micro).to_string()))
}

/// `3 tasks: 2 completed, 1 pending`.
fn counted(counts: &CountsView, noun: &str) -> Option<String> {
    let all = [
        (counts.failed, "failed"),
        (counts.cancelled, "cancelled"),
        (counts.skipped, "skipped"),
        (counts.running, "running"),
        (counts.waiting, "waiting"),
        (counts.paused, "paused"),
        (counts.completed + counts.partial, "completed"),
        (counts.pending, "pending"),
    ];
    let total: i64 = all.iter().map(|(count, _)| count).sum();
    let said: Vec<String> =
        all.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    (total > 0).then(|| format!("{}: {}", show::count(total, noun), said.join(", ")))
}

fn is_same(one: &Option<ErrorView>, other: &Option<ErrorView>) -> bool {
    one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.code == other.code && one.message == other.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tree(agents: Value) -> Tree {
        Tree { run: crate::summary::sample(), agents: serde_json::from_value(agents).unwrap(), cut: false }
    }

    fn step(id: &str, name: &str, status: &str, more: Value) -> Value {
        let mut step = json!({ "id": id, "name": name, "task": "tsk_1", "tool": "http", "status": status,
            "uncertain": false, "tries": 1, "last_error": null, "started_at": 1_000, "ended_at": 3_000 });
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        step
    }

    fn task(name: &str, status: &str, steps: Vec<Value>) -> Value {
        json!({ "id": "tsk_1", "name": name, "agent": "agt_1", "status": status, "tries": 1, "last_error": null,
            "started_at": 1_000, "ended_at": 5_000, "step_counts": { "completed": steps.len() }, "steps": steps })
    }

    fn agent(name: &str, status: &str, outcome: Option<&str>, tasks: Vec<Value>) -> Value {
        json!({ "id": "agt_1", "name": name, "kind": "planned", "attempt": 1, "sequence": 0, "status": status, "outcome": outcome,
            "tries": 1, "last_error": null, "started_at": 1_000, "ended_at": null, "task_counts": { "completed": 1, "pending": 2 },
            "tasks": tasks, "jobs": [] })
    }

    #[test]
    fn a_run_is_drawn_as_it_stands() {
        let error = json!({ "code": "http_500", "message": "the server failed", "cause": null });
        let steps = vec![
            step("stp_1", "page", "completed", json!({ "replayed": true })),
            step("stp_2", "write", "running", json!({ "ended_at": null, "tries": 2 })),
            step(
                "stp_3",
                "write/t1",
                "completed",
                json!({ "parent": "stp_2", "tool": "llm", "credits_charged_micro": 250_000 }),
            ),
            step("stp_6", "write/t1/c1", "completed", json!({ "parent": "stp_2", "credits_charged_micro": 1_750_000 })),
            step("stp_4", "mail", "waiting", json!({ "waits": "approval", "ended_at": null })),
            step(
                "stp_5",
                "pay",
                "running",
                json!({ "uncertain": true, "waits": "ticket", "ended_at": null, "last_error": error }),
            ),
        ];
        let mut one = agent("research", "running", None, vec![task("sources", "running", steps)]);
        one["credits_charged_micro"] = json!(1_000_000);
        let drawn = lines(&tree(json!([one, agent("later", "pending", None, vec![])])), MOST_LINES, 6_000);
        let expected = [
            "├─ research · running · 5.0s · 1 credit",
            "│  └─ sources · running · 4.0s",
            "│     ├─ page (http) · completed · 2.0s · from its record",
            "│     ├─ write (http) · running · 5.0s · 2 tries · 2 credits",
            "│     │  ├─ t1 (llm) · completed · 2.0s · 0.25 credits",
            "│     │  └─ t1/c1 (http) · completed · 2.0s · 1.75 credits",
            "│     ├─ mail (http) · waits for an approval · 5.0s",
            "│     └─ pay (http) · running, outcome unknown · 5.0s",
            "│        the server failed (http_500)",
            "└─ later · pending · 5.0s · 3 tasks: 1 completed, 2 pending",
        ];
        assert_eq!(drawn, expected);
    }

    #[test]
    fn what_has_ended_well_is_only_counted_in_a_large_run() {
        let done = |n: usize| step(&format!("stp_{n}"), &format!("s{n}"), "completed", json!({}));
        let many = task("many", "completed", (0..300).map(done).collect());
        let open = task("open", "running", vec![step("stp_x", "x", "running", json!({}))]);
        let agents = json!([
            agent("a", "completed", Some("partial"), vec![many.clone()]),
            agent("b", "running", None, vec![many, open])
        ]);
        let drawn = lines(&tree(agents), MOST_LINES, 6_000);
        let expected = [
            "├─ a · completed, partial · 5.0s · 3 tasks: 1 completed, 2 pending",
            "└─ b · running · 5.0s",
            "   ├─ many · completed · 4.0s · 300 steps: 300 completed",
            "   └─ open · running · 4.0s",
            "      └─ x (http) · running · 2.0s",
        ];
        assert_eq!(drawn, expected);
        let wide: Vec<Value> = (0..500).map(|n| agent(&format!("a{n}"), "running", None, vec![])).collect();
        let drawn = lines(&tree(json!(wide)), MOST_LINES, 6_000);
        assert_eq!((drawn.len(), drawn.last().map(String::as_str)), (MOST_LINES, Some("… and 301 more lines")));
    }
}
