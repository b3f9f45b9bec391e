//! `repl credits` and `repl audit`: the money, row by row, and whether everything adds up.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done, REFUSED};
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::show::{self, Table};
use crate::{cost, lookup, quantity};
use wire::api::{AddCredits, AuditReport, BalanceView, LedgerRow, UsageView};

/// A ledger longer than this is for a program that pages.
const MOST_ROWS: usize = 200_000;

#[derive(Debug, clap::Subcommand)]
pub enum CreditsCommand {
    /// What is available and what is set aside
    #[command(after_help = "Examples:
  repl credits balance --json | jq -r .available")]
    Balance {
        #[command(flatten)]
        json: Json,
    },
    /// Add credits to the organisation
    #[command(after_help = "Examples:
  repl credits add 500 --memo 'march'")]
    Add {
        #[arg(value_name = "CREDITS", value_parser = quantity::credits, allow_negative_numbers = true, help = "How many, e.g. 500 or 0.25")]
        amount: String,
        /// The reason, shown in the ledger
        #[arg(long)]
        memo: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Every movement, each row chained to the one before
    #[command(after_help = "Examples:
  repl credits ledger --limit 20
  repl credits ledger --run @last")]
    Ledger {
        /// Only of this run
        #[arg(long)]
        run: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// What was spent on what: credits, tokens, turns and machine time
    #[command(after_help = "Examples:
  repl credits usage --since 7d
  repl credits usage --by model
  repl credits usage --by day --since 60d --until 30d --json")]
    Usage {
        /// What it is summed by
        #[arg(long, default_value = "run", value_parser = ["run", "agent", "model", "provider", "day"])]
        by: String,
        /// How far back it begins; whole hours are counted
        #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = quantity::duration, allow_negative_numbers = true)]
        since: i64,
        /// How far back it ends
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = quantity::duration, allow_negative_numbers = true)]
        until: i64,
        #[command(flatten)]
        json: Json,
    },
}

pub async fn credits(settings: &Settings, command: CreditsCommand) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        CreditsCommand::Balance { json } => balance(&plane.get("/credits").await?, json),
        CreditsCommand::Add { amount, memo, json } => {
            balance(&plane.post("/credits", &AddCredits { amount, memo }).await?, json)
        }
        CreditsCommand::Ledger { run, listing } => ledger(&plane, run, listing).await,
        CreditsCommand::Usage { by, since, until, json } => {
            let now = show::now_ms();
            let span = format!("since_ms={}&until_ms={}", now.saturating_sub(since), now.saturating_sub(until));
            let view: UsageView = plane.get(&format!("/credits/usage?by={by}&{span}")).await?;
            if json.json { show::json(&view) } else { cost::of_org(&view) }
        }
    }
}

fn balance(view: &BalanceView, json: Json) -> Done {
    if json.json {
        return show::json(view);
    }
    show::pairs(&[
        ("organisation", Some(view.org.clone())),
        ("available", Some(show::credits(&view.available))),
        ("set aside", Some(show::credits(&view.reserved))),
    ]);
    Ok(0)
}

async fn ledger(plane: &ControlPlane, run: Option<String>, listing: Listing) -> Done {
    let path = match run {
        Some(run) => format!("/runs/{}/ledger", lookup::run(plane, &run).await?),
        None => "/credits/ledger".to_owned(),
    };
    // It is told from its beginning; what people look for is at its end.
    let mut rows: Vec<LedgerRow> = plane.list(&path, MOST_ROWS).await?;
    rows.drain(..rows.len().saturating_sub(listing.limit));
    if listing.json {
        return show::json(&rows);
    }
    let mut table =
        Table::new(["SEQ", "TIME", "TYPE", "CREDITS", "RUN", "KEY", "MEMO"]).without_if_narrow(&["KEY", "MEMO"]);
    for row in &rows {
        table.row([
            row.seq.to_string(),
            show::clock(row.at),
            row.kind.clone(),
            row.amount.clone(),
            show::or_dash(row.run.as_ref()),
            row.key.clone(),
            row.memo.clone(),
        ]);
    }
    table.print("no rows");
    Ok(0)
}

/// `3 runs`, `1 run`: the report names everything in the plural.
fn counted(count: i64, what: &str) -> String {
    match what.strip_suffix('s') {
        Some(noun) => show::count(count, noun),
        None => format!("{count} {what}"),
    }
}

/// Recompute every invariant from the tables; exit 1 and the rows if one is broken
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl audit && echo everything adds up")]
pub struct AuditArgs {
    #[command(flatten)]
    json: Json,
}

pub async fn audit(settings: &Settings, args: AuditArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let report: AuditReport = plane.get("/audit").await?;
    if args.json.json {
        show::json(&report)?;
        return Ok(if report.clean { 0 } else { REFUSED });
    }
    let checked: Vec<String> = report.checked.iter().map(|(what, count)| counted(*count, what)).collect();
    if report.clean {
        println!("{}", show::wrapped(&format!("clean: {}", checked.join(", ")), 0, 7));
        return Ok(0);
    }
    let mut table = Table::new(["INVARIANT", "SUBJECT", "DETAIL"]);
    for broken in &report.broken {
        table.row([broken.invariant.clone(), broken.subject.clone(), broken.detail.clone()]);
    }
    table.print("");
    Err(Complaint::refused(format!("{} broken, of {}", report.broken.len(), checked.join(", ")))
        .fix("nothing was changed; please report this with the rows above"))
}
