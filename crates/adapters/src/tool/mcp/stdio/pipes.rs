//! Carries the messages of a session over the standard input and output of a server: one JSON document a line. What is no message is
//! passed over; a server that says too much without a message among it is given up.

use rmcp::RoleClient;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStdin, ChildStdout};

/// Bytes of one message, and of all that stands between two messages.
const MOST_BYTES: usize = 8 << 20;
const READ_AT_ONCE: usize = 64 << 10;

/// Why the session is over although the server lives; shared with the callers.
pub type Broken = Arc<Mutex<Option<String>>>;

pub struct Pipes {
    stdin: Arc<tokio::sync::Mutex<Option<ChildStdin>>>,
    stdout: ChildStdout,
    /// Read, and not looked at yet.
    read: Vec<u8>,
    /// So much of it has no end of line.
    searched: usize,
    /// Bytes since the last message.
    since_message: usize,
    broken: Broken,
}

impl Pipes {
    pub fn new(stdin: ChildStdin, stdout: ChildStdout, broken: Broken) -> Pipes {
        let stdin = Arc::new(tokio::sync::Mutex::new(Some(stdin)));
        Pipes { stdin, stdout, read: Vec::new(), searched: 0, since_message: 0, broken }
    }

    /// The next whole line, taken out of what was read.
    fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.read[self.searched..].iter().position(|byte| *byte == b'\n').map(|at| self.searched + at);
        match end {
            Some(end) => {
                let line = self.read.drain(..=end).collect();
                self.searched = 0;
                Some(line)
            }
            None => {
                self.searched = self.read.len();
                None
            }
        }
    }

    fn give_up(&self, why: String) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }
}

impl Transport<RoleClient> for Pipes {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let stdin = self.stdin.clone();
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut stdin = stdin.lock().await;
            let pipe = stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            pipe.write_all(&line).await?;
            pipe.flush().await
        }
    }

    /// May be dropped at any point: what was read is kept.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            while let Some(line) = self.line() {
                self.since_message += line.len();
                if let Ok(message) = serde_json::from_slice::<ServerJsonRpcMessage>(&line) {
                    self.since_message = 0;
                    return Some(message);
                }
            }
            if self.since_message + self.read.len() > MOST_BYTES {
                self.give_up(format!("the server has written {MOST_BYTES} bytes that are no message of MCP"));
                return None;
            }
            self.read.reserve(READ_AT_ONCE);
            match self.stdout.read_buf(&mut self.read).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        *self.stdin.lock().await = None;
        Ok(())
    }
}
