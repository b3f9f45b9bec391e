//! Routes of secrets: set, listed by name, deleted; never shown.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::problem::Answer;
use crate::routes::Asked;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use wire::api::{Page, SecretBody, SecretStored, SecretView};

pub(crate) async fn list(State(house): State<Shared>, reader: Reader) -> Answer<Json<Page<SecretView>>> {
    let found = house.engine.secrets(reader.org(), String::new(), 1000).await?;
    let data = found.into_iter().map(|s| SecretView {
        name: s.name,
        created_at: s.updated_at.ms(),
        updated_at: s.updated_at.ms(),
    });
    Ok(Json(Page { data: data.collect(), next_cursor: None }))
}

pub(crate) async fn put(
    State(house): State<Shared>,
    writer: Writer,
    Path(name): Path<String>,
    asked: Asked<SecretBody>,
) -> Answer<Json<SecretStored>> {
    let value = asked.value.value;
    let (note, masked) = (model::secret::note(&name, &value), value.len() >= model::secret::SHORTEST_MASKED);
    house.engine.put_secret(writer.org(), name.clone(), value).await?;
    Ok(Json(SecretStored { name, masked, note }))
}

pub(crate) async fn delete(
    State(house): State<Shared>,
    writer: Writer,
    Path(name): Path<String>,
) -> Answer<StatusCode> {
    house.engine.delete_secret(writer.org(), name).await?;
    Ok(StatusCode::NO_CONTENT)
}
