//! The end of one orphan, asked for by a person who named its id. The wish is a row before the provider is asked; what bears the id by
//! then and is another resource is left alone.

use super::{OrphanOverview, one, publish};
use crate::Engine;
use crate::instance_cleanup::next_pause;
use adapters::provider::Seen;
use adapters::{Handle, Provider};
use model::orphan::{Listed, ResourceType};
use model::{Failure, OrgId, OrphanId, Refused, Trouble, TroubleKind, crash_point};
use store::orphan::Orphan;
use store::{Item, Lane, Tx, WorkKind};

impl Engine {
    /// `typed` is the id as the person has typed it. What belongs to another installation needs `force`.
    pub async fn end_orphan(
        &self,
        (org, by): (OrgId, String),
        (provider, id): (Option<&str>, &str),
        typed: &str,
        force: bool,
    ) -> Result<OrphanOverview, Failure> {
        if typed != id {
            let why = format!("must repeat the resource's id `{id}`: nothing is terminated without a person's word");
            return Err(Refused::invalid("confirm", why).into());
        }
        let (of, named) = (provider.map(str::to_owned), id.to_owned());
        let ours = self.context.installation.control_id.clone();
        self.store
            .write(Lane::Normal, "orphan.end", move |tx| {
                let orphan = one(tx, of.as_deref(), &named)?;
                let of_others = orphan.listed.inferred().is_some_and(|name| name.control_id != ours);
                if of_others && !force {
                    let why = "it belongs to another installation: force ends it all the same";
                    return Err(Refused::Conflict { why: why.into() }.into());
                }
                let at = tx.at();
                store::orphan::end_asked(tx, orphan.id, org, &by)?;
                publish(tx, org, "orphan.end_asked", &orphan.provider, &named, &by);
                tx.wake(WorkKind::Orphan, orphan.id.0, at);
                Ok(())
            })
            .await?;
        self.orphan(provider, id).await
    }

    pub(crate) async fn reconcile_orphan(&self, item: Item) -> Result<(), Failure> {
        let id = OrphanId(item.subject);
        let orphan = self.store.read("orphan.ending", move |tx| store::orphan::find(tx, id)).await?;
        let Some((orphan, asked_at)) = orphan.and_then(|orphan| Some((orphan.clone(), orphan.ending?.at))) else {
            return self.forget_orphan(item, None, None).await;
        };
        match self.end(&orphan).await {
            Ok(()) => self.forget_orphan(item, Some(orphan), None).await,
            Err(trouble) if trouble.retry => {
                let why = trouble.what.clone();
                let now = self.store.write(Lane::Normal, "orphan.ended", move |tx| {
                    store::orphan::end_failed(tx, id, &why)?;
                    Ok(tx.at())
                });
                let now = now.await?;
                self.at(item, now + next_pause(asked_at, now)).await
            }
            Err(trouble) => self.forget_orphan(item, None, Some((id, trouble.what))).await,
        }
    }

    /// Looked at once more before: the tag that was listed proves that it is still the same.
    async fn end(&self, orphan: &Orphan) -> Result<(), Trouble> {
        let provider = self.context.lister(&orphan.provider);
        let provider = provider.map_err(|refused| Trouble::new(TroubleKind::InvalidSpec, refused.to_string()))?;
        let known = &orphan.listed;
        let handle = Handle(known.handle.clone());
        match self.orphan_now(provider.as_ref(), known, &handle).await? {
            Now::Same => {}
            Now::Gone => return Ok(()),
            Now::Another => {
                let what = format!("`{}` is another resource now: scan again and look at it", known.handle);
                return Err(Trouble { retry: false, ..Trouble::new(TroubleKind::InvalidSpec, what) });
            }
        }
        match known.kind {
            ResourceType::Instance => {
                // One that was listed without a tag has just been listed without one again, and is ended as such: see `terminate`.
                let nonce = known.nonce.clone().unwrap_or_default();
                crash_point!("provider.terminate", self.acts_in_time(provider.terminate(&handle, &nonce)).await)?;
                // No row waits for its folders. A provider that keeps none has ended it all the same.
                match crash_point!("provider.forget", self.acts_in_time(provider.forget(&handle)).await) {
                    Err(trouble) if trouble.retry => Err(trouble),
                    Ok(()) | Err(_) => Ok(()),
                }
            }
            kind => self.acts_in_time(provider.delete(kind, &handle)).await,
        }
    }

    /// A machine with a tag is asked for itself: the list of its provider fails as a whole when one host is dead, which need not be its own.
    async fn orphan_now(&self, provider: &dyn Provider, known: &Listed, handle: &Handle) -> Result<Now, Trouble> {
        if let (ResourceType::Instance, Some(nonce)) = (known.kind, &known.nonce) {
            return Ok(match self.in_time(provider.inspect(handle, nonce)).await? {
                Seen::Alive | Seen::RunnerGone | Seen::Queued { .. } => Now::Same,
                Seen::Gone => Now::Gone,
                Seen::Stranger => Now::Another,
            });
        }
        let is_it = |it: &Listed| it.handle == known.handle;
        let found = self.list_named(provider, (&known.region, &known.name), is_it).await?;
        match found.listed.first() {
            Some(found) if is_same(found, known) => Ok(Now::Same),
            Some(_) => Ok(Now::Another),
            // It may be in a part that could not be asked, and cost money there.
            None => found.incomplete.map_or(Ok(Now::Gone), |why| Err(Trouble::new(TroubleKind::Network, why))),
        }
    }

    async fn forget_orphan(
        &self,
        item: Item,
        ended: Option<Orphan>,
        refused: Option<(OrphanId, String)>,
    ) -> Result<(), Failure> {
        self.store
            .write(Lane::Normal, "orphan.ended", move |tx: &mut Tx| {
                store::work::hold(tx, &item)?;
                if let Some(orphan) = &ended {
                    let id = &orphan.listed.handle;
                    store::orphan::remove(tx, &orphan.provider, id)?;
                    store::orphan::unkeep(tx, &orphan.provider, id)?;
                    if let Some(ending) = &orphan.ending {
                        publish(tx, ending.org, "orphan.terminated", &orphan.provider, id, &ending.by);
                    }
                }
                if let Some((id, why)) = &refused {
                    store::orphan::end_refused(tx, *id, why)?;
                }
                store::work::forget(tx, WorkKind::Orphan, item.subject)
            })
            .await
    }
}

/// What bears the id of an orphan when it is to be ended.
enum Now {
    Same,
    Gone,
    Another,
}

fn is_same(found: &Listed, known: &Listed) -> bool {
    (&found.name, &found.nonce, found.kind) == (&known.name, &known.nonce, known.kind)
}
