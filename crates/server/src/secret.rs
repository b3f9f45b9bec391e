//! Routes of secrets: set, listed by name, deleted; never shown.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Paging, Path, Query};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use model::Refused;
use wire::api::{Page, SecretBody, SecretStored, SecretView};

/// By name; a cursor is the last name of the page before.
pub(crate) async fn list(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<SecretView>>> {
    let limit = paging.limit()?;
    if paging.cursor.as_ref().is_some_and(|name| !engine::org::is_secret_name(name)) {
        return Err(Refused::invalid("cursor", "is not a cursor of ours").into());
    }
    let found = state.engine.secrets(reader.org(), paging.cursor.unwrap_or_default(), limit).await?;
    let next_cursor = found.last().filter(|_| found.len() as i64 == limit).map(|last| last.name.clone());
    let data = found.into_iter().map(|s| SecretView {
        name: s.name,
        created_at: s.updated_at.ms(),
        updated_at: s.updated_at.ms(),
    });
    Ok(Json(Page { data: data.collect(), next_cursor }))
}

pub(crate) async fn put(
    State(state): State<Shared>,
    writer: Writer,
    Path(name): Path<String>,
    asked: Asked<SecretBody>,
) -> HandlerResult<Json<SecretStored>> {
    let value = asked.value.value;
    let (note, masked) = (model::secret::note(&name, &value), value.len() >= model::secret::SHORTEST_MASKED);
    state.engine.put_secret(writer.org(), name.clone(), value).await?;
    Ok(Json(SecretStored { name, masked, note }))
}

pub(crate) async fn delete(
    State(state): State<Shared>,
    writer: Writer,
    Path(name): Path<String>,
) -> HandlerResult<StatusCode> {
    state.engine.delete_secret(writer.org(), name).await?;
    Ok(StatusCode::NO_CONTENT)
}
