//! Routes of orphans. They belong to the installation, not to an org: who may read, reads all; who keeps or ends one is an admin.

use crate::Shared;
use crate::auth::{Admin, Reader, Writer};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Paging, Path, Query, gather, once, page, part};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::orphan::UnlistedJob;
use engine::orphan::{ImportOutcome, OrphanOverview, ScanOverview, UnlistedOverview};
use model::names::ResourceName;
use model::orphan::{ResourceType, Whitelisted};
use model::stub::Stub;
use model::{Credits, Timestamp, slug};
use serde::Deserialize;
use wire::api::{
    EndOrphanBody, ImportBody, ImportReport, ImportedView, InferredView, NotImportedView, OrphanDetailView,
    OrphanMatchView, OrphanTally, OrphanView, Page, ScanBody, ScanReport, ScanView, TailscaleView, UnlistedJobView,
    UnlistedView, WhitelistBody, WhitelistView,
};

/// Entries of the whitelist that are read as a whole.
const MOST_KEPT: i64 = 10_000;
/// Runners that are read as a whole.
const MOST_UNLISTED: i64 = 1_000;

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only of this provider.
    provider: Option<String>,
    /// Also those on the whitelist.
    include_whitelisted: Option<bool>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Which provider, where several know the id.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Of {
    /// Which provider, where several know the id.
    provider: Option<String>,
}

impl Filter {
    pub(crate) fn everything(paging: Paging) -> Filter {
        let Paging { limit, cursor } = paging;
        Filter { include_whitelisted: Some(true), limit, cursor, ..Filter::default() }
    }
}

impl Of {
    pub(crate) fn provider(provider: Option<String>) -> Of {
        Of { provider }
    }
}

pub(crate) async fn list(
    State(state): State<Shared>,
    _: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<OrphanView>>> {
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let (limit, before) = (paging.limit()?, paging.before()?);
    let number = |found: &OrphanOverview| found.orphan.id.0;
    let wanted = |found: &OrphanOverview| {
        (filter.include_whitelisted == Some(true) || !found.is_whitelisted())
            && filter.provider.as_ref().is_none_or(|only| *only == found.orphan.provider)
    };
    let read = |before| state.engine.orphans(before, limit);
    Ok(page(gather(before, limit, read, number, wanted).await?, limit, number, shown))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(id): Path<String>,
    Query(of): Query<Of>,
) -> HandlerResult<Json<OrphanDetailView>> {
    let found = state.engine.orphan(of.provider.as_deref(), &id).await?;
    let matches = state.engine.matches(reader.org(), &found.orphan).await?;
    let matches = matches.into_iter().map(|it| OrphanMatchView {
        instance: it.instance.to_string(),
        name: it.name,
        status: it.status,
        confidence: it.confidence,
    });
    Ok(Json(OrphanDetailView { orphan: shown(&found), matches: matches.collect() }))
}

pub(crate) async fn tally(State(state): State<Shared>, _: Reader) -> HandlerResult<Json<OrphanTally>> {
    let tally = state.engine.tally_orphans().await?;
    let scans = state.engine.scans().await?;
    let failed = scans.iter().filter(|it| it.scan.as_ref().is_some_and(|scan| scan.error.is_some()));
    Ok(Json(OrphanTally {
        orphans: tally.orphans,
        estimated_hourly_cost: Credits(tally.price_micro).to_string(),
        estimated_hourly_cost_micro: tally.price_micro,
        not_scanned: failed.map(|it| format!("{}/{}", it.provider, it.region)).collect(),
    }))
}

pub(crate) async fn scan(State(state): State<Shared>, writer: Writer, asked: Asked<ScanBody>) -> HandlerResult {
    let key = asked.key(writer.org());
    once(&state, key, 200, async {
        let scans = state.engine.scan_now(asked.value.provider.as_deref()).await?;
        Ok(ScanReport { scans: scans.iter().map(scanned).collect() })
    })
    .await
}

pub(crate) async fn scans(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    part(state.engine.scans().await?.iter().map(scanned).collect(), &paging)
}

pub(crate) async fn whitelist(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    let kept = state.engine.kept_orphans(Default::default(), MOST_KEPT).await?;
    part(kept.iter().map(entry).collect(), &paging)
}

/// Said twice it is the same entry.
pub(crate) async fn keep(State(state): State<Shared>, admin: Admin, asked: Asked<WhitelistBody>) -> HandlerResult {
    let org = admin.org();
    let key = asked.key(org);
    let body = asked.value;
    let wanted = Whitelisted {
        provider: String::new(),
        provider_id: body.provider_id,
        kind: ResourceType::Instance,
        reason: body.reason,
        acknowledged_by: admin.0.described(),
        acknowledged_at: Timestamp(0),
        expires_at: body.expires_at.map(Timestamp),
        notes: body.notes,
    };
    once(&state, key, 200, async {
        let kept = state.engine.keep_orphan(org, body.provider.as_deref(), wanted).await?;
        Ok(entry(&kept))
    })
    .await
}

pub(crate) async fn unkeep(
    State(state): State<Shared>,
    admin: Admin,
    Path(id): Path<String>,
    Query(of): Query<Of>,
) -> HandlerResult<StatusCode> {
    let by = (admin.org(), admin.0.described());
    state.engine.unkeep_orphan(by, of.provider.as_deref(), &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runners that wait to be tracked again.
pub(crate) async fn unlisted(State(state): State<Shared>, _: Reader, Query(paging): Query<Paging>) -> HandlerResult {
    let found = state.engine.unlisted(String::new(), MOST_UNLISTED).await?;
    part(found.iter().map(unlisted_view).collect(), &paging)
}

/// Asked twice it imports once.
pub(crate) async fn import(State(state): State<Shared>, admin: Admin, asked: Asked<ImportBody>) -> HandlerResult {
    let (key, by) = (asked.key(admin.org()), admin.0.described());
    once(&state, key, 200, async {
        let (mut imported, mut left) = (Vec::new(), Vec::new());
        for import in state.engine.import(by, asked.value.org.clone()).await? {
            match import.outcome {
                ImportOutcome::Imported(it) => imported.push(ImportedView {
                    name: import.name,
                    instance: it.instance.to_string(),
                    run: it.run.to_string(),
                    run_name: it.run_name,
                    job: it.job.to_string(),
                    org: it.org,
                    log_from: it.log_from,
                }),
                ImportOutcome::Left(why) => left.push(NotImportedView { name: import.name, why }),
            }
        }
        Ok(ImportReport { imported, left })
    })
    .await
}

fn unlisted_view(found: &UnlistedOverview) -> UnlistedView {
    let job = |(job, stub): &(UnlistedJob, Option<Stub>)| UnlistedJobView {
        job: job.job.to_string(),
        epoch: job.epoch,
        ended: job.ended,
        sealed: stub.is_some(),
        run: stub.as_ref().map(|stub| stub.run.to_string()),
        run_name: stub.as_ref().map(|stub| stub.run_name.clone()),
        org: stub.as_ref().map(|stub| stub.org_name.clone()),
        command: stub.as_ref().map(|stub| stub.command.shown()),
        started_at: stub.as_ref().map(|stub| stub.started_at.ms()),
        lacks: match stub {
            None => Some("it does not bear this installation's seal".to_owned()),
            Some(stub) => stub.lacks().map(str::to_owned),
        },
    };
    UnlistedView {
        name: found.runner.name.clone(),
        inferred_info: model::names::parse(&found.runner.name).map(inferred),
        host: found.runner.host.clone(),
        seen_at: found.runner.seen_at.ms(),
        jobs: found.jobs.iter().map(job).collect(),
    }
}

fn inferred(name: ResourceName) -> InferredView {
    InferredView {
        manifest_slug: name.manifest.map(slug),
        instance_slug: slug(name.resource),
        control_id: name.control_id,
    }
}

/// Asked twice it ends once.
pub(crate) async fn terminate(
    State(state): State<Shared>,
    admin: Admin,
    Path(id): Path<String>,
    Query(of): Query<Of>,
    asked: Asked<EndOrphanBody>,
) -> HandlerResult {
    let by = (admin.org(), admin.0.described());
    let body = &asked.value;
    once(&state, asked.key(admin.org()), 200, async {
        let ending = state.engine.end_orphan(by, (of.provider.as_deref(), &id), &body.confirm, body.force).await?;
        Ok(shown(&ending))
    })
    .await
}

fn shown(found: &OrphanOverview) -> OrphanView {
    let (orphan, it, now) = (&found.orphan, &found.orphan.listed, found.now);
    let name = it.inferred();
    let instance_slug = name.as_ref().map(|name| slug(name.resource));
    let tailscale = (it.kind == ResourceType::TailscaleMachine).then(|| TailscaleView {
        machine_id: it.handle.clone(),
        machine_name: it.name.clone(),
        tailscale_ip: it.ip.clone(),
        instance_id_slug: instance_slug.clone(),
        last_seen: it.last_seen.map(Timestamp::ms),
        age_ms: it.age_ms(now),
    });
    OrphanView {
        provider: orphan.provider.clone(),
        provider_id: it.handle.clone(),
        resource_type: it.kind.to_string(),
        name: it.name.clone(),
        section: found.section.to_string(),
        severity: found.severity.to_string(),
        inferred_info: name.map(inferred),
        created_at: it.created_at.map(Timestamp::ms),
        age_ms: it.age_ms(now),
        likely_current_session: found.of_session,
        young: found.young,
        estimated_hourly_cost: it.price_micro.map(|price| Credits(price).to_string()),
        estimated_hourly_cost_micro: it.price_micro,
        status: it.status.to_string(),
        instance_type: it.instance_type.clone(),
        region: it.region.clone(),
        ip: it.ip.clone(),
        last_seen: it.last_seen.map(Timestamp::ms),
        first_seen_at: orphan.first_seen_at.ms(),
        seen_at: orphan.seen_at.ms(),
        whitelisted: orphan.whitelisted.as_ref().filter(|kept| kept.holds_at(now)).map(entry),
        ending_at: orphan.ending.as_ref().map(|ending| ending.at.ms()),
        ending_error: orphan.ending.as_ref().map_or_else(|| orphan.refused.clone(), |ending| ending.error.clone()),
        tailscale,
    }
}

fn entry(kept: &Whitelisted) -> WhitelistView {
    WhitelistView {
        provider: kept.provider.clone(),
        provider_id: kept.provider_id.clone(),
        resource_type: kept.kind.to_string(),
        reason: kept.reason.clone(),
        acknowledged_by: kept.acknowledged_by.clone(),
        acknowledged_at: kept.acknowledged_at.ms(),
        expires_at: kept.expires_at.map(Timestamp::ms),
        notes: kept.notes.clone(),
    }
}

fn scanned(picture: &ScanOverview) -> ScanView {
    let known = picture.scan.as_ref();
    let scan = picture.scan.clone().unwrap_or_default();
    ScanView {
        provider: picture.provider.clone(),
        region: picture.region.clone(),
        scanned: known.is_some() && scan.error.is_none(),
        error: scan.error.clone(),
        started_at: known.map(|scan| scan.started_at.ms()),
        finished_at: known.map(|scan| scan.finished_at.ms()),
        complete_at: scan.complete_at.map(Timestamp::ms),
        pages: scan.pages,
        listed: scan.listed,
        tracked: scan.tracked,
        adopted: scan.adopted,
        young: scan.young,
        orphans: scan.orphans,
        foreign: scan.foreign,
    }
}
