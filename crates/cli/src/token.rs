//! `repl token`: who may talk to the control plane. A token is shown once, when it is made.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::show::{self, Table};
use crate::{lookup, prompt, quantity};
use wire::api::{NewToken, TokenView};

/// More tokens than this are not looked through before one is deleted.
const MOST: usize = 10_000;

#[derive(Debug, clap::Subcommand)]
pub enum Token {
    /// List tokens; what they are is never shown again
    #[command(
        alias = "list",
        after_help = "Examples:
  repl token ls"
    )]
    Ls(Listing),
    /// Make a token and print it, this once
    #[command(aliases = ["new", "add"], after_help = "Examples:
  repl token create ci --scope write --expires 90d
  REPL_URL=https://control.example REPL_TOKEN=$(repl token create ci) repl ps")]
    Create {
        /// Whose it is, or what for
        name: String,
        #[arg(long = "scope", value_parser = ["read", "approve", "write", "admin"], default_values = ["read", "write"], help = "What it may do; several allowed")]
        scopes: Vec<String>,
        /// When it ends, e.g. 90d; never unless said
        #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
        expires: Option<i64>,
        #[command(flatten)]
        json: Json,
    },
    /// End a token at once
    #[command(
        visible_alias = "rm",
        alias = "remove",
        after_help = "Examples:
  repl token delete laptop
  repl token delete tok_2"
    )]
    Delete {
        /// Name, id, or beginning of an id
        token: String,
        /// Do not ask, even if it is the one that is used here or the last that may do everything
        #[arg(long, short)]
        yes: bool,
    },
}

pub async fn token(settings: &Settings, command: Token) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Token::Ls(listing) => list(&plane, listing).await,
        Token::Create { name, scopes, expires, json } => {
            let asked = NewToken { name, scopes, expires_at: expires.map(|ms| show::now_ms().saturating_add(ms)) };
            let made: TokenView = plane.post("/tokens", &asked).await?;
            if json.json {
                return show::json(&made);
            }
            println!("{}", made.token.as_deref().unwrap_or_default());
            eprintln!("repl: {} ({}) may {}; it is not shown again", made.id, made.name, made.scopes.join(", "));
            Ok(0)
        }
        Token::Delete { token, yes } => {
            let id = lookup::token(&plane, &token).await?;
            if !yes {
                confirm(&plane, &id).await?;
            }
            plane.delete(&format!("/tokens/{id}")).await?;
            eprintln!("repl: deleted {id}");
            Ok(0)
        }
    }
}

/// Asks before the token in use, or the last one that may manage tokens, is deleted: the user would lose access.
async fn confirm(plane: &ControlPlane, id: &str) -> Done<()> {
    let all: Vec<TokenView> = plane.list("/tokens", MOST).await?;
    let current: TokenView = plane.get("/tokens/current").await?;
    let Some(why) = locks_out(&all, &current.id, id, show::now_ms()) else { return Ok(()) };
    let back = if plane.is_embedded() {
        "repl control token makes a new one"
    } else {
        "only `repl control token`, by the user that the server runs as, makes a new one"
    };
    if prompt::agrees(&format!("{id} is {why}; after that {back}. Delete it?"))? {
        return Ok(());
    }
    Err(Complaint::refused(format!("{id} is {why}: not deleted")).fix(format!("repl token delete {id} --yes ({back})")))
}

/// What a person should hear before this token is gone; none if nothing is lost by it.
fn locks_out(all: &[TokenView], current: &str, id: &str, now: i64) -> Option<&'static str> {
    let is_good =
        |it: &&TokenView| it.expires_at.is_none_or(|at| at > now) && it.scopes.iter().any(|scope| scope == "admin");
    let is_admin = all.iter().filter(is_good).any(|it| it.id == id);
    let others = all.iter().filter(is_good).filter(|it| it.id != id).count();
    match (is_admin && others == 0, id == current) {
        (true, true) => Some("the token used here, and the last that may manage tokens"),
        (true, false) => Some("the last token that may manage tokens"),
        (false, true) => Some("the token used here"),
        (false, false) => None,
    }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let tokens: Vec<TokenView> = plane.list("/tokens", listing.limit).await?;
    if listing.json {
        return show::json(&tokens);
    }
    let mut table = Table::new(["ID", "NAME", "SCOPES", "CREATED", "EXPIRES"]);
    for it in &tokens {
        table.row([
            it.id.clone(),
            it.name.clone(),
            it.scopes.join(","),
            show::ago(it.created_at),
            show::or_dash(it.expires_at.map(show::clock)),
        ]);
    }
    table.print("no tokens");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_locked_out_by_a_slip() {
        let token = |id: &str, scope: &str, expires_at| TokenView {
            id: id.into(),
            name: id.into(),
            scopes: vec![scope.into()],
            created_at: 0,
            expires_at,
            token: None,
        };
        let all = [token("tok_1", "admin", None), token("tok_2", "admin", Some(50)), token("tok_3", "write", None)];
        let said = |id, now| locks_out(&all, "tok_1", id, now);
        assert_eq!(said("tok_1", 10), Some("the token used here"));
        assert_eq!(
            said("tok_1", 60),
            Some("the token used here, and the last that may manage tokens"),
            "the other expired"
        );
        assert_eq!((said("tok_2", 10), said("tok_3", 10)), (None, None));
        assert_eq!(locks_out(&all[..1], "tok_9", "tok_1", 0), Some("the last token that may manage tokens"));
    }
}
