//! Rate limits per token: a bucket that fills steadily. Bounded in memory; the embedded control plane has none.

use crate::problem::Problem;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use model::TokenId;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// Requests a second that a token may keep up, and how many may come at once.
const PER_SECOND: f64 = 200.0;
const AT_ONCE: f64 = 400.0;
/// Buckets kept; full ones are forgotten first, they say nothing.
const BUCKETS: usize = 10_000;

#[derive(Default)]
pub(crate) struct Limits {
    buckets: Mutex<HashMap<TokenId, Bucket>>,
}

/// The bucket is empty.
#[derive(Debug)]
pub(crate) struct Empty;

pub(crate) fn too_many() -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", "too many requests with this token")
        .fix(format!("keep below {PER_SECOND} requests a second"))
        .retry_after(1)
}

pub(crate) fn note(headers: &mut HeaderMap, left: i64) {
    headers.insert("ratelimit-limit", HeaderValue::from(AT_ONCE as i64));
    headers.insert("ratelimit-remaining", HeaderValue::from(left));
    headers.insert("ratelimit-reset", HeaderValue::from(((AT_ONCE - left as f64) / PER_SECOND).ceil() as i64));
}

struct Bucket {
    left: f64,
    filled_at: Instant,
}

impl Limits {
    /// Takes one request from the token's bucket; how many are left, or none are.
    pub(crate) fn take(&self, token: TokenId) -> Result<i64, Empty> {
        let now = Instant::now();
        let mut buckets = self.buckets.lock().expect("no panic while locked");
        if buckets.len() >= BUCKETS {
            buckets.retain(|_, bucket| bucket.at(now) < AT_ONCE);
        }
        let bucket = buckets.entry(token).or_insert(Bucket { left: AT_ONCE, filled_at: now });
        bucket.left = bucket.at(now);
        bucket.filled_at = now;
        if bucket.left < 1.0 {
            return Err(Empty);
        }
        bucket.left -= 1.0;
        Ok(bucket.left as i64)
    }
}

impl Bucket {
    fn at(&self, now: Instant) -> f64 {
        (self.left + now.duration_since(self.filled_at).as_secs_f64() * PER_SECOND).min(AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_asks_too_much_is_told_so_and_others_are_not() {
        let limits = Limits::default();
        let refused = (0..(AT_ONCE as usize) * 3).filter(|_| limits.take(TokenId(1)).is_err()).count();
        assert!(refused > 0, "the bucket is empty at some point");
        assert!(limits.take(TokenId(2)).is_ok());
    }
}
