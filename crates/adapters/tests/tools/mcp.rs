//! The tool `mcp` against servers of both generations, and against servers that do not answer, lie or close.

use crate::server::{Act, Received, Server, answer, json as json_answer};
use crate::{Kept, call, embedded, is};
use adapters::tool::mcp::McpTool;
use adapters::{Tool, ToolAnswer, ToolCall, ToolFailure};
use model::Effect;
use model::recovery::ErrorClass::{InvalidOutput, Permanent, RateLimited, Transient, Unknown};
use serde_json::{Value, json};

async fn called(server: &Server, input: Value) -> Result<ToolAnswer, ToolFailure> {
    called_within(server, input, 20_000).await
}

async fn called_within(server: &Server, input: Value, timeout_ms: i64) -> Result<ToolAnswer, ToolFailure> {
    let mut whole = json!({"url": server.url("/mcp"), "tool": "add", "arguments": {"a": 1}});
    whole.as_object_mut().unwrap().extend(input.as_object().unwrap().clone());
    let asked = ToolCall { timeout_ms: Some(timeout_ms), ..call(whole, &[("KEY", "sesame-open")]) };
    McpTool::new(embedded()).call(&asked, &Kept::default()).await
}

/// A server of 2025 that answers `tools/call` by script.
async fn older(script: impl Fn(&Received) -> Vec<Act> + Send + 'static) -> Server {
    Server::start(move |request, _| {
        if request.method != "POST" {
            return answer("405 Method Not Allowed", &[], "");
        }
        let message = request.json();
        match message["method"].as_str() {
            Some("initialize") => {
                let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}});
                let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
                answer("200 OK", &[("content-type", "application/json"), ("mcp-session-id", "s1")], body.to_string())
            }
            Some("notifications/initialized") => answer("202 Accepted", &[], ""),
            Some("tools/call") => script(request),
            // `server/discover` among them.
            _ if request.header("mcp-session-id").is_none() => answer("400 Bad Request", &[], "no session"),
            _ => answer("202 Accepted", &[], ""),
        }
    })
    .await
}

fn result(request: &Received, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": result})
}

fn sent(server: &Server, method: &str) -> Vec<Received> {
    let posts = server.received().into_iter().filter(|request| request.method == "POST");
    posts.filter(|request| request.json()["method"] == method).collect()
}

#[tokio::test]
async fn a_tool_is_called_with_the_key_in_its_meta_and_answers_with_json_or_events() {
    for as_events in [false, true] {
        let server = older(move |request| {
            let body = result(request, json!({"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}}));
            match as_events {
                false => json_answer(body),
                true => {
                    let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
                    let text = format!(": ping\r\n\r\ndata: {note}\r\n\r\nevent: message\r\ndata: {body}\r\n\r\n");
                    answer("200 OK", &[("content-type", "text/event-stream")], text)
                }
            }
        })
        .await;
        let headers = json!({"headers": {"Authorization": {"secret": "KEY", "prefix": "Bearer "}}});
        let output = called(&server, headers).await.unwrap().output;
        assert_eq!(output["content"], json!([{"type": "text", "text": "3"}]));
        assert_eq!(output["structured"], json!({"sum": 3}));
        let calls = sent(&server, "tools/call");
        assert_eq!(calls.len(), 1, "called once");
        let params = calls[0].json()["params"].clone();
        assert_eq!((&params["name"], &params["arguments"]), (&json!("add"), &json!({"a": 1})));
        assert_eq!(params["_meta"]["idempotencyKey"], "step-key");
        assert_eq!(calls[0].header("mcp-session-id"), Some("s1"));
        assert_eq!(calls[0].header("authorization"), Some("Bearer sesame-open"));
        assert_eq!(sent(&server, "tools/list").len(), 0, "hints of tools are not asked for");
    }
}

#[tokio::test]
async fn a_server_without_sessions_is_understood() {
    let server = Server::start(|request, _| {
        let message = request.json();
        match message["method"].as_str() {
            Some("server/discover") => json_answer(result(request, json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
                "serverInfo": {"name": "s", "version": "1"},
            }))),
            Some("tools/call") => json_answer(result(request, json!({"resultType": "complete", "content": []}))),
            _ => answer("400 Bad Request", &[], ""),
        }
    })
    .await;
    assert_eq!(called(&server, json!({})).await.unwrap().output, json!({"content": [], "structured": null}));
    assert_eq!(sent(&server, "initialize").len(), 0);
    assert_eq!(sent(&server, "tools/call")[0].json()["params"]["_meta"]["idempotencyKey"], "step-key");
}

#[tokio::test]
async fn each_failure_of_a_call_has_a_class_and_an_effect() {
    type Script = fn(&Received) -> Vec<Act>;
    let table: &[(&str, Script, _, Effect, &str)] = &[
        (
            "the tool failed",
            |r| json_answer(result(r, json!({"isError": true, "content": [{"type": "text", "text": "no"}]}))),
            Permanent,
            Effect::Done,
            "tool_error",
        ),
        (
            "unknown tool",
            |r| json_answer(json!({"jsonrpc": "2.0", "id": r.json()["id"], "error": {"code": -32602, "message": "?"}})),
            Permanent,
            Effect::Done,
            "mcp_error",
        ),
        (
            "internal",
            |r| json_answer(json!({"jsonrpc": "2.0", "id": r.json()["id"], "error": {"code": -32603, "message": "?"}})),
            Unknown,
            Effect::Perhaps,
            "mcp_error",
        ),
        ("429", |_| answer("429 Slow", &[("retry-after", "1")], ""), RateLimited, Effect::None, "rate_limited"),
        ("500", |_| answer("500 Oops", &[], "x"), Unknown, Effect::Perhaps, "http_status"),
        ("401", |_| answer("401 No", &[], "x"), Permanent, Effect::Done, "http_status"),
        ("session gone", |_| answer("404 Not Found", &[], "x"), Transient, Effect::None, "session_expired"),
        ("garbage", |_| json_answer(json!("what?")), InvalidOutput, Effect::Done, "invalid_output"),
        (
            "html",
            |_| answer("200 OK", &[("content-type", "text/html")], "<html>"),
            InvalidOutput,
            Effect::Done,
            "invalid_output",
        ),
        ("closes", |_| vec![], Transient, Effect::Perhaps, "cut"),
        ("resets", |_| vec![Act::Reset], Transient, Effect::Perhaps, "cut"),
        ("never answers", |_| vec![Act::Hang], Transient, Effect::Perhaps, "timeout"),
        (
            "events that end too early",
            |_| answer("200 OK", &[("content-type", "text/event-stream")], ": nothing\n\n"),
            Transient,
            Effect::Perhaps,
            "cut",
        ),
        (
            "events that are cut",
            |_| {
                vec![Act::Say(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99\r\n\r\ndata: {".to_vec(),
                )]
            },
            Transient,
            Effect::Perhaps,
            "cut",
        ),
        (
            "endless",
            |_| {
                vec![
                    Act::Say(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_vec()),
                    Act::SayForEver(vec![b' '; 65536]),
                ]
            },
            Permanent,
            Effect::Done,
            "too_large",
        ),
        (
            "endless events",
            |_| {
                vec![
                    Act::Say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec()),
                    Act::SayForEver(b": ping\n\n".repeat(8192)),
                ]
            },
            Permanent,
            Effect::Done,
            "too_large",
        ),
    ];
    for (what, script, class, effect, code) in table {
        let server = older(*script).await;
        let limit = if *code == "timeout" { 1_000 } else { 20_000 };
        let failed = called_within(&server, json!({}), limit).await.map_err(Box::new).expect_err(what);
        let found = (failed.failure.class, failed.failure.effect, failed.failure.error.code.as_str());
        assert_eq!(found, (*class, *effect, *code), "{what}: {}", failed.failure.error.message);
        assert_eq!(sent(&server, "tools/call").len(), 1, "{what}: sent once");
    }
}

#[tokio::test]
async fn before_the_call_nothing_happened() {
    for (what, acts, class, code, limit) in [
        ("401", answer("401 No", &[], "x"), Permanent, "http_status", 20_000),
        ("429", answer("429 Slow", &[], "x"), RateLimited, "rate_limited", 20_000),
        ("500", answer("500 Oops", &[], "x"), Unknown, "http_status", 20_000),
        ("garbage", answer("200 OK", &[], "hello"), InvalidOutput, "invalid_output", 20_000),
        ("closes", vec![], Transient, "cut", 20_000),
        ("never answers", vec![Act::Hang], Transient, "timeout", 300),
        ("redirects", crate::server::redirect("307 Away", "http://169.254.169.254/"), Permanent, "http_status", 20_000),
    ] {
        let server = Server::saying(acts).await;
        let failed = called_within(&server, json!({}), limit).await.map_err(Box::new).expect_err(what);
        let found = (failed.failure.class, failed.failure.effect, failed.failure.error.code.as_str());
        assert_eq!(found, (class, Effect::None, code), "{what}: {}", failed.failure.error.message);
    }
    let server = Server::saying(vec![]).await;
    for input in
        [json!({"bogus": 1}), json!({"url": "no url"}), json!({"arguments": 7}), json!({"headers": {"Host": "x"}})]
    {
        is(&called(&server, input).await.unwrap_err(), Permanent, Effect::None, "invalid_input");
    }
    let failed = called(&server, json!({"url": "http://169.254.169.254/mcp"})).await.unwrap_err();
    is(&failed, Permanent, Effect::None, "address_refused");
    assert_eq!(server.received().len(), 0);
}

#[tokio::test]
async fn without_a_tool_the_servers_tools_are_listed() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let listing = schema.clone();
    let server = Server::start(move |request, _| {
        let message = request.json();
        match message["method"].as_str() {
            Some("initialize") => json_answer(result(
                request,
                json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}),
            )),
            Some("tools/list") => json_answer(result(
                request,
                json!({"tools": [
                    {"name": "add", "description": "Adds.", "inputSchema": listing, "annotations": {"readOnlyHint": true}},
                    {"name": "sub", "inputSchema": {"type": "object"}},
                ]}),
            )),
            Some("server/discover") => answer("400 Bad Request", &[], "what?"),
            _ => answer("202 Accepted", &[], ""),
        }
    })
    .await;
    let list = |only: Value| {
        let input = json!({"url": server.url("/mcp"), "tools": only});
        async move { McpTool::new(embedded()).call(&call(input, &[]), &Kept::default()).await }
    };
    let all = list(Value::Null).await.unwrap().output;
    assert_eq!(all["tools"][0], json!({"name": "add", "description": "Adds.", "input": schema}));
    assert_eq!(all["tools"].as_array().unwrap().len(), 2);
    assert_eq!(list(json!(["sub"])).await.unwrap().output["tools"][0]["name"], "sub");
    is(&list(json!(["mul"])).await.unwrap_err(), Permanent, Effect::None, "unknown_tool");
}
