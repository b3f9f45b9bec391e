//! Many records of calls in one body: each is its length in four bytes, big-endian, and its bytes. Its id is the hash of the bytes, so that none is
//! sent. Never looks into a record.

/// A sender closes a body at either bound; a reader refuses more, but for one record that is larger alone.
pub const BODY_BYTES: usize = 4 << 20;
pub const BODY_RECORDS: usize = 1_000;
/// One record.
pub const RECORD_BYTES: usize = 64 << 20;

/// A body that is not made of records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Appends one record.
pub fn push(body: &mut Vec<u8>, record: &[u8]) {
    body.extend_from_slice(&(record.len() as u32).to_be_bytes());
    body.extend_from_slice(record);
}

/// Reads records as they arrive. Never holds more than what was fed and one record.
#[derive(Debug, Default)]
pub struct Unpacker {
    rest: Vec<u8>,
}

impl Unpacker {
    /// The records that are complete now.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        self.rest.extend_from_slice(bytes);
        let (mut records, mut at) = (Vec::new(), 0);
        while let Some(head) = self.rest.get(at..at + 4) {
            let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length == 0 || length > RECORD_BYTES {
                return Err(Malformed(format!("a record has 1 to {RECORD_BYTES} bytes, not {length}")));
            }
            let Some(record) = self.rest.get(at + 4..at + 4 + length) else { break };
            records.push(record.to_vec());
            at += 4 + length;
        }
        self.rest.drain(..at);
        Ok(records)
    }

    /// The body has ended.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("it ends in the middle of a record".into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_however_they_are_cut() {
        let records = [b"one".to_vec(), vec![7; 300], b"x".to_vec()];
        let mut body = Vec::new();
        records.iter().for_each(|record| push(&mut body, record));
        for piece in [1, 3, 4, 100, body.len()] {
            let mut unpacker = Unpacker::default();
            let read: Vec<Vec<u8>> = body.chunks(piece).flat_map(|bytes| unpacker.feed(bytes).unwrap()).collect();
            assert_eq!(read, records, "in pieces of {piece}");
            unpacker.finish().unwrap();
        }
        let mut cut = Unpacker::default();
        cut.feed(&body[..body.len() - 1]).unwrap();
        assert!(cut.finish().is_err());
        for bad in [[0, 0, 0, 0], [0xff, 0xff, 0xff, 0xff]] {
            assert!(Unpacker::default().feed(&bad).is_err());
        }
    }
}
