//! The tree of a plan as a drawing: what `repl run --dry-run` shows of a run of agents.

use crate::complaint::{Complaint, Done};
use crate::{say, show, summary};
use plan::{Compiled, compile};
use std::fmt::Write as _;
use wire::api::{AgentsPlan, Submit};
use wire::model::plan::{AgentPlan, StepPlan, TaskPlan};

/// Lines that are drawn; a plan may have 100,000 steps.
const MOST_LINES: usize = 200;

pub fn dry_run(answer: &AgentsPlan, submit: &Submit, json: bool) -> Done {
    if json {
        return show::json(answer);
    }
    let document = submit.plan.as_ref().and_then(|plan| plan::check(plan).ok());
    let document = document.ok_or_else(|| Complaint::refused("the plan cannot be read"))?.document;
    print!("{}", drawing(&compile(&document)));
    println!();
    for machine in &answer.machines {
        println!("machine of {}", say::harmless(&machine.agents.join(", ")));
        show::pairs(&summary::planned_machine(machine));
        println!();
    }
    for warning in &answer.warnings {
        println!("hint      {}", say::harmless(warning));
    }
    println!(
        "estimate  at most {} credits for models and first calls of tools; machines are charged by the hour",
        answer.estimate
    );
    println!("available {} credits", answer.credits_available);
    Ok(0)
}

/// Each agent with its tasks and steps, indented.
fn drawing(plan: &Compiled) -> String {
    let name = plan.name.as_deref().unwrap_or("a run of agents");
    let mut text = format!("{}\n", say::harmless(name));
    if plan.agents.is_empty() {
        let planner = plan.planner.as_ref().map_or("a planner", |planner| planner.tool.as_str());
        let _ = writeln!(text, "└─ planner ({planner}) makes up to {} agents for the goal", plan.rules.max_agents);
        return text;
    }
    let lines: Vec<String> = agents(&plan.agents);
    for line in lines.iter().take(MOST_LINES) {
        let _ = writeln!(text, "{line}");
    }
    if lines.len() > MOST_LINES {
        let _ = writeln!(text, "… and {} more lines", lines.len() - MOST_LINES);
    }
    text
}

fn agents(agents: &[AgentPlan]) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, agent) in agents.iter().enumerate() {
        let (branch, below) = branch(at + 1 == agents.len(), "");
        let machine = if agent.machine.is_some() { " · on a machine" } else { "" };
        let together = if agent.parallel > 1 { format!(" · {} tasks at once", agent.parallel) } else { String::new() };
        lines.push(format!("{branch}{}{together}{machine}", say::harmless(&agent.name)));
        for (at, task) in agent.tasks.iter().enumerate() {
            lines.extend(task_lines(agent, task, at + 1 == agent.tasks.len(), &below));
        }
    }
    lines
}

fn task_lines(agent: &AgentPlan, task: &TaskPlan, last: bool, indent: &str) -> Vec<String> {
    let (branch_of_task, below) = branch(last, indent);
    let mut said = say::harmless(&task.name);
    if task.for_each.is_some() {
        said.push_str("[…]");
    }
    let after: Vec<&str> =
        task.after.iter().filter_map(|at| agent.tasks.get(*at)).map(|task| task.name.as_str()).collect();
    if !after.is_empty() {
        let _ = write!(said, " · after {}", say::harmless(&after.join(", ")));
    }
    if task.condition.is_some() {
        said.push_str(" · if");
    }
    let mut lines = vec![format!("{branch_of_task}{said}")];
    for (at, step) in task.steps.iter().enumerate() {
        let (branch, _) = branch(at + 1 == task.steps.len(), &below);
        lines.push(format!("{branch}{}", step_line(step)));
    }
    lines
}

fn step_line(step: &StepPlan) -> String {
    let mut line = format!("{} ({})", say::harmless(&step.name), step.tool);
    if !step.idempotent && step.tool.has_effect() {
        line.push_str(" · once");
    }
    if step.policy == Some(wire::model::plan::Policy::Ask) {
        line.push_str(" · asks first");
    }
    line
}

/// The sign in front of a line, and what stands in front of the lines below it.
pub fn branch(last: bool, indent: &str) -> (String, String) {
    match last {
        true => (format!("{indent}└─ "), format!("{indent}   ")),
        false => (format!("{indent}├─ "), format!("{indent}│  ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_plan_is_drawn_as_a_tree() {
        let document = json!({ "type": "agents", "name": "market", "inputs": { "people": ["a"] }, "agents": [
            { "name": "research", "parallelism": "dag", "tasks": [
                { "name": "sources", "steps": [{ "name": "page", "http": { "url": "https://data.example/" } }] },
                { "name": "mail", "depends_on": ["sources"], "for_each": "${{ inputs.people }}", "if": true, "steps": [
                    { "name": "send", "http": { "method": "POST", "url": "https://mail.example/" }, "policy": "ask" },
                    { "wait": "1m" },
                ] },
            ] },
            { "name": "build", "tasks": [{ "steps": [{ "name": "make", "command": "make" }] }] },
        ] });
        let drawn = drawing(&compile(&plan::check(&document).unwrap().document));
        assert_eq!(
            drawn,
            "market\n\
             ├─ research · 5 tasks at once\n\
             │  ├─ sources\n\
             │  │  └─ page (http)\n\
             │  └─ mail[…] · after sources · if\n\
             │     ├─ send (http) · once · asks first\n\
             │     └─ step-2 (wait)\n\
             └─ build · on a machine\n   \
                └─ task-1\n      \
                   └─ make (command) · once\n"
        );
        let goal = json!({ "type": "agents", "goal": "g", "planner": { "exec": ["./plan"] }, "max_agents": 3 });
        let drawn = drawing(&compile(&plan::check(&goal).unwrap().document));
        assert_eq!(drawn, "a run of agents\n└─ planner (exec) makes up to 3 agents for the goal\n");
    }
}
