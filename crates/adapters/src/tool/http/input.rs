//! The input of the tool `http`, read and checked before anything is connected.

use crate::tool::ToolCall;
use crate::tool::header::{HeaderText, headers};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use url::Url;

/// Bytes of an answer, unless the input asks for fewer.
const LARGEST_BODY: usize = 8 << 20;
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    #[serde(default)]
    method: Option<String>,
    url: String,
    #[serde(default)]
    query: BTreeMap<String, Value>,
    #[serde(default)]
    headers: BTreeMap<String, HeaderText>,
    #[serde(default)]
    json: Option<Value>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    form: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    max_bytes: Option<usize>,
}

/// A request that can be sent, and sent again to where a redirect points.
pub struct Request {
    pub url: Url,
    pub timeout: Duration,
    pub max_bytes: usize,
    method: Method,
    headers: HeaderMap,
    /// Dropped at a redirect to another origin.
    confidential: Vec<HeaderName>,
    body: Option<Vec<u8>>,
}

pub fn read(call: &ToolCall) -> Result<Request, String> {
    let input: Input = serde_json::from_value(call.input.clone()).map_err(|error| format!("http: {error}"))?;
    let method = method(input.method.as_deref().unwrap_or("GET"))?;
    let url = url(&input.url, &input.query)?;
    let (mut headers, confidential) = headers(&input.headers, &call.secrets)?;
    let body = body(&input, &method, &mut headers)?;
    if !headers.contains_key(IDEMPOTENCY_KEY) {
        let key = HeaderValue::from_str(&call.key).map_err(|_| "the step's key is no text for a header".to_owned())?;
        headers.insert(IDEMPOTENCY_KEY, key);
    }
    Ok(Request {
        url,
        timeout: call.limit(),
        max_bytes: input.max_bytes.unwrap_or(LARGEST_BODY).min(LARGEST_BODY),
        method,
        headers,
        confidential,
        body,
    })
}

impl Request {
    pub fn builder(&self, client: &Client) -> RequestBuilder {
        let mut builder = client.request(self.method.clone(), self.url.clone()).headers(self.headers.clone());
        if let Some(body) = &self.body {
            builder = builder.body(body.clone());
        }
        builder
    }

    /// As browsers do it: 303 asks for another resource with GET, and so do 301 and 302 in answer to a POST. Others repeat the request.
    pub fn redirected(&mut self, status: u16, target: Url) {
        let to_get = match status {
            303 => self.method != Method::HEAD,
            301 | 302 => self.method == Method::POST,
            _ => false,
        };
        if to_get {
            self.method = Method::GET;
            self.body = None;
            self.headers.remove(CONTENT_TYPE);
        }
        if self.url.origin() != target.origin() {
            for name in &self.confidential {
                self.headers.remove(name);
            }
        }
        self.url = target;
    }
}

fn method(text: &str) -> Result<Method, String> {
    match text.to_ascii_uppercase().as_str() {
        "GET" => Ok(Method::GET),
        "HEAD" => Ok(Method::HEAD),
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        "DELETE" => Ok(Method::DELETE),
        "OPTIONS" => Ok(Method::OPTIONS),
        _ => Err(format!("http.method: `{text}` is not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")),
    }
}

fn url(text: &str, query: &BTreeMap<String, Value>) -> Result<Url, String> {
    let mut url = Url::parse(text).map_err(|error| format!("http.url: `{text}`: {error}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "http.url: a user name or password in a URL is shown in logs: use a header with a secret".to_owned()
        );
    }
    url.set_fragment(None);
    let pairs = pairs("query", query)?;
    if !pairs.is_empty() {
        url.query_pairs_mut().extend_pairs(pairs);
    }
    Ok(url)
}

/// Names and texts; a list repeats its name, null leaves it out.
fn pairs(field: &str, values: &BTreeMap<String, Value>) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for (name, value) in values {
        let items = match value {
            Value::Array(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        for item in items {
            match item {
                Value::Null => {}
                Value::String(text) => pairs.push((name.clone(), text.clone())),
                Value::Bool(_) | Value::Number(_) => pairs.push((name.clone(), item.to_string())),
                _ => {
                    return Err(format!("http.{field}.{name}: must be a text, a number, a boolean, or a list of them"));
                }
            }
        }
    }
    Ok(pairs)
}

fn body(input: &Input, method: &Method, headers: &mut HeaderMap) -> Result<Option<Vec<u8>>, String> {
    let (content_type, body) = match (&input.json, &input.body, &input.form) {
        (None, None, None) => return Ok(None),
        (Some(value), None, None) => ("application/json", value.to_string().into_bytes()),
        (None, Some(text), None) => ("text/plain; charset=utf-8", text.clone().into_bytes()),
        (None, None, Some(form)) => {
            let mut text = url::form_urlencoded::Serializer::new(String::new());
            text.extend_pairs(pairs("form", form)?);
            ("application/x-www-form-urlencoded", text.finish().into_bytes())
        }
        _ => return Err("http: only one of json, body and form can be sent".to_owned()),
    };
    if matches!(*method, Method::GET | Method::HEAD) {
        return Err(format!("http.method: a {method} has no body: use POST"));
    }
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content_type));
    Ok(Some(body))
}
