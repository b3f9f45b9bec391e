//! An HTTP server on 127.0.0.1 that does what its script says with raw bytes: it can cut, reset, hang and lie.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Default)]
pub struct Received {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What the server does with one request. After the last act it closes the connection.
#[derive(Debug, Clone)]
pub enum Act {
    Say(Vec<u8>),
    /// Says the same again and again until the client is gone.
    SayForEver(Vec<u8>),
    /// Waits until the client closes.
    Hang,
    /// Tells the test that the script came so far.
    Tell(Arc<Notify>),
    /// Ends the connection with a reset instead of a close.
    Reset,
}

type Script = Box<dyn FnMut(&Received, usize) -> Vec<Act> + Send>;

pub struct Server {
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// The script gets each request and how many came before it.
    pub async fn start(script: impl FnMut(&Received, usize) -> Vec<Act> + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (kept, script) = (received.clone(), Arc::new(Mutex::new(Box::new(script) as Script)));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, kept.clone(), script.clone()));
            }
        });
        Server { address, received, task }
    }

    /// The same answer to every request.
    pub async fn saying(acts: Vec<Act>) -> Server {
        Server::start(move |_, _| acts.clone()).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, received: Arc<Mutex<Vec<Received>>>, script: Arc<Mutex<Script>>) {
    let Some(request) = read(&mut stream).await else { return };
    let acts = {
        let mut received = received.lock().unwrap();
        let acts = (script.lock().unwrap())(&request, received.len());
        received.push(request);
        acts
    };
    for act in acts {
        match act {
            Act::Say(bytes) => {
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Act::SayForEver(bytes) => while stream.write_all(&bytes).await.is_ok() {},
            Act::Hang => drain(&mut stream).await,
            Act::Tell(notify) => notify.notify_one(),
            Act::Reset => stream.set_zero_linger().unwrap(),
        }
    }
    let _ = stream.flush().await;
}

pub async fn drain(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest).await, Ok(read) if read > 0) {}
}

/// One request with a body of known length.
pub async fn read(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<Received> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => bytes.extend_from_slice(&piece[..read]),
            _ => return None,
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut lines = text.lines();
    let mut first = lines.next()?.split(' ');
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut request = Received {
        method: first.next()?.to_owned(),
        path: first.next()?.to_owned(),
        headers,
        body: bytes[head + 4..].to_vec(),
    };
    let length: usize = request.header("content-length").map_or(0, |text| text.parse().unwrap());
    while request.body.len() < length {
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => request.body.extend_from_slice(&piece[..read]),
            _ => return None,
        }
    }
    Some(request)
}

/// A whole answer.
pub fn answer(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<Act> {
    let body = body.as_ref();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut bytes = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    vec![Act::Say(bytes)]
}

pub fn json(value: serde_json::Value) -> Vec<Act> {
    answer("200 OK", &[("content-type", "application/json")], value.to_string())
}

pub fn redirect(status: &str, location: &str) -> Vec<Act> {
    answer(status, &[("location", location)], "")
}
