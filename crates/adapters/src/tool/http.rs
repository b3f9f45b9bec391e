//! The tool `http`: one request, its redirects, and the answer as JSON. Hands the step's key to the far side as `Idempotency-Key`.
//! Connects only to addresses that `address` allows, and never sends a secret to another origin than it was given for.

mod input;
mod output;
#[cfg(test)]
mod tests;

use crate::tool::connector::{Connector, Trail};
use crate::tool::exchange;
use crate::tool::mask::Mask;
use crate::tool::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolFuture, ToolLog};
use input::Request;
use model::Effect;
use model::recovery::ErrorClass;
use reqwest::Response;
use reqwest::header::LOCATION;
use std::sync::Arc;
use std::time::SystemTime;
use url::Url;

/// Redirects of one call.
const MAX_REDIRECTS: u32 = 5;

pub struct HttpTool {
    connector: Arc<Connector>,
}

impl HttpTool {
    pub fn new(connector: Arc<Connector>) -> HttpTool {
        HttpTool { connector }
    }

    async fn exchange(&self, call: &ToolCall) -> Result<ToolAnswer, ToolFailure> {
        let request = input::read(call).map_err(|why| invalid_input(&why))?;
        let within = request.timeout;
        match tokio::time::timeout(within, self.follow(request)).await {
            Ok(result) => result,
            // The connection has a limit of its own, so the request was probably sent.
            Err(_) => Err(ToolFailure::new(
                ErrorClass::Transient,
                Effect::Perhaps,
                "timeout",
                format!("no whole answer within {} ms", within.as_millis()),
            )),
        }
    }

    /// Sends the request, and again to where each redirect points.
    async fn follow(&self, mut request: Request) -> Result<ToolAnswer, ToolFailure> {
        let mut trail = Trail::default();
        let mut redirects = 0;
        loop {
            // A server that redirects has had the request: from then on a failure is never without effect for sure.
            let known = |failed: ToolFailure| if redirects == 0 { failed } else { perhaps(failed) };
            let client = self.connector.open(&request.url, &mut trail, request.timeout).await.map_err(known)?;
            let response = exchange::send(request.builder(&client)).await.map_err(known)?;
            let Some(target) = redirect(&request.url, &response).map_err(known)? else {
                return answer(response, &request).await.map_err(known);
            };
            redirects += 1;
            if redirects > MAX_REDIRECTS {
                return Err(not_followed(&format!("more than {MAX_REDIRECTS} redirects")));
            }
            request.redirected(response.status().as_u16(), target);
        }
    }
}

impl Tool for HttpTool {
    fn endpoint(&self, input: &serde_json::Value) -> Option<String> {
        crate::tool::origin(input["url"].as_str()?)
    }

    fn call<'a>(&'a self, call: &'a ToolCall, _log: &'a dyn ToolLog) -> ToolFuture<'a> {
        Box::pin(async move { Mask::new(&call.secrets).result(self.exchange(call).await) })
    }
}

/// Where the answer points, if it is a redirect.
fn redirect(from: &Url, response: &Response) -> Result<Option<Url>, ToolFailure> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else {
        return Err(not_followed("a redirect without a location"));
    };
    let target = location.to_str().ok().and_then(|text| from.join(text).ok());
    let Some(target) = target else {
        return Err(not_followed("a redirect to something that is no URL"));
    };
    if !target.username().is_empty() || target.password().is_some() {
        return Err(not_followed("a redirect to a URL with a user name in it"));
    }
    Ok(Some(target))
}

async fn answer(response: Response, request: &Request) -> Result<ToolAnswer, ToolFailure> {
    let status = response.status().as_u16();
    if let Some((class, effect, code)) = exchange::failed_status(status) {
        let wait_ms = exchange::retry_after_ms(response.headers(), SystemTime::now());
        let text = exchange::beginning(response).await;
        let said = exchange::shown(&text);
        let message = if said.is_empty() { format!("HTTP {status}") } else { format!("HTTP {status}: {said}") };
        return Err(ToolFailure::new(class, effect, code, message).retry_after_ms(wait_ms));
    }
    let headers = response.headers().clone();
    let Some(body) = exchange::body(response, request.max_bytes).await? else {
        let message = format!("the answer has more than {} bytes", request.max_bytes);
        return Err(ToolFailure::new(ErrorClass::Permanent, Effect::Done, "too_large", message));
    };
    output::of(status, &headers, body).map(|output| ToolAnswer { output, usage: None })
}

fn perhaps(mut failed: ToolFailure) -> ToolFailure {
    if failed.failure.effect == Effect::None {
        failed.failure.effect = Effect::Perhaps;
    }
    failed
}

fn not_followed(why: &str) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::Done, "redirect", format!("not followed: {why}"))
}

fn invalid_input(why: &str) -> ToolFailure {
    ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", why)
}
