//! `repl call`: a function applied to values. A kept result answers at once; otherwise the command waits for the execution.

use crate::args::{Json, Listing};
use crate::cache;
use crate::complaint::{Complaint, Done, REFUSED};
use crate::control_plane::ControlPlane;
use crate::lookup;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use calls::json;
use std::io::Read as _;
use wire::api::{AskCall, CallDiff, CallView};

/// Digits of an id that are shown: enough to find it again.
const DIGITS: usize = 12;
/// Of a file with an input.
const MAX_INPUT_BYTES: u64 = 4 << 20;
/// One question to the control plane waits so long for the end.
const WAIT: &str = "25s";

/// Call a function: its value on stdout, from a kept result or executed
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  repl call dml+exec://dml-exec-words/count '\"some words\"' @more.json
  repl call dml+exec://dml-exec-repl/run '{\"commands\": [\"make\"]}'
  hash=$(b3sum --no-names f)
  repl call \"dml+exec://dml-exec-local$PWD/f?blake3=$hash\" 5 --no-cache
  repl call ls
  repl call diff cal_1f cal_2a

An input is JSON, or @PATH for a file with JSON (@- is stdin). The exit code is
1 if the function failed; its value then says why. Functions and adapters:
docs/calls.md, docs/adapters.md"
)]
pub struct CallArgs {
    #[command(subcommand)]
    command: Option<Call>,
    /// dml+exec://ADAPTER/PATH?QUERY
    #[arg(required = true)]
    function: Option<String>,
    /// Values as JSON, or @PATH
    #[arg(value_name = "INPUTS", allow_negative_numbers = true)]
    inputs: Vec<String>,
    /// Execute it although a result is kept, and keep the new one
    #[arg(long)]
    no_cache: bool,
    /// Print the execution's id and do not wait for it
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, clap::Subcommand)]
pub enum Call {
    /// List executions of calls, the newest first
    #[command(
        alias = "list",
        after_help = "Examples:
  repl call ls
  repl call ls --json | jq -r '.[] | select(.ended | not).id'"
    )]
    Ls(Listing),
    /// Show one execution: how it is, and its value
    #[command(after_help = "Examples:
  repl call show cal_1f
  repl call show cal_1f --json | jq .result.value")]
    Show {
        /// Id, or beginning of an id
        call: String,
        #[command(flatten)]
        json: Json,
    },
    /// Want it no longer: it ends unless other callers wait for it
    #[command(after_help = "Examples:
  repl call cancel cal_1f")]
    Cancel {
        /// Id, or beginning of an id
        call: String,
        #[command(flatten)]
        json: Json,
    },
    /// Say what two calls differ in
    #[command(after_help = "Examples:
  repl call diff cal_1f cal_2a
  repl call diff b672168c328d 0f17aa --json")]
    Diff {
        /// The first: an execution, a cached run, or the first digits of a key or exec
        call: String,
        /// The second
        other: String,
        #[command(flatten)]
        json: Json,
    },
}

pub async fn call(settings: &Settings, args: CallArgs) -> Done {
    match args.command {
        None => ask(settings, args).await,
        Some(Call::Ls(listing)) => list(&ControlPlane::reach(settings).await?, listing).await,
        Some(Call::Show { call, json }) => {
            let plane = ControlPlane::reach(settings).await?;
            let id = lookup::id(&plane, lookup::CALL, &call).await?;
            let seen: CallView = plane.get(&format!("/calls/{id}")).await?;
            if json.json { show::json(&seen) } else { Ok(print(&seen)) }
        }
        Some(Call::Cancel { call, json }) => {
            let plane = ControlPlane::reach(settings).await?;
            let id = lookup::id(&plane, lookup::CALL, &call).await?;
            let seen: CallView = plane.post(&format!("/calls/{id}/cancel"), &serde_json::json!({})).await?;
            if json.json {
                return show::json(&seen);
            }
            match seen.ended {
                true => eprintln!("repl: {id} was over: {}", seen.status),
                false => eprintln!("repl: {id} ends, unless other callers wait for it"),
            }
            Ok(0)
        }
        Some(Call::Diff { call, other, json }) => diff(settings, [call, other], json).await,
    }
}

/// An input as it is sent: read here, so that a mistake is named before anything is asked.
fn input(text: &str) -> Done<serde_json::Value> {
    let (from, text) = match text.strip_prefix('@') {
        None => ("the input".to_owned(), text.to_owned()),
        Some("-") => ("stdin".to_owned(), read(std::io::stdin(), "stdin")?),
        Some(path) => {
            let file = std::fs::File::open(path).map_err(|error| Complaint::file("read", path.as_ref(), &error))?;
            (one_line(path), read(file, path)?)
        }
    };
    let value = json::parse(&text).map_err(|bad| {
        let complaint = Complaint::value(&from, &bad.to_string());
        if from == "the input" {
            complaint.fix("write JSON, a text as '\"…\"', or @PATH for a file")
        } else {
            complaint
        }
    })?;
    Ok(json::to_json(&value))
}

fn read(from: impl std::io::Read, name: &str) -> Done<String> {
    let mut text = String::new();
    let read = from.take(MAX_INPUT_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| Complaint::file("read", name.as_ref(), &error))?;
    if text.len() as u64 > MAX_INPUT_BYTES {
        return Err(Complaint::usage(format!("{} has more than {MAX_INPUT_BYTES} bytes", one_line(name))));
    }
    Ok(text)
}

async fn ask(settings: &Settings, args: CallArgs) -> Done {
    let inputs = args.inputs.iter().map(|text| input(text)).collect::<Done<Vec<_>>>()?;
    let asked = AskCall { function: args.function.unwrap_or_default(), inputs, cache: args.no_cache.then_some(false) };
    let plane = ControlPlane::reach(settings).await?;
    let mut seen: CallView = plane.post("/calls", &asked).await?;
    if let Some(id) = seen.id.clone().filter(|_| !seen.ended) {
        if args.detach {
            if args.json.json {
                return show::json(&seen);
            }
            println!("{id}");
            return Ok(0);
        }
        eprintln!("repl: {id} is executed; it goes on without this command (repl call show {id})");
    }
    while !seen.ended {
        let Some(id) = &seen.id else { break };
        seen = plane.get(&format!("/calls/{id}?wait={WAIT}")).await?;
    }
    if args.json.json {
        show::json(&seen)?;
    }
    let Some(result) = &seen.result else { return Err(failed(&seen)) };
    if !args.json.json {
        println!("{}", result.value.as_ref().unwrap_or(&serde_json::Value::Null));
        match (&seen.id, &seen.run) {
            (None, _) => eprintln!("repl: hit {}", &result.exec[..DIGITS]),
            (Some(_), Some(run)) => eprintln!("repl: ran {run}"),
            (Some(id), None) => eprintln!("repl: ran {id}"),
        }
    }
    Ok(if result.status == "ok" { 0 } else { REFUSED })
}

fn failed(seen: &CallView) -> Complaint {
    let id = seen.id.clone().unwrap_or_default();
    let text = match &seen.error {
        Some(error) => format!("{id} failed ({}): {}", one_line(&error.code), one_line(&error.message)),
        None => format!("{id} has no result: it was deleted"),
    };
    Complaint { code: REFUSED, text, fix: None }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let all: Vec<CallView> = plane.list("/calls", listing.limit).await?;
    if listing.json {
        return show::json(&all);
    }
    let mut table =
        Table::new(["ID", "FUNCTION", "KEY", "STATUS", "STARTED", "ENDED"]).without_if_narrow(&["KEY", "STARTED"]);
    for it in &all {
        table.row([
            it.id.clone().unwrap_or_default(),
            one_line(&it.function),
            it.node[..DIGITS].to_owned(),
            it.status.clone(),
            it.started_at.map_or_else(|| "-".to_owned(), show::ago),
            it.ended_at.map_or_else(|| "-".to_owned(), show::ago),
        ]);
    }
    table.print("no call was executed: repl call FUNCTION INPUTS… executes one");
    Ok(0)
}

fn print(seen: &CallView) -> u8 {
    let result = seen.result.as_ref();
    let error = seen.error.as_ref().map(|error| format!("{}: {}", one_line(&error.code), one_line(&error.message)));
    let failure = seen.failure.as_ref().and_then(|failure| failure.value.as_ref());
    show::pairs(&[
        ("call", seen.id.clone()),
        ("function", Some(one_line(&seen.function))),
        ("key", Some(seen.node[..DIGITS].to_owned())),
        ("status", Some(seen.status.clone())),
        ("attempt", Some(seen.attempt.to_string())),
        ("run", seen.run.clone()),
        ("started", seen.started_at.map(show::clock)),
        ("asked again", seen.asked_again_at.map(show::clock)),
        ("ended", seen.ended_at.map(show::clock)),
        ("error", error),
        ("failure", failure.map(|value| one_line(&value.to_string()))),
        ("exec", result.map(|result| format!("{} {}", &result.exec[..DIGITS], result.status))),
        ("value", result.and_then(|result| result.value.as_ref()).map(|value| one_line(&value.to_string()))),
    ]);
    0
}

async fn diff(settings: &Settings, named: [String; 2], as_json: Json) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let [first, second] = [cache::value(&plane, &named[0]).await?, cache::value(&plane, &named[1]).await?];
    let of = [first, second].map(|named| wire::client::encode(&named));
    let found: CallDiff = plane.get(&format!("/cache/diff?first={}&second={}", of[0], of[1])).await?;
    if as_json.json {
        return show::json(&found);
    }
    if found.differences.is_empty() {
        println!("the same function, inputs and value");
    }
    for line in &found.differences {
        println!("{}", show::wrapped(&one_line(line), 0, 2));
    }
    Ok(0)
}
