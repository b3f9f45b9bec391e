//! Who asks: a token of one org with a scope. Handlers name the scope they need; nothing is served without one.

use crate::problem::Problem;
use crate::{Shared, limit};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::store::token::{Scope, Token};
use model::instance::Instance;
use model::{OrgId, Refused};

/// Any good token: reading.
pub(crate) struct Reader(pub(crate) Token);
/// A token that may change things.
pub(crate) struct Writer(pub(crate) Token);
/// A token that may do what concerns others: tokens, credits, audit, control.
pub(crate) struct Admin(pub(crate) Token);
/// A runner, recognised by its name and token.
pub(crate) struct Machine(pub(crate) Instance);
/// Who can read the installation's file: the user that the control plane runs as.
pub(crate) struct Owner;

impl Reader {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}
impl Writer {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}
impl Admin {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}

/// The token of a request to the API, checked once before it reaches its handler; what is left of its rate goes into the answer.
pub(crate) async fn recognised(State(house): State<Shared>, mut request: Request, next: Next) -> Response {
    let token = match bearer(request.headers()) {
        Ok(text) => house.tokens.check(&house.engine, text).await.map_err(Problem::from),
        Err(problem) => Err(problem),
    };
    let token = match token {
        Ok(token) => token,
        Err(problem) => return problem.into_response(),
    };
    if house.embedded {
        request.extensions_mut().insert(token);
        return next.run(request).await;
    }
    let left = house.limits.take(token.id);
    request.extensions_mut().insert(token);
    let mut response = match &left {
        Ok(_) => next.run(request).await,
        Err(_) => limit::too_many().into_response(),
    };
    limit::note(response.headers_mut(), left.unwrap_or(0));
    response
}

fn token(parts: &Parts, scope: Scope) -> Result<Token, Problem> {
    let token = parts.extensions.get::<Token>().cloned();
    let token = token.ok_or_else(|| Refused::Unauthorized { why: "no bearer token was sent".into() })?;
    token.must(scope, &format!("{} {}", parts.method, parts.uri.path()))?;
    Ok(token)
}

fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let header = headers.get(axum::http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let text = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    text.ok_or_else(|| Refused::Unauthorized { why: "no bearer token was sent".into() }.into())
}

macro_rules! extractor {
    ($name:ident, $scope:expr) => {
        impl FromRequestParts<Shared> for $name {
            type Rejection = Problem;
            async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
                token(parts, $scope).map($name)
            }
        }
    };
}
extractor!(Reader, Scope::Read);
extractor!(Writer, Scope::Write);
extractor!(Admin, Scope::Admin);

impl FromRequestParts<Shared> for Machine {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, house: &Shared) -> Result<Self, Problem> {
        let text = bearer(&parts.headers)?;
        let (name, token) =
            text.rsplit_once('.').ok_or_else(|| Refused::Unauthorized { why: "a runner sends name.token".into() })?;
        Ok(Machine(house.engine.recognise(name, token).await?))
    }
}

impl FromRequestParts<Shared> for Owner {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, house: &Shared) -> Result<Self, Problem> {
        if house.engine.house.installation.is_owner_proof(bearer(&parts.headers)?) {
            return Ok(Owner);
        }
        Err(Refused::Unauthorized { why: "this is not the owner's proof".into() }.into())
    }
}
