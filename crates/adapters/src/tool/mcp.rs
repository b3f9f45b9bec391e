//! The tool `mcp`: one call of a tool of an MCP server, or the list of its tools. Over streamable HTTP a worker calls it here; a server that
//! is a program runs on the agent's machine, where [`stdio`] holds it. The step's key goes along in `_meta`. What a server says about its
//! tools (`readOnlyHint`, `idempotentHint`) is neither asked for nor believed: the run file decides what may be repeated.

mod session;
pub mod stdio;
mod wire;

use crate::tool::connector::{Connector, Trail};
use crate::tool::header::{HeaderText, headers};
use crate::tool::mask::Mask;
use crate::tool::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog};
use model::Effect;
use model::recovery::ErrorClass;
use rmcp::model::JsonObject;
use rmcp::service::ClientServiceExt;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::common::client_side_sse::NeverRetry;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde::Deserialize;
use session::{Asked, failure};
use std::collections::BTreeMap;
use std::sync::Arc;
use url::Url;
use wire::Wire;

pub use session::{KEY_FIELD, MOST_LIST_BYTES, MOST_TOOLS};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    url: String,
    /// Without one, the server's tools are listed.
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    arguments: JsonObject,
    #[serde(default)]
    tools: Option<Vec<String>>,
    #[serde(default)]
    headers: BTreeMap<String, HeaderText>,
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
        let within = call.limit();
        let url = Url::parse(&input.url).map_err(|error| invalid_input(&format!("url: {error}")))?;
        let (headers, _) = headers(&input.headers, &call.secrets).map_err(|why| invalid_input(&why))?;
        let client = self.connector.open(&url, &mut Trail::default(), within).await?;
        let (wire, _caller) = Wire::new(client, headers);
        let asked = Asked { tool: input.tool, arguments: input.arguments, tools: input.tools };
        let answered = tokio::time::timeout(within, ask(&wire, input.url, asked, &call.key)).await;
        let failed = match answered {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failed)) => failed,
            Err(_) => failure(ErrorClass::Transient, "timeout", format!("no answer within {} ms", within.as_millis())),
        };
        Err(wire.explain(failed))
    }
}

impl Tool for McpTool {
    fn endpoint(&self, input: &serde_json::Value) -> Option<String> {
        crate::tool::origin(input["url"].as_str()?)
    }

    fn call<'a>(&'a self, call: &'a ToolCall, _log: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(async move { Mask::new(&call.secrets).result(self.exchange(call).await) })
    }
}

/// One session for one call.
async fn ask(wire: &Wire, url: String, asked: Asked, key: &str) -> Result<ToolAnswer, ToolFailure> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(url)
        // A call is sent once: whether it may be sent again is not decided here.
        .reinit_on_expired_session(false)
        .max_concurrent_requests(1);
    config.retry_config = Arc::new(NeverRetry::default());
    let transport = StreamableHttpClientTransport::with_client(wire.clone(), config);
    let service = session::me().serve_with_lifecycle(transport, session::lifecycle()).await;
    let service = service.map_err(|error| failure(ErrorClass::Transient, "not_connected", error.to_string()))?;
    session::ask(service.peer(), asked, key).await
}

fn invalid_input(why: &str) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", format!("mcp: {why}"))
}
