//! Routes of files by hash: a client asks which are missing and sends only those.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::input::Pieces;
use crate::problem::HandlerResult;
use crate::routes::{Asked, Path, download, settled};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use engine::content::Small;
use model::tree::{BLOB_BYTES, DOCUMENT_BYTES};
use model::{OrgId, Refused, Trouble, TroubleKind};
use tokio_stream::StreamExt as _;
use wire::api::BlobList;
use wire::pack;

/// Documents that are read at the same time.
static READ_AT_ONCE: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

pub(crate) async fn missing(State(state): State<Shared>, writer: Writer, asked: Asked<BlobList>) -> HandlerResult {
    let key = asked.key(writer.org());
    let hashes = state.engine.missing_blobs(writer.org(), asked.value.hashes).await?;
    let trees = state.engine.missing_trees(writer.org(), asked.value.trees).await?;
    settled(&state, key, &BlobList { hashes, trees }).await
}

pub(crate) async fn put(
    State(state): State<Shared>,
    writer: Writer,
    Path(hash): Path<String>,
    body: Pieces,
) -> HandlerResult<StatusCode> {
    receive(&state, writer.org(), &hash, body).await
}

pub(crate) async fn receive(state: &Shared, org: OrgId, hash: &str, body: Pieces) -> HandlerResult<StatusCode> {
    let upload = state.engine.blobs.receive(body.of_at_most(BLOB_BYTES)?, BLOB_BYTES).await?;
    state.engine.keep_blob(org, hash, upload).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn put_tree(
    State(state): State<Shared>,
    writer: Writer,
    Path(hash): Path<String>,
    body: Pieces,
) -> HandlerResult<StatusCode> {
    receive_tree(&state, writer.org(), &hash, body).await
}

pub(crate) async fn receive_tree(state: &Shared, org: OrgId, hash: &str, body: Pieces) -> HandlerResult<StatusCode> {
    let upload = state.engine.blobs.receive(body.of_at_most(DOCUMENT_BYTES)?, DOCUMENT_BYTES).await?;
    // A document is read whole: several large ones at once would be more memory than a server has.
    let _turn = READ_AT_ONCE.acquire().await;
    state.engine.keep_tree(org, hash, upload).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Held in memory as a whole: a pack is small by definition, and a larger one is refused as soon as it is.
pub(crate) async fn put_pack(State(state): State<Shared>, writer: Writer, body: Body) -> HandlerResult<StatusCode> {
    let bad = |error: pack::Malformed| Refused::invalid("pack", error.to_string());
    let (mut unpacker, mut blobs, mut length) = (pack::Unpacker::default(), Vec::new(), 0);
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece =
            piece.map_err(|error| Trouble::new(TroubleKind::Network, format!("the upload broke off: {error}")))?;
        length += piece.len();
        if length > 2 * pack::PACK_BYTES || blobs.len() > 2 * pack::PACK_BLOBS {
            return Err(Refused::TooLarge { what: "the pack", limit: "8 MiB or 2,000 blobs".into() }.into());
        }
        blobs.extend(unpacker.feed(&piece).map_err(bad)?);
    }
    unpacker.finish().map_err(bad)?;
    if blobs.len() > 2 * pack::PACK_BLOBS {
        return Err(Refused::TooLarge { what: "the pack", limit: "8 MiB or 2,000 blobs".into() }.into());
    }
    if blobs.is_empty() {
        return Err(Refused::invalid("pack", "holds no blob").into());
    }
    let small = |blob: pack::Blob| Small { is_tree: blob.is_tree, hash: blob.hash, bytes: blob.bytes };
    state.engine.keep_pack(writer.org(), blobs.into_iter().map(small).collect()).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn get(State(state): State<Shared>, reader: Reader, Path(hash): Path<String>) -> HandlerResult {
    let blob = state.engine.open_blob(reader.org(), &hash)?;
    Ok(download(&hash, Body::from_stream(blob.into_stream())))
}
