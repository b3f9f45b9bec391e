//! What every tool that a worker calls must do. A new tool joins the table.

use crate::server::{Act, Server};
use crate::{Kept, call, embedded, is};
use adapters::tool::http::HttpTool;
use adapters::tool::llm::{LlmTool, Models};
use adapters::tool::mcp::McpTool;
use adapters::{Tool, ToolCall};
use model::Effect;
use model::recovery::ErrorClass::{Permanent, Transient};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// Each tool with a call that goes to this host, and with its name.
fn tools(host: &str) -> Vec<(&'static str, Box<dyn Tool>, ToolCall)> {
    let llm = json!({"default": {"base_url": format!("http://{host}/v1"), "models": {"m": {"context": 8000}}}});
    let llm = LlmTool::new(embedded(), Models(serde_json::from_value(llm).unwrap()));
    let messages = json!([{"role": "user", "content": "hello"}]);
    vec![
        (
            "http",
            Box::new(HttpTool::new(embedded())),
            call(json!({"url": format!("http://{host}/"), "method": "POST", "json": 1}), &[]),
        ),
        ("llm", Box::new(llm), call(json!({"model": "default", "messages": messages}), &[])),
        (
            "mcp",
            Box::new(McpTool::new(embedded())),
            call(json!({"url": format!("http://{host}/mcp"), "tool": "t"}), &[]),
        ),
    ]
}

#[tokio::test]
async fn a_closed_port_had_no_effect_and_may_open_again() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (_, tool, asked) in tools(&closed.to_string()) {
        is(&tool.call(&asked, &Kept::default()).await.unwrap_err(), Transient, Effect::None, "not_connected");
    }
}

/// The endpoint is what a pause after a 429 holds for.
#[test]
fn every_tool_names_the_endpoint_that_it_calls() {
    for (name, tool, asked) in tools("far.example:81") {
        let endpoint = tool.endpoint(&asked.input).unwrap_or_default();
        assert!(endpoint.starts_with("http://far.example:81"), "{name}: {endpoint}");
    }
}

#[tokio::test]
async fn an_address_that_is_refused_is_never_connected() {
    for (_, tool, asked) in tools("169.254.169.254") {
        is(&tool.call(&asked, &Kept::default()).await.unwrap_err(), Permanent, Effect::None, "address_refused");
    }
}

#[tokio::test]
async fn an_input_with_an_unknown_field_is_refused() {
    for (_, tool, mut asked) in tools("127.0.0.1:1") {
        asked.input["unknown_field"] = json!(1);
        let failed = tool.call(&asked, &Kept::default()).await.unwrap_err();
        is(&failed, Permanent, Effect::None, "invalid_input");
        assert!(failed.failure.error.message.contains("unknown_field"), "{}", failed.failure.error.message);
    }
}

/// The caller enforces the time limit of a step by dropping its future.
#[tokio::test]
async fn a_call_that_is_dropped_closes_its_connection() {
    for at in 0..tools("127.0.0.1:1").len() {
        let (arrived, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let server = Server::saying(vec![Act::Tell(arrived.clone()), Act::Hang, Act::Tell(closed.clone())]).await;
        let (name, tool, asked) = tools(&server.address.to_string()).swap_remove(at);
        let log = Kept::default();
        tokio::select! {
            result = tool.call(&asked, &log) => panic!("{name}: {result:?}"),
            () = arrived.notified() => {}
        }
        tokio::time::timeout(Duration::from_secs(10), closed.notified()).await.expect(name);
    }
}
