//! Questions to the person at the terminal: a value that is not shown while it is typed, and yes or no. Without a terminal nothing is
//! asked: a script gets an error that names the flag.

use crate::complaint::{Complaint, Done};
use std::io::{BufRead as _, IsTerminal as _, Read as _};

/// More is a file, not a secret.
const LONGEST: u64 = 64 << 10;

/// All of a pipe without its last newline, or one unseen line.
pub async fn value(of: &str) -> Done<String> {
    let failed = |error: std::io::Error| Complaint::usage(format!("cannot read the value from stdin: {error}"));
    let value = if std::io::stdin().is_terminal() {
        // Before the question is printed, so that an answer typed at once is not shown either.
        let unseen = Unseen::new();
        eprint!("{of}: ");
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line).map(|_| line)
        });
        // Ctrl-C must not leave a terminal behind that shows nothing.
        let line = tokio::select! {
            line = line => Some(line.map_err(std::io::Error::other).flatten()),
            _ = tokio::signal::ctrl_c() => None,
        };
        drop(unseen);
        eprintln!();
        line.ok_or_else(|| Complaint::refused("nothing was set"))?.map_err(failed)?
    } else {
        let mut text = String::new();
        std::io::stdin().lock().take(LONGEST + 1).read_to_string(&mut text).map_err(failed)?;
        text
    };
    if value.len() as u64 > LONGEST {
        return Err(Complaint::usage("longer than 64 KB").fix("send it as a file: repl run --file PATH"));
    }
    let value = value.strip_suffix('\n').unwrap_or(&value);
    Ok(value.strip_suffix('\r').unwrap_or(value).to_owned())
}

/// Whether the person at the terminal says yes. False without a terminal.
pub fn agrees(question: &str) -> Done<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(false);
    }
    eprint!("repl: {question} [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| Complaint::usage(error.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The terminal does not echo while this lives.
struct Unseen {
    before: Option<nix::sys::termios::Termios>,
}

impl Unseen {
    fn new() -> Unseen {
        use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_flags.remove(LocalFlags::ECHO);
            tcsetattr(std::io::stdin(), SetArg::TCSAFLUSH, &quiet).ok();
        }
        Unseen { before }
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            nix::sys::termios::tcsetattr(std::io::stdin(), nix::sys::termios::SetArg::TCSAFLUSH, before).ok();
        }
    }
}
