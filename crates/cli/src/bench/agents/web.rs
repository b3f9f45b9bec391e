//! A web service that answers at once, so that a measured step costs what its bookkeeping costs.

use crate::complaint::{Complaint, Done};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// No request of the bench is longer.
const MOST_BYTES: usize = 16 * 1024;
const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{\"answer\": 42}";

/// Ends with its value.
pub struct Web {
    pub url: String,
    serving: JoinHandle<()>,
}

impl Web {
    pub async fn start() -> Done<Web> {
        let failed = |error: std::io::Error| Complaint::usage(format!("no port for a web service: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let url = format!("http://{}/", listener.local_addr().map_err(failed)?);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        Ok(Web { url, serving })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Requests without a body, one after the other.
async fn answer(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        read.extend_from_slice(&piece[..count]);
        while let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            read.drain(..end + 4);
            if stream.write_all(ANSWER).await.is_err() {
                return;
            }
        }
        if read.len() > MOST_BYTES {
            return;
        }
    }
}
