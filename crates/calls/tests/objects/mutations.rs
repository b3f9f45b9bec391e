//! Fuzzing without a fuzzer: mutates records by a fixed sequence of numbers and reads what comes out. Each input is refused, or is the
//! canonical encoding of what it is read as; nothing panics. `CALLS_FUZZ=10000000` sets how many inputs are tried (`scripts/calls`).

use crate::golden::records;
use calls::Object;

/// Few enough for every run of the suite.
const INPUTS: u64 = 200_000;
const MAX_BYTES: usize = 4_096;

/// splitmix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Bytes that mean something at many places: heads, kinds, borders of lengths.
const TELLING: &[u8] = &[
    0x00, 0x01, 0x02, 0x08, 0x09, 0x0a, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x20, 0x3b, 0x40, 0x58, 0x5b, 0x5f, 0x60, 0x78,
    0x80, 0x81, 0x82, 0x83, 0x86, 0x9b, 0x9f, 0xa0, 0xa1, 0xbf, 0xc0, 0xf4, 0xf5, 0xf6, 0xf9, 0xfa, 0xfb, 0xff,
];

fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], numbers: &mut Numbers) {
    let at = numbers.below(bytes.len());
    match numbers.below(7) {
        _ if bytes.is_empty() => bytes.push(numbers.next() as u8),
        0 => bytes[at] ^= 1 << numbers.below(8),
        1 => bytes[at] = TELLING[numbers.below(TELLING.len())],
        2 => bytes.insert(at, TELLING[numbers.below(TELLING.len())]),
        3 => drop(bytes.remove(at)),
        4 => bytes.truncate(at),
        5 => {
            // A piece of another record in the middle of this one.
            let other = &others[numbers.below(others.len())];
            let start = numbers.below(other.len());
            let end = start + numbers.below(other.len() - start);
            bytes.splice(at..at, other[start..end].iter().copied());
        }
        _ => {
            let end = (at + numbers.below(40)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    bytes.truncate(MAX_BYTES);
}

#[test]
fn mutated_records_are_refused_or_canonical() {
    let inputs = std::env::var("CALLS_FUZZ").ok().map_or(INPUTS, |number| number.parse().expect("a number of inputs"));
    let mut corpus = records();
    let originals = corpus.len();
    let mut numbers = Numbers(15);
    let mut accepted = 0u64;
    for _ in 0..inputs {
        let mut bytes = corpus[numbers.below(corpus.len())].clone();
        for _ in 0..=numbers.below(3) {
            mutate(&mut bytes, &corpus, &mut numbers);
        }
        let Ok(object) = Object::decode(&bytes) else { continue };
        assert_eq!(object.encode(), bytes, "two spellings of {object:?}");
        let _ = (object.references(), object.blob());
        accepted += 1;
        // What is accepted is mutated further; the corpus stays small.
        let place = originals + numbers.below(512);
        if place < corpus.len() { corpus[place] = bytes } else { corpus.push(bytes) }
    }
    assert!(accepted > inputs / 100, "only {accepted} of {inputs} were accepted: the mutations are too coarse");
}
