//! The server's certificate and key: read from two PEM files, and read again when either changes. A pair that cannot be used is
//! logged, and connections go on with the pair before it.

use model::{Failure, Refused};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio_rustls::TlsAcceptor;

/// Where the certificate chain and its private key are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

pub(crate) struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

struct Current {
    /// The files as they were when they were last read, usable or not.
    read: [Option<Stamp>; 2],
    acceptor: TlsAcceptor,
}

/// A chain of certificates has a few kilobytes.
const MOST_BYTES: u64 = 1 << 20;

/// What changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Tls {
    pub(crate) fn open(files: TlsFiles) -> Result<Tls, Failure> {
        let read = stamps(&files);
        let acceptor = load(&files)?;
        Ok(Tls { files, current: Mutex::new(Current { read, acceptor }) })
    }

    /// For a new connection: the pair that is in the files now, or the last one that was good.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().expect("no panic while locked");
        let found = stamps(&self.files);
        if found != current.read {
            current.read = found;
            match load(&self.files) {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(cert = %self.files.cert.display(), "the TLS certificate was read again");
                }
                Err(failure) => tracing::error!(%failure, "the new TLS files cannot be used; the old pair stays"),
            }
        }
        current.acceptor.clone()
    }
}

fn stamps(files: &TlsFiles) -> [Option<Stamp>; 2] {
    [&files.cert, &files.key].map(|path| {
        let found = std::fs::metadata(path).ok()?;
        Some(Stamp {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    })
}

fn load(files: &TlsFiles) -> Result<TlsAcceptor, Failure> {
    let refused = |field: &str, path: &Path, why: String| {
        Failure::from(Refused::invalid(field, format!("`{}`: {why}", path.display())))
    };
    let bad_cert = |why: String| refused("tls_cert", &files.cert, why);
    let bad_key = |why: String| refused("tls_key", &files.key, why);
    // Anything else could keep the reader, and with it every new connection, waiting for ever.
    for (path, bad) in [(&files.cert, &bad_cert as &dyn Fn(String) -> Failure), (&files.key, &bad_key)] {
        let found = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?;
        if !found.is_file() || found.len() > MOST_BYTES {
            return Err(bad("not a plain file of at most 1 MiB".into()));
        }
    }
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|error| bad_cert(error.to_string()))?;
    if chain.is_empty() {
        return Err(bad_cert("no certificate in it (it must be PEM)".into()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad_key(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| bad_key(format!("does not belong to the certificate, or cannot be used: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn write(dir: &Path, cert: &str, key: &str) -> TlsFiles {
        let files = TlsFiles { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        std::fs::write(&files.cert, cert).unwrap();
        std::fs::write(&files.key, key).unwrap();
        files
    }

    /// Whether both acceptors present the same certificate.
    fn same(one: &TlsAcceptor, other: &TlsAcceptor) -> bool {
        Arc::ptr_eq(one.config(), other.config())
    }

    #[test]
    fn a_new_pair_is_taken_and_a_bad_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let ((cert, key), (newer_cert, newer_key)) = (pair(), pair());
        let tls = Tls::open(write(dir.path(), &cert, &key)).unwrap();
        let first = tls.acceptor();
        assert!(same(&first, &tls.acceptor()), "nothing changed, nothing is read");
        // Half of a pair, nonsense, nothing at all: the old one stays.
        for (cert, key) in [(&newer_cert, &key), (&"nonsense".to_owned(), &key), (&newer_cert, &String::new())] {
            write(dir.path(), cert, key);
            assert!(same(&first, &tls.acceptor()), "{cert} {key}");
        }
        std::fs::remove_file(dir.path().join("key.pem")).unwrap();
        assert!(same(&first, &tls.acceptor()));
        std::fs::create_dir(dir.path().join("key.pem")).unwrap();
        assert!(same(&first, &tls.acceptor()), "what is no file is not read");
        std::fs::remove_dir(dir.path().join("key.pem")).unwrap();
        write(dir.path(), &newer_cert, &newer_key);
        assert!(!same(&first, &tls.acceptor()), "a good pair is served at once");
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_refused_at_the_start_by_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let ((cert, key), (_, other_key)) = (pair(), pair());
        for (cert, key, field) in [
            ("", key.as_str(), "tls_cert"),
            ("nonsense", &key, "tls_cert"),
            (&cert, "", "tls_key"),
            (&cert, &other_key, "tls_key"),
        ] {
            let refused = Tls::open(write(dir.path(), cert, key)).err().expect("refused").to_string();
            assert!(refused.starts_with(field), "{refused}");
        }
    }
}
