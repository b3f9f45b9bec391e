//! `repl token`: who may talk to the control plane. A token is shown once, when it is made.

use crate::args::{Json, Listing};
use crate::complaint::Done;
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::show::{self, Table};
use crate::{lookup, quantity};
use wire::api::{NewToken, TokenView};

#[derive(Debug, clap::Subcommand)]
pub enum Token {
    /// List tokens; what they are is never shown again
    #[command(
        alias = "list",
        after_help = "Examples:
  repl token ls"
    )]
    Ls {
        #[command(flatten)]
        listing: Listing,
    },
    /// Make a token and print it, this once
    #[command(aliases = ["new", "add"], after_help = "Examples:
  repl token create ci --scope write --expires 90d
  REPL_URL=https://control.example REPL_TOKEN=$(repl token create ci) repl ps")]
    Create {
        /// Whose it is, or what for
        name: String,
        #[arg(long = "scope", value_parser = ["read", "write", "admin"], default_values = ["read", "write"], help = "What it may do; several allowed")]
        scopes: Vec<String>,
        /// When it ends, e.g. 90d; never unless said
        #[arg(long, value_name = "DURATION", value_parser = quantity::duration)]
        expires: Option<i64>,
        #[command(flatten)]
        json: Json,
    },
    /// End a token at once
    #[command(
        visible_alias = "rm",
        alias = "remove",
        after_help = "Examples:
  repl token delete tok_2"
    )]
    Delete {
        /// Id or beginning of an id
        token: String,
    },
}

pub async fn token(settings: &Settings, command: Token) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Token::Ls { listing } => list(&plane, listing).await,
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
        Token::Delete { token } => {
            let id = lookup::id(&plane, lookup::TOKEN, &token).await?;
            plane.delete(&format!("/tokens/{id}")).await?;
            eprintln!("repl: deleted {id}");
            Ok(0)
        }
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
