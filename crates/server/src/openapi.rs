//! The API's own description, made from the list of routes that are served and the types they speak.

mod bounds;

use crate::VERSION;
use crate::routes::{API, Paging};
use axum::Json;
use axum::http::header;
use axum::response::Html;
use serde_json::{Map, Value, json};
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::{IntoParams as _, OpenApi};
use wire::api::*;

/// One line of the list in `routes`.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) scope: &'static str,
    pub(crate) summary: &'static str,
    /// The query's parameters; a listing that names none has those of a page.
    pub(crate) query: Option<fn() -> Vec<Parameter>>,
    /// Name of the body's type, `Bytes`, or nothing.
    pub(crate) body: &'static str,
    pub(crate) status: u16,
    /// Name of the answer's type, `Bytes`, or nothing; `Page` and `Stream` of `item`.
    pub(crate) answer: &'static str,
    pub(crate) item: &'static str,
    /// Other statuses than the one of success and those that every such route has; with the type if it is no problem. 204 has no body.
    pub(crate) also: &'static [(u16, &'static str)],
}

/// The parameters of a query's type, for a line of the list.
macro_rules! query {
    () => {
        None
    };
    ($query:path) => {
        Some(|| <$query as utoipa::IntoParams>::into_params(|| Some(utoipa::openapi::path::ParameterIn::Query)))
    };
}
pub(crate) use query;

impl Route {
    pub(crate) fn query(&self) -> Vec<Parameter> {
        match self.query {
            Some(query) => query(),
            None if self.answer == "Page" => Paging::into_params(|| Some(ParameterIn::Query)),
            None => Vec::new(),
        }
    }

    fn has_json_body(&self) -> bool {
        self.method == "post" || !(self.body.is_empty() || self.body == "Bytes")
    }

    /// What it may answer beside success: of every route, of every route like it, of this one.
    pub(crate) fn refusals(&self) -> Vec<u16> {
        let names_something = self.path.contains("{id}") || self.path.contains('{') && self.method != "put";
        // A token of a job's steps may not read anything else.
        let mut all = vec![400, 401, 403, 429];
        all.extend(names_something.then_some(404));
        all.extend((!self.body.is_empty() || self.method == "post").then_some([408, 413]).into_iter().flatten());
        all.extend(self.has_json_body().then_some(415));
        all.extend((self.method == "post").then_some([409, 422]).into_iter().flatten());
        all.extend(
            self.also.iter().filter(|(status, other)| other.is_empty() && *status >= 400).map(|(status, _)| *status),
        );
        all.sort();
        all.dedup();
        all
    }
}

#[derive(OpenApi)]
#[openapi(components(schemas(
    Submit,
    FilesBody,
    StdinBody,
    DryRun,
    AgentsPlan,
    AgentsMachinePlan,
    Plan,
    PoolPlan,
    FilesPlan,
    ResourcesBody,
    RetryBody,
    ActionBody,
    TerminateBody,
    CancelBody,
    ExtendBody,
    StopBody,
    Stopped,
    RunView,
    ErrorView,
    Why,
    WhySpan,
    Waiting,
    Definition,
    Finding,
    Tree,
    AttemptView,
    AgentView,
    TaskView,
    StepView,
    StepDetailView,
    CountsView,
    QuestionView,
    QuestionDetailView,
    ResolveBody,
    ApproveBody,
    RejectBody,
    BeginStep,
    StepAnswer,
    CompleteStep,
    FailStep,
    PollSteps,
    PolledStep,
    BeatStep,
    StepBeat,
    FinishBody,
    SendMessage,
    MessageView,
    JobView,
    EventView,
    LogFrame,
    LogAttempt,
    LogEnd,
    ArtifactView,
    BlobList,
    InstanceView,
    AllocationView,
    WorkflowView,
    NodeView,
    OrphanRiskView,
    PatternView,
    ManifestView,
    ResourceView,
    BalanceView,
    AddCredits,
    LedgerRow,
    UsageView,
    UsageGroups,
    UsageGroup,
    UsageSums,
    RunUsageView,
    StepUsageView,
    SecretView,
    SecretBody,
    SecretStored,
    NewToken,
    TokenView,
    OrphanView,
    InferredView,
    TailscaleView,
    OrphanDetailView,
    OrphanMatchView,
    OfferView,
    OrphanTally,
    ImportBody,
    ImportReport,
    ImportedView,
    NotImportedView,
    UnlistedJobView,
    UnlistedView,
    ScanBody,
    ScanReport,
    ScanView,
    WhitelistBody,
    WhitelistView,
    EndOrphanBody,
    PoolView,
    NewProvider,
    OtherHostView,
    PassedOverView,
    PriceView,
    ProviderCase,
    ProviderReport,
    ProviderView,
    SnapshotView,
    CacheBody,
    CacheTermsBody,
    CachedFrom,
    AskCall,
    CallFailureView,
    CallResultView,
    CallView,
    RefView,
    SetRef,
    CommitView,
    ObjectView,
    IndexView,
    PinView,
    CacheWhy,
    CallDiff,
    Invalidate,
    Invalidated,
    CollectGarbage,
    GarbageCollected,
    PinsRebuilt,
    Backtrack,
    AuditReport,
    BrokenInvariant,
    Health
)))]
struct Schemas;

/// `GET /api/v1/openapi.json`: public, because it contains no data of an org.
pub(crate) async fn document() -> Json<Value> {
    Json(describe())
}

/// A page to read it by: no scripts from elsewhere, nothing to install.
pub(crate) async fn page() -> Html<String> {
    Html(include_str!("openapi.html").replace("ICON", &crate::pages::asset::icon().path))
}

/// Its style and its script are files: the policy of this origin allows none inside of a page.
pub(crate) async fn style() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], include_str!("openapi.css"))
}

pub(crate) async fn script() -> ([(header::HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("openapi.js"))
}

fn describe() -> Value {
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
        "components": serde_json::to_value(Schemas::openapi().components).unwrap_or_default(),
    });
    document["components"]["securitySchemes"] =
        json!({ "bearer": { "type": "http", "scheme": "bearer", "description": "rmd_…" } });
    let schemas = &mut document["components"]["schemas"];
    schemas["Problem"] = json!({
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": { "type": "string" }, "title": { "type": "string" }, "status": { "type": "integer" }, "code": { "type": "string" },
            "detail": { "type": "string" }, "fix": { "type": "string" }, "request_id": { "type": "string" },
            "allowed": { "type": "array", "items": { "type": "string" } },
        },
    });
    schemas["Nothing"] = json!({ "type": "object", "additionalProperties": false });
    bounds::refine(schemas);
    document
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "summary": route.summary,
        "operationId": name_of(route),
        "description": format!("Needs a token with the scope `{}`.", route.scope),
        "parameters": parameters(route),
        "responses": responses(route),
    });
    if route.body == "Bytes" {
        let content = json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    } else if route.has_json_body() {
        let body = if route.body.is_empty() { "Nothing" } else { route.body };
        operation["requestBody"] = json!({
            "required": bounds::is_needed(body),
            "content": { "application/json": { "schema": reference(body) } },
        });
    }
    operation
}

fn responses(route: &Route) -> Value {
    let mut all = Map::new();
    let mut success = json!({ "description": route.summary, "headers": headers(&["X-Request-Id"]) });
    if let Some(content) = content(route) {
        success["content"] = content;
    }
    let links = links(route);
    if !links.is_empty() {
        success["links"] = links.into();
    }
    all.insert(route.status.to_string(), success);
    if route.also.iter().any(|(status, _)| *status == 204) {
        let nothing = json!({ "description": "nothing", "headers": headers(&["X-Request-Id"]) });
        all.insert("204".to_owned(), nothing);
    }
    for (status, other) in route.also.iter().filter(|(_, other)| !other.is_empty()) {
        let content = json!({ "application/json": { "schema": reference(other) } });
        let answer = json!({ "description": *other, "headers": headers(&["X-Request-Id"]), "content": content });
        all.insert(status.to_string(), answer);
    }
    let problem = |about: &str, named: &[&str]| {
        let content = json!({ "application/problem+json": { "schema": reference("Problem") } });
        json!({ "description": about, "headers": headers(named), "content": content })
    };
    for status in route.refusals() {
        let (about, named): (&str, &[&str]) = match status {
            400 => ("something in it cannot be read or is not allowed", &["X-Request-Id"]),
            401 => ("no token, or one that is not good", &["X-Request-Id", "WWW-Authenticate"]),
            402 => ("not enough credits", &["X-Request-Id"]),
            403 => ("the token lacks the scope", &["X-Request-Id"]),
            404 => ("there is no such thing in this org", &["X-Request-Id"]),
            408 => ("the body did not arrive in time", &["X-Request-Id"]),
            409 => ("not possible as it is now", &["X-Request-Id"]),
            410 => ("it was there and is gone", &["X-Request-Id"]),
            413 => ("the body is too large", &["X-Request-Id"]),
            415 => ("the body is not JSON", &["X-Request-Id"]),
            422 => ("the idempotency key was used for another request, or nothing here can do this", &["X-Request-Id"]),
            429 => ("too many requests", &["X-Request-Id", "Retry-After"]),
            _ => ("a problem", &["X-Request-Id"]),
        };
        all.insert(status.to_string(), problem(about, named));
    }
    all.insert("5XX".into(), problem("the control plane is in trouble", &["X-Request-Id"]));
    all.into()
}

fn headers(names: &[&str]) -> Value {
    let one = |name: &&str| ((*name).to_owned(), json!({ "required": true, "schema": { "type": "string" } }));
    names.iter().map(one).collect::<Map<_, _>>().into()
}

fn content(route: &Route) -> Option<Value> {
    let events = json!({ "schema": {
        "type": "object",
        "description": "One server-sent event.",
        "required": ["data"],
        "properties": {
            "id": { "type": "string" },
            "event": { "type": "string" },
            "data": { "type": "string", "contentMediaType": "application/json", "contentSchema": reference_of(route.item) },
        },
    } });
    let json = |schema: Value| json!({ "application/json": { "schema": schema } });
    match (route.answer, route.item) {
        ("", _) => None,
        ("Bytes", _) => {
            Some(json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } }))
        }
        ("Stream", _) => Some(json!({ "text/event-stream": events })),
        ("Page", item) => {
            let mut content = json(json!({
                "type": "object",
                "required": ["data"],
                "properties": { "data": { "type": "array", "items": reference(item) }, "next_cursor": { "type": ["string", "null"] } },
            }));
            if item == "EventView" {
                content["text/event-stream"] = events;
            }
            Some(content)
        }
        (name, _) => Some(json(reference(name))),
    }
}

/// From an answer that has an id to whatever can be asked about that id.
fn links(route: &Route) -> Map<String, Value> {
    let noun = route.path.split('/').nth(1).unwrap_or_default();
    let (whole, one) = (format!("/{noun}"), format!("/{noun}/{{id}}"));
    let about =
        |next: &&Route| next.path.starts_with(&one) && next.path != route.path && !next.path.contains("{artifact}");
    let id = match (route.path, route.answer) {
        (path, "Page") if path == whole => "$response.body#/data/0/id",
        (path, "" | "Page" | "Stream" | "Bytes" | "Tree" | "Why" | "Definition") if path.starts_with(&whole) => {
            return Map::new();
        }
        (path, _) if path == whole || path.starts_with(&one) => "$response.body#/id",
        _ => return Map::new(),
    };
    let link = |next: &Route| (name_of(next), json!({ "operationId": name_of(next), "parameters": { "id": id } }));
    API.iter().filter(about).map(link).collect()
}

fn parameters(route: &Route) -> Vec<Value> {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = in_path
        .map(
            |name| json!({ "name": name, "in": "path", "required": true, "schema": bounds::of_path(route.path, name) }),
        )
        .collect();
    for parameter in route.query() {
        let mut value = serde_json::to_value(parameter).unwrap_or_default();
        bounds::refine_parameter(route.path, &mut value);
        all.push(value);
    }
    if route.method == "post" {
        let schema = json!({ "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$" });
        all.push(json!({ "name": "Idempotency-Key", "in": "header", "schema": schema }));
    }
    if route.answer == "Stream" || route.item == "EventView" {
        all.push(bounds::last_event_id(route.answer));
    }
    all
}

/// Of a stream; how a log ends is another type.
fn reference_of(item: &str) -> Value {
    match item {
        "LogFrame" => json!({ "anyOf": [reference("LogFrame"), reference("LogEnd")] }),
        item => reference(item),
    }
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
    use std::collections::BTreeSet;

    #[test]
    fn every_type_that_a_route_names_is_described() {
        let document = describe();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for route in API {
            let answer = if matches!(route.answer, "Page" | "Stream") { "" } else { route.answer };
            let others = route.also.iter().map(|(_, other)| *other);
            for name in [route.body, route.item, answer].into_iter().chain(others).filter(|name| *name != "Bytes") {
                assert!(name.is_empty() || schemas.contains_key(name), "{} {} names {name}", route.method, route.path);
            }
        }
        for name in referred(&document) {
            assert!(schemas.contains_key(&name), "{name} is referred to and not there");
        }
    }

    fn referred(value: &Value) -> BTreeSet<String> {
        let text = value.to_string();
        let after =
            |(at, it): (usize, &str)| text[at + it.len()..].chars().take_while(|c| c.is_alphanumeric()).collect();
        text.match_indices("#/components/schemas/").map(after).collect()
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let mut names: Vec<String> = API.iter().map(name_of).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), API.len());
    }

    /// What is sent is checked to the last field; answers may get new fields without breaking clients.
    #[test]
    fn bodies_refuse_unknown_fields_and_answers_do_not() {
        let document = describe();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut bodies: BTreeSet<String> =
            API.iter().filter(|route| route.has_json_body()).map(|route| route.body.to_owned()).collect();
        bodies.remove("");
        bodies.insert("Nothing".into());
        loop {
            let inner: BTreeSet<String> = bodies.iter().flat_map(|name| referred(&schemas[name])).collect();
            if inner.is_subset(&bodies) {
                break;
            }
            bodies.extend(inner);
        }
        for (name, schema) in schemas {
            if bodies.contains(name) && schema.get("oneOf").is_some() {
                continue; // a choice: each of its alternatives is a schema of its own
            }
            assert_eq!(schema["additionalProperties"] == json!(false), bodies.contains(name), "{name}");
        }
    }
}
