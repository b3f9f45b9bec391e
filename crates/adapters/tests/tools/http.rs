//! The tool `http`: what it sends, what it hands back, and which error each misbehaviour is.

use crate::server::{Act, Received, Server, answer, json as json_answer, redirect};
use crate::{Kept, call, embedded, is};
use adapters::tool::http::HttpTool;
use adapters::{Tool, ToolAnswer, ToolCall, ToolFailure};
use model::Effect;
use model::recovery::ErrorClass::{InvalidOutput, Permanent, RateLimited, Transient, Unknown};
use serde_json::{Value, json};

async fn sent(input: Value, secrets: &[(&str, &str)]) -> Result<ToolAnswer, ToolFailure> {
    HttpTool::new(embedded()).call(&call(input, secrets), &Kept::default()).await
}

async fn received(input: Value, secrets: &[(&str, &str)]) -> Received {
    let server = Server::saying(answer("204 No Content", &[], "")).await;
    let mut input = input;
    input["url"] = Value::String(server.url(input["url"].as_str().unwrap()));
    sent(input, secrets).await.unwrap();
    server.received().remove(0)
}

#[tokio::test]
async fn a_request_carries_the_key_and_asks_for_an_unpacked_answer() {
    let got =
        received(json!({"url": "/a b?x=1", "query": {"q": "a&b=c", "n": 7, "l": ["1", "2"], "none": null}}), &[]).await;
    assert_eq!((got.method.as_str(), got.path.as_str()), ("GET", "/a%20b?x=1&l=1&l=2&n=7&q=a%26b%3Dc"));
    assert_eq!(got.header("idempotency-key"), Some("step-key"));
    assert_eq!(got.header("accept-encoding"), Some("identity"));
    let got =
        received(json!({"url": "/", "method": "post", "json": {"a": 1}, "headers": {"Idempotency-Key": "mine"}}), &[])
            .await;
    assert_eq!((got.json(), got.header("content-type")), (json!({"a": 1}), Some("application/json")));
    assert_eq!(got.header("idempotency-key"), Some("mine"));
    let got = received(json!({"url": "/", "method": "PUT", "form": {"a": "1 &2", "b": true}}), &[]).await;
    assert_eq!(
        (got.text().as_str(), got.header("content-type")),
        ("a=1+%262&b=true", Some("application/x-www-form-urlencoded"))
    );
    let got =
        received(json!({"url": "/", "method": "PATCH", "body": "plain", "headers": {"Content-Type": "x/y"}}), &[])
            .await;
    assert_eq!((got.text().as_str(), got.header("content-type")), ("plain", Some("x/y")));
}

#[tokio::test]
async fn an_input_that_cannot_be_sent_is_refused_before_anything_is_connected() {
    let server = Server::saying(answer("200 OK", &[], "")).await;
    let url = server.url("/");
    for input in [
        json!({}),
        json!({"url": "no url"}),
        json!({"url": url, "bogus": 1}),
        json!({"url": url, "method": "TRACE"}),
        json!({"url": url, "method": "GET\r\nX: y"}),
        json!({"url": url, "json": 1}),
        json!({"url": url, "method": "POST", "json": 1, "body": "x"}),
        json!({"url": url, "headers": {"X": "a\r\nEvil: 1"}}),
        json!({"url": url, "headers": {"X\r\nEvil": "1"}}),
        json!({"url": url, "headers": {"Host": "elsewhere"}}),
        json!({"url": url, "headers": {"Transfer-Encoding": "chunked"}}),
        json!({"url": url, "headers": {"Accept-Encoding": "gzip"}}),
        json!({"url": url, "headers": {"A": {"secret": "UNKNOWN"}}}),
        json!({"url": url, "headers": {"A": {"secret": "SPLIT"}}}),
        json!({"url": url, "query": {"a": {"b": 1}}}),
        json!({"url": url, "timeout": "20s"}),
        json!({"url": url.replace("http://", "http://user:pw@")}),
    ] {
        let failed = sent(input.clone(), &[("SPLIT", "secret\r\nEvil: 1")]).await.unwrap_err();
        is(&failed, Permanent, Effect::None, "invalid_input");
    }
    assert_eq!(server.received().len(), 0);
}

#[tokio::test]
async fn an_answer_is_json_text_or_base64() {
    for (kind, body, expected, encoding) in [
        ("application/json", &b"{\"a\": [1]}"[..], json!({"a": [1]}), "json"),
        ("application/problem+json; charset=utf-8", b"null", json!(null), "json"),
        ("text/html", b"{\"a\": 1}", json!("{\"a\": 1}"), "text"),
        ("application/json", b"", json!(""), "text"),
        ("image/png", b"\x89PNG", json!("iVBORw=="), "base64"),
        ("text/plain", b"a\0b", json!("YQBi"), "base64"),
    ] {
        let headers = [("Content-Type", kind), ("Set-Cookie", "a=b"), ("ETag", "7"), ("X-Other", "1")];
        let server = Server::saying(answer("201 Created", &headers, body)).await;
        let output = sent(json!({"url": server.url("/")}), &[]).await.unwrap().output;
        assert_eq!(
            (&output["status"], &output["body"], &output["encoding"]),
            (&json!(201), &expected, &json!(encoding))
        );
        let length = body.len().to_string();
        assert_eq!(output["headers"], json!({"content-type": kind, "etag": "7", "content-length": length}));
    }
}

#[tokio::test]
async fn a_packed_answer_is_not_unpacked() {
    let headers = [("content-encoding", "gzip"), ("content-type", "application/json")];
    let server = Server::saying(answer("200 OK", &headers, b"\x1f\x8b\x08bomb")).await;
    let output = sent(json!({"url": server.url("/")}), &[]).await.unwrap().output;
    assert_eq!(output["encoding"], "base64");
}

#[tokio::test]
async fn a_body_has_a_bound_whether_its_length_is_announced_or_not() {
    let announced = vec![Act::Say(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec()), Act::Hang];
    let endless = vec![
        Act::Say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()),
        Act::SayForEver([b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat()),
    ];
    for acts in [announced, endless] {
        let server = Server::saying(acts).await;
        let failed = sent(json!({"url": server.url("/")}), &[]).await.unwrap_err();
        is(&failed, Permanent, Effect::Done, "too_large");
    }
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n".to_vec();
    let server = Server::saying(vec![Act::Say(chunked)]).await;
    let failed = sent(json!({"url": server.url("/"), "max_bytes": 4}), &[]).await.unwrap_err();
    is(&failed, Permanent, Effect::Done, "too_large");
    assert_eq!(sent(json!({"url": server.url("/"), "max_bytes": 5}), &[]).await.unwrap().output["body"], "12345");
}

#[tokio::test]
async fn each_misbehaviour_is_an_error_with_a_class_and_an_effect() {
    let say = |text: &str| vec![Act::Say(text.as_bytes().to_vec())];
    let then = |mut acts: Vec<Act>, last| {
        acts.push(last);
        acts
    };
    let bad_json = answer("200 OK", &[("content-type", "application/json")], "{\"a\":");
    for (acts, class, effect, code) in [
        (answer("429 Slow Down", &[("retry-after", "3")], "later"), RateLimited, Effect::None, "rate_limited"),
        (answer("500 Oops", &[], "trace"), Unknown, Effect::Perhaps, "http_status"),
        (answer("503 Busy", &[("retry-after", "3")], ""), Transient, Effect::Perhaps, "http_status"),
        (answer("404 Not Found", &[], "no"), Permanent, Effect::Done, "http_status"),
        (redirect("302 Found", "http://["), Permanent, Effect::Done, "redirect"),
        (answer("302 Found", &[], ""), Permanent, Effect::Done, "redirect"),
        (bad_json, InvalidOutput, Effect::Done, "invalid_output"),
        (vec![], Transient, Effect::Perhaps, "cut"),
        (vec![Act::Reset], Transient, Effect::Perhaps, "cut"),
        (say("garbage\r\n\r\n"), Transient, Effect::Perhaps, "cut"),
        (say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"), Transient, Effect::Perhaps, "cut"),
        (say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhe"), Transient, Effect::Perhaps, "cut"),
        (
            then(say("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"), Act::Hang),
            Transient,
            Effect::Perhaps,
            "timeout",
        ),
        (vec![Act::Hang], Transient, Effect::Perhaps, "timeout"),
    ] {
        let server = Server::saying(acts).await;
        let timeout_ms = Some(if code == "timeout" { 200 } else { 20_000 });
        let asked = ToolCall { timeout_ms, ..call(json!({"url": server.url("/"), "method": "POST"}), &[]) };
        let failed = HttpTool::new(embedded()).call(&asked, &Kept::default()).await.unwrap_err();
        is(&failed, class, effect, code);
        let waits = failed.failure.error.message.starts_with("HTTP 429")
            || failed.failure.error.message.starts_with("HTTP 503");
        assert_eq!(failed.failure.retry_after_ms, waits.then_some(3_000));
        assert_eq!(server.received().len(), 1, "sent once, whatever happens");
    }
}

#[tokio::test]
async fn redirects_are_followed_as_browsers_do_and_have_an_end() {
    for (status, method, expected) in [
        ("301 Moved", "POST", ("GET", "")),
        ("302 Found", "POST", ("GET", "")),
        ("303 See Other", "PUT", ("GET", "")),
        ("302 Found", "PUT", ("PUT", "1")),
        ("307 Temporary", "POST", ("POST", "1")),
        ("308 Permanent", "POST", ("POST", "1")),
    ] {
        let server = Server::start(move |_, before| match before {
            0 => redirect(status, "/next?a=1"),
            _ => json_answer(json!("there")),
        })
        .await;
        let output = sent(json!({"url": server.url("/"), "method": method, "json": 1}), &[]).await.unwrap().output;
        let last = server.received().remove(1);
        assert_eq!((output["body"].as_str(), last.path.as_str()), (Some("there"), "/next?a=1"));
        assert_eq!((last.method.as_str(), last.text().as_str()), expected, "{status} in answer to {method}");
    }
    let endless = Server::saying(redirect("302 Found", "/")).await;
    let failed = sent(json!({"url": endless.url("/")}), &[]).await.unwrap_err();
    is(&failed, Permanent, Effect::Done, "redirect");
    assert_eq!(endless.received().len(), 6);
}

#[tokio::test]
async fn after_a_redirect_no_failure_promises_that_nothing_happened() {
    let server = Server::start(|_, before| match before {
        0 => redirect("307 Temporary", "/next"),
        _ => answer("429 Slow Down", &[], ""),
    })
    .await;
    let failed = sent(json!({"url": server.url("/"), "method": "POST"}), &[]).await.unwrap_err();
    is(&failed, RateLimited, Effect::Perhaps, "rate_limited");
}

#[tokio::test]
async fn secrets_stay_with_the_origin_that_they_were_given_for() {
    let elsewhere = Server::saying(json_answer(json!(1))).await;
    let target = elsewhere.url("/");
    let server = Server::start(move |_, before| match before {
        0 => redirect("302 Found", "/same"),
        _ => redirect("302 Found", &target),
    })
    .await;
    let headers = json!({"X-Key": {"secret": "KEY"}, "Authorization": "Basic abc", "X-Plain": "kept"});
    sent(json!({"url": server.url("/"), "headers": headers}), &[("KEY", "sesame-open\n")]).await.unwrap();
    let seen: Vec<_> = server.received().iter().chain(&elsewhere.received()).map(headers_of_interest).collect();
    let full = (Some("sesame-open".to_owned()), Some("Basic abc".to_owned()), Some("kept".to_owned()));
    assert_eq!(seen, [full.clone(), full, (None, None, Some("kept".to_owned()))]);
}

fn headers_of_interest(request: &Received) -> (Option<String>, Option<String>, Option<String>) {
    let header = |name: &str| request.header(name).map(str::to_owned);
    (header("x-key"), header("authorization"), header("x-plain"))
}

#[tokio::test]
async fn a_server_that_echoes_a_secret_does_not_reveal_it() {
    let server = Server::start(|request, before| {
        let said = request.header("authorization").unwrap().to_owned();
        match before {
            0 => json_answer(json!({"you sent": said, "encoded": "c2VzYW1lLW9wZW4="})),
            _ => answer("400 Bad", &[], format!("bad token: {said}")),
        }
    })
    .await;
    let input = json!({"url": server.url("/"), "headers": {"Authorization": {"secret": "KEY", "prefix": "Bearer "}}});
    let secrets = [("KEY", "sesame-open")];
    let output = sent(input.clone(), &secrets).await.unwrap().output;
    assert_eq!(output["body"], json!({"you sent": "Bearer ***", "encoded": "***="}));
    let failed = sent(input, &secrets).await.unwrap_err();
    assert_eq!(failed.failure.error.message, "HTTP 400: bad token: Bearer ***");
}
