//! Routes of artifacts.

use crate::auth::Reader;
use crate::problem::HandlerResult;
use crate::routes::{Paging, Path, Query, download, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use wire::api::{ArtifactView, Page};

pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<ArtifactView>>> {
    let (limit, after) = (paging.limit()?, paging.after()?);
    let found = state.engine.artifacts(reader.org(), id("run", &run)?, after, limit).await?;
    Ok(page(found, limit, |a| a.id.0, view::artifact))
}

pub(crate) async fn get(
    State(state): State<Shared>,
    reader: Reader,
    Path((run, artifact)): Path<(String, String)>,
) -> HandlerResult {
    let (artifact, bytes) =
        state.engine.open_artifact(reader.org(), id("run", &run)?, id("artifact", &artifact)?).await?;
    let name = artifact.path.rsplit('/').next().unwrap_or_default();
    Ok(download(name, Body::from_stream(bytes.into_stream())))
}
