//! Hides secret values in output, wherever the pieces of it are cut. Holds back no more than could still become one.

use wire::model::bug;
use wire::model::secret::masked;

const MASK: &[u8] = b"***";

#[derive(Default)]
pub struct Masker {
    /// By their first byte: a value of many lines must not slow down every byte of the output. Longest first, so that a
    /// secret inside a longer one never shows the longer one's rest.
    secrets: Vec<Vec<Vec<u8>>>,
    held: Vec<u8>,
    /// How many of the held bytes are already hidden by a mask that was written.
    covered: usize,
}

impl Masker {
    pub fn new(values: &[String]) -> Masker {
        let mut all: Vec<&[u8]> = values.iter().flat_map(|value| masked(value)).map(str::as_bytes).collect();
        all.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        all.dedup();
        if all.is_empty() {
            return Masker::default();
        }
        let mut secrets = vec![Vec::new(); 256];
        for secret in all {
            secrets[usize::from(secret[0])].push(secret.to_vec());
        }
        Masker { secrets, ..Masker::default() }
    }

    pub fn feed(&mut self, bytes: &[u8], shown: &mut Vec<u8>) {
        if self.secrets.is_empty() {
            return shown.extend_from_slice(bytes);
        }
        self.held.extend_from_slice(bytes);
        self.show(shown, false);
    }

    /// Nothing follows: what was held back is no secret.
    pub fn finish(&mut self, shown: &mut Vec<u8>) {
        self.show(shown, true);
    }

    fn show(&mut self, shown: &mut Vec<u8>, last: bool) {
        let bytes = std::mem::take(&mut self.held);
        let (mut at, mut hidden_to) = (0, self.covered);
        while at < bytes.len() {
            match self.look(&bytes[at..], last) {
                Match::Perhaps => break,
                Match::Secret(length) => {
                    if at >= hidden_to {
                        shown.extend_from_slice(MASK);
                    }
                    hidden_to = hidden_to.max(at + length);
                }
                Match::Plain => {}
            }
            if at >= hidden_to {
                shown.push(bytes[at]);
            }
            at += 1;
        }
        self.covered = hidden_to.saturating_sub(at);
        self.held = bytes[at..].to_vec();
    }

    fn look(&self, rest: &[u8], last: bool) -> Match {
        for secret in self.secrets.get(usize::from(rest[0])).into_iter().flatten() {
            if rest.starts_with(secret) {
                return Match::Secret(secret.len());
            }
            if !last && secret.starts_with(rest) && !bug!(mask_within_a_chunk) {
                return Match::Perhaps;
            }
        }
        Match::Plain
    }
}

enum Match {
    Plain,
    Secret(usize),
    /// The bytes end where a secret may go on.
    Perhaps,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(secrets: &[&str], text: &str, expected: &str) {
        let secrets: Vec<String> = secrets.iter().map(|s| s.to_string()).collect();
        for size in 1..=text.len() {
            let (mut masker, mut shown) = (Masker::new(&secrets), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                masker.feed(piece, &mut shown);
            }
            masker.finish(&mut shown);
            assert_eq!(String::from_utf8_lossy(&shown), expected, "{text} in pieces of {size}");
        }
    }

    #[test]
    fn secrets_are_hidden_wherever_the_bytes_are_cut() {
        check(&["hunter22"], "pass hunter22!\nhunter2 hunter22", "pass ***!\nhunter2 ***");
        check(&["hunter22", "hunter2233"], "hunter2233 hunter22 hunter223", "*** *** ***3");
        check(&["password1", "word1234"], "xpassword1234x", "x***x");
        check(&["aaaaaa"], "aaaaaaaaa b", "*** b");
        check(&["short"], "short", "short");
        check(&[], "anything", "anything");
        check(&["abcabcabd"], "abcabcabcabd", "abc***");
    }

    #[test]
    fn each_line_of_a_value_is_hidden() {
        let key = "-----BEGIN-----\nMIIEvQIBADAN\n  Bgkqhkid==  \nab\n-----END-----\n";
        check(&[key], key, "***");
        check(&[key], "1 MIIEvQIBADAN\n2 Bgkqhkid==\n3 ab\n", "1 ***\n2 ***\n3 ab\n");
        check(&[key], "-----BEGIN-----\r\nMIIEvQIBADAN\r\n", "***\r\n***\r\n");
    }

    #[test]
    fn only_what_could_become_a_secret_is_held_back() {
        let (mut masker, mut shown) = (Masker::new(&["hunter22".to_owned()]), Vec::new());
        masker.feed(b"ready: hunt", &mut shown);
        assert_eq!(shown, b"ready: ");
    }
}
