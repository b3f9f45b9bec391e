//! Writes what a tool reports during a call (mostly a model's text) to the log of the step's try. One piece is durable before the next
//! is written; the call itself never waits for its log.

use adapters::{Tool, ToolAnswer, ToolCall, ToolFailure, ToolLog};
use model::RunId;
use model::log::LogId;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use store::log::{Chunk, Logs};
use store::{Frame, LogStream, Store};

/// Bytes of one frame.
const FRAME_BYTES: usize = 64 * 1024;

/// Where the text of one try goes.
pub(super) struct Target {
    pub(super) store: Store,
    pub(super) logs: Logs,
    pub(super) run: RunId,
    pub(super) log: LogId,
    pub(super) epoch: i64,
    /// Counts the bytes that the tool writes. Outlives the call, whose future may be dropped.
    pub(super) said: Arc<AtomicI64>,
}

struct Text {
    unsent: Mutex<Vec<u8>>,
    said: Arc<AtomicI64>,
}

impl ToolLog for Text {
    fn write(&self, text: &[u8]) {
        self.said.fetch_add(text.len() as i64, Ordering::Relaxed);
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text);
    }
}

impl Text {
    fn take(&self) -> Vec<u8> {
        let mut text = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let most = text.len().min(FRAME_BYTES);
        text.drain(..most).collect()
    }
}

/// Calls the tool and stores its text as it comes.
pub(super) async fn call(target: Target, tool: Arc<dyn Tool>, call: ToolCall) -> Result<ToolAnswer, ToolFailure> {
    let text = Text { unsent: Mutex::default(), said: target.said.clone() };
    let mut offset = 0;
    let mut sending: Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = None;
    let mut calling = tool.call(&call, &text);
    let found = poll_fn(|context| {
        if let Poll::Ready(found) = calling.as_mut().poll(context) {
            return Poll::Ready(found);
        }
        loop {
            match &mut sending {
                Some(under_way) => match under_way.as_mut().poll(context) {
                    Poll::Ready(()) => sending = None,
                    Poll::Pending => return Poll::Pending,
                },
                None => {
                    let piece = text.take();
                    if piece.is_empty() {
                        return Poll::Pending;
                    }
                    let from = offset;
                    offset += piece.len() as i64;
                    sending = Some(Box::pin(append(&target, from, piece)));
                }
            }
        }
    })
    .await;
    drop(calling);
    if let Some(under_way) = sending {
        under_way.await;
    }
    loop {
        let piece = text.take();
        if piece.is_empty() {
            break;
        }
        let from = offset;
        offset += piece.len() as i64;
        append(&target, from, piece).await;
    }
    if offset > 0 {
        // A log that is not sealed only lacks its end; what the step answered counts all the same.
        let _ = target.logs.seal(target.log, 0).await;
    }
    found
}

/// Text that cannot be stored is lost: it is not worth the call that wrote it.
async fn append(target: &Target, offset: i64, piece: Vec<u8>) {
    let stored = async {
        let at = target.store.read_inline("log.now", |tx| Ok(tx.at())).await?;
        let frames = vec![Frame { stream: LogStream::Stdout, at, data: piece }];
        let chunk = Chunk { log: target.log, epoch: target.epoch, offset, frames };
        target.logs.append_in_run(target.run, chunk).await
    };
    if let Err(failure) = stored.await {
        tracing::warn!(%failure, log = %target.log, "a step's text could not be stored");
    }
}
