//! Reads server-sent events: lines may end in LF, CRLF or CR, and bytes may be cut anywhere.
//! Never reconnects: the caller knows what it has seen.

use super::{ClientError, Response};
use bytes::Bytes;
use std::time::Duration;

/// A server says something at least every 15 s, be it a comment; three misses mean the connection is dead.
const SILENT_FOR: Duration = Duration::from_secs(45);
/// Bytes of one event with its comments. The largest events are desired documents and pages of log.
const LONGEST_EVENT: usize = 64 << 20;
/// Bytes of an event's id: it is sent back in a header.
const LONGEST_ID: usize = 32 << 10;

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
    /// Arrived and not parsed yet. Events are taken out one at a time, because each of them has a copy of the last id.
    unread: Bytes,
    silent_for: Duration,
}

impl Events {
    pub(super) fn new(response: Response) -> Events {
        Events { response, parser: EventParser::default(), unread: Bytes::new(), silent_for: SILENT_FOR }
    }

    /// How long nothing at all may arrive before the stream counts as broken.
    pub fn silent_for(mut self, limit: Duration) -> Events {
        self.silent_for = limit;
        self
    }

    /// The next event; `None` when the server ended the stream. Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        loop {
            let (parsed, event) = self.parser.next(&self.unread)?;
            self.unread = self.unread.slice(parsed..);
            if event.is_some() {
                return Ok(event);
            }
            let silent = |_| ClientError::Unreachable("the stream of events fell silent".to_owned());
            let Some(bytes) = tokio::time::timeout(self.silent_for, self.response.chunk()).await.map_err(silent)??
            else {
                return Ok(None);
            };
            self.unread = bytes;
        }
    }
}

/// Turns bytes into events, whatever their cuts.
#[derive(Debug)]
pub struct EventParser {
    line: Vec<u8>,
    /// A CR was the last byte: an LF right after it belongs to the same line end.
    after_cr: bool,
    begun: bool,
    last_id: String,
    event: String,
    data: Option<String>,
    size: usize,
    longest: usize,
}

impl Default for EventParser {
    fn default() -> EventParser {
        EventParser {
            line: Vec::new(),
            after_cr: false,
            begun: false,
            last_id: String::new(),
            event: String::new(),
            data: None,
            size: 0,
            longest: LONGEST_EVENT,
        }
    }
}

impl EventParser {
    /// Parses up to the end of the next event, or all of `bytes` if there is no end in them. Returns how many bytes were parsed: the
    /// rest is to be handed in again.
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), ClientError> {
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
            if let Some(event) = self.line(&line)? {
                return Ok((bytes.len() - rest.len(), Some(event)));
            }
        }
        if !rest.is_empty() {
            self.after_cr = false;
            self.keep(rest)?;
        }
        Ok((bytes.len(), None))
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), ClientError> {
        self.size += part.len();
        if self.size > self.longest {
            return Err(ClientError::TooMuch(format!("an event of more than {} KiB", self.longest >> 10)));
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Event>, ClientError> {
        let line = String::from_utf8_lossy(line);
        let line = if std::mem::replace(&mut self.begun, true) { &*line } else { line.trim_start_matches('\u{feff}') };
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.to_owned(),
            "id" if value.len() > LONGEST_ID => {
                return Err(ClientError::TooMuch(format!("an event's id of more than {} KiB", LONGEST_ID >> 10)));
            }
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
        Ok(None)
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

    fn feed(parser: &mut EventParser, mut bytes: &[u8]) -> Result<Vec<Event>, ClientError> {
        let mut events = Vec::new();
        loop {
            let (parsed, event) = parser.next(bytes)?;
            bytes = &bytes[parsed..];
            match event {
                Some(event) => events.push(event),
                None => return Ok(events),
            }
        }
    }

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
                heard.extend(feed(&mut parser, piece).unwrap().into_iter().map(|e| (e.id, e.event, e.data)));
            }
            assert_eq!(heard, said(), "pieces of {size}");
        }
    }

    /// An endless line, an event of endless lines, and endless comments without an event.
    #[test]
    fn an_endless_event_is_refused() {
        for line in ["x", "data: x\n", "data\n", ": x\n", "event: x\r\n"] {
            let mut parser = EventParser { longest: 100_000, ..EventParser::default() };
            let piece = line.repeat(1000);
            let refused = (0..101).map(|_| feed(&mut parser, piece.as_bytes())).find_map(Result::err);
            assert!(matches!(refused, Some(ClientError::TooMuch(_))), "{line:?}");
        }
    }

    /// Many events that share one long id: only one copy of it is made at a time.
    #[test]
    fn an_event_is_parsed_when_it_is_taken() {
        let id = "7".repeat(LONGEST_ID);
        let text = format!("id: {id}\ndata: 1\n\ndata: 2\n\ndata: 3\n\n");
        let mut parser = EventParser::default();
        let (parsed, event) = parser.next(text.as_bytes()).unwrap();
        assert_eq!((event.unwrap().data.as_str(), &text[parsed..]), ("1", "data: 2\n\ndata: 3\n\n"));
        let longer = format!("id: {id}7\n");
        assert!(matches!(parser.next(longer.as_bytes()), Err(ClientError::TooMuch(_))));
    }
}
