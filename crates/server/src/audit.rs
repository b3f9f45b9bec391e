//! The route of the audit. Needs an admin token.

use crate::Shared;
use crate::auth::Admin;
use crate::problem::HandlerResult;
use axum::Json;
use axum::extract::State;
use wire::api::{AuditReport, BrokenInvariant};

pub(crate) async fn audit(State(state): State<Shared>, _: Admin) -> HandlerResult<Json<AuditReport>> {
    let audit = state.engine.audit().await?;
    let broken = audit.broken.iter().map(|b| BrokenInvariant {
        invariant: b.invariant.to_owned(),
        subject: b.subject.clone(),
        detail: b.detail.clone(),
    });
    Ok(Json(AuditReport {
        clean: audit.broken.is_empty(),
        checked: audit.checked.iter().map(|(what, n)| ((*what).to_owned(), *n)).collect(),
        broken: broken.collect(),
    }))
}
