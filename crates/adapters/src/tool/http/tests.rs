//! What only the inside of the crate can set up: an address that counts as public although a test listens on it.

use super::*;
use crate::tool::address::{AddressPolicy, Profile};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

struct NoLog;

impl ToolLog for NoLog {
    fn write(&self, _text: &[u8]) {}
}

#[tokio::test]
async fn a_redirect_from_a_public_server_to_this_machine_is_not_followed() {
    let public = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/admin", inner.local_addr().unwrap());
    let mut policy = AddressPolicy::new(Profile::Embedded, vec!["127.0.0.1".parse().unwrap()], Vec::new());
    policy.taken_for_public = Some(public.local_addr().unwrap().ip());
    let tool = HttpTool::new(Arc::new(Connector::new(policy)));
    let url = format!("http://{}/", public.local_addr().unwrap());
    let (input, secrets) = (json!({"url": url}), Default::default());
    let call = ToolCall { key: "k".to_owned(), input, secrets, timeout_ms: None };
    let serve = async {
        let (mut stream, _) = public.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await.unwrap();
        let answer = format!("HTTP/1.1 302 Found\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
    };
    let (result, ()) = tokio::join!(tool.call(&call, &NoLog), serve);
    let failure = result.unwrap_err().failure;
    assert_eq!(
        (failure.error.code.as_str(), failure.effect),
        ("address_refused", Effect::Perhaps),
        "{}",
        failure.error.message
    );
    assert!(failure.error.message.contains("public server redirects"), "{}", failure.error.message);
    let direct = ToolCall { input: json!({"url": target}), timeout_ms: Some(50), ..call };
    let reached = tool.call(&direct, &NoLog).await.unwrap_err().failure;
    assert_eq!(reached.error.code, "timeout", "without the redirect the address is allowed");
}

#[test]
fn the_time_limit_is_the_steps() {
    for (timeout_ms, seconds) in [(Some(300_000), 300), (Some(5_000), 5), (None, 30)] {
        let (input, secrets) = (json!({"url": "https://h.example/"}), Default::default());
        let call = ToolCall { key: "k".to_owned(), input, secrets, timeout_ms };
        assert_eq!(input::read(&call).map(|request| request.timeout.as_secs()), Ok(seconds));
    }
}
