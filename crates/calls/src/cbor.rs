//! The subset of CBOR that records are written in, in its deterministic form (RFC 8949, section 4.2.1): shortest heads and floats,
//! definite lengths, map keys in the order of their encoded bytes, one NaN, no negative zero. No tags.
//! The reader refuses every other spelling, so that one value has one sequence of bytes.

use crate::unreadable::{Flaw, bounds, payload, text};

const UINT: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;
const NULL: u8 = 0xf6;
const F16: u8 = 0xf9;
const F32: u8 = 0xfa;
const F64: u8 = 0xfb;

#[derive(Debug, Default)]
pub(crate) struct Writer(pub Vec<u8>);

impl Writer {
    fn head(&mut self, major: u8, argument: u64) {
        let major = major << 5;
        match argument {
            0..=23 => self.0.push(major | argument as u8),
            24..=0xff => self.0.extend([major | 24, argument as u8]),
            0x100..=0xffff => {
                self.0.push(major | 25);
                self.0.extend((argument as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.0.push(major | 26);
                self.0.extend((argument as u32).to_be_bytes());
            }
            _ => {
                self.0.push(major | 27);
                self.0.extend(argument.to_be_bytes());
            }
        }
    }

    pub fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(positive) => self.head(UINT, positive),
            Err(_) => self.head(NEGATIVE, !value as u64),
        }
    }
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.head(BYTES, bytes.len() as u64);
        self.0.extend(bytes);
    }
    pub fn text(&mut self, text: &str) {
        self.head(TEXT, text.len() as u64);
        self.0.extend(text.as_bytes());
    }
    pub fn array(&mut self, length: usize) {
        self.head(ARRAY, length as u64);
    }
    pub fn map(&mut self, length: usize) {
        self.head(MAP, length as u64);
    }
    pub fn bool(&mut self, value: bool) {
        self.0.push(if value { TRUE } else { FALSE });
    }
    pub fn null(&mut self) {
        self.0.push(NULL);
    }

    /// The shortest of the three widths that holds the value exactly.
    pub fn float(&mut self, value: f64) {
        let value = if value == 0.0 { 0.0 } else { value };
        let single = value as f32;
        if value.is_nan() {
            self.0.extend([F16, 0x7e, 0x00]);
        } else if let Some(half) = half_from(single).filter(|_| f64::from(single) == value) {
            self.0.push(F16);
            self.0.extend(half.to_be_bytes());
        } else if f64::from(single) == value {
            self.0.push(F32);
            self.0.extend(single.to_be_bytes());
        } else {
            self.0.push(F64);
            self.0.extend(value.to_be_bytes());
        }
    }
}

/// The half-precision bits of a number that has such, without rounding.
fn half_from(value: f32) -> Option<u16> {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let (exponent, fraction) = (((bits >> 23) & 0xff) as i32 - 127, bits & 0x7f_ffff);
    match exponent {
        _ if bits << 1 == 0 => Some(sign),
        128 if fraction == 0 => Some(sign | 0x7c00),
        -14..=15 if fraction & 0x1fff == 0 => Some(sign | ((exponent + 15) as u16) << 10 | (fraction >> 13) as u16),
        // Subnormal: a multiple of 2⁻²⁴.
        -24..=-15 => {
            let (whole, shift) = (fraction | 0x80_0000, -1 - exponent);
            (whole.trailing_zeros() as i32 >= shift).then(|| sign | (whole >> shift) as u16)
        }
        _ => None,
    }
}

fn half_to(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let value = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { value } else { -value }
}

/// The kind of the item that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Bytes,
    Array,
    Null,
    Other,
}

pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }
    pub fn position(&self) -> usize {
        self.at
    }
    /// What was read since a position.
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }
    pub fn end(&self) -> Result<(), Flaw> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(bounds("trailing_bytes")) }
    }

    pub fn next(&self) -> Result<Next, Flaw> {
        let first = *self.bytes.get(self.at).ok_or(bounds("too_short"))?;
        Ok(match first >> 5 {
            BYTES => Next::Bytes,
            ARRAY => Next::Array,
            _ if first == NULL => Next::Null,
            _ => Next::Other,
        })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Flaw> {
        let left = &self.bytes[self.at..];
        let taken = left.get(..length).ok_or(bounds("too_short"))?;
        self.at += length;
        Ok(taken)
    }

    /// Major type and argument; refuses an argument that a shorter head could hold, and lengths that come later.
    fn head(&mut self) -> Result<(u8, u64), Flaw> {
        let first = self.take(1)?[0];
        let (argument, least) = match first & 0x1f {
            small @ 0..=23 => (u64::from(small), 0),
            24 => (self.be(1)?, 24),
            25 => (self.be(2)?, 0x100),
            26 => (self.be(4)?, 0x1_0000),
            27 => (self.be(8)?, 0x1_0000_0000),
            _ => return Err(payload("indefinite_or_reserved")),
        };
        if argument < least { Err(payload("not_shortest")) } else { Ok((first >> 5, argument)) }
    }

    fn be(&mut self, length: usize) -> Result<u64, Flaw> {
        Ok(self.take(length)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    pub fn int(&mut self) -> Result<i64, Flaw> {
        let (major, argument) = self.head()?;
        let value = i64::try_from(argument).map_err(|_| bounds("integer_too_large"));
        match major {
            UINT => value,
            NEGATIVE => value.map(|value| !value),
            _ => Err(payload("not_an_integer")),
        }
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Flaw> {
        match self.head()? {
            (BYTES, length) => self.take(usize::try_from(length).map_err(|_| bounds("too_short"))?),
            _ => Err(payload("not_bytes")),
        }
    }

    pub fn text(&mut self) -> Result<&'a str, Flaw> {
        let (TEXT, length) = self.head()? else { return Err(payload("not_text")) };
        let bytes = self.take(usize::try_from(length).map_err(|_| bounds("too_short"))?)?;
        let read = std::str::from_utf8(bytes).map_err(|_| text("not_utf8"))?;
        if unicode_normalization::is_nfc(read) { Ok(read) } else { Err(text("not_nfc")) }
    }

    pub fn array(&mut self) -> Result<usize, Flaw> {
        self.container(ARRAY, 1, "not_an_array")
    }
    /// An array of exactly that many items.
    pub fn fields(&mut self, expected: usize) -> Result<(), Flaw> {
        if self.array()? == expected { Ok(()) } else { Err(bounds("wrong_field_count")) }
    }
    pub fn map(&mut self) -> Result<usize, Flaw> {
        self.container(MAP, 2, "not_a_map")
    }

    /// An item takes at least one byte: a count that the rest cannot hold is refused before anything is allocated for it.
    fn container(&mut self, expected: u8, bytes_each: usize, otherwise: &'static str) -> Result<usize, Flaw> {
        let (major, length) = self.head()?;
        let room = (self.bytes.len() - self.at) / bytes_each;
        match usize::try_from(length) {
            _ if major != expected => Err(payload(otherwise)),
            Ok(length) if length <= room => Ok(length),
            _ => Err(bounds("count_past_end")),
        }
    }

    pub fn bool(&mut self) -> Result<bool, Flaw> {
        match self.take(1)?[0] {
            FALSE => Ok(false),
            TRUE => Ok(true),
            _ => Err(payload("not_a_bool")),
        }
    }

    pub fn null(&mut self) -> Result<(), Flaw> {
        if self.take(1)?[0] == NULL { Ok(()) } else { Err(payload("not_null")) }
    }

    pub fn float(&mut self) -> Result<f64, Flaw> {
        let start = self.at;
        let value = match self.take(1)?[0] {
            F16 => half_to(self.be(2)? as u16),
            F32 => f64::from(f32::from_bits(self.be(4)? as u32)),
            F64 => f64::from_bits(self.be(8)?),
            _ => return Err(payload("not_a_float")),
        };
        // Written again it must be the same: this refuses longer widths, other NaNs and the negative zero at once.
        let mut canonical = Writer::default();
        canonical.float(value);
        if canonical.0 == self.since(start) { Ok(value) } else { Err(payload("float_not_canonical")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_take_the_shortest_width_that_is_exact() {
        let table: &[(f64, &str)] = &[
            (0.0, "f90000"),
            (-0.0, "f90000"),
            (1.0, "f93c00"),
            (1.5, "f93e00"),
            (65504.0, "f97bff"),
            (65505.0, "fa477fe100"),
            (100000.0, "fa47c35000"),
            (5.960464477539063e-8, "f90001"),
            (6.103515625e-5, "f90400"),
            (6.097555160522461e-5, "f903ff"),
            (2.980_232_238_769_531_3e-8, "fa33000000"),
            (-4.1, "fbc010666666666666"),
            (1.1, "fb3ff199999999999a"),
            (3.4028234663852886e38, "fa7f7fffff"),
            (1e300, "fb7e37e43c8800759c"),
            (f64::INFINITY, "f97c00"),
            (f64::NEG_INFINITY, "f9fc00"),
            (f64::NAN, "f97e00"),
            (-f64::NAN, "f97e00"),
        ];
        for (value, hex) in table {
            let mut writer = Writer::default();
            writer.float(*value);
            let shown: String = writer.0.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(shown, *hex, "{value}");
            let read = Reader::new(&writer.0).float().unwrap();
            assert!(read == *value || read.is_nan() && value.is_nan(), "{value} was read as {read}");
        }
    }

    #[test]
    fn every_half_that_is_read_is_written_as_it_was() {
        for bits in 0..=u16::MAX {
            let value = half_to(bits);
            if value.is_nan() || bits == 0x8000 {
                continue;
            }
            assert_eq!(half_from(value as f32), Some(bits), "{bits:04x}");
        }
    }

    #[test]
    fn integers_at_the_borders_read_back() {
        for value in [0, 23, 24, 255, 256, 65535, 65536, 4294967295, 4294967296, i64::MAX] {
            for value in [value, !value] {
                let mut writer = Writer::default();
                writer.int(value);
                assert_eq!(Reader::new(&writer.0).int(), Ok(value));
            }
        }
        let beyond = [0x1b, 0x80, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Reader::new(&beyond).int(), Err(bounds("integer_too_large")));
    }
}
