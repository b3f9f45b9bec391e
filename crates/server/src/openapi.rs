//! The API's own description, made from the list of routes that are served and the types they speak.

use crate::VERSION;
use crate::routes::API;
use axum::Json;
use axum::response::Html;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use wire::api::*;

/// One line of the list in `routes`.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) scope: &'static str,
    pub(crate) summary: &'static str,
    /// Name of the body's type, or nothing.
    pub(crate) body: &'static str,
    pub(crate) status: u16,
    /// Name of the answer's type, or nothing; `Page` of `item`.
    pub(crate) answer: &'static str,
    pub(crate) item: &'static str,
}

#[derive(OpenApi)]
#[openapi(components(schemas(
    Submit,
    FileEntry,
    ResourcesBody,
    RetryBody,
    ActionBody,
    TerminateBody,
    ExtendBody,
    RunView,
    ErrorView,
    Why,
    Tree,
    AttemptView,
    AgentView,
    TaskView,
    StepView,
    JobView,
    EventView,
    LogFrame,
    LogEnd,
    ArtifactView,
    BlobList,
    InstanceView,
    AllocationView,
    WorkflowView,
    NodeView,
    ManifestView,
    ResourceView,
    BalanceView,
    AddCredits,
    LedgerRow,
    UsageView,
    UsageRow,
    SecretView,
    SecretBody,
    SecretStored,
    NewToken,
    TokenView,
    PoolView,
    ProviderView,
    AuditReport,
    BrokenInvariant,
    Health
)))]
struct Schemas;

/// `GET /api/v1/openapi.json`: public, it says nothing about anybody.
pub(crate) async fn document() -> Json<Value> {
    Json(describe())
}

/// A page to read it by: no scripts from elsewhere, nothing to install.
pub(crate) async fn page() -> Html<&'static str> {
    Html(include_str!("openapi.html"))
}

fn describe() -> Value {
    let components = serde_json::to_value(Schemas::openapi().components).unwrap_or_default();
    let mut paths = Map::new();
    for route in API {
        let path = paths.entry(format!("/api/v1{}", route.path)).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Remuda", "version": VERSION, "description": "A run orchestrator: runs, machines, money. Errors are RFC 9457 problem documents." },
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": components,
    });
    document["components"]["securitySchemes"] =
        json!({ "bearer": { "type": "http", "scheme": "bearer", "description": "rmd_…" } });
    document["components"]["schemas"]["Problem"] = json!({
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": { "type": "string" }, "title": { "type": "string" }, "status": { "type": "integer" }, "code": { "type": "string" },
            "detail": { "type": "string" }, "fix": { "type": "string" }, "request_id": { "type": "string" },
            "allowed": { "type": "array", "items": { "type": "string" } },
        },
    });
    document
}

fn operation(route: &Route) -> Value {
    let mut answer = json!({ "description": route.summary });
    if let Some(schema) = answer_schema(route) {
        answer["content"] = json!({ "application/json": { "schema": schema } });
    }
    let mut operation = json!({
        "summary": route.summary,
        "operationId": name_of(route),
        "description": format!("Needs a token with the scope `{}`.", route.scope),
        "parameters": parameters(route),
        "responses": {
            route.status.to_string(): answer,
            "default": { "description": "a problem", "content": { "application/problem+json": { "schema": reference("Problem") } } },
        },
    });
    if !route.body.is_empty() {
        operation["requestBody"] = json!({ "content": { "application/json": { "schema": reference(route.body) } } });
    }
    operation
}

fn answer_schema(route: &Route) -> Option<Value> {
    match (route.answer, route.item) {
        ("", _) => None,
        ("Page", item) => Some(json!({
            "type": "object",
            "required": ["data"],
            "properties": { "data": { "type": "array", "items": reference(item) }, "next_cursor": { "type": ["string", "null"] } },
        })),
        (name, _) => Some(reference(name)),
    }
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let text = json!({ "type": "string" });
    let mut all: Vec<Value> =
        in_path.map(|name| json!({ "name": name, "in": "path", "required": true, "schema": text })).collect();
    if route.answer == "Page" {
        all.push(
            json!({ "name": "limit", "in": "query", "schema": { "type": "integer", "minimum": 1, "maximum": 1000 } }),
        );
        all.push(json!({ "name": "cursor", "in": "query", "schema": text }));
    }
    if route.method == "post" {
        all.push(json!({ "name": "Idempotency-Key", "in": "header", "schema": { "type": "string", "minLength": 1, "maxLength": 255 } }));
    }
    all
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn name_of(route: &Route) -> String {
    let parts: Vec<&str> =
        route.path.split('/').filter(|part| !part.is_empty()).map(|part| part.trim_matches(['{', '}'])).collect();
    format!("{}_{}", route.method, parts.join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_a_route_names_is_described() {
        let document = describe();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for route in API {
            for name in [route.body, route.item, if route.answer == "Page" { "" } else { route.answer }] {
                assert!(name.is_empty() || schemas.contains_key(name), "{} {} names {name}", route.method, route.path);
            }
        }
        let text = document.to_string();
        for (at, _) in text.match_indices("#/components/schemas/") {
            let name: String = text[at + 21..].chars().take_while(|c| c.is_alphanumeric()).collect();
            assert!(schemas.contains_key(&name), "{name} is referred to and not there");
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let mut names: Vec<String> = API.iter().map(name_of).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), API.len());
    }
}
