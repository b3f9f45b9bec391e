//! Why a job ended, and what follows from it: how the job, its agent and its run end, and whether a retry policy may react.

use super::JobStatus;
use crate::agent::AgentStatus;
use crate::run::RunReason;
use crate::spec::RetryEvent;
use crate::string_enum;

string_enum! {
    pub enum JobReason {
        DoneByRunner = "done_by_runner", ExitedWithError = "exited_with_error", InvalidOutput = "invalid_output", LimitsExceeded = "limits_exceeded", ExecutorError = "executor_error",
        VolumeError = "volume_error", ImageError = "image_error", PortsBindError = "ports_bind_error", GatewayError = "gateway_error",
        NoCapacity = "no_capacity", BootLimit = "boot_limit", SyncLimit = "sync_limit",
        Interrupted = "interrupted", InstanceLost = "instance_lost", ControlLost = "control_lost",
        MaxDuration = "max_duration", Inactivity = "inactivity", UtilizationPolicy = "utilization_policy", Budget = "budget",
        ScaledDown = "scaled_down", Superseded = "superseded", TerminatedByUser = "terminated_by_user", TerminatedByServer = "terminated_by_server",
        AbortedByUser = "aborted_by_user",
    }
}
string_enum! {
    /// What went wrong around the command rather than in it, as the job's runner reports. The allocation ends FAILED (R135, R136).
    pub enum LifecycleError {
        SyncFailed = "sync_failed", KeeperDied = "keeper_died", ControlLost = "control_lost", Interrupted = "interrupted",
    }
}

impl JobReason {
    pub fn end(self) -> JobStatus {
        use JobReason::*;
        match self {
            DoneByRunner => JobStatus::Done,
            ExitedWithError | InvalidOutput | LimitsExceeded | ExecutorError | VolumeError | ImageError
            | PortsBindError | GatewayError | NoCapacity | BootLimit | SyncLimit | Interrupted | InstanceLost
            | ControlLost => JobStatus::Failed,
            MaxDuration | Inactivity | UtilizationPolicy | Budget | ScaledDown | Superseded | TerminatedByUser
            | TerminatedByServer => JobStatus::Terminated,
            AbortedByUser => JobStatus::Aborted,
        }
    }

    /// What a retry policy may react to.
    pub fn retry_event(self) -> Option<RetryEvent> {
        use JobReason::*;
        match self {
            ExitedWithError | InvalidOutput | LimitsExceeded | ExecutorError | VolumeError | ImageError
            | PortsBindError | GatewayError => Some(RetryEvent::Error),
            NoCapacity | BootLimit | SyncLimit => Some(RetryEvent::NoCapacity),
            Interrupted | InstanceLost | ControlLost => Some(RetryEvent::Interruption),
            _ => None,
        }
    }

    /// How the agent ends when this job has.
    pub fn agent_end(self) -> AgentStatus {
        match (self, self.end()) {
            (JobReason::MaxDuration | JobReason::Budget | JobReason::UtilizationPolicy, _) => AgentStatus::Failed,
            (JobReason::Inactivity, _) | (_, JobStatus::Done) => AgentStatus::Completed,
            (_, JobStatus::Failed) => AgentStatus::Failed,
            _ => AgentStatus::Cancelled,
        }
    }

    pub fn run_reason(self) -> RunReason {
        match self {
            JobReason::MaxDuration => RunReason::Deadline,
            JobReason::Budget => RunReason::Budget,
            _ => RunReason::JobFailed,
        }
    }
}

/// What becomes of the slot of a job that has ended, and of the machine below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotEnd {
    /// The command was run to its end: COMPLETE, held, and a new slot is opened.
    Used,
    /// The job was stopped before its files were in place: the claim is undone.
    Undone,
    /// The sync or the keeper failed and the runner reported it: FAILED without a hold; a healthy machine gets a new slot (R135, R136).
    Failed,
    /// The provider takes the machine back: FAILED, and the machine is ended (R136).
    Interrupted,
    /// The runner did not confirm that the processes are gone: FAILED, and the machine is ended because they may still run there.
    Fenced,
}
