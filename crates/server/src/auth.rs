//! Authentication: a token of one org with a scope, or a runner's name and token. Each handler names the scope that it needs.

use crate::Shared;
use crate::limit::Who;
use crate::listen::Peer;
use crate::problem::Problem;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use engine::durable::{Asker, StepClaim};
use engine::{Scope, Token};
use model::instance::Instance;
use model::{Failure, OrgId, Refused};

/// Any good token: reading.
pub(crate) struct Reader(pub(crate) Token);
/// A token that may answer what people are asked.
pub(crate) struct Approver(pub(crate) Token);
/// A token that may change things.
pub(crate) struct Writer(pub(crate) Token);
/// A token that may do what concerns others: tokens, credits, audit, control.
pub(crate) struct Admin(pub(crate) Token);
/// A program that does durable steps: a process of a job, by its step token, or any that may change things.
#[derive(Clone, Copy)]
pub(crate) struct Stepper(Asker);
/// A runner, recognised by its name and token.
pub(crate) struct Machine(pub(crate) Instance);
/// The name of a runner with a good token, whether or not a row knows it.
pub(crate) struct Named(pub(crate) String);
/// Whether the request comes over the unix socket or with a good token. Other clients get as little information as possible.
pub(crate) struct Trusted(pub(crate) bool);
/// Who can read the installation's file: the user that the control plane runs as.
pub(crate) struct Owner;

impl Reader {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}
impl Approver {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}
impl Writer {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}
impl Stepper {
    pub(crate) fn asker(self) -> Asker {
        self.0
    }
}
impl Admin {
    pub(crate) fn org(&self) -> OrgId {
        self.0.org
    }
}

/// The token of a request to the API, checked once before it reaches its handler; what is left of its rate goes into the answer.
pub(crate) async fn recognised(State(state): State<Shared>, mut request: Request, next: Next) -> Response {
    let peer = Peer::of(request.extensions());
    let who = match step_claim(&state, request.headers()) {
        Some(claim) => {
            request.extensions_mut().insert(claim);
            Who::Job(claim.job)
        }
        None => match identify(&state, peer, request.headers()).await {
            Ok(token) => {
                let who = Who::Token(token.id);
                request.extensions_mut().insert(token);
                who
            }
            Err(problem) => return problem.into_response(),
        },
    };
    if peer == Peer::Local {
        return next.run(request).await;
    }
    limited(&state, who, request, next).await
}

/// Routes that need no token: their requests are counted per client address.
pub(crate) async fn unrecognised(State(state): State<Shared>, request: Request, next: Next) -> Response {
    match Peer::of(request.extensions()) {
        Peer::Local => next.run(request).await,
        Peer::Remote(address) => limited(&state, Who::stranger(address), request, next).await,
    }
}

async fn limited(state: &Shared, who: Who, request: Request, next: Next) -> Response {
    let (mut response, left) = match state.limits.take(who) {
        Ok(left) => (next.run(request).await, left),
        Err(problem) => (problem.into_response(), 0),
    };
    who.note(response.headers_mut(), left);
    response
}

/// The claim of a good step token. Anything else is looked up as a token, and refused there.
fn step_claim(state: &Shared, headers: &HeaderMap) -> Option<StepClaim> {
    StepClaim::read(&state.engine.context.installation, bearer(headers).ok()?)
}

/// Whose token was sent. An address that sends too many bad ones is not looked up for a while; a token that was good a moment ago
/// still is.
async fn identify(state: &Shared, peer: Peer, headers: &HeaderMap) -> Result<Token, Problem> {
    let text = bearer(headers).map_err(|problem| state.limits.blame(peer, problem))?;
    if let Some(token) = state.tokens.remembered(text) {
        return Ok(token);
    }
    state.limits.admit(peer)?;
    state.tokens.check(&state.engine, text).await.map_err(|failure| blamed(state, peer, failure))
}

fn blamed(state: &Shared, peer: Peer, failure: Failure) -> Problem {
    let theirs = matches!(failure, Failure::Refused(Refused::Unauthorized { .. }));
    let problem = Problem::from(failure);
    if theirs { state.limits.blame(peer, problem) } else { problem }
}

fn token(parts: &Parts, scope: Scope) -> Result<Token, Problem> {
    if parts.extensions.get::<StepClaim>().is_some() {
        let what =
            format!("{} {}: a step token begins, ends and reads steps of its own run", parts.method, parts.uri.path());
        return Err(Refused::Forbidden { what, scope: scope.as_str() }.into());
    }
    let token = parts.extensions.get::<Token>().cloned();
    let token = token.ok_or_else(|| Refused::Unauthorized { why: "no bearer token was sent".into() })?;
    token.must(scope, &format!("{} {}", parts.method, parts.uri.path()))?;
    Ok(token)
}

/// `Bearer TOKEN`; the scheme's name is read in any case (RFC 9110, 11.1).
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let header = headers.get(axum::http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let text = header.and_then(|value| {
        let (scheme, text) = value.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| text.trim())
    });
    text.filter(|text| !text.is_empty())
        .ok_or_else(|| Refused::Unauthorized { why: "no bearer token was sent".into() }.into())
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
extractor!(Approver, Scope::Approve);
extractor!(Writer, Scope::Write);
extractor!(Admin, Scope::Admin);

impl FromRequestParts<Shared> for Stepper {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Shared) -> Result<Self, Problem> {
        match parts.extensions.get::<StepClaim>() {
            Some(claim) => Ok(Stepper(Asker::Job(*claim))),
            None => token(parts, Scope::Write).map(|token| Stepper(Asker::Org(token.org))),
        }
    }
}

/// What a runner sends: `name.token`.
fn name_and_token<'p>(parts: &'p Parts, state: &Shared, peer: Peer) -> Result<(&'p str, &'p str), Problem> {
    let text = bearer(&parts.headers).map_err(|problem| state.limits.blame(peer, problem))?;
    let wrong = || Failure::from(Refused::Unauthorized { why: "a runner sends name.token".into() });
    text.rsplit_once('.').ok_or_else(|| blamed(state, peer, wrong()))
}

impl FromRequestParts<Shared> for Named {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        let peer = Peer::of(&parts.extensions);
        let (name, token) = name_and_token(parts, state, peer)?;
        state.engine.check_runner(name, token).map_err(|refused| blamed(state, peer, refused.into()))?;
        let parsed = model::names::parse(name);
        if let (Some(name), true) = (parsed, peer != Peer::Local) {
            state.limits.take(Who::Runner(model::InstanceId(name.resource)))?;
        }
        Ok(Named(name.to_owned()))
    }
}

impl FromRequestParts<Shared> for Machine {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        let peer = Peer::of(&parts.extensions);
        let (name, token) = name_and_token(parts, state, peer)?;
        let instance = state.engine.recognise(name, token).await.map_err(|failure| blamed(state, peer, failure))?;
        if peer != Peer::Local {
            state.limits.take(Who::Runner(instance.id))?;
        }
        Ok(Machine(instance))
    }
}

impl FromRequestParts<Shared> for Trusted {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Self::Rejection> {
        let peer = Peer::of(&parts.extensions);
        Ok(Trusted(peer == Peer::Local || identify(state, peer, &parts.headers).await.is_ok()))
    }
}

impl FromRequestParts<Shared> for Owner {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &Shared) -> Result<Self, Problem> {
        if state.engine.context.installation.is_owner_proof(bearer(&parts.headers)?) {
            return Ok(Owner);
        }
        Err(Refused::Unauthorized { why: "this is not the owner's proof".into() }.into())
    }
}
