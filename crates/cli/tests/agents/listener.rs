//! A small HTTP server for tests: a thread for each connection, one request on each, on a free loopback port. What is answered is the
//! business of its two users, the scripted model and the recorder.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// With its query.
    pub path: String,
    /// By their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

pub struct Listener {
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Listener {
    /// `answer` writes to the connection, which is closed when it returns.
    pub fn start(answer: impl Fn(Request, &mut TcpStream) + Send + Sync + 'static) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (ended, answer) = (Arc::new(AtomicBool::new(false)), Arc::new(answer));
        let told = ended.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(mut stream), answer) = (stream, answer.clone()) else { continue };
                std::thread::spawn(move || {
                    if let Some(request) = read(&stream) {
                        answer(request, &mut stream);
                    }
                });
            }
        });
        Listener { address, ended }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        TcpStream::connect(self.address).ok(); // wakes the thread that accepts
    }
}

/// None if the other side went away in the middle of it.
fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// A whole answer. The other side may have gone away: that is not the server's matter.
pub fn answer(stream: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &str) {
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("HTTP/1.1 {status} Answer\r\nconnection: close\r\ncontent-length: {}\r\n{more}\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok();
}

/// Says nothing, until the other side has gone away.
pub fn hang(stream: &mut TcpStream) {
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|read| read > 0) {}
}

/// Ends the connection in such a way that the other side cannot take it for the end of an answer.
pub fn cut(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger).ok();
}
