//! The state machine of an instance: a machine, or a process that stands for one. It is terminated only when no job is on it.

use crate::feature::{self, Feature, FeatureEvent, FeatureState};
use crate::spec::{OnLostControl, Resources};
use crate::time::{MINUTE, SECOND};
use crate::{
    InstanceId, ManifestId, OrgId, Outcome, PoolId, Refused, SnapshotId, Timestamp, WorkflowId, moved, string_enum,
    unchanged,
};
use serde::{Deserialize, Serialize};

string_enum! {
    pub enum InstanceStatus {
        Spawning = "spawning", Booting = "booting", Ready = "ready", Unreachable = "unreachable", Draining = "draining",
        Terminating = "terminating", Terminated = "terminated", Lost = "lost",
    }
}

impl InstanceStatus {
    /// It may still cost credits, or must still be cleaned up.
    pub fn is_open(self) -> bool {
        self != InstanceStatus::Terminated
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Instance {
    pub id: InstanceId,
    pub org: OrgId,
    pub pool: PoolId,
    pub manifest: ManifestId,
    /// The workflow that is changing it, for its `workflow_state`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<WorkflowId>,
    pub provider: String,
    pub region: String,
    /// Which of the provider's hosts it is made on, where there are several: chosen with its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The numbers of its GPUs on that host, chosen with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<i64>>,
    pub name: String,
    pub nonce: String,
    /// What the provider calls it; none until it is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    pub status: InstanceStatus,
    pub resources: Resources,
    /// The init that it has, or that the job on it brings; none: a vanilla machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_checksum: Option<String>,
    /// Its runner has said that this init ended well. Until then it counts only for the job that brings it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub init_done: bool,
    /// What it was prepared with, is being prepared with, or could not be rid of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<Feature>,
    /// Folders that its runner is to send, for snapshots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sends: Vec<(SnapshotId, String)>,
    pub on_lost_control: OnLostControl,
    /// Credits per hour, in micro-credits.
    pub price_micro: i64,
    pub desired_version: i64,
    pub observed_version: i64,
    pub session: i64,
    pub workdirs: i64,
    pub created_at: Timestamp,
    /// It may be taken away by its provider at any time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// What its provider calls machines of its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// It exists only in a queue of its provider, and costs nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<ProviderQueue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// When it was declared lost; none once its runner is heard again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_at: Option<Timestamp>,
    /// Since when no job has used it; none while a job is on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Timestamp>,
    /// Unused, and paid for up to here; none while a job lives here, and where unused time is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused_from: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated_at: Option<Timestamp>,
    /// It ended unseen, and another machine (with another nonce) has its name now. That machine is never touched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub displaced: bool,
    /// Tries to bring a vanished runner process back since it was last heard.
    pub respawns: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub containment: Option<String>,
    /// What makes sandboxes there, or `none: …` and why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    pub version: i64,
}

/// Where a machine is that its provider has accepted and not started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProviderQueue {
    /// Since when, as its provider says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    pub why: String,
}

impl Instance {
    /// A machine that its provider has not been asked for yet, with one slot. Where and how large it is, and what it costs, are the
    /// caller's to say.
    pub fn announced(
        id: InstanceId,
        org: OrgId,
        pool: PoolId,
        manifest: ManifestId,
        name: String,
        at: Timestamp,
    ) -> Instance {
        Instance {
            id,
            org,
            pool,
            manifest,
            workflow: None,
            provider: String::new(),
            region: String::new(),
            place: None,
            gpus: None,
            nonce: String::new(),
            name,
            handle: None,
            status: InstanceStatus::Spawning,
            resources: Resources::default(),
            init_checksum: None,
            init_done: false,
            features: Vec::new(),
            sends: Vec::new(),
            on_lost_control: OnLostControl::Finish,
            price_micro: 0,
            desired_version: 1,
            observed_version: 0,
            session: 0,
            workdirs: 1,
            created_at: at,
            spot: false,
            instance_type: None,
            queued: None,
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
            sandbox: None,
            version: 1,
        }
    }
}

impl Instance {
    /// A job that wants this init was placed here. A job without one leaves the machine as it is.
    pub fn claimed_for(&mut self, init: Option<&String>) {
        if init.is_some() && self.init_checksum.as_ref() != init {
            (self.init_checksum, self.init_done) = (init.cloned(), false);
        }
    }

    /// A job that wants these features was placed here: what is not there is to be installed. The longest that may take; none: all are
    /// there.
    pub fn prepared_for(&mut self, wanted: &[(Feature, i64)]) -> Option<i64> {
        let mut longest = None;
        for (feature, install_ms) in wanted {
            match self.features.iter_mut().find(|it| it.name == feature.name) {
                Some(it) if it.state == FeatureState::Installed => continue,
                Some(it) => *it = feature::apply(it, &FeatureEvent::InstallAsked).unwrap_or_else(|| feature.clone()),
                None => self.features.push(feature.clone()),
            }
            longest = longest.max(Some(*install_ms));
        }
        longest
    }

    /// Whether a job that wants these finds all of them here.
    pub fn has_features(&self, names: &[String]) -> bool {
        let there =
            |name: &String| self.features.iter().any(|it| it.name == *name && it.state == FeatureState::Installed);
        names.iter().all(there)
    }

    /// What an event does to one of its features. False: it has none of this name, or nothing changes.
    pub fn feature_event(&mut self, name: &str, event: &FeatureEvent) -> bool {
        let Some(place) = self.features.iter().position(|it| it.name == name) else { return false };
        match feature::apply(&self.features[place], event) {
            Some(next) if next == self.features[place] => return false,
            Some(next) => self.features[place] = next,
            None => drop(self.features.remove(place)),
        }
        self.desired_version += 1;
        true
    }

    /// Its job has left. An init that is not known to have ended well is forgotten: the next job that wants it runs it again (R95).
    pub fn job_left(&mut self) {
        if !self.init_done {
            self.init_checksum = None;
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceEvent {
    /// The provider's handle is known.
    Bound {
        handle: String,
    },
    /// Its provider has it in a queue.
    Queued(ProviderQueue),
    /// It has left that queue.
    Started,
    Registered {
        host: String,
        runner_version: String,
        containment: Option<String>,
        sandbox: Option<String>,
    },
    Heard,
    FellSilent,
    GaveUpOn,
    DrainAsked,
    /// Conditional in the store on no live allocation and, where it matters, no hold.
    TerminateAsked,
    ProviderConfirmedGone,
    SpawnFailed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceConsequence {
    TellRunner,
    JobsSilent,
    JobsQueued,
    JobsStarted,
    JobsHeard,
    JobsLost,
    JobsGone,
    SlotsFailed,
    WakePool,
    Publish { kind: &'static str },
}

use InstanceConsequence as C;
use InstanceEvent as E;
use InstanceStatus as S;

pub const UNREACHABLE_AFTER_MS: i64 = 60 * SECOND;
pub const LOST_AFTER_MS: i64 = 15 * MINUTE;
pub const FORCE_TERMINATE_AFTER_MS: i64 = 25 * MINUTE;
pub const SPAWN_LIMIT_MS: i64 = 10 * MINUTE;

pub fn apply(instance: &Instance, event: &InstanceEvent, at: Timestamp) -> Result<Outcome<Instance, C>, Refused> {
    let mut next = instance.clone();
    match (instance.status, event) {
        (S::Spawning, E::Bound { handle }) => {
            next.handle = Some(handle.clone());
            next.status = S::Booting;
            moved(next, [C::Publish { kind: "instance.booting" }])
        }
        (state, E::Bound { handle }) if state.is_open() => {
            if instance.handle.as_ref() == Some(handle) {
                return unchanged();
            }
            next.handle = Some(handle.clone());
            moved(next, [])
        }
        (S::Booting, E::Queued(queue)) if instance.queued.as_ref() != Some(queue) => {
            next.queued = Some(queue.clone());
            moved(next, [C::JobsQueued, C::Publish { kind: "instance.queued" }])
        }
        (S::Booting, E::Started) if instance.queued.is_some() => {
            next.queued = None;
            moved(next, [C::JobsStarted, C::Publish { kind: "instance.started" }])
        }
        (_, E::Queued(_) | E::Started) => unchanged(),
        (
            S::Spawning | S::Booting | S::Unreachable | S::Lost | S::Ready,
            E::Registered { host, runner_version, containment, sandbox },
        ) => {
            let was_ready = instance.status == S::Ready;
            next.status = S::Ready;
            next.session += 1;
            next.queued = None;
            next.host = Some(host.clone());
            next.runner_version = Some(runner_version.clone());
            next.containment = containment.clone();
            next.sandbox = sandbox.clone();
            next.ready_at = instance.ready_at.or(Some(at));
            next.lost_at = None;
            next.last_seen_at = next.last_seen_at.max(Some(at)); // reports may overtake each other
            next.respawns = 0;
            if was_ready {
                moved(next, [C::JobsHeard])
            } else {
                moved(next, [C::JobsHeard, C::WakePool, C::Publish { kind: "instance.ready" }])
            }
        }
        (S::Draining | S::Terminating, E::Registered { .. }) => {
            next.session += 1;
            next.last_seen_at = next.last_seen_at.max(Some(at));
            moved(next, [C::TellRunner])
        }
        (S::Unreachable | S::Lost, E::Heard) => {
            next.status = S::Ready;
            next.lost_at = None;
            next.last_seen_at = next.last_seen_at.max(Some(at));
            next.respawns = 0;
            moved(next, [C::JobsHeard, C::WakePool, C::Publish { kind: "instance.ready" }])
        }
        (state, E::Heard) if state.is_open() => {
            next.last_seen_at = next.last_seen_at.max(Some(at));
            moved(next, [])
        }
        (S::Ready, E::FellSilent) => {
            next.status = S::Unreachable;
            moved(next, [C::JobsSilent, C::Publish { kind: "instance.unreachable" }])
        }
        (S::Unreachable | S::Lost, E::FellSilent) => unchanged(),
        (S::Unreachable, E::GaveUpOn) => {
            next.status = S::Lost;
            next.lost_at = Some(at);
            moved(next, [C::JobsLost, C::Publish { kind: "instance.lost" }])
        }
        (S::Lost, E::GaveUpOn) => unchanged(),
        (S::Ready | S::Unreachable, E::DrainAsked) => {
            next.status = S::Draining;
            moved(next, [C::Publish { kind: "instance.draining" }])
        }
        (S::Draining, E::DrainAsked) => unchanged(),
        (S::Spawning | S::Booting | S::Ready | S::Unreachable | S::Draining | S::Lost, E::TerminateAsked) => {
            next.status = S::Terminating;
            next.terminating_at = Some(at);
            next.desired_version += 1;
            moved(next, [C::SlotsFailed, C::TellRunner, C::Publish { kind: "instance.terminating" }])
        }
        (S::Terminating | S::Terminated, E::TerminateAsked | E::DrainAsked | E::FellSilent | E::GaveUpOn) => {
            unchanged()
        }
        // The only way to the end: the provider says that the machine does not exist.
        // A failed spawn proves this only if the machine was never bound and its runner never registered.
        (S::Spawning | S::Terminating, E::SpawnFailed) if instance.handle.is_none() && instance.ready_at.is_none() => {
            gone(next, at)
        }
        (state, E::ProviderConfirmedGone) if state.is_open() => gone(next, at),
        (_, E::SpawnFailed) => unchanged(), // the machine exists all the same; it is ended with the job it was made for
        (S::Terminated, E::ProviderConfirmedGone) => unchanged(),
        (state, event) => Err(Refused::not_from("instance", state, name(event), &[])),
    }
}

fn gone(mut next: Instance, at: Timestamp) -> Result<Outcome<Instance, C>, Refused> {
    next.status = S::Terminated;
    next.terminated_at = Some(at);
    // Jobs first: what had finished there completes its slot; only the rest has failed (R96).
    moved(next, [C::JobsGone, C::SlotsFailed, C::WakePool, C::Publish { kind: "instance.terminated" }])
}

/// A wait for a message of the runner; outages of the control plane do not count towards it.
pub fn deadline(instance: &Instance) -> Option<(Timestamp, i64, InstanceEvent)> {
    let seen = instance.last_seen_at.unwrap_or(instance.created_at);
    match instance.status {
        S::Ready => Some((seen, UNREACHABLE_AFTER_MS, E::FellSilent)),
        S::Unreachable => Some((seen, LOST_AFTER_MS, E::GaveUpOn)),
        _ => None,
    }
}

pub fn name(event: &InstanceEvent) -> &'static str {
    match event {
        E::Bound { .. } => "bound",
        E::Queued(_) => "queued",
        E::Started => "started",
        E::Registered { .. } => "registered",
        E::Heard => "heard",
        E::FellSilent => "fell_silent",
        E::GaveUpOn => "gave_up_on",
        E::DrainAsked => "drain_asked",
        E::TerminateAsked => "terminate_asked",
        E::ProviderConfirmedGone => "provider_confirmed_gone",
        E::SpawnFailed => "spawn_failed",
    }
}
