//! Tests of the server over real connections: TLS, what a client without a token is told, and which connections are closed.

use crate::hostile::{World, is_problem};
use crate::listen::{self, Bounds};
use crate::routes::router;
use crate::tls::{Tls, TlsFiles};
use axum::http::StatusCode;
use engine::store::token::Scope;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const PATIENT: Bounds =
    Bounds { connections: 4, headers_within: Duration::from_secs(60), writes_within: Duration::from_secs(60) };

/// A test that waits for the server to act ends with a reason when it does not. Long, for a machine that is busy.
async fn soon<T>(what: &str, acted: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), acted).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: nothing happened for 30 s"),
    }
}

async fn serve(world: &World, tls: Option<Tls>, bounds: Bounds) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listen::tcp(listener, tls, router(world.state.clone()), bounds, world.state.closing.subscribe()));
    address
}

/// The whole answer to one request, after which the connection is closed.
async fn answer(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    path: &str,
    token: &str,
) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: bearer {token}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn half_sent_headers_and_silence_are_cut_off() {
    let world = World::new(false).await;
    let quick = Bounds { headers_within: Duration::from_millis(50), ..PATIENT };
    let address = serve(&world, None, quick).await;
    for sent in ["GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: ", "GET /hea", ""] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        // Ends by itself: nothing more is ever sent.
        soon(sent, stream.read_to_end(&mut rest)).await.ok();
    }
    // After an answer too.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut all = String::new();
    soon("silence after an answer", stream.read_to_string(&mut all)).await.ok();
    assert!(all.starts_with("HTTP/1.1 200"), "{all}");
}

/// As docs/server.md says: hyper answers these itself, and has no hook for the body.
#[tokio::test]
async fn what_is_no_request_gets_a_plain_answer_and_is_cut_off() {
    let world = World::new(false).await;
    let address = serve(&world, None, PATIENT).await;
    let head = "GET /healthz HTTP/1.1\r\nhost: x\r\n";
    for (sent, status) in [
        ("NONSENSE\r\n\r\n".to_owned(), "400 Bad Request"),
        (format!("{head}bad header\r\n\r\n"), "400 Bad Request"),
        (format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(65_535)), "414 URI Too Long"),
        (format!("{head}x: {}\r\n\r\n", "x".repeat(256 << 10)), "431 Request Header Fields Too Large"),
        (format!("{head}{}\r\n", "x: y\r\n".repeat(100)), "431 Request Header Fields Too Large"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.ok();
        let mut got = Vec::new();
        // A reset after the answer is fine: part of the request was not read.
        stream.read_to_end(&mut got).await.ok();
        let got = String::from_utf8(got).unwrap();
        assert!(got.starts_with(&format!("HTTP/1.1 {status}\r\n")) && got.ends_with("\r\n\r\n"), "{got}");
    }
}

#[tokio::test]
async fn a_stream_stays_open_however_long_it_says_nothing() {
    let world = World::new(false).await;
    let run = world.submit(&world.admin, json!({ "commands": ["true"] })).await.body["id"].clone();
    let address = serve(&world, None, Bounds { headers_within: Duration::from_millis(20), ..PATIENT }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let path = format!("/api/v1/runs/{}/events", run.as_str().unwrap());
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\nauthorization: bearer {}\r\n\r\n",
        world.admin
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut piece = [0; 4096];
    // To its end, or until nothing has come for ten times as long as headers may take.
    loop {
        match tokio::time::timeout(Duration::from_millis(200), stream.read(&mut piece)).await {
            Ok(Ok(read)) => assert!(read > 0, "it was cut off"),
            Ok(Err(error)) => panic!("{error}"),
            Err(_) => break,
        }
    }
}

#[tokio::test]
async fn a_full_house_serves_the_next_when_one_has_left() {
    let world = World::new(false).await;
    let address = serve(&world, None, Bounds { connections: 2, ..PATIENT }).await;
    let (first, _second) = (TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap());
    let mut third = TcpStream::connect(address).await.unwrap();
    third.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    let mut reading = std::pin::pin!(third.read_to_string(&mut text));
    let waits = tokio::time::timeout(Duration::from_millis(50), reading.as_mut()).await;
    assert!(waits.is_err(), "there is no room for it");
    drop(first);
    soon("the third connection", reading).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn who_takes_nothing_of_an_answer_is_cut_off() {
    let world = World::new(false).await;
    let address = serve(&world, None, Bounds { writes_within: Duration::from_millis(50), ..PATIENT }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    // More answers than the kernel's buffers hold, none of which is read.
    let question = b"GET /api/v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    let written = async {
        loop {
            stream.write_all(question).await?;
        }
    };
    let ended: std::io::Result<()> = soon("answers that are not read", written).await;
    assert!(ended.is_err(), "the connection is reset");
}

struct Pair {
    cert: rcgen::Certificate,
    key: String,
}

fn pair() -> Pair {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    Pair { key: made.signing_key.serialize_pem(), cert: made.cert }
}

fn write(files: &TlsFiles, pair: &Pair) {
    std::fs::write(&files.cert, pair.cert.pem()).unwrap();
    std::fs::write(&files.key, &pair.key).unwrap();
}

/// An answer over TLS from a client that trusts this certificate alone.
async fn over_tls(address: SocketAddr, trusted: &Pair, token: &str) -> Result<String, std::io::Error> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let answered = async {
        let stream = TcpStream::connect(address).await?;
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(answer(stream, "/healthz", token).await)
    };
    soon("a request over TLS", answered).await
}

/// What a worker without a server of its own does for a runner that has no way to the servers.
#[tokio::test]
async fn a_worker_carries_a_link_to_a_server_over_tls_and_without() {
    let world = World::new(false).await;
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    let (own, another) = (pair(), pair());
    write(&files, &own);
    let secure = serve(&world, Some(Tls::open(files).unwrap()), PATIENT).await.port();
    let plain = serve(&world, None, PATIENT).await;
    let dialled = async |url: &str, trusted: Option<&Pair>| {
        let trusted = trusted.map(|pair| pair.cert.pem());
        crate::relay::answered_there(url, trusted.as_deref())(model::InstanceId(1)).await
    };
    let url = format!("https://localhost:{secure}/");
    for (url, trusted) in [(&*url, Some(&own)), (&*format!("http://{plain}"), None)] {
        let said = soon("an answer", answer(dialled(url, trusted).await.unwrap(), "/healthz", &world.admin)).await;
        assert!(said.starts_with("HTTP/1.1 200") && said.contains("testtest"), "{url}: {said}");
    }
    assert!(dialled(&url, Some(&another)).await.is_err(), "a server that is not trusted is not talked to");
    let refused = dialled("unix:/run/repl.sock", None).await.err().unwrap().to_string();
    assert!(refused.contains("set public_url"), "{refused}");
}

#[tokio::test]
async fn a_new_certificate_is_served_to_the_next_connection() {
    let world = World::new(false).await;
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles { cert: dir.path().join("cert.pem"), key: dir.path().join("key.pem") };
    let (first, second) = (pair(), pair());
    write(&files, &first);
    let address = serve(&world, Some(Tls::open(files.clone()).unwrap()), PATIENT).await;
    let said = over_tls(address, &first, &world.admin).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("testtest"), "{said}");
    assert!(over_tls(address, &second, &world.admin).await.is_err(), "nobody has seen that one yet");
    std::fs::write(&files.cert, "nonsense").unwrap();
    over_tls(address, &first, &world.admin).await.expect("a bad file changes nothing");
    write(&files, &second);
    over_tls(address, &second, &world.admin).await.expect("the new one is served");
    assert!(over_tls(address, &first, &world.admin).await.is_err(), "the old one no longer is");
    // A client that does not speak TLS gets no answer, and does not delay others.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    soon("a request without TLS", plain.read_to_end(&mut said)).await.ok();
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
}

#[tokio::test]
async fn strangers_hear_that_it_is_healthy_and_nothing_else() {
    let (world, local) = (World::new(false).await, World::new(true).await);
    for (path, word) in [("/healthz", "ok"), ("/readyz", "ready")] {
        for token in [None, Some("rmd_wrong")] {
            let got = world.ask("get", path, token, &[], "").await;
            assert_eq!((got.status, &got.body), (StatusCode::OK, &json!({ "status": word })));
        }
        let reader = world.token(world.org, Scope::Read).await;
        for got in [world.ask("get", path, Some(&reader), &[], "").await, local.ask("get", path, None, &[], "").await] {
            for field in ["version", "control_plane_id", "pid", "started_at"] {
                assert!(!got.body[field].is_null(), "{path} {field}: {}", got.body);
            }
        }
    }
}

#[tokio::test]
async fn bearer_is_read_in_any_case_and_a_refusal_names_the_scheme() {
    let world = World::new(true).await;
    let ask = async |header: &str| world.ask("get", "/api/v1/runs", None, &[("authorization", header)], "").await;
    for scheme in ["Bearer", "bearer", "BEARER", "bEaReR"] {
        assert_eq!(ask(&format!("{scheme} {}", world.admin)).await.status, StatusCode::OK, "{scheme}");
    }
    for header in ["", "Bearer", "Bearer ", "Basic x", &world.admin] {
        let got = ask(header).await;
        assert_eq!(got.status, StatusCode::UNAUTHORIZED, "{header}");
        assert!(is_problem(&got) && got.headers["www-authenticate"].to_str().unwrap().starts_with("Bearer "));
    }
}

#[tokio::test]
async fn an_address_that_guesses_is_slowed_down_and_good_tokens_are_not() {
    let world = World::new(false).await;
    let ask = async |path: &str, token: Option<&str>| world.ask("get", path, token, &[], "").await;
    assert_eq!(ask("/api/v1/credits", Some(&world.admin)).await.status, StatusCode::OK);
    let mut limited = None;
    for n in 0..1000 {
        let got = ask("/api/v1/credits", Some(&format!("rmd_guess{n}"))).await;
        if got.status == StatusCode::TOO_MANY_REQUESTS {
            limited = Some(got);
            break;
        }
        assert_eq!(got.status, StatusCode::UNAUTHORIZED);
    }
    let limited = limited.expect("at some point it is too much");
    assert!(is_problem(&limited) && limited.headers.contains_key("retry-after"));
    assert_eq!(ask("/api/v1/credits", Some(&world.admin)).await.status, StatusCode::OK, "it was good a moment ago");
    // Routes without a token are counted too, and their answers say so.
    let got = ask("/healthz", None).await;
    assert!(got.headers.contains_key("ratelimit-limit"), "{:?}", got.headers);
    let runner = world.ask("post", "/runner/v1/heartbeat", Some("repl-x-1-1.bad"), &[], "{}").await;
    assert!(matches!(runner.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::UNAUTHORIZED), "{}", runner.status);
}

/// Every route that answers without a token, whatever listens: a thousand requests from one address meet the limit.
#[tokio::test]
async fn every_way_in_is_limited_for_strangers() {
    for (method, path) in [
        ("get", "/runner/v1/nothing"),
        ("get", "/runner/v1/register"),
        ("post", "/runner/v1/heartbeat"),
        ("get", "/api/v1/nothing"),
        ("get", "/healthz"),
        ("get", "/nothing"),
        ("post", "/control/v1/token"),
        ("get", "/metrics"),
        ("get", "/login"),
        ("get", "/static/nothing"),
        ("post", "/login"),
    ] {
        let world = World::new(false).await;
        let mut last = StatusCode::OK;
        for _ in 0..1_000 {
            last = world.ask(method, path, None, &[], "").await.status;
            if last == StatusCode::TOO_MANY_REQUESTS {
                break;
            }
        }
        assert_eq!(last, StatusCode::TOO_MANY_REQUESTS, "{method} {path}");
    }
}

#[tokio::test]
async fn a_download_is_saved_and_never_shown() {
    let world = World::new(true).await;
    let page = "<script>alert(1)</script>";
    let hash = blake3::hash(page.as_bytes()).to_hex();
    let put = world.ask("put", &format!("/api/v1/blobs/{hash}"), Some(&world.admin), &[], page).await;
    assert_eq!(put.status, StatusCode::NO_CONTENT, "{}", put.body);
    let got = world.ask("get", &format!("/api/v1/blobs/{hash}"), Some(&world.admin), &[], "").await;
    assert_eq!((got.status, got.body), (StatusCode::OK, Value::Null));
    assert_eq!(got.headers["content-type"], "application/octet-stream");
    assert_eq!(got.headers["x-content-type-options"], "nosniff");
    assert_eq!(got.headers["content-disposition"], format!("attachment; filename*=UTF-8''{hash}"));
    // An artifact under its own name, and the records of calls.
    let (run, artifact) = world.artifact("out/page.html", page).await;
    let tree = calls::record::Tree::default();
    let commit = calls::record::Commit { tree: tree.id(), parents: Vec::new(), execs: None };
    world.engine.put_records(world.org, vec![tree.record(), commit.record()]).await.unwrap();
    for (path, name, bytes) in [
        (format!("/runs/{run}/artifacts/{artifact}"), "page.html", Some(page)),
        (format!("/dag/records?of={}", commit.id()), "records", None),
    ] {
        let request = axum::http::Request::get(format!("/api/v1{path}"));
        let request = request.header("authorization", format!("Bearer {}", world.admin));
        let got = world.raw(request.body(axum::body::Body::empty()).unwrap()).await;
        let (status, headers) = (got.status(), got.headers().clone());
        let body = axum::body::to_bytes(got.into_body(), 1 << 20).await.unwrap();
        assert_eq!(status, StatusCode::OK, "{path}: {body:?}");
        assert_eq!(headers["content-type"], "application/octet-stream", "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["content-disposition"], format!("attachment; filename*=UTF-8''{name}"), "{path}");
        assert!(bytes.is_none_or(|bytes| bytes.as_bytes() == body) && !body.is_empty(), "{path}: {body:?}");
    }
    let absent = "0".repeat(64);
    let gone = world.ask("get", &format!("/api/v1/blobs/{absent}"), Some(&world.admin), &[], "").await;
    assert_eq!(gone.body["detail"], format!("no such blob: {absent}"), "nothing about where it would be");
    let named = crate::routes::download("a\"b\r\n\u{e4}.html", axum::body::Body::empty());
    assert_eq!(named.headers()["content-disposition"], "attachment; filename*=UTF-8''a%22b%0D%0A%C3%A4.html");
}

/// Its row stays, so that a client learns that it was there; its bytes are not found from its expiry on, swept or not.
#[tokio::test]
async fn an_expired_artifact_is_said_to_be_gone() {
    let world = World::new(true).await;
    let (run, artifact) = world.artifact("out/model", "weights").await;
    let path = format!("/api/v1/runs/{run}/artifacts/{artifact}");
    let there = world.ask("get", &path, Some(&world.admin), &[], "").await;
    assert_eq!(there.status, StatusCode::OK, "{}", there.body);
    let long_ago = move |tx: &mut engine::store::Tx| engine::store::artifact::date(tx, run, model::Timestamp(1));
    world.engine.store.write(engine::store::Lane::Normal, "test.date", long_ago).await.unwrap();
    let gone = world.ask("get", &path, Some(&world.admin), &[], "").await;
    assert_eq!((gone.status, &gone.body["code"]), (StatusCode::GONE, &json!("gone")), "{}", gone.body);
    assert!(is_problem(&gone), "{}", gone.body);
    let listed = world.ask("get", &format!("/api/v1/runs/{run}/artifacts"), Some(&world.admin), &[], "").await;
    assert_eq!(listed.body["data"][0]["path"], "out/model", "{}", listed.body);
}

#[tokio::test]
async fn a_body_that_stops_coming_is_not_waited_for() {
    use axum::body::{Body, Bytes};
    use tower::ServiceExt as _;
    let world = World::new(false).await;
    let (pipe, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    pipe.send(Ok(Bytes::from_static(b"{"))).await.unwrap();
    let body = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(pieces));
    let body = crate::input::steady(body, Duration::from_millis(20));
    let request = axum::http::Request::post("/api/v1/runs").header("authorization", format!("Bearer {}", world.admin));
    let got = router(world.state.clone()).oneshot(request.body(body).unwrap()).await.unwrap();
    assert_eq!(got.status(), StatusCode::REQUEST_TIMEOUT);
    drop(pipe);
}

/// Clients that send one byte and then nothing hold no turn that a record of another client needs.
#[tokio::test]
async fn slow_senders_of_records_keep_nobody_waiting() {
    use axum::body::{Body, Bytes};
    use tower::ServiceExt as _;
    let world = World::new(true).await;
    let put = |body: Body| {
        let request = axum::http::Request::put("/api/v1/dag/records");
        let mut request = request.header("authorization", format!("Bearer {}", world.admin)).body(body).unwrap();
        request.extensions_mut().insert(crate::listen::Peer::Local);
        router(world.state.clone()).oneshot(request)
    };
    let mut slow = Vec::new();
    for _ in 0..10 {
        let (pipe, pieces) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(pieces);
        let answer = tokio::spawn(put(Body::from_stream(stream)));
        slow.push((pipe, answer));
    }
    // With four turns, and the fifth waiting for one, the first bytes of the others would never be taken.
    for (pipe, _) in &slow {
        for _ in 0..2 {
            soon("a piece is taken", pipe.send(Ok(Bytes::from_static(b"r")))).await.unwrap();
        }
    }
    let answered = soon("a body beside slow ones", put(Body::from("no record"))).await.unwrap();
    assert_eq!(answered.status(), StatusCode::BAD_REQUEST);
    for (pipe, answer) in slow {
        drop(pipe);
        assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::BAD_REQUEST);
    }
}
