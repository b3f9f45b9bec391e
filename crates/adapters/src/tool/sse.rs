//! Reads the data of server-sent events: lines end in LF, CRLF or CR, and bytes may be cut anywhere. Ids and retry times are ignored:
//! a tool never reconnects, because it does not know what a second request would do.

/// Bytes of one event.
const LONGEST_EVENT: usize = 16 << 20;

#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    data: Option<String>,
    /// A CR was the last byte: an LF right after it belongs to the same line end.
    after_cr: bool,
    size: usize,
}

/// An event that does not end.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl Events {
    /// The data of the events that these bytes complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        for &byte in bytes {
            let second_half = std::mem::replace(&mut self.after_cr, byte == b'\r') && byte == b'\n';
            match byte {
                _ if second_half => {}
                b'\r' | b'\n' => events.extend(self.end_line()),
                _ => {
                    self.size += 1;
                    if self.size > LONGEST_EVENT {
                        return Err(TooLong);
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(events)
    }

    /// The stream ended. Some servers leave out the empty line after their last event.
    pub fn finish(&mut self) -> Option<String> {
        let last = (!self.line.is_empty()).then(|| self.end_line()).flatten();
        last.or_else(|| self.end_line())
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_start_matches('\u{feff}');
        if line.is_empty() {
            self.size = 0;
            return self.data.take();
        }
        if let Some(value) = line.strip_prefix("data:") {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            }
        } else if line.starts_with(':') && self.data.is_none() {
            // A keep-alive comment is no part of an event.
            self.size = 0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let text = "\u{feff}: hi\r\n\r\nid: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\nevent: x\ndata:\u{e9}\n\n: ping\rdata: y\r\rdata: last";
        for size in 1..=text.len() {
            let mut events = Events::default();
            let mut found: Vec<String> =
                text.as_bytes().chunks(size).flat_map(|piece| events.feed(piece).unwrap()).collect();
            found.extend(events.finish());
            assert_eq!(found, ["{\"a\":\n1}", "\u{e9}", "y", "last"], "pieces of {size}");
        }
    }

    #[test]
    fn an_event_has_a_bound_and_comments_do_not_add_up() {
        let mut events = Events::default();
        for _ in 0..3 {
            assert_eq!(events.feed(format!(": {}\n", "x".repeat(LONGEST_EVENT / 2)).as_bytes()), Ok(vec![]));
        }
        let line = format!("data: {}\n", "x".repeat(LONGEST_EVENT / 2));
        assert_eq!(events.feed(line.as_bytes()), Ok(vec![]));
        assert_eq!(events.feed(line.as_bytes()), Err(TooLong));
    }
}
