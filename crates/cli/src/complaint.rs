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

const NOT_SIGNED_IN: &str = "repl login URL, or set REPL_TOKEN to a valid token; \
    for the control plane of this home unset REPL_TOKEN, or make a token: repl control token";

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

impl From<ClientError> for Complaint {
    fn from(error: ClientError) -> Complaint {
        match &error {
            ClientError::Problem(problem) => {
                let fix = match (problem.status, &problem.fix) {
                    // What the API says of headers is not for whoever types commands.
                    (401, _) => Some(NOT_SIGNED_IN.into()),
                    (_, Some(fix)) => Some(one_line(fix)),
                    (_, None) if problem.allowed.is_empty() => None,
                    (_, None) => Some(format!("possible now: {}", one_line(&problem.allowed.join(", ")))),
                };
                // A server in trouble is not a refusal: the same command may work in a moment.
                let code = if problem.status >= 500 { USAGE } else { REFUSED };
                // On one line: what a server says must not look like what this command says.
                Complaint { code, text: one_line(&problem.to_string()), fix }
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
        let table = [
            (problem(409, None, &["retry", "delete"]), "1 error: no\n  fix: possible now: retry, delete"),
            (problem(402, Some("add credits"), &[]), "1 error: no\n  fix: add credits"),
            (problem(404, None, &[]), "1 error: no"),
            (problem(503, None, &[]), "2 error: no"),
        ];
        for (answer, said) in table {
            let complaint = Complaint::from(answer);
            assert_eq!(format!("{} {complaint}", complaint.code), said);
        }
        assert_eq!(Complaint::from(ClientError::Unreachable("x".into())).code, USAGE);
    }
}
