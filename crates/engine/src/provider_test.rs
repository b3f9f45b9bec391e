//! Tries a provider with a machine of its own: its row stands before the first call, and with it the workflow that ends it, at the latest
//! when the trial is given up. Whatever the trial finds, the machine does not stay.

use crate::Engine;
use crate::intents::terminate_instance;
use crate::transition::instance_event;
use adapters::conformance::Case;
use model::instance::{Instance, InstanceEvent};
use model::manifest::ResourceKind;
use model::names::ResourceName;
use model::offer::Asked;
use model::spec::Resources;
use model::{Failure, InstanceId, ManifestId, OrgId, Refused, Trouble};
use store::{Lane, Tx, WorkKind};

/// A trial takes no longer, or is given up.
const TRIAL_MS: i64 = 10 * model::time::MINUTE;
/// The case of a trial that is given up.
const IN_TIME: &str = "its_calls_return";
const WHY: &str = "its provider was tried with it";

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
                // Placements of runs choose a host under the same lock.
                let in_pool = store::pool::lock(tx, pool)?;
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
        let cases = async { Ok(adapters::conformance::black_box(provider.as_ref(), &order).await) };
        let gave_up = |late: Trouble| (None, vec![(IN_TIME, Err(late.what))]);
        let (handle, cases) = self.acts_in_time(Box::pin(cases)).await.unwrap_or_else(gave_up);
        let machine = instance.id;
        let tested = move |tx: &mut Tx| {
            let (at, known) = (tx.at(), store::instance::lock(tx, machine)?);
            // A provider that cannot find the machine by its name can still end it by its handle.
            if let Some(handle) = handle.as_ref().filter(|_| known.status.is_open()) {
                let bound = instance_event(tx, known, InstanceEvent::Bound { handle: handle.0.clone() })?;
                store::instance::save(tx, &bound)?;
            }
            tx.wake(WorkKind::Workflow, end.0, at);
            Ok(())
        };
        self.store.write(Lane::Normal, "provider.tested", tested).await?;
        Ok((instance.id, cases))
    }
}
