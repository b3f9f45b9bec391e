//! One page of a provider's list against the rows; and the look for one name that an uncertain spawn may have left.

use super::{LOOK_AGAIN_MS, Young};
use crate::instance_cleanup::{is_there_again, next_pause};
use crate::transition::instance_event;
use crate::{Engine, EngineContext};
use model::instance::{Instance, InstanceEvent};
use model::orphan::{Compared, Listed, ListedStatus, ResourceType, compare};
use model::{Failure, InstanceId, Timestamp, Trouble, TroubleKind, bug};
use std::sync::Arc;
use store::orphan::Scan;
use store::pool::Pool;
use store::{Item, Lane, NewEvent, Tx, WorkKind};

impl Engine {
    /// Counts into `scan` what the page is made of.
    pub(super) async fn note_page(
        &self,
        pool: &Pool,
        young: Young,
        scan: &mut Scan,
        mut listed: Vec<Listed>,
    ) -> Result<(), Failure> {
        // In the order of their rows' ids, because adopting locks them.
        listed.sort_by_key(|it| it.inferred().map(|name| name.resource));
        let (context, pool, before) = (self.context.clone(), pool.clone(), scan.clone());
        let listed = Arc::new(listed);
        let note = move |tx: &mut Tx| {
            let mut scan = before.clone();
            listed.iter().try_for_each(|it| note(tx, &context, &pool, (young, before.started_at), it, &mut scan))?;
            Ok(scan)
        };
        *scan = self.store.write(Lane::Low, "orphan.scan", note).await?;
        Ok(())
    }

    /// Looks for the name of a machine whose making failed and may have had its effect all the same. What is there is bound to its row,
    /// so that the reconciler of the row finds it; what bears the name and is another's becomes an orphan.
    pub(crate) async fn scan_name(&self, item: Item) -> Result<(), Failure> {
        let id = InstanceId(item.subject);
        let read = move |tx: &mut Tx| {
            let found = store::instance::find(tx, id)?;
            let pool = found.as_ref().map(|it| store::pool::find(tx, it.pool)).transpose()?.flatten();
            Ok((found.zip(pool), tx.at()))
        };
        let (found, now) = self.store.read_inline("orphan.name", read).await?;
        let Some((instance, pool)) = found else { return self.forget_scan_name(item).await };
        let asked = match self.context.provider(&pool.provider) {
            Ok(provider) => {
                let named = (pool.region.as_str(), instance.name.as_str());
                self.list_named(provider.as_ref(), named, |it| it.name == instance.name).await
            }
            Err(refused) => Err(Trouble::internal(refused.to_string())),
        };
        let listed = asked.and_then(|found| match found.incomplete {
            // It may be in a part that could not be listed.
            Some(why) if found.listed.is_empty() => Err(Trouble::new(TroubleKind::Network, why)),
            _ => Ok(found.listed),
        });
        let listed = match listed {
            Ok(listed) => listed,
            Err(trouble) => {
                tracing::warn!(instance = %instance.name, %trouble, "its provider cannot be asked for its name, and is asked again");
                return self
                    .at(item, now + next_pause(instance.terminating_at.unwrap_or(instance.created_at), now))
                    .await;
            }
        };
        let seen = !listed.is_empty();
        let mut scan = Scan { started_at: now, ..Scan::default() };
        self.note_page(&pool, Young::Shown, &mut scan, listed).await?;
        // A list may lag: while the row is open it is looked for once more, then the hourly scan does.
        if !seen && now.since(instance.created_at) < model::instance::SPAWN_LIMIT_MS && instance.status.is_open() {
            return self.at(item, now + LOOK_AGAIN_MS).await;
        }
        self.forget_scan_name(item).await
    }

    async fn forget_scan_name(&self, item: Item) -> Result<(), Failure> {
        self.store
            .write(Lane::Low, "orphan.scan", move |tx| {
                store::work::hold(tx, &item)?;
                store::work::forget(tx, WorkKind::ScanName, item.subject)
            })
            .await
    }
}

fn note(
    tx: &mut Tx,
    context: &EngineContext,
    pool: &Pool,
    (young, started_at): (Young, Timestamp),
    listed: &Listed,
    scan: &mut Scan,
) -> Result<(), Failure> {
    scan.listed += 1;
    let row = row_of(tx, context, listed)?;
    let is_young = listed.is_young(&context.config.orphans, tx.at());
    match compare(&pool.provider, listed, row.as_ref()) {
        Compared::Ended => store::orphan::remove(tx, &pool.provider, &listed.handle)?,
        // One that a person was shown already stays: its row may say that it is kept, or to be ended.
        Compared::Orphan if is_young && young == Young::Skipped && !has_row(tx, &pool.provider, listed)? => {
            scan.young += 1;
        }
        Compared::Orphan => {
            let ours = listed.inferred().is_none_or(|name| name.control_id == context.installation.control_id);
            *(if ours { &mut scan.orphans } else { &mut scan.foreign }) += 1;
            scan.young += i64::from(is_young);
            store::orphan::seen(tx, &pool.provider, pool.id, started_at, listed)?;
            link(tx, context, &pool.provider, listed)?;
            if bug!(scanner_ends) {
                end_what_was_found(tx, &listed.handle)?;
            }
        }
        tracked => {
            scan.tracked += 1;
            store::orphan::remove(tx, &pool.provider, &listed.handle)?;
            match (tracked, row) {
                (Compared::Adopt, Some(row)) => scan.adopted += i64::from(adopt(tx, &row, listed)?),
                (Compared::ThereAgain, Some(row)) => is_there_again(tx, row.id)?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn has_row(tx: &mut Tx, provider: &str, listed: &Listed) -> Result<bool, Failure> {
    Ok(store::orphan::by_handle(tx, &listed.handle)?.iter().any(|orphan| orphan.provider == provider))
}

/// A machine of ours that no row knows, whose runner may have no way to the control plane: it is given one, so that it can say what it has.
fn link(tx: &mut Tx, context: &EngineContext, provider: &str, listed: &Listed) -> Result<(), Failure> {
    let ours = listed.inferred().is_some_and(|name| name.control_id == context.installation.control_id);
    let runs = listed.kind == ResourceType::Instance && listed.status == ListedStatus::Running;
    if ours && runs && context.is_linked(provider) {
        let (orphan, at) = (super::one(tx, Some(provider), &listed.handle)?, tx.at());
        tx.wake(WorkKind::Link, orphan.id.0, at);
    }
    Ok(())
}

/// A bug of the zoo: nothing that is found is ever ended without a person's word.
fn end_what_was_found(tx: &mut Tx, handle: &str) -> Result<(), Failure> {
    let at = tx.at();
    for orphan in store::orphan::by_handle(tx, handle)? {
        store::orphan::end_asked(tx, orphan.id, model::OrgId(0), "the scanner")?;
        tx.wake(WorkKind::Orphan, orphan.id.0, at);
    }
    Ok(())
}

/// The row that bears the name; of a Tailscale machine the one of its instance.
fn row_of(tx: &mut Tx, context: &EngineContext, listed: &Listed) -> Result<Option<Instance>, Failure> {
    match listed.inferred() {
        Some(name) if name.control_id != context.installation.control_id => Ok(None),
        Some(name) if listed.kind == ResourceType::TailscaleMachine => {
            store::instance::find(tx, InstanceId(name.resource))
        }
        Some(_) => store::instance::by_name(tx, &listed.name),
        None => Ok(None),
    }
}

/// Binds the row to the machine that it waits for. The row is read again under its lock: another worker may have bound it first.
fn adopt(tx: &mut Tx, row: &Instance, listed: &Listed) -> Result<bool, Failure> {
    let row = store::instance::lock(tx, row.id)?;
    let proven = listed.nonce.as_deref() == Some(&row.nonce) || bug!(adopted_without_nonce);
    if row.handle.is_some() || !row.status.is_open() || !proven {
        return Ok(false);
    }
    let bound = instance_event(tx, row, InstanceEvent::Bound { handle: listed.handle.clone() })?;
    store::instance::save(tx, &bound)?;
    let at = tx.at();
    tx.wake(WorkKind::Instance, bound.id.0, at);
    if let Some(workflow) = bound.workflow {
        tx.wake(WorkKind::Workflow, workflow.0, at);
    }
    let body = store::body!({ "instance": bound.id, "name": bound.name, "handle": listed.handle });
    tx.event(NewEvent { org: bound.org, run: None, kind: "instance.adopted", body });
    Ok(true)
}
