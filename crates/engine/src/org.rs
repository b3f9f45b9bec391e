//! Orgs, their tokens (which requests are allowed) and their secrets.

use crate::Engine;
use model::{Failure, OrgId, Refused, Timestamp, TokenId, Trouble};
use store::idempotency::{self, Key, Looked};
pub use store::org::Org;
use store::secret::SecretName;
use store::token::{NewToken, Scope, Token};
use store::{Entry, EntryKind, Lane};

impl Engine {
    /// The org of an embedded control plane, made with its first credits when it is not there.
    pub async fn ensure_org(&self, name: &str) -> Result<OrgId, Failure> {
        let (name, first) = (name.to_owned(), self.context.config.money.first_topup);
        self.store
            .write(Lane::Normal, "org.ensure", move |tx| {
                if let Some(org) = store::org::by_name(tx, &name)? {
                    return Ok(org.id);
                }
                let id = match store::org::create(tx, &name) {
                    // A server that starts at the same moment was quicker.
                    Err(Failure::Refused(Refused::Conflict { .. })) => {
                        return store::org::by_name(tx, &name)?.map(|org| org.id).ok_or_else(|| gone(&name));
                    }
                    made => made?,
                };
                tx.ledger(Entry::new(id, EntryKind::Topup, first, "first").memo("the org was created"));
                Ok(id)
            })
            .await
    }

    pub async fn check_token(&self, text: &str) -> Result<Token, Failure> {
        let text = text.to_owned();
        self.store.read_inline("token.check", move |tx| store::token::check(tx, &text)).await
    }

    /// Its text is in this answer only and kept nowhere, so a repetition under the same key cannot be answered with it:
    /// it is refused and names the token that was made. Never makes a second one.
    pub async fn create_token(
        &self,
        org: OrgId,
        name: String,
        scope: Scope,
        expires_at: Option<Timestamp>,
        key: Option<Key>,
    ) -> Result<(Token, String), Failure> {
        let made = NewToken::generate();
        let shown = made.reveal().to_owned();
        let token = self
            .store
            .write(Lane::Normal, "token.create", move |tx| {
                if let Some(key) = &key
                    && let Looked::Replay { body, .. } = idempotency::lookup(tx, key)?
                {
                    let made = String::from_utf8_lossy(&body).into_owned();
                    let why = format!("{made} was made under this key, and a token's text is shown once");
                    return Err(Refused::Conflict { why }.into());
                }
                let id = store::token::create(tx, org, &name, scope, expires_at, &made)?;
                if let Some(key) = &key {
                    idempotency::record(tx, key, 201, id.to_string().as_bytes())?;
                }
                let created_at = tx.at();
                Ok(Token { id, org, name: name.clone(), scope, created_at, expires_at, revoked_at: None })
            })
            .await?;
        Ok((token, shown))
    }

    pub async fn tokens(&self, org: OrgId, after: TokenId, limit: i64) -> Result<Vec<Token>, Failure> {
        self.store.read("token.page", move |tx| store::token::page(tx, org, after, limit)).await
    }

    pub async fn revoke_token(&self, org: OrgId, id: TokenId) -> Result<(), Failure> {
        self.store.write(Lane::Normal, "token.revoke", move |tx| store::token::revoke(tx, org, id)).await
    }

    pub async fn put_secret(&self, org: OrgId, name: String, value: String) -> Result<(), Failure> {
        if !is_secret_name(&name) {
            return Err(
                Refused::invalid("name", format!("`{name}` is not a variable name: letters, digits and _")).into()
            );
        }
        if model::spec::is_reserved(&name) {
            return Err(Refused::invalid("name", format!("`{name}`: {}", model::spec::RESERVED)).into());
        }
        if value.is_empty() || value.len() > model::limits::MAX_SECRET_BYTES {
            return Err(Refused::invalid("value", "must have 1 to 65,536 bytes").into());
        }
        let sealed = store::secret::seal(&self.context.installation, org, &name, &value);
        self.store.write(Lane::Normal, "secret.put", move |tx| store::secret::put(tx, &sealed)).await
    }

    pub async fn secrets(&self, org: OrgId, after: String, limit: i64) -> Result<Vec<SecretName>, Failure> {
        self.store.read("secret.page", move |tx| store::secret::page(tx, org, &after, limit)).await
    }

    pub async fn delete_secret(&self, org: OrgId, name: String) -> Result<(), Failure> {
        self.store.write(Lane::Normal, "secret.delete", move |tx| store::secret::delete(tx, org, &name)).await
    }
}

/// A secret reaches its run as a variable of this name.
pub fn is_secret_name(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.len() <= 255
}

fn gone(org: &str) -> Failure {
    Trouble::internal(format!("the org {org} is there and cannot be found")).into()
}
