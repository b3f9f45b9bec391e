//! Routes of instances.

use crate::auth::{Reader, Writer};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Nothing, Paging, Path, Query, answered, gather, id, page};
use crate::{Shared, now_ms};
use axum::Json;
use axum::extract::State;
use engine::instance::{InstanceOverview, WORKFLOW_STATES};
use model::Refused;
use model::feature::Feature;
use model::instance::InstanceStatus;
use serde::Deserialize;
use std::sync::Arc;
use wire::api::{FeatureView, InstanceView, Page, TerminateBody};

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// Only those whose `status` or `workflow_state` begins so, e.g. `ready` or `launch-run:`; terminated ones too.
    state: Option<String>,
    /// Also those that are terminated.
    all: Option<bool>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl Filter {
    pub(crate) fn page(limit: i64, cursor: Option<String>) -> Filter {
        Filter { limit: Some(limit), cursor, ..Filter::default() }
    }
}

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<InstanceView>>> {
    let paging = Paging { limit: filter.limit, cursor: filter.cursor };
    let (limit, before) = (paging.limit()?, paging.before()?);
    let (org, all) = (reader.org(), filter.all == Some(true) || filter.state.is_some());
    if let Some(prefix) = &filter.state
        && !WORKFLOW_STATES.iter().any(|known| known.starts_with(prefix.as_str()) || prefix.starts_with(known))
    {
        let why = format!("no state begins with `{prefix}`: they begin with {}", WORKFLOW_STATES.join(", "));
        return Err(Refused::invalid("state", why).into());
    }
    let number = |p: &InstanceOverview| p.instance.id.0;
    let wanted = |p: &InstanceOverview| {
        (all || p.instance.status != InstanceStatus::Terminated)
            && filter.state.as_ref().is_none_or(|prefix| {
                p.workflow_state.starts_with(prefix) || p.instance.status.as_str().starts_with(prefix)
            })
    };
    let read = |before| state.engine.list_instances(org, before, limit);
    Ok(page(gather(before, limit, read, number, wanted).await?, limit, number, show_picture))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(instance): Path<String>,
) -> HandlerResult<Json<InstanceView>> {
    let snapshot = state.engine.instance_picture(reader.org(), id("instance", &instance)?).await?;
    Ok(Json(show_picture(&snapshot)))
}

pub(crate) async fn terminate(
    State(state): State<Shared>,
    writer: Writer,
    Path(instance): Path<String>,
    asked: Asked<TerminateBody>,
) -> HandlerResult {
    let (instance, org) = (id("instance", &instance)?, writer.org());
    let render = Arc::new(|snapshot: &InstanceOverview| {
        serde_json::to_vec(&show_picture(snapshot)).expect("a view is plain data")
    });
    let by = (org, writer.0.described());
    answered(state.engine.terminate_instance(by, instance, asked.value.force, asked.key(org), render).await?)
}

pub(crate) async fn drain(
    State(state): State<Shared>,
    writer: Writer,
    Path(instance): Path<String>,
    asked: Asked<Nothing>,
) -> HandlerResult {
    let (instance, org) = (id("instance", &instance)?, writer.org());
    let render = Arc::new(|snapshot: &InstanceOverview| {
        serde_json::to_vec(&show_picture(snapshot)).expect("a view is plain data")
    });
    let by = (org, writer.0.described());
    answered(state.engine.drain_instance(by, instance, asked.key(org), render).await?)
}

fn show_picture(snapshot: &InstanceOverview) -> InstanceView {
    let i = &snapshot.instance;
    // A machine that waits in a queue of its provider does not exist yet, and costs nothing.
    let until = if i.queued.is_some() { i.created_at.ms() } else { i.terminated_at.map_or_else(now_ms, |at| at.ms()) };
    let machine_ms = (until - i.created_at.ms()).max(0);
    let so_far = model::Credits(i.price_micro).per_hour_for(machine_ms);
    InstanceView {
        id: i.id.to_string(),
        name: i.name.clone(),
        provider: i.provider.clone(),
        region: i.region.clone(),
        status: i.status.to_string(),
        workflow_state: snapshot.workflow_state.clone(),
        cpu_milli: i.resources.cpu_milli,
        memory_bytes: i.resources.memory_bytes,
        price_per_hour: model::Credits(i.price_micro).to_string(),
        price_per_hour_micro: i.price_micro,
        manifest: i.manifest.to_string(),
        handle: i.handle.clone(),
        host: i.host.clone(),
        runner_version: i.runner_version.clone(),
        containment: i.containment.clone(),
        sandbox: i.sandbox.clone(),
        features: i.features.iter().map(feature).collect(),
        job: snapshot.job.as_ref().map(|j| j.id.to_string()),
        run: snapshot.job.as_ref().map(|j| j.run.to_string()),
        desired_version: i.desired_version,
        observed_version: i.observed_version,
        created_at: i.created_at.ms(),
        ready_at: i.ready_at.map(|at| at.ms()),
        last_seen_at: i.last_seen_at.map(|at| at.ms()),
        idle_since: i.idle_since.map(|at| at.ms()),
        busy_since: snapshot.job.as_ref().and_then(|job| job.placed_at).map(|at| at.ms()),
        machine_ms,
        credits_so_far: so_far.to_string(),
        credits_so_far_micro: so_far.micro(),
        terminated_at: i.terminated_at.map(|at| at.ms()),
        held_until: snapshot.held_until.map(|at| at.ms()),
    }
}

fn feature(it: &Feature) -> FeatureView {
    let Feature { name, checksum, state, error, .. } = it.clone();
    FeatureView { name, state: state.to_string(), checksum, error }
}
