//! Tests that a request with any part that is not understood is refused, and that every refusal is a problem document.

use crate::hostile::{Got, World, filled, is_problem};
use crate::routes::API;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use engine::store::Lane;
use model::run::RunStatus;
use serde_json::{Value, json};

async fn ask(world: &World, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
    world.ask(method, path, Some(&world.admin), headers, body).await
}

#[tokio::test]
async fn a_nul_is_refused_wherever_it_stands() {
    let world = World::new(true).await;
    let run = world.submit(&world.admin, json!({ "commands": ["true"] })).await.body["id"].clone();
    let run = run.as_str().unwrap();
    for route in API {
        let path = filled(route.path, run);
        for path in [format!("{path}?limit=%00"), format!("{path}?%00=1"), filled(route.path, "run_%001")] {
            let got = ask(&world, route.method, &path, &[], "").await;
            let wanted = path.contains("%00");
            assert!(!wanted || (got.status == 400 && is_problem(&got)), "{} {path}: {}", route.method, got.body);
        }
        for body in [r#"{"a":"\u0000"}"#, r#"{"a\u0000":1}"#, r#"{"a":[{"b":"x\u0000"}]}"#] {
            if matches!(route.method, "post" | "put") && route.body != "Bytes" {
                let got = ask(&world, route.method, &path, &[], body).await;
                assert_eq!(got.status, StatusCode::BAD_REQUEST, "{} {path} {body}: {}", route.method, got.body);
                assert!(got.body["detail"].as_str().unwrap().contains("NUL"), "{}", got.body);
            }
        }
    }
    let got = ask(&world, "get", "/api/v1/runs?name=%00", &[], "").await;
    assert_eq!((got.status, got.body["code"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid")));
}

#[tokio::test]
async fn every_refusal_is_a_problem_document() {
    let world = World::new(true).await;
    let long = format!("/api/v1/runs/{}", "x".repeat(5000));
    let hash = "0".repeat(64);
    let (blob, tree) = (format!("/api/v1/blobs/{hash}"), format!("/api/v1/trees/{hash}"));
    type Question<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, u16);
    let table: &[Question<'_>] = &[
        ("get", "/api/v1/runs?limit=x", &[], "", 400),
        ("get", "/api/v1/runs?limit=1&limit=2", &[], "", 400),
        ("get", "/api/v1/runs?all=maybe", &[], "", 400),
        ("get", "/api/v1/runs?cursor=%20", &[], "", 400),
        ("get", "/api/v1/runs?status=bogus", &[], "", 400),
        ("get", "/api/v1/runs/%FF", &[], "", 400),
        ("get", "/api/v1/runs?name=%FF", &[], "", 400),
        ("get", &long, &[], "", 404),
        ("get", "/api/v1/nothing", &[], "", 404),
        ("get", "/nothing", &[], "", 404),
        ("get", "/runner/v1/nothing", &[], "", 404),
        ("patch", "/api/v1/runs", &[], "", 405),
        ("post", "/healthz", &[], "", 405),
        ("delete", "/runner/v1/report", &[], "", 405),
        ("post", "/api/v1/runs", &[("content-type", "text/plain")], "{}", 415),
        ("post", "/api/v1/runs", &[("content-type", "application/x-www-form-urlencoded")], "a=b", 415),
        ("post", "/api/v1/runs", &[("content-type", "application/json")], "{", 400),
        ("post", "/api/v1/runs", &[], "[]", 400),
        ("post", "/api/v1/runs", &[], "\"x\"", 400),
        ("post", "/api/v1/runs", &[], "{\"commands\":\"true\"}", 400),
        ("post", "/api/v1/runs", &[], "{\"commands\":[\"true\"],\"resources\":[1000,null]}", 400),
        ("put", "/api/v1/blobs/xyz", &[], "x", 400),
        // Longer by one byte than what is stored, by its announcement: refused before any of it is read.
        ("put", &blob, &[("content-length", "68719476737")], "x", 413),
        ("put", &tree, &[("content-length", "268435457")], "x", 413),
    ];
    for (method, path, headers, body, status) in table {
        let got = ask(&world, method, path, headers, body).await;
        assert_eq!(got.status.as_u16(), *status, "{method} {path} {body}: {}", got.body);
        assert!(is_problem(&got), "{method} {path}: {:?} {}", got.headers, got.body);
        if *status == 405 {
            assert!(got.headers.contains_key("allow"), "{method} {path}: {:?}", got.headers);
        }
    }
    let wrong = ask(&world, "post", "/api/v1/runs", &[], r#"{"commands":["a"],"max_duration_ms":"1h"}"#).await;
    assert!(wrong.body["detail"].as_str().unwrap().starts_with("max_duration_ms: "), "{}", wrong.body);
}

#[tokio::test]
async fn an_unknown_field_finds_its_neighbour() {
    let world = World::new(true).await;
    let table = [
        (json!({ "commands": ["a"], "max_duratin_ms": 1 }), "max_duratin_ms", "`max_duration_ms`"),
        (json!({ "commands": ["a"], "resources": { "memory": 1 } }), "resources.memory", "`memory_bytes`"),
        (
            json!({ "commands": ["a"], "retry": { "max_attempt": 1, "on_events": [] } }),
            "retry.max_attempt",
            "`max_attempts`",
        ),
        (json!({ "commands": ["a"], "zzz": 1 }), "zzz", "known: "),
        // Words that share letters with a field and mean something else.
        (json!({ "commands": ["a"], "memory": 1 }), "memory", "known: "),
        (json!({ "commands": ["a"], "image": "x" }), "image", "known: "),
        (json!({ "commands": ["a"], "script": "x" }), "script", "known: "),
        (json!({ "commands": ["a"], "ports": [1] }), "ports", "known: "),
        (json!({ "commands": ["a"], "user": "x" }), "user", "known: "),
        (json!({ "commands": ["a"], "top": 1 }), "top", "known: "),
    ];
    for (body, field, fix) in table {
        let got = world.submit(&world.admin, body.clone()).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{body}: {}", got.body);
        assert!(got.body["detail"].as_str().unwrap().starts_with(&format!("{field}: ")), "{}", got.body);
        assert!(got.body["fix"].as_str().unwrap().contains(fix), "{}", got.body);
    }
    // Every route that takes a body, and every route at all for its query.
    for route in API {
        let path = filled(route.path, "run_1");
        if matches!(route.method, "post" | "put") && route.body != "Bytes" {
            let got = ask(&world, route.method, &path, &[], r#"{"no_such_field":1}"#).await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{} {path}: {}", route.method, got.body);
        }
        let got = ask(&world, route.method, &format!("{path}?no_such_parameter=1"), &[], "").await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{} {path}: {}", route.method, got.body);
        assert!(got.body["detail"].as_str().unwrap().starts_with("no_such_parameter: "), "{path}: {}", got.body);
    }
    let got = ask(&world, "get", "/api/v1/runs?statsu=failed", &[], "").await;
    assert_eq!(got.body["fix"], "did you mean `status`?");
    assert_eq!(world.engine.open_runs().await.unwrap(), 0, "nothing of it was begun");
}

#[tokio::test]
async fn a_key_that_is_there_twice_is_refused_by_name() {
    let world = World::new(true).await;
    for (body, key) in [
        (r#"{"commands":["true"],"max_duration_ms":1000,"max_duration_ms":9000}"#, "max_duration_ms"),
        (r#"{"commands":["true"],"env":{"A":"x","A":"y"}}"#, "env.A"),
    ] {
        let got = ask(&world, "post", "/api/v1/runs", &[], body).await;
        assert_eq!((got.status, got.body["code"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid")), "{}", got.body);
        assert!(is_problem(&got) && got.body["fix"].is_string(), "{}", got.body);
        assert_eq!(got.body["detail"], format!("{key}: this key is there twice"));
    }
    for route in API.iter().filter(|route| matches!(route.method, "post" | "put") && route.body != "Bytes") {
        let got = ask(&world, route.method, &filled(route.path, "run_1"), &[], r#"{"a":1,"a":1}"#).await;
        assert_eq!(got.body["detail"], "a: this key is there twice", "{} {}", route.method, route.path);
    }
}

#[tokio::test]
async fn a_secret_cannot_take_the_name_of_a_variable_of_jobs() {
    let world = World::new(true).await;
    for (name, status) in [("REPL_X", 400), ("REPL_JOB_KEY", 400), ("REPLICA", 200), ("MY_REPL_X", 200)] {
        let got = ask(&world, "put", &format!("/api/v1/secrets/{name}"), &[], r#"{"value":"open sesame"}"#).await;
        assert_eq!(got.status.as_u16(), status, "{name}: {}", got.body);
        if status == 400 {
            let detail = got.body["detail"].as_str().unwrap();
            assert!(is_problem(&got) && detail.starts_with(&format!("name: `{name}`: ")), "{}", got.body);
            assert!(detail.contains("reserved for the environment of a job; use another name"), "{detail}");
        }
    }
}

#[tokio::test]
async fn a_runner_of_a_later_version_may_say_more() {
    let world = World::new(true).await;
    world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    let found = world.engine.list_instances(world.org, i64::MAX, 1).await.unwrap().remove(0).instance;
    let token = format!("{}.{}", found.name, world.engine.context.installation.runner_token(&found.name));
    let body = json!({
        "session": 0, "observed_version": 0, "nonce": found.nonce, "jobs": [], "of_a_later_version": "a\0b",
        "usage": { "cpu_milli": 0, "memory_bytes": 0, "disk_free_bytes": 0, "heat": 3 },
    });
    let got = world.ask("post", "/runner/v1/heartbeat", Some(&token), &[], &body.to_string()).await;
    assert_eq!(got.status, StatusCode::OK, "{}", got.body);
}

#[tokio::test]
async fn a_status_that_is_none_is_answered_with_those_that_are() {
    let world = World::new(true).await;
    let got = ask(&world, "get", "/api/v1/runs?status=bogus", &[], "").await;
    assert_eq!(got.status, StatusCode::BAD_REQUEST);
    for word in RunStatus::ALL {
        assert!(got.body["detail"].as_str().unwrap().contains(word.as_str()), "{}", got.body);
        let got = ask(&world, "get", &format!("/api/v1/runs?status={word}"), &[], "").await;
        assert_eq!((got.status, &got.body["data"]), (StatusCode::OK, &json!([])));
    }
}

/// All pages of a listing; each but the last must be full.
async fn pages(world: &World, path: &str, limit: usize) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let got = ask(world, "get", &format!("/api/v1{path}limit={limit}{cursor}"), &[], "").await;
        assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.body);
        let page = got.body["data"].as_array().unwrap();
        all.extend(page.iter().cloned());
        match got.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
        assert_eq!(page.len(), limit, "{path}: a page that is not the last is full");
    }
}

#[tokio::test]
async fn a_filtered_page_is_full_or_the_last() {
    let world = World::new(true).await;
    for n in 0..12 {
        let run = world.submit(&world.admin, json!({ "commands": ["true"], "name": format!("n{n}") })).await;
        if n % 3 == 0 {
            let path = format!("/api/v1/runs/{}/cancel", run.body["id"].as_str().unwrap());
            assert_eq!(ask(&world, "post", &path, &[], "").await.body["status"], "cancelled");
        }
        let body = json!({ "name": format!("t{n}"), "scopes": ["read"] }).to_string();
        let token = ask(&world, "post", "/api/v1/tokens", &[], &body).await.body["id"].clone();
        if n % 2 == 0 {
            let path = format!("/api/v1/tokens/{}", token.as_str().unwrap());
            ask(&world, "delete", &path, &[], "").await;
        }
        ask(&world, "put", &format!("/api/v1/secrets/S{n}"), &[], r#"{"value":"v"}"#).await;
    }
    let table = [
        ("/runs?status=cancelled&", 4),
        ("/runs?status=created&", 8),
        ("/runs?", 8),
        ("/runs?all=true&", 12),
        ("/runs?name=n3&", 1),
        ("/runs?name=n3&status=created&", 0),
        ("/tokens?", 7),
        ("/secrets?", 12),
    ];
    for (path, count) in table {
        for limit in [1, 2, 3, 5, 50] {
            let mut found = pages(&world, path, limit).await;
            assert_eq!(found.len(), count, "{path} by {limit}");
            let key = |value: &Value| value.to_string();
            found.sort_by_key(key);
            found.dedup();
            assert_eq!(found.len(), count, "{path} by {limit}: each once");
        }
    }
    let run = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await.body["id"].clone();
    for what in ["jobs", "agents", "attempts"] {
        let path = format!("/runs/{}/{what}?", run.as_str().unwrap());
        assert_eq!(pages(&world, &path, 1).await.len(), pages(&world, &path, 50).await.len(), "{what}");
    }
    // Instances that are terminated are passed over, not counted.
    world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await;
    let all = pages(&world, "/instances?all=true&", 1).await.len();
    assert!(all > 0 && pages(&world, "/instances?state=terminate:lost&", 1).await.is_empty());
}

#[tokio::test]
async fn a_bad_last_event_id_is_refused_alike_everywhere() {
    let world = World::new(true).await;
    let run = world.submit(&world.admin, json!({ "commands": ["true"] })).await.body["id"].clone();
    let run = run.as_str().unwrap();
    let stream = ("accept", "text/event-stream");
    for id in ["nonsense", "-1", "1:2:3", "job_1:-5", "job_1:x", "\u{1f4a9}"] {
        for (path, headers) in [
            (format!("/api/v1/runs/{run}/events"), vec![stream, ("last-event-id", id)]),
            (format!("/api/v1/runs/{run}/events"), vec![("last-event-id", id)]),
            (format!("/api/v1/runs/{run}/logs"), vec![stream, ("last-event-id", id)]),
        ] {
            let got = ask(&world, "get", &path, &headers, "").await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path} {id}: {}", got.body);
            assert!(got.body["detail"].as_str().unwrap().starts_with("Last-Event-ID: "), "{}", got.body);
        }
    }
    for (path, id) in [("events", "3"), ("events", ""), ("logs", "job_1:0,job_2:17"), ("logs", "")] {
        let got = ask(&world, "get", &format!("/api/v1/runs/{run}/{path}"), &[stream, ("last-event-id", id)], "").await;
        assert_eq!(got.status, StatusCode::OK, "{path} {id}: {}", got.body);
    }
    // The same header of logs that name their places otherwise.
    let wait = json!({ "name": "s", "wait": "1h" });
    let plan = json!({ "type": "agents", "agents": [{ "tasks": [{ "steps": [wait] }] }] });
    let of_agents = json!({ "type": "agents", "plan": plan, "start": true });
    let cached = json!({ "commands": ["true"], "cache": true, "start": true });
    for (body, good, bad) in
        [(of_agents, &["17", ""][..], "job_1:0"), (cached, &["17", "job_1:0,job_2:17", ""], "17:0")]
    {
        let run = world.submit(&world.admin, body).await.body["id"].clone();
        let path = format!("/api/v1/runs/{}/logs", run.as_str().unwrap());
        for id in ["nonsense", "-1", "1:2:3", "job_1:-5", "job_1:x", bad] {
            let got = ask(&world, "get", &path, &[stream, ("last-event-id", id)], "").await;
            assert_eq!(got.status, StatusCode::BAD_REQUEST, "{path} {id}: {}", got.body);
            assert!(got.body["detail"].as_str().unwrap().starts_with("Last-Event-ID: "), "{}", got.body);
        }
        for id in good {
            let got = ask(&world, "get", &path, &[stream, ("last-event-id", id)], "").await;
            assert_eq!(got.status, StatusCode::OK, "{path} {id}: {}", got.body);
        }
    }
}

#[tokio::test]
async fn filters_that_can_match_nothing_are_refused() {
    let world = World::new(true).await;
    for (query, field) in [
        ("runs?status=bogus", "status"),
        ("runs?name=a&q=b", "q"),
        ("instances?state=no-such", "state"),
        ("approvals?order=x", "order"),
    ] {
        let got = ask(&world, "get", &format!("/api/v1/{query}"), &[], "").await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{query}: {}", got.body);
        assert!(got.body["detail"].as_str().unwrap().starts_with(&format!("{field}: ")), "{}", got.body);
    }
    for state in ["", "launch", "launch-run:", "launch-run:running", "terminate:lost"] {
        let got = ask(&world, "get", &format!("/api/v1/instances?state={state}"), &[], "").await;
        assert_eq!(got.status, StatusCode::OK, "{state}: {}", got.body);
    }
}

#[tokio::test]
async fn numbers_beyond_all_measure_break_nothing() {
    let world = World::new(true).await;
    let add = async |amount: &str| {
        ask(&world, "post", "/api/v1/credits", &[], &json!({ "amount": amount }).to_string()).await
    };
    for amount in ["9223372036854", "9223372036854.775807", "1000000000000"] {
        let got = add(amount).await;
        assert_eq!(got.status, StatusCode::BAD_REQUEST, "{amount}: {}", got.body);
        assert!(got.body["detail"].as_str().unwrap().starts_with("amount: "), "{}", got.body);
    }
    assert_eq!(add("5").await.status, StatusCode::OK);
    let (most, least) = (i64::MAX, i64::MIN);
    for body in [
        json!({ "commands": ["a"], "start": true, "max_duration_ms": most, "stop_duration_ms": most }),
        json!({ "commands": ["a"], "start": true, "budget": "9223372036854", "hold_ms": 86_400_000 }),
        json!({ "commands": ["a"], "start": true, "retry": { "max_attempts": 100, "on_events": [], "duration_ms": most } }),
        json!({ "commands": ["a"], "resources": { "cpu_milli": most, "memory_bytes": most } }),
        json!({ "commands": ["a"], "max_duration_ms": least }),
    ] {
        let got = world.submit(&world.admin, body.clone()).await;
        assert!(got.status.as_u16() < 500, "{body}: {}", got.body);
    }
    let run = world.submit(&world.admin, json!({ "commands": ["true"], "start": true })).await.body["id"].clone();
    let run = run.as_str().unwrap();
    for path in [
        format!("/runs/{run}/logs?tail=18446744073709551615&follow=false"),
        format!("/runs/{run}/logs?since_ms={least}&follow=false"),
        format!("/runs/{run}/events?cursor=1y2p0ij32e8e7"),
        format!("/runs/{run}/jobs?cursor=1y2p0ij32e8e7"),
        format!("/credits/usage?since_ms={least}"),
        "/runs?cursor=1y2p0ij32e8e7".to_owned(),
    ] {
        let got = ask(&world, "get", &format!("/api/v1{path}"), &[], "").await;
        assert!(got.status.as_u16() < 500, "{path}: {}", got.body);
    }
    assert!(world.engine.audit().await.unwrap().broken.is_empty());
}

async fn breaks() -> &'static str {
    panic!("a secret of the state")
}

#[tokio::test]
async fn a_panic_is_a_problem_with_its_request_id_and_is_counted() {
    let world = World::new(true).await;
    let engine = world.engine.clone();
    let in_the_store = move || async move {
        let broken =
            engine.store.write(Lane::Normal, "test.panic", |_| -> Result<(), model::Failure> { panic!("SELECT 1") });
        broken.await.map_err(crate::problem::Problem::from)
    };
    let routes = Router::new().route("/breaks", get(breaks)).route("/store", get(in_the_store));
    let with_token = axum::middleware::from_fn_with_state(world.state.clone(), crate::auth::recognised);
    let measured = Router::new().route("/metrics", get(crate::metrics::metrics)).layer(with_token);
    let world = world.serving(routes.merge(measured));
    for (path, counted) in [("/breaks", 1), ("/store", 2)] {
        let got = ask(&world, "get", path, &[], "").await;
        assert_eq!((got.status, got.body["code"].as_str()), (StatusCode::INTERNAL_SERVER_ERROR, Some("internal")));
        assert!(is_problem(&got), "{}", got.body);
        let text = got.body.to_string();
        assert!(
            !text.contains("secret of the state") && !text.contains("SELECT") && !text.contains("test.panic"),
            "{text}"
        );
        assert_eq!(world.state.failures.load(std::sync::atomic::Ordering::Relaxed), counted);
        let request = axum::http::Request::get("/metrics").header("authorization", format!("Bearer {}", world.admin));
        let metrics = world.raw(request.body(axum::body::Body::empty()).unwrap()).await.into_body();
        let metrics = String::from_utf8(axum::body::to_bytes(metrics, 1 << 20).await.unwrap().to_vec()).unwrap();
        let line = format!("remuda_request_failures_total {counted}");
        assert!(metrics.lines().any(|shown| shown == line), "{metrics}");
    }
}

#[test]
fn no_failure_quotes_a_statement_a_path_or_an_address() {
    use crate::problem::Problem;
    use axum::response::IntoResponse as _;
    use model::{Trouble, TroubleKind as Kind};
    let what = "`INSERT INTO runs (id …`: /var/lib/remuda/db at 10.0.0.5";
    for kind in
        [Kind::Database, Kind::Timeout, Kind::Network, Kind::DiskFull, Kind::NotFound, Kind::Internal, Kind::Quota]
    {
        let response = Problem::from(Trouble::new(kind, what)).into_response();
        let hidden = response.extensions().get::<crate::problem::Hidden>().expect("the log has it");
        assert_eq!(hidden.0, what);
        let body = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = body.block_on(axum::body::to_bytes(response.into_body(), 1 << 20)).unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        for word in ["INSERT", "/var", "10.0.0.5"] {
            assert!(!body.contains(word), "{kind:?}: {body}");
        }
    }
}
