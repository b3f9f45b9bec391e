//! One plain example of each entity, to be varied by the tests. Nothing here has happened yet.

use model::agent::{Agent, AgentKind};
use model::allocation::Allocation;
use model::attempt::Attempt;
use model::instance::Instance;
use model::job::Job;
use model::manifest::Manifest;
use model::plan::{AgentPlan, StepPlan, TaskPlan};
use model::run::{LastError, Run};
use model::spec::{Command, RunSpec};
use model::step::{Offer, Step, ToolKind};
use model::task::Task;
use model::workflow::{Intent, Node, Workflow};
use model::*;
use std::sync::Arc;

/// Everything happens at once unless a test says otherwise: order is what matters.
pub const NOW: Timestamp = Timestamp(1_000);

pub fn error() -> LastError {
    LastError { code: "boom".into(), message: "it broke".into(), cause: None }
}

pub fn spec() -> RunSpec {
    RunSpec { max_duration_ms: Some(1_000), ..RunSpec::task(Command::Shell("true".into()), "local", "here") }
}

pub fn run() -> Run {
    Run { max_attempts: 2, ..Run::created(RunId(1), OrgId(1), "sample".into(), spec().terms(), NOW) }
}

pub fn attempt() -> Attempt {
    Attempt::open(RunId(1), 1, NOW)
}

/// One command, which may be tried twice at every level.
fn plan() -> AgentPlan {
    let step = StepPlan { max_tries: 2, ..StepPlan::new("command", ToolKind::Command) };
    let task = TaskPlan { max_tries: 2, ..TaskPlan::new("main", vec![step]) };
    AgentPlan { max_tries: 2, ..AgentPlan::new("rank-0", vec![task]) }
}

/// Its tasks are not even counted.
pub fn agent() -> Agent {
    Agent { tasks: Default::default(), ..Agent::planned(AgentId(1), &run(), AgentKind::Rank, 0, &plan()) }
}

/// Its steps are not even counted.
pub fn task() -> Task {
    Task { steps: Default::default(), ..Task::planned(TaskId(1), &agent(), 0, &plan().tasks[0]) }
}

pub fn step() -> Step {
    Step::planned(StepId(1), &task(), 0, &plan().tasks[0].steps[0])
}

pub fn offer() -> Offer {
    Offer { org: OrgId(1), tool: "crm".into() }
}

pub fn job() -> Job {
    let agent = Agent { submissions: 1, ..agent() };
    Job::submitted(JobId(1), &run(), &agent, WorkflowId(1), PoolId(1), NOW)
}

pub fn slot() -> Allocation {
    Allocation::free(AllocationId(1), OrgId(1), InstanceId(1), "somebody".into(), NOW)
}

pub fn instance() -> Instance {
    let name = "repl-abcdefgh-1-1".to_owned();
    let machine = Instance::announced(InstanceId(1), OrgId(1), PoolId(1), ManifestId(1), name, NOW);
    Instance { provider: "local".into(), region: "here".into(), nonce: "nonce".into(), desired_version: 0, ..machine }
}

pub fn workflow(nodes: Vec<Node>) -> Workflow {
    workflow::check(&nodes).expect("a blueprint of a test is well made");
    let nodes: Vec<Arc<Node>> = nodes.into_iter().map(Arc::new).collect();
    Workflow { created_at: NOW, ..Workflow::new(WorkflowId(1), ManifestId(1), OrgId(1), Intent::LaunchRun, &nodes) }
}

pub fn manifest() -> Manifest {
    Manifest::draft(&workflow(vec![]))
}
