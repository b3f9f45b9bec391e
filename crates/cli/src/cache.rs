//! `repl cache` and `repl backtrack`: the results that are kept, why a run was not answered by one, and where one came from.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use crate::{lookup, quantity};
use wire::api::{Backtrack, CacheWhy, CollectGarbage, GarbageCollected, Invalidate, Invalidated, PinView, PinsRebuilt};

/// Digits of an id that are shown: enough to find it again.
const DIGITS: usize = 12;
/// How ids of calls begin.
const CALLS: &str = "cal_";
/// Files and artifacts that are shown without --json.
const MOST_FILES: usize = 20;
/// Inputs of a function that are shown without --json, and how much of each.
const MOST_INPUTS: usize = 20;
const MOST_SIGNS: usize = 500;

#[derive(Debug, clap::Subcommand)]
pub enum Cache {
    /// List the results that are kept, the newest first
    #[command(
        alias = "list",
        after_help = "Examples:
  repl cache ls
  repl cache ls --json | jq -r '.[].run'"
    )]
    Ls(Listing),
    /// Say what a cached run or a call differs in from the one before it
    #[command(after_help = "Examples:
  repl cache why
  repl cache why cal_1f
  repl cache why train --json | jq -r '.differences[]'")]
    Why {
        /// A run (id, beginning of an id, name, or @last) or a call (cal_…)
        #[arg(default_value = lookup::LAST)]
        run: String,
        #[command(flatten)]
        json: Json,
    },
    /// Let a result answer no run any more; the next one is executed
    #[command(
        alias = "rm",
        after_help = "Examples:
  repl cache invalidate train
  repl cache invalidate cal_1f
  repl cache invalidate b672168c328d
  repl cache invalidate --function dml+exec://dml-exec-words/count
  repl cache invalidate --all"
    )]
    Invalidate {
        /// A run that was answered by it, a call (cal_…), or the first digits of its exec or key
        #[arg(required_unless_present_any = ["all", "function"])]
        run: Option<String>,
        /// All results of cached runs
        #[arg(long, conflicts_with_all = ["run", "function"])]
        all: bool,
        /// All results of this function: dml+exec://ADAPTER/PATH?QUERY
        #[arg(long, value_name = "URI", conflicts_with = "run")]
        function: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Delete results that answered no run for long, and what nothing needs any more
    #[command(after_help = "Examples:
  repl cache gc
  repl cache gc --older-than 7d --max-size 1GB")]
    Gc {
        /// Results that answered no run for so long; otherwise as the settings say
        #[arg(long, value_name = "DURATION", value_parser = quantity::duration, allow_negative_numbers = true)]
        older_than: Option<i64>,
        /// What remains in sum; results that were used longest ago go first
        #[arg(long, value_name = "SIZE", value_parser = quantity::memory, allow_negative_numbers = true)]
        max_size: Option<i64>,
        #[command(flatten)]
        json: Json,
    },
    /// Make the rows of kept results again from the index (after repl audit)
    #[command(after_help = "Examples:
  repl audit
  repl cache rebuild")]
    Rebuild {
        #[command(flatten)]
        json: Json,
    },
}

/// Say where a result came from: the run or function, its inputs and cost
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  repl backtrack
  repl backtrack train
  repl backtrack $(repl call show cal_1f --json | jq -r .result.exec)
  repl backtrack b672168c328d --json | jq .inputs.files")]
pub struct BacktrackArgs {
    /// A cached run, a call, the first digits of an exec, a key, a dag or a value, or the hash of an artifact
    #[arg(default_value = lookup::LAST, value_name = "VALUE")]
    run: String,
    #[command(flatten)]
    json: Json,
}

pub async fn cache(settings: &Settings, command: Cache) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Cache::Ls(listing) => list(&plane, listing).await,
        Cache::Why { run, json } => {
            let run = match run.starts_with(CALLS) {
                true => lookup::id(&plane, lookup::CALL, &run).await?,
                false => lookup::run(&plane, &run).await?,
            };
            let why: CacheWhy = plane.get(&format!("/cache/why/{run}")).await?;
            if json.json { show::json(&why) } else { Ok(print_why(&why)) }
        }
        Cache::Invalidate { run, all, function, json } => {
            let result = match &run {
                Some(named) => Some(value(&plane, named).await?),
                None => None,
            };
            let done: Invalidated = plane.post("/cache/invalidate", &Invalidate { result, all, function }).await?;
            if json.json {
                return show::json(&done);
            }
            match done.results {
                0 => eprintln!("repl: no result answered it"),
                1 => eprintln!("repl: 1 result answers no run any more"),
                many => eprintln!("repl: {many} results answer no run any more"),
            }
            Ok(0)
        }
        Cache::Gc { older_than, max_size, json } => {
            let asked = CollectGarbage { older_than_ms: older_than, max_bytes: max_size };
            let done: GarbageCollected = plane.post("/cache/gc", &asked).await?;
            if json.json {
                return show::json(&done);
            }
            let left = show::size(done.bytes_left);
            eprintln!(
                "repl: {} results and {} records deleted; {} records ({left}) are left",
                done.results, done.objects, done.objects_left
            );
            if done.damaged > 0 {
                let what = "records of results are missing or cannot be read: their calls are executed again";
                eprintln!("repl: {} {what}", done.damaged);
            }
            Ok(0)
        }
        Cache::Rebuild { json } => {
            let done: PinsRebuilt = plane.post("/cache/rebuild", &serde_json::json!({})).await?;
            if json.json {
                return show::json(&done);
            }
            eprintln!("repl: {} rows looked at, {} made, {} removed", done.rows, done.made + done.execs, done.removed);
            if done.damaged > 0 {
                eprintln!("repl: {} results cannot be read: their calls are executed again", done.damaged);
            }
            Ok(0)
        }
    }
}

/// What a person names: a call, digits of an id as they are, anything else is a run.
pub async fn value(plane: &ControlPlane, named: &str) -> Done<String> {
    let digits = named.len() >= 4 && named.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if named.starts_with(CALLS) {
        return lookup::id(plane, lookup::CALL, named).await;
    }
    match lookup::run(plane, named).await {
        Ok(run) => Ok(run),
        Err(_) if digits => Ok(named.to_owned()),
        Err(complaint) => Err(complaint),
    }
}

async fn list(plane: &ControlPlane, listing: Listing) -> Done {
    let pins: Vec<PinView> = plane.list("/cache", listing.limit).await?;
    if listing.json {
        return show::json(&pins);
    }
    let mut table = Table::new(["KEY", "NAME", "STATUS", "EXECUTED BY", "SIZE", "EXECUTED", "USED"])
        .without_if_narrow(&["NAME", "USED"]);
    for it in &pins {
        table.row([
            it.node[..DIGITS].to_owned(),
            show::or_dash(Some(&it.name).filter(|name| !name.is_empty())),
            it.status.clone(),
            show::or_dash(it.run.as_ref()),
            show::size(it.bytes),
            show::ago(it.ended_at),
            show::ago(it.used_at),
        ]);
    }
    table.print("no results are kept: repl run --cache keeps one");
    Ok(0)
}

fn print_why(why: &CacheWhy) -> u8 {
    let by = |with: &PinView| with.run.clone().unwrap_or_else(|| with.exec[..DIGITS].to_owned());
    match (&why.with, why.hit) {
        (Some(with), true) => println!("{} was answered with the result of {}: nothing differs", why.run, by(with)),
        (None, true) => println!("{} was answered with a kept result", why.run),
        (Some(with), false) if why.differences.is_empty() => {
            println!("{} was executed although {} was the same:", why.run, by(with));
        }
        (Some(with), false) => println!("{} differs from {}:", why.run, by(with)),
        (None, false) => println!("{} was executed:", why.run),
    }
    for line in why.differences.iter().chain(&why.note) {
        println!("  {}", show::wrapped(&one_line(line), 2, 4));
    }
    0
}

pub async fn backtrack(settings: &Settings, args: BacktrackArgs) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let what = value(&plane, &args.run).await?;
    let found: Result<Backtrack, Complaint> = plane.get(&format!("/backtrack/{what}")).await;
    let from = found.map_err(|complaint| match complaint.text.contains("no such result") {
        true => complaint.fix("results of `repl run --cache` and `repl call` are kept: repl cache ls"),
        false => complaint,
    })?;
    if args.json.json {
        return show::json(&from);
    }
    println!("exec {} {}", &from.exec[..DIGITS], from.status);
    let on = from.instance.as_ref().map(|on| format!(" on {on}")).unwrap_or_default();
    let mut pairs = vec![
        ("key".to_owned(), Some(from.node[..DIGITS].to_owned())),
        ("run".to_owned(), from.run.as_ref().map(|run| format!("{run}{on}"))),
        ("executed".to_owned(), Some(show::clock(from.started_at))),
        ("credits".to_owned(), from.credits.as_ref().map(|credits| show::credits(credits))),
    ];
    pairs.extend(if is_run(&from) { of_a_run(&from) } else { of_a_function(&from) });
    show::pairs(&pairs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect::<Vec<_>>());
    Ok(0)
}

type Pairs = Vec<(String, Option<String>)>;

/// The inputs of a run have names, those of a function numbers.
fn is_run(from: &Backtrack) -> bool {
    from.inputs.get("argv").is_some()
}

fn of_a_function(from: &Backtrack) -> Pairs {
    let json = |value: &serde_json::Value| {
        let text = one_line(&value.to_string());
        let first: String = text.chars().take(MOST_SIGNS).collect();
        Some(if first.len() < text.len() { format!("{first}… (--json)") } else { first })
    };
    let mut inputs: Vec<(usize, &serde_json::Value)> = Vec::new();
    for (name, value) in from.inputs.as_object().into_iter().flatten() {
        inputs.extend(name.parse().ok().map(|position| (position, value)));
    }
    inputs.sort_by_key(|(position, _)| *position);
    let mut pairs = vec![("function".to_owned(), Some(one_line(&from.function)))];
    pairs.extend(inputs.iter().take(MOST_INPUTS).map(|(at, value)| (format!("input {at}"), json(value))));
    let more = inputs.len().saturating_sub(MOST_INPUTS);
    pairs.push(("inputs".to_owned(), (more > 0).then(|| format!("and {more} more"))));
    pairs.push(("value".to_owned(), json(&from.value)));
    pairs
}

fn of_a_run(from: &Backtrack) -> Pairs {
    let input = |name: &str| from.inputs.get(name).cloned().unwrap_or_default();
    let words = |value: serde_json::Value| -> Vec<String> {
        let text = |word: &serde_json::Value| word.as_str().map_or_else(|| word.to_string(), str::to_owned);
        value.as_array().map(|all| all.iter().map(text).collect()).unwrap_or_default()
    };
    let argv = words(input("argv"));
    let command = match argv.as_slice() {
        [shell, flag, text] if shell == "/bin/sh" && flag == "-c" => text.clone(),
        all => all.join(" "),
    };
    let of = input("machine");
    let place = |name: &str| of.get(name).and_then(|word| word.as_str()).unwrap_or_default().to_owned();
    let places = [place("provider"), place("architecture"), place("os_release")];
    let machine = places.iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>().join(", ");
    let salt = input("salt").as_str().filter(|salt| !salt.is_empty()).map(str::to_owned);
    let listed = |words: Vec<String>| (!words.is_empty()).then(|| words.join(", "));
    let secrets = input("secrets").get("$set").cloned().unwrap_or_default();
    let written = |name: &str| {
        let text = from.value.get(name).and_then(|text| text.as_str())?;
        let first = text.lines().next().filter(|line| !line.is_empty())?;
        Some(one_line(first))
    };
    [
        ("command", (!command.is_empty()).then_some(command)),
        ("folder", input("working_dir").as_str().filter(|dir| !dir.is_empty()).map(str::to_owned)),
        ("machine", (!machine.is_empty()).then_some(machine)),
        ("variables", listed(words(input("env")))),
        ("secrets", listed(words(secrets))),
        ("salt", salt),
        ("files", files(&input("files"))),
        ("exit code", from.value.get("exit_code").map(ToString::to_string)),
        ("output", written("stdout")),
        ("errors", written("stderr")),
        ("artifacts", files(from.value.get("artifacts").unwrap_or(&serde_json::Value::Null))),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// The first paths of many.
fn files(of: &serde_json::Value) -> Option<String> {
    let paths: Vec<&String> = of.as_object().filter(|all| !all.is_empty())?.keys().collect();
    let more = paths.len().saturating_sub(MOST_FILES);
    let shown: Vec<String> = paths.iter().take(MOST_FILES).map(|path| one_line(path)).collect();
    Some(if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") })
}
