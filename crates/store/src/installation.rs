//! The identity of an installation: a control id and a key, made once, in a file beside the database and not in it, so that machines can
//! be recognised after the database was lost. The key never leaves this host and is never logged.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::stub::{SealedStub, Stub};
use model::{Failure, Refused, Trouble, TroubleKind, crash_point};
use ring::hmac;
use ring::rand::SecureRandom;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

const FILE: &str = "installation.json";
const CONTROL_ID_LENGTH: usize = 8;
/// How a step token begins.
pub const STEP_TOKEN: &str = "rms_";
/// What an owner's proof is the tag of.
const OWNER: &[u8] = b"a new token for the owner";

#[derive(Clone)]
pub struct Installation {
    pub control_id: String,
    key: [u8; 32],
    /// Derived from the key once; used to check every request of a runner.
    runner_key: hmac::Key,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    control_id: String,
    /// base64
    key: String,
}

impl Installation {
    /// Reads the file in `folder`, or makes it. Two that start at once agree on one.
    pub fn open(folder: &Path) -> Result<Installation, Failure> {
        let path = folder.join(FILE);
        let trouble = |e: io::Error| {
            Failure::from(Trouble::new(TroubleKind::Database, format!("cannot use {}: {e}", path.display())))
        };
        if !path.try_exists().map_err(trouble)? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(trouble)?;
            write_once(folder, &path, &Installation::new(control_id(&random()), random())).map_err(trouble)?;
        }
        crate::private::file_if_there(&path)?;
        let text = fs::read_to_string(&path).map_err(trouble)?;
        parse(&text).ok_or_else(|| {
            let why = format!(
                "{} is damaged: restore it from a backup (without it running machines cannot be recognised)",
                path.display()
            );
            Refused::Conflict { why }.into()
        })
    }

    /// Whether it was made before, with whatever database it had then.
    pub fn exists(folder: &Path) -> bool {
        folder.join(FILE).exists()
    }

    /// A chosen identity, for simulations and tests.
    pub fn new(control_id: impl Into<String>, key: [u8; 32]) -> Installation {
        let runner_key = hmac::Key::new(hmac::HMAC_SHA256, &blake3::derive_key("remuda 2026 runner token", &key));
        Installation { control_id: control_id.into(), key, runner_key }
    }

    /// The token of the runner of this name: derived, so that it is good even after the database was lost.
    pub fn runner_token(&self, name: &str) -> String {
        let tag = hmac::sign(&self.runner_key, name.as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// In constant time.
    pub fn is_runner_token(&self, name: &str, token: &str) -> bool {
        unhex(token).is_some_and(|tag| hmac::verify(&self.runner_key, name.as_bytes(), &tag).is_ok())
    }

    /// A token that says `claim`, which is plain text without secrets.
    pub fn step_token(&self, claim: &str) -> String {
        let tag = hmac::sign(&self.step_key(), claim.as_bytes());
        let tag: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{STEP_TOKEN}{claim}.{tag}")
    }

    /// What a step token of this installation says. In constant time.
    pub fn read_step_token<'t>(&self, token: &'t str) -> Option<&'t str> {
        let (claim, tag) = token.strip_prefix(STEP_TOKEN)?.rsplit_once('.')?;
        hmac::verify(&self.step_key(), claim.as_bytes(), &unhex(tag)?).ok()?;
        Some(claim)
    }

    fn step_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.derived("remuda 2026 step token"))
    }

    /// What a runner keeps of a job, so that the job can be tracked again after the loss of the database.
    pub fn seal_stub(&self, stub: &Stub) -> SealedStub {
        let text = serde_json::to_string(stub).expect("a stub is plain data");
        let tag = hmac::sign(&self.stub_key(), text.as_bytes());
        let seal = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        SealedStub { text, seal }
    }

    /// The stub, if this installation has sealed it. In constant time.
    pub fn open_stub(&self, sealed: &SealedStub) -> Option<Stub> {
        hmac::verify(&self.stub_key(), sealed.text.as_bytes(), &unhex(&sealed.seal)?).ok()?;
        serde_json::from_str(&sealed.text).ok()
    }

    fn stub_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.derived("remuda 2026 stub of a job"))
    }

    /// Proves to this installation's server that the caller can read the installation's file, and so is its owner.
    pub fn owner_proof(&self) -> String {
        let tag = hmac::sign(&self.owner_key(), OWNER);
        format!("owner.{}", tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    /// In constant time.
    pub fn is_owner_proof(&self, text: &str) -> bool {
        let Some(hex) = text.strip_prefix("owner.") else { return false };
        unhex(hex).is_some_and(|tag| hmac::verify(&self.owner_key(), OWNER, &tag).is_ok())
    }

    fn owner_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.derived("remuda 2026 owner's proof"))
    }

    /// A derived key for one purpose: none of them can be computed from another.
    pub(crate) fn derived(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.key)
    }
}

impl std::fmt::Debug for Installation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Installation({})", self.control_id)
    }
}

/// From the system's random generator; without one the process panics.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    ring::rand::SystemRandom::new().fill(&mut bytes).expect("the system gives random bytes");
    bytes
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}

/// Base 36, from bytes that are not worth refusing: 256 is not a multiple of 36, and a name needs no even odds.
fn control_id(bytes: &[u8; CONTROL_ID_LENGTH]) -> String {
    bytes.iter().map(|byte| char::from_digit(u32::from(byte % 36), 36).expect("a digit below 36")).collect()
}

/// The first writer wins: a link never replaces a file.
fn write_once(folder: &Path, path: &Path, made: &Installation) -> io::Result<()> {
    let stored = Stored { control_id: made.control_id.clone(), key: STANDARD.encode(made.key) };
    let mut draft = folder.join(FILE).into_os_string();
    draft.push(format!(".{}", control_id(&random())));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(serde_json::to_string_pretty(&stored)?.as_bytes())?;
    file.sync_all()?;
    let linked = crash_point!("installation.write", fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    fs::File::open(folder)?.sync_all()
}

fn parse(text: &str) -> Option<Installation> {
    let stored: Stored = serde_json::from_str(text).ok()?;
    let key: [u8; 32] = STANDARD.decode(stored.key).ok()?.try_into().ok()?;
    let id = stored.control_id;
    let plain = id.len() == CONTROL_ID_LENGTH && id.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase());
    plain.then(|| Installation::new(id, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_installation_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (Installation::open(folder.path()).unwrap(), Installation::open(folder.path()).unwrap());
        assert_eq!((first.control_id.as_str(), first.key), (second.control_id.as_str(), second.key));
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays behind");
    }

    #[test]
    fn a_damaged_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(Installation::open(folder.path()).unwrap_err().to_string().contains("is damaged"));
        assert_eq!(fs::read_to_string(folder.path().join(FILE)).unwrap(), "{");
    }

    #[test]
    fn a_runner_token_is_good_for_its_name_only() {
        let ours = Installation::new("abcd1234", [7; 32]);
        let token = ours.runner_token("repl-abcd1234-1-2");
        assert!(ours.is_runner_token("repl-abcd1234-1-2", &token));
        assert!(!ours.is_runner_token("repl-abcd1234-1-3", &token));
        assert!(!Installation::new("abcd1234", [8; 32]).is_runner_token("repl-abcd1234-1-2", &token));
        assert!(!ours.is_runner_token("repl-abcd1234-1-2", "é"));
        assert!(!ours.is_runner_token("repl-abcd1234-1-2", ""));
    }

    #[test]
    fn a_step_token_says_what_it_was_made_for() {
        let (ours, others) = (Installation::new("abcd1234", [7; 32]), Installation::new("abcd1234", [8; 32]));
        let token = ours.step_token("1.2.3");
        assert_eq!(ours.read_step_token(&token), Some("1.2.3"));
        assert_eq!(others.read_step_token(&token), None);
        for wrong in [token.replace("1.2.3", "1.2.4"), token.replace("rms_", ""), "rms_".into(), "rms_1.é".into()] {
            assert_eq!(ours.read_step_token(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_who_has_the_key_can_prove_to_be_its_owner() {
        let ours = Installation::new("abcd1234", [7; 32]);
        assert!(ours.is_owner_proof(&ours.owner_proof()));
        let others = Installation::new("abcd1234", [8; 32]).owner_proof();
        for wrong in [others.as_str(), "", "owner.", "owner.é", &ours.runner_token("owner"), &ours.owner_proof()[6..]]
        {
            assert!(!ours.is_owner_proof(wrong), "{wrong}");
        }
    }
}
