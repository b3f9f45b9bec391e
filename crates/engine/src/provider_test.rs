//! Tries a provider with a machine of its own: its row stands before the first call, and with it the workflow that ends it, at the latest
//! when the trial is given up. Whatever the trial finds, the machine does not stay.

use crate::Engine;
use crate::intents::terminate_instance;
use model::instance::Instance;
use model::manifest::ResourceKind;
use model::names::ResourceName;
use model::offer::Asked;
use model::spec::Resources;
use model::{Failure, InstanceId, ManifestId, OrgId, Refused};
use store::{Lane, Tx, WorkKind};

/// A trial takes no longer, or is given up.
const TRIAL_MS: i64 = 10 * model::time::MINUTE;
const WHY: &str = "its provider was tried with it";

/// What was tried, and what was not as it should be.
pub type Case = (&'static str, Result<(), String>);

impl Engine {
    pub async fn test_provider(&self, org: OrgId, name: &str) -> Result<(InstanceId, Vec<Case>), Failure> {
        let provider = self.context.provider(name).map_err(|_| Refused::not_found("provider", name))?;
        let named = [name.to_owned()];
        let resources = Resources::default();
        let own = self.store.read_inline("credits.balance", move |tx| store::org::find(tx, org)).await?.name;
        let (sandbox, platform, region, spot) = (false, None, None, false);
        let asked = Asked { org: &own, resources: &resources, sandbox, platform, region, spot, providers: &named };
        let offer = self.context.place_of(&asked)?.offers.swap_remove(0);
        let (context, on_lost_control) = (self.context.clone(), provider.capabilities().default_on_lost_control);
        let size = provider.size_for(&resources);
        let announced = self
            .store
            .write(Lane::Normal, "provider.test", move |tx| {
                let (id, at) = (InstanceId(tx.next_id()), tx.at());
                let pool = store::pool::ensure(tx, &offer.provider, &offer.region)?;
                let control_id = context.installation.control_id.clone();
                let name = ResourceName { control_id, manifest: None, resource: id.0 }.to_string();
                let nonce = crate::pool::nonce(&context, &name, at);
                let in_pool = store::pool::find(tx, pool)?.ok_or_else(|| Refused::not_found("pool", pool))?;
                let hosts = crate::host::HostsNow::read(tx, &context, &in_pool, std::iter::empty())?;
                let place = hosts.and_then(|hosts| hosts.choose(&Resources::default()).0);
                let manifest = ManifestId(tx.next_id());
                let instance = Instance {
                    provider: offer.provider.clone(),
                    region: offer.region.clone(),
                    nonce,
                    resources: place.as_ref().map_or_else(|| size.clone(), |place| place.resources.clone()),
                    gpus: place.as_ref().and_then(|place| place.gpus.clone()),
                    place: place.map(|place| place.host),
                    on_lost_control,
                    price_micro: offer.price_micro,
                    instance_type: offer.instance_type.clone(),
                    ..Instance::announced(id, org, pool, manifest, name, at)
                };
                store::instance::insert(tx, &instance)?;
                let end = terminate_instance::begin_at(tx, id, WHY, at + TRIAL_MS)?;
                let workflow = store::workflow::find(tx, end)?.ok_or_else(|| Refused::not_found("workflow", end))?;
                let made = Instance { manifest: workflow.manifest, ..store::instance::lock(tx, id)? };
                store::instance::save(tx, &made)?;
                store::manifest::own(tx, workflow.manifest, &[(ResourceKind::Instance, id.0)])?;
                Ok((instance, end))
            })
            .await?;
        let (instance, end) = announced;
        let order = crate::pool::order(&self.context, &instance);
        let cases = adapters::conformance::black_box(provider.as_ref(), &order).await;
        let tested = move |tx: &mut Tx| {
            let at = tx.at();
            tx.wake(WorkKind::Workflow, end.0, at);
            Ok(())
        };
        self.store.write(Lane::Normal, "provider.tested", tested).await?;
        Ok((instance.id, cases))
    }
}
