//! Tells the program of `[notify]` of new orphans that are not on the whitelist: one message for all that a scan found.

use crate::Engine;
use crate::notify::Told;
use model::orphan::classify;
use model::{Credits, Failure, PoolId, crash_point};
use serde_json::{Value, json};
use store::orphan::{Orphan, Scan};
use store::{Item, Lane, Tx, WorkKind};

/// Of so many at most one message tells.
const AT_ONCE: i64 = 100;
const MOST_TRIES: i64 = 5;
const PAUSE_MS: i64 = 10_000;

impl Engine {
    pub(crate) async fn notify_orphans(&self, item: Item) -> Result<(), Failure> {
        let ours = self.context.installation.control_id.clone();
        let pool = PoolId(item.subject);
        let read = move |tx: &mut Tx| {
            let mut untold = store::orphan::untold(tx, &ours, AT_ONCE)?;
            untold.extend(store::orphan::untold(tx, "", AT_ONCE)?);
            let tries = store::orphan::scan_of(tx, pool)?.map_or(0, |scan| scan.notify_tries);
            Ok((untold, tries, store::worker::session_began(tx)?))
        };
        let (untold, tries, session) = self.store.read("orphan.untold", read).await?;
        let (false, true, Some(notifier)) = (untold.is_empty(), tries < MOST_TRIES, &self.notifier) else {
            return self.told_of_orphans(item, Vec::new(), false).await;
        };
        let control_id = &self.context.installation.control_id;
        let shown = |orphan: &Orphan| {
            let (section, severity) = classify(&orphan.listed, control_id, session);
            let listed = &orphan.listed;
            json!({
                "provider": orphan.provider, "provider_id": listed.handle, "name": listed.name, "resource_type": listed.kind,
                "region": listed.region, "section": section, "severity": severity, "created_at": listed.created_at,
                "estimated_hourly_cost": listed.price_micro.map(|price| Credits(price).to_string()),
            })
        };
        let found: Vec<Value> = untold.iter().map(shown).collect();
        let message = json!({ "kind": "orphans", "orphans": found, "command": "repl orphans list" });
        let key = format!("orphans-{}-{}", model::slug(item.subject), item.fence);
        match crash_point!("notify.start", self.start_program(notifier, key, message).await) {
            Told::Well => self.told_of_orphans(item, untold, false).await,
            Told::Badly(why) => {
                tracing::warn!(why, "nobody could be told of orphans");
                self.told_of_orphans(item, Vec::new(), true).await
            }
            Told::Cut => self.again(item).await,
        }
    }

    async fn told_of_orphans(&self, item: Item, told: Vec<Orphan>, failed: bool) -> Result<(), Failure> {
        self.store
            .write(Lane::Low, "orphan.told", move |tx| {
                store::work::hold(tx, &item)?;
                told.iter().try_for_each(|orphan| store::orphan::told(tx, orphan.id))?;
                let (pool, at) = (PoolId(item.subject), tx.at());
                let more = !told.is_empty();
                if failed && let Some(scan) = store::orphan::scan_of(tx, pool)? {
                    store::orphan::save_scan(tx, pool, &Scan { notify_tries: scan.notify_tries + 1, ..scan })?;
                }
                match (failed, more) {
                    (true, _) => store::work::finish(tx, &item, Some(at + PAUSE_MS)),
                    (false, true) => store::work::finish(tx, &item, Some(at)),
                    (false, false) => store::work::forget(tx, WorkKind::OrphanNotice, item.subject)?,
                }
                Ok(())
            })
            .await
    }
}
