//! Requests to an MCP server within one session, over HTTP or over pipes: one call of a tool, or the list of its tools.

use crate::tool::{ToolAnswer, ToolFailure, exchange};
use model::Effect;
use model::recovery::ErrorClass;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig, Implementation,
    JsonObject, MetaObject, PaginatedRequestParams, ProtocolVersion, RequestMetaObject, Tool,
};
use rmcp::service::{ClientLifecycleMode, Peer, RoleClient, ServiceError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The field of `_meta` that holds the step's key.
pub const KEY_FIELD: &str = "idempotencyKey";
/// Tools that are offered to a model from one server, and the bytes of their names, descriptions and schemas. All of them are sent to the
/// model in every turn.
pub const MOST_TOOLS: usize = 128;
pub const MOST_LIST_BYTES: usize = 64 << 10;
/// Tools that are read of a server before it is given up.
const MOST_READ: usize = 10_000;

/// One call of a tool. Without `tool`: the list of the server's tools.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    pub arguments: JsonObject,
    /// Of the list: only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
}

pub fn me() -> ClientConfig {
    ClientConfig::new(ClientCapabilities::default(), Implementation::new("remuda", env!("CARGO_PKG_VERSION")))
}

/// The newest way to begin a session that the server understands.
pub fn lifecycle() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto { preferred_versions: vec![ProtocolVersion::LATEST], legacy_version: None }
}

pub async fn ask(peer: &Peer<RoleClient>, asked: Asked, key: &str) -> Result<ToolAnswer, ToolFailure> {
    match asked.tool {
        Some(tool) => output(call(peer, tool, asked.arguments, key).await?),
        None => list(peer, asked.tools.as_deref()).await,
    }
}

async fn call(
    peer: &Peer<RoleClient>,
    tool: String,
    arguments: JsonObject,
    key: &str,
) -> Result<CallToolResult, ToolFailure> {
    let mut params = CallToolRequestParams::new(tool).with_arguments(arguments);
    let meta = JsonObject::from_iter([(KEY_FIELD.to_owned(), Value::String(key.to_owned()))]);
    params.meta = Some(RequestMetaObject(MetaObject(meta)));
    match peer.call_tool_once(params).await {
        Ok(CallToolResponse::Complete(result)) => Ok(result),
        Ok(_) => {
            let message = "the tool asks for more input or for a later look, which a step does not give";
            Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, "unsupported", message))
        }
        Err(error) => Err(refused(error)),
    }
}

/// Name, description and input schema of each tool, in the server's order. What it says of their effects is left out: it is not believed.
async fn list(peer: &Peer<RoleClient>, only: Option<&[String]>) -> Result<ToolAnswer, ToolFailure> {
    let (mut found, mut read, mut cursor) = (Vec::new(), 0, None);
    loop {
        let mut page = PaginatedRequestParams::default();
        page.cursor = cursor;
        let answer = peer.list_tools(Some(page)).await.map_err(|error| without_effect(refused(error)))?;
        read += answer.tools.len().max(1); // an empty page with a cursor counts, too
        let wanted = |tool: &Tool| only.is_none_or(|only| only.iter().any(|name| *name == tool.name));
        found.extend(answer.tools.into_iter().filter(wanted));
        cursor = answer.next_cursor;
        if cursor.is_none() {
            break;
        }
        if found.len() > MOST_TOOLS || read > MOST_READ {
            break;
        }
    }
    let missing = only.into_iter().flatten().find(|name| !found.iter().any(|tool| tool.name == name.as_str()));
    if let Some(name) = missing.filter(|_| cursor.is_none()) {
        return Err(bad_list("unknown_tool", format!("the server has no tool `{name}`")));
    }
    if found.len() > MOST_TOOLS || cursor.is_some() {
        let why = format!("the server has more than {MOST_TOOLS} tools: name those that are needed with `tools:`");
        return Err(bad_list("too_many_tools", why));
    }
    let tools: Vec<Value> = found.iter().map(described).collect();
    let output = json!({ "tools": tools });
    let bytes = output.to_string().len();
    if bytes > MOST_LIST_BYTES {
        let why = format!(
            "the descriptions of its tools have {bytes} bytes, and {MOST_LIST_BYTES} are possible: name fewer with `tools:`"
        );
        return Err(bad_list("too_many_tools", why));
    }
    Ok(ToolAnswer { output, usage: None })
}

fn described(tool: &Tool) -> Value {
    json!({ "name": tool.name, "description": tool.description, "input": tool.input_schema })
}

fn bad_list(code: &str, why: String) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, code, why)
}

fn without_effect(mut failed: ToolFailure) -> ToolFailure {
    failed.failure.effect = Effect::None;
    failed
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

/// The caller corrects the effect by what was sent.
pub fn failure(class: ErrorClass, code: &str, message: String) -> ToolFailure {
    ToolFailure::new(class, Effect::Perhaps, code, message)
}
