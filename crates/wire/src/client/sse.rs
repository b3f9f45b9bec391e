//! Reads server-sent events: lines may end in LF, CRLF or CR, and bytes may be cut anywhere.
//! Never reconnects: the caller knows what it has seen.

use super::{ClientError, Response};
use std::time::Duration;

/// A server says something at least every 15 s, be it a comment; three misses mean the connection is dead.
const SILENT_FOR: Duration = Duration::from_secs(45);
/// One event is at most a desired document or a page of log; more is a peer gone mad.
const LONGEST_EVENT: usize = 64 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The last id that was sent, on this event or before it.
    pub id: String,
    /// `message` unless named.
    pub event: String,
    pub data: String,
}

/// An open stream of events.
#[derive(Debug)]
pub struct Events {
    response: Response,
    parser: EventParser,
    ready: std::collections::VecDeque<Event>,
    silent_for: Duration,
}

impl Events {
    pub(super) fn new(response: Response) -> Events {
        Events { response, parser: EventParser::default(), ready: Default::default(), silent_for: SILENT_FOR }
    }

    /// How long nothing at all may arrive before the stream counts as broken.
    pub fn silent_for(mut self, limit: Duration) -> Events {
        self.silent_for = limit;
        self
    }

    /// The next event; `None` when the server ended the stream. Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let silent = |_| ClientError::Unreachable("the stream of events fell silent".to_owned());
            let Some(bytes) = tokio::time::timeout(self.silent_for, self.response.chunk()).await.map_err(silent)??
            else {
                return Ok(None);
            };
            self.ready.extend(self.parser.feed(&bytes)?);
        }
    }
}

/// Turns bytes into events, whatever their cuts.
#[derive(Debug, Default)]
pub struct EventParser {
    line: Vec<u8>,
    /// A CR was the last byte: an LF right after it belongs to the same line end.
    after_cr: bool,
    begun: bool,
    last_id: String,
    event: String,
    data: Option<String>,
    size: usize,
}

impl EventParser {
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ClientError> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
            let (part, ending) = (&rest[..end], rest[end]);
            rest = &rest[end + 1..];
            let second_half = self.after_cr && part.is_empty() && ending == b'\n';
            self.after_cr = ending == b'\r';
            if second_half {
                continue;
            }
            self.keep(part)?;
            let line = std::mem::take(&mut self.line);
            events.extend(self.line(&line));
        }
        if !rest.is_empty() {
            self.after_cr = false;
            self.keep(rest)?;
        }
        Ok(events)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), ClientError> {
        self.size += part.len();
        if self.size > LONGEST_EVENT {
            return Err(ClientError::Protocol(format!("an event of more than {LONGEST_EVENT} bytes")));
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Option<Event> {
        let line = String::from_utf8_lossy(line);
        let line = if std::mem::replace(&mut self.begun, true) { &*line } else { line.trim_start_matches('\u{feff}') };
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.to_owned(),
            "id" if !value.contains('\0') => self.last_id = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            _ => {} // a comment, `retry`, or a field of a later version
        }
        None
    }

    fn dispatch(&mut self) -> Option<Event> {
        self.size = 0;
        let event = std::mem::take(&mut self.event);
        let data = self.data.take()?;
        let event = if event.is_empty() { "message".to_owned() } else { event };
        Some(Event { id: self.last_id.clone(), event, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\u{feff}: hello\r\n\r\nid: 7\r\nevent: desired\r\ndata: {\"a\":\r\ndata:  1}\r\n\r\ndata\n\nid:8\ndata:é\n\n: tick\r\revent: lonely\n\ndata: x\rdata: y\r\rdata: unfinished\n";

    fn said() -> Vec<(String, String, String)> {
        [("7", "desired", "{\"a\":\n 1}"), ("7", "message", ""), ("8", "message", "é"), ("8", "message", "x\ny")]
            .map(|(id, event, data)| (id.to_owned(), event.to_owned(), data.to_owned()))
            .into()
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let bytes = TEXT.as_bytes();
        for size in 1..=bytes.len() {
            let mut parser = EventParser::default();
            let mut heard = Vec::new();
            for piece in bytes.chunks(size) {
                heard.extend(parser.feed(piece).unwrap().into_iter().map(|e| (e.id, e.event, e.data)));
            }
            assert_eq!(heard, said(), "pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut parser = EventParser::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..100).map(|_| parser.feed(&piece)).find_map(Result::err);
        assert!(matches!(refused, Some(ClientError::Protocol(_))));
    }
}
