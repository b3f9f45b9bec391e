//! `repl dag`: heads, refs, commits and objects of calls, and their way to and from remotes.

mod transfer;

use crate::args::{Json, Listing};
use crate::complaint::{Complaint, Done};
use crate::control_plane::ControlPlane;
use crate::say::one_line;
use crate::settings::Settings;
use crate::show::{self, Table};
use wire::api::{CommitView, IndexView, ObjectView, Page, RefView, SetRef};
use wire::client::encode;

/// Digits of an id that are shown: enough to find it again.
const DIGITS: usize = 12;
const HEAD: &str = "main";

#[derive(Debug, clap::Subcommand)]
pub enum Dag {
    /// Print an object as JSON: a commit, tree, dag, node, value, exec
    #[command(after_help = "Examples:
  repl dag show main
  repl dag show 3f2a91c0
  repl dag show index --json | jq -r .object.execs")]
    Show {
        /// The first digits of an object, a head, REMOTE/HEAD, a ref, or index
        object: String,
        /// With its id, kind and size
        #[arg(long)]
        json: bool,
    },
    /// List the commits of a head, the newest first
    #[command(after_help = "Examples:
  repl dag log
  repl dag log origin/main --limit 5 --json | jq -r '.[].id'")]
    Log {
        /// A head, REMOTE/HEAD, a ref, index, or the first digits of a commit
        #[arg(default_value = HEAD)]
        head: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// List the heads, and what heads of remotes were when they were last seen
    #[command(after_help = "Examples:
  repl dag heads
  repl dag heads --json | jq -r '.[] | .short + \" \" + .commit'")]
    Heads {
        #[command(flatten)]
        listing: Listing,
    },
    /// Make a head, or move it forward
    #[command(after_help = "Examples:
  repl dag branch main                 all results of now, as a commit of main
  repl dag branch experiment main
  repl dag branch main origin/main     after repl dag pull
  repl dag branch main 3f2a91c0 --force

A head that exists and is moved to the index gets a commit on top. Heads are
history for people: no head ever answers a run.")]
    Branch {
        /// Its name
        head: String,
        /// Where it is to point: index, a head, REMOTE/HEAD, a ref, or the first digits of a commit
        #[arg(default_value = "index", value_name = "FROM")]
        object: String,
        /// Also if commits are lost by it
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Print the commit of a ref; or set or delete it, if it is where it is expected
    #[command(after_help = "Examples:
  repl dag ref main
  repl dag ref refs/heads/main --to 3f2a91c0 --expect $(repl dag ref main)
  repl dag ref new --to main --expect none
  repl dag ref old --delete")]
    Ref {
        /// A head, or the whole name of a ref
        #[arg(value_name = "REF")]
        head: String,
        /// Point it to this: a head, a ref, index, or the first digits of a commit
        #[arg(long, value_name = "OBJECT", conflicts_with = "delete")]
        to: Option<String>,
        /// Delete it; its objects stay until repl cache gc
        #[arg(long)]
        delete: bool,
        /// Only if it is at this commit now, or none if it must not exist
        #[arg(long, value_name = "COMMIT")]
        expect: Option<String>,
        /// Also if commits are lost by it
        #[arg(long, requires = "to")]
        force: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Where results are pinned
    #[command(subcommand)]
    Index(Index),
    /// Send a head, with everything below it, to a remote
    #[command(after_help = "Examples:
  repl dag push file:///mnt/backup/dag
  repl dag push s3://bucket/team main
  repl dag push s3://bucket/team main --force --json

This command opens the remote itself, with the files and AWS_… variables of the
person who types it: a control plane never opens one.")]
    Push(transfer::Push),
    /// Bring a head of a remote here, as refs/remotes/NAME/HEAD
    #[command(after_help = "Examples:
  repl dag pull file:///mnt/backup/dag
  repl dag pull s3://bucket/team main --as team
  repl dag branch main team/main       then make a head of it")]
    Pull(transfer::Pull),
    /// Delete what no head of a remote needs any more
    #[command(after_help = "Examples:
  repl dag sweep file:///mnt/backup/dag
  repl dag sweep s3://bucket/team --json | jq .deleted

The first sweep that finds something unneeded for a day marks it. One that finds
it still unneeded a day later deletes it. So call it daily; it may run beside
pushes. This command opens the remote itself, as repl dag push does.")]
    Sweep(transfer::Sweep),
}

#[derive(Debug, clap::Subcommand)]
pub enum Index {
    /// List the indexes, one for each project
    #[command(
        alias = "list",
        after_help = "Examples:
  repl dag index ls
  repl dag index ls --json | jq -r '.[].pins'"
    )]
    Ls {
        #[command(flatten)]
        json: Json,
    },
}

pub async fn dag(settings: &Settings, command: Dag) -> Done {
    let command = match command {
        // It concerns no control plane.
        Dag::Sweep(args) => return transfer::sweep(args).await,
        command => command,
    };
    let plane = ControlPlane::reach(settings).await?;
    match command {
        Dag::Sweep(args) => transfer::sweep(args).await,
        Dag::Show { object, json } => print_object(&plane, &object, json).await,
        Dag::Log { head, listing } => log(&plane, &head, listing).await,
        Dag::Heads { listing } => heads(&plane, listing).await,
        Dag::Branch { head, object, force, json } => {
            if head.starts_with("refs/") {
                return Err(Complaint::usage(format!("`{head}` is the name of a ref, and a head's name is wanted"))
                    .fix("write the part behind refs/heads/"));
            }
            let moved = set(&plane, SetRef { name: head, from: object, expect: None, force }).await?;
            told(&moved, json.json)
        }
        Dag::Ref { head, to: Some(from), expect, force, json, .. } => {
            let moved = set(&plane, SetRef { name: head, from, expect, force }).await?;
            told(&moved, json.json)
        }
        Dag::Ref { head, delete: true, expect, .. } => {
            let expect = expect.map_or_else(String::new, |commit| format!("&expect={}", encode(&commit)));
            plane.delete(&format!("/dag/refs?name={}{expect}", encode(&head))).await?;
            eprintln!("repl: {} is deleted", one_line(&head));
            Ok(0)
        }
        Dag::Ref { head, expect: Some(_), .. } => {
            Err(Complaint::usage(format!("--expect says under which condition {head} is changed"))
                .fix("say how: --to OBJECT, or --delete"))
        }
        Dag::Ref { head, json, .. } => {
            let found = object(&plane, &head).await?;
            if json.json {
                return show::json(&found);
            }
            println!("{}", found.id);
            Ok(0)
        }
        Dag::Index(Index::Ls { json }) => indexes(&plane, json.json).await,
        Dag::Push(args) => transfer::push(&plane, args).await,
        Dag::Pull(args) => transfer::pull(&plane, args).await,
    }
}

/// What a person names.
async fn object(plane: &ControlPlane, named: &str) -> Done<ObjectView> {
    let found: Done<ObjectView> = plane.get(&format!("/dag/object?of={}", encode(named))).await;
    found.map_err(|complaint| match complaint.text.contains("no such") && complaint.fix.is_none() {
        true => complaint.fix("repl dag heads lists heads; repl cache ls has the keys of results"),
        false => complaint,
    })
}

async fn set(plane: &ControlPlane, asked: SetRef) -> Done<RefView> {
    plane.put("/dag/refs", &asked).await
}

fn told(moved: &RefView, json: bool) -> Done {
    if json {
        return show::json(moved);
    }
    let commit = &moved.commit[..DIGITS];
    let short = one_line(&moved.short);
    match &moved.previous {
        None => eprintln!("repl: {short} is at {commit}"),
        Some(previous) if *previous == moved.commit => eprintln!("repl: {short} is at {commit} already"),
        Some(previous) => eprintln!("repl: {short} is at {commit}, it was at {}", &previous[..DIGITS]),
    }
    Ok(0)
}

async fn print_object(plane: &ControlPlane, named: &str, json: bool) -> Done {
    let found = object(plane, named).await?;
    if json {
        return show::json(&found);
    }
    eprintln!("{} {} ({})", found.kind, found.id, show::size(found.bytes));
    show::json(&found.object)
}

async fn log(plane: &ControlPlane, of: &str, listing: Listing) -> Done {
    let commits: Vec<CommitView> = plane.list(&format!("/dag/log?of={}", encode(of)), listing.limit).await?;
    if listing.json {
        return show::json(&commits);
    }
    let mut table = Table::new(["COMMIT", "PARENTS", "TREE", "EXECS", "REFS"]).without_if_narrow(&["TREE"]);
    for it in &commits {
        let parents: Vec<&str> = it.parents.iter().map(|parent| &parent[..DIGITS]).collect();
        table.row([
            it.id[..DIGITS].to_owned(),
            show::or_dash((!parents.is_empty()).then(|| parents.join(" "))),
            it.tree[..DIGITS].to_owned(),
            show::or_dash(it.execs.as_ref().map(|root| root[..DIGITS].to_owned())),
            it.refs.iter().map(|name| one_line(name)).collect::<Vec<_>>().join(" "),
        ]);
    }
    table.print("no commits");
    Ok(0)
}

async fn heads(plane: &ControlPlane, listing: Listing) -> Done {
    let mut refs: Vec<RefView> = plane.list("/dag/refs?kind=heads", listing.limit).await?;
    let left = listing.limit - refs.len();
    if left > 0 {
        let remotes: Vec<RefView> = plane.list("/dag/refs?kind=remotes", left).await?;
        refs.extend(remotes);
    }
    if listing.json {
        return show::json(&refs);
    }
    let mut table = Table::new(["HEAD", "COMMIT", "REF"]);
    for it in &refs {
        table.row([one_line(&it.short), it.commit[..DIGITS].to_owned(), it.name.clone()]);
    }
    table.print("no heads: repl dag branch main makes one of all results of now");
    Ok(0)
}

async fn indexes(plane: &ControlPlane, json: bool) -> Done {
    let found: Page<IndexView> = plane.get("/dag/indexes").await?;
    if json {
        return show::json(&found.data);
    }
    let mut table = Table::new(["PROJECT", "PINS", "COMMIT", "REF"]).without_if_narrow(&["REF"]);
    for it in &found.data {
        let project = one_line(&it.project);
        table.row([
            if it.current { format!("{project} (current)") } else { project },
            it.pins.to_string(),
            show::or_dash(it.commit.as_ref().map(|commit| commit[..DIGITS].to_owned())),
            it.name.clone(),
        ]);
    }
    table.print("no index");
    Ok(0)
}
