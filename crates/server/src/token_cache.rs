//! Cache of verified tokens, so that not every request reads the database; entries live 5 s. When this process revokes a token, the cache
//! is cleared before the request is answered; when another process does, it is cleared by a hint, or the entry expires.

use crate::hub::Hub;
use crate::now_ms;
use engine::Engine;
use engine::Hint;
use engine::Token;
use model::Failure;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// TTL of an entry: the interval of the fallback poll, after which a lost hint has no effect any more.
const BELIEVED_FOR: Duration = Duration::from_secs(5);
/// Most entries at once; when there are more, all are dropped and read again.
const KEPT: usize = 10_000;

#[derive(Clone, Default)]
pub(crate) struct TokenCache(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    /// By the hash of its text.
    tokens: HashMap<[u8; 32], (Token, Instant)>,
    /// How often everything was forgotten: what was read before that is not remembered after it.
    forgotten: u64,
}

impl TokenCache {
    /// Forgets when it is told that a token was revoked, anywhere.
    pub(crate) fn start(hub: &Hub) -> TokenCache {
        let known = TokenCache::default();
        let (mut bell, listening) = (hub.follow(Hint::Tokens), known.clone());
        tokio::spawn(async move {
            loop {
                bell.rung().await;
                listening.forget();
            }
        });
        known
    }

    /// Whose token this is, if it is good.
    pub(crate) async fn check(&self, engine: &Engine, text: &str) -> Result<Token, Failure> {
        let hash = *blake3::hash(text.as_bytes()).as_bytes();
        let forgotten = match self.find(&hash) {
            Ok(token) => return Ok(token),
            Err(forgotten) => forgotten,
        };
        let token = engine.check_token(text).await?;
        self.keep(hash, &token, forgotten);
        Ok(token)
    }

    /// The token of this text if it was good a moment ago.
    pub(crate) fn remembered(&self, text: &str) -> Option<Token> {
        self.find(blake3::hash(text.as_bytes()).as_bytes()).ok()
    }

    pub(crate) fn forget(&self) {
        let mut memory = self.0.lock().expect("no panic while locked");
        memory.forgotten += 1;
        memory.tokens.clear();
    }

    /// The token, or how often everything was forgotten before it is looked up.
    fn find(&self, hash: &[u8; 32]) -> Result<Token, u64> {
        let memory = self.0.lock().expect("no panic while locked");
        let (token, until) = memory.tokens.get(hash).ok_or(memory.forgotten)?;
        let expired = token.expires_at.is_some_and(|at| at.ms() <= now_ms());
        if expired || *until <= Instant::now() { Err(memory.forgotten) } else { Ok(token.clone()) }
    }

    fn keep(&self, hash: [u8; 32], token: &Token, forgotten: u64) {
        let mut memory = self.0.lock().expect("no panic while locked");
        if memory.forgotten != forgotten {
            return; // it may be the one that was revoked meanwhile
        }
        if memory.tokens.len() >= KEPT {
            memory.tokens.clear();
        }
        memory.tokens.insert(hash, (token.clone(), Instant::now() + BELIEVED_FOR));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::store::token::Scope;
    use model::{OrgId, Timestamp, TokenId};

    fn token(expires_at: Option<Timestamp>) -> Token {
        let (created_at, revoked_at) = (Timestamp(1), None);
        Token {
            id: TokenId(1),
            org: OrgId(1),
            name: "t".into(),
            scope: Scope::Read,
            created_at,
            expires_at,
            revoked_at,
        }
    }

    #[test]
    fn what_was_read_before_a_revocation_is_not_believed_after_it() {
        let known = TokenCache::default();
        let forgotten = known.find(&[1; 32]).unwrap_err();
        known.forget();
        known.keep([1; 32], &token(None), forgotten);
        let forgotten = known.find(&[1; 32]).expect_err("its row may have been read before it was revoked");
        known.keep([1; 32], &token(None), forgotten);
        assert!(known.find(&[1; 32]).is_ok());
        known.forget();
        assert!(known.find(&[1; 32]).is_err());
    }

    #[test]
    fn an_expired_token_is_not_believed() {
        let known = TokenCache::default();
        for (expires_at, good) in [(Some(Timestamp(now_ms() - 1)), false), (Some(Timestamp(now_ms() + 60_000)), true)] {
            known.keep([2; 32], &token(expires_at), 0);
            assert_eq!(known.find(&[2; 32]).is_ok(), good);
        }
    }
}
