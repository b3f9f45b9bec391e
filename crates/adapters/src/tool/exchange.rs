//! One HTTP request and its answer, for every tool that speaks HTTP: which error a failure is, whether the request may have had
//! an effect, and bodies that end.

use crate::tool::ToolFailure;
use model::Effect;
use model::recovery::ErrorClass;
use model::refused::with_causes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{RequestBuilder, Response};
use std::error::Error;
use std::time::SystemTime;

/// Bytes of an answer that appear in an error message.
const SHOWN_BYTES: usize = 1_000;
/// A far side cannot make a step wait longer than this.
const LONGEST_WAIT_MS: i64 = 24 * 3_600_000;

/// Sends the request and waits for the head of the answer.
pub async fn send(request: RequestBuilder) -> Result<Response, ToolFailure> {
    request.send().await.map_err(|error| broken(&error))
}

/// The whole body; `None` if it is longer than `limit`. Stops reading there.
pub async fn body(mut response: Response, limit: usize) -> Result<Option<Vec<u8>>, ToolFailure> {
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Ok(None);
    }
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| broken(&error))? {
        if body.len() + piece.len() > limit {
            return Ok(None);
        }
        body.extend_from_slice(&piece);
    }
    Ok(Some(body))
}

/// The beginning of a body, for an error message. What cannot be read is left out.
pub async fn beginning(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() >= 64 * SHOWN_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&body).into_owned()
}

/// At most [`SHOWN_BYTES`] of the text, cut between characters.
pub fn shown(text: &str) -> &str {
    let text = text.trim();
    if text.len() <= SHOWN_BYTES { text } else { &text[..text.floor_char_boundary(SHOWN_BYTES)] }
}

/// A request that got no answer, or not the whole of it. Before the connection stands, nothing was sent.
pub fn broken(error: &reqwest::Error) -> ToolFailure {
    let message = with_causes(error);
    if error.is_builder() {
        return ToolFailure::new(ErrorClass::Permanent, Effect::None, "invalid_input", message);
    }
    if is_about_certificates(error) {
        return ToolFailure::new(ErrorClass::Permanent, Effect::None, "certificate", message);
    }
    if error.is_connect() {
        return ToolFailure::new(ErrorClass::Transient, Effect::None, "not_connected", message);
    }
    ToolFailure::new(ErrorClass::Transient, Effect::Perhaps, "cut", message)
}

/// What an HTTP status means for a step. `None`: the call succeeded.
///
/// 408 is also sent by proxies whose back end was slow, so its effect is unknown. 425 and 429 promise that nothing was processed.
pub fn failed_status(status: u16) -> Option<(ErrorClass, Effect, &'static str)> {
    Some(match status {
        200..=299 | 304 => return None,
        408 => (ErrorClass::Transient, Effect::Perhaps, "http_status"),
        425 => (ErrorClass::Transient, Effect::None, "http_status"),
        429 => (ErrorClass::RateLimited, Effect::None, "rate_limited"),
        // Not implemented, and versions or extensions of HTTP that the server does not speak: it will not change its mind.
        501 | 505 | 506 | 510 => (ErrorClass::Permanent, Effect::Done, "http_status"),
        502..=504 | 529 => (ErrorClass::Transient, Effect::Perhaps, "http_status"),
        500.. => (ErrorClass::Unknown, Effect::Perhaps, "http_status"),
        _ => (ErrorClass::Permanent, Effect::Done, "http_status"),
    })
}

/// How long the far side asks to wait: `retry-after-ms`, else `Retry-After` in seconds or as a date.
pub fn retry_after_ms(headers: &HeaderMap, now: SystemTime) -> Option<i64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(wait_ms) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return bounded(wait_ms);
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = value.parse::<f64>() {
        return bounded(seconds * 1_000.0);
    }
    let date = httpdate::parse_http_date(value).ok()?;
    bounded(date.duration_since(now).unwrap_or_default().as_secs_f64() * 1_000.0)
}

fn bounded(wait_ms: f64) -> Option<i64> {
    (wait_ms.is_finite() && wait_ms >= 0.0).then(|| (wait_ms.ceil() as i64).min(LONGEST_WAIT_MS))
}

/// The certificate of the far side, or its name in it, is not trusted: trying again does not help.
fn is_about_certificates(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(inner) = cause {
        if matches!(inner.downcast_ref(), Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // The source of an I/O error is the source of what it holds: the error that it holds is between them.
        let held = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        cause = held.map(|held| held as &(dyn Error + 'static)).or_else(|| inner.source());
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn every_status_has_a_class_and_an_effect() {
        use Effect::{Done, None as Nothing, Perhaps};
        use ErrorClass::{Permanent, RateLimited, Transient, Unknown};
        for (statuses, expected) in [
            (&[200, 201, 204, 206, 304][..], None),
            (&[429], Some((RateLimited, Nothing))),
            (&[425], Some((Transient, Nothing))),
            (&[408, 502, 503, 504, 529], Some((Transient, Perhaps))),
            (&[500, 507, 599], Some((Unknown, Perhaps))),
            (&[300, 302, 400, 401, 403, 404, 409, 413, 422, 501, 505], Some((Permanent, Done))),
        ] {
            for status in statuses {
                assert_eq!(failed_status(*status).map(|(class, effect, _)| (class, effect)), expected, "{status}");
            }
        }
    }

    #[test]
    fn a_wait_is_read_from_seconds_milliseconds_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
        for (name, value, expected) in [
            ("retry-after", "7", Some(7_000)),
            ("retry-after", "0.5", Some(500)),
            ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", Some(30_000)),
            ("retry-after", "Sun, 06 Nov 1994 08:48:37 GMT", Some(0)),
            ("retry-after", "soon", None),
            ("retry-after", "-1", None),
            ("retry-after", "inf", None),
            ("retry-after", "99999999999", Some(LONGEST_WAIT_MS)),
            ("retry-after-ms", "250", Some(250)),
            ("other", "7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(retry_after_ms(&headers, now), expected, "{name}: {value}");
        }
    }
}
