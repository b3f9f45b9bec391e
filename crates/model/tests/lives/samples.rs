//! One plain example of each entity, to be varied by the tests. Nothing here has happened yet.

use model::agent::{Agent, AgentKind, AgentStatus};
use model::allocation::{Allocation, AllocationStatus};
use model::attempt::{Attempt, AttemptStatus};
use model::instance::{Instance, InstanceStatus};
use model::job::{FreezeState, Job, JobStatus};
use model::manifest::{Manifest, ManifestStatus};
use model::run::{LastError, Run, RunStatus};
use model::spec::{Command, FailureMode, OnLostControl, Priority, Resources, RunKind, RunSpec};
use model::step::{Step, StepStatus, Tool};
use model::task::{Task, TaskStatus};
use model::workflow::{Intent, Node, Workflow};
use model::*;
use std::sync::Arc;

/// Everything happens at once unless a test says otherwise: order is what matters.
pub const NOW: Timestamp = Timestamp(1_000);

pub fn error() -> LastError {
    LastError { code: "boom".into(), message: "it broke".into(), cause: None }
}

pub fn spec() -> RunSpec {
    RunSpec {
        kind: RunKind::Task,
        command: Command::Shell("true".into()),
        env: Default::default(),
        secrets: vec![],
        files: None,
        stdin: None,
        working_dir: None,
        resources: Resources::default(),
        provider: "local".into(),
        region: "here".into(),
        max_duration_ms: Some(1_000),
        stop_duration_ms: 10_000,
        hold_ms: None,
        budget: None,
        retry: None,
        priority: Priority::Normal,
        artifacts: vec![],
        merge: false,
        on_lost_control: OnLostControl::Finish,
        failure_mode: FailureMode::FailFast,
        plan: Default::default(),
        init_checksum: None,
    }
}

pub fn run() -> Run {
    Run {
        id: RunId(1),
        org: OrgId(1),
        name: "sample".into(),
        spec: spec(),
        status: RunStatus::Created,
        phase: None,
        outcome: None,
        pause_asked: None,
        pause_reason: None,
        termination: None,
        attempt: 1,
        max_attempts: 2,
        plan_version: 1,
        replanning: false,
        agent_count: 0,
        task_count: 0,
        step_count: 0,
        submission: 1,
        created_at: NOW,
        queued_at: None,
        running_at: None,
        completed_at: None,
        cancelled_at: None,
        deleted_at: None,
        since: NOW,
        retry_at: None,
        active_ms: 0,
        active_since: None,
        exit_code: None,
        signal: None,
        last_error: None,
        late_evidence: vec![],
        credits_end_at: None,
        ended_by: None,
        last_at: NOW,
        version: 1,
    }
}

pub fn attempt() -> Attempt {
    Attempt {
        run: RunId(1),
        number: 1,
        status: AttemptStatus::Open,
        reserved: Credits::ZERO,
        charged: Credits::ZERO,
        refunded: Credits::ZERO,
        uncollected: Credits::ZERO,
        opened_at: NOW,
        ended_at: None,
        tree: Default::default(),
    }
}

pub fn agent() -> Agent {
    Agent {
        id: AgentId(1),
        run: RunId(1),
        attempt: 1,
        plan_version: 1,
        sequence: 0,
        kind: AgentKind::Rank,
        name: "rank-0".into(),
        status: AgentStatus::Pending,
        outcome: None,
        mode: FailureMode::FailFast,
        parallel: 1,
        tries: 0,
        max_tries: 2,
        timeout_ms: None,
        due_at: None,
        tasks: Default::default(),
        task_count: 0,
        ending: None,
        cut: false,
        stopping: false,
        last_error: None,
        started_at: None,
        ended_at: None,
    }
}

pub fn task() -> Task {
    Task {
        id: TaskId(1),
        run: RunId(1),
        attempt: 1,
        agent: AgentId(1),
        sequence: 0,
        name: "main".into(),
        status: TaskStatus::Pending,
        outcome: None,
        mode: FailureMode::FailFast,
        parallel: 1,
        tries: 0,
        max_tries: 2,
        timeout_ms: None,
        due_at: None,
        waits_for: 0,
        dependents: vec![],
        steps: Default::default(),
        step_count: 0,
        ending: None,
        cut: false,
        last_error: None,
        started_at: None,
        ended_at: None,
    }
}

pub fn step() -> Step {
    Step {
        id: StepId(1),
        run: RunId(1),
        attempt: 1,
        agent: AgentId(1),
        task: TaskId(1),
        sequence: 0,
        name: "command".into(),
        tool: Tool::Command,
        idempotent: false,
        status: StepStatus::Pending,
        uncertain: false,
        outcome_unknown: false,
        tries: 0,
        max_tries: 2,
        timeout_ms: None,
        due_at: None,
        last_error: None,
        started_at: None,
        ended_at: None,
    }
}

pub fn job() -> Job {
    Job {
        id: JobId(1),
        org: OrgId(1),
        run: RunId(1),
        attempt: 1,
        agent: AgentId(1),
        submission: 1,
        workflow: WorkflowId(1),
        pool: PoolId(1),
        status: JobStatus::Submitted,
        queue_seq: None,
        turn: None,
        instance: None,
        allocation: None,
        warm: false,
        epoch: 0,
        reason: None,
        message: None,
        exit_code: None,
        signal: None,
        lifecycle_error: None,
        submitted_at: NOW,
        placed_at: None,
        accepted_at: None,
        running_at: None,
        started_at: None,
        freeze: FreezeState::Moving,
        stop_asked_at: None,
        abort: false,
        remove_at: None,
        gone_at: None,
        stopped_at: None,
        fenced: false,
        ended_at: None,
        stop_duration_ms: 10_000,
        silent_since: None,
        lost: false,
        final_offset: None,
        logged_to: 0,
        log_cut: false,
        active_ms: 0,
        price_micro: 0,
        windows: 0,
        charged_to: None,
        synced_blobs: 0,
        unenforced: None,
        version: 1,
    }
}

pub fn slot() -> Allocation {
    Allocation {
        id: AllocationId(1),
        org: OrgId(1),
        manifest: None,
        instance: InstanceId(1),
        job: None,
        status: AllocationStatus::Available,
        debug_hold_until: None,
        extensions: 0,
        account: Default::default(),
        user: "somebody".into(),
        workdir: "work_1".into(),
        workdir_released: false,
        created_at: NOW,
        updated_at: NOW,
        completed_at: None,
        version: 1,
    }
}

pub fn instance() -> Instance {
    Instance {
        id: InstanceId(1),
        org: OrgId(1),
        pool: PoolId(1),
        manifest: ManifestId(1),
        workflow: None,
        provider: "local".into(),
        region: "here".into(),
        name: "repl-abcdefgh-1-1".into(),
        nonce: "nonce".into(),
        handle: None,
        status: InstanceStatus::Spawning,
        resources: Resources::default(),
        init_checksum: None,
        on_lost_control: OnLostControl::Finish,
        price_micro: 0,
        desired_version: 0,
        observed_version: 0,
        session: 0,
        workdirs: 1,
        created_at: NOW,
        ready_at: None,
        last_seen_at: None,
        lost_at: None,
        idle_since: None,
        unused_from: None,
        terminating_at: None,
        terminated_at: None,
        displaced: false,
        respawns: 0,
        host: None,
        runner_version: None,
        containment: None,
        version: 1,
    }
}

pub fn workflow(nodes: Vec<Node>) -> Workflow {
    workflow::check(&nodes).expect("a blueprint of a test is well made");
    let nodes: Vec<Arc<Node>> = nodes.into_iter().map(Arc::new).collect();
    Workflow { created_at: NOW, ..Workflow::new(WorkflowId(1), ManifestId(1), OrgId(1), Intent::LaunchRun, &nodes) }
}

pub fn manifest() -> Manifest {
    Manifest {
        id: ManifestId(1),
        org: OrgId(1),
        workflow: WorkflowId(1),
        intent: Intent::LaunchRun,
        status: ManifestStatus::Draft,
        outcome: None,
        created_at: NOW,
        sealed_at: None,
        retain_until: None,
        deleted_at: None,
    }
}
