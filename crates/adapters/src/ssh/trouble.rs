//! What ssh, a host's shell and a binary that does not start say, as a kind of trouble and a sentence that a person can act on.

use super::binary::{BUILD, VARIABLE};
use super::target::Target;
use model::{Trouble, TroubleKind};
use std::ffi::OsString;
use std::path::Path;

/// Of what a host wrote, as much is shown.
const SHOWN: usize = 300;

/// Ssh itself failed (exit code 255): nothing was begun on the host unless it says otherwise.
pub fn of_ssh(target: &Target, stderr: &str, known_hosts: &str) -> Trouble {
    let has = |text: &str| stderr.contains(text);
    let host = &target.text;
    let (kind, what) = if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
        let what = format!(
            "the host key of {host} is not the one that was accepted: somebody may be in between. If the host was set up anew, \
             remove its line from {known_hosts} (ssh-keygen -R) and accept the new one"
        );
        (TroubleKind::Auth, what)
    } else if has("Host key verification failed") || has("host key is known") {
        let what = format!(
            "the host key of {host} is not known here: connect once by `ssh {}`, or add the host with --accept-host-key \
             (accept_host_key = true)",
            target.host
        );
        (TroubleKind::Auth, what)
    } else if has("Permission denied") || has("Too many authentication failures") {
        (
            TroubleKind::Auth,
            format!(
                "{host} does not let us in ({}): {}",
                last_line(stderr),
                agent_fix(std::env::var_os("SSH_AUTH_SOCK"))
            ),
        )
    } else if has("Could not resolve hostname") {
        (
            TroubleKind::Network,
            format!("{host} has no address ({}): check its name, or the network here", last_line(stderr)),
        )
    } else {
        let said = last_line(stderr);
        let said = if said.is_empty() { "ssh ended without a word".to_owned() } else { said };
        (
            TroubleKind::Network,
            format!("{host} cannot be reached by ssh ({said}): see that it is up and that sshd listens"),
        )
    };
    Trouble::new(kind, what)
}

/// An agent that has left is the usual reason why a key that worked is refused.
fn agent_fix(socket: Option<OsString>) -> String {
    match socket {
        Some(socket) if !Path::new(&socket).exists() => format!(
            "the ssh agent of the control plane is gone (SSH_AUTH_SOCK names {}, which does not exist): set `identity`, or restart \
             the control plane where an agent runs",
            Path::new(&socket).display()
        ),
        _ => "check `identity`, the user's name, and authorized_keys there".to_owned(),
    }
}

/// The fixed script failed on the host.
pub fn of_script(target: &Target, code: Option<i32>, stderr: &str) -> Trouble {
    let (host, said) = (&target.text, last_line(stderr));
    let has = |text: &str| stderr.contains(text);
    let (kind, what) = if has("No space left") || has("Disk quota exceeded") {
        (
            TroubleKind::DiskFull,
            format!("no space is left on {host} ({said}): free some, or set `dir` to a larger file system"),
        )
    } else if has("GLIBC") || has("libc.so") || has("error while loading shared libraries") {
        let what = format!(
            "the runner's binary does not start on {host}, whose libc is too old ({said}): build the static one by `{BUILD}`"
        );
        (TroubleKind::InvalidSpec, what)
    } else if has("xec format error") || has("cannot execute binary file") {
        let what = format!(
            "the runner's binary is of another architecture than {host} ({said}): build one for it by `{BUILD}`"
        );
        (TroubleKind::InvalidSpec, what)
    } else if has("Read-only file system") || has("Permission denied") {
        let what = format!(
            "{host} does not let us write and execute in our folder ({said}): set `dir` to one that is the user's own, and not mounted noexec"
        );
        (TroubleKind::Auth, what)
    } else {
        let code = code.map_or("a signal".to_owned(), |code| format!("code {code}"));
        (TroubleKind::Internal, format!("{host} did not answer as a host does (ended with {code}): {said}"))
    };
    Trouble::new(kind, what)
}

pub fn wrong_architecture(target: &Target, is: &str, ours: &str) -> Trouble {
    let what = format!(
        "{} is {is}, and the runner's binary is for {ours}: build one for it by `{BUILD}` there and name it in {VARIABLE}",
        target.text
    );
    Trouble::new(TroubleKind::InvalidSpec, what)
}

/// The last line that says something, shortened and without what a terminal would obey.
fn last_line(stderr: &str) -> String {
    let line = stderr.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ssh_says_is_classified() {
        let target = Target::parse("ada@box:2222").unwrap();
        for (stderr, kind, retry, says) in [
            ("ssh: connect to host box port 2222: Connection refused", TroubleKind::Network, true, "cannot be reached"),
            (
                "ssh: Could not resolve hostname box: Name or service not known",
                TroubleKind::Network,
                true,
                "no address",
            ),
            ("ada@box: Permission denied (publickey).", TroubleKind::Auth, false, "does not let us in"),
            (
                "No ED25519 host key is known for box\r\nHost key verification failed.",
                TroubleKind::Auth,
                false,
                "--accept-host-key",
            ),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                TroubleKind::Auth,
                false,
                "/kh",
            ),
            ("", TroubleKind::Network, true, "without a word"),
        ] {
            let found = of_ssh(&target, stderr, "/kh");
            assert_eq!((found.kind, found.retry), (kind, retry), "{found}");
            assert!(found.what.contains(says) && found.what.contains("ada@box:2222"), "{found}");
        }
    }

    #[test]
    fn an_agent_that_is_gone_is_named_and_one_that_lives_is_not_blamed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.1");
        let fix = |socket: &Path| agent_fix(Some(socket.into()));
        let gone = fix(&socket);
        let named = format!("SSH_AUTH_SOCK names {}, which does not exist", socket.display());
        assert!(gone.contains(&named) && gone.contains("set `identity`"), "{gone}");
        std::fs::write(&socket, "").unwrap();
        for other in [fix(&socket), agent_fix(None)] {
            assert!(other.contains("authorized_keys") && !other.contains("SSH_AUTH_SOCK"), "{other}");
        }
    }

    #[test]
    fn what_a_host_says_is_classified() {
        let target = Target::parse("box").unwrap();
        for (stderr, kind, says) in [
            ("cat: write error: No space left on device", TroubleKind::DiskFull, "`dir`"),
            ("repl: /lib/libc.so.6: version `GLIBC_2.34' not found", TroubleKind::InvalidSpec, "build-runner"),
            ("sh: 1: repl: Exec format error", TroubleKind::InvalidSpec, "another architecture"),
            ("mkdir: cannot create directory: Read-only file system", TroubleKind::Auth, "`dir`"),
            ("\u{1b}[31mwhat\n", TroubleKind::Internal, "code 3"),
        ] {
            let found = of_script(&target, Some(3), stderr);
            assert_eq!(found.kind, kind, "{found}");
            assert!(found.what.contains(says) && !found.what.contains('\u{1b}'), "{found}");
        }
    }
}
