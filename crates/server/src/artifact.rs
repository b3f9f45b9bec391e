//! Routes of artifacts.

use crate::auth::Reader;
use crate::problem::Answer;
use crate::routes::{Paging, Path, Query, download, id, page};
use crate::{Shared, view};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use wire::api::{ArtifactView, Page};

pub(crate) async fn list(
    State(house): State<Shared>,
    reader: Reader,
    Path(run): Path<String>,
    Query(paging): Query<Paging>,
) -> Answer<Json<Page<ArtifactView>>> {
    let (limit, after) = (paging.limit()?, paging.after()?);
    let found = house.engine.artifacts(reader.org(), id("run", &run)?, after, limit).await?;
    Ok(page(found, limit, |a| a.id.0, view::artifact))
}

pub(crate) async fn get(
    State(house): State<Shared>,
    reader: Reader,
    Path((run, artifact)): Path<(String, String)>,
) -> Answer {
    let (artifact, bytes) =
        house.engine.open_artifact(reader.org(), id("run", &run)?, id("artifact", &artifact)?).await?;
    let name = artifact.path.rsplit('/').next().unwrap_or_default();
    Ok(download(name, Body::from_stream(bytes.into_stream())))
}
