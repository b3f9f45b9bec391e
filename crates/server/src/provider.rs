//! Routes of providers. They belong to the installation: who may read, reads all; who adds, removes or tries one is an admin.

use crate::Shared;
use crate::auth::{Admin, Reader};
use crate::hub::Hub;
use crate::problem::HandlerResult;
use crate::routes::{Asked, Nothing, Paging, Path, Query, once, part};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::Engine;
use engine::Hint;
use engine::adapters::PriceLine;
use engine::provider::ProviderOverview;
use model::Timestamp;
use model::host::Host;
use model::provider_row::{Departure, ProviderRow, Stays};
use model::spec::Resources;
use serde::Deserialize;
use std::time::Duration;
use wire::api::{HostView, NewProvider, PriceView, ProviderCase, ProviderReport, ProviderView, StaysView};

/// How long a request to remove a provider waits for its end.
const REMOVED_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Removal {
    /// End its machines now, with what runs on them.
    force: Option<bool>,
    /// Give up what could not be removed from its hosts.
    abandon: Option<bool>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Priced {
    /// Only of this provider.
    provider: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Whenever a row changes, in this process or another, the providers are read again.
pub(crate) fn follow(hub: &Hub, engine: Engine) {
    let mut bell = hub.follow(Hint::Providers);
    tokio::spawn(async move {
        loop {
            bell.rung().await;
            if let Err(failure) = engine.read_providers().await {
                tracing::warn!(%failure, "the providers could not be read again");
            }
        }
    });
}

pub(crate) async fn list(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    part(state.engine.list_providers().await?.iter().map(shown).collect(), &paging)
}

pub(crate) async fn show(
    State(state): State<Shared>,
    _: Reader,
    Path(name): Path<String>,
) -> HandlerResult<Json<ProviderView>> {
    Ok(Json(shown(&state.engine.provider_picture(&name).await?)))
}

pub(crate) async fn prices(State(state): State<Shared>, _: Reader, Query(asked): Query<Priced>) -> HandlerResult {
    let lines = state.engine.prices(asked.provider.as_deref())?;
    let paging = Paging { limit: asked.limit, cursor: asked.cursor };
    part(lines.into_iter().map(|(provider, line)| priced(provider, &line)).collect(), &paging)
}

/// Said twice it is the same provider.
pub(crate) async fn add(State(state): State<Shared>, admin: Admin, asked: Asked<NewProvider>) -> HandlerResult {
    let key = asked.key(admin.org());
    let NewProvider { name, kind, keys, orgs, price_per_hour } = asked.value;
    let row = ProviderRow {
        name,
        kind,
        keys: keys.into_iter().collect(),
        orgs,
        price_per_hour,
        of_settings: false,
        leaving: false,
        departure: Departure::default(),
        added_by: admin.0.described(),
        added_at: Timestamp(0),
    };
    once(&state, key, 201, async { Ok(shown(&state.engine.add_provider(row).await?)) }).await
}

pub(crate) async fn remove(
    State(state): State<Shared>,
    admin: Admin,
    Path(name): Path<String>,
    Query(removal): Query<Removal>,
) -> HandlerResult<StatusCode> {
    let force = removal.force == Some(true);
    if removal.abandon == Some(true) {
        state.engine.abandon_hosts(&name).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let mut bell = state.hub.follow(Hint::Providers);
    let tried = state.engine.remove_provider(&name, force, admin.0.described()).await?;
    // Where nothing is in the way it is gone when this is answered, or it is known what stays.
    let settled = async {
        loop {
            match state.engine.removal(&name).await? {
                Some(it) if it.departure.tries == tried && (force || !it.waits) => bell.rung().await,
                _ => return HandlerResult::Ok(()),
            }
        }
    };
    match tokio::time::timeout(REMOVED_WITHIN, settled).await {
        Ok(settled) => settled?,
        Err(_) => tracing::info!(provider = %name, "it is not removed yet"),
    }
    state.engine.read_providers().await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn test(
    State(state): State<Shared>,
    admin: Admin,
    Path(name): Path<String>,
    asked: Asked<Nothing>,
) -> HandlerResult {
    let org = admin.org();
    once(&state, asked.key(org), 200, async {
        let (instance, cases) = state.engine.test_provider(org, &name).await?;
        let shown = |(name, result): (&'static str, Result<(), String>)| ProviderCase {
            name: name.replace('_', " "),
            passed: result.is_ok(),
            why: result.err(),
        };
        let cases: Vec<ProviderCase> = cases.into_iter().map(shown).collect();
        let passed = cases.iter().all(|case| case.passed);
        Ok(ProviderReport { provider: name.clone(), instance: instance.to_string(), passed, cases })
    })
    .await
}

fn shown(it: &ProviderOverview) -> ProviderView {
    let (listing, capabilities) = (&it.listing, it.listing.provider.capabilities());
    let region = capabilities.regions.first().cloned().unwrap_or_default();
    let source = match (listing.of_settings, listing.leaving) {
        (true, true) => "left",
        (true, false) => "settings",
        (false, _) => "added",
    };
    ProviderView {
        name: it.name.clone(),
        kind: it.kind.clone(),
        source: source.to_owned(),
        regions: capabilities.regions,
        max_instances: capabilities.max_instances,
        instances: it.instances,
        price_per_hour: listing.provider.price(&Resources::default(), &region, false).to_string(),
        bills: capabilities.bills,
        spot: capabilities.spot,
        gpus: capabilities.gpus.iter().map(ToString::to_string).collect(),
        workdir_survives_runner: capabilities.keeps_workdirs,
        leaving: listing.leaving,
        orgs: listing.orgs.clone(),
        hosts: listing.hosts.iter().map(|host| host_view(host, it.on.get(&host.name).copied())).collect(),
        stays: it.stays.iter().map(stays).collect(),
    }
}

fn host_view(it: &Host, instances: Option<i64>) -> HostView {
    let facts = it.facts.clone();
    let status = match (&it.down, &facts) {
        (Some(_), _) => "down",
        (None, Some(_)) => "up",
        (None, None) => "unknown",
    };
    HostView {
        host: it.name.clone(),
        status: status.to_owned(),
        why: it.down.as_ref().map(|down| down.why.clone()),
        down_since: it.down.as_ref().map(|down| down.since.ms()),
        architecture: facts.as_ref().map(|facts| facts.architecture.clone()),
        os_release: facts.as_ref().map(|facts| facts.os_release.clone()),
        cpu_milli: facts.as_ref().and_then(|facts| facts.cpu_milli),
        memory_bytes: facts.as_ref().and_then(|facts| facts.memory_bytes),
        no_sandbox: it.no_sandbox().map(str::to_owned),
        gpus: facts.map_or_else(Vec::new, |facts| facts.gpus),
        slots: it.slots,
        instances: instances.unwrap_or(0),
    }
}

fn stays(it: &Stays) -> StaysView {
    StaysView { host: it.host.clone(), what: it.what.clone(), why: it.why.clone() }
}

fn priced(provider: String, line: &PriceLine) -> PriceView {
    PriceView {
        provider,
        region: line.region.clone(),
        spot: line.spot,
        instance_type: line.instance_type.clone(),
        cpu_milli: line.resources.cpu_milli,
        memory_bytes: line.resources.memory_bytes,
        gpu: line.resources.gpu.as_ref().map(ToString::to_string),
        price_per_hour: line.per_hour.to_string(),
        price_per_hour_micro: line.per_hour.micro(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::host::HostFacts;

    #[test]
    fn a_host_is_shown_with_the_reason_why_it_makes_no_sandboxes() {
        let unknown = Host::unknown("lab", "box1", 1);
        let without = HostFacts { no_sandbox: Some("no bwrap".to_owned()), ..HostFacts::default() };
        let up = |facts: HostFacts| Host { facts: Some(facts), ..unknown.clone() };
        let shown = |host: &Host| (host_view(host, None).status, host_view(host, None).no_sandbox);
        assert_eq!(shown(&unknown), ("unknown".to_owned(), None));
        assert_eq!(shown(&up(HostFacts::default())), ("up".to_owned(), None));
        assert_eq!(shown(&up(without)), ("up".to_owned(), Some("no bwrap".to_owned())));
    }
}
