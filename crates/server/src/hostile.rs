//! Requests that should not work, against every route there is: no token, too little scope, another org's ids, nonsense.

use crate::hub::Hub;
use crate::listen::Peer;
use crate::openapi::Route;
use crate::routes::{API, dressed, with_pages};
use crate::token_cache::TokenCache;
use crate::{AppState, Shared};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use engine::adapters::FakeTool;
use engine::adapters::tool::fake::Fate;
use engine::adapters::tool::llm::{LlmSettings, Models};
use engine::store::token::Scope;
use engine::store::{Database, Installation, Options, Store, WorkClass};
use engine::{Engine, Presence};
use model::recovery::ErrorClass;
use model::step::ToolKind;
use model::{Effect, OrgId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use tower::ServiceExt as _;

pub(crate) struct World {
    app: Router,
    pub(crate) engine: Engine,
    pub(crate) org: OrgId,
    pub(crate) admin: String,
    pub(crate) state: Shared,
    peer: Peer,
}

pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Whether the description of the API has this status among the answers of the route. True of what is not of the API.
fn is_declared(method: &str, path: &str, status: StatusCode) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    let Some(path) = path.strip_prefix("/api/v1") else { return true };
    let fits = |route: &&Route| {
        let parts = (route.path.split('/'), path.split('/'));
        let alike = |(known, part): (&str, &str)| known == part || known.starts_with('{') && !part.is_empty();
        route.method.eq_ignore_ascii_case(method)
            && parts.0.clone().count() == parts.1.clone().count()
            && parts.0.zip(parts.1).all(alike)
    };
    // Of `/orphans/scans` and `/orphans/{id}` the router takes the one with fewer parameters.
    let route = API.iter().filter(fits).min_by_key(|route| route.path.matches('{').count());
    let declared = |route: &Route| {
        let also = route.also.iter().map(|(status, _)| *status);
        route.refusals().into_iter().chain(also).chain([route.status]).any(|known| known == status.as_u16())
    };
    status.is_server_error() || route.is_none_or(declared)
}

impl World {
    /// Asked over the unix socket, or from another machine.
    pub(crate) async fn new(is_local: bool) -> World {
        World::with(is_local, None).await
    }

    /// One that starts the programs of calls.
    pub(crate) async fn executing(executor: engine::execution::Executor) -> World {
        World::with(true, Some(executor)).await
    }

    /// One whose pages are set up so.
    pub(crate) async fn showing(pages: crate::pages::Pages, peer: Peer) -> World {
        World::built(pages, None).await.seen_from(peer)
    }

    async fn with(is_local: bool, executor: Option<engine::execution::Executor>) -> World {
        let peer = if is_local { Peer::Local } else { Peer::Remote([192, 0, 2, 7].into()) };
        let pages = crate::pages::Pages::new(Default::default(), None, false, Default::default());
        World::built(pages, executor).await.seen_from(peer)
    }

    async fn built(pages: crate::pages::Pages, executor: Option<engine::execution::Executor>) -> World {
        let store = Store::open(&Options::new(Database::Memory)).unwrap();
        // Nothing is ever started: the path leads nowhere, and no worker is alive to try.
        let host = engine::adapters::registry::Host {
            home: "/nonexistent".into(),
            exe: "/nonexistent".into(),
            can_sandbox: || Err("bubblewrap (bwrap) is not installed".to_owned()),
            hidden: Vec::new(),
        };
        let tables = serde_json::from_value(json!({ "local": { "max_instances": 1 } })).unwrap();
        let settings = engine::ProviderSettings { tables, prices: BTreeMap::new(), host };
        let mut config = engine::Config::default();
        config.calls.adapters = Some(vec!["dml-exec-*".to_owned()]);
        let state = engine::EngineContext {
            config,
            installation: Installation::new("testtest", [7; 32]),
            providers: engine::ProviderSet::new(settings).unwrap(),
            tools: BTreeMap::from([(ToolKind::Http, Arc::new(far_side()) as Arc<dyn engine::Tool>)]),
            models: models(),
            control_urls: engine::ControlUrls::only("unix:/nonexistent"),
            control_ca: None,
            presence: Presence::default(),
            blob_source: store.blobs().source(),
            timer: Arc::new(crate::worker::Clockwork),
        };
        let engine = Engine::new(state, store).unwrap().refusing(crate::problem::remembered);
        let engine = engine.reading(crate::call::document);
        let engine = match executor {
            Some(executor) => engine.executing(executor),
            None => engine,
        };
        let org = engine.ensure_org("default").await.unwrap();
        let (_, admin) = engine.create_token(org, "owner".into(), Scope::Admin, None, None).await.unwrap();
        let hub = Hub::start(&engine.store);
        let shared: Shared = Arc::new(AppState {
            tokens: TokenCache::start(&hub),
            hub,
            engine: engine.clone(),
            sources: Default::default(),
            limits: Default::default(),
            started_at: 1,
            url: None,
            closing: tokio::sync::watch::channel(false).0,
            asked_at: AtomicI64::new(0),
            requests: AtomicI64::new(1),
            failures: AtomicI64::new(0),
            pages,
            doctor: (|_| vec![found()], "/nonexistent".into()),
        });
        crate::pages::follow(&shared);
        World { app: with_pages(shared.clone()), state: shared, engine, org, admin, peer: Peer::Local }
    }

    /// The same with routes of the test's own.
    pub(crate) fn serving(mut self, routes: Router<Shared>) -> World {
        self.app = dressed(routes, self.state.clone());
        self
    }

    pub(crate) async fn token(&self, org: OrgId, scope: Scope) -> String {
        self.engine.create_token(org, "test".into(), scope, None, None).await.unwrap().1
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Got {
        let mut request = Request::builder().method(method.to_uppercase().as_str()).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        request.extensions_mut().insert(self.peer);
        let answer = self.app.clone().oneshot(request).await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        assert!(
            is_declared(method, path, status),
            "{method} {path} answers {status}, and its description does not say so"
        );
        let streams = headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let bytes =
            if streams { Default::default() } else { axum::body::to_bytes(answer.into_body(), 8 << 20).await.unwrap() };
        Got { status, headers, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
    }

    /// The answer as it is, for requests that are not of the API.
    pub(crate) async fn raw(&self, mut request: Request<Body>) -> axum::response::Response {
        request.extensions_mut().insert(self.peer);
        self.app.clone().oneshot(request).await.unwrap()
    }

    /// The same control plane, asked from this place.
    pub(crate) fn seen_from(mut self, peer: Peer) -> World {
        self.peer = peer;
        self
    }

    /// The same with the pages of `repl ui` alone.
    pub(crate) fn through_own_door(mut self) -> World {
        self.app = crate::pages::alone(self.state.clone());
        self
    }

    /// A file that a run has kept.
    pub(crate) async fn artifact(&self, path: &'static str, bytes: &str) -> (model::RunId, model::ArtifactId) {
        use engine::store::artifact::{Announced, EntryKind, announce};
        let body = self.submit(&self.admin, json!({ "commands": ["true"] })).await.body;
        let run = body["id"].as_str().unwrap().parse().unwrap();
        let (org, size, what) = (self.org, bytes.len() as i64, EntryKind::File { mode: 0o644 });
        let announced = move |tx: &mut engine::store::Tx| {
            announce(tx, &Announced { org, run, attempt: 1, path, size, what: &what })
        };
        let write = self.engine.store.write(engine::store::Lane::Normal, "test.announce", announced);
        let artifact = write.await.unwrap();
        let mut upload = self.engine.blobs.begin().unwrap();
        upload.write(bytes.as_bytes()).unwrap();
        self.engine.keep_artifact(&artifact, upload).await.unwrap();
        (run, artifact.id)
    }

    pub(crate) async fn submit(&self, token: &str, body: Value) -> Got {
        self.ask("post", "/api/v1/runs", Some(token), &[], &body.to_string()).await
    }
}

fn found() -> wire::api::Finding {
    let (check, state, detail) = ("data folder".to_owned(), "limited".to_owned(), "it is <small>".to_owned());
    wire::api::Finding { check, state, detail, fix: Some("make room".to_owned()) }
}

/// A model that no step ever asks: what is tested is what happens before.
fn models() -> Models {
    let model = serde_json::from_value(json!({ "context": 1000 })).unwrap();
    let at = LlmSettings::at("https://model.example/v1".to_owned(), BTreeMap::from([("m".to_owned(), model)]));
    Models(BTreeMap::from([("default".to_owned(), at)]))
}

/// The tool that steps call: a call of a path that ends with `perhaps` fails with an unknown effect.
fn far_side() -> FakeTool {
    FakeTool::new(Box::new(|call, _| match call.input["url"].as_str().is_some_and(|url| url.ends_with("perhaps")) {
        true => Fate::fail(ErrorClass::Transient, Effect::Perhaps),
        false => Fate::answer(json!({ "status": 200 })),
    }))
}

impl World {
    /// A run of agents with these steps, one after the other, as far as it goes by itself.
    pub(crate) async fn agents(&self, steps: Value) -> String {
        let plan = json!({ "type": "agents", "agents": [{ "name": "a", "tasks": [{ "name": "t", "steps": steps }] }] });
        let got = self.submit(&self.admin, json!({ "type": "agents", "plan": plan, "start": true })).await;
        assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
        self.work().await;
        got.body["id"].as_str().unwrap().to_owned()
    }

    /// Does all that is due.
    pub(crate) async fn work(&self) {
        let worker = self.engine.start_worker("test".into()).await.unwrap();
        self.engine.beat(&worker).await.unwrap();
        loop {
            let mut items = Vec::new();
            for class in WorkClass::ALL {
                items.extend(self.engine.claim(&worker, class, 32).await.unwrap());
            }
            if items.is_empty() {
                return;
            }
            for item in items {
                self.engine.work_on(item).await;
            }
        }
    }

    /// A ticket about a step whose outcome is unknown.
    pub(crate) async fn ticket(&self) -> String {
        self.agents(json!([{ "name": "pay", "http": { "method": "POST", "url": "https://pay.example/perhaps" } }]))
            .await;
        self.first("/api/v1/escalations").await
    }

    /// An approval of a call.
    pub(crate) async fn approval(&self) -> String {
        let send =
            json!({ "name": "send", "http": { "method": "POST", "url": "https://mail.example/" }, "policy": "ask" });
        self.agents(json!([send])).await;
        self.first("/api/v1/approvals").await
    }

    async fn first(&self, path: &str) -> String {
        let listed = self.ask("get", path, Some(&self.admin), &[], "").await.body;
        listed["data"][0]["id"].as_str().unwrap_or_else(|| panic!("{listed}")).to_owned()
    }
}

/// The route with ids in their places; `id` may be two, with a slash between them.
pub(crate) fn filled(path: &str, id: &str) -> String {
    let (id, step) = id.split_once('/').unwrap_or((id, "stp_1"));
    let place = |part: &str| match part {
        "{hash}" => "0".repeat(64),
        "{artifact}" => "art_1".to_owned(),
        "{step}" => step.to_owned(),
        "{id}" => id.to_owned(),
        "{name}" => "NAME".to_owned(),
        other => other.to_owned(),
    };
    format!("/api/v1{}", path.split('/').map(place).collect::<Vec<_>>().join("/"))
}

/// The shortest body that a route can read.
fn least(body: &str) -> &'static str {
    match body {
        "BeginStep" => r#"{"name":"s"}"#,
        "CompleteStep" | "BeatStep" => r#"{"fence":1}"#,
        "FailStep" => r#"{"fence":1,"message":"no"}"#,
        "PollSteps" => r#"{"tools":["t"],"wait_ms":0}"#,
        "ResolveBody" => r#"{"action":"skip"}"#,
        "SendMessage" => r#"{"text":"x"}"#,
        "NewProvider" => r#"{"name":"x","kind":"local"}"#,
        _ => "{}",
    }
}

pub(crate) fn is_problem(got: &Got) -> bool {
    let complete =
        ["type", "title", "status", "code", "detail", "request_id"].iter().all(|field| !got.body[*field].is_null());
    got.headers["content-type"] == "application/problem+json" && complete && got.headers.contains_key("x-request-id")
}

#[tokio::test]
async fn nobody_gets_anything_without_a_token() {
    let world = World::new(true).await;
    for route in API {
        for token in [None, Some("rmd_nonsense"), Some("")] {
            let got = world.ask(route.method, &filled(route.path, "run_1"), token, &[], "{}").await;
            assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{} {} with {token:?}", route.method, route.path);
            assert!(is_problem(&got), "{} {}: {}", route.method, route.path, got.body);
        }
    }
    // A machine has a token, and so has a command that does durable steps: neither puts objects, pins or refs.
    let run = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    let id = run.body["instance"].as_str().unwrap().to_owned();
    let machine = world.ask("get", &format!("/api/v1/instances/{id}"), Some(&world.admin), &[], "").await;
    let name = machine.body["name"].as_str().unwrap();
    let installation = &world.engine.context.installation;
    let of_machine = format!("{name}.{}", installation.runner_token(name));
    let known = world.ask("post", "/runner/v1/heartbeat", Some(&of_machine), &[], "{}").await;
    assert_ne!(known.status, StatusCode::UNAUTHORIZED, "or this shows nothing");
    let of_step = installation.step_token("1.1.1.1.1.1.1");
    for (method, path) in [("put", "/dag/records"), ("put", "/dag/refs"), ("post", "/calls"), ("post", "/runs")] {
        for (token, status) in [(&of_machine, StatusCode::UNAUTHORIZED), (&of_step, StatusCode::FORBIDDEN)] {
            let got = world.ask(method, &format!("/api/v1{path}"), Some(token), &[], "{}").await;
            assert_eq!(got.status, status, "{method} {path}: {}", got.body);
        }
    }
    for path in ["/runner/v1/heartbeat", "/runner/v1/report", "/runner/v1/register"] {
        for token in [None, Some("repl-testtest-1-1.0000"), Some("x")] {
            assert_eq!(world.ask("post", path, token, &[], "{}").await.status, StatusCode::UNAUTHORIZED, "{path}");
        }
    }
}

const OF_MACHINES: &[(&str, &str)] = &[
    ("post", "/register"),
    ("get", "/desired"),
    ("post", "/heartbeat"),
    ("post", "/report"),
    ("get", "/binary/{target}/{hash}"),
    ("post", "/snapshots"),
    ("post", "/features"),
    ("post", "/blobs"),
    ("get", "/blobs/{hash}"),
    ("put", "/blobs/{hash}"),
    ("put", "/trees/{hash}"),
    ("put", "/jobs/{job}/artifacts"),
];

#[tokio::test]
async fn a_forged_token_of_a_machine_opens_nothing() {
    let source = include_str!("routes.rs");
    let served = source.split("let machines").nth(1).unwrap().split(".fallback").next().unwrap();
    let served: BTreeSet<&str> = served.split(".route(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let tried: BTreeSet<&str> = OF_MACHINES.iter().map(|(_, route)| *route).collect();
    assert_eq!(served, tried, "each route is tried here");
    let world = World::new(true).await;
    let run = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    let id = run.body["instance"].as_str().unwrap().to_owned();
    let machine = world.ask("get", &format!("/api/v1/instances/{id}"), Some(&world.admin), &[], "").await;
    let name = machine.body["name"].as_str().unwrap();
    let tag = world.engine.context.installation.runner_token(name);
    let of_another = world.engine.context.installation.runner_token(&format!("{name}0"));
    let of_elsewhere = Installation::new("testtest", [8; 32]).runner_token(name);
    let longer = format!("{tag}0");
    let forged = [
        format!("{name}.{of_another}"),
        format!("{name}0.{tag}"),
        format!("{name}.{of_elsewhere}"),
        format!("{name}.{}", &tag[..tag.len() - 1]),
        format!("{name}.{}", &tag[..tag.len() - 2]),
        format!("{name}.{longer}"),
        format!("{name}.{longer}0"),
        format!("{name}."),
        format!(".{tag}"),
        name.to_owned(),
        tag.clone(),
        "x".to_owned(),
        ".".to_owned(),
        String::new(),
        world.admin.clone(),
        world.engine.context.installation.step_token("1.1.1.1.1.1.1"),
    ];
    for (method, route) in OF_MACHINES {
        let path = route.replace("{hash}", &"0".repeat(64)).replace("{job}", "job_1").replace("{target}", "x");
        let path = format!("/runner/v1{path}");
        let known = world.ask(method, &path, Some(&format!("{name}.{tag}")), &[], "{}").await;
        assert_ne!(known.status, StatusCode::UNAUTHORIZED, "{method} {path}: or the rest shows nothing");
        for token in forged.iter().map(|token| Some(token.as_str())).chain([None]) {
            let got = world.ask(method, &path, token, &[], "{}").await;
            assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{method} {path} with {token:?}: {}", got.body);
            assert!(is_problem(&got), "{method} {path}: {}", got.body);
        }
    }
}

#[tokio::test]
async fn a_token_does_what_its_scope_says_and_no_more() {
    let world = World::new(true).await;
    let (read, write) = (world.token(world.org, Scope::Read).await, world.token(world.org, Scope::Write).await);
    let approve = world.token(world.org, Scope::Approve).await;
    for route in API {
        let path = filled(route.path, "run_1");
        let forbidden = |got: &Got| got.status == StatusCode::FORBIDDEN;
        let with_read = world.ask(route.method, &path, Some(&read), &[], "{}").await;
        assert_eq!(
            forbidden(&with_read),
            route.scope != "read",
            "read: {} {} {}",
            route.method,
            route.path,
            with_read.status
        );
        let with_approve = world.ask(route.method, &path, Some(&approve), &[], "{}").await;
        let may = ["read", "approve"].contains(&route.scope);
        assert_eq!(forbidden(&with_approve), !may, "approve: {} {}", route.method, route.path);
        let with_write = world.ask(route.method, &path, Some(&write), &[], "{}").await;
        assert_eq!(
            forbidden(&with_write),
            route.scope == "admin",
            "write: {} {} {}",
            route.method,
            route.path,
            with_write.status
        );
    }
}

#[tokio::test]
async fn another_orgs_things_do_not_exist() {
    let world = World::new(true).await;
    let run = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    assert_eq!(run.status, StatusCode::CREATED, "{}", run.body);
    let theirs = world.engine.ensure_org("other").await.unwrap();
    let stranger = world.token(theirs, Scope::Admin).await;
    let allocation =
        world.ask("get", "/api/v1/allocations", Some(&world.admin), &[], "").await.body["data"][0]["id"].clone();
    let ids = [
        ("/escalations/", world.ticket().await),
        ("/approvals/", world.approval().await),
        ("/runs/", run.body["id"].as_str().unwrap().to_owned()),
        ("/instances/", run.body["instance"].as_str().unwrap().to_owned()),
        ("/allocations/", allocation.as_str().unwrap().to_owned()),
        ("/workflows/", "wfl_8".to_owned()),
        ("/manifests/", "mft_9".to_owned()),
    ];
    for route in API {
        let Some((_, id)) = ids.iter().find(|(prefix, _)| route.path.starts_with(&format!("{prefix}{{id}}"))) else {
            continue;
        };
        let got = world.ask(route.method, &filled(route.path, id), Some(&stranger), &[], least(route.body)).await;
        assert_eq!(got.status, StatusCode::NOT_FOUND, "{} {}: {}", route.method, route.path, got.body);
    }
    let list = world.ask("get", "/api/v1/runs?all=true", Some(&stranger), &[], "").await;
    assert_eq!(list.body["data"], json!([]));
}

#[tokio::test]
async fn nonsense_is_refused_by_name_and_never_breaks_anything() {
    let world = World::new(true).await;
    let admin = Some(world.admin.as_str());
    for route in API {
        for id in ["%00", "run_%F0%9F%92%A9", "run_zzzzzzzzzzzzzzzzzzzz", "-1", "..%2f..%2fetc"] {
            let got = world.ask(route.method, &filled(route.path, id), admin, &[], "{").await;
            assert!(
                got.status.as_u16() < 500,
                "{} {} with {id}: {} {}",
                route.method,
                route.path,
                got.status,
                got.body
            );
        }
    }
    let bad = |got: &Got, field: &str| {
        got.status == StatusCode::BAD_REQUEST && got.body["detail"].as_str().unwrap().starts_with(field)
    };
    let table = [
        (json!({ "commands": [] }), "commands"),
        (json!({ "commands": ["a"], "argv": ["b"] }), "argv"),
        (json!({ "commands": ["a"], "type": "service" }), "type"),
        (json!({ "commands": ["a"], "budget": "-1" }), "budget"),
        (json!({ "commands": ["a"], "priority": "urgent" }), "priority"),
        (json!({ "commands": ["a"], "provider": "aws" }), "provider"),
        (json!({ "commands": ["a"], "region": "mars" }), "region"),
        (json!({ "commands": ["a"], "env": { "1A": "x" } }), "env"),
        (json!({ "commands": ["a"], "env": { "REPL_X": "x" } }), "env"),
        (json!({ "commands": ["a"], "secrets": ["NOPE"] }), "secrets"),
        (json!({ "commands": ["a"], "max_duration_ms": 0 }), "max_duration"),
        (json!({ "commands": ["a"], "working_dir": "../x" }), "working_dir"),
        (json!({ "commands": ["a"], "artifacts": ["["] }), "artifacts"),
        (json!({ "commands": ["a"], "artifacts": ["out/*", "{a"] }), "artifacts"),
        (json!({ "commands": ["a"], "init": " " }), "init"),
        (json!({ "commands": ["a"], "init": "x".repeat(70_000) }), "init"),
        (json!({ "commands": ["a"], "name": "-x" }), "name"),
        (json!({ "commands": ["a"], "files": { "tree": "../x", "files": 1, "bytes": 1 } }), "files"),
        (json!({ "commands": ["a"], "files": { "tree": "0".repeat(64) } }), "files"),
    ];
    for (body, field) in table {
        let got = world.submit(&world.admin, body.clone()).await;
        assert!(bad(&got, field), "{body}: {} {}", got.status, got.body);
    }
    assert_eq!(world.ask("post", "/api/v1/runs", admin, &[], "not json").await.body["code"], "invalid_body");
    assert_eq!(
        world.ask("post", "/api/v1/runs", admin, &[], &" ".repeat(12 << 20)).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    assert_eq!(
        world.ask("put", "/api/v1/secrets/X", admin, &[], &" ".repeat(2 << 20)).await.status,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    assert_eq!(world.ask("get", "/api/v1/nothing", admin, &[], "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(world.ask("patch", "/api/v1/runs", admin, &[], "").await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(world.ask("get", "/api/v1/runs?limit=0", admin, &[], "").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(world.engine.open_runs().await.unwrap(), 0, "nothing of it was half-done");
}

#[tokio::test]
async fn a_repeated_request_has_one_effect_and_one_answer() {
    let world = World::new(true).await;
    let key = [("idempotency-key", "again")];
    let body = r#"{"commands":["true"],"start":true}"#;
    let spelled = r#"{ "start": true, "commands": ["true"] }"#;
    let admin = Some(world.admin.as_str());
    let first = world.ask("post", "/api/v1/runs", admin, &key, body).await;
    let again = world.ask("post", "/api/v1/runs", admin, &key, spelled).await;
    assert_eq!((first.status, &first.body), (again.status, &again.body), "the same request, however it is spelled");
    assert_eq!(again.headers["idempotent-replayed"], "true");
    assert!(!first.headers.contains_key("idempotent-replayed"));
    let other = world.ask("post", "/api/v1/runs", admin, &key, r#"{"commands":["false"]}"#).await;
    assert_eq!(
        (other.status, other.body["code"].as_str()),
        (StatusCode::UNPROCESSABLE_ENTITY, Some("idempotency_key_reused"))
    );
    assert_eq!(world.engine.open_runs().await.unwrap(), 1);
    let long = "k".repeat(256);
    let bad = world.ask("post", "/api/v1/runs", admin, &[("idempotency-key", &long)], body).await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn what_cannot_be_paid_is_not_begun() {
    let world = World::new(true).await;
    let poor = world
        .engine
        .store
        .write(engine::store::Lane::Normal, "test.org", |tx| engine::store::org::create(tx, "poor"))
        .await;
    let token = world.token(poor.unwrap(), Scope::Admin).await;
    let got = world.submit(&token, json!({ "commands": ["true"], "start": true })).await;
    assert_eq!((got.status, got.body["code"].as_str()), (StatusCode::PAYMENT_REQUIRED, Some("insufficient_credits")));
    assert!(got.body["fix"].as_str().is_some_and(|fix| fix.contains("credits")));
    let list = world.ask("get", "/api/v1/runs?all=true", Some(&token), &[], "").await;
    assert_eq!(list.body["data"], json!([]), "nothing was written");
}

/// What a plan may cost is reserved when its run starts, machines or none: who cannot pay the estimate is told before anything is written.
#[tokio::test]
async fn a_plan_whose_estimate_cannot_be_paid_is_not_begun() {
    let world = World::new(true).await;
    let org = world
        .engine
        .store
        .write(engine::store::Lane::Normal, "test.org", |tx| engine::store::org::create(tx, "thrifty"));
    let org = org.await.unwrap();
    let token = world.token(org, Scope::Admin).await;
    let topup = model::Credits(900_000);
    world.engine.add_credits(org, topup, String::new(), None, std::sync::Arc::new(|_| Vec::new())).await.unwrap();
    let plan = |agents: i64| {
        json!({ "type": "agents", "start": true, "plan": {
            "type": "agents", "goal": "g", "planner": { "exec": ["./plan"] }, "max_agents": agents, "max_tokens": 100_000,
        } })
    };
    // 100,000 tokens of each of ten agents, at the default price of a credit for a million.
    let got = world.submit(&token, plan(10)).await;
    assert_eq!(
        (got.status, got.body["code"].as_str()),
        (StatusCode::PAYMENT_REQUIRED, Some("insufficient_credits")),
        "{}",
        got.body
    );
    let detail = got.body["detail"].as_str().unwrap_or_default();
    assert!(detail.contains('1') && detail.contains("0.9"), "{detail}");
    let list = world.ask("get", "/api/v1/runs?all=true", Some(&token), &[], "").await;
    assert_eq!(list.body["data"], json!([]), "nothing was written");
    let got = world.submit(&token, plan(5)).await;
    assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
}

#[tokio::test]
async fn a_token_over_the_network_is_told_its_rate_and_over_the_unix_socket_has_none() {
    let world = World::new(false).await;
    let admin = Some(world.admin.as_str());
    let first = world.ask("get", "/api/v1/credits", admin, &[], "").await;
    assert_eq!(first.status, StatusCode::OK);
    assert!(first.headers.contains_key("ratelimit-remaining"));
    let mut limited = None;
    for _ in 0..2000 {
        let got = world.ask("get", "/api/v1/nothing", admin, &[], "").await;
        if got.status == StatusCode::TOO_MANY_REQUESTS {
            limited = Some(got);
            break;
        }
    }
    let limited = limited.expect("at some point it is too much");
    assert!(is_problem(&limited) && limited.headers.contains_key("retry-after"));
    let local = World::new(true).await;
    let free = local.ask("get", "/api/v1/credits", Some(&local.admin), &[], "").await;
    assert!(!free.headers.contains_key("ratelimit-limit"));
}

#[tokio::test]
async fn the_description_is_served_to_everybody() {
    let world = World::new(true).await;
    let got = world.ask(Method::GET.as_str(), "/api/v1/openapi.json", None, &[], "").await;
    assert_eq!((got.status, got.body["openapi"].as_str()), (StatusCode::OK, Some("3.1.0")));
    assert_eq!(world.ask("get", "/api/v1/docs", None, &[], "").await.status, StatusCode::OK);
    assert_eq!(world.ask("get", "/healthz", None, &[], "").await.status, StatusCode::OK);
    assert_eq!(world.ask("get", "/readyz", None, &[], "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn what_was_counted_is_for_admins() {
    let world = World::new(true).await;
    let read = world.token(world.org, Scope::Read).await;
    for (token, status) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some(read.as_str()), StatusCode::FORBIDDEN),
        (Some(world.admin.as_str()), StatusCode::OK),
    ] {
        assert_eq!(world.ask("get", "/metrics", token, &[], "").await.status, status, "{token:?}");
    }
}

#[tokio::test]
async fn a_revoked_token_is_refused_from_the_next_request_on() {
    let world = World::new(true).await;
    let reader = world.token(world.org, Scope::Read).await;
    let ask = async |token: &str| world.ask("get", "/api/v1/runs", Some(token), &[], "").await.status;
    for _ in 0..2 {
        assert_eq!(ask(&reader).await, StatusCode::OK); // the second time it is known
    }
    let list = world.ask("get", "/api/v1/tokens", Some(&world.admin), &[], "").await;
    let id = list.body["data"].as_array().unwrap().iter().find(|token| token["name"] == "test").unwrap()["id"].clone();
    let path = format!("/api/v1/tokens/{}", id.as_str().unwrap());
    assert_eq!(world.ask("delete", &path, Some(&world.admin), &[], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(ask(&reader).await, StatusCode::UNAUTHORIZED);
    assert_eq!(ask(&world.admin).await, StatusCode::OK);
}

#[tokio::test]
async fn the_owner_gets_a_token_by_what_only_the_owner_can_read() {
    let world = World::new(true).await;
    let proof = world.engine.context.installation.owner_proof();
    let ask = async |token: Option<&str>| world.ask("post", "/control/v1/token", token, &[], "").await;
    for wrong in [None, Some(world.admin.as_str()), Some("owner.00"), Some("repl-testtest-1-1.0000")] {
        let got = ask(wrong).await;
        assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{wrong:?}");
        assert!(is_problem(&got));
    }
    let got = ask(Some(&proof)).await;
    assert_eq!(got.status, StatusCode::CREATED, "{}", got.body);
    let fresh = got.body["token"].as_str().unwrap();
    let current = world.ask("get", "/api/v1/tokens/current", Some(fresh), &[], "").await;
    assert_eq!(
        (current.body["id"].as_str(), current.body["scopes"][0].as_str()),
        (got.body["id"].as_str(), Some("admin"))
    );
    assert!(current.body["token"].is_null(), "its text is shown once");
    assert_eq!(world.ask("get", "/api/v1/runs", Some(&proof), &[], "").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_secret_that_logs_cannot_hide_is_told_when_it_is_stored() {
    let world = World::new(true).await;
    let put = async |name: &str, value: &str| {
        let body = json!({ "value": value }).to_string();
        world.ask("put", &format!("/api/v1/secrets/{name}"), Some(&world.admin), &[], &body).await.body
    };
    let fine = put("DOOR", "open sesame").await;
    assert_eq!((fine["masked"].as_bool(), &fine["note"]), (Some(true), &Value::Null));
    let short = put("PIN", "1234").await;
    assert_eq!(short["masked"], false);
    assert!(short["note"].as_str().unwrap().contains("fewer than 6 bytes"), "{short}");
}
