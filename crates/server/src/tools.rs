//! The tools that workers call, as the settings describe them: which addresses they may connect to, and which models there are.

use crate::settings::Settings;
use axum::http::Uri;
use engine::adapters::tool::address::{AddressPolicy, Allowed, OwnAddresses, Profile};
use engine::adapters::tool::connector::Connector;
use engine::adapters::tool::http::HttpTool;
use engine::adapters::tool::llm::{LlmModel, LlmSettings, LlmTool, Models};
use engine::adapters::tool::mcp::McpTool;
use engine::{ControlUrls, Tool};
use model::step::ToolKind;
use model::{Failure, Refused};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

/// `[tools]` of the settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolsConfig {
    /// Addresses that tools may connect to beside those that are allowed anyway: networks (`10.0.0.0/8`), addresses or host names.
    pub allow: Vec<String>,
    /// Credits for one call, by kind of tool.
    pub prices: engine::tool_price::ToolPrices,
}

/// The models of the settings. A control plane of a person's own also takes the server that `OPENAI_BASE_URL` or `OPENAI_API_KEY` name.
pub(crate) fn models(settings: &Settings, env: &dyn Fn(&str) -> Option<String>) -> Models {
    let mut models = Models(settings.config.llm.clone());
    if settings.embedded && !models.0.contains_key(OWN) {
        models.0.extend(from_environment(env).map(|found| (OWN.to_owned(), found)));
    }
    models
}

/// The name that steps use when they name no model.
const OWN: &str = "default";
const OPENAI: &str = "https://api.openai.com/v1";
/// Tokens that a model of the environment reads; its settings can say more exactly.
const CONTEXT: i64 = 128_000;

fn from_environment(env: &dyn Fn(&str) -> Option<String>) -> Option<LlmSettings> {
    let (url, key) = (env("OPENAI_BASE_URL"), env("OPENAI_API_KEY"));
    if url.is_none() && key.is_none() {
        return None;
    }
    let model = env("OPENAI_MODEL");
    let limits = LlmModel { context: CONTEXT, input_price: None, output_price: None };
    let known = model.iter().map(|name| (name.clone(), limits.clone())).collect();
    let base_url = url.unwrap_or_else(|| OPENAI.to_owned());
    Some(LlmSettings {
        default_model: model,
        any_model: Some(limits),
        key_here: key,
        ..LlmSettings::at(base_url, known)
    })
}

/// Where this control plane is reached, whichever of its processes listens there: a worker listens nowhere, and knows the address that
/// its machines are given.
pub(crate) fn own_addresses(listening: Option<SocketAddr>, urls: &ControlUrls) -> Vec<SocketAddr> {
    let told = [Some(&urls.host), urls.public.as_ref()];
    listening.into_iter().chain(told.into_iter().flatten().flat_map(|url| addresses(url))).collect()
}

/// None for a socket in the file system, or for a name that does not resolve.
fn addresses(url: &str) -> Vec<SocketAddr> {
    let Ok(uri) = url.parse::<Uri>() else { return Vec::new() };
    let Some(host) = uri.host() else { return Vec::new() };
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default()
}

/// `own`: where this control plane is reached; tools never connect there.
pub(crate) fn tools(
    settings: &Settings,
    models: &Models,
    own: OwnAddresses,
) -> Result<BTreeMap<ToolKind, Arc<dyn Tool>>, Failure> {
    let mut allowed = Vec::new();
    for entry in &settings.config.tools.allow {
        allowed.push(entry.parse::<Allowed>().map_err(|why| Refused::invalid("tools.allow", why.to_string()))?);
    }
    let profile = if settings.embedded { Profile::Embedded } else { Profile::Server };
    let mut connector = Connector::new(AddressPolicy::new(profile, allowed, own));
    if let Some(path) = &settings.ca_cert {
        let text = crate::serve::authorities(path)?;
        connector = connector.trusting(&text).map_err(|why| Refused::invalid("ca_cert", why))?;
    }
    let connector = Arc::new(connector);
    Ok(BTreeMap::from([
        (ToolKind::Http, Arc::new(HttpTool::new(connector.clone())) as Arc<dyn Tool>),
        (ToolKind::Llm, Arc::new(LlmTool::new(connector.clone(), models.clone()))),
        (ToolKind::Mcp, Arc::new(McpTool::new(connector))),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_knows_where_its_servers_listen() {
        let own = |host: &str, public: Option<&str>, listening: Option<&str>| {
            let urls = ControlUrls { host: host.to_owned(), public: public.map(str::to_owned) };
            let found = own_addresses(listening.map(|at| at.parse().unwrap()), &urls);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(own("http://127.0.0.1:7780", None, None), ["127.0.0.1:7780"]);
        assert_eq!(own("https://[::1]", Some("http://10.0.0.5"), None), ["[::1]:443", "10.0.0.5:80"]);
        assert_eq!(own("unix:/home/s", None, Some("127.0.0.1:1")), ["127.0.0.1:1"]);
    }
}
