//! `repl secret`: values that runs get as variables. Values come in by pipe or typed unseen, never on the command line,
//! where history and other users would read them; they never come out.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::prompt;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use wire::api::{SecretBody, SecretStored, SecretView};
use wire::client::encode;

#[derive(Debug, clap::Subcommand)]
pub enum Secret {
    /// List names; values are never shown
    #[command(
        alias = "list",
        after_help = "Examples:
  repl secret ls"
    )]
    Ls(Listing),
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
        #[command(flatten)]
        json: Json,
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
        Secret::Ls(listing) => {
            let plane = ControlPlane::reach(settings).await?;
            list(&plane, listing).await
        }
        Secret::Set { name, from_env, json } => {
            is_free(&name)?;
            let value = match from_env {
                Some(variable) => std::env::var(&variable).map_err(|_| {
                    Complaint::usage(format!("the variable `{variable}` is not set here"))
                        .fix(format!("set it, or pipe the value in: … | repl secret set {name}"))
                })?,
                None => prompt::value(&format!("value of {name}")).await?,
            };
            if value.is_empty() {
                return Err(Complaint::usage("an empty value is no secret").fix("pipe it in: … | repl secret set NAME"));
            }
            let plane = ControlPlane::reach(settings).await?;
            let stored: SecretStored = plane.put(&format!("/secrets/{}", encode(&name)), &SecretBody { value }).await?;
            eprintln!("repl: {name} is set; hand it to a run with --secret {name}");
            if let Some(note) = &stored.note {
                eprintln!("repl: {}", one_line(note));
            }
            if json.json {
                return show::json(&stored);
            }
            Ok(0)
        }
        Secret::Delete { name } => {
            let plane = ControlPlane::reach(settings).await?;
            plane.delete(&format!("/secrets/{}", encode(&name))).await.map_err(|complaint| {
                if complaint.fix.is_none() { complaint.fix("see `repl secret ls`") } else { complaint }
            })?;
            eprintln!("repl: deleted {name}");
            Ok(0)
        }
    }
}

/// Said before a value is asked for.
fn is_free(name: &str) -> Done<()> {
    if !wire::model::spec::is_reserved(name) {
        return Ok(());
    }
    let (text, fix) = wire::model::spec::RESERVED.split_once("; ").expect("the reason and what to do");
    let other = name.trim_start_matches("REPL_");
    let fix = if other.is_empty() { fix.to_owned() } else { format!("{fix}: repl secret set {other}") };
    Err(Complaint::usage(format!("`{}`: {text}", one_line(name))).fix(fix))
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
    table.print("no secrets yet: repl secret set NAME");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_jobs_have_already_is_refused_before_its_value_is_asked_for() {
        for name in ["REPL_X", "REPL_TOKEN", "REPL_"] {
            let complaint = is_free(name).unwrap_err();
            assert!(complaint.text.contains("reserved for the environment of a job"), "{complaint}");
            assert!(complaint.fix.unwrap().starts_with("use another name"), "{name}");
        }
        assert_eq!(is_free("REPL_X").unwrap_err().fix.as_deref(), Some("use another name: repl secret set X"));
        for name in ["X", "REPLICA", "repl_x", "MY_REPL_X"] {
            assert_eq!(is_free(name), Ok(()), "{name}");
        }
    }
}
