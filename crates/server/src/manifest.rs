//! Routes of manifests.

use crate::auth::Reader;
use crate::problem::HandlerResult;
use crate::routes::{Paging, Path, Query, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::extract::State;
use wire::api::{ManifestView, Page};

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<ManifestView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = state.engine.manifests(reader.org(), before, limit).await?;
    Ok(page(found, limit, |m| m.id.0, |m| view::manifest(m, &[])))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Path(manifest): Path<String>,
) -> HandlerResult<Json<ManifestView>> {
    let (manifest, resources) = state.engine.manifest(reader.org(), id("manifest", &manifest)?).await?;
    Ok(Json(view::manifest(&manifest, &resources)))
}
