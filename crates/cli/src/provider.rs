//! `repl provider`: where machines come from, what they cost, and whether they do what they promise. Adds and removes providers beside those
//! of the settings.

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::{ControlPlane, TRIED_WITHIN};
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use serde_json::{Map, Value, json};
use std::io::{BufRead as _, IsTerminal as _};
use wire::api::{HostView, NewProvider, PriceView, ProviderReport, ProviderView, Submit};
use wire::client::encode;
use wire::model::provider_row::MOST_SLOTS;
use wire::model::spec::Resources;

const MOST: usize = 10_000;

#[derive(Debug, clap::Subcommand)]
pub enum Provider {
    /// List providers
    #[command(
        visible_alias = "list",
        after_help = "Examples:
  repl provider ls
  repl provider ls --json"
    )]
    Ls(Listing),
    /// Show a provider and its hosts: what each has, and whether it is up
    #[command(after_help = "Examples:
  repl provider show lab
  repl provider show lab --json")]
    Show {
        /// Its name
        provider: String,
        #[command(flatten)]
        json: Json,
    },
    /// Set up a provider beside those of the settings
    #[command(after_help = "Examples:
  repl provider add ssh lab me@10.0.0.7 me@10.0.0.8:2222 --identity ~/.ssh/lab
  repl provider add local second --set max_instances=2

Kinds and their keys: docs/providers.md. A provider of kind exec stands in the
settings only.")]
    Add(AddArgs),
    /// Make a machine there, look at it, end it, and say what went as it should
    #[command(after_help = "Examples:
  repl provider test lab
  repl provider test lab --yes --json")]
    Test {
        /// Its name
        provider: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        json: Json,
    },
    /// No new machine there; when its last machine is gone, what is ours on its hosts goes, and then it
    #[command(
        visible_alias = "rm",
        after_help = "Examples:
  repl provider remove lab
  repl provider remove lab --force
  repl provider remove lab --abandon"
    )]
    Remove {
        /// Its name
        provider: String,
        /// End its machines now, with what runs on them
        #[arg(long)]
        force: bool,
        /// Give up hosts that cannot be reached: what stays there is printed
        #[arg(long)]
        abandon: bool,
    },
    /// What machines cost, by provider, region, spot and type
    #[command(after_help = "Examples:
  repl provider prices
  repl provider prices lab --json")]
    Prices {
        /// Only of this one
        provider: Option<String>,
        #[command(flatten)]
        json: Json,
    },
}

#[derive(Debug, clap::Args)]
pub struct AddArgs {
    /// e.g. ssh or local
    kind: String,
    /// What runs and messages call it: a-z, 0-9 and -
    name: String,
    /// Of kind ssh: the hosts
    #[arg(value_name = "USER@HOST[:PORT]")]
    hosts: Vec<String>,
    /// Of kind ssh: the private key to log in with
    #[arg(long, value_name = "FILE")]
    identity: Option<std::path::PathBuf>,
    /// Of kind ssh: believe the keys that the hosts show now
    #[arg(long)]
    accept_host_key: bool,
    /// Of kind ssh: machines that each host is split into
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=MOST_SLOTS))]
    slots: Option<i64>,
    /// What an hour of one of its machines costs
    #[arg(long, value_name = "CREDITS", value_parser = crate::quantity::credits)]
    price: Option<String>,
    /// Another key of its kind; VALUE may be JSON
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Only this organisation may use it
    #[arg(long = "org", value_name = "ORG")]
    orgs: Vec<String>,
    #[command(flatten)]
    json: Json,
}

pub async fn provider(settings: &Settings, command: Provider) -> Done {
    match command {
        Provider::Ls(listing) => {
            let plane = ControlPlane::reach(settings).await?;
            let found: Vec<ProviderView> = plane.list("/providers", listing.limit).await?;
            if listing.json { show::json(&found) } else { Ok(list(&found)) }
        }
        Provider::Show { provider, json } => {
            let plane = ControlPlane::reach(settings).await?;
            let found: ProviderView = plane.get(&format!("/providers/{}", encode(&provider))).await?;
            if json.json { show::json(&found) } else { Ok(print(&found)) }
        }
        Provider::Add(args) => add(settings, args).await,
        Provider::Test { provider, yes, json } => test(settings, &provider, yes, json).await,
        Provider::Remove { provider, force, abandon } => remove(settings, &provider, force, abandon).await,
        Provider::Prices { provider, json } => {
            let plane = ControlPlane::reach(settings).await?;
            let only = provider.map_or_else(String::new, |name| format!("?provider={}", encode(&name)));
            let found: Vec<PriceView> = plane.list(&format!("/providers/prices{only}"), MOST).await?;
            if json.json { show::json(&found) } else { Ok(prices(&found)) }
        }
    }
}

fn list(found: &[ProviderView]) -> u8 {
    let mut table = Table::new(["PROVIDER", "KIND", "FROM", "REGIONS", "MACHINES", "PER HOUR", "NOTES"])
        .without_if_narrow(&["FROM", "REGIONS"]);
    for it in found {
        let mut notes = Vec::new();
        notes.extend(it.bills.then_some("bills".to_owned()));
        notes.extend(it.spot.then_some("spot".to_owned()));
        notes.extend(it.gpus.iter().map(|gpu| format!("gpu {}", one_line(gpu))));
        notes.extend(it.orgs.as_ref().map(|orgs| format!("for {}", one_line(&orgs.join(", ")))));
        notes.extend(hosts_up(it));
        notes.extend(it.leaving.then_some("is being removed".to_owned()));
        notes.extend(it.stays.iter().map(|stays| format!("{} is not cleared", one_line(&stays.host))));
        table.row([
            it.name.clone(),
            it.kind.clone().unwrap_or_default(),
            it.source.clone(),
            one_line(&it.regions.join(", ")),
            format!("{} of {}", it.instances, it.max_instances),
            it.price_per_hour.clone(),
            notes.join("; "),
        ]);
    }
    table.print("no providers");
    0
}

/// How many of its hosts can be used, where it has several.
fn hosts_up(it: &ProviderView) -> Option<String> {
    let up = it.hosts.iter().filter(|host| host.status == "up").count();
    (!it.hosts.is_empty()).then(|| format!("{up} of {} up", show::count(it.hosts.len() as i64, "host")))
}

fn print(it: &ProviderView) -> u8 {
    let yes = |is: bool| is.then(|| "yes".to_owned());
    show::pairs(&[
        ("provider", Some(it.name.clone())),
        ("kind", it.kind.clone()),
        ("from", Some(it.source.clone())),
        ("regions", Some(one_line(&it.regions.join(", ")))),
        ("machines", Some(format!("{} of {}", it.instances, it.max_instances))),
        ("price", Some(format!("{} credits an hour", it.price_per_hour))),
        ("bills", yes(it.bills)),
        ("spot", yes(it.spot)),
        ("gpus", (!it.gpus.is_empty()).then(|| one_line(&it.gpus.join(", ")))),
        ("for", it.orgs.as_ref().map(|orgs| one_line(&orgs.join(", ")))),
        ("hosts", hosts_up(it)),
        ("leaving", yes(it.leaving)),
    ]);
    if !it.hosts.is_empty() {
        println!();
        hosts(&it.hosts);
    }
    0
}

fn hosts(all: &[HostView]) {
    let mut table = Table::new(["HOST", "STATUS", "MACHINES", "ARCH", "SYSTEM", "CPU", "MEMORY", "GPUS", "SANDBOX"])
        .without_if_narrow(&["ARCH", "SYSTEM"]);
    for it in all {
        table.row([
            one_line(&it.host),
            show::status(&it.status),
            format!("{} of {}", it.instances, it.slots),
            one_line(&show::or_dash(it.architecture.as_ref())),
            one_line(&show::or_dash(it.os_release.as_ref())),
            show::or_dash(it.cpu_milli.map(wire::model::spec::show_cpu)),
            show::or_dash(it.memory_bytes.map(show::size)),
            one_line(&counted(&it.gpus)),
            sandbox(it).to_owned(),
        ]);
    }
    table.print("no hosts");
    for it in all {
        let since = it.down_since.map_or_else(String::new, |since| format!(" (down {})", show::ago(since)));
        if let Some(why) = &it.why {
            println!("{}{since}: {}", one_line(&it.host), one_line(why));
        }
        if let Some(why) = &it.no_sandbox {
            println!("{}: no sandbox: {}", one_line(&it.host), one_line(why));
        }
    }
}

/// Whether commands there can have a sandbox. A host says so when it says what it has.
fn sandbox(it: &HostView) -> &'static str {
    match (&it.architecture, &it.no_sandbox) {
        (None, _) => "-",
        (Some(_), None) => "yes",
        (Some(_), Some(_)) => "no",
    }
}

/// `2 × A100, 1 × T4`, in the order in which they are met.
fn counted(models: &[String]) -> String {
    let mut kinds: Vec<&String> = Vec::new();
    for model in models {
        if !kinds.contains(&model) {
            kinds.push(model);
        }
    }
    let count = |kind: &&String| models.iter().filter(|model| model == kind).count();
    let shown: Vec<String> = kinds.iter().map(|kind| format!("{} × {kind}", count(kind))).collect();
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") }
}

fn prices(found: &[PriceView]) -> u8 {
    let mut table = Table::new(["PROVIDER", "REGION", "SPOT", "TYPE", "SIZE", "PER HOUR"]).without_if_narrow(&["SIZE"]);
    for it in found {
        let gpu = it.gpu.as_deref().and_then(|text| wire::model::spec::Gpu::parse(text).ok());
        let size = Resources { cpu_milli: it.cpu_milli, memory_bytes: it.memory_bytes, gpu, disk_bytes: None };
        table.row([
            it.provider.clone(),
            one_line(&it.region),
            if it.spot { "yes" } else { "no" }.to_owned(),
            one_line(&show::or_dash(it.instance_type.as_ref())),
            size.to_string(),
            it.price_per_hour.clone(),
        ]);
    }
    table.print("no prices");
    0
}

async fn add(settings: &Settings, args: AddArgs) -> Done {
    let keys = keys(&args)?.into_iter().collect();
    let orgs = (!args.orgs.is_empty()).then_some(args.orgs);
    let body = NewProvider { name: args.name, kind: args.kind, keys, orgs, price_per_hour: args.price };
    let plane = ControlPlane::reach(settings).await?;
    let added: ProviderView = plane.post("/providers", &body).await?;
    if args.json.json {
        return show::json(&added);
    }
    println!("{} is set up", added.name);
    if !added.hosts.is_empty() {
        hosts(&added.hosts);
    }
    eprintln!("repl: try it: repl provider test {0} · use it: repl run --provider {0} …", added.name);
    Ok(0)
}

/// A control plane on this computer sleeps with it. Machines that cost money go on costing it meanwhile: a user of such a provider is told.
pub async fn say_what_sleep_does(plane: &ControlPlane, submit: &Submit) {
    if !plane.is_embedded() || submit.on_lost_control.as_deref() == Some("finish") {
        return;
    }
    let mut billing = Vec::new();
    for name in submit.provider.iter().chain(&submit.providers) {
        let found: Done<ProviderView> = plane.get(&format!("/providers/{}", encode(name))).await;
        if found.is_ok_and(|found| found.bills) && !billing.contains(name) {
            billing.push(name.clone());
        }
    }
    if let Some(told) = what_sleep_does(&billing) {
        eprintln!("repl: {told}");
    }
}

/// Of those that the run may go to and that bill.
fn what_sleep_does(billing: &[String]) -> Option<String> {
    let names: Vec<String> = billing.iter().map(|name| one_line(name)).collect();
    let bill = match names.len() {
        0 => return None,
        1 => "bills",
        _ => "bill",
    };
    Some(format!(
        "{} {bill}: if this computer sleeps for 15m, the job is stopped there (`on_lost_control: finish` in a run file lets it go on)",
        names.join(" and ")
    ))
}

/// What the kind is told: its own flags, and `--set`.
fn keys(args: &AddArgs) -> Done<Map<String, Value>> {
    let mut keys = Map::new();
    if args.kind == "ssh" && args.hosts.is_empty() {
        return Err(Complaint::usage("a provider of kind ssh needs hosts")
            .fix(format!("repl provider add ssh {} USER@HOST[:PORT]", one_line(&args.name))));
    }
    if !args.hosts.is_empty() {
        keys.insert("hosts".to_owned(), json!(args.hosts));
    }
    if let Some(file) = &args.identity {
        let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        keys.insert("identity".to_owned(), json!(path.to_string_lossy()));
    }
    if args.accept_host_key {
        keys.insert("accept_host_key".to_owned(), json!(true));
    }
    if let Some(slots) = args.slots {
        keys.insert("slots".to_owned(), json!(slots));
    }
    for entry in &args.set {
        let Some((key, text)) = entry.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(Complaint::usage(format!("--set: `{}` is not KEY=VALUE", one_line(entry)))
                .fix("write it like --set max_instances=2"));
        };
        keys.insert(key.to_owned(), serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
    }
    Ok(keys)
}

async fn test(settings: &Settings, name: &str, yes: bool, json: Json) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    let found: ProviderView = plane.get(&format!("/providers/{}", encode(name))).await?;
    if !yes {
        let cost = format!("makes and ends one machine of {} at {} credits an hour", found.name, found.price_per_hour);
        if !std::io::stdin().is_terminal() {
            return Err(Complaint::refused(format!("this {cost}, and nobody can be asked")).fix("add --yes"));
        }
        eprint!("repl: this {cost}: go on? [y/N] ");
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).map_err(|error| Complaint::usage(error.to_string()))?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Complaint::refused("nothing was made"));
        }
    }
    let path = format!("/providers/{}/test", encode(name));
    let report: ProviderReport = plane.post_within(&path, &json!({}), TRIED_WITHIN).await?;
    if json.json {
        show::json(&report)?;
    } else {
        for case in &report.cases {
            let why = case.why.as_ref().map_or_else(String::new, |why| format!(": {}", one_line(why)));
            println!("{} {}{why}", if case.passed { "ok  " } else { "FAIL" }, case.name);
        }
    }
    Ok(if report.passed { 0 } else { 1 })
}

async fn remove(settings: &Settings, name: &str, force: bool, abandon: bool) -> Done {
    let plane = ControlPlane::reach(settings).await?;
    plane.delete(&format!("/providers/{}?force={force}", encode(name))).await?;
    let left: Vec<ProviderView> = plane.list("/providers", MOST).await?;
    match left.iter().find(|it| it.name == name) {
        Some(it) if !it.stays.is_empty() => {
            for stays in &it.stays {
                let (host, why) = (one_line(&stays.host), one_line(&stays.why));
                eprintln!("repl: {host} still has {}: {why}", one_line(&stays.what));
            }
            let hosts = show::count(it.stays.len() as i64, "host");
            if abandon {
                plane.delete(&format!("/providers/{}?abandon=true", encode(name))).await?;
                println!("{} is removed; what stays on {hosts} is named above: delete it there", it.name);
            } else {
                println!("{} is being removed: {hosts} could not be cleared and will be asked again", it.name);
                eprintln!("repl: to give up what is there: repl provider remove {} --abandon", it.name);
            }
        }
        Some(it) if it.instances > 0 => {
            let machines = show::count(it.instances, "machine");
            println!("{} is being removed: it has {machines}, and goes with the last", it.name);
        }
        Some(it) => println!("{} is being removed", it.name),
        None => println!("{} is removed", one_line(name)),
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: AddArgs,
    }

    fn said(line: &str) -> Done<Value> {
        keys(&Line::parse_from(line.split(' ')).args).map(Value::Object)
    }

    #[test]
    fn gpus_are_counted_by_their_model() {
        let models = ["A100", "T4", "A100"].map(str::to_owned);
        assert_eq!(counted(&models), "2 × A100, 1 × T4");
        assert_eq!(counted(&[]), "-");
    }

    #[test]
    fn flags_become_the_keys_of_the_kind() {
        let lab = said("add ssh lab u@a u@b:22 --identity /k --slots 2 --accept-host-key").unwrap();
        let hosts = json!(["u@a", "u@b:22"]);
        assert_eq!(lab, json!({ "hosts": hosts, "identity": "/k", "slots": 2, "accept_host_key": true }));
        let set = said("add local x --set max_instances=2 --set word=yes=no").unwrap();
        assert_eq!(set, json!({ "max_instances": 2, "word": "yes=no" }));
        for (slots, taken) in [(0, false), (MOST_SLOTS, true), (MOST_SLOTS + 1, false)] {
            let line = format!("add ssh lab u@a --slots {slots}");
            assert_eq!(Line::try_parse_from(line.split(' ')).is_ok(), taken, "{slots}");
        }
        assert!(said("add ssh lab").unwrap_err().text.contains("needs hosts"));
        assert!(said("add local x --set nothing").unwrap_err().text.contains("is not KEY=VALUE"));
    }

    #[test]
    fn every_provider_that_bills_is_named_in_what_is_said_of_sleep() {
        let told = |names: &[&str]| what_sleep_does(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(told(&[]), None);
        assert!(told(&["lab"]).unwrap().starts_with("lab bills: if this computer sleeps"));
        assert!(told(&["lab", "cloud"]).unwrap().starts_with("lab and cloud bill: if this computer sleeps"));
    }
}
