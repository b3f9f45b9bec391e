//! Who asks: a token of one org with a scope. Handlers name the scope they need; nothing is served without one.

use crate::Shared;
use crate::problem::Problem;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
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

async fn token(parts: &Parts, house: &Shared, scope: Scope) -> Result<Token, Problem> {
    let text = bearer(parts)?;
    let token = house.engine.check_token(text).await?;
    token.must(scope, parts.method.as_str())?;
    if !house.embedded {
        house.limits.take(token.id)?;
    }
    Ok(token)
}

fn bearer(parts: &Parts) -> Result<&str, Problem> {
    let header = parts.headers.get(axum::http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let text = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
    text.ok_or_else(|| Refused::Unauthorized { why: "no bearer token was sent".into() }.into())
}

macro_rules! extractor {
    ($name:ident, $scope:expr) => {
        impl FromRequestParts<Shared> for $name {
            type Rejection = Problem;
            async fn from_request_parts(parts: &mut Parts, house: &Shared) -> Result<Self, Problem> {
                token(parts, house, $scope).await.map($name)
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
        let text = bearer(parts)?;
        let (name, token) =
            text.rsplit_once('.').ok_or_else(|| Refused::Unauthorized { why: "a runner sends name.token".into() })?;
        Ok(Machine(house.engine.recognise(name, token).await?))
    }
}
