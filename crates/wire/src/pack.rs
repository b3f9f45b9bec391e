//! A pack: many small blobs in one body, so that a tree of small files does not cost a request each.
//!
//! Each blob is a line `file HASH LENGTH` or `tree HASH LENGTH` followed by its bytes. A sender puts a tree behind everything it names. Hashes are
//! not checked here: the reader has to hash the bytes it keeps.

/// `Content-Type` of a pack.
pub const MEDIA_TYPE: &str = "application/vnd.remuda.pack";
/// A sender closes a pack at either bound; a reader refuses twice as much.
pub const PACK_BYTES: usize = 4 << 20;
pub const PACK_BLOBS: usize = 1_000;
/// Larger blobs travel alone.
pub const BLOB_BYTES: i64 = 256 << 10;
/// `tree`, 64 digits and a length, with room to spare.
const LINE_BYTES: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// The document of a folder, which must not be kept before what it names.
    pub is_tree: bool,
    pub hash: String,
    pub bytes: Vec<u8>,
}

/// A body that is no pack, or one that exceeds the limits of a pack.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Appends one blob.
pub fn push(pack: &mut Vec<u8>, is_tree: bool, hash: &str, bytes: &[u8]) {
    let kind = if is_tree { "tree" } else { "file" };
    pack.extend_from_slice(format!("{kind} {hash} {}\n", bytes.len()).as_bytes());
    pack.extend_from_slice(bytes);
}

/// Reads a pack as it arrives. Never holds more than what was fed and not yet taken.
#[derive(Debug, Default)]
pub struct Unpacker {
    rest: Vec<u8>,
}

impl Unpacker {
    /// The blobs that are complete now.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Blob>, Malformed> {
        self.rest.extend_from_slice(bytes);
        let (mut blobs, mut at) = (Vec::new(), 0);
        while let Some((blob, length)) = next(&self.rest[at..])? {
            blobs.push(blob);
            at += length;
        }
        self.rest.drain(..at);
        Ok(blobs)
    }

    /// The body has ended.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("the pack ends in the middle of a blob".into())) }
    }
}

fn next(rest: &[u8]) -> Result<Option<(Blob, usize)>, Malformed> {
    let Some(end) = rest.iter().take(LINE_BYTES).position(|byte| *byte == b'\n') else {
        return if rest.len() < LINE_BYTES { Ok(None) } else { Err(Malformed("a line of the pack has no end".into())) };
    };
    let line = String::from_utf8_lossy(&rest[..end]);
    let bad = || Malformed(format!("`{line}` is not `file HASH LENGTH` or `tree HASH LENGTH`"));
    let mut words = line.split(' ');
    let (kind, hash, length) = match (words.next(), words.next(), words.next(), words.next()) {
        (Some(kind), Some(hash), Some(length), None) => (kind, hash, length),
        _ => return Err(bad()),
    };
    let is_tree = match kind {
        "file" => false,
        "tree" => true,
        _ => return Err(bad()),
    };
    let length: usize = length.parse().map_err(|_| bad())?;
    if length > BLOB_BYTES as usize || !model::spec::is_hash(hash) {
        return Err(bad());
    }
    let whole = end + 1 + length;
    if rest.len() < whole {
        return Ok(None);
    }
    let blob = Blob { is_tree, hash: hash.to_owned(), bytes: rest[end + 1..whole].to_vec() };
    Ok(Some((blob, whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(is_tree: bool, digit: &str, bytes: &[u8]) -> Blob {
        Blob { is_tree, hash: digit.repeat(64), bytes: bytes.to_vec() }
    }

    #[test]
    fn a_pack_is_read_however_it_is_cut() {
        let blobs = [blob(false, "a", b"one\ntwo"), blob(false, "b", b""), blob(true, "c", b"{\"entries\":[]}")];
        let mut pack = Vec::new();
        blobs.iter().for_each(|blob| push(&mut pack, blob.is_tree, &blob.hash, &blob.bytes));
        for piece in [1, 2, 7, 64, pack.len()] {
            let mut unpacker = Unpacker::default();
            let read: Vec<Blob> = pack.chunks(piece).flat_map(|bytes| unpacker.feed(bytes).unwrap()).collect();
            assert_eq!(read, blobs, "in pieces of {piece}");
            unpacker.finish().unwrap();
        }
        let mut cut = Unpacker::default();
        cut.feed(&pack[..pack.len() - 1]).unwrap();
        assert!(cut.finish().is_err());
    }

    #[test]
    fn what_is_no_pack_is_refused() {
        let hash = "a".repeat(64);
        for text in [
            format!("blob {hash} 1\nx"),
            format!("file {hash}\nx"),
            format!("file {hash} -1\nx"),
            format!("file {hash} 1 1\nx"),
            format!("file {} 1\nx", "A".repeat(64)),
            format!("file {hash} {}\n", BLOB_BYTES + 1),
            format!("file {hash} {}\n", u64::MAX),
            "x".repeat(LINE_BYTES),
        ] {
            assert!(Unpacker::default().feed(text.as_bytes()).is_err(), "{text}");
        }
    }
}
