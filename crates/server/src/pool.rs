//! Routes of pools and providers.

use crate::Shared;
use crate::auth::Reader;
use crate::problem::HandlerResult;
use crate::routes::{Paging, Query, part};
use axum::extract::State;
use model::spec::Resources;
use wire::api::{PoolView, ProviderView};

pub(crate) async fn pools(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    let found = state.engine.pools().await?;
    let data = found.into_iter().map(|p| PoolView {
        id: p.pool.id.to_string(),
        provider: p.pool.provider,
        region: p.pool.region,
        instances: p.room.instances,
        max_instances: p.room.max_instances,
        available: p.available,
        busy: p.busy,
        waiting: p.waiting,
    });
    part(data.collect(), &paging)
}

pub(crate) async fn providers(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    let all = state.engine.context.providers.all();
    let data = all.values().map(|listing| {
        let provider = &listing.provider;
        let capabilities = provider.capabilities();
        let region = capabilities.regions.first().cloned().unwrap_or_default();
        let price = provider.price(&Resources::default(), &region, false).to_string();
        ProviderView {
            name: provider.name().to_owned(),
            regions: capabilities.regions,
            max_instances: capabilities.max_instances,
            price_per_hour: price,
            workdir_survives_runner: capabilities.keeps_workdirs,
        }
    });
    part(data.collect(), &paging)
}
