//! Routes of refs and objects of calls. Records are sent and read as bytes; a server never opens a remote: its clients do, with what they may read.

use crate::Shared;
use crate::auth::{Reader, Writer};
use crate::problem::{HandlerResult, Problem};
use crate::routes::{Asked, Paging, Query, download, page, part};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use engine::dag::{AT_ONCE, Expect, Logged, SetRef, commit_of, ref_of, short};
use model::{OrgId, Refused, Trouble, TroubleKind};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use wire::api::{CommitView, IndexView, ObjectView, Page, RefView};
use wire::records;

/// Bodies beyond the usual size that are held at the same time: each may be as large as the largest record. A usual body takes no turn, so
/// that a client that sends slowly does not keep others waiting.
static LARGE_AT_ONCE: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(4);
/// From its turn on, such a body is here within this time.
const LARGE_WITHIN: Duration = Duration::from_secs(120);

/// Which refs, and a page of them.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Filter {
    /// `heads`, `remotes`, `index` or `exec`; all unless given.
    kind: Option<String>,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Kinds of refs that can be listed, with what their names begin with.
pub(crate) const KINDS: &[(&str, &str)] =
    &[("heads", "refs/heads/"), ("remotes", "refs/remotes/"), ("index", "refs/index/"), ("exec", "refs/exec/")];

/// An object, and a page of what follows it.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Log {
    /// `index`, a head, a ref, or the first digits of a commit.
    #[param(min_length = 1)]
    of: String,
    /// How many at most; 50 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Named {
    /// `index`, a head, a ref, or the first digits of an object.
    #[param(min_length = 1)]
    of: String,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Below {
    /// `index`, a head, a ref, or the first digits of a commit.
    #[param(min_length = 1)]
    of: String,
    /// A commit that the asker has with everything below it. Left out of the answer if it is an ancestor.
    have: Option<String>,
}

#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Gone {
    /// A head's name, `refs/heads/…` or `refs/remotes/…/…`.
    #[param(min_length = 1)]
    name: String,
    /// The commit at which it must be.
    expect: Option<String>,
}

pub(crate) async fn refs(
    State(state): State<Shared>,
    reader: Reader,
    Query(filter): Query<Filter>,
) -> HandlerResult<Json<Page<RefView>>> {
    let limit = Paging { limit: filter.limit, cursor: None }.limit()?;
    let prefix = match filter.kind.as_deref() {
        None => "refs/",
        Some(kind) => KINDS.iter().find(|(known, _)| *known == kind).map(|(_, prefix)| *prefix).ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().map(|(known, _)| *known).collect();
            Refused::invalid("kind", format!("`{kind}` is none of {}", known.join(", ")))
        })?,
    };
    if filter.cursor.as_ref().is_some_and(|cursor| !cursor.starts_with("refs/")) {
        return Err(Refused::invalid("cursor", "is not a cursor of ours").into());
    }
    let after = filter.cursor.unwrap_or_default();
    let found = state.engine.refs(reader.org(), prefix, after, limit).await?;
    let next_cursor = found.last().filter(|_| found.len() as i64 == limit).map(|(name, _)| name.to_string());
    let shown = |(name, commit)| RefView {
        short: short(&name),
        name: name.to_string(),
        commit: ToString::to_string(&commit),
        previous: None,
    };
    Ok(Json(Page { data: found.into_iter().map(shown).collect(), next_cursor }))
}

pub(crate) async fn set(
    State(state): State<Shared>,
    writer: Writer,
    asked: Asked<wire::api::SetRef>,
) -> HandlerResult<Json<RefView>> {
    let asked = asked.value;
    let (name, expect) = (ref_of(&asked.name)?, Expect::read(asked.expect.as_deref())?);
    let set = SetRef { name, from: asked.from, expect, force: asked.force };
    let moved = state.engine.set_ref(writer.org(), set).await?;
    Ok(Json(RefView {
        short: short(&moved.name),
        name: moved.name.to_string(),
        commit: moved.commit.to_string(),
        previous: moved.previous.map(|commit| commit.to_string()),
    }))
}

pub(crate) async fn delete(
    State(state): State<Shared>,
    writer: Writer,
    Query(asked): Query<Gone>,
) -> HandlerResult<StatusCode> {
    let (name, expect) = (ref_of(&asked.name)?, Expect::read(asked.expect.as_deref())?);
    if !state.engine.delete_ref(writer.org(), name, expect).await? {
        return Err(Refused::not_found("ref", asked.name).into());
    }
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn log(
    State(state): State<Shared>,
    reader: Reader,
    Query(asked): Query<Log>,
) -> HandlerResult<Json<Page<CommitView>>> {
    let paging = Paging { limit: asked.limit, cursor: asked.cursor };
    let (limit, skipped) = (paging.limit()?, paging.after()?);
    let found = state.engine.log(reader.org(), asked.of, skipped, limit).await?;
    let shown = |it: &Logged| CommitView {
        id: it.id.to_string(),
        parents: it.commit.parents.iter().map(ToString::to_string).collect(),
        tree: it.commit.tree.to_string(),
        execs: it.commit.execs.map(|root| root.to_string()),
        refs: it.refs.iter().map(ToString::to_string).collect(),
    };
    Ok(page(found, limit, |it| it.number, shown))
}

pub(crate) async fn show(
    State(state): State<Shared>,
    reader: Reader,
    Query(asked): Query<Named>,
) -> HandlerResult<Json<ObjectView>> {
    let shown = state.engine.shown(reader.org(), asked.of).await?;
    let (id, kind) = (shown.of.id.to_string(), shown.of.kind.to_string());
    Ok(Json(ObjectView { id, kind, bytes: shown.bytes, object: shown.object }))
}

pub(crate) async fn indexes(
    State(state): State<Shared>,
    reader: Reader,
    Query(paging): Query<Paging>,
) -> HandlerResult {
    let found = state.engine.indexes(reader.org()).await?;
    let shown = found.into_iter().map(|it| IndexView {
        project: it.project,
        name: it.name.to_string(),
        commit: it.commit.map(|commit| commit.to_string()),
        pins: it.pins,
        current: it.current,
    });
    part(shown.collect(), &paging)
}

/// All records below a commit, children before parents, in pieces: the closure of an index may have millions.
pub(crate) async fn below(State(state): State<Shared>, reader: Reader, Query(asked): Query<Below>) -> HandlerResult {
    let org = reader.org();
    let have = asked.have.as_deref().map(|text| commit_of("have", text)).transpose()?;
    let ids = state.engine.below(org, asked.of, have).await?;
    let pieces = futures_util::stream::unfold((state, ids, 0), move |(state, ids, at)| async move {
        let some = ids.get(at..ids.len().min(at + AT_ONCE)).filter(|some| !some.is_empty())?.to_vec();
        let next = at + some.len();
        let piece = piece(&state, org, some).await;
        Some((piece, (state, ids, next)))
    });
    Ok(download("records", Body::from_stream(pieces)))
}

async fn piece(state: &Shared, org: OrgId, ids: Vec<engine::dag::Id>) -> Result<Bytes, std::io::Error> {
    let found = state.engine.records(org, ids).await.map_err(|failure| std::io::Error::other(failure.to_string()))?;
    let mut body = Vec::new();
    found.iter().for_each(|record| records::push(&mut body, record));
    Ok(body.into())
}

pub(crate) async fn put(State(state): State<Shared>, writer: Writer, body: Body) -> HandlerResult<StatusCode> {
    let bad = |error: records::Malformed| Refused::invalid("records", error.to_string());
    let (mut unpacker, mut found, mut bytes) = (records::Unpacker::default(), Vec::new(), 0);
    let (mut pieces, mut turn) = (body.into_data_stream(), None);
    loop {
        let piece = match &turn {
            None => pieces.next().await,
            Some((_, until)) => tokio::time::timeout_at(*until, pieces.next()).await.map_err(|_| too_slow())?,
        };
        let Some(piece) = piece else { break };
        let piece =
            piece.map_err(|error| Trouble::new(TroubleKind::Network, format!("the upload broke off: {error}")))?;
        bytes += piece.len();
        if bytes > records::BODY_BYTES && turn.is_none() {
            let permit = LARGE_AT_ONCE.acquire().await;
            turn = Some((permit, Instant::now() + LARGE_WITHIN));
        }
        found.extend(unpacker.feed(&piece).map_err(bad)?);
        if found.len() > records::BODY_RECORDS || bytes > records::BODY_BYTES + records::RECORD_BYTES {
            let limit = format!("{} records or {} MiB", records::BODY_RECORDS, records::BODY_BYTES >> 20);
            return Err(Refused::TooLarge { what: "the body", limit }.into());
        }
    }
    unpacker.finish().map_err(bad)?;
    if found.is_empty() {
        return Err(Refused::invalid("records", "there is none").into());
    }
    state.engine.put_records(writer.org(), found).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn too_slow() -> Problem {
    let within = format!("more than {} MiB must arrive within {} s", records::BODY_BYTES >> 20, LARGE_WITHIN.as_secs());
    Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "the body did not arrive in time").fix(within)
}
