//! A remote in a bucket of S3, or of a store that speaks its protocol. Refs change by conditional puts (`If-None-Match`, `If-Match`); a
//! store that ignores the conditions is refused, because two writers would overwrite one another there.

use super::bucket::{Bucket, Listed};
use super::{RemoteError, unique};
use futures_util::TryStreamExt as _;
use model::{Trouble, TroubleKind};
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::client::{HttpClient, HttpConnector};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt as _,
    PutMode, PutOptions, PutPayload, RetryConfig, UpdateVersion,
};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Of one request: a segment has 64 MiB.
const REQUEST_WITHIN: Duration = Duration::from_secs(120);
const RETRIES: usize = 4;
/// With all its retries.
const RETRY_WITHIN: Duration = Duration::from_secs(180);
/// More is sent in parts, of which there are at most 10,000.
const PART_BYTES: u64 = 16 << 20;
const MAX_PARTS: u64 = 9_000;
const SHOWN_BYTES: usize = 500;

pub struct S3 {
    store: Arc<AmazonS3>,
    /// Of all keys; empty, or ends in a slash.
    prefix: String,
    uri: String,
    /// Requests are made by threads of its own, so that a caller may block anywhere. None only while it is dropped.
    runtime: Option<Runtime>,
}

impl S3 {
    /// `s3://BUCKET/PREFIX`. Credentials, region and endpoint come from the usual variables (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
    /// `AWS_ENDPOINT_URL`, …) or from the machine's role.
    pub fn new(uri: &str) -> Result<S3, RemoteError> {
        S3::build(uri, AmazonS3Builder::from_env())
    }

    /// With these keys, at this endpoint.
    pub fn with(uri: &str, endpoint: &str, key: &str, secret: &str) -> Result<S3, RemoteError> {
        let builder = AmazonS3Builder::new().with_endpoint(endpoint).with_region("us-east-1");
        S3::build(uri, builder.with_access_key_id(key).with_secret_access_key(secret))
    }

    fn build(uri: &str, builder: AmazonS3Builder) -> Result<S3, RemoteError> {
        let bad = |why| RemoteError::Uri { uri: uri.to_owned(), why };
        let rest = uri.strip_prefix("s3://").ok_or_else(|| bad("write s3://BUCKET/PREFIX"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_bucket = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if bucket.is_empty() || !bucket.chars().all(is_bucket) {
            return Err(bad("a bucket's name has a-z, 0-9, - and ."));
        }
        let prefix = prefix.trim_end_matches('/');
        if Path::parse(prefix).is_err() || prefix.contains(['?', '#']) || prefix.split('/').any(|part| part == "..") {
            return Err(bad("the prefix has an empty part, a dot as a part, or a query"));
        }
        let retry =
            RetryConfig { backoff: BackoffConfig::default(), max_retries: RETRIES, retry_timeout: RETRY_WITHIN };
        let store = builder
            .with_bucket_name(bucket)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            // The owner of the process names the endpoint; a test's has no TLS.
            .with_allow_http(true)
            .with_retry(retry)
            .with_http_connector(OurClient)
            .build()
            .map_err(|error| Trouble::new(TroubleKind::InvalidSpec, shown(uri, &error)))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Trouble::internal(error.to_string()))?;
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(S3 { store: Arc::new(store), prefix, uri: uri.to_owned(), runtime: Some(runtime) })
    }

    /// Whether the store obeys the conditions of puts. It is asked with a key of its own.
    pub fn probe(&self) -> Result<(), RemoteError> {
        let key = format!("meta/probe-{}", unique()?);
        let (probed, deleted) = (self.probe_with(&key), self.delete(&key));
        probed.and(deleted.map_err(RemoteError::from))
    }

    fn probe_with(&self, key: &str) -> Result<(), RemoteError> {
        let ignores = |condition| RemoteError::Unconditional { condition };
        let first = self.put(key, b"1", PutMode::Create).map_err(|error| self.trouble(&error))?;
        match self.put(key, b"2", PutMode::Create) {
            Err(error) if is_refusal(&error) => {}
            Ok(_) => return Err(ignores("If-None-Match")),
            Err(error) => return Err(self.trouble(&error).into()),
        }
        let wrong = UpdateVersion { e_tag: Some("\"00000000000000000000000000000000\"".to_owned()), version: None };
        match self.put(key, b"3", PutMode::Update(wrong)) {
            Err(error) if is_refusal(&error) => {}
            Ok(_) => return Err(ignores("If-Match")),
            Err(error) => return Err(self.trouble(&error).into()),
        }
        self.put(key, b"4", PutMode::Update(first)).map(drop).map_err(|error| self.trouble(&error).into())
    }

    fn path(&self, key: &str) -> Path {
        // Keys are made by us; a path takes them as they are.
        Path::parse(format!("{}{key}", self.prefix)).expect("a key is a path")
    }

    /// Runs a request on a thread of ours and waits for it.
    fn wait<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("it lives as long as we do");
        let (done, wait) = std::sync::mpsc::sync_channel(1);
        runtime.spawn(async move { done.send(request.await).ok() });
        wait.recv().expect("a request ends: it has a time limit")
    }

    fn put(&self, key: &str, bytes: &[u8], mode: PutMode) -> Result<UpdateVersion, Error> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let payload = PutPayload::from(bytes.to_vec());
        let options = PutOptions { mode, ..PutOptions::default() };
        self.wait(async move { store.put_opts(&path, payload, options).await }).map(UpdateVersion::from)
    }

    /// The bytes of a key and its version.
    fn get(&self, key: &str, most: u64) -> Result<Option<(Vec<u8>, UpdateVersion)>, Trouble> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let got = self.wait(async move {
            let found = store.get(&path).await?;
            let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            let size = found.meta.size;
            if size > most {
                return Ok((None, version));
            }
            Ok((Some(found.bytes().await?.to_vec()), version))
        });
        match got {
            Ok((Some(bytes), version)) => Ok(Some((bytes, version))),
            Ok((None, _)) => {
                let what = format!("{}: {key} has more than {most} bytes", self.uri);
                Err(Trouble::new(TroubleKind::InvalidSpec, what))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.trouble(&error)),
        }
    }

    /// Whether a key has these bytes, after a put whose outcome is not known.
    fn has(&self, key: &str, bytes: &[u8]) -> Result<bool, Trouble> {
        Ok(self.get(key, bytes.len() as u64 + 1)?.is_some_and(|(is, _)| is == bytes))
    }

    fn trouble(&self, error: &Error) -> Trouble {
        let kind = match error {
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => TroubleKind::Auth,
            Error::NotFound { .. } => TroubleKind::NotFound,
            Error::Precondition { .. } | Error::AlreadyExists { .. } => TroubleKind::Internal,
            _ => TroubleKind::Network,
        };
        Trouble::new(kind, shown(&self.uri, error)).perhaps()
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        // Without waiting: a runtime may not be waited for in another one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The condition of a put was not met. For `If-Match` on a key that is gone, some stores say 404.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Precondition { .. } | Error::AlreadyExists { .. } | Error::NotFound { .. })
}

fn shown(uri: &str, error: &Error) -> String {
    let text = error.to_string();
    let end = (0..=SHOWN_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{uri}: {}", &text[..end])
}

/// TLS is rustls on ring here as everywhere.
#[derive(Debug)]
struct OurClient;

impl HttpConnector for OurClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = reqwest::Client::builder()
            .http1_only()
            .connect_timeout(CONNECT_WITHIN)
            .timeout(REQUEST_WITHIN)
            .redirect(reqwest::redirect::Policy::none())
            .tls_backend_preconfigured(crate::tool::connector::system_tls())
            .build();
        let client = client.map_err(|error| Error::Generic { store: "S3", source: Box::new(error) })?;
        Ok(HttpClient::new(client))
    }
}

impl Bucket for S3 {
    fn whole(&self, key: &str, most: u64) -> Result<Option<Vec<u8>>, Trouble> {
        Ok(self.get(key, most)?.map(|(bytes, _)| bytes))
    }

    fn range(&self, key: &str, at: u64, bytes: u64) -> Result<Option<Vec<u8>>, Trouble> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let got = self.wait(async move {
            let range = Some(GetRange::Bounded(at..at.saturating_add(bytes.max(1))));
            let options = GetOptions { range, ..GetOptions::default() };
            let got = async { store.get_opts(&path, options).await?.bytes().await }.await;
            match got {
                Ok(part) => Ok(part.slice(..part.len().min(bytes as usize)).to_vec()),
                Err(error @ Error::NotFound { .. }) => Err(error),
                // A range behind the end is an error there; here it is no bytes.
                Err(error) => match store.head(&path).await {
                    Ok(meta) if meta.size <= at => Ok(Vec::new()),
                    _ => Err(error),
                },
            }
        });
        match got {
            Ok(part) => Ok(Some(part)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.trouble(&error)),
        }
    }

    fn create(&self, key: &str, bytes: &[u8]) -> Result<(), Trouble> {
        match self.put(key, bytes, PutMode::Create) {
            Ok(_) => Ok(()),
            // A request that was repeated finds what it wrote the first time.
            Err(error) => match self.has(key, bytes) {
                Ok(true) => Ok(()),
                _ => Err(self.trouble(&error)),
            },
        }
    }

    fn create_from(&self, key: &str, from: &mut dyn io::Read, bytes: u64) -> Result<(), Trouble> {
        let read = |from: &mut dyn io::Read, most: u64| {
            let mut part = Vec::new();
            let read = io::Read::read_to_end(&mut io::Read::take(from, most), &mut part);
            read.map(|_| part).map_err(|error| Trouble::internal(format!("{key}: {error}")))
        };
        if bytes <= PART_BYTES {
            return self.create(key, &read(from, bytes + 1)?);
        }
        let part_bytes = PART_BYTES.max(bytes / MAX_PARTS + 1);
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        let upload = self.wait(async move { store.put_multipart(&path).await });
        let mut upload: Box<dyn MultipartUpload> = upload.map_err(|error| self.trouble(&error))?;
        loop {
            let part = read(from, part_bytes);
            let part = match part {
                Ok(part) if part.is_empty() => break,
                Ok(part) => part,
                Err(trouble) => {
                    self.wait(async move { upload.abort().await.ok() });
                    return Err(trouble);
                }
            };
            let sent = upload.put_part(PutPayload::from(part));
            self.wait(sent).map_err(|error| self.trouble(&error))?;
        }
        self.wait(async move { upload.complete().await }).map(drop).map_err(|error| self.trouble(&error))
    }

    fn swap(&self, key: &str, from: Option<&[u8]>, to: &[u8]) -> Result<bool, Trouble> {
        let most = from.map_or(0, <[u8]>::len).max(to.len()).max(64 << 10) as u64;
        let is = self.get(key, most)?;
        if is.as_ref().map(|(bytes, _)| bytes.as_slice()) != from {
            return Ok(false);
        }
        let mode = is.map_or(PutMode::Create, |(_, version)| PutMode::Update(version));
        match self.put(key, to, mode) {
            Ok(_) => Ok(true),
            // 409, 412 or a time-out: the first try of a request that was repeated may have had its effect.
            Err(error) => match self.has(key, to)? {
                true => Ok(true),
                false if is_refusal(&error) => Ok(false),
                false => Err(self.trouble(&error)),
            },
        }
    }

    fn remove(&self, _key: &str, _from: &[u8]) -> Result<bool, Trouble> {
        Ok(false)
    }

    fn list(&self, folder: &str) -> Result<Vec<Listed>, Trouble> {
        let (store, path) = (Arc::clone(&self.store), self.path(folder));
        let found = self.wait(async move { store.list(Some(&path)).try_collect::<Vec<_>>().await });
        let mut listed = Vec::new();
        for meta in found.map_err(|error| self.trouble(&error))? {
            let key = meta.location.as_ref().strip_prefix(&self.prefix).unwrap_or_default().to_owned();
            listed.push(Listed { key, modified_ms: meta.last_modified.timestamp_millis() });
        }
        listed.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(listed)
    }

    fn delete(&self, key: &str) -> Result<(), Trouble> {
        let (store, path) = (Arc::clone(&self.store), self.path(key));
        match self.wait(async move { store.delete(&path).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.trouble(&error)),
        }
    }
}
