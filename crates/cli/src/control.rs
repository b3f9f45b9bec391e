//! `repl control`: the embedded control plane as a person sees it. Only `start` starts one.

use crate::args::Json;
use crate::complaint::{Complaint, Done, REFUSED};
use crate::control_plane::ControlPlane;
use crate::settings::Settings;
use crate::{embedded, private, quantity, role, show};
use std::io::{Read as _, Seek as _, SeekFrom};
use wire::api::{Stopped, TokenView};
use wire::client::{Client, ClientError, Method};

/// What `control logs` shows when not told otherwise.
const SHOWN_LINES: usize = 200;
/// A log is read from its end, this much at most.
const READ_BACK: u64 = 8 << 20;
/// Ending every run takes its stop duration and more.
const STOPPED_WITHIN: std::time::Duration = std::time::Duration::from_secs(600);
/// A home in which a control plane has been has this file.
const INSTALLATION: &str = "installation.json";

#[derive(Debug, clap::Subcommand)]
pub enum Control {
    /// Start it, if it is not running
    #[command(after_help = "Examples:
  repl control start")]
    Start {
        #[command(flatten)]
        json: Json,
    },
    /// End it and its idle machines; runs go on and report when it is back
    #[command(after_help = "Examples:
  repl control stop
  repl control stop --all     # cancel open runs and end busy machines too")]
    Stop {
        /// Cancel open runs and end busy machines too; starts it for that if it is not running
        #[arg(long)]
        all: bool,
    },
    /// Whether the control plane of this home runs, and where; REPL_URL does not matter
    #[command(after_help = "Examples:
  repl control status --json | jq .pid")]
    Status {
        #[command(flatten)]
        json: Json,
    },
    /// What it wrote to its log
    #[command(after_help = "Examples:
  repl control logs --tail 50")]
    Logs {
        /// Only the last N lines
        #[arg(long, value_name = "N", default_value_t = SHOWN_LINES, value_parser = quantity::count, allow_negative_numbers = true)]
        tail: usize,
    },
    /// Make a fresh token for its owner, print it, and use it from now on
    #[command(after_help = "For the user that the control plane of this home runs as: the way back when
every token was deleted or lost. Tokens that are there stay good. REPL_URL does
not matter here: it is always the control plane of this home.

Examples:
  repl control token
  REPL_HOME=/var/lib/remuda repl control token  # of a `repl server` there")]
    Token {
        #[command(flatten)]
        json: Json,
    },
    /// Be it (started by `repl` itself, with its settings on stdin)
    #[command(hide = true)]
    Serve,
}

pub async fn control(settings: &Settings, command: Control) -> Done {
    match command {
        Control::Start { json } => {
            let (holder, started) = embedded::ensure(settings).await?;
            if !started {
                eprintln!("repl: it was running already");
            }
            status(Some(&holder), settings, json)
        }
        Control::Status { json } => status(embedded::find(&settings.home)?.as_ref(), settings, json),
        Control::Stop { all } => stop(settings, all).await,
        Control::Logs { tail } => logs(settings, tail),
        Control::Token { json } => token(settings, json).await,
        Control::Serve => role::embedded().await,
    }
}

fn status(holder: Option<&embedded::Holder>, settings: &Settings, json: Json) -> Done {
    let Some(holder) = holder else {
        if json.json {
            show::json(&serde_json::json!({"running": false, "home": settings.home, "commands_go_to": settings.url}))?;
        } else {
            let next = match settings.elsewhere() {
                Some(elsewhere) => format!("commands go to {elsewhere}"),
                None => "the next command starts it".to_owned(),
            };
            println!("not running in {} ({next})", settings.home.display());
        }
        return Ok(REFUSED);
    };
    let url = holder.url.clone().unwrap_or_else(|| format!("unix:{}", holder.socket.display()));
    if json.json {
        return show::json(&serde_json::json!({
            "running": true, "home": settings.home, "pid": holder.pid, "url": url, "version": holder.version,
            "started_at": holder.started_at, "host": holder.host, "socket": holder.socket, "commands_go_to": settings.url,
        }));
    }
    show::pairs(&[
        ("running", Some(format!("pid {} on {}, version {}", holder.pid, holder.host, holder.version))),
        ("home", Some(settings.home.display().to_string())),
        ("url", Some(url)),
        ("started", Some(format!("{} ({})", show::clock(holder.started_at), show::ago(holder.started_at)))),
        ("commands", settings.elsewhere().map(|elsewhere| format!("go to another one: {elsewhere}"))),
    ]);
    Ok(0)
}

/// Asks it to end its idle machines, and with `all` the open runs, then waits until it is gone. One that cannot answer is sent SIGTERM.
async fn stop(settings: &Settings, all: bool) -> Done {
    let settings = &settings.embedded();
    let Some(holder) = embedded::find(&settings.home)? else { return stop_what_is_left(settings, all).await };
    let plane = ControlPlane::find(settings)?.ok_or_else(|| Complaint::refused("it ended meanwhile"))?;
    match ask_to_stop(&plane.client(), all).await {
        Ok(stopped) => {
            embedded::ended(&settings.home, &holder).await?;
            eprintln!("repl: {}", stop_note(&stopped, all));
        }
        Err(ClientError::Unreachable(_)) => {
            embedded::end(&settings.home, &holder).await?;
            if all {
                return stop_what_is_left(settings, all).await;
            }
            eprintln!("repl: the control plane did not answer, and has ended; what is open goes on, and {LATER}");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(0)
}

/// Of runs that have no control plane now.
const LATER: &str =
    "will be seen by the one that the next command starts; `repl control stop --all` ends open runs too";

/// No control plane runs here. Runs that were open when it ended go on without it: only a control plane can end them.
async fn stop_what_is_left(settings: &Settings, all: bool) -> Done {
    let home = settings.home.display();
    if !settings.home.join(INSTALLATION).exists() {
        eprintln!("repl: not running, and {home} has no runs");
        return Ok(0);
    }
    if !all {
        eprintln!("repl: not running in {home}; a run that is open goes on, and {LATER}");
        return Ok(0);
    }
    if role::is_shared(&settings.database) {
        return Err(Complaint::refused(format!(
            "no control plane runs in {home}, and its database may have other servers"
        ))
        .fix("end runs one by one: repl cancel RUN"));
    }
    eprintln!("repl: not running in {home}: starting it to end the runs that are open");
    let cannot = |complaint: Complaint| Complaint {
        text: format!("the runs of {home} that are open cannot be ended: {}", complaint.text),
        ..complaint
    };
    let (holder, _) = embedded::ensure(settings).await.map_err(cannot)?;
    let plane = ControlPlane::reach(settings).await.map_err(cannot)?;
    let stopped = ask_to_stop(&plane.client(), all).await.map_err(|error| cannot(error.into()))?;
    embedded::ended(&settings.home, &holder).await?;
    eprintln!("repl: {}", stop_note(&stopped, all));
    Ok(0)
}

/// What has become of the runs and machines.
fn stop_note(stopped: &Stopped, all: bool) -> String {
    let ended = match (all, stopped.cancelled_runs) {
        (true, 0) => "no run was open".to_owned(),
        (true, count) => format!("{} cancelled", show::count(count, "run")),
        (false, _) => "and its idle machines too".to_owned(),
    };
    let left = match (stopped.open_runs, all) {
        (0, _) => String::new(),
        (1, false) => format!("; 1 run goes on, and {LATER}"),
        (count, false) => format!("; {count} runs go on, and {LATER}"),
        (count, true) => format!("; {} not over yet: repl ps", show::count(count, "run")),
    };
    format!("the control plane has ended, {ended}{left}")
}

async fn ask_to_stop(client: &Client, all: bool) -> Result<Stopped, ClientError> {
    let path = format!("{}/control/stop", crate::control_plane::API);
    let body = serde_json::json!({ "all": all });
    let key = crate::control_plane::new_key().map_err(|complaint| ClientError::Protocol(complaint.to_string()))?;
    let request = client.request(Method::POST, &path).header("idempotency-key", &key).json(&body);
    request.within(STOPPED_WITHIN).send().await?.json().await
}

/// Access to the home is the proof: by its installation's file to the control plane that runs there, over the home's own
/// socket, or by its database where that may be opened beside servers.
async fn token(settings: &Settings, json: Json) -> Done {
    let named = settings.url.clone();
    let settings = &settings.embedded();
    private::home(&settings.home)?;
    let (made, place) = match embedded::find(&settings.home)? {
        Some(holder) => (ask_for_a_token(settings, &holder).await?, Place::Home { url: holder.url }),
        None => match role::token_of_shared_database(settings).await? {
            Some(made) => (made, Place::Database),
            None => {
                let (holder, _) = embedded::ensure(settings).await?;
                (ask_for_a_token(settings, &holder).await?, Place::Home { url: holder.url })
            }
        },
    };
    let text = made.token.as_deref().unwrap_or_default();
    private::write(&settings.home.join("token"), text.as_bytes())?;
    if json.json {
        return show::json(&made);
    }
    println!("{text}");
    eprintln!("repl: {}", token_note(&made, settings, &place, named.as_deref()));
    Ok(0)
}

/// Where a token of the owner is good.
enum Place {
    /// At every server that shares the database.
    Database,
    /// At the control plane of this home, which may have an address too.
    Home { url: Option<String> },
}

/// What the token is for; `named` is the address to which commands go now. Only the control plane of this home is given the home's
/// token without being asked.
fn token_note(made: &TokenView, settings: &Settings, place: &Place, named: Option<&str>) -> String {
    let what = format!("{} ({}) may {}", made.id, made.name, made.scopes.join(", "));
    let normal = |url: &str| wire::client::normal(url).ok();
    match (place, named) {
        (_, None) => format!("{what}; commands of this home use it from now on"),
        (Place::Home { url: Some(own) }, Some(named)) if normal(own) == normal(named) => {
            format!("{what}; commands of this home use it from now on")
        }
        (Place::Database, Some(named)) => {
            format!("{what} at every server of this database; if {named} is one of them: repl login {named}")
        }
        (Place::Home { .. }, Some(named)) => format!(
            "{what} at the control plane of {}, not at {named}, to which commands go now; a token for that one: repl login {named}",
            settings.home.display()
        ),
    }
}

async fn ask_for_a_token(settings: &Settings, holder: &embedded::Holder) -> Done<TokenView> {
    let proof = server::owner_proof(&settings.home)?;
    let client = Client::new(&format!("unix:{}", holder.socket.display()), Some(&proof))?;
    Ok(client.post("/control/v1/token", &serde_json::json!({})).await?)
}

fn logs(settings: &Settings, tail: usize) -> Done {
    let path = settings.home.join(embedded::LOG_FILE);
    let failed = |error: std::io::Error| {
        Complaint::file("read", &path, &error).fix("it is written when the control plane starts")
    };
    let mut file = std::fs::File::open(&path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BACK))).map_err(failed)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(failed)?;
    print!("{}", String::from_utf8_lossy(last_lines(&text, tail)));
    Ok(0)
}

fn last_lines(text: &[u8], count: usize) -> &[u8] {
    let ends = text.iter().enumerate().rev().filter(|(at, byte)| **byte == b'\n' && at + 1 < text.len());
    match (count, ends.map(|(at, _)| at + 1).nth(count.saturating_sub(1))) {
        (0, _) => &[],
        (_, Some(start)) => &text[start..],
        (_, None) => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_where_it_is_good() {
        let made = TokenView {
            id: "tok_1".into(),
            name: "owner".into(),
            scopes: vec!["admin".into()],
            created_at: 0,
            expires_at: None,
            token: None,
        };
        let settings = Settings::read_from(
            &crate::settings::Flags::default(),
            &|name| (name == "REPL_HOME").then(|| "/data".to_owned()),
            std::path::Path::new("/"),
        )
        .unwrap();
        let home = |url: Option<&str>| Place::Home { url: url.map(str::to_owned) };
        for (place, named, said) in [
            (home(None), None, "commands of this home use it"),
            (home(Some("http://127.0.0.1:7780")), Some("http://127.0.0.1:7780/"), "commands of this home use it"),
            (home(None), Some("https://h"), "at the control plane of /data, not at https://h"),
            (Place::Database, Some("https://h"), "at every server of this database; if https://h is one"),
        ] {
            let note = token_note(&made, &settings, &place, named);
            assert!(note.starts_with("tok_1 (owner) may admin") && note.contains(said), "{note}");
        }
    }

    #[test]
    fn a_stop_says_what_becomes_of_runs() {
        let said =
            |cancelled_runs, open_runs, all| stop_note(&Stopped { cancelled_runs, open_runs, instances: 0 }, all);
        assert_eq!(said(0, 0, false), "the control plane has ended, and its idle machines too");
        assert_eq!(said(0, 0, true), "the control plane has ended, no run was open");
        assert_eq!(said(2, 0, true), "the control plane has ended, 2 runs cancelled");
        for (open, all, part) in [
            (1, false, "; 1 run goes on, and will be seen"),
            (2, false, "; 2 runs go on, and"),
            (1, true, "; 1 run not over yet"),
        ] {
            let note = said(0, open, all);
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn the_last_lines_are_whole() {
        for (count, shown) in [(0, ""), (1, "c\n"), (2, "b\nc\n"), (9, "a\nb\nc\n")] {
            assert_eq!(last_lines(b"a\nb\nc\n", count), shown.as_bytes());
        }
        assert_eq!(last_lines(b"", 3), b"");
    }
}
