//! Launch-run: from a submitted job to its end, one workflow a job. On a warm machine everything up to the sync is done inside the
//! submission's transaction. The job alone owns its status and its deadlines; nodes that wait only observe it.

mod features;
mod spawn;

use crate::EngineContext;
use crate::intents::create_snapshot::{self, Source};
use crate::pool::{Decision, WarmSlot};
use crate::run_tx::{RunTx, Tracked};
use crate::workflow::kind::{Blueprint, NodeError, NodeKind, NodeTx, Port, Undo, Verdict, to_value};
use crate::workflow::{self, advance_of_run};
use model::instance::Instance;
use model::job::{Job, JobEvent, JobReason, JobStatus};
use model::offer::Offer;
use model::spec::BlobSource;
use model::workflow::{Alternative, Branch, Intent, Node, NodeStatus, Pattern};
use model::{AllocationId, Credits, Failure, InstanceId, JobId, ManifestId, RunId, SnapshotId, WorkflowId};
use serde::{Deserialize, Serialize};
use spawn::SpawnInstance;
use std::sync::LazyLock;
use store::Tx;

const CHECK: &str = "check-budget";
const CHOOSE: &str = "choose-machine";
const CLAIM: &str = "claim-warm-allocation";
const SPAWN: &str = "spawn-instance";
const BOOT: &str = "wait-for-boot";
const ALLOCATE: &str = "create-allocation";
const CHOOSE_SYNC: &str = "choose-sync";
const SYNC_DIRECT: &str = "sync-direct";
const SYNC: &str = "sync-files";
const AWAIT: &str = "await-completion";
const CHOOSE_END: &str = "choose-end";
const SNAPSHOT: &str = "snapshot-run";
const FINALIZE: &str = "finalize-run";

pub(crate) static BLUEPRINT: LazyLock<Blueprint> = LazyLock::new(|| {
    let choice = Branch {
        decided_by: RESOLVED.logical.into(),
        field: "warm".into(),
        then: CLAIM.into(),
        otherwise: SPAWN.into(),
        on_error: true,
    };
    // A snapshot that cannot be made gives way to an end without one: it never fails its run.
    let end = Branch {
        decided_by: ENDED.logical.into(),
        field: "snapshot".into(),
        then: SNAPSHOT.into(),
        otherwise: FINALIZE.into(),
        on_error: true,
    };
    // What machines cannot read in the blob store themselves they are sent by the control plane.
    let sync = Branch {
        decided_by: ALLOCATED.logical.into(),
        field: "direct".into(),
        then: SYNC_DIRECT.into(),
        otherwise: SYNC.into(),
        on_error: true,
    };
    Blueprint::of(Intent::LaunchRun)
        .node(Node::new(CHECK, &[], None), &CheckBudget)
        .node(Node::new(RESOLVED.logical, &[CHECK], None), &ResolveInstance)
        .choice(Node::new(CHOOSE, &[RESOLVED.logical], None).branching(choice))
        .node(Node::new(CLAIM, &[CHOOSE], None).as_logical(MACHINE.logical), &ClaimWarmAllocation)
        .node(Node::new(SPAWN, &[CHOOSE], model::instance::SPAWN_LIMIT_MS).as_logical(MACHINE.logical), &SpawnInstance)
        .node(Node::new(BOOT, &[CLAIM, SPAWN], None), &WaitForBoot)
        .kind(features::INSTALL, &features::InstallFeature)
        .node(Node::new(ALLOCATE, &[BOOT], None), &CreateAllocation)
        .choice(Node::new(CHOOSE_SYNC, &[ALLOCATE], None).branching(sync))
        .node(Node::new(SYNC_DIRECT, &[CHOOSE_SYNC], DIRECT_LIMIT_MS).as_logical(SYNC), &SyncDirect)
        .node(Node::new(SYNC, &[CHOOSE_SYNC], None), &SyncFiles)
        .node(Node::new(AWAIT, &[SYNC_DIRECT, SYNC], None), &AwaitCompletion)
        .choice(Node::new(CHOOSE_END, &[AWAIT], None).branching(end))
        .node(Node::new(SNAPSHOT, &[CHOOSE_END], None).as_logical(FINALIZE), &SnapshotRun)
        .node(Node::new(FINALIZE, &[CHOOSE_END], None), &FinalizeRun)
        .checked()
});

#[derive(Serialize)]
struct Input {
    run: RunId,
    attempt: i64,
    job: JobId,
}

const RESOLVED: Port<Resolved> = Port::new("resolve-instance");
/// Where the job runs, whichever of the two paths found the machine.
const MACHINE: Port<Machine> = Port::new("instance");

#[derive(Serialize, Deserialize)]
struct Resolved {
    warm: bool,
    #[serde(flatten)]
    slot: Option<WarmSlot>,
    /// What is tried in turn where a machine has to be made.
    #[serde(default)]
    offers: Vec<Offer>,
}

#[derive(Serialize, Deserialize)]
struct Machine {
    instance: InstanceId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allocation: Option<AllocationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handle: Option<String>,
}

/// The workflow's row and manifest; its nodes advance with the job.
pub(crate) fn begin(run_tx: &mut RunTx<'_>, job: JobId, id: WorkflowId) -> Result<(), Failure> {
    let manifest = ManifestId(run_tx.tx.next_id());
    let input = Input { run: run_tx.run.id, attempt: run_tx.run.attempt, job };
    let mut workflow = BLUEPRINT.draft((id, manifest, run_tx.run.org), &input, run_tx.at);
    workflow.job = Some(job);
    workflow::open_manifest(run_tx.tx, &workflow)?;
    run_tx.workflows.push(Tracked::new(workflow));
    Ok(())
}

/// Brings the nodes to where the job is. Called after every event of the job.
pub(crate) fn advance(run_tx: &mut RunTx<'_>, id: JobId) -> Result<(), Failure> {
    let workflow = run_tx.job(id)?.workflow;
    advance_of_run(run_tx, workflow, false)
}

fn job_of(node: &mut NodeTx<'_, '_, '_>) -> Result<Job, NodeError> {
    let (run_tx, job) = node.run()?;
    Ok(run_tx.job(job)?.clone())
}

/// A node that waits for something of the job: done when it is there, and never when the job has ended without it.
fn observed<T: Serialize>(job: &Job, found: Option<(&Port<T>, T)>) -> Verdict {
    match found {
        Some((port, output)) => port.done(&output),
        None if job.status.is_end() => Verdict::Cancelled,
        None => Verdict::Waits(None),
    }
}

/// Something of the run's reservation must be left, or there is nothing to pay a machine with.
struct CheckBudget;
const CHECKED: Port<Nothing> = Port::new(CHECK);

#[derive(Serialize, Deserialize)]
struct Nothing {}

impl NodeKind for CheckBudget {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let (run_tx, _) = node.run()?;
        let is_imported = run_tx.run.imported_at.is_some();
        let attempt = &run_tx.attempt()?.it;
        if attempt.left() > Credits::ZERO || is_imported {
            return Ok(CHECKED.done(&Nothing {}));
        }
        let error = format!("nothing is left of the {} credits that were reserved for the run", attempt.reserved);
        Ok(Verdict::Failed { error, uncertain: false })
    }

    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let (run_tx, job) = node.run()?;
        run_tx.job_event(job, JobEvent::StopAsked { reason: JobReason::Budget, abort: false })?;
        Ok(Undo::Done)
    }
}

/// Chooses a warm slot or a machine of its own, or waits in the pool's list until it is asked again.
struct ResolveInstance;

impl NodeKind for ResolveInstance {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let decides = node.asked || node.node.status == NodeStatus::Pending;
        let (run_tx, id) = node.run()?;
        let job = run_tx.job(id)?;
        if job.status.is_end() {
            return Ok(Verdict::Cancelled);
        }
        // While its run is paused nothing new starts.
        if !decides || job.status != JobStatus::Submitted || job.freeze == model::job::FreezeState::Frozen {
            return Ok(Verdict::Waits(None));
        }
        let pool = job.pool;
        let provider = store::pool::find(run_tx.tx, pool)?.map_or_else(String::new, |pool| pool.provider);
        if run_tx.context.providers.get(&provider).is_none() {
            let error = format!(
                "its provider `{provider}` is not set up any more: set it up again, or submit the run to another"
            );
            return Ok(Verdict::Failed { error, uncertain: false });
        }
        if let Err(refused) = run_tx.context.check_features(&run_tx.run.spec.features) {
            return Ok(Verdict::Failed { error: refused.to_string(), uncertain: false });
        }
        let offers = match run_tx.offers(id)? {
            Ok(offers) => offers,
            Err(refused) => return Ok(Verdict::Failed { error: refused.to_string(), uncertain: false }),
        };
        let (warm, slot) = match run_tx.decide_place(id, &[])? {
            Decision::Claim(slot) => (true, Some(slot)),
            Decision::Spawn => (false, None),
            Decision::Wait => return Ok(Verdict::Waits(None)),
        };
        let alternative = |offer: &Offer| Alternative { parameters: to_value(&Tried { offer: Some(offer.clone()) }) };
        let alternatives: Vec<Alternative> = offers.iter().skip(1).map(alternative).collect();
        let resolved = Resolved { warm, slot, offers };
        if alternatives.is_empty() {
            return Ok(RESOLVED.done(&resolved));
        }
        let patterns = vec![Pattern::Alternatives { of: SPAWN.into(), alternatives }];
        Ok(Verdict::With { output: to_value(&resolved), patterns })
    }

    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let why = node.node.error.clone().unwrap_or_default();
        let (run_tx, job) = node.run()?;
        run_tx.job_event(job, JobEvent::ProviderRefused { why })?;
        Ok(Undo::Done)
    }
}

/// What an alternative of spawn-instance has of its own. The first try has none: its offer is the first that was resolved.
#[derive(Default, Serialize, Deserialize)]
struct Tried {
    offer: Option<Offer>,
}

/// Takes the slot that was chosen. When another transaction took it or its machine is leaving, the next one is tried; when there is
/// none and room for a machine, the node fails and the branch falls back to one of its own.
struct ClaimWarmAllocation;

impl NodeKind for ClaimWarmAllocation {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        if node.node.status == NodeStatus::Running && !node.asked {
            return Ok(observed(&job_of(node)?, None::<(&Port<Machine>, Machine)>));
        }
        let mut lost = Vec::new();
        let chosen = match node.node.status {
            NodeStatus::Pending => node.read(&RESOLVED)?.slot,
            _ => None, // it waited: what was chosen then is gone
        };
        let (run_tx, id) = node.run()?;
        Ok(match claim(run_tx, id, chosen, &mut lost)? {
            Claimed::Slot(machine) => MACHINE.done(&machine),
            Claimed::Waits => Verdict::Waits(None),
            Claimed::None => {
                let lost = lost.iter().map(AllocationId::to_string).collect::<Vec<_>>().join(", ");
                let error = format!("{lost} was taken or its machine left before it could be claimed");
                Verdict::Failed { error, uncertain: false }
            }
        })
    }
}

enum Claimed {
    Slot(Machine),
    /// There is none, and room for a machine.
    None,
    Waits,
}

/// Takes the chosen slot or, when that is lost, the next one that fits.
fn claim(
    run_tx: &mut RunTx<'_>,
    id: JobId,
    mut chosen: Option<WarmSlot>,
    lost: &mut Vec<AllocationId>,
) -> Result<Claimed, Failure> {
    loop {
        let slot = match chosen.take() {
            Some(slot) => slot,
            None => match run_tx.decide_place(id, lost)? {
                Decision::Claim(slot) => slot,
                Decision::Spawn => return Ok(Claimed::None),
                Decision::Wait => return Ok(Claimed::Waits),
            },
        };
        if run_tx.claim(id, &slot)? {
            let (instance, allocation) = (slot.instance, Some(slot.allocation));
            return Ok(Claimed::Slot(Machine { instance, allocation, name: None, handle: None }));
        }
        lost.push(slot.allocation);
    }
}

struct WaitForBoot;
const BOOTED: Port<Nothing> = Port::new(BOOT);

impl NodeKind for WaitForBoot {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let job = job_of(node)?;
        if !job.status.is_end()
            && let Some(inserted) = features::inserted(node, &job)?
        {
            return Ok(Verdict::With { output: to_value(&Nothing {}), patterns: vec![inserted] });
        }
        let booted = job.accepted_at.is_some() || job.warm;
        Ok(observed(&job, booted.then_some((&BOOTED, Nothing {}))))
    }
}

/// Checks that the slot is the job's and says where the job runs. The slot was born claimed with its user and workdir (R94),
/// because a runner is told both before it accepts the job.
struct CreateAllocation;
const ALLOCATED: Port<Allocated> = Port::new(ALLOCATE);

#[derive(Serialize, Deserialize)]
struct Allocated {
    allocation: AllocationId,
    user: String,
    workdir: String,
    epoch: i64,
    /// Whether its machine reads the contents of files in the blob store itself.
    #[serde(default)]
    direct: bool,
}

impl NodeKind for CreateAllocation {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let (run_tx, id) = node.run()?;
        let job = run_tx.job(id)?.clone();
        let Some(allocation) = job.allocation else { return Ok(observed(&job, None::<(&Port<Allocated>, Allocated)>)) };
        let slot = &run_tx.allocation(allocation)?.it;
        if slot.job != Some(id) && !job.status.is_end() {
            let error = format!("{allocation} is not the slot of {id} any more");
            return Ok(Verdict::Failed { error, uncertain: false });
        }
        let (user, workdir) = (slot.user.clone(), slot.workdir.clone());
        let direct = run_tx.context.blob_source == BlobSource::Direct;
        Ok(ALLOCATED.done(&Allocated { allocation, user, workdir, epoch: job.epoch, direct }))
    }
}

struct SyncFiles;
const SYNCED: Port<Synced> = Port::new(SYNC);

#[derive(Serialize, Deserialize)]
struct Synced {
    fetched_blobs: i64,
}

impl NodeKind for SyncFiles {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let job = job_of(node)?;
        let synced = job.running_at.is_some();
        Ok(observed(&job, synced.then_some((&SYNCED, Synced { fetched_blobs: job.synced_blobs }))))
    }
}

/// The same, read by the machine in the blob store itself. Where that does not go, the branch falls back to the control plane.
struct SyncDirect;
/// A machine that has not got everything from the blob store within this gets it from the control plane: half of the time that its files may
/// take (`limits.sync_ms`) unless the settings say otherwise.
const DIRECT_LIMIT_MS: i64 = 5 * model::time::MINUTE;

impl NodeKind for SyncDirect {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        SyncFiles.inside(node)
    }

    /// Its runner is told another source.
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let (run_tx, id) = node.run()?;
        if let Some(instance) = run_tx.job(id)?.instance {
            let kept = run_tx.instance(instance)?;
            let desired_version = kept.it.desired_version + 1;
            kept.set(Instance { desired_version, ..kept.it.clone() });
            run_tx.tx.hint(store::Hint::Instance(instance));
        }
        Ok(Undo::Done)
    }
}

/// Where the machine of a job reads the contents of its files now.
pub(crate) fn source_of(tx: &mut Tx, context: &EngineContext, job: &Job) -> Result<BlobSource, Failure> {
    if context.blob_source == BlobSource::ControlPlane {
        return Ok(BlobSource::ControlPlane);
    }
    let workflow = store::workflow::find(tx, job.workflow)?;
    let given_up = |node: &Node| node.name == SYNC_DIRECT && node.status == NodeStatus::Failed;
    let failed = workflow.is_some_and(|workflow| workflow.nodes.iter().any(|node| given_up(node)));
    Ok(if failed { BlobSource::ControlPlane } else { BlobSource::Direct })
}

/// A runner cannot read where it was told to: said twice, or too late, it changes nothing.
pub(crate) fn source_failed(run_tx: &mut RunTx<'_>, job: JobId, why: &str) -> Result<(), Failure> {
    let workflow = run_tx.job(job)?.workflow;
    workflow::fail_node(run_tx, workflow, SYNC_DIRECT, why)
}

struct AwaitCompletion;
const ENDED: Port<Ended> = Port::new(AWAIT);

#[derive(Serialize, Deserialize)]
struct Ended {
    reason: Option<JobReason>,
    exit_code: Option<i32>,
    /// It ended well and wants a snapshot.
    #[serde(default)]
    snapshot: bool,
}

impl NodeKind for AwaitCompletion {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let job = job_of(node)?;
        if matches!(job.reason, Some(JobReason::TerminatedByUser | JobReason::AbortedByUser)) && job.status.is_end() {
            return Ok(Verdict::Cancelled); // as it is while nothing of the job runs
        }
        let snapshot = node.run()?.0.run.spec.save_snapshot && job.reason == Some(JobReason::DoneByRunner);
        let ended = Ended { reason: job.reason, exit_code: job.exit_code, snapshot };
        Ok(observed(&job, job.status.is_end().then_some((&ENDED, ended))))
    }
}

struct FinalizeRun;
const FINALIZED: Port<Finalized> = Port::new(FINALIZE);

#[derive(Serialize, Deserialize)]
struct Finalized {
    status: JobStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
}

/// The runner has sent the workdir before it told the end. The snapshot has a workflow and a manifest of its own.
struct SnapshotRun;

impl NodeKind for SnapshotRun {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let job = job_of(node)?;
        let failed = |error: String| Ok(Verdict::Failed { error, uncertain: false });
        let (Some(tree), Some(allocation), Some(instance)) = (job.kept, job.allocation, job.instance) else {
            return failed("its machine has not sent the workdir: the end of the run's log says why".into());
        };
        let run_tx = node.run()?.0;
        let (org, run, workdir) = (run_tx.run.org, run_tx.run.id, run_tx.allocation(allocation)?.it.workdir.clone());
        let source = Source { org, run: Some(run), allocation, instance, workdir, tree: Some(tree) };
        match create_snapshot::begin(run_tx.tx, source) {
            Ok(snapshot) => Ok(FINALIZED.done(&Finalized { status: job.status, snapshot: Some(snapshot.id) })),
            Err(Failure::Refused(refused)) => failed(refused.to_string()),
            Err(failure) => Err(failure.into()),
        }
    }
}

impl NodeKind for FinalizeRun {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        Ok(FINALIZED.done(&Finalized { status: job_of(node)?.status, snapshot: None }))
    }
}
