//! Sessions of the web pages: a random cookie, stored as a hash, that stands for one token until it ends. What a session may do, and
//! for which org, is read from the token's row each time. Never stores the cookie itself.

use crate::installation::random;
use crate::sql::Sql;
use crate::token::{self, Token};
use crate::tx::Tx;
use crate::{Hint, args};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Failure, Refused, Timestamp, TokenId};

/// 256 random bits cannot be guessed: a fast hash is enough.
const SECRET_BYTES: usize = 32;
/// Expired sessions that a new one deletes.
const DELETED_AT_ONCE: i64 = 100;

/// The text of a cookie, or of anything else that is shown once and cannot be guessed.
pub fn new_secret() -> String {
    URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>())
}

/// Opens a session of this token and deletes some that are over.
pub fn open(tx: &mut Tx, secret: &str, token: TokenId, until: Timestamp) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&DELETE_OLD, args![at, DELETED_AT_ONCE])?;
    tx.post(&OPEN, args![digest(secret), token, at, until])
}

/// The token of a session and when the session ends, if both are good now.
pub fn check(tx: &mut Tx, secret: &str) -> Result<(Token, Timestamp), Failure> {
    let over = || Failure::from(Refused::Unauthorized { why: "this session is over".to_owned() });
    let row = tx.row(&CHECK, &args![digest(secret)])?.ok_or_else(over)?;
    let (token, until, at) = (token::read(&row)?, row.at(7)?, tx.at());
    let expired = until <= at || token.expires_at.is_some_and(|end| end <= at);
    if expired || token.revoked_at.is_some() { Err(over()) } else { Ok((token, until)) }
}

/// The session is over. Ending it twice changes nothing.
pub fn end(tx: &mut Tx, secret: &str) -> Result<(), Failure> {
    tx.hint(Hint::Tokens);
    tx.post(&END, args![digest(secret)])
}

fn digest(text: &str) -> Vec<u8> {
    blake3::hash(text.as_bytes()).as_bytes().to_vec()
}

pub(crate) const ALL: &[&Sql] = &[&OPEN, &CHECK, &END, &DELETE_OLD];

const OPEN: Sql = Sql::new("INSERT INTO sessions (hash, token_id, created_at, expires_at) VALUES ($1, $2, $3, $4)");
const CHECK: Sql = Sql::new(
    "SELECT t.id, t.org_id, t.name, t.scopes, t.created_at, t.expires_at, t.revoked_at, s.expires_at
       FROM sessions s JOIN tokens t ON t.id = s.token_id
      WHERE s.hash = $1",
);
const END: Sql = Sql::new("DELETE FROM sessions WHERE hash = $1");
const DELETE_OLD: Sql = Sql::new(
    "DELETE FROM sessions WHERE hash IN
        (SELECT hash FROM sessions WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)",
);
