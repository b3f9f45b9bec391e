//! Why a command did not do what it was asked, as a person reads it: one sentence, the fix, an exit code.
//! Never prints: `main` does, once.

use crate::say::one_line;
use wire::client::ClientError;
use wire::model::{Failure, TroubleKind};

/// The rules say no, or the work failed.
pub const REFUSED: u8 = 1;
/// Wrong use, or the control plane cannot be reached.
pub const USAGE: u8 = 2;
/// Detached by Ctrl-C.
pub const DETACHED: u8 = 130;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    pub code: u8,
    pub text: String,
    pub fix: Option<String>,
}

pub type Done<T = u8> = Result<T, Complaint>;

impl Complaint {
    pub fn refused(text: impl Into<String>) -> Complaint {
        Complaint { code: REFUSED, text: text.into(), fix: None }
    }
    pub fn usage(text: impl Into<String>) -> Complaint {
        Complaint { code: USAGE, text: text.into(), fix: None }
    }
    pub fn fix(mut self, fix: impl Into<String>) -> Complaint {
        self.fix = Some(fix.into());
        self
    }
    /// A value of `what` (a flag, a key) that cannot be used. Readers of values say what is wrong and then `: write …`, which is the
    /// fix.
    pub fn value(what: &str, why: &str) -> Complaint {
        match why.split_once(": write ") {
            Some((why, fix)) => Complaint::usage(format!("{what}: {why}")).fix(format!("write {fix}")),
            None => Complaint::usage(format!("{what}: {why}")),
        }
    }
    /// An answer, or none, of the control plane at `base`.
    pub fn of_answer(error: &ClientError, base: &str) -> Complaint {
        let complaint = Complaint::from_answer(error);
        match error {
            // The API's text about headers does not help a user of the command line.
            ClientError::Problem(problem) if problem.status == 401 => complaint.fix(signing_in(base)),
            _ => match other_scheme(error, base) {
                Some((spoken, right)) => Complaint::usage(format!("{base} is not answered: this port speaks {spoken}"))
                    .fix(format!("use {right}")),
                None => match (error, complaint.text.strip_prefix("cannot reach the control plane: ")) {
                    (ClientError::Unreachable(_), Some(why)) => {
                        let text = format!("cannot reach the control plane at {base}: {why}");
                        Complaint { text, ..complaint }
                    }
                    _ => complaint,
                },
            },
        }
    }
    /// A file or folder of this machine that would not do what was asked of it.
    pub fn file(what: &str, path: &std::path::Path, error: &std::io::Error) -> Complaint {
        Complaint::usage(format!("cannot {what} {}: {error}", one_line(&path.display().to_string())))
    }
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "error: {}", self.text)?;
        match &self.fix {
            Some(fix) => write!(f, "\n  fix: {fix}"),
            None => Ok(()),
        }
    }
}

impl From<runfile::Wrong> for Complaint {
    fn from(wrong: runfile::Wrong) -> Complaint {
        Complaint { code: USAGE, text: wrong.text, fix: wrong.fix }
    }
}

impl From<ClientError> for Complaint {
    fn from(error: ClientError) -> Complaint {
        Complaint::from_answer(&error)
    }
}

impl Complaint {
    fn from_answer(error: &ClientError) -> Complaint {
        match error {
            ClientError::Problem(problem) => {
                let fix = match &problem.fix {
                    Some(fix) => Some(one_line(fix)),
                    None if problem.allowed.is_empty() => None,
                    None => Some(format!("possible now: {}", one_line(&problem.allowed.join(", ")))),
                };
                // A server in trouble is not a refusal: the same command may work in a moment.
                let code = if problem.status >= 500 { USAGE } else { REFUSED };
                // On one line: what a server says must not look like what this command says.
                let text = one_line(&problem.to_string());
                match (fix, advice(&text)) {
                    (None, Some((text, fix))) => Complaint { code, text, fix: Some(fix) },
                    (fix, _) => Complaint { code, text, fix },
                }
            }
            ClientError::Unreachable(why) if why.contains("invalid peer certificate") => {
                let of_authority =
                    "its certificate is that of an authority: give the server one made for it (CA:FALSE)";
                let fix = if why.contains("CaUsedAsEndEntity") {
                    of_authority
                } else {
                    "set REPL_CA_CERT to the authority's certificate, and check that the address is one the certificate names"
                };
                Complaint::usage("the control plane's certificate is not trusted here").fix(fix)
            }
            ClientError::Unreachable(why) => {
                Complaint::usage(format!("cannot reach the control plane: {}", shortly(why)))
                    .fix("see `repl doctor`; is REPL_URL right, and is the control plane running there?")
            }
            ClientError::Protocol(_) | ClientError::TooMuch(_) => {
                Complaint::usage(one_line(&error.to_string())).fix("is REPL_URL the address of a Remuda control plane?")
            }
        }
    }
}

/// What a sentence says, and what it says to do, where it ends with that.
fn advice(text: &str) -> Option<(String, String)> {
    let at = [": choose ", ": repl "].iter().find_map(|begin| text.rfind(begin))?;
    Some((text[..at].to_owned(), text[at + 2..].to_owned()))
}

/// How to get a token that the control plane at `base` knows.
pub fn signing_in(base: &str) -> String {
    match base.strip_prefix("unix:") {
        Some(_) => "unset REPL_TOKEN, or make a token: repl control token".to_owned(),
        None => format!(
            "repl login {base}, or set REPL_TOKEN to a token of that server (made there: repl token create NAME, or repl control token)"
        ),
    }
}

/// What the port at `base` speaks, and the address to use, if it speaks TLS and was asked without it or the reverse.
pub fn other_scheme(error: &ClientError, base: &str) -> Option<(&'static str, String)> {
    let ClientError::Unreachable(why) = error else { return None };
    // The answer to plain http is a TLS alert, which is no HTTP; the answer to TLS is plain text, which is no TLS record.
    match base.split_once("://")? {
        ("http", host) if why.contains("invalid HTTP version parsed") => Some(("TLS", format!("https://{host}"))),
        ("https", host) if why.contains("InvalidContentType") => {
            Some(("plain http, without TLS", format!("http://{host}")))
        }
        _ => None,
    }
}

/// Layers of libraries say the same thing in turn; a person needs the last.
fn shortly(why: &str) -> &str {
    why.rsplit_once("client error (Connect): ").map_or(why, |(_, rest)| rest)
}

impl From<Failure> for Complaint {
    fn from(failure: Failure) -> Complaint {
        match failure {
            Failure::Refused(refused) => Complaint::refused(refused.to_string()),
            Failure::Trouble(trouble) if trouble.kind == TroubleKind::DiskFull => {
                Complaint::usage(trouble.what).fix("free some space on this disk, or set REPL_HOME to a larger one")
            }
            Failure::Trouble(trouble) => Complaint::usage(trouble.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::client::Problem;

    #[test]
    fn answers_become_exit_codes_and_fixes() {
        let problem = |status, fix: Option<&str>, allowed: &[&str]| {
            ClientError::Problem(Box::new(Problem {
                status,
                detail: "no".into(),
                fix: fix.map(str::to_owned),
                allowed: allowed.iter().map(|it| it.to_string()).collect(),
                ..Problem::default()
            }))
        };
        let said = |detail: &str| {
            ClientError::Problem(Box::new(Problem { status: 409, detail: detail.into(), ..Problem::default() }))
        };
        let table = [
            (problem(409, None, &["retry", "delete"]), "1 error: no\n  fix: possible now: retry, delete"),
            (problem(402, Some("add credits"), &[]), "1 error: no\n  fix: add credits"),
            (problem(404, None, &[]), "1 error: no"),
            (said("a is open: choose another --name"), "1 error: a is open\n  fix: choose another --name"),
            (
                said("there is no secret `A`: repl secret set A"),
                "1 error: there is no secret `A`\n  fix: repl secret set A",
            ),
            (problem(503, None, &[]), "2 error: no"),
        ];
        for (answer, said) in table {
            let complaint = Complaint::from(answer);
            assert_eq!(format!("{} {complaint}", complaint.code), said);
        }
        assert_eq!(Complaint::from(ClientError::Unreachable("x".into())).code, USAGE);
    }

    #[test]
    fn who_is_not_signed_in_reads_where_to() {
        let answer = ClientError::Problem(Box::new(Problem {
            status: 401,
            fix: Some("send a header".into()),
            ..Problem::default()
        }));
        let fix = |base: &str| Complaint::of_answer(&answer, base).fix.unwrap();
        assert!(fix("https://control.example:7780").starts_with("repl login https://control.example:7780, or "));
        assert_eq!(fix("unix:/run/x.sock"), "unset REPL_TOKEN, or make a token: repl control token");
    }

    #[test]
    fn the_right_scheme_is_named() {
        let broken = |why: &str| ClientError::Unreachable(format!("client error (SendRequest): {why}"));
        for (base, why, said) in [
            (
                "http://h:1",
                "invalid HTTP version parsed",
                "error: http://h:1 is not answered: this port speaks TLS\n  fix: use https://h:1",
            ),
            (
                "https://h:1",
                "received corrupt message of type InvalidContentType",
                "error: https://h:1 is not answered: this port speaks plain http, without TLS\n  fix: use http://h:1",
            ),
        ] {
            assert_eq!(Complaint::of_answer(&broken(why), base).to_string(), said);
        }
        let refused = Complaint::of_answer(&broken("Connection refused"), "http://h:1");
        assert!(refused.text.starts_with("cannot reach the control plane at http://h:1: "), "{refused}");
    }

    #[test]
    fn the_advice_of_a_reader_is_the_fix() {
        let complaint = Complaint::value("--hold", "`2` has no unit: write it like 2s");
        assert_eq!(complaint.to_string(), "error: --hold: `2` has no unit\n  fix: write it like 2s");
    }
}
