//! Features of launch-run: when a machine is there and lacks some that the run asks for, wait-for-boot inserts one node for each before
//! create-allocation. Its runner was told with the job's place; the nodes wait for it, each within the time of its feature. Until all are
//! installed the job is not in the machine's document, so nothing of it can have begun when one fails.

use super::{ALLOCATE, Nothing, spawn};
use crate::workflow::kind::{NodeError, NodeKind, NodeTx, Undo, Verdict, to_value};
use model::feature::{Feature, FeatureEvent, FeatureState};
use model::instance::Instance;
use model::job::{Job, JobEvent, JobReason, JobStatus, LifecycleError};
use model::workflow::{Addition, Pattern};
use serde::{Deserialize, Serialize};

/// The kind of the inserted nodes, and how their names begin.
pub(super) const INSTALL: &str = "install-feature";

#[derive(Default, Serialize, Deserialize)]
struct Parameters {
    feature: String,
}

/// What waits before create-allocation for the features that are not there. None: there are none, or no machine yet.
pub(super) fn inserted(node: &mut NodeTx<'_, '_, '_>, job: &Job) -> Result<Option<Pattern>, NodeError> {
    let run_tx = node.run()?.0;
    if run_tx.run.spec.features.is_empty() {
        return Ok(None);
    }
    let Some(machine) = spawn::peek(run_tx, job.instance)?.filter(|machine| machine.ready_at.is_some()) else {
        return Ok(None);
    };
    let nodes: Vec<Addition> = run_tx
        .context
        .features_to_install(&run_tx.run.spec.features)
        .into_iter()
        .filter(|(feature, _)| find(&machine, &feature.name).is_some_and(|it| it.state != FeatureState::Installed))
        .map(|(feature, install_ms)| Addition {
            name: format!("{INSTALL}-{}", feature.name),
            kind: INSTALL.into(),
            parameters: to_value(&Parameters { feature: feature.name }),
            timeout_ms: Some(install_ms),
            idempotent: true,
        })
        .collect();
    Ok((!nodes.is_empty()).then(|| Pattern::Insert { before: ALLOCATE.into(), nodes }))
}

fn find<'a>(machine: &'a Instance, name: &str) -> Option<&'a Feature> {
    machine.features.iter().find(|it| it.name == name)
}

/// Waits until the runner has installed it.
pub(super) struct InstallFeature;

impl NodeKind for InstallFeature {
    fn inside(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Verdict, NodeError> {
        let name = node.parameters::<Parameters>()?.feature;
        let (run_tx, id) = node.run()?;
        let job = run_tx.job(id)?.clone();
        if job.status.is_end() {
            return Ok(Verdict::Cancelled);
        }
        let machine = spawn::peek(run_tx, job.instance)?;
        let failed = |error: String| Ok(Verdict::Failed { error, uncertain: false });
        let Some(feature) = machine.as_ref().and_then(|machine| find(machine, &name)) else {
            return failed(format!("the machine of {id} is to have no feature `{name}` any more"));
        };
        let known = run_tx.context.wanted_features(std::slice::from_ref(&name));
        if feature.state == FeatureState::Installing && known[0].1 != feature.checksum {
            return failed(format!("[features.{name}] of the settings has changed: submit the run again"));
        }
        match feature.state {
            FeatureState::Installed => Ok(Verdict::Done(to_value(&Nothing {}))),
            FeatureState::Installing => Ok(Verdict::Waits(None)),
            FeatureState::Broken | FeatureState::Removing | FeatureState::Left => {
                failed(feature.error.clone().unwrap_or_else(|| format!("it is {}", feature.state)))
            }
        }
    }

    /// The job ends, and its slot with it. What the installation has left there is removed before the next one, or with the machine.
    fn undo(&self, node: &mut NodeTx<'_, '_, '_>) -> Result<Undo, NodeError> {
        let name = node.parameters::<Parameters>()?.feature;
        let why = node.node.error.clone().unwrap_or_default();
        let (run_tx, id) = node.run()?;
        let job = run_tx.job(id)?.clone();
        if let Some(instance) = job.instance {
            let kept = run_tx.instance(instance)?;
            let mut machine = kept.it.clone();
            if machine.feature_event(&name, &FeatureEvent::GivenUp { why: why.clone() }) {
                kept.set(machine);
                run_tx.tx.hint(store::Hint::Instance(instance));
            }
        }
        // Its runner has never heard of it, unless it is being stopped.
        if job.status == JobStatus::Provisioning {
            run_tx.job_event(
                id,
                JobEvent::Ended {
                    reason: JobReason::ExecutorError,
                    exit_code: None,
                    signal: None,
                    message: Some(format!("the feature `{name}` could not be installed: {why}")),
                    lifecycle_error: Some(LifecycleError::SyncFailed),
                    final_offset: 0,
                    active_ms: 0,
                    ended_ago_ms: 0,
                },
            )?;
        }
        Ok(Undo::Done)
    }
}
