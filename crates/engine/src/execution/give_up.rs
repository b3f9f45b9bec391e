//! An execution on which workers die again and again ends, and its callers are told: by its item, or here if that is what the workers die of.

use super::ANSWERED_AT_ONCE;
use crate::Engine;
use crate::run_tx::RunTx;
use model::execution::ExecutionEvent;
use model::run::{LastError, RunStatus};
use model::{Failure, RunId};
use store::{Item, Lane};

impl Engine {
    pub(crate) async fn give_up_execution(&self, item: Item) -> Result<(), Failure> {
        let died = || LastError {
            code: "poisoned".into(),
            message: "the workers of the control plane died on it five times".into(),
            cause: None,
        };
        let callers: Option<Vec<RunId>> = self
            .store
            .write(Lane::Normal, "execution.give_up", move |tx| {
                store::work::hold(tx, &item)?;
                let Some(mut it) = store::execution::lock(tx, item.subject)? else { return Ok(Some(Vec::new())) };
                if !it.status.is_end() {
                    super::changed(tx, item.subject, &it, ExecutionEvent::WorkItemDied { error: died() })?;
                    // Its callers are answered, and its adapter is told, by the next holder of the item.
                    let at = tx.at();
                    store::work::finish(tx, &item, Some(at));
                    return Ok(None);
                }
                // The adapter is not asked any more.
                it.closing = None;
                store::execution::save(tx, item.subject, &it)?;
                store::execution::callers(tx, item.subject, ANSWERED_AT_ONCE).map(Some)
            })
            .await?;
        let Some(callers) = callers else { return Ok(()) };
        let more = callers.len() as i64 == ANSWERED_AT_ONCE;
        for caller in callers {
            self.fail_caller(item, caller, died()).await?;
        }
        if more { self.again(item).await } else { self.done(item).await }
    }

    async fn fail_caller(&self, item: Item, caller: RunId, error: LastError) -> Result<(), Failure> {
        let context = self.context.clone();
        self.store
            .write(Lane::Normal.of(caller), "execution.fail_caller", move |tx| {
                store::work::hold(tx, &item)?;
                store::execution::leave(tx, item.subject, caller)?;
                if store::run::find(tx, caller)?.is_none_or(|run| run.call.is_none()) {
                    return Ok(());
                }
                let mut run_tx = RunTx::open(tx, &context, caller)?;
                if run_tx.run.status == RunStatus::Created && run_tx.run.deleted_at.is_none() {
                    run_tx.replay(&super::CallerEnd::Failed { error: error.clone(), exit_code: None, signal: None })?;
                }
                run_tx.close().map(drop)
            })
            .await
    }
}
