//! Routes of tokens: made (shown once), listed, revoked.

use crate::Shared;
use crate::auth::{Admin, Reader};
use crate::problem::HandlerResult;
use crate::routes::{Asked, Paging, Path, Query, gather, id, page};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::{Scope, Token};
use model::{Refused, Timestamp, TokenId};
use wire::api::{NewToken, Page, TokenView};

pub(crate) async fn list(
    State(state): State<Shared>,
    admin: Admin,
    Query(paging): Query<Paging>,
) -> HandlerResult<Json<Page<TokenView>>> {
    let (limit, after, number) = (paging.limit()?, paging.after()?, |t: &Token| t.id.0);
    let read = |after| state.engine.tokens(admin.org(), TokenId(after), limit);
    let good = gather(after, limit, read, number, |t| t.revoked_at.is_none()).await?;
    Ok(page(good, limit, number, |t| view(t, None)))
}

/// Its text is never stored: what is asked again under the same key is refused, and makes no second token.
pub(crate) async fn create(
    State(state): State<Shared>,
    admin: Admin,
    asked: Asked<NewToken>,
) -> HandlerResult<(StatusCode, Json<TokenView>)> {
    let key = asked.key(admin.org());
    let NewToken { name, scopes, expires_at } = asked.value;
    if name.is_empty() || name.len() > 100 {
        return Err(Refused::invalid("name", "must have 1 to 100 characters").into());
    }
    let scope = scopes
        .iter()
        .map(|text| {
            Scope::parse(text)
                .ok_or_else(|| Refused::invalid("scopes", format!("`{text}` is none of read, approve, write, admin")))
        })
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .max()
        .ok_or_else(|| Refused::invalid("scopes", "at least one of read, approve, write, admin"))?;
    let (token, shown) = state.engine.create_token(admin.org(), name, scope, expires_at.map(Timestamp), key).await?;
    Ok((StatusCode::CREATED, Json(view(&token, Some(shown)))))
}

/// Who is asking: how a client checks a token before it keeps it, and knows which of the listed ones is its own.
pub(crate) async fn current(reader: Reader) -> Json<TokenView> {
    Json(view(&reader.0, None))
}

pub(crate) async fn revoke(
    State(state): State<Shared>,
    admin: Admin,
    Path(token): Path<String>,
) -> HandlerResult<StatusCode> {
    state.engine.revoke_token(admin.org(), id("token", &token)?).await?;
    state.tokens.forget(); // once this is answered, no cache of this process accepts it
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) fn view(token: &Token, shown: Option<String>) -> TokenView {
    TokenView {
        id: token.id.to_string(),
        name: token.name.clone(),
        scopes: vec![token.scope.as_str().to_owned()],
        created_at: token.created_at.ms(),
        expires_at: token.expires_at.map(|at| at.ms()),
        token: shown,
    }
}
