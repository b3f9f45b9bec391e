//! The client against a server of canned bytes on a unix socket.

use super::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// Answers each connection with the next text and hands back what was asked.
async fn canned(answers: Vec<String>) -> (Client, tokio::sync::mpsc::UnboundedReceiver<String>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (asked, questions) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for answer in answers {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 64 << 10];
            let read = peer.read(&mut head).await.unwrap();
            asked.send(String::from_utf8_lossy(&head[..read]).into_owned()).unwrap();
            peer.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    (Client::new(&format!("unix:{}", path.display()), Some("rmd_x")).unwrap(), questions, dir)
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn questions_carry_the_token_and_an_encoded_query() {
    let (client, mut questions, dir) = canned(vec![answer("200 OK", "{\"ok\":true}")]).await;
    let got: Value =
        client.request(Method::GET, "/a?b=c").query("path", "out/ä b&c").send().await.unwrap().json().await.unwrap();
    dir.close().unwrap();
    assert_eq!(got, json!({"ok": true}));
    let asked = questions.recv().await.unwrap();
    assert!(asked.starts_with("GET /a?b=c&path=out%2F%C3%A4%20b%26c HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("authorization: Bearer rmd_x\r\n"), "{asked}");
}

#[tokio::test]
async fn answers_that_are_not_fine_have_a_type() {
    let problem = r#"{"status":409,"code":"invalid_state_transition","title":"Conflict","detail":"run is completed","allowed":["retry"]}"#;
    let answers =
        vec![answer("409 Conflict", problem), answer("502 Bad Gateway", "<html>"), answer("200 OK", "nonsense")];
    let (client, _questions, dir) = canned(answers).await;
    let error = client.get::<Value>("/runs/x").await.unwrap_err();
    let refused = error.problem().unwrap();
    assert_eq!(
        (refused.status, &*refused.code, &*refused.allowed),
        (409, "invalid_state_transition", &["retry".to_owned()][..])
    );
    assert_eq!(error.to_string(), "run is completed");
    assert!(matches!(client.get::<Value>("/").await, Err(ClientError::Protocol(_))));
    assert!(matches!(client.get::<Value>("/").await, Err(ClientError::Protocol(_))));
    dir.close().unwrap();
    assert!(matches!(client.get::<Value>("/").await, Err(ClientError::Unreachable(_))));
}

#[tokio::test]
async fn a_body_cut_short_is_not_an_end() {
    let (client, _questions, dir) = canned(vec!["HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_owned()]).await;
    let mut response = client.request(Method::GET, "/").send().await.unwrap();
    let end = loop {
        match response.chunk().await {
            Ok(Some(_)) => continue,
            end => break end,
        }
    };
    dir.close().unwrap();
    assert!(matches!(end, Err(ClientError::Unreachable(_))), "{end:?}");
}

#[tokio::test]
async fn events_arrive_and_the_stream_ends() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hi\n\nid: 1\nevent: desired\ndata: {}\n\n";
    let (client, mut questions, dir) = canned(vec![stream.to_owned()]).await;
    let mut events = client.events("/desired", Some("0")).await.unwrap();
    dir.close().unwrap();
    assert!(questions.recv().await.unwrap().contains("last-event-id: 0\r\n"));
    let event = events.next().await.unwrap().unwrap();
    assert_eq!((&*event.id, &*event.event, &*event.data), ("1", "desired", "{}"));
    assert_eq!(events.next().await.unwrap(), None);
}

/// Writes a head and then the same bytes until the client hangs up; says how many bytes of the body it could write.
async fn endless(head: &'static str) -> (Client, tokio::task::JoinHandle<usize>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let written = tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.unwrap();
        let (mut question, piece, mut written) = ([0; 4096], vec![b' '; 1 << 20], 0);
        assert!(peer.read(&mut question).await.unwrap() > 0);
        peer.write_all(head.as_bytes()).await.unwrap();
        while peer.write_all(&piece).await.is_ok() {
            written += piece.len();
        }
        written
    });
    (Client::new(&format!("unix:{}", path.display()), None).unwrap(), written, dir)
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    for (head, most) in [
        ("HTTP/1.1 200 OK\r\n\r\n", LARGEST_ANSWER),
        ("HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", 0),
        ("HTTP/1.1 500 Oh\r\n\r\n", LARGEST_PROBLEM),
        ("HTTP/1.1 404 No\r\ncontent-length: 99999999999\r\n\r\n", LARGEST_PROBLEM),
    ] {
        let (client, written, dir) = endless(head).await;
        let error = client.get::<Value>("/").await.unwrap_err();
        drop(client);
        let written = written.await.unwrap();
        dir.close().unwrap();
        match head.contains("200") {
            true => assert!(matches!(&error, ClientError::TooMuch(why) if why.contains("64 MiB")), "{error}"),
            false => assert!(matches!(error, ClientError::Protocol(_)), "{error}"),
        }
        assert!(written <= most + (4 << 20), "{written} bytes were taken, buffers included");
    }
}

#[tokio::test]
async fn a_download_is_read_piece_by_piece_however_long_it_is() {
    let (client, written, dir) = endless("HTTP/1.1 200 OK\r\n\r\n").await;
    let mut response = client.request(Method::GET, "/").send().await.unwrap();
    let (mut read, mut longest) = (0, 0);
    while read <= LARGEST_ANSWER {
        let piece = response.chunk().await.unwrap().unwrap();
        (read, longest) = (read + piece.len(), longest.max(piece.len()));
    }
    drop(response);
    assert!(longest < 2 << 20, "{longest}");
    assert!(written.await.unwrap() < read + (4 << 20), "what is not taken is not buffered");
    dir.close().unwrap();
}

#[test]
fn an_address_is_read_at_the_edge() {
    for good in ["unix:/tmp/x.sock", "http://127.0.0.1:7", "https://control.example.org/"] {
        assert!(Client::new(good, None).is_ok(), "{good}");
    }
    for bad in ["", "unix:x.sock", "127.0.0.1:7", "ftp://x", "http://"] {
        assert!(matches!(Client::new(bad, None), Err(ClientError::Protocol(_))), "{bad}");
    }
}

#[test]
fn an_authority_must_be_readable() {
    for (pem, good) in [
        (None, true),
        (Some(""), false),
        (Some("no certificate at all"), false),
        (Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), false),
    ] {
        assert_eq!(Client::trusting("https://control.example.org", None, pem).is_ok(), good, "{pem:?}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("http://{}/steal", elsewhere.local_addr().unwrap());
    for status in ["301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let answer =
            format!("HTTP/1.1 {status}\r\nlocation: {place}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let (client, _questions, dir) = canned(vec![answer]).await;
        let error = client.get::<Value>("/runs").await.unwrap_err();
        dir.close().unwrap();
        assert!(matches!(&error, ClientError::Protocol(why) if why.contains(&place)), "{error}");
    }
    elsewhere.set_nonblocking(true).unwrap();
    assert_eq!(elsewhere.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody came");
}

#[test]
fn one_address_has_one_spelling() {
    for (said, meant) in [
        ("https://Control.Example/", "https://control.example"),
        ("HTTPS://control.example:443", "https://control.example"),
        ("http://127.0.0.1:7780//", "http://127.0.0.1:7780"),
        ("http://host:80/base/", "http://host/base"),
        ("http://host/a/../b", "http://host/b"),
        ("unix:/run/control.sock", "unix:/run/control.sock"),
    ] {
        assert_eq!(normal(said).unwrap(), meant, "{said}");
    }
    for bad in
        ["", "host", "ftp://host", "http://you:pw@host", "http://you@host", "http://host?x", "http://host#x", "unix:x"]
    {
        assert!(normal(bad).is_err(), "{bad}");
    }
}
