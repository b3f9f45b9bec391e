//! `repl ui`: opens the web pages in a browser. Of the embedded control plane by a link that is good once, within a minute; it goes to the
//! browser in a file that only its owner may read, never as an argument, which other users could see.

use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::settings::{Origin, Settings};
use crate::{login, private};
use std::process::{Command, Stdio};
use wire::api::PagesLink;
use wire::client::{ANSWER_WITHIN, Method};

/// The file that leads the browser to the link.
const FILE: &str = "ui.html";
/// Tried in this order; `BROWSER` comes first.
const OPENERS: &[&str] = &["xdg-open", "open", "wslview"];

/// Open the web pages in your browser
#[derive(Debug, clap::Args)]
#[command(after_help = "Of your own control plane the link is good once, within a minute. Pages of a
control plane elsewhere ask for a token.

Examples:
  repl ui
  repl ui --print              # print the link instead of opening it")]
pub struct UiArgs {
    /// Print the link on stdout and open nothing
    #[arg(long)]
    print: bool,
}

pub async fn ui(settings: &Settings, args: UiArgs) -> Done {
    if let Some(url) = &settings.url {
        let url = login::normal(url)?;
        // The pages ask for a token: the author of a project must not choose where a user enters one.
        let is_a_projects = matches!(settings.url_from, Some(Origin::Project(_)));
        if is_a_projects && login::token_for(settings, &url)?.is_none() {
            return Err(login::refused_without(settings, &url).expect("a project's address needs a token"));
        }
        if args.print {
            println!("{url}");
            return Ok(0);
        }
        return open(&url, &url);
    }
    let plane = ControlPlane::reach(settings).await?;
    let link: PagesLink = plane
        .patiently(|client| async move {
            client.request(Method::POST, "/control/v1/ui").within(ANSWER_WITHIN).send().await?.json().await
        })
        .await?;
    if args.print {
        println!("{}", link.url);
        return Ok(0);
    }
    let path = settings.home.join(FILE);
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Remuda</title><meta http-equiv=\"refresh\" content=\"0;url={0}\"><a href=\"{0}\">Open the pages</a>",
        link.url
    );
    private::note(&path, page.as_bytes())?;
    let site = link.url.split("/ticket").next().unwrap_or_default().to_owned();
    open(&path.display().to_string(), &site)
}

/// Starts the browser; it goes on when this command has ended.
fn open(target: &str, shown: &str) -> Done {
    let browser = std::env::var("BROWSER").ok().filter(|name| !name.is_empty() && !name.contains(' '));
    for program in browser.as_deref().into_iter().chain(OPENERS.iter().copied()) {
        let started =
            Command::new(program).arg(target).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        if started.is_ok() {
            eprintln!("repl: the pages are at {shown}");
            return Ok(0);
        }
    }
    Err(Complaint::refused("there is no program here that opens a browser")
        .fix("open the link yourself: repl ui --print"))
}
