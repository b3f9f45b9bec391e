//! Headers that a step's input sets, with texts or with secrets.

use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Set by the client: they frame the message, choose the server behind an address, or ask for an encoding that would have to be unpacked.
const NOT_FOR_USERS: [&str; 11] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The value of a header: a text, or the name of a secret with an optional text before it (`Bearer `).
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum HeaderText {
    Plain(String),
    Secret(NamedSecret),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSecret {
    secret: String,
    #[serde(default)]
    prefix: String,
}

/// The headers, and which of them are confidential: those with secrets, and those that hold credentials by their nature.
pub fn headers(
    texts: &BTreeMap<String, HeaderText>,
    secrets: &BTreeMap<String, String>,
) -> Result<(HeaderMap, Vec<HeaderName>), String> {
    let (mut headers, mut confidential) = (HeaderMap::new(), vec![AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION]);
    for (name, text) in texts {
        let header =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("headers: `{name}` is no name of a header"))?;
        if NOT_FOR_USERS.contains(&header.as_str()) {
            return Err(format!("headers.{name}: set by the client, leave it out"));
        }
        let value = match text {
            HeaderText::Plain(text) => text.clone(),
            HeaderText::Secret(NamedSecret { secret, prefix }) => {
                confidential.push(header.clone());
                let value =
                    secrets.get(secret).ok_or_else(|| format!("headers.{name}: there is no secret {secret}"))?;
                format!("{prefix}{}", value.trim_end_matches(['\r', '\n']))
            }
        };
        // Refuses line ends, so that a value cannot become another header.
        let mut value =
            HeaderValue::from_str(&value).map_err(|_| format!("headers.{name}: a header cannot hold this text"))?;
        value.set_sensitive(matches!(text, HeaderText::Secret(_)));
        headers.insert(header, value);
    }
    Ok((headers, confidential))
}
