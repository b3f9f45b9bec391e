//! The state machine of a job: one submission of an agent onto one instance. Its reason decides its end state, which it reaches only when none
//! of its processes is left.

mod reason;
mod standing;

pub use reason::{JobReason, LifecycleError, SlotEnd};
use standing::boots_since;
pub use standing::{Wait, can_move, can_stop, deadline, is_in_no_list, may_have_started, phase};

use crate::agent::Agent;
use crate::bug;
use crate::run::Run;
use crate::spec::Resources;
use crate::step::StepTry;
use crate::time::{SECOND, show_duration};
use crate::{
    AgentId, AllocationId, InstanceId, JobId, OrgId, Outcome, PoolId, Refused, RunId, Timestamp, WorkflowId, moved,
    string_enum, unchanged,
};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum JobStatus {
        Submitted = "submitted", Provisioning = "provisioning", Pulling = "pulling", Running = "running", Terminating = "terminating",
        Done = "done", Failed = "failed", Terminated = "terminated", Aborted = "aborted",
    }
}
impl JobStatus {
    pub fn is_end(self) -> bool {
        matches!(self, JobStatus::Done | JobStatus::Failed | JobStatus::Terminated | JobStatus::Aborted)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub org: OrgId,
    pub run: RunId,
    pub attempt: i64,
    pub agent: AgentId,
    /// The one step of a plain task, whose end is the job's: its id is taken before its row is made, so that the machine is told of the
    /// job and its step at once. The jobs of planned agents have none: their steps come one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepTry>,
    pub submission: i64,
    /// What its machine must have, where its agent asks for something else than its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Its agent takes a machine that may be taken away at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// Its agent names a provider and no region of it: its machine may be in any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_region: bool,
    /// The sandbox of its run is around none of its processes: any machine will do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_sandbox: bool,
    pub workflow: WorkflowId,
    pub pool: PoolId,
    /// Of its pool: the usage of its machine is summed by it.
    #[serde(default)]
    pub provider: String,
    pub status: JobStatus,
    /// Place in the pool's waiting list, given under the pool's lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_seq: Option<i64>,
    /// Its org's turn in that list, kept when it has left: what the org's next turn is counted from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationId>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    pub epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<JobReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle_error: Option<LifecycleError>,
    pub submitted_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed_at: Option<Timestamp>,
    /// Why its machine waits at its provider, in a queue of that provider; none when it was started, and where there is no such queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_queued: Option<String>,
    /// When a machine that had waited so was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_started_at: Option<Timestamp>,
    /// How long its machine may be prepared with features beyond its boot.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prepare_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Whether its processes are frozen. Independent of the status.
    #[serde(default)]
    pub freeze: FreezeState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_asked_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abort: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remove_at: Option<Timestamp>,
    /// When the runner said that nothing of it is left, or it was fenced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_at: Option<Timestamp>,
    /// When the machine was done with it: what it is charged until.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fenced: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    pub stop_duration_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_offset: Option<i64>,
    pub logged_to: i64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log_cut: bool,
    pub active_ms: i64,
    /// Credits per hour of the machine it is on, in micro-credits.
    pub price_micro: i64,
    /// Compute is charged up to here, in so many windows.
    pub windows: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_to: Option<Timestamp>,
    pub synced_blobs: i64,
    /// Of a run that saves a snapshot: the tree of its workdir, once it has ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<crate::tree::TreeRef>,
    /// Limits that its machine could not enforce, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unenforced: Option<String>,
    pub version: i64,
}

impl Job {
    /// The agent's next submission. It has no machine yet, and its step is the caller's to say.
    pub fn submitted(id: JobId, run: &Run, agent: &Agent, workflow: WorkflowId, pool: PoolId, at: Timestamp) -> Job {
        Job {
            id,
            org: run.org,
            run: run.id,
            attempt: run.attempt,
            agent: agent.id,
            step: None,
            submission: agent.submissions,
            resources: None,
            spot: false,
            any_region: false,
            no_sandbox: false,
            workflow,
            pool,
            provider: run.spec.provider.clone(),
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
            submitted_at: at,
            placed_at: None,
            machine_queued: None,
            machine_started_at: None,
            prepare_ms: 0,
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
            stop_duration_ms: run.spec.stop_duration_ms,
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
            kept: None,
            unenforced: None,
            version: 1,
        }
    }
}

string_enum! {
    /// `freezing` and `thawing`: asked for, and not yet confirmed by the machine. A job without a machine has nothing to confirm.
    #[derive(Default)]
    pub enum FreezeState { #[default] Moving = "moving", Freezing = "freezing", Frozen = "frozen", Thawing = "thawing" }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEvent {
    Queued {
        turn: i64,
        seq: i64,
    },
    Placed {
        instance: InstanceId,
        allocation: AllocationId,
        warm: bool,
        price_micro: i64,
    },
    /// The slot was lost before the runner had the job: back to the list.
    PlaceLost,
    /// It waits in another pool from now on: its turn and its place in the list were this one's.
    PoolChanged {
        pool: PoolId,
    },
    WaitedTooLong,
    /// Its machine waits in a queue of its provider: the limit of its boot does not run, that of a wait for a machine does.
    MachineQueued {
        why: String,
    },
    /// Its machine waits no longer: the time of its boot counts from here.
    MachineStarted,
    ProviderRefused {
        why: String,
    },
    Accepted,
    SyncComplete {
        blobs: i64,
    },
    CommandStarted {
        /// Limits of the job that its machine cannot enforce, and why.
        unenforced: Option<String>,
    },
    /// A pause: the job gets no machine, or its processes are to be frozen.
    HoldAsked,
    Froze,
    ReleaseAsked,
    Thawed,
    Ended {
        reason: JobReason,
        exit_code: Option<i32>,
        signal: Option<i32>,
        message: Option<String>,
        /// Where the reason cannot tell: `executor_error` is a failed sync, a dead keeper, or a command that cannot be started.
        lifecycle_error: Option<LifecycleError>,
        final_offset: i64,
        active_ms: i64,
        /// How long before this event, by the machine's clock: an end is reported behind its output.
        ended_ago_ms: i64,
    },
    Logged {
        to: i64,
    },
    FellSilent,
    HeardAgain,
    /// Silent for so long that its machine counts as lost: a phase, not an end.
    DeclaredLost,
    /// The machine is gone: its provider says so, or a user does about a silent one.
    GaveUpOn,
    StopAsked {
        reason: JobReason,
        abort: bool,
    },
    LimitPassed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobConsequence {
    /// The instance's desired document changed.
    TellRunner,
    SlotActive,
    SlotEnded {
        how: SlotEnd,
    },
    LeaveQueue {
        pool: PoolId,
    },
    /// The next commit enters the waiting list of its pool.
    EnterQueue,
    /// Held while it had no machine; now it wants one again.
    Place,
    /// For the run: perhaps all jobs are frozen now, or all move again.
    FreezeChanged,
    /// To the agent: this submission has ended.
    ChildEnded {
        reason: JobReason,
    },
    GatherLogs,
    Publish {
        kind: &'static str,
    },
}

use JobConsequence as C;
use JobEvent as E;
use JobStatus as S;

/// How long a job that has ended waits for the tail of its log before the log is marked as cut.
pub const LOG_TAIL_LIMIT_MS: i64 = 60 * SECOND;

type Step = Result<Outcome<Job, C>, Refused>;

#[expect(clippy::too_many_lines, reason = "one flat match: the table of its transitions")]
pub fn apply(job: &Job, event: &JobEvent, at: Timestamp) -> Step {
    let mut next = job.clone();
    match (job.status, event) {
        (S::Submitted, E::Queued { .. } | E::Placed { .. }) if job.freeze == FreezeState::Frozen => {
            Err(Refused::not_from("job", "submitted (held)", name(event), &[]))
        }
        (S::Submitted, E::Queued { turn, seq }) => {
            next.turn = Some(*turn);
            next.queue_seq = Some(*seq);
            moved(next, [C::Publish { kind: "job.queued" }])
        }
        (S::Submitted, E::Placed { instance, allocation, warm, price_micro }) => {
            next.status = S::Provisioning;
            next.queue_seq = None;
            next.instance = Some(*instance);
            next.allocation = Some(*allocation);
            next.warm = *warm;
            next.price_micro = *price_micro;
            next.epoch = if bug!(session_as_epoch) { 1 } else { job.epoch + 1 };
            next.placed_at = Some(at);
            moved(next, [C::TellRunner, C::Publish { kind: "job.provisioning" }])
        }
        (S::Provisioning, E::PlaceLost) if job.accepted_at.is_none() => {
            next.status = S::Submitted;
            next.instance = None;
            next.allocation = None;
            next.placed_at = None;
            next.machine_queued = None;
            next.machine_started_at = None;
            next.prepare_ms = 0;
            next.silent_since = None; // the silence was that machine's
            next.lost = false;
            next.freeze = match job.freeze {
                FreezeState::Moving | FreezeState::Thawing => FreezeState::Moving,
                FreezeState::Freezing | FreezeState::Frozen => FreezeState::Frozen,
            };
            moved(next, [C::FreezeChanged, C::Publish { kind: "job.submitted" }])
        }
        (S::Submitted, E::PoolChanged { pool }) if job.pool == *pool => unchanged(),
        (S::Submitted, E::PoolChanged { pool }) => {
            next.pool = *pool;
            next.turn = None;
            next.queue_seq = None;
            moved(next, [C::LeaveQueue { pool: job.pool }, C::EnterQueue, C::Publish { kind: "job.moved" }])
        }
        (S::Submitted, E::WaitedTooLong) => {
            let waited = show_duration(at.since(job.submitted_at));
            stop(next, JobReason::NoCapacity, at, Some(format!("waited {waited} for a free machine")))
        }
        (S::Submitted | S::Provisioning, E::ProviderRefused { why }) => {
            stop(next, JobReason::NoCapacity, at, Some(why.clone()))
        }
        (S::Provisioning, E::MachineQueued { why }) if job.machine_queued.as_ref() != Some(why) => {
            next.machine_queued = Some(why.clone());
            moved(next, [C::Publish { kind: "job.machine_queued" }])
        }
        (S::Provisioning, E::MachineStarted) if job.machine_queued.is_some() => {
            next.machine_queued = None;
            next.machine_started_at = Some(at);
            moved(next, [C::Publish { kind: "job.machine_started" }])
        }
        (_, E::MachineQueued { .. } | E::MachineStarted) => unchanged(),
        (S::Provisioning, E::Accepted) => {
            next.status = S::Pulling;
            next.machine_queued = None;
            next.accepted_at = Some(at);
            moved(next, [C::Publish { kind: "job.pulling" }])
        }
        (S::Pulling | S::Running | S::Terminating, E::Accepted) => unchanged(),
        (S::Pulling, E::SyncComplete { blobs }) => {
            next.status = S::Running;
            next.running_at = Some(at);
            next.charged_to = Some(at);
            next.synced_blobs = *blobs;
            moved(next, [C::SlotActive, C::Publish { kind: "job.running" }])
        }
        (S::Running | S::Terminating, E::SyncComplete { .. }) => unchanged(),
        (S::Running | S::Terminating, E::CommandStarted { .. }) if job.started_at.is_some() => unchanged(),
        (S::Running | S::Terminating, E::CommandStarted { unenforced }) => {
            next.started_at = Some(at);
            next.unenforced.clone_from(unenforced);
            moved(next, [C::Publish { kind: "job.started" }])
        }
        (_, E::HoldAsked | E::Froze | E::ReleaseAsked | E::Thawed) => freeze(next, event),
        (S::Provisioning | S::Pulling | S::Running, E::Ended { .. }) => {
            gone(&mut next, event, at);
            next.status = S::Terminating;
            next.freeze = FreezeState::Moving;
            next.reason = reason_of(event);
            ripe(next, at)
        }
        (S::Terminating, E::Ended { .. }) if job.gone_at.is_some() => unchanged(),
        (S::Terminating, E::Ended { .. }) => {
            // The first request to end the job has set its reason; the runner only reports the exit.
            gone(&mut next, event, at);
            ripe(next, at)
        }
        (S::Provisioning | S::Pulling | S::Running | S::Terminating, E::Logged { to }) if *to <= job.logged_to => {
            unchanged()
        }
        (S::Provisioning | S::Pulling | S::Running, E::Logged { to }) => {
            next.logged_to = *to;
            moved(next, [])
        }
        (S::Terminating, E::Logged { to }) => {
            next.logged_to = *to;
            ripe(next, at)
        }
        (S::Provisioning | S::Pulling | S::Running | S::Terminating, E::FellSilent) if job.silent_since.is_some() => {
            unchanged()
        }
        (S::Provisioning | S::Pulling | S::Running | S::Terminating, E::FellSilent) => {
            next.silent_since = Some(at);
            moved(next, [C::Publish { kind: "job.unreachable" }])
        }
        (S::Provisioning | S::Pulling | S::Running | S::Terminating, E::DeclaredLost) if job.lost => unchanged(),
        (S::Provisioning | S::Pulling | S::Running | S::Terminating, E::DeclaredLost) => {
            next.silent_since = job.silent_since.or(Some(at));
            next.lost = true;
            moved(next, [C::Publish { kind: "job.lost" }])
        }
        (S::Submitted, E::FellSilent | E::HeardAgain | E::DeclaredLost) => unchanged(),
        (_, E::HeardAgain) if job.silent_since.is_none() => unchanged(),
        (S::Provisioning | S::Pulling | S::Running | S::Terminating, E::HeardAgain) => {
            next.silent_since = None;
            next.lost = false;
            moved(next, [C::Publish { kind: "job.reachable" }])
        }
        // The machine is surely gone (the provider says so): nothing of the job can be left.
        (S::Provisioning | S::Pulling | S::Running, E::GaveUpOn) => {
            next.status = S::Terminating;
            next.freeze = FreezeState::Moving;
            next.reason = Some(JobReason::InstanceLost);
            next.message = Some("the machine is gone".into());
            fence(next, at)
        }
        (S::Terminating, E::GaveUpOn | E::LimitPassed) if job.gone_at.is_none() => fence(next, at),
        (S::Terminating, E::GaveUpOn | E::LimitPassed) => {
            // The runner is gone, or does not send the tail of the log in time.
            next.log_cut = next.final_offset.is_some_and(|end| next.logged_to < end);
            finish(next, at)
        }
        (S::Submitted | S::Provisioning | S::Pulling | S::Running, E::StopAsked { reason, abort }) => {
            next.abort = *abort;
            stop(next, *reason, at, None)
        }
        (S::Terminating, E::StopAsked { abort: true, .. }) if !job.abort && job.gone_at.is_none() => {
            // The bound counts from the sharper request, and is never later than the first one's.
            let asked = job.stop_asked_at.map_or(at, |first| at.min(first + job.stop_duration_ms));
            next.abort = true;
            next.stop_asked_at = Some(asked);
            next.remove_at = Some(asked);
            moved(next, [C::TellRunner])
        }
        (S::Terminating, E::StopAsked { .. }) => unchanged(),
        (S::Provisioning, E::LimitPassed) if job.machine_queued.is_some() => {
            let waited = show_duration(at.since(job.submitted_at));
            let why = job.machine_queued.as_deref().unwrap_or_default();
            let message = format!("waited {waited}, at last in its provider's queue: {why}");
            stop(next, JobReason::NoCapacity, at, Some(message))
        }
        (S::Provisioning, E::LimitPassed) => {
            let took = show_duration(at.since(boots_since(job).unwrap_or(at)));
            stop(next, JobReason::BootLimit, at, Some(format!("the machine did not take the job within {took}")))
        }
        (S::Pulling, E::LimitPassed) => {
            let took = show_duration(at.since(job.accepted_at.unwrap_or(at)));
            stop(next, JobReason::SyncLimit, at, Some(format!("files were not in place within {took}")))
        }
        (
            ended,
            E::Ended { .. }
            | E::Logged { .. }
            | E::StopAsked { .. }
            | E::LimitPassed
            | E::FellSilent
            | E::HeardAgain
            | E::DeclaredLost
            | E::GaveUpOn
            | E::CommandStarted { .. }
            | E::SyncComplete { .. }
            | E::Accepted,
        ) if ended.is_end() => unchanged(),
        (state, event) => Err(Refused::not_from("job", state, name(event), &[])),
    }
}

/// A request begins a freeze or thaw, and the runner's report completes it; a report that was not requested changes nothing.
fn freeze(mut next: Job, event: &JobEvent) -> Step {
    let placed = matches!(next.status, S::Provisioning | S::Pulling | S::Running);
    match (next.freeze, event) {
        (FreezeState::Moving, E::HoldAsked) if next.status == S::Submitted => {
            next.freeze = FreezeState::Frozen;
            next.queue_seq = None;
            let pool = next.pool;
            moved(next, [C::LeaveQueue { pool }, C::FreezeChanged])
        }
        (FreezeState::Moving | FreezeState::Thawing, E::HoldAsked) if placed => {
            next.freeze = FreezeState::Freezing;
            moved(next, [C::TellRunner])
        }
        (FreezeState::Freezing, E::Froze) if placed => {
            next.freeze = FreezeState::Frozen;
            moved(next, [C::Publish { kind: "job.frozen" }, C::FreezeChanged])
        }
        (FreezeState::Frozen, E::ReleaseAsked) if next.status == S::Submitted => {
            next.freeze = FreezeState::Moving;
            moved(next, [C::Place, C::FreezeChanged])
        }
        (FreezeState::Freezing | FreezeState::Frozen, E::ReleaseAsked) if placed => {
            next.freeze = FreezeState::Thawing;
            moved(next, [C::TellRunner])
        }
        (FreezeState::Thawing, E::Thawed) if placed => {
            next.freeze = FreezeState::Moving;
            moved(next, [C::Publish { kind: "job.thawed" }, C::FreezeChanged])
        }
        _ => unchanged(),
    }
}

fn is_zero(ms: &i64) -> bool {
    *ms == 0
}

fn gone(next: &mut Job, event: &JobEvent, at: Timestamp) {
    if let E::Ended { reason, exit_code, signal, message, lifecycle_error, final_offset, active_ms, ended_ago_ms } =
        event
    {
        next.lifecycle_error = match reason {
            JobReason::ControlLost => Some(LifecycleError::ControlLost),
            JobReason::Interrupted => Some(LifecycleError::Interrupted),
            _ => *lifecycle_error,
        };
        next.exit_code = *exit_code;
        next.signal = *signal;
        next.message = message.clone().or(next.message.take());
        next.final_offset = Some(*final_offset);
        next.active_ms = *active_ms;
        next.gone_at = Some(at);
        // Not before it ran, whatever the machine's clock says.
        let least = next.running_at.unwrap_or(at).0.min(at.0);
        next.stopped_at = Some(Timestamp((at.0 - ended_ago_ms).clamp(least, at.0)));
        next.remove_at = None;
    }
}

fn reason_of(event: &JobEvent) -> Option<JobReason> {
    match event {
        E::Ended { reason, .. } => Some(*reason),
        _ => None,
    }
}

fn stop(mut next: Job, reason: JobReason, at: Timestamp, message: Option<String>) -> Step {
    let placed = next.status != S::Submitted;
    next.status = S::Terminating;
    next.freeze = FreezeState::Moving;
    next.reason = Some(reason);
    next.message = message.or(next.message.take());
    next.stop_asked_at = Some(at);
    if !placed {
        next.queue_seq = None;
        next.gone_at = Some(at);
        next.final_offset = Some(0);
        let pool = next.pool;
        let Outcome::Moved { next, mut consequences } = ripe(next, at)? else { return unchanged() };
        consequences.insert(0, C::LeaveQueue { pool });
        return moved(next, consequences);
    }
    next.remove_at = Some(at + if next.abort { 0 } else { next.stop_duration_ms });
    moved(next, [C::TellRunner, C::Publish { kind: "job.terminating" }])
}

/// The runner has not confirmed the end within the limit: reports of this epoch are refused from now on.
fn fence(mut next: Job, at: Timestamp) -> Step {
    next.fenced = true;
    next.gone_at = Some(at);
    next.log_cut = true;
    finish(next, at)
}

/// Ends the job if nothing of it is left and its log is complete; otherwise waits for the tail.
fn ripe(next: Job, at: Timestamp) -> Step {
    let complete = next.final_offset.is_some_and(|end| next.logged_to >= end);
    if next.gone_at.is_some() && complete {
        return finish(next, at);
    }
    moved(next, [C::Publish { kind: "job.terminating" }])
}

/// It was on no machine, or on one that says there was no output: no log exists.
fn said_nothing(job: &Job) -> bool {
    job.epoch == 0 || (job.epoch == 1 && job.final_offset == Some(0))
}

/// If a user or the server asked for the end before the start, the unused claim is undone; a failure before the start fails the slot.
fn slot_end(job: &Job) -> SlotEnd {
    let used = job.running_at.is_some();
    match (job.lifecycle_error, job.reason) {
        _ if job.fenced => SlotEnd::Fenced,
        (Some(LifecycleError::Interrupted), _) => SlotEnd::Interrupted,
        (Some(LifecycleError::SyncFailed), _) | (None, Some(JobReason::BootLimit | JobReason::SyncLimit))
            if bug!(failed_sync_rolled_back) =>
        {
            SlotEnd::Undone
        }
        (Some(LifecycleError::KeeperDied | LifecycleError::ControlLost), _) if bug!(dead_keeper_held) && used => {
            SlotEnd::Used
        }
        (Some(_), _) | (None, Some(JobReason::BootLimit | JobReason::SyncLimit)) => SlotEnd::Failed,
        _ if used => SlotEnd::Used,
        (None, Some(reason)) if reason.end() == S::Failed => SlotEnd::Failed,
        _ => SlotEnd::Undone,
    }
}

fn finish(mut next: Job, at: Timestamp) -> Step {
    let reason = next.reason.expect("a terminating job has a reason");
    next.status = reason.end();
    next.ended_at = Some(at);
    next.remove_at = None;
    let mut consequences = Vec::new();
    if next.allocation.is_some() {
        consequences.push(C::SlotEnded { how: slot_end(&next) });
    }
    if !said_nothing(&next) {
        consequences.push(C::GatherLogs);
    }
    consequences.push(C::Publish { kind: "job.ended" });
    consequences.push(C::ChildEnded { reason });
    moved(next, consequences)
}

pub fn name(event: &JobEvent) -> &'static str {
    match event {
        E::Queued { .. } => "queued",
        E::Placed { .. } => "placed",
        E::PlaceLost => "place_lost",
        E::PoolChanged { .. } => "pool_changed",
        E::WaitedTooLong => "waited_too_long",
        E::MachineQueued { .. } => "machine_queued",
        E::MachineStarted => "machine_started",
        E::ProviderRefused { .. } => "provider_refused",
        E::Accepted => "accepted",
        E::SyncComplete { .. } => "sync_complete",
        E::CommandStarted { .. } => "started",
        E::HoldAsked => "hold",
        E::Froze => "froze",
        E::ReleaseAsked => "release",
        E::Thawed => "thawed",
        E::Ended { .. } => "ended",
        E::Logged { .. } => "logged",
        E::FellSilent => "fell_silent",
        E::HeardAgain => "heard_again",
        E::DeclaredLost => "declared_lost",
        E::GaveUpOn => "gave_up_on",
        E::StopAsked { .. } => "stop_asked",
        E::LimitPassed => "limit_passed",
    }
}
