//! The tool `mcp`: one call of a tool of an MCP server over streamable HTTP. The step's key goes along in `_meta`. What a server says
//! about its tools (`readOnlyHint`, `idempotentHint`) is neither asked for nor believed: the run file decides what may be repeated.

mod wire;

use crate::tool::connector::{Connector, Trail};
use crate::tool::header::{HeaderText, headers};
use crate::tool::mask::Mask;
use crate::tool::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog, exchange};
use model::Effect;
use model::recovery::ErrorClass;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig, Implementation,
    JsonObject, MetaObject, ProtocolVersion, RequestMetaObject,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::NeverRetry;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use url::Url;
use wire::Wire;

const DEFAULT_TIMEOUT_MS: i64 = 30_000;
/// The field of `_meta` that holds the step's key.
pub const KEY_FIELD: &str = "idempotencyKey";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    url: String,
    tool: String,
    #[serde(default)]
    arguments: JsonObject,
    #[serde(default)]
    headers: BTreeMap<String, HeaderText>,
    #[serde(default)]
    timeout: Option<String>,
}

pub struct McpTool {
    connector: Arc<Connector>,
}

impl McpTool {
    pub fn new(connector: Arc<Connector>) -> McpTool {
        McpTool { connector }
    }

    async fn exchange(&self, call: &ToolCall) -> Result<ToolAnswer, ToolFailure> {
        let input: Input =
            serde_json::from_value(call.input.clone()).map_err(|error| invalid_input(&error.to_string()))?;
        let timeout_ms = match &input.timeout {
            Some(text) => {
                model::time::parse_duration(text).map_err(|error| invalid_input(&format!("timeout: {error}")))?
            }
            None => DEFAULT_TIMEOUT_MS,
        };
        let within = Duration::from_millis(timeout_ms.max(1) as u64);
        let url = Url::parse(&input.url).map_err(|error| invalid_input(&format!("url: {error}")))?;
        let (headers, _) = headers(&input.headers, &call.secrets).map_err(|why| invalid_input(&why))?;
        let client = self.connector.open(&url, &mut Trail::default(), within).await?;
        let (wire, _caller) = Wire::new(client, headers);
        let answered = tokio::time::timeout(within, session(&wire, input, &call.key)).await;
        let failed = match answered {
            Ok(Ok(result)) => return output(result),
            Ok(Err(failed)) => failed,
            Err(_) => failure(ErrorClass::Transient, "timeout", format!("no answer within {timeout_ms} ms")),
        };
        Err(wire.explain(failed))
    }
}

impl Tool for McpTool {
    fn call<'a>(&'a self, call: &'a ToolCall, _log: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(async move { Mask::new(&call.secrets).result(self.exchange(call).await) })
    }
}

/// Greets the server in the newest way that it understands, and calls the tool once.
async fn session(wire: &Wire, input: Input, key: &str) -> Result<CallToolResult, ToolFailure> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(input.url)
        // A call is sent once: whether it may be sent again is not decided here.
        .reinit_on_expired_session(false)
        .max_concurrent_requests(1);
    config.retry_config = Arc::new(NeverRetry::default());
    let transport = StreamableHttpClientTransport::with_client(wire.clone(), config);
    let me = ClientConfig::new(ClientCapabilities::default(), Implementation::new("remuda", env!("CARGO_PKG_VERSION")));
    let lifecycle =
        ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::LATEST], legacy_version: None };
    let service = me.serve_with_lifecycle(transport, lifecycle).await;
    let service = service.map_err(|error| failure(ErrorClass::Transient, "not_connected", error.to_string()))?;
    let mut params = CallToolRequestParams::new(input.tool).with_arguments(input.arguments);
    let meta = JsonObject::from_iter([(KEY_FIELD.to_owned(), Value::String(key.to_owned()))]);
    params.meta = Some(RequestMetaObject(MetaObject(meta)));
    match service.call_tool_once(params).await {
        Ok(CallToolResponse::Complete(result)) => Ok(result),
        Ok(_) => {
            let message = "the tool asks for more input or for a later look, which a step does not give";
            Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, "unsupported", message))
        }
        Err(error) => Err(refused(error)),
    }
}

/// The server answered with an error of JSON-RPC, or not at all.
fn refused(error: ServiceError) -> ToolFailure {
    let message = error.to_string();
    match error {
        ServiceError::McpError(data) => match data.code.0 {
            // The server itself broke: it may have done half of the work.
            -32603 => ToolFailure::new(ErrorClass::Unknown, Effect::Perhaps, "mcp_error", message),
            _ => ToolFailure::new(ErrorClass::Permanent, Effect::Done, "mcp_error", message),
        },
        ServiceError::UnexpectedResponse => {
            ToolFailure::new(ErrorClass::InvalidOutput, Effect::Done, "invalid_output", message)
        }
        _ => failure(ErrorClass::Transient, "cut", message),
    }
}

/// `{content, structured}`. A result that is marked as an error failed as a command with another exit code than 0 does.
fn output(result: CallToolResult) -> Result<ToolAnswer, ToolFailure> {
    let content = serde_json::to_value(&result.content).unwrap_or_default();
    if result.is_error == Some(true) {
        let texts: Vec<&str> =
            content.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect();
        let message = format!("the tool failed: {}", exchange::shown(&texts.join("\n")));
        return Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, "tool_error", message));
    }
    let output = json!({"content": content, "structured": result.structured_content});
    Ok(ToolAnswer { output, usage: None })
}

/// [`Wire::explain`] corrects the effect by what was sent.
fn failure(class: ErrorClass, code: &str, message: String) -> ToolFailure {
    ToolFailure::new(class, Effect::Perhaps, code, message)
}

fn invalid_input(why: &str) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", format!("mcp: {why}"))
}
