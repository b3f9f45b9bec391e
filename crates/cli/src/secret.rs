//! `repl secret`: values that runs get as variables. Values come in by pipe or typed unseen, never on the command line,
//! where history and other users would read them; they never come out.

use crate::args::Listing;
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::show::{self, Table};
use std::io::{BufRead as _, IsTerminal as _, Read as _};
use wire::api::{SecretBody, SecretView};
use wire::client::encode;

/// More is a file, not a secret.
const LONGEST: u64 = 64 << 10;

#[derive(Debug, clap::Subcommand)]
pub enum Secret {
    /// List names; values are never shown
    #[command(
        alias = "list",
        after_help = "Examples:
  repl secret ls"
    )]
    Ls {
        #[command(flatten)]
        listing: Listing,
    },
    /// Set a secret; its value is read from stdin
    #[command(aliases = ["add", "create"], after_help = "Examples:
  repl secret set HF_TOKEN                 # asks, without showing what you type
  pass show hf | repl secret set HF_TOKEN
  repl secret set KEY --from-env KEY
  repl run --secret HF_TOKEN -c 'python3 train.py'")]
    Set {
        /// Also the name of the variable
        name: String,
        /// Take the value this variable has here
        #[arg(long, value_name = "VARIABLE")]
        from_env: Option<String>,
    },
    /// Delete a secret
    #[command(
        visible_alias = "rm",
        alias = "remove",
        after_help = "Examples:
  repl secret delete HF_TOKEN"
    )]
    Delete {
        /// Its name
        name: String,
    },
}

pub async fn secret(settings: &Settings, command: Secret) -> Done {
    match command {
        Secret::Ls { listing } => {
            let plane = ControlPlane::reach(settings).await?;
            list(&plane, listing).await
        }
        Secret::Set { name, from_env } => {
            let value = match from_env {
                Some(variable) => std::env::var(&variable)
                    .map_err(|_| Complaint::usage(format!("the variable `{variable}` is not set here")))?,
                None => read_value(&name).await?,
            };
            if value.is_empty() {
                return Err(Complaint::usage("an empty value is no secret").fix("pipe it in: … | repl secret set NAME"));
            }
            let plane = ControlPlane::reach(settings).await?;
            plane.put(&format!("/secrets/{}", encode(&name)), &SecretBody { value }).await?;
            eprintln!("repl: {name} is set; hand it to a run with --secret {name}");
            Ok(0)
        }
        Secret::Delete { name } => {
            let plane = ControlPlane::reach(settings).await?;
            plane.delete(&format!("/secrets/{}", encode(&name))).await?;
            eprintln!("repl: deleted {name}");
            Ok(0)
        }
    }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let secrets: Vec<SecretView> = plane.list("/secrets", listing.limit).await?;
    if listing.json {
        return show::json(&secrets);
    }
    let mut table = Table::new(["NAME", "CREATED", "CHANGED"]);
    for it in &secrets {
        table.row([it.name.clone(), show::ago(it.created_at), show::ago(it.updated_at)]);
    }
    table.print("no secrets");
    Ok(0)
}

/// All of a pipe without its last newline, or one unseen line.
async fn read_value(name: &str) -> Done<String> {
    let failed = |error: std::io::Error| Complaint::usage(format!("cannot read the value from stdin: {error}"));
    let value = if std::io::stdin().is_terminal() {
        eprint!("value of {name}: ");
        let unseen = Unseen::new();
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
