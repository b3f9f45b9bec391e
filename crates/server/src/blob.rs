//! Files by content: only what is missing travels.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::problem::Answer;
use crate::routes::{Asked, Path, download, settled};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use wire::api::BlobList;

/// One file.
const BLOB_BYTES: i64 = 64 * 1024 * 1024 * 1024;

pub(crate) async fn missing(State(house): State<Shared>, writer: Writer, asked: Asked<BlobList>) -> Answer {
    let key = asked.key(writer.org());
    let hashes = house.engine.missing_blobs(writer.org(), asked.value.hashes).await?;
    settled(&house, key, &BlobList { hashes }).await
}

pub(crate) async fn put(
    State(house): State<Shared>,
    writer: Writer,
    Path(hash): Path<String>,
    body: Body,
) -> Answer<StatusCode> {
    let upload = house.engine.blobs.receive(body.into_data_stream(), BLOB_BYTES).await?;
    house.engine.keep_blob(writer.org(), &hash, upload).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn get(State(house): State<Shared>, reader: Reader, Path(hash): Path<String>) -> Answer {
    let blob = house.engine.open_blob(reader.org(), &hash)?;
    Ok(download(&hash, Body::from_stream(blob.into_stream())))
}
