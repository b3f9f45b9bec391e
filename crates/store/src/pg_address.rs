//! The address of PostgreSQL, and TLS by `sslmode` and `sslrootcert` with libpq's spelling.
//! Never connects to a server whose certificate failed a check that `sslmode` demands.

use model::{Failure, Refused, Trouble, TroubleKind};
use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that does not answer for this long counts as gone.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Address, Failure> {
        let (url, mode, authorities) = split(url)?;
        let refused = |e: tokio_postgres::Error| {
            let why = std::error::Error::source(&e).map_or(e.to_string(), ToString::to_string);
            Refused::invalid("database", format!("not a PostgreSQL address: {why}"))
        };
        let mut config: Config = url.parse().map_err(refused)?;
        config.connect_timeout(CONNECT_TIMEOUT).tcp_user_timeout(TCP_USER_TIMEOUT).application_name("remuda");
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Chain | Mode::Full => SslMode::Require,
        });
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let checks = Checks::new(mode, authorities.as_deref(), provider.clone())?;
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = tls.expect("ring speaks TLS").dangerous().with_custom_certificate_verifier(Arc::new(checks));
        Ok(Address { config, tls: MakeRustlsConnect::new(tls.with_no_client_auth()) })
    }

    /// A connected session and the task that must be driven for it.
    pub(crate) async fn connect(
        &self,
    ) -> Result<(Client, tokio_postgres::Connection<impl Socket, impl Socket>), Failure> {
        let unreachable = |e: tokio_postgres::Error| {
            Failure::from(Trouble::new(TroubleKind::Database, format!("cannot reach PostgreSQL: {}", why(&e))))
        };
        self.config.connect(self.tls.clone()).await.map_err(unreachable)
    }
}

pub(crate) trait Socket: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {}
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> Socket for S {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    /// TLS where the server offers it. No certificate is checked: an attacker who could forge one could as well refuse TLS.
    Prefer,
    /// Signed by a trusted authority, for any host name: `require` and `verify-ca`.
    Chain,
    /// And for the name we asked for.
    Full,
}

/// The address without the parameters that the driver does not support: `sslmode` and `sslrootcert`.
fn split(url: &str) -> Result<(String, Mode, Option<String>), Failure> {
    let (mut mode, mut authorities) = (Mode::Prefer, None);
    let Some((base, query)) = url.split_once('?') else { return Ok((url.to_owned(), mode, authorities)) };
    let mut rest = Vec::new();
    for part in query.split('&') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match name {
            "sslmode" => mode = read_mode(&value)?,
            "sslrootcert" if value == "system" => authorities = None,
            "sslrootcert" => authorities = Some(value.into_owned()),
            _ => rest.push(part),
        }
    }
    let rest = rest.join("&");
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") };
    Ok((url, mode, authorities))
}

fn read_mode(value: &str) -> Result<Mode, Failure> {
    match value {
        "disable" => Ok(Mode::Disable),
        "prefer" => Ok(Mode::Prefer),
        "require" | "verify-ca" => Ok(Mode::Chain),
        "verify-full" => Ok(Mode::Full),
        other => {
            let why = format!("sslmode `{other}` is not disable, prefer, require, verify-ca or verify-full");
            Err(Refused::invalid("database", why).into())
        }
    }
}

/// How a server's certificate is judged.
#[derive(Debug)]
struct Checks {
    provider: Arc<CryptoProvider>,
    /// None: any certificate will do.
    chain: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
}

impl Checks {
    fn new(mode: Mode, authorities: Option<&str>, provider: Arc<CryptoProvider>) -> Result<Checks, Failure> {
        let chain = match mode {
            Mode::Disable | Mode::Prefer => None,
            Mode::Chain | Mode::Full => {
                let roots = Arc::new(authorities.map_or_else(of_the_system, of_file)?);
                let built = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                Some(built.map_err(|e| Trouble::internal(format!("certificates cannot be checked: {e}")))?)
            }
        };
        Ok(Checks { provider, chain, name: mode == Mode::Full })
    }
}

fn of_file(path: &str) -> Result<RootCertStore, Failure> {
    let refused = |why: String| Failure::from(Refused::invalid("database", format!("sslrootcert `{path}`: {why}")));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| refused(e.to_string()))? {
        let certificate = certificate.map_err(|e| refused(e.to_string()))?;
        roots.add(certificate).map_err(|e| refused(format!("not the certificate of an authority: {e}")))?;
    }
    if roots.is_empty() {
        return Err(refused("no certificate in it (it must be PEM)".to_owned()));
    }
    Ok(roots)
}

/// What this machine trusts; on one that has no list, Mozilla's.
fn of_the_system() -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    Ok(roots)
}

impl ServerCertVerifier for Checks {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The name is looked at last: this error means that all the rest is right.
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The innermost reason, with a fix if one is known.
fn why(error: &tokio_postgres::Error) -> String {
    let Some(source) = std::error::Error::source(error) else { return error.to_string() };
    let tls = source.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref()?.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "no authority we trust has signed its certificate: name yours with sslrootcert=PATH".to_owned()
        }
        Some(rustls::Error::InvalidCertificate(
            wrong @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        )) => format!("its certificate is for another name ({wrong}): use that name, or sslmode=verify-ca"),
        _ if source.to_string() == "server does not support TLS" => {
            "it does not speak TLS: turn `ssl` on there, or use sslmode=prefer".to_owned()
        }
        _ => source.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_know_is_taken_out_of_the_address() {
        let check = |url: &str, rest: &str, mode: Mode, authorities: Option<&str>| {
            assert_eq!(split(url), Ok((rest.to_owned(), mode, authorities.map(str::to_owned))), "{url}");
        };
        check("postgres://u@h/d", "postgres://u@h/d", Mode::Prefer, None);
        check("postgres://u@h/d?sslmode=verify-full", "postgres://u@h/d", Mode::Full, None);
        check(
            "postgres://h/d?sslrootcert=/a%20b/ca.pem&user=u&sslmode=require",
            "postgres://h/d?user=u",
            Mode::Chain,
            Some("/a b/ca.pem"),
        );
        check("postgres://h/d?sslmode=verify-ca&sslrootcert=system", "postgres://h/d", Mode::Chain, None);
        check("postgres://h/d?sslmode=disable&a=b", "postgres://h/d?a=b", Mode::Disable, None);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, said) in [
            ("postgres://h/d?sslmode=strict", "sslmode `strict` is not"),
            ("postgres://h/d?sslmode=require&sslrootcert=/nowhere/ca.pem", "sslrootcert `/nowhere/ca.pem`"),
            ("postgres://h/d?sslmode=require&sslrootcert=/dev/null", "no certificate in it"),
            ("postgres://h/d?sslcert=x", "sslcert"),
        ] {
            let refused = Address::parse(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(refused.to_string().contains(said), "{url}: {refused}");
        }
    }
}
