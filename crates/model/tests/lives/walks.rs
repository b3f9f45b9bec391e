//! What every life is walked through: its states with the flags that matter, its events with small payloads, and what
//! both are called in the tables.

use crate::calls;
use crate::charting::{Chart, Names, chart};
use crate::dag;
use crate::samples::{self, NOW, error};
use model::agent::{Agent, AgentEvent, AgentStatus};
use model::allocation::{Allocation, AllocationEvent, AllocationStatus};
use model::attempt::{Attempt, AttemptEvent, AttemptStatus};
use model::instance::{Instance, InstanceEvent, InstanceStatus, ProviderQueue};
use model::job::{FreezeState, Job, JobEvent, JobReason, JobStatus, JobStatus as S};
use model::manifest::{Manifest, ManifestEvent, ManifestStatus};
use model::run::{PauseReason, Run, RunEvent, RunOutcome, RunReason, RunStatus, Termination, Ticket};
use model::step::{Step, StepEvent, StepStatus, StepWait};
use model::task::{Task, TaskEvent, TaskStatus};
use model::workflow::{WorkflowEvent, WorkflowStatus};
use model::*;

pub fn walked(name: &str) -> Chart {
    match name {
        "run" => {
            let events: Vec<RunEvent> = run_events().into_iter().filter(|e| !is_replan(e)).collect();
            chart(&RUN, &runs(), &events, run::apply)
        }
        "replan" => {
            let runs = [false, true].map(|replanning| Run { replanning, status: RunStatus::Running, ..samples::run() });
            chart(&REPLAN, &runs, &run_events().into_iter().filter(is_replan).collect::<Vec<_>>(), run::apply)
        }
        "attempt" => chart(&ATTEMPT, &attempts(), &attempt_events(), attempt::apply),
        "agent" => chart(&AGENT, &agents(), &agent_events(), agent::apply),
        "task" => chart(&TASK, &tasks(), &task_events(), task::apply),
        "step" => chart(&STEP, &steps(), &step_events(), step::apply),
        "job" => {
            let beside = |e: &JobEvent| is_voice(e) || is_freeze(e);
            chart(&JOB, &jobs(), &job_events().into_iter().filter(|e| !beside(e)).collect::<Vec<_>>(), job::apply)
        }
        "freeze" => {
            let open = jobs().into_iter().filter(|job| matches!(job.status, S::Submitted | S::Running));
            let all = |job: Job| FreezeState::ALL.iter().map(move |freeze| Job { freeze: *freeze, ..job.clone() });
            // Without a machine there is nothing on its way.
            let real =
                |job: &Job| job.status == S::Running || matches!(job.freeze, FreezeState::Moving | FreezeState::Frozen);
            let open: Vec<Job> = open.flat_map(all).filter(real).collect();
            chart(&FREEZE, &open, &job_events().into_iter().filter(is_freeze).collect::<Vec<_>>(), job::apply)
        }
        "silence" => {
            let placed: Vec<Job> = jobs().into_iter().filter(|job| job.epoch > 0 && !job.status.is_end()).collect();
            chart(&SILENCE, &placed, &job_events().into_iter().filter(is_voice).collect::<Vec<_>>(), job::apply)
        }
        "allocation" => chart(&ALLOCATION, &slots(), &slot_events(), allocation::apply),
        "instance" => chart(&INSTANCE, &instances(), &instance_events(), instance::apply),
        "workflow" => dag::walked().workflow,
        "node" => dag::walked().node,
        "manifest" => chart(&MANIFEST, &manifests(), &manifest_events(), manifest::apply),
        "execution" => calls::execution_chart(),
        "orchestrator" => calls::orchestrator_chart(),
        other => panic!("no life is called {other}"),
    }
}

pub const RUN: Names<Run, RunEvent> = Names { state: run_state, event: run_event };
/// Beside its status: whether a planner works on the next plan.
pub const REPLAN: Names<Run, RunEvent> =
    Names { state: |run| (if run.replanning { "replanning" } else { "planned" }).to_owned(), event: run_event };
pub const ATTEMPT: Names<Attempt, AttemptEvent> =
    Names { state: |a| a.status.to_string(), event: |e| named_with(attempt::name(*e), ended_as(e)) };
pub const AGENT: Names<Agent, AgentEvent> =
    Names { state: |a| a.status.to_string(), event: |e| agent::name(e).to_owned() };
pub const TASK: Names<Task, TaskEvent> = Names { state: |t| t.status.to_string(), event: |e| task::name(e).to_owned() };
pub const STEP: Names<Step, StepEvent> = Names { state: step_state, event: |e| step::name(e).to_owned() };
pub const JOB: Names<Job, JobEvent> = Names { state: job_state, event: job_event };
pub const FREEZE: Names<Job, JobEvent> = Names { state: freeze, event: job_event };
pub const SILENCE: Names<Job, JobEvent> = Names { state: voice, event: job_event };
pub const ALLOCATION: Names<Allocation, AllocationEvent> =
    Names { state: slot_state, event: |e| allocation::name(e).to_owned() };
pub const INSTANCE: Names<Instance, InstanceEvent> =
    Names { state: |i| i.status.to_string(), event: |e| instance::name(e).to_owned() };
pub const MANIFEST: Names<Manifest, ManifestEvent> =
    Names { state: |m| m.status.to_string(), event: |e| manifest_event(e).to_owned() };

fn named_with(name: &str, detail: Option<String>) -> String {
    detail.map_or_else(|| name.to_owned(), |detail| format!("{name}({detail})"))
}

// Run

fn run_state(run: &Run) -> String {
    let detail = match &run.termination {
        _ if run.deleted_at.is_some() => Some("deleted".to_owned()),
        Some(t) if !run.status.is_end() => Some(format!("to {}", t.reason.end())),
        _ if run.pause_asked == Some(PauseReason::Escalated) && run.status == RunStatus::Running => {
            Some("escalated".to_owned())
        }
        _ if run.pause_asked.is_some() => Some("pausing".to_owned()),
        _ => None,
    };
    detail.map_or_else(|| run.status.to_string(), |detail| format!("{} ({detail})", run.status))
}

fn run_event(event: &RunEvent) -> String {
    let detail = match event {
        RunEvent::TicketResolved { ticket } => Some(ticket.to_string()),
        RunEvent::CancelAsked { abort: true } => Some("abort".to_owned()),
        RunEvent::PauseAsked { why: PauseReason::Escalated } => Some("escalated".to_owned()),
        _ => None,
    };
    named_with(event.name(), detail)
}

pub fn is_replan(event: &RunEvent) -> bool {
    matches!(event, RunEvent::ReplanAsked | RunEvent::Replanned)
}

fn runs() -> Vec<Run> {
    use RunStatus::*;
    let ending = |reason| Some(Termination { reason, at: NOW, abort: false });
    let mut all = Vec::new();
    for &status in RunStatus::ALL {
        for attempt in [1, 2] {
            let plain = Run { status, attempt, ..samples::run() };
            if matches!(status, Pending | Running | Paused | Resuming | Retrying) {
                for reason in [RunReason::Deadline, RunReason::StoppedByUser, RunReason::AllDone] {
                    all.push(Run { termination: ending(reason), ..plain.clone() });
                }
            } else {
                all.push(Run { deleted_at: Some(NOW), ..plain.clone() });
            }
            if matches!(status, Running | Pending | Retrying) {
                all.push(Run { pause_asked: Some(PauseReason::Asked), ..plain.clone() });
            }
            if status == Running {
                all.push(Run { pause_asked: Some(PauseReason::Escalated), ..plain.clone() });
            }
            all.push(plain);
        }
    }
    all
}

pub fn run_events() -> Vec<RunEvent> {
    let mut all = vec![
        RunEvent::Started,
        RunEvent::Deleted,
        RunEvent::PickedUp,
        RunEvent::WaitedTooLong,
        RunEvent::AllAgentsCompleted { outcome: RunOutcome::Success },
        RunEvent::AgentGoesOn,
        RunEvent::AgentFailed { reason: RunReason::JobFailed, error: error() },
        RunEvent::InfrastructureFailed { retry_after_ms: 15_000 },
        RunEvent::PauseAsked { why: PauseReason::Asked },
        RunEvent::PauseAsked { why: PauseReason::Escalated },
        RunEvent::EverythingHeld,
        RunEvent::ReplanAsked,
        RunEvent::Replanned,
        RunEvent::MaxDurationPassed,
        RunEvent::WorkItemDied { cause: "poison".into() },
        RunEvent::ResumeAsked,
        RunEvent::PauseExpired,
        RunEvent::AgentsWoken,
        RunEvent::ResumeFailed { cause: "no machine".into() },
        RunEvent::RetryAsked { after_ms: 0 },
        RunEvent::RetryCame,
        RunEvent::CancelAsked { abort: false },
        RunEvent::CancelAsked { abort: true },
        RunEvent::Finalised,
    ];
    all.extend(Ticket::ALL.iter().map(|ticket| RunEvent::TicketResolved { ticket: *ticket }));
    all
}

// Attempt, agent, task, step

fn ended_as(event: &AttemptEvent) -> Option<String> {
    match event {
        AttemptEvent::Ended(status) => Some(status.to_string()),
        _ => None,
    }
}

fn attempts() -> Vec<Attempt> {
    let of = |status: &AttemptStatus| Attempt { status: *status, reserved: Credits(10), ..samples::attempt() };
    AttemptStatus::ALL.iter().map(of).collect()
}

fn attempt_events() -> Vec<AttemptEvent> {
    let ends = AttemptStatus::ALL.iter().map(|status| AttemptEvent::Ended(*status));
    [AttemptEvent::Reserved(Credits(5)), AttemptEvent::Charged(Credits(3))].into_iter().chain(ends).collect()
}

fn agents() -> Vec<Agent> {
    AgentStatus::ALL.iter().map(|status| Agent { status: *status, ..samples::agent() }).collect()
}

fn agent_events() -> Vec<AgentEvent> {
    vec![
        AgentEvent::Begun,
        AgentEvent::TasksEnded { outcome: RunOutcome::Success },
        AgentEvent::Failed { error: error() },
        AgentEvent::ToBeRetried { at: NOW, error: error() },
        AgentEvent::Renewed { at: NOW, error: error() },
        AgentEvent::Skipped { error: error() },
        AgentEvent::Held,
        AgentEvent::Woken,
        AgentEvent::Cancelled,
    ]
}

fn tasks() -> Vec<Task> {
    TaskStatus::ALL.iter().map(|status| Task { status: *status, ..samples::task() }).collect()
}

fn task_events() -> Vec<TaskEvent> {
    vec![
        TaskEvent::Begun,
        TaskEvent::NotNeeded,
        TaskEvent::StepsEnded { outcome: RunOutcome::Success },
        TaskEvent::AllStepsSkipped,
        TaskEvent::Failed { error: error() },
        TaskEvent::ToBeRetried { at: NOW, error: error() },
        TaskEvent::Skipped { error: error() },
        TaskEvent::Cancelled,
    ]
}

fn step_state(step: &Step) -> String {
    match step.waits {
        Some(StepWait::Timer) => format!("{} (timer)", step.status),
        Some(StepWait::Poller) => format!("{} (offered)", step.status),
        _ if step.uncertain => format!("{} (uncertain)", step.status),
        _ if step.verifying => format!("{} (verifying)", step.status),
        _ => step.status.to_string(),
    }
}

fn steps() -> Vec<Step> {
    let plain = StepStatus::ALL.iter().map(|status| Step { status: *status, ..samples::step() });
    let odd = [
        Step { status: StepStatus::Running, uncertain: true, ..samples::step() },
        Step { status: StepStatus::Running, verifying: true, by_children: true, ..samples::step() },
        Step { status: StepStatus::Waiting, waits: Some(StepWait::Timer), ..samples::step() },
        Step { status: StepStatus::Waiting, waits: Some(StepWait::Poller), ..samples::step() },
    ];
    plain.chain(odd).collect()
}

fn step_events() -> Vec<StepEvent> {
    vec![
        StepEvent::Begun { fence: 1 },
        StepEvent::Replayed,
        StepEvent::NotNeeded,
        StepEvent::TimerSet { until: NOW },
        StepEvent::Offered { offer: samples::offer() },
        StepEvent::PutOff { until: NOW },
        StepEvent::ApprovalAsked,
        StepEvent::Approved,
        StepEvent::Completed,
        StepEvent::Failed { error: error() },
        StepEvent::ToBeRetried { at: NOW, error: error() },
        StepEvent::VerifyBegun,
        StepEvent::OutcomeUnknown,
        StepEvent::Escalated { error: error() },
        StepEvent::Skipped { error: error() },
        StepEvent::Cancelled { unknown: false },
    ]
}

// Job

fn job_state(job: &Job) -> String {
    match (job.status, job.reason) {
        (JobStatus::Terminating, Some(reason)) if job.gone_at.is_some() => {
            format!("terminating (gone, to {})", reason.end())
        }
        (JobStatus::Terminating, Some(reason)) => format!("terminating (to {})", reason.end()),
        (JobStatus::Submitted, _) if job.queue_seq.is_some() => "submitted (waiting)".to_owned(),
        (status, _) => status.to_string(),
    }
}

fn job_event(event: &JobEvent) -> String {
    let detail = match event {
        JobEvent::Ended { reason, .. } | JobEvent::StopAsked { reason, .. } => Some(reason.end().to_string()),
        _ => None,
    };
    named_with(job::name(event), detail)
}

pub fn is_freeze(event: &JobEvent) -> bool {
    matches!(event, JobEvent::HoldAsked | JobEvent::Froze | JobEvent::ReleaseAsked | JobEvent::Thawed)
}

/// Without a machine there is nothing to wait for.
fn freeze(job: &Job) -> String {
    let somewhere = if job.status == JobStatus::Submitted { " (no machine)" } else { "" };
    format!("{}{somewhere}", job.freeze)
}

pub fn is_voice(event: &JobEvent) -> bool {
    matches!(event, JobEvent::FellSilent | JobEvent::HeardAgain | JobEvent::DeclaredLost)
}

fn voice(job: &Job) -> String {
    let word = if job.lost {
        "lost"
    } else if job.silent_since.is_some() {
        "silent"
    } else {
        "heard"
    };
    word.to_owned()
}

fn jobs() -> Vec<Job> {
    use JobStatus::*;
    let placed = |status| Job { status, epoch: 1, allocation: Some(AllocationId(1)), ..samples::job() };
    let asked = |reason| Job { reason: Some(reason), stop_asked_at: Some(NOW), ..placed(Terminating) };
    let mut all = vec![Job { queue_seq: Some(1), ..samples::job() }, samples::job()];
    all.extend([Provisioning, Pulling, Running].map(placed));
    all.extend([JobReason::TerminatedByUser, JobReason::AbortedByUser, JobReason::BootLimit].map(asked));
    for reason in JobReason::ALL {
        // The process is gone, and some of its log is not here yet.
        all.push(Job { gone_at: Some(NOW), final_offset: Some(10), ..asked(*reason) });
    }
    let silent = all.iter().filter(|job| job.epoch > 0).cloned().map(|job| Job { silent_since: Some(NOW), ..job });
    let lost: Vec<Job> = silent.clone().map(|job| Job { lost: true, ..job }).collect();
    let silent: Vec<Job> = silent.collect();
    all.extend(silent.into_iter().chain(lost));
    let ended = JobReason::ALL.iter().map(|reason| Job { reason: Some(*reason), ..placed(reason.end()) });
    all.extend(ended);
    all
}

pub fn job_events() -> Vec<JobEvent> {
    let mut all = vec![
        JobEvent::Queued { turn: 1, seq: 1 },
        JobEvent::Placed { instance: InstanceId(1), allocation: AllocationId(1), warm: true, price_micro: 0 },
        JobEvent::PlaceLost,
        JobEvent::PoolChanged { pool: PoolId(2) },
        JobEvent::WaitedTooLong,
        JobEvent::ProviderRefused { why: "no machines".into() },
        JobEvent::Accepted,
        JobEvent::SyncComplete { blobs: 1 },
        JobEvent::CommandStarted { unenforced: None },
        JobEvent::HoldAsked,
        JobEvent::Froze,
        JobEvent::ReleaseAsked,
        JobEvent::Thawed,
        JobEvent::Logged { to: 5 },
        JobEvent::Logged { to: 10 },
        JobEvent::MachineQueued { why: "no nodes are free".into() },
        JobEvent::MachineStarted,
        JobEvent::FellSilent,
        JobEvent::HeardAgain,
        JobEvent::DeclaredLost,
        JobEvent::GaveUpOn,
        JobEvent::LimitPassed,
    ];
    for reason in JobReason::ALL {
        // No request makes a job done.
        if *reason != JobReason::DoneByRunner {
            all.push(JobEvent::StopAsked { reason: *reason, abort: false });
            all.push(JobEvent::StopAsked { reason: *reason, abort: true });
        }
        for final_offset in [0, 10] {
            all.push(JobEvent::Ended {
                reason: *reason,
                exit_code: Some(0),
                signal: None,
                message: None,
                lifecycle_error: None,
                final_offset,
                active_ms: 1,
                ended_ago_ms: 0,
            });
        }
    }
    all
}

// Allocation, instance, manifest

fn slot_state(slot: &Allocation) -> String {
    let released = slot.workdir_released && slot.status == AllocationStatus::Complete;
    if released { format!("{} (released)", slot.status) } else { slot.status.to_string() }
}

fn slots() -> Vec<Allocation> {
    use AllocationStatus::*;
    let mut all = Vec::new();
    for &status in AllocationStatus::ALL {
        let job = (status != Available).then_some(JobId(1));
        let completed_at = matches!(status, Complete | Failed).then_some(NOW);
        let debug_hold_until = (status == Complete).then_some(NOW + 5);
        all.push(Allocation { status, job, completed_at, debug_hold_until, ..samples::slot() });
    }
    let held = all.iter().find(|slot| slot.status == Complete).expect("one of each").clone();
    all.push(Allocation { workdir_released: true, ..held });
    all
}

fn slot_events() -> Vec<AllocationEvent> {
    vec![
        AllocationEvent::Claimed { job: JobId(1) },
        AllocationEvent::Claimed { job: JobId(2) },
        AllocationEvent::RolledBack { workdir: "work_2".into() },
        AllocationEvent::SyncComplete,
        AllocationEvent::RunFinished { hold_until: NOW + 5 },
        AllocationEvent::LifecycleFailed { replenish: false, hold_until: None },
        AllocationEvent::LifecycleFailed { replenish: true, hold_until: None },
        AllocationEvent::HoldExtended { until: NOW + 1 },
        AllocationEvent::HoldExtended { until: NOW + 50 },
        AllocationEvent::HoldEnded,
    ]
}

fn instances() -> Vec<Instance> {
    let of = |status: &InstanceStatus| {
        let bound = Instance { status: *status, handle: Some("h".into()), ..samples::instance() };
        let unbound = Instance { status: *status, ..samples::instance() };
        let seen = Instance { status: *status, ready_at: Some(NOW), ..samples::instance() };
        match status {
            InstanceStatus::Spawning => vec![unbound],
            InstanceStatus::Booting => vec![bound],
            InstanceStatus::Terminating => vec![bound, unbound, seen],
            _ => vec![bound, seen],
        }
    };
    InstanceStatus::ALL.iter().flat_map(of).collect()
}

fn instance_events() -> Vec<InstanceEvent> {
    vec![
        InstanceEvent::Bound { handle: "h".into() },
        InstanceEvent::Bound { handle: "another".into() },
        InstanceEvent::Registered { host: "host".into(), runner_version: "1".into(), containment: None, sandbox: None },
        InstanceEvent::Heard,
        InstanceEvent::Queued(ProviderQueue { since: None, why: "no nodes are free".into() }),
        InstanceEvent::Started,
        InstanceEvent::FellSilent,
        InstanceEvent::GaveUpOn,
        InstanceEvent::DrainAsked,
        InstanceEvent::TerminateAsked,
        InstanceEvent::ProviderConfirmedGone,
        InstanceEvent::SpawnFailed,
    ]
}

fn manifests() -> Vec<Manifest> {
    let of = |status: &ManifestStatus| Manifest {
        status: *status,
        outcome: (*status != ManifestStatus::Draft).then_some(WorkflowStatus::Failed),
        ..samples::manifest()
    };
    ManifestStatus::ALL.iter().map(of).collect()
}

fn manifest_events() -> Vec<ManifestEvent> {
    let ends = [WorkflowStatus::Completed, WorkflowStatus::Failed, WorkflowStatus::Cancelled];
    ends.map(|outcome| ManifestEvent::WorkflowEnded { outcome, retain_ms: None })
        .into_iter()
        .chain([ManifestEvent::Emptied])
        .collect()
}

fn manifest_event(event: &ManifestEvent) -> &'static str {
    match event {
        ManifestEvent::WorkflowEnded { .. } => "workflow_ended",
        ManifestEvent::Emptied => "emptied",
    }
}

pub fn workflow_event(event: &WorkflowEvent) -> String {
    workflow::name(event).to_owned()
}
