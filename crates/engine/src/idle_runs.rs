//! Runs whose item is due and for which there is nothing to do yet: seen at a read_inline, many at once, inside the claim. After an outage
//! that is nearly all of them. Never changes a run; whatever is not surely idle is looked at properly.

use model::run::{Run, RunEvent, RunStatus};
use model::time::Outage;
use model::{Failure, RunId, Timestamp};
use store::work::Rests;
use store::{Tx, WorkKind};

/// Of these due items those that need nothing now, and when to look again.
pub(crate) fn resting(tx: &mut Tx, items: &[(WorkKind, i64)]) -> Result<Rests, Failure> {
    let runs = items.iter().filter(|(kind, _)| *kind == WorkKind::Run).map(|(_, subject)| RunId(*subject));
    let runs: Vec<RunId> = runs.collect();
    let found = store::run::read_inline(tx, &runs)?;
    let earliest = found.iter().flatten().filter_map(|(run, _)| counts_from(run)).min();
    let outages = earliest.map_or(Ok(Vec::new()), |from| store::worker::outages(tx, from))?;
    let at = tx.at();
    let rests = runs.iter().zip(&found).filter_map(|(id, found)| {
        let next = match found {
            Some((run, busy)) => rest(run, *busy, &outages, at)?,
            None => None,
        };
        Some(((WorkKind::Run, id.0), next))
    });
    Ok(rests.collect())
}

/// When an idle run is to be looked at next (never, if none); `None` when there is something to do. `busy`: a job of it runs, and its
/// compute is charged by the window.
fn rest(run: &Run, busy: bool, outages: &[Outage], at: Timestamp) -> Option<Option<Timestamp>> {
    if run.status.is_end() || run.deleted_at.is_some() {
        return Some(None);
    }
    if busy || matches!(run.status, RunStatus::Pending | RunStatus::Retrying) {
        return None;
    }
    match deadline(run, outages) {
        Some((due, _)) if due <= at.max(run.last_at) => None,
        deadline => Some(deadline.map(|(due, _)| due)),
    }
}

/// Since when its wait counts; none if it has no deadline, or one that our absence does not move.
pub(crate) fn counts_from(run: &Run) -> Option<Timestamp> {
    let (_, event) = model::run::deadline(run)?;
    (event != RunEvent::RetryCame).then(|| run.active_since.unwrap_or(run.since))
}

/// The run's deadline with our outages since then taken out.
pub(crate) fn deadline(run: &Run, outages: &[Outage]) -> Option<(Timestamp, RunEvent)> {
    let (due, event) = model::run::deadline(run)?;
    Some(match counts_from(run) {
        Some(from) => (model::time::deadline_without(from, due.since(from), outages), event),
        None => (due, event),
    })
}
