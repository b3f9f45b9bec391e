//! Rate limits of requests over the network: one token bucket per API token, per runner, and per client address for requests without
//! a valid token. Bounded in memory. The unix socket has no limit.

use crate::listen::Peer;
use crate::problem::Problem;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use model::{InstanceId, JobId, TokenId};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::Instant;

/// Buckets kept; the fullest are forgotten first. A full one says nothing, and an empty one must not be filled by requests of others.
const BUCKETS: usize = 10_000;

/// Whose requests are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Token(TokenId),
    Runner(InstanceId),
    /// Processes of a job, by their step token.
    Job(JobId),
    /// Requests without a token, and those whose token is not good. IPv6 addresses count by their /64.
    Stranger(IpAddr),
}

/// Requests a second that may be kept up, and how many may come at once.
struct Rate {
    per_second: f64,
    at_once: f64,
}

const TOKEN: Rate = Rate { per_second: 200.0, at_once: 400.0 };
/// A runner reports whenever its jobs write something.
const RUNNER: Rate = Rate { per_second: 1_000.0, at_once: 2_000.0 };
const STRANGER: Rate = Rate { per_second: 50.0, at_once: 200.0 };

impl Who {
    pub(crate) fn stranger(address: IpAddr) -> Who {
        Who::Stranger(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 => v4,
        })
    }

    fn rate(self) -> &'static Rate {
        match self {
            Who::Token(_) => &TOKEN,
            Who::Runner(_) | Who::Job(_) => &RUNNER,
            Who::Stranger(_) => &STRANGER,
        }
    }

    fn too_many(self) -> Problem {
        let whose = match self {
            Who::Token(_) => "with this token",
            Who::Runner(_) => "of this runner",
            Who::Job(_) => "of this job",
            Who::Stranger(_) => "without a valid token from this address",
        };
        Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", format!("too many requests {whose}"))
            .fix(format!("keep below {} requests a second", self.rate().per_second))
            .retry_after(1)
    }

    /// The usual headers of an answer.
    pub(crate) fn note(self, headers: &mut HeaderMap, left: i64) {
        let Rate { per_second, at_once } = self.rate();
        headers.insert("ratelimit-limit", HeaderValue::from(*at_once as i64));
        headers.insert("ratelimit-remaining", HeaderValue::from(left));
        headers.insert("ratelimit-reset", HeaderValue::from(((at_once - left as f64) / per_second).ceil() as i64));
    }
}

#[derive(Default)]
pub(crate) struct Limits {
    buckets: Mutex<HashMap<Who, Bucket>>,
}

struct Bucket {
    left: f64,
    filled_at: Instant,
}

impl Bucket {
    fn at(&self, now: Instant, rate: &Rate) -> f64 {
        (self.left + now.duration_since(self.filled_at).as_secs_f64() * rate.per_second).min(rate.at_once)
    }
}

impl Limits {
    /// Takes one request from the bucket; how many are left, or that there were none.
    pub(crate) fn take(&self, who: Who) -> Result<i64, Problem> {
        self.take_at(who, Instant::now())
    }

    fn take_at(&self, who: Who, now: Instant) -> Result<i64, Problem> {
        let rate = who.rate();
        let mut buckets = self.buckets.lock().expect("no panic while locked");
        if buckets.len() >= BUCKETS && !buckets.contains_key(&who) {
            let part = |(who, bucket): (&Who, &Bucket)| (bucket.at(now, who.rate()) / who.rate().at_once, *who);
            let mut all: Vec<(f64, Who)> = buckets.iter().map(part).collect();
            all.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
            for (_, who) in all.drain(BUCKETS / 2..) {
                buckets.remove(&who);
            }
        }
        let bucket = buckets.entry(who).or_insert(Bucket { left: rate.at_once, filled_at: now });
        bucket.left = bucket.at(now, rate);
        bucket.filled_at = now;
        if bucket.left < 1.0 {
            return Err(who.too_many());
        }
        bucket.left -= 1.0;
        Ok(bucket.left as i64)
    }

    /// Whether a client at this address may still try an unknown token.
    pub(crate) fn admit(&self, peer: Peer) -> Result<(), Problem> {
        let Peer::Remote(address) = peer else { return Ok(()) };
        let (who, buckets) = (Who::stranger(address), self.buckets.lock().expect("no panic while locked"));
        let empty = buckets.get(&who).is_some_and(|bucket| bucket.at(Instant::now(), who.rate()) < 1.0);
        if empty { Err(who.too_many()) } else { Ok(()) }
    }

    /// Counts a request without a valid token. Returns its answer.
    pub(crate) fn blame(&self, peer: Peer, problem: Problem) -> Problem {
        let Peer::Remote(address) = peer else { return problem };
        self.take(Who::stranger(address)).err().unwrap_or(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: i64) -> Who {
        Who::Token(TokenId(n))
    }

    #[test]
    fn a_token_that_asks_too_much_is_told_so_and_others_are_not() {
        let limits = Limits::default();
        let refused = (0..(TOKEN.at_once as usize) * 3).filter(|_| limits.take(token(1)).is_err()).count();
        assert!(refused > 0, "the bucket is empty at some point");
        assert!(limits.take(token(2)).is_ok());
    }

    #[test]
    fn strangers_count_by_address_and_the_unix_socket_does_not() {
        let limits = Limits::default();
        let remote = |text: &str| Peer::Remote(text.parse().unwrap());
        let bad = || Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "no");
        for _ in 0..(STRANGER.at_once as usize) * 3 {
            limits.blame(remote("192.0.2.1"), bad());
            limits.blame(remote("2001:db8::1"), bad());
            limits.blame(Peer::Local, bad());
        }
        for (peer, admitted) in [
            (remote("192.0.2.1"), false),
            (remote("::ffff:192.0.2.1"), false),
            (remote("192.0.2.2"), true),
            (remote("2001:db8::2"), false),
            (remote("2001:db8:0:1::1"), true),
            (Peer::Local, true),
        ] {
            assert_eq!(limits.admit(peer).is_ok(), admitted, "{peer:?}");
        }
    }

    #[test]
    fn memory_is_bounded_whoever_comes() {
        let limits = Limits::default();
        for n in 0..(BUCKETS as i64) * 3 {
            limits.take(token(n)).unwrap();
        }
        assert!(limits.buckets.lock().unwrap().len() <= BUCKETS);
    }

    #[test]
    fn many_addresses_do_not_refill_the_bucket_of_one() {
        let (limits, now) = (Limits::default(), Instant::now());
        let at = |n: usize| Who::stranger(IpAddr::from([10, (n >> 16) as u8, (n >> 8) as u8, n as u8]));
        while limits.take_at(at(0), now).is_ok() {}
        for n in 1..BUCKETS * 3 {
            limits.take_at(at(n), now).unwrap();
        }
        assert!(limits.take_at(at(0), now).is_err());
        assert!(limits.buckets.lock().unwrap().len() <= BUCKETS);
    }
}
