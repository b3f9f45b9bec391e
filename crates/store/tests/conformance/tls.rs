//! TLS to PostgreSQL: what each `sslmode` accepts from a real server with a certificate of its own, and what it refuses.

use crate::support::block_on;
use crate::support::postgres::{Certificate, Postgres};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use store::{Database, Options, Sql, Store, args};

const ENCRYPTED: Sql = Sql::new("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()");

/// An authority that signs for one name, and the file its own certificate is in.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, issuer.pem()).unwrap();
        Authority { issuer, file }
    }

    fn sign(&self, host: &str) -> Certificate {
        let (key, params) = (KeyPair::generate().unwrap(), CertificateParams::new(vec![host.to_owned()]).unwrap());
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Certificate { certificate_pem: signed.pem(), key_pem: key.serialize_pem() }
    }
}

/// Whether the session was encrypted, or why there is none.
fn open(url: &str, blobs: &Path) -> Result<bool, String> {
    let mut options = Options::new(Database::Postgres(url.to_owned()));
    options.blobs = Some(blobs.to_owned());
    let store = Store::open(&options).map_err(|failure| failure.to_string())?;
    let asked = block_on(store.read("ssl", |tx| tx.row(&ENCRYPTED, &args![])?.unwrap().int(0)));
    Ok(asked.map_err(|failure| failure.to_string())? == 1)
}

#[test]
fn a_certificate_is_checked_as_far_as_sslmode_says() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (Authority::new(folder.path(), "ours"), Authority::new(folder.path(), "other"));
    let postgres = Postgres::on_tcp(Some(&ours.sign("localhost")));
    let (encrypted, plain) = (Ok(true), Ok(false));
    let (stranger, misnamed) = (Err("no authority we trust"), Err("for another name"));
    for (host, mode, authority, expected) in [
        ("localhost", "verify-full", Some(&ours), encrypted),
        ("127.0.0.1", "verify-full", Some(&ours), misnamed),
        ("127.0.0.1", "verify-ca", Some(&ours), encrypted),
        ("127.0.0.1", "require", Some(&ours), encrypted),
        ("localhost", "verify-full", Some(&other), stranger),
        ("localhost", "verify-ca", Some(&other), stranger),
        ("localhost", "require", Some(&other), stranger),
        ("localhost", "verify-full", None, stranger),
        ("localhost", "require", None, stranger),
        ("localhost", "prefer", None, encrypted),
        ("localhost", "disable", None, plain),
    ] {
        let root = authority.map_or(String::new(), |authority| format!("&sslrootcert={}", authority.file.display()));
        let url = format!("{}?sslmode={mode}{root}", postgres.database_at(host));
        match (open(&url, folder.path()), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
            (Err(said), Err(expected)) => assert!(said.contains(expected), "{url}: {said}"),
            (found, _) => panic!("{url}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn a_server_without_tls_is_spoken_to_only_where_that_is_allowed() {
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::on_tcp(None));
    let at = |mode: &str| format!("{}?sslmode={mode}", postgres.database_at("127.0.0.1"));
    assert_eq!(open(&at("prefer"), folder.path()), Ok(false));
    for mode in ["require", "verify-full"] {
        let said = open(&at(mode), folder.path()).unwrap_err();
        assert!(said.contains("does not speak TLS"), "{said}");
    }
}
