//! API tokens: `rmd_…`, shown once, stored as a hash, one org each, with scopes. Never stores or logs the token itself.

use crate::installation::random;
use crate::sql::Sql;
use crate::tx::Tx;
use crate::value::Row;
use crate::{Hint, args};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use model::{Failure, OrgId, Refused, Timestamp, TokenId, Trouble};

const PREFIX: &str = "rmd_";
/// 256 random bits: a fast hash is enough, because they cannot be guessed.
const SECRET_BYTES: usize = 32;

/// What a token may do. Each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Read,
    /// Also answers what people are asked: resolves tickets, approves and rejects.
    Approve,
    Write,
    Admin,
}

/// A token as its owner gets it, once. Made outside the transaction, which may run again.
#[derive(Clone)]
pub struct NewToken {
    secret: String,
    hash: Vec<u8>,
}

impl NewToken {
    pub fn generate() -> NewToken {
        let secret = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>()));
        NewToken { hash: digest(&secret), secret }
    }
    /// For the owner's eyes.
    pub fn reveal(&self) -> &str {
        &self.secret
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub id: TokenId,
    pub org: OrgId,
    pub name: String,
    pub scope: Scope,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

pub fn create(
    tx: &mut Tx,
    org: OrgId,
    name: &str,
    scope: Scope,
    expires_at: Option<Timestamp>,
    token: &NewToken,
) -> Result<TokenId, Failure> {
    let (id, at) = (TokenId(tx.next_id()), tx.at());
    tx.post(&CREATE, args![id, org, name, token.hash.as_slice(), scope.as_str(), at, expires_at])?;
    Ok(id)
}

/// The token with this text, if it is valid now.
pub fn check(tx: &mut Tx, text: &str) -> Result<Token, Failure> {
    let unauthorized = |why: &str| Failure::from(Refused::Unauthorized { why: why.to_owned() });
    if !text.starts_with(PREFIX) {
        return Err(unauthorized("a token begins with rmd_"));
    }
    let row = tx.row(&BY_HASH, &args![digest(text)])?.ok_or_else(|| unauthorized("nobody has this token"))?;
    let (token, at) = (read(&row)?, tx.at());
    if token.revoked_at.is_some() {
        return Err(unauthorized("this token was revoked"));
    }
    if token.expires_at.is_some_and(|expires_at| expires_at <= at) {
        return Err(unauthorized("this token has expired"));
    }
    Ok(token)
}

/// The token of this id, if it is valid now.
pub fn find_good(tx: &mut Tx, id: TokenId) -> Result<Option<Token>, Failure> {
    let (row, at) = (tx.row(&BY_ID, &args![id])?, tx.at());
    let found = row.as_ref().map(read).transpose()?;
    Ok(found.filter(|token| token.revoked_at.is_none() && token.expires_at.is_none_or(|end| end > at)))
}

/// An org's tokens, by id, after `after`.
pub fn page(tx: &mut Tx, org: OrgId, after: TokenId, limit: i64) -> Result<Vec<Token>, Failure> {
    tx.rows(&PAGE, &args![org, after, limit])?.iter().map(read).collect()
}

/// The token is invalid from now on. Revoking twice changes nothing.
pub fn revoke(tx: &mut Tx, org: OrgId, id: TokenId) -> Result<(), Failure> {
    let at = tx.at();
    let found = tx.exec(&REVOKE, &args![org, id, at])?;
    tx.hint(Hint::Tokens);
    if found == 0 { Err(Refused::not_found("token", id).into()) } else { Ok(()) }
}

impl Token {
    /// As text, for records of who did something.
    pub fn described(&self) -> String {
        format!("the token `{}` ({})", self.name, self.id)
    }
    pub fn must(&self, scope: Scope, what: &str) -> Result<(), Refused> {
        if self.scope >= scope {
            return Ok(());
        }
        Err(Refused::Forbidden { what: what.to_owned(), scope: scope.as_str() })
    }
}

impl Scope {
    pub const ALL: [Scope; 4] = [Scope::Read, Scope::Approve, Scope::Write, Scope::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Approve => "approve",
            Scope::Write => "write",
            Scope::Admin => "admin",
        }
    }
    pub fn parse(text: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

fn digest(text: &str) -> Vec<u8> {
    blake3::hash(text.as_bytes()).as_bytes().to_vec()
}

pub(crate) fn read(row: &Row) -> Result<Token, Failure> {
    Ok(Token {
        id: TokenId(row.int(0)?),
        org: OrgId(row.int(1)?),
        name: row.text(2)?,
        scope: Scope::parse(row.str(3)?).ok_or_else(|| Trouble::internal("a token of an unknown scope"))?,
        created_at: row.at(4)?,
        expires_at: row.opt_at(5)?,
        revoked_at: row.opt_at(6)?,
    })
}

pub(crate) const ALL: &[&Sql] = &[&CREATE, &BY_HASH, &BY_ID, &PAGE, &REVOKE];

const CREATE: Sql = Sql::new(
    "INSERT INTO tokens (id, org_id, name, hash, scopes, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)",
);
const BY_HASH: Sql =
    Sql::new("SELECT id, org_id, name, scopes, created_at, expires_at, revoked_at FROM tokens WHERE hash = $1");
const BY_ID: Sql =
    Sql::new("SELECT id, org_id, name, scopes, created_at, expires_at, revoked_at FROM tokens WHERE id = $1");
const PAGE: Sql = Sql::new(
    "SELECT id, org_id, name, scopes, created_at, expires_at, revoked_at FROM tokens
      WHERE org_id = $1 AND id > $2
      ORDER BY id LIMIT $3",
);
const REVOKE: Sql = Sql::new("UPDATE tokens SET revoked_at = coalesce(revoked_at, $3) WHERE org_id = $1 AND id = $2");
