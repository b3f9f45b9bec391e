//! What happened in a simulated world, line by line, and one number for all of it: the same seed must give the same number.

use std::fmt::Write as _;

#[derive(Default)]
pub struct Trace {
    hash: u64,
    lines: Vec<String>,
}

impl Trace {
    pub fn note(&mut self, at_ms: i64, what: std::fmt::Arguments<'_>) {
        let mut line = format!("{:>9}.{:03} ", at_ms / 1000, at_ms % 1000);
        // Writing to a string cannot fail.
        let _ = line.write_fmt(what);
        for byte in line.bytes() {
            // FNV-1a: compared, never trusted.
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines.push(line);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }
    pub fn into_lines(self) -> Vec<String> {
        self.lines
    }
}
