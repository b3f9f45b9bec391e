//! Secrets: encrypted at rest under a key derived from the installation's, bound to their org and name. Not readable from the
//! database alone; listings have no values.

use crate::args;
use crate::installation::{Installation, random};
use crate::sql::Sql;
use crate::tx::Tx;
use model::{Failure, OrgId, Refused, Timestamp, Trouble};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// A value ready to be stored: nonce, ciphertext, tag. Made outside the transaction, which may run again.
#[derive(Debug, Clone)]
pub struct Sealed {
    org: OrgId,
    name: String,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretName {
    pub name: String,
    /// Counts how often its value was set.
    pub version: i64,
    pub updated_at: Timestamp,
}

pub fn seal(installation: &Installation, org: OrgId, name: &str, value: &str) -> Sealed {
    let nonce: [u8; NONCE_LEN] = random();
    let mut bytes = value.as_bytes().to_vec();
    let sealing =
        key(installation).seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), binding(org, name), &mut bytes);
    sealing.expect("a secret is far below the cipher's limit");
    Sealed { org, name: name.to_owned(), bytes: [nonce.as_slice(), &bytes].concat() }
}

/// Sets or replaces it.
pub fn put(tx: &mut Tx, secret: &Sealed) -> Result<(), Failure> {
    let at = tx.at();
    tx.post(&PUT, args![secret.org, &secret.name, secret.bytes.as_slice(), at])
}

/// The value as it was set.
pub fn open(tx: &mut Tx, installation: &Installation, org: OrgId, name: &str) -> Result<String, Failure> {
    let row = tx.row(&GET, &args![org, name])?.ok_or_else(|| Refused::not_found("secret", name))?;
    unseal(installation, org, name, row.blob(0)?).ok_or_else(|| {
        Trouble::internal(format!("the secret {name} cannot be read with this installation's key: set it again")).into()
    })
}

pub fn exists(tx: &mut Tx, org: OrgId, name: &str) -> Result<bool, Failure> {
    Ok(tx.row(&GET, &args![org, name])?.is_some())
}

/// Names of an org's secrets, in order, after `after`.
pub fn page(tx: &mut Tx, org: OrgId, after: &str, limit: i64) -> Result<Vec<SecretName>, Failure> {
    let rows = tx.rows(&PAGE, &args![org, after, limit])?;
    rows.iter().map(|row| Ok(SecretName { name: row.text(0)?, version: row.int(1)?, updated_at: row.at(2)? })).collect()
}

pub fn delete(tx: &mut Tx, org: OrgId, name: &str) -> Result<(), Failure> {
    let deleted = tx.exec(&DELETE, &args![org, name])?;
    if deleted == 0 { Err(Refused::not_found("secret", name).into()) } else { Ok(()) }
}

fn unseal(installation: &Installation, org: OrgId, name: &str, mut bytes: Vec<u8>) -> Option<String> {
    let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let value = key(installation).open_in_place(nonce, binding(org, name), sealed).ok()?;
    String::from_utf8(value.to_vec()).ok()
}

fn key(installation: &Installation) -> LessSafeKey {
    let key = UnboundKey::new(&CHACHA20_POLY1305, &installation.derived("remuda 2026 secrets at rest"));
    LessSafeKey::new(key.expect("32 bytes are a key"))
}

/// A row moved to another org or name does not open.
fn binding(org: OrgId, name: &str) -> Aad<Vec<u8>> {
    Aad::from([&org.0.to_le_bytes(), name.as_bytes()].concat())
}

pub(crate) const ALL: &[&Sql] = &[&PUT, &GET, &PAGE, &DELETE];

const PUT: Sql = Sql::new(
    "INSERT INTO secrets (org_id, name, sealed, version, updated_at) VALUES ($1, $2, $3, 1, $4)
         ON CONFLICT (org_id, name) DO UPDATE
        SET sealed = excluded.sealed, version = secrets.version + 1, updated_at = excluded.updated_at",
);
const GET: Sql = Sql::new("SELECT sealed FROM secrets WHERE org_id = $1 AND name = $2");
const PAGE: Sql =
    Sql::new("SELECT name, version, updated_at FROM secrets WHERE org_id = $1 AND name > $2 ORDER BY name LIMIT $3");
const DELETE: Sql = Sql::new("DELETE FROM secrets WHERE org_id = $1 AND name = $2");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_opens_only_where_it_was_sealed() {
        let ours = Installation::new("abcd1234", [7; 32]);
        let sealed = seal(&ours, OrgId(1), "TOKEN", "hunter2").bytes;
        assert!(!sealed.windows(7).any(|bytes| bytes == b"hunter2"));
        assert_eq!(unseal(&ours, OrgId(1), "TOKEN", sealed.clone()).as_deref(), Some("hunter2"));
        assert_eq!(unseal(&ours, OrgId(2), "TOKEN", sealed.clone()), None);
        assert_eq!(unseal(&ours, OrgId(1), "OTHER", sealed.clone()), None);
        assert_eq!(unseal(&Installation::new("abcd1234", [8; 32]), OrgId(1), "TOKEN", sealed), None);
        assert_eq!(unseal(&ours, OrgId(1), "TOKEN", vec![1, 2]), None);
    }
}
