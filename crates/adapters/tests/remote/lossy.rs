//! A proxy before a store that loses the answers to some requests: the store has done what it was asked, and the client does not know.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Lossy {
    pub endpoint: String,
    lost: Arc<AtomicUsize>,
}

impl Lossy {
    /// Loses the first `most` answers to requests whose first line contains all of `words`.
    pub fn before(endpoint: &str, words: &'static [&'static str], most: usize) -> Lossy {
        let store = endpoint.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let lost = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lost);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (store, count) = (store.clone(), Arc::clone(&count));
                std::thread::spawn(move || pass_on(client.unwrap(), &store, words, most, &count));
            }
        });
        Lossy { endpoint, lost }
    }
    /// Such requests until now.
    pub fn asked(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

/// One connection: each request is passed on as it is, since its signature covers the name of the host.
fn pass_on(client: TcpStream, store: &str, words: &[&str], most: usize, lost: &AtomicUsize) -> Option<()> {
    let mut from_client = BufReader::new(client.try_clone().ok()?);
    let store = TcpStream::connect(store).ok()?;
    let mut from_store = BufReader::new(store.try_clone().ok()?);
    let (mut client, mut store) = (client, store);
    loop {
        let request = message(&mut from_client)?;
        store.write_all(&request).ok()?;
        let answer = message(&mut from_store)?;
        let line = String::from_utf8_lossy(&request).lines().next()?.to_owned();
        if words.iter().all(|word| line.contains(word)) && lost.fetch_add(1, Ordering::SeqCst) < most {
            return None;
        }
        client.write_all(&answer).ok()?;
    }
}

/// The head of a message, and as many bytes as it says.
fn message(from: &mut impl std::io::BufRead) -> Option<Vec<u8>> {
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        let mut line = Vec::new();
        if from.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&line).to_ascii_lowercase();
        if let Some(number) = text.strip_prefix("content-length:") {
            length = number.trim().parse().ok()?;
        }
        bytes.extend_from_slice(&line);
        if line == b"\r\n" {
            break;
        }
    }
    from.take(length).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
