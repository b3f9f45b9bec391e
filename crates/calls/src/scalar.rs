//! Scalars that keep their canonical form: floats, texts and bytes. What cannot have it is refused when it is made.

use std::cmp::Ordering;
use std::fmt;
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// Longer bytes are blobs, and longer texts are refused: a record is read whole.
pub const MAX_BYTES: usize = 1 << 20;

/// A number that is not an integer. All NaNs are one, and there is no negative zero, so that equal numbers have equal bits.
#[derive(Debug, Clone, Copy)]
pub struct Float(f64);

impl Float {
    pub fn new(value: f64) -> Float {
        match value {
            _ if value.is_nan() => Float(f64::NAN),
            _ if value == 0.0 => Float(0.0),
            _ => Float(value),
        }
    }
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Float {
    fn eq(&self, other: &Float) -> bool {
        self.0.total_cmp(&other.0) == Ordering::Equal
    }
}
impl Eq for Float {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes are more than the {MAX_BYTES} of one value: store them as a blob and pass its URI")]
pub struct TooLong {
    pub bytes: usize,
}

/// Text in normalization form C.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(String);

impl Text {
    /// Normalises the text.
    pub fn new(text: &str) -> Result<Text, TooLong> {
        let text = if is_nfc(text) { text.to_owned() } else { text.nfc().collect() };
        if text.len() > MAX_BYTES { Err(TooLong { bytes: text.len() }) } else { Ok(Text(text)) }
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(Vec<u8>);

impl Bytes {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Bytes, TooLong> {
        let bytes = bytes.into();
        if bytes.len() > MAX_BYTES { Err(TooLong { bytes: bytes.len() }) } else { Ok(Bytes(bytes)) }
    }
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}
