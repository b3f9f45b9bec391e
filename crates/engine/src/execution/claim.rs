//! The Orchestrator of an execution whose adapter is built in: it holds the claim of the key, follows the run that executes the call, and says
//! what came of it. What it does next is decided by `model::claim`; here its swaps are made and its events brought.

use super::collect::Collected;
use super::{ExecutionNow, changed};
use crate::Engine;
use calls::cached_run::error_value;
use calls::call::dag_of;
use calls::{DagId, Records};
use model::claim::{Orchestrator, OrchestratorConsequence, OrchestratorEvent, OrchestratorStatus as Status, apply};
use model::execution::{Execution, ExecutionEvent};
use model::run::LastError;
use model::{Failure, Outcome, Trouble, TroubleKind, bug};
use store::{Item, Lane, Tx};

/// Of what a failure says.
const MOST_SIGNS: usize = 20_000;

/// What is known of the run that executes the call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Job {
    /// Queued or running.
    Open,
    Succeeded(DagId),
    Failed(DagId),
    /// Its row is gone.
    Vanished(DagId),
}

impl Engine {
    /// The owner of the claim says that it lives; another process takes a stale claim over.
    pub(super) async fn refresh_claim(&self, item: Item, it: &Execution) -> Result<(), Failure> {
        let (me, it) = (self.orchestrator.clone(), it.clone());
        self.store
            .write(Lane::Normal, "execution.poll", move |tx| {
                store::work::hold(tx, &item)?;
                let me = *me.get_or_init(|| tx.next_id());
                orchestrated(tx, &it, me, Some(Job::Open)).map(drop)
            })
            .await
    }

    /// What the run left becomes the stored answer. A run that says nothing about the call ends the execution: its failure is published as a
    /// dag, and not pinned.
    pub(super) async fn collect_result(&self, item: Item, seen: &ExecutionNow) -> Result<(), Failure> {
        let (job, records, error) = match &seen.backend {
            None => {
                let message = "the run that was to execute it is not known any more".to_owned();
                let error = LastError { code: "job_vanished".into(), message, cause: None };
                let (dag, records) = failure(&error)?;
                (Job::Vanished(dag), records, Some(error))
            }
            Some(backend) => match self.collect(backend).await? {
                Collected::Result { ok: true, dag, records } => (Job::Succeeded(dag), records, None),
                Collected::Result { ok: false, dag, records } => (Job::Failed(dag), records, None),
                Collected::Nothing(error) => {
                    let (dag, records) = failure(&error)?;
                    (Job::Failed(dag), records, Some(error))
                }
            },
        };
        let (org, late) = (seen.it.org, bug!(pin_before_objects).then(|| records.clone()));
        let me = self.orchestrator.clone();
        let staged = self.store.write(Lane::Normal, "execution.stage", move |tx| {
            store::work::hold(tx, &item)?;
            let Some(it) = store::execution::lock(tx, item.subject)?.filter(|it| !it.status.is_end()) else {
                return Ok(());
            };
            if !bug!(pin_before_objects) {
                store::object::put(tx, org, &records)?;
            }
            let me = *me.get_or_init(|| tx.next_id());
            let said = orchestrated(tx, &it, me, Some(job))?;
            let answered = said.into_iter().find_map(|said| match said {
                OrchestratorConsequence::AnswerDone { ok, result } => Some((ok, result)),
                _ => None,
            });
            let Some((ok, result)) = answered else { return Ok(()) };
            let event = match error.clone() {
                None => ExecutionEvent::Done { ok, result },
                Some(error) => ExecutionEvent::JobFailed { error, result },
            };
            changed(tx, item.subject, &it, event).map(drop)
        });
        staged.await?;
        match late {
            Some(records) => {
                let put = move |tx: &mut Tx| store::object::put(tx, org, &records);
                self.store.write(Lane::Normal, "execution.stage", put).await
            }
            None => Ok(()),
        }
    }
}

/// What its callers may read of a failure that says nothing about the call.
fn failure(error: &LastError) -> Result<(DagId, Records), Failure> {
    let short = |text: &str| text.chars().take(MOST_SIGNS).collect::<String>();
    let stack: Vec<String> = error.cause.iter().map(|cause| short(cause)).collect();
    let value = error_value(&error.code, &short(&error.message), super::OWN_ADAPTER, &stack);
    let dag = value.and_then(|value| dag_of(&value));
    dag.map_err(|bad| Trouble::internal(format!("a failure cannot be said as a value: {bad}")).into())
}

/// One look of the Orchestrator: the claim is created, followed, refreshed, or taken over by compare-and-swap when its lease is over; then it
/// hears of the job. What it does about it.
pub(super) fn orchestrated(
    tx: &mut Tx,
    it: &Execution,
    me: i64,
    job: Option<Job>,
) -> Result<Vec<OrchestratorConsequence>, Failure> {
    let me = me.to_string();
    let mut look = Look { tx, execution: it, it: Orchestrator::new(&it.key, it.attempt, &me, &me), said: Vec::new() };
    if let Some(found) = store::claim::find(look.tx, it.org, &it.key)? {
        look.hears(&OrchestratorEvent::ClaimFound(found))?;
    }
    while look.it.status != Status::JobPending {
        let submitted = look.it.claim.clone().filter(|claim| claim.job.is_some());
        let event = match (look.it.status, submitted) {
            // This process has submitted it before.
            (Status::ClaimedOwner, Some(claim)) => OrchestratorEvent::Submitted(claim),
            (status, _) => match (look.swap()?, status) {
                (Some(claim), Status::LookupClaim) => OrchestratorEvent::ClaimCreated(claim),
                (Some(claim), Status::FollowExisting) => OrchestratorEvent::TakenOver(claim),
                (Some(claim), _) => OrchestratorEvent::Submitted(claim),
                (None, _) => OrchestratorEvent::LeaseActive,
            },
        };
        look.hears(&event)?;
    }
    let event = match job {
        None => return Ok(look.said),
        Some(Job::Open) => match (look.swap()?, look.it.claim.clone()) {
            (Some(refreshed), _) => OrchestratorEvent::JobRunning(refreshed),
            (None, Some(followed)) => OrchestratorEvent::JobRunning(followed),
            (None, None) => return Err(Trouble::internal("a job is followed without a claim").into()),
        },
        Some(Job::Succeeded(result)) => OrchestratorEvent::JobSucceeded { result: result.to_string() },
        Some(Job::Failed(result)) => OrchestratorEvent::JobFailed { result: result.to_string() },
        Some(Job::Vanished(result)) => OrchestratorEvent::JobVanished { result: result.to_string() },
    };
    look.hears(&event)?;
    Ok(look.said)
}

struct Look<'t> {
    tx: &'t mut Tx,
    execution: &'t Execution,
    it: Orchestrator,
    said: Vec<OrchestratorConsequence>,
}

impl Look<'_> {
    fn hears(&mut self, event: &OrchestratorEvent) -> Result<(), Failure> {
        if let Outcome::Moved { next, consequences } = apply(&self.it, event, self.tx.at())? {
            self.it = next;
            self.said.extend(consequences);
        }
        Ok(())
    }

    /// The change of the claim that its state asks for, made.
    fn swap(&mut self) -> Result<Option<model::claim::Claim>, Failure> {
        let Some(swap) = self.it.swap(self.tx.at()) else { return Ok(None) };
        if !store::claim::swap(self.tx, self.execution.org, &swap)? {
            return Err(Trouble::new(TroubleKind::Timeout, "another process changed the claim meanwhile").into());
        }
        Ok(Some(swap.to))
    }
}
