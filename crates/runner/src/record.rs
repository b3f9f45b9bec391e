//! Records with checksums: with them every file of this crate distinguishes whole from torn writes. Does not know their contents.

/// Length and checksum stand before the bytes.
pub const HEAD: usize = 12;

/// The first eight bytes of the BLAKE3 of all parts.
pub fn checksum(parts: &[&[u8]]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

pub fn seal(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("records are far below 4 GiB").to_le_bytes();
    let mut sealed = Vec::with_capacity(HEAD + body.len());
    sealed.extend_from_slice(&length);
    sealed.extend_from_slice(&checksum(&[&length, body]).to_le_bytes());
    sealed.extend_from_slice(body);
    sealed
}

/// The first whole record of `bytes`, if there is one.
pub fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (check, rest) = rest.split_first_chunk::<8>()?;
    let body = rest.get(..u32::from_le_bytes(*length) as usize).filter(|body| !body.is_empty())?;
    (checksum(&[length, body]) == u64::from_le_bytes(*check)).then_some(body)
}

#[test]
fn a_torn_record_is_none() {
    let sealed = seal(b"outcome");
    assert_eq!(open(&sealed), Some(&b"outcome"[..]));
    for cut in 0..sealed.len() {
        assert_eq!(open(&sealed[..cut]), None, "cut at {cut}");
        let mut torn = sealed.clone();
        torn[cut] ^= 1;
        assert_eq!(open(&torn), None, "flipped at {cut}");
    }
    assert_eq!(open(&[0; 64]), None);
}
