//! Routes of manifests.

use crate::auth::Reader;
use crate::problem::Answer;
use crate::routes::{Paging, Path, Query, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::extract::State;
use wire::api::{ManifestView, Page};

pub(crate) async fn list(
    State(house): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> Answer<Json<Page<ManifestView>>> {
    let (limit, before) = (paging.limit()?, paging.before()?);
    let found = house.engine.manifests(reader.org(), before, limit).await?;
    Ok(page(found, limit, |m| m.id.0, |m| view::manifest(m, &[])))
}

pub(crate) async fn show(
    State(house): State<Shared>,
    reader: Reader,
    Path(manifest): Path<String>,
) -> Answer<Json<ManifestView>> {
    let (manifest, resources) = house.engine.manifest(reader.org(), id("manifest", &manifest)?).await?;
    Ok(Json(view::manifest(&manifest, &resources)))
}
