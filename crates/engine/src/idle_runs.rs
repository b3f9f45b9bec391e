//! Finds, inside the claim, the due runs for which there is nothing to do yet: one read for many runs. After an outage nearly all runs
//! are of this kind. Never changes a run; a run that is not surely idle is claimed and reconciled as usual.

use model::attempt::TreeCounters;
use model::run::{Run, RunEvent, RunStatus};
use model::time::Outage;
use model::{Failure, Limits, RunId, Timestamp};
use store::work::Rests;
use store::{Tx, WorkKind};

/// Of these due items those that need nothing now, and when to look again.
pub(crate) fn resting(tx: &mut Tx, limits: &Limits, items: &[(WorkKind, i64)]) -> Result<Rests, Failure> {
    let runs = items.iter().filter(|(kind, _)| *kind == WorkKind::Run).map(|(_, subject)| RunId(*subject));
    let runs: Vec<RunId> = runs.collect();
    let found = store::run::read_inline(tx, &runs)?;
    let earliest = found.iter().flatten().filter_map(|(run, _)| counts_from(run, limits)).min();
    let outages = earliest.map_or(Ok(Vec::new()), |from| store::worker::outages(tx, from))?;
    let at = tx.at();
    let rests = runs.iter().zip(&found).filter_map(|(id, found)| {
        let next = match found {
            Some((run, tree)) => rest(run, is_busy(run, tree), limits, &outages, at)?,
            None => None,
        };
        Some(((WorkKind::Run, id.0), next))
    });
    Ok(rests.collect())
}

/// Whether a job of it runs, whose compute is charged by the window; an agent waits for its turn or its next try; or an earlier commit
/// has left something. A run that pauses, resumes or ends goes on in chunks, and one of agents is only due when there is something to do.
fn is_busy(run: &Run, tree: &TreeCounters) -> bool {
    let moving = run.termination.is_some() || run.pause_asked.is_some() || run.status == RunStatus::Resuming;
    let agents = run.spec.kind.has_no_machine_time() || tree.agents.pending > 0;
    tree.jobs.active > 0 || agents || tree.unfinished || moving
}

/// When an idle run is to be looked at next (never, if none); `None` when there is something to do.
fn rest(run: &Run, busy: bool, limits: &Limits, outages: &[Outage], at: Timestamp) -> Option<Option<Timestamp>> {
    if run.status.is_end() || run.deleted_at.is_some() {
        return Some(None);
    }
    if busy || matches!(run.status, RunStatus::Pending | RunStatus::Retrying) {
        return None;
    }
    match without(run, model::run::deadline(run, limits, false), outages) {
        Some((due, _)) if due <= at.max(run.last_at) => None,
        deadline => Some(deadline.map(|(due, _)| due)),
    }
}

/// Since when its wait counts; none if it has no deadline, or one that our absence does not move.
fn counts_from(run: &Run, limits: &Limits) -> Option<Timestamp> {
    waits_since(run, model::run::deadline(run, limits, false).as_ref())
}

/// Since when this wait of the run counts.
pub(crate) fn waits_since(run: &Run, deadline: Option<&(Timestamp, RunEvent)>) -> Option<Timestamp> {
    let (_, event) = deadline?;
    (*event != RunEvent::RetryCame).then(|| run.active_since.unwrap_or(run.since))
}

/// The run's deadline with our outages since then taken out.
pub(crate) fn without(
    run: &Run,
    deadline: Option<(Timestamp, RunEvent)>,
    outages: &[Outage],
) -> Option<(Timestamp, RunEvent)> {
    let from = waits_since(run, deadline.as_ref());
    let (due, event) = deadline?;
    Some(match from {
        Some(from) => (model::time::deadline_without(from, due.since(from), outages), event),
        None => (due, event),
    })
}
