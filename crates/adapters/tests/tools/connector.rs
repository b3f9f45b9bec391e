//! The connector: one resolution, the judged address, the name in the certificate.

use crate::server::{Act, Server, answer, read};
use crate::{Kept, call, is};
use adapters::tool::address::{AddressPolicy, Profile};
use adapters::tool::connector::{Connector, Resolver, Resolving};
use adapters::tool::http::HttpTool;
use adapters::tool::mcp::McpTool;
use adapters::{Tool, ToolCall};
use model::Effect;
use model::recovery::ErrorClass::{Permanent, Transient};
use serde_json::json;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// Gives other addresses each time it is asked, as a hostile name server does.
struct Scripted(Arc<Mutex<VecDeque<Vec<SocketAddr>>>>);

impl Resolver for Scripted {
    fn resolve<'a>(&'a self, _host: &'a str, _port: u16) -> Resolving<'a> {
        let next = self.0.lock().unwrap().pop_front();
        Box::pin(async move { next.ok_or_else(|| std::io::Error::other("asked too often")) })
    }
}

fn resolving(policy: AddressPolicy, answers: &[&[&str]]) -> (Connector, Arc<Mutex<VecDeque<Vec<SocketAddr>>>>) {
    let answers = answers.iter().map(|answer| answer.iter().map(|it| it.parse().unwrap()).collect()).collect();
    let script = Arc::new(Mutex::new(answers));
    (Connector::new(policy).resolving_by(Box::new(Scripted(script.clone()))), script)
}

fn policy(profile: Profile, allowed: &[&str], own: &[SocketAddr]) -> AddressPolicy {
    AddressPolicy::new(profile, allowed.iter().map(|it| it.parse().unwrap()).collect(), own.to_vec())
}

#[tokio::test]
async fn a_name_is_resolved_once_and_the_judged_address_is_connected() {
    let server = Server::saying(answer("200 OK", &[], "here")).await;
    let address = server.address.to_string();
    // A second question would be answered with an address that is not allowed.
    let (connector, script) = resolving(policy(Profile::Embedded, &[], &[]), &[&[&address], &["169.254.169.254:80"]]);
    let url = format!("http://rebinding.example:{}/", server.address.port());
    let tool = HttpTool::new(Arc::new(connector));
    let answer = tool.call(&call(json!({"url": url}), &[]), &Kept::default()).await.unwrap();
    assert_eq!(answer.output["body"], "here");
    assert_eq!(server.received()[0].header("host"), Some(&*format!("rebinding.example:{}", server.address.port())));
    assert_eq!(script.lock().unwrap().len(), 1, "one question was asked");
}

#[tokio::test]
async fn addresses_that_are_refused_are_left_out() {
    let server = Server::saying(answer("200 OK", &[], "here")).await;
    let port = server.address.port();
    let mixed: [&str; 2] = [&format!("169.254.169.254:{port}"), &server.address.to_string()];
    let (connector, _) = resolving(policy(Profile::Embedded, &[], &[]), &[&mixed, &mixed[..1]]);
    let tool = HttpTool::new(Arc::new(connector));
    let asked = call(json!({"url": format!("http://mixed.example:{port}/")}), &[]);
    assert_eq!(tool.call(&asked, &Kept::default()).await.unwrap().output["body"], "here");
    let failed = tool.call(&asked, &Kept::default()).await.unwrap_err();
    is(&failed, Permanent, Effect::None, "address_refused");
}

#[tokio::test]
async fn nothing_is_sent_where_it_may_not_go() {
    let server = Server::saying(answer("200 OK", &[], "")).await;
    let own = [server.address];
    for (policy, url) in [
        (policy(Profile::Server, &[], &[]), server.url("/")),
        (policy(Profile::Server, &[], &[]), format!("http://localhost:{}/", server.address.port())),
        (policy(Profile::Server, &[], &[]), format!("http://[::ffff:127.0.0.1]:{}/", server.address.port())),
        (policy(Profile::Server, &[], &[]), format!("http://2130706433:{}/", server.address.port())),
        (policy(Profile::Server, &[], &[]), format!("http://0x7f.1:{}/", server.address.port())),
        (policy(Profile::Embedded, &["127.0.0.0/8"], &own), server.url("/")),
        (policy(Profile::Embedded, &[], &[]), format!("http://0.0.0.0:{}/", server.address.port())),
        (policy(Profile::Embedded, &[], &[]), "http://169.254.169.254/latest/meta-data/".to_owned()),
        (policy(Profile::Embedded, &[], &[]), "file:///etc/passwd".to_owned()),
        (policy(Profile::Embedded, &[], &[]), "ftp://127.0.0.1/".to_owned()),
    ] {
        let tool = HttpTool::new(Arc::new(Connector::new(policy)));
        let failed = tool.call(&call(json!({"url": url}), &[]), &Kept::default()).await.unwrap_err();
        is(&failed, Permanent, Effect::None, "address_refused");
    }
    assert_eq!(server.received().len(), 0);
    let listed = HttpTool::new(Arc::new(Connector::new(policy(Profile::Server, &["127.0.0.1"], &[]))));
    listed.call(&call(json!({"url": server.url("/")}), &[]), &Kept::default()).await.unwrap();
}

#[tokio::test]
async fn a_wildcard_listener_of_the_control_plane_is_found_on_every_address() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let own = listener.local_addr().unwrap();
    let connector = Connector::new(policy(Profile::Embedded, &["0.0.0.0/0"], &[own]));
    let tool = HttpTool::new(Arc::new(connector));
    for host in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "localhost"] {
        let asked = call(json!({"url": format!("http://{host}:{}/", own.port())}), &[]);
        let failed = tool.call(&asked, &Kept::default()).await.unwrap_err();
        is(&failed, Permanent, Effect::None, "address_refused");
    }
}

#[tokio::test]
async fn a_redirect_is_judged_again() {
    let server = Server::start(|_, _| crate::server::redirect("302 Found", "http://169.254.169.254/token")).await;
    let tool = HttpTool::new(crate::embedded());
    let failed = tool.call(&call(json!({"url": server.url("/")}), &[]), &Kept::default()).await.unwrap_err();
    is(&failed, Permanent, Effect::Perhaps, "address_refused");
    let to_file = Server::start(|_, _| crate::server::redirect("302 Found", "file:///etc/passwd")).await;
    let failed = tool.call(&call(json!({"url": to_file.url("/")}), &[]), &Kept::default()).await.unwrap_err();
    is(&failed, Permanent, Effect::Perhaps, "address_refused");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_and_a_closed_port_had_no_effect() {
    let (connector, _) = resolving(policy(Profile::Embedded, &[], &[]), &[]);
    let failed = HttpTool::new(Arc::new(connector))
        .call(&call(json!({"url": "http://nowhere.example/"}), &[]), &Kept::default())
        .await
        .unwrap_err();
    is(&failed, Transient, Effect::None, "unresolved");
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let asked = call(json!({"url": format!("http://{closed}/"), "method": "POST"}), &[]);
    let failed = HttpTool::new(crate::embedded()).call(&asked, &Kept::default()).await.unwrap_err();
    is(&failed, Transient, Effect::None, "not_connected");
}

struct Silent;

impl Resolver for Silent {
    fn resolve<'a>(&'a self, _host: &'a str, _port: u16) -> Resolving<'a> {
        Box::pin(std::future::pending())
    }
}

/// The step's own limit decides how long the connection may take, so that the tool can still say that nothing was sent.
#[tokio::test]
async fn a_host_that_is_silent_for_a_short_time_limit_had_nothing() {
    let connector = || Arc::new(Connector::new(policy(Profile::Embedded, &[], &[])).resolving_by(Box::new(Silent)));
    let tools: [Box<dyn Tool>; 2] = [Box::new(HttpTool::new(connector())), Box::new(McpTool::new(connector()))];
    for (tool, more) in tools.iter().zip([json!({"method": "POST"}), json!({"tool": "add"})]) {
        let mut input = json!({"url": "http://silent.example/"});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let asked = ToolCall { timeout_ms: Some(300), ..call(input, &[]) };
        let (log, limit) = (Kept::default(), std::time::Duration::from_millis(300));
        let said = tokio::time::timeout(limit, tool.call(&asked, &log)).await;
        let failed = said.expect("it ends before its holder cuts it off");
        is(&failed.unwrap_err(), Transient, Effect::None, "unresolved");
    }
}

#[tokio::test]
async fn a_certificate_is_checked_for_the_name_and_not_for_the_address() {
    let own = rcgen::generate_simple_self_signed(vec!["api.example".to_owned()]).unwrap();
    let (certificate, key) = (own.cert.der().clone(), own.signing_key.serialize_der());
    let key = tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer::from(key).into();
    let config =
        tokio_rustls::rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let Some(_) = read(&mut stream).await else { continue };
            let Act::Say(bytes) = answer("200 OK", &[], "safe").remove(0) else { unreachable!("an answer is said") };
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
    });
    let answers: [&str; 1] = [&address.to_string()];
    for (host, trusted, expected) in
        [("api.example", true, Ok("safe")), ("other.example", true, Err(())), ("api.example", false, Err(()))]
    {
        let (mut connector, _) = resolving(policy(Profile::Embedded, &[], &[]), &[&answers]);
        if trusted {
            connector = connector.trusting(&own.cert.pem()).unwrap();
        }
        let asked = call(json!({"url": format!("https://{host}:{}/", address.port())}), &[]);
        let result = HttpTool::new(Arc::new(connector)).call(&asked, &Kept::default()).await;
        match (result, expected) {
            (Ok(answer), Ok(body)) => assert_eq!(answer.output["body"], body),
            (Err(failed), Err(())) => is(&failed, Permanent, Effect::None, "certificate"),
            (other, _) => panic!("{host}, trusted {trusted}: {other:?}"),
        }
    }
    serving.abort();
}
